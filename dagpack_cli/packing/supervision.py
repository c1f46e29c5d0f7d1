"""Which pairs of which examples train: runs of supervised targets, clipped and counted. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans

__all__ = ["Supervision"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """The supervised runs of many examples; an example of weight 0 has none.

    Attributes:
        runs: shape (num_runs, 2), int64; half-open ranges of targets, sorted and disjoint in an example.
        run_offsets: shape (num_examples + 1,), int64, into ``runs``.
        weights: shape (num_examples,), float64.
    """

    runs: Int64Array
    run_offsets: Int64Array
    weights: npt.NDArray[np.float64]

    @classmethod
    def of(
        cls, runs: npt.NDArray[np.int32] | Int64Array, run_offsets: Int64Array, weights: npt.NDArray[np.float64]
    ) -> Supervision:
        """Return the supervision of examples given all their runs: those of weight 0 are left out."""
        sizes = np.diff(run_offsets)
        trains = weights != 0
        kept = np.repeat(trains, sizes)
        offsets = np.concatenate(([0], np.cumsum(np.where(trains, sizes, 0))))
        return cls(runs=np.asarray(runs, dtype=np.int64).reshape(-1, 2)[kept], run_offsets=offsets, weights=weights)

    def last_before(self, examples: Int64Array, lows: Int64Array, highs: Int64Array) -> Int64Array:
        """Return, for ranges of targets, the exclusive end of the last supervised one in each, or its low end.

        Args:
            examples: shape (n,), int64; the example of each range.
            lows: shape (n,), int64.
            highs: shape (n,), int64, exclusive.
        """
        _, stops = self._runs_within(examples, lows, highs)
        found = stops > self.run_offsets[examples]
        ends = np.minimum(self.runs[np.maximum(stops - 1, 0), 1], highs) if len(self.runs) else lows
        return np.where(found, np.maximum(ends, lows), lows)

    def count(self, examples: Int64Array, lows: Int64Array, highs: Int64Array) -> Int64Array:
        """Return how many targets of each half-open range are supervised; arguments as `last_before`."""
        runs, offsets = self.clip(examples, lows, highs)
        sums = np.concatenate(([0], np.cumsum(runs[:, 1] - runs[:, 0])))
        return np.asarray(sums[offsets[1:]] - sums[offsets[:-1]], dtype=np.int64)

    def clip(self, examples: Int64Array, lows: Int64Array, highs: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the runs of each example inside a half-open range of targets.

        Returns:
            runs of shape (m, 2), int64, and offsets of shape (n + 1,), int64, into them.
        """
        firsts, stops = self._runs_within(examples, lows, highs)
        sizes = stops - firsts
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        index = np.arange(int(offsets[-1])) + np.repeat(firsts - offsets[:-1], sizes)
        runs = self.runs[index]
        clipped = np.stack(
            (np.maximum(runs[:, 0], np.repeat(lows, sizes)), np.minimum(runs[:, 1], np.repeat(highs, sizes))), axis=1
        )
        return clipped, offsets

    def clip_all(
        self, examples: Int64Array, lows: Int64Array, highs: Int64Array, zeros: Zeros
    ) -> tuple[Int64Array, Int64Array]:
        """Return what `clip` does, some examples at a time; ``zeros`` makes the two arrays."""
        offsets = zeros(len(examples) + 1, np.int64)
        for span in spans(len(examples)):
            firsts, stops = self._runs_within(examples[span], lows[span], highs[span])
            offsets[span.start + 1 : span.stop + 1] = offsets[span.start] + np.cumsum(stops - firsts)
        runs = zeros((int(offsets[-1]), 2), np.int64)
        for span in spans(len(examples)):
            some, _ = self.clip(examples[span], lows[span], highs[span])
            runs[int(offsets[span.start]) : int(offsets[span.stop])] = some
        return runs, offsets

    def _runs_within(self, examples: Int64Array, lows: Int64Array, highs: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the half-open range of run indices that meet each range of targets."""
        firsts, stops = self.run_offsets[examples], self.run_offsets[examples + 1]
        if len(self.runs) == 0:
            return firsts, stops
        # Nearly always a range meets all of its example's runs; only the others are searched for.
        inner_first = self.runs[np.minimum(firsts, len(self.runs) - 1), 1] > lows
        inner_last = self.runs[np.maximum(stops - 1, 0), 0] < highs
        hard = np.flatnonzero((stops > firsts) & ~(inner_first & inner_last))
        if len(hard) == 0:
            return firsts, stops
        bounds = firsts[hard], stops[hard]
        firsts[hard] = _bisect(self.runs[:, 1], *bounds, lows[hard] + 1)
        stops[hard] = np.maximum(_bisect(self.runs[:, 0], *bounds, highs[hard]), firsts[hard])
        return firsts, stops


def _bisect(values: Int64Array, firsts: Int64Array, stops: Int64Array, wanted: Int64Array) -> Int64Array:
    """Return, in each range of ascending values, the index of the first that is at least what is wanted."""
    low, high = firsts.copy(), stops.copy()
    while (open_ranges := np.flatnonzero(low < high)).size:
        middle = (low[open_ranges] + high[open_ranges]) // 2
        below = values[middle] < wanted[open_ranges]
        low[open_ranges[below]] = middle[below] + 1
        high[open_ranges[~below]] = middle[~below]
    return low
