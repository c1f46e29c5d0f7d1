"""Pictures: well formed, complete, inside their frame, harmless, bounded, and always the same bytes."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from builds import built
from commands import FIXTURES, TINY
from hypothesis import given
from hypothesis import strategies as st
from oracle import Example
from pictures import FOLDER, PICTURES

from dagpack_cli.drawing import draw, draw_game, draw_session, draw_trie, draw_window, write_picture
from dagpack_cli.drawing.bands import paint_large
from dagpack_cli.drawing.grids import COLOURS, grid_of, paint_grid
from dagpack_cli.drawing.labels import TokenLabels
from dagpack_cli.drawing.layers import graph_of
from dagpack_cli.drawing.lettering import MONO, SANS, clean, fit, width_of
from dagpack_cli.drawing.mask import coverage, runs_of_rows
from dagpack_cli.drawing.recordings import Run, read_recordings
from dagpack_cli.drawing.selection import select_heaviest
from dagpack_cli.drawing.svg import RULE, Canvas
from dagpack_cli.errors import DagpackError, DataError, NoInputError, OutputError, UsageError
from dagpack_cli.manifest import PackOptions, TrieOptions
from dagpack_cli.tokenizing.byte_level import ByteTokenizer

REAL = Path(__file__).resolve().parents[2] / "shared" / "real"
real = pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real files is not beside the project")
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "<script>alert('x')</script> & \"q\" \x00\x07\x1b[31m \ud800 \ufffe \u202eabc\u202c z" + "\u0301" * 50 + "漢" * 9
)


def parsed(picture: str) -> ET.Element:
    """Parse a picture strictly, and check what holds for every one: nothing foreign, nothing outside."""
    picture.encode("utf-8")
    root = ET.fromstring(picture)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    assert width <= 1200
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "title", "style", "rect", "circle", "path", "text", "g"}
    for element in root.iter():
        assert not any(name.startswith("on") or "href" in name for name in element.attrib)
        assert "url(" not in "".join(element.itertext()) or element.tag == f"{SVG}text" or element.tag == f"{SVG}title"
        if element.tag == f"{SVG}text":
            check_inside(element, width, height)
        if element.tag == f"{SVG}rect":
            x, y, w, h = (float(element.get(name, "0")) for name in ("x", "y", "width", "height"))
            assert w >= 0
            assert h >= 0
            assert x >= -0.01
            assert y >= -0.01
            assert x + w <= width + 0.01
            assert y + h <= height + 0.01
    return root


def box_of(element: ET.Element) -> tuple[float, float, float, float]:
    """Return where a line of text stands: left, top, right, bottom."""
    style = element.get("style") or ""
    found = re.search(r"font-size:([\d.]+)px", style)
    size = float(found.group(1)) if found else 12.0
    classes = (element.get("class") or "").split()
    width = width_of(element.text or "", size, MONO if "m" in classes else SANS) * (1.1 if "b" in classes else 1)
    x, y = float(element.get("x", "")), float(element.get("y", ""))
    left = x - {"middle": width / 2, "end": width}.get(element.get("text-anchor", ""), 0.0)
    return left, y - size * 0.8, left + width, y + size * 0.25


def check_inside(element: ET.Element, width: float, height: float) -> None:
    """Check that a line of text stays on the paper."""
    left, top, right, bottom = box_of(element)
    assert left >= -0.5, (element.text, left)
    assert right <= width + 0.5, (element.text, right)
    assert top >= 0, element.text
    assert bottom <= height, element.text


def check_apart(root: ET.Element) -> None:
    """Check that no line of text stands on another."""
    boxes = [(box_of(element), element.text) for element in root.iter(f"{SVG}text")]
    for index, (a, text) in enumerate(boxes):
        for b, other in boxes[:index]:
            apart = a[2] <= b[0] + 1 or b[2] <= a[0] + 1 or a[3] <= b[1] + 1 or b[3] <= a[1] + 1
            assert apart, (text, other)


def nodes_of(root: ET.Element) -> list[str]:
    """Return the names of what a picture shows, in its order."""
    return [element.get("data-node", "") for element in root.iter(f"{SVG}g")]


def texts_of(root: ET.Element) -> list[str]:
    """Return every line of text."""
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def entry(own: str, parent: str | None, role: str = "user", text: str = "x", **fields: Any) -> dict[str, Any]:
    """Return an entry of a pi session."""
    return {"type": "message", "id": own, "parentId": parent, "message": {"role": role, "content": text}} | fields


def session(path: Path, entries: Sequence[dict[str, Any]]) -> Path:
    """Write a pi session."""
    header = {"type": "session", "version": 3, "id": "s", "cwd": "/w"}
    path.write_text("".join(json.dumps(row) + "\n" for row in (header, *entries)))
    return path


# --- The pictures of the README ---------------------------------------------------------------


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_of_the_readme_are_what_the_fixtures_give(name: str) -> None:
    """Drawing again gives the stored bytes; nothing overlaps or leaves the paper."""
    picture = PICTURES[name]()
    assert picture == (FOLDER / name).read_text(encoding="utf-8"), "draw them again: python -m tests.pictures"
    check_apart(parsed(picture))


# --- Sessions -----------------------------------------------------------------------------------


def test_small_session_shows_every_event_once(tmp_path: Path) -> None:
    """Every event has a row, forks and leaves are named, the current leaf is marked."""
    entries = [entry("a", None), entry("b", "a", "assistant"), entry("c", "b"), entry("d", "b"), entry("e", "d")]
    root = parsed(draw_session(session(tmp_path / "s.jsonl", entries)))
    assert sorted(nodes_of(root)) == ["0-0", "1-1", "2-2", "3-3", "4-4"]
    texts = texts_of(root)
    assert texts.count("2 branches") == 1
    assert texts.count("leaf") == 1
    assert texts.count("current leaf") == 1
    assert "5 events · 1 fork · 2 leaves · 5 messages · 0 tool calls" in texts
    check_apart(root)


def test_long_stretches_are_folded_and_counted(tmp_path: Path) -> None:
    """Between forks one box stands for many events; together the boxes are all events, each once."""
    entries = [entry("0", None)]
    for at in range(1, 60):
        content: Any = [{"type": "toolCall", "id": "c", "name": "read", "arguments": {}}] if at % 2 else "text"
        entries.append(entry(str(at), str(at - 1), "assistant" if at % 2 else "user", content))
    entries += [entry("side", "30"), entry("end", "side", "assistant")]
    root = parsed(draw_session(session(tmp_path / "s.jsonl", entries)))
    shown = [range(int(low), int(high) + 1) for low, high in (name.split("-") for name in nodes_of(root))]
    assert sorted(event for part in shown for event in part) == list(range(62))
    assert len(shown) < 12
    assert "29 messages, 15 tool calls" in texts_of(root)
    check_apart(root)


def test_current_leaf_is_drawn_first(tmp_path: Path) -> None:
    """Where there is room for few rows, the way to the current leaf is among them, the rest is counted."""
    entries = [entry("root", None)]
    for branch in range(40):
        above = "root"
        for at in range(6 if branch < 39 else 2):
            own = f"{branch}.{at}"
            entries.append(entry(own, above))
            above = own
    root = parsed(draw_session(session(tmp_path / "s.jsonl", entries), max_nodes=5))
    texts = texts_of(root)
    assert "current leaf" in texts
    assert any(re.fullmatch(r"… 3\d more branches, [\d,]+ events", text) for text in texts)
    check_apart(root)


def test_what_is_left_out_adds_up(tmp_path: Path) -> None:
    """Events in boxes and events said to be left out are all events, whatever the limit."""
    source = random.Random(5)
    entries = [entry("0", None)]
    entries += [entry(str(at), str(max(0, at - source.choice([1, 1, 1, 1, 2, 7])))) for at in range(1, 300)]
    path = session(tmp_path / "s.jsonl", entries)
    for limit in (1, 2, 7, 30, 400):
        root = parsed(draw_session(path, max_nodes=limit))
        inside = 0
        for element in root.iter(f"{SVG}g"):
            tip = element.find(f"{SVG}rect/{SVG}title")
            folded = re.match(r"([\d,]+) events:", (tip.text or "") if tip is not None else "")
            inside += int(folded.group(1).replace(",", "")) if folded else 1
        lost = [re.search(r"([\d,]+) (more )?events?", text) for text in texts_of(root) if text.startswith("…")]
        assert inside + sum(int(found.group(1).replace(",", "")) for found in lost if found) == 300
        assert all(lost)
        check_apart(root)


def test_landmarks_are_never_folded(tmp_path: Path) -> None:
    """Compactions, summaries of branches and labelled events stay in sight."""
    entries = [entry(str(at), str(at - 1) if at else None) for at in range(30)]
    entries[10] |= {"type": "compaction", "summary": "what was done"}
    entries[20] |= {"type": "branch_summary", "summary": "what was tried"}
    entries.append({"type": "label", "id": "l", "parentId": "29", "targetId": "15", "label": "good point"})
    texts = texts_of(parsed(draw_session(session(tmp_path / "s.jsonl", entries))))
    assert {"compaction", "what was done", "summary", "what was tried", "good point"} <= set(texts)


def test_cycle_is_refused_with_its_line(tmp_path: Path) -> None:
    """Entries that are each other's ancestors end in an error that names file and line."""
    path = session(tmp_path / "s.jsonl", [entry("a", "b"), entry("b", "a")])
    with pytest.raises(DataError, match=r"s\.jsonl:2: entry a is its own ancestor"):
        draw(path)


@pytest.mark.parametrize("shape", ["chain", "star", "comb", "compactions", "random"])
def test_large_sessions_are_fast_and_bounded(tmp_path: Path, shape: str) -> None:
    """Ten thousand entries, in any shape, make a small picture soon."""
    source = random.Random(3)
    above: dict[str, Callable[[int], int]] = {
        "chain": lambda at: at - 1,
        "star": lambda at: 0,
        "comb": lambda at: at - 1 if at % 2 else max(at - 2, 0),
        "compactions": lambda at: at - 1,
        "random": lambda at: source.randrange(at),
    }
    entries = [entry("0", None)] + [entry(str(at), str(above[shape](at))) for at in range(1, 10_000)]
    if shape == "compactions":
        entries = [one | {"type": "compaction", "summary": "s"} for one in entries]
    path = session(tmp_path / "s.jsonl", entries)
    picture = draw(path)
    assert len(picture) < 150_000
    check_apart(parsed(picture))


def test_conversations_of_any_format_share_their_beginnings() -> None:
    """A file of chats is a forest: what they begin with stands once, the ends carry their names."""
    root = parsed(draw_session(TINY / "chat" / "sessions.jsonl"))
    assert len(nodes_of(root)) == len(set(nodes_of(root)))
    check_apart(root)


def test_broken_lines_are_counted(tmp_path: Path) -> None:
    """A line that cannot be read, as the last of a session that is being written, is said to be missing."""
    path = session(tmp_path / "s.jsonl", [entry("a", None), entry("b", "a")])
    path.write_text(path.read_text() + '{"type":"mess')
    assert any("1 unreadable record" in text for text in texts_of(parsed(draw(path))))


# --- Games --------------------------------------------------------------------------------------


def transitions(path: Path, runs: Sequence[Sequence[tuple[str | None, Any]]]) -> Path:
    """Write runs as records of episode, action and state."""
    rows = [
        {"episode": number, "state": state} | ({} if action is None else {"action": action})
        for number, run in enumerate(runs)
        for action, state in run
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_equal_states_are_one_node() -> None:
    """The game of the first text: six states, five edges, three runs."""
    root = parsed(draw(TINY / "transitions"))
    assert sorted(nodes_of(root)) == [f"{at}-{at}" for at in range(6)]
    texts = texts_of(root)
    assert [texts.count(f"s{at}") for at in range(1, 7)] == [1] * 6
    assert {"one", "two", "three", "right", "up", "down", "left"} <= set(texts)
    check_apart(root)


def test_recordings_of_grids() -> None:
    """Runs that meet again share the states from there on; the winning one is marked."""
    found = read_recordings(sorted((FOLDER / "grid-game").glob("*.jsonl")))
    assert [len(run.states) for run in found.runs] == [8, 6, 6]
    assert found.runs[2].states[3:] == found.runs[0].states[3:6]
    assert [state.mark for state in found.states].count("win") == 1
    assert found.runs[0].actions == [None, "→", "↓", "↓", "→", "→", "→", "↓"]


def test_loops_and_returns(tmp_path: Path) -> None:
    """An action that changes nothing, one that leads back, and two that lead to the same state."""
    runs = [[(None, "a"), ("stay", "a"), ("go", "b"), ("back", "a"), ("run", "b"), ("go", "c"), ("home", "a")]]
    root = parsed(draw(transitions(tmp_path / "g.jsonl", runs)))
    texts = texts_of(root)
    assert {"↻ stay", "back", "go run", "go", "home"} <= set(texts)
    assert len(nodes_of(root)) == 3


def test_long_runs_are_folded_around_forks(tmp_path: Path) -> None:
    """States that one way leads through are one box; all states are in some box, once."""
    first: list[tuple[str | None, Any]] = [(None if at == 0 else "n", f"a{at}") for at in range(40)]
    second = [*first[:20], *[("m", f"b{at}") for at in range(15)]]
    root = parsed(draw(transitions(tmp_path / "g.jsonl", [first, second])))
    folded = [text for text in texts_of(root) if re.fullmatch(r"\d+ states", text)]
    single = [name for name in nodes_of(root) if len(set(name.split("-"))) == 1]
    assert sum(int(text.split()[0]) for text in folded) + len(single) == 55
    assert {"a0", "a20", "b0", "a39", "b14"} <= set(texts_of(root))
    check_apart(root)


def test_a_frame_that_nobody_saw_is_no_state_of_the_game(tmp_path: Path) -> None:
    """Two records without a frame stay two, and a line with the scores is none."""
    data = {"game_id": "g", "state": "GAME_OVER", "action_input": {"id": 1, "data": {}}, "full_reset": False}
    rows: list[dict[str, Any]] = [{"data": data | {"frame": [[[0]]], "full_reset": True, "state": "NOT_FINISHED"}}]
    rows += [{"data": data | {"frame": []}}, {"data": data | {"frame": [[[1]], [[2]]]}}, {"data": data | {"frame": []}}]
    rows += [{"data": {"g": {"scores": [1]}}}]
    path = tmp_path / "g.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_recordings([path])
    assert len(found.states) == 4
    assert [state.grid for state in found.states] == [((0,),), None, ((2,),), None]
    assert parsed(draw(path)) is not None


def test_a_full_reset_begins_another_run(tmp_path: Path) -> None:
    """Two episodes in one file are two runs with numbers; no step leads from one to the other."""
    rows = [
        {"data": {"game_id": "g", "frame": [[[at]]], "action_input": {"id": at % 3}, "full_reset": at % 3 == 0}}
        for at in range(6)
    ]
    path = tmp_path / "g.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(run.name, run.states) for run in read_recordings([path]).runs] == [
        ("g, run 1", [0, 1, 2]),
        ("g, run 2", [3, 4, 5]),
    ]


def test_two_states_in_a_row_are_not_worth_folding(tmp_path: Path) -> None:
    """Only three or more states are folded into one box."""
    trunk: list[tuple[str | None, Any]] = [(None if at == 0 else "n", f"t{at}") for at in range(40)]
    runs = [[*trunk[: 5 * at + 1], ("m", f"end{at}")] for at in range(1, 8)]
    found = graph_of(
        [Run("", states, ["n"] * len(states)) for states in ([*range(5 * at), 100 + at] for at in range(1, 8))],
        200,
        keep=set(),
        max_layers=5,
        limit=400,
    )
    assert all(len(unit.states) != 2 for unit in found.units)
    assert any(len(unit.states) > 2 for unit in found.units)
    check_apart(parsed(draw(transitions(tmp_path / "g.jsonl", runs))))


def test_placeholder_actions_are_not_shown(tmp_path: Path) -> None:
    """Where every action of a file is 0, none was recorded, and none is drawn."""
    rows = [
        {"data": {"game_id": "g", "frame": [[[at]]], "action_input": {"id": 0, "data": {}}, "full_reset": at == 0}}
        for at in range(4)
    ]
    path = tmp_path / "g.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_recordings([path]).runs[0].actions == [None] * 4
    assert any("actions were not recorded" in text for text in texts_of(parsed(draw(path))))


@pytest.mark.parametrize("shape", ["chain", "star", "mesh", "bushy", "many runs"])
def test_large_games_are_fast_and_bounded(tmp_path: Path, shape: str) -> None:
    """Thousands of states make a picture of few nodes that do not overlap, and the rest is counted."""
    source = random.Random(7)
    runs: list[list[tuple[str | None, Any]]] = {
        "chain": [[(None, "0"), *(("go", str(at)) for at in range(1, 5_000))]],
        "star": [[(None, "0"), ("go", str(at))] for at in range(1, 3_000)],
        "mesh": [
            [(None, "0"), *((source.choice("udlr"), str(source.randrange(300))) for _ in range(900))] for _ in range(5)
        ],
        "bushy": [
            [(None, "0"), *((f"a{at % 3}", f"{run}.{at}" if at > run else f"t{at}") for at in range(1, 60))]
            for run in range(50)
        ],
        "many runs": [[(None, "a"), ("go", "b"), ("go", "c")] for _ in range(2_000)],
    }[shape]
    path = transitions(tmp_path / "g.jsonl", runs)
    picture = draw(path)
    assert len(picture) < 250_000
    root = parsed(picture)
    names = nodes_of(root)
    assert len(names) == len(set(names)) <= 60
    if shape != "mesh":
        check_apart(root)


def test_noisy_grids_stay_small() -> None:
    """A grid of random cells is thinned out until it is a few hundred shapes."""
    source = np.random.default_rng(0)
    grid = grid_of(source.integers(0, 16, (64, 64)).tolist())
    assert grid is not None
    canvas = Canvas(100, 100, "noise")
    paint_grid(canvas, grid, 0, 0, 100, 100)
    assert len(canvas.render()) < 30_000


def test_grids_are_painted_cell_by_cell() -> None:
    """Painted rectangles give back the cells, as a slow look at every one shows."""
    source = np.random.default_rng(1)
    grid = grid_of(source.integers(0, 4, (6, 5)).tolist())
    assert grid is not None
    canvas = Canvas(50, 60, "cells")
    paint_grid(canvas, grid, 0, 0, 50, 60)
    root = parsed(canvas.render())
    base = next(rect.get("fill", "") for rect in root.iter(f"{SVG}rect") if rect.get("fill") in COLOURS)
    seen = [[COLOURS.index(base)] * 5 for _ in range(6)]
    for path in root.iter(f"{SVG}path"):
        for x, y, w, h in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)", path.get("d", "")):
            for row in range(round(float(y)) // 10, round(float(y) + float(h)) // 10):
                for column in range(round(float(x)) // 10, round(float(x) + float(w)) // 10):
                    seen[row][column] = COLOURS.index(path.get("fill", ""))
    assert tuple(map(tuple, seen)) == grid


# --- Builds -------------------------------------------------------------------------------------

EXAMPLES = [
    Example(tokens=(1, 2, 3, 4), trained=frozenset(range(1, 4))),
    Example(tokens=(1, 2, 3, 5), trained=frozenset(range(1, 4))),
    Example(tokens=(7, 8), trained=frozenset({1})),
]


def test_window_shows_every_row_once() -> None:
    """Seven aligned rows, a column a row, and a mask of one shape a run."""
    with built(EXAMPLES, PackOptions(seq_len=8)) as build:
        (window,) = build.windows["train"]
        root = parsed(draw_window(build.result.path))
    size = len(window.rows)
    for name in ("row", "input", "target", "depth", "parent", "count", "weight", "queries"):
        (group,) = (element for element in root.iter(f"{SVG}g") if element.get("data-node") == name)
        shown = [element.text for element in group.iter(f"{SVG}text")]
        assert len(shown) == size
        if name in ("depth", "count"):
            assert shown == [str(value) for value in window.column(name)]
        if name == "parent":
            assert shown == ["-" if parent < 0 else str(parent) for parent in window.column(name)]
    check_apart(root)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_runs_are_the_mask(choices: list[int]) -> None:
    """Triangles and rectangles of the runs are exactly the pairs that following parents allows."""
    parents: list[int] = []
    for choice in choices:  # a preorder forest: hang below the last row, or some rows up its path
        path = [len(parents) - 1]
        while path[-1] >= 0:
            path.append(parents[path[-1]])
        parents.append(path[min(choice, len(path) - 1)])
    size = len(parents)
    allowed = np.zeros((size, size), dtype=bool)
    for query in range(size):
        key = query
        while key >= 0:
            allowed[query, key] = True
            key = parents[key]
    drawn = np.zeros_like(allowed)
    runs = runs_of_rows(np.array(parents, dtype=np.int32))
    for run in runs:
        for key in range(run.start, run.end):
            drawn[key : run.end, key] = True
        drawn[run.end : run.subtree_end, run.start : run.end] = True
        assert run.parent == parents[run.start]
    assert np.array_equal(drawn, allowed)
    assert [run.start for run in runs[1:]] == [run.end for run in runs[:-1]]
    cells = max(1, size // 3)
    bounds = np.arange(cells + 1) * size // cells
    for row in range(cells):
        for column in range(cells):
            part = allowed[bounds[row] : bounds[row + 1], bounds[column] : bounds[column + 1]]
            assert coverage(np.array(parents, dtype=np.int32), cells)[row, column] == pytest.approx(part.mean())


@pytest.mark.parametrize("shape", ["chain", "comb", "star", "random"])
def test_large_windows_are_bounded(shape: str) -> None:
    """A window of 20,000 rows in any shape is a picture of bounded size."""
    source = random.Random(2)
    size = 20_000
    parents = [-1]
    for at in range(1, size):
        back = {"chain": 1, "comb": 1 if at % 2 else 2, "star": at, "random": 1}[shape]
        parents.append(at - back)
    if shape == "random":
        path = [0]
        for at in range(1, size):
            path = path[: source.randrange(1, len(path) + 1)] if source.random() < 0.3 else path
            parents[at] = path[-1]
            path.append(at)
    depths = [0] * size
    for at in range(1, size):
        depths[at] = depths[parents[at]] + 1
    columns: dict[str, Any] = {
        "inputs": np.full(size, 100, np.int32),
        "targets": np.full(size, 101, np.int32),
        "depths": np.array(depths, np.int32),
        "parents": np.array(parents, np.int32),
        "counts": np.arange(1, size + 1, dtype=np.int32),
        "weights": np.arange(size, dtype=np.float32) % 3,
    }
    picture = paint_large(columns, runs_of_rows(columns["parents"]), TokenLabels(ByteTokenizer()), ("title", "facts"))
    assert len(picture) < 1_000_000
    check_apart(parsed(picture))


def test_windows_of_every_size_are_drawn() -> None:
    """From one row to more than are drawn one by one, nothing overlaps."""
    for size in (2, 3, 17, 40, 41, 42, 90):
        examples = [Example(tokens=tuple(range(size)), trained=frozenset(range(1, size)))]
        with built(examples, PackOptions(seq_len=128)) as build:
            check_apart(parsed(draw_window(build.result.path)))
            check_apart(parsed(draw_trie(build.result.path)))


def test_trie_shows_every_node_once() -> None:
    """Boxes are the nodes of the stored trie; wider where they have more tokens, higher with more examples."""
    with built(EXAMPLES, PackOptions(seq_len=8)) as build:
        root = parsed(draw_trie(build.result.path))
    assert nodes_of(root) == ["0", "1", "2", "3"]
    boxes = [element.find(f"{SVG}rect") for element in root.iter(f"{SVG}g")]
    sizes = [(float(box.get("width", "")), float(box.get("height", ""))) for box in boxes if box is not None]
    assert [round(width / sizes[1][0]) for width, _ in sizes] == [3, 1, 1, 2]
    assert sizes[0][1] == sizes[1][1] + sizes[2][1] == 2 * sizes[3][1]
    check_apart(root)


def test_trie_is_as_high_as_examples_pass() -> None:
    """An example that occurs three times is three times as high as one that occurs once."""
    with built([EXAMPLES[0]] * 3 + [EXAMPLES[2]], PackOptions(seq_len=8)) as build:
        root = parsed(draw_trie(build.result.path))
    boxes = [element.find(f"{SVG}rect") for element in root.iter(f"{SVG}g")]
    heights = [float(box.get("height", "")) for box in boxes if box is not None]
    assert heights[0] == 3 * heights[1]


def test_windows_of_npy_shards_are_drawn() -> None:
    """What the shards are stored as makes no difference to the picture."""
    pictures: list[str] = []
    formats: list[Literal["parquet", "npy"]] = ["parquet", "npy"]
    for shard_format in formats:
        with built(EXAMPLES, PackOptions(seq_len=8, shard_format=shard_format)) as build:
            pictures.append(draw_window(build.result.path))
    assert pictures[0] == pictures[1]


def test_trie_leaves_out_the_lightest_branches() -> None:
    """Of many branches the heaviest are drawn, in their order, and the others are counted."""
    examples = [
        Example(tokens=(0, 1, *range(at + 2, at + 2 + (9 if at % 10 == 0 else 3))), trained=frozenset(range(1, 4)))
        for at in range(0, 400, 2)
    ]
    with built(examples, PackOptions(seq_len=16)) as build:
        root = parsed(draw_trie(build.result.path, max_nodes=21))
        again = draw_trie(build.result.path, max_nodes=21)
    assert len(nodes_of(root)) == 21
    assert any(re.fullmatch(r"… 180 more: [\d,]+ tokens, 180 examples", text) for text in texts_of(root))
    assert parsed(again) is not None
    check_apart(root)


@given(st.lists(st.integers(-4, 20), min_size=1, max_size=60), st.integers(1, 20))
def test_selection_is_the_heaviest_closed_set(numbers: list[int], limit: int) -> None:
    """Against a slow choice: again and again the heaviest node whose parent is chosen."""
    parents = [-1 if at == 0 else max(-1, at - 1 - abs(number) % (at + 1)) for at, number in enumerate(numbers)]
    weights = [1] * len(parents)
    for at in reversed(range(len(parents))):
        if parents[at] >= 0:
            weights[parents[at]] += weights[at]
    below: dict[int, list[int]] = {node: [] for node in range(-1, len(parents))}
    for at, parent in enumerate(parents):
        below[parent].append(at)
    selection = select_heaviest(below.__getitem__, weights.__getitem__, limit)
    chosen: set[int] = set()
    for _ in range(min(limit, len(parents))):
        open_nodes = [at for at, parent in enumerate(parents) if at not in chosen and (parent < 0 or parent in chosen)]
        chosen.add(max(open_nodes, key=lambda at: (weights[at], -at)))
    listed = {child for children in selection.children.values() for child in children}
    assert chosen <= listed
    for extra in listed - chosen:  # alone left out, and nothing below it
        assert not below[extra]
        assert set(below[parents[extra]]) - listed == set()
    for node, (count, weight) in selection.left_out.items():
        missing = [child for child in below[node] if child not in listed]
        assert (count, weight) == (len(missing), sum(weights[child] for child in missing))
    assert sorted(node for node, _ in selection.preorder()) == sorted(listed)


def test_states_that_are_grids_are_painted_in_windows(tmp_path: Path) -> None:
    """A build of a game of grids shows the grids as input and target."""
    grids = [[[at, 0], [0, at]] for at in range(3)]
    path = transitions(tmp_path / "g.jsonl", [[(None, grids[0]), ("go", grids[1]), ("go", grids[2])]])
    with built({"g.jsonl": path.read_text()}, PackOptions(seq_len=8), tokenizer="symbols") as build:
        root = parsed(draw_window(build.result.path))
        check_apart(root)
    assert sum(element.get("shape-rendering") == "crispEdges" for element in root.iter(f"{SVG}path")) >= 3


def test_windows_of_recordings_show_the_frames() -> None:
    """A build of recordings shows every state's frame with the action that led to it."""
    names = ("run-1", "run-2", "run-3")
    files = {f"{name}.jsonl": (FOLDER / "grid-game" / f"{name}.jsonl").read_text() for name in names}
    with built(files, PackOptions(seq_len=16), tokenizer="symbols") as build:
        (window,) = build.windows["train"]
        root = parsed(draw_window(build.result.path))
    check_apart(root)
    (group,) = (element for element in root.iter(f"{SVG}g") if element.get("data-node") == "target")
    assert sum(element.get("stroke") == RULE for element in group.iter(f"{SVG}rect")) == len(window.rows)
    assert {text[0] for text in (element.text or "" for element in group.iter(f"{SVG}text"))} == set("↓←→")


# --- Hostile text, damage and options ---------------------------------------------------------------


def test_hostile_text_is_harmless(tmp_path: Path) -> None:
    """Markup, control characters, halves of surrogates and endless lines become plain short labels."""
    long = "x" * 3_000_000
    entries = [entry("a", None, text=HOSTILE), entry("b", "a", "assistant", long), entry("c", "b", "<g>", HOSTILE)]
    entries.append({"type": HOSTILE, "id": "d", "parentId": "c"})
    entries.append({"type": "label", "id": "e", "parentId": "d", "targetId": "c", "label": HOSTILE})
    entries.append({"type": "session_info", "id": "f", "parentId": "e", "name": HOSTILE})
    picture = draw(session(tmp_path / "s.jsonl", entries))
    assert "<script" not in picture
    assert len(picture) < 30_000
    check_apart(parsed(picture))
    runs: list[list[tuple[str | None, Any]]] = [[(None, HOSTILE.replace("\ud800", "")), (HOSTILE[:60], long)]]
    picture = draw(transitions(tmp_path / "g.jsonl", runs))
    assert "<script" not in picture
    check_apart(parsed(picture))


@given(st.text(st.characters(codec=None), max_size=80), st.floats(0, 300), st.sampled_from((SANS, MONO)))
def test_any_text_fits(text: str, width: float, font: str) -> None:
    """Whatever the text, what is shown is valid, is one line, and is no wider than its room."""
    shown = fit(text, width, 12, font)
    assert width_of(shown, 12, font) <= width or not shown
    assert clean(shown) == shown.strip() or "…" in shown
    canvas = Canvas(400, 40, text)
    canvas.text(5, 20, shown, font=font, tip=text)
    root = ET.fromstring(canvas.render())
    assert (root.find(f"{SVG}text") is None) == (not shown)


def test_damaged_files_end_in_a_named_error(tmp_path: Path) -> None:
    """Cut, flipped and mistyped files give a picture or an error of ours, never anything else."""
    source = random.Random(11)
    originals = [(FOLDER / "session.jsonl").read_bytes(), (FOLDER / "grid-game" / "run-1.jsonl").read_bytes()]
    values = ["null", "3", "[]", '{"a":[]}', '"\\ud800"', "1e999", "NaN", "[" * 300 + "]" * 300, "99999999999999999999"]
    path = tmp_path / "f.jsonl"
    for number in range(300):
        data = bytearray(originals[number % 2])
        for _ in range(source.randrange(1, 6)):
            at = source.randrange(len(data))
            kind = source.randrange(4)
            if kind == 0:
                del data[at:]
            elif kind == 1:
                data[at] = source.randrange(256)
            elif kind == 2:
                del data[at : at + source.randrange(60)]
            else:
                colons = [match.end() for match in re.finditer(rb'":', data)]
                if colons:
                    start = source.choice(colons)
                    end = start + len(re.match(rb'"[^"]*"|[^,}\]]*', bytes(data[start:])).group())  # type: ignore[union-attr]
                    data[start:end] = source.choice(values).encode()
            if not data:
                data = bytearray(b"{")
        path.write_bytes(bytes(data))
        try:
            picture = draw(path)
        except DagpackError:
            pass
        else:
            parsed(picture)


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    """Every misuse is named with what would work."""
    game = FOLDER / "grid-game"
    with pytest.raises(UsageError, match="--max-nodes: 0"):
        draw(game, max_nodes=0)
    with pytest.raises(UsageError, match="--window: --trie is given too"):
        draw(game, window=1, trie=True)
    options: list[dict[str, Any]] = [{"window": 1}, {"trie": True}, {"partition": "val"}]
    for given_option in options:
        with pytest.raises(UsageError, match="is no output of build"):
            draw(game, **given_option)
    with pytest.raises(NoInputError, match="does not exist"):
        draw(tmp_path / "nothing")
    with pytest.raises(NoInputError, match="a folder of recordings"):
        draw(TINY / "chat")
    with pytest.raises(UsageError):
        draw_game([])
    with pytest.raises(DataError, match="text holds no conversation"):
        draw(TINY / "text" / "a.txt")
    with pytest.raises(OutputError, match="its folder does not exist"):
        write_picture(tmp_path / "no" / "x.svg", "")
    with pytest.raises(OutputError, match="is a folder"):
        write_picture(tmp_path, "")


def test_options_of_a_build() -> None:
    """A build draws its first window, another one, or its trie; what it does not have is named."""
    with built(EXAMPLES, PackOptions(seq_len=4), TrieOptions()) as build:
        out = build.result.path.parent.parent
        assert draw(out) == draw(out, window=0) == draw_window(build.result.path, 0)
        assert draw(out, trie=True, max_nodes=9) == draw_trie(build.result.path, max_nodes=9)
        with pytest.raises(UsageError, match=r"--window: 99; 0 to \d"):
            draw(out, window=99)
        with pytest.raises(UsageError, match="--partition: val"):
            draw(out, partition="val")
        with pytest.raises(UsageError, match="--partition: test"):
            draw(out, trie=True, partition="test")
        with pytest.raises(UsageError, match="--max-nodes"):
            draw(out, max_nodes=3)


def test_the_same_bytes_again(tmp_path: Path) -> None:
    """Drawing twice, and writing, gives the same bytes."""
    first, second = draw(FOLDER / "session.jsonl"), draw(FOLDER / "session.jsonl")
    assert first == second
    write_picture(tmp_path / "x.svg", first)
    assert (tmp_path / "x.svg").read_bytes() == first.encode()
    assert draw(FIXTURES / "pictures" / "grid-game") == draw(FIXTURES / "pictures" / "grid-game")


# --- Real files -----------------------------------------------------------------------------------


@real
@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("branched-large-session", "1,077 events · 5 forks · 9 leaves"),
        ("compaction-branches", "168 events · 2 forks · 3 leaves"),
        ("v1-large", "1,018 events · 0 forks · 1 leaf"),
    ],
)
def test_real_sessions(name: str, facts: str) -> None:
    """Forks and leaves are those counted in the file by hand."""
    root = parsed(draw(REAL / "pi" / f"{name}.jsonl"))
    assert any(text.startswith(facts) for text in texts_of(root))
    check_apart(root)


@real
def test_real_edge_cases() -> None:
    """Every edge case of a session is a picture or a named error."""
    refused = {"cycle", "empty", "no_header", "only_header"}
    for path in sorted((REAL / "pi-edge").glob("*.jsonl")):
        if path.stem in refused:
            with pytest.raises((DataError, NoInputError)):
                draw(path)
        else:
            check_apart(parsed(draw(path)))


@real
def test_real_recordings() -> None:
    """Three runs of ls20 go through 89 states and share their beginnings."""
    paths = sorted((REAL / "arc-agi-3").glob("ls20-9607627b-*.jsonl"))[:3]
    root = parsed(draw_game(paths))
    assert texts_of(root)[0] == "ls20-9607627b: 3 runs through 89 states"
    check_apart(root)
