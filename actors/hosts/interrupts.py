"""Ctrl-C for a thread that drives machines: a first one waits until a turn has ended, a second one strikes at once.

So no machine is left half way, and what a user's function raises, ``KeyboardInterrupt`` included, is told apart from
what was meant for the driver: only what strikes in the middle of a turn by a signal carries ``strikes_from_outside``.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["Interrupts"]


class Interrupts:
    """While entered, puts off a first Ctrl-C, and calls the program's own handler, if it has one, behind the turn.

    Does nothing outside the main thread, or where the signal is ignored.
    """

    def __init__(self) -> None:
        self._handler: Any = None
        self._in_turn = False
        # The signal that waits for the end of the turn.
        self._pending: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler) and not isinstance(getattr(handler, "__self__", None), Interrupts):
                self._handler = handler
                signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None and signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.signal(signal.SIGINT, self._handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._in_turn and self._pending is None:
            self._pending = (number, frame)
            return
        try:
            self._handler(number, frame)
        except BaseException as error:
            error.strikes_from_outside = True  # type: ignore[attr-defined]
            raise

    def begin(self) -> None:
        """Begin something that must not be left half way."""
        self._in_turn = True

    def end(self) -> None:
        """End it: what was put off strikes now."""
        self._in_turn = False
        pending, self._pending = self._pending, None
        if pending is not None:
            self._handler(*pending)

    @contextlib.contextmanager
    def held_up(self) -> Iterator[None]:
        """Do something that must not be left half way."""
        self.begin()
        try:
            yield
        finally:
            self._in_turn = False
        self.end()
