"""The trie of one partition, from its examples to its folder: no token is held in memory on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.examples import Examples
from dagpack_cli.manifest import TrieOptions
from dagpack_cli.memory import Zeros, give_back, spans
from dagpack_cli.packing.supervision import Supervision
from dagpack_cli.sequences import Sequences
from dagpack_cli.stages.conflicts import SymbolParts, markov_conflicts
from dagpack_cli.tokenizing import shown_symbol
from dagpack_cli.trie import (
    SEQUENCE_BYTES,
    Engine,
    Nodes,
    Transitions,
    build_nodes,
    check_weights,
    count_transitions,
    join_transitions,
    merge_states,
    save_nodes,
    save_trie,
    sweep_blocks,
)

__all__ = ["gather_supervision", "write_trie"]

Int64Array = npt.NDArray[np.int64]

# In which transitions are counted: fixed, for the sums of their weights depend on it. Some 150 bytes each are held.
_BLOCK_TOKENS = 1 << 19


def write_trie(
    examples: Examples,
    chosen: Int64Array,
    root: int | None,
    options: TrieOptions,
    parts: SymbolParts | None,
    directory: Path,
    end_nodes: Int64Array,
    *,
    engine: Engine,
    memory: int,
    workers: int,
    zeros: Zeros,
) -> list[Any]:
    """Write the trie of some examples with its weights; fill in their end nodes, and return Markov conflicts.

    Args:
        examples: of the corpus.
        chosen: shape (n,), int64; which are in the trie, ascending; none is empty.
        root: the token of the virtual root, or None.
        options: of the trie.
        parts: of the symbols, where tokens are symbols: (state, action) pairs with several next states are looked for.
        directory: of the trie, which is created.
        end_nodes: shape (num_examples,), int64; those of the chosen are set, but not under merge ``state``.
        engine: never changes the result.
        memory: bytes that the build may hold; half of them the sort.
        workers: threads that sort.
        zeros: makes the arrays with an entry an example or a node.
    """
    whole = len(chosen) == examples.num_examples
    sequences = examples.sequences if whole else examples.sequences.take(chosen, zeros)
    shift = 0 if root is None else 1
    conflicts: list[Any] = []
    if options.merge == "state" or parts is not None:
        supervision = gather_supervision(
            examples.runs, examples.run_offsets, examples.weights, chosen, shift, zeros=zeros
        )
        transitions = join_transitions(_counted(sequences, root, supervision, zeros), zeros)
        del supervision
        if parts is not None:
            conflicts = [
                [shown_symbol(state), action, [shown_symbol(outcome) for outcome in outcomes]]
                for state, action, outcomes in markov_conflicts(transitions, parts, zeros)
            ]
        if options.merge == "state":
            save_trie(merge_states(transitions, zeros), directory)
            return conflicts
        del transitions
    chunk = max(memory // (2 * SEQUENCE_BYTES * workers), 1)
    nodes, ends = build_nodes(
        sequences,
        root=root,
        min_shared=options.min_shared,
        engine=engine,
        chunk=chunk,
        workers=workers,
        zeros=zeros,
    )
    give_back()
    for span in spans(len(chosen)):
        end_nodes[chosen[span]] = ends[span]
    # An example trains up to its end, so its runs need no clipping but that of target 0, which is no pair.
    order = nodes.order
    for span in spans(len(order)):
        order[span] = chosen[order[span]]  # numbers among all examples from here on
    supervision = gather_supervision(
        examples.runs, examples.run_offsets, examples.weights, order, shift, first=1, zeros=zeros
    )
    del sequences
    sums = sweep_blocks(
        nodes.depths,
        _stops(nodes, zeros),
        _gathered(end_nodes, order, zeros),
        supervision.runs,
        supervision.run_offsets,
        supervision.weights,
        engine=engine,
        zeros=zeros,
    )
    save_nodes(nodes, _checked(sums), directory)
    return conflicts


def _stops(nodes: Nodes, zeros: Zeros) -> Int64Array:
    """Return the depth behind every node's last token."""
    stops = zeros(len(nodes.parents), np.int64)
    for span in spans(len(stops)):
        stops[span] = nodes.depths[span] + np.diff(nodes.offsets[span.start : span.stop + 1])
    return stops


def _gathered(values: npt.NDArray[Any], index: Int64Array, zeros: Zeros) -> npt.NDArray[Any]:
    """Return ``values[index]``."""
    found = zeros(len(index), values.dtype)
    for span in spans(len(index)):
        found[span] = values[index[span]]
    return found


def _checked(blocks: Iterator[tuple[int, npt.NDArray[np.float32]]]) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    for first, sums in blocks:
        check_weights(sums)
        yield first, sums


def _counted(sequences: Sequences, root: int | None, supervision: Supervision, zeros: Zeros) -> Iterator[Transitions]:
    """Yield the distinct transitions of block after block of sequences, each after the virtual root if there is one."""
    ends = zeros(len(sequences) + 1, np.int64)
    for span in spans(len(sequences)):
        ends[span.start + 1 : span.stop + 1] = ends[span.start] + np.cumsum(sequences.lengths[span])
    first = 0
    while first < len(sequences):
        last = int(np.searchsorted(ends, ends[first] + _BLOCK_TOKENS, side="right")) - 1
        last = max(last, first + 1)
        tokens, offsets = sequences.take(slice(first, last)).gather()
        if root is not None:
            tokens = np.insert(tokens, offsets[:-1], root)
            offsets = offsets + np.arange(len(offsets))
        yield _count(tokens, offsets, supervision, np.arange(first, last))
        first = last


def _count(
    tokens: npt.NDArray[np.int32], offsets: Int64Array, supervision: Supervision, index: Int64Array
) -> Transitions:
    """Return the distinct transitions of the examples of these numbers, whose tokens are given."""
    lengths = np.diff(offsets)
    runs, run_offsets = supervision.clip(index, np.ones(len(index), dtype=np.int64), lengths)
    owners = np.repeat(np.arange(len(index)), np.diff(run_offsets))
    change = np.zeros(len(tokens) + 1, dtype=np.int32)
    np.add.at(change, offsets[owners] + runs[:, 0], 1)
    np.add.at(change, offsets[owners] + runs[:, 1], -1)
    trains = np.cumsum(change[:-1]) > 0
    weights = np.where(trains, np.repeat(supervision.weights[index], lengths), 0.0)
    return count_transitions(tokens, offsets, weights, trains)


def gather_supervision(
    runs: npt.NDArray[np.int32],
    run_offsets: Int64Array,
    weights: npt.NDArray[np.float64],
    chosen: Int64Array,
    shift: int,
    *,
    first: int = 0,
    zeros: Zeros = np.zeros,
) -> Supervision:
    """Return the supervision of some examples, by depth in the trie: a virtual root shifts it by one.

    Args:
        runs: shape (num_runs, 2), int32; supervised ranges of examples' own tokens.
        run_offsets: shape (num_examples + 1,), int64, into ``runs``.
        weights: shape (num_examples,), float64; an example of weight 0 has no runs.
        chosen: shape (n,), int64; the examples, in any order.
        shift: tokens that stand before an example in the trie.
        first: the first target that is told of; runs are cut there.
        zeros: makes the arrays with an entry an example or a run.
    """
    offsets = zeros(len(chosen) + 1, np.int64)
    for span in spans(len(chosen)):
        sizes = np.where(weights[chosen[span]] != 0, run_offsets[chosen[span] + 1] - run_offsets[chosen[span]], 0)
        offsets[span.start + 1 : span.stop + 1] = offsets[span.start] + np.cumsum(sizes)
    found, own_weights = zeros((int(offsets[-1]), 2), np.int64), zeros(len(chosen), np.float64)
    done = low = 0
    for span in spans(len(chosen)):
        own_weights[span] = weights[chosen[span]]
        bounds = offsets[span.start : span.stop + 1].copy()
        bounds[0], low = low, bounds[-1]  # what stands there has been cut by now
        sizes = np.diff(bounds)
        index = np.arange(int(sizes.sum())) + np.repeat(run_offsets[chosen[span]] - bounds[:-1] + bounds[0], sizes)
        block = runs[index].astype(np.int64) + shift
        if first:
            owners = np.repeat(np.arange(len(sizes)), sizes)[block[:, 1] > first]
            block = np.maximum(block[block[:, 1] > first], first)
            sizes = np.bincount(owners, minlength=len(sizes))
        found[done : done + len(block)] = block
        offsets[span.start + 1 : span.stop + 1] = done + np.cumsum(sizes)
        done += len(block)
    return Supervision(runs=found[:done], run_offsets=offsets, weights=own_weights)
