"""The provenance before packing, written from the examples; and back as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagpack_cli.examples import Examples, read_table
from dagpack_cli.memory import give_back
from dagpack_cli.native import open_native
from dagpack_cli.provenance.schema import (
    PROVENANCE,
    STATUSES,
    check_schema,
    lists_of,
    names_of,
    provenance_writer,
    told_damage,
)

__all__ = ["read_provenance", "supervised_runs", "write_provenance"]

Int64Array = npt.NDArray[np.int64]


def write_provenance(
    path: Path,
    examples: Examples,
    parts: npt.NDArray[np.int8],
    partitions: Sequence[str],
    statuses: npt.NDArray[np.int8],
    end_nodes: Int64Array,
) -> None:
    """Write the provenance of every example before it is packed: ``windows`` is still empty. Memory: some row groups.

    Args:
        path: of the file.
        examples: all of them.
        parts: shape (num_examples,), int8; the partition of each, an index into ``partitions``.
        partitions: names of partitions.
        statuses: shape (num_examples,), int8; what became of each, an index into `STATUSES`.
        end_nodes: shape (num_examples,), int64; node of its partition's trie, -1 where there is none.
    """
    first = 0
    with open_native(path, "wb") as file, provenance_writer(file, {}) as writer:
        for table in examples.meta():
            last = first + table.num_rows
            offsets = examples.run_offsets[first : last + 1]
            runs = examples.runs[offsets[0] : offsets[-1]].ravel()
            columns = {
                "partition": names_of(parts[first:last], partitions),
                "status": names_of(statuses[first:last], STATUSES),
                "supervised_runs": lists_of(2 * (offsets - offsets[0]), runs),
                "num_tokens": pa.array(examples.sequences.lengths[first:last]),
                "end_node": pa.array(end_nodes[first:last]),
                "windows": lists_of(np.zeros(last - first + 1, dtype=np.int64), np.zeros(0, dtype=np.int32)),
            }
            for name, values in columns.items():
                table = table.append_column(PROVENANCE.field(name), values)
            writer.write_table(table.cast(writer.schema))
            first = last
            del table, runs, columns
            give_back()  # or what is freed in pieces adds up, 15 bytes an example


def read_provenance(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a stored ``examples.parquet``, or some columns of it.

    Raises:
        DamageError: unreadable, a page checksum that differs, or other columns.
    """
    with told_damage(path):
        schema, table = read_table(path, columns)
        check_schema(path, schema)
        return table.combine_chunks()


def supervised_runs(table: pa.Table) -> tuple[npt.NDArray[np.int32], Int64Array]:
    """Return the supervised runs of a provenance table: (num_runs, 2) int32, and offsets (n + 1,) int64."""
    column = table.column("supervised_runs").combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    offsets = column.offsets.to_numpy().astype(np.int64) if len(column) else np.zeros(1, dtype=np.int64)
    return column.values.to_numpy().reshape(-1, 2), offsets // 2
