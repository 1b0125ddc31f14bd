"""Ctrl-C while somebody at a terminal waits for a job: what is to become of the job is asked, and meanwhile it goes on.

A first Ctrl-C is noted, and asked about between two looks at the job, so that nothing is left half read. A second one
before that strikes at once, and so does one while it is asked or while the job is being stopped: `KeyboardInterrupt`,
as it strikes where there is no terminal. Where the program has a handler of its own nothing of this happens.

Source: the question of Jupyter's server; Flink's ``stop`` with a savepoint.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from headrace.engine.errors import HeadraceError
from headrace.engine.protocol.states import JobStatus

from .operation_progress import Look, operation_shown

if TYPE_CHECKING:
    from headrace.engine.protocol.views import JobView

    from .progress import TerminalProgress

__all__ = ["Attendance", "WaitedJob", "is_at_terminal"]

MOST_TYPED_BYTES = 1_024

_GO_ON, _STOP, _CANCEL = "", "s", "c"


def is_at_terminal() -> bool:
    """Return whether somebody can be asked: standard input and standard error are the terminal of this thread's
    program.
    """
    if threading.current_thread() is not threading.main_thread() or sys.stdin is None or sys.stderr is None:
        return False
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()  # in the background it would be halted
    except OSError:
        return False


class WaitedJob(Protocol):
    """What is needed of a job's client."""

    def view(self) -> JobView:
        """Return the job now."""
        ...

    def views(self) -> Iterator[JobView]:
        """Follow the job until it has ended."""
        ...

    def stop(self) -> str | None:
        """End it with a last checkpoint."""
        ...

    def stop_with_savepoint(self) -> str:
        """End it with a savepoint."""
        ...


class Attendance:
    """Waits for a job in place of its client, and asks when Ctrl-C strikes.

    Args:
        progress: What is drawn meanwhile.
        look: Looks at the job while it is being stopped.
        with_savepoint: Whether it is stopped with a savepoint, as it has a place for them; else with a last
            checkpoint, which is kept.
    """

    def __init__(self, progress: TerminalProgress, look: Look, *, with_savepoint: bool) -> None:
        self._progress = progress
        self._look = look
        self._with_savepoint = with_savepoint

    @property
    def offered(self) -> str:
        """What the job can be stopped with."""
        return "savepoint" if self._with_savepoint else "last checkpoint"

    @property
    def may_ask(self) -> bool:
        """Whether it is called in the thread that Ctrl-C strikes in."""
        return threading.current_thread() is threading.main_thread()

    def wait(self, client: WaitedJob) -> JobView:
        """Return the job's last view, once it has ended.

        Raises:
            KeyboardInterrupt: If it is to be canceled.
        """
        view = client.view()
        with _Strikes() as strikes:
            for view in client.views():
                if not strikes.take():
                    continue
                status = view.state
                if status is JobStatus.CREATED or status.is_terminal or not is_at_terminal():
                    raise KeyboardInterrupt  # there is nothing to save yet, or any more
                with strikes.let_through(), self._progress.set_aside():
                    self._ask(client)
        return view

    def _ask(self, client: WaitedJob) -> None:
        answer = self._answer(client)
        if answer == _CANCEL:
            raise KeyboardInterrupt
        if answer == _STOP:
            self._stop(client)

    def _answer(self, client: WaitedJob) -> str:
        """What is typed, once it means something; as if one went on, if the job ends before."""
        question = f"Ctrl-C: s stops the job with a {self.offered}, c (or Ctrl-C) cancels it, Enter goes on: "
        terminal = sys.stdin.fileno()
        termios.tcflush(terminal, termios.TCIFLUSH)  # what was typed before was no answer
        _write(question)
        for _ in client.views():
            if not select.select([terminal], [], [], 0)[0]:
                continue
            typed = os.read(terminal, MOST_TYPED_BYTES).decode(errors="replace")
            answer = typed.strip().lower()
            if answer in (_GO_ON, _STOP, _CANCEL):
                return answer
            _write(question)
        _write("\n")
        return _GO_ON

    def _stop(self, client: WaitedJob) -> None:
        """End the job in order; its client goes on to listen to it."""
        what = "savepoint" if self._with_savepoint else "stop"
        _write(f"the job is stopped with a {self.offered}; Ctrl-C cancels it\n")
        order = _Order(client.stop_with_savepoint if self._with_savepoint else client.stop)
        with operation_shown(self._look, what, is_quiet=False):
            for _ in client.views():
                if order.is_done:
                    break
        if order.error() is not None:
            _write(f"the job was not stopped: {_one_line(order.error())}\n")


class _Order:
    """Something that a job is asked for, in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-order", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except (HeadraceError, TimeoutError) as error:
            self._error = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def error(self) -> BaseException | None:
        """Why it came to nothing, once that is known."""
        self._thread.join()
        return self._error


class _Strikes:
    """Notes a first Ctrl-C, while entered; does nothing outside the main thread, and where the program handles it."""

    def __init__(self) -> None:
        self._is_installed = False
        self._is_struck = False
        # Whether Ctrl-C strikes at once.
        self._is_open = False

    def __enter__(self) -> _Strikes:
        is_ours = threading.current_thread() is threading.main_thread()
        if is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)
            self._is_installed = True
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None and self.take():
            raise KeyboardInterrupt  # it has struck behind the last look

    def _on_signal(self, number: int, frame: FrameType | None) -> Any:
        if self._is_struck or self._is_open:
            signal.default_int_handler(number, frame)
        self._is_struck = True

    def take(self) -> bool:
        """Whether it has struck since this was asked last."""
        is_struck, self._is_struck = self._is_struck, False
        return is_struck

    @contextlib.contextmanager
    def let_through(self) -> Iterator[None]:
        """In the block Ctrl-C strikes at once."""
        self._is_open = True
        try:
            if self.take():  # it has struck once more since the first was taken
                raise KeyboardInterrupt
            yield
        finally:
            self._is_open = False


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _one_line(error: BaseException | None) -> str:
    return str(error).split("\n", 1)[0]
