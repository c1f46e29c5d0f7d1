"""Pack: cut and prune the tries, plan the windows, write shards, provenance and manifest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DataError, NoInputError, UsageError
from dagpack_cli.examples import DROPPED, EMPTY, KEPT, SINGLE_TOKEN, read_provenance, supervised_runs, write_provenance
from dagpack_cli.manifest import (
    FORMAT_VERSION,
    UNMERGED_LAYOUTS,
    Manifest,
    PackOptions,
    fingerprint,
    library_versions,
)
from dagpack_cli.packing import (
    Bound,
    Forest,
    best_fit_decreasing,
    bundle_leaves,
    lower_bound,
    next_fit,
    one_each,
    place_leaves,
    walk_forest,
)
from dagpack_cli.packing.pieces import ExampleEnds, Pieces, cut_examples, cut_forest, piece_lengths
from dagpack_cli.partitions import PARTITIONS
from dagpack_cli.profile import layout_baselines
from dagpack_cli.shards import (
    MergedWindows,
    UnmergedWindows,
    row_totals,
    state_totals,
    windows_per_file,
    write_shards,
)
from dagpack_cli.shards.files import ShardReport
from dagpack_cli.stages.dedup import TrieInfo, files_of, gather_supervision
from dagpack_cli.stages.receipts import Listener
from dagpack_cli.trie import Engine, Trie, open_trie

__all__ = ["kept_pieces", "pack_fingerprint", "pack_trie"]

Int64Array = npt.NDArray[np.int64]
_LONGEST_ADVISED = 1 << 20  # no model is trained on longer windows


@dataclass(slots=True)
class _Partition:
    """One partition on its way into windows."""

    name: str
    trie: Trie
    rows_of_table: Int64Array  # of all its examples
    chosen: Int64Array  # of those in the trie
    ends: ExampleEnds
    table: Any


@dataclass(slots=True)
class _Planned:
    """What the packer decided for a partition."""

    windows: MergedWindows | UnmergedWindows
    pieces: Pieces
    bound: Bound
    distinct_rows: int
    removed: int  # merge state: crossings of rows cut or pruned; else 0
    truncated: int


def pack_fingerprint(info: TrieInfo, options: PackOptions) -> tuple[str, dict[str, str]]:
    """Return the fingerprint of a build, and the versions of the libraries that write it."""
    versions = library_versions(huggingface="tokenizers" in info.versions)
    return fingerprint(FORMAT_VERSION, info.trie_fingerprint, versions, asdict(options)), versions


def pack_trie(
    source: Path,
    info: TrieInfo,
    options: PackOptions,
    staged: Path,
    *,
    link: bool,
    engine: Engine,
    workers: int,
    listener: Listener,
) -> Manifest:
    """Write a complete generation, but for its name, into a staged folder; return its manifest.

    Args:
        source: a folder with ``trie``, ``tokenizer`` and ``examples.parquet``: staged or published.
        info: of that trie.
        options: of the packing.
        staged: the folder to write; what is in it is removed first.
        link: whether the trie's files may be hard links to the source's, which is then removed.
        engine: never changes the result.
        workers: threads that write; they never change it either.
        listener: hears progress and notes.

    Raises:
        DataError: an example is too long and ``--on-long`` is ``error``.
        NoInputError: no pair is left to train on.
        UsageError: options that do not fit one another or the trie.
    """
    build_fingerprint, versions = pack_fingerprint(info, options)
    table = read_provenance(source / "examples.parquet")
    partitions = [_partition(name, source, info, table) for name in PARTITIONS if (source / "trie" / name).is_dir()]
    _check_options(info, options, partitions)
    for partition in partitions:
        _check_lengths(partition, info, options)
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    for name in ("trie", "tokenizer"):
        shutil.copytree(source / name, staged / name, copy_function=_link_or_copy if link else shutil.copyfile)
    metadata = {
        "dagpack.format_version": str(FORMAT_VERSION),
        "dagpack.seq_len": str(options.seq_len),
        "dagpack.vocab_size": str(info.tokenizer["vocab_size"]),
        "dagpack.tokenizer_sha256": str(info.tokenizer["sha256"]),
    }
    ledger: dict[str, Any] = {}
    packing: dict[str, Any] = {}
    provenance = _Provenance(table)
    for partition in partitions:
        planned = _plan(partition, info, options, engine)
        report = write_shards(
            staged / "shards",
            partition.name,
            planned.windows,
            shard_format=options.shard_format,
            seq_len=options.seq_len,
            metadata=metadata | {"dagpack.partition": partition.name},
            compression_level=options.compression_level,
            workers=workers,
            progress=lambda _: None,
        )
        listener.progress("pack", len(packing) + 1, len(partitions))
        provenance.add(partition, planned)
        ledger[partition.name] = _ledger(partition, planned, report, info)
        packing[partition.name] = _summary(partition, planned, report, options, engine)
    ledger["total"] = _total(ledger, info)
    ledger["reading"] = info.reading
    _check_trains(packing, ledger)
    write_provenance(staged / "examples.parquet", table, provenance.windows(), metadata, provenance.statuses())
    rows = {f"shards/{path.name}": 0 for path in (staged / "shards").glob("*")}
    manifest = Manifest(
        fingerprint=build_fingerprint,
        trie_fingerprint=info.trie_fingerprint,
        versions=versions,
        ingest=info.ingest,
        trie=info.trie,
        pack=options,
        tokenizer=info.tokenizer,
        inputs=info.inputs,
        ignored=info.ignored,
        files=files_of(staged, _row_counts(rows, packing, options, table.num_rows)),
        ledger=ledger,
        packing=packing,
        statistics={"trie": info.profiles},
    )
    (staged / "manifest.json").write_bytes(manifest.to_bytes())
    return manifest


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _row_counts(
    names: dict[str, int], packing: dict[str, Any], options: PackOptions, num_examples: int
) -> dict[str, int]:
    """Return the rows of each file: windows of a shard, examples of the provenance."""
    step = windows_per_file(options.seq_len)
    counts = {"examples.parquet": num_examples}
    for name in names:
        partition, number = Path(name).stem.rsplit("-", 1)
        counts[name] = min(step, packing[partition]["windows"] - int(number) * step)
    return counts


def _partition(name: str, source: Path, info: TrieInfo, table: Any) -> _Partition:
    rows = np.flatnonzero(np.asarray(table.column("partition")) == name)
    statuses = np.asarray(table.column("status"))[rows]
    chosen = rows[(statuses == KEPT) | (statuses == DROPPED)]
    runs, run_offsets = supervised_runs(table)
    shift = 0 if info.virtual_root is None else 1
    lengths = np.asarray(table.column("num_tokens"), dtype=np.int64)
    weights = np.asarray(table.column("weight"), dtype=np.float64)
    ends = ExampleEnds(
        nodes=np.asarray(table.column("end_node"), dtype=np.int64)[chosen],
        lengths=lengths[chosen] + shift,
        supervision=gather_supervision(runs, run_offsets, weights, chosen, shift),
    )
    return _Partition(name, open_trie(source / "trie" / name), rows, chosen, ends, table)


def _check_options(info: TrieInfo, options: PackOptions, partitions: list[_Partition]) -> None:
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


def _check_lengths(partition: _Partition, info: TrieInfo, options: PackOptions) -> None:
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
        pairs = partition.ends.lengths - 1
        long = np.flatnonzero(pairs > seq_len)
        if len(long) == 0:
            return
        row = int(partition.chosen[long[0]])
        file = partition.table.column("file")[row].as_py()
        line = partition.table.column("line")[row].as_py()
        record = partition.table.column("record")[row].as_py()
        where = f"{file}:{line}" if line else f"{file}, record {record:,}"
        longest = int(pairs.max())
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


def _plan(partition: _Partition, info: TrieInfo, options: PackOptions, engine: Engine) -> _Planned:
    trie, ends = partition.trie, partition.ends
    if options.layout in UNMERGED_LAYOUTS:
        return _plan_unmerged(trie, ends, options, engine)
    state = info.trie.merge == "state"
    rows, pieces = cut_forest(
        trie.offsets,
        trie.parents,
        trie.depths,
        options.seq_len,
        options.on_long,
        prune=options.prune,
        examples=None if state else ends,
        supervised=trie.supervised if state else None,
    )
    bound = lower_bound(rows.forest, options.seq_len, engine=engine)
    if options.layout == "walk":
        placement = walk_forest(rows.forest, options.seq_len, engine=engine)
    else:
        leaf_windows = bundle_leaves(rows.forest, options.seq_len, engine=engine)
        placement = place_leaves(rows.forest, leaf_windows, engine=engine)
    totals = None
    if state:
        totals = state_totals(rows, trie)
    elif options.layout == "walk":
        totals = row_totals(rows, pieces, ends.supervision, engine)
    windows = MergedWindows(trie, rows, placement, pieces, ends.supervision, totals, engine)
    removed = truncated = 0
    if state:
        lost = int(_state_pairs(trie) - totals.counts.sum(dtype=np.int64)) if totals is not None else 0
        truncated = _state_truncated(trie, options) if options.on_long == "truncate" else 0
        removed = lost - truncated
    return _Planned(windows, pieces, bound, int(rows.forest.lengths.sum()), removed, truncated)


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
    partition = _partition(part, path, info, table)
    trie, ends = partition.trie, partition.ends
    if options.layout in UNMERGED_LAYOUTS:
        pieces = cut_examples(ends, trie.parents, trie.depths, options.seq_len, options.on_long, options.prune)
    else:
        _, pieces = cut_forest(
            trie.offsets,
            trie.parents,
            trie.depths,
            options.seq_len,
            options.on_long,
            prune=options.prune,
            examples=ends,
        )
    columns = (ends.nodes[pieces.examples], pieces.lows, pieces.highs)
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


def _plan_unmerged(trie: Trie, ends: ExampleEnds, options: PackOptions, engine: Engine) -> _Planned:
    pieces = cut_examples(ends, trie.parents, trie.depths, options.seq_len, options.on_long, options.prune)
    lengths = (pieces.highs - pieces.lows)[pieces.highs > pieces.lows]
    if options.layout == "packed":
        placed = next_fit(lengths, options.seq_len, engine=engine)
    elif options.layout == "best-fit":
        placed = best_fit_decreasing(lengths, options.seq_len, engine=engine)
    else:
        placed = one_each(lengths, options.seq_len)
    forest = Forest.from_parents(np.full(len(lengths), -1, dtype=np.int32), lengths, engine=engine)
    bound = lower_bound(forest, options.seq_len, engine=engine)
    windows = UnmergedWindows(trie, pieces, placed, ends.supervision, engine)
    return _Planned(windows, pieces, bound, int(lengths.sum()), 0, 0)


class _Provenance:
    """Collects, partition by partition, which windows each example is in and what was dropped."""

    def __init__(self, table: Any) -> None:
        self._statuses = np.asarray(table.column("status")).astype(object)
        self._statuses[self._statuses == DROPPED] = KEPT
        self._num = table.num_rows
        self._examples: list[Int64Array] = []
        self._windows: list[Int64Array] = []

    def add(self, partition: _Partition, planned: _Planned) -> None:
        """Take in one partition."""
        pieces, windows = planned.pieces, planned.windows.piece_windows
        placed = windows >= 0
        self._examples.append(partition.chosen[pieces.examples[placed]])
        self._windows.append(windows[placed])
        if pieces.num_dropped_examples:
            gone = np.setdiff1d(np.arange(len(partition.chosen)), pieces.examples)
            self._statuses[partition.chosen[gone]] = DROPPED

    def windows(self) -> tuple[Int64Array, Int64Array]:
        """Return offsets and window numbers of every example."""
        examples = np.concatenate(self._examples) if self._examples else np.zeros(0, dtype=np.int64)
        windows = np.concatenate(self._windows) if self._windows else np.zeros(0, dtype=np.int64)
        order = np.argsort(examples, kind="stable")
        sizes = np.bincount(examples, minlength=self._num)
        return np.concatenate(([0], np.cumsum(sizes))), windows[order]

    def statuses(self) -> list[str]:
        """Return what became of every example."""
        return [str(status) for status in self._statuses]


def _ledger(partition: _Partition, planned: _Planned, report: ShardReport, info: TrieInfo) -> dict[str, Any]:
    """Return what came in and where it is; a ledger that does not balance is a bug."""
    rows = partition.rows_of_table
    statuses = np.asarray(partition.table.column("status"))[rows]
    lengths = np.asarray(partition.table.column("num_tokens"), dtype=np.int64)[rows]
    root = 0 if info.virtual_root is None else 1
    pairs = int(np.maximum(lengths - 1 + np.where(lengths > 0, root, 0), 0).sum())
    pieces = planned.pieces
    dropped_examples = pieces.num_dropped_examples
    state = info.trie.merge == "state"
    result = {
        "examples": {
            "in": len(rows),
            "kept": len(partition.chosen) - dropped_examples,
            "empty": int(np.count_nonzero(statuses == EMPTY)),
            "single_token": int(np.count_nonzero(statuses == SINGLE_TOKEN)),
            "dropped": dropped_examples,
        },
        "pairs": {
            "in": pairs,
            "in_windows": report.counts,
            "pruned": planned.removed if state else pieces.num_pruned,
            "truncated": planned.truncated if state else pieces.num_truncated,
            "dropped": pieces.num_dropped,
        },
        "tokens_in": int(lengths.sum()),
        "merged": report.counts - report.owned,
    }
    check_balance(result)
    return result


def check_balance(ledger: dict[str, Any]) -> None:
    """Raise `RuntimeError`, a bug, unless examples and pairs in are those accounted for."""
    for unit in ("examples", "pairs"):
        parts = {name: value for name, value in ledger[unit].items() if name != "in"}
        if sum(parts.values()) != ledger[unit]["in"]:
            raise RuntimeError(f"the ledger does not balance: {unit} in {ledger[unit]['in']}, accounted for {parts}")


def _total(ledger: dict[str, Any], info: TrieInfo) -> dict[str, Any]:
    total: dict[str, Any] = {
        unit: {name: sum(part[unit][name] for part in ledger.values()) for name in next(iter(ledger.values()))[unit]}
        for unit in ("examples", "pairs")
    }
    dropped = info.reading["dropped_transitions"]
    total["pairs"]["in"] += dropped
    total["pairs"]["dropped"] += dropped
    for name in ("tokens_in", "merged"):
        total[name] = sum(part[name] for part in ledger.values())
    check_balance(total)
    return total


def _check_trains(packing: dict[str, Any], ledger: dict[str, Any]) -> None:
    """Raise unless the training partition has something to train on."""
    total = ledger["total"]
    if total["pairs"]["in"] == 0:
        raise NoInputError(
            "the corpus",
            f"no example of {total['examples']['in']:,} has two tokens",
            "at least one pair of a token and the next",
            hint="look into the files, or name what they hold with --format",
        )
    if total["pairs"]["dropped"] == total["pairs"]["in"]:
        raise NoInputError(
            "--on-long drop",
            f"every one of {total['examples']['dropped']:,} examples is dropped",
            "at least one to train on",
            hint="--on-long split keeps every pair; or a larger --seq-len",
        )
    if packing["train"]["supervised_pairs"] == 0:
        where = "the training partition" if len(packing) > 1 else "the corpus"
        raise NoInputError(
            where,
            f"no pair of its {ledger['train']['pairs']['in']:,} is supervised",
            "at least one to train on",
            hint="chat needs assistant messages; input_ids need labels other than -100; or lower --val-fraction",
        )


def _summary(
    partition: _Partition, planned: _Planned, report: ShardReport, options: PackOptions, engine: Engine
) -> dict[str, Any]:
    given, packed = (
        piece_lengths(partition.ends, options.seq_len, options.on_long, prune=prune) for prune in (False, options.prune)
    )
    turns = _turn_lengths(partition.ends, options)
    return {
        "windows": report.num_windows,
        "rows": report.num_rows,
        "distinct_rows": planned.distinct_rows,
        "pairs": report.counts,
        "supervised_pairs": report.num_supervised,
        "weight_sum": report.weight_sum,
        "negative_weights": bool((partition.ends.supervision.weights < 0).any()),
        "attention_edges": report.attention_edges,
        "blocks": report.blocks,
        "bound": {
            "windows": planned.bound.windows,
            "rows": planned.bound.rows,
            "attention_edges": planned.bound.attention,
        },
        "baselines": layout_baselines(given, packed, turns, options.seq_len, engine),
    }


def _turn_lengths(ends: ExampleEnds, options: PackOptions) -> Int64Array:
    """Return the pairs of one example per supervised run, where some example has more than one.

    What ``--on-long`` does to examples is done to these too: dropped, truncated, or split.
    """
    supervision, seq_len = ends.supervision, options.seq_len
    owners = np.repeat(np.arange(len(ends.lengths)), np.diff(supervision.run_offsets))
    pairs = supervision.runs[:, 1] - 1
    kept = pairs > 0
    if options.on_long == "drop":
        kept &= ends.lengths[owners] - 1 <= seq_len
    if options.on_long == "truncate":
        kept &= supervision.runs[:, 0] <= seq_len
        pairs = np.minimum(pairs, seq_len)
    if not (np.bincount(owners[kept]) > 1).any():
        return np.zeros(0, dtype=np.int64)
    pairs = pairs[kept]
    sizes = -(-pairs // seq_len)
    number = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.asarray(np.minimum(np.repeat(pairs, sizes) - number * seq_len, seq_len), dtype=np.int64)
