"""The rows of a shard with what is needed to find one by what it stands for, or by its depth above another. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.preorder import subtree_ends
from dagpack_cli.shards import WindowRows

__all__ = ["ShardRows"]

Int64Array = npt.NDArray[np.int64]


class ShardRows:
    """The rows of a shard's windows, numbered through the shard.

    Args:
        windows: in preorder, with parents and depths that fit (see `windows.check_windows`).

    Attributes:
        windows: as given.
        num: of rows.
        owners: shape (num,), int64; the window of each, from 0 on.
        parents: shape (num,), int64; -1 at a root.
        ends: shape (num,), int32; exclusive ends of subtrees.
        roots: shape (num_root_rows,), int64.
    """

    def __init__(self, windows: WindowRows) -> None:
        self.windows, self.num = windows, len(windows.inputs)
        sizes = np.diff(windows.row_offsets)
        self.owners = np.repeat(np.arange(windows.num_windows), sizes)
        bases = np.repeat(windows.row_offsets[:-1], sizes)
        self.parents: Int64Array = np.where(windows.parents >= 0, windows.parents + bases, -1)
        self.ends = subtree_ends(self.parents)
        self.roots = np.flatnonzero(self.parents < 0)
        # By depth and row: the last row of a depth before a row is its ancestor there.
        self._by_depth = np.argsort(windows.depths, kind="stable")
        self._keys = windows.depths[self._by_depth].astype(np.int64) * self.num + self._by_depth

    def ancestors(self, rows: Int64Array, depths: Int64Array) -> Int64Array:
        """Return the ancestor of each row at a depth not below its own."""
        return self._by_depth[np.searchsorted(self._keys, depths * self.num + rows, side="right") - 1]

    def below(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the sum of whole numbers at and below every row."""
        sums = np.concatenate(([0], np.cumsum(values)))
        return np.asarray(sums[self.ends] - sums[:-1])
