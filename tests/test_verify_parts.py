"""What `verify` is made of: paths of a trie, sums along them, and which rows are needed, each against a plain way."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import Tokens
from strategies import sequences

from dagpack_cli import memory
from dagpack_cli.trie import Trie, build_trie
from dagpack_cli.verify import keys
from dagpack_cli.verify.examples import Rules
from dagpack_cli.verify.keys import token_keys
from dagpack_cli.verify.needed import Needed
from dagpack_cli.verify.paths import Paths
from dagpack_cli.verify.roots import levels_of, roots_of
from dagpack_cli.verify.sums import RunSums, wrong_weights


def trie_of(corpus: Sequence[Tokens], min_shared: int = 1) -> Trie:
    """Return the trie of some sequences that are not empty."""
    corpus = [tokens for tokens in corpus if tokens]
    assume(corpus)
    flat = np.array([token for tokens in corpus for token in tokens], dtype=np.int32)
    offsets = np.cumsum([0, *map(len, corpus)])
    return build_trie(flat, offsets, min_shared=min_shared)[0]


def ancestors(trie: Trie) -> list[list[int]]:
    """Return the positions on the path to every token, its own last."""
    paths: list[list[int]] = []
    for node in range(trie.num_nodes):
        parent = int(trie.parents[node])
        above = paths[int(trie.offsets[parent + 1]) - 1] if parent >= 0 else []
        for position in range(int(trie.offsets[node]), int(trie.offsets[node + 1])):
            above = [*above, position]
            paths.append(above)
    return paths


@pytest.mark.parametrize("span", [1, 3, 100])
@given(corpus=sequences(), min_shared=st.sampled_from([1, 3]))
def test_tokens_by_depth_and_what_paths_share(span: int, corpus: list[Tokens], min_shared: int) -> None:
    """Every token above every node, and how far each two paths are one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "SPAN", span)
        trie = trie_of(corpus, min_shared)
        paths, known = Paths(trie), ancestors(trie)
        positions = np.arange(len(trie.tokens))
        nodes = paths.nodes(positions)
        depths = paths.depths(positions, nodes)
        assert depths.tolist() == [len(path) - 1 for path in known]
        wanted = [
            (node, depth, at) for node, path in zip(nodes.tolist(), known, strict=True) for depth, at in enumerate(path)
        ]
        asked = np.array([pair[:2] for pair in wanted])
        found_nodes, found = paths.tokens_at(asked[:, 0], asked[:, 1])
        assert found.tolist() == [at for _, _, at in wanted]
        assert found_nodes.tolist() == nodes[found].tolist()
        one, other = (column.ravel() for column in np.triu_indices(len(positions)))
        shared = paths.shared(nodes[one], depths[one], nodes[other])
        expected = [
            sum(left == right for left, right in zip(known[first], known[second], strict=False)) - 1
            for first, second in zip(one.tolist(), other.tolist(), strict=True)
        ]
        assert shared.tolist() == expected


@pytest.mark.parametrize("block", [1, 4, 1 << 21])
@given(corpus=sequences(), min_shared=st.sampled_from([1, 3]), period=st.integers(0, 4))
def test_keys_tell_paths_apart(block: int, corpus: list[Tokens], min_shared: int, period: int) -> None:
    """Node for node and root for root they are those of the same path read in one go; other paths have others."""
    trie = trie_of(corpus, min_shared)
    roots = roots_of(trie, period)
    known = ancestors(trie)
    cut = [position for position, path in enumerate(known) if (len(path) - 1) % (period or len(known) + 1) == 0]
    assert roots.positions.tolist() == cut
    assert roots.depths(np.arange(len(cut))).tolist() == [len(known[position]) - 1 for position in cut]
    lasts = (trie.offsets[1:] - 1).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "_BLOCK", block)
        nodes, at_roots = token_keys(trie, roots.positions)
        everywhere = token_keys(trie, np.arange(len(known)))[1]
    assert nodes.tolist() == everywhere[lasts].tolist()
    assert at_roots.tolist() == everywhere[cut].tolist()
    assert len(set(everywhere.tolist())) == len(known)


@given(corpus=sequences(), min_shared=st.sampled_from([1, 3]), period=st.integers(0, 4), data=st.data())
def test_which_rows_are_needed(corpus: list[Tokens], min_shared: int, period: int, data: st.DataObject) -> None:
    """Of any last rows: all rows above one in its tree, how many, in which trees, and how far other paths reach."""
    trie = trie_of(corpus, min_shared)
    paths, roots, known = Paths(trie), roots_of(trie, period), ancestors(trie)
    rows = [position for position, path in enumerate(known) if len(path) > 1]
    lasts = data.draw(st.lists(st.sampled_from(rows), max_size=6)) if rows else []

    def tree_of(position: int) -> list[int]:
        depth = len(known[position]) - 1
        return known[position][(depth - 1) // period * period if period else 0 :]

    needed = Needed(paths, roots, np.array(lasts, dtype=np.int64))
    expected = {position for last in lasts for position in tree_of(last)[1:]}
    assert needed.num_rows == len(expected)
    assert roots.positions[needed.trees].tolist() == sorted({tree_of(last)[0] for last in lasts})
    at = np.array(rows, dtype=np.int64)
    nodes = paths.nodes(at)
    assert needed.holds(at, nodes).tolist() == [position in expected for position in rows]
    depths = paths.depths(at, nodes)
    trees = {row: tree_of(row) for row in rows}
    reached = [
        max(len(known[above]) - 1 for above in trees[row] if above in expected | {trees[row][0]}) for row in rows
    ]
    assert needed.reached(nodes, depths).tolist() == reached
    tops = [len(known[trees[row][0]]) - 1 for row in rows]
    assert (levels_of(depths, period) * period).tolist() == tops


WEIGHTS = (
    st.sampled_from([1.0, 0.1, -0.3, 2.0**-70, 1e30, -1e30, 1e-300])
    | st.floats(-1e6, 1e6).filter(lambda weight: weight != 0)
    | st.floats(width=64, allow_nan=False, allow_infinity=False, max_value=1e300, min_value=-1e300)
)


@given(
    corpus=sequences(),
    runs=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9), st.integers(0, 9), WEIGHTS), max_size=8),
)
def test_sums_are_exact(corpus: list[Tokens], runs: list[tuple[int, int, int, float]]) -> None:
    """What runs sum to at every token is what fractions say, rounded once, however far weights are apart."""
    trie = trie_of(corpus)
    paths, known = Paths(trie), ancestors(trie)
    totals = [Fraction(0)] * len(known)
    numbers = [0] * len(known)
    lasts, above, weights = [], [], []
    for which, low, high, weight in runs:
        path = known[which % len(known)]
        low, high = sorted((low % len(path), high % len(path)))
        lasts.append(path[high])
        above.append(path[low - 1] if low else -1)
        weights.append(weight)
        for position in path[low : high + 1]:
            totals[position] += Fraction(weight)
            numbers[position] += 1
    sums = RunSums(len(known), np.array(lasts, dtype=np.int64), np.array(above, dtype=np.int64), np.array(weights))
    everywhere = paths.ends(paths.nodes(np.arange(len(known))))
    found = sums.at(slice(None), everywhere)
    assert found.numbers.tolist() == numbers
    for total, exact, slack in zip(found.totals.tolist(), totals, found.slacks.tolist(), strict=True):
        assert abs(Fraction(total) - exact) <= abs(exact) * Fraction(1, 2**50)
        assert Fraction(slack) <= sum(map(abs, map(Fraction, weights)), Fraction(0)) * Fraction(1, 2**47)
    some = np.arange(len(known))[::2]
    assert sums.at(some, everywhere[some]).totals.tolist() == found.totals[::2].tolist()


def test_a_stored_weight_may_be_what_rounding_makes_it_and_nothing_else() -> None:
    """One number of float32 away from a sum is wrong, on either side."""
    one = np.zeros(1, dtype=np.int64)
    for weight in (1.0, 0.1, -0.7, 3e38, 1e-40):
        right = np.float32(weight)
        sums = RunSums(1, one, one - 1, np.array([weight])).at(slice(None), one + 1)
        assert not wrong_weights(np.array([right]), sums).any()
        for other in (np.nextafter(right, np.float32(np.inf)), np.nextafter(right, np.float32(-np.inf))):
            assert wrong_weights(np.array([other]), sums).all()


@given(st.lists(WEIGHTS, min_size=1, max_size=7), st.randoms(use_true_random=False))
def test_a_sum_in_any_order_is_not_wrong(weights: list[float], draw: random.Random) -> None:
    """What a build adds up in float64 fits, though positive and negative weights leave little of one another."""
    draw.shuffle(weights)
    total = np.float64(0)
    for weight in weights:
        total += weight
    with np.errstate(over="ignore"):
        stored = total.astype(np.float32)
    lasts = np.zeros(len(weights), dtype=np.int64)
    sums = RunSums(1, lasts, lasts - 1, np.array(weights)).at(slice(None), np.ones(1, dtype=np.int64))
    assert not wrong_weights(np.array([stored]), sums).any()


def test_what_is_left_of_weights_that_cancel_out() -> None:
    """0.1 + 0.2 - 0.3 is not what the three are together, and either may be stored."""
    weights = np.array([0.1, 0.2, -0.3])
    lasts = np.zeros(3, dtype=np.int64)
    sums = RunSums(1, lasts, lasts - 1, weights).at(slice(None), np.ones(1, dtype=np.int64))
    assert Fraction(float(sums.totals[0])) == sum(map(Fraction, weights.tolist())) != Fraction(0.1 + 0.2 - 0.3)
    assert not wrong_weights(np.array([0.1 + 0.2 - 0.3, 0.0], dtype=np.float32), sums).any()
    assert wrong_weights(np.array([1e-15], dtype=np.float32), sums).all()


def test_pieces_of_examples() -> None:
    """An example is cut where its pairs fill a window, and a virtual root is one pair more."""
    split = Rules(seq_len=4, on_long="split", prune=True, shift=0, state=False, once=False, apart=False)
    owners, lows, highs = split.pieces(np.array([2, 5, 6, 10]))
    assert list(zip(owners.tolist(), lows.tolist(), highs.tolist(), strict=True)) == [
        *((0, 1, 2), (1, 1, 5), (2, 1, 5), (2, 5, 6), (3, 1, 5), (3, 5, 9), (3, 9, 10)),
    ]
    rooted = Rules(seq_len=4, on_long="truncate", prune=True, shift=1, state=False, once=False, apart=False)
    owners, lows, highs = rooted.pieces(np.array([1, 4, 6]))
    assert list(zip(owners.tolist(), lows.tolist(), highs.tolist(), strict=True)) == [(0, 1, 2), (1, 1, 5), (2, 1, 5)]
    assert rooted.pairs(np.array([0, 1, 2])).tolist() == [0, 1, 2]
