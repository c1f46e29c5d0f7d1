"""Stored ``.npy`` arrays, opened as read-only memory maps and checked for what they should be."""

from __future__ import annotations

import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DamageError

__all__ = ["open_array", "save_array", "save_blocks"]


def open_array(path: Path, dtype: npt.DTypeLike, ndim: int = 1) -> npt.NDArray[Any]:
    """Return a stored ``.npy`` array, memory-mapped and read-only.

    Raises:
        DamageError: the file is missing, truncated, not ``.npy``, or of another dtype or rank.
            Nothing in it is ever unpickled.
    """
    try:
        # Slices of a plain view are cheap, those of numpy's memmap are not.
        array: npt.NDArray[Any] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError:
        raise DamageError(str(path), "the file is missing") from None
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:
        raise DamageError(str(path), f"not a readable .npy file ({error})", "an array written by dagpack") from None
    if array.dtype != np.dtype(dtype) or array.ndim != ndim:
        raise DamageError(
            str(path),
            f"{array.ndim}-dimensional {array.dtype}",
            f"{ndim}-dimensional {np.dtype(dtype)}",
        )
    return array


class _Written:
    """A file that numpy writes to piece by piece; its shortcut for real files hides why a write failed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        """Write some bytes."""
        return self._file.write(data)


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array as ``.npy``; equal arrays give equal bytes."""
    with path.open("wb") as file:
        np.save(_Written(file), array, allow_pickle=False)


def save_blocks(path: Path, num: int, dtype: npt.DTypeLike, blocks: Iterable[tuple[int, npt.NDArray[Any]]]) -> None:
    """Write a one-dimensional ``.npy`` array in blocks, in any order: the bytes of `save_array`.

    Args:
        path: the file.
        num: entries of the array; the blocks cover all of them.
        dtype: of the array.
        blocks: (index of the first entry, entries), each written before the next is asked for.
    """
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (num,)}
        np.lib.format.write_array_header_1_0(file, header)
        start, size = file.tell(), np.dtype(dtype).itemsize
        for first, values in blocks:
            file.seek(start + first * size)
            file.write(np.ascontiguousarray(values, dtype=dtype).data)
