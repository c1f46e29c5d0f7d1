"""What a build measures, against dense masks, dictionaries of prefixes and sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import oracle
import pytest
from builds import Window, built
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle import Example, Tokens
from strategies import corpora, policies, sequences

from dagpack_cli import profile
from dagpack_cli.errors import DataError, NoInputError
from dagpack_cli.manifest import PackOptions
from dagpack_cli.packing import best_fit_decreasing
from dagpack_cli.profile import chain_costs, layout_baselines, rows_also_in, trie_profile
from dagpack_cli.shards import MergedWindows, UnmergedWindows, WindowRows
from dagpack_cli.shards import window as window_module
from dagpack_cli.shards.window import chain_blocks
from dagpack_cli.trie import Trie, build_trie

block_sizes = st.integers(1, 5)
chains = st.lists(st.integers(1, 12), max_size=9)
few = settings(max_examples=25, deadline=None)


def dense_mask(parents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return the ancestor matrix of a window's rows: a query sees itself and what its parent sees."""
    mask = np.zeros((len(parents), len(parents)), dtype=bool)
    for query, parent in enumerate(parents):
        if parent >= 0:
            mask[query] = mask[parent]
        mask[query, query] = True
    return mask


def count_blocks(parents: Sequence[int], size: int) -> int:
    """Return how many ``size`` x ``size`` tiles of the dense mask are not empty."""
    mask = dense_mask(parents)
    steps = range(0, len(parents), size)
    return sum(bool(mask[row : row + size, column : column + size].any()) for row in steps for column in steps)


def chain_parents(lengths: Sequence[int]) -> list[int]:
    """Return the parents of chains that stand one after the other in a window."""
    parents: list[int] = []
    for length in lengths:
        parents += [-1, *range(len(parents), len(parents) + length - 1)]
    return parents


def int64(values: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return values as the array the product takes."""
    return np.array(values, dtype=np.int64)


def trie_of(corpus: Sequence[Tokens]) -> Trie:
    """Return the trie of sequences that are not empty."""
    tokens = np.array([token for sequence in corpus for token in sequence], dtype=np.int32)
    return build_trie(tokens, np.cumsum([0] + [len(sequence) for sequence in corpus], dtype=np.int64))[0]


def decode(tokens: list[int]) -> str:
    """Return ids as a text that says which they were."""
    return " ".join(str(token) for token in tokens)


@given(lengths=chains, size=block_sizes)
def test_chains_cost_what_their_masks_hold(lengths: list[int], size: int) -> None:
    """One chain a window costs its rows, the true cells of its mask and the tiles that hold one."""
    with mock.patch.object(profile, "BLOCK_SIZE", size):
        costs = chain_costs(int64(lengths))
    masks = [dense_mask(chain_parents([length])) for length in lengths]
    assert costs == {
        "windows": len(lengths),
        "rows": sum(lengths),
        "attention_edges": sum(int(mask.sum()) for mask in masks),
        "blocks": sum(count_blocks(chain_parents([length]), size) for length in lengths),
    }


@given(lengths=chains, size=block_sizes, data=st.data())
def test_blocks_of_packed_chains_are_those_of_the_mask(lengths: list[int], size: int, data: st.DataObject) -> None:
    """Chains of a window stand in their order, wherever windows are numbered and however many share one."""
    number = st.integers(0, max(len(lengths) - 1, 0))
    windows = data.draw(st.lists(number, min_size=len(lengths), max_size=len(lengths)))
    together = [[length for length, at in zip(lengths, windows, strict=True) if at == one] for one in range(9)]
    with mock.patch.object(window_module, "BLOCK_SIZE", size):
        found = chain_blocks(int64(lengths), int64(windows), max(windows, default=-1) + 1)
    assert found == sum(count_blocks(chain_parents(some), size) for some in together)


@given(given_lengths=chains, lengths=chains, turns=chains, size=block_sizes, seq_len=st.integers(12, 30))
def test_baselines_are_layouts_that_could_be_built(
    given_lengths: list[int], lengths: list[int], turns: list[int], size: int, seq_len: int
) -> None:
    """Best fit has the windows of its packer and no fewer rows; a turn each only where an example has several."""
    with mock.patch.object(profile, "BLOCK_SIZE", size), mock.patch.object(window_module, "BLOCK_SIZE", size):
        found = layout_baselines(int64(given_lengths), int64(lengths), int64(turns), seq_len)
        expected = {"examples_as_given": chain_costs(int64(given_lengths))}
        if turns:
            expected["one_example_per_turn"] = chain_costs(int64(turns))
    windows = best_fit_decreasing(int64(lengths), seq_len).tolist()
    together = [[length for length, at in zip(lengths, windows, strict=True) if at == one] for one in set(windows)]
    expected["best_fit"] = {
        "windows": oracle.best_fit_count(lengths, seq_len),
        "rows": sum(lengths),
        "attention_edges": sum(length * (length + 1) // 2 for length in lengths),
        "blocks": sum(count_blocks(chain_parents(some), size) for some in together),
    }
    assert found == expected


def test_baselines_by_hand() -> None:
    """Three chains of 5, 3 and 2 rows in windows of 8, in blocks of 4: two windows instead of three."""
    with mock.patch.object(profile, "BLOCK_SIZE", 4), mock.patch.object(window_module, "BLOCK_SIZE", 4):
        found = layout_baselines(int64([6, 3, 2]), int64([5, 3, 2]), int64([2, 5]), 8)
    edges = 15 + 6 + 3
    assert found == {
        "examples_as_given": {"windows": 3, "rows": 11, "attention_edges": edges + 6, "blocks": 3 + 1 + 1},
        "best_fit": {"windows": 2, "rows": 10, "attention_edges": edges, "blocks": 3 + 1},
        "one_example_per_turn": {"windows": 2, "rows": 7, "attention_edges": 3 + 15, "blocks": 1 + 3},
    }


@few
@given(
    examples=corpora(max_examples=7),
    policy=policies(on_long=("split", "truncate", "drop")),
    layout=st.sampled_from(["dag", "dag", "walk", "packed", "best-fit"]),
    size=block_sizes,
)
def test_blocks_of_windows_are_those_of_the_mask(
    examples: list[Example], policy: oracle.Policy, layout: str, size: int
) -> None:
    """Every window of every layout has as many blocks as its dense mask has tiles that are not empty."""
    filled: list[WindowRows] = []

    def watch(kind: Any) -> Any:
        batch = kind.batch

        def watched(windows: object, first: int, last: int) -> WindowRows:
            rows: WindowRows = batch(windows, first, last)
            filled.append(rows)
            return rows

        return mock.patch.object(kind, "batch", watched)

    options = PackOptions(
        seq_len=policy.seq_len,
        layout=layout,
        on_long=policy.on_long,  # type: ignore[arg-type]
        prune=policy.prune,
    )
    with (
        mock.patch.object(window_module, "BLOCK_SIZE", size),
        mock.patch.object(profile, "BLOCK_SIZE", size),
        watch(MergedWindows),
        watch(UnmergedWindows),
    ):
        try:
            with built(examples, options) as build:
                windows: list[Window] = build.windows["train"]
                packing = build.result.manifest.packing["train"]
        except (NoInputError, DataError):
            assume(False)
            raise
    expected = [count_blocks(window.column("parent"), size) for window in windows]
    assert np.concatenate([rows.blocks for rows in filled]).tolist() == expected
    assert packing["blocks"] == sum(expected)


def runs_of(corpus: Sequence[Tokens]) -> list[tuple[Tokens, int, int]]:
    """Return (prefix at its end, length, examples) of every radix node in preorder, from a dictionary of prefixes."""
    counts = Counter(sequence[:end] for sequence in corpus for end in range(1, len(sequence) + 1))
    children = Counter(prefix[:-1] for prefix in counts)
    ends = set(corpus)
    nodes = []
    for prefix in sorted(counts):
        if prefix in ends or children[prefix] != 1:
            start = len(prefix) - 1
            while start and prefix[:start] not in ends and children[prefix[:start]] == 1:
                start -= 1
            nodes.append((prefix, len(prefix) - start, counts[prefix]))
    return nodes


@given(corpus=sequences(max_examples=9))
def test_a_profile_is_that_of_a_dictionary_of_prefixes(corpus: list[Tokens]) -> None:
    """Tokens, rows, nodes, branching and the histogram of depths come from counting prefixes alone."""
    corpus = [sequence for sequence in corpus if sequence]
    found = trie_profile(trie_of(corpus), decode)
    counts = Counter(sequence[:end] for sequence in corpus for end in range(1, len(sequence) + 1))
    rows = {prefix: count for prefix, count in counts.items() if len(prefix) > 1}
    nodes = runs_of(corpus)
    parents = Counter(prefix[: len(prefix) - length] for prefix, length, _ in nodes)
    children = [parents[prefix] for prefix, _, _ in nodes]
    assert (found["tokens"], found["rows"], found["nodes"]) == (len(counts), len(rows), len(nodes))
    assert found["roots"] == len({sequence[0] for sequence in corpus})
    assert found["leaves"] == sum(number == 0 for number in children)
    assert found["branching_nodes"] == sum(number > 1 for number in children)
    assert found["most_children"] == max(children, default=0)
    depths = {prefix: len(prefix) - 2 for prefix in rows}
    assert found["deepest_row"] == max(depths.values(), default=-1)
    buckets = [0] + [1 << power for power in range(20)]
    expected = []
    for low, high in pairwise(buckets):
        inside = [prefix for prefix, depth in depths.items() if low <= depth < high]
        if low <= found["deepest_row"]:
            expected.append([low, len(inside), sum(rows[prefix] for prefix in inside)])
    assert found["depth_histogram"] == expected


@given(corpus=sequences(max_examples=9), num_prefixes=st.integers(1, 4))
def test_shared_prefixes_save_most_first(corpus: list[Tokens], num_prefixes: int) -> None:
    """The largest shared runs are those that a dictionary finds, most tokens saved first, ties in trie order."""
    corpus = [sequence for sequence in corpus if sequence]
    found = trie_profile(trie_of(corpus), decode, num_prefixes=num_prefixes)["shared_prefixes"]
    shared = [(prefix, length, count) for prefix, length, count in runs_of(corpus) if count > 1]
    shared.sort(key=lambda node: -(node[2] - 1) * node[1])
    assert found == [
        {
            "prefix_tokens": len(prefix),
            "run_tokens": length,
            "examples": count,
            "tokens_saved": (count - 1) * length,
            "begins": decode(list(prefix[len(prefix) - length :])),
            "ends": "",
        }
        for prefix, length, count in shared[:num_prefixes]
    ]


@pytest.mark.parametrize("length", [40, 41, 100])
def test_long_shared_prefixes_are_shown_by_both_ends(length: int) -> None:
    """Of more than 40 tokens the first 40 and the last 20 are decoded."""
    trunk = tuple(range(length))
    entry = trie_profile(trie_of([(*trunk, 500), (*trunk, 501)]), decode)["shared_prefixes"][0]
    assert entry["run_tokens"] == entry["prefix_tokens"] == entry["tokens_saved"] == length
    assert entry["begins"] == decode(list(trunk[:40]))
    assert entry["ends"] == (decode(list(trunk[-20:])) if length > 40 else "")


@given(left=sequences(max_examples=8), right=sequences(max_examples=8), data=st.data())
def test_rows_also_in_another_trie_are_those_of_sets(
    left: list[Tokens], right: list[Tokens], data: st.DataObject
) -> None:
    """A row counts where it trains and its whole path is a prefix of something in the other trie."""
    left, right = ([sequence for sequence in corpus if sequence] for corpus in (left, right))
    trie = trie_of(left)
    paths: list[Tokens] = []
    for node, parent in enumerate(trie.parents.tolist()):
        path = paths[int(trie.offsets[parent + 1]) - 1] if parent >= 0 else ()
        for token in trie.tokens[trie.offsets[node] : trie.offsets[node + 1]].tolist():
            path = (*path, token)
            paths.append(path)
    weight = st.sampled_from([0.0, 1.0, 1.0, -0.5])
    weights = data.draw(st.lists(weight, min_size=len(paths), max_size=len(paths)))
    weights = [0.0 if len(path) == 1 else value for path, value in zip(paths, weights, strict=True)]
    prefixes = {sequence[:end] for sequence in right for end in range(1, len(sequence) + 1)}
    expected = sum(path in prefixes and value != 0 for path, value in zip(paths, weights, strict=True))
    weighted = replace(trie, weights=np.array(weights, dtype=np.float32))
    assert rows_also_in(weighted, trie_of(right)) == expected
    assert rows_also_in(weighted, trie) == sum(value != 0 for value in weights)
