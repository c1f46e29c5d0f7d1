"""Which implementation runs: plain Python and numpy, or compiled kernels. The result never depends on it.

A compiler costs seconds the first time and a third of a second from its cache; a small corpus is
done before that. So every packer has two implementations written by different methods, which are
also each other's oracle.
"""

from __future__ import annotations

from dagpack_cli.errors import UsageError
from dagpack_cli.trie.order import Engine

__all__ = ["KERNEL_THRESHOLD", "Engine", "uses_kernel"]

KERNEL_THRESHOLD = 50_000
"""Nodes or items from which ``auto`` compiles: the plain way takes well under a second below it."""


def uses_kernel(engine: Engine, size: int, threshold: int = KERNEL_THRESHOLD) -> bool:
    """Return whether an input of ``size`` nodes or items runs through a compiled kernel.

    Args:
        engine: ``auto`` decides by size, the others force one way.
        size: nodes or items of the input, >= 0.
        threshold: the first size that ``auto`` gives to a kernel.

    Raises:
        UsageError: ``engine`` is none of the three.

    >>> uses_kernel("auto", 10), uses_kernel("numba", 10)
    (False, True)
    """
    if engine not in ("auto", "numpy", "numba"):
        raise UsageError("engine", f"{engine!r}", "auto, numpy or numba")
    return engine == "numba" or (engine == "auto" and size >= threshold)
