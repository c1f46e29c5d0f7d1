"""How a Codex session's history changes: turns that are rolled back, and compaction.

Source: openai/codex, codex-rs/core/src/context_manager/history.rs (drop_last_n_user_turns) and
codex-rs/core/src/compact.rs (build_compacted_history).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dagpack_cli.corpora.agents.codex_items import Item

__all__ = ["compacted", "rolled_back"]

# Messages in the user's role that the program wrote: how each begins and ends.
_INJECTED = (
    ("# agents.md instructions for ", "</instructions>"),
    ("<user_instructions>", "</user_instructions>"),
    ("<environment_context>", "</environment_context>"),
    ("<skill>", "</skill>"),
    ("<user_shell_command>", "</user_shell_command>"),
    ("<turn_aborted>", "</turn_aborted>"),
    ("<subagents>", "</subagents>"),
    ("<subagent_notification>", "</subagent_notification>"),
    ("<hook_prompt", "</hook_prompt>"),
)
_SUMMARY = "Another language model started to solve this problem"
_NO_SUMMARY = "(no summary available)"
_KEPT_TOKENS = 20_000
_TOKEN_BYTES = 4


def _injected(item: Item) -> bool:
    if item.kind != "said" or item.role != "user":
        return False
    text = item.text.strip()
    head, tail = text[:40].lower(), text[-40:].lower()
    return any(head.startswith(start) and tail.endswith(end) for start, end in _INJECTED)


def _by_user(item: Item) -> bool:
    return item.kind == "said" and item.role == "user" and not _injected(item)


def rolled_back(items: Sequence[Item], turns: int) -> list[Item]:
    """Return the history without its last ``turns`` turns of the user; what stands before the first stays.

    What the program said just before a turn belongs to it.

    >>> said = [Item(kind="said", role=role, text=text) for role, text in [("user", "a"), ("user", "b")]]
    >>> [item.text for item in rolled_back(said, 1)]
    ['a']
    """
    places = [number for number, item in enumerate(items) if _by_user(item)]
    if turns <= 0 or not places:
        return list(items)
    end = places[max(len(places) - turns, 0)]
    while end > places[0] and items[end - 1].kind == "said" and not _by_user(items[end - 1]):
        end -= 1
    return list(items[:end])


def compacted(items: Sequence[Item], summary: str) -> list[Item]:
    """Return the history that a compaction leaves which did not record it, as versions of 2025 do.

    What stood before the first turn of the user, the user's newest messages up to 20,000 tokens
    (of 4 bytes each, as Codex estimates them; the one that crosses the limit loses its middle),
    and the summary.
    """
    first = next((number for number, item in enumerate(items) if _by_user(item)), len(items))
    before = [item for item in items[:first] if item.kind == "said"]
    kept: list[Item] = []
    left = _KEPT_TOKENS
    for item in reversed(items):
        if left == 0:
            break
        if not _by_user(item) or item.text.startswith(_SUMMARY):
            continue
        tokens = -(-len(item.text.encode("utf-8")) // _TOKEN_BYTES)
        kept.append(item if tokens <= left else replace(item, text=_without_middle(item.text, tokens, left)))
        left = max(left - tokens, 0)
    told = Item(kind="said", role="user", text=summary or _NO_SUMMARY)
    return [replace(item, copied=True) for item in (*before, *reversed(kept), told)]


def _without_middle(text: str, tokens: int, left: int) -> str:
    """Return the start and the end of a text, in ``left`` tokens."""
    data = text.encode("utf-8")
    half = left * _TOKEN_BYTES // 2
    start = data[:half].decode("utf-8", "ignore")
    end = data[len(data) - half :].decode("utf-8", "ignore")
    return f"{start}…{tokens - left} tokens truncated…{end}"
