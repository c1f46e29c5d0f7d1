"""The depth-first walk: fill a window row by row, replay the current path in the next, go on. Pure.

The walk crosses every row once, in preorder; a window is full except the last. Where it stops in
the middle of a tree, the next window begins with the rows above the next one. It is simple and
streams, but it replays a path for every window boundary, so `bundle` needs fewer windows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import Forest
from dagpack_cli.packing.placement import Placement, climb, join_placements

__all__ = ["iter_walk", "walk_forest"]


def walk_forest(forest: Forest, seq_len: int, *, engine: Engine = "auto", zeros: Zeros = np.zeros) -> Placement:
    """Return the windows of the depth-first walk.

    Args:
        forest: n nodes, whose columns may lie in files; every root path has at most ``seq_len`` rows.
        seq_len: rows of a window, replayed ones included.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 nodes.
        zeros: makes the arrays with an entry a node or an instance.

    Returns:
        The placement. Every window but the last has exactly ``seq_len`` rows; a window's fresh
        rows are consecutive in preorder.

    Raises:
        TreeError: a root path is longer than ``seq_len``.

    Every window finishes at least one node, so there are at most n. Time and memory
    O(m + n) for m instances; m is up to the sum of the replayed paths' nodes.

    >>> forest = Forest.from_parents(np.array([-1, 0, 0]), np.array([2, 2, 1]))
    >>> placed = walk_forest(forest, 4)
    >>> placed.windows.tolist(), placed.nodes.tolist(), placed.fresh.tolist()
    ([0, 0, 1, 1], [0, 1, 0, 2], [0, 0, 2, 0])
    """
    return join_placements(iter_walk(forest, seq_len, engine=engine, zeros=zeros), zeros)


def iter_walk(
    forest: Forest, seq_len: int, *, engine: Engine = "auto", zeros: Zeros = np.zeros, step: int = 1 << 20
) -> Iterator[Placement]:
    """Yield the placement of `walk_forest` for some windows after the other, those of about ``step`` nodes.

    Windows are numbered from 0 in each.
    """
    forest.check_fits(seq_len)
    # The position of a row is its number in preorder; offsets are positions where runs begin.
    offsets = zeros(forest.num_nodes + 1, np.int64)
    for span in spans(forest.num_nodes):
        offsets[span.start + 1 : span.stop + 1] = offsets[span.start] + np.cumsum(forest.lengths[span])
    starts = _window_starts(forest, offsets, seq_len, engine)
    # An empty root shares its offset with its first child: the last of equal offsets has the row.
    firsts = np.searchsorted(offsets, starts, side="right") - 1
    stops = np.append(starts[1:], offsets[-1])[: len(starts)]
    lasts = np.searchsorted(offsets, stops - 1, side="right") - 1
    cuts = np.flatnonzero(np.diff(firsts // step)) + 1
    for low, high in pairwise([0, *cuts.tolist(), len(starts)]):
        some = slice(low, high)
        windows, nodes = _instances(forest, firsts[some], lasts[some], engine)
        ends = forest.lengths[nodes]
        closing = np.flatnonzero(np.append(windows[1:] != windows[:-1], True))[: high - low]
        ends[closing] = stops[some] - offsets[lasts[some]]
        begun = starts[some] - offsets[firsts[some]]
        first = firsts[some][windows]
        fresh = np.where(nodes < first, ends, np.where(nodes == first, begun[windows], 0))
        yield Placement(windows=windows, nodes=nodes, ends=ends, fresh=fresh, num_windows=high - low)


def _window_starts(
    forest: Forest, offsets: npt.NDArray[np.int64], seq_len: int, engine: Engine
) -> npt.NDArray[np.int64]:
    """Return the position of each window's first fresh row: what the replay leaves free is filled."""
    if uses_kernel(engine, forest.num_nodes):
        from dagpack_cli.packing import kernels

        return kernels.walk_starts(offsets, forest.depths, seq_len)
    run_offsets, depths = offsets.tolist(), forest.depths.tolist()
    total = run_offsets[-1]
    starts: list[int] = []
    position, node = 0, 0
    while position < total:
        starts.append(position)
        node = bisect_right(run_offsets, position, lo=node) - 1
        position += seq_len - (depths[node] + position - run_offsets[node])
    return np.array(starts, dtype=np.int64)


def _instances(
    forest: Forest, firsts: npt.NDArray[np.int64], lasts: npt.NDArray[np.int64], engine: Engine
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return (window, node) of the path to each window's first node and of the nodes walked after it."""
    counts, climbed = climb(forest, firsts, np.full(len(firsts), -1, dtype=np.int64), engine=engine)
    spans = lasts - firsts
    numbers = np.arange(len(firsts), dtype=np.int64)
    walked = np.arange(int(spans.sum()), dtype=np.int64) + np.repeat(firsts + 1 - (np.cumsum(spans) - spans), spans)
    windows = np.concatenate((np.repeat(numbers, counts), np.repeat(numbers, spans)))
    nodes = np.concatenate((climbed, walked.astype(np.int32)))
    order = np.argsort(windows, kind="stable")  # two sorted halves: the stable sort merges them
    return windows[order], nodes[order]
