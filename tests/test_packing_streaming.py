"""Streaming: best fit where nothing is emitted early, valid where it is, chunks that do not show, little waiting."""

from __future__ import annotations

import numpy as np
import oracle_packing as oracle
import pytest
from bench.forests import FAMILIES, grow_forest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_packing import Case

from dagpack_cli.errors import TreeError, UsageError
from dagpack_cli.packing import Engine, Forest, bundle_leaves, check_placement, lower_bound, place_leaves
from dagpack_cli.packing import streaming as streaming_module
from dagpack_cli.packing.streaming import stream_leaves

ENGINES: tuple[Engine, ...] = ("numpy", "numba")


@settings(max_examples=200, deadline=None)
@given(oracle.cases(max_nodes=24, max_leaves=24))
def test_without_emission_it_is_best_fit(case: Case) -> None:
    """While nothing is final before its time, the pass packs as best fit over all bundles does."""
    expected = oracle.naive_bundles(case)
    for engine in ENGINES:
        assert stream_leaves(case.forest(), case.seq_len, pending=10**6, engine=engine).tolist() == expected


@settings(max_examples=200, deadline=None)
@given(oracle.cases(max_nodes=40, max_leaves=12), st.integers(1, 4))
def test_windows_obey_the_rules(case: Case, pending: int) -> None:
    """However little may wait, windows are valid, and the same in both engines."""
    windows = [stream_leaves(case.forest(), case.seq_len, pending=pending, engine=engine) for engine in ENGINES]
    assert windows[0].tolist() == windows[1].tolist()
    assert oracle.obeys_the_rules(case, place_leaves(case.forest(), windows[0]))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_engines_and_chunks_agree_on_families(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """Two windows' worth may wait: windows are emitted all the time, and chunks of any size give the same."""
    for seed in range(2):
        forest = grow_forest(family, 8_192, seed, num_nodes=3_000)
        expected = stream_leaves(forest, 8_192, pending=2, engine="numpy")
        check_placement(forest, place_leaves(forest, expected), 8_192)
        for chunk in (1, 77, 2_999):
            monkeypatch.setattr(streaming_module, "_CHUNK", chunk)
            for engine in ENGINES:
                assert stream_leaves(forest, 8_192, pending=2, engine=engine).tolist() == expected.tolist()
        monkeypatch.undo()


def test_many_small_bundles_are_packed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny leaves of one node would wait by the thousand: they are merged long before they fill what may wait."""
    monkeypatch.setattr(streaming_module, "_MOST_ENTRIES", 2)
    lengths = np.random.default_rng(0).integers(1, 4, 3_000)
    forest = Forest.from_parents(np.append(-1, np.zeros(3_000, dtype=np.int64)), np.append(5, lengths))
    stream = streaming_module._PlainStream(3_000, 4_096, 4)
    most = 0
    ends, bottoms = forest.ends.astype(np.int64), forest.depths + forest.lengths
    for node in range(forest.num_nodes):
        stream.take(node, ends[node : node + 1], bottoms[node : node + 1])
        most = max(most, len(stream._stack))
    assert most <= 4 * 2 + 1
    for engine in ENGINES:
        windows = stream_leaves(forest, 4_096, pending=4, engine=engine)
        assert int(windows.max()) + 1 == lower_bound(forest, 4_096).windows


@pytest.mark.parametrize("family", ["gw", "grpo", "web", "cater"])
def test_little_is_lost(family: str) -> None:
    """64 windows' worth that may wait cost at most a hundredth of the windows of best fit."""
    forest = grow_forest(family, 2_048, 0, num_rows=2_000_000)
    windows = int(bundle_leaves(forest, 2_048).max()) + 1
    assert int(stream_leaves(forest, 2_048).max()) + 1 <= 1.01 * windows


def test_bad_arguments_are_refused() -> None:
    """A path that does not fit and a pass in which nothing may wait are refused; nothing packs into nothing."""
    with pytest.raises(TreeError, match="node 1 has 7 rows"):
        stream_leaves(Case([-1, 0], [3, 4], 6).forest(), 6)
    with pytest.raises(UsageError, match="pending"):
        stream_leaves(Case([-1], [3], 6).forest(), 6, pending=0)
    none = np.zeros(0, dtype=np.int64)
    for engine in ENGINES:
        assert stream_leaves(Forest.from_parents(none, none), 6, engine=engine).tolist() == []
