"""The states of jobs, tasks, checkpoints and stages of data sets, as everybody names them who speaks of one.

Which state may follow which is said in `headrace.engine.execution.graph`.

Source: Flink's ``JobStatus``, ``ExecutionState`` and ``CheckpointStatsStatus``.
"""

from __future__ import annotations

from headrace.state.text_enum import TextEnum

__all__ = ["CheckpointStatus", "JobStatus", "StageState", "TaskState"]


class JobStatus(TextEnum):
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


class TaskState(TextEnum):
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


class CheckpointStatus(TextEnum):
    """How a checkpoint or savepoint stands: Flink's ``CheckpointStatsStatus``."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class StageState(TextEnum):
    """State of a stage of a data set: ``PENDING`` and ``SKIPPED`` are Spark's alone."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    SKIPPED = "SKIPPED"
    """What it would compute lies there already, from a job before."""
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    """Where a cluster shows it, once somebody has canceled its run."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self not in (StageState.PENDING, StageState.RUNNING)
