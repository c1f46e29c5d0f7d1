"""Examples on disk, as ingest hands them to the trie.

A *split* is a folder of plain arrays written while one part of the corpus is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.corpora import Example, IdBlock
from dagpack_cli.native import open_native
from dagpack_cli.sequences import Sequences

__all__ = [
    "META_SCHEMA",
    "Examples",
    "Segment",
    "SplitWriter",
    "copy_examples",
    "load_examples",
    "read_lines",
    "read_table",
    "write_lines",
]

Int64Array = npt.NDArray[np.int64]

META_SCHEMA = pa.schema(
    [
        pa.field("id", pa.large_string(), nullable=False),
        pa.field("file", pa.large_string(), nullable=False),
        pa.field("record", pa.int64(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("group", pa.large_string()),
        pa.field("weight", pa.float64(), nullable=False),
    ]
)
_COLUMNS = {"tokens.i32": "<i4", "runs.i32": "<i4", "keys.i64": "<i8", "lengths.i64": "<i8", "num_runs.i64": "<i8"}
_META_FILE = "meta.parquet"
_META_ROWS = 1 << 16  # that are in memory before they are written
_STAGED = pa.schema([*META_SCHEMA, pa.field("family", pa.large_string()), pa.field("chat", pa.bool_(), nullable=False)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Examples in input order, as columns.

    Attributes:
        sequences: the tokens of every example; those of splits stay in their files.
        runs: shape (num_runs, 2), int32; half-open supervised ranges of an example's own tokens.
        run_offsets: shape (num_examples + 1,), int64, into ``runs``.
        keys: shape (num_runs, 2), int64; the key of the message of every run, zeros for none.
        families: a second group of every example, null for none.
        chats: shape (num_examples,), bool; which are conversations.
        meta: id, file, record, line, start, end, group and weight; one row an example.
    """

    sequences: Sequences
    runs: npt.NDArray[np.int32]
    run_offsets: Int64Array
    keys: Int64Array
    families: pa.ChunkedArray
    chats: npt.NDArray[np.bool_]
    meta: pa.Table

    @property
    def num_examples(self) -> int:
        """Number of examples, empty ones included."""
        return len(self.sequences)

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """Example weights: shape (num_examples,), float64."""
        return np.asarray(self.meta.column("weight").to_numpy(), dtype=np.float64)

    @property
    def run_owners(self) -> Int64Array:
        """The example of every run: shape (num_runs,), int64."""
        return np.repeat(np.arange(self.num_examples), np.diff(self.run_offsets))

    def with_runs(self, kept: npt.NDArray[np.bool_]) -> Examples:
        """Return the same examples with only some of their runs supervised; ``kept``: shape (num_runs,), bool."""
        sizes = np.bincount(self.run_owners[kept], minlength=self.num_examples)
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        return replace(self, runs=self.runs[kept], keys=self.keys[kept], run_offsets=offsets)


class SplitWriter:
    """Write the examples of one split; everything goes to disk as it comes, in bounded memory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.num_examples = 0
        with ExitStack() as stack:  # a full disk may refuse any of them
            self._files = {name: stack.enter_context((directory / name).open("wb")) for name in _COLUMNS}
            meta_file = stack.enter_context(open_native(directory / _META_FILE, "wb"))
            self._meta = stack.enter_context(pq.ParquetWriter(meta_file, _STAGED, compression="zstd"))
            self._opened = stack.pop_all()
        self._rows: dict[str, list[Any]] = {name: [] for name in _STAGED.names}
        self._tables: list[pa.Table] = []

    def add(self, example: Example, file: str) -> None:
        """Append one example read from the input named ``file``."""
        keys = np.zeros((len(example.runs), 2), dtype="<i8") if example.keys is None else example.keys
        arrays = example.tokens, example.runs, keys, np.array(len(example.tokens)), np.array(len(example.runs))
        for (name, dtype), array in zip(_COLUMNS.items(), arrays, strict=True):
            self._files[name].write(np.ascontiguousarray(array, dtype=dtype).data)
        values = (
            example.id,
            file,
            example.record,
            example.line,
            example.start,
            example.end,
            example.group,
            example.weight,
            example.family,
            example.chat,
        )
        for column, value in zip(self._rows.values(), values, strict=True):
            column.append(value)
        self.num_examples += 1
        if len(self._rows["id"]) >= _META_ROWS:
            self._flush()

    def add_block(self, block: IdBlock, file: str) -> None:
        """Append many examples read from the input named ``file``."""
        keys = np.zeros((len(block.runs), 2), dtype="<i8")
        arrays = block.tokens, block.runs, keys, block.lengths, block.num_runs
        for (name, dtype), array in zip(_COLUMNS.items(), arrays, strict=True):
            self._files[name].write(np.ascontiguousarray(array, dtype=dtype).data)
        num = len(block.ids)
        columns = {
            "id": block.ids,
            "file": pa.repeat(pa.scalar(file, pa.large_string()), num),
            "record": np.arange(block.first, block.first + num),
            "line": np.zeros(num, dtype=np.int64),
            "start": np.zeros(num, dtype=np.int64),
            "end": block.lengths,
            "group": pa.nulls(num, pa.large_string()) if block.groups is None else block.groups,
            "weight": block.weights,
            "family": pa.nulls(num, pa.large_string()),
            "chat": np.zeros(num, dtype=bool),
        }
        self._take_rows()
        self._tables.append(pa.table(columns, schema=_STAGED))
        self.num_examples += num
        if sum(table.num_rows for table in self._tables) >= _META_ROWS:
            self._flush()

    def copy(self, split: _Split, segment: Segment) -> None:
        """Append examples of another split."""
        examples = slice(segment.first, segment.last + 1)
        offsets, run_offsets = split.offsets[examples], split.run_offsets[examples]
        inside = slice(int(run_offsets[0]), int(run_offsets[-1]))
        arrays = (
            split.tokens[offsets[0] : offsets[-1]],
            split.runs[inside],
            split.keys[inside],
            np.diff(offsets),
            np.diff(run_offsets),
        )
        for (name, dtype), array in zip(_COLUMNS.items(), arrays, strict=True):
            self._files[name].write(np.ascontiguousarray(array, dtype=dtype).data)
        self._take_rows()
        self._tables.append(split.meta[segment.first : segment.last])
        self._flush()
        self.num_examples += segment.last - segment.first

    def _take_rows(self) -> None:
        if self._rows["id"]:
            self._tables.append(pa.table(self._rows, schema=_STAGED))
            self._rows = {name: [] for name in _STAGED.names}

    def _flush(self) -> None:
        self._take_rows()
        if self._tables:
            self._meta.write_table(pa.concat_tables(self._tables).combine_chunks())
            self._tables = []

    def __enter__(self) -> SplitWriter:
        """Return itself."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Finish the split; after a failure only let its files go."""
        if kind is None:
            self.close()
            return
        with suppress(Exception):  # the failure that is on its way says more
            self._opened.close()

    def close(self) -> None:
        """Finish the split; all files are let go, also where one of them cannot be finished."""
        with self._opened:
            self._flush()


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive examples of one split: those of one input, or of several in a row.

    Attributes:
        directory: of the split.
        first: its first example that is meant.
        last: exclusive.
        remap: with symbols, shape (k,), int32: the vocabulary's id of each of the segment's own ids; else None.
    """

    directory: Path
    first: int
    last: int
    remap: npt.NDArray[np.int32] | None = None


def load_examples(segments: Sequence[Segment]) -> Examples:
    """Return the examples of segments, in order. Memory: what is known of each example, and no token.

    Tokens are mapped and stay in the files of their splits; those of symbols, which have to become
    the vocabulary's, are in memory.
    """
    splits: dict[Path, _Split] = {}
    tokens, lengths, runs, num_runs, keys, metas = [], [], [], [], [], []
    for segment in _joined_segments(segments):
        split = splits.setdefault(segment.directory, _Split(segment.directory))
        rows = slice(segment.first, segment.last)
        found = split.tokens[split.offsets[segment.first] : split.offsets[segment.last]]
        tokens.append(found if segment.remap is None else segment.remap[found])
        lengths.append(np.diff(split.offsets[segment.first : segment.last + 1]))
        inside = slice(*split.run_offsets[[segment.first, segment.last]].tolist())
        num_runs.append(np.diff(split.run_offsets[segment.first : segment.last + 1]))
        runs.append(split.runs[inside])
        keys.append(split.keys[inside])
        metas.append(split.meta[rows])
    meta = pa.concat_tables(metas) if metas else _STAGED.empty_table()
    return Examples(
        sequences=Sequences.over(tokens, lengths),
        runs=_joined(runs, (0, 2), np.int32),
        run_offsets=np.concatenate(([0], np.cumsum(_joined(num_runs, (0,), np.int64)))),
        keys=_joined(keys, (0, 2), np.int64),
        families=meta.column("family"),
        chats=np.asarray(meta.column("chat").to_numpy(), dtype=np.bool_),
        meta=meta.select(META_SCHEMA.names),
    )


def _joined_segments(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Yield the segments, each as long as it can be: most inputs stand beside their neighbours."""
    last: Segment | None = None
    for segment in segments:
        plain = segment.remap is None and last is not None and last.remap is None
        if last is not None and plain and last.directory == segment.directory and last.last == segment.first:
            last = replace(last, last=segment.last)
            continue
        if last is not None:
            yield last
        last = segment
    if last is not None:
        yield last


def copy_examples(segments: Sequence[Segment], directory: Path) -> None:
    """Write the examples of segments as one split; their symbols stay the segments' own. Memory: one segment."""
    with SplitWriter(directory) as writer:
        for segment in _joined_segments(segments):
            writer.copy(_Split(segment.directory), segment)


class _Split:
    """The columns of a split, mapped."""

    def __init__(self, directory: Path) -> None:
        columns = {name: _mapped(directory / name, dtype) for name, dtype in _COLUMNS.items()}
        self.tokens = columns["tokens.i32"]
        self.runs = columns["runs.i32"].reshape(-1, 2)
        self.keys = columns["keys.i64"].reshape(-1, 2)
        self.offsets = np.concatenate(([0], np.cumsum(columns["lengths.i64"])))
        self.run_offsets = np.concatenate(([0], np.cumsum(columns["num_runs.i64"])))
        self.meta = pa.table(read_table(directory / _META_FILE)[1], schema=_STAGED)


def _mapped(path: Path, dtype: str) -> npt.NDArray[Any]:
    if path.stat().st_size == 0:  # which no system maps
        return np.zeros(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))  # slices of the plain view are cheap


def _joined(parts: Sequence[npt.NDArray[Any]], shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(shape, dtype=dtype)


def write_lines(path: Path, rows: Iterable[bytes]) -> None:
    """Write byte strings, one a line."""
    with path.open("wb") as file:
        file.writelines(row + b"\n" for row in rows)


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a file written by `write_lines`."""
    data = path.read_bytes()
    return data[:-1].split(b"\n") if data else []


def read_table(path: Path, columns: Sequence[str] | None = None) -> tuple[pa.Schema, pa.Table]:
    """Return the schema of a Parquet file, and all or some of its columns; page checksums are looked at.

    Raises:
        OSError, pyarrow.ArrowException: it is missing, unreadable or damaged.
    """
    with open_native(path, "rb") as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
        return file.schema_arrow, file.read(columns=columns, use_threads=False)
