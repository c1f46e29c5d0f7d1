"""The built-in templates, which write message by message and know no more than the two neighbours of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

from dagpack_cli.tokenizing import byte_level
from dagpack_cli.tokenizing.messages import Message, tool_list_text
from dagpack_cli.tokenizing.pieces import Part, Piece
from dagpack_cli.tokenizing.stability import Stability

__all__ = ["ByteTemplate", "ChatMLTemplate"]


class _MessageWise(ABC):
    """A template that writes message by message.

    Every prefix that ends before a user's or an assistant's message is stable by construction.
    Only ChatML has others, between two consecutive tool results, and counts them.
    """

    def __init__(self, note: str = "") -> None:
        self.note = note
        self.stability = Stability()
        self.sources: dict[str, str] = {}

    @abstractmethod
    def start(self) -> int | None:
        """Return the token before the first message, None for none."""

    @abstractmethod
    def message(
        self, message: Message, target: Part, turn: int, before: Message | None, behind: Message | None
    ) -> Iterator[Piece]:
        """Yield the pieces of one message, which stands between two others or at an end."""

    def pieces(
        self, messages: Sequence[Message], tools: Sequence[Any], targets: Sequence[Part], where: str = ""
    ) -> list[Piece]:
        """Return the pieces of a conversation; tools are announced in the first system message."""
        if not messages:
            return []
        # BOS and an announcement that no message holds are trained only where every token is, and
        # belong to the first message where that has an identity: with it, they are trained once.
        every = Part.HEADER in targets[0]
        owner = 0 if every and messages[0].identity else -1
        first = self.start()
        pieces = [] if first is None else [Piece(first, every, owner)]
        listed = [(message, targets[turn], turn) for turn, message in enumerate(messages)]
        if tools:
            text = tool_list_text(tools)
            if messages[0].role in ("system", "developer"):
                listed[0] = replace(messages[0], content=f"{messages[0].content}\n\n{text}"), targets[0], 0
            else:
                listed.insert(0, (Message(role="system", content=text), Part.ALL if every else Part.NOTHING, owner))
        for at, (message, target, turn) in enumerate(listed):
            before = listed[at - 1][0] if at else None
            behind = listed[at + 1][0] if at + 1 < len(listed) else None
            pieces.extend(self.message(message, target, turn, before, behind))
        return pieces


class ByteTemplate(_MessageWise):
    """Role id, thinking, content, tool calls, end of turn; the built-in ids of the byte tokenizer."""

    _ROLE_IDS: ClassVar[dict[str, int]] = {
        "system": byte_level.SYSTEM,
        "developer": byte_level.SYSTEM,
        "user": byte_level.USER,
        "assistant": byte_level.ASSISTANT,
        "tool": byte_level.TOOL,
        "function": byte_level.TOOL,
    }

    def __init__(self, bos_id: int | None, note: str = "") -> None:
        super().__init__(note)
        self._bos_id = bos_id

    def identity(self) -> dict[str, object]:
        """Return its name."""
        return {"kind": "builtin", "name": "bytes"}

    def start(self) -> int | None:
        """Return BOS."""
        return self._bos_id

    def message(
        self, message: Message, target: Part, turn: int, before: Message | None, behind: Message | None
    ) -> Iterator[Piece]:
        """Yield the pieces of one message."""
        yield Piece(self._ROLE_IDS[message.role], Part.HEADER in target, turn)
        if message.reasoning:
            thinking = Part.THINKING in target
            yield Piece(byte_level.THINKING, thinking, turn)
            yield Piece(message.reasoning, thinking, turn)
            if message.content:
                # A second marker ends the thinking, or content could not be told from it.
                yield Piece(byte_level.THINKING, thinking, turn)
        yield Piece(message.content, Part.CONTENT in target, turn)
        for call in message.tool_calls:
            yield Piece(byte_level.TOOL_CALL, Part.TOOL_CALLS in target, turn)
            yield Piece(call.text(), Part.TOOL_CALLS in target, turn)
        yield Piece(byte_level.END_OF_TURN, Part.END in target, turn)


class ChatMLTemplate(_MessageWise):
    r"""``<|im_start|>role``, thinking, content, tool calls, ``<|im_end|>``, each line ended.

    The form, and the ids, are those of Qwen3's own template, but for two things: that template
    drops the thinking of earlier turns, and writes an empty thought where the last turn has none.
    What tools return is one turn of the user, however many results there are in a row, each one in
    ``<tool_response>\n...\n</tool_response>``. So a conversation that ends between two results in a
    row is no prefix of the one that goes on with the second, for its turn is closed there; every other one is.

    Texts are cut at the same places whatever is trained, or what one example trains would not share
    with another that has it as context. A line break is encoded with the text that it ends, as
    tokens join the two: a result's last one and the one before a call belong to the content.
    """

    _ROLE_NAMES: ClassVar[dict[str, str]] = {"developer": "system"}

    def __init__(self, im_start: int, im_end: int, bos_id: int | None, note: str = "") -> None:
        super().__init__(note)
        self._im_start = im_start
        self._im_end = im_end
        self._bos_id = bos_id

    def identity(self) -> dict[str, object]:
        """Return its name."""
        return {"kind": "builtin", "name": "chatml"}

    def start(self) -> int | None:
        """Return BOS, where the tokenizer adds one."""
        return self._bos_id

    def pieces(
        self, messages: Sequence[Message], tools: Sequence[Any], targets: Sequence[Part], where: str = ""
    ) -> list[Piece]:
        """Return the pieces of a conversation, and count its prefixes: which of them break is known."""
        for number, (message, behind) in enumerate(pairwise(messages), 1):
            at = f"{where}, message {number}" if where else f"message {number}"
            between = _is_result(message) and _is_result(behind)
            self.stability.add(at, "consecutive tool results" if between else None)
        return super().pieces(messages, tools, targets, where)

    def message(
        self, message: Message, target: Part, turn: int, before: Message | None, behind: Message | None
    ) -> Iterator[Piece]:
        """Yield the pieces of one message."""
        result = _is_result(message)
        opens, closes = not (result and _is_result(before)), not (result and _is_result(behind))
        role = "user" if result else self._ROLE_NAMES.get(message.role, message.role)
        texts = [(Part.HEADER, f"{role}\n" if opens else "")]
        if result:
            texts[0] = Part.HEADER, f"{texts[0][1]}<tool_response>\n"
        texts += _said(message)
        if result:
            texts.append((Part.HEADER, "\n</tool_response>" if closes else "\n</tool_response>\n"))
        if opens:
            yield Piece(self._im_start, Part.HEADER in target, turn)
        # Inference gets an answer behind the tokens of the prompt: none joins the two.
        for part, text in _settled(texts, 2 if message.role == "assistant" else 1):
            if text:
                yield Piece(text, part in target, turn)
        if closes:
            yield Piece(self._im_end, Part.END in target, turn)
            yield Piece("\n", Part.HEADER in target, turn)


def _is_result(message: Message | None) -> bool:
    return message is not None and message.role in ("tool", "function")


def _said(message: Message) -> list[tuple[Part, str]]:
    """Return the texts of what a message says; line breaks around thinking are the template's, as in Qwen's own."""
    texts = []
    content = message.content
    if message.reasoning:
        texts.append((Part.THINKING, "<think>\n" + message.reasoning.strip("\n")))
        # A thought that was cut off has no end that anybody wrote.
        closed = Part.THINKING if content or message.tool_calls else Part.THINKING | Part.END
        texts.append((closed, "\n</think>\n\n"))
        content = content.lstrip("\n")
    texts.append((Part.CONTENT, content))
    for index, call in enumerate(message.tool_calls):
        lead = "\n" if index or message.content else ""
        texts.append((Part.TOOL_CALLS, f"{lead}<tool_call>\n{call.text()}\n</tool_call>"))
    return texts


def _settled(texts: list[tuple[Part, str]], first: int) -> list[tuple[Part, str]]:
    r"""Return texts cut where tokenizers cut them, too, from text ``first`` on.

    White space at the start of a text goes to the one before it, but for a last space, which is part
    of a word: what splits text into words ends one at a line break, and takes one space with the next.

    >>> [text for _, text in _settled([(Part.HEADER, "user\n"), (Part.CONTENT, "\n  a."), (Part.HEADER, "\n>")], 1)]
    ['user\n\n ', ' a.\n', '>']
    """
    settled = list(texts)
    for at in range(len(settled) - 1, first - 1, -1):
        part, text = settled[at]
        width = len(text) - len(text.lstrip())
        if 0 < width < len(text) and text[width - 1] not in "\r\n":
            width -= 1
        settled[at] = part, text[width:]
        settled[at - 1] = settled[at - 1][0], settled[at - 1][1] + text[:width]
    return settled
