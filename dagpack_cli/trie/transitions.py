"""The distinct transitions of a corpus and what crosses them, counted block by block and joined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli import memory
from dagpack_cli.memory import Zeros, spans

__all__ = ["Transitions", "count_transitions", "join_transitions"]

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_TARGET_BITS = 31  # of a key: tokens are int32 and not negative


@dataclass(frozen=True, slots=True)
class Transitions:
    """The distinct transitions of a corpus, sorted by (source, target).

    Attributes:
        sources, targets: shape (num_transitions,), int64.
        counts, supervised: shape (num_transitions,), int64; crossings, and those that train.
        weights: shape (num_transitions,), float64.
        starts: shape (num_starts,), int64; the distinct first states, sorted.
        start_counts: shape (num_starts,), int64; sequences that start there.
    """

    sources: Int64Array
    targets: Int64Array
    counts: Int64Array
    supervised: Int64Array
    weights: npt.NDArray[np.float64]
    starts: Int64Array
    start_counts: Int64Array


def count_transitions(
    tokens: Int32Array, offsets: Int64Array, target_weights: npt.NDArray[np.float64], trains: npt.NDArray[np.bool_]
) -> Transitions:
    """Return the distinct transitions of the sequences and what crosses them.

    Args:
        tokens: shape (num_tokens,), int32, non-negative.
        offsets: shape (num_sequences + 1,), int64; no sequence is empty.
        target_weights: shape (num_tokens,), float64; example weight x supervision of the token.
        trains: shape (num_tokens,), bool; whether that token is supervised with a weight not 0.

    Time O(num_tokens log num_tokens), memory some 150 bytes a token.
    """
    follows = np.ones(len(tokens), dtype=bool)
    follows[offsets[:-1]] = False
    at = np.flatnonzero(follows)
    keys, inverse, counts = np.unique(
        tokens[at - 1].astype(np.int64) << _TARGET_BITS | tokens[at], return_inverse=True, return_counts=True
    )
    starts, start_counts = np.unique(tokens[offsets[:-1]].astype(np.int64), return_counts=True)
    return Transitions(
        sources=keys >> _TARGET_BITS,
        targets=keys & (1 << _TARGET_BITS) - 1,
        counts=counts.astype(np.int64),
        supervised=np.bincount(inverse, weights=trains[at], minlength=len(keys)).astype(np.int64),
        weights=np.bincount(inverse, weights=target_weights[at], minlength=len(keys)).astype(np.float64),
        starts=starts,
        start_counts=start_counts.astype(np.int64),
    )


def join_transitions(blocks: Iterable[Transitions], zeros: Zeros = np.zeros) -> Transitions:
    """Return the distinct transitions of several blocks of sequences together.

    Tables are joined with others of about their size, so that the time is O(n log(number of blocks)). Weights are
    sums of the blocks' sums, the same for the same blocks.

    Args:
        blocks: of `count_transitions`, each taken when the one before has been joined.
        zeros: makes the arrays with an entry a distinct transition: some 70 bytes each in all, while two large
            tables are joined.
    """
    crossed: list[_Table] = []
    started: list[_Table] = []
    for block in blocks:
        keys = block.sources << _TARGET_BITS | block.targets
        _push(crossed, _Table(keys, (block.counts, block.supervised, block.weights)), zeros)
        _push(started, _Table(block.starts, (block.start_counts,)), zeros)
    found = _all(crossed, (np.int64, np.int64, np.float64), zeros)
    first = _all(started, (np.int64,), zeros)
    sources, targets = zeros(len(found.keys), np.int64), zeros(len(found.keys), np.int64)
    for span in spans(len(found.keys)):
        sources[span] = found.keys[span] >> _TARGET_BITS
        targets[span] = found.keys[span] & (1 << _TARGET_BITS) - 1
    counts, supervised, weights = found.columns
    return Transitions(sources, targets, counts, supervised, weights, first.keys, first.columns[0])


@dataclass(frozen=True, slots=True)
class _Table:
    """What is summed by key: keys ascending, each once, and columns of the same length."""

    keys: Int64Array
    columns: tuple[npt.NDArray[Any], ...]


def _push(tables: list[_Table], table: _Table, zeros: Zeros) -> None:
    """Add a table; it is joined with those before it that are not much larger."""
    tables.append(table)
    while len(tables) > 1 and len(tables[-2].keys) <= 2 * len(tables[-1].keys):
        last = tables.pop()
        tables.append(_joined(tables.pop(), last, zeros))


def _all(tables: list[_Table], dtypes: tuple[npt.DTypeLike, ...], zeros: Zeros) -> _Table:
    while len(tables) > 1:
        last = tables.pop()
        tables.append(_joined(tables.pop(), last, zeros))
    return tables[0] if tables else _Table(zeros(0, np.int64), tuple(zeros(0, dtype) for dtype in dtypes))


def _joined(one: _Table, other: _Table, zeros: Zeros) -> _Table:
    """Return the sums of two tables, an equal range of keys of both at a time."""
    size = len(one.keys) + len(other.keys)
    keys, columns = zeros(size, np.int64), tuple(zeros(size, column.dtype) for column in one.columns)
    done, firsts = 0, [0, 0]
    while done < size and (firsts[0] < len(one.keys) or firsts[1] < len(other.keys)):
        parts = [_next(one, firsts[0]), _next(other, firsts[1])]
        bounds = [
            table.keys[part.stop] for table, part in zip((one, other), parts, strict=True) if _goes_on(table, part)
        ]
        if bounds:  # neither gives more than a span below the lower of them
            parts = [_below(table, part, min(bounds)) for table, part in zip((one, other), parts, strict=True)]
        found = np.concatenate((one.keys[parts[0]], other.keys[parts[1]]))
        order = np.argsort(found, kind="stable")
        found = found[order]
        heads = np.flatnonzero(np.diff(found, prepend=-1))
        last = done + len(heads)
        keys[done:last] = found[heads]
        for column, left, right in zip(columns, one.columns, other.columns, strict=True):
            column[done:last] = np.add.reduceat(np.concatenate((left[parts[0]], right[parts[1]]))[order], heads)
        done, firsts = last, [part.stop for part in parts]
    return _Table(keys[:done], tuple(column[:done] for column in columns))


def _next(table: _Table, first: int) -> slice:
    return slice(first, min(first + memory.SPAN, len(table.keys)))


def _goes_on(table: _Table, part: slice) -> bool:
    return bool(part.stop < len(table.keys))


def _below(table: _Table, part: slice, bound: int) -> slice:
    """Return the entries of a part whose keys are below a bound."""
    return slice(part.start, part.start + int(np.searchsorted(table.keys[part], bound)))
