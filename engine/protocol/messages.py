"""What clients ask, and what Dispatcher, ResourceManager, JobManagers and TaskManagers tell each other.

Events are in the past tense or named as Flink names them; each carries the ids that let the receiver recognise it as
stale: job, leader epoch, execution attempt. All are frozen values, safe to deliver twice. Other conversations have
modules of their own: `task_messages`, `checkpoint_messages`, `savepoint_messages`, `control_messages`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.state.identifiers import ExecutionAttemptId, JobId, OperatorId, VertexId

from ..kernel.config import JobSettings
from ..kernel.machine import Address
from ..kernel.slot_resources import MachineResources
from .details import JobDetails
from .views import JobView, SlotInfo, StopMode, TaskManagerView

# ----------------------------------------------------------------------------------------- client to Dispatcher (asks)


@dataclass(frozen=True, slots=True)
class SubmitJob:
    """Run a job. Answer: `JobSubmitted` or `RequestFailed`. Submitting the same ``job_id`` again changes
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
class ListTaskManagers:
    """Answer: a list of `TaskManagerView`, of all jobs, by name: those that have registered and live."""


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
    details: JobDetails | None = None
    """What is known of it, in full if it has ended."""


@dataclass(frozen=True, slots=True)
class ReportJob:
    """A program tells of a job that it runs itself, a data set: all that is to be seen of it, and that it lives.

    Sent again and again; the newest ``version`` of the view counts. Answer: `JobReported`, or `RequestFailed`.
    """

    details: JobDetails
    program: str
    """For people: where the program runs."""


@dataclass(frozen=True, slots=True)
class JobReported:
    """``is_canceled``: somebody wants the job to end. ``is_kept``: its end, if it was told, is recorded."""

    is_canceled: bool
    is_kept: bool


@dataclass(frozen=True, slots=True)
class CancelReportedJob:
    """Have a program end the job that it runs. Answer: whether it has ended, in whatever state; else it is told with
    its next report.
    """

    job_id: JobId


@dataclass(frozen=True, slots=True)
class ShutDownCluster:
    """End all jobs and all hosts. Answer: True once nothing is left but the Dispatcher's own host."""


# ----------------------------------------------------------------------------------------- client to JobManager (asks)


@dataclass(frozen=True, slots=True)
class WaitForJob:
    """Long poll; also the sign of life of an attached client. Answer: `JobView`, once its ``version`` is past
    ``seen_version`` or ``timeout_ms`` has passed.
    """

    seen_version: int
    timeout_ms: int


SHOWN_OF_ALL = ("num_late_records_dropped",)
"""Metrics of operators that pages show of a job as a whole."""


@dataclass(frozen=True, slots=True)
class FetchJobDetails:
    """Answer: `JobDetails`, at once. No sign of life of the job's client: anybody may look.

    A job of any size is asked for no more than somebody looks at. Of vertices that are not asked for there are totals,
    no subtasks; of their operators those metrics that are `SHOWN_OF_ALL`, and event time only where it is made. A job
    that has ended may tell all of it.

    Attributes:
        vertices: Of which vertices all is told; None for all of them.
        with_checkpoints: Whether checkpoints are, which have the acknowledgements of all tasks.
    """

    vertices: tuple[VertexId, ...] | None = None
    with_checkpoints: bool = True


@dataclass(frozen=True, slots=True)
class FetchJobSummary:
    """Answer: `JobSummary`, at once. As little a sign of life."""


@dataclass(frozen=True, slots=True)
class FetchPendingCheckpoints:
    """Answer: a tuple of `CheckpointView`, of those under way, newest first. As little a sign of life."""


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
    """Cancel a job. Answer: True when the job has ended (in whatever state).

    Clients ask for it; a Dispatcher that shuts its cluster down tells it to all JobManagers.
    """


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
class TakeCheckpoint:
    """Take a checkpoint as soon as one may be taken, whether or not it is due. Answer: its `CheckpointView`, complete.

    Or `RequestFailed`: with ConfigurationError if the job takes no checkpoints, CheckpointError if it came to nothing,
    or the job does not run now. Asked twice it may be taken twice.
    """

    is_full: bool = False
    """Whether it holds all state itself, and names no files of checkpoints before it."""
    timeout_ms: int = 600_000
    """An answer that takes longer is taken for lost."""


@dataclass(frozen=True, slots=True)
class KillSlotOnPurpose:
    """Kill one slot's process, as a demonstration of recovery. Answer: the killed host's name."""

    index: int


@dataclass(frozen=True, slots=True)
class FailTaskOnPurpose:
    """Fail the running attempt of one subtask. Answer: the attempt's id as text, once it has been ordered."""

    operator: str
    """Uid or name of an operator of its chain."""
    subtask: int
    reason: str


# ----------------------------------------------------------------------------- Dispatcher, ResourceManager, JobManager


@dataclass(frozen=True, slots=True)
class JobStatusChanged:
    """A JobManager tells the Dispatcher how its job is; at its end in full."""

    job_id: JobId
    epoch: int
    view: JobView
    details: JobDetails | None = None


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
    used: tuple[str, ...] = ()
    """TaskManagers with tasks of the job: they stay, also if their registration has not come yet."""


@dataclass(frozen=True, slots=True)
class SlotRequestFailed:
    """The ResourceManager cannot ever give that many slots."""

    job_id: JobId
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class SlotsAwaited:
    """Slots of a job have not come yet: what the cluster does about it."""

    job_id: JobId
    epoch: int
    text: str
    is_launching: bool


@dataclass(frozen=True, slots=True)
class StandInRequested:
    """A TaskManager has been silent since it was started, so another one was requested beside it: once the job runs it
    says what it does not use.
    """

    job_id: JobId
    epoch: int
    text: str


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


# --------------------------------------------------------------------------------------------------------- TaskManager


@dataclass(frozen=True, slots=True)
class RegisterTaskManager:
    """A TaskManager announces itself, at start and whenever its slots change; repeated until acknowledged."""

    job_id: JobId
    task_manager: str
    address: Address
    epoch: int
    """The leader epoch it believes in."""
    slots: tuple[SlotInfo, ...]
    resources: dict[str, float]
    """``slots``, ``cpu``, ``managed_memory_bytes`` in all and ``managed_memory_bytes_per_slot``."""
    revision: int
    """Counts the announcements, so that an old one never replaces a newer."""
    node: str = ""
    """The machine it is on, with all its slots; empty if it knows of none."""
    machine: MachineResources | None = None
    """Memory, disk and network of that machine, as they were at its start; None if it could not look."""

    def view(self) -> TaskManagerView:
        """Return what it says of itself, for people."""
        return TaskManagerView(
            self.task_manager,
            self.job_id,
            self.node,
            int(self.resources.get("slots", len(self.slots))),
            int(self.resources.get("managed_memory_bytes", 0)),
            int(self.resources.get("managed_memory_bytes_per_slot", 0)),
            self.machine,
        )


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
class FailTask:
    """A JobManager has an attempt fail, as if its program had; the TaskManager hands this to the slot it names.

    An attempt that is not there any more is left alone.
    """

    job_id: JobId
    epoch: int
    slot_host: str
    attempt: ExecutionAttemptId
    reason: str


@dataclass(frozen=True, slots=True)
class KillSlot:
    """A JobManager orders the death of a slot's process (a task did not cancel in time)."""

    job_id: JobId
    epoch: int
    slot_host: str
    reason: str
