"""What SWE-agent sent at each step, and what it was answered.

A step logs the text of the answer only. Its tool calls and thinking stand in the history, behind as
many messages as the query has: processors rewrite messages, but keep their number. An answer that
the harness refused (no action in it, a blocked one) never came into the history: the next query
shows it with a complaint, after the same messages. It is context, and so is an answer whose calls
are nowhere recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dagpack_cli.corpora.records import shown
from dagpack_cli.errors import DataError

__all__ = ["Step", "is_demo", "steps_of"]

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the model.

    Attributes:
        number: of the step in its run, from 1.
        query: what was sent.
        answer: what came back, as an item of a history.
        trained: whether the answer is one to learn.
    """

    number: int
    query: list[Item]
    answer: Item
    trained: bool


def steps_of(steps: list[Item], history: list[Item], where: str) -> list[Step] | None:
    """Return the steps at which a model was asked, None where the log does not say what was sent.

    Steps without a query are the harness's own: it writes one when it gives up.

    Raises:
        DataError: a query or an answer is something else than messages or text.
    """
    asked = [
        (number, step, query)
        for number, step in enumerate(steps, 1)
        if (query := _sent(step, "query", f"{where}, step {number}"))
    ]
    if asked:
        return _queried(asked, history, where)
    states = [
        (number, step, messages)
        for number, step in enumerate(steps, 1)
        if (messages := _sent(step, "messages", f"{where}, step {number}"))
    ]
    return _between(states, where) if states else None


def is_demo(item: Item) -> bool:
    """Return whether an item of a history was put there to show how it is done."""
    return item.get("is_demo") is True


def _sent(step: Item, name: str, where: str) -> list[Item]:
    """Return the messages in a field of a step; none where it is absent, or holds the empty object it starts with."""
    value = step.get(name)
    if value is None or value == [{}]:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise DataError(where, f'"{name}" is {shown(value)}', "a list of messages")
    return value


def _queried(asked: list[tuple[int, Item, list[Item]]], history: list[Item], where: str) -> list[Step]:
    named = all(isinstance(item.get("agent"), str) for item in history)
    calls = any(item.get("tool_calls") for item in history)
    calls = calls or any(item.get("tool_calls") for _, _, query in asked for item in query)
    found = []
    reached = 0
    for index, (number, step, query) in enumerate(asked):
        text = _response(step, f"{where}, step {number}")
        base = _base(query)
        after = asked[index + 1][2] if index + 1 < len(asked) else []
        refused = len(after) > _base(after) == base
        own = [item for item in history if not named or item["agent"] == query[-1].get("agent")]
        logged = None
        if not refused:
            logged = _answer_at(own, base, text) or _answer_at(after, len(query), text)
            reached = base + 1 if logged is not None else reached
            while logged is None and text and reached < len(own):  # A processor that drops messages.
                logged = _answer_at(own, reached, text)
                reached += 1
        answer = logged or {"content": text, "reasoning_content": step.get("reasoning_content")}
        trained = not refused and (logged is not None or not (calls or own))
        found.append(Step(number, query, answer, trained))
    return found


def _base(query: list[Item]) -> int:
    """Return how many messages of a query are the history's: not the refused answer and the complaint."""
    last = [item.get("message_type") for item in query[-2:]]
    return len(query) - 2 if last == ["assistant", "user"] else len(query)


def _answer_at(items: list[Item], index: int, text: str) -> Item | None:
    """Return the item at ``index`` if it is the assistant's and says ``text``."""
    if index >= len(items):
        return None
    item = items[index]
    return item if item.get("role") == "assistant" and _text(item) == text else None


def _between(states: list[tuple[int, Item, list[Item]]], where: str) -> list[Step]:
    """Return the steps of a log of states: each holds what came before it, the answer, and what is new.

    Before the first state, what was sent is all that stands before its answer. A refused answer
    leaves the state as it was, and what was sent with it is not known: no step.
    """
    found = []
    before: list[Item] | None = None
    for number, step, state in states:
        text = _response(step, f"{where}, step {number}")
        if before is None:
            last = [index for index, item in enumerate(state) if item.get("role") == "assistant" and not is_demo(item)]
            before = state[: last[-1]] if last else state
        answer = _answer_at(state, len(before), text)
        if answer is not None and before and (answer.get("tool_calls") or not _gave_up(step)):
            found.append(Step(number, before, answer, True))
        before = state
    return found


def _gave_up(step: Item) -> bool:
    """Return whether the harness wrote the step: no action, and its message as thought."""
    return step.get("action") == "" and step.get("thought") == step.get("response")


def _response(step: Item, where: str) -> str:
    text = step.get("response")
    if text is not None and not isinstance(text, str):
        raise DataError(where, f'"response" is {shown(text)}', "a string")
    return text or ""


def _text(item: Item) -> str:
    """Return the text of an item, whose content is a string or blocks."""
    content = item.get("content")
    if isinstance(content, list):
        return "".join(
            block["text"] for block in content if isinstance(block, dict) and isinstance(block.get("text"), str)
        )
    return content if isinstance(content, str) else ""
