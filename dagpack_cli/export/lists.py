"""What both forms of a window are made of: one list a window, end to end."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["IGNORED_LABEL", "Lists"]

IGNORED_LABEL = -100  # what torch's cross entropy leaves out


class Lists(NamedTuple):
    """A column of windows.

    Attributes:
        offsets: shape (num_windows + 1,), int64; window w has ``values[offsets[w]:offsets[w + 1]]``.
        values: shape (offsets[-1],).
    """

    offsets: npt.NDArray[np.int64]
    values: npt.NDArray[Any]
