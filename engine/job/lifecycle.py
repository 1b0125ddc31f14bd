"""A job's way through its phases: prepared, deployed, run, stopped, restarted or ended.

*Preparing* claims leadership in the checkpoint store and finds the checkpoint to start from. *Deploying* submits
every task and starts them only when all are ready, so that no data meets a task that is not there. *Stopping* (after
a failure, a cancellation, or the end) is over only when no execution is left and the CheckpointCoordinator has said
that no publication is under way; only then may a checkpoint be chosen to restore from.

**Regions.** A failure restarts the pipelined regions it touches (`headrace.engine.execution.regions`); the way is the
same one, with a *scope*: only subtasks in it are canceled, waited for and deployed, all others run on. No checkpoint is
taken meanwhile. What fails until the pause is over belongs to the same restart, and widens its scope if it is another
region; what fails later counts as a failure of its own, and the way begins again with both. The whole job is in scope

* when the last checkpoint is being taken, tasks finish, or the job is being stopped by request: all tasks must be of
  one mind there;
* when a split enumerator or too many checkpoints have failed: that is nobody's region;
* when the checkpoint to go back to is not the newest one, as that is damaged: regions that run on are ahead of it.

The last checkpoint: tasks that have processed all data stay and answer barriers. When all have, one more checkpoint
is taken; whatever is triggered then holds everything, so once it is complete the tasks may commit what is left and
finish. A job that is suspended on request takes its last checkpoint at once, with a barrier behind which nothing is
processed, and goes on from there in the same way.

The messages that move it come by way of `headrace.engine.job.job_manager`.

Source: Flink's ``DefaultScheduler`` and ``AdaptiveScheduler``; rows D17 to D20, D31, D32.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

from ..checkpoint.choice import JobPast
from ..checkpoint.fallback import may_pass_over, with_public_output
from ..checkpoint.io import Preparation, RestorePoint, check_restorable, prepare_job
from ..errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointFallbackError,
    CheckpointLostError,
    CheckpointMismatchError,
    ConfigurationError,
    HeadraceError,
    JobCanceledError,
    ManagedMemoryError,
    NewerOutputError,
    NoResourceAvailableError,
    PossibleLossError,
    SinkFencedError,
    SupersededError,
    UserError,
)
from ..execution.graph import Execution, InvalidTransition, JobStatus, TaskState
from ..execution.regions import Subtask
from ..graph.job_graph import JobGraph
from ..kernel.config import DamagedCheckpointPolicy, FailoverStrategy
from ..kernel.machine import Address, CancelTimer, Command, Offload, OffloadCompleted, Send, StartTimer, StopHost
from ..protocol.checkpoint_messages import ExecutionStarted, ExecutionStopped, FinalCheckpointWanted
from ..protocol.messages import RequestSlots, SlotsAwaited, SubmitJob
from .phase import (
    PHASE_TRANSITIONS,
    BackOffOver,
    CancellationTimedOut,
    DeliveryOver,
    HeartbeatDue,
    Phase,
    SlotRequestTimedOut,
    TellDispatcher,
)
from .record import JobRecord
from .running import JobExecution
from .savepoints import JobSavepoints
from .stopping import JobStop

__all__ = ["ARCHIVE_RETRY_MS", "DELIVERY_TIMEOUT_MS", "JobLifecycle"]

DELIVERY_TIMEOUT_MS = 5_000
"""How long a finished job waits for its client to fetch what it collected before the end is recorded."""

LOOK_AGAIN_MS = 500
"""Pause before the store is looked at again that lacks a complete checkpoint; twice that after each further look."""

MAX_LOSSES = 4
"""After so many looks in vain the checkpoint is lost."""

_LASTING = (
    CheckpointFallbackError,
    CheckpointMismatchError,
    ConfigurationError,
    ManagedMemoryError,
    NewerOutputError,
    PossibleLossError,
    SinkFencedError,
)
"""Failures that would be the same the next time: they end the job."""

MIN_PATIENCE_MS = 1_000
"""While nodes are being launched, slots are given so much longer at least."""

ARCHIVE_RETRY_MS = 1_000
"""How often the end of a job is told to the Dispatcher until it has recorded it."""


class JobLifecycle:
    """The phases of one job under one leader.

    Args:
        address: The JobManager's own address.
        job: The job.
        epoch: The leader epoch the Dispatcher gave it; the checkpoint store may raise it.
        resource_manager: Whom to ask for slots.
        coordinator: The CheckpointCoordinator on the same host.
        record: What people and clients may know of the job.
        wish: Whether the job is to end in order before its input does.
        savepoints: Those under way.
        was_run_before: Whether an earlier leader has run the job.

    Attributes:
        epoch: The leader epoch.
        execution: What runs; None until the job's pickle has been read.
        deployment: Number of the current deployment, the attempt number of its executions; -1 before the first.
        given_up: Checkpoints that the coordinator has given up: not to be restored even if the store has them.
        final_ids: Checkpoints triggered after all data was processed.
        num_user_failures: Failures of the program itself since the last completed checkpoint.
    """

    def __init__(
        self,
        address: Address,
        job: SubmitJob,
        epoch: int,
        resource_manager: Address,
        coordinator: Address,
        record: JobRecord,
        wish: JobStop,
        savepoints: JobSavepoints,
        *,
        was_run_before: bool = False,
    ) -> None:
        self.epoch = epoch
        self.execution: JobExecution | None = None
        self.deployment = -1
        self.given_up: set[int] = set()
        self.final_ids: set[int] = set()
        self.num_user_failures = 0
        self._address = address
        self._job = job
        self._settings = job.settings
        self._resource_manager = resource_manager
        self._coordinator = coordinator
        self._record = record
        self._wish = wish
        self._savepoints = savepoints
        self._phase = Phase.PREPARING
        # Whether an earlier leader has run the job, whatever it achieved.
        self._was_run_before = was_run_before
        # What is being stopped, or will be deployed next; means nothing once all tasks run.
        self._scope: frozenset[Subtask] = frozenset()
        # The newest complete checkpoint of what runs, or the one it was restored from; 0 for none.
        self._base_id = 0
        # A job graph that the next deployment is to be of.
        self._next_graph: JobGraph | None = None
        # Counts preparations, so that an old one's end is recognised.
        self._serial = 0
        self._has_claimed = False
        self._restore_point: RestorePoint | None = None
        # The newest complete checkpoint of this very job, whoever took it; 0 for none that is known.
        self._newest_own = record.last_checkpoint or 0
        # Checkpoints that tasks found damaged, and what was wrong with them.
        self._damaged: dict[int, str] = {}
        # How often in a row the store was without a checkpoint that it must have; and the pause before the next look.
        self._num_losses = 0
        self._look_again_ms: int | None = None
        # What comes after STOPPING: RESTARTING, FAILED, CANCELED or FINISHED; and whether the coordinator has stopped.
        self._stop_target = JobStatus.RESTARTING
        self._has_coordinator_stopped = True
        # What the cluster does about slots that have not come, and how long they have been waited for (ms).
        self._awaited: SlotsAwaited | None = None
        self._has_launched = False
        self._waited_ms = 0
        # More TaskManagers were requested than the job needs; what it does not use is given back once it is deployed.
        self._has_stand_ins = False

    @property
    def phase(self) -> Phase:
        """What the JobManager is busy with."""
        return self._phase

    @property
    def is_going_down(self) -> bool:
        """Whether the job has ended, or is about to without having finished."""
        lost = (JobStatus.FAILED, JobStatus.CANCELED)
        return self._phase is Phase.ENDED or (self._phase is Phase.STOPPING and self._stop_target in lost)

    def _enter(self, phase: Phase) -> None:
        if phase is self._phase:
            return
        if phase not in PHASE_TRANSITIONS[self._phase]:
            refused = InvalidTransition.of("job", self._phase, phase, self._record.log)
            raise refused
        self._phase = phase
        self._record.waiting = None

    # ----------------------------------------------------------------------------------------------------- preparation
    def begin(self, job_graph: JobGraph, now_ms: int) -> list[Command]:
        """Set the job up and prepare its first deployment."""
        try:
            self.execution = JobExecution(self._job, job_graph, self._address, self._coordinator, self._record.log)
        except HeadraceError as error:
            return self.fail(error, now_ms)
        self._scope = self.execution.graph.subtasks()
        return self._prepare(now_ms)

    def _prepare(self, now_ms: int) -> list[Command]:
        self._enter(Phase.PREPARING)
        self._serial += 1
        if self._settings.checkpoints is None and self._settings.restore_from is None:
            return self._prepared(Preparation(self.epoch, None), now_ms)
        past = JobPast(
            newest=self._newest_own,
            has_run=self._was_run_before,
            damaged=dict(self._damaged),
            given_up=frozenset(self.given_up),
            may_pass_over=self._may_pass_over,
        )
        work = functools.partial(prepare_job, self._job, self.epoch, past, is_claimed=self._has_claimed)
        return [Offload("prepare_job", self._serial, work)]

    @property
    def _may_pass_over(self) -> bool:
        """Whether a newest checkpoint that is damaged or gone may be passed over for an older one."""
        checkpoints = self._settings.checkpoints
        if checkpoints is None or self.execution is None:
            return False
        chosen = checkpoints.damaged_checkpoints is DamagedCheckpointPolicy.FALL_BACK_AT_LEAST_ONCE
        return chosen or may_pass_over(self.execution.graph.job_graph)

    def on_preparation(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        """A preparation has ended."""
        if event.token != self._serial or self._phase is not Phase.PREPARING:
            return []
        if event.error is None:
            return self._prepared(event.result, now_ms)
        if isinstance(event.error, SupersededError):
            self.leave(str(event.error), now_ms)
            return [StopHost()]
        if isinstance(event.error, CheckpointLostError) and self._num_losses < MAX_LOSSES:
            return self._look_again(event.error, now_ms)
        if isinstance(event.error, (CheckpointCorruptError, CheckpointLostError)):
            return self._fail_behind(event.error, now_ms)
        if isinstance(event.error, CheckpointError) or self._is_first_try:
            return self.fail(event.error, now_ms)
        return self.failed(event.error, now_ms, ())

    def _look_again(self, error: CheckpointLostError, now_ms: int) -> list[Command]:
        """The store lacks what it must have: that may be an empty mount point, or a listing that lags behind."""
        self._look_again_ms = LOOK_AGAIN_MS << self._num_losses
        self._num_losses += 1
        self._record.note(now_ms, f"looks again in {self._look_again_ms / 1_000:g} s: {error.message}")
        return self._stop(JobStatus.RESTARTING, self._scope, now_ms)

    def _fail_behind(self, error: CheckpointError, now_ms: int) -> list[Command]:
        """The newest checkpoint is damaged or gone: the job is lost, and what it made public is said."""
        assert self.execution is not None
        if self._settings.restore_from is not None and not self._newest_own:
            return self.fail(error, now_ms)  # it is the one that the user named
        return self.fail(with_public_output(error, self.execution.graph.job_graph), now_ms)

    def _prepared(self, preparation: Preparation, now_ms: int) -> list[Command]:
        assert self.execution is not None
        self._has_claimed = True
        self._num_losses = 0
        self.epoch = preparation.epoch
        self._restore_point = point = preparation.restore_point
        restored_id = 0 if point is None else point.checkpoint_id
        if restored_id != self._base_id and not self.execution.is_whole(self._scope):
            self._record.note(now_ms, f"restarts everything: checkpoint {self._base_id} cannot be restored")
            return self._stop(JobStatus.RESTARTING, self.execution.graph.subtasks(), now_ms)
        commands = self._savepoints.restored(point, self.epoch, now_ms)
        if point is not None:
            try:
                allowed = self._settings.allow_non_restored_state
                check_restorable(point, self.execution.graph.job_graph, allow_non_restored_state=allowed)
            except CheckpointError as error:
                return commands + self.fail(error, now_ms)
            self._note_restore(point, now_ms)
            self._record.reports.restore(point.reports)
            self._wish.restored(point, now_ms)
        self._enter(Phase.WAITING_FOR_SLOTS)
        self._awaited, self._waited_ms = None, 0
        num_slots = self.execution.num_slots_needed
        request = RequestSlots(self._job.job_id, self.epoch, self._address, num_slots, self._settings)
        return [
            *commands,
            Send(self._resource_manager, request),
            StartTimer("slots", self._settings.slot_request_timeout_ms, SlotRequestTimedOut(self._serial)),
            StartTimer("heartbeat", self._settings.heartbeat_interval_ms, HeartbeatDue()),
            *self.deploy_if_possible(now_ms),
        ]

    def _note_restore(self, point: RestorePoint, now_ms: int) -> None:
        if not point.is_requested and not point.passed_over:
            self._newest_own = max(self._newest_own, point.checkpoint_id)
        for problem in point.passed_over:
            repeated = "after a proof that its output is not public" if point.must_prove else "output comes twice"
            self._record.note(now_ms, f"falls back to checkpoint {point.checkpoint_id}, {repeated}: {problem}")
        self._record.note(now_ms, f"restores checkpoint {point.checkpoint_id}")

    @property
    def _is_first_try(self) -> bool:
        """Nothing has ever run: a failure is the program's or the set-up's, and trying again would only hide it."""
        return self.deployment < 0 and self._record.num_restarts == 0

    def on_slot_request_timed_out(self, timer: SlotRequestTimedOut, now_ms: int) -> list[Command]:
        """The slots have not come in time."""
        if self._phase is not Phase.WAITING_FOR_SLOTS or timer.serial != self._serial:
            return []
        assert self.execution is not None
        self._waited_ms = self._waited_ms or self._settings.slot_request_timeout_ms
        longer_ms = self.patience_ms(self._waited_ms)
        if longer_ms:
            self._waited_ms += longer_ms
            return [StartTimer("slots", longer_ms, timer)]
        error = self.slots_missing(self.execution.num_slots_needed, self._waited_ms)
        return self.fail(error, now_ms) if self._is_first_try else self.failed(error, now_ms, ())

    def slots_awaited(self, message: SlotsAwaited, now_ms: int) -> None:
        """The ResourceManager says what the cluster does about slots that have not come."""
        if message.epoch != self.epoch or self.execution is None:
            return
        before, self._awaited = self._awaited, message
        self._has_launched |= message.is_launching
        if not message.is_launching and (before is None or not before.is_launching):
            return  # processes may only be starting; if slots do not come, the error says what the cluster did
        if self._phase is Phase.WAITING_FOR_SLOTS:
            self._record.waiting = message.text
        if before is None or message.text != before.text:
            self._record.note(now_ms, f"waits for slots: {message.text}")
        self._record.has_news = True

    def stand_in_requested(self, *, is_rescaling: bool) -> list[Command]:
        """More TaskManagers than are needed have been requested, as some are silent.

        Args:
            is_rescaling: Whether slots are awaited beside those that run; then the end of that gives back the rest.
        """
        self._has_stand_ins = True
        runs = self._phase in (Phase.DEPLOYING, Phase.EXECUTING) and not is_rescaling
        return self._give_back_unused() if runs else []

    def _give_back_unused(self) -> list[Command]:
        """Say which TaskManagers the deployment uses, if there may be others."""
        run = self.execution
        if not self._has_stand_ins or run is None:
            return []
        self._has_stand_ins = False
        unused, used = run.let_go_of_unused(), run.task_managers_in_use
        job, number = self._job, run.num_slots_needed
        request = RequestSlots(job.job_id, self.epoch, self._address, number, job.settings, unused, used)
        return [Send(self._resource_manager, request)]

    def patience_ms(self, waited_ms: int) -> int:
        """How much longer to wait for slots after so long; 0 if they are given up.

        That is if no node was being launched for all the time since this was last asked: a launch that has failed is
        tried again only after a while.
        """
        left_ms = self._settings.node_launch_timeout_ms - waited_ms
        has_launched, self._has_launched = self._has_launched, False
        if not has_launched or left_ms <= 0:
            return 0
        return min(left_ms, max(self._settings.slot_request_timeout_ms, MIN_PATIENCE_MS))

    def slots_missing(self, needed: int, waited_ms: int) -> NoResourceAvailableError:
        """The error of slots that did not come."""
        assert self.execution is not None
        why = "" if self._awaited is None else f": {self._awaited.text}"
        message = f"{needed} slots needed, {self.execution.pool.num_slots} available after {waited_ms / 1_000:g} s{why}"
        return NoResourceAvailableError(message, job=self._job.name)

    # ------------------------------------------------------------------------------------------------------ deployment
    def deploy_if_possible(self, now_ms: int) -> list[Command]:
        """Deploy the job if it waits for slots and has them."""
        run = self.execution
        assert run is not None
        if self._phase is not Phase.WAITING_FOR_SLOTS or run.pool.num_slots < run.num_slots_needed:
            return []
        self.deployment += 1
        running = {execution.attempt for execution in run.graph.executions() if execution.is_wanted}
        self._record.metrics.keep_only(running)
        self._record.reports.forget_attempts_before(self.epoch, self.deployment - 1, running)
        if self._settings.checkpoints is None and self.deployment > 0:
            self._record.reports.roll_back(run.operators_of(self._scope))
        self.final_ids.clear()
        self._record.log.add(now_ms, "job", f"deployment {self.deployment}, {len(self._scope)} tasks")
        point = self._restore_point
        try:
            commands = run.deploy(self.epoch, self.deployment, point, self._scope, now_ms)
        except HeadraceError as error:
            return self.fail(error, now_ms)
        self._base_id = 0 if point is None else point.checkpoint_id
        self._enter(Phase.DEPLOYING)
        return [CancelTimer("slots"), *commands, *self._give_back_unused()]

    def advance(self, now_ms: int, run: JobExecution) -> list[Command]:
        """A task has come a step further: see whether the job has."""
        if self._phase is Phase.STOPPING:
            return self._stopped_if_done(now_ms)
        if self._phase is Phase.DEPLOYING:
            if run.graph.are_new_ones_ready():
                if self._savepoints.is_stopped:  # all has been committed, and nothing may be processed any more
                    self._record.become(JobStatus.RUNNING, now_ms)
                    return self._stop_everything(JobStatus.FINISHED, now_ms)
                stop = [] if self._wish.mode is None else run.stop_sources(self._wish.mode)
                return stop + run.start_tasks()
            if not run.graph.are_all_in(TaskState.RUNNING, TaskState.ENDED):
                return []
            self._enter(Phase.EXECUTING)
            self._record.become(JobStatus.RUNNING, now_ms)
            point = self._restore_point
            restored_id = 0 if point is None else point.checkpoint_id
            message = ExecutionStarted(self.epoch, self.deployment, restored_id)
            started: list[Command] = [Send(self._coordinator, message)]
            return started + self.advance(now_ms, run)
        if self._phase is Phase.EXECUTING and (self._wish.suspends or run.graph.are_all_in(TaskState.ENDED)):
            savepoint = self._savepoints.before_the_end()
            if savepoint is not None:
                return savepoint
            if self._settings.checkpoints is None:
                return self.finish_tasks(run)
            self._enter(Phase.FINAL_CHECKPOINT)
            return [Send(self._coordinator, FinalCheckpointWanted(self.epoch, self.deployment))]
        if self._phase is Phase.FINISHING and run.graph.are_all_in(TaskState.FINISHED):
            return self._stop_everything(JobStatus.FINISHED, now_ms)
        return []

    def finish_tasks(self, run: JobExecution) -> list[Command]:
        """All data is processed and durable: let the tasks commit the rest and end."""
        self._enter(Phase.FINISHING)
        return run.finish_tasks()

    # -------------------------------------------------------------------------------------------- failure and stopping
    def failed(self, error: BaseException, now_ms: int, affected: Collection[Execution] | None = None) -> list[Command]:
        """Something went wrong: stop what it touches, then restart that if the strategy allows it.

        Args:
            error: What.
            now_ms: The time.
            affected: Whose failure it is; nobody's if a restart that is under way comes to nothing; None if it is the
                whole job's.
        """
        if self._phase in (Phase.ENDED, Phase.DELIVERING):
            return []
        scope = self._scope_of(affected)
        if self._phase is Phase.STOPPING and (self._stop_target is not JobStatus.RESTARTING or scope <= self._scope):
            return self._stopped_if_done(now_ms)  # a consequence, or too late to matter
        if self._phase in (Phase.STOPPING, Phase.BACKING_OFF):
            if scope <= self._scope:
                return []
            self._note_restart(error, scope | self._scope, now_ms)
            return self._stop(JobStatus.RESTARTING, scope | self._scope, now_ms)
        if self._phase in (Phase.PREPARING, Phase.WAITING_FOR_SLOTS, Phase.DEPLOYING):
            scope |= self._scope
        point = self._restore_point
        if isinstance(error, CheckpointCorruptError) and self._phase is Phase.DEPLOYING and point is not None:
            if point.is_requested:
                return self.fail(error, now_ms)
            self._damaged[point.checkpoint_id] = str(error)
            if not self._may_pass_over:
                message = f"checkpoint {point.checkpoint_id} is damaged: {error.message}"
                damage = CheckpointCorruptError(message, hint=error.hint, **error.context)
                return self._fail_behind(damage, now_ms)
        if isinstance(error, _LASTING):
            return self.fail(error, now_ms)
        if isinstance(error, UserError):
            self.num_user_failures += 1
        backoff = self._record.backoff
        if not backoff.can_restart(now_ms) or self._repeats_itself():
            return self.fail(error, now_ms)
        self._record.backoff = backoff.after_failure(now_ms)
        self._record.num_restarts += 1
        self._note_restart(error, scope, now_ms)
        self._note_pause(now_ms)
        return self._stop(JobStatus.RESTARTING, scope, now_ms)

    def restart(self, error: BaseException, now_ms: int) -> list[Command]:
        """Go back to the newest checkpoint with the whole job, which is no failure of it."""
        assert self.execution is not None
        self._record.num_restarts += 1
        self._note_restart(error, self.execution.graph.subtasks(), now_ms)
        return self._stop_everything(JobStatus.RESTARTING, now_ms)

    def _scope_of(self, affected: Collection[Execution] | None) -> frozenset[Subtask]:
        """What has to be restarted after a failure of some executions; None: of the job as a whole."""
        run = self.execution
        if run is None:
            return frozenset()
        is_stopping = self._wish.mode is not None or self._savepoints.stop_mode is not None
        is_ending = is_stopping or self._phase in (Phase.FINAL_CHECKPOINT, Phase.FINISHING)
        if affected is None or is_ending or self._settings.failover is FailoverStrategy.FULL:
            return run.graph.subtasks()
        return run.regions.touched_by(execution.subtask for execution in affected)

    def _note_restart(self, error: BaseException, scope: frozenset[Subtask], now_ms: int) -> None:
        run = self.execution
        part = "" if run is None or run.is_whole(scope) else f" {len(scope)} of {run.graph.num_subtasks} tasks"
        self._record.failure = str(error)
        self._record.note(now_ms, f"restarts{part} after: {error}")
        self._record.become(JobStatus.RESTARTING, now_ms)
        self._record.has_news = True

    def _note_pause(self, now_ms: int) -> None:
        backoff = self._record.backoff
        if backoff.has_grown:
            pause = f"waits {backoff.delay_ms / 1_000:g} s before restart {backoff.num_restarts}"
            self._record.note(now_ms, f"{pause}: it goes on failing without getting anywhere")

    def _repeats_itself(self) -> bool:
        """Whether the program has failed by itself so often, without progress, that it will again."""
        most = self._record.backoff.strategy.max_user_failures
        return 0 < most <= self.num_user_failures

    def fail(self, error: BaseException, now_ms: int) -> list[Command]:
        """The job is lost: stop everything; ``error`` is its last word."""
        if self._phase in (Phase.DELIVERING, Phase.ENDED) or (
            self._phase is Phase.STOPPING and self._stop_target is not JobStatus.RESTARTING
        ):
            return []
        self._record.error = error
        self._record.failure = str(error)
        self._record.note(now_ms, f"fails: {self._record.failure}")
        self._record.become(JobStatus.FAILING, now_ms)
        return self._stop_everything(JobStatus.FAILED, now_ms)

    def cancel(self, reason: str, now_ms: int) -> list[Command]:
        """Somebody wants the job to end."""
        if self._phase is Phase.ENDED:
            return []
        if self._phase is Phase.DELIVERING:
            return self._end(JobStatus.FINISHED, now_ms)
        if self._phase is Phase.STOPPING and self._stop_target in (JobStatus.FINISHED, JobStatus.CANCELED):
            return []
        self._record.note(now_ms, f"canceled: {reason}")
        self._record.become(JobStatus.CANCELLING, now_ms)
        self._record.error = JobCanceledError(f'job "{self._job.name}" was canceled', job=self._job.job_id)
        return self._stop_everything(JobStatus.CANCELED, now_ms)

    def rescale(self, job_graph: JobGraph, now_ms: int) -> list[Command]:
        """Stop everything and go on from the newest checkpoint with another graph of the same program."""
        self._next_graph = job_graph
        self._record.become(JobStatus.RESTARTING, now_ms)
        return self._stop_everything(JobStatus.RESTARTING, now_ms)

    def _stop_everything(self, target: JobStatus, now_ms: int) -> list[Command]:
        return self._stop(target, frozenset() if self.execution is None else self.execution.graph.subtasks(), now_ms)

    def _stop(self, target: JobStatus, scope: frozenset[Subtask], now_ms: int) -> list[Command]:
        """Stop some subtasks; while some are being stopped, stop more."""
        self._enter(Phase.STOPPING)
        self._stop_target = target
        self._scope = scope
        commands: list[Command] = [CancelTimer("slots"), CancelTimer("restart")]
        self._has_coordinator_stopped = False
        commands.append(Send(self._coordinator, ExecutionStopped(self.epoch, self.deployment)))
        if self.execution is not None:
            commands += self.execution.cancel_tasks(scope, now_ms)
            commands += self._cancellation_timer()
        return commands + self._stopped_if_done(now_ms)

    def on_coordinator_stopped(self, deployment: int, now_ms: int) -> list[Command]:
        """No checkpoint of the deployment can complete any more."""
        if self._phase is not Phase.STOPPING or deployment != self.deployment:
            return []
        self._has_coordinator_stopped = True
        aborted = [] if self.execution is None else self.execution.abort_in_flight()
        return aborted + self._stopped_if_done(now_ms)

    def _cancellation_timer(self) -> list[Command]:
        timeout_ms = self._settings.task_cancellation_timeout_ms
        if not timeout_ms:
            return []
        return [StartTimer("cancellation", timeout_ms, CancellationTimedOut(self.deployment))]

    def on_cancellation_timed_out(self, timer: CancellationTimedOut, run: JobExecution) -> list[Command]:
        """Some task has not stopped in time: its slot goes."""
        if self._phase is not Phase.STOPPING or timer.deployment != self.deployment:
            return []
        waited_s = self._settings.task_cancellation_timeout_ms / 1_000
        kills = run.kill_tasks(self.epoch, f"a task did not cancel within {waited_s:g} s")
        return [*kills, *self._cancellation_timer()]

    def _stopped_if_done(self, now_ms: int) -> list[Command]:
        if not self._has_coordinator_stopped:
            return []
        if self.execution is not None and not self.execution.have_ended(self._scope):
            return []
        commands: list[Command] = [CancelTimer("cancellation")]
        if self._stop_target is JobStatus.FINISHED and self._settings.attached:
            return commands + self._deliver(now_ms)
        if self._stop_target is not JobStatus.RESTARTING:
            return commands + self._end(self._stop_target, now_ms)
        if self._next_graph is not None:
            return commands + self._become(self._next_graph, now_ms)
        self._enter(Phase.BACKING_OFF)
        self._serial += 1
        delay_ms, self._look_again_ms = self._look_again_ms, None
        if delay_ms is None:
            delay_ms = self._record.backoff.delay_ms
        return [*commands, StartTimer("restart", delay_ms, BackOffOver(self._serial))]

    def _become(self, job_graph: JobGraph, now_ms: int) -> list[Command]:
        assert self.execution is not None
        self._next_graph = None
        self.execution.become(job_graph)
        self._scope = self.execution.graph.subtasks()
        return self._prepare(now_ms)

    def on_back_off_over(self, timer: BackOffOver, now_ms: int) -> list[Command]:
        """The pause before a restart is over."""
        if self._phase is not Phase.BACKING_OFF or timer.serial != self._serial:
            return []
        return self._prepare(now_ms)

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: what is restarted from now on goes back to it."""
        self.num_user_failures = 0
        self._base_id = max(self._base_id, checkpoint_id)
        self._newest_own = max(self._newest_own, checkpoint_id)
        self._record.backoff = self._record.backoff.after_checkpoint()

    def leave(self, reason: str, now_ms: int) -> None:
        """Another leader has the job, its tasks and its record."""
        self._record.note(now_ms, f"suspended: {reason}")
        self._record.become(JobStatus.SUSPENDED, now_ms)
        self._enter(Phase.ENDED)

    # --------------------------------------------------------------------------------------------------------- the end
    def _deliver(self, now_ms: int) -> list[Command]:
        """Let the client fetch its rows first: once the end is recorded, nobody would bring them back."""
        if not self._record.reports.has_unfetched_rows:
            return self._end(JobStatus.FINISHED, now_ms)
        self._enter(Phase.DELIVERING)
        self._record.clients.changed()
        return [StartTimer("delivery", DELIVERY_TIMEOUT_MS, DeliveryOver())]

    def delivered(self, now_ms: int) -> list[Command]:
        """The client has fetched everything, or had time enough."""
        if self._phase is not Phase.DELIVERING:
            return []
        return [CancelTimer("delivery"), *self._end(JobStatus.FINISHED, now_ms)]

    def _end(self, status: JobStatus, now_ms: int) -> list[Command]:
        self._enter(Phase.ENDED)
        self._record.ended_ms = now_ms
        self._record.note(now_ms, f"ends {status.value}")
        self._record.become(status, now_ms)
        return [
            *self._savepoints.ended(status, self.epoch, now_ms),
            CancelTimer("heartbeat"),
            *self._record.clients.ended(),
            StartTimer("archive", ARCHIVE_RETRY_MS, TellDispatcher()),
        ]
