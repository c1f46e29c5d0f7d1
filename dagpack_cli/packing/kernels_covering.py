"""The compiled loops of the covering bound. Their plain twins say what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from dagpack_cli.packing.kernels import Int64s, Number, kernel

__all__ = ["fill_tables", "project"]

_NEVER = -(2**62)


@kernel
def fill_tables(tables: Any, prices: Int64s) -> None:
    """Fill the tables of `dearest_window`. Loops in place, so that each is a vector loop."""
    lengths, ends, levels, rooms = tables.lengths, tables.ends, tables.levels, tables.rooms
    take = np.empty(tables.free.shape[1], dtype=np.int64)
    for node in range(len(lengths) - 1, -1, -1):
        length, room, price, level = lengths[node], rooms[node], prices[node], levels[node]
        behind = levels[ends[node]]
        free, bound, taken = tables.free[level], tables.bound[level], tables.taken[node]
        if behind != level:
            free[: room + 1] = tables.free[behind, : room + 1]
            bound[: room + 1] = _NEVER
        below = tables.free[behind] if ends[node] == node + 1 else tables.bound[level + 1]
        for left in range(room + 1 - length):
            take[left] = below[left] + price
        taken[:length] = 0
        for left in range(room + 1 - length):
            worth, without, must = take[left], free[length + left], bound[length + left]
            taken[length + left] = np.uint8(worth > without) | np.uint8(worth > must) << 1
            free[length + left] = max(worth, without)
            bound[length + left] = max(worth, must)


@kernel
def project(state: Any, starts: Int64s, items: Int64s, num: Number, limits: tuple[int, int, int, int, int]) -> Number:
    """Return how many items the sweeps of `covering_bound._project` looked at."""
    prices, needs, shifts, steps, weights, rise = state
    unit, goal, tolerance, most_sweeps, scale = limits
    total_needs = needs.sum()
    for sweep in range(most_sweeps):
        worst = np.int64(0)
        for window in range(num):
            low, high = starts[window], starts[window + 1]
            excess = np.int64(-unit)
            for at in range(low, high):
                excess += prices[items[at]]
            worst = max(worst, excess)
            change = max(excess * scale // steps[window], -weights[window])
            if change != 0:
                weights[window] += change
                for at in range(low, high):
                    prices[items[at]] -= change // needs[items[at]]
        value = np.int64(0)
        for row in range(len(prices)):
            change = max(-prices[row], -shifts[row])
            shifts[row] += change
            prices[row] = min(prices[row] + change, 2 * unit)
            value += needs[row] * prices[row]
        change = max((goal - value) // total_needs, -rise[0])
        rise[0] += change
        if change != 0:
            for row in range(len(prices)):
                prices[row] += change
        if worst <= tolerance and change <= tolerance:
            return (sweep + 1) * starts[num]
    return most_sweeps * starts[num]
