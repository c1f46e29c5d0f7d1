"""The symbols that inputs showed when they were read, from the splits' files: input by input, never all at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from dagpack_cli.errors import DamageError

__all__ = ["SymbolLines"]

_BLOCK = 1 << 20  # bytes looked at at a time


class SymbolLines(Iterable[bytes]):
    """The symbols of inputs, one input after the other; every input's in the order in which it first shows them.

    Args:
        ranges: of every input, the file of its split, and which lines of that are its own: half-open.

    Iterating reads the files; time O(bytes), memory: one line and some numbers an input.

    Raises:
        DamageError: a file has fewer lines.
    """

    def __init__(self, ranges: Iterable[tuple[Path, int, int]]) -> None:
        self.offsets = [0]
        self._runs: list[tuple[Path, int, int]] = []
        for path, first, last in ranges:
            self.offsets.append(self.offsets[-1] + last - first)
            if self._runs and self._runs[-1][0] == path and self._runs[-1][2] == first:
                self._runs[-1] = (path, self._runs[-1][1], last)
            elif first < last:
                self._runs.append((path, first, last))

    def __len__(self) -> int:
        """Return the number of symbols of all inputs: an input's are numbered from its entry of ``offsets`` on."""
        return self.offsets[-1]

    def __iter__(self) -> Iterator[bytes]:
        """Yield every symbol, without the end of its line."""
        starts: dict[Path, dict[int, int]] = {}
        for path, first, last in self._runs:
            if first and path not in starts:
                starts[path] = _line_starts(path, sorted({run[1] for run in self._runs if run[0] == path}))
            with path.open("rb") as file:
                file.seek(starts[path][first] if first else 0)
                for _ in range(last - first):
                    line = file.readline()
                    if not line.endswith(b"\n"):
                        raise _too_short(path)
                    yield line[:-1]


def _line_starts(path: Path, numbers: Sequence[int]) -> dict[int, int]:
    """Return the bytes before some lines of a file; ``numbers``: ascending."""
    starts: dict[int, int] = {0: 0}
    left = [number for number in reversed(numbers) if number]
    lines = size = 0
    with path.open("rb") as file:
        for block in iter(partial(file.read, _BLOCK), b""):
            found = block.count(b"\n")
            if left and left[-1] <= lines + found:
                ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n"))
                while left and left[-1] <= lines + found:
                    number = left.pop()
                    starts[number] = size + int(ends[number - lines - 1]) + 1
            lines, size = lines + found, size + len(block)
    if left:
        raise _too_short(path)
    return starts


def _too_short(path: Path) -> DamageError:
    return DamageError(str(path), "fewer symbols than its receipt says", "one a line", hint="remove the cache folder")
