"""The conversation of a checkpoint: coordinator, JobManager and tasks.

Frozen values that carry the ids by which a receiver knows what is stale, like all of
`headrace.engine.protocol.messages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.state.checkpoints.snapshot import OperatorSnapshot
from headrace.state.identifiers import ExecutionAttemptId, OperatorId


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
    restored_id: int = 0
    """The checkpoint it goes on from, whosever that is: ids are above it. 0 for none."""


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
