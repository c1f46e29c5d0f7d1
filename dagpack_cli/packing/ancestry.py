"""Which node of a path holds the token at a depth: by jumps of 1, 2, 4, ... nodes. Pure."""

from __future__ import annotations

from itertools import count

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans

__all__ = ["Ancestry"]

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]


class Ancestry:
    """Finds ancestors in a trie.

    The jumps are made when the first question needs them, and take 4 bytes a node for each power of two up to the
    most nodes of a path: only a corpus with examples longer than a window asks.

    Args:
        parents: shape (n,), int32; preorder, -1 for a root.
        depths: shape (n,), int32; tokens above each node.
        zeros: makes the jumps.
    """

    def __init__(self, parents: Int32Array, depths: Int32Array, zeros: Zeros = np.zeros) -> None:
        self._parents, self._depths, self._zeros = parents, depths, zeros
        self._jumps: list[Int32Array] = []

    def find(self, nodes: Int64Array, targets: Int64Array) -> Int64Array:
        """Return, for nodes, the one on the path to each that holds the token at a depth not below its own.

        Args:
            nodes: shape (k,), int64.
            targets: shape (k,), int64; depths, in tokens.

        Time O(k log nodes of a path), after O(n log nodes of a path) once.
        """
        at = nodes.copy()
        if not (self._depths[at] > targets).any():
            return at
        if not self._jumps:
            self._prepare()
        for jump in reversed(self._jumps):
            further = jump[at]
            below = self._depths[further] > targets
            at[below] = further[below]
        below = self._depths[at] > targets
        at[below] = self._parents[at[below]]
        return at

    def _prepare(self) -> None:
        num = len(self._parents)
        for power in count():
            jump = self._zeros(num, np.int32)
            for span in spans(num):
                # A root's leads to node 0, whose depth is 0 too.
                jump[span] = self._jumps[-1][self._jumps[-1][span]] if power else np.maximum(self._parents[span], 0)
            self._jumps.append(jump)
            if not any((self._depths[jump[span]] > 0).any() for span in spans(num)):
                return
