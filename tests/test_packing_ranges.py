"""Forests packed in parts: the ranges, the same checker and costs as a forest packed whole, and little lost."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import oracle_packing as oracle
import pytest
from bench.forests import grow_forest
from builds import built
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracle import Example
from oracle_packing import Case
from strategies import corpora

from dagpack_cli.comparison import compare_packers
from dagpack_cli.errors import NoInputError, TreeError
from dagpack_cli.manifest import PackOptions, TrieOptions
from dagpack_cli.packing import (
    Engine,
    Forest,
    best_fit_decreasing,
    check_placement,
    iter_best_fit,
    lower_bound,
    pack_forest,
    pack_leaves,
    place_by_range,
    range_starts,
    take_range,
    walk_forest,
)
from dagpack_cli.packing.walk import iter_walk
from dagpack_cli.verify import verify_generation

ENGINES: tuple[Engine, ...] = ("numpy", "numba")


def ancestors_of(parents: list[int], node: int) -> list[int]:
    """Return a node and all above it."""
    return [node, *ancestors_of(parents, parents[node])] if node >= 0 else []


@settings(max_examples=300, deadline=None)
@given(oracle.cases(max_nodes=40, max_leaves=40), st.integers(1, 50))
def test_ranges_begin_behind_leaves(case: Case, range_nodes: int) -> None:
    """Ranges cover the nodes in order; what is above the first of one is above a leaf of those before."""
    forest = case.forest()
    starts = range_starts(forest, range_nodes)
    assert (starts[0], starts[-1]) == (0, forest.num_nodes)
    assert all(low < high for low, high in pairwise(starts)) or forest.num_nodes == 0
    if forest.num_nodes <= range_nodes:
        assert starts == [0, forest.num_nodes]
    for start in starts[1:-1]:
        assert case.parents[start] != start - 1


@settings(max_examples=300, deadline=None)
@given(oracle.cases(max_nodes=40, max_leaves=40), st.integers(1, 12), st.data())
def test_a_range_is_its_nodes_with_all_above_them(case: Case, range_nodes: int, data: st.DataObject) -> None:
    """A range's forest has the rows of the whole one, and no leaf that is none there."""
    forest = case.forest()
    if forest.num_nodes == 0:
        return
    first, last = data.draw(st.sampled_from(list(pairwise(range_starts(forest, range_nodes)))))
    leaves = [leaf for leaf in forest.leaves.tolist() if leaf < first]
    more = sorted(data.draw(st.sets(st.sampled_from(leaves)))) if leaves else []
    expected = sorted({up for node in [*more, *range(first, last)] for up in ancestors_of(case.parents, node)})
    for engine in ENGINES:
        part = take_range(forest, first, last, np.array(more, dtype=np.int64), engine=engine)
        assert part.nodes.tolist() == expected
        assert part.forest.lengths.tolist() == [case.lengths[node] for node in expected]
        assert part.forest.depths.tolist() == forest.depths[expected].tolist()
        own = np.where(part.forest.parents >= 0, part.nodes[part.forest.parents], -1)
        assert own.tolist() == [case.parents[node] for node in expected]
        assert set(part.nodes[part.forest.leaves].tolist()) <= set(forest.leaves.tolist())


@example(Case([-1, 0, 1, 2, 3], [1, 1, 1, 1, 1], 5), 2)  # no leaf to begin a range behind
@settings(max_examples=200, deadline=None)
@given(oracle.cases(max_nodes=40, max_leaves=40), st.integers(1, 12))
def test_a_forest_packed_in_parts_is_packed(case: Case, range_nodes: int) -> None:
    """Every leaf stands with its whole path in one window, rows are fresh once, and the costs are the windows'."""
    forest = case.forest()
    results = [
        pack_forest(forest, case.seq_len, polish=3, engine=engine, range_nodes=range_nodes) for engine in ENGINES
    ]
    placement = results[0].placement
    assert oracle.instances_of(results[1].placement) == oracle.instances_of(placement)
    check_placement(forest, placement, case.seq_len)
    assert sorted(placement.nodes[np.isin(placement.nodes, forest.leaves)].tolist()) == forest.leaves.tolist()
    assert (placement.ends == forest.lengths[placement.nodes]).all()
    assert results[0].bound.windows <= placement.num_windows
    if len(range_starts(forest, range_nodes)) > 2:
        assert (results[0].strategy, list(results[0].costs)) == ("ranges", ["ranges"])
    cost = results[0].costs[results[0].strategy]
    depths = np.array([forest.depths[node] for node in placement.nodes], dtype=np.int64)
    edges = sum(depth + row for depth, rows in zip(depths, placement.ends, strict=True) for row in range(1, rows + 1))
    assert cost.key == (placement.num_windows, int(placement.ends.sum()), edges)


@pytest.mark.parametrize(("family", "seq_len"), [("gw", 2_048), ("agent", 32_768), ("web", 2_048), ("mix", 8_192)])
def test_ranges_cost_little(family: str, seq_len: int) -> None:
    """Ten ranges take at most a hundredth more windows than the whole forest: what the packer's own noise is."""
    forest = grow_forest(family, seq_len, 2, num_nodes=20_000)
    whole = pack_leaves(forest, seq_len, polish=10)
    parts = pack_forest(forest, seq_len, polish=10, range_nodes=2_000)
    check_placement(forest, parts.placement, seq_len)
    assert parts.placement.num_windows <= 1.01 * whole.cost.windows + 1
    assert parts.bound.windows == lower_bound(forest, seq_len).windows


def test_room_is_left_in_the_last_range_alone() -> None:
    """Ranges much smaller than a window fill it together: the emptiest window goes on into the next range."""
    forest = Forest.from_parents(np.full(1_000, -1), np.full(1_000, 3))
    placement = pack_forest(forest, 90, range_nodes=7).placement
    check_placement(forest, placement, 90)
    assert placement.num_windows == 34  # 30 of these fill a window


def test_a_small_forest_is_packed_whole() -> None:
    """Where one range holds everything, it is the portfolio's packing."""
    forest = grow_forest("gw", 2_048, 1, num_rows=100_000)
    packed, parts = pack_leaves(forest, 2_048), pack_forest(forest, 2_048)
    assert (parts.strategy, parts.costs, parts.bound) == (packed.strategy, packed.costs, packed.bound)
    assert parts.placement.num_windows == packed.cost.windows
    with pytest.raises(TreeError, match="node 1 has 7 rows"):
        pack_forest(Case([-1, 0], [3, 4], 6).forest(), 6, range_nodes=1)


@settings(max_examples=100, deadline=None)
@given(oracle.cases(max_nodes=40, max_leaves=40), st.integers(1, 9))
def test_the_walk_some_windows_at_a_time_is_the_walk(case: Case, step: int) -> None:
    """Windows placed some after the other are those placed at once."""
    forest = case.forest()
    whole = walk_forest(forest, case.seq_len)
    expected = oracle.instances_of(whole)
    for engine in ENGINES:
        found, first = [], 0
        for part in iter_walk(forest, case.seq_len, engine=engine, step=step):
            found += [(first + window, *rest) for window, *rest in oracle.instances_of(part)]
            first += part.num_windows
        assert (found, first) == (expected, whole.num_windows)


@given(
    corpus=corpora(),
    range_nodes=st.integers(1, 9),
    layout=st.sampled_from(["dag", "dag", "best-fit", "packed"]),
    seq_len=st.integers(1, 8) | st.sampled_from([12, 40]),
    more=st.sampled_from([0, 0, 20]),
    prune=st.booleans(),
    min_shared=st.sampled_from([1, 1, 3]),
)
@settings(max_examples=60, deadline=None)
def test_a_build_in_ranges_is_exact(
    corpus: list[Example], range_nodes: int, layout: str, seq_len: int, more: int, prune: bool, min_shared: int
) -> None:
    """Whatever the ranges, every row of every window is what the examples say, and all of them are there."""
    window_len = seq_len + more if more else None
    pack = PackOptions(seq_len=seq_len, window_len=window_len, on_long="split", layout=layout, prune=prune, polish=2)
    with ExitStack() as stack:
        for function in (pack_forest, place_by_range, compare_packers, best_fit_decreasing, iter_best_fit):
            defaults: dict[str, Any] = function.__kwdefaults__ or {}
            limits = {name: range_nodes for name in ("range_nodes", "range_items") if name in defaults}
            stack.enter_context(mock.patch.dict(defaults, limits))
        try:
            made = stack.enter_context(built(corpus, pack, TrieOptions(min_shared=min_shared)))
        except NoInputError:  # nothing trains
            return
        assert verify_generation(made.result.path, made.result.manifest).failures == []
