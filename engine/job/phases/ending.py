"""DELIVERING and ENDED: the client gets its rows, the end is recorded, told, and the host stops.

In this order: the Dispatcher records the end (it is told again and again until it says so), and from then on sees to
the checkpoints that nobody will restore, see `headrace.engine.cluster.cleanup`; the slots are given back, and
clients are told; and when none of them is expected any more, the host stops. A JobManager that dies half-way through
leaves a job that is either not recorded, and is then run on by a successor that finds everything in place, or recorded,
and then the Dispatcher gives its slots back.

Source: Flink's ``JobManagerRunner`` termination.
"""

from __future__ import annotations

from ...kernel.machine import CancelTimer, Command, Send, StartTimer, StopHost
from ...protocol.control_messages import JobArchived
from ...protocol.messages import ReleaseJob
from ...protocol.states import JobStatus
from ..context.clients import LingerOver
from ..context.job import Job, PhaseRules
from ..context.phase import DeliveryOver, Phase, TellDispatcher

__all__ = ["DELIVERING", "ENDED", "delivered", "linger", "on_linger_over"]

DELIVERY_TIMEOUT_MS = 5_000
"""How long a finished job waits for its client to fetch what it collected before the end is recorded."""

ARCHIVE_RETRY_MS = 1_000
"""How often the end of a job is told to the Dispatcher until it has recorded it."""


def begin_delivery(job: Job, _now_ms: int) -> list[Command]:
    """Let the client fetch its rows first: once the end is recorded, nobody would bring them back."""
    job.record.clients.changed()
    return [StartTimer("delivery", DELIVERY_TIMEOUT_MS, DeliveryOver())]


def delivered(job: Job, now_ms: int) -> list[Command]:
    """End the job, as the client has fetched everything, or had time enough."""
    if job.state.phase is not Phase.DELIVERING:
        return []
    return [CancelTimer("delivery"), *job.go(Phase.ENDED, now_ms)]


def begin(job: Job, now_ms: int) -> list[Command]:
    """End the job as was decided before; if another leader has it, leave."""
    record, status = job.record, job.state.stop_target
    if status is JobStatus.SUSPENDED:
        record.become(status, now_ms)
        return [StopHost()]
    record.ended_ms = now_ms
    record.note(now_ms, f"ends {status.value}")
    record.become(status, now_ms)
    return [
        *job.savepoints.ended(status, job.state.epoch, now_ms),
        CancelTimer("heartbeat"),
        *record.clients.ended(),
        StartTimer("archive", ARCHIVE_RETRY_MS, TellDispatcher()),
    ]


def on_tell_dispatcher(job: Job, _timer: TellDispatcher, _now_ms: int) -> list[Command]:
    """Tell the Dispatcher of the end again."""
    if job.state.is_archived:
        return []
    return [job.tell_dispatcher(), StartTimer("archive", ARCHIVE_RETRY_MS, TellDispatcher())]


def on_archived(job: Job, _message: JobArchived, _now_ms: int) -> list[Command]:
    """Give slots back and tell clients, as the end is recorded."""
    if job.state.is_archived:
        return []
    job.state.is_archived = True
    job.record.clients.archived()
    release = Send(job.peers.resource_manager, ReleaseJob(job.submission.job_id, job.state.epoch))
    return [CancelTimer("archive"), release, *linger(job), *_leave_if_done(job)]


def linger(job: Job) -> list[Command]:
    """Stay for a while, as a client has asked, or may ask now."""
    return job.record.clients.linger(has_reports=not job.record.reports.is_empty)


def on_linger_over(job: Job, _timer: LingerOver | None, _now_ms: int) -> list[Command]:
    """Stop as soon as the rest is done, in whatever phase, as no client is expected any more."""
    job.state.is_linger_over = True
    return _leave_if_done(job)


def _leave_if_done(job: Job) -> list[Command]:
    return [StopHost()] if job.state.is_archived and job.state.is_linger_over else []


DELIVERING = PhaseRules(
    begin_delivery,
    lambda _job, _now_ms: [],
    {DeliveryOver: lambda job, _timer, now_ms: delivered(job, now_ms)},
)
ENDED = PhaseRules(begin, lambda _job, _now_ms: [], {TellDispatcher: on_tell_dispatcher, JobArchived: on_archived})
