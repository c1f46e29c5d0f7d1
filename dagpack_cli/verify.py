"""Check a published build: every byte's checksum, every window's invariants, the ledger.

The checks are written from the meaning of the columns, not from the code that wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DagpackError, DamageError
from dagpack_cli.examples import read_provenance
from dagpack_cli.manifest import FileEntry, Manifest
from dagpack_cli.preorder import check_parents, depths_from_parents, subtree_ends
from dagpack_cli.shards import WindowRows, read_shard
from dagpack_cli.storage import sha256_file
from dagpack_cli.trie import open_trie

__all__ = ["VerifyReport", "check_files", "iter_windows", "verify_generation"]


@dataclass(slots=True)
class VerifyReport:
    """What was checked, and every failure found.

    Attributes:
        files, windows, rows: how many were checked.
        failures: ``where: found; expected``, in the order found.
    """

    files: int = 0
    windows: int = 0
    rows: int = 0
    failures: list[str] = field(default_factory=list)


def verify_generation(path: Path, manifest: Manifest) -> VerifyReport:
    """Check a generation; failures are collected, not raised.

    Where a file is damaged its content is not looked at further. Time O(bytes + rows log rows);
    memory O(rows of a file), and about 40 bytes per row of a partition for the ownership check.
    """
    report = VerifyReport()
    damaged = set()
    for entry, failure in check_files(path, manifest.files):
        report.files += 1
        if failure:
            report.failures.append(failure)
            damaged.add(entry.path)
    known = {entry.path for entry in manifest.files} | {"manifest.json", "run.json"}
    for extra in sorted(set(_file_names(path)) - known):
        report.failures.append(f"{path / extra}: not in the manifest; only files the build wrote")
    if damaged:
        return report
    checks: list[Callable[[], None]] = [partial(_check_provenance, path, manifest)]
    for part in manifest.partitions:
        checks.append(partial(_check_trie, path, part, manifest.trie.min_shared))
        checks.append(partial(_check_partition, path, part, manifest, report))
    for check in checks:
        try:
            check()
        except DagpackError as error:
            report.failures.append(str(error))
    return report


def _file_names(path: Path) -> Iterator[str]:
    return (entry.relative_to(path).as_posix() for entry in path.rglob("*") if not entry.is_dir())


def check_files(path: Path, entries: list[FileEntry]) -> Iterator[tuple[FileEntry, str]]:
    """Yield every file of a manifest with what is wrong with its size or checksum, or an empty string."""
    for entry in entries:
        file = path / entry.path
        if not file.is_file():
            yield entry, f"{file}: the file is missing; {entry.size:,} bytes"
        elif (size := file.stat().st_size) != entry.size:
            yield entry, f"{file}: {size:,} bytes; {entry.size:,} as the manifest says"
        elif (digest := sha256_file(file)) != entry.sha256:
            yield entry, f"{file}: sha256 {digest[:12]}; {entry.sha256[:12]} as the manifest says"
        else:
            yield entry, ""


def iter_windows(path: Path, manifest: Manifest, partition: str) -> Iterator[tuple[Path, WindowRows]]:
    """Yield every shard of a partition with its windows, in order."""
    for name in manifest.shards(partition):
        yield path / name, read_shard(path / name)


def _fail(where: Path | str, found: str, expected: str = "") -> None:
    raise DamageError(str(where), found, expected)


def _check_provenance(path: Path, manifest: Manifest) -> None:
    table = read_provenance(path / "examples.parquet")
    statuses = np.asarray(table.column("status"))
    partitions = np.asarray(table.column("partition"))
    for part in manifest.partitions:
        kept = int(np.count_nonzero((partitions == part) & (statuses == "kept")))
        expected = manifest.ledger[part]["examples"]["kept"]
        if kept != expected:
            _fail(path / "examples.parquet", f"{kept:,} kept examples in {part}", f"{expected:,}")
    for part, ledger in manifest.ledger.items():
        for unit in ("examples", "pairs"):
            parts = ledger.get(unit)
            if parts is not None and parts["in"] != sum(value for name, value in parts.items() if name != "in"):
                _fail(path / "manifest.json", f"the ledger of {part} does not balance: {unit} {parts}")


def _check_trie(path: Path, part: str, min_shared: int) -> None:
    trie = open_trie(path / "trie" / part)
    where = path / "trie" / part
    check_parents(trie.parents)
    lengths = np.diff(trie.offsets)
    if (lengths < 1).any():
        _fail(where / "offsets.npy", "an empty node", "every node holds a token")
    below = trie.parents >= 0
    above = trie.parents[below]
    if (trie.depths[below] != trie.depths[above] + lengths[above]).any() or trie.depths[~below].any():
        _fail(where / "depths.npy", "a depth that is not its parent's end")
    index = np.arange(trie.num_nodes)
    if (trie.subtree_ends != subtree_ends(trie.parents)).any():
        _fail(where / "subtree_ends.npy", "an end that is not where the subtree ends")
    firsts = trie.tokens[trie.offsets[:-1]]
    order = np.lexsort((index, trie.parents))
    siblings = trie.parents[order][1:] == trie.parents[order][:-1]
    # Trees that share less than --min-shared may start alike; below a root nothing does.
    apart = siblings & ((trie.parents[order][1:] >= 0) | (min_shared == 1))
    unsorted = (firsts[order][1:][siblings] < firsts[order][:-1][siblings]).any()
    if unsorted or (firsts[order][1:][apart] == firsts[order][:-1][apart]).any():
        _fail(where / "tokens.npy", "siblings out of order, or equal")


@dataclass(slots=True)
class _Totals:
    """Sums over the windows of a partition, and which distinct rows are owned."""

    windows: int = 0
    rows: int = 0
    counts: int = 0
    supervised: int = 0
    edges: int = 0
    weight: float = 0.0
    keys: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    owned: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    trains: list[npt.NDArray[np.bool_]] = field(default_factory=list)


def _check_partition(path: Path, part: str, manifest: Manifest, report: VerifyReport) -> None:
    totals = _Totals()
    for shard, windows in iter_windows(path, manifest, part):
        _check_windows(shard, windows, manifest)
        totals.windows += windows.num_windows
        totals.rows += len(windows.inputs)
        totals.counts += int(windows.counts.sum(dtype=np.int64))
        totals.supervised += int(windows.num_supervised.sum())
        totals.edges += int(windows.attention_edges.sum())
        totals.weight += float(windows.weight_sum.sum())
        totals.keys.append(_path_keys(windows))
        totals.owned.append(windows.owned)
        totals.trains.append(windows.weights != 0)
    report.windows += totals.windows
    report.rows += totals.rows
    packing = manifest.packing[part]
    found: dict[str, Any] = {
        "windows": totals.windows,
        "rows": totals.rows,
        "pairs": totals.counts,
        "supervised_pairs": totals.supervised,
        "attention_edges": totals.edges,
        "weight_sum": totals.weight,
    }
    for name, value in found.items():
        if value != packing[name] and not (
            name == "weight_sum" and np.isclose(value, packing[name], rtol=1e-9, atol=0)
        ):
            _fail(path / "shards", f"{part}: {name} {value:,}", f"{packing[name]:,} as the manifest says")
    _check_owned(path, part, totals, packing["distinct_rows"])


def _check_windows(shard: Path, windows: WindowRows, manifest: Manifest) -> None:
    """Check every window of a shard against what a window is."""
    sizes = np.diff(windows.row_offsets)
    if len(sizes) and (int(sizes.min()) < 1 or int(sizes.max()) > manifest.pack.capacity):
        _fail(shard, "a window without rows, or with more than fit", f"1 to {manifest.pack.capacity:,} rows")
    bases = np.repeat(windows.row_offsets[:-1], sizes)
    local = np.arange(len(bases)) - bases
    parents = windows.parents.astype(np.int64)
    _check_rows(shard, (parents < -1) | (parents >= local), bases, "a parent that is not an earlier row of the window")
    linked = np.where(parents >= 0, parents + bases, -1)
    try:
        depths = depths_from_parents(linked)
    except DagpackError as error:
        raise DamageError(str(shard), f"rows are not in preorder ({error.found})") from None
    _check_rows(shard, windows.depths != depths, bases, "a depth that is not the number of its ancestors")
    below = np.flatnonzero(parents >= 0)
    above = linked[below]
    _check_rows(
        shard, windows.inputs[below] != windows.targets[above], bases[below], "an input that is not its parent's target"
    )
    _check_rows(
        shard, windows.segments[below] != windows.segments[above], bases[below], "a segment that is not its parent's"
    )
    for name in ("inputs", "targets"):
        values = getattr(windows, name)
        _check_rows(shard, (values < 0) | (values >= manifest.vocab_size), bases, f"{name} outside the vocabulary")
    _check_rows(shard, windows.counts < 0, bases, "a negative count")
    _check_rows(shard, ~np.isfinite(windows.weights), bases, "a weight that is not finite")
    children = np.zeros(len(bases), dtype=np.int64)
    np.add.at(children, above, windows.counts[below])
    if manifest.pack.layout != "walk" and manifest.trie.merge != "state":
        _check_rows(shard, windows.counts < children, bases, "a count below that of the rows that follow")
    _check_sums(shard, windows, sizes)


def _check_rows(shard: Path, bad: npt.NDArray[np.bool_], bases: npt.NDArray[np.int64], found: str) -> None:
    if bad.any():
        base = int(bases[int(np.argmax(bad))])
        _fail(shard, f"{found}, in the window whose rows start at {base:,}")


def _check_sums(shard: Path, windows: WindowRows, sizes: npt.NDArray[np.int64]) -> None:
    owners = np.repeat(np.arange(len(sizes)), sizes)
    edges = np.bincount(owners, weights=windows.depths.astype(np.float64) + 1, minlength=len(sizes))
    if (edges != windows.attention_edges).any():
        _fail(shard, "attention_edges is not the sum of depth + 1")
    weights = np.bincount(owners, weights=windows.weights, minlength=len(sizes))
    if not np.allclose(weights, windows.weight_sum, rtol=1e-12, atol=0):
        _fail(shard, "weight_sum is not the sum of the weights")


def _path_keys(windows: WindowRows) -> npt.NDArray[np.uint64]:
    """Return a number for every row that says which distinct row it is: a hash of segment and path.

    The hash of a path is the sum over it of mix(target) x odd^depth, modulo 2^64, so a whole run
    is one cumulative sum; a run that does not continue its predecessor is corrected by one number.
    """
    num = len(windows.inputs)
    if num == 0:
        return np.zeros(0, dtype=np.uint64)
    sizes = np.diff(windows.row_offsets)
    bases = np.repeat(windows.row_offsets[:-1], sizes)
    parents = np.where(windows.parents >= 0, windows.parents + bases, -1)
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.full(int(windows.depths.max()) + 2, 0x9E3779B97F4A7C15, dtype=np.uint64))
        terms = _mix(windows.targets.astype(np.uint64)) * powers[windows.depths + 1]
        roots = windows.parents < 0
        start = _mix(
            windows.segments.astype(np.uint64) + np.uint64(1) << np.uint64(32) | windows.inputs.astype(np.uint64)
        )
        terms = np.where(roots, terms + start, terms)
        sums = np.cumsum(terms)
        heads = np.flatnonzero(parents != np.arange(num) - 1)
        heads = heads if len(heads) and heads[0] == 0 else np.concatenate(([0], heads))
        run_of = np.zeros(num, dtype=np.int64)
        run_of[heads] = 1
        run_of = np.cumsum(run_of) - 1
        before = np.where(heads > 0, sums[heads - 1], np.uint64(0))
        shifts = np.zeros(len(heads), dtype=np.uint64)
        run_parents = parents[heads].tolist()
        parent_runs = run_of[np.maximum(parents[heads], 0)].tolist()
        for run, (parent, parent_run) in enumerate(zip(run_parents, parent_runs, strict=True)):
            above = sums[parent] - shifts[parent_run] if parent >= 0 else np.uint64(0)
            shifts[run] = before[run] - above
        return np.asarray(sums - shifts[run_of], dtype=np.uint64)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return well-spread 64-bit numbers (the finaliser of splitmix64)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


def _check_owned(path: Path, part: str, totals: _Totals, distinct_rows: int) -> None:
    """Check that every distinct row is owned once: where its weight is first not 0, else where it is first."""
    if not totals.keys:
        return
    keys, owned, trains = (np.concatenate(column) for column in (totals.keys, totals.owned, totals.trains))
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.concatenate(([True], keys[order][1:] != keys[order][:-1])))
    if len(starts) != distinct_rows:
        _fail(path / "shards", f"{part}: {len(starts):,} distinct rows", f"{distinct_rows:,} as the manifest says")
    places = np.arange(len(order))
    never = len(order)
    first_training = np.minimum.reduceat(np.where(trains[order], places, never), starts)
    expected = np.zeros(len(order), dtype=bool)
    expected[np.where(first_training < never, first_training, starts)] = True
    if (owned[order] != expected).any():
        _fail(path / "shards", f"{part}: a row is not owned by exactly the window that should own it")
