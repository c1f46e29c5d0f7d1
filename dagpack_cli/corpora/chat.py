"""Chat records: ``messages``; a ``prompt`` with its ``completion``; or one with several ``completions``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagpack_cli.corpora.messages import messages_of, tools_of
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Pieces, Place, Record, read_label, read_weight, shown, shown_keys
from dagpack_cli.corpora.sources import Source, read_source_rows
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.base import check_text
from dagpack_cli.tokenizing.chat import Piece

__all__ = ["NAME", "read", "recognise"]

NAME = "chat"

_VERDICTS = ("label", "labels", "chosen", "rejected", "rejected_response")


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record is a conversation to learn as it is.

    Records with a verdict (a label, a rejected answer) are not: they would train what was rejected.
    """
    if _verdict_of(record):
        return False
    messages = record.get("messages")
    if isinstance(messages, list):
        return all(isinstance(item, dict) and "role" in item for item in messages[:1])
    if not isinstance(record.get("prompt"), str | list):
        return False
    return isinstance(record.get("completion"), str | list | dict) or isinstance(record.get("completions"), list)


def read(source: Source, _options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a conversation or completion; what is wrong with a record goes to ``on_bad``."""
    for place, row in read_source_rows(source.path, source.name, on_bad):
        try:
            records = _records_of(row, place)
        except DataError as error:
            on_bad(error)
        else:
            yield from records


def _verdict_of(record: dict[str, Any]) -> str:
    for name in _VERDICTS:
        value = record.get(name)
        if name.startswith("label") and not isinstance(value, bool | list):
            continue
        if value is not None:
            return name
    return ""


def _records_of(row: dict[str, Any], place: Place) -> list[Record]:
    where = str(place)
    verdict = _verdict_of(row)
    if verdict:
        raise DataError(where, f'"{verdict}" judges this record', "a plain chat was expected, with nothing rejected")
    tools = tools_of(row.get("tools"), where)
    if row.get("messages") is not None:
        bodies: list[Chat | Pieces] = [Chat(messages_of(row["messages"], where), tools)]
    elif row.get("prompt") is not None and row.get("completion") is not None:
        bodies = [_completed(row["prompt"], row["completion"], tools, where)]
    elif row.get("prompt") is not None and isinstance(row.get("completions"), list):
        bodies = [
            _completed(row["prompt"], completion, tools, f"{where}, completion {index}")
            for index, completion in enumerate(row["completions"], 1)
        ]
    else:
        raise DataError(where, f"the record has {shown_keys(row)}", "messages, or prompt and completion")
    return _with_provenance(bodies, row, place)


def _with_provenance(bodies: list[Chat | Pieces], row: dict[str, Any], place: Place) -> list[Record]:
    """Return one record a body; several of one row get ``#0``, ``#1``, ... behind its id."""
    own_id = read_label(row, "id", place) or place.id
    weight = read_weight(row.get("weight"), place)
    group = read_label(row, "group", place)
    group = read_label(row, "group_id", place) if group is None else group
    several = "completions" in row and row.get("completion") is None and row.get("messages") is None
    return [
        Record(place=place, body=body, id=f"{own_id}#{index}" if several else own_id, weight=weight, group=group)
        for index, body in enumerate(bodies)
    ]


def _completed(prompt: Any, completion: Any, tools: tuple[Any, ...], where: str) -> Chat | Pieces:
    """Return a prompt with one completion: both texts, or both messages."""
    if isinstance(prompt, str) and isinstance(completion, str):
        if tools:
            raise DataError(where, '"tools" are given with a plain text prompt', "only messages can announce tools")
        for text in (prompt, completion):
            check_text(text, where)
        return Pieces((Piece(prompt), Piece(completion, supervised=True)))
    if isinstance(completion, dict):
        completion = [completion]
    if isinstance(prompt, list) and isinstance(completion, list):
        before = messages_of(prompt, f"{where}, prompt")
        return Chat((*before, *messages_of(completion, f"{where}, completion")), tools, supervise_from=len(before))
    raise DataError(
        where,
        f"the prompt is {shown(prompt)}, the completion {shown(completion)}",
        "two strings, or two lists of messages",
    )
