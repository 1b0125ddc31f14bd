"""A slot: hosts one subtask of each vertex of a slot sharing group and gives the next runnable one a bounded step at
a time.

Messages come first (the host handles all of them before each step), then one task takes one step, then whatever
output is due is sent. Tasks are told apart by execution attempt; messages of attempts that are not here are ignored,
so neither a zombie's data nor a late command can touch a newer attempt. A task that raises becomes FAILED and is
reported; the slot itself goes on.

Source: Flink's ``TaskExecutor`` and mailbox processor.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from headrace.state.identifiers import ExecutionAttemptId, VertexId
from headrace.state.keyed.managed_memory import ManagedMemory

from ..columns.records import CheckpointBarrier
from ..columns.rejected_records import RejectedRecords
from ..errors import ExternalError, HeadraceError, InternalError, raise_from_outside
from ..functions.keys import KeySelector
from ..kernel.machine import (
    Address,
    Asked,
    Command,
    Offload,
    OffloadCompleted,
    Reply,
    Send,
    Started,
    StartTimer,
    StepOutcome,
    kind_of,
)
from ..protocol.checkpoint_messages import NotifyCheckpointAborted, NotifyCheckpointComplete, TriggerCheckpoint
from ..protocol.messages import FailTask, RequestFailed
from ..protocol.observation_messages import ObservedTask
from ..protocol.query_messages import DescribeStates, QueryState
from ..protocol.states import TaskState
from ..protocol.task_messages import (
    AddCredit,
    CancelTask,
    DataMessage,
    FinishTask,
    NextInputSplit,
    SourceEventToReader,
    StartTask,
    StopSource,
    SubmitTask,
    TaskDeployment,
    UpdateTaskExecutionState,
    WatermarkLimit,
)
from .outbox import OperatorWorkEnded, SnapshotRead, SnapshotUploaded
from .snapshot_io import read_restored_parts
from .state_queries import answer_query, describe_states
from .task import Task
from .turns import Turns

__all__ = ["SlotMachine"]


class _ReportMetrics:
    """Timer: tell the JobManager the numbers of all tasks."""


class SlotMachine:
    """The machine of a slot's host.

    Args:
        address: Its own address.
        parent: Its TaskManager.
        managed_memory_bytes: Its share of the TaskManager's; None bounds nothing.
        keeps_rejected: Whether operators keep the last records that they reject, as the cluster shows records.
    """

    def __init__(
        self,
        address: Address,
        parent: Address,
        managed_memory_bytes: int | None = None,
        *,
        keeps_rejected: bool = False,
    ) -> None:
        self.address = address
        self.parent = parent
        # Injected by the host: protocol points, and the clock in epoch milliseconds.
        self.probe: Callable[[str], None] = _no_probe
        self.clock: Callable[[], int] = _no_clock
        # Injected as well: what steps are measured with; None measures nothing.
        self.stopwatch_us: Callable[[], int] | None = None
        # And the processor time of the thread that calls; None measures none.
        self.processor_us: Callable[[], int] | None = None
        # What the current step is doing; read by the host's ping from another thread.
        self.doing = ""
        # Whose step it is; read by the host's observer from another thread.
        self._stepping: ExecutionAttemptId | None = None
        # Live tasks by attempt.
        self._tasks: dict[ExecutionAttemptId, Task] = {}
        self.memory = ManagedMemory(managed_memory_bytes)
        self._keeps_rejected = keeps_rejected
        # The newest attempt seen of each subtask: older ones are refused.
        self._newest: dict[tuple[VertexId, int], ExecutionAttemptId] = {}
        # Attempts whose cancellation came before their submission.
        self._canceled_early: set[ExecutionAttemptId] = set()
        # Whose turn it is. Nothing is done with a task without touching it here.
        self._turns = Turns()
        self._metrics_interval_ms = 0
        self._handlers: dict[type, Callable[[Any], list[Command]]] = {
            Started: lambda _event: [],
            Asked: self._on_asked,
            DataMessage: self._on_data,
            AddCredit: self._on_credit,
            SubmitTask: self._on_submit,
            StartTask: self._on_start,
            CancelTask: self._on_cancel,
            FinishTask: self._on_finish,
            FailTask: self._on_fail,
            TriggerCheckpoint: self._on_trigger,
            NotifyCheckpointComplete: self._on_complete,
            NotifyCheckpointAborted: self._on_aborted,
            NextInputSplit: self._on_split,
            SourceEventToReader: self._on_source_event,
            StopSource: self._on_stop_source,
            WatermarkLimit: self._on_watermark_limit,
            SnapshotRead: self._on_snapshot_read,
            SnapshotUploaded: self._on_snapshot_uploaded,
            OperatorWorkEnded: self._on_work_ended,
            _ReportMetrics: self._on_report_metrics,
        }

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        """Take one message or event; see `headrace.engine.kernel.machine.Machine`."""
        handler = self._handlers.get(kind_of(event))
        return [] if handler is None else handler(event)

    def step(self, now_ms: int) -> StepOutcome:
        """Give one runnable task one step, then send what is due."""
        turns = self._turns
        turns.ask_touched()
        task = turns.take_next(now_ms)
        if task is not None:
            self._run(task, now_ms)
        now_ms = self.clock()
        commands: list[Command] = []
        for task in turns.take_touched(now_ms):
            unsent_ms = task.flush(now_ms)
            commands.extend(task.take_commands())
            turns.note(task, task.next_step_ms(), unsent_ms)
            self._forget_if_ended(task)
        is_runnable = turns.can_go_on(now_ms)
        return StepOutcome(commands, is_runnable, None if is_runnable else turns.wake_ms)

    @property
    def tasks(self) -> list[Task]:
        """The live tasks; for test harnesses."""
        return list(self._tasks.values())

    def observe(self) -> list[ObservedTask]:
        """Say how each task is at this moment. Changes nothing, and may be called from another thread, during a step,
        too.
        """
        stepping = self._stepping
        return [
            # Within a step full output is nothing to wait for yet: it is sent behind it.
            ObservedTask(
                attempt, attempt != stepping and task.is_backpressured, attempt == stepping, task.job_id, task.name
            )
            for attempt, task in list(self._tasks.items())
        ]

    def tap(
        self, vertex: VertexId, edge_id: int, tap: Callable[[ExecutionAttemptId, DataMessage], None] | None
    ) -> list[ExecutionAttemptId]:
        """Have a call made for each message that the tasks of a vertex get on an exchange, or none any more; gives
        which tasks these are. May be called from another thread, as `observe`.
        """
        tasks = [task for attempt, task in list(self._tasks.items()) if attempt.vertex == vertex]
        for task in tasks:
            task.tap(edge_id, tap)
        return [task.attempt for task in tasks]

    def key_selector(self, vertex: VertexId, edge_id: int) -> KeySelector | None:
        """By what tasks of a vertex find keys of what they are sent on an exchange. May be called as `observe`."""
        tasks = (task for attempt, task in list(self._tasks.items()) if attempt.vertex == vertex)
        return next((task.key_selector(edge_id) for task in tasks), None)

    def rejected(self, vertex: VertexId) -> list[tuple[ExecutionAttemptId, str, str, RejectedRecords]]:
        """Return what the operators of a vertex keep of what they reject: attempt, uid, name. May be called as
        `observe`.
        """
        tasks = [task for attempt, task in list(self._tasks.items()) if attempt.vertex == vertex]
        return [
            (task.attempt, link.uid, link.name, link.rejected)
            for task in tasks
            for link in task.links
            if link.rejected is not None
        ]

    def close(self) -> None:
        """Let go of everything, as the host ends in order."""
        for task in self._tasks.values():
            if not task.state.is_terminal:
                task.cancel()
        self._tasks.clear()
        self._turns.clear()

    # ------------------------------------------------------------------------------------------------------------ steps
    def _run(self, task: Task, now_ms: int) -> None:
        self.doing = f"{task.name} (subtask {task.attempt.subtask})"
        self._stepping = task.attempt
        with self._guarded(task):
            task.step(now_ms)
        self._stepping = None
        self.doing = ""
        task.metrics.busy_ms += self.clock() - now_ms

    @contextmanager
    def _guarded(self, task: Task) -> Iterator[None]:
        """Touch a task, and turn whatever it raises into its failure; state that it reads consists of its program's
        classes.
        """
        self._turns.touch(task)
        try:
            if task.classes is None:
                yield
            else:
                with task.classes.in_use():
                    yield
        except HeadraceError as error:
            task.fail(error)
        except BaseException as error:
            raise_from_outside(error)
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            message = f"task failed: {error!r}"
            task.fail(InternalError(message, task=task.name, attempt=str(task.attempt), traceback=trace))

    def _forget_if_ended(self, task: Task) -> None:
        if task.state.is_terminal:
            del self._tasks[task.attempt]
            self._turns.remove(task)

    def _guard(self, attempt: ExecutionAttemptId, action: Callable[[Task], None]) -> list[Command]:
        """Do something with a task, if it is here."""
        task = self._tasks.get(attempt)
        if task is None:
            return []
        with self._guarded(task):
            action(task)
        commands = task.take_commands()
        self._forget_if_ended(task)
        return commands

    # ------------------------------------------------------------------------------------------------------- data plane
    def _on_data(self, message: DataMessage) -> list[Command]:
        task = self._tasks.get(message.consumer)
        if task is not None:
            with self._guarded(task):
                task.receive(message)
            if task.state.is_terminal:
                commands = task.take_commands()
                self._forget_if_ended(task)
                return commands
        return []

    def _on_credit(self, credit: AddCredit) -> list[Command]:
        task = self._tasks.get(credit.producer)
        if task is not None:
            self._turns.touch(task)
            task.add_credit(credit)
        return []

    # ----------------------------------------------------------------------------------------------------- task control
    def _on_submit(self, message: SubmitTask) -> list[Command]:
        deployment = message.deployment
        attempt = deployment.attempt
        key = (attempt.vertex, attempt.subtask)
        newest = self._newest.get(key)
        if attempt in self._tasks:
            task = self._tasks[attempt]
            task.report_state()
            return task.take_commands()
        if attempt in self._canceled_early or (newest is not None and attempt <= newest):
            return []  # overtaken by its own cancellation, or by a newer attempt
        commands: list[Command] = []
        for old in [a for a in self._tasks if (a.vertex, a.subtask) == key]:
            commands.extend(self._guard(old, Task.cancel))
        self._newest[key] = attempt
        try:
            task = Task(
                deployment, self.address, self.clock, self.probe, self.stopwatch_us, self.memory, self.processor_us
            )
        except BaseException as error:
            raise_from_outside(error)
            return [*commands, _report_load_failure(deployment, error)]
        if self._keeps_rejected:
            for link in task.links:
                link.rejected = RejectedRecords()
        self._tasks[attempt] = task
        self._turns.add(task)
        task.report_state()
        commands.extend(task.take_commands())
        work = functools.partial(read_restored_parts, deployment)
        commands.append(Offload("read_snapshot", SnapshotRead(attempt), work))
        if not self._metrics_interval_ms:
            self._metrics_interval_ms = deployment.settings.metrics_interval_ms
            commands.append(StartTimer("metrics", self._metrics_interval_ms, _ReportMetrics()))
        return commands

    def _on_start(self, message: StartTask) -> list[Command]:
        return self._guard(message.attempt, lambda task: task.start() if task.state is TaskState.READY else None)

    def _on_cancel(self, message: CancelTask) -> list[Command]:
        if message.attempt in self._tasks:
            return self._guard(message.attempt, Task.cancel)
        self._canceled_early.add(message.attempt)
        return [Send(message.job_manager, UpdateTaskExecutionState(message.attempt, TaskState.CANCELED))]

    def _on_fail(self, message: FailTask) -> list[Command]:
        error = ExternalError(f"the task was failed from outside: {message.reason}", attempt=str(message.attempt))
        return self._guard(message.attempt, lambda task: task.fail(error))

    def _on_finish(self, message: FinishTask) -> list[Command]:
        return self._guard(message.attempt, lambda task: task.finish_job() if task.state is TaskState.ENDED else None)

    def _on_source_event(self, message: SourceEventToReader) -> list[Command]:
        return self._guard(message.attempt, lambda task: task.take_source_event(message))

    def _on_split(self, message: NextInputSplit) -> list[Command]:
        return self._guard(message.attempt, lambda task: task.take_split(message))

    def _on_stop_source(self, message: StopSource) -> list[Command]:
        return self._guard(message.attempt, lambda task: task.stop_source(drain=message.drain))

    def _on_watermark_limit(self, message: WatermarkLimit) -> list[Command]:
        return self._guard(message.attempt, lambda task: task.limit_watermark(message))

    # ------------------------------------------------------------------------------------------------------ checkpoints
    def _on_trigger(self, message: TriggerCheckpoint) -> list[Command]:
        barrier = CheckpointBarrier(
            message.checkpoint_id, message.timestamp_ms, message.suspends, message.base_id, message.savepoint
        )
        return self._guard(message.attempt, lambda task: task.trigger_checkpoint(barrier))

    def _on_complete(self, message: NotifyCheckpointComplete) -> list[Command]:
        return self._guard(message.attempt, lambda task: task.checkpoint_complete(message.checkpoint_id))

    def _on_aborted(self, message: NotifyCheckpointAborted) -> list[Command]:
        return self._guard(message.attempt, lambda task: task.checkpoint_aborted(message.checkpoint_id))

    # The end of a discarded snapshot needs no handler: what was written too late is gone, or stays as garbage without a
    # manifest.
    def _on_snapshot_read(self, event: OffloadCompleted) -> list[Command]:
        return self._guard(event.token.attempt, lambda task: _initialize(task, event))

    def _on_snapshot_uploaded(self, event: OffloadCompleted) -> list[Command]:
        token = event.token
        return self._guard(
            token.attempt, lambda task: task.upload_ended(token.checkpoint_id, event.result, event.error)
        )

    def _on_work_ended(self, event: OffloadCompleted) -> list[Command]:
        token = event.token
        return self._guard(token.attempt, lambda task: task.work_ended(token.number, event.result, event.error))

    # ---------------------------------------------------------------------------------------------------------- clients
    def _on_asked(self, event: Asked) -> list[Command]:
        request = event.request
        if isinstance(request, (QueryState, DescribeStates)):
            task = self._tasks.get(request.attempt)
            with nullcontext() if task is None or task.classes is None else task.classes.in_use():
                answer = (
                    answer_query(request, task, self.clock())
                    if isinstance(request, QueryState)
                    else describe_states(request, task)
                )
            return [Reply(event.ask_id, answer)]
        message = f"a slot does not answer {type(request).__name__}"
        return [Reply(event.ask_id, RequestFailed(InternalError(message)))]

    # ---------------------------------------------------------------------------------------------------------- metrics
    def _on_report_metrics(self, _event: _ReportMetrics) -> list[Command]:
        commands: list[Command] = []
        for task in list(self._tasks.values()):
            with self._guarded(task):  # a user's gauge may fail
                task.report_metrics()
            commands.extend(task.take_commands())
            self._forget_if_ended(task)
        if not self._tasks:
            self._metrics_interval_ms = 0  # the next task starts it again
            return commands
        return [*commands, StartTimer("metrics", self._metrics_interval_ms, _ReportMetrics())]


def _initialize(task: Task, event: OffloadCompleted) -> None:
    if task.state is not TaskState.INITIALIZING:
        return
    if event.error is not None:
        if isinstance(event.error, Exception):
            raise event.error
        message = f"restoring state was interrupted: {event.error!r}"
        raise InternalError(message)
    task.initialize(event.result)


def _report_load_failure(deployment: TaskDeployment, error: BaseException) -> Command:
    if not isinstance(error, HeadraceError):
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        message = f"the task could not be built: {error!r}"
        error = InternalError(message, attempt=str(deployment.attempt), traceback=trace)
    return Send(deployment.job_manager, UpdateTaskExecutionState(deployment.attempt, TaskState.FAILED, error))


def _no_probe(_name: str) -> None:
    """Production has no protocol points."""


def _no_clock() -> int:
    message = "a slot needs its host's clock"
    raise InternalError(message)
