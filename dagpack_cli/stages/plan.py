"""Plan: what of each partition goes into which window, before any row is filled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.comparison import Costs, compare_packers
from dagpack_cli.errors import DataError, UsageError
from dagpack_cli.manifest import (
    UNMERGED_LAYOUTS,
    Manifest,
    PackOptions,
)
from dagpack_cli.memory import Zeros, give_back, select, spans
from dagpack_cli.packing import (
    Bound,
    Cost,
    Forest,
    Placement,
    best_fit_decreasing,
    lower_bound,
    next_fit,
    one_each,
    pack_forest,
    walk_forest,
)
from dagpack_cli.packing.cutting import RowForest
from dagpack_cli.packing.pieces import ExampleEnds, Pieces, cut_examples
from dagpack_cli.partitions import PARTITIONS
from dagpack_cli.provenance import DROPPED, KEPT, STATUSES, ExampleColumns, columns_of, read_provenance
from dagpack_cli.shards import (
    MergedWindows,
    UnmergedWindows,
    row_totals,
    state_totals,
)
from dagpack_cli.stages.apart import cut_rows, estimate_min_shared
from dagpack_cli.stages.dedup import TrieInfo
from dagpack_cli.stages.partition_trie import gather_supervision
from dagpack_cli.trie import Engine, Trie, open_trie

__all__ = [
    "Partition",
    "Placed",
    "Planned",
    "check_lengths",
    "check_options",
    "kept_pieces",
    "load_partition",
    "pieces_of",
    "place_windows",
    "plan_windows",
]

Int64Array = npt.NDArray[np.int64]

_LONGEST_ADVISED = 1 << 20  # no model is trained on longer windows


@dataclass(slots=True)
class Partition:
    """One partition on its way into windows."""

    name: str
    trie: Trie
    chosen: Int64Array  # of its examples, those in the trie
    ends: ExampleEnds
    partitions: npt.NDArray[np.int8]  # of the examples of all partitions, as are the two that follow
    statuses: npt.NDArray[np.int8]
    lengths: Int64Array
    source: Path  # where trie and provenance are


@dataclass(frozen=True, slots=True)
class Placed:
    """What stands in which window of a merged layout.

    Attributes:
        rows: the forest that was packed.
        pieces: the examples' pieces.
        placement: which runs stand in which window.
        bound: what any packing needs.
        strategy: the rule that made the windows.
        tried: what each rule that was tried needs.
        others: what other packers would need for the same rows.
    """

    rows: RowForest
    pieces: Pieces
    placement: Placement
    bound: Bound
    strategy: str
    tried: dict[str, Cost]
    others: dict[str, Costs]


@dataclass(slots=True)
class Planned:
    """What the packer decided for a partition."""

    windows: MergedWindows | UnmergedWindows
    pieces: Pieces
    bound: Bound
    strategy: str  # the rule that made the windows
    tried: dict[str, Cost]  # what each rule that was tried needs
    others: dict[str, Costs]  # what other packers would need for the same rows
    distinct_rows: int
    removed: int  # merge state: crossings of rows cut or pruned; else 0
    truncated: int
    min_shared: list[dict[str, Any]]  # estimates for other N, see `estimate_min_shared`


def load_partition(name: str, source: Path, info: TrieInfo, provenance: Any, zeros: Zeros = np.zeros) -> Partition:
    """Return a partition of a trie.

    Args:
        name: of the partition.
        source: where trie and provenance are.
        info: of the trie.
        provenance: of all examples: `ExampleColumns`, or a table of `read_provenance`.
        zeros: makes the arrays with an entry an example or a run.
    """
    columns = provenance if isinstance(provenance, ExampleColumns) else columns_of(provenance, PARTITIONS)
    number = PARTITIONS.index(name)
    in_trie = [STATUSES.index(KEPT), STATUSES.index(DROPPED)]
    chosen = select(
        columns.num_examples,
        lambda span: (columns.partitions[span] == number) & np.isin(columns.statuses[span], in_trie),
        zeros,
    )
    shift = 0 if info.virtual_root is None else 1
    nodes, lengths = zeros(len(chosen), np.int64), zeros(len(chosen), np.int64)
    for span in spans(len(chosen)):
        nodes[span] = columns.end_nodes[chosen[span]]
        lengths[span] = columns.lengths[chosen[span]] + shift
    ends = ExampleEnds(
        nodes=nodes,
        lengths=lengths,
        supervision=gather_supervision(columns.runs, columns.run_offsets, columns.weights, chosen, shift, zeros=zeros),
    )
    trie = open_trie(source / "trie" / name)
    return Partition(name, trie, chosen, ends, columns.partitions, columns.statuses, columns.lengths, source)


def check_options(info: TrieInfo, options: PackOptions, partitions: list[Partition]) -> None:
    """Raise `UsageError` where options of the packing do not fit the trie or its examples."""
    unmerged = options.layout in UNMERGED_LAYOUTS
    if info.trie.merge == "state" and unmerged:
        raise UsageError(
            f"--layout {options.layout}", "the trie merges states, in which examples are not apart", "dag or walk"
        )
    if info.trie.merge == "state" and options.on_long == "drop":
        raise UsageError(
            "--on-long drop", "under --merge state an example is not a path of the trie", "split, truncate or error"
        )
    if options.objective == "unique" and any((part.ends.supervision.weights < 0).any() for part in partitions):
        raise UsageError(
            "--objective unique",
            "some example weights are negative",
            "counted: one vote has no sign",
            hint="--objective counted",
        )


def check_lengths(partition: Partition, info: TrieInfo, options: PackOptions) -> None:
    """Raise for examples longer than a window where nothing says what to do with them."""
    if options.on_long != "error":
        return
    seq_len = options.seq_len
    if info.trie.merge == "state":
        deepest = int((partition.trie.depths + np.diff(partition.trie.offsets)).max(initial=0)) - 1
        if deepest <= seq_len:
            return
        found, longest = f"the deepest path of the graph has {deepest:,} rows", deepest
    else:
        lengths = partition.ends.lengths
        longest = max((int(lengths[span].max()) for span in spans(len(lengths))), default=0) - 1
        if longest <= seq_len:
            return
        long = select(len(lengths), lambda span: lengths[span] - 1 > seq_len, np.zeros)
        row = int(partition.chosen[long[0]])
        places = read_provenance(partition.source / "examples.parquet", ("file", "line", "record"))
        file, line, record = (places.column(name)[row].as_py() for name in ("file", "line", "record"))
        where = f"{file}:{line}" if line else f"{file}, record {record:,}"
        noun = "example is" if len(long) == 1 else "examples are"
        found = f"{len(long):,} {noun} longer than a window; the longest has {longest:,} pairs, the first is {where}"
    power = 1 << (longest - 1).bit_length()
    whole = f"--seq-len {power} holds them whole; " if power <= _LONGEST_ADVISED else ""
    raise DataError(
        f"--seq-len {seq_len}",
        found,
        f"at most {seq_len:,} pairs",
        hint=f"{whole}--on-long split cuts them and keeps every pair",
    )


def plan_windows(
    partition: Partition, info: TrieInfo, options: PackOptions, engine: Engine, zeros: Zeros = np.zeros
) -> Planned:
    """Return the windows of a partition in the layout asked for, and the lower bound on them.

    ``zeros`` makes the arrays with an entry an example, a node or a row.
    """
    trie, ends = partition.trie, partition.ends
    if options.layout in UNMERGED_LAYOUTS:
        return _plan_unmerged(trie, ends, options, engine, zeros)
    placed = place_windows(partition, info, options, engine, zeros=zeros)
    rows, pieces = placed.rows, placed.pieces
    state = info.trie.merge == "state"
    totals = None
    if state:
        totals = state_totals(rows, trie)
    elif options.layout == "walk":
        totals = row_totals(rows, pieces, ends.supervision, engine, zeros)
    arrange = options.layout == "dag"  # the walk is an order of its own
    windows = MergedWindows(
        trie, rows, placed.placement, pieces, ends.supervision, totals, engine, zeros=zeros, arrange=arrange
    )
    removed = truncated = 0
    if state and totals is not None:
        lost = _state_pairs(trie) - int((totals.counts * rows.forest.lengths).sum())
        truncated = _state_truncated(trie, options) if options.on_long == "truncate" else 0
        removed = lost - truncated
    distinct = int(rows.forest.lengths.sum())
    return Planned(
        windows,
        pieces,
        placed.bound,
        placed.strategy,
        placed.tried,
        placed.others,
        distinct,
        removed,
        truncated,
        [] if state else estimate_min_shared(trie, ends, info.trie, options, engine, zeros),
    )


def place_windows(
    partition: Partition,
    info: TrieInfo,
    options: PackOptions,
    engine: Engine,
    *,
    min_shared: int | None = None,
    zeros: Zeros = np.zeros,
) -> Placed:
    """Return what stands in which window of a merged layout, the bound, and what other packers would need.

    With ``min_shared`` as if the trie had been merged with it; see `cut_rows`. ``zeros`` makes the arrays with an
    entry an example or a node.
    """
    rows, pieces = cut_rows(
        partition.trie, partition.ends, info.trie, options, min_shared=min_shared, engine=engine, zeros=zeros
    )
    give_back()
    forest, size = rows.forest, options.capacity
    tried: dict[str, Cost] = {}
    if options.layout == "walk":
        strategy, bound = "walk", lower_bound(forest, size, engine=engine)
        placement = walk_forest(forest, size, engine=engine, zeros=zeros)
    else:
        packed = pack_forest(forest, size, polish=options.polish, engine=engine, zeros=zeros)
        strategy, bound, tried = packed.strategy, packed.bound, {str(name): cost for name, cost in packed.costs.items()}
        placement = packed.placement
    give_back()
    others = compare_packers(forest, size, _first_seen(forest, pieces, zeros), engine=engine, zeros=zeros)
    give_back()
    return Placed(rows, pieces, placement, bound, strategy, tried, others)


def _first_seen(forest: Forest, pieces: Pieces, zeros: Zeros) -> Int64Array | None:
    """Return the number of the first example that ends in each node, after all of them where none does.

    None where no examples are known.
    """
    if len(pieces.nodes) == 0:
        return None
    first = zeros(forest.num_nodes, np.int64)
    for span in spans(len(first)):
        first[span] = np.iinfo(np.int64).max
    for span in spans(len(pieces.nodes)):
        placed = pieces.nodes[span] >= 0
        np.minimum.at(first, pieces.nodes[span][placed], pieces.examples[span][placed])
    return first


def pieces_of(partition: Partition, info: TrieInfo, options: PackOptions) -> Pieces:
    """Return the pieces that the examples of a partition were packed as, ascending by example."""
    trie, ends = partition.trie, partition.ends
    if options.layout in UNMERGED_LAYOUTS:
        return cut_examples(ends, trie.parents, trie.depths, options.seq_len, options.on_long, options.prune)
    return cut_rows(trie, ends, info.trie, options)[1]


def kept_pieces(path: Path, manifest: Manifest, table: Any, part: str) -> Iterator[tuple[int, int, int]]:
    """Yield (trie node where the example ends, first target, exclusive last target) of every piece in windows.

    Targets are depths in the trie. A piece that pruning left without rows is not yielded.

    Args:
        path: of a published generation.
        manifest: of it.
        table: its provenance.
        part: the partition.
    """
    info, options = TrieInfo.from_manifest(manifest), manifest.pack
    partition = load_partition(part, path, info, table)
    pieces = pieces_of(partition, info, options)
    columns = (partition.ends.nodes[pieces.examples], pieces.lows, pieces.highs)
    for node, low, high in zip(*(column.tolist() for column in columns), strict=True):
        if high > low:
            yield node, low, high


def _state_pairs(trie: Trie) -> int:
    lengths = np.diff(trie.offsets) - (trie.parents == -1)
    return int((trie.counts.astype(np.int64) * lengths).sum())


def _state_truncated(trie: Trie, options: PackOptions) -> int:
    stops = trie.depths.astype(np.int64) + np.diff(trie.offsets)
    cut = np.maximum(stops - np.maximum(trie.depths, options.seq_len + 1), 0)
    return int((trie.counts.astype(np.int64) * cut).sum())


def _plan_unmerged(trie: Trie, ends: ExampleEnds, options: PackOptions, engine: Engine, zeros: Zeros) -> Planned:
    pieces = cut_examples(ends, trie.parents, trie.depths, options.seq_len, options.on_long, options.prune, zeros)
    lengths = zeros(len(pieces.lows), np.int64)
    num = rows = 0
    for span in spans(len(lengths)):
        some = pieces.highs[span] - pieces.lows[span]
        some = some[some > 0]
        lengths[num : num + len(some)] = some
        num += len(some)
        rows += int(some.sum())
    lengths = lengths[:num]
    if options.layout == "packed":
        placed = next_fit(lengths, options.capacity, engine=engine, zeros=zeros)
    elif options.layout == "best-fit":
        placed = best_fit_decreasing(lengths, options.capacity, engine=engine, zeros=zeros)
    else:
        placed = one_each(lengths, options.capacity, zeros=zeros)
    bound = lower_bound(Forest.of_chains(lengths, zeros), options.capacity, engine=engine)
    windows = UnmergedWindows(trie, pieces, placed, ends.supervision, engine, zeros=zeros)
    return Planned(windows, pieces, bound, options.layout, {}, {}, rows, 0, 0, [])
