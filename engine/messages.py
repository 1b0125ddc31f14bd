"""Every message that one actor sends another, and every question a client asks.

Events are in the past tense or named as Flink (and rows D5 to D10) name them; each carries the ids that let the
receiver recognise it as
stale: job, leader epoch, execution attempt, channel and sequence number. All are frozen values, safe to deliver twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from headrace.engine.accumulators import AccumulatorPart
from headrace.engine.config import JobSettings
from headrace.engine.connector import Split
from headrace.engine.jobgraph import JobEdge
from headrace.engine.machine import Address
from headrace.engine.metrics import MetricValue
from headrace.engine.records import Element
from headrace.engine.restart_backoff import RestartBackoff
from headrace.state.identifiers import ExecutionAttemptId, JobId, OperatorId, VertexId
from headrace.state.snapshot import OperatorSnapshot, TaskRestore

# -------------------------------------------------------------------------------------------------- client to
# Dispatcher (asks)


@dataclass(frozen=True, slots=True)
class SubmitJob:
    """Run a job (row D6). Answer: `JobSubmitted` or `RequestFailed`. Submitting the same ``job_id`` again changes
    nothing.
    """

    job_id: JobId
    name: str
    job_graph: bytes
    """The `JobGraph`, pickled by cloudpickle."""
    settings: JobSettings
    num_slots: int
    """Slots the job needs, so that a hopeless request is refused at once."""


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    job_id: JobId


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A question could not be answered; ``error`` is one of the tree in ``headrace.engine.errors``."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class ListJobs:
    """Answer: a list of `JobView`, newest first, ended ones included."""


@dataclass(frozen=True, slots=True)
class FindJobManager:
    """Answer: `JobManagerFound`, or `RequestFailed` with JobNotFoundError."""

    job_id: JobId


@dataclass(frozen=True, slots=True)
class JobManagerFound:
    """``address`` is None once the job has ended and its JobManager is gone; then ``view`` is its last word."""

    address: Address | None
    epoch: int
    view: JobView


@dataclass(frozen=True, slots=True)
class ShutDownCluster:
    """End all jobs and all hosts. Answer: True once nothing is left but the Dispatcher's own host."""


# -------------------------------------------------------------------------------------------------- client to
# JobManager (asks)


@dataclass(frozen=True, slots=True)
class WaitForJob:
    """Long poll; also the sign of life of an attached client. Answer: `JobView`, once its ``version`` is past
    ``seen_version``
    or ``timeout_ms`` has passed.
    """

    seen_version: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class FetchReports:
    """What subtasks reported (collected rows, printed lines) from ``offset`` on. Answer: `ReportsFetched`, at once."""

    offset: int


@dataclass(frozen=True, slots=True)
class ReportsFetched:
    """``reports`` are ``(operator uid, subtask, name, value)``; ``next_offset`` is where to go on, and acknowledges
    all before it when fetched.
    """

    next_offset: int
    reports: list[tuple[OperatorId, int, str, Any]]


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Stop a job (row D7). Answer: True when the job has ended (in whatever state)."""


class StopMode(str, Enum):
    """How a job is stopped in order."""

    SUSPEND = "suspend"
    """Where it is: windows and timers stay in the last checkpoint, for a later run."""
    DRAIN = "drain"
    """As if all input had ended there: windows and timers fire first."""


@dataclass(frozen=True, slots=True)
class StopJob:
    """End a job in order: sources stop reading, one last checkpoint is taken, committed and kept. May be asked again.

    Answer: True at once, or `RequestFailed` with ConfigurationError if the job cannot be stopped like that. What became
    of it says its view: FINISHED, with ``stopping`` set, and ``last_checkpoint_path``; or another end.
    """

    mode: StopMode


@dataclass(frozen=True, slots=True)
class RescaleJob:
    """Run a job on at another parallelism. May be asked again. Answer: True once all tasks run with it.

    Or `RequestFailed`, and then the job goes on as it was: with ConfigurationError if it takes no checkpoints or cannot
    be rescaled like that, NoResourceAvailableError if there are not enough slots, CheckpointError if the checkpoint to
    go on from could not be taken, JobError if the job is about to end.
    """

    parallelism: int | None = None
    """Of all operators that can be parallel; None leaves alone those that ``operators`` does not name."""
    operators: dict[str, int] = field(default_factory=dict)
    """By operator uid, or by name."""
    timeout_ms: int = 60_000
    """An answer that takes longer is taken for lost, and asked for again."""


@dataclass(frozen=True, slots=True)
class KillSlotOnPurpose:
    """Kill one slot's process, as a demonstration of recovery. Answer: the killed host's name."""

    index: int


# ----------------------------------------------------------------------------------------- Dispatcher,
# ResourceManager, JobManager


@dataclass(frozen=True, slots=True)
class JobStatusChanged:
    """A JobManager tells the Dispatcher how its job is (row D10)."""

    job_id: JobId
    epoch: int
    view: JobView


@dataclass(frozen=True, slots=True)
class RequestSlots:
    """A JobManager tells the ResourceManager how many slots it needs in all now; the last word per (job, epoch)
    counts.
    """

    job_id: JobId
    epoch: int
    job_manager: Address
    num_slots: int
    settings: JobSettings
    unused: tuple[str, ...] = ()
    """TaskManagers that are to be given back: the job has no task on them and will not place any there."""


@dataclass(frozen=True, slots=True)
class SlotRequestFailed:
    """The ResourceManager cannot ever give that many slots."""

    job_id: JobId
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseJob:
    """The job needs nothing any more: its TaskManagers are given back."""

    job_id: JobId
    epoch: int


@dataclass(frozen=True, slots=True)
class TaskManagerLost:
    """The ResourceManager, parent of TaskManagers, tells their JobManager that one is gone."""

    job_id: JobId
    task_manager: str
    reason: str
    node: str = ""
    """Where it was; empty if that is not known."""


@dataclass(frozen=True, slots=True)
class JobManagerChanged:
    """The ResourceManager tells a TaskManager where its job's leader is now."""

    job_id: JobId
    job_manager: Address
    epoch: int


# -------------------------------------------------------------------------------------------------------------
# TaskManager


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One slot of a TaskManager: ``address`` of its current process, which changes with every restart of it."""

    index: int
    address: Address
    pid: int | None = None
    node: str = ""
    """The machine it is on; empty if that is not known."""


@dataclass(frozen=True, slots=True)
class RegisterTaskManager:
    """A TaskManager announces itself, at start and whenever its slots change (rows D5, D11); repeated until
    acknowledged.
    """

    job_id: JobId
    task_manager: str
    address: Address
    epoch: int
    """The leader epoch it believes in."""
    slots: tuple[SlotInfo, ...]
    resources: dict[str, float]
    """Cores, memory_bytes, disk_bytes as it sees them."""
    revision: int
    """Counts the announcements, so that an old one never replaces a newer."""
    node: str = ""
    """The machine it is on, with all its slots; empty if it knows of none."""


@dataclass(frozen=True, slots=True)
class AcknowledgeRegistration:
    """Answer to `RegisterTaskManager`: from here on the TaskManager is operational."""

    job_id: JobId
    epoch: int
    revision: int


@dataclass(frozen=True, slots=True)
class RequestHeartbeat:
    """A leader asks its TaskManager for a sign of life; answered by `Heartbeat` of the same ``nonce``."""

    job_id: JobId
    epoch: int
    nonce: int
    sender: Address


@dataclass(frozen=True, slots=True)
class Heartbeat:
    job_id: JobId
    task_manager: str
    nonce: int


@dataclass(frozen=True, slots=True)
class SlotLost:
    """A TaskManager tells its JobManager that a slot's process is gone, with everything in it; a fresh one is
    announced later.
    """

    job_id: JobId
    epoch: int
    task_manager: str
    slot: SlotInfo
    reason: str


@dataclass(frozen=True, slots=True)
class KillSlot:
    """A JobManager orders the death of a slot's process (a task did not cancel in time)."""

    job_id: JobId
    epoch: int
    slot_host: str
    reason: str


# ------------------------------------------------------------------------------------------------------- tasks
# (JobManager, slots)


@dataclass(frozen=True, slots=True)
class ChannelDescriptor:
    """One channel of a task: the peer subtask and where it lives."""

    edge_id: int
    peer: ExecutionAttemptId
    peer_address: Address


@dataclass(frozen=True, slots=True)
class TaskDeployment:
    """Everything a slot needs to build one subtask. ``inputs`` and ``outputs`` are ordered by (edge id, peer
    subtask).
    """

    job_id: JobId
    job_name: str
    attempt: ExecutionAttemptId
    vertex: bytes
    """The `JobVertex`, pickled by cloudpickle."""
    input_edges: tuple[JobEdge, ...]
    output_edges: tuple[JobEdge, ...]
    inputs: tuple[ChannelDescriptor, ...]
    outputs: tuple[ChannelDescriptor, ...]
    settings: JobSettings
    job_manager: Address
    coordinator: Address
    restore: TaskRestore | None
    consumer_parallelisms: tuple[int, ...] = ()
    """Of each output edge's target."""


@dataclass(frozen=True, slots=True)
class SubmitTask:
    """Build and restore a task, do not run it yet (row D11). Sent by way of the TaskManager."""

    deployment: TaskDeployment


@dataclass(frozen=True, slots=True)
class StartTask:
    """Run an initialised task: all its peers are initialised too."""

    attempt: ExecutionAttemptId


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Stop a task and forget it; answered by state CANCELED, also if it is not known (any more)."""

    attempt: ExecutionAttemptId
    job_manager: Address


@dataclass(frozen=True, slots=True)
class FinishTask:
    """All data has been processed and the last checkpoint, if any, is complete: commit what is left, close, report
    FINISHED.
    """

    attempt: ExecutionAttemptId


@dataclass(frozen=True, slots=True)
class StopSource:
    """Read no more, whether the task has been started already or not. May come twice.

    With ``drain`` the source ends as if its input had; without it stays as it is until a barrier that suspends.
    """

    attempt: ExecutionAttemptId
    drain: bool


@dataclass(frozen=True, slots=True)
class UpdateTaskExecutionState:
    """A task has changed its state (row D8): INITIALIZING, READY (initialised), RUNNING, ENDED (all its data
    processed, still answering barriers),
    FINISHED, CANCELED or FAILED.
    """

    attempt: ExecutionAttemptId
    state: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class RequestNextInputSplit:
    """A source subtask has no split left (row D9); ``nonce`` counts its requests, answers to old ones are ignored."""

    attempt: ExecutionAttemptId
    operator: OperatorId
    nonce: int


@dataclass(frozen=True, slots=True)
class NextInputSplit:
    """Answer: a split, or None with ``no_more``. While nothing is there yet no answer comes: it is sent when a split
    appears.
    """

    attempt: ExecutionAttemptId
    operator: OperatorId
    nonce: int
    split: Split | None
    no_more: bool


@dataclass(frozen=True, slots=True)
class ReportWatermark:
    """A source subtask of an alignment group tells how far it is; repeated with every update interval.

    ``watermark_ms`` is the lowest of the splits that count, None if there is none; ``number`` counts the reports.
    """

    attempt: ExecutionAttemptId
    operator: OperatorId
    number: int
    watermark_ms: int | None


@dataclass(frozen=True, slots=True)
class WatermarkLimit:
    """Answer to `ReportWatermark` ``number``: splits whose watermark is above ``limit_ms`` are not to be read."""

    attempt: ExecutionAttemptId
    operator: OperatorId
    number: int
    limit_ms: int


@dataclass(frozen=True, slots=True)
class MetricsReported:
    """Numbers of one task: counters since the attempt's start, gauges, and the shares of time since the last report.

    Attributes:
        numbers: Of the task itself.
        operators: Metrics of each of its operators.
        accumulators: What the functions of each operator have accumulated, by name.
    """

    attempt: ExecutionAttemptId
    numbers: dict[str, float]
    operators: dict[OperatorId, dict[str, MetricValue]] = field(default_factory=dict)
    accumulators: dict[OperatorId, dict[str, AccumulatorPart]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportEmitted:
    """A subtask hands something to the client: ``sequence`` counts its reports within the attempt."""

    attempt: ExecutionAttemptId
    operator: OperatorId
    name: str
    value: Any
    sequence: int


# -----------------------------------------------------------------------------------------------------------------
# data plane


@dataclass(frozen=True, slots=True)
class DataMessage:
    """Elements of one channel, in order. ``sequence`` counts the channel's messages from 0."""

    edge_id: int
    producer: ExecutionAttemptId
    consumer: ExecutionAttemptId
    sequence: int
    elements: tuple[Element, ...]
    nbytes: int
    overtakes: bool = False
    """Whether it is a barrier alone, sent outside of the credit, that is ahead of all that has not been processed."""


@dataclass(frozen=True, slots=True)
class AddCredit:
    """The consumer allows messages up to (not including) sequence ``up_to_sequence`` and ``up_to_bytes`` bytes, both
    counted from
    the channel's beginning: absolute, so doubling it is harmless.
    """

    edge_id: int
    producer: ExecutionAttemptId
    consumer: ExecutionAttemptId
    up_to_sequence: int
    up_to_bytes: int
    batch_bytes: int = 0
    """Messages should be no larger than this, bytes; 0 leaves that to the producer."""


# -----------------------------------------------------------------------------------------------------------------
# checkpoints


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """CheckpointCoordinator to JobManager: snapshot the enumerators and trigger the sources of these attempts, in
    one go.
    """

    epoch: int
    checkpoint_id: int
    timestamp_ms: int
    base_id: int = 0
    """See `headrace.engine.records.CheckpointBarrier`."""
    savepoint: str | None = None
    """See `headrace.engine.records.CheckpointBarrier`."""


@dataclass(frozen=True, slots=True)
class CheckpointTriggered:
    """JobManager to CheckpointCoordinator: done; these attempts must acknowledge, this is the enumerators' part.
    ``attempts`` empty: refused.
    """

    checkpoint_id: int
    attempts: tuple[ExecutionAttemptId, ...]
    enumerators: dict[OperatorId, Any]
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """JobManager to a source task: end the current batch, snapshot, emit the barrier."""

    attempt: ExecutionAttemptId
    checkpoint_id: int
    timestamp_ms: int
    suspends: bool = False
    """Whether tasks process nothing more behind this barrier: the job is stopped there."""
    base_id: int = 0
    """See `headrace.engine.records.CheckpointBarrier`."""
    savepoint: str | None = None
    """See `headrace.engine.records.CheckpointBarrier`."""


@dataclass(frozen=True, slots=True)
class AcknowledgeCheckpoint:
    """A task's part of a checkpoint is durable."""

    attempt: ExecutionAttemptId
    checkpoint_id: int
    snapshots: tuple[OperatorSnapshot, ...]
    metrics: dict[str, float]
    """``alignment_ms``, ``sync_ms``, ``async_ms``, ``bytes``, ``uploaded_bytes``, ``persisted_bytes``,
    ``is_unaligned``."""


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    """A task cannot give its part."""

    attempt: ExecutionAttemptId
    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """CheckpointCoordinator to JobManager: published. The JobManager notifies the tasks and, if it was the last one,
    finishes the job.
    """

    epoch: int
    checkpoint_id: int
    path: str
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """CheckpointCoordinator to JobManager: will never complete."""

    epoch: int
    checkpoint_id: int
    reason: str
    fail_job: bool
    """Whether more than the tolerable number have failed in a row."""


@dataclass(frozen=True, slots=True)
class NotifyCheckpointComplete:
    attempt: ExecutionAttemptId
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class NotifyCheckpointAborted:
    attempt: ExecutionAttemptId
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    """JobManager to CheckpointCoordinator: all tasks of a fresh deployment run; checkpoints may be triggered."""

    epoch: int
    deployment: int


@dataclass(frozen=True, slots=True)
class ExecutionStopped:
    """JobManager to CheckpointCoordinator: tasks are going down; abort what is pending, trigger nothing, delete
    nothing.
    Answered by `CoordinatorStopped` once no publication is under way, with the newest complete checkpoint.
    """

    epoch: int
    deployment: int


@dataclass(frozen=True, slots=True)
class CoordinatorStopped:
    """From here on no checkpoint of the old deployment can complete; restore from ``checkpoint_id`` at ``path``."""

    deployment: int
    checkpoint_id: int | None
    path: str | None


@dataclass(frozen=True, slots=True)
class FinalCheckpointWanted:
    """JobManager to CheckpointCoordinator: all data is processed; take one last checkpoint as soon as possible, then
    tell.
    """

    epoch: int
    deployment: int


# -------------------------------------------------------------------------------------------------------------------
# views


@dataclass(frozen=True, slots=True)
class OperatorView:
    """One operator of a vertex for people.

    Attributes:
        uid: Its uid.
        name: Its display name.
        metrics: Its metrics by their full names (``group.name``), added up over the subtasks of the current attempts; a
            distribution is there as ``name.count``, ``.sum``, ``.min``, ``.max`` and ``.mean``.
    """

    uid: OperatorId
    name: str
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class VertexView:
    """One vertex for people: rates and shares are over the last report interval, summed or averaged over its subtasks.

    ``busy``, ``idle`` and ``backpressured`` are shares of time, 0 to 1. ``watermark_ms`` is the lowest of its
    subtasks, None before the first.
    """

    vertex_id: VertexId
    name: str
    parallelism: int
    states: dict[str, int]
    records_in: int
    records_out: int
    records_in_per_s: float
    records_out_per_s: float
    busy: float
    idle: float
    backpressured: float
    watermark_ms: int | None
    metrics: dict[str, float] = field(default_factory=dict)
    """Sums of the operators' own counters (``num_late_records_dropped`` ...)."""
    operators: tuple[OperatorView, ...] = ()
    """The operators of its chain, first to last."""
    attempts: tuple[int, ...] = ()
    """Number of the deployment that each subtask's current run was part of, -1 before its first."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job for people and clients.

    Attributes:
        state: CREATED, RUNNING, RESTARTING, FAILING, FAILED, CANCELLING, CANCELED, FINISHED or SUSPENDED.
        version: Grows with each change of anything here.
        num_restarts: Restarts so far.
        last_checkpoint: Id of the newest complete checkpoint.
        failure: The first failure's text (of the last one, while restarting).
        error: The typed error the job ended with.
        slots: Slot hosts with their pids, by TaskManager, for `headrace demo --kill` and tests.
    """

    job_id: JobId
    name: str
    state: str
    version: int
    started_ms: int
    ended_ms: int | None
    vertices: tuple[VertexView, ...]
    num_restarts: int
    checkpoints_completed: int
    checkpoints_failed: int
    last_checkpoint: int | None
    last_checkpoint_path: str | None
    last_checkpoint_ms: float | None
    failure: str | None
    error: BaseException | None
    slots: tuple[SlotInfo, ...] = ()
    history: tuple[tuple[int, str], ...] = ()
    """Notable events, newest last: (epoch ms, text)."""
    accumulators: dict[str, tuple[AccumulatorPart, ...]] = field(default_factory=dict)
    """What the functions of the current attempts have accumulated, merged as far as possible; read by the client."""
    last_checkpoint_metrics: dict[str, float] = field(default_factory=dict)
    """Of the newest complete checkpoint: ``duration_ms``; ``bytes``, ``uploaded_bytes`` and ``persisted_bytes`` (of
    records in flight), in all; ``alignment_ms``, ``sync_ms``, ``async_ms`` and ``is_unaligned`` (0 or 1), at most."""
    stopping: StopMode | None = None
    """How the job is being, or has been, stopped in order; None if nobody has asked for that."""
    backoff: RestartBackoff | None = None
    """How far its restart strategy has been used up."""
    parallelism: dict[VertexId, int] = field(default_factory=dict)
    """Parallelism of vertices that were rescaled since the job was submitted."""
    savepoint_path: str | None = None
    """The savepoint that the job was stopped with."""
