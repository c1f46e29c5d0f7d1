"""Pretokenised rows of a table many at a time: for corpora of millions of them. What is not plain is not taken.

A block says exactly what `pretokenised.read` would say of its rows one by one. Where a row has
anything that has to be looked at by itself (a null, padding, a range, a number that may be wrong),
there is no block, and the rows are read one by one, with the messages that belong to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.corpora.files.table_batch import TableBatch
from dagpack_cli.corpora.records import IdBlock, are_weights

__all__ = ["block_of"]

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_IGNORED_LABEL = -100
_INT32_END = 2**31


def block_of(batch: TableBatch, file: str, vocab_size: int | None = None) -> IdBlock | None:
    """Return the examples of rows that are all plain, else None.

    Args:
        batch: rows with ``input_ids`` and perhaps ``labels`` or ``loss_mask``, ``weight``, ``id`` and ``group``.
        file: the name of their file.
        vocab_size: ids are below it.
    """
    if not all(batch.is_absent(name) for name in ("attention_mask", "start", "end")):
        return None
    found = None if batch.is_absent("input_ids") else batch.lists("input_ids")
    if found is None:
        return None
    ids, lengths = found
    end = _INT32_END if vocab_size is None else min(vocab_size, _INT32_END)
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < end):
        return None
    runs = _runs(batch, ids, lengths)
    weights = np.ones(len(batch)) if batch.is_absent("weight") else batch.numbers("weight")
    if runs is None or weights is None or not are_weights(weights):
        return None
    labels = [None if batch.is_absent(name) else batch.strings(name) for name in ("id", "group")]
    if any(found is None and not batch.is_absent(name) for name, found in zip(("id", "group"), labels, strict=True)):
        return None
    first = batch.first
    made = [f"{file}:{number}" for number in range(first, first + len(batch))]
    return IdBlock(
        tokens=ids.astype(np.int32, copy=False),
        lengths=lengths,
        runs=runs[0],
        num_runs=runs[1],
        weights=weights,
        ids=[given or own for given, own in zip(labels[0], made, strict=True)] if labels[0] else made,
        groups=labels[1],
        first=first,
    )


def _runs(batch: TableBatch, ids: npt.NDArray[Any], lengths: Int64Array) -> tuple[Int32Array, Int64Array] | None:
    """Return the supervised runs of all rows, and how many each has; None where a row has to be looked at."""
    has_labels, has_mask = (not batch.is_absent(name) for name in ("labels", "loss_mask"))
    if not has_labels and not has_mask:
        filled = lengths > 0
        ends = lengths[filled].astype(np.int32)
        return np.stack((np.zeros_like(ends), ends), axis=1), filled.astype(np.int64)
    found = (
        None
        if has_labels and has_mask
        else batch.lists("labels")
        if has_labels
        else batch.lists("loss_mask", flags=True)
    )
    if found is None or not np.array_equal(found[1], lengths):
        return None
    values, starts = found[0], np.cumsum(lengths) - lengths
    heads = np.zeros(len(ids) + 1, dtype=bool)
    heads[starts[lengths > 0]] = True
    if has_labels:
        trained = values == ids
        if not (trained | (values == _IGNORED_LABEL) | heads[:-1]).all():
            return None
    else:
        trained = values == 1
        if not (trained | (values == 0)).all():
            return None
    begins = trained & (heads[:-1] | ~np.concatenate(([False], trained[:-1])))
    closes = trained & (heads[1:] | ~np.concatenate((trained[1:], [False])))
    firsts, lasts = np.flatnonzero(begins), np.flatnonzero(closes)
    rows = np.searchsorted(starts, firsts, side="right") - 1
    # Empty rows start where the next one does: the last of those is the one that holds the run.
    runs = np.stack((firsts - starts[rows], lasts + 1 - starts[rows]), axis=1).astype(np.int32)
    return runs, np.bincount(rows, minlength=len(lengths)).astype(np.int64)
