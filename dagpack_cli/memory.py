"""How much memory a build may hold, and arrays that are kept in files where they would be more."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import UsageError

__all__ = [
    "SPAN",
    "Scratch",
    "Zeros",
    "default_memory",
    "give_back",
    "parse_memory",
    "scratch_limit",
    "select",
    "spans",
    "stable_places",
]

Zeros = Callable[[Any, npt.DTypeLike], npt.NDArray[Any]]
"""How an array with an entry an example, a node or a row is made: `numpy.zeros`, or what keeps it in a file."""

SPAN = 1 << 18
"""Entries of such arrays that are looked at at a time, so that what is computed on the way stays small."""

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_LEAST = 64 << 20
_SHARE = 64  # arrays of that share of the memory lie in files: a stage has some forty of them
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def default_memory() -> int:
    """Return half of the bytes that the machine, or the container, has: what ``--memory`` is where it is not given.

    What ``--memory`` bounds: half of it is for sorting (320 bytes a sequence of a chunk), and every array with an
    entry an example, a node, a row, a distinct value or transition of games that would take more than a 64th of it lies
    in a file of the staging area (some 400 bytes an example, 70 a value that an input shows, 120 a transition of room
    on the disk), of which the system keeps as much in memory as it can spare. On top come some 350 MB, which do not
    grow: libraries, the rows of a few shards, a range of nodes while it is packed. What does: 8 bytes x the longest
    example, 22 while it is read, 150 x the longest game; the values of 64 MiB of games, or of one larger input, while
    they are read, and those of the places where games are not Markov; where a validation partition is split off, the
    messages of sessions, some 100 bytes each.
    """
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _LIMITS:
        with suppress(OSError, ValueError):  # no such limit, or "max"
            found = min(found, int(Path(name).read_text()))
    return max(found // 2, _LEAST)


def parse_memory(text: str) -> int:
    """Return a number of bytes from text such as ``512M``, ``4GiB`` or ``2g``; units are powers of 1,024.

    Raises:
        UsageError: no such number, or fewer than 64 MiB.

    >>> parse_memory("512M"), parse_memory("1.5GiB")
    (536870912, 1610612736)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    size = int(float(match[1]) * (1 << _UNITS[match[2].upper()])) if match else 0
    if size < _LEAST:
        raise UsageError("--memory", text, "a size of at least 64M, such as 512M or 4G")
    return size


def scratch_limit(memory: int) -> int:
    """Return the bytes beyond which an array of a build that may hold ``memory`` bytes is kept in a file."""
    return memory // _SHARE


def spans(num: int, size: int | None = None) -> Iterator[slice]:
    """Yield the ranges that cover ``num`` entries, at most ``size`` of them each, or `SPAN`.

    >>> list(spans(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = SPAN if size is None else size
    return (slice(first, min(first + step, num)) for first in range(0, num, step))


def select(num: int, chosen: Callable[[slice], npt.NDArray[np.bool_]], zeros: Zeros) -> npt.NDArray[np.int64]:
    """Return the numbers below ``num`` that are chosen, ascending, int64: `numpy.flatnonzero` in bounded memory.

    Args:
        num: of entries.
        chosen: which of a range are, shape (its length,); called twice for each.
        zeros: makes the result.

    >>> select(4, lambda span: np.array([True, False, True, True])[span], np.zeros)
    array([0, 2, 3])
    """
    found = zeros(sum(int(np.count_nonzero(chosen(span))) for span in spans(num)), np.int64)
    done = 0
    for span in spans(num):
        numbers = np.flatnonzero(chosen(span)) + span.start
        found[done : done + len(numbers)] = numbers
        done += len(numbers)
    return found


def stable_places(keys: npt.NDArray[np.integer[Any]], num_keys: int, zeros: Zeros) -> npt.NDArray[np.int64]:
    """Return where each entry stands when entries are sorted by key, equal ones in their order, in bounded memory.

    A counting sort. Time O(n + num_keys) and a sort of every range of `spans`.

    Args:
        keys: shape (n,), in [0, num_keys).
        num_keys: how many there are.
        zeros: makes the result, and 8 bytes for every key.

    >>> stable_places(np.array([2, 0, 2, 1]), 3, np.zeros)
    array([2, 0, 3, 1])
    """
    starts = zeros(num_keys + 1, np.int64)
    for span in spans(len(keys)):
        np.add.at(starts, keys[span].astype(np.int64) + 1, 1)
    for span in spans(num_keys):
        starts[span.start + 1 : span.stop + 1] = starts[span.start] + np.cumsum(starts[span.start + 1 : span.stop + 1])
    places = zeros(len(keys), np.int64)
    for span in spans(len(keys)):
        block = keys[span]
        order = np.argsort(block, kind="stable")
        heads = np.flatnonzero(np.diff(block[order], prepend=-1))
        found, counts = block[order[heads]], np.diff(heads, append=len(block))
        rank = np.arange(len(block)) - np.repeat(heads, counts)
        places[span.start + order] = np.repeat(starts[found], counts) + rank
        starts[found] += counts
    return places


def give_back() -> None:
    """Give what has been freed back to the system, which allocators keep for later; a millisecond or so."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # only glibc has it, and only it needs it
        ctypes.CDLL(None).malloc_trim(0)


class Scratch:
    """Makes arrays with an entry an example, a node or a row.

    They are in memory while they are small, else in files that no name leads to: their pages go to the disk
    when somebody needs the memory, and no limit on what a process allocates counts them.

    Args:
        directory: where the files are, on a disk with room for them.
        limit: bytes of the largest array that is held in memory.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory, self._limit = directory, limit

    def zeros(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array, all 0; its file ends with it.

        Args:
            shape: of the array.
            dtype: likewise.

        Raises:
            OSError: the disk is full: its room is reserved here, for a map that cannot be written is fatal.
        """
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if size <= self._limit:
            return np.zeros(shape, dtype=dtype)
        with TemporaryFile(dir=self._directory, prefix=".scratch-") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            # Slices of a plain view are cheap, those of numpy's memmap are not.
            return np.asarray(np.memmap(file, dtype=dtype, mode="r+", shape=shape))
