"""Alpaca records: an ``instruction`` with its ``input``, answered by an ``output``.

The question is the instruction, a line end and the input; without an input, the instruction
alone. Rounds of a ``history`` stand before it, and their answers are trained too. An empty answer
is not: it would teach to end the turn at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagpack_cli.corpora.datasets.refusals import refuse_media, refuse_rewards, refuse_verdict, verdict_of
from dagpack_cli.corpora.datasets.sharegpt import with_system
from dagpack_cli.corpora.files.sources import Source, read_source_rows
from dagpack_cli.corpora.messages import said_something, tools_of_row
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Place, Record, read_label, read_weight, shown
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.base import check_text
from dagpack_cli.tokenizing.messages import Message

__all__ = ["NAME", "question_of", "read", "recognise"]

NAME = "alpaca"


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record is an instruction with its output, and no verdict on it."""
    fields = (record.get("instruction"), record.get("output"))
    return all(isinstance(value, str) for value in fields) and not verdict_of(record)


def read(source: Source, options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a record; what is wrong with one goes to ``on_bad``."""
    for place, row in read_source_rows(source, on_bad):
        try:
            record = _record_of(row, place, options)
        except DataError as error:
            on_bad(error)
        else:
            yield record


def question_of(row: dict[str, Any], where: str) -> tuple[Message, ...]:
    """Return what stands before the answer: the system prompt, the history, the question.

    Raises:
        DataError: one of them is of another type.
    """
    messages: list[Message] = []
    for index, pair in enumerate(_list(row, "history", where), 1):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise DataError(where, f"round {index} of the history is {shown(pair)}", "a question and its answer")
        question, answer = (_text(value, f"round {index} of the history", where) for value in pair)
        messages += (Message(role="user", content=question), _answer(answer))
    parts = (_text(row.get("instruction"), '"instruction"', where), _text(row.get("input") or "", '"input"', where))
    messages.append(Message(role="user", content="\n".join(part for part in parts if part)))
    return with_system(row, tuple(messages), where)


def _record_of(row: dict[str, Any], place: Place, options: ReadOptions) -> Record:
    where = str(place)
    refuse_verdict(row, where)
    refuse_rewards(row, where, options)
    refuse_media(row, where)
    answer = _answer(_text(row.get("output"), '"output"', where))
    return Record(
        place=place,
        body=Chat((*question_of(row, where), answer), tools_of_row(row, where)),
        id=read_label(row, "id", place) or place.id,
        weight=read_weight(row.get("weight"), place),
        group=read_label(row, "group", place),
    )


def _answer(text: str) -> Message:
    return said_something(Message(role="assistant", content=text))


def _list(row: dict[str, Any], name: str, where: str) -> list[Any]:
    value = row.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise DataError(where, f'"{name}" is {shown(value)}', "a list")
    return value


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise DataError(where, f"{name} is {shown(value)}", "a string")
    check_text(value, where)
    return value
