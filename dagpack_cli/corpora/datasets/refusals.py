"""What a plain conversation may not carry: a verdict on it, a reward that is asked for, or what is no text.

Judged rows look like plain ones with a field more; read as plain, they would train what was rejected.
"""

from __future__ import annotations

from typing import Any

from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.errors import DataError

__all__ = ["refuse_media", "refuse_rewards", "refuse_verdict", "reward_field", "verdict_of"]

_VERDICTS = (
    "chosen",
    "rejected",
    "chosen_messages",
    "rejected_messages",
    "rejected_response",
    "preferred_output",
    "preferred_completion",
    "non_preferred_output",
    "non_preferred_completion",
    "kto_tag",
)
# Also the name of a class, in rows that are no judgements: a verdict is a truth value, or a list of them.
_LABELS = ("label", "labels")
_REWARDS = ("reward", "rewards", "advantage", "advantages")
_MEDIA = ("image", "images", "video", "videos", "audio", "audios")


def verdict_of(record: dict[str, Any]) -> str:
    """Return the name of the first field that judges the record, empty where none does.

    >>> verdict_of({"messages": [], "label": False}), verdict_of({"messages": [], "label": 3})
    ('label', '')
    """
    for name in _LABELS:
        if isinstance(record.get(name), bool | list):
            return name
    return next((name for name in _VERDICTS if record.get(name) is not None), "")


def reward_field(record: dict[str, Any]) -> str:
    """Return the name of the first field that rewards the record's answers, empty where none does."""
    return next((name for name in _REWARDS if record.get(name) is not None), "")


def refuse_verdict(row: dict[str, Any], where: str) -> None:
    """Let only rows pass that nobody judged.

    Raises:
        DataError: a field judges the row.
    """
    name = verdict_of(row)
    if name:
        raise DataError(where, f'"{name}" judges this record', "a plain chat was expected, with nothing rejected")


def refuse_rewards(row: dict[str, Any], where: str, options: ReadOptions) -> None:
    """Let only rows pass that hold no reward, where the options weigh by rewards.

    Raises:
        DataError: the row has a reward, and ignoring it would change its weight.
    """
    name = reward_field(row) if options.group_weight != "none" else ""
    if name:
        raise DataError(
            where,
            f'"{name}" rewards this record',
            f"plain chats have no reward for --group-weight {options.group_weight}",
            hint="read the file with --format rl-groups, or give all records one weight with --group-weight none",
        )


def refuse_media(row: dict[str, Any], where: str) -> None:
    """Let only rows pass that are all text.

    Raises:
        DataError: images, sound or film belong to the row.
    """
    for name in _MEDIA:
        if row.get(name) not in (None, "", [], {}):
            raise DataError(where, f'"{name}" belong to this record', "only text can be read")
