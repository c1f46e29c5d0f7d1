"""What each window's rows stand for, computed again from the pieces of examples that belong to it.

A piece belongs to a window with its whole path in its tree. From where pieces end follow the counts (the
pieces that end at or below a row), and from the supervised runs the weights.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from dagpack_cli.provenance import ExampleColumns
from dagpack_cli.verify.examples import Rules, runs_of
from dagpack_cli.verify.pieces import Pieces
from dagpack_cli.verify.places import Places
from dagpack_cli.verify.report import fail
from dagpack_cli.verify.rows import ShardRows
from dagpack_cli.verify.sums import RunSums, wrong_weights

__all__ = ["check_shares", "last_rows", "roots_of_chains"]

Int64Array = npt.NDArray[np.int64]


def last_rows(
    where: Path, rows: ShardRows, places: Places, pieces: Pieces, numbers: Int64Array, owners: Int64Array
) -> Int64Array:
    """Return the last row of each piece in the window where it belongs; no row stands in a window twice.

    Args:
        where: the shard.
        rows: of it.
        places: of these.
        pieces: of the partition.
        numbers: shape (n,), int64; of those that belong to the shard's windows.
        owners: shape (n,), int64; the window of each, from 0 on.
    """
    width = int(places.positions.max(initial=0)) + 1
    keys = rows.owners * width + places.positions
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    if len(twice):
        fail(where, f"row {int(order[twice[0] + 1]):,} stands a second time in its window", "once")
    lasts = pieces.lasts[numbers]
    at = np.minimum(np.searchsorted(keys, owners * width + lasts), max(rows.num - 1, 0))
    found = order[at]
    wrong = (rows.owners[found] != owners) | (places.positions[found] != lasts)
    if wrong.any():
        example = int(pieces.examples[numbers[int(np.argmax(wrong))]])
        fail(where, f"a window without the last row of example {example:,}, which belongs to it")
    return found


def roots_of_chains(
    where: Path, rows: ShardRows, pieces: Pieces, numbers: Int64Array, owners: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the piece that each row without a parent begins, and each piece's last row, where pieces stand apart.

    A chain's segment is its piece's number in input order; arguments as `last_rows`.
    """
    segments = rows.windows.segments[rows.roots].astype(np.int64)
    order, expected = np.argsort(segments, kind="stable"), np.argsort(numbers, kind="stable")
    if len(segments) != len(numbers) or (segments[order] != numbers[expected]).any():
        fail(where, f"{len(segments):,} chains", f"{len(numbers):,}, one by number for each piece that belongs here")
    at = np.empty(len(numbers), dtype=np.int64)
    at[expected] = order
    lasts = np.append(rows.roots[1:], rows.num)[: len(rows.roots)] - 1
    wrong = rows.owners[lasts[at]] != owners
    if wrong.any():
        example = int(pieces.examples[numbers[int(np.argmax(wrong))]])
        fail(where, f"example {example:,} in another window than the one where it belongs")
    _check_is_chain(where, rows)
    return segments, lasts[at]


def _check_is_chain(where: Path, rows: ShardRows) -> None:
    branches = (rows.parents >= 0) & (rows.parents != np.arange(rows.num) - 1)
    if branches.any():
        fail(where, f"row {int(np.argmax(branches)):,}: a branch, where examples stand apart")


def check_shares(
    where: Path,
    rows: ShardRows,
    columns: ExampleColumns,
    rules: Rules,
    pieces: Pieces,
    numbers: Int64Array,
    owners: Int64Array,
    lasts: Int64Array,
) -> None:
    """Raise unless counts, weights and supervised pairs are those of the windows' pieces.

    Args:
        where: the shard.
        rows: of it.
        columns: of the examples.
        rules: of the build.
        pieces: of the partition.
        numbers: shape (n,), int64; those that belong to the shard's windows.
        owners: shape (n,), int64; the window of each, from 0 on.
        lasts: shape (n,), int64; its last row there.
    """
    windows = rows.windows
    counts = rows.below(np.bincount(lasts, minlength=rows.num))
    if (wrong := (counts != windows.counts) | (counts == 0)).any():
        row = int(np.argmax(wrong))
        expected = f"{counts[row]:,}, of the window's examples" if counts[row] else "a row that one of them needs"
        fail(where, f"row {row:,}: count {windows.counts[row]:,}", expected)
    lows = pieces.lows[numbers]
    # An example that is split trains in each piece what lies there; its last row is behind all of that.
    runs = runs_of(columns, pieces.examples[numbers], rules.shift)
    depths = windows.depths[lasts].astype(np.int64)[runs.owners]
    firsts = np.maximum(runs.lows - lows[runs.owners], 0)
    stops = np.minimum(runs.highs - lows[runs.owners], depths + 1)
    some = np.flatnonzero(stops > firsts)
    of, firsts, stops = runs.owners[some], firsts[some], stops[some]
    supervised = np.bincount(owners[of], weights=stops - firsts, minlength=windows.num_windows)
    if (supervised != windows.num_supervised).any():
        number = int(np.argmax(supervised != windows.num_supervised))
        expected = f"{int(supervised[number]):,}, of the window's examples"
        fail(where, f"window {number:,} of the file: num_supervised {windows.num_supervised[number]:,}", expected)
    above = np.full(len(of), -1, dtype=np.int64)
    inner = np.flatnonzero(firsts > 0)
    above[inner] = rows.ancestors(lasts[of[inner]], firsts[inner] - 1)
    weights = columns.weights[pieces.examples[numbers[of]]]
    sums = RunSums(rows.num, rows.ancestors(lasts[of], stops - 1), above, weights).at(slice(None), rows.ends)
    if (wrong := wrong_weights(windows.weights, sums)).any():
        row = int(np.argmax(wrong))
        expected = f"{sums.totals[row]:g}, of the window's examples"
        fail(where, f"row {row:,}: weight {windows.weights[row]:g}", expected)
