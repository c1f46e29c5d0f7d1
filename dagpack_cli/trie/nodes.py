"""From (order, lcp) to the canonical preorder node table of the radix trie, and to its tokens.

Sequence k in sorted order adds the tokens ``[lcp[k], length[k])`` to the trie; written one after the
other these *segments* are the trie's tokens in preorder. A later sequence that leaves the path inside
an earlier segment cuts it there; the pieces are the radix nodes, already in preorder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagpack_cli.preorder import subtree_ends
from dagpack_cli.sequences import Sequences
from dagpack_cli.trie.order import CHUNK_SEQUENCES, Engine, sort_sequences, uses_kernels

__all__ = ["NodeTable", "Nodes", "Trie", "build_nodes", "build_trie", "narrow", "node_table"]

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_BLOCK = 1 << 22  # tokens gathered at a time


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTable:
    """The nodes of a trie in preorder, without their tokens.

    Attributes:
        offsets: shape (num_nodes + 1,), int64; as in a `Trie`.
        parents: shape (num_nodes,), int32; -1 for a root.
        depths: shape (num_nodes,), int32; tokens above the node.
        sequences: shape (num_nodes,), int64; the first sequence, in sorted order, that passes through the node.
        end_nodes: shape (num_sequences,), int64; where each sequence ends, in sorted order.
    """

    offsets: Int64Array
    parents: Int32Array
    depths: Int32Array
    sequences: Int64Array
    end_nodes: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """A trie whose tokens are still where they were read.

    Attributes:
        offsets, parents, depths, counts, subtree_ends: the columns of a `Trie`.
        sources: shape (num_nodes,), int64; where each node's tokens stand in ``sequences.tokens``.
        sequences: of the corpus.
        root: the token that stands before every sequence and is the first of every root node, or None.
        compiled: whether loops run in kernels.
    """

    offsets: Int64Array
    parents: Int32Array
    depths: Int32Array
    counts: Int32Array
    subtree_ends: Int32Array
    sources: Int64Array
    sequences: Sequences
    root: int | None
    compiled: bool

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the trie."""
        return int(self.offsets[-1])

    def token_blocks(self) -> Iterator[Int32Array]:
        """Yield the trie's tokens in order, at most 2^22 at a time, in one buffer that the next block reuses."""
        buffer = np.empty(min(_BLOCK, self.num_tokens), dtype=np.int32)
        for first in range(0, self.num_tokens, _BLOCK):
            last = min(first + _BLOCK, self.num_tokens)
            block = buffer[: last - first]
            # A node that the block cuts gives what of it is inside.
            nodes = slice(
                int(np.searchsorted(self.offsets, first, side="right")) - 1,
                int(np.searchsorted(self.offsets, last, side="left")),
            )
            starts, ends = self.offsets[:-1][nodes], self.offsets[1:][nodes]
            lows, highs = np.maximum(starts, first), np.minimum(ends, last)
            if self.root is not None:  # it stands in no file
                heads = (self.parents[nodes] == -1) & (starts >= first)
                block[starts[heads] - first] = self.root
                lows += heads
            self._gather(self.sources[nodes] + lows - starts, lows - first, highs - first, block)
            yield block

    def _gather(self, sources: Int64Array, lows: Int64Array, highs: Int64Array, block: Int32Array) -> None:
        tokens = self.sequences.tokens
        if self.compiled:
            from dagpack_cli.trie import kernels

            kernels.gather(tokens, sources, lows, highs, block)
            return
        for source, low, high in zip(sources.tolist(), lows.tolist(), highs.tolist(), strict=True):
            block[low:high] = tokens[source : source + high - low]


def build_nodes(
    sequences: Sequences,
    *,
    root: int | None = None,
    min_shared: int = 1,
    engine: Engine = "auto",
    chunk: int = CHUNK_SEQUENCES,
    workers: int = 1,
) -> tuple[Nodes, Int64Array]:
    """Return the trie of the sequences, its tokens where they are, and the node at which each one ends.

    Args:
        sequences: none of them empty.
        root: a token that every sequence is taken to begin with, or None.
        min_shared: a shared prefix of fewer tokens is not merged: each side keeps its own copy, in
            trees of their own. Equal sequences are one all the same.
        engine: as `sort_sequences`; the result is the same.
        chunk: likewise.
        workers: likewise.

    Returns:
        the nodes, and end nodes of shape (num_sequences,), int64.

    Time O(num_tokens + num_sequences log num_sequences); memory O(num_sequences), and no token.
    """
    compiled = uses_kernels(engine, sequences.num_tokens, len(sequences))
    order, lcp = sort_sequences(sequences, engine=engine, chunk=chunk, workers=workers)
    lengths = sequences.lengths[order]
    if root is not None:
        lengths = lengths + 1
        lcp[1:] += 1
    table = node_table(lcp, lengths, min_shared=min_shared, compiled=compiled)
    end_nodes = np.empty(len(order), dtype=np.int64)
    end_nodes[order] = table.end_nodes
    closes = _subtree_ends(table.parents, compiled=compiled)
    passing = np.concatenate(([0], np.cumsum(np.bincount(table.end_nodes, minlength=len(table.parents)))))
    nodes = Nodes(
        offsets=table.offsets,
        parents=table.parents,
        depths=table.depths,
        counts=narrow(passing[closes] - passing[:-1]),
        subtree_ends=closes,
        sources=sequences.starts[order[table.sequences]] + table.depths - (0 if root is None else 1),
        sequences=sequences,
        root=root,
        compiled=compiled,
    )
    return nodes, end_nodes


def build_trie(
    tokens: Int32Array, offsets: Int64Array, *, min_shared: int = 1, engine: Engine = "auto"
) -> tuple[Trie, Int64Array]:
    """Return the trie of sequences in memory (weights still 0) and the node at which each one ends.

    Args:
        tokens: shape (num_tokens,), int32, non-negative.
        offsets: shape (num_sequences + 1,), int64; no sequence is empty.
        min_shared: as `build_nodes`.
        engine: as `build_nodes`.

    >>> trie, ends = build_trie(np.array([1, 2, 3, 1, 2, 4], np.int32), np.array([0, 3, 6]))
    >>> trie.tokens.tolist(), trie.parents.tolist(), trie.counts.tolist(), ends.tolist()
    ([1, 2, 3, 4], [-1, 0, 0], [2, 1, 1], [1, 2])
    """
    nodes, end_nodes = build_nodes(Sequences.of(tokens, offsets), min_shared=min_shared, engine=engine)
    gathered = np.empty(nodes.num_tokens, dtype=np.int32)
    done = 0
    for block in nodes.token_blocks():
        gathered[done : done + len(block)] = block
        done += len(block)
    trie = Trie(
        tokens=gathered,
        weights=np.zeros(nodes.num_tokens, dtype=np.float32),
        offsets=nodes.offsets,
        parents=nodes.parents,
        depths=nodes.depths,
        counts=nodes.counts,
        subtree_ends=nodes.subtree_ends,
        supervised=np.zeros(0, dtype=np.int32),
    )
    return trie, end_nodes


def node_table(lcp: Int64Array, lengths: Int64Array, *, min_shared: int, compiled: bool) -> NodeTable:
    """Return the nodes of sorted sequences, of which only lengths and what neighbours share are known.

    Args:
        lcp: shape (n,), int64; tokens each shares with the one before, its own length where both are equal.
        lengths: shape (n,), int64, at least 1.
        min_shared: as `build_nodes`.
        compiled: whether the loop over sequences runs in a kernel.

    Time and memory O(n).
    """
    lcp = np.where((lcp < min_shared) & (lcp < lengths), 0, lcp)
    owners, cuts, numbers = _cut_segments(lcp, lengths, compiled=compiled)
    fresh = lengths > lcp
    sizes = np.where(fresh, cuts + 1, 0)
    bases = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    sequences = np.repeat(np.arange(len(lcp)), sizes)
    starts = np.empty(total, dtype=np.int64)
    starts[bases[fresh]] = lcp[fresh]
    # A segment's cuts come deepest first, its nodes shallowest first.
    lasts = bases[owners] + cuts[owners]
    above = np.where(owners < 0, -1, np.where(numbers < 0, lasts, lasts - numbers - 1))
    cut = numbers >= 0
    starts[above[cut] + 1] = lcp[cut]
    parents = np.arange(-1, total - 1)
    parents[bases[fresh]] = above[fresh]
    ends = np.append(starts[1:], 0)
    ends[(bases + cuts)[fresh]] = lengths[fresh]
    return NodeTable(
        offsets=np.concatenate(([0], np.cumsum(ends - starts))),
        parents=narrow(parents),
        depths=narrow(starts),
        sequences=sequences,
        end_nodes=np.where(fresh, bases + cuts, above),
    )


def narrow(values: Int64Array) -> Int32Array:
    """Return the values as int32, or raise `OverflowError` where one does not fit."""
    if len(values) and (int(values.max()) > np.iinfo(np.int32).max or int(values.min()) < -1):
        raise OverflowError(f"{int(values.max()):,} does not fit int32")
    return values.astype(np.int32)


def _cut_segments(lcp: Int64Array, lengths: Int64Array, *, compiled: bool) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return where sorted sequences leave the segments of earlier ones; each of shape (n,), int64.

    Returns:
        owners: the earlier sequence whose segment each leaves, -1 at a root.
        cuts: how many different depths inside its own segment are left by later ones.
        numbers: the number of its cut among its owner's, which come deepest first; -1 where it leaves at the end.
    """
    if compiled:
        from dagpack_cli.trie import kernels

        return kernels.cut_segments(lcp, lengths)
    owners, numbers = np.full(len(lcp), -1, dtype=np.int64), np.full(len(lcp), -1, dtype=np.int64)
    depths: list[list[int]] = [[] for _ in range(len(lcp))]  # of each segment's cuts
    path: list[int] = []  # the segments on the current path
    starts, stops = lcp.tolist(), lengths.tolist()
    for sequence, start in enumerate(starts):
        while path and starts[path[-1]] >= start:
            path.pop()
        if path:
            owner = owners[sequence] = path[-1]
            if start < stops[owner]:
                if depths[owner][-1:] != [start]:
                    depths[owner].append(start)
                numbers[sequence] = len(depths[owner]) - 1
        if stops[sequence] > start:
            path.append(sequence)
    return owners, np.array([len(cuts) for cuts in depths], dtype=np.int64), numbers


def _subtree_ends(parents: Int32Array, *, compiled: bool) -> Int32Array:
    if compiled:
        from dagpack_cli.trie import kernels

        return kernels.subtree_ends(parents)
    return subtree_ends(parents)
