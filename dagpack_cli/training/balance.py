"""Which rank gets which window of a step, so that no rank waits long for the one with most to compute. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

__all__ = ["deal_step"]


def deal_step(costs: Sequence[int], world: int, places: int) -> list[list[int]]:
    """Return the windows of every rank in one step, by their place in it, ascending.

    Largest first, each goes to the rank with the least so far that has a free place; ties go to the
    earlier window and the lower rank. Where this leaves the most loaded rank no better off than dealing
    them out as they come, that is what is done: the most loaded rank never gets more than it would.

    Args:
        costs: of the step's windows, at most ``world * places`` of them.
        world: number of ranks.
        places: most windows of a rank.

    Returns:
        One list a rank; together they hold every number below ``len(costs)`` once.

    Time O(n log n) for n windows. This is Graham's longest processing time first, with places.

    >>> deal_step([9, 8, 2, 1], world=2, places=2)
    [[0, 3], [1, 2]]
    """
    as_they_come = [list(range(first, min(first + places, len(costs)))) for first in range(0, world * places, places)]
    ranks: list[list[int]] = [[] for _ in range(world)]
    open_ranks = [(0, rank) for rank in range(world)]  # (cost so far, rank): sorted, so a heap
    for window in sorted(range(len(costs)), key=lambda window: (-costs[window], window)):
        cost, rank = heappop(open_ranks)
        ranks[rank].append(window)
        if len(ranks[rank]) < places:
            heappush(open_ranks, (cost + costs[window], rank))
    if _most(ranks, costs) >= _most(as_they_come, costs):
        return as_they_come
    return [sorted(windows) for windows in ranks]


def _most(ranks: Sequence[Sequence[int]], costs: Sequence[int]) -> int:
    return max(sum(costs[window] for window in windows) for windows in ranks)
