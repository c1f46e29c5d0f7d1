"""From a trie and its examples to the forest of rows that is packed: cut to length, pruned. Pure.

A row is one trie edge: input token, target token. The forest's nodes are the trie's radix nodes,
cut at depths k * seq_len where ``on_long`` is ``split`` (each subtree below a cut is a tree of its own
that starts with the token at the cut) and shortened to the last row that something supervised needs.
Arrays with an entry a node or a piece are filled some at a time, so that they may lie in files; what a node
needs of those below it is one sweep.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, select, spans, stable_places
from dagpack_cli.packing.ancestry import Ancestry
from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import FOREST_THRESHOLD, Forest
from dagpack_cli.packing.pieces import ExampleEnds, OnLong, PieceRanges, Pieces
from dagpack_cli.preorder import subtree_ends

__all__ = ["RowForest", "cut_forest"]

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]


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
class _Trie:
    """The columns of a trie that count here, and how it is cut."""

    offsets: Int64Array
    parents: Int32Array
    depths: Int32Array
    seq_len: int
    on_long: OnLong

    def ends(self, span: slice) -> tuple[Int64Array, Int64Array]:
        """Return the depths of a range of nodes, and of what follows their last tokens."""
        starts = self.depths[span].astype(np.int64)
        return starts, starts + np.diff(self.offsets[span.start : span.stop + 1])

    def num_roots(self, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Return how many trees begin in nodes."""
        if self.on_long == "split":
            return -(-ends // self.seq_len) - -(-starts // self.seq_len)
        return np.asarray(starts == 0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Forest nodes before pruning, in preorder of each tree; targets are depths in the trie."""

    trie_nodes: Int32Array
    lows: Int32Array
    highs: Int32Array
    origins: Int32Array  # depth in the trie of the tree's first token
    parents: Int32Array
    trees: Int32Array
    first: Int64Array  # in the order of creation, the first node made of each trie node, and the total
    place: Int64Array  # from the order of creation to here; empty where they are the same


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
    zeros: Zeros = np.zeros,
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
        zeros: makes the arrays with an entry a node or a piece: 130 bytes a node and 60 a piece.

    Time O(nodes + pieces), all vectorised or compiled; a log more where trees are cut.
    """
    trie = _Trie(trie_offsets, trie_parents, trie_depths, seq_len, on_long)
    nodes = _cut_nodes(trie, zeros)
    num = len(nodes.parents)
    compiles = uses_kernel(engine, num, FOREST_THRESHOLD)
    needs = zeros(num, np.int32)  # exclusive end of the targets that something at or below a node needs, 0 for none
    ranges = None
    if examples is None:
        _need_tokens(needs, nodes, trie, supervised if prune else None, zeros)
    else:
        ranges = PieceRanges.of(examples.lengths, seq_len, on_long, zeros)
        last = _need_pieces(needs, nodes, trie, examples, ranges, zeros, prune=prune)
    needs = _raised(needs, nodes.parents, compiles=compiles)
    row_forest, numbers = _pruned(nodes, needs, trie, zeros, compiles=compiles)
    if ranges is None:
        return row_forest, Pieces.none()
    nearest = _nearest(numbers, nodes.parents, zeros, compiles=compiles)
    highs, places, num_pruned = zeros(len(last), np.int64), zeros(len(last), np.int64), 0
    for span in spans(len(last)):
        node = nearest[last[span]]
        lows = ranges.lows[span]
        stops = np.minimum(nodes.highs[node], needs[node])
        highs[span] = np.where(node >= 0, stops, lows)
        left = highs[span] > lows  # the nearest node may be an empty root
        places[span] = np.where(left, numbers[node], -1)
        num_pruned += int((ranges.highs[span] - highs[span]).sum())
    return row_forest, ranges.pieces(highs, places, num_pruned)


def _cut_nodes(trie: _Trie, zeros: Zeros) -> _Nodes:
    """Return the trie's nodes cut into trees of at most ``seq_len`` rows in depth."""
    num = len(trie.parents)
    first = zeros(num + 1, np.int64)
    for span in spans(num):
        starts, ends = trie.ends(span)
        made = trie.num_roots(starts, ends) + (starts > 0)
        first[span.start + 1 : span.stop + 1] = first[span.start] + np.cumsum(made)
    total = int(first[-1])
    trees, place = _tree_order(trie, first, zeros)
    columns = {name: zeros(total, np.int32) for name in ("trie_nodes", "lows", "highs", "origins", "parents")}
    for span in spans(num):
        made = np.diff(first[span.start : span.stop + 1])
        owners = np.repeat(np.arange(span.start, span.stop), made)
        starts, stops = (np.repeat(column, made) for column in trie.ends(span))
        created = slice(int(first[span.start]), int(first[span.stop]))
        number = np.arange(created.start, created.stop) - first[owners]
        continues = (starts > 0) & (number == 0)
        if trie.on_long == "split":
            # The depth of the token that a new tree starts with, or that of the tree it continues.
            cut = (-(-starts // trie.seq_len) + number - (starts > 0)) * trie.seq_len
            origins = np.where(continues, (starts - 1) // trie.seq_len * trie.seq_len, cut)
        else:
            origins = np.zeros(len(owners), dtype=np.int64)
        lows = np.where(continues, starts, origins + 1)
        highs = np.maximum(np.minimum(stops, origins + trie.seq_len + 1), lows)
        parents = np.where(continues, first[np.maximum(trie.parents[owners], 0) + 1] - 1, -1)
        if len(place):
            parents = np.where(parents >= 0, place[parents], -1)
        to = place[created] if len(place) else created
        for name, values in (("trie_nodes", owners), ("lows", lows), ("highs", highs), ("origins", origins)):
            columns[name][to] = values
        columns["parents"][to] = parents
    return _Nodes(**columns, trees=trees, first=first, place=place)


def _tree_order(trie: _Trie, first: Int64Array, zeros: Zeros) -> tuple[Int32Array, Int64Array]:
    """Return the number of each node's tree, trees in the order of their roots and nodes by tree; and `_Nodes.place`.

    Where nothing is split a tree's nodes follow one another as they are.
    """
    total = int(first[-1])
    if trie.on_long != "split" or total == len(trie.parents):
        trees, roots = zeros(total, np.int32), 0
        for span in spans(total):
            numbers = roots + np.cumsum(trie.parents[span] < 0)
            trees[span] = numbers - 1
            roots = int(numbers[-1])
        return trees, np.zeros(0, dtype=np.int64)
    of_node, num_trees = _tree_numbers(trie, first, zeros)
    trees, place = zeros(total, np.int32), stable_places(of_node, num_trees, zeros)
    for span in spans(total):
        trees[place[span]] = of_node[span]
    return trees, place


def _tree_numbers(trie: _Trie, first: Int64Array, zeros: Zeros) -> tuple[Int32Array, int]:
    """Return the number of each node's root among the roots, in the order of creation, and how many roots there are.

    By pointer jumping, in place: O(n log depth).
    """
    total = int(first[-1])
    above, numbers = zeros(total, np.int32), zeros(total, np.int32)
    roots = 0
    for span in spans(len(trie.parents)):
        heads = first[span]
        created = slice(int(heads[0]), int(first[span.stop]))
        nodes = np.arange(created.start, created.stop)
        deeper = trie.depths[span] > 0  # the first node made of these continues the last of its parent's
        nodes[heads[deeper] - created.start] = first[trie.parents[span][deeper] + 1] - 1
        is_root = nodes == np.arange(created.start, created.stop)
        ranks = roots + np.cumsum(is_root)
        above[created], numbers[created] = nodes, ranks - 1
        roots = int(ranks[-1])
    moved = True
    while moved:
        moved = False
        for span in spans(total):
            further = above[above[span]]
            moved |= not np.array_equal(further, above[span])
            above[span] = further
    for span in spans(total):  # a root is read before it is written, and is its own
        nodes = above[span]
        above[span] = numbers[nodes]
    return above, roots


def _need_pieces(
    needs: Int32Array,
    nodes: _Nodes,
    trie: _Trie,
    examples: ExampleEnds,
    ranges: PieceRanges,
    zeros: Zeros,
    *,
    prune: bool,
) -> Int32Array:
    """Say of each node what the pieces that end in it need; return the node that each piece ends in."""
    ancestry = Ancestry(trie.parents, trie.depths, zeros)
    last = zeros(len(ranges.owners), np.int32)
    for span in spans(len(last)):
        at = ancestry.find(examples.nodes[ranges.owners[span]], ranges.highs[span] - 1)
        starts = trie.depths[at].astype(np.int64)
        created = nodes.first[at]
        if trie.on_long == "split":
            tree = (ranges.lows[span] - 1) // trie.seq_len
            continues = starts > 0
            inherited = continues & (tree == (starts - 1) // trie.seq_len)
            created = created + np.where(inherited, 0, tree - -(-starts // trie.seq_len) + continues)
        last[span] = nodes.place[created] if len(nodes.place) else created
        np.maximum.at(needs, last[span], ranges.trained(examples.supervision, span, prune=prune).astype(np.int32))
    return last


def _need_tokens(needs: Int32Array, nodes: _Nodes, trie: _Trie, supervised: Int32Array | None, zeros: Zeros) -> None:
    """Say of each node what its own tokens that train need: up to the last one; all of it without ``supervised``."""
    trains = np.zeros(0, dtype=np.int64)
    if supervised is not None:
        trains = select(len(supervised), lambda span: supervised[span] != 0, zeros)
    for span in spans(len(needs)):
        lows, highs = nodes.lows[span].astype(np.int64), nodes.highs[span].astype(np.int64)
        if supervised is None:
            needs[span] = np.where(highs > lows, highs, 0)
        elif len(trains):
            at = nodes.trie_nodes[span]
            shift = trie.offsets[at] - trie.depths[at]
            last = np.searchsorted(trains, highs + shift, side="left") - 1
            found = trains[np.maximum(last, 0)] + 1 - shift
            needs[span] = np.where((last >= 0) & (found > lows), found, 0)


def _raised(needs: Int32Array, parents: Int32Array, *, compiles: bool) -> Int32Array:
    """Return the largest need at or below every node."""
    if compiles:
        from dagpack_cli.packing import kernels_cutting

        kernels_cutting.raise_needs(needs, parents)
        return needs
    ends = subtree_ends(parents)
    # A sparse table, one level at a time. O(n log n).
    levels = np.frexp((ends - np.arange(len(ends))).astype(np.float64))[1] - 1
    result, table = needs.copy(), needs.copy()
    for level in range(int(levels.max(initial=0)) + 1):
        chosen = np.flatnonzero(levels == level)
        result[chosen] = np.maximum(table[chosen], table[ends[chosen] - (1 << level)])
        table = np.maximum(table[: max(len(table) - (1 << level), 0)], table[1 << level :])
    return result


def _nearest(numbers: Int32Array, parents: Int32Array, zeros: Zeros, *, compiles: bool) -> Int32Array:
    """Return the deepest node at or above each one that stays, -1 where none does."""
    num = len(numbers)
    if compiles:
        from dagpack_cli.packing import kernels_cutting

        found: Int32Array = zeros(num, np.int32)
        kernels_cutting.find_nearest(found, numbers, parents)
        return found
    at = np.append(np.where(numbers >= 0, np.arange(num), parents), num)
    at[at == -1] = num  # one past the end stands for "none", so that -1 jumps to itself
    while not np.array_equal(further := at[at], at):
        at = further
    return np.where(at[:-1] == num, -1, at[:-1]).astype(np.int32)


def _pruned(
    nodes: _Nodes, needs: Int32Array, trie: _Trie, zeros: Zeros, *, compiles: bool
) -> tuple[RowForest, Int32Array]:
    """Return the forest of the nodes that something needs, and the number of each there, -1 where it does not stay."""
    num = len(needs)
    numbers, kept = zeros(num, np.int32), 0
    for span in spans(num):
        stays = needs[span] > nodes.lows[span]
        ends = kept + np.cumsum(stays)
        numbers[span] = np.where(stays, ends - 1, -1)
        kept = int(ends[-1])
    parents, lengths, depths = zeros(kept, np.int32), zeros(kept, np.int64), zeros(kept, np.int64)
    columns = {
        name: zeros(kept, np.int64) for name in ("token_starts", "first_inputs", "first_targets", "trees", "trie_nodes")
    }
    done, trees, last_tree = 0, -1, -1
    for span in spans(num):
        chosen = np.flatnonzero(numbers[span] >= 0) + span.start
        to = slice(done, done + len(chosen))
        done = to.stop
        if len(chosen) == 0:
            continue
        above = nodes.parents[chosen]
        lows, at = nodes.lows[chosen].astype(np.int64), nodes.trie_nodes[chosen]
        starts = trie.depths[at].astype(np.int64)
        token_starts = trie.offsets[at] + lows - starts
        parents[to] = np.where(above >= 0, numbers[above], -1)
        lengths[to] = np.minimum(nodes.highs[chosen], needs[chosen]) - lows
        depths[to] = lows - nodes.origins[chosen] - 1
        columns["token_starts"][to] = token_starts
        before = trie.offsets[np.maximum(trie.parents[at], 0) + 1] - 1
        columns["first_inputs"][to] = np.where(lows > starts, token_starts - 1, before)
        columns["first_targets"][to] = lows
        numbered = trees + np.cumsum(np.diff(nodes.trees[chosen], prepend=last_tree) != 0)
        columns["trees"][to] = numbered
        columns["trie_nodes"][to] = at
        trees, last_tree = int(numbered[-1]), int(nodes.trees[chosen[-1]])
    ends = zeros(kept, np.int32)
    if compiles:
        from dagpack_cli.packing import kernels_cutting

        kernels_cutting.fill_ends(ends, parents)
    else:
        ends[:] = subtree_ends(parents)
    return RowForest(forest=Forest(parents=parents, lengths=lengths, depths=depths, ends=ends), **columns), numbers
