"""The tokens of a trie with which trees of rows begin.

A tree begins at depth 0, and where long examples are split at every multiple of the length of a window: at a
token that is a target of the tree above it, and only an input of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.trie import Trie

__all__ = ["Roots", "levels_of", "roots_of"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Roots:
    """Where trees may begin, in trie order.

    Attributes:
        positions: shape (num_roots,), int64, ascending; the token of the trie.
        levels: shape (num_roots,), int32; its depth in lengths of a window.
        period: that length, 0 where nothing is split.
    """

    positions: Int64Array
    levels: npt.NDArray[np.int32]
    period: int

    def depths(self, numbers: Int64Array) -> Int64Array:
        """Return the depth in the trie of some of them."""
        return self.levels[numbers].astype(np.int64) * self.period


def levels_of(targets: Int64Array, period: int) -> Int64Array:
    """Return the level of the tree in which a target of some depth, from 1 on, is a row."""
    return (targets - 1) // period if period else np.zeros_like(targets)


def roots_of(trie: Trie, period: int, zeros: Zeros = np.zeros) -> Roots:
    """Return the tokens of a trie at depth 0 and, but for a period of 0, at its multiples. O(nodes + roots)."""
    num = 0
    for span in spans(trie.num_nodes):
        num += int(_numbers(trie, span, period)[1].sum())
    positions, levels = zeros(num, np.int64), zeros(num, np.int32)
    done = 0
    for span in spans(trie.num_nodes):
        firsts, counts = _numbers(trie, span, period)
        last = done + int(counts.sum())
        numbers = np.arange(last - done) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
        shifts = np.repeat(trie.offsets[:-1][span] - trie.depths[span], counts)
        positions[done:last], levels[done:last] = numbers * period + shifts, numbers
        done = last
    return Roots(positions, levels, period)


def _numbers(trie: Trie, span: slice, period: int) -> tuple[Int64Array, Int64Array]:
    """Return the first multiple of the period in each node, and how many it holds."""
    starts = trie.depths[span].astype(np.int64)
    if not period:
        return np.zeros_like(starts), (starts == 0).astype(np.int64)
    stops = starts + np.diff(trie.offsets[span.start : span.stop + 1])
    firsts = -(-starts // period)
    return firsts, -(-stops // period) - firsts
