"""The mask of a window as few shapes: a triangle and a rectangle for every run, whatever its length.

A *run* is a stretch of rows that follow one another, with no branch inside: a radix node of the
window. Every row of it sees the rows of the run up to itself (a triangle), and every row behind it in
its subtree sees all of it (a rectangle). Nothing else is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagpack_cli.preorder import subtree_ends

__all__ = ["RowRun", "coverage", "runs_of_rows"]


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows ``start`` to ``end``, half-open; the parent row of the first (-1 at a root); its subtree's end."""

    start: int
    end: int
    parent: int
    subtree_end: int


def runs_of_rows(parents: npt.NDArray[np.int32]) -> list[RowRun]:
    """Return the runs of a window in order; they tile it.

    Args:
        parents: shape (num_rows,), int32, preorder; -1 at a root.

    >>> [(run.start, run.end, run.subtree_end) for run in runs_of_rows(np.array([-1, 0, 1, 1], np.int32))]
    [(0, 2, 4), (2, 3, 3), (3, 4, 4)]
    """
    if not len(parents):
        return []
    index = np.arange(len(parents))
    children = np.bincount(parents[parents >= 0], minlength=len(parents))
    heads = parents != index - 1
    heads[0] = True
    heads[1:] |= children[:-1] > 1
    starts = np.flatnonzero(heads)
    ends = np.append(starts[1:], len(parents))
    closes = subtree_ends(parents)
    rows = zip(starts.tolist(), ends.tolist(), parents[starts].tolist(), closes[starts].tolist(), strict=True)
    return [RowRun(*row) for row in rows]


def coverage(parents: npt.NDArray[np.int32], cells: int) -> npt.NDArray[np.float64]:
    """Return what part of every square of a mask is allowed, where runs are too many to draw.

    Args:
        parents: shape (num_rows,), int32, preorder.
        cells: squares a side, at most ``num_rows``.

    Returns:
        shape (cells, cells): queries down, keys across; from 0 to 1.

    Time O(num_rows x cells); memory O(cells x cells).
    """
    rows = len(parents)
    closes = subtree_ends(parents).astype(np.float64)
    bounds = np.arange(cells + 1) * rows // cells
    low, width = bounds[:-1].astype(np.float64), np.diff(bounds).astype(np.float64)
    found = np.zeros((cells, cells))
    for column in range(cells):  # a key is used by the rows from itself to the end of its subtree
        keys = np.arange(bounds[column], bounds[column + 1])
        used = np.clip(closes[keys][:, None] - low, 0.0, width) - np.clip(keys[:, None] - low, 0.0, width)
        found[:, column] = used.sum(axis=0) / (width * width[column])
    return found
