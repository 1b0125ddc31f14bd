"""Where a server is and who asks, as a URL says it: ``scheme://user:password@host:port/path``.

Source: RFC 3986.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from headrace.engine.errors import ConfigurationError
from headrace.state.credentials import masked

__all__ = ["ServerUrl"]


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """The parts of a URL; what is written as ``%40`` is a letter again.

    Attributes:
        scheme: The protocol.
        host: The server's name.
        port: Where it listens.
        user: Who asks; None for nobody.
        password: Of the user; None without one.
        path: What stands behind the port, as it is written.
    """

    scheme: str
    host: str
    port: int
    user: str | None
    password: str | None = field(repr=False)
    path: str

    @classmethod
    def of(cls, url: str, ports: Mapping[str, int], form: str) -> ServerUrl:
        """Read a URL.

        Args:
            url: The URL. No error shows its password.
            ports: The schemes that it may have, and the port that each means if none is written.
            form: What it must be, for errors.

        Raises:
            ConfigurationError: If it is none of these, or has options behind a ``?`` or ``#``.
        """
        message = f"url must be {form}; got {masked(str(url))!r}"
        try:
            parts = urlsplit(url)
            port = parts.port
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(message) from error
        if parts.scheme not in ports or not parts.hostname or parts.query or parts.fragment:
            raise ConfigurationError(message)
        user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
        return cls(parts.scheme, parts.hostname, port or ports[parts.scheme], user, password, parts.path)
