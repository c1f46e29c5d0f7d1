"""The trie on disk: one ``.npy`` a column, memory-mapped when read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dagpack_cli.arrays import open_array, save_array
from dagpack_cli.errors import DamageError
from dagpack_cli.trie.nodes import Trie

__all__ = ["open_trie", "save_trie"]

_DTYPES = {
    "tokens": np.int32,
    "weights": np.float32,
    "offsets": np.int64,
    "parents": np.int32,
    "depths": np.int32,
    "counts": np.int32,
    "subtree_ends": np.int32,
    "supervised": np.int32,
}


def save_trie(trie: Trie, directory: Path) -> None:
    """Write every column of a trie into a directory, which is created."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in _DTYPES:
        save_array(directory / f"{name}.npy", getattr(trie, name))


def open_trie(directory: Path) -> Trie:
    """Return a stored trie whose columns are memory-mapped.

    Raises:
        DamageError: a column is missing, unreadable, or does not fit the others.
    """
    columns = {name: open_array(directory / f"{name}.npy", dtype) for name, dtype in _DTYPES.items()}
    nodes, tokens = len(columns["parents"]), len(columns["tokens"])
    expected = {
        "weights": (tokens,),
        "offsets": (nodes + 1,),
        "depths": (nodes,),
        "counts": (nodes,),
        "subtree_ends": (nodes,),
        "supervised": (0, tokens),
    }
    for name, sizes in expected.items():
        if len(columns[name]) not in sizes:
            raise DamageError(
                str(directory / f"{name}.npy"),
                f"{len(columns[name]):,} entries",
                f"{sizes[-1]:,}, as the other columns say",
                hint="build again: dagpack build CORPUS OUT --rehash",
            )
    return Trie(**columns)
