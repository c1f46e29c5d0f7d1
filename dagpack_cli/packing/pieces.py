"""What the examples have in each tree: cut to length, pruned, one after the other. Pure.

A *piece* is what one example has in one tree of rows; unless it is split an example is one piece. Arrays
with an entry a piece are filled some at a time, so that they may lie in files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.packing.ancestry import Ancestry
from dagpack_cli.packing.supervision import Supervision

__all__ = ["ExampleEnds", "OnLong", "PieceRanges", "Pieces", "cut_examples", "piece_lengths"]

OnLong = Literal["error", "split", "truncate", "drop"]
Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleEnds:
    """The examples of one partition as the packer sees them.

    Attributes:
        nodes: shape (num_examples,), int64; the trie node at whose end the example ends.
        lengths: shape (num_examples,), int64, in tokens, a virtual root included.
        supervision: over targets by depth in the trie; target 0 is no pair and never counts.
    """

    nodes: Int64Array
    lengths: Int64Array
    supervision: Supervision


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """What the examples have in each tree; target ranges are depths in the trie.

    Attributes:
        examples: shape (num_pieces,), int64, ascending.
        lows: shape (num_pieces,), int64; the first target.
        highs: shape (num_pieces,), int64, exclusive; after pruning.
        nodes: shape (num_pieces,), int64; the forest node with the last row, -1 where nothing is
            left. In unmerged layouts the trie node with the last target.
        num_truncated: pairs cut off by ``truncate``.
        num_dropped: pairs of examples left out by ``drop``.
        num_dropped_examples: how many examples those are.
        num_pruned: pairs of kept examples in no window.
    """

    examples: Int64Array
    lows: Int64Array
    highs: Int64Array
    nodes: Int64Array
    num_truncated: int
    num_dropped: int
    num_dropped_examples: int
    num_pruned: int

    @classmethod
    def none(cls) -> Pieces:
        """Return the pieces of no example."""
        empty = np.zeros(0, dtype=np.int64)
        return PieceRanges(empty, empty, empty, 0, 0, 0).pieces(empty, empty, 0)


@dataclass(frozen=True, slots=True)
class PieceRanges:
    """Owner and half-open target range of every piece before pruning, and what ``on_long`` took away."""

    owners: Int64Array
    lows: Int64Array
    highs: Int64Array
    num_truncated: int
    num_dropped: int
    num_dropped_examples: int

    @classmethod
    def of(cls, lengths: Int64Array, seq_len: int, on_long: OnLong, zeros: Zeros = np.zeros) -> PieceRanges:
        """Return the ranges of the pieces of examples, given these lengths in tokens."""
        num = truncated = dropped = dropped_examples = 0
        for span in spans(len(lengths)):
            pairs = lengths[span] - 1
            long = pairs > seq_len
            beyond = int((pairs[long] - seq_len).sum())
            if on_long == "truncate":
                truncated += beyond
            elif on_long == "drop":
                dropped += beyond + seq_len * int(long.sum())
                dropped_examples += int(long.sum())
            num += int(_sizes(pairs, seq_len, on_long).sum())
        owners, lows, highs = (zeros(num, np.int64) for _ in range(3))
        done = 0
        for span in spans(len(lengths)):
            pairs = lengths[span] - 1
            sizes = _sizes(pairs, seq_len, on_long)
            part = slice(done, done + int(sizes.sum()))
            owners[part] = np.repeat(np.arange(span.start, span.stop), sizes)
            number = np.arange(part.stop - part.start) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            lows[part] = number * seq_len + 1
            highs[part] = np.minimum(lows[part] + seq_len, np.repeat(pairs, sizes) + 1)
            done = part.stop
        return cls(owners, lows, highs, truncated, dropped, dropped_examples)

    def trained(self, supervision: Supervision, span: slice, *, prune: bool) -> Int64Array:
        """Return the exclusive end of what trains in a range of the pieces: with ``prune``, else of all."""
        if not prune:
            return self.highs[span]
        return supervision.last_before(self.owners[span], self.lows[span], self.highs[span])

    def pieces(self, highs: Int64Array, nodes: Int64Array, num_pruned: int) -> Pieces:
        """Return the pieces with what pruning left of them."""
        return Pieces(
            examples=self.owners,
            lows=self.lows,
            highs=highs,
            nodes=nodes,
            num_truncated=self.num_truncated,
            num_dropped=self.num_dropped,
            num_dropped_examples=self.num_dropped_examples,
            num_pruned=num_pruned,
        )


def _sizes(pairs: Int64Array, seq_len: int, on_long: OnLong) -> Int64Array:
    """Return how many pieces examples have, given their pairs."""
    if on_long == "drop":
        return ((pairs > 0) & (pairs <= seq_len)).astype(np.int64)
    if on_long == "truncate":
        return (pairs > 0).astype(np.int64)
    return np.maximum(-(-pairs // seq_len), 0)


def cut_examples(
    examples: ExampleEnds,
    trie_parents: Int32Array,
    trie_depths: Int32Array,
    seq_len: int,
    on_long: OnLong,
    prune: bool,
    zeros: Zeros = np.zeros,
) -> Pieces:
    """Return the pieces of unmerged examples: each its own tree.

    ``nodes`` are trie nodes; a piece with nothing supervised is left without rows (``highs == lows``)
    where ``prune`` is set. Time O(examples + pieces x log nodes of a path where one is cut). ``zeros`` makes the
    arrays with an entry a piece.
    """
    ranges = PieceRanges.of(examples.lengths, seq_len, on_long, zeros)
    ancestry = Ancestry(trie_parents, trie_depths, zeros)
    num = len(ranges.owners)
    highs, nodes, pruned = zeros(num, np.int64), zeros(num, np.int64), 0
    for span in spans(num):
        ends = ranges.trained(examples.supervision, span, prune=prune)
        above = ancestry.find(examples.nodes[ranges.owners[span]], ends - 1)
        highs[span] = ends
        nodes[span] = np.where(ends > ranges.lows[span], above, -1)
        pruned += int((ranges.highs[span] - ends).sum())
    return ranges.pieces(highs, nodes, pruned)


def piece_lengths(
    examples: ExampleEnds, seq_len: int, on_long: OnLong, *, prune: bool, zeros: Zeros = np.zeros
) -> Int64Array:
    """Return the pairs of every piece that has any, each example on its own: shape (num_pieces,), int64.

    With ``prune`` without the pairs behind its last supervised one. ``zeros`` makes the result.
    """
    ranges = PieceRanges.of(examples.lengths, seq_len, on_long, zeros)
    found = zeros(len(ranges.owners), np.int64)
    done = 0
    for span in spans(len(found)):
        pairs = ranges.trained(examples.supervision, span, prune=prune) - ranges.lows[span]
        pairs = pairs[pairs > 0]
        found[done : done + len(pairs)] = pairs
        done += len(pairs)
    return found[:done]
