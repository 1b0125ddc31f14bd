"""Why a window does not fire: where event time is, what waits for it, and which part of the input holds it back.

All is said from a `JobView` alone. An operator that waits for event time is asked whose watermarks come to it: those of
the nearest operators above that make some. The subtask of them that is furthest behind holds the others back, and in it
the split that is.

Source: Flink's web dashboard ("Watermarks"), its ``currentInputWatermark``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

from headrace.engine.functions.event_time_parts import OperatorEventTime, WatermarkPart
from headrace.engine.protocol.views import JobView, OperatorView, VertexView
from headrace.state.identifiers import VertexId

__all__ = ["explain_event_time"]

_END_MS = 2**62
"""Later than this is the end of event time; before its negative, no event time at all."""

_MOST_MAKERS = 3
"""So many subtasks are named that hold others back."""


@dataclass(frozen=True)
class _Maker:
    """A subtask that makes watermarks."""

    vertex: VertexView
    operator: OperatorView
    state: OperatorEventTime

    @property
    def is_idle(self) -> bool:
        """Whether it holds no other back, as nothing has come to it for so long."""
        return bool(self.state.parts) and all(part.is_idle for part in self.state.parts)

    @property
    def has_ended(self) -> bool:
        return self.state.watermark_ms is not None and self.state.watermark_ms >= _END_MS

    @property
    def place(self) -> str:
        return f"{self.operator.name} {self.state.subtask + 1}/{self.vertex.parallelism}"


def explain_event_time(view: JobView) -> str:
    """Say of each operator that waits for event time how far that is, and what holds it back.

    Args:
        view: The job.
    """
    vertices = {vertex.vertex_id: vertex for vertex in view.vertices}
    lines: list[str] = []
    for vertex in view.vertices:
        for place, operator in enumerate(vertex.operators):
            first = _first_to_wait(operator)
            if first is not None:
                lines += _explained(vertex, place, first, vertices)
    return "\n".join(lines) or "no operator waits for event time"


def _first_to_wait(operator: OperatorView) -> tuple[int, int, int | None] | None:
    """The subtask that waits for the earliest time: that time, the subtask, its watermark. None if none waits."""
    waiting = [
        (state.next_ms, state.subtask, state.watermark_ms)
        for state in operator.event_time
        if state.next_ms is not None and state.next_ms < _END_MS and not _is_past(state.watermark_ms, state.next_ms)
    ]
    return min(waiting, key=lambda one: one[:2], default=None)


def _explained(
    vertex: VertexView, place: int, first: tuple[int, int, int | None], vertices: dict[VertexId, VertexView]
) -> Iterator[str]:
    next_ms, subtask, watermark_ms = first
    where = f"{vertex.operators[place].name} {subtask + 1}/{vertex.parallelism}"
    short = "" if watermark_ms is None else f", {_duration(next_ms - watermark_ms)} short of it"
    yield f"{where} waits for event time {_text(next_ms)}; it is at {_text(watermark_ms)}{short}"
    makers = _makers_above(vertex, place, vertices)
    live = sorted((maker for maker in makers if not maker.has_ended), key=_by_watermark)
    active = [maker for maker in live if not maker.is_idle]
    behind = [maker for maker in active if not _is_past(maker.state.watermark_ms, next_ms)]
    furthest_ms = max(
        (maker.state.watermark_ms for maker in active if maker.state.watermark_ms is not None), default=None
    )
    for maker in behind[:_MOST_MAKERS]:
        reached_ms = maker.state.watermark_ms
        yield f"  {maker.place} has come to {_text(reached_ms)}{_behind(reached_ms, furthest_ms)}"
        yield from _parts(maker, next_ms)
    if len(behind) > _MOST_MAKERS:
        yield f"  and {len(behind) - _MOST_MAKERS} more that are not there yet"
    if len(active) < len(live):
        yield f"  {len(live) - len(active)} that make watermarks are idle, and hold nothing back"
    if not makers:
        yield "  no operator above it makes watermarks"
    elif not behind and active:
        yield "  all that make watermarks above it are past that: it is on its way; look for backpressure"
    elif not live:
        yield "  all input above it has ended: it is on its way"


def _parts(maker: _Maker, next_ms: int) -> Iterator[str]:
    state = maker.state
    if not state.parts:
        yield "    it has no split to read: others wait until it gets one, or is idle by an idle timeout"
        return
    known = [part.watermark_ms for part in state.parts if part.watermark_ms is not None]
    for part in state.parts[:_MOST_MAKERS]:
        if part.is_idle or _is_past(part.watermark_ms, next_ms):
            continue
        yield f"    {_part_text(part, max(known, default=None))}"
    if state.num_parts > _MOST_MAKERS:
        yield f"    ({state.num_parts} in all)"


def _part_text(part: WatermarkPart, furthest_ms: int | None) -> str:
    name = f"split {part.name!r}" if part.name else "what comes to it"
    held = "; it is not read, as it is ahead of its alignment group" if part.is_held else ""
    if part.watermark_ms is None:
        return f"{name} has brought no record since {_text(part.risen_ms)}, by the clock{held}"
    at = f"{name} is at {_text(part.watermark_ms)} since {_text(part.risen_ms)}, by the clock"
    return f"{at}{_behind(part.watermark_ms, furthest_ms)}{held}"


def _by_watermark(maker: _Maker) -> tuple[bool, int, str]:
    at = maker.state.watermark_ms
    return at is not None, at or 0, maker.place


def _makers_above(vertex: VertexView, place: int, vertices: dict[VertexId, VertexView]) -> list[_Maker]:
    """The subtasks whose watermarks come to an operator: of the nearest operators that make some, by every way."""
    found: list[_Maker] = []
    todo, seen = [(vertex, place)], {vertex.vertex_id}
    while todo:
        one, below = todo.pop()
        maker = next((i for i in reversed(range(below)) if _makes(one, i)), None)
        if maker is not None:
            operator = one.operators[maker]
            found += [_Maker(one, operator, state) for state in operator.event_time]
            continue
        for above in one.inputs:
            if above not in seen and above in vertices:
                seen.add(above)
                todo.append((vertices[above], len(vertices[above].operators)))
    return found


def _makes(vertex: VertexView, place: int) -> bool:
    is_source = place == 0 and not vertex.inputs
    return is_source or any(state.num_parts for state in vertex.operators[place].event_time)


def _is_past(watermark_ms: int | None, time_ms: int) -> bool:
    return watermark_ms is not None and watermark_ms >= time_ms


def _behind(watermark_ms: int | None, furthest_ms: int | None) -> str:
    if watermark_ms is None or furthest_ms is None or furthest_ms <= watermark_ms:
        return ""
    return f", {_duration(furthest_ms - watermark_ms)} behind the furthest"


def _duration(milliseconds: int) -> str:
    """A duration as people read it: ``350 ms``, ``12.5 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if milliseconds < 1_000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1_000:.1f} s"
    units = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
    first = next(i for i, (size, _name) in enumerate(units) if milliseconds >= size)
    (size, name), (small, small_name) = units[first : first + 2]
    rest = milliseconds % size // small
    return f"{milliseconds // size} {name}" + (f" {rest} {small_name}" if rest else "")


def _text(time_ms: int | None) -> str:
    """A time in UTC, milliseconds only where there are some."""
    if time_ms is None or time_ms <= -_END_MS:
        return "no event time yet"
    if time_ms >= _END_MS:
        return "its end"
    try:
        time = datetime.fromtimestamp(time_ms / 1_000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return time.strftime("%Y-%m-%d %H:%M:%S") + (f".{time_ms % 1_000:03d}" if time_ms % 1_000 else "")
