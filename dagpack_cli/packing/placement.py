"""What stands in which window: the common result of the packers, and its independent check. Pure.

Windows are closed under ancestors, so of every node's run a window holds a prefix ``[0, end)``.
A placement lists these prefixes, and says of each which part no lower-numbered window holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import TreeError
from dagpack_cli.memory import Zeros, spans
from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import Forest

__all__ = ["Placement", "are_first", "check_placement", "climb", "join_placements", "place_leaves"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """The (window, node) instances of a packing, sorted by window, then node.

    An empty root (0 rows) is listed, with end 0, in every window that holds something below it,
    so that a node's parent is always found in the node's own window.

    Attributes:
        windows: shape (m,), int64, in [0, num_windows).
        nodes: shape (m,), int32, in [0, n); preorder within a window.
        ends: shape (m,), int64; rows [0, ends) of the node's run are in the window.
        fresh: shape (m,), int64; rows [fresh, ends) are in no lower-numbered window, those before
            are; ``fresh == ends`` where all are repeated.
        num_windows: how many windows there are; none of them is empty.
    """

    windows: npt.NDArray[np.int64]
    nodes: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int64]
    fresh: npt.NDArray[np.int64]
    num_windows: int


def place_leaves(forest: Forest, leaf_windows: npt.NDArray[np.integer[Any]], *, engine: Engine = "auto") -> Placement:
    """Return the windows that hold exactly the whole root paths of their leaves.

    Args:
        forest: n nodes.
        leaf_windows: shape (num_leaves,), any integer dtype, aligned with ``forest.leaves``; the
            window of each leaf, every number from 0 to the largest used at least once.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 nodes.

    Returns:
        The placement; whether windows fit a length is not looked at.

    Raises:
        TreeError: the wrong number of leaves, or window numbers with a gap or below 0.

    Time O(m + n log n) for m instances, memory O(m + n): a path shared by leaves of one window is
    climbed once.

    >>> forest = Forest.from_parents(np.array([-1, 0, 0]), np.array([5, 2, 3]))
    >>> placed = place_leaves(forest, np.array([0, 1]))
    >>> placed.windows.tolist(), placed.nodes.tolist(), placed.fresh.tolist()
    ([0, 0, 1, 1], [0, 1, 0, 2], [0, 0, 5, 0])
    """
    leaves = forest.leaves
    numbers, num_windows = _checked_windows(np.asarray(leaf_windows), len(leaves))
    order = np.argsort(numbers, kind="stable")
    sorted_leaves, sorted_windows = leaves[order], numbers[order]
    stops = np.full(len(leaves), -1, dtype=np.int64)
    same = sorted_windows[1:] == sorted_windows[:-1]
    stops[1:][same] = sorted_leaves[:-1][same]
    counts, nodes = climb(forest, sorted_leaves, stops, engine=engine)
    windows = np.repeat(sorted_windows, counts)
    ends = forest.lengths[nodes]
    fresh = np.where(are_first(windows, nodes, forest.num_nodes), 0, ends)
    return Placement(windows=windows, nodes=nodes, ends=ends, fresh=fresh, num_windows=num_windows)


def are_first(windows: npt.NDArray[np.int64], nodes: npt.NDArray[np.int32], num_nodes: int) -> npt.NDArray[np.bool_]:
    """Return which instances, sorted by window, are in the lowest-numbered window of their node."""
    first_windows = np.empty(num_nodes, dtype=np.int64)
    # Where an index repeats, the last assignment stays: the lowest window, taken backwards.
    first_windows[nodes[::-1]] = windows[::-1]
    return np.asarray(first_windows[nodes] == windows)


def join_placements(parts: Iterable[Placement], zeros: Zeros = np.zeros) -> Placement:
    """Return one placement of windows that were placed some after the other, each part's numbered from 0.

    Args:
        parts: of the same forest; what is fresh in each is so beside the parts before.
        zeros: makes the result, and what is known of the parts until all are there.
    """
    names = ("windows", "nodes", "ends", "fresh")
    kept: list[dict[str, Any]] = []
    num_windows = 0
    for part in parts:
        columns = {name: zeros(len(part.nodes), getattr(part, name).dtype) for name in names}
        for span in spans(len(part.nodes)):
            for name in names:
                columns[name][span] = getattr(part, name)[span]
            columns["windows"][span] += num_windows
        num_windows += part.num_windows
        kept.append(columns)
    if len(kept) == 1:
        return Placement(**kept[0], num_windows=num_windows)
    size = sum(len(columns["nodes"]) for columns in kept)
    whole = {name: zeros(size, np.int32 if name == "nodes" else np.int64) for name in names}
    done = 0
    for number, columns in enumerate(kept):
        num = len(columns["nodes"])
        for span in spans(num):
            for name in names:
                whole[name][done + span.start : done + span.stop] = columns[name][span]
        done += num
        kept[number] = {}  # let go of it
        del columns
    return Placement(**whole, num_windows=num_windows)


def climb(
    forest: Forest,
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    *,
    engine: Engine = "auto",
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return, for every start, itself and its ancestors above ``stop``, ascending.

    With ``stop`` an earlier node in preorder, these are the nodes on the path to ``start`` that
    are not on the path to ``stop``: an ancestor of ``start`` at or before ``stop`` contains both.

    Args:
        forest: n nodes.
        starts: shape (k,), int64, in [0, n).
        stops: shape (k,), int64, in [-1, start); -1 climbs to the root.
        engine: see `dagpack_cli.packing.engine`.

    Returns:
        counts: shape (k,), int64; nodes climbed from each start, >= 1.
        nodes: shape (counts.sum(),), int32; the climbed nodes, start after start.

    Time and memory O(k + counts.sum()), and O(n) for the plain way.
    """
    if uses_kernel(engine, forest.num_nodes):
        from dagpack_cli.packing import kernels

        return kernels.climb(forest.parents, starts, stops)
    parents = forest.parents.tolist()
    counts: list[int] = []
    nodes: list[int] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        path = []
        node = start
        while node > stop:
            path.append(node)
            node = parents[node]
        counts.append(len(path))
        path.reverse()
        nodes += path
    return np.array(counts, dtype=np.int64), np.array(nodes, dtype=np.int32)


def _checked_windows(windows: npt.NDArray[np.integer[Any]], num_leaves: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return the window numbers as int64 and their count, or raise if they are not dense."""
    if windows.shape != (num_leaves,):
        raise TreeError("leaf_windows", f"shape {windows.shape}", f"({num_leaves},), one entry a leaf")
    numbers = windows.astype(np.int64)
    if num_leaves == 0:
        return numbers, 0
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= num_leaves or not np.bincount(numbers).all():
        raise TreeError("leaf_windows", f"numbers from {low:,} to {high:,}", "every number from 0 on, without a gap")
    return numbers, high + 1


def check_placement(forest: Forest, placement: Placement, seq_len: int) -> None:
    """Raise `TreeError` unless a placement holds what a trained window needs.

    Windows are closed under ancestors, hold 1 to ``seq_len`` rows, and every row of the forest is
    fresh exactly once: in the lowest-numbered window that holds it. Written from these sentences
    alone; it shares nothing with the packers.

    Args:
        forest: n nodes.
        placement: m instances.
        seq_len: most rows a window may hold.

    Raises:
        TreeError: the first rule that does not hold, with the window and node.

    Time O(m log m + n), memory O(m + n).
    """
    _check_columns(forest, placement)
    _check_closure(forest, placement)
    _check_sizes(placement, seq_len)
    _check_fresh(forest, placement)


def _fail(placement: Placement, bad: npt.NDArray[np.bool_], found: str) -> None:
    """Raise for the first bad instance, if there is one."""
    if bad.any():
        at = int(np.argmax(bad))
        window, node = int(placement.windows[at]), int(placement.nodes[at])
        raise TreeError("placement", f"window {window:,}, node {node:,}: {found}")


def _check_columns(forest: Forest, placement: Placement) -> None:
    """Check shapes and ranges, so that the rest may index."""
    columns = (placement.windows, placement.nodes, placement.ends, placement.fresh)
    if any(column.shape != placement.windows.shape or column.ndim != 1 for column in columns):
        raise TreeError("placement", "columns of different lengths")
    windows, nodes = placement.windows, placement.nodes
    num_windows = placement.num_windows
    _fail(placement, (windows < 0) | (windows >= num_windows), f"not one of {num_windows:,} windows")
    _fail(placement, (nodes < 0) | (nodes >= forest.num_nodes), f"not one of {forest.num_nodes:,} nodes")
    backwards = np.zeros(len(windows), dtype=np.bool_)
    backwards[1:] = (windows[1:] < windows[:-1]) | ((windows[1:] == windows[:-1]) & (nodes[1:] <= nodes[:-1]))
    _fail(placement, backwards, "not after its predecessor by window, then node")
    lengths = forest.lengths[nodes]
    _fail(placement, placement.ends > lengths, "more rows than its run has")
    _fail(placement, placement.ends < np.minimum(lengths, 1), "no row of its run")
    _fail(placement, (placement.fresh < 0) | (placement.fresh > placement.ends), "fresh rows outside its rows")


def _check_closure(forest: Forest, placement: Placement) -> None:
    """Check that every instance finds its parent's whole run in its window, and empty roots a child."""
    windows, nodes = placement.windows, placement.nodes
    keys = windows * forest.num_nodes + nodes
    parents = forest.parents[nodes].astype(np.int64)
    has_parent = parents >= 0
    at = np.searchsorted(keys, windows * forest.num_nodes + np.maximum(parents, 0))
    at = np.minimum(at, max(len(keys) - 1, 0))
    missing = has_parent & ((windows[at] != windows) | (nodes[at] != parents))
    _fail(placement, missing, "its parent is not in the window")
    _fail(placement, has_parent & (placement.ends[at] != forest.lengths[nodes[at]]), "its parent's run is cut")
    used = np.zeros(len(nodes), dtype=np.bool_)
    used[at[has_parent]] = True
    _fail(placement, (placement.ends == 0) & ~used, "an empty root with nothing below it")


def _check_sizes(placement: Placement, seq_len: int) -> None:
    rows = np.zeros(placement.num_windows, dtype=np.int64)
    np.add.at(rows, placement.windows, placement.ends)
    bad = np.flatnonzero((rows < 1) | (rows > seq_len))
    if len(bad):
        window = int(bad[0])
        raise TreeError("placement", f"window {window:,} has {int(rows[window]):,} rows", f"1 to {seq_len:,}")


def _check_fresh(forest: Forest, placement: Placement) -> None:
    """Check that fresh begins where lower windows ended, and that together they cover every run."""
    order = np.argsort(placement.nodes, kind="stable")  # within a node, by window
    nodes, ends = placement.nodes[order].astype(np.int64), placement.ends[order]
    starts = np.ones(len(nodes), dtype=np.bool_)
    starts[1:] = nodes[1:] != nodes[:-1]
    # A running maximum that restarts at every node: later nodes are lifted above all earlier ones.
    lift = nodes * (int(ends.max(initial=0)) + 1)
    covered = np.maximum.accumulate(ends + lift) - lift
    before = np.zeros(len(nodes), dtype=np.int64)
    before[1:] = covered[:-1]
    before[starts] = 0
    bad = np.zeros(len(nodes), dtype=np.bool_)
    bad[order] = placement.fresh[order] != np.minimum(before, ends)
    _fail(placement, bad, "fresh does not begin where lower windows ended")
    reached = np.full(forest.num_nodes, -1, dtype=np.int64)
    reached[nodes] = covered
    missing = np.flatnonzero(reached != forest.lengths)
    if len(missing):
        node = int(missing[0])
        raise TreeError(
            "placement",
            f"node {node:,} has {max(int(reached[node]), 0):,} rows in windows",
            f"{int(forest.lengths[node]):,}",
        )
