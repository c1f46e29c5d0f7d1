"""Parquet shards: one row per window, unpadded lists, page checksums.

BYTE_STREAM_SPLIT with zstd level 1 and non-null list elements was the smallest and fastest of the
encodings measured for these columns. Shards are written here page by page, and read by pyarrow: the levels of
lists, which pyarrow computes row by row, took it nearly as long as all the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.errors import DamageError
from dagpack_cli.native import open_native
from dagpack_cli.shards.columns import COLUMNS, SCALARS, Column
from dagpack_cli.shards.footer import Chunk, RowGroup, encode_footer
from dagpack_cli.shards.levels import ListPage, list_pages
from dagpack_cli.shards.pages import PageEncoder
from dagpack_cli.shards.window import ROW_COLUMNS, WindowRows

__all__ = ["read_attention_edges", "read_parquet", "windows_per_group", "write_parquet"]

_GROUP_ROWS = 1 << 16  # rows in a row group: what a reader that jumps about decodes for one window
_MAGIC = b"PAR1"
_PENDING_BYTES = 1 << 20


def windows_per_group(window_len: int) -> int:
    """Return the fixed number of windows of a row group: a function of ``window_len`` alone."""
    return max(1, _GROUP_ROWS // window_len)


def write_parquet(
    path: Path, windows: WindowRows, window_len: int, metadata: Mapping[str, str], compression_level: int
) -> None:
    """Write windows as one Parquet file; the bytes depend on the arguments, on dagpack and on zstd alone.

    Args:
        path: of the file, which is replaced.
        windows: of at most ``window_len`` rows each.
        window_len: decides how many windows a row group holds.
        metadata: key-value pairs of the file.
        compression_level: of zstd.

    Raises:
        OSError: it cannot be written.

    In memory beside the windows: a few pages.
    """
    encoder = PageEncoder(compression_level)
    groups: list[RowGroup] = []
    step = windows_per_group(window_len)
    with open_native(path, "wb") as file:
        output = _Output(file)
        output.write(_MAGIC)
        for first in range(0, windows.num_windows, step):
            last = min(first + step, windows.num_windows)
            pages = list(list_pages(windows.row_offsets[first : last + 1]))
            chunks = [_write_chunk(output, encoder, column, windows, range(first, last), pages) for column in COLUMNS]
            groups.append(RowGroup(last - first, chunks))
        footer = encode_footer(COLUMNS, groups, metadata)
        output.write(footer + len(footer).to_bytes(4, "little") + _MAGIC)
        output.flush()


class _Output:
    """Collects what is written: each write to the file lets other threads run and waits for them."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self._pending = bytearray()
        self.position = 0

    def write(self, data: bytes) -> None:
        """Add bytes at the end."""
        self._pending += data
        self.position += len(data)
        if len(self._pending) >= _PENDING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is pending to the file."""
        self._file.write(self._pending)
        self._pending = bytearray()


def _write_chunk(
    output: _Output,
    encoder: PageEncoder,
    column: Column,
    windows: WindowRows,
    group: range,
    pages: Sequence[ListPage],
) -> Chunk:
    """Write a column of the windows of a row group, page by page, and return where it lies."""
    offset = output.position
    num_values = size = uncompressed_size = 0
    for values, count, levels in _page_values(column, windows, group, pages):
        page = encoder.encode(column, values, count, levels)
        output.write(page.data)
        num_values += count
        size += len(page.data)
        uncompressed_size += page.uncompressed_size
    return Chunk(column, num_values, offset, size, uncompressed_size)


def _page_values(
    column: Column, windows: WindowRows, group: range, pages: Sequence[ListPage]
) -> Iterator[tuple[npt.NDArray[Any], int, bytes]]:
    """Yield the values of every page of a column of a row group, how many Parquet counts, and their levels."""
    if column.is_list:
        values = getattr(windows, column.name)
        for page in pages:
            yield values[page.first : page.last], page.num_values, page.levels
    elif column.name == "num_rows":
        yield np.diff(windows.row_offsets[group.start : group.stop + 1]).astype(np.int32), len(group), b""
    else:
        yield getattr(windows, column.name)[group.start : group.stop], len(group), b""


def read_parquet(path: Path, group: int | None = None) -> WindowRows:
    """Return the windows of a Parquet shard.

    Args:
        path: the file.
        group: the row group to read; all of them where it is None.

    Raises:
        DamageError: unreadable, a page checksum that differs, or not the columns of a shard.
    """
    table = _read_table(path, group, None)
    if table.schema.remove_metadata() != _schema():
        raise DamageError(str(path), f"columns {', '.join(table.column_names)}", "those of a shard")
    table = table.combine_chunks()
    offsets: npt.NDArray[np.int64] | None = None
    values: dict[str, Any] = {}
    for name in ROW_COLUMNS:
        column = table.column(name).combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        found = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        found = found if len(found) else np.zeros(1, dtype=np.int64)
        if offsets is not None and not np.array_equal(found, offsets):
            raise DamageError(str(path), f"{name} has other lengths than inputs", "equal lengths")
        offsets = found
        values[name] = column.values.to_numpy(zero_copy_only=False)
    scalars = {name: table.column(name).to_numpy() for name in SCALARS}
    assert offsets is not None
    if not np.array_equal(np.diff(offsets), scalars.pop("num_rows")):
        raise DamageError(str(path), "num_rows is not the length of the lists", "equal lengths")
    return WindowRows(row_offsets=offsets, **values, **scalars, blocks=np.zeros(len(offsets) - 1, dtype=np.int64))


def read_attention_edges(path: Path) -> npt.NDArray[np.int64]:
    """Return the attention edges of every window of a Parquet shard, shape (num_windows,); no row is read.

    Raises:
        DamageError: as `read_parquet`.
    """
    table = _read_table(path, None, ["attention_edges"])
    if table.schema.types != [pa.int64()]:
        raise DamageError(str(path), "no column attention_edges", "those of a shard")
    return np.asarray(table.column(0).to_numpy(), dtype=np.int64)


def _schema() -> pa.Schema:
    fields = []
    for column in COLUMNS:
        kind = pa.from_numpy_dtype(column.dtype)
        whole = pa.list_(pa.field("element", kind, nullable=False)) if column.is_list else kind
        fields.append(pa.field(column.name, whole, nullable=False))
    return pa.schema(fields)


def _read_table(path: Path, group: int | None, columns: list[str] | None) -> pa.Table:
    """Return columns (None: all) of a row group (None: all), page by page checked against its checksums."""
    try:
        with open_native(path, "rb") as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            if group is None:
                return file.read(columns, use_threads=False)
            return file.read_row_group(group, columns, use_threads=False)
    except PermissionError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise DamageError(str(path), "the file is missing") from None
        raise DamageError(str(path), f"unreadable ({str(error).splitlines()[0]})", "a shard") from None
