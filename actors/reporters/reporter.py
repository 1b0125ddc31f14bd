"""Sends what is measured to others, again and again, from the head that leads.

It is one more client of the cluster, in a thread of its own: what it asks is what REST asks, once for both, and a
collector that is slow or gone keeps nobody from anything. What could not be sent is tried again with the next report:
metrics are newer then, and traces are kept as long as the job's views know them.

Each head has one, and only that of the leader sends. One that takes over sends again what the jobs still know: their
traces have the ids that they had, so that a collector can tell.

Source: Flink's ``MetricRegistryImpl`` and ``TraceReporterSetup``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

from headrace.engine.cluster.leadership import LeaderFound, WhoLeads
from headrace.engine.errors import HeadraceError
from headrace.engine.kernel.machine import Address
from headrace.engine.kernel.reporter_settings import ReporterSettings

from ..rest.resources.metrics import samples
from ..rest.resources.questions import AsksCluster, ClusterQuestions
from .open_telemetry import MetricExporter, TraceExporter
from .ray_metrics import RayMetrics
from .spans import Trace, traces_of

__all__ = ["Reporter"]

_LOG = logging.getLogger("headrace.reporters")

TRACE_INTERVAL_MS = 1_000
"""How often jobs are asked for what has ended."""

ANSWER_TTL_MS = 500
ANSWER_TIMEOUT_MS = 10_000
CLOSE_S = 3.0

MOST_KNOWN_TRACES = 10_000
"""Of all jobs: ids of traces that were sent, the newest."""


class Reporter:
    """Reports one cluster. It is started by `start`, and `close` ends it.

    Args:
        cluster: Whom to ask.
        settings: Where to send what.
        dispatcher: The Dispatcher of this head, which knows who leads; None in a cluster with one head.

    Raises:
        ConfigurationError: If something is not installed that the settings need.
    """

    def __init__(self, cluster: AsksCluster, settings: ReporterSettings, dispatcher: Address | None) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._questions = ClusterQuestions(cluster, ANSWER_TTL_MS, ANSWER_TIMEOUT_MS)
        version = metadata.version("headrace")
        self._metrics = None if settings.metrics is None else MetricExporter(settings.metrics, cluster.name, version)
        self._traces = None if settings.traces is None else TraceExporter(settings.traces, cluster.name, version)
        self._ray = RayMetrics() if settings.ray_interval_ms else None
        # What is reported: its name, how often, and how.
        self._reports: list[tuple[str, int, Callable[[], None]]] = []
        if self._traces is not None:
            self._reports.append(("traces", TRACE_INTERVAL_MS, self.report_traces))
        if self._metrics is not None:
            self._reports.append(("metrics", settings.interval_ms, self.report_metrics))
        if self._ray is not None:
            self._reports.append(("Ray's metrics", settings.ray_interval_ms, self.report_to_ray))
        # Ids of traces that were sent, oldest first; and jobs that have ended and are told.
        self._sent: dict[int, None] = {}
        self._over: set[str] = set()
        # When each kind of report is due (monotonic seconds).
        self._due_s: dict[str, float] = {}
        # By kind of report, why it could not be sent, as it was told last.
        self._complaints: dict[str, str] = {}
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-reporter", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def finish(self) -> None:
        """Report a last time, out of turn: what has ended just before the cluster is told, too."""
        self._is_closed.set()
        self._thread.join(CLOSE_S)
        self._questions.forget()
        for name, _interval_ms, report in self._reports:
            self._try(name, report)

    def close(self) -> None:
        """Report no more. May be repeated."""
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        self._questions.close()
        for exporter in (self._metrics, self._traces, self._ray):
            if exporter is not None:
                exporter.close()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            for name, interval_ms, report in self._reports:
                if time.monotonic() >= self._due_s.get(name, 0.0):
                    self._due_s[name] = time.monotonic() + interval_ms / 1_000
                    self._try(name, report)
            due_s = min(self._due_s.values(), default=time.monotonic() + 1.0)
            self._is_closed.wait(max(due_s - time.monotonic(), 0.0))

    def _try(self, name: str, report: Callable[[], None]) -> None:
        try:
            if self._leads():
                report()
                self._complaints.pop(name, None)
        except Exception as error:
            # Whatever an exporter or a cluster that changes its leader may raise: reporting goes on.
            text = str(error) if isinstance(error, HeadraceError) else repr(error)
            if text != self._complaints.get(name) and not self._is_closed.is_set():
                self._complaints[name] = text
                _LOG.warning("%s could not be reported: %s", name, text)

    def _leads(self) -> bool:
        if self._dispatcher is None:
            return True
        found: Any = self._questions.cluster.ask_machine(self._dispatcher, WhoLeads(), ANSWER_TIMEOUT_MS)
        return isinstance(found, LeaderFound) and found.host == self._dispatcher.host

    def report_metrics(self) -> None:
        """Send all metrics."""
        assert self._metrics is not None
        self._metrics.export(samples(self._questions), int(time.time() * 1_000))

    def report_to_ray(self) -> None:
        """Set Ray's metrics."""
        assert self._ray is not None
        self._ray.export(samples(self._questions))

    def report_traces(self) -> None:
        """Send the traces of what has ended since the last report."""
        assert self._traces is not None
        found: list[Trace] = []
        over: list[str] = []
        for view in self._questions.jobs():
            if view.job_id in self._over:
                continue
            with contextlib.suppress(HeadraceError):  # between two JobManagers; it is asked again
                details = self._questions.all_of(view.job_id)
                found += [
                    one for one in traces_of(details, self._settings.span_detail) if one.trace_id not in self._sent
                ]
                if details.view.state.is_terminal:
                    over.append(view.job_id)
        if found:
            self._traces.export(found)
        self._sent |= dict.fromkeys(one.trace_id for one in found)
        self._over.update(over)
        for old in list(self._sent)[: max(len(self._sent) - MOST_KNOWN_TRACES, 0)]:
            del self._sent[old]
