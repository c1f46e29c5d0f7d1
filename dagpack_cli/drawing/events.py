"""The events of a session file, as a tree: of pi every entry, of other formats the messages.

A pi file says itself what hangs below what. Every other conversation is a path; equal beginnings of
the paths of a file (or, where a format says which message is which, the same messages) are one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagpack_cli.corpora.agents.pi_entries import is_header
from dagpack_cli.corpora.agents.pi_entries import read_session as read_entries
from dagpack_cli.corpora.files.sources import read_source_rows, stat_source
from dagpack_cli.corpora.formats import format_of
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import BadRecords, Chat
from dagpack_cli.corpora.sessions import identity_of
from dagpack_cli.corpora.sniff import format_of_file
from dagpack_cli.errors import DataError, NoInputError
from dagpack_cli.tokenizing.messages import Message

__all__ = ["Event", "Session", "is_pi", "read_session"]

_MOST_EVENTS = 200_000
_TEXT = 400  # characters kept of a message: a label shows fewer
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(slots=True)
class Event:
    """One event.

    Attributes:
        kind: user, assistant, tool, system, compaction, summary (of a branch left) or setting.
        text: the beginning of what it says.
        parent: the number of the event above, -1 for a root.
        calls: tool calls it makes.
        tag: what it was called: a label of the session, or the id of the conversation it ends.
    """

    kind: str
    text: str
    parent: int
    calls: int = 0
    tag: str = ""


@dataclass(slots=True)
class Session:
    """What is known of a file: its events, in its order.

    Attributes:
        name: of the session, or of the file.
        events: a parent may stand behind its child.
        current: the leaf the session is at, -1 where the format does not say.
        unreadable: records left out because they cannot be read.
        cut: whether the file holds more events than were read.
    """

    name: str
    events: list[Event] = field(default_factory=list)
    current: int = -1
    unreadable: int = 0
    cut: bool = False


def read_session(path: Path) -> Session:
    """Return the events of a session file.

    Raises:
        DataError: entries are each other's ancestors, or the file holds no conversation.
        NoInputError, PermissionDeniedError, DiskError: it cannot be read.

    Memory is O(events), of which at most 200,000 are read.
    """
    stat_source(path, path.name, "")  # a missing file is named here
    bad = BadRecords()
    if is_pi(path):
        return _pi(path, bad)
    name, reason = format_of_file(path, path.name, ReadOptions())
    if name is None:
        raise NoInputError(path.name, reason, "a session, recordings of a game, or an output of build")
    return _conversations(path, name, bad)


def is_pi(path: Path) -> bool:
    """Return whether the first record of a file is the header of a pi session."""
    try:
        first = next(read_source_rows(stat_source(path, path.name, ""), BadRecords()), None)
    except DataError:
        return False
    return first is not None and is_header(first[1])


def _pi(path: Path, bad: BadRecords) -> Session:
    session = Session(path.name)
    rows = itertools.islice(read_source_rows(stat_source(path, path.name, ""), bad), _MOST_EVENTS + 1)
    read = read_entries(rows, bad)
    session.unreadable = bad.count
    if read is None:
        return session
    session.cut = len(read.entries) == _MOST_EVENTS
    kept = [number for number, parent in enumerate(read.parents) if parent != -2]  # the others do not count
    renumbered = {number: index for index, number in enumerate(kept)} | {-1: -1}
    tags: dict[str, str] = {}
    for entry in read.entries:
        target = entry.fields.get("targetId")
        if entry.type == "label" and isinstance(target, str):
            tags[target] = _string(entry.fields.get("label"))
        elif entry.type == "session_info":
            session.name = _string(entry.fields.get("name")).strip() or session.name
    for number in kept:
        event = _event_of_entry(read.entries[number].fields)
        event.parent, event.tag = renumbered[read.parents[number]], tags.get(read.entries[number].id, "")
        session.events.append(event)
    session.current = len(kept) - 1  # pi goes on from the last line
    return session


def _event_of_entry(row: dict[str, Any]) -> Event:
    kind = row.get("type")
    if kind == "message" and isinstance(row.get("message"), dict):
        return _message(row["message"])
    if kind == "custom_message":
        return Event("user", _text(row.get("content"))[:_TEXT], -1)
    if kind in ("compaction", "branch_summary"):
        return Event("compaction" if kind == "compaction" else "summary", _string(row.get("summary"))[:_TEXT], -1)
    fields = ("modelId", "thinkingLevel", "name", "label", "customType")
    values = " ".join(row[key] for key in fields if isinstance(row.get(key), str))
    return Event("setting", f"{_string(kind).replace('_', ' ')} {values}"[:_TEXT], -1)


def _message(message: dict[str, Any]) -> Event:
    role = message.get("role")
    if role == "bashExecution":
        return Event("tool", f"$ {_string(message.get('command'))}"[:_TEXT], -1)
    text = _text(message.get("content"))
    if role == "toolResult":
        return Event("tool", f"{_string(message.get('toolName'))}: {text}"[:_TEXT], -1)
    if role != "assistant":
        return Event("user", text[:_TEXT], -1)
    content = message.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    calls = [_string(block.get("name")) for block in blocks if block.get("type") == "toolCall"]
    stopped = message.get("stopReason")
    note = f" ({stopped})" if stopped in ("error", "aborted") else ""
    return Event("assistant", (text or _called(calls))[:_TEXT] + note, -1, len(calls))


def _called(names: list[str]) -> str:
    return f"calls {', '.join(names[:8])}" if names else ""


def _text(content: Any) -> str:
    """Return the text of a message's content, as far as a label shows it."""
    if not isinstance(content, list):
        return _string(content)
    texts = (_string(block.get("text")) for block in content if isinstance(block, dict))
    return " ".join(text for text in texts if text)


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _conversations(path: Path, format: str, bad: BadRecords) -> Session:
    """Return the conversations of a file as one forest: what they have in common stands once."""
    session = Session(path.name)
    known: dict[tuple[int, bytes], int] = {}
    for record in format_of(format).read(stat_source(path, path.name, format), ReadOptions(), bad):
        if not isinstance(record.body, Chat):
            hint = f"build it and draw the build: dagpack build {path} OUT, then dagpack draw OUT"
            raise DataError(path.name, f"{format} holds no conversation", "a session of messages", hint=hint)
        parent = -1
        for message in record.body.messages:
            key = (parent, message.identity or _key(message))
            if key not in known:
                known[key] = len(session.events)
                session.events.append(_event(message, parent))
            parent = known[key]
        if parent >= 0:
            session.events[parent].tag = record.id
        if len(session.events) >= _MOST_EVENTS:
            session.cut = True
            break
    session.unreadable = bad.count
    return session


def _key(message: Message) -> bytes:
    calls = (part for call in message.tool_calls for part in (call.name, call.arguments))
    return identity_of(message.role, message.content, message.reasoning, *calls)


def _event(message: Message, parent: int) -> Event:
    text = message.content or _called([call.name for call in message.tool_calls])
    return Event(_ROLES.get(message.role, "tool"), text[:_TEXT], parent, len(message.tool_calls))
