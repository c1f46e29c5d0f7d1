"""What examples have in each tree, and the forest of rows, against prefixes cut and pruned by hand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from oracle import Example, Tokens
from strategies import corpora
from test_supervision import runs_of

from dagpack_cli.packing.cutting import RowForest, cut_forest
from dagpack_cli.packing.pieces import ExampleEnds, OnLong, Pieces, cut_examples, piece_lengths
from dagpack_cli.packing.supervision import Supervision
from dagpack_cli.trie import Trie, build_trie

policies = st.sampled_from(["split", "split", "truncate", "drop"])
seq_lens = st.integers(1, 6) | st.sampled_from([9, 40])


class Piece(NamedTuple):
    """One piece as the design has it: its tree, its tokens from the tree's first on, and what of them trains."""

    example: int
    low: int
    tree: Tokens
    tokens: Tokens
    trained: frozenset[int]  # of targets, in the example

    @property
    def rows(self) -> list[tuple[Tokens, Tokens]]:
        """The rows from the root down: the tree, and the targets down to the row's."""
        return [(self.tree, self.tokens[1:stop]) for stop in range(2, len(self.tokens) + 1)]


def kept_examples(corpus: list[Example]) -> list[Example]:
    """Return the examples that have a pair: the others never come here."""
    return [one for one in corpus if len(one.tokens) > 1]


def trie_of(corpus: list[Example]) -> tuple[Trie, ExampleEnds]:
    """Return the trie of examples, and the examples as the packer sees them."""
    tokens = np.array([token for one in corpus for token in one.tokens], dtype=np.int32)
    trie, nodes = build_trie(tokens, np.cumsum([0] + [len(one.tokens) for one in corpus]).astype(np.int64))
    runs = [runs_of(one.trained - {0}) for one in corpus]
    supervision = Supervision.of(
        np.array([run for some in runs for run in some], dtype=np.int64).reshape(-1, 2),
        np.cumsum([0] + [len(some) for some in runs]).astype(np.int64),
        np.array([one.weight for one in corpus], dtype=np.float64),
    )
    return trie, ExampleEnds(
        nodes=nodes, lengths=np.array([len(one.tokens) for one in corpus], dtype=np.int64), supervision=supervision
    )


def pieces_of(corpus: list[Example], seq_len: int, on_long: str) -> list[Piece]:
    """Return the pieces of all examples before pruning."""
    found = []
    for number, one in enumerate(corpus):
        tokens = one.tokens
        if on_long == "drop" and len(tokens) - 1 > seq_len:
            continue
        tokens = tokens[: seq_len + 1] if on_long == "truncate" else tokens
        trained = one.trained if one.weight else frozenset()
        for start in range(0, len(tokens) - 1, seq_len):
            stop = min(start + seq_len + 1, len(tokens))
            inside = frozenset(at for at in trained if start < at < stop)
            found.append(Piece(number, start + 1, tokens[: start + 1], tokens[start:stop], inside))
    return found


def pruned(pieces: list[Piece]) -> list[Piece]:
    """Return each piece up to the last row that something supervised of any piece needs; perhaps without rows."""
    needed = {row for piece in pieces for at in piece.trained for row in piece.rows[: at - piece.low + 1]}
    return [piece._replace(tokens=piece.tokens[: 1 + sum(row in needed for row in piece.rows)]) for piece in pieces]


def losses(corpus: list[Example], seq_len: int, on_long: str) -> tuple[int, int, int]:
    """Return pairs truncated, pairs dropped and examples dropped."""
    long = [len(one.tokens) - 1 for one in corpus if len(one.tokens) - 1 > seq_len]
    truncated = sum(pairs - seq_len for pairs in long) if on_long == "truncate" else 0
    return (truncated, sum(long), len(long)) if on_long == "drop" else (truncated, 0, 0)


def check_numbers(found: Pieces, before: list[Piece], after: list[Piece], lost: tuple[int, int, int]) -> None:
    """Check owners, target ranges and what was lost."""
    assert found.examples.tolist() == [piece.example for piece in after]
    assert found.lows.tolist() == [piece.low for piece in after]
    assert found.highs.tolist() == [piece.low + len(piece.rows) for piece in after]
    assert (found.num_truncated, found.num_dropped, found.num_dropped_examples) == lost
    removed = sum(len(piece.rows) for piece in before) - sum(len(piece.rows) for piece in after)
    assert found.num_pruned == removed


def rows_of(forest: RowForest, tokens: npt.NDArray[np.int32]) -> list[tuple[int, Tokens]]:
    """Return every row as (tree, its tree's first token and the targets down to it), node after node."""
    paths: list[Tokens] = []  # down to the end of each node
    rows: list[tuple[int, Tokens]] = []
    for node, parent in enumerate(forest.forest.parents.tolist()):
        start, length = int(forest.token_starts[node]), int(forest.forest.lengths[node])
        source = int(tokens[forest.first_inputs[node]])
        # An empty run is a root's: its first token is the input of its children's first rows.
        path: Tokens = paths[parent] if parent >= 0 else ()
        path = (source,) if length and not path else path
        assert not length or path[-1] == source
        assert int(forest.forest.depths[node]) == max(len(path) - 1, 0)
        if parent >= 0:
            assert forest.trees[node] == forest.trees[parent]
        for target in tokens[start : start + length].tolist():
            path = (*path, target)
            rows.append((int(forest.trees[node]), path))
        paths.append(path)
    return rows


@example(corpus=[Example((1, 1, 1, 1, 1, 1), frozenset({5}))], seq_len=2, on_long="split", prune=True)
@given(corpus=corpora(), seq_len=seq_lens, on_long=policies, prune=st.booleans())
def test_a_forest_holds_the_rows_that_are_needed(
    corpus: list[Example], seq_len: int, on_long: OnLong, prune: bool
) -> None:
    """The forest's rows are the kept pieces' rows, tree after tree, in preorder, each once."""
    corpus = kept_examples(corpus)
    trie, ends = trie_of(corpus)
    before = pieces_of(corpus, seq_len, on_long)
    after = pruned(before) if prune else before
    rows, pieces = cut_forest(trie.offsets, trie.parents, trie.depths, seq_len, on_long, prune=prune, examples=ends)
    check_numbers(pieces, before, after, losses(corpus, seq_len, on_long))
    names = sorted({piece.tree for piece in after if piece.rows})
    kept = {row for piece in after for row in piece.rows}
    expected = sorted((names.index(tree), (tree[-1], *path)) for tree, path in kept)
    found = rows_of(rows, trie.tokens)
    assert found == expected
    assert all(len(path) - 1 <= seq_len for _, path in found)
    for number, piece in enumerate(after):
        node = int(pieces.nodes[number])
        assert (node == -1) == (not piece.rows)
        if piece.rows:
            assert rows.trees[node] == names.index(piece.tree)
            assert rows.forest.depths[node] + rows.forest.lengths[node] == len(piece.rows)
            assert rows.forest.lengths[node] > 0
    firsts = np.cumsum(rows.forest.lengths) - rows.forest.lengths
    for node in np.flatnonzero(rows.forest.lengths).tolist():
        tree, path = found[firsts[node]]
        assert rows.first_targets[node] == len(names[tree]) + len(path) - 2
        assert trie.depths[rows.trie_nodes[node]] <= rows.first_targets[node]
        inside = rows.token_starts[node] - trie.offsets[rows.trie_nodes[node]]
        assert trie.depths[rows.trie_nodes[node]] + inside == rows.first_targets[node]


@given(corpus=corpora(), seq_len=seq_lens, on_long=policies, prune=st.booleans())
def test_unmerged_pieces_end_at_their_own_last_target(
    corpus: list[Example], seq_len: int, on_long: OnLong, prune: bool
) -> None:
    """An unmerged piece is pruned by its own supervision alone, and its node holds its last target."""
    corpus = kept_examples(corpus)
    trie, ends = trie_of(corpus)
    before = pieces_of(corpus, seq_len, on_long)
    after = before
    if prune:
        after = [
            piece._replace(tokens=piece.tokens[: max(piece.trained, default=piece.low - 1) - piece.low + 2])
            for piece in before
        ]
    found = cut_examples(ends, trie.parents, trie.depths, seq_len, on_long, prune)
    check_numbers(found, before, after, losses(corpus, seq_len, on_long))
    for node, piece in zip(found.nodes.tolist(), after, strict=True):
        if not piece.rows:
            assert node == -1
            continue
        last = piece.low + len(piece.rows) - 1
        assert trie.depths[node] <= last < trie.depths[node] + np.diff(trie.offsets)[node]
        tokens = [token for at in trie.path(node) for token in trie.tokens[trie.offsets[at] : trie.offsets[at + 1]]]
        assert tuple(tokens[: last + 1]) == corpus[piece.example].tokens[: last + 1]


@given(corpus=corpora(), seq_len=seq_lens, on_long=policies)
def test_lengths_are_those_of_the_examples_alone(corpus: list[Example], seq_len: int, on_long: OnLong) -> None:
    """A baseline packs every pair of every piece; with pruning, up to each piece's last trained one."""
    corpus = kept_examples(corpus)
    _, ends = trie_of(corpus)
    expected = [len(piece.rows) for piece in pieces_of(corpus, seq_len, on_long)]
    assert piece_lengths(ends, seq_len, on_long, prune=False).tolist() == expected
    trained = []
    for piece in pieces_of(corpus, seq_len, on_long):
        example = corpus[piece.example]
        targets = [at for at in example.trained if piece.low <= at < piece.low + len(piece.rows) and example.weight]
        trained += [max(targets) + 1 - piece.low] if targets else []
    assert piece_lengths(ends, seq_len, on_long, prune=True).tolist() == trained


@given(
    corpus=corpora(),
    seq_len=seq_lens,
    on_long=st.sampled_from(["split", "truncate"]),
    prune=st.booleans(),
    data=st.data(),
)
def test_a_forest_of_tokens_keeps_what_trains(
    corpus: list[Example], seq_len: int, on_long: OnLong, prune: bool, data: st.DataObject
) -> None:
    """Without examples a row stays where its token, or one below it in its tree, trains."""
    corpus = kept_examples(corpus)
    trie, _ = trie_of(corpus)
    flags = data.draw(st.lists(st.booleans(), min_size=len(trie.tokens), max_size=len(trie.tokens)))
    paths: list[Tokens] = []  # of every token of the trie
    for node, parent in enumerate(trie.parents.tolist()):
        path = paths[trie.offsets[parent + 1] - 1] if parent >= 0 else ()
        for token in trie.tokens[trie.offsets[node] : trie.offsets[node + 1]].tolist():
            path = (*path, token)
            paths.append(path)
    rows = {}
    for path, flag in zip(paths, flags, strict=True):
        if len(path) > 1 and (on_long == "split" or len(path) - 1 <= seq_len):
            cut = (len(path) - 2) // seq_len * seq_len
            rows[path[: cut + 1], path[cut + 1 :]] = flag
    if prune:
        needed = {
            (tree, path[:stop]) for (tree, path), flag in rows.items() if flag for stop in range(1, len(path) + 1)
        }
        rows = {row: flag for row, flag in rows.items() if row in needed}
    forest, pieces = cut_forest(
        trie.offsets,
        trie.parents,
        trie.depths,
        seq_len,
        on_long,
        prune=prune,
        examples=None,
        supervised=np.array(flags, dtype=np.int32),
    )
    names = sorted({tree for tree, _ in rows})
    assert rows_of(forest, trie.tokens) == sorted((names.index(tree), (tree[-1], *path)) for tree, path in rows)
    assert len(pieces.examples) == 0


@pytest.mark.parametrize("on_long", ["split", "truncate", "drop"])
def test_nothing_stays_nothing(on_long: OnLong) -> None:
    """Without examples there are neither rows nor pieces."""
    trie, ends = trie_of([])
    rows, pieces = cut_forest(trie.offsets, trie.parents, trie.depths, 4, on_long, prune=True, examples=ends)
    assert rows.forest.num_nodes == 0
    assert len(pieces.examples) == len(cut_examples(ends, trie.parents, trie.depths, 4, on_long, True).examples) == 0
