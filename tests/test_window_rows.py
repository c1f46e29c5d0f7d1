"""Rows of windows: the compiled way and the plain one fill the same columns, and both what a loop says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpack_cli.shards import window
from dagpack_cli.shards.window import Instances, WindowRows, fill_rows
from dagpack_cli.trie import Engine

ENGINES: tuple[Engine, ...] = ("numpy", "numba")

Stretch = tuple[int, int, int, int, int, int]  # parent choice, length, token start, first input, depth, segment


def instances_of(given_windows: list[list[Stretch]]) -> Instances:
    """Return instances of windows; what a choice means depends on how many stretches stand before, 0 is a root."""
    columns: dict[str, list[int]] = {
        name: [] for name in ("windows", "parents", "lengths", "token_starts", "first_inputs", "depths", "segments")
    }
    for number, stretch in enumerate(given_windows):
        base = len(columns["lengths"])
        for at, (choice, length, start, first_input, depth, segment) in enumerate(stretch):
            above = choice % (at + 1) - 1
            values = (number, base + above if above >= 0 else -1, length, start, first_input, depth, segment)
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
    num = len(columns["lengths"])
    arrays = {name: np.array(values, dtype=np.int64) for name, values in columns.items()}
    return Instances(**arrays, num_windows=len(given_windows), subtree_ends=np.arange(1, num + 1))


stretches = st.tuples(
    st.integers(0, 5), st.integers(0, 5), st.integers(0, 20), st.integers(0, 20), st.integers(0, 9), st.integers(0, 9)
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(stretches, max_size=6), max_size=4), st.data())
def test_both_ways_fill_what_a_loop_does(windows: list[list[Stretch]], data: st.DataObject) -> None:
    """Inputs, targets, depths, parents, segments and sums of weights, row by row."""
    instances = instances_of(windows)
    tokens = np.arange(100, 140, dtype=np.int32)
    num = int(instances.lengths.sum())
    drawn = st.lists(st.floats(-4, 4, width=32, allow_subnormal=False), min_size=num, max_size=num)
    weights = np.array(data.draw(drawn), dtype=np.float32)
    expected: list[tuple[int, ...]] = []
    sums, starts = [0.0] * len(windows), {}
    for at in range(len(instances.lengths)):
        owner, length = int(instances.windows[at]), int(instances.lengths[at])
        before = sum(1 for row in expected if row[0] == owner)
        starts[at] = before
        above = int(instances.parents[at])
        last = starts[above] + int(instances.lengths[above]) - 1 if above >= 0 and instances.lengths[above] else -1
        for row in range(length):
            target = int(tokens[instances.token_starts[at] + row])
            source = (
                int(tokens[instances.token_starts[at] + row - 1]) if row else int(tokens[instances.first_inputs[at]])
            )
            parent = before + row - 1 if row else last
            sums[owner] += float(weights[len(expected)])
            expected.append(
                (owner, source, target, int(instances.depths[at]) + row, parent, int(instances.segments[at]))
            )
    for engine in ENGINES:
        rows = fill_rows(
            instances,
            tokens,
            counts=np.ones(num, dtype=np.int32),
            weights=weights,
            owned=np.ones(num, dtype=bool),
            num_supervised=np.zeros(len(windows), dtype=np.int64),
            engine=engine,
        )
        assert list(listed(rows)) == expected
        assert rows.weight_sum.tolist() == sums
        assert all(
            getattr(rows, name).dtype == np.int32 for name in ("inputs", "targets", "depths", "parents", "segments")
        )


def listed(rows: WindowRows) -> list[tuple[int, ...]]:
    """Return window, input, target, depth, parent and segment of every row."""
    owners = np.repeat(np.arange(rows.num_windows), np.diff(rows.row_offsets))
    columns = (owners, rows.inputs, rows.targets, rows.depths, rows.parents, rows.segments)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(("engine", "compiled"), [("auto", 3), ("numpy", 0), ("numba", 4)])
def test_large_batches_are_compiled(engine: Engine, compiled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From some rows on ``auto`` compiles."""
    found: list[int] = []

    def count(*given: Any) -> Any:
        found.append(len(given[3]))
        return window._fill_plain(*given)

    monkeypatch.setattr(window, "_COMPILED_ROWS", 3)
    monkeypatch.setattr(window, "_fill_compiled", count)
    for length in (1, 3):
        fill_rows(
            instances_of([[(0, length, 0, 0, 0, 0)]]),
            np.arange(9, dtype=np.int32),
            counts=np.ones(length, dtype=np.int32),
            weights=np.ones(length, dtype=np.float32),
            owned=np.ones(length, dtype=bool),
            num_supervised=np.zeros(1, dtype=np.int64),
            engine=engine,
        )
    assert sum(found) == compiled
