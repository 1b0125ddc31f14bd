"""A connection of WebSocket: what is sent and received, whether the other end is alive, and what its end means.

It is the client of the package ``websockets`` for threads. Proxies of the environment are not used, redirects not
followed, and compression is not asked for: a message is as large as what is read.

Invariant: pings are sent only where nothing waits to be received, so that a server is not given up because nobody takes
what it sends. Nor is one of which anything comes, if only a part of a message: it cannot answer a ping within a frame.

Source: RFC 6455, "The WebSocket Protocol"; IANA, "WebSocket Close Code Number Registry".
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.errors import ConfigurationError
from headrace.state.credentials import masked
from headrace.state.extras import needs

from ..http.client import Endpoint, HttpAwayError, HttpRefusedError, away, error_of_status, origin_of
from ..messages.tls import Tls

__all__ = ["ClosedError", "Dialing", "WebSocketConnection", "check_client", "dialing_of", "messages_of"]

NORMAL = 1000
"""A connection that has done what it was for."""

FOR_GOOD = frozenset({1002, 1003, 1007, 1008, 1009, 1010, 3000, 3003})
"""Codes that blame who has connected: protocol, kind of data, policy, size, extension, unauthorized, forbidden."""

CLOSE_TIMEOUT_S = 1.0

FRAMES_AHEAD = 16
"""So many frames may wait in the client until it reads no more."""

MOST_MESSAGES = 500
MOST_BYTES = 1 << 20
"""Of what is received at once, but for the message that reaches them."""


class ClosedError(HttpAwayError):
    """A server has closed the connection.

    Attributes:
        is_normal: Whether it says that all is done.
    """

    is_normal = False


@dataclass(frozen=True, slots=True)
class Dialing:
    """How connections are made.

    Attributes:
        endpoint: Who asks, and how large a message may be.
        subprotocols: Offered to the server, the best one first; it must take one of them, if there are any.
        ping_s: How long nothing may come until the server is asked whether it is there.
    """

    endpoint: Endpoint
    subprotocols: tuple[str, ...]
    ping_s: float


def check_client() -> Any:
    """Return the client's module.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("WebSocket needs a client, websockets", "websocket"):
        import websockets.sync.client
    log = logging.getLogger("websockets")
    if log.level == logging.NOTSET:  # who asks tells of errors
        log.setLevel(logging.CRITICAL)
    return websockets.sync.client


class WebSocketConnection:
    """An open connection, used by one thread; only `interrupt` may be called by another.

    Args:
        dialing: How it is made.
        url: Where to; of the endpoint's origin.

    Raises:
        HttpAwayError: If there is no answer, or one that says to come later.
        HttpRefusedError: If it is another one.
        ConfigurationError: If the client is not installed.
    """

    def __init__(self, dialing: Dialing, url: str) -> None:
        self._url = url
        self._ping_s = dialing.ping_s
        self._endpoint = dialing.endpoint
        self._open = contextlib.ExitStack()
        # When anything was heard of the server last, by the monotonic clock; the client's thread writes it.
        self._heard_s = time.monotonic()
        self._connection = self._opened(dialing)
        # When a ping was sent behind which nothing was heard; None if there is none.
        self._asked_s: float | None = None

    def _opened(self, dialing: Dialing) -> Any:
        client = check_client()
        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

        endpoint, url = self._endpoint, self._url
        scheme, host, port = origin_of(url)
        try:
            plain = socket.create_connection((host, port), timeout=endpoint.timeout_s)
            plain.settimeout(None)
            # A server that takes not one byte for so long stands still; else the sender would wait for it for ever.
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(endpoint.timeout_s))
            opening = client.connect(
                url,
                sock=plain,
                ssl=(endpoint.tls or Tls()).context() if scheme == "wss" else None,
                compression=None,
                subprotocols=list(dialing.subprotocols) or None,
                additional_headers=dict(endpoint.headers),
                user_agent_header="headrace",
                open_timeout=endpoint.timeout_s,
                close_timeout=CLOSE_TIMEOUT_S,
                ping_interval=None,
                max_size=endpoint.max_bytes,
                max_queue=FRAMES_AHEAD,
                create_connection=self._listening(client.ClientConnection),
            )
            connection = self._open.enter_context(opening)  # which connects, from version 17 on
        except ssl.SSLCertVerificationError as error:
            message = f"the server's certificate is not trusted: {error.verify_message}"
            raise HttpRefusedError(message, url=url) from error
        except (InvalidStatus, ValueError) as error:  # ValueError: of a redirect, which is not followed
            status = error if isinstance(error, InvalidStatus) else error.__cause__
            if not isinstance(status, InvalidStatus):
                raise
            answer = status.response
            told = bytes(answer.body or b"")[:300]
            raise error_of_status(
                url, answer.status_code, answer.reason_phrase, told, answer.headers.get("Retry-After")
            ) from error
        except InvalidHandshake as error:  # also a connection that breaks meanwhile
            if isinstance(error.__cause__, (OSError, EOFError)):
                raise away(url, error) from error
            message = f"the server does not speak WebSocket there: {masked(str(error))}"
            raise HttpRefusedError(message, url=url) from error
        except (OSError, EOFError, ConnectionClosed) as error:  # ConnectionClosed: between accepting it and reading
            raise away(url, error) from error
        if dialing.subprotocols and connection.subprotocol is None:
            self.close()
            message = f"the server takes none of the subprotocols {', '.join(dialing.subprotocols)}"
            raise HttpRefusedError(message, url=url)
        return connection

    def _listening(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """What makes the client's connection, and notes when bytes come."""

        def made(plain: Any, protocol: Any, **settings: Any) -> Any:
            take = protocol.receive_data

            def receive_data(data: bytes) -> None:
                self._heard_s = time.monotonic()
                take(data)

            protocol.receive_data = receive_data
            return make(plain, protocol, **settings)

        return made

    def send(self, message: str | bytes) -> None:
        """Send a text, or bytes; waits while the server reads nothing, up to the endpoint's time-out.

        Raises:
            HttpAwayError: If the connection is closed, or breaks, or the server takes nothing.
            HttpRefusedError: If it was closed for good.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            self._connection.send(message)
        except ConnectionClosed as error:
            raise self._closed(error) from error

    def receive(self, timeout_s: float) -> list[bytes]:
        """Return the messages that have come, some at a time; none if none comes in time.

        Raises:
            HttpAwayError: If the connection is closed, breaks, or the server does not answer a ping.
            HttpRefusedError: If it was closed for good, or something came that is not read.
        """
        from websockets.exceptions import ConnectionClosed

        found: list[bytes] = []
        num_bytes = 0
        try:
            while len(found) < MOST_MESSAGES and num_bytes < MOST_BYTES:
                found.append(self._connection.recv(0 if found else timeout_s, decode=False))
                num_bytes += len(found[-1])
        except TimeoutError:
            if not found:
                self._check_alive()
        except ConnectionClosed as error:
            if not found:  # otherwise it is told the next time
                raise self._closed(error) from error
        if found:
            self._heard_s = time.monotonic()
        return found

    def ping(self) -> threading.Event:
        """Ask the server to say when it has received all that was sent before.

        Raises:
            HttpAwayError: If the connection is closed, or breaks.
            HttpRefusedError: If it was closed for good.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            answered: threading.Event = self._connection.ping()
        except ConnectionClosed as error:
            raise self._closed(error) from error
        return answered

    def _check_alive(self) -> None:
        now_s = time.monotonic()
        if self._asked_s is None or self._heard_s > self._asked_s:
            self._asked_s = None
            if now_s - self._heard_s >= self._ping_s:
                self._asked_s = now_s
                self.ping()
        elif now_s - self._asked_s > self._endpoint.timeout_s:
            message = f"it has not answered a ping for {self._endpoint.timeout_s:g} s"
            raise away(self._url, message)

    def _closed(self, error: Any) -> HttpAwayError | HttpRefusedError:
        received, sent = error.rcvd, error.sent
        if sent is not None and (received is None or not error.rcvd_then_sent) and sent.code in FOR_GOOD:
            size = f"a message has more than {self._endpoint.max_bytes} bytes, which max_bytes allows"
            message = f"what the server sends is not read: {size if sent.code == 1009 else sent}"
            return HttpRefusedError(message, url=self._url)
        if received is None:
            return away(self._url, error.__cause__ or "the connection is broken")
        message = f"the server has closed the connection: {masked(str(received))}"
        if received.code in FOR_GOOD:
            return HttpRefusedError(message, url=self._url)
        closed = ClosedError(message, url=self._url)
        closed.is_normal = received.code == NORMAL
        return closed

    def interrupt(self) -> None:
        """Have what waits in another thread end; what comes after fails."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connection.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; waits a moment for the server to agree, and never raises."""
        with contextlib.suppress(Exception):
            self._open.close()


def _timeval(seconds: float) -> bytes:
    """A length of time as the kernel has it."""
    whole = int(seconds)
    return struct.pack("ll", whole, max(int((seconds - whole) * 1_000_000), 1))


def dialing_of(endpoint: Endpoint, subprotocols: str | Sequence[str], ping_s: float) -> Dialing:
    """Return how connections are made, as arguments say it.

    Raises:
        ConfigurationError: If a subprotocol is none.
    """
    names = (subprotocols,) if isinstance(subprotocols, str) else tuple(subprotocols)
    for name in names:
        if not isinstance(name, str) or not name.isascii() or not name.isprintable() or set(name) & set(' ,;"'):
            message = f"a subprotocol is a name, as graphql-transport-ws; got {name!r}"
            raise ConfigurationError(message)
    return Dialing(endpoint, names, ping_s)


def messages_of(name: str, given: Any, *kinds: type) -> tuple[Any, ...]:
    """Return a message, or several, as an argument says them.

    Raises:
        ConfigurationError: If these are none.
    """
    found = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if not all(isinstance(one, kinds) for one in found):
        message = f"{name} is a message, or several"  # not shown: it may say who asks
        raise ConfigurationError(message)
    return found
