"""Check a published build: every byte's checksum, every window's invariants, the ledger.

The checks are written from the meaning of the columns, not from the code that wrote them. Work goes
shard by shard; what stays in memory grows with trie nodes and examples, not with rows or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dagpack_cli.errors import DagpackError
from dagpack_cli.manifest import Manifest
from dagpack_cli.memory import Scratch, Zeros, default_memory, give_back, scratch_limit, spans
from dagpack_cli.partitions import PARTITIONS
from dagpack_cli.provenance import KEPT, STATUSES, ExampleColumns, read_columns
from dagpack_cli.shards import WindowRows, read_shard
from dagpack_cli.trie import open_trie
from dagpack_cli.verify.files import check_files, check_names, check_output
from dagpack_cli.verify.owned import OwnershipCheck
from dagpack_cli.verify.report import VerifyReport, fail
from dagpack_cli.verify.shares import Shares, can_be_shared_out
from dagpack_cli.verify.tries import check_counts, check_trie
from dagpack_cli.verify.windows import check_windows

__all__ = ["VerifyReport", "check_files", "iter_windows", "verify_generation"]


def verify_generation(path: Path, manifest: Manifest) -> VerifyReport:
    """Check a generation, and the bytes of what stands around it in its output; failures are collected, not raised.

    Where a file is damaged its content is not looked at further. Time O(bytes + rows log rows); memory
    O(rows of a file), some 60 bytes an example and 30 a trie node (beyond `scratch_limit` of half of the machine's in
    temporary files), and 9 bytes a row of a partition in temporary files.
    """
    report = VerifyReport()
    for _, failure in check_files(path, manifest.files):
        report.files += 1
        if failure:
            report.failures.append(failure)
    damaged = bool(report.failures)
    report.failures += check_names(path, manifest.files)
    report.failures += check_output(path)
    if damaged:
        return report
    with TemporaryDirectory(prefix="dagpack-verify-") as folder:
        scratch = Scratch(Path(folder), scratch_limit(default_memory()))
        checks: list[Callable[[], None]] = [partial(_check_ledger, path, manifest)]
        try:
            columns = read_columns(path / "examples.parquet", PARTITIONS, scratch.zeros, windows=True)
        except DagpackError as error:
            report.failures.append(str(error))
            return report
        checks.append(partial(_check_provenance, path, manifest, columns))
        for part in manifest.partitions:
            checks.append(partial(_check_trie, path, manifest, part, columns, scratch.zeros))
            checks.append(partial(_check_partition, path, part, manifest, columns, report, scratch.zeros))
        for check in checks:
            try:
                check()
            except DagpackError as error:
                report.failures.append(str(error))
            give_back()
    return report


def iter_windows(path: Path, manifest: Manifest, partition: str) -> Iterator[tuple[Path, WindowRows]]:
    """Yield every shard of a partition with its windows, in order."""
    for name in manifest.shards(partition):
        yield path / name, read_shard(path / name)


def _check_ledger(path: Path, manifest: Manifest) -> None:
    for part, ledger in manifest.ledger.items():
        for unit in ("examples", "pairs"):
            parts = ledger.get(unit)
            if parts is not None and parts["in"] != sum(value for name, value in parts.items() if name != "in"):
                fail(path / "manifest.json", f"the ledger of {part} does not balance: {unit} {parts}")


def _check_provenance(path: Path, manifest: Manifest, columns: ExampleColumns) -> None:
    for part in manifest.partitions:
        mine, status = PARTITIONS.index(part), STATUSES.index(KEPT)
        kept = int(np.count_nonzero((columns.partitions == mine) & (columns.statuses == status)))
        expected = manifest.ledger[part]["examples"]["kept"]
        if kept != expected:
            fail(path / "examples.parquet", f"{kept:,} kept examples in {part}", f"{expected:,}")


def _check_trie(path: Path, manifest: Manifest, part: str, columns: ExampleColumns, zeros: Zeros) -> None:
    trie, where = open_trie(path / "trie" / part), path / "trie" / part
    check_trie(where, trie, manifest.trie.min_shared, manifest.vocab_size)
    if manifest.trie.merge == "prefix":
        mine = PARTITIONS.index(part)
        nodes = (columns.end_nodes[span][columns.partitions[span] == mine] for span in spans(columns.num_examples))
        check_counts(where, trie, (ends[ends >= 0] for ends in nodes), zeros)


@dataclass(slots=True)
class _Totals:
    """Sums over the windows of a partition."""

    windows: int = 0
    rows: int = 0
    pairs: int = 0
    supervised_pairs: int = 0
    attention_edges: int = 0
    weight_sum: float = 0.0

    def add(self, windows: WindowRows) -> None:
        """Add the windows of a shard."""
        self.windows += windows.num_windows
        self.rows += len(windows.inputs)
        self.pairs += int(windows.counts.sum(dtype=np.int64))
        self.supervised_pairs += int(windows.num_supervised.sum())
        self.attention_edges += int(windows.attention_edges.sum())
        self.weight_sum += float(windows.weight_sum.sum())


def _check_partition(
    path: Path, part: str, manifest: Manifest, columns: ExampleColumns, report: VerifyReport, zeros: Zeros
) -> None:
    packing = manifest.packing[part]
    totals = _Totals()
    shares = None
    if can_be_shared_out(manifest):
        shares = Shares(columns, part, open_trie(path / "trie" / part), manifest, zeros)
    with OwnershipCheck(packing["rows"]) as owned:
        for shard, windows in iter_windows(path, manifest, part):
            check_windows(shard, windows, manifest)
            if shares is not None:
                shares.check(shard, windows, totals.windows)
            totals.add(windows)
            owned.add(windows)
        report.windows += totals.windows
        report.rows += totals.rows
        _check_totals(path, part, totals, packing, manifest.ledger[part]["pairs"]["in_windows"])
        owned.finish(path / "shards", part, packing["distinct_rows"])


def _check_totals(path: Path, part: str, totals: _Totals, packing: dict[str, Any], in_windows: int) -> None:
    for name in totals.__slots__:
        value, stored = getattr(totals, name), packing[name]
        near = name == "weight_sum" and np.isclose(value, stored, rtol=1e-9, atol=0)
        if value != stored and not near:
            fail(path / "shards", f"{part}: {name} {value:,}", f"{stored:,} as the manifest says")
    if totals.pairs != in_windows:
        fail(path / "manifest.json", f"{part}: the ledger has {in_windows:,} pairs in windows", f"{totals.pairs:,}")
