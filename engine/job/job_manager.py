"""The JobManager of one job under one leader epoch: deploys it, watches it, restarts it, ends it.

What the job is busy with, and what follows, is decided in `headrace.engine.job.lifecycle`; here every message finds its
way there, to what runs (`headrace.engine.job.running`) and to the record that clients see
(`headrace.engine.job.record`). A failure stops the pipelined regions it touches and restarts them from the newest
complete checkpoint with new attempts, as long as the restart strategy allows; all other tasks run on.

Invariants: a task's report counts only for a current attempt; a split is answered and a checkpoint triggered in one
step each, in that order on every link; the end of the job is told to clients only once the Dispatcher has recorded it,
which then deletes what nobody will restore.

Source: Flink's ``JobMaster``; rows D4 to D11, D17 to D20, D31, D32, G11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.state.identifiers import ExecutionAttemptId
from headrace.state.values.program_pickles import load_program

from ..errors import (
    CheckpointError,
    ConfigurationError,
    ExternalError,
    HeadraceError,
    InternalError,
    NoResourceAvailableError,
    ProgramError,
    StateUnavailableError,
    raise_from_outside,
)
from ..execution.graph import Execution, InvalidTransition, JobStatus, TaskState
from ..functions.operator import WARNING
from ..graph.job_graph import JobGraph
from ..graph.rescaling import find_vertex
from ..kernel.machine import (
    Address,
    Asked,
    Command,
    OffloadCompleted,
    Reply,
    Send,
    Started,
    StartTimer,
    StopHost,
)
from ..protocol.checkpoint_messages import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointRequested,
    CheckpointTriggered,
    CoordinatorStopped,
)
from ..protocol.control_messages import (
    CheckpointWanted,
    JobArchived,
    JobNote,
    LeadershipLost,
    ReportsPending,
    ReportsWanted,
)
from ..protocol.messages import (
    CancelJob,
    FailTaskOnPurpose,
    FetchReports,
    Heartbeat,
    JobStatusChanged,
    KillSlotOnPurpose,
    RegisterTaskManager,
    RequestFailed,
    RequestHeartbeat,
    RescaleJob,
    SlotLost,
    SlotRequestFailed,
    SlotsAwaited,
    StandInRequested,
    StopJob,
    SubmitJob,
    TaskManagerLost,
    WaitForJob,
)
from ..protocol.query_messages import LocateState, StateLocated
from ..protocol.savepoint_messages import SavepointCompleted, SavepointFailed, StopWithSavepoint, TriggerSavepoint
from ..protocol.task_messages import (
    MetricsReported,
    ReportEmitted,
    ReportWatermark,
    RequestNextInputSplit,
    SourceEventToEnumerator,
    UpdateTaskExecutionState,
)
from ..protocol.views import JobView
from .clients import ClientLost, LingerOver, PollTimedOut
from .ending import JobEnding
from .lifecycle import ARCHIVE_RETRY_MS, JobLifecycle
from .phase import (
    LIVE_PHASES,
    BackOffOver,
    CancellationTimedOut,
    DeliveryOver,
    HeartbeatDue,
    Phase,
    SlotRequestTimedOut,
    TellDispatcher,
    ViewDue,
)
from .record import JobRecord
from .rescale import JobRescale, RescaleTimedOut
from .running import JobExecution
from .savepoints import JobSavepoints, SavepointPollOver
from .source_coordinator import DiscoveryDue
from .stopping import JobStop

__all__ = ["JobManager"]

_PROGRESS = list(TaskState)
"""States in the order in which an undisturbed task reports them."""


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
        self._dispatcher = dispatcher
        self._coordinator = coordinator
        self._settings = job.settings
        self._record = JobRecord(job, epoch, predecessor)
        if predecessor is not None:
            self._record.num_restarts += 1
        # Whether the job is to end in order before its input does.
        self._wish = JobStop(self._record, job.settings, job.name)
        self._savepoints = JobSavepoints(job, self._record, self._wish, coordinator)
        self._life = JobLifecycle(
            address,
            job,
            epoch,
            resource_manager,
            coordinator,
            self._record,
            self._wish,
            self._savepoints,
            was_run_before=predecessor is not None and predecessor.state != JobStatus.CREATED.value,
        )
        self._rescale = JobRescale(job, address, resource_manager, coordinator, self._record, self._life, self._wish)
        self._heartbeat_nonce = 0
        self._is_view_due = False
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
            SavepointPollOver: lambda timer, _now_ms: self._savepoints.poll_over(timer),
            SavepointCompleted: self._on_savepoint_completed,
            SavepointFailed: self._on_savepoint_failed,
            ClientLost: lambda _timer, now_ms: self._life.cancel("its client is gone", now_ms),
            LingerOver: lambda _timer, _now_ms: self._ending.leave(),
            ViewDue: self._on_view_due,
            TellDispatcher: self._on_tell_dispatcher,
        }
        # Only while there is something to execute.
        self._execution_handlers: dict[type, Callable[[Any, int, JobExecution], list[Command]]] = {
            UpdateTaskExecutionState: self._on_task_state,
            RequestNextInputSplit: self._on_split_request,
            SourceEventToEnumerator: lambda message, _now_ms, run: run.source_event(message),
            DiscoveryDue: self._on_discovery_due,
            ReportWatermark: lambda report, _now_ms, run: run.watermark_reported(report),
            MetricsReported: self._on_metrics,
            RegisterTaskManager: self._on_registration,
            Heartbeat: self._on_heartbeat,
            SlotLost: self._on_slot_lost,
            TaskManagerLost: self._on_task_manager_lost,
            SlotRequestFailed: self._on_slot_request_failed,
            SlotsAwaited: self._on_slots_awaited,
            StandInRequested: self._on_stand_in_requested,
            JobNote: self._on_job_note,
            CheckpointRequested: self._on_checkpoint_requested,
            SlotRequestTimedOut: lambda timer, now_ms, _run: self._life.on_slot_request_timed_out(timer, now_ms),
            CancellationTimedOut: lambda timer, _now_ms, run: self._life.on_cancellation_timed_out(timer, run),
            BackOffOver: lambda timer, now_ms, _run: self._life.on_back_off_over(timer, now_ms),
            DeliveryOver: lambda _timer, now_ms, _run: self._life.delivered(now_ms),
            HeartbeatDue: self._on_heartbeat_due,
            RescaleTimedOut: lambda timer, now_ms, _run: self._rescale.timed_out(timer, now_ms),
        }

    @property
    def epoch(self) -> int:
        """The leader epoch."""
        return self._life.epoch

    @property
    def phase(self) -> Phase:
        """What it is busy with."""
        return self._life.phase

    @property
    def _execution(self) -> JobExecution | None:
        return self._life.execution

    @property
    def status(self) -> JobStatus:
        """The job's state."""
        return self._record.status

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        """Take one message or event; see `headrace.engine.kernel.machine.Machine`."""
        commands: list[Command] = []
        handler = self._handlers.get(type(event))
        if handler is not None:
            commands += handler(event, now_ms)
        elif self._execution is not None and self.phase is not Phase.ENDED:
            execution_handler = self._execution_handlers.get(type(event))
            if execution_handler is not None:
                commands += execution_handler(event, now_ms, self._execution)
        commands += self._rescale.advance(now_ms)
        commands += self._checkpoint_for_splits()
        if self._record.has_news:
            self._record.has_news = False
            self._record.clients.changed()
            commands.append(self._tell_dispatcher())
        return commands + self._record.clients.flush(self.view)

    def view(self) -> JobView:
        """The job for people and clients."""
        if self._execution is None:
            return self._record.view(None, [], [])
        pool = self._execution.pool
        return self._record.view(self._execution.graph, pool.all_slots(), pool.views())

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
            job_graph: JobGraph = load_program(self.job.job_graph)
        except BaseException as error:
            raise_from_outside(error)
            message = f"the job graph cannot be read where the JobManager runs: {error!r}"
            hint = "Modules that the program imports must be installed on every node."
            return commands + self._life.fail(ProgramError(message, hint=hint, job=self.job.name), now_ms)
        return commands + self._life.begin(self._rescale.begin(job_graph), now_ms)

    # ----------------------------------------------------------------------------------------------------------- slots
    def _on_registration(self, message: RegisterTaskManager, now_ms: int, execution: JobExecution) -> list[Command]:
        if message.epoch != self.epoch:
            return []
        lost, commands = execution.register(message)
        self._record.log.add(now_ms, message.task_manager, f"registered, revision {message.revision}")
        self._record.clients.changed()
        return commands + self._lose_hosts(lost, "it was replaced", now_ms) + self._life.deploy_if_possible(now_ms)

    def _on_slot_lost(self, message: SlotLost, now_ms: int, execution: JobExecution) -> list[Command]:
        host = message.slot.address.host
        if message.epoch != self.epoch or not execution.pool.lose_slot(message.task_manager, host):
            return []
        return self._lose_hosts([host], f"{message.reason}{_at_node(message.slot.node)}", now_ms)

    def _on_task_manager_lost(self, message: TaskManagerLost, now_ms: int, execution: JobExecution) -> list[Command]:
        hosts = execution.pool.bury_task_manager(message.task_manager)
        reason = f"TaskManager {message.task_manager} is gone: {message.reason}{_at_node(message.node)}"
        return self._lose_hosts(hosts, reason, now_ms)

    def _on_job_note(self, message: JobNote, now_ms: int, _execution: JobExecution) -> list[Command]:
        self._record.note(now_ms, message.text)
        self._record.clients.changed()
        return []

    def _on_slots_awaited(self, message: SlotsAwaited, now_ms: int, _execution: JobExecution) -> list[Command]:
        self._life.slots_awaited(message, now_ms)
        return []

    def _on_stand_in_requested(self, message: StandInRequested, now_ms: int, _execution: JobExecution) -> list[Command]:
        if message.epoch != self.epoch:
            return []
        self._record.note(now_ms, message.text)
        self._record.clients.changed()
        return self._life.stand_in_requested(is_rescaling=self._rescale.is_under_way)

    def _on_slot_request_failed(
        self, message: SlotRequestFailed, now_ms: int, _execution: JobExecution
    ) -> list[Command]:
        if message.epoch != self.epoch or self.phase is Phase.STOPPING:
            return []
        refused = self._rescale.slots_refused(message.reason, now_ms)
        if refused is not None:
            return refused
        return self._life.fail(NoResourceAvailableError(message.reason, job=self.job.name), now_ms)

    def _on_heartbeat_due(self, _timer: HeartbeatDue, now_ms: int, execution: JobExecution) -> list[Command]:
        interval_ms, timeout_ms = self._settings.heartbeat_interval_ms, self._settings.heartbeat_timeout_ms
        self._heartbeat_nonce += 1
        request = RequestHeartbeat(self.job.job_id, self.epoch, self._heartbeat_nonce, self.address)
        silent, commands = execution.request_heartbeats(request, max(timeout_ms // interval_ms, 1))
        commands.append(StartTimer("heartbeat", interval_ms, HeartbeatDue()))
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
        return self._life.failed(ExternalError(message, task=str(dead[0].attempt)), now_ms, dead)

    # ----------------------------------------------------------------------------------------------- reports of tasks
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
            return self._life.failed(message.error or unknown, now_ms, [execution])
        if state is TaskState.ENDED:
            run.task_ended(message.attempt)
        return self._life.advance(now_ms, run)

    def _on_illegal_report(
        self, execution: Execution, state: TaskState, now_ms: int, run: JobExecution
    ) -> list[Command]:
        if _PROGRESS.index(state) <= _PROGRESS.index(execution.state):
            return []  # doubled
        error = InvalidTransition.of(execution.attempt, execution.state, state, self._record.log)
        if state.is_terminal:  # it is gone although nobody told it to go
            run.graph.transition(execution, TaskState.FAILED, self._record.log, now_ms, f"unexpected {state.value}")
        return self._life.failed(error, now_ms, [execution])

    def _on_split_request(self, message: RequestNextInputSplit, _now_ms: int, run: JobExecution) -> list[Command]:
        return run.split_requested(message)

    def _on_discovery_due(self, timer: DiscoveryDue, _now_ms: int, run: JobExecution) -> list[Command]:
        return run.discovery_due(timer)

    def _on_report(self, message: ReportEmitted, now_ms: int) -> list[Command]:
        if self._settings.checkpoints is None and self._is_foreign(message.attempt):
            return []  # its rows were rolled back when it was replaced
        if message.name == WARNING:
            self._record.note(now_ms, f"warning: {message.value}")
        elif self._record.reports.add(message):
            self._record.clients.changed()
        return []

    def _is_foreign(self, attempt: ExecutionAttemptId) -> bool:
        return self._execution is None or self._execution.graph.find(attempt) is None

    def _on_metrics(self, message: MetricsReported, _now_ms: int, run: JobExecution) -> list[Command]:
        if run.graph.find(message.attempt) is None:
            return []
        self._record.metrics.reported(message)
        if self._is_view_due:
            return []
        self._is_view_due = True
        return [StartTimer("view", self._settings.metrics_interval_ms, ViewDue())]

    def _on_view_due(self, _timer: ViewDue, _now_ms: int) -> list[Command]:
        self._is_view_due = False
        self._record.clients.changed()
        return []

    # ----------------------------------------------------------------------------------------------------- checkpoints
    def _on_checkpoint_requested(self, message: CheckpointRequested, now_ms: int, run: JobExecution) -> list[Command]:
        if message.epoch != self.epoch or self.phase not in (Phase.EXECUTING, Phase.FINAL_CHECKPOINT):
            refused = CheckpointTriggered(message.checkpoint_id, (), {}, f"the job is {self.phase.value}")
            return [Send(self._coordinator, refused)]
        if self._savepoints.refuses(message):
            refused = CheckpointTriggered(message.checkpoint_id, (), {}, "the job is being stopped with a savepoint")
            return [Send(self._coordinator, refused)]
        is_final = self.phase is Phase.FINAL_CHECKPOINT and message.savepoint is None
        if is_final:
            self._life.final_ids.add(message.checkpoint_id)
        suspends = (is_final and self._wish.suspends) or self._savepoints.suspends(message)
        mode = self._wish.mode if message.savepoint is None else None
        if message.savepoint is None:
            self._rescale.checkpoint_triggered(message.checkpoint_id)
        marks = self._savepoints.marks(message)
        triggered, commands = run.trigger_checkpoint(message, mode, suspends=suspends, marks=marks)
        self._record.log.add(now_ms, "job", f"checkpoint {message.checkpoint_id} triggered")
        return [*commands, Send(self._coordinator, triggered)]

    def _on_reports_wanted(self, message: ReportsWanted, _now_ms: int) -> list[Command]:
        pending = ReportsPending(message.checkpoint_id, self._record.reports.unfetched_rows())
        return [Send(self._coordinator, pending)]

    def _on_checkpoint_completed(self, message: CheckpointCompleted, now_ms: int) -> list[Command]:
        self._record.checkpoint_completed(message)
        self._life.checkpoint_completed(message.checkpoint_id)
        run = self._execution
        if run is None:
            return []
        commands = run.notify_complete(message.checkpoint_id)
        commands += self._rescale.checkpoint_completed(message.checkpoint_id, now_ms)
        if self.phase is Phase.FINAL_CHECKPOINT and message.checkpoint_id in self._life.final_ids:
            commands += self._life.finish_tasks(run)
        return commands

    def _on_checkpoint_aborted(self, message: CheckpointAborted, now_ms: int) -> list[Command]:
        self._record.checkpoint_failed()
        self._life.given_up.add(message.checkpoint_id)
        run = self._execution
        if run is None:
            return []
        commands = run.notify_aborted(message.checkpoint_id)
        commands += self._rescale.checkpoint_aborted(message.checkpoint_id, message.reason, now_ms)
        if message.fail_job and self.phase in LIVE_PHASES:
            text = f"more checkpoints failed than are tolerable: {message.reason}"
            commands += self._life.failed(CheckpointError(text, checkpoint=message.checkpoint_id), now_ms)
        return commands

    def _on_savepoint_completed(self, message: SavepointCompleted, now_ms: int) -> list[Command]:
        commands = self._savepoints.completed(message, now_ms)
        run = self._execution
        if run is None:
            return commands
        run.savepoint_completed(message.checkpoint_id)
        return commands + self._life.advance(now_ms, run) if self.phase in LIVE_PHASES else commands

    def _on_savepoint_failed(self, message: SavepointFailed, now_ms: int) -> list[Command]:
        commands, stopped = self._savepoints.failed(message, now_ms)
        run = self._execution
        if run is None or self.phase not in LIVE_PHASES:
            return commands
        if message.checkpoint_id:
            commands += run.notify_aborted(message.checkpoint_id)
        if stopped is None:
            return commands
        # Its sources have stopped for good. With a checkpoint to go on from that is no failure of the job.
        has_checkpoints = self._settings.checkpoints is not None
        return commands + (self._life.restart if has_checkpoints else self._life.failed)(stopped, now_ms)

    def _on_coordinator_stopped(self, message: CoordinatorStopped, now_ms: int) -> list[Command]:
        return self._life.on_coordinator_stopped(message.deployment, now_ms)

    def _on_leadership_lost(self, message: LeadershipLost, now_ms: int) -> list[Command]:
        """Another leader has the job, its tasks and its record: leave without touching any of them."""
        if self.status.is_terminal or message.epoch != self.epoch:
            return []
        self._life.leave(message.reason, now_ms)
        return [StopHost()]

    # -------------------------------------------------------------------------------------------- failure and stopping
    def _stop_requested(self, ask_id: str, request: StopJob, now_ms: int) -> list[Command]:
        """A client wants the job to end in order; see `headrace.engine.job.stopping` for what may cross that."""
        is_over = self._life.is_going_down
        refusal = None if is_over else self._wish.refusal(request)
        if refusal is not None:
            return [Reply(ask_id, RequestFailed(refusal))]
        commands: list[Command] = [Reply(ask_id, value=True)]
        if is_over or not self._wish.want(request.mode, now_ms):
            return commands
        run = self._execution
        if run is not None and self.phase in (Phase.DEPLOYING, Phase.EXECUTING):
            commands += run.stop_sources(request.mode)
            if self.phase is Phase.EXECUTING:
                commands += self._life.advance(now_ms, run)
        return commands

    def _on_shutdown(self, _message: CancelJob, now_ms: int) -> list[Command]:
        """The Dispatcher shuts the cluster down: end the job, and do not wait for clients."""
        return self._ending.leave() or self._life.cancel("the cluster is shut down", now_ms)

    # --------------------------------------------------------------------------------------------------------- the end
    def _fetch_reports(self, ask_id: str, request: FetchReports, now_ms: int) -> list[Command]:
        fetched = self._record.reports.fetch(request.offset)
        commands: list[Command] = [Reply(ask_id, fetched), *self._record.clients.asked()]
        if not self._record.reports.has_unfetched_rows:
            commands += self._life.delivered(now_ms)
        return commands + self._ending.linger()

    def _on_tell_dispatcher(self, _timer: TellDispatcher, _now_ms: int) -> list[Command]:
        if self._ending.is_archived:
            return []
        return [self._tell_dispatcher(), StartTimer("archive", ARCHIVE_RETRY_MS, TellDispatcher())]

    def _on_archived(self, _message: JobArchived, _now_ms: int) -> list[Command]:
        return self._ending.archived(self.epoch) if self.phase is Phase.ENDED else []

    # --------------------------------------------------------------------------------------------------------- clients
    def _on_asked(self, event: Asked, now_ms: int) -> list[Command]:
        request, clients = event.request, self._record.clients
        if isinstance(request, WaitForJob):
            return [*clients.poll(event.ask_id, request), *self._ending.linger()]
        if isinstance(request, FetchReports):
            return self._fetch_reports(event.ask_id, request, now_ms)
        if isinstance(request, StopJob):
            return [*self._stop_requested(event.ask_id, request, now_ms), *clients.asked()]
        if isinstance(request, RescaleJob):
            return [*self._rescale.asked(event.ask_id, request, now_ms), *clients.asked(request.timeout_ms)]
        if isinstance(request, (TriggerSavepoint, StopWithSavepoint)):
            return [*self._savepoint_requested(event.ask_id, request), *clients.asked(request.timeout_ms)]
        if isinstance(request, CancelJob):
            clients.cancel_requested(event.ask_id)
            return self._life.cancel("by request", now_ms)
        if isinstance(request, LocateState):
            return [Reply(event.ask_id, self._locate_state(request)), *clients.asked()]
        if isinstance(request, KillSlotOnPurpose):
            return self._kill_slot_on_purpose(event.ask_id, request.index)
        if isinstance(request, FailTaskOnPurpose):
            return self._fail_task_on_purpose(event.ask_id, request)
        message = f"a JobManager does not answer {type(request).__name__}"
        return [Reply(event.ask_id, RequestFailed(InternalError(message)))]

    def _locate_state(self, request: LocateState) -> StateLocated | RequestFailed:
        if self._execution is None:
            message = "the job is not running yet"
            return RequestFailed(StateUnavailableError(message))
        return self._execution.locate_state(request)

    def _savepoint_requested(self, ask_id: str, request: TriggerSavepoint | StopWithSavepoint) -> list[Command]:
        refusal = None
        if self.phase is not Phase.EXECUTING:
            is_over = self.phase is Phase.ENDED
            refusal = f"the job has ended {self.status.value}" if is_over else f"the job is {self.phase.value}"
        commands = self._savepoints.asked(ask_id, request, self.epoch, self._life.deployment, refusal)
        return commands + self._ending.linger()

    def _on_savepoint_begun(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        is_running = self.phase is Phase.EXECUTING and self._wish.mode is None
        commands = self._savepoints.begun(event, self._life.deployment, is_running=is_running, now_ms=now_ms)
        run, mode = self._execution, self._savepoints.stop_mode
        if run is None or mode is None or not is_running:
            return commands
        return commands + run.stop_sources(mode) + self._life.advance(now_ms, run)

    def _kill_slot_on_purpose(self, ask_id: str, index: int) -> list[Command]:
        slots = [] if self._execution is None else self._execution.pool.all_slots()
        if self._execution is None or not 0 <= index < len(slots):
            message = f"slot index must be from 0 to {len(slots) - 1}; got {index}" if slots else "the job has no slots"
            return [Reply(ask_id, RequestFailed(ConfigurationError(message, job=self.job.name)))]
        host = slots[index].address.host
        return [*self._execution.kill_slot(self.epoch, host, "killed on purpose"), Reply(ask_id, host)]

    def _fail_task_on_purpose(self, ask_id: str, request: FailTaskOnPurpose) -> list[Command]:
        try:
            if self._execution is None:
                message = "the job has no tasks"
                raise ConfigurationError(message, job=self.job.name)
            vertex = find_vertex(self._execution.graph.job_graph, request.operator)
            attempt, commands = self._execution.fail_task(self.epoch, vertex.vertex_id, request.subtask, request.reason)
        except ConfigurationError as error:
            return [Reply(ask_id, RequestFailed(error))]
        return [*commands, Reply(ask_id, attempt)]

    def _on_poll_timed_out(self, timer: PollTimedOut, _now_ms: int) -> list[Command]:
        self._record.clients.poll_timed_out(timer)
        return []

    # --------------------------------------------------------------------------------------------------------- offload
    def _on_offload(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        if event.name == "prepare_job":
            return self._life.on_preparation(event, now_ms)
        if event.name == "begin_savepoint":
            return self._on_savepoint_begun(event, now_ms)
        if event.name == "discard_savepoint":
            return []  # what stays is no savepoint
        if self._execution is None or self.phase is Phase.ENDED:
            return []
        try:
            notes, commands = self._execution.discovered(event)
        except HeadraceError as error:
            return self._life.failed(error, now_ms)
        for note in notes:
            self._record.note(now_ms, note)
            self._record.clients.changed()
        return commands

    def _checkpoint_for_splits(self) -> list[Command]:
        """Some splits are read only once a checkpoint holds them: see to it that they need not wait for the next."""
        run = self._execution
        if run is None or self.phase is not Phase.EXECUTING or not run.take_checkpoint_wish():
            return []
        return [Send(self._coordinator, CheckpointWanted(self.epoch, self._life.deployment))]


def _at_node(node: str) -> str:
    return f" (on node {node})" if node else ""
