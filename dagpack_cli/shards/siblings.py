"""The order in which subtrees follow one another inside a window. Pure: arrays in, arrays out.

Rows of a window may stand in any preorder of its forest: which of a node's children comes first is free.
A row's mask is an interval, from the row to its subtree's end. With the largest subtree first, long
intervals begin early and what is small lies together at their ends: fewer blocks of the mask are
neither full nor empty than in the order of the tokens, and somewhat fewer are not empty.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["largest_first"]

Int64Array = npt.NDArray[np.int64]


def largest_first(
    windows: Int64Array, parents: Int64Array, lengths: Int64Array, subtree_ends: Int64Array
) -> Int64Array:
    """Return instances in the preorder in which every node's children come by decreasing rows of their subtrees.

    The roots of a window are siblings too. Equal ones stay as they are, so an order made this way stays.

    Args:
        windows: shape (n,), int64, not decreasing; the window of each instance.
        parents: shape (n,), int64; in preorder, -1 at a root.
        lengths: shape (n,), int64; rows of each, 0 where it has none.
        subtree_ends: shape (n,), int64; exclusive, in instances.

    Returns:
        shape (n,), int64: ``order[i]`` is the instance that comes i-th. Windows stay where they are.

    Time O(n log n), memory O(n).

    >>> one_window, parents = np.zeros(4, dtype=np.int64), np.array([-1, 0, 0, 2])
    >>> largest_first(one_window, parents, np.array([5, 1, 2, 2]), np.array([4, 2, 4, 4]))
    array([0, 2, 3, 1])
    """
    num = len(windows)
    numbers = np.arange(num)
    row_sums = np.concatenate(([0], np.cumsum(lengths)))
    sizes = row_sums[subtree_ends] - row_sums[:-1]
    roots = parents < 0
    families = np.where(roots, -1 - windows, parents)
    arranged = np.lexsort((-sizes, families))  # stable
    members = (subtree_ends - numbers)[arranged]
    before = np.cumsum(members) - members
    heads = np.flatnonzero(np.diff(families[arranged], prepend=num) != 0)
    before -= np.repeat(before[heads], np.diff(heads, append=num))
    # An instance stands so far behind its parent, or its window's start: 1, and the subtrees before its own.
    steps = np.empty(num, dtype=np.int64)
    steps[arranged] = before
    steps += np.where(roots, np.searchsorted(windows, windows), 1)
    # Its place is the sum over its path, for which each step counts from its instance to its subtree's end.
    changes = np.append(steps, 0)
    np.subtract.at(changes, subtree_ends, steps)
    order = np.empty(num, dtype=np.int64)
    order[np.cumsum(changes[:-1])] = numbers
    return order
