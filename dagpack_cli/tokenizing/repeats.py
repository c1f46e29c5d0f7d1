"""Which of many values are equal to an earlier one: of 16 bytes each, in bounded memory and in no hash table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli import memory
from dagpack_cli.memory import Zeros, select, spans, stable_places

__all__ = ["Keys", "as_keys", "digest", "digests", "first_equals"]

Int64Array = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

_DIGEST_BYTES = 16


def digest(value: bytes) -> bytes:
    """Return 16 bytes, equal for equal values and different for others: BLAKE2b of 128 bits.

    Among n values some two that differ have one digest with a probability below n^2 / 2^129, 1.5e-21 for a milliard.
    """
    return blake2b(value, digest_size=_DIGEST_BYTES).digest()


def as_keys(found: Sequence[bytes]) -> Keys:
    """Return digests as numbers: shape (n, 2), uint64."""
    return np.frombuffer(b"".join(found), dtype="<u8").reshape(-1, 2)


def digests(values: Iterable[bytes], num: int, zeros: Zeros) -> Keys:
    """Return the key of every value: its `digest`.

    Args:
        values: ``num`` of them, each looked at once and let go.
        num: how many.
        zeros: makes the result.

    Returns:
        shape (num, 2), uint64.

    Raises:
        ValueError: there are fewer values, or more.
    """
    keys = zeros((num, 2), np.uint64)
    left = iter(values)
    for span in spans(num):
        keys[span] = as_keys([digest(value) for value in itertools.islice(left, span.stop - span.start)])
    if next(left, None) is not None:
        raise ValueError(f"more than {num:,} values")
    return keys


def first_equals(keys: Keys, zeros: Zeros) -> Int64Array:
    """Return for every key where the first that is equal to it stands: its own place for one that is new.

    Keys of one span are compared by a sort. What is new in its span is spread over buckets by its highest bits, so
    that a bucket is about as large as a span, however often the same few keys come again. Time O(n log n), memory
    O(a span).

    Args:
        keys: shape (n, 2), uint64; the highest bits of the first column are spread evenly, as those of a digest are.
        zeros: makes the result, and 28 bytes for each key that is new in its span.

    >>> first_equals(np.array([[7, 1], [7, 2], [7, 1]], dtype=np.uint64), np.zeros)
    array([0, 1, 0])
    """
    firsts = zeros(len(keys), np.int64)
    for span in spans(len(keys)):
        firsts[span] = span.start + _firsts(keys[span])
    if len(keys) <= memory.SPAN:
        return firsts
    news = select(len(keys), lambda span: firsts[span] == np.arange(span.start, span.stop), zeros)
    num_buckets = 1 << (len(news) // memory.SPAN).bit_length()
    for places in _buckets(keys, news, num_buckets, zeros):
        firsts[places] = places[_firsts(keys[places])]
    for span in spans(len(keys)):
        firsts[span] = firsts[firsts[span]]  # by way of the first in its span
    return firsts


def _firsts(keys: Keys) -> Int64Array:
    """Return for every key the index of the first that is equal to it."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable, so that the first of equal keys is the first
    ordered = keys[order]
    heads = np.ones(len(keys), dtype=np.bool_)
    heads[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    firsts = np.empty(len(keys), dtype=np.int64)
    firsts[order] = order[np.flatnonzero(heads)[np.cumsum(heads) - 1]]
    return firsts


def _buckets(keys: Keys, chosen: Int64Array, num_buckets: int, zeros: Zeros) -> Iterable[Int64Array]:
    """Yield the chosen places, ascending, bucket by bucket: equal keys are in one."""
    shift = np.uint64(64 - (num_buckets.bit_length() - 1))
    numbers: npt.NDArray[Any] = zeros(len(chosen), np.int32)
    sizes = np.zeros(num_buckets, dtype=np.int64)
    for span in spans(len(chosen)):
        # Halved first: a shift by all 64 bits is not defined.
        numbers[span] = (keys[chosen[span], 0] >> np.uint64(1)) >> (shift - np.uint64(1))
        sizes += np.bincount(numbers[span], minlength=num_buckets)
    places = stable_places(numbers, num_buckets, zeros)
    ordered = zeros(len(chosen), np.int64)
    for span in spans(len(chosen)):
        ordered[places[span]] = chosen[span]
    ends = np.cumsum(sizes)
    return (np.array(ordered[end - size : end]) for end, size in zip(ends.tolist(), sizes.tolist(), strict=True))
