"""Prompts: what several answers to one question have in common, and the group it makes of them."""

from __future__ import annotations

from collections.abc import Sequence

from dagpack_cli.corpora.sessions import identity_of
from dagpack_cli.tokenizing.messages import Message

__all__ = ["group_of_prompt", "num_shared", "opening_of", "said"]

Said = tuple[str, str, str, tuple[tuple[str, str], ...]]


def said(message: Message) -> Said:
    """Return what a message says: all of it that a template writes."""
    calls = tuple((call.name, call.arguments) for call in message.tool_calls)
    return message.role, message.content, message.reasoning, calls


def num_shared(first: Sequence[Message], second: Sequence[Message]) -> int:
    """Return how many messages two conversations start with alike."""
    limit = min(len(first), len(second))
    return next((index for index in range(limit) if said(first[index]) != said(second[index])), limit)


def opening_of(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages before the first one of the assistant."""
    ends = (index for index, message in enumerate(messages) if message.role == "assistant")
    return messages[: next(ends, len(messages))]


def group_of_prompt(prompt: str | Sequence[Message]) -> str:
    """Return the group of all answers to ``prompt``: equal prompts, equal group, in every file.

    >>> group_of_prompt("2+3=") == group_of_prompt("2+3="), len(group_of_prompt("2+3="))
    (True, 39)
    """
    if isinstance(prompt, str):
        return f"prompt-{identity_of(prompt).hex()}"
    parts: list[str] = []
    for message in prompt:
        role, content, reasoning, calls = said(message)
        parts += (role, content, reasoning, str(len(calls)))
        for call in calls:
            parts += call
    return f"prompt-{identity_of(*parts).hex()}"
