"""Windows of whole documents in the form of TRL's packed datasets.

A window holds pairs, each with its input and its target; a model of transformers is given tokens, and
moves the labels by one itself. So a document gets its first token back: of n tokens it is n - 1 rows and n
labels, the first of which trains nothing, for nothing precedes it. A window has as many tokens as rows and
documents together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DamageError
from dagpack_cli.export.lists import IGNORED_LABEL, Lists
from dagpack_cli.shards import WindowRows

__all__ = ["TRL_COLUMNS", "TRL_LABELS", "WEIGHT_COLUMN", "check_documents", "trl_rows"]

WEIGHT_COLUMN = "loss_weights"
TRL_COLUMNS: dict[str, type[np.generic]] = {
    "input_ids": np.int32,
    "labels": np.int64,
    "position_ids": np.int32,
    "seq_lengths": np.int32,
}
TRL_LABELS = (
    "labels[i] is input_ids[i], or -100 where that token trains nothing; a model that is given them predicts "
    "labels[i] from the tokens before i of the same document: it moves the labels by one itself"
)


def check_documents(shard: Path, windows: WindowRows) -> None:
    """Raise `DamageError` unless every row of some windows follows the one before it, or begins a document."""
    local = np.arange(len(windows.parents)) - np.repeat(windows.row_offsets[:-1], np.diff(windows.row_offsets))
    if ((windows.parents >= 0) & (windows.parents != local - 1)).any():
        raise DamageError(str(shard), "a row does not follow the row before it", "documents, as its layout has them")


def trl_rows(windows: WindowRows, weights: npt.NDArray[np.float32]) -> dict[str, Lists]:
    """Return windows of documents as whole token sequences.

    Args:
        windows: of a layout that does not merge, as `check_documents` has found them.
        weights: shape (num_rows,), float32; of the rows.

    Returns:
        by name: ``input_ids``, ``labels`` (-100 where the weight is 0 and at the first token of a document),
        ``position_ids`` (from 0 in every document) and ``loss_weights`` (of the token as a target, 0 at the first),
        a value a token; and ``seq_lengths``, tokens of a document, a value a document.

    Time and memory O(rows); vectorised.
    """
    num_rows = len(windows.inputs)
    is_head = windows.parents < 0
    heads = np.flatnonzero(is_head)
    documents = np.cumsum(is_head)  # up to and including a row's own: so far its target stands behind the row
    places, first_places = np.arange(num_rows) + documents, heads + np.arange(len(heads))
    num_tokens = num_rows + len(heads)

    def spread(firsts: Any, others: npt.NDArray[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
        values = np.empty(num_tokens, dtype=dtype)
        values[first_places], values[places] = firsts, others
        return values

    before = np.concatenate(([0], documents))[windows.row_offsets]
    token_offsets = windows.row_offsets + before
    labels = np.where(weights != 0, windows.targets, IGNORED_LABEL)
    lengths = np.diff(np.append(heads, num_rows)) + 1
    return {
        "input_ids": Lists(token_offsets, spread(windows.inputs[heads], windows.targets, np.int32)),
        "labels": Lists(token_offsets, spread(IGNORED_LABEL, labels, np.int64)),
        "position_ids": Lists(token_offsets, spread(0, windows.depths + 1, np.int32)),
        "seq_lengths": Lists(before, lengths.astype(np.int32)),
        WEIGHT_COLUMN: Lists(token_offsets, spread(0, weights, np.float32)),
    }
