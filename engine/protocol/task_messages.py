"""What JobManager and tasks tell each other, and what flows through the channels between tasks.

Frozen values that carry the ids by which a receiver knows what is stale, like all of
`headrace.engine.protocol.messages`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.state.checkpoints.snapshot import TaskRestore
from headrace.state.identifiers import ExecutionAttemptId, JobId, OperatorId

from ..columns.records import Element
from ..connectors.contract import Split
from ..functions.accumulators import AccumulatorPart
from ..functions.event_time_parts import OperatorEventTime
from ..graph.job_graph import JobEdge
from ..kernel.config import JobSettings
from ..kernel.machine import Address
from ..kernel.metrics import MetricValue
from .states import TaskState


@dataclass(frozen=True, slots=True)
class ChannelDescriptor:
    """One channel of a task: the peer subtask and where it lives."""

    edge_id: int
    peer: ExecutionAttemptId
    peer_address: Address


@dataclass(frozen=True, slots=True)
class TaskDeployment:
    """Everything a slot needs to build one subtask. ``inputs`` and ``outputs`` are ordered by (edge id, peer
    subtask).
    """

    job_id: JobId
    job_name: str
    attempt: ExecutionAttemptId
    vertex: bytes
    """The `JobVertex`, pickled by cloudpickle."""
    input_edges: tuple[JobEdge, ...]
    output_edges: tuple[JobEdge, ...]
    inputs: tuple[ChannelDescriptor, ...]
    outputs: tuple[ChannelDescriptor, ...]
    settings: JobSettings
    job_manager: Address
    coordinator: Address
    restore: TaskRestore | None
    consumer_parallelisms: tuple[int, ...] = ()
    """Of each output edge's target."""
    program_classes: bytes = b""
    """Where it restores: the classes that the job's operators bring by value
    (`headrace.state.reading.program_classes`); what state was written with is other classes of these names."""


@dataclass(frozen=True, slots=True)
class SubmitTask:
    """Build and restore a task, do not run it yet. Sent by way of the TaskManager."""

    deployment: TaskDeployment


@dataclass(frozen=True, slots=True)
class StartTask:
    """Run an initialised task: all its peers are initialised too."""

    attempt: ExecutionAttemptId


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Stop a task and forget it; answered by state CANCELED, also if it is not known (any more)."""

    attempt: ExecutionAttemptId
    job_manager: Address


@dataclass(frozen=True, slots=True)
class FinishTask:
    """All data has been processed and the last checkpoint, if any, is complete: commit what is left, close, report
    FINISHED.
    """

    attempt: ExecutionAttemptId


@dataclass(frozen=True, slots=True)
class StopSource:
    """Read no more, whether the task has been started already or not. May come twice.

    With ``drain`` the source ends as if its input had; without it stays as it is until a barrier that suspends.
    """

    attempt: ExecutionAttemptId
    drain: bool


@dataclass(frozen=True, slots=True)
class UpdateTaskExecutionState:
    """A task has changed its state: INITIALIZING, READY (initialised), RUNNING, ENDED (all its data processed, still
    answering barriers), FINISHED, CANCELED or FAILED.
    """

    attempt: ExecutionAttemptId
    state: TaskState
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class RequestNextInputSplit:
    """A source subtask would read splits; ``nonce`` counts its requests, answers to old ones are ignored.

    Attributes:
        num_splits: How many it has.
        is_hungry: Whether it has time for a bounded one. A reader that gets this time sends its request again.
    """

    attempt: ExecutionAttemptId
    operator: OperatorId
    nonce: int
    num_splits: int = 0
    is_hungry: bool = True


@dataclass(frozen=True, slots=True)
class NextInputSplit:
    """Answer: splits, or none with ``no_more``. While nothing is there yet no answer comes: it is sent when a split
    appears.
    """

    attempt: ExecutionAttemptId
    operator: OperatorId
    nonce: int
    splits: tuple[Split, ...]
    no_more: bool


@dataclass(frozen=True, slots=True)
class SourceEventToEnumerator:
    """A reader tells its enumerator something."""

    attempt: ExecutionAttemptId
    operator: OperatorId
    event: Any


@dataclass(frozen=True, slots=True)
class SourceEventToReader:
    """An enumerator tells one of its readers something."""

    attempt: ExecutionAttemptId
    operator: OperatorId
    event: Any


@dataclass(frozen=True, slots=True)
class ReportWatermark:
    """A source subtask of an alignment group tells how far it is; repeated with every update interval.

    ``watermark_ms`` is the lowest of the splits that count, None if there is none; ``number`` counts the reports.
    """

    attempt: ExecutionAttemptId
    operator: OperatorId
    number: int
    watermark_ms: int | None


@dataclass(frozen=True, slots=True)
class WatermarkLimit:
    """Answer to `ReportWatermark` ``number``: splits whose watermark is above ``limit_ms`` are not to be read."""

    attempt: ExecutionAttemptId
    operator: OperatorId
    number: int
    limit_ms: int


def edge_number(edge_id: int, name: str) -> str:
    """Return the name of a number of one exchange among those of a task: ``records`` that it has sent there, and how
    full its fullest channel is, ``output_usage`` where it sends and ``input_usage`` where it reads.
    """
    return f"edges.{edge_id}.{name}"


@dataclass(frozen=True, slots=True)
class MetricsReported:
    """Numbers of one task: counters since the attempt's start, gauges, and the shares of time since the last report.

    Attributes:
        numbers: Of the task itself, and of its exchanges (`edge_number`).
        operators: Metrics of each of its operators.
        accumulators: What the functions of each operator have accumulated, by name.
        event_time: Where event time is in each of its operators.
    """

    attempt: ExecutionAttemptId
    numbers: dict[str, float]
    operators: dict[OperatorId, dict[str, MetricValue]] = field(default_factory=dict)
    accumulators: dict[OperatorId, dict[str, AccumulatorPart]] = field(default_factory=dict)
    event_time: dict[OperatorId, OperatorEventTime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportEmitted:
    """A subtask hands something to the client: ``sequence`` counts its reports within the attempt.

    What is named `headrace.engine.functions.operator.WARNING` is a sentence for the job's history.
    """

    attempt: ExecutionAttemptId
    operator: OperatorId
    name: str
    value: Any
    sequence: int


@dataclass(frozen=True, slots=True)
class DataMessage:
    """Elements of one channel, in order. ``sequence`` counts the channel's messages from 0."""

    edge_id: int
    producer: ExecutionAttemptId
    consumer: ExecutionAttemptId
    sequence: int
    elements: tuple[Element, ...]
    nbytes: int
    overtakes: bool = False
    """Whether it is a barrier alone, sent outside of the credit, that is ahead of all that has not been processed."""


@dataclass(frozen=True, slots=True)
class AddCredit:
    """The consumer allows messages up to (not including) sequence ``up_to_sequence`` and ``up_to_bytes`` bytes, both
    counted from the channel's beginning: absolute, so doubling it is harmless.
    """

    edge_id: int
    producer: ExecutionAttemptId
    consumer: ExecutionAttemptId
    up_to_sequence: int
    up_to_bytes: int
    batch_bytes: int = 0
    """Messages should be no larger than this, bytes; 0 leaves that to the producer."""
