"""``balance="cost"``: ranks get about as much attention to compute, and nothing else about a loader changes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from builds import read_windows
from hypothesis import given, settings
from hypothesis import strategies as st
from test_training_loader import Ranks, State, assert_each_once, chain, numbers_of, publish

from dagpack_cli.errors import DamageError, UsageError
from dagpack_cli.shards import files, parquet
from dagpack_cli.training import PackedLoader, PackedWindows
from dagpack_cli.training.balance import deal_step

LENGTHS = [2 + number % 7 for number in range(61)]  # windows of 3 to 36 edges


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with 61 windows, one chain each, which no test changes."""
    examples = [chain(number, length) for number, length in enumerate(LENGTHS)]
    return publish(tmp_path_factory.mktemp("skewed"), examples, "--layout", "padded")


@pytest.fixture
def windows(skewed: Path) -> PackedWindows:
    """The 61 windows as a dataset."""
    return PackedWindows(skewed)


def loads(steps: Sequence[Sequence[list[int]]], costs: Sequence[int]) -> list[list[int]]:
    """Return what every rank has to compute in every step."""
    return [[sum(costs[number] for number in numbers if number >= 0) for numbers in step] for step in steps]


def epoch_of(windows: PackedWindows, world: int, **options: Any) -> list[list[list[int]]]:
    """Return an epoch's windows: step after step, rank after rank."""
    ranks = Ranks(windows, world, **options)
    return [[numbers_of(batch) for batch in ranks.step()[1]] for _ in range(len(ranks.loaders[0]))]


# -- the rule


def dealt(costs: Sequence[int], world: int, places: int) -> list[list[int]]:
    """Return the rule's result, as its sentences say it."""
    plain = [[at for at in range(len(costs)) if at // places == rank] for rank in range(world)]
    ranks: list[list[int]] = [[] for _ in range(world)]
    left = list(range(len(costs)))
    while left:
        window = max(left, key=lambda at: (costs[at], -at))
        left.remove(window)
        free = [rank for rank in range(world) if len(ranks[rank]) < places]
        least = min(free, key=lambda rank: (sum(costs[at] for at in ranks[rank]), rank))
        ranks[least] = sorted([*ranks[least], window])
    worst, plain_worst = (max(sum(costs[at] for at in rank) for rank in deal) for deal in (ranks, plain))
    return ranks if worst < plain_worst else plain


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Draw the costs of a step, a number of ranks and the places of each."""
    world, places = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    cost = st.one_of(st.integers(0, 5), st.integers(0, 2**40))
    return draw(st.lists(cost, max_size=world * places)), world, places


@settings(max_examples=300)
@given(steps())
def test_the_rule(step: tuple[list[int], int, int]) -> None:
    """Largest first to who has least and a place free, unless dealing them as they come is as good."""
    costs, world, places = step
    found = deal_step(costs, world, places)
    assert found == dealt(costs, world, places)
    assert sorted(at for rank in found for at in rank) == list(range(len(costs)))
    assert len(found) == world
    assert max(map(len, found)) <= places


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([9, 8, 2, 1], [[0, 3], [1, 2]]),
        ([5, 5, 5, 5], [[0, 1], [2, 3]]),  # no better: as they come
        ([1, 1, 100, 50], [[1, 2], [0, 3]]),  # who has a free place takes the last, though it has most
        ([1, 1, 1, 100], [[0, 1], [2, 3]]),  # no better, though one rank has nearly everything
        ([0, 7, 7], [[0, 1], [2]]),
        ([], [[], []]),
    ],
)
def test_small_steps(costs: list[int], expected: list[list[int]]) -> None:
    """Steps that can be dealt by hand, of two ranks with two places."""
    assert deal_step(costs, 2, 2) == expected


# -- costs, from the shards


@pytest.mark.parametrize("shard_format", ["parquet", "npy"])
def test_costs_are_those_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_format: str) -> None:
    """A window's cost is the sum of depth + 1 over its rows, across files and row groups; no row is read for it."""
    monkeypatch.setattr(files, "_FILE_ROWS", 5 * 8)
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 2 * 8)
    examples = [chain(number, 1 + number % 8) for number in range(13)]
    out = publish(tmp_path, examples, "--shard-format", shard_format, "--layout", "padded")
    windows = PackedWindows(out, out)
    (generation,) = (out / "generations").iterdir()
    rows = [sum(row.depth + 1 for row in window.rows) for window in read_windows(generation, "train")]
    with mock.patch.object(PackedWindows, "__getitem__", side_effect=AssertionError):
        costs = windows.attention_edges()
    assert costs.dtype == np.int64
    assert costs.tolist() == rows * 2
    assert len(set(rows)) > 5


@pytest.mark.parametrize("change", ["missing", "column", "windows"])
def test_damaged_costs_are_damage(tmp_path: Path, change: str) -> None:
    """A shard that is gone, has no such column or another number of windows is named; `rows` reads none of it."""
    out = publish(tmp_path, [chain(number, 5) for number in range(6)], "--layout", "padded")
    windows = PackedWindows(out)
    (shard,) = (out / "generations").rglob("shards/*.parquet")
    table = pq.read_table(shard)
    shard.unlink()
    if change == "column":
        pq.write_table(table.drop_columns(["attention_edges"]), shard)
    elif change == "windows":
        pq.write_table(table.slice(1), shard)
    expected = {
        "missing": "the file is missing",
        "column": "no column attention_edges",
        "windows": "5 windows; 6 as the manifest says",
    }
    with pytest.raises(DamageError, match=expected[change]) as raised:
        PackedLoader(windows, 2, rank=0, world=2, balance="cost")
    assert raised.value.where == str(shard)
    PackedLoader(windows, 2, rank=0, world=2)
    PackedLoader(windows, 2, balance="cost")  # a single process has nothing to deal


# -- loaders


@pytest.mark.parametrize(("world", "batch_size"), [(2, 2), (3, 4), (4, 3), (5, 2), (8, 4)])
def test_ranks_have_about_as_much(windows: PackedWindows, world: int, batch_size: int) -> None:
    """No step's most loaded rank has more than without, and over an epoch what it has too much shrinks by half."""
    costs = windows.attention_edges().tolist()
    excess = {}
    for balance in ("rows", "cost"):
        step_loads = loads(epoch_of(windows, world, batch_size=batch_size, seed=3, balance=balance), costs)
        excess[balance] = [max(ranks) - sum(ranks) / world for ranks in step_loads]
    assert all(after <= before for before, after in zip(excess["rows"], excess["cost"], strict=True))
    assert sum(excess["cost"]) < 0.5 * sum(excess["rows"])


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_step_has_the_same_windows(windows: PackedWindows, shuffle: bool) -> None:
    """Only who computes a window changes: a step's windows, and with them its gradient, are those without."""
    for epoch in range(2):
        found = []
        for balance in ("rows", "cost"):
            ranks = Ranks(windows, 3, batch_size=4, seed=9, shuffle=shuffle, balance=balance)
            for loader in ranks.loaders:
                loader.set_epoch(epoch)
            assert {len(loader) for loader in ranks.loaders} == {6}
            found.append([[numbers_of(batch) for batch in ranks.step()[1]] for _ in range(6)])
        plain, balanced = found
        for left, right in zip(plain, balanced, strict=True):
            assert Counter(at for rank in left for at in rank) == Counter(at for rank in right for at in rank)
            assert [len(rank) for rank in right] == [4, 4, 4], "fillers make every batch as large"
        assert plain != balanced
        numbers = [at for step in balanced for rank in step for at in rank]
        assert Counter(numbers) == Counter({**dict.fromkeys(range(61), 1), -1: 11})


def test_where_there_is_nothing_to_choose(windows: PackedWindows) -> None:
    """One rank, or one window a rank: the batches are those of `rows`, the smaller last one too."""
    for world, batch_size in ((1, 4), (3, 1)):
        with mock.patch.object(PackedWindows, "attention_edges", side_effect=AssertionError):
            balanced = epoch_of(windows, world, batch_size=batch_size, balance="cost")
        assert balanced == epoch_of(windows, world, batch_size=batch_size)


def test_every_rank_agrees_whatever_reads(windows: PackedWindows) -> None:
    """The order is a pure function of (seed, epoch): again, with workers, and on each rank by itself."""
    expected = epoch_of(windows, 3, batch_size=3, seed=2, balance="cost")
    assert expected == epoch_of(windows, 3, batch_size=3, seed=2, balance="cost", workers=1)
    assert expected != epoch_of(windows, 3, batch_size=3, seed=4, balance="cost")
    for rank in range(3):
        alone = PackedLoader(windows, 3, seed=2, rank=rank, world=3, balance="cost")
        assert [numbers_of(batch) for batch in alone] == [step[rank] for step in expected]


def test_resumes_exactly(windows: PackedWindows) -> None:
    """Stopped after any step, every rank goes on with the batches it would have had."""
    expected = epoch_of(windows, 3, batch_size=4, seed=1, balance="cost")
    ranks = Ranks(windows, 3, batch_size=4, seed=1, balance="cost")
    for step in range(1, len(expected)):
        ranks.step()
        resumed = Ranks(windows, 3, ranks.state(), batch_size=4, seed=1, balance="cost")
        left = [[numbers_of(batch) for batch in resumed.step()[1]] for _ in range(len(expected) - step)]
        assert left == expected[step:]


plans = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.sampled_from(["rows", "cost"]), st.integers(0, 9)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=20, deadline=None)
@given(plans)
def test_any_plan_uses_each_window_once(skewed: Path, plan: list[tuple[int, int, str, int]]) -> None:
    """Ranks, batch sizes and the balance may change at every stop: each window once an epoch, none on two ranks."""
    assert_each_once_of(PackedWindows(skewed), plan)


def test_losing_a_rank(windows: PackedWindows) -> None:
    """Three ranks, then two: each window once an epoch."""
    assert_each_once_of(windows, [(3, 4, "cost", 2), (2, 4, "cost", 9), (3, 3, "rows", 3), (2, 2, "cost", 20)])


def assert_each_once_of(windows: PackedWindows, plan: Sequence[tuple[int, int, str, int]]) -> None:
    """Run (world, batch size, balance, steps) after one another, each resumed, and count windows by epoch."""
    state: State | None = None
    seen: dict[int, Counter[int]] = {}
    for world, batch_size, balance, count in plan:
        ranks = Ranks(windows, world, state, batch_size=batch_size, seed=5, balance=balance)
        for _ in range(count):
            epoch, batches = ranks.step()
            numbers = [number for batch in batches for number in numbers_of(batch) if number >= 0]
            seen.setdefault(epoch, Counter()).update(numbers)
        state = json.loads(json.dumps(ranks.state()))
    if seen:
        assert_each_once(seen, len(windows))


def test_another_balance_is_refused(windows: PackedWindows) -> None:
    """A word that is none of the two says so."""
    with pytest.raises(UsageError, match="balance: edges; rows or cost"):
        PackedLoader(windows, balance="edges")  # type: ignore[arg-type]
