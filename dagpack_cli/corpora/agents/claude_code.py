"""Sessions of Claude Code: a JSON line a block, linked by ``uuid`` and ``parentUuid``.

The format is not specified; what is known of it comes from files of versions 1.0 to 2.1 and from
https://github.com/daaain/claude-code-log (dev-docs/dag.md). Neither the system prompt nor the
tools are in the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagpack_cli.corpora.agents.claude_code_lines import Entry, entry_of
from dagpack_cli.corpora.agents.claude_code_messages import messages_of_path
from dagpack_cli.corpora.agents.claude_code_tree import grow_tree
from dagpack_cli.corpora.files.sources import Source
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Place, Record, shown
from dagpack_cli.corpora.sessions import read_until_bad, up_to_here
from dagpack_cli.errors import DataError

__all__ = ["NAME", "read", "recognise"]

NAME = "claude-code"

# Lines without a uuid, which may fill the start of a file: what tells each from other formats.
_UNLINKED = {"summary": "leafUuid", "file-history-snapshot": "messageId", "queue-operation": "sessionId"}


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record is a line of a session, or the export of a whole one."""
    if isinstance(record.get("uuid"), str) and isinstance(record.get("sessionId"), str):
        return "parentUuid" in record
    lines = record.get("loglines")
    if isinstance(lines, list):
        return all(isinstance(line, dict) and "type" in line for line in lines[:1])
    kind = record.get("type")
    return isinstance(kind, str) and kind in _UNLINKED and isinstance(record.get(_UNLINKED[kind]), str)


def read(source: Source, _options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a leaf: every branch, the context before and after a compaction, every subagent's.

    What is wrong with a line goes to ``on_bad``, and the session ends before it; a file whose lines
    are each other's ancestors goes there as a whole. Memory is O(texts of the file): a file is a
    session.
    """
    entries: list[Entry] = []
    rows = read_until_bad(source, on_bad, begins=_is_export)
    for place, row in rows:
        if _is_export(row):
            exported, cut = _exported(row["loglines"], place, on_bad)
            yield from _session(exported, on_bad, cut=cut)
            continue
        try:
            entry = entry_of(row, place, str(place))
        except DataError as error:
            rows.stop(error)
        else:
            entries.extend([entry] if entry is not None else [])
    yield from _session(entries, on_bad, cut=rows.cut)


def _is_export(row: dict[str, Any]) -> bool:
    return "loglines" in row


def _exported(lines: Any, place: Place, on_bad: OnBad) -> tuple[list[Entry], bool]:
    """Return the entries of a session that is exported as one object, and whether a bad line cut it."""
    entries: list[Entry] = []
    if not isinstance(lines, list):
        on_bad(DataError(str(place), f'"loglines" is {shown(lines)}', "a list"))
        return entries, False
    for number, line in enumerate(lines, 1):
        where = f"{place}, line {number:,} of the log"
        try:
            if not isinstance(line, dict):
                raise DataError(where, f"it is {shown(line)}", "an object")
            entry = entry_of(line, place, where)
        except DataError as error:
            on_bad(up_to_here(error))
            return entries, True
        entries.extend([entry] if entry is not None else [])
    return entries, False


def _session(entries: list[Entry], on_bad: OnBad, *, cut: bool) -> Iterator[Record]:
    entries = _linked(entries)
    try:
        tree = grow_tree(entries)
    except DataError as error:
        on_bad(error)
        return
    for number, leaf in enumerate(tree.leaves(), 1):
        path = tree.path(leaf)
        first, last = tree.nodes[path[0]].entries[0], tree.nodes[leaf].entries[-1]
        session = "/".join(part for part in (last.session, last.chain.removeprefix("agent ")) if part)
        yield Record(
            place=first.place,
            body=Chat(messages_of_path(tree, path, cut=cut)),
            id=f"{session}#{number}" if session else f"{first.place.id}#{number}",
            group=last.session or None,
            family=first.session if first.session not in ("", last.session) else None,
        )


def _linked(entries: list[Entry]) -> list[Entry]:
    """Return the entries with a uuid each, those of one conversation that names no parents as a chain.

    Exports without links, and logs whose links were removed, are in the order of what was said.
    """
    linked = {(entry.session, entry.chain) for entry in entries if entry.parent is not None}
    last: dict[tuple[str, str], str] = {}
    seen: set[str] = set()
    for entry in entries:
        key = (entry.session, entry.chain)
        alone = not entry.uuid
        entry.uuid = entry.uuid or f"at {entry.where}"
        if entry.uuid in seen:
            continue
        seen.add(entry.uuid)
        if entry.parent is None and (alone or key not in linked):
            entry.parent = last.get(key)
        last[key] = entry.uuid
    return entries
