"""Sessions of Gemini CLI: a JSON line a change (2026), or one object with all messages (2025).

Source: google-gemini/gemini-cli, packages/core/src/services/chatRecordingService.ts. Neither the
system prompt nor the tools are in the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagpack_cli.corpora.agents.blocks import object_of, optional_text, text_of
from dagpack_cli.corpora.agents.gemini_messages import Turn, turn_of
from dagpack_cli.corpora.files.sources import Source, read_source_rows
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Place, Record, shown
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.messages import Message

__all__ = ["NAME", "read", "recognise"]

NAME = "gemini"

_KINDS = ("user", "gemini", "info", "error", "warning")


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record is the head of a session, or a whole one."""
    if not isinstance(record.get("sessionId"), str):
        return False
    if isinstance(record.get("projectHash"), str):
        return True
    messages = record.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else None
    return isinstance(first, dict) and first.get("type") in _KINDS and "role" not in first


def read(source: Source, _options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a history that came to an end: by a rewind, a replacement, or the file's.

    What was rewound was said in that context, so it is trained there. They come in the order of
    time. What is wrong with a line goes to ``on_bad``. Memory is O(texts of a session).
    """
    session: _Session | None = None
    for place, row in read_source_rows(source.path, source.name, on_bad):
        name = row.get("sessionId")
        if isinstance(name, str) and (session is None or name != session.name):
            if session is not None:
                yield from session.end()
            session = _Session(name, place)
        try:
            session = session or _Session("", place)
            yield from session.add(row, str(place), on_bad)
        except DataError as error:
            on_bad(error)
    if session is not None:
        yield from session.end()


class _Session:
    """A session while it is read: its history, by id, in the order of the first writings."""

    def __init__(self, name: str, place: Place) -> None:
        self.name = name
        self._place = place
        self._turns: dict[str, Turn] = {}
        self._new = False
        self._count = 0

    def add(self, row: dict[str, Any], where: str, on_bad: OnBad) -> Iterator[Record]:
        """Add a record, and yield the history that it ends, if it does."""
        if "$rewindTo" in row:
            yield from self._rewind(text_of(row, "$rewindTo", where))
        elif "id" in row:
            self._put(turn_of(row, where))
        else:
            patch = object_of(row["$set"], "$set", where) if "$set" in row else row
            if patch.get("messages") is not None:
                yield from self._replace(patch["messages"], where, on_bad)

    def end(self) -> Iterator[Record]:
        """Yield the history if something was added to it since it was last yielded."""
        if not self._new:
            return
        self._new = False
        self._count += 1
        name = self.name or self._place.id
        yield Record(
            place=self._place,
            body=Chat(_messages_of(self._turns.values())),
            id=f"{name}#{self._count}",
            group=name,
        )

    def _put(self, turn: Turn) -> None:
        self._turns[turn.id] = turn
        self._new = True

    def _rewind(self, name: str) -> Iterator[Record]:
        """Drop a message and all after it; all of them where it is not known."""
        yield from self.end()
        names = list(self._turns)
        for gone in names[names.index(name) if name in self._turns else 0 :]:
            del self._turns[gone]

    def _replace(self, messages: Any, where: str, on_bad: OnBad) -> Iterator[Record]:
        """Put other messages in the place of all: compression, or results that were cut."""
        if not isinstance(messages, list):
            raise DataError(where, f'"messages" is {shown(messages)}', "a list")
        turns: dict[str, Turn] = {}
        for number, message in enumerate(messages, 1):
            try:
                here = f"{where}, message {number:,}"
                record = object_of(message, "messages", here)
                if not optional_text(record, "id", here):
                    record = {**record, "id": f"{optional_text(record, 'timestamp', here)}, message {number}"}
                turn = turn_of(record, here)
            except DataError as error:
                on_bad(error)
            else:
                turns[turn.id] = turn
        old, new = list(self._turns.values()), list(turns.values())
        if new[: len(old)] != old:
            yield from self.end()
        self._new = self._new or len(new) > len(old)
        self._turns = turns


def _messages_of(turns: Any) -> tuple[Message, ...]:
    """Return the messages of a history; a result that its answer holds as well is said once."""
    messages: list[Message] = []
    answered: set[str] = set()
    for turn in turns:
        messages.extend(result for result in turn.results if result.tool_call_id not in answered)
        messages.extend(turn.messages)
        answered.update(message.tool_call_id for message in turn.messages if message.role == "tool")
    return tuple(messages)
