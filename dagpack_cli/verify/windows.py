"""The rows of windows, checked from what they mean: preorder, depths, closure, ranges, and each window's sums."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DagpackError, DamageError
from dagpack_cli.manifest import Manifest
from dagpack_cli.preorder import depths_from_parents
from dagpack_cli.shards import WindowRows
from dagpack_cli.verify.report import fail

__all__ = ["check_windows"]


def check_windows(shard: Path, windows: WindowRows, manifest: Manifest) -> None:
    """Check every window of a shard against what a window is."""
    sizes = np.diff(windows.row_offsets)
    if len(sizes) and (int(sizes.min()) < 1 or int(sizes.max()) > manifest.pack.capacity):
        fail(shard, "a window without rows, or with more than fit", f"1 to {manifest.pack.capacity:,} rows")
    bases = np.repeat(windows.row_offsets[:-1], sizes)
    local = np.arange(len(bases)) - bases
    parents = windows.parents.astype(np.int64)
    _check_rows(shard, (parents < -1) | (parents >= local), bases, "a parent that is not an earlier row of the window")
    linked = np.where(parents >= 0, parents + bases, -1)
    try:
        depths = depths_from_parents(linked)
    except DagpackError as error:
        raise DamageError(str(shard), f"rows are not in preorder ({error.found})") from None
    _check_rows(shard, windows.depths != depths, bases, "a depth that is not the number of its ancestors")
    _check_rows(shard, depths >= manifest.pack.seq_len, bases, f"a path of more than {manifest.pack.seq_len:,} rows")
    below = np.flatnonzero(parents >= 0)
    above = linked[below]
    _check_rows(
        shard, windows.inputs[below] != windows.targets[above], bases[below], "an input that is not its parent's target"
    )
    _check_rows(
        shard, windows.segments[below] != windows.segments[above], bases[below], "a segment that is not its parent's"
    )
    for name in ("inputs", "targets"):
        values = getattr(windows, name)
        _check_rows(shard, (values < 0) | (values >= manifest.vocab_size), bases, f"{name} outside the vocabulary")
    _check_rows(shard, windows.counts < 0, bases, "a negative count")
    _check_rows(shard, ~np.isfinite(windows.weights), bases, "a weight that is not finite")
    children = np.zeros(len(bases), dtype=np.int64)
    np.add.at(children, above, windows.counts[below])
    if manifest.pack.layout != "walk" and manifest.trie.merge != "state":
        _check_rows(shard, windows.counts < children, bases, "a count below that of the rows that follow")
    _check_sums(shard, windows, sizes)


def _check_rows(shard: Path, bad: npt.NDArray[np.bool_], bases: npt.NDArray[np.int64], found: str) -> None:
    if bad.any():
        base = int(bases[int(np.argmax(bad))])
        fail(shard, f"{found}, in the window whose rows start at {base:,}")


def _check_sums(shard: Path, windows: WindowRows, sizes: npt.NDArray[np.int64]) -> None:
    owners = np.repeat(np.arange(len(sizes)), sizes)
    edges = np.bincount(owners, weights=windows.depths.astype(np.float64) + 1, minlength=len(sizes))
    if (edges != windows.attention_edges).any():
        fail(shard, "attention_edges is not the sum of depth + 1")
    weights = np.bincount(owners, weights=windows.weights, minlength=len(sizes))
    if not np.allclose(weights, windows.weight_sum, rtol=1e-12, atol=0):
        fail(shard, "weight_sum is not the sum of the weights")
