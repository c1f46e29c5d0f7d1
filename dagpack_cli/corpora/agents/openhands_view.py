"""What an agent of OpenHands saw: its events in order, and what condensations made of them.

A condensation forgets events and may put a summary in their place. What came before it is one
context and what follows another: an *epoch* each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dagpack_cli.corpora.records import shown
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.messages import Message

__all__ = ["Entry", "Epoch", "View", "forgotten_ids", "offset_of", "with_metadata"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One event.

    Attributes:
        id: what a condensation calls it.
        message: what it says to the model, or the model to it; None for nothing.
        calls: the ids of the tool calls that it makes.
        response: the answer of the model that it is a part of, empty where that is not known.
        whole: the message is the whole answer, which every event of the answer repeats; else it
            holds this event's call alone.
    """

    id: str
    message: Message | None
    calls: tuple[str, ...] = ()
    response: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Epoch:
    """What the model saw last before a condensation or the end, and its tools."""

    messages: tuple[Message, ...]
    tools: tuple[Any, ...]


class View:
    """The events that the model sees, as they are added and forgotten. O(events) a condensation."""

    def __init__(self) -> None:
        self.tools: tuple[Any, ...] = ()
        self.is_fresh = True  # Something is in it that was in no epoch.
        self._entries: list[Entry] = []
        self._condensed = False

    def add(self, entry: Entry) -> None:
        """Append an event."""
        self._entries.append(entry)
        self.is_fresh = True

    def ids(self) -> list[str]:
        """Return the ids of the events in it, in order."""
        return [entry.id for entry in self._entries]

    def forget(self, ids: Iterable[str], summary: Entry | None, offset: int | None) -> None:
        """Remove events, and put ``summary`` at ``offset`` of what is left, at its end for None."""
        gone = set(ids)
        kept = [entry for entry in self._entries if entry.id not in gone]
        if summary is not None:
            kept.insert(len(kept) if offset is None else min(offset, len(kept)), summary)
        self._entries = kept
        self._condensed = True

    def epoch(self) -> Epoch:
        """Return what the model sees now; parallel calls of one answer are one message."""
        self.is_fresh = False
        known = {call for entry in self._entries for call in entry.calls}
        messages: list[Message] = []
        seen: set[str] = set()
        last = ""
        for entry in self._entries:
            message = entry.message
            if message is None or (entry.whole and entry.response in seen):
                continue
            if self._condensed and message.tool_call_id and message.tool_call_id not in known:
                continue  # Its call was forgotten, so no model can be sent it.
            if entry.response and entry.response == last and not entry.whole:
                messages[-1] = _joined(messages[-1], message)
            else:
                messages.append(message)
            last = entry.response
            seen.add(last)
        return Epoch(tuple(messages), self.tools)


def _joined(first: Message, second: Message) -> Message:
    """Return one answer of two events: text and thinking stand in the first, calls in each."""
    return replace(
        first,
        content=first.content + second.content,
        reasoning=first.reasoning or second.reasoning,
        tool_calls=(*first.tool_calls, *second.tool_calls),
        weight=min(first.weight, second.weight),
        ended=first.ended and second.ended,
    )


def forgotten_ids(value: Any, where: str) -> list[str]:
    """Return the ids of forgotten events as text.

    Raises:
        DataError: they are no list of ids.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(type(item) in (int, str) for item in value):
        raise DataError(where, f'"forgotten_event_ids" is {shown(value)}', "a list of ids")
    return [str(item) for item in value]


def offset_of(value: Any, where: str) -> int | None:
    """Return where a summary goes, None for the end.

    Raises:
        DataError: it is no whole number from 0.
    """
    if value is not None and (type(value) is not int or value < 0):
        raise DataError(where, f'"summary_offset" is {shown(value)}', "a whole number from 0")
    return value


def with_metadata(text: str, metadata: Any) -> str:
    r"""Return a command's output with what is sent to the model behind it: folder, interpreter, exit code.

    >>> with_metadata("a.txt", {"exit_code": 0, "working_dir": "/w"})
    'a.txt\n[Current working directory: /w]\n[Command finished with exit code 0]'
    """
    if not isinstance(metadata, dict):
        return text
    before, after = metadata.get("prefix"), metadata.get("suffix")
    text = f"{before if isinstance(before, str) else ''}{text}{after if isinstance(after, str) else ''}"
    for name, field in (("Current working directory", "working_dir"), ("Python interpreter", "py_interpreter_path")):
        if isinstance(metadata.get(field), str) and metadata[field]:
            text += f"\n[{name}: {metadata[field]}]"
    code = metadata.get("exit_code")
    if type(code) is int and code != -1:
        text += f"\n[Command finished with exit code {code}]"
    return text
