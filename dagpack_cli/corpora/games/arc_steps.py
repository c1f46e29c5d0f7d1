"""One record of an ARC-AGI-3 recording: the action that was taken, and what was then seen.

A record is ``{"timestamp": ..., "data": {...}}``. Three writers differ in details:

* agents, 2025: ``score``, and ``action_input.id`` an int from 0 (RESET) to 7;
* agents, 2026: ``levels_completed``, and an id that is always 0 (see `arc_agi_3`);
* toolkit 0.9: ``levels_completed``, the id a name, and no ``frame`` where it was told to keep none.

Ids of both types stand in one file of the public recordings of people.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from dagpack_cli.corpora.files.json_rows import canonical_json
from dagpack_cli.corpora.records import Place, shown
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.base import check_text
from dagpack_cli.tokenizing.grid import ACTIONS, MAX_SIDE, NUM_COLOURS, STATUSES

__all__ = ["Action", "Step", "is_step", "step_of"]

_NO_COLOUR = b"?"
_HEX = b"0123456789abcdef" + _NO_COLOUR * 240
_SCORECARD = {"card_id", "cards", "environments", "total_plays"}
_ENDED = ("WIN", "GAME_OVER")


@dataclass(frozen=True, slots=True)
class Action:
    """What the player did: one of `ACTIONS`, with the cell (x, y) for ACTION6."""

    name: str
    point: tuple[int, int] | None = None

    @property
    def value(self) -> str | dict[str, Any]:
        """Return the JSON value: the name, or for ACTION6 an object of id, x and y.

        >>> Action("ACTION1").value, Action("ACTION6", (3, 1)).value
        ('ACTION1', {'id': 'ACTION6', 'x': 3, 'y': 1})
        """
        return self.name if self.point is None else {"id": self.name, "x": self.point[0], "y": self.point[1]}


@dataclass(frozen=True, slots=True)
class Step:
    """One record.

    Attributes:
        game: the game and its version.
        guid: of the play, None where the record has none.
        action: what led here, None where the record has none.
        rows: the settled frame, one hexadecimal digit a cell; None where nothing was observed.
        status: one of `STATUSES`.
        level: levels completed, None where the record does not say.
        full_reset: the game starts anew.
        blank: the record looks as all those do whose action was lost: int 0, and levels counted.
    """

    game: str
    guid: str | None
    action: Action | None
    rows: tuple[str, ...] | None
    status: str
    level: int | None
    full_reset: bool
    blank: bool

    @property
    def ended(self) -> bool:
        """Return whether only a RESET can follow."""
        return self.status in _ENDED

    def state(self, where: str) -> bytes:
        """Return the canonical JSON of the state: frame, game, level and status."""
        level = {} if self.level is None else {"level": self.level}
        return canonical_json({"frame": self.rows, "game_id": self.game, "status": self.status} | level, where)


def is_step(data: object) -> bool:
    """Return whether a record's ``data`` names a game, and has a frame, or a state and an action."""
    if not isinstance(data, dict) or not isinstance(data.get("game_id"), str):
        return False
    return isinstance(data.get("frame"), list) or (
        isinstance(data.get("state"), str) and isinstance(data.get("action_input"), dict)
    )


def step_of(row: dict[str, Any], place: Place) -> Step | None:
    """Return the step that a record holds, None for the scorecard that may end a recording.

    Raises:
        DataError: it is neither, or something in it is not what it should be.
    """
    where = str(place)
    data = row.get("data")
    if not isinstance(data, dict):
        raise DataError(where, f'"data" is {shown(data)}', "an object with game_id, state, frame and action_input")
    if "game_id" not in data and _is_scorecard(data):
        return None
    game = _text(data.get("game_id"), "game_id", where)
    status = data.get("state")
    if status not in STATUSES:
        raise DataError(where, f'"state" is {shown(status)}', f"one of {', '.join(STATUSES)}")
    given = data.get("action_input")
    if given is not None and not isinstance(given, dict):
        raise DataError(where, f'"action_input" is {shown(given)}', "an object with id and data")
    number = None if given is None else given.get("id")
    return Step(
        game=game,
        guid=None if data.get("guid") is None else _text(data["guid"], "guid", where),
        action=None if given is None else _action(given, where),
        rows=_settled(data.get("frame"), where),
        status=status,
        level=_level(data, where),
        full_reset=_flag(data.get("full_reset"), where),
        blank=type(number) is int and number == 0 and "levels_completed" in data,
    )


def _is_scorecard(data: dict[str, Any]) -> bool:
    if not _SCORECARD.isdisjoint(data):
        return True
    return bool(data) and all(isinstance(card, dict) and "total_plays" in card for card in data.values())


def _text(value: object, name: str, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise DataError(where, f'"{name}" is {shown(value)}', "a string")
    check_text(value, where)
    return value


def _flag(value: object, where: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise DataError(where, f'"full_reset" is {shown(value)}', "true or false")
    return value is True


def _level(data: dict[str, Any], where: str) -> int | None:
    """Return the levels completed, which the first recordings call the score."""
    name = "levels_completed" if data.get("levels_completed") is not None else "score"
    value = data.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise DataError(where, f'"{name}" is {shown(value)}', "a whole number from 0")
    return value


def _action(given: dict[str, Any], where: str) -> Action:
    found = given.get("id")
    name = found
    if type(found) is int:
        name = ACTIONS[found] if 0 <= found < len(ACTIONS) else None
    if not isinstance(name, str) or name not in ACTIONS:
        expected = f"{ACTIONS[0]} or {ACTIONS[1]} to {ACTIONS[-1]}, or 0 to {len(ACTIONS) - 1}"
        raise DataError(where, f'"action_input.id" is {shown(found)}', expected)
    if name != "ACTION6":
        return Action(name)
    data = given.get("data")
    return Action(name, (_coordinate(data, "x", where), _coordinate(data, "y", where)))


def _coordinate(data: object, axis: str, where: str) -> int:
    value = data.get(axis) if isinstance(data, dict) else None
    if type(value) is not int or not 0 <= value < MAX_SIDE:
        expected = f"0 to {MAX_SIDE - 1}: ACTION6 points at a cell"
        raise DataError(where, f'"action_input.data.{axis}" is {shown(value)}', expected)
    return value


def _settled(frames: object, where: str) -> tuple[str, ...] | None:
    """Return the last grid, the one the animation before it settles in; None where there is none."""
    if frames is None or frames == []:
        return None
    if not isinstance(frames, list):
        raise DataError(where, f'"frame" is {shown(frames)}', "a list of grids")
    grid = frames[-1]
    if not isinstance(grid, list) or not 0 < len(grid) <= MAX_SIDE:
        raise DataError(where, f"the last grid of the frame is {shown(grid)}", f"1 to {MAX_SIDE} rows")
    width = len(grid[0]) if isinstance(grid[0], list) else 0
    for number, row in enumerate(grid):
        if not isinstance(row, list) or len(row) != width or not 0 < width <= MAX_SIDE:
            expected = f"1 to {MAX_SIDE} cells, as many as in the other rows"
            raise DataError(where, f"row {number} of the last grid is {shown(row)}", expected)
    digits = _digits(list(itertools.chain.from_iterable(grid)), width, where)
    return tuple(digits[start : start + width] for start in range(0, len(digits), width))


def _digits(cells: list[object], width: int, where: str) -> str:
    """Return one hexadecimal digit a cell."""
    try:
        if set(map(type, cells)) == {int}:  # a truth value is no colour, though it counts as a number
            digits = bytes(cells).translate(_HEX)  # type: ignore[arg-type]
            if _NO_COLOUR not in digits:
                return digits.decode()
    except ValueError:
        pass  # Negative, or over 255: named below like the others.
    number = next(at for at, cell in enumerate(cells) if type(cell) is not int or not 0 <= cell < NUM_COLOURS)
    found = f"row {number // width} of the last grid holds {shown(cells[number])}"
    raise DataError(where, found, f"colours 0 to {NUM_COLOURS - 1}")
