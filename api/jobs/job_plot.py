"""How a job goes on, drawn for a notebook: records per second, event time behind the clock, checkpoints.

Drawings are SVG in the cell's output, so they need no library and stay when the notebook is closed. What a program has
named is escaped.
"""

from __future__ import annotations

import html
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.engine.protocol.details import CheckpointView
from headrace.engine.protocol.views import JobView

from .frames import event_time_of
from .progress import format_count, summary_line

__all__ = ["JobPlot"]

SAMPLE_S = 1.0

MOST_SAMPLES = 300
"""Five minutes; older ones are forgotten."""

COLOURS = ("#2f6fde", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#64748b")
"""Of as many operator chains; the others are not drawn, which is said."""

WIDTH, HEIGHT = 640, 120
LEFT, RIGHT, TOP, BOTTOM = 56, 8, 8, 8


@dataclass(frozen=True, slots=True)
class _Line:
    """Points of a chart: x from 0 to 1, y from 0 on."""

    name: str
    points: Sequence[tuple[float, float]]
    newest: str


class JobPlot:
    """What was seen of a job, and its drawing."""

    def __init__(self) -> None:
        # Epoch seconds and what was seen then, oldest first.
        self._seen: deque[tuple[float, JobView]] = deque(maxlen=MOST_SAMPLES)
        self._checkpoints: Sequence[CheckpointView] = ()

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time to look again."""
        return not self._seen or now_s - self._seen[-1][0] >= SAMPLE_S

    def take(self, view: JobView, checkpoints: Sequence[CheckpointView], now_s: float) -> None:
        """Note how the job is now.

        Args:
            view: The job.
            checkpoints: Those that have ended, newest first.
            now_s: Epoch seconds.
        """
        self._seen.append((now_s, view))
        self._checkpoints = checkpoints

    def html(self) -> str:
        """Return the drawing of what was seen."""
        if not self._seen:
            return ""
        newest = self._seen[-1][1]
        shown = newest.vertices[: len(COLOURS)]
        lags = [self._lag(vertex.vertex_id, vertex.name) for vertex in shown]
        parts = [f"<b>{html.escape(summary_line(newest))}</b>"]
        parts.append(_chart("records read per second", [self._rate(one.vertex_id, one.name) for one in shown], "/s"))
        if any(line.points for line in lags):
            parts.append(_chart("event time behind the clock", lags, " s"))
        durations = [one for one in reversed(self._checkpoints) if one.duration_ms is not None]
        if durations:
            parts.append(_chart("duration of the newest checkpoints", [_durations(durations)], " ms"))
        if len(newest.vertices) > len(shown):
            parts.append(f"<div>the first {len(shown)} of {len(newest.vertices)} operator chains</div>")
        return f"<div>{''.join(parts)}</div>"

    def _rate(self, vertex_id: str, name: str) -> _Line:
        rates = [
            (at_s, vertex.records_in_per_s)
            for at_s, view in self._seen
            for vertex in view.vertices
            if vertex.vertex_id == vertex_id
        ]
        return self._line(name, rates, "/s")

    def _lag(self, vertex_id: str, name: str) -> _Line:
        lags = [
            (at_s, max(0.0, at_s - watermark_ms / 1_000))
            for at_s, view in self._seen
            for vertex in view.vertices
            if vertex.vertex_id == vertex_id and (watermark_ms := event_time_of(vertex.watermark_ms)) is not None
        ]
        return self._line(name, lags, " s")

    def _line(self, name: str, values: Sequence[tuple[float, float]], unit: str) -> _Line:
        began_s, ended_s = self._seen[0][0], self._seen[-1][0]
        length_s = max(ended_s - began_s, SAMPLE_S)
        points = [((at_s - began_s) / length_s, value) for at_s, value in values]
        return _Line(name, points, f"{format_count(values[-1][1])}{unit}" if values else "")


def _durations(checkpoints: Sequence[CheckpointView]) -> _Line:
    values = [float(one.duration_ms or 0) for one in checkpoints]
    points = [(i / max(len(values) - 1, 1), value) for i, value in enumerate(values)]
    return _Line(f"checkpoint {checkpoints[-1].checkpoint_id}", points, f"{values[-1]:,.0f} ms")


def _chart(title: str, lines: Sequence[_Line], unit: str) -> str:
    """Lines over time, from 0 to the largest value, with a legend that has the newest ones."""
    most = max((value for line in lines for _, value in line.points), default=0.0) or 1.0
    across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    base = HEIGHT - BOTTOM
    drawn = [f"<line x1='{LEFT}' y1='{base}' x2='{WIDTH - RIGHT}' y2='{base}' stroke='#94a3b8'/>"]
    for y, text in ((TOP + 10, f"{format_count(most)}{unit}"), (base, "0")):
        drawn.append(f"<text x='{LEFT - 6}' y='{y}' text-anchor='end' font-size='11' fill='#64748b'>{text}</text>")
    legend = []
    for line, colour in zip(lines, COLOURS, strict=False):
        if not line.points:
            continue
        places = [f"{LEFT + x * across:.1f},{base - value / most * up:.1f}" for x, value in line.points]
        if len(places) == 1:
            places.append(places[0])
        drawn.append(
            f"<polyline points='{' '.join(places)}' fill='none' stroke='{colour}' stroke-width='2' "
            "stroke-linecap='round' stroke-linejoin='round'/>"
        )
        text = f"{html.escape(line.name[:60])} <b>{line.newest}</b>"
        legend.append(f"<span style='margin-right:1em'><span style='color:{colour}'>&#9632;</span> {text}</span>")
    picture = (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}' role='img' "
        f"aria-label='{html.escape(title)}'>{''.join(drawn)}</svg>"
    )
    return f"<div style='margin-top:.6em'>{html.escape(title)}</div>{picture}<div>{''.join(legend)}</div>"
