"""Pieces as ids, each distinct text encoded once: snapshots of one session repeat most of what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.base import IdArray, Tokenizer
from dagpack_cli.tokenizing.cutting import ANYWHERE
from dagpack_cli.tokenizing.huggingface import HuggingFaceTokenizer, Located
from dagpack_cli.tokenizing.pieces import Piece, Rendered

__all__ = ["PieceEncoder"]

_HELD_BYTES = 128 << 20
_ENTRY_BYTES = 250  # of a dictionary entry, a string and an array, empty ones

Value = TypeVar("Value")


class _Memory(Generic[Value]):
    """What was encoded, in two generations: what is used moves to the young one, the old one is dropped when it fills.

    The young generation is only started anew when something is missing, so whatever one call of
    `new` returned or found stays at hand until the next miss: a batch larger than the bound is
    encoded once, not twice. Memory is the bound plus the largest batch.
    """

    def __init__(self) -> None:
        self._young: dict[str, Value] = {}
        self._old: dict[str, Value] = {}
        self._held = 0

    def new(self, texts: Iterable[str]) -> list[str]:
        """Return the distinct texts that are not remembered, in their order."""
        missing = []
        for text in dict.fromkeys(texts):
            if text in self._young:
                continue
            if text in self._old:
                self.put(text, self._old.pop(text))
            else:
                missing.append(text)
        if missing and self._held > _HELD_BYTES // 2:
            self._old, self._young, self._held = self._young, {}, 0
        return missing

    def put(self, text: str, value: Value) -> None:
        """Remember one text."""
        self._young[text] = value
        # About four characters a token, so its ids take about as much as the text itself.
        self._held += 2 * len(text) + _ENTRY_BYTES

    def __getitem__(self, text: str) -> Value:
        """Return what is remembered."""
        return self._young[text] if text in self._young else self._old[text]


@dataclass(slots=True)
class _Runs:
    """Supervised runs while they grow."""

    ranges: list[tuple[int, int]]
    turns: list[int]

    def add(self, start: int, end: int, turn: int) -> None:
        """Add one range behind those before; what overlaps them is theirs, what touches one of its turn joins it."""
        if self.ranges:
            start = max(start, self.ranges[-1][1])
        if end <= start:
            return
        if self.ranges and self.ranges[-1][1] == start and self.turns[-1] == turn:
            self.ranges[-1] = (self.ranges[-1][0], end)
        else:
            self.ranges.append((start, end))
            self.turns.append(turn)


class PieceEncoder:
    """Encodes pieces, each distinct text once.

    Where the tokenizer can be cut anywhere, every text is encoded on its own. Where it can be cut at
    control tokens only, the texts between two of them are encoded together, and a token belongs to
    every piece that it overlaps; where not even that, whole conversations are (see `cutting`). The
    memory of what was encoded is bounded; forgetting changes nothing but time.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._located = tokenizer if isinstance(tokenizer, HuggingFaceTokenizer) else None
        self._cut = self._located.cut if self._located is not None else ANYWHERE
        self._texts: _Memory[IdArray] = _Memory()
        self._firsts: _Memory[IdArray] = _Memory()
        self._sections: _Memory[Located] = _Memory()
        self._controls: dict[int, IdArray] = {}

    def learn(self, texts: Iterable[str]) -> None:
        """Encode the texts that are new, in one batch."""
        if not self._cut.anywhere:
            return
        if new := self._texts.new(texts):
            inner = self._located is not None and self._cut.inner
            found = self._located.encode_inner(new) if inner and self._located else self._tokenizer.encode_pieces(new)
            for text, ids in zip(new, found, strict=True):
                self._texts.put(text, ids)

    def encode(self, pieces: Sequence[Piece]) -> Rendered:
        """Return the ids of ``pieces``, and which of them are supervised.

        Raises:
            DataError: text that is not Unicode, or that spells a control token where the tokenizer
                only reads whole conversations.
        """
        runs = _Runs([], [])
        if self._cut.anywhere:
            parts = list(self._apart(pieces, runs))
        elif self._cut.controls:
            parts = list(self._by_sections(pieces, runs))
        else:
            parts = [self._whole(pieces, runs)]
        ids = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
        ranges = np.array(runs.ranges, dtype=np.int32).reshape(-1, 2)
        return Rendered(ids, ranges, np.array(runs.turns, dtype=np.int32))

    def _apart(self, pieces: Sequence[Piece], runs: _Runs) -> Iterator[IdArray]:
        """Yield the ids of every piece."""
        self.learn(piece.value for piece in pieces if isinstance(piece.value, str))
        position = 0
        for piece in pieces:
            value = piece.value
            if isinstance(value, int):
                part = self._control(value)
            elif self._cut.inner and position == 0 and value:
                part = self._first(value)
            else:
                part = self._texts[value]
            end = position + len(part)
            if piece.supervised:
                runs.add(position, end, piece.turn)
            yield part
            position = end

    def _by_sections(self, pieces: Sequence[Piece], runs: _Runs) -> Iterator[IdArray]:
        """Yield the ids of every control token and of the texts between two of them."""
        assert self._located is not None
        position = 0
        for is_text, group in groupby(pieces, key=lambda piece: isinstance(piece.value, str)):
            listed = list(group)
            if not is_text:
                for piece in listed:
                    assert isinstance(piece.value, int)
                    if piece.supervised:
                        runs.add(position, position + 1, piece.turn)
                    yield self._control(piece.value)
                    position += 1
                continue
            text = "".join(str(piece.value) for piece in listed)
            for new in self._sections.new((text,)):
                self._sections.put(new, self._located.locate(new, inner=self._cut.inner and position > 0))
            found = self._sections[text]
            _mark(listed, [str(piece.value) for piece in listed], found, runs, position)
            yield found.ids
            position += len(found.ids)

    def _whole(self, pieces: Sequence[Piece], runs: _Runs) -> IdArray:
        """Return the ids of the conversation as one string."""
        assert self._located is not None
        names = {control.id: control.text for control in self._located.controls.listed}
        texts = []
        for piece in pieces:
            if isinstance(piece.value, str) and (found := self._located.controls.find(piece.value)):
                name = piece.value[found[0].start : found[0].end]
                raise DataError(
                    f"message {piece.turn + 1}" if piece.turn >= 0 else "",
                    f'a text spells the control token "{name}"',
                    "this tokenizer reads whole conversations, and would take it for one",
                )
            texts.append(piece.value if isinstance(piece.value, str) else names[piece.value])
        located = self._located.locate_whole("".join(texts))
        _mark(pieces, texts, located, runs, 0)
        return located.ids

    def _control(self, value: int) -> IdArray:
        if value not in self._controls:
            self._controls[value] = np.array([value], dtype=np.int32)
        return self._controls[value]

    def _first(self, text: str) -> IdArray:
        for new in self._firsts.new((text,)):
            self._firsts.put(new, self._tokenizer.encode_pieces([new])[0])
        return self._firsts[text]


def _mark(pieces: Sequence[Piece], texts: Sequence[str], located: Located, runs: _Runs, position: int) -> None:
    """Add the tokens that overlap a supervised piece; ``texts`` are the pieces as they were encoded together."""
    starts = np.cumsum([0, *map(len, texts)])
    first: npt.NDArray[np.intp] = np.searchsorted(located.ends, starts[:-1], side="right")
    last: npt.NDArray[np.intp] = np.searchsorted(located.starts, starts[1:], side="left")
    for piece, text, start, end in zip(pieces, texts, first.tolist(), last.tolist(), strict=True):
        if piece.supervised and text:
            runs.add(position + start, position + end, piece.turn)
