"""Layouts that merge nothing: examples as items of a length, windows as bins. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import TreeError
from dagpack_cli.memory import Zeros, spans
from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.leaf_order import number_by_first

__all__ = ["best_fit_decreasing", "iter_best_fit", "next_fit", "one_each"]

Int64s = npt.NDArray[np.int64]

RANGE_ITEMS = 1 << 20
"""Items that are packed by best fit at a time: it holds some 100 bytes for each."""


def next_fit(
    lengths: npt.NDArray[np.integer[Any]], seq_len: int, *, engine: Engine = "auto", zeros: Zeros = np.zeros
) -> npt.NDArray[np.int64]:
    """Return the window of each item when a window is filled in input order until one does not fit.

    Never looks back, sorts or splits, so it streams, and neighbours stay neighbours. An item that
    fills its window exactly opens no empty one.

    Args:
        lengths: shape (n,), any integer dtype; rows of each item, 1 to ``seq_len``.
        seq_len: most rows a window may hold.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 items.
        zeros: makes the result.

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

        windows: Int64s = zeros(len(items), np.int64)
        kernels.next_fit(items, seq_len, windows)
        return windows
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
    lengths: npt.NDArray[np.integer[Any]],
    seq_len: int,
    *,
    engine: Engine = "auto",
    zeros: Zeros = np.zeros,
    range_items: int = RANGE_ITEMS,
) -> npt.NDArray[np.int64]:
    """Return the window of each item when the longest item left goes where it leaves least room.

    Items go by length, then input order; among windows with equal room the one opened first is
    filled. Asymptotically at most 11/9 of the fewest windows (Johnson et al., SIAM J. Computing 1974).

    Args:
        lengths: shape (n,), any integer dtype; rows of each item, 1 to ``seq_len``.
        seq_len: most rows a window may hold.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 items.
        zeros: makes the result.
        range_items: more items than that are packed range by range, see `iter_best_fit`.

    Returns:
        shape (n,), int64; windows numbered by their first item in input order, those of one range after the other.

    Raises:
        TreeError: an item is longer than ``seq_len`` or has no row.

    Time O(n log n); memory O(range_items).

    >>> best_fit_decreasing(np.array([3, 2, 4]), 6)
    array([0, 1, 1])
    """
    windows: Int64s = zeros(len(lengths), np.int64)
    num_windows = 0
    for items, found in iter_best_fit(lengths, seq_len, engine=engine, range_items=range_items):
        windows[items] = found + num_windows
        num_windows += int(found.max()) + 1
    return windows


def iter_best_fit(
    lengths: npt.NDArray[np.integer[Any]], seq_len: int, *, engine: Engine = "auto", range_items: int = RANGE_ITEMS
) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield items and their windows of `best_fit_decreasing`, range after range, windows numbered from 0 in each.

    The emptiest window of a range is not among them: its items are packed again with the next range.
    """
    items = _checked_lengths(lengths, seq_len)
    num = len(items)
    size = -(-num // max(-(-num // range_items), 1))
    waiting = np.zeros(0, dtype=np.int64)
    for first in range(0, num, size or 1):
        last = min(first + size, num)
        chosen = np.concatenate((waiting, np.arange(first, last)))
        rows = items[chosen]
        windows = _best_fit(rows, seq_len, engine)
        waiting = chosen[:0]
        if last < num:
            used = np.bincount(windows, weights=rows).astype(np.int64)
            emptiest = int(np.argmin(used))
            if used[emptiest] < seq_len:
                held = windows == emptiest
                waiting, chosen = chosen[held], chosen[~held]
                windows = number_by_first(windows[~held] - (windows[~held] > emptiest))
        if len(chosen):
            yield chosen, windows


def _best_fit(items: Int64s, seq_len: int, engine: Engine) -> Int64s:
    """Return the windows of some items, numbered by their first item."""
    order = np.argsort(-items, kind="stable")
    if uses_kernel(engine, len(items)):
        from dagpack_cli.packing import kernels_bundle

        # Items without sharing are a forest of lone nodes. In decreasing order a bundle's first
        # leaf is the item that opened it, so both break ties alike.
        in_order = kernels_bundle.bundle(np.arange(1, len(items) + 1, dtype=np.int32), items[order], seq_len)
    else:
        in_order = _plain_best_fit(items[order].tolist(), seq_len)
    windows = np.empty(len(items), dtype=np.int64)
    windows[order] = in_order
    return number_by_first(windows)


def one_each(lengths: npt.NDArray[np.integer[Any]], seq_len: int, *, zeros: Zeros = np.zeros) -> npt.NDArray[np.int64]:
    """Return the window of each item when every item has a window of its own.

    Args:
        lengths: shape (n,), any integer dtype; rows of each item, 1 to ``seq_len``.
        seq_len: most rows a window may hold.
        zeros: makes the result.

    Returns:
        shape (n,), int64: 0 to n - 1.

    Raises:
        TreeError: an item is longer than ``seq_len`` or has no row.

    >>> one_each(np.array([3, 2]), 6)
    array([0, 1])
    """
    windows: Int64s = zeros(len(_checked_lengths(lengths, seq_len)), np.int64)
    for span in spans(len(windows)):
        windows[span] = np.arange(span.start, span.stop)
    return windows


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
    for span in spans(len(lengths)):
        bad = np.flatnonzero((lengths[span] < 1) | (lengths[span] > seq_len))
        if len(bad):
            item = span.start + int(bad[0])
            raise TreeError("lengths", f"item {item:,} has {int(lengths[item]):,} rows", f"1 to {seq_len:,}")
    return np.asarray(lengths, dtype=np.int64)
