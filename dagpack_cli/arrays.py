"""Stored ``.npy`` arrays, opened as read-only memory maps and checked for what they should be."""

from __future__ import annotations

import tokenize
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DamageError

__all__ = ["open_array"]

_REBUILD = "build again: dagpack build CORPUS OUT --rehash"


def open_array(path: Path, dtype: npt.DTypeLike, ndim: int = 1) -> npt.NDArray[Any]:
    """Return a stored ``.npy`` array, memory-mapped and read-only.

    Raises:
        DamageError: the file is missing, truncated, not ``.npy``, or of another dtype or rank.
            Nothing in it is ever unpickled.
    """
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DamageError(str(path), "the file is missing", hint=_REBUILD) from None
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:
        raise DamageError(
            str(path), f"not a readable .npy file ({error})", "an array written by dagpack", hint=_REBUILD
        ) from None
    if array.dtype != np.dtype(dtype) or array.ndim != ndim:
        raise DamageError(
            str(path),
            f"{array.ndim}-dimensional {array.dtype}",
            f"{ndim}-dimensional {np.dtype(dtype)}",
            hint=_REBUILD,
        )
    return array
