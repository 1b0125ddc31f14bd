"""Logs of TaskManagers, of the head, and of a job.

A TaskManager shows its own and those of its slots, the processes that have ended included; the head those of its
machine, which has the JobManagers, too. Files are asked for by names that are listed; nothing here knows paths.

Source: Flink's ``TaskManagerLogListHandler``, ``TaskManagerCustomLogHandler``, ``JobManagerLogListHandler``,
``JobManagerCustomLogHandler``, ``TaskManagerLogFileHandler``.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

from headrace.engine.errors import ClusterUnavailableError
from headrace.engine.kernel.machine import Address
from headrace.engine.protocol.observation_messages import OBSERVER_ACTOR, ListLogs, LogChunk, LogFile, ReadLog

from ...hosts.log_files import host_logs
from .questions import AsksCluster
from .routes import Answer, RestError, RestRequest

__all__ = [
    "job_log",
    "job_manager_log",
    "job_manager_log_file",
    "job_manager_logs",
    "task_manager_log",
    "task_manager_log_file",
    "task_manager_logs",
]

MAX_BYTES = 1 << 20
"""Of a file in one answer: its end."""

MAX_JOB_BYTES = 256 << 10
"""Of each file that a job's log is made of, in one answer."""

MAX_CURSOR_CHARACTERS = 100_000

_TEXT = "text/plain; charset=utf-8"
_TIME = re.compile(r"\btime=(\S+)")
_OPERATOR = re.compile(r'\boperator=("(?:[^"\\]|\\.)*"|\S+)')
_SUBTASK = re.compile(r"\bsubtask=(\d+)\b")


def _listed(files: list[LogFile]) -> Any:
    return {"logs": [{"name": one.name, "size": one.size, "mtime": one.modified_ms} for one in files]}


def _text(chunk: LogChunk | None, name: str) -> Answer:
    if chunk is None:
        raise RestError(404, f"there is no log {name[:200]!r}")
    return Answer(chunk.text, media_type=_TEXT)


# --------------------------------------------------------------------------------------------------------- TaskManagers
def _ask(cluster: AsksCluster, host: str, question: ListLogs | ReadLog, timeout_ms: int) -> Any:
    return cluster.ask_machine(Address(host, OBSERVER_ACTOR), question, timeout_ms)


def _ask_task_manager(request: RestRequest, question: ListLogs | ReadLog) -> Any:
    wanted = request.path["taskmanagerid"]
    if wanted not in {view.name for view in request.cluster.task_managers()}:
        raise RestError(404, f"there is no TaskManager {wanted[:200]!r}")
    return _ask(request.cluster.cluster, wanted, question, request.cluster.timeout_ms)


def task_manager_logs(request: RestRequest) -> Any:
    """Return the logs of a TaskManager and its slots."""
    return _listed(_ask_task_manager(request, ListLogs()))


def task_manager_log_file(request: RestRequest) -> Answer:
    """Return the end of one of them, a megabyte at most."""
    name = request.path["filename"]
    return _text(_ask_task_manager(request, ReadLog(name, -MAX_BYTES, MAX_BYTES)), name)


def task_manager_log(request: RestRequest) -> Answer:
    """Return the end of a TaskManager's own log."""
    files: list[LogFile] = _ask_task_manager(request, ListLogs())
    own = f"{request.path['taskmanagerid']}.log"
    name = own if own in {one.name for one in files} or not files else files[0].name
    return _text(_ask_task_manager(request, ReadLog(name, -MAX_BYTES, MAX_BYTES)), name)


# ------------------------------------------------------------------------------------------------------------- the head
def _of_head() -> list[LogFile]:
    logs = host_logs()
    return [] if logs is None else [one for one in logs.files() if not one.name.startswith("tm-")]


def job_manager_logs(request: RestRequest) -> Any:
    """Return the logs of the head that is asked, and of the JobManagers beside it."""
    return _listed(_of_head())


def job_manager_log_file(request: RestRequest) -> Answer:
    """Return the end of one of them, a megabyte at most."""
    name, logs = request.path["filename"], host_logs()
    if logs is None or name not in {one.name for one in _of_head()}:
        raise RestError(404, f"there is no log {name[:200]!r}")
    return _text(logs.read(name, -MAX_BYTES, MAX_BYTES), name)


def job_manager_log(request: RestRequest) -> Answer:
    """Return the end of the head's own log."""
    logs = host_logs()
    if logs is None:
        raise RestError(404, "this process keeps no log")
    name = f"{logs.host}.log"
    return _text(logs.read(name, -MAX_BYTES, MAX_BYTES) or LogChunk("", 0), name)


# ---------------------------------------------------------------------------------------------------------------- a job
def job_log(request: RestRequest) -> Any:
    """Return the lines of a job, in the order of their times, from all its processes; and what to ask for next.

    With ``after`` only those that have come since the answer that it is from; ``more`` says whether there were more
    than go into one answer; ``skipped`` how many bytes before its lines are left out, as a first answer begins near the
    end of each file. Files of machines other than the head's are seen while their TaskManagers live.
    """
    job_id = str(request.cluster.details(request.path["jobid"]).view.job_id)
    positions = _positions(request.query.get("after"))
    is_first = not positions
    operator, subtask = request.query.get("operator"), request.query.get("subtask")
    lines: list[tuple[str, str, str]] = []
    has_more, num_skipped = False, 0
    for host, file in _files_of_job(request, job_id):
        begin = positions.get(file.name, -MAX_JOB_BYTES if is_first else 0)
        if begin < 0:
            num_skipped += max(file.size - MAX_JOB_BYTES, 0)
        if begin == file.size:
            continue
        chunk = _read(request, host, ReadLog(file.name, begin, MAX_JOB_BYTES))
        if chunk is None:
            continue
        positions[file.name] = chunk.end
        has_more |= chunk.end < file.size
        for line in chunk.text.splitlines():
            if (job_id in file.name or job_id in line) and _is_of(line, operator, subtask):
                found = _TIME.search(line)
                lines.append(("" if found is None else found[1], file.name, line))
    lines.sort(key=lambda one: one[0])
    return {
        "lines": [{"file": name, "line": line} for _, name, line in lines],
        "more": has_more,
        "skipped": num_skipped,
        "after": base64.urlsafe_b64encode(json.dumps(positions).encode()).decode(),
    }


def _files_of_job(request: RestRequest, job_id: str) -> Iterator[tuple[str, LogFile]]:
    """The files that may have lines of it, each once, with the host to ask; none for those of this machine."""
    logs, seen = host_logs(), set()
    for file in () if logs is None else logs.files():
        is_of_other = file.name.startswith(("tm-", "jm-")) and job_id not in file.name
        # What was kept when a file was begun anew is not followed: it has been told of before.
        if not is_of_other and file.name.endswith(".log"):
            seen.add(file.name)
            yield "", file
    for view in request.cluster.task_managers():
        if view.job_id != job_id:
            continue
        try:
            files: list[LogFile] = _ask(request.cluster.cluster, view.name, ListLogs(), request.cluster.timeout_ms)
        except ClusterUnavailableError:
            continue  # it has just ended
        for file in files:
            if file.name not in seen and file.name.endswith(".log"):
                seen.add(file.name)
                yield view.name, file


def _read(request: RestRequest, host: str, question: ReadLog) -> LogChunk | None:
    if not host:
        logs = host_logs()
        return None if logs is None else logs.read(question.name, question.offset, question.max_bytes)
    try:
        chunk: LogChunk | None = _ask(request.cluster.cluster, host, question, request.cluster.timeout_ms)
    except ClusterUnavailableError:
        return None
    return chunk


def _is_of(line: str, operator: str | None, subtask: int | None) -> bool:
    if operator is not None:
        found = _OPERATOR.search(line)
        if found is None or operator not in found[1]:
            return False
    if subtask is not None:
        found = _SUBTASK.search(line)
        return found is not None and int(found[1]) == subtask
    return True


def _positions(cursor: str | None) -> dict[str, int]:
    if not cursor:
        return {}
    try:
        if len(cursor) > MAX_CURSOR_CHARACTERS:
            raise ValueError
        positions = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii")))
        if not isinstance(positions, dict) or not all(type(one) is int and one >= 0 for one in positions.values()):
            raise ValueError
    except (ValueError, RecursionError):
        raise RestError(400, "'after' must be what an earlier answer has said") from None
    return positions
