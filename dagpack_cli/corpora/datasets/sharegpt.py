"""ShareGPT records: ``conversations`` of turns that say who they are ``from`` and hold a ``value``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagpack_cli.corpora.datasets.refusals import refuse_media, refuse_rewards, refuse_verdict, verdict_of
from dagpack_cli.corpora.files.json_rows import parse_json
from dagpack_cli.corpora.files.sources import Source, read_source_rows
from dagpack_cli.corpora.messages import call_of, message_of, said_something, tools_of_row, weight_of
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Place, Record, read_label, read_weight, shown, shown_keys
from dagpack_cli.errors import DataError, shorten
from dagpack_cli.tokenizing.base import check_text
from dagpack_cli.tokenizing.messages import Message, ToolCall

__all__ = ["NAME", "conversation_in", "read", "recognise", "turns_of", "with_system"]

NAME = "sharegpt"

_FIELDS = ("conversations", "conversation", "messages")
_SPEAKERS = {
    "system": "system",
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "claude", "model", "ai"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response", "tool_response"), "tool"),
}
_CALLERS = ("function_call", "tool_call")
_THINK, _END_THINK = "<think>", "</think>"


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record is a conversation of such turns, with no verdict on it."""
    if verdict_of(record):
        return False
    turns = conversation_in(record)
    if turns is None or ("messages" in record and not _has_speaker(turns)):
        return False
    return all(isinstance(turn, dict) and ("from" in turn or "role" in turn) for turn in turns[:1])


def read(source: Source, options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a conversation; what is wrong with one goes to ``on_bad``."""
    for place, row in read_source_rows(source, on_bad):
        try:
            record = _record_of(row, place, options)
        except DataError as error:
            on_bad(error)
        else:
            yield record


def conversation_in(row: dict[str, Any]) -> list[Any] | None:
    """Return the list of turns or messages of a row, None where it has none."""
    return next((row[name] for name in _FIELDS if isinstance(row.get(name), list)), None)


def turns_of(value: Any, where: str) -> tuple[Message, ...]:
    """Return a list of turns as messages; a turn with ``role`` instead of ``from`` is a message already.

    Raises:
        DataError: it is no list, or something in it is no turn of a known speaker.
    """
    if not isinstance(value, list):
        raise DataError(where, f"turns are {shown(value)}", "a list")
    return tuple(_turn_of(turn, f"{where}, turn {index}") for index, turn in enumerate(value, 1))


def with_system(row: dict[str, Any], messages: tuple[Message, ...], where: str) -> tuple[Message, ...]:
    """Return the messages behind the row's own ``system`` prompt, unless they start with one.

    Raises:
        DataError: the prompt is no text.
    """
    system = row.get("system")
    if system is None or system == "" or (messages and messages[0].role in ("system", "developer")):
        return messages
    if not isinstance(system, str):
        raise DataError(where, f'"system" is {shown(system)}', "a string")
    check_text(system, where)
    return (Message(role="system", content=system), *messages)


def _record_of(row: dict[str, Any], place: Place, options: ReadOptions) -> Record:
    where = str(place)
    refuse_verdict(row, where)
    refuse_rewards(row, where, options)
    refuse_media(row, where)
    turns = conversation_in(row)
    if turns is None:
        raise DataError(where, f"the record has {shown_keys(row)}", 'a list of turns in "conversations"')
    return Record(
        place=place,
        body=Chat(with_system(row, turns_of(turns, where), where), tools_of_row(row, where)),
        id=read_label(row, "id", place) or place.id,
        weight=read_weight(row.get("weight"), place),
        group=read_label(row, "group", place),
    )


def _has_speaker(turns: list[Any]) -> bool:
    return bool(turns) and isinstance(turns[0], dict) and "from" in turns[0]


def _turn_of(turn: Any, where: str) -> Message:
    if not isinstance(turn, dict):
        raise DataError(where, f"a turn is {shown(turn)}", 'an object with "from" and "value"')
    if "from" not in turn and "role" in turn:
        return message_of(turn, where)
    speaker, value = turn.get("from"), turn.get("value")
    name = speaker.lower() if isinstance(speaker, str) else ""
    weight = weight_of(turn, where)
    if name in _CALLERS:
        reasoning, calls = _calls_in(value, where)
        return Message(role="assistant", reasoning=reasoning, tool_calls=calls, weight=weight)
    if name not in _SPEAKERS:
        found = shorten(speaker) if isinstance(speaker, str) else shown(speaker)
        raise DataError(where, f"unknown speaker {found}", f"known are {', '.join((*_SPEAKERS, *_CALLERS))}")
    if not isinstance(value, str):
        raise DataError(where, f'"value" of a turn is {shown(value)}', "a string")
    check_text(value, where)
    tool = turn.get("name")
    tool_name = tool if isinstance(tool, str) else ""
    return said_something(Message(role=_SPEAKERS[name], content=value, tool_name=tool_name, weight=weight))


def _calls_in(value: Any, where: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the thought and the calls of a turn: one call or a list, as JSON or its text."""
    thought = ""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith(_THINK) and _END_THINK in text:
            thought, _, text = text.removeprefix(_THINK).partition(_END_THINK)
            thought = thought.strip()
            check_text(thought, where)
        value = parse_json(text.encode("utf-8", "surrogatepass"), f"{where}, function call")
    calls = value if isinstance(value, list) else [value]
    if not calls:
        raise DataError(where, "a function call is an empty list", "a name and arguments")
    return thought, tuple(call_of(call, where) for call in calls)
