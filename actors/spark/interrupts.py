"""Ctrl-C as an event, while this process talks to Spark's JVM.

PySpark's lines to the JVM are plain sockets, and any thread may use one at any moment: for a call, or because an object
that is collected there lets go of its twin in the JVM. An interrupt that is raised in the middle of an answer leaves
the line in disorder, and py4j prints a traceback of its own. So nothing is raised while a job is waited for: the
signal only sets an event, and the wait looks at it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["interrupts_as_event"]


@contextlib.contextmanager
def interrupts_as_event() -> Iterator[threading.Event]:
    """The event that Ctrl-C sets inside. Elsewhere than in the main thread, and where the program handles it itself,
    everything stays as it is, and the event is never set.
    """
    pressed = threading.Event()
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        yield pressed
        return
    signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
