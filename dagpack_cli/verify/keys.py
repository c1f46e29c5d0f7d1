"""Numbers that say which path a row ends: 64-bit hashes, equal for equal paths. Pure.

The hash of a path is that of its first token plus, for every token after it, that token's own hash times
a power of one odd number: so the hashes of all rows are sums along paths, and those of a trie's nodes are
sums over its tokens. Two different paths have one hash with a chance of 2^-64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.shards import WindowRows

__all__ = ["mix", "node_keys", "prefix_keys", "row_keys"]

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_STEP = 1 << 15
_BLOCK = 1 << 21  # tokens of a trie that are looked at together


def mix(values: UInt64Array) -> UInt64Array:
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
    """Return the odd number to the power of every depth below 2^30, modulo 2^64."""
    high, low = np.divmod(depths.astype(np.int64), _STEP)
    return np.asarray(_SMALL[low] * _LARGE[high], dtype=np.uint64)


def _first(tokens: npt.NDArray[np.integer], segments: npt.NDArray[np.integer] | None = None) -> UInt64Array:
    """Return the hashes of paths of one token, which differ by segment where that is given."""
    values = tokens.astype(np.uint64)
    if segments is not None:
        values |= segments.astype(np.uint64) + np.uint64(1) << np.uint64(32)
    return mix(values)


def _terms(tokens: npt.NDArray[np.integer], depths: npt.NDArray[np.integer]) -> UInt64Array:
    """Return what tokens add to the hashes of paths that hold them at these depths, at least 1."""
    return mix(tokens.astype(np.uint64)) * _powers(depths)


def row_keys(windows: WindowRows, *, by_segment: bool) -> UInt64Array:
    """Return the hash of every row's path, the row's target included: shape (num_rows,).

    In preorder a row either continues the row before it or hangs below an earlier one, so a whole run
    is one cumulative sum; a run that does not continue its predecessor is corrected by one number.

    Args:
        windows: in preorder, with parents and depths that fit (see `windows.check_windows`).
        by_segment: whether equal paths of different trees differ.
    """
    num = len(windows.inputs)
    if num == 0:
        return np.zeros(0, dtype=np.uint64)
    bases = np.repeat(windows.row_offsets[:-1], np.diff(windows.row_offsets))
    parents = np.where(windows.parents >= 0, windows.parents + bases, -1)
    with np.errstate(over="ignore"):
        terms = _terms(windows.targets, windows.depths.astype(np.int64) + 1)
        roots = np.flatnonzero(windows.parents < 0)
        terms[roots] += _first(windows.inputs[roots], windows.segments[roots] if by_segment else None)
        sums = np.cumsum(terms)
        heads = np.flatnonzero(parents != np.arange(num) - 1)
        heads = heads if len(heads) and heads[0] == 0 else np.concatenate(([0], heads))
        runs = np.zeros(num, dtype=np.int64)
        runs[heads] = 1
        runs = np.cumsum(runs) - 1
        before = np.where(heads > 0, sums[heads - 1], np.uint64(0))
        shifts = np.zeros(len(heads), dtype=np.uint64)
        above, above_runs = parents[heads].tolist(), runs[np.maximum(parents[heads], 0)].tolist()
        for run, (parent, parent_run) in enumerate(zip(above, above_runs, strict=True)):
            shifts[run] = before[run] - (sums[parent] - shifts[parent_run] if parent >= 0 else np.uint64(0))
        return np.asarray(sums - shifts[runs], dtype=np.uint64)


def _token_terms(tokens: npt.NDArray[np.integer], depths: npt.NDArray[np.integer]) -> UInt64Array:
    """As `_terms`, where a token at depth 0 begins its path."""
    with np.errstate(over="ignore"):
        return np.where(depths == 0, _first(tokens), _terms(tokens, depths))


def node_keys(
    tokens: npt.NDArray[np.int32],
    offsets: Int64Array,
    depths: npt.NDArray[np.int32],
    subtree_ends: npt.NDArray[np.int32],
    zeros: Zeros = np.zeros,
) -> UInt64Array:
    """Return the hash of the path to every trie node's last token: shape (num_nodes,).

    Reads the tokens once, a block at a time; ``zeros`` makes two arrays with an entry a node.
    """
    num = len(depths)
    sums, steps = zeros(num, np.uint64), zeros(num + 1, np.uint64)
    first = 0
    with np.errstate(over="ignore"):
        while first < num:
            last = max(int(np.searchsorted(offsets, offsets[first] + _BLOCK, side="right")) - 1, first + 1)
            for low in range(int(offsets[first]), int(offsets[last]), _BLOCK):  # one node may be longer than a block
                high = min(low + _BLOCK, int(offsets[last]))
                at = np.arange(low, high)
                owners = np.searchsorted(offsets[first : last + 1], at, side="right") - 1 + first
                terms = _token_terms(np.asarray(tokens[low:high]), depths[owners] + (at - offsets[owners]))
                np.add.at(sums, owners, terms)
            first = last
        for span in spans(num):
            steps[span] += sums[span]
            np.subtract.at(steps, subtree_ends[span].astype(np.int64), sums[span])
        total = np.uint64(0)
        for span in spans(num):
            steps[span] = total + np.cumsum(steps[span])
            total = steps[span.stop - 1]
        return steps[:num]


def prefix_keys(above: np.uint64, tokens: npt.NDArray[np.int32], depth: int) -> UInt64Array:
    """Return the hashes of the paths to each of a node's tokens: shape (len(tokens),).

    Args:
        above: hash of the path to the node's parent, 0 for a root.
        tokens: of the node.
        depth: of its first token.
    """
    with np.errstate(over="ignore"):
        return np.asarray(above + np.cumsum(_token_terms(tokens, depth + np.arange(len(tokens)))), dtype=np.uint64)
