"""One conversation while a template writes it: where turns begin and end, checked on what is written of its prefixes.

A template without ``{% generation %}`` marks is asked twice for every trained turn: for the prompt,
``render(messages[:k])`` with what asks for an answer, and for the conversation just after it. The
first must start the second, and both must start the whole conversation: then what lies between is
what the assistant writes, in the context in which it will write it. Anything else is refused by
name, never guessed.

Cost: two renderings of what stands before for every trained turn, so the square of the length; what
a conversation shares with one of the last few (leaves and snapshots of a session) is not rendered again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.differences import common_prefix
from dagpack_cli.tokenizing.jinja import Row, Writer, Written
from dagpack_cli.tokenizing.rows import THINKING
from dagpack_cli.tokenizing.stability import Cause

__all__ = ["HINTS", "Conversation", "Remembered"]

HINTS: dict[str, str] = {
    "dropped thinking": "train the last turn alone with --per-turn, or use --chat-template builtin",
    "last turn written differently": "train the last turn alone with --per-turn, or use --chat-template builtin",
    "consecutive tool results": "use --chat-template builtin",
    "other": "use --chat-template builtin, or a template with {% generation %} marks",
}


@dataclass(slots=True)
class _Past:
    rows: Sequence[Row]
    tools: list[Any] | None
    text: str
    turns: dict[int, tuple[int, int]]


class Remembered:
    """The trained turns of the last conversations: leaves of one session share most of theirs."""

    def __init__(self, capacity: int = 4) -> None:
        self._past: deque[_Past] = deque(maxlen=capacity)

    def keep(self, conversation: Conversation) -> None:
        """Remember a conversation and the ranges of its turns."""
        self._past.append(
            _Past(conversation.rows, conversation.tools, conversation.whole.text, dict(conversation.turns))
        )

    def recall(self, conversation: Conversation) -> None:
        """Give a conversation what is known of its turns; where it holds is checked on its own text."""
        for past in reversed(self._past):
            if past.tools != conversation.tools:
                continue
            same = _first_difference(past.rows, conversation.rows)
            known = {turn: ends for turn, ends in past.turns.items() if turn < same and turn not in conversation.turns}
            if known:
                common = common_prefix(past.text, conversation.whole.text)
                conversation.turns.update({turn: ends for turn, ends in known.items() if ends[1] <= common})


@dataclass(slots=True)
class Conversation:
    """One conversation while it is written.

    Attributes:
        writer: the template.
        rows: its messages.
        tools: what may be called, None for nothing.
        whole: all of it, written.
        turns: ranges of turns that are known: where the prompt ends, and where the turn does.
        stable: for a number of messages, why what is written of them does not start the whole; None if it does.
        borders: for a number of messages, where they end in the whole; None where that does not show.
    """

    writer: Writer
    rows: Sequence[Row]
    tools: list[Any] | None
    whole: Written
    turns: dict[int, tuple[int, int]] = field(default_factory=dict)
    stable: dict[int, Cause | None] = field(default_factory=dict)
    borders: dict[int, int | None] = field(default_factory=dict)

    @property
    def ends(self) -> dict[int, int]:
        """Return where each number of messages ends whose text is known to start the whole."""
        known = {number: end for number, end in self.borders.items() if end is not None}
        return {index + 1: ends[1] for index, ends in self.turns.items()} | known

    def write(self, rows: Sequence[Row], where: str, *, prompt: bool = False) -> str:
        """Return other rows as text; what the template says against them is told with ``where``."""
        try:
            return self.writer.write(rows, self.tools, prompt=prompt).text
        except DataError as error:
            raise DataError(where, error.found, error.expected, hint=error.hint) from None

    def border(self, number: int, where: str) -> int | None:
        """Return where the first ``number`` messages end, None where the template writes them differently alone."""
        if number in (0, len(self.rows)):
            return len(self.whole.text) if number else 0
        if number not in self.borders:
            text = self.write(self.rows[:number], where)
            fits = self.whole.text.startswith(text)
            self.stable[number] = None if fits else self.cause(number, text)
            self.borders[number] = len(text) if fits else None
        return self.borders[number]

    def turn(self, index: int) -> tuple[int, int]:
        """Return where the prompt of an assistant's turn ends, and where the turn does.

        Raises:
            DataError: the one does not start the other, or the whole.
        """
        if index in self.turns:
            if index + 1 < len(self.rows):
                self.stable[index + 1] = None
            return self.turns[index]
        where = f"message {index + 1}"
        whole = self.whole.text
        before = self._prompt(index)
        last = index + 1 == len(self.rows)
        after = whole if last else self.write(self.rows[: index + 1], where)
        if not last:
            self.stable[index + 1] = None if whole.startswith(after) else self.cause(index + 1, after)
        if not after.startswith(before):
            raise DataError(
                where,
                f"the template {self.writer.name} does not begin this turn with what it asks for one with",
                "a prompt that starts the conversation",
                hint=HINTS["other"],
            )
        if not whole.startswith(after):
            cause = self.stable[index + 1] or "other"
            raise DataError(
                where,
                f"the template {self.writer.name} writes it differently once the conversation goes on ({cause})",
                "a context as inference shows it",
                hint=HINTS[cause],
            )
        self.turns[index] = len(before), len(after)
        return self.turns[index]

    def _prompt(self, index: int) -> str:
        where = f"message {index + 1}"
        try:
            return self.write(self.rows[:index], where, prompt=True)
        except DataError as error:
            if index:
                raise
            found = (
                f"the conversation starts with the assistant, and the template {self.writer.name} cannot ask for that"
            )
            raise DataError(where, found, "a message before it", hint=error.hint) from None

    def cause(self, number: int, alone: str) -> Cause:
        """Return why the first ``number`` messages alone do not start the whole; up to three renderings."""
        rows = self.rows
        if number < len(rows) and rows[number - 1]["role"] == rows[number]["role"] == "tool":
            return "consecutive tool results"
        try:
            if any(THINKING[0] in row for row in rows[:number]):
                bare = [row.without(*THINKING) for row in rows[:number]]
                lost = self.writer.write([*bare, *rows[number:]], self.tools).text == self.whole.text
                if lost and self.writer.write(bare, self.tools).text != alone:
                    return "dropped thinking"
            if number > 1 and rows[number - 1]["role"] == "assistant":
                before = self.writer.write(rows[: number - 1], self.tools).text
                if alone.startswith(before) and self.whole.text.startswith(before):
                    return "last turn written differently"
        except DataError:
            pass
        return "other"


def _first_difference(one: Sequence[Row], two: Sequence[Row]) -> int:
    """Return how many first messages are the same."""
    shorter = min(len(one), len(two))
    return next((at for at in range(shorter) if one[at] != two[at]), shorter)
