"""Splits as they are read: columns mapped, the table a row group at a time; and parts of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.examples.files import COLUMNS, META_FILE, STAGED
from dagpack_cli.native import open_native

__all__ = ["Segment", "Split", "joined_segments", "read_meta"]

Int64Array = npt.NDArray[np.int64]

_KEPT_ROWS = 1 << 18  # of what has been read of tables, for small segments that come back to it
_COARSE = 1 << 10  # entries of a split's columns between two known sums


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive examples of one split: those of one input, or of several in a row.

    Attributes:
        directory: of the split.
        first: its first example that is meant.
        last: exclusive.
        remap: with symbols, shape (k,), int32: the vocabulary's id of each of the segment's own ids; else None.
    """

    directory: Path
    first: int
    last: int
    remap: npt.NDArray[np.int32] | None = None


def joined_segments(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Yield the segments, each as long as it can be: most inputs stand beside their neighbours."""
    last: Segment | None = None
    for segment in segments:
        plain = segment.remap is None and last is not None and last.remap is None
        if last is not None and plain and last.directory == segment.directory and last.last == segment.first:
            last = replace(last, last=segment.last)
            continue
        if last is not None:
            yield last
        last = segment
    if last is not None:
        yield last


class Split:
    """The columns of a split, mapped."""

    def __init__(self, directory: Path) -> None:
        columns = {name: _mapped(directory / name, dtype) for name, dtype in COLUMNS.items()}
        self.tokens = columns["tokens.i32"]
        self.runs = columns["runs.i32"].reshape(-1, 2)
        self.keys = columns["keys.i64"].reshape(-1, 2)
        self.lengths, self.num_runs = columns["lengths.i64"], columns["num_runs.i64"]
        self._length_sums, self._run_sums = _coarse_sums(self.lengths), _coarse_sums(self.num_runs)

    def offset(self, example: int) -> int:
        """Return where an example's tokens begin."""
        return _sum_before(self.lengths, self._length_sums, example)

    def run_offset(self, example: int) -> int:
        """Return where an example's runs begin."""
        return _sum_before(self.num_runs, self._run_sums, example)


def _coarse_sums(values: Int64Array) -> Int64Array:
    """Return the sums of the values before every 2^10-th: what `_sum_before` needs."""
    sums = np.add.reduceat(values, np.arange(0, len(values), _COARSE)) if len(values) else values
    return np.concatenate(([0], np.cumsum(sums)))


def _sum_before(values: Int64Array, sums: Int64Array, number: int) -> int:
    coarse = number // _COARSE
    return int(sums[coarse]) + int(values[coarse * _COARSE : number].sum())


def read_meta(segments: Iterable[Segment], columns: list[str]) -> Iterator[pa.Table]:
    """Yield some columns of what is known of the examples of segments, in order, at most a row group at a time."""
    kept: OrderedDict[tuple[Path, int], pa.Table] = OrderedDict()  # row groups, for the segments beside one another
    starts: dict[Path, Int64Array] = {}
    for segment in segments:
        path = segment.directory / META_FILE
        if path not in starts:
            starts[path] = _group_starts(path)
        bounds = starts[path]
        for group in range(int(np.searchsorted(bounds, segment.first, side="right")) - 1, len(bounds) - 1):
            first, last = int(bounds[group]), int(bounds[group + 1])
            if first >= segment.last:
                break
            if (path, group) not in kept:
                kept[path, group] = _read_group(path, group, columns)
                while len(kept) > 1 and sum(table.num_rows for table in kept.values()) > _KEPT_ROWS:
                    kept.popitem(last=False)
            kept.move_to_end((path, group))
            low, high = max(segment.first, first), min(segment.last, last)
            if high > low:
                yield kept[path, group].slice(low - first, high - low)


def _group_starts(path: Path) -> Int64Array:
    """Return the first row of every row group, and the number of rows."""
    with open_native(path, "rb") as source, pq.ParquetFile(source) as file:
        rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    return np.concatenate(([0], np.cumsum(np.array(rows, dtype=np.int64))))


def _read_group(path: Path, group: int, columns: list[str]) -> pa.Table:
    schema = pa.schema([STAGED.field(name) for name in columns])
    with open_native(path, "rb") as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
        return file.read_row_group(group, columns=columns, use_threads=False).select(columns).cast(schema)


def _mapped(path: Path, dtype: str) -> npt.NDArray[Any]:
    if path.stat().st_size == 0:  # which no system maps
        return np.zeros(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))  # slices of the plain view are cheap
