"""The examples of splits, in input order, as the trie is built from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagpack_cli.examples.files import META_SCHEMA
from dagpack_cli.examples.splits import Segment, Split, joined_segments, read_meta
from dagpack_cli.memory import Zeros, spans
from dagpack_cli.sequences import Sequences

__all__ = ["Examples", "load_examples"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Examples in input order, as columns; tokens, and what each came from, stay in the files of their splits.

    Attributes:
        sequences: the tokens of every example; those of splits stay in their files.
        runs: shape (num_runs, 2), int32; half-open supervised ranges of an example's own tokens.
        run_offsets: shape (num_examples + 1,), int64, into ``runs``.
        keys: shape (num_runs, 2), int64; the key of the message of every run, zeros for none.
        chats: shape (num_examples,), bool; which are conversations.
        weights: shape (num_examples,), float64; of the examples.
        segments: where the examples are.
    """

    sequences: Sequences
    runs: npt.NDArray[np.int32]
    run_offsets: Int64Array
    keys: Int64Array
    chats: npt.NDArray[np.bool_]
    weights: npt.NDArray[np.float64]
    segments: Sequence[Segment]

    @property
    def num_examples(self) -> int:
        """Number of examples, empty ones included."""
        return len(self.sequences)

    @property
    def run_owners(self) -> Int64Array:
        """The example of every run: shape (num_runs,), int64."""
        return np.repeat(np.arange(self.num_examples), np.diff(self.run_offsets))

    @property
    def has_keys(self) -> bool:
        """Whether any run is that of a message with a key."""
        return any(self.keys[span].any() for span in spans(len(self.keys)))

    def with_runs(self, kept: npt.NDArray[np.bool_], zeros: Zeros = np.zeros) -> Examples:
        """Return the same examples with only some of their runs supervised.

        Args:
            kept: shape (num_runs,), bool.
            zeros: makes the arrays with an entry an example or a run.
        """
        num = sum(int(np.count_nonzero(kept[span])) for span in spans(len(kept)))
        runs, keys = zeros((num, 2), np.int32), zeros((num, 2), np.int64)
        offsets = zeros(self.num_examples + 1, np.int64)
        done = 0
        for span in spans(self.num_examples):
            bounds = self.run_offsets[span.start : span.stop + 1]
            inside = slice(int(bounds[0]), int(bounds[-1]))
            stays = kept[inside]
            sums = np.concatenate(([0], np.cumsum(stays)))
            offsets[span.start + 1 : span.stop + 1] = done + sums[bounds[1:] - bounds[0]]
            to = slice(done, done + int(sums[-1]))
            runs[to], keys[to] = self.runs[inside][stays], self.keys[inside][stays]
            done = to.stop
        return replace(self, runs=runs, keys=keys, run_offsets=offsets)

    def meta(self, columns: Sequence[str] = META_SCHEMA.names) -> Iterator[pa.Table]:
        """Yield tables of id, file, record, line, start, end, group and weight, in all one row an example.

        ``family``, a second group, null for none, can be asked for too. Memory: some row groups.
        """
        return read_meta(self.segments, list(columns))

    def names(self, column: str) -> Iterator[str | None]:
        """Yield the strings of a column of `meta`."""
        return (name for table in self.meta([column]) for name in table.column(0).to_pylist())


def load_examples(segments: Sequence[Segment], zeros: Zeros = np.zeros) -> Examples:
    """Return the examples of segments, in order. Memory: some 50 bytes an example, and no token.

    Tokens are mapped and stay in the files of their splits; ``zeros`` makes those of symbols, which have to
    become the vocabulary's.

    Args:
        segments: of splits.
        zeros: makes the arrays with an entry an example or a run.
    """
    segments = list(joined_segments(segments))
    splits = {segment.directory: Split(segment.directory) for segment in segments}
    num = sum(segment.last - segment.first for segment in segments)
    tokens, lengths, runs, keys, num_runs = [], [], [], [], []
    for segment in segments:
        split = splits[segment.directory]
        found = split.tokens[split.offset(segment.first) : split.offset(segment.last)]
        tokens.append(found if segment.remap is None else _renumbered(found, segment.remap, zeros))
        lengths.append(split.lengths[segment.first : segment.last])
        inside = slice(split.run_offset(segment.first), split.run_offset(segment.last))
        num_runs.append(split.num_runs[segment.first : segment.last])
        runs.append(split.runs[inside])
        keys.append(split.keys[inside])
    run_offsets, weights, chats = zeros(num + 1, np.int64), zeros(num, np.float64), zeros(num, np.bool_)
    done = 0
    for part in num_runs:
        for span in spans(len(part)):
            last = done + span.stop - span.start
            run_offsets[done + 1 : last + 1] = run_offsets[done] + np.cumsum(part[span])
            done = last
    done = 0
    for table in read_meta(segments, ["weight", "chat"]):
        weights[done : done + table.num_rows] = table.column("weight")
        chats[done : done + table.num_rows] = table.column("chat")
        done += table.num_rows
    return Examples(
        sequences=Sequences.over(tokens, lengths, zeros),
        runs=_joined(runs, np.int32, zeros),
        run_offsets=run_offsets,
        keys=_joined(keys, np.int64, zeros),
        chats=chats,
        weights=weights,
        segments=segments,
    )


def _renumbered(tokens: npt.NDArray[np.int32], remap: npt.NDArray[np.int32], zeros: Zeros) -> npt.NDArray[np.int32]:
    found = zeros(len(tokens), np.int32)
    for span in spans(len(tokens)):
        found[span] = remap[tokens[span]]
    return found


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike, zeros: Zeros) -> npt.NDArray[Any]:
    """Return arrays of pairs end to end; one alone stays where it is."""
    if len(parts) == 1:
        return parts[0]
    joined = zeros((sum(len(part) for part in parts), 2), dtype)
    done = 0
    for part in parts:
        for span in spans(len(part)):
            joined[done + span.start : done + span.stop] = part[span]
        done += len(part)
    return joined
