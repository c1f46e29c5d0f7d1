"""What a build measures of its trie and windows: baselines, depth and branching, shared prefixes. Pure.

Every saving names its baseline, and rows, attention edges and 128-blocks are three different savings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.packing import iter_best_fit
from dagpack_cli.shards.window import BLOCK_SIZE, chain_blocks
from dagpack_cli.trie import Engine, Trie

__all__ = ["chain_costs", "largest", "layout_baselines", "min_shared_costs", "rows_also_in", "trie_profile"]

Int64Array = npt.NDArray[np.int64]


def chain_costs(lengths: Int64Array) -> dict[str, int]:
    """Return what chains cost one a window: windows, rows, attention edges and 128-blocks."""
    rows = edges = blocks = 0
    for span in spans(len(lengths)):
        some = lengths[span]
        rows += int(some.sum())
        edges += _triangles(some)
        blocks += _triangles(-(-some // BLOCK_SIZE))
    return {"windows": len(lengths), "rows": rows, "attention_edges": edges, "blocks": blocks}


def _triangles(numbers: Int64Array) -> int:
    """Return the sum of 1 + 2 + ... + n over some numbers n."""
    return int((numbers * (numbers + 1) // 2).sum())


def layout_baselines(
    given: Int64Array, packed: Int64Array, turns: Int64Array, seq_len: int, engine: Engine = "auto"
) -> dict[str, dict[str, int]]:
    """Return the costs of the layouts a saving is quoted against.

    Args:
        given: shape (n,), int64, at least 1; pairs of each example, or of each piece of a split one.
        packed: shape (k,), int64, at least 1; the same without what pruning leaves out of windows.
        turns: shape (m,), int64, at least 1; pairs of each prefix that ends with a supervised run: what
            one example per assistant turn would be. Empty where no example has more than one run.
        seq_len: capacity of a window.
        engine: of the packer.
    """
    num_windows = blocks = 0
    for items, windows in iter_best_fit(packed, seq_len, engine=engine):
        num = int(windows.max()) + 1
        blocks += chain_blocks(packed[items], windows, num)
        num_windows += num
    result = {
        "examples_as_given": chain_costs(given),
        "best_fit": chain_costs(packed) | {"windows": num_windows, "blocks": blocks},
    }
    if len(turns):
        result["one_example_per_turn"] = chain_costs(turns)
    return result


def trie_profile(
    trie: Trie, decode: Callable[[list[int]], str], *, num_prefixes: int = 10, zeros: Zeros = np.zeros
) -> dict[str, Any]:
    """Return the depth and branching profile of a trie and its largest shared prefixes, decoded.

    Depth is that of a row: transitions from the root to its input token. The prefixes are the runs
    that save most: (count - 1) x length tokens, most first, ties in trie order. ``zeros`` makes arrays with an
    entry a node.
    """
    longest = 0
    rows_at = np.zeros((2, 64), dtype=np.int64)  # distinct and counted, by the power of two above the depth
    for span in spans(trie.num_nodes):
        starts, lengths, counts = _columns(trie, span)
        lasts = starts + lengths - 1
        longest = max(longest, int(lasts.max()))
        firsts = np.maximum(starts - 1, 0)
        low, high = 0, 1
        for power in range(int(lasts.max()).bit_length() + 1):
            rows = np.maximum(np.minimum(lasts, high) - np.maximum(firsts, low), 0)
            rows_at[:, power] += np.array([rows.sum(), (rows * counts).sum()])
            low, high = high, 2 * high
    histogram = []
    for power in range(64):
        low = 1 << power >> 1
        if low >= longest:
            break
        histogram.append([low, *rows_at[:, power].tolist()])
    leaves, branching, most = _branching(trie, zeros)

    def saved(span: slice) -> Int64Array:
        _, lengths, counts = _columns(trie, span)
        return (counts - 1) * lengths

    prefixes = []
    for node, gain in largest(trie.num_nodes, saved, num_prefixes):
        if gain <= 0:
            break
        depth, length = int(trie.depths[node]), int(trie.offsets[node + 1] - trie.offsets[node])
        run = trie.tokens[trie.offsets[node] : trie.offsets[node + 1]]
        prefixes.append(
            {
                "prefix_tokens": depth + length,
                "run_tokens": length,
                "examples": int(trie.counts[node]),
                "tokens_saved": gain,
                "begins": decode(run[:40].tolist()),
                "ends": decode(run[-20:].tolist()) if len(run) > 40 else "",
            }
        )
    return {
        "tokens": len(trie.tokens),
        "rows": trie.num_rows,
        "nodes": trie.num_nodes,
        "roots": trie.num_roots,
        "leaves": leaves,
        "branching_nodes": branching,
        "most_children": most,
        "deepest_row": longest - 1 if trie.num_nodes else -1,
        "depth_histogram": histogram,
        "shared_prefixes": prefixes,
    }


def _columns(trie: Trie, span: slice) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return depths, lengths and counts of a range of nodes, int64."""
    lengths = np.diff(trie.offsets[span.start : span.stop + 1])
    return trie.depths[span].astype(np.int64), lengths, trie.counts[span].astype(np.int64)


def _branching(trie: Trie, zeros: Zeros) -> tuple[int, int, int]:
    """Return how many nodes have no children and how many several, and the most that one has."""
    children = zeros(trie.num_nodes, np.int32)
    for span in spans(trie.num_nodes):
        parents = trie.parents[span]
        np.add.at(children, parents[parents >= 0], 1)
    leaves = branching = most = 0
    for span in spans(trie.num_nodes):
        leaves += int(np.count_nonzero(children[span] == 0))
        branching += int(np.count_nonzero(children[span] > 1))
        most = max(most, int(children[span].max()))
    return leaves, branching, most


def largest(num: int, values: Callable[[slice], Int64Array], wanted: int) -> list[tuple[int, int]]:
    """Return the largest of ``num`` values as (number, value), largest first, equal ones in order, in bounded memory.

    >>> largest(4, lambda span: np.array([3, 9, 9, 5])[span], 3)
    [(1, 9), (2, 9), (3, 5)]
    """
    numbers, best = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for span in spans(num):
        numbers = np.concatenate((numbers, np.arange(span.start, span.stop)))
        best = np.concatenate((best, values(span)))
        order = np.argsort(-best, kind="stable")[:wanted]
        numbers, best = numbers[order], best[order]
    return list(zip(numbers.tolist(), best.tolist(), strict=True))


def min_shared_costs(trie: Trie, thresholds: Sequence[int], zeros: Zeros = np.zeros) -> list[list[int]]:
    """Return ``[N, trees, rows, attention edges]`` if shared prefixes of fewer than N tokens were not merged.

    Where the path ends at depth D with k continuations, or k - 1 and examples that end there, an N
    above D gives k - 1 of them a tree of their own, with a copy of the D tokens above: D - 1 rows
    more, and the edges of those. Exact for the trie, before it is packed; thresholds below what
    the trie was built with say nothing new. O(nodes); ``zeros`` makes arrays with an entry a node.
    """
    num_roots, num_rows = trie.num_roots, trie.num_rows
    children, passing = zeros(trie.num_nodes, np.int32), zeros(trie.num_nodes, np.int64)
    for span in spans(trie.num_nodes):
        below = trie.parents[span] >= 0
        np.add.at(children, trie.parents[span][below], 1)
        np.add.at(passing, trie.parents[span][below], trie.counts[span][below])
    edges = 0
    copied = np.zeros((len(thresholds), 3), dtype=np.int64)
    for span in spans(trie.num_nodes):
        depths, lengths, counts = _columns(trie, span)
        ends, starts = depths + lengths, np.maximum(depths - 1, 0)
        splits = np.maximum(children[span] + (counts > passing[span]) - 1, 0)
        edges += int(((ends - 1) * ends // 2 - starts * (starts + 1) // 2).sum())
        for number, threshold in enumerate(thresholds):
            cut = ends < threshold
            copies, above = splits[cut], ends[cut] - 1
            copied[number] += np.array(
                [copies.sum(), (copies * above).sum(), (copies * (above * (above + 1) // 2)).sum()]
            )
    return [
        [threshold, num_roots + trees, num_rows + rows, edges + more]
        for threshold, (trees, rows, more) in zip(thresholds, copied.tolist(), strict=True)
    ]


def rows_also_in(trie: Trie, other: Trie) -> int:
    """Return how many rows of a trie that train have their whole context and target in another trie too.

    A row trains where its stored weight is not 0. Time O(nodes x log other nodes + tokens compared);
    a subtree whose context the other trie lacks is passed over at once.
    """
    firsts = other.tokens[other.offsets[:-1]].astype(np.int64) if other.num_nodes else np.zeros(0, np.int64)
    keys = (other.parents.astype(np.int64) + 1) << 32 | firsts
    order = np.argsort(keys)
    keys = keys[order]
    # The path to the current node; where each one's end stands in the other trie: (node, tokens of its run matched).
    path: list[int] = []
    places: list[tuple[int, int] | None] = []
    total = 0
    node = 0
    while node < trie.num_nodes:
        parent = int(trie.parents[node])
        while path and path[-1] != parent:
            path.pop()
            places.pop()
        place = places[-1] if parent >= 0 else (-1, 0)
        start, end = int(trie.offsets[node]), int(trie.offsets[node + 1])
        matched, place = _match(trie.tokens[start:end], place, other, keys, order)
        total += int(np.count_nonzero(trie.weights[start : start + matched]))
        if matched < end - start:
            node = int(trie.subtree_ends[node])
            continue
        path.append(node)
        places.append(place)
        node += 1
    return total


def _match(
    run: npt.NDArray[np.int32], place: tuple[int, int] | None, other: Trie, keys: Int64Array, order: Int64Array
) -> tuple[int, tuple[int, int] | None]:
    """Return how many tokens of a run continue a place in another trie, and the place after them."""
    matched = 0
    while place is not None and matched < len(run):
        node, within = place
        length = int(other.offsets[node + 1] - other.offsets[node]) if node >= 0 else 0
        if within == length:
            key = (node + 1) << 32 | int(run[matched])
            at = int(np.searchsorted(keys, key))
            if at == len(keys) or keys[at] != key:
                return matched, None
            place = (int(order[at]), 0)
            continue
        start = int(other.offsets[node]) + within
        size = min(length - within, len(run) - matched)
        differs = np.flatnonzero(other.tokens[start : start + size] != run[matched : matched + size])
        step = int(differs[0]) if len(differs) else size
        matched += step
        if step < size:
            return matched, None
        place = (node, within + step)
    return matched, place
