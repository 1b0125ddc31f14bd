"""The hosts of JobManagers: each job has one, with its JobManager and its CheckpointCoordinator.

A host is pinged, and silence is its death. Under which epoch a JobManager runs is counted here: each successor has a
larger one.

Source: Flink's ``JobMasterServiceLeadershipRunner``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from headrace.state.checkpoints.leases import TERM_BITS
from headrace.state.identifiers import JobId

from ..checkpoint.coordinator import CheckpointCoordinator
from ..job.job_manager import JobManager
from ..kernel.event_log import EventLog
from ..kernel.machine import Address, Command, KillHost, PingHost, SpawnHost, StartTimer
from .dispatched_jobs import DispatchedJob

__all__ = ["JobManagerHosts", "PingDue", "job_manager_of"]

JOB_MANAGER_ACTOR = "jm"
COORDINATOR_ACTOR = "cc"

START_TIMEOUT_MS = 120_000
"""A job's host may take this long to give its first sign of life."""


@dataclass(frozen=True, slots=True)
class PingDue:
    """Timer: a host is to give a sign of life."""

    job_id: JobId
    host: str


def job_manager_of(host: str) -> Address:
    """Return the address of the JobManager on a host."""
    return Address(host, JOB_MANAGER_ACTOR)


class JobManagerHosts:
    """Starts them, and sees that they live.

    Args:
        dispatcher: Whom JobManagers report to.
        resource_manager: Of whom they get slots.
        log: The Dispatcher's.
    """

    def __init__(self, dispatcher: Address, resource_manager: Address, log: EventLog) -> None:
        self._dispatcher = dispatcher
        self._resource_manager = resource_manager
        self._log = log

    def start(self, job: DispatchedJob, term: int, now_ms: int) -> list[Command]:
        """Start the JobManager of a job, which has none.

        Args:
            job: The job; its epoch is raised.
            term: The epoch of the leading Dispatcher, 0 if it is the only one.
            now_ms: The time.
        """
        job.epoch = max(job.epoch, term << TERM_BITS) + 1
        submission = job.submission
        job.host = host = f"jm-{submission.job_id}-{job.epoch}"
        job.checkpoints_at_start = job.view.checkpoints_completed
        job.num_unanswered, job.is_alive, job.running_since_ms = 0, False, None
        self._log.add(now_ms, f"job {submission.job_id}", f"JobManager {host} started")
        job_manager, coordinator = job_manager_of(host), Address(host, COORDINATOR_ACTOR)
        make_job_manager = functools.partial(
            JobManager,
            job=submission,
            epoch=job.epoch,
            dispatcher=self._dispatcher,
            resource_manager=self._resource_manager,
            coordinator=coordinator,
            predecessor=None if job.is_first else job.view,
        )
        job.is_first = False
        make_coordinator = functools.partial(CheckpointCoordinator, job_manager=job_manager, job=submission)
        actors = ((JOB_MANAGER_ACTOR, make_job_manager), (COORDINATOR_ACTOR, make_coordinator))
        # Beside this process, without which it cannot be: so no other node's loss concerns it.
        return [SpawnHost(host, actors, {"cpu": 0.0, "colocate": 1.0}), _ping_timer(job, host)]

    def ping(self, job: DispatchedJob, host: str, now_ms: int) -> list[Command]:
        """Ask a host for a sign of life, or kill it if it has not given one for too long."""
        settings = job.submission.settings
        patience_ms = settings.heartbeat_timeout_ms if job.is_alive else START_TIMEOUT_MS
        commands: list[Command] = [_ping_timer(job, host)]
        if job.num_unanswered * settings.heartbeat_interval_ms < patience_ms:
            job.num_unanswered += 1
            return [*commands, PingHost(host)]
        reason = f"no sign of life for {patience_ms / 1_000:g} s"
        self._log.add(now_ms, f"job {job.submission.job_id}", f"JobManager {host} killed: {reason}")
        return [*commands, KillHost(host, reason)]  # again with each round, until its end is told


def _ping_timer(job: DispatchedJob, host: str) -> StartTimer:
    job_id, interval_ms = job.submission.job_id, job.submission.settings.heartbeat_interval_ms
    return StartTimer(f"ping-{job_id}", interval_ms, PingDue(job_id, host))
