"""Game transitions: records of ``episode``, ``state`` and ``action``; a node is a state with its action.

An episode's records may stand anywhere in the file, in their order. A node's value is
``{"action": a, "state": s}`` where ``a`` is the action that produced ``s``; ``a`` is left out
where there is none. Equal values are one symbol.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dagpack_cli.corpora.files.json_rows import canonical_json
from dagpack_cli.corpora.files.sources import Source, read_source_rows
from dagpack_cli.corpora.games.episodes import Episode, node_of
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import OnBad, Place, Record, Values, read_label, read_weight, shown_keys
from dagpack_cli.errors import DataError

__all__ = ["NAME", "lookup", "read", "recognise"]

NAME = "transitions"

_MISSING = object()


@dataclass(slots=True)
class _Run:
    """An episode with what its first record says of it, and the action taken in its last state."""

    episode: Episode[bytes]
    weight: float
    group: str | None
    next_action: bytes | None = None


def lookup(record: dict[str, Any], path: str, default: Any = None) -> Any:
    """Return the value at a dotted ``path``; a key that holds the dots itself comes first.

    >>> lookup({"data": {"guid": 7}}, "data.guid")
    7
    """
    if path in record:
        return record[path]
    value: Any = record
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return default
        value = value[key]
    return value


def recognise(record: dict[str, Any], options: ReadOptions) -> bool:
    """Return whether the record has a state, and an action or an episode."""
    if lookup(record, options.state_field, _MISSING) is _MISSING:
        return False
    others = (options.action_field, options.episode_field)
    return any(path is not None and lookup(record, path, _MISSING) is not _MISSING for path in others)


def read(source: Source, options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield every episode of the file, in order of first appearance.

    Each is cut where a rule drops a transition, and where a record that could not be read may have
    stood in between: what comes after it is no successor of what came before. Memory is
    O(distinct states of the file + its records).
    """
    runs: dict[bytes, _Run] = {}
    interned: dict[bytes, bytes] = {}
    damage = 0

    def reject(error: DataError) -> None:
        nonlocal damage
        damage += 1
        on_bad(error)

    for place, row in read_source_rows(source, reject):
        try:
            _add(runs, interned, row, place, options, damage)
        except DataError as error:
            reject(error)
    for run in runs.values():
        yield from _records_of(run)


def _add(
    runs: dict[bytes, _Run],
    interned: dict[bytes, bytes],
    row: dict[str, Any],
    place: Place,
    options: ReadOptions,
    damage: int,
) -> None:
    """Append one record to its episode; nothing changes where it raises."""
    where = str(place)
    found = lookup(row, options.state_field, _MISSING)
    if found is _MISSING:
        raise DataError(
            where,
            f'field "{options.state_field}" is missing',
            f"the record has {shown_keys(row)}",
            hint="name the field with --state-field, or leave such records out with --on-error skip",
        )
    state = canonical_json(found, where)
    action = lookup(row, options.action_field)
    given = None if action is None else canonical_json(action, where)
    key = _episode_key(row, where, options)
    run = runs.get(key)
    if run is None:
        run = _open(row, place, key, damage)
        runs[key] = run
    if options.action_taken:
        given, run.next_action = run.next_action if run.episode.follows(damage) else None, given
    node = node_of(given, state)
    run.episode.add(interned.setdefault(node, node), state, given, rules=options.drop_rules, damage=damage)


def _episode_key(row: dict[str, Any], where: str, options: ReadOptions) -> bytes:
    if options.episode_field is None:
        return b""
    episode = lookup(row, options.episode_field)
    if episode is None:
        raise DataError(
            where,
            f'field "{options.episode_field}" is missing',
            "every record names its episode",
            hint="name the field with --episode-field, or --episode-field none where a file is one episode",
        )
    return canonical_json(episode, where)


def _open(row: dict[str, Any], place: Place, key: bytes, damage: int) -> _Run:
    """Return a new episode; its first record gives weight and group, and with the key its id."""
    name = f"{place.name}#{key.decode().strip(chr(34))}" if key else place.name
    own = read_label(row, "id", place) if not key else None
    weight = read_weight(row.get("weight"), place)
    return _Run(Episode(place, own or name, damage), weight, read_label(row, "group", place))


def _records_of(run: _Run) -> Iterator[Record]:
    """Yield the episode's parts between the cuts, with the range of nodes in their ids."""
    episode = run.episode
    for part in episode.parts():
        yield Record(
            place=episode.place,
            body=Values(episode.nodes[part.start : part.end]),
            id=f"{episode.id}[{part.start}:{part.end}]" if episode.cuts else episode.id,
            weight=run.weight,
            group=run.group,
            start=part.start,
            end=part.end,
            dropped=part.dropped,
        )
