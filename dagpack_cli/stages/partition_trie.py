"""The trie of one partition, from its examples to its folder: but for games, no token is held in memory on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.examples import Examples
from dagpack_cli.manifest import TrieOptions
from dagpack_cli.packing.supervision import Supervision
from dagpack_cli.tokenizing import shown_symbol
from dagpack_cli.trie import (
    SEQUENCE_BYTES,
    Engine,
    Transitions,
    build_nodes,
    check_weights,
    count_transitions,
    markov_conflicts,
    merge_states,
    save_nodes,
    save_trie,
    sweep_blocks,
)

__all__ = ["gather_supervision", "write_trie"]

Int64Array = npt.NDArray[np.int64]


def write_trie(
    examples: Examples,
    chosen: Int64Array,
    root: int | None,
    options: TrieOptions,
    symbols: list[bytes] | None,
    directory: Path,
    *,
    engine: Engine,
    memory: int,
    workers: int,
) -> tuple[Int64Array, list[Any]]:
    """Write the trie of some examples with its weights; return their end nodes, and Markov conflicts.

    Args:
        examples: of the corpus.
        chosen: shape (n,), int64; which are in the trie, ascending; none is empty.
        root: the token of the virtual root, or None.
        options: of the trie.
        symbols: of the vocabulary, where tokens are symbols: (state, action) pairs with several next
            states are looked for. Then, and under merge ``state``, the tokens are in memory.
        directory: of the trie, which is created.
        engine: never changes the result.
        memory: bytes that the sort may hold at a time.
        workers: threads that sort.

    Returns:
        end nodes of shape (n,), int64, -1 under merge ``state``; and the conflicts.
    """
    sequences = examples.sequences.take(chosen)
    shift = 0 if root is None else 1
    supervision = gather_supervision(examples.runs, examples.run_offsets, examples.weights, chosen, shift)
    lengths = sequences.lengths + shift
    ones = np.ones(len(chosen), dtype=np.int64)
    conflicts: list[Any] = []
    if options.merge == "state" or symbols is not None:
        transitions = _transitions(examples, chosen, root, supervision)
        if symbols is not None:
            conflicts = [
                [shown_symbol(state), action, [shown_symbol(outcome) for outcome in outcomes]]
                for state, action, outcomes in markov_conflicts(transitions, symbols)
            ]
        if options.merge == "state":
            save_trie(merge_states(transitions), directory)
            return np.full(len(chosen), -1, dtype=np.int64), conflicts
    chunk = max(memory // (SEQUENCE_BYTES * workers), 1)
    nodes, ends = build_nodes(
        sequences, root=root, min_shared=options.min_shared, engine=engine, chunk=chunk, workers=workers
    )
    order = np.argsort(ends, kind="stable")
    runs, run_offsets = supervision.clip(order, ones, lengths[order])
    starts = nodes.depths.astype(np.int64)
    sums = sweep_blocks(
        starts,
        starts + np.diff(nodes.offsets),
        ends[order],
        runs,
        run_offsets,
        supervision.weights[order],
        engine=engine,
    )
    save_nodes(nodes, _checked(sums), directory)
    return ends, conflicts


def _checked(blocks: Iterator[tuple[int, npt.NDArray[np.float32]]]) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    for first, sums in blocks:
        check_weights(sums)
        yield first, sums


def _transitions(examples: Examples, chosen: Int64Array, root: int | None, supervision: Supervision) -> Transitions:
    """Return the distinct transitions of some examples, each after the virtual root if there is one."""
    tokens, offsets = examples.sequences.take(chosen).gather()
    if root is not None:
        tokens = np.insert(tokens, offsets[:-1], root)
        offsets = offsets + np.arange(len(offsets))
    lengths = np.diff(offsets)
    index = np.arange(len(chosen))
    runs, run_offsets = supervision.clip(index, np.ones(len(chosen), dtype=np.int64), lengths)
    owners = np.repeat(index, np.diff(run_offsets))
    change = np.zeros(len(tokens) + 1, dtype=np.int64)
    np.add.at(change, offsets[owners] + runs[:, 0], 1)
    np.add.at(change, offsets[owners] + runs[:, 1], -1)
    trains = np.cumsum(change[:-1]) > 0
    weights = np.where(trains, np.repeat(supervision.weights, lengths), 0.0)
    return count_transitions(tokens, offsets, weights, trains)


def gather_supervision(
    runs: npt.NDArray[np.int32],
    run_offsets: Int64Array,
    weights: npt.NDArray[np.float64],
    chosen: Int64Array,
    shift: int,
) -> Supervision:
    """Return the supervision of some examples, by depth in the trie: a virtual root shifts it by one."""
    sizes = np.diff(run_offsets)[chosen]
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    index = np.arange(int(offsets[-1])) + np.repeat(run_offsets[:-1][chosen] - offsets[:-1], sizes)
    return Supervision.of(runs[index].astype(np.int64) + shift, offsets, weights[chosen])
