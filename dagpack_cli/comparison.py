"""What other ways to pack the same rows would cost: the table that stands beside every packing. Pure.

Three costs are kept apart, for they are three different savings: rows computed, attention edges,
and 128-blocks of the mask that are not empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.packing import Engine, Forest, Placement, best_fit_apart, first_fit, iter_walk, place_by_range
from dagpack_cli.packing.ranges import RANGE_NODES
from dagpack_cli.shards.siblings import largest_first
from dagpack_cli.shards.window import tree_blocks

__all__ = ["Costs", "compare_packers", "placement_costs"]

Int64s = npt.NDArray[np.int64]
Costs = dict[str, int]

_STEP = 1 << 18  # instances looked at at a time


def placement_costs(forest: Forest, placement: Placement, *, arrange: bool = True) -> Costs:
    """Return what a placement computes: windows, rows, attention edges, and blocks. O(m log m) for m instances.

    Args:
        forest: of rows.
        placement: of it.
        arrange: whether siblings stand in the order of `largest_first`, else in the forest's.

    Memory: some numbers for each of 2^18 instances, or of those of one window if they are more.
    """
    starts = np.searchsorted(placement.windows, np.arange(placement.num_windows + 1))
    cuts = np.flatnonzero(np.diff(starts[:-1] // _STEP)) + 1
    edges = blocks = 0
    for first, last in pairwise([0, *cuts.tolist(), placement.num_windows]):
        inside = slice(int(starts[first]), int(starts[last]))
        nodes, lengths = placement.nodes[inside], placement.ends[inside]
        edges += int((lengths * forest.depths[nodes] + lengths * (lengths + 1) // 2).sum())
        if last > first:
            blocks += _blocks(forest, placement.windows[inside] - first, nodes, lengths, arrange=arrange)
    return {
        "windows": placement.num_windows,
        "rows": sum(int(placement.ends[span].sum()) for span in spans(len(placement.ends))),
        "attention_edges": edges,
        "blocks": blocks,
    }


def _blocks(forest: Forest, windows: Int64s, nodes: npt.NDArray[Any], lengths: Int64s, *, arrange: bool) -> int:
    """Return the blocks of windows numbered from 0, given all their instances."""
    bases = windows * forest.num_nodes
    keys = bases + nodes
    above = forest.parents[nodes]
    ends = np.searchsorted(keys, bases + forest.ends[nodes])
    if arrange:
        parents = np.where(above >= 0, np.searchsorted(keys, bases + above), -1)
        order = largest_first(windows, parents, lengths, ends)
        numbers = np.arange(len(order))
        lengths, ends = lengths[order], numbers + (ends - numbers)[order]
    return int(tree_blocks(windows, lengths, ends, int(windows[-1]) + 1).sum())


def compare_packers(
    forest: Forest,
    window_len: int,
    first_seen: Int64s | None = None,
    *,
    engine: Engine = "auto",
    zeros: Zeros = np.zeros,
    range_nodes: int = RANGE_NODES,
) -> dict[str, Costs]:
    """Return the costs of what others do with the same forest.

    ``walk`` is the depth-first walk, row by row; ``first_fit`` puts leaves where what they add
    fits, in input order, as trainers do with the sequences of a batch (a sequence that another
    continues is no leaf, which flatters it where every turn is an example); ``shared_best_fit`` is best fit on whole
    sequences without an eye to sharing, which is then used inside each window. Both have their rows
    arranged as ours are, so that their blocks differ by what is in the windows alone; the walk is an order.
    Large forests they too pack range by range.

    Args:
        forest: of rows; its columns may lie in files.
        window_len: most rows of a window.
        first_seen: shape (num_nodes,), int64; leaves are in the input in the order of these; None: as the forest
            has them.
        engine: of the packers.
        zeros: makes the arrays with an entry a node.
        range_nodes: nodes of a range.
    """

    def fit_first(part: Forest, leaves: Int64s) -> Int64s:
        arrival = np.arange(len(leaves)) if first_seen is None else np.argsort(first_seen[leaves], kind="stable")
        return first_fit(part, window_len, arrival, "first", engine=engine)

    def fit_best(part: Forest, _: Int64s) -> Int64s:
        return best_fit_apart(part, window_len, engine=engine)

    def ranged(pack: Callable[[Forest, Int64s], Int64s]) -> Costs:
        parts = place_by_range(forest, window_len, pack, engine=engine, zeros=zeros, range_nodes=range_nodes)
        return _sum(placement_costs(forest, part) for part in parts)

    walk = iter_walk(forest, window_len, engine=engine, zeros=zeros, step=range_nodes)
    return {
        "walk": _sum(placement_costs(forest, part, arrange=False) for part in walk),
        "first_fit": ranged(fit_first),
        "shared_best_fit": ranged(fit_best),
    }


def _sum(costs: Iterable[Costs]) -> Costs:
    """Return the sums of costs of several windows."""
    total = {"windows": 0, "rows": 0, "attention_edges": 0, "blocks": 0}
    for cost in costs:
        total = {name: value + cost[name] for name, value in total.items()}
    return total
