"""Where the states of a graph stand: in layers by depth, in lanes by how they were first reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dagpack_cli.drawing.recordings import Run

__all__ = ["Edge", "Graph", "Unit", "graph_of"]

_FOLD = 3  # states in a row, with nothing to see, that are worth folding


@dataclass(slots=True)
class Edge:
    """All transitions from one unit to another: their actions, the runs that make them.

    ``first`` is whether it is by this edge that the target is first reached, breadth first.
    """

    source: int
    target: int
    actions: dict[str, None] = field(default_factory=dict)  # in order of first appearance
    runs: dict[int, None] = field(default_factory=dict)
    first: bool = False


@dataclass(slots=True)
class Unit:
    """One state, or several in a row folded into one; the layer and the lane where it stands."""

    states: list[int]
    actions: list[str] = field(default_factory=list)  # between the folded states
    layer: int = 0
    lane: int = 0
    loops: list[str] = field(default_factory=list)  # actions that change nothing
    hidden: int = 0  # units that follow it and are not drawn


@dataclass(slots=True)
class Graph:
    """What is drawn: units in the order of the layers, edges between them, sizes in layers and lanes."""

    units: list[Unit]
    edges: list[Edge]
    num_layers: int
    num_lanes: int
    hidden_states: int

    @property
    def is_dense(self) -> bool:
        """Return whether there are so many edges that only the first to every unit can be told apart."""
        return len(self.edges) > 3 * len(self.units) + 10


def graph_of(runs: Sequence[Run], num_states: int, *, keep: set[int], max_layers: int, limit: int) -> Graph:
    """Return the graph of runs, folded where it has more than ``max_layers`` layers.

    Args:
        runs: state numbers and the actions that led to them.
        num_states: how many states there are.
        keep: states that are not folded away.
        max_layers: layers that fit side by side.
        limit: most units; the ones farthest from the start are left out and counted.

    Time O(steps of all runs).
    """
    edges, loops = _edges(runs)
    starts = list(dict.fromkeys(run.states[0] for run in runs if run.states))
    units = [Unit([state]) for state in range(num_states)]
    of_state = list(range(num_states))
    if _num_layers(num_states, edges, starts) > max_layers or num_states > limit:
        kept = keep | {run.states[-1] for run in runs if run.states} | set(starts)
        units, folded, of_state = _folded(num_states, edges, kept, gently=True)
        if _num_layers(len(units), folded, [of_state[state] for state in starts]) > max_layers:
            units, folded, of_state = _folded(num_states, edges, kept, gently=False)
        edges, starts = folded, [of_state[state] for state in starts]
    for state, actions in loops.items():
        units[of_state[state]].loops += actions
    return _placed(units, edges, list(dict.fromkeys(starts)), limit)


def _edges(runs: Sequence[Run]) -> tuple[list[Edge], dict[int, list[str]]]:
    """Return the transitions that change the state, merged by the states they join, and the others."""
    edges: dict[tuple[int, int], Edge] = {}
    loops: dict[int, dict[str, None]] = {}
    for number, run in enumerate(runs):
        for at in range(1, len(run.states)):
            source, target, action = run.states[at - 1], run.states[at], run.actions[at] or ""
            if source == target:
                loops.setdefault(source, {})[action] = None
                continue
            edge = edges.setdefault((source, target), Edge(source, target))
            edge.runs[number] = None
            if action:
                edge.actions[action] = None
    return list(edges.values()), {state: list(actions) for state, actions in loops.items()}


def _layers(count: int, edges: Sequence[Edge], starts: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Return each node's distance from the starts, the one it is reached from, and all in that order."""
    following: list[list[int]] = [[] for _ in range(count)]
    for edge in edges:
        following[edge.source].append(edge.target)
    layers, above = [-1] * count, [-1] * count
    order = list(starts)
    for node in starts:
        layers[node] = 0
    for node in order:  # grows while it is read
        for target in following[node]:
            if layers[target] < 0:
                layers[target], above[target] = layers[node] + 1, node
                order.append(target)
    return layers, above, order


def _num_layers(count: int, edges: Sequence[Edge], starts: Sequence[int]) -> int:
    return max(_layers(count, edges, starts)[0], default=0) + 1


def _folded(
    count: int, edges: Sequence[Edge], keep: set[int], *, gently: bool
) -> tuple[list[Unit], list[Edge], list[int]]:
    """Return the units where stretches of states that one way leads through are one, and the edges left.

    Gently, the first state behind a fork and the last before ways meet stay too.
    """
    into: list[list[int]] = [[] for _ in range(count)]
    out: list[list[int]] = [[] for _ in range(count)]
    for index, edge in enumerate(edges):
        into[edge.target].append(index)
        out[edge.source].append(index)

    single = [len(into[state]) == 1 and len(out[state]) == 1 and state not in keep for state in range(count)]

    def is_plain(state: int) -> bool:
        if not single[state]:
            return False
        if not gently:
            return True
        before, after = edges[into[state][0]].source, edges[out[state][0]].target
        return len(out[before]) == 1 and len(into[after]) == 1

    plain = [is_plain(state) for state in range(count)]
    units: list[Unit] = []
    of_state = [-1] * count
    for state in range(count):
        if of_state[state] >= 0 or (plain[state] and plain[edges[into[state][0]].source]):
            continue
        stretch, inner = [state], []
        while plain[state] and plain[edges[out[stretch[-1]][0]].target]:
            edge = edges[out[stretch[-1]][0]]
            if edge.target == state:
                break
            inner.append(" ".join(edge.actions))
            stretch.append(edge.target)
        folded = [Unit(stretch, inner)] if len(stretch) >= _FOLD else [Unit([each]) for each in stretch]
        for unit in folded:
            for each in unit.states:
                of_state[each] = len(units)
            units.append(unit)
    for state in range(count):  # a ring of plain states has no first one
        if of_state[state] < 0:
            of_state[state] = len(units)
            units.append(Unit([state]))
    kept = []
    for edge in edges:
        source, target = of_state[edge.source], of_state[edge.target]
        if source != target:
            kept.append(Edge(source, target, edge.actions, edge.runs))
    return units, kept, of_state


def _placed(units: list[Unit], edges: list[Edge], starts: list[int], limit: int) -> Graph:
    """Give every unit its layer and lane, nearest first; leave out what exceeds the limit."""
    layers, above, order = _layers(len(units), edges, starts)
    chosen = order[:limit]
    number = {unit: index for index, unit in enumerate(chosen)}
    below: dict[int, list[int]] = {unit: [] for unit in [-1, *chosen]}
    for unit in chosen:
        below[above[unit]].append(unit)
    lane_of = _lanes(below, layers)
    lanes = max(lane_of.values(), default=0) + 1
    for unit in chosen:
        units[unit].layer, units[unit].lane = layers[unit], lane_of[unit]
    shown = []
    hidden: dict[int, set[int]] = {}
    for edge in edges:
        if edge.source in number and edge.target in number:
            first = above[edge.target] == edge.source
            shown.append(Edge(number[edge.source], number[edge.target], edge.actions, edge.runs, first))
        elif edge.source in number:
            hidden.setdefault(edge.source, set()).add(edge.target)
    for unit, targets in hidden.items():
        units[unit].hidden = len(targets)
    left_out = sum(len(units[unit].states) for unit in order[limit:])
    return Graph(
        [units[unit] for unit in chosen], shown, max((layers[u] for u in chosen), default=0) + 1, lanes, left_out
    )


def _lanes(below: dict[int, list[int]], layers: Sequence[int]) -> dict[int, int]:
    """Return a lane for every unit of a forest (its roots are below -1).

    A first child goes straight on. Every further one begins a branch in the nearest lane beyond its
    parent's that is free over all its length; those that leave last are placed first, nearest.
    """
    lanes: dict[int, int] = {}
    busy: list[list[tuple[int, int]]] = []  # by lane, the layers taken: first, last
    todo = [(root, -1) for root in reversed(below[-1])]
    while todo:
        head, beside = todo.pop()
        chain = [head]
        while below[chain[-1]]:
            chain.append(below[chain[-1]][0])
        first, last = layers[head] - (beside >= 0), layers[chain[-1]]
        lane = beside + 1
        while lane < len(busy) and any(start <= last and first <= end for start, end in busy[lane]):
            lane += 1
        busy += [[] for _ in range(lane + 1 - len(busy))]
        busy[lane].append((first + (beside >= 0), last))
        lanes |= dict.fromkeys(chain, lane)
        todo.extend((child, lane) for unit in chain for child in reversed(below[unit][1:]))
    return lanes
