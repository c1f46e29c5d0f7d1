"""The stages of a build as functions of a corpus in memory-mapped files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import numpy as np

from dagpack_cli.packing import best_fit_decreasing, pack_forest
from dagpack_cli.packing.cutting import cut_forest
from dagpack_cli.packing.pieces import ExampleEnds, cut_examples
from dagpack_cli.packing.supervision import Supervision
from dagpack_cli.sequences import Sequences
from dagpack_cli.shards import MergedWindows, UnmergedWindows, write_shards
from dagpack_cli.shards.files import ShardReport
from dagpack_cli.trie import Engine, Trie, build_nodes, save_nodes, sweep_blocks

from .families import Corpus

__all__ = ["store_trie", "write"]


def store_trie(corpus: Corpus, engine: Engine, folder: Path) -> ExampleEnds:
    """Write the trie of a corpus with its weights, a block of tokens at a time, as a build does."""
    shutil.rmtree(folder, ignore_errors=True)
    sequences = Sequences.of(corpus.tokens, corpus.offsets)
    nodes, ends = build_nodes(sequences, root=None, min_shared=1, engine=engine)
    order = np.asarray(nodes.order)
    lengths = np.diff(corpus.offsets)
    supervision = Supervision.of(corpus.runs, corpus.run_offsets, np.ones(corpus.num_sequences))
    runs, run_offsets = supervision.clip(order, np.ones(len(order), dtype=np.int64), lengths[order])
    stops = nodes.depths.astype(np.int64) + np.diff(nodes.offsets)
    sums = sweep_blocks(nodes.depths, stops, ends[order], runs, run_offsets, supervision.weights[order], engine=engine)
    save_nodes(nodes, sums, folder)
    return ExampleEnds(nodes=ends, lengths=lengths, supervision=supervision)


def write(
    trie: Trie, ends: ExampleEnds, seq_len: int, layout: Literal["dag", "best-fit"], directory: Path, engine: Engine
) -> ShardReport:
    """Plan the windows of a trie and write them, every column, as Parquet shards."""
    windows: MergedWindows | UnmergedWindows
    if layout == "dag":
        rows, pieces = cut_forest(trie.offsets, trie.parents, trie.depths, seq_len, "split", prune=True, examples=ends)
        placement = pack_forest(rows.forest, seq_len, engine=engine).placement
        windows = MergedWindows(trie, rows, placement, pieces, ends.supervision, None, arrange=True, engine=engine)
    else:
        pieces = cut_examples(ends, trie.parents, trie.depths, seq_len, "split", True)
        lengths = (pieces.highs - pieces.lows)[pieces.highs > pieces.lows]
        windows = UnmergedWindows(
            trie, pieces, best_fit_decreasing(lengths, seq_len, engine=engine), ends.supervision, engine
        )
    return write_shards(
        directory,
        "train",
        windows,
        shard_format="parquet",
        window_len=seq_len,
        metadata={},
        compression_level=1,
        workers=1,
        progress=lambda _: None,
    )
