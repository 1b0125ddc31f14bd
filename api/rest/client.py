"""Clients of a cluster's REST server: `RestClient` waits for answers, `AsyncRestClient` is awaited.

What is asked is said once, in `RestCalls`: each method is one request, or a procedure of several with pauses between
them (a generator), and the two clients differ only in how they carry these out. Answers are JSON with Flink's keys, as
``docs/guide/rest.md`` says. Neither client needs Ray.

Source: Flink's ``RestClusterClient``.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import ssl
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from headrace.state.errors import ClusterUnavailableError, ConfigurationError, RestRequestError, SavepointError
from headrace.state.files.rest_addresses import StoredAddress, read_addresses
from headrace.state.values.json_text import json_text

__all__ = ["AsyncRestClient", "RestCalls", "RestClient"]

_ENDED = ("FINISHED", "CANCELED", "FAILED")
_POLL_S = 0.2
_Self = TypeVar("_Self", bound="RestCalls")


@dataclass(frozen=True, slots=True)
class _Call:
    """One request."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    # A file that is sent as a form: its name and what is in it.
    file: tuple[str, bytes] | None = None


@dataclass(frozen=True, slots=True)
class _Pause:
    """Wait for so long."""

    seconds: float


_Procedure = Generator["_Call | _Pause", Any, Any]
"""Requests and pauses; is sent the answers, and returns the outcome."""


@dataclass(frozen=True)
class RestCalls(ABC):
    """What can be asked of a REST server. `RestClient` gives the answers, `AsyncRestClient` what is awaited for them.

    All of them raise

    * RestRequestError if the server refuses: ``context["status"]`` is that of HTTP;
    * ClusterUnavailableError if there is no server, or its cluster does not answer.

    Args:
        url: Of the server, as ``http://127.0.0.1:8081``.
        token: What it asks for.
        timeout: Seconds that one answer may take.
        certificate_file: In PEM: whom to believe, of a server with TLS; None for whom this machine believes.
    """

    url: str
    token: str = field(repr=False)
    timeout: float = 30.0
    certificate_file: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
            message = f"the URL of a REST server must be a scheme, a host and a port; got {self.url!r}"
            raise ConfigurationError(message, hint="as http://127.0.0.1:8081")

    @classmethod
    def find(cls: type[_Self], cluster: str | None = None, *, read_only: bool = False) -> _Self:
        """Make a client of a cluster of this user whose head is on this machine.

        Args:
            cluster: Its name; None if there is one only.
            read_only: Whether to use the token that allows looking only.

        Raises:
            ClusterUnavailableError: If there is none, or there are several: of several names and none was given, or of
                one name, as local ones of several processes.
        """
        servers = [one for one in read_addresses() if cluster in (None, one.cluster)]
        names = sorted({one.cluster for one in servers})
        if len(names) != 1:
            if names:
                message = f"this machine has REST servers of several clusters: {', '.join(names)}"
                raise ClusterUnavailableError(message, hint="say which cluster is meant")
            which = "a cluster" if cluster is None else f"cluster {cluster!r}"
            message = f"no REST server of {which} of this user is on this machine"
            raise ClusterUnavailableError(message, hint="'headrace cluster start' starts a cluster that serves REST")
        if len({one.head for one in servers}) < len(servers):  # the heads of one cluster have a name each
            where = ", ".join(f"{one.url} of process {one.pid}" for one in servers)
            message = f"no REST server of cluster {names[0]!r} can be chosen on this machine: there are {where}"
            raise ClusterUnavailableError(message, hint="make a client of the address that is meant")
        return cls.at(servers[0], read_only=read_only)

    @classmethod
    def at(cls: type[_Self], address: StoredAddress, *, read_only: bool = False) -> _Self:
        """Make a client of a server as it has written itself down."""
        return cls(address.url, address.read_token if read_only else address.token)

    @abstractmethod
    def _run(self, procedure: _Procedure) -> Any:
        """Carry a procedure out."""

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._run(_once(_Call(method, path, body)))

    # -------------------------------------------------------------------------------------------------------- looking
    def get(self, path: str, **query: Any) -> Any:
        """Ask any path.

        Args:
            path: As ``/jobs/overview``; ids in it must be quoted.
            **query: What stands behind the question mark; of a list the parts are joined by commas.
        """
        return self._ask("GET", path + _query(query))

    def overview(self) -> Any:
        """Return slots and jobs of the cluster, counted."""
        return self.get("/overview")

    def jobs(self) -> Any:
        """Return all jobs, with what their tasks do: a list."""
        return self._run(_part(_Call("GET", "/jobs/overview"), "jobs"))

    def job(self, job_id: str) -> Any:
        """Return one job, with its vertices and its plan."""
        return self.get(_path("jobs", job_id))

    def job_status(self, job_id: str) -> Any:
        """Return the state of a job: a text."""
        return self._run(_part(_Call("GET", _path("jobs", job_id, "status")), "status"))

    def plan(self, job_id: str) -> Any:
        """Return the graph of a job."""
        return self._run(_part(_Call("GET", _path("jobs", job_id, "plan")), "plan"))

    def exceptions(self, job_id: str, max_exceptions: int = 20) -> Any:
        """Return why a job was restarted or has failed, newest first: a list."""
        path = _path("jobs", job_id, "exceptions") + _query({"maxExceptions": max_exceptions})
        return self._run(_part(_Call("GET", path), "exceptionHistory", "entries"))

    def checkpoints(self, job_id: str) -> Any:
        """Counts, a summary and the newest checkpoints of a job."""
        return self.get(_path("jobs", job_id, "checkpoints"))

    def checkpoint(self, job_id: str, checkpoint_id: int, vertex_id: str | None = None) -> Any:
        """Return one checkpoint, vertex by vertex; or one vertex of it, subtask by subtask."""
        inner = () if vertex_id is None else ("subtasks", vertex_id)
        return self.get(_path("jobs", job_id, "checkpoints", "details", checkpoint_id, *inner))

    def vertex(self, job_id: str, vertex_id: str) -> Any:
        """Return a vertex with its subtasks."""
        return self.get(_path("jobs", job_id, "vertices", vertex_id))

    def backpressure(self, job_id: str, vertex_id: str) -> Any:
        """Return how busy, idle and held up each subtask of a vertex is."""
        return self.get(_path("jobs", job_id, "vertices", vertex_id, "backpressure"))

    def watermarks(self, job_id: str, vertex_id: str) -> Any:
        """Return the watermark that each subtask has given on last: a list."""
        return self.get(_path("jobs", job_id, "vertices", vertex_id, "watermarks"))

    def metrics(self, job_id: str, vertex_id: str | None = None, names: Sequence[str] | None = None) -> Any:
        """Return metrics of a job, or of a vertex, where each id has the number of its subtask before it: a dict.

        Args:
            job_id: The job.
            vertex_id: The vertex; None for those of the job as such.
            names: Ids; None for all.
        """
        return self._run(
            _metrics(_path("jobs", job_id, *(() if vertex_id is None else ("vertices", vertex_id))), names)
        )

    def log(
        self, job_id: str, operator: str | None = None, subtask: int | None = None, after: str | None = None
    ) -> Any:
        """Return what a job has logged: ``lines``, each with its ``file``, in the order of their times, and ``after``.

        Args:
            job_id: The job.
            operator: Only lines of one operator: a part of its name.
            subtask: Only lines of this subtask.
            after: Of an earlier answer: only what has come since.
        """
        wanted = {"operator": operator, "subtask": subtask, "after": after}
        query = {name: value for name, value in wanted.items() if value is not None}
        return self.get(_path("jobs", job_id, "logs"), **query)

    def flame_graph(self, job_id: str, vertex_id: str, kind: str = "FULL", subtask: int | None = None) -> Any:
        """Return the calls that the subtasks of a vertex were found in: ``data`` is None while they are being looked
        at.

        Args:
            job_id: The job.
            vertex_id: The vertex.
            kind: ``FULL``, or only what was found ``ON_CPU`` or ``OFF_CPU``.
            subtask: Of this one; None for all.
        """
        query = {"type": kind, **({} if subtask is None else {"subtaskindex": subtask})}
        return self.get(_path("jobs", job_id, "vertices", vertex_id, "flamegraph"), **query)

    def states(self, job_id: str, operator: str, consistency: str = "live") -> Any:
        """Return which states of an operator may be asked for, and of what type their keys are: a list.

        Args:
            job_id: The job.
            operator: Its uid or name.
            consistency: ``live``, or ``checkpoint`` for those of the newest complete checkpoint.
        """
        path = _path("jobs", job_id, "operators", operator, "states") + _query({"consistency": consistency})
        return self._run(_part(_Call("GET", path), "states"))

    def state(
        self,
        job_id: str,
        operator: str,
        state: str,
        key: Any,
        *,
        consistency: str = "live",
        window: tuple[int, int] | None = None,
        mask: Sequence[str] = (),
    ) -> Any:
        """Return what a queryable state holds for a key: ``found``, and ``values``, each a text in JSON.

        Args:
            job_id: The job.
            operator: Its uid or name.
            state: The name that the state is queryable under, or its own.
            key: The key.
            consistency: ``live``, or ``checkpoint`` for what the newest complete checkpoint holds.
            window: Of windowed state: only this window (start and end, epoch milliseconds).
            mask: Names of fields whose values are hidden; ``*`` hides all.
        """
        query: dict[str, Any] = {"key": json_text(key), "consistency": consistency}
        if window is not None:
            query["window"] = window
        if mask:
            query["mask"] = list(mask)
        return self.get(_path("jobs", job_id, "operators", operator, "states", state), **query)

    def task_managers(self) -> Any:
        """Return all TaskManagers: a list."""
        return self._run(_part(_Call("GET", "/taskmanagers"), "taskmanagers"))

    # ------------------------------------------------------------------------------------------------------- changing
    def cancel(self, job_id: str) -> Any:
        """Cancel a job; gives its state, once it has ended."""
        return self._run(self._ended(_Call("PATCH", _path("jobs", job_id) + _query({"mode": "cancel"})), job_id))

    def stop(self, job_id: str, *, drain: bool = False) -> Any:
        """End a job in order with a last checkpoint, which is kept; gives its state, once it has ended.

        Args:
            job_id: The job.
            drain: Whether windows and timers fire first, as if all input had ended.
        """
        mode = {"mode": "drain" if drain else "stop"}
        return self._run(self._ended(_Call("PATCH", _path("jobs", job_id) + _query(mode)), job_id))

    def wait(self, job_id: str) -> Any:
        """Wait until a job has ended; gives its state."""
        return self._run(self._ended(None, job_id))

    def trigger_checkpoint(self, job_id: str, *, full: bool = False) -> Any:
        """Take a checkpoint now; gives its ``checkpointId`` and ``location``, once it is complete.

        Args:
            job_id: The job.
            full: Whether it holds all state itself, instead of naming files of checkpoints before it again.

        Raises:
            RestRequestError: Also if it came to nothing; the job goes on.
        """
        body = {"checkpointType": "FULL" if full else "CONFIGURED"}
        path = _path("jobs", job_id, "checkpoints")
        return self._run(self._checkpointed(_Call("POST", path, body), path))

    def savepoint(self, job_id: str, directory: str | None = None) -> Any:
        """Take a savepoint; gives its place, once it is there.

        Args:
            job_id: The job.
            directory: Below which it is made: an absolute path or a URI; None takes the job's default.

        Raises:
            SavepointError: If it was not taken.
        """
        body = {} if directory is None else {"target-directory": directory}
        return self._run(self._saved(_Call("POST", _path("jobs", job_id, "savepoints"), body), job_id))

    def stop_with_savepoint(self, job_id: str, directory: str | None = None, *, drain: bool = False) -> Any:
        """End a job in order with a savepoint; gives its place, once the job has ended.

        Args:
            job_id: The job.
            directory: As of `savepoint`.
            drain: As of `stop`.

        Raises:
            SavepointError: If it was not stopped.
        """
        body = {"drain": drain, **({} if directory is None else {"targetDirectory": directory})}
        return self._run(self._saved(_Call("POST", _path("jobs", job_id, "stop"), body), job_id))

    def rescale(self, job_id: str, parallelism: int | None = None, operators: Mapping[str, int] | None = None) -> Any:
        """Run a job on at another parallelism; gives None, once all its tasks run with it.

        Args:
            job_id: The job.
            parallelism: Of all operators that can be parallel.
            operators: Of single ones, by uid or name.

        Raises:
            RestRequestError: Also if it came to nothing; the job goes on as it was.
        """
        query = {} if parallelism is None else {"parallelism": parallelism}
        path = _path("jobs", job_id, "rescaling")
        return self._run(
            self._rescaled(_Call("PATCH", path + _query(query), {"operators": dict(operators or {})}), path)
        )

    def rescales(self, job_id: str) -> Any:
        """Return how a job came to its parallelism, newest first: ``autoscaler`` and ``rescales``."""
        return self.get(_path("jobs", job_id, "rescales", "history"))

    # ------------------------------------------------------------------------------------------------------- programs
    def programs(self) -> Any:
        """Return the programs that were uploaded, newest first: a list."""
        return self._run(_part(_Call("GET", "/jars"), "files"))

    def upload(self, program: str | os.PathLike[str]) -> Any:
        """Upload a program, a Python file or a zip of a project; gives its id.

        Args:
            program: Its path.
        """
        path = Path(program)
        return self._run(_part(_Call("POST", "/jars/upload", file=(path.name, path.read_bytes())), "filename"))

    def delete_program(self, program_id: str) -> Any:
        """Delete a program that was uploaded; the jobs that it has submitted go on."""
        return self._ask("DELETE", _path("jars", program_id))

    def run_program(
        self,
        program_id: str,
        arguments: Sequence[str] = (),
        *,
        entry: str | None = None,
        parallelism: int | None = None,
        from_savepoint: str | None = None,
        allow_non_restored_state: bool = False,
        restore_mode: str = "no_claim",
    ) -> Any:
        """Run a program's main() beside the head; gives the ids of the jobs that it has submitted, once it has ended.

        Args:
            program_id: As of `upload`.
            arguments: Its arguments.
            entry: The file of a zip that is run; None for ``main.py``, ``__main__.py``, ``job.py`` or the only one.
            parallelism: Its default parallelism.
            from_savepoint: A savepoint or checkpoint to start from: an absolute path or a URI.
            allow_non_restored_state: Whether state that has no place in the program may be lost.
            restore_mode: ``no_claim`` or ``claim``.

        Raises:
            RestRequestError: Also if it fails, or submits no job; the message has what it has printed.
        """
        body: dict[str, Any] = {"programArgsList": list(arguments)}
        if entry is not None:
            body["entryClass"] = entry
        if parallelism is not None:
            body["parallelism"] = parallelism
        if from_savepoint is not None:
            body |= {"savepointPath": from_savepoint, "claimMode": restore_mode.upper()}
            body["allowNonRestoredState"] = allow_non_restored_state
        call = _Call("POST", _path("jars", program_id, "run"), body)
        return self._run(self._submitted(call, _path("jars", program_id, "runs")))

    # ----------------------------------------------------------------------------------------------------- procedures
    def _submitted(self, begin: _Call, path: str) -> _Procedure:
        operation = yield from _followed(begin, path)
        if "failure-cause" in operation:
            raise RestRequestError(operation["failure-cause"]["stack-trace"], status=409)
        return operation["jobids"]

    def _ended(self, begin: _Call | None, job_id: str) -> _Procedure:
        if begin is not None:
            yield begin
        while True:
            status = (yield _Call("GET", _path("jobs", job_id, "status")))["status"]
            if status in _ENDED:
                return status
            yield _Pause(_POLL_S)

    def _checkpointed(self, begin: _Call, path: str) -> _Procedure:
        operation = yield from _followed(begin, path)
        if "failureCause" in operation:
            raise RestRequestError(operation["failureCause"]["stack-trace"], status=409)
        return operation

    def _saved(self, begin: _Call, job_id: str) -> _Procedure:
        operation = yield from _followed(begin, _path("jobs", job_id, "savepoints"))
        if "failure-cause" in operation:
            raise SavepointError(operation["failure-cause"]["stack-trace"], job=job_id)
        return operation["location"]

    def _rescaled(self, begin: _Call, path: str) -> _Procedure:
        operation = yield from _followed(begin, path)
        if "failure-cause" in operation:
            raise RestRequestError(operation["failure-cause"]["stack-trace"], status=409)


def _followed(begin: _Call, path: str) -> _Procedure:
    """Begin what takes its time, and ask until it is over."""
    trigger = (yield begin)["request-id"]
    while True:
        found = yield _Call("GET", f"{path}/{quote(trigger, safe='')}")
        if found["status"]["id"] == "COMPLETED":
            return found["operation"]
        yield _Pause(_POLL_S)


def _once(call: _Call) -> _Procedure:
    return (yield call)


def _part(call: _Call, *keys: str) -> _Procedure:
    found = yield call
    for key in keys:
        found = found[key]
    return found


def _metrics(path: str, names: Sequence[str] | None) -> _Procedure:
    if names is None:
        names = [one["id"] for one in (yield _Call("GET", f"{path}/metrics"))]
    found = (yield _Call("GET", f"{path}/metrics" + _query({"get": names}))) if names else []
    return {one["id"]: float(one["value"]) for one in found}


def _path(*parts: object) -> str:
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


def _query(values: Mapping[str, Any]) -> str:
    texts = {
        name: ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        for name, value in values.items()
    }
    return f"?{urlencode(texts)}" if texts else ""


def _answer_to(client: RestCalls, call: _Call) -> Any:
    """Send one request and read its answer; blocks."""
    where = urlsplit(client.url)
    connection: http.client.HTTPConnection
    if where.scheme == "https":
        context = ssl.create_default_context(cafile=client.certificate_file)
        connection = http.client.HTTPSConnection(where.netloc, timeout=client.timeout, context=context)
    else:
        connection = http.client.HTTPConnection(where.netloc, timeout=client.timeout)
    body: str | bytes | None = None if call.body is None else json.dumps(call.body)
    headers = {"Authorization": f"Bearer {client.token}", "Content-Type": "application/json"}
    if call.file is not None:
        mark = uuid.uuid4().hex
        name, content = call.file
        part = f'--{mark}\r\nContent-Disposition: form-data; name="jarfile"; filename="{name}"\r\n\r\n'
        body = part.encode() + content + f"\r\n--{mark}--\r\n".encode()
        headers["Content-Type"] = f"multipart/form-data; boundary={mark}"
    try:
        with contextlib.closing(connection):
            connection.request(call.method, call.path, body, headers)
            response = connection.getresponse()
            content = response.read()
    except (OSError, http.client.HTTPException) as error:
        message = f"the REST server at {client.url} does not answer: {error}"
        raise ClusterUnavailableError(message) from error
    if response.status < 400:
        is_json = response.headers.get_content_type() == "application/json"
        return json.loads(content) if is_json else content.decode()
    raise _refusal(response.status, content)


def _refusal(status: int, content: bytes) -> RestRequestError | ClusterUnavailableError:
    try:
        text = "; ".join(map(str, json.loads(content)["errors"]))
    except (ValueError, TypeError, KeyError):
        text = content.decode("utf-8", "replace")[:500]
    if status == 503:
        return ClusterUnavailableError(text or "the cluster does not answer")
    return RestRequestError(text or "the server says nothing more", status=status)


class RestClient(RestCalls):
    """Asks a REST server, and waits for its answers. May be used from several threads."""

    def _run(self, procedure: _Procedure) -> Any:
        step = _Steps(procedure)
        for wish in step:
            if isinstance(wish, _Pause):
                time.sleep(wish.seconds)
            else:
                step.answer = _answer_to(self, wish)
        return step.outcome


class AsyncRestClient(RestCalls):
    """Asks a REST server; all its methods are awaited. Each request takes a thread while it is under way."""

    async def _run(self, procedure: _Procedure) -> Any:
        step = _Steps(procedure)
        for wish in step:
            if isinstance(wish, _Pause):
                await asyncio.sleep(wish.seconds)
            else:
                step.answer = await asyncio.to_thread(_answer_to, self, wish)
        return step.outcome


class _Steps:
    """The wishes of a procedure, one by one: it is sent the ``answer`` to the last one, and has an ``outcome``."""

    def __init__(self, procedure: _Procedure) -> None:
        self._procedure = procedure
        self.answer: Any = None
        self.outcome: Any = None

    def __iter__(self) -> Iterator[_Call | _Pause]:
        try:
            while True:
                answer, self.answer = self.answer, None
                yield self._procedure.send(answer)
        except StopIteration as end:
            self.outcome = end.value
