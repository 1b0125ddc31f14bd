"""Sends messages by a client in a thread of its own, and counts what the server confirms.

A writer hands messages over as they come, is held back while too many are not confirmed, and waits at a barrier until
all are: at least once. What has gone wrong in the thread is raised where the writer is.

Source: RabbitMQ's "Publisher Confirms".
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import SinkWriter, WriterContext
from headrace.engine.errors import SinkError
from headrace.state.credentials import masked

__all__ = ["CONFIRM_TIMEOUT_S", "ConfirmedSender", "ConfirmedWriter"]

CONFIRM_TIMEOUT_S = 120.0
"""A server that confirms nothing for so long fails the task."""

MOST_UNCONFIRMED = 5_000


class ConfirmedSender(ABC):
    """Sends messages, and knows which are not confirmed. Subclasses talk to the server.

    Args:
        target: Where messages go, for errors.
        timeout_s: How long the server may confirm nothing, in seconds.
    """

    def __init__(self, target: str, timeout_s: float = CONFIRM_TIMEOUT_S) -> None:
        self._place = target
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        # The rest is guarded by `_changed`. Sent and not confirmed, by what the server confirms them by.
        self._unconfirmed: set[int] = set()
        # Handed over, and not sent yet.
        self._num_waiting = 0
        self._is_ready = False
        self._error: str | None = None

    @abstractmethod
    def hand_over(self, messages: Collection[Any]) -> None:
        """Have the client send messages; called by the task, when it is connected."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""

    def ready(self) -> None:
        """Note that the server takes messages from now on."""
        with self._changed:
            self._is_ready = True
            self._changed.notify_all()

    def sent(self, number: int) -> None:
        """Note that a message is under way, which the server will confirm by a number."""
        with self._changed:
            self._num_waiting -= 1
            self._unconfirmed.add(number)

    def confirmed(self, number: int) -> None:
        """Note that the server has confirmed a message."""
        with self._changed:
            self._unconfirmed.discard(number)
            self._changed.notify_all()

    def confirmed_up_to(self, number: int) -> None:
        """Note that the server has confirmed this one, and those of lower numbers."""
        with self._changed:
            self._unconfirmed = {one for one in self._unconfirmed if one > number}
            self._changed.notify_all()

    def fail(self, error: Any) -> None:
        """Note that nothing more will be confirmed, and why; the first reason is told."""
        with self._changed:
            if self._error is None:
                self._error = masked(str(error) or repr(error))
            self._changed.notify_all()

    def send(self, messages: Collection[Any]) -> None:
        """Send messages; waits while too many are not confirmed."""
        self._wait(lambda: self._is_ready and self._left() < MOST_UNCONFIRMED)
        with self._changed:
            self._num_waiting += len(messages)
        self.hand_over(messages)

    @property
    def num_unconfirmed(self) -> int:
        """How many messages are under way."""
        return len(self._unconfirmed)

    def _left(self) -> int:
        return self._num_waiting + len(self._unconfirmed)

    def flush(self) -> None:
        """Wait until all are confirmed."""
        self._wait(lambda: not self._left())

    def _wait(self, is_done: Callable[[], bool]) -> None:
        with self._changed:
            left, deadline = self._left(), time.monotonic() + self._timeout_s
            while True:
                if self._error is not None:
                    message = f"{self._place} does not take messages: {self._error}"
                    raise SinkError(message)
                if is_done():
                    return
                if self._left() < left:  # it is slow, and goes on
                    left, deadline = self._left(), time.monotonic() + self._timeout_s
                if not self._changed.wait(deadline - time.monotonic()):
                    message = f"{self._place} has confirmed none of {left} messages for {self._timeout_s:.0f} s"
                    raise SinkError(message)


class ConfirmedWriter(SinkWriter, ABC):
    """Sends the records of one subtask, all of which are confirmed before a barrier passes."""

    def __init__(self) -> None:
        # Made with the first message.
        self._sender: ConfirmedSender | None = None

    @abstractmethod
    def messages_of(self, batch: Batch) -> Collection[Any]:
        """Return what records are on the way."""

    @abstractmethod
    def connect(self, context: WriterContext) -> ConfirmedSender:
        """Begin to connect."""

    def open(self, context: WriterContext) -> None:
        self._context = context

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        messages = self.messages_of(batch)
        if self._sender is None:
            self._sender = self.connect(self._context)
        self._sender.send(messages)

    def prepare(self, checkpoint_id: int) -> list[Any]:
        if self._sender is not None:
            self._sender.flush()
        return []

    def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
