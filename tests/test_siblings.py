"""The order of siblings inside windows: the largest subtree first, by the rows that the window has of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from builds import Window, built
from hypothesis import given
from hypothesis import strategies as st
from oracle import Example, Policy
from strategies import ANY_WEIGHT, corpora, policies
from test_law import check_law, is_dyadic, options_of, planned, trie_options, tries

from dagpack_cli.manifest import PackOptions, TrieOptions
from dagpack_cli.preorder import subtree_ends
from dagpack_cli.shards.siblings import largest_first

Forests = list[tuple[list[int], list[int]]]  # parents and lengths of every window


@st.composite
def forests(draw: st.DrawFn) -> Forests:
    """Draw some windows of up to 12 instances, some without rows."""
    windows = []
    for _ in range(draw(st.integers(0, 4))):
        parents: list[int] = []
        path = [-1]
        for number in range(draw(st.integers(1, 12))):
            path = path[: draw(st.integers(1, len(path)))]
            parents.append(path[-1])
            path.append(number)
        windows.append((parents, draw(st.lists(st.integers(0, 3), min_size=len(parents), max_size=len(parents)))))
    return windows


def arranged(parents: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """Return a window's instances in the order told, by walking down from the roots."""

    def size(top: int) -> int:
        return lengths[top] + sum(size(node) for node, parent in enumerate(parents) if parent == top)

    def walk(top: int) -> list[int]:
        children = [node for node, parent in enumerate(parents) if parent == top]
        order = [] if top < 0 else [top]
        for child in sorted(children, key=lambda node: (-size(node), node)):
            order += walk(child)
        return order

    return walk(-1)


def joined(windows: Forests) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the windows end to end, as `largest_first` takes them."""
    sizes = [len(parents) for parents, _ in windows]
    bases = np.cumsum([0, *sizes])
    trees = zip(windows, bases.tolist(), strict=False)
    parents = [parent + base if parent >= 0 else -1 for (one, _), base in trees for parent in one]
    lengths = [length for _, one in windows for length in one]
    links = np.array(parents, dtype=np.int64)
    numbers = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    return numbers, links, np.array(lengths, dtype=np.int64), subtree_ends(links).astype(np.int64)


@given(forests())
def test_the_order_is_that_of_a_walk(windows: Forests) -> None:
    """Every window is arranged by itself, every node's children and its roots by rows below them, ties in place."""
    expected: list[int] = []
    for parents, lengths in windows:
        base = len(expected)
        expected += [base + node for node in arranged(parents, lengths)]
    assert largest_first(*joined(windows)).tolist() == expected


@given(forests())
def test_what_is_arranged_stays(windows: Forests) -> None:
    """Arranged once more, nothing moves."""
    again = []
    for parents, lengths in windows:
        order = arranged(parents, lengths)
        places = {node: place for place, node in enumerate(order)} | {-1: -1}
        again.append(([places[parents[node]] for node in order], [lengths[node] for node in order]))
    columns = joined(again)
    assert largest_first(*columns).tolist() == list(range(len(columns[0])))


def test_wide_and_deep_forests() -> None:
    """A path and a star of 200,000 instances are arranged; neither is walked node by node."""
    num = 200_000
    zeros, ones = np.zeros(num, dtype=np.int64), np.ones(num, dtype=np.int64)
    path = np.arange(num) - 1
    assert (largest_first(zeros, path, ones, np.full(num, num)) == np.arange(num)).all()
    star = np.where(np.arange(num) > 0, 0, -1)
    ends = np.where(np.arange(num) > 0, np.arange(num) + 1, num)
    order = largest_first(zeros, star, np.arange(num), ends)
    assert (order == np.concatenate(([0], np.arange(num - 1, 0, -1)))).all()


# -- stored windows


def families(window: Window) -> list[list[tuple[int, tuple[int, ...]]]]:
    """Return, family by family, rows below each sibling and its name in the trie, in the window's order.

    Roots are compared tree by tree: rows without a parent stand below their tree's root.
    """
    below = [1] * len(window.rows)
    for number in range(len(window.rows) - 1, -1, -1):
        if window.rows[number].parent >= 0:
            below[window.rows[number].parent] += below[number]
    children: dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]] = {}
    trees: dict[int, int] = {}
    for row, size in zip(window.rows, below, strict=True):
        children.setdefault((row.segment, row.parent), []).append((size, (row.target,)))
        trees[row.segment] = trees.get(row.segment, 0) + 1
    return [*children.values(), [(size, (tree,)) for tree, size in trees.items()]]


@tries(60)
@given(
    examples=st.one_of(corpora(), corpora(weights=ANY_WEIGHT)),
    policy=policies(),
    layout=st.sampled_from(["dag", "walk"]),
)
def test_stored_windows_are_arranged(examples: list[Example], policy: Policy, layout: str) -> None:
    """In `dag` largest first, ties in the trie's order; the walk stays in the trie's order. The law holds in both."""
    plan = planned(examples, policy, layout)
    with built(examples, options_of(policy, layout), trie_options(policy)) as build:
        windows = build.windows["train"]
        for window in windows:
            for family in families(window):
                if layout == "dag":
                    assert family == sorted(family, key=lambda sibling: (-sibling[0], sibling[1]))
                else:
                    assert [name for _, name in family] == sorted(name for _, name in family)
        if layout == "dag" and policy.merge == "prefix":
            check_law(windows, plan, layout, exact=is_dyadic(examples))


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_a_graph_are_trained_where_they_are_fresh(seed: int) -> None:
    """Under merge state an arranged window still trains exactly the rows that no earlier window has."""
    rng = np.random.default_rng(seed)
    paths: list[tuple[int, ...]] = [(0,)]  # a tree: windows repeat branching nodes beside fresh ones
    for state in range(1, 60):
        paths.append((*paths[rng.choice([at for at, path in enumerate(paths) if len(path) < 7])], state))
    examples = [Example(path, frozenset(range(len(path)))) for path in paths[1:]]
    seen: set[tuple[int, tuple[int, ...]]] = set()
    with built(examples, PackOptions(seq_len=8), TrieOptions(merge="state")) as build:
        windows = build.windows["train"]
        assert len(windows) > 2
        for window in windows:
            names = list(zip(window.column("segment"), window.paths(), strict=True))
            for name, row in zip(names, window.rows, strict=True):
                assert (row.owned, row.count > 0, row.weight > 0) == (name not in seen,) * 3
            seen |= set(names)


@pytest.mark.parametrize(
    ("layout", "targets", "segments", "parents"),
    [
        ("dag", [2, 4, 5, 6, 3, 9, 8], [1, 1, 1, 1, 1, 0, 2], [-1, 0, 1, 2, 0, -1, -1]),
        ("walk", [9, 2, 3, 4, 5, 6, 8], [0, 1, 1, 1, 1, 1, 2], [-1, -1, 1, 1, 3, 4, -1]),
    ],
)
def test_an_arranged_window(layout: str, targets: list[int], segments: list[int], parents: list[int]) -> None:
    """The longer continuation stands before the shorter, the larger tree before the smaller; equal ones stay."""
    sequences = [(0, 9), (1, 2, 3), (1, 2, 4, 5, 6), (7, 8)]
    examples = [Example(tokens, frozenset(range(len(tokens)))) for tokens in sequences]
    with built(examples, PackOptions(seq_len=8, layout=layout)) as build:
        (window,) = build.windows["train"]
        assert window.column("target") == targets
        assert window.column("segment") == segments
        assert window.column("parent") == parents
        counts = {2: 2}
        assert window.column("count") == [counts.get(target, 1) for target in targets]
