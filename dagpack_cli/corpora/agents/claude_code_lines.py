"""Lines of a Claude Code session, read into entries: who wrote what, and below which entry.

A line holds one block of an answer, a user's message or a tool's result; lines of other types
(progress, snapshots, errors of the API) say nothing to the model and only link what hangs below
them. Entries keep the texts alone: structured results, usage and images are left in the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dagpack_cli.corpora.agents.blocks import arguments_of, object_of, optional_text, placeholder_of, text_of
from dagpack_cli.corpora.records import Place, shown
from dagpack_cli.errors import DataError

__all__ = ["Block", "Entry", "Segment", "entry_of"]

_SYNTHETIC = "<synthetic>"
# Ids of the API are random and longer; a shorter one is a counter, which two sessions may share.
_RANDOM_ID = 16


class Block(NamedTuple):
    """One block of a message: a text, a thought, a call with its arguments, or the result of a call."""

    kind: Literal["text", "thought", "call", "result"]
    text: str
    call_id: str = ""
    name: str = ""


class Segment(NamedTuple):
    """Messages that a compaction kept as they were: from ``head`` to ``tail``, put behind ``anchor``."""

    head: str
    anchor: str
    tail: str


@dataclass(slots=True, kw_only=True)
class Entry:
    """One line.

    Attributes:
        place: where it stands.
        where: the same, for messages.
        uuid: its id, made up where the line has none.
        own_uuid: its id, empty where the line has none.
        parent: the uuid of the line it hangs below, None for a root.
        kind: who speaks; a ``link`` says nothing, but what hangs below it hangs below its parent.
        blocks: what is said.
        message_id: of an answer, the id of the API's response, which one line a block repeats.
        chain: empty for the conversation with the user, else the subagent whose own one it is.
        session: the session's id.
        time: the time stamp, as text.
        source_call: the call on whose behalf a text was injected.
        synthetic: the program wrote this answer, not the model.
        injected: a text that the program added, not the user.
        summary: a summary that begins a compaction's new context.
        boundary: a compaction; nothing before it is context of what follows.
        segment: of a compaction, what it kept.
        stop: of an answer, why the model stopped, empty where the line does not say.
    """

    place: Place
    where: str
    uuid: str
    own_uuid: str
    parent: str | None
    kind: Literal["user", "assistant", "link"]
    blocks: list[Block] = field(default_factory=list)
    message_id: str = ""
    chain: str = ""
    session: str = ""
    time: str = ""
    source_call: str = ""
    synthetic: bool = False
    injected: bool = False
    summary: bool = False
    boundary: bool = False
    segment: Segment | None = None
    stop: str = ""

    @property
    def origin(self) -> str:
        """Return what tells this message from another that says the same, in every copy of it.

        Resumed sessions repeat lines under their ids and at their times, with another session's id.
        An id that is a counter is no one's alone: only with its time is it told from others.
        """
        for name in (self.message_id, self.own_uuid):
            if len(name) >= _RANDOM_ID:
                return name
        name = self.own_uuid or self.message_id
        return "\n".join((name, self.time or self.session)) if name else self.time or self.where


def entry_of(line: dict[str, Any], place: Place, where: str) -> Entry | None:
    """Return a line's entry, None for a line that is no part of the conversation's tree.

    Raises:
        DataError: the line is damaged.
    """
    kind = text_of(line, "type", where)
    if kind not in ("user", "assistant") and not isinstance(line.get("uuid"), str):
        return None
    entry = _links_of(line, place, where)
    if kind == "system" and line.get("subtype") == "compact_boundary":
        entry.boundary = True
        entry.segment = _segment_of(line.get("compactMetadata"))
    elif kind in ("user", "assistant") and not _unsent(line):
        _read_message(entry, kind, line, where)
    return entry


def _links_of(line: dict[str, Any], place: Place, where: str) -> Entry:
    parent = optional_text(line, "parentUuid", where)
    agent = optional_text(line, "agentId", where)
    uuid = optional_text(line, "uuid", where)
    return Entry(
        place=place,
        where=where,
        uuid=uuid,
        own_uuid=uuid,
        parent=parent or None,
        kind="link",
        chain=f"agent {agent}" if line.get("isSidechain") is True else "",
        session=optional_text(line, "sessionId", where),
        time=optional_text(line, "timestamp", where),
        source_call=optional_text(line, "sourceToolUseID", where),
        injected=line.get("isMeta") is True,
        summary=line.get("isCompactSummary") is True,
    )


def _unsent(line: dict[str, Any]) -> bool:
    """Return whether a line is shown to the user only: the report of a failed call, or a notice."""
    notice = line.get("isVisibleInTranscriptOnly") is True and line.get("isCompactSummary") is not True
    return notice or line.get("isApiErrorMessage") is True


def _segment_of(metadata: Any) -> Segment | None:
    kept = metadata.get("preservedSegment") if isinstance(metadata, dict) else None
    if not isinstance(kept, dict):
        return None
    head, anchor, tail = (kept.get(name) for name in ("headUuid", "anchorUuid", "tailUuid"))
    if isinstance(head, str) and isinstance(anchor, str) and isinstance(tail, str):
        return Segment(head, anchor, tail)
    return None


def _read_message(entry: Entry, kind: str, line: dict[str, Any], where: str) -> None:
    message = object_of(line.get("message"), "message", where)
    role = message.get("role", kind)
    if role not in ("user", "assistant"):
        raise DataError(where, f"a message has the role {shown(role)}", '"user" or "assistant"')
    if role == "assistant":
        entry.blocks = _answer_of(message.get("content"), where)
        entry.message_id = optional_text(message, "id", where)
        entry.synthetic = message.get("model") == _SYNTHETIC
        entry.stop = optional_text(message, "stop_reason", where)
    else:
        entry.blocks = _request_of(message.get("content"), where)
    entry.kind = role


def _parts_of(content: Any, where: str) -> list[dict[str, Any]]:
    """Return a content as a list of blocks; a string is one text block, as is a string in a list."""
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list):
        raise DataError(where, f'"content" is {shown(content)}', "a string or a list of blocks")
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    for part in parts:
        text_of(object_of(part, "content", where), "type", where)
    return parts


def _answer_of(content: Any, where: str) -> list[Block]:
    """Return what a model wrote; redacted thinking and what a server added to an answer are not."""
    blocks = []
    for part in _parts_of(content, where):
        kind = part["type"]
        if kind == "text":
            blocks.append(Block("text", text_of(part, "text", where)))
        elif kind == "thinking":
            blocks.append(Block("thought", text_of(part, "thinking", where)))
        elif kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
            name, call_id = text_of(part, "name", where), text_of(part, "id", where)
            blocks.append(Block("call", arguments_of(part.get("input"), where), call_id, name))
    return [block for block in blocks if block.text]


def _request_of(content: Any, where: str) -> list[Block]:
    """Return the texts and results that a user's message holds; other things are named in their place."""
    blocks = []
    for part in _parts_of(content, where):
        if part["type"] == "tool_result":
            text = _result_of(part.get("content"), where)
            blocks.append(Block("result", text, text_of(part, "tool_use_id", where)))
        else:
            blocks.append(Block("text", _shown_part(part, where)))
    return blocks


def _result_of(content: Any, where: str) -> str:
    """Return the text of a tool's result, whose texts stand on lines of their own."""
    if content is None:
        return ""
    return "\n".join(_shown_part(part, where) for part in _parts_of(content, where))


def _shown_part(part: dict[str, Any], where: str) -> str:
    if part["type"] == "text":
        return text_of(part, "text", where)
    source = part.get("source")
    return placeholder_of(part["type"], source.get("media_type") if isinstance(source, dict) else None)
