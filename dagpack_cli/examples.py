"""Examples on disk: what ingest hands to the trie, and the provenance that stays with a build.

A *split* is a folder of plain arrays written while one part of the corpus is read. The published
``examples.parquet`` has one row per example, in input order, and no tokens: those are in the trie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.arrays import save_array
from dagpack_cli.corpora import Example
from dagpack_cli.errors import DamageError
from dagpack_cli.native import open_native

__all__ = [
    "KEPT",
    "UNTRAINED",
    "Examples",
    "SplitWriter",
    "load_splits",
    "provenance_table",
    "read_provenance",
    "write_provenance",
]

Int64Array = npt.NDArray[np.int64]

KEPT, EMPTY, SINGLE_TOKEN, DROPPED = "kept", "empty", "single-token", "dropped"
UNTRAINED = "untrained"  # a conversation in which nothing is supervised: dropped before the trie

_META = pa.schema(
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
_STAGED = pa.schema([*_META, pa.field("family", pa.large_string()), pa.field("chat", pa.bool_(), nullable=False)])
_INT32_LIST = pa.large_list(pa.field("element", pa.int32(), nullable=False))  # offsets of 64 bits: no limit at 2^31
_PROVENANCE = pa.schema(
    [
        *_META,
        pa.field("partition", pa.large_string(), nullable=False),
        pa.field("status", pa.large_string(), nullable=False),
        pa.field("supervised_runs", _INT32_LIST, nullable=False),
        pa.field("num_tokens", pa.int64(), nullable=False),
        pa.field("end_node", pa.int64(), nullable=False),
        pa.field("windows", _INT32_LIST, nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Examples in input order, as columns.

    Attributes:
        tokens: shape (num_tokens,), int32; end to end.
        offsets: shape (num_examples + 1,), int64, into ``tokens``.
        runs: shape (num_runs, 2), int32; half-open supervised ranges of an example's own tokens.
        run_offsets: shape (num_examples + 1,), int64, into ``runs``.
        keys: shape (num_runs, 2), int64; the key of the message of every run, zeros for none.
        families: a second group of every example, or None.
        chats: shape (num_examples,), bool; which are conversations.
        meta: id, file, record, line, start, end, group and weight; one row an example.
    """

    tokens: npt.NDArray[np.int32]
    offsets: Int64Array
    runs: npt.NDArray[np.int32]
    run_offsets: Int64Array
    keys: Int64Array
    families: Sequence[str | None]
    chats: npt.NDArray[np.bool_]
    meta: pa.Table

    @property
    def num_examples(self) -> int:
        """Number of examples, empty ones included."""
        return len(self.offsets) - 1

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
    """Write the examples of one split; tokens go to disk as they come."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._tokens: IO[bytes] = (directory / "tokens.i32").open("wb")
        self._runs: IO[bytes] = (directory / "runs.i32").open("wb")
        self._keys: IO[bytes] = (directory / "keys.i64").open("wb")
        self._lengths: list[int] = []
        self._num_runs: list[int] = []
        self._meta: dict[str, list[Any]] = {name: [] for name in _STAGED.names}

    def add(self, example: Example, file: str) -> None:
        """Append one example read from the input named ``file``."""
        self._tokens.write(np.ascontiguousarray(example.tokens, dtype="<i4").tobytes())
        self._runs.write(np.ascontiguousarray(example.runs, dtype="<i4").tobytes())
        keys = np.zeros((len(example.runs), 2), dtype="<i8") if example.keys is None else example.keys
        self._keys.write(np.ascontiguousarray(keys, dtype="<i8").tobytes())
        self._lengths.append(len(example.tokens))
        self._num_runs.append(len(example.runs))
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
        for column, value in zip(self._meta.values(), values, strict=True):
            column.append(value)

    def __enter__(self) -> SplitWriter:
        """Return itself."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Finish the split; after a failure only let its files go."""
        if kind is None:
            self.close()
        self._close_files()

    def _close_files(self) -> None:
        for file in (self._tokens, self._runs, self._keys):
            file.close()

    def close(self) -> None:
        """Finish the split."""
        self._close_files()
        save_array(self._directory / "lengths.npy", np.array(self._lengths, dtype=np.int64))
        save_array(self._directory / "num_runs.npy", np.array(self._num_runs, dtype=np.int64))
        with open_native(self._directory / "meta.parquet", "wb") as file:
            pq.write_table(pa.table(self._meta, schema=_STAGED), file, compression="zstd")


def load_splits(directories: Sequence[Path], remaps: Sequence[npt.NDArray[np.int32]] | None = None) -> Examples:
    """Return the examples of all splits, in order.

    Args:
        directories: of the splits, in input order.
        remaps: with symbols, the vocabulary's id of each split's own ids.
    """
    tokens = [np.fromfile(directory / "tokens.i32", dtype="<i4") for directory in directories]
    if remaps is not None:
        tokens = [remap[part] for remap, part in zip(remaps, tokens, strict=True)]
    lengths = _joined([np.load(directory / "lengths.npy") for directory in directories])
    num_runs = _joined([np.load(directory / "num_runs.npy") for directory in directories])
    runs = _joined([np.fromfile(directory / "runs.i32", dtype="<i4") for directory in directories], np.int32)
    keys = _joined([np.fromfile(directory / "keys.i64", dtype="<i8") for directory in directories])
    metas = [pa.table(_read_table(directory / "meta.parquet"), schema=_STAGED) for directory in directories]
    meta = pa.concat_tables(metas) if metas else _STAGED.empty_table()
    return Examples(
        tokens=_joined(tokens, np.int32),
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        runs=runs.reshape(-1, 2),
        run_offsets=np.concatenate(([0], np.cumsum(num_runs))),
        keys=keys.reshape(-1, 2),
        families=meta.column("family").to_pylist(),
        chats=np.asarray(meta.column("chat").to_numpy(), dtype=np.bool_),
        meta=meta.select(_META.names),
    )


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype=dtype)


def provenance_table(
    examples: Examples, partitions: Sequence[str], statuses: Sequence[str], end_nodes: Int64Array
) -> pa.Table:
    """Return the provenance of every example before it is packed: ``windows`` is still empty.

    Args:
        examples: all of them.
        partitions: the partition's name of each example.
        statuses: what became of each: kept, empty, single-token, untrained or dropped.
        end_nodes: shape (num_examples,), int64; node of its partition's trie, -1 where there is none.
    """
    flat_offsets = pa.array(2 * examples.run_offsets)
    columns = {
        "partition": pa.array(partitions, pa.large_string()),
        "status": pa.array(statuses, pa.large_string()),
        "supervised_runs": pa.LargeListArray.from_arrays(
            flat_offsets, pa.array(examples.runs.ravel()), type=_INT32_LIST
        ),
        "num_tokens": pa.array(np.diff(examples.offsets)),
        "end_node": pa.array(end_nodes),
        "windows": _lists(np.zeros(examples.num_examples + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)),
    }
    table = examples.meta
    for name, values in columns.items():
        table = table.append_column(_PROVENANCE.field(name), values)
    return table


def _lists(offsets: Int64Array, values: Int64Array) -> pa.LargeListArray:
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values.astype(np.int32)), type=_INT32_LIST)


def write_provenance(
    path: Path,
    table: pa.Table,
    windows: tuple[Int64Array, Int64Array] | None,
    metadata: Mapping[str, str],
    statuses: Sequence[str] | None = None,
) -> None:
    """Write ``examples.parquet``.

    Args:
        path: the file.
        table: of `provenance_table` or `read_provenance`.
        windows: offsets (num_examples + 1,) and values, both int64: the windows of each example.
        metadata: key-value pairs of the file.
        statuses: new statuses, where packing dropped examples.
    """
    if windows is not None:
        at = table.schema.get_field_index("windows")
        table = table.set_column(at, _PROVENANCE.field("windows"), _lists(*windows))
    if statuses is not None:
        at = table.schema.get_field_index("status")
        table = table.set_column(at, _PROVENANCE.field("status"), pa.array(statuses, pa.large_string()))
    table = table.cast(_PROVENANCE.with_metadata(dict(metadata)))
    with open_native(path, "wb") as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True, row_group_size=1 << 20)


def _read_table(path: Path) -> pa.Table:
    with open_native(path, "rb") as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
        return file.read(use_threads=False)


def read_provenance(path: Path) -> pa.Table:
    """Return a stored ``examples.parquet``.

    Raises:
        DamageError: unreadable, a page checksum that differs, or other columns.
    """
    try:
        table = _read_table(path)
    except FileNotFoundError:
        raise DamageError(str(path), "the file is missing") from None
    except PermissionError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DamageError(str(path), f"unreadable ({str(error).splitlines()[0]})") from None
    if table.schema.remove_metadata() != _PROVENANCE:
        raise DamageError(str(path), f"columns {', '.join(table.column_names)}", "those of dagpack")
    return table.combine_chunks()


def supervised_runs(table: pa.Table) -> tuple[npt.NDArray[np.int32], Int64Array]:
    """Return the supervised runs of a provenance table: (num_runs, 2) int32, and offsets (n + 1,) int64."""
    column = table.column("supervised_runs").combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    offsets = column.offsets.to_numpy().astype(np.int64) if len(column) else np.zeros(1, dtype=np.int64)
    return column.values.to_numpy().reshape(-1, 2), offsets // 2


def write_lines(path: Path, rows: Iterable[bytes]) -> None:
    """Write byte strings, one a line."""
    with path.open("wb") as file:
        file.writelines(row + b"\n" for row in rows)


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a file written by `write_lines`."""
    data = path.read_bytes()
    return data[:-1].split(b"\n") if data else []
