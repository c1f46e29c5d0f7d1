"""The compiled loops of the bounds. Their plain twins say what they compute.

A node's entries lie on one stack: visiting nodes backwards, the lists of a node's children are on
top of it, and the node's own list, never longer than theirs together, takes their place.
"""

from __future__ import annotations

import numpy as np

from dagpack_cli.packing.kernels import Int32s, Int64s, Number, kernel

__all__ = ["profile_sweep"]

# Columns of a child's state in `_scan`: rows of its entries outside A, its windows in A (a), rows (P),
# 1 where all of its parts count, windows seen.
_LISTED, _ALONE, _ROWS, _WHOLE, _SEEN = range(5)


@kernel
def _merge_runs(keys: Int64s, spare: Int64s, bounds: Int64s, num: Number) -> None:
    """Sort keys that are ``num`` sorted runs, run i in [bounds[i], bounds[i + 1]); O(size log num)."""
    while num > 1:
        merged = 0
        for run in range(0, num, 2):
            low = bounds[run]
            if run + 1 < num:
                middle, high = bounds[run + 1], bounds[run + 2]
                left, right = low, middle
                for at in range(low, high):
                    if left < middle and (right >= high or keys[left] <= keys[right]):
                        spare[at] = keys[left]
                        left += 1
                    else:
                        spare[at] = keys[right]
                        right += 1
                keys[low:high] = spare[low:high]
            else:
                high = bounds[run + 1]
            bounds[merged] = low
            merged += 1
            bounds[merged] = high
        num = merged


@kernel
def _outside(children: Int64s, child: Number, room: Number) -> Number:
    """Return R(c): rows that a child has outside of A."""
    if children[child, _WHOLE]:
        return max(children[child, _LISTED], children[child, _ROWS] - children[child, _ALONE] * room)
    return children[child, _LISTED]


@kernel
def _scan(
    keys: Int64s, num: Number, entries: Int64s, owners: Int32s, children: Int64s, room: Number, found: Int64s
) -> tuple[Number, Number]:
    """Return w and how many entries there are in ``found``, columns slack and windows, slacks ascending.

    ``keys[:num]`` are ascending: slack << 32 | entry << 1, or slack << 32 | child << 1 | 1 behind a child's last.
    """
    windows = num_found = most_of_one = np.int64(0)
    seen, alone, rows = np.int64(0), np.int64(0), np.int64(0)
    first_outside = 0  # keys[:first_outside] are in A
    for at in range(num):
        slack = keys[at] >> 32
        size, entry = room - slack, (keys[at] & 0xFFFFFFFF) >> 1
        last = keys[at] & 1
        child = entry if last else np.int64(owners[entry])
        before = _outside(children, child, room)
        if last:
            children[child, _WHOLE] = 1
        else:
            weight = entries[entry, 1]
            seen += weight
            children[child, _SEEN] += weight
            most_of_one = max(most_of_one, children[child, _SEEN])
            if 2 * size > room:
                children[child, _ALONE] += weight
                alone += weight
            else:
                children[child, _LISTED] += weight * size
        rows += _outside(children, child, room) - before
        if 2 * size > room:
            first_outside = at + 1
        while first_outside and room - (keys[first_outside - 1] >> 32) <= room - size:
            first_outside -= 1
            key = keys[first_outside]
            if key & 1 == 0:
                entry = (key & 0xFFFFFFFF) >> 1
                child = np.int64(owners[entry])
                weight = entries[entry, 1]
                before = _outside(children, child, room)
                children[child, _ALONE] -= weight
                children[child, _LISTED] += weight * (room - (key >> 32))
                alone -= weight
                rows += _outside(children, child, room) - before
        each = room // size  # parts of this size that fit into a window
        needed = max(most_of_one, alone + max(-(-rows // room), -(-(seen - alone) // each)))
        if needed > windows:
            if num_found == 0 or found[num_found - 1, 0] < slack:
                found[num_found, 0], found[num_found, 1] = slack, 0
                num_found += 1
            found[num_found - 1, 1] += needed - windows
            windows = needed
    return windows, num_found


@kernel
def _round_slacks(found: Int64s, num: Number, most: int, largest: Number) -> Number:
    """Return how many entries there are after their slacks were rounded up, by the power of two it takes."""
    power = 0
    while num > most:
        power += 1
        kept = 0
        for at in range(num):
            slack = min(-(-found[at, 0] >> power) << power, largest)
            if kept and found[kept - 1, 0] == slack:
                found[kept - 1, 1] += found[at, 1]
            else:
                found[kept, 0], found[kept, 1] = slack, found[at, 1]
                kept += 1
        num = kept
    return num


@kernel
def _sum_children(
    span: tuple[Number, Number],
    ends: Int32s,
    rows: Int64s,
    least: Int64s,
    kept: Int32s,
    stack: Int64s,
    size: Number,
    room: Number,
) -> tuple[Number, Number, Number, Number, Number]:
    """Return sum of P, least m, smallest slack, number of children in a range, and where their lists begin."""
    volume, num = np.int64(0), 0
    smallest: Number = room
    fullest: Number = room
    child, stop = span
    while child < stop:  # the first child's list is on top
        size -= kept[child]
        volume += np.int64(rows[child])
        smallest = min(smallest, least[child])
        fullest = min(fullest, np.int64(stack[size, 0]))
        num += 1
        child = np.int64(ends[child])
    return volume, smallest, fullest, num, size


@kernel
def _list_entries(
    span: tuple[Number, Number],
    ends: Int32s,
    claims: tuple[Int64s, Int64s],
    kept: Int32s,
    stack: Int64s,
    size: Number,
    room: Number,
    keys: Int64s,
    bounds: Int64s,
    children: Int64s,
    owners: Int32s,
) -> Number:
    """Fill keys, the bounds of their runs, the children's states and the entries' owners; return how many keys."""
    rows, least = claims
    num_keys = num = 0
    child, stop = span
    bounds[0] = 0
    while child < stop:
        size -= kept[child]
        for at in range(size, size + kept[child]):
            keys[num_keys] = stack[at, 0] << 32 | at << 1
            num_keys += 1
            owners[at] = num
        keys[num_keys] = (room - least[child]) << 32 | num << 1 | 1
        num_keys += 1
        children[num] = 0
        children[num, _ROWS] = rows[child]
        num += 1
        bounds[num] = num_keys
        child = np.int64(ends[child])
    return num_keys


@kernel
def profile_sweep(lengths: Int64s, depths: Int64s, ends: Int32s, seq_len: int, most: int) -> tuple[Int64s, Number]:
    """Return (windows, rows) of `profile_bound.profile_sweep`, with at most ``most`` entries a node."""
    num = len(ends)
    num_leaves = np.sum(ends == np.arange(1, num + 1))
    stack, size = np.empty((num_leaves, 2), dtype=np.int64), 0
    keys, spare = np.empty(2 * num_leaves, dtype=np.int64), np.empty(2 * num_leaves, dtype=np.int64)
    bounds = np.zeros(num_leaves + 1, dtype=np.int64)
    children, owners = np.zeros((num_leaves, 5), dtype=np.int64), np.zeros(num_leaves, dtype=np.int32)
    found = np.empty((2 * num_leaves, 2), dtype=np.int64)
    # The last slot is the super-root's, which is node -1.
    windows, rows = np.ones(num + 1, dtype=np.int64), np.zeros(num + 1, dtype=np.int64)
    least, kept = np.zeros(num + 1, dtype=np.int64), np.zeros(num + 1, dtype=np.int32)
    for node in range(num - 1, -2, -1):
        length = lengths[node] if node >= 0 else np.int64(0)
        room = seq_len - depths[node] - length if node >= 0 else np.int64(seq_len)
        stop = np.int64(ends[node]) if node >= 0 else num
        child = np.int64(node + 1)
        if child == stop:
            stack[size, 0], stack[size, 1] = room, 1
            size += 1
            rows[node], least[node], kept[node] = length, length, 1
            continue
        if ends[child] == stop:
            windows[node], kept[node] = windows[child], kept[child]
            rows[node], least[node] = rows[child] + length * windows[child], least[child] + length
            continue
        volume, smallest, fullest, num_children, top = _sum_children(
            (child, stop), ends, rows, least, kept, stack, size, room
        )
        least[node] = smallest + length
        if volume <= room:
            stack[top, 0], stack[top, 1] = fullest, 1
            size = top + 1
            rows[node], kept[node] = volume + length, 1
            continue
        num_keys = _list_entries(
            (child, stop), ends, (rows, least), kept, stack, size, room, keys, bounds, children, owners
        )
        _merge_runs(keys, spare, bounds, num_children)
        windows[node], num_found = _scan(keys, num_keys, stack, owners, children, room, found)
        listed = np.int64(0)
        for at in range(num_found):
            listed += (room - found[at, 0] + length) * found[at, 1]
        rows[node] = max(volume + length * windows[node], listed)
        kept[node] = _round_slacks(found, num_found, most, room - smallest)
        stack[top : top + kept[node]] = found[: kept[node]]
        size = top + kept[node]
    return windows, rows[num]
