"""The reporter's life in a head, beside Dispatcher and ResourceManager.

It is a machine only in that it lives in a host. One that cannot be started ends nothing: the cluster runs without it,
and its log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.engine.errors import HeadraceError, InternalError
from headrace.engine.kernel.event_log import EventLog
from headrace.engine.kernel.machine import Address, Asked, Command, Offload, OffloadCompleted, Reply, Started
from headrace.engine.kernel.reporter_settings import ReporterSettings
from headrace.engine.protocol.messages import RequestFailed

from ..rest.resources.questions import AsksCluster
from .reporter import Reporter

__all__ = ["ReporterHost", "ReporterPlan", "StopReporter"]

_LOG = logging.getLogger("headrace.reporters")


@dataclass(frozen=True, slots=True)
class StopReporter:
    """Have a head report a last time, and no more. Answer: True, once it has."""


@dataclass(frozen=True, slots=True)
class _ReporterStopped:
    """Token of the offloaded end."""

    ask_id: str


@dataclass(frozen=True, slots=True)
class ReporterPlan:
    """What all heads of a cluster need to report.

    Attributes:
        settings: Where to.
        connect: Makes a client of the cluster, in the head's process.
    """

    settings: ReporterSettings
    connect: Callable[[], AsksCluster]


class ReporterHost:
    """The machine.

    Args:
        address: Its own address.
        dispatcher: The Dispatcher of the same head, if there are several heads.
        plan: What it needs.
    """

    def __init__(self, address: Address, dispatcher: Address | None, plan: ReporterPlan) -> None:
        self.address = address
        self.log = EventLog(machine="Reporter")
        self._dispatcher = dispatcher
        self._plan = plan
        self._reporter: Reporter | None = None
        self._is_closed = False

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        """Take one event; see `headrace.engine.kernel.machine.Machine`."""
        if isinstance(event, Started):
            return [Offload("start_reporter", None, self._start, "blocking")]
        if isinstance(event, Asked):
            if isinstance(event.request, StopReporter):
                return [Offload("stop_reporter", _ReporterStopped(event.ask_id), self._stop, "blocking")]
            message = f"a reporter's host does not answer {type(event.request).__name__}"
            return [Reply(event.ask_id, RequestFailed(InternalError(message)))]
        if isinstance(event, OffloadCompleted):
            if isinstance(event.token, _ReporterStopped):
                return [Reply(event.token.ask_id, value=True)]
            error = event.error
            text = "reports" if error is None else str(error) if isinstance(error, HeadraceError) else repr(error)
            self.log.add(now_ms, "reporter", text)
            if error is not None:
                _LOG.warning("nothing is reported: %s", text)
        return []

    def close(self) -> None:
        """Report no more."""
        self._is_closed = True
        if self._reporter is not None:
            self._reporter.close()

    def _stop(self) -> None:
        """Report a last time; in a thread."""
        if self._reporter is not None:
            self._reporter.finish()
        self.close()

    def _start(self) -> None:
        """Load libraries and begin; in a thread."""
        reporter = Reporter(self._plan.connect(), self._plan.settings, self._dispatcher)
        reporter.start()
        self._reporter = reporter
        if self._is_closed:
            reporter.close()
