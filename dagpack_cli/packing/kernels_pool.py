"""A pool of bundles by slack, compiled: what `kernels_bundle` and `kernels_eliminate` find the best fit in.

It is a segment tree over slacks that holds only the branches it uses. Merging
two trees frees a node for every one they have in common, so all merges together cost no more than
the insertions. At a leaf of the segment tree stands a skew heap (Sleator and Tarjan, 1986) of the
bundles with that slack, by first leaf: melding it takes no balance data.
"""

from __future__ import annotations

import numpy as np

from dagpack_cli.packing.kernels import Int32s, Int64s, Number, kernel

__all__ = ["descend", "find_at_least", "insert", "merge_pools", "pop_path", "sort_keys", "take_open"]

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
def insert(
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
def descend(nodes: Int32s, path: Int64s, num_bits: Number, level: Number, side: Number) -> Number:
    """Fill the path from ``level`` down, on ``side`` wherever there is one; return the sum of the bits taken."""
    slack = 0
    for depth in range(level, num_bits):
        node = path[depth]
        taken = side if nodes[node, side] else 1 - side
        slack |= taken << (num_bits - 1 - depth)
        path[depth + 1] = nodes[node, taken]
    return slack


@kernel
def pop_path(nodes: Int32s, free: Int64s, heap: Int32s, num_bits: Number, path: Int64s) -> tuple[Number, Number]:
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
def find_at_least(nodes: Int32s, path: Int64s, num_bits: Number, root: Number, slack: Number) -> bool:
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
    descend(nodes, path, num_bits, turn + 1, 0)
    return True


@kernel
def merge_pools(
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
def take_open(
    nodes: Int32s, free: Int64s, heap: Int32s, path: Int64s, pool: Number, room: Number
) -> tuple[Number, Number]:
    """Return (pool, bundle) after taking out the bundle at half of the room or less, if there is one; else -1."""
    if pool == 0:
        return pool, -1
    path[0] = pool
    if 2 * descend(nodes, path, len(path) - 1, 0, 1) < room:
        return pool, -1
    return pop_path(nodes, free, heap, len(path) - 1, path)


@kernel
def sort_keys(keys: Int64s, spare: Int64s, size: Number) -> None:
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
