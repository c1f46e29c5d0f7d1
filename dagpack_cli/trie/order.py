"""Sort token sequences: the narrow waist (order, lcp) that any sorter may produce.

Lexicographic order of the sequences *is* the depth-first order of their trie, so the order and the
length of the prefix each sequence shares with the one before it say everything about the trie.
Chunks of sequences are sorted by themselves, which bounds what a sort holds, and merged: heads are
compared only from where they are known to be equal.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros
from dagpack_cli.sequences import Sequences

__all__ = [
    "CHUNK_SEQUENCES",
    "LARGE_NUM_SEQUENCES",
    "LARGE_NUM_TOKENS",
    "SEQUENCE_BYTES",
    "Engine",
    "sort_sequences",
    "uses_kernels",
]

Int64Array = npt.NDArray[np.int64]
Engine = Literal["auto", "numpy", "numba"]
LARGE_NUM_TOKENS = 20_000_000
LARGE_NUM_SEQUENCES = 100_000
CHUNK_SEQUENCES = 1 << 22
"""Sequences sorted at a time unless a caller says less."""
SEQUENCE_BYTES = 320
"""What the sort of a chunk holds at most for each of its sequences, beside tokens and result."""

_MOST_RUNS = 32  # merged at a time: each output looks at every head


def uses_kernels(engine: Engine, num_tokens: int, num_sequences: int) -> bool:
    """Tell whether a corpus is large enough to be worth waiting for a compiler."""
    if engine == "auto":
        return num_tokens > LARGE_NUM_TOKENS or num_sequences > LARGE_NUM_SEQUENCES
    return engine == "numba"


def sort_sequences(
    sequences: Sequences,
    *,
    engine: Engine = "auto",
    chunk: int = CHUNK_SEQUENCES,
    workers: int = 1,
    zeros: Zeros = np.zeros,
) -> tuple[Int64Array, Int64Array]:
    """Return the sequences in lexicographic order and what each shares with the one before it.

    Args:
        sequences: n of them, wherever they lie.
        engine: ``numpy`` and ``numba`` give the same arrays; ``auto`` compiles only for large corpora.
        chunk: sequences sorted at a time, at least 1; never changes the result.
        workers: threads that sort chunks side by side.
        zeros: makes the results.

    Returns:
        order: shape (n,), int64. A prefix comes before what continues it; equal sequences keep
            their order.
        lcp: shape (n,), int64, in tokens; ``lcp[0]`` is 0 and ``lcp[k]`` the length of the longest
            common prefix of ``order[k - 1]`` and ``order[k]``.

    ``numba`` inserts a chunk's sequences into a radix trie in one pass, O(num_tokens); ``numpy`` sorts
    their big-endian bytes, whose order is the tokens' order, and compares neighbours: O(num_tokens
    log n). Runs merge in O(n x 32 x log_32 of their number), and tokens only where heads tie. Memory: 32
    bytes a sequence, and `SEQUENCE_BYTES` for each one of the chunks being sorted.

    >>> sort_sequences(Sequences.of(np.array([5, 6, 5, 5, 6, 7], np.int32), np.array([0, 2, 3, 6])))
    (array([1, 0, 2]), array([0, 1, 2]))
    """
    compiled = uses_kernels(engine, sequences.num_tokens, len(sequences))
    sort: Callable[[Sequences], tuple[Int64Array, Int64Array]] = _sort_bytes
    if compiled:
        from dagpack_cli.trie import kernels

        sort = kernels.sort_sequences
    order, lcp = zeros(len(sequences), np.int64), zeros(len(sequences), np.int64)
    bounds = [*range(0, len(sequences), chunk), len(sequences)]

    def sort_chunk(first: int, last: int) -> None:
        order[first:last], lcp[first:last] = sort(sequences.take(slice(first, last)))
        order[first:last] += first

    if workers > 1 and len(bounds) > 2 and compiled:  # the kernels let the others run meanwhile
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(sort_chunk, bounds[:-1], bounds[1:]))
    else:
        for first, last in pairwise(bounds):
            sort_chunk(first, last)
    while len(bounds) > 2:
        merged_order, merged_lcp = zeros(len(order), np.int64), zeros(len(order), np.int64)
        wide = [*bounds[:-1:_MOST_RUNS], bounds[-1]]
        for first, last in pairwise(wide):
            runs = np.array([bound for bound in bounds if first <= bound <= last], dtype=np.int64)
            _merge_runs(sequences, order, lcp, runs, merged_order, merged_lcp, compiled=compiled)
        order, lcp, bounds = merged_order, merged_lcp, wide
    return order, lcp


def _sort_bytes(sequences: Sequences) -> tuple[Int64Array, Int64Array]:
    """Sort the big-endian bytes of the sequences, whose order is the tokens' order, and compare neighbours."""
    keys = [sequences[number].astype(">i4").tobytes() for number in range(len(sequences))]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    lcp = np.zeros(len(order), dtype=np.int64)
    for position in range(1, len(order)):
        lcp[position] = _common_prefix(sequences[order[position - 1]], sequences[order[position]])
    return np.array(order, dtype=np.int64), lcp


def _merge_runs(
    sequences: Sequences,
    order: Int64Array,
    lcp: Int64Array,
    bounds: Int64Array,
    merged_order: Int64Array,
    merged_lcp: Int64Array,
    *,
    compiled: bool,
) -> None:
    """Merge consecutive sorted runs, ``bounds[i]:bounds[i + 1]`` each, into the same range of the results.

    Every head's common prefix with the last output is known: the head that shares most comes first, and
    only those that share equally much are compared, from there on (Ng and Kakehi, IEICE Trans. 2008).
    """
    if compiled:
        from dagpack_cli.trie import kernels

        kernels.merge_runs(
            sequences.tokens, sequences.starts, sequences.lengths, order, lcp, bounds, merged_order, merged_lcp
        )
        return
    heads = bounds[:-1].tolist()
    ends = bounds[1:].tolist()
    shared = [0] * len(heads)
    for position in range(int(bounds[0]), int(bounds[-1])):
        live = [run for run in range(len(heads)) if heads[run] < ends[run]]
        most = max(shared[run] for run in live)
        tied = [run for run in live if shared[run] == most]
        # Equal sequences tie to the end; of those the earliest run, which has the earlier ones, is first.
        best = min(tied, key=lambda run: (sequences[order[heads[run]]][most:].tolist(), run))
        merged_order[position], merged_lcp[position] = order[heads[best]], most
        winner = sequences[order[heads[best]]]
        for run in tied:
            if run != best:
                shared[run] = most + _common_prefix(sequences[order[heads[run]]][most:], winner[most:])
        heads[best] += 1
        if heads[best] < ends[best]:
            shared[best] = int(lcp[heads[best]])


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
