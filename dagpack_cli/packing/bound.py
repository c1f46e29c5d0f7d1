"""How few windows, rows and attention edges any packing of a forest needs: a proven lower bound. Pure.

The recursive volume bound. Let n(v) be the number of windows that hold a leaf below v, in a packing
of whole root paths (which no other packing beats: assign each leaf to the window of its last row).
Each of them spends the path down to v, so it has C(v) = seq_len - depth - length rows for what is
below v. Bottom up, with w(v) <= n(v) and P(v) <= rows inside v's subtree, summed over windows:

    w(v) = max(1, ceil(sum over children P(c) / C(v)))
    P(v) = length(v) * w(v) + sum over children P(c)

A term for the largest w(c) would change nothing: a child with w(c) > 1 has more than
(w(c) - 1) * C(c) rows below it, so P(c) > (w(c) - 1) * C(v).
Rounding up at every node is what makes it stronger than the linear relaxation. It generalises the
minimum-classes inequalities of bin packing with setups (Baldacci et al., arXiv 2509.10075) to any
depth. Bottom-up best fit uses at most 3 w(0) - 1 windows, or one.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagpack_cli.packing.engine import Engine, uses_kernel
from dagpack_cli.packing.forest import Forest

__all__ = ["Bound", "lower_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What every packing needs at least; all 0 for an empty forest.

    Attributes:
        windows: windows.
        rows: rows summed over windows, repeated ones included.
        attention: attention edges summed over windows: depth + 1 a row.
    """

    windows: int
    rows: int
    attention: int


def lower_bound(forest: Forest, seq_len: int, *, engine: Engine = "auto") -> Bound:
    """Return a proven lower bound on the windows, rows and attention edges of any packing.

    The three are bounds each on its own; no packing need reach all of them.

    Args:
        forest: n nodes; every root path has at most ``seq_len`` rows.
        seq_len: most rows a window may hold.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 nodes.

    Raises:
        TreeError: a root path is longer than ``seq_len``.

    Time and memory O(n).

    >>> import numpy as np
    >>> forest = Forest.from_parents(np.array([-1, 0, 0]), np.array([5, 2, 3]))
    >>> lower_bound(forest, 9)
    Bound(windows=2, rows=15, attention=64)
    """
    forest.check_fits(seq_len)
    if forest.num_nodes == 0:
        return Bound(windows=0, rows=0, attention=0)
    if uses_kernel(engine, forest.num_nodes):
        from dagpack_cli.packing import kernels

        windows, rows, attention = kernels.volume_bound(forest.parents, forest.lengths, forest.depths, seq_len)
        return Bound(windows=int(windows), rows=int(rows), attention=int(attention))
    return _plain_bound(forest, seq_len)


def _plain_bound(forest: Forest, seq_len: int) -> Bound:
    """Return the bound by one backward sweep over lists; the entry after the last node is the super-root's."""
    num = forest.num_nodes
    below = [0] * (num + 1)  # the sum of P over a node's children
    attention = 0
    columns = zip(forest.parents.tolist(), forest.lengths.tolist(), forest.depths.tolist(), strict=True)
    for node, (parent, length, depth) in reversed(list(enumerate(columns))):
        # Only a leaf may reach seq_len; it has nothing below, so any divisor will do.
        room = max(seq_len - depth - length, 1)
        windows = max(1, -(-below[node] // room))
        attention += windows * (length * depth + length * (length + 1) // 2)
        above = parent if parent >= 0 else num
        below[above] += length * windows + below[node]
    return Bound(windows=-(-below[num] // seq_len), rows=below[num], attention=attention)
