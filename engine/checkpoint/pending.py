"""A checkpoint or savepoint between its request and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.state.identifiers import ExecutionAttemptId, OperatorId, VertexId

from ..errors import CheckpointError
from ..kernel.machine import Command, Reply
from ..protocol.checkpoint_messages import AcknowledgeCheckpoint, CheckpointWanted, SavepointTarget
from ..protocol.details import CheckpointView, TaskAcknowledgement
from ..protocol.messages import RequestFailed
from ..protocol.states import CheckpointStatus

__all__ = ["AskedCheckpoints", "PendingCheckpoint", "checkpoint_key", "refused", "savepoint_key", "who_is_missing"]


def refused(ask_ids: Iterable[str], reason: str) -> list[Command]:
    """Tell clients that the checkpoint they wait for will never be."""
    return [Reply(ask_id, RequestFailed(CheckpointError(f"no checkpoint was taken: {reason}"))) for ask_id in ask_ids]


class AskedCheckpoints:
    """Clients that want a checkpoint, until one is triggered for them; several share one."""

    def __init__(self) -> None:
        self._ask_ids: list[str] = []
        self._is_full = False

    def __bool__(self) -> bool:
        return bool(self._ask_ids)

    def add(self, wanted: CheckpointWanted) -> None:
        """Note a wish, if it is a client's."""
        if wanted.ask_id is not None:
            self._ask_ids.append(wanted.ask_id)
            self._is_full |= wanted.is_full

    def take(self) -> tuple[tuple[str, ...], bool]:
        """Return who waits for the checkpoint that is triggered now, and whether it is to hold all state itself."""
        taken = tuple(self._ask_ids), self._is_full
        self._ask_ids, self._is_full = [], False
        return taken


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint between its request and its end."""

    checkpoint_id: int
    timestamp_ms: int
    is_final: bool
    # The newest checkpoint complete when this one was triggered, whose files it may name again; 0 for none.
    base_id: int = 0
    # What it was requested by, if it is a savepoint.
    savepoint: SavepointTarget | None = None
    # Tasks that have to acknowledge; None until the JobManager has said which.
    awaited: frozenset[ExecutionAttemptId] | None = None
    # Acknowledgements so far, maybe earlier than the JobManager's word; of the awaited tasks only once that is in.
    acknowledged: dict[ExecutionAttemptId, AcknowledgeCheckpoint] = field(default_factory=dict)
    # When each of them came.
    acknowledged_ms: dict[ExecutionAttemptId, int] = field(default_factory=dict)
    enumerators: dict[OperatorId, Any] = field(default_factory=dict)
    # Some sink collects rows.
    collects: bool = False
    # The store has been told to publish it.
    is_offloaded: bool = False
    # Clients that wait for its end.
    ask_ids: tuple[str, ...] = ()

    @property
    def expiry_key(self) -> str:
        """Its timer's."""
        if self.savepoint is not None:
            return savepoint_key(self.savepoint.request_id)
        return checkpoint_key(self.checkpoint_id)

    @property
    def parallelism(self) -> dict[VertexId, int]:
        """How many tasks of each vertex have acknowledged it."""
        return Counter(attempt.vertex for attempt in self.acknowledged)

    @property
    def is_fully_acknowledged(self) -> bool:
        return self.awaited is not None and len(self.acknowledged) == len(self.awaited)

    def metrics(self, now_ms: int) -> dict[str, float]:
        parts = [acknowledgement.metrics for acknowledgement in self.acknowledged.values()]
        return {
            "duration_ms": max(now_ms - self.timestamp_ms, 0),
            "bytes": sum(part.get("bytes", 0) for part in parts),
            "uploaded_bytes": sum(part.get("uploaded_bytes", 0) for part in parts),
            "persisted_bytes": sum(part.get("persisted_bytes", 0) for part in parts),
            **{
                name: max((part.get(name, 0) for part in parts), default=0)
                for name in ("alignment_ms", "sync_ms", "async_ms", "is_unaligned")
            },
        }

    def view(
        self, status: CheckpointStatus = CheckpointStatus.IN_PROGRESS, ended_ms: int | None = None, **end: str
    ) -> CheckpointView:
        """Return it for people.

        Args:
            status: How it stands.
            ended_ms: When it ended, epoch milliseconds.
            **end: ``path`` or ``reason`` of its end.
        """
        return CheckpointView(
            checkpoint_id=self.checkpoint_id,
            status=status,
            is_savepoint=self.savepoint is not None,
            is_last=self.is_final,
            triggered_ms=self.timestamp_ms,
            ended_ms=ended_ms,
            num_subtasks=len(self.awaited or ()),
            tasks=tuple(self._task_view(attempt) for attempt in self.acknowledged),
            **end,
        )

    def _task_view(self, attempt: ExecutionAttemptId) -> TaskAcknowledgement:
        metrics = self.acknowledged[attempt].metrics
        return TaskAcknowledgement(
            attempt.vertex,
            attempt.subtask,
            self.acknowledged_ms.get(attempt, self.timestamp_ms),
            int(metrics.get("bytes", 0)),
            int(metrics.get("uploaded_bytes", 0)),
            int(metrics.get("persisted_bytes", 0)),
            metrics.get("alignment_ms", 0),
            metrics.get("sync_ms", 0),
            metrics.get("async_ms", 0),
            bool(metrics.get("is_unaligned", 0)),
        )


def checkpoint_key(checkpoint_id: int) -> str:
    """Return the key of the timer that gives a checkpoint up."""
    return f"expire-{checkpoint_id}"


def savepoint_key(request_id: str) -> str:
    """Return the key of the timer that gives a savepoint up, counted from its request."""
    return f"savepoint-{request_id}"


def who_is_missing(pending: PendingCheckpoint) -> str:
    """Return why it was given up: the tasks that have not acknowledged it."""
    missing = sorted((pending.awaited or frozenset()) - pending.acknowledged.keys())
    names = ", ".join(str(attempt) for attempt in missing[:3]) + (", ..." if len(missing) > 3 else "")
    return f"expired; not acknowledged by {names or 'anybody'}"
