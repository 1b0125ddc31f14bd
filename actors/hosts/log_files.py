"""Logs of hosts: a bounded file for each process, with a line of keys and values for each thing that Python's
``logging`` is told at INFO or above.

Lines have the form of the operational log (`headrace.engine.kernel.event_log`). What is logged in a step of a task,
by a function of the user or anybody it calls, says of which job, operator, subtask and attempt. Secrets are masked
before a line is written. A file that is full is kept once, as ``NAME.1``, and begun anew; so what a process has said
outlives it, and its TaskManager, or the head for those of its own machine, still shows it.

Nobody names a file by a path: who asks names one of those that are listed.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from logging.handlers import RotatingFileHandler
from pathlib import Path
from urllib.parse import quote

from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.event_log import key_values
from headrace.engine.protocol.observation_messages import LogChunk, LogFile, ObservedTask
from headrace.state.credentials import masked

__all__ = [
    "EVENTS_LOGGER",
    "EVENTS_VARIABLE",
    "HostLogs",
    "cluster_log_folder",
    "host_logs",
    "remove_old_logs",
    "write_events_to_stderr",
]

EVENTS_LOGGER = "headrace.events"
"""The operational log, whose lines are keys and values already."""

EVENTS_VARIABLE = "HEADRACE_EVENTS"
"""Environment variable of processes that nobody else can set up: 1 has them write the operational log."""

FOLDER_VARIABLE = "HEADRACE_LOG_DIR"
"""Environment variable: where logs go, instead of the system's folder for temporary files."""

MAX_FILE_BYTES = 4 << 20
"""Of one file; a process has two of them at most."""

MAX_CHUNK_BYTES = 1 << 20
MAX_LINE_CHARACTERS = 8_000
KEPT_DAYS = 7
"""Logs of clusters that nobody has written to for so long are removed when another one starts."""


def write_events_to_stderr() -> None:
    """Have this process write the operational log to its standard error."""
    events = logging.getLogger(EVENTS_LOGGER)
    if not events.handlers:
        events.addHandler(logging.StreamHandler())  # of lines as they are
    events.setLevel(logging.INFO)
    events.propagate = False


def _base_folder() -> Path:
    """The folder of all logs of this user.

    Raises:
        ConfigurationError: If somebody else has made it, or it cannot be made.
    """
    given = os.environ.get(FOLDER_VARIABLE)
    folder = Path(given) if given else Path(tempfile.gettempdir()) / f"headrace-logs-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        message = f"the folder for logs cannot be made: {error}"
        raise ConfigurationError(message, hint=f"{FOLDER_VARIABLE} names the folder") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        message = f"{folder} must be a directory of this user's"
        raise ConfigurationError(message, hint=f"{FOLDER_VARIABLE} names another one")
    return folder


def cluster_log_folder(cluster: str) -> Path:
    """Return the folder for the logs of a cluster on this machine, made if it is not there.

    Raises:
        ConfigurationError: If it cannot be made.
    """
    folder = _base_folder() / (quote(cluster, safe="").replace(".", "%2E") or "_")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def remove_old_logs() -> None:
    """Remove the logs of clusters that are long gone."""
    oldest_s = time.time() - KEPT_DAYS * 86_400
    for folder in _base_folder().iterdir():
        if folder.is_dir() and not folder.is_symlink():
            newest_s = max((one.stat().st_mtime for one in folder.glob("*.log*")), default=folder.stat().st_mtime)
            if newest_s < oldest_s:
                shutil.rmtree(folder, ignore_errors=True)


class HostLogs:
    """The logs of the hosts of a cluster on this machine, and the one that this process writes.

    Args:
        folder: Where they are.
        host: Of this process.
        observe: What its tasks say of themselves now.
        thread: The thread that runs them now; None if there is none.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        observe: Callable[[], list[ObservedTask]],
        thread: Callable[[], int | None],
    ) -> None:
        self.folder = folder
        self.host = host
        self._handler = _Handler(folder / f"{host}.log", host, observe, thread)

    def start(self, *, sets_level: bool) -> None:
        """Write what is logged from now on; where Python logs to nowhere, warnings still go to standard error.

        Args:
            sets_level: Whether what is at INFO is logged in this process from now on.
        """
        root = logging.getLogger()
        self._handler.passes_on = not root.handlers
        root.addHandler(self._handler)
        if sets_level and root.level in (logging.NOTSET, logging.WARNING):
            root.setLevel(logging.INFO)
        events = logging.getLogger(EVENTS_LOGGER)
        if not events.propagate:  # they go to standard error, too
            events.addHandler(self._handler)
        global _process_logs
        _process_logs = self

    def close(self) -> None:
        """Write no more."""
        for name in (None, EVENTS_LOGGER):
            logging.getLogger(name).removeHandler(self._handler)
        self._handler.close()
        global _process_logs
        if _process_logs is self:
            _process_logs = None

    def files(self, owner: str = "") -> list[LogFile]:
        """Return the files that are there, by name.

        Args:
            owner: Only those of this host, and of its slots if it is a TaskManager.
        """
        found: list[LogFile] = []
        for path in sorted(self.folder.glob("*.log*")):
            name = path.name.partition(".log")[0]
            if not owner or name == owner or name.startswith(f"{owner}-slot-"):
                try:
                    size = path.lstat()
                except FileNotFoundError:
                    continue  # it was begun anew
                if stat.S_ISREG(size.st_mode):
                    found.append(LogFile(path.name, size.st_size, int(size.st_mtime * 1_000)))
        return found

    def read(self, name: str, offset: int, max_bytes: int, owner: str = "") -> LogChunk | None:
        """Read a part of a file; None if there is none of that name.

        Args:
            name: One of those that are listed.
            offset: Where to begin; behind the end, as after the file was begun anew, it is read from its beginning.
                Less than 0 counts from the end, and begins with a whole line.
            max_bytes: How much at most; what is read ends behind a line, if there is an end of one.
            owner: As in `files`.
        """
        if name not in {one.name for one in self.files(owner)}:
            return None
        try:
            with (self.folder / name).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                begin = max(size + offset, 0) if offset < 0 else offset if offset <= size else 0
                file.seek(begin)
                content = file.read(min(max_bytes, MAX_CHUNK_BYTES))
        except FileNotFoundError:
            return None
        end = content.rfind(b"\n") + 1
        if end:
            content = content[:end]
        text = content
        if offset < 0 and begin:  # it begins in the middle of a line
            text = content[content.find(b"\n") + 1 :]
        return LogChunk(text.decode("utf-8", "replace"), begin + len(content))


_process_logs: HostLogs | None = None


def host_logs() -> HostLogs | None:
    """Return the logs that this process has to do with; None if it keeps none."""
    return _process_logs


class _Handler(RotatingFileHandler):
    """Writes lines of keys and values."""

    def __init__(
        self, path: Path, host: str, observe: Callable[[], list[ObservedTask]], thread: Callable[[], int | None]
    ) -> None:
        super().__init__(path, maxBytes=MAX_FILE_BYTES, backupCount=1, encoding="utf-8", errors="replace", delay=True)
        self._host = host
        self._observe = observe
        self._loop_thread = thread
        # Whether warnings go to standard error as well.
        self.passes_on = False

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if self.passes_on and record.levelno >= logging.WARNING and logging.lastResort is not None:
            logging.lastResort.handle(record)

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.name == EVENTS_LOGGER:
            return f"level={record.levelname} {text}"
        if record.exc_info and record.exc_info[0] is not None:
            text = f"{text} | {logging.Formatter().formatException(record.exc_info)}"
        time_text = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        pairs: dict[str, object] = {"time": time_text.replace("+00:00", "Z"), "host": self._host}
        is_of_loop = record.thread is not None and record.thread == self._loop_thread()
        for task in (task for task in self._observe() if task.is_stepping) if is_of_loop else ():
            pairs |= {"job": task.job, "operator": task.name, "subtask": task.attempt.subtask}
            pairs |= {"attempt": task.attempt.attempt, "epoch": task.attempt.epoch}
        pairs |= {"logger": record.name, "event": masked(text)[:MAX_LINE_CHARACTERS]}
        return f"level={record.levelname} {key_values(pairs)}"
