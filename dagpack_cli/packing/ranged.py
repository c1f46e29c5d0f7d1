"""Packing of layout dag for a forest of any size: whole where it is small, else range by range. Pure.

What `portfolio` holds grows with the nodes of a forest, so a large one is packed in `ranges`, one after the
other. The emptiest window of a range is taken up into the next one, where its leaves are packed again: so free room
is left in the last range alone, however few windows a range has. The windows are those of the whole forest:
a path that two ranges share is repeated like any other that windows share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, give_back
from dagpack_cli.packing.bound import Bound, lower_bound
from dagpack_cli.packing.engine import Engine
from dagpack_cli.packing.forest import Forest
from dagpack_cli.packing.leaf_order import Cost
from dagpack_cli.packing.placement import Placement, are_first, join_placements, place_leaves
from dagpack_cli.packing.portfolio import Strategy, pack_leaves
from dagpack_cli.packing.ranges import RANGE_NODES, range_starts, take_range

__all__ = ["PackedForest", "pack_forest", "place_by_range"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedForest:
    """What stands in which window, and what it was chosen from.

    Attributes:
        placement: of all windows.
        strategy: what made the packing; ``ranges`` where it was made range by range.
        costs: what each rule that was tried needs, in the order of trying; of ranges what all windows need.
        bound: what any packing needs at least, one without ranges included.
    """

    placement: Placement
    strategy: Strategy
    costs: dict[Strategy, Cost]
    bound: Bound


def pack_forest(
    forest: Forest,
    seq_len: int,
    *,
    polish: int | None = None,
    engine: Engine = "auto",
    zeros: Zeros = np.zeros,
    range_nodes: int = RANGE_NODES,
) -> PackedForest:
    """Return the best packing that a few rules and a polish find, and the bound that it stands beside.

    Args:
        forest: n nodes, whose columns may lie in files; every root path has at most ``seq_len`` rows.
        seq_len: most rows a window may hold.
        polish: as for `portfolio.pack_leaves`.
        engine: see `dagpack_cli.packing.engine`.
        zeros: makes the placement.
        range_nodes: nodes of a range; a forest of no more is packed whole.

    Raises:
        TreeError: a root path is longer than ``seq_len``.
        UsageError: ``polish`` is below 0.

    Time O(n log n) and the polish; memory that of `portfolio.pack_leaves` for a range, and of one window.

    >>> forest = Forest.from_parents(np.array([-1, 0, 0, 0, 0]), np.array([5, 2, 3, 1, 2]))
    >>> pack_forest(forest, 9, range_nodes=2).placement.windows
    array([0, 0, 0, 1, 1, 1])
    """
    if forest.num_nodes <= range_nodes:
        packed = pack_leaves(forest, seq_len, polish=polish, engine=engine)
        placement = place_leaves(forest, packed.leaf_windows, engine=engine)
        return PackedForest(placement=placement, strategy=packed.strategy, costs=packed.costs, bound=packed.bound)
    bound = lower_bound(forest, seq_len, engine=engine)
    share = len(range_starts(forest, range_nodes)) - 1
    cost = Cost(windows=0, rows=0, attention=0)

    def pack(part: Forest, _: Int64s) -> Int64s:
        return pack_leaves(part, seq_len, polish=polish, share=share, engine=engine).leaf_windows

    def counted() -> Iterator[Placement]:
        nonlocal cost
        for part in place_by_range(forest, seq_len, pack, engine=engine, zeros=zeros, range_nodes=range_nodes):
            rows, depths = part.ends, forest.depths[part.nodes]
            edges = int((rows * depths + rows * (rows + 1) // 2).sum())
            cost = Cost(
                windows=cost.windows + part.num_windows,
                rows=cost.rows + int(rows.sum()),
                attention=cost.attention + edges,
            )
            yield part

    placement = join_placements(counted(), zeros)
    return PackedForest(placement=placement, strategy="ranges", costs={"ranges": cost}, bound=bound)


def place_by_range(
    forest: Forest,
    seq_len: int,
    pack: Callable[[Forest, Int64s], Int64s],
    *,
    engine: Engine = "auto",
    zeros: Zeros = np.zeros,
    range_nodes: int = RANGE_NODES,
) -> Iterator[Placement]:
    """Yield the windows that some packer makes, range after range, each part's numbered from 0.

    Args:
        forest: n nodes, whose columns may lie in files.
        seq_len: most rows a window may hold.
        pack: returns the window of each leaf, given the forest of a range and which leaves of the whole one, by
            node, these are.
        engine: see `dagpack_cli.packing.engine`.
        zeros: makes a byte for every node.
        range_nodes: nodes of a range; a forest of no more is one.
    """
    if forest.num_nodes <= range_nodes:
        yield place_leaves(forest, pack(forest, forest.leaves), engine=engine)
        return
    seen = zeros(forest.num_nodes, np.bool_)
    waiting = np.zeros(0, dtype=np.int64)  # leaves of the window that the next range takes up
    for first, last in pairwise(range_starts(forest, range_nodes)):
        part = take_range(forest, first, last, waiting, engine=engine)
        leaves = part.nodes[part.forest.leaves]
        leaf_windows = pack(part.forest, leaves)
        placement = place_leaves(part.forest, leaf_windows, engine=engine)
        if last < forest.num_nodes:
            placement, window = _set_aside(placement, seq_len)
            waiting = leaves[leaf_windows == window]
        nodes = part.nodes[placement.nodes]
        new = are_first(placement.windows, placement.nodes, part.forest.num_nodes) & ~seen[nodes]
        seen[nodes] = True
        placement = replace(placement, nodes=nodes.astype(np.int32), fresh=np.where(new, 0, placement.ends))
        del part, leaves, leaf_windows, nodes, new
        give_back()
        yield placement


def _set_aside(placement: Placement, seq_len: int) -> tuple[Placement, int]:
    """Return a placement without its emptiest window, and the number that that had; -1 if all are full."""
    rows = np.zeros(placement.num_windows, dtype=np.int64)
    np.add.at(rows, placement.windows, placement.ends)
    window = int(np.argmin(rows))
    if rows[window] >= seq_len:
        return placement, -1
    stays = placement.windows != window
    windows = placement.windows[stays]
    kept = Placement(
        windows=windows - (windows > window),
        nodes=placement.nodes[stays],
        ends=placement.ends[stays],
        fresh=placement.fresh[stays],
        num_windows=placement.num_windows - 1,
    )
    return kept, window
