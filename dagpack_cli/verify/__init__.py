"""Check a published build: every byte's checksum, every window's invariants, the ledger.

The checks are written from the meaning of the columns, not from the code that wrote them. Work goes
shard by shard; what stays in memory grows with trie nodes and examples, not with rows or tokens. Each thing is
held only against what has been found right before: examples against themselves, tries by themselves, both
against one another, windows against both.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from dagpack_cli.errors import DagpackError
from dagpack_cli.manifest import Manifest
from dagpack_cli.memory import Scratch, Zeros, default_memory, give_back, scratch_limit
from dagpack_cli.partitions import PARTITIONS
from dagpack_cli.provenance import read_columns
from dagpack_cli.trie import open_trie
from dagpack_cli.verify.examples import Rules, check_columns, check_ends
from dagpack_cli.verify.files import check_files, check_names, check_output
from dagpack_cli.verify.ledger import check_ledger
from dagpack_cli.verify.partition import (
    Known,
    check_partition,
    check_stored_totals,
    check_stored_trie,
    iter_windows,
)
from dagpack_cli.verify.report import VerifyReport

__all__ = ["VerifyReport", "check_files", "iter_windows", "verify_generation"]


def verify_generation(path: Path, manifest: Manifest) -> VerifyReport:
    """Check a generation, and the bytes of what stands around it in its output; failures are collected, not raised.

    Where a file is damaged its content is not looked at further. Time O(bytes + rows log rows); memory
    O(rows of a file), and in temporary files beyond `scratch_limit` of half of the machine's: some 100 bytes an
    example, 60 a trie node, 16 to 64 a token of the trie (the more digits weights have), and 13 a row of a partition.
    Under merge ``state`` no example says which transitions it is: see `transitions` for what can be checked there.
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
        _check_content(path, manifest, report, Scratch(Path(folder), scratch_limit(default_memory())).zeros)
    return report


def _check_content(path: Path, manifest: Manifest, report: VerifyReport, zeros: Zeros) -> None:
    """Check what the files say; what is found wrong is not relied upon by what follows."""

    def holds(check: Callable[..., None], *given: object) -> bool:
        try:
            check(*given)
        except DagpackError as error:
            report.failures.append(str(error))
            return False
        finally:
            give_back()
        return True

    rules, parts, where = Rules.of(manifest), manifest.partitions, path / "examples.parquet"
    try:
        columns = read_columns(where, PARTITIONS, zeros, windows=True)
        tries = {part: open_trie(path / "trie" / part) for part in parts}
    except DagpackError as error:
        report.failures.append(str(error))
        return
    known = {part: Known(columns, rules, tries[part], zeros) for part in parts}
    told = holds(check_columns, where, columns, rules, parts)
    for part in parts:
        told &= holds(check_stored_trie, path, part, manifest, known[part])
    told = told and holds(check_ends, where, columns, rules, tries)
    if told and not rules.state:
        for part in parts:
            holds(check_stored_totals, path, part, known[part])
    holds(check_ledger, path / "manifest.json", manifest, columns, rules, tries)
    for part in parts:
        holds(check_partition, path, part, manifest, known[part] if told else None, report)
