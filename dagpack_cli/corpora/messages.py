"""Messages of chat records: the shapes in which files hold them, read into `Message`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dagpack_cli.corpora.files.json_rows import parse_json
from dagpack_cli.corpora.records import shown
from dagpack_cli.errors import DataError, shorten
from dagpack_cli.tokenizing.base import check_text
from dagpack_cli.tokenizing.messages import Message, ToolCall, check_role, json_text

__all__ = ["call_of", "message_of", "messages_of", "said_something", "tools_of", "tools_of_row", "weight_of"]

_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_REASONING_PARTS = ("reasoning", "thinking")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def messages_of(value: Any, where: str) -> tuple[Message, ...]:
    """Return a list of messages.

    Raises:
        DataError: it is no list, or something in it is no message; ``where`` is told.
    """
    if not isinstance(value, list):
        raise DataError(where, f"messages are {shown(value)}", "a list")
    return tuple(message_of(item, f"{where}, message {index}") for index, item in enumerate(value, 1))


def message_of(value: Any, where: str) -> Message:
    """Return one message.

    An assistant's message that says nothing is context (see `said_something`). Content is a string,
    null, or a list of parts: text parts are joined, reasoning and tool-call parts go where they
    belong. Where there is none, a refusal is what the assistant said. Arguments of calls may be a
    mapping or its JSON text.

    Raises:
        DataError: it is no message, has an unknown role, or a part that is no text.
    """
    if not isinstance(value, dict):
        raise DataError(where, f"a message is {shown(value)}", "an object")
    role = check_role(value.get("role"), where)
    content, reasoning, calls = _content_of(value.get("content"), where)
    for field in _REASONING_FIELDS:
        if isinstance(value.get(field), str):
            reasoning = reasoning or value[field]
    if not content and isinstance(value.get("refusal"), str):
        content = value["refusal"]
    if value.get("audio"):
        raise DataError(where, '"audio" belongs to this message', "only text can be read")
    listed = value.get("tool_calls") or []
    if not isinstance(listed, list):
        raise DataError(where, f'"tool_calls" is {shown(listed)}', "a list")
    calls.extend(call_of(call, where) for call in listed)
    if value.get("function_call"):
        calls.append(call_of(value["function_call"], where))
    for text in (content, reasoning):
        check_text(text, where)
    message = Message(
        role=role,
        content=content,
        reasoning=reasoning,
        tool_calls=tuple(calls),
        tool_name=_name_of(value.get("name")),
        tool_call_id=_name_of(value.get("tool_call_id")),
        weight=weight_of(value, where),
    )
    return said_something(message)


def said_something(message: Message) -> Message:
    """Return the message, as context where an assistant writes nothing: no text, no thought, no call.

    Files whose calls were lost on the way are full of those; trained, they teach to end the turn at once.
    """
    if message.role != "assistant" or message.tool_calls or message.content.strip() or message.reasoning.strip():
        return message
    return replace(message, weight=0.0)


def tools_of(value: Any, where: str) -> tuple[Any, ...]:
    """Return the tools of a record: a list, or its JSON text; none for null.

    Raises:
        DataError: it is neither.
    """
    if isinstance(value, str):
        value = parse_json(value.encode("utf-8", "surrogatepass"), where) if value.strip() else None
    if value is None:
        return ()
    if not isinstance(value, list):
        raise DataError(where, f'"tools" is {shown(value)}', "a list of tools, or its JSON text")
    for tool in value:
        _json(tool, "tools", where)
    return tuple(value)


def tools_of_row(row: dict[str, Any], where: str) -> tuple[Any, ...]:
    """Return the tools of a record: its ``tools``, or the older ``functions``, which mean the same.

    Raises:
        DataError: one of them is no list of tools, or both are given.
    """
    tools = tools_of(row.get("tools"), where)
    functions = tools_of(row.get("functions"), where)
    if tools and functions:
        raise DataError(where, 'both "tools" and "functions" are given', "one of them")
    return tools or tuple(
        item if isinstance(item, dict) and "function" in item else {"type": "function", "function": item}
        for item in functions
    )


def _content_of(value: Any, where: str) -> tuple[str, str, list[ToolCall]]:
    """Return the text, the reasoning and the calls in a message's content."""
    if value is None:
        return "", "", []
    if isinstance(value, str):
        return value, "", []
    if not isinstance(value, list):
        raise DataError(where, f'"content" is {shown(value)}', "a string, null, or a list of parts")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for part in value:
        if isinstance(part, str):
            part = {"text": part}
        kind = part.get("type", "text") if isinstance(part, dict) else None
        text = next((part[key] for key in ("text", "value", kind) if key in part), None) if kind else None
        if kind == "tool_call":
            calls.append(call_of(text if text is not None else part, where))
        elif kind in (*_TEXT_PARTS, *_REASONING_PARTS) and isinstance(text, str):
            (thoughts if kind in _REASONING_PARTS else texts).append(text)
        else:
            raise DataError(where, f"a part of the content is {shown(kind)}", "only text can be read")
    return "".join(texts), "".join(thoughts), calls


def call_of(value: Any, where: str) -> ToolCall:
    """Return a tool call: a name with its arguments, bare or below ``function``, or the JSON text of that.

    Raises:
        DataError: it has no name, or arguments that are no JSON.
    """
    if isinstance(value, str):
        value = parse_json(value.encode("utf-8", "surrogatepass"), where)
    inner = value.get("function", value) if isinstance(value, dict) else value
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise DataError(where, f"a tool call is {shown(value)}", "a name and arguments")
    arguments = inner.get("arguments", inner.get("parameters"))
    if isinstance(arguments, str):
        text = arguments.strip()
        arguments = parse_json(text.encode("utf-8", "surrogatepass"), f"{where}, tool arguments") if text else {}
    check_text(inner["name"], where)
    return ToolCall(inner["name"], _json({} if arguments is None else arguments, "arguments", where))


def _json(value: Any, name: str, where: str) -> str:
    try:
        text = json_text(value)
    except ValueError as error:
        raise DataError(where, f'"{name}" cannot be written as JSON: {shorten(str(error))}') from None
    check_text(text, where)
    return text


def weight_of(value: dict[str, Any], where: str) -> float:
    """Return the weight of a message: 1 where it says nothing of it.

    Raises:
        DataError: it is neither 0 nor 1.
    """
    for field in ("weight", "loss_weight"):
        weight = value.get(field)
        if weight is None:
            continue
        if isinstance(weight, bool) or weight not in (0, 1):
            raise DataError(where, f'"{field}" of a message is {shown(weight)}', "0 or 1")
        return float(weight)
    return float(value["loss"]) if isinstance(value.get("loss"), bool) else 1.0


def _name_of(value: Any) -> str:
    return value if isinstance(value, str) else ""
