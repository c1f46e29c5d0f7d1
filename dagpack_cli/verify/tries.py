"""A stored trie, checked from what its columns mean. Memory does not grow with it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.preorder import check_parents
from dagpack_cli.trie import Trie
from dagpack_cli.verify.paths import Paths
from dagpack_cli.verify.report import fail
from dagpack_cli.verify.sums import RunSums, counted_below, wrong_weights

__all__ = ["check_counts", "check_roots", "check_trie", "check_weights"]

_BLOCK = 1 << 22


def check_trie(where: Path, trie: Trie, min_shared: int, vocab_size: int) -> None:
    """Raise `DamageError` or `TreeError` unless the columns are those of a radix trie in canonical preorder."""
    if not _is_preorder(trie):
        check_parents(trie.parents)  # which names the node
        fail(where / "subtree_ends.npy", "an end that is not where the subtree ends")
    _check_offsets(where, trie)
    for span in spans(trie.num_nodes):
        depths, parents = trie.depths[span], trie.parents[span]
        above = np.maximum(parents, 0)
        expected = trie.depths[above] + trie.offsets[above + 1] - trie.offsets[above]
        if (depths != np.where(parents >= 0, expected, 0)).any():
            fail(where / "depths.npy", "a depth that is not its parent's end")
    _check_tokens(where, trie, vocab_size)
    _check_siblings(where, trie, min_shared)


def _is_preorder(trie: Trie) -> bool:
    """Tell whether parents and subtree ends are those of a forest in preorder.

    A node's subtree is the node, and one child after the other up to its end: the first child is the next
    node, and behind a child that does not end with its parent stands the next.
    """
    num, parents, ends = trie.num_nodes, trie.parents, trie.subtree_ends
    if num and parents[0] != -1:
        return False
    for span in spans(num):
        nodes = np.arange(span.start, span.stop)
        above, stops = parents[span], ends[span]
        if ((above >= nodes) | (above < -1) | (stops <= nodes) | (stops > num)).any():
            return False
        inner = np.flatnonzero(stops > nodes + 1)
        closes = np.where(above >= 0, ends[np.maximum(above, 0)], num)
        followed = np.flatnonzero(stops < closes)
        if (
            (parents[nodes[inner] + 1] != nodes[inner]).any()
            or (stops > closes).any()
            or (parents[stops[followed]] != above[followed]).any()
        ):
            return False
    return True


def _check_offsets(where: Path, trie: Trie) -> None:
    if int(trie.offsets[0]) != 0 or int(trie.offsets[-1]) != len(trie.tokens):
        fail(where / "offsets.npy", "offsets that do not cover the tokens", f"0 to {len(trie.tokens):,}")
    if any((np.diff(trie.offsets[span.start : span.stop + 1]) < 1).any() for span in spans(trie.num_nodes)):
        fail(where / "offsets.npy", "an empty node", "every node holds a token")


def _check_tokens(where: Path, trie: Trie, vocab_size: int) -> None:
    for low in range(0, len(trie.tokens), _BLOCK):
        tokens = trie.tokens[low : low + _BLOCK]
        if (tokens < 0).any() or (tokens >= vocab_size).any():
            fail(where / "tokens.npy", "a token outside the vocabulary", f"0 to {vocab_size - 1:,}")
        if not np.isfinite(trie.weights[low : low + _BLOCK]).all():
            fail(where / "weights.npy", "a weight that is not finite")


def _check_siblings(where: Path, trie: Trie, min_shared: int) -> None:
    """Raise unless the children of a node stand by their first tokens; needs ends that are right."""
    for span in spans(trie.num_nodes):
        following = trie.subtree_ends[span].astype(np.int64)
        nodes = np.flatnonzero(following < trie.num_nodes)
        following, nodes = following[nodes], nodes + span.start
        siblings = trie.parents[following] == trie.parents[nodes]
        following, nodes = following[siblings], nodes[siblings]
        one, other = trie.tokens[trie.offsets[nodes]], trie.tokens[trie.offsets[following]]
        # Trees that share less than --min-shared may start alike; below a root nothing does.
        apart = (trie.parents[nodes] >= 0) | (min_shared == 1)
        if ((other < one) | ((other == one) & apart)).any():
            fail(where / "tokens.npy", "siblings out of order, or equal")


def check_roots(where: Path, trie: Trie, root: int | None, min_shared: int) -> None:
    """Raise unless trees begin with the virtual root, if there is one, and start alike only as far as they may.

    Args:
        where: the trie's folder.
        trie: checked.
        root: the token of the virtual root, None for none.
        min_shared: a prefix of that many tokens is merged, a shorter one is not.
    """
    for span in spans(trie.num_nodes):
        starts = trie.depths[span]
        if ((starts > 0) & (starts < min_shared)).any():
            fail(where / "depths.npy", "a branch at a prefix too short to be merged", f"at least {min_shared:,} tokens")
        firsts = trie.tokens[trie.offsets[:-1][span][starts == 0]]
        if root is not None and (firsts != root).any():
            fail(where / "tokens.npy", "a tree that does not begin with the virtual root", f"token {root:,}")
    if min_shared > 1:
        _check_apart(where, trie, min_shared)


def _check_apart(where: Path, trie: Trie, min_shared: int) -> None:
    """Raise unless each tree is behind the one before it within its first tokens: else they would be one.

    A root that is shorter is an example's whole path, which may be the beginning of another.
    """
    for span in spans(trie.num_nodes):
        ends = trie.subtree_ends[span].astype(np.int64)
        ones = np.flatnonzero((trie.parents[span] < 0) & (ends < trie.num_nodes))
        others, ones = ends[ones], ones + span.start
        place = 0
        while len(ones):
            lengths = [trie.offsets[nodes + 1] - trie.offsets[nodes] for nodes in (ones, others)]
            if ((lengths[1] <= place) & (lengths[0] > place)).any():
                fail(where / "tokens.npy", "trees out of order")
            open_ = (lengths[0] > place) & (lengths[1] > place)
            ones, others = ones[open_], others[open_]
            one, other = trie.tokens[trie.offsets[ones] + place], trie.tokens[trie.offsets[others] + place]
            place += 1
            alike = one == other
            if (one > other).any() or (place == min_shared and alike.any()):
                fail(where / "tokens.npy", "trees out of order, or alike where they would be merged")
            ones, others = ones[alike], others[alike]


def check_weights(where: Path, trie: Trie, paths: Paths, sums: RunSums) -> None:
    """Raise unless every token's weight is what the examples that are in the trie train there.

    Args:
        where: the trie's folder.
        trie: of merge prefix.
        paths: of it.
        sums: what its examples train.
    """
    for span in spans(paths.num_tokens):
        nodes = paths.nodes(np.arange(span.start, span.stop))
        if wrong_weights(trie.weights[span], sums.at(span, paths.ends(nodes))).any():
            fail(where / "weights.npy", "a weight that is not that of the examples that pass")


def check_counts(where: Path, trie: Trie, end_nodes: Iterable[npt.NDArray[np.int64]], zeros: Zeros = np.zeros) -> None:
    """Raise unless every node's count is the number of examples that end in its subtree.

    Args:
        where: the trie's folder.
        trie: of merge prefix.
        end_nodes: blocks of int64: where each example of the trie ends, nodes of it.
        zeros: makes the array with an entry a node.
    """
    passed = counted_below(trie.num_nodes, iter(end_nodes), zeros)
    for span in spans(trie.num_nodes):
        if (passed[trie.subtree_ends[span]] - passed[:-1][span] != trie.counts[span]).any():
            fail(where / "counts.npy", "a count that is not the number of examples that pass")
