"""The states of jobs and of their tasks, as everybody names them who speaks of one.

Which state may follow which is said in `headrace.engine.execution.graph`.

Source: Flink's ``JobStatus`` and ``ExecutionState``.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["JobStatus", "TaskState"]


class JobStatus(str, Enum):
    """State of a job: Flink's ``JobStatus``."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    SUSPENDED = "SUSPENDED"

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended for good; a suspended one goes on under another JobManager."""
        return self in (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED)


class TaskState(str, Enum):
    """State of one execution: Flink's ``ExecutionState``."""

    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"
    READY = "READY"
    RUNNING = "RUNNING"
    ENDED = "ENDED"
    FINISHED = "FINISHED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing of this execution is left anywhere."""
        return self in (TaskState.FINISHED, TaskState.CANCELED, TaskState.FAILED)
