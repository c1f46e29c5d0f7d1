"""Conversations as ids: message by message, so that a longer chat starts with the ids of a shorter one.

A message becomes *pieces*: control ids, and texts that are encoded on their own. No merge of the
tokenizer crosses a piece, no text can spell a control token, and which positions are supervised
is known from the pieces, never searched for in the ids afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from dagpack_cli.errors import MismatchError
from dagpack_cli.tokenizing import byte_level
from dagpack_cli.tokenizing.base import IdArray, Tokenizer
from dagpack_cli.tokenizing.builtin import ByteTemplate, ChatMLTemplate
from dagpack_cli.tokenizing.encoding import PieceEncoder
from dagpack_cli.tokenizing.huggingface import HuggingFaceTokenizer
from dagpack_cli.tokenizing.messages import Message, check_role
from dagpack_cli.tokenizing.pieces import Part, Piece, Rendered
from dagpack_cli.tokenizing.stability import Stability

__all__ = [
    "Part",
    "Piece",
    "PieceEncoder",
    "Rendered",
    "Supervise",
    "Template",
    "pieces_of",
    "render",
    "targets_of",
    "template_of",
]

Supervise = Literal["assistant", "last-turn", "all", "completion"]


class Template(Protocol):
    """How conversations are written.

    Attributes:
        note: what the user should know about the choice of this template; empty for nothing.
        stability: how the prefixes of the conversations written so far compared; a new one may be
            put in its place, to count anew.
    """

    note: str
    stability: Stability

    @property
    def sources(self) -> Mapping[str, str]:
        """Return the texts of the template by name, to be kept with a build; none for a built-in one."""
        ...

    def identity(self) -> dict[str, object]:
        """Return what tells this template from any other: JSON values, no paths."""
        ...

    def pieces(
        self, messages: Sequence[Message], tools: Sequence[Any], targets: Sequence[Part], where: str = ""
    ) -> list[Piece]:
        """Return the pieces of a conversation.

        Args:
            messages: the conversation, not empty.
            tools: JSON values: what the assistant may call.
            targets: which parts of each message are trained.
            where: names the conversation in `Stability.first`.

        Raises:
            DataError: the template cannot write it; ``where`` is then the message, or empty.
        """
        ...


def template_of(tokenizer: Tokenizer, note: str = "") -> Template:
    """Return the built-in template that fits ``tokenizer``, which carries ``note``.

    Raises:
        MismatchError: none is known; a template is never guessed.
    """
    if isinstance(tokenizer, byte_level.ByteTokenizer):
        return ByteTemplate(tokenizer.bos_id, note)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        start, end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
        if start is not None and end is not None:
            return ChatMLTemplate(start, end, tokenizer.bos_id, note)
        raise MismatchError(
            f"--tokenizer {tokenizer.label}",
            "no chat template is known for this tokenizer",
            "its vocabulary lacks <|im_start|> or <|im_end|>",
            hint="name a Jinja template with --chat-template FILE, or use --tokenizer bytes",
        )
    raise MismatchError(
        f"--tokenizer {tokenizer.kind}", "cannot write chats", "chats are text", hint="use --tokenizer bytes"
    )


def targets_of(
    messages: Sequence[Message],
    *,
    supervise: Supervise = "assistant",
    supervise_from: int = 0,
    thinking: bool = True,
    tool_calls: bool = True,
) -> list[Part]:
    """Return which parts of each message are trained.

    What an assistant writes is its thinking, its content, its calls and the token that ends its
    turn; messages of weight 0 are context under every rule. An answer that was cut off trains no end
    of turn, which nobody wrote, but for ``all``.

    Args:
        messages: the conversation.
        supervise: ``assistant``: what the assistant writes; ``last-turn``: of that, the last
            message alone; ``completion``: every part of the messages from ``supervise_from`` on, or,
            where no message is a prompt, of those after the last one that is no assistant's;
            ``all``: every token.
        supervise_from: the first message that is no prompt.
        thinking: whether thinking is trained.
        tool_calls: whether calls are; without them, a turn that ends in calls has no trained end.
    """
    found = [Part.NOTHING] * len(messages)
    wanted = [index for index, message in enumerate(messages) if message.weight != 0]
    written = [index for index in wanted if messages[index].role == "assistant" and index >= supervise_from]
    if supervise == "completion":
        first = supervise_from
        if first == 0:
            others = [index for index, message in enumerate(messages) if message.role != "assistant"]
            first = others[-1] + 1 if others else 0
        wanted = [index for index in wanted if index >= first]
    elif supervise == "last-turn":
        wanted = written[-1:]
    elif supervise == "assistant":
        wanted = written
    for index in wanted:
        part = Part.ALL if supervise == "all" else Part.WRITTEN
        if not thinking:
            part &= ~Part.THINKING
        if not tool_calls and messages[index].tool_calls:
            part &= ~(Part.TOOL_CALLS | Part.END)
        if not messages[index].ended and supervise != "all":
            part &= ~Part.END
        found[index] = part
    return found


def pieces_of(
    messages: Sequence[Message], template: Template, tools: Sequence[Any] | None = None, *, supervise_from: int = 0
) -> list[Piece]:
    """Return the pieces of a conversation, with what the assistant writes supervised; none for an empty one.

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
    for index, message in enumerate(messages):
        check_role(message.role, f"message {index + 1}")
    return template.pieces(messages, tools or (), targets_of(messages, supervise_from=supervise_from))


def render(
    messages: Sequence[Message], tokenizer: Tokenizer, tools: Sequence[Any] | None = None
) -> tuple[IdArray, npt.NDArray[np.int32]]:
    """Return a conversation's ids and supervised runs: what the assistant writes.

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
    rendered = PieceEncoder(tokenizer).encode(pieces_of(messages, template_of(tokenizer), tools))
    return rendered.ids, rendered.runs
