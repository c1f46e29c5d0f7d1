"""Messages and tools as chat templates read them: the fields of Hugging Face, arguments as objects."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.cutting import Controls
from dagpack_cli.tokenizing.disguise import Disguise
from dagpack_cli.tokenizing.jinja import Row, Watched
from dagpack_cli.tokenizing.messages import Message

__all__ = ["CALLS", "THINKING", "disguise_of", "longer", "rows_of", "says", "tools_of"]

THINKING = ("reasoning_content", "thinking")  # the second is what gpt-oss reads; transformers fills both, too
CALLS = ("tool_calls",)


def disguise_of(messages: Sequence[Message], tools: Sequence[Any], controls: Controls, source: str) -> Disguise:
    """Return what hides the control tokens that a conversation spells."""
    texts = [text for message in messages for text in _texts_of(message)]
    texts += [json.dumps(tool, ensure_ascii=False) for tool in tools]
    return Disguise(controls, texts, source)


def rows_of(messages: Sequence[Message], roles: Mapping[str, str], disguise: Disguise, *, watched: bool) -> list[Row]:
    """Return every message as a template reads it.

    Content is never null, and a field that holds nothing is left out. Calls and results get the id
    that joins them: what a result says it answers, else a number; in their order, for calls carry no
    id of their own.

    Args:
        messages: the conversation.
        roles: the name of a role where the template knows it by another one.
        disguise: hides control tokens.
        watched: assistants' messages tell when they are read, which is how generation blocks find theirs.
    """
    touched = [-1]
    rows: list[Row] = []
    waiting: deque[dict[str, Any]] = deque()
    count = 0
    for index, message in enumerate(messages):
        fields: dict[str, Any] = {
            "role": roles.get(message.role, message.role),
            "content": disguise.hide(message.content),
        }
        if message.reasoning:
            fields |= dict.fromkeys(THINKING, disguise.hide(message.reasoning))
        if message.tool_calls:
            waiting.clear()
            calls = []
            for call in message.tool_calls:
                arguments = disguise.hide_values(_parsed(call.arguments, index))
                # Nine characters and digits: some templates accept no other ids.
                calls.append(
                    {
                        "type": "function",
                        "id": f"call{count:05d}",
                        "function": {"name": disguise.hide(call.name), "arguments": arguments},
                    }
                )
                count += 1
            waiting.extend(calls)
            fields["tool_calls"] = calls
        elif message.role in ("tool", "function"):
            answered = waiting.popleft() if waiting else None
            if message.tool_call_id and answered is not None:
                answered["id"] = disguise.hide(message.tool_call_id)
            if message.tool_call_id or answered is not None:
                fields["tool_call_id"] = answered["id"] if answered is not None else disguise.hide(message.tool_call_id)
            name = disguise.hide(message.tool_name) or (answered["function"]["name"] if answered is not None else "")
            if name:
                fields["name"] = name
        kind = Watched if watched and message.role == "assistant" else Row
        rows.append(kind(fields, index, touched))
    return rows


def tools_of(tools: Sequence[Any], disguise: Disguise) -> list[Any] | None:
    """Return the tools as a template reads them, None for none; what was given stays as it was."""
    if not tools:
        return None
    return [disguise.hide_values(_parsed(json.dumps(tool, ensure_ascii=False), -1)) for tool in tools]


def longer(row: Row, keys: Sequence[str], more: str) -> Row:
    """Return a message with more at the end of some of the texts that it has."""
    fields = dict(row)
    fields.update({key: fields[key] + more for key in keys if key in fields})
    return type(row)(fields, row.index, row.touched)


def says(row: Row, text: str) -> bool:
    """Whether a message's content, or a string of its calls, holds a text."""
    waiting: list[Any] = [row["content"], row.get(CALLS[0])]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if text in value:
                return True
        elif isinstance(value, dict | list):
            waiting.extend([*value, *value.values()] if isinstance(value, dict) else value)
    return False


def _texts_of(message: Message) -> list[str]:
    texts = [message.content, message.reasoning, message.tool_name, message.tool_call_id]
    for call in message.tool_calls:
        texts += [call.name, call.arguments]
    return texts


def _parsed(text: str, index: int) -> Any:
    """Return JSON; text that is none stays text."""
    try:
        return json.loads(text)
    except RecursionError:
        where = f"message {index + 1}" if index >= 0 else "tools"
        raise DataError(where, "JSON is nested too deeply", "a few hundred levels") from None
    except ValueError:
        return text
