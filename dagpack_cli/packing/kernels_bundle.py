"""The compiled loop of `bundle`."""

from __future__ import annotations

import numpy as np

from dagpack_cli.packing.kernels import Int32s, Int64s, Number, kernel
from dagpack_cli.packing.kernels_pool import find_at_least, insert, merge_pools, pop_path, sort_keys, take_open

__all__ = ["bundle"]


@kernel
def _number_windows(owners: Int32s) -> Int64s:
    """Return dense window numbers by first leaf; an owner is the leaf itself or an earlier one."""
    windows = np.empty(len(owners), dtype=np.int64)
    num_windows = 0
    for leaf in range(len(owners)):
        if owners[leaf] == leaf:
            windows[leaf] = num_windows
            num_windows += 1
        else:
            windows[leaf] = windows[owners[leaf]]
    return windows


@kernel
def _join(small: Int64s, num_small: Number, slacks: Int64s, owners: Int32s, room: Number) -> bool:
    """Merge all small bundles into one if together they fit, and return whether they did."""
    usage = np.int64(0)
    first = np.int64(len(owners))
    for at in range(num_small):
        bundle = small[at] & 0xFFFFFFFF
        usage += room - slacks[bundle]
        first = min(first, bundle)
    if usage > room:
        return False
    for at in range(num_small):
        owners[small[at] & 0xFFFFFFFF] = first
    slacks[first] = room - usage
    return True


@kernel
def _fit(
    nodes: Int32s,
    free: Int64s,
    heap: Int32s,
    path: Int64s,
    pool: Number,
    small: Int64s,
    slacks: Int64s,
    owners: Int32s,
    room: Number,
) -> tuple[Int32s, Number]:
    """Return (nodes, pool) with the sorted small bundles put where they leave least room, or beside the others."""
    num_bits = len(path) - 1
    for key in small:
        bundle = key & 0xFFFFFFFF
        usage = room - slacks[bundle]
        if find_at_least(nodes, path, num_bits, pool, usage):
            pool, target = pop_path(nodes, free, heap, num_bits, path)
            first, second = min(bundle, target), max(bundle, target)
            owners[second] = first
            slacks[first] = slacks[target] - usage
            bundle = first
        if slacks[bundle] > 0:
            nodes, pool = insert(nodes, free, heap, num_bits, pool, slacks[bundle], bundle)
    return nodes, pool


@kernel
def _gather(
    nodes: Int32s,
    free: Int64s,
    heap: Int32s,
    stack: Int64s,
    num_bits: Number,
    children: tuple[Number, Number],
    ends: Int32s,
    open_bundles: Int32s,
    pools: Int32s,
    slacks: Int64s,
    room: Number,
    small: Int64s,
) -> tuple[Int32s, Number, Number]:
    """Return (nodes, pool, number of small bundles) of children in a range; the small ones fill ``small``."""
    pool = np.int64(0)
    num_small = 0
    child, stop = children
    while child < stop:
        pool = merge_pools(nodes, free, heap, num_bits, pool, np.int64(pools[child]), stack)
        bundle = np.int64(open_bundles[child])
        if bundle >= 0 and 2 * slacks[bundle] >= room:
            small[num_small] = slacks[bundle] << 32 | bundle
            num_small += 1
        elif bundle >= 0:
            nodes, pool = insert(nodes, free, heap, num_bits, pool, slacks[bundle], bundle)
        child = np.int64(ends[child])
    return nodes, pool, num_small


@kernel
def bundle(ends: Int32s, bottoms: Int64s, seq_len: int) -> Int64s:
    """Return the window of every leaf of `bundle.bundle_leaves`.

    Args:
        ends: shape (n,), int32; exclusive subtree ends.
        bottoms: shape (n,), int64; rows of the path down to the end of each node's run.
        seq_len: most rows a window may hold, below 2^31.
    """
    num = len(ends)
    leaf = num_leaves = np.sum(ends == np.arange(1, num + 1))
    num_bits = 1
    while seq_len >> num_bits:
        num_bits += 1
    nodes, free = np.zeros((1024, 2), dtype=np.int32), np.array([1, 0])
    heap = np.empty((num_leaves, 2), dtype=np.int32)
    path, stack = np.zeros(num_bits + 1, dtype=np.int64), np.zeros((2 * num_bits + 2, 3), dtype=np.int64)
    slacks, owners = np.zeros(num_leaves, dtype=np.int64), np.arange(num_leaves).astype(np.int32)
    small, spare = np.empty(num_leaves, dtype=np.int64), np.empty(num_leaves, dtype=np.int64)
    # The last slot is the super-root's, which is node -1.
    open_bundles, pools = np.full(num + 1, -1, dtype=np.int32), np.zeros(num + 1, dtype=np.int32)
    for node in range(num - 1, -2, -1):
        room = seq_len - bottoms[node] if node >= 0 else np.int64(seq_len)
        stop = np.int64(ends[node]) if node >= 0 else num
        child = np.int64(node + 1)
        if child == stop:
            if node >= 0:
                leaf -= 1
                slacks[leaf] = room
                open_bundles[node] = leaf if room > 0 else -1
            continue
        if ends[child] == stop:
            open_bundles[node], pools[node] = open_bundles[child], pools[child]
            continue
        nodes, pool, num_small = _gather(
            nodes, free, heap, stack, num_bits, (child, stop), ends, open_bundles, pools, slacks, room, small
        )
        if pool == 0 and num_small and _join(small, num_small, slacks, owners, room):
            joined = np.int64(owners[small[0] & 0xFFFFFFFF])
            open_bundles[node] = joined if slacks[joined] > 0 else -1
            continue
        sort_keys(small, spare, num_small)
        nodes, pool = _fit(nodes, free, heap, path, pool, small[:num_small], slacks, owners, room)
        pools[node], open_bundles[node] = take_open(nodes, free, heap, path, pool, room)
    return _number_windows(owners)
