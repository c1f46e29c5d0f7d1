"""Which nodes of a tree too large to draw are drawn: the heaviest first, each below its parent."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

__all__ = ["Selection", "select_heaviest"]


@dataclass(slots=True)
class Selection:
    """Part of a tree that is closed under parents.

    Attributes:
        children: of every chosen node (-1: above the roots) its chosen children, as they were given.
        left_out: of every chosen node (-1: above the roots) its children that were not chosen: how
            many they are, and their weights added.
    """

    children: dict[int, list[int]] = field(default_factory=dict)
    left_out: dict[int, tuple[int, int]] = field(default_factory=dict)

    def preorder(self) -> list[tuple[int, int]]:
        """Return ``(node, level)`` of all chosen nodes, parents first."""
        found: list[tuple[int, int]] = []
        todo = [(node, 0) for node in reversed(self.children[-1])]
        while todo:
            node, level = todo.pop()
            found.append((node, level))
            todo.extend((child, level + 1) for child in reversed(self.children[node]))
        return found


def select_heaviest(
    children_of: Callable[[int], Iterable[int]], weight_of: Callable[[int], int], limit: int
) -> Selection:
    """Return at most ``limit`` nodes, always the heaviest whose parent is chosen; ties: the first.

    A leaf that would be the only one left out below its parent is chosen beyond the limit: to say
    that it is missing takes as much room.

    Args:
        children_of: the children of a node, in order; of -1, the roots. Asked once a chosen node.
        weight_of: what a node and everything below it weigh.
        limit: at least 1.

    Time O(children of chosen nodes x log limit).
    """
    selection = Selection()
    heap: list[tuple[int, int, int]] = []  # (-weight, node, parent)
    positions: dict[int, dict[int, int]] = {}

    def open_node(node: int) -> None:
        count = total = 0
        best: list[tuple[int, int, int]] = []  # smallest first: (weight, -position, child)
        for position, child in enumerate(children_of(node)):
            weight = weight_of(child)
            count, total = count + 1, total + weight
            entry = (weight, -position, child)
            if len(best) < limit:
                heapq.heappush(best, entry)
            elif entry > best[0]:
                heapq.heapreplace(best, entry)
        positions[node] = {child: -position for _, position, child in best}
        for weight, _, child in best:
            heapq.heappush(heap, (-weight, child, node))
        selection.children[node] = []
        selection.left_out[node] = (count, total)

    open_node(-1)
    chosen = 0
    while heap and chosen < limit:
        negative, node, parent = heapq.heappop(heap)
        selection.children[parent].append(node)
        count, total = selection.left_out[parent]
        selection.left_out[parent] = (count - 1, total + negative)
        chosen += 1
        open_node(node)
    for node, listed in list(selection.children.items()):
        missing = (
            [child for child in positions[node] if child not in listed] if selection.left_out[node][0] == 1 else []
        )
        if missing and not any(True for _ in children_of(missing[0])):
            listed.append(missing[0])
            selection.children[missing[0]] = []
            selection.left_out[node] = selection.left_out[missing[0]] = (0, 0)
        listed.sort(key=positions[node].__getitem__)
    return selection
