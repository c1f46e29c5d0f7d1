"""Episodes of games: the nodes of a run in order, cut where a transition is missing or left out.

A node is a state paired with the action that produced it. Nodes that follow one another in an
example are a transition that happened, so an example ends wherever that is not known: at a rule
that drops the transition, at a state that nobody observed, at a record that could not be read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dagpack_cli.corpora.games.droprules import DropRule, is_dropped
from dagpack_cli.corpora.records import Place

__all__ = ["Episode", "Part", "node_of"]

Node = TypeVar("Node")


def node_of(action: bytes | None, state: bytes) -> bytes:
    """Return the canonical JSON of a state with the action that produced it, from that of both.

    >>> node_of(b'"up"', b"1"), node_of(None, b"1")
    (b'{"action":"up","state":1}', b'{"state":1}')
    """
    return b'{"state":' + state + b"}" if action is None else b'{"action":' + action + b',"state":' + state + b"}"


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes ``start`` to ``end``, half-open, of an episode, and the transitions lost beside them."""

    start: int
    end: int
    dropped: int


@dataclass(slots=True)
class Episode(Generic[Node]):
    """What is known of a run so far.

    Attributes:
        place: of its first record.
        id: its name.
        damage: records of the file that could not be read when this one last went on; where that
            has grown, one of them may have stood between.
        nodes: whatever the format keeps of each state that was observed.
        cuts: ``(number of nodes before it, transitions lost there)``, ascending.
        unseen: states that were not observed since the last node.
        lead: states that were not observed before the first node.
        state: canonical JSON of the last state.
    """

    place: Place
    id: str
    damage: int
    nodes: list[Node] = field(default_factory=list)
    cuts: list[tuple[int, int]] = field(default_factory=list)
    unseen: int = 0
    lead: int = 0
    state: bytes = b""

    def follows(self, damage: int) -> bool:
        """Return whether the next state is known to come right after the last node."""
        return bool(self.nodes) and damage == self.damage and not self.unseen

    def add(self, node: Node, state: bytes, action: bytes | None, *, rules: tuple[DropRule, ...], damage: int) -> None:
        """Append a node.

        Args:
            node: what is kept of it.
            state: canonical JSON of its state.
            action: canonical JSON of the action that produced it, None for none.
            rules: transitions that are left out.
            damage: records of the file that could not be read so far.
        """
        if not self.nodes:
            self.lead = self.unseen
        elif not self.follows(damage):
            self.cuts.append((len(self.nodes), self.unseen + 1 if self.unseen else 0))
        elif is_dropped(rules, self.state, state, action):
            self.cuts.append((len(self.nodes), 1))
        self.unseen = 0
        self.nodes.append(node)
        self.state = state
        self.damage = damage

    def miss(self) -> None:
        """Note a state that was not observed: neither the transition into it nor the one out of it is known."""
        self.unseen += 1

    def parts(self) -> Iterator[Part]:
        """Yield the ranges of nodes between the cuts; of an episode without nodes, none."""
        if not self.nodes:
            return
        bounds = [(0, 0), *self.cuts, (len(self.nodes), self.unseen)]
        for (start, _), (end, lost) in itertools.pairwise(bounds):
            yield Part(start, end, lost if start else lost + self.lead)
