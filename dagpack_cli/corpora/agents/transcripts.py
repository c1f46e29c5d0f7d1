"""What logs of agents have in common: sessions whose messages carry no ids, thinking blocks, calls as written.

A log without ids tells its messages apart by the times in it: a message is all that was said up to
it, and when. So a copy that was saved earlier in the run carries the same messages. Without times,
a message is told by what the whole session says and by its position: a copy of the file is the same
session, another run is another one unless nothing in it differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from dagpack_cli.corpora.files.json_rows import parse_json
from dagpack_cli.corpora.records import shown
from dagpack_cli.corpora.sessions import identity_of
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.base import check_text
from dagpack_cli.tokenizing.messages import Message, ToolCall, json_text

__all__ = ["call_as_written", "chained", "costs_of", "is_cut_off", "parts_of", "seed_of", "session_of", "thinking_of"]


def parts_of(message: Message) -> tuple[str, ...]:
    """Return what a message says, for `identity_of`: two messages that differ in any of it have other parts."""
    calls = [part for call in message.tool_calls for part in (call.name, call.arguments)]
    return (message.role, message.content, message.reasoning, message.tool_call_id, str(len(calls)), *calls)


def session_of(name: str, messages: Iterable[Message], *marks: str) -> bytes:
    """Return 16 bytes that stand for a session.

    Args:
        name: of its format.
        messages: all that it says, in order.
        marks: what else tells this run from another that said the same: times, an environment.
    """
    said = (part for message in messages for part in parts_of(message))
    return identity_of(name, str(len(marks)), *marks, *said)


def seed_of(
    name: str, messages: Iterable[Message], times: Iterable[str], *, run: Sequence[str] = (), marks: Sequence[str] = ()
) -> bytes:
    """Return 16 bytes that stand for a run: for its beginning where a time is known, else for all of it.

    Args:
        name: of its format.
        messages: all that it says, in order.
        times: in order; an empty one is not known.
        run: what a copy that was saved earlier says as well: an environment, an instance.
        marks: what else tells this run from another that said the same, without times: its costs.
    """
    first = next((time for time in times if time), "")
    return identity_of(name, "since", *run, first) if first else session_of(name, messages, *run, *marks)


def chained(messages: Sequence[Message], times: Sequence[str], seed: bytes) -> tuple[Message, ...]:
    """Return ``messages`` with identities: each stands for all that was said up to it, and when, since ``seed``."""
    found = []
    for message, time in zip(messages, times, strict=True):
        seed = identity_of(seed, time, *parts_of(message))
        found.append(replace(message, identity=seed))
    return tuple(found)


def costs_of(info: Any) -> list[str]:
    """Return the numbers that a harness logs of a run, which two runs that said the same hardly share.

    >>> costs_of({"exit_status": "x", "model_stats": {"instance_cost": 0.5}})
    ['instance_cost 0.5']
    """
    info = info if isinstance(info, dict) else {}
    stats = info.get("model_stats")
    numbers = {**info, **(stats if isinstance(stats, dict) else {})}
    return [f"{key} {value!r}" for key, value in sorted(numbers.items()) if isinstance(value, int | float)]


def is_cut_off(response: Any) -> bool:
    """Return whether the answer of an API says that it reached the limit of its length.

    >>> is_cut_off({"choices": [{"finish_reason": "length"}]}), is_cut_off({"choices": [{"finish_reason": "stop"}]})
    (True, False)
    """
    choices = response.get("choices") if isinstance(response, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and first.get("finish_reason") in ("length", "max_tokens")


def thinking_of(blocks: Any) -> str:
    """Return the text of a list of thinking blocks, joined by line feeds; what is redacted has none.

    >>> thinking_of([{"type": "thinking", "thinking": "a"}, {"type": "redacted_thinking", "data": "="}])
    'a'
    """
    if not isinstance(blocks, list):
        return ""
    texts = [block.get("thinking") for block in blocks if isinstance(block, dict)]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def call_as_written(name: Any, arguments: Any, where: str) -> tuple[ToolCall, bool]:
    """Return a tool call, and whether its arguments are JSON.

    Models write arguments that are no JSON, and harnesses log them: they are kept as one JSON
    string, so that what follows still has its context, but nobody should learn them.

    Raises:
        DataError: the name is no string, or a text is no valid Unicode.
    """
    if not isinstance(name, str):
        raise DataError(where, f"the name of a tool call is {shown(name)}", "a string")
    check_text(name, where)
    value, valid = {} if arguments is None else arguments, True
    if isinstance(value, str):
        try:
            value = parse_json(value.encode("utf-8", "surrogatepass"), where) if value.strip() else {}
        except DataError:
            valid = False
    try:
        text = json_text(value)
    except ValueError:
        text, valid = json_text(arguments if isinstance(arguments, str) else shown(arguments)), False
    check_text(text, where)
    return ToolCall(name, text), valid
