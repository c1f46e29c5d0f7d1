"""Sessions of the pi coding agent: one example per leaf and per compaction epoch.

A compaction puts a summary first and drops what stood before, so the path up to it is an example
of its own: without it, what was compacted away would never be trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from dagpack_cli.corpora.agents.pi_entries import (
    Entry,
    Session,
    context_of,
    is_entry,
    is_header,
    message_of,
    read_session,
)
from dagpack_cli.corpora.files.json_rows import canonical_json
from dagpack_cli.corpora.files.sources import Source
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Record, shown
from dagpack_cli.corpora.sessions import identity_of, leaves_of, path_to, read_until_bad
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.messages import Message, ToolCall, json_text

__all__ = ["NAME", "read", "recognise"]

NAME = "pi"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NO_RESULT = "No result provided"
_FAILED = ("error", "aborted")
_CUT = "length"
_SPOKEN = ("message", "compaction", "branch_summary", "custom_message")


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record is a session's header, or one of its messages."""
    return is_header(record) or is_entry(record)


def read(source: Source, _options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a leaf and compaction epoch, in the order in which their last entries stand.

    What is wrong with an entry goes to ``on_bad``, and the session ends before it. Of one whose
    entries are each other's ancestors nothing is read. Memory is O(file).
    """
    rows = read_until_bad(source, on_bad)
    try:
        session = read_session(rows, on_bad, check=_check)
        if session is not None:
            yield from _records_of(session, source.name)
    except DataError as error:
        on_bad(error)


def _records_of(session: Session, name: str) -> Iterator[Record]:
    entries, parents = session.entries, session.parents
    identities = _identities(session)
    epochs = {parents[number] for number, entry in enumerate(entries) if entry.type == "compaction"}
    ends = sorted(set(leaves_of(parents)) | {end for end in epochs if end >= 0})
    own = str(session.header["id"])
    for end in ends:
        path = path_to(parents, end)
        messages = _messages_of([entries[number] for number in path], path, identities)
        if messages:
            yield Record(
                place=entries[end].place,
                body=Chat(tuple(messages)),
                id=f"{own}:{entries[end].id}",
                group=own,
                family=_family_of(session.header, name),
            )


def _identities(session: Session) -> list[bytes]:
    """Return who each entry is: itself, and all that was said before it.

    A fork copies a path with its times, so the path tells the copy of a message from another run
    that happened to say the same; where no time stands on the path so far, the session's id must.
    """
    entries, parents = session.entries, session.parents
    start = (identity_of("pi"), False)
    own = str(session.header["id"])
    found: list[tuple[bytes, bool] | None] = [None] * len(entries)
    for number in range(len(entries)):
        trail = []
        node = number
        while node >= 0 and found[node] is None:
            trail.append(node)
            node = parents[node]
        known = (found[node] if node >= 0 else None) or start
        for item in reversed(trail):
            if entries[item].type in _SPOKEN:
                said, has_time = _said(entries[item])
                known = (identity_of(known[0], said), known[1] or has_time)
            found[item] = known
    return [path if has_time else identity_of(path, own) for path, has_time in (item or start for item in found)]


def _said(entry: Entry) -> tuple[bytes, bool]:
    """Return an entry's content and time as bytes, and whether it has a time: the message's own, or the entry's."""
    fields = entry.fields
    value: Any = [fields.get("summary"), fields.get("content")]
    time = fields.get("timestamp")
    message = fields.get("message")
    if entry.type == "message" and isinstance(message, dict):
        value = message
        if message.get("role") == "hookMessage":
            value = message | {"role": "custom"}  # what later versions call it, and rewrite it to
        time = time if message.get("timestamp") is None else message["timestamp"]
    has_time = isinstance(time, int | float | str) and time != ""
    return _plain_json([value, time if has_time else None], str(entry.place)), has_time


def _plain_json(value: Any, where: str) -> bytes:
    """Return canonical JSON, with half surrogate pairs replaced as in `_clean`."""
    try:
        return canonical_json(value, where)
    except DataError:
        try:
            return _clean(json_text(value)).encode()
        except ValueError as error:
            raise DataError(where, f"cannot be read: {error}") from None


def _family_of(header: dict[str, Any], name: str) -> str | None:
    """Return what a session shares with its forks: the id or the name of the file it was forked from."""
    origin = header.get("parentSession") or header.get("branchedFrom")
    file = PurePosixPath((origin if isinstance(origin, str) else name).replace("\\", "/")).stem
    found = _UUID.search(file)
    return found.group() if found else f"pi:{file}"


def _messages_of(path: Sequence[Entry], numbers: Sequence[int], identities: Sequence[bytes]) -> list[Message]:
    """Return the conversation at the end of a path, as the model was given it but for failed answers.

    Answers that failed or were aborted are kept as context where they say something, unlike in what
    pi sends, which leaves all of them out: the user who goes on had seen them, and refers to them.
    A call without a result gets the one that pi makes up before it sends the next message; calls of
    failed answers get none.
    """
    known = {id(entry): identities[number] for entry, number in zip(path, numbers, strict=True)}
    messages: list[Message] = []
    pending: dict[str, str] = {}
    for entry, raw in context_of(path):
        message = _convert(raw, str(entry.place), known[id(entry)])
        if message is None:
            continue
        if message.role == "tool":
            pending.pop(message.tool_call_id, None)
        else:
            messages.extend(_unanswered(pending, messages))
            owed = message.role == "assistant" and raw.get("stopReason") not in _FAILED
            pending = dict(_calls_of(raw)) if owed else {}
        messages.append(message)
    return messages


def _unanswered(pending: dict[str, str], messages: Sequence[Message]) -> Iterator[Message]:
    before = messages[-1].identity if messages else b""
    for call, name in pending.items():
        identity = identity_of(before, call)
        yield Message(role="tool", content=_NO_RESULT, tool_name=name, tool_call_id=call, identity=identity)


def _check(entry: Entry) -> None:
    """Refuse an entry that cannot be read, wherever in the tree it stands."""
    raw = message_of(entry)
    if raw is not None:
        _convert(raw, str(entry.place), b"")
    if entry.type in _SPOKEN:
        _said(entry)


def _convert(raw: dict[str, Any], where: str, identity: bytes) -> Message | None:
    role = raw.get("role")
    blocks = _blocks_of(raw.get("content"), where)
    if role == "user":
        return Message(role="user", content=_texts(blocks, where), identity=identity)
    if role == "toolResult":
        return Message(
            role="tool",
            content=_texts(blocks, where),
            tool_name=_clean(_string(raw.get("toolName"))),
            tool_call_id=_clean(_string(raw.get("toolCallId"))),
            identity=identity,
        )
    if role != "assistant":
        raise DataError(where, f"a message's role is {shown(role)}", "user, assistant, toolResult or bashExecution")
    thinking = [
        _string(block.get("thinking"))
        for block in blocks
        if block.get("type") == "thinking" and not block.get("redacted")
    ]
    calls = tuple(_call_of(block, where) for block in blocks if block.get("type") == "toolCall")
    content = _texts([block for block in blocks if block.get("type") not in ("thinking", "toolCall")], where)
    reasoning = _clean("\n".join(part for part in thinking if part))
    if not (content or reasoning or calls):
        return None
    cut = raw.get("stopReason") == _CUT
    # Where a call was cut, what is logged is a repaired one, which the model did not write.
    failed = raw.get("stopReason") in _FAILED or (cut and blocks[-1].get("type") == "toolCall")
    return Message(
        role="assistant",
        content=content,
        reasoning=reasoning,
        tool_calls=calls,
        weight=0.0 if failed else 1.0,
        identity=identity,
        ended=not cut,
    )


def _blocks_of(content: Any, where: str) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise DataError(where, f'"content" is {shown(content)}', "a string or a list of blocks")
    return content


def _texts(blocks: Sequence[dict[str, Any]], where: str) -> str:
    """Return the text of blocks, one a line; an image is named, for its bytes are no text."""
    parts = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            parts.append(_string(block.get("text")))
        elif kind == "image":
            parts.append(f"[image: {_string(block.get('mimeType')) or 'unknown type'}]")
        else:
            raise DataError(where, f"a block of content is {shown(kind)}", "text, thinking, toolCall or image")
    return _clean("\n".join(parts))


def _call_of(block: dict[str, Any], where: str) -> ToolCall:
    name = block.get("name")
    if not isinstance(name, str):
        raise DataError(where, f"a tool call's name is {shown(name)}", "text")
    arguments = block.get("arguments")
    return ToolCall(_clean(name), _plain_json_text({} if arguments is None else arguments, where))


def _plain_json_text(value: Any, where: str) -> str:
    try:
        return _clean(json_text(value))
    except ValueError as error:
        raise DataError(where, f"the arguments of a tool call are no JSON: {error}") from None


def _calls_of(raw: dict[str, Any]) -> Iterator[tuple[str, str]]:
    content = raw.get("content")
    for block in content if isinstance(content, list) else ():
        if block.get("type") == "toolCall":
            yield _clean(_string(block.get("id"))), _clean(_string(block.get("name")))


def _clean(text: str) -> str:
    """Return text with halves of surrogate pairs replaced by U+FFFD, as sending it in UTF-8 did."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
