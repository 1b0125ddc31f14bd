"""Where the work that machines offload is run, for hosts with real time: thread pools and one event loop.

Three kinds, kept apart so that none starves another. The engine's own I/O (snapshots, the checkpoint store) has a few
threads. Blocking calls of user functions have a pool of their own, which grows with what is in flight at once.
Coroutines of user functions share one event loop in one thread: a thousand that wait cost next to nothing, and
whatever is bound to a loop (a client's session) is always used on the same one.

Everything starts when it is first needed. Any thread may call; ends are told on whatever thread the work ran. Work
that is cancelled has an end, too: a coroutine ends with ``CancelledError``, a call that runs in a thread goes on.

Source: Flink's ``AsyncFunction`` contract (the client brings its own threads); asyncio.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headrace.engine.kernel.machine import CancelOffload, Offload, OffloadCompleted

__all__ = ["CallThreads", "OffloadPools"]

NUM_IO_THREADS = 4

MAX_BLOCKING_THREADS = 256
"""Blocking calls of user functions that run at once in one process; more wait their turn."""

_Key = tuple[str, str, str, Hashable]


class OffloadPools:
    """Runs the offloaded work of a process's hosts.

    Args:
        on_end: Called with host, machine and the end of each work; from another thread.
    """

    def __init__(self, on_end: Callable[[str, str, OffloadCompleted], None]) -> None:
        self._on_end = on_end
        self._io: ThreadPoolExecutor | None = None
        self._blocking: CallThreads | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # What the loop is to do next, in order; and whether it has been woken to do so.
        self._orders: deque[Callable[[], None]] = deque()
        self._is_woken = False
        # What runs and can be cancelled; coroutines are touched by the loop's thread only.
        self._coroutines: dict[_Key, asyncio.Task[OffloadCompleted]] = {}
        self._calls: dict[_Key, Future[None]] = {}

    def run(self, host: str, actor: str, work: Offload) -> None:
        """Begin some work."""
        if work.kind == "coroutine":
            self._order(lambda: self._begin(host, actor, work))
            return
        if work.kind == "io":
            if self._io is None:
                self._io = ThreadPoolExecutor(NUM_IO_THREADS, thread_name_prefix="headrace-io")
            self._io.submit(self._call, host, actor, work)
            return
        if self._blocking is None:
            self._blocking = CallThreads(MAX_BLOCKING_THREADS)
        key = (host, actor, work.name, work.token)
        call = self._calls[key] = self._blocking.submit(lambda: self._call(host, actor, work))
        call.add_done_callback(lambda _call: self._calls.pop(key, None))

    def cancel(self, host: str, actor: str, command: CancelOffload) -> None:
        """Give up work that is not waited for; what runs in a thread goes on, what waits for one does not begin."""
        key = (host, actor, command.name, command.token)
        call = self._calls.get(key)
        if call is not None:
            call.cancel()
        elif self._loop is not None:
            self._order(lambda: self._cancel(key))

    def forget(self, host: str) -> None:
        """Cancel the coroutines that a host has left behind, as it has ended."""
        if self._loop is not None:
            self._order(lambda: self._cancel_all_of(host))

    def close(self) -> None:
        """Stop; nothing is begun any more. What users' calls do in threads goes on.

        The engine's own I/O that is under way is waited for: nothing writes to a checkpoint store after the end.
        """
        if self._io is not None:
            self._io.shutdown(wait=True, cancel_futures=True)
        if self._blocking is not None:
            self._blocking.close()
        if self._loop is not None:
            self._order(self._stop)

    # ------------------------------------------------------------------------------------------------------- in threads
    def _call(self, host: str, actor: str, work: Offload) -> None:
        try:
            completed = OffloadCompleted(work.name, work.token, work.work(), None)
        except BaseException as error:
            completed = OffloadCompleted(work.name, work.token, None, error)
        self._on_end(host, actor, completed)

    # ------------------------------------------------------------------------------------------------------ on the loop
    def _order(self, action: Callable[[], None]) -> None:
        """Have something done on the loop; many orders at once wake it once."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.new_event_loop()
            threading.Thread(target=_drive, args=(loop,), name="headrace-coroutines", daemon=True).start()
        self._orders.append(action)
        if not self._is_woken:
            self._is_woken = True
            loop.call_soon_threadsafe(self._obey)

    def _obey(self) -> None:
        self._is_woken = False  # before the first look, so that what comes behind the last one wakes it again
        while self._orders:
            self._orders.popleft()()

    def _begin(self, host: str, actor: str, work: Offload) -> None:
        assert self._loop is not None
        key = (host, actor, work.name, work.token)
        task = self._coroutines[key] = self._loop.create_task(_completed(work))
        task.add_done_callback(lambda task: self._coroutine_ended(key, work, task))

    def _coroutine_ended(self, key: _Key, work: Offload, task: asyncio.Task[OffloadCompleted]) -> None:
        del self._coroutines[key]
        # Cancelled before its first step it has not come to `_completed`.
        cancelled = OffloadCompleted(work.name, work.token, None, asyncio.CancelledError())
        self._on_end(key[0], key[1], cancelled if task.cancelled() else task.result())

    def _cancel(self, key: _Key) -> None:
        task = self._coroutines.get(key)
        if task is not None:
            task.cancel()

    def _cancel_all_of(self, host: str) -> None:
        for key in [key for key in self._coroutines if key[0] == host]:
            self._cancel(key)

    def _stop(self) -> None:
        assert self._loop is not None
        for task in self._coroutines.values():
            task.cancel()
        self._loop.call_soon(self._loop.stop)


async def _completed(work: Offload) -> OffloadCompleted:
    try:
        return OffloadCompleted(work.name, work.token, await work.work(), None)
    except BaseException as error:  # what ends a program elsewhere must not end the loop
        return OffloadCompleted(work.name, work.token, None, error)


def _drive(loop: asyncio.AbstractEventLoop) -> None:
    """The loop's thread."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        unfinished: Any = asyncio.all_tasks(loop)
        if unfinished:  # cancelled, and given the chance to clean up
            loop.run_until_complete(asyncio.wait(unfinished, timeout=1))
    finally:
        loop.close()


class CallThreads:
    """Threads for blocking calls of user functions: as many as there are calls at once, up to a limit.

    Beyond it calls wait their turn. The threads are daemons: a call that never returns (which the standard library's
    pool would wait for when the interpreter ends) does not keep the process alive. The engine's own I/O does not run
    here, for it must not be cut off in the middle.

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
