"""The covering bound: below the optimum, its dearest window that of all windows, and where it beats the others."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from exact_packing import SHAPES, Small, optimum, random_small

from dagpack_cli.errors import TreeError
from dagpack_cli.packing import Engine, Forest, lower_bound, pack_leaves
from dagpack_cli.packing.covering_bound import MOST_CELLS, MOST_LEAVES, _Search, covering_bound
from dagpack_cli.packing.dearest_window import Tables, dearest_window
from dagpack_cli.stages.ledger import bound_facts

ENGINES: tuple[Engine, ...] = ("numpy", "numba")


def apart(forest: Forest) -> np.ndarray:
    """Return the packing that gives every leaf a window."""
    return np.arange(len(forest.leaves))


# --- the dearest window -----------------------------------------------------------------------------


def windows_of(small: Small) -> list[set[int]]:
    """Return every set of nodes that is a union of leaves' paths and fits."""
    leaves = small.leaves
    groups = (group for size in range(1, len(leaves) + 1) for group in combinations(leaves, size))
    unions = (set().union(*map(small.path, group)) for group in groups)
    return [nodes for nodes in unions if small.rows(nodes) <= small.seq_len]


@pytest.mark.parametrize("shape", SHAPES)
def test_dearest_window_is_the_dearest_of_all(shape: str) -> None:
    """Both engines find a window worth what the dearest of all unions of paths is, and it is a window."""
    for seed in range(60):
        small = random_small(shape, seed, 8)
        rng = np.random.default_rng(seed)
        windows = windows_of(small)
        for most in (2, 1_000):  # many equal prices, and hardly any
            prices = rng.integers(0, most, len(small.parents))
            dearest = max(int(prices[sorted(nodes)].sum()) for nodes in windows)
            for engine in ENGINES:
                tables = Tables.of(small.forest, small.seq_len)
                for _ in range(2):  # the tables may be used again
                    worth, nodes = dearest_window(tables, prices, engine=engine)
                    assert worth == dearest
                    assert int(prices[nodes].sum()) == worth
                    assert set(nodes.tolist()) in windows or worth == 0


def test_an_inner_node_counts_only_with_a_leaf() -> None:
    """A dear fork whose leaves do not fit beside another leaf is not taken for its own price."""
    #        leaf of 6, fork of 2 with leaves of 5 and 5
    small = Small([-1, -1, 1, 1], [6, 2, 5, 5], 9)
    worth, nodes = dearest_window(Tables.of(small.forest, 9), np.array([10, 9, 0, 0]))
    assert (worth, nodes.tolist()) == (10, [0])


# --- the bound --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_bound_is_at_most_the_optimum(shape: str) -> None:
    """Searched from nothing proven and from the worst packing, it is above nothing and never above the optimum."""
    for seed in range(80):
        small = random_small(shape, seed, 7)
        forest, seq_len = small.forest, small.seq_len
        least, volume = optimum(small).windows, -(-int(forest.lengths.sum()) // seq_len)
        found = covering_bound(forest, seq_len, apart(forest), engine="numba")
        assert volume <= found <= least
        proven = lower_bound(forest, seq_len, engine="numpy").windows
        more = covering_bound(forest, seq_len, apart(forest), proven=proven, engine="numba")
        assert more == 0 or proven < more <= least


@pytest.mark.parametrize("shape", SHAPES)
def test_engines_agree(shape: str) -> None:
    """The plain way and the kernel prove the same, with something to find and without."""
    for seed in range(6):
        small = random_small(shape, 500 + seed, 8)
        proven = lower_bound(small.forest, small.seq_len, engine="numpy").windows - seed % 2
        bounds = [
            covering_bound(small.forest, small.seq_len, apart(small.forest), proven=proven, engine=engine)
            for engine in ENGINES
        ]
        assert bounds[0] == bounds[1]


def test_projections_agree_number_by_number() -> None:
    """Prices, shifts and weights after a search are the same from both engines, and weights went down again too."""
    fell = False
    for seed in range(3):
        small = random_small("groups", 900 + seed, 9)
        searches = [_Search(small.forest, small.seq_len, apart(small.forest), engine) for engine in ENGINES]
        for proven in (1, 3, 2, 1):
            before = searches[0]._state.weights.copy()
            for search in searches:
                search.prove_more(proven)
            fell |= bool((searches[0]._state.weights < before).any())
            for plain, compiled in zip(searches[0]._state, searches[1]._state, strict=True):
                assert plain.tolist() == compiled.tolist()
    assert fell


GAPS = [
    *[("alone", 50_004), ("star", 50_153), ("groups", 50_124), ("groups", 50_285), ("spine", 50_142)],
    *[("spine", 50_182), ("spine", 50_245), ("spine", 50_396), ("binary", 50_216), ("any", 50_311)],
]
"""Forests whose optimum the other bounds miss: these and eight more of the 2,400 with the seeds from 50,000 on."""


@pytest.mark.parametrize(("shape", "seed"), GAPS)
def test_what_the_others_miss_is_proven(shape: str, seed: int) -> None:
    """The bound is the exact optimum where the other three are a window below."""
    small = random_small(shape, seed, 9)
    least = optimum(small).windows
    assert lower_bound(small.forest, small.seq_len, engine="numpy").windows == least - 1
    packed = pack_leaves(small.forest, small.seq_len, polish=10, engine="numpy")
    assert packed.bound.windows == packed.bound.covering_windows == packed.cost.windows == least


BEATEN = Small([-1, 0, 0, -1, 3, -1, 5, 5, 5], [4, 3, 2, 5, 2, 1, 6, 6, 10], 15)
"""Paths of 7 and 6 rows that share 4, of 7, and of 7, 7 and 11 that share 1; windows of 15 rows.

The 11 stand alone: any other path adds at least 6. The other five have 29 distinct rows, which two windows
would hold but for the trees: 9 + 7, 9 + 13 and 7 + 13 are too long, and no tree can be divided so that both fit.
"""


def test_covering_beats_the_profile_bound() -> None:
    """Four windows where sums and sizes prove three; the portfolio's bound has it, and what is stored names it."""
    small = BEATEN
    forest, seq_len = small.forest, small.seq_len
    others = lower_bound(forest, seq_len)
    assert others.windows == 3
    assert covering_bound(forest, seq_len, apart(forest), proven=3) == 4 == optimum(small).windows
    packed = pack_leaves(forest, seq_len)
    assert (packed.bound.windows, packed.bound.covering_windows, packed.bound.profile_windows) == (4, 4, 3)
    assert packed.bound == others.covered(4)
    assert bound_facts(packed.bound) == {
        "windows": 4,
        "rows": others.rows,
        "attention_edges": others.attention,
        "covering_windows": 4,
    }
    assert bound_facts(others)["covering_windows"] == 0
    assert others.covered(0) == others


def test_limits_and_refusals() -> None:
    """Nothing to gain or too much work proves nothing; a packing of other leaves or a long path is refused."""
    forest = Forest.from_parents(np.full(3, -1), np.full(3, 5))
    assert covering_bound(forest, 10, np.array([0, 0, 1]), proven=1) == 2
    assert covering_bound(forest, 10, np.array([0, 0, 1]), proven=2) == 0
    many = Forest.from_parents(np.full(MOST_LEAVES + 1, -1), np.full(MOST_LEAVES + 1, 5))
    assert covering_bound(many, 10, apart(many)) == 0
    odd = Forest.from_parents(np.full(3, -1), np.array([MOST_CELLS, MOST_CELLS, MOST_CELLS - 1]))
    assert covering_bound(odd, MOST_CELLS, apart(odd)) == 0
    even = Forest.from_parents(np.full(3, -1), np.full(3, MOST_CELLS))
    assert covering_bound(even, MOST_CELLS + 1, apart(even)) == 3
    none = Forest.from_parents(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert covering_bound(none, 10, apart(none)) == 0
    with pytest.raises(TreeError, match="one entry a leaf"):
        covering_bound(forest, 10, np.array([0, 1]))
    with pytest.raises(TreeError, match="at most 4"):
        covering_bound(forest, 4, apart(forest))
