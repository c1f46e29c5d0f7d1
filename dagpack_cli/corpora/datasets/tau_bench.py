"""tau-bench results: tasks run several times, each run a conversation in ``traj`` with its ``reward``.

The runs of a task are a group. The user is played by a model, so they part at the first message
the user writes; what is trained is the assistant alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagpack_cli.corpora.datasets.prompts import group_of_prompt, opening_of
from dagpack_cli.corpora.datasets.rewards import GroupRewards, read_reward, rewards_by_group, times
from dagpack_cli.corpora.files.sources import Source, read_source_rows
from dagpack_cli.corpora.messages import messages_of, tools_of_row
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Place, Record, read_label, read_weight, shown_keys
from dagpack_cli.errors import DataError

__all__ = ["NAME", "read", "recognise"]

NAME = "tau-bench"


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record is a run of a task, with its reward."""
    return isinstance(record.get("traj"), list) and "reward" in record


def read(source: Source, options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a run; what is wrong with one goes to ``on_bad``.

    Runs of a task stand apart, so advantages take a first pass over the file, and memory O(tasks).
    """
    groups = rewards_by_group(_rewards(source)) if options.group_weight == "advantage" else {}
    for place, row in read_source_rows(source, on_bad):
        try:
            record = _record_of(row, place)
            if options.group_weight != "none":
                record.weight = times(record.weight, _factor_of(row, record, groups), place)
        except DataError as error:
            on_bad(error)
        else:
            yield record


def _factor_of(row: dict[str, Any], record: Record, groups: dict[str, GroupRewards]) -> float:
    """Return the run's reward, or with groups its advantage over the other runs of the task."""
    reward = read_reward(row.get("reward"), "reward", record.place)
    return groups[record.group or ""].advantage(reward) if groups else reward


def _rewards(source: Source) -> Iterator[tuple[str, float]]:
    for place, row in read_source_rows(source, lambda error: None):
        try:
            record = _record_of(row, place)
            yield record.group or "", read_reward(row.get("reward"), "reward", place)
        except DataError:
            continue  # Reported where the examples are made.


def _record_of(row: dict[str, Any], place: Place) -> Record:
    where = str(place)
    if row.get("traj") is None:
        raise DataError(where, f"the record has {shown_keys(row)}", '"traj" is missing')
    messages = messages_of(row["traj"], where)
    group = read_label(row, "task_id", place)
    return Record(
        place=place,
        body=Chat(messages, tools_of_row(row, where)),
        id=read_label(row, "id", place) or place.id,
        weight=read_weight(row.get("weight"), place),
        group=group_of_prompt(opening_of(messages)) if group is None else group,
    )
