"""What rows stand for where each is trained once: in the window that owns it, with all its examples.

So it is in the walk, and under merge ``state``. Elsewhere a row is context and has nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.provenance import ExampleColumns
from dagpack_cli.trie import Trie
from dagpack_cli.verify.examples import Rules, run_sums
from dagpack_cli.verify.needed import Needed
from dagpack_cli.verify.paths import Paths
from dagpack_cli.verify.places import Places
from dagpack_cli.verify.report import fail
from dagpack_cli.verify.roots import Roots
from dagpack_cli.verify.rows import ShardRows
from dagpack_cli.verify.sums import Sums, counted_below, wrong_weights

__all__ = ["StateTotals", "Totals", "WalkTotals", "check_totals", "needed_transitions"]

Int64Array = npt.NDArray[np.int64]


class Totals(Protocol):
    """What rows stand for over a whole partition."""

    def at(self, places: Places) -> tuple[Int64Array, Int64Array, Sums]:
        """Return counts, supervised pairs and weights of rows."""
        ...


class WalkTotals:
    """The totals of merged prefixes, from the examples that are kept.

    Args:
        columns: of the examples.
        examples: shape (n,), int64; the kept ones of a partition.
        rules: of the build.
        paths: of the partition's trie.
        zeros: makes the arrays with an entry a token or a node of the trie.
    """

    def __init__(
        self, columns: ExampleColumns, examples: Int64Array, rules: Rules, paths: Paths, zeros: Zeros = np.zeros
    ) -> None:
        self._paths = paths
        self._sums = run_sums(columns, examples, rules, paths, zeros)
        ends = (columns.end_nodes[examples[span]] for span in spans(len(examples)))
        self._before = counted_below(paths.trie.num_nodes, ends, zeros)

    def at(self, places: Places) -> tuple[Int64Array, Int64Array, Sums]:
        """Return counts, supervised pairs and weights of rows."""
        nodes = places.nodes
        counts = self._before[self._paths.trie.subtree_ends[nodes]] - self._before[nodes]
        sums = self._sums.at(places.positions, self._paths.ends(nodes))
        return counts, sums.numbers, sums


class StateTotals:
    """The totals of merged states, which the trie stores: no example says which transitions it is.

    Args:
        trie: checked, see `transitions.check_transitions`.
    """

    def __init__(self, trie: Trie) -> None:
        self._trie = trie

    def at(self, places: Places) -> tuple[Int64Array, Int64Array, Sums]:
        """Return counts, supervised pairs and weights of rows."""
        trie, positions = self._trie, places.positions
        supervised = trie.supervised[positions].astype(np.int64)
        weights = trie.weights[positions].astype(np.float64)
        return trie.counts[places.nodes].astype(np.int64), supervised, Sums(supervised, weights, np.zeros(len(weights)))


def needed_transitions(trie: Trie, rules: Rules, paths: Paths, roots: Roots, zeros: Zeros = np.zeros) -> Needed:
    """Return the rows of merged states that windows hold: but for truncated ones, and pruned ones, all."""
    lasts = zeros(paths.num_tokens, np.int64)
    num = 0
    for span in spans(paths.num_tokens):
        positions = np.arange(span.start, span.stop)
        depths = paths.depths(positions, paths.nodes(positions))
        chosen = depths > 0
        if rules.on_long == "truncate":
            chosen &= depths <= rules.seq_len
        if rules.prune:
            chosen &= trie.supervised[span] > 0
        found = positions[chosen]
        lasts[num : num + len(found)] = found
        num += len(found)
    return Needed(paths, roots, lasts[:num], zeros)


def check_totals(where: Path, rows: ShardRows, places: Places, totals: Totals, needed: Needed) -> None:
    """Raise unless owned rows have their totals and the others nothing, and something needs every row.

    Args:
        where: the shard.
        rows: of it.
        places: of these.
        totals: of the partition.
        needed: its rows.
    """
    windows = rows.windows
    if (wrong := ~needed.holds(places.positions, places.nodes)).any():
        fail(where, f"row {int(np.argmax(wrong)):,}: nothing at or below it trains, or is kept", "none such")
    counts, supervised, sums = totals.at(places)
    counts = np.where(windows.owned, counts, 0)
    if (wrong := counts != windows.counts).any():
        row = int(np.argmax(wrong))
        fail(where, f"row {row:,}: count {windows.counts[row]:,}", f"{counts[row]:,}{_whose(windows.owned[row])}")
    wrong = np.where(windows.owned, wrong_weights(windows.weights, sums), windows.weights != 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        expected = f"{sums.totals[row] if windows.owned[row] else 0:g}{_whose(windows.owned[row])}"
        fail(where, f"row {row:,}: weight {windows.weights[row]:g}", expected)
    own = np.where(windows.owned, supervised, 0)
    sums_of = np.bincount(rows.owners, weights=own, minlength=windows.num_windows)
    if (sums_of != windows.num_supervised).any():
        number = int(np.argmax(sums_of != windows.num_supervised))
        expected = f"{int(sums_of[number]):,}, of the rows it owns"
        fail(where, f"window {number:,} of the file: num_supervised {windows.num_supervised[number]:,}", expected)


def _whose(owned: bool) -> str:
    return ", of all examples" if owned else " where the row is not owned"
