"""The depth-first walk, closed at whole leaves: each window holds as many next leaves as fit. Pure.

The walk of `walk` cuts runs, and what is cut off is replayed: a window's tail holds part of a leaf
whose whole path the next window has again. Closing before the leaf that does not fit whole never
takes more windows: a window's leaves, if each counts where its last row is, are consecutive, and of
all divisions of the leaves into consecutive groups that fit, the greedy one has the fewest groups
(a part of a group that fits, fits). And a window holds no row that none of its leaves needs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing.forest import Forest
from dagpack_cli.packing.leaf_order import LeafOrder

__all__ = ["closed_walk"]


def closed_walk(forest: Forest, seq_len: int) -> npt.NDArray[np.int64]:
    """Return the window of each leaf when a window is filled in preorder until a leaf does not fit whole.

    Args:
        forest: n nodes; every root path has at most ``seq_len`` rows.
        seq_len: most rows a window may hold.

    Returns:
        shape (num_leaves,), int64, aligned with ``forest.leaves``, non-decreasing from 0 without gaps.

    Raises:
        TreeError: a root path is longer than ``seq_len``.

    Time O(n + w log m) for m leaves in w windows, memory O(n).

    >>> forest = Forest.from_parents(np.array([-1, 0, 0, 0]), np.array([5, 2, 3, 1]))
    >>> closed_walk(forest, 9)
    array([0, 1, 1])
    """
    forest.check_fits(seq_len)
    order = LeafOrder.of(forest)
    # A window from leaf i to leaf j has rows[i] + added[j] - added[i] rows.
    added = np.cumsum(order.rows - order.shared)
    opens = np.zeros(len(added), dtype=np.int64)
    first = 0
    while first < len(added):
        first = int(np.searchsorted(added, seq_len - order.rows[first] + added[first], side="right"))
        if first < len(added):
            opens[first] = 1
    return np.cumsum(opens)
