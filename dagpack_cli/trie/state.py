"""Merge paths that reach the same state: a graph, laid out as its breadth-first tree.

Every distinct transition becomes one row. A state hangs below the parent that reaches it first
breadth-first, so its depth is its distance from the start; every other transition into it is a leaf.
Valid only where the next step depends on the state alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, select, spans
from dagpack_cli.preorder import subtree_ends
from dagpack_cli.trie.nodes import Trie, narrow
from dagpack_cli.trie.transitions import Transitions
from dagpack_cli.trie.weights import check_weights

__all__ = ["merge_states"]

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Search:
    """What the breadth-first search over the transitions found.

    Attributes:
        order: shape (num_reached,), int64; the states in the order in which they were reached.
        levels: where in it each level begins, and its length.
        is_tree: shape (num_transitions,), bool; does a transition carry its target's subtree?
        first: shape (num_states,), int64; each state's first outgoing transition.
        last: likewise, exclusive.
    """

    order: Int64Array
    levels: list[int]
    is_tree: npt.NDArray[np.bool_]
    first: Int64Array
    last: Int64Array

    def blocks(self, *, backwards: bool = False) -> Iterator[Int64Array]:
        """Yield some states of one level at a time."""
        ranges = list(zip(self.levels[:-1], self.levels[1:], strict=True))
        for low, high in reversed(ranges) if backwards else ranges:
            for span in spans(high - low):
                yield self.order[low + span.start : low + span.stop]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of the tree in preorder, one a transition and one a start; each column of shape (num_tokens,)."""

    tokens: Int32Array
    counts: Int64Array
    weights: npt.NDArray[np.float64]
    supervised: Int64Array
    parent: Int64Array
    depth: Int64Array


def merge_states(transitions: Transitions, zeros: Zeros = np.zeros) -> Trie:
    """Return the breadth-first tree of the transitions as a trie: one token a transition, and the starts.

    Ties go to the parent reached earlier, starts in ascending order first. Cycles and transitions
    into a state that hangs elsewhere end in a leaf. Time O(transitions log transitions), no recursion.

    Args:
        transitions: of the corpus.
        zeros: makes the arrays with an entry a transition or a state: some 120 bytes each in all. Besides, 28 bytes
            a level and some 85 a node of the trie are held.
    """
    search = _search(transitions, zeros)
    sizes, below = _subtree_sizes(transitions, search, zeros)
    found = _tokens(transitions, search, sizes, below, zeros)
    del search, sizes, below
    return _compress(found, zeros)


def _ranges(firsts: Int64Array, lasts: Int64Array) -> Int64Array:
    """Return the indices of the half-open ranges, one range after the other."""
    sizes = lasts - firsts
    shift = np.repeat(firsts - np.concatenate(([0], np.cumsum(sizes)[:-1])), sizes) if len(sizes) else firsts
    return np.arange(int(sizes.sum())) + shift


def _search(transitions: Transitions, zeros: Zeros) -> _Search:
    num_states = 1 + max(
        int(transitions.sources.max(initial=-1)),
        int(transitions.targets.max(initial=-1)),
        int(transitions.starts.max(initial=-1)),
    )
    first, last = zeros(num_states, np.int64), zeros(num_states, np.int64)
    for span in spans(num_states):
        states = np.arange(span.start, span.stop)
        first[span] = np.searchsorted(transitions.sources, states, side="left")
        last[span] = np.searchsorted(transitions.sources, states, side="right")
    reached, order = zeros(num_states, np.bool_), zeros(num_states, np.int64)
    is_tree = zeros(len(transitions.sources), np.bool_)
    num = len(transitions.starts)
    for span in spans(num):
        order[span] = transitions.starts[span]
        reached[transitions.starts[span]] = True
    levels = [0]
    while num > levels[-1]:
        frontier = order[levels[-1] : num]
        levels.append(num)
        for span in spans(len(frontier)):
            outgoing = _ranges(first[frontier[span]], last[frontier[span]])
            outgoing = outgoing[~reached[transitions.targets[outgoing]]]
            _, earliest = np.unique(transitions.targets[outgoing], return_index=True)
            chosen = outgoing[np.sort(earliest)]
            is_tree[chosen] = True
            order[num : num + len(chosen)] = transitions.targets[chosen]
            reached[transitions.targets[chosen]] = True
            num += len(chosen)
    return _Search(order[:num], levels, is_tree, first, last)


def _subtree_sizes(transitions: Transitions, search: _Search, zeros: Zeros) -> tuple[Int64Array, Int64Array]:
    """Return the tokens at or below every transition, and below every state."""
    sizes, below = zeros(len(transitions.sources), np.int64), zeros(len(search.first), np.int64)
    for span in spans(len(sizes)):
        sizes[span] = 1
    for states in search.blocks(backwards=True):
        outgoing = _ranges(search.first[states], search.last[states])
        tree = outgoing[search.is_tree[outgoing]]
        sizes[tree] += below[transitions.targets[tree]]
        sums = np.concatenate(([0], np.cumsum(sizes[outgoing])))
        ends = np.cumsum(search.last[states] - search.first[states])
        below[states] = sums[ends] - sums[ends - (search.last[states] - search.first[states])]
    return sizes, below


def _tokens(transitions: Transitions, search: _Search, sizes: Int64Array, below: Int64Array, zeros: Zeros) -> _Tokens:
    """Return every transition, and every start, at its place in preorder."""
    at = zeros(len(search.first), np.int64)  # the token that carries each state's subtree
    num = 0
    for span in spans(len(transitions.starts)):
        starts = transitions.starts[span]
        ends = num + np.cumsum(below[starts] + 1)
        at[starts] = ends - below[starts] - 1
        num = int(ends[-1])
    found = _Tokens(
        tokens=zeros(num, np.int32),
        counts=zeros(num, np.int64),
        weights=zeros(num, np.float64),
        supervised=zeros(num, np.int64),
        parent=zeros(num, np.int64),
        depth=zeros(num, np.int64),
    )
    for span in spans(len(transitions.starts)):
        roots = at[transitions.starts[span]]
        found.parent[roots] = -1
        found.tokens[roots], found.counts[roots] = transitions.starts[span], transitions.start_counts[span]
    for states in search.blocks():
        degrees = search.last[states] - search.first[states]
        outgoing = _ranges(search.first[states], search.last[states])
        before = np.cumsum(sizes[outgoing]) - sizes[outgoing]
        heads = np.cumsum(degrees) - degrees
        base = before[heads[degrees > 0]]
        owners = np.repeat(at[states], degrees)
        places = owners + 1 + before - np.repeat(base, degrees[degrees > 0])
        found.parent[places] = owners
        found.depth[places] = found.depth[owners] + 1
        found.tokens[places], found.counts[places] = transitions.targets[outgoing], transitions.counts[outgoing]
        found.weights[places] = transitions.weights[outgoing]
        found.supervised[places] = transitions.supervised[outgoing]
        is_tree = search.is_tree[outgoing]
        at[transitions.targets[outgoing[is_tree]]] = places[is_tree]
    return found


def _compress(found: _Tokens, zeros: Zeros) -> Trie:
    """Join tokens that follow one another without a branch, and with equal counts, into runs."""
    num = len(found.tokens)
    stored, supervised = zeros(num, np.float32), zeros(num, np.int32)
    for span in spans(num):
        with np.errstate(over="ignore"):
            stored[span] = found.weights[span]
        check_weights(stored[span])
        supervised[span] = narrow(found.supervised[span])
    joins = _joins(found, zeros)
    heads = select(num, lambda span: ~joins[span], zeros)
    node_of, done = zeros(num, np.int32), -1
    for span in spans(num):
        node_of[span] = done + np.cumsum(~joins[span])
        done = int(node_of[span.stop - 1])
    offsets, parents = zeros(len(heads) + 1, np.int64), zeros(len(heads), np.int32)
    depths, counts = zeros(len(heads), np.int32), zeros(len(heads), np.int32)
    offsets[-1] = num
    for span in spans(len(heads)):
        offsets[span] = heads[span]
        above = found.parent[heads[span]]
        parents[span] = np.where(above >= 0, node_of[np.maximum(above, 0)], -1)
        depths[span] = narrow(found.depth[heads[span]])
    for span in spans(len(heads)):
        counts[span] = narrow(found.counts[offsets[span.start + 1 : span.stop + 1] - 1])
    return Trie(
        tokens=found.tokens,
        weights=stored,
        offsets=offsets,
        parents=parents,
        depths=depths,
        counts=counts,
        subtree_ends=subtree_ends(parents),
        supervised=supervised,
    )


def _joins(found: _Tokens, zeros: Zeros) -> npt.NDArray[np.bool_]:
    """Return which tokens stand in one run with the token before them."""
    num = len(found.tokens)
    children, joins = zeros(num, np.int64), zeros(num, np.bool_)
    for span in spans(num):
        above = found.parent[span]
        np.add.at(children, above[above >= 0], 1)
    for span in spans(num):
        above = np.maximum(found.parent[span], 0)
        is_only = (found.parent[span] == np.arange(span.start - 1, span.stop - 1)) & (found.parent[span] >= 0)
        is_only &= children[above] == 1
        joins[span] = is_only & ((found.counts[span] == found.counts[above]) | (found.parent[above] == -1))
    return joins
