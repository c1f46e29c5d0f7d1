"""What ``examples.parquet`` looks like, and its strings and lists as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.errors import DamageError
from dagpack_cli.examples import META_SCHEMA

__all__ = [
    "BATCH_ROWS",
    "DROPPED",
    "EMPTY",
    "INT32_LIST",
    "KEPT",
    "PROVENANCE",
    "SINGLE_TOKEN",
    "STATUSES",
    "UNTRAINED",
    "check_schema",
    "lists_of",
    "names_of",
    "nested_of",
    "provenance_writer",
    "told_damage",
]

Int64Array = npt.NDArray[np.int64]

KEPT, EMPTY, SINGLE_TOKEN, DROPPED = "kept", "empty", "single-token", "dropped"
UNTRAINED = "untrained"  # a conversation in which nothing is supervised: dropped before the trie
STATUSES = (KEPT, EMPTY, SINGLE_TOKEN, DROPPED, UNTRAINED)
BATCH_ROWS = 1 << 16
"""Rows that are read at a time."""
INT32_LIST = pa.large_list(pa.field("element", pa.int32(), nullable=False))
"""Its offsets have 64 bits: no limit at 2^31."""
PROVENANCE = pa.schema(
    [
        *META_SCHEMA,
        pa.field("partition", pa.large_string(), nullable=False),
        pa.field("status", pa.large_string(), nullable=False),
        pa.field("supervised_runs", INT32_LIST, nullable=False),
        pa.field("num_tokens", pa.int64(), nullable=False),
        pa.field("end_node", pa.int64(), nullable=False),
        pa.field("windows", INT32_LIST, nullable=False),
    ]
)


def names_of(codes: npt.NDArray[np.int8], names: Sequence[str]) -> pa.LargeStringArray:
    """Return names as strings, given an index into them for each."""
    return pa.array(list(names), pa.large_string()).take(pa.array(codes))


def lists_of(offsets: Int64Array, values: npt.NDArray[Any]) -> pa.LargeListArray:
    """Return lists of int32, given n + 1 offsets into their values."""
    numbers = values.astype(np.int32, copy=False)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(numbers), type=INT32_LIST)


def nested_of(column: pa.Array) -> tuple[Int64Array, npt.NDArray[Any]]:
    """Return the offsets and values of strings or lists; a slice's offsets do not begin at 0."""
    if isinstance(column, pa.LargeListArray):
        return column.offsets.to_numpy(), column.values.to_numpy()
    _, offsets, data = column.buffers()
    found = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    return found, np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)


def provenance_writer(file: pa.NativeFile, metadata: Mapping[str, str]) -> pq.ParquetWriter:
    """Return what writes the provenance to a file; its metadata are key-value pairs."""
    schema = PROVENANCE.with_metadata(dict(metadata))
    return pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True)


@contextmanager
def told_damage(path: Path) -> Iterator[None]:
    """Raise `DamageError` for what reading the provenance fails of."""
    try:
        yield
    except FileNotFoundError:
        raise DamageError(str(path), "the file is missing") from None
    except PermissionError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DamageError(str(path), f"unreadable ({str(error).splitlines()[0]})") from None


def check_schema(path: Path, schema: pa.Schema) -> None:
    """Raise `DamageError` unless a file's schema is that of the provenance."""
    if schema.remove_metadata() != PROVENANCE:
        raise DamageError(str(path), f"columns {', '.join(schema.names)}", "those of dagpack")
