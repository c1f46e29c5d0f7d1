"""Windows divided at trees and joined again: exactly as far as trees go, and never worse."""

from __future__ import annotations

import numpy as np
import oracle_packing as oracle
import pytest
from bench.forests import grow_forest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_packing import Case

from dagpack_cli.packing import Engine, Forest, bundle_leaves, lower_bound
from dagpack_cli.packing import polish as polish_module
from dagpack_cli.packing.leaf_order import LeafOrder, packing_cost
from dagpack_cli.packing.polish import polish_windows
from dagpack_cli.packing.tree_windows import divide_windows, join_windows, rows_of_windows

ENGINES: tuple[Engine, ...] = ("numpy", "numba")


def _paths(forest: Forest) -> list[list[tuple[int, int]]]:
    """Return each leaf's rows as (node, row of its run), from the top."""
    paths = []
    for leaf in forest.leaves.tolist():
        nodes = [leaf]
        while forest.parents[nodes[-1]] >= 0:
            nodes.append(int(forest.parents[nodes[-1]]))
        paths.append([(node, row) for node in reversed(nodes) for row in range(int(forest.lengths[node]))])
    return paths


@settings(max_examples=200, deadline=None)
@given(oracle.cases(max_nodes=20, max_leaves=10), st.integers(0, 2**32 - 1))
def test_windows_are_divided_and_joined(case: Case, seed: int) -> None:
    """Divided windows are the old ones cut at trees, spans are theirs; joined, they fit, and none could be added."""
    forest = case.forest()
    order, paths = LeafOrder.of(forest), _paths(forest)
    if not paths:
        return
    start = np.unique(np.random.default_rng(seed).integers(0, 4, len(paths)), return_inverse=True)[1]
    common = 0
    if len(paths) > 1:
        common = len(set.intersection(*map(set, paths)))
    tops = [path[common] for path in paths]  # a tree is what hangs below one row behind the common ones
    divided, trees = divide_windows(order, start)
    groups = {(top, window) for top, window in zip(tops, start.tolist(), strict=True)}
    assert sorted(set(divided.tolist())) == list(range(len(groups)))
    for first in range(len(paths)):
        for second in range(first):
            together = tops[first] == tops[second] and start[first] == start[second]
            assert (divided[first] == divided[second]) == together
    expected = []
    for top in dict.fromkeys(tops):
        leaves = [leaf for leaf, other in enumerate(tops) if other == top]
        own = {int(divided[leaf]) for leaf in leaves}
        assert own == set(range(min(own), max(own) + 1))
        expected.append([min(own), len(own), leaves[0], leaves[-1] + 1])
    assert trees.tolist() == expected
    rows = [
        len({row for leaf in np.flatnonzero(divided == part) for row in paths[leaf]}) for part in range(len(groups))
    ]
    assert rows_of_windows(order, divided).tolist() == rows
    seq_len = max(case.seq_len, *rows)
    joined = join_windows(order, divided * 2 + 1, seq_len)  # gaps do not matter
    used = [
        len({row for leaf in np.flatnonzero(joined == window) for row in paths[leaf]})
        for window in range(int(joined.max()) + 1)
    ]
    assert max(used) <= seq_len
    assert all(len(set(joined[divided == part])) == 1 for part in range(len(groups)))
    items = np.zeros(len(used), dtype=np.int64)
    for part in range(len(groups)):
        items[joined[divided == part][0]] += rows[part] - common
    assert len(used) == 1 or np.sort(items)[:2].sum() > seq_len - common


@pytest.mark.parametrize("head", [0, 300])
def test_trees_are_polished_alone(head: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few ruins gain more where each tree of many is searched alone, also below a head that all have in common."""
    forest = grow_forest("agent", 32_768, 3, num_nodes=12_000)
    seq_len = 32_768
    if head:
        parents = np.append(-1, np.where(forest.parents < 0, 0, forest.parents + 1))
        forest, seq_len = Forest.from_parents(parents, np.append(head, forest.lengths)), seq_len + head
    order, start = LeafOrder.of(forest), bundle_leaves(forest, seq_len)
    budget = 40 * (int(start.max()) + 1)
    polished = polish_windows(order, start, seq_len, ruins=budget, fewest=1, engine="numba")
    monkeypatch.setattr(polish_module, "_TREE_WINDOWS", 2**40)
    together = polish_windows(order, start, seq_len, ruins=budget, fewest=1, engine="numba")
    bound = lower_bound(forest, seq_len).windows
    costs = [packing_cost(order, windows).windows for windows in (polished, together, start)]
    assert bound <= costs[0] < costs[1] < costs[2]


def test_engines_agree_on_many_trees() -> None:
    """Trees searched one after the other, windows that go in the midst of all, are the same in both engines."""
    for seed, family in enumerate(("agent", "mix", "grpo", "gw")):
        forest = grow_forest(family, 8_192, seed, num_nodes=400)
        order = LeafOrder.of(forest)
        start = np.arange(len(order.rows), dtype=np.int64) if seed % 2 else bundle_leaves(forest, 8_192)
        results = [
            polish_windows(order, start, 8_192, ruins=300, fewest=1, seed=seed, engine=engine) for engine in ENGINES
        ]
        assert results[0].tolist() == results[1].tolist()
        assert rows_of_windows(order, results[0]).max() <= 8_192
