"""Entries of a pi session file, versions 1 to 3, and the context that pi builds of a path of them.

A session is a header and a tree of entries, each naming its parent. Version 1 has neither ids nor
parents: its entries are one chain. Reading follows what pi itself does with a file, with two
exceptions. Entries that are each other's ancestors, with which pi would never end, are an error.
And pi passes over an entry that cannot be read, so that what hangs below it becomes a root: here
the session ends before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dagpack_cli.corpora.records import OnBad, Place, shown
from dagpack_cli.corpora.sessions import link_parents, up_to_here
from dagpack_cli.errors import DataError

__all__ = ["Entry", "Session", "context_of", "is_entry", "is_header", "last_compaction", "message_of", "read_session"]

_VERSIONS = (1, 2, 3)
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


def read_session(
    rows: Iterable[tuple[Place, dict[str, Any]]], on_bad: OnBad, *, check: Callable[[Entry], object] | None = None
) -> Session | None:
    """Return the session that ``rows`` hold, None for a header alone or nothing.

    Args:
        rows: of one file.
        on_bad: called for a file that is no session, and for the first entry that is none: the
            session ends before it.
        check: raises `DataError` for an entry that cannot be read.

    Raises:
        DataError: entries are each other's ancestors.
    """
    listed = iter(rows)
    first, header = next(listed, (None, {}))
    if first is None:
        return None
    if not is_header(header):
        on_bad(DataError(str(first), "no header stands first", 'a line with "type": "session" and an id'))
        return None
    version = 1 if header.get("version") is None else header["version"]
    if isinstance(version, bool) or version not in _VERSIONS:
        on_bad(DataError(str(first), f"version {shown(version)}", "1 to 3"))
        return None
    entries: list[Entry] = []
    parents: list[str | None] = []
    lines = [""]  # Of version 1, the id of every line, the header's first.
    for place, row in listed:
        lines.append(str(place.line or place.record + 1))
        if row.get("type") == "session":
            continue
        try:
            entry = _numbered(place, row, lines) if version == 1 else _named(place, row)
            if check is not None:
                check(entry)
        except DataError as error:
            on_bad(up_to_here(error))
            break
        before = entries[-1].id if entries else None
        parents.append(before if version == 1 else entry.fields.get("parentId") or None)
        entries.append(entry)
    wheres = [str(entry.place) for entry in entries]
    linked = link_parents([entry.id for entry in entries], parents, wheres, duplicates="last")
    return Session(header, entries, linked) if entries else None


def _numbered(place: Place, row: dict[str, Any], lines: Sequence[str]) -> Entry:
    """Return an entry of version 1; an index of a kept entry counts the header as 0."""
    kept = row.get("firstKeptEntryIndex")
    if row.get("type") == "compaction" and type(kept) is int and 0 <= kept < len(lines):
        row = row | {"firstKeptEntryId": lines[kept]}
    return Entry(place, lines[-1], row)


def _named(place: Place, row: dict[str, Any]) -> Entry:
    own, parent = row.get("id"), row.get("parentId")
    if not isinstance(own, str) or not (parent is None or isinstance(parent, str)):
        found = f"an entry's id is {shown(own)}, its parent {shown(parent)}"
        raise DataError(str(place), found, "an id is text, a parent an id or null")
    return Entry(place, own, row)


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
        message = message_of(entry)
        if message is not None:
            yield entry, message


def message_of(entry: Entry) -> dict[str, Any] | None:
    """Return what an entry adds to a context that it stands in, None for nothing.

    Raises:
        DataError: it should be a message and is none.
    """
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
