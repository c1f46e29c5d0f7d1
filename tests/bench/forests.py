"""Generated forests: tries as the packers see them, run lengths only, the same on every machine.

Nine families, one a line:
    web    lone documents
    grpo   one prompt, 8 to 64 completions
    pref   one prompt, two answers
    gw     Galton-Watson trees, critical
    agent  few long system prompts, sessions that branch
    code   files, half of them below short shared heads
    cater  spines with a leaf at every node
    deep   few branches, paths nearly as long as a window
    mix    trees of the others at random
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np

from dagpack_cli.packing import Forest

__all__ = ["FAMILIES", "grow_forest"]

_NO_LIMIT = 2**62
_LARGEST_TREE = 20_000  # nodes of a Galton-Watson tree: a critical one has no finite mean


class _Growth:
    """Columns of a forest that grows in preorder, and lengths drawn for it."""

    def __init__(self, seed: int, seq_len: int) -> None:
        self.rng = np.random.default_rng([11, seed])
        self.seq_len = seq_len
        # Arrays, not lists: a forest of ten million nodes is grown in a few hundred megabytes.
        self.parents = array("i")
        self.lengths = array("i")
        self.bottoms = array("i")  # rows of the path down to the end of each run
        self.num_rows = 0
        self._drawn: list[float] = []

    def add(self, parent: int, length: int) -> int:
        """Append a node, its run cut to what a window leaves it; return it, or -1 where nothing is left."""
        above = self.bottoms[parent] if parent >= 0 else 0
        length = min(max(length, 1), self.seq_len - above)
        if length < 1:
            return -1
        self.parents.append(parent)
        self.lengths.append(length)
        self.bottoms.append(above + length)
        self.num_rows += length
        return len(self.parents) - 1

    def length(self, mean: float, sigma: float = 1.0) -> int:
        """Return a log-normal length with this mean."""
        if not self._drawn:
            self._drawn = self.rng.standard_normal(4096).tolist()
        return int(mean * np.exp(sigma * self._drawn.pop() - sigma * sigma / 2))

    def between(self, low: int, high: int) -> int:
        """Return a whole number of ``[low, high]``."""
        return int(self.rng.integers(low, high + 1))

    def room(self, node: int) -> int:
        """Return how many rows fit below a node."""
        return self.seq_len - self.bottoms[node]


def _web(growth: _Growth) -> None:
    growth.add(-1, growth.length(1_000))


def _grpo(growth: _Growth) -> None:
    prompt = growth.add(-1, min(growth.length(400), growth.seq_len // 2))
    for _ in range(growth.between(8, 64)):
        growth.add(prompt, growth.length(1_000))


def _pref(growth: _Growth) -> None:
    prompt = growth.add(-1, min(growth.length(550), growth.seq_len // 2))
    for _ in range(2):
        growth.add(prompt, growth.length(420, 0.7))


def _gw(growth: _Growth) -> None:
    """Critical: as many children as nodes on average, 0, 1, 2 or 3 of them."""
    stack = [-1]
    first = len(growth.parents)
    while stack and len(growth.parents) - first < _LARGEST_TREE:
        node = growth.add(stack.pop(), growth.length(100))
        if node >= 0 and growth.room(node) > 0:
            drawn = growth.between(0, 9)
            stack += [node] * ((drawn > 3) + (drawn > 6) + (drawn > 8))


def _agent(growth: _Growth) -> None:
    """One system prompt with 20 to 60 sessions: turns, from some of which a second attempt branches off."""
    prompt = growth.add(-1, growth.between(1_000, 4_000))
    for _ in range(growth.between(20, 60)):
        turns = [prompt]
        longest = growth.between(2, 40)
        for _ in range(longest):
            back = growth.between(1, 4) if len(turns) > 4 and growth.between(0, 4) == 0 else 0
            turns = turns[: len(turns) - back]
            node = growth.add(turns[-1], growth.length(800))
            if node < 0:
                break
            turns.append(node)


def _code(growth: _Growth) -> None:
    if growth.between(0, 3):
        growth.add(-1, growth.length(900))
        return
    head = growth.add(-1, growth.between(20, 300))
    for _ in range(growth.between(2, 10)):
        growth.add(head, growth.length(900))


def _cater(growth: _Growth) -> None:
    """A spine that is as long as a window, every run with one leaf; both about a fiftieth of a window."""
    mean = max(growth.seq_len / 50, 1)
    spine = growth.add(-1, growth.length(mean, 0.5))
    nodes = [spine]
    while growth.room(nodes[-1]) > 2 and (node := growth.add(nodes[-1], growth.length(mean, 0.5))) >= 0:
        nodes.append(node)
    for node in reversed(nodes):
        growth.add(node, growth.length(mean))


def _deep(growth: _Growth) -> None:
    """Runs of about a fourteenth of a window, two children at every third node, down to a window's end."""
    mean = max(growth.seq_len / 14, 1)
    stack = [growth.add(-1, growth.length(mean, 0.5))]
    first = len(growth.parents)
    while stack and len(growth.parents) - first < 400:
        above = stack.pop()
        node = growth.add(above, growth.length(mean, 0.5))
        if node >= 0 and growth.room(node) > growth.seq_len // 20 and growth.between(0, 19):
            stack += [node] * (2 if growth.between(0, 2) == 0 else 1)


def _mix(growth: _Growth) -> None:
    kinds = [kind for name, kind in FAMILIES.items() if name != "mix"]
    kinds[growth.between(0, len(kinds) - 1)](growth)


FAMILIES: dict[str, Callable[[_Growth], None]] = {
    "web": _web,
    "grpo": _grpo,
    "pref": _pref,
    "gw": _gw,
    "agent": _agent,
    "code": _code,
    "cater": _cater,
    "deep": _deep,
    "mix": _mix,
}


def grow_forest(
    family: str, seq_len: int, seed: int = 0, *, num_nodes: int = _NO_LIMIT, num_rows: int = _NO_LIMIT
) -> Forest:
    """Return a forest of whole trees, as many as it takes to reach one of the limits.

    Args:
        family: a key of ``FAMILIES``.
        seq_len: rows of the longest path a tree may have; 8,192 and more for ``agent``.
        seed: of the numbers drawn.
        num_nodes: of the forest, about.
        num_rows: of the forest, about; 4,000,000 are as many as a table's cell has at 2k to 32k.

    Raises:
        ValueError: neither limit is given.
    """
    if min(num_nodes, num_rows) >= _NO_LIMIT:
        raise ValueError("num_nodes or num_rows must be given")
    growth = _Growth(seed, seq_len)
    while len(growth.parents) < num_nodes and growth.num_rows < num_rows:
        FAMILIES[family](growth)
    return Forest.from_parents(np.array(growth.parents), np.array(growth.lengths))
