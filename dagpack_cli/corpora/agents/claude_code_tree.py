"""The tree of a Claude Code session: which entries are one message, and what hangs below what.

The file's tree is one of lines. An answer is a line a block, and every parallel call's result
hangs below the line of its own call, so most of its forks are none. Here the lines of one answer
are one node, the results of its calls are another, and what remains forked is a rewind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dagpack_cli.corpora.agents.claude_code_lines import Entry
from dagpack_cli.corpora.sessions import leaves_of, link_parents, path_to

__all__ = ["Node", "Tree", "grow_tree"]


@dataclass(slots=True)
class Node:
    """One message of the conversation, or the results of one answer's calls.

    Attributes:
        kind: an ``answer``, the ``results`` of its calls, or a user's ``request``.
        parent: the node it hangs below, -1 for none.
        entries: its entries, in the file's order.
        kept: nodes that a compaction kept between the parent and this one.
        answered: of results, the calls they answer.
        siblings: of an answer, its nodes of results: the second begins where a call was answered twice.
    """

    kind: Literal["answer", "results", "request"]
    parent: int
    entries: list[Entry]
    kept: tuple[int, ...] = ()
    answered: set[str] = field(default_factory=set)
    siblings: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Tree:
    """The nodes, a parent before its children."""

    nodes: list[Node]

    def leaves(self) -> list[int]:
        """Return the nodes that nothing hangs below, in the file's order of their last lines."""
        found = leaves_of([node.parent for node in self.nodes])
        return sorted(found, key=lambda number: max(_position(entry) for entry in self.nodes[number].entries))

    def path(self, leaf: int) -> list[int]:
        """Return the nodes from the root to ``leaf``, with those that compactions kept."""
        path: list[int] = []
        for number in path_to([node.parent for node in self.nodes], leaf):
            path.extend(self.nodes[number].kept)
            path.append(number)
        return path


class _Above(NamedTuple):
    """What stands above an entry's children: the last node of the trunk, of a subagent, and what was kept."""

    trunk: int = -1
    agent: int = -1
    kept: tuple[int, ...] = ()


def grow_tree(entries: Sequence[Entry]) -> Tree:
    """Return the tree of a file's entries. O(n), but for what compactions kept.

    Raises:
        DataError: entries are each other's ancestors; it names the first of them.
    """
    parents = link_parents(
        [entry.uuid for entry in entries],
        [entry.parent for entry in entries],
        [entry.where for entry in entries],
        duplicates="first",
    )
    grower = _Grower(entries, parents)
    for number in _parents_first(parents):
        grower.add(number)
    return Tree(grower.nodes)


def _position(entry: Entry) -> tuple[int, int]:
    return entry.place.record, entry.place.line


def _parents_first(parents: Sequence[int]) -> Iterator[int]:
    """Yield the entries that count, a parent before its children, else in their order."""
    done = bytearray(len(parents))
    for start in range(len(parents)):
        trail = []
        number = start
        while number >= 0 and not done[number]:
            done[number] = True
            trail.append(number)
            number = parents[number]
        if parents[start] != -2:
            yield from reversed(trail)


class _Grower:
    """Adds entry by entry, parents first."""

    def __init__(self, entries: Sequence[Entry], parents: Sequence[int]) -> None:
        self.nodes: list[Node] = []
        self._entries = entries
        self._parents = parents
        self._above = [_Above()] * len(entries)
        self._node_of: dict[str, int] = {}
        self._calls: dict[int, set[str]] = {}
        self._answers: dict[tuple[str, str], int] = {}
        self._twins: dict[tuple[object, ...], int] = {}
        self._kept_by: dict[str, list[int]] = {}
        for number, entry in enumerate(entries):
            if entry.segment is not None:
                for name in {entry.segment.anchor, entry.segment.tail}:
                    self._kept_by.setdefault(name, []).append(number)

    def add(self, number: int) -> None:
        """Put an entry into the node that it belongs to."""
        entry = self._entries[number]
        above = self._above_of(number)
        if entry.boundary or entry.summary:
            above = _Above(kept=above.kept) if entry.summary else _Above()
        if entry.kind == "link":
            self._above[number] = above
            return
        parent = above.agent if entry.chain else above.trunk
        if entry.chain and parent >= 0 and self.nodes[parent].entries[0].chain != entry.chain:
            parent = -1
        node = self._node_for(entry, parent, above.kept)
        self._node_of.setdefault(entry.uuid, node)
        self._above[number] = _Above(above.trunk, node) if entry.chain else _Above(node, above.agent)

    def _above_of(self, number: int) -> _Above:
        """Return what is above an entry, after the compactions that kept what stands there."""
        parent = self._parents[number]
        if parent < 0:
            return _Above()
        above = self._above[parent]
        name = self._entries[parent].uuid
        for boundary in reversed(self._kept_by.get(name, ())):
            segment = self._entries[boundary].segment
            if segment is None or number < boundary or self._entries[number].uuid == segment.head:
                continue
            kept = self._segment(segment.head, segment.tail)
            if kept and (segment.anchor in self._node_of or name == segment.anchor):
                return _Above(self._node_of.get(segment.anchor, -1), above.agent, kept)
        return above

    def _segment(self, head: str, tail: str) -> tuple[int, ...]:
        """Return the nodes from one entry's to another's, none where the first is not above the second."""
        first, number = self._node_of.get(head, -1), self._node_of.get(tail, -1)
        found = []
        while number >= 0 and first >= 0:
            found.append(number)
            if number == first:
                return tuple(reversed(found))
            number = self.nodes[number].parent
        return ()

    def _node_for(self, entry: Entry, parent: int, kept: tuple[int, ...]) -> int:
        # One message written twice at one time below one parent is a replay, not a fork.
        twin = (parent, entry.chain, entry.kind, entry.time, entry.message_id, tuple(entry.blocks))
        found = self._twins.get(twin, -1) if entry.time else -1
        if found >= 0:
            return found
        found = self._answer_for(entry, parent, kept) if entry.kind == "assistant" else self._results_for(entry, parent)
        if found < 0:
            found = self._new("request" if entry.kind == "user" else "answer", parent, entry, kept)
        self._twins[twin] = found
        return found

    def _new(
        self, kind: Literal["answer", "results", "request"], parent: int, entry: Entry, kept: tuple[int, ...] = ()
    ) -> int:
        self.nodes.append(Node(kind, parent, [entry], kept))
        return len(self.nodes) - 1

    def _answer_for(self, entry: Entry, parent: int, kept: tuple[int, ...]) -> int:
        """Return the node of the answer whose block an entry is: the one above, with results between or not."""
        key = (entry.chain, entry.message_id)
        found = self._answers.get(key, -1) if entry.message_id else -1
        if found >= 0:
            node = self.nodes[found]
            between = parent >= 0 and self.nodes[parent].kind == "results" and self.nodes[parent].parent == found
            if parent in (found, node.parent) or between:
                if not any(known.time == entry.time and known.blocks == entry.blocks for known in node.entries[-64:]):
                    node.entries.append(entry)
            else:
                found = -1  # A copy of the answer elsewhere, below another context.
        if found < 0:
            found = self._new("answer", parent, entry, kept)
            self._answers[key] = found
        calls = self._calls.setdefault(found, set())
        calls.update(block.call_id for block in entry.blocks if block.kind == "call")
        return found

    def _results_for(self, entry: Entry, parent: int) -> int:
        """Return the node of results that an entry joins or begins, -1 for none."""
        if parent < 0:
            return -1
        above = self.nodes[parent]
        answer = above.parent if above.kind == "results" else parent
        calls = self._calls.get(answer, set())
        answered = {block.call_id for block in entry.blocks if block.kind == "result"}
        if above.kind == "results" and not answered and entry.injected and entry.source_call in calls:
            above.entries.append(entry)
            return parent
        if not answered or not answered <= calls:
            return -1
        choices = [parent] if above.kind == "results" else self.nodes[answer].siblings
        for number in choices:
            if not answered & self.nodes[number].answered:
                self.nodes[number].entries.append(entry)
                self.nodes[number].answered |= answered
                return number
        found = self._new("results", parent, entry)
        self.nodes[found].answered = answered
        self.nodes[answer].siblings.append(found)
        return found
