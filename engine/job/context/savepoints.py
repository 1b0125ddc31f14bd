"""Savepoints as a JobManager sees them: who has asked for one, how it stands, and the stop that comes with one.

A request is taken once, by its id, while the job runs; its folder is begun, the CheckpointCoordinator told, and
all who ask for it are answered when it is decided. A savepoint that fails is an answer and nothing else: the job
goes on.

A stop with a savepoint goes

    asked -> folder begun -> sources stopped -> savepoint -> last checkpoint, committed -> FINISHED

The savepoint comes *before* the last checkpoint and holds the same state, for nothing is processed between the two: its
barriers suspend the tasks, or all of them have ended (``drain``). So a savepoint never commits anything and is never
restored by the job itself; sinks commit with the last checkpoint, which the job restores if it dies before all have.
A job without checkpoints commits when its tasks finish.

What may cross a stop with a savepoint is decided so, as in Flink: until the last checkpoint is complete, whatever fails
gives the stop up, and the job goes on from its newest checkpoint; no other checkpoint is taken meanwhile, so none holds
windows that were drained. Once it is complete the job is stopped, whatever process dies: it names the savepoint, and
the one that restores it lets its tasks commit what it holds, which they do before they are ready, and ends the job
without running them. So nothing ever happens behind the savepoint that it does not hold.

A later leader knows nothing of a request unless it restores such a checkpoint; it says so when it is asked for it.

Source: Flink's ``StopWithSavepoint``, ``StopWithSavepointTerminationHandlerImpl``; FLIP-34, FLIP-203.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from headrace.state.checkpoints.savepoints import savepoint_folder

from ...checkpoint.io import STOPPED_WITH_SAVEPOINT, RestorePoint, begin_savepoint, discard_savepoint
from ...errors import ConfigurationError, HeadraceError, SavepointError
from ...kernel.machine import Address, CancelTimer, Command, Offload, OffloadCompleted, Reply, Send, StartTimer
from ...protocol.checkpoint_messages import CheckpointEnded, CheckpointRequested, CheckpointWanted, SavepointTarget
from ...protocol.messages import RequestFailed, SubmitJob
from ...protocol.savepoint_messages import SavepointState, SavepointStatus, StopWithSavepoint, TriggerSavepoint
from ...protocol.states import JobStatus
from ...protocol.views import StopMode
from .record import JobRecord
from .stop import JobStop

__all__ = ["JobSavepoints", "SavepointBegun", "SavepointPollOver"]

NUM_REMEMBERED = 100
"""Decided requests that are remembered, for clients that ask again."""

Request = TriggerSavepoint | StopWithSavepoint


@dataclass(frozen=True, slots=True)
class SavepointPollOver:
    """Timer: a question is answered although nothing is decided."""

    request_id: str
    ask_id: str


@dataclass(frozen=True, slots=True)
class SavepointBegun:
    """Effect: the folder of a savepoint is made."""

    request_id: str


@dataclass(frozen=True, slots=True)
class SavepointDiscarded:
    """Effect: what there is of a savepoint is removed; what stays is none."""

    request_id: str


@dataclass(slots=True)
class _Savepoint:
    """One request."""

    request_id: str
    # The folder.
    root: str
    # How the job is to be stopped with it; None if it is to go on.
    stop: StopMode | None
    # Leader and deployment that have taken it.
    epoch: int
    deployment: int
    # Its folder is there; the coordinator has been told; it is complete, at this path.
    has_begun: bool = False
    is_wanted: bool = False
    path: str | None = None
    # The answer, once it is decided.
    answer: SavepointStatus | None = None
    # Questions that wait for it.
    ask_ids: list[str] = field(default_factory=list)


class JobSavepoints:
    """The savepoints of one job under one leader.

    Args:
        job: The job.
        record: What is known of it.
        stop: Its wish to stop.
        coordinator: Who takes savepoints.
    """

    def __init__(self, job: SubmitJob, record: JobRecord, stop: JobStop, coordinator: Address) -> None:
        self._job = job
        self._record = record
        self._stop = stop
        self._coordinator = coordinator
        # Requests by id, oldest first; and the one that stops the job, from its being taken to its end.
        self._requests: dict[str, _Savepoint] = {}
        self._stopping: _Savepoint | None = None
        # Whether a restore point has been chosen: from then on it is known which requests an earlier leader has left.
        # Questions after those wait until then.
        self._knows_past = False
        self._early: dict[str, Request] = {}
        # The checkpoint that is restored is the last one of a stop with a savepoint: only commits are left.
        self._is_stopped = False

    # --------------------------------------------------------------------------------------------------------- requests
    def asked(self, ask_id: str, request: Request, epoch: int, deployment: int, refusal: str | None) -> list[Command]:
        """Take a client's request for a savepoint, the first time or again.

        Args:
            ask_id: The question.
            request: What is asked.
            epoch: The leader's.
            deployment: The present one.
            refusal: Why a new savepoint cannot be taken now; None if it can.
        """
        known = self._requests.get(request.request_id)
        if known is not None:
            return self._answer_or_wait(known, ask_id, request)
        if request.epoch is not None and request.epoch != epoch:
            if not self._knows_past:
                self._early[ask_id] = request
                return [_poll_timer(ask_id, request)]
            message = "the JobManager that was taking the savepoint was lost"
            return [Reply(ask_id, self._failure(epoch, message))]
        error = self._refusal(request, refusal)
        if error is not None:
            return [Reply(ask_id, RequestFailed(error))]
        directory = request.directory or self._job.settings.savepoint_directory
        assert directory is not None
        root = savepoint_folder(directory, self._job.job_id, f"{request.request_id}/{epoch}/{deployment}")
        stop = None
        if isinstance(request, StopWithSavepoint):
            stop = StopMode.DRAIN if request.drain else StopMode.SUSPEND
        savepoint = _Savepoint(request.request_id, root, stop, epoch, deployment)
        self._remember(savepoint)
        work = functools.partial(begin_savepoint, root, epoch)
        begin = Offload("begin_savepoint", SavepointBegun(request.request_id), work)
        return [begin, *self._answer_or_wait(savepoint, ask_id, request)]

    def _refusal(self, request: Request, refusal: str | None) -> HeadraceError | None:
        job = self._job.name
        if self._job.settings.is_batch:
            message = "a batch job has no state that a savepoint could hold"
            return ConfigurationError(message, hint="run the program in STREAMING mode", job=job)
        if refusal is not None:
            message = f"a savepoint cannot be taken now: {refusal}"
            return SavepointError(message, job=job)
        if self._stop.mode is not None or self._stopping is not None:
            message = "a savepoint cannot be taken now: the job is being stopped"
            return SavepointError(message, job=job)
        if not request.directory and not self._job.settings.savepoint_directory:
            message = "no directory was named for the savepoint, and the job has no default"
            hint = "name one, or call set_default_savepoint_directory before the job is started"
            return ConfigurationError(message, hint=hint, job=job)
        return None

    def _remember(self, savepoint: _Savepoint) -> None:
        self._requests[savepoint.request_id] = savepoint
        if savepoint.stop is not None:
            self._stopping = savepoint
        decided = [request_id for request_id, known in self._requests.items() if known.answer is not None]
        for request_id in decided[: max(len(decided) - NUM_REMEMBERED, 0)]:
            del self._requests[request_id]

    def _answer_or_wait(self, savepoint: _Savepoint, ask_id: str, request: Request) -> list[Command]:
        if savepoint.answer is not None:
            return [Reply(ask_id, savepoint.answer)]
        savepoint.ask_ids.append(ask_id)
        return [_poll_timer(ask_id, request)]

    def poll_over(self, timer: SavepointPollOver) -> list[Command]:
        """Answer a client who has waited for long enough."""
        early = self._early.pop(timer.ask_id, None)
        if early is not None and early.epoch is not None:
            return [Reply(timer.ask_id, SavepointStatus(early.epoch, SavepointState.PENDING))]
        savepoint = self._requests.get(timer.request_id)
        if savepoint is None or timer.ask_id not in savepoint.ask_ids:
            return []
        savepoint.ask_ids.remove(timer.ask_id)
        return [Reply(timer.ask_id, SavepointStatus(savepoint.epoch, SavepointState.PENDING))]

    def status_of(self, request_id: str, epoch: int) -> SavepointStatus | None:
        """Return how a request stands; None if this leader knows of none with that id."""
        savepoint = self._requests.get(request_id)
        if savepoint is None:
            return None
        return savepoint.answer or SavepointStatus(epoch, SavepointState.PENDING)

    def _decide(self, savepoint: _Savepoint, answer: SavepointStatus) -> list[Command]:
        if savepoint.answer is not None:
            return []
        savepoint.answer = answer
        if savepoint is self._stopping:
            self._stopping = None
            self._stop.give_up_savepoint()
        ask_ids, savepoint.ask_ids = savepoint.ask_ids, []
        return [c for ask_id in ask_ids for c in (CancelTimer(_poll_key(ask_id)), Reply(ask_id, answer))]

    def _failure(self, epoch: int, reason: str, path: str | None = None) -> SavepointStatus:
        context = {"job": self._job.name} if path is None else {"job": self._job.name, "path": path}
        return SavepointStatus(epoch, SavepointState.FAILED, None, SavepointError(reason, **context))

    def _answer_failed(self, savepoint: _Savepoint, reason: str, now_ms: int) -> list[Command]:
        self._record.note(now_ms, f"no savepoint: {reason}")
        return self._decide(savepoint, self._failure(savepoint.epoch, reason))

    # ----------------------------------------------------------------------------------------------------- their course
    def begun(self, event: OffloadCompleted, deployment: int, *, is_running: bool, now_ms: int) -> list[Command]:
        """Go on once the folder has been made, or could not be; nothing has been asked of the tasks so far.

        Args:
            event: The end of that work.
            deployment: The present one.
            is_running: Whether a savepoint may be taken.
            now_ms: The time.
        """
        savepoint = self._requests.get(event.token.request_id)
        if savepoint is None or savepoint.answer is not None:
            return []
        if event.error is not None:
            reason = f"nothing can be written to its directory: {event.error}"
            return self._answer_failed(savepoint, reason, now_ms)
        if not is_running or savepoint.deployment != deployment:
            return [
                *self._answer_failed(savepoint, "the job ended or was restarted meanwhile", now_ms),
                _discard(savepoint),
            ]
        savepoint.has_begun = True
        if savepoint.stop is None:
            return [self._want(savepoint)]
        self._stop.want_savepoint(savepoint.stop)
        self._record.note(now_ms, f"stops by request, with a savepoint: {savepoint.stop.value}")
        return []

    def _want(self, savepoint: _Savepoint) -> Send:
        savepoint.is_wanted = True
        target = SavepointTarget(savepoint.request_id, savepoint.root)
        return Send(self._coordinator, CheckpointWanted(savepoint.epoch, savepoint.deployment, savepoint=target))

    @property
    def stop_mode(self) -> StopMode | None:
        """How sources are to be stopped for a savepoint; None if they are not."""
        return self._stop.savepoint_mode

    def before_the_end(self) -> list[Command] | None:
        """Take the savepoint first, as the job has come to where it is to be stopped.

        Returns:
            What is to be done for it; None if there is no savepoint to take, or it is there.
        """
        savepoint = self._stopping
        if savepoint is None or not savepoint.has_begun or savepoint.path is not None:
            return None
        return [] if savepoint.is_wanted else [self._want(savepoint)]

    def refuses(self, request: CheckpointRequested) -> bool:
        """Return whether a checkpoint is not to be taken: while a stop with a savepoint is under way only those two
        are.
        """
        savepoint = self._stopping
        if savepoint is None or not savepoint.has_begun or savepoint.path is not None:
            return False
        return request.savepoint != savepoint.root

    def suspends(self, request: CheckpointRequested) -> bool:
        """Return whether tasks process nothing more behind the barriers of a savepoint."""
        savepoint = self._stopping
        is_last = savepoint is not None and request.savepoint == savepoint.root
        return is_last and self._stop.suspends

    def marks(self, request: CheckpointRequested) -> dict[str, list[str]]:
        """Return what a checkpoint must hold: the last one of a stop names the savepoint."""
        savepoint = self._stopping
        if savepoint is None or savepoint.path is None or request.savepoint is not None:
            return {}
        return {STOPPED_WITH_SAVEPOINT: [savepoint.request_id, savepoint.path]}

    def completed(self, message: CheckpointEnded, now_ms: int) -> list[Command]:
        """Tell that a savepoint is there; that of a stop is told only once the job has ended."""
        savepoint = self._requests.get(message.request_id or "")
        self._record.note(now_ms, f"savepoint {message.checkpoint_id}: {message.path}")
        if savepoint is None or savepoint.answer is not None:
            return []
        savepoint.path = message.path
        if savepoint.stop is not None:
            return []
        return self._decide(savepoint, SavepointStatus(savepoint.epoch, SavepointState.COMPLETE, message.path))

    def failed(self, message: CheckpointEnded, now_ms: int) -> tuple[list[Command], SavepointError | None]:
        """Give the savepoint up: there will be none.

        Returns:
            The answers; and, if the job's sources were stopped for it, why the job must be restarted to go on.
        """
        savepoint = self._requests.get(message.request_id or "")
        if savepoint is None or savepoint.answer is not None:
            return [], None
        was_stop = savepoint is self._stopping
        commands = self._answer_failed(savepoint, message.reason, now_ms)
        if not was_stop:
            return commands, None
        text = f"the stop with a savepoint was given up: {message.reason}"
        return commands, SavepointError(text, job=self._job.name)

    # -------------------------------------------------------------------------------------------------- across restarts
    def restored(self, point: RestorePoint | None, epoch: int, now_ms: int) -> list[Command]:
        """Note what the job goes on from: a stop was completed there, or is given up."""
        stopped_with = None if point is None else point.stopped_with
        commands: list[Command] = []
        self._is_stopped = stopped_with is not None
        if stopped_with is not None:
            request_id, path = stopped_with
            savepoint = self._requests.get(request_id)
            if savepoint is None or savepoint is not self._stopping:
                savepoint = _Savepoint(request_id, path, StopMode.SUSPEND, epoch, -1)
                self._remember(savepoint)
            savepoint.path = path
        elif self._stopping is not None:
            savepoint = self._stopping
            reason = "the job failed while it was being stopped, and goes on"
            commands += self._answer_failed(savepoint, reason, now_ms)
            if savepoint.path is not None:
                commands.append(_discard(savepoint))
        self._knows_past = True
        early, self._early = self._early, {}
        for ask_id, request in early.items():
            commands.append(CancelTimer(_poll_key(ask_id)))
            commands += self.asked(ask_id, request, epoch, -1, "the job is not running")
        return commands

    @property
    def is_stopped(self) -> bool:
        """Whether the checkpoint that is restored is the last one of a stop: its tasks are not to be run."""
        return self._is_stopped

    def ended(self, status: JobStatus, epoch: int, now_ms: int) -> list[Command]:
        """Answer all who wait, as the job has ended."""
        self._knows_past = True
        commands: list[Command] = []
        for savepoint in list(self._requests.values()):
            if savepoint.answer is not None:
                continue
            if savepoint.path is not None and status is JobStatus.FINISHED:
                self._record.savepoint_path, self._record.savepoint_request = savepoint.path, savepoint.request_id
                complete = SavepointStatus(epoch, SavepointState.COMPLETE, savepoint.path)
                commands += self._decide(savepoint, complete)
            elif savepoint.path is not None:
                text = f"the savepoint is complete, but the job has ended {status.value} before it had committed all"
                commands += self._decide(savepoint, self._failure(epoch, text, savepoint.path))
            else:
                commands += self._answer_failed(savepoint, f"the job has ended {status.value}", now_ms)
        early, self._early = self._early, {}
        for ask_id in early:
            failure = self._failure(epoch, f"the job has ended {status.value}")
            commands += [CancelTimer(_poll_key(ask_id)), Reply(ask_id, failure)]
        return commands


def _discard(savepoint: _Savepoint) -> Offload:
    work = functools.partial(discard_savepoint, savepoint.root)
    return Offload("discard_savepoint", SavepointDiscarded(savepoint.request_id), work)


def _poll_key(ask_id: str) -> str:
    return f"savepoint-{ask_id}"


def _poll_timer(ask_id: str, request: Request) -> StartTimer:
    return StartTimer(_poll_key(ask_id), request.timeout_ms, SavepointPollOver(request.request_id, ask_id))
