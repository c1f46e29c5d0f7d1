"""The files of a split: columns of plain numbers, a table of what each example is, and lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.native import open_native

__all__ = ["COLUMNS", "META_FILE", "META_SCHEMA", "STAGED", "read_table", "write_lines"]

META_SCHEMA = pa.schema(
    [
        pa.field("id", pa.large_string(), nullable=False),
        pa.field("file", pa.large_string(), nullable=False),
        pa.field("record", pa.int64(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("group", pa.large_string()),
        pa.field("weight", pa.float64(), nullable=False),
    ]
)
COLUMNS = {"tokens.i32": "<i4", "runs.i32": "<i4", "keys.i64": "<i8", "lengths.i64": "<i8", "num_runs.i64": "<i8"}
META_FILE = "meta.parquet"
STAGED = pa.schema([*META_SCHEMA, pa.field("family", pa.large_string()), pa.field("chat", pa.bool_(), nullable=False)])


def write_lines(path: Path, rows: Iterable[bytes]) -> None:
    """Write byte strings, one a line."""
    with path.open("wb") as file:
        file.writelines(row + b"\n" for row in rows)


def read_table(path: Path, columns: Sequence[str] | None = None) -> tuple[pa.Schema, pa.Table]:
    """Return the schema of a Parquet file, and all or some of its columns; page checksums are looked at.

    Raises:
        OSError, pyarrow.ArrowException: it is missing, unreadable or damaged.
    """
    with open_native(path, "rb") as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
        return file.schema_arrow, file.read(columns=columns, use_threads=False)
