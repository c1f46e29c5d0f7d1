"""Polish: never more windows, the same whoever computes it, and the optimum where it can be known."""

from __future__ import annotations

import numpy as np
import oracle_packing as oracle
import pytest
from bench.forests import FAMILIES, grow_forest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_packing import Case

from dagpack_cli.errors import UsageError
from dagpack_cli.packing import Engine, Forest, bundle_leaves, check_placement, place_leaves
from dagpack_cli.packing import polish as polish_module
from dagpack_cli.packing.leaf_order import LeafOrder, packing_cost
from dagpack_cli.packing.polish import FEWEST_RUINS, RUINS_PER_WINDOW, count_ruins, polish_windows

ENGINES: tuple[Engine, ...] = ("numpy", "numba")


@settings(max_examples=150, deadline=None)
@given(oracle.cases(max_nodes=24, max_leaves=10), st.integers(-3, 3))
def test_polish_keeps_the_rules_and_the_windows(case: Case, seed: int) -> None:
    """From one leaf a window, polish only ever takes windows away, makes valid ones, in both engines the same."""
    forest = case.forest()
    order = LeafOrder.of(forest)
    start = np.arange(len(order.rows), dtype=np.int64)
    polished = [
        polish_windows(order, start, case.seq_len, ruins=40, fewest=1, seed=seed, engine=engine) for engine in ENGINES
    ]
    assert polished[0].tolist() == polished[1].tolist()
    placement = place_leaves(forest, polished[0])
    assert oracle.obeys_the_rules(case, placement)
    assert placement.num_windows <= len(start)


@settings(max_examples=150, deadline=None)
@given(oracle.cases(max_nodes=14, max_leaves=7))
def test_polish_finds_the_optimum_of_small_forests(case: Case) -> None:
    """From one leaf a window, a few hundred ruins find the exact optimum of small forests."""
    order = LeafOrder.of(case.forest())
    start = np.arange(len(order.rows), dtype=np.int64)
    fewest = oracle.optimum(case)[0]
    polished = polish_windows(order, start, case.seq_len, ruins=400, fewest=fewest, engine="numba")
    assert int(polished.max(initial=-1)) + 1 == fewest


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_engines_agree_on_families(family: str) -> None:
    """Windows of many leaves, ruins of many windows, cuts among equals and windows that go are the same in both."""
    for seed in range(2):
        forest = grow_forest(family, 8_192, seed, num_nodes=400)
        order = LeafOrder.of(forest)
        start = bundle_leaves(forest, 8_192)
        plain, compiled = (
            polish_windows(order, start, 8_192, ruins=150, fewest=1, seed=seed, engine=engine) for engine in ENGINES
        )
        assert plain.tolist() == compiled.tolist()
        check_placement(forest, place_leaves(forest, plain), 8_192)
        assert packing_cost(order, plain).windows <= packing_cost(order, start).windows


def test_engines_agree_at_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of too many leaves are left alone, and the leaves touched end it, in both engines alike."""
    forest = grow_forest("gw", 2_048, 5, num_nodes=600)
    order, start = LeafOrder.of(forest), bundle_leaves(forest, 2_048)
    monkeypatch.setattr(polish_module, "_MOST_LEAVES", 20)
    monkeypatch.setattr(polish_module, "_STEPS", 5_000)
    monkeypatch.setattr(polish_module, "_STEPS_PER_LEAF", 0)
    results = [polish_windows(order, start, 2_048, ruins=300, fewest=1, engine=engine) for engine in ENGINES]
    assert results[0].tolist() == results[1].tolist()
    longer = polish_windows(order, start, 2_048, ruins=300, fewest=1, share=None, engine="numba")
    assert longer.tolist() != results[1].tolist()


def test_steps_of_a_ruin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ruin of k leaves takes 32 + 2 k + k^2 / 64 steps; the last is the one that uses them up, in both engines."""
    rng = np.random.default_rng(2)
    forest = Forest.from_parents(np.append(-1, np.zeros(240, dtype=np.int64)), np.append(1, rng.integers(1, 10, 240)))
    order, start = LeafOrder.of(forest), bundle_leaves(forest, 300)
    sizes: list[int] = []
    take = polish_module._PlainPolish._ruin

    def noted(polish: polish_module._PlainPolish) -> tuple[list[int], list[int]]:
        chosen, leaves = take(polish)
        sizes.append(len(leaves))
        return chosen, leaves

    with monkeypatch.context() as patched:
        patched.setattr(polish_module._PlainPolish, "_ruin", noted)
        polish_windows(order, start, 300, ruins=60, fewest=1, share=None, engine="numpy")
    spent = np.cumsum([32 + 2 * size + size * size // 64 for size in sizes])
    results = [
        polish_windows(order, start, 300, ruins=ruins, fewest=1, share=None, engine="numba") for ruins in range(61)
    ]
    monkeypatch.setattr(polish_module, "_STEPS_PER_LEAF", 0)
    changed = [ruins for ruins in range(3, 60) if results[ruins - 1].tolist() != results[ruins].tolist()]
    assert changed[-1] > 30
    for ruins in (changed[0], changed[-1]):
        for steps, done in ((spent[ruins - 2], ruins - 1), (spent[ruins - 2] + 1, ruins), (spent[ruins - 1], ruins)):
            monkeypatch.setattr(polish_module, "_STEPS", int(steps))
            for engine in ENGINES:
                limited = polish_windows(order, start, 300, ruins=60, fewest=1, engine=engine)
                assert limited.tolist() == results[done].tolist()
    monkeypatch.setattr(polish_module, "_STEPS", 1)  # leaves allow for more where there are many
    monkeypatch.setattr(polish_module, "_STEPS_PER_LEAF", int(spent[-1]) // 240 + 1)
    assert polish_windows(order, start, 300, ruins=60, fewest=1).tolist() == results[60].tolist()


def test_neighbours_are_near_and_far() -> None:
    """Of the windows picked beside a leaf, each band up to 4, 16, 64 and 256 leaves away has its share."""
    num = 20_000  # windows drawn anywhere are hardly ever near
    order = LeafOrder.of(Case([-1] * num, [1] * num, 1).forest())
    polish = polish_module._PlainPolish(order, np.arange(num), 1, 12_345)
    away = np.array([abs(polish._pick([num // 2]) - num // 2) for _ in range(8_000)])
    # A reach is drawn in one of four cases each, and then any leaf within it; half of the picks are not neighbours.
    edges = (4, 16, 64, 256)
    within = [sum(min(2 * edge + 1, 2 * reach + 1) / (2 * reach + 1) for reach in edges) / 8 for edge in edges]
    for edge, expected in zip(edges, within, strict=True):
        assert abs((away <= edge).mean() - expected) < 0.03
    first = np.array([polish._pick([0]) for _ in range(200)])
    assert (first == 0).any()  # what would lie before the first leaf is the first


def test_the_better_kind_of_ruin_is_made_more_often() -> None:
    """Seven of eight ruins are of the kind that gained more often; old successes fade."""
    order = LeafOrder.of(Case([-1, -1], [1, 1], 1).forest())
    polish = polish_module._PlainPolish(order, np.arange(2), 1, 99)
    assert sum(polish._draw_kind() for _ in range(800)) < 150
    for _ in range(900):
        polish._learn(True, True)
        polish._learn(False, False)
    assert sum(polish._draw_kind() for _ in range(800)) > 650
    for _ in range(10_000):
        polish._learn(True, False)
        polish._learn(False, True)
    assert sum(polish._draw_kind() for _ in range(800)) < 150
    assert max(polish._tried) <= 1_000
    assert all(gained <= tried for gained, tried in zip(polish._gained, polish._tried, strict=True))


def test_engines_keep_the_same_record() -> None:
    """What gained is counted, halved and drawn from alike, ruin by ruin."""
    from dagpack_cli.packing import kernels_polish

    order = LeafOrder.of(Case([-1, -1], [1, 1], 1).forest())
    plain = polish_module._PlainPolish(order, np.arange(2), 1, 7)
    state, record = np.array([plain._state], dtype=np.uint64), np.array([[1, 0], [1, 0]])
    rng = np.random.default_rng(4)
    for _ in range(6_000):
        assert plain._draw_kind() == kernels_polish._draw_kind(state, record)
        shatters, gains = bool(rng.random() < 0.3), bool(rng.random() < 0.1)
        plain._learn(shatters, gains)
        kernels_polish._learn(record, shatters, gains)
        assert record.tolist() == [list(kind) for kind in zip(plain._tried, plain._gained, strict=True)]


def test_polish_stops_at_the_bound() -> None:
    """No ruin is made of a packing that has as few windows as it may have."""
    forest = grow_forest("pref", 2_048, 0, num_rows=300_000)
    order, start = LeafOrder.of(forest), bundle_leaves(forest, 2_048)
    windows = int(start.max()) + 1
    kept = polish_windows(order, start, 2_048, ruins=5_000, fewest=windows)
    assert kept.tolist() == start.tolist()
    fewer = polish_windows(order, start, 2_048, ruins=5_000, fewest=windows - 1)
    assert int(fewer.max()) + 1 == windows - 1


def test_polish_gains_where_items_are_coarse() -> None:
    """Of the windows that best fit leaves above the bound on preference pairs, polish takes a third away."""
    forest = grow_forest("pref", 2_048, 0, num_rows=2_000_000)
    order, start = LeafOrder.of(forest), bundle_leaves(forest, 2_048)
    windows = int(start.max()) + 1
    polished = polish_windows(order, start, 2_048, ruins=50 * windows, fewest=1, engine="numba")
    assert int(polished.max()) + 1 <= windows * 0.98


@pytest.mark.parametrize("engine", ENGINES)
def test_polish_cuts_what_fits(engine: Engine) -> None:
    """A tree that fits a window is divided among those of two others, which only pieces of it fill: ten rows each."""
    order = LeafOrder.of(Case([-1, 0, 0, -1, -1], [1, 4, 3, 5, 6], 10).forest())
    polished = polish_windows(order, np.array([0, 0, 1, 2]), 10, ruins=100, fewest=2, engine=engine)
    assert polished.tolist() == [0, 1, 0, 1]


def test_budget() -> None:
    """Ruins a window and at least some, few of few windows, none near the bound of many, or as asked."""
    assert count_ruins(9, 8, None) == 450
    assert count_ruins(10, 9, None) == count_ruins(100, 99, None) == FEWEST_RUINS
    assert count_ruins(1_000, 900, None) == RUINS_PER_WINDOW * 1_000
    assert count_ruins(201, 200, None) == 0
    assert count_ruins(101, 100, None) == count_ruins(200, 198, None) == FEWEST_RUINS
    assert count_ruins(50_000, 40_000, None) == RUINS_PER_WINDOW * 50_000
    assert count_ruins(50_000, 40_000, 1_000) == 50_000_000
    assert (
        count_ruins(50_000, 40_000, 0) == count_ruins(7, 7, 50) == count_ruins(1, 0, 50) == count_ruins(0, 0, None) == 0
    )
    with pytest.raises(UsageError, match="polish"):
        count_ruins(5, 4, -1)


def test_nothing_to_polish() -> None:
    """No leaves and no ruins give back what was there, numbered by first leaf."""
    order = LeafOrder.of(Case([-1, -1], [3, 4], 9).forest())
    assert polish_windows(order, np.array([1, 0]), 9, ruins=0, fewest=1).tolist() == [0, 1]
    empty = LeafOrder.of(Case([], [], 9).forest())
    assert polish_windows(empty, np.zeros(0, dtype=np.int64), 9, ruins=5, fewest=0).tolist() == []
