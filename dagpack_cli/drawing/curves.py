"""Where nodes of a graph stand on the page, and the curves that join them."""

from __future__ import annotations

from dataclasses import dataclass

from dagpack_cli.drawing.layers import Edge, Graph, Unit
from dagpack_cli.drawing.lettering import clean, width_of

__all__ = ["MARGIN", "MOST_LAYERS", "Curve", "Plan", "Point", "curve_of", "fits", "plan_of", "point_at", "size_of"]

MARGIN = 28.0
_WIDEST = 1180.0
_SIZES = ((72.0, 118.0), (56.0, 96.0), (44.0, 78.0), (36.0, 62.0))  # of a node, and from node to node
_ROOM = _WIDEST - 2 * MARGIN
_HIGHEST = 1800.0  # where smaller nodes are the better choice
_LABEL = 34.0  # height of a node without a grid
MOST_LAYERS = int((_ROOM - _SIZES[1][0]) // _SIZES[1][1]) + 1  # side by side, nodes of a good size

Point = tuple[float, float]
Curve = tuple[Point, Point, Point, Point]


@dataclass(slots=True)
class Plan:
    """Sizes of a picture, in pixels.

    Attributes:
        node, tall: width and height of a node.
        step: from layer to layer.
        cross: from lane to lane.
        down: layers follow one another downwards, not to the right.
        left, top: the corner of the first node.
    """

    node: float
    tall: float
    step: float
    cross: float
    down: bool
    left: float
    top: float

    def centre(self, unit: Unit) -> Point:
        """Return where the middle of a node is."""
        along, across = unit.layer * self.step, unit.lane * self.cross
        x, y = (across, along) if self.down else (along, across)
        return self.left + self.node / 2 + x, self.top + self.tall / 2 + y


def fits(graph: Graph) -> bool:
    """Return whether a graph can be drawn without nodes that overlap: one unit always can."""
    (node, step), (across, aside) = _SIZES[-2], _SIZES[-1]
    return node + (graph.num_layers - 1) * step <= _ROOM or across + (graph.num_lanes - 1) * aside <= _ROOM


def plan_of(graph: Graph, top: float, *, squares: bool) -> Plan:
    """Choose the direction and the size of nodes: large ones that fit the width of a page.

    Args:
        graph: it `fits`.
        top: where its first node begins.
        squares: nodes are as high as they are wide, as grids need.
    """
    longest = max((width_of(clean(" ".join(edge.actions)), 12) for edge in graph.edges), default=0.0)
    words = min(longest + 30, 110.0)  # between two nodes, so that an action leaves its arrow to be seen
    plans: list[Plan] = []
    for node, step in _SIZES[:3]:
        tall = node if squares else _LABEL
        for along in (max(step, node + words), step):
            if node + (graph.num_layers - 1) * along <= _ROOM:
                plans.append(Plan(node, tall, along, tall + 42, False, MARGIN, top))
                break
    for node, step in _SIZES if not plans else ():
        tall = node if squares else _LABEL
        if node + (graph.num_lanes - 1) * step <= _ROOM:
            plans.append(Plan(node, tall, tall + 50, step, True, MARGIN, top))
    return next((plan for plan in plans if size_of(graph, plan)[1] - top <= _HIGHEST), plans[-1])


def size_of(graph: Graph, plan: Plan) -> Point:
    """Return width and height of the picture."""
    layers, lanes = (graph.num_layers - 1) * plan.step, (graph.num_lanes - 1) * plan.cross
    across, along = (lanes, layers) if plan.down else (layers, lanes)
    back = 22 if any(_is_back(graph, edge) for edge in graph.edges) else 0
    return max(560.0, 2 * MARGIN + plan.node + across + back), plan.top + plan.tall + along + 38 + back


def _is_back(graph: Graph, edge: Edge) -> bool:
    return graph.units[edge.target].layer <= graph.units[edge.source].layer


def curve_of(plan: Plan, graph: Graph, edge: Edge, aside: float = 0.0) -> Curve:
    """Return the control points of an edge; ``aside`` moves it off the middle."""
    source, target = graph.units[edge.source], graph.units[edge.target]
    a, b = plan.centre(source), plan.centre(target)
    half_along, half_across = plan.node / 2, plan.tall / 2
    if plan.down:  # as if layers went to the right: the axes change places, and back below
        a, b, half_along, half_across = a[::-1], b[::-1], half_across, half_along
    if _is_back(graph, edge):
        curve = _curve_back(a, b, half_along, half_across, plan.step, aside)
    else:
        start, end = (a[0] + half_along, a[1] + aside), (b[0] - half_along - 5, b[1] + aside)
        bend = max(18.0, (end[0] - start[0]) / 2)
        bow = plan.cross * 0.75 if target.layer - source.layer > 1 and source.lane == target.lane else 0.0
        curve = start, (start[0] + bend, start[1] - bow), (end[0] - bend, end[1] - bow), end
    return (curve[0][::-1], curve[1][::-1], curve[2][::-1], curve[3][::-1]) if plan.down else curve


def _curve_back(a: Point, b: Point, half_along: float, half_across: float, step: float, aside: float) -> Curve:
    """Return an edge to the same layer or an earlier one: from corner to corner, clear of the names."""
    (ax, ay), (bx, by) = a, b
    corner = half_along - 9 + aside
    if ay == by:
        start, end = (ax - corner, ay + half_across), (bx + corner, by + half_across)
        low = start[1] + 24 + min(40.0, 0.06 * (ax - bx)) + aside
        return start, (start[0] - 4, low), (end[0] + 4, low), (end[0], end[1] + 4)
    down = 1.0 if by > ay else -1.0
    side = -1.0 if bx < ax else 1.0
    start, end = (ax + side * corner, ay + down * half_across), (bx - side * corner, by - down * (half_across + 5))
    if ax == bx:  # around whatever stands between them in the layer
        end = (bx + corner, end[1])
        bow = step - 2 * half_along
        return start, (start[0] + bow, start[1] + down * 20), (end[0] + bow, end[1] - down * 20), end
    reach = max(24.0, abs(end[1] - start[1]) / 2)
    return start, (start[0], start[1] + down * reach), (end[0], end[1] - down * reach), end


def point_at(curve: Curve, t: float) -> Point:
    """Return the point of a cubic curve at ``t`` from 0 to 1."""
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    x, y = (sum(weight * point[axis] for weight, point in zip(weights, curve, strict=True)) for axis in (0, 1))
    return x, y
