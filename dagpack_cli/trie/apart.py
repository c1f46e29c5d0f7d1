"""The trie that another ``min_shared`` would have given, without its tokens: from the nodes alone.

What a sequence shares with its neighbour in sorted order is all a trie is made of, and the nodes say
it: sequences end at nodes in preorder, and the node behind an end begins at the depth down to which the
next sequence shares. A larger ``min_shared`` only takes shared prefixes away, so it can be
derived; what a trie has left apart it no longer knows, so a smaller one cannot.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dagpack_cli.trie.nodes import NodeTable, Trie, node_table
from dagpack_cli.trie.order import Engine, uses_kernels

__all__ = ["end_nodes_of", "part_prefixes"]

Int64Array = npt.NDArray[np.int64]


def end_nodes_of(trie: Trie) -> Int64Array:
    """Return the nodes at which an example ends, ascending: more pass through them than go on. O(nodes)."""
    below = trie.parents >= 0
    going_on = np.bincount(trie.parents[below], weights=trie.counts[below], minlength=trie.num_nodes)
    return np.flatnonzero(trie.counts > going_on)


def part_prefixes(trie: Trie, min_shared: int, *, engine: Engine = "auto") -> tuple[NodeTable, Int64Array]:
    """Return the nodes that `build_trie` gives the same sequences with this ``min_shared``, and where each end went.

    Args:
        trie: merged by prefix, with a ``min_shared`` that is not larger.
        min_shared: a shared prefix of fewer tokens is not merged.
        engine: never changes the result.

    Returns:
        the nodes, at most two for each distinct sequence, and an array of shape (num_nodes,), int64: for
        each node of ``trie`` at which an example ends, the new node at which it ends; -1 for others.

    Time and memory O(nodes), however many tokens are copied.

    >>> from dagpack_cli.trie import build_trie
    >>> trie, _ = build_trie(np.array([1, 2, 3, 1, 2, 4], np.int32), np.array([0, 3, 6]))
    >>> nodes, ends = part_prefixes(trie, 3)
    >>> nodes.parents.tolist(), nodes.offsets.tolist(), ends.tolist()
    ([-1, -1], [0, 3, 6], [-1, 0, 1])
    """
    ends = end_nodes_of(trie)
    lengths = trie.depths[ends].astype(np.int64) + np.diff(trie.offsets)[ends]
    shared = np.zeros(len(ends), dtype=np.int64)
    shared[1:] = trie.depths[ends[:-1] + 1]
    compiled = uses_kernels(engine, len(trie.tokens), len(ends))
    table = node_table(shared, lengths, min_shared=min_shared, compiled=compiled)
    moved = np.full(trie.num_nodes, -1, dtype=np.int64)
    moved[ends] = table.end_nodes
    return table, moved
