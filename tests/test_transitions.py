"""Transitions counted in blocks, joined, and merged by state in little memory: as if they were counted at once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from killed import contents
from test_determinism import token_files, write

from dagpack_cli import memory
from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
from dagpack_cli.memory import Scratch
from dagpack_cli.pipeline import Execution, TokenizerChoice, build
from dagpack_cli.stages import partition_trie
from dagpack_cli.trie import Transitions, Trie, count_transitions, join_transitions, merge_states

Corpus = list[list[tuple[int, float]]]
# Each token with its weight as a target, in quarters, whose sums are exact in any order.
corpora = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.integers(-2, 5).map(lambda n: n / 4)), min_size=1, max_size=7), max_size=9
)


def counted(corpus: Corpus) -> Transitions:
    """Return the transitions of some sequences, counted at once."""
    tokens = np.array([token for sequence in corpus for token, _ in sequence], dtype=np.int32)
    weights = np.array([weight for sequence in corpus for _, weight in sequence], dtype=np.float64)
    offsets = np.cumsum([0] + [len(sequence) for sequence in corpus])
    return count_transitions(tokens, offsets, weights, weights != 0)


def columns(transitions: Transitions) -> dict[str, list[float]]:
    """Return the columns as lists."""
    return {name: getattr(transitions, name).tolist() for name in Transitions.__slots__}


def plain_columns(corpus: Corpus) -> dict[str, list[float]]:
    """Return the columns from dictionaries."""
    counts: Counter[tuple[int, int]] = Counter()
    supervised: Counter[tuple[int, int]] = Counter()
    weights: dict[tuple[int, int], float] = {}
    for sequence in corpus:
        for (source, _), (target, weight) in pairwise(sequence):
            counts[source, target] += 1
            supervised[source, target] += weight != 0
            weights[source, target] = weights.get((source, target), 0.0) + weight
    starts = Counter(sequence[0][0] for sequence in corpus)
    keys = sorted(counts)
    return {
        "sources": [source for source, _ in keys],
        "targets": [target for _, target in keys],
        "counts": [counts[key] for key in keys],
        "supervised": [supervised[key] for key in keys],
        "weights": [weights[key] for key in keys],
        "starts": sorted(starts),
        "start_counts": [starts[start] for start in sorted(starts)],
    }


@given(corpora, st.lists(st.integers(0, 9), max_size=6), st.integers(1, 4))
def test_blocks_joined_are_the_corpus(corpus: Corpus, cuts: list[int], span: int) -> None:
    """Wherever blocks end, and with empty ones among them."""
    bounds = [0, *sorted(min(cut, len(corpus)) for cut in cuts), len(corpus)]
    with TemporaryDirectory() as folder, mock.patch.object(memory, "SPAN", span):
        blocks = (counted(corpus[low:high]) for low, high in pairwise(bounds))
        joined = join_transitions(blocks, Scratch(Path(folder), 0).zeros)
        assert columns(joined) == plain_columns(corpus)
    assert columns(counted(corpus)) == plain_columns(corpus)
    plain = {name: getattr(counted(corpus), name).dtype for name in Transitions.__slots__}
    assert {name: getattr(joined, name).dtype for name in Transitions.__slots__} == plain


def test_tables_are_joined_with_those_of_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of distinct transitions is not joined with all before it: each is moved a few times, not hundreds."""
    moved = 0
    plain = join_transitions.__globals__["_joined"]

    def watched(one: object, other: object, zeros: object) -> object:
        nonlocal moved
        joined = plain(one, other, zeros)
        moved += len(joined.keys)
        return joined

    monkeypatch.setitem(join_transitions.__globals__, "_joined", watched)
    blocks = [counted([[(n * 10 + at, 1.0) for at in range(10)]]) for n in range(256)]
    joined = join_transitions(blocks)
    assert len(joined.sources) == 256 * 9
    assert moved < 256 * 10 * 10


@given(corpora, st.integers(1, 4))
def test_states_merged_a_few_at_a_time(corpus: Corpus, span: int) -> None:
    """The breadth-first tree is the same, column by column, wherever arrays lie."""
    whole = merge_states(counted(corpus))
    with TemporaryDirectory() as folder, mock.patch.object(memory, "SPAN", span):
        little = merge_states(counted(corpus), Scratch(Path(folder), 0).zeros)
        for name in Trie.__slots__:
            ours, theirs = getattr(little, name), getattr(whole, name)
            assert (ours.dtype, ours.tolist()) == (theirs.dtype, theirs.tolist()), name


@pytest.mark.parametrize("root", [None, "0"])
def test_blocks_of_a_build_may_be_of_any_size(root: str | None, tmp_path: Path) -> None:
    """Supervision, weights and the virtual root go with the examples of their block: the same bytes for every size."""
    corpus = write(tmp_path / "corpus", token_files(6, num_files=2))

    def built(name: str) -> dict[str, str]:
        build(
            corpus,
            tmp_path / name,
            tokenizer=TokenizerChoice(),
            ingest_options=IngestOptions(),
            trie_options=TrieOptions(merge="state", virtual_root=root, val_fraction=0.3),
            pack_options=PackOptions(seq_len=64, on_long="split", polish=0),
            execution=Execution(cache=False),
        )
        return contents(tmp_path / name)

    whole = built("whole")
    for size in (1, 2, 7, 30, 100):
        with mock.patch.object(partition_trie, "_BLOCK_TOKENS", size):
            assert built(f"blocks-of-{size}") == whole
