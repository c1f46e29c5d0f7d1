"""The portfolio: in order with bound, exact optimum and every rule, the same whoever computes it, in all shapes."""

from __future__ import annotations

import numpy as np
import oracle_packing as oracle
import pytest
from bench.forests import FAMILIES, grow_forest
from hypothesis import given, settings
from oracle_packing import Case

from dagpack_cli.errors import TreeError, UsageError
from dagpack_cli.packing import Forest, check_placement, lower_bound, place_leaves, walk_forest
from dagpack_cli.packing import covering_bound as covering_module
from dagpack_cli.packing.chains import best_fit_decreasing
from dagpack_cli.packing.closed_walk import closed_walk
from dagpack_cli.packing.leaf_order import LeafOrder, SharedRows, number_by_first, packing_cost, shared_rows
from dagpack_cli.packing.portfolio import Packed, pack_leaves

LARGE = [
    (family, seq_len) for family in FAMILIES for seq_len in (2_048, 8_192) if (family, seq_len) != ("agent", 2_048)
]


def check(forest: Forest, packed: Packed, seq_len: int) -> None:
    """Check a packing's windows row by row, and its cost against them."""
    placement = place_leaves(forest, packed.leaf_windows)
    check_placement(forest, placement, seq_len)
    assert packed.cost.windows == placement.num_windows
    assert packed.cost.rows == placement.ends.sum()
    assert packed.leaf_windows.tolist() == number_by_first(packed.leaf_windows).tolist()
    assert packed.bound.windows <= packed.cost.windows
    assert packed.bound.rows <= packed.cost.rows
    assert packed.bound.attention <= packed.cost.attention
    assert packed.cost == min(packed.costs.values(), key=lambda cost: cost.key)


# --- leaf order and costs ---------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(oracle.cases(max_nodes=60, max_leaves=60))
def test_leaves_share_what_their_paths_share(case: Case) -> None:
    """The leaf order and both range-minimum structures agree with sets of rows, for every pair of leaves."""
    order = LeafOrder.of(case.forest())
    paths = [oracle.path_rows(case, leaf) for leaf in oracle.leaves_of(case.parents)]
    assert order.rows.tolist() == [len(path) for path in paths]
    pairs = [(a, b) for b in range(len(paths)) for a in range(b)]
    expected = [len(paths[a] & paths[b]) for a, b in pairs]
    firsts, seconds = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    assert shared_rows(order, firsts, seconds).tolist() == expected
    if paths:
        one = SharedRows(order)
        assert [one(a, b) for a, b in pairs] == expected


@pytest.mark.parametrize("num", [1, 31, 32, 33, 64, 65, 97, 400])
def test_ranges_of_every_length(num: int) -> None:
    """Ranges inside a block, across its edges and over runs of blocks have the least of what they hold."""
    from dagpack_cli.packing.kernels_polish import least_shared

    rng = np.random.default_rng(num)
    lengths = rng.integers(1, 50, 2 * num)
    parents = np.concatenate(([-1], (rng.random(2 * num - 1) * np.arange(1, 2 * num)).astype(np.int64)))
    case = preorder(parents, lengths)
    order = LeafOrder.of(case)
    count = len(order.rows)
    pairs = [(a, b) for b in range(count) for a in range(b)]
    expected = [int(order.shared[a + 1 : b + 1].min()) for a, b in pairs]
    firsts, seconds = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    assert shared_rows(order, firsts, seconds).tolist() == expected
    assert [int(least_shared(order, a, b)) for a, b in pairs] == expected


def preorder(parents: np.ndarray, lengths: np.ndarray) -> Forest:
    """Return the forest whose nodes are given with parents first, in any such order."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents.tolist()):
        children.setdefault(parent, []).append(node)
    stack, numbers = children[-1][::-1], {-1: -1}
    columns: list[tuple[int, int]] = []
    while stack:
        node = stack.pop()
        numbers[node] = len(columns)
        columns.append((numbers[int(parents[node])], int(lengths[node])))
        stack += children.get(node, [])[::-1]
    return Forest.from_parents(*(np.array(column) for column in zip(*columns, strict=True)))


@settings(max_examples=100, deadline=None)
@given(oracle.cases(max_nodes=40, max_leaves=40))
def test_costs_are_those_of_the_windows(case: Case) -> None:
    """Rows and attention of every rule, counted without windows, are those of the windows as sets of rows."""
    forest = case.forest()
    order = LeafOrder.of(forest)
    depths = oracle.row_depths(case)
    packed = pack_leaves(forest, case.seq_len, polish=2, engine="numpy")
    instances = oracle.naive_placement(case, packed.leaf_windows.tolist())
    rows = [(node, offset) for _, node, end, _ in instances for offset in range(end)]
    assert packed.cost.rows == len(rows)
    assert packed.cost.attention == sum(depths[row] + 1 for row in rows)
    for engine in ("numpy", "numba"):
        assert packing_cost(order, packed.leaf_windows, engine=engine) == packed.cost


def test_costs_refuse_other_windows() -> None:
    """Window numbers of the wrong shape or range are refused."""
    order = LeafOrder.of(Case([-1, 0, 0], [1, 1, 1], 4).forest())
    with pytest.raises(TreeError, match="one entry a leaf"):
        packing_cost(order, np.array([0]))
    with pytest.raises(TreeError, match="numbers from 0 to 2"):
        packing_cost(order, np.array([0, 2]))


# --- the portfolio ----------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(oracle.cases())
def test_everything_is_in_order(case: Case) -> None:
    """Bound <= optimum <= packing <= every rule it promises not to be worse than; and the windows obey the rules."""
    forest = case.forest()
    packed = pack_leaves(forest, case.seq_len, engine="numpy")
    check(forest, packed, case.seq_len)
    assert oracle.obeys_the_rules(case, place_leaves(forest, packed.leaf_windows))
    fewest = oracle.optimum(case)
    assert packed.bound.windows <= fewest[0] <= packed.cost.windows
    assert fewest[1] <= packed.cost.rows
    promise(forest, packed, case.seq_len, oracle.naive_bound(case)[0])


def promise(forest: Forest, packed: Packed, seq_len: int, volume_bound: int) -> None:
    """Check that a packing is no worse than walk, closed walk, best fit without sharing and the proven factor."""
    order = LeafOrder.of(forest)
    walked = packing_cost(order, closed_walk(forest, seq_len))
    assert packed.cost.windows <= min(walked.windows, walk_forest(forest, seq_len).num_windows)
    unshared = best_fit_decreasing(order.rows, seq_len)
    assert packed.cost.key <= min(walked.key, packing_cost(order, unshared).key)
    assert packed.cost.windows <= max(3 * volume_bound - 1, min(1, len(order.rows)))


def random_case(seed: int) -> Case:
    """Return a small forest of 2 to 8 leaves with windows that hold a few of them."""
    rng = np.random.default_rng([3, seed])
    parents: list[int] = []
    path: list[int] = []
    num_leaves, back = int(rng.integers(2, 9)), float(rng.choice([0.2, 0.5, 0.9]))
    while len(oracle.leaves_of(parents)) < num_leaves or not parents:
        while path and rng.random() < back:
            path.pop()
        parents.append(path[-1] if path else -1)
        path.append(len(parents) - 1)
    lengths = rng.integers(1, int(rng.choice([4, 20, 60])), len(parents)).tolist()
    case = Case(parents, lengths, 1)
    longest = max(len(oracle.path_rows(case, leaf)) for leaf in oracle.leaves_of(parents))
    return case._replace(seq_len=int(longest * rng.choice([1.0, 1.2, 1.5, 2.0])))


def fewest_windows(case: Case) -> int:
    """Return the exact optimum: the fewest sets of leaves that fit, by a programme over all sets."""
    paths = [oracle.path_rows(case, leaf) for leaf in oracle.leaves_of(case.parents)]
    fits = [
        len(set().union(*(path for i, path in enumerate(paths) if subset >> i & 1))) <= case.seq_len
        for subset in range(1 << len(paths))
    ]
    best = [0] + [len(paths)] * (len(fits) - 1)
    for subset in range(1, len(fits)):
        lowest, part = subset & -subset, subset
        while part:
            if part & lowest and fits[part]:
                best[subset] = min(best[subset], 1 + best[subset ^ part])
            part = (part - 1) & subset
    return best[-1]


@pytest.mark.parametrize("block", range(4))
def test_small_forests_are_packed_optimally(block: int) -> None:
    """Of 500 small forests the portfolio packs all but a few in the fewest windows possible, and those to one more."""
    missed = 0
    for seed in range(500 * block, 500 * block + 500):
        case = random_case(seed)
        forest = case.forest()
        packed = pack_leaves(forest, case.seq_len, engine="numpy")
        fewest = fewest_windows(case)
        assert packed.bound.windows <= fewest <= packed.cost.windows <= fewest + 1
        missed += packed.cost.windows > fewest
        check(forest, packed, case.seq_len)
    assert missed <= 1


@pytest.mark.parametrize(("family", "seq_len"), LARGE)
def test_families_are_near_the_bound(family: str, seq_len: int) -> None:
    """Generated corpora are packed to within a few hundredths of the bound, validly, and no worse than promised."""
    forest = grow_forest(family, seq_len, 3, num_rows=1_000_000)
    packed = pack_leaves(forest, seq_len, polish=5)
    check(forest, packed, seq_len)
    promise(forest, packed, seq_len, packed.bound.windows)
    assert packed.cost.windows <= 1.08 * packed.bound.windows


@pytest.mark.parametrize("seed", range(6))
def test_engines_agree(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Plain and compiled ways pack alike, and try the same; a few dearest windows stand for hundreds."""
    monkeypatch.setattr(covering_module, "_MOST_WINDOWS", 12)
    family = sorted(FAMILIES)[seed]
    forest = grow_forest(family, 8_192, seed, num_nodes=300)
    plain, compiled = (pack_leaves(forest, 8_192, polish=3, engine=engine) for engine in ("numpy", "numba"))
    assert plain.leaf_windows.tolist() == compiled.leaf_windows.tolist()
    assert (plain.strategy, plain.costs, plain.bound) == (compiled.strategy, compiled.costs, compiled.bound)


def test_nothing_more_is_tried_at_the_bound() -> None:
    """One full window ends the search; a window reached with rows to spare leaves out only what costs most."""
    done = pack_leaves(Case([-1, 0, 0, 0, 0], [5, 2, 3, 1, 2], 9).forest(), 9)
    assert (list(done.costs), done.strategy) == (["best fit"], "best fit")
    packed = pack_leaves(grow_forest("agent", 8_192, 0, num_rows=300_000), 8_192)
    everything = ["best fit", "elimination", "closed walk", "no sharing", "first fit", "least added"]
    assert list(packed.costs)[:6] == everything
    reached = pack_leaves(grow_forest("gw", 32_768, 2, num_rows=60_000), 32_768)
    assert reached.costs["best fit"].windows == reached.bound.windows
    assert reached.costs["best fit"].rows > reached.bound.rows
    assert list(reached.costs) == ["best fit", "closed walk", "no sharing"]


def test_long_trunks_need_first_fit() -> None:
    """Where paths are nearly as long as a window, sharing-aware first fit beats best fit, and is kept."""
    forest = grow_forest("deep", 2_048, 0, num_rows=2_000_000)
    packed = pack_leaves(forest, 2_048, polish=0)
    assert packed.costs["least added"].windows < packed.costs["best fit"].windows
    assert packed.cost.windows == min(cost.windows for cost in packed.costs.values())


def test_polish_is_what_was_asked_for() -> None:
    """Without polish none is tried, the seed decides nothing; with it the same seed gives the same windows."""
    forest = grow_forest("pref", 2_048, 1, num_rows=300_000)
    rules = pack_leaves(forest, 2_048, polish=0)
    assert "polish" not in rules.costs
    polished = [pack_leaves(forest, 2_048, polish=20, seed=seed) for seed in (5, 5, 6)]
    assert polished[0].strategy == "polish"
    assert polished[0].cost.windows < rules.cost.windows
    assert polished[0].leaf_windows.tolist() == polished[1].leaf_windows.tolist()
    assert polished[0].leaf_windows.tolist() != polished[2].leaf_windows.tolist()
    with pytest.raises(UsageError, match="polish"):
        pack_leaves(forest, 2_048, polish=-1)


def test_no_forest() -> None:
    """Nothing packs into no windows, at a bound of 0."""
    none = np.zeros(0, dtype=np.int64)
    packed = pack_leaves(Forest.from_parents(none, none), 5)
    assert (packed.leaf_windows.tolist(), packed.cost.key, packed.bound.windows) == ([], (0, 0, 0), 0)


def test_paths_that_do_not_fit_are_refused() -> None:
    """A path longer than a window is the caller's bug."""
    with pytest.raises(TreeError, match="node 1 has 7 rows"):
        pack_leaves(Case([-1, 0], [3, 4], 6).forest(), 6)


@pytest.mark.parametrize("shape", ["spine", "star", "equal", "path", "lone"])
def test_worst_shapes(shape: str) -> None:
    """A spine with leaves, a wide star, equal leaves, one path and lone runs are packed validly."""
    rng = np.random.default_rng(1)
    num = 20_000
    none = np.zeros(num, dtype=np.int64)
    spine = np.stack((np.arange(-2, 2 * num - 2, 2), np.arange(0, 2 * num, 2)), axis=1).ravel()
    spine[0] = -1
    parents, lengths, seq_len = {
        "spine": (spine, np.ones(2 * num, dtype=np.int64), num + 100),
        "star": (np.append(-1, none), np.append(10, rng.integers(1, 50, num)), 8_192),
        "equal": (np.append(-1, none), np.append(100, none + 300), 1_000),
        "path": (np.arange(-1, num - 1), none + 1, num),
        "lone": (none - 1, rng.integers(1, 5_000, num), 8_192),
    }[shape]
    forest = Forest.from_parents(parents, lengths)
    packed = pack_leaves(forest, seq_len, polish=2)
    check(forest, packed, seq_len)
    assert packed.cost.windows <= 1.001 * packed.bound.windows + 1


def test_bound_is_the_forests() -> None:
    """The bound beside a packing is `lower_bound`'s."""
    forest = grow_forest("gw", 2_048, 2, num_rows=100_000)
    assert pack_leaves(forest, 2_048, polish=0).bound == lower_bound(forest, 2_048)
