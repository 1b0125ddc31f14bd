"""The conversation of a checkpoint: coordinator, JobManager and tasks.

Coordinator and JobManager exchange five messages for each: `CheckpointRequested`, `CheckpointTriggered`, and
`CheckpointEnded`; between the last two `ReportsWanted` and `ReportsPending`, if a sink collects. `CheckpointWanted`
asks for one out of turn.

Frozen values that carry the ids by which a receiver knows what is stale, like all of
`headrace.engine.protocol.messages`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from headrace.state.checkpoints.snapshot import OperatorSnapshot
from headrace.state.identifiers import ExecutionAttemptId, OperatorId

from .details import CheckpointView


class SavepointTarget(NamedTuple):
    """Which savepoint is wanted: the client's request, and the folder it is to be in."""

    request_id: str
    root: str


@dataclass(frozen=True, slots=True)
class CheckpointWanted:
    """JobManager to CheckpointCoordinator: take a checkpoint as soon as one may be taken, whether or not it is due.

    Attributes:
        epoch: The leader's.
        deployment: Of what runs.
        is_last: Whether all data is processed: as soon as possible, and none behind it.
        savepoint: A savepoint is wanted instead. Answered by `CheckpointEnded`, whatever happens.
        ask_id: A client waits for its end: answer that with a `CheckpointView`, or why there is none.
        is_full: Whether it names no files of checkpoints before it.
    """

    epoch: int
    deployment: int
    is_last: bool = False
    savepoint: SavepointTarget | None = None
    ask_id: str | None = None
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """CheckpointCoordinator to JobManager: snapshot the enumerators and trigger the sources of these attempts, in
    one go.
    """

    epoch: int
    checkpoint_id: int
    timestamp_ms: int
    base_id: int = 0
    """See `headrace.engine.columns.records.CheckpointBarrier`."""
    savepoint: str | None = None
    """See `headrace.engine.columns.records.CheckpointBarrier`."""


@dataclass(frozen=True, slots=True)
class CheckpointTriggered:
    """JobManager to CheckpointCoordinator: done; these attempts must acknowledge, this is the enumerators' part.
    ``attempts`` empty: refused.
    """

    checkpoint_id: int
    attempts: tuple[ExecutionAttemptId, ...]
    enumerators: dict[OperatorId, Any]
    reason: str | None = None
    collects: bool = False
    """Whether a sink collects rows, so that the checkpoint must hold those that the client has not got."""


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """JobManager to a source task: end the current batch, snapshot, emit the barrier."""

    attempt: ExecutionAttemptId
    checkpoint_id: int
    timestamp_ms: int
    suspends: bool = False
    """Whether tasks process nothing more behind this barrier: the job is stopped there."""
    base_id: int = 0
    """See `headrace.engine.columns.records.CheckpointBarrier`."""
    savepoint: str | None = None
    """See `headrace.engine.columns.records.CheckpointBarrier`."""


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
class ReportsWanted:
    """CheckpointCoordinator to JobManager, once all tasks have acknowledged and if a sink collects: which rows has the
    client not got?

    What a sink committed before its part of this checkpoint is in no task's state any more, and has reached the
    JobManager before the acknowledgement has reached the coordinator. So with the answer the checkpoint holds every
    row that is not the client's yet.
    """

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class ReportsPending:
    """Answer to `ReportsWanted`: collected rows as (operator uid, subtask, value)."""

    checkpoint_id: int
    reports: tuple[tuple[OperatorId, int, Any], ...]


class CheckpointOutcome(Enum):
    """How a checkpoint or savepoint ended."""

    COMPLETED = "completed"
    """It is published: the JobManager tells the tasks, and if it was the last one finishes the job."""
    ABORTED = "aborted"
    """It will never complete."""
    INTOLERABLE = "intolerable"
    """The same, and more than the tolerable number have failed in a row."""
    FENCED = "fenced"
    """The store has seen a higher epoch, so another JobManager leads this job."""


@dataclass(frozen=True, slots=True)
class CheckpointEnded:
    """CheckpointCoordinator to JobManager: how a checkpoint or savepoint ended. Said once of each that was wanted.

    Attributes:
        epoch: The leader's.
        checkpoint_id: Which; 0 if none was triggered.
        outcome: How.
        reason: Why it is not complete.
        path: Where it is, if it is complete.
        metrics: Of a complete checkpoint; see `headrace.engine.protocol.views.JobView.last_checkpoint_metrics`.
        request_id: Of a savepoint, which nobody else is told of, as it commits nothing.
        view: The checkpoint for people; None if none was triggered.
    """

    epoch: int
    checkpoint_id: int
    outcome: CheckpointOutcome
    reason: str = ""
    path: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    request_id: str | None = None
    view: CheckpointView | None = None


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
    restored_id: int = 0
    """The checkpoint it goes on from, whosever that is: ids are above it. 0 for none."""


@dataclass(frozen=True, slots=True)
class ExecutionStopped:
    """JobManager to CheckpointCoordinator: tasks are going down; abort what is pending, trigger nothing, delete
    nothing. Answered by `CoordinatorStopped` once no publication is under way.
    """

    epoch: int
    deployment: int


@dataclass(frozen=True, slots=True)
class CoordinatorStopped:
    """From here on no checkpoint of the old deployment can complete: it may be chosen what to restore."""

    deployment: int
    aborted: tuple[CheckpointView, ...] = ()
    """Checkpoints that the end of the deployment has ended."""


@dataclass(frozen=True, slots=True)
class PendingCheckpointsAsked:
    """JobManager to CheckpointCoordinator, beside it: a client asks for the checkpoints under way; answer ``ask_id``
    with a tuple of `CheckpointView`.
    """

    ask_id: str
