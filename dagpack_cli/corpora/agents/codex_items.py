"""Items of a Codex rollout's history, as the Responses API names them, and the messages they become.

Source of the fields: openai/codex, codex-rs/protocol/src/models.rs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dagpack_cli.corpora.agents.blocks import (
    arguments_of,
    object_of,
    optional_text,
    placeholder_of,
    text_of,
    written_arguments,
)
from dagpack_cli.corpora.records import shown
from dagpack_cli.corpora.sessions import identity_of
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.messages import Message, ToolCall, check_role

__all__ = ["Item", "item_of", "messages_of_items"]

_NAME = "codex"
# Ids of the API are random and longer; a shorter one is a counter, which two sessions may share.
_RANDOM_ID = 16
# Codex answers an interrupted call so, on the way to the model (context_manager/normalize.rs).
_ABORTED = "aborted"
# What the model writes, in the order in which one message holds it.
_WRITTEN = ("reasoning", "reply", "call")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One item of the history.

    Attributes:
        kind: a message of another role than the assistant is ``said``; what the model wrote is a
            ``reply``, ``reasoning`` or a ``call``; a ``result`` answers one.
        role: of what was said, the role.
        text: what it says.
        call: the call.
        call_id: of a call or result, what joins them.
        answered: a call that Codex itself carries out, so that a result is owed.
        keys: ids that no other item has, in every copy of it.
        copied: a compaction put it here; where it was written it was trained.
    """

    kind: Literal["said", "reply", "reasoning", "call", "result"]
    role: str = ""
    text: str = ""
    call: ToolCall | None = None
    call_id: str = ""
    answered: bool = False
    keys: tuple[str, ...] = ()
    copied: bool = False


def item_of(record: dict[str, Any], where: str, *, copied: bool = False) -> Item | None:
    """Return an item; None for one of an unknown type, or of one that says nothing that can be read.

    Raises:
        DataError: it is damaged.
    """
    kind = record.get("type")
    if not isinstance(kind, str):
        raise DataError(where, f'an item has the "type" {shown(kind)}', "a string")
    if kind == "message":
        return _message(record, where, copied)
    if kind == "reasoning":
        text = _summary_of(record, where)
        return Item(kind="reasoning", text=text, keys=_keys(record, "id", "encrypted_content"), copied=copied)
    if kind in ("function_call", "custom_tool_call", "local_shell_call", "tool_search_call"):
        call_id = optional_text(record, "call_id", where) or optional_text(record, "id", where)
        answered = record.get("execution") != "server"
        call = _call(kind, record, where)
        keys = _keys(record, "call_id", "id")
        return Item(kind="call", call=call, call_id=call_id, answered=answered, keys=keys, copied=copied)
    if kind in ("web_search_call", "image_generation_call"):
        served = _served_call(kind, record, where)
        return None if served is None else Item(kind="call", call=served, keys=_keys(record, "id"), copied=copied)
    if kind in ("function_call_output", "custom_tool_call_output", "tool_search_output"):
        value = record.get("tools") if kind == "tool_search_output" else record.get("output")
        text = _output_of(value, where)
        call_id = optional_text(record, "call_id", where)
        return Item(kind="result", text=text, call_id=call_id, keys=_keys(record, "call_id"), copied=copied)
    return None


def _keys(record: dict[str, Any], *names: str) -> tuple[str, ...]:
    values = (record.get(name) for name in names)
    return tuple(value for value in values if isinstance(value, str) and len(value) >= _RANDOM_ID)


def _message(record: dict[str, Any], where: str, copied: bool) -> Item:
    role = check_role(record.get("role"), where)
    text = _content_of(record.get("content"), where)
    kind: Literal["reply", "said"] = "reply" if role == "assistant" else "said"
    return Item(kind=kind, role=role, text=text, keys=_keys(record, "id"), copied=copied)


def _content_of(content: Any, where: str) -> str:
    """Return the text of a content: a string, or a list of parts, each a text or named in its place."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise DataError(where, f'"content" is {shown(content)}', "a string or a list of parts")
    return "\n\n".join(_part_of(object_of(part, "content", where), where) for part in content)


def _part_of(part: dict[str, Any], where: str) -> str:
    kind = text_of(part, "type", where)
    if kind in ("input_text", "output_text", "text", "summary_text", "reasoning_text"):
        return text_of(part, "text", where)
    if kind == "refusal":
        return text_of(part, "refusal", where)
    return placeholder_of(kind.removeprefix("input_"))


def _summary_of(record: dict[str, Any], where: str) -> str:
    """Return what can be read of a reasoning: the text itself where it was kept, else its summary."""
    for name in ("content", "summary"):
        parts = record.get(name)
        if parts:
            return _content_of(parts, where)
    return ""


def _call(kind: str, record: dict[str, Any], where: str) -> ToolCall:
    if kind == "function_call":
        return ToolCall(text_of(record, "name", where), written_arguments(text_of(record, "arguments", where), where))
    if kind == "custom_tool_call":
        return ToolCall(text_of(record, "name", where), arguments_of({"input": text_of(record, "input", where)}, where))
    if kind == "local_shell_call":
        return ToolCall("local_shell", arguments_of(_given(record.get("action"), "action", where), where))
    return ToolCall("tool_search", arguments_of(record.get("arguments"), where))


def _served_call(kind: str, record: dict[str, Any], where: str) -> ToolCall | None:
    """Return a call that the API's server answered unseen; None where its arguments were not kept."""
    if kind == "web_search_call":
        action = record.get("action")
        return None if action is None else ToolCall("web_search", arguments_of(_given(action, "action", where), where))
    prompt = optional_text(record, "revised_prompt", where)
    return ToolCall("image_generation", arguments_of({"prompt": prompt}, where)) if prompt else None


def _given(value: Any, name: str, where: str) -> dict[str, Any]:
    """Return an object without its nulls, which only say that a field was left out."""
    return {key: item for key, item in object_of(value, name, where).items() if item is not None}


def _output_of(output: Any, where: str) -> str:
    """Return the text of a result: a string, a list of parts, or an object with one of them as ``content``."""
    if isinstance(output, dict) and "content" in output:
        output = output["content"]
    if isinstance(output, list) and all(isinstance(part, dict) and "type" in part for part in output):
        return _content_of(output, where)
    if isinstance(output, str):
        return text_of({"output": output}, "output", where)
    return "" if output is None else arguments_of(output, where)


def messages_of_items(items: Sequence[Item], origin: str, known: dict[tuple[str, str], bytes]) -> list[Message]:
    """Return the messages of a history. O(n log n).

    Consecutive items that the model wrote are one message, in the order written: reasoning, text
    and calls; what comes out of that order begins the next. Results stand in the order of their
    calls. A call that was never answered but went on to the model is followed by what Codex then
    puts there; a result without its call is left out, as there. What a compaction copied is
    context only.

    An item with a random id is told by it and by what it says. One without is told by what it says
    and all that stands before it, from ``origin`` on, so that a forked file's copy is the same.

    Args:
        items: the history.
        origin: the id of the session that the history began in.
        known: identities by role and text of what was said before in the session; added to.
    """
    made = _Made(origin, known, {item.call_id for item in items if item.kind == "result"})
    turn: list[Item] = []
    for item in items:
        written = item.kind in _WRITTEN
        if turn and not (written and _continues(turn[-1], item)):
            made.answer(turn)
            turn = []
        if written:
            turn.append(item)
        elif item.kind == "said":
            made.said(item)
        else:
            made.result(item)
    if turn:
        made.answer(turn)
    made.end_results(more=False)
    return made.messages


def _continues(last: Item, item: Item) -> bool:
    return last.copied == item.copied and _WRITTEN.index(last.kind) <= _WRITTEN.index(item.kind)


class _Made:
    """The messages made so far."""

    def __init__(self, origin: str, known: dict[tuple[str, str], bytes], answered: set[str]) -> None:
        self.messages: list[Message] = []
        self._known = known
        self._answered = answered
        self._names: dict[str, str] = {}
        self._asked: dict[str, list[Message]] = {}
        self._chain = identity_of(_NAME, origin)

    def answer(self, turn: Sequence[Item]) -> None:
        """Add what the model wrote in one go; nothing where all of it is encrypted."""
        self.end_results()
        content = "\n\n".join(item.text for item in turn if item.kind == "reply" and item.text)
        reasoning = "\n\n".join(item.text for item in turn if item.kind == "reasoning" and item.text)
        calls = tuple(item.call for item in turn if item.call is not None)
        keys = [key for item in turn for key in item.keys]
        said = [f"{call.name} {call.arguments}" for call in calls]
        identity = self._next("assistant", (content, reasoning, *said), keys)
        for item in turn:
            if item.call is not None and item.answered:
                self._names[item.call_id] = item.call.name
                self._asked[item.call_id] = []
        if content or reasoning or calls:
            message = Message(
                role="assistant",
                content=content,
                reasoning=reasoning,
                tool_calls=calls,
                weight=0.0 if turn[0].copied else 1.0,
                identity=identity,
                ended=bool(content or calls),  # Reasoning alone is no answer: what came of it was cut off.
            )
            self.messages.append(message)

    def said(self, item: Item) -> None:
        """Add what somebody else said."""
        self.end_results()
        identity = self._next(item.role, (item.text,), item.keys)
        if item.copied:
            identity = self._known.get((item.role, item.text), identity)
        self._known[item.role, item.text] = identity
        self.messages.append(Message(role=item.role, content=item.text, identity=identity))

    def result(self, item: Item) -> None:
        """Add a result: to those of the last message's calls, or where a message stands between, here."""
        if item.call_id in self._names:
            message = self._answer_to(item.call_id, item.text, item.keys)
            self._asked.get(item.call_id, self.messages).append(message)

    def end_results(self, *, more: bool = True) -> None:
        """End the results of the last message's calls; where ``more`` follows, none is owed any."""
        for call_id, results in self._asked.items():
            if more and call_id not in self._answered:
                results.append(self._answer_to(call_id, _ABORTED, ()))
            self.messages.extend(results)
        self._asked.clear()

    def _answer_to(self, call_id: str, text: str, keys: Sequence[str]) -> Message:
        identity = self._next("tool", (call_id, text), keys)
        return Message(
            role="tool", content=text, tool_name=self._names[call_id], tool_call_id=call_id, identity=identity
        )

    def _next(self, role: str, said: Sequence[str], keys: Sequence[str]) -> bytes:
        marks = ["key", *keys] if keys else ["after", self._chain.hex()]
        self._chain = identity_of(_NAME, role, *marks, *said)
        return self._chain
