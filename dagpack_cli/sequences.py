"""Token sequences wherever they lie: in one array, or in many memory-mapped files that stay on disk. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Sequences"]

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

Zeros = Callable[[Any, npt.DTypeLike], npt.NDArray[Any]]

_BLOCK = 1 << 22  # tokens looked at at a time
_SPAN = 1 << 18  # sequences likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Sequences of tokens, none of which is copied.

    Several files are seen as one array that reaches from the first to the last of them in memory. What
    lies between two belongs to nobody: only ranges inside a sequence may be read.

    Attributes:
        tokens: shape (span,), int32, non-negative where it may be read.
        starts: shape (n,), int64; sequence i is ``tokens[starts[i]:starts[i] + lengths[i]]``.
        lengths: shape (n,), int64.
        owners: what keeps the memory in place.
    """

    tokens: Int32Array
    starts: Int64Array
    lengths: Int64Array
    owners: tuple[Any, ...] = ()

    @classmethod
    def of(cls, tokens: Int32Array, offsets: Int64Array) -> Sequences:
        """Return the sequences of one array, end to end; ``offsets``: shape (n + 1,), int64."""
        return cls(tokens=tokens, starts=offsets[:-1], lengths=np.diff(offsets))

    @classmethod
    def over(cls, parts: List[Int32Array], lengths: List[Int64Array], zeros: Zeros = np.zeros) -> Sequences:
        """Return the sequences of several arrays, in each end to end.

        Args:
            parts: int32, contiguous; what is mapped from files stays there.
            lengths: of the sequences of each part, int64; they fill it.
            zeros: makes the arrays with an entry a sequence.

        Raises:
            ValueError: lengths do not fill their part.

        >>> parts = [np.array([1, 2, 3], np.int32), np.array([4], np.int32)]
        >>> sequences = Sequences.over(parts, [np.array([2, 1]), np.array([1])])
        >>> [sequences[number].tolist() for number in range(3)]
        [[1, 2], [3], [4]]
        """
        for part, sizes in zip(parts, lengths, strict=True):
            if int(sizes.sum()) != len(part) or part.dtype != np.int32 or not part.flags.c_contiguous:
                raise ValueError(f"sequences of {int(sizes.sum()):,} tokens in a part of {len(part):,} {part.dtype}")
        filled = [part for part in parts if len(part)]
        addresses = {id(part): part.ctypes.data for part in filled}
        lowest = min(filled, key=lambda part: addresses[id(part)], default=np.zeros(0, dtype=np.int32))
        origin = addresses.get(id(lowest), 0)
        span = max(((addresses[id(part)] - origin) // 4 + len(part) for part in filled), default=0)
        if any((address - origin) % 4 for address in addresses.values()):
            raise ValueError("parts that are not aligned")
        num = sum(len(sizes) for sizes in lengths)
        starts, joined = zeros(num, np.int64), zeros(num, np.int64)
        done = 0
        for part, sizes in zip(parts, lengths, strict=True):
            start = (addresses[id(part)] - origin) // 4 if len(part) else 0
            for first in range(0, len(sizes), _SPAN):
                block = sizes[first : first + _SPAN]
                ends = np.cumsum(block)
                starts[done : done + len(block)] = start + ends - block
                joined[done : done + len(block)] = block
                start += int(ends[-1])
                done += len(block)
        return cls(
            tokens=np.lib.stride_tricks.as_strided(lowest, shape=(span,), strides=(4,), writeable=False),
            starts=starts,
            lengths=joined,
            owners=tuple(filled),
        )

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.starts)

    def __getitem__(self, number: int) -> Int32Array:
        """Return the tokens of one sequence: a view."""
        start = int(self.starts[number])
        return self.tokens[start : start + int(self.lengths[number])]

    def __iter__(self) -> Iterator[Int32Array]:
        """Yield the tokens of every sequence."""
        return (self[number] for number in range(len(self)))

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all sequences."""
        return int(self.lengths.sum())

    def take(self, chosen: Int64Array | slice, zeros: Zeros = np.zeros) -> Sequences:
        """Return some of the sequences; their tokens stay where they are. ``zeros`` makes arrays of copies."""
        if isinstance(chosen, slice):
            return replace(self, starts=self.starts[chosen], lengths=self.lengths[chosen])
        starts, lengths = zeros(len(chosen), np.int64), zeros(len(chosen), np.int64)
        for first in range(0, len(chosen), _SPAN):
            inside = slice(first, first + _SPAN)
            starts[inside], lengths[inside] = self.starts[chosen[inside]], self.lengths[chosen[inside]]
        return replace(self, starts=starts, lengths=lengths)

    def gather(self) -> tuple[Int32Array, Int64Array]:
        """Return a copy of all tokens end to end, and offsets of shape (n + 1,), int64."""
        offsets = np.concatenate(([0], np.cumsum(self.lengths)))
        tokens = np.empty(int(offsets[-1]), dtype=np.int32)
        for start, low, high in zip(self.starts.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            tokens[low:high] = self.tokens[start : start + high - low]
        return tokens, offsets

    def largest(self) -> int:
        """Return the largest token, -1 where there is none. O(tokens), in bounded memory."""
        return max((int(block.max()) for block in self.blocks()), default=-1)

    def blocks(self) -> Iterator[Int32Array]:
        """Yield all tokens in order, in views of bounded size that join what is end to end."""
        start = stop = 0  # of what is end to end so far
        for first in range(0, len(self), _SPAN):
            starts = self.starts[first : first + _SPAN]
            ends = starts + self.lengths[first : first + _SPAN]
            before = np.concatenate(([stop], ends[:-1]))
            for at in np.flatnonzero(starts != before).tolist():
                yield from self._views(start, int(before[at]))
                start = int(starts[at])
            stop = int(ends[-1])
        yield from self._views(start, stop)

    def _views(self, start: int, stop: int) -> Iterator[Int32Array]:
        return (self.tokens[low : min(low + _BLOCK, stop)] for low in range(start, stop, _BLOCK))
