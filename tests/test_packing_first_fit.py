"""First fit, the walk closed at whole leaves, best fit apart: exact twins on small forests, engines on large ones."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from bench.forests import FAMILIES, grow_forest
from exact_packing import SHAPES, Small, check_packing, random_small

from dagpack_cli.errors import TreeError, UsageError
from dagpack_cli.packing import (
    Engine,
    Forest,
    best_fit_apart,
    check_placement,
    closed_walk,
    first_fit,
    place_leaves,
    walk_forest,
)
from dagpack_cli.packing.first_fit import Choice, LeafSequence

ENGINES: tuple[Engine, ...] = ("numpy", "numba")
WAYS: list[tuple[LeafSequence, Choice]] = list(product(("longest", "given"), ("first", "least-added")))


def renumbered(windows: list[int]) -> list[int]:
    """Return window numbers by first appearance."""
    seen: dict[int, int] = {}
    return [seen.setdefault(window, len(seen)) for window in windows]


def naive_first_fit(small: Small, sequence: list[int], choice: Choice) -> list[int]:
    """Return the window of each leaf by looking at every window's set of nodes, for every leaf."""
    leaves, contents, placed = small.leaves, list[set[int]](), dict[int, int]()
    held_since: dict[tuple[int, int], int] = {}
    for number in sequence:
        path = small.path(leaves[number])
        added = [small.rows(path - held) for held in contents]
        fitting = [w for w, rows in enumerate(added) if small.rows(contents[w]) + rows <= small.seq_len]
        if choice == "least-added" and fitting:
            least = min(added[w] for w in fitting)
            fitting = [w for w in fitting if added[w] == least]
            # All hold the same part of the path: of those, the one that has held its deepest node longest.
            deepest = max(path & contents[fitting[0]], default=-1)
            fitting.sort(key=lambda w: held_since.get((deepest, w), w))
        window = fitting[0] if fitting else len(contents)
        if not fitting:
            contents.append(set())
        for node in path - contents[window]:
            held_since[node, window] = len(placed)
        contents[window] |= path
        placed[number] = window
    return renumbered([placed[number] for number in range(len(leaves))])


def longest_first(small: Small) -> list[int]:
    """Return the leaves' indices by falling path length."""
    rows = [small.rows(small.path(leaf)) for leaf in small.leaves]
    return sorted(range(len(rows)), key=lambda at: -rows[at])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("order", "choice"), WAYS)
def test_first_fit_is_the_one_that_looks_everywhere(shape: str, order: LeafSequence, choice: Choice) -> None:
    """Registers find what looking at every window finds; first fit alone may name another window, rarely."""
    differ = 0
    for seed in range(60):
        small = random_small(shape, seed, 12)
        sequence = longest_first(small) if order == "longest" else list(range(len(small.leaves)))
        expected = naive_first_fit(small, sequence, choice)
        found = [first_fit(small.forest, small.seq_len, order, choice, engine=engine).tolist() for engine in ENGINES]
        assert found[0] == found[1]
        check_packing(small, found[0])
        differ += found[0] != expected
    assert differ <= (0 if choice == "least-added" or shape in ("alone", "star") else 3)


def test_first_fit_prefers_what_was_opened_first_and_least_added_what_shares() -> None:
    """The last leaf fits into the first window without sharing, and into the second beside its sibling."""
    small = Small([-1, -1, 1, 1], [4, 3, 2, 1], 6)
    assert first_fit(small.forest, 6, "given", "first").tolist() == [0, 1, 1]
    small = Small([-1, -1, 1, 1], [1, 3, 3, 1], 6)
    assert first_fit(small.forest, 6, "given", "first").tolist() == [0, 1, 0]
    small = Small([-1, -1, 1, 1], [1, 2, 3, 1], 6)
    assert first_fit(small.forest, 6, "given", "first").tolist() == [0, 0, 1]
    small = Small([-1, -1, 1, 1], [2, 2, 3, 1], 6)
    assert first_fit(small.forest, 6, "given", "first").tolist() == [0, 1, 0]
    assert first_fit(small.forest, 6, "given", "least-added").tolist() == [0, 1, 1]


def test_any_order_of_leaves() -> None:
    """An array of indices is an order, and the words are two of them."""
    small = random_small("any", 3, 12)
    indices = np.array(longest_first(small))
    for choice in ("first", "least-added"):
        by_word = first_fit(small.forest, small.seq_len, "longest", choice)
        assert by_word.tolist() == first_fit(small.forest, small.seq_len, indices, choice).tolist()


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(("order", "choice"), WAYS)
def test_engines_agree_on_families(family: str, order: LeafSequence, choice: Choice) -> None:
    """A few thousand nodes of every family stand in the same valid windows whichever engine ran."""
    forest = grow_forest(family, 8192, num_nodes=2_000)
    plain, compiled = (first_fit(forest, 8192, order, choice, engine=engine) for engine in ENGINES)
    assert np.array_equal(plain, compiled)
    assert plain.dtype == compiled.dtype == np.int64
    check_placement(forest, place_leaves(forest, plain), 8192)


@pytest.mark.parametrize("leaf_rows", [3, 400])
def test_engines_agree_on_spines_beyond_the_milestones(leaf_rows: int) -> None:
    """1,500 levels reach every power of milestones; windows stay valid and few although most levels are not asked."""
    half = 1_500
    parents = np.concatenate((np.arange(-1, half - 1), np.arange(half - 1, -1, -1)))
    rng = np.random.default_rng(2)
    lengths = np.concatenate((np.ones(half, dtype=np.int64), rng.integers(1, leaf_rows, half)))
    forest = Forest.from_parents(parents, lengths)
    for order, choice in WAYS:
        plain, compiled = (first_fit(forest, 2_000, order, choice, engine=engine) for engine in ENGINES)
        assert np.array_equal(plain, compiled)
        check_placement(forest, place_leaves(forest, plain), 2_000)
        assert plain.max() <= 2 * closed_walk(forest, 2_000).max() + 1


def test_first_fit_refuses() -> None:
    """Unknown words, and orders that are no permutation, are named."""
    forest = Small([-1, 0, 0], [1, 2, 3], 6).forest
    with pytest.raises(UsageError, match="widest"):
        first_fit(forest, 6, "widest")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="last"):
        first_fit(forest, 6, "given", "last")  # type: ignore[arg-type]
    for order, found in (([0, 0], "twice"), ([0, 2], "range"), ([0], "shape"), ([0.0, 1.0], "float64")):
        with pytest.raises(TreeError, match=found):
            first_fit(forest, 6, np.array(order))
    for packer in (first_fit, closed_walk, best_fit_apart):
        with pytest.raises(TreeError, match="node 2 has 4 rows"):
            packer(forest, 3)


def test_empty_forest() -> None:
    """Nothing packs into no window."""
    forest = Forest.from_parents(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))
    for engine in ENGINES:
        assert first_fit(forest, 8, engine=engine).tolist() == []
        assert best_fit_apart(forest, 8, engine=engine).tolist() == []
    assert closed_walk(forest, 8).tolist() == []


@pytest.mark.parametrize("shape", SHAPES)
def test_closed_walk_has_the_fewest_consecutive_groups(shape: str) -> None:
    """No division of the leaves into consecutive groups has fewer, nor has the walk that cuts runs."""
    for seed in range(80):
        small = random_small(shape, seed, 10)
        windows = closed_walk(small.forest, small.seq_len).tolist()
        assert windows == sorted(windows)
        num_windows, _, _ = check_packing(small, windows)
        paths = [small.path(leaf) for leaf in small.leaves]
        fewest = [0]
        for stop in range(1, len(paths) + 1):
            starts = (s for s in range(stop) if small.rows(set().union(*paths[s:stop])) <= small.seq_len)
            fewest.append(1 + min(fewest[start] for start in starts))
        assert num_windows == fewest[-1] <= walk_forest(small.forest, small.seq_len).num_windows


@pytest.mark.parametrize("shape", SHAPES)
def test_best_fit_apart_fits_even_unshared(shape: str) -> None:
    """Windows hold their whole paths even if nothing is shared; that they share only takes rows away."""
    for seed in range(40):
        small = random_small(shape, seed, 12)
        windows = best_fit_apart(small.forest, small.seq_len).tolist()
        check_packing(small, windows)
        rows = [small.rows(small.path(leaf)) for leaf in small.leaves]
        assert windows == renumbered(windows)
        for window in set(windows):
            assert sum(r for r, w in zip(rows, windows, strict=True) if w == window) <= small.seq_len


def test_small_forests_compile_nothing() -> None:
    """None of the packers imports numba for a small forest."""
    code = (
        "import sys, numpy as np\nfrom dagpack_cli import packing as p\n"
        "f = p.Forest.from_parents(np.array([-1, 0]), np.array([1, 2]))\n"
        "p.first_fit(f, 4); p.closed_walk(f, 4); p.best_fit_apart(f, 4); p.node_windows(f, 4)\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
