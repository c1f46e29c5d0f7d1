"""States that are grids of small numbers, painted as coloured cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dagpack_cli.drawing.svg import RULE, Canvas, number

__all__ = ["COLOURS", "Grid", "grid_of", "paint_grid"]

Grid = tuple[tuple[int, ...], ...]

# What ARC-AGI-3 paints the cells 0 to 15 with.
COLOURS = (
    "#ffffff",
    "#cccccc",
    "#999999",
    "#666666",
    "#333333",
    "#000000",
    "#e53aa3",
    "#ff7bcc",
    "#f93c31",
    "#1e93ff",
    "#88d8f1",
    "#ffdc00",
    "#ff851b",
    "#921231",
    "#4fcc30",
    "#a356d6",
)
_LARGEST = 256  # cells a side
_MOST_SHAPES = 700  # of one grid: a picture of sixty noisy ones stays below a megabyte


def grid_of(value: Any) -> Grid | None:
    """Return the grid that a JSON value is: rows of one length of whole numbers from 0 to 15; else None.

    >>> grid_of([[0, 1], [2, 3]]), grid_of([[0], [1, 2]]), grid_of("s1")
    (((0, 1), (2, 3)), None, None)
    """
    if not isinstance(value, list) or not 1 <= len(value) <= _LARGEST or not isinstance(value[0], list):
        return None
    width = len(value[0])
    if not 1 <= width <= _LARGEST:
        return None
    for row in value:
        if (
            not isinstance(row, list)
            or len(row) != width
            or not all(type(cell) is int and 0 <= cell < 16 for cell in row)
        ):
            return None
    return tuple(tuple(row) for row in value)


def paint_grid(canvas: Canvas, grid: Grid, x: float, y: float, width: float, height: float) -> None:
    """Paint a grid into a box, cells square, centred, one path a colour.

    A grid too fine for its box is thinned out: every second cell, or fourth.
    """
    shapes = _rectangles(grid)
    while sum(map(len, shapes.values())) > _MOST_SHAPES and len(grid) > 1:
        grid = tuple(row[::2] for row in grid[::2])
        shapes = _rectangles(grid)
    rows, columns = len(grid), len(grid[0])
    side = min(width / columns, height / rows)
    left, top = x + (width - side * columns) / 2, y + (height - side * rows) / 2
    common = max(shapes, key=lambda cell: (sum(w * h for _, _, w, h in shapes[cell]), -cell))
    canvas.rect(left, top, side * columns, side * rows, fill=COLOURS[common])
    for cell in sorted(shapes.keys() - {common}):
        data = "".join(
            f"M{number(left + side * column)} {number(top + side * row)}"
            f"h{number(side * w)}v{number(side * h)}h{number(-side * w)}z"
            for column, row, w, h in shapes[cell]
        )
        canvas.path(data, fill=COLOURS[cell], crisp=True)
    canvas.rect(left, top, side * columns, side * rows, fill="none", stroke=RULE)


def _rectangles(grid: Grid) -> dict[int, list[tuple[int, int, int, int]]]:
    """Return, by cell value, rectangles ``(column, row, width, height)`` that tile the grid."""
    found: dict[int, list[tuple[int, int, int, int]]] = {}
    open_runs: dict[tuple[int, int, int], int] = {}  # (column, width, cell) -> row where it began
    for row_number, row in enumerate([*grid, ()]):
        runs = set(_runs(row))
        for run in sorted(open_runs.keys() - runs):
            column, width, cell = run
            began = open_runs.pop(run)
            found.setdefault(cell, []).append((column, began, width, row_number - began))
        for run in runs:
            open_runs.setdefault(run, row_number)
    return found


def _runs(row: Sequence[int]) -> list[tuple[int, int, int]]:
    runs, start = [], 0
    for column in range(1, len(row) + 1):
        if column == len(row) or row[column] != row[start]:
            runs.append((start, column - start, row[start]))
            start = column
    return runs
