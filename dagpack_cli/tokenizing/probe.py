"""What a chat template does, found by writing a few small conversations with it before any data is read.

A template that drops what it does not know (a role, a tool call) loses it without a word, so what it
writes is looked for here once, and later a conversation that holds more than that is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dagpack_cli.errors import DataError, MismatchError
from dagpack_cli.tokenizing.conversation import Conversation
from dagpack_cli.tokenizing.cutting import Controls
from dagpack_cli.tokenizing.disguise import Disguise
from dagpack_cli.tokenizing.jinja import OTHER_TEMPLATE, Span, Writer
from dagpack_cli.tokenizing.messages import Message, ToolCall
from dagpack_cli.tokenizing.pieces import Part
from dagpack_cli.tokenizing.rows import rows_of, tools_of

__all__ = ["Traits", "probe_template"]

# Words that no template holds, and that no filter changes.
_WORDS = {name: f"q{number}zx{number}" for number, name in enumerate(("system", "ask", "reply", "more", "result"), 11)}
_THOUGHT, _CALLED, _VALUE, _LISTED = "q21zx21", "q22zx22", "q23zx23", "q24zx24"
_NOTHING = Disguise(Controls(()), (), "")
_TOOLS = (
    {
        "type": "function",
        "function": {
            "name": _CALLED,
            "description": _LISTED,
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string", "description": "a value"}},
                "required": ["key"],
            },
        },
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a template writes, and how.

    Attributes:
        roles: under which name it knows a role that it does not know by its own.
        dropped: roles that it leaves out or refuses.
        thinking: it writes what the assistant thought.
        calls: it writes the assistant's calls.
        tools: it announces tools.
        marked: it marks what the assistant generates.
        unfit: why it cannot train every turn: how it rewrites the conversation before, or, with marks, that
            it leaves out the thinking of earlier turns; empty if it can.
        alone: it can train every turn that is the last one.
    """

    roles: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    thinking: bool = True
    calls: bool = True
    tools: bool = True
    marked: bool = False
    unfit: str = ""
    alone: bool = True

    def check(self, messages: Sequence[Message], tools: Sequence[Any], targets: Sequence[Part], name: str) -> None:
        """Check that a template writes everything that a conversation holds.

        Thinking that is not trained may be left out: templates do so on purpose.

        Raises:
            DataError: it would leave something out.
        """
        if tools and not self.tools:
            raise self._lost("", "tools that may be called", name)
        for index, (message, part) in enumerate(zip(messages, targets, strict=True)):
            where = f"message {index + 1}"
            if self.roles.get(message.role, message.role) in self.dropped:
                raise self._lost(where, f'a message of role "{message.role}"', name)
            if message.tool_calls and not self.calls:
                raise self._lost(where, "calls of tools", name)
            if message.reasoning and part & Part.THINKING and not self.thinking:
                raise self._lost(where, "thinking, which is trained", name)

    def _lost(self, where: str, what: str, name: str) -> DataError:
        return DataError(
            where,
            f"it holds {what}, and the template {name} leaves that out",
            "a template that writes all that is there",
            hint="use --chat-template builtin, or leave the record out with --on-error skip",
        )


def probe_template(writer: Writer, *, tool_use: bool = False) -> Traits:
    """Return what a template does.

    Args:
        writer: the template.
        tool_use: it is only used for conversations with tools.

    Raises:
        MismatchError: it cannot write a question and its answer so that the answer is known, or it
            asks for the date and none is given.
    """
    listed = list(_TOOLS) if tool_use else None
    chat = [_say("user", "ask"), _say("assistant", "reply")]
    _check_answer(writer, chat, listed)
    roles = {"function": "tool"}
    dropped = set()
    for role in ("system", "developer"):
        if not _writes(writer, [_say(role, "system"), *chat], listed, (_WORDS["system"],)):
            dropped.add(role)
    if "developer" in dropped and "system" not in dropped:
        roles["developer"] = "system"
        dropped.remove("developer")
    thought = [_say("user", "ask"), _say("assistant", "reply", reasoning=_THOUGHT)]
    called = _called()
    calls = _writes(writer, called, list(_TOOLS), (_CALLED, _VALUE))
    if not _writes(writer, called, list(_TOOLS), (_WORDS["result"],)):
        dropped.add("tool")
    traits = Traits(
        roles=roles,
        dropped=frozenset(dropped),
        thinking=_writes(writer, thought, listed, (_THOUGHT,)),
        calls=calls,
        tools=_writes(writer, chat, list(_TOOLS), (_LISTED,)) or _writes(writer, called, list(_TOOLS), (_LISTED,)),
        marked=writer.marked,
    )
    probes = list(_probes(traits, listed))
    unfit = next((why for probe, tools in probes if (why := _unfit(writer, traits, probe, tools))), "")
    turns = [(probe[:end], tools) for probe, tools in probes for end in range(2, len(probe) + 1)]
    answers = [(probe, tools) for probe, tools in turns if unfit and probe[-1].role == "assistant"]
    alone = not any(_unfit(writer, traits, probe, tools, last=True) for probe, tools in answers)
    return replace(traits, unfit=unfit, alone=alone)


def _say(role: str, word: str, **fields: Any) -> Message:
    return Message(role=role, content=_WORDS[word], **fields)


def _called() -> list[Message]:
    call = ToolCall(_CALLED, f'{{"key": "{_VALUE}"}}')
    return [
        _say("user", "ask"),
        Message(role="assistant", tool_calls=(call,)),
        _say("tool", "result", tool_name=_CALLED),
        _say("assistant", "reply"),
    ]


def _conversation(
    writer: Writer, chat: Sequence[Message], tools: list[Any] | None, roles: Mapping[str, str]
) -> Conversation:
    rows = rows_of(chat, roles, _NOTHING, watched=writer.marked)
    listed = tools_of(tools or (), _NOTHING)
    return Conversation(writer, rows, listed, writer.write(rows, listed))


def _writes(writer: Writer, chat: Sequence[Message], tools: list[Any] | None, words: tuple[str, ...]) -> bool:
    """Whether every word stands in what the template writes of a conversation."""
    try:
        text = _conversation(writer, chat, tools, {}).whole.text
    except DataError:
        return False
    return all(word in text for word in words)


def _check_answer(writer: Writer, chat: Sequence[Message], tools: list[Any] | None) -> None:
    """Check that a question and its answer are written, and that the answer is known."""
    try:
        conversation = _conversation(writer, chat, tools, {})
        text = conversation.whole.text
        if not all(_WORDS[word] in text for word in ("ask", "reply")):
            raise MismatchError(
                writer.name, "the template leaves out what users or assistants say", hint=OTHER_TEMPLATE
            )
        if writer.marked:
            spans: Sequence[Span] = conversation.whole.generated
        else:
            spans = [Span(*conversation.turn(1), 1)]
    except DataError as error:
        raise MismatchError(
            writer.name,
            f"cannot write a question and its answer: {error.found}",
            error.expected,
            hint="use --chat-template builtin, or a template with {% generation %} marks",
        ) from None
    inside = "".join(text[span.start : span.end] for span in spans if span.turn == 1)
    if _WORDS["reply"] not in inside or _WORDS["ask"] in inside or any(span.turn != 1 for span in spans):
        raise MismatchError(
            writer.name,
            "its {% generation %} blocks do not enclose what the assistant says",
            "blocks in the main text of the template, not in a macro or a variable",
            hint=OTHER_TEMPLATE,
        )


def _probes(traits: Traits, tools: list[Any] | None) -> Iterator[tuple[list[Message], list[Any] | None]]:
    """Yield conversations of several turns, as far as the template knows what they hold."""
    ask, reply, more = _say("user", "ask"), _say("assistant", "reply"), _say("user", "more")
    yield [ask, reply, more, reply], tools
    if traits.thinking:
        thought = _say("assistant", "reply", reasoning=_THOUGHT)
        yield [ask, thought, more, thought], tools
    if traits.calls and "tool" not in traits.dropped:
        yield [*_called(), more, reply], list(_TOOLS)


def _unfit(writer: Writer, traits: Traits, chat: list[Message], tools: list[Any] | None, *, last: bool = False) -> str:
    """Return why the template cannot train every turn of a conversation, or its last one; empty if it can."""
    try:
        conversation = _conversation(writer, chat, tools, traits.roles)
    except DataError as error:
        return "" if traits.marked else _of_it(writer, error)
    turns = [index for index, message in enumerate(chat) if message.role == "assistant"]
    for index in turns[-1:] if last else turns:
        if traits.marked:
            spans = [span for span in conversation.whole.generated if span.turn == index]
            text = "".join(conversation.whole.text[span.start : span.end] for span in spans)
            if chat[index].reasoning and _THOUGHT not in text:
                return "it leaves out the thinking of earlier turns"
            continue
        try:
            conversation.turn(index)
        except DataError as error:
            cause = conversation.stable.get(index + 1)
            return f"it rewrites turns ({cause})" if cause else _of_it(writer, error)
    return ""


def _of_it(writer: Writer, error: DataError) -> str:
    return error.found.replace(f"the template {writer.name}", "it")
