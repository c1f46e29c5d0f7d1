"""Which messages of a conversation are trained, and one example per trained message where asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dagpack_cli.corpora.messages import tools_of
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, Record
from dagpack_cli.corpora.sessions import identity_of
from dagpack_cli.tokenizing.chat import Part, targets_of
from dagpack_cli.tokenizing.messages import Message

__all__ = ["Conversation", "Turns"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation with the parts of each message that are trained."""

    messages: tuple[Message, ...]
    tools: tuple[Any, ...]
    targets: tuple[Part, ...]


class Turns:
    """Makes the examples of a file's conversations.

    Args:
        options: what is trained; ``system`` and ``tools`` for conversations without.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._tools = tools_of(options.tools, "--tools") if options.tools else ()
        self._seen: set[bytes] = set()

    def examples_of(self, record: Record) -> Iterator[tuple[Record, Conversation | None]]:
        """Yield the examples of a record: itself, or with ``per_turn`` one for every trained message.

        A message that another leaf of the file carried before, by its identity, is not given a
        second example. A conversation in which nothing is trained stays one example. Memory is
        O(distinct messages of the file) bytes of identities.
        """
        body = record.body
        if not isinstance(body, Chat):
            yield record, None
            return
        options = self._options
        messages, first = self._with_system(body)
        targets = targets_of(
            messages,
            supervise=options.supervise,
            supervise_from=first,
            thinking=options.thinking,
            tool_calls=options.tool_calls,
        )
        tools = body.tools or self._tools
        trained = [index for index, target in enumerate(targets) if target]
        if options.supervise == "last-turn" and trained:
            # What follows the turn that is trained is no context of it.
            messages, targets = messages[: trained[-1] + 1], targets[: trained[-1] + 1]
        if not options.per_turn or not trained:
            yield record, Conversation(messages, tools, tuple(targets))
            return
        for index in trained:
            identity = messages[index].identity
            if identity:
                if identity in self._seen:
                    continue
                self._seen.add(identity)
            alone = [Part.NOTHING] * index + [targets[index]]
            turn = Conversation(messages[: index + 1], tools, tuple(alone))
            yield replace(record, id=f"{record.id}@{index + 1}"), turn

    def _with_system(self, body: Chat) -> tuple[tuple[Message, ...], int]:
        """Return the messages after the system prompt of the options, where they have none, and the prompt's end."""
        messages, first = body.messages, body.supervise_from
        if not self._options.system or (messages and messages[0].role in ("system", "developer")):
            return messages, first
        # Equal in all leaves of a session, so that `all` trains it once in them all.
        known = messages[0].identity if messages else b""
        identity = identity_of("system", known) if known else b""
        system = Message(role="system", content=self._options.system, identity=identity)
        return (system, *messages), first + 1 if first else 0
