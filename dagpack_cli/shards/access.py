"""One window at a time, in any order: what a training loop asks for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DamageError
from dagpack_cli.shards.files import windows_per_file
from dagpack_cli.shards.npy import open_attention_edges, open_npy
from dagpack_cli.shards.parquet import read_attention_edges, read_parquet, windows_per_group
from dagpack_cli.shards.window import ROW_COLUMNS, WindowRows

__all__ = ["WindowReader"]

_KEPT_GROUPS = 8  # decoded row groups that stay in memory: about 2 MB each, or one window if that is longer


class WindowReader:
    """Reads the windows of a partition by number; it pickles, and opens its files where it is used.

    Args:
        shards: the files, or folders of ``.npy``, in order.
        window_len: of the build, which fixes how many windows a file and a row group hold.
        num_windows: of the partition.
    """

    def __init__(self, shards: Sequence[Path], window_len: int, num_windows: int) -> None:
        self._shards, self._window_len, self._num_windows = list(shards), window_len, num_windows
        self._groups: OrderedDict[tuple[int, int], WindowRows] = OrderedDict()
        self._arrays: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        """Return the number of windows."""
        return self._num_windows

    def __getstate__(self) -> dict[str, Any]:
        """Leave open files and decoded windows behind."""
        return self.__dict__ | {"_groups": OrderedDict(), "_arrays": {}}

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return a window: one array a row column, and ``num_supervised`` and ``weight_sum``.

        Raises:
            IndexError: there is no such window.
            DamageError: its shard is missing or damaged.
        """
        if not 0 <= number < self._num_windows:
            raise IndexError(f"window {number} of {self._num_windows}")
        shard, local = divmod(number, windows_per_file(self._window_len))
        if self._shards[shard].suffix == ".parquet":
            group, at = divmod(local, windows_per_group(self._window_len))
            return _window(self._group(shard, group), at)
        if shard not in self._arrays:
            self._arrays[shard] = open_npy(self._shards[shard])
        arrays = self._arrays[shard]
        length = int(arrays["lengths"][local])
        window = {name: np.array(arrays[name][local, :length]) for name in ROW_COLUMNS}
        return window | {
            "num_supervised": int(arrays["num_supervised"][local]),
            "weight_sum": float(arrays["weight_sum"][local]),
        }

    def attention_edges(self) -> npt.NDArray[np.int64]:
        """Return the attention edges of every window, shape (num_windows,); no row is read.

        Raises:
            DamageError: a shard is missing or damaged, or has another number of windows.
        """
        step = windows_per_file(self._window_len)
        found = [np.zeros(0, dtype=np.int64)]
        for number, shard in enumerate(self._shards):
            edges = read_attention_edges(shard) if shard.suffix == ".parquet" else open_attention_edges(shard)
            expected = min(step, self._num_windows - number * step)
            if len(edges) != expected:
                raise DamageError(str(shard), f"{len(edges):,} windows", f"{expected:,} as the manifest says")
            found.append(edges)
        return np.concatenate(found)

    def _group(self, shard: int, group: int) -> WindowRows:
        key = (shard, group)
        if key not in self._groups:
            self._groups[key] = read_parquet(self._shards[shard], group)
            if len(self._groups) > _KEPT_GROUPS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        return self._groups[key]


def _window(windows: WindowRows, at: int) -> dict[str, Any]:
    low, high = windows.row_offsets[at], windows.row_offsets[at + 1]
    window: dict[str, Any] = {name: getattr(windows, name)[low:high] for name in ROW_COLUMNS}
    return window | {
        "num_supervised": int(windows.num_supervised[at]),
        "weight_sum": float(windows.weight_sum[at]),
    }
