"""NPY shards: the columns of a Parquet shard as padded [windows, window length] arrays, plus ``lengths``.

Pads are storage markers, not vocabulary: -1 in inputs, targets, segments and parents, 0 in the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.arrays import open_array, save_array
from dagpack_cli.errors import DamageError
from dagpack_cli.shards.window import ROW_COLUMNS, WindowRows

__all__ = ["PAD", "open_attention_edges", "open_npy", "read_npy", "write_npy"]

PAD = {"inputs": -1, "targets": -1, "segments": -1, "parents": -1}
_SCALARS = {"lengths": np.int32, "num_supervised": np.int64, "weight_sum": np.float64, "attention_edges": np.int64}


def write_npy(directory: Path, windows: WindowRows, window_len: int) -> None:
    """Write windows as a folder of ``.npy`` arrays of shape (num_windows, window_len)."""
    directory.mkdir(parents=True)
    lengths = np.diff(windows.row_offsets)
    present = np.arange(window_len) < lengths[:, None]
    for name, dtype in ROW_COLUMNS.items():
        padded: npt.NDArray[Any] = np.full((windows.num_windows, window_len), PAD.get(name, 0), dtype=dtype)
        padded[present] = getattr(windows, name)
        save_array(directory / f"{name}.npy", padded)
    scalars = {"lengths": lengths.astype(np.int32)} | {
        name: getattr(windows, name) for name in _SCALARS if name != "lengths"
    }
    for name, values in scalars.items():
        save_array(directory / f"{name}.npy", values)


def open_npy(directory: Path) -> dict[str, Any]:
    """Return the arrays of an NPY shard by name, memory-mapped and padded as they are stored."""
    scalars = {name: open_array(directory / f"{name}.npy", dtype) for name, dtype in _SCALARS.items()}
    return scalars | {name: open_array(directory / f"{name}.npy", dtype, ndim=2) for name, dtype in ROW_COLUMNS.items()}


def open_attention_edges(directory: Path) -> npt.NDArray[np.int64]:
    """Return the attention edges of every window of an NPY shard, shape (num_windows,), memory-mapped."""
    return open_array(directory / "attention_edges.npy", _SCALARS["attention_edges"])


def read_npy(directory: Path) -> WindowRows:
    """Return the windows of an NPY shard, without the padding.

    Raises:
        DamageError: an array is missing or unreadable, shapes differ, or a pad holds something.
    """
    scalars: dict[str, Any] = {
        name: np.asarray(open_array(directory / f"{name}.npy", dtype)) for name, dtype in _SCALARS.items()
    }
    lengths = scalars.pop("lengths")
    columns: dict[str, Any] = {}
    for name, dtype in ROW_COLUMNS.items():
        padded = open_array(directory / f"{name}.npy", dtype, ndim=2)
        if len(padded) != len(lengths) or (len(lengths) and int(lengths.max()) > padded.shape[1]):
            raise DamageError(
                str(directory / f"{name}.npy"), f"shape {padded.shape}", f"({len(lengths)}, longest window)"
            )
        present = np.arange(padded.shape[1]) < lengths[:, None]
        if (padded[~present] != PAD.get(name, 0)).any():
            raise DamageError(str(directory / f"{name}.npy"), "a pad cell holds a value", str(PAD.get(name, 0)))
        columns[name] = padded[present]
    for name, values in scalars.items():
        if len(values) != len(lengths):
            raise DamageError(str(directory / f"{name}.npy"), f"{len(values)} entries", f"{len(lengths)} windows")
    return WindowRows(
        row_offsets=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        **columns,
        **scalars,
        blocks=np.zeros(len(lengths), dtype=np.int64),
    )
