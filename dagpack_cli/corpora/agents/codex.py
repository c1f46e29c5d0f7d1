"""Rollouts of Codex: a JSON line an item, with events that repeat them for the screen.

Source: openai/codex, codex-rs/core/src/rollout/recorder.rs and codex-rs/protocol/src/protocol.rs.
Read are rollouts of 2025-09 and later (``session_meta``, ``response_item``), those before (a head,
then bare items), and the one object of the TypeScript version (``session`` and ``items``). The
tools are not in the files; the system prompt is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagpack_cli.corpora.agents.blocks import object_of, optional_text
from dagpack_cli.corpora.agents.codex_history import compacted, rolled_back
from dagpack_cli.corpora.agents.codex_items import Item, item_of, messages_of_items
from dagpack_cli.corpora.files.sources import Source
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Place, Record, shown
from dagpack_cli.corpora.sessions import cut_off, identity_of, read_until_bad, up_to_here
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.messages import Message

__all__ = ["NAME", "read", "recognise"]

NAME = "codex"

_OLD_HEAD = {"id", "timestamp", "instructions", "git", "cwd", "originator", "cli_version"}
_LINES = ("session_meta", "response_item", "compacted", "turn_context", "event_msg")


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record is a line of a rollout, the head of an old one, or a whole one."""
    kind = record.get("type")
    if kind in _LINES:
        return isinstance(record.get("payload"), dict) and "timestamp" in record
    if kind is not None:
        return False
    if {"id", "timestamp", "instructions"} <= record.keys() <= _OLD_HEAD:
        return isinstance(record["id"], str)
    head, items = record.get("session"), record.get("items")
    if not isinstance(head, dict) or not isinstance(items, list):
        return False
    return {"id", "timestamp"} <= head.keys() and all(isinstance(item, dict) and "type" in item for item in items[:1])


def read(source: Source, _options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a history that came to an end: by a rollback, a compaction, or the file's.

    They come in the order of time. What is wrong with a line goes to ``on_bad``, and the session ends
    before it. Memory is O(texts of the file): a file is a session.
    """
    session = _Session()
    rows = read_until_bad(source, on_bad, begins=_is_whole)
    for place, row in rows:
        if _is_whole(row):
            yield from session.end(cut=rows.cut)
            session = _Session()
            yield from _whole(session, row, place, on_bad)
            session = _Session()
            continue
        try:
            yield from session.add(row, place, str(place))
        except DataError as error:
            rows.stop(error)
    yield from session.end(cut=rows.cut)


def _is_whole(row: dict[str, Any]) -> bool:
    return isinstance(row.get("session"), dict) and isinstance(row.get("items"), list)


def _whole(session: _Session, row: dict[str, Any], place: Place, on_bad: OnBad) -> Iterator[Record]:
    """Yield the examples of a session that is one object."""
    for number, record in enumerate([row["session"], *row["items"]]):
        where = f"{place}, item {number:,}" if number else f"{place}, session"
        try:
            yield from session.add(object_of(record, "item", where), place, where)
        except DataError as error:
            on_bad(up_to_here(error))
            yield from session.end(cut=True)
            return
    yield from session.end()


class _Session:
    """A session while it is read.

    The first ``session_meta`` owns it; a forked file repeats those of its ancestors, which tell
    where the history began.
    """

    def __init__(self) -> None:
        self._id = ""
        self._origin = ""
        self._parent: str | None = None
        self._system = ""
        self._place: Place | None = None
        self._items: list[Item] = []
        self._known: dict[tuple[str, str], bytes] = {}
        self._headed = False
        self._new = False
        self._count = 0

    def add(self, row: dict[str, Any], place: Place, where: str) -> Iterator[Record]:
        """Add a line, and yield the history that it ends, if it does."""
        self._place = self._place or place
        kind, payload = row.get("type"), row.get("payload")
        if kind is None and not {"id", "timestamp", "instructions"}.isdisjoint(row):
            self._head(row, where)
        elif kind == "session_meta":
            self._head(object_of(payload, "payload", where), where)
        elif kind == "response_item":
            self._append(item_of(object_of(payload, "payload", where), where))
        elif kind == "compacted":
            yield from self._compact(object_of(payload, "payload", where), where)
        elif kind == "event_msg":
            event = object_of(payload, "payload", where)
            if event.get("type") == "thread_rolled_back":
                yield from self._replace(rolled_back(self._items, _turns_of(event, where)))
        elif kind is not None and "payload" not in row:
            self._append(item_of(row, where))

    def end(self, *, cut: bool = False) -> Iterator[Record]:
        """Yield the history if something was added to it since it was last yielded.

        Where it is ``cut``, its last answer may have gone on.
        """
        if not self._new or self._place is None:
            return
        self._new = False
        self._count += 1
        if not self._id:
            self._id = self._origin = self._place.id
        messages = messages_of_items(self._items, self._origin, self._known)
        if self._system:
            identity = identity_of(NAME, "system", self._origin, self._system)
            messages.insert(0, Message(role="system", content=self._system, identity=identity))
        yield Record(
            place=self._place,
            body=Chat(cut_off(messages) if cut else tuple(messages)),
            id=f"{self._id}#{self._count}",
            group=self._id,
            family=self._parent,
        )

    def _head(self, meta: dict[str, Any], where: str) -> None:
        name = optional_text(meta, "id", where)
        parent = optional_text(meta, "forked_from_id", where)
        if not self._headed:
            self._headed = True
            self._id, self._origin, self._parent = name, parent or name, parent or None
            self._system = _prompt_of(meta, where)
        elif parent and name == self._origin:
            self._origin = parent

    def _append(self, item: Item | None) -> None:
        if item is not None:
            self._items.append(item)
            self._new = True

    def _replace(self, items: list[Item]) -> Iterator[Record]:
        if len(items) != len(self._items) or any(item.copied for item in items):
            yield from self.end()
        self._items = items

    def _compact(self, payload: dict[str, Any], where: str) -> Iterator[Record]:
        listed = payload.get("replacement_history")
        if listed is None:
            items = compacted(self._items, optional_text(payload, "message", where))
        elif isinstance(listed, list):
            found = (item_of(object_of(item, "replacement_history", where), where, copied=True) for item in listed)
            items = [item for item in found if item is not None]
        else:
            raise DataError(where, f'"replacement_history" is {shown(listed)}', "a list of items")
        yield from self._replace(items)


def _prompt_of(meta: dict[str, Any], where: str) -> str:
    """Return the system prompt: ``base_instructions``, or the ``instructions`` of older versions."""
    base = meta.get("base_instructions")
    if isinstance(base, dict):
        return optional_text(base, "text", where)
    return optional_text(meta, "base_instructions", where) or optional_text(meta, "instructions", where)


def _turns_of(event: dict[str, Any], where: str) -> int:
    turns = event.get("num_turns")
    if isinstance(turns, bool) or not isinstance(turns, int) or turns < 0:
        raise DataError(where, f'"num_turns" is {shown(turns)}', "a whole number, not negative")
    return turns
