"""Numbers that say which path a row ends: 64-bit hashes, equal for equal paths. Pure.

The hash of a path is that of where its first token stands in the trie plus, for every token after it, that
token's own hash times a power of one odd number, its depth in the trie: so the hashes of all rows are sums
along paths, and those of a trie's nodes are sums over its tokens. Two different paths have one hash with a
chance of 2^-64; nothing is taken for right because hashes are equal, see `places`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.trie import Trie

__all__ = ["path_keys", "row_keys", "token_keys"]

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_STEP = 1 << 15
_BLOCK = 1 << 21  # tokens of a trie that are looked at together


def _mix(values: UInt64Array) -> UInt64Array:
    """Return well-spread 64-bit numbers (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = values + _ODD
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


def _table(base: np.uint64) -> UInt64Array:
    with np.errstate(over="ignore"):
        return np.concatenate(([np.uint64(1)], np.cumprod(np.full(_STEP, base, dtype=np.uint64))))


_SMALL = _table(_ODD)
_LARGE = _table(_SMALL[_STEP])


def _powers(depths: npt.NDArray[np.integer]) -> UInt64Array:
    """Return the odd number to the power of every depth below 2^30, modulo 2^64; it begins again there."""
    high, low = np.divmod(depths.astype(np.int64) % (_STEP * _STEP), _STEP)
    return np.asarray(_SMALL[low] * _LARGE[high], dtype=np.uint64)


def _firsts(positions: npt.NDArray[np.integer]) -> UInt64Array:
    """Return the hashes of paths of one token: by where it stands, for trees may start alike."""
    return _mix(positions.astype(np.uint64) | np.uint64(1 << 63))


def _terms(tokens: npt.NDArray[np.integer], depths: npt.NDArray[np.integer]) -> UInt64Array:
    """Return what tokens add to the hashes of paths that hold them at these depths, at least 1."""
    return _mix(tokens.astype(np.uint64)) * _powers(depths)


def row_keys(
    targets: npt.NDArray[np.int32],
    depths: Int64Array,
    ends: npt.NDArray[np.integer],
    roots: Int64Array,
    root_keys: UInt64Array,
) -> UInt64Array:
    """Return the hash of every row's path from the trie's root on, its target included: shape (num_rows,).

    Args:
        targets: shape (num_rows,), int32, in preorder.
        depths: shape (num_rows,), int64; of the targets in the trie.
        ends: shape (num_rows,); exclusive ends of the rows' subtrees.
        roots: the rows without a parent.
        root_keys: the hash of the path to the input of each of them.
    """
    with np.errstate(over="ignore"):
        terms = _terms(targets, depths)
        terms[roots] += root_keys
        steps = np.concatenate((terms, [np.uint64(0)]))
        np.subtract.at(steps, ends, terms)
        return np.cumsum(steps[:-1], dtype=np.uint64)


def _token_sums(trie: Trie) -> Iterator[tuple[int, UInt64Array]]:
    """Yield, some tokens at a time, what all tokens up to each one add: (the first token's position, the sums)."""
    total = np.uint64(0)
    with np.errstate(over="ignore"):
        for first in range(0, len(trie.tokens), _BLOCK):
            last = min(first + _BLOCK, len(trie.tokens))
            low = int(np.searchsorted(trie.offsets, first, side="right")) - 1
            high = int(np.searchsorted(trie.offsets, last, side="left"))
            starts = np.maximum(trie.offsets[low:high], first)
            shifts = trie.depths[low:high] - trie.offsets[low:high]
            at = np.arange(first, last)
            depths = at + np.repeat(shifts, np.diff(starts, append=last))
            terms = _terms(trie.tokens[first:last], depths)
            roots = np.flatnonzero(depths == 0)
            terms[roots] = _firsts(at[roots])
            sums = total + np.cumsum(terms, dtype=np.uint64)
            total = sums[-1]
            yield first, sums


def token_keys(trie: Trie, positions: Int64Array, zeros: Zeros = np.zeros) -> tuple[UInt64Array, UInt64Array]:
    """Return the hashes of the paths to every node's last token, and to some tokens.

    Args:
        trie: checked.
        positions: shape (n,), int64, ascending; the tokens.
        zeros: makes two arrays with an entry a node, and one with an entry for each of the tokens.

    Reads the trie's tokens once, a block at a time.
    """
    num = trie.num_nodes
    lasts, found = zeros(num, np.uint64), zeros(len(positions), np.uint64)
    node = number = 0
    for first, sums in _token_sums(trie):
        stop = first + len(sums)
        until = int(np.searchsorted(trie.offsets[1:], stop, side="right"))
        lasts[node:until] = sums[trie.offsets[node + 1 : until + 1] - 1 - first]
        node = until
        until = int(np.searchsorted(positions, stop))
        found[number:until] = sums[positions[number:until] - first]
        number = until
    keys = path_keys(trie, lasts, zeros)
    with np.errstate(over="ignore"):
        for span in spans(len(found)):
            owners = np.searchsorted(trie.offsets, positions[span], side="right") - 1
            found[span] += keys[owners] - lasts[owners]
    return keys, found


def path_keys(trie: Trie, lasts: UInt64Array, zeros: Zeros = np.zeros) -> UInt64Array:
    """Return the sums along the path to every node's last token, given those over all tokens up to it."""
    num = trie.num_nodes
    steps = zeros(num + 1, np.uint64)
    before = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for span in spans(num):
            own = np.diff(lasts[span], prepend=before)
            before = lasts[span.stop - 1 : span.stop]
            steps[span] += own
            np.subtract.at(steps, trie.subtree_ends[span].astype(np.int64), own)
        total = np.zeros(1, dtype=np.uint64)
        for span in spans(num):
            steps[span] = total + np.cumsum(steps[span], dtype=np.uint64)
            total = steps[span.stop - 1 : span.stop].copy()
    return steps[:num]
