"""What servers of tests have in common: a process of its own in a directory of its own, which says when it is ready,
may be killed, and may be started again.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

__all__ = ["ServerProcess", "need_client", "the_one"]

STOP_TIMEOUT_S = 10
POLL_S = 0.1
TAIL_CHARACTERS = 3_000


class ServerProcess(ABC):
    """One server, which keeps what it has confirmed when it is killed, and does not outlive the process that starts it.

    A server says how it starts (`start`, which ends with `launch` and `wait_until`), and what it can be asked.
    """

    start_timeout_s = 120.0

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self._end)

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it is ready."""

    def launch(self, command: list[str], **options: Any) -> None:
        """Start its process, whose output goes to the log; `options` are those of `subprocess.Popen`."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **options)

    def wait_until(self, is_so: Callable[[], object], *not_yet: type[BaseException]) -> None:
        """Ask until something is true and nothing is raised that means "not yet"; a dead server is never waited for."""
        deadline = time.monotonic() + self.start_timeout_s
        while True:
            reason = "it did not become so"
            try:
                if is_so():
                    return
            except not_yet as error:
                reason = repr(error)
            assert not self._has_ended(POLL_S), f"it has ended\n{self.tail()}"
            assert time.monotonic() < deadline, f"{reason}\n{self.tail()}"

    def _has_ended(self, timeout_s: float) -> bool:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.returncode is not None

    def tail(self) -> str:
        """The last that it said."""
        return self._log.read_text(errors="replace")[-TAIL_CHARACTERS:] if self._log.exists() else ""

    @property
    def pid(self) -> int:
        """The process that runs."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill it with signal 9."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            process, self._process = self._process, None
            process.wait(STOP_TIMEOUT_S)

    def stop(self) -> None:
        """Kill it, and what it has been started with; it may be started again."""
        self.kill()

    def _end(self) -> None:
        """Kill it at the end of this process, if an error has left it running."""
        if self._process is not None:
            self.stop()

    def pause(self) -> None:
        """Have it stand still, with its connections open; returns when the last of its threads does."""
        self.signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Have it go on."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it."""
        assert self._process is not None
        self._process.send_signal(number)


Server = TypeVar("Server", bound=ServerProcess)

_RUNNING: dict[str, Any] = {}
"""The servers that run, by name: a fixture is another one in each module that imports it."""


def the_one(name: str, request: pytest.FixtureRequest, make: Callable[[Path], Server]) -> Server:
    """The server of a name for all tests of this process; made in a temporary directory, and started, if it is not."""
    if name not in _RUNNING:
        directory = Path(tempfile.mkdtemp(prefix=f"headrace-{name}-", dir="/tmp"))
        request.config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
        server = make(directory)
        request.config.add_cleanup(server.stop)
        server.start()
        _RUNNING[name] = server
    running: Server = _RUNNING[name]
    return running


def need_client(module: str, package: str) -> None:
    """Skip the test if a client is not installed."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{package} is not installed")
