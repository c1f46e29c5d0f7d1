"""One input file: what was found at its path, and its rows of JSON, Parquet or Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dagpack_cli.corpora.files.json_rows import read_rows
from dagpack_cli.corpora.files.limits import DEFAULT_LIMITS, Limits
from dagpack_cli.corpora.files.streams import open_regular
from dagpack_cli.corpora.records import OnBad, Rows
from dagpack_cli.errors import DiskError, NoInputError, PermissionDeniedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dagpack_cli.corpora.files.table_batch import TableBatch

__all__ = [
    "Sibling",
    "Source",
    "known_as",
    "read_source_batches",
    "read_source_rows",
    "source_as_known",
    "stat_source",
    "table_kind",
]

_PARQUET_MAGIC = b"PAR1"
_ARROW_MAGIC = b"ARROW1\0\0"
# A stream starts with a mark, and the size of its schema: a multiple of 8.
_ARROW_STREAM = b"\xff\xff\xff\xff"
_LARGEST_SCHEMA = 1 << 26


@dataclass(frozen=True, slots=True)
class Sibling:
    """A file beside another, as it was when the corpus was listed: its name in the folder, size, times and inode."""

    name: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Sibling:
        """Return a file as it is now; numbers are 0 where there is none."""
        try:
            found = path.stat()
        except OSError:
            return cls(path.name, 0, 0, 0, 0)
        return cls(path.name, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


@dataclass(frozen=True, slots=True)
class Source:
    """One input file.

    Attributes:
        path: where it is.
        name: its path below the corpus, with ``/``; what ids and messages say.
        size: how many of its bytes are read, as stored: those of whole records.
        mtime_ns: when its content changed.
        ctime_ns: when its inode changed.
        inode: its number on its file system.
        format: one of `FORMATS`.
        limits: what it may ask for.
        unfinished: bytes behind ``size`` that were there when it was listed: of a record that is still
            being written.
        siblings: where its format takes a folder for one conversation, all files of the folder that may
            be part of it, itself included; empty where nobody has looked.
    """

    path: Path
    name: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    format: str
    limits: Limits = DEFAULT_LIMITS
    unfinished: int = 0
    siblings: tuple[Sibling, ...] = ()


def stat_source(path: Path, name: str, format: str, limits: Limits = DEFAULT_LIMITS) -> Source:
    """Return the `Source` of a file as it is now.

    Raises:
        NoInputError, PermissionDeniedError, DiskError: it cannot be looked at.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        raise NoInputError(name, "the file is gone", "it was there when the corpus was listed") from None
    except PermissionError:
        raise PermissionDeniedError(name, "cannot be read", "the operating system refuses access") from None
    except OSError as error:
        raise DiskError(name, f"cannot be looked at: {error.strerror or error}") from None
    return Source(path, name, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, format, limits)


def source_as_known(path: Path, name: str, limits: Limits, known: Sequence[Any] | None) -> Source | None:
    """Return the `Source` of a file that is as it was when it was looked into last; None where it has to be again.

    Args:
        path: where it is.
        name: its name below the corpus.
        limits: what it may ask for.
        known: what `known_as` said of it then, or whatever else stands in its place.
    """
    if not isinstance(known, list) or len(known) != 6 or known[5]:  # what was unfinished may be whole by now
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    if [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino] != known[:4]:
        return None
    return Source(path, name, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, str(known[4]), limits)


def known_as(source: Source) -> list[Any]:
    """Return how a file was when it was looked into, and what was found: size, times, inode, format, unfinished."""
    numbers = [source.size, source.mtime_ns, source.ctime_ns, source.inode]
    return [*numbers, source.format, source.unfinished]


def table_kind(path: Path, name: str) -> Literal["", "parquet", "arrow"]:
    """Return which kind of table the file's first bytes are those of, empty for none.

    Raises:
        NoInputError, PermissionDeniedError, DiskError: it cannot be read.
        DataError: it is no regular file.
    """
    with open_regular(path, name) as file:
        try:
            head = file.read(8)
        except OSError as error:
            raise DiskError(name, f"reading failed: {error.strerror or error}") from None
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    size = int.from_bytes(head[4:], "little")
    is_stream = head.startswith(_ARROW_STREAM) and 0 < size <= _LARGEST_SCHEMA and size % 8 == 0
    return "arrow" if is_stream or head == _ARROW_MAGIC else ""


def read_source_batches(source: Source, on_bad: OnBad, *, columns: Sequence[str]) -> Iterator[TableBatch] | None:
    """Return the rows of a table in batches, as `read_source_rows` would give them one by one; None of JSON."""
    kind = table_kind(source.path, source.name)
    if kind == "parquet":
        from dagpack_cli.corpora.files.parquet_rows import read_parquet_batches

        return read_parquet_batches(source.path, source.name, on_bad, columns=columns, limits=source.limits)
    if kind == "arrow":
        from dagpack_cli.corpora.files.arrow_rows import read_arrow_batches

        return read_arrow_batches(source.path, source.name, on_bad, columns=columns)
    return None


def read_source_rows(
    source: Source, on_bad: OnBad, *, columns: Sequence[str] | None = None, arrays: Sequence[str] = ()
) -> Rows:
    """Yield the rows of a JSON, Parquet or Arrow file as dictionaries, with their places.

    Of JSON the first ``source.size`` bytes are read, however long the file is by now.

    Args:
        source: the file.
        on_bad: called for every record that cannot be read.
        columns: of a table, the columns that are wanted (None: all).
        arrays: of a table, the columns that hold numbers and come as arrays (see `parquet_rows`).
    """
    path, name, limits = source.path, source.name, source.limits
    kind = table_kind(path, name)
    if kind == "parquet":
        from dagpack_cli.corpora.files.parquet_rows import read_parquet_rows

        return read_parquet_rows(path, name, on_bad, columns=columns, arrays=arrays, limits=limits)
    if kind == "arrow":
        from dagpack_cli.corpora.files.arrow_rows import read_arrow_rows

        return read_arrow_rows(path, name, on_bad, columns=columns, arrays=arrays)
    return read_rows(path, name, on_bad, size=source.size, limits=limits)
