"""How few windows, rows and attention edges any packing of a forest needs: the best proven lower bounds. Pure.

A packing may be taken to consist of whole root paths: assign each leaf to the window of its last
row, and no other packing has fewer windows, rows or attention edges. Let n(v) be the number of
windows that hold a leaf below v. Three bounds:

* Volume. Each of the n(v) windows spends the path down to v, so it has C(v) = seq_len - depth -
  length rows for what is below v. Bottom up, with w(v) <= n(v) and P(v) <= rows inside v's subtree:

      w(v) = max(1, ceil(sum over children P(c) / C(v)))
      P(v) = length(v) * w(v) + sum over children P(c)

  A term for the largest w(c) would change nothing: a child with w(c) > 1 has more than
  (w(c) - 1) * C(c) rows below it, so P(c) > (w(c) - 1) * C(v).
  Rounding up at every node is what makes it stronger than the linear relaxation. It generalises the
  minimum-classes inequalities of bin packing with setups (Baldacci et al., arXiv 2509.10075) to any
  depth. Bottom-up best fit uses at most 3 w(0) - 1 windows, or one.
* Profile (`profile_bound`). The same sweep, and how full how many of the windows must be.
* Dual (`dual_bound`). What the trees are worth to one window, one number for every size; for
  forests of tiny trees, where one to three of them fill a window.

A fourth, `covering_bound`, takes seconds and a packing to start from: `portfolio` asks for it where a
small forest's packing has more windows than the three prove.

Rows are at least P of the profile, attention edges at least w(v) times those of v's run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing.dual_bound import dual_bound
from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import Forest
from dagpack_cli.packing.profile_bound import profile_sweep, profile_totals

__all__ = ["Bound", "lower_bound", "node_windows", "volume_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What every packing needs at least; all 0 for an empty forest.

    Attributes:
        windows: windows, the largest of the four below.
        rows: rows summed over windows, repeated ones included.
        attention: attention edges summed over windows: depth + 1 a row.
        volume_windows: windows by the volume bound.
        profile_windows: windows by the profile bound, at least as many.
        dual_windows: windows by the dual bound, 0 where the forest has no tiny trees.
        covering_windows: windows by the covering bound, 0 where it was not asked for or proved no more than the others.
    """

    windows: int
    rows: int
    attention: int
    volume_windows: int = 0
    profile_windows: int = 0
    dual_windows: int = 0
    covering_windows: int = 0

    def covered(self, windows: int) -> Bound:
        """Return the bound with what the covering bound proves, 0 for nothing."""
        return replace(self, windows=max(self.windows, windows), covering_windows=windows)


def lower_bound(forest: Forest, seq_len: int, *, engine: Engine = "auto") -> Bound:
    """Return a proven lower bound on the windows, rows and attention edges of any packing.

    The three are bounds each on its own; no packing need reach all of them.

    Args:
        forest: n nodes; every root path has at most ``seq_len`` rows.
        seq_len: most rows a window may hold.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 5,000 nodes.

    Raises:
        TreeError: a root path is longer than ``seq_len``.

    Time O(n log n) unless hundreds of windows are below every node of a long spine, see
    `profile_bound.profile_sweep`; memory of the compiled way as `profile_bound.profile_totals`, so that a
    forest's columns may lie in files.

    >>> forest = Forest.from_parents(np.array([-1, 0, 0]), np.array([5, 2, 3]))
    >>> bound = lower_bound(forest, 9)
    >>> bound.windows, bound.rows, bound.attention
    (2, 15, 64)
    """
    forest.check_fits(seq_len)
    if forest.num_nodes == 0:
        return Bound(windows=0, rows=0, attention=0)
    volume = volume_bound(forest, seq_len, engine=engine)
    profile, rows, attention = profile_totals(forest, seq_len, engine=engine)
    dual = dual_bound(forest, seq_len)
    return Bound(
        windows=max(volume, profile, dual),
        rows=rows,
        attention=attention,
        volume_windows=volume,
        profile_windows=profile,
        dual_windows=dual,
    )


def node_windows(forest: Forest, seq_len: int, *, engine: Engine = "auto") -> npt.NDArray[np.int64]:
    """Return how many windows hold a leaf below each node, at least: shape (n,), int64, >= 1.

    Arguments, errors and time as `lower_bound`; memory O(n).

    >>> forest = Forest.from_parents(np.array([-1, 0, 0]), np.array([5, 2, 3]))
    >>> node_windows(forest, 9)
    array([2, 1, 1])
    """
    forest.check_fits(seq_len)
    return profile_sweep(forest, seq_len, engine=engine)[0][:-1]


def volume_bound(forest: Forest, seq_len: int, *, engine: Engine = "auto") -> int:
    """Return the windows that the volume bound alone proves.

    Arguments and errors as `lower_bound`; ``auto`` compiles from 50,000 nodes. Time O(n).
    """
    forest.check_fits(seq_len)
    if uses_kernel(engine, forest.num_nodes):
        from dagpack_cli.packing import kernels_bound

        return int(kernels_bound.volume_bound(forest.parents, forest.lengths, forest.depths, seq_len))
    num = forest.num_nodes
    below = [0] * (num + 1)  # the sum of P over a node's children; last the super-root's
    columns = zip(forest.parents.tolist(), forest.lengths.tolist(), forest.depths.tolist(), strict=True)
    for node, (parent, length, depth) in reversed(list(enumerate(columns))):
        # Only a leaf may reach seq_len; it has nothing below, so any divisor will do.
        room = max(seq_len - depth - length, 1)
        windows = max(1, -(-below[node] // room))
        below[parent if parent >= 0 else num] += length * windows + below[node]
    return -(-below[num] // seq_len)
