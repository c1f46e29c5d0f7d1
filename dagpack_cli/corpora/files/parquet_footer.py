"""What the footer of a Parquet file promises, held against what the file can hold. Nothing else is read.

The library that reads the pages believes its footer, and ends the process on some that are damaged: so
it is read here first, number by number.

Source: the format's parquet.thrift, https://github.com/apache/parquet-format
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dagpack_cli.corpora.files.limits import Limits
from dagpack_cli.corpora.files.streams import open_regular
from dagpack_cli.corpora.files.thrift import read_struct
from dagpack_cli.errors import DataError

__all__ = ["check_footer"]

_MAGIC = b"PAR1"
_TAIL = 8  # the footer's length and the magic
_FREE = 64 << 20  # bytes that any column of a row group may come to: equal rows take next to nothing
# A value that repeats takes no bytes of its own: a page of a few bytes may stand for very many of them.
_ROWS_PER_BYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class _Column:
    """What a footer says of one column of a row group."""

    name: str
    num_values: int
    plain: int
    stored: int
    data_start: int
    dictionary_start: int | None
    sizes: list[int]


def check_footer(path: Path, name: str, limits: Limits) -> list[tuple[int, int]]:
    """Return (bytes of a row, bytes that one value may take) of every row group, decoded.

    The second is that of the largest dictionary: a value of it stands in as many rows as like it.

    Args:
        path: the file.
        name: how messages name it.
        limits: what the file may ask for.

    Raises:
        DataError: there is no footer; or it has counts, sizes or offsets that are negative, lie outside of
            the file, or contradict one another, or a column that decompresses to more than it may.
    """
    footer, size = _footer_of(path, name)
    try:
        num_rows = _number(footer, 3)
        groups = [(_number(group, 3), list(_columns(group))) for group in footer.get(4, [])]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        _refuse(name, f"its footer is damaged ({error})", "counts, sizes and offsets")
    promised = sum(rows for rows, _ in groups)
    if num_rows < 0 or promised != num_rows:
        _refuse(name, f"{num_rows:,} rows", f"{promised:,}, as its row groups say")
    total = 0
    found = []
    for number, (rows, columns) in enumerate(groups):
        where = f"row group {number:,}"
        if rows < 0 or rows > size * _ROWS_PER_BYTE:
            _refuse(name, f"{where} of {rows:,} rows", f"no more than {size:,} bytes can hold")
        for column in columns if rows else ():  # of nothing the offsets are anything
            _check_column(column, size, f"{where}, column {column.name}", name, limits)
        plain = sum(column.plain for column in columns)
        total += plain
        found.append((plain // max(rows, 1), max((_dictionary_bytes(column) for column in columns), default=0)))
    if total > limits.max_decompressed_bytes:
        expected = f"at most {limits.max_decompressed_bytes:,}"
        _refuse(name, f"{total:,} bytes decompressed", expected, "--max-decompressed-bytes")
    return found


def _footer_of(path: Path, name: str) -> tuple[dict[int, Any], int]:
    """Return the footer's fields, and the size of the file in bytes."""
    with open_regular(path, name) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _TAIL))
        tail = file.read(_TAIL)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length + _TAIL + len(_MAGIC) > size:
            _refuse(name, "it does not end with a footer", "the file may be truncated, or still being written")
        file.seek(size - _TAIL - length)
        raw = file.read(length)
    try:
        return read_struct(raw), size
    except ValueError as error:
        _refuse(name, f"its footer is damaged ({error})", "counts, sizes and offsets")


def _number(fields: dict[int, Any], field: int) -> int:
    value = fields[field]
    if not isinstance(value, int):
        raise TypeError(f"field {field} is no number")
    return value


def _columns(group: dict[int, Any]) -> Iterator[_Column]:
    for chunk in group[1]:
        if 1 in chunk:
            raise ValueError("a column in another file")
        about = chunk[3]
        # Sizes of strings, and of levels one by one: a library that trusts them ends where they do not add up.
        sizes = [value for value in _flat(about.get(16, {})) if isinstance(value, int)]
        yield _Column(
            name=b".".join(about[3]).decode("utf-8", "backslashreplace"),
            num_values=_number(about, 5),
            plain=_number(about, 6),
            stored=_number(about, 7),
            data_start=_number(about, 9),
            dictionary_start=_number(about, 11) if 11 in about else None,
            sizes=sizes,
        )


def _flat(fields: dict[int, Any]) -> Iterator[Any]:
    for value in fields.values():
        yield from value if isinstance(value, list) else (value,)


def _check_column(column: _Column, size: int, where: str, name: str, limits: Limits) -> None:
    starts = [column.data_start] + ([column.dictionary_start] if column.dictionary_start is not None else [])
    end = min(starts) + column.stored
    if min(column.plain, column.num_values, *column.sizes, 0) < 0 or column.stored <= 0:
        _refuse(name, f"{where} of {column.stored:,} bytes and {column.num_values:,} values", "sizes that can be")
    if min(starts) < len(_MAGIC) or max(starts) >= end or end + _TAIL > size:
        _refuse(name, f"{where} at bytes {min(starts):,} to {end:,}", f"within the {size:,} bytes of the file")
    if column.plain > _FREE and column.plain > limits.max_ratio * column.stored:
        expected = f"at most {limits.max_ratio:,} times as many"
        _refuse(name, f"{where}: {column.plain:,} bytes from {column.stored:,}", expected, "--max-ratio")


def _dictionary_bytes(column: _Column) -> int:
    """Return about how many bytes a column's dictionary has, decoded: as well compressed as the rest."""
    if column.dictionary_start is None:
        return 0
    stored = max(column.data_start - column.dictionary_start, 0)
    return stored * column.plain // max(column.stored, 1)


def _refuse(name: str, found: str, expected: str, option: str = "") -> NoReturn:
    hint = f"allow more with {option}, or leave it out with --on-error skip" if option else ""
    raise DataError(name, f"not a readable Parquet file: {found}", expected, hint=hint)
