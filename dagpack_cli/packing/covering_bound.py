"""The covering bound: how many windows it takes to cover a small forest, even if they could be fractions. Pure.

Give every leaf a price, whole and not negative, and every node v that `profile_bound` proves to
be in w(v) windows at least another. A packing's windows hold every leaf once and v at least w(v)
times, so together they are worth at least the sum of price(v) w(v), w of a leaf being 1; and none is worth
more than the dearest of all (`dearest_window`). Hence, for all prices,

    windows >= ceil(sum of price(v) w(v) / worth of the dearest window)

The best prices prove the linear relaxation of set covering by windows (Gilmore and Gomory,
Operations Research 1961), with the profile bound's claims as further rows. However they were found,
what they prove is computed exactly.

They are looked for as by a bundle method (Lemarechal, Nemirovskii and Nesterov, Mathematical
Programming 1995). Of the windows known so far, at first those of a packing, none may be worth more than
one unit, while all rows together shall be worth a little more than the windows proven so far. The prices
are projected onto that, the dearest window for them joins those known, and so on. If the known
windows, in the proportions that the projection gives them, cover all rows with no more windows than are
proven, no prices prove more, and the search ends. All of it is in integers and counted in steps: the
same forest and packing give the same bound on every machine.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import TreeError
from dagpack_cli.packing.dearest_window import COVERING_THRESHOLD, Tables, dearest_window
from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import Forest
from dagpack_cli.packing.profile_bound import profile_sweep

__all__ = ["MOST_CELLS", "MOST_LEAVES", "covering_bound"]

Int64s = npt.NDArray[np.int64]

MOST_LEAVES = 400
"""Leaves of the largest forest that it is computed for: with more, hundreds of dearest windows prove nothing yet."""
MOST_CELLS = 2**23
"""Nodes times rows of a window of the largest forest that it is computed for, runs without a fork being joined."""

_ALL_CELLS = 2**30  # nodes times rows of a window times dearest windows: two or three seconds
_MOST_WINDOWS = 600  # dearest windows
_WINDOWS_PER_LEAF = 3  # dearest windows, and 32 more; what is ever proven takes one or two a leaf
_MOST_SWEEPS = 100  # of a projection
_ALL_ITEMS = 2**27  # entries of known windows that all projections look at: half a second
_UNIT = 2**30  # price of a window
_SCALE = 2**14  # of the steps' divisors
_MARGIN = _UNIT // 64  # how much more than what is proven the rows shall be worth
_NEARLY = 128  # one part of a window in so many is not worth a search
_ROUGHEST, _FINEST = 14, 24  # powers of 1/2: how much more than a unit a known window may be worth


class _State(NamedTuple):
    """Prices, and what they were moved by since the first ones; kernels take it as it is.

    Attributes:
        prices: shape (r,), int64; of each row.
        needs: shape (r,), int64, >= 1; windows that hold each row's node, at least.
        shifts: shape (r,), int64, >= 0; by what each was kept from falling below 0.
        steps: shape (windows,), int64; divisors: the sum over a window's rows of `_SCALE` / need.
        weights: shape (windows,), int64, >= 0; by what each window pushed its rows' prices down, times their needs.
        rise: shape (1,), int64, >= 0; by what all were raised for the sake of their sum.
    """

    prices: Int64s
    needs: Int64s
    shifts: Int64s
    steps: Int64s
    weights: Int64s
    rise: Int64s


class _Known(NamedTuple):
    """The windows known so far: rows of window i are ``items[starts[i]:starts[i + 1]]``."""

    starts: Int64s
    items: Int64s


def covering_bound(
    forest: Forest, seq_len: int, leaf_windows: Int64s, *, proven: int = 0, engine: Engine = "auto"
) -> int:
    """Return the windows that any packing needs by the covering bound; 0 if nothing is gained or it takes too long.

    It takes too long for a forest of more than `MOST_LEAVES` leaves or `MOST_CELLS` nodes times rows.

    Args:
        forest: n nodes with m leaves; every root path has at most ``seq_len`` rows.
        seq_len: most rows a window may hold.
        leaf_windows: shape (m,), int64; a packing, whose windows are the first to be known. It changes what
            is found, not whether it is true.
        proven: windows known to be needed; the search looks for more.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 48 nodes.

    Raises:
        TreeError: a root path is longer than ``seq_len``, or not one window a leaf.

    Time at most 2^30 steps of the dearest window and 2^27 of projections, two or three seconds; memory 12 bytes a cell.

    Any two of three equal leaves fit into a window: half a window each proves one and a half.

    >>> forest = Forest.from_parents(np.array([-1, -1, -1]), np.array([5, 5, 5]))
    >>> covering_bound(forest, 10, np.array([0, 0, 1]), proven=1)
    2
    """
    forest.check_fits(seq_len)
    if leaf_windows.shape != forest.leaves.shape:
        raise TreeError("leaf_windows", f"shape {leaf_windows.shape}", f"{forest.leaves.shape}, one entry a leaf")
    if len(leaf_windows) > MOST_LEAVES or int(leaf_windows.max(initial=-1)) + 1 <= proven:
        return 0
    joined, size = _joined(forest, seq_len)
    if joined.num_nodes * (size + 1) > MOST_CELLS:
        return 0
    return _Search(joined, size, leaf_windows, engine).prove_more(proven)


def _joined(forest: Forest, seq_len: int) -> tuple[Forest, int]:
    """Return a forest with the same windows, only children joined to parents, and their length, in common units."""
    parents = forest.parents
    only = (parents >= 0) & (np.bincount(parents[parents >= 0], minlength=len(parents))[parents] == 1)
    numbers = np.cumsum(~only) - 1
    lengths = np.zeros(int(numbers[-1]) + 1, dtype=np.int64)
    np.add.at(lengths, numbers, forest.lengths)
    above = parents[~only]
    unit = max(int(np.gcd.reduce(lengths)), 1)
    return Forest.from_parents(np.where(above < 0, -1, numbers[above]), lengths // unit), seq_len // unit


class _Search:
    """The search for prices; see the module's docstring."""

    def __init__(self, forest: Forest, seq_len: int, leaf_windows: Int64s, engine: Engine) -> None:
        self._engine: Engine = engine
        self._use_kernel = uses_kernel(engine, forest.num_nodes, COVERING_THRESHOLD)
        self._tables = Tables.of(forest, seq_len)
        needs = profile_sweep(forest, seq_len, engine=engine)[0][:-1]
        below = np.zeros(forest.num_nodes, dtype=np.int64)  # the largest need of a child
        inner = forest.parents >= 0
        np.maximum.at(below, forest.parents[inner], needs[inner])
        # Where a child needs as many, or one window is all that is known, rows further down say it.
        self._rows = np.flatnonzero((needs > np.maximum(below, 1)) | (below == 0))
        self._row_of = np.full(forest.num_nodes, -1)
        self._row_of[self._rows] = np.arange(len(self._rows))
        self._seen: set[bytes] = set()
        self._most = min(
            _MOST_WINDOWS, 32 + _WINDOWS_PER_LEAF * len(leaf_windows), _ALL_CELLS // self._tables.taken.size
        )
        # A packing of at most one window a leaf, and no window holds a row twice.
        most = len(leaf_windows) + self._most
        self._known = _Known(np.zeros(most + 1, dtype=np.int64), np.zeros(most * len(self._rows), dtype=np.int64))
        zeros = [np.zeros(size, dtype=np.int64) for size in (len(self._rows), most, most, 1)]
        # First the volume bound's prices: a row below a node is worth its part of the room there.
        prices = _UNIT * forest.lengths // np.maximum(self._tables.rooms, 1)
        prices[below > 0] = 0
        self._state = _State(prices[self._rows], needs[self._rows], *zeros)
        for nodes in _windows_of(forest, leaf_windows):
            self._learn(nodes)

    def _learn(self, nodes: Int64s) -> bool:
        """Add a window, given by its nodes, to those known; return whether it is new."""
        rows = self._row_of[nodes]
        rows = rows[rows >= 0]
        if rows.tobytes() in self._seen:
            return False
        num = len(self._seen)
        self._seen.add(rows.tobytes())
        start, stop = int(self._known.starts[num]), int(self._known.starts[num]) + len(rows)
        self._known.items[start:stop] = rows
        self._known.starts[num + 1] = stop
        self._state.steps[num] = (_SCALE // self._state.needs[rows]).sum()
        return True

    def prove_more(self, proven: int) -> int:
        """Return the windows that the search proves, or 0 if no more than ``proven``."""
        best, items, fineness = proven, 0, _ROUGHEST
        for _ in range(self._most):
            items += self._project(best, _UNIT >> fineness)
            # One more than the price, so that the dearest window is filled up with leaves that are worth nothing.
            prices = np.zeros(len(self._row_of), dtype=np.int64)
            prices[self._rows] = np.maximum(self._state.prices, 0) + 1
            worth, nodes = dearest_window(self._tables, prices, engine=self._engine)
            bound = -(-int((prices[self._rows] * self._state.needs).sum()) // worth)
            best = max(best, bound)
            if items > _ALL_ITEMS or self._is_covered(best):
                break
            if not self._learn(nodes):
                fineness = min(fineness + 1, _FINEST)
        return best if best > proven else 0

    def _project(self, proven: int, tolerance: int) -> int:
        """Move the prices towards what the known windows allow and ``proven`` asks for; return the items looked at."""
        limits = (_UNIT, proven * _UNIT + _MARGIN, tolerance, _MOST_SWEEPS, _SCALE)
        num = len(self._seen)
        if self._use_kernel:
            from dagpack_cli.packing import kernels_covering

            return int(kernels_covering.project(self._state, *self._known, num, limits))
        return _project(self._state, self._known, num, limits)

    def _is_covered(self, proven: int) -> bool:
        """Return whether the known windows, in fractions, cover all rows with next to no more than ``proven`` windows.

        Then no prices prove more, or not by enough to be found: where the best ones prove a whole
        number, coverings only come close to it.
        """
        num = len(self._seen)
        weights = self._state.weights[:num]
        covers = np.zeros(len(self._rows), dtype=np.int64)
        sizes = np.diff(self._known.starts[: num + 1])
        np.add.at(covers, self._known.items[: int(sizes.sum())], np.repeat(weights, sizes))
        total = int(weights.sum())
        rows = zip(covers.tolist(), self._state.needs.tolist(), strict=True)
        enough = proven * _NEARLY + 1
        return total > 0 and all(cover * enough >= need * total * _NEARLY for cover, need in rows)


def _windows_of(forest: Forest, leaf_windows: Int64s) -> list[Int64s]:
    """Return the nodes of each window of a packing, ascending."""
    parents = forest.parents.tolist()
    windows: list[set[int]] = [set() for _ in range(int(leaf_windows.max()) + 1)]
    for leaf, number in zip(forest.leaves.tolist(), leaf_windows.tolist(), strict=True):
        node = leaf
        while node >= 0 and node not in windows[number]:
            windows[number].add(node)
            node = parents[node]
    return [np.array(sorted(nodes), dtype=np.int64) for nodes in windows]


def _project(state: _State, known: _Known, num: int, limits: tuple[int, int, int, int, int]) -> int:
    """Move the prices towards the nearest to the first ones that obey all of three things; in place.

    No known window is worth more than a unit, no price is below 0, all together are worth the goal:
    Hildreth's method (Naval Research Logistics Quarterly 1957), which takes one condition at a time,
    moves the prices onto it, or back as far as it moved them before. A row that is needed k times moves by a k-th.

    Args:
        state: overwritten.
        known: windows.
        num: of them, >= 1.
        limits: the unit, the goal, by how much a condition may be missed, most sweeps, the scale of ``steps``.

    Returns:
        items: of windows looked at.
    """
    unit, goal, tolerance, most_sweeps, scale = limits
    prices, needs, shifts, steps, weights, _ = (column.tolist() for column in state)
    rise, total_needs = int(state.rise[0]), sum(needs)
    starts: list[int] = known.starts[: num + 1].tolist()
    windows = [known.items[low:high].tolist() for low, high in pairwise(starts)]
    sweeps = 0
    for _ in range(most_sweeps):
        sweeps += 1
        worst = 0
        for number, rows in enumerate(windows):
            excess = sum([prices[row] for row in rows]) - unit
            worst = max(worst, excess)
            change = max(excess * scale // steps[number], -weights[number])
            if change:
                weights[number] += change
                for row in rows:
                    prices[row] -= change // needs[row]
        lifts = [max(-price, -shift) for price, shift in zip(prices, shifts, strict=True)]
        shifts = [shift + lift for shift, lift in zip(shifts, lifts, strict=True)]
        # No price above a unit is any good; the limit keeps numbers small whatever happens.
        prices = [min(price + lift, 2 * unit) for price, lift in zip(prices, lifts, strict=True)]
        value = sum(need * price for need, price in zip(needs, prices, strict=True))
        change = max((goal - value) // total_needs, -rise)
        rise += change
        prices = [price + change for price in prices]
        if worst <= tolerance and change <= tolerance:
            break
    for column, found in zip(state, (prices, needs, shifts, steps, weights, [rise]), strict=True):
        column[:] = found
    return sweeps * starts[-1]
