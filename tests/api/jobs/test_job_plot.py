"""The drawing of how a job goes on: its points against what was seen, and what is left out."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from headrace.engine.protocol.details import CheckpointView
from headrace.engine.protocol.states import CheckpointStatus, JobStatus
from headrace.engine.protocol.views import JobView, VertexView
from headrace.jobs import job_plot
from headrace.jobs.job_plot import JobPlot


def vertex(name, rate, watermark_ms=None):
    return VertexView(name, name, 1, {}, 0, 0, rate, 0.0, 0.0, 0.0, 0.0, watermark_ms)


def view(*vertices):
    return JobView(
        job_id="j", name="orders", state=JobStatus.RUNNING, version=1, started_ms=0, ended_ms=None, vertices=vertices
    )


def charts(plot):
    """The points of each line of each chart, by the chart's title."""
    page = ET.fromstring(plot.html())
    return {
        one.get("aria-label"): [
            [tuple(float(number) for number in point.split(",")) for point in line.get("points").split()]
            for line in one.iter("polyline")
        ]
        for one in page.iter("svg")
    }


def test_lines_follow_what_was_seen_from_zero_to_the_largest():
    plot = JobPlot()
    assert plot.html() == ""
    checkpoints = [CheckpointView(n, CheckpointStatus.COMPLETED, False, False, 0, 0, 1, (), path="p") for n in (2, 1)]
    for second, rate in ((10, 0.0), (12, 50.0), (14, 100.0)):
        assert plot.is_due(second)
        plot.take(view(vertex("read", rate, 8_000), vertex("sum", 2 * rate)), checkpoints, float(second))
        assert not plot.is_due(second + 0.5)
    found = charts(plot)
    assert list(found)[:2] == ["records read per second", "event time behind the clock"]
    read, summed = found["records read per second"]
    left, right = job_plot.LEFT, job_plot.WIDTH - job_plot.RIGHT
    top, base = job_plot.TOP, job_plot.HEIGHT - job_plot.BOTTOM
    assert summed == [(left, base), ((left + right) / 2, (top + base) / 2), (right, top)]
    assert [y for _, y in read] == [base, base - (base - top) / 4, (top + base) / 2]
    [lag] = found["event time behind the clock"]
    assert [y for _, y in lag] == sorted((y for _, y in lag), reverse=True), "it grows with the clock"
    assert "sum <b>200/s</b>" in plot.html()


def test_names_are_escaped_and_what_is_not_drawn_is_said():
    plot = JobPlot()
    plot.take(view(*(vertex(f"<b>{n}", 1.0) for n in range(10))), (), 1.0)
    page = plot.html()
    assert "&lt;b&gt;0" in page
    assert "the first 8 of 10 operator chains" in page
    assert list(charts(plot)) == ["records read per second"]
