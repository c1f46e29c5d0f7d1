"""What a token looks like in a picture: its text, or the grid that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from dagpack_cli.corpora.files.json_rows import parse_json
from dagpack_cli.drawing.grids import Grid, grid_of
from dagpack_cli.drawing.recordings import action_label
from dagpack_cli.errors import DagpackError
from dagpack_cli.tokenizing import Tokenizer
from dagpack_cli.tokenizing.symbols import Symbols

__all__ = ["TokenLabels"]

_HEX = frozenset("0123456789abcdef")


class TokenLabels:
    """Labels of the tokens of a build.

    Args:
        tokenizer: of the build; symbols (states of games) are taken apart into action and state.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._node = lru_cache(1024)(self._parse)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of consecutive tokens, white space visible; ids where a token has no text."""
        if isinstance(self._tokenizer, Symbols):
            return " ".join(self._symbol(token) for token in tokens)
        text = self._decode(tokens) or " ".join(f"{token}" for token in tokens)
        return text.replace("\r", "").replace("\n", "⏎").replace("\t", "⇥")

    def one(self, token: int) -> str:
        """Return the text of a token alone; a space that would not be seen is shown."""
        text = self.text([token])
        return text if text.strip() else text.replace(" ", "␣") or f"{token}"

    def grid(self, token: int) -> Grid | None:
        """Return the grid that a token stands for, None for everything else."""
        return self._node(token)[0]

    def _symbol(self, token: int) -> str:
        """Return a state's own text; a grid is its number after the action that led to it."""
        grid, action, state = self._node(token)
        if grid is not None:
            return f"{action} {token}".strip()
        return state or action or self._decode([token]) or f"{token}"

    def _parse(self, token: int) -> tuple[Grid | None, str, str]:
        """Return the grid, the action and the text of a symbol, as far as it has them."""
        symbols = self._tokenizer.symbols if isinstance(self._tokenizer, Symbols) else ()
        if not 0 <= token < len(symbols):
            return None, "", ""
        try:
            value = parse_json(symbols[token], "a symbol")
        except DagpackError:
            return None, "", ""
        if not isinstance(value, dict) or not value.keys() & {"state", "action"}:
            return None, "", ""
        action = "" if value.get("action") is None else _action(value["action"])
        state = value.get("state")
        grid = _grid_of_state(state)
        return grid, action, state if isinstance(state, str) else str(state)[:200] if isinstance(state, int) else ""

    def _decode(self, tokens: Sequence[int]) -> str:
        try:
            return self._tokenizer.decode(list(tokens))
        except (IndexError, KeyError, ValueError, OverflowError):  # an id without text, as a virtual root
            return ""


def _action(value: Any) -> str:
    """Return a short text of an action: its name, or the one in it with a position."""
    if isinstance(value, dict) and isinstance(value.get("id"), str | int):
        return action_label(value["id"], value)
    return action_label(value, {} if isinstance(value, str) else None)


def _grid_of_state(state: Any) -> Grid | None:
    """Return the grid that a state is, or has as its ``frame``: rows of numbers, or of hexadecimal digits."""
    frame = state.get("frame") if isinstance(state, dict) else state
    if (
        isinstance(frame, list)
        and frame
        and all(isinstance(row, str) and row and _HEX.issuperset(row) for row in frame)
    ):
        frame = [[int(cell, 16) for cell in row] for row in frame]
    return grid_of(frame)
