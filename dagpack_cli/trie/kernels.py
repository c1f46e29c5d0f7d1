"""The compiled loops of the trie; with its neighbours of the same name the only module that imports numba.

Imported inside functions, so that nothing small waits for a compiler. Every loop has a plain twin in
the module that calls it, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from dagpack_cli.sequences import Sequences

__all__ = ["cut_segments", "gather", "merge_runs", "sort_sequences", "subtree_ends", "sweep_weights"]

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compiled(function: _Function) -> _Function:
    return cast("_Function", numba.njit(cache=True, nogil=True)(function))


@_compiled
def _find(keys: Int64Array, key: int) -> Any:
    """Return the slot of ``key`` in an open-addressing table, or the free slot where it belongs."""
    mask = len(keys) - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    slot = np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(mask))
    while keys[slot] != -1 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@_compiled
def _insert_all(
    tokens: Int32Array,
    starts: Int64Array,
    lengths: Int64Array,
    keys: Int64Array,
    values: Int64Array,
    nodes: Int64Array,
    next_same: Int64Array,
) -> int:
    """Insert every sequence into a radix trie; return the number of nodes.

    ``nodes`` columns: 0 first token's position, 1 depth of its end, 2 parent, 3 first and 4 last
    sequence that ends there. Node 0 is the empty root. A sequence resumes from the deepest node
    that it shares with its predecessor, so a chain of growing sequences costs its tokens once.
    """
    num_nodes = 1
    num = len(starts)
    longest = 0
    for i in range(num):
        longest = max(longest, lengths[i])
    path = np.zeros(longest + 2, dtype=np.int64)
    path_length = 1  # path[0] is the root
    for i in range(num):
        start, length = starts[i], lengths[i]
        shared = 0
        if i:
            before = starts[i - 1]
            limit = min(length, lengths[i - 1])
            while shared < limit and tokens[before + shared] == tokens[start + shared]:
                shared += 1
        low, high = 0, path_length - 1  # the deepest node of the previous path that ends by `shared`
        while low < high:
            middle = (low + high + 1) // 2
            if nodes[path[middle], 1] <= shared:
                low = middle
            else:
                high = middle - 1
        path_length = low + 1
        node = path[low]
        depth = nodes[node, 1]
        known = shared  # tokens up to here are known to equal the node that follows on the old path
        while depth < length:
            slot = _find(keys, node * 2147483648 + tokens[start + depth])
            if keys[slot] == -1:
                child = num_nodes
                num_nodes += 1
                keys[slot] = node * 2147483648 + tokens[start + depth]
                values[slot] = child
                nodes[child, 0] = start + depth
                nodes[child, 1] = length
                nodes[child, 2] = node
                nodes[child, 3] = -1
                nodes[child, 4] = -1
                node = child
                depth = length
            else:
                child = values[slot]
                child_start = nodes[child, 0]
                end = min(nodes[child, 1], length)
                matched = max(depth + 1, min(known, end))
                while matched < end and tokens[child_start + matched - depth] == tokens[start + matched]:
                    matched += 1
                if matched == nodes[child, 1]:
                    node = child
                else:  # split: a new node takes the upper part, the old one keeps the lower
                    upper = num_nodes
                    num_nodes += 1
                    nodes[upper, 0] = child_start
                    nodes[upper, 1] = matched
                    nodes[upper, 2] = node
                    nodes[upper, 3] = -1
                    nodes[upper, 4] = -1
                    values[slot] = upper
                    nodes[child, 0] = child_start + matched - depth
                    nodes[child, 2] = upper
                    lower = _find(keys, upper * 2147483648 + tokens[nodes[child, 0]])
                    keys[lower] = upper * 2147483648 + tokens[nodes[child, 0]]
                    values[lower] = child
                    node = upper
                depth = matched
            path[path_length] = node
            path_length += 1
        if nodes[node, 3] == -1:
            nodes[node, 3] = i
        else:
            next_same[nodes[node, 4]] = i
        nodes[node, 4] = i
    return num_nodes


@_compiled
def _emit(
    nodes: Int64Array,
    first_child: Int64Array,
    sibling: Int64Array,
    next_same: Int64Array,
    order: Int64Array,
    lcp: Int64Array,
) -> None:
    """Walk the trie depth first, children by token, and write the order and the shared prefixes."""
    node, position, shared = 0, 0, 0
    while True:
        sequence = nodes[node, 3]
        while sequence != -1:
            order[position] = sequence
            lcp[position] = shared if position else 0
            shared = nodes[node, 1]
            position += 1
            sequence = next_same[sequence]
        if first_child[node] != -1:
            shared = min(shared, nodes[node, 1])
            node = first_child[node]
            continue
        while node and sibling[node] == -1:
            node = nodes[node, 2]
        if node == 0:
            return
        shared = min(shared, nodes[nodes[node, 2], 1])
        node = sibling[node]


def sort_sequences(sequences: Sequences) -> tuple[Int64Array, Int64Array]:
    """Compiled twin of the sort of one chunk in `dagpack_cli.trie.order`."""
    tokens, num = sequences.tokens, len(sequences)
    size = 1 << max(4, int(4 * num + 8).bit_length())
    keys = np.full(size, -1, dtype=np.int64)
    values = np.empty(size, dtype=np.int64)
    nodes = np.empty((2 * num + 1, 5), dtype=np.int64)
    nodes[0] = (0, 0, -1, -1, -1)
    next_same = np.full(num, -1, dtype=np.int64)
    num_nodes = _insert_all(tokens, sequences.starts, sequences.lengths, keys, values, nodes, next_same)
    del keys, values
    nodes = nodes[:num_nodes]
    by_parent = np.lexsort((tokens[nodes[1:, 0]] if num_nodes > 1 else nodes[1:, 0], nodes[1:, 2])) + 1
    first_child = np.full(num_nodes, -1, dtype=np.int64)
    sibling = np.full(num_nodes, -1, dtype=np.int64)
    parents = nodes[by_parent, 2]
    same = parents[1:] == parents[:-1]
    sibling[by_parent[:-1][same]] = by_parent[1:][same]
    heads = np.append(True, ~same) if num_nodes > 1 else np.zeros(0, dtype=bool)
    first_child[parents[heads]] = by_parent[heads]
    order = np.empty(num, dtype=np.int64)
    lcp = np.empty(num, dtype=np.int64)
    _emit(nodes, first_child, sibling, next_same, order, lcp)
    return order, lcp


@_compiled
def _compare(tokens: Int32Array, left: int, left_end: int, right: int, right_end: int) -> Any:
    """Return how many tokens two ranges share from their starts, and whether the right one is smaller."""
    shared = 0
    limit = min(left_end - left, right_end - right)
    while shared < limit and tokens[left + shared] == tokens[right + shared]:
        shared += 1
    if shared < limit:
        return shared, tokens[right + shared] < tokens[left + shared]
    return shared, right_end - right < left_end - left


@_compiled
def merge_runs(
    tokens: Int32Array,
    starts: Int64Array,
    lengths: Int64Array,
    order: Int64Array,
    lcp: Int64Array,
    bounds: Int64Array,
    merged_order: Int64Array,
    merged_lcp: Int64Array,
) -> None:
    """Compiled twin of the merge in `dagpack_cli.trie.order`.

    Tied heads are compared with the best so far, each once. A beaten head remembers who beat it and
    where they part: it shares with the final winner what it shares with that one, or what that one
    shares with the winner, whichever is less.
    """
    num = len(bounds) - 1
    heads = bounds[:-1].copy()
    shared = np.zeros(num, dtype=np.int64)
    beaten = np.empty(num, dtype=np.int64)  # in the order in which they were
    rivals = np.empty(num, dtype=np.int64)
    for position in range(bounds[0], bounds[num]):
        most = -1
        for run in range(num):
            if heads[run] < bounds[run + 1] and shared[run] > most:
                most = shared[run]
        best = -1
        num_beaten = 0
        for run in range(num):
            if heads[run] == bounds[run + 1] or shared[run] != most:
                continue
            if best == -1:
                best = run
                continue
            one, other = order[heads[best]], order[heads[run]]
            more, is_smaller = _compare(
                tokens,
                starts[one] + most,
                starts[one] + lengths[one],
                starts[other] + most,
                starts[other] + lengths[other],
            )
            if is_smaller:
                beaten[num_beaten], rivals[num_beaten] = best, run
                best = run
            else:
                beaten[num_beaten], rivals[num_beaten] = run, best
            shared[beaten[num_beaten]] = most + more
            num_beaten += 1
        for number in range(num_beaten - 1, -1, -1):
            rival = rivals[number]
            if rival != best:
                shared[beaten[number]] = min(shared[beaten[number]], shared[rival])
        merged_order[position] = order[heads[best]]
        merged_lcp[position] = most
        heads[best] += 1
        if heads[best] < bounds[best + 1]:
            shared[best] = lcp[heads[best]]


@_compiled
def cut_segments(
    lcp: Int64Array,
    lengths: Int64Array,
    owners: Int64Array,
    cuts: Int64Array,
    numbers: Int64Array,
    last_cuts: Int64Array,
    path: Int64Array,
) -> None:
    """Compiled twin of the loop in `dagpack_cli.trie.nodes`; arrays have an entry a sequence, the last five 0s."""
    height = 0
    for i in range(len(lcp)):
        while height and lcp[path[height - 1]] >= lcp[i]:
            height -= 1
        owners[i] = numbers[i] = -1
        if height:
            owner = path[height - 1]
            owners[i] = owner
            if lcp[i] < lengths[owner]:
                if cuts[owner] == 0 or last_cuts[owner] != lcp[i]:
                    last_cuts[owner] = lcp[i]
                    cuts[owner] += 1
                numbers[i] = cuts[owner] - 1
        if lengths[i] > lcp[i]:
            path[height] = i
            height += 1


@_compiled
def subtree_ends(parents: Int32Array, ends: Int32Array) -> None:
    """Compiled twin of `dagpack_cli.preorder.subtree_ends` for parents known to be in preorder; fills ``ends``."""
    num = len(parents)
    for i in range(num):
        ends[i] = i + 1
    for i in range(num - 1, -1, -1):
        parent = parents[i]
        if parent >= 0 and ends[i] > ends[parent]:
            ends[parent] = ends[i]


@_compiled
def gather(tokens: Int32Array, sources: Int64Array, lows: Int64Array, highs: Int64Array, block: Int32Array) -> None:
    """Compiled twin of the copying loop in `dagpack_cli.trie.nodes`."""
    for node in range(len(sources)):
        shift = sources[node] - lows[node]
        for position in range(lows[node], highs[node]):
            block[position] = tokens[position + shift]


@_compiled
def sweep_weights(
    starts: Int64Array,
    ends: Int64Array,
    example_nodes: Int64Array,
    example_runs: Int64Array,
    run_offsets: Int64Array,
    example_weights: npt.NDArray[np.float64],
    path: npt.NDArray[np.float64],
    sums: npt.NDArray[Any],
    first: int,
) -> None:
    """Compiled twin of the loop in `dagpack_cli.trie.weights`; the examples' nodes are numbered from ``first``."""
    example = len(example_nodes)
    stop = len(sums)
    for node in range(len(starts) - 1, -1, -1):
        while example > 0 and example_nodes[example - 1] - first == node:
            example -= 1
            for run in range(run_offsets[example], run_offsets[example + 1]):
                for depth in range(example_runs[run, 0], example_runs[run, 1]):
                    path[depth] += example_weights[example]
        for depth in range(ends[node] - 1, starts[node] - 1, -1):
            stop -= 1
            sums[stop] = path[depth]
            path[depth] = 0.0
