"""Pack: cut and prune the tries, plan the windows, write shards, provenance and manifest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.failpoints import step
from dagpack_cli.manifest import (
    FORMAT_VERSION,
    FileEntry,
    Manifest,
    PackOptions,
    fingerprint,
    library_versions,
)
from dagpack_cli.memory import Scratch, Zeros, give_back, scratch_limit, select, spans
from dagpack_cli.partitions import PARTITIONS
from dagpack_cli.provenance import DROPPED, KEPT, STATUSES, ExampleColumns, read_columns, rewrite_provenance
from dagpack_cli.shards import (
    windows_per_file,
    write_shards,
)
from dagpack_cli.stages.dedup import TrieInfo
from dagpack_cli.stages.ledger import check_trains, packing_summary, partition_ledger, total_ledger
from dagpack_cli.stages.plan import (
    Partition,
    Planned,
    check_lengths,
    check_options,
    load_partition,
    plan_windows,
)
from dagpack_cli.stages.receipts import Listener
from dagpack_cli.storage import sha256_file
from dagpack_cli.trie import Engine

__all__ = ["pack_fingerprint", "pack_trie"]

Int64Array = npt.NDArray[np.int64]


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
    memory: int,
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
        memory: bytes that the build may hold; larger arrays than `scratch_limit` are kept in files.
        workers: threads that write; they never change it either.
        listener: hears progress and notes.

    Raises:
        DataError: an example is too long and ``--on-long`` is ``error``.
        NoInputError: no pair is left to train on.
        UsageError: options that do not fit one another or the trie.
    """
    build_fingerprint, versions = pack_fingerprint(info, options)
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    scratch = Scratch(staged, scratch_limit(memory))
    columns = read_columns(source / "examples.parquet", PARTITIONS, scratch.zeros)
    partitions = [
        load_partition(name, source, info, columns, scratch.zeros)
        for name in PARTITIONS
        if (source / "trie" / name).is_dir()
    ]
    check_options(info, options, partitions)
    for partition in partitions:
        check_lengths(partition, info, options)
    for name in ("trie", "tokenizer"):
        with step("trie-link"):
            shutil.copytree(source / name, staged / name, copy_function=_link_or_copy if link else shutil.copyfile)
    metadata = {
        "dagpack.format_version": str(FORMAT_VERSION),
        "dagpack.seq_len": str(options.seq_len),
        "dagpack.window_len": str(options.capacity),
        "dagpack.vocab_size": str(info.tokenizer["vocab_size"]),
        "dagpack.tokenizer_sha256": str(info.tokenizer["sha256"]),
    }
    ledger: dict[str, Any] = {}
    packing: dict[str, Any] = {}
    provenance = _Provenance(columns, scratch.zeros)
    num_examples = columns.num_examples
    del columns
    give_back()
    while partitions:
        partition = partitions.pop(0)  # so that what is known of one is let go before the next
        planned = plan_windows(partition, info, options, engine, scratch.zeros)
        give_back()
        with step("shards-write"):
            report = write_shards(
                staged / "shards",
                partition.name,
                planned.windows,
                shard_format=options.shard_format,
                window_len=options.capacity,
                metadata=metadata | {"dagpack.partition": partition.name},
                compression_level=options.compression_level,
                workers=workers,
                progress=_told(partition.name, planned.windows.num_windows, listener),
            )
        give_back()
        provenance.add(partition, planned)
        ledger[partition.name] = partition_ledger(partition, planned, report, info)
        packing[partition.name] = packing_summary(partition, planned, report, options, engine, scratch.zeros)
        del partition, planned
        give_back()
    ledger["total"] = total_ledger(ledger, info)
    ledger["reading"] = info.reading
    check_trains(packing, ledger, info, options.on_long)
    with step("examples-write"):
        rewrite_provenance(
            source / "examples.parquet",
            staged / "examples.parquet",
            provenance.windows(),
            provenance.statuses(),
            metadata,
            scratch.zeros,
        )
    give_back()
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
        files=_files_of(staged, _row_counts(rows, packing, options, num_examples)),
        ledger=ledger,
        packing=packing,
        statistics={"trie": info.profiles},
    )
    with step("manifest-write"):
        (staged / "manifest.json").write_bytes(manifest.to_bytes())
    return manifest


def _told(partition: str, num_windows: int, listener: Listener) -> Callable[[int], None]:
    """Return what tells of windows of a partition that have been written; that none has been is told at once."""
    stage = "pack" if partition == "train" else f"pack {partition}"
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        listener.progress(stage, done, num_windows)

    tell(0)
    return tell


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _row_counts(
    names: dict[str, int], packing: dict[str, Any], options: PackOptions, num_examples: int
) -> dict[str, int]:
    """Return the rows of each file: windows of a shard, examples of the provenance."""
    step = windows_per_file(options.capacity)
    counts = {"examples.parquet": num_examples}
    for name in names:
        partition, number = Path(name).stem.rsplit("-", 1)
        counts[name] = min(step, packing[partition]["windows"] - int(number) * step)
    return counts


class _Provenance:
    """Collects, partition by partition, which windows each example is in and what was dropped."""

    def __init__(self, columns: ExampleColumns, zeros: Zeros) -> None:
        self._zeros = zeros
        self._statuses = columns.statuses.copy()
        self._statuses[self._statuses == STATUSES.index(DROPPED)] = STATUSES.index(KEPT)
        self._sizes = zeros(columns.num_examples, np.int32)  # windows of each
        self._placed: list[tuple[Int64Array, npt.NDArray[np.int32]]] = []

    def add(self, partition: Partition, planned: Planned) -> None:
        """Take in one partition."""
        pieces, windows = planned.pieces, planned.windows.piece_windows
        placed = select(len(windows), lambda span: windows[span] >= 0, self._zeros)
        examples, numbers = self._zeros(len(placed), np.int64), self._zeros(len(placed), np.int32)
        for span in spans(len(placed)):
            examples[span] = partition.chosen[pieces.examples[placed[span]]]
            numbers[span] = windows[placed[span]]
            np.add.at(self._sizes, examples[span], 1)
        self._placed.append((examples, numbers))
        if pieces.num_dropped_examples:
            kept = np.zeros(len(partition.chosen), dtype=np.bool_)
            for span in spans(len(pieces.examples)):
                kept[pieces.examples[span]] = True
            for span in spans(len(kept)):
                self._statuses[partition.chosen[span][~kept[span]]] = STATUSES.index(DROPPED)

    def windows(self) -> tuple[Int64Array, npt.NDArray[np.int32]]:
        """Return offsets and window numbers of every example."""
        offsets = self._zeros(len(self._sizes) + 1, np.int64)
        for span in spans(len(self._sizes)):
            offsets[span.start + 1 : span.stop + 1] = offsets[span.start] + np.cumsum(self._sizes[span])
        found = self._zeros(int(offsets[-1]), np.int32)
        for examples, windows in self._placed:  # an example is in one partition, its pieces one after the other
            last, number = -1, 0
            for span in spans(len(examples)):
                block = examples[span]
                heads = np.flatnonzero(np.diff(block, prepend=-1) != 0)
                places = np.arange(len(block)) - np.repeat(heads, np.diff(heads, append=len(block)))
                if block[0] == last:  # the range before cuts it
                    places[: int(heads[1]) if len(heads) > 1 else len(block)] += number
                found[offsets[block] + places] = windows[span]
                last, number = int(block[-1]), int(places[-1]) + 1
        return offsets, found

    def statuses(self) -> npt.NDArray[np.int8]:
        """Return what became of every example, as an index into `STATUSES`."""
        return self._statuses


def _rows_of(name: str, rows: dict[str, int]) -> int | None:
    """Return the rows of a file, or of the folder of arrays it belongs to."""
    return rows.get(name, rows.get(name.rsplit("/", 1)[0]))


def _files_of(directory: Path, rows: dict[str, int]) -> list[FileEntry]:
    """Return every file below a folder but the manifest, with size and checksum, by name."""
    entries = []
    for root, _, names in os.walk(directory):
        for name in names:
            path = Path(root, name)
            relative = path.relative_to(directory).as_posix()
            if relative not in ("manifest.json", "run.json"):
                entries.append(
                    FileEntry(
                        path=relative, size=path.stat().st_size, sha256=sha256_file(path), rows=_rows_of(relative, rows)
                    )
                )
    return sorted(entries, key=lambda entry: entry.path)
