"""Rescaling a job while it runs, by command: from the request to tasks that run at the new parallelism.

1. *Slots.* More are asked for if need be, while the job runs on. If they do not come, or cannot come, the request is
   answered with an error, and nothing has happened.
2. *Checkpoint.* A fresh one is taken, so that little is read twice. If it fails, the same.
3. *Restart.* The job is stopped and goes on from that checkpoint with the new job graph. The new parallelism is part of
   the job's view from here on: a leader that takes over deploys with it. (One that never heard of it deploys with the
   old one, from whatever checkpoint: state fits any parallelism. Then the command is simply lost, and asked again.)
4. *Done.* All tasks run; the request is answered, and TaskManagers without a task are given back.

A failure before the third step restarts the job, or a region, as always; then the first step begins again. A request
may be asked twice: the same one waits for the same end, another one is refused until then. Requests do not survive
their JobManager; a client asks again.

Source: Flink's ``AdaptiveScheduler`` and FLIP-291 (``PUT /jobs/:id/resource-requirements``), FLIP-461 (rescale after a
checkpoint).
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.state.identifiers import VertexId

from ..errors import (
    CheckpointError,
    ConfigurationError,
    HeadraceError,
    JobError,
    NoResourceAvailableError,
)
from ..execution.scheduling import slots_needed
from ..graph.job_graph import JobGraph
from ..graph.rescaling import requested_parallelism, rescaled
from ..kernel.machine import Address, CancelTimer, Command, Reply, Send, StartTimer
from ..protocol.control_messages import CheckpointWanted
from ..protocol.messages import RequestFailed, RequestSlots, RescaleJob, SubmitJob
from .lifecycle import JobLifecycle
from .phase import Phase
from .record import JobRecord
from .running import JobExecution
from .stopping import JobStop

__all__ = ["JobRescale", "RescaleTimedOut"]

_PAST_RESCALING = frozenset({Phase.FINAL_CHECKPOINT, Phase.FINISHING, Phase.DELIVERING, Phase.ENDED})


@dataclass(frozen=True, slots=True)
class RescaleTimedOut:
    """Timer: the slots for a rescale have not come."""

    serial: int


@dataclass(slots=True)
class _Request:
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


class JobRescale:
    """The rescales of one job under one leader.

    Args:
        job: The job.
        address: The JobManager's own address.
        resource_manager: Whom to ask for slots.
        coordinator: Whom to ask for a checkpoint.
        record: Where the parallelism stands for clients and for the next leader.
        life: The job's phases.
        wish: Whether the job is to end in order before its input does.
    """

    def __init__(
        self,
        job: SubmitJob,
        address: Address,
        resource_manager: Address,
        coordinator: Address,
        record: JobRecord,
        life: JobLifecycle,
        wish: JobStop,
    ) -> None:
        self._job = job
        self._address = address
        self._resource_manager = resource_manager
        self._coordinator = coordinator
        self._record = record
        self._life = life
        self._wish = wish
        # The graph as it was submitted; None until it has been read.
        self._submitted: JobGraph | None = None
        self._request: _Request | None = None
        self._num_requests = 0
        # Id of the newest checkpoint that was triggered.
        self._newest_triggered = 0

    def begin(self, job_graph: JobGraph) -> JobGraph:
        """Take down the graph that was submitted; gives the one to run: at the parallelism of the leader before."""
        self._submitted = job_graph
        return rescaled(job_graph, self._record.parallelism)

    # --------------------------------------------------------------------------------------------------------- requests
    def asked(self, ask_id: str, request: RescaleJob, now_ms: int) -> list[Command]:
        """A client wants another parallelism."""
        try:
            wanted = self._checked(request)
        except HeadraceError as error:
            return [Reply(ask_id, RequestFailed(error))]
        under_way = self._request
        if under_way is not None:
            if under_way.parallelism == wanted:
                under_way.asks.append(ask_id)
                return []
            message = "the job is being rescaled already, to another parallelism"
            return [Reply(ask_id, RequestFailed(ConfigurationError(message, job=self._job.name)))]
        assert self._submitted is not None
        try:
            job_graph = rescaled(self._submitted, wanted)
        except HeadraceError as error:
            return [Reply(ask_id, RequestFailed(error))]
        if self._life.execution is not None and _same(job_graph, self._life.execution.graph.job_graph):
            return [Reply(ask_id, value=True)]
        self._num_requests += 1
        self._request = _Request(wanted, job_graph, self._num_requests, [ask_id])
        self._record.note(now_ms, f"to be rescaled: {_described(job_graph)}")
        return []  # `advance` goes on

    def _checked(self, request: RescaleJob) -> dict[VertexId, int]:
        if self._submitted is None or self._life.execution is None or self._is_too_late:
            message = "the job has ended, or is about to; it cannot be rescaled"
            raise JobError(message, job=self._job.job_id)
        if self._job.settings.is_batch:
            message = "a batch job has no state that it could go on from at another parallelism"
            raise ConfigurationError(message, hint="Cancel it, and start it anew.", job=self._job.name)
        if self._job.settings.checkpoints is None:
            message = (
                "the job takes no checkpoints, so there is nothing that it could go on from at another parallelism"
            )
            raise ConfigurationError(message, hint="Enable checkpointing.", job=self._job.name)
        changes = requested_parallelism(self._submitted, request.parallelism, request.operators)
        return {**self._record.parallelism, **changes}

    @property
    def is_under_way(self) -> bool:
        """Whether a request is being followed."""
        return self._request is not None

    @property
    def _is_too_late(self) -> bool:
        return self._life.is_going_down or self._life.phase in _PAST_RESCALING or self._wish.mode is not None

    # --------------------------------------------------------------------------------------------------------- progress
    def advance(self, now_ms: int) -> list[Command]:
        """Something has happened to the job: see whether the request has come further."""
        request, run = self._request, self._life.execution
        if request is None or run is None:
            return []
        if self._is_too_late:
            message = "the job ended before it was rescaled"
            return self._give_up(JobError(message, job=self._job.job_id), now_ms)
        if self._life.phase is not Phase.EXECUTING:
            if not request.is_restarting:
                request.checkpoint_after = None  # what was under way is given up
                request.is_waiting_for_slots = False  # a restart asks for as many as the job needs as it is
            return []
        if request.is_restarting:
            return self._done(request, run, now_ms)
        needed = slots_needed(request.job_graph)
        if run.pool.num_slots < needed:
            return self._ask_for_slots(request, needed)
        request.is_waiting_for_slots = False
        if request.checkpoint_after is None:
            request.checkpoint_after = self._newest_triggered
            wanted = CheckpointWanted(self._life.epoch, self._life.deployment)
            return [CancelTimer("rescale"), Send(self._coordinator, wanted)]
        return []

    def _ask_for_slots(self, request: _Request, needed: int) -> list[Command]:
        request.checkpoint_after = None
        if request.is_waiting_for_slots:
            return []
        request.has_asked_for_slots = request.is_waiting_for_slots = True
        request.waited_ms = 0
        timeout_ms = self._job.settings.slot_request_timeout_ms
        return [
            self._slots_wanted(needed),
            StartTimer("rescale", timeout_ms, RescaleTimedOut(request.serial)),
        ]

    def _slots_wanted(self, number: int, unused: tuple[str, ...] = ()) -> Send:
        job, run = self._job, self._life.execution
        used = () if run is None else run.task_managers_in_use
        request = RequestSlots(job.job_id, self._life.epoch, self._address, number, job.settings, unused, used)
        return Send(self._resource_manager, request)

    def checkpoint_triggered(self, checkpoint_id: int) -> None:
        """A checkpoint is under way."""
        self._newest_triggered = max(self._newest_triggered, checkpoint_id)

    def checkpoint_completed(self, checkpoint_id: int, now_ms: int) -> list[Command]:
        """A checkpoint is complete: if it is the one that was waited for, restart from it."""
        request = self._request
        if request is None or not self._is_awaited(request, checkpoint_id) or self._life.phase is not Phase.EXECUTING:
            return []
        request.is_restarting = True
        self._record.parallelism = request.parallelism
        self._record.has_news = True
        self._record.note(now_ms, f"rescales: {_described(request.job_graph)}")
        return self._life.rescale(request.job_graph, now_ms)

    def checkpoint_aborted(self, checkpoint_id: int, reason: str, now_ms: int) -> list[Command]:
        """A checkpoint was given up: if it is the one that was waited for, so is the request."""
        request = self._request
        if request is None or not self._is_awaited(request, checkpoint_id):
            return []
        message = f"the checkpoint to rescale from could not be taken: {reason}"
        error = CheckpointError(message, hint="The job goes on as it was; ask again.", checkpoint=checkpoint_id)
        return self._give_up(error, now_ms)

    @staticmethod
    def _is_awaited(request: _Request, checkpoint_id: int) -> bool:
        after = request.checkpoint_after
        return not request.is_restarting and after is not None and checkpoint_id > after

    # -------------------------------------------------------------------------------------------------------------- end
    def slots_refused(self, reason: str, now_ms: int) -> list[Command] | None:
        """The ResourceManager cannot give the slots that were asked for last; None if it was not asked from here."""
        request = self._request
        if request is None or not request.has_asked_for_slots or request.is_restarting:
            return None
        return self._give_up(NoResourceAvailableError(reason, job=self._job.name), now_ms)

    def timed_out(self, timer: RescaleTimedOut, now_ms: int) -> list[Command]:
        """The slots have not come in time."""
        request, run = self._request, self._life.execution
        if request is None or run is None or request.serial != timer.serial or request.is_restarting:
            return []
        request.waited_ms = request.waited_ms or self._job.settings.slot_request_timeout_ms
        longer_ms = self._life.patience_ms(request.waited_ms)
        if longer_ms:
            request.waited_ms += longer_ms
            return [StartTimer("rescale", longer_ms, timer)]
        return self._give_up(self._life.slots_missing(slots_needed(request.job_graph), request.waited_ms), now_ms)

    def _give_up(self, error: HeadraceError, now_ms: int) -> list[Command]:
        request, run = self._request, self._life.execution
        assert request is not None
        self._request = None
        self._record.note(now_ms, f"is not rescaled: {error}")
        commands: list[Command] = [CancelTimer("rescale")]
        if request.has_asked_for_slots and run is not None:
            commands.append(self._slots_wanted(run.num_slots_needed, run.let_go_of_unused()))
        return [*commands, *(Reply(ask_id, RequestFailed(error)) for ask_id in request.asks)]

    def _done(self, request: _Request, run: JobExecution, now_ms: int) -> list[Command]:
        self._request = None
        self._record.note(now_ms, f"runs rescaled: {_described(request.job_graph)}")
        given_back = self._slots_wanted(run.num_slots_needed, run.let_go_of_unused())
        return [CancelTimer("rescale"), given_back, *(Reply(ask_id, value=True) for ask_id in request.asks)]


def _described(job_graph: JobGraph) -> str:
    return ", ".join(f"{vertex.name} at {vertex.parallelism}" for vertex in job_graph.vertices.values())


def _same(one: JobGraph, other: JobGraph) -> bool:
    return all(vertex.parallelism == other.vertices[key].parallelism for key, vertex in one.vertices.items())
