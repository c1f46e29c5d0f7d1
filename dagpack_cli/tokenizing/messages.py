"""Messages of a conversation, as every chat format is read into and every template writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dagpack_cli.errors import DataError, shorten

__all__ = ["ROLES", "Message", "ToolCall", "check_role", "json_text", "tool_list_text"]

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call an assistant makes.

    Attributes:
        name: the function's name.
        arguments: its arguments as JSON text (see `json_text`), written once:
            the same for a mapping and for the JSON string of that mapping.
    """

    name: str
    arguments: str

    def text(self) -> str:
        """Return the call as one line of JSON.

        >>> ToolCall("f", '{"a": 1}').text()
        '{"name": "f", "arguments": {"a": 1}}'
        """
        return f'{{"name": {json_text(self.name)}, "arguments": {self.arguments}}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message.

    Attributes:
        role: one of `ROLES`.
        content: its text, text parts joined; empty where it only calls tools.
        reasoning: what the assistant thought before it answered.
        tool_calls: the calls it makes, in order.
        tool_name: of a tool's result, the tool; kept for formats that know it, not rendered.
        tool_call_id: of a tool's result, the call it answers; not rendered.
        weight: 0 keeps the message as context only, anything else trains it.
        identity: of a message that several examples may carry (leaves of a session, fork files): it is
            trained in the first of them alone. Empty: it belongs to its own example only.
        ended: False: the answer was cut off: what ends its turn is no target.
    """

    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_name: str = ""
    tool_call_id: str = ""
    weight: float = 1.0
    identity: bytes = b""
    ended: bool = True


def check_role(role: object, where: str) -> str:
    """Return ``role`` if a template can write it.

    Raises:
        DataError: it is not one of `ROLES`.
    """
    if isinstance(role, str) and role in ROLES:
        return role
    found = shorten(role) if isinstance(role, str) else "that is no text"
    raise DataError(where, f"unknown role {found}", f"known roles: {', '.join(ROLES)}")


def json_text(value: Any) -> str:
    """Return JSON as chat templates write it: ``", "`` and ``": "``, characters unescaped, keys in their order.

    The order is the model's own: to train it to write another would be to train what it never wrote.

    Raises:
        ValueError: the value is no JSON (NaN, an unknown type) or is nested too deeply.

    >>> json_text({"b": 1, "a": "ü"})
    '{"b": 1, "a": "ü"}'
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def tool_list_text(tools: Sequence[Any]) -> str:
    """Return the paragraph of the first system message that announces ``tools``, in their order.

    The words are those of the ChatML models that were trained to call tools.
    """
    listed = "".join("\n" + json_text(tool) for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>{listed}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )
