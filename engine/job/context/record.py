"""What people and clients may know of a job: its state, counters, failures, history, and what its subtasks report.

The JobManager decides and writes here; everything that leaves the job as information is made from here. A leader that
takes over continues its predecessor's record.

Source: Flink's ``ArchivedExecutionGraph`` and ``ExecutionGraphInfo``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from headrace.state.credentials import masked
from headrace.state.identifiers import VertexId

from ...checkpoint.io import is_newest_kept
from ...checkpoint.stats_tracker import CheckpointStatistics
from ...execution.graph import check_transition
from ...kernel.event_log import EventLog
from ...kernel.restart_backoff import RestartBackoff
from ...protocol.checkpoint_messages import CheckpointEnded
from ...protocol.details import InitializationView, JobSummary
from ...protocol.messages import SubmitJob
from ...protocol.states import JobStatus
from ...protocol.views import FailureView, JobView, RescaleView, SlotInfo, StopMode, TaskManagerView, VertexView
from .clients import JobClients
from .metrics import JobMetrics
from .phase import Phase
from .reports import ReportLog

__all__ = ["Initializations", "JobRecord"]

HISTORY_LENGTH = 200
"""Notable events kept."""

NUM_FAILURES = 16
"""Failures kept: Flink's ``web.exception-history-size``."""

NUM_RESCALES = 50
"""Rescales kept."""

MAX_FAILURE_LENGTH = 8_000
"""Characters kept of each."""

NUM_INITIALIZATIONS = 16
"""Starts and restarts kept."""

_ON_THE_WAY = frozenset({Phase.STOPPING, Phase.BACKING_OFF, Phase.PREPARING, Phase.WAITING_FOR_SLOTS, Phase.DEPLOYING})


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
        # Rescales, oldest first, and what the autoscaler is busy with; None if there is none.
        self.rescales: list[RescaleView] = []
        self.autoscaler: str | None = None
        # The last of the failures; what follows from it is no other one.
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
        self.rescales = list(predecessor.rescales)

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

    def rescale_began(self, rescale: RescaleView) -> None:
        """Write down a rescale, under way or only advised."""
        self.rescales.append(rescale)
        del self.rescales[:-NUM_RESCALES]
        self.has_news = True

    def rescale_ended(self, now_ms: int, error: str = "") -> None:
        """Write down the end of the one under way; nothing if there is none."""
        if self.rescales and self.rescales[-1].ended_ms is None:
            self.rescales[-1] = replace(self.rescales[-1], ended_ms=now_ms, error=masked(error))
            self.has_news = True

    def _close_lost_rescale(self, now_ms: int) -> None:
        """See what became of a rescale that the leader before has begun: it is part of the view, or it is lost."""
        if not self.rescales or self.rescales[-1].ended_ms is not None:
            return
        is_known = all(self.parallelism.get(key) == number for key, number in self.rescales[-1].after.items())
        self.rescale_ended(now_ms, "" if is_known else "its JobManager was lost")

    def began(self, now_ms: int) -> None:
        """Note that the job is there, under its first leader or a later one."""
        self._close_lost_rescale(now_ms)
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
        self, vertices: tuple[VertexView, ...], slots: list[SlotInfo], task_managers: list[TaskManagerView]
    ) -> JobView:
        """Return the job for people and clients."""
        return JobView(
            job_id=self._job.job_id,
            name=self._job.name,
            state=self.status,
            version=self.clients.version,
            started_ms=self.started_ms or 0,
            ended_ms=self.ended_ms,
            vertices=vertices,
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
            rescales=tuple(self.rescales),
            autoscaler=self.autoscaler,
        )

    def summary(self, kind: str, num_tasks: dict[str, int], slots: dict[str, tuple[str, int]]) -> JobSummary:
        """Return what lists show of the job."""
        started_ms = self.started_ms or 0
        changed_ms = max(self._entered_ms.values(), default=started_ms)
        job, state = self._job, self.status
        return JobSummary(job.job_id, job.name, state, started_ms, self.ended_ms, changed_ms, kind, num_tasks, slots)

    @property
    def _is_checkpoint_kept(self) -> bool:
        checkpoints = self._job.settings.checkpoints
        if checkpoints is None or not self.status.is_terminal:
            return True
        return is_newest_kept(checkpoints, self.status, is_stopped=self.stopping is not None)


class Initializations:
    """How long the job took to run under one leader: from its submission, a failure or a rescale on, phase by phase.

    Source: Flink's ``JobInitializationMetrics`` and FLIP-384 (traces of checkpoints and recoveries).
    """

    def __init__(self) -> None:
        self._ended: deque[InitializationView] = deque(maxlen=NUM_INITIALIZATIONS)
        # Of the one that is under way: phases with the time at which each of them began first.
        self._phases: dict[str, int] = {}

    def entered(self, phase: Phase, now_ms: int) -> None:
        """Note a phase; a failure on the way to EXECUTING is a part of the same start."""
        if phase in _ON_THE_WAY:
            self._phases.setdefault(phase.value, now_ms)
        elif phase is not Phase.EXECUTING:
            self._phases.clear()

    def ended(
        self,
        now_ms: int,
        num_restarts: int,
        deployment: int,
        num_tasks: int,
        restored: int,
        history: Sequence[tuple[int, str]],
    ) -> None:
        """Note that all tasks run.

        Args:
            now_ms: The time.
            num_restarts: How often the job has been restarted so far.
            deployment: Number of the attempts that were started.
            num_tasks: How many these are.
            restored: The checkpoint that they go on from; 0 for none.
            history: Notable events of the job, oldest first: the last one before it was stopped says why.
        """
        if not self._phases:
            return
        stopped_ms = self._phases.get(Phase.STOPPING.value)
        reasons = [] if stopped_ms is None else [text for at_ms, text in history if at_ms <= stopped_ms]
        reason = reasons[-1] if reasons else ""
        view = InitializationView(num_restarts, deployment, now_ms, dict(self._phases), num_tasks, restored, reason)
        self._ended.append(view)
        self._phases.clear()

    def views(self) -> tuple[InitializationView, ...]:
        """Return those that have ended, oldest first."""
        return tuple(self._ended)
