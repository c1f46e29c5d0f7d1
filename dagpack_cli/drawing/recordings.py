"""Recordings of games as runs through states: ARC-AGI-3 files, or records of state and action.

Equal states are one, in whatever run they occur. A state nobody observed stands for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagpack_cli.corpora.files.json_rows import canonical_json
from dagpack_cli.corpora.files.sources import read_source_rows, stat_source
from dagpack_cli.corpora.games.transitions import lookup, recognise
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import BadRecords, Place
from dagpack_cli.drawing.grids import Grid, grid_of
from dagpack_cli.errors import DataError

__all__ = ["Recordings", "Run", "State", "action_label", "is_recording", "read_recordings"]

_ARROWS = {1: "↑", 2: "↓", 3: "←", 4: "→"}
_ENDS = {"WIN": "win", "GAME_OVER": "game over"}
_MOST_RECORDS = 200_000


@dataclass(slots=True)
class State:
    """A state: a grid, or a text that stands for it, and what is special about it."""

    grid: Grid | None
    label: str
    mark: str = ""


@dataclass(slots=True)
class Run:
    """One episode: state numbers in order, each with the action that led to it (None: not recorded)."""

    name: str
    states: list[int] = field(default_factory=list)
    actions: list[str | None] = field(default_factory=list)


@dataclass(slots=True)
class Recordings:
    """All runs of some files.

    Attributes:
        states: the distinct states, in order of first appearance.
        runs: in the order of the files.
        games: the names of the games, as recordings give them.
        unreadable: records left out because they cannot be read.
        cut: whether the files hold more records than were read.
        arrows: whether actions are written as arrows.
    """

    states: list[State] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    games: dict[str, None] = field(default_factory=dict)
    unreadable: int = 0
    cut: bool = False
    arrows: bool = False
    _known: dict[bytes, int] = field(default_factory=dict)

    def add(self, run: Run, key: bytes, state: State, action: str | None) -> None:
        """Append a state to a run; one with the same key is the same state."""
        number = self._known.setdefault(key, len(self.states))
        if number == len(self.states):
            self.states.append(state)
        run.states.append(number)
        run.actions.append(action)


def is_recording(row: dict[str, Any]) -> bool:
    """Return whether a record is a line of an ARC-AGI-3 recording."""
    data = row.get("data")
    return (
        isinstance(data, dict) and isinstance(data.get("game_id"), str) and ("frame" in data or "action_input" in data)
    )


def read_recordings(paths: Sequence[Path], options: ReadOptions | None = None) -> Recordings:
    """Return the runs of files, in their order.

    Args:
        paths: recordings of ARC-AGI-3, or files of transitions.
        options: which fields hold a transition's episode, state and action.

    Raises:
        DataError: no record of a file is a state of a game.
        NoInputError, PermissionDeniedError, DiskError: a file cannot be read.

    Memory is O(distinct states + records); at most 200,000 records are read.
    """
    options = ReadOptions() if options is None else options
    found, bad = Recordings(), BadRecords()
    records = 0
    for path in paths:
        before = len(found.runs)
        reader = _FileReader(found, path, options)
        for place, row in read_source_rows(stat_source(path, path.name, ""), bad):
            if records == _MOST_RECORDS:
                found.cut = True
                break
            records += 1
            try:
                reader.read(place, row)
            except DataError as error:
                bad(error)
        reader.end()
        if len(found.runs) == before and not found.cut:
            hint = "record with include_frame_data, or build the file and draw the build" if records else ""
            raise DataError(path.name, "no record holds a state", '"data" with a "frame", or "state"', hint=hint)
    found.unreadable = bad.count
    return found


class _FileReader:
    """Turns the records of one file into runs."""

    def __init__(self, found: Recordings, path: Path, options: ReadOptions) -> None:
        self._found, self._path, self._options = found, path, options
        self._arc: Run | None = None
        self._arc_runs: list[Run] = []
        self._episodes: dict[bytes, Run] = {}
        self._pending: dict[int, str | None] = {}  # by run, the action taken in its last state
        self._known_actions = False
        self._level = 0

    def read(self, place: Place, row: dict[str, Any]) -> None:
        if is_recording(row):
            self._read_arc(place, row["data"])
        elif recognise(row, self._options):
            self._read_transition(place, row)

    def end(self) -> None:
        """Number the runs where there are several, and forget actions that are only placeholders."""
        several = len(self._arc_runs) > 1
        for number, run in enumerate(self._arc_runs, 1):
            run.name = f"{run.name}, run {number}" if several else run.name
            if not self._known_actions:
                run.actions = [None] * len(run.actions)
        self._found.runs += self._arc_runs + list(self._episodes.values())

    def _read_arc(self, place: Place, data: dict[str, Any]) -> None:
        frames = data.get("frame")
        grid = grid_of(frames[-1]) if isinstance(frames, list) and frames else None
        given = data.get("action_input")
        action = given if isinstance(given, dict) else {}
        status = data.get("state")
        mark = _ENDS.get(status, "") if isinstance(status, str) else ""
        if grid is None and "frame" not in data:
            raise DataError(str(place), "no frame was recorded", "include_frame_data")
        if self._arc is None or data.get("full_reset") is True:
            self._arc = Run(self._path.stem)
            self._arc_runs.append(self._arc)
            self._found.games[data["game_id"]] = None
            self._level = 0
        level = data.get("levels_completed", data.get("score"))
        if isinstance(level, int) and level > self._level:
            mark = mark or f"level {level + 1}"
            self._level = level
        label = action_label(action.get("id"), action.get("data"))
        self._known_actions |= bool(self._arc.states) and label != "reset"
        self._found.arrows |= label in _ARROWS.values()
        # The same grid means another state where the game is over; without a grid it means nothing.
        key = (
            canonical_json([frames[-1], mark], str(place)) if grid and isinstance(frames, list) else str(place).encode()
        )
        text = "" if grid else _ENDS.get(str(status), "no frame")
        self._found.add(self._arc, key, State(grid, text, mark if grid else ""), label if self._arc.states else None)

    def _read_transition(self, place: Place, row: dict[str, Any]) -> None:
        options = self._options
        value, taken = lookup(row, options.state_field), lookup(row, options.action_field)
        key = canonical_json(value, str(place))
        episode = None if options.episode_field is None else lookup(row, options.episode_field)
        run = self._episodes.setdefault(
            canonical_json(episode, str(place)), Run(self._path.stem if episode is None else _short(episode))
        )
        action = None if taken is None else action_label(taken, None)
        if options.action_taken:  # it leads to the state of the next record
            produced, self._pending[id(run)] = self._pending.get(id(run)), action
            action = produced
        self._found.add(run, key, State(grid_of(value), _short(value)), action if run.states else None)


def action_label(action: Any, data: Any) -> str:
    """Return a few characters for an action: an arrow for those of ARC-AGI-3 that are moves.

    >>> action_label("ACTION1", {}), action_label(6, {"x": 3, "y": 5}), action_label("jump", None)
    ('↑', '6 (3,5)', 'jump')
    """
    number: Any = action
    if isinstance(action, str) and action.startswith("ACTION") and action[6:].isdigit() and len(action) < 9:
        number = int(action[6:])
    if action == "RESET" or (data is not None and number == 0):
        return "reset"
    if (data is not None or number is not action) and isinstance(number, int):
        if number in _ARROWS:
            return _ARROWS[number]
        if isinstance(data, dict) and isinstance(data.get("x"), int) and isinstance(data.get("y"), int):
            return f"{number} ({data['x']},{data['y']})"
        return str(number)
    return _short(action)


def _short(value: Any) -> str:
    return value[:200] if isinstance(value, str) else canonical_json(value, "a value")[:200].decode("utf-8", "replace")
