"""Rescaling a job while it runs, by command or by itself: from the request to tasks at the new parallelism.

1. *Slots.* More are asked for if need be, while the job runs on. If they do not come, or cannot come, the request is
   answered with an error, and nothing has happened.
2. *Checkpoint.* A fresh one is taken, so that little is read twice. If it fails, the same.
3. *Restart.* The job is stopped and goes on from that checkpoint with the new job graph. The new parallelism is part of
   the job's view from here on: a leader that takes over deploys with it. (One that never heard of it deploys with the
   old one, from whatever checkpoint: state fits any parallelism. Then the command is simply lost, and asked again.)
4. *Done.* All tasks run; the request is answered, and TaskManagers without a task are given back.

A failure before the third step restarts the job, or a region, as always; then the first step begins again. A request
may be asked twice: the same one waits for the same end, another one is refused until then. Requests do not survive
their JobManager; a client asks again.

Source: Flink's ``AdaptiveScheduler`` and FLIP-291 (``PUT /jobs/:id/resource-requirements``), FLIP-461 (rescale after a
checkpoint).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headrace.state.identifiers import VertexId

from ..autoscaler.autoscaler import AUTOSCALER, Decision
from ..errors import (
    CheckpointError,
    ConfigurationError,
    HeadraceError,
    JobError,
    NoResourceAvailableError,
)
from ..execution.scheduling import slots_needed
from ..graph.job_graph import JobGraph
from ..graph.rescaling import requested_parallelism, rescaled
from ..kernel.autoscaler_settings import AutoscalerSettings
from ..kernel.machine import CancelTimer, Command, Reply, StartTimer
from ..protocol.checkpoint_messages import CheckpointWanted
from ..protocol.messages import RequestFailed, RescaleJob
from ..protocol.states import JobStatus
from ..protocol.views import RescaleView
from .context.job import Job
from .context.phase import Phase
from .context.running import JobExecution
from .context.state import RescaleRequest
from .phases import slot_requests

__all__ = [
    "RescaleTimedOut",
    "advance",
    "asked",
    "begin",
    "checkpoint_aborted",
    "checkpoint_completed",
    "checkpoint_triggered",
    "decided",
    "is_under_way",
    "may_begin",
    "slots_refused",
    "timed_out",
]

COMMAND = "command"
"""Who has asked for a rescale: a client."""

_PAST_RESCALING = frozenset({Phase.FINAL_CHECKPOINT, Phase.FINISHING, Phase.DELIVERING, Phase.ENDED})


@dataclass(frozen=True, slots=True)
class RescaleTimedOut:
    """Timer: the slots for a rescale have not come."""

    serial: int


def begin(job: Job, job_graph: JobGraph) -> JobGraph:
    """Take down the graph that was submitted; gives the one to run: at the parallelism of the leader before."""
    job.rescaling.submitted = job_graph
    return rescaled(job_graph, job.record.parallelism)


# --------------------------------------------------------------------------------------------------------- requests


def asked(job: Job, ask_id: str, request: RescaleJob, now_ms: int) -> list[Command]:
    """Take a client's request for another parallelism."""
    try:
        wanted = _checked(job, request)
    except HeadraceError as error:
        return [Reply(ask_id, RequestFailed(error))]
    under_way = job.rescaling.request
    if under_way is not None:
        if under_way.parallelism == wanted:
            under_way.asks.append(ask_id)
            return []
        message = "the job is being rescaled already, to another parallelism"
        return [Reply(ask_id, RequestFailed(ConfigurationError(message, job=job.submission.name)))]
    assert job.rescaling.submitted is not None
    try:
        job_graph = rescaled(job.rescaling.submitted, wanted)
    except HeadraceError as error:
        return [Reply(ask_id, RequestFailed(error))]
    if job.execution is not None and _same(job_graph, job.execution.graph.job_graph):
        return [Reply(ask_id, value=True)]
    _begin_request(job, wanted, job_graph, [ask_id], RescaleView(now_ms, COMMAND, "", {}, {}))
    return []  # `advance` goes on


def may_begin(job: Job) -> bool:
    """Return whether a rescale may be decided on now."""
    return job.rescaling.request is None and job.execution is not None and not _is_too_late(job)


def decided(job: Job, decision: Decision, now_ms: int) -> None:
    """Take the autoscaler's decision: as a request that nobody waits for, or only as advice."""
    assert job.rescaling.submitted is not None
    assert job.settings.autoscaler is not None
    view = RescaleView(now_ms, AUTOSCALER, decision.reason, {}, {}, decision.numbers)
    wanted = {**job.record.parallelism, **decision.parallelism}
    try:
        job_graph = rescaled(job.rescaling.submitted, wanted)
    except HeadraceError as error:  # no reason to end a job that runs
        job.record.note(now_ms, f"is not rescaled: {error}")
        return
    if job.settings.autoscaler.scaling_enabled:
        _begin_request(job, wanted, job_graph, [], view)
        return
    view = _with_change(job, view, job_graph, is_advice=True, ended_ms=now_ms)
    if not _is_advised(job.record.rescales, view, job.settings.autoscaler):
        job.record.rescale_began(view)
        job.record.note(now_ms, f"would be rescaled: {_described(job_graph)}: {view.reason}")


def _is_advised(past: list[RescaleView], view: RescaleView, settings: AutoscalerSettings) -> bool:
    """Whether the same was advised last, or something else so lately that a job that had followed would settle still.

    Else a load that is up and down would fill the record with advice.
    """
    if not past or not past[-1].is_advice:
        return False
    settles_ms = settings.stabilization_interval_ms + settings.metrics_window_ms
    return past[-1].after == view.after or view.at_ms - past[-1].at_ms < settles_ms


def _begin_request(
    job: Job, wanted: dict[VertexId, int], job_graph: JobGraph, asks: list[str], view: RescaleView
) -> None:
    job.rescaling.num_requests += 1
    job.rescaling.request = RescaleRequest(wanted, job_graph, job.rescaling.num_requests, asks)
    job.record.rescale_began(_with_change(job, view, job_graph))
    why = f": {view.reason}" if view.reason else ""
    job.record.note(view.at_ms, f"to be rescaled: {_described(job_graph)}{why}")


def _with_change(job: Job, view: RescaleView, job_graph: JobGraph, **changes: Any) -> RescaleView:
    """Say which vertices get another parallelism."""
    now = {one.vertex_id: one.parallelism for one in job.run.graph.job_graph.vertices.values()}
    after = {key: one.parallelism for key, one in job_graph.vertices.items() if one.parallelism != now[key]}
    return replace(view, before={key: now[key] for key in after}, after=after, **changes)


def _checked(job: Job, request: RescaleJob) -> dict[VertexId, int]:
    if job.rescaling.submitted is None or job.execution is None or _is_too_late(job):
        message = "the job has ended, or is about to; it cannot be rescaled"
        raise JobError(message, job=job.submission.job_id)
    if job.settings.is_batch:
        message = "a batch job has no state that it could go on from at another parallelism"
        raise ConfigurationError(message, hint="Cancel it, and start it anew.", job=job.submission.name)
    if job.settings.checkpoints is None:
        message = "the job takes no checkpoints, so there is nothing that it could go on from at another parallelism"
        raise ConfigurationError(message, hint="Enable checkpointing.", job=job.submission.name)
    changes = requested_parallelism(job.rescaling.submitted, request.parallelism, request.operators)
    return {**job.record.parallelism, **changes}


def is_under_way(job: Job) -> bool:
    """Return whether a request is being followed."""
    return job.rescaling.request is not None


def _is_too_late(job: Job) -> bool:
    return job.state.is_going_down or job.state.phase in _PAST_RESCALING or job.wish.mode is not None


# --------------------------------------------------------------------------------------------------------- progress


def advance(job: Job, now_ms: int) -> list[Command]:
    """See whether the request has come further, as something has happened to the job."""
    request, run = job.rescaling.request, job.execution
    if request is None or run is None:
        return []
    if _is_too_late(job):
        message = "the job ended before it was rescaled"
        return _refuse(job, JobError(message, job=job.submission.job_id), now_ms)
    if job.state.phase is not Phase.EXECUTING:
        if not request.is_restarting:
            request.checkpoint_after = None  # what was under way is given up
            request.is_waiting_for_slots = False  # a restart asks for as many as the job needs as it is
        return []
    if request.is_restarting:
        return _done(job, request, run, now_ms)
    needed = slots_needed(request.job_graph)
    if run.registry.num_slots < needed:
        return _ask_for_slots(job, request, needed)
    request.is_waiting_for_slots = False
    if request.checkpoint_after is None:
        request.checkpoint_after = job.rescaling.newest_triggered
        wanted = CheckpointWanted(job.state.epoch, job.state.deployment)
        return [CancelTimer("rescale"), job.to_coordinator(wanted)]
    return []


def _ask_for_slots(job: Job, request: RescaleRequest, needed: int) -> list[Command]:
    request.checkpoint_after = None
    if request.is_waiting_for_slots:
        return []
    request.has_asked_for_slots = request.is_waiting_for_slots = True
    request.waited_ms = 0
    timeout_ms = job.settings.slot_request_timeout_ms
    return [
        job.request_slots(needed, (), job.run.task_managers_in_use),
        StartTimer("rescale", timeout_ms, RescaleTimedOut(request.serial)),
    ]


def checkpoint_triggered(job: Job, checkpoint_id: int) -> None:
    """Note that a checkpoint is under way."""
    job.rescaling.newest_triggered = max(job.rescaling.newest_triggered, checkpoint_id)


def checkpoint_completed(job: Job, checkpoint_id: int, now_ms: int) -> list[Command]:
    """Restart from a complete checkpoint, if it is the one that was waited for."""
    request = job.rescaling.request
    if request is None or not _is_awaited(request, checkpoint_id) or job.state.phase is not Phase.EXECUTING:
        return []
    request.is_restarting = True
    job.record.parallelism = request.parallelism
    job.record.has_news = True
    job.record.note(now_ms, f"rescales: {_described(request.job_graph)}")
    job.state.next_graph = request.job_graph
    job.record.become(JobStatus.RESTARTING, now_ms)
    return job.stop(JobStatus.RESTARTING, now_ms)


def checkpoint_aborted(job: Job, checkpoint_id: int, reason: str, now_ms: int) -> list[Command]:
    """Give the request up with a checkpoint, if it is the one that was waited for."""
    request = job.rescaling.request
    if request is None or not _is_awaited(request, checkpoint_id):
        return []
    message = f"the checkpoint to rescale from could not be taken: {reason}"
    error = CheckpointError(message, hint="The job goes on as it was; ask again.", checkpoint=checkpoint_id)
    return _refuse(job, error, now_ms)


def _is_awaited(request: RescaleRequest, checkpoint_id: int) -> bool:
    after = request.checkpoint_after
    return not request.is_restarting and after is not None and checkpoint_id > after


# -------------------------------------------------------------------------------------------------------------- end


def slots_refused(job: Job, reason: str, now_ms: int) -> list[Command] | None:
    """Give the request up, as its slots cannot be had; None if the slots were not asked for from here."""
    request = job.rescaling.request
    if request is None or not request.has_asked_for_slots or request.is_restarting:
        return None
    return _refuse(job, NoResourceAvailableError(reason, job=job.submission.name), now_ms)


def timed_out(job: Job, timer: RescaleTimedOut, now_ms: int) -> list[Command]:
    """Give the request up, or wait on, as the slots have not come in time."""
    request, run = job.rescaling.request, job.execution
    if request is None or run is None or request.serial != timer.serial or request.is_restarting:
        return []
    request.waited_ms = request.waited_ms or job.settings.slot_request_timeout_ms
    longer_ms = slot_requests.patience_ms(job, request.waited_ms)
    if longer_ms:
        request.waited_ms += longer_ms
        return [StartTimer("rescale", longer_ms, timer)]
    return _refuse(job, slot_requests.slots_missing(job, slots_needed(request.job_graph), request.waited_ms), now_ms)


def _refuse(job: Job, error: HeadraceError, now_ms: int) -> list[Command]:
    """Answer the client that the job is not rescaled, and hand back the slots that were asked for."""
    request, run = job.rescaling.request, job.execution
    assert request is not None
    job.rescaling.request = None
    job.record.rescale_ended(now_ms, str(error))
    job.record.note(now_ms, f"is not rescaled: {error}")
    commands: list[Command] = [CancelTimer("rescale")]
    if request.has_asked_for_slots and run is not None:
        commands.append(slot_requests.give_back(job))
    return [*commands, *(Reply(ask_id, RequestFailed(error)) for ask_id in request.asks)]


def _done(job: Job, request: RescaleRequest, run: JobExecution, now_ms: int) -> list[Command]:
    job.rescaling.request = None
    job.record.rescale_ended(now_ms)
    job.record.note(now_ms, f"runs rescaled: {_described(request.job_graph)}")
    given_back = slot_requests.give_back(job)
    return [CancelTimer("rescale"), given_back, *(Reply(ask_id, value=True) for ask_id in request.asks)]


def _described(job_graph: JobGraph) -> str:
    return ", ".join(f"{vertex.name} at {vertex.parallelism}" for vertex in job_graph.vertices.values())


def _same(one: JobGraph, other: JobGraph) -> bool:
    return all(vertex.parallelism == other.vertices[key].parallelism for key, vertex in one.vertices.items())
