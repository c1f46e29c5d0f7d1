"""Which rows something needs: those on the way, in their own tree, to the last rows that something ends with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, select, spans
from dagpack_cli.verify.paths import Paths
from dagpack_cli.verify.roots import Roots, levels_of

__all__ = ["Needed"]

Int64Array = npt.NDArray[np.int64]


class Needed:
    """The rows at and above some last rows.

    Of two trees one may begin below rows of the other, but trees of a level lie one after the other in the
    trie: sorted by level and position, the last rows nearest to a row show how much of its path is needed.

    Args:
        paths: of the trie.
        roots: where its trees begin.
        lasts: shape (n,), int64; positions of last rows, in any order, several times or not.
        zeros: makes arrays with an entry for each of these, and a byte for each root.

    Attributes:
        num_rows: how many are needed.
        trees: shape (num_trees,), int64; the roots of trees in which any is, in trie order.
    """

    def __init__(self, paths: Paths, roots: Roots, lasts: Int64Array, zeros: Zeros = np.zeros) -> None:
        self._paths, self._period = paths, roots.period
        keys = zeros(len(lasts), np.int64)
        for span in spans(len(lasts)):
            depths = paths.depths(lasts[span], paths.nodes(lasts[span]))
            keys[span] = self._key(levels_of(depths, self._period), lasts[span])
        keys.sort()
        distinct = select(len(keys), lambda span: np.diff(keys[span], prepend=_before(keys, span)) != 0, zeros)
        for span in spans(len(distinct)):
            distinct[span] = keys[distinct[span]]
        self._keys = distinct
        used = zeros(len(roots.positions), np.bool_)
        self.num_rows = 0
        for span in spans(len(self._keys)):
            _, levels, nodes, depths = self._apart(span)
            low = levels * self._period
            before = self._shared_with_previous(span, nodes, levels)
            self.num_rows += int((depths - np.maximum(before, low)).sum())
            used[np.searchsorted(roots.positions, paths.tokens_at(nodes, low)[1])] = True
        self.trees = select(len(used), lambda span: used[span], zeros)

    def _key(self, levels: Int64Array, positions: Int64Array) -> Int64Array:
        return levels * self._paths.num_tokens + positions

    def _apart(self, at: slice | Int64Array) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """Return position, level, node and depth of some of the last rows."""
        levels, positions = np.divmod(self._keys[at], self._paths.num_tokens)
        nodes = self._paths.nodes(positions)
        return positions, levels, nodes, self._paths.depths(positions, nodes)

    def _shared_with_previous(self, span: slice, nodes: Int64Array, levels: Int64Array) -> Int64Array:
        """Return the depth up to which each last row's path is that of the one before it in its level, -1 for none."""
        previous = np.maximum(np.arange(span.start, span.stop) - 1, 0)
        _, other_levels, others, depths = self._apart(previous)
        found = np.full(len(nodes), -1, dtype=np.int64)
        same = np.flatnonzero((other_levels == levels) & (previous < np.arange(span.start, span.stop)))
        found[same] = self._paths.shared(others[same], depths[same], nodes[same])
        return found

    def reached(self, nodes: Int64Array, targets: Int64Array) -> Int64Array:
        """Return the depth of the last needed row on paths to targets; that of its tree's root where none is.

        Args:
            nodes: shape (n,), int64; the node that holds each target.
            targets: shape (n,), int64; its depth, from 1 on.
        """
        levels = levels_of(targets, self._period)
        found = levels * self._period
        if len(self._keys) == 0:
            return found
        keys = self._key(levels, self._paths.trie.offsets[nodes] + (targets - self._paths.trie.depths[nodes]))
        right = np.searchsorted(self._keys, keys)
        for number, is_left in ((right - 1, True), (right, False)):
            some = np.flatnonzero((number >= 0) & (number < len(self._keys)))
            _, other_levels, others, depths = self._apart(number[some])
            some, others, depths = (values[other_levels == levels[some]] for values in (some, others, depths))
            one = (others, depths, nodes[some]) if is_left else (nodes[some], targets[some], others)
            found[some] = np.maximum(found[some], self._paths.shared(*one))
        return found

    def holds(self, positions: Int64Array, nodes: Int64Array) -> npt.NDArray[np.bool_]:
        """Return which rows are needed: something of their own tree ends at or below them."""
        if len(self._keys) == 0:
            return np.zeros(len(positions), dtype=bool)
        levels = levels_of(self._paths.depths(positions, nodes), self._period)
        at = np.searchsorted(self._keys, self._key(levels, positions))
        found = self._keys[np.minimum(at, len(self._keys) - 1)]
        return np.asarray((at < len(self._keys)) & (found < self._key(levels, self._paths.ends(nodes))))


def _before(keys: Int64Array, span: slice) -> Int64Array:
    """Return the key before a range, one that is none at the beginning."""
    return keys[span.start - 1 : span.start] if span.start else np.array([-1])
