"""The rows of windows: what a shard stores and a reader trains on. Pure: arrays in, arrays out.

A window is described by *instances*: stretches of rows that stand one after the other in the trie,
in preorder, each hanging below the last row of its parent instance. `fill_rows` turns instances into
rows; how many examples cross a row and with what weight comes from the layout (`merged`, `unmerged`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagpack_cli.trie import Engine, check_weights

__all__ = ["BLOCK_SIZE", "ROW_COLUMNS", "Instances", "WindowRows", "chain_blocks", "fill_rows", "ranges", "tree_blocks"]

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_COMPILED_ROWS = 1 << 20  # of a batch: a shard or so, beside which a compiler does not count
BLOCK_SIZE = 128  # of FlexAttention's block masks; only for what `stats` counts
ROW_COLUMNS = {
    "inputs": np.int32,
    "targets": np.int32,
    "depths": np.int32,
    "parents": np.int32,
    "counts": np.int32,
    "segments": np.int32,
    "weights": np.float32,
    "owned": np.bool_,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRows:
    """The rows of consecutive windows, end to end.

    Attributes:
        row_offsets: shape (num_windows + 1,), int64; window w holds rows ``row_offsets[w]:row_offsets[w + 1]``.
        inputs, targets: shape (num_rows,), int32; token ids.
        depths: shape (num_rows,), int32; transitions from the root to the input token: the position id.
        parents: shape (num_rows,), int32; the preceding transition's row in the same window, -1 at a root.
        counts: shape (num_rows,), int32; pairs of the window's own examples the row stands for.
        segments: shape (num_rows,), int32; the tree the row belongs to, across windows.
        weights: shape (num_rows,), float32; summed example weight x supervision of the target.
        owned: shape (num_rows,), bool; true in exactly one window per distinct row.
        num_supervised: shape (num_windows,), int64; supervised pairs of the window's examples.
        weight_sum: shape (num_windows,), float64; sum of the stored weights.
        attention_edges: shape (num_windows,), int64; sum of depth + 1.
        blocks: shape (num_windows,), int64; 128 x 128 blocks of the mask that are not empty. Not stored.
    """

    row_offsets: Int64Array
    inputs: Int32Array
    targets: Int32Array
    depths: Int32Array
    parents: Int32Array
    counts: Int32Array
    segments: Int32Array
    weights: npt.NDArray[np.float32]
    owned: npt.NDArray[np.bool_]
    num_supervised: Int64Array
    weight_sum: npt.NDArray[np.float64]
    attention_edges: Int64Array
    blocks: Int64Array

    @property
    def num_windows(self) -> int:
        """Number of windows."""
        return len(self.row_offsets) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """Stretches of rows in windows, sorted by window, in preorder.

    Attributes:
        windows: shape (n,), int64, from 0 on in this batch.
        num_windows: how many windows there are.
        parents: shape (n,), int64; the parent instance, -1 at a root. An instance without rows is a root.
        lengths: shape (n,), int64, in rows.
        token_starts: shape (n,), int64; the trie token that is the first row's target.
        first_inputs: shape (n,), int64; the trie token that is the first row's input.
        depths: shape (n,), int64; the first row's depth.
        segments: shape (n,), int64.
        subtree_ends: shape (n,), int64; exclusive, in instances.
    """

    windows: Int64Array
    num_windows: int
    parents: Int64Array
    lengths: Int64Array
    token_starts: Int64Array
    first_inputs: Int64Array
    depths: Int64Array
    segments: Int64Array
    subtree_ends: Int64Array


def ranges(starts: Int64Array, lengths: Int64Array) -> Int64Array:
    """Return ``[start, start + length)`` of every range, one after the other: shape (sum(lengths),), int64."""
    shifts = starts - (np.cumsum(lengths) - lengths)
    return np.asarray(np.arange(int(lengths.sum())) + np.repeat(shifts, lengths), dtype=np.int64)


def _narrow_ranges(starts: Int64Array, lengths: Int64Array) -> Int32Array:
    """Return what `ranges` returns as int32, in one buffer: ones, with a jump at each head, summed in place."""
    steps = np.ones(int(lengths.sum()), dtype=np.int32)
    some = lengths > 0
    firsts = starts[some]
    lasts = firsts + lengths[some] - 1
    steps[(np.cumsum(lengths) - lengths)[some]] = firsts - np.append(0, lasts[:-1])[: len(firsts)]
    return np.cumsum(steps, dtype=np.int32, out=steps)


def fill_rows(
    instances: Instances,
    tokens: Int32Array,
    *,
    counts: Int32Array,
    weights: npt.NDArray[np.float32],
    owned: npt.NDArray[np.bool_],
    num_supervised: Int64Array,
    engine: Engine = "auto",
) -> WindowRows:
    """Return the rows of the instances.

    Args:
        instances: of whole windows.
        tokens: shape (num_tokens,), int32; the trie's tokens.
        counts: shape (num_rows,), int32; aligned with the rows of the instances in order.
        weights: shape (num_rows,), float32; likewise.
        owned: shape (num_rows,), bool; likewise.
        num_supervised: shape (num_windows,).
        engine: ``auto`` compiles from 2^20 rows on; the result never depends on it.

    Time and memory O(rows); vectorised.
    """
    lengths = instances.lengths
    row_counts = np.bincount(instances.windows, weights=lengths, minlength=instances.num_windows).astype(np.int64)
    row_offsets = np.concatenate(([0], np.cumsum(row_counts)))
    check_weights(weights)
    compiles = engine == "numba" or (engine == "auto" and len(weights) >= _COMPILED_ROWS)
    fill = _fill_compiled if compiles else _fill_plain
    inputs, targets, depths, parents, segments, weight_sum = fill(instances, tokens, row_offsets, weights)
    edges = lengths * (instances.depths + 1) + lengths * (lengths - 1) // 2
    edge_sums = np.concatenate(([0], np.cumsum(edges)))
    bounds = np.searchsorted(instances.windows, np.arange(instances.num_windows + 1))
    return WindowRows(
        row_offsets=row_offsets,
        inputs=inputs,
        targets=targets,
        depths=depths,
        parents=parents,
        counts=counts,
        segments=segments,
        weights=weights,
        owned=owned,
        num_supervised=num_supervised,
        weight_sum=weight_sum,
        attention_edges=edge_sums[bounds[1:]] - edge_sums[bounds[:-1]],
        blocks=tree_blocks(instances.windows, lengths, instances.subtree_ends, instances.num_windows),
    )


_Columns = tuple[Int32Array, Int32Array, Int32Array, Int32Array, Int32Array, npt.NDArray[np.float64]]


def _fill_compiled(
    instances: Instances, tokens: Int32Array, row_offsets: Int64Array, weights: npt.NDArray[np.float32]
) -> _Columns:
    """Return inputs, targets, depths, parents and segments of the rows, and the sum of weights of every window."""
    from dagpack_cli.shards import kernels

    one, two, three, four, five = (np.empty(len(weights), dtype=np.int32) for _ in range(5))
    sums = np.zeros(instances.num_windows)
    stretches = (
        instances.windows,
        instances.parents,
        instances.lengths,
        instances.token_starts,
        instances.first_inputs,
        instances.depths,
        instances.segments,
    )
    kernels.fill_columns(tokens, stretches, row_offsets, weights, (one, two, three, four, five), sums)
    return one, two, three, four, five, sums


def _fill_plain(
    instances: Instances, tokens: Int32Array, row_offsets: Int64Array, weights: npt.NDArray[np.float32]
) -> _Columns:
    """Return what `_fill_compiled` does, a column at a time."""
    lengths = instances.lengths
    row_starts = np.cumsum(lengths) - lengths
    filled = lengths > 0
    heads = row_starts[filled]
    narrow = len(tokens) < 2**31
    targets = tokens[(_narrow_ranges if narrow else ranges)(instances.token_starts, lengths)]
    inputs = np.empty_like(targets)
    inputs[1:] = targets[:-1]
    inputs[heads] = tokens[instances.first_inputs[filled]]
    starts = row_starts - row_offsets[instances.windows]  # in its window
    above = instances.parents[filled]
    has_parent = (above >= 0) & (lengths[above] > 0)
    parents = _narrow_ranges(starts - 1, lengths)
    parents[heads] = np.where(has_parent, starts[above] + lengths[above] - 1, -1)
    row_windows = np.repeat(np.arange(instances.num_windows, dtype=np.int32), np.diff(row_offsets))
    sums = np.bincount(row_windows, weights=weights, minlength=instances.num_windows)
    depths = _narrow_ranges(instances.depths, lengths)
    segments = np.repeat(instances.segments.astype(np.int32), lengths)
    return inputs, targets, depths, parents, segments, sums.astype(np.float64)


def tree_blocks(windows: Int64Array, lengths: Int64Array, subtree_ends: Int64Array, num_windows: int) -> Int64Array:
    """Return the non-empty blocks of each window's mask, shape (num_windows,): the sum over key blocks of hi - kb.

    ``hi`` is the block after the last query block that sees a key of the block, so only the farthest
    subtree end of each key block matters. Rows of one instance end together, at its subtree's end.

    Args:
        windows: shape (n,), int64, not decreasing; the window of each instance.
        lengths: shape (n,), int64; rows of each.
        subtree_ends: shape (n,), int64; exclusive, in instances.
        num_windows: how many windows there are.
    """
    row_starts = np.cumsum(lengths) - lengths
    sizes = np.bincount(windows, weights=lengths, minlength=num_windows).astype(np.int64)
    row_offsets = np.concatenate(([0], np.cumsum(sizes)))
    num_rows = int(row_offsets[-1])
    if num_rows == 0:
        return np.zeros(num_windows, dtype=np.int64)
    num_blocks = -(-sizes // BLOCK_SIZE)
    owners = np.repeat(np.arange(num_windows), num_blocks)
    number = ranges(np.zeros(len(sizes), dtype=np.int64), num_blocks)
    block_starts = row_offsets[owners] + number * BLOCK_SIZE
    block_ends = np.minimum(block_starts + BLOCK_SIZE, row_offsets[owners + 1])
    # The rows of an instance end together, so the farthest end is that of an instance in the block.
    filled = lengths > 0
    starts = row_starts[filled]
    row_ends = np.append(row_starts, num_rows)[subtree_ends[filled]]
    firsts = np.searchsorted(starts, block_starts, side="right") - 1
    stops = np.searchsorted(starts, block_ends, side="left")
    spanned = np.stack((firsts, stops), axis=1).ravel()
    farthest = np.maximum.reduceat(np.append(row_ends, 0), spanned)[::2]
    spans = -(-(farthest - row_offsets[owners]) // BLOCK_SIZE) - number
    return np.bincount(owners, weights=spans, minlength=num_windows).astype(np.int64)


def chain_blocks(lengths: Int64Array, windows: Int64Array, num_windows: int) -> int:
    """Return the non-empty 128-blocks of windows that hold unmerged chains one after the other.

    Args:
        lengths: shape (n,), int64, at least 1; rows of each chain.
        windows: shape (n,), int64; each chain's window. Chains of a window keep their order.
        num_windows: how many windows there are.
    """
    order = np.argsort(windows, kind="stable")
    ends = np.cumsum(lengths[order])
    totals = np.bincount(windows, weights=lengths, minlength=num_windows).astype(np.int64)
    bases = np.cumsum(totals) - totals
    num_blocks = -(-totals // BLOCK_SIZE)
    owners = np.repeat(np.arange(num_windows), num_blocks)
    number = ranges(np.zeros(num_windows, dtype=np.int64), num_blocks)
    last_rows = np.minimum(bases[owners] + (number + 1) * BLOCK_SIZE, (bases + totals)[owners]) - 1
    farthest = ends[np.searchsorted(ends, last_rows, side="right")] - bases[owners]
    return int((-(-farthest // BLOCK_SIZE) - number).sum())
