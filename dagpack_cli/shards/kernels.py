"""The compiled loop of `window.fill_rows`; its plain twin says what it computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit  # type: ignore[import-untyped, unused-ignore]

__all__ = ["fill_columns"]

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator, unused-ignore]
def fill_columns(
    tokens: Int32s,
    stretches: tuple[Int64s, Int64s, Int64s, Int64s, Int64s, Int64s, Int64s],
    row_offsets: Int64s,
    weights: npt.NDArray[np.float32],
    columns: tuple[Int32s, Int32s, Int32s, Int32s, Int32s],
    weight_sums: npt.NDArray[np.float64],
) -> Any:
    """Fill inputs, targets, depths, parents and segments, and the sum of every window's weights. O(rows).

    Args:
        tokens: of the trie.
        stretches: windows, parents, lengths, token_starts, first_inputs, depths and segments of `Instances`.
        row_offsets: shape (num_windows + 1,), int64; of the windows.
        weights: shape (num_rows,), float32.
        columns: each of shape (num_rows,).
        weight_sums: shape (num_windows,), zeros.
    """
    windows, parents, lengths, token_starts, first_inputs, depths, segments = stretches
    inputs, targets, row_depths, row_parents, row_segments = columns
    starts = np.zeros(len(lengths), dtype=np.int64)  # of each stretch, in its window
    first = 0
    for at in range(len(lengths)):
        length, window = lengths[at], windows[at]
        starts[at] = first - row_offsets[window]
        if length == 0:
            continue
        last, start = first + length, token_starts[at]
        targets[first:last] = tokens[start : start + length]
        inputs[first] = tokens[first_inputs[at]]
        inputs[first + 1 : last] = tokens[start : start + length - 1]
        row_segments[first:last] = segments[at]
        for row in range(length):
            row_depths[first + row] = depths[at] + row
        for row in range(length):
            row_parents[first + row] = starts[at] + row - 1
        above = parents[at]
        row_parents[first] = starts[above] + lengths[above] - 1 if above >= 0 and lengths[above] > 0 else -1
        for row in range(first, last):
            weight_sums[window] += np.float64(weights[row])
        first = last
