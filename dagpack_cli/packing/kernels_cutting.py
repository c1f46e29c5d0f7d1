"""The compiled sweeps of `cutting`, each over arrays that may lie in files. Their plain twins say what they compute."""

from __future__ import annotations

from dagpack_cli.packing.kernels import Int32s, kernel

__all__ = ["fill_ends", "find_nearest", "raise_needs"]


@kernel
def raise_needs(needs: Int32s, parents: Int32s) -> None:
    """Raise the need of every node to the largest below it. O(n)."""
    for node in range(len(needs) - 1, -1, -1):
        parent = parents[node]
        if parent >= 0 and needs[parent] < needs[node]:
            needs[parent] = needs[node]


@kernel
def find_nearest(found: Int32s, numbers: Int32s, parents: Int32s) -> None:
    """Fill in the deepest node at or above each one whose number is not -1, or -1. O(n)."""
    for node in range(len(found)):
        if numbers[node] >= 0:
            found[node] = node
        else:
            found[node] = found[parents[node]] if parents[node] >= 0 else -1


@kernel
def fill_ends(ends: Int32s, parents: Int32s) -> None:
    """Fill in the exclusive subtree ends of a preorder forest, given parents; ``ends`` are all 0 before. O(n)."""
    for node in range(len(ends) - 1, -1, -1):
        if ends[node] == 0:
            ends[node] = node + 1
        parent = parents[node]
        if parent >= 0 and ends[parent] < ends[node]:
            ends[parent] = ends[node]
