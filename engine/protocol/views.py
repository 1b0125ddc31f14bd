"""What people and programs see of a job: its state, its vertices and operators, and its history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from headrace.state.identifiers import JobId, OperatorId, VertexId

from ..functions.accumulators import AccumulatorPart
from ..functions.event_time_parts import OperatorEventTime
from ..kernel.machine import Address
from ..kernel.restart_backoff import RestartBackoff
from ..kernel.slot_resources import MachineResources
from .states import JobStatus, StageState


class StopMode(str, Enum):
    """How a job is stopped in order."""

    SUSPEND = "suspend"
    """Where it is: windows and timers stay in the last checkpoint, for a later run."""
    DRAIN = "drain"
    """As if all input had ended there: windows and timers fire first."""


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One slot of a TaskManager: ``address`` of its current process, which changes with every restart of it."""

    index: int
    address: Address
    pid: int | None = None
    node: str = ""
    """The machine it is on; empty if that is not known."""


@dataclass(frozen=True, slots=True)
class TaskManagerView:
    """A TaskManager for people, as it has registered.

    Attributes:
        name: Its name.
        job_id: The job it works for.
        node: The machine it is on; empty if that is not known.
        num_slots: Slots it offers, also while their processes start.
        managed_memory_bytes: Its managed memory, in all.
        slot_memory_bytes: The share of each slot.
        machine: What it found at its start; None if it could not look.
    """

    name: str
    job_id: JobId
    node: str
    num_slots: int
    managed_memory_bytes: int
    slot_memory_bytes: int
    machine: MachineResources | None = None


@dataclass(frozen=True, slots=True)
class FailureView:
    """A failure of a job, whether or not it was restarted.

    Attributes:
        at_ms: When, epoch milliseconds.
        kind: The error's class.
        text: What it says, without passwords.
        domain: Where it comes from, see `headrace.engine.job.phases.failures.FailureDomain`.
        task: The task that failed, as ``name (2/4)``; empty if it is nobody's.
        vertex_id: The task's vertex; empty likewise.
        subtask: Its index in it; -1 likewise.
        task_manager: Where it ran; empty likewise.
    """

    at_ms: int
    kind: str
    text: str
    domain: str = ""
    task: str = ""
    vertex_id: str = ""
    subtask: int = -1
    task_manager: str = ""


@dataclass(frozen=True, slots=True)
class RescaleView:
    """A rescale of a job, under way or over.

    Attributes:
        at_ms: When it was decided, epoch milliseconds.
        trigger: By whom: ``command`` or ``autoscaler``.
        reason: Why, in words; empty for a command.
        before: Parallelism of the vertices that it is about.
        after: What they were to have.
        numbers: What the autoscaler had measured, by vertex; rates are records a second of all its tasks.
        ended_ms: When all tasks ran with it, or it was given up; None while it is under way.
        error: Why it came to nothing; empty if it did not.
        is_advice: It was only written down, as scaling is switched off.
    """

    at_ms: int
    trigger: str
    reason: str
    before: dict[VertexId, int]
    after: dict[VertexId, int]
    numbers: dict[VertexId, dict[str, float]] = field(default_factory=dict)
    ended_ms: int | None = None
    error: str = ""
    is_advice: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it with the keys of REST."""
        status = "IN_PROGRESS" if self.ended_ms is None else "FAILED" if self.error else "COMPLETED"
        return {
            "timestamp": self.at_ms,
            "end-timestamp": -1 if self.ended_ms is None else self.ended_ms,
            "trigger": self.trigger,
            "status": "ADVISED" if self.is_advice else status,
            "reason": self.reason,
            "failure": self.error,
            "vertices": [
                {"id": key, "from": self.before[key], "to": number, "metrics": self.numbers.get(key, {})}
                for key, number in self.after.items()
            ],
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> RescaleView:
        """Make the one that gives this by `as_json`."""
        vertices = {VertexId(vertex["id"]): vertex for vertex in said["vertices"]}
        return cls(
            said["timestamp"],
            said["trigger"],
            said["reason"],
            {key: vertex["from"] for key, vertex in vertices.items()},
            {key: vertex["to"] for key, vertex in vertices.items()},
            {key: vertex["metrics"] for key, vertex in vertices.items() if vertex["metrics"]},
            None if said["end-timestamp"] < 0 else said["end-timestamp"],
            said["failure"],
            said["status"] == "ADVISED",
        )


@dataclass(frozen=True, slots=True)
class OperatorView:
    """One operator of a vertex for people.

    Attributes:
        uid: Its uid.
        name: Its display name.
        metrics: Its metrics by their full names (``group.name``), added up over the subtasks of the current attempts; a
            distribution is there as ``name.count``, ``.sum``, ``.min``, ``.max``, ``.mean``, ``.p50`` ... ``.p999``.
        event_time: Where event time is in its subtasks, of those whose current attempt has reported.
    """

    uid: OperatorId
    name: str
    metrics: dict[str, float]
    event_time: tuple[OperatorEventTime, ...] = ()


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
    inputs: tuple[VertexId, ...] = ()
    """Those whose output it reads."""


@dataclass(frozen=True, slots=True)
class StageView:
    """A part of a data set's run that is done as one: nodes of the plan that run in one another, or a stage of Spark.

    Attributes:
        id: Its number in the run.
        name: What it does.
        state: How it stands.
        num_tasks: How many tasks it has: partitions. 0 while that is not known.
        num_done: How many of them are done.
        num_running: How many run now.
        num_failed: How many attempts have failed; on Spark tasks are tried again.
        rows: How many rows it has given, so far as that is counted; None if it is not.
        duration_ms: How long it took, or takes so far; of a stage in supersteps all of them together.
        started_ms: When it began, epoch milliseconds; 0 if that is not known.
        inputs: The stages that it reads, by their ids, so far as that is known.
    """

    id: int
    name: str
    state: StageState
    num_tasks: int = 0
    num_done: int = 0
    num_running: int = 0
    num_failed: int = 0
    rows: int | None = None
    duration_ms: int = 0
    started_ms: int = 0
    inputs: tuple[int, ...] = ()

    def given_up(self) -> StageView:
        """Return it as it is once its run has ended in the middle: what ran has failed."""
        return replace(self, state=StageState.FAILED, num_running=0) if self.state is StageState.RUNNING else self


@dataclass(frozen=True, slots=True)
class JobView:
    """A job for people and clients.

    Attributes:
        state: How it stands.
        version: Grows with each change of anything here.
        num_restarts: Restarts so far.
        last_checkpoint: Id of the newest complete checkpoint.
        failure: The first failure's text (of the last one, while restarting).
        error: The typed error the job ended with.
        slots: Slot hosts with their pids, by TaskManager, for `headrace demo --kill` and tests.
    """

    job_id: JobId
    name: str
    state: JobStatus
    version: int
    started_ms: int
    ended_ms: int | None
    vertices: tuple[VertexView, ...] = ()
    num_restarts: int = 0
    checkpoints_completed: int = 0
    checkpoints_failed: int = 0
    last_checkpoint: int | None = None
    last_checkpoint_path: str | None = None
    last_checkpoint_ms: float | None = None
    failure: str | None = None
    error: BaseException | None = None
    slots: tuple[SlotInfo, ...] = ()
    history: tuple[tuple[int, str], ...] = ()
    """Notable events, newest last: (epoch ms, text)."""
    accumulators: dict[str, tuple[AccumulatorPart, ...]] = field(default_factory=dict)
    """What the functions of the current attempts have accumulated, merged as far as possible; read by the client."""
    last_checkpoint_metrics: dict[str, float] = field(default_factory=dict)
    """Of the newest complete checkpoint: ``duration_ms``; ``bytes``, ``uploaded_bytes`` and ``persisted_bytes`` (of
    records in flight), in all; ``alignment_ms``, ``sync_ms``, ``async_ms`` and ``is_unaligned`` (0 or 1), at most."""
    stopping: StopMode | None = None
    """How the job is being, or has been, stopped in order; None if that was not asked for."""
    backoff: RestartBackoff | None = None
    """How far its restart strategy has been used up."""
    parallelism: dict[VertexId, int] = field(default_factory=dict)
    """Parallelism of vertices that were rescaled since the job was submitted."""
    savepoint_path: str | None = None
    """The savepoint that the job was stopped with."""
    savepoint_request: str | None = None
    """Id of the request for it."""
    is_checkpoint_kept: bool = True
    """Whether the newest complete checkpoint stays although the job has ended; True while it has not."""
    waiting: str | None = None
    """What the cluster does while the job waits for slots; None if it does not wait, or that is not known."""
    task_managers: tuple[TaskManagerView, ...] = ()
    """Those that work for it now, with their memory, disk and network."""
    entered_ms: dict[str, int] = field(default_factory=dict)
    """When it came into each of its states last, epoch milliseconds."""
    failures: tuple[FailureView, ...] = ()
    """The newest ones, newest last."""
    rescales: tuple[RescaleView, ...] = ()
    """The newest ones, newest last."""
    autoscaler: str | None = None
    """What the autoscaler is busy with, in words; None if it is off."""
    stages: tuple[StageView, ...] | None = None
    """Of a data set the newest stages of its run, which has no vertices; None of a stream."""
    num_stages_left_out: int = 0
    """How many older stages there were."""

    @property
    def is_data_set(self) -> bool:
        """Whether a program runs it itself, as a data set, and only reports how it is."""
        return self.stages is not None
