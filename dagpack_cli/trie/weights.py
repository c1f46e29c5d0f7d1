"""One preorder sweep gives every row its weight: example weight x supervision, summed in float64.

A per-depth accumulator holds what the examples below the current node add at each depth of its path.
Nodes are visited children first; an example adds its weight over its supervised runs when its last
node is visited, and a node takes and clears its own stretch. No difference of large sums is ever
formed, so nothing cancels, and the order of the additions is a function of the data alone.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DataError
from dagpack_cli.trie.order import Engine, uses_kernels

__all__ = ["check_weights", "sweep_weights"]

Int64Array = npt.NDArray[np.int64]
Sum = TypeVar("Sum", np.float32, np.float64)


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
    covered = int((example_runs[:, 1] - example_runs[:, 0]).sum()) if len(example_runs) else 0
    deepest = int(ends.max(initial=0))
    if uses_kernels(engine, len(sums) + covered, len(starts) + len(example_nodes)):
        from dagpack_cli.trie import kernels

        path = np.zeros(deepest, dtype=np.float64)
        kernels.sweep_weights(starts, ends, example_nodes, example_runs, run_offsets, example_weights, path, sums)
        return sums
    path = np.zeros(deepest, dtype=np.float64)
    runs = example_runs.tolist()
    bounds = run_offsets.tolist()
    nodes = example_nodes.tolist()
    weights = example_weights.tolist()
    example, stop = len(nodes), len(sums)
    for node in range(len(starts) - 1, -1, -1):
        while example and nodes[example - 1] == node:
            example -= 1
            for low, high in runs[bounds[example] : bounds[example + 1]]:
                path[low:high] += weights[example]
        start, end = int(starts[node]), int(ends[node])
        if end > start:
            with np.errstate(over="ignore"):
                sums[stop - (end - start) : stop] = path[start:end]
            path[start:end] = 0
            stop -= end - start
    return sums


def check_weights(weights: npt.NDArray[np.float32]) -> None:
    """Raise `DataError` where a summed weight is beyond float32: one infinite weight poisons every loss."""
    if not np.isfinite(weights).all():
        raise DataError(
            "weights",
            "the sum for a pair is too large for float32",
            f"at most {float(np.finfo(np.float32).max):.3g}",
            hint="divide every weight by the same number",
        )
