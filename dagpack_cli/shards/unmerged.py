"""Windows of unmerged layouts: every piece of an example stands alone, with its own segment."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans, stable_places
from dagpack_cli.packing.pieces import Pieces
from dagpack_cli.packing.supervision import Supervision
from dagpack_cli.shards.window import Instances, WindowRows, fill_rows
from dagpack_cli.trie import Engine, Trie, sweep_weights

__all__ = ["UnmergedWindows"]

Int64Array = npt.NDArray[np.int64]


class UnmergedWindows:
    """The windows of chains, filled a few at a time.

    Args:
        trie: where the tokens are.
        pieces: of the examples; those without rows are in no window.
        windows: shape (number of pieces with rows,), int64; the packer's answer for them, in order.
        supervision: the examples' supervised runs.
        engine: of the weight sweep.
        zeros: makes the arrays with an entry a piece.
    """

    def __init__(
        self,
        trie: Trie,
        pieces: Pieces,
        windows: Int64Array,
        supervision: Supervision,
        engine: Engine = "auto",
        *,
        zeros: Zeros = np.zeros,
    ) -> None:
        self._trie, self._pieces, self._supervision, self._engine = trie, pieces, supervision, engine
        self.num_windows = max((int(windows[span].max()) for span in spans(len(windows))), default=-1) + 1
        places = stable_places(windows, self.num_windows, zeros)
        num = len(pieces.examples)
        self.piece_windows, self._segments = zeros(num, np.int64), zeros(num, np.int64)
        self._order = zeros(len(windows), np.int64)
        sizes = np.zeros(self.num_windows, dtype=np.int64)
        done = 0  # pieces with rows so far: a segment is the occurrence, in input order
        for span in spans(num):
            present = np.flatnonzero(pieces.highs[span] > pieces.lows[span]) + span.start
            some = slice(done, done + len(present))
            self.piece_windows[span] = self._segments[span] = -1
            self.piece_windows[present] = windows[some]
            self._segments[present] = np.arange(some.start, some.stop)
            self._order[places[some]] = present
            np.add.at(sizes, windows[some], 1)
            done = some.stop
        self._bounds = np.concatenate(([0], np.cumsum(sizes)))

    def batch(self, first: int, last: int) -> WindowRows:
        """Return windows ``[first, last)``. Time and memory O(rows)."""
        chosen = self._order[self._bounds[first] : self._bounds[last]]
        lows, highs, examples = (
            column[chosen] for column in (self._pieces.lows, self._pieces.highs, self._pieces.examples)
        )
        owners, nodes = self._paths(chosen)
        trie = self._trie
        depths = trie.depths[nodes].astype(np.int64)
        stops = depths + np.diff(trie.offsets)[nodes]
        starts = np.maximum(depths, lows[owners])
        lengths = np.minimum(stops, highs[owners]) - starts
        heads = np.diff(owners, prepend=-1) != 0
        before = trie.offsets[np.maximum(trie.parents[nodes], 0) + 1] - 1
        token_starts = trie.offsets[nodes] + starts - depths
        windows = self.piece_windows[chosen] - first
        chain_ends = np.cumsum(np.bincount(owners, minlength=len(chosen)))
        instances = Instances(
            windows=windows[owners],
            num_windows=last - first,
            parents=np.where(heads, -1, np.arange(len(nodes)) - 1),
            lengths=lengths,
            token_starts=token_starts,
            first_inputs=np.where(starts > depths, token_starts - 1, before),
            depths=starts - lows[owners],
            segments=self._segments[chosen][owners],
            subtree_ends=chain_ends[owners],
        )
        runs, offsets = self._supervision.clip(examples, lows, highs)
        weights = sweep_weights(
            starts,
            starts + lengths,
            chain_ends - 1,
            runs,
            offsets,
            self._supervision.weights[examples],
            engine=self._engine,
        )
        num_rows = int(lengths.sum())
        pairs = np.concatenate(([0], np.cumsum(runs[:, 1] - runs[:, 0])))[offsets]
        return fill_rows(
            instances,
            trie.tokens,
            counts=np.ones(num_rows, dtype=np.int32),
            weights=weights,
            owned=np.ones(num_rows, dtype=bool),
            num_supervised=np.bincount(windows, weights=np.diff(pairs), minlength=last - first).astype(np.int64),
            engine=self._engine,
        )

    def _paths(self, chosen: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return, piece after piece, the trie nodes on its path that hold one of its targets."""
        owners, nodes = [], []
        at = self._pieces.nodes[chosen]
        moving = np.arange(len(chosen))
        while len(moving):
            owners.append(moving)
            nodes.append(at)
            more = self._trie.depths[at] > self._pieces.lows[chosen[moving]]
            at, moving = self._trie.parents[at[more]].astype(np.int64), moving[more]
        if not owners:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        all_owners, all_nodes = np.concatenate(owners), np.concatenate(nodes)
        order = np.lexsort((all_nodes, all_owners))  # ancestors stand before their descendants
        return all_owners[order], all_nodes[order]
