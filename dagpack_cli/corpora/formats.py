"""The formats, in the order in which they are asked whether a record is theirs.

A format is a module with ``NAME``, ``recognise(record, options)`` and ``read(source, options,
on_bad)``. What is more specific stands first, so a new one has one line to add here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from dagpack_cli.corpora.agents import (
    atif,
    atif_ids,
    claude_code,
    codex,
    gemini,
    mini_swe_agent,
    openhands,
    pi,
    swe_agent,
)
from dagpack_cli.corpora.datasets import (
    alpaca,
    chat,
    jsonl_text,
    preference,
    pretokenised,
    rl_groups,
    sharegpt,
    tau_bench,
    text,
)
from dagpack_cli.corpora.files.sources import Source
from dagpack_cli.corpora.games import arc_agi_3, transitions
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import OnBad, Record
from dagpack_cli.errors import MismatchError, UsageError

__all__ = ["FOLDER_FORMATS", "Format", "choose_tokenizer", "format_of", "holds_chats", "kind_of", "recognise"]


class Format(Protocol):
    """What a module of a format offers."""

    NAME: str

    def recognise(self, _record: dict[str, Any], _options: ReadOptions, /) -> bool:
        """Return whether a record of this format looks like that."""
        ...

    def read(self, source: Source, _options: ReadOptions, on_bad: OnBad, /) -> Iterator[Record]:
        """Yield the records of a file; what is wrong with one goes to ``on_bad``."""
        ...


_FORMATS: tuple[Format, ...] = (
    arc_agi_3,
    pretokenised,
    pi,
    claude_code,
    codex,
    gemini,
    openhands,
    swe_agent,
    mini_swe_agent,
    atif_ids,
    atif,
    tau_bench,
    preference,
    rl_groups,
    sharegpt,
    alpaca,
    chat,
    transitions,
    jsonl_text,
    text,
)
_BY_NAME = {module.NAME: module for module in _FORMATS}
_KINDS = {pretokenised.NAME: "tokens", atif_ids.NAME: "tokens", transitions.NAME: "symbols", arc_agi_3.NAME: "symbols"}
_GRIDS = {arc_agi_3.NAME}
FOLDER_FORMATS = frozenset({openhands.NAME})
"""Formats that may take all files of a folder for one conversation."""
_CONTENTS = {"text": "text", "tokens": "token ids", "symbols": "game transitions", "grid": "games cell by cell"}
_DEFAULTS = {"text": "bytes", "tokens": "none", "symbols": "symbols", "grid": "grid"}


def format_of(name: str) -> Format:
    """Return the format called ``name``, one of `FORMATS`."""
    return _BY_NAME[name]


def recognise(record: dict[str, Any], options: ReadOptions) -> str | None:
    """Return the name of the first format that knows the record, None for none."""
    return next((module.NAME for module in _FORMATS if module.recognise(record, options)), None)


def kind_of(format: str, *, grid_tokens: bool = False) -> str:
    """Return what a format's records hold: ``"text"``, ``"tokens"``, ``"symbols"`` or ``"grid"``.

    ``grid_tokens`` is that of `ReadOptions`: games of grids are then cells.
    """
    return "grid" if grid_tokens and format in _GRIDS else _KINDS.get(format, "text")


def holds_chats(format: str) -> bool:
    """Return whether a format's records may be conversations, which a chat template writes."""
    return kind_of(format) == "text" and format not in (text.NAME, jsonl_text.NAME)


def choose_tokenizer(inputs: Sequence[Source], spec: str = "auto", *, grid_tokens: bool = False) -> str:
    """Return the tokenizer to load for ``inputs``: for ``auto`` bytes, none, symbols or grid, as they hold.

    An explicit text tokenizer may read text and pretokenised files together: it is then the one
    that made the ids.

    Args:
        inputs: the files to read; not empty.
        spec: what the user asked for; anything but ``auto`` is checked and returned.
        grid_tokens: of `ReadOptions`.

    Raises:
        UsageError: ``auto``, and the files hold different kinds of content; or ``grid_tokens``, and
            none is a game of grids.
        MismatchError: the tokenizer asked for cannot read one of the files.
    """
    first: dict[str, Source] = {}
    for source in inputs:
        first.setdefault(kind_of(source.format, grid_tokens=grid_tokens), source)
    if grid_tokens and "grid" not in first:
        raise UsageError("--grid-tokens", "no input is a game of grids", f"recordings of {', '.join(sorted(_GRIDS))}")
    if spec == "auto":
        if len(first) > 1:
            raise _mixed(first)
        return _DEFAULTS[next(iter(first), "text")]
    fitting = {"none": {"tokens"}, "symbols": {"symbols"}, "grid": {"grid"}}.get(spec, {"text", "tokens"})
    for kind, source in first.items():
        if kind not in fitting:
            raise MismatchError(
                f"--tokenizer {spec}",
                f"cannot read {source.name}, which holds {_CONTENTS[kind]}",
                f"it reads {' and '.join(sorted(fitting))}",
                hint=f"use --tokenizer {_DEFAULTS[kind]}" if len(first) == 1 else "build the two apart",
            )
    return spec


def _mixed(first: dict[str, Source]) -> UsageError:
    listed = ", ".join(f"{source.name} ({_CONTENTS[kind]})" for kind, source in first.items())
    hint = "build them apart"
    if first.keys() == {"text", "tokens"}:
        hint = "name the tokenizer that made the ids: --tokenizer PATH"
    return UsageError("--tokenizer auto", f"the corpus mixes {listed}", "one tokenizer reads one of them", hint=hint)
