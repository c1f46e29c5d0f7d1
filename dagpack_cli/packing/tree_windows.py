"""Windows divided at trees, and joined again: what lets the polish work on one tree at a time. Pure.

Leaves of different trees share no more than all leaves of the forest do. What a window holds of one tree is
therefore an item, and the windows are bins: if each tree's windows are full but one, packing those ones by best fit
loses next to nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing.chains import best_fit_decreasing
from dagpack_cli.packing.engine import Engine
from dagpack_cli.packing.leaf_order import LeafOrder, shared_rows

__all__ = ["better_joined", "divide_windows", "join_windows", "rows_of_windows"]

Int64s = npt.NDArray[np.int64]


def divide_windows(order: LeafOrder, leaf_windows: Int64s) -> tuple[Int64s, Int64s]:
    """Return windows of one tree each, and which of them are each tree's.

    A tree ends where two leaves share no more than all leaves do.

    Args:
        order: m >= 1 leaves.
        leaf_windows: shape (m,), int64; window numbers from 0 on.

    Returns:
        windows: shape (m,), int64; numbered tree by tree, dense.
        trees: shape (t, 4), int64; of each tree the first window, how many windows, the first leaf and the
            exclusive end of its leaves.

    Time O(m log m), memory O(m).

    >>> order = LeafOrder(np.array([5, 6, 7]), np.array([0, 3, 0]), np.array([[0]]))
    >>> windows, trees = divide_windows(order, np.array([0, 1, 1]))
    >>> windows.tolist(), trees.tolist()
    ([0, 1, 2], [[0, 2, 0, 2], [2, 1, 2, 3]])
    """
    is_first = np.append(True, order.shared[1:] == _common_rows(order))
    firsts = np.flatnonzero(is_first)
    num = int(leaf_windows.max()) + 1
    numbers, windows = np.unique((np.cumsum(is_first) - 1) * num + leaf_windows, return_inverse=True)
    lows = np.searchsorted(numbers, np.arange(len(firsts) + 1) * num)
    stops = np.append(firsts[1:], len(leaf_windows))
    return windows.astype(np.int64), np.stack([lows[:-1], np.diff(lows), firsts, stops], axis=1)


def join_windows(order: LeafOrder, leaf_windows: Int64s, seq_len: int, *, engine: Engine = "auto") -> Int64s:
    """Return windows of one tree each put together by best fit, the fullest first.

    Args:
        order: m >= 1 leaves.
        leaf_windows: shape (m,), int64; of one tree each, numbers from 0 on; some may be missing.
        seq_len: most rows a window may hold, and none of these holds more.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 windows.

    Returns:
        shape (m,), int64, dense.

    Time O(m log m), memory O(m).

    >>> order = LeafOrder(np.array([5, 6, 3]), np.array([0, 0, 0]), np.array([[0]]))
    >>> join_windows(order, np.array([0, 2, 4]), 9).tolist()
    [0, 1, 1]
    """
    windows = np.unique(leaf_windows, return_inverse=True)[1].astype(np.int64)
    if len(order.rows) == 1:
        return windows
    # All leaves share the first rows, which each window holds once.
    common = _common_rows(order)
    return best_fit_decreasing(rows_of_windows(order, windows) - common, seq_len - common, engine=engine)[windows]


def better_joined(
    order: LeafOrder, leaf_windows: Int64s, divided: Int64s, seq_len: int, *, engine: Engine = "auto"
) -> Int64s:
    """Return windows, or divided ones joined if those are fewer, or as many with a larger sum of squared slacks.

    Args:
        order: m >= 1 leaves.
        leaf_windows: shape (m,), int64, dense.
        divided: shape (m,), int64; windows of one tree each, as `join_windows` takes them.
        seq_len: most rows a window may hold, and none of these holds more.
        engine: as `join_windows` takes it.

    Returns:
        shape (m,), int64, dense.

    Time O(m log m), memory O(m).
    """
    joined = join_windows(order, divided, seq_len, engine=engine)
    slacks = [seq_len - rows_of_windows(order, windows) for windows in (leaf_windows, joined)]
    before, after = ((-len(slack), int((slack**2).sum())) for slack in slacks)
    return joined if after > before else leaf_windows


def rows_of_windows(order: LeafOrder, leaf_windows: Int64s) -> Int64s:
    """Return the rows of each window: shape (windows,), int64.

    Args:
        order: m leaves.
        leaf_windows: shape (m,), int64, dense.

    Time O(m log m), memory O(m).
    """
    by_window = np.argsort(leaf_windows, kind="stable")
    numbers = leaf_windows[by_window]
    added = order.rows[by_window]
    again = np.flatnonzero(numbers[1:] == numbers[:-1])
    added[again + 1] -= shared_rows(order, by_window[again], by_window[again + 1])
    rows = np.zeros(int(leaf_windows.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(rows, numbers, added)
    return rows


def _common_rows(order: LeafOrder) -> int:
    """Return the rows that all leaves share; of a single leaf none."""
    return int(order.shared[1:].min()) if len(order.shared) > 1 else 0
