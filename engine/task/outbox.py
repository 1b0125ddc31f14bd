"""What goes out of a task beside its channels: commands, reports, numbers, and work to be done outside.

Everything that happens in a task ends as commands in its `TaskOutbox`, in order; the slot takes them after each call.
Nothing here decides: the parts of a task share one outbox, so that none has to know the task or each other.

Source: Flink's ``RuntimeEnvironment`` and ``TaskIOMetricGroup``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from headrace.state.identifiers import ExecutionAttemptId, OperatorId

from ..connectors.sources import SourceOperator
from ..functions.event_time_parts import OperatorEventTime
from ..functions.operator import OffloadEnd
from ..kernel.machine import (
    Address,
    CancelOffload,
    Command,
    Offload,
    OffloadCompleted,
    OffloadKind,
    Send,
    StartTimer,
)
from ..kernel.metrics import MetricValue
from ..protocol.states import TaskState
from ..protocol.task_messages import (
    MetricsReported,
    ReportEmitted,
    SourceEventToEnumerator,
    TaskDeployment,
    UpdateTaskExecutionState,
)
from .chain import ChainLink
from .processor_time import ProcessorTime

__all__ = [
    "LateSnapshotDiscarded",
    "OffloadedWork",
    "OperatorWorkEnded",
    "SnapshotRead",
    "SnapshotUploaded",
    "TaskMetrics",
    "TaskOutbox",
]


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    """Token of the offloaded reading of what an attempt is restored from."""

    attempt: ExecutionAttemptId


@dataclass(frozen=True, slots=True)
class SnapshotUploaded:
    """Token of an offloaded upload."""

    attempt: ExecutionAttemptId
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class LateSnapshotDiscarded:
    """Token of the offloaded deletion of what was written of a savepoint that had been given up."""

    attempt: ExecutionAttemptId
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class OperatorWorkEnded:
    """Token of what an operator has begun, by its number."""

    attempt: ExecutionAttemptId
    number: int


class TaskOutbox:
    """The commands of one task that have come up and not been taken.

    Args:
        deployment: Whom the task reports to, and as which attempt.
    """

    def __init__(self, deployment: TaskDeployment) -> None:
        self.attempt = deployment.attempt
        self._job_manager = deployment.job_manager
        self._coordinator = deployment.coordinator
        self._commands: list[Command] = []
        # Numbers what operators report, for the receiver to tell repetitions.
        self._num_reports = 0

    def take(self) -> list[Command]:
        """Return the commands that have come up, in order."""
        commands, self._commands = self._commands, []
        return commands

    def add(self, command: Command) -> None:
        """Have a command carried out."""
        self._commands.append(command)

    def send(self, to: Address, message: Any) -> None:
        """Send a message to any machine."""
        self._commands.append(Send(to, message))

    def tell_job_manager(self, message: Any) -> None:
        """Send a message to the JobManager."""
        self._commands.append(Send(self._job_manager, message))

    def tell_coordinator(self, message: Any) -> None:
        """Send a message to the CheckpointCoordinator."""
        self._commands.append(Send(self._coordinator, message))

    def report_state(self, state: TaskState, error: BaseException | None) -> None:
        """Tell the JobManager the task's state."""
        self.tell_job_manager(UpdateTaskExecutionState(self.attempt, state, error))

    def send_source_event(self, operator: OperatorId, event: Any) -> None:
        """Tell a source's enumerator something."""
        self.tell_job_manager(SourceEventToEnumerator(self.attempt, operator, event))

    def report(self, operator: OperatorId, name: str, value: Any) -> None:
        """Tell the JobManager what an operator reports: a collected row, a printed line."""
        self.tell_job_manager(ReportEmitted(self.attempt, operator, name, value, self._num_reports))
        self._num_reports += 1


class OffloadedWork:
    """Work of a task's operators that is done outside of its thread: who wants to know its end.

    Args:
        outbox: Takes the commands.
    """

    def __init__(self, outbox: TaskOutbox) -> None:
        self._outbox = outbox
        # Work under way: number -> whose it is and whom to tell of its end.
        self._works: dict[int, tuple[ChainLink, OffloadEnd]] = {}
        self._num_works = 0

    def start(self, link: ChainLink, work: Callable[[], Any], on_end: OffloadEnd, kind: OffloadKind) -> int:
        """Begin some work; gives its number. An operator's `OperatorContext.offload`."""
        self._num_works += 1
        number = self._num_works
        self._works[number] = (link, on_end)
        self._outbox.add(Offload("operator_work", OperatorWorkEnded(self._outbox.attempt, number), work, kind))
        return number

    def call_later(self, link: ChainLink, delay_ms: int, call: Callable[[], None]) -> int:
        """Have an operator called after a while: like work that takes so long. An operator's
        `OperatorContext.call_later`.
        """
        self._num_works += 1
        number = self._num_works
        self._works[number] = (link, lambda _result, _error: call())
        token = OperatorWorkEnded(self._outbox.attempt, number)
        over = OffloadCompleted("operator_work", token, None, None)
        self._outbox.add(StartTimer(f"call {number} of {self._outbox.attempt}", delay_ms, over))
        return number

    def cancel(self, number: int) -> None:
        """Give up work: its end is not wanted any more. Work that has ended is passed over."""
        if self._works.pop(number, None) is not None:
            self._outbox.add(CancelOffload("operator_work", OperatorWorkEnded(self._outbox.attempt, number)))

    def cancel_all(self) -> None:
        """Cancel all that is under way, but for what counts still."""
        for number in [number for number, (link, _) in self._works.items() if not link.operator.keeps_work]:
            self.cancel(number)

    def ended(self, number: int, result: Any, error: BaseException | None) -> None:
        """Work has ended: tell its operator, unless it was canceled."""
        entry = self._works.pop(number, None)
        if entry is not None:
            link, on_end = entry
            link.call(on_end, result, error)


class TaskMetrics:
    """Where a task's time goes, and the numbers it reports.

    Times are in milliseconds: measured by an integer clock at unrelated times, hence unbiased in the sum.

    Args:
        links: The task's operators.
        outbox: Takes the reports.
        now_ms: The clock.
        time: What the operators and exchanges have used of the processor.

    Attributes:
        busy_ms: Time spent in steps, added by the slot.
        backpressured_ms: Time spent waiting for credit.
    """

    def __init__(
        self, links: Sequence[ChainLink], outbox: TaskOutbox, now_ms: Callable[[], int], time: ProcessorTime
    ) -> None:
        self.busy_ms = self.backpressured_ms = 0
        self._time = time
        self._links = links
        self._outbox = outbox
        self._now_ms = now_ms
        self._deployed_ms = now_ms()
        # Since when output has been waiting for credit; None while it is not.
        self._backpressured_since_ms: int | None = None

    def account(self, now_ms: int, *, is_backpressured: bool) -> None:
        """Count time spent waiting for credit; called after every step of the slot."""
        if self._backpressured_since_ms is not None:
            self.backpressured_ms += now_ms - self._backpressured_since_ms
        self._backpressured_since_ms = now_ms if is_backpressured else None

    def report(self, channels: Mapping[str, float] = MappingProxyType({})) -> None:
        """Tell the JobManager the task's numbers and what its functions have accumulated.

        Args:
            channels: Numbers of the task's channels.

        Raises:
            HeadraceError: If a user's gauge or accumulator fails.
        """
        accumulated = {
            OperatorId(link.uid): link.call(link.accumulators.report, link.name)
            for link in self._links
            if link.accumulators
        }
        self._note_processor_time()
        # A wait that goes on counts so far: there is no step that would end it.
        self.account(self._now_ms(), is_backpressured=self._backpressured_since_ms is not None)
        operators: dict[OperatorId, dict[str, MetricValue]] = {
            OperatorId(link.uid): link.call(link.metrics.statistics) for link in self._links
        }
        subtask = self._outbox.attempt.subtask
        event_time = {OperatorId(link.uid): _event_time_of(link, subtask) for link in self._links}
        numbers = {**self._numbers(), **channels}
        pending = operators[OperatorId(self._links[0].uid)].get("pending_records")
        if isinstance(pending, (int, float)):  # of a source that knows
            numbers["pending_records"] = pending
        self._outbox.tell_job_manager(
            MetricsReported(self._outbox.attempt, numbers, operators, accumulated, event_time)
        )

    def _note_processor_time(self) -> None:
        """Say in the operators' metrics what they have used; what exchanges have is said of the head."""
        if self._time.is_measured:
            for link in self._links:
                link.metrics.gauge("processor.used_us", link.processor.used_us)
            self._links[0].metrics.gauge("processor.exchanges_us", self._time.exchanges.used_us)

    def _numbers(self) -> dict[str, float]:
        head = self._links[0]
        # A source has no input: what it has read is what comes out of it.
        counter = "num_records_out" if isinstance(head.operator, SourceOperator) else "num_records_in"
        ends = [link for link in self._links if not link.output.all_links]
        numbers: dict[str, float] = {
            "busy_ms": self.busy_ms,
            "backpressured_ms": self.backpressured_ms,
            "elapsed_ms": self._now_ms() - self._deployed_ms,
            "records_in": head.metrics.counters.get(counter, 0),
            "records_out": sum(link.metrics.counters.get("num_records_out", 0) for link in ends),
        }
        watermark = head.metrics.gauges.get("watermark_ms")
        if watermark is not None:
            numbers["watermark_ms"] = watermark
        return numbers


def _event_time_of(link: ChainLink, subtask: int = 0) -> OperatorEventTime:
    """Where event time is in an operator; nothing is known of one that is not open, as while state is restored."""
    if not link.is_open:
        return OperatorEventTime(None, subtask=subtask)
    watermark_ms = link.metrics.gauges.get("watermark_ms")
    parts, next_ms = link.operator.watermark_parts(), link.operator.next_event_time()
    return OperatorEventTime.of(None if watermark_ms is None else int(watermark_ms), next_ms, parts, subtask)
