"""Threads for blocking calls of user functions.

As many as there are calls at once, up to a limit; beyond it calls wait their turn. They are daemons: a call that never
returns (which the standard library's pool would wait for when the interpreter ends) does not keep the process alive.
The engine's own I/O does not run here, for it must not be cut off in the middle.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

__all__ = ["CallThreads"]


class CallThreads:
    """A pool of daemon threads.

    Args:
        max_threads: How many calls run at once.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        # Guards everything here, and tells idle threads that a call waits or that it is over.
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[None], Callable[[], None]]] = deque()
        self._num_threads = self._num_idle = 0
        self._is_closed = False

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Run a call as soon as there is a thread for it.

        Args:
            call: Raises nothing.

        Returns:
            Its handle: ``cancel()`` takes it back if it has not begun.
        """
        future: Future[None] = Future()
        with self._changed:
            if self._is_closed:
                future.cancel()
                return future
            self._waiting.append((future, call))
            if len(self._waiting) > self._num_idle and self._num_threads < self._max_threads:
                self._num_threads += 1
                threading.Thread(target=self._work, name=f"headrace-call-{self._num_threads}", daemon=True).start()
            else:
                self._changed.notify()
        return future

    def close(self) -> None:
        """Begin nothing any more; what runs goes on, and is not waited for."""
        with self._changed:
            self._is_closed = True
            while self._waiting:
                self._waiting.popleft()[0].cancel()
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._num_idle += 1
                while not self._waiting and not self._is_closed:
                    self._changed.wait()
                self._num_idle -= 1
                if not self._waiting:
                    return
                future, call = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                call()
                future.set_result(None)
            del future, call  # what a call holds must not live until the next one
