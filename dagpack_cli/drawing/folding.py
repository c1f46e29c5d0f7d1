"""A session as rows: long stretches of events in which nothing branches are folded into one."""

from __future__ import annotations

from dataclasses import dataclass, field

from dagpack_cli.drawing.events import Session

__all__ = ["Box", "Tree", "grow_tree"]

_SMALL = 24  # events that are all shown
_FOLD = 3  # events in a row that are worth folding


@dataclass(slots=True)
class Box:
    """A row of the picture: one event, or a stretch of them folded."""

    events: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    weight: int = 0  # events in it and below it


@dataclass(slots=True)
class Tree:
    """A session with what its drawing asks for.

    Attributes:
        session: what was read.
        children: of every event, the events below it, in file order.
        depths: of every event, how many are above it.
        boxes: every event is in one of them.
        roots: boxes that nothing is above.
        current_path: the events from a root to the current leaf.
    """

    session: Session
    children: list[list[int]]
    depths: list[int]
    boxes: list[Box]
    roots: list[int]
    current_path: set[int]

    def has_current(self, box: int) -> bool:
        """Return whether the way to the current leaf leads through a box."""
        return self.boxes[box].events[-1] in self.current_path


def grow_tree(session: Session) -> Tree:
    """Return the tree of a session, with the rows in which it is drawn. O(events)."""
    events = session.events
    children: list[list[int]] = [[] for _ in events]
    roots: list[int] = []
    for index, event in enumerate(events):
        (children[event.parent] if event.parent >= 0 else roots).append(index)
    order, depths = list(roots), [0] * len(events)
    for index in order:  # grows while it is read: breadth first
        for child in children[index]:
            depths[child] = depths[index] + 1
        order.extend(children[index])
    path, index = set(), session.current
    while index >= 0:
        path.add(index)
        index = events[index].parent
    tree = Tree(session, children, depths, [], [], path)
    _fold(tree, order)
    return tree


def _fold(tree: Tree, order: list[int]) -> None:
    """Make the boxes: stretches of three or more events with nothing to see are one."""
    events = tree.session.events
    box_of = [-1] * len(events)
    plain = [_is_plain(tree, index) for index in range(len(events))]
    for index in order:
        parent = events[index].parent
        if plain[index] and parent >= 0 and plain[parent]:
            box = box_of[parent]
            tree.boxes[box].events.append(index)
        else:
            box = len(tree.boxes)
            tree.boxes.append(Box([index]))
        box_of[index] = box
    for short in [box for box in tree.boxes if 1 < len(box.events) < _FOLD]:
        for index in short.events[1:]:
            box_of[index] = len(tree.boxes)
            tree.boxes.append(Box([index]))
        del short.events[1:]
    for index in order:
        parent = events[index].parent
        own = box_of[index]
        if parent < 0:
            tree.roots.append(own)
        elif box_of[parent] != own:
            tree.boxes[box_of[parent]].children.append(own)
    for index in reversed(order):
        own = box_of[index]
        tree.boxes[own].weight += 1
        parent = events[index].parent
        if parent >= 0 and box_of[parent] != own:
            tree.boxes[box_of[parent]].weight += tree.boxes[own].weight


def _is_plain(tree: Tree, index: int) -> bool:
    """Return whether an event may be folded away: no root, fork, first of a branch, leaf or landmark."""
    event = tree.session.events[index]
    if len(tree.session.events) <= _SMALL or event.parent < 0 or event.tag or event.kind in ("compaction", "summary"):
        return False
    return len(tree.children[index]) == 1 and len(tree.children[event.parent]) == 1 and index != tree.session.current
