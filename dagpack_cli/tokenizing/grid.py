"""The built-in vocabulary of grid games: 96 ids, no files, one for every cell of a frame.

=========  ==========================================================================
ids        meaning
=========  ==========================================================================
0, 1       BOS, EOS
2 to 17    a cell of colour 0 to 15
18         the end of a row
19 to 26   an action: RESET, ACTION1 to ACTION7
27 to 90   a coordinate 0 to 63: x, then y, after ACTION6
91 to 94   the end of a frame: NOT_PLAYED, NOT_FINISHED, WIN, GAME_OVER
95         virtual root
=========  ==========================================================================

A frame of 64 x 64 cells is 4,161 tokens. A text tokenizer would need as many or more, and would
merge neighbouring digits differently from row to row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DataError, MismatchError
from dagpack_cli.tokenizing.base import IdArray, write_saved

__all__ = [
    "ACTIONS",
    "BOS",
    "EOS",
    "FIRST_ACTION",
    "FIRST_CELL",
    "FIRST_COORDINATE",
    "FIRST_STATUS",
    "MAX_SIDE",
    "NUM_COLOURS",
    "ROW_END",
    "STATUSES",
    "VIRTUAL_ROOT",
    "VOCAB_SIZE",
    "GridTokenizer",
    "action_ids",
    "frame_cells",
    "frame_ids",
]

ACTIONS = ("RESET", "ACTION1", "ACTION2", "ACTION3", "ACTION4", "ACTION5", "ACTION6", "ACTION7")
STATUSES = ("NOT_PLAYED", "NOT_FINISHED", "WIN", "GAME_OVER")
NUM_COLOURS = 16
MAX_SIDE = 64

BOS, EOS, FIRST_CELL = 0, 1, 2
ROW_END = FIRST_CELL + NUM_COLOURS
FIRST_ACTION = ROW_END + 1
FIRST_COORDINATE = FIRST_ACTION + len(ACTIONS)
FIRST_STATUS = FIRST_COORDINATE + MAX_SIDE
VIRTUAL_ROOT = FIRST_STATUS + len(STATUSES)
VOCAB_SIZE = VIRTUAL_ROOT + 1

_TEXTS = (
    "<bos>",
    "<eos>",
    *"0123456789abcdef",
    "\n",
    *(f"<{name.lower()}>" for name in ACTIONS),
    *(f"({number})" for number in range(MAX_SIDE)),
    *(f"<{name.lower().replace('_', '-')}>" for name in STATUSES),
    "<virtual-root>",
)
_DEFINITION = f"grid v1: {_TEXTS}"
_CELL_OF_DIGIT = np.full(256, 255, dtype=np.uint8)
_CELL_OF_DIGIT[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(NUM_COLOURS, dtype=np.uint8)


def frame_cells(rows: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Return the cells of a frame as symbols keep it: ``state.frame`` of a payload of `read_symbols`.

    Args:
        rows: one hexadecimal digit a cell; all of one length, at least 1.

    Returns:
        shape (height, width), uint8, 0 to 15.

    Raises:
        DataError: the rows are none, empty, of several lengths, or hold something else.

    >>> frame_cells(["0f", "10"]).tolist()
    [[0, 15], [1, 0]]
    """
    lengths = {len(row) for row in rows}
    cells = _CELL_OF_DIGIT[np.frombuffer("".join(rows).encode("latin-1", "replace"), dtype=np.uint8)]
    if len(lengths) != 1 or not len(cells) or cells.max() >= NUM_COLOURS:
        raise DataError("frame", "is no grid", "rows of one length, one hexadecimal digit a cell")
    return cells.reshape(len(rows), -1)


def frame_ids(rows: Sequence[str], status: str) -> IdArray:
    """Return the ids of a frame: its cells row by row, each row's end, and the state of the game.

    Args:
        rows: one hexadecimal digit a cell; all of one length.
        status: one of `STATUSES`.

    Returns:
        shape (height x (width + 1) + 1,), int32.

    >>> frame_ids(["0f", "10"], "WIN").tolist()
    [2, 17, 18, 3, 2, 18, 93]
    """
    cells = frame_cells(rows).astype(np.int32) + FIRST_CELL
    lines = np.pad(cells, ((0, 0), (0, 1)), constant_values=ROW_END).ravel()
    return np.append(lines, FIRST_STATUS + STATUSES.index(status)).astype(np.int32)


def action_ids(name: str, point: tuple[int, int] | None = None) -> IdArray:
    """Return the ids of an action: its own, and those of x and y where it has a point.

    >>> action_ids("ACTION6", (3, 63)).tolist()
    [25, 30, 90]
    """
    places = [] if point is None else [FIRST_COORDINATE + part for part in point]
    return np.array([FIRST_ACTION + ACTIONS.index(name), *places], dtype=np.int32)


class GridTokenizer:
    r"""The fixed vocabulary of grid games; what makes its ids is the reader of a recording.

    >>> GridTokenizer().decode([0, 19, 2, 17, 18, 92])
    '<bos><reset>0f\n<not-finished>'
    """

    kind: ClassVar[str] = "grid"
    vocab_size: ClassVar[int] = VOCAB_SIZE
    bos_id: ClassVar[int | None] = BOS
    eos_id: ClassVar[int | None] = EOS
    virtual_root_id: ClassVar[int] = VIRTUAL_ROOT

    def identity(self) -> dict[str, object]:
        """Return the kind, the hash of the id layout, the vocabulary size, BOS and EOS."""
        return {
            "kind": self.kind,
            "sha256": hashlib.sha256(_DEFINITION.encode()).hexdigest(),
            "vocab_size": VOCAB_SIZE,
            "bos": BOS,
            "eos": EOS,
        }

    def encode_documents(self, texts: Sequence[str]) -> list[IdArray]:
        """Refuse: ids stand for cells and actions, not for text."""
        raise _no_text()

    def encode_pieces(self, texts: Sequence[str]) -> list[IdArray]:
        """Refuse: ids stand for cells and actions, not for text."""
        raise _no_text()

    def decode(self, ids: Sequence[int] | IdArray) -> str:
        """Return frames as rows of hexadecimal digits, the rest as names in angle brackets, coordinates as ``(n)``."""
        tokens = np.asarray(ids, dtype=np.int64).tolist()
        return "".join(_TEXTS[token] if 0 <= token < VOCAB_SIZE else f"<{token}>" for token in tokens)

    def save(self, directory: Path) -> None:
        """Write the identity; there is nothing else to keep."""
        write_saved(directory, self.identity())


def _no_text() -> MismatchError:
    return MismatchError(
        "--grid-tokens",
        "cannot encode text",
        "every id is a cell, an action or a mark of a grid game",
        hint="use --tokenizer bytes, without --grid-tokens",
    )
