"""Placements: the union of paths, and a checker that accepts what is right and refuses what is not."""

from __future__ import annotations

import dataclasses

import numpy as np
import oracle_packing as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_packing import Case

from dagpack_cli.errors import TreeError
from dagpack_cli.packing import Engine, Placement, bundle_leaves, check_placement, place_leaves, walk_forest

ENGINES: tuple[Engine, ...] = ("numpy", "numba")

# A trunk of 5 rows with leaves of 2 and 3, and an empty root with a leaf of 2.
CASE = Case([-1, 0, 0, -1, 3], [5, 2, 3, 0, 2], 8)
PLACED = [(0, 0, 5, 0), (0, 1, 2, 0), (1, 0, 5, 5), (1, 2, 3, 0), (2, 3, 0, 0), (2, 4, 2, 0)]


def placement_of(instances: list[tuple[int, int, int, int]], num_windows: int) -> Placement:
    """Return a placement of (window, node, end, fresh) tuples."""
    columns = np.array(instances, dtype=np.int64).reshape(-1, 4)
    return Placement(
        windows=columns[:, 0],
        nodes=columns[:, 1].astype(np.int32),
        ends=columns[:, 2],
        fresh=columns[:, 3],
        num_windows=num_windows,
    )


def passes(case: Case, placement: Placement) -> bool:
    """Return whether the checker accepts."""
    try:
        check_placement(case.forest(), placement, case.seq_len)
    except TreeError:
        return False
    return True


def test_place_leaves_by_hand() -> None:
    """A trunk shared by two windows is repeated in the second, an empty root stands above its leaf."""
    for engine in ENGINES:
        placement = place_leaves(CASE.forest(), np.array([0, 1, 2]), engine=engine)
        assert oracle.instances_of(placement) == PLACED
        assert placement.num_windows == 3


@settings(max_examples=200, deadline=None)
@given(oracle.cases(max_nodes=20, max_leaves=20), st.data())
def test_place_leaves_is_the_union_of_paths(case: Case, data: st.DataObject) -> None:
    """Any dense windows of the leaves give exactly the whole paths, fresh where first seen."""
    leaves = oracle.leaves_of(case.parents)
    drawn = data.draw(st.lists(st.integers(0, 4), min_size=len(leaves), max_size=len(leaves)))
    windows = [sorted(set(drawn)).index(w) for w in drawn]
    for engine in ENGINES:
        placement = place_leaves(case.forest(), np.array(windows, dtype=np.int64), engine=engine)
        assert oracle.instances_of(placement) == oracle.naive_placement(case, windows)


@pytest.mark.parametrize("windows", [[0, 1], [0, 1, 3], [1, 1, 2], [-1, 0, 0], [0, 1, 2, 2]])
def test_place_leaves_refuses(windows: list[int]) -> None:
    """A window number for each leaf, from 0 without a gap, or an error."""
    with pytest.raises(TreeError, match="leaf_windows"):
        place_leaves(CASE.forest(), np.array(windows))


@pytest.mark.parametrize(
    ("instances", "num_windows", "message"),
    [
        (PLACED, 2, "not one of 2 windows"),
        (PLACED, 4, "window 3 has 0 rows"),
        ([*PLACED, (2, 5, 1, 0)], 3, "not one of 5 nodes"),
        ([PLACED[1], PLACED[0], *PLACED[2:]], 3, "not after its predecessor"),
        ([PLACED[0], *PLACED], 3, "not after its predecessor"),
        ([(0, 0, 6, 0), *PLACED[1:]], 3, "more rows than its run"),
        ([PLACED[0], (0, 1, 0, 0), *PLACED[2:]], 3, "no row of its run"),
        ([PLACED[0], (0, 1, 2, 3), *PLACED[2:]], 3, "outside its rows"),
        (PLACED[1:], 3, "parent is not in the window"),
        ([*PLACED[:4], PLACED[5]], 3, "parent is not in the window"),
        ([(0, 0, 4, 0), *PLACED[1:]], 3, "parent's run is cut"),
        ([*PLACED[:2], (0, 3, 0, 0), *PLACED[2:]], 3, "nothing below"),
        ([PLACED[0], PLACED[1], (0, 2, 3, 0), *PLACED[4:]], 3, "window 0 has 10 rows"),
        ([*PLACED[:2], (1, 0, 5, 0), *PLACED[3:]], 3, "fresh does not begin"),
        ([(0, 0, 5, 5), *PLACED[1:]], 3, "fresh does not begin"),
        ([*PLACED[:3], (1, 2, 2, 0), *PLACED[4:]], 3, "node 2 has 2 rows"),
        (PLACED[:4], 2, "node 3 has 0 rows"),
    ],
)
def test_checker_refuses(instances: list[tuple[int, int, int, int]], num_windows: int, message: str) -> None:
    """Each rule, broken alone, is refused by name."""
    check_placement(CASE.forest(), placement_of(PLACED, 3), CASE.seq_len)
    with pytest.raises(TreeError, match=message):
        check_placement(CASE.forest(), placement_of(instances, num_windows), CASE.seq_len)


@settings(max_examples=400, deadline=None)
@given(oracle.cases(max_nodes=12), st.booleans(), st.data())
def test_checker_decides_as_sets_of_rows_do(case: Case, walked: bool, data: st.DataObject) -> None:
    """A placement with one entry changed, dropped or doubled passes exactly when sets of rows say so."""
    forest = case.forest()
    if walked:
        placement = walk_forest(forest, case.seq_len)
    else:
        placement = place_leaves(forest, bundle_leaves(forest, case.seq_len))
    assert passes(case, placement)
    assert oracle.obeys_the_rules(case, placement)
    instances = oracle.instances_of(placement)
    if not instances:
        return
    at = data.draw(st.integers(0, len(instances) - 1))
    change = data.draw(st.sampled_from(["drop", "double", "ends", "fresh", "windows", "nodes"]))
    if change == "drop":
        mutated = placement_of(instances[:at] + instances[at + 1 :], placement.num_windows)
    elif change == "double":
        mutated = placement_of(instances[: at + 1] + instances[at:], placement.num_windows)
    else:
        column = getattr(placement, change).copy()
        limit = {"nodes": len(case.parents), "windows": placement.num_windows}.get(change, case.seq_len)
        column[at] = data.draw(st.integers(0, limit))
        mutated = dataclasses.replace(placement, **{change: column})
        if column[at] >= len(case.parents) and change == "nodes":
            assert not passes(case, mutated)
            return
    assert passes(case, mutated) == oracle.obeys_the_rules(case, mutated)
