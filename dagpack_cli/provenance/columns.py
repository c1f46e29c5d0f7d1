"""What planning and checking look at of the provenance, as arrays read a few rows at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.native import open_native
from dagpack_cli.provenance.schema import BATCH_ROWS, STATUSES, check_schema, nested_of, told_damage

__all__ = ["ExampleColumns", "columns_of", "read_columns"]

Int64Array = npt.NDArray[np.int64]
_LISTS = ("supervised_runs", "windows")
_PLANNED = ("partition", "status", "num_tokens", "end_node", "weight", "supervised_runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleColumns:
    """What planning looks at of the provenance, as arrays.

    Attributes:
        partitions: shape (num_examples,), int8; index into the names of partitions, -1 for another.
        statuses: shape (num_examples,), int8; index into `STATUSES`, -1 for another.
        lengths: shape (num_examples,), int64; tokens of each.
        end_nodes: shape (num_examples,), int64; of its partition's trie, -1 where there is none.
        weights: shape (num_examples,), float64.
        runs: shape (num_runs, 2), int32; supervised ranges of an example's own tokens.
        run_offsets: shape (num_examples + 1,), int64, into ``runs``.
        windows: shape (num_placed,), int32; the windows of every example, where they have been asked for.
        window_offsets: shape (num_examples + 1,), int64, into ``windows``.
    """

    partitions: npt.NDArray[np.int8]
    statuses: npt.NDArray[np.int8]
    lengths: Int64Array
    end_nodes: Int64Array
    weights: npt.NDArray[np.float64]
    runs: npt.NDArray[np.int32]
    run_offsets: Int64Array
    windows: npt.NDArray[np.int32]
    window_offsets: Int64Array

    @property
    def num_examples(self) -> int:
        """Number of examples."""
        return len(self.lengths)


def read_columns(
    path: Path, partitions: Sequence[str], zeros: Zeros = np.zeros, *, windows: bool = False
) -> ExampleColumns:
    """Return what planning looks at of a stored ``examples.parquet``.

    Args:
        path: of the file.
        partitions: the names that partitions are numbered by.
        zeros: makes the arrays with an entry an example or a run.
        windows: whether to read them too.

    Raises:
        DamageError: as `read_provenance`.

    Memory: some rows, and the compressed bytes of a row group, beyond the result.
    """
    with (
        told_damage(path),
        open_native(path, "rb") as source,
        pq.ParquetFile(source, page_checksum_verification=True) as file,
    ):
        check_schema(path, file.schema_arrow)
        names = [*_PLANNED, "windows"] if windows else list(_PLANNED)
        most = {name: _most_numbers(file.metadata, name) for name in names if name in _LISTS}
        columns = _Filled(file.metadata.num_rows, most, partitions, zeros)
        for batch in file.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
            columns.add(batch)
        return columns.result()


def columns_of(table: pa.Table, partitions: Sequence[str]) -> ExampleColumns:
    """Return what planning looks at of a table of `read_provenance`."""
    most = {"supervised_runs": sum(len(chunk.values) for chunk in table.column("supervised_runs").chunks)}
    columns = _Filled(table.num_rows, most, partitions, np.zeros)
    for batch in table.select(list(_PLANNED)).to_batches():
        columns.add(batch)
    return columns.result()


class _Filled:
    """The arrays of `ExampleColumns`, filled a batch after the other."""

    def __init__(self, num: int, most: Mapping[str, int], partitions: Sequence[str], zeros: Zeros) -> None:
        self._names = list(partitions)
        self._partitions, self._statuses = zeros(num, np.int8), zeros(num, np.int8)
        self._lengths, self._end_nodes, self._weights = (
            zeros(num, dtype) for dtype in (np.int64, np.int64, np.float64)
        )
        self._values = {name: zeros(most.get(name, 0), np.int32) for name in _LISTS}
        self._offsets = {name: zeros(num + 1 if name in most else 1, np.int64) for name in _LISTS}
        self._listed = list(most)
        self._num = 0

    def add(self, batch: pa.RecordBatch) -> None:
        rows = slice(self._num, self._num + batch.num_rows)
        self._partitions[rows] = _codes(batch.column("partition"), self._names)
        self._statuses[rows] = _codes(batch.column("status"), STATUSES)
        self._lengths[rows] = batch.column("num_tokens").to_numpy()
        self._end_nodes[rows] = batch.column("end_node").to_numpy()
        self._weights[rows] = batch.column("weight").to_numpy()
        for name in self._listed:
            offsets, values = nested_of(batch.column(name))
            first = int(self._offsets[name][rows.start])
            self._values[name][first : first + int(offsets[-1] - offsets[0])] = values[offsets[0] : offsets[-1]]
            self._offsets[name][rows.start + 1 : rows.stop + 1] = first + offsets[1:] - offsets[0]
        self._num = rows.stop

    def result(self) -> ExampleColumns:
        values = {name: self._values[name][: self._offsets[name][-1]] for name in _LISTS}
        run_offsets = self._offsets["supervised_runs"]
        for span in spans(len(run_offsets)):
            run_offsets[span] //= 2  # a run is two numbers
        return ExampleColumns(
            partitions=self._partitions,
            statuses=self._statuses,
            lengths=self._lengths,
            end_nodes=self._end_nodes,
            weights=self._weights,
            runs=values["supervised_runs"].reshape(-1, 2),
            run_offsets=run_offsets,
            windows=values["windows"],
            window_offsets=self._offsets["windows"],
        )


def _most_numbers(metadata: pq.FileMetaData, name: str) -> int:
    """Return how many numbers all lists of a column have at most: an empty list is counted as one."""
    found = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = (group.column(at) for at in range(group.num_columns))
        found += sum(column.num_values for column in columns if column.path_in_schema.startswith(f"{name}."))
    return found


def _codes(column: pa.Array, names: Sequence[str]) -> npt.NDArray[np.int8]:
    """Return the index of every string among some names, -1 for another."""
    found = pc.fill_null(pc.index_in(column, value_set=pa.array(list(names), pa.large_string())), -1)
    return np.asarray(found.to_numpy(zero_copy_only=False)).astype(np.int8)
