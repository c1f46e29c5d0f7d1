"""Bounds: below the exact optimum, by their definitions, the same from either engine, and as tight as said."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from bench.forests import FAMILIES, grow_forest
from exact_packing import SHAPES, Small, check_packing, optimum, random_small

from dagpack_cli.packing import (
    Bound,
    Engine,
    Forest,
    best_fit_apart,
    bundle_leaves,
    closed_walk,
    first_fit,
    kernels_bound,
    lower_bound,
    node_windows,
)
from dagpack_cli.packing import dual_bound as dual_bound_module
from dagpack_cli.packing.bound import volume_bound
from dagpack_cli.packing.dual_bound import TINY_LEAVES, dual_bound
from dagpack_cli.packing.first_fit import Choice, LeafSequence
from dagpack_cli.packing.profile_bound import MOST_SIZES, profile_sweep, profile_totals

ENGINES: tuple[Engine, ...] = ("numpy", "numba")
WAYS: list[tuple[LeafSequence, Choice]] = list(product(("longest", "given"), ("first", "least-added")))


# --- against the optimum ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_bounds_optimum_and_packers_are_in_order(shape: str) -> None:
    """Volume <= profile <= optimum <= every packer; rows, attention and every node's windows are below theirs."""
    for seed in range(250):
        small = random_small(shape, seed, 7)
        forest, seq_len = small.forest, small.seq_len
        bound, least = lower_bound(forest, seq_len, engine="numpy"), optimum(small)
        assert bound.volume_windows <= bound.profile_windows <= bound.windows <= least.windows
        assert bound.dual_windows <= bound.windows
        assert bound.rows <= least.rows
        assert bound.attention <= least.attention
        needed = node_windows(forest, seq_len, engine="numpy").tolist()
        assert all(low <= exact for low, exact in zip(needed, least.node_windows, strict=True))
        packings = [bundle_leaves(forest, seq_len), closed_walk(forest, seq_len), best_fit_apart(forest, seq_len)]
        packings += [first_fit(forest, seq_len, order, choice) for order, choice in WAYS]
        for windows in packings:
            cost = check_packing(small, windows.tolist())
            assert all(exact <= found for exact, found in zip(least[:3], cost, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_bounds_hold_for_a_dozen_leaves(shape: str) -> None:
    """Larger small forests: lists of several entries, several levels."""
    for seed in range(1_000, 1_008):
        small = random_small(shape, seed, 11)
        bound, least = lower_bound(small.forest, small.seq_len, engine="numpy"), optimum(small)
        assert bound.windows <= least.windows
        assert bound.rows <= least.rows
        assert bound.attention <= least.attention


@pytest.mark.parametrize("base", [10_000, 20_000, 30_000])
def test_bound_is_the_optimum_nearly_always(base: int) -> None:
    """The bound is reached in 98.5 % of random small forests, the volume bound alone in nine of ten."""
    tight = volume_tight = rows_tight = total = 0
    for shape in SHAPES:
        for seed in range(base, base + 100):
            small = random_small(shape, seed, 7)
            bound, least = lower_bound(small.forest, small.seq_len, engine="numpy"), optimum(small)
            tight += bound.windows == least.windows
            volume_tight += bound.volume_windows == least.windows
            rows_tight += bound.rows == least.rows
            total += 1
    print(f"windows {tight / total:.4f}, volume alone {volume_tight / total:.4f}, rows {rows_tight / total:.4f}")
    assert tight >= 0.98 * total
    assert rows_tight >= 0.98 * total
    assert volume_tight <= tight - 0.05 * total


# --- by their definitions -------------------------------------------------------------------------------


def naive_profile(small: Small) -> tuple[list[int], int]:
    """Return every node's w, the forest's last, and P, for every size t anew from the definition."""
    num = len(small.parents)
    claims: dict[int, tuple[int, int, int, list[int]]] = {}  # w, P, m, usages descending
    for node in [*range(num - 1, -1, -1), -1]:
        length = small.lengths[node] if node >= 0 else 0
        room = small.seq_len - (small.rows(small.path(node)) if node >= 0 else 0)
        children = [claims[at] for at in range(num) if small.parents[at] == node]
        if not children:
            claims[node] = (1, length, length, [length])
            continue
        least = min(child[2] for child in children)
        usages: list[int] = []
        for size in sorted({u for child in children for u in [child[2], *child[3]]}, reverse=True):
            usages += [size + length] * (windows_from(children, size, room) - len(usages))
        volume = sum(child[1] for child in children)
        rows = max(length * len(usages) + volume, sum(usages))
        claims[node] = (len(usages), rows, least + length, usages)
    return [claims[node][0] for node in [*range(num), -1]], claims[-1][1]


def windows_from(children: list[tuple[int, int, int, list[int]]], size: int, room: int) -> int:
    """Return N(size), the formula of the module's docstring."""
    inside = [sum(u > room - size for u in usages) if 2 * size <= room else 0 for _, _, _, usages in children]
    rows = 0
    for (_, total, least, usages), alone in zip(children, inside, strict=True):
        listed = sum([u for u in usages if u >= size][alone:])
        rows += max(listed, total - alone * room) if least >= size else listed
    parts = sum(u >= size for _, _, _, usages in children for u in usages)
    outside = max(math.ceil(Fraction(rows, room)), math.ceil(Fraction(parts - sum(inside), room // size)))
    if 2 * size > room:
        outside = max(parts, math.ceil(Fraction(rows, room)))
    largest = max(sum(u >= size for u in usages) for _, _, _, usages in children)
    return max(sum(inside) + outside, largest)


@pytest.mark.parametrize("shape", SHAPES)
def test_profile_is_its_definition(shape: str) -> None:
    """Both engines find what evaluating N(t) anew for every size finds."""
    for seed in range(60):
        small = random_small(shape, seed, 16)
        expected = naive_profile(small)
        for engine in ENGINES:
            windows, rows = profile_sweep(small.forest, small.seq_len, engine=engine)
            assert (windows.tolist(), rows) == expected


@pytest.mark.parametrize("seed", range(40))
def test_dual_is_its_definition(seed: int) -> None:
    """The dual bound is the best of 32 sums over trees of the least worth of a division that fits."""
    small = random_small("groups", seed, 10)
    worths = []
    for k in range(1, 33):
        total = 0
        for root in (node for node, parent in enumerate(small.parents) if parent < 0):
            paths = [small.path(leaf) for leaf in small.leaves if root in small.path(leaf)]
            total += min(
                sum(math.ceil(Fraction((k + 1) * small.rows(set().union(*g)), small.seq_len)) - 1 for g in groups)
                for groups in divisions(paths)
                if all(small.rows(set().union(*g)) <= small.seq_len for g in groups)
            )
        worths.append(math.ceil(Fraction(total, k)))
    assert dual_bound(small.forest, small.seq_len) == max(worths)


def divisions(items: list[set[int]]) -> list[list[list[set[int]]]]:
    """Return every division of a list into groups."""
    if not items:
        return [[]]
    rest = divisions(items[1:])
    return [[[items[0]], *groups] for groups in rest] + [
        [*groups[:at], [items[0], *groups[at]], *groups[at + 1 :]] for groups in rest for at in range(len(groups))
    ]


def test_dual_is_for_tiny_trees_only() -> None:
    """A tree with one leaf more than the limit turns it off."""
    for leaves, expected in ((TINY_LEAVES, 2), (TINY_LEAVES + 1, 0)):
        forest = Small([-1] + [0] * leaves, [1] * (leaves + 1), 4).forest
        assert dual_bound(forest, 4) == expected


def test_each_bound_is_the_best_somewhere() -> None:
    """Five rows in nine: profile. Thirds of ten: count. Pairs that leave a rest nobody can use: dual."""
    assert lower_bound(Small([-1] * 3, [5] * 3, 9).forest, 9).profile_windows == 3
    assert volume_bound(Small([-1] * 3, [5] * 3, 9).forest, 9) == 2
    thirds = Small([-1, *[0] * 8], [2, *[3] * 8], 12)
    assert node_windows(thirds.forest, 12).tolist() == [3, *[1] * 8]
    assert volume_bound(thirds.forest, 12) == 3
    fours = Small([-1, *[0] * 8], [1, *[4] * 8], 12)  # two of four rows in eleven, not 2.75
    assert node_windows(fours.forest, 12)[0] == 4
    assert volume_bound(fours.forest, 12) == 3
    pairs = Small([parent for tree in range(6) for parent in (-1, 3 * tree, 3 * tree)], [2, 3, 3] * 6, 10)
    bound = lower_bound(pairs.forest, 10)
    assert (bound.volume_windows, bound.profile_windows, bound.dual_windows) == (5, 5, 6)


# --- engines and sizes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_engines_agree_on_families(family: str) -> None:
    """A few thousand nodes of every family have the same bounds whichever engine ran, below what is packed."""
    forest = grow_forest(family, 8192, num_nodes=2_500)
    plain, compiled = (lower_bound(forest, 8192, engine=engine) for engine in ENGINES)
    assert plain == compiled
    needed = [node_windows(forest, 8192, engine=engine) for engine in ENGINES]
    assert np.array_equal(needed[0], needed[1])
    assert needed[0].dtype == needed[1].dtype == np.int64
    assert plain.windows <= min(bundle_leaves(forest, 8192).max(), first_fit(forest, 8192).max()) + 1


def test_long_lists_are_rounded_alike() -> None:
    """More different slacks than a node keeps: both engines round them alike, and little is lost."""
    num = 4 * MOST_SIZES
    rng = np.random.default_rng(3)
    parents = np.array([-1, 0, *[1] * num, 0, *[2 + num] * 3])
    lengths = np.concatenate(([5, 90], rng.integers(503, 900, num), [7], [100, 50, 60]))
    forest = Forest.from_parents(parents, lengths)
    plain, compiled = (lower_bound(forest, 1_100, engine=engine) for engine in ENGINES)
    assert plain == compiled
    assert node_windows(forest, 1_100)[1] == num
    assert bundle_leaves(forest, 1_100).max() + 1 == plain.windows == num


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("most_claims", [2, 3, 6])
def test_few_claims_at_a_time_only_weaken(shape: str, most_claims: int) -> None:
    """Children of one window that become one claim: below the optimum still, and never above all claims apart."""
    for seed in range(150):
        small = random_small(shape, seed, 7)
        forest, least = small.forest, optimum(small)
        needed = np.zeros(forest.num_nodes, dtype=np.int64)
        windows, rows, attention = kernels_bound.profile_sweep(
            forest.parents, forest.lengths, forest.depths, small.seq_len, MOST_SIZES, needed, most_claims
        )
        exact = profile_totals(forest, small.seq_len, engine="numpy")
        assert all(low <= high for low, high in zip((windows, rows, attention), exact, strict=True))
        assert all(low <= high for low, high in zip(exact, least[:3], strict=True))
        assert (needed <= profile_sweep(forest, small.seq_len, engine="numpy")[0][:-1]).all()


@pytest.mark.parametrize("below", [False, True])
def test_claims_that_are_alike_become_one_without_loss(below: bool) -> None:
    """A thousand small trees of few kinds, roots or below one node: the same bounds with 60 claims at a time."""
    rng = np.random.default_rng(1)
    parents, lengths = [-1] * below, [3] * below
    kinds = ([50], [31], [40, 8], [23, 20, 4])  # more than half of a window, a third of it, with children
    for kind in rng.integers(0, 4, 1_000).tolist():
        root, rows = len(parents), kinds[kind]
        parents += [-1 + below, *[root] * (len(rows) - 1)]
        lengths += rows
        if kind == 3 and rng.random() < 0.1:  # one that takes two windows
            parents += [root, root]
            lengths += [60, 50]
    forest = Forest.from_parents(np.array(parents), np.array(lengths))
    plain = profile_totals(forest, 90, engine="numpy")
    for most_claims in (60, 1 << 16):
        compiled = kernels_bound.profile_sweep(
            forest.parents, forest.lengths, forest.depths, 90, MOST_SIZES, np.zeros(0, dtype=np.int64), most_claims
        )
        assert compiled == plain


def test_some_trees_at_a_time_have_the_same_dual_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dual bound adds up over trees, however many are looked at together; a large tree anywhere turns it off."""
    forest = grow_forest("pref", 2_048, num_nodes=1_000)
    whole = dual_bound(forest, 2_048)
    assert whole > 0
    large = Forest.from_parents(
        np.append(forest.parents, [-1, *[forest.num_nodes] * 9]), np.append(forest.lengths, [1] * 10)
    )
    for chunk in (1, 5, 64):
        monkeypatch.setattr(dual_bound_module, "_CHUNK", chunk)
        assert dual_bound(forest, 2_048) == whole
        assert dual_bound(large, 2_048) == 0


def test_chains_are_a_forest_of_roots() -> None:
    """Lone roots, some at a time, are what their parents give."""
    chains, expected = Forest.of_chains(np.array([3, 1, 2])), Forest.from_parents(np.full(3, -1), np.array([3, 1, 2]))
    for name in ("parents", "lengths", "depths", "ends"):
        assert np.array_equal(getattr(chains, name), getattr(expected, name))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_tree_needs_no_less_for_another_beside_it(engine: Engine) -> None:
    """Seven leaves of three rows, two a window below the root's row, keep their four windows beside a lone row."""
    beside = Small([-1, *[0] * 7, -1], [1, *[3] * 7, 1], 9)
    assert node_windows(beside.forest, 9, engine=engine)[0] == 4
    assert profile_sweep(beside.forest, 9, engine=engine)[0][-1] == optimum(beside).windows == 4


def test_no_nodes_and_one() -> None:
    """Nothing needs nothing, a lone node a window; a forest of one tree what the tree needs."""
    nothing = Forest.from_parents(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))
    for engine in ENGINES:
        assert lower_bound(nothing, 8, engine=engine) == Bound(windows=0, rows=0, attention=0)
        assert node_windows(nothing, 8, engine=engine).tolist() == []
        bound = lower_bound(Small([-1], [3], 3).forest, 3, engine=engine)
        assert (bound.windows, bound.rows, bound.attention) == (1, 3, 6)
