"""The JobManager of one job under one leader epoch: deploys it, watches it, restarts it, ends it.

It passes through phases, one at a time::

    PREPARING -> WAITING_FOR_SLOTS -> DEPLOYING -> EXECUTING -> FINAL_CHECKPOINT -> FINISHING -> STOPPING -> ENDED
        ^                                 `------------+---------------+---------------'          |  `-> DELIVERING ^
        `------------------------ BACKING_OFF <---------------------------------------------------'

*Preparing* claims leadership in the checkpoint store and finds the checkpoint to start from. *Deploying* submits
every task and starts them only when all are ready, so that no data meets a task that is not there. *Stopping* (after
a failure, a cancellation, or the end) is over only when no execution is left and the CheckpointCoordinator has said
that no publication is under way; only then may a checkpoint be chosen to restore from. Any failure stops the whole
job (it is one pipelined region) and restarts it from its newest complete checkpoint with new attempts, as long as the
restart strategy allows.

The last checkpoint: tasks that have processed all data stay and answer barriers. When all have, one more checkpoint
is taken; whatever is triggered then holds everything, so once it is complete the tasks may commit what is left and
finish. A job that is suspended on request takes its last checkpoint at once, with a barrier behind which nothing is
processed, and goes on from there in the same way.

Invariants: a task's report counts only for a current attempt; a split is answered and a checkpoint triggered in one
step each, in that order on every link; the end of the job is told to clients, and its checkpoints are deleted, only
once the Dispatcher has recorded it.

Source: Flink's ``JobMaster``, ``DefaultScheduler``, ``AdaptiveScheduler`` (its states); rows D4 to D11, D17 to D20,
D31, D32, G11.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import cloudpickle

from headrace.engine.checkpoint_io import (
    Preparation,
    RestorePoint,
    check_restorable,
    prepare_job,
)
from headrace.engine.control_messages import JobArchived, LeadershipLost, ReportsPending, ReportsWanted
from headrace.engine.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    ConfigurationError,
    ExternalError,
    HeadraceError,
    InternalError,
    JobCanceledError,
    NoResourceAvailableError,
    ProgramError,
    SupersededError,
    UserError,
)
from headrace.engine.execution import Execution, InvalidTransition, JobStatus, TaskState
from headrace.engine.job_clients import ClientLost, LingerOver, PollTimedOut
from headrace.engine.job_ending import JobEnding
from headrace.engine.job_execution import JobExecution
from headrace.engine.job_record import JobRecord
from headrace.engine.job_stopping import JobStop
from headrace.engine.jobgraph import JobGraph
from headrace.engine.machine import (
    Address,
    Asked,
    CancelTimer,
    Command,
    Offload,
    OffloadCompleted,
    Reply,
    Send,
    Started,
    StartTimer,
    StopHost,
)
from headrace.engine.messages import (
    CancelJob,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointRequested,
    CheckpointTriggered,
    CoordinatorStopped,
    ExecutionStarted,
    ExecutionStopped,
    FetchReports,
    FinalCheckpointWanted,
    Heartbeat,
    JobStatusChanged,
    JobView,
    KillSlotOnPurpose,
    MetricsReported,
    RegisterTaskManager,
    ReportEmitted,
    ReportWatermark,
    RequestFailed,
    RequestHeartbeat,
    RequestNextInputSplit,
    RequestSlots,
    SlotLost,
    SlotRequestFailed,
    StopJob,
    SubmitJob,
    TaskManagerLost,
    UpdateTaskExecutionState,
    WaitForJob,
)
from headrace.engine.scheduling import RestartBackoff
from headrace.engine.split_assignment import DiscoveryDue

__all__ = ["JobManager"]

DELIVERY_TIMEOUT_MS = 5_000
"""How long a finished job waits for its client to fetch what it collected before the end is recorded."""

ARCHIVE_RETRY_MS = 1_000
"""How often the end of a job is told to the Dispatcher until it has recorded it."""


class _Phase(Enum):
    PREPARING = "preparing"
    WAITING_FOR_SLOTS = "waiting for slots"
    DEPLOYING = "deploying"
    EXECUTING = "executing"
    FINAL_CHECKPOINT = "taking the last checkpoint"
    FINISHING = "finishing"
    STOPPING = "stopping"
    BACKING_OFF = "waiting to restart"
    DELIVERING = "waiting for its client to fetch the results"
    ENDED = "ended"


_LIVE = (_Phase.DEPLOYING, _Phase.EXECUTING, _Phase.FINAL_CHECKPOINT, _Phase.FINISHING)
"""Phases in which tasks are where they should be."""

_PROGRESS = list(TaskState)
"""States in the order in which an undisturbed task reports them."""


@dataclass(frozen=True, slots=True)
class _SlotRequestTimedOut:
    serial: int


@dataclass(frozen=True, slots=True)
class _CancellationTimedOut:
    deployment: int


@dataclass(frozen=True, slots=True)
class _BackOffOver:
    serial: int


@dataclass(frozen=True, slots=True)
class _HeartbeatDue:
    pass


@dataclass(frozen=True, slots=True)
class _ViewDue:
    pass


@dataclass(frozen=True, slots=True)
class _DeliveryOver:
    pass


@dataclass(frozen=True, slots=True)
class _TellDispatcher:
    pass


class JobManager:
    """The machine.

    Args:
        address: Its own address.
        job: The job.
        epoch: The leader epoch the Dispatcher gave it; the checkpoint store may raise it.
        dispatcher: Whom to tell of the job's state.
        resource_manager: Whom to ask for slots.
        coordinator: The CheckpointCoordinator on the same host.
        predecessor: The last view of the leader before, whose record goes on.
    """

    def __init__(
        self,
        address: Address,
        job: SubmitJob,
        epoch: int,
        dispatcher: Address,
        resource_manager: Address,
        coordinator: Address,
        predecessor: JobView | None = None,
    ) -> None:
        self.address = address
        self.job = job
        self.epoch = epoch
        self.phase = _Phase.PREPARING
        self._dispatcher = dispatcher
        self._resource_manager = resource_manager
        self._coordinator = coordinator
        self._settings = job.settings
        self._record = JobRecord(job, epoch, predecessor)
        restarts = 0 if predecessor is None else predecessor.num_restarts
        self._restart = RestartBackoff(job.settings.restart_strategy(), restarts)
        # Failures of the program itself since the last completed checkpoint.
        self._num_user_failures = 0
        if predecessor is not None:
            self._record.num_restarts += 1
        # Made of the job's pickle when the machine starts; None if that cannot be read.
        self._execution: JobExecution | None = None
        # Number of the current deployment, the attempt number of its executions; -1 before the first.
        self._deployment = -1
        # Counts preparations, so that an old one's end is recognised.
        self._serial = 0
        self._has_claimed = False
        self._restore_point: RestorePoint | None = None
        # Checkpoints not to restore from: found damaged; given up by the coordinator (even if the store has them).
        self._damaged: set[int] = set()
        self._given_up: set[int] = set()
        # Checkpoints triggered after all data was processed.
        self._final_ids: set[int] = set()
        # What comes after STOPPING: RESTARTING, FAILED, CANCELED or FINISHED; and whether the coordinator has stopped.
        self._stop_target = JobStatus.RESTARTING
        self._has_coordinator_stopped = True
        self._heartbeat_nonce = 0
        self._is_view_due = False
        # Whether the job is to end in order before its input does.
        self._wish = JobStop(self._record, job.settings, job.name)
        # What comes after the end.
        self._ending = JobEnding(job, self._record, resource_manager)
        self._handlers: dict[type, Callable[[Any, int], list[Command]]] = {
            Started: self._on_started,
            Asked: self._on_asked,
            OffloadCompleted: self._on_offload,
            ReportEmitted: self._on_report,
            CheckpointCompleted: self._on_checkpoint_completed,
            CheckpointAborted: self._on_checkpoint_aborted,
            CoordinatorStopped: self._on_coordinator_stopped,
            LeadershipLost: self._on_leadership_lost,
            ReportsWanted: self._on_reports_wanted,
            JobArchived: self._on_archived,
            CancelJob: self._on_shutdown,
            PollTimedOut: self._on_poll_timed_out,
            ClientLost: lambda _timer, now_ms: self._cancel("its client is gone", now_ms),
            LingerOver: lambda _timer, _now_ms: self._ending.leave(),
            _ViewDue: self._on_view_due,
            _TellDispatcher: self._on_tell_dispatcher,
        }
        # Only while there is something to execute.
        self._execution_handlers: dict[type, Callable[[Any, int, JobExecution], list[Command]]] = {
            UpdateTaskExecutionState: self._on_task_state,
            RequestNextInputSplit: self._on_split_request,
            DiscoveryDue: self._on_discovery_due,
            ReportWatermark: lambda report, _now_ms, run: run.watermark_reported(report),
            MetricsReported: self._on_metrics,
            RegisterTaskManager: self._on_registration,
            Heartbeat: self._on_heartbeat,
            SlotLost: self._on_slot_lost,
            TaskManagerLost: self._on_task_manager_lost,
            SlotRequestFailed: self._on_slot_request_failed,
            CheckpointRequested: self._on_checkpoint_requested,
            _SlotRequestTimedOut: self._on_slot_request_timed_out,
            _CancellationTimedOut: self._on_cancellation_timed_out,
            _BackOffOver: self._on_back_off_over,
            _DeliveryOver: lambda _timer, now_ms, _execution: self._on_delivery_over(now_ms),
            _HeartbeatDue: self._on_heartbeat_due,
        }

    @property
    def status(self) -> JobStatus:
        """The job's state."""
        return self._record.status

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        """Take one message or event; see `headrace.engine.machine.Machine`."""
        commands: list[Command] = []
        handler = self._handlers.get(type(event))
        if handler is not None:
            commands += handler(event, now_ms)
        elif self._execution is not None and self.phase is not _Phase.ENDED:
            execution_handler = self._execution_handlers.get(type(event))
            if execution_handler is not None:
                commands += execution_handler(event, now_ms, self._execution)
        if self._record.has_news:
            self._record.has_news = False
            self._record.clients.changed()
            commands.append(self._tell_dispatcher())
        return commands + self._record.clients.flush(self.view)

    def view(self) -> JobView:
        """The job for people and clients."""
        if self._execution is None:
            return self._record.view(None, [])
        return self._record.view(self._execution.graph, self._execution.pool.all_slots())

    def story(self, about: object) -> list[str]:
        """What is remembered about an attempt, a TaskManager or ``job``, oldest first."""
        return self._record.log.story(about)

    def _tell_dispatcher(self) -> Send:
        return Send(self._dispatcher, JobStatusChanged(self.job.job_id, self.epoch, self.view()))

    # ----------------------------------------------------------------------------------------------------- preparation
    def _on_started(self, _event: Started, now_ms: int) -> list[Command]:
        if self._record.started_ms is None:
            self._record.started_ms = now_ms
        commands = self._record.clients.started()
        try:
            job_graph: JobGraph = cloudpickle.loads(self.job.job_graph)
        except Exception as error:
            message = f"the job graph cannot be read where the JobManager runs: {error!r}"
            hint = "Modules that the program imports must be installed on every node."
            return commands + self._fail(ProgramError(message, hint=hint, job=self.job.name), now_ms)
        try:
            self._execution = JobExecution(self.job, job_graph, self.address, self._coordinator, self._record.log)
        except HeadraceError as error:
            return commands + self._fail(error, now_ms)
        return commands + self._prepare(now_ms)

    def _prepare(self, now_ms: int) -> list[Command]:
        self.phase = _Phase.PREPARING
        self._serial += 1
        if self._settings.checkpoints is None and self._settings.restore_from is None:
            return self._prepared(Preparation(self.epoch, None), now_ms)
        damaged, given_up = frozenset(self._damaged), frozenset(self._given_up)
        work = functools.partial(prepare_job, self.job, self.epoch, damaged, given_up, is_claimed=self._has_claimed)
        return [Offload("prepare_job", self._serial, work)]

    def _on_preparation(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        if event.token != self._serial or self.phase is not _Phase.PREPARING:
            return []
        if event.error is None:
            return self._prepared(event.result, now_ms)
        if isinstance(event.error, SupersededError):
            return self._on_leadership_lost(LeadershipLost(self.epoch, str(event.error)), now_ms)
        if isinstance(event.error, CheckpointError) or self._is_first_try:
            return self._fail(event.error, now_ms)
        return self._failed(event.error, now_ms)

    def _prepared(self, preparation: Preparation, now_ms: int) -> list[Command]:
        assert self._execution is not None
        self._has_claimed = True
        self.epoch = preparation.epoch
        self._restore_point = point = preparation.restore_point
        if point is not None:
            try:
                check_restorable(point, self._execution.graph.job_graph)
            except CheckpointError as error:
                return self._fail(error, now_ms)
            self._record.note(now_ms, f"restores checkpoint {point.checkpoint_id}")
            self._record.reports.restore(point.reports)
            self._wish.restored(point, now_ms)
        self.phase = _Phase.WAITING_FOR_SLOTS
        num_slots = self._execution.num_slots_needed
        request = RequestSlots(self.job.job_id, self.epoch, self.address, num_slots, self._settings)
        return [
            Send(self._resource_manager, request),
            StartTimer("slots", self._settings.slot_request_timeout_ms, _SlotRequestTimedOut(self._serial)),
            StartTimer("heartbeat", self._settings.heartbeat_interval_ms, _HeartbeatDue()),
            *self._deploy_if_possible(now_ms),
        ]

    @property
    def _is_first_try(self) -> bool:
        """Nothing has ever run: a failure is the program's or the set-up's, and trying again would only hide it."""
        return self._deployment < 0 and self._record.num_restarts == 0

    # ----------------------------------------------------------------------------------------------------------- slots
    def _on_registration(self, message: RegisterTaskManager, now_ms: int, execution: JobExecution) -> list[Command]:
        if message.epoch != self.epoch:
            return []
        lost, commands = execution.register(message)
        self._record.log.add(now_ms, message.task_manager, f"registered, revision {message.revision}")
        self._record.clients.changed()
        return commands + self._lose_hosts(lost, "it was replaced", now_ms) + self._deploy_if_possible(now_ms)

    def _on_slot_lost(self, message: SlotLost, now_ms: int, execution: JobExecution) -> list[Command]:
        host = message.slot.address.host
        if message.epoch != self.epoch or not execution.pool.lose_slot(message.task_manager, host):
            return []
        return self._lose_hosts([host], message.reason, now_ms)

    def _on_task_manager_lost(self, message: TaskManagerLost, now_ms: int, execution: JobExecution) -> list[Command]:
        hosts = execution.pool.lose_task_manager(message.task_manager)
        return self._lose_hosts(hosts, f"TaskManager {message.task_manager} is gone: {message.reason}", now_ms)

    def _on_slot_request_failed(
        self, message: SlotRequestFailed, now_ms: int, _execution: JobExecution
    ) -> list[Command]:
        if message.epoch != self.epoch or self.phase is _Phase.STOPPING:
            return []
        return self._fail(NoResourceAvailableError(message.reason, job=self.job.name), now_ms)

    def _on_slot_request_timed_out(
        self, timer: _SlotRequestTimedOut, now_ms: int, execution: JobExecution
    ) -> list[Command]:
        if self.phase is not _Phase.WAITING_FOR_SLOTS or timer.serial != self._serial:
            return []
        waited_s = self._settings.slot_request_timeout_ms / 1_000
        message = (
            f"{execution.num_slots_needed} slots needed, {execution.pool.num_slots} available after {waited_s:g} s"
        )
        error = NoResourceAvailableError(message, job=self.job.name)
        return self._fail(error, now_ms) if self._is_first_try else self._failed(error, now_ms)

    def _on_heartbeat_due(self, _timer: _HeartbeatDue, now_ms: int, execution: JobExecution) -> list[Command]:
        interval_ms, timeout_ms = self._settings.heartbeat_interval_ms, self._settings.heartbeat_timeout_ms
        self._heartbeat_nonce += 1
        request = RequestHeartbeat(self.job.job_id, self.epoch, self._heartbeat_nonce, self.address)
        silent, commands = execution.request_heartbeats(request, max(timeout_ms // interval_ms, 1))
        commands.append(StartTimer("heartbeat", interval_ms, _HeartbeatDue()))
        for name in silent:
            reason = f"TaskManager {name} gave no sign of life for {timeout_ms / 1_000:g} s"
            commands += self._lose_hosts(execution.pool.lose_task_manager(name), reason, now_ms)
        return commands

    def _on_heartbeat(self, message: Heartbeat, _now_ms: int, execution: JobExecution) -> list[Command]:
        execution.pool.heartbeat(message)
        return []

    def _lose_hosts(self, hosts: Iterable[str], reason: str, now_ms: int) -> list[Command]:
        """Slot processes are gone: what ran there has failed."""
        assert self._execution is not None
        self._record.clients.changed()
        dead = self._execution.lose_hosts(hosts, now_ms)
        if not dead:
            return []
        message = f"slot {dead[0].place.host} was lost: {reason}"
        return self._failed(ExternalError(message, task=str(dead[0].attempt)), now_ms)

    # ------------------------------------------------------------------------------------------------------ deployment
    def _deploy_if_possible(self, now_ms: int) -> list[Command]:
        execution = self._execution
        assert execution is not None
        if self.phase is not _Phase.WAITING_FOR_SLOTS or execution.pool.num_slots < execution.num_slots_needed:
            return []
        self._deployment += 1
        self._record.metrics.clear()
        self._final_ids.clear()
        self._record.reports.forget_attempts_before(self.epoch, self._deployment - 1)
        self._record.log.add(now_ms, "job", f"deployment {self._deployment}")
        try:
            commands = execution.deploy(self.epoch, self._deployment, self._restore_point, now_ms)
        except HeadraceError as error:
            return self._fail(error, now_ms)
        self.phase = _Phase.DEPLOYING
        return [CancelTimer("slots"), *commands]

    def _on_task_state(self, message: UpdateTaskExecutionState, now_ms: int, run: JobExecution) -> list[Command]:
        execution = run.graph.find(message.attempt)
        if execution is None or execution.state.is_terminal:
            return []
        state = TaskState(message.state)
        if execution.state is TaskState.CANCELING and not state.is_terminal:
            return []  # said before it heard of its cancellation
        if not execution.can_become(state):
            return self._on_illegal_report(execution, state, now_ms, run)
        run.graph.transition(execution, state, self._record.log, now_ms)
        self._record.clients.changed()
        if state is TaskState.FAILED:
            unknown = InternalError("a task failed without saying why", task=str(message.attempt))
            return self._failed(message.error or unknown, now_ms)
        if state is TaskState.ENDED:
            run.task_ended(message.attempt)
        return self._stopped_if_done(now_ms) if self.phase is _Phase.STOPPING else self._advance(now_ms, run)

    def _on_illegal_report(
        self, execution: Execution, state: TaskState, now_ms: int, run: JobExecution
    ) -> list[Command]:
        if _PROGRESS.index(state) <= _PROGRESS.index(execution.state):
            return []  # doubled
        error = InvalidTransition.of(execution.attempt, execution.state, state, self._record.log)
        if state.is_terminal:  # it is gone although nobody told it to go
            run.graph.transition(execution, TaskState.FAILED, self._record.log, now_ms, f"unexpected {state.value}")
        return self._failed(error, now_ms)

    def _advance(self, now_ms: int, run: JobExecution) -> list[Command]:
        """A task has come a step further: see whether the job has."""
        if self.phase is _Phase.DEPLOYING:
            if run.graph.are_all_in(TaskState.READY):
                stop = [] if self._wish.mode is None else run.stop_sources(self._wish.mode)
                return stop + run.start_tasks()
            if not run.graph.are_all_in(TaskState.RUNNING, TaskState.ENDED):
                return []
            self.phase = _Phase.EXECUTING
            self._record.become(JobStatus.RUNNING, now_ms)
            started: list[Command] = [Send(self._coordinator, ExecutionStarted(self.epoch, self._deployment))]
            return started + self._advance(now_ms, run)
        if self.phase is _Phase.EXECUTING and (self._wish.suspends or run.graph.are_all_in(TaskState.ENDED)):
            if self._settings.checkpoints is None:
                return self._finish_tasks(run)
            self.phase = _Phase.FINAL_CHECKPOINT
            return [Send(self._coordinator, FinalCheckpointWanted(self.epoch, self._deployment))]
        if self.phase is _Phase.FINISHING and run.graph.are_all_in(TaskState.FINISHED):
            return self._stop(JobStatus.FINISHED, now_ms)
        return []

    def _finish_tasks(self, run: JobExecution) -> list[Command]:
        self.phase = _Phase.FINISHING
        return run.finish_tasks()

    # ----------------------------------------------------------------------------------------------- reports of tasks
    def _on_split_request(self, message: RequestNextInputSplit, _now_ms: int, run: JobExecution) -> list[Command]:
        return run.split_requested(message) if self.phase in _LIVE else []

    def _on_discovery_due(self, timer: DiscoveryDue, _now_ms: int, run: JobExecution) -> list[Command]:
        return run.discovery_due(timer)

    def _on_report(self, message: ReportEmitted, _now_ms: int) -> list[Command]:
        if self._record.reports.add(message):
            self._record.clients.changed()
        return []

    def _on_metrics(self, message: MetricsReported, _now_ms: int, run: JobExecution) -> list[Command]:
        if run.graph.find(message.attempt) is None:
            return []
        self._record.metrics.reported(message)
        if self._is_view_due:
            return []
        self._is_view_due = True
        return [StartTimer("view", self._settings.metrics_interval_ms, _ViewDue())]

    def _on_view_due(self, _timer: _ViewDue, _now_ms: int) -> list[Command]:
        self._is_view_due = False
        self._record.clients.changed()
        return []

    # ----------------------------------------------------------------------------------------------------- checkpoints
    def _on_checkpoint_requested(self, message: CheckpointRequested, now_ms: int, run: JobExecution) -> list[Command]:
        if message.epoch != self.epoch or self.phase not in (_Phase.EXECUTING, _Phase.FINAL_CHECKPOINT):
            refused = CheckpointTriggered(message.checkpoint_id, (), {}, f"the job is {self.phase.value}")
            return [Send(self._coordinator, refused)]
        is_final = self.phase is _Phase.FINAL_CHECKPOINT
        if is_final:
            self._final_ids.add(message.checkpoint_id)
        suspends = is_final and self._wish.suspends
        triggered, commands = run.trigger_checkpoint(message, self._wish.mode, suspends=suspends)
        self._record.log.add(now_ms, "job", f"checkpoint {message.checkpoint_id} triggered")
        return [*commands, Send(self._coordinator, triggered)]

    def _on_reports_wanted(self, message: ReportsWanted, _now_ms: int) -> list[Command]:
        pending = ReportsPending(message.checkpoint_id, self._record.reports.unfetched_rows())
        return [Send(self._coordinator, pending)]

    def _on_checkpoint_completed(self, message: CheckpointCompleted, _now_ms: int) -> list[Command]:
        self._record.checkpoint_completed(message)
        self._num_user_failures = 0
        run = self._execution
        if run is None or self.phase not in _LIVE:
            return []
        commands = run.notify_complete(message.checkpoint_id)
        if self.phase is _Phase.FINAL_CHECKPOINT and message.checkpoint_id in self._final_ids:
            commands += self._finish_tasks(run)
        return commands

    def _on_checkpoint_aborted(self, message: CheckpointAborted, now_ms: int) -> list[Command]:
        self._record.checkpoint_failed()
        self._given_up.add(message.checkpoint_id)
        run = self._execution
        if run is None or self.phase not in _LIVE:
            return []
        commands = run.notify_aborted(message.checkpoint_id)
        if message.fail_job:
            text = f"more checkpoints failed than are tolerable: {message.reason}"
            commands += self._failed(CheckpointError(text, checkpoint=message.checkpoint_id), now_ms)
        return commands

    def _on_coordinator_stopped(self, message: CoordinatorStopped, now_ms: int) -> list[Command]:
        if self.phase is not _Phase.STOPPING or message.deployment != self._deployment:
            return []
        self._has_coordinator_stopped = True
        return self._stopped_if_done(now_ms)

    def _on_leadership_lost(self, message: LeadershipLost, now_ms: int) -> list[Command]:
        """Another leader has the job, its tasks and its record: leave without touching any of them."""
        if self.status.is_terminal or message.epoch != self.epoch:
            return []
        self._record.note(now_ms, f"suspended: {message.reason}")
        self._record.become(JobStatus.SUSPENDED, now_ms)
        self.phase = _Phase.ENDED
        return [StopHost()]

    # -------------------------------------------------------------------------------------------- failure and stopping
    def _failed(self, error: BaseException, now_ms: int) -> list[Command]:
        """Something went wrong: stop everything, then restart if the strategy allows it."""
        if self.phase is _Phase.STOPPING:
            return self._stopped_if_done(now_ms)  # a consequence, or too late to matter
        if self.phase in (_Phase.ENDED, _Phase.BACKING_OFF, _Phase.DELIVERING):
            return []
        point = self._restore_point
        if isinstance(error, CheckpointCorruptError) and self.phase is _Phase.DEPLOYING and point is not None:
            if point.is_requested:
                return self._fail(error, now_ms)
            self._damaged.add(point.checkpoint_id)
        if isinstance(error, CheckpointMismatchError):
            return self._fail(error, now_ms)  # program and checkpoint will not fit the next time either
        if isinstance(error, UserError):
            self._num_user_failures += 1
        if not self._restart.can_restart or self._repeats_itself():
            return self._fail(error, now_ms)
        self._restart = self._restart.after_failure()
        self._record.num_restarts += 1
        self._record.failure = str(error)
        self._record.note(now_ms, f"restarts after: {error}")
        self._record.become(JobStatus.RESTARTING, now_ms)
        self._record.has_news = True
        return self._stop(JobStatus.RESTARTING, now_ms)

    def _repeats_itself(self) -> bool:
        """Whether the program has failed by itself so often, without progress, that it will again."""
        most = self._restart.strategy.max_user_failures
        return 0 < most <= self._num_user_failures

    def _fail(self, error: BaseException, now_ms: int) -> list[Command]:
        """The job is lost: stop everything; ``error`` is its last word."""
        if self.phase in (_Phase.STOPPING, _Phase.DELIVERING, _Phase.ENDED):
            return []
        self._record.error = error
        self._record.failure = str(error)
        self._record.note(now_ms, f"fails: {self._record.failure}")
        self._record.become(JobStatus.FAILING, now_ms)
        return self._stop(JobStatus.FAILED, now_ms)

    def _cancel(self, reason: str, now_ms: int) -> list[Command]:
        if self.phase is _Phase.ENDED:
            return []
        if self.phase is _Phase.DELIVERING:
            return self._end(JobStatus.FINISHED, now_ms)
        if self.phase is _Phase.STOPPING and self._stop_target in (JobStatus.FINISHED, JobStatus.CANCELED):
            return []
        self._record.note(now_ms, f"canceled: {reason}")
        self._record.become(JobStatus.CANCELLING, now_ms)
        self._record.error = JobCanceledError(f'job "{self.job.name}" was canceled', job=self.job.job_id)
        if self.phase is _Phase.STOPPING:
            self._stop_target = JobStatus.CANCELED
            return []
        return self._stop(JobStatus.CANCELED, now_ms)

    def _stop_requested(self, ask_id: str, request: StopJob, now_ms: int) -> list[Command]:
        """A client wants the job to end in order; see `headrace.engine.job_stopping` for what may cross that."""
        is_over = self.phase is _Phase.ENDED or (
            self.phase is _Phase.STOPPING and self._stop_target in (JobStatus.FAILED, JobStatus.CANCELED)
        )
        refusal = None if is_over else self._wish.refusal(request)
        if refusal is not None:
            return [Reply(ask_id, RequestFailed(refusal))]
        commands: list[Command] = [Reply(ask_id, value=True)]
        if is_over or not self._wish.want(request.mode, now_ms):
            return commands
        run = self._execution
        if run is not None and self.phase in (_Phase.DEPLOYING, _Phase.EXECUTING):
            commands += run.stop_sources(request.mode)
            if self.phase is _Phase.EXECUTING:
                commands += self._advance(now_ms, run)
        return commands

    def _on_shutdown(self, _message: CancelJob, now_ms: int) -> list[Command]:
        """The Dispatcher shuts the cluster down: end the job, and do not wait for clients."""
        return self._ending.leave() or self._cancel("the cluster is shut down", now_ms)

    def _stop(self, target: JobStatus, now_ms: int) -> list[Command]:
        self.phase = _Phase.STOPPING
        self._stop_target = target
        commands: list[Command] = [CancelTimer("slots"), CancelTimer("restart")]
        if self._settings.checkpoints is not None:
            self._has_coordinator_stopped = False
            commands.append(Send(self._coordinator, ExecutionStopped(self.epoch, self._deployment)))
        if self._execution is not None:
            commands += self._execution.cancel_tasks(now_ms)
            commands.append(self._cancellation_timer())
        return commands + self._stopped_if_done(now_ms)

    def _cancellation_timer(self) -> StartTimer:
        timeout_ms = self._settings.task_cancellation_timeout_ms
        return StartTimer("cancellation", timeout_ms, _CancellationTimedOut(self._deployment))

    def _on_cancellation_timed_out(
        self, timer: _CancellationTimedOut, _now_ms: int, run: JobExecution
    ) -> list[Command]:
        if self.phase is not _Phase.STOPPING or timer.deployment != self._deployment:
            return []
        waited_s = self._settings.task_cancellation_timeout_ms / 1_000
        kills = run.kill_tasks(self.epoch, f"a task did not cancel within {waited_s:g} s")
        return [*kills, self._cancellation_timer()]

    def _stopped_if_done(self, now_ms: int) -> list[Command]:
        if not self._has_coordinator_stopped:
            return []
        if self._execution is not None and not self._execution.graph.have_all_ended():
            return []
        commands: list[Command] = [CancelTimer("cancellation")]
        if self._stop_target is JobStatus.FINISHED and self._settings.attached:
            return commands + self._deliver(now_ms)
        if self._stop_target is not JobStatus.RESTARTING:
            return commands + self._end(self._stop_target, now_ms)
        self.phase = _Phase.BACKING_OFF
        self._serial += 1
        return [*commands, StartTimer("restart", self._restart.delay_ms, _BackOffOver(self._serial))]

    def _on_back_off_over(self, timer: _BackOffOver, now_ms: int, _execution: JobExecution) -> list[Command]:
        if self.phase is not _Phase.BACKING_OFF or timer.serial != self._serial:
            return []
        return self._prepare(now_ms)

    # --------------------------------------------------------------------------------------------------------- the end
    def _deliver(self, now_ms: int) -> list[Command]:
        """Let the client fetch its rows first: once the end is recorded, nobody would bring them back."""
        if not self._record.reports.has_unfetched_rows:
            return self._end(JobStatus.FINISHED, now_ms)
        self.phase = _Phase.DELIVERING
        self._record.clients.changed()
        return [StartTimer("delivery", DELIVERY_TIMEOUT_MS, _DeliveryOver())]

    def _on_delivery_over(self, now_ms: int) -> list[Command]:
        return self._end(JobStatus.FINISHED, now_ms) if self.phase is _Phase.DELIVERING else []

    def _fetch_reports(self, ask_id: str, request: FetchReports, now_ms: int) -> list[Command]:
        fetched = self._record.reports.fetch(request.offset)
        commands: list[Command] = [Reply(ask_id, fetched), *self._record.clients.asked()]
        if self.phase is _Phase.DELIVERING and not self._record.reports.has_unfetched_rows:
            commands += [CancelTimer("delivery"), *self._end(JobStatus.FINISHED, now_ms)]
        return commands + self._ending.linger()

    def _end(self, status: JobStatus, now_ms: int) -> list[Command]:
        self.phase = _Phase.ENDED
        self._record.ended_ms = now_ms
        self._record.note(now_ms, f"ends {status.value}")
        self._record.become(status, now_ms)
        return [
            CancelTimer("heartbeat"),
            *self._record.clients.ended(),
            StartTimer("archive", ARCHIVE_RETRY_MS, _TellDispatcher()),
        ]

    def _on_tell_dispatcher(self, _timer: _TellDispatcher, _now_ms: int) -> list[Command]:
        if self._ending.is_archived:
            return []
        return [self._tell_dispatcher(), StartTimer("archive", ARCHIVE_RETRY_MS, _TellDispatcher())]

    def _on_archived(self, _message: JobArchived, _now_ms: int) -> list[Command]:
        return self._ending.archived(self.epoch) if self.phase is _Phase.ENDED else []

    # --------------------------------------------------------------------------------------------------------- clients
    def _on_asked(self, event: Asked, now_ms: int) -> list[Command]:
        request, clients = event.request, self._record.clients
        if isinstance(request, WaitForJob):
            return [*clients.poll(event.ask_id, request), *self._ending.linger()]
        if isinstance(request, FetchReports):
            return self._fetch_reports(event.ask_id, request, now_ms)
        if isinstance(request, StopJob):
            return [*self._stop_requested(event.ask_id, request, now_ms), *clients.asked()]
        if isinstance(request, CancelJob):
            clients.cancel_requested(event.ask_id)
            return self._cancel("by request", now_ms)
        if isinstance(request, KillSlotOnPurpose):
            return self._kill_slot_on_purpose(event.ask_id, request.index)
        message = f"a JobManager does not answer {type(request).__name__}"
        return [Reply(event.ask_id, RequestFailed(InternalError(message)))]

    def _kill_slot_on_purpose(self, ask_id: str, index: int) -> list[Command]:
        slots = [] if self._execution is None else self._execution.pool.all_slots()
        if self._execution is None or not 0 <= index < len(slots):
            message = f"slot index must be from 0 to {len(slots) - 1}; got {index}" if slots else "the job has no slots"
            return [Reply(ask_id, RequestFailed(ConfigurationError(message, job=self.job.name)))]
        host = slots[index].address.host
        return [*self._execution.kill_slot(self.epoch, host, "killed on purpose"), Reply(ask_id, host)]

    def _on_poll_timed_out(self, timer: PollTimedOut, _now_ms: int) -> list[Command]:
        self._record.clients.poll_timed_out(timer)
        return []

    # --------------------------------------------------------------------------------------------------------- offload
    def _on_offload(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        if event.name == "prepare_job":
            return self._on_preparation(event, now_ms)
        if event.name == "remove_checkpoints":
            return self._ending.cleaned(event, now_ms)
        if self._execution is None or self.phase is _Phase.ENDED:
            return []
        try:
            return self._execution.discovered(event)
        except HeadraceError as error:
            return self._failed(error, now_ms)
