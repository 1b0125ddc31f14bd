"""Offloaded work in the simulator: done at one moment, while what its coroutines sleep is measured.

They run on an event loop on which time goes on by itself, as fast as somebody waits for it.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

from headrace.engine.kernel.machine import Offload

__all__ = ["OffloadedWorks"]


class _VirtualSelector(selectors.DefaultSelector):
    """A selector that does not wait: time goes on at once."""

    # Virtual seconds.
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready: list[Any] = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on which sleeping takes no time but is measured."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


class OffloadedWorks:
    """Does offloaded work, each from its beginning to its end."""

    def __init__(self) -> None:
        # Made for the first coroutine.
        self._loop: _VirtualLoop | None = None

    def do(self, work: Offload) -> tuple[Any, int]:
        """Do a work; gives its result, and how long a coroutine has slept for it (microseconds)."""
        if work.kind != "coroutine":
            return work.work(), 0
        if self._loop is None:
            self._loop = _VirtualLoop()
        before = self._loop.time()
        result = self._loop.run_until_complete(_awaited(work))
        return result, int((self._loop.time() - before) * 1_000_000)

    def close(self) -> None:
        """Close the loop."""
        if self._loop is not None:
            self._loop.close()


async def _awaited(work: Offload) -> Any:
    return await work.work()
