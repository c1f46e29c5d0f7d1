"""OpenHands: rows of ``output.jsonl`` with a ``history``, V0 or V1, and the events of a conversation.

A condensation ends an epoch, and each epoch is an example: what it repeats of those before is
trained in the first of them alone. A run that failed before its first event (``history`` is null)
is an empty example, and counted as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dagpack_cli.corpora.agents.openhands_folder import events_of_folder, is_event
from dagpack_cli.corpora.agents.openhands_v0 import epochs_of_v0, is_v0
from dagpack_cli.corpora.agents.openhands_v1 import epochs_of_v1, is_v1
from dagpack_cli.corpora.agents.openhands_view import Epoch
from dagpack_cli.corpora.files.sources import Source
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Place, Record, read_label, shown, shown_keys
from dagpack_cli.corpora.sessions import read_growing
from dagpack_cli.errors import DataError

__all__ = ["NAME", "read", "recognise"]

NAME = "openhands"

Event = dict[str, Any]

_OUTCOME = ("test_result", "metrics", "metadata", "error")


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record is a run with its history, or one event of a conversation."""
    if is_event(record):
        return True
    history = record.get("history")
    if not history:
        # A run that failed at once has no history, but still its instance and what became of it.
        has_outcome = any(field in record for field in _OUTCOME)
        return history in (None, []) and "history" in record and "instance_id" in record and has_outcome
    first = history[0] if isinstance(history, list) else None
    if isinstance(first, list):
        first = first[0] if len(first) == 2 else None
    return isinstance(first, dict) and (is_v1(first) or is_v0(first))


def read(source: Source, _options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example an epoch of every run; what is wrong with a run goes to ``on_bad``.

    A file of several events is one conversation, up to the first row that is damaged. A file of one
    event is part of its folder's. Memory is O(longest conversation).
    """
    events: list[tuple[Place, Event]] = []
    damage: list[DataError] = []

    def reject(error: DataError) -> None:
        damage.append(error)
        on_bad(error)

    rows = 0
    for place, row in read_growing(source, reject):
        rows += 1
        try:
            if "history" in row:
                yield from _run_of(row, place)
            elif not is_event(row):
                raise DataError(str(place), f"the record has {shown_keys(row)}", "a history, or an event")
            elif not damage:
                events.append((place, row))
        except DataError as error:
            reject(error)
    if rows == 1 and events and not damage:
        events = list(events_of_folder(source, on_bad))
    if events:
        try:
            yield from _conversation_of(events)
        except DataError as error:
            on_bad(error)


def _run_of(row: dict[str, Any], place: Place) -> list[Record]:
    where = str(place)
    instance = read_label(row, "instance_id", place)
    history = row["history"]
    if history is None:
        history = []
    if not isinstance(history, list):
        raise DataError(where, f'"history" is {shown(history)}', "a list of events")
    events = _flat(history, where)
    return list(_records_of(events, place, instance or place.id, instance))


def _flat(history: list[Any], where: str) -> list[tuple[str, Event]]:
    """Return the events of a history, with their places; pairs of an action and its observation are two."""
    events: list[tuple[str, Event]] = []
    for number, item in enumerate(history, 1):
        at = f"{where}, event {number}"
        if isinstance(item, list) and len(item) == 2 and all(isinstance(part, dict) for part in item):
            action, observation = item
            own_id = action.get("id", f"pair {number}")
            events.append((at, {**action, "id": own_id}))
            events.append((at, {"cause": own_id, **observation}))
        elif isinstance(item, dict):
            events.append((at, item))
        else:
            raise DataError(at, f"an event is {shown(item)}", "an object, or an action and its observation")
    return events


def _conversation_of(events: list[tuple[Place, Event]]) -> Iterator[Record]:
    """Yield the epochs of a conversation whose events are rows, called by the first event's id."""
    place, first = events[0]
    own_id = f"{first['id']} of {place.name}" if type(first["id"]) is int else str(first["id"])
    yield from _records_of([(str(at), event) for at, event in events], place, own_id, own_id)


def _records_of(events: list[tuple[str, Event]], place: Place, own_id: str, group: str | None) -> Iterator[Record]:
    epochs = list(_epochs_of(events, own_id))
    for index, epoch in enumerate(epochs):
        name = f"{own_id}#{index}" if len(epochs) > 1 else own_id
        yield Record(place=place, body=Chat(epoch.messages, epoch.tools), id=name, group=group)


def _epochs_of(events: list[tuple[str, Event]], own_id: str) -> Iterable[Epoch]:
    if not events:
        return [Epoch((), ())]
    if "kind" in events[0][1]:
        return epochs_of_v1(events)
    started = str(events[0][1].get("timestamp"))
    return epochs_of_v0(events, f"{own_id} {started}")
