"""How much memory a build may hold, and arrays that are kept in files where they would be more."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import UsageError

__all__ = ["Scratch", "default_memory", "parse_memory"]

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_LEAST = 64 << 20
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def default_memory() -> int:
    """Return half of the bytes that the machine, or the container, has."""
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


class Scratch:
    """Makes arrays with an entry a row: in memory while they are small, else in files that no name leads to.

    Args:
        directory: where the files are, on a disk with room for them.
        limit: bytes of the largest array that is held in memory.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory, self._limit = directory, limit

    def zeros(self, num: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array of shape (num,), all 0; its file ends with it.

        Raises:
            OSError: the disk is full: its room is reserved here, for a map that cannot be written is fatal.
        """
        size = num * np.dtype(dtype).itemsize
        if size <= self._limit:
            return np.zeros(num, dtype=dtype)
        with TemporaryFile(dir=self._directory, prefix=".scratch-") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype=dtype, mode="r+", shape=(num,))
