"""Windows of an export as one Parquet file: a row a window, plain lists that every reader of Parquet knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.export.windows import PARTITION_COLUMN, WindowExport
from dagpack_cli.native import open_native

__all__ = ["write_parquet"]

_TYPES: dict[type[np.generic], Any] = {np.int32: pa.int32(), np.int64: pa.int64(), np.float32: pa.float32()}


def _schema(export: WindowExport) -> pa.Schema:
    fields = [pa.field(name, pa.list_(_TYPES[dtype])) for name, dtype in export.columns.items()]
    if export.has_partition_column:
        fields.append(pa.field(PARTITION_COLUMN, pa.string()))
    return pa.schema(fields, metadata=export.metadata)


def write_parquet(path: Path, export: WindowExport, done: Callable[[int], None]) -> None:
    """Write an export as a Parquet file with zstd, a batch of windows a row group.

    Args:
        path: of the file, which is replaced.
        export: what to write.
        done: called with the number of windows of each batch that is written.

    Raises:
        OSError: it cannot be written.

    The bytes depend on the build and on pyarrow alone. In memory: one shard and one batch.
    """
    schema = _schema(export)
    with (
        open_native(path, "wb") as file,
        pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for batch in export.batches():
            # From int64, so that a list too long for the offsets of a column is refused and not wrapped.
            columns = [
                pa.ListArray.from_arrays(pa.array(lists.offsets, type=pa.int32()), pa.array(lists.values))
                for lists in batch.columns.values()
            ]
            if export.has_partition_column:
                columns.append(pa.repeat(pa.scalar(batch.partition), batch.num_windows))
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=max(batch.num_windows, 1))
            done(batch.num_windows)
