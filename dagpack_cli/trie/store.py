"""The trie on disk: one ``.npy`` a column, memory-mapped when read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dagpack_cli.arrays import open_array, save_array, save_blocks
from dagpack_cli.errors import DamageError
from dagpack_cli.trie.nodes import Nodes, Trie

__all__ = ["open_trie", "save_nodes", "save_trie"]

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


def save_nodes(nodes: Nodes, weights: Iterator[tuple[int, npt.NDArray[np.float32]]], directory: Path) -> None:
    """Write a trie whose tokens are still where they were read into a directory, which is created.

    Args:
        nodes: of the trie.
        weights: as `sweep_blocks` yields them.
        directory: to write to.

    Memory: one block of tokens or weights.
    """
    directory.mkdir(parents=True, exist_ok=True)
    save_blocks(directory / "tokens.npy", nodes.num_tokens, np.int32, _numbered(nodes.token_blocks()))
    save_blocks(directory / "weights.npy", nodes.num_tokens, np.float32, weights)
    for name in ("offsets", "parents", "depths", "counts", "subtree_ends"):
        save_array(directory / f"{name}.npy", getattr(nodes, name))
    save_array(directory / "supervised.npy", np.zeros(0, dtype=np.int32))


def _numbered(blocks: Iterator[npt.NDArray[np.int32]]) -> Iterator[tuple[int, npt.NDArray[np.int32]]]:
    first = 0
    for block in blocks:
        yield first, block
        first += len(block)


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
