"""Programs that are uploaded and run: their main() runs beside this head, and submits its jobs to the cluster.

A program is run as ``headrace run --detached --target session`` runs it, in a process of its own: whatever it does, the
head goes on. Running one takes its time, so it is begun and followed by an id, which Flink's ``/jars/:jarid/run`` does
not need, as it waits; the jobs that it submits outlive it, and this head. What it prints is told.

Source: Flink's ``JarUploadHandler``, ``JarListHandler``, ``JarRunHandler``, ``JarDeleteHandler``.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headrace.engine.errors import HeadraceError
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.state.credentials import masked
from headrace.state.files.filesystem import absolute_uri
from headrace.state.reading.program_pickles import FOLDER_VARIABLE

from .operations import COMPLETED, IN_PROGRESS
from .program_files import ProgramFile, ProgramStore, checked_program, entry_of, file_in_form, unpack
from .routes import Answer, RestError, RestRequest

__all__ = ["ProgramPlace", "Programs", "own_folder", "session_command"]

_OF_THE_HEAD_ALONE = (
    "PYTHONSAFEPATH",
    "HEADRACE_RESTORE_FROM",
    "HEADRACE_RESTORE_MODE",
    "HEADRACE_ALLOW_NON_RESTORED_STATE",
)
"""Variables that programs do not get from here: they may be those of the program that the cluster was started by."""

MOST_RUNS = 4
"""Programs whose main() runs at the same time: each is a Python process."""

RUN_TIMEOUT_S = 900.0
"""A main() that has not ended by then is ended: it is to submit jobs, not to be one."""

MOST_LINES = 200
"""Of what it has printed; the newest."""

MOST_CHARACTERS = 500
"""Of a line."""

MOST_PRINTED_BYTES = 64 << 20
"""A main() that prints more is ended: the head reads it."""

MOST_ARGUMENTS = 100
MOST_ARGUMENT_BYTES = 100_000
"""Of all together: what Linux gives to a process is bounded."""

KILL_AFTER_S = 5.0
LOOK_EVERY_S = 0.2
"""Whether a main() has ended whose output somebody else holds open."""

READ_BYTES = 1 << 16

# Also behind what the program has printed without the end of a line.
_SUBMITTED = re.compile(r"(?:submitted|runs) ([0-9a-f]{32}) \(")

_COMMAND = """
import sys
sys.path.remove("")
from headrace.cli.main import main
sys.path.append("")
sys.exit(main())
"""
"""``headrace run`` in the program's folder, whose files must not take the place of modules that it needs itself: a
program may be called random.py."""


@dataclass(frozen=True, slots=True)
class ProgramPlace:
    """Where the programs of a cluster are kept, and how they are run.

    Attributes:
        directory: Gives a path or a URI, which all heads see.
        command: Gives what runs a program on the cluster, up to its options. Both are called in the head's process.
    """

    directory: Callable[[], str]
    command: Callable[[], Sequence[str]]


@dataclass(slots=True)
class _Run:
    """A main() that runs, or has."""

    program: str
    process: subprocess.Popen[bytes] | None = None
    jobs: list[str] = field(default_factory=list)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    # None while it runs; else when it ended (monotonic seconds), and how.
    ended_s: float | None = None
    status: int = 0
    problem: str = ""

    def hear(self, line: bytes) -> None:
        """Take a line that was printed."""
        text = line.decode("utf-8", "replace").rstrip("\r")
        for job in _SUBMITTED.findall(text):
            if job not in self.jobs and len(self.jobs) < MOST_LINES:
                self.jobs.append(job)
        self.lines.append(text[:MOST_CHARACTERS])

    def told(self) -> list[str]:
        """What it has printed, without secrets."""
        return [masked(line) for line in self.lines.copy()]


class Programs:
    """Answers what is about programs.

    Args:
        settings: The server's.
        place: Of the cluster; None if programs cannot be run on it.
    """

    def __init__(self, settings: RestSettings, place: ProgramPlace | None) -> None:
        self._is_enabled = settings.allows_submit
        self._max_bytes = settings.max_program_bytes
        self._store_s = settings.store_duration_ms / 1_000
        self._place = place
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._is_closed = False

    @property
    def is_there(self) -> bool:
        """Whether programs can be submitted here at all."""
        return self._is_enabled and self._place is not None

    def close(self) -> None:
        """End what runs; its jobs go on."""
        with self._lock:
            self._is_closed = True
            processes = [run.process for run in self._runs.values() if run.ended_s is None and run.process is not None]
        _end(processes)

    # -------------------------------------------------------------------------------------------------------- programs
    def upload(self, request: RestRequest) -> Any:
        """Keep a program: a form of one file."""
        store = self._store()
        name, content = file_in_form(request.content, request.content_type)
        kept = store.add(checked_program(name, content, self._max_bytes), content)
        return {"filename": kept.id, "status": "success"}

    def all(self, _request: RestRequest) -> Any:
        """Return the programs that are kept, newest first."""
        return {"files": [_as_json(one) for one in self._store().all()]}

    def delete(self, request: RestRequest) -> Any:
        """Forget a program."""
        self._store().delete(request.path["jarid"])
        return {}

    def _store(self) -> ProgramStore:
        if not self._is_enabled:
            raise RestError(403, "programs are not taken by this cluster: web.submit.enable is false")
        if self._place is None:
            message = "this cluster is within one program, which no other one can join"
            raise RestError(409, f"{message}; 'headrace cluster start' starts one that takes programs")
        return ProgramStore(self._place.directory())

    # ------------------------------------------------------------------------------------------------------------- runs
    def run(self, request: RestRequest) -> Answer:
        """Run a program's main(), which submits its jobs to this cluster."""
        name, content = self._store().read(request.path["jarid"], self._max_bytes)
        options, arguments = _options(request), _arguments(request)
        run = _Run(request.path["jarid"])
        trigger = uuid.uuid4().hex
        with self._lock:
            self._forget()
            if sum(one.ended_s is None for one in self._runs.values()) >= MOST_RUNS:
                raise RestError(503, f"{MOST_RUNS} programs are being run; ask again later")
            self._runs[trigger] = run
        try:
            # Of this user alone; without links, as modules are told by where they lie.
            folder = Path(tempfile.mkdtemp(prefix="headrace-program-")).resolve()
            try:
                file = self._put(name, content, folder, request.body.get("entryClass"))
                self._begin(run, folder, [*options, str(file), *arguments])
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        except BaseException:
            with self._lock:
                del self._runs[trigger]
            raise
        return Answer({"request-id": trigger}, 202)

    def _put(self, name: str, content: bytes, folder: Path, entry: str | None) -> Path:
        if not name.endswith(".zip"):
            if entry is not None:
                raise RestError(400, "entryClass names a file of a zip; this program is a single file")
            (folder / name).write_bytes(content)
            return folder / name
        names = unpack(content, folder, self._max_bytes)
        return folder / entry_of(names, entry, name)

    def _begin(self, run: _Run, folder: Path, arguments: Sequence[str]) -> None:
        assert self._place is not None
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", FOLDER_VARIABLE: str(folder)}
        for name in _OF_THE_HEAD_ALONE:
            environment.pop(name, None)
        with self._lock:
            if self._is_closed:
                raise RestError(503, "this head is ending")
            process = run.process = subprocess.Popen(
                [*self._place.command(), *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        follow = threading.Thread(
            target=self._follow, args=(run, process, folder), name="headrace-program", daemon=True
        )
        try:
            follow.start()
        except RuntimeError:  # there are no more threads
            _end([process])
            raise

    def _follow(self, run: _Run, process: subprocess.Popen[bytes], folder: Path) -> None:
        try:
            run.problem = _listen(run, process)
        finally:
            _end([process])  # and what it has begun, which may hold its output open
            run.status = process.wait()
            shutil.rmtree(folder, ignore_errors=True)
            run.ended_s = time.monotonic()

    def run_status(self, request: RestRequest) -> Any:
        """Return how the run of a program stands that this head has begun."""
        with self._lock:
            self._forget()
            run = self._runs.get(request.path["triggerid"])
        if run is None or run.program != request.path["jarid"]:
            raise RestError(404, "this head has begun no such run, or does not remember it")
        told: dict[str, Any] = {"jobids": list(run.jobs), "output": run.told()}
        if run.ended_s is None:
            return {"status": IN_PROGRESS, "operation": told}
        problem = run.problem
        if not problem and run.status:
            problem = f"the program has ended with status {run.status}"
        elif not problem and not run.jobs:
            problem = "the program has ended without submitting a job"
        if problem:
            text = "\n".join([problem, *told["output"]])
            told |= {"failure-cause": {"class": "ProgramFailed", "stack-trace": text}}
        else:
            told["jobid"] = run.jobs[0]
        return {"status": COMPLETED, "operation": told}

    def _forget(self) -> None:
        until = time.monotonic() - self._store_s
        over = [key for key, one in self._runs.items() if one.ended_s is not None and one.ended_s < until]
        for key in over:
            del self._runs[key]


def _as_json(one: ProgramFile) -> dict[str, Any]:
    return {"id": one.id, "name": one.name, "uploaded": one.uploaded_ms, "size": one.num_bytes}


def _options(request: RestRequest) -> list[str]:
    """What ``headrace run`` is told.

    Raises:
        RestError: 400 if a value is none.
    """
    body = request.body
    options: list[str] = []
    parallelism = body.get("parallelism")
    if parallelism is not None:
        if not 1 <= parallelism <= 1 << 15:
            raise RestError(400, "parallelism must be from 1 to 32,768")
        options += ["--parallelism", str(parallelism)]
    place = body.get("savepointPath")
    if place is None:
        if body.get("allowNonRestoredState") or body.get("claimMode"):
            raise RestError(400, "allowNonRestoredState and claimMode need a savepointPath")
        return options
    _require_argument("savepointPath", place)
    if not place.startswith("/") and ":/" not in place:
        raise RestError(400, f"savepointPath must be an absolute path or a URI; got {place[:200]!r}")
    try:
        options.append(f"--from-savepoint={absolute_uri(place)}")
    except (HeadraceError, ValueError) as error:
        raise RestError(400, f"savepointPath: {error}") from error
    if body.get("allowNonRestoredState"):
        options.append("--allow-non-restored-state")
    if body.get("claimMode"):
        options.append(f"--restore-mode={body['claimMode'].lower()}")
    return options


def _arguments(request: RestRequest) -> list[str]:
    arguments = request.body.get("programArgsList") or []
    if len(arguments) > MOST_ARGUMENTS:
        raise RestError(400, f"{len(arguments):,} arguments; {MOST_ARGUMENTS} are allowed")
    for one in arguments:
        if not isinstance(one, str):
            raise RestError(400, "programArgsList is a list of texts")
        _require_argument("programArgsList", one)
    if sum(len(one.encode()) for one in arguments) > MOST_ARGUMENT_BYTES:
        raise RestError(400, f"the arguments have more than {MOST_ARGUMENT_BYTES:,} bytes; put a file into the zip")
    return list(arguments)


def _require_argument(field_name: str, text: str) -> None:
    """See that a process can be given a text.

    Raises:
        RestError: 400 if it cannot.
    """
    try:
        is_one = "\0" not in text and len(text.encode()) <= MOST_ARGUMENT_BYTES
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can say
        is_one = False
    if not is_one:
        message = f"is no text of {MOST_ARGUMENT_BYTES:,} bytes at most that a process can be given"
        raise RestError(400, f"{field_name}: {text[:100]!a} {message}")


def _listen(run: _Run, process: subprocess.Popen[bytes]) -> str:
    """Take what a program prints until it has ended; returns why it must be ended, or nothing.

    The end of its output alone does not tell: what it has begun may hold that open, and it may close that itself.
    """
    assert process.stdout is not None
    deadline = time.monotonic() + RUN_TIMEOUT_S
    begun, num_printed, is_over = b"", 0, False
    with process.stdout as pipe, selectors.DefaultSelector() as readable:
        readable.register(pipe, selectors.EVENT_READ)
        while True:
            if readable.get_map():
                is_there = bool(readable.select(0 if is_over else LOOK_EVERY_S))
            else:
                is_there = False
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_EVERY_S)
            if is_there:
                read = os.read(pipe.fileno(), READ_BYTES)
                if not read:
                    readable.unregister(pipe)
                num_printed += len(read)
                *lines, begun = (begun + read).split(b"\n")
                if len(begun) >= READ_BYTES:
                    lines, begun = [*lines, begun], b""
                for line in lines:
                    run.hear(line)
            elif is_over:  # all of it was read
                break
            if num_printed > MOST_PRINTED_BYTES:
                return f"the program has printed more than {MOST_PRINTED_BYTES:,} bytes, and was ended"
            if time.monotonic() > deadline:
                return f"the program's main() did not end within {RUN_TIMEOUT_S:g} s, and was ended"
            is_over = is_over or process.poll() is not None
    if begun:
        run.hear(begun)
    return ""


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End programs and what they have begun: all are asked to, and who does not is killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            # The group of one that has ended is killed at once: whom it has left behind there nobody waits for.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        deadline = time.monotonic() + KILL_AFTER_S
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def own_folder(cluster: str) -> str:
    """Return the folder for the programs of a cluster on this machine, of this user alone.

    Raises:
        RestError: 409 if somebody else has made it.
    """
    base = Path(tempfile.gettempdir()) / f"headrace-programs-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RestError(409, "the folder for programs on the head's machine is not of this user alone")
    folder = base / (quote(cluster, safe="").replace(".", "%2E") or "_")
    folder.mkdir(mode=0o700, exist_ok=True)
    return str(folder)


def session_command(cluster: str, address: str) -> list[str]:
    """Return what runs a program on a cluster of this Ray, up to its options."""
    where = ["--address", address, "--target", "session", "--cluster-id", cluster]
    return [sys.executable, "-c", _COMMAND, "run", "--detached", *where]
