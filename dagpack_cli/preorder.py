"""Preorder forests: parents, depths and subtree ends of one another, and their checks. Pure.

A forest of n entries (rows of a window, nodes of a trie) is stored in preorder: a parent stands
before its children, and everything below an entry follows it without a gap. Then one integer per
entry, the exclusive end of its subtree, stands for the whole (n, n) ancestor relation:
``k`` is ``q`` itself or an ancestor of it exactly when ``k <= q < subtree_ends[k]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import TreeError

__all__ = ["IntArray", "check_parents", "depths_from_parents", "parents_from_depths", "subtree_ends"]

IntArray = npt.NDArray[np.signedinteger[Any]]


def subtree_ends(parents: IntArray) -> npt.NDArray[np.int32]:
    """Return the exclusive end of every entry's subtree in a preorder forest.

    Args:
        parents: shape (n,), any integer dtype; the parent's index, -1 for a root.

    Returns:
        shape (n,), int32. ``ends[i]`` is the first entry after ``i`` that is not below ``i``;
        a leaf has ``ends[i] == i + 1``.

    Raises:
        TreeError: ``parents`` is not a preorder forest; the message names the first bad entry.

    Time O(n + k log k) for k entries that do not continue their predecessor, memory O(n).
    ``parents`` is not modified.

    >>> #       a  b  c  d  e       a-b-c, a-b-d, a-e
    >>> subtree_ends(np.array([-1, 0, 1, 1, 0]))
    array([5, 4, 3, 4, 5], dtype=int32)
    """
    parents = np.asarray(parents)
    depths = depths_from_parents(parents)
    return _ends_of_depths(depths)


def _ends_of_depths(depths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the next entry that is not deeper, for every entry: a stack over the breaks only.

    Entries that go one deeper than their predecessor form runs; a run's entries end together
    with the run unless a later, shallower break ends them, so only breaks touch the stack.
    """
    num = len(depths)
    ends = np.full(num, num, dtype=np.int32)
    if num == 0:
        return ends
    breaks = np.flatnonzero(depths[1:] <= depths[:-1]) + 1
    starts = np.concatenate(([0], breaks))
    # The open path: runs (first entry, depth of its first entry, depth just below its last).
    stack: list[tuple[int, int, int]] = []
    run_lasts = np.concatenate((breaks, [num])) - 1
    first_depths = depths[starts].tolist()
    last_depths = depths[run_lasts].tolist()
    for start, first, last in zip(starts.tolist(), first_depths, last_depths, strict=True):
        while stack:
            entry, low, high = stack[-1]
            if high <= first:
                break
            stack.pop()
            closed = max(low, first)
            ends[entry + closed - low : entry + high - low] = start
            if closed > low:
                stack.append((entry, low, closed))
                break
        stack.append((start, first, last + 1))
    return ends


def depths_from_parents(parents: IntArray) -> npt.NDArray[np.int32]:
    """Return the number of ancestors of every entry of a preorder forest.

    Args:
        parents: shape (n,), any integer dtype; -1 for a root.

    Returns:
        shape (n,), int32; 0 for a root.

    Raises:
        TreeError: as `check_parents`.

    Time O(n) plus a Python step per entry whose parent is not its predecessor.

    >>> depths_from_parents(np.array([-1, 0, 1, 1, -1]))
    array([0, 1, 2, 2, 0], dtype=int32)
    """
    parents = np.asarray(parents)
    if parents.ndim != 1:
        raise TreeError("parents", f"{parents.ndim} dimensions", "one dimension")
    num = len(parents)
    index = np.arange(num, dtype=np.int64)
    bad = np.flatnonzero((parents >= index) | (parents < -1))
    if len(bad):
        row = int(bad[0])
        raise TreeError(
            "parents", f"entry {row:,} has parent {int(parents[row]):,}", f"-1 to {row - 1:,}, an earlier entry"
        )
    if num == 0:
        return np.zeros(0, dtype=np.int32)
    # Runs of entries that hang below their predecessor; entry 0 starts one whatever it says.
    starts = np.concatenate(([0], np.flatnonzero(parents[1:] != index[:-1]) + 1))
    run_ends = np.concatenate((starts[1:], [num])).tolist()
    # The open path as runs: each new run must attach to an entry that is still open.
    path: list[tuple[int, int, int]] = []  # (first entry, exclusive end still open, depth of first)
    offsets = np.zeros(len(starts), dtype=np.int64)
    for number, (start, end, parent) in enumerate(
        zip(starts.tolist(), run_ends, parents[starts].tolist(), strict=True)
    ):
        while path and parent < path[-1][0]:
            path.pop()
        if parent == -1:
            depth = 0
        else:
            first, open_end, first_depth = path[-1] if path else (0, 0, 0)
            if parent >= open_end:
                raise TreeError(
                    "parents",
                    f"entry {start:,} has parent {parent:,}, whose subtree ended before",
                    "preorder: a subtree without gaps",
                )
            path[-1] = (first, parent + 1, first_depth)
            depth = first_depth + parent - first + 1
        path.append((start, end, depth))
        offsets[number] = depth - start
    return (index + np.repeat(offsets, np.diff(np.append(starts, num)))).astype(np.int32)


def check_parents(parents: IntArray) -> None:
    """Raise `TreeError` unless ``parents`` (n,) describes a forest in preorder. O(n)."""
    depths_from_parents(parents)


def parents_from_depths(depths: IntArray) -> npt.NDArray[np.int32]:
    """Return the parents of a preorder forest given the depth of every entry.

    Args:
        depths: shape (n,), any integer dtype; an entry is at most one deeper than the one before it.

    Returns:
        shape (n,), int32; -1 for a root.

    Raises:
        TreeError: a negative depth, or a jump by more than one; the message names the entry.

    Time O(n log n) worst case (a stable sort), memory O(n).

    >>> parents_from_depths(np.array([0, 1, 2, 2, 0]))
    array([-1,  0,  1,  1, -1], dtype=int32)
    """
    depths = np.asarray(depths).astype(np.int64)
    num = len(depths)
    if num == 0:
        return np.zeros(0, dtype=np.int32)
    before = np.concatenate(([-1], depths[:-1]))
    bad = np.flatnonzero((depths < 0) | (depths > before + 1))
    if len(bad):
        row = int(bad[0])
        raise TreeError("depths", f"entry {row:,} has depth {int(depths[row]):,}", f"0 to {int(before[row]) + 1:,}")
    # The parent is the nearest earlier entry one shallower: sort entries by depth, then search.
    order = np.argsort(depths, kind="stable")
    keys = depths[order] * (num + 1) + order
    index = np.arange(num, dtype=np.int64)
    position = np.searchsorted(keys, (depths - 1) * (num + 1) + index, side="left") - 1
    parents = np.where(depths > 0, order[np.maximum(position, 0)], -1)
    return parents.astype(np.int32)
