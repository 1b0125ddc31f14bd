"""What is said about savepoints: by clients to a JobManager, and between it and its CheckpointCoordinator.

A client names its request by an id of its own choice and asks again, with the same id, until it is decided: a doubled
or repeated question is one request. The answer names the leader that took it; a client that has had an answer puts
that leader into its next question, so that a later leader, which knows nothing of it, can say that it is lost instead
of taking it for new.

Source: Flink's ``triggerSavepoint`` and ``stopWithSavepoint`` with their ``TriggerId``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "FetchSavepointStatus",
    "SavepointState",
    "SavepointStatus",
    "StopWithSavepoint",
    "TriggerSavepoint",
]


@dataclass(frozen=True, slots=True)
class TriggerSavepoint:
    """Client to JobManager (ask): take a savepoint and go on. Answer: `SavepointStatus`, or `RequestFailed` if refused.

    The answer comes once it is decided or ``timeout_ms`` has passed.
    """

    request_id: str
    directory: str | None
    """Below which its folder is made; None takes the job's default."""
    timeout_ms: int
    epoch: int | None = None
    """The leader that has taken the request; None while none is known to have."""


@dataclass(frozen=True, slots=True)
class StopWithSavepoint:
    """Client to JobManager (ask): end the job with a savepoint; else as `TriggerSavepoint`.

    It is complete once the job has ended.
    """

    request_id: str
    directory: str | None
    drain: bool
    timeout_ms: int
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class FetchSavepointStatus:
    """Client to JobManager (ask): how does a request stand? Answer: `SavepointStatus` at once, or `RequestFailed` with
    SavepointError if this leader knows of none with that id.
    """

    request_id: str


class SavepointState(str, Enum):
    """How far a request is."""

    PENDING = "pending"
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SavepointStatus:
    """JobManager to client: how a request stands under leader ``epoch``; a path or an error once it is decided."""

    epoch: int
    state: SavepointState
    path: str | None = None
    error: BaseException | None = None
