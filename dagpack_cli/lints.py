"""Where sharing stops although the text goes on the same: a path or a date early in a prompt. Pure.

A prefix is shared up to the first token that differs. Where two branches differ in one field and
then say the same for pages, that field is worth moving to the end: this finds such forks, names
what differs, and counts the equal tokens behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.memory import Zeros, spans
from dagpack_cli.profile import largest
from dagpack_cli.trie import Trie

__all__ = ["sharing_stops"]

Int32Array = npt.NDArray[np.int32]
Decode = Callable[[list[int]], str]

_FORKS = 64
_BRANCHES = 8
_LOOK = 4096  # tokens of a branch that are compared
_GRAM = 16  # equal tokens that count as the text going on
_EDITS = 32
_WORTH = 128  # fewer equal tokens behind a fork may be chance: a role, a common phrase
_CONTEXT = 48  # tokens around a difference that are decoded

_KINDS = (
    ("id", re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")),
    ("date", re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2} \w{3,9} \d{4}|\w{3,9} \d{1,2},? \d{4}")),
    ("time", re.compile(r"\d{1,2}:\d{2}(:\d{2})?")),
    ("path", re.compile(r"(?:^|[\s\"'=:>(])(?:/[\w.@~-]+){2,}|[A-Za-z]:\\")),
    ("number", re.compile(r"\d")),
)


def sharing_stops(trie: Trie, decode: Decode, *, num_stops: int = 5, zeros: Zeros = np.zeros) -> list[dict[str, Any]]:
    """Return the forks behind which most equal text follows, most first.

    Each is ``{"shared_tokens", "examples", "branches", "equal_tokens", "kind", "one", "other"}``: how
    many tokens stand before the fork, how many examples pass it, how many branches were compared
    with the largest, how many of their tokens say the same again, and the line in which the first
    two differ. At most 64 forks, 8 branches of each and 4,096 tokens of a branch are looked at. ``zeros`` makes
    arrays with an entry a node.
    """
    found: list[dict[str, Any]] = []
    for node in _forks(trie, zeros):
        branches = _branches(trie, node)
        first = _leftmost(trie, branches[0])
        equal, spans = 0, None
        for branch in branches[1:]:
            other = _leftmost(trie, branch)
            size, differs = _equal_behind(first, other)
            if size and spans is None:
                spans = differs, other
            equal += size
        if spans is None or equal < _WORTH:
            continue
        one, other_text = _lines(trie, node, first, spans[1], spans[0], decode)
        found.append(
            {
                "shared_tokens": int(trie.depths[branches[0]]),
                "examples": int(trie.counts[branches].sum()),
                "branches": len(branches) - 1,
                "equal_tokens": equal,
                "kind": _kind_of(one, other_text),
                "one": one,
                "other": other_text,
            }
        )
    return sorted(found, key=lambda stop: -stop["equal_tokens"])[:num_stops]


def _forks(trie: Trie, zeros: Zeros) -> list[int]:
    """Return nodes with several children, -1 for the forest, those first that have most beside their largest."""
    if trie.num_nodes < 2:
        return []
    most, beside = zeros(trie.num_nodes + 1, np.int64), zeros(trie.num_nodes + 1, np.int64)
    for span in spans(trie.num_nodes):
        parents, sizes = trie.parents[span].astype(np.int64) + 1, _masses(trie, span)
        np.maximum.at(most, parents, sizes)
        np.add.at(beside, parents, sizes)
    found = largest(len(most), lambda span: beside[span] - most[span], _FORKS)
    return [node - 1 for node, tokens in found if tokens >= _GRAM]


def _masses(trie: Trie, nodes: slice | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the tokens of nodes' subtrees, their own included."""
    return np.asarray(trie.offsets[trie.subtree_ends[nodes]] - trie.offsets[:-1][nodes], dtype=np.int64)


def _branches(trie: Trie, node: int) -> npt.NDArray[np.int64]:
    """Return the children with most tokens below them, most first."""
    first = node + 1
    last = int(trie.subtree_ends[node]) if node >= 0 else trie.num_nodes

    def masses(span: slice) -> npt.NDArray[np.int64]:
        nodes = slice(first + span.start, first + span.stop)
        return np.where(trie.parents[nodes] == node, _masses(trie, nodes), 0)

    found = [number + first for number, mass in largest(last - first, masses, _BRANCHES + 1) if mass]
    return np.array(found, dtype=np.int64)


def _leftmost(trie: Trie, node: int) -> Int32Array:
    """Return the tokens of the path from ``node`` over first children: in preorder they are neighbours."""
    last, start = int(node), int(trie.offsets[node])
    while trie.subtree_ends[last] > last + 1 and trie.offsets[last + 1] - start < _LOOK:
        last += 1
    return trie.tokens[start : min(int(trie.offsets[last + 1]), start + _LOOK)]


def _equal_behind(one: Int32Array, other: Int32Array) -> tuple[int, tuple[int, int]]:
    """Return how many tokens are equal behind the first difference, and the tokens of either that differ."""
    left, right = one.tolist(), other.tolist()
    where = {tuple(right[at : at + _GRAM]): at for at in range(len(right) - _GRAM, -1, -1)}
    i = j = equal = edits = 0
    differs = (0, 0)
    while i <= len(left) - _GRAM and edits < _EDITS:
        at = where.get(tuple(left[i : i + _GRAM]), -1)
        if at < j:
            i += 1
            continue
        if edits == 0:
            differs = (i, at)
        edits += 1
        j = at
        while i < len(left) and j < len(right) and left[i] == right[j]:
            i, j, equal = i + 1, j + 1, equal + 1
    return equal, differs


def _lines(
    trie: Trie, node: int, one: Int32Array, other: Int32Array, differs: tuple[int, int], decode: Decode
) -> tuple[str, str]:
    """Return the line of either branch that holds the difference."""
    before: list[int] = []
    while node >= 0 and len(before) < _CONTEXT:
        before = trie.tokens[trie.offsets[node] : trie.offsets[node + 1]].tolist() + before
        node = int(trie.parents[node])
    before = before[-_CONTEXT:]
    start = decode(before).rpartition("\n")[2]
    texts = []
    for tokens, end in zip((one, other), differs, strict=True):
        value = decode(tokens[: min(end, _CONTEXT)].tolist())
        rest = decode(tokens[end : end + _CONTEXT].tolist()).partition("\n")[0] if "\n" not in value[-1:] else ""
        texts.append(_short(start + value + rest))
    return texts[0], texts[1]


def _short(text: str) -> str:
    lines = text.strip().splitlines() or [""]
    return lines[0][:200] if len(lines) == 1 else f"{lines[0][:160]} ..."


def _kind_of(one: str, other: str) -> str:
    for name, pattern in _KINDS:
        ours, theirs = pattern.findall(one), pattern.findall(other)
        if ours and theirs and ours != theirs:
            return name
    return "number" if _numbers(one) != _numbers(other) else "text"


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)
