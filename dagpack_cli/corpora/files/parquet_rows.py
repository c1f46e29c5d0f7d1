"""Rows of a Parquet file as dictionaries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.corpora.files.limits import DEFAULT_LIMITS, Limits
from dagpack_cli.corpora.files.parquet_footer import check_footer
from dagpack_cli.corpora.files.streams import over_limit
from dagpack_cli.corpora.files.table_batch import TableBatch, readable, rows_of_batch
from dagpack_cli.corpora.records import OnBad, Place, Rows, raise_bad
from dagpack_cli.native import open_native

__all__ = ["first_parquet_rows", "read_parquet_batches", "read_parquet_rows"]

_BATCH_ROWS = 256
_BLOCK_ROWS = 8192  # where rows stay columns
_BATCH_BYTES = 64 << 20  # of the rows that are decoded together, as the footer tells their size
_READ_BYTES = 1 << 20  # of a column that are read at a time: a row group is never held


def read_parquet_rows(
    path: Path,
    name: str,
    on_bad: OnBad,
    *,
    columns: Sequence[str] | None = None,
    arrays: Sequence[str] = (),
    batch_rows: int = _BATCH_ROWS,
    limits: Limits = DEFAULT_LIMITS,
) -> Rows:
    """Yield every row as a dictionary without its nulls, with its place.

    Writing rows of different shapes into one Parquet column fills every struct with the keys of
    all others, as nulls: they are dropped, at every depth.

    Args:
        path: the file.
        name: how ids and messages name it.
        on_bad: called with what cannot be read; where it does not raise, the file ends there.
        columns: the columns that are wanted; all for None, or where the file has none of them.
        arrays: columns of lists of numbers or truth values: a row holds a NumPy array of their own
            type, or a Python list where an element is null.
        batch_rows: most rows that are decoded together; changes nothing but memory and speed.
        limits: what the file may ask for; its footer is held against them, and against the file's
            size, before a page is read.

    Raises:
        PermissionDeniedError, DiskError: the file cannot be read.
    """
    with readable(name, on_bad, "Parquet"):
        for first, batch in _batches(path, name, columns, batch_rows, limits):
            for number, row in enumerate(rows_of_batch(batch, arrays), first):
                yield Place(name, number), row


def read_parquet_batches(
    path: Path,
    name: str,
    on_bad: OnBad,
    *,
    columns: Sequence[str],
    limits: Limits = DEFAULT_LIMITS,
    batch_rows: int = _BLOCK_ROWS,
) -> Iterator[TableBatch]:
    """Yield the rows of `read_parquet_rows` in batches; arguments as there."""
    with readable(name, on_bad, "Parquet"):
        for first, batch in _batches(path, name, columns, batch_rows, limits):
            yield TableBatch(batch, first, name, "Parquet")


def _batches(
    path: Path, name: str, columns: Sequence[str] | None, batch_rows: int, limits: Limits
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the number of the first row, and the columns, of some rows at a time."""
    record = 0
    sizes = check_footer(path, name, limits)
    with open_native(path, "rb") as source, pq.ParquetFile(source, buffer_size=_READ_BYTES) as file:
        wanted = [column for column in columns or () if column in file.schema_arrow.names] or None
        for group, (row_bytes, shared_bytes) in enumerate(sizes):
            most = min(_BATCH_BYTES // max(row_bytes, 1), _BATCH_BYTES // max(shared_bytes, 1), batch_rows)
            batches = file.iter_batches(max(most, 1), row_groups=[group], columns=wanted, use_threads=False)
            for batch in batches:
                _check_rows(batch, f"{name}, record {record:,}", limits)
                yield record, batch
                record += batch.num_rows


def _check_rows(batch: pa.RecordBatch, where: str, limits: Limits) -> None:
    """Refuse rows that are longer than a line may be: what a dictionary's indices come to, no footer says."""
    if batch.nbytes > limits.max_line_bytes * batch.num_rows:
        raise over_limit(where, "row", limits.max_line_bytes)


def first_parquet_rows(
    path: Path, name: str, num: int, limits: Limits = DEFAULT_LIMITS, arrays: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return up to ``num`` first rows; of a file without rows, none. ``arrays`` as in `read_parquet_rows`.

    Raises:
        DataError: it is no readable Parquet file.
    """
    rows = read_parquet_rows(path, name, raise_bad, arrays=arrays, batch_rows=num, limits=limits)
    return [row for _, row in itertools.islice(rows, num)]
