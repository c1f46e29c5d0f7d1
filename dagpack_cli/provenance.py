"""The provenance that stays with a build: ``examples.parquet``, one row per example, in input order.

No tokens are in it: those are in the trie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagpack_cli.errors import DamageError
from dagpack_cli.examples import META_SCHEMA, Examples, read_table
from dagpack_cli.native import open_native

__all__ = [
    "DROPPED",
    "EMPTY",
    "KEPT",
    "SINGLE_TOKEN",
    "STATUSES",
    "UNTRAINED",
    "equals",
    "provenance_table",
    "read_provenance",
    "rewrite_provenance",
    "status_codes",
    "supervised_runs",
    "write_provenance",
]

Int64Array = npt.NDArray[np.int64]

KEPT, EMPTY, SINGLE_TOKEN, DROPPED = "kept", "empty", "single-token", "dropped"
UNTRAINED = "untrained"  # a conversation in which nothing is supervised: dropped before the trie
STATUSES = (KEPT, EMPTY, SINGLE_TOKEN, DROPPED, UNTRAINED)
_GROUP_ROWS = 1 << 20
_INT32_LIST = pa.large_list(pa.field("element", pa.int32(), nullable=False))  # offsets of 64 bits: no limit at 2^31
_PROVENANCE = pa.schema(
    [
        *META_SCHEMA,
        pa.field("partition", pa.large_string(), nullable=False),
        pa.field("status", pa.large_string(), nullable=False),
        pa.field("supervised_runs", _INT32_LIST, nullable=False),
        pa.field("num_tokens", pa.int64(), nullable=False),
        pa.field("end_node", pa.int64(), nullable=False),
        pa.field("windows", _INT32_LIST, nullable=False),
    ]
)


def provenance_table(
    examples: Examples,
    parts: npt.NDArray[np.int8],
    partitions: Sequence[str],
    statuses: npt.NDArray[np.int8],
    end_nodes: Int64Array,
) -> pa.Table:
    """Return the provenance of every example before it is packed: ``windows`` is still empty.

    Args:
        examples: all of them.
        parts: shape (num_examples,), int8; the partition of each, an index into ``partitions``.
        partitions: names of partitions.
        statuses: shape (num_examples,), int8; what became of each, an index into `STATUSES`.
        end_nodes: shape (num_examples,), int64; node of its partition's trie, -1 where there is none.
    """
    flat_offsets = pa.array(2 * examples.run_offsets)
    columns = {
        "partition": _names(parts, partitions),
        "status": _names(statuses, STATUSES),
        "supervised_runs": pa.LargeListArray.from_arrays(
            flat_offsets, pa.array(examples.runs.ravel()), type=_INT32_LIST
        ),
        "num_tokens": pa.array(examples.sequences.lengths),
        "end_node": pa.array(end_nodes),
        "windows": _lists(np.zeros(examples.num_examples + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)),
    }
    table = examples.meta
    for name, values in columns.items():
        table = table.append_column(_PROVENANCE.field(name), values)
    return table


def _names(codes: npt.NDArray[np.int8], names: Sequence[str]) -> pa.LargeStringArray:
    return pa.array(list(names), pa.large_string()).take(pa.array(codes))


def equals(table: pa.Table, column: str, *values: str) -> npt.NDArray[np.bool_]:
    """Return which rows of a table have one of some values in a column of strings: shape (num_rows,)."""
    found = pc.is_in(table.column(column), value_set=pa.array(list(values), pa.large_string()))
    return np.asarray(found.to_numpy(zero_copy_only=False) if isinstance(found, pa.Array) else found.to_numpy())


def status_codes(table: pa.Table) -> npt.NDArray[np.int8]:
    """Return the status of every row as an index into `STATUSES`: shape (num_rows,), int8."""
    found = pc.index_in(table.column("status"), value_set=pa.array(STATUSES, pa.large_string()))
    return np.asarray(found.to_numpy()).astype(np.int8)


def _lists(offsets: Int64Array, values: Int64Array) -> pa.LargeListArray:
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values.astype(np.int32)), type=_INT32_LIST)


def write_provenance(path: Path, table: pa.Table, metadata: Mapping[str, str]) -> None:
    """Write ``examples.parquet`` before it is packed; ``table``: of `provenance_table`."""
    with open_native(path, "wb") as file, _provenance_writer(file, metadata) as writer:
        writer.write_table(table.cast(writer.schema), row_group_size=_GROUP_ROWS)


def rewrite_provenance(
    source: Path,
    target: Path,
    windows: tuple[Int64Array, Int64Array],
    statuses: npt.NDArray[np.int8],
    metadata: Mapping[str, str],
) -> None:
    """Write ``examples.parquet`` as packing leaves it. Memory: a row group.

    Args:
        source: the file before.
        target: the file to write.
        windows: offsets (num_examples + 1,) and values, both int64: the windows of each example.
        statuses: shape (num_examples,), int8; an index into `STATUSES`: packing may have dropped examples.
        metadata: key-value pairs of the file.
    """
    offsets, values = windows
    first = 0
    with (
        open_native(source, "rb") as old,
        pq.ParquetFile(old, page_checksum_verification=True) as file,
        open_native(target, "wb") as new,
        _provenance_writer(new, metadata) as writer,
    ):
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, use_threads=False)
            last = first + table.num_rows
            inside = values[offsets[first] : offsets[last]]
            columns = {
                "status": _names(statuses[first:last], STATUSES),
                "windows": _lists(offsets[first : last + 1] - offsets[first], inside),
            }
            for name, column in columns.items():
                at = table.schema.get_field_index(name)
                table = table.set_column(at, _PROVENANCE.field(name), column)
            writer.write_table(table.cast(writer.schema), row_group_size=_GROUP_ROWS)
            first = last


def _provenance_writer(file: pa.NativeFile, metadata: Mapping[str, str]) -> pq.ParquetWriter:
    schema = _PROVENANCE.with_metadata(dict(metadata))
    return pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True)


def read_provenance(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a stored ``examples.parquet``, or some columns of it.

    Raises:
        DamageError: unreadable, a page checksum that differs, or other columns.
    """
    try:
        schema, table = read_table(path, columns)
    except FileNotFoundError:
        raise DamageError(str(path), "the file is missing") from None
    except PermissionError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DamageError(str(path), f"unreadable ({str(error).splitlines()[0]})") from None
    if schema.remove_metadata() != _PROVENANCE:
        raise DamageError(str(path), f"columns {', '.join(schema.names)}", "those of dagpack")
    return table.combine_chunks()


def supervised_runs(table: pa.Table) -> tuple[npt.NDArray[np.int32], Int64Array]:
    """Return the supervised runs of a provenance table: (num_runs, 2) int32, and offsets (n + 1,) int64."""
    column = table.column("supervised_runs").combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    offsets = column.offsets.to_numpy().astype(np.int64) if len(column) else np.zeros(1, dtype=np.int64)
    return column.values.to_numpy().reshape(-1, 2), offsets // 2
