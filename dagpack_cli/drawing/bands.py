"""A large window: bands of its columns over a mask of triangles and rectangles, sized to the page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.drawing.labels import TokenLabels
from dagpack_cli.drawing.lettering import MONO, fit
from dagpack_cli.drawing.mask import RowRun, coverage, runs_of_rows
from dagpack_cli.drawing.svg import FAINT, INK, MUTED, RULE, SERIES, TINTS, WHITE, Canvas, number

__all__ = ["paint_large"]

_MARGIN, _NAMES, _TOP, _SIDE = 28.0, 74.0, 78.0, 880.0
_WIDTH = 2 * _MARGIN + _NAMES + _SIDE
_LEFT = _MARGIN + _NAMES
_RUNS_BAND, _DEPTH_BAND, _BAR_BAND, _GAP = 24.0, 64.0, 30.0, 14.0
_MOST_RUNS = 1500  # with a shape of their own; more become squares of a raster
_ARCS = 200
_CELLS = 160
_LEVELS = 5
_LABEL_TOKENS = 160


def paint_large(columns: dict[str, Any], runs: Sequence[RowRun], labels: TokenLabels, headline: tuple[str, str]) -> str:
    """Return a window as SVG whose size does not grow with it.

    Args:
        columns: of the window, one array a name, as `WindowReader` gives them.
        runs: of its rows.
        labels: of its tokens.
        headline: a title, and a line of facts.
    """
    rows = len(columns["inputs"])
    scale = _SIDE / rows
    arcs = 46.0 if 1 < len(runs) <= _ARCS else 0.0
    top = _TOP + arcs
    depth_top = top + 2 * _RUNS_BAND + _GAP
    count_top = depth_top + _DEPTH_BAND + _GAP
    weight_top = count_top + _BAR_BAND + _GAP
    mask_top = weight_top + 12 + 44
    canvas = Canvas(_WIDTH, mask_top + _SIDE + 26, f"{headline[0]}: its rows and its mask")
    canvas.text(_MARGIN, 36, headline[0], size=16, bold=True)
    canvas.text(_MARGIN, 57, fit(headline[1], _WIDTH - 2 * _MARGIN, 12), fill=MUTED)
    if arcs:
        _paint_arcs(canvas, runs, scale, top)
    for at, name in enumerate(("input", "target")):
        _paint_runs(canvas, columns, name, runs, labels, scale, top + at * _RUNS_BAND)
    _paint_depths(canvas, columns["depths"], depth_top)
    _paint_counts(canvas, columns["counts"], count_top)
    _paint_weights(canvas, columns["weights"], weight_top)
    _name(canvas, "mask", mask_top + 12)
    canvas.text(_LEFT, mask_top - 10, _CAPTION, size=11.5, fill=MUTED)
    canvas.rect(_LEFT, mask_top, _SIDE, _SIDE, fill=WHITE, stroke=RULE)
    if len(runs) <= _MOST_RUNS:
        _paint_shapes(canvas, columns, runs, labels, scale, mask_top)
    else:
        _paint_raster(canvas, columns["parents"], mask_top)
    return canvas.render()


_CAPTION = (
    "a row (down) sees the coloured rows (across): its own path; a run of rows is a triangle, what follows it a block"
)


def _name(canvas: Canvas, text: str, y: float) -> None:
    canvas.text(_LEFT - 12, y, text, fill=MUTED, anchor="end")


def _paint_arcs(canvas: Canvas, runs: Sequence[RowRun], scale: float, base: float) -> None:
    """Join the first row of every run that begins elsewhere to its parent row."""
    _name(canvas, "parent", base - 14)
    for index, run in enumerate(runs):
        if 0 <= run.parent < run.start - 1:
            a, b = _LEFT + (run.parent + 0.5) * scale, _LEFT + (run.start + 0.5) * scale
            rise = min(52.0, 12.0 + (b - a) * 0.09)
            data = f"M{number(a)} {number(base)}C{number(a)} {number(base - rise)} {number(b)} {number(base - rise)} "
            canvas.path(f"{data}{number(b)} {number(base)}", stroke=SERIES[index % len(SERIES)], stroke_width=1.25)


def _paint_runs(
    canvas: Canvas,
    columns: dict[str, Any],
    name: str,
    runs: Sequence[RowRun],
    labels: TokenLabels,
    scale: float,
    y: float,
) -> None:
    _name(canvas, name, y + 16)
    canvas.rect(_LEFT, y + 1, _SIDE, _RUNS_BAND - 2, fill=TINTS[-1])
    tokens = columns[f"{name}s"]
    canvas.open_group(name)
    for index, run in enumerate(runs):
        width = (run.end - run.start) * scale
        if width < 0.5:
            continue
        x = _LEFT + run.start * scale
        text = labels.text(tokens[run.start : min(run.end, run.start + _LABEL_TOKENS)].tolist())
        tip = f"rows {run.start:,} to {run.end - 1:,}: {text[:200]}"
        gap = 1.0 if width > 4 else 0.0
        canvas.rect(x, y + 1, width - gap, _RUNS_BAND - 2, fill=TINTS[index % len(TINTS)], tip=tip)
        if width > 30:
            canvas.text(x + 5, y + 16, fit(text, width - 9, 11, MONO), size=11, font=MONO)
    canvas.close_group()


def _binned(values: npt.NDArray[Any]) -> list[float]:
    """Return the largest value under every pixel across."""
    bins = min(len(values), int(_SIDE))
    starts = np.arange(bins) * len(values) // bins
    return [float(value) for value in np.maximum.reduceat(values, starts)]


def _paint_depths(canvas: Canvas, depths: npt.NDArray[np.int32], y: float) -> None:
    """Paint depth as a line: it falls back where a branch begins."""
    most = max(int(depths.max()), 1)
    _name(canvas, "depth", y + _DEPTH_BAND / 2 + 4)
    canvas.line([(_LEFT, y + _DEPTH_BAND), (_LEFT + _SIDE, y + _DEPTH_BAND)])
    values = _binned(depths)
    step = _SIDE / len(values)
    points = [
        f"{_LEFT + (at + 0.5) * step:.1f} {y + _DEPTH_BAND * (1 - value / most):.1f}" for at, value in enumerate(values)
    ]
    canvas.path("M" + "L".join(points), stroke=SERIES[0], stroke_width=1.5)
    canvas.text(_LEFT + 4, y + 8, f"{most:,}", size=10.5, fill=FAINT)


def _paint_counts(canvas: Canvas, counts: npt.NDArray[np.int32], y: float) -> None:
    """Paint how many pairs each row stands for, in a logarithmic scale."""
    most = max(int(counts.max()), 1)
    _name(canvas, "count", y + _BAR_BAND / 2 + 4)
    values = _binned(counts)
    step = _SIDE / len(values)
    steps, x = "", _LEFT
    for value, group in itertools.groupby(values):
        width = sum(1 for _ in group) * step
        height = _BAR_BAND * math.log1p(value) / math.log1p(most)
        if value > 0:
            steps += f"M{x:.1f} {y + _BAR_BAND:.1f}v{-height:.1f}h{width:.1f}v{height:.1f}z"
        x += width
    canvas.path(steps, fill="#aebccb")
    canvas.line([(_LEFT, y + _BAR_BAND), (_LEFT + _SIDE, y + _BAR_BAND)])
    canvas.text(_LEFT + 4, y + 8, f"{most:,}", size=10.5, fill=MUTED)


def _paint_weights(canvas: Canvas, weights: npt.NDArray[np.float32], y: float) -> None:
    """Paint where rows are trained: their weight is not 0."""
    _name(canvas, "trained", y + 9)
    canvas.rect(_LEFT, y, _SIDE, 12, fill=TINTS[-1])
    values = _binned((weights != 0).astype(np.int8))
    step = _SIDE / len(values)
    x, data = _LEFT, ""
    for value, group in itertools.groupby(values):
        width = sum(1 for _ in group) * step
        if value:
            data += f"M{x:.1f} {y:.1f}h{width:.1f}v12h{-width:.1f}z"
        x += width
    if data:
        canvas.path(data, fill=SERIES[3])


def _paint_shapes(
    canvas: Canvas, columns: dict[str, Any], runs: Sequence[RowRun], labels: TokenLabels, scale: float, top: float
) -> None:
    canvas.open_group("mask")
    for index, run in enumerate(runs):
        x0, x1 = _LEFT + run.start * scale, _LEFT + run.end * scale
        y0, y1 = top + run.start * scale, top + run.subtree_end * scale
        # along the diagonal, down to the end of the subtree, and back
        data = f"M{number(x0)} {number(y0)}L{number(x1)} {number(top + run.end * scale)}V{number(y1)}H{number(x0)}z"
        canvas.path(data, fill=SERIES[index % len(SERIES)], opacity=0.42)
    canvas.close_group()
    canvas.line([(_LEFT, top), (_LEFT + _SIDE, top + _SIDE)], stroke=MUTED, stroke_width=0.75)
    _label_runs(canvas, columns, runs, labels, scale, top)


def _label_runs(
    canvas: Canvas, columns: dict[str, Any], runs: Sequence[RowRun], labels: TokenLabels, scale: float, top: float
) -> None:
    """Write what a run says right of its triangle, where the mask is empty."""
    free = top
    for run in runs:
        middle = (run.start + run.end) / 2 * scale
        x, y = _LEFT + middle + 14, top + middle
        room = _LEFT + _SIDE - x - 6
        if (run.end - run.start) * scale < 12 or y - 12 < free or room < 60:
            continue
        tokens = columns["inputs"][run.start : min(run.end, run.start + _LABEL_TOKENS)].tolist()
        canvas.text(x, y + 2, fit(labels.text(tokens), min(room, 360.0), 11, MONO), size=11, font=MONO, fill=INK)
        free = y + 4


def _paint_raster(canvas: Canvas, parents: npt.NDArray[np.int32], top: float) -> None:
    """Paint the mask as squares, darker where more of the square is allowed."""
    cells = min(_CELLS, len(parents))
    levels = np.ceil(coverage(parents, cells) * _LEVELS - 1e-9).astype(np.int64)
    side = _SIDE / cells
    data: dict[int, list[str]] = {}
    for row, values in enumerate(levels.tolist()):
        column = 0
        for level, group in itertools.groupby(values):
            width = sum(1 for _ in group)
            if level:
                corner = f"M{_LEFT + column * side:.1f} {top + row * side:.1f}"
                shape = f"{corner}h{width * side:.1f}v{side:.1f}h{-width * side:.1f}z"
                data.setdefault(level, []).append(shape)
            column += width
    canvas.open_group("mask")
    for level in sorted(data):
        canvas.path("".join(data[level]), fill=SERIES[0], opacity=level / _LEVELS * 0.85, crisp=True)
    canvas.close_group()
    runs = len(runs_of_rows(parents))
    text = f"{runs:,} runs: each square stands for {len(parents) / cells:.0f} x {len(parents) / cells:.0f} pairs"
    canvas.text(_LEFT + _SIDE - 10, top + 20, text, size=11.5, fill=MUTED, anchor="end")
