"""The packer of layout dag: several ways, the best one kept, then polished, with the bound beside it. Pure.

No single rule is best: bottom-up best fit is at the bound on web text, code and preference pairs,
first fit with the longest leaf first on agents' long trunks. Each is cheap against reading the
corpus, so all are tried, in this order:

    best fit            `bundle`: at most 3 w - 1 windows, w being the volume bound, or one
    elimination         `eliminate`: the same, dissolving its emptiest windows
    closed walk         `closed_walk`: leaves in preorder, so never worse than the walk
    no sharing          best fit on whole paths as if they shared nothing: never worse than that either
    first fit           `first_fit`, longest leaf first
    least added         `first_fit`, longest leaf first, where most is shared

Where the bound on windows is reached, elimination and the last two, which cost most, are left out;
where the rows are at their bound too, all that follow are. Fewer windows win, then fewer rows, then fewer
attention edges, then the earlier rule. `polish` then works on the winner, for as many steps as take
ten CPU seconds or so, in forests of more than a million leaves as many as take about as long as all
the rules. Where a gap is left and the forest is small, `covering_bound` looks for a better bound. All of it
holds some 260 bytes a node, so `ranged` gives it larger forests in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing.bound import Bound, lower_bound, node_windows
from dagpack_cli.packing.bundle import bundle_leaves
from dagpack_cli.packing.chains import best_fit_decreasing
from dagpack_cli.packing.closed_walk import closed_walk
from dagpack_cli.packing.covering_bound import covering_bound
from dagpack_cli.packing.eliminate import eliminate_bundles
from dagpack_cli.packing.engine import Engine
from dagpack_cli.packing.first_fit import first_fit
from dagpack_cli.packing.forest import Forest
from dagpack_cli.packing.leaf_order import Cost, LeafOrder, number_by_first, packing_cost
from dagpack_cli.packing.polish import count_ruins, polish_windows

__all__ = ["Packed", "Strategy", "pack_leaves"]

Int64s = npt.NDArray[np.int64]
Strategy = Literal[
    "best fit", "elimination", "closed walk", "no sharing", "first fit", "least added", "polish", "ranges"
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """A packing and what it was chosen from.

    Attributes:
        leaf_windows: shape (m,), int64, aligned with ``forest.leaves``; windows numbered by their first leaf.
        strategy: what made the packing; ``polish`` where polishing what the rules gave gained something.
        costs: what each rule that was tried needs, in the order of trying; with ``polish`` last if it was tried.
        bound: what any packing needs at least.
    """

    leaf_windows: Int64s
    strategy: Strategy
    costs: dict[Strategy, Cost]
    bound: Bound

    @property
    def cost(self) -> Cost:
        """Return what the packing needs."""
        return self.costs[self.strategy]


def pack_leaves(
    forest: Forest,
    seq_len: int,
    *,
    polish: int | None = None,
    seed: int = 0,
    share: int = 1,
    engine: Engine = "auto",
) -> Packed:
    """Return the best packing that a few rules and a polish find, and the bound that it stands beside.

    The windows are never more than those of the walk closed at whole leaves, of best fit on whole
    paths without sharing, or than 3 w - 1 for the volume bound w (or one window, if all fits).

    Args:
        forest: n nodes with m leaves; every root path has at most ``seq_len`` rows.
        seq_len: most rows a window may hold.
        polish: ruins per window, 0 for none; None is a budget that depends on windows, bound and
            leaves, see `polish.count_ruins` and `polish.polish_windows`.
        seed: of the polish, any integer.
        share: of how many forests this is one, which have the default budget of polishing together.
        engine: see `dagpack_cli.packing.engine`; every rule compiles from its own size on.

    Raises:
        TreeError: a root path is longer than ``seq_len``.
        UsageError: ``polish`` is below 0.

    Time O(n log n) and the polish, memory O(n + m log m). The same arguments give the same result.

    >>> forest = Forest.from_parents(np.array([-1, 0, 0, 0, 0]), np.array([5, 2, 3, 1, 2]))
    >>> packed = pack_leaves(forest, 9)
    >>> packed.leaf_windows, packed.strategy, packed.cost.windows, packed.bound.windows
    (array([0, 1, 1, 0]), 'best fit', 2, 2)
    """
    bound = lower_bound(forest, seq_len, engine=engine)
    count_ruins(0, 0, polish)  # refuses a bad number before anything is done
    order = LeafOrder.of(forest)
    costs: dict[Strategy, Cost] = {}
    strategy: Strategy = "best fit"
    best = np.zeros(0, dtype=np.int64)
    for name, windows in _candidates(forest, seq_len, order, bound, costs, engine):
        costs[name] = packing_cost(order, windows, engine=engine)
        if name == "best fit" or costs[name].key < costs[strategy].key:
            strategy, best = name, windows
    ruins = count_ruins(costs[strategy].windows, bound.windows, polish)
    if ruins:
        fewest = bound.windows
        windows = polish_windows(
            order,
            best,
            seq_len,
            ruins=ruins,
            fewest=fewest,
            seed=seed,
            share=None if polish is not None else share,
            engine=engine,
        )
        costs["polish"] = packing_cost(order, windows, engine=engine)
        if costs["polish"].key < costs[strategy].key:
            strategy, best = "polish", windows
    # Nothing but a proof is to be had: windows beyond the bound are usually the bound's fault.
    bound = bound.covered(covering_bound(forest, seq_len, best, proven=bound.windows, engine=engine))
    return Packed(leaf_windows=best, strategy=strategy, costs=costs, bound=bound)


def _candidates(
    forest: Forest, seq_len: int, order: LeafOrder, bound: Bound, costs: dict[Strategy, Cost], engine: Engine
) -> Iterator[tuple[Strategy, Int64s]]:
    """Yield rules' names and packings while those before, whose ``costs`` are filled in, left something to gain."""

    def eliminated() -> Int64s:
        fewest = np.append(node_windows(forest, seq_len, engine=engine), bound.windows)
        return eliminate_bundles(forest, seq_len, order=order, fewest=fewest, engine=engine)

    rules: list[tuple[Strategy, bool, Callable[[], Int64s]]] = [
        ("best fit", False, lambda: bundle_leaves(forest, seq_len, engine=engine)),
        ("elimination", True, eliminated),
        ("closed walk", False, lambda: closed_walk(forest, seq_len)),
        ("no sharing", False, lambda: number_by_first(best_fit_decreasing(order.rows, seq_len, engine=engine))),
        ("first fit", True, lambda: first_fit(forest, seq_len, "longest", "first", engine=engine)),
        ("least added", True, lambda: first_fit(forest, seq_len, "longest", "least-added", engine=engine)),
    ]
    for name, is_dear, pack in rules:
        reached = any(cost.windows <= bound.windows for cost in costs.values())
        if reached and (is_dear or any(cost.key[:2] <= (bound.windows, bound.rows) for cost in costs.values())):
            continue
        yield name, pack()
