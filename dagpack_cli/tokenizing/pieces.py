"""Pieces of a conversation: what is encoded on its own, and what of it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

import numpy as np
import numpy.typing as npt

from dagpack_cli.tokenizing.base import IdArray

__all__ = ["Part", "Piece", "Rendered"]


class Part(IntFlag):
    """The parts of a message that can be targets."""

    NOTHING = 0
    HEADER = 1
    THINKING = 2
    CONTENT = 4
    TOOL_CALLS = 8
    END = 16
    WRITTEN = THINKING | CONTENT | TOOL_CALLS | END
    ALL = WRITTEN | HEADER


@dataclass(frozen=True, slots=True)
class Piece:
    """A control id, or a text to encode on its own; supervised as targets or not.

    ``turn`` is the index of the message it belongs to, -1 for none.
    """

    value: int | str
    supervised: bool = False
    turn: int = -1


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as tokens.

    Attributes:
        ids: shape (n,), int32.
        runs: shape (r, 2), int32: half-open ranges of positions that are supervised as targets,
            sorted and disjoint; those of one message are merged where they touch.
        turns: shape (r,), int32: the index of the message each run belongs to, -1 for none.
    """

    ids: IdArray
    runs: npt.NDArray[np.int32]
    turns: npt.NDArray[np.int32]
