"""Preference records: answers that somebody chose or rejected, in pairs, one by one, or step by step.

Only what was chosen is trained. What was rejected is read too, as context that trains nothing, so
that it is counted and a pair can be seen whole; pruning leaves it out of the windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dagpack_cli.corpora.datasets.judged import Judged, judged_of
from dagpack_cli.corpora.datasets.prompts import group_of_prompt
from dagpack_cli.corpora.datasets.refusals import refuse_media, verdict_of
from dagpack_cli.corpora.files.sources import Source, read_source_rows
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Pieces, Place, Record, read_label, read_weight, shown
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.base import check_text
from dagpack_cli.tokenizing.chat import Piece
from dagpack_cli.tokenizing.messages import Message

__all__ = ["NAME", "read", "recognise"]

NAME = "preference"

_LABELLED = ("completion", "messages", "conversations", "conversation", "output")
_STEP_END = "\n"


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record holds answers and a verdict on them."""
    verdict = verdict_of(record)
    if verdict == "label" or verdict == "kto_tag":
        return isinstance(record[verdict], bool) and any(record.get(name) is not None for name in _LABELLED)
    if verdict == "labels":
        return isinstance(record.get("completions"), list)
    return verdict != ""


def read(source: Source, _options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example an answer, chosen ones first; what is wrong with a record goes to ``on_bad``."""
    for place, row in read_source_rows(source, on_bad):
        try:
            records = _records_of(row, place)
        except DataError as error:
            on_bad(error)
        else:
            yield from records


def _records_of(row: dict[str, Any], place: Place) -> list[Record]:
    where = str(place)
    refuse_media(row, where)
    if isinstance(row.get("labels"), list):
        return [_steps(row, place)]
    judged = judged_of(row, where)
    own_id = read_label(row, "id", place) or place.id
    group = _group_of(row, judged.prompt, place)
    weight = read_weight(row.get("weight"), place)
    pair = len(judged.chosen) + len(judged.rejected) > 1
    found = []
    for name, answers in (("chosen", judged.chosen), ("rejected", judged.rejected)):
        for index, answer in enumerate(answers):
            number = f"-{index + 1}" if len(answers) > 1 else ""
            body = _body(judged, answer, chosen=name == "chosen")
            label = f"{own_id}#{name}{number}" if pair else own_id
            found.append(
                Record(place=place, body=body, id=label, weight=weight, group=group, rejected=name == "rejected")
            )
    return found


def _body(judged: Judged, answer: str | tuple[Message, ...], *, chosen: bool) -> Chat | Pieces:
    """Return a prompt with one answer, which is trained where it was chosen."""
    prompt = judged.prompt
    if isinstance(prompt, str) or isinstance(answer, str):
        assert isinstance(prompt, str)
        assert isinstance(answer, str)
        return Pieces((Piece(prompt), Piece(answer, supervised=chosen)))
    messages = (*prompt, *answer)
    if not chosen:
        # The prompt too: the chosen answer's example is where it is trained, if at all.
        messages = tuple(replace(message, weight=0.0) for message in messages)
    return Chat(messages, judged.tools, supervise_from=len(prompt))


def _steps(row: dict[str, Any], place: Place) -> Record:
    """Return a solution in steps, a line each: the right ones are trained, the wrong ones are context."""
    where = str(place)
    prompt, steps, labels = row.get("prompt"), row.get("completions"), row["labels"]
    if not isinstance(prompt, str) or not isinstance(steps, list) or not all(isinstance(step, str) for step in steps):
        raise DataError(
            where, f'"labels" judge {shown(steps)} for {shown(prompt)}', "steps are texts, and so is the prompt"
        )
    if len(labels) != len(steps):
        raise DataError(where, f'"labels" has {len(labels):,} entries', f'"completions" has {len(steps):,}')
    for index, label in enumerate(labels):
        if not isinstance(label, bool) and label not in (0, 1):
            raise DataError(where, f"labels[{index}] is {shown(label)}", "true or false")
    for text in (prompt, *steps):
        check_text(text, where)
    ends = [_STEP_END] * (len(steps) - 1) + [""]
    parts = (Piece(step + end, supervised=bool(good)) for step, end, good in zip(steps, ends, labels, strict=False))
    return Record(
        place=place,
        body=Pieces((Piece(prompt), *parts)),
        id=read_label(row, "id", place) or place.id,
        weight=read_weight(row.get("weight"), place),
        group=_group_of(row, prompt, place),
        rejected=not any(labels),
    )


def _group_of(row: dict[str, Any], prompt: str | tuple[Message, ...], place: Place) -> str:
    """Return what keeps the answers to one prompt together."""
    for name in ("group", "group_id"):
        label = read_label(row, name, place)
        if label is not None:
            return label
    return group_of_prompt(prompt)
