"""A program that runs beside its task and speaks Storm's multi-lang protocol: its life, its pipes, and its errors.

It is started by a keeper (`program_keeper`), so that it ends with the slot, whatever ends that. Its standard error goes
to the log, line by line, written in the thread of the task, by which a log's lines are known. It hangs if it owes an
answer and has said nothing for a while; the time in which nobody takes what it says does not count.

Source: Storm's ``ShellProcess``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.engine.errors import HeadraceError, UserFunctionError
from headrace.state.credentials import masked

from . import program_keeper
from .multilang import Message, ProtocolError, message_of, parsed, read_frame, write_frame

__all__ = ["LOG", "ShellProgram"]

LOG = logging.getLogger("headrace.storm")

_LEVELS = (logging.DEBUG, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)

_SHOWN_CHARACTERS = 500
_SHOWN_LINES = 20
_WAITING_LINES = 10_000
"""How many lines may wait to be written into the log; then the oldest are left out."""

_STOP_S = 1.0
"""How long a program may take to end when its standard input is closed."""


class ShellProgram:
    """One program of one task. Its methods may be called in any thread, but each of `send` and `receive` in one only.

    Args:
        command: Its words.
        place: Component and task, for the log and errors.
        variables: Of its environment, beside those of this process.
        resources: Files by their path in the folder that it runs in; None to run it in the folder of this process.
        timeout_s: How long it may owe an answer.
    """

    def __init__(
        self,
        command: Sequence[str],
        place: str,
        variables: Mapping[str, str],
        resources: Mapping[str, bytes] | None,
        timeout_s: float,
    ) -> None:
        self._command = list(command)
        self._place = place
        self._variables = variables
        self._resources = resources
        self._timeout_s = timeout_s
        self._said = "nothing"
        self._errors: deque[str] = deque(maxlen=_SHOWN_LINES)
        self._lines: deque[tuple[int, str]] = deque(maxlen=_WAITING_LINES)
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._life: int | None = None
        self._listener: threading.Thread | None = None
        self._lock = threading.Lock()
        # Since when it owes an answer that somebody waits for, and since when it is written to (monotonic); None while
        # that is not so.
        self._owes_since: float | None = None
        self._written_since: float | None = None
        self._has_hung = self._is_stopped = False

    # ------------------------------------------------------------------------------------------------------------- life
    def start(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> int:
        """Start it and shake hands; gives its process id.

        Raises:
            UserFunctionError: If it cannot be started, or does not say its id.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-storm-"))
        pids = self._folder / "pids"
        pids.mkdir()
        working = None
        if self._resources is not None:
            working = self._folder / "resources"
            for name, data in self._resources.items():
                path = working / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        self._launch(working)
        self.send({"conf": dict(conf), "pidDir": str(pids), "context": dict(context)})
        with self._owing():
            frame = self._frame()
        try:
            found = parsed(frame)
        except ProtocolError as error:
            raise self.failed(str(error)) from error
        pid = found.get("pid")
        if type(pid) is not int:
            message = "it has not said its process id"
            raise self.failed(message)
        self._lines.append((logging.INFO, f"program {self._command} runs with process id {pid}"))
        return pid

    def _launch(self, working: Path | None) -> None:
        read_end, write_end = os.pipe()
        keeper = [sys.executable, "-I", "-S", str(Path(program_keeper.__file__).resolve()), str(read_end)]
        try:
            self._process = subprocess.Popen(
                [*keeper, *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(read_end,),
                start_new_session=True,
                cwd=working,
                env={**os.environ, **self._variables},
            )
        except OSError as error:
            os.close(write_end)
            reason = f"it cannot be started: {error}"
            raise self.failed(reason) from error
        finally:
            os.close(read_end)
        self._life = write_end
        self._listener = threading.Thread(target=self._listen, name=f"stderr of {self._place}", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode(errors="replace").rstrip()
            self._errors.append(text)
            self._lines.append((logging.INFO, text))

    def note(self, message: Message) -> None:
        """Take what it says to be written into the log."""
        level = logging.ERROR if message.command == "error" else _LEVELS[message.level]
        self._lines.append((level, message.text))

    def write_log(self) -> None:
        """Write into the log what waits for that; called in the thread of the task."""
        while self._lines:
            level, text = self._lines.popleft()
            LOG.log(level, "%s: %s", self._place, text)

    def stop(self) -> None:
        """End it: by the end of its input, and if that takes too long, by force. May be called twice."""
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
        process = self._process
        if process is not None:
            assert process.stdin is not None
            # A thread that is stuck in writing holds the pipe's lock: only a dead program sets it free.
            closing = threading.Thread(target=self._close_input, daemon=True)
            closing.start()
            closing.join(_STOP_S / 2)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
        self._kill()
        if process is not None:
            process.wait()
            if self._listener is not None:
                self._listener.join(_STOP_S)
            for pipe in (process.stdout, process.stderr):
                with contextlib.suppress(OSError, RuntimeError):
                    pipe.close()  # type: ignore[union-attr]
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _close_input(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.close()  # type: ignore[union-attr]

    def _kill(self) -> None:
        """Have the keeper kill it."""
        with self._lock:
            life, self._life = self._life, None
        if life is not None:
            os.close(life)

    # ------------------------------------------------------------------------------------------------------------ words
    def send(self, message: Any) -> None:
        """Write a message; waits while the program does not read.

        Raises:
            UserFunctionError: If it is gone, or JSON does not have the message.
        """
        self.send_all([message])

    def send_all(self, messages: Sequence[Any]) -> None:
        """Write messages, one after the other; else as `send`."""
        assert self._process is not None
        pipe = self._process.stdin
        assert pipe is not None
        with self._lock:
            self._written_since = time.monotonic()
        try:
            for message in messages:
                write_frame(pipe, message)
            pipe.flush()
        except (TypeError, ValueError) as error:
            if pipe.closed:
                reason = "it is told nothing any more"
                raise self.failed(reason) from error
            message = f"{self._place}: JSON does not have what a tuple holds: {error}"
            hint = "tuples for external programs are of numbers, texts, booleans, None, lists and dicts of these"
            raise UserFunctionError(message, hint=hint) from error
        except OSError as error:
            raise self.failed(self._how_it_ended()) from error
        finally:
            with self._lock:
                self._written_since = None

    def receive(self) -> Message:
        """Read what it says next; waits for it.

        Raises:
            UserFunctionError: If it is gone, or has broken the protocol.
        """
        frame = self._frame()
        try:
            return message_of(frame)
        except ProtocolError as error:
            raise self.failed(str(error)) from error

    def _frame(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            frame = read_frame(self._process.stdout)
        except ProtocolError as error:
            raise self.failed(str(error)) from error
        except (OSError, ValueError) as error:  # closed meanwhile
            raise self.failed(self._how_it_ended()) from error
        if frame is None:
            raise self.failed(self._how_it_ended())
        self._said = frame[:_SHOWN_CHARACTERS].decode(errors="replace").strip()
        self.begin_anew()
        return frame

    # ------------------------------------------------------------------------------------------------------------ watch
    def owes(self, is_so: bool) -> None:
        """Say whether it owes an answer that somebody waits for; each word of it begins the time anew."""
        with self._lock:
            if not is_so:
                self._owes_since = None
            elif self._owes_since is None:
                self._owes_since = time.monotonic()

    def begin_anew(self) -> None:
        """Count the time from now on, as the program was not silent, or could not speak."""
        now = time.monotonic()
        with self._lock:
            self._owes_since = None if self._owes_since is None else now
            self._written_since = None if self._written_since is None else now

    @contextlib.contextmanager
    def _owing(self) -> Any:
        self.owes(True)
        try:
            yield
        finally:
            self.owes(False)

    def end_if_it_hangs(self) -> None:
        """End it if it has owed an answer for too long, or has not read what is written to it: then its reader
        and its writer find out.
        """
        with self._lock:
            times = [since for since in (self._owes_since, self._written_since) if since is not None]
            hangs = bool(times) and time.monotonic() - min(times) > self._timeout_s and not self._has_hung
            self._has_hung |= hangs
        if hangs:
            self._kill()

    def _how_it_ended(self) -> str:
        if self._has_hung:
            return f"it has said nothing for {self._timeout_s:g} s though it owed an answer (heartbeat time-out)"
        if self._is_stopped:
            return "it was ended"
        assert self._process is not None
        try:
            status = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            return "it has closed its output"
        if self._listener is not None:
            self._listener.join(_STOP_S)
        if status == program_keeper.CANNOT_START and self._said == "nothing":
            return "it cannot be started"
        return f"it was ended by signal {status - 128}" if status > 128 else f"it has ended with status {status}"

    def failed(self, reason: str) -> HeadraceError:
        """Return the error that it has failed, with what it has said last."""
        message = f"the program of {self._place} has failed: {reason}; it said last: {self._said}"
        hint = f"its command is {json.dumps(self._command)}"
        errors = "\n".join(self._errors)
        if errors:
            return UserFunctionError(message, hint=hint, traceback=masked(f"its standard error:\n{errors}"))
        return UserFunctionError(message, hint=hint)
