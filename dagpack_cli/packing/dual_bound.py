"""The dual bound: what the trees of a forest are worth to one window; for forests of tiny trees. Pure.

For k >= 1 let f(x) = ceil((k + 1) x / seq_len) - 1, x a number of rows. Rows that fit into one window
are together worth at most k: the sum of f is below (k + 1) / seq_len times the sum of the rows, hence
below k + 1, and whole (Fekete and Schepers, Mathematical Programming 2001). A packing divides the
leaves of each tree into parts, one a window, and the least that such parts are worth together, over
all divisions into parts that fit, is a number of the tree. Its windows are worth the sum over all
trees, so there are at least that sum divided by k, rounded up, for every k.

This sees what the sweep from the leaves up cannot: that a pair of answers kept together leaves a
rest that nobody can use, and kept apart repeats the prompt. A tree with m leaves takes 3^m / 2 steps,
so it is for forests without a larger tree than `TINY_LEAVES` leaves.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing.forest import Forest
from dagpack_cli.packing.leaf_order import LeafOrder

__all__ = ["TINY_LEAVES", "dual_bound"]

Int64s = npt.NDArray[np.int64]

TINY_LEAVES = 4
"""Leaves of the largest tree: preference pairs have two; larger trees leave small rests anyway."""

_MOST_PARTS = 32  # k; windows with more parts than this leave next to nothing free
_CHUNK = 1 << 16  # nodes in memory at a time, and those of one tree


def dual_bound(forest: Forest, seq_len: int) -> int:
    """Return the windows that any packing needs by the dual bound, 0 if a tree has more than 4 leaves.

    Args:
        forest: n nodes; every root path has at most ``seq_len`` rows, which the caller has checked.
        seq_len: most rows a window may hold.

    Time O(32 * 3^4 n) at worst, vectorised; memory for some trees at a time, so that the columns may lie in files.

    Two trees of 5 rows do not fit into 9, nor do three into two windows:

    >>> dual_bound(Forest.from_parents(np.array([-1, -1, -1]), np.array([5, 5, 5])), 9)
    3
    """
    worth = np.zeros(_MOST_PARTS + 1, dtype=np.int64)
    first = 0
    while first < forest.num_nodes:
        last = _whole_trees(forest, first)
        trees = forest.trees(first, last)
        roots = np.flatnonzero(trees.parents < 0)
        firsts = np.searchsorted(trees.leaves, np.append(roots, trees.num_nodes))
        sizes = np.diff(firsts)
        if last == first or int(sizes.max()) > TINY_LEAVES:
            return 0
        order = LeafOrder.of(trees)
        for num in range(1, TINY_LEAVES + 1):
            leaves = firsts[:-1][sizes == num] + np.arange(num)[:, None]
            usages = _usages(order.rows[leaves], order.shared[leaves])
            for k in range(1, _MOST_PARTS + 1):
                worth[k] += _least_worth(-(-(k + 1) * usages // seq_len) - 1, usages > seq_len).sum()
        first = last
    return max(-(-int(worth[k]) // k) for k in range(1, _MOST_PARTS + 1))


def _whole_trees(forest: Forest, first: int) -> int:
    """Return where the trees from ``first`` on end that begin in the next chunk; ``first`` if the last is too large."""
    stop = min(first + _CHUNK, forest.num_nodes)
    root = first + int(np.flatnonzero(forest.parents[first:stop] < 0)[-1])
    end = int(forest.ends[root])
    leaves = 0
    for low in range(root, end, _CHUNK):
        numbers = np.arange(low, min(low + _CHUNK, end))
        leaves += int(np.count_nonzero(forest.ends[numbers] == numbers + 1))
        if leaves > TINY_LEAVES:
            return first
    return end


def _usages(rows: Int64s, shared: Int64s) -> Int64s:
    """Return the rows that each set of leaves needs in one window.

    Args:
        rows: shape (m, trees), int64; rows of every leaf's path.
        shared: shape (m, trees), int64; rows shared with the leaf before.

    Returns:
        shape (2^m, trees), int64; entry s is for the leaves whose bits are set in s.
    """
    num = len(rows)
    usages = np.zeros((1 << num, rows.shape[1]), dtype=np.int64)
    for leaves in range(1, 1 << num):
        last = leaves.bit_length() - 1
        before = leaves ^ 1 << last
        common = shared[before.bit_length() : last + 1].min(axis=0) if before else 0
        usages[leaves] = usages[before] + rows[last] - common
    return usages


def _least_worth(worth: Int64s, unfit: npt.NDArray[np.bool_]) -> Int64s:
    """Return, for every tree, the least sum of worths of a division of all leaves into sets that fit.

    Args:
        worth: shape (2^m, trees), int64; of every set of leaves in one window.
        unfit: shape (2^m, trees), bool; sets that no window holds.

    Returns:
        shape (trees,), int64.
    """
    priced = np.where(unfit, 2**40, worth)
    best = priced.copy()
    best[0] = 0
    for leaves in range(1, len(worth)):
        lowest = leaves & -leaves
        part = (leaves - 1) & leaves
        while part:
            if part & lowest:
                np.minimum(best[leaves], priced[part] + best[leaves ^ part], out=best[leaves])
            part = (part - 1) & leaves
    return np.asarray(best[-1])
