"""Messages between control machines that no client, task or slot sees; the rest is in `messages`.

They close gaps of the public protocol: a task is submitted *by way of* its TaskManager, so the slot must be named
beside the task; a JobManager may give up its checkpoints only once the Dispatcher has taken note of the job's end;
collected rows belong to a checkpoint until the client has them; and the cluster is shut down only once the
ResourceManager has given everything back.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.state.identifiers import JobId

from ..kernel.machine import Address
from .task_messages import SubmitTask

__all__ = [
    "AllReleased",
    "JobArchived",
    "JobNote",
    "RelayToSlot",
    "ReleaseAll",
    "SlotFailed",
    "TaskManagersAsked",
]


@dataclass(frozen=True, slots=True)
class RelayToSlot:
    """JobManager to TaskManager: hand ``message`` to the slot process ``slot_host``.

    Ignored unless the TaskManager is operational under leader ``epoch`` and that process still lives; the sender
    learns of the slot's end, or of the TaskManager's new registration, anyway.
    """

    job_id: JobId
    epoch: int
    slot_host: str
    message: SubmitTask


@dataclass(frozen=True, slots=True)
class JobArchived:
    """Dispatcher to JobManager: the job's last word is recorded. From here on a dead JobManager is not replaced."""

    job_id: JobId
    epoch: int


@dataclass(frozen=True, slots=True)
class JobNote:
    """ResourceManager to JobManager: something about its resources that belongs into the job's history."""

    job_id: JobId
    text: str


@dataclass(frozen=True, slots=True)
class ReleaseAll:
    """Dispatcher to ResourceManager: give everything back, take no more requests; answered by `AllReleased`."""

    reply_to: Address


@dataclass(frozen=True, slots=True)
class SlotFailed:
    """TaskManager to ResourceManager: a slot's process has died, or had to be killed for its silence, on ``node``."""

    job_id: JobId
    task_manager: str
    node: str


@dataclass(frozen=True, slots=True)
class TaskManagersAsked:
    """Dispatcher to ResourceManager, beside it: a client asks which TaskManagers there are; answer ``ask_id``."""

    ask_id: str


@dataclass(frozen=True, slots=True)
class AllReleased:
    """ResourceManager to Dispatcher: no TaskManager is left."""
