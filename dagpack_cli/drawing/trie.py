"""The trie of a build, lying on its side: sequences run to the right, branches stand below one another.

A box is a run of tokens: as wide as it has tokens, as high as examples pass through it. Its area is
what training on every example alone would pay for it; stored and computed it is once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dagpack_cli.drawing.labels import TokenLabels
from dagpack_cli.drawing.lettering import MONO, fit, plural, width_of
from dagpack_cli.drawing.selection import Selection, select_heaviest
from dagpack_cli.drawing.svg import MUTED, RULE, WHITE, Canvas
from dagpack_cli.errors import UsageError
from dagpack_cli.manifest import Manifest
from dagpack_cli.tokenizing import load_saved
from dagpack_cli.trie import Trie, open_trie

__all__ = ["draw_trie"]

_WIDTH, _MARGIN, _TOP, _LEAF_ROOM = 1100.0, 28.0, 100.0, 290.0
_HEIGHT = 520.0  # that the examples share, where no box has to be higher to be read
_LOWEST, _HIGHEST, _NARROWEST = 19.0, 34.0, 14.0
_LABEL_TOKENS = 160
_FACTS = "#45525f"
_ALONE, _SHARED_LIGHT, _SHARED_DARK = (241, 243, 245), (222, 234, 246), (143, 184, 224)


@dataclass(slots=True)
class _Layout:
    """Which nodes are drawn, and how large: every value by node, heights also of what is left out."""

    chosen: Selection
    order: list[tuple[int, int]]
    left_counts: dict[int, int]
    heights: dict[int, float]
    widths: dict[int, float]


def draw_trie(generation: Path, partition: str = "train", *, max_nodes: int = 48) -> str:
    """Return the trie of a partition as SVG.

    Args:
        generation: directory of a generation of a build.
        partition: train or val.
        max_nodes: most boxes; the heaviest branches come first, the others are counted.

    Raises:
        UsageError: there is no such partition.
        DamageError: the trie cannot be read.

    Time O(nodes of the trie) at most; the size of the picture is O(max_nodes).
    """
    manifest = Manifest.from_bytes((generation / "manifest.json").read_bytes(), generation / "manifest.json")
    if partition not in manifest.partitions:
        raise UsageError("--partition", partition, f"one of {', '.join(manifest.partitions)}")
    trie = open_trie(generation / "trie" / partition)
    labels = TokenLabels(load_saved(generation / "tokenizer"))
    layout = _layout(trie, max_nodes)
    height = sum(layout.heights[root] for root in layout.chosen.children[-1]) + _rest_height(layout, -1)
    canvas = Canvas(_WIDTH, _TOP + height + 24, f"{partition}: trie of {plural(_examples(trie), 'example')}")
    _headline(canvas, trie, partition, manifest.trie.merge)
    _paint(canvas, trie, layout, labels)
    return canvas.render()


def _examples(trie: Trie) -> int:
    roots = np.flatnonzero(np.asarray(trie.parents) == -1)
    return int(np.asarray(trie.counts)[roots].sum(dtype=np.int64))


def _children(trie: Trie, node: int) -> Iterator[int]:
    child, end = (0, trie.num_nodes) if node < 0 else (node + 1, int(trie.subtree_ends[node]))
    while child < end:
        yield child
        child = int(trie.subtree_ends[child])


def _length(trie: Trie, node: int) -> int:
    return int(trie.offsets[node + 1] - trie.offsets[node])


def _layout(trie: Trie, max_nodes: int) -> _Layout:
    chosen = select_heaviest(
        lambda node: _children(trie, node),
        lambda node: int(trie.offsets[trie.subtree_ends[node]] - trie.offsets[node]),
        max_nodes,
    )
    order = chosen.preorder()
    left_counts: dict[int, int] = {}
    for node, listed in chosen.children.items():
        if chosen.left_out[node][0]:
            kept = set(listed)
            left_counts[node] = sum(int(trie.counts[child]) for child in _children(trie, node) if child not in kept)
    layout = _Layout(chosen, order, left_counts, {}, {})
    unit = min(_HIGHEST, _HEIGHT / max(_examples(trie), 1))
    for node, _ in reversed(order):
        below = sum(layout.heights[child] for child in chosen.children[node]) + _rest_height(layout, node)
        layout.heights[node] = max(_LOWEST, unit * int(trie.counts[node]), below)
    _set_widths(trie, layout)
    return layout


def _rest_height(layout: _Layout, node: int) -> float:
    return _LOWEST if layout.chosen.left_out[node][0] else 0.0


def _set_widths(trie: Trie, layout: _Layout) -> None:
    """Give every box its width: its tokens, in a scale that brings the longest path to the edge."""
    room = _WIDTH - 2 * _MARGIN - _LEAF_ROOM
    levels = max((level for _, level in layout.order), default=0) + 1
    narrowest = min(_NARROWEST, room / levels)

    def reach(scale: float) -> float:
        ends: dict[int, float] = {-1: 0.0}
        for node, _ in layout.order:
            above = int(trie.parents[node])
            ends[node] = ends[above] + max(narrowest, scale * _length(trie, node))
        return max(ends.values())

    low, high = 0.0, room
    for _ in range(60):  # halving: the longest path grows with the scale
        middle = (low + high) / 2
        low, high = (middle, high) if reach(middle) <= room else (low, middle)
    layout.widths.update((node, max(narrowest, low * _length(trie, node))) for node, _ in layout.order)


def _headline(canvas: Canvas, trie: Trie, partition: str, merge: str) -> None:
    lengths = np.diff(np.asarray(trie.offsets))
    given = int(np.dot(lengths, np.asarray(trie.counts, dtype=np.int64)))
    stored = len(trie.tokens)
    saved = f" ({given / stored:.2f}x)" if stored else ""
    facts = [f"{stored:,} tokens stored once stand for {given:,}{saved}", plural(trie.num_nodes, "node")]
    facts += ["merged by state"] if merge == "state" else []
    title = f"{partition}: trie of {plural(_examples(trie), 'example')}"
    canvas.text(_MARGIN, 36, title, size=16, bold=True)
    canvas.text(_MARGIN, 57, fit(" · ".join(facts), _WIDTH - 2 * _MARGIN, 12), fill=MUTED)
    canvas.text(_MARGIN, 82, "width: tokens · height: examples", size=11, fill=MUTED)
    x = _MARGIN + 230
    for colour, text in ((_ALONE, "one example"), (_SHARED_LIGHT, "shared by few"), (_SHARED_DARK, "shared by many")):
        canvas.rect(x, 73, 14, 11, fill=_hex(colour), stroke=RULE, radius=2)
        canvas.text(x + 20, 82, text, size=11, fill=MUTED)
        x += 40 + width_of(text, 11)


def _paint(canvas: Canvas, trie: Trie, layout: _Layout, labels: TokenLabels) -> None:
    chosen = layout.chosen
    most = max(2, int(np.asarray(trie.counts).max(initial=1)))
    # (node, x, y) still to paint; -3 - node stands for what is left out below node
    todo: list[tuple[int, float, float]] = []

    def push_below(node: int, x: float, y: float) -> None:
        listed = []
        for child in chosen.children[node]:
            listed.append((child, x, y))
            y += layout.heights[child]
        if chosen.left_out[node][0]:
            listed.append((-3 - node, x, y))
        todo.extend(reversed(listed))

    push_below(-1, _MARGIN, _TOP)
    while todo:
        node, x, y = todo.pop()
        if node < 0:
            _paint_rest(canvas, layout, -3 - node, x, y)
            continue
        canvas.open_group(str(node))
        _paint_node(canvas, trie, layout, labels, node, x, y, most)
        canvas.close_group()
        push_below(node, x + layout.widths[node], y)


def _paint_node(
    canvas: Canvas, trie: Trie, layout: _Layout, labels: TokenLabels, node: int, x: float, y: float, most: int
) -> None:
    count, length = int(trie.counts[node]), _length(trie, node)
    width, height = layout.widths[node], layout.heights[node]
    start = int(trie.offsets[node])
    text = labels.text(np.asarray(trie.tokens[start : start + min(length, _LABEL_TOKENS)]).tolist()).lstrip("⏎⇥ ")
    facts = plural(length, "token") + (f" · {plural(count, 'example')}" if count > 1 else "")
    canvas.rect(
        x, y, width, height, fill=_shade(count, most), stroke=WHITE, stroke_width=1.5, tip=f"{facts}: {text[:200]}"
    )
    is_end = not layout.chosen.children[node] and not layout.chosen.left_out[node][0]
    inside = width - 12
    if is_end:  # nothing stands to the right: the label may, where that is the larger room
        outside = _WIDTH - _MARGIN - x - width - 8
        left, room = (x + 6, inside) if inside > outside else (x + width + 8, outside)
    else:
        left, room = x + 6, inside
    if room < 26:
        return
    texts = (facts, plural(length, "token"), f"{length:,}", "")
    own = next(text for text in texts if width_of(text, 11) <= (room if room <= 150 else room - 60))
    if height >= 36 and left == x + 6:
        canvas.text(left, y + height / 2 - 3, fit(text, room, 11.5, MONO), size=11.5, font=MONO)
        canvas.text(left, y + height / 2 + 12, own, size=11, fill=_FACTS)
        return
    gap = room - width_of(own, 11) - 10 if room > 150 else 0.0
    shown = fit(text, gap if room > 150 else room, 11.5, MONO)
    canvas.text(left, y + height / 2 + 4, shown, size=11.5, font=MONO)
    if gap > 0:
        canvas.text(left + width_of(shown, 11.5, MONO) + 10, y + height / 2 + 4, own, size=11, fill=_FACTS)


def _paint_rest(canvas: Canvas, layout: _Layout, node: int, x: float, y: float) -> None:
    number, tokens = layout.chosen.left_out[node]
    count = layout.left_counts[node]
    text = f"… {number:,} more: {plural(tokens, 'token')}, {plural(count, 'example')}"
    room = _WIDTH - _MARGIN - x - 8
    canvas.path(f"M{x + 4:g} {y + 4:g}v{_LOWEST - 8:g}", stroke="#b4bec8", stroke_width=2, dashes="2 2")
    canvas.text(x + 12, y + _LOWEST / 2 + 4, fit(text, room, 11.5), size=11.5, fill=MUTED)


def _shade(count: int, most: int) -> str:
    if count <= 1:
        return _hex(_ALONE)
    part = math.log(count) / math.log(most)
    light, dark = _SHARED_LIGHT, _SHARED_DARK
    return _hex((*(round(a + (b - a) * part) for a, b in zip(light, dark, strict=True)),))


def _hex(colour: tuple[int, ...]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)
