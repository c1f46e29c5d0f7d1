"""Parents, depths and subtree ends of preorder forests against the definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpack_cli.errors import TreeError
from dagpack_cli.preorder import check_parents, depths_from_parents, parents_from_depths, subtree_ends


@st.composite
def depth_lists(draw: st.DrawFn) -> list[int]:
    """Return the depths of a random preorder forest."""
    depths: list[int] = []
    for _ in range(draw(st.integers(0, 30))):
        depths.append(draw(st.integers(0, depths[-1] + 1 if depths else 0)))
    return depths


@given(depths=depth_lists())
def test_each_follows_from_the_others(depths: list[int]) -> None:
    """Parents, depths and ends are those of the definition, entry by entry."""
    size = len(depths)
    parents = [max((j for j in range(i) if depths[j] == depths[i] - 1), default=-1) for i in range(size)]
    ends = [next((j for j in range(i + 1, size) if depths[j] <= depths[i]), size) for i in range(size)]
    assert parents_from_depths(np.array(depths, dtype=np.int32)).tolist() == parents
    assert depths_from_parents(np.array(parents, dtype=np.int32)).tolist() == depths
    assert subtree_ends(np.array(parents, dtype=np.int32)).tolist() == ends


@given(depths=depth_lists())
def test_the_interval_is_the_ancestor_relation(depths: list[int]) -> None:
    """``k <= q < ends[k]`` holds exactly where k is q or an ancestor of q."""
    parents = parents_from_depths(np.array(depths, dtype=np.int32))
    ends = subtree_ends(parents)
    for query in range(len(depths)):
        ancestors = {query}
        above = int(parents[query])
        while above >= 0:
            ancestors.add(above)
            above = int(parents[above])
        assert ancestors == {key for key in range(len(depths)) if key <= query < ends[key]}


def test_exactly_the_preorder_forests_are_accepted() -> None:
    """Of all parent lists of up to five entries, those whose parent is on the open path pass."""
    for size in range(1, 6):
        for parents in itertools.product(*[range(-1, entry) for entry in range(size)]):
            path: list[int] = []
            valid = True
            for entry, parent in enumerate(parents):
                while path and path[-1] != parent:
                    path.pop()
                valid = valid and (parent == -1 or bool(path))
                path.append(entry)
            if valid:
                check_parents(np.array(parents))
            else:
                with pytest.raises(TreeError):
                    check_parents(np.array(parents))


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([0], "entry 0 has parent 0; -1 to -1, an earlier entry"),
        ([-1, -2], "entry 1 has parent -2; -1 to 0, an earlier entry"),
        ([-1, 0, -1, 1], "entry 3 has parent 1, whose subtree ended before; preorder: a subtree without gaps"),
    ],
)
def test_the_first_bad_parent_is_named(parents: list[int], message: str) -> None:
    """The error names the entry, its parent and what would be right."""
    with pytest.raises(TreeError) as caught:
        check_parents(np.array(parents))
    assert str(caught.value) == f"parents: {message}"


def test_depth_jumps_are_named() -> None:
    """A depth more than one below its predecessor is no preorder."""
    with pytest.raises(TreeError) as caught:
        parents_from_depths(np.array([0, 2]))
    assert str(caught.value) == "depths: entry 1 has depth 2; 0 to 1"


def test_deep_chains_need_no_recursion() -> None:
    """A chain of a million entries is one run."""
    parents = np.arange(-1, 10**6 - 1)
    assert (subtree_ends(parents) == 10**6).all()
