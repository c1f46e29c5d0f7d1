"""Files as pyarrow opens them itself, by the exact bytes of their path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pyarrow as pa

__all__ = ["open_native"]


def open_native(path: Path, mode: Literal["rb", "wb"]) -> pa.NativeFile:
    """Return a file for pyarrow to read or write.

    Not a string, which pyarrow may take for an address, or expand, or fail to encode; and not a file of
    Python's, which its threads may still hold when the interpreter ends.

    Raises:
        OSError: it cannot be opened; with its name.
    """
    try:
        return pa.OSFile(os.fsencode(path), mode)
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
