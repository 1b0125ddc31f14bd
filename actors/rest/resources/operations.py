"""What changes a job: cancel, savepoint, stop, rescale.

What takes long is begun and followed by an id. How a savepoint stands the job's JobManager knows, whichever head is
asked; once its job has ended the view of the job does. A rescale and a checkpoint are one long question each, which
this head puts in a thread and remembers.

Source: Flink's ``JobCancellationHandler``, ``SavepointHandlers``, ``StopWithSavepointHandler``,
``AsynchronousOperationInfo``.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any

from headrace.engine.errors import HeadraceError, InternalError, JobError, SavepointError
from headrace.engine.protocol.messages import CancelJob, RescaleJob, StopJob, TakeCheckpoint
from headrace.engine.protocol.savepoint_messages import (
    FetchSavepointStatus,
    SavepointState,
    SavepointStatus,
    StopWithSavepoint,
    TriggerSavepoint,
)
from headrace.engine.protocol.views import StopMode
from headrace.state.credentials import masked
from headrace.state.files.filesystem import absolute_uri

from ...hosts.host_system import AskTimedOutError
from .routes import Answer, RestError, RestRequest

__all__ = ["TERMINATION_MODES", "Operations", "savepoint", "savepoint_status", "stop", "terminate"]

TERMINATION_MODES = ("cancel", "stop", "drain")
"""How a job can be ended; the last two in order."""

BEGIN_TIMEOUT_MS = 1_000
"""So long a request waits to hear that it was taken up; whether it is done is asked later."""

OPERATION_TIMEOUT_MS = 600_000

MOST_OPERATIONS = 64
"""Rescales and checkpoints that are under way at a time; each has a thread, as one may wait for slots for minutes."""

_LOG = logging.getLogger("headrace.rest")

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_STOP_MODES = {"stop": StopMode.SUSPEND, "drain": StopMode.DRAIN}

IN_PROGRESS, COMPLETED = {"id": "IN_PROGRESS"}, {"id": "COMPLETED"}


def _require_running(request: RestRequest, *, may_be_data_set: bool = False) -> str:
    job_id = request.path["jobid"]
    view = request.cluster.details(job_id).view
    if view.state.is_terminal:
        raise RestError(409, f"job {job_id} has ended {view.state}")
    if view.is_data_set and not may_be_data_set:
        raise RestError(
            409, f"job {job_id} is a data set, which its program runs: it can be canceled, and nothing else"
        )
    return job_id


def terminate(request: RestRequest) -> Answer:
    """Cancel a job, or end it in order with a last checkpoint, which is kept; it has ended a little later."""
    mode = request.query.get("mode", "cancel")
    job_id = _require_running(request, may_be_data_set=mode == "cancel")
    if mode != "cancel":
        request.cluster.tell(job_id, StopJob(_STOP_MODES[mode]))
        return Answer({}, 202)
    with contextlib.suppress(AskTimedOutError):  # it is answered when the job has ended
        request.cluster.tell(job_id, CancelJob(), BEGIN_TIMEOUT_MS)
    return Answer({}, 202)


def _directory(place: str | None) -> str | None:
    """A place for savepoints, as all machines see it."""
    if place is None:
        return None
    if "://" not in place and not place.startswith("/"):
        raise RestError(400, f"a directory must be an absolute path or a URI; got {masked(place)[:200]!r}")
    return absolute_uri(place)


def _trigger_id(request: RestRequest) -> str:
    given = request.body.get("triggerId")
    if given is None:
        return uuid.uuid4().hex
    if _ID.fullmatch(given) is None:
        raise RestError(400, "triggerId must be of letters, digits, '-' and '_', 64 at most")
    return str(given)


def savepoint(request: RestRequest) -> Answer:
    """Take a savepoint; with cancel-job the job ends with it, in order."""
    job_id = _require_running(request)
    directory, trigger = _directory(request.body.get("target-directory")), _trigger_id(request)
    if request.body.get("cancel-job"):
        return _ask_for(request, job_id, StopWithSavepoint(trigger, directory, drain=False, timeout_ms=0))
    return _ask_for(request, job_id, TriggerSavepoint(trigger, directory, 0))


def stop(request: RestRequest) -> Answer:
    """End a job in order, with a savepoint."""
    job_id = _require_running(request)
    directory, trigger = _directory(request.body.get("targetDirectory")), _trigger_id(request)
    drain = bool(request.body.get("drain"))
    return _ask_for(request, job_id, StopWithSavepoint(trigger, directory, drain, 0))


def _ask_for(request: RestRequest, job_id: str, message: TriggerSavepoint | StopWithSavepoint) -> Answer:
    status: SavepointStatus = request.cluster.tell(job_id, message)
    if status.error is not None:
        raise status.error
    return Answer({"request-id": message.request_id}, 202)


def savepoint_status(request: RestRequest) -> Any:
    """Return how a savepoint, or a stop with one, stands."""
    job_id, trigger = request.path["jobid"], request.path["triggerid"]
    try:
        status: SavepointStatus = request.cluster.ask(job_id, FetchSavepointStatus(trigger))
    except SavepointError as error:
        raise RestError(404, error.message) from error
    except JobError:
        view = request.cluster.details(job_id).view
        if view.savepoint_request != trigger:
            raise RestError(404, f"job {job_id} has ended {view.state}, and knows of no request {trigger!r}") from None
        return {"status": COMPLETED, "operation": {"location": view.savepoint_path}}
    if status.state is SavepointState.PENDING:
        return {"status": IN_PROGRESS}
    if status.error is not None:
        return {"status": COMPLETED, "operation": {"failure-cause": cause_of(status.error)}}
    return {"status": COMPLETED, "operation": {"location": status.path}}


def cause_of(error: BaseException) -> dict[str, str]:
    """Return an error as Flink writes one; the text is the message, no trace of ours."""
    return {"class": type(error).__name__, "stack-trace": masked(str(error))}


@dataclass(slots=True)
class _Operation:
    """A long question, and what is known of its answer."""

    kind: str
    job_id: str
    # None while it goes on; else when it ended (monotonic seconds).
    ended_s: float | None = None
    answer: Any = None
    error: BaseException | None = None


class Operations:
    """Rescales and checkpoints that this head has begun.

    Args:
        store_duration_ms: How long the end of one is remembered.
    """

    def __init__(self, store_duration_ms: int) -> None:
        self._store_s = store_duration_ms / 1_000
        self._operations: dict[str, _Operation] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Wait for none of them; the jobs do not need anybody to."""

    def rescale(self, request: RestRequest) -> Answer:
        """Run a job on at another parallelism, from a fresh checkpoint."""
        job_id = _require_running(request)
        parallelism, operators = request.query.get("parallelism"), request.body.get("operators") or {}
        if parallelism is None and not operators:
            raise RestError(400, "nothing to do: name a parallelism, or operators in the body")
        if parallelism is not None and parallelism < 1:
            raise RestError(400, "a parallelism must be 1 or more")
        for name, number in operators.items():
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise RestError(400, f"the parallelism of operator {name[:200]!r} must be a whole number, 1 or more")
        order = RescaleJob(parallelism, operators, OPERATION_TIMEOUT_MS)
        return self._begin(request, _Operation("rescale", job_id), order, uuid.uuid4().hex)

    def checkpoint(self, request: RestRequest) -> Answer:
        """Take a checkpoint now."""
        job_id, trigger = _require_running(request), _trigger_id(request)
        order = TakeCheckpoint(request.body.get("checkpointType") == "FULL", OPERATION_TIMEOUT_MS)
        return self._begin(request, _Operation("checkpoint", job_id), order, trigger)

    def _begin(
        self, request: RestRequest, operation: _Operation, order: RescaleJob | TakeCheckpoint, trigger: str
    ) -> Answer:
        """Ask in a thread; a request that was begun before by this id is the same one."""
        with self._lock:
            self._forget()
            known = self._operations.get(trigger, operation)
            if known is operation and self._num_under_way() >= MOST_OPERATIONS:
                raise RestError(503, f"{MOST_OPERATIONS} rescales and checkpoints are under way; ask again later")
            self._operations[trigger] = known
        if known is operation:
            arguments = (request, order, operation)
            threading.Thread(target=self._follow, args=arguments, name="headrace-operation", daemon=True).start()
        elif (known.kind, known.job_id) != (operation.kind, operation.job_id):
            raise RestError(409, f"{trigger!r} is the id of another request")
        return Answer({"request-id": trigger}, 202)

    def _num_under_way(self) -> int:
        return sum(one.ended_s is None for one in self._operations.values())

    def _follow(self, request: RestRequest, order: RescaleJob | TakeCheckpoint, operation: _Operation) -> None:
        try:
            operation.answer = request.cluster.tell(operation.job_id, order, order.timeout_ms)
        except HeadraceError as error:
            operation.error = error
        except Exception as error:  # what is not told as an error would be told as done
            _LOG.exception("%s of job %s has failed", operation.kind, operation.job_id)
            message = "it has failed unexpectedly; the log of the head says more"
            operation.error = InternalError(message, job=str(operation.job_id), kind=operation.kind)
            operation.error.__cause__ = error
        finally:
            operation.ended_s = time.monotonic()

    def rescale_status(self, request: RestRequest) -> Any:
        """Return how a rescale stands that this head has begun."""
        operation = self._find(request, "rescale")
        if operation.ended_s is None:
            return {"status": IN_PROGRESS}
        cause = {} if operation.error is None else {"failure-cause": cause_of(operation.error)}
        return {"status": COMPLETED, "operation": cause}

    def checkpoint_status(self, request: RestRequest) -> Any:
        """Return how a checkpoint stands that this head has been asked for."""
        operation = self._find(request, "checkpoint")
        if operation.ended_s is None:
            return {"status": IN_PROGRESS}
        if operation.error is not None:
            return {"status": COMPLETED, "operation": {"failureCause": cause_of(operation.error)}}
        found = {"checkpointId": operation.answer.checkpoint_id, "location": operation.answer.path}
        return {"status": COMPLETED, "operation": found}

    def _find(self, request: RestRequest, kind: str) -> _Operation:
        with self._lock:
            self._forget()
            operation = self._operations.get(request.path["triggerid"])
        if operation is None or (operation.kind, operation.job_id) != (kind, request.path["jobid"]):
            raise RestError(404, f"this head has begun no such {kind}, or does not remember it")
        return operation

    def _forget(self) -> None:
        until = time.monotonic() - self._store_s
        over = [key for key, one in self._operations.items() if one.ended_s is not None and one.ended_s < until]
        for key in over:
            del self._operations[key]
