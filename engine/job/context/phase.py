"""The phases of a job under one JobManager, which of them follow each other, and the timers that end them.

A JobManager is in one phase at a time::

    PREPARING -> WAITING_FOR_SLOTS -> DEPLOYING -> EXECUTING -> FINAL_CHECKPOINT -> FINISHING -> STOPPING -> ENDED
        ^                                 `------------+---------------+---------------'          |  `-> DELIVERING ^
        `------------------------ BACKING_OFF <---------------------------------------------------'

A restart of some regions goes the same way while the other tasks run on; a rescale goes from STOPPING to PREPARING.

All legal changes stand in `PHASE_TRANSITIONS`; one that does not raises `InvalidTransition`.

Source: the states of Flink's ``AdaptiveScheduler`` (``WaitingForResources``, ``Executing``, ``Restarting``,
``StopWithSavepoint``, ``Failing``, ``Finished``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "LIVE_PHASES",
    "PHASE_TRANSITIONS",
    "BackOffOver",
    "CancellationTimedOut",
    "DeliveryOver",
    "HeartbeatDue",
    "Phase",
    "SlotRequestTimedOut",
    "TellDispatcher",
    "ViewDue",
]


class Phase(Enum):
    """What a JobManager is busy with; the value completes "the job is ..."."""

    PREPARING = "preparing"
    WAITING_FOR_SLOTS = "waiting for slots"
    DEPLOYING = "deploying"
    EXECUTING = "executing"
    FINAL_CHECKPOINT = "taking the last checkpoint"
    FINISHING = "finishing"
    STOPPING = "stopping"
    BACKING_OFF = "waiting to restart"
    DELIVERING = "waiting for its client to fetch the results"
    ENDED = "ended"


_P = Phase

LIVE_PHASES = frozenset({_P.DEPLOYING, _P.EXECUTING, _P.FINAL_CHECKPOINT, _P.FINISHING})
"""Phases in which tasks are where they should be."""

_ANY_END = frozenset({_P.STOPPING, _P.ENDED})
"""Anything that is under way can fail or be canceled, and any leader can be deposed."""

PHASE_TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    _P.PREPARING: _ANY_END | {_P.WAITING_FOR_SLOTS},
    _P.WAITING_FOR_SLOTS: _ANY_END | {_P.DEPLOYING},
    _P.DEPLOYING: _ANY_END | {_P.EXECUTING},
    _P.EXECUTING: _ANY_END | {_P.FINAL_CHECKPOINT, _P.FINISHING},
    _P.FINAL_CHECKPOINT: _ANY_END | {_P.FINISHING},
    _P.FINISHING: _ANY_END,
    _P.STOPPING: frozenset({_P.PREPARING, _P.BACKING_OFF, _P.DELIVERING, _P.ENDED}),
    _P.BACKING_OFF: _ANY_END | {_P.PREPARING},
    _P.DELIVERING: frozenset({_P.ENDED}),
    _P.ENDED: frozenset(),
}
"""Every legal change of a job's phase."""


@dataclass(frozen=True, slots=True)
class SlotRequestTimedOut:
    """Timer: the slots have not come."""

    serial: int


@dataclass(frozen=True, slots=True)
class CancellationTimedOut:
    """Timer: some task has not stopped."""

    deployment: int


@dataclass(frozen=True, slots=True)
class BackOffOver:
    """Timer: the pause before a restart is over."""

    serial: int


@dataclass(frozen=True, slots=True)
class HeartbeatDue:
    """Timer: ask the TaskManagers for a sign of life."""


@dataclass(frozen=True, slots=True)
class ViewDue:
    """Timer: let clients see new numbers."""


@dataclass(frozen=True, slots=True)
class DeliveryOver:
    """Timer: the client has had time enough to fetch its rows."""


@dataclass(frozen=True, slots=True)
class TellDispatcher:
    """Timer: tell the Dispatcher of the end again."""
