"""Sharing-aware first fit: leaf after leaf, each where its path shares what a window already holds. Pure.

A window that holds a leaf's deepest ancestor a (and nothing deeper of its path) needs only the rows
below a, path(leaf) - bottom(a), to take the leaf in. First fit takes the window opened first of
those that have the room; least added takes the one that holds the most of the path. Longest leaf
first is the packer for long trunks with one or two coarse leaves a window, where `bundle` is 9 to
14 % above the bound; in the order given it is what trainers do with the sequences of a batch.

Looking at every window for every leaf is quadratic. So every node where the forest branches keeps
a *register* of the windows that hold it, in the order in which they came to hold it, and a leaf asks
the registers of its ancestors, deepest first, and last that of the super-root, which has them all:
the first window with room for the rows below? Three bounds keep it near-linear:

* A leaf asks, and a window is registered at, the `NEAREST` ancestors, then `MILESTONES` at levels
  divisible by 16, as many at levels divisible by 16^2, and so on, then the super-root. Only forests
  that branch at more than 16 levels above one leaf can lose by it: what is shared below the milestone.
* A register remembers the room that a window had when asked last (room only shrinks), so it may be
  wrong in one direction; it corrects what it finds wrong, at most `CORRECTIONS` windows a question.
* First fit compares the first window of each register, so that of two windows one of which came
  to hold a node late, the other may win. The first in a register of the super-root is exact.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import TreeError, UsageError
from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import Forest
from dagpack_cli.packing.leaf_order import number_by_first

__all__ = ["CORRECTIONS", "MILESTONES", "NEAREST", "Choice", "LeafSequence", "first_fit"]

Int64s = npt.NDArray[np.int64]
Choice = Literal["first", "least-added"]
LeafSequence = Literal["longest", "given"]

NEAREST = 16
"""Branching ancestors of a leaf that are asked one by one; the levels of milestones are its powers."""

MILESTONES = 4
"""Milestones asked of each power. On no generated family do twice as many change one window."""

_POWERS = 4  # 4 * 16^4 levels: more than a quarter of a million

CORRECTIONS = 16
"""Windows of one register that may turn out to have less room before the next register is asked."""

# The plain way looks at every window of a register; a register of thousands is common from here on.
_FIRST_FIT_THRESHOLD = 5_000


def first_fit(
    forest: Forest,
    seq_len: int,
    order: LeafSequence | npt.NDArray[np.integer[Any]] = "longest",
    choice: Choice = "first",
    *,
    engine: Engine = "auto",
) -> Int64s:
    """Return the window of each leaf when every leaf goes to a window that has room for what it adds.

    Args:
        forest: n nodes; every root path has at most ``seq_len`` rows.
        seq_len: most rows a window may hold.
        order: which leaf comes next: the one with the ``longest`` path (ties by preorder), or as
            ``given`` by the forest; or shape (num_leaves,), any integer dtype, the indices of the
            leaves in any other order.
        choice: ``first`` takes the window opened first, ``least-added`` the one to which the leaf
            adds fewest rows, of those the first to hold their common path.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 5,000 nodes.

    Returns:
        shape (num_leaves,), int64, aligned with ``forest.leaves``; windows are numbered by their
        first leaf in preorder.

    Raises:
        TreeError: a root path is longer than ``seq_len``, or ``order`` is no permutation.
        UsageError: ``order`` or ``choice`` is none of the words.

    Time O(a m log m) and memory O(n + a w) for m leaves, w windows and a <= 33 ancestors asked a
    leaf; the plain way O(a m w).

    >>> forest = Forest.from_parents(np.array([-1, 0, 0, 0, 0]), np.array([5, 2, 3, 1, 2]))
    >>> first_fit(forest, 9)
    array([0, 1, 1, 0])
    """
    forest.check_fits(seq_len)
    if choice not in ("first", "least-added"):
        raise UsageError("choice", f"{choice!r}", "first or least-added")
    leaves = forest.leaves
    rows = forest.depths[leaves] + forest.lengths[leaves]
    sequence = _sequence(rows, order)
    if uses_kernel(engine, forest.num_nodes, _FIRST_FIT_THRESHOLD):
        from dagpack_cli.packing import kernels_first_fit

        limits = (NEAREST, MILESTONES, _POWERS, CORRECTIONS)
        columns = (forest.parents, forest.ends, forest.depths + forest.lengths)
        opened = kernels_first_fit.first_fit(*columns, leaves, sequence, seq_len, choice == "first", limits)
    else:
        opened = _PlainFirstFit(forest, leaves, rows.tolist(), seq_len).place(sequence, choice == "first")
    return number_by_first(opened)


def _sequence(rows: Int64s, order: LeafSequence | npt.NDArray[np.integer[Any]]) -> Int64s:
    """Return the indices of the leaves in the order asked for."""
    if isinstance(order, str):
        if order not in ("longest", "given"):
            raise UsageError("order", f"{order!r}", "longest, given or an array")
        return np.argsort(-rows, kind="stable") if order == "longest" else np.arange(len(rows))
    sequence = np.asarray(order)
    if sequence.shape != rows.shape or (len(rows) and sequence.dtype.kind not in "iu"):
        raise TreeError("order", f"shape {sequence.shape}, dtype {sequence.dtype}", f"({len(rows)},), integers")
    if not np.array_equal(np.sort(sequence), np.arange(len(rows))):
        raise TreeError("order", "an index twice or out of range", f"every leaf from 0 to {len(rows) - 1:,} once")
    return sequence.astype(np.int64)


class _PlainFirstFit:
    """The plain way: a register is a list, read from its start for every question."""

    def __init__(self, forest: Forest, leaves: Int64s, rows: list[int], seq_len: int) -> None:
        self._leaves = leaves.tolist()
        self._rows = rows
        self._seq_len = seq_len
        self._top = forest.num_nodes  # stands for the super-root
        self._bottoms = [*(forest.depths + forest.lengths).tolist(), 0]
        self._climb(forest)
        self._rooms: list[int] = []
        # Of each node, [window, room when asked last] in the order of registration.
        self._registers: dict[int, list[list[int]]] = {}
        self._registered: set[tuple[int, int]] = set()

    def _climb(self, forest: Forest) -> None:
        """Fill, for every node, the branching node above it, its level, the milestones above, and the nearest leaf."""
        top, ends = self._top, forest.ends.tolist()
        self._above, self._levels = [top] * top, [0] * (top + 1)
        self._milestones = [[top] * (top + 1) for _ in range(_POWERS)]
        self._shortest = [self._seq_len + 1] * (top + 1)  # rows of the shortest path to a leaf below
        for node, parent in enumerate(forest.parents.tolist()):
            if parent >= 0:
                branches = ends[parent + 1] != ends[parent]
                self._above[node] = parent if branches else self._above[parent]
            above = self._above[node]
            self._levels[node] = self._levels[above] + 1
            for power, milestones in enumerate(self._milestones, 1):
                milestones[node] = milestones[above] if self._levels[above] % NEAREST**power else above
        for leaf, rows in zip(self._leaves, self._rows, strict=True):
            self._shortest[leaf] = rows
        for node in range(top - 1, -1, -1):
            above = self._above[node]
            self._shortest[above] = min(self._shortest[above], self._shortest[node])

    def _ancestors(self, leaf: int) -> list[int]:
        """Return the nodes that a leaf asks, deepest first, the super-root last."""
        asked: list[int] = []
        node = self._above[leaf]
        while node != self._top and len(asked) < NEAREST:
            asked.append(node)
            node = self._above[node]
        for power, milestones in enumerate(self._milestones, 1):
            if self._levels[node] % NEAREST**power:
                node = milestones[node]
            while node != self._top and len(asked) < NEAREST + power * MILESTONES:
                asked.append(node)
                node = milestones[node]
        return [*asked, self._top]

    def _ask(self, node: int, needed: int) -> int:
        """Return the first window of a register with this much room, or -1."""
        wrong = 0
        for entry in self._registers.get(node, ()):
            if entry[1] >= needed:
                entry[1] = self._rooms[entry[0]]
                if entry[1] >= needed:
                    return entry[0]
                wrong += 1
                if wrong == CORRECTIONS:
                    break
        return -1

    def place(self, sequence: Int64s, first: bool) -> Int64s:
        """Return the window of every leaf, numbered as opened."""
        windows = np.empty(len(self._rows), dtype=np.int64)
        for number in sequence.tolist():
            asked = self._ancestors(self._leaves[number])
            window, shared = self._choose(asked, self._rows[number], first)
            if window < 0:
                window, shared = len(self._rooms), len(asked)
                self._rooms.append(self._seq_len)
            self._rooms[window] -= self._rows[number] - (self._bottoms[asked[shared]] if shared < len(asked) else 0)
            for node in asked[:shared]:
                # Room for the nearest leaf below is the least that anyone will ask for.
                if self._rooms[window] >= self._shortest[node] - self._bottoms[node]:
                    self._registers.setdefault(node, []).append([window, self._rooms[window]])
                    self._registered.add((node, window))
            windows[number] = window
        return windows

    def _choose(self, asked: list[int], rows: int, first: bool) -> tuple[int, int]:
        """Return (window, index of the deepest node asked that it holds), or (-1, 0) if none has room."""
        best, shared = -1, 0
        for at, node in enumerate(asked):
            window = self._ask(node, rows - self._bottoms[node])
            if window >= 0 and (best < 0 or window < best):
                best, shared = window, at
                if not first:
                    break
        if first and best >= 0:
            # A register names its first window only, so the one found high up may be held deeper.
            shared = next(at for at, node in enumerate(asked) if (node, best) in self._registered)
        return best, shared
