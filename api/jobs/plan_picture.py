"""A plan as a drawing: boxes in layers from left to right, an arrow for each way that records take.

It is SVG for a page of a notebook: lines and texts have the colour of the text around them, so that it can be read on
light and on dark pages.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.engine.errors import HeadraceError
from headrace.engine.plan.plan import Node, walk

__all__ = ["PlanBox", "draw_nodes", "draw_plan", "html_of_plan", "html_of_stream"]

WIDTH, HEIGHT = 190, 52
"""Of a box, in pixels, as all numbers here."""

GAP_X, GAP_Y = 90, 18
MARGIN = 6
DIP = 46
"""How far arrows aim below boxes that they go around; they get three quarters of it."""
MOST_CHARACTERS = 25
"""Of a line in a box; the whole of it is told where the pointer rests."""


@dataclass(frozen=True)
class PlanBox:
    """An operator of a plan.

    Attributes:
        id: Its id.
        name: What it is called.
        note: What stands below, as its parallelism.
        inputs: Ids of the operators before it, each with what is written at the arrow.
        loops_from: Ids of operators behind it that feed back into it; these arrows make no layers.
    """

    id: object
    name: str
    note: str
    inputs: Sequence[tuple[object, str]] = ()
    loops_from: Sequence[object] = ()


def draw_plan(boxes: Sequence[PlanBox], title: str) -> str:
    """Return a plan as SVG; texts of programs are escaped.

    Args:
        boxes: The operators, each behind those that it reads from.
        title: What is drawn, for those who do not see it.
    """
    places = _places(boxes)
    width = max((x for x, _ in places.values()), default=0) + WIDTH + MARGIN
    height = max((y for _, y in places.values()), default=0) + HEIGHT + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'style="max-width:100%;height:auto" fill="none" stroke="currentColor" font-family="sans-serif" '
        f'font-size="12" role="img"><title>{html.escape(title)}</title>'
    ]
    for box in boxes:
        parts += [_arrow(places[source], places[box.id], label) for source, label in box.inputs]
        parts += [_loop(places[source], places[box.id]) for source in box.loops_from]
    parts += [_box(box, *places[box.id]) for box in boxes]
    return "".join([*parts, "</svg>"])


def html_of_plan(plan: str) -> str:
    """Return the drawing of a program.

    Args:
        plan: As ``get_execution_plan`` gives it.
    """
    boxes = []
    for node in json.loads(plan)["nodes"]:
        ways = node.get("predecessors", ())
        boxes.append(
            PlanBox(
                node["id"],
                node["type"],
                f"parallelism {node['parallelism']}" + (f", {node['path']}" if node["path"] else ""),
                [(way["id"], way["ship_strategy"].lower()) for way in ways if way["side"] != "feedback"],
                [way["id"] for way in ways if way["side"] == "feedback"],
            )
        )
    return draw_plan(boxes, "the operators of a program")


def draw_nodes(roots: tuple[Node, ...], note: Callable[[Node], str], title: str) -> str:
    """Return the drawing of a plan of nodes; what is read twice is drawn once.

    Args:
        roots: Its roots.
        note: What stands below the name of each node.
        title: What is drawn, for those who do not see it.
    """
    boxes = [
        PlanBox(node.id, node.name, note(node), [(parent.id, _ship(node, index)) for index, parent in _inputs(node)])
        for node in walk(*roots, into_iterations=False)
    ]
    return draw_plan(boxes, title)


def _inputs(node: Node) -> Iterator[tuple[int, Node]]:
    """What a node reads, each once: a join of a table with itself has it twice."""
    seen: set[int] = set()
    for index, parent in enumerate(node.inputs):
        if parent.id not in seen:
            seen.add(parent.id)
            yield index, parent


def _ship(node: Node, index: int) -> str:
    """How records come over, in a word: by which key the plan says."""
    return repr(node.ships[index]).split(" ", 1)[0] if index < len(node.ships) else "forward"


def html_of_stream(name: str, of_type: object, plan: Callable[[], str]) -> str:
    """Return a stream's type, as far as it is known, above the drawing of the program that it is part of.

    Args:
        name: What kind of stream it is.
        of_type: The type of its records.
        plan: Gives the program's plan, as ``get_execution_plan`` does.
    """
    text = f"<b>{html.escape(name)}</b> of {html.escape(str(of_type))}"
    try:
        drawing = html_of_plan(plan())
    except HeadraceError as error:  # what has been written so far cannot run
        drawing = html.escape(error.message)
    return f"<div>{text}<br>{drawing}</div>"


def _places(boxes: Sequence[PlanBox]) -> dict[object, tuple[int, int]]:
    """Where the upper left corner of each box is: behind all its inputs, and near the middle of their heights."""
    layer_of: dict[object, int] = {}
    layers: list[list[PlanBox]] = []
    for box in boxes:
        layer = max((layer_of[source] + 1 for source, _ in box.inputs), default=0)
        layer_of[box.id] = layer
        layers += [[] for _ in range(layer + 1 - len(layers))]
        layers[layer].append(box)
    rank: dict[object, float] = {}
    places: dict[object, tuple[int, int]] = {}
    for number, layer_boxes in enumerate(layers):
        for index, box in enumerate(sorted(layer_boxes, key=lambda one: _height_of_inputs(one, rank))):
            rank[box.id] = index
            places[box.id] = (MARGIN + number * (WIDTH + GAP_X), MARGIN + index * (HEIGHT + GAP_Y))
    return places


def _height_of_inputs(box: PlanBox, rank: Mapping[object, float]) -> float:
    return sum(rank[source] for source, _ in box.inputs) / len(box.inputs) if box.inputs else 0.0


def _box(box: PlanBox, x: int, y: int) -> str:
    name = box.name if len(box.name) <= MOST_CHARACTERS else f"{box.name[: MOST_CHARACTERS - 1]}…"
    return (
        f'<g><title>{html.escape(box.name)}</title><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" '
        f'fill="currentColor" fill-opacity="0.07"/>{_text(x + WIDTH / 2, y + 22, name, "middle")}'
        f"{_text(x + WIDTH / 2, y + 40, box.note, 'middle', 0.7)}</g>"
    )


def _text(x: float, y: float, text: str, anchor: str, opacity: float = 1) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="currentColor" fill-opacity="{opacity:g}" '
        f'stroke="none">{html.escape(text)}</text>'
    )


def _arrow(source: tuple[int, int], target: tuple[int, int], label: str) -> str:
    x1, y1 = source[0] + WIDTH, source[1] + HEIGHT // 2
    x2, y2 = target[0], target[1] + HEIGHT // 2
    bend = (x2 - x1) // 2
    # One that would go through the boxes between goes below them.
    dip = DIP if x2 - x1 > GAP_X and y1 == y2 else 0
    head = f"M{x2 - 7} {y2 - 4}L{x2} {y2}L{x2 - 7} {y2 + 4}"
    curve = (
        f"C{x1 + GAP_X // 2} {y1 + dip} {x2 - GAP_X // 2} {y2 + dip}" if dip else f"C{x1 + bend} {y1} {x2 - bend} {y2}"
    )
    line = f'<path d="M{x1} {y1}{curve} {x2} {y2}{head}" stroke-opacity="0.6"/>'
    return line + _text(x2 - 12, y2 + (18 if dip else -7), label, "end", 0.7)


def _loop(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + WIDTH // 2, source[1] + HEIGHT
    x2, y2 = target[0] + WIDTH // 2, target[1] + HEIGHT
    return f'<path d="M{x1} {y1}C{x1} {y1 + 30} {x2} {y2 + 30} {x2} {y2}" stroke-opacity="0.6" stroke-dasharray="5 4"/>'
