"""What trainers do with the sequences of a batch: each goes into the first window with room for what it adds.

`dagpack_cli.packing.first_fit` places whole leaves; here every sequence is placed when it comes, be it
a part of a longer one or one that was there before, so that a session's turns may end up in several windows.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing import Forest

__all__ = ["place_arrivals"]


def place_arrivals(forest: Forest, nodes: npt.NDArray[np.int64], seq_len: int) -> tuple[int, int]:
    """Return how many windows sequences open that arrive one by one, and the rows of all windows.

    Args:
        forest: n nodes; every root path has at most ``seq_len`` rows.
        nodes: where each sequence ends, in the order of arrival.
        seq_len: most rows of a window.

    Time O(sequences x windows) unless paths are deep, one by one: for thousands, not for millions.
    """
    parents = forest.parents.tolist()
    bottoms = (forest.depths + forest.lengths).tolist()
    used: list[int] = []
    held: list[set[int]] = []

    def path(node: int, stop: set[int]) -> Iterable[int]:
        while node >= 0 and node not in stop:
            yield node
            node = parents[node]

    for node in nodes.tolist():
        for window, room in enumerate(seq_len - rows for rows in used):
            missing = list(path(node, held[window]))
            # A window holds all above what it holds, so one subtraction is the rows of all that is missing.
            above = parents[missing[-1]] if missing else -1
            added = bottoms[node] - (bottoms[above] if above >= 0 else 0) if missing else 0
            if added <= room:
                break
        else:
            window, added = len(used), bottoms[node]
            used.append(0)
            held.append(set())
            missing = list(path(node, set()))
        used[window] += added
        held[window].update(missing)
    return len(used), sum(used)
