"""One preorder sweep gives every row its weight: example weight x supervision, summed in float64.

A per-depth accumulator holds what the examples below the current node add at each depth of its path.
Nodes are visited children first; an example adds its weight over its supervised runs when its last
node is visited, and a node takes and clears its own stretch. No difference of large sums is ever
formed, so nothing cancels, and the order of the additions is a function of the data alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DataError
from dagpack_cli.memory import Zeros, spans
from dagpack_cli.trie.order import Engine, uses_kernels

__all__ = ["check_weights", "sweep_blocks", "sweep_weights"]

Int64Array = npt.NDArray[np.int64]
Sum = TypeVar("Sum", np.float32, np.float64)

_BLOCK = 1 << 22  # sums at a time: 16 MiB


def sweep_weights(
    starts: Int64Array,
    ends: Int64Array,
    example_nodes: Int64Array,
    example_runs: Int64Array,
    run_offsets: Int64Array,
    example_weights: npt.NDArray[np.float64],
    *,
    dtype: type[Sum] = np.float32,  # type: ignore[assignment]  # what nearly every caller stores
    engine: Engine = "auto",
) -> npt.NDArray[Sum]:
    """Return the summed weight of every position of every node, node after node: rounded once, at the end.

    The nodes may be those of one trie or of many windows one after the other: all that matters is
    that children follow their parents and that nothing else stands between a node and its subtree.

    Args:
        starts: shape (num_nodes,), int64; depth of the node's first position.
        ends: shape (num_nodes,), int64, exclusive; ``ends == starts`` is allowed.
        example_nodes: shape (num_examples,), int64; the node below which no position of the example
            lies. Sorted ascending: this fixes the order of the additions.
        example_runs: shape (num_runs, 2), int64; half-open ranges of depths. Each lies on the path of
            the example's node.
        run_offsets: shape (num_examples + 1,), int64, into ``example_runs``.
        example_weights: shape (num_examples,), float64.
        dtype: of the result, float32 or float64; sums are always kept in float64.
        engine: ``numpy`` and ``numba`` give the same bits.

    Returns:
        shape (sum(ends - starts),), of ``dtype``; infinite where a sum is beyond it (see `check_weights`).

    Time O(nodes + positions + positions in runs); memory 8 bytes x the deepest path beyond the result.
    """
    sums = np.empty(int((ends - starts).sum()), dtype=dtype)
    examples = example_nodes, example_runs, run_offsets, example_weights
    sweep = _sweep(engine, len(sums), len(starts), len(example_nodes), example_runs)
    sweep(starts, ends, *examples, np.zeros(int(ends.max(initial=0)), dtype=np.float64), sums, 0)
    return sums


def sweep_blocks(
    starts: npt.NDArray[np.integer[Any]],
    ends: Int64Array,
    example_nodes: Int64Array,
    example_runs: Int64Array,
    run_offsets: Int64Array,
    example_weights: npt.NDArray[np.float64],
    *,
    dtype: type[Sum] = np.float32,  # type: ignore[assignment]
    engine: Engine = "auto",
    block: int = _BLOCK,
    zeros: Zeros = np.zeros,
) -> Iterator[tuple[int, npt.NDArray[Sum]]]:
    """Yield what `sweep_weights` returns in blocks, the last first: (position of its first sum, the sums).

    Args:
        starts: as `sweep_weights`, like all that follow but the last two; of any integer dtype.
        ends: likewise.
        example_nodes: likewise.
        example_runs: likewise.
        run_offsets: likewise.
        example_weights: likewise.
        dtype: likewise.
        engine: likewise.
        block: most sums at a time, in one buffer that the next block reuses.
        zeros: makes the arrays with an entry a node or an example.

    Memory 8 bytes x the deepest path beyond the buffer and what ``zeros`` makes.
    """
    if any(int((ends[span] - starts[span]).max()) > block for span in spans(len(starts))):
        starts, ends, example_nodes = _in_pieces(starts, ends, example_nodes, block, zeros)
    offsets = zeros(len(starts) + 1, np.int64)
    for span in spans(len(starts)):
        offsets[span.start + 1 : span.stop + 1] = offsets[span.start] + np.cumsum(ends[span] - starts[span])
    sweep = _sweep(engine, int(offsets[-1]), len(starts), len(example_nodes), example_runs)
    path = np.zeros(int(ends.max(initial=0)), dtype=np.float64)
    buffer = np.empty(min(block, int(offsets[-1])), dtype=dtype)
    last = len(starts)
    num_examples = len(example_nodes)
    while last:
        first = min(int(np.searchsorted(offsets, offsets[last] - block, side="left")), last - 1)
        low = int(np.searchsorted(example_nodes, first, side="left"))
        sums = buffer[: int(offsets[last] - offsets[first])]
        sweep(
            starts[first:last].astype(np.int64),
            ends[first:last],
            example_nodes[low:num_examples],
            example_runs,
            run_offsets[low : num_examples + 1],
            example_weights[low:num_examples],
            path,
            sums,
            first,
        )
        yield int(offsets[first]), sums
        last, num_examples = first, low


def _in_pieces(
    starts: npt.NDArray[np.integer[Any]], ends: Int64Array, example_nodes: Int64Array, block: int, zeros: Zeros
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return nodes none of which is longer than a block: stretches of a long node are a chain of nodes."""
    lasts = zeros(len(starts) + 1, np.int64)  # the number of pieces up to each node
    for span in spans(len(starts)):
        pieces = np.maximum(-(-(ends[span] - starts[span]) // block), 1)
        lasts[span.start + 1 : span.stop + 1] = lasts[span.start] + np.cumsum(pieces)
    cut_starts, cut_ends = zeros(int(lasts[-1]), np.int64), zeros(int(lasts[-1]), np.int64)
    for span in spans(len(starts)):
        low, high = int(lasts[span.start]), int(lasts[span.stop])
        bounds = lasts[span.start : span.stop + 1]
        pieces = np.diff(bounds)
        number = np.arange(low, high) - np.repeat(bounds[:-1], pieces)
        cut_starts[low:high] = np.repeat(starts[span], pieces) + number * block
        cut_ends[low:high] = np.minimum(cut_starts[low:high] + block, np.repeat(ends[span], pieces))
    nodes = zeros(len(example_nodes), np.int64)
    for span in spans(len(nodes)):
        nodes[span] = lasts[example_nodes[span] + 1] - 1
    return cut_starts, cut_ends, nodes


def _sweep(
    engine: Engine, num_sums: int, num_nodes: int, num_examples: int, example_runs: Int64Array
) -> Callable[..., None]:
    """Return the loop that fits the size: compiled, also where that has been waited for already, or plain."""
    covered = int(example_runs[:, 1].sum()) - int(example_runs[:, 0].sum())
    ready = engine == "auto" and "dagpack_cli.trie.kernels" in sys.modules
    if ready or uses_kernels(engine, num_sums + covered, num_nodes + num_examples):
        from dagpack_cli.trie import kernels

        return kernels.sweep_weights
    return _sweep_plainly


def _sweep_plainly(
    starts: Int64Array,
    ends: Int64Array,
    example_nodes: Int64Array,
    example_runs: Int64Array,
    run_offsets: Int64Array,
    example_weights: npt.NDArray[np.float64],
    path: npt.NDArray[np.float64],
    sums: npt.NDArray[np.float32] | npt.NDArray[np.float64],
    first: int,
) -> None:
    """Fill ``sums`` from its end; ``path`` is the accumulator, and keeps what belongs to the nodes before.

    The examples' nodes are numbered from ``first``.
    """
    bounds = run_offsets.tolist()
    runs = example_runs[bounds[0] : bounds[-1]].tolist()
    nodes = (example_nodes - first).tolist()
    weights = example_weights.tolist()
    example, stop = len(nodes), len(sums)
    for node in range(len(starts) - 1, -1, -1):
        while example and nodes[example - 1] == node:
            example -= 1
            for low, high in runs[bounds[example] - bounds[0] : bounds[example + 1] - bounds[0]]:
                path[low:high] += weights[example]
        start, end = int(starts[node]), int(ends[node])
        if end > start:
            with np.errstate(over="ignore"):
                sums[stop - (end - start) : stop] = path[start:end]
            path[start:end] = 0
            stop -= end - start


def check_weights(weights: npt.NDArray[np.float32]) -> None:
    """Raise `DataError` where a summed weight is beyond float32: one infinite weight poisons every loss."""
    if not np.isfinite(weights).all():
        raise DataError(
            "weights",
            "the sum for a pair is too large for float32",
            f"at most {float(np.finfo(np.float32).max):.3g}",
            hint="divide every weight by the same number",
        )
