"""A Jinja chat template as a `Template`: conversations written by it, cut into pieces at its control tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.base import Tokenizer
from dagpack_cli.tokenizing.conversation import Conversation, Remembered
from dagpack_cli.tokenizing.cutting import Controls
from dagpack_cli.tokenizing.disguise import Disguise
from dagpack_cli.tokenizing.huggingface import HuggingFaceTokenizer
from dagpack_cli.tokenizing.jinja import Span, Writer
from dagpack_cli.tokenizing.messages import Message
from dagpack_cli.tokenizing.pieces import Part, Piece
from dagpack_cli.tokenizing.probe import Traits
from dagpack_cli.tokenizing.rows import disguise_of, rows_of, tools_of
from dagpack_cli.tokenizing.spans import spans_of
from dagpack_cli.tokenizing.stability import Stability

__all__ = ["JinjaTemplate"]

_SAMPLED = 8  # prefixes of one conversation that are compared
# Characters of conversations, summed over a count of `Stability`, after which only prefixes that
# had to be written anyway are compared: writing every prefix of every turn grows with the square.
_COMPARED = 16 << 20


class JinjaTemplate:
    """Conversations as a Jinja template writes them.

    Args:
        writers: the template ``default``, and ``tool_use`` where conversations with tools have one of their own.
        traits: what the templates were found to do, by the same names.
        tokenizer: what encodes the conversations.
        identity: what tells these templates from others, besides their texts.
        note: what the user should know.
    """

    def __init__(
        self,
        writers: Mapping[str, Writer],
        traits: Mapping[str, Traits],
        tokenizer: Tokenizer,
        identity: Mapping[str, Any],
        note: str = "",
    ) -> None:
        self.note = note
        self.stability = Stability()
        self._writers = dict(writers)
        self.traits = dict(traits)
        self._tokenizer = tokenizer
        self._controls = tokenizer.controls if isinstance(tokenizer, HuggingFaceTokenizer) else Controls(())
        self._identity = dict(identity)
        self._remembered = Remembered()
        self._compared = 0

    @property
    def sources(self) -> dict[str, str]:
        """The templates' texts by name."""
        return {name: writer.source for name, writer in self._writers.items()}

    def identity(self) -> dict[str, object]:
        """Return the templates' hashes, what they were told, and the versions of what ran them."""
        hashes = {name: hashlib.sha256(writer.source.encode()).hexdigest() for name, writer in self._writers.items()}
        versions = {name: metadata.version(name) for name in ("jinja2", "transformers")}
        return {"kind": "jinja", "name": "Jinja", "sha256": hashes, **self._identity, "versions": versions}

    def pieces(
        self, messages: Sequence[Message], tools: Sequence[Any], targets: Sequence[Part], where: str = ""
    ) -> list[Piece]:
        """Return the pieces of a conversation.

        Cost: one rendering and those that `spans` and the comparison of prefixes need.

        Args:
            messages: the conversation, not empty.
            tools: JSON values: what the assistant may call.
            targets: which parts of each message are trained.
            where: names the conversation in `stability`.

        Raises:
            DataError: the template refuses it, leaves out something that it holds, or does not show
                where what is trained begins and ends.
            MismatchError: the template asks for the date, and none is given.
        """
        name = "tool_use" if tools and "tool_use" in self._writers else "default"
        writer, traits = self._writers[name], self.traits[name]
        traits.check(messages, tools, targets, writer.name)
        disguise = disguise_of(messages, tools, self._controls, writer.source)
        rows = rows_of(messages, traits.roles, disguise, watched=writer.marked)
        listed = tools_of(tools, disguise)
        conversation = Conversation(writer, rows, listed, writer.write(rows, listed))
        self._remembered.recall(conversation)
        try:
            named = any(message.identity for message in messages)
            spans = spans_of(conversation, targets, self._controls, disguise, named=named)
        finally:
            self._compare(conversation, where)
        self._remembered.keep(conversation)
        return _cut(conversation.whole.text, spans, self._controls, disguise)

    def _compare(self, conversation: Conversation, where: str) -> None:
        """Count how prefixes of a conversation compare with it: those that were asked for, and a few in even steps."""
        total = len(conversation.rows)
        fresh = self.stability.checked == 0
        self._compared = len(conversation.whole.text) + (0 if fresh else self._compared)
        sampled = range(1, _SAMPLED + 1) if self._compared < _COMPARED else ()
        wanted = {round(step * total / (_SAMPLED + 1)) for step in sampled} | ({total - 1} if sampled else set())
        for number in sorted(at for at in wanted if 0 < at < total and at not in conversation.stable):
            try:
                conversation.border(number, "")
            except DataError:
                continue  # No conversation of its own: it ends where this template lets none end.
        for number, cause in sorted(conversation.stable.items()):
            if cause is None and not self._same_tokens(conversation, number):
                cause = "other"
            at = f"message {number}"
            self.stability.add(f"{where}, {at}" if where else at, cause)

    def _same_tokens(self, conversation: Conversation, number: int) -> bool:
        """Whether the tokens at the end of a prefix are those of the whole; where a control token stands, they are."""
        whole = conversation.whole.text
        at = conversation.ends.get(number)
        if at is None or at == len(whole):
            return True
        start, end = self._between_controls(whole, at)
        if end <= at or start >= at:
            return True
        short, long = self._tokenizer.encode_pieces([whole[start:at], whole[start:end]])
        return bool(len(short) <= len(long) and (long[: len(short)] == short).all())

    def _between_controls(self, text: str, at: int) -> tuple[int, int]:
        """Return the stretch without a control token around a position; looks no further than it must."""
        following = self._controls.pattern.search(text, at)
        end = following.start() if following else len(text)
        width = 1 << 12
        while True:
            first = max(at - width, 0)
            found = self._controls.find(text[first:at])
            if found or first == 0:
                return (first + found[-1].right if found else 0), end
            width *= 4


def _cut(text: str, spans: Sequence[Span], controls: Controls, disguise: Disguise) -> list[Piece]:
    """Return a written conversation as pieces: control tokens, and the texts between them.

    Texts are cut where a span begins or ends, too. Inference feeds the prompt and gets the answer as
    two sequences of tokens, and no merge of the tokenizer joins the one with the other.
    """
    pieces: list[Piece] = []
    position = 0
    at = 0

    def add(end: int) -> None:
        nonlocal position, at
        while position < end:
            while at < len(spans) and spans[at].end <= position:
                at += 1
            inside = at < len(spans) and spans[at].start <= position
            border = spans[at].end if inside else spans[at].start if at < len(spans) else end
            stop = min(border, end)
            turn = spans[at].turn if inside else -1
            pieces.append(Piece(disguise.restore(text[position:stop]), inside, turn))
            position = stop

    for found in controls.find(text):
        add(found.left)
        while at < len(spans) and spans[at].end <= found.start:
            at += 1
        inside = at < len(spans) and spans[at].start <= found.start
        pieces.append(Piece(found.id, inside, spans[at].turn if inside else -1))
        position = max(position, found.right)
    add(len(text))
    return pieces
