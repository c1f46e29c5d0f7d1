"""The provenance as packing leaves it: read a few rows at a time, written in large row groups.

An encoder wants the rows of a group as a whole, and how they are chunked decides its bytes; so the columns of a
group are put together first, where they may lie in files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.native import open_native
from dagpack_cli.provenance.schema import (
    BATCH_ROWS,
    PROVENANCE,
    STATUSES,
    lists_of,
    names_of,
    nested_of,
    provenance_writer,
)

__all__ = ["rewrite_provenance"]

Int64Array = npt.NDArray[np.int64]
_GROUP_ROWS = 1 << 20


def rewrite_provenance(
    source: Path,
    target: Path,
    windows: tuple[Int64Array, npt.NDArray[np.int32]],
    statuses: npt.NDArray[np.int8],
    metadata: Mapping[str, str],
    zeros: Zeros = np.zeros,
) -> None:
    """Write ``examples.parquet`` as packing leaves it, in row groups of 2^20 examples whatever those of the source.

    Args:
        source: the file before.
        target: the file to write.
        windows: offsets (num_examples + 1,), int64, and values, int32: the windows of each example.
        statuses: shape (num_examples,), int8; an index into `STATUSES`: packing may have dropped examples.
        metadata: key-value pairs of the file.
        zeros: makes the arrays of a row group, which an encoder wants as a whole.

    Memory: some rows, and what an encoder holds of a row group.
    """
    offsets, values = windows
    first = 0
    with (
        open_native(source, "rb") as old,
        pq.ParquetFile(old, page_checksum_verification=True) as file,
        open_native(target, "wb") as new,
        provenance_writer(new, metadata) as writer,
    ):
        kept = [field for field in PROVENANCE if field.name not in ("status", "windows")]
        group = {field.name: _column_of(field.type, zeros) for field in kept}
        for rows, is_last in _grouped(file, list(group)):
            for name, column in group.items():
                column.add(rows.column(name))
            if not is_last:
                continue
            last = first + group["record"].num
            arrays = {name: column.array() for name, column in group.items()}
            arrays["status"] = names_of(statuses[first:last], STATUSES)
            arrays["windows"] = lists_of(
                offsets[first : last + 1] - offsets[first], values[offsets[first] : offsets[last]]
            )
            table = pa.Table.from_arrays([arrays[name] for name in PROVENANCE.names], schema=writer.schema)
            writer.write_table(table, row_group_size=_GROUP_ROWS)
            first = last
            for column in group.values():
                column.clear()


def _grouped(file: pq.ParquetFile, columns: list[str]) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Yield the rows of a file, and whether they complete a row group of the file that is written."""
    done, num = 0, file.metadata.num_rows
    for batch in file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
        first = 0
        while first < batch.num_rows:
            last = min(batch.num_rows, first + _GROUP_ROWS - done % _GROUP_ROWS)
            done += last - first
            yield batch.slice(first, last - first), done % _GROUP_ROWS == 0 or done == num
            first = last


class _Column:
    """A column of a row group, put together of batches: numbers, or strings or lists of them end to end."""

    def __init__(self, kind: pa.DataType, dtype: npt.DTypeLike, is_nested: bool, zeros: Zeros) -> None:
        self.num = 0
        self._kind, self._zeros, self._is_nested = kind, zeros, is_nested
        self._offsets = zeros(_GROUP_ROWS + 1 if is_nested else 1, np.int64)
        self._valid = zeros(_GROUP_ROWS if is_nested else 0, np.bool_)
        self._values = zeros(_GROUP_ROWS, dtype)
        self._num_values = 0

    def add(self, column: pa.Array) -> None:
        """Append a batch."""
        last = self.num + len(column)
        if self._is_nested:
            offsets, values = nested_of(column)
            self._offsets[self.num + 1 : last + 1] = self._num_values + offsets[1:] - offsets[0]
            self._valid[self.num : last] = column.is_valid().to_numpy(zero_copy_only=False)
            values = values[offsets[0] : offsets[-1]]
        else:
            values = column.to_numpy()
        end = self._num_values + len(values)
        if end > len(self._values):
            grown = self._zeros(max(end, 2 * len(self._values)), self._values.dtype)
            for span in spans(self._num_values):
                grown[span] = self._values[span]
            self._values = grown
        self._values[self._num_values : end] = values
        self.num, self._num_values = last, end

    def array(self) -> pa.Array:
        """Return what has been added, without a copy."""
        values = self._values[: self._num_values]
        if not self._is_nested:
            return pa.array(values, self._kind)
        offsets, valid = self._offsets[: self.num + 1], self._valid[: self.num]
        if pa.types.is_large_list(self._kind):
            return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values), type=self._kind)
        nulls = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.LargeStringArray.from_buffers(self.num, pa.py_buffer(offsets), pa.py_buffer(values), nulls)

    def clear(self) -> None:
        """Begin again."""
        self.num = self._num_values = 0


def _column_of(kind: pa.DataType, zeros: Zeros) -> _Column:
    if pa.types.is_large_string(kind):
        return _Column(kind, np.uint8, True, zeros)
    if pa.types.is_large_list(kind):
        return _Column(kind, kind.value_type.to_pandas_dtype(), True, zeros)
    return _Column(kind, kind.to_pandas_dtype(), False, zeros)
