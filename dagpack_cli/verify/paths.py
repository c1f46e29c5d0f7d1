"""Where the paths of a trie run: their tokens by depth, and how far two of them are one.

Both are questions about the depths of nodes in preorder: what stands above a node at some depth is the last
node up to it that begins no deeper, and two paths part where the shallowest node between them begins. The
smallest depths of 2, 4, 8, ... nodes answer either in as many steps as there are such sizes. Pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.trie import Trie

__all__ = ["Paths"]

Int64Array = npt.NDArray[np.int64]


class Paths:
    """The paths of a trie. A token is named by its position in the trie.

    Args:
        trie: checked, see `tries.check_trie`.
        zeros: makes arrays that have together an entry a node.
    """

    def __init__(self, trie: Trie, zeros: Zeros = np.zeros) -> None:
        self.trie = trie
        self.num_tokens = len(trie.tokens)
        self._lowest = [trie.depths]
        while (num := len(self._lowest[-1]) // 2) > 0:
            below, level = self._lowest[-1], zeros(num, np.int32)
            for span in spans(num):
                level[span] = below[2 * span.start : 2 * span.stop].reshape(-1, 2).min(axis=1)
            self._lowest.append(level)

    def nodes(self, positions: Int64Array) -> Int64Array:
        """Return the node that holds each token."""
        return np.searchsorted(self.trie.offsets, positions, side="right") - 1

    def depths(self, positions: Int64Array, nodes: Int64Array) -> Int64Array:
        """Return the depth of each token, given its node."""
        return np.asarray(self.trie.depths[nodes] + (positions - self.trie.offsets[nodes]))

    def stops(self, nodes: Int64Array) -> Int64Array:
        """Return the depth behind the last token of each node."""
        trie = self.trie
        return np.asarray(trie.depths[nodes] + (trie.offsets[nodes + 1] - trie.offsets[nodes]))

    def ends(self, nodes: Int64Array) -> Int64Array:
        """Return the position behind all that stands at or below any token of each node."""
        return np.asarray(self.trie.offsets[self.trie.subtree_ends[nodes]])

    def tokens_at(self, nodes: Int64Array, depths: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return node and position of the token at a depth, from 0 to its last, of the path to each node.

        Time O(log nodes) each, all at a time.
        """
        found = nodes.copy()
        away = np.flatnonzero(self.trie.depths[nodes] > depths)
        for span in spans(len(away)):
            at = away[span]
            found[at] = self._last_not_deeper(nodes[at], depths[at])
        return found, self.trie.offsets[found] + (depths - self.trie.depths[found])

    def _last_not_deeper(self, nodes: Int64Array, depths: Int64Array) -> Int64Array:
        bounds = nodes + 1  # blocks of the level that are still to be looked at
        levels, blocks = np.full(len(nodes), -1), np.zeros(len(nodes), dtype=np.int64)
        for number, lowest in enumerate(self._lowest):
            odd = np.flatnonzero((levels < 0) & (bounds % 2 == 1))
            hit = odd[lowest[bounds[odd] - 1] <= depths[odd]]
            levels[hit], blocks[hit] = number, bounds[hit] - 1
            bounds //= 2
        for number in range(len(self._lowest) - 2, -1, -1):
            inside = np.flatnonzero(levels > number)
            right = 2 * blocks[inside] + 1
            blocks[inside] = np.where(self._lowest[number][right] <= depths[inside], right, right - 1)
        return blocks

    def shared(self, firsts: Int64Array, first_depths: Int64Array, seconds: Int64Array) -> Int64Array:
        """Return the depth of the last token that two paths share, -1 for none.

        Args:
            firsts: the node where the one ends.
            first_depths: the depth of its last token.
            seconds: the node where the other ends, not before the first; in the same node, not above its token.
        """
        found = first_depths.astype(np.int64)
        lows, highs = firsts + 1, seconds + 1
        for lowest in self._lowest:
            for at, blocks in (
                (np.flatnonzero((lows < highs) & (lows % 2 == 1)), lows),
                (np.flatnonzero((lows < highs) & (highs % 2 == 1)), highs - 1),
            ):
                found[at] = np.minimum(found[at], lowest[blocks[at]] - 1)
            lows, highs = (lows + 1) // 2, highs // 2
            if not (lows < highs).any():
                break
        return found
