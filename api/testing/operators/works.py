"""Work that operators have done outside (asynchronous requests), done on the spot instead.

In production such work runs beside the task and its end comes when it comes. Under a manual clock it is done where it
is found, before the harness gives control back to the test: a coroutine on an event loop of the harness, to its end,
anything else as a plain call. So results never depend on who is faster. Timeouts, which are timers, never strike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.engine.errors import raise_from_outside
from headrace.engine.kernel.machine import OffloadKind

__all__ = ["WorkRunner"]


class WorkRunner:
    """Does work, one after another; coroutines all on one event loop, as clients are bound to theirs."""

    def __init__(self) -> None:
        # Made with the first coroutine. In a thread of its own, as the test may itself run on an event loop.
        self._thread: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Callable[[], Any], kind: OffloadKind) -> tuple[Any, BaseException | None]:
        """Do some work; gives its result and its failure, one of which is None."""
        try:
            if kind == "coroutine":
                return self._run_coroutine(work), None
            return work(), None
        except BaseException as error:
            raise_from_outside(error)
            return None, error

    def close(self) -> None:
        """End the event loop, if there is one."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None:
            thread.submit(self._loop.close).result()
            thread.shutdown()

    def _run_coroutine(self, work: Callable[[], Any]) -> Any:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-testing")
            self._loop = asyncio.new_event_loop()
        loop = self._loop
        assert loop is not None

        async def awaited() -> Any:
            return await work()

        return self._thread.submit(lambda: loop.run_until_complete(awaited())).result()
