"""Some rows of a Parquet or Arrow file together, by column where that is all the same: for what has many rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagpack_cli.corpora.files.json_rows import NotFinite
from dagpack_cli.corpora.records import OnBad
from dagpack_cli.errors import DataError, DiskError, PermissionDeniedError, shorten

__all__ = ["TableBatch", "readable", "rows_of_batch", "without_nulls"]


@contextmanager
def readable(name: str, on_bad: OnBad, kind: str) -> Iterator[None]:
    """Say what is wrong where a table cannot be read; where ``on_bad`` does not raise, the file ends there.

    Raises:
        PermissionDeniedError, DiskError: the file cannot be read.
    """
    try:
        yield
    except DataError as error:
        on_bad(error)
    except PermissionError:
        raise PermissionDeniedError(name, "cannot be read", "the operating system refuses access") from None
    except (pa.ArrowException, UnicodeDecodeError, ValueError, OverflowError, MemoryError) as error:
        on_bad(DataError(name, f"not a readable {kind} file: {shorten(str(error), 120)}"))
    except OSError as error:
        # pyarrow reports damaged pages and cut files as OSError too; one with a number is the system's.
        if error.errno is not None:
            raise DiskError(name, f"reading failed: {error.strerror or error}") from None
        on_bad(DataError(name, f"not a readable {kind} file: {shorten(str(error), 120)}"))


class TableBatch:
    """Consecutive rows of a table.

    Args:
        batch: their columns.
        first: the number of the first row in its file.
        name: of the file.
        kind: of the file: Parquet or Arrow.

    Attributes:
        is_whole: whether all rows that were asked for could be read.
    """

    def __init__(self, batch: pa.RecordBatch, first: int, name: str, kind: str) -> None:
        self._batch, self._name, self._kind = batch, name, kind
        self.first = first
        self.is_whole = True

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._batch.num_rows)

    def rows(self, arrays: Sequence[str], on_bad: OnBad) -> Iterator[dict[str, Any]]:
        """Yield the rows as dictionaries, see `rows_of_batch`."""
        self.is_whole = False
        with readable(self._name, on_bad, self._kind):
            yield from rows_of_batch(self._batch, arrays)
            self.is_whole = True

    def is_absent(self, name: str) -> bool:
        """Tell whether no row has a value in a column."""
        return name not in self._batch.schema.names or self._batch.column(name).null_count == len(self)

    def lists(self, name: str, *, flags: bool = False) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]] | None:
        """Return the numbers of a column of lists of integers end to end, and the length of each row's list.

        None where the column is something else, or a list or a number is null. With ``flags`` truth
        values are numbers too.
        """
        column = self._batch.column(name)
        kind = column.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            return None
        flat = column.flatten()
        is_flag = flags and pa.types.is_boolean(kind.value_type)
        if column.null_count or flat.null_count or not (pa.types.is_integer(kind.value_type) or is_flag):
            return None
        numbers = flat.to_numpy(zero_copy_only=False)
        return numbers.view(np.uint8) if is_flag else numbers, np.asarray(column.value_lengths(), dtype=np.int64)

    def numbers(self, name: str) -> npt.NDArray[np.float64] | None:
        """Return a column of floating-point numbers, None where it is something else or one is null."""
        column = self._batch.column(name)
        if not pa.types.is_floating(column.type) or column.null_count:
            return None
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)

    def strings(self, name: str) -> list[str] | None:
        """Return a column of strings, None where it is something else, or one is null or no UTF-8."""
        column = self._batch.column(name)
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)) or column.null_count:
            return None
        try:
            return list(column.to_pylist())
        except UnicodeDecodeError:
            return None


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
