"""Polish: ruin a few windows, recreate them another way, keep what is no worse. Pure.

A large neighbourhood search (ruin and recreate: Schrimpf et al., J. Computational Physics 2000). A
ruin takes two to eight windows, the emptiest of a few drawn, and neighbours, near or far, of
leaves that it has. Their leaves are one piece at first. The largest piece goes where it leaves least
room (or, in one ruin of four, where it repeats most rows); if it fits nowhere it is cut where it
shares least. Windows that share little would so be rebuilt as they were; hence some ruins *shatter*:
they cut three of four pieces that need no cut, and small ones fill the room of others. Which of the
two gains more depends on the forest, so seven of eight ruins do what has gained more often of late
(as adaptive large neighbourhood search does: Ropke and Pisinger, Transportation Science 2006). The
new windows stand if the sum of squared slacks does not fall: free room is worth most in one place,
and all of it in one place is a window fewer. Fewer rows follow, since rows are what is not slack.

Leaves of different trees share nothing, and among thousands of windows a ruin hardly ever finds the few
that its tree's free room may be gathered in. So half of the budget is for trees: the windows are divided
at trees (`tree_windows`), each tree of a few windows is searched alone, and what all have is joined by best fit.
The rest is for all windows at once; at the end they are divided and joined once more.

The generator is a xorshift with a seed, and the budget counts ruins and steps, not seconds: the same
forest and options give the same windows on every machine.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import UsageError
from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.leaf_order import LeafOrder, SharedRows, number_by_first
from dagpack_cli.packing.tree_windows import better_joined, divide_windows

__all__ = ["FEWEST_RUINS", "RUINS_PER_WINDOW", "count_ruins", "polish_windows"]

Int64s = npt.NDArray[np.int64]

RUINS_PER_WINDOW = 100
"""Ruins that `count_ruins` gives each window by default; the steps end it earlier in a large forest."""
FEWEST_RUINS = 20_000
"""Ruins of a partition by default where 100 a window would be fewer: half a second."""

_MOST_WINDOWS = 8  # of a ruin
_MOST_LEAVES = 1_024  # of a ruin: windows of more leaves are full to a leaf anyway
_STEPS = 2**25  # of all ruins by default, a fifth of a microsecond each: four to ten seconds,
_STEPS_PER_LEAF = 32  # or so many, about what all rules take, where those are more
_FEW_WINDOWS, _FEW_RUINS = 10, 50  # so few are ruined so often: the plain way does it, which waits for no compiler
_KERNEL_RUINS = 500  # from here on ``auto`` compiles; the plain way takes about a second
_TREE_WINDOWS = 3  # fewest of a tree that is polished alone
_SEED_DRAWS, _OTHER_DRAWS = 15, 7  # windows looked at beside the first for an empty one, to begin a ruin and later
_REACH = 4  # how many leaves away a neighbour may be,
_WIDENINGS = 4  # times 1, 4, 16 or 64
_BASE, _SQUARE = 32, 64  # steps of a ruin: so many, two a leaf, and a part of the leaves' square
_MEMORY = 1_000  # ruins of a kind, after which they count half
_MASK = 2**64 - 1


def count_ruins(windows: int, bound: int, polish: int | None) -> int:
    """Return how many ruins a packing is worth.

    Args:
        windows: of the packing.
        bound: windows that any packing needs at least.
        polish: ruins per window; None is `RUINS_PER_WINDOW`, with at least `FEWEST_RUINS` in all (from
            10 windows on, below which it is 50 a window), and none where more than 100 windows are within
            a two-hundredth of the bound.

    Raises:
        UsageError: ``polish`` is below 0.

    >>> count_ruins(9, 9, None), count_ruins(9, 8, None), count_ruins(9_000, 8_999, None), count_ruins(11, 10, 7)
    (0, 450, 0, 77)
    """
    if polish is not None and polish < 0:
        raise UsageError("polish", f"{polish:,}", "0 or more ruins per window")
    if windows <= max(bound, 1):
        return 0
    if polish is not None:
        return polish * windows
    if windows > 100 and 200 * windows <= 201 * bound:
        return 0
    if windows < _FEW_WINDOWS:
        return _FEW_RUINS * windows
    return max(RUINS_PER_WINDOW * windows, FEWEST_RUINS)


def polish_windows(
    order: LeafOrder,
    leaf_windows: Int64s,
    seq_len: int,
    *,
    ruins: int,
    fewest: int,
    seed: int = 0,
    share: int | None = 1,
    engine: Engine = "auto",
) -> Int64s:
    """Return windows that are no more than before, and usually fewer.

    Args:
        order: m leaves.
        leaf_windows: shape (m,), int64; a packing whose windows hold at most ``seq_len`` rows,
            numbered densely.
        seq_len: most rows a window may hold.
        ruins: how many times windows are ruined; see `count_ruins`.
        fewest: a proven bound on the windows: stops there.
        seed: of the generator, any integer.
        share: 2^25 steps divided by this, or 32 a leaf if those are more, end it before all ruins; None: nothing does.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 500 ruins.

    Returns:
        shape (m,), int64; windows numbered by their first leaf.

    Half of ruins and steps are for the trees, by windows and leaves. A ruin of k leaves takes
    32 + 2 k + k^2 / 64 steps, k being at most 1,024: 5 to 50 microseconds where windows have up to 30
    leaves, and 3 milliseconds at worst. Trees take O(m log m) beside that. Memory O(m).
    """
    if ruins <= 0 or int(leaf_windows.max(initial=-1)) < max(fewest, 1):
        return number_by_first(leaf_windows)
    steps = 2**62 if share is None else max(_STEPS // share, _STEPS_PER_LEAF * len(leaf_windows))
    state = ((seed % 2**64) * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D) & _MASK or 1
    compiles = uses_kernel(engine, ruins, _KERNEL_RUINS)
    left = np.array([ruins, steps])
    divided, spans = _tree_spans(order, leaf_windows, left // 2)
    if len(spans):
        divided = _search(order, divided, seq_len, spans, left, state, compiles)
        leaf_windows = better_joined(order, leaf_windows, divided, seq_len, engine=engine)
    num = int(leaf_windows.max()) + 1
    whole = np.array([[0, num, 0, len(leaf_windows), fewest, *left]])
    # Other numbers than the trees' were; not 0 either, since the factor is odd.
    found = number_by_first(_search(order, leaf_windows, seq_len, whole, left, state * 3 & _MASK, compiles))
    return number_by_first(better_joined(order, found, divide_windows(order, found)[0], seq_len, engine=engine))


def _tree_spans(order: LeafOrder, leaf_windows: Int64s, budget: Int64s) -> tuple[Int64s, Int64s]:
    """Return windows divided at trees, and the spans of trees of several, each with its part of ruins and steps."""
    divided, trees = divide_windows(order, leaf_windows)
    windows, leaves = trees[:, 1], trees[:, 3] - trees[:, 2]
    # Quotients first: a budget without limit times a count would pass 2^63.
    ruins, steps = (total // part.sum() * part for total, part in zip(budget, (windows, leaves), strict=True))
    spans = np.column_stack([trees, np.ones(len(trees), dtype=np.int64), ruins, steps])
    return divided, np.ascontiguousarray(spans[windows >= _TREE_WINDOWS])


def _search(
    order: LeafOrder, leaf_windows: Int64s, seq_len: int, spans: Int64s, left: Int64s, state: int, compiles: bool
) -> Int64s:
    """Return the window of each leaf, numbered anyhow, after each span of windows was searched.

    ``spans``, shape (k, 7), int64, are first window, windows, first leaf, exclusive end of leaves, fewest windows,
    ruins and steps; windows, ruins and steps are overwritten by what is left of them. ``left``, shape (2,), int64,
    are ruins and steps of all, from which what the spans took is taken away.
    """
    left -= spans[:, 5:].sum(axis=0)
    if compiles:
        from dagpack_cli.packing import kernels_polish

        limits = (_MOST_WINDOWS, _MOST_LEAVES)
        found = kernels_polish.polish_windows(order, leaf_windows, seq_len, spans, limits, np.uint64(state))
    else:
        found = _PlainPolish(order, leaf_windows, seq_len, state).run(spans)
    left += spans[:, 5:].sum(axis=0)
    return found


_Piece = tuple[int, int, int]  # rows of its paths, first leaf and exclusive end among the ruined leaves


class _PlainPolish:
    """The plain way: a window is a sorted list of leaves; rows are counted anew wherever they are needed."""

    def __init__(self, order: LeafOrder, leaf_windows: Int64s, seq_len: int, state: int) -> None:
        self._shared = SharedRows(order)
        self._rows: list[int] = order.rows.tolist()
        self._seq_len = seq_len
        self._state = state
        self._window_of: list[int] = leaf_windows.tolist()
        self._windows: list[list[int]] = [[] for _ in range(max(self._window_of) + 1)]
        for leaf, window in enumerate(self._window_of):
            self._windows[window].append(leaf)
        self._used = [self._union(window) for window in self._windows]
        self._tried, self._gained = [1, 1], [0, 0]  # ruins that do not shatter, and that do
        self._low, self._num = 0, len(self._windows)  # the span's windows,
        self._first, self._stop = 0, len(self._window_of)  # and its leaves

    def run(self, spans: Int64s) -> Int64s:
        """Return the window of each leaf after each span of windows was searched, numbered anyhow."""
        for span in spans:
            self._low, self._num, self._first, self._stop, fewest, ruins, steps = span.tolist()
            span[5:] = self._run(fewest, ruins, steps)
            span[1] = self._num
        return np.array(self._window_of, dtype=np.int64)

    def _run(self, fewest: int, ruins: int, steps: int) -> tuple[int, int]:
        """Search the span; return the ruins and steps that are left."""
        while ruins > 0 and steps > 0 and self._num > fewest:
            chosen, leaves = self._ruin()
            ruins -= 1
            steps -= _BASE + 2 * len(leaves) + len(leaves) ** 2 // _SQUARE
            if len(chosen) < 2:
                continue
            shatters = self._draw_kind()
            created = self._recreate(leaves, len(chosen), shatters)
            gained = -1
            if created is not None:
                used = [self._union(window) for window in created]
                gained = sum((self._seq_len - rows) ** 2 for rows in used)
                gained -= sum((self._seq_len - self._used[window]) ** 2 for window in chosen)
                if gained >= 0:
                    self._commit(chosen, created, used)
            self._learn(shatters, gained > 0)
        return ruins, steps

    def _draw(self, stop: int) -> int:
        """Return a number of ``[0, stop)`` from a xorshift generator (Marsaglia, 2003)."""
        value = self._state
        value ^= (value << 13) & _MASK
        value ^= value >> 7
        value ^= (value << 17) & _MASK
        self._state = value
        return (value >> 33) % stop

    def _draw_kind(self) -> bool:
        """Return whether a ruin shatters: in seven of eight, what gained more often of late."""
        better = self._gained[1] * self._tried[0] > self._gained[0] * self._tried[1]
        return better if self._draw(8) else not better

    def _learn(self, shatters: bool, gains: bool) -> None:
        self._tried[shatters] += 1
        self._gained[shatters] += gains
        if self._tried[shatters] > _MEMORY:
            self._tried[shatters] //= 2
            self._gained[shatters] //= 2

    def _union(self, leaves: list[int]) -> int:
        return sum(self._rows[leaf] for leaf in leaves) - sum(map(self._shared, leaves[:-1], leaves[1:]))

    def _ruin(self) -> tuple[list[int], list[int]]:
        """Return a few windows, and their leaves in preorder."""
        wanted = min(2 + self._draw(_MOST_WINDOWS - 1), self._num)
        chosen: list[int] = []
        leaves: list[int] = []
        for _ in range(3 * wanted):
            window = self._pick(leaves)
            if window not in chosen and len(leaves) + len(self._windows[window]) <= _MOST_LEAVES:
                chosen.append(window)
                leaves += self._windows[window]
                if len(chosen) == wanted:
                    break
        return chosen, sorted(leaves)

    def _pick(self, leaves: list[int]) -> int:
        """Return a window to ruin: by slack among a few drawn, or one near a leaf that is ruined already."""
        if not leaves or self._draw(2) == 0:
            window = self._low + self._draw(self._num)
            for _ in range(_OTHER_DRAWS if leaves else _SEED_DRAWS):
                other = self._low + self._draw(self._num)
                if self._used[other] < self._used[window]:
                    window = other
            return window
        reach = _REACH << (2 * self._draw(_WIDENINGS))
        leaf = leaves[self._draw(len(leaves))] + self._draw(2 * reach + 1) - reach
        return self._window_of[min(max(leaf, self._first), self._stop - 1)]

    def _recreate(self, leaves: list[int], most: int, shatters: bool) -> list[list[int]] | None:
        """Return at most so many windows of these leaves, or None if they were not enough."""
        created: list[list[int]] = []
        pieces: list[_Piece] = [(self._union(leaves), 0, len(leaves))]
        fewest_rows = self._draw(4) == 0
        while pieces:
            at = max(range(len(pieces)), key=lambda at: pieces[at][0])  # the first of equals
            rows, start, stop = pieces[at]
            if shatters and stop - start > 1 and self._draw(4):
                pieces[at], right = self._cut(leaves, start, stop)
                pieces.append(right)
                continue
            place = self._find_place(created, leaves[start:stop], fewest_rows)
            may_open = place < 0 and rows <= self._seq_len and len(created) < most
            if may_open and (not created or stop - start == 1 or self._draw(2) == 0):
                place = len(created)
                created.append([])
            if place < 0 and stop - start == 1:
                return None
            if place < 0:
                pieces[at], right = self._cut(leaves, start, stop)
                pieces.append(right)
            else:
                for leaf in leaves[start:stop]:
                    insort(created[place], leaf)
                pieces[at] = pieces[-1]
                pieces.pop()
        return created + [[] for _ in range(most - len(created))]

    def _find_place(self, created: list[list[int]], piece: list[int], fewest_rows: bool) -> int:
        """Return the window where a piece leaves least room, or gains it fewest rows; -1 if it fits nowhere."""
        best, least = -1, self._seq_len + 1
        for place, window in enumerate(created):
            at = bisect_left(window, piece[0])
            near = window[max(at - 1, 0) : at + 1]  # all leaves of a window stand outside the piece's range
            added = self._union(sorted(near + piece)) - self._union(near)
            room = self._seq_len - self._union(window) - added
            key = added if fewest_rows else room
            if room >= 0 and key < least:
                best, least = place, key
        return best

    def _cut(self, leaves: list[int], start: int, stop: int) -> tuple[_Piece, _Piece]:
        """Return the halves of a piece, cut where least is shared, at any of the equals."""
        shared = [self._shared(leaves[at - 1], leaves[at]) for at in range(start + 1, stop)]
        cuts = [start + 1 + at for at, rows in enumerate(shared) if rows == min(shared)]
        cut = cuts[self._draw(len(cuts))]
        return (self._union(leaves[start:cut]), start, cut), (self._union(leaves[cut:stop]), cut, stop)

    def _commit(self, chosen: list[int], created: list[list[int]], used: list[int]) -> None:
        """Put the new windows in place of the ruined ones; where one is empty, the span's last takes its number."""
        for window, leaves, rows in zip(chosen, created, used, strict=True):
            self._windows[window], self._used[window] = leaves, rows
        moved = set(chosen)
        for window in sorted(chosen, reverse=True):
            if not self._windows[window]:
                self._num -= 1
                last = self._low + self._num
                self._used[window] = self._used[last]
                self._windows[window], self._windows[last] = self._windows[last], []
                moved.add(window)
        for window in moved:
            for leaf in self._windows[window]:
                self._window_of[leaf] = window
