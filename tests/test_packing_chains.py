"""Layouts without merging: next fit, best fit decreasing, one each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import oracle_packing as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpack_cli.errors import TreeError
from dagpack_cli.packing import Engine, best_fit_decreasing, next_fit, one_each

ENGINES: tuple[Engine, ...] = ("numpy", "numba")
ITEMS = st.integers(1, 12).flatmap(
    lambda seq_len: st.tuples(st.lists(st.integers(1, seq_len), max_size=30), st.just(seq_len))
)


def array(lengths: list[int]) -> npt.NDArray[np.int64]:
    """Return lengths as an array that is of integers even when empty."""
    return np.array(lengths, dtype=np.int64)


@pytest.mark.parametrize("engine", ENGINES)
def test_next_fit_of_the_worked_example(engine: Engine) -> None:
    """The three examples of the design stand in windows 0, 0 and 1."""
    assert next_fit(array([3, 2, 4]), 6, engine=engine).tolist() == [0, 0, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_next_fit_after_an_exact_fill(engine: Engine) -> None:
    """A window filled to the last row is followed by the next, not by an empty one, and never revisited."""
    assert next_fit(array([3, 3, 6, 1, 6, 1]), 6, engine=engine).tolist() == [0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("engine", ENGINES)
def test_best_fit_takes_the_tightest_then_the_first_opened(engine: Engine) -> None:
    """The item of 2 goes beside 5, not 4; of two windows with equal room the first opened gets the item."""
    assert best_fit_decreasing(array([4, 5, 2]), 8, engine=engine).tolist() == [0, 1, 1]
    assert best_fit_decreasing(array([2, 5, 5, 1]), 7, engine=engine).tolist() == [0, 0, 1, 1]
    assert best_fit_decreasing(array([5, 1, 5]), 7, engine=engine).tolist() == [0, 0, 1]


@settings(max_examples=300, deadline=None)
@given(ITEMS)
def test_chains_match_their_oracles(items: tuple[list[int], int]) -> None:
    """Both engines give what lists of windows give, for any items."""
    lengths, seq_len = items
    for engine in ENGINES:
        nexts = next_fit(array(lengths), seq_len, engine=engine)
        assert nexts.tolist() == oracle.naive_next_fit(lengths, seq_len)
        best = best_fit_decreasing(array(lengths), seq_len, engine=engine)
        assert best.tolist() == oracle.naive_best_fit(lengths, seq_len)
        assert nexts.dtype == best.dtype == np.int64
    assert one_each(array(lengths), seq_len).tolist() == list(range(len(lengths)))


def test_engines_agree_on_many_items() -> None:
    """20,000 items of few or many lengths stand in the same windows whichever engine ran, within capacity."""
    rng = np.random.default_rng(5)
    for high in (40, 1000, 100_000):
        lengths = rng.integers(1, high, 20_000)
        for packer in (next_fit, best_fit_decreasing):
            plain, compiled = (packer(lengths, 100_000, engine=engine) for engine in ENGINES)
            assert np.array_equal(plain, compiled)
            assert np.bincount(plain, weights=lengths).max() <= 100_000


def test_many_items_take_no_quadratic_time() -> None:
    """300,000 items, equal or not, are packed in seconds."""
    rng = np.random.default_rng(6)
    best_fit_decreasing(array([1]), 8, engine="numba")  # compile outside the clock
    for lengths in (np.full(300_000, 300), rng.integers(1, 8192, 300_000), rng.integers(4097, 8192, 300_000)):
        best_fit_decreasing(lengths, 8192, engine="numba")
        next_fit(lengths, 8192, engine="numba")


@pytest.mark.parametrize("packer", [next_fit, best_fit_decreasing, one_each])
def test_chains_refuse(packer: object) -> None:
    """No rows, too many rows, or something that is not a length is an error that names the item."""
    assert callable(packer)
    for lengths, found in (([3, 0], "item 1 has 0 rows"), ([9], "item 0 has 9 rows"), ([1.5], "float64")):
        with pytest.raises(TreeError, match=found):
            packer(np.array(lengths), 8)


@given(st.lists(st.integers(1, 9), max_size=60), st.integers(1, 12))
def test_best_fit_range_by_range(lengths: list[int], range_items: int) -> None:
    """Every item is in a window that has room for it; whatever the ranges, free room is left in the last alone."""
    windows = [
        best_fit_decreasing(array(lengths), 9, engine=engine, range_items=range_items).tolist() for engine in ENGINES
    ]
    assert windows[0] == windows[1]
    assert sorted(set(windows[0])) == list(range(max(windows[0], default=-1) + 1))
    used = np.bincount(windows[0], weights=lengths) if lengths else np.zeros(0)
    assert (used <= 9).all()
    if range_items >= len(lengths):
        assert windows[0] == best_fit_decreasing(array(lengths), 9).tolist()


def test_small_ranges_fill_large_windows() -> None:
    """Ranges smaller than a window fill it together."""
    windows = best_fit_decreasing(np.full(1_000, 3), 90, range_items=7)
    assert int(windows.max()) + 1 == 34
