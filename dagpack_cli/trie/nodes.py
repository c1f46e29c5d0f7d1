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

from dagpack_cli.memory import Zeros, spans
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
        order: shape (num_sequences,), int64; the sequences in the order of the nodes at which they end.
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
    order: Int64Array
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
    zeros: Zeros = np.zeros,
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
        zeros: makes the arrays with an entry a sequence or a node.

    Returns:
        the nodes, and end nodes of shape (num_sequences,), int64.

    Time O(num_tokens + num_sequences log num_sequences); memory, beyond the sort of a chunk, what ``zeros``
    makes: at most some 100 bytes a sequence and 60 a node.
    """
    compiled = uses_kernels(engine, sequences.num_tokens, len(sequences))
    order, lcp = sort_sequences(sequences, engine=engine, chunk=chunk, workers=workers, zeros=zeros)
    lengths = zeros(len(order), np.int64)
    above = 0 if root is None else 1
    for span in spans(len(order)):
        lengths[span] = sequences.lengths[order[span]] + above
        lcp[span] += above
    lcp[:1] = 0
    table = node_table(lcp, lengths, min_shared=min_shared, compiled=compiled, zeros=zeros)
    end_nodes = zeros(len(order), np.int64)
    for span in spans(len(order)):
        end_nodes[order[span]] = table.end_nodes[span]
    closes = _subtree_ends(table.parents, compiled, zeros)
    num = len(table.parents)
    counts, sources = zeros(num, np.int32), zeros(num, np.int64)
    for span in spans(num):
        # Sequences end at ascending nodes, so those that pass through a node are a range of them.
        before = np.searchsorted(table.end_nodes, np.arange(span.start, span.stop))
        counts[span] = narrow(np.searchsorted(table.end_nodes, closes[span]) - before)
        sources[span] = sequences.starts[order[table.sequences[span]]] + table.depths[span] - above
    nodes = Nodes(
        offsets=table.offsets,
        parents=table.parents,
        depths=table.depths,
        counts=counts,
        subtree_ends=closes,
        sources=sources,
        sequences=sequences,
        root=root,
        order=order,
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


def node_table(
    lcp: Int64Array, lengths: Int64Array, *, min_shared: int, compiled: bool, zeros: Zeros = np.zeros
) -> NodeTable:
    """Return the nodes of sorted sequences, of which only lengths and what neighbours share are known.

    Args:
        lcp: shape (n,), int64; tokens each shares with the one before, its own length where both are equal.
            What ``min_shared`` does not merge is set to 0 in it.
        lengths: shape (n,), int64, at least 1.
        min_shared: as `build_nodes`.
        compiled: whether the loop over sequences runs in a kernel.
        zeros: makes the arrays with an entry a sequence or a node.

    Time and memory O(n).
    """
    num = len(lcp)
    for span in spans(num):
        lcp[span][(lcp[span] < min_shared) & (lcp[span] < lengths[span])] = 0
    owners, cuts, numbers = _cut_segments(lcp, lengths, compiled, zeros)
    bases = zeros(num + 1, np.int64)  # of each sequence's own nodes: none where it equals the one before
    for span in spans(num):
        sizes = np.where(lengths[span] > lcp[span], cuts[span] + 1, 0)
        bases[span.start + 1 : span.stop + 1] = bases[span.start] + np.cumsum(sizes)
    total = int(bases[-1])
    narrow(np.array([total, int(lengths.max(initial=0))]))
    table = NodeTable(
        offsets=zeros(total + 1, np.int64),
        parents=zeros(total, np.int32),
        depths=zeros(total, np.int32),
        sequences=zeros(total, np.int64),
        end_nodes=zeros(num, np.int64),
    )
    for span in spans(num):
        _place_nodes(table, lcp, lengths, span, owners, cuts, numbers, bases)
    for span in spans(num):
        low, high = int(bases[span.start]), int(bases[span.stop])
        ends = np.append(table.depths[low + 1 : high], 0).astype(np.int64)[: high - low]
        fresh = lengths[span] > lcp[span]
        ends[(bases[:-1][span] + cuts[span])[fresh] - low] = lengths[span][fresh]
        table.offsets[low + 1 : high + 1] = table.offsets[low] + np.cumsum(ends - table.depths[low:high])
    return table


def _place_nodes(
    table: NodeTable,
    lcp: Int64Array,
    lengths: Int64Array,
    span: slice,
    owners: Int64Array,
    cuts: Int64Array,
    numbers: Int64Array,
    bases: Int64Array,
) -> None:
    """Fill in the nodes of a range of sequences, but for their offsets, and where these cut earlier segments."""
    low, high = int(bases[span.start]), int(bases[span.stop])
    own, shared, number, firsts = owners[span], lcp[span], numbers[span], bases[:-1][span]
    fresh = lengths[span] > shared
    table.sequences[low:high] = np.repeat(np.arange(span.start, span.stop), np.diff(bases[span.start : span.stop + 1]))
    table.depths[firsts[fresh]] = shared[fresh]
    # A segment's cuts come deepest first, its nodes shallowest first.
    lasts = bases[own] + cuts[own]
    above = np.where(own < 0, -1, np.where(number < 0, lasts, lasts - number - 1))
    cut = number >= 0
    table.depths[above[cut] + 1] = shared[cut]
    table.parents[low:high] = np.arange(low - 1, high - 1)
    table.parents[firsts[fresh]] = above[fresh]
    table.end_nodes[span] = np.where(fresh, firsts + cuts[span], above)


def narrow(values: Int64Array) -> Int32Array:
    """Return the values as int32, or raise `OverflowError` where one does not fit."""
    if len(values) and (int(values.max()) > np.iinfo(np.int32).max or int(values.min()) < -1):
        raise OverflowError(f"{int(values.max()):,} does not fit int32")
    return values.astype(np.int32)


def _cut_segments(
    lcp: Int64Array, lengths: Int64Array, compiled: bool, zeros: Zeros
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return where sorted sequences leave the segments of earlier ones; each of shape (n,), int64.

    Returns:
        owners: the earlier sequence whose segment each leaves, -1 at a root.
        cuts: how many different depths inside its own segment are left by later ones.
        numbers: the number of its cut among its owner's, which come deepest first; -1 where it leaves at the end.
    """
    owners, counts, numbers = (zeros(len(lcp), np.int64) for _ in range(3))
    if compiled:
        from dagpack_cli.trie import kernels

        last_cuts, path = (zeros(len(lcp), np.int64) for _ in range(2))
        kernels.cut_segments(lcp, lengths, owners, counts, numbers, last_cuts, path)
        return owners, counts, numbers
    owners[:] = numbers[:] = -1
    depths: list[list[int]] = [[] for _ in range(len(lcp))]  # of each segment's cuts
    segments: list[int] = []  # on the current path
    starts, stops = lcp.tolist(), lengths.tolist()
    for sequence, start in enumerate(starts):
        while segments and starts[segments[-1]] >= start:
            segments.pop()
        if segments:
            owner = owners[sequence] = segments[-1]
            if start < stops[owner]:
                if depths[owner][-1:] != [start]:
                    depths[owner].append(start)
                numbers[sequence] = len(depths[owner]) - 1
        if stops[sequence] > start:
            segments.append(sequence)
    counts[:] = [len(cuts) for cuts in depths]
    return owners, counts, numbers


def _subtree_ends(parents: Int32Array, compiled: bool, zeros: Zeros) -> Int32Array:
    if compiled:
        from dagpack_cli.trie import kernels

        ends = zeros(len(parents), np.int32)
        kernels.subtree_ends(parents, ends)
        return ends
    return subtree_ends(parents)
