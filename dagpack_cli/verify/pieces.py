"""What every kept example has in each tree, and in which window: the pieces that rows are held against.

An example that is not split is one piece. Its last row is the last of its path that is left: with pruning
the last that something of its own tree needs. `windows` of the provenance names the window of every piece
that has rows, in the order of the pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, select, spans
from dagpack_cli.provenance import ExampleColumns
from dagpack_cli.verify.examples import Rules, runs_of, spread
from dagpack_cli.verify.needed import Needed
from dagpack_cli.verify.paths import Paths
from dagpack_cli.verify.report import fail
from dagpack_cli.verify.roots import Roots

__all__ = ["Pieces", "placed_pieces"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of a partition that have rows, in input order.

    Attributes:
        examples: shape (n,), int64; of all examples.
        lows: shape (n,), int64; depth in the trie of the first target.
        lasts: shape (n,), int64; position in the trie of the last one.
        windows: shape (n,), int64, in order of ``order``: ascending.
        order: shape (n,), int64; the pieces by window.
    """

    examples: Int64Array
    lows: Int64Array
    lasts: Int64Array
    windows: Int64Array
    order: Int64Array

    def of(self, first_window: int, num_windows: int) -> tuple[Int64Array, Int64Array]:
        """Return the pieces of some consecutive windows, and the window of each, from 0 on."""
        low, high = np.searchsorted(self.windows, (first_window, first_window + num_windows))
        return self.order[low:high], self.windows[low:high] - first_window


def placed_pieces(
    where: Path, columns: ExampleColumns, examples: Int64Array, rules: Rules, paths: Paths, roots: Roots, zeros: Zeros
) -> tuple[Pieces, Needed | None]:
    """Return the pieces that have rows, and the rows that are needed where prefixes are merged.

    Args:
        where: ``examples.parquet``.
        columns: of it, with windows; checked.
        examples: shape (n,), int64, ascending; the kept ones of a partition.
        rules: of the build.
        paths: of the partition's trie.
        roots: where its trees begin.
        zeros: makes the arrays with an entry a piece.

    Raises:
        DamageError: the provenance names another number of windows for an example than it has pieces.

    Time O(pieces log nodes + pieces log pieces).
    """
    num = sum(len(rules.pieces(columns.lengths[examples[span]])[0]) for span in spans(len(examples)))
    owners, lows, lasts = (zeros(num, np.int64) for _ in range(3))
    done = 0
    for span in spans(len(examples)):
        block = examples[span]
        numbers, firsts, highs = rules.pieces(columns.lengths[block])
        last = done + len(numbers)
        wanted = _last_trained(columns, block, rules, numbers, firsts, highs) if rules.prune else highs
        owners[done:last], lows[done:last] = block[numbers], firsts
        found = paths.tokens_at(columns.end_nodes[block[numbers]], wanted - 1)[1]
        lasts[done:last] = np.where(wanted > firsts, found, -1)
        done = last
    needed = None
    if not rules.apart:
        some = select(num, lambda span: lasts[span] >= 0, zeros)
        for span in spans(len(some)):
            some[span] = lasts[some[span]]
        needed = Needed(paths, roots, some, zeros)
        if rules.prune:
            _reach(columns, examples, rules, paths, needed, lasts)
    placed = select(num, lambda span: lasts[span] >= 0, zeros)
    for column in (owners, lows, lasts):
        for span in spans(len(placed)):  # never ahead of what is still to be read
            column[span] = column[placed[span]]
    owners, lows, lasts = (column[: len(placed)] for column in (owners, lows, lasts))
    windows = _windows(where, columns, examples, owners, zeros)
    order = np.argsort(windows, kind="stable")
    sorted_windows, numbers = zeros(len(windows), np.int64), zeros(len(windows), np.int64)
    for span in spans(len(windows)):
        sorted_windows[span], numbers[span] = windows[order[span]], order[span]
    return Pieces(owners, lows, lasts, sorted_windows, numbers), needed


def _last_trained(
    columns: ExampleColumns, block: Int64Array, rules: Rules, owners: Int64Array, lows: Int64Array, highs: Int64Array
) -> Int64Array:
    """Return the exclusive end of the last supervised target of each piece, its low end where there is none."""
    runs = runs_of(columns, block, rules.shift)
    at = np.searchsorted((runs.owners << 32) + runs.lows, (owners << 32) + highs) - 1
    if len(runs.lows) == 0:
        return lows
    found = np.where((at >= 0) & (runs.owners[at] == owners), runs.highs[at], 0)
    return np.clip(found, lows, highs)


def _reach(
    columns: ExampleColumns, examples: Int64Array, rules: Rules, paths: Paths, needed: Needed, lasts: Int64Array
) -> None:
    """Have every piece reach as far as its path is needed by any."""
    done = 0
    for span in spans(len(examples)):
        block = examples[span]
        numbers, lows, highs = rules.pieces(columns.lengths[block])
        ends = columns.end_nodes[block[numbers]]
        nodes, _ = paths.tokens_at(ends, highs - 1)
        reached = needed.reached(nodes, highs - 1)
        found = paths.tokens_at(ends, reached)[1]
        lasts[done : done + len(numbers)] = np.where(reached >= lows, found, -1)
        done += len(numbers)


def _windows(
    where: Path, columns: ExampleColumns, examples: Int64Array, owners: Int64Array, zeros: Zeros
) -> Int64Array:
    """Return the window of every piece with rows; the pieces are in the order of examples, like ``windows``."""
    offsets = columns.window_offsets
    found = zeros(len(owners), np.int64)
    for span in spans(len(examples)):
        block = examples[span]
        sizes = offsets[block + 1] - offsets[block]
        low, high = np.searchsorted(owners, (block[0], block[-1] + 1))
        pieces = np.bincount(np.searchsorted(block, owners[low:high]), minlength=len(block))
        if (pieces != sizes).any():
            at = int(np.argmax(pieces != sizes))
            expected = f"{int(pieces[at]):,}, one for each of its pieces that has rows"
            fail(where, f"example {int(block[at]):,}: {int(sizes[at]):,} windows", expected)
        found[low:high] = columns.windows[spread(offsets[block], sizes)]
    return found
