"""mini-SWE-agent trajectories: an object with ``info`` and ``messages``, or a bare list of messages.

The first version wrote nothing but the list, so a file whose rows are ``{role, content}`` is one
conversation as a whole. A damaged row ends it: what came before is what the agent saw.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dagpack_cli.corpora.agents.transcripts import chained, costs_of, is_cut_off, seed_of, thinking_of
from dagpack_cli.corpora.files.sources import Source
from dagpack_cli.corpora.messages import message_of
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Place, Record, read_label, shown_keys
from dagpack_cli.corpora.sessions import read_growing
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.messages import ROLES, Message

__all__ = ["NAME", "read", "recognise"]

NAME = "mini-swe-agent"

_EXIT = "exit"
_INFO = ("mini_version", "model_stats", "exit_status")
_MESSAGE = frozenset(
    ("role", "content", "extra", "tool_calls", "tool_call_id", "name", "reasoning_content", "thinking_blocks")
)


def recognise(record: dict[str, Any], options: ReadOptions) -> bool:
    """Return whether the record is a trajectory, or one message of a bare list of them."""
    if isinstance(record.get("messages"), list):
        return _names_itself(record) or _has_info(record.get("info"))
    return options.text_field != "content" and _is_message(record)


def read(source: Source, _options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a trajectory; bare messages of a file are one. Memory is O(longest conversation).

    What is wrong with a trajectory goes to ``on_bad``; behind a damaged row, bare messages end.
    """
    bare: list[tuple[Place, dict[str, Any]]] = []
    damage: list[DataError] = []

    def reject(error: DataError) -> None:
        damage.append(error)
        on_bad(error)

    for place, row in read_growing(source, reject):
        try:
            if isinstance(row.get("messages"), list):
                yield _trajectory_of(row, place)
            elif not _is_message(row):
                raise DataError(
                    str(place), f"the record has {shown_keys(row)}", "info and messages, or role and content"
                )
            elif not damage:
                bare.append((place, row))
        except DataError as error:
            reject(error)
    if bare:
        yield from _conversation_of(bare, reject)


def _names_itself(record: dict[str, Any]) -> bool:
    name = record.get("trajectory_format")
    return isinstance(name, str) and name.startswith(NAME)


def _has_info(info: Any) -> bool:
    return isinstance(info, dict) and any(field in info for field in _INFO)


def _is_message(record: dict[str, Any]) -> bool:
    """Return whether a record is a message and nothing else."""
    role = record.get("role")
    known = isinstance(role, str) and (role in ROLES or role == _EXIT)
    return known and "content" in record and record.keys() <= _MESSAGE


def _trajectory_of(row: dict[str, Any], place: Place) -> Record:
    where = str(place)
    items = [(f"{where}, message {index}", item) for index, item in enumerate(row["messages"], 1)]
    group = read_label(row, "instance_id", place)
    messages = [_message_of(item, at) for at, item in items]
    return _record_of(messages, [item for _, item in items], place, group, costs_of(row.get("info")))


def _conversation_of(bare: list[tuple[Place, dict[str, Any]]], on_bad: OnBad) -> Iterator[Record]:
    """Yield the one conversation of a file of bare messages, up to the first that cannot be read."""
    messages: list[Message] = []
    for place, row in bare:
        try:
            messages.append(_message_of(row, str(place)))
        except DataError as error:
            on_bad(error)
            break
    if messages:
        yield _record_of(messages, [row for _, row in bare[: len(messages)]], bare[0][0], None, [])


def _message_of(item: Any, where: str) -> Message:
    """Return a message; one of role ``exit`` stands as a user's until it is dropped."""
    if isinstance(item, dict) and item.get("role") == _EXIT:
        return Message(role="user")
    message = message_of(item, where)
    thinking = "" if message.reasoning else thinking_of(item.get("thinking_blocks"))
    extra = item.get("extra")
    ended = not is_cut_off(extra.get("response") if isinstance(extra, dict) else None)
    return replace(message, reasoning=message.reasoning or thinking, ended=ended)


def _record_of(
    messages: list[Message], items: list[dict[str, Any]], place: Place, group: str | None, costs: list[str]
) -> Record:
    kept: list[Message] = []
    times: list[str] = []
    for index, message in enumerate(messages):
        # The harness ends a run with a message of its own, which no model was ever sent.
        if items[index].get("role") == _EXIT or (index == len(messages) - 1 and _is_empty(message)):
            continue
        if message.role == "assistant" and index + 1 < len(items) and _is_format_error(items[index + 1]):
            message = replace(message, weight=0.0)
        kept.append(message)
        times.append(_time_of(items[index]))
    seed = seed_of(NAME, kept, times, run=[group or ""], marks=costs)
    return Record(place=place, body=Chat(chained(kept, times, seed)), id=place.id, group=group or seed.hex())


def _is_empty(message: Message) -> bool:
    return not (message.content or message.reasoning or message.tool_calls)


def _is_format_error(item: dict[str, Any]) -> bool:
    """Return whether the harness refused what the model wrote before."""
    extra = item.get("extra")
    return isinstance(extra, dict) and extra.get("interrupt_type") == "FormatError"


def _time_of(item: dict[str, Any]) -> str:
    extra = item.get("extra")
    time = extra.get("timestamp") if isinstance(extra, dict) else None
    return str(time) if time and isinstance(time, int | float | str) else ""
