"""A job down to its subtasks and checkpoints, for those who ask for it: too much to be sent with every view.

A JobManager makes it when it is asked, and once more at the job's end, for the Dispatcher to keep. All of it is data.

Source: Flink's ``ArchivedExecutionGraph`` and ``CheckpointStatsSnapshot``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.state.identifiers import JobId, OperatorId, VertexId

from ..kernel.config import JobSettings
from ..kernel.metrics import MetricValue
from .states import CheckpointStatus, JobStatus, TaskState
from .views import JobView

__all__ = [
    "CheckpointStatisticsView",
    "CheckpointView",
    "EdgeView",
    "Figures",
    "InitializationView",
    "JobDetails",
    "JobSummary",
    "RestoredCheckpoint",
    "SubtaskTotals",
    "SubtaskView",
    "TaskAcknowledgement",
    "VertexDetails",
]


class TaskAcknowledgement(NamedTuple):
    """One task's part of a checkpoint.

    Attributes:
        vertex: Its vertex.
        subtask: Which of its subtasks.
        acknowledged_ms: When the coordinator heard of it, epoch milliseconds.
        state_bytes: The state that it stands for.
        uploaded_bytes: What of that was written for this checkpoint.
        persisted_bytes: Records in flight that belong to it.
        alignment_ms: From the first barrier to the last one.
        sync_ms: How long the task stood still for its snapshot.
        async_ms: How long files were written beside it.
        is_unaligned: Whether barriers have overtaken records.
    """

    vertex: VertexId
    subtask: int
    acknowledged_ms: int
    state_bytes: int
    uploaded_bytes: int
    persisted_bytes: int
    alignment_ms: float
    sync_ms: float
    async_ms: float
    is_unaligned: bool


class CheckpointProgress(NamedTuple):
    """How far a checkpoint or savepoint is.

    Attributes:
        checkpoint_id: Its number.
        is_savepoint: Whether it is a savepoint.
        is_last: Whether it is the last one of its job.
        num_subtasks: How many have to acknowledge it; 0 before that is known.
        num_acknowledged: How many have.
        state_bytes: The state that these stand for.
        uploaded_bytes: What of that they have written for it.
    """

    checkpoint_id: int
    is_savepoint: bool
    is_last: bool
    num_subtasks: int
    num_acknowledged: int
    state_bytes: int
    uploaded_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint or savepoint.

    Attributes:
        checkpoint_id: Its number.
        status: How it stands.
        is_savepoint: Whether it is a savepoint.
        is_last: Whether it is the last one of its job.
        triggered_ms: When it was asked for, epoch milliseconds.
        ended_ms: When it was complete or given up; None while it is neither.
        num_subtasks: How many have to acknowledge it; 0 before that is known.
        tasks: Who has.
        path: Where it is, once it is complete.
        reason: Why it was given up.
    """

    checkpoint_id: int
    status: CheckpointStatus
    is_savepoint: bool
    is_last: bool
    triggered_ms: int
    ended_ms: int | None
    num_subtasks: int
    tasks: tuple[TaskAcknowledgement, ...]
    path: str = ""
    reason: str = ""

    @property
    def progress(self) -> CheckpointProgress:
        """How far it is."""
        return CheckpointProgress(
            self.checkpoint_id,
            self.is_savepoint,
            self.is_last,
            self.num_subtasks,
            len(self.tasks),
            sum(task.state_bytes for task in self.tasks),
            sum(task.uploaded_bytes for task in self.tasks),
        )

    @property
    def duration_ms(self) -> int | None:
        """From the trigger to the end; None while it goes on."""
        return None if self.ended_ms is None else max(self.ended_ms - self.triggered_ms, 0)

    @property
    def latest_acknowledgement_ms(self) -> int | None:
        """When the newest acknowledgement came; None before the first."""
        return max((task.acknowledged_ms for task in self.tasks), default=None)


class Figures(NamedTuple):
    """What a number has been over the checkpoints that a summary is of."""

    min: float
    max: float
    avg: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float


@dataclass(frozen=True, slots=True)
class RestoredCheckpoint:
    """What the job went on from last.

    Attributes:
        checkpoint_id: Its number.
        restored_ms: When, epoch milliseconds.
        is_savepoint: Whether it is one.
        path: Where it is.
    """

    checkpoint_id: int
    restored_ms: int
    is_savepoint: bool
    path: str


@dataclass(frozen=True, slots=True)
class CheckpointStatisticsView:
    """The checkpoints that one leader of a job has seen.

    Attributes:
        num_restored: How often the job went on from one.
        num_completed: Savepoints included; so of the next ones.
        num_failed: Given up, for whatever reason.
        history: The newest ones that have ended, newest first.
        latest_completed: The newest checkpoint that is complete and no savepoint.
        latest_savepoint: The newest complete savepoint.
        latest_failed: The newest that was given up.
        restored: What the job went on from last.
        summary: Figures of the complete ones by name: ``state_bytes``, ``uploaded_bytes``, ``persisted_bytes``,
            ``duration_ms``. Empty before the first.
    """

    num_restored: int = 0
    num_completed: int = 0
    num_failed: int = 0
    history: tuple[CheckpointView, ...] = ()
    latest_completed: CheckpointView | None = None
    latest_savepoint: CheckpointView | None = None
    latest_failed: CheckpointView | None = None
    restored: RestoredCheckpoint | None = None
    summary: dict[str, Figures] = field(default_factory=dict)


class SubtaskView(NamedTuple):
    """One subtask as its current attempt is. A tuple, as there may be ten thousand of them in an answer.

    Attributes:
        subtask: Its index.
        state: Of its attempt, see `headrace.engine.protocol.states.TaskState`; CREATED before the first.
        attempt: Number of the deployment it is part of; -1 before the first.
        task_manager: Whose slot it is in; empty before the first attempt.
        host: The slot's process.
        node: The machine, as the cluster names it; empty if that is not known.
        entered_ms: When the attempt came into each state, epoch milliseconds.
        numbers: ``records_in``, ``records_out``, ``busy_ms``, ``backpressured_ms``, ``elapsed_ms`` since the attempt's
            start, ``output_usage`` and ``input_usage`` (how full the fullest channel is, 0 to 1), ``watermark_ms`` and
            ``input_watermark_ms`` if there is one, and those of its exchanges (`edge_number`). Empty before its first
            report.
        records_in_per_s: Over the last report interval; so of the next ones.
        records_out_per_s: Rate of what it has given on.
        busy: Share of time, 0 to 1.
        backpressured: Share of time, 0 to 1.
        operators: The metrics of its operators by uid, as they were reported.
    """

    subtask: int
    state: TaskState
    attempt: int
    task_manager: str
    host: str
    node: str
    entered_ms: dict[str, int]
    numbers: dict[str, float]
    records_in_per_s: float = 0.0
    records_out_per_s: float = 0.0
    busy: float = 0.0
    backpressured: float = 0.0
    operators: dict[OperatorId, dict[str, MetricValue]] = {}

    @property
    def idle(self) -> float:
        """Share of time that is neither; 0 before the first report."""
        return max(1.0 - self.busy - self.backpressured, 0.0) if self.numbers else 0.0

    @property
    def started_ms(self) -> int:
        """When its attempt was deployed, epoch milliseconds; -1 before that."""
        return self.entered_ms.get("DEPLOYING", -1)

    @property
    def ended_ms(self) -> int:
        """When its attempt ended; -1 while it has not."""
        return self.entered_ms.get(self.state, -1) if self.state in _TERMINAL else -1


_TERMINAL = frozenset(state for state in TaskState if state.is_terminal)


class SubtaskTotals(NamedTuple):
    """What some subtasks come to: for those who look at the whole of a job, and not at each of them.

    Attributes:
        is_complete: Whether all of them have reported, and there are any.
        records_in: Of their current attempts together; so of the next four.
        records_out: What they have given on.
        busy_ms: Time in which they worked.
        backpressured_ms: Time in which they waited for credit.
        elapsed_ms: Time since they began.
        started_ms: When the first of them was deployed, epoch milliseconds; -1 before that.
        ended_ms: When the last of them ended; -1 while one has not.
        max_busy: Share of time of the busiest one, 0 to 1.
        max_backpressured: Share of time of the one that is held up most, 0 to 1.
        rates: Records per second that each of them reads, by index.
    """

    is_complete: bool
    records_in: int
    records_out: int
    busy_ms: int
    backpressured_ms: int
    elapsed_ms: int
    started_ms: int
    ended_ms: int
    max_busy: float
    max_backpressured: float
    rates: tuple[float, ...]

    @classmethod
    def of(cls, subtasks: Sequence[SubtaskView]) -> SubtaskTotals:
        """Add up some subtasks."""
        records_in = records_out = busy_ms = backpressured_ms = elapsed_ms = 0.0
        num_reported, started_ms, ended_ms = 0, -1, -1
        for one in subtasks:
            numbers = one.numbers
            if numbers:
                num_reported += 1
                records_in += numbers.get("records_in", 0)
                records_out += numbers.get("records_out", 0)
                busy_ms += numbers.get("busy_ms", 0)
                backpressured_ms += numbers.get("backpressured_ms", 0)
                elapsed_ms += numbers.get("elapsed_ms", 0)
            began_ms = one.started_ms
            if began_ms >= 0 and (began_ms < started_ms or started_ms < 0):
                started_ms = began_ms
            ended_ms = max(ended_ms, one.ended_ms)
        return cls(
            0 < num_reported == len(subtasks),
            int(records_in),
            int(records_out),
            int(busy_ms),
            int(backpressured_ms),
            int(elapsed_ms),
            started_ms,
            ended_ms if all(one.ended_ms >= 0 for one in subtasks) else -1,
            max([one.busy for one in subtasks], default=0.0),
            max([one.backpressured for one in subtasks], default=0.0),
            tuple([one.records_in_per_s for one in subtasks]),
        )


@dataclass(frozen=True, slots=True)
class VertexDetails:
    """What a view of a vertex leaves out.

    Attributes:
        vertex_id: Its id.
        max_parallelism: How many key groups it has.
        slot_sharing_group: The group of its slots.
        totals: What its subtasks come to.
        subtasks: All of them, by index; none if they were not asked for.
    """

    vertex_id: VertexId
    max_parallelism: int
    slot_sharing_group: str
    totals: SubtaskTotals
    subtasks: tuple[SubtaskView, ...]


@dataclass(frozen=True, slots=True)
class EdgeView:
    """An exchange between two vertices.

    Attributes:
        source: Whose output it carries.
        target: Who reads it.
        input_index: Which input of the target.
        ship_strategy: How records are dealt out: ``FORWARD``, ``HASH`` ...
        side_output: Which side output it carries; None for the main one.
        is_feedback: Whether it closes a loop.
        edge_id: Its number in the job.
        records: How many the present attempts have sent there; None before one of them has reported.
        records_per_s: The same over the last report interval.
        output_usage: How full the fullest channel is where it is written, 0 to 1 (and over, of large batches).
        input_usage: The same where it is read.
    """

    source: VertexId
    target: VertexId
    input_index: int
    ship_strategy: str
    side_output: str | None = None
    is_feedback: bool = False
    edge_id: int = -1
    records: int | None = None
    records_per_s: float = 0.0
    output_usage: float = 0.0
    input_usage: float = 0.0


class InitializationView(NamedTuple):
    """One start or restart of a job, from what led to it to the moment when all tasks run.

    Attributes:
        num_restarts: How often the job had been restarted by then; 0 for the first start.
        deployment: Number of the attempts that were started for it.
        ended_ms: When all tasks ran, epoch milliseconds.
        phases: When each phase on the way began, by its name, in order.
        num_tasks: How many tasks were started.
        checkpoint_id: What they went on from; 0 for none.
        reason: Why it was restarted; empty for the first start.
    """

    num_restarts: int
    deployment: int
    ended_ms: int
    phases: dict[str, int]
    num_tasks: int
    checkpoint_id: int
    reason: str

    @property
    def began_ms(self) -> int:
        """When it began, epoch milliseconds."""
        return min(self.phases.values())


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job down to its subtasks, or as much of it as `headrace.engine.protocol.messages.FetchJobDetails` asks for.

    Attributes:
        view: The job.
        settings: What it was submitted with; None if that is not known.
        vertices: In the order of the view's.
        edges: The exchanges.
        checkpoints: Its checkpoints; as of a job without any if they were not asked for.
        initializations: Its newest starts and restarts under the present leader, oldest first.
        plan: Of a data set its optimised plan, for people; empty of others.
    """

    view: JobView
    settings: JobSettings | None = None
    vertices: tuple[VertexDetails, ...] = ()
    edges: tuple[EdgeView, ...] = ()
    checkpoints: CheckpointStatisticsView = CheckpointStatisticsView()
    initializations: tuple[InitializationView, ...] = ()
    plan: str = ""


@dataclass(frozen=True, slots=True)
class JobSummary:
    """What lists of jobs and of slots show of a job, which a job of any size tells at once.

    Attributes:
        job_id: The job.
        name: Its name.
        state: See `JobView`.
        started_ms: Epoch milliseconds.
        ended_ms: The same; None while it has not ended.
        changed_ms: When it came into its present state.
        kind: ``STREAMING``, ``BATCH`` or ``DATASET``; empty if that is not known any more.
        num_tasks: How many tasks are in which state, see `headrace.engine.protocol.states.TaskState`.
        slots: Slots with tasks that have not ended, by their host: of which TaskManager, and how many tasks.
    """

    job_id: JobId
    name: str
    state: JobStatus
    started_ms: int
    ended_ms: int | None
    changed_ms: int
    kind: str
    num_tasks: dict[str, int]
    slots: dict[str, tuple[str, int]]
