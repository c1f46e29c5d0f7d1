"""Bottom-up best fit: leaves are bundled below the deepest node they share, then carried up. Pure.

Whole root paths lose nothing against windows that cut runs, so a packing is a partition of the
leaves. Working from the leaves to the roots, every node pools the bundles of its children and packs
them, in decreasing usage, each where it leaves least room. Two bundles share exactly the path
above, so usage simply adds up. This is bin packing with a tree of setups; the problem is that of
sharing-aware virtual machine colocation (Sindelar et al., SPAA 2011).

At a node v a window has C(v) = seq_len - depth - length rows for what is below v, and a bundle
using u of them has slack C(v) - u. Two facts make it near-linear:

* Slack is invariant going up: a node's own run takes the same from the room and adds it to the
  usage. So a bundle is the number of rows still free in its window, whatever node one stands at.
* A bundle above half of C(v) stays above half going up, and best fit leaves at most one bundle at
  half or less. So at every node at most one bundle a child can move, the one it left *open*. All
  others are only looked up: which has the smallest slack that is enough?

Hence a node keeps one open bundle apart and the rest in an ordered pool that merges with others.
A bundle without slack is final. At most 3 w - 1 windows are used, w being the bound of `bound`,
or one window if all fits.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import Forest

__all__ = ["bundle_leaves"]

_Pool = list[tuple[int, int]]  # (slack, bundle) ascending; a bundle is named by its first leaf


def bundle_leaves(forest: Forest, seq_len: int, *, engine: Engine = "auto") -> npt.NDArray[np.int64]:
    """Return the window of each leaf by bottom-up best fit.

    A small bundle goes where it leaves least room; ties go to the bundle whose first leaf comes
    first, among equally large small bundles as well. No randomness, integers only.

    Args:
        forest: n nodes; every root path has at most ``seq_len`` rows.
        seq_len: most rows a window may hold.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 nodes.

    Returns:
        shape (num_leaves,), int64, aligned with ``forest.leaves``; windows are numbered by their
        first leaf in preorder.

    Raises:
        TreeError: a root path is longer than ``seq_len``.

    Time O(n + b log b + b log seq_len) for b leaves, memory O(n + b log seq_len); the plain way
    moves array tails besides.

    >>> forest = Forest.from_parents(np.array([-1, 0, 0, 0, 0]), np.array([5, 2, 3, 1, 2]))
    >>> bundle_leaves(forest, 9)
    array([0, 1, 1, 0])
    """
    forest.check_fits(seq_len)
    if uses_kernel(engine, forest.num_nodes):
        from dagpack_cli.packing import kernels_bundle

        return kernels_bundle.bundle(forest.ends, forest.depths + forest.lengths, seq_len)
    return _PlainBundles(forest, seq_len).windows()


class _PlainBundles:
    """The plain way: pools are sorted lists, merged small to large."""

    def __init__(self, forest: Forest, seq_len: int) -> None:
        self._slacks = [0] * len(forest.leaves)
        self._owners = list(range(len(self._slacks)))  # the bundle a bundle was merged into, or itself
        # Per node, its open bundle and its pool; taken by the parent.
        self._open: dict[int, int] = {}
        self._pools: dict[int, _Pool] = {}
        self._sweep(forest, seq_len)

    def windows(self) -> npt.NDArray[np.int64]:
        """Return the window of each leaf, numbered by first leaf; owners only point to earlier bundles."""
        windows = np.empty(len(self._owners), dtype=np.int64)
        num_windows = 0
        for leaf, owner in enumerate(self._owners):
            if owner == leaf:
                windows[leaf] = num_windows
                num_windows += 1
            else:
                windows[leaf] = windows[owner]
        return windows

    def _sweep(self, forest: Forest, seq_len: int) -> None:
        """Visit every node after its children, and last the super-root -1, whose children are the roots."""
        ends = forest.ends.tolist()
        rooms = (seq_len - forest.depths - forest.lengths).tolist()
        leaf = len(self._slacks)
        for node in range(forest.num_nodes - 1, -1, -1):
            if ends[node] == node + 1:
                leaf -= 1
                self._slacks[leaf] = rooms[node]
                if rooms[node] > 0:
                    self._open[node] = leaf
            else:
                self._pack_children(node, ends[node], rooms[node], ends)
        self._pack_children(-1, forest.num_nodes, seq_len, ends)

    def _pack_children(self, node: int, stop: int, room: int, ends: list[int]) -> None:
        pool: _Pool = []
        small: _Pool = []
        child = node + 1
        while child < stop:
            pool = _merge_pools(pool, self._pools.pop(child, []))
            bundle = self._open.pop(child, -1)
            if bundle >= 0:
                entry = (self._slacks[bundle], bundle)
                if 2 * entry[0] >= room:
                    small.append(entry)
                else:
                    insort(pool, entry)
            child = ends[child]
        for entry in sorted(small):  # increasing slack is decreasing usage
            self._fit(pool, entry, room)
        if pool and 2 * pool[-1][0] >= room:
            self._open[node] = pool.pop()[1]
        if pool:
            self._pools[node] = pool

    def _fit(self, pool: _Pool, entry: tuple[int, int], room: int) -> None:
        """Put a small bundle where it leaves least room, or beside the others if it fits nowhere."""
        slack, bundle = entry
        usage = room - slack
        at = bisect_left(pool, (usage, -1))
        if at < len(pool):
            target_slack, target = pool.pop(at)
            slack = target_slack - usage
            first, second = min(bundle, target), max(bundle, target)
            self._owners[second] = first
            self._slacks[first] = slack
            bundle = first
        if slack > 0:
            insort(pool, (slack, bundle))


def _merge_pools(left: _Pool, right: _Pool) -> _Pool:
    """Return both pools as one, at the price of the smaller where they differ much."""
    if len(left) < len(right):
        left, right = right, left
    if len(right) * 8 > len(left):
        left += right
        left.sort()  # two sorted runs: merged in linear time
    else:
        for entry in right:
            insort(left, entry)
    return left
