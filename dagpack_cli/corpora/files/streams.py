"""Files as byte streams: plain, gzip and zstd, told apart by their first bytes; and their lines.

Only a line feed byte ends a line: a text may hold U+2028 and other characters that Python's
``splitlines`` takes for line ends.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

from dagpack_cli.corpora.records import OnBad
from dagpack_cli.errors import DataError, DiskError, NoInputError, PermissionDeniedError

__all__ = ["BOM", "LINE_LIMIT", "ByteStream", "head_of", "open_stream", "read_lines"]

BOM = b"\xef\xbb\xbf"
LINE_LIMIT = 256 << 20

_CHUNK = 1 << 20
# Decompressed zstd comes out whole: at most 128 KiB for every 4 bytes in, so a small chunk in
# bounds what a hostile file can make us hold.
_ZSTD_CHUNK = 8 << 10
_ZSTD_WINDOW = 2**31
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class ByteStream(Protocol):
    """The part of a binary file that reading needs."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes, none at the end."""
        ...


class _Frames:
    """The decompressed bytes of a zstd file of any number of frames."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._input = b""
        self._output = b""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes (all for -1); EOFError where a frame is cut."""
        parts: list[bytes] = []
        held = 0
        while size < 0 or held < size:
            if not self._output and not self._decompress():
                break
            part = self._output if size < 0 else self._output[: size - held]
            self._output = self._output[len(part) :]
            held += len(part)
            parts.append(part)
        return b"".join(parts)

    def _decompress(self) -> bool:
        """Fill the output; False at the end of the file."""
        while not self._output:
            data = self._input or self._file.read(_ZSTD_CHUNK)
            self._input = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("the file ends inside a frame")
                return False
            if self._frame is None:
                self._frame = self._context.decompressobj()
            self._output = self._frame.decompress(data)
            if self._frame.eof:
                self._input = self._frame.unused_data
                self._frame = None
        return True


class _Guarded:
    """A stream whose failures are dagpack's errors and name the file."""

    def __init__(self, read: Callable[[int], bytes], name: str) -> None:
        self._read = read
        self._name = name

    def read(self, size: int = -1, /) -> bytes:
        """Return up to ``size`` bytes.

        Raises:
            DataError: the archive is cut or damaged.
            DiskError: the file cannot be read.
        """
        try:
            return self._read(size)
        except EOFError:
            raise DataError(
                self._name, "the compressed file is truncated", "it ends in the middle of its data"
            ) from None
        except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise DataError(self._name, f"the compressed file is damaged: {error}") from None
        except OSError as error:
            raise DiskError(self._name, f"reading failed: {error.strerror or error}") from None


@contextmanager
def open_stream(path: Path, name: str) -> Iterator[ByteStream]:
    """Open ``path`` for reading, decompressed where its first bytes say gzip or zstd.

    Concatenated gzip members and zstd frames are read to the last one.

    Args:
        path: the file.
        name: how messages name it.

    Raises:
        NoInputError, PermissionDeniedError, DiskError: it cannot be opened; reading raises as
            `DataError` where the compressed data is cut or damaged.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise NoInputError(name, "the file is gone", "it was there when the corpus was listed") from None
    except PermissionError:
        raise PermissionDeniedError(name, "cannot be read", "the operating system refuses access") from None
    except OSError as error:
        raise DiskError(name, f"opening failed: {error.strerror or error}") from None
    with file:
        magic = _Guarded(file.read, name).read(4)
        file.seek(0)
        if magic.startswith(_GZIP_MAGIC):
            yield _Guarded(gzip.GzipFile(fileobj=file).read, name)
        elif magic == _ZSTD_MAGIC or (magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5):
            yield _Guarded(_Frames(file).read, name)
        else:
            yield _Guarded(file.read, name)


def head_of(stream: ByteStream, size: int) -> bytes:
    """Return the first ``size`` bytes, fewer only where the stream ends."""
    parts: list[bytes] = []
    while size > 0 and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_lines(
    stream: ByteStream, name: str, on_bad: OnBad, *, limit: int = LINE_LIMIT, chunk: int = _CHUNK
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
            on_bad(DataError(f"{name}:{number}", error.found, error.expected))
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
                on_bad(DataError(f"{name}:{number}", f"a line of more than {limit:,} bytes", "records are shorter"))
            if piece and not skipping:
                parts.append(piece)
        if not data:
            break
    if parts:
        yield number, _clean(b"".join(parts), number)


def _clean(line: bytes, number: int) -> bytes:
    line = line.removesuffix(b"\r")
    return line.removeprefix(BOM) if number == 1 else line
