"""Supervised runs, clipped, counted and searched, against sets of targets."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import numpy.typing as npt
from hypothesis import example, given
from hypothesis import strategies as st

from dagpack_cli.packing.supervision import Supervision

Int64Array = npt.NDArray[np.int64]
Range = tuple[int, int, int]
LONGEST = 14

targets = st.sets(st.integers(0, LONGEST - 1)).map(frozenset)
weights = st.sampled_from([1.0, 1.0, 2.5, -1.0, 0.0])
corpora = st.lists(st.tuples(targets, weights), min_size=1, max_size=6)


def runs_of(trained: frozenset[int]) -> list[tuple[int, int]]:
    """Return the maximal half-open runs of a set of targets."""
    found = []
    for _, group in groupby(enumerate(sorted(trained)), key=lambda pair: pair[1] - pair[0]):
        members = [target for _, target in group]
        found.append((members[0], members[-1] + 1))
    return found


def supervision_of(corpus: list[tuple[frozenset[int], float]]) -> Supervision:
    """Return the supervision of examples given as sets of targets and weights."""
    runs = [runs_of(trained) for trained, _ in corpus]
    flat = np.array([run for some in runs for run in some], dtype=np.int32).reshape(-1, 2)
    offsets = np.cumsum([0] + [len(some) for some in runs]).astype(np.int64)
    return Supervision.of(flat, offsets, np.array([weight for _, weight in corpus]))


def columns(ranges: list[Range]) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return (examples, lows, highs) of ranges given as triples."""
    table = np.array(ranges, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def trained_in(corpus: list[tuple[frozenset[int], float]], one: Range) -> list[int]:
    """Return the targets of a range that train, ascending; an example of weight 0 has none."""
    owner, low, high = one
    trained, weight = corpus[owner]
    return [target for target in range(low, high) if weight != 0 and target in trained]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[tuple[frozenset[int], float]], list[Range]]:
    """Return examples, and ranges of their targets that begin and end anywhere, inside runs too."""
    corpus = draw(corpora)
    bound = st.tuples(st.integers(0, LONGEST + 2), st.integers(0, LONGEST + 2)).map(sorted)
    one = st.tuples(st.integers(0, len(corpus) - 1), bound).map(lambda pair: (pair[0], pair[1][0], pair[1][1]))
    return corpus, draw(st.lists(one, max_size=9))


@given(corpus=corpora)
def test_examples_of_weight_zero_have_no_runs(corpus: list[tuple[frozenset[int], float]]) -> None:
    """What is kept of all runs is exactly the runs of examples whose weight is not 0, in order."""
    found = supervision_of(corpus)
    for number, (trained, weight) in enumerate(corpus):
        low, high = found.run_offsets[number : number + 2].tolist()
        assert [tuple(run) for run in found.runs[low:high].tolist()] == (runs_of(trained) if weight else [])
    assert found.run_offsets[-1] == len(found.runs)


@given(case=cases())
def test_counts_are_those_of_sets(case: tuple[list[tuple[frozenset[int], float]], list[Range]]) -> None:
    """A range has as many supervised targets as its set has, whatever it cuts."""
    corpus, ranges = case
    assert supervision_of(corpus).count(*columns(ranges)).tolist() == [len(trained_in(corpus, one)) for one in ranges]


@given(case=cases())
def test_last_before_is_that_of_sets(case: tuple[list[tuple[frozenset[int], float]], list[Range]]) -> None:
    """The last supervised target of a range ends it; without one the range ends where it begins."""
    corpus, ranges = case
    expected = [max(trained_in(corpus, one), default=one[1] - 1) + 1 for one in ranges]
    assert supervision_of(corpus).last_before(*columns(ranges)).tolist() == expected


@example(case=([(frozenset({2, 3}), 1.0)], [(0, 4, 6), (0, 0, 2), (0, 3, 5), (0, 1, 3)]))
@given(case=cases())
def test_clipped_runs_hold_the_targets_of_sets(case: tuple[list[tuple[frozenset[int], float]], list[Range]]) -> None:
    """Clipped runs of a range are the maximal runs of its set, each inside the range."""
    corpus, ranges = case
    ranges = [one for one in ranges if one[2] > one[1]]
    runs, offsets = supervision_of(corpus).clip(*columns(ranges))
    assert len(offsets) == len(ranges) + 1
    for number, one in enumerate(ranges):
        found = [tuple(run) for run in runs[offsets[number] : offsets[number + 1]].tolist()]
        assert found == runs_of(frozenset(trained_in(corpus, one)))


@given(case=cases())
def test_arguments_are_left_as_they_are(case: tuple[list[tuple[frozenset[int], float]], list[Range]]) -> None:
    """Searching changes neither the supervision nor the ranges asked for, so asking twice gives the same."""
    corpus, ranges = case
    supervision = supervision_of(corpus)
    asked = columns(ranges)
    copies = [column.copy() for column in (*asked, supervision.runs, supervision.run_offsets)]
    first = supervision.count(*asked).tolist()
    assert supervision.count(*asked).tolist() == first
    for column, copy in zip((*asked, supervision.runs, supervision.run_offsets), copies, strict=True):
        assert np.array_equal(column, copy)
