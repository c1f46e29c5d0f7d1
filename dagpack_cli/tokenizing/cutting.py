"""Where text can be cut before it is encoded: proven for every tokenizer on a probe, never assumed.

Byte-level tokenizers encode a text the same whatever stands before it. Those in the style of
SentencePiece put a space before every text that they are given, so a conversation cut at the start
of an answer would get a space that nobody wrote: they are cut at control tokens only, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

__all__ = ["ANYWHERE", "Control", "Controls", "Cut", "Found", "prove_cut"]

# What the tokenizers package takes for white space: the Unicode property, which Python's \s is not.
_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
_SAMPLE = 12

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where a tokenizer's texts may be cut.

    Attributes:
        anywhere: at any character; else only at control tokens.
        controls: at control tokens; else nowhere: whole conversations are encoded.
        inner: a text that is not the first must be encoded as one that has something before it.
        note: what the user should know; empty for nothing.
    """

    anywhere: bool
    controls: bool = True
    inner: bool = False
    note: str = ""


ANYWHERE = Cut(anywhere=True)


@dataclass(frozen=True, slots=True)
class Control:
    """A control token: its id, its text, and whether it takes the white space before and behind it."""

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False


class Found(NamedTuple):
    """A control token in a text: ``text[start:end]`` spells it, ``[left, right)`` is what it takes."""

    id: int
    start: int
    end: int
    left: int
    right: int


class Controls:
    """The control tokens of a vocabulary."""

    def __init__(self, controls: Iterable[Control]) -> None:
        self.listed = tuple(controls)
        self._known = {control.text: control for control in self.listed if control.text}
        longest_first = sorted(self._known, key=lambda text: (-len(text), text))
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def find(self, text: str) -> list[Found]:
        """Return the control tokens that ``text`` spells, in its order; the longest where several fit. Cost O(n)."""
        found = []
        left = 0
        for match in self.pattern.finditer(text):
            control = self._known[match.group()]
            start, end = match.span()
            right = end
            if control.rstrip:
                while right < len(text) and text[right] in _SPACE:
                    right += 1
            first = start
            if control.lstrip:
                while first > left and text[first - 1] in _SPACE:
                    first -= 1
            found.append(Found(control.id, start, end, max(first, left), right))
            left = right
        return found

    def sample(self) -> list[Control]:
        """Return a few that differ: all kinds of stripping, the first and the last."""
        kinds: dict[tuple[bool, bool], list[Control]] = {}
        for control in self.listed:
            if control.text:
                kinds.setdefault((control.lstrip, control.rstrip), []).append(control)
        return [control for kind in kinds.values() for control in (*kind[: _SAMPLE // 2], *kind[-_SAMPLE // 2 :])]


def prove_cut(controls: Controls, whole: Encode, alone: Encode, inner: Encode | None) -> Cut:
    """Return how a tokenizer's texts may be cut, the freest way that gives the ids of the whole on every probe.

    Args:
        controls: its control tokens.
        whole: encodes a string in which control tokens are read.
        alone: encodes a text on its own, in which they are not.
        inner: the same for a text that has something before it; None where that cannot be had.
    """
    fitting: list[bool] = []
    for way, behind in ((alone, False), (inner, True)):
        if way is not None and _cuts_at_controls(controls, whole, alone, way):
            if _cuts_anywhere(alone, way):
                return Cut(anywhere=True, inner=behind)
            fitting.append(behind)
    if fitting:
        note = "the tokenizer joins text across the start of an answer: text between control tokens is encoded whole"
        return Cut(anywhere=False, inner=fitting[0], note=note)
    note = "the tokenizer reads text differently after a control token: conversations are encoded whole"
    return Cut(anywhere=False, controls=False, note=note)


def _cuts_at_controls(controls: Controls, whole: Encode, alone: Encode, way: Encode) -> bool:
    sample = controls.sample()
    marks = [control.text for control in sample]
    probes = [f"Hello{mark}world\n{mark} x = 1{mark}\n{mark}{mark} \n\nü{mark}a  " for mark in marks]
    probes += [f"{one}user\n{two} q {two}\n{one}b{two}" for one, two in pairwise(marks)]
    return all(whole(probe) == _pieced(controls.find(probe), probe, alone, way) for probe in probes)


def _pieced(found: Sequence[Found], text: str, alone: Encode, way: Encode) -> list[int]:
    ids: list[int] = []
    start = 0
    for control in found:
        if control.left > start:
            ids += (way if ids else alone)(text[start : control.left])
        ids.append(control.id)
        start = control.right
    if start < len(text):
        ids += (way if ids else alone)(text[start:])
    return ids


def _cuts_anywhere(alone: Encode, way: Encode) -> bool:
    """Whether texts whose border no merge crosses can be encoded apart; a space put before one is seen here."""
    borders = (("assistant\n", "Hello"), ("a\n", "1"), ("a:\n", "\u00fc"))
    return all(alone(before + behind) == alone(before) + way(behind) for before, behind in borders)
