"""Pretokenised records: ``input_ids``, never changed, with ``labels`` or ``loss_mask`` beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.corpora.datasets.id_blocks import block_of
from dagpack_cli.corpora.files.sources import Source, read_source_batches, read_source_rows
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import IdBlock, Ids, OnBad, Place, Record, read_label, read_weight, runs_of, shown
from dagpack_cli.errors import DataError

__all__ = ["ARRAYS", "NAME", "read", "read_blocks", "recognise"]

NAME = "pretokenised"

ARRAYS = ("input_ids", "labels", "loss_mask", "attention_mask")
"""Columns of numbers, which tables give as arrays."""
_COLUMNS = (*ARRAYS, "weight", "id", "group", "start", "end")
_IGNORED_LABEL = -100
_INT32_END = 2**31

IntArray = npt.NDArray[np.int64]


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record holds token ids."""
    return isinstance(record.get("input_ids"), list | np.ndarray)


def read_blocks(
    source: Source, options: ReadOptions, on_bad: OnBad, *, vocab_size: int | None
) -> Iterator[IdBlock | Record]:
    """Yield what `read` does, of tables as many examples together as are plain, with ids below ``vocab_size``."""
    batches = read_source_batches(source, on_bad, columns=_COLUMNS)
    if batches is None:
        yield from read(source, options, on_bad)
        return
    for batch in batches:
        block = block_of(batch, source.name, vocab_size)
        if block is not None:
            yield block
            continue
        for number, row in enumerate(batch.rows(ARRAYS, on_bad), batch.first):
            try:
                record = _record_of(row, Place(source.name, number))
            except DataError as error:
                on_bad(error)
            else:
                yield record
        if not batch.is_whole:
            return


def read(source: Source, _options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a record; what is wrong with one goes to ``on_bad``."""
    for place, row in read_source_rows(source, on_bad, columns=_COLUMNS, arrays=ARRAYS):
        try:
            record = _record_of(row, place)
        except DataError as error:
            on_bad(error)
        else:
            yield record


def _record_of(row: dict[str, Any], place: Place) -> Record:
    where = str(place)
    if row.get("input_ids") is None:
        raise DataError(where, 'field "input_ids" is missing', "pretokenised records hold token ids")
    ids = _integers(row["input_ids"], "input_ids", where)
    if len(ids) and (ids.min() < 0 or ids.max() >= _INT32_END):
        first = int(np.argmax((ids < 0) | (ids >= _INT32_END)))
        raise DataError(where, f"input_ids[{first}] is {int(ids[first]):,}", f"0 to {_INT32_END - 1:,}")
    supervised = _supervised(row, ids, where)
    low, high = _unpadded(row.get("attention_mask"), len(ids), where)
    start, end = _interior(row, len(ids), where)
    start, end = max(start, low), min(end, high)
    end = max(start, end)
    return Record(
        place=place,
        body=Ids(ids[start:end].astype(np.int32), runs_of(supervised[start:end])),
        id=read_label(row, "id", place) or place.id,
        weight=read_weight(row.get("weight"), place),
        group=read_label(row, "group", place),
        start=start,
        end=end,
    )


def _integers(value: Any, name: str, where: str, *, flags: bool = False) -> IntArray:
    """Return a list of whole numbers as int64; with ``flags``, truth values count as 0 and 1."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in ("iub" if flags else "iu"):
            raise DataError(where, f'"{name}" holds {value.dtype} values', "whole numbers")
        if value.dtype == np.uint64 and len(value) and value.max() > np.iinfo(np.int64).max:
            raise DataError(where, f'"{name}" holds {int(value.max()):,}', "64-bit numbers")
        return value.astype(np.int64, copy=False)
    if not isinstance(value, list):
        raise DataError(where, f'"{name}" is {shown(value)}', "a list of whole numbers")
    allowed = {int, bool} if flags else {int}
    if not set(map(type, value)) <= allowed:
        index = next(index for index, item in enumerate(value) if type(item) not in allowed)
        raise DataError(where, f"{name}[{index}] is {shown(value[index])}", "a whole number")
    try:
        return np.array(value, dtype=np.int64)
    except OverflowError:
        raise DataError(where, f'"{name}" holds a number of more than 64 bits', "64-bit numbers") from None


def _aligned(value: Any, name: str, num: int, where: str, *, flags: bool) -> IntArray:
    found = _integers(value, name, where, flags=flags)
    if len(found) != num:
        raise DataError(where, f'"{name}" has {len(found):,} entries', f'"input_ids" has {num:,}')
    wrong = np.flatnonzero((found != 0) & (found != 1)) if flags else found[:0]
    if len(wrong):
        index = int(wrong[0])
        raise DataError(where, f"{name}[{index}] is {int(found[index]):,}", "0 or 1")
    return found


def _supervised(row: dict[str, Any], ids: IntArray, where: str) -> npt.NDArray[np.bool_]:
    """Return which tokens are trained as targets; entry 0 has no context and is not checked."""
    labels, mask = row.get("labels"), row.get("loss_mask")
    if labels is not None and mask is not None:
        raise DataError(where, 'both "labels" and "loss_mask" are given', "one of them")
    if mask is not None:
        chosen: npt.NDArray[np.bool_] = _aligned(mask, "loss_mask", len(ids), where, flags=True) == 1
        return chosen
    if labels is None:
        return np.ones(len(ids), dtype=np.bool_)
    given = _aligned(labels, "labels", len(ids), where, flags=False)
    wrong = np.flatnonzero((given != _IGNORED_LABEL) & (given != ids))
    wrong = wrong[wrong > 0]
    if len(wrong):
        index = int(wrong[0])
        raise DataError(
            where,
            f"labels[{index}] is {int(given[index]):,}, input_ids[{index}] is {int(ids[index]):,}: labels look shifted",
            f"labels[i] must be input_ids[i] or {_IGNORED_LABEL}",
        )
    trained: npt.NDArray[np.bool_] = given == ids  # entry 0, which is not checked, may hold anything
    return trained


def _unpadded(value: Any, num: int, where: str) -> tuple[int, int]:
    """Return the half-open range of tokens between the padding at either end."""
    if value is None:
        return 0, num
    mask = _aligned(value, "attention_mask", num, where, flags=True)
    ones = np.flatnonzero(mask)
    if len(ones) == 0:
        return 0, 0
    low, high = int(ones[0]), int(ones[-1]) + 1
    if len(ones) != high - low:
        hole = low + int(np.flatnonzero(mask[low:high] == 0)[0])
        raise DataError(
            where, f"attention_mask[{hole}] is 0 between ones", "only padding at either end can be left out"
        )
    return low, high


def _interior(row: dict[str, Any], num: int, where: str) -> tuple[int, int]:
    """Return the range that ``start`` and ``end`` choose, all of the record by default."""
    start, end = row.get("start"), row.get("end")
    start, end = 0 if start is None else start, num if end is None else end
    if type(start) is not int or type(end) is not int or not 0 <= start <= end <= num:
        found = f"start {shown(start)}, end {shown(end)}"
        raise DataError(where, found, f"0 <= start <= end <= {num:,}")
    return start, end
