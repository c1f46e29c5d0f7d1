"""The exact optimum of small forests, an independent check of any packing, and small forests of six shapes.

Written from the definition alone. A window may be taken to hold the union of the root paths of its
leaves: whatever it holds besides, no leaf's last row there needs. So a packing is a division of the
leaves into groups whose union has at most ``seq_len`` rows, and the optimum is a dynamic programme
over sets of leaves: the group of the lowest leaf, and the best for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dagpack_cli.packing import Forest

__all__ = ["SHAPES", "Optimum", "Small", "check_packing", "optimum", "random_small"]


class Small(NamedTuple):
    """A forest as plain lists, and a window length that fits its longest path."""

    parents: list[int]
    lengths: list[int]
    seq_len: int

    @property
    def forest(self) -> Forest:
        """The forest, built the plain way."""
        return Forest.from_parents(np.array(self.parents), np.array(self.lengths), engine="numpy")

    @property
    def leaves(self) -> list[int]:
        """Nodes that are nobody's parent."""
        inner = set(self.parents)
        return [node for node in range(len(self.parents)) if node not in inner]

    def path(self, node: int) -> set[int]:
        """Return a node and all its ancestors."""
        return {node} | (self.path(self.parents[node]) if self.parents[node] >= 0 else set())

    def rows(self, nodes: set[int]) -> int:
        """Return the rows of some nodes' runs."""
        return sum(self.lengths[node] for node in nodes)

    def attention(self, nodes: set[int]) -> int:
        """Return the attention edges of some nodes' runs: every row sees itself and the rows above it."""
        total = 0
        for node in nodes:
            above = self.rows(self.path(node)) - self.lengths[node]
            total += sum(above + row + 1 for row in range(self.lengths[node]))
        return total


class Optimum(NamedTuple):
    """The least of each, over all packings, minimised alone.

    Attributes:
        windows: windows.
        rows: rows summed over windows.
        attention: attention edges summed over windows.
        node_windows: for every node, windows that hold a leaf below it.
    """

    windows: int
    rows: int
    attention: int
    node_windows: list[int]


def optimum(small: Small) -> Optimum:
    """Return the exact optimum; 3^leaves steps, so for a dozen leaves at most."""
    leaves = small.leaves
    paths = [small.path(leaf) for leaf in leaves]
    costs: list[tuple[int, int, int] | None] = [(0, 0, 0)]
    for group in range(1, 1 << len(leaves)):
        union = set().union(*(path for at, path in enumerate(paths) if group >> at & 1))
        fits = small.rows(union) <= small.seq_len
        costs.append((1, small.rows(union), small.attention(union)) if fits else None)
    best = [(0, 0, 0)]
    for chosen in range(1, len(costs)):
        lowest, options = chosen & -chosen, []
        for rest in _subsets(chosen ^ lowest):
            cost = costs[chosen ^ rest]
            if cost is not None:
                options.append([a + b for a, b in zip(cost, best[rest], strict=True)])
        windows, rows, attention = (min(column) for column in zip(*options, strict=True))
        best.append((windows, rows, attention))
    below = [sum(1 << at for at, path in enumerate(paths) if node in path) for node in range(len(small.parents))]
    return Optimum(*best[-1], [best[chosen][0] for chosen in below])


def _subsets(whole: int) -> Iterator[int]:
    """Yield every subset of a set of bits, the empty one last."""
    part = whole
    while part:
        yield part
        part = (part - 1) & whole
    yield 0


def check_packing(small: Small, leaf_windows: list[int]) -> tuple[int, int, int]:
    """Return the windows, rows and attention edges of a packing, recomputed node by node.

    Raises:
        AssertionError: a leaf without a window or with more than one, a gap in the numbers, a
            window that lacks an ancestor of something in it or holds more than ``seq_len`` rows.
    """
    leaves = small.leaves
    assert len(leaf_windows) == len(leaves)
    assert sorted(set(leaf_windows)) == list(range(max(leaf_windows, default=-1) + 1))
    contents: dict[int, set[int]] = {}
    for leaf, window in zip(leaves, leaf_windows, strict=True):
        node = leaf
        while node >= 0:
            contents.setdefault(window, set()).add(node)
            node = small.parents[node]
    for nodes in contents.values():
        assert all(small.parents[node] in nodes | {-1} for node in nodes)
        assert 1 <= small.rows(nodes) <= small.seq_len
    assert set().union(*contents.values()) == set(range(len(small.parents)))
    rows = sum(small.rows(nodes) for nodes in contents.values())
    return len(contents), rows, sum(small.attention(nodes) for nodes in contents.values())


SHAPES = ("alone", "star", "groups", "spine", "binary", "any")


def random_small(shape: str, seed: int, most_leaves: int) -> Small:
    """Return a random forest of a shape with 2 to ``most_leaves`` leaves; the longest path leaves little to much room.

    The shapes: lone nodes; one root with leaves; roots with a few leaves each; a spine with a leaf at
    every node; a tree of forks; anything.
    """
    rng = np.random.default_rng([5, SHAPES.index(shape), seed])
    num_leaves = int(rng.integers(2, most_leaves + 1))
    parents = _grow(shape, rng, num_leaves)
    longest = int(rng.choice([3, 10, 40]))
    lengths = rng.integers(1, longest + 1, len(parents)).tolist()
    small = Small(parents, lengths, 1)
    deepest = max(small.rows(small.path(leaf)) for leaf in small.leaves)
    whole = small.rows(set(range(len(parents))))
    # Between the longest path and half of everything: few windows prove nothing.
    most = max(deepest, int(deepest + rng.random() * max(whole / 2 - deepest, 0)))
    return small._replace(seq_len=int(rng.integers(deepest, most + 1)))


def _grow(shape: str, rng: np.random.Generator, num_leaves: int) -> list[int]:
    """Return the parents of a forest with about this many leaves, in preorder."""
    if shape == "alone":
        return [-1] * num_leaves
    if shape == "star":
        return [-1] + [0] * num_leaves
    parents: list[int] = []
    if shape == "groups":
        while (left := num_leaves - sum(parent >= 0 for parent in parents)) > 0:
            root = len(parents)
            parents += [-1] + [root] * int(rng.integers(1, min(left, 4) + 1))
        return parents
    if shape == "spine":
        return [*range(-1, num_leaves - 2), num_leaves - 2, *range(num_leaves - 2, -1, -1)]
    path: list[int] = []
    children: list[int] = []
    while sum(count == 0 for count in children) < num_leaves or not children:
        keep = len(path) - int(rng.integers(0, 3)) if shape == "binary" else int(rng.integers(0, len(path) + 1))
        path = path[: max(keep, 0)]
        while shape == "binary" and path and children[path[-1]] == 2:
            path.pop()
        if path:
            children[path[-1]] += 1
        parents.append(path[-1] if path else -1)
        path.append(len(children))
        children.append(0)
    return parents
