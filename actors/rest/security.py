"""Who may ask what: the token, the name the server is called by, the page that asks; and what browsers are told.

A request is let in if its ``Host`` is a name of this server (a page that has its own name point here is not), if its
``Origin``, where there is one, is the server's own or an allowed one, and if it brings a token as
``Authorization: Bearer``. Tokens are nowhere else: not in URLs, which end in logs, and not in cookies, which browsers
send for any page. So no page of somebody else's can have a browser ask in the user's name, whatever the method.

Source: CVE-2025-62593 and CVE-2026-27482 of Ray, on rebinding and on methods that were forgotten; RFC 6750; the
Content Security Policy of W3C.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from headrace.engine.kernel.rest_settings import RestSettings

from .resources.routes import RestError, Right

__all__ = ["HEADERS", "KEPT", "PAGE_HEADERS", "Guard", "Tokens", "fresh_tokens"]

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Of every answer that is no page."""

PAGE_HEADERS = {
    **HEADERS,
    "content-security-policy": (
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
}
"""Of pages: they may load what this server has, and nothing else; no text becomes markup or a script."""

KEPT = "private, max-age=31536000, immutable"
"""What a browser is told of a file whose path changes with its content."""

_OWN_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a client shows to be let in.

    Attributes:
        write: Allows everything.
        read: Allows looking.
    """

    write: str = field(repr=False)
    read: str = field(repr=False)


def fresh_tokens() -> Tokens:
    """Make tokens that nobody can guess."""
    return Tokens(secrets.token_urlsafe(32), secrets.token_urlsafe(32))


class Guard:
    """Lets requests in.

    Args:
        settings: The server's.
        tokens: What is asked for.
    """

    def __init__(self, settings: RestSettings, tokens: Tokens) -> None:
        names = {*_OWN_NAMES, settings.bind_address, *settings.allowed_hosts, settings.address}
        self._names = {name.lower() for name in names if name}
        self._origins = {origin.lower() for origin in settings.allowed_origins}
        self._scheme = "http" if settings.certificate_file is None else "https"
        self._write, self._read = _digest(tokens.write), _digest(tokens.read)

    def admit(self, headers: Mapping[str, str]) -> Right:
        """Return the right that a request has.

        Args:
            headers: Of the request, by names in small letters.

        Raises:
            RestError: 403 for a wrong host or origin, 401 without a good token.
        """
        self.require_own(headers)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        digest = _digest(token.strip() if scheme.lower() == "bearer" else "")
        may_write = hmac.compare_digest(digest, self._write)
        may_read = hmac.compare_digest(digest, self._read)
        if may_write:
            return Right.WRITE
        if may_read:
            return Right.READ
        raise RestError(401, "a token is needed, as 'Authorization: Bearer ...'")

    def require_own(self, headers: Mapping[str, str]) -> None:
        """Refuse who asks by another name, or from another's page.

        Raises:
            RestError: 403.
        """
        host = headers.get("host", "").lower()
        if _name_of(host) not in self._names:
            raise RestError(403, "this server does not go by the name that it was asked by (rest.allowed-hosts)")
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"{self._scheme}://{host}", *self._origins):
            raise RestError(403, "pages of this origin may not ask (rest.allowed-origins)")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _name_of(host: str) -> str:
    """The name in a ``Host`` header, without its port; empty if it is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return ""
    is_plain = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    return (parts.hostname or "") if is_plain else ""
