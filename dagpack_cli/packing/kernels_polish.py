"""The compiled loops over leaves in preorder: costs of packings, and `polish`; imported only when needed.

Every kernel has a plain twin, in the module that calls it, which says what it computes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing.kernels import Int64s, Number, kernel
from dagpack_cli.packing.leaf_order import LEAF_BLOCK, LeafOrder

__all__ = ["least_shared", "partition_cost", "polish_windows"]

Uint64s = npt.NDArray[np.uint64]

_REACH = 4
_WIDENINGS = 4
_BASE, _SQUARE = 32, 64
_MEMORY = 1_000
_SEED_DRAWS, _OTHER_DRAWS = 15, 7
# Columns of a span: first window, windows, first leaf, end of leaves, fewest windows, ruins, steps.
_LOW, _NUM, _FIRST, _STOP, _FEWEST, _RUINS, _STEPS = range(7)
_SHIFT = np.uint64(33)
_SHIFTS = (np.uint64(13), np.uint64(7), np.uint64(17))


@kernel
def least_shared(order: LeafOrder, first: Number, second: Number) -> Number:
    """Return the rows that leaves ``first < second`` share: the least of shared[first + 1 : second + 1]."""
    shared = order.shared
    low, high = first + 1, second + 1
    least = shared[first + 1]
    if high - low <= 2 * LEAF_BLOCK:
        for at in range(low + 1, high):
            least = min(least, shared[at])
        return least
    first_block, stop_block = (low + LEAF_BLOCK - 1) // LEAF_BLOCK, high // LEAF_BLOCK
    for at in range(low, first_block * LEAF_BLOCK):
        least = min(least, shared[at])
    for at in range(stop_block * LEAF_BLOCK, high):
        least = min(least, shared[at])
    level = 0
    while 2 << level <= stop_block - first_block:
        level += 1
    least = min(least, order.minima[level, first_block])
    return min(least, order.minima[level, stop_block - (1 << level)])


@kernel
def partition_cost(order: LeafOrder, leaf_windows: Int64s, num_windows: int) -> tuple[Number, Number]:
    """Return (rows, attention) of `leaf_order.packing_cost`, by remembering each window's last leaf."""
    last = np.full(num_windows, -1, dtype=np.int64)
    rows = np.int64(0)
    attention = np.int64(0)
    for leaf in range(len(leaf_windows)):
        window = leaf_windows[leaf]
        path = order.rows[leaf]
        shared = least_shared(order, last[window], leaf) if last[window] >= 0 else np.int64(0)
        rows += path - shared
        attention += path * (path + 1) // 2 - shared * (shared + 1) // 2
        last[window] = leaf
    return rows, attention


@kernel
def _draw(state: Uint64s, stop: Number) -> Number:
    """Return a number of ``[0, stop)`` from a xorshift generator (Marsaglia, 2003), whose state moves on."""
    value = state[0]
    value ^= value << _SHIFTS[0]
    value ^= value >> _SHIFTS[1]
    value ^= value << _SHIFTS[2]
    state[0] = value
    return np.int64(value >> _SHIFT) % stop


class _Packing(NamedTuple):
    """A packing that changes: window of each leaf, lists of leaves, and per window rows and leaves.

    ``following[leaf]`` is the next leaf of its window or -1, ``heads[window]`` the first.
    """

    windows: Int64s
    following: Int64s
    heads: Int64s
    rows: Int64s
    counts: Int64s


class _Bench(NamedTuple):
    """What one ruin works on.

    ``leaves`` are those of the ruined windows in preorder, ``shared`` the rows each shares with the
    one before, ``places`` the new window of each, counted from 0, or -1. ``chosen`` are the ruined
    windows and ``used`` the rows of the new ones. ``starts``, ``stops`` and ``sizes`` are the pieces
    without a place: ranges of ``leaves``, and the rows of their paths. ``lefts`` and ``rights`` are
    the leaves of each new window that stand nearest to a piece, or -1.
    """

    leaves: Int64s
    shared: Int64s
    places: Int64s
    chosen: Int64s
    used: Int64s
    starts: Int64s
    stops: Int64s
    sizes: Int64s
    lefts: Int64s
    rights: Int64s


@kernel
def _open_packing(order: LeafOrder, leaf_windows: Int64s, num_windows: Number) -> _Packing:
    packing = _Packing(
        leaf_windows.copy(),
        np.full(len(leaf_windows), -1, dtype=np.int64),
        np.full(num_windows, -1, dtype=np.int64),
        np.zeros(num_windows, dtype=np.int64),
        np.zeros(num_windows, dtype=np.int64),
    )
    for leaf in range(len(leaf_windows) - 1, -1, -1):
        window = leaf_windows[leaf]
        head = packing.heads[window]
        packing.rows[window] += order.rows[leaf]
        if head >= 0:
            packing.rows[window] -= least_shared(order, leaf, head)
        packing.following[leaf] = head
        packing.heads[window] = leaf
        packing.counts[window] += 1
    return packing


@kernel
def _open_bench(most_windows: Number, most_leaves: Number) -> _Bench:
    leaves = np.empty((6, most_leaves), dtype=np.int64)
    windows = np.empty((4, most_windows), dtype=np.int64)
    return _Bench(
        leaves[0], leaves[1], leaves[2], windows[0], windows[1], leaves[3], leaves[4], leaves[5], windows[2], windows[3]
    )


@kernel
def _pick(packing: _Packing, bench: _Bench, rng: Uint64s, span: Int64s, size: Number) -> Number:
    """Return a window to ruin: by slack among a few drawn, or one near a leaf that is ruined already."""
    if size == 0 or _draw(rng, 2) == 0:
        window = span[_LOW] + _draw(rng, span[_NUM])
        for _ in range(_SEED_DRAWS if size == 0 else _OTHER_DRAWS):
            other = span[_LOW] + _draw(rng, span[_NUM])
            if packing.rows[other] < packing.rows[window]:
                window = other
        return window
    reach = np.int64(_REACH) << (2 * _draw(rng, _WIDENINGS))
    leaf = bench.leaves[_draw(rng, size)] + _draw(rng, 2 * reach + 1) - reach
    return packing.windows[min(max(leaf, span[_FIRST]), span[_STOP] - 1)]


@kernel
def _ruin(order: LeafOrder, packing: _Packing, bench: _Bench, rng: Uint64s, span: Int64s) -> tuple[Number, Number]:
    """Fill the bench with a few windows' leaves; return how many windows and leaves."""
    wanted = min(2 + _draw(rng, len(bench.chosen) - 1), span[_NUM])
    num_places, size = 0, 0
    for _ in range(3 * wanted):
        window = _pick(packing, bench, rng, span, size)
        is_new = True
        for at in range(num_places):
            is_new = is_new and bench.chosen[at] != window
        if is_new and size + packing.counts[window] <= len(bench.leaves):
            bench.chosen[num_places] = window
            num_places += 1
            leaf = packing.heads[window]
            while leaf >= 0:
                bench.leaves[size] = leaf
                size += 1
                leaf = packing.following[leaf]
            if num_places == wanted:
                break
    bench.leaves[:size].sort()
    for at in range(1, size):
        bench.shared[at] = least_shared(order, bench.leaves[at - 1], bench.leaves[at])
    return num_places, size


@kernel
def _find_neighbours(bench: _Bench, size: Number, num_open: Number, start: Number, stop: Number) -> None:
    """Fill the nearest leaf of every new window on both sides of a piece."""
    bench.lefts[:num_open] = -1
    bench.rights[:num_open] = -1
    missing = num_open
    at = start - 1
    while at >= 0 and missing:
        place = bench.places[at]
        if place >= 0 and bench.lefts[place] < 0:
            bench.lefts[place] = bench.leaves[at]
            missing -= 1
        at -= 1
    missing = num_open
    at = stop
    while at < size and missing:
        place = bench.places[at]
        if place >= 0 and bench.rights[place] < 0:
            bench.rights[place] = bench.leaves[at]
            missing -= 1
        at += 1


@kernel
def _overlap(order: LeafOrder, first: Number, last: Number, left: Number, right: Number) -> Number:
    """Return the rows that leaves first to last share with a window whose nearest leaves are left and right."""
    before = least_shared(order, left, first) if left >= 0 else np.int64(0)
    after = least_shared(order, last, right) if right >= 0 else np.int64(0)
    both = min(before, after)
    if both and first < last:
        both = min(both, least_shared(order, first, last))
    return before + after - both


@kernel
def _find_place(
    order: LeafOrder, bench: _Bench, size: Number, num_open: Number, piece: Number, seq_len: Number, fewest_rows: bool
) -> tuple[Number, Number]:
    """Return (new window, rows it gains) where a piece goes, or -1: least room left, or fewest rows gained."""
    start, stop = bench.starts[piece], bench.stops[piece]
    _find_neighbours(bench, size, num_open, start, stop)
    best, gained, least = np.int64(-1), np.int64(0), np.int64(seq_len + 1)
    for place in range(num_open):
        left, right = bench.lefts[place], bench.rights[place]
        added = bench.sizes[piece] - _overlap(order, bench.leaves[start], bench.leaves[stop - 1], left, right)
        room = seq_len - bench.used[place] - added
        key = added if fewest_rows else room
        if room >= 0 and key < least:
            best, gained, least = np.int64(place), added, key
    return best, gained


@kernel
def _cut(order: LeafOrder, bench: _Bench, rng: Uint64s, piece: Number, num_pieces: Number) -> None:
    """Cut a piece where least is shared, at any of the equals; its right part becomes the last piece."""
    start, stop = bench.starts[piece], bench.stops[piece]
    least, count = bench.shared[start + 1], np.int64(0)
    for at in range(start + 1, stop):
        if bench.shared[at] < least:
            least, count = bench.shared[at], np.int64(0)
        if bench.shared[at] == least:
            count += 1
    skipped = _draw(rng, count)
    cut = np.int64(start)
    rows = order.rows[bench.leaves[start]]
    while True:
        cut += 1
        if bench.shared[cut] == least:
            skipped -= 1
            if skipped < 0:
                break
        rows += order.rows[bench.leaves[cut]] - bench.shared[cut]
    bench.starts[num_pieces], bench.stops[num_pieces] = cut, stop
    bench.sizes[num_pieces] = bench.sizes[piece] - rows + least
    bench.stops[piece], bench.sizes[piece] = cut, rows


@kernel
def _largest(sizes: Int64s, num_pieces: Number) -> Number:
    largest = 0
    for at in range(1, num_pieces):
        if sizes[at] > sizes[largest]:
            largest = at
    return largest


@kernel
def _draw_kind(rng: Uint64s, record: Int64s) -> bool:
    """Return whether a ruin shatters; ``record`` is ((tried, gained) of ruins that do not, and of those that do)."""
    better = bool(record[1, 1] * record[0, 0] > record[0, 1] * record[1, 0])
    return better if _draw(rng, 8) else not better


@kernel
def _learn(record: Int64s, shatters: bool, gains: bool) -> None:
    kind = record[np.int64(shatters)]
    kind[0] += 1
    kind[1] += gains
    if kind[0] > _MEMORY:
        kind[0] //= 2
        kind[1] //= 2


@kernel
def _recreate(
    order: LeafOrder, bench: _Bench, rng: Uint64s, sizes: tuple[Number, Number], seq_len: Number, shatters: bool
) -> bool:
    """Give every leaf on the bench a new window; return whether the ruined ones were enough.

    ``sizes`` are how many windows and leaves.
    """
    num_places, size = sizes
    bench.used[:num_places] = 0
    bench.places[:size] = -1
    rows = order.rows[bench.leaves[0]]
    for at in range(1, size):
        rows += order.rows[bench.leaves[at]] - bench.shared[at]
    bench.starts[0], bench.stops[0], bench.sizes[0] = 0, size, rows
    num_pieces, num_open = 1, 0
    fewest_rows = _draw(rng, 4) == 0
    while num_pieces:
        piece = _largest(bench.sizes, num_pieces)
        start, stop, rows = bench.starts[piece], bench.stops[piece], bench.sizes[piece]
        if shatters and stop - start > 1 and _draw(rng, 4):
            _cut(order, bench, rng, piece, num_pieces)
            num_pieces += 1
            continue
        place, gained = _find_place(order, bench, size, num_open, piece, seq_len, fewest_rows)
        may_open = place < 0 and rows <= seq_len and num_open < num_places
        if may_open and (num_open == 0 or stop - start == 1 or _draw(rng, 2) == 0):
            place, gained = num_open, rows
            num_open += 1
        if place < 0 and stop - start == 1:
            return False
        if place < 0:
            _cut(order, bench, rng, piece, num_pieces)
            num_pieces += 1
        else:
            bench.used[place] += gained
            bench.places[start:stop] = place
            num_pieces -= 1
            for column in (bench.starts, bench.stops, bench.sizes):
                column[piece] = column[num_pieces]
    return True


@kernel
def _gain(packing: _Packing, bench: _Bench, num_places: Number, seq_len: Number) -> Number:
    """Return by how much the sum of squared slacks grows: a packing is good if its free room is in one place."""
    gained = np.int64(0)
    for place in range(num_places):
        before, after = seq_len - packing.rows[bench.chosen[place]], seq_len - bench.used[place]
        gained += after * after - before * before
    return gained


@kernel
def _commit(packing: _Packing, bench: _Bench, num_places: Number, size: Number, span: Int64s) -> None:
    """Put the new windows in place of the ruined ones; the last of the span fill gaps, and the span gets shorter."""
    for place in range(num_places):
        window = bench.chosen[place]
        packing.rows[window] = bench.used[place]
        packing.heads[window] = -1
        packing.counts[window] = 0
    for at in range(size - 1, -1, -1):
        leaf, window = bench.leaves[at], bench.chosen[bench.places[at]]
        packing.windows[leaf] = window
        packing.following[leaf] = packing.heads[window]
        packing.heads[window] = leaf
        packing.counts[window] += 1
    bench.chosen[:num_places].sort()
    for place in range(num_places - 1, -1, -1):
        window = bench.chosen[place]
        if packing.heads[window] >= 0:
            continue
        span[_NUM] -= 1
        last = span[_LOW] + span[_NUM]
        for column in (packing.rows, packing.heads, packing.counts):
            column[window] = column[last]
        leaf = packing.heads[window] if window < last else np.int64(-1)
        while leaf >= 0:
            packing.windows[leaf] = window
            leaf = packing.following[leaf]


@kernel
def polish_windows(
    order: LeafOrder, leaf_windows: Int64s, seq_len: Number, spans: Int64s, limits: tuple[Number, Number], seed: Number
) -> Int64s:
    """Return the window of every leaf of `polish.polish_windows`, numbered anyhow.

    ``spans`` are overwritten: left behind are their windows, and the ruins and steps that were not made.
    ``limits`` are most windows and leaves of a ruin, ``seed`` the generator's state, not 0.
    """
    packing = _open_packing(order, leaf_windows, leaf_windows.max() + 1)
    bench = _open_bench(limits[0], limits[1])
    rng = np.array([seed], dtype=np.uint64)
    record = np.array([[1, 0], [1, 0]])
    for at in range(len(spans)):
        span = spans[at]
        while span[_RUINS] > 0 and span[_STEPS] > 0 and span[_NUM] > span[_FEWEST]:
            num_places, size = _ruin(order, packing, bench, rng, span)
            span[_RUINS] -= 1
            span[_STEPS] -= _BASE + 2 * size + size * size // _SQUARE
            if num_places < 2:
                continue
            shatters, gained = _draw_kind(rng, record), np.int64(-1)
            if _recreate(order, bench, rng, (num_places, size), seq_len, shatters):
                gained = _gain(packing, bench, num_places, seq_len)
                if gained >= 0:
                    _commit(packing, bench, num_places, size, span)
            _learn(record, shatters, bool(gained > 0))
    return packing.windows
