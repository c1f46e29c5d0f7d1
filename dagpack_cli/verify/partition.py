"""The windows of a partition, each row held against the trie and the examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.manifest import Manifest
from dagpack_cli.memory import Zeros, spans
from dagpack_cli.provenance import DROPPED, KEPT, ExampleColumns
from dagpack_cli.shards import WindowRows, read_shard
from dagpack_cli.trie import Trie
from dagpack_cli.verify.examples import Rules, chosen_examples, run_sums
from dagpack_cli.verify.needed import Needed
from dagpack_cli.verify.owned import OwnershipCheck
from dagpack_cli.verify.paths import Paths
from dagpack_cli.verify.pieces import Pieces, placed_pieces
from dagpack_cli.verify.places import Trees
from dagpack_cli.verify.report import VerifyReport, fail
from dagpack_cli.verify.roots import roots_of
from dagpack_cli.verify.rows import ShardRows
from dagpack_cli.verify.shares import check_shares, last_rows, roots_of_chains
from dagpack_cli.verify.totals import StateTotals, Totals, WalkTotals, check_totals, needed_transitions
from dagpack_cli.verify.transitions import check_transitions
from dagpack_cli.verify.tries import check_counts, check_roots, check_trie, check_weights
from dagpack_cli.verify.windows import check_windows

__all__ = ["Known", "check_partition", "check_stored_totals", "check_stored_trie", "iter_windows"]

Int64Array = npt.NDArray[np.int64]
_NONE = np.zeros(0, dtype=np.int64)


def iter_windows(path: Path, manifest: Manifest, partition: str) -> Iterator[tuple[Path, WindowRows]]:
    """Yield every shard of a partition with its windows, in order."""
    for name in manifest.shards(partition):
        yield path / name, read_shard(path / name)


@dataclass(frozen=True, slots=True)
class Known:
    """What windows are held against, once it has been checked itself.

    Attributes:
        columns: of the examples, with windows.
        rules: of the build.
        trie: of the partition.
        zeros: makes arrays with an entry an example, a node or a token of the trie.
    """

    columns: ExampleColumns
    rules: Rules
    trie: Trie
    zeros: Zeros


def check_stored_trie(path: Path, part: str, manifest: Manifest, known: Known) -> None:
    """Raise unless a trie is in canonical order and, of merged states, is their graph."""
    where, trie = path / "trie" / part, known.trie
    root = manifest.tokenizer["virtual_root"]
    check_trie(where, trie, manifest.trie.min_shared, manifest.vocab_size)
    check_roots(where, trie, None if root is None else int(root), manifest.trie.min_shared)
    if known.rules.state:
        examples = chosen_examples(known.columns, part, (KEPT,), known.zeros)
        check_transitions(where, trie, known.columns, examples, known.rules)


def check_stored_totals(path: Path, part: str, known: Known) -> None:
    """Raise unless the counts and weights of a trie of prefixes are those of its examples, which have been checked."""
    where, trie = path / "trie" / part, known.trie
    examples = chosen_examples(known.columns, part, (KEPT, DROPPED), known.zeros)
    ends = (known.columns.end_nodes[examples[span]] for span in spans(len(examples)))
    check_counts(where, trie, ends, known.zeros)
    paths = Paths(trie, known.zeros)
    check_weights(where, trie, paths, run_sums(known.columns, examples, known.rules, paths, known.zeros))


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


def check_partition(path: Path, part: str, manifest: Manifest, known: Known | None, report: VerifyReport) -> None:
    """Check the windows of a partition.

    Args:
        path: of the generation.
        part: the partition.
        manifest: of the generation.
        known: what they are held against; None where that is damaged: then by themselves alone.
        report: is told how many windows and rows there are.

    Raises:
        DamageError: the first thing that is wrong.
    """
    packing = manifest.packing[part]
    totals = _Totals()
    windows_check = None if known is None else _Windows(path, part, manifest, known)
    with OwnershipCheck(packing["rows"], once=windows_check is not None and windows_check.once) as owned:
        for shard, windows in iter_windows(path, manifest, part):
            check_windows(shard, windows, manifest)
            if windows_check is not None:
                windows_check.check(shard, windows, totals.windows, owned)
            totals.add(windows)
        report.windows += totals.windows
        report.rows += totals.rows
        _check_sums(path, part, totals, packing)
        if windows_check is not None:
            windows_check.finish(packing["distinct_rows"])
            if not windows_check.apart:
                owned.finish(path / "shards", part, packing["distinct_rows"])
            elif totals.rows != packing["distinct_rows"]:
                fail(path / "shards", f"{part}: {totals.rows:,} distinct rows", f"{packing['distinct_rows']:,}")


class _Windows:
    """Holds the rows of a partition's windows against the trie and the examples, a shard at a time."""

    def __init__(self, path: Path, part: str, manifest: Manifest, known: Known) -> None:
        self._path, self._part, self._columns, self._rules = path, part, known.columns, known.rules
        self.once, self.apart = known.rules.once, known.rules.apart
        zeros, rules = known.zeros, known.rules
        self._paths, self._roots = Paths(known.trie, zeros), roots_of(known.trie, rules.period, zeros)
        self._trees = Trees(known.trie, self._roots, manifest.vocab_size, zeros)
        self._pieces = Pieces(_NONE, _NONE, _NONE, _NONE, _NONE)
        self._needed: Needed | None
        self._totals: Totals | None = None
        self._num_placed = 0
        if rules.state:
            self._needed = needed_transitions(known.trie, rules, self._paths, self._roots, zeros)
            self._totals = StateTotals(known.trie)
        else:
            examples = chosen_examples(known.columns, part, (KEPT,), zeros)
            where = path / "examples.parquet"
            self._pieces, self._needed = placed_pieces(
                where, known.columns, examples, rules, self._paths, self._roots, zeros
            )
            if rules.once:
                self._totals = WalkTotals(known.columns, examples, rules, self._paths, zeros)

    def check(self, shard: Path, windows: WindowRows, first_window: int, owned: OwnershipCheck) -> None:
        """Check the windows of a shard, and have its rows written down for who owns them."""
        rows = ShardRows(windows)
        numbers, owners = self._pieces.of(first_window, windows.num_windows)
        self._num_placed += len(numbers)
        if self._needed is None:
            lasts = self._check_chains(shard, rows, numbers, owners)
        else:
            places = self._trees.locate(shard, rows, self._merged_roots(shard, rows, self._needed))
            lasts = last_rows(shard, rows, places, self._pieces, numbers, owners)
            owned.add(shard, windows, places.positions, lasts)
            if self._totals is not None:
                check_totals(shard, rows, places, self._totals, self._needed)
                return
        check_shares(shard, rows, self._columns, self._rules, self._pieces, numbers, owners, lasts)

    def _merged_roots(self, shard: Path, rows: ShardRows, needed: Needed) -> Int64Array:
        """Return the root of each row without a parent: segments number the trees with rows, in trie order."""
        segments = rows.windows.segments[rows.roots].astype(np.int64)
        if ((segments < 0) | (segments >= len(needed.trees))).any():
            fail(shard, "a segment that is no tree", f"0 to {len(needed.trees) - 1:,}")
        return needed.trees[segments]

    def _check_chains(self, shard: Path, rows: ShardRows, numbers: Int64Array, owners: Int64Array) -> Int64Array:
        """Return the last row of each piece, of which each is a chain: what its example has there, and owned."""
        pieces, paths = self._pieces, self._paths
        begun, lasts = roots_of_chains(shard, rows, pieces, numbers, owners)
        nodes = self._columns.end_nodes[pieces.examples[begun]]
        positions = paths.tokens_at(nodes, pieces.lows[begun] - 1)[1]
        places = self._trees.locate(shard, rows, np.searchsorted(self._roots.positions, positions))
        wrong = places.positions[lasts] != pieces.lasts[numbers]
        if wrong.any():
            example = int(pieces.examples[numbers[int(np.argmax(wrong))]])
            fail(shard, f"a chain that is not what example {example:,} has there")
        if not rows.windows.owned.all():
            fail(
                shard, f"row {int(np.argmin(rows.windows.owned)):,}: not owned", "each row, where examples stand apart"
            )
        return lasts

    def finish(self, distinct_rows: int) -> None:
        """Check that nothing is missing."""
        if self._num_placed != len(self._pieces.windows):
            found = f"{self._part}: {len(self._pieces.windows) - self._num_placed:,} examples in windows that are none"
            fail(self._path / "examples.parquet", found)
        if self._needed is not None and self._needed.num_rows != distinct_rows:
            found = f"{self._part}: {distinct_rows:,} distinct rows, as the manifest says"
            fail(self._path / "manifest.json", found, f"{self._needed.num_rows:,}, of the examples")


def _check_sums(path: Path, part: str, totals: _Totals, packing: dict[str, Any]) -> None:
    for name in totals.__slots__:
        value, stored = getattr(totals, name), packing[name]
        near = name == "weight_sum" and np.isclose(value, stored, rtol=1e-9, atol=0)
        if value != stored and not near:
            fail(path / "shards", f"{part}: {name} {value:,}", f"{stored:,} as the manifest says")
