"""Conversations as ids: message by message, so that a longer chat starts with the ids of a shorter one.

A message becomes *pieces*: control ids, and texts that are encoded on their own. No merge of the
tokenizer crosses a piece, no text can spell a control token, and which positions are supervised
is known from the pieces, never searched for in the ids afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import MismatchError
from dagpack_cli.tokenizing import byte_level
from dagpack_cli.tokenizing.base import IdArray, Tokenizer
from dagpack_cli.tokenizing.huggingface import HuggingFaceTokenizer
from dagpack_cli.tokenizing.messages import Message, check_role, tool_list_text

__all__ = ["Piece", "PieceEncoder", "Template", "pieces_of", "render", "template_of"]

_CACHE_CHARACTERS = 32 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """A control id, or a text to encode on its own; supervised as targets or not."""

    value: int | str
    supervised: bool = False


class Template(Protocol):
    """How one kind of tokenizer writes messages."""

    def start(self) -> list[Piece]:
        """Return what stands before the first message."""
        ...

    def message(self, message: Message, supervised: bool) -> Iterator[Piece]:
        """Yield the pieces of one message; ``supervised`` marks what the assistant wrote."""
        ...


class ByteTemplate:
    """Role id, thinking, content, tool calls, end of turn; the built-in ids of the byte tokenizer."""

    _ROLE_IDS: ClassVar[dict[str, int]] = {
        "system": byte_level.SYSTEM,
        "developer": byte_level.SYSTEM,
        "user": byte_level.USER,
        "assistant": byte_level.ASSISTANT,
        "tool": byte_level.TOOL,
        "function": byte_level.TOOL,
    }

    def __init__(self, bos_id: int | None) -> None:
        self._bos_id = bos_id

    def start(self) -> list[Piece]:
        """Return BOS."""
        return [] if self._bos_id is None else [Piece(self._bos_id)]

    def message(self, message: Message, supervised: bool) -> Iterator[Piece]:
        """Yield the pieces of one message."""
        yield Piece(self._ROLE_IDS[message.role])
        if message.reasoning:
            yield Piece(byte_level.THINKING, supervised)
            yield Piece(message.reasoning, supervised)
            if message.content:
                # A second marker ends the thinking, or content could not be told from it.
                yield Piece(byte_level.THINKING, supervised)
        yield Piece(message.content, supervised)
        for call in message.tool_calls:
            yield Piece(byte_level.TOOL_CALL, supervised)
            yield Piece(call.text(), supervised)
        yield Piece(byte_level.END_OF_TURN, supervised)


class ChatMLTemplate:
    """``<|im_start|>role``, thinking, content, tool calls, ``<|im_end|>``, each line ended."""

    _ROLE_NAMES: ClassVar[dict[str, str]] = {"developer": "system", "function": "tool"}

    def __init__(self, im_start: int, im_end: int, bos_id: int | None) -> None:
        self._im_start = im_start
        self._im_end = im_end
        self._bos_id = bos_id

    def start(self) -> list[Piece]:
        """Return BOS, where the tokenizer adds one."""
        return [] if self._bos_id is None else [Piece(self._bos_id)]

    def message(self, message: Message, supervised: bool) -> Iterator[Piece]:
        """Yield the pieces of one message."""
        yield Piece(self._im_start)
        yield Piece(self._ROLE_NAMES.get(message.role, message.role) + "\n")
        if message.reasoning:
            yield Piece(f"<think>\n{message.reasoning}\n</think>\n\n", supervised)
        yield Piece(message.content, supervised)
        for index, call in enumerate(message.tool_calls):
            lead = "\n" if index or message.content else ""
            yield Piece(f"{lead}<tool_call>\n{call.text()}\n</tool_call>", supervised)
        yield Piece(self._im_end, supervised)
        yield Piece("\n")


def template_of(tokenizer: Tokenizer) -> Template:
    """Return the template that fits ``tokenizer``.

    Raises:
        MismatchError: none is known; a template is never guessed.
    """
    if isinstance(tokenizer, byte_level.ByteTokenizer):
        return ByteTemplate(tokenizer.bos_id)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        start, end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
        if start is not None and end is not None:
            return ChatMLTemplate(start, end, tokenizer.bos_id)
        raise MismatchError(
            f"--tokenizer {tokenizer.label}",
            "no chat template is known for this tokenizer",
            "its vocabulary lacks <|im_start|> or <|im_end|>",
            hint="use --tokenizer bytes, or a tokenizer with ChatML tokens",
        )
    raise MismatchError(
        f"--tokenizer {tokenizer.kind}", "cannot write chats", "chats are text", hint="use --tokenizer bytes"
    )


def pieces_of(
    messages: Sequence[Message], template: Template, tools: Sequence[Any] | None = None, *, supervise_from: int = 0
) -> list[Piece]:
    """Return the pieces of a conversation; none for an empty one.

    Supervised is what the assistant writes, thinking, content, calls and the closing token, in
    messages of weight other than 0.

    Args:
        messages: the conversation.
        template: how to write it.
        tools: JSON values announced in the first system message (one is added where none is first).
        supervise_from: the first message that may be supervised: those before are a prompt.

    Raises:
        DataError: a role that no template knows.
    """
    if not messages:
        return []
    numbered = list(enumerate(messages))
    if tools:
        numbered = _announce(numbered, tool_list_text(tools))
    pieces = list(template.start())
    for index, message in numbered:
        role = check_role(message.role, f"message {index + 1}")
        supervised = role == "assistant" and message.weight != 0 and index >= supervise_from
        pieces.extend(template.message(message, supervised))
    return pieces


def _announce(numbered: list[tuple[int, Message]], text: str) -> list[tuple[int, Message]]:
    index, first = numbered[0]
    if first.role not in ("system", "developer"):
        return [(index, Message(role="system", content=text)), *numbered]
    content = f"{first.content}\n\n{text}" if first.content else text
    return [(index, replace(first, content=content)), *numbered[1:]]


class PieceEncoder:
    """Encodes pieces, each distinct text once: system prompts repeat in every conversation.

    The memory of what was encoded is bounded by the characters it holds; forgetting changes
    nothing but time.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, IdArray] = {}
        self._held = 0

    def learn(self, texts: Iterable[str]) -> None:
        """Encode the texts that are new, in one batch."""
        if self._held > _CACHE_CHARACTERS:
            self._known.clear()
            self._held = 0
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._held += sum(map(len, new))
        self._known.update(zip(new, self._tokenizer.encode_pieces(new), strict=True))

    def encode(self, pieces: Sequence[Piece]) -> tuple[IdArray, npt.NDArray[np.int32]]:
        """Return the ids of ``pieces`` and their supervised runs.

        Returns:
            ids, shape (n,), int32; and runs, shape (r, 2), int32: half-open ranges of positions
            that are supervised as targets, sorted, disjoint and merged.
        """
        self.learn(piece.value for piece in pieces if isinstance(piece.value, str))
        parts: list[IdArray] = []
        runs: list[tuple[int, int]] = []
        position = 0
        for piece in pieces:
            value = piece.value
            part = self._known[value] if isinstance(value, str) else np.array([value], dtype=np.int32)
            end = position + len(part)
            if piece.supervised and end > position:
                if runs and runs[-1][1] == position:
                    runs[-1] = (runs[-1][0], end)
                else:
                    runs.append((position, end))
            parts.append(part)
            position = end
        ids = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
        return ids, np.array(runs, dtype=np.int32).reshape(-1, 2)


def render(
    messages: Sequence[Message], tokenizer: Tokenizer, tools: Sequence[Any] | None = None
) -> tuple[IdArray, npt.NDArray[np.int32]]:
    """Return a conversation's ids and supervised runs; see `pieces_of` for what is supervised.

    Returns:
        ids, shape (n,), int32; runs, shape (r, 2), int32, half-open ranges of target positions.

    Raises:
        MismatchError: no template is known for the tokenizer.
        DataError: an unknown role, or text that is not Unicode.

    >>> chat = [Message(role="user", content="q"), Message(role="assistant", content="a")]
    >>> ids, runs = render(chat, byte_level.ByteTokenizer())
    >>> ids.tolist(), runs.tolist()
    ([0, 259, 115, 262, 260, 99, 262], [[5, 7]])
    """
    return PieceEncoder(tokenizer).encode(pieces_of(messages, template_of(tokenizer), tools))
