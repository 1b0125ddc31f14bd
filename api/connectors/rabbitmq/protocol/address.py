"""Where a server of RabbitMQ is, and the client of its queues, imported when it is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from headrace.state.extras import needs

from ...messages.server_urls import ServerUrl

__all__ = ["Address", "pika"]

TIMEOUT_S = 30.0
"""For one answer, and for a connection."""

HEARTBEAT_S = 30
"""How long a side may be silent until the other one takes the connection for broken: twice that."""

QUEUE_PORT = 5672
STREAM_PORT = 5552


def pika() -> Any:
    """Return the client library of queues.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("queues of RabbitMQ need their client, pika", "rabbitmq"):
        import pika as library
        import pika.exceptions
    return library


@dataclass(frozen=True, slots=True)
class Address:
    """A server, and who asks.

    Attributes:
        host: Its name.
        port: Of the protocol that is spoken.
        user: Who.
        password: Of the user.
        virtual_host: Where queues and streams are.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    virtual_host: str

    @classmethod
    def of(cls, url: str, scheme: str, port: int) -> Address:
        """Read ``scheme://user:password@host:port/virtual-host``; a missing part is RabbitMQ's default.

        Raises:
            ConfigurationError: If it is none.
        """
        found = ServerUrl.of(url, {scheme: port}, f"{scheme}://user:password@host:port/virtual-host")
        virtual_host = unquote(found.path.removeprefix("/")) or "/"
        return cls(found.host, found.port, found.user or "guest", found.password or "guest", virtual_host)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def parameters(self) -> Any:
        """Return the address for the client of queues."""
        library = pika()
        return library.ConnectionParameters(
            host=self.host,
            port=self.port,
            virtual_host=self.virtual_host,
            credentials=library.PlainCredentials(self.user, self.password),
            heartbeat=HEARTBEAT_S,
            socket_timeout=TIMEOUT_S,
            blocked_connection_timeout=None,  # a server that is short of memory is waited for
        )
