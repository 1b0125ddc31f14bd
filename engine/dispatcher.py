"""The Dispatcher of a cluster: takes jobs, starts and replaces their JobManagers, remembers how they ended (row D21).

Each job has a host of its own with its JobManager and its CheckpointCoordinator. It is pinged; silence is its death.
If that host dies before the job's end is recorded, a successor with a larger epoch takes over; it finds the newest
checkpoint itself. A successor that dies without having achieved anything, several times in a row, is the job's
failure. A job without a restart strategy fails with its JobManager.

Invariant: a job whose end is recorded is never started again; and no JobManager tells its clients of the end before
that (it waits for `JobArchived`).

Source: Flink's ``Dispatcher``, ``JobManagerRunner`` and ``ExecutionGraphInfoStore``; row D30 for the epoch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.engine.checkpointing import CheckpointCoordinator
from headrace.engine.config import ClusterSettings
from headrace.engine.control_messages import AllReleased, JobArchived, ReleaseAll
from headrace.engine.errors import (
    ClusterUnavailableError,
    InternalError,
    JobFailedError,
    JobNotFoundError,
    NoResourceAvailableError,
)
from headrace.engine.execution import EventLog, JobStatus
from headrace.engine.job_manager import JobManager
from headrace.engine.machine import (
    Address,
    Asked,
    CancelTimer,
    Command,
    HostPinged,
    HostTerminated,
    KillHost,
    PingHost,
    Reply,
    Send,
    SpawnHost,
    StartTimer,
)
from headrace.engine.messages import (
    CancelJob,
    FindJobManager,
    JobManagerFound,
    JobStatusChanged,
    JobSubmitted,
    JobView,
    ListJobs,
    ReleaseJob,
    RequestFailed,
    ShutDownCluster,
    SubmitJob,
)
from headrace.state.identifiers import JobId

__all__ = ["Dispatcher"]

JOB_MANAGER_ACTOR = "jm"
COORDINATOR_ACTOR = "cc"

MAX_VAIN_EPOCHS = 10
"""So many JobManagers in a row may die without progress; one more and the job has failed."""

MAX_ARCHIVED = 1_000
"""Ended jobs remembered."""

START_TIMEOUT_MS = 120_000
"""A job's host may take this long to give its first sign of life."""

SHUTDOWN_TIMEOUT_MS = 15_000
"""Jobs that have not ended so long after the cluster was told to shut down are killed."""


@dataclass(slots=True)
class _Job:
    submission: SubmitJob
    view: JobView
    epoch: int = 0
    # The job's host while there is one, else None.
    host: str | None = None
    # JobManagers in a row that died without progress; and checkpoints that were complete when the present one began.
    num_vain_epochs: int = 0
    checkpoints_at_start: int = 0
    has_run: bool = False
    # Pings of the present host in a row without an answer, and whether it ever gave one.
    num_unanswered: int = 0
    is_alive: bool = False

    @property
    def has_ended(self) -> bool:
        return JobStatus(self.view.state).is_terminal


@dataclass(frozen=True, slots=True)
class _PingDue:
    job_id: JobId
    host: str


@dataclass(frozen=True, slots=True)
class _ShutDownTimedOut:
    pass


@dataclass(slots=True)
class _ShutDown:
    ask_ids: list[str] = field(default_factory=list)
    has_released: bool = False
    is_releasing: bool = False


class Dispatcher:
    """The machine.

    Args:
        address: Its own address.
        resource_manager: The cluster's ResourceManager.
        settings: How the cluster is laid out.
    """

    def __init__(self, address: Address, resource_manager: Address, settings: ClusterSettings) -> None:
        self.address = address
        self.log = EventLog()
        self._resource_manager = resource_manager
        self._settings = settings
        # Every job that is known, oldest first, ended ones included.
        self._jobs: dict[JobId, _Job] = {}
        # The shutdown under way, if any.
        self._shutdown: _ShutDown | None = None
        self._handlers: dict[type, Callable[[Any, int], list[Command]]] = {
            Asked: self._on_asked,
            JobStatusChanged: self._on_status,
            HostTerminated: self._on_terminated,
            HostPinged: self._on_pinged,
            _PingDue: self._on_ping_due,
            AllReleased: self._on_all_released,
            _ShutDownTimedOut: self._on_shutdown_timed_out,
        }

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        """Take one message or event; see `headrace.engine.machine.Machine`."""
        handler = self._handlers.get(type(event))
        return [] if handler is None else handler(event, now_ms)

    def story(self, about: object) -> list[str]:
        """What is remembered about a job, oldest first."""
        return self.log.story(about)

    # --------------------------------------------------------------------------------------------------------- clients
    def _on_asked(self, event: Asked, now_ms: int) -> list[Command]:
        request = event.request
        if isinstance(request, SubmitJob):
            return self._submit(event.ask_id, request, now_ms)
        if isinstance(request, ListJobs):
            return [Reply(event.ask_id, [job.view for job in reversed(self._jobs.values())])]
        if isinstance(request, FindJobManager):
            return [Reply(event.ask_id, self._find(request.job_id))]
        if isinstance(request, ShutDownCluster):
            return self._shut_down(event.ask_id)
        message = f"the Dispatcher does not answer {type(request).__name__}"
        return [Reply(event.ask_id, RequestFailed(InternalError(message)))]

    def _submit(self, ask_id: str, submission: SubmitJob, now_ms: int) -> list[Command]:
        if submission.job_id in self._jobs:
            return [Reply(ask_id, JobSubmitted(submission.job_id))]
        if self._shutdown is not None:
            message = "the cluster is shutting down and takes no jobs"
            return [Reply(ask_id, RequestFailed(ClusterUnavailableError(message)))]
        limit = self._settings.max_slots
        if limit and submission.num_slots > limit:
            message = f"{submission.num_slots} slots needed, {limit} available"
            hint = "Lower the parallelism or raise max_slots."
            error = NoResourceAvailableError(message, hint=hint, job=submission.name)
            return [Reply(ask_id, RequestFailed(error))]
        job = _Job(submission, _first_view(submission, now_ms))
        self._jobs[submission.job_id] = job
        self._drop_oldest_ended()
        return [*self._start_job_manager(job, now_ms), Reply(ask_id, JobSubmitted(submission.job_id))]

    def _find(self, job_id: JobId) -> JobManagerFound | RequestFailed:
        job = self._jobs.get(job_id)
        if job is None:
            message = f'there is no job "{job_id}" in this cluster'
            return RequestFailed(JobNotFoundError(message))
        address = None if job.host is None else Address(job.host, JOB_MANAGER_ACTOR)
        return JobManagerFound(address, job.epoch, job.view)

    def _drop_oldest_ended(self) -> None:
        gone = [job_id for job_id, job in self._jobs.items() if job.has_ended and job.host is None]
        for job_id in gone[: max(len(gone) - MAX_ARCHIVED, 0)]:
            del self._jobs[job_id]

    # ---------------------------------------------------------------------------------------------------- job managers
    def _start_job_manager(self, job: _Job, now_ms: int) -> list[Command]:
        job.epoch += 1
        submission = job.submission
        job.host = host = f"jm-{submission.job_id}-{job.epoch}"
        job.checkpoints_at_start = job.view.checkpoints_completed
        job.num_unanswered, job.is_alive = 0, False
        self.log.add(now_ms, submission.job_id, f"JobManager {host} started")
        job_manager, coordinator = Address(host, JOB_MANAGER_ACTOR), Address(host, COORDINATOR_ACTOR)
        make_job_manager = functools.partial(
            JobManager,
            job=submission,
            epoch=job.epoch,
            dispatcher=self.address,
            resource_manager=self._resource_manager,
            coordinator=coordinator,
            predecessor=None if job.epoch == 1 else job.view,
        )
        make_coordinator = functools.partial(CheckpointCoordinator, job_manager=job_manager, job=submission)
        actors = ((JOB_MANAGER_ACTOR, make_job_manager), (COORDINATOR_ACTOR, make_coordinator))
        return [SpawnHost(host, actors, {"cpu": 0.0}), self._ping_timer(job, host)]

    @staticmethod
    def _ping_timer(job: _Job, host: str) -> StartTimer:
        job_id, interval_ms = job.submission.job_id, job.submission.settings.heartbeat_interval_ms
        return StartTimer(f"ping-{job_id}", interval_ms, _PingDue(job_id, host))

    def _on_ping_due(self, timer: _PingDue, now_ms: int) -> list[Command]:
        job = self._jobs.get(timer.job_id)
        if job is None or job.host != timer.host:
            return []
        settings = job.submission.settings
        patience_ms = settings.heartbeat_timeout_ms if job.is_alive else START_TIMEOUT_MS
        commands: list[Command] = [self._ping_timer(job, timer.host)]
        if job.num_unanswered * settings.heartbeat_interval_ms < patience_ms:
            job.num_unanswered += 1
            return [*commands, PingHost(timer.host)]
        reason = f"no sign of life for {patience_ms / 1_000:g} s"
        self.log.add(now_ms, timer.job_id, f"JobManager {timer.host} killed: {reason}")
        return [*commands, KillHost(timer.host, reason)]  # again with each round, until its end is told

    def _on_pinged(self, event: HostPinged, _now_ms: int) -> list[Command]:
        job = next((job for job in self._jobs.values() if job.host == event.host), None)
        if job is not None:
            job.num_unanswered, job.is_alive = 0, True
        return []

    def _on_status(self, message: JobStatusChanged, now_ms: int) -> list[Command]:
        job = self._jobs.get(message.job_id)
        if job is None or message.epoch < job.epoch or job.host is None:
            return []
        commands: list[Command] = []
        if not job.has_ended:
            job.epoch = message.epoch  # the store may have given the leader a larger one
            job.view = message.view
            job.has_run = job.has_run or message.view.state != JobStatus.CREATED.value
            if message.view.checkpoints_completed > job.checkpoints_at_start:
                job.num_vain_epochs = 0
        if job.has_ended:
            self.log.add(now_ms, message.job_id, f"ended {job.view.state}")
            commands.append(Send(Address(job.host, JOB_MANAGER_ACTOR), JobArchived(message.job_id, message.epoch)))
        return commands

    def _on_terminated(self, event: HostTerminated, now_ms: int) -> list[Command]:
        job = next((job for job in self._jobs.values() if job.host == event.host), None)
        if job is None:
            return []
        job_id = job.submission.job_id
        job.host = None
        self.log.add(now_ms, job_id, f"JobManager {event.host} gone: {event.reason}")
        if job.has_ended:  # its JobManager may have died before it could give the slots back
            return [self._release(job_id), *self._shut_down_further()]
        reason = f"its JobManager {event.host} was lost: {event.reason}"
        if self._shutdown is not None:
            return self._fail(job, f"the cluster was shut down; {reason}", now_ms) + self._shut_down_further()
        if job.has_run and job.submission.settings.restart_strategy().max_attempts == 0:
            return self._fail(job, f"{reason}; it has no restart strategy", now_ms)
        job.num_vain_epochs += 1
        if job.num_vain_epochs > MAX_VAIN_EPOCHS:
            return self._fail(job, f"{reason}; {job.num_vain_epochs} in a row without progress", now_ms)
        job.view = replace(
            job.view,
            state=(JobStatus.RESTARTING if job.has_run else JobStatus.CREATED).value,
            failure=reason,
            history=(*job.view.history, (now_ms, f"restarts: {reason}")),
        )
        return self._start_job_manager(job, now_ms)

    def _fail(self, job: _Job, reason: str, now_ms: int) -> list[Command]:
        submission = job.submission
        message = f'job "{submission.name}" failed'
        job.view = replace(
            job.view,
            state=JobStatus.FAILED.value,
            version=job.view.version + 1,
            ended_ms=now_ms,
            failure=reason,
            error=JobFailedError(message, job=submission.job_id, cause=reason),
            slots=(),
            history=(*job.view.history, (now_ms, f"fails: {reason}")),
        )
        return [self._release(submission.job_id)]

    def _release(self, job_id: JobId) -> Send:
        # The ResourceManager may know a larger epoch than was told here: the store gives them out.
        return Send(self._resource_manager, ReleaseJob(job_id, _BEYOND_ANY_EPOCH))

    # -------------------------------------------------------------------------------------------------------- shutdown
    def _shut_down(self, ask_id: str) -> list[Command]:
        if self._shutdown is not None:
            self._shutdown.ask_ids.append(ask_id)
            return self._shut_down_further()
        self._shutdown = _ShutDown([ask_id])
        commands: list[Command] = [StartTimer("shutdown", SHUTDOWN_TIMEOUT_MS, _ShutDownTimedOut())]
        hosts = [job.host for job in self._jobs.values() if job.host is not None]
        commands += [Send(Address(host, JOB_MANAGER_ACTOR), CancelJob()) for host in hosts]
        return commands + self._shut_down_further()

    def _shut_down_further(self) -> list[Command]:
        """First the jobs, then what they used, then the answer."""
        shutdown = self._shutdown
        if shutdown is None or any(job.host is not None for job in self._jobs.values()):
            return []
        if not shutdown.is_releasing:
            shutdown.is_releasing = True
            return [Send(self._resource_manager, ReleaseAll(self.address))]
        if not shutdown.has_released:
            return []
        replies: list[Command] = [Reply(ask_id, value=True) for ask_id in shutdown.ask_ids]
        shutdown.ask_ids.clear()
        return [CancelTimer("shutdown"), *replies]

    def _on_all_released(self, _message: AllReleased, _now_ms: int) -> list[Command]:
        if self._shutdown is None:
            return []
        self._shutdown.has_released = True
        return self._shut_down_further()

    def _on_shutdown_timed_out(self, _timer: _ShutDownTimedOut, _now_ms: int) -> list[Command]:
        hosts = [job.host for job in self._jobs.values() if job.host is not None]
        kills: list[Command] = [KillHost(host, "it did not end before the cluster's shutdown") for host in hosts]
        if not kills:
            return []
        return [*kills, StartTimer("shutdown", SHUTDOWN_TIMEOUT_MS, _ShutDownTimedOut())]


_BEYOND_ANY_EPOCH = 2**62


def _first_view(submission: SubmitJob, now_ms: int) -> JobView:
    """The view of a job that no JobManager has reported on yet."""
    return JobView(
        job_id=submission.job_id,
        name=submission.name,
        state=JobStatus.CREATED.value,
        version=0,
        started_ms=now_ms,
        ended_ms=None,
        vertices=(),
        num_restarts=0,
        checkpoints_completed=0,
        checkpoints_failed=0,
        last_checkpoint=None,
        last_checkpoint_path=None,
        last_checkpoint_ms=None,
        failure=None,
        error=None,
    )
