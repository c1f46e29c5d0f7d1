"""The examples of a partition as provenance tells of them: what is kept of each, and what trains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dagpack_cli.manifest import UNMERGED_LAYOUTS, Manifest
from dagpack_cli.memory import Zeros, select, spans
from dagpack_cli.partitions import PARTITIONS
from dagpack_cli.provenance import DROPPED, EMPTY, KEPT, SINGLE_TOKEN, STATUSES, ExampleColumns
from dagpack_cli.trie import Trie
from dagpack_cli.verify.paths import Paths
from dagpack_cli.verify.report import fail
from dagpack_cli.verify.sums import RunSums

__all__ = ["Rules", "Runs", "check_columns", "check_ends", "chosen_examples", "run_sums", "runs_of", "spread"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rules:
    """How examples become rows.

    Attributes:
        seq_len: most rows of a path.
        on_long: what happens to longer ones.
        prune: whether rows that train nothing are left out.
        shift: tokens that stand before an example in the trie: 1 with a virtual root.
        state: merge ``state``.
        once: whether a row is trained once, in the window that owns it.
        apart: whether each piece is a tree of its own.
    """

    seq_len: int
    on_long: str
    prune: bool
    shift: int
    state: bool
    once: bool
    apart: bool

    @classmethod
    def of(cls, manifest: Manifest) -> Rules:
        """Return those of a build."""
        state = manifest.trie.merge == "state"
        return cls(
            seq_len=manifest.pack.seq_len,
            on_long=manifest.pack.on_long,
            prune=manifest.pack.prune,
            shift=0 if manifest.tokenizer["virtual_root"] is None else 1,
            state=state,
            once=state or manifest.pack.layout == "walk",
            apart=manifest.pack.layout in UNMERGED_LAYOUTS,
        )

    @property
    def period(self) -> int:
        """Depth of the trie after which a tree begins anew, 0 for never."""
        return self.seq_len if self.on_long == "split" else 0

    def pairs(self, lengths: Int64Array) -> Int64Array:
        """Return the pairs of examples of some tokens."""
        return np.maximum(lengths - 1 + np.where(lengths > 0, self.shift, 0), 0)

    def pieces(self, lengths: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the pieces of kept examples: number of the example, first target, exclusive last one.

        Targets are depths in the trie, and count from 1.
        """
        pairs = self.pairs(lengths)
        if self.on_long == "truncate":
            pairs = np.minimum(pairs, self.seq_len)
        sizes = -(-pairs // self.seq_len) if self.period else np.minimum(pairs, 1)
        owners = np.repeat(np.arange(len(pairs)), sizes)
        lows = spread(np.zeros(len(pairs), dtype=np.int64), sizes) * self.seq_len + 1
        highs = pairs[owners] + 1
        return owners, lows, np.minimum(highs, lows + self.seq_len) if self.period else highs


@dataclass(frozen=True, slots=True)
class Runs:
    """Supervised runs of examples; targets are depths in the trie and count from 1.

    Attributes:
        owners: shape (n,), int64, ascending; the example of each.
        lows, highs: shape (n,), int64; half-open.
    """

    owners: Int64Array
    lows: Int64Array
    highs: Int64Array


def spread(starts: Int64Array, sizes: Int64Array) -> Int64Array:
    """Return the numbers of the ranges that begin at ``starts``, one range after the other."""
    return np.arange(int(sizes.sum())) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)


def chosen_examples(columns: ExampleColumns, part: str, statuses: tuple[str, ...], zeros: Zeros) -> Int64Array:
    """Return the numbers of a partition's examples of some statuses, ascending."""
    mine, codes = PARTITIONS.index(part), [STATUSES.index(status) for status in statuses]
    return select(
        columns.num_examples,
        lambda span: (columns.partitions[span] == mine) & np.isin(columns.statuses[span], codes),
        zeros,
    )


def runs_of(columns: ExampleColumns, examples: Int64Array, shift: int) -> Runs:
    """Return the supervised runs of some examples, numbered among these; an example of weight 0 has none."""
    offsets = columns.run_offsets
    sizes = np.where(columns.weights[examples] != 0, offsets[examples + 1] - offsets[examples], 0)
    at = spread(offsets[examples], sizes)
    lows = np.maximum(columns.runs[at, 0].astype(np.int64) + shift, 1)
    highs = columns.runs[at, 1].astype(np.int64) + shift
    some = np.flatnonzero(highs > lows)
    return Runs(np.repeat(np.arange(len(examples)), sizes)[some], lows[some], highs[some])


def run_sums(
    columns: ExampleColumns, examples: Int64Array, rules: Rules, paths: Paths, zeros: Zeros = np.zeros
) -> RunSums:
    """Return what some examples train of the whole trie, to be summed at its tokens. O(runs log nodes + tokens)."""
    num = sum(len(runs_of(columns, examples[span], rules.shift).lows) for span in spans(len(examples)))
    lasts, above, weights = zeros(num, np.int64), zeros(num, np.int64), zeros(num, np.float64)
    done = 0
    for span in spans(len(examples)):
        block = examples[span]
        runs = runs_of(columns, block, rules.shift)
        last = done + len(runs.lows)
        nodes = columns.end_nodes[block][runs.owners]
        lasts[done:last] = paths.tokens_at(nodes, runs.highs - 1)[1]
        above[done:last] = paths.tokens_at(nodes, runs.lows - 1)[1]
        weights[done:last] = columns.weights[block][runs.owners]
        done = last
    return RunSums(paths.num_tokens, lasts, above, weights, zeros)


def check_columns(where: Path, columns: ExampleColumns, rules: Rules, partitions: list[str]) -> None:
    """Raise unless what each example says of itself goes together: lengths, runs, status and windows.

    Args:
        where: ``examples.parquet``.
        columns: of it, with windows.
        rules: of the build.
        partitions: those that the build has.
    """
    kept, dropped = STATUSES.index(KEPT), STATUSES.index(DROPPED)
    known = [PARTITIONS.index(name) for name in partitions]
    for span in spans(columns.num_examples):
        lengths, statuses = columns.lengths[span], columns.statuses[span]
        pairs = rules.pairs(lengths)
        _check(where, span, ~np.isin(columns.partitions[span], known) | (statuses < 0), "partition or status unknown")
        _check(where, span, lengths < 0, "fewer tokens than none")
        _check(where, span, ~np.isfinite(columns.weights[span]), "a weight that is not finite")
        is_kept = statuses == kept
        _check(where, span, (statuses == STATUSES.index(EMPTY)) != (lengths == 0), "empty, or not, against its tokens")
        single = (lengths > 0) & (pairs == 0)
        _check(where, span, (statuses == STATUSES.index(SINGLE_TOKEN)) != single, "single-token, against its tokens")
        if not rules.state:
            long = (pairs > rules.seq_len) & (rules.on_long in ("drop", "error"))
            _check(where, span, is_kept & long, "kept, and longer than a window")
            _check(where, span, (statuses == dropped) & ~(long & (rules.on_long == "drop")), "dropped for no reason")
        else:
            _check(where, span, statuses == dropped, "dropped for no reason")
        placed = np.diff(columns.window_offsets[span.start : span.stop + 1]) > 0
        _check(where, span, placed & (~is_kept | rules.state), "in a window that it does not belong to")
        _check_runs(where, span, columns)


def _check_runs(where: Path, span: slice, columns: ExampleColumns) -> None:
    offsets = columns.run_offsets[span.start : span.stop + 1]
    owners = np.repeat(np.arange(span.stop - span.start), np.diff(offsets))
    runs = columns.runs[offsets[0] : offsets[-1]].astype(np.int64)
    bad = (runs[:, 0] < 0) | (runs[:, 1] <= runs[:, 0]) | (runs[:, 1] > columns.lengths[span][owners])
    bad[1:] |= (owners[1:] == owners[:-1]) & (runs[1:, 0] < runs[:-1, 1])
    wrong = np.zeros(span.stop - span.start, dtype=bool)
    wrong[owners[bad]] = True
    _check(where, span, wrong, "supervised runs that are not ascending ranges of its tokens")


def check_ends(where: Path, columns: ExampleColumns, rules: Rules, tries: dict[str, Trie]) -> None:
    """Raise unless examples end where paths of as many tokens do in the tries, and those in no trie nowhere.

    Args:
        where: ``examples.parquet``.
        columns: of it.
        rules: of the build.
        tries: by partition, checked.
    """
    in_trie = [] if rules.state else [STATUSES.index(KEPT), STATUSES.index(DROPPED)]
    for span in spans(columns.num_examples):
        nodes, partitions = columns.end_nodes[span], columns.partitions[span]
        inside = np.isin(columns.statuses[span], in_trie)
        wrong = ~inside & (nodes != -1)
        for name, trie in tries.items():
            own = np.flatnonzero(inside & (partitions == PARTITIONS.index(name)))
            ends = nodes[own]
            there = (ends >= 0) & (ends < trie.num_nodes)
            ends = np.where(there, ends, 0)
            stops = trie.depths[ends] + (trie.offsets[ends + 1] - trie.offsets[ends]) if trie.num_nodes else ends
            wrong[own] = ~there | (stops != columns.lengths[span][own] + rules.shift)
        _check(where, span, wrong, "not as many tokens as the path on which it ends")


def _check(where: Path, span: slice, bad: npt.NDArray[np.bool_], found: str) -> None:
    if bad.any():
        fail(where, f"example {span.start + int(np.argmax(bad)):,}: {found}")
