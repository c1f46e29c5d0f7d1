"""Where the lists of a page begin: Parquet's repetition and definition levels, run-length encoded.

A window is its rows one after the other: repetition level 0, then ones. No row is ever missing, so the
definition level is 1 everywhere but at a window without rows. Both are a few bytes a window, whatever its
length, and the same for all columns of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["PAGE_ROWS", "ListPage", "list_pages"]

Int64Array = npt.NDArray[np.int64]

PAGE_ROWS = 1 << 18
"""Rows of a page of a window that is longer: 1 MiB of four bytes each. Any other page holds whole windows."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """What the pages of all columns of rows have in common.

    Attributes:
        first, last: the rows ``[first, last)``.
        num_values: as Parquet counts them: an empty list is one.
        levels: repetition and definition levels as they stand in a data page of version 1.
    """

    first: int
    last: int
    num_values: int
    levels: bytes


def list_pages(row_offsets: Int64Array) -> Iterator[ListPage]:
    """Yield the pages of a row group.

    Args:
        row_offsets: shape (num_windows + 1,); of its windows, at least one.

    A group of several windows is one page: `windows_per_group` sees to it that they are short. A longer window
    is cut, which version 1 of data pages allows where a file has no offset index, as shards have none: a page
    would have to be as long as the longest window, and cannot be longer than 2 GiB.
    """
    lengths = np.diff(row_offsets)
    low, high = int(row_offsets[0]), int(row_offsets[-1])
    if len(lengths) > 1 or high - low <= PAGE_ROWS:
        yield ListPage(low, high, int(np.maximum(lengths, 1).sum()), _levels(lengths))
        return
    for first in range(low, high, PAGE_ROWS):
        num_rows = min(PAGE_ROWS, high - first)
        yield ListPage(first, first + num_rows, num_rows, _levels(np.array([num_rows]), begins=first == low))


def _levels(lengths: Int64Array, begins: bool = True) -> bytes:
    """Return the levels of lists of some lengths, the first of which may have begun on the page before."""
    starts = np.ones(len(lengths), dtype=np.int64)
    starts[0] = begins
    repetitions = _runs(np.tile([0, 1], len(lengths)), np.stack((starts, np.maximum(lengths - starts, 0)), 1).ravel())
    definitions = _runs((lengths > 0).astype(np.int64), np.maximum(lengths, 1))
    return b"".join(len(runs).to_bytes(4, "little") + runs for runs in (repetitions, definitions))


def _runs(levels: Int64Array, lengths: Int64Array) -> bytes:
    """Return runs of levels 0 and 1 in Parquet's RLE: twice the length as varint, then the level as a byte.

    Args:
        levels: shape (n,).
        lengths: shape (n,), below 2^31; of each run. Those of length 0 are left out, neighbours of one level joined.
    """
    levels, lengths = levels[lengths > 0], lengths[lengths > 0]
    heads = np.flatnonzero(np.diff(levels, prepend=-1))
    doubled = np.add.reduceat(lengths, heads) << 1
    septets = doubled[:, None] >> np.arange(0, int(doubled.max()).bit_length(), 7)
    coded = septets & 0x7F | (septets > 0x7F).astype(np.int64) << 7
    kept = np.column_stack((septets > 0, np.ones(len(heads), dtype=np.bool_)))
    return bytes(np.column_stack((coded, levels[heads])).astype(np.uint8)[kept])
