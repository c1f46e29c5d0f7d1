"""Layouts that merge nothing: examples as items of a length, windows as bins. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import TreeError
from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.leaf_order import number_by_first

__all__ = ["best_fit_decreasing", "next_fit", "one_each"]


def next_fit(lengths: npt.NDArray[np.integer[Any]], seq_len: int, *, engine: Engine = "auto") -> npt.NDArray[np.int64]:
    """Return the window of each item when a window is filled in input order until one does not fit.

    Never looks back, sorts or splits, so it streams, and neighbours stay neighbours. An item that
    fills its window exactly opens no empty one.

    Args:
        lengths: shape (n,), any integer dtype; rows of each item, 1 to ``seq_len``.
        seq_len: most rows a window may hold.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 items.

    Returns:
        shape (n,), int64, non-decreasing from 0 without gaps.

    Raises:
        TreeError: an item is longer than ``seq_len`` or has no row.

    Time and memory O(n).

    >>> next_fit(np.array([3, 2, 4]), 6)
    array([0, 0, 1])
    """
    items = _checked_lengths(lengths, seq_len)
    if uses_kernel(engine, len(items)):
        from dagpack_cli.packing import kernels

        return kernels.next_fit(items, seq_len)
    # Cumulative rows: a window that begins after `full` rows ends before full + seq_len is passed.
    cumulative = np.cumsum(items).tolist()
    firsts = []
    first = 0
    while first < len(cumulative):
        firsts.append(first)
        full = cumulative[first - 1] if first else 0
        first = bisect_right(cumulative, full + seq_len, lo=first)
    opens = np.zeros(len(items), dtype=np.int64)
    opens[firsts[1:]] = 1
    return np.cumsum(opens)


def best_fit_decreasing(
    lengths: npt.NDArray[np.integer[Any]], seq_len: int, *, engine: Engine = "auto"
) -> npt.NDArray[np.int64]:
    """Return the window of each item when the longest item left goes where it leaves least room.

    Items go by length, then input order; among windows with equal room the one opened first is
    filled. Asymptotically at most 11/9 of the fewest windows (Johnson et al., SIAM J. Computing 1974).

    Args:
        lengths: shape (n,), any integer dtype; rows of each item, 1 to ``seq_len``.
        seq_len: most rows a window may hold.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 items.

    Returns:
        shape (n,), int64; windows numbered by their first item in input order.

    Raises:
        TreeError: an item is longer than ``seq_len`` or has no row.

    Time O(n log n), memory O(n).

    >>> best_fit_decreasing(np.array([3, 2, 4]), 6)
    array([0, 1, 1])
    """
    items = _checked_lengths(lengths, seq_len)
    order = np.argsort(-items, kind="stable")
    if uses_kernel(engine, len(items)):
        from dagpack_cli.packing import kernels

        # Items without sharing are a forest of lone nodes. In decreasing order a bundle's first
        # leaf is the item that opened it, so both break ties alike.
        in_order = kernels.bundle(np.arange(1, len(items) + 1, dtype=np.int32), items[order], seq_len)
    else:
        in_order = _plain_best_fit(items[order].tolist(), seq_len)
    windows = np.empty(len(items), dtype=np.int64)
    windows[order] = in_order
    return number_by_first(windows)


def one_each(lengths: npt.NDArray[np.integer[Any]], seq_len: int) -> npt.NDArray[np.int64]:
    """Return the window of each item when every item has a window of its own.

    Args:
        lengths: shape (n,), any integer dtype; rows of each item, 1 to ``seq_len``.
        seq_len: most rows a window may hold.

    Returns:
        shape (n,), int64: 0 to n - 1.

    Raises:
        TreeError: an item is longer than ``seq_len`` or has no row.

    >>> one_each(np.array([3, 2]), 6)
    array([0, 1])
    """
    return np.arange(len(_checked_lengths(lengths, seq_len)), dtype=np.int64)


def _plain_best_fit(items: list[int], seq_len: int) -> npt.NDArray[np.int64]:
    """Return the window of each item, given in decreasing order; windows numbered as opened."""
    rooms: list[tuple[int, int]] = []  # (room left, window) of windows that are not full, ascending
    windows = np.empty(len(items), dtype=np.int64)
    num_windows = 0
    for number, length in enumerate(items):
        at = bisect_left(rooms, (length, -1))
        if at < len(rooms):
            room, window = rooms.pop(at)
        else:
            room, window = seq_len, num_windows
            num_windows += 1
        windows[number] = window
        if room > length:
            insort(rooms, (room - length, window))
    return windows


def _checked_lengths(lengths: npt.NDArray[np.integer[Any]], seq_len: int) -> npt.NDArray[np.int64]:
    lengths = np.asarray(lengths)
    if lengths.ndim != 1 or (len(lengths) and lengths.dtype.kind not in "iu"):
        raise TreeError("lengths", f"shape {lengths.shape}, dtype {lengths.dtype}", "one dimension of integers")
    if not 1 <= seq_len < 2**31:
        raise TreeError("seq_len", f"{seq_len:,}", f"1 to {2**31 - 1:,}")
    bad = np.flatnonzero((lengths < 1) | (lengths > seq_len))
    if len(bad):
        item = int(bad[0])
        raise TreeError("lengths", f"item {item:,} has {int(lengths[item]):,} rows", f"1 to {seq_len:,}")
    return np.array(lengths, dtype=np.int64)
