"""From a trie and its examples to the forest of rows that is packed: cut to length, pruned. Pure.

A row is one trie edge: input token, target token. The forest's nodes are the trie's radix nodes,
cut at depths k * seq_len where ``on_long`` is ``split`` (each subtree below a cut is a tree of its own
that starts with the token at the cut) and shortened to the last row that something supervised needs.
A *piece* is what one example has in one such tree; unless it is split an example is one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import FOREST_THRESHOLD, Forest
from dagpack_cli.packing.supervision import Supervision
from dagpack_cli.preorder import subtree_ends

__all__ = ["ExampleEnds", "OnLong", "Pieces", "RowForest", "cut_examples", "cut_forest", "piece_lengths"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForest:
    """The forest of rows that is packed, and where its rows stand in the trie.

    Attributes:
        forest: parents, lengths in rows, row depths and subtree ends.
        token_starts: shape (num_nodes,), int64; the trie token that is the first row's target.
        first_inputs: shape (num_nodes,), int64; the trie token that is the first row's input.
        first_targets: shape (num_nodes,), int64; the depth in the trie of the first row's target.
        trees: shape (num_nodes,), int64; the tree's number, in trie order: the segment.
        trie_nodes: shape (num_nodes,), int64.
    """

    forest: Forest
    token_starts: Int64Array
    first_inputs: Int64Array
    first_targets: Int64Array
    trees: Int64Array
    trie_nodes: Int64Array


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Forest nodes before pruning, in preorder of each tree; targets are depths in the trie."""

    trie_nodes: Int64Array
    lows: Int64Array
    highs: Int64Array
    origins: Int64Array  # depth in the trie of the tree's first token
    parents: Int64Array
    trees: Int64Array
    place: Int64Array  # from creation order to here


def cut_examples(
    examples: ExampleEnds, trie_parents: Int32Array, trie_depths: Int32Array, seq_len: int, on_long: OnLong, prune: bool
) -> Pieces:
    """Return the pieces of unmerged examples: each its own tree.

    ``nodes`` are trie nodes; a piece with nothing supervised is left without rows (``highs == lows``)
    where ``prune`` is set. Time O(examples + pieces x radix nodes of a path where one is cut).
    """
    owners, lows, highs, losses = _ranges(examples, seq_len, on_long)
    ends = examples.supervision.last_before(owners, lows, highs) if prune else highs
    nodes = _ancestors(examples.nodes[owners], ends - 1, trie_parents, trie_depths)
    return Pieces(
        examples=owners,
        lows=lows,
        highs=ends,
        nodes=np.where(ends > lows, nodes, -1),
        num_pruned=int((highs - ends).sum()),
        **losses,
    )


def _ends_of(parents: Int32Array, engine: Engine) -> Int32Array:
    if uses_kernel(engine, len(parents), FOREST_THRESHOLD):
        from dagpack_cli.packing import kernels

        return kernels.forest_columns(parents, np.ones(len(parents), dtype=np.int64))[1]
    return subtree_ends(parents)


def cut_forest(
    trie_offsets: Int64Array,
    trie_parents: Int32Array,
    trie_depths: Int32Array,
    seq_len: int,
    on_long: OnLong,
    *,
    prune: bool,
    examples: ExampleEnds | None,
    supervised: Int32Array | None = None,
    engine: Engine = "auto",
) -> tuple[RowForest, Pieces]:
    """Return the forest to pack and the pieces of the examples in it.

    Args:
        trie_offsets: shape (num_trie_nodes + 1,), int64.
        trie_parents: shape (num_trie_nodes,), int32.
        trie_depths: shape (num_trie_nodes,), int32.
        seq_len: longest path, in rows.
        on_long: what happens to longer ones; with ``error`` the caller has made sure there are none.
        prune: leave out rows with nothing supervised at or below them in their tree.
        examples: None under merge ``state``, where an example is no path; then
        supervised: shape (num_tokens,), int32, tells which trie tokens train.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 nodes.

    Time O((nodes + pieces) log nodes), all vectorised.
    """
    nodes = _cut_nodes(trie_offsets, trie_parents, trie_depths, seq_len, on_long)
    if examples is None:
        needs, pieces = _needs_of_tokens(nodes, trie_offsets, trie_depths, supervised if prune else None), None
    else:
        owners, lows, highs, losses = _ranges(examples, seq_len, on_long)
        wanted = examples.supervision.last_before(owners, lows, highs) if prune else highs
        at = _ancestors(examples.nodes[owners], highs - 1, trie_parents, trie_depths)
        ends = nodes.place[
            _index_of(trie_depths, at, lows, _first_index(trie_offsets, trie_depths, seq_len, on_long), seq_len)
        ]
        needs = np.full(len(nodes.parents), -1, dtype=np.int64)
        np.maximum.at(needs, ends, wanted)
        pieces = (owners, lows, highs, ends, losses)
        del wanted, at  # what follows holds enough for every node and piece
    parents = nodes.parents.astype(np.int32)
    needs = _subtree_max(needs, _ends_of(parents, engine))
    stays = needs > nodes.lows
    row_forest = _prune_nodes(nodes, parents, needs, stays, trie_offsets, trie_parents, trie_depths)
    stops = np.minimum(nodes.highs, needs)
    del nodes, needs
    if pieces is None:
        none = np.zeros(0, dtype=np.int64)
        return row_forest, Pieces(
            examples=none,
            lows=none,
            highs=none,
            nodes=none,
            num_truncated=0,
            num_dropped=0,
            num_dropped_examples=0,
            num_pruned=0,
        )
    owners, lows, highs, ends, losses = pieces
    last = _nearest(ends, parents, stays)
    renumber = np.cumsum(stays) - 1
    kept_highs = np.where(last >= 0, stops[last], lows)
    left = kept_highs > lows  # the nearest node may be an empty root
    return row_forest, Pieces(
        examples=owners,
        lows=lows,
        highs=kept_highs,
        nodes=np.where(left, renumber[last], -1),
        num_pruned=int((highs - kept_highs).sum()),
        **losses,
    )


def piece_lengths(examples: ExampleEnds, seq_len: int, on_long: OnLong, *, prune: bool) -> Int64Array:
    """Return the pairs of every piece that has any, each example on its own: shape (num_pieces,), int64.

    With ``prune`` without the pairs behind its last supervised one.
    """
    owners, lows, highs, _ = _ranges(examples, seq_len, on_long)
    ends = examples.supervision.last_before(owners, lows, highs) if prune else highs
    return (ends - lows)[ends > lows]


def _ranges(
    examples: ExampleEnds, seq_len: int, on_long: OnLong
) -> tuple[Int64Array, Int64Array, Int64Array, dict[str, int]]:
    """Return owner and target range of every piece, and what ``on_long`` took away."""
    pairs = examples.lengths - 1
    long = pairs > seq_len
    kept = np.flatnonzero(~long) if on_long == "drop" else np.arange(len(pairs))
    losses = {
        "num_truncated": int((pairs[long] - seq_len).sum()) if on_long == "truncate" else 0,
        "num_dropped": int(pairs[long].sum()) if on_long == "drop" else 0,
        "num_dropped_examples": int(long.sum()) if on_long == "drop" else 0,
    }
    pairs = np.minimum(pairs, seq_len)[kept] if on_long == "truncate" else pairs[kept]
    sizes = np.maximum(-(-pairs // seq_len), 0)
    owners = np.repeat(kept, sizes)
    number = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    lows = number * seq_len + 1
    highs = np.minimum(lows + seq_len, np.repeat(pairs, sizes) + 1)
    return owners, lows, highs, losses


def _ancestors(nodes: Int64Array, targets: Int64Array, parents: Int32Array, depths: Int32Array) -> Int64Array:
    """Return the node on each path that holds the token at a depth: by jumps of 1, 2, 4, ... nodes."""
    at = nodes.copy()
    if not (depths[at] > targets).any():
        return at
    jumps = [np.maximum(parents, 0)]  # a root's leads to node 0, whose depth is 0 too
    while (depths[jumps[-1]] > 0).any():
        jumps.append(jumps[-1][jumps[-1]])
    for jump in reversed(jumps):
        further = jump[at]
        below = depths[further] > targets
        at[below] = further[below]
    below = depths[at] > targets
    at[below] = parents[at[below]]
    return at


def _first_index(offsets: Int64Array, depths: Int32Array, seq_len: int, on_long: OnLong) -> Int64Array:
    """Return, in order of creation, the first forest node made of each trie node, and the total."""
    starts = depths.astype(np.int64)
    ends = starts + np.diff(offsets)
    roots = -(-ends // seq_len) - -(-starts // seq_len) if on_long == "split" else (starts == 0).astype(np.int64)
    return np.concatenate(([0], np.cumsum(roots + (starts > 0))))


def _index_of(depths: Int32Array, at: Int64Array, lows: Int64Array, first: Int64Array, seq_len: int) -> Int64Array:
    """Return, in order of creation, the forest node in trie node ``at`` of the tree whose first target is ``lows``."""
    starts = depths[at].astype(np.int64)
    continues = starts > 0
    tree = (lows - 1) // seq_len
    number = tree - -(-starts // seq_len) + continues
    inherited = continues & (tree == (starts - 1) // seq_len)
    return first[at] + np.where(inherited, 0, number)


def _cut_nodes(
    offsets: Int64Array, trie_parents: Int32Array, trie_depths: Int32Array, seq_len: int, on_long: OnLong
) -> _Nodes:
    """Return the trie's nodes cut into trees of at most ``seq_len`` rows in depth."""
    first = _first_index(offsets, trie_depths, seq_len, on_long)
    total = int(first[-1])
    trie_nodes = np.repeat(np.arange(len(trie_parents)), np.diff(first))
    starts = trie_depths[trie_nodes].astype(np.int64)
    stops = starts + np.diff(offsets)[trie_nodes]
    number = np.arange(total) - first[trie_nodes]
    continues = (starts > 0) & (number == 0)
    cut = (-(-starts // seq_len) + number - (starts > 0)) * seq_len  # depth of the token a new tree starts with
    if on_long == "split":
        origins = np.where(continues, (starts - 1) // seq_len * seq_len, cut)
    else:
        origins = np.zeros(total, dtype=np.int64)
    lows = np.where(continues, starts, origins + 1)
    highs = np.maximum(np.minimum(stops, origins + seq_len + 1), lows)
    above = np.maximum(trie_parents[trie_nodes], 0)
    parents = np.where(continues, first[above + 1] - 1, -1)
    trees = _tree_numbers(parents)
    order = np.argsort(trees, kind="stable")
    place = np.empty(total, dtype=np.int64)
    place[order] = np.arange(total)
    parents = np.where(parents[order] >= 0, place[parents[order]], -1)
    return _Nodes(trie_nodes[order], lows[order], highs[order], origins[order], parents, trees[order], place)


def _tree_numbers(parents: Int64Array) -> Int64Array:
    """Return the number of each node's root among the roots, by pointer jumping: O(n log depth)."""
    numbers = np.cumsum(parents == -1) - 1
    at = np.where(parents >= 0, parents, np.arange(len(parents)))
    while len(at) and not np.array_equal(further := at[at], at):
        at = further
    return np.asarray(numbers[at], dtype=np.int64)


def _needs_of_tokens(
    nodes: _Nodes, offsets: Int64Array, depths: Int32Array, supervised: Int32Array | None
) -> Int64Array:
    """Return the exclusive depth of the last target of each node that trains; all of it without ``supervised``."""
    if supervised is None:
        return np.where(nodes.highs > nodes.lows, nodes.highs, -1)
    shift = offsets[nodes.trie_nodes] - depths[nodes.trie_nodes]
    trains = np.flatnonzero(supervised)
    last = np.searchsorted(trains, nodes.highs + shift, side="left") - 1
    found = trains[np.maximum(last, 0)] + 1 - shift if len(trains) else nodes.lows
    return np.where((last >= 0) & (found > nodes.lows), found, -1)


def _subtree_max(values: Int64Array, ends: Int32Array) -> Int64Array:
    """Return the largest value in every subtree: a sparse table, one level at a time. O(n log n)."""
    index = np.arange(len(values))
    sizes = ends - index
    levels = np.frexp(sizes.astype(np.float64))[1] - 1
    result = values.copy()
    table = values.copy()
    for level in range(int(levels.max(initial=0)) + 1):
        chosen = np.flatnonzero(levels == level)
        result[chosen] = np.maximum(table[chosen], table[ends[chosen] - (1 << level)])
        table = np.maximum(table[: max(len(table) - (1 << level), 0)], table[1 << level :])
    return result


def _nearest(nodes: Int64Array, parents: Int32Array, stays: npt.NDArray[np.bool_]) -> Int64Array:
    """Return the deepest node at or above each one that stays, -1 where none does."""
    num = len(parents)
    at = np.where(stays, np.arange(num), parents)
    at = np.append(at, num)  # one past the end stands for "none", so that -1 jumps to itself
    at[at == -1] = num
    while not np.array_equal(further := at[at], at):
        at = further
    found = at[nodes]
    return np.where(found == num, -1, found)


def _prune_nodes(
    nodes: _Nodes,
    parents: Int32Array,
    needs: Int64Array,
    stays: npt.NDArray[np.bool_],
    offsets: Int64Array,
    trie_parents: Int32Array,
    trie_depths: Int32Array,
) -> RowForest:
    renumber = np.cumsum(stays) - 1
    kept = np.flatnonzero(stays)
    above = parents[kept]
    lows = nodes.lows[kept]
    trie_nodes = nodes.trie_nodes[kept]
    starts = trie_depths[trie_nodes].astype(np.int64)
    token_starts = offsets[trie_nodes] + lows - starts
    before = offsets[np.maximum(trie_parents[trie_nodes], 0) + 1] - 1
    _, trees = np.unique(nodes.trees[kept], return_inverse=True)
    return RowForest(
        forest=Forest.from_parents(
            parents=np.where(above >= 0, renumber[above], -1).astype(np.int32),
            lengths=np.minimum(nodes.highs, needs)[kept] - lows,
        ),
        token_starts=token_starts,
        first_inputs=np.where(lows > starts, token_starts - 1, before),
        first_targets=lows,
        trees=trees.astype(np.int64),
        trie_nodes=trie_nodes,
    )
