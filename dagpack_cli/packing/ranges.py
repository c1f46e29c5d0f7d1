"""A forest too large to pack at once, as ranges of its nodes in preorder, each with the paths above it. Pure.

A range begins behind a leaf, so all that is above its first node lies above a leaf of the range before too, and
the leaves of a range are leaves of the forest. Where ranges begin depends on the forest alone, never on
the machine: about equal, each beginning where little lies above.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing.engine import Engine
from dagpack_cli.packing.forest import Forest
from dagpack_cli.packing.placement import climb

__all__ = ["RANGE_NODES", "Range", "range_starts", "take_range"]

Int64s = npt.NDArray[np.int64]

RANGE_NODES = 1 << 18
"""Nodes of a range, about: packing holds some 260 bytes for each, and more in a range gain nothing."""

_SLACK = 16  # a range begins within this part of its length of where equal ones would


@dataclass(frozen=True, slots=True)
class Range:
    """Some nodes of a forest with all above them, a forest themselves.

    Attributes:
        forest: n nodes.
        nodes: shape (n,), int64; which nodes of the whole forest they are, ascending.
    """

    forest: Forest
    nodes: Int64s


def range_starts(forest: Forest, range_nodes: int = RANGE_NODES) -> list[int]:
    """Return the first node of every range, and behind them the number of nodes.

    Ranges have at most about 17/16 of ``range_nodes`` nodes, more where a path without a leaf is as long.
    """
    num = forest.num_nodes
    wanted = max(-(-num // range_nodes), 1)
    size = max(num // wanted, 1)
    reach = size // _SLACK
    starts = [0]
    for number in range(1, wanted):
        ideal = number * size
        low, high = max(ideal - reach, starts[-1] + 1), min(ideal + reach + 1, num)
        while low < high:
            nodes = np.arange(low, high)
            behind_leaf = np.flatnonzero(forest.parents[low:high] != nodes - 1)
            if len(behind_leaf):
                # The one with the fewest rows above it; of several, the nearest.
                rows = forest.depths[low:high][behind_leaf]
                best = behind_leaf[np.lexsort((np.abs(nodes[behind_leaf] - ideal), rows))[0]]
                starts.append(low + int(best))
                break
            low, high = high, min(2 * high - low, num)
    return [*starts, num]


def take_range(forest: Forest, first: int, last: int, more: Int64s | None = None, *, engine: Engine = "auto") -> Range:
    """Return the nodes ``[first, last)`` and all above them.

    Args:
        forest: the whole one; its columns may lie in files.
        first: node that begins a range, see `range_starts`.
        last: node behind the range.
        more: shape (k,), int64; leaves before ``first``, ascending, that come along with all above them.
        engine: see `dagpack_cli.packing.engine`.

    Time and memory O(nodes of the result).
    """
    starts = np.zeros(0, dtype=np.int64) if more is None else more
    if first < last and forest.parents[first] >= 0:
        starts = np.union1d(starts, [np.int64(forest.parents[first])])
    # What is above a later start and not above an earlier one.
    stops = np.concatenate(([-1], starts[:-1]))[: len(starts)]
    above = climb(forest, starts, stops, engine=engine)[1].astype(np.int64) if len(starts) else starts
    nodes = np.concatenate((above, np.arange(first, last)))
    parents = forest.parents[nodes].astype(np.int64)
    inside = np.where(parents >= first, parents - first + len(above), np.searchsorted(above, parents))
    return Range(Forest.from_parents(np.where(parents >= 0, inside, -1), forest.lengths[nodes], engine=engine), nodes)
