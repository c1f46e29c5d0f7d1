"""The tree of a session: its forks and leaves at a glance, the long stretches between them folded.

The picture runs downwards, a row a box. At a fork the largest branch goes straight on and the
others stand beside it, so that a tree of n events is never wider than log2(n) lanes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from dagpack_cli.drawing.events import Event, Session, read_session
from dagpack_cli.drawing.folding import Box, Tree, grow_tree
from dagpack_cli.drawing.lettering import fit, plural, width_of
from dagpack_cli.drawing.selection import Selection, select_heaviest
from dagpack_cli.drawing.svg import FAINT, INK, MUTED, RULE, SERIES, TINTS, WHITE, Canvas
from dagpack_cli.errors import DataError

__all__ = ["draw_events", "draw_session"]

_WIDTH, _MARGIN, _TOP, _LANE, _ROLE = 980.0, 28.0, 84.0, 26.0, 90.0
_ROW, _FOLDED = 28.0, 50.0
_LINE = "#b4bec8"
_COLOURS = {
    "user": SERIES[0],
    "assistant": SERIES[3],
    "tool": "#97a2ad",
    "system": SERIES[6],
    "compaction": SERIES[4],
    "summary": SERIES[2],
    "setting": "#c6ced6",
}


def draw_session(path: Path, *, max_nodes: int = 60) -> str:
    """Return the tree of a session file as SVG.

    Args:
        path: a session of pi, or any file of conversations; their common beginnings are drawn once.
        max_nodes: most rows; the lightest branches are left out, counted and named.

    Raises:
        DataError: entries are each other's ancestors (it names file and line), or there are none.
        NoInputError, PermissionDeniedError, DiskError: the file cannot be read.

    Time and memory O(events); the size of the picture is O(max_nodes).
    """
    session = read_session(path)
    if not session.events:
        bad = f", {plural(session.unreadable, 'record')} cannot be read" if session.unreadable else ""
        hint = "name a file that holds a conversation"
        raise DataError(path.name, f"there is no event in it{bad}", "a session with at least one message", hint=hint)
    return draw_events(session, max_nodes=max_nodes)


def draw_events(session: Session, *, max_nodes: int = 60) -> str:
    """Return the tree of a session that was read; it has at least one event."""
    tree = grow_tree(session)
    boxes = tree.boxes
    chosen = select_heaviest(
        lambda box: boxes[box].children if box >= 0 else tree.roots,
        # the way to the current leaf comes before everything else
        lambda box: boxes[box].weight + (len(session.events) if tree.has_current(box) else 0),
        max_nodes,
    )
    rows = _rows(tree, chosen)
    height = _TOP + sum(_height(tree, row) for row in rows) + 14
    canvas = Canvas(_WIDTH, height, f"{session.name}: the tree of its events")
    _headline(canvas, tree)
    _paint(canvas, tree, rows)
    return canvas.render()


@dataclass(slots=True)
class _Row:
    """What stands in a row: a box, or what was left out (``box`` is -1)."""

    box: int
    lane: int
    parent_row: int
    text: str = ""


def _rows(tree: Tree, chosen: Selection) -> list[_Row]:
    """Return the rows downwards: of every fork the side branches first, then the largest one."""
    rows: list[_Row] = []
    todo: list[_Row] = []

    def push(box: int, lane: int, own: int) -> None:
        children = chosen.children[box]
        everything = tree.boxes[box].children if box >= 0 else tree.roots
        trunk = max(everything, key=lambda child: tree.boxes[child].weight, default=-1)
        count, _ = chosen.left_out[box]
        lost = sum(tree.boxes[child].weight for child in everything) - sum(tree.boxes[c].weight for c in children)
        straight = trunk in children
        sides = [_Row(child, lane + (box >= 0), own) for child in children if child != trunk]
        if count:
            what = f"{plural(count, 'more branch').replace('branchs', 'branches')}, " if len(everything) > 1 else ""
            inside = any(tree.has_current(child) for child in set(everything) - set(children))
            text = f"… {what}{plural(lost, 'more event' if not what else 'event')}"
            text += ", with the current leaf" if inside else ""
            sides.append(_Row(-1, lane + (straight and box >= 0), own, text))
        todo.extend(reversed(sides + ([_Row(trunk, lane, own)] if straight else [])))

    push(-1, 0, -1)
    while todo:
        row = todo.pop()
        rows.append(row)
        if row.box >= 0:
            push(row.box, row.lane, len(rows) - 1)
    return rows


def _height(tree: Tree, row: _Row) -> float:
    return _FOLDED if row.box >= 0 and len(tree.boxes[row.box].events) > 1 else _ROW


def _headline(canvas: Canvas, tree: Tree) -> None:
    session = tree.session
    kinds = Counter(event.kind for event in session.events)
    leaves = sum(not children for children in tree.children)
    forks = sum(len(children) > 1 for children in tree.children) + (len(tree.roots) > 1)
    facts = [
        plural(len(session.events), "event"),
        plural(forks, "fork"),
        plural(leaves, "leaf").replace("leafs", "leaves"),
    ]
    facts.append(plural(kinds["user"] + kinds["assistant"] + kinds["system"], "message"))
    facts.append(plural(sum(event.calls for event in session.events), "tool call"))
    facts += [plural(session.unreadable, "unreadable record")] if session.unreadable else []
    facts += ["cut: the file holds more"] if session.cut else []
    name = fit(session.name, _WIDTH - 2 * _MARGIN, 19)  # as if it were larger: it is bold
    canvas.text(_MARGIN, 36, name, size=16, bold=True)
    canvas.text(_MARGIN, 57, fit(" · ".join(facts), _WIDTH - 2 * _MARGIN, 12), fill=MUTED)


def _paint(canvas: Canvas, tree: Tree, rows: list[_Row]) -> None:
    middles, y = [], _TOP
    for row in rows:
        middles.append(y + _height(tree, row) / 2)
        y += _height(tree, row)
    lanes = [_MARGIN + 8 + _LANE * row.lane for row in rows]
    for current in (False, True):  # the way to the current leaf is painted over the others
        for at, row in enumerate(rows):
            own = row.box >= 0 and tree.has_current(row.box)
            if row.parent_row >= 0 and own == current:
                _connect(canvas, lanes[row.parent_row], middles[row.parent_row], lanes[at], middles[at], current)
    for at, row in enumerate(rows):
        if row.box < 0:
            canvas.text(lanes[at] + 16, middles[at] + 4, row.text, fill=MUTED)
            canvas.circle(lanes[at], middles[at], 2.5, fill=_LINE)
            continue
        box = tree.boxes[row.box]
        canvas.open_group(f"{box.events[0]}-{box.events[-1]}")
        if len(box.events) > 1:
            _paint_folded(canvas, tree, box, lanes[at], middles[at])
        else:
            _paint_event(canvas, tree, box.events[0], lanes[at], middles[at])
        canvas.close_group()


def _connect(canvas: Canvas, from_x: float, from_y: float, to_x: float, to_y: float, current: bool) -> None:
    stroke, width = (INK, 2.25) if current else (_LINE, 1.75)
    if from_x == to_x:
        canvas.line([(from_x, from_y), (to_x, to_y)], stroke=stroke, stroke_width=width)
        return
    turn = f"M{from_x:g} {from_y:g}V{to_y - 12:g}Q{from_x:g} {to_y:g} {from_x + 12:g} {to_y:g}H{to_x:g}"
    canvas.path(turn, stroke=stroke, stroke_width=width)


def _paint_event(canvas: Canvas, tree: Tree, index: int, x: float, y: float) -> None:
    event = tree.session.events[index]
    colour = _COLOURS[event.kind]
    forks = len(tree.children[index])
    if forks > 1:
        canvas.circle(x, y, 8.5, fill=WHITE, stroke=colour, stroke_width=1.5)
    canvas.circle(x, y, 5, fill=colour, stroke=WHITE, stroke_width=1.5)
    right = _badges(canvas, tree, index, y)
    start = x + 18
    canvas.text(start, y + 4, event.kind, fill=_ink_of(event), bold=True)
    room = right - 14 - start - _ROLE
    canvas.text(start + _ROLE, y + 4, fit(event.text or "(empty)", room, 12), tip=event.text[:300])


def _ink_of(event: Event) -> str:
    return MUTED if event.kind in ("tool", "setting") else _COLOURS[event.kind]


def _badges(canvas: Canvas, tree: Tree, index: int, y: float) -> float:
    """Write what is special about an event at the right edge; return where the room left of it ends."""
    right = _WIDTH - _MARGIN
    event = tree.session.events[index]
    if not tree.children[index]:
        if index == tree.session.current:
            canvas.rect(right - 88, y - 10, 88, 20, fill=INK, radius=10)
            canvas.text(right - 44, y + 4, "current leaf", size=11.5, fill=WHITE, anchor="middle")
            right -= 88
        else:
            canvas.rect(right - 46, y - 10, 46, 20, fill=WHITE, stroke=FAINT, radius=10)
            canvas.text(right - 23, y + 4, "leaf", size=11.5, fill=MUTED, anchor="middle")
            right -= 46
        depth = f"{plural(tree.depths[index] + 1, 'event')} from the root"
        canvas.text(right - 8, y + 4, depth, size=11, fill=MUTED, anchor="end")
        right -= 8 + width_of(depth, 11)
    elif len(tree.children[index]) > 1:
        text = f"{len(tree.children[index]):,} branches"
        width = width_of(text, 11.5) + 18
        canvas.rect(right - width, y - 10, width, 20, fill=TINTS[4], radius=10)
        canvas.text(right - width / 2, y + 4, text, size=11.5, fill="#6b4a06", anchor="middle")
        right -= width
    if event.tag:
        tag = fit(event.tag, 160, 11)
        canvas.text(right - 8, y + 4, tag, size=11, fill=SERIES[2], anchor="end", tip=event.tag[:300])
        right -= 8 + width_of(tag, 11)
    return right


def _paint_folded(canvas: Canvas, tree: Tree, box: Box, x: float, y: float) -> None:
    events = [tree.session.events[index] for index in box.events]
    kinds = Counter(event.kind for event in events)
    messages = kinds["user"] + kinds["assistant"] + kinds["system"]
    words = [plural(messages, "message")] if messages else []
    calls = sum(event.calls for event in events)
    words += [plural(calls, "tool call")] if calls else []
    words += [plural(kinds["setting"], "setting")] if kinds["setting"] else []
    text = ", ".join(words) or plural(len(events), "event")
    strip = min(300.0, 6.0 * len(events))
    width = max(width_of(text, 12), strip) + 24
    left = x - 14
    canvas.rect(left + 3, y - 19, width, 42, fill=WHITE, stroke=RULE, radius=5)
    listed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    canvas.rect(left, y - 22, width, 42, fill=WHITE, stroke=_LINE, radius=5, tip=f"{len(events):,} events: {listed}")
    canvas.text(left + 12, y - 5, text)
    _paint_strip(canvas, events, left + 12, y + 4, strip)


def _paint_strip(canvas: Canvas, events: list[Event], x: float, y: float, width: float) -> None:
    """Paint the stretch as a strip of colours, an event (or the most common kind of a few) a bar."""
    bars = min(len(events), 100)
    step = width / bars
    data: dict[str, list[str]] = {}
    for bar in range(bars):
        part = events[bar * len(events) // bars : (bar + 1) * len(events) // bars]
        kind = Counter(event.kind for event in part).most_common(1)[0][0]
        data.setdefault(kind, []).append(
            f"M{x + bar * step:.1f} {y:g}h{max(step - 0.6, 0.6):.1f}v9h-{max(step - 0.6, 0.6):.1f}z"
        )
    for kind in sorted(data):
        canvas.path("".join(data[kind]), fill=_COLOURS[kind])
