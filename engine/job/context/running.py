"""The running side of a job: its executions, where they are, and every message that goes to them.

The JobManager decides *when* tasks are deployed, started, canceled or told of checkpoints; this class knows *whom*
that concerns and what to send. It holds the ExecutionGraph, the slots, and the sources' splits.

All subtasks are deployed together, or those of some regions (`headrace.engine.execution.regions`) while the others run
on. Those go back to the slots they had; only for slots that are gone others are taken.

Source: Flink's ``ExecutionGraph`` operations and ``ExecutionGraphHandler``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from headrace.state.identifiers import ExecutionAttemptId, OperatorId, VertexId

from ...checkpoint.io import STOPPING, RestorePoint
from ...errors import ConfigurationError, StateQueryError
from ...execution.graph import Execution, ExecutionGraph, SlotPlace
from ...execution.regions import PipelinedRegions, Subtask
from ...execution.scheduling import fill, slot_layout, slots_needed
from ...execution.slot_registry import SlotRegistry
from ...graph.job_graph import JobGraph
from ...kernel.event_log import EventLog
from ...kernel.machine import Address, Command, OffloadCompleted, Send
from ...protocol.checkpoint_messages import (
    CheckpointRequested,
    CheckpointTriggered,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from ...protocol.control_messages import RelayToSlot
from ...protocol.messages import (
    AcknowledgeRegistration,
    FailTask,
    KillSlot,
    RegisterTaskManager,
    RequestFailed,
    RequestHeartbeat,
    SubmitJob,
)
from ...protocol.query_messages import LocateState, StateLocated, StateOwner
from ...protocol.states import TaskState
from ...protocol.task_messages import (
    CancelTask,
    FinishTask,
    NextInputSplit,
    ReportWatermark,
    RequestNextInputSplit,
    SourceEventToEnumerator,
    SourceEventToReader,
    StartTask,
    StopSource,
    SubmitTask,
)
from ...protocol.views import SlotInfo, StopMode
from ..sources.source_coordinator import DiscoveryDue, Said, SourceCoordinator
from ..sources.watermark_alignment import AlignmentCoordinator
from .deployment import DeploymentFactory

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
        self.registry = SlotRegistry()
        self._job = job
        self._job_manager = job_manager
        self._coordinator = coordinator
        self._log = log
        self._sources = SourceCoordinator(job_graph, checkpointing=job.settings.checkpoints is not None)
        self._alignment = AlignmentCoordinator(job_graph)
        # Checkpoints that were triggered and of whose end nothing has been heard.
        self._in_flight: set[int] = set()
        self.become(job_graph)

    def become(self, job_graph: JobGraph) -> None:
        """Take over a job graph: the first one, or the same program at another parallelism. Nothing runs now."""
        self.graph = ExecutionGraph(job_graph)
        self._log.operators = {vertex.vertex_id: vertex.name for vertex in job_graph.vertices.values()}
        self._sources.become(job_graph)
        self.regions = PipelinedRegions(job_graph)
        self.num_slots_needed = slots_needed(job_graph)
        self._factory = DeploymentFactory(self._job, self.graph, self._job_manager, self._coordinator)
        # Vertices that checkpoints start at.
        self._heads: frozenset[VertexId] = frozenset(self.graph.source_vertices())
        # The slots that the job needs, numbered, which each subtask is in; and what each of them is now.
        self._layout: dict[Subtask, int] | None = None
        self._slot_of: dict[int, SlotPlace] = {}

    # ------------------------------------------------------------------------------------------------------ life cycle
    def is_whole(self, scope: Collection[Subtask]) -> bool:
        """Return whether these are all subtasks of the job."""
        return len(scope) == self.graph.num_subtasks

    def _kept_slots(self) -> dict[int, SlotPlace]:
        """Of the slots that the job has, by number, those that still live."""
        return {
            number: place for number, place in self._slot_of.items() if self.registry.owner_of(place.host) is not None
        }

    def _place(self, scope: Collection[Subtask]) -> dict[Subtask, SlotPlace]:
        """Give subtasks a slot: all of them afresh, or those of some regions where they were, if that still lives.

        Raises:
            NoResourceAvailableError: If there are too few slots.
            ConfigurationError: If the job cannot be placed.
        """
        if self._layout is None:
            self._layout = slot_layout(self.graph.job_graph)
        kept = {} if self.is_whole(scope) else self._kept_slots()
        slots = self.registry.slots()
        if self.is_whole(scope):
            slots = _without_surplus(slots, self.num_slots_needed)
        self._slot_of = fill(self.num_slots_needed, slots, kept)
        return {subtask: self._slot_of[number] for subtask, number in self._layout.items() if subtask in scope}

    @property
    def task_managers_in_use(self) -> tuple[str, ...]:
        """Those that slots of the deployment are on, by name."""
        return tuple(sorted({place.task_manager for place in self._slot_of.values()}))

    def let_go_of_unused(self) -> tuple[str, ...]:
        """Count no more on the TaskManagers that no task of the job is on, as they are about to be given back."""
        used = self.task_managers_in_use
        unused = tuple(name for name in self.registry.slots() if name not in used)
        for name in unused:
            self.registry.lose_task_manager(name)
        return unused

    def deploy(
        self, epoch: int, attempt: int, restore: RestorePoint | None, scope: Collection[Subtask], now_ms: int
    ) -> list[Command]:
        """Place subtasks and submit them, by way of their TaskManagers.

        Args:
            epoch: The leader's.
            attempt: Number of the deployment.
            restore: The checkpoint they start from; None: from nothing. For a part of the job it is the newest one.
            scope: All subtasks, or those of some regions.
            now_ms: The time.

        Raises:
            HeadraceError: If the job cannot be placed, or the checkpoint does not fit.
        """
        executions = self.graph.schedule(epoch, attempt, self._place(scope))
        deployments = [self._factory.describe(execution, restore) for execution in executions]
        if self.is_whole(scope):
            commands = self._sources.begin({} if restore is None else restore.enumerators)
            self._alignment.begin()
        else:
            commands = self._answer(self._sources.take_back(scope))
        for execution, deployment in zip(executions, deployments, strict=True):
            for state in (TaskState.SCHEDULED, TaskState.DEPLOYING):
                self.graph.transition(execution, state, self._log, now_ms, execution.place.host)
            task_manager = self.registry.address_of(execution.place.task_manager)
            assert task_manager is not None
            relay = RelayToSlot(self._job.job_id, epoch, execution.place.host, SubmitTask(deployment))
            commands.append(Send(task_manager, relay))
        return commands

    def start_tasks(self) -> list[Command]:
        """Run all tasks of a deployment, as they are ready."""
        return [_to_task(execution, StartTask(execution.attempt)) for execution in self.graph.newest]

    def stop_sources(self, mode: StopMode) -> list[Command]:
        """Let sources read no more."""
        drain = mode is StopMode.DRAIN
        wanted = [execution for execution in self.graph.executions() if execution.is_wanted]
        heads = [execution for execution in wanted if execution.attempt.vertex in self._heads]
        return [_to_task(execution, StopSource(execution.attempt, drain)) for execution in heads]

    def finish_tasks(self) -> list[Command]:
        """Let the tasks commit the rest and end, as all data is processed and durable."""
        return [_to_task(execution, FinishTask(execution.attempt)) for execution in self.graph.executions()]

    def cancel_tasks(self, scope: Collection[Subtask], now_ms: int) -> list[Command]:
        """Stop every task among these subtasks that has not ended."""
        commands = self._sources.stop() if self.is_whole(scope) else []
        for execution in self.graph.executions():
            if execution.subtask not in scope:
                continue
            self._alignment.ended(execution.attempt)  # it holds no other back
            if execution.state.is_terminal:
                continue
            if execution.state in (TaskState.CREATED, TaskState.SCHEDULED):
                self.graph.transition(execution, TaskState.CANCELED, self._log, now_ms, "never deployed")
                continue
            if execution.state is not TaskState.CANCELING:
                self.graph.transition(execution, TaskState.CANCELING, self._log, now_ms)
            commands.append(_to_task(execution, CancelTask(execution.attempt, self._job_manager)))
        return commands

    def operators_of(self, scope: Iterable[Subtask]) -> set[tuple[OperatorId, int]]:
        """Return the operators that run in some subtasks, each with the subtask's index."""
        vertices = self.graph.job_graph.vertices
        return {(OperatorId(node.uid), index) for vertex, index in scope for node in vertices[vertex].chain}

    def have_ended(self, scope: Collection[Subtask]) -> bool:
        """Return whether nothing is left anywhere of these subtasks."""
        if self.is_whole(scope):
            return self.graph.have_all_ended()
        return all(execution.state.is_terminal for execution in self.graph.executions_of(scope))

    def kill_tasks(self, epoch: int, reason: str) -> list[Command]:
        """Order the death of every slot with a task that was told to stop and has not."""
        places = {execution.place for execution in self.graph.executions() if execution.state is TaskState.CANCELING}
        in_order = sorted(places, key=lambda place: (place.task_manager, place.host))
        return [command for place in in_order for command in self.kill_slot(epoch, place.host, reason)]

    def kill_slot(self, epoch: int, slot_host: str, reason: str) -> list[Command]:
        """Order the death of one slot's process; nothing if its TaskManager is gone, and the slot with it."""
        owner = self.registry.owner_of(slot_host)
        address = None if owner is None else self.registry.address_of(owner)
        return [] if address is None else [Send(address, KillSlot(self._job.job_id, epoch, slot_host, reason))]

    def fail_task(self, epoch: int, vertex: VertexId, subtask: int, reason: str) -> tuple[str, list[Command]]:
        """Order the running attempt of a subtask to fail; gives its id.

        Raises:
            ConfigurationError: If the subtask is not there, or does not run.
        """
        subtasks = self.graph.vertices[vertex]
        name = self.graph.job_graph.vertices[vertex].name
        if not 0 <= subtask < len(subtasks):
            message = f"subtask must be from 0 to {len(subtasks) - 1}; got {subtask}"
            raise ConfigurationError(message, operator=name)
        current = subtasks[subtask].current
        address = None if current is None else self.registry.address_of(current.place.task_manager)
        if current is None or current.state.is_terminal or address is None:
            message = f"subtask {subtask} does not run now"
            raise ConfigurationError(message, operator=name)
        order = FailTask(self._job.job_id, epoch, current.place.host, current.attempt, reason)
        return str(current.attempt), [Send(address, order)]

    def lose_hosts(self, hosts: Iterable[str], now_ms: int) -> list[Execution]:
        """Take slot processes for gone, and every execution in them.

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
        """Snapshot the split enumerators and trigger the sources, in one go; see
        `headrace.engine.job.sources.split_assignment`.

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
        parts: dict[OperatorId, Any] = dict(self._sources.snapshot(checkpoint_id))
        self._in_flight.add(checkpoint_id)
        if stopping is not None:
            parts[OperatorId(STOPPING)] = stopping.value
        parts.update({OperatorId(name): mark for name, mark in marks.items()})
        collects = self.graph.job_graph.collects
        return CheckpointTriggered(checkpoint_id, attempts, parts, collects=collects), commands

    def notify_complete(self, checkpoint_id: int) -> list[Command]:
        """Tell every task that a checkpoint is durable, those that run on while others are restarted, too."""
        self._in_flight.discard(checkpoint_id)
        answers = self._answer(self._sources.completed(checkpoint_id))
        return answers + [
            _to_task(execution, NotifyCheckpointComplete(execution.attempt, checkpoint_id))
            for execution in self.graph.executions()
            if execution.is_wanted
        ]

    def notify_aborted(self, checkpoint_id: int) -> list[Command]:
        """Tell every task that a checkpoint will never complete."""
        self._in_flight.discard(checkpoint_id)
        return [
            _to_task(execution, NotifyCheckpointAborted(execution.attempt, checkpoint_id))
            for execution in self.graph.executions()
            if execution.is_wanted
        ]

    def savepoint_completed(self, checkpoint_id: int) -> None:
        """Tell tasks nothing of a durable savepoint, as it commits nothing."""
        self._in_flight.discard(checkpoint_id)

    def abort_in_flight(self) -> list[Command]:
        """Tell the tasks that run on that the coordinator has given up all that was under way."""
        return [command for checkpoint_id in sorted(self._in_flight) for command in self.notify_aborted(checkpoint_id)]

    # ----------------------------------------------------------------------------------------------------------- splits
    def split_requested(self, request: RequestNextInputSplit) -> list[Command]:
        """Answer a source subtask that has no split left."""
        execution = self.graph.find(request.attempt)
        if execution is None or not execution.is_wanted:
            return []  # one that is being stopped would take the split with it
        return self._pass_on(self._sources.requested(request))

    def source_event(self, message: SourceEventToEnumerator) -> list[Command]:
        """Hand an enumerator an event of one of its readers."""
        execution = self.graph.find(message.attempt)
        return [] if execution is None or not execution.is_wanted else self._sources.event_received(message)

    def take_checkpoint_wish(self) -> bool:
        """Return whether splits have come up that wait for a checkpoint, and this has not been told."""
        return self._sources.take_checkpoint_wish()

    def watermark_reported(self, report: ReportWatermark) -> list[Command]:
        """Note where a source subtask of an alignment group is."""
        execution = self.graph.find(report.attempt)
        if execution is None or not execution.is_wanted:
            return []
        answer = self._alignment.reported(report)
        return [] if answer is None else [_to_task(execution, answer)]

    def task_ended(self, attempt: ExecutionAttemptId) -> None:
        """Note that a task has processed all its data."""
        self._alignment.ended(attempt)

    def discovery_due(self, timer: DiscoveryDue) -> list[Command]:
        """Discover splits again, as the pause is over."""
        return self._sources.discovery_due(timer)

    def discovered(self, event: OffloadCompleted) -> tuple[list[str], list[Command]]:
        """Take the end of a call of an enumerator; gives what to note, and what to do.

        Raises:
            HeadraceError: If it failed.
        """
        said = self._sources.discovered(event)
        return said.notes, self._pass_on(said)

    def _pass_on(self, said: Said) -> list[Command]:
        """Splits first: an event may speak of them."""
        commands = self._answer(said.answers)
        for operator, subtask, event in said.events:
            commands += [
                _to_task(execution, SourceEventToReader(execution.attempt, operator, event))
                for execution in self._readers_of(operator)
                if subtask in (None, execution.attempt.subtask)
            ]
        return commands + said.commands

    def _readers_of(self, operator: OperatorId) -> list[Execution]:
        vertices = self.graph.job_graph.vertices
        wanted = [execution for execution in self.graph.executions() if execution.is_wanted]
        return [one for one in wanted if vertices[one.attempt.vertex].chain[0].uid == operator]

    def _answer(self, answers: list[NextInputSplit]) -> list[Command]:
        found = ((self.graph.find(answer.attempt), answer) for answer in answers)
        return [_to_task(execution, answer) for execution, answer in found if execution is not None]

    # ------------------------------------------------------------------------------------------------------------ slots
    def register(self, message: RegisterTaskManager) -> tuple[list[str], list[Command]]:
        """Take a TaskManager's announcement.

        Returns:
            Slot processes that are lost by it, and the answer.
        """
        change = self.registry.register(message)
        job_id, epoch = message.job_id, message.epoch
        acknowledgement = AcknowledgeRegistration(job_id, epoch, message.revision)
        kills = [KillSlot(job_id, epoch, host, "it was taken for dead before") for host in change.hosts_to_kill]
        return change.lost_hosts, [Send(message.address, answer) for answer in (acknowledgement, *kills)]

    def locate_state(self, request: LocateState) -> StateLocated | RequestFailed:
        """Say where an operator's subtasks are, for a client that asks for their state."""
        nodes = [(vertex, node) for vertex in self.graph.job_graph.vertices.values() for node in vertex.chain]
        found = [pair for pair in nodes if pair[1].uid == request.operator]
        found = found or [pair for pair in nodes if pair[1].name == request.operator]
        if len(found) != 1:
            what = "has no operator" if not found else f"has {len(found)} operators named"
            known = ", ".join(f"{node.uid} ({node.name})" for _, node in nodes if node.operator.keyed)
            message = f"the job {what} {request.operator!r}; with keyed state it has: {known or 'none'}"
            return RequestFailed(StateQueryError(message))
        vertex, node = found[0]
        owners: list[StateOwner] = []
        for subtask in self.graph.vertices[vertex.vertex_id]:
            current = subtask.current
            if current is None or current.state not in (TaskState.RUNNING, TaskState.ENDED):
                owners.clear()
                break
            owners.append(StateOwner(current.attempt, current.place.info.address))
        return StateLocated(OperatorId(node.uid), vertex.max_parallelism, tuple(owners))

    def request_heartbeats(self, request: RequestHeartbeat, max_unanswered: int) -> tuple[list[str], list[Command]]:
        """Begin a round of heartbeats.

        Returns:
            TaskManagers that have been silent for too long, and the questions to the others.
        """
        asked, silent = self.registry.begin_heartbeats(max_unanswered)
        return silent, [Send(address, request) for address in asked]


def _without_surplus(slots: dict[str, list[SlotInfo]], needed: int) -> dict[str, list[SlotInfo]]:
    """Leave out TaskManagers that the job can do without: the smallest first, of those the newest."""
    kept = dict(slots)
    for name in sorted(slots, key=lambda name: (-len(slots[name]), name), reverse=True):
        if sum(map(len, kept.values())) - len(slots[name]) >= needed:
            del kept[name]
    return kept


def _to_task(execution: Execution, message: Any) -> Send:
    return Send(execution.place.info.address, message)
