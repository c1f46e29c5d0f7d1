"""One packed window: its rows as aligned columns, and under them its mask, keys across and queries down.

A small window is drawn row by row. Of a large one the runs are drawn: stretches of rows that follow
one another, each a triangle of the mask with a rectangle below it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dagpack_cli.drawing.bands import paint_large
from dagpack_cli.drawing.grids import paint_grid
from dagpack_cli.drawing.labels import TokenLabels
from dagpack_cli.drawing.lettering import MONO, fit, plural
from dagpack_cli.drawing.mask import RowRun, runs_of_rows
from dagpack_cli.drawing.svg import FAINT, INK, MUTED, RULE, SERIES, TINTS, WHITE, Canvas, number
from dagpack_cli.errors import UsageError
from dagpack_cli.manifest import Manifest
from dagpack_cli.shards import WindowReader
from dagpack_cli.tokenizing import load_saved

__all__ = ["draw_window"]

_SMALL = 40  # rows that are drawn one by one
_MARGIN, _NAMES, _TOP, _ROW = 28.0, 74.0, 78.0, 24.0
_ROOM, _WIDEST, _NARROWEST = 1010.0, 60.0, 25.0


def draw_window(generation: Path, window: int = 0, partition: str = "train") -> str:
    """Return one window of a build as SVG.

    Args:
        generation: directory of a generation of a build.
        window: its number in the partition.
        partition: train or val.

    Raises:
        UsageError: there is no such partition or window.
        DamageError: its shard cannot be read.

    Time O(rows); the picture of a window of any size stays below about 1 MB.
    """
    manifest = Manifest.from_bytes((generation / "manifest.json").read_bytes(), generation / "manifest.json")
    if partition not in manifest.partitions:
        raise UsageError("--partition", partition, f"one of {', '.join(manifest.partitions)}")
    total = manifest.packing[partition]["windows"]
    if not 0 <= window < total:
        known = f"0 to {total - 1:,}, the windows of {partition}" if total else f"{partition} has no windows"
        raise UsageError("--window", str(window), known, hint="dagpack stats OUT says how many there are")
    shards = [generation / shard for shard in manifest.shards(partition)]
    columns = WindowReader(shards, manifest.pack.seq_len, total)[window]
    runs = runs_of_rows(columns["parents"])
    labels = TokenLabels(load_saved(generation / "tokenizer"))
    rows = len(columns["inputs"])
    title = f"{partition} window {window:,}"
    edges = int(columns["depths"].sum(dtype=np.int64)) + rows
    facts = [
        f"{rows:,} of {manifest.pack.seq_len:,} rows",
        plural(columns["num_supervised"], "supervised pair"),
        f"weight {columns['weight_sum']:g}",
        f"{edges:,} attention edges, {edges / max(rows * (rows + 1) // 2, 1):.0%} of a causal mask",
    ]
    headline = title, " · ".join(facts)
    if rows > _SMALL:
        return paint_large(columns, runs, labels, headline)
    return _paint_small(columns, runs, labels, headline)


def _paint_small(columns: dict[str, Any], runs: list[RowRun], labels: TokenLabels, headline: tuple[str, str]) -> str:
    rows = len(columns["inputs"])
    cell = max(_NARROWEST, min(_WIDEST, _ROOM / max(rows, 1)))
    side = min(cell, 34.0)  # of the mask, downwards
    tall = _grid_height(columns, labels, cell)
    table = 5 * _ROW + 2 * tall
    height = _TOP + table + 42 + rows * side + 26
    canvas = Canvas(max(2 * _MARGIN + _NAMES + rows * cell, 700.0), height, f"{headline[0]}: its rows and its mask")
    canvas.text(_MARGIN, 36, headline[0], size=16, bold=True)
    canvas.text(_MARGIN, 57, fit(headline[1], canvas.width - 2 * _MARGIN, 12), fill=MUTED)
    run_of = np.repeat(np.arange(len(runs)), [run.end - run.start for run in runs]).tolist()
    _paint_table(canvas, columns, run_of, labels, cell, tall)
    _paint_mask(canvas, columns, runs, run_of, labels, cell, side, _TOP + table + 42)
    return canvas.render()


def _grid_height(columns: dict[str, Any], labels: TokenLabels, cell: float) -> float:
    """Return the height of the rows of inputs and targets: of the cells where states are grids."""
    tokens = {*columns["inputs"].tolist(), *columns["targets"].tolist()}
    return cell + 16 if any(labels.grid(token) for token in tokens) else _ROW


def _paint_table(
    canvas: Canvas, columns: dict[str, Any], run_of: list[int], labels: TokenLabels, cell: float, tall: float
) -> None:
    left, y = _MARGIN + _NAMES, _TOP
    plain = {name: columns[name].tolist() for name in ("depths", "parents", "counts")}
    weights = [f"{weight:g}" for weight in columns["weights"].tolist()]
    lines: list[tuple[str, list[Any]]] = [
        ("row", list(range(len(run_of)))),
        ("input", columns["inputs"].tolist()),
        ("target", columns["targets"].tolist()),
        ("depth", plain["depths"]),
        ("parent", ["-" if parent < 0 else parent for parent in plain["parents"]]),
        ("count", plain["counts"]),
        ("weight", weights),
    ]
    for name, values in lines:
        is_token = name in ("input", "target")
        high = tall if is_token else _ROW
        canvas.text(left - 12, y + high / 2 + 4, name, fill=MUTED, anchor="end")
        canvas.open_group(name)
        for row, value in enumerate(values):
            x = left + row * cell
            if is_token:
                _paint_token(canvas, labels, value, TINTS[run_of[row] % len(TINTS)], x, y, cell, high)
            else:
                faint = name == "row" or (name == "weight" and columns["weights"][row] == 0)
                text = fit(str(value), cell - 2, 11.5)
                canvas.text(
                    x + cell / 2, y + high / 2 + 4, text, size=11.5, fill=FAINT if faint else INK, anchor="middle"
                )
        canvas.close_group()
        y += high


def _paint_token(
    canvas: Canvas, labels: TokenLabels, token: int, tint: str, x: float, y: float, cell: float, high: float
) -> None:
    label, grid = labels.one(token), labels.grid(token)
    canvas.rect(x + 1, y + 1, cell - 2, high - 2, fill=tint, radius=3, tip=f"token {token:,}: {label[:200]}")
    if grid is not None:
        paint_grid(canvas, grid, x + 5, y + 5, cell - 10, cell - 10)
        canvas.text(x + cell / 2, y + high - 6, fit(label, cell - 4, 10.5), size=10.5, anchor="middle")
        return
    canvas.text(x + cell / 2, y + high / 2 + 4, fit(label, cell - 4, 12, MONO), font=MONO, anchor="middle")


def _paint_mask(
    canvas: Canvas,
    columns: dict[str, Any],
    runs: list[RowRun],
    run_of: list[int],
    labels: TokenLabels,
    cell: float,
    side: float,
    top: float,
) -> None:
    left, rows = _MARGIN + _NAMES, len(run_of)
    canvas.text(
        left, top - 10, "mask: a row (down) sees the coloured rows (across), its own path", size=11.5, fill=MUTED
    )
    canvas.rect(left, top, rows * cell, rows * side, fill=WHITE)
    for index, run in enumerate(runs):
        steps = "".join(f"v{number(side)}h{number(cell)}" for _ in range(run.start, run.end - 1))
        wide, high = (run.end - run.start) * cell, (run.subtree_end - run.start) * side
        # down the stairs of the triangle, on to the end of the subtree, and back
        data = f"M{number(left + run.start * cell)} {number(top + run.start * side)}h{number(cell)}{steps}"
        data += f"V{number(top + run.start * side + high)}h{number(-wide)}z"
        canvas.path(data, fill=SERIES[index % len(SERIES)], opacity=0.42)
    lines = [f"M{number(left)} {number(top + at * side)}h{number(rows * cell)}" for at in range(rows + 1)]
    lines += [f"M{number(left + at * cell)} {number(top)}v{number(rows * side)}" for at in range(rows + 1)]
    canvas.path("".join(lines), stroke=RULE)
    inputs = columns["inputs"].tolist()
    canvas.open_group("queries")
    for row in range(rows):
        text = fit(f"{row} {labels.one(inputs[row])}", _NAMES - 14, 11, MONO)
        canvas.text(left - 10, top + row * side + side / 2 + 4, text, size=11, font=MONO, fill=MUTED, anchor="end")
    canvas.close_group()
