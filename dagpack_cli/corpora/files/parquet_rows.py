"""Rows of a Parquet file as dictionaries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.corpora.files.json_rows import NotFinite
from dagpack_cli.corpora.records import OnBad, Place, Rows, raise_bad
from dagpack_cli.errors import DataError, DiskError, PermissionDeniedError, shorten
from dagpack_cli.native import open_native

__all__ = ["first_parquet_rows", "read_parquet_rows", "rows_of_batch", "without_nulls"]

_BATCH_ROWS = 256


def read_parquet_rows(
    path: Path,
    name: str,
    on_bad: OnBad,
    *,
    columns: Sequence[str] | None = None,
    arrays: Sequence[str] = (),
    batch_rows: int = _BATCH_ROWS,
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
        batch_rows: rows that are decoded together; changes nothing but memory and speed.

    Raises:
        PermissionDeniedError, DiskError: the file cannot be read.
    """
    record = 0
    try:
        with open_native(path, "rb") as source, pq.ParquetFile(source) as file:
            wanted = [column for column in columns or () if column in file.schema_arrow.names] or None
            for batch in file.iter_batches(batch_size=batch_rows, columns=wanted, use_threads=False):
                for row in rows_of_batch(batch, arrays):
                    yield Place(name, record), row
                    record += 1
    except PermissionError:
        raise PermissionDeniedError(name, "cannot be read", "the operating system refuses access") from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        on_bad(DataError(name, f"not a readable Parquet file: {shorten(str(error), 120)}"))
    except OSError as error:
        # pyarrow reports damaged pages as OSError too; one with a number is the system's.
        if error.errno is not None:
            raise DiskError(name, f"reading failed: {error.strerror or error}") from None
        on_bad(DataError(name, f"not a readable Parquet file: {shorten(str(error), 120)}"))


def first_parquet_rows(path: Path, name: str, num: int) -> list[dict[str, Any]]:
    """Return up to ``num`` first rows; of a file without rows, none.

    Raises:
        DataError: it is no readable Parquet file.
    """
    rows = read_parquet_rows(path, name, raise_bad, batch_rows=num)
    return [row for _, row in itertools.islice(rows, num)]


def rows_of_batch(batch: pa.RecordBatch, arrays: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record batch as dictionaries without nulls; ``arrays`` as in `read_parquet_rows`."""
    names = batch.schema.names
    values = [
        _lists_of(column) if name in arrays else _objects_of(column)
        for name, column in zip(names, batch.columns, strict=True)
    ]
    for row in zip(*values, strict=True):
        yield without_nulls({name: value for name, value in zip(names, row, strict=True) if value is not None})


def _objects_of(column: pa.Array) -> list[Any]:
    """Return the values of a column as Python's; one that has none there, as a time in nanoseconds, as `NotFinite`."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError):
        return [_object_of(value) for value in column]


def _object_of(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return NotFinite(f"a value of type {value.type}")


def _lists_of(column: pa.Array) -> list[Any]:
    """Return the rows of a list column as NumPy arrays where they are plain numbers."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not pa.types.is_primitive(kind.value_type) or column.flatten().null_count:
        return list(column.to_pylist())
    flat = column.flatten()
    lengths = np.asarray(column.value_lengths().fill_null(0), dtype=np.int64)
    numbers = flat.to_numpy(zero_copy_only=False)
    pieces: list[Any] = np.split(numbers, np.cumsum(lengths)[:-1]) if len(lengths) else []
    return [piece if valid else None for piece, valid in zip(pieces, column.is_valid().to_pylist(), strict=True)]


def without_nulls(value: Any) -> Any:
    """Return ``value`` without the null entries of its dictionaries, at any depth; lists keep theirs.

    Maps of pyarrow, which are lists of pairs, become dictionaries.

    A loop, not a recursion: data may be nested deeper than Python's stack.

    >>> without_nulls({"a": [{"b": None, "c": 1}], "d": None})
    {'a': [{'c': 1}]}
    """
    root = [value]
    todo: list[Any] = [root]
    while todo:
        current = todo.pop()
        keys = list(current) if isinstance(current, dict) else range(len(current))
        for key in keys:
            inner = current[key]
            if inner is None and isinstance(current, dict):
                del current[key]
            elif isinstance(inner, list) and inner and all(isinstance(item, tuple) for item in inner):
                # A map comes as pairs.
                current[key] = dict(inner)
                todo.append(current[key])
            elif isinstance(inner, dict | list):
                todo.append(inner)
    return root[0]
