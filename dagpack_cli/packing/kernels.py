"""What all compiled loops of the packers share, and the small ones; imported only when they are needed.

Every kernel has a plain twin in the module that calls it, which says what it computes. No
recursion: tries are as deep as a corpus makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit  # type: ignore[import-untyped, unused-ignore]

__all__ = ["Int32s", "Int64s", "Number", "climb", "forest_columns", "kernel", "next_fit", "walk_starts"]

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Number = Any  # an int64 scalar: a type checker tells int from np.int64, a compiled kernel does not

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Return a function compiled on first use, cached on disk, that lets other threads run."""
    return cast(Function, njit(cache=True, nogil=True)(function))


@kernel
def forest_columns(parents: Int32s, lengths: Int64s) -> tuple[bool, Int32s, Int64s]:
    """Return (valid, ends, depths) of (n,) parents >= -1; ends and depths are void if not valid. O(n).

    Valid is preorder: with parents before children, a subtree is contiguous exactly when its last
    node lies as far away as it has nodes.
    """
    num = len(parents)
    ends = np.arange(1, num + 1).astype(np.int32)
    sizes = np.ones(num, dtype=np.int32)
    depths = np.zeros(num, dtype=np.int64)
    for node in range(num - 1, -1, -1):
        parent = parents[node]
        if parent >= node or ends[node] - node != sizes[node]:
            return False, ends, depths
        if parent >= 0:
            ends[parent] = max(ends[parent], ends[node])
            sizes[parent] += sizes[node]
    for node in range(num):
        parent = parents[node]
        if parent >= 0:
            depths[node] = depths[parent] + lengths[parent]
    return True, ends, depths


@kernel
def climb(parents: Int32s, starts: Int64s, stops: Int64s) -> tuple[Int64s, Int32s]:
    """Return (counts, nodes) of `placement.climb`: a pass that counts, a pass that fills from behind."""
    counts = np.zeros(len(starts), dtype=np.int64)
    for item in range(len(starts)):
        node = starts[item]
        while node > stops[item]:
            counts[item] += 1
            node = np.int64(parents[node])
    nodes = np.empty(counts.sum(), dtype=np.int32)
    end = 0
    for item in range(len(starts)):
        end += counts[item]
        at = end
        node = starts[item]
        while node > stops[item]:
            at -= 1
            nodes[at] = node
            node = np.int64(parents[node])
    return counts, nodes


@kernel
def walk_starts(offsets: Int64s, depths: Int64s, seq_len: int) -> Int64s:
    """Return the first fresh position of every window of `walk.walk_forest`. O(n)."""
    starts = np.empty(1024, dtype=np.int64)
    num_windows = 0
    position = np.int64(0)
    node = 0
    while position < offsets[-1]:
        if num_windows == len(starts):
            starts = np.concatenate((starts, np.empty_like(starts)))
        starts[num_windows] = position
        num_windows += 1
        while offsets[node + 1] <= position:
            node += 1
        position += seq_len - (depths[node] + position - offsets[node])
    return starts[:num_windows].copy()


@kernel
def next_fit(lengths: Int64s, seq_len: int, windows: Int64s) -> None:
    """Fill in the window of every item of `chains.next_fit`. O(n)."""
    window = 0
    used = np.int64(0)
    for item in range(len(lengths)):
        if used + lengths[item] > seq_len:
            window += 1
            used = np.int64(0)
        used += lengths[item]
        windows[item] = window
