"""Data pages of a Parquet shard: levels and values, compressed, behind a header with their checksum."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from dagpack_cli.shards.columns import Column, Encoding
from dagpack_cli.shards.thrift import i32, struct

__all__ = ["Page", "PageEncoder"]

_DATA_PAGE = i32(0)  # of version 1, which every reader knows
_RLE = i32(Encoding.RLE)  # of both kinds of levels, where there are none too


@dataclass(frozen=True, slots=True)
class Page:
    """A page as it stands in the file.

    Attributes:
        data: header and compressed body.
        uncompressed_size: bytes of the header, and of the body before it was compressed.
    """

    data: bytes
    uncompressed_size: int


class PageEncoder:
    """Encodes pages one after the other, in a buffer and a compressor of its own: for one thread at a time.

    Args:
        compression_level: of zstd.

    In memory: two pages of the largest it has encoded. All work on values is done without Python's lock, in few
    long calls, so that shards are encoded side by side.
    """

    def __init__(self, compression_level: int) -> None:
        self._compressor = zstandard.ZstdCompressor(level=compression_level)
        self._buffer = np.empty(0, dtype=np.uint8)

    def encode(self, column: Column, values: npt.NDArray[Any], num_values: int, levels: bytes = b"") -> Page:
        """Return a page.

        Args:
            column: whose page it is.
            values: shape (n,), of the column's dtype.
            num_values: as Parquet counts them: an empty list is one.
            levels: as they stand in the page; none where each window has one value.

        Raises:
            TypeError: values of another dtype: nothing is narrowed here.
        """
        stored = values.astype(np.dtype(column.dtype).newbyteorder("<"), casting="equiv", copy=False)
        body = self._fill(column, np.ascontiguousarray(stored), levels)
        compressed = self._compressor.compress(body.data)
        header = _header(column.encoding, num_values, len(body), compressed)
        return Page(header + compressed, len(header) + len(body))

    def _fill(self, column: Column, values: npt.NDArray[Any], levels: bytes) -> npt.NDArray[np.uint8]:
        """Return the body of a page before it is compressed, in the buffer that the next one takes again."""
        stored = np.packbits(values, bitorder="little") if column.dtype is np.bool_ else values.view(np.uint8)
        size = len(levels) + len(stored)
        if size > len(self._buffer):
            self._buffer = np.empty(size, dtype=np.uint8)
        body = self._buffer[:size]
        body[: len(levels)] = np.frombuffer(levels, dtype=np.uint8)
        if column.encoding is Encoding.BYTE_STREAM_SPLIT:
            # First the lowest byte of every value, then the next, up to the highest. Words shifted and narrowed are
            # twice as fast while they lie in the cache, and no faster as part of writing a shard.
            planes = body[len(levels) :].reshape(values.itemsize, -1)
            planes[:] = stored.reshape(-1, values.itemsize).T
        else:
            body[len(levels) :] = stored
        return body


def _header(encoding: Encoding, num_values: int, size: int, compressed: bytes) -> bytes:
    """Return a page's header; its checksum is of the compressed body, as a signed number."""
    checksum = zlib.crc32(compressed)
    signed = checksum - (checksum >> 31 << 32)
    about = struct({1: i32(num_values), 2: i32(encoding), 3: _RLE, 4: _RLE})
    return struct({1: _DATA_PAGE, 2: i32(size), 3: i32(len(compressed)), 4: i32(signed), 5: about})[1]
