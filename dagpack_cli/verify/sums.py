"""Sums of weights along the runs of many paths of a preorder forest: exact, whatever their order.

A run of a path adds its weight at its last row and takes it away above its first; a row then has what stands
at or below it. Differences of rounded sums would lose what is small beside what is large, so weights are
taken apart into whole multiples of a few powers of two, whose sums integers hold exactly. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans

__all__ = ["RunSums", "Sums", "counted_below", "wrong_weights"]

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

_BITS = 31  # of a weight at a time: 2^32 of them still fit


@dataclass(frozen=True, slots=True)
class Sums:
    """What runs sum to at some rows.

    Attributes:
        numbers: shape (n,), int64; the runs that cross each row.
        totals: shape (n,), float64; their summed weight.
        slacks: shape (n,), float64; by how much float64 additions in any order may miss it.
    """

    numbers: Int64Array
    totals: Float64Array
    slacks: Float64Array


class RunSums:
    """The runs of many paths, to be summed at rows.

    Args:
        size: rows of the forest, in preorder.
        lasts: shape (num_runs,), int64; the last row of each run.
        above: shape (num_runs,), int64; the row above its first, -1 for none.
        weights: shape (num_runs,), float64; of each.
        zeros: makes the arrays with an entry a row: 8 bytes for the runs' number, and as many for each 31 bits
            that weights differ in.

    Time O(rows + runs).
    """

    def __init__(
        self, size: int, lasts: Int64Array, above: Int64Array, weights: Float64Array, zeros: Zeros = np.zeros
    ) -> None:
        self._size, self._lasts, self._above, self._zeros = size, lasts, above, zeros
        self._numbers = self._cumulated(lambda span: np.ones(span.stop - span.start, dtype=np.int64))
        lowest, highest = _extremes(weights)
        self._equal = lowest if lowest == highest else None
        self._limbs: list[tuple[int, Int64Array]] = []
        self._sizes: RunSums | None = None  # of the weights without their signs
        if self._equal is None:
            rest = zeros(len(weights), np.float64)
            for span in spans(len(rest)):
                rest[span] = weights[span]
            for exponent, limb in _limbs(rest):
                self._limbs.append((exponent, self._cumulated(limb)))
            if lowest < 0 < highest:
                for span in spans(len(rest)):
                    rest[span] = np.abs(weights[span])
                self._sizes = RunSums(size, lasts, above, rest, zeros)

    def at(self, rows: npt.NDArray[Any] | slice, ends: npt.NDArray[np.integer[Any]]) -> Sums:
        """Return the sums at some rows.

        Args:
            rows: shape (n,), or a range of them.
            ends: shape (n,); the exclusive end of the subtree of each.
        """
        numbers = self._numbers[ends] - self._numbers[:-1][rows]
        if self._equal is not None:
            totals = numbers * self._equal
        else:
            totals = np.zeros(len(numbers))
            for exponent, sums in self._limbs:
                totals += np.ldexp((sums[ends] - sums[:-1][rows]).astype(np.float64), exponent)
        sizes = np.abs(totals) if self._sizes is None else self._sizes.at(rows, ends).totals
        return Sums(numbers, totals, (numbers + 2) * 2.0**-52 * sizes)

    def _cumulated(self, amounts: Callable[[slice], Int64Array]) -> Int64Array:
        """Return what runs add before every row, and in all: shape (size + 1,), modulo 2^64."""
        found = self._zeros(self._size + 1, np.int64)
        for span in spans(len(self._lasts)):
            values, above = amounts(span), self._above[span]
            np.add.at(found, self._lasts[span] + 1, values)
            some = above >= 0
            np.subtract.at(found, above[some] + 1, values[some])
        _accumulate(found)
        return found


def _accumulate(values: Int64Array) -> None:
    total = np.zeros(1, dtype=np.int64)
    for span in spans(len(values)):
        values[span] = total + np.cumsum(values[span])
        total = values[span.stop - 1 : span.stop].copy()


def _extremes(values: Float64Array) -> tuple[float, float]:
    if len(values) == 0:
        return 0.0, 0.0
    blocks = [values[span] for span in spans(len(values))]
    return min(float(block.min()) for block in blocks), max(float(block.max()) for block in blocks)


def _limbs(rest: Float64Array) -> Iterator[tuple[int, Callable[[slice], Int64Array]]]:
    """Yield exponents and whole numbers whose sum over all exponents of number x 2^exponent is what ``rest`` is.

    ``rest`` is used up: a range of it that has been asked for is what is left to say.
    """
    while (largest := max((float(np.abs(rest[span]).max()) for span in spans(len(rest))), default=0.0)) > 0:
        exponent = int(np.frexp(largest)[1]) - _BITS

        def limb(span: slice, exponent: int = exponent) -> Int64Array:
            whole = np.rint(np.ldexp(rest[span], -exponent))
            rest[span] -= np.ldexp(whole, exponent)
            return whole.astype(np.int64)

        yield exponent, limb


def wrong_weights(weights: npt.NDArray[np.float32], sums: Sums) -> npt.NDArray[np.bool_]:
    """Return which stored weights are not what such a sum is when it is rounded to float32."""
    with np.errstate(over="ignore"):
        low = (sums.totals - sums.slacks).astype(np.float32)
        high = (sums.totals + sums.slacks).astype(np.float32)
    return np.asarray((weights < low) | (weights > high))


def counted_below(size: int, rows: Iterator[Int64Array], zeros: Zeros = np.zeros) -> Int64Array:
    """Return how many of some rows stand before every row of a forest, and in all: shape (size + 1,).

    Args:
        size: of the forest.
        rows: blocks of row numbers.
        zeros: makes the result.
    """
    found = zeros(size + 1, np.int64)
    for block in rows:
        np.add.at(found, block + 1, 1)
    _accumulate(found)
    return found
