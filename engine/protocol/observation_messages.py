"""The conversation about what a slot is doing: its host looks at it from beside, while its tasks run.

Nothing of this goes through the slot's machine: the host answers in a thread of its own (`OBSERVER_ACTOR` is the name
that it is asked by), so that what takes long is seen, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace.state.identifiers import ExecutionAttemptId, VertexId

__all__ = [
    "OBSERVER_ACTOR",
    "FindHotKeys",
    "HotKey",
    "HotKeys",
    "ListLogs",
    "LogChunk",
    "LogFile",
    "ObservedTask",
    "ReadLog",
    "RecordSample",
    "RejectedSample",
    "SampleRecords",
    "SampleTasks",
    "ShowRejectedRecords",
    "ShownRecord",
    "StackCount",
    "TaskSamples",
]

OBSERVER_ACTOR = "observer"
"""Of an address: the host itself, beside its machines."""


class ObservedTask(NamedTuple):
    """A task at one moment.

    Attributes:
        attempt: Which one.
        is_backpressured: Whether it has output and no credit to send it.
        is_stepping: Whether the slot is in a step of it.
        job: The job that it is of.
        name: Its operators' names.
    """

    attempt: ExecutionAttemptId
    is_backpressured: bool
    is_stepping: bool
    job: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class SampleTasks:
    """Look at the tasks of a vertex in a slot, again and again. Answer, when it is over: a list of `TaskSamples`.

    Attributes:
        vertex: Whose tasks.
        num_samples: How often.
        delay_ms: From one look to the next.
        stack_depth: Calls that are told of each stack, the outermost first; 0 looks at no stacks.
    """

    vertex: VertexId
    num_samples: int
    delay_ms: int
    stack_depth: int = 0


class StackCount(NamedTuple):
    """How often a stack was seen.

    Attributes:
        frames: Calls, the outermost first.
        num_on_cpu: How often while the thread used the processor.
        num_off_cpu: How often while it did not.
    """

    frames: tuple[str, ...]
    num_on_cpu: int
    num_off_cpu: int


@dataclass(frozen=True, slots=True)
class TaskSamples:
    """What was seen of one attempt.

    Attributes:
        attempt: Which one.
        num_samples: How often it was looked at.
        num_backpressured: How often it had no credit for its output.
        stacks: What it did, if that was asked.
    """

    attempt: ExecutionAttemptId
    num_samples: int
    num_backpressured: int
    stacks: tuple[StackCount, ...] = ()

    @property
    def ratio(self) -> float:
        """Share of samples without credit."""
        return self.num_backpressured / self.num_samples if self.num_samples else 0.0


@dataclass(frozen=True, slots=True)
class SampleRecords:
    """Show the newest records that the tasks of a vertex are sent on an exchange. Answer: a list of `RecordSample`,
    once there are enough or the time is over.

    Attributes:
        vertex: Who reads.
        edge_id: The exchange.
        num_records: Of each task, at most.
        duration_ms: So long they are waited for.
        masked: Names of fields whose values are not shown, in lower case.
        hides_values: Whether no value is shown at all, only its type.
    """

    vertex: VertexId
    edge_id: int
    num_records: int
    duration_ms: int
    masked: frozenset[str] = frozenset()
    hides_values: bool = False


class ShownRecord(NamedTuple):
    """A record as text.

    Attributes:
        text: The record, cut where it is long.
        timestamp_ms: Its event time; None if it has none.
        kind: Of a change, as ``+I``; None for plain records.
    """

    text: str
    timestamp_ms: int | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class RecordSample:
    """What one attempt was sent.

    Attributes:
        attempt: Which one.
        schema: The columns with their types, if there are such.
        records: The newest ones, oldest first.
    """

    attempt: ExecutionAttemptId
    schema: str
    records: tuple[ShownRecord, ...]


@dataclass(frozen=True, slots=True)
class ShowRejectedRecords:
    """Show the last records that the operators of a vertex have rejected. Answer: a list of `RejectedSample`; empty
    where none are kept.

    Attributes:
        vertex: Whose operators.
        num_records: Of each operator's subtask and kind, at most.
        masked: Names of fields whose values are not shown, in lower case.
        hides_values: Whether no value is shown at all, only its type.
    """

    vertex: VertexId
    num_records: int
    masked: frozenset[str] = frozenset()
    hides_values: bool = False


@dataclass(frozen=True, slots=True)
class RejectedSample:
    """What one operator's subtask has rejected.

    Attributes:
        operator: Its uid.
        name: Its name.
        kind: ``late``, or ``bad`` for what could not be decoded.
        sample: The records.
    """

    operator: str
    name: str
    kind: str
    sample: RecordSample


@dataclass(frozen=True, slots=True)
class FindHotKeys:
    """Name the keys that the tasks of a vertex are sent most on an exchange. Answer: a list of `HotKeys`, once enough
    records were looked at or the time is over; empty where the exchange has no keys.

    Attributes:
        vertex: Who reads.
        edge_id: The exchange.
        num_keys: Of each task, at most.
        duration_ms: So long records are waited for.
        subtask: Of this one only; None for all.
        masked: Names of fields whose values are not shown, in lower case.
        hides_values: Whether no value is shown at all, only its type.
    """

    vertex: VertexId
    edge_id: int
    num_keys: int
    duration_ms: int
    subtask: int | None = None
    masked: frozenset[str] = frozenset()
    hides_values: bool = False


class HotKey(NamedTuple):
    """A key.

    Attributes:
        text: The key, cut where it is long.
        share: Of the records that the task was sent, 0 to 1.
    """

    text: str
    share: float


@dataclass(frozen=True, slots=True)
class HotKeys:
    """What one attempt was sent, by key.

    Attributes:
        attempt: Which one.
        num_records: How many records it was sent meanwhile.
        num_looked_at: Of how many of them the key was found.
        num_keys: How many different keys these had.
        keys: The most frequent ones, the first first.
    """

    attempt: ExecutionAttemptId
    num_records: int
    num_looked_at: int
    num_keys: int
    keys: tuple[HotKey, ...]


@dataclass(frozen=True, slots=True)
class ListLogs:
    """Ask a host for its logs, and those of its slots. Answer: a list of `LogFile`, by name."""


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read a part of a log. Answer: `LogChunk`, or None if there is no such log.

    Attributes:
        name: One of those that are listed.
        offset: Where to begin; less than 0 counts from the end.
        max_bytes: How much at most.
    """

    name: str
    offset: int
    max_bytes: int


class LogFile(NamedTuple):
    """A log.

    Attributes:
        name: What to ask for.
        size: Bytes.
        modified_ms: When something was written last, epoch milliseconds.
    """

    name: str
    size: int
    modified_ms: int


class LogChunk(NamedTuple):
    """A part of a log.

    Attributes:
        text: Whole lines, if there are any.
        end: The offset behind it.
    """

    text: str
    end: int
