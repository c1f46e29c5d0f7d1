"""Parquet shards: one row per window, unpadded lists, page checksums.

BYTE_STREAM_SPLIT with zstd level 1 and non-null list elements was the smallest and fastest of the
encodings measured for these columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.errors import DamageError
from dagpack_cli.native import open_native
from dagpack_cli.shards.window import ROW_COLUMNS, WindowRows

__all__ = ["read_attention_edges", "read_parquet", "windows_per_group", "write_parquet"]

_GROUP_ROWS = 1 << 16  # rows in a row group: what a reader that jumps about decodes for one window
_SCALARS = {
    "num_rows": pa.int32(),
    "num_supervised": pa.int64(),
    "weight_sum": pa.float64(),
    "attention_edges": pa.int64(),
}
_TYPES = {np.int32: pa.int32(), np.float32: pa.float32(), np.bool_: pa.bool_()}


def _schema(metadata: Mapping[str, str]) -> pa.Schema:
    fields = [
        pa.field(name, pa.list_(pa.field("element", _TYPES[dtype], nullable=False)), nullable=False)
        for name, dtype in ROW_COLUMNS.items()
    ]
    fields += [pa.field(name, kind, nullable=False) for name, kind in _SCALARS.items()]
    return pa.schema(fields, metadata=dict(metadata))


def windows_per_group(window_len: int) -> int:
    """Return the fixed number of windows of a row group: a function of ``window_len`` alone."""
    return max(1, _GROUP_ROWS // window_len)


def write_parquet(
    path: Path, windows: WindowRows, window_len: int, metadata: Mapping[str, str], compression_level: int
) -> None:
    """Write windows as one Parquet file; the bytes depend on the arguments and on pyarrow alone."""
    schema = _schema(metadata)
    offsets = pa.array(windows.row_offsets.astype(np.int32))
    columns: list[Any] = []
    for field in schema:
        if field.name in ROW_COLUMNS:
            columns.append(pa.ListArray.from_arrays(offsets, pa.array(getattr(windows, field.name)), type=field.type))
        elif field.name == "num_rows":
            columns.append(pa.array(np.diff(windows.row_offsets).astype(np.int32)))
        else:
            columns.append(pa.array(getattr(windows, field.name)))
    split = [f"{name}.list.element" for name, dtype in ROW_COLUMNS.items() if dtype is not np.bool_]
    with open_native(path, "wb") as file:
        pq.write_table(
            pa.Table.from_arrays(columns, schema=schema),
            file,
            row_group_size=windows_per_group(window_len),
            compression="zstd",
            compression_level=compression_level,
            use_dictionary=False,
            use_byte_stream_split=split,
            write_page_checksum=True,
            write_statistics=False,
        )


def read_parquet(path: Path, group: int | None = None) -> WindowRows:
    """Return the windows of a Parquet shard.

    Args:
        path: the file.
        group: the row group to read; all of them where it is None.

    Raises:
        DamageError: unreadable, a page checksum that differs, or not the columns of a shard.
    """
    table = _read_table(path, group, None)
    if table.schema.remove_metadata() != _schema({}).remove_metadata():
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
    scalars = {name: table.column(name).to_numpy() for name in _SCALARS}
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
    if table.schema.types != [_SCALARS["attention_edges"]]:
        raise DamageError(str(path), "no column attention_edges", "those of a shard")
    return np.asarray(table.column(0).to_numpy(), dtype=np.int64)


def _read_table(path: Path, group: int | None, columns: list[str] | None) -> pa.Table:
    """Return columns (None: all) of a row group (None: all), page by page checked against its checksums."""
    try:
        with open_native(path, "rb") as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            if group is None:
                return file.read(columns, use_threads=False)
            return file.read_row_group(group, columns, use_threads=False)
    except PermissionError:
        raise
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise DamageError(str(path), "the file is missing") from None
        raise DamageError(str(path), f"unreadable ({str(error).splitlines()[0]})", "a shard") from None
