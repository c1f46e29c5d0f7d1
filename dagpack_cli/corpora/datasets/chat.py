"""Chat records: ``messages``; a ``prompt`` with its ``completion``; or one with several ``completions``.

A row that ends with a question and says what its answer is graded against (reinforcement
fine-tuning) is a prompt: nothing in it is trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagpack_cli.corpora.datasets.refusals import refuse_media, refuse_rewards, refuse_verdict, verdict_of
from dagpack_cli.corpora.files.sources import Source, read_source_rows
from dagpack_cli.corpora.messages import messages_of, tools_of_row
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Pieces, Place, Record, read_label, read_weight, shown, shown_keys
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.base import check_text
from dagpack_cli.tokenizing.chat import Piece

__all__ = ["NAME", "completed", "read", "recognise"]

NAME = "chat"

# What a row is graded against, where a model is to answer it: its own messages are a prompt.
_GRADED = ("reference_answer", "ground_truth", "grader", "reward_model")


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record is a conversation to learn as it is.

    Records with a verdict (a label, a rejected answer) are not: they would train what was rejected.
    """
    if verdict_of(record):
        return False
    messages = record.get("messages")
    if isinstance(messages, list):
        return all(isinstance(item, dict) and "role" in item for item in messages[:1])
    if not isinstance(record.get("prompt"), str | list):
        return False
    return isinstance(record.get("completion"), str | list | dict) or isinstance(record.get("completions"), list)


def read(source: Source, options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a conversation or completion; what is wrong with a record goes to ``on_bad``."""
    for place, row in read_source_rows(source, on_bad):
        try:
            records = _records_of(row, place, options)
        except DataError as error:
            on_bad(error)
        else:
            yield from records


def _records_of(row: dict[str, Any], place: Place, options: ReadOptions) -> list[Record]:
    where = str(place)
    refuse_verdict(row, where)
    refuse_rewards(row, where, options)
    refuse_media(row, where)
    tools = tools_of_row(row, where)
    if row.get("messages") is not None:
        messages = messages_of(row["messages"], where)
        answered = not messages or messages[-1].role == "assistant"
        prompt = not answered and any(row.get(name) is not None for name in _GRADED)
        bodies: list[Chat | Pieces] = [Chat(messages, tools, supervise_from=len(messages) if prompt else 0)]
    elif row.get("prompt") is not None and row.get("completion") is not None:
        bodies = [completed(row["prompt"], row["completion"], tools, where)]
    elif row.get("prompt") is not None and isinstance(row.get("completions"), list):
        bodies = [
            completed(row["prompt"], completion, tools, f"{where}, completion {index}")
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


def completed(prompt: Any, completion: Any, tools: tuple[Any, ...], where: str) -> Chat | Pieces:
    """Return a prompt with one completion: both texts, or both messages.

    Raises:
        DataError: one is text and the other is not, or one of them cannot be read.
    """
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
