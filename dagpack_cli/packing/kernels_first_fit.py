"""The compiled loop of `first_fit`. Its plain twin says what it computes.

A register of capacity c = 2^k is a block of 3 c numbers in one pool: a tournament tree of rooms
(entry 1 is the largest of all, entries c to 2 c - 1 are the windows' own, in order of registration),
then the windows. A full register moves to a block of twice the size; blocks are used again.
"""

from __future__ import annotations

import numpy as np

from dagpack_cli.packing.kernels import Int32s, Int64s, Number, kernel

__all__ = ["first_fit"]


@kernel
def _climb(
    parents: Int32s, ends: Int32s, bottoms: Int64s, seq_len: int, nearest: int, powers: int
) -> tuple[Int32s, Int32s, Int32s, Int64s]:
    """Return the branching node above each node, its level, the milestones above, and rows to the nearest leaf."""
    top = len(parents)
    above, milestones = np.full(top, top, dtype=np.int32), np.full((powers, top + 1), top, dtype=np.int32)
    levels, shortest = np.zeros(top + 1, dtype=np.int32), np.full(top + 1, seq_len + 1, dtype=np.int64)
    for node in range(top):
        parent = parents[node]
        if parent >= 0:
            above[node] = parent if ends[parent + 1] != ends[parent] else above[parent]
        over = above[node]
        levels[node] = levels[over] + 1
        for power in range(powers):
            milestones[power, node] = milestones[power, over] if levels[over] % nearest ** (power + 1) else over
    for node in range(top - 1, -1, -1):
        if ends[node] == node + 1:
            shortest[node] = bottoms[node]
        shortest[above[node]] = min(shortest[above[node]], shortest[node])
    for node in range(top):
        shortest[node] -= bottoms[node]
    return above, levels, milestones, shortest


@kernel
def _list_ancestors(
    leaf: Number,
    top: Number,
    above: Int32s,
    levels: Int32s,
    milestones: Int32s,
    limits: tuple[int, int, int, int],
    asked: Int64s,
) -> Number:
    """Fill ``asked`` with the nodes that a leaf asks, deepest first, the super-root last; return how many."""
    nearest, far, powers, _ = limits
    num = 0
    node = np.int64(above[leaf])
    while node != top and num < nearest:
        asked[num] = node
        num += 1
        node = np.int64(above[node])
    for power in range(powers):
        if levels[node] % nearest ** (power + 1):
            node = np.int64(milestones[power, node])
        while node != top and num < nearest + (power + 1) * far:
            asked[num] = node
            num += 1
            node = np.int64(milestones[power, node])
    asked[num] = top
    return num + 1


@kernel
def _new_block(pool: Int32s, free: Int64s, size: Number) -> tuple[Int32s, Number]:
    """Return (pool, start) of a block of 2^size windows; free[size] heads the freed ones, free[-1] is the unused."""
    start = free[size]
    if start >= 0:
        free[size] = pool[start] - 1
        return pool, start
    start = free[-1]
    free[-1] = start + 3 * (1 << size)
    if free[-1] > len(pool):
        larger = np.empty(max(2 * len(pool), free[-1]), dtype=np.int32)
        larger[: len(pool)] = pool
        pool = larger
    return pool, start


@kernel
def _double(pool: Int32s, free: Int64s, registers: Int64s) -> Int32s:
    """Return the pool with a full register moved to a block of twice the size. ``registers``: start, size, windows."""
    old, size, num = registers[0], registers[1], registers[2]
    pool, start = _new_block(pool, free, size + 1)
    capacity = 2 << size
    pool[start : start + 2 * capacity] = -1
    if num:
        pool[start + capacity : start + capacity + num] = pool[old + num : old + 2 * num]
        pool[start + 2 * capacity : start + 2 * capacity + num] = pool[old + 2 * num : old + 3 * num]
        pool[old] = free[size] + 1
        free[size] = old
        for at in range(capacity - 1, 0, -1):
            pool[start + at] = max(pool[start + 2 * at], pool[start + 2 * at + 1])
    registers[0], registers[1] = start, size + 1
    return pool


@kernel
def _register(pool: Int32s, free: Int64s, registers: Int64s, window: Number, room: Number) -> Int32s:
    """Return the pool with a window at the end of a register. Amortised O(log windows)."""
    if registers[2] == (1 << registers[1] if registers[1] >= 0 else 0):
        pool = _double(pool, free, registers)
    start, capacity, num = registers[0], 1 << registers[1], registers[2]
    pool[start + 2 * capacity + num] = window
    registers[2] = num + 1
    _set_room(pool, start, capacity + num, room)
    return pool


@kernel
def _set_room(pool: Int32s, start: Number, at: Number, room: Number) -> None:
    """Change an entry of a tournament tree, and those above it."""
    pool[start + at] = room
    while at > 1:
        at >>= 1
        pool[start + at] = max(pool[start + 2 * at], pool[start + 2 * at + 1])


@kernel
def _ask(pool: Int32s, register: Int64s, rooms: Int64s, needed: Number, corrections: int) -> Number:
    """Return the first window of a register with this much room, or -1."""
    if register[2] == 0:
        return -1
    start, capacity = register[0], 1 << register[1]
    for _ in range(corrections):
        if pool[start + 1] < needed:
            return -1
        at = 1
        while at < capacity:
            at *= 2
            if pool[start + at] < needed:
                at += 1
        window = np.int64(pool[start + capacity + at])
        if rooms[window] >= needed:
            return window
        _set_room(pool, start, at, rooms[window])
    return -1


@kernel
def _slot(table: Int64s, key: Number) -> Number:
    """Return where a key is in an open table of a power of two slots, or where it would go; -1 is empty."""
    mask = len(table) - 1
    at = (key * 0x1E3779B97F4A7C15 >> 20) & mask
    while table[at] >= 0 and table[at] != key:
        at = (at + 1) & mask
    return at


@kernel
def _remember(table: Int64s, key: Number, num: Number) -> Int64s:
    """Return the table with a key added, of ``num`` already there."""
    if 2 * num >= len(table):
        larger = np.full(2 * len(table), -1, dtype=np.int64)
        for old in table:
            if old >= 0:
                larger[_slot(larger, old)] = old
        table = larger
    table[_slot(table, key)] = key
    return table


@kernel
def first_fit(
    parents: Int32s,
    ends: Int32s,
    bottoms: Int64s,
    leaves: Int64s,
    sequence: Int64s,
    seq_len: int,
    first: bool,
    limits: tuple[int, int, int, int],
) -> Int64s:
    """Return the window of every leaf of `first_fit.first_fit`, numbered as opened.

    Args:
        parents: shape (n,), int32.
        ends: shape (n,), int32; exclusive subtree ends.
        bottoms: shape (n,), int64; rows of the path down to the end of each node's run.
        leaves: shape (m,), int64; the nodes without children.
        sequence: shape (m,), int64; the leaves' indices in the order to place them.
        seq_len: most rows a window may hold, below 2^31.
        first: whether the window opened first is taken, not the one that holds most of the path.
        limits: ancestors asked one by one, milestones of each power, powers, corrections a question.
    """
    top = len(parents)
    above, levels, milestones, shortest = _climb(parents, ends, bottoms, seq_len, limits[0], limits[2])
    asked = np.empty(limits[0] + limits[1] * limits[2] + 1, dtype=np.int64)
    registers = np.zeros((top + 1, 3), dtype=np.int64)
    registers[:, 1] = -1
    pool, free = np.empty(1024, dtype=np.int32), np.full(40, -1, dtype=np.int64)
    free[-1] = 0
    table, num_remembered = np.full(1024, -1, dtype=np.int64), 0
    windows, rooms = np.empty(len(leaves), dtype=np.int64), np.empty(len(leaves), dtype=np.int64)
    num_windows = 0
    for number in sequence:
        rows = bottoms[leaves[number]]
        num = _list_ancestors(leaves[number], top, above, levels, milestones, limits, asked)
        window, shared = np.int64(-1), 0
        for at in range(num):
            node = asked[at]
            found = _ask(pool, registers[node], rooms, rows - (bottoms[node] if node < top else 0), limits[3])
            if found >= 0 and (window < 0 or found < window):
                window, shared = found, at
                if not first:
                    break
        if window < 0:
            window, shared = np.int64(num_windows), num
            rooms[window] = seq_len
            num_windows += 1
        elif first:
            # A register names its first window only, so the one found high up may be held deeper.
            for at in range(shared + 1):
                key = asked[at] * len(leaves) + window
                if table[_slot(table, key)] == key:
                    shared = at
                    break
        held = asked[shared] if shared < num else top
        rooms[window] -= rows - (bottoms[held] if held < top else 0)
        for at in range(shared):
            node = asked[at]
            if rooms[window] >= shortest[node]:
                pool = _register(pool, free, registers[node], window, rooms[window])
                if first:
                    table = _remember(table, node * len(leaves) + window, num_remembered)
                    num_remembered += 1
        windows[number] = window
    return windows
