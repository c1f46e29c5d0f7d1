"""Groups of completions with rewards: one row with all of them, or one row each, anywhere in a file.

Log probabilities of the policy that wrote them are not carried: the objective is the weighted
cross entropy of the completions, not a clipped ratio.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dagpack_cli.corpora.datasets.chat import completed
from dagpack_cli.corpora.datasets.prompts import group_of_prompt, opening_of
from dagpack_cli.corpora.datasets.refusals import refuse_media, refuse_verdict, reward_field, verdict_of
from dagpack_cli.corpora.datasets.rewards import GroupRewards, read_reward, rewards_by_group, times
from dagpack_cli.corpora.files.sources import Source, read_source_rows
from dagpack_cli.corpora.messages import messages_of, tools_of_row
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Pieces, Place, Record, read_label, read_weight, shown, shown_keys
from dagpack_cli.errors import DataError

__all__ = ["NAME", "read", "recognise"]

NAME = "rl-groups"

_GROUP_FIELDS = ("group", "group_id", "uid", "task_id")


@dataclass(frozen=True, slots=True)
class _Row:
    """The completions of a row with what is known of each; ``whole``: the row is a group."""

    place: Place
    group: str
    weight: float
    id: str
    whole: bool
    bodies: list[Chat | Pieces]
    rewards: list[Any]
    advantages: list[Any]


def recognise(record: dict[str, Any], options: ReadOptions) -> bool:
    """Return whether the record is a prompt with rewarded completions.

    Conversations with a reward are plain ones, unless the options weigh by rewards.
    """
    if verdict_of(record) or not reward_field(record):
        return False
    if isinstance(record.get("messages"), list):
        return options.group_weight != "none"
    if not isinstance(record.get("prompt"), str | list):
        return False
    return isinstance(record.get("completion"), str | list | dict) or isinstance(record.get("completions"), list)


def read(source: Source, options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a completion, equal ones too; what is wrong with a record goes to ``on_bad``.

    Advantages that the file does not state, of groups with a row a completion, take a second pass
    over the file, and memory O(groups).
    """
    groups: dict[str, GroupRewards] | None = None
    for place, row in read_source_rows(source, on_bad):
        try:
            found = _row_of(row, place)
            if groups is None and options.group_weight == "advantage" and not found.whole:
                groups = _groups_of(source) if None in found.advantages else None
            records = _records_of(found, options, groups)
        except DataError as error:
            on_bad(error)
        else:
            yield from records


def _groups_of(source: Source) -> dict[str, GroupRewards]:
    """Return the rewards of every group of a file; what cannot be read has no part in them."""
    return rewards_by_group(_rewards(source))


def _rewards(source: Source) -> Iterator[tuple[str, float]]:
    for place, row in read_source_rows(source, lambda error: None):
        try:
            found = _row_of(row, place)
            if not found.whole:
                yield found.group, read_reward(found.rewards[0], "reward", place)
        except DataError:
            continue  # Reported where the examples are made.


def _row_of(row: dict[str, Any], place: Place) -> _Row:
    where = str(place)
    refuse_verdict(row, where)
    refuse_media(row, where)
    tools = tools_of_row(row, where)
    prompt, completions = row.get("prompt"), row.get("completions")
    whole = isinstance(completions, list) and row.get("completion") is None and row.get("messages") is None
    bodies: list[Chat | Pieces]
    if row.get("messages") is not None:
        bodies = [Chat(messages_of(row["messages"], where), tools)]
    elif prompt is not None and row.get("completion") is not None:
        bodies = [completed(prompt, row["completion"], tools, where)]
    elif prompt is not None and isinstance(completions, list):
        bodies = [
            completed(prompt, completion, tools, f"{where}, completion {index}")
            for index, completion in enumerate(completions, 1)
        ]
    else:
        raise DataError(where, f"the record has {shown_keys(row)}", "a prompt with completions and their rewards")
    return _Row(
        place=place,
        group=_group_of(row, bodies, place),
        weight=read_weight(row.get("weight"), place),
        id=read_label(row, "id", place) or place.id,
        whole=whole,
        bodies=bodies,
        rewards=_aligned(row, "reward", len(bodies), whole, where),
        advantages=_aligned(row, "advantage", len(bodies), whole, where),
    )


def _aligned(row: dict[str, Any], name: str, num: int, whole: bool, where: str) -> list[Any]:
    """Return one value a completion, None where the row does not say."""
    if not whole:
        return [row.get(name)]
    values = row.get(f"{name}s")
    if values is None:
        return [None] * num
    if not isinstance(values, list):
        raise DataError(where, f'"{name}s" is {shown(values)}', "a list")
    if len(values) != num:
        raise DataError(where, f'"{name}s" has {len(values):,} entries', f'"completions" has {num:,}')
    return values


def _group_of(row: dict[str, Any], bodies: list[Chat | Pieces], place: Place) -> str:
    """Return the group that a row names, else the one of its prompt."""
    for name in _GROUP_FIELDS:
        label = read_label(row, name, place)
        if label is not None:
            return label
    body = bodies[0] if bodies else Pieces(())
    if isinstance(body, Pieces):
        return group_of_prompt("".join(str(part.value) for part in body.parts if not part.supervised))
    return group_of_prompt(body.messages[: body.supervise_from] or opening_of(body.messages))


def _records_of(row: _Row, options: ReadOptions, groups: dict[str, GroupRewards] | None) -> list[Record]:
    factors = _factors_of(row, options, groups)
    return [
        Record(
            place=row.place,
            body=body,
            id=f"{row.id}#{index}" if row.whole else row.id,
            weight=times(row.weight, factor, row.place) if options.group_weight != "none" else row.weight,
            group=row.group,
        )
        for index, (body, factor) in enumerate(zip(row.bodies, factors, strict=True))
    ]


def _factors_of(row: _Row, options: ReadOptions, groups: dict[str, GroupRewards] | None) -> list[float]:
    """Return what each completion's weight is multiplied with; rewards that nobody asks for are not read."""
    if options.group_weight == "none":
        return [1.0] * len(row.bodies)
    if options.group_weight == "advantage" and None not in row.advantages:
        return [read_reward(value, "advantage", row.place) for value in row.advantages]
    rewards = [read_reward(value, "reward", row.place) for value in row.rewards]
    if options.group_weight == "reward":
        return rewards
    if row.whole:
        group = rewards_by_group((row.group, reward) for reward in rewards).get(row.group, GroupRewards())
    else:
        assert groups is not None
        group = groups[row.group]
    return [group.advantage(reward) for reward in rewards]
