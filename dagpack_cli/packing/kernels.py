"""The compiled loops of the packers; nothing else imports numba, and this module only when needed.

Every kernel has a plain twin in the module that calls it, which says what it computes. No
recursion: tries are as deep as a corpus makes them.

The pool of `bundle` is a segment tree over slacks that holds only the branches it uses. Merging
two trees frees a node for every one they have in common, so all merges together cost no more than
the insertions. At a leaf of the segment tree stands a skew heap (Sleator and Tarjan, 1986) of the
bundles with that slack, by first leaf: melding it takes no balance data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit  # type: ignore[import-untyped, unused-ignore]

__all__ = ["bundle", "climb", "forest_columns", "next_fit", "walk_starts"]

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


# --- the pool of `bundle`: segment trees over slack, skew heaps at their leaves -------------------
#
# nodes[x] = (left child, right child) of segment tree node x; 0 is no node. On the last level the
# first entry is 1 + the top bundle of the heap. free = [first node never used, top of the list of
# freed nodes, linked by their first entry]. heap[b] = (left child, right child) of bundle b, or -1.


@kernel
def _new_node(nodes: Int32s, free: Int64s) -> Number:
    node = free[1]
    if node:
        free[1] = nodes[node, 0]
    else:
        node = free[0]
        free[0] += 1
    nodes[node, 0] = 0
    nodes[node, 1] = 0
    return node


@kernel
def _free_node(nodes: Int32s, free: Int64s, node: Number) -> None:
    nodes[node, 0] = free[1]
    free[1] = node


@kernel
def _meld(heap: Int32s, left: Number, right: Number) -> Number:
    """Return the top of two skew heaps as one; -1 is the empty heap. Amortised O(log n)."""
    top = np.int64(-1)
    above = np.int64(-1)
    while left >= 0 and right >= 0:
        if right < left:
            left, right = right, left
        if above < 0:
            top = left
        else:
            heap[above, 0] = left
        rest = np.int64(heap[left, 1])
        heap[left, 1] = heap[left, 0]
        above = left
        left = rest
    remaining = left if left >= 0 else right
    if above < 0:
        return remaining
    heap[above, 0] = remaining
    return top


@kernel
def _insert(
    nodes: Int32s, free: Int64s, heap: Int32s, num_bits: Number, root: Number, slack: Number, bundle: Number
) -> tuple[Int32s, Number]:
    """Return (nodes, root) of the pool with a bundle added; nodes are replaced when they run out. O(num_bits)."""
    if free[0] + num_bits + 1 >= len(nodes):
        larger = np.zeros((2 * len(nodes), 2), dtype=np.int32)
        larger[: len(nodes)] = nodes
        nodes = larger
    if root == 0:
        root = _new_node(nodes, free)
    node = root
    for bit in range(num_bits - 1, -1, -1):
        side = (slack >> bit) & 1
        below = np.int64(nodes[node, side])
        if below == 0:
            below = _new_node(nodes, free)
            nodes[node, side] = below
        node = below
    heap[bundle, 0] = -1
    heap[bundle, 1] = -1
    nodes[node, 0] = 1 + _meld(heap, np.int64(nodes[node, 0]) - 1, bundle)
    return nodes, root


@kernel
def _descend(nodes: Int32s, path: Int64s, num_bits: Number, level: Number, side: Number) -> Number:
    """Fill the path from ``level`` down, on ``side`` wherever there is one; return the sum of the bits taken."""
    slack = 0
    for depth in range(level, num_bits):
        node = path[depth]
        taken = side if nodes[node, side] else 1 - side
        slack |= taken << (num_bits - 1 - depth)
        path[depth + 1] = nodes[node, taken]
    return slack


@kernel
def _pop_path(nodes: Int32s, free: Int64s, heap: Int32s, num_bits: Number, path: Int64s) -> tuple[Number, Number]:
    """Take the top bundle at the end of a path; return (root, bundle). Empty branches are freed."""
    node = path[num_bits]
    bundle = np.int64(nodes[node, 0]) - 1
    nodes[node, 0] = 1 + _meld(heap, np.int64(heap[bundle, 0]), np.int64(heap[bundle, 1]))
    depth = num_bits
    while nodes[node, 0] == 0 and nodes[node, 1] == 0:
        _free_node(nodes, free, node)
        if depth == 0:
            return 0, bundle
        above = path[depth - 1]
        nodes[above, 0 if nodes[above, 0] == node else 1] = 0
        depth -= 1
        node = above
    return path[0], bundle


@kernel
def _find_at_least(nodes: Int32s, path: Int64s, num_bits: Number, root: Number, slack: Number) -> bool:
    """Fill the path to the smallest slack that is at least the one given; return whether there is one."""
    if root == 0:
        return False
    path[0] = root
    turn = -1  # the deepest level where the path went left and could have gone right
    depth = 0
    while depth < num_bits:
        node = path[depth]
        side = (slack >> (num_bits - 1 - depth)) & 1
        if side == 0 and nodes[node, 1]:
            turn = depth
        if nodes[node, side] == 0:
            break
        path[depth + 1] = nodes[node, side]
        depth += 1
    if depth == num_bits:
        return True
    if turn < 0:
        return False
    path[turn + 1] = nodes[path[turn], 1]
    _descend(nodes, path, num_bits, turn + 1, 0)
    return True


@kernel
def _merge(
    nodes: Int32s, free: Int64s, heap: Int32s, num_bits: Number, left: Number, right: Number, stack: Int64s
) -> Number:
    """Return the root of two pools as one; costs the nodes they have in common, which are freed."""
    if left == 0 or right == 0:
        return left + right
    stack[0, 0], stack[0, 1], stack[0, 2] = left, right, 0
    size = 1
    while size:
        size -= 1
        into, other, depth = stack[size, 0], stack[size, 1], stack[size, 2]
        if depth == num_bits:
            nodes[into, 0] = 1 + _meld(heap, np.int64(nodes[into, 0]) - 1, np.int64(nodes[other, 0]) - 1)
        else:
            for side in range(2):
                if nodes[into, side] == 0:
                    nodes[into, side] = nodes[other, side]
                elif nodes[other, side]:
                    stack[size, 0], stack[size, 1], stack[size, 2] = nodes[into, side], nodes[other, side], depth + 1
                    size += 1
        _free_node(nodes, free, other)
    return left


@kernel
def _sort(keys: Int64s, spare: Int64s, size: Number) -> None:
    """Sort keys[:size] in place, O(size log size) whatever they are: insertion sort, then merges."""
    width = 16
    for low in range(0, size, width):
        for at in range(low + 1, min(low + width, size)):
            key = keys[at]
            while at > low and keys[at - 1] > key:
                keys[at] = keys[at - 1]
                at -= 1
            keys[at] = key
    while width < size:
        for low in range(0, size, 2 * width):
            middle, high = min(low + width, size), min(low + 2 * width, size)
            left, right = low, middle
            for at in range(low, high):
                if left < middle and (right >= high or keys[left] <= keys[right]):
                    spare[at] = keys[left]
                    left += 1
                else:
                    spare[at] = keys[right]
                    right += 1
        keys[:size] = spare[:size]
        width *= 2


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
        if _find_at_least(nodes, path, num_bits, pool, usage):
            pool, target = _pop_path(nodes, free, heap, num_bits, path)
            first, second = min(bundle, target), max(bundle, target)
            owners[second] = first
            slacks[first] = slacks[target] - usage
            bundle = first
        if slacks[bundle] > 0:
            nodes, pool = _insert(nodes, free, heap, num_bits, pool, slacks[bundle], bundle)
    return nodes, pool


@kernel
def _take_open(
    nodes: Int32s, free: Int64s, heap: Int32s, path: Int64s, pool: Number, room: Number
) -> tuple[Number, Number]:
    """Return (pool, bundle) after taking out the bundle at half of the room or less, if there is one; else -1."""
    if pool == 0:
        return pool, -1
    path[0] = pool
    if 2 * _descend(nodes, path, len(path) - 1, 0, 1) < room:
        return pool, -1
    return _pop_path(nodes, free, heap, len(path) - 1, path)


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
        pool = _merge(nodes, free, heap, num_bits, pool, np.int64(pools[child]), stack)
        bundle = np.int64(open_bundles[child])
        if bundle >= 0 and 2 * slacks[bundle] >= room:
            small[num_small] = slacks[bundle] << 32 | bundle
            num_small += 1
        elif bundle >= 0:
            nodes, pool = _insert(nodes, free, heap, num_bits, pool, slacks[bundle], bundle)
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
        _sort(small, spare, num_small)
        nodes, pool = _fit(nodes, free, heap, path, pool, small[:num_small], slacks, owners, room)
        pools[node], open_bundles[node] = _take_open(nodes, free, heap, path, pool, room)
    return _number_windows(owners)
