"""One job under one leader, as its phases have it at hand: its state, what runs of it, what is told of it, and to whom.

A phase changes by `Job.go` only: that looks the change up in the table of legal ones and begins the next phase. Which
module that is in, no phase knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...autoscaler.autoscaler import Autoscaler
from ...errors import HeadraceError
from ...execution.graph import InvalidTransition
from ...graph.job_graph import JobGraph
from ...kernel.machine import Address, Command, Send
from ...protocol.details import CheckpointStatisticsView, JobDetails, JobSummary
from ...protocol.messages import FetchJobDetails, JobStatusChanged, RequestSlots, SubmitJob
from ...protocol.states import JobStatus
from ...protocol.views import JobView, VertexView
from .phase import PHASE_TRANSITIONS, Phase
from .record import JobRecord
from .running import JobExecution
from .savepoints import JobSavepoints
from .state import JobState, Rescaling
from .stop import JobStop

__all__ = ["Job", "Peers", "PhaseRules"]


class Peers(NamedTuple):
    """Whom a JobManager speaks with; its own address first."""

    job_manager: Address
    dispatcher: Address
    resource_manager: Address
    coordinator: Address


class PhaseRules(NamedTuple):
    """What a phase does.

    Attributes:
        begin: As it begins.
        advance: See whether the job has come a step further, as a task has.
        handlers: By kind of event, those that mean something in this phase only.
    """

    begin: Callable[[Job, int], list[Command]]
    advance: Callable[[Job, int], list[Command]]
    handlers: Mapping[type, Callable[[Job, Any, int], list[Command]]]


class Job:
    """The job.

    Args:
        submission: What was submitted.
        peers: Whom to speak with.
        epoch: The leader epoch that the Dispatcher gave.
        predecessor: The last view of the leader before, whose record goes on.
        rules: The phases.
    """

    def __init__(
        self,
        submission: SubmitJob,
        peers: Peers,
        epoch: int,
        predecessor: JobView | None,
        rules: Mapping[Phase, PhaseRules],
    ) -> None:
        self.submission = submission
        self.settings = submission.settings
        self.peers = peers
        self.record = JobRecord(submission, epoch, predecessor)
        if predecessor is not None:
            self.record.num_restarts += 1
        was_run = predecessor is not None and predecessor.state is not JobStatus.CREATED
        self.state = JobState(epoch, was_run, self.record.last_checkpoint or 0)
        # What runs; None until the job's program has been read.
        self.execution: JobExecution | None = None
        # Whether the job is to end in order before its input does; and savepoints.
        self.wish = JobStop(self.record, submission.settings, submission.name)
        self.savepoints = JobSavepoints(submission, self.record, self.wish, peers.coordinator)
        self.rescaling = Rescaling()
        # Decides on rescales; None if only clients do.
        autoscaler = submission.settings.autoscaler
        self.autoscaler = None if autoscaler is None else Autoscaler(autoscaler)
        self._rules = rules

    @property
    def run(self) -> JobExecution:
        """What runs, in phases that come after the program has been read."""
        assert self.execution is not None
        return self.execution

    @property
    def is_first_try(self) -> bool:
        """Nothing has ever run: a failure is the program's or the set-up's, and trying again would only hide it."""
        return self.state.deployment < 0 and self.record.num_restarts == 0

    @property
    def rules(self) -> PhaseRules:
        """The present phase's."""
        return self._rules[self.state.phase]

    def set_up(self, job_graph: JobGraph) -> HeadraceError | None:
        """Make what is to run; gives why it cannot be."""
        try:
            peers, log = self.peers, self.record.log
            self.execution = JobExecution(self.submission, job_graph, peers.job_manager, peers.coordinator, log)
        except HeadraceError as error:
            return error
        self.state.scope = self.execution.graph.subtasks()
        return None

    def go(self, phase: Phase, now_ms: int) -> list[Command]:
        """Begin a phase, or the present one anew.

        Raises:
            InvalidTransition: If the table does not allow it.
        """
        before = self.state.phase
        if phase is not before:
            if phase not in PHASE_TRANSITIONS[before]:
                refused = InvalidTransition.of("job", before, phase, self.record.log)
                raise refused
            self.state.phase = phase
            self.record.log.add(now_ms, "job", f"{before.value} -> {phase.value}")
            self.record.waiting = None
        self.record.initializations.entered(phase, now_ms)
        return self._rules[phase].begin(self, now_ms)

    def advance(self, now_ms: int) -> list[Command]:
        """See whether the job has come a step further, as a task has."""
        return self.rules.advance(self, now_ms)

    def stop(self, target: JobStatus, now_ms: int, scope: frozenset[tuple[Any, int]] | None = None) -> list[Command]:
        """Stop some subtasks, or all; while some are being stopped, stop more."""
        if scope is None:
            scope = frozenset() if self.execution is None else self.execution.graph.subtasks()
        self.state.stop_target, self.state.scope = target, scope
        return self.go(Phase.STOPPING, now_ms)

    # -------------------------------------------------------------------------------------------------------- messages
    def to_coordinator(self, message: Any) -> Send:
        """Tell the CheckpointCoordinator."""
        return Send(self.peers.coordinator, message)

    def request_slots(self, number: int, unused: tuple[str, ...] = (), used: tuple[str, ...] = ()) -> Send:
        """Tell the ResourceManager how many slots the job needs in all, which TaskManagers it does not, and which it
        does.
        """
        job, state = self.submission, self.state
        request = RequestSlots(job.job_id, state.epoch, self.peers.job_manager, number, job.settings, unused, used)
        return Send(self.peers.resource_manager, request)

    def tell_dispatcher(self) -> Send:
        """Tell the Dispatcher how the job is."""
        details = self.details() if self.record.status.is_terminal else None
        view = self.view() if details is None else details.view
        status = JobStatusChanged(self.submission.job_id, self.state.epoch, view, details)
        return Send(self.peers.dispatcher, status)

    def view(self) -> JobView:
        """Return the job for people and clients."""
        return self._view_with(() if self.execution is None else self.record.metrics.view(self.execution.graph))

    def _view_with(self, vertices: tuple[VertexView, ...]) -> JobView:
        if self.execution is None:
            return self.record.view(vertices, [], [])
        registry = self.execution.registry
        return self.record.view(vertices, registry.all_slots(), registry.views())

    def details(self, asked: FetchJobDetails = FetchJobDetails()) -> JobDetails:
        """Return the job down to its subtasks, or as much of it as is asked for."""
        record = self.record
        checkpoints = record.checkpoints.view() if asked.with_checkpoints else CheckpointStatisticsView()
        starts = record.initializations.views()
        if self.execution is None:
            return JobDetails(self.view(), self.settings, checkpoints=checkpoints, initializations=starts)
        graph = self.execution.graph
        pairs = record.metrics.details(graph, asked.vertices)
        view, vertices = self._view_with(tuple([one for one, _ in pairs])), tuple([more for _, more in pairs])
        return JobDetails(view, self.settings, vertices, record.metrics.edges(graph), checkpoints, starts)

    def summary(self) -> JobSummary:
        """Return what lists show of the job."""
        counts, slots = ({}, {}) if self.execution is None else self.execution.graph.occupation()
        kind = "BATCH" if self.settings.is_batch else "STREAMING"
        return self.record.summary(kind, counts, slots)
