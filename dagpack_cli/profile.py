"""What a build measures of its trie and windows: baselines, depth and branching, shared prefixes. Pure.

Every saving names its baseline, and rows, attention edges and 128-blocks are three different savings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing import best_fit_decreasing
from dagpack_cli.shards.window import BLOCK_SIZE, chain_blocks
from dagpack_cli.trie import Engine, Trie

__all__ = ["chain_costs", "layout_baselines", "min_shared_costs", "rows_also_in", "trie_profile"]

Int64Array = npt.NDArray[np.int64]


def chain_costs(lengths: Int64Array) -> dict[str, int]:
    """Return what chains cost one a window: windows, rows, attention edges and 128-blocks."""
    blocks = -(-lengths // BLOCK_SIZE)
    return {
        "windows": len(lengths),
        "rows": int(lengths.sum()),
        "attention_edges": int((lengths * (lengths + 1) // 2).sum()),
        "blocks": int((blocks * (blocks + 1) // 2).sum()),
    }


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
    windows = best_fit_decreasing(packed, seq_len, engine=engine)
    num_windows = int(windows.max(initial=-1)) + 1
    blocks = chain_blocks(packed, windows, num_windows)
    result = {
        "examples_as_given": chain_costs(given),
        "best_fit": chain_costs(packed) | {"windows": num_windows, "blocks": blocks},
    }
    if len(turns):
        result["one_example_per_turn"] = chain_costs(turns)
    return result


def trie_profile(trie: Trie, decode: Callable[[list[int]], str], *, num_prefixes: int = 10) -> dict[str, Any]:
    """Return the depth and branching profile of a trie and its largest shared prefixes, decoded.

    Depth is that of a row: transitions from the root to its input token. The prefixes are the runs
    that save most: (count - 1) x length tokens, most first, ties in trie order.
    """
    lengths = np.diff(trie.offsets)
    starts = trie.depths.astype(np.int64)
    firsts = np.maximum(starts - 1, 0)
    lasts = starts + lengths - 1
    counts = trie.counts.astype(np.int64)
    histogram = []
    low, high = 0, 1
    while len(lasts) and low < int(lasts.max()):
        rows = np.maximum(np.minimum(lasts, high) - np.maximum(firsts, low), 0)
        histogram.append([low, int(rows.sum()), int((rows * counts).sum())])
        low, high = high, 2 * high
    children = np.bincount(trie.parents[trie.parents >= 0], minlength=trie.num_nodes)
    saved = (counts - 1) * lengths
    order = np.argsort(-saved, kind="stable")[:num_prefixes]
    prefixes = []
    for node in order[saved[order] > 0].tolist():
        run = trie.tokens[trie.offsets[node] : trie.offsets[node + 1]]
        prefixes.append(
            {
                "prefix_tokens": int(starts[node] + lengths[node]),
                "run_tokens": int(lengths[node]),
                "examples": int(counts[node]),
                "tokens_saved": int(saved[node]),
                "begins": decode(run[:40].tolist()),
                "ends": decode(run[-20:].tolist()) if len(run) > 40 else "",
            }
        )
    return {
        "tokens": len(trie.tokens),
        "rows": trie.num_rows,
        "nodes": trie.num_nodes,
        "roots": trie.num_roots,
        "leaves": int(np.count_nonzero(children == 0)),
        "branching_nodes": int(np.count_nonzero(children > 1)),
        "most_children": int(children.max(initial=0)),
        "deepest_row": int(lasts.max(initial=0)) - 1 if len(lasts) else -1,
        "depth_histogram": histogram,
        "shared_prefixes": prefixes,
    }


def min_shared_costs(trie: Trie, thresholds: Sequence[int]) -> list[list[int]]:
    """Return ``[N, trees, rows, attention edges]`` if shared prefixes of fewer than N tokens were not merged.

    Where the path ends at depth D with k continuations, or k - 1 and examples that end there, an N
    above D gives k - 1 of them a tree of their own, with a copy of the D tokens above: D - 1 rows
    more, and the edges of those. Exact for the trie, before it is packed; thresholds below what
    the trie was built with say nothing new. O(nodes).
    """
    ends = trie.depths.astype(np.int64) + np.diff(trie.offsets)
    below = trie.parents >= 0
    children = np.bincount(trie.parents[below], minlength=trie.num_nodes)
    passing = np.bincount(trie.parents[below], weights=trie.counts[below], minlength=trie.num_nodes)
    splits = np.maximum(children + (trie.counts > passing) - 1, 0)
    starts = np.maximum(trie.depths.astype(np.int64) - 1, 0)
    edges = int(((ends - 1) * ends // 2 - starts * (starts + 1) // 2).sum())
    found = []
    for threshold in thresholds:
        cut = ends < threshold
        copies, depths = splits[cut], ends[cut]
        found.append(
            [
                threshold,
                trie.num_roots + int(copies.sum()),
                trie.num_rows + int((copies * (depths - 1)).sum()),
                edges + int((copies * ((depths - 1) * depths // 2)).sum()),
            ]
        )
    return found


def rows_also_in(trie: Trie, other: Trie) -> int:
    """Return how many rows of a trie that train have their whole context and target in another trie too.

    A row trains where its stored weight is not 0. Time O(nodes x log other nodes + tokens compared);
    a subtree whose context the other trie lacks is passed over at once.
    """
    firsts = other.tokens[other.offsets[:-1]].astype(np.int64) if other.num_nodes else np.zeros(0, np.int64)
    keys = (other.parents.astype(np.int64) + 1) << 32 | firsts
    order = np.argsort(keys)
    keys = keys[order]
    # Where each node's end stands in the other trie: (node, tokens of its run matched), or nothing.
    places: list[tuple[int, int] | None] = [None] * trie.num_nodes
    total = 0
    node = 0
    while node < trie.num_nodes:
        parent = int(trie.parents[node])
        place = places[parent] if parent >= 0 else (-1, 0)
        start, end = int(trie.offsets[node]), int(trie.offsets[node + 1])
        matched, place = _match(trie.tokens[start:end], place, other, keys, order)
        total += int(np.count_nonzero(trie.weights[start : start + matched]))
        if matched < end - start:
            node = int(trie.subtree_ends[node])
            continue
        places[node] = place
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
