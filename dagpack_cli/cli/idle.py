"""Options of a build that could change nothing beside others: refused, since who gives one believes that it does.

Only what the options themselves say is looked at. Whether a corpus has what an option speaks of is known when it has
been read, and one command may be meant for many corpora.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagpack_cli.errors import UsageError
from dagpack_cli.options import Format, Layout, Merge, Predict, ShardFormat

__all__ = ["refuse_idle_packing", "refuse_idle_reading", "refuse_idle_splitting", "refuse_idle_template"]

_TRANSITIONS = (Format.TRANSITIONS,)
_GAMES = (Format.TRANSITIONS, Format.ARC_AGI_3)
# Of an option: what it is where it is not given, and the formats that it speaks of.
_SPEAKS_OF: dict[str, tuple[Any, tuple[Format, ...]]] = {
    "text_field": ("text", (Format.JSONL_TEXT,)),
    "episode_field": ("episode", _TRANSITIONS),
    "state_field": ("state", _TRANSITIONS),
    "action_field": ("action", _TRANSITIONS),
    "action_taken": (False, _TRANSITIONS),
    "drop_transition": (None, _GAMES),
    "predict": (Predict.NEXT_STATE, _GAMES),
}


def refuse_idle_reading(values: Mapping[str, Any]) -> None:
    """Raise `UsageError` where every file is read as a format that an option does not speak of."""
    given = values["format"]
    if given is None:
        return
    for name, (usual, formats) in _SPEAKS_OF.items():
        if values[name] not in (usual, []) and given not in formats:
            option = "--" + name.replace("_", "-")
            expected = f"--format {' or '.join(formats)}, or none"
            raise UsageError(option, f"does nothing with --format {given}", expected, hint=f"leave {option} out")


def refuse_idle_template(values: Mapping[str, Any]) -> None:
    """Raise `UsageError` where a date is given for a template that asks for none."""
    if values["template_date"] is not None and values["chat_template"] == "builtin":
        raise UsageError(
            "--template-date", "the built-in template asks for no date", "a template of a model", hint="leave it out"
        )


def refuse_idle_splitting(values: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a seed where nothing is split, and for a least shared prefix where none is merged."""
    if values["seed"] and not values["val_fraction"]:
        hint = "add --val-fraction, or leave --seed out: nothing else is drawn by lot"
        raise UsageError("--seed", "there is no --val-fraction", "groups to choose from", hint=hint)
    if values["min_shared"] > 1 and values["merge"] is Merge.NONE:
        raise UsageError(
            "--min-shared", "nothing is merged: --merge none", "--merge prefix", hint="leave one of them out"
        )


def refuse_idle_packing(values: Mapping[str, Any]) -> None:
    """Raise `UsageError` where files are not compressed, or windows not polished, to which an option speaks."""
    if values["compression_level"] != 1 and values["shard_format"] is ShardFormat.NPY:
        hint = "leave it out, or --shard-format parquet"
        raise UsageError("--compression-level", "--shard-format npy is not compressed", "parquet", hint=hint)
    if values["polish"] and values["layout"] is not Layout.DAG:
        hint = "leave it out, or --layout dag"
        raise UsageError("--polish", f"--layout {values['layout']} is not polished", "--layout dag", hint=hint)
