"""Print what another order of siblings inside windows would save of block masks: ``python -m tests.bench.blocks``.

A window's rows may stand in any preorder of its forest: only the order in which a node's children
follow each other is free. Rows j to end[j] - 1 see row j, so of a mask cut into blocks of 128 keys
and queries, key block k has ceil(max end / 128) - k that are not empty, and of these
floor(min end / 128) - k - 1 below the diagonal are full, the others partial (they need the mask).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing import Forest, Placement, place_leaves
from dagpack_cli.packing.portfolio import pack_leaves
from dagpack_cli.shards.window import BLOCK_SIZE

from .forests import grow_forest
from .measure import print_table

__all__ = ["ORDERS", "WindowForest", "count_blocks", "row_ends", "window_forests"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WindowForest:
    """One window as a forest: per node its children, own rows, rows of its subtree and of its longest path."""

    children: list[list[int]]
    roots: list[int]
    lengths: list[int]
    sizes: list[int]
    heights: list[int]


def window_forests(forest: Forest, placement: Placement) -> list[WindowForest]:
    """Return every window of a placement as a forest of its own, nodes numbered in preorder."""
    bounds = np.searchsorted(placement.windows, np.arange(placement.num_windows + 1)).tolist()
    return [
        _window_forest(forest, placement.nodes[low:high], placement.ends[low:high]) for low, high in pairwise(bounds)
    ]


def _window_forest(forest: Forest, nodes: npt.NDArray[np.int32], ends: Int64s) -> WindowForest:
    numbers = {node: number for number, node in enumerate(nodes.tolist())}
    parents = [numbers.get(parent, -1) for parent in forest.parents[nodes].tolist()]
    lengths = ends.tolist()
    children: list[list[int]] = [[] for _ in parents]
    sizes, heights = list(lengths), [0] * len(parents)
    for node in range(len(parents) - 1, -1, -1):
        heights[node] += lengths[node]
        if parents[node] >= 0:
            children[parents[node]].append(node)
            sizes[parents[node]] += sizes[node]
            heights[parents[node]] = max(heights[parents[node]], heights[node])
    for siblings in children:
        siblings.reverse()
    return WindowForest(children, [v for v, parent in enumerate(parents) if parent < 0], lengths, sizes, heights)


Key = Callable[[WindowForest, int], tuple[int, ...]]
ORDERS: dict[str, Key | None] = {
    "as packed": lambda window, node: (node,),
    "largest subtree first": lambda window, node: (-window.sizes[node], node),
    "largest subtree last": lambda window, node: (window.sizes[node], node),
    "longest path first": lambda window, node: (-window.heights[node], node),
    "longest path last": lambda window, node: (window.heights[node], node),
    "longest run first": lambda window, node: (-window.lengths[node], node),
    "branching first": lambda window, node: (not window.children[node], -window.sizes[node], node),
    "ends at blocks": None,  # greedy: next the sibling that leaves least of its last block
}


def row_ends(window: WindowForest, key: Key | None) -> Int64s:
    """Return the exclusive subtree end of every row of a window whose siblings are in another order."""
    position = 0
    starts, ends, lengths = [], [], []
    stack = [_arranged(window, window.roots, key, 0)]
    while stack:
        if not stack[-1]:
            stack.pop()
            continue
        if key is None:
            siblings = _arranged(window, stack[-1], None, position)
            node, stack[-1] = siblings[0], siblings[1:]
        else:
            node = stack[-1].pop(0)
        starts.append(position)
        ends.append(position + window.sizes[node])
        lengths.append(window.lengths[node])
        position += window.lengths[node]
        stack.append(_arranged(window, window.children[node], key, position))
    return np.repeat(np.array(ends, dtype=np.int64), lengths)


def _arranged(window: WindowForest, siblings: list[int], key: Key | None, position: int) -> list[int]:
    """Return siblings in order; the greedy order puts only the best next one in front, the larger of equals."""
    if key is not None:
        return sorted(siblings, key=lambda node: key(window, node))
    if not siblings:
        return []
    best = min(siblings, key=lambda v: (-(position + window.sizes[v]) % BLOCK_SIZE, -window.sizes[v], v))
    return [best, *(node for node in siblings if node != best)]


def count_blocks(ends: Int64s, block_size: int = BLOCK_SIZE) -> tuple[int, int]:
    """Return (non-empty, partial) blocks of the mask of one window, from the ends of its rows."""
    num_blocks = -(-len(ends) // block_size)
    padded = np.zeros(num_blocks * block_size, dtype=np.int64)
    padded[: len(ends)] = ends
    by_block = padded.reshape(num_blocks, block_size)
    number = np.arange(num_blocks)
    kept = -(-by_block.max(axis=1) // block_size) - number
    full = np.maximum(by_block.min(axis=1) // block_size - number - 1, 0)
    return int(kept.sum()), int((kept - full).sum())


def _measure(name: str, forest: Forest, seq_len: int) -> list[tuple[str, ...]]:
    packed = pack_leaves(forest, seq_len)
    windows = window_forests(forest, place_leaves(forest, packed.leaf_windows))
    rows: list[tuple[str, ...]] = []
    base = (0, 0)
    for order, key in ORDERS.items():
        kept, partial = np.array([count_blocks(row_ends(window, key)) for window in windows]).sum(axis=0).tolist()
        base = base if any(base) else (kept, partial)
        cells = (f"{kept:,}", f"{kept / base[0]:.4f}", f"{partial:,}", f"{partial / base[1]:.4f}")
        rows.append((f"{name} @ {seq_len:,}", order, *cells))
    return rows


def main() -> None:
    """Measure generated forests, and tries given as .npz files with ``parents`` and ``lengths``."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.blocks", description=__doc__)
    parser.add_argument("tries", nargs="*", type=Path, help=".npz files with parents and lengths, in rows")
    parser.add_argument("--seq-len", type=int, default=8_192)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each generated forest")
    options = parser.parse_args()
    rows = []
    for family in ("agent", "grpo", "pref", "gw", "deep", "mix"):
        forest = grow_forest(family, options.seq_len, 0, num_rows=options.rows)
        rows += _measure(family, forest, options.seq_len)
    for path in options.tries:
        with np.load(path) as columns:
            rows += _measure(path.stem, Forest.from_parents(columns["parents"], columns["lengths"]), options.seq_len)
    head = ("forest", "order of siblings", "non-empty", "of as packed", "partial", "of as packed")
    print_table("128-blocks of the tree masks of whole packings", head, rows)


if __name__ == "__main__":
    main()
