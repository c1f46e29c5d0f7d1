"""The compiled pass of `streaming`, whose plain twin says what is computed; imported only when needed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dagpack_cli.packing.kernels import Int64s, Number, kernel

__all__ = ["CompiledStream"]


Limits = tuple[Number, Number, Number]  # windows' worth and bundles that may wait, and rows that hardly matter


class _Levels(NamedTuple):
    """Open nodes: room below, exclusive subtree end, where bundles begin on the stack, their slacks' sum, children."""

    rooms: Int64s
    ends: Int64s
    starts: Int64s
    sums: Int64s
    children: Int64s


@kernel
def _find(stack: Int64s, start: Number, stop: Number, slack: Number) -> Number:
    """Return where in a sorted part of the stack the first bundle with at least a slack is."""
    while start < stop:
        middle = (start + stop) // 2
        if stack[middle] >> 32 < slack:
            start = middle + 1
        else:
            stop = middle
    return start


@kernel
def _insert_sorted(stack: Int64s, start: Number, stop: Number, key: Number) -> None:
    """Insert into a sorted part of the stack, of which the entry at ``stop`` is lost."""
    while stop > start and stack[stop - 1] > key:
        stack[stop] = stack[stop - 1]
        stop -= 1
    stack[stop] = key


@kernel
def _pack(stack: Int64s, start: Number, top: Number, owners: Int64s, room: Number) -> tuple[Number, Number]:
    """Put the small bundles from ``start`` on where they leave least room; return the new top and the slacks' sum."""
    stack[start:top].sort()
    stop = _find(stack, start, top, (room + 1) // 2)
    for at in range(stop, top):
        slack, name = stack[at] >> 32, stack[at] & 0xFFFFFFFF
        target = _find(stack, start, stop, room - slack)
        if target < stop:
            other = stack[target] & 0xFFFFFFFF
            slack += (stack[target] >> 32) - room
            owners[max(name, other)] = min(name, other)
            name = min(name, other)
            stop -= 1
            for moved in range(target, stop):
                stack[moved] = stack[moved + 1]
        if slack > 0:
            _insert_sorted(stack, start, stop, slack << 32 | name)
            stop += 1
    total = np.int64(0)
    for at in range(start, stop):
        total += stack[at] >> 32
    return stop, total


@kernel
def _close(stack: Int64s, levels: _Levels, cursor: Int64s, owners: Int64s, limits: Limits) -> None:
    """Close the deepest open node: its bundles are its parent's, which packs early if too much waits."""
    pending, most_entries, hardly = limits
    deepest, top = cursor[0], cursor[1]
    if levels.children[deepest] > 1:
        top, levels.sums[deepest] = _pack(stack, levels.starts[deepest], top, owners, levels.rooms[deepest])
    above = deepest - 1
    levels.children[above] += 1
    levels.sums[above] += levels.sums[deepest]
    start, room = levels.starts[above], levels.rooms[above]
    if (top - start) * room - levels.sums[above] > pending * room or top - start > most_entries:
        top, levels.sums[above] = _pack(stack, start, top, owners, room)
        if (top - start) * room - levels.sums[above] > pending * room:
            full = _find(stack, start, top, hardly + 1)
            kept = full + (top - full + 1) // 2
            levels.sums[above] = 0
            for at in range(kept, top):
                stack[start + at - kept] = stack[at]
                levels.sums[above] += stack[at] >> 32
            top = start + top - kept
    cursor[0], cursor[1] = above, top


@kernel
def _take(
    stack: Int64s,
    levels: _Levels,
    cursor: Int64s,
    owners: Int64s,
    chunk: tuple[Number, Int64s, Int64s],
    seq_len: Number,
    limits: Limits,
) -> Int64s:
    """Take a chunk of nodes; return the stack, which grows. ``cursor`` is (deepest open node, top, next leaf)."""
    low, ends, bottoms = chunk
    for at in range(len(ends)):
        while levels.ends[cursor[0]] <= low + at:
            _close(stack, levels, cursor, owners, limits)
        cursor[0] += 1
        deepest = cursor[0]
        room = seq_len - bottoms[at]
        levels.rooms[deepest], levels.ends[deepest], levels.starts[deepest] = room, ends[at], cursor[1]
        levels.children[deepest], levels.sums[deepest] = 0, 0
        if ends[at] == low + at + 1:
            if room > 0:
                if cursor[1] + 1 >= len(stack):
                    stack = np.concatenate((stack, np.empty(len(stack), dtype=np.int64)))
                stack[cursor[1]] = room << 32 | cursor[2]
                levels.sums[deepest] = room
                cursor[1] += 1
            cursor[2] += 1
    if cursor[2] == len(owners):
        while cursor[0] > 0:
            _close(stack, levels, cursor, owners, limits)
        cursor[1], _ = _pack(stack, 0, cursor[1], owners, seq_len)
    return stack


class CompiledStream:
    """What `streaming` keeps between chunks: the stack, the open nodes, and the bundle each leaf is in."""

    def __init__(self, num_leaves: int, seq_len: int, limits: tuple[int, int, int]) -> None:
        self.owners = np.arange(num_leaves, dtype=np.int64)
        self._seq_len = seq_len
        self._limits = limits
        self._stack = np.empty(1024, dtype=np.int64)
        columns = np.zeros((5, seq_len + 3), dtype=np.int64)  # a path has at most an empty root and a node a row
        self._levels = _Levels(columns[0], columns[1], columns[2], columns[3], columns[4])
        self._levels.rooms[0], self._levels.ends[0] = seq_len, 2**62
        self._cursor = np.zeros(3, dtype=np.int64)

    def take(self, low: int, ends: Int64s, bottoms: Int64s) -> None:
        """Take the next nodes, of which the first is number ``low``."""
        chunk = (low, ends, bottoms)
        self._stack = _take(self._stack, self._levels, self._cursor, self.owners, chunk, self._seq_len, self._limits)
