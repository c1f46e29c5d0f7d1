"""A stored trie, checked from what its columns mean. Memory grows with nodes, not with tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from dagpack_cli.preorder import check_parents, subtree_ends
from dagpack_cli.trie import Trie
from dagpack_cli.verify.report import fail

__all__ = ["check_counts", "check_trie"]

_BLOCK = 1 << 22


def check_trie(where: Path, trie: Trie, min_shared: int, vocab_size: int) -> None:
    """Raise `DamageError` or `TreeError` unless the columns are those of a radix trie in canonical preorder."""
    check_parents(trie.parents)
    _check_offsets(where, trie)
    lengths = np.diff(trie.offsets)
    below = trie.parents >= 0
    above = trie.parents[below]
    if (trie.depths[below] != trie.depths[above] + lengths[above]).any() or trie.depths[~below].any():
        fail(where / "depths.npy", "a depth that is not its parent's end")
    if (trie.subtree_ends != subtree_ends(trie.parents)).any():
        fail(where / "subtree_ends.npy", "an end that is not where the subtree ends")
    _check_tokens(where, trie, vocab_size)
    _check_siblings(where, trie, min_shared)


def _check_offsets(where: Path, trie: Trie) -> None:
    if int(trie.offsets[0]) != 0 or int(trie.offsets[-1]) != len(trie.tokens):
        fail(where / "offsets.npy", "offsets that do not cover the tokens", f"0 to {len(trie.tokens):,}")
    if (np.diff(trie.offsets) < 1).any():
        fail(where / "offsets.npy", "an empty node", "every node holds a token")


def _check_tokens(where: Path, trie: Trie, vocab_size: int) -> None:
    for low in range(0, len(trie.tokens), _BLOCK):
        tokens = trie.tokens[low : low + _BLOCK]
        if (tokens < 0).any() or (tokens >= vocab_size).any():
            fail(where / "tokens.npy", "a token outside the vocabulary", f"0 to {vocab_size - 1:,}")
        if not np.isfinite(trie.weights[low : low + _BLOCK]).all():
            fail(where / "weights.npy", "a weight that is not finite")


def _check_siblings(where: Path, trie: Trie, min_shared: int) -> None:
    firsts = np.asarray(trie.tokens[trie.offsets[:-1]])
    order = np.lexsort((np.arange(trie.num_nodes), trie.parents))
    siblings = trie.parents[order][1:] == trie.parents[order][:-1]
    # Trees that share less than --min-shared may start alike; below a root nothing does.
    apart = siblings & ((trie.parents[order][1:] >= 0) | (min_shared == 1))
    unsorted = (firsts[order][1:][siblings] < firsts[order][:-1][siblings]).any()
    if unsorted or (firsts[order][1:][apart] == firsts[order][:-1][apart]).any():
        fail(where / "tokens.npy", "siblings out of order, or equal")


def check_counts(where: Path, trie: Trie, end_nodes: npt.NDArray[np.int64]) -> None:
    """Raise unless every node's count is the number of examples that end in its subtree.

    Args:
        where: the trie's folder.
        trie: of merge prefix.
        end_nodes: shape (num_examples,), int64: where each example of the trie ends.
    """
    if len(end_nodes) and not (int(end_nodes.min()) >= 0 and int(end_nodes.max()) < trie.num_nodes):
        fail(where, "an example that ends at no node", f"nodes 0 to {trie.num_nodes - 1:,}")
    passed = np.concatenate(([0], np.cumsum(np.bincount(end_nodes, minlength=trie.num_nodes))))
    if (passed[trie.subtree_ends] - passed[:-1] != trie.counts).any():
        fail(where / "counts.npy", "a count that is not the number of examples that pass")
