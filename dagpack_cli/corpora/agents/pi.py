"""Sessions of the pi coding agent: one example per leaf and per compaction epoch.

A compaction puts a summary first and drops what stood before, so the path up to it is an example
of its own: without it, what was compacted away would never be trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from dagpack_cli.corpora.agents.pi_entries import Entry, Session, context_of, is_entry, is_header, read_session
from dagpack_cli.corpora.files.json_rows import canonical_json
from dagpack_cli.corpora.files.sources import Source, read_source_rows
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Record, shown
from dagpack_cli.corpora.sessions import identity_of, leaves_of, path_to
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.messages import Message, ToolCall, json_text

__all__ = ["NAME", "read", "recognise"]

NAME = "pi"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NO_RESULT = "No result provided"
_FAILED = ("error", "aborted")
_SPOKEN = ("message", "compaction", "branch_summary", "custom_message")


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record is a session's header, or one of its messages."""
    return is_header(record) or is_entry(record)


def read(source: Source, _options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a leaf and compaction epoch, in the order in which their last entries stand.

    A session that cannot be read whole goes to ``on_bad`` and yields nothing. Memory is O(file).
    """
    rows = read_source_rows(source.path, source.name, on_bad)
    try:
        session = read_session(rows, source.name, on_bad)
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
    that happened to say the same; where no times are written, the session's id must.
    """
    entries, parents = session.entries, session.parents
    found: list[bytes | None] = [None] * len(entries)
    seed = identity_of("pi", "" if _has_times(entries) else str(session.header["id"]))
    for number in range(len(entries)):
        trail = []
        node = number
        while node >= 0 and found[node] is None:
            trail.append(node)
            node = parents[node]
        known = found[node] if node >= 0 else seed
        for item in reversed(trail):
            if entries[item].type in _SPOKEN:
                known = identity_of(known or seed, _said(entries[item]))
            found[item] = known
    return [item or seed for item in found]


def _has_times(entries: Sequence[Entry]) -> bool:
    messages = [entry.fields["message"] for entry in entries if isinstance(entry.fields.get("message"), dict)]
    return all(isinstance(message.get("timestamp"), int | float) for message in messages)


def _said(entry: Entry) -> bytes:
    """Return an entry's content as bytes: of a message, all of it."""
    where = str(entry.place)
    fields = entry.fields
    value = fields.get("message") if entry.type == "message" else [fields.get("summary"), fields.get("content")]
    return _plain_json(value, where)


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
    """Return the conversation at the end of a path, as the model was given it.

    Answers that failed or were aborted are context, empty ones left out; a call without a result
    gets the one that pi makes up before it sends the next message.
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
            pending = dict(_calls_of(raw)) if message.role == "assistant" and message.weight else {}
        messages.append(message)
    return messages


def _unanswered(pending: dict[str, str], messages: Sequence[Message]) -> Iterator[Message]:
    before = messages[-1].identity if messages else b""
    for call, name in pending.items():
        identity = identity_of(before, call)
        yield Message(role="tool", content=_NO_RESULT, tool_name=name, tool_call_id=call, identity=identity)


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
    return Message(
        role="assistant",
        content=content,
        reasoning=reasoning,
        tool_calls=calls,
        weight=0.0 if raw.get("stopReason") in _FAILED else 1.0,
        identity=identity,
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
