"""Connections of the REST server: one on which no request comes is closed, as nobody has shown a token on it yet.

There is room for a fixed number of connections. Without an end to waiting, anybody who reaches the port could take
all of them, by saying nothing or a request's head letter by letter, and nobody else would be answered.
"""

from __future__ import annotations

import asyncio
import contextlib

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Connection", "Server"]

HEAD_TIMEOUT_S = 10.0
"""How long the head of a request may take, from the connection's beginning or the answer before it."""


class Connection(H11Protocol):
    """One connection."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note that the connection begins."""
        super().connection_made(transport)
        self._wait_for_head()

    def on_response_complete(self) -> None:
        """Note that a request has been answered."""
        self._wait_for_head()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._close_unasked)

    def _close_unasked(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering and not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """Sleeps while nobody asks. Uvicorn's own loop looks ten times a second whether it is to end: in a process that has
    a job to run, each look takes the interpreter from it.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        """Wait until it is to end."""
        await self.on_tick(0)
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._ended.wait()

    def end(self) -> None:
        """Have it end; from any thread, also before it has begun."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._ended.set)
