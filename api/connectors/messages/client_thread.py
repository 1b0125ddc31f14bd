"""A thread in which a reader's client lives: what it has got is taken by the task without waiting.

A task must go on whatever a server does. Clients that block, and those that must answer their server while a task is
held back, get a thread of their own, which connects again when a connection breaks, and gives up after a while. What it
has got and nobody has taken is bounded.

Source: Flink's ``SplitFetcher``.
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.engine.errors import SourceError, raise_from_outside

__all__ = ["AnswerError", "AwayError", "ClientThread", "patiently"]

Answer = TypeVar("Answer")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

STEADY_S = 5.0
"""A connection that lasts so long works, even if nothing comes over it: the server may have nothing to say."""


class AnswerError(Exception):
    """A server has answered a client with an error, or not at all; what it was asked for says what that means.

    Attributes:
        is_away: Whether the same may work in a moment.
        status: Of HTTP, where the answer has one.
    """

    def __init__(self, text: str, *, is_away: bool, status: int | None = None) -> None:
        super().__init__(text)
        self.is_away = is_away
        self.status = status


class AwayError(SourceError):
    """A server does not answer, or has closed the connection: it may be back in a moment.

    Attributes:
        wait_s: How long it asks to be left alone, in seconds; more than it may be away is as if it stayed away.
    """

    wait_s = 0.0


def patiently(ask: Callable[[], Answer], patience_s: float) -> Answer:
    """Ask a server, and again while it is away, on the caller's thread.

    Args:
        ask: Asks once.
        patience_s: How long the server may be away, in seconds.

    Raises:
        AwayError: If it is away for longer.
    """
    pause_s = FIRST_PAUSE_S
    lost_at: float | None = None
    while True:
        try:
            return ask()
        except AwayError as error:
            now = time.monotonic()
            lost_at = now if lost_at is None else lost_at
            if now + error.wait_s - lost_at >= patience_s:
                raise
            wait_s = max(pause_s, error.wait_s)
        time.sleep(wait_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class ClientThread(ABC):
    """Runs a client. Subclasses say how it connects and what it does; all of that happens in the thread.

    Args:
        name: Of the thread.
        max_waiting: How many things may wait to be taken.
        patience_s: How long a server may be away before that is an error, in seconds.
    """

    def __init__(self, name: str, max_waiting: int, patience_s: float) -> None:
        self._got: queue.Queue[Any] = queue.Queue(max_waiting)
        self._patience_s = patience_s
        self._stop = threading.Event()
        # Why it has ended, if not as it was told to.
        self._error: BaseException | None = None
        # Whether something has come of this connection.
        self._is_of_use = False
        self._thread = threading.Thread(target=self._run, name=f"headrace-client {name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @abstractmethod
    def connect(self) -> None:
        """Make a connection.

        Raises:
            AwayError: If the server does not answer; it is asked again.
        """

    @abstractmethod
    def work(self) -> None:
        """Do the next piece of work: get something and `give` it. Returns soon.

        Raises:
            AwayError: If the connection is broken; another one is made.
        """

    @abstractmethod
    def disconnect(self) -> None:
        """Let go of the connection, if there is one; never raises."""

    @property
    def is_stopping(self) -> bool:
        """Whether it is to end."""
        return self._stop.is_set()

    def give(self, thing: Any) -> None:
        """Hand something over; waits for its place."""
        self.succeed()
        while not self._stop.is_set():
            try:
                self._got.put(thing, timeout=0.1)
                return
            except queue.Full:
                self.while_waiting()

    def succeed(self) -> None:
        """Note, in the thread, that the server has done what it was asked for, so it is not away."""
        self._is_of_use = True

    def end(self) -> None:
        """Note, in the thread, that it has got all that it ever will."""
        self._stop.set()

    def while_waiting(self) -> None:
        """Do what is to be done again and again while nobody takes what it has got."""
        return

    def failed(self, error: BaseException) -> None:
        """Note, in the thread, the error that ends it; it is told behind what the thread has got."""
        self._error = error

    def pause(self, seconds: float) -> None:
        """Wait, unless it is to end."""
        self._stop.wait(seconds)

    def now_s(self) -> float:
        """Return the time of a clock that only goes on."""
        return time.monotonic()

    def _run(self) -> None:
        try:
            self._live()
        except BaseException as error:
            self.failed(error)
        finally:
            self.disconnect()

    def _live(self) -> None:
        pause_s = FIRST_PAUSE_S
        lost_at: float | None = None  # since when nothing has worked
        connected_at: float | None = None
        while not self._stop.is_set():
            try:
                if connected_at is None:
                    self._is_of_use = False
                    self.connect()
                    connected_at = self.now_s()
                self.work()
                # A server that takes connections and ends them at once is as one that takes none.
                if self._is_of_use or self.now_s() - connected_at >= STEADY_S:
                    pause_s, lost_at = FIRST_PAUSE_S, None
            except AwayError as error:
                connected_at = None
                self.disconnect()
                now = self.now_s()
                if self._is_of_use:
                    pause_s, lost_at = FIRST_PAUSE_S, None
                lost_at = now if lost_at is None else lost_at
                if now + error.wait_s - lost_at >= self._patience_s:
                    raise
                self.pause(max(pause_s, error.wait_s))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def take(self) -> Any:
        """Return the next thing that it has got; None if there is none.

        Raises:
            Exception: What has ended it, behind all that it had got before.
        """
        try:
            return self._got.get_nowait()
        except queue.Empty:
            pass
        error = self._error
        if error is not None and self._got.empty():
            raise_from_outside(error)
            raise error
        return None

    @property
    def has_more(self) -> bool:
        """Whether something waits to be taken."""
        return not self._got.empty()

    def stop(self, timeout_s: float) -> None:
        """Have it end, and wait a moment for that."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
