"""The compiled loops of the bounds. Their plain twins say what they compute.

Nodes are visited backwards, so what is claimed of the children of a node lies on top of one stack, and
the node's own claim takes its place. A child of one window keeps the one entry that it has with it; the lists of the
others lie on a second stack, in the same order. The two stacks are all that is held, so the columns of
a forest may lie in files. Thousands of children of one window, as the roots of a corpus that shares little are,
become one claim for all that are alike, which changes nothing; where too many differ, sizes are
rounded down, which only weakens what is claimed.
"""

from __future__ import annotations

import numpy as np

from dagpack_cli.packing.kernels import Int32s, Int64s, Number, kernel

__all__ = ["MOST_CLAIMS", "profile_sweep", "volume_bound"]

MOST_CLAIMS = 1 << 16
"""Claims of children of one window that wait at a node before those that are alike become one."""

# Columns of a claim: windows, rows (P), least usage (m), slack of its one entry where it has one window, length of
# its list where it has several, how many children it stands for (P is of all of them), parent, and how many claims of
# one window there are down to it at its parent.
_WINDOWS, _P, _LEAST, _SLACK, _KEPT, _SAME, _PARENT, _RUN = range(8)

# Columns of a child's state in `_scan`: rows of its entries outside A, its windows in A (a), rows (P),
# 1 where all of its parts count, windows seen, how many children it stands for: the first two and the windows are of
# each of them, P is of all.
_LISTED, _ALONE, _ROWS, _WHOLE, _SEEN, _COPIES = range(6)


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
    """Return R(c): rows that a child has outside of A; of all that it stands for."""
    listed = children[child, _COPIES] * children[child, _LISTED]
    if children[child, _WHOLE]:
        return max(listed, children[child, _ROWS] - children[child, _COPIES] * children[child, _ALONE] * room)
    return listed


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
            seen += children[child, _COPIES] * weight
            children[child, _SEEN] += weight
            most_of_one = max(most_of_one, children[child, _SEEN])
            if 2 * size > room:
                children[child, _ALONE] += weight
                alone += children[child, _COPIES] * weight
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
                alone -= children[child, _COPIES] * weight
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


_Scratch = tuple[Int64s, Int64s, Int64s, Int64s, Int64s, Int64s, Int32s]


@kernel
def _make_scratch(num_entries: Number, num_children: Number) -> _Scratch:
    """Return room for so many: entries, found, keys, spare keys, bounds of runs, children, owners of entries."""
    num_keys = num_entries + num_children
    return (
        np.zeros((num_entries, 2), dtype=np.int64),
        np.zeros((num_keys, 2), dtype=np.int64),
        np.zeros(num_keys, dtype=np.int64),
        np.zeros(num_keys, dtype=np.int64),
        np.zeros(num_children + 1, dtype=np.int64),
        np.zeros((num_children, 6), dtype=np.int64),
        np.zeros(num_entries, dtype=np.int32),
    )


@kernel
def _list_entries(claims: Int64s, lists: Int64s, room: Number, scratch: _Scratch) -> Number:
    """Fill entries and their owners, keys and the bounds of their runs, and children's states; return how many keys."""
    entries, _, keys, _, bounds, children, owners = scratch
    num_keys = num = taken = 0
    bounds[0] = 0
    for child in range(len(claims)):
        for _ in range(max(claims[child, _KEPT], 1)):
            if claims[child, _KEPT]:
                entries[num, 0], entries[num, 1] = lists[taken, 0], lists[taken, 1]
                taken += 1
            else:
                entries[num, 0], entries[num, 1] = claims[child, _SLACK], 1
            keys[num_keys] = entries[num, 0] << 32 | num << 1
            owners[num] = child
            num += 1
            num_keys += 1
        keys[num_keys] = (room - claims[child, _LEAST]) << 32 | child << 1 | 1
        num_keys += 1
        children[child] = 0
        children[child, _ROWS], children[child, _COPIES] = claims[child, _P], claims[child, _SAME]
        bounds[child + 1] = num_keys
    return num_keys


@kernel
def _combine(
    claims: Int64s, lists: Int64s, length: Number, room: Number, most: int, scratch: _Scratch
) -> tuple[Number, Number, Number]:
    """Return windows, rows that the list proves, and its length, of a node of several windows; the list is `found`."""
    entries, found, keys, spare, bounds, children, owners = scratch
    num_keys = _list_entries(claims, lists, room, scratch)
    _merge_runs(keys, spare, bounds, len(claims))
    windows, num_found = _scan(keys, num_keys, entries, owners, children, room, found)
    listed = np.int64(0)
    for at in range(num_found):
        listed += (room - found[at, 0] + length) * found[at, 1]
    least = np.int64(room)
    for claim in claims:
        least = min(least, claim[_LEAST])
    return windows, listed, _round_slacks(found, num_found, most, room - least)


@kernel
def _merge_alike(claims: Int64s, most: Number, room: Number) -> Number:
    """Make claims of one window that are alike one, at most ``most``; return how many there are. O(n log n).

    ``room`` is that of their parent; usages are rounded down to a power of two as large as it takes.
    """
    quantum = 1
    while True:
        for claim in claims:
            claim[_LEAST] = max(claim[_LEAST] // quantum * quantum, 1)
            claim[_SLACK] = room - max((room - claim[_SLACK]) // quantum * quantum, claim[_LEAST])
        order = np.argsort(claims[:, _SLACK] << 32 | claims[:, _LEAST])
        ordered = claims[order]
        num = 0
        for claim in ordered:
            if num and claims[num - 1, _SLACK] == claim[_SLACK] and claims[num - 1, _LEAST] == claim[_LEAST]:
                claims[num - 1, _P] += claim[_P]
                claims[num - 1, _SAME] += claim[_SAME]
            else:
                claims[num] = claim
                num += 1
        if num <= most:
            return num
        claims = claims[:num]
        quantum *= 2


@kernel
def _larger(array: Int64s, needed: Number) -> Int64s:
    """Return the array, or a copy of it with room for at least so many rows."""
    if needed <= len(array):
        return array
    larger = np.empty((max(needed, 2 * len(array)), array.shape[1]), dtype=np.int64)
    larger[: len(array)] = array
    return larger


@kernel
def _push(claims: Int64s, num: Number, claim: Int64s, most: Number, room: Number) -> tuple[Int64s, Number]:
    """Return (claims, number) with one more, of whose siblings those of one window stay on top."""
    claims = _larger(claims, num + 1)
    run = np.int64(0)
    if num and claims[num - 1, _PARENT] == claim[_PARENT] and claims[num - 1, _WINDOWS] == 1:
        run = claims[num - 1, _RUN]
    if claim[_WINDOWS] > 1:
        claims[num] = claims[num - run]
        claims[num - run] = claim
        claims[num, _RUN] = run
        return claims, num + 1
    claims[num] = claim
    num, run = num + 1, run + 1
    if run >= most:
        merged = _merge_alike(claims[num - run : num], most // 2, room)
        num, run = num - run + merged, merged
    claims[num - 1, _RUN] = run
    return claims, num


@kernel
def _sum_claims(claims: Int64s, room: Number) -> tuple[Number, Number, Number, Number, Number]:
    """Return sum of P, least m and smallest slack of a node's children, entries in lists, and entries in all."""
    volume, least, fullest = np.int64(0), np.int64(room), np.int64(room)
    listed, num_entries = np.int64(0), np.int64(0)
    for claim in claims:
        volume += claim[_P]
        least = min(least, claim[_LEAST])
        listed += claim[_KEPT]
        num_entries += max(claim[_KEPT], 1)
        if claim[_KEPT] == 0:
            fullest = min(fullest, claim[_SLACK])
    return volume, least, fullest, listed, num_entries


@kernel
def profile_sweep(
    parents: Int32s, lengths: Int64s, depths: Int64s, seq_len: int, most: int, windows: Int64s, most_claims: int
) -> tuple[Number, Number, Number]:
    """Return (windows, rows, attention edges) of `profile_bound`, with at most ``most`` entries a node.

    ``windows``, shape (n,) or (0,) where nobody asks, is filled with what each node needs.
    """
    claims, num_claims = np.zeros((1024, 8), dtype=np.int64), 0
    lists, size = np.zeros((1024, 2), dtype=np.int64), np.int64(0)
    scratch = _make_scratch(1024, 1024)
    attention = np.int64(0)
    claim = np.zeros(8, dtype=np.int64)
    for node in range(len(parents) - 1, -2, -1):  # the super-root is node -1
        length = lengths[node] if node >= 0 else np.int64(0)
        depth = depths[node] if node >= 0 else np.int64(0)
        room = seq_len - depth - length
        first = num_claims
        while first and claims[first - 1, _PARENT] == node:
            first -= 1
        below = claims[first:num_claims]
        if len(below) == 0:
            claim[_WINDOWS], claim[_P], claim[_LEAST], claim[_SLACK], claim[_KEPT] = 1, length, length, room, 0
        elif len(below) == 1 and below[0, _SAME] == 1:
            claim[:] = below[0]
            claim[_P] += length * claim[_WINDOWS]
            claim[_LEAST] += length
        else:
            volume, least, fullest, listed, num_entries = _sum_claims(below, room)
            size -= listed
            claim[_WINDOWS], claim[_P], claim[_LEAST] = 1, volume + length, least + length
            claim[_SLACK], claim[_KEPT] = fullest, 0
            if volume > room:  # else nothing below has several windows
                if num_entries > len(scratch[0]) or len(below) > len(scratch[5]):
                    scratch = _make_scratch(2 * num_entries, 2 * len(below))
                needed, rows, kept = _combine(below, lists[size:], length, room, most, scratch)
                claim[_WINDOWS], claim[_P] = needed, max(volume + length * needed, rows)
                claim[_SLACK], claim[_KEPT] = 0, kept
                lists = _larger(lists, size + kept)
                lists[size : size + kept] = scratch[1][:kept]
                size += kept
        if node >= 0:
            if len(windows):
                windows[node] = claim[_WINDOWS]
            attention += claim[_WINDOWS] * (length * depth + length * (length + 1) // 2)
            claim[_SAME], claim[_PARENT], claim[_RUN] = 1, parents[node], 1
            claims, num_claims = _push(claims, first, claim, most_claims, seq_len - depth)
    return claim[_WINDOWS], claim[_P], attention


@kernel
def volume_bound(parents: Int32s, lengths: Int64s, depths: Int64s, seq_len: int) -> Number:
    """Return the windows of `bound.volume_bound`. O(n); what is held are the rows below the nodes of a path."""
    below, num = np.zeros((1024, 2), dtype=np.int64), 0  # node, rows below it: of those with children seen so far
    for node in range(len(parents) - 1, -1, -1):
        length = lengths[node]
        room = max(seq_len - depths[node] - length, 1)
        rows = np.int64(0)
        if num and below[num - 1, 0] == node:
            num -= 1
            rows = below[num, 1]
        windows = max(1, (rows + room - 1) // room)
        if num == 0 or below[num - 1, 0] != parents[node]:
            below = _larger(below, num + 1)
            below[num, 0], below[num, 1] = parents[node], 0
            num += 1
        below[num - 1, 1] += length * windows + rows
    return (below[0, 1] + seq_len - 1) // seq_len if num else np.int64(0)
