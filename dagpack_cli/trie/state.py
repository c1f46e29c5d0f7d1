"""Merge paths that reach the same state: a graph, laid out as its breadth-first tree.

Every distinct transition becomes one row. A state hangs below the parent that reaches it first
breadth-first, so its depth is its distance from the start; every other transition into it is a leaf.
Valid only where the next step depends on the state alone; `markov_conflicts` looks for proof that it
does not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagpack_cli.preorder import subtree_ends
from dagpack_cli.trie.nodes import Trie, narrow
from dagpack_cli.trie.weights import check_weights

__all__ = ["Transitions", "count_transitions", "markov_conflicts", "merge_states"]

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Transitions:
    """The distinct transitions of a corpus, sorted by (source, target).

    Attributes:
        sources, targets: shape (num_transitions,), int64.
        counts, supervised: shape (num_transitions,), int64; crossings, and those that train.
        weights: shape (num_transitions,), float64.
        starts: shape (num_starts,), int64; the distinct first states, sorted.
        start_counts: shape (num_starts,), int64; sequences that start there.
    """

    sources: Int64Array
    targets: Int64Array
    counts: Int64Array
    supervised: Int64Array
    weights: npt.NDArray[np.float64]
    starts: Int64Array
    start_counts: Int64Array


def count_transitions(
    tokens: Int32Array, offsets: Int64Array, target_weights: npt.NDArray[np.float64], trains: npt.NDArray[np.bool_]
) -> Transitions:
    """Return the distinct transitions of the sequences and what crosses them.

    Args:
        tokens: shape (num_tokens,), int32, non-negative.
        offsets: shape (num_sequences + 1,), int64; no sequence is empty.
        target_weights: shape (num_tokens,), float64; example weight x supervision of the token.
        trains: shape (num_tokens,), bool; whether that token is supervised with a weight not 0.

    Time O(num_tokens log num_tokens).
    """
    follows = np.ones(len(tokens), dtype=bool)
    follows[offsets[:-1]] = False
    at = np.flatnonzero(follows)
    width = int(tokens.max(initial=0)) + 1
    keys, inverse, counts = np.unique(
        tokens[at - 1].astype(np.int64) * width + tokens[at], return_inverse=True, return_counts=True
    )
    starts, start_counts = np.unique(tokens[offsets[:-1]].astype(np.int64), return_counts=True)
    return Transitions(
        sources=keys // width,
        targets=keys % width,
        counts=counts.astype(np.int64),
        supervised=np.bincount(inverse, weights=trains[at], minlength=len(keys)).astype(np.int64),
        weights=np.bincount(inverse, weights=target_weights[at], minlength=len(keys)).astype(np.float64),
        starts=starts,
        start_counts=start_counts.astype(np.int64),
    )


@dataclass(slots=True)
class _Search:
    """What the breadth-first search over the transitions found."""

    levels: list[Int64Array]  # the states of each level, in the order they were reached
    is_tree: npt.NDArray[np.bool_]  # per transition: does it carry its target's subtree?
    first: Int64Array  # per state: its first outgoing transition
    last: Int64Array  # exclusive


def merge_states(transitions: Transitions) -> Trie:
    """Return the breadth-first tree of the transitions as a trie: one token a transition, and the starts.

    Ties go to the parent reached earlier, starts in ascending order first. Cycles and transitions
    into a state that hangs elsewhere end in a leaf. Time O(transitions log transitions), no recursion.
    """
    search = _search(transitions)
    sizes, below = _subtree_sizes(transitions, search)
    num_tokens = int(below[transitions.starts].sum()) + len(transitions.starts) if len(transitions.starts) else 0
    position, parent, depth = _positions(transitions, search, sizes, below, num_tokens)
    tokens = np.empty(num_tokens, dtype=np.int32)
    counts = np.empty(num_tokens, dtype=np.int64)
    weights = np.zeros(num_tokens, dtype=np.float64)
    supervised = np.zeros(num_tokens, dtype=np.int64)
    roots = np.flatnonzero(parent == -1)
    tokens[roots], counts[roots] = transitions.starts, transitions.start_counts
    tokens[position], counts[position] = transitions.targets, transitions.counts
    weights[position], supervised[position] = transitions.weights, transitions.supervised
    return _compress(tokens, counts, weights, supervised, parent, depth)


def _ranges(firsts: Int64Array, lasts: Int64Array) -> Int64Array:
    """Return the indices of the half-open ranges, one range after the other."""
    sizes = lasts - firsts
    shift = np.repeat(firsts - np.concatenate(([0], np.cumsum(sizes)[:-1])), sizes) if len(sizes) else firsts
    return np.arange(int(sizes.sum())) + shift


def _search(transitions: Transitions) -> _Search:
    num_states = 1 + max(
        int(transitions.sources.max(initial=-1)),
        int(transitions.targets.max(initial=-1)),
        int(transitions.starts.max(initial=-1)),
    )
    states = np.arange(num_states)
    first = np.searchsorted(transitions.sources, states, side="left")
    last = np.searchsorted(transitions.sources, states, side="right")
    reached = np.zeros(num_states, dtype=bool)
    reached[transitions.starts] = True
    is_tree = np.zeros(len(transitions.sources), dtype=bool)
    levels = []
    frontier = transitions.starts
    while len(frontier):
        levels.append(frontier)
        outgoing = _ranges(first[frontier], last[frontier])
        outgoing = outgoing[~reached[transitions.targets[outgoing]]]
        _, earliest = np.unique(transitions.targets[outgoing], return_index=True)
        chosen = outgoing[np.sort(earliest)]
        is_tree[chosen] = True
        frontier = transitions.targets[chosen]
        reached[frontier] = True
    return _Search(levels, is_tree, first, last)


def _subtree_sizes(transitions: Transitions, search: _Search) -> tuple[Int64Array, Int64Array]:
    """Return the tokens at or below every transition, and below every state."""
    sizes = np.ones(len(transitions.sources), dtype=np.int64)
    below = np.zeros(len(search.first), dtype=np.int64)
    for states in reversed(search.levels):
        outgoing = _ranges(search.first[states], search.last[states])
        tree = outgoing[search.is_tree[outgoing]]
        sizes[tree] += below[transitions.targets[tree]]
        sums = np.concatenate(([0], np.cumsum(sizes[outgoing])))
        ends = np.cumsum(search.last[states] - search.first[states])
        below[states] = sums[ends] - sums[ends - (search.last[states] - search.first[states])]
    return sizes, below


def _positions(
    transitions: Transitions, search: _Search, sizes: Int64Array, below: Int64Array, num_tokens: int
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return each transition's preorder position, and each token's parent token and depth."""
    position = np.zeros(len(sizes), dtype=np.int64)
    parent = np.full(num_tokens, -1, dtype=np.int64)
    depth = np.zeros(num_tokens, dtype=np.int64)
    at = np.zeros(len(search.first), dtype=np.int64)  # the token that carries each state's subtree
    roots = below[transitions.starts] + 1
    at[transitions.starts] = np.cumsum(roots) - roots
    for states in search.levels:
        degrees = search.last[states] - search.first[states]
        outgoing = _ranges(search.first[states], search.last[states])
        before = np.cumsum(sizes[outgoing]) - sizes[outgoing]
        heads = np.cumsum(degrees) - degrees
        base = before[heads[degrees > 0]]
        owners = np.repeat(at[states], degrees)
        position[outgoing] = owners + 1 + before - np.repeat(base, degrees[degrees > 0])
        parent[position[outgoing]] = owners
        depth[position[outgoing]] = depth[owners] + 1
        tree = outgoing[search.is_tree[outgoing]]
        at[transitions.targets[tree]] = position[tree]
    return position, parent, depth


def _compress(
    tokens: Int32Array,
    counts: Int64Array,
    weights: npt.NDArray[np.float64],
    supervised: Int64Array,
    parent: Int64Array,
    depth: Int64Array,
) -> Trie:
    """Join tokens that follow one another without a branch, and with equal counts, into runs."""
    num = len(tokens)
    children = np.bincount(parent[parent >= 0], minlength=num) if num else np.zeros(0, dtype=np.int64)
    index = np.arange(num)
    joins = (parent >= 0) & (parent == index - 1)
    joins[joins] = children[parent[joins]] == 1
    joins[joins] = (counts[joins] == counts[parent[joins]]) | (parent[parent[joins]] == -1)
    heads = np.flatnonzero(~joins)
    node_of = np.cumsum(~joins) - 1
    lasts = np.append(heads[1:], num)[: len(heads)] - 1
    parents = np.where(parent[heads] >= 0, node_of[np.maximum(parent[heads], 0)], -1).astype(np.int32)
    with np.errstate(over="ignore"):
        stored = weights.astype(np.float32)
    check_weights(stored)
    return Trie(
        tokens=tokens,
        weights=stored,
        offsets=np.append(heads, num).astype(np.int64),
        parents=parents,
        depths=narrow(depth[heads]),
        counts=narrow(counts[lasts]),
        subtree_ends=subtree_ends(parents),
        supervised=narrow(supervised),
    )


def markov_conflicts(transitions: Transitions, symbols: Sequence[bytes]) -> list[tuple[str, str, list[str]]]:
    """Return every (state, action) that leads to more than one next state, as JSON texts.

    Args:
        transitions: over symbol ids; ids without a symbol (a virtual root) are passed over.
        symbols: canonical JSON of ``{"action": ..., "state": ...}`` for every id.

    Transitions without an action are a choice, not a conflict. Sorted; time O(symbols + transitions).
    """
    parts = []
    for symbol in symbols:
        value = json.loads(symbol)
        record = value if isinstance(value, dict) else {"state": value}
        texts = [json.dumps(record[key], sort_keys=True) if key in record else None for key in ("state", "action")]
        parts.append((texts[0] if texts[0] is not None else symbol.decode(), texts[1]))
    outcomes: dict[tuple[str, str], set[str]] = {}
    for source, target in zip(transitions.sources.tolist(), transitions.targets.tolist(), strict=True):
        if source < len(parts) and target < len(parts) and (action := parts[target][1]) is not None:
            outcomes.setdefault((parts[source][0], action), set()).add(parts[target][0])
    return sorted((state, action, sorted(after)) for (state, action), after in outcomes.items() if len(after) > 1)
