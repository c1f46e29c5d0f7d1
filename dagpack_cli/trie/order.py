"""Sort token sequences: the narrow waist (order, lcp) that any sorter may produce.

Lexicographic order of the sequences *is* the depth-first order of their trie, so the order and the
length of the prefix each sequence shares with the one before it say everything about the trie.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

__all__ = ["LARGE_NUM_SEQUENCES", "LARGE_NUM_TOKENS", "Engine", "sort_sequences", "uses_kernels"]

Engine = Literal["auto", "numpy", "numba"]
LARGE_NUM_TOKENS = 20_000_000
LARGE_NUM_SEQUENCES = 100_000


def uses_kernels(engine: Engine, num_tokens: int, num_sequences: int) -> bool:
    """Tell whether a corpus is large enough to be worth waiting for a compiler."""
    if engine == "auto":
        return num_tokens > LARGE_NUM_TOKENS or num_sequences > LARGE_NUM_SEQUENCES
    return engine == "numba"


def sort_sequences(
    tokens: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], *, engine: Engine = "auto"
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the sequences in lexicographic order and what each shares with the one before it.

    Args:
        tokens: shape (num_tokens,), int32, non-negative; the sequences end to end.
        offsets: shape (num_sequences + 1,), int64; sequence i is ``tokens[offsets[i]:offsets[i + 1]]``.
        engine: ``numpy`` and ``numba`` give the same arrays; ``auto`` compiles only for large corpora.

    Returns:
        order: shape (num_sequences,), int64. A prefix comes before what continues it; equal
            sequences keep their order.
        lcp: shape (num_sequences,), int64, in tokens; ``lcp[0]`` is 0 and ``lcp[k]`` the length of the
            longest common prefix of ``order[k - 1]`` and ``order[k]``.

    ``numba`` inserts every sequence into a radix trie in one pass, O(num_tokens); ``numpy`` sorts the
    big-endian bytes, whose order is the tokens' order, and compares neighbours: O(num_tokens log n).

    >>> sort_sequences(np.array([5, 6, 5, 5, 6, 7], np.int32), np.array([0, 2, 3, 6]))
    (array([1, 0, 2]), array([0, 1, 2]))
    """
    if uses_kernels(engine, len(tokens), len(offsets) - 1):
        from dagpack_cli.trie import kernels

        return kernels.sort_sequences(tokens, offsets)
    bounds = offsets.tolist()
    data = tokens.astype(">i4").tobytes()
    keys = [data[4 * start : 4 * end] for start, end in pairwise(bounds)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    lcp = np.zeros(len(order), dtype=np.int64)
    for position in range(1, len(order)):
        before, after = order[position - 1], order[position]
        lcp[position] = _common_prefix(
            tokens[bounds[before] : bounds[before + 1]], tokens[bounds[after] : bounds[after + 1]]
        )
    return np.array(order, dtype=np.int64), lcp


def _common_prefix(left: npt.NDArray[np.int32], right: npt.NDArray[np.int32]) -> int:
    """Return the length of the common prefix, looking at twice as many tokens each time."""
    limit = min(len(left), len(right))
    start, step = 0, 64
    while start < limit:
        end = min(start + step, limit)
        differs = left[start:end] != right[start:end]
        first = int(differs.argmax())
        if differs[first]:
            return start + first
        start, step = end, step * 2
    return limit
