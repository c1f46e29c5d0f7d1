"""Who trains a message that several examples carry, and which examples are one family. Pure.

Leaves of a session, its compaction epochs and its fork files carry the same messages. Each has a
key; the first example that carries it trains it, the others hold it as context, so its weight is
the same however often it was copied.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, select, spans

__all__ = ["join_families", "settle_claims"]

Int64Array = npt.NDArray[np.int64]

_PART = 1 << 20  # keys in memory at a time


def settle_claims(keys: Int64Array, run_offsets: Int64Array, zeros: Zeros = np.zeros) -> npt.NDArray[np.bool_]:
    """Return which runs stay supervised: those of the first example that has their key.

    Args:
        keys: shape (r, 2), int64; the key of every run, zeros for none: such a run always stays.
        run_offsets: shape (num_examples + 1,), int64; the runs of every example.
        zeros: makes the result.

    Returns:
        shape (r,), bool. O(r log r) and a look at all keys for each of their parts: equal keys are in one, and a part
        of a million or so is in memory, some 60 bytes each.
    """
    kept = zeros(len(keys), np.bool_)
    num_parts = np.uint64(max(-(-len(keys) // _PART), 1))
    for span in spans(len(keys)):
        kept[span] = True
    for part in range(int(num_parts)):

        def inside(span: slice, part: int = part) -> npt.NDArray[np.bool_]:
            some = keys[span]
            given = (some != 0).any(axis=1)
            return np.asarray(given & (some[:, 1].astype(np.uint64) % num_parts == part), dtype=np.bool_)

        chosen = select(len(keys), inside, np.zeros)
        if len(chosen) == 0:
            continue
        owners = np.searchsorted(run_offsets, chosen, side="right") - 1
        distinct, numbers = _numbered(keys[chosen])
        first = np.full(len(distinct), np.iinfo(np.int64).max, dtype=np.int64)
        np.minimum.at(first, numbers, owners)
        kept[chosen] = first[numbers] == owners
    return kept


def join_families(
    keys: Int64Array, owners: Int64Array, groups: Sequence[str | None], families: Sequence[str | None]
) -> list[str | None]:
    """Return the group of every example, the same for all that a key, a group or a family connects.

    Args:
        keys: as in `settle_claims`, before claims are settled.
        owners: the example of every run.
        groups: of every example, None where it has none.
        families: a second group of every example: the session it was forked from.

    Returns:
        Of each connected set, its least name; where no member has a name, its least key in
        hexadecimal; None for an example that nothing connects.
    """
    index, numbers = _numbered(keys)
    if len(index) == 0 and not any(family is not None for family in families):
        return list(groups)
    names: dict[str, int] = {}
    root = array("q", range(len(groups) + len(index)))  # a fifth of what a list takes

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    def join(left: int, right: int) -> None:
        left, right = find(left), find(right)
        root[max(left, right)] = min(left, right)

    for example, named in enumerate(zip(groups, families, strict=True)):
        for name in named:
            if name is not None:
                join(example, names.setdefault(name, example))
    claimed = numbers >= 0
    pairs = np.unique(np.stack([owners[claimed], numbers[claimed]], axis=1), axis=0)
    for example, number in pairs.tolist():
        join(example, len(groups) + number)
    labels: dict[int, str] = {}
    for name, example in names.items():
        labels[find(example)] = min(name, labels.get(find(example), name))
    for number, key in enumerate(index.tolist()):
        found = find(len(groups) + number)
        if found not in labels or labels[found].startswith("key:"):
            text = f"key:{key[0] & (2**64 - 1):016x}{key[1] & (2**64 - 1):016x}"
            labels[found] = min(text, labels.get(found, text))
    return [labels.get(find(example)) for example in range(len(groups))]


def _numbered(keys: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the distinct keys, shape (k, 2), and the number of every run's key, -1 for none."""
    numbers = np.full(len(keys), -1, dtype=np.int64)
    given = np.flatnonzero((keys != 0).any(axis=1))
    if len(given) == 0:
        return np.zeros((0, 2), dtype=np.int64), numbers
    order = given[np.lexsort((keys[given, 1], keys[given, 0]))]
    ordered = keys[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    numbers[order] = np.cumsum(new) - 1
    return ordered[new], numbers
