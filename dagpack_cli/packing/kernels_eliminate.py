"""The compiled sweep of `eliminate`: best fit with leaf lists, and the dissolving of the emptiest bundles.

The pool of bundles by slack is that of `kernels_pool`. The plain twin, which says what is computed,
is in `eliminate`; this module is imported only when needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dagpack_cli.packing.kernels import Int32s, Int64s, Number, kernel
from dagpack_cli.packing.kernels_polish import least_shared
from dagpack_cli.packing.kernels_pool import descend, find_at_least, insert, merge_pools, pop_path, sort_keys, take_open
from dagpack_cli.packing.leaf_order import LeafOrder

__all__ = ["Limits", "eliminating_bundles"]


class _Pool(NamedTuple):
    """Working memory of the segment trees over slack, see `kernels_pool`; all bundles of all nodes live in it."""

    free: Int64s
    heap: Int32s
    path: Int64s
    stack: Int64s


class _Bundles(NamedTuple):
    """Bundles, each named by one of its leaves: its slack, and its leaves as a list that begins with that one."""

    slacks: Int64s
    following: Int64s
    tails: Int64s
    is_alive: Int64s


class _Bench(NamedTuple):
    """Working memory of one attempt.

    ``candidates`` are the emptiest bundles. ``left``: the leaves of the one to dissolve that are still
    there, in preorder; ``own``: rows each shares with the one before; ``other``: with the target.
    ``moved`` and ``goals``: leaves that found a target, and which; ``target``: the target's leaves.
    """

    candidates: Int64s
    gains: Int64s
    left: Int64s
    own: Int64s
    other: Int64s
    moved: Int64s
    goals: Int64s
    target: Int64s
    spare: Int64s


class Limits(NamedTuple):
    """See the constants of `eliminate`."""

    credit: int
    targets: int
    leaves: int
    fails: int
    root_fails: int


@kernel
def _absorb(bundles: _Bundles, into: Number, other: Number) -> None:
    """Append another bundle's list; it is no bundle any more."""
    bundles.following[bundles.tails[into]] = other
    bundles.tails[into] = bundles.tails[other]
    bundles.is_alive[other] = 0


@kernel
def _fit_small(
    nodes: Int32s, pool: _Pool, root: Number, small: Int64s, bundles: _Bundles, room: Number, tally: Int64s
) -> tuple[Int32s, Number]:
    """Put sorted small bundles where they leave least room; return (nodes, root), and keep the tally."""
    num_bits = len(pool.path) - 1
    for key in small:
        bundle = key & 0xFFFFFFFF
        usage = room - bundles.slacks[bundle]
        if find_at_least(nodes, pool.path, num_bits, root, usage):
            root, target = pop_path(nodes, pool.free, pool.heap, num_bits, pool.path)
            slack = bundles.slacks[target] - usage
            first, second = min(bundle, target), max(bundle, target)
            _absorb(bundles, first, second)
            bundles.slacks[first] = slack
            bundle = first
            tally[0] -= 1
            tally[1] -= room
        if bundles.slacks[bundle] > 0:
            nodes, root = insert(nodes, pool.free, pool.heap, num_bits, root, bundles.slacks[bundle], bundle)
        else:
            tally[0] -= 1
            tally[2] += 1
    return nodes, root


@kernel
def _gather_leaves(bundles: _Bundles, bundle: Number, into: Int64s, spare: Int64s, most: Number) -> Number:
    """Fill a bundle's leaves in preorder and return how many; nothing and ``most + 1`` where there are more."""
    size = 0
    leaf = bundle
    while leaf >= 0:
        if size == most:
            return most + 1
        into[size] = leaf
        size += 1
        leaf = bundles.following[leaf]
    sort_keys(into, spare, size)
    return size


@kernel
def _share_with_target(order: LeafOrder, bench: _Bench, size: Number, num_target: Number) -> None:
    """Fill the rows that every leaf left shares with the target: with the nearest of its leaves to either side."""
    at = 0
    for x in range(size):
        leaf = bench.left[x]
        while at < num_target and bench.target[at] < leaf:
            at += 1
        shared = np.int64(0)
        if at > 0:
            shared = least_shared(order, bench.target[at - 1], leaf)
        if at < num_target:
            shared = max(shared, least_shared(order, leaf, bench.target[at]))
        bench.other[x] = shared


@kernel
def _best_interval(
    order: LeafOrder, bench: _Bench, size: Number, above: Number, room: Number
) -> tuple[Number, Number, Number]:
    """Return (start, stop, rows added) of the leaves whose move frees most rows for those it repeats, or stop 0."""
    best, start, stop, added = np.int64(-(2**62)), 0, 0, np.int64(0)
    for first in range(size):
        path = order.rows[bench.left[first]]
        rows, more = path, path - bench.other[first]
        for last in range(first, size):
            if last > first:
                path = order.rows[bench.left[last]]
                rows += path - bench.own[last]
                more += path - max(bench.own[last], bench.other[last])
            if more > room:
                break
            after = bench.own[last + 1] if last + 1 < size else above
            score = 2 * (rows - max(bench.own[first], after)) - more
            if score > best:
                best, start, stop, added = score, first, last + 1, more
    return start, stop, added


@kernel
def _take_interval(order: LeafOrder, bench: _Bench, size: Number, start: Number, stop: Number) -> Number:
    """Take leaves out of those left, and note that the others now share rows with the target through them."""
    first, last = bench.left[start], bench.left[stop - 1]
    for x in range(start):
        bench.other[x] = max(bench.other[x], least_shared(order, bench.left[x], first))
    for x in range(stop, size):
        bench.other[x] = max(bench.other[x], least_shared(order, last, bench.left[x]))
    if stop < size:
        bench.own[stop] = bench.own[start : stop + 1].min()
    shift = stop - start
    for x in range(stop, size):
        bench.left[x - shift] = bench.left[x]
        bench.own[x - shift] = bench.own[x]
        bench.other[x - shift] = bench.other[x]
    return size - shift


@kernel
def _dissolve(
    order: LeafOrder, bundles: _Bundles, bench: _Bench, chosen: Number, num: Number, above: Number, most: Number
) -> tuple[Number, Number, Number]:
    """Try to move all leaves of a candidate to the others; return (leaves moved or -1, rows added, price)."""
    bundle = bench.candidates[chosen]
    size = _gather_leaves(bundles, bundle, bench.left, bench.spare, most)
    if size > most:
        return np.int64(-1), np.int64(0), np.int64(most)
    bench.own[0] = above
    for x in range(1, size):
        bench.own[x] = least_shared(order, bench.left[x - 1], bench.left[x])
    num_moved, total, price = np.int64(0), np.int64(0), np.int64(size)
    for at in range(num):
        bench.gains[at] = 0
        if at == chosen or size == 0:
            continue
        num_target = _gather_leaves(bundles, bench.candidates[at], bench.target, bench.spare, most)
        price += size + size * size // 16 + num_target
        if num_target > most:
            continue
        _share_with_target(order, bench, size, num_target)
        while size:
            room = bundles.slacks[bench.candidates[at]] - bench.gains[at]
            start, stop, added = _best_interval(order, bench, size, above, room)
            if stop == 0:
                break
            bench.moved[num_moved : num_moved + stop - start] = bench.left[start:stop]
            bench.goals[num_moved : num_moved + stop - start] = at
            num_moved += stop - start
            size = _take_interval(order, bench, size, start, stop)
            bench.gains[at] += added
            total += added
    return num_moved if size == 0 else np.int64(-1), total, price


@kernel
def _move(bundles: _Bundles, bench: _Bench, chosen: Number, num: Number, num_moved: Number) -> Number:
    """Make the moves; return how many bundles have no room left."""
    bundles.is_alive[bench.candidates[chosen]] = 0
    for at in range(num_moved):
        leaf, goal = bench.moved[at], bench.candidates[bench.goals[at]]
        bundles.following[leaf] = -1
        bundles.following[bundles.tails[goal]] = leaf
        bundles.tails[goal] = leaf
    filled = np.int64(0)
    for at in range(num):
        if at != chosen:
            bundles.slacks[bench.candidates[at]] -= bench.gains[at]
            filled += bundles.slacks[bench.candidates[at]] == 0
    return filled


@kernel
def _eliminate(
    nodes: Int32s,
    pool: _Pool,
    root: Number,
    order: LeafOrder,
    bundles: _Bundles,
    bench: _Bench,
    tally: Int64s,
    place: tuple[Number, Number, Number, Number, Number],
    limits: Limits,
) -> tuple[Int32s, Number]:
    """Dissolve bundles at one node while that may succeed; ``tally`` is as in `_Below`.

    ``place`` is (rows above, room, fewest windows, attempts that may fail, rows that may be added net).
    """
    above, room, fewest, tries, worth = place
    num_bits = len(pool.path) - 1
    fails = 0
    while fails < min(tries, tally[0]) and tally[3] > 0 and tally[1] >= room and tally[0] + tally[2] > max(fewest, 1):
        num = min(tally[0], limits.targets + 1 + fails)
        for at in range(num):
            pool.path[0] = root
            descend(nodes, pool.path, num_bits, 0, 1)
            root, bench.candidates[at] = pop_path(nodes, pool.free, pool.heap, num_bits, pool.path)
        usage = room - bundles.slacks[bench.candidates[fails]]
        num_moved, added, price = _dissolve(order, bundles, bench, fails, num, above, limits.leaves)
        tally[3] -= price + num
        dissolved = num_moved >= 0 and added - usage <= worth
        if dissolved:
            filled = _move(bundles, bench, fails, num, num_moved)
            tally[0] -= 1 + filled
            tally[1] -= room - usage + added
            tally[2] += filled
        for at in range(num):
            bundle = bench.candidates[at]
            if bundles.slacks[bundle] > 0 and not (dissolved and at == fails):
                nodes, root = insert(nodes, pool.free, pool.heap, num_bits, root, bundles.slacks[bundle], bundle)
        fails += not dissolved
    return nodes, root


@kernel
def _open_bundles(num_leaves: Number) -> _Bundles:
    return _Bundles(
        np.zeros(num_leaves, dtype=np.int64),
        np.full(num_leaves, -1, dtype=np.int64),
        np.arange(num_leaves),
        np.ones(num_leaves, dtype=np.int64),
    )


@kernel
def _open_bench(limits: Limits) -> _Bench:
    columns = np.empty((9, limits.leaves + limits.targets + limits.root_fails + 1), dtype=np.int64)
    return _Bench(
        columns[0], columns[1], columns[2], columns[3], columns[4], columns[5], columns[6], columns[7], columns[8]
    )


@kernel
def _windows_of(bundles: _Bundles) -> Int64s:
    """Return windows numbered by the leaf that names them."""
    windows = np.empty(len(bundles.slacks), dtype=np.int64)
    number = 0
    for bundle in range(len(windows)):
        if bundles.is_alive[bundle]:
            leaf = bundle
            while leaf >= 0:
                windows[leaf] = number
                leaf = bundles.following[leaf]
            number += 1
    return windows


class _Below(NamedTuple):
    """What stands below every node; the last slot is the super-root's, which is node -1.

    ``open_bundles`` and ``roots``: the bundle at half the room or less, and the pool of the others.
    ``tallies``: (bundles with room, their room, bundles without, credit).
    """

    open_bundles: Int32s
    roots: Int32s
    tallies: Int64s


@kernel
def _open_pool(num_leaves: Number, seq_len: Number) -> _Pool:
    num_bits = 1
    while seq_len >> num_bits:
        num_bits += 1
    return _Pool(
        np.array([1, 0]),
        np.empty((num_leaves, 2), dtype=np.int32),
        np.zeros(num_bits + 1, dtype=np.int64),
        np.zeros((2 * num_bits + 2, 3), dtype=np.int64),
    )


@kernel
def _gather_children(
    nodes: Int32s,
    pool: _Pool,
    bundles: _Bundles,
    below: _Below,
    node: Number,
    family: tuple[Number, Number, Int32s],
    room: Number,
    small: Int64s,
) -> tuple[Int32s, Number, Number]:
    """Return (nodes, pool, number of small bundles) of a node's children; the small ones fill ``small``."""
    num_bits = len(pool.path) - 1
    child, stop, ends = family
    root, num_small = np.int64(0), 0
    while child < stop:
        root = merge_pools(nodes, pool.free, pool.heap, num_bits, root, np.int64(below.roots[child]), pool.stack)
        below.tallies[node] += below.tallies[child]
        bundle = np.int64(below.open_bundles[child])
        if bundle >= 0 and 2 * bundles.slacks[bundle] >= room:
            small[num_small] = bundles.slacks[bundle] << 32 | bundle
            num_small += 1
        elif bundle >= 0:
            nodes, root = insert(nodes, pool.free, pool.heap, num_bits, root, bundles.slacks[bundle], bundle)
        child = np.int64(ends[child])
    return nodes, root, num_small


@kernel
def _add_leaf(bundles: _Bundles, below: _Below, node: Number, leaf: Number, room: Number, credit: Number) -> None:
    bundles.slacks[leaf] = room
    below.open_bundles[node] = leaf if room > 0 else -1
    tally = below.tallies[node]
    tally[0], tally[1], tally[2], tally[3] = room > 0, room, room == 0, credit


@kernel
def eliminating_bundles(
    ends: Int32s, bottoms: Int64s, order: LeafOrder, fewest: Int64s, seq_len: int, limits: Limits
) -> Int64s:
    """Return the window of every leaf of `eliminate.eliminate_bundles`, numbered anyhow.

    Args:
        ends: shape (n,), int32; exclusive subtree ends.
        bottoms: shape (n,), int64; rows of the path down to the end of each node's run.
        order: m leaves.
        fewest: shape (n + 1,), int64; windows that each subtree needs at least, the whole forest last.
        seq_len: most rows a window may hold, below 2^31.
        limits: see `eliminate`.
    """
    num, num_leaves = len(ends), len(order.rows)
    leaf = num_leaves
    nodes, pool = np.zeros((1024, 2), dtype=np.int32), _open_pool(num_leaves, seq_len)
    bundles, bench = _open_bundles(num_leaves), _open_bench(limits)
    small, spare = np.empty(num_leaves, dtype=np.int64), np.empty(num_leaves, dtype=np.int64)
    below = _Below(
        np.full(num + 1, -1, dtype=np.int32), np.zeros(num + 1, dtype=np.int32), np.zeros((num + 1, 4), dtype=np.int64)
    )
    for node in range(num - 1, -2, -1):
        above = bottoms[node] if node >= 0 else np.int64(0)
        stop, child, room = np.int64(ends[node]) if node >= 0 else num, np.int64(node + 1), seq_len - above
        if node >= 0 and child == stop:
            leaf -= 1
            _add_leaf(bundles, below, node, leaf, room, limits.credit)
            continue
        if node >= 0 and ends[child] == stop:
            below.open_bundles[node], below.roots[node] = below.open_bundles[child], below.roots[child]
            below.tallies[node] = below.tallies[child]
            continue
        family = (child, stop, ends)
        nodes, root, num_small = _gather_children(nodes, pool, bundles, below, node, family, room, small)
        sort_keys(small, spare, num_small)
        tally = below.tallies[node]
        nodes, root = _fit_small(nodes, pool, root, small[:num_small], bundles, room, tally)
        if node >= 0:
            place = (above, room, fewest[node], np.int64(limits.fails), above)
        else:
            place = (above, room, fewest[node], np.int64(limits.root_fails), np.int64(2**62))
        nodes, root = _eliminate(nodes, pool, root, order, bundles, bench, tally, place, limits)
        below.roots[node], below.open_bundles[node] = take_open(nodes, pool.free, pool.heap, pool.path, root, room)
    return _windows_of(bundles)
