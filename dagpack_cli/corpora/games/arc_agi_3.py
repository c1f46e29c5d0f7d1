"""ARC-AGI-3 recordings: one line a step, with the action that led to it and the frames seen after it.

**Episodes.** A play (``guid``) is cut into episodes where the game is reset in full; a reset of a
level is an action like any other. A record without a guid goes on with its game's last play. Of
several frames the last is the state the game settled in, the others are animation. A record without
a frame observed nothing: the episode is cut there, and the transitions into it and out of it are
counted as dropped.

**States.** A state is the settled frame (64 rows of hexadecimal digits, one a cell) with the game and
its version, the levels completed and the status (NOT_FINISHED, WIN ...). Two games, two versions of
one, two levels of one thus never share a state, even where their frames look alike: equal frames may go on
differently there. A node is a state with the action that produced it, as in `transitions`; an action is its name, for
ACTION6 ``{"id": "ACTION6", "x": ..., "y": ...}``.

**What is learned**, with the states s and the actions a of an episode, a(t) leading to s(t):

=============  ==================================  ==========================================
``--predict``  symbols (default)                   ``--grid-tokens``
=============  ==================================  ==========================================
next-state     a token a node: (a0, s0) (a1, s1)   BOS a0 s0 a1 s1 ... EOS; supervised are s1,
               ...; every node is a target         s2 ...: all cells, row ends and statuses
action         s0 a1 s1 a2 ...: a token a state    the same tokens; supervised are a1, a2 ...,
               (``{"state": ...}``) and an action  of ACTION6 with its x and y
               (``{"action": ...}``); supervised
               are the actions
=============  ==================================  ==========================================

The first frame is context: nothing before it says which game is played. So is EOS: where a
recording stops is not the game's doing. The tokens of `tokenizing.grid` name no game: prefixes are
shared as far as their tokens are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from dagpack_cli.corpora.files.json_rows import canonical_json
from dagpack_cli.corpora.files.sources import Source
from dagpack_cli.corpora.games import transitions
from dagpack_cli.corpora.games.arc_steps import Action, Step, is_step, step_of
from dagpack_cli.corpora.games.episodes import Episode, Part, node_of
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Ids, OnBad, Place, Record, Values
from dagpack_cli.corpora.sessions import read_growing
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.base import IdArray
from dagpack_cli.tokenizing.grid import BOS, EOS, action_ids, frame_ids

__all__ = ["NAME", "read", "recognise"]

NAME = "arc-agi-3"

_STATES_ALONE = "--format transitions --episode-field data.guid --state-field data.frame"


@dataclass(frozen=True, slots=True)
class _Node:
    """A state in canonical JSON, and the action that produced it."""

    state: bytes
    action: Action | None

    @property
    def action_json(self) -> bytes | None:
        """Return the action in canonical JSON."""
        return None if self.action is None else canonical_json(self.action.value, "action")


@dataclass(slots=True)
class _Play:
    """What is known of one play of a game.

    Attributes:
        place: of its first record.
        game: that it plays.
        guid: its id, None while no record has one.
        damage: records of the file that could not be read when it last went on.
        steps: records it has.
        blanks: those that look as if their action was lost.
        resets: full resets among them.
        ended: only a RESET can follow.
        episodes: one for every full reset.
    """

    place: Place
    game: str
    guid: str | None
    damage: int
    steps: int = 0
    blanks: int = 0
    resets: int = 0
    ended: bool = False
    episodes: list[Episode[_Node]] = field(default_factory=list)


def recognise(record: dict[str, Any], options: ReadOptions) -> bool:
    """Return whether the record's ``data`` is a step of a game, and no field of a state is named instead."""
    named = options.state_field != ReadOptions.state_field and transitions.recognise(record, options)
    return is_step(record.get("data")) and not named


def read(source: Source, options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield every episode of the file, play by play in order of first appearance.

    A play whose actions were lost when it was recorded, and an episode of which nothing was
    observed, go to ``on_bad``. Memory is O(distinct states of the file + its records).
    """
    plays = _Plays(options)
    damage = 0

    def reject(error: DataError) -> None:
        nonlocal damage
        damage += 1
        on_bad(error)

    for place, row in read_growing(source, reject):
        try:
            step = step_of(row, place)
            if step is not None:
                plays.add(step, place, damage)
        except DataError as error:
            reject(error)
    for play in plays.listed:
        if _lost_actions(play):
            on_bad(_lost(play))
            continue
        for episode in play.episodes:
            if episode.nodes:
                yield from _records_of(episode, play, options)
            else:
                on_bad(_unseen(episode))


class _Plays:
    """The plays of a file, in order of first appearance."""

    def __init__(self, options: ReadOptions) -> None:
        self.listed: list[_Play] = []
        self._rules = options.drop_rules
        self._by_guid: dict[tuple[str, str], _Play] = {}
        self._latest: dict[str, _Play] = {}
        self._states: dict[bytes, bytes] = {}

    def add(self, step: Step, place: Place, damage: int) -> None:
        """Append a step to its play.

        Raises:
            DataError: it cannot follow the step before it.
        """
        play = self._play_of(step, place, damage)
        stuck = play.ended and play.damage == damage and not step.ended and not step.full_reset
        play.ended, play.damage = step.ended, damage
        if stuck and step.action is not None and step.action.name != "RESET":
            raise DataError(str(place), f"{step.action.name} goes on after the game ended", "a RESET comes first")
        play.steps += 1
        play.blanks += step.blank
        play.resets += step.full_reset
        if step.full_reset or not play.episodes:
            play.episodes.append(Episode(place, _id_of(play, place), damage))
        episode = play.episodes[-1]
        if step.rows is None:
            episode.miss()
            return
        state = step.state(str(place))
        node = _Node(self._states.setdefault(state, state), step.action)
        episode.add(node, state, node.action_json, rules=self._rules, damage=damage)

    def _play_of(self, step: Step, place: Place, damage: int) -> _Play:
        """Return the play that a step belongs to; a guid that comes late names the play so far."""
        latest = self._latest.get(step.game)
        play = latest if step.guid is None else self._by_guid.get((step.game, step.guid))
        if play is None and latest is not None and latest.guid is None and not step.full_reset:
            play = latest
        if play is None:
            play = _Play(place, step.game, step.guid, damage)
            self.listed.append(play)
        if play.guid is None and step.guid is not None:
            play.guid = step.guid
        if play.guid is not None:
            self._by_guid[step.game, play.guid] = play
        self._latest[step.game] = play
        return play


def _id_of(play: _Play, place: Place) -> str:
    """Return the name of the play's next episode: file, play, and from the second one its number."""
    name = f"{place.name}#{play.guid or play.game}"
    return f"{name}#{len(play.episodes) + 1}" if play.episodes else name


def _lost_actions(play: _Play) -> bool:
    """Return whether the recorder wrote 0 for every action: then some RESET resets nothing in full."""
    return play.blanks == play.steps > max(play.resets, 1)


def _lost(play: _Play) -> DataError:
    return DataError(
        str(play.place),
        f"the {play.steps:,} steps of this play all say action 0: their actions were lost in recording",
        "action_input.id of every step",
        hint=f"record it with the arc-agi toolkit, or build such files apart as states alone: {_STATES_ALONE}",
    )


def _unseen(episode: Episode[_Node]) -> DataError:
    return DataError(
        str(episode.place),
        f"none of the {episode.unseen:,} steps of this episode has a frame",
        "frames are what is learned",
        hint="record with include_frame_data=True, or leave it out with --on-error skip",
    )


def _records_of(episode: Episode[_Node], play: _Play, options: ReadOptions) -> Iterator[Record]:
    """Yield the episode's parts between the cuts, with the range of steps in their ids."""
    for part in episode.parts():
        yield Record(
            place=episode.place,
            body=_body(episode, part, options),
            id=f"{episode.id}[{part.start}:{part.end}]" if episode.cuts else episode.id,
            group=play.guid,
            start=part.start,
            end=part.end,
            dropped=part.dropped,
        )


def _body(episode: Episode[_Node], part: Part, options: ReadOptions) -> Values | Ids:
    nodes = episode.nodes[part.start : part.end]
    if options.grid_tokens:
        return _grid(nodes, options.predict == "action")
    if options.predict == "next-state":
        return Values([node_of(node.action_json, node.state) for node in nodes])
    values: list[bytes] = []
    targets: list[int] = []
    for number, node in enumerate(nodes):
        action = node.action_json
        if number and action is not None:
            targets.append(len(values))
            values.append(b'{"action":' + action + b"}")
        values.append(node_of(None, node.state))
    starts = np.array(targets, dtype=np.int32)
    return Values(values, np.stack([starts, starts + 1], axis=1))


def _grid(nodes: Sequence[_Node], predict_action: bool) -> Ids:
    """Return actions and frames as ids of `tokenizing.grid`, the actions or the frames supervised."""
    parts: list[IdArray] = [np.array([BOS], dtype=np.int32)]
    runs: list[tuple[int, int]] = []
    length = 1
    for number, node in enumerate(nodes):
        action = np.empty(0, dtype=np.int32)
        if node.action is not None:
            action = action_ids(node.action.name, node.action.point)
        state = orjson.loads(node.state)
        frame = frame_ids(state["frame"], state["status"])
        parts += [action, frame]
        middle, end = length + len(action), length + len(action) + len(frame)
        if number and (not predict_action or len(action)):
            runs.append((length, middle) if predict_action else (middle, end))
        length = end
    parts.append(np.array([EOS], dtype=np.int32))
    return Ids(np.concatenate(parts), np.array(runs, dtype=np.int32).reshape(-1, 2))
