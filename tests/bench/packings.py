"""What every packer makes of one forest, and what it costs to find out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing import Cost, Forest, Packed, best_fit_apart, first_fit, lower_bound, pack_leaves, walk_forest
from dagpack_cli.packing.polish import count_ruins

from .measure import added_memory, cpu_seconds

__all__ = ["Figures", "measure_packers", "warm_packers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Windows that each packer needs for one forest, and what our own costs.

    Attributes:
        nodes: of the forest.
        packed: our packing, polished where that is advised or asked for.
        rules: the rules' costs, none of them polished.
        walk: windows of the depth-first walk.
        first_fit: windows of sharing-aware first fit in input order.
        shuffled: windows of sharing-aware first fit in random order.
        apart: windows of best fit without an eye to sharing.
        bound_seconds: CPU of the bound.
        pack_seconds: CPU of the rules, the bound included.
        polish_seconds: CPU of the polish.
        megabytes: the most memory that packing held above the forest.
    """

    nodes: int
    packed: Packed
    rules: dict[str, Cost]
    walk: int
    first_fit: int
    shuffled: int
    apart: int
    bound_seconds: float
    pack_seconds: float
    polish_seconds: float
    megabytes: float

    @property
    def best_fit(self) -> int:
        """Windows of bottom-up best fit."""
        return self.rules["best fit"].windows

    @property
    def eliminated(self) -> int:
        """Windows of the better of best fit and best fit with elimination, which is left out at the bound."""
        return min(self.rules[name].windows for name in ("best fit", "elimination") if name in self.rules)

    @property
    def portfolio(self) -> int:
        """Windows of the best rule."""
        return min(cost.windows for cost in self.rules.values())


def measure_packers(forest: Forest, seq_len: int, *, polish: int | None = None) -> Figures:
    """Return what the packers make of a forest whose input order is its preorder.

    Args:
        forest: n nodes; every root path has at most ``seq_len`` rows.
        seq_len: most rows of a window.
        polish: as of `pack_leaves`.
    """
    bound_seconds, bound = cpu_seconds(lambda: lower_bound(forest, seq_len))
    megabytes, (pack_seconds, packed) = added_memory(
        partial(cpu_seconds, lambda: pack_leaves(forest, seq_len, polish=0))
    )
    rules, polish_seconds = {str(name): cost for name, cost in packed.costs.items()}, 0.0
    if count_ruins(packed.cost.windows, bound.windows, polish):
        more, (seconds, packed) = added_memory(
            partial(cpu_seconds, lambda: pack_leaves(forest, seq_len, polish=polish))
        )
        megabytes, polish_seconds = max(megabytes, more), max(seconds - pack_seconds, 0.0)
    shuffled = np.random.default_rng(5).permutation(len(forest.leaves))
    return Figures(
        nodes=forest.num_nodes,
        packed=packed,
        rules=rules,
        walk=walk_forest(forest, seq_len).num_windows,
        first_fit=_num_windows(first_fit(forest, seq_len, "given")),
        shuffled=_num_windows(first_fit(forest, seq_len, shuffled)),
        apart=_num_windows(best_fit_apart(forest, seq_len)),
        bound_seconds=bound_seconds,
        pack_seconds=pack_seconds,
        polish_seconds=polish_seconds,
        megabytes=megabytes,
    )


def warm_packers() -> None:
    """Compile every packer's kernel before anything is measured."""
    forest = Forest.from_parents(np.array([-1, 0, 0, 0, 0]), np.array([3, 3, 3, 3, 3]))
    pack_leaves(forest, 7, polish=1_000, engine="numba")
    walk_forest(forest, 7, engine="numba")
    first_fit(forest, 7, "given", engine="numba")
    best_fit_apart(forest, 7, engine="numba")


def _num_windows(windows: npt.NDArray[np.int64]) -> int:
    return int(windows.max(initial=-1)) + 1
