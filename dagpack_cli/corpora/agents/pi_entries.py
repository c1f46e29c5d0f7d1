"""Entries of a pi session file, versions 1 to 3, and the context that pi builds of a path of them.

A session is a header and a tree of entries, each naming its parent. Version 1 has neither ids nor
parents: its entries are one chain. Reading follows what pi itself does with a file, except where
pi would never end: entries that are each other's ancestors are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dagpack_cli.corpora.records import OnBad, Place, Rows, shown
from dagpack_cli.corpora.sessions import link_parents
from dagpack_cli.errors import DataError

__all__ = ["Entry", "Session", "context_of", "is_entry", "is_header", "last_compaction", "read_session"]

_SUMMARY = "The conversation history before this point was compacted into the following summary:\n\n<summary>\n"
_SUMMARY_END = "\n</summary>"
_BRANCH = "The following is a summary of a branch that this conversation came back from:\n\n<summary>\n"
_BRANCH_END = "</summary>"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: where it stands, its id (in version 1 made of its line), and its fields."""

    place: Place
    id: str
    fields: dict[str, Any]

    @property
    def type(self) -> str:
        """Its type; text that is none is as good as a type nobody knows."""
        value = self.fields.get("type")
        return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class Session:
    """A session file.

    Attributes:
        header: the fields of the first line.
        entries: all entries in file order.
        parents: the index of each one's parent, -1 for a root, -2 for an entry that does not count
            because a later one has its id.
    """

    header: dict[str, Any]
    entries: list[Entry]
    parents: list[int]


def is_header(row: dict[str, Any]) -> bool:
    """Return whether a record starts a session."""
    return row.get("type") == "session" and isinstance(row.get("id"), str)


def is_entry(row: dict[str, Any]) -> bool:
    """Return whether a record is a message of a session of version 2 or 3."""
    return row.get("type") == "message" and "parentId" in row and isinstance(row.get("message"), dict)


def read_session(rows: Rows, name: str, on_bad: OnBad) -> Session | None:
    """Return the session that ``rows`` hold, None for a header alone or nothing.

    Args:
        rows: of one file.
        name: of the file, for errors.
        on_bad: called for a file that is no session.

    Raises:
        DataError: entries are each other's ancestors.
    """
    listed = list(rows)
    if not listed:
        return None
    first, header = listed[0]
    if not is_header(header):
        on_bad(DataError(str(first), "no header stands first", 'a line with "type": "session" and an id'))
        return None
    entries, parents = _linear(listed) if _version(header) < 2 else _tree(listed, on_bad)
    wheres = [str(entry.place) for entry in entries]
    linked = link_parents([entry.id for entry in entries], parents, wheres, duplicates="last")
    return Session(header, entries, linked) if entries else None


def _version(header: dict[str, Any]) -> float:
    version = header.get("version")
    return version if isinstance(version, int | float) and not isinstance(version, bool) else 1


def _linear(listed: Sequence[tuple[Place, dict[str, Any]]]) -> tuple[list[Entry], list[str | None]]:
    """Return the entries of version 1: one chain; an index of a kept entry counts the header as 0."""
    entries: list[Entry] = []
    parents: list[str | None] = []
    ids = [str(place.line or place.record + 1) for place, _ in listed]
    for number, (place, row) in enumerate(listed):
        if row.get("type") == "session":
            continue
        kept = row.get("firstKeptEntryIndex")
        if row.get("type") == "compaction" and type(kept) is int and 0 <= kept < len(ids):
            row = row | {"firstKeptEntryId": ids[kept]}
        parents.append(entries[-1].id if entries else None)
        entries.append(Entry(place, ids[number], row))
    return entries, parents


def _tree(listed: Sequence[tuple[Place, dict[str, Any]]], on_bad: OnBad) -> tuple[list[Entry], list[str | None]]:
    entries: list[Entry] = []
    parents: list[str | None] = []
    for place, row in listed:
        if row.get("type") == "session":
            continue
        own, parent = row.get("id"), row.get("parentId")
        if not isinstance(own, str) or not (parent is None or isinstance(parent, str)):
            found = f"an entry's id is {shown(own)}, its parent {shown(parent)}"
            on_bad(DataError(str(place), found, "an id is text, a parent an id or null"))
            continue
        entries.append(Entry(place, own, row))
        parents.append(parent or None)
    return entries, parents


def last_compaction(path: Sequence[Entry]) -> int | None:
    """Return the index of the last compaction on a path, None where there is none."""
    return next((number for number in range(len(path) - 1, -1, -1) if path[number].type == "compaction"), None)


def context_of(path: Sequence[Entry]) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Yield the messages that pi sends to a model at the end of ``path``, each with its entry.

    With a compaction on the path, its summary comes first, then what it kept, then what followed;
    an entry that it says to keep from and that is not on the path keeps nothing. Messages are
    pi's own: ``user``, ``assistant`` and ``toolResult``.
    """
    at = last_compaction(path)
    if at is None:
        chosen = iter(path)
    else:
        yield path[at], _user([_text(_SUMMARY + _string(path[at].fields.get("summary")) + _SUMMARY_END)])
        kept = path[at].fields.get("firstKeptEntryId")
        start = next((number for number in range(at) if path[number].id == kept), at)
        chosen = iter([*path[start:at], *path[at + 1 :]])
    for entry in chosen:
        message = _message_of(entry)
        if message is not None:
            yield entry, message


def _message_of(entry: Entry) -> dict[str, Any] | None:
    """Return what an entry adds to a context, None for nothing."""
    fields = entry.fields
    if entry.type == "message":
        message = fields.get("message")
        if not isinstance(message, dict):
            raise DataError(str(entry.place), f'"message" is {shown(message)}', "an object")
        role = message.get("role")
        convert = _CONVERTED.get(role) if isinstance(role, str) else None
        return message if convert is None else convert(message)
    if entry.type == "custom_message":
        return _custom(fields)
    if entry.type == "branch_summary" and fields.get("summary"):
        return _user([_text(_BRANCH + _string(fields["summary"]) + _BRANCH_END)])
    return None


def _custom(fields: dict[str, Any]) -> dict[str, Any]:
    content = fields.get("content")
    return _user([_text(content)] if isinstance(content, str) else content)


def _bash(message: dict[str, Any]) -> dict[str, Any] | None:
    """Return a command that the user ran as the text the model is shown; None where it is kept from it."""
    if message.get("excludeFromContext"):
        return None
    text = f"Ran `{_string(message.get('command'))}`\n"
    output = _string(message.get("output"))
    text += f"```\n{output}\n```" if output else "(no output)"
    code = message.get("exitCode")
    if message.get("cancelled"):
        text += "\n\n(command cancelled)"
    elif code is not None and code != 0:
        text += f"\n\nCommand exited with code {code}"
    if message.get("truncated") and message.get("fullOutputPath"):
        text += f"\n\n[Output truncated. Full output: {_string(message['fullOutputPath'])}]"
    return _user([_text(text)])


_CONVERTED: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "bashExecution": _bash,
    "custom": _custom,
    "hookMessage": _custom,  # what version 2 called it
}


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
