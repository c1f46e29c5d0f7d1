"""Forests, bundles, walk and bound: against the exact optimum, obvious twins and each other's engines."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import numpy.typing as npt
import oracle_packing as oracle
import pytest
from hypothesis import given, settings
from oracle_packing import Case

from dagpack_cli.errors import TreeError, UsageError
from dagpack_cli.packing import (
    Bound,
    Engine,
    Forest,
    bundle_leaves,
    check_placement,
    lower_bound,
    place_leaves,
    walk_forest,
)

ENGINES: tuple[Engine, ...] = ("numpy", "numba")


# --- forest -----------------------------------------------------------------------------------------


def test_forest_of_the_worked_example() -> None:
    """The branch of the design has the depths and ends one reads off its picture."""
    for engine in ENGINES:
        forest = Forest.from_parents(np.array([-1, 0, 0]), np.array([2, 1, 3]), engine=engine)
        assert forest.depths.tolist() == [0, 2, 2]
        assert forest.ends.tolist() == [3, 2, 3]
        assert forest.leaves.tolist() == [1, 2]
        dtypes = [str(c.dtype) for c in (forest.parents, forest.lengths, forest.depths, forest.ends)]
        assert dtypes == ["int32", "int64", "int64", "int32"]


@settings(max_examples=150, deadline=None)
@given(oracle.cases(max_nodes=25, max_leaves=25))
def test_forest_columns_match_paths(case: Case) -> None:
    """Depths, ends and leaves are those of the sets of paths, whichever engine computes them."""
    for engine in ENGINES:
        parents, lengths = np.array(case.parents, dtype=int), np.array(case.lengths, dtype=int)
        forest = Forest.from_parents(parents, lengths, engine=engine)
        num = len(case.parents)
        paths = [oracle.path_nodes(case.parents, node) for node in range(num)]
        assert forest.depths.tolist() == [sum(case.lengths[u] for u in path[:-1]) for path in paths]
        assert forest.ends.tolist() == [max(v for v in range(num) if node in paths[v]) + 1 for node in range(num)]
        assert forest.leaves.tolist() == oracle.leaves_of(case.parents)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("parents", "lengths", "message"),
    [
        ([-1, 0, -1, 1], [1, 1, 1, 1], "whose subtree ended before"),
        ([0], [1], "parent 0"),
        ([-1, 1], [1, 1], "parent 1"),
        ([-1, -2], [1, 1], "parent -2"),
        ([-1, 2**32 - 1], [1, 1], "parent 4,294,967,295"),
        ([-1, 0], [1, 0], "node 1 has 0 rows"),
        ([-1, -1], [1, 0], "node 1 has 0 rows"),
        ([-1, 0, 1], [1, 0, 1], "node 1 has 0 rows"),
        ([-1, 0], [-1, 2], "node 0 has -1 rows"),
        ([-1, 0], [1], "shapes"),
    ],
)
def test_forest_refuses(engine: Engine, parents: list[int], lengths: list[int], message: str) -> None:
    """What is no preorder forest of non-empty runs is refused, and the message names the place."""
    with pytest.raises(TreeError, match=message):
        Forest.from_parents(np.array(parents), np.array(lengths), engine=engine)


def test_forest_copies() -> None:
    """A forest does not change when the arrays it was made from do."""
    lengths = np.array([3, 4])
    forest = Forest.from_parents(np.array([-1, 0]), lengths)
    lengths[0] = 9
    assert forest.lengths.tolist() == [3, 4]


@pytest.mark.parametrize("engine", ENGINES)
def test_packers_refuse_a_path_that_does_not_fit(engine: Engine) -> None:
    """A path longer than a window is the caller's bug, and a path of exactly a window is none."""
    forest = Forest.from_parents(np.array([-1, 0]), np.array([3, 4]))
    for packer in (bundle_leaves, walk_forest, lower_bound):
        packer(forest, 7, engine=engine)
        with pytest.raises(TreeError, match="node 1 has 7 rows"):
            packer(forest, 6, engine=engine)
        with pytest.raises(TreeError, match="seq_len"):
            packer(forest, 2**31, engine=engine)


def test_unknown_engine_is_refused() -> None:
    """An engine that does not exist is named."""
    with pytest.raises(UsageError, match="fortran"):
        bundle_leaves(Case([-1], [1], 4).forest(), 4, engine="fortran")  # type: ignore[arg-type]


def test_importing_packing_compiles_nothing() -> None:
    """Importing the package and packing something small loads no numba."""
    code = (
        "import sys, numpy as np\nfrom dagpack_cli import packing as p\n"
        "f = p.Forest.from_parents(np.array([-1, 0]), np.array([1, 2]))\n"
        "p.place_leaves(f, p.bundle_leaves(f, 4)); p.walk_forest(f, 4); p.lower_bound(f, 4)\n"
        "p.best_fit_decreasing(np.array([1]), 4); p.next_fit(np.array([1]), 4)\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- bundle and bound -------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_bundle_prefers_the_tightest_window(engine: Engine) -> None:
    """Below a trunk of 5 rows, leaves of 2, 3, 1 and 2 fill two windows of 9 without a free row."""
    case = Case([-1, 0, 0, 0, 0], [5, 2, 3, 1, 2], 9)
    assert bundle_leaves(case.forest(), 9, engine=engine).tolist() == [0, 1, 1, 0]


@settings(max_examples=200, deadline=None)
@given(oracle.cases())
def test_bound_optimum_and_packers_are_in_order(case: Case) -> None:
    """Bound <= exact optimum <= every packer, for windows, rows and attention; and bundling keeps its factor."""
    forest = case.forest()
    bound = lower_bound(forest, case.seq_len, engine="numpy")
    fewest = oracle.optimum(case)
    assert all(low <= exact for low, exact in zip((bound.windows, bound.rows, bound.attention), fewest, strict=True))
    windows = bundle_leaves(forest, case.seq_len, engine="numpy")
    placement = place_leaves(forest, windows, engine="numpy")
    check_placement(forest, placement, case.seq_len)
    walk = walk_forest(forest, case.seq_len, engine="numpy")
    assert fewest[0] <= placement.num_windows
    assert fewest[1] <= placement.ends.sum()
    assert fewest[0] <= walk.num_windows
    assert fewest[1] <= walk.ends.sum()
    fits = sum(case.lengths) <= case.seq_len
    assert placement.num_windows <= (min(1, len(case.parents)) if fits else 3 * bound.windows - 1)


@settings(max_examples=300, deadline=None)
@given(oracle.cases(max_nodes=24, max_leaves=24))
def test_bundles_match_best_fit_over_all_bundles(case: Case) -> None:
    """Moving only the open bundles gives what best fit over all bundles of all children gives."""
    expected = oracle.naive_bundles(case)
    for engine in ENGINES:
        assert bundle_leaves(case.forest(), case.seq_len, engine=engine).tolist() == expected


@settings(max_examples=150, deadline=None)
@given(oracle.cases(max_nodes=40, max_leaves=40))
def test_engines_agree(case: Case) -> None:
    """Kernels and plain ways give the same bundles, bound, walk and placement, and the bound is its formula's."""
    forest = case.forest()
    windows = [bundle_leaves(forest, case.seq_len, engine=engine) for engine in ENGINES]
    assert windows[0].tolist() == windows[1].tolist()
    assert windows[0].dtype == windows[1].dtype == np.int64
    windows_bound, rows, attention = oracle.naive_bound(case)
    bounds = [lower_bound(forest, case.seq_len, engine=engine) for engine in ENGINES]
    assert bounds[0] == bounds[1]
    assert bounds[0].volume_windows == windows_bound <= bounds[0].windows
    assert rows <= bounds[0].rows
    assert attention <= bounds[0].attention
    walks = [walk_forest(forest, case.seq_len, engine=engine) for engine in ENGINES]
    placements = [place_leaves(forest, windows[0], engine=engine) for engine in ENGINES]
    for plain, compiled in (walks, placements):
        assert oracle.instances_of(plain) == oracle.instances_of(compiled)
        for name in ("windows", "nodes", "ends", "fresh"):
            assert getattr(plain, name).dtype == getattr(compiled, name).dtype


def random_forest(seed: int, num: int, seq_len: int) -> Forest:
    """Return a forest of ``num`` nodes whose shape and run lengths depend on the seed, paths within seq_len."""
    rng = np.random.default_rng(seed)
    parents: list[int] = []
    lengths: list[int] = []
    depths: list[int] = []
    path: list[int] = []
    longest = int(rng.choice([3, seq_len // 20, seq_len // 3]))
    for node in range(num):
        keep = len(path) - int(rng.geometric(rng.choice([0.3, 0.6]))) + 1
        path = path[: max(keep, 0)]
        length = int(rng.integers(1, longest + 1))
        while path and depths[path[-1]] + lengths[path[-1]] + length > seq_len:
            path.pop()
        parents.append(path[-1] if path else -1)
        depths.append(depths[path[-1]] + lengths[path[-1]] if path else 0)
        lengths.append(length)
        path.append(node)
    return Forest.from_parents(np.array(parents), np.array(lengths), engine="numpy")


@pytest.mark.parametrize("seed", range(30))
def test_engines_agree_on_larger_forests(seed: int) -> None:
    """A few thousand nodes reach pools, merges and equal slacks that small forests do not."""
    seq_len = [50, 200, 1000][seed % 3]
    forest = random_forest(seed, 3000, seq_len)
    plain, compiled = (bundle_leaves(forest, seq_len, engine=engine) for engine in ENGINES)
    assert np.array_equal(plain, compiled)
    bound = lower_bound(forest, seq_len, engine="numpy")
    assert bound == lower_bound(forest, seq_len, engine="numba")
    check_placement(forest, place_leaves(forest, plain), seq_len)
    walks = [walk_forest(forest, seq_len, engine=engine) for engine in ENGINES]
    assert oracle.instances_of(walks[0]) == oracle.instances_of(walks[1])
    check_placement(forest, walks[0], seq_len)
    assert bound.windows <= plain.max() + 1 <= 3 * bound.windows - 1


def test_bound_of_the_empty_forest() -> None:
    """Nothing needs no window, row or edge, and packs into none."""
    for engine in ENGINES:
        forest = Forest.from_parents(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64), engine=engine)
        assert lower_bound(forest, 8, engine=engine) == Bound(windows=0, rows=0, attention=0)
        assert bundle_leaves(forest, 8, engine=engine).tolist() == []
        assert walk_forest(forest, 8, engine=engine).num_windows == 0
        check_placement(forest, place_leaves(forest, np.zeros(0, dtype=np.int64), engine=engine), 8)


# --- walk -------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(oracle.cases(max_nodes=20, max_leaves=20))
def test_walk_matches_a_walk_of_single_rows(case: Case) -> None:
    """Every window replays the rows above its first fresh row, then goes on; all but the last are full."""
    windows = oracle.naive_walk(case)
    for engine in ENGINES:
        placement = walk_forest(case.forest(), case.seq_len, engine=engine)
        check_placement(case.forest(), placement, case.seq_len)
        instances = oracle.instances_of(placement)
        assert placement.num_windows == len(windows)
        for number, (replayed, fresh) in enumerate(windows):
            own = [i for i in instances if i[0] == number]
            assert [(node, o) for _, node, end, begin in own for o in range(begin, end)] == fresh
            assert [(node, o) for _, node, _, begin in own for o in range(begin)] == replayed
            assert number == len(windows) - 1 or len(replayed) + len(fresh) == case.seq_len


# --- worst cases ------------------------------------------------------------------------------------


def worst_cases(num: int) -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]]:
    """Return parents, lengths and seq_len of a star, equal leaves, one path and a spine with a leaf a node."""
    rng = np.random.default_rng(0)
    half = num // 2
    spine = np.concatenate((np.arange(-1, half - 1), np.arange(half - 1, -1, -1)))
    ones = np.ones(half, dtype=np.int64)
    return {
        "star": (np.full(num, -1), rng.integers(1, 8000, num), 8192),
        "equal": (np.full(num, -1), np.full(num, 300), 8192),
        "path": (np.arange(-1, num - 1), np.ones(num, dtype=np.int64), num),
        "spine": (spine, np.concatenate((ones, rng.integers(1, half, half))), 2 * half + half // 4),
        "equal spine": (spine, np.concatenate((ones, np.full(half, 3 * half // 4))), 2 * half + half // 4),
    }


@pytest.mark.parametrize("name", ["star", "equal", "path", "spine", "equal spine"])
def test_worst_shapes_are_linear(name: str) -> None:
    """10^5 nodes of the worst shapes need no recursion, and both engines agree."""
    parents, lengths, seq_len = worst_cases(100_000)[name]
    forest = Forest.from_parents(parents, lengths, engine="numpy")
    plain = bundle_leaves(forest, seq_len, engine="numpy")
    bound = lower_bound(forest, seq_len, engine="numba")
    if "spine" not in name:  # a spine's windows replay up to 50,000 nodes each: the output is quadratic
        check_placement(forest, place_leaves(forest, plain, engine="numpy"), seq_len)
        check_placement(forest, walk_forest(forest, seq_len, engine="numpy"), seq_len)
    assert np.array_equal(plain, bundle_leaves(forest, seq_len, engine="numba"))
    assert bound.windows <= plain.max() + 1 <= max(1, 3 * bound.volume_windows - 1)
    # The plain bound looks at up to 128 entries at every node of a spine: a tenth of it will do.
    parents, lengths, seq_len = worst_cases(10_000)[name]
    forest = Forest.from_parents(parents, lengths, engine="numpy")
    assert lower_bound(forest, seq_len, engine="numpy") == lower_bound(forest, seq_len, engine="numba")


def test_spine_in_few_windows_is_placed_once() -> None:
    """A spine of 50,000 nodes that 25,000 leaves share is climbed once a window, not once a leaf."""
    half = 25_000
    parents = np.concatenate((np.arange(-1, half - 1), np.arange(half - 1, -1, -1)))
    forest = Forest.from_parents(parents, np.ones(2 * half, dtype=np.int64))
    for engine in ENGINES:
        placement = place_leaves(forest, bundle_leaves(forest, 40_000, engine=engine), engine=engine)
        assert placement.num_windows == 2
        assert len(placement.nodes) <= 3 * half
        check_placement(forest, placement, 40_000)
