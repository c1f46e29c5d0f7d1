"""Best fit of whole paths as if nothing were shared, then shared inside each window. Pure.

What a packer without a trie groups is a packing too: rows that the paths of a window share are in
it once, so it has the windows of `chains.best_fit_decreasing` and fewer rows. A portfolio that
holds it is never worse than not merging at all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dagpack_cli.packing.chains import best_fit_decreasing
from dagpack_cli.packing.engine import Engine
from dagpack_cli.packing.forest import Forest

__all__ = ["best_fit_apart"]


def best_fit_apart(forest: Forest, seq_len: int, *, engine: Engine = "auto") -> npt.NDArray[np.int64]:
    """Return the window of each leaf by best fit decreasing on the lengths of whole paths.

    Args:
        forest: n nodes; every root path has at most ``seq_len`` rows.
        seq_len: most rows a window may hold.
        engine: see `dagpack_cli.packing.engine`; ``auto`` compiles from 50,000 leaves.

    Returns:
        shape (num_leaves,), int64, aligned with ``forest.leaves``; windows are numbered by their
        first leaf in preorder.

    Raises:
        TreeError: a root path is longer than ``seq_len``.

    Time O(n + m log m) for m leaves, memory O(n).

    >>> forest = Forest.from_parents(np.array([-1, 0, 0]), np.array([5, 2, 3]))
    >>> best_fit_apart(forest, 10), best_fit_apart(forest, 15)
    (array([0, 1]), array([0, 0]))
    """
    forest.check_fits(seq_len)
    leaves = forest.leaves
    return best_fit_decreasing(forest.depths[leaves] + forest.lengths[leaves], seq_len, engine=engine)
