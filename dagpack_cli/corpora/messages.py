"""Messages of chat records: the shapes in which files hold them, read into `Message`."""

from __future__ import annotations

from typing import Any

from dagpack_cli.corpora.json_rows import parse_json
from dagpack_cli.corpora.records import shown
from dagpack_cli.errors import DataError, shorten
from dagpack_cli.tokenizing.base import check_text
from dagpack_cli.tokenizing.messages import Message, ToolCall, check_role, json_text

__all__ = ["message_of", "messages_of", "tools_of"]

_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_REASONING_PARTS = ("reasoning", "thinking")


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

    Content is a string, null, or a list of parts: text parts are joined, reasoning and tool-call
    parts go where they belong. Arguments of calls may be a mapping or its JSON text.

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
    listed = value.get("tool_calls") or []
    if not isinstance(listed, list):
        raise DataError(where, f'"tool_calls" is {shown(listed)}', "a list")
    calls.extend(_call_of(call, where) for call in listed)
    if isinstance(value.get("function_call"), dict):
        calls.append(_call_of(value["function_call"], where))
    for text in (content, reasoning):
        check_text(text, where)
    return Message(
        role=role,
        content=content,
        reasoning=reasoning,
        tool_calls=tuple(calls),
        tool_name=_name_of(value.get("name")),
        tool_call_id=_name_of(value.get("tool_call_id")),
        weight=_weight_of(value, where),
    )


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
            calls.append(_call_of(text if text is not None else part, where))
        elif kind in ("text", *_REASONING_PARTS) and isinstance(text, str):
            (texts if kind == "text" else thoughts).append(text)
        else:
            raise DataError(where, f"a part of the content is {shown(kind)}", "only text can be read")
    return "".join(texts), "".join(thoughts), calls


def _call_of(value: Any, where: str) -> ToolCall:
    if isinstance(value, str):
        value = parse_json(value.encode("utf-8", "surrogatepass"), where)
    inner = value.get("function", value) if isinstance(value, dict) else value
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise DataError(where, f"a tool call is {shown(value)}", "a name and arguments")
    arguments = inner.get("arguments")
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


def _weight_of(value: dict[str, Any], where: str) -> float:
    for field in ("weight", "loss_weight"):
        weight = value.get(field)
        if weight is None:
            continue
        if isinstance(weight, bool) or weight not in (0, 1):
            raise DataError(where, f'"{field}" of a message is {shown(weight)}', "0 or 1")
        return float(weight)
    return 1.0


def _name_of(value: Any) -> str:
    return value if isinstance(value, str) else ""
