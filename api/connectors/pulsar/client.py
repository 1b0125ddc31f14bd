"""Where Pulsar is, its client, imported when it is needed, and what its errors mean."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from headrace.engine.errors import ConfigurationError
from headrace.state.credentials import masked
from headrace.state.extras import needs

__all__ = ["Client", "pulsar", "told", "will_not_pass"]

TIMEOUT_S = 10
"""For one answer."""

_WILL_NOT_PASS = ("TopicNotFound", "InvalidTopicName", "AuthenticationError", "AuthorizationError", "InvalidUrl")


def pulsar() -> Any:
    """Return the client library.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("topics of Pulsar need its client, pulsar-client", "pulsar"):
        import pulsar as library
    return library


def told(error: Exception) -> str:
    """Return what the client says, in a form for errors."""
    return masked(str(error).removeprefix("Pulsar error: ") or repr(error))


def will_not_pass(error: Exception) -> bool:
    """Return whether asking again would give the same error."""
    return type(error).__name__ in _WILL_NOT_PASS


@dataclass(frozen=True, slots=True)
class Client:
    """A cluster, and who asks.

    Attributes:
        url: ``pulsar://host:port``, several hosts with commas between; ``pulsar+ssl://`` with TLS.
        token: Who asks, as Pulsar's tokens say it; None for nobody.
        options: More settings of ``pulsar.Client``, as those of TLS.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url) if isinstance(self.url, str) else None
        if parts is None or parts.scheme not in ("pulsar", "pulsar+ssl") or not parts.netloc:
            message = f"service_url must be pulsar://host:port or pulsar+ssl://host:port; got {masked(str(self.url))!r}"
            raise ConfigurationError(message)

    def connect(self) -> Any:
        """Return a client of its own, which asks when it is used."""
        library = pulsar()
        quiet = library.FileLogger(library.LoggerLevel.Error, os.devnull)  # errors are raised as well
        settings: dict[str, Any] = {"operation_timeout_seconds": TIMEOUT_S, "logger": quiet, **self.options}
        if self.token is not None:
            settings["authentication"] = library.AuthenticationToken(self.token)
        try:
            return library.Client(self.url, **settings)
        except (TypeError, ValueError) as error:
            message = f"pulsar.Client does not take its options: {masked(str(error))}"
            raise ConfigurationError(message) from error
