"""Which token of the trie each row of a window is: its target, with all that stands above it.

A row's path says where it ends. Rows whose path ends a node of the trie are found by a hash of it; the others
follow from them, for between two branches of the trie one row follows the other. Then every row is held
against the token found for it and the token above: what is returned is right, whatever was hashed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.trie import Trie
from dagpack_cli.verify.keys import row_keys, token_keys
from dagpack_cli.verify.report import fail
from dagpack_cli.verify.roots import Roots
from dagpack_cli.verify.rows import ShardRows

__all__ = ["Places", "Trees"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the rows of a shard stand in the trie.

    Attributes:
        positions: shape (num_rows,), int64; the token that is the row's target.
        nodes: shape (num_rows,), int64; the node that holds it.
    """

    positions: Int64Array
    nodes: Int64Array


class Trees:
    """A trie in which rows can be looked up, given the trees they stand in.

    Args:
        trie: checked, see `tries.check_trie`.
        roots: the tokens at which trees begin.
        vocab_size: larger than every token.
        zeros: makes arrays of 32 bytes a node, and 8 for each root.

    Reads the trie's tokens once.
    """

    def __init__(self, trie: Trie, roots: Roots, vocab_size: int, zeros: Zeros = np.zeros) -> None:
        self._trie, self._roots, self._vocab_size = trie, roots, vocab_size
        keys, self._root_keys = token_keys(trie, roots.positions, zeros)
        self._keys, self._by_key = _sorted(keys, zeros)
        children = zeros(trie.num_nodes, np.int64)
        for span in spans(trie.num_nodes):
            parents, firsts = trie.parents[span].astype(np.int64), trie.tokens[trie.offsets[:-1][span]]
            children[span] = np.where(parents >= 0, parents * vocab_size + firsts, -1)
        self._children, self._by_parent = _sorted(children, zeros)

    def locate(self, where: Path, rows: ShardRows, root_numbers: Int64Array) -> Places:
        """Return where each row stands in the trie.

        Args:
            where: the shard.
            rows: of it.
            root_numbers: shape (num_root_rows,), int64; which of the trie's roots the input of each row without
                a parent is.

        Raises:
            DamageError: a row that is no continuation of its parent there, or one with another input or target.
        """
        trie, windows, roots = self._trie, rows.windows, rows.roots
        inputs = trie.tokens[self._roots.positions[root_numbers]]
        _check(where, windows.inputs[roots] != inputs, roots, "an input that does not begin its tree")
        shifts = np.repeat(self._roots.depths(root_numbers), np.diff(roots, append=rows.num))
        keys = row_keys(windows.targets, windows.depths + 1 + shifts, rows.ends, roots, self._root_keys[root_numbers])
        ended = self._nodes_that_end(keys)
        above = np.where(rows.parents >= 0, ended[rows.parents], 0)
        heads = np.flatnonzero((rows.parents < 0) | (above >= 0))
        is_head = np.zeros(rows.num, dtype=bool)
        is_head[heads] = True
        numbers = np.arange(rows.num)
        _check(where, ~is_head & (rows.parents != numbers - 1), numbers, _ASTRAY)
        nodes, positions = self._continue(where, rows, heads, above[heads], root_numbers)
        sizes = np.diff(heads, append=rows.num)
        found = Places(np.repeat(positions - heads, sizes) + numbers, np.repeat(nodes, sizes))
        stops = trie.offsets[found.nodes + 1]
        _check(where, found.positions >= stops, numbers, _ASTRAY)
        _check(where, trie.tokens[found.positions] != windows.targets, numbers, _ASTRAY)
        # Each row follows its parent: in one node by its number, and into another where the parent ends its own.
        wrong = (ended >= 0) & ((ended != found.nodes) | (found.positions != stops - 1))
        _check(where, wrong, numbers, _ASTRAY)
        return found

    def _nodes_that_end(self, keys: npt.NDArray[np.uint64]) -> Int64Array:
        """Return the node whose last token each path ends with, -1 for none."""
        order = np.argsort(keys)
        at = np.searchsorted(self._keys, keys[order])
        at = np.minimum(at, max(len(self._keys) - 1, 0))
        found = np.empty(len(keys), dtype=np.int64)
        found[order] = np.where(self._keys[at] == keys[order], self._by_key[at], -1) if len(self._keys) else -1
        return found

    def _continue(
        self, where: Path, rows: ShardRows, heads: Int64Array, above: Int64Array, root_numbers: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return node and position of rows that begin a tree, or follow the end of the node ``above``."""
        trie = self._trie
        before = trie.offsets[above + 1] - 1
        begins = np.flatnonzero(rows.parents[heads] < 0)
        before[begins] = self._roots.positions[root_numbers]
        above[begins] = np.searchsorted(trie.offsets, before[begins], side="right") - 1
        nodes, positions = above.copy(), before + 1
        out = np.flatnonzero(positions == trie.offsets[above + 1])
        wanted = above[out] * self._vocab_size + rows.windows.targets[heads[out]]
        at = np.minimum(np.searchsorted(self._children, wanted), max(len(self._children) - 1, 0))
        _check(where, self._children[at] != wanted, heads[out], _ASTRAY)
        nodes[out] = self._by_parent[at]
        positions[out] = trie.offsets[nodes[out]]
        return nodes, positions


_ASTRAY = "a row that does not continue its parent as any example does"


def _check(where: Path, bad: npt.NDArray[np.bool_], rows: Int64Array, found: str) -> None:
    if bad.any():
        fail(where, f"row {int(rows[int(np.argmax(bad))]):,}: {found}")


def _sorted(values: npt.NDArray[np.generic], zeros: Zeros) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.int32]]:
    """Return values in ascending order, and which each one is; only their order is in memory meanwhile."""
    order = np.argsort(values, kind="stable")
    found, numbers = zeros(len(values), values.dtype), zeros(len(values), np.int32)
    for span in spans(len(values)):
        found[span], numbers[span] = values[order[span]], order[span]
    return found, numbers
