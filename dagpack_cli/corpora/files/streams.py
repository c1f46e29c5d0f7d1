"""Files as byte streams: plain, gzip and zstd, told apart by their first bytes; and their lines.

Only a line feed byte ends a line: a text may hold U+2028 and other characters that Python's
``splitlines`` takes for line ends.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, cast

import zstandard

from dagpack_cli.corpora.files.limits import DEFAULT_LIMITS, Limits
from dagpack_cli.corpora.records import OnBad
from dagpack_cli.errors import DataError, DiskError, NoInputError, PermissionDeniedError, Unfinished

__all__ = [
    "BOM",
    "ByteStream",
    "archive_kind",
    "head_of",
    "open_regular",
    "open_stream",
    "over_limit",
    "read_lines",
]

BOM = b"\xef\xbb\xbf"

_CHUNK = 1 << 20
_FREE = 64 << 20  # bytes that any archive may come to
# What one chunk decompresses to comes out whole: of zstd at most 128 KiB for every 4 bytes in, so a
# small chunk in bounds what a hostile file can make us hold.
_COMPRESSED_CHUNK = 8 << 10
_ZSTD_WINDOW = 2**31
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class ByteStream(Protocol):
    """The part of a binary file that reading needs."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes, none at the end."""
        ...


class _Frame(Protocol):
    """One gzip member or zstd frame on its way out."""

    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes, /) -> bytes: ...


class _Frames:
    """The decompressed bytes of an archive of any number of gzip members or zstd frames.

    What could be decompressed before a cut is given before the cut is told.
    """

    def __init__(self, read: Callable[[int], bytes], kind: str, name: str, limits: Limits) -> None:
        self._read = read
        self._kind = kind
        self._name = name
        self._limits = limits
        self._frame: _Frame | None = None
        self._input = b""
        self._output = b""
        self._taken = self._given = 0

    def read(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes (all for -1); EOFError where a frame is cut, nothing given with it."""
        parts: list[bytes] = []
        held = 0
        while size < 0 or held < size:
            try:
                if not self._output and not self._decompress():
                    break
            except EOFError:
                if parts and size >= 0:
                    break  # Asked again, it is cut again.
                raise
            part = self._output if size < 0 else self._output[: size - held]
            self._output = self._output[len(part) :]
            held += len(part)
            parts.append(part)
        return b"".join(parts)

    def _decompress(self) -> bool:
        """Fill the output; False at the end of the file."""
        while not self._output:
            data = self._input or self._next()
            self._input = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("the file ends inside a frame")
                return False
            if self._frame is None:
                data = data.lstrip(b"\0") if self._kind == "gzip" and self._given else data  # padding between members
                if not data:
                    continue
                self._frame = self._begin()
            self._output = self._frame.decompress(data)
            self._given += len(self._output)
            self._check()
            if self._frame.eof:
                self._input = self._frame.unused_data
                self._frame = None
        return True

    def _next(self) -> bytes:
        data = self._read(_COMPRESSED_CHUNK)
        self._taken += len(data)
        return data

    def _begin(self) -> _Frame:
        if self._kind == "gzip":
            return cast(_Frame, zlib.decompressobj(wbits=31))
        return cast(_Frame, zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj())

    def _check(self) -> None:
        """Refuse an archive that comes to more than it may, before the next bytes of it are looked at."""
        limits = self._limits
        if self._given > limits.max_decompressed_bytes:
            found, expected = f"more than {limits.max_decompressed_bytes:,} bytes", "archives hold less"
            option = "--max-decompressed-bytes"
        elif self._given > _FREE and self._given > limits.max_ratio * self._taken:
            found = f"{self._given:,} bytes from {self._taken:,}"
            expected, option = f"at most {limits.max_ratio:,} times its size", "--max-ratio"
        else:
            return
        hint = f"allow more with {option}, or leave it out with --on-error skip"
        raise DataError(self._name, f"the archive decompresses to {found}", expected, hint=hint)


class _Guarded:
    """A stream whose failures are dagpack's errors and name the file."""

    def __init__(self, read: Callable[[int], bytes], name: str) -> None:
        self._read = read
        self._name = name

    def read(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes.

        Raises:
            Unfinished: the archive is cut, or still being written.
            DataError: it is damaged, or comes to more than it may.
            DiskError: the file cannot be read.
        """
        try:
            return self._read(size)
        except EOFError:
            expected = "it is read up to its last whole record"
            raise Unfinished(self._name, "the compressed file is truncated", expected) from None
        except (zlib.error, zstandard.ZstdError) as error:
            found = str(error).rpartition("data: ")[2]  # zlib's words, without the number of its error
            raise DataError(self._name, f"the compressed file is damaged: {found}") from None
        except OSError as error:
            raise DiskError(self._name, f"reading failed: {error.strerror or error}") from None


@contextmanager
def open_regular(path: Path, name: str) -> Iterator[BinaryIO]:
    """Open a regular file for reading; a pipe or a device in its place is never waited for.

    Args:
        path: the file.
        name: how messages name it.

    Raises:
        NoInputError, PermissionDeniedError, DiskError: it cannot be opened.
        DataError: it is something else by now: a folder, a pipe, a device.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NoInputError(name, "the file is gone", "it was there when the corpus was listed") from None
    except PermissionError:
        raise PermissionDeniedError(name, "cannot be read", "the operating system refuses access") from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _not_regular(name) from None
        raise DiskError(name, f"opening failed: {error.strerror or error}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(name)
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _not_regular(name: str) -> DataError:
    hint = "run the same command again"
    return DataError(name, "is no file any more", "it was one when the corpus was listed", hint=hint)


class _First:
    """The first bytes of a file, however long it grows."""

    def __init__(self, file: BinaryIO, size: int | None) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1, /) -> bytes:
        if self._left is None:
            return self._file.read(size)
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


@contextmanager
def open_stream(
    path: Path, name: str, *, size: int | None = None, limits: Limits = DEFAULT_LIMITS
) -> Iterator[ByteStream]:
    """Open ``path`` for reading, decompressed where its first bytes say gzip or zstd.

    Concatenated gzip members and zstd frames are read to the last one.

    Args:
        path: the file.
        name: how messages name it.
        size: how many of its bytes are read, as stored; all for None.
        limits: what it may ask for.

    Raises:
        NoInputError, PermissionDeniedError, DiskError: it cannot be opened.
        DataError: as `open_regular`; reading raises it where the compressed data is damaged or comes to
            more than it may, and `Unfinished` where it is cut.
    """
    with open_regular(path, name) as file:
        magic = _Guarded(file.read, name).read(4)
        file.seek(0)
        first = _First(file, size)
        kind = archive_kind(magic)
        yield _Guarded(_Frames(first.read, kind, name, limits).read if kind else first.read, name)


def archive_kind(magic: bytes) -> Literal["", "gzip", "zstd"]:
    """Return what kind of archive the first four bytes of a file are those of, empty for none."""
    if magic.startswith(_GZIP_MAGIC):
        return "gzip"
    skippable = magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5
    return "zstd" if magic == _ZSTD_MAGIC or skippable else ""


def head_of(stream: ByteStream, size: int) -> bytes:
    """Return the first ``size`` bytes, fewer only where the stream ends, or is cut."""
    parts: list[bytes] = []
    while size > 0:
        try:
            part = stream.read(size)
        except Unfinished:
            if not parts:
                raise
            break  # Who reads on is told again.
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def over_limit(where: str, what: str, limit: int) -> DataError:
    """Return the error of a line or record of more than ``limit`` bytes."""
    hint = "allow more with --max-line-bytes, or leave it out with --on-error skip"
    return DataError(where, f"a {what} of more than {limit:,} bytes", "records are shorter", hint=hint)


def read_lines(
    stream: ByteStream, name: str, on_bad: OnBad, *, limit: int = DEFAULT_LIMITS.max_line_bytes, chunk: int = _CHUNK
) -> Iterator[tuple[int, bytes]]:
    """Yield ``(line number from 1, line)``, without line end, one trailing CR, and a BOM at the start.

    A line over ``limit`` bytes, and the rest of an archive that turns out to be cut, go to
    ``on_bad``; where that does not raise, reading goes on with what is left. Memory is O(limit).
    """
    number, held, skipping = 1, 0, False
    parts: list[bytes] = []
    while True:
        try:
            data = stream.read(chunk)
        except DataError as error:
            on_bad(type(error)(f"{name}:{number}", error.found, error.expected, hint=error.hint))
            return
        pieces = data.split(b"\n")
        for index, piece in enumerate(pieces):
            if index:
                if not skipping:
                    yield number, _clean(b"".join(parts), number)
                number, held, skipping = number + 1, 0, False
                parts.clear()
            held += len(piece)
            if held > limit and not skipping:
                skipping = True
                parts.clear()
                on_bad(over_limit(f"{name}:{number}", "line", limit))
            if piece and not skipping:
                parts.append(piece)
        if not data:
            break
    if parts:
        yield number, _clean(b"".join(parts), number)


def _clean(line: bytes, number: int) -> bytes:
    line = line.removesuffix(b"\r")
    return line.removeprefix(BOM) if number == 1 else line
