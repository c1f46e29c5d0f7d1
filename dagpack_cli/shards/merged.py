"""Windows of a packed forest: which examples are whose, and what each row stands for.

Under merge ``prefix`` with whole paths (``dag``) every piece belongs to the lowest-numbered window
that holds its last row, and a row's counts and weights in a window are those of that window's own
pieces: each window is an exact mini-batch. The ``walk``, and every layout under merge ``state``,
train a row once, in the window where it is fresh, with all its counts and weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, select, spans, stable_places
from dagpack_cli.packing.cutting import RowForest
from dagpack_cli.packing.pieces import Pieces
from dagpack_cli.packing.placement import Placement
from dagpack_cli.packing.supervision import Supervision
from dagpack_cli.shards.siblings import largest_first
from dagpack_cli.shards.window import Instances, WindowRows, fill_rows, ranges
from dagpack_cli.trie import Engine, Trie, sweep_blocks, sweep_weights

__all__ = ["MergedWindows", "RowTotals", "row_totals", "state_totals"]

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

_STEP = 1 << 22  # rows looked at at a time
_PIECES = 1 << 18  # pieces likewise
_TRAINED, _OWNED = np.uint8(1), np.uint8(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTotals:
    """What every distinct row stands for in all, row after row of the forest.

    Attributes:
        counts: shape (num_nodes,), int64; the rows of a node have the same.
        weights: shape (num_rows,), float32.
        supervised: shape (num_rows,), int32.
    """

    counts: Int64Array
    weights: npt.NDArray[np.float32]
    supervised: Int32Array


def row_totals(
    rows: RowForest, pieces: Pieces, supervision: Supervision, engine: Engine = "auto", zeros: Zeros = np.zeros
) -> RowTotals:
    """Return the totals of a forest from the pieces of its examples. O(rows + pairs that train).

    Args:
        rows: the forest.
        pieces: of its examples.
        supervision: of the examples.
        engine: of the sweeps.
        zeros: makes the arrays with an entry a row, 8 bytes a row, and others with one a node.
    """
    placed = select(len(pieces.nodes), lambda span: pieces.nodes[span] >= 0, zeros)
    nodes, examples, lows, highs = (zeros(len(placed), np.int64) for _ in range(4))
    for span in spans(len(placed)):
        nodes[span] = pieces.nodes[placed[span]]
    to = stable_places(nodes, len(rows.forest.parents), zeros)
    for span in spans(len(placed)):
        chosen = placed[span]
        columns = ((nodes, pieces.nodes), (examples, pieces.examples), (lows, pieces.lows), (highs, pieces.highs))
        for column, values in columns:
            column[to[span]] = values[chosen]
    runs, offsets = supervision.clip_all(examples, lows, highs, zeros)
    starts, ends = rows.first_targets, rows.first_targets + rows.forest.lengths
    num_rows = int(rows.forest.lengths.sum())
    weights, supervised = zeros(num_rows, np.float32), zeros(num_rows, np.int32)
    own = supervision.weights[examples]
    for first, sums in sweep_blocks(starts, ends, nodes, runs, offsets, own, engine=engine, zeros=zeros):
        weights[first : first + len(sums)] = sums
    ones = np.ones(len(examples))
    for first, numbers in sweep_blocks(
        starts, ends, nodes, runs, offsets, ones, dtype=np.float64, engine=engine, zeros=zeros
    ):
        supervised[first : first + len(numbers)] = numbers
    counts = zeros(len(starts), np.int64)
    for span in spans(len(starts)):
        # The pieces are sorted by their nodes, so those that pass through a node are a range of them.
        lasts = np.searchsorted(nodes, rows.forest.ends[span])
        counts[span] = lasts - np.searchsorted(nodes, np.arange(span.start, span.stop))
    return RowTotals(counts=counts, weights=weights, supervised=supervised)


def state_totals(rows: RowForest, trie: Trie) -> RowTotals:
    """Return the totals of a state-merged forest, which its trie stores. O(rows), in memory."""
    tokens = ranges(rows.token_starts, rows.forest.lengths)
    return RowTotals(
        counts=trie.counts[rows.trie_nodes].astype(np.int64),
        weights=trie.weights[tokens],
        supervised=trie.supervised[tokens],
    )


class MergedWindows:
    """The windows of a placement, filled a few at a time.

    Args:
        trie: where the tokens are.
        rows: the forest that was packed.
        placement: what stands in which window.
        pieces: the examples' pieces; empty under merge ``state``.
        supervision: the examples' supervised runs.
        totals: given where a row is trained once (``walk``, merge ``state``), else None.
        engine: of the weight sweep.
        zeros: makes the arrays with an entry a piece or a node, and a byte for every distinct row that stands in
            several windows.
        arrange: whether siblings stand in the order of `siblings.largest_first`, else in the forest's.
    """

    def __init__(
        self,
        trie: Trie,
        rows: RowForest,
        placement: Placement,
        pieces: Pieces,
        supervision: Supervision,
        totals: RowTotals | None,
        engine: Engine = "auto",
        *,
        zeros: Zeros = np.zeros,
        arrange: bool = True,
    ) -> None:
        self.num_windows = placement.num_windows
        self.piece_windows = _piece_windows(placement, pieces, rows, zeros)
        self._tokens = trie.tokens
        self._rows, self._placement, self._pieces, self._supervision = rows, placement, pieces, supervision
        self._totals, self._arrange, self._engine = totals, arrange, engine
        numbers = np.arange(placement.num_windows + 1)
        self._bounds = np.searchsorted(placement.windows, numbers)
        self._piece_order, self._piece_bounds = _by_window(self.piece_windows, pieces.nodes, numbers, zeros)
        self._next_window = 0
        # Where rows are trained once, their totals are found by their number in the forest. Else only rows
        # that stand in several windows have to know of one another, and are numbered for it.
        num_nodes = len(rows.forest.parents)
        self._repeats = _are_repeated(placement, num_nodes, zeros)
        self._row_bases = zeros(num_nodes, np.int64)
        num_rows = 0
        for span in spans(num_nodes):
            lengths = rows.forest.lengths[span]
            numbered = lengths if totals is not None else np.where(self._repeats[span], lengths, 0)
            ends = num_rows + np.cumsum(numbered)
            self._row_bases[span] = ends - numbered
            num_rows = int(ends[-1])
        self._marks = zeros(0 if totals is not None else num_rows, np.uint8)
        if totals is None:
            self._mark_trained(trie)

    def batch(self, first: int, last: int) -> WindowRows:
        """Return windows ``[first, last)``. Batches are asked for in order, so that ``owned`` knows its past."""
        if first != self._next_window:
            raise ValueError(f"windows from {first} asked for after {self._next_window}")
        self._next_window = last
        instances, nodes, fresh = self._instances(first, last)
        if self._totals is not None:
            return self._fill_trained_once(instances, nodes, fresh, self._totals)
        counts, weights, num_supervised = self._shares(first, last, instances, nodes)
        return fill_rows(
            instances,
            self._tokens,
            counts=np.repeat(counts.astype(np.int32), instances.lengths),
            weights=weights,
            owned=self._own(instances, nodes, weights),
            num_supervised=num_supervised,
            engine=self._engine,
        )

    def _instances(self, first: int, last: int) -> tuple[Instances, Int64Array, Int64Array]:
        """Return the instances of windows, their nodes, and how many of their rows lower windows have."""
        low, high = int(self._bounds[first]), int(self._bounds[last])
        nodes = self._placement.nodes[low:high].astype(np.int64)
        windows = self._placement.windows[low:high] - first
        lengths, fresh = self._placement.ends[low:high], self._placement.fresh[low:high]
        forest = self._rows.forest
        above = forest.parents[nodes]
        keys = windows * len(forest.parents) + nodes
        parents = np.where(above >= 0, np.searchsorted(keys, windows * len(forest.parents) + above), -1)
        subtree_ends = np.searchsorted(keys, windows * len(forest.parents) + forest.ends[nodes])
        if self._arrange:
            order = largest_first(windows, parents, lengths, subtree_ends)
            numbers = np.arange(len(order))
            places = np.empty_like(order)
            places[order] = numbers
            parents = np.where(parents >= 0, places[parents], -1)[order]
            subtree_ends = numbers + (subtree_ends - numbers)[order]
            nodes, lengths, fresh = nodes[order], lengths[order], fresh[order]
        instances = Instances(
            windows=windows,
            num_windows=last - first,
            parents=parents,
            lengths=lengths,
            token_starts=self._rows.token_starts[nodes],
            first_inputs=self._rows.first_inputs[nodes],
            depths=forest.depths[nodes],
            segments=self._rows.trees[nodes],
            subtree_ends=subtree_ends,
        )
        return instances, nodes, fresh

    def _shares(
        self, first: int, last: int, instances: Instances, nodes: Int64Array
    ) -> tuple[Int64Array, npt.NDArray[np.float32], Int64Array]:
        """Return counts per instance, weights per row and supervised pairs per window, of the windows' own pieces."""
        chosen = self._piece_order[self._piece_bounds[first] : self._piece_bounds[last]]
        width = len(self._rows.forest.parents)
        keys = instances.windows * width + nodes
        windows = self.piece_windows[chosen] - first
        by_key = np.argsort(keys)
        at = by_key[np.searchsorted(keys, windows * width + self._pieces.nodes[chosen], sorter=by_key)]
        if self._arrange:
            # The sweep wants them as the instances are; none leaves its window, so `windows` stays.
            in_order = np.argsort(at, kind="stable")
            chosen, at = chosen[in_order], at[in_order]
        passing = np.concatenate(([0], np.cumsum(np.bincount(at, minlength=len(nodes)))))
        starts = self._rows.first_targets[nodes]
        examples = self._pieces.examples[chosen]
        runs, offsets = self._supervision.clip(examples, self._pieces.lows[chosen], self._pieces.highs[chosen])
        weights = sweep_weights(
            starts,
            starts + instances.lengths,
            at,
            runs,
            offsets,
            self._supervision.weights[examples],
            engine=self._engine,
        )
        sums = np.concatenate(([0], np.cumsum(runs[:, 1] - runs[:, 0])))
        pairs = sums[offsets[1:]] - sums[offsets[:-1]]
        num_supervised = np.bincount(windows, weights=pairs, minlength=last - first).astype(np.int64)
        return passing[instances.subtree_ends] - passing[:-1], weights, num_supervised

    def _fill_trained_once(
        self, instances: Instances, nodes: Int64Array, fresh: Int64Array, totals: RowTotals
    ) -> WindowRows:
        rows = ranges(self._row_bases[nodes], instances.lengths)
        within = ranges(np.zeros(len(nodes), dtype=np.int64), instances.lengths)
        owned = within >= np.repeat(fresh, instances.lengths)
        row_windows = np.repeat(instances.windows, instances.lengths)
        supervised = np.where(owned, totals.supervised[rows], 0)
        counts = np.repeat(totals.counts[nodes].astype(np.int32), instances.lengths)
        return fill_rows(
            instances,
            self._tokens,
            counts=np.where(owned, counts, np.int32(0)),
            weights=np.where(owned, totals.weights[rows], np.float32(0)),
            owned=owned,
            num_supervised=np.bincount(row_windows, weights=supervised, minlength=instances.num_windows).astype(
                np.int64
            ),
            engine=self._engine,
        )

    def _own(self, instances: Instances, nodes: Int64Array, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Return the first row of each kind whose weight is not 0, else the first; and remember it."""
        owned = np.ones(len(weights), dtype=bool)
        repeated = self._repeats[nodes]
        lengths = instances.lengths[repeated]
        at = ranges((np.cumsum(instances.lengths) - instances.lengths)[repeated], lengths)
        rows = ranges(self._row_bases[nodes[repeated]], lengths)
        marks = self._marks[rows]
        open_rows = (weights[at] != 0) | (marks & _TRAINED == 0)
        open_rows &= marks & _OWNED == 0
        candidates = np.flatnonzero(open_rows)
        _, firsts = np.unique(rows[candidates], return_index=True)
        owned[at] = False
        owned[at[candidates[firsts]]] = True
        self._marks[rows[candidates]] |= _OWNED
        return owned

    def _mark_trained(self, trie: Trie) -> None:
        """Mark every distinct row that is repeated and has a weight other than 0 in some window.

        Where no weight is negative, nothing cancels and no example was dropped, the trie's totals say so.
        """
        negative = any((self._supervision.weights[span] < 0).any() for span in spans(len(self._supervision.weights)))
        if not negative and not self._pieces.num_dropped_examples:
            for span in spans(len(self._repeats)):
                repeated = np.flatnonzero(self._repeats[span]) + span.start
                lengths = self._rows.forest.lengths[repeated]
                for nodes in np.split(repeated, np.flatnonzero(np.diff(np.cumsum(lengths) // _STEP)) + 1):
                    sizes = self._rows.forest.lengths[nodes]
                    totals = trie.weights[ranges(self._rows.token_starts[nodes], sizes)]
                    self._marks[ranges(self._row_bases[nodes], sizes)[totals != 0]] |= _TRAINED
            return
        step = max(1, _STEP * self.num_windows // max(1, int(self._placement.ends.sum())))
        for first in range(0, self.num_windows, step):
            last = min(first + step, self.num_windows)
            instances, nodes, _ = self._instances(first, last)
            _, weights, _ = self._shares(first, last, instances, nodes)
            several = self._repeats[nodes]
            starts = np.cumsum(instances.lengths) - instances.lengths
            at = ranges(starts[several], instances.lengths[several])
            rows = ranges(self._row_bases[nodes[several]], instances.lengths[several])
            self._marks[rows[weights[at] != 0]] |= _TRAINED


def _piece_windows(placement: Placement, pieces: Pieces, rows: RowForest, zeros: Zeros) -> Int64Array:
    """Return the lowest-numbered window that holds the last row of each piece, -1 where nothing is left."""
    first = zeros(len(rows.forest.parents), np.int64)
    first[:] = -1
    for span in reversed(list(spans(len(placement.nodes)))):
        nodes, windows = placement.nodes[span][::-1], placement.windows[span][::-1]
        whole = placement.ends[span][::-1] == rows.forest.lengths[nodes]
        # Where an index repeats, the last assignment stays: the lowest window, taken backwards.
        first[nodes[whole]] = windows[whole]
    found = zeros(len(pieces.nodes), np.int64)
    for span in spans(len(found)):
        ends = pieces.nodes[span]
        found[span] = np.where(ends >= 0, first[ends], -1) if len(first) else ends
    return found


def _by_window(
    piece_windows: Int64Array, nodes: Int64Array, numbers: Int64Array, zeros: Zeros
) -> tuple[Int64Array, Int64Array]:
    """Return the pieces in windows, by window, node and number, and where those of each window begin."""
    placed = select(len(nodes), lambda span: piece_windows[span] >= 0, zeros)
    windows = zeros(len(placed), np.int64)
    for span in spans(len(placed)):
        windows[span] = piece_windows[placed[span]]
    places = stable_places(windows, len(numbers), zeros)
    found = zeros(len(placed), np.int64)
    for span in spans(len(placed)):
        found[places[span]] = placed[span]
    for span in spans(len(placed)):
        windows[span] = piece_windows[found[span]]
    bounds = np.searchsorted(windows, numbers)
    cuts = np.flatnonzero(np.diff(bounds[:-1] // _PIECES)) + 1
    for first, last in pairwise([0, *cuts.tolist(), len(numbers) - 1]):  # windows, some pieces at a time
        inside = slice(int(bounds[first]), int(bounds[last]))
        own = found[inside]
        found[inside] = own[np.lexsort((nodes[own], windows[inside]))]
    return found, bounds


def _are_repeated(placement: Placement, num_nodes: int, zeros: Zeros) -> npt.NDArray[np.bool_]:
    """Return which nodes stand in several windows."""
    seen, repeated = zeros(num_nodes, np.bool_), zeros(num_nodes, np.bool_)
    for span in spans(len(placement.nodes)):
        nodes = np.sort(placement.nodes[span])
        several = nodes[1:][nodes[1:] == nodes[:-1]]
        repeated[nodes[seen[nodes]]] = True
        repeated[several] = True
        seen[nodes] = True
    return repeated
