"""A stored graph of states, as far as it can be checked without the sequences it was made of.

Of an example under merge ``state`` provenance keeps how long it is, what of it trains and its weight, but not
its states: no trie holds them as a path. So each transition's own numbers cannot be counted again, nor how many
examples start at a state. What can be is that every transition stands there once, that each state goes on from one
place, no deeper than a transition into it allows, and that counts, supervised crossings and weights add up to those
of the examples.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import spans
from dagpack_cli.provenance import ExampleColumns
from dagpack_cli.trie import Trie
from dagpack_cli.verify.examples import Rules, runs_of
from dagpack_cli.verify.report import fail

__all__ = ["check_transitions"]

Int64Array = npt.NDArray[np.int64]


def check_transitions(where: Path, trie: Trie, columns: ExampleColumns, examples: Int64Array, rules: Rules) -> None:
    """Raise unless a trie is the breadth-first tree of a graph, with the totals of its examples.

    Args:
        where: the trie's folder.
        trie: of merge ``state``, checked as a trie.
        columns: of the examples.
        examples: shape (n,), int64; those in the trie.
        rules: of the build.

    Time O(transitions log transitions), in memory.
    """
    lengths = np.diff(trie.offsets)
    nodes = np.repeat(np.arange(trie.num_nodes), lengths)
    tokens = np.asarray(trie.tokens).astype(np.int64)
    depths = np.arange(len(tokens)) - trie.offsets[nodes] + trie.depths[nodes]
    above = np.arange(len(tokens)) - 1
    heads = trie.offsets[:-1]
    above[heads] = np.where(trie.parents >= 0, trie.offsets[np.maximum(trie.parents, 0) + 1] - 1, -1)
    rows = np.flatnonzero(above >= 0)
    _check_graph(where, tokens, above, depths, rows)
    counts = trie.counts[nodes][rows].astype(np.int64)
    supervised = trie.supervised[rows].astype(np.int64)
    if ((supervised < 0) | (supervised > counts)).any():
        fail(where / "supervised.npy", "more supervised crossings than crossings, or fewer than none")
    roots = np.flatnonzero(above < 0)
    if (trie.weights[roots] != 0).any() or (trie.supervised[roots] != 0).any():
        fail(where / "weights.npy", "a start that trains")
    if (trie.weights[rows][supervised == 0] != 0).any():
        fail(where / "weights.npy", "a transition that nothing supervises, with a weight")
    _check_sums(where, counts, supervised, trie.weights[rows].astype(np.float64), columns, examples, rules)


def _check_graph(where: Path, tokens: Int64Array, above: Int64Array, depths: Int64Array, rows: Int64Array) -> None:
    width = int(tokens.max(initial=0)) + 1
    keys = np.sort(tokens[above[rows]] * width + tokens[rows])
    if (keys[1:] == keys[:-1]).any():
        fail(where / "tokens.npy", "a transition that stands there twice", "once")
    roots = np.flatnonzero(above < 0)
    carriers = np.unique(np.concatenate((above[rows], roots)))  # what a state goes on from, and the starts
    states, numbers = np.unique(tokens[carriers], return_counts=True)
    if (numbers > 1).any():
        fail(where / "tokens.npy", "a state that goes on from several places", "one")
    # Breadth-first a state goes on no deeper than behind the first transition into it.
    at = np.searchsorted(states, tokens[rows])
    known = (at < len(states)) & (states[np.minimum(at, max(len(states) - 1, 0))] == tokens[rows])
    carried = np.zeros(len(states), dtype=np.int64)
    carried[np.searchsorted(states, tokens[carriers])] = depths[carriers]
    if (carried[at[known]] > depths[rows[known]]).any():
        fail(where / "depths.npy", "a state deeper than a transition into it", "its distance from a start")


def _check_sums(
    where: Path,
    counts: Int64Array,
    supervised: Int64Array,
    weights: npt.NDArray[np.float64],
    columns: ExampleColumns,
    examples: Int64Array,
    rules: Rules,
) -> None:
    pairs = trained = 0
    total = size = 0.0
    for span in spans(len(examples)):
        block = examples[span]
        pairs += int(rules.pairs(columns.lengths[block]).sum())
        runs = runs_of(columns, block, rules.shift)
        lengths = runs.highs - runs.lows
        trained += int(lengths.sum())
        own = columns.weights[block][runs.owners] * lengths
        total += float(own.sum())
        size += float(np.abs(own).sum())
    if int(counts.sum()) != pairs:
        fail(where / "counts.npy", f"{int(counts.sum()):,} crossings", f"{pairs:,}, the pairs of the examples")
    if int(supervised.sum()) != trained:
        fail(
            where / "supervised.npy", f"{int(supervised.sum()):,} supervised crossings", f"{trained:,}, of the examples"
        )
    # Each is rounded to float32, at the least to a multiple of 2^-149.
    slack = 2.0**-24 * float(np.abs(weights).sum()) + 1e-9 * size + len(weights) * 2.0**-149
    if abs(float(weights.sum()) - total) > slack:
        fail(where / "weights.npy", f"weights of {float(weights.sum()):g} in all", f"{total:g}, of the examples")
