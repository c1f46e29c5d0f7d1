"""Rows of ids read many together say what they say one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpack_cli.corpora import BadRecords, Example, IdBlock, ReadCounts, read_examples, read_items
from dagpack_cli.corpora.datasets import pretokenised
from dagpack_cli.corpora.files.sources import Source, stat_source
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.tokenizing import GivenIds

_ODD = ("id", "group", "weight", "range", "negative", "shifted", "short", "null", "pad")
ids = st.lists(st.integers(0, 4), max_size=6)


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return rows of which most are plain, and some hold what has to be looked at."""
    kind: str = draw(st.sampled_from(["none", "labels", "loss_mask", "flags"]))
    odd: bool = draw(st.sampled_from([False, False, True]))
    found = []
    for _ in range(draw(st.integers(0, 6))):
        tokens = draw(ids)
        row: dict[str, Any] = {"input_ids": tokens}
        trained = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
        if kind == "labels":
            row["labels"] = [token if train else -100 for token, train in zip(tokens, trained, strict=True)]
            changes_first: bool = draw(st.booleans())
            if tokens and changes_first:
                row["labels"][0] = draw(st.integers(-100, 9))
        elif kind != "none":
            row["loss_mask"] = trained if kind == "flags" else [int(train) for train in trained]
        if odd:
            change = draw(
                st.sampled_from(["id", "group", "weight", "range", "negative", "shifted", "short", "null", "pad"])
            )
            if change in ("id", "group"):
                row[change] = draw(st.sampled_from(["", "a", "b"]))
            elif change == "weight":
                row["weight"] = draw(st.sampled_from([0.5, -1.0, 0.0, float("nan"), 1e300]))
            elif change == "range":
                row |= {"start": 0, "end": len(tokens)}
            elif change == "negative":
                row["input_ids"] = [*tokens, draw(st.sampled_from([-1, 2**31, 2**31 - 1]))]
            elif change == "shifted" and kind == "labels":
                row["labels"] = row["labels"][1:] + [-100] * (len(tokens) > 0)
            elif change == "short" and kind != "none":
                row["labels" if kind == "labels" else "loss_mask"] = []
            elif change == "pad":
                row["attention_mask"] = [int(at > 0) for at in range(len(tokens))]
            elif change == "null":
                row["input_ids"] = None
        found.append(row)
    return found


def source_of(path: Path, table: pa.Table, kind: str) -> Source:
    """Write a table as one of the kinds of file and return it as an input."""
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    return stat_source(path, path.name, pretokenised.NAME)


def read(source: Source, *, vocab_size: int | None = None) -> tuple[list[Any], list[Any], ReadCounts]:
    """Return examples as plain values, what was bad, and the counts."""
    bad, counts = BadRecords(), ReadCounts()
    tokenizer = GivenIds()
    if vocab_size is not None:
        tokenizer.vocab_size = vocab_size  # type: ignore[misc]
    found = [values(example) for example in read_examples(source, tokenizer, ReadOptions(), bad, counts=counts)]
    return found, bad.first, counts


def values(example: Example) -> dict[str, Any]:
    """Return an example with its arrays as lists."""
    fields = {name: getattr(example, name) for name in Example.__dataclass_fields__}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()}


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@given(batches=st.lists(rows(), max_size=3), vocab_size=st.sampled_from([None, 4]))
def test_blocks_say_what_rows_say(
    kind: str, batches: list[list[dict[str, Any]]], vocab_size: int | None, tmp_path_factory: Any
) -> None:
    """Examples, messages and counts are those of one row after the other, whatever is mixed."""
    listed = [row for batch in batches for row in batch]
    names = sorted({name for row in listed for name in row} | {"input_ids"})
    try:
        table = pa.table({name: pa.array([row.get(name) for row in listed]) for name in names})
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # flags beside numbers: no such column
        return
    source = source_of(tmp_path_factory.mktemp("blocks") / "rows", table, kind)
    with pytest.MonkeyPatch.context() as patch:
        together = read(source, vocab_size=vocab_size)
        patch.setattr(pretokenised, "block_of", lambda *_: None)
        assert together == read(source, vocab_size=vocab_size)


def test_plain_rows_are_read_together(tmp_path: Path) -> None:
    """A corpus of nothing but ids comes in blocks, thousands of rows at a time; the first label may be anything."""
    table = pa.table({"input_ids": [[1, 2, 3]] * 10_000, "labels": [[7, 2, 3]] * 10_000})
    items = list(read_items(source_of(tmp_path / "a.parquet", table, "parquet"), GivenIds(), ReadOptions()))
    assert all(isinstance(item, IdBlock) for item in items)
    assert sum(len(item.ids) for item in items if isinstance(item, IdBlock)) == 10_000
    assert len(items) == 2
