"""What packing saves on a corpus of one's own, beside what others do with it.

``python -m tests.bench real CORPUS [--seq-len N,N,...] [--on-long split|truncate|drop] [--no-prune]
[--polish N] [options of dagpack ingest]``
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dagpack_cli.manifest import PackOptions, TrieOptions
from dagpack_cli.packing import Forest, Placement, walk_forest
from dagpack_cli.partitions import PARTITIONS
from dagpack_cli.pipeline import Execution, dedup
from dagpack_cli.provenance import read_columns
from dagpack_cli.stages.dedup import TrieInfo
from dagpack_cli.stages.ledger import baselines_of
from dagpack_cli.stages.plan import Partition, load_partition, place_windows
from dagpack_cli.stages.receipts import read_receipt

from .arrivals import place_arrivals
from .measure import print_table

__all__ = ["main", "real"]

_COLUMNS = (
    "rows of a window",
    "ideal",
    "bound",
    "ours",
    "strategy",
    "unavoidable replay",
    "rows/bound",
    "fewer attention edges",
    "walk",
    "first fit, input order",
    "first fit, shuffled",
    "best fit, no sharing",
)


def real(corpus: Path, options: Sequence[PackOptions], reading: Sequence[str]) -> None:
    """Print what each packer makes of a corpus: windows, and (sequence rows) / (rows computed).

    Args:
        corpus: a file or a folder.
        options: of the packing, one a length.
        reading: options of ``dagpack ingest``.
    """
    with TemporaryDirectory(prefix="dagpack-bench-") as temporary:
        out = Path(temporary) / "out"
        words = [sys.executable, "-m", "dagpack_cli", "ingest", str(corpus), str(out), *reading, "--quiet"]
        subprocess.run(words, check=True)
        trie = dedup(out, trie_options=TrieOptions(), execution=Execution())
        info = TrieInfo.from_receipt(read_receipt(trie) or {}, trie)
        partition = load_partition(PARTITIONS[0], trie, info, read_columns(trie / "examples.parquet", PARTITIONS))
        rows = [_row(partition, info, option) for option in options]
    print_table(
        f"{corpus.name}: windows, and how many times fewer rows are computed than the sequences have",
        _COLUMNS,
        rows,
    )


def _row(partition: Partition, info: TrieInfo, options: PackOptions) -> tuple[str, ...]:
    placed = place_windows(partition, info, options, "auto")
    forest, size, bound = placed.rows.forest, options.capacity, placed.bound
    if forest.num_nodes == 0:
        return (f"{size:,}", "nothing fits", *["-"] * (len(_COLUMNS) - 2))
    alone = baselines_of(partition, options, "auto")["best_fit"]
    pairs, distinct = alone["rows"], int(forest.lengths.sum())
    rows, edges = _rows_and_edges(forest, placed.placement)
    walk = walk_forest(forest, size)
    pieces = placed.pieces
    spans = (pieces.examples, pieces.lows, pieces.highs)
    trains = partition.ends.supervision.last_before(*spans) > pieces.lows  # pruned, the others are not there alone
    nodes = pieces.nodes[(pieces.nodes >= 0) & (trains | (not options.prune))]
    arrivals = (nodes, np.random.default_rng(5).permutation(nodes))
    others = [
        (walk.num_windows, _rows_and_edges(forest, walk)[0]),
        *(place_arrivals(forest, sequences, size) for sequences in arrivals),
        (alone["windows"], alone["rows"]),
    ]
    cells = [
        f"{windows:,} ({pairs / count:.3f}x)" for windows, count in ((placed.placement.num_windows, rows), *others)
    ]
    return (
        f"{size:,}",
        f"{pairs / distinct:.3f}x",
        f"{bound.windows:,}",
        cells[0],
        placed.strategy,
        f"{bound.rows / distinct:.3f}",
        f"{rows / bound.rows:.4f}",
        f"{alone['attention_edges'] / edges:.3f}x",
        *cells[1:],
    )


def _rows_and_edges(forest: Forest, placement: Placement) -> tuple[int, int]:
    lengths, depths = placement.ends, forest.depths[placement.nodes]
    return int(lengths.sum()), int((lengths * depths + lengths * (lengths + 1) // 2).sum())


def main(arguments: Sequence[str]) -> None:
    """Run on a corpus; what is not an option here is one of ``dagpack ingest``."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench real", description=__doc__, allow_abbrev=False)
    parser.add_argument("corpus", type=Path, metavar="CORPUS")
    parser.add_argument("--seq-len", default="4096,8192,32768,131072", metavar="N,N,...", help="rows of a window")
    parser.add_argument("--on-long", choices=("split", "truncate", "drop"), default="split")
    parser.add_argument("--prune", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--polish", type=int, help="attempts a window; default: as the bound advises")
    given, reading = parser.parse_known_args(arguments)
    real(
        given.corpus,
        [
            PackOptions(seq_len=int(length), on_long=given.on_long, prune=given.prune, polish=given.polish)
            for length in given.seq_len.split(",")
        ],
        reading,
    )
