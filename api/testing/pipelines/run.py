"""A deployed program in one thread: one slot with all tasks, and what stands in for the rest of a cluster.

The slot, its tasks, channels, barriers, splits and checkpoint files are those of production. Replaced is what decides
when and where: the JobManager's and the hosts' part is played here, on the spot. Commands are carried out one after
another until nothing can run any more; only then may time go on, to the next moment at which anything is due.

Source: Flink's ``MiniCluster``, without its threads.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from headrace.engine.checkpoint.io import Fenced, check_restorable, prepare_job, publish_checkpoint
from headrace.engine.errors import CheckpointError, InternalError, ProgramError
from headrace.engine.functions.operator import PRINT
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.job.context.running import JobExecution
from headrace.engine.job.sources.source_coordinator import DiscoveryDue
from headrace.engine.kernel.event_log import EventLog
from headrace.engine.kernel.machine import (
    Address,
    CancelOffload,
    CancelTimer,
    Command,
    Offload,
    OffloadCompleted,
    Send,
    StartTimer,
)
from headrace.engine.protocol.checkpoint_messages import AcknowledgeCheckpoint, CheckpointRequested, DeclineCheckpoint
from headrace.engine.protocol.control_messages import RelayToSlot
from headrace.engine.protocol.messages import RegisterTaskManager, SubmitJob
from headrace.engine.protocol.states import TaskState
from headrace.engine.protocol.task_messages import (
    MetricsReported,
    NextInputSplit,
    ReportEmitted,
    ReportWatermark,
    RequestNextInputSplit,
    UpdateTaskExecutionState,
)
from headrace.engine.protocol.views import SlotInfo
from headrace.engine.task.slot import SlotMachine
from headrace.state.checkpoints.snapshot import OperatorSnapshot
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import ExecutionAttemptId, JobId, OperatorId, VertexId
from headrace.state.keyed.contract import KeyedStateBackend
from headrace.state.reading.program_pickles import dump_program

from ...jobs.client import print_report
from ..operators.works import WorkRunner
from .ports import OUTPUT_REPORT, Fed

__all__ = ["CheckpointPlace", "ProgramRun"]

JOB_MANAGER = Address("test", "job_manager")
COORDINATOR = Address("test", "coordinator")
TASK_MANAGER = Address("test", "task_manager")

MAX_TURNS = 100_000
"""Steps without an end between two calls of a test: a source or a loop that never rests."""

_PLACES = itertools.count(1)


class CheckpointPlace:
    """A place in this process's memory for checkpoints; gone when no harness and no snapshot holds it any more."""

    def __init__(self) -> None:
        name = f"headrace-testing-{next(_PLACES)}"
        self.uri = f"memory://{name}/checkpoints"
        weakref.finalize(self, MemoryFileSystem.forget, name)


class ProgramRun:
    """One deployment of the program: one slot with all tasks, and what stands in for the rest of a cluster.

    Args:
        graph: The program.
        place: Where checkpoints go.
        now_ms: Where the clock begins.
        keep: Takes what comes out of an output.
    """

    def __init__(
        self, graph: JobGraph, place: CheckpointPlace, now_ms: int, keep: Callable[[str | None, Any], None]
    ) -> None:
        self.now_ms = now_ms
        self.epoch = 1
        self.is_finished = False
        # All input is processed: the last checkpoint and the end are under way.
        self._is_finishing = False
        self._graph = graph
        self._place = place
        self._keep = keep
        self._slot = SlotMachine(Address("test", "slot"), TASK_MANAGER)
        self._slot.clock = lambda: self.now_ms
        self._job = SubmitJob(JobId("test"), graph.name, dump_program(graph), graph.settings, 1)
        self._execution = JobExecution(self._job, graph, JOB_MANAGER, COORDINATOR, EventLog())
        # Commands not carried out yet, with the machines that gave them.
        self._commands: deque[tuple[bool, Command]] = deque()
        # Timers of the slot (True) and of the job's sources (False): (whose, key) -> (due, message).
        self._timers: dict[tuple[bool, str], tuple[int, Any]] = {}
        # When the slot wants its next step at the latest.
        self._wake_ms: int | None = None
        # Per input: number of its next hand-in, which its task takes for a split request's.
        self._nonces: Counter[VertexId] = Counter()
        self._states: dict[ExecutionAttemptId, TaskState] = {}
        self._reports: dict[ExecutionAttemptId, MetricsReported] = {}
        self._failure: BaseException | None = None
        self._runner = WorkRunner()
        self._checkpoint_id = 0
        self._acknowledged: dict[ExecutionAttemptId, tuple[OperatorSnapshot, ...]] = {}
        self._declined: list[str] = []

    def start(self, restored_path: str | None, restored_epoch: int) -> None:
        """Deploy and start all tasks."""
        job = self._job
        if restored_path is not None:
            job = replace(job, settings=replace(job.settings, restore_from=restored_path))
            self.epoch = restored_epoch + 1
        preparation = prepare_job(job, self.epoch)
        self.epoch = preparation.epoch
        point = preparation.restore_point
        if point is not None:
            check_restorable(point, self._graph)
            self._checkpoint_id = point.checkpoint_id
        slots = tuple(
            SlotInfo(index, Address(f"slot-{index}", "slot")) for index in range(self._execution.num_slots_needed)
        )
        announcement = RegisterTaskManager(job.job_id, "test", TASK_MANAGER, self.epoch, slots, {}, 1)
        self._execution.register(announcement)
        scope = self._execution.graph.subtasks()
        self._order(self._execution.deploy(self.epoch, 0, point, scope, self.now_ms), of_slot=False)
        self._settle()
        self._order(self._execution.start_tasks(), of_slot=False)
        self._settle()

    def feed(self, vertex: VertexId, elements: list[Any] | None) -> None:
        """Hand elements to an input and let them run through; None ends it."""
        attempt = next(one.attempt for one in self._execution.graph.executions() if one.attempt.vertex == vertex)
        splits: Any = () if elements is None else (Fed(tuple(elements)),)
        answer = NextInputSplit(attempt, OperatorId(vertex), self._nonces[vertex], splits, no_more=elements is None)
        self._nonces[vertex] += 1
        self._order(self._slot.handle(answer, self.now_ms), of_slot=True)
        self._settle()

    def advance_to(self, now_ms: int) -> None:
        """Let the clock go on, stopping wherever something is due."""
        while True:
            self._settle()
            if self._fire_due():
                continue
            # What was due before and could not run waits for something else than the clock.
            later = [time for time, _ in self._timers.values()]
            if self._wake_ms is not None and self._wake_ms > self.now_ms:
                later.append(self._wake_ms)
            if self.now_ms == now_ms:
                return
            self.now_ms = min([*later, now_ms])

    def _fire_due(self) -> bool:
        """Deliver the timers that are due; whether there were any."""
        due = [key for key, (time, _) in self._timers.items() if time <= self.now_ms]
        for key in due:
            _, message = self._timers.pop(key)
            self._fire(message, of_slot=key[0])
        return bool(due)

    def checkpoint(self) -> str:
        """Take a checkpoint; gives its path."""
        if self.is_finished:
            message = "the program has finished; nothing is left to take a snapshot of"
            raise CheckpointError(message)
        self._checkpoint_id += 1
        self._acknowledged.clear()
        self._declined.clear()
        request = CheckpointRequested(self.epoch, self._checkpoint_id, self.now_ms)
        triggered, commands = self._execution.trigger_checkpoint(request)
        self._order(commands, of_slot=False)
        self._settle()
        missing = [str(attempt) for attempt in triggered.attempts if attempt not in self._acknowledged]
        if missing:
            reason = "; ".join(self._declined) or f"no answer from {', '.join(missing)}"
            message = f"the snapshot did not complete: {reason}"
            raise CheckpointError(message, checkpoint=self._checkpoint_id)
        published = publish_checkpoint(
            self._place.uri,
            self._job,
            self.epoch,
            self._checkpoint_id,
            self.now_ms,
            [snapshot for snapshots in self._acknowledged.values() for snapshot in snapshots],
            triggered.enumerators,
            (),
        )
        if isinstance(published, Fenced):
            raise CheckpointError(published.reason, checkpoint=self._checkpoint_id)
        self._order(self._execution.notify_complete(self._checkpoint_id), of_slot=False)
        self._settle()
        return published

    def keyed_states(self) -> list[KeyedStateBackend]:
        """Return the keyed state of every operator of every task."""
        return [
            link.operator.context.keyed_state for task in self._slot.tasks for link in task.links if link.operator.keyed
        ]

    def reports(self) -> list[MetricsReported]:
        """Return the newest numbers of every task, ended ones included."""
        for task in self._slot.tasks:
            task.report_metrics()
            self._order(task.take_commands(), of_slot=True)  # nothing has happened to it that the slot would ask it for
        self._settle()
        return list(self._reports.values())

    def close(self) -> None:
        """Cancel what still runs."""
        try:
            self._slot.close()
        finally:
            self._runner.close()

    # ------------------------------------------------------------------------------------------------------- the pump
    def _settle(self) -> None:
        """Let everything run that can run now.

        Raises:
            HeadraceError: What a task has failed with.
        """
        for _ in range(MAX_TURNS):
            self._carry_out()
            if self._failure is not None:
                raise self._failure
            outcome = self._slot.step(self.now_ms)
            self._order(outcome.commands, of_slot=True)
            if not self._commands and not outcome.runnable:
                self._wake_ms = outcome.wake_at_ms
                if not self._finish():
                    return
        message = f"the program does not come to rest within {MAX_TURNS} steps"
        raise ProgramError(message, hint="A source without a rate limit is endless under a clock that stands still.")

    def _order(self, commands: Iterable[Command], *, of_slot: bool) -> None:
        self._commands.extend((of_slot, command) for command in commands)

    def _carry_out(self) -> None:
        while self._commands:
            of_slot, command = self._commands.popleft()
            if isinstance(command, Send):
                self._deliver(command.to, command.message)
            elif isinstance(command, Offload):
                self._do(command, of_slot=of_slot)
            elif isinstance(command, StartTimer):
                self._timers[(of_slot, command.key)] = (self.now_ms + command.delay_ms, command.message)
            elif isinstance(command, CancelTimer):
                self._timers.pop((of_slot, command.key), None)
            elif isinstance(command, CancelOffload):
                pass  # it is done already, and the machine that gave it up ignores its end
            else:
                message = f"a test harness cannot carry out {command!r}"
                raise InternalError(message)

    def _do(self, work: Offload, *, of_slot: bool) -> None:
        completed = OffloadCompleted(work.name, work.token, *self._runner.run(work.work, work.kind))
        if of_slot:
            self._order(self._slot.handle(completed, self.now_ms), of_slot=True)
        else:
            _, commands = self._execution.discovered(completed)
            self._order(commands, of_slot=False)

    def _fire(self, message: Any, *, of_slot: bool) -> None:
        if isinstance(message, DiscoveryDue):
            self._order(self._execution.discovery_due(message), of_slot=False)
        else:
            self._order(self._slot.handle(message, self.now_ms), of_slot=of_slot)

    def _deliver(self, to: Address, message: Any) -> None:
        if isinstance(message, RelayToSlot):
            message = message.message
        elif to == COORDINATOR:
            self._take_acknowledgement(message)
            return
        elif to == JOB_MANAGER:
            self._take_report(message)
            return
        self._order(self._slot.handle(message, self.now_ms), of_slot=True)

    def _take_acknowledgement(self, message: Any) -> None:
        if isinstance(message, AcknowledgeCheckpoint):
            if message.checkpoint_id == self._checkpoint_id:
                self._acknowledged[message.attempt] = message.snapshots
        elif isinstance(message, DeclineCheckpoint):
            self._declined.append(message.reason)

    def _take_report(self, message: Any) -> None:
        if isinstance(message, UpdateTaskExecutionState):
            self._states[message.attempt] = message.state
            if message.state is TaskState.ENDED:
                self._execution.task_ended(message.attempt)
            if message.state is TaskState.FAILED and self._failure is None:
                self._failure = message.error or InternalError("a task failed and did not say why")
        elif isinstance(message, MetricsReported):
            self._reports[message.attempt] = message
        elif isinstance(message, RequestNextInputSplit):
            self._order(self._execution.split_requested(message), of_slot=False)
        elif isinstance(message, ReportWatermark):
            self._order(self._execution.watermark_reported(message), of_slot=False)
        elif isinstance(message, ReportEmitted):
            if message.name == OUTPUT_REPORT:
                self._keep(*message.value)
            elif message.name == PRINT:
                print_report(message.operator, message.attempt.subtask, message.value)

    def _finish(self) -> bool:
        """Once all tasks have processed their input: the last checkpoint, then the end. Whether anything was done."""
        if (
            self._is_finishing
            or not self._states
            or any(state is not TaskState.ENDED for state in self._states.values())
        ):
            return False
        self._is_finishing = True
        self.checkpoint()
        self._order(self._execution.finish_tasks(), of_slot=False)
        self._settle()
        self.is_finished = True
        return True
