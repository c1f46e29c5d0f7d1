"""From (order, lcp) to the canonical preorder node table of the radix trie.

Sequence k in sorted order adds the tokens ``[lcp[k], length[k])`` to the trie; written one after the
other these *segments* are the trie's tokens in preorder. A later sequence that leaves the path inside
an earlier segment cuts it there; the pieces are the radix nodes, already in preorder.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagpack_cli.preorder import subtree_ends
from dagpack_cli.trie.order import Engine, sort_sequences, uses_kernels

__all__ = ["Trie", "build_trie", "narrow"]

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trie:
    """A radix trie in preorder, children ordered by token; one array a column.

    Where short shared prefixes are not merged, several roots in a row may have the same first token.

    Attributes:
        tokens: shape (num_tokens,), int32; each distinct token once.
        weights: shape (num_tokens,), float32; summed example weight x supervision of the token as a
            target. 0 where nothing supervises it.
        offsets: shape (num_nodes + 1,), int64; node v holds ``tokens[offsets[v]:offsets[v + 1]]``.
        parents: shape (num_nodes,), int32; -1 for a root.
        depths: shape (num_nodes,), int32; tokens above the node.
        counts: shape (num_nodes,), int32; examples that pass through the node (merge state:
            crossings of each of its transitions).
        subtree_ends: shape (num_nodes,), int32; exclusive.
        supervised: shape (num_tokens,), int32, merge state only, else empty: supervised crossings.

    An example always ends at a node's end. The rows of a trie are its tokens minus its roots.
    """

    tokens: Int32Array
    weights: npt.NDArray[np.float32]
    offsets: Int64Array
    parents: Int32Array
    depths: Int32Array
    counts: Int32Array
    subtree_ends: Int32Array
    supervised: Int32Array

    @property
    def num_nodes(self) -> int:
        """Number of radix nodes."""
        return len(self.parents)

    @property
    def num_roots(self) -> int:
        """Number of trees: of distinct first tokens, where every shared prefix is merged."""
        return int(np.count_nonzero(self.parents == -1))

    @property
    def num_rows(self) -> int:
        """Number of distinct (context, next token) pairs."""
        return len(self.tokens) - self.num_roots

    def path(self, node: int) -> list[int]:
        """Return the nodes from the root to ``node``, both included."""
        nodes = [node]
        while (node := int(self.parents[node])) >= 0:
            nodes.append(node)
        return nodes[::-1]


def build_trie(
    tokens: Int32Array, offsets: Int64Array, *, min_shared: int = 1, engine: Engine = "auto"
) -> tuple[Trie, npt.NDArray[np.int64]]:
    """Return the trie of the sequences (weights still 0) and the node at which each one ends.

    Args:
        tokens: shape (num_tokens,), int32, non-negative.
        offsets: shape (num_sequences + 1,), int64; no sequence is empty.
        min_shared: a shared prefix of fewer tokens is not merged: each side keeps its own copy, in
            trees of their own. Equal sequences are one all the same.
        engine: as `sort_sequences`; the result is the same.

    Returns:
        the trie, and end nodes of shape (num_sequences,), int64.

    Time O(num_tokens + num_sequences log num_sequences); memory beyond the result is O(num_sequences).

    >>> trie, ends = build_trie(np.array([1, 2, 3, 1, 2, 4], np.int32), np.array([0, 3, 6]))
    >>> trie.tokens.tolist(), trie.parents.tolist(), trie.counts.tolist(), ends.tolist()
    ([1, 2, 3, 4], [-1, 0, 0], [2, 1, 1], [1, 2])
    """
    order, lcp = sort_sequences(tokens, offsets, engine=engine)
    compiled = uses_kernels(engine, len(tokens), len(order))
    lengths = np.diff(offsets)[order]
    lcp = np.where((lcp < min_shared) & (lcp < lengths), 0, lcp)
    owners = _segment_owners(lcp, lengths, compiled=compiled)
    width = int(lengths.max(initial=0)) + 1  # (segment, depth) as one sortable number
    if len(order) * width >= 2**63:
        raise OverflowError("sequence count x longest sequence must stay below 2**63")
    fresh = lengths > lcp
    cuts = (owners >= 0) & (lcp < lengths[owners])
    keys = np.unique(np.concatenate((np.flatnonzero(fresh) * width + lcp[fresh], owners[cuts] * width + lcp[cuts])))
    segments, starts = np.divmod(keys, width)
    heads = np.diff(segments, prepend=-1) != 0  # the first node of its segment
    last = np.diff(segments, append=-1) != 0
    ends = np.where(last, lengths[segments], np.roll(starts, -1))
    above = owners[segments] * width + starts
    parents = np.where(heads, np.searchsorted(keys, above, side="left") - 1, np.arange(len(keys)) - 1)
    parents[heads & (starts == 0)] = -1
    end_keys = np.where(fresh, np.arange(len(order)), owners) * width + lengths
    sorted_end_nodes = np.searchsorted(keys, end_keys, side="left") - 1
    end_nodes = np.empty(len(order), dtype=np.int64)
    end_nodes[order] = sorted_end_nodes
    node_parents = narrow(parents)
    closes = _subtree_ends(node_parents, compiled=compiled)
    passing = np.concatenate(([0], np.cumsum(np.bincount(sorted_end_nodes, minlength=len(keys)))))
    node_offsets = np.concatenate(([0], np.cumsum(ends - starts)))
    first_token = offsets[order[segments]] + starts
    trie = Trie(
        tokens=_gather(tokens, first_token, node_offsets, compiled=compiled),
        weights=np.zeros(int(node_offsets[-1]), dtype=np.float32),
        offsets=node_offsets,
        parents=node_parents,
        depths=narrow(starts),
        counts=narrow(passing[closes] - passing[:-1]),
        subtree_ends=closes,
        supervised=np.zeros(0, dtype=np.int32),
    )
    return trie, end_nodes


def narrow(values: Int64Array) -> Int32Array:
    """Return the values as int32, or raise `OverflowError` where one does not fit."""
    if len(values) and (int(values.max()) > np.iinfo(np.int32).max or int(values.min()) < -1):
        raise OverflowError(f"{int(values.max()):,} does not fit int32")
    return values.astype(np.int32)


def _segment_owners(lcp: Int64Array, lengths: Int64Array, *, compiled: bool) -> Int64Array:
    """Return, for each sorted sequence, the earlier one whose segment it leaves; -1 at a root."""
    if compiled:
        from dagpack_cli.trie import kernels

        return kernels.segment_owners(lcp, lengths)
    owners = np.full(len(lcp), -1, dtype=np.int64)
    path: list[tuple[int, int]] = []  # (start, sequence) of the segments on the current path
    for sequence, (start, length) in enumerate(zip(lcp.tolist(), lengths.tolist(), strict=True)):
        while path and path[-1][0] >= start:
            path.pop()
        if path:
            owners[sequence] = path[-1][1]
        if length > start:
            path.append((start, sequence))
    return owners


def _subtree_ends(parents: Int32Array, *, compiled: bool) -> Int32Array:
    if compiled:
        from dagpack_cli.trie import kernels

        return kernels.subtree_ends(parents)
    return subtree_ends(parents)


def _gather(tokens: Int32Array, starts: Int64Array, offsets: Int64Array, *, compiled: bool) -> Int32Array:
    """Return the tokens of all nodes, in order: copies, no index array as long as the tokens."""
    gathered = np.empty(int(offsets[-1]), dtype=np.int32)
    if compiled:
        from dagpack_cli.trie import kernels

        kernels.gather(tokens, starts, offsets, gathered)
        return gathered
    for start, low, high in zip(starts.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        gathered[low:high] = tokens[start : start + high - low]
    return gathered
