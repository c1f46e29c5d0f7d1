"""How a corpus is read: the options a manifest stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dagpack_cli.corpora.files.limits import DEFAULT_LIMITS, Limits
from dagpack_cli.corpora.games.droprules import DropRule, parse_drop_rule
from dagpack_cli.errors import UsageError

__all__ = ["FORMATS", "ReadOptions"]

FORMATS = (
    "text",
    "jsonl-text",
    "chat",
    "sharegpt",
    "alpaca",
    "preference",
    "rl-groups",
    "pretokenised",
    "pi",
    "claude-code",
    "codex",
    "gemini",
    "swe-agent",
    "mini-swe-agent",
    "openhands",
    "atif",
    "atif-ids",
    "tau-bench",
    "arc-agi-3",
    "transitions",
)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What the reader is told about the corpus.

    Attributes:
        format: read every file as this one of `FORMATS`; None looks at what is in each.
        text_field: the field of a JSON record that holds its text.
        episode_field: dotted path of a transition's episode; None makes every file one episode.
        state_field: dotted path of its state, any JSON value.
        action_field: dotted path of its action, which may be absent.
        action_taken: the action is the one taken in this record's state; else it produced it.
        drop_rules: transitions to leave out; texts are parsed (see `parse_drop_rule`).
        predict: what a game's model learns, of formats that know it: the next state or the action.
        grid_tokens: games of grids are written cell by cell instead of one symbol a state.
        group_weight: what a completion of a group with rewards weighs.
        supervise: which messages are trained (see `tokenizing.chat.targets_of`).
        thinking: whether thinking is trained.
        tool_calls: whether tool calls are trained.
        per_turn: one example for every trained message instead of one for a whole path.
        system: the system prompt of conversations that have none.
        tools: the tools, a JSON list as text, of conversations that announce none.
        limits: what one file may ask for.

    Raises:
        UsageError: an unknown format, an empty field name, or a rule that cannot be parsed.
    """

    format: str | None = None
    text_field: str = "text"
    episode_field: str | None = "episode"
    state_field: str = "state"
    action_field: str = "action"
    action_taken: bool = False
    drop_rules: tuple[DropRule, ...] = ()
    predict: Literal["next-state", "action"] = "next-state"
    grid_tokens: bool = False
    group_weight: Literal["none", "reward", "advantage"] = "none"
    supervise: Literal["assistant", "last-turn", "all", "completion"] = "assistant"
    thinking: bool = True
    tool_calls: bool = True
    per_turn: bool = False
    system: str = ""
    tools: str = ""
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        """Check every field, and parse rules given as text."""
        if self.format is not None and self.format not in FORMATS:
            raise UsageError("--format", f'"{self.format}"', f"one of {', '.join(FORMATS)}")
        for name in ("text_field", "episode_field", "state_field", "action_field"):
            value = getattr(self, name)
            if value is not None and (not value or value.startswith(".") or value.endswith(".") or ".." in value):
                raise UsageError(f"--{name.replace('_', '-')}", f'"{value}"', "a field name or a dotted path")
        rules = tuple(parse_drop_rule(rule) if isinstance(rule, str) else rule for rule in self.drop_rules)
        object.__setattr__(self, "drop_rules", rules)
