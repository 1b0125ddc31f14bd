"""What a JobManager decides by, as plain data, with what must hold of it.

The phases (`headrace.engine.job.job_manager` has the table) read and write it, and nothing else remembers where the job
stands. What runs is the execution graph's (`headrace.engine.job.context.running`), what people see the record's.
`JobState.check` says what holds between any two events; the simulator asks it after each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.state.identifiers import VertexId

from ...checkpoint.io import RestorePoint
from ...errors import InternalError
from ...execution.graph import ExecutionGraph
from ...execution.regions import Subtask
from ...graph.job_graph import JobGraph
from ...protocol.messages import SlotsAwaited
from ...protocol.states import JobStatus, TaskState
from .phase import Phase

__all__ = ["JobState", "RescaleRequest", "Rescaling"]

_STATUSES = {
    Phase.EXECUTING: {JobStatus.RUNNING},
    Phase.FINAL_CHECKPOINT: {JobStatus.RUNNING},
    Phase.FINISHING: {JobStatus.RUNNING},
    Phase.DELIVERING: {JobStatus.RUNNING},
    Phase.ENDED: {JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED, JobStatus.SUSPENDED},
}
"""The states that a job shows in some phases; in all others it is CREATED, RESTARTING, FAILING or CANCELLING."""

_TASKS = {
    Phase.EXECUTING: {TaskState.RUNNING, TaskState.ENDED},
    Phase.FINAL_CHECKPOINT: {TaskState.RUNNING, TaskState.ENDED},
    Phase.FINISHING: {TaskState.RUNNING, TaskState.ENDED, TaskState.FINISHED},
    Phase.DELIVERING: {TaskState.FINISHED, TaskState.CANCELED},
}
"""The states that every task is in, in some phases."""

_AT_REST = frozenset({Phase.PREPARING, Phase.WAITING_FOR_SLOTS, Phase.BACKING_OFF})
"""Phases in which nothing lives of what is to be deployed next."""


@dataclass(slots=True)
class RescaleRequest:
    """A rescale under way.

    Attributes:
        parallelism: That of all vertices that were ever rescaled, when it is done.
        job_graph: With that.
        serial: Tells its timer.
        asks: Who waits for its end.
        has_asked_for_slots: Whether the ResourceManager has been told.
        is_waiting_for_slots: Whether that was its last word, and a timer runs.
        waited_ms: How long they have been waited for.
        checkpoint_after: A checkpoint above this id is a fresh one; None while none has been asked for.
        is_restarting: The job has been stopped for it.
    """

    parallelism: dict[VertexId, int]
    job_graph: JobGraph
    serial: int
    asks: list[str]
    has_asked_for_slots: bool = False
    is_waiting_for_slots: bool = False
    waited_ms: int = 0
    checkpoint_after: int | None = None
    is_restarting: bool = False


@dataclass(slots=True)
class Rescaling:
    """What a job's rescales need to be known between two events.

    Attributes:
        submitted: The graph as it was submitted; None until it has been read.
        request: The one under way.
        num_requests: So far.
        newest_triggered: Id of the newest checkpoint that was triggered.
    """

    submitted: JobGraph | None = None
    request: RescaleRequest | None = None
    num_requests: int = 0
    newest_triggered: int = 0


@dataclass(slots=True)
class JobState:
    """Where a job stands under one leader.

    Attributes:
        epoch: The leader epoch; the checkpoint store may raise it.
        was_run_before: Whether an earlier leader has run the job, whatever it achieved.
        newest_own: The newest complete checkpoint of this very job, under any leader; 0 for none that is known.
        phase: What the JobManager is busy with.
        deployment: Number of the current deployment, the attempt number of its executions; -1 before the first.
        scope: What is being stopped, or will be deployed next; means nothing once all tasks run.
        next_graph: A job graph that the next deployment is to be of.
        serial: Counts preparations and pauses, so that an old one's end is recognised.
        has_claimed: Whether the epoch has been claimed in the checkpoint store.
        restore_point: What the deployment goes on from.
        base_id: The newest complete checkpoint of what runs, or the one it was restored from; 0 for none.
        damaged: Checkpoints that tasks found damaged, and what was wrong with them.
        given_up: Checkpoints that the coordinator has given up: not to be restored even if the store has them.
        final_ids: Checkpoints triggered after all data was processed.
        num_user_failures: Failures of the program itself since the last completed checkpoint.
        num_losses: How often in a row the store was without a checkpoint that it must have.
        look_again_ms: The pause before the next look, if that is why the job is being stopped.
        stop_target: What comes after STOPPING: RESTARTING, FAILED, CANCELED or FINISHED; then how the job ends.
        has_coordinator_stopped: Whether no checkpoint of what is being stopped can complete any more.
        awaited: What the cluster does about slots that have not come.
        has_launched: Whether nodes were being launched since that was last asked.
        waited_ms: How long slots have been waited for.
        has_stand_ins: Whether more TaskManagers were requested than the job needs; what it does not use is given back
            once it is deployed.
        heartbeat_nonce: Number of the newest round of heartbeats.
        is_view_due: Clients will be shown new numbers shortly.
        is_archived: The Dispatcher has recorded the end.
        is_linger_over: No client is expected any more.
    """

    epoch: int
    was_run_before: bool
    newest_own: int
    phase: Phase = Phase.PREPARING
    deployment: int = -1
    scope: frozenset[Subtask] = frozenset()
    next_graph: JobGraph | None = None
    serial: int = 0
    has_claimed: bool = False
    restore_point: RestorePoint | None = None
    base_id: int = 0
    damaged: dict[int, str] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)
    final_ids: set[int] = field(default_factory=set)
    num_user_failures: int = 0
    num_losses: int = 0
    look_again_ms: int | None = None
    stop_target: JobStatus = JobStatus.RESTARTING
    has_coordinator_stopped: bool = True
    awaited: SlotsAwaited | None = None
    has_launched: bool = False
    waited_ms: int = 0
    has_stand_ins: bool = False
    heartbeat_nonce: int = 0
    is_view_due: bool = False
    is_archived: bool = False
    is_linger_over: bool = False

    @property
    def is_going_down(self) -> bool:
        """Whether the job has ended, or is about to without having finished."""
        lost = (JobStatus.FAILED, JobStatus.CANCELED)
        return self.phase is Phase.ENDED or (self.phase is Phase.STOPPING and self.stop_target in lost)

    @property
    def restored_id(self) -> int:
        """The checkpoint that the deployment goes on from; 0 for none."""
        return 0 if self.restore_point is None else self.restore_point.checkpoint_id

    def check(self, status: JobStatus, graph: ExecutionGraph | None) -> None:
        """See that all fits together, between two events.

        Args:
            status: What the job shows.
            graph: Its tasks; None before its program has been read.

        Raises:
            InternalError: If it does not.
        """
        for rule, holds in self._rules(status, graph).items():
            if not holds:
                message = f"the state of a job contradicts itself: {rule}"
                raise InternalError(message, phase=self.phase.value)

    def _rules(self, status: JobStatus, graph: ExecutionGraph | None) -> dict[str, bool]:
        phase = self.phase
        executions = [] if graph is None else graph.live_executions()
        live = {execution.subtask for execution in executions}
        elsewhere = {JobStatus.CREATED, JobStatus.RESTARTING, JobStatus.FAILING, JobStatus.CANCELLING}
        shows = _STATUSES.get(phase, elsewhere | ({JobStatus.RUNNING} if phase is Phase.STOPPING else set()))
        states = _TASKS.get(phase)
        are_well = states is None or (
            graph is not None
            and {execution.subtask for execution in graph.executions()} == graph.subtasks()
            and graph.are_all_in(*states)
        )
        deployed = all(
            execution.state is not TaskState.CREATED and execution.state is not TaskState.SCHEDULED
            for execution in executions
        )
        return {
            f"it shows {status.value}": status in shows,
            "some task is not as it must be": are_well,
            "some task was scheduled and not deployed": deployed,
            "what is to be deployed next still lives": phase not in _AT_REST or not (live & self.scope),
            "nothing is left to stop": phase is not Phase.STOPPING
            or not self.has_coordinator_stopped
            or bool(live & self.scope),
            "slots are awaited under an epoch that is not claimed": phase is not Phase.WAITING_FOR_SLOTS
            or self.has_claimed,
            "a checkpoint may complete while another one is chosen": phase not in _AT_REST
            or self.has_coordinator_stopped,
            "a checkpoint was both completed and given up": not self.newest_own or self.newest_own not in self.given_up,
            "its end is recorded before it has ended": phase is Phase.ENDED or not self.is_archived,
            "it was deployed without a number": self.deployment >= 0 or phase not in _TASKS,
        }
