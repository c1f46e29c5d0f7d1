"""Windows of trees in interval form: the rows as they are, and one integer a row for the mask."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dagpack_cli.export.lists import IGNORED_LABEL, Lists
from dagpack_cli.preorder import subtree_ends
from dagpack_cli.shards import WindowRows

__all__ = ["TREE_COLUMNS", "TREE_LABELS", "tree_rows"]

TREE_COLUMNS: dict[str, type[np.generic]] = {
    "input_ids": np.int32,
    "labels": np.int64,
    "position_ids": np.int32,
    "subtree_end": np.int32,
    "weights": np.float32,
}
TREE_LABELS = (
    "labels[i] is what row i itself predicts, or -100 where its weight is 0: they are not to be moved by one; "
    "row q sees row k where k <= q < subtree_end[k]; the loss is sum(weights * cross entropy)"
)


def tree_rows(windows: WindowRows, weights: npt.NDArray[np.float32]) -> dict[str, Lists]:
    """Return windows of any layout as rows with the ends of their subtrees.

    Args:
        windows: of any layout.
        weights: shape (num_rows,), float32; of the rows.

    Returns:
        by name, a value a row: ``input_ids``, ``labels`` (the row's own target, -100 where the weight is 0),
        ``position_ids`` (depths), ``subtree_end`` (exclusive, in rows of the window) and ``weights``.

    Raises:
        TreeError: the rows of a window are not in preorder.

    Time O(rows) plus a Python step per row that does not follow the one before it.
    """
    offsets = windows.row_offsets
    bases = np.repeat(offsets[:-1], np.diff(offsets))
    linked = np.where(windows.parents < 0, -1, windows.parents + bases)
    # Every window begins with a root, at which the subtrees of the window before it end.
    ends = (subtree_ends(linked) - bases).astype(np.int32)
    return {
        "input_ids": Lists(offsets, windows.inputs),
        "labels": Lists(offsets, np.where(weights != 0, windows.targets, IGNORED_LABEL).astype(np.int64)),
        "position_ids": Lists(offsets, windows.depths),
        "subtree_end": Lists(offsets, ends),
        "weights": Lists(offsets, weights),
    }
