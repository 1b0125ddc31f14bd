"""The client of Redis, imported when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.errors import ConfigurationError
from headrace.state.credentials import masked
from headrace.state.extras import needs

__all__ = ["Client", "redis"]

TIMEOUT_S = 30.0
"""For one answer, and for a connection."""

SCHEMES = ("redis://", "rediss://", "unix://")
OWN_OPTIONS = {"decode_responses", "socket_timeout", "socket_connect_timeout", "retry", "protocol"}


def redis() -> Any:
    """Return the client library.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("Redis needs its client, redis", "redis"):
        import redis as library
    return library


@dataclass(frozen=True)
class Client:
    """Makes connections to one server.

    Attributes:
        url: ``redis://user:password@host:port/database``; ``rediss://`` with TLS.
        options: More of the client's own settings, as ``ssl_ca_certs``.
    """

    url: str = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.startswith(SCHEMES):
            message = f"url must begin with {', '.join(SCHEMES)}; got {masked(str(self.url))!r}"
            raise ConfigurationError(message)
        for name in self.options:
            if name in OWN_OPTIONS:
                message = f"the option {name!r} of the client of Redis is not for the program to set"
                raise ConfigurationError(message)

    def connect(self) -> Any:
        """Return a connection, which is made with the first question.

        Raises:
            ConfigurationError: If the client takes the url or an option for wrong.
        """
        library = redis()
        # Who asks decides what is asked again: not the client, by itself.
        own = {
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "retry": library.retry.Retry(library.backoff.NoBackoff(), 0),
            "protocol": 2,
        }
        try:
            return library.Redis.from_url(self.url, **{**self.options, **own})
        except (ValueError, TypeError) as error:
            message = f"Redis cannot be connected to: {masked(str(error))}"
            raise ConfigurationError(message) from error
