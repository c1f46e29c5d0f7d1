"""The graph of a game: states are nodes, actions edges, equal states one node; runs by colour and dash."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.drawing.curves import (
    MARGIN,
    MOST_LAYERS,
    Curve,
    Plan,
    Point,
    curve_of,
    fits,
    plan_of,
    point_at,
    size_of,
)
from dagpack_cli.drawing.grids import paint_grid
from dagpack_cli.drawing.layers import Edge, Graph, Unit, graph_of
from dagpack_cli.drawing.lettering import clean, fit, plural, width_of
from dagpack_cli.drawing.recordings import Recordings, read_recordings
from dagpack_cli.drawing.svg import FAINT, INK, MUTED, PAPER, RULE, SERIES, WHITE, Canvas, number
from dagpack_cli.errors import UsageError

__all__ = ["draw_game", "draw_recordings"]

_DASHES = (None, "7 3", "2.5 3", "9 3 2.5 3")
_COLOURED = 7  # runs with a colour of their own
_BELOW_LEGEND, _LEGEND_ROW = 112.0, 19.0
_SIDE_BY_SIDE = 4  # runs that are told apart on one edge


_Placed = tuple[Point, float, str]  # the middle of a text, half its width, the text


def draw_game(paths: Sequence[Path], *, max_nodes: int = 60, options: ReadOptions | None = None) -> str:
    """Return the graph of recorded runs as SVG.

    Args:
        paths: recordings of ARC-AGI-3, or files of transitions.
        max_nodes: most nodes; the states farthest from the start are left out and counted.
        options: which fields hold a transition's episode, state and action.

    Raises:
        UsageError: no path is given.
        DataError: a file holds no state of a game.
        NoInputError, PermissionDeniedError, DiskError: a file cannot be read.

    Time and memory O(records and distinct states); the picture's size is O(max_nodes).
    """
    if not paths:
        raise UsageError("dagpack draw", "no recording is given", "at least one file")
    return draw_recordings(read_recordings(paths, options), max_nodes=max_nodes)


def draw_recordings(found: Recordings, *, max_nodes: int = 60) -> str:
    """Return the graph of recordings that were read; they have at least one state."""
    keep = {index for index, state in enumerate(found.states) if state.mark}
    graph = graph_of(found.runs, len(found.states), keep=keep, max_layers=MOST_LAYERS, limit=max_nodes)
    while not fits(graph):
        max_nodes = max_nodes * 3 // 4
        graph = graph_of(found.runs, len(found.states), keep=keep, max_layers=MOST_LAYERS, limit=max_nodes)
    legend = _legend(found)
    squares = any(len(unit.states) > 1 or found.states[unit.states[0]].grid for unit in graph.units)
    plan = plan_of(graph, 0.0, squares=squares)
    width = size_of(graph, plan)[0]
    plan.top = _BELOW_LEGEND + _LEGEND_ROW * _spots(legend, width)[-1][1]
    height = size_of(graph, plan)[1]
    title = f"{plural(len(found.runs), 'run')} through {plural(len(found.states), 'state')}"
    title = f"{next(iter(found.games))}: {title}" if len(found.games) == 1 else title
    canvas = Canvas(width, height, title)
    actions, lost = _place_actions(found, plan, graph, width)
    _headline(canvas, found, graph, title, lost)
    for edge in sorted(graph.edges, key=lambda edge: edge.first):  # the first ones lie on top
        _paint_edge(canvas, plan, graph, edge)
    for unit in graph.units:
        canvas.open_group(f"{unit.states[0]}-{unit.states[-1]}")
        _paint_unit(canvas, found, plan, unit)
        canvas.close_group()
    for (x, y), half_width, text in actions:
        canvas.rect(x - half_width, y - 8, 2 * half_width, 16, fill=PAPER, radius=3, opacity=0.92)
        canvas.text(x, y + 4, text, anchor="middle")
    return canvas.render()


def _legend(found: Recordings) -> list[tuple[int, str]]:
    """Return ``(run, text)`` of the runs named in the legend; run -1 stands for the rest."""
    named = [(index, run.name) for index, run in enumerate(found.runs[:_COLOURED])]
    rest = len(found.runs) - len(named)
    return [*named, (-1, plural(rest, "more run"))] if rest else named


def _spots(legend: list[tuple[int, str]], width: float) -> list[tuple[float, int]]:
    """Return where each entry stands: its x and its row, as words flow."""
    spots: list[tuple[float, int]] = []
    x, row = MARGIN, 0
    for _, text in legend:
        size = 34 + width_of(_named(text), 11.5) + 22
        if x > MARGIN and x + size - 22 > width - MARGIN:
            x, row = MARGIN, row + 1
        spots.append((x, row))
        x += size
    return spots


def _named(text: str) -> str:
    return fit(text, 380, 11.5)


def _headline(canvas: Canvas, found: Recordings, graph: Graph, title: str, lost: int) -> None:
    steps = sum(max(len(run.states) - 1, 0) for run in found.runs)
    facts = [plural(steps, "step")]
    facts += [f"{graph.hidden_states:,} states farther on are not drawn"] if graph.hidden_states else []
    facts += ["actions were not recorded"] if steps and not any(any(run.actions) for run in found.runs) else []
    thin = sum(not edge.first for edge in graph.edges) if graph.is_dense else 0
    facts += [f"thin lines: {thin:,} further ways"] if thin else []
    facts += ["↑ ↓ ← → are ACTION1 to ACTION4"] if found.arrows else []
    facts += [f"no room for {plural(lost, 'action')}"] if lost else []
    facts += [plural(found.unreadable, "unreadable record")] if found.unreadable else []
    facts += ["cut: the files hold more"] if found.cut else []
    canvas.text(MARGIN, 36, fit(title, canvas.width - 2 * MARGIN, 19), size=16, bold=True)  # bold is wider
    canvas.text(MARGIN, 57, fit(" · ".join(facts), canvas.width - 2 * MARGIN, 12), fill=MUTED)
    legend = _legend(found)
    for (run, text), (x, row) in zip(legend, _spots(legend, canvas.width), strict=True):
        y = 82.0 + _LEGEND_ROW * row
        colour, dashes = _style(run)
        canvas.path(f"M{number(x)} {number(y - 4)}h26", stroke=colour, stroke_width=2.25, dashes=dashes)
        canvas.text(x + 34, y, _named(text), size=11.5, fill=MUTED, tip=text)


def _style(run: int) -> tuple[str, str | None]:
    if not 0 <= run < _COLOURED:
        return FAINT, None
    return SERIES[run], _DASHES[run % len(_DASHES)]


def _paint_edge(canvas: Canvas, plan: Plan, graph: Graph, edge: Edge) -> None:
    if graph.is_dense and not edge.first:
        a, b, c, d = curve_of(plan, graph, edge)
        points = " ".join(f"{number(x)} {number(y)}" for x, y in (b, c, d))
        canvas.path(f"M{number(a[0])} {number(a[1])}C{points}", stroke=RULE, stroke_width=0.75)
        return
    runs = list(edge.runs)
    plain = len(runs) > _SIDE_BY_SIDE
    lines = [(MUTED, None)] if plain else [_style(run) for run in runs]
    for index, (colour, dashes) in enumerate(lines):
        a, b, c, d = curve_of(plan, graph, edge, (index - (len(lines) - 1) / 2) * 3.5)
        points = " ".join(f"{number(x)} {number(y)}" for x, y in (b, c, d))
        data = f"M{number(a[0])} {number(a[1])}C{points}"
        canvas.path(data, stroke=colour, stroke_width=3 if plain else 2, dashes=dashes)
    _paint_head(canvas, curve_of(plan, graph, edge), lines[0][0] if len(lines) == 1 else INK)


def _paint_head(canvas: Canvas, curve: Curve, colour: str) -> None:
    (bx, by), (x, y) = curve[2], curve[3]
    length = max(((x - bx) ** 2 + (y - by) ** 2) ** 0.5, 1e-9)
    dx, dy = (x - bx) / length, (y - by) / length
    tip, wing = (x + 5 * dx, y + 5 * dy), 4.0
    corners = [(x - 3 * dx - wing * dy, y - 3 * dy + wing * dx), tip, (x - 3 * dx + wing * dy, y - 3 * dy - wing * dx)]
    canvas.path("M" + "L".join(f"{number(px)} {number(py)}" for px, py in corners) + "z", fill=colour)


def _paint_unit(canvas: Canvas, found: Recordings, plan: Plan, unit: Unit) -> None:
    x, y = plan.centre(unit)
    half = plan.node / 2
    state = found.states[unit.states[0]]
    if len(unit.states) > 1:
        _paint_folded(canvas, plan, unit, x, y)
    elif state.grid is not None:
        paint_grid(canvas, state.grid, x - half, y - half, plan.node, plan.node)
    else:
        canvas.rect(x - half, y - 17, plan.node, 34, fill=WHITE, stroke=MUTED, radius=17, tip=state.label[:300])
        canvas.text(x, y + 4, fit(state.label, plan.node - 12, 12), anchor="middle")
    text, middle, low = _name_of(found, plan, unit, canvas.width)
    canvas.text(middle, low, text, size=11, fill=MUTED, anchor="middle", bold=bool(state.mark))


def _name_of(found: Recordings, plan: Plan, unit: Unit, width: float) -> tuple[str, float, float]:
    """Return what stands below a unit, with the middle of its baseline."""
    x, y = plan.centre(unit)
    state, is_single = found.states[unit.states[0]], len(unit.states) == 1
    room = (plan.cross if plan.down else plan.step) - 6
    below = [f"s{unit.states[0] + 1}"] if is_single and state.grid is not None else []
    below += [state.mark] if state.mark and is_single else []
    below += [f"↻ {' '.join(action for action in unit.loops if action)}".strip()] if unit.loops else []
    below += [f"… {unit.hidden:,} more" if room > 80 else f"…{unit.hidden:,}"] if unit.hidden else []
    text = fit(" · ".join(below), room / 1.1 if state.mark else room, 11)
    half = width_of(text, 11) * 0.55
    return text, min(max(x, half + 4), width - half - 4), y + plan.tall / 2 + 14


def _paint_folded(canvas: Canvas, plan: Plan, unit: Unit, x: float, y: float) -> None:
    half = plan.node / 2
    canvas.rect(x - half + 3, y - half + 3, plan.node, plan.node, fill=WHITE, stroke=RULE, radius=5)
    names = f"s{unit.states[0] + 1} to s{unit.states[-1] + 1}" if unit.states == sorted(unit.states) else ""
    canvas.rect(x - half, y - half, plan.node, plan.node, fill=WHITE, stroke=FAINT, radius=5, tip=names)
    words = plural(len(unit.states), "state") if plan.node > 50 else f"{len(unit.states):,}"
    canvas.text(x, y - half + 18, fit(words, plan.node - 4, 11.5), size=11.5, anchor="middle")
    rest = clean(" ".join(unit.actions))
    for line in range(int((plan.node - 26) // 14)):
        last = line == int((plan.node - 26) // 14) - 1
        shown = _line_of(rest, plan.node - 8, last=last)
        canvas.text(x, y - half + 34 + 14 * line, shown, size=11, fill=MUTED, anchor="middle")
        rest = rest[len(shown) :].lstrip()


def _line_of(text: str, width: float, *, last: bool) -> str:
    """Return the words of a text that fit a line; all of the rest, cut, on the last one."""
    if last or width_of(text, 11) <= width:
        return fit(text, width, 11)
    kept = ""
    for word in text.split(" "):
        longer = f"{kept} {word}".strip()
        if width_of(longer, 11) > width:
            break
        kept = longer
    return kept or fit(text, width, 11).rstrip("…")


def _place_actions(found: Recordings, plan: Plan, graph: Graph, width: float) -> tuple[list[_Placed], int]:
    """Return where the actions of edges are written so that nothing else stands there, and how many are not."""
    half, tall = plan.node / 2, plan.tall / 2
    taken: list[tuple[float, float, float, float]] = []
    for unit in graph.units:
        x, y = plan.centre(unit)
        name, middle, low = _name_of(found, plan, unit, width)
        wide = width_of(name, 11) * 0.55
        taken += [(x - half, y - tall, x + half, y + tall), (middle - wide, low - 11, middle + wide, low + 4)]
    placed: list[_Placed] = []
    lost = 0
    for edge in graph.edges:
        if not edge.actions or (graph.is_dense and not edge.first):
            continue
        text = fit(" ".join(edge.actions), 90 if plan.down else max(plan.step - plan.node - 4, 16.0), 12)
        half_width = width_of(text, 12) / 2 + 2
        curve = curve_of(plan, graph, edge)
        spots = [
            point_at(curve, 0.5 + side * step * 0.04) for step in range(11) for side in ((1, -1) if step else (1,))
        ]
        spots = [(min(max(x, half_width + 2), width - half_width - 2), y) for x, y in spots]
        spot = next((spot for spot in spots if not _hits(spot, half_width, taken)), None)
        if spot is None:
            lost += 1
            continue
        placed.append((spot, half_width, text))
        taken.append((spot[0] - half_width, spot[1] - 8, spot[0] + half_width, spot[1] + 8))
    return placed, lost


def _hits(spot: Point, half_width: float, taken: list[tuple[float, float, float, float]]) -> bool:
    x, y = spot
    return any(x - half_width < x1 and x0 < x + half_width and y - 8 < y1 and y0 < y + 8 for x0, y0, x1, y1 in taken)
