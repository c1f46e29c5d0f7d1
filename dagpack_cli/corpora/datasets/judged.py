"""Judged answers: every shape in which files hold a prompt with chosen and rejected answers, read into one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dagpack_cli.corpora.datasets.alpaca import question_of
from dagpack_cli.corpora.datasets.prompts import num_shared, said
from dagpack_cli.corpora.datasets.sharegpt import conversation_in, turns_of, with_system
from dagpack_cli.corpora.messages import said_something, tools_of_row
from dagpack_cli.corpora.records import shown, shown_keys
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.base import check_text
from dagpack_cli.tokenizing.messages import Message

__all__ = ["Judged", "judged_of"]

Messages = tuple[Message, ...]
Answer = str | Messages

_PREFERRED = ("preferred_output", "preferred_completion")
_NOT_PREFERRED = ("non_preferred_output", "non_preferred_completion")


@dataclass(frozen=True, slots=True)
class Judged:
    """A prompt and the answers to it; all of them texts, or all of them messages."""

    prompt: Answer
    chosen: tuple[Answer, ...]
    rejected: tuple[Answer, ...]
    tools: tuple[Any, ...] = ()


def judged_of(row: dict[str, Any], where: str) -> Judged:
    """Return the prompt and the judged answers of a row.

    Raises:
        DataError: an answer or the prompt is missing, or cannot be told from the other.
    """
    if any(row.get(name) is not None for name in _PREFERRED):
        return _preferred(row, where)
    for name in ("kto_tag", "label"):
        if isinstance(row.get(name), bool):
            return _labelled(row, row[name], where)
    if row.get("rejected_response") is not None:
        return _responses(row, where)
    tools = tools_of_row(row, where)
    if row.get("rejected_messages") is not None:
        chosen = row.get("chosen_messages")
        listed = row.get("messages") if chosen is None else chosen
        return Judged(*_split(turns_of(listed, where), turns_of(row["rejected_messages"], where), where), tools)
    for name in ("chosen", "rejected"):
        if row.get(name) is None:
            raise DataError(where, f"the record has {shown_keys(row)}", f'"{name}" is missing')
    return Judged(*_pair(row, where), tools)


def _preferred(row: dict[str, Any], where: str) -> Judged:
    inner = row.get("input")
    if not isinstance(inner, dict):
        raise DataError(where, f'"input" is {shown(inner)}', 'an object with "messages"')
    answers = []
    for names in (_PREFERRED, _NOT_PREFERRED):
        value = next((row[name] for name in names if row.get(name) is not None), None)
        if value is None:
            raise DataError(where, f"the record has {shown_keys(row)}", f'"{names[0]}" is missing')
        answers.append(_answer(value, where))
    prompt = turns_of(inner.get("messages"), f"{where}, input")
    return Judged(prompt, (answers[0],), (answers[1],), tools_of_row(inner, where))


def _labelled(row: dict[str, Any], good: bool, where: str) -> Judged:
    """Return one answer that a label judges: a completion, an output, or the last of the messages."""
    prompt, answer = _question(row, where), row.get("completion")
    if answer is None and isinstance(row.get("output"), str):
        answer = row["output"]
    if answer is None and prompt is not None and row.get("prompt") is None and conversation_in(row) is not None:
        assert not isinstance(prompt, str)
        if not prompt or prompt[-1].role != "assistant":
            raise DataError(where, "the messages do not end with the assistant's", "the last one is what is judged")
        prompt, answer = prompt[:-1], prompt[-1:]
    if prompt is None or answer is None:
        raise DataError(where, f"the record has {shown_keys(row)}", "a prompt and a completion, or messages")
    read = answer if isinstance(answer, tuple) else _text_or_messages(answer, where)
    before, read = _alike(prompt, read, where)
    return Judged(before, (read,) if good else (), () if good else (read,), tools_of_row(row, where))


def _responses(row: dict[str, Any], where: str) -> Judged:
    """Return the last message as chosen, and what is rejected in its place."""
    messages = turns_of(conversation_in(row), where)
    if not messages or messages[-1].role != "assistant":
        raise DataError(where, "the messages do not end with the assistant's", '"rejected_response" is in its place')
    value = row["rejected_response"]
    several = isinstance(value, list) and value and all(isinstance(item, str) for item in value)
    rejected = tuple(_answer(item, where) for item in (value if several else [value]))
    prompt = with_system(row, messages[:-1], where)
    return Judged(prompt, (messages[-1:],), rejected, tools_of_row(row, where))


def _pair(row: dict[str, Any], where: str) -> tuple[Answer, tuple[Answer, ...], tuple[Answer, ...]]:
    prompt = _question(row, where)
    chosen, rejected = (_text_or_messages(row[name], f"{where}, {name}") for name in ("chosen", "rejected"))
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise DataError(
            where,
            f"chosen is {shown(row['chosen'])}, rejected {shown(row['rejected'])}",
            "both texts, or both messages",
        )
    if isinstance(chosen, str) or isinstance(rejected, str):
        assert isinstance(chosen, str)
        assert isinstance(rejected, str)
        if prompt is None:
            start = _shared_text(chosen, rejected, where)
            return chosen[:start], (chosen[start:],), (rejected[start:],)
    elif prompt is None or _told_again(prompt, chosen, rejected, where):
        return _split(chosen, rejected, where)
    before, first = _alike(prompt, chosen, where)
    return before, (first,), (_alike(prompt, rejected, where)[1],)


def _question(row: dict[str, Any], where: str) -> Answer | None:
    """Return the prompt that a row states, None where it states none."""
    prompt = row.get("prompt")
    if isinstance(prompt, str):
        check_text(prompt, where)
        return prompt if not row.get("system") else with_system(row, (Message(role="user", content=prompt),), where)
    if prompt is not None:
        return with_system(row, turns_of(prompt, f"{where}, prompt"), where)
    if conversation_in(row) is not None:
        return with_system(row, turns_of(conversation_in(row), where), where)
    if row.get("instruction") is not None:
        return question_of(row, where)
    if isinstance(row.get("question"), str):
        check_text(row["question"], where)
        return with_system(row, (Message(role="user", content=row["question"]),), where)
    return None


def _told_again(prompt: Answer, chosen: Messages, rejected: Messages, where: str) -> bool:
    """Return whether the answers are whole conversations that hold the prompt themselves.

    Messages do where they start with all of the prompt's, or are it; a prompt that is a text, where they
    start with no assistant's. Then it must be one of them, or it would be lost.
    """
    if not isinstance(prompt, str):
        repeated = all(num_shared(prompt, answer) == len(prompt) for answer in (chosen, rejected))
        return bool(prompt) and (repeated or [*map(said, prompt)] == [*map(said, chosen)])
    if chosen[0].role == "assistant":
        return False
    shared = chosen[: num_shared(chosen, rejected)]
    if all(message.content != prompt for message in shared):
        raise DataError(where, "chosen and rejected start with messages that are not the prompt", "the same prompt")
    return True


def _alike(prompt: Answer, answer: Answer, where: str) -> tuple[Answer, Answer]:
    """Return both as texts, or both as messages."""
    if isinstance(prompt, str) and isinstance(answer, str):
        return prompt, answer
    before = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
    return before, _answer(answer, where) if isinstance(answer, str) else answer


def _split(
    chosen: Messages, rejected: Messages, where: str
) -> tuple[Messages, tuple[Messages, ...], tuple[Messages, ...]]:
    """Return the messages that both start with, and the rest of each: never nothing."""
    if not chosen or not rejected:
        raise DataError(where, "an answer has no messages", "at least the assistant's")
    shared = min(num_shared(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    return chosen[:shared], (chosen[shared:],), (rejected[shared:],)


def _shared_text(chosen: str, rejected: str, where: str) -> int:
    """Return where two texts part; a space before that belongs to the answers."""
    if chosen == rejected:
        raise DataError(
            where, "chosen and rejected are one text, with no prompt", "only where they part, answers begin"
        )
    limit = min(len(chosen), len(rejected))
    part = next((index for index in range(limit) if chosen[index] != rejected[index]), limit)
    return part - 1 if part and chosen[part - 1] == " " else part


def _text_or_messages(value: Any, where: str) -> Answer:
    if isinstance(value, str):
        check_text(value, where)
        return value
    return _answer(value, where)


def _answer(value: Any, where: str) -> Messages:
    """Return an answer as messages: a text, one message, or a list of them."""
    if isinstance(value, str):
        check_text(value, where)
        return (said_something(Message(role="assistant", content=value)),)
    messages = turns_of([value] if isinstance(value, dict) else value, where)
    if not messages:
        raise DataError(where, "an answer has no messages", "at least the assistant's")
    return messages
