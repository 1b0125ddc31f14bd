"""Rescaling a job by itself: the JobManager asks the autoscaler at intervals, and does what it decides.

What it decides goes the way of a client's command (`headrace.engine.job.rescale`): slots first, a fresh checkpoint,
then the restart. A decision that comes to nothing, as there are no slots or the checkpoint fails, leaves the job as it
is. Each is written down with its reason, and is part of the job's view, with which the next leader goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..autoscaler.topology import Topology
from ..kernel.machine import Command, StartTimer
from . import rescale
from .context.job import Job
from .context.phase import Phase

__all__ = ["AutoscalerDue", "begin", "on_due"]


@dataclass(frozen=True, slots=True)
class AutoscalerDue:
    """Timer: look at the job again."""


def begin(job: Job) -> list[Command]:
    """Begin to look at the job, if it is to be rescaled by itself."""
    settings = job.settings.autoscaler
    if settings is None or job.settings.checkpoints is None:
        return []
    return [StartTimer("autoscaler", settings.control_loop_interval_ms, AutoscalerDue())]


def on_due(job: Job, _timer: AutoscalerDue, now_ms: int) -> list[Command]:
    """Look at what the tasks have done, and rescale the job if that is decided."""
    autoscaler, run, submitted = job.autoscaler, job.execution, job.rescaling.submitted
    settings = job.settings.autoscaler
    assert autoscaler is not None
    assert settings is not None
    if run is None or submitted is None or job.state.phase is not Phase.EXECUTING or not rescale.may_begin(job):
        autoscaler.pause()
        _tell(job, autoscaler.status)
        return begin(job)
    vertices = run.graph.job_graph.vertices.values()
    decision = autoscaler.observe(
        now_ms,
        (job.state.epoch, job.state.deployment),
        Topology.of(submitted, {vertex.vertex_id: vertex.parallelism for vertex in vertices}, settings),
        job.record.metrics.totals(run.graph, now_ms),
        job.record.rescales,
    )
    _tell(job, autoscaler.status)
    if decision is not None:
        rescale.decided(job, decision, now_ms)
    return begin(job)  # `rescale.advance` goes on with what was decided


def _tell(job: Job, status: str) -> None:
    """Let clients see what it is busy with."""
    if status != job.record.autoscaler:
        job.record.autoscaler = status
        job.record.clients.changed()
