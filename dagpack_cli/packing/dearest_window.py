"""The dearest window: what a window may be worth when every node of a small forest has a price. Pure.

A knapsack with precedence (Johnson and Niemi, Mathematics of Operations Research 1983): a window is
a union of root paths of leaves with at most ``seq_len`` rows, worth the prices of all its nodes. In
preorder a node is either taken, and the next node is looked at, or left out, and the end of its
subtree is. With v's parent taken, all decisions before v made and c rows left, let

    F(v, c) = the most that v and what follows can add
    G(v, c) = the same if a part of the window still has to hang below v's parent: v or a later sibling

    take(v, c) = price(v) + (F if v is a leaf else G)(v + 1, c - length(v))      where c >= length(v)
    F(v, c) = max(F(end of v, c), take(v, c))
    G(v, c) = max(G(end of v, c) if that is v's sibling, take(v, c))             else it never comes

The dearest window is worth F(0, seq_len). A row of F and G is needed only until the node before it in
its level is done, so there are as many rows as levels, and one byte a node and c for what was decided.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import Forest

__all__ = ["COVERING_THRESHOLD", "Tables", "dearest_window"]

Int64s = npt.NDArray[np.int64]

COVERING_THRESHOLD = 48
"""Nodes from which ``auto`` compiles: over a hundred windows are asked for, and that takes a second the plain way."""

_NEVER = -(2**62)  # worth of what cannot be


class Tables(NamedTuple):
    """A small forest and room for its tables, made once for many prices; kernels take it as it is.

    Attributes:
        lengths: shape (n,), int64; rows of each node's run.
        ends: shape (n,), int64; exclusive node index where the subtree ends.
        levels: shape (n + 1,), int64; 1 for a root, its parent's and 1 for others; 0 for the end of all.
        rooms: shape (n,), int64; rows left at most where the node may be taken: ``seq_len`` less its depth.
        free: shape (levels + 2, seq_len + 1), int64; rows of F.
        bound: shape (levels + 2, seq_len + 1), int64; rows of G.
        taken: shape (n, seq_len + 1), uint8; 1 if F takes the node, and 2 if G does.
    """

    lengths: Int64s
    ends: Int64s
    levels: Int64s
    rooms: Int64s
    free: Int64s
    bound: Int64s
    taken: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, forest: Forest, seq_len: int) -> Tables:
        """Return the tables of a forest whose root paths have at most ``seq_len`` rows. O(n x seq_len)."""
        levels = np.zeros(forest.num_nodes + 1, dtype=np.int64)
        for node, parent in enumerate(forest.parents.tolist()):
            levels[node] = 1 + (levels[parent] if parent >= 0 else 0)
        rows = (int(levels.max()) + 2, seq_len + 1)
        free, bound = np.zeros(rows, dtype=np.int64), np.full(rows, _NEVER)
        taken = np.zeros((forest.num_nodes, seq_len + 1), dtype=np.uint8)
        return cls(forest.lengths, forest.ends.astype(np.int64), levels, seq_len - forest.depths, free, bound, taken)


def dearest_window(tables: Tables, prices: Int64s, *, engine: Engine = "auto") -> tuple[int, Int64s]:
    """Return what the dearest window is worth, and its nodes.

    Args:
        tables: of a forest of n nodes; overwritten.
        prices: shape (n,), int64, >= 0; their sum is below 2^62.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 48 nodes.

    Returns:
        worth: of the window, 0 for an empty forest.
        nodes: shape (k,), int64, ascending. Of equal windows it is the one that leaves out what it can, first to last.

    Time O(n x seq_len), about a nanosecond each in the kernel.

    >>> forest = Forest.from_parents(np.array([-1, 0, 0]), np.array([5, 2, 3]))
    >>> dearest_window(Tables.of(forest, 9), np.array([0, 1, 2]))
    (2, array([0, 2]))
    """
    num = len(tables.lengths)
    if num == 0:
        return 0, np.zeros(0, dtype=np.int64)
    if uses_kernel(engine, num, COVERING_THRESHOLD):
        from dagpack_cli.packing import kernels_covering

        kernels_covering.fill_tables(tables, prices)
    else:
        _fill_tables(tables, prices)
    return int(tables.free[1, -1]), _taken_nodes(tables)


def _fill_tables(tables: Tables, prices: Int64s) -> None:
    """Fill F, G and what was decided, the last node first; level by level, row c is for c rows left."""
    free, bound, levels = tables.free, tables.bound, tables.levels.tolist()
    columns = (column.tolist() for column in (tables.lengths, tables.ends, tables.rooms, prices))
    for node, (length, end, room, price) in reversed(list(enumerate(zip(*columns, strict=True)))):
        level, behind = levels[node], levels[end]
        left = slice(0, room + 1)
        if behind != level:  # the last child of its parent, or the last root: rows of its level are of other parents
            free[level, left] = free[behind, left]
            bound[level, left] = _NEVER
        below = free[behind] if end == node + 1 else bound[level + 1]
        take = below[: room + 1 - length] + price
        fits = slice(length, room + 1)
        tables.taken[node, :length] = 0
        tables.taken[node, fits] = (take > free[level, fits]) + 2 * (take > bound[level, fits]).astype(np.uint8)
        np.maximum(free[level, fits], take, out=free[level, fits])
        np.maximum(bound[level, fits], take, out=bound[level, fits])


def _taken_nodes(tables: Tables) -> Int64s:
    """Return the nodes of the window that the tables found."""
    nodes, node, left, wanted = [], 0, tables.free.shape[1] - 1, 1
    while node < len(tables.lengths):
        end = int(tables.ends[node])
        if tables.taken[node, left] & wanted:
            nodes.append(node)
            left -= int(tables.lengths[node])
            wanted = 1 if end == node + 1 else 2
            node += 1
        else:
            node = end
    return np.array(nodes, dtype=np.int64)
