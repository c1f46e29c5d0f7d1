"""Leaves in preorder and what the paths of any two of them share: all a packing's cost depends on. Pure.

A packing is a partition of the leaves, and a window holds the union of its leaves' root paths. With
the leaves of a window in preorder, each adds the rows of its path that it does not share with the
one before: the union has D(first) + sum (D(leaf) - shared(previous, leaf)) rows. Two leaves share
the least of what neighbours between them share, so two numbers a leaf and a range-minimum structure
stand for the whole forest. The structure keeps minima of blocks and of runs of 2^k blocks (the
sparse table of Bender and Farach-Colton, LATIN 2000) and scans inside blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import TreeError
from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import Forest

__all__ = ["LEAF_BLOCK", "Cost", "LeafOrder", "SharedRows", "number_by_first", "packing_cost", "shared_rows"]

Int64s = npt.NDArray[np.int64]

LEAF_BLOCK = 32
"""Leaves of a block of the range-minimum structure: a query scans at most two blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a packing computes.

    Attributes:
        windows: windows.
        rows: rows summed over windows, repeated ones included.
        attention: attention edges summed over windows: depth + 1 a row.
    """

    windows: int
    rows: int
    attention: int

    @property
    def key(self) -> tuple[int, int, int]:
        """Return what packings are compared by: windows, then rows, then attention."""
        return self.windows, self.rows, self.attention


class LeafOrder(NamedTuple):
    """The leaves of a forest in preorder; a named tuple, so that kernels take it as it is.

    Attributes:
        rows: shape (m,), int64; rows of each leaf's whole root path.
        shared: shape (m,), int64; rows it shares with the path of the leaf before, 0 for the first.
        minima: shape (k, b), int64; ``minima[j, i]`` is the least of ``shared`` over the blocks of
            `LEAF_BLOCK` leaves from i to i + 2^j - 1, as far as there are that many.
    """

    rows: Int64s
    shared: Int64s
    minima: Int64s

    @classmethod
    def of(cls, forest: Forest) -> LeafOrder:
        """Return the leaf order of a forest. O(n + m log m / `LEAF_BLOCK`)."""
        leaves = forest.leaves
        rows = forest.depths[leaves] + forest.lengths[leaves]
        shared = np.zeros(len(leaves), dtype=np.int64)
        # The node after a leaf hangs below the deepest node that the next leaf shares with it.
        shared[1:] = forest.depths[leaves[:-1] + 1]
        return cls(rows, shared, _block_minima(shared))


def _block_minima(shared: Int64s) -> Int64s:
    """Return the sparse table over blocks; a run of blocks that leaves the end holds what there is."""
    num_blocks = max(1, -(-len(shared) // LEAF_BLOCK))
    padded = np.full(num_blocks * LEAF_BLOCK, np.iinfo(np.int64).max)
    padded[: len(shared)] = shared
    table = [padded.reshape(num_blocks, LEAF_BLOCK).min(axis=1)]
    span = 1
    while 2 * span <= num_blocks:
        wider = table[-1].copy()
        np.minimum(wider[:-span], table[-1][span:], out=wider[:-span])
        table.append(wider)
        span *= 2
    return np.stack(table)


def shared_rows(order: LeafOrder, firsts: Int64s, seconds: Int64s) -> Int64s:
    """Return how many rows the paths of pairs of leaves share.

    Args:
        order: m leaves.
        firsts: shape (k,), int64, in [0, m).
        seconds: shape (k,), int64, in (first, m).

    Returns:
        shape (k,), int64.

    Time O(k), vectorised; memory O(k).
    """
    low, high = firsts + 1, seconds + 1  # a half-open range of ``shared``
    first_block, stop_block = -(-low // LEAF_BLOCK), high // LEAF_BLOCK
    head_stops = np.minimum(first_block * LEAF_BLOCK, high)
    tail_starts = np.maximum(stop_block * LEAF_BLOCK, low)
    least = np.full(len(firsts), np.iinfo(np.int64).max)
    for step in range(LEAF_BLOCK):
        for at, inside in ((low + step, low + step < head_stops), (tail_starts + step, tail_starts + step < high)):
            least[inside] = np.minimum(least[inside], order.shared[at[inside]])
    spans = stop_block - first_block
    wide = np.flatnonzero(spans > 0)
    if len(wide):
        levels = np.frexp(spans[wide].astype(np.float64))[1] - 1  # the exponent is exact: floor(log2)
        left = order.minima[levels, first_block[wide]]
        right = order.minima[levels, stop_block[wide] - (1 << levels)]
        least[wide] = np.minimum(least[wide], np.minimum(left, right))
    return least


class SharedRows:
    """How many rows two leaves share, one pair at a time: the plain ways' table over single leaves."""

    def __init__(self, order: LeafOrder) -> None:
        level: list[int] = order.shared.tolist()
        self._levels: list[list[int]] = [level]
        while 1 << len(self._levels) <= len(level):
            below, span = self._levels[-1], 1 << (len(self._levels) - 1)
            self._levels.append(list(map(min, below, below[span:])))

    def __call__(self, first: int, second: int) -> int:
        """Return the rows that the paths of leaves ``first < second`` share. O(1)."""
        level = (second - first).bit_length() - 1
        row = self._levels[level]
        return min(row[first + 1], row[second + 1 - (1 << level)])


def number_by_first(windows: Int64s) -> Int64s:
    """Return window numbers renumbered by the first leaf of each window.

    Args:
        windows: shape (m,), int64; dense numbers from 0 on.
    """
    num = int(windows.max(initial=-1)) + 1
    firsts = np.empty(num, dtype=np.int64)
    # Where an index repeats, the last assignment stays: the first leaf, taken backwards.
    firsts[windows[::-1]] = np.arange(len(windows) - 1, -1, -1)
    ranks = np.empty(num, dtype=np.int64)
    ranks[np.argsort(firsts)] = np.arange(num)
    return np.asarray(ranks[windows], dtype=np.int64)


def packing_cost(order: LeafOrder, leaf_windows: Int64s, *, engine: Engine = "auto") -> Cost:
    """Return what a packing costs, without making its windows.

    Args:
        order: m leaves.
        leaf_windows: shape (m,), int64; window numbers in [0, m), dense.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 leaves.

    Raises:
        TreeError: the wrong number of leaves, or a number outside [0, m).

    Time O(m log m), O(m) for the kernel; exact while attention is below 2^63.

    >>> forest = Forest.from_parents(np.array([-1, 0, 0]), np.array([5, 2, 3]))
    >>> packing_cost(LeafOrder.of(forest), np.array([0, 0])).key
    (1, 10, 49)
    """
    num = len(order.rows)
    if leaf_windows.shape != (num,):
        raise TreeError("leaf_windows", f"shape {leaf_windows.shape}", f"({num},), one entry a leaf")
    if num == 0:
        return Cost(windows=0, rows=0, attention=0)
    low, high = int(leaf_windows.min()), int(leaf_windows.max())
    if low < 0 or high >= num:
        raise TreeError("leaf_windows", f"numbers from {low:,} to {high:,}", f"0 to {num - 1:,}")
    if uses_kernel(engine, num):
        from dagpack_cli.packing import kernels_polish

        rows, attention = kernels_polish.partition_cost(order, leaf_windows, high + 1)
        return Cost(windows=high + 1, rows=int(rows), attention=int(attention))
    by_window = np.argsort(leaf_windows, kind="stable")
    same = leaf_windows[by_window[1:]] == leaf_windows[by_window[:-1]]
    shared = shared_rows(order, by_window[:-1][same], by_window[1:][same])
    return Cost(
        windows=high + 1,
        rows=int(order.rows.sum() - shared.sum()),
        attention=int(_triangle(order.rows).sum() - _triangle(shared).sum()),
    )


def _triangle(rows: Int64s) -> Int64s:
    """Return the attention edges of paths: a row at depth d sees d + 1."""
    return rows * (rows + 1) // 2
