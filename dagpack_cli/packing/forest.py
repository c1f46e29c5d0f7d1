"""The trie as the packers see it: a preorder forest of runs of rows, without tokens. Pure.

A node stands for a run of ``lengths[v]`` rows. A root's run counts one row fewer than its tokens
(a first token is nobody's target), so it may be empty; no other run is. A window that contains a
row contains all rows above it, hence what matters of a node is how many rows lie above its run
(``depths``) and where its subtree ends (``ends``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import TreeError
from dagpack_cli.memory import Zeros, spans
from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.preorder import check_parents, subtree_ends

__all__ = ["FOREST_THRESHOLD", "Forest"]

# The plain way takes 0.2 s here; building a forest is cheaper than packing it, so it compiles later.
FOREST_THRESHOLD = 50_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forest:
    """A preorder forest of runs of rows; make one with `from_parents`, which checks it.

    Attributes:
        parents: shape (n,), int32; the parent's index, -1 for a root.
        lengths: shape (n,), int64; rows of the node's run, >= 1, or 0 for a root with children.
        depths: shape (n,), int64; rows above the run in its own tree, 0 for a root.
        ends: shape (n,), int32; exclusive node index where the subtree ends.
    """

    parents: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    depths: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int32]

    @classmethod
    def from_parents(
        cls, parents: npt.NDArray[np.integer[Any]], lengths: npt.NDArray[np.integer[Any]], *, engine: Engine = "auto"
    ) -> Forest:
        """Return the forest with these parents and run lengths; both arrays are copied.

        Args:
            parents: shape (n,), any integer dtype, preorder; -1 for a root. n < 2^31.
            lengths: shape (n,), any integer dtype; rows of each node's run.
            engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 nodes.

        Raises:
            TreeError: not a preorder forest, a negative length, an empty run below a root, or an
                empty root without children (a tree without rows); the message names the node.

        Time O(n) and memory O(n); the plain way takes a Python step per node that does not
        continue its predecessor.

        >>> forest = Forest.from_parents(np.array([-1, 0, 0]), np.array([5, 2, 3]))
        >>> forest.depths.tolist(), forest.ends.tolist(), forest.leaves.tolist()
        ([0, 5, 5], [3, 2, 3], [1, 2])
        """
        checked_parents, checked_lengths = _checked_columns(np.asarray(parents), np.asarray(lengths))
        if uses_kernel(engine, len(checked_parents), FOREST_THRESHOLD):
            from dagpack_cli.packing import kernels

            valid, ends, depths = kernels.forest_columns(checked_parents, checked_lengths)
            if not valid:
                check_parents(checked_parents)  # raises, and names the node
        else:
            ends = subtree_ends(checked_parents)
            depths = _depths_of_ends(checked_lengths, ends)
        forest = cls(parents=checked_parents, lengths=checked_lengths, depths=depths, ends=ends)
        _check_lengths(forest)
        return forest

    @classmethod
    def of_chains(cls, lengths: npt.NDArray[np.int64], zeros: Zeros = np.zeros) -> Forest:
        """Return the forest of lone roots of these lengths, at least 1; ``zeros`` makes what else it has. O(n)."""
        num = len(lengths)
        parents, depths, ends = zeros(num, np.int32), zeros(num, np.int64), zeros(num, np.int32)
        for span in spans(num):
            parents[span] = -1
            ends[span] = np.arange(span.start + 1, span.stop + 1)
        return cls(parents=parents, lengths=lengths, depths=depths, ends=ends)

    @property
    def num_nodes(self) -> int:
        """Return n."""
        return len(self.parents)

    @property
    def leaves(self) -> npt.NDArray[np.int64]:
        """Return the nodes without children, ascending: shape (num_leaves,), int64. O(n) a call."""
        return np.flatnonzero(self.ends == np.arange(1, len(self.ends) + 1, dtype=np.int64))

    def trees(self, first: int, last: int) -> Forest:
        """Return the forest of the trees of nodes ``[first, last)``, which begin and end there. O(last - first)."""
        inside = slice(first, last)
        parents = self.parents[inside]
        return Forest(
            parents=np.where(parents >= 0, parents - first, -1).astype(np.int32),
            lengths=self.lengths[inside],
            depths=self.depths[inside],
            ends=self.ends[inside] - np.int32(first),
        )

    def check_fits(self, seq_len: int) -> None:
        """Raise `TreeError` unless every root path has at most ``seq_len`` rows. O(n).

        The caller has split, cut or dropped what is longer, so a longer path is its bug.
        """
        if not 1 <= seq_len < 2**31:
            raise TreeError("seq_len", f"{seq_len:,}", f"1 to {2**31 - 1:,}")
        for span in spans(self.num_nodes):
            rows = self.depths[span] + self.lengths[span]
            if rows.max() > seq_len:
                at = int(np.argmax(rows > seq_len))
                where = f"the path to node {span.start + at:,}"
                raise TreeError("lengths", f"{where} has {int(rows[at]):,} rows", f"at most {seq_len:,}")


def _checked_columns(
    parents: npt.NDArray[np.integer[Any]], lengths: npt.NDArray[np.integer[Any]]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return copies of both columns in their final dtypes, ranges checked before narrowing."""
    if parents.ndim != 1 or lengths.shape != parents.shape:
        raise TreeError("lengths", f"shapes {parents.shape} and {lengths.shape}", "two equal, one dimension")
    if len(parents) >= 2**31:
        raise TreeError("parents", f"{len(parents):,} nodes", f"fewer than {2**31:,}")
    if parents.dtype.kind not in "iu" or lengths.dtype.kind not in "iu":
        if len(parents):
            raise TreeError("lengths", f"dtypes {parents.dtype} and {lengths.dtype}", "integers")
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    bad = np.flatnonzero((parents < -1) | (parents >= len(parents)))
    if len(bad):
        node = int(bad[0])
        raise TreeError("parents", f"entry {node:,} has parent {int(parents[node]):,}", "-1 or an earlier entry")
    return np.array(parents, dtype=np.int32), np.array(lengths, dtype=np.int64)


def _depths_of_ends(lengths: npt.NDArray[np.int64], ends: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the rows above every run: a run counts from the node after it to the end of its subtree."""
    change = np.zeros(len(lengths) + 1, dtype=np.int64)
    change[1:] = lengths
    np.subtract.at(change, ends, lengths)
    return np.cumsum(change[:-1])


def _check_lengths(forest: Forest) -> None:
    lengths, parents = forest.lengths, forest.parents
    is_leaf = forest.ends == np.arange(1, len(lengths) + 1, dtype=np.int64)
    bad = np.flatnonzero((lengths < 0) | ((lengths == 0) & ((parents >= 0) | is_leaf)))
    if len(bad):
        node = int(bad[0])
        raise TreeError(
            "lengths", f"node {node:,} has {int(lengths[node]):,} rows", "at least 1, or 0 for a root with children"
        )
