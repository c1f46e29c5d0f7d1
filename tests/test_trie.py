"""The trie against dictionaries: node tables, both engines, state merging, weights, the store."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpack_cli.errors import DamageError
from dagpack_cli.profile import min_shared_costs
from dagpack_cli.sequences import Sequences
from dagpack_cli.trie import (
    Trie,
    build_trie,
    count_transitions,
    merge_states,
    open_trie,
    save_trie,
    sweep_weights,
)
from dagpack_cli.trie.order import sort_sequences

Corpus = list[list[int]]
corpora = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=14)


def flatten(sequences: Corpus) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return sequences end to end, and where each begins."""
    offsets = np.cumsum([0] + [len(sequence) for sequence in sequences]).astype(np.int64)
    return np.array([token for sequence in sequences for token in sequence], dtype=np.int32), offsets


def radix_nodes(sequences: Corpus) -> list[tuple[list[int], int, int, int]]:
    """Return (run, parent, depth, count) of the radix trie in preorder, from a dictionary of all prefixes."""
    counts: Counter[tuple[int, ...]] = Counter(
        tuple(sequence[:end]) for sequence in sequences for end in range(1, len(sequence) + 1)
    )
    ends = {tuple(sequence) for sequence in sequences}
    nodes: list[tuple[list[int], int, int, int]] = []
    todo: list[tuple[tuple[int, ...], int]] = [((), -1)]
    while todo:
        prefix, parent = todo.pop()
        number = parent
        if prefix:
            run = [prefix[-1]]
            start = len(prefix) - 1
            count = counts[prefix]
            children = sorted(other for other in counts if len(other) == len(prefix) + 1 and other[:-1] == prefix)
            while prefix not in ends and len(children) == 1:
                prefix = children[0]
                run.append(prefix[-1])
                children = sorted(other for other in counts if len(other) == len(prefix) + 1 and other[:-1] == prefix)
            number = len(nodes)
            nodes.append((run, parent, start, count))
        children = sorted(other for other in counts if len(other) == len(prefix) + 1 and other[: len(prefix)] == prefix)
        todo += [(child, number) for child in reversed(children)]
    return nodes


def nodes_of(trie: Trie) -> list[tuple[list[int], int, int, int]]:
    """Return a trie's nodes as `radix_nodes` gives them."""
    return [
        (
            trie.tokens[trie.offsets[node] : trie.offsets[node + 1]].tolist(),
            int(trie.parents[node]),
            int(trie.depths[node]),
            int(trie.counts[node]),
        )
        for node in range(trie.num_nodes)
    ]


@pytest.mark.parametrize("engine", ["numpy", "numba"])
@given(sequences=corpora)
def test_the_node_table_is_that_of_a_dictionary_of_prefixes(engine: Any, sequences: Corpus) -> None:
    """Runs, parents, depths, counts and every sequence's end node are right, with either engine."""
    trie, ends = build_trie(*flatten(sequences), engine=engine)
    assert nodes_of(trie) == radix_nodes(sequences)
    for sequence, end in zip(sequences, ends.tolist(), strict=True):
        path = [trie.tokens[trie.offsets[node] : trie.offsets[node + 1]].tolist() for node in trie.path(end)]
        assert [token for run in path for token in run] == sequence
    for node in range(trie.num_nodes):
        below = {other for other in range(trie.num_nodes) if node in trie.path(other)}
        assert below == set(range(node, int(trie.subtree_ends[node])))


@pytest.mark.parametrize("engine", ["numpy", "numba"])
@given(sequences=corpora)
def test_order_and_lcp_are_those_of_sorted_lists(engine: Any, sequences: Corpus) -> None:
    """The order is Python's own, stable, and lcp is counted token by token."""
    order, lcp = sort_sequences(Sequences.of(*flatten(sequences)), engine=engine)
    expected = sorted(range(len(sequences)), key=lambda number: sequences[number])
    assert order.tolist() == expected
    for position, number in enumerate(expected):
        before = sequences[expected[position - 1]] if position else []
        shared = 0
        for left, right in zip(before, sequences[number], strict=False):
            if left != right:
                break
            shared += 1
        assert lcp[position] == shared


@pytest.mark.parametrize("engine", ["numpy", "numba"])
@pytest.mark.parametrize(
    ("sequences", "num_tokens"),
    [
        ([[7] * 20_000], 20_000),
        ([[7] * length for length in range(1, 300)], 299),
        ([[7] * length for length in range(300, 0, -1)], 300),
        ([[7, number] for number in range(5_000)], 5_001),
        ([[1, 2, 3]] * 2_000, 3),
        ([[number % 2] * 3 + [number] for number in range(3_000)], 3_006),
    ],
    ids=["one deep chain", "ascending", "descending", "fan-out", "equal", "binary then distinct"],
)
def test_worst_cases_are_ordinary(engine: Any, sequences: Corpus, num_tokens: int) -> None:
    """Chains, fans and duplicates give the trie their definition says, whichever engine builds it."""
    trie, ends = build_trie(*flatten(sequences), engine=engine)
    assert len(trie.tokens) == num_tokens
    assert int(trie.counts[trie.parents == -1].sum()) == len(sequences)
    assert (trie.depths[ends] + np.diff(trie.offsets)[ends]).tolist() == [len(sequence) for sequence in sequences]


@given(sequences=corpora, data=st.data())
def test_engines_sum_the_same_bits(sequences: Corpus, data: st.DataObject) -> None:
    """The weight sweep gives equal bits with both engines, and the sums of the definition."""
    trie, ends = build_trie(*flatten(sequences))
    order = np.argsort(ends, kind="stable")
    runs, offsets, weights = [], [0], []
    for number in order.tolist():
        length = len(sequences[number])
        low = data.draw(st.integers(0, length))
        high = data.draw(st.integers(low, length))
        runs += [[low, high]] if high > low else []
        offsets.append(len(runs))
        weights.append(data.draw(st.sampled_from([1.0, 0.5, -2.0, 0.1])))
    starts = trie.depths.astype(np.int64)
    arguments = (
        starts,
        starts + np.diff(trie.offsets),
        ends[order],
        np.array(runs, dtype=np.int64).reshape(-1, 2),
        np.array(offsets, dtype=np.int64),
        np.array(weights, dtype=np.float64),
    )
    plain = sweep_weights(*arguments, engine="numpy")
    assert plain.tobytes() == sweep_weights(*arguments, engine="numba").tobytes()
    expected = np.zeros(len(trie.tokens))
    for place, number in enumerate(order.tolist()):
        for low, high in runs[offsets[place] : offsets[place + 1]]:
            for node in trie.path(int(ends[number])):
                for token in range(int(trie.offsets[node]), int(trie.offsets[node + 1])):
                    depth = int(trie.depths[node]) + token - int(trie.offsets[node])
                    expected[token] += weights[place] if low <= depth < high else 0
    assert np.allclose(plain, expected, rtol=1.2e-7, atol=1e-12)


def state_rows(sequences: Corpus) -> list[tuple[int, int, int, int, int]]:
    """Return (input, target, depth, parent row, count) of state merging, breadth-first from the definition."""
    edges = Counter(pair for sequence in sequences for pair in pairwise(sequence))
    starts = sorted({sequence[0] for sequence in sequences})
    hangs: dict[int, int | None] = dict.fromkeys(starts)
    queue = list(starts)
    for state in queue:
        for source, target in sorted(edges):
            if source == state and target not in hangs:
                hangs[target] = state
                queue.append(target)
    rows: list[tuple[int, int, int, int, int]] = []
    opened = set(starts)

    def walk(state: int, depth: int, parent: int) -> None:
        for source, target in sorted(edges):
            if source == state:
                rows.append((source, target, depth, parent, edges[source, target]))
                if hangs[target] == source and target not in opened:
                    opened.add(target)
                    walk(target, depth + 1, len(rows) - 1)

    for start in starts:
        walk(start, 0, -1)
    return rows


@given(sequences=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=9), min_size=1, max_size=7))
def test_state_merging_is_breadth_first(sequences: Corpus) -> None:
    """Every distinct transition is one row, below the parent that reaches its state first."""
    tokens, offsets = flatten(sequences)
    trie = merge_states(count_transitions(tokens, offsets, np.ones(len(tokens)), np.ones(len(tokens), dtype=bool)))
    rows: list[tuple[int, int, int, int, int]] = []
    row_of: dict[int, int] = {}
    for node in range(trie.num_nodes):
        start, end = int(trie.offsets[node]), int(trie.offsets[node + 1])
        for token in range(start, end):
            parent = int(trie.parents[node])
            above = token - 1 if token > start else int(trie.offsets[parent + 1]) - 1 if parent >= 0 else -1
            if above >= 0:
                row_of[token] = len(rows)
                depth = int(trie.depths[node]) + token - start - 1
                pair = (int(trie.tokens[above]), int(trie.tokens[token]))
                rows.append((*pair, depth, row_of.get(above, -1), int(trie.counts[node])))
    assert rows == state_rows(sequences)
    assert int(trie.supervised.sum()) == sum(len(sequence) - 1 for sequence in sequences)


def test_two_actions_between_the_same_states_stay_two_transitions() -> None:
    """A node is a state with the action that produced it, so the actions are not confused."""
    # a -> b by action 1 and by action 2: symbols (a), (1, b), (2, b).
    tokens, offsets = flatten([[0, 1], [0, 2]])
    trie = merge_states(count_transitions(tokens, offsets, np.ones(4), np.ones(4, dtype=bool)))
    assert trie.num_rows == 2


def test_a_stored_trie_is_read_back_and_damage_is_named(tmp_path: Path) -> None:
    """Columns survive the disk; a missing, shortened or foreign column is an error with its path."""
    trie, _ = build_trie(*flatten([[1, 2, 3], [1, 2, 4], [5]]))
    save_trie(trie, tmp_path)
    stored = open_trie(tmp_path)
    for name in Trie.__slots__:
        assert getattr(stored, name).tobytes() == getattr(trie, name).tobytes()
    np.save(tmp_path / "counts.npy", trie.counts[:-1])
    with pytest.raises(DamageError, match=r"counts.npy: 3 entries; 4, as the other columns say"):
        open_trie(tmp_path)
    np.save(tmp_path / "counts.npy", trie.counts.astype(np.int64))
    with pytest.raises(DamageError, match=r"counts.npy: 1-dimensional int64; 1-dimensional int32"):
        open_trie(tmp_path)
    (tmp_path / "counts.npy").write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(DamageError, match=r"counts.npy: not a readable .npy file"):
        open_trie(tmp_path)
    (tmp_path / "counts.npy").unlink()
    with pytest.raises(DamageError, match=r"counts.npy: the file is missing"):
        open_trie(tmp_path)


@given(corpora.filter(bool), st.integers(1, 7))
def test_short_shared_prefixes_stay_apart(sequences: Corpus, min_shared: int) -> None:
    """Equal sequences are one; neighbours in sorted order that share less than N tokens are in different trees."""
    trie, ends = build_trie(*flatten(sequences), min_shared=min_shared)
    spelled = [
        [token for node in trie.path(int(end)) for token in trie.tokens[trie.offsets[node] : trie.offsets[node + 1]]]
        for end in ends
    ]
    assert spelled == sequences
    roots = [trie.path(int(end))[0] for end in ends]
    ordered = sorted(range(len(sequences)), key=sequences.__getitem__)
    groups = [[ordered[0]]]
    for one, other in pairwise(ordered):
        shared = next(
            (at for at, pair in enumerate(zip(sequences[one], sequences[other], strict=False)) if pair[0] != pair[1]),
            min(len(sequences[one]), len(sequences[other])),
        )
        if (shared >= min_shared or sequences[one] == sequences[other]) and shared:
            groups[-1].append(other)
        else:
            groups.append([other])
    assert len({roots[group[0]] for group in groups}) == len(groups) == trie.num_roots
    for group in groups:
        assert len({roots[member] for member in group}) == 1
        prefixes = {tuple(sequences[member][:end]) for member in group for end in range(1, len(sequences[member]) + 1)}
        tree = [node for node in range(trie.num_nodes) if trie.path(node)[0] == roots[group[0]]]
        assert sum(int(trie.offsets[node + 1] - trie.offsets[node]) for node in tree) == len(prefixes)
    assert min_shared_costs(build_trie(*flatten(sequences))[0], [min_shared]) == [
        [min_shared, *min_shared_costs(trie, [1])[0][1:]]
    ]
