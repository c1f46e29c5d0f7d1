"""Bottom-up best fit in one pass over the nodes, with little memory: for forests that do not fit. Pure.

The sweep of `bundle` in preorder: only the nodes of the current path are open, and the bundles below
them lie on one stack. When a node closes, its bundles are packed and are its parent's. Where what
waits at an open node would fill ``pending`` windows, it is packed early, and the windows with hardly
any room and the fuller half of the others are final; only that costs windows against `bundle`,
which packs the same way with nothing ever final before its time. Neighbours in the corpus stay
neighbours, to within ``pending`` windows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import UsageError
from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import Forest
from dagpack_cli.packing.leaf_order import number_by_first

__all__ = ["PENDING", "STREAMING_NODES", "stream_leaves"]

Int64s = npt.NDArray[np.int64]

STREAMING_NODES = 50_000_000
"""Nodes from which a forest is streamed: the other packers take up to 200 bytes a node."""
PENDING = 64
"""Windows' worth of rows that may wait at a node; 512 gains less than a thousandth."""

_CHUNK = 1 << 20  # nodes in memory at a time
_MOST_ENTRIES = 16  # bundles that may wait at a node, for each of the windows that may
_HARDLY = 100  # a window with less than this part of its rows free is full


def stream_leaves(forest: Forest, seq_len: int, *, pending: int = PENDING, engine: Engine = "auto") -> Int64s:
    """Return the window of each leaf by bottom-up best fit with a bounded number of bundles waiting.

    Args:
        forest: n nodes; its columns may be memory-mapped. Every root path has at most ``seq_len`` rows.
        seq_len: most rows a window may hold.
        pending: windows' worth of rows that may wait at a node; with more than the forest fills, the
            result is that of `bundle.bundle_leaves`.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 nodes.

    Returns:
        shape (num_leaves,), int64, aligned with ``forest.leaves``; windows numbered by their first leaf.

    Raises:
        TreeError: a root path is longer than ``seq_len``.
        UsageError: ``pending`` is below 1.

    Time O(n pending log pending) at worst; memory, apart from the result and a chunk of nodes,
    O(pending) for every open node: at most one a row of a window.

    >>> forest = Forest.from_parents(np.array([-1, 0, 0, 0, 0]), np.array([5, 2, 3, 1, 2]))
    >>> stream_leaves(forest, 9)
    array([0, 1, 1, 0])
    """
    if pending < 1:
        raise UsageError("pending", f"{pending:,}", "at least 1 window")
    forest.check_fits(seq_len)
    num_leaves = _count_leaves(forest)
    take: Callable[[int, Int64s, Int64s], None]
    if uses_kernel(engine, forest.num_nodes):
        from dagpack_cli.packing import kernels_streaming

        limits = (pending, pending * _MOST_ENTRIES, seq_len // _HARDLY)
        compiled = kernels_streaming.CompiledStream(num_leaves, seq_len, limits)
        take, owners = compiled.take, compiled.owners
    else:
        plain = _PlainStream(num_leaves, seq_len, pending)
        take, owners = plain.take, plain.owners
    for low in range(0, forest.num_nodes, _CHUNK):
        high = min(low + _CHUNK, forest.num_nodes)
        bottoms = forest.depths[low:high] + forest.lengths[low:high]
        take(low, forest.ends[low:high].astype(np.int64), bottoms)
    return _windows_of(owners)


def _count_leaves(forest: Forest) -> int:
    """Return the number of leaves, a chunk of nodes at a time."""
    lows = range(0, forest.num_nodes, _CHUNK)
    parts = ((low, forest.ends[low : low + _CHUNK]) for low in lows)
    return sum(int(np.count_nonzero(ends == np.arange(low + 1, low + 1 + len(ends)))) for low, ends in parts)


def _windows_of(owners: Int64s) -> Int64s:
    """Return windows numbered by first leaf; an owner is the leaf itself or an earlier one of its bundle."""
    while True:  # owners of owners: as often as the logarithm of the longest chain
        further = owners[owners]
        if np.array_equal(further, owners):
            break
        owners = further
    _, windows = np.unique(owners, return_inverse=True)
    return number_by_first(windows.astype(np.int64))


class _Level:
    """An open node: the room below it, where its subtree ends, where its bundles begin on the stack."""

    __slots__ = ("children", "end", "room", "start")

    def __init__(self, room: int, end: int, start: int) -> None:
        self.room, self.end, self.start = room, end, start
        self.children = 0


class _PlainStream:
    """The plain way: the stack is a list of (slack, first leaf)."""

    def __init__(self, num_leaves: int, seq_len: int, pending: int) -> None:
        self.owners = np.arange(num_leaves, dtype=np.int64)
        self._leaf = 0
        self._seq_len = seq_len
        self._pending = pending
        self._stack: list[tuple[int, int]] = []
        self._levels = [_Level(seq_len, 2**62, 0)]

    def take(self, low: int, ends: Int64s, bottoms: Int64s) -> None:
        """Take the next nodes, of which the first is number ``low``."""
        for node, (end, bottom) in enumerate(zip(ends.tolist(), bottoms.tolist(), strict=True), start=low):
            while self._levels[-1].end <= node:
                self._close()
            room = self._seq_len - bottom
            self._levels.append(_Level(room, end, len(self._stack)))
            if end == node + 1:
                if room:
                    self._stack.append((room, self._leaf))
                self._leaf += 1
        if len(self.owners) == self._leaf:
            while len(self._levels) > 1:
                self._close()
            self._pack(0, self._seq_len)

    def _close(self) -> None:
        """Close the deepest open node: its bundles are its parent's, which packs early if too much waits."""
        level = self._levels.pop()
        if level.children > 1:
            self._pack(level.start, level.room)
        above = self._levels[-1]
        above.children += 1
        waiting = self._stack[above.start :]
        used = sum(above.room - slack for slack, _ in waiting)
        if used > self._pending * above.room or len(waiting) > self._pending * _MOST_ENTRIES:
            self._pack(above.start, above.room)
            self._emit(above)

    def _pack(self, start: int, room: int) -> None:
        """Put the small bundles from ``start`` on where they leave least room."""
        entries = sorted(self._stack[start:])
        at = bisect_left(entries, (-(-room // 2), -1))
        packed = entries[:at]
        for slack, name in entries[at:]:
            usage = room - slack
            at = bisect_left(packed, (usage, -1))
            if at < len(packed):
                target_slack, target = packed.pop(at)
                self.owners[max(name, target)] = min(name, target)
                slack, name = target_slack - usage, min(name, target)
            if slack:
                insort(packed, (slack, name))
        self._stack[start:] = packed

    def _emit(self, level: _Level) -> None:
        """Make the fuller windows final if more waits than may."""
        waiting = self._stack[level.start :]
        if sum(level.room - slack for slack, _ in waiting) > self._pending * level.room:
            full = bisect_left(waiting, (self._seq_len // _HARDLY + 1, -1))
            self._stack[level.start :] = waiting[full + (len(waiting) - full + 1) // 2 :]
