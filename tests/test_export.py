"""Shards back to examples: nothing lost, nothing invented, whatever the layout."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
from builds import write_examples
from hypothesis import given
from hypothesis import strategies as st
from oracle import Example
from strategies import corpora

from dagpack_cli.errors import DagpackError, DamageError, MismatchError, NoInputError
from dagpack_cli.export import export_examples, export_sequences, export_transitions
from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
from dagpack_cli.pipeline import BuildResult, Execution, TokenizerChoice, build

layouts = st.sampled_from(["dag", "walk", "packed", "best-fit", "padded"])


def build_examples(folder: Path, examples: Sequence[Example], pack: PackOptions, trie: TrieOptions) -> BuildResult:
    """Build examples of given ids into a folder."""
    write_examples(folder / "corpus", examples)
    return build_corpus(folder / "corpus", folder / "out", pack, trie)


def build_corpus(corpus: Path, out: Path, pack: PackOptions, trie: TrieOptions) -> BuildResult:
    """Build a corpus of given ids."""
    return build(
        corpus,
        out,
        tokenizer=TokenizerChoice(spec="none"),
        ingest_options=IngestOptions(),
        trie_options=trie,
        pack_options=pack,
        execution=Execution(),
    )


def as_records(examples: Sequence[Example], shortest: int) -> list[dict[str, Any]]:
    """Return what a corpus of examples is expected to give back: labels say what trains."""
    records = []
    for number, example in enumerate(examples):
        if len(example.tokens) >= shortest:
            labels = [token if at in example.trained else -100 for at, token in enumerate(example.tokens)]
            record = {"id": f"e{number}", "input_ids": list(example.tokens), "labels": labels, "weight": example.weight}
            records.append(record | ({} if example.group is None else {"group": example.group}))
    return records


@given(
    examples=corpora(max_examples=10),
    layout=layouts,
    seq_len=st.integers(1, 9),
    prune=st.booleans(),
    root=st.sampled_from([None, "0"]),
    val_fraction=st.sampled_from([0.0, 0.4]),
)
def test_every_kept_example_is_given_back(
    examples: list[Example], layout: str, seq_len: int, prune: bool, root: str | None, val_fraction: float
) -> None:
    """Ids, order, tokens, weights and supervised positions are those of the input, from any layout."""
    with TemporaryDirectory() as folder:
        pack = PackOptions(seq_len=seq_len, layout=layout, on_long="split", prune=prune)
        try:
            result = build_examples(
                Path(folder), examples, pack, TrieOptions(virtual_root=root, val_fraction=val_fraction)
            )
        except NoInputError:
            return
        given_back = list(export_examples(result.path, result.manifest))
    assert given_back == as_records(examples, 2 if root is None else 1)


@given(examples=corpora(max_examples=10), layout=layouts, seq_len=st.integers(1, 9))
def test_building_the_export_again_gives_the_same_windows(examples: list[Example], layout: str, seq_len: int) -> None:
    """An export is a corpus: built with the same options it gives the same shards, byte for byte."""
    # A lone token is in no window, but in the vocabulary that the shards name.
    examples = [example for example in examples if len(example.tokens) > 1]
    with TemporaryDirectory() as folder:
        root = Path(folder)
        pack = PackOptions(seq_len=seq_len, layout=layout, on_long="split")
        try:
            first = build_examples(root, examples, pack, TrieOptions())
        except NoInputError:
            return
        again = root / "again"
        again.mkdir()
        lines = [json.dumps(record) + "\n" for record in export_examples(first.path, first.manifest)]
        (again / "export.jsonl").write_text("".join(lines))
        second = build_corpus(again, root / "out2", pack, TrieOptions())
        shards = [entry for entry in first.manifest.files if entry.path.startswith(("shards/", "trie/"))]
        assert shards == [entry for entry in second.manifest.files if entry.path.startswith(("shards/", "trie/"))]


@given(examples=corpora(max_examples=10), layout=layouts)
def test_sequences_come_from_the_shards_alone(examples: list[Example], layout: str) -> None:
    """Without pruning, the distinct sequences and their multiplicities are those of the kept examples."""
    with TemporaryDirectory() as folder:
        pack = PackOptions(seq_len=64, layout=layout, prune=False)
        try:
            result = build_examples(Path(folder), examples, pack, TrieOptions())
        except NoInputError:
            return
        (result.path / "examples.parquet").unlink()
        found: Counter[tuple[int, ...]] = Counter()
        for record in export_sequences(result.path, result.manifest):
            found[tuple(record["input_ids"])] += record["count"]
    assert found == Counter(example.tokens for example in examples if len(example.tokens) > 1)


@given(examples=corpora(max_examples=10), layout=st.sampled_from(["dag", "walk"]))
def test_state_merging_gives_back_the_transitions(examples: list[Example], layout: Literal["dag", "walk"]) -> None:
    """Under merge state the multiset of transitions is that of the corpus."""
    with TemporaryDirectory() as folder:
        pack = PackOptions(seq_len=3, layout=layout, on_long="split", prune=False)
        try:
            result = build_examples(Path(folder), examples, pack, TrieOptions(merge="state"))
        except NoInputError:
            return
        found = Counter(
            {(row["input"], row["target"]): row["count"] for row in export_transitions(result.path, result.manifest)}
        )
        with pytest.raises(MismatchError, match="merge state"):
            list(export_sequences(result.path, result.manifest))
        with pytest.raises(MismatchError, match="merge state"):
            list(export_examples(result.path, result.manifest))
    expected = Counter(pair for example in examples for pair in zip(example.tokens, example.tokens[1:], strict=False))
    assert found == expected


def test_an_export_refuses_windows_that_hold_something_else(tmp_path: Path) -> None:
    """If a window holds one sequence more or less than the examples say, nothing is given back."""
    examples = [Example((1, 2, 3), frozenset({1, 2}), 1.0), Example((1, 2, 4), frozenset({1, 2}), 1.0)]
    result = build_examples(tmp_path, examples, PackOptions(seq_len=8), TrieOptions())
    (tmp_path / "other").mkdir()
    other = build_examples(tmp_path / "other", examples[:1], PackOptions(seq_len=8), TrieOptions())
    shard = "shards/train-00000.parquet"
    (result.path / shard).write_bytes((other.path / shard).read_bytes())
    with pytest.raises(DamageError, match="1 kept sequences are in no window, 0 in windows are no example's"):
        list(export_examples(result.path, result.manifest))


def test_dropped_examples_are_named_and_can_be_given_back(tmp_path: Path) -> None:
    """``--on-long drop`` leaves examples out of the windows, not out of the build."""
    examples = [Example((1, 2, 3, 4, 5), frozenset({1, 2}), 1.0), Example((1, 2), frozenset({1}), 1.0)]
    result = build_examples(tmp_path, examples, PackOptions(seq_len=2, on_long="drop"), TrieOptions())
    assert [record["id"] for record in export_examples(result.path, result.manifest)] == ["e1"]
    assert [record["id"] for record in export_examples(result.path, result.manifest, dropped=True)] == ["e0", "e1"]


def test_errors_are_of_our_kind() -> None:
    """Every refusal above is a failure with an exit code, not a bug."""
    assert all(issubclass(kind, DagpackError) for kind in (DamageError, MismatchError, NoInputError))
