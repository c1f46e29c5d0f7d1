"""Messages of a Gemini session as its recorder writes them: an answer holds its calls and their results.

Source of the fields: google-gemini/gemini-cli, packages/core/src/services/chatRecordingTypes.ts;
parts are those of the Gemini API.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dagpack_cli.corpora.agents.blocks import arguments_of, object_of, optional_text, placeholder_of, text_of
from dagpack_cli.corpora.records import shown
from dagpack_cli.corpora.sessions import identity_of
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.messages import Message, ToolCall

__all__ = ["Turn", "turn_of"]

_NAME = "gemini"
# Ids of the recorder are random and longer; a shorter one is a counter, which two sessions may share.
_RANDOM_ID = 16
_MEDIA = ("image", "audio", "video")


@dataclass(frozen=True, slots=True)
class Turn:
    """What one record says: an answer with the results of its calls, or a user's message.

    Attributes:
        id: the record's.
        messages: in their order; none for a notice that only the user sees.
        results: results that stand in a user's message, which the answer may hold as well.
    """

    id: str
    messages: tuple[Message, ...]
    results: tuple[Message, ...] = ()


def turn_of(record: dict[str, Any], where: str, scope: str) -> Turn:
    """Return what a record says.

    Args:
        record: of a message.
        where: for errors.
        scope: the session's id, which tells apart ids that are counters.

    Raises:
        DataError: it is damaged.
    """
    name = text_of(record, "id", where)
    kind = text_of(record, "type", where)
    # Made up of a time and a number, an id holds a comma.
    known = name if len(name) >= _RANDOM_ID and "," not in name else f"{name}\n{scope}"
    if kind == "gemini":
        return Turn(name, _answer(known, record, where))
    if kind != "user":
        return Turn(name, ())
    texts, results = [], []
    for part in _parts_of(record.get("content"), where):
        response = part.get("functionResponse")
        if response is None:
            texts.append(_text_of_part(part, where))
        else:
            response = object_of(response, "functionResponse", where)
            call_id = optional_text(response, "id", where)
            tool = optional_text(response, "name", where)
            results.append(_result(known, call_id, tool, _response_of(response, where)))
    content = "".join(texts)
    messages: tuple[Message, ...] = ()
    if content or not results:
        messages = (Message(role="user", content=content, identity=identity_of(_NAME, "user", known, content)),)
    return Turn(name, messages, tuple(results))


def _answer(name: str, record: dict[str, Any], where: str) -> tuple[Message, ...]:
    texts: list[str] = []
    thoughts = [_thought_of(object_of(item, "thoughts", where), where) for item in _list(record, "thoughts", where)]
    made: dict[str, ToolCall] = {}
    for part in _parts_of(record.get("content"), where):
        if part.get("functionCall") is not None:
            call = object_of(part["functionCall"], "functionCall", where)
            made[optional_text(call, "id", where) or f"{len(made)}"] = _call_of(call, where)
        elif part.get("thought") is True:
            thoughts.append(optional_text(part, "text", where))
        else:
            texts.append(_text_of_part(part, where))
    results: list[Message] = []
    recorded: dict[str, ToolCall] = {}
    for item in _list(record, "toolCalls", where):
        call = object_of(item, "toolCalls", where)
        call_id = text_of(call, "id", where)
        recorded[call_id] = _call_of(call, where)
        text = _recorded_result(call, call_id, where)
        if text is not None:
            results.append(_result(name, call_id, recorded[call_id].name, text))
    # The recorder repeats the calls of the content, under their ids where the API gave them any.
    others = [call for call_id, call in made.items() if call_id not in recorded and call not in recorded.values()]
    calls = (*recorded.values(), *others)
    content = "".join(texts)
    reasoning = "\n\n".join(thought for thought in thoughts if thought)
    if not (content or reasoning or calls):
        return tuple(results)
    said = [f"{call.name} {call.arguments}" for call in calls]
    identity = identity_of(_NAME, "assistant", name, content, reasoning, *said)
    message = Message(
        role="assistant",
        content=content,
        reasoning=reasoning,
        tool_calls=tuple(calls),
        identity=identity,
        ended=bool(content or calls),  # Thoughts alone are no answer: what came of them was cut off.
    )
    return (message, *results)


def _result(name: str, call_id: str, tool: str, text: str) -> Message:
    identity = identity_of(_NAME, "tool", name, call_id, text)
    return Message(role="tool", content=text, tool_name=tool, tool_call_id=call_id, identity=identity)


def _call_of(call: dict[str, Any], where: str) -> ToolCall:
    return ToolCall(text_of(call, "name", where), arguments_of(call.get("args"), where))


def _list(record: dict[str, Any], name: str, where: str) -> list[Any]:
    value = record.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise DataError(where, f'"{name}" is {shown(value)}', "a list")
    return value


def _parts_of(content: Any, where: str) -> list[dict[str, Any]]:
    """Return a content as parts: a string, a part, or a list of either."""
    listed = content if isinstance(content, list) else [] if content is None else [content]
    parts = [{"text": part} if isinstance(part, str) else part for part in listed]
    return [object_of(part, "content", where) for part in parts]


def _text_of_part(part: dict[str, Any], where: str) -> str:
    if "text" in part:
        return optional_text(part, "text", where)
    for key in ("inlineData", "fileData"):
        if isinstance(part.get(key), dict):
            media = str(part[key].get("mimeType") or "")
            kind = media.partition("/")[0]
            return placeholder_of(kind if kind in _MEDIA else "file", media)
    return placeholder_of("part")


def _thought_of(thought: dict[str, Any], where: str) -> str:
    """Return the summary of a thought as the model wrote it: its subject in bold, then what it says."""
    subject, said = optional_text(thought, "subject", where), optional_text(thought, "description", where)
    return "\n".join(part for part in (f"**{subject}**" if subject else "", said) if part)


def _recorded_result(call: dict[str, Any], call_id: str, where: str) -> str | None:
    """Return the result in a recorded call, None where it has none.

    A recorded result may be the whole of the user's turn that answered: then its own part counts.
    """
    if call.get("result") is None:
        return None
    parts = _parts_of(call["result"], where)
    responses = [part["functionResponse"] for part in parts if isinstance(part.get("functionResponse"), dict)]
    own = [response for response in responses if response.get("id") == call_id] or responses
    texts = [_response_of(response, where) for response in own]
    texts.extend(_text_of_part(part, where) for part in parts if part.get("functionResponse") is None)
    return "\n".join(texts)


def _response_of(response: dict[str, Any], where: str) -> str:
    """Return the text of a function's response: its ``output`` or ``error`` alone, else all of it as JSON."""
    value = response.get("response")
    if isinstance(value, dict) and len(value) == 1:
        (key,) = value
        if key in ("output", "error") and isinstance(value[key], str):
            return text_of(value, key, where)
    return "" if value is None else arguments_of(value, where)
