"""What each window's rows stand for, computed again from the examples that belong to it.

An example belongs to a window with its whole path, as far as anything on it is trained: it ends at the
last row of its path that the window has. From the ends alone follow the counts (the examples that end
at or below a row), and from the supervised runs the weights: a run adds its example's weight at its last
row and takes it away above its first, and a row has what stands at or below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.manifest import UNMERGED_LAYOUTS, Manifest
from dagpack_cli.memory import Zeros, select, spans
from dagpack_cli.partitions import PARTITIONS
from dagpack_cli.preorder import subtree_ends
from dagpack_cli.provenance import KEPT, STATUSES, ExampleColumns
from dagpack_cli.shards import WindowRows
from dagpack_cli.trie import Trie
from dagpack_cli.verify.keys import mix, node_keys, prefix_keys, row_keys
from dagpack_cli.verify.report import fail

__all__ = ["Shares", "can_be_shared_out"]

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]


def can_be_shared_out(manifest: Manifest) -> bool:
    """Return whether windows are exact mini-batches of whole examples, told apart by their tokens.

    Not so: pieces of split examples, which provenance does not number; trees kept apart by
    ``--min-shared``, which start alike; and the walk and merge ``state``, which train a row once.
    """
    return (
        manifest.trie.merge == "prefix"
        and manifest.pack.layout != "walk"
        and manifest.pack.on_long != "split"
        and manifest.trie.min_shared == 1
    )


class Shares:
    """Holds windows of a partition against the examples that belong to them.

    Args:
        columns: of `read_columns`, with windows.
        part: the partition.
        trie: of it; memory-mapped, its tokens are read once.
        manifest: of the build.
        zeros: makes the arrays with an entry an example or a node.
    """

    def __init__(self, columns: ExampleColumns, part: str, trie: Trie, manifest: Manifest, zeros: Zeros) -> None:
        mine, status = PARTITIONS.index(part), STATUSES.index(KEPT)
        self._rows = select(
            columns.num_examples,
            lambda span: (columns.partitions[span] == mine) & (columns.statuses[span] == status),
            zeros,
        )
        self._part, self._trie = part, trie
        self._columns = columns
        self._runs, self._run_offsets = columns.runs, columns.run_offsets
        self._first = 0 if manifest.tokenizer["virtual_root"] is None else 1
        self._apart = manifest.pack.layout in UNMERGED_LAYOUTS
        self._keys = node_keys(trie.tokens, trie.offsets, trie.depths, trie.subtree_ends, zeros)
        self._examples, self._windows = _pairs(columns, self._rows, zeros)

    def check(self, where: Path, windows: WindowRows, first_window: int) -> None:
        """Raise `DamageError` unless counts, weights and supervised pairs are those of the windows' examples.

        Args:
            where: the shard.
            windows: all of it, with parents, depths and tokens that fit.
            first_window: its number in the partition.
        """
        low, high = np.searchsorted(self._windows, (first_window, first_window + windows.num_windows))
        examples, owners = self._examples[low:high], self._windows[low:high] - first_window
        found = _Rows(windows, self._apart)
        if self._apart:
            ends = self._chains(where, found, examples, owners)
        else:
            ends = self._ends(where, found, examples, owners)
        counts = found.below(np.bincount(ends, minlength=found.num).astype(np.int64))
        if (counts != windows.counts).any():
            row = int(np.argmax(counts != windows.counts))
            fail(where, f"row {row:,}: count {windows.counts[row]:,}", f"{counts[row]:,}, of the window's examples")
        self._check_weights(where, windows, found, examples, owners, ends)

    def _ends(self, where: Path, rows: _Rows, examples: Int64Array, owners: Int64Array) -> Int64Array:
        """Return the row at which each example ends: the last one of its path that the window has."""
        nodes = self._columns.end_nodes[self._rows[examples]]
        ends = rows.find(self._keys[nodes], owners)
        last = np.where(ends >= 0, -1, nodes)  # the node that the window has in part, or not at all
        while (open_ := np.flatnonzero((last >= 0) & (ends < 0))).size:
            above = self._trie.parents[last[open_]].astype(np.int64)
            there = above >= 0
            hits = np.full(len(open_), -1, dtype=np.int64)
            hits[there] = rows.find(self._keys[above[there]], owners[open_[there]])
            # A root of one token has no row that could be found.
            bare = there & (self._trie.depths[above] + self._length(above) == 1)
            stop = (hits >= 0) | ~there | bare
            self._part_of_node(rows, owners, last, ends, open_[stop], hits[stop])
            last[open_[~stop]] = above[~stop]
        if (ends < 0).any():
            example = int(self._rows[examples[int(np.argmax(ends < 0))]])
            fail(where, f"a window without a row of example {example:,}, which belongs to it")
        return ends

    def _part_of_node(
        self, rows: _Rows, owners: Int64Array, last: Int64Array, ends: Int64Array, which: Int64Array, above: Int64Array
    ) -> None:
        """Set ``ends`` to the last row of a node that the window has, else to the row above it; and close it."""
        pairs, inverse = np.unique(np.stack([owners[which], last[which]]), axis=1, return_inverse=True)
        reached = np.full(pairs.shape[1], -1, dtype=np.int64)
        for number, (owner, node) in enumerate(pairs.T.tolist()):
            keys = self._node_keys(node)
            hits = rows.find(keys, np.full(len(keys), owner))
            have = np.flatnonzero(hits >= 0)
            reached[number] = hits[have[-1]] if len(have) else -1
        reached = reached[inverse.ravel()]
        ends[which] = np.where(reached >= 0, reached, above)
        last[which] = -1

    def _length(self, nodes: Int64Array) -> Int64Array:
        return np.asarray(self._trie.offsets[nodes + 1] - self._trie.offsets[nodes])

    def _node_keys(self, node: int) -> UInt64Array:
        """Return the hashes of the paths to each token of a node."""
        trie = self._trie
        above = int(trie.parents[node])
        tokens = np.asarray(trie.tokens[int(trie.offsets[node]) : int(trie.offsets[node + 1])])
        return prefix_keys(self._keys[above] if above >= 0 else np.uint64(0), tokens, int(trie.depths[node]))

    def _chains(self, where: Path, rows: _Rows, examples: Int64Array, owners: Int64Array) -> Int64Array:
        """Return the last row of each example's chain, in the order in which the window's segments stand."""
        windows = rows.windows
        heads = np.flatnonzero(windows.parents < 0)
        last = np.concatenate((heads[1:], [rows.num])).astype(np.int64) - 1 if len(heads) else heads
        order = np.lexsort((windows.segments[heads], rows.owners[heads]))
        expected = np.lexsort((examples, owners))
        if len(heads) != len(examples) or (rows.owners[heads][order] != owners[expected]).any():
            fail(where, f"{len(heads):,} chains", f"{len(examples):,}, one for every example that belongs here")
        ends = np.empty(len(examples), dtype=np.int64)
        ends[expected] = last[order]
        self._check_paths(where, rows, examples, ends)
        return ends

    def _check_paths(self, where: Path, rows: _Rows, examples: Int64Array, ends: Int64Array) -> None:
        """Raise unless every chain is the beginning of its example's path."""
        nodes = self._columns.end_nodes[self._rows[examples]]
        targets = rows.windows.depths[ends].astype(np.int64) + 1
        while (deep := np.flatnonzero(self._trie.depths[nodes] > targets)).size:
            nodes[deep] = self._trie.parents[nodes[deep]]
        whole = self._trie.depths[nodes] + self._length(nodes) == targets + 1
        right = self._keys[nodes] == rows.keys[ends]
        part = np.flatnonzero(~whole)
        pairs, inverse = np.unique(np.stack([nodes[part], targets[part]]), axis=1, return_inverse=True)
        found = np.zeros(pairs.shape[1], dtype=np.uint64)
        for number, (node, target) in enumerate(pairs.T.tolist()):
            found[number] = self._node_keys(node)[target - int(self._trie.depths[node])]
        right[part] = found[inverse.ravel()] == rows.keys[ends[part]]
        if not right.all():
            example = int(self._rows[examples[int(np.argmin(right))]])
            fail(where, f"a chain that is not the beginning of example {example:,}")

    def _check_weights(
        self,
        where: Path,
        windows: WindowRows,
        rows: _Rows,
        examples: Int64Array,
        owners: Int64Array,
        ends: Int64Array,
    ) -> None:
        table = self._rows[examples]
        # An example of weight 0 supervises nothing.
        sizes = np.where(self._columns.weights[table] != 0, self._run_offsets[table + 1] - self._run_offsets[table], 0)
        pairs = np.repeat(np.arange(len(examples)), sizes)
        at = (
            np.arange(len(pairs))
            - np.repeat(np.cumsum(sizes) - sizes, sizes)
            + np.repeat(self._run_offsets[table], sizes)
        )
        # Targets 1 and on are pairs; the row of target t has depth t - 1.
        depths = windows.depths[ends].astype(np.int64)[pairs]
        lows = np.maximum(self._runs[at, 0].astype(np.int64) + self._first, 1) - 1
        highs = np.minimum(self._runs[at, 1].astype(np.int64) + self._first - 1, depths + 1)
        some = highs > lows
        pairs, lows, highs = pairs[some], lows[some], highs[some]
        supervised = np.bincount(owners[pairs], weights=highs - lows, minlength=windows.num_windows)
        if (supervised != windows.num_supervised).any():
            number = int(np.argmax(supervised != windows.num_supervised))
            expected = f"{int(supervised[number]):,}, of the window's examples"
            fail(where, f"window {number:,} of the file: num_supervised {windows.num_supervised[number]:,}", expected)
        weights = self._columns.weights[table][pairs]
        steps = np.zeros(rows.num)
        np.add.at(steps, rows.ancestors(ends[pairs], highs - 1), weights)
        taken = lows > 0
        np.subtract.at(steps, rows.ancestors(ends[pairs[taken]], lows[taken] - 1), weights[taken])
        totals = rows.below(steps)
        slack = 2e-7 * np.abs(totals) + 1e-12 * float(np.abs(steps).sum()) + 1e-37
        wrong = np.abs(totals - windows.weights) > slack
        if wrong.any():
            row = int(np.argmax(wrong))
            fail(where, f"row {row:,}: weight {windows.weights[row]:g}", f"{totals[row]:g}, of the window's examples")


def _spread(starts: Int64Array, sizes: Int64Array) -> Int64Array:
    """Return the numbers of the ranges that begin at ``starts``, one range after the other."""
    return np.arange(int(sizes.sum())) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)


def _pairs(columns: ExampleColumns, rows: Int64Array, zeros: Zeros) -> tuple[Int64Array, Int64Array]:
    """Return (example, window) of every example in a window, by window; examples count from 0 in ``rows``."""
    offsets = columns.window_offsets
    num = sum(int((offsets[rows[span] + 1] - offsets[rows[span]]).sum()) for span in spans(len(rows)))
    examples, windows = zeros(num, np.int64), zeros(num, np.int64)
    done = 0
    for span in spans(len(rows)):
        sizes = offsets[rows[span] + 1] - offsets[rows[span]]
        last = done + int(sizes.sum())
        examples[done:last] = np.repeat(np.arange(span.start, span.stop), sizes)
        windows[done:last] = columns.windows[_spread(offsets[rows[span]], sizes)]
        done = last
    order = np.argsort(windows, kind="stable")
    found = zeros(num, np.int64)
    for column in (examples, windows):
        for span in spans(num):
            found[span] = column[order[span]]
        column[:] = found
    return examples, windows


@dataclass(slots=True)
class _Rows:
    """The rows of a shard with what is needed to find one by its path or its depth."""

    windows: WindowRows
    num: int
    owners: Int64Array
    ends: Int64Array
    keys: UInt64Array
    by_key: Int64Array
    by_depth: Int64Array
    sorted_keys: UInt64Array
    sorted_depths: Int64Array

    def __init__(self, windows: WindowRows, apart: bool) -> None:
        self.windows, self.num = windows, len(windows.inputs)
        self.owners = np.repeat(np.arange(windows.num_windows), np.diff(windows.row_offsets))
        self.ends = _subtree_ends(windows)
        self.keys = row_keys(windows, by_segment=False)
        own = self._in_window(self.keys, self.owners)
        self.by_key = np.argsort(own, kind="stable")
        self.sorted_keys = own[self.by_key]
        # By depth and row: the last row of a depth before a row is its ancestor there.
        self.by_depth = np.lexsort((np.arange(self.num), windows.depths))
        self.sorted_depths = windows.depths[self.by_depth].astype(np.int64) * self.num + self.by_depth

    @staticmethod
    def _in_window(keys: UInt64Array, owners: Int64Array) -> UInt64Array:
        with np.errstate(over="ignore"):
            return keys + mix(owners.astype(np.uint64))

    def find(self, keys: UInt64Array, owners: Int64Array) -> Int64Array:
        """Return the row of each window that ends each path, -1 for none."""
        wanted = self._in_window(keys, owners)
        if self.num == 0:
            return np.full(len(wanted), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.sorted_keys, wanted), self.num - 1)
        return np.where(self.sorted_keys[at] == wanted, self.by_key[at], -1)

    def ancestors(self, rows: Int64Array, depths: Int64Array) -> Int64Array:
        """Return the ancestor of each row at a depth not below its own."""
        at = np.searchsorted(self.sorted_depths, depths * self.num + rows, side="right") - 1
        return self.by_depth[at]

    def below(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the sum of ``values`` at and below every row."""
        sums = np.concatenate(([0], np.cumsum(values)))
        return np.asarray(sums[self.ends] - sums[:-1])


def _subtree_ends(windows: WindowRows) -> Int64Array:
    bases = np.repeat(windows.row_offsets[:-1], np.diff(windows.row_offsets))
    return subtree_ends(np.where(windows.parents >= 0, windows.parents + bases, -1)).astype(np.int64)
