"""Bottom-up best fit that dissolves its emptiest bundles on the way: split to fill. Pure.

Best fit never splits a bundle once it has grown, so free room stays scattered. Here, after every
node's best fit, the emptiest bundle is dissolved if its leaves find room in the others: to each of
the next emptiest go the intervals of its leaves whose move frees most rows and repeats fewest. A
bundle goes whole or not at all, and only where the rows repeated do not outweigh the path above,
which one window fewer holds; where all trees meet, it always goes. Nothing is tried where it cannot
succeed: the others must have the room, and the subtree more bundles than a bound says it needs.

Work is bounded by credit: every leaf brings some, attempts below a common node spend it. So the
sweep stays near-linear on spines, where best fit meets the same bundles at every node.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import TreeError
from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import Forest
from dagpack_cli.packing.leaf_order import LeafOrder, SharedRows, number_by_first

__all__ = ["eliminate_bundles"]

Int64s = npt.NDArray[np.int64]

_CREDIT = 512  # steps a leaf pays for, about a microsecond
_TARGETS = 64  # bundles that may take leaves of one that is dissolved
_LEAVES = 128  # of a bundle that takes part: with more, best fit leaves hardly any room
_FAILS = 30  # attempts at a node that may fail
_ROOT_FAILS = 300  # and where all trees meet
_KERNEL_NODES = 3_000  # from here on ``auto`` compiles; the plain way takes up to a second


def eliminate_bundles(
    forest: Forest,
    seq_len: int,
    *,
    order: LeafOrder | None = None,
    fewest: Int64s | None = None,
    engine: Engine = "auto",
) -> Int64s:
    """Return the window of each leaf by bottom-up best fit with elimination.

    Usually fewer windows than `bundle.bundle_leaves`, but not always: keep the better.

    Args:
        forest: n nodes with m leaves; every root path has at most ``seq_len`` rows.
        seq_len: most rows a window may hold.
        order: the forest's leaf order, if it is at hand.
        fewest: shape (n + 1,), int64; windows that hold a leaf below each node, at least, and last
            of all; a proven bound. Without it attempts are made that cannot succeed.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 3,000 nodes.

    Returns:
        shape (m,), int64, aligned with ``forest.leaves``; windows numbered by their first leaf.

    Raises:
        TreeError: a root path is longer than ``seq_len``, or ``fewest`` has another shape.

    Time as `bundle.bundle_leaves` and O(m) for what the credit pays, memory likewise.
    """
    forest.check_fits(seq_len)
    order = LeafOrder.of(forest) if order is None else order
    if fewest is None:
        fewest = np.zeros(forest.num_nodes + 1, dtype=np.int64)
    if fewest.shape != (forest.num_nodes + 1,):
        raise TreeError(
            "fewest", f"shape {fewest.shape}", f"({forest.num_nodes + 1},), one entry a node and one for all"
        )
    if forest.num_nodes == 0:
        return np.zeros(0, dtype=np.int64)
    if uses_kernel(engine, forest.num_nodes, _KERNEL_NODES):
        from dagpack_cli.packing import kernels_eliminate

        limits = kernels_eliminate.Limits(_CREDIT, _TARGETS, _LEAVES, _FAILS, _ROOT_FAILS)
        bottoms = forest.depths + forest.lengths
        windows = kernels_eliminate.eliminating_bundles(forest.ends, bottoms, order, fewest, seq_len, limits)
    else:
        windows = _PlainSweep(forest, seq_len, order, fewest).windows()
    return number_by_first(windows)


class _Bundles:
    """What stands below a node: bundles with room as a sorted list of (slack, name), and how many have none.

    All of them are in one list, the open one too: simpler, and the same result.
    """

    __slots__ = ("credit", "filled", "with_room")

    def __init__(self) -> None:
        self.with_room: list[tuple[int, int]] = []
        self.filled = 0
        self.credit = 0


class _PlainSweep:
    """The plain way: all bundles of a subtree in one sorted list, leaves of a bundle in another."""

    def __init__(self, forest: Forest, seq_len: int, order: LeafOrder, fewest: Int64s) -> None:
        self._shared = SharedRows(order)
        self._rows: list[int] = order.rows.tolist()
        self._fewest: list[int] = fewest.tolist()
        self._members: dict[int, list[int]] = {}  # leaves of each bundle, by its name, which is one of them
        self._sweep(forest, seq_len)

    def windows(self) -> Int64s:
        """Return the window of each leaf, numbered anyhow."""
        windows = np.empty(len(self._rows), dtype=np.int64)
        for number, members in enumerate(self._members.values()):
            windows[members] = number
        return windows

    def _sweep(self, forest: Forest, seq_len: int) -> None:
        """Visit every node after its children, and last the super-root -1, whose children are the roots."""
        ends = forest.ends.tolist()
        bottoms = (forest.depths + forest.lengths).tolist()
        found: dict[int, _Bundles] = {}
        leaf = len(self._rows)
        for node in range(forest.num_nodes - 1, -2, -1):
            above = bottoms[node] if node >= 0 else 0
            room = seq_len - above
            stop = ends[node] if node >= 0 else forest.num_nodes
            if node >= 0 and stop == node + 1:
                leaf -= 1
                self._members[leaf] = [leaf]
                found[node] = self._leaf_bundles(leaf, room)
                continue
            children = []
            child = node + 1
            while child < stop:
                children.append(found.pop(child))
                child = ends[child]
            if len(children) == 1 and node >= 0:
                found[node] = children[0]
                continue
            below = self._best_fit(children, room)
            # A window less is worth the path above it to the node's parent, and any rows to the forest.
            tries, worth = (_FAILS, above) if node >= 0 else (_ROOT_FAILS, 2**62)
            self._eliminate(below, above, room, self._fewest[node], tries, worth)
            found[node] = below

    def _leaf_bundles(self, leaf: int, room: int) -> _Bundles:
        below = _Bundles()
        below.credit = _CREDIT
        if room:
            below.with_room.append((room, leaf))
        else:
            below.filled = 1
        return below

    def _best_fit(self, children: list[_Bundles], room: int) -> _Bundles:
        """Return the bundles of all children after best fit, small ones put where they leave least room."""
        below = _Bundles()
        below.credit = sum(child.credit for child in children)
        below.filled = sum(child.filled for child in children)
        entries = sorted(entry for child in children for entry in child.with_room)
        at = bisect_left(entries, (-(-room // 2), -1))
        below.with_room, small = entries[:at], entries[at:]
        # Of one child at most one bundle is small, and a lone child's stays as it is: see `bundle`.
        for slack, name in small:
            usage = room - slack
            at = bisect_left(below.with_room, (usage, -1))
            if at < len(below.with_room):
                target_slack, target = below.with_room.pop(at)
                slack = target_slack - usage
                name, other = min(name, target), max(name, target)
                self._members[name] += self._members.pop(other)
            if slack:
                insort(below.with_room, (slack, name))
            else:
                below.filled += 1
        return below

    def _eliminate(self, below: _Bundles, above: int, room: int, fewest: int, tries: int, worth: int) -> None:
        """Dissolve bundles while that may succeed; after a failure the next emptiest is tried."""
        fails = 0
        while (
            fails < min(tries, len(below.with_room))
            and below.credit > 0
            and sum(slack for slack, _ in below.with_room) >= room
            and len(below.with_room) + below.filled > max(fewest, 1)
        ):
            by_slack = sorted(below.with_room, key=lambda entry: (-entry[0], entry[1]))
            candidates = by_slack[: _TARGETS + 1 + fails]
            slack, name = candidates[fails]
            del candidates[fails]
            moves, gains, price = self._dissolve(name, candidates, above)
            below.credit -= price + len(candidates) + 1
            if moves is None or sum(gains) - (room - slack) > worth:
                fails += 1
                continue
            del self._members[name]
            for (_, target), leaves in zip(candidates, moves, strict=True):
                self._members[target] += leaves
            rest = by_slack[len(candidates) + 1 :]
            left = [(slack - gain, target) for (slack, target), gain in zip(candidates, gains, strict=True)]
            below.filled += sum(slack == 0 for slack, _ in left)
            below.with_room = sorted([entry for entry in left if entry[0]] + rest)

    def _dissolve(
        self, name: int, targets: list[tuple[int, int]], above: int
    ) -> tuple[list[list[int]] | None, list[int], int]:
        """Return (leaves that each target takes, or None if some leaf stays; rows each gains; price)."""
        left = sorted(self._members[name])
        if len(left) > _LEAVES:
            return None, [], _LEAVES
        moves: list[list[int]] = []
        gains: list[int] = []
        price = len(left)
        for slack, target in targets:
            moves.append([])
            gains.append(0)
            if not left:
                continue
            others = sorted(self._members[target])
            price += len(left) + len(left) ** 2 // 16 + min(len(others), _LEAVES + 1)
            while left and len(others) <= _LEAVES + len(moves[-1]):
                start, stop, added = self._best_interval(left, others, above, slack - gains[-1])
                if stop == 0:
                    break
                moves[-1] += left[start:stop]
                others = sorted(others + left[start:stop])
                del left[start:stop]
                gains[-1] += added
        return (moves if not left else None), gains, price

    def _best_interval(self, left: list[int], others: list[int], above: int, room: int) -> tuple[int, int, int]:
        """Return (start, stop, rows added) of the leaves whose move frees most rows for those it repeats, or stop 0."""
        own = [above] + [self._shared(a, b) for a, b in pairwise(left)] + [above]
        best, found = -(2**62), (0, 0, 0)
        for first in range(len(left)):
            rows = added = 0
            for last in range(first, len(left)):
                leaf = left[last]
                path = self._rows[leaf]
                at = bisect_left(others, leaf)
                theirs = max(self._shared(*sorted((leaf, other))) for other in others[max(at - 1, 0) : at + 1])
                rows += path - (own[last] if last > first else 0)
                added += path - (max(own[last], theirs) if last > first else theirs)
                if added > room:
                    break
                # Rows freed less rows repeated; those are added and not freed.
                score = 2 * (rows - max(own[first], own[last + 1])) - added
                if score > best:
                    best, found = score, (first, last + 1, added)
        return found
