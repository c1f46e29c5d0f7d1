"""Sessions of Gemini CLI: a JSON line a change (2026), or one object with all messages (2025).

Source: google-gemini/gemini-cli, packages/core/src/services/chatRecordingService.ts. Neither the
system prompt nor the tools are in the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagpack_cli.corpora.agents.blocks import object_of, optional_text, text_of
from dagpack_cli.corpora.agents.gemini_messages import Turn, turn_of
from dagpack_cli.corpora.files.sources import Source
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Place, Record, shown
from dagpack_cli.corpora.sessions import cut_off, read_until_bad
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
    time. What is wrong with a line goes to ``on_bad``, and the session ends before it. Memory is
    O(texts of a session).
    """
    session: _Session | None = None

    def begins(row: dict[str, Any]) -> bool:
        name = row.get("sessionId")
        return isinstance(name, str) and (session is None or name != session.name)

    rows = read_until_bad(source, on_bad, begins=begins)
    for place, row in rows:
        if begins(row):
            if session is not None:
                yield from session.end(cut=rows.cut)
            session = _Session(row["sessionId"], place)
        try:
            session = session or _Session("", place)
            yield from session.add(row, str(place))
        except DataError as error:
            rows.stop(error)
    if session is not None:
        yield from session.end(cut=rows.cut)


class _Session:
    """A session while it is read: its history, by id, in the order of the first writings."""

    def __init__(self, name: str, place: Place) -> None:
        self.name = name
        self._place = place
        self._scope = name or place.id
        self._turns: dict[str, Turn] = {}
        self._new = False
        self._count = 0

    def add(self, row: dict[str, Any], where: str) -> Iterator[Record]:
        """Add a record, and yield the history that it ends, if it does.

        Raises:
            DataError: it is damaged; of a list of messages, those before the damage are added.
        """
        if "$rewindTo" in row:
            yield from self._rewind(text_of(row, "$rewindTo", where))
        elif "id" in row:
            self._put(turn_of(row, where, self._scope))
        else:
            patch = object_of(row["$set"], "$set", where) if "$set" in row else row
            if patch.get("messages") is not None:
                yield from self._replace(patch["messages"], where)

    def end(self, *, cut: bool = False) -> Iterator[Record]:
        """Yield the history if something was added to it since it was last yielded.

        Where it is ``cut``, its last answer may have gone on.
        """
        if not self._new:
            return
        self._new = False
        self._count += 1
        messages = _messages_of(self._turns.values())
        yield Record(
            place=self._place,
            body=Chat(cut_off(messages) if cut else messages),
            id=f"{self._scope}#{self._count}",
            group=self._scope,
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

    def _replace(self, messages: Any, where: str) -> Iterator[Record]:
        """Put other messages in the place of all: compression, or results that were cut."""
        if not isinstance(messages, list):
            raise DataError(where, f'"messages" is {shown(messages)}', "a list")
        turns: dict[str, Turn] = {}
        damage: DataError | None = None
        for number, message in enumerate(messages, 1):
            try:
                here = f"{where}, message {number:,}"
                record = object_of(message, "messages", here)
                if not optional_text(record, "id", here):
                    record = {**record, "id": f"{optional_text(record, 'timestamp', here)}, message {number}"}
                turn = turn_of(record, here, self._scope)
            except DataError as error:
                damage = error
                break
            turns[turn.id] = turn
        old, new = list(self._turns.values()), list(turns.values())
        if damage is None or len(new) > len(old):
            if new[: len(old)] != old:
                yield from self.end()
            self._new = self._new or len(new) > len(old)
            self._turns = turns
        if damage is not None:
            raise damage


def _messages_of(turns: Any) -> tuple[Message, ...]:
    """Return the messages of a history; a result that its answer holds as well is said once."""
    messages: list[Message] = []
    answered: set[str] = set()
    for turn in turns:
        messages.extend(result for result in turn.results if result.tool_call_id not in answered)
        messages.extend(turn.messages)
        answered.update(message.tool_call_id for message in turn.messages if message.role == "tool")
    return tuple(messages)
