"""Examples on disk: splits joined in order, and a provenance whose size has no limit at 2^31."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagpack_cli.corpora import Example
from dagpack_cli.errors import DamageError
from dagpack_cli.examples import Examples, Segment, SplitWriter, load_examples
from dagpack_cli.provenance import (
    STATUSES,
    read_provenance,
    rewrite_provenance,
    supervised_runs,
    write_provenance,
)


def write_split(directory: Path, sequences: list[list[int]]) -> Path:
    """Write sequences as one split: every other token of each trains."""
    writer = SplitWriter(directory)
    for number, tokens in enumerate(sequences):
        runs = [[at, at + 1] for at in range(0, len(tokens), 2)]
        writer.add(
            Example(
                tokens=np.array(tokens, dtype=np.int32),
                runs=np.array(runs, dtype=np.int32).reshape(-1, 2),
                weight=number + 0.5,
                id=f"{directory.name}-{number}",
                record=number,
                line=number + 1,
                start=0,
                end=len(tokens),
                group=None if number else "first",
                kind="pretokenised",
            ),
            f"{directory.name}.jsonl",
        )
    writer.close()
    return directory


def whole_split(directory: Path, remap: npt.NDArray[np.int32] | None = None) -> Segment:
    """Return all examples of a split."""
    return Segment(directory, 0, len(np.fromfile(directory / "lengths.i64", dtype="<i8")), remap)


def stored(tmp_path: Path) -> Examples:
    """Return the examples of two splits, an empty example among them."""
    splits = [write_split(tmp_path / "a", [[1, 2, 3], []]), write_split(tmp_path / "b", [[4, 5]])]
    return load_examples([whole_split(split) for split in splits])


def test_splits_are_joined_in_order(tmp_path: Path) -> None:
    """Tokens, runs and provenance of all splits line up, empty examples included."""
    examples = stored(tmp_path)
    assert [tokens.tolist() for tokens in examples.sequences] == [[1, 2, 3], [], [4, 5]]
    assert examples.runs.tolist() == [[0, 1], [2, 3], [0, 1]]
    assert examples.run_offsets.tolist() == [0, 2, 2, 3]
    assert list(examples.names("id")) == ["a-0", "a-1", "b-0"]
    assert examples.weights.tolist() == [0.5, 1.5, 0.5]


def test_symbols_of_each_split_are_mapped(tmp_path: Path) -> None:
    """A split's own ids become the vocabulary's through its map."""
    splits = [write_split(tmp_path / "a", [[0, 1]]), write_split(tmp_path / "b", [[0, 1]])]
    remaps = [np.array([0, 1], dtype=np.int32), np.array([2, 0], dtype=np.int32)]
    segments = [whole_split(split, remap) for split, remap in zip(splits, remaps, strict=True)]
    assert [tokens.tolist() for tokens in load_examples(segments).sequences] == [[0, 1], [2, 0]]


def test_parts_of_splits_in_any_order(tmp_path: Path) -> None:
    """Examples are taken from splits in the order asked for, whatever else stands in them."""
    a = write_split(tmp_path / "a", [[1, 2, 3], [], [7]])
    b = write_split(tmp_path / "b", [[4, 5], [6, 6, 6]])
    segments = [Segment(b, 1, 2), Segment(a, 0, 1), Segment(a, 1, 2), Segment(b, 0, 1), Segment(a, 2, 2)]
    examples = load_examples(segments)
    assert [tokens.tolist() for tokens in examples.sequences] == [[6, 6, 6], [1, 2, 3], [], [4, 5]]
    assert list(examples.names("id")) == ["b-1", "a-0", "a-1", "b-0"]
    assert examples.runs.tolist() == [[0, 1], [2, 3], [0, 1], [2, 3], [0, 1]]
    assert examples.run_offsets.tolist() == [0, 2, 4, 4, 5]
    assert examples.weights.tolist() == [1.5, 0.5, 1.5, 0.5]


def test_provenance_has_64_bit_offsets_and_comes_back(tmp_path: Path) -> None:
    """No column of strings or lists counts its content in 32 bits, in memory or through the file."""
    examples = stored(tmp_path)
    statuses = np.array([STATUSES.index(status) for status in ("kept", "empty", "kept")], dtype=np.int8)
    parts = np.zeros(3, dtype=np.int8)
    windows = (np.array([0, 2, 2, 3]), np.array([0, 5, 1], dtype=np.int32))
    write_provenance(tmp_path / "before.parquet", examples, parts, ["train"], statuses, np.array([4, -1, 7]))
    rewrite_provenance(tmp_path / "before.parquet", tmp_path / "examples.parquet", windows, statuses, {"key": "value"})
    back = read_provenance(tmp_path / "examples.parquet")
    small = (pa.types.is_string, pa.types.is_binary, pa.types.is_list)
    assert not any(check(field.type) for field in back.schema for check in small)
    assert back.column("windows").to_pylist() == [[0, 5], [], [1]]
    assert back.column("end_node").to_pylist() == [4, -1, 7]
    runs, offsets = supervised_runs(back)
    assert runs.tolist() == examples.runs.tolist()
    assert offsets.tolist() == examples.run_offsets.tolist()


def test_a_foreign_table_is_refused(tmp_path: Path) -> None:
    """A Parquet file with other columns is damage, named with its columns."""
    pq.write_table(pa.table({"x": [1]}), tmp_path / "examples.parquet")
    with pytest.raises(DamageError, match="columns x; those of dagpack"):
        read_provenance(tmp_path / "examples.parquet")
