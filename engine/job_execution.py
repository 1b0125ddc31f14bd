"""The running side of a job: its executions, where they are, and every message that goes to them.

The JobManager decides *when* tasks are deployed, started, canceled or told of checkpoints; this class knows *whom*
that concerns and what to send. It holds the ExecutionGraph, the slots, and the sources' splits.

Source: Flink's ``ExecutionGraph`` operations and ``ExecutionGraphHandler``; rows D9, D11, D18.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from headrace.engine.checkpoint_io import STOPPING, RestorePoint
from headrace.engine.control_messages import RelayToSlot
from headrace.engine.deployment import DeploymentFactory
from headrace.engine.execution import EventLog, Execution, ExecutionGraph, TaskState
from headrace.engine.jobgraph import JobGraph
from headrace.engine.machine import Address, Command, OffloadCompleted, Send
from headrace.engine.messages import (
    AcknowledgeRegistration,
    CancelTask,
    CheckpointRequested,
    CheckpointTriggered,
    FinishTask,
    KillSlot,
    NextInputSplit,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    RegisterTaskManager,
    ReportWatermark,
    RequestHeartbeat,
    RequestNextInputSplit,
    StartTask,
    StopMode,
    StopSource,
    SubmitJob,
    SubmitTask,
    TriggerCheckpoint,
)
from headrace.engine.scheduling import place, slots_needed
from headrace.engine.slot_pool import SlotPool
from headrace.engine.split_assignment import DiscoveryDue, SourceCoordinator
from headrace.engine.watermark_alignment import AlignmentCoordinator
from headrace.state.identifiers import ExecutionAttemptId, OperatorId, VertexId

__all__ = ["JobExecution"]


class JobExecution:
    """Everything of one job that is somewhere else: tasks, slots, splits.

    Args:
        job: The job.
        job_graph: Its graph.
        job_manager: Where tasks report to.
        coordinator: Where they acknowledge checkpoints.
        log: Where changes of executions are noted.

    Raises:
        SourceError: If a split enumerator cannot be made.
    """

    def __init__(
        self, job: SubmitJob, job_graph: JobGraph, job_manager: Address, coordinator: Address, log: EventLog
    ) -> None:
        self.graph = ExecutionGraph(job_graph)
        self.num_slots_needed = slots_needed(job_graph)
        self.pool = SlotPool()
        self._job = job
        self._job_manager = job_manager
        self._log = log
        self._factory = DeploymentFactory(job, self.graph, job_manager, coordinator)
        self._sources = SourceCoordinator(job_graph)
        self._alignment = AlignmentCoordinator(job_graph)
        # Vertices that checkpoints start at.
        self._heads: frozenset[VertexId] = frozenset(self.graph.source_vertices())

    # ------------------------------------------------------------------------------------------------------ life cycle
    def deploy(self, epoch: int, attempt: int, restore: RestorePoint | None, now_ms: int) -> list[Command]:
        """Place every subtask and submit it, by way of its TaskManager.

        Raises:
            HeadraceError: If the job cannot be placed, or the checkpoint does not fit.
        """
        places = place(self.graph.job_graph, self.pool.slots())
        executions = self.graph.schedule(epoch, attempt, places)
        deployments = [self._factory.describe(execution, restore) for execution in executions]
        commands = self._sources.begin({} if restore is None else restore.enumerators)
        self._alignment.begin()
        for execution, deployment in zip(executions, deployments, strict=True):
            for state in (TaskState.SCHEDULED, TaskState.DEPLOYING):
                self.graph.transition(execution, state, self._log, now_ms, execution.place.host)
            task_manager = self.pool.address_of(execution.place.task_manager)
            assert task_manager is not None
            relay = RelayToSlot(self._job.job_id, epoch, execution.place.host, SubmitTask(deployment))
            commands.append(Send(task_manager, relay))
        return commands

    def start_tasks(self) -> list[Command]:
        """All tasks are ready: run them."""
        return [_to_task(execution, StartTask(execution.attempt)) for execution in self.graph.executions()]

    def stop_sources(self, mode: StopMode) -> list[Command]:
        """Let sources read no more."""
        drain = mode is StopMode.DRAIN
        heads = [execution for execution in self.graph.live_executions() if execution.attempt.vertex in self._heads]
        return [_to_task(execution, StopSource(execution.attempt, drain)) for execution in heads]

    def finish_tasks(self) -> list[Command]:
        """All data is processed and durable: let the tasks commit the rest and end."""
        return [_to_task(execution, FinishTask(execution.attempt)) for execution in self.graph.executions()]

    def cancel_tasks(self, now_ms: int) -> list[Command]:
        """Stop every task that has not ended."""
        commands = self._sources.stop()
        for execution in self.graph.live_executions():
            if execution.state in (TaskState.CREATED, TaskState.SCHEDULED):
                self.graph.transition(execution, TaskState.CANCELED, self._log, now_ms, "never deployed")
                continue
            if execution.state is not TaskState.CANCELING:
                self.graph.transition(execution, TaskState.CANCELING, self._log, now_ms)
            commands.append(_to_task(execution, CancelTask(execution.attempt, self._job_manager)))
        return commands

    def kill_tasks(self, epoch: int, reason: str) -> list[Command]:
        """Order the death of every slot with a task that has not ended."""
        places = {execution.place for execution in self.graph.live_executions()}
        in_order = sorted(places, key=lambda place: (place.task_manager, place.host))
        return [command for place in in_order for command in self.kill_slot(epoch, place.host, reason)]

    def kill_slot(self, epoch: int, slot_host: str, reason: str) -> list[Command]:
        """Order the death of one slot's process; nothing if its TaskManager is gone, and the slot with it."""
        owner = self.pool.owner_of(slot_host)
        address = None if owner is None else self.pool.address_of(owner)
        return [] if address is None else [Send(address, KillSlot(self._job.job_id, epoch, slot_host, reason))]

    def lose_hosts(self, hosts: Iterable[str], now_ms: int) -> list[Execution]:
        """Slot processes are gone, and every execution in them.

        Returns:
            The executions that failed by it.
        """
        lost = set(hosts)
        dead = [execution for execution in self.graph.live_executions() if execution.place.host in lost]
        for execution in dead:
            self.graph.transition(execution, TaskState.FAILED, self._log, now_ms, "its slot is gone")
        return dead

    # ------------------------------------------------------------------------------------------------------ checkpoints
    def trigger_checkpoint(
        self,
        request: CheckpointRequested,
        stopping: StopMode | None = None,
        *,
        suspends: bool = False,
        marks: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[CheckpointTriggered, list[Command]]:
        """Snapshot the split enumerators and trigger the sources, in one go: see `headrace.engine.split_assignment`.

        Args:
            request: Which checkpoint.
            stopping: How the job is being stopped, to be remembered with the checkpoint.
            suspends: Whether tasks process nothing more behind it.
            marks: What else is to be remembered with the checkpoint.
        """
        executions = list(self.graph.executions())
        checkpoint_id, timestamp_ms = request.checkpoint_id, request.timestamp_ms
        commands: list[Command] = [
            _to_task(
                execution,
                TriggerCheckpoint(
                    execution.attempt, checkpoint_id, timestamp_ms, suspends, request.base_id, request.savepoint
                ),
            )
            for execution in executions
            if execution.attempt.vertex in self._heads
        ]
        attempts = tuple(execution.attempt for execution in executions)
        parts: dict[OperatorId, Any] = dict(self._sources.snapshot())
        if stopping is not None:
            parts[OperatorId(STOPPING)] = stopping.value
        parts.update({OperatorId(name): mark for name, mark in marks.items()})
        return CheckpointTriggered(checkpoint_id, attempts, parts), commands

    def notify_complete(self, checkpoint_id: int) -> list[Command]:
        """Tell every task that a checkpoint is durable."""
        return [
            _to_task(execution, NotifyCheckpointComplete(execution.attempt, checkpoint_id))
            for execution in self.graph.live_executions()
        ]

    def notify_aborted(self, checkpoint_id: int) -> list[Command]:
        """Tell every task that a checkpoint will never complete."""
        return [
            _to_task(execution, NotifyCheckpointAborted(execution.attempt, checkpoint_id))
            for execution in self.graph.live_executions()
        ]

    # ----------------------------------------------------------------------------------------------------------- splits
    def split_requested(self, request: RequestNextInputSplit) -> list[Command]:
        """A source subtask has no split left."""
        if self.graph.find(request.attempt) is None:
            return []
        answer = self._sources.requested(request)
        return [] if answer is None else self._answer([answer])

    def watermark_reported(self, report: ReportWatermark) -> list[Command]:
        """A source subtask of an alignment group tells where it is."""
        execution = self.graph.find(report.attempt)
        answer = None if execution is None else self._alignment.reported(report)
        return [] if execution is None or answer is None else [_to_task(execution, answer)]

    def task_ended(self, attempt: ExecutionAttemptId) -> None:
        """A task has processed all its data."""
        self._alignment.ended(attempt)

    def discovery_due(self, timer: DiscoveryDue) -> list[Command]:
        """The pause between two discoveries is over."""
        return self._sources.discovery_due(timer)

    def discovered(self, event: OffloadCompleted) -> list[Command]:
        """A discovery has ended.

        Raises:
            HeadraceError: If it failed.
        """
        answers, commands = self._sources.discovered(event)
        return self._answer(answers) + commands

    def _answer(self, answers: list[NextInputSplit]) -> list[Command]:
        found = ((self.graph.find(answer.attempt), answer) for answer in answers)
        return [_to_task(execution, answer) for execution, answer in found if execution is not None]

    # ------------------------------------------------------------------------------------------------------------ slots
    def register(self, message: RegisterTaskManager) -> tuple[list[str], list[Command]]:
        """Take a TaskManager's announcement.

        Returns:
            Slot processes that are lost by it, and the answer.
        """
        change = self.pool.register(message)
        job_id, epoch = message.job_id, message.epoch
        acknowledgement = AcknowledgeRegistration(job_id, epoch, message.revision)
        kills = [KillSlot(job_id, epoch, host, "it was taken for dead before") for host in change.hosts_to_kill]
        return change.lost_hosts, [Send(message.address, answer) for answer in (acknowledgement, *kills)]

    def request_heartbeats(self, request: RequestHeartbeat, max_unanswered: int) -> tuple[list[str], list[Command]]:
        """Begin a round of heartbeats.

        Returns:
            TaskManagers that have been silent for too long, and the questions to the others.
        """
        asked, silent = self.pool.begin_heartbeats(max_unanswered)
        return silent, [Send(address, request) for address in asked]


def _to_task(execution: Execution, message: Any) -> Send:
    return Send(execution.place.info.address, message)
