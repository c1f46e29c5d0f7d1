"""Game transitions: records of ``episode``, ``state`` and ``action``; a node is a state with its action.

An episode's records may stand anywhere in the file, in their order. A node's value is
``{"action": a, "state": s}`` where ``a`` is the action that produced ``s``; ``a`` is left out
where there is none. Equal values are one symbol.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dagpack_cli.corpora.droprules import is_dropped
from dagpack_cli.corpora.json_rows import canonical_json
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import OnBad, Place, Record, Values, read_label, read_weight, shown_keys
from dagpack_cli.corpora.sources import Source, read_source_rows
from dagpack_cli.errors import DataError

__all__ = ["NAME", "lookup", "read", "recognise"]

NAME = "transitions"

_MISSING = object()


@dataclass(slots=True)
class _Episode:
    """What is known of an episode: the place of its first record, and its nodes so far."""

    place: Place
    id: str
    weight: float
    group: str | None
    nodes: list[bytes] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)  # Nodes whose transition from before is dropped.
    state: bytes = b""
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
    """Yield every episode of the file, in order of first appearance, cut where rules drop a transition.

    Memory is O(distinct states of the file + its records).
    """
    episodes: dict[bytes, _Episode] = {}
    interned: dict[bytes, bytes] = {}
    for place, row in read_source_rows(source.path, source.name, on_bad):
        try:
            _add(episodes, interned, row, place, options)
        except DataError as error:
            on_bad(error)
    for episode in episodes.values():
        yield from _records_of(episode)


def _add(
    episodes: dict[bytes, _Episode],
    interned: dict[bytes, bytes],
    row: dict[str, Any],
    place: Place,
    options: ReadOptions,
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
    episode = episodes.get(key)
    if episode is None:
        episode = _open(row, place, key)
        episodes[key] = episode
    produced = episode.next_action if options.action_taken else given
    node = b'{"state":' + state + b"}" if produced is None else b'{"action":' + produced + b',"state":' + state + b"}"
    if episode.nodes and is_dropped(options.drop_rules, episode.state, state, produced):
        episode.cuts.append(len(episode.nodes))
    episode.nodes.append(interned.setdefault(node, node))
    episode.state = state
    episode.next_action = given


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


def _open(row: dict[str, Any], place: Place, key: bytes) -> _Episode:
    """Return a new episode; its first record gives weight and group, and with the key its id."""
    name = f"{place.name}#{key.decode().strip(chr(34))}" if key else place.name
    own = read_label(row, "id", place) if not key else None
    return _Episode(place, own or name, read_weight(row.get("weight"), place), read_label(row, "group", place))


def _records_of(episode: _Episode) -> Iterator[Record]:
    """Yield the episode's parts between dropped transitions, with the range of nodes in their ids."""
    bounds = [0, *episode.cuts, len(episode.nodes)]
    for start, end in itertools.pairwise(bounds):
        yield Record(
            place=episode.place,
            body=Values(episode.nodes[start:end]),
            id=f"{episode.id}[{start}:{end}]" if episode.cuts else episode.id,
            weight=episode.weight,
            group=episode.group,
            start=start,
            end=end,
            dropped=1 if end != len(episode.nodes) else 0,
        )
