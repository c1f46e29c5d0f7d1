"""A conversation of OpenHands as a folder: one event a file, in the order of the numbers in their names.

Each of these files is an input of its own. The first reads the conversation out of all of them, and
the others give nothing. Which files are events, their content says; a damaged one among them ends
the conversation, and is told.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from dagpack_cli.corpora.agents.openhands_v0 import is_stored_v0
from dagpack_cli.corpora.agents.openhands_v1 import is_v1
from dagpack_cli.corpora.files.sources import Source, read_source_rows, stat_source
from dagpack_cli.corpora.records import OnBad, Place
from dagpack_cli.corpora.walk import printable
from dagpack_cli.errors import DagpackError, DataError, DiskError

__all__ = ["events_of_folder", "is_event"]

_NUMBERS = re.compile(rb"([0-9]+)")


def is_event(record: dict[str, Any]) -> bool:
    """Return whether a record is one event and nothing more."""
    return is_v1(record) or is_stored_v0(record)


def events_of_folder(source: Source, on_bad: OnBad) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the events of the folder of ``source`` if it is the first event file in it, else nothing.

    Costs one look at the folder a file, and at most two rows of every file before the first event.

    Raises:
        DiskError: the folder cannot be listed, or a file in it cannot be read.
    """
    # What the build listed, not what stands there by now: only that is in its manifest.
    listed = tuple(sorted((sibling.name for sibling in source.siblings), key=_natural))
    names = listed or _names_in(source.path.parent)
    for name in names:
        if name == source.path.name:
            break
        if _holds_one_event(source, name):
            return
    for name in names:
        damage: list[DataError] = []
        rows = list(_first_rows(_beside(source, name), damage))
        if damage:
            on_bad(damage[0])
            return
        if len(rows) == 1 and is_event(rows[0][1]):
            yield rows[0]


def _beside(source: Source, name: str) -> Source:
    """Return another file of the folder of ``source``, as it is now.

    Raises:
        NoInputError, PermissionDeniedError, DiskError: it cannot be looked at.
    """
    above, slash, _ = source.name.rpartition("/")
    path = source.path.parent / name
    found = stat_source(path, above + slash + printable(name), source.format, source.limits)
    for sibling in source.siblings:
        if sibling.name == name:
            return replace(found, size=sibling.size)
    return found


def _first_rows(source: Source, damage: list[DataError]) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield up to two rows of a JSON object's file: an event is alone in its own."""
    for count, row in enumerate(read_source_rows(source, damage.append)):
        yield row
        if count or damage:
            return


def _holds_one_event(source: Source, name: str) -> bool:
    damage: list[DataError] = []
    try:
        rows = list(_first_rows(_beside(source, name), damage))
    except DagpackError:
        return False
    return not damage and len(rows) == 1 and is_event(rows[0][1])


def _names_in(folder: Path) -> tuple[str, ...]:
    """Return the names of a folder's files that can be input, in the order of the numbers in them.

    Raises:
        DiskError: it cannot be listed.
    """
    try:
        return _listed(folder, folder.stat().st_mtime_ns)
    except OSError as error:
        raise DiskError(str(folder), f"listing failed: {error.strerror or error}") from None


@lru_cache(maxsize=2)
def _listed(folder: Path, _changed_ns: int) -> tuple[str, ...]:
    """Return what `_names_in` does; kept, for every file of the folder asks for it."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()]
    return tuple(sorted(names, key=_natural))


def _natural(name: str) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return a key that orders numbers by their value: an event's file is called after its number.

    >>> sorted(["10.json", "9.json", "event-00002-b.json"], key=_natural)
    ['9.json', '10.json', 'event-00002-b.json']
    """
    raw = os.fsencode(name)
    parts = _NUMBERS.split(raw)  # Text and numbers take turns, so like is compared with like.
    values = [part.lstrip(b"0") if index % 2 else part for index, part in enumerate(parts)]
    return [(len(value) if index % 2 else 0, value) for index, value in enumerate(values)], raw
