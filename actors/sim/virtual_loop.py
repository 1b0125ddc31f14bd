"""An event loop on which time goes on by itself, as fast as somebody waits for it: sleeping is measured, not done."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

__all__ = ["VirtualLoop"]


class _VirtualSelector(selectors.DefaultSelector):
    """A selector that does not wait: time goes on at once."""

    # Virtual seconds.
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready: list[Any] = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on which sleeping takes no time but is measured."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now
