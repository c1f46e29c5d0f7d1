"""Rows of an Arrow file as dictionaries: the stream that Hugging Face ``datasets`` writes, and the IPC file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagpack_cli.corpora.files.table_batch import TableBatch, readable, rows_of_batch
from dagpack_cli.corpora.records import OnBad, Place, Rows, raise_bad
from dagpack_cli.native import open_native

__all__ = ["first_arrow_rows", "read_arrow_batches", "read_arrow_rows"]

_MAGIC = b"ARROW1"
_END = b"\xff\xff\xff\xff\0\0\0\0"
_SLICE_ROWS = 256
_BLOCK_ROWS = 8192  # where rows stay columns


def read_arrow_rows(
    path: Path,
    name: str,
    on_bad: OnBad,
    *,
    columns: Sequence[str] | None = None,
    arrays: Sequence[str] = (),
    slice_rows: int = _SLICE_ROWS,
) -> Rows:
    """Yield every row as a dictionary without its nulls, with its place; as of Parquet.

    One record batch, as it was written, is held at a time (a thousand rows where `datasets` wrote
    it), checked before it is looked at: its offsets come from the file. Of it, ``slice_rows`` rows at
    a time become objects.

    Args:
        path: the file.
        name: how ids and messages name it.
        on_bad: called with what cannot be read; where it does not raise, the file ends there.
        columns: the columns that are wanted; all for None, or where the file has none of them.
        arrays: columns of numbers that come as NumPy arrays (see `parquet_rows`).
        slice_rows: rows that are decoded together; changes nothing but memory and speed.

    Raises:
        PermissionDeniedError, DiskError: the file cannot be read.
    """
    with readable(name, on_bad, "Arrow"):
        for first, batch in _slices(path, columns, slice_rows):
            for number, row in enumerate(rows_of_batch(batch, arrays), first):
                yield Place(name, number), row


def read_arrow_batches(
    path: Path, name: str, on_bad: OnBad, *, columns: Sequence[str], slice_rows: int = _BLOCK_ROWS
) -> Iterator[TableBatch]:
    """Yield the rows of `read_arrow_rows` in batches; arguments as there."""
    with readable(name, on_bad, "Arrow"):
        for first, batch in _slices(path, columns, slice_rows):
            yield TableBatch(batch, first, name, "Arrow")


def _slices(path: Path, columns: Sequence[str] | None, slice_rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the number of the first row, and the columns, of some rows at a time."""
    record = 0
    for batch in _batches(path):
        batch.validate(full=True)
        wanted = [column for column in columns or () if column in batch.schema.names]
        chosen = batch.select(wanted) if wanted else batch
        for start in range(0, chosen.num_rows, slice_rows):
            yield record + start, chosen.slice(start, slice_rows)
        record += chosen.num_rows


def first_arrow_rows(path: Path, name: str, num: int, arrays: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return up to ``num`` first rows; of a file without rows, none. ``arrays`` as in `read_arrow_rows`.

    Raises:
        DataError: it is no readable Arrow file.
    """
    rows = read_arrow_rows(path, name, raise_bad, arrays=arrays, slice_rows=num)
    return [row for _, row in itertools.islice(rows, num)]


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with _opened(path) as (reader, source):
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)
        else:
            yield from reader
            source.seek(source.tell() - len(_END))
            if source.read(len(_END)) != _END:
                # Cut between two batches it would look whole.
                raise pa.ArrowInvalid("the stream has no end mark: it may be truncated")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, pa.NativeFile]]:
    # One thread: rows come in order whatever the machine, and nothing outlives the reading.
    options = pa.ipc.IpcReadOptions(use_threads=False)
    with open_native(path, "rb") as source:
        is_file = source.read(len(_MAGIC)) == _MAGIC
        source.seek(0)
        open_reader = pa.ipc.open_file if is_file else pa.ipc.open_stream
        with open_reader(source, options=options) as reader:
            yield reader, source
