"""The JobManager of one job under one leader epoch: deploys it, watches it, restarts it, ends it.

It only routes. What the job is busy with is one of the phases in the table below, each in a module of its own: it is
asked first, for it knows the events that mean something only then. All other events mean the same in any phase, and
have modules by whom they come from: tasks, slots, the CheckpointCoordinator, clients. All of them decide by the job's
state (`headrace.engine.job.context.state`), which is plain data, and change the phase by
`headrace.engine.job.context.job.Job.go`.

Invariants: a task's report counts only for a current attempt; a split is answered and a checkpoint triggered in one
step each, in that order on every link; the end of the job is told to clients only once the Dispatcher has recorded it,
which then deletes what no restore needs.

Source: Flink's ``JobMaster``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.state.reading.program_pickles import load_program

from ..errors import ProgramError, raise_from_outside
from ..graph.job_graph import JobGraph
from ..kernel.event_log import EventLog
from ..kernel.machine import Address, Asked, Command, Started, kind_of
from ..protocol.checkpoint_messages import CheckpointEnded, CheckpointRequested, ReportsWanted
from ..protocol.messages import CancelJob, SubmitJob
from ..protocol.states import JobStatus
from ..protocol.task_messages import ReportEmitted
from ..protocol.views import JobView
from . import autoscaling, checkpointing, rescale
from .context.clients import ClientLost, LingerOver, PollTimedOut
from .context.job import Job, Peers
from .context.phase import Phase, ViewDue
from .context.savepoints import SavepointBegun, SavepointPollOver
from .phases.deploying import DEPLOYING
from .phases.ending import DELIVERING, ENDED, on_linger_over
from .phases.executing import EXECUTING, FINAL_CHECKPOINT, FINISHING
from .phases.failures import cancel, fail_job
from .phases.preparing import PREPARING
from .phases.slot_requests import WAITING_FOR_SLOTS
from .phases.stopping import BACKING_OFF, STOPPING
from .questions import on_asked, on_savepoint_begun
from .slots import SLOT_EVENTS
from .sources.source_coordinator import SplitsDiscovered
from .task_reports import TASK_EVENTS, on_discovered, on_report, on_view_due

__all__ = ["JobManager"]

Handler = Callable[[Job, Any, int], list[Command]]

PHASES = {
    Phase.PREPARING: PREPARING,
    Phase.WAITING_FOR_SLOTS: WAITING_FOR_SLOTS,
    Phase.DEPLOYING: DEPLOYING,
    Phase.EXECUTING: EXECUTING,
    Phase.FINAL_CHECKPOINT: FINAL_CHECKPOINT,
    Phase.FINISHING: FINISHING,
    Phase.STOPPING: STOPPING,
    Phase.BACKING_OFF: BACKING_OFF,
    Phase.DELIVERING: DELIVERING,
    Phase.ENDED: ENDED,
}
"""The phases by name."""


def _on_started(job: Job, _event: Started, now_ms: int) -> list[Command]:
    """Read the program and begin the first deployment."""
    job.record.began(now_ms)
    commands = job.record.clients.started()
    try:
        job_graph: JobGraph = load_program(job.submission.job_graph)
    except BaseException as error:
        raise_from_outside(error)
        message = f"the job graph cannot be read where the JobManager runs: {error!r}"
        hint = "Modules that the program imports must be installed on every node."
        return commands + fail_job(job, ProgramError(message, hint=hint, job=job.submission.name), now_ms)
    error_of_set_up = job.set_up(rescale.begin(job, job_graph))
    if error_of_set_up is not None:
        return commands + fail_job(job, error_of_set_up, now_ms)
    return commands + autoscaling.begin(job) + job.go(Phase.PREPARING, now_ms)


def _on_cancel_from_dispatcher(job: Job, _message: CancelJob, now_ms: int) -> list[Command]:
    """The Dispatcher shuts the cluster down: end the job, and do not wait for clients."""
    return on_linger_over(job, None, now_ms) or cancel(job, "the cluster is shut down", now_ms)


def _on_poll_timed_out(job: Job, timer: PollTimedOut, _now_ms: int) -> list[Command]:
    job.record.clients.poll_timed_out(timer)
    return []


ALWAYS: dict[type, Handler] = {
    Started: _on_started,
    Asked: on_asked,
    ReportEmitted: on_report,
    CheckpointEnded: checkpointing.on_checkpoint_ended,
    ReportsWanted: checkpointing.on_reports_wanted,
    CancelJob: _on_cancel_from_dispatcher,
    PollTimedOut: _on_poll_timed_out,
    SavepointBegun: on_savepoint_begun,
    SavepointPollOver: lambda job, timer, _now_ms: job.savepoints.poll_over(timer),
    ClientLost: lambda job, _timer, now_ms: cancel(job, "its client is gone", now_ms),
    LingerOver: on_linger_over,
    ViewDue: on_view_due,
}
"""What means the same in any phase."""

WHILE_THERE_ARE_TASKS: dict[type, Handler] = {
    CheckpointRequested: checkpointing.on_checkpoint_requested,
    SplitsDiscovered: on_discovered,
    autoscaling.AutoscalerDue: autoscaling.on_due,
    **TASK_EVENTS,
    **SLOT_EVENTS,
}
"""What means the same in any phase but before the program is read, and once the job has ended."""


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
        peers = Peers(address, dispatcher, resource_manager, coordinator)
        self._job = Job(job, peers, epoch, predecessor, PHASES)

    @property
    def epoch(self) -> int:
        """The leader epoch."""
        return self._job.state.epoch

    @property
    def phase(self) -> Phase:
        """What it is busy with."""
        return self._job.state.phase

    @property
    def status(self) -> JobStatus:
        """The job's state."""
        return self._job.record.status

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        """Take one message or event; see `headrace.engine.kernel.machine.Machine`."""
        job = self._job
        handler = self._handler_of(kind_of(event))
        commands = [] if handler is None else handler(job, event, now_ms)
        commands += rescale.advance(job, now_ms)
        commands += checkpointing.wanted_for_splits(job)
        if job.record.has_news:
            job.record.has_news = False
            job.record.clients.changed()
            commands.append(job.tell_dispatcher())
        return commands + job.record.clients.flush(job.view)

    def _handler_of(self, kind: type) -> Handler | None:
        job = self._job
        handler = job.rules.handlers.get(kind) or ALWAYS.get(kind)
        if handler is None and job.execution is not None and job.state.phase is not Phase.ENDED:
            handler = WHILE_THERE_ARE_TASKS.get(kind)
        return handler

    def view(self) -> JobView:
        """Return the job for people and clients."""
        return self._job.view()

    @property
    def log(self) -> EventLog:
        """What is remembered about attempts, TaskManagers and ``job``."""
        return self._job.record.log

    def check(self) -> None:
        """See that its state fits together, between two events; the simulator asks after each.

        Raises:
            InternalError: If it does not.
        """
        execution = self._job.execution
        self._job.state.check(self.status, None if execution is None else execution.graph)
