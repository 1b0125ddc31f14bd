"""What people and clients may know of a job: its state, counters, failures, history, and what its subtasks report.

The JobManager decides and writes here; everything that leaves the job as information is made from here. A leader that
takes over continues its predecessor's record.

Source: Flink's ``ArchivedExecutionGraph`` and ``ExecutionGraphInfo``.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.state.credentials import masked
from headrace.state.identifiers import VertexId

from ...checkpoint.io import is_newest_kept
from ...checkpoint.statistics import CheckpointStatistics
from ...execution.graph import ExecutionGraph, check_transition
from ...kernel.event_log import EventLog
from ...kernel.restart_backoff import RestartBackoff
from ...protocol.checkpoint_messages import CheckpointEnded
from ...protocol.messages import SubmitJob
from ...protocol.states import JobStatus
from ...protocol.views import FailureView, JobView, SlotInfo, StopMode, TaskManagerView
from .clients import JobClients
from .initializations import Initializations
from .metrics import JobMetrics
from .reports import ReportLog

__all__ = ["JobRecord"]

HISTORY_LENGTH = 200
"""Notable events kept."""

NUM_FAILURES = 16
"""Failures kept: Flink's ``web.exception-history-size``."""

MAX_FAILURE_LENGTH = 8_000
"""Characters kept of each."""


class JobRecord:
    """The record of one job under one leader.

    Args:
        job: The job.
        epoch: The leader's epoch.
        predecessor: The last view of the leader before; None for the first.
    """

    def __init__(self, job: SubmitJob, epoch: int, predecessor: JobView | None) -> None:
        settings = job.settings
        self.status = JobStatus.CREATED
        self.log = EventLog(machine="JobManager", job=job.job_id, epoch=epoch)
        self.clients = JobClients(epoch, settings.heartbeat_timeout_ms, is_attached=settings.attached)
        self.reports = ReportLog(epoch)
        self.metrics = JobMetrics()
        self.checkpoints = CheckpointStatistics()
        self.initializations = Initializations()
        # The Dispatcher has not been told of the newest changes yet.
        self.has_news = True
        self._failure: str | None = None
        self.error: BaseException | None = None
        self.started_ms: int | None = None
        self.ended_ms: int | None = None
        self.num_restarts = 0
        # How it was asked to stop, see `headrace.engine.job.context.stop`.
        self.stopping: StopMode | None = None
        # How far the restart strategy has been used up.
        self.backoff = RestartBackoff(settings.restart_strategy())
        # Parallelism of vertices that were rescaled.
        self.parallelism: dict[VertexId, int] = {}
        # What it was stopped with, see `headrace.engine.job.context.savepoints`.
        self.savepoint_path: str | None = None
        self.savepoint_request: str | None = None
        self._job = job
        self._checkpoints_completed = self._checkpoints_failed = 0
        self._last_checkpoint: int | None = None
        self._last_checkpoint_path: str | None = None
        self._last_checkpoint_ms: float | None = None
        self._last_checkpoint_metrics: dict[str, float] = {}
        self._history: list[tuple[int, str]] = []
        self._failures: list[FailureView] = []
        # The last of them; what follows from it is no other one.
        self._noted: BaseException | None = None
        # When the job came into each of its states last.
        self._entered_ms: dict[str, int] = {}
        # What the cluster does while the job waits for slots.
        self.waiting: str | None = None
        if predecessor is not None:
            self._succeed(predecessor)

    def _succeed(self, predecessor: JobView) -> None:
        self.started_ms = predecessor.started_ms
        self.num_restarts = predecessor.num_restarts
        self._failure = predecessor.failure
        self.stopping = predecessor.stopping
        self.backoff = predecessor.backoff or self.backoff
        self.parallelism = dict(predecessor.parallelism)
        self._checkpoints_completed = predecessor.checkpoints_completed
        self._checkpoints_failed = predecessor.checkpoints_failed
        self._last_checkpoint = predecessor.last_checkpoint
        self._last_checkpoint_path = predecessor.last_checkpoint_path
        self._last_checkpoint_ms = predecessor.last_checkpoint_ms
        self._last_checkpoint_metrics = predecessor.last_checkpoint_metrics
        self._history = list(predecessor.history)
        self._failures = list(predecessor.failures[-NUM_FAILURES:])
        self._entered_ms = dict(predecessor.entered_ms)

    @property
    def last_checkpoint(self) -> int | None:
        """The newest complete checkpoint."""
        return self._last_checkpoint

    @property
    def history(self) -> tuple[tuple[int, str], ...]:
        """Notable events, oldest first."""
        return tuple(self._history)

    @property
    def failure(self) -> str | None:
        """Text of the last failure, without passwords: it may be of anybody's error."""
        return self._failure

    @failure.setter
    def failure(self, text: str) -> None:
        self._failure = masked(text)

    def note(self, now_ms: int, text: str) -> None:
        """Write down a notable event of the job; passwords in it are masked."""
        text = masked(text)
        self.log.add(now_ms, "job", text)
        self._history.append((now_ms, text))
        del self._history[:-HISTORY_LENGTH]

    def note_failure(self, error: BaseException, failure: FailureView) -> None:
        """Write down a failure; noted again, as what it led to, it is the same one."""
        if error is self._noted:
            return
        self._noted = error
        self._failures.append(replace(failure, text=masked(failure.text)[:MAX_FAILURE_LENGTH]))
        del self._failures[:-NUM_FAILURES]

    def began(self, now_ms: int) -> None:
        """Note that the job is there, under its first leader or a later one."""
        if self.started_ms is None:
            self.started_ms = now_ms
        self._entered_ms[self.status.value] = now_ms

    def become(self, status: JobStatus, now_ms: int) -> None:
        """Change the job's state; the state it has is no change.

        Raises:
            InvalidTransition: If the table does not allow it.
        """
        if status is self.status:
            return
        check_transition("job", self.status, status, self.log)
        self.log.add(now_ms, "job", f"{self.status.value} -> {status.value}")
        self.status = status
        self._entered_ms[status.value] = now_ms
        self.has_news = True

    def checkpoint_completed(self, message: CheckpointEnded) -> None:
        """Count a complete checkpoint."""
        self._checkpoints_completed += 1
        self._last_checkpoint = message.checkpoint_id
        self._last_checkpoint_path = message.path
        self._last_checkpoint_ms = message.metrics.get("duration_ms")
        self._last_checkpoint_metrics = message.metrics
        self.has_news = True

    def checkpoint_failed(self) -> None:
        """Count a checkpoint that was given up."""
        self._checkpoints_failed += 1
        self.clients.changed()

    def view(
        self, graph: ExecutionGraph | None, slots: list[SlotInfo], task_managers: list[TaskManagerView]
    ) -> JobView:
        """The job for people and clients."""
        return JobView(
            job_id=self._job.job_id,
            name=self._job.name,
            state=self.status.value,
            version=self.clients.version,
            started_ms=self.started_ms or 0,
            ended_ms=self.ended_ms,
            vertices=() if graph is None else self.metrics.view(graph),
            num_restarts=self.num_restarts,
            checkpoints_completed=self._checkpoints_completed,
            checkpoints_failed=self._checkpoints_failed,
            last_checkpoint=self._last_checkpoint,
            last_checkpoint_path=self._last_checkpoint_path,
            last_checkpoint_ms=self._last_checkpoint_ms,
            last_checkpoint_metrics=self._last_checkpoint_metrics,
            failure=self.failure,
            error=self.error,
            slots=tuple(slots),
            history=self.history,
            stopping=self.stopping,
            savepoint_path=self.savepoint_path,
            savepoint_request=self.savepoint_request,
            accumulators=self.metrics.accumulators(),
            backoff=self.backoff,
            parallelism=dict(self.parallelism),
            is_checkpoint_kept=self._is_checkpoint_kept,
            waiting=self.waiting,
            task_managers=tuple(task_managers),
            entered_ms=dict(self._entered_ms),
            failures=tuple(self._failures),
        )

    @property
    def _is_checkpoint_kept(self) -> bool:
        checkpoints = self._job.settings.checkpoints
        if checkpoints is None or not self.status.is_terminal:
            return True
        return is_newest_kept(checkpoints, self.status.value, is_stopped=self.stopping is not None)
