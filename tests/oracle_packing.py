"""Slow, obvious versions of everything in `dagpack_cli.packing`, by other methods, and forests to try.

Paths are sets, the optimum is a dynamic programme over sets of leaves, the walk moves row by row,
and best fit looks at every bundle every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from dagpack_cli.packing import Forest, Placement

Row = tuple[int, int]  # (node, offset in its run)


class Case(NamedTuple):
    """A forest as plain lists, and a window length that fits its longest path."""

    parents: list[int]
    lengths: list[int]
    seq_len: int

    def forest(self) -> Forest:
        """Return the forest, built the plain way."""
        parents, lengths = np.array(self.parents, dtype=np.int64), np.array(self.lengths, dtype=np.int64)
        return Forest.from_parents(parents, lengths, engine="numpy")


# --- paths ------------------------------------------------------------------------------------------


def path_nodes(parents: list[int], node: int) -> list[int]:
    """Return the nodes from the root down to ``node``."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def leaves_of(parents: list[int]) -> list[int]:
    """Return the nodes that are nobody's parent."""
    return sorted(set(range(len(parents))) - set(parents))


def path_rows(case: Case, node: int) -> set[Row]:
    """Return the rows of the whole path down to ``node``, its own run included."""
    return {(at, offset) for at in path_nodes(case.parents, node) for offset in range(case.lengths[at])}


def row_depths(case: Case) -> dict[Row, int]:
    """Return how many rows stand above each row."""
    above = {v: sum(case.lengths[u] for u in path_nodes(case.parents, v)[:-1]) for v in range(len(case.parents))}
    return {(v, offset): above[v] + offset for v in above for offset in range(case.lengths[v])}


# --- optimum ----------------------------------------------------------------------------------------


def optimum(case: Case) -> tuple[int, int, int]:
    """Return the fewest windows, rows and attention edges of any packing, each minimised alone."""
    leaves = leaves_of(case.parents)
    depths = row_depths(case)
    paths = [path_rows(case, leaf) for leaf in leaves]
    costs: list[tuple[int, int, int] | None] = [None] * (1 << len(leaves))
    for subset in range(1, len(costs)):
        rows = set().union(*(paths[i] for i in range(len(leaves)) if subset >> i & 1))
        if len(rows) <= case.seq_len:
            costs[subset] = (1, len(rows), sum(depths[row] + 1 for row in rows))
    far = 10**12
    best = [(far, far, far)] * len(costs)
    best[0] = (0, 0, 0)
    for subset in range(1, len(costs)):
        lowest = subset & -subset
        part = subset
        while part:
            cost = costs[part]
            if part & lowest and cost is not None:
                rest = best[subset ^ part]
                best[subset] = tuple(min(old, a + b) for old, a, b in zip(best[subset], cost, rest, strict=True))  # type: ignore[assignment]
            part = (part - 1) & subset
    return best[-1]


def naive_bound(case: Case) -> tuple[int, int, int]:
    """Return the windows, rows and attention edges of the volume bound, from its published formula."""
    num = len(case.parents)
    depths = row_depths(case)
    windows: dict[int, int] = {}
    rows: dict[int, int] = {}
    for node in range(num - 1, -2, -1):
        children = [v for v, parent in enumerate(case.parents) if parent == node]
        room = case.seq_len - (len(path_rows(case, node)) if node >= 0 else 0)
        volume = sum(rows[c] for c in children)
        least = math.ceil(Fraction(volume, room)) if children else 0
        windows[node] = max([1, least, *(windows[c] for c in children)]) if num else 0
        rows[node] = volume + windows[node] * (case.lengths[node] if node >= 0 else 0)
    return windows[-1], rows[-1], sum((depth + 1) * windows[node] for (node, _), depth in depths.items())


# --- packers ----------------------------------------------------------------------------------------


def naive_bundles(case: Case) -> list[int]:
    """Return the window of each leaf: best fit decreasing over all bundles of all children, as sets of rows."""
    num = len(case.parents)
    bundles: dict[int, list[list[int]]] = {v: [] for v in range(-1, num)}
    paths = {leaf: path_rows(case, leaf) for leaf in leaves_of(case.parents)}
    for node in range(num - 1, -2, -1):
        above = path_rows(case, node) if node >= 0 else set()

        def usage(leaves: Iterable[int], above: set[Row] = above) -> int:
            return len(set().union(*(paths[leaf] for leaf in leaves)) - above)

        room = case.seq_len - len(above)
        bins: list[list[int]] = []
        for bundle in sorted(bundles[node], key=lambda b: (-usage(b), min(b))):
            fitting = [b for b in bins if usage(b) + usage(bundle) <= room]
            if fitting:
                target = min(fitting, key=lambda b: (room - usage(b), min(b)))
                target += bundle
            else:
                bins.append(list(bundle))
        if node in paths:
            bins = [[node]]
        if node >= 0:
            bundles[case.parents[node]] += bins
        else:
            bundles[node] = bins
    return windows_of_groups(bundles[-1], leaves_of(case.parents))


def windows_of_groups(groups: list[list[int]], members: list[int]) -> list[int]:
    """Return the group number of each member, groups numbered by their first member."""
    ordered = sorted(groups, key=min)
    return [next(i for i, group in enumerate(ordered) if member in group) for member in members]


def naive_walk(case: Case) -> list[tuple[list[Row], list[Row]]]:
    """Return (replayed rows, fresh rows) of each window: an explicit stack of rows, one row a step."""
    windows: list[tuple[list[Row], list[Row]]] = []
    roots = [v for v, parent in enumerate(case.parents) if parent < 0]
    stack: list[tuple[int, int, list[Row]]] = [(root, 0, []) for root in reversed(roots)]
    while stack:
        node, offset, above = stack.pop()
        if offset == case.lengths[node]:
            children = [v for v, parent in enumerate(case.parents) if parent == node]
            stack += [(child, 0, above) for child in reversed(children)]
            continue
        if not windows or sum(map(len, windows[-1])) == case.seq_len:
            windows.append((above, []))
        windows[-1][1].append((node, offset))
        stack.append((node, offset + 1, [*above, (node, offset)]))
    return windows


def naive_next_fit(lengths: list[int], seq_len: int) -> list[int]:
    """Return the window of each item by keeping the list of items in the open window."""
    windows: list[list[int]] = []
    for length in lengths:
        if windows and sum(windows[-1]) + length <= seq_len:
            windows[-1].append(length)
        else:
            windows.append([length])
    return [number for number, window in enumerate(windows) for _ in window]


def naive_best_fit(lengths: list[int], seq_len: int) -> list[int]:
    """Return the window of each item by looking at every window for every item."""
    bins: list[list[int]] = []
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fitting = [b for b in bins if sum(lengths[i] for i in b) + lengths[item] <= seq_len]
        if fitting:
            # max returns the first of equals: the window opened first.
            max(fitting, key=lambda b: sum(lengths[i] for i in b)).append(item)
        else:
            bins.append([item])
    return windows_of_groups(bins, list(range(len(lengths))))


# --- placements -------------------------------------------------------------------------------------


def naive_placement(case: Case, leaf_windows: list[int]) -> list[tuple[int, int, int, int]]:
    """Return (window, node, end, fresh) sorted, from the set of every leaf's path."""
    pairs = {
        (window, node)
        for leaf, window in zip(leaves_of(case.parents), leaf_windows, strict=True)
        for node in path_nodes(case.parents, leaf)
    }
    instances, seen = [], set()
    for window, node in sorted(pairs):
        length = case.lengths[node]
        instances.append((window, node, length, length if node in seen else 0))
        seen.add(node)
    return instances


def instances_of(placement: Placement) -> list[tuple[int, int, int, int]]:
    """Return a placement's columns as tuples."""
    columns = (placement.windows, placement.nodes, placement.ends, placement.fresh)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def obeys_the_rules(case: Case, placement: Placement) -> bool:
    """Return whether a placement is one: the rules again, with sets of rows."""
    instances = instances_of(placement)
    if [pair[:2] for pair in instances] != sorted({pair[:2] for pair in instances}):
        return False
    covered: set[Row] = set()
    for window in range(placement.num_windows):
        members = [i for i in instances if i[0] == window]
        rows = {(node, offset) for _, node, end, _ in members for offset in range(end)}
        nodes = {node for _, node, _, _ in members}
        fresh = {(node, offset) for _, node, end, begin in members for offset in range(begin, end)}
        whole = all(path_rows(case, node) - path_rows_of_run(case, node) <= rows for node in nodes)
        closed = all(case.parents[node] in nodes | {-1} for node in nodes)
        used = all(end > 0 or any(case.parents[v] == node for v in nodes) for _, node, end, _ in members)
        sane = all(0 <= begin <= end <= case.lengths[node] for _, node, end, begin in members)
        if not (whole and closed and used and sane and 1 <= len(rows) <= case.seq_len and fresh == rows - covered):
            return False
        covered |= rows
    every_row = {(v, offset) for v, length in enumerate(case.lengths) for offset in range(length)}
    return covered == every_row and all(0 <= i[0] < placement.num_windows for i in instances)


def path_rows_of_run(case: Case, node: int) -> set[Row]:
    """Return the rows of one node's run."""
    return {(node, offset) for offset in range(case.lengths[node])}


# --- forests to try ---------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn, max_nodes: int = 14, max_leaves: int = 7) -> Case:
    """Draw a forest: empty, one node, stars, spines with leaves, empty roots, anything between; small windows."""
    num = draw(st.integers(0, max_nodes))
    shape = draw(st.sampled_from(["any", "bushy", "star", "spine", "roots"]))
    parents: list[int] = []
    path: list[int] = []
    for node in range(num):
        # How many open nodes to close before this one hangs below the last that is left.
        keep = draw(
            {
                "any": st.integers(0, len(path)),
                "bushy": st.integers(max(0, len(path) - 2), len(path)),
                "star": st.just(min(len(path), 1)),
                "spine": st.integers(max(0, len(path) - 1), len(path)),
                "roots": st.integers(0, min(len(path), 2)),
            }[shape]
        )
        path = path[:keep]
        if node and node not in parents and len(leaves_of([*parents, path[-1] if path else -1])) > max_leaves:
            path = [node - 1] if not path else path_nodes(parents, node - 1)
        parents.append(path[-1] if path else -1)
        path.append(node)
    longest = draw(st.sampled_from([1, 3, 6]))
    inner = set(parents)
    lengths = [
        draw(st.integers(0 if parent < 0 and node in inner else 1, longest)) for node, parent in enumerate(parents)
    ]
    case = Case(parents, lengths, 1)
    longest_path = max((len(path_rows(case, leaf)) for leaf in leaves_of(parents)), default=1)
    return case._replace(seq_len=longest_path + draw(st.integers(0, 8)))
