"""Elimination: valid, the same whoever computes it, never against the bound, and worth it on branches."""

from __future__ import annotations

import numpy as np
import oracle_packing as oracle
import pytest
from bench.forests import FAMILIES, grow_forest
from hypothesis import given, settings
from oracle_packing import Case

from dagpack_cli.errors import TreeError
from dagpack_cli.packing import Engine, Forest, bundle_leaves, check_placement, lower_bound, node_windows, place_leaves
from dagpack_cli.packing import eliminate as eliminate_module
from dagpack_cli.packing.eliminate import eliminate_bundles

ENGINES: tuple[Engine, ...] = ("numpy", "numba")


def fewest_of(forest: Forest, seq_len: int) -> np.ndarray:
    """Return what the packer may not undercut, per node and for all."""
    return np.append(node_windows(forest, seq_len), lower_bound(forest, seq_len).windows)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_window_is_dissolved(engine: Engine) -> None:
    """Leaves of 5, 5 and two of 2 below a shared run: best fit keeps the twos together, in a window of their own."""
    case = Case([-1, -1, -1, 2, 2], [5, 5, 1, 1, 1], 7)
    forest = case.forest()
    assert bundle_leaves(forest, 7, engine=engine).tolist() == [0, 1, 2, 2]
    assert eliminate_bundles(forest, 7, engine=engine).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bundle_goes_whole_or_not_at_all(engine: Engine) -> None:
    """Where only one of two leaves finds room elsewhere, both stay."""
    forest = Case([-1, -1, -1, 2, 2], [5, 6, 1, 1, 1], 7).forest()
    assert eliminate_bundles(forest, 7, engine=engine).tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_bound_ends_it(engine: Engine) -> None:
    """A forest said to need three windows is left in three."""
    forest = Case([-1, -1, -1, 2, 2], [5, 5, 1, 1, 1], 7).forest()
    fewest = np.array([1, 1, 1, 1, 1, 3])
    assert eliminate_bundles(forest, 7, fewest=fewest, engine=engine).tolist() == [0, 1, 2, 2]
    with pytest.raises(TreeError, match="fewest"):
        eliminate_bundles(forest, 7, fewest=fewest[:-1], engine=engine)


@settings(max_examples=200, deadline=None)
@given(oracle.cases(max_nodes=30, max_leaves=12))
def test_windows_obey_the_rules(case: Case) -> None:
    """Windows are closed under ancestors, not too long, and hold every row; both engines make the same."""
    forest = case.forest()
    windows = [eliminate_bundles(forest, case.seq_len, engine=engine) for engine in ENGINES]
    assert windows[0].tolist() == windows[1].tolist()
    placement = place_leaves(forest, windows[0])
    assert oracle.obeys_the_rules(case, placement)
    assert placement.num_windows >= lower_bound(forest, case.seq_len).windows


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_engines_agree_on_families(family: str) -> None:
    """Forests of a thousand nodes reach pools, many targets and moves of intervals."""
    for seed in range(4):
        seq_len = 8_192
        forest = grow_forest(family, seq_len, seed, num_nodes=1_000)
        fewest = fewest_of(forest, seq_len)
        plain, compiled = (eliminate_bundles(forest, seq_len, fewest=fewest, engine=engine) for engine in ENGINES)
        assert plain.tolist() == compiled.tolist()
        check_placement(forest, place_leaves(forest, plain), seq_len)


@pytest.mark.parametrize("limits", [(1, 64, 128, 3, 40), (10**6, 2, 3, 1, 2), (300, 5, 1, 40, 40)])
def test_engines_agree_within_any_limits(monkeypatch: pytest.MonkeyPatch, limits: tuple[int, ...]) -> None:
    """Credit, targets, leaves and failures run out at the same place in both engines."""
    for name, limit in zip(("_CREDIT", "_TARGETS", "_LEAVES", "_FAILS", "_ROOT_FAILS"), limits, strict=True):
        monkeypatch.setattr(eliminate_module, name, limit)
    for seed in range(4):
        forest = grow_forest("gw", 2_048, seed, num_nodes=2_000)
        plain, compiled = (eliminate_bundles(forest, 2_048, engine=engine) for engine in ENGINES)
        assert plain.tolist() == compiled.tolist()
        check_placement(forest, place_leaves(forest, plain), 2_048)


def test_it_gains_on_branching_forests() -> None:
    """On Galton-Watson trees it needs fewer windows than best fit, and fewer rows."""
    for seed in range(3):
        forest = grow_forest("gw", 8_192, seed, num_rows=2_000_000)
        before = place_leaves(forest, bundle_leaves(forest, 8_192))
        fewest = fewest_of(forest, 8_192)
        after = place_leaves(forest, eliminate_bundles(forest, 8_192, fewest=fewest, engine="numba"))
        assert after.num_windows < before.num_windows
        assert after.ends.sum() < before.ends.sum()


@pytest.mark.parametrize(("family", "seed", "most"), [("mix", 1, 660), ("mix", 2, 666), ("agent", 0, 710)])
def test_failures_do_not_end_it_early(family: str, seed: int, most: int) -> None:
    """After many attempts that fail others succeed: a tenth of them would leave more windows."""
    forest = grow_forest(family, 8_192, seed, num_nodes=4_000)
    windows = eliminate_bundles(forest, 8_192, fewest=fewest_of(forest, 8_192), engine="numba")
    check_placement(forest, place_leaves(forest, windows), 8_192)
    assert int(windows.max()) + 1 <= most


def test_nothing_to_dissolve() -> None:
    """No forest has no windows, and a lone leaf has one."""
    none = np.zeros(0, dtype=np.int64)
    assert eliminate_bundles(Forest.from_parents(none, none), 5).tolist() == []
    for engine in ENGINES:
        assert eliminate_bundles(Case([-1], [5], 5).forest(), 5, engine=engine).tolist() == [0]
