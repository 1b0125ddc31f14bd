"""Requests by HTTP: a connection that is kept, what answers mean, where redirects may lead, how much is read.

It is Python's own client, in a thread of a reader or a committer, which may block: so there is no event loop to be
looked after. Certificates are verified. What is sent along (headers) goes to one origin alone, and is in no text.

Source: RFC 9110, "HTTP Semantics"; RFC 6585 (429).
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import http.client
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urljoin, urlsplit, urlunsplit

from headrace.engine.errors import ConfigurationError, ExternalError
from headrace.state.credentials import masked, secret_in

from ..messages.tls import Tls

__all__ = [
    "Answer",
    "Endpoint",
    "HttpAwayError",
    "HttpClient",
    "HttpRefusedError",
    "away",
    "basic_auth",
    "error_of_status",
    "origin_of",
    "with_parameter",
]

MOST_REDIRECTS = 5
SHOWN_CHARACTERS = 300
"""So much is shown of an answer that is an error."""

PASSED_OVER_BYTES = 64 << 10
"""So much is read of what nobody wants, so that the connection may be kept."""

WAITED_OUT = (408, 425, 429)
"""Beside 5xx: too late, too early, too many."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_SAFE = "%!#$&'()*+,/:;=?@[]~"
"""What stays as it is in an address, beside letters and digits."""

PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class HttpAwayError(ExternalError):
    """A server does not answer, or says that it may later.

    Attributes:
        wait_s: How long it asks to be left alone, in seconds.
        is_quiet: Whether it was connected to, and has said nothing for a while.
    """

    wait_s = 0.0
    is_quiet = False


class HttpRefusedError(ExternalError):
    """A server does not give what was asked for, and will not the next time; ``context["status"]`` if it said so."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, and who asks.

    Attributes:
        url: Where; without a password or what is named like a secret, as it is shown and kept in checkpoints.
        headers: What is sent along, as who asks; shown nowhere.
        tls: Whom to trust.
        timeout_s: How long an answer may take, or the next piece of it.
        max_bytes: How large an answer may be that is read as a whole.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Tls | None = None
    timeout_s: float = 60.0
    max_bytes: int = 64 << 20

    def check(self, *schemes: str) -> None:
        """See that it can be asked.

        Raises:
            ConfigurationError: If not.
        """
        try:
            parts = urlsplit(self.url)
            is_right = parts.scheme in schemes and bool(parts.hostname) and (parts.port or 1) > 0
            is_right = is_right and re.search(r"[\s\x00-\x1f\x7f]", self.url) is None and self.url.isascii()
        except (ValueError, TypeError, AttributeError):
            is_right = False
        if not is_right:
            message = f"url must be {schemes[-1]}://host:port/path; got {masked(str(self.url))!r}"
            raise ConfigurationError(message)
        if parts.username is not None or (secret := secret_in(self.url)) is not None:
            message = f"url has {'a user' if parts.username is not None else secret}; got {masked(self.url)!r}"
            hint = (
                "headers={'Authorization': ...} is sent along and shown nowhere; basic_auth(user, password) makes one"
            )
            raise ConfigurationError(message, hint=hint)
        if self.tls is not None and parts.scheme != schemes[-1]:
            message = f"tls is for {schemes[-1]}://; got {self.url!r}"
            raise ConfigurationError(message)
        for name, value in self.headers.items():
            if not isinstance(name, str) or _NAME.fullmatch(name) is None:
                message = f"a header has a name, as HTTP has them; got {name!r}"
                raise ConfigurationError(message)
            if not isinstance(value, str) or _VALUE.fullmatch(value) is None:
                message = f"the value of header {name!r} is not one that can be sent"
                raise ConfigurationError(message)


def basic_auth(user: str, password: str) -> dict[str, str]:
    """Return headers that say who asks, by name and password."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def origin_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL.

    Raises:
        ValueError: If it is none.
    """
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or PORTS.get(parts.scheme, 0)


def with_parameter(url: str, name: str, value: str) -> str:
    """Return a URL with a parameter of its query set."""
    parts = urlsplit(url)
    others = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != name]
    return urlunsplit(parts._replace(query=urlencode([*others, (name, value)])))


class Answer:
    """What a server has answered: status 200 to 299. To be read, or closed.

    Args:
        url: That was asked for.
        response: Of Python's client.
        max_bytes: As of `Endpoint`.
        close: Lets go of its connection.
    """

    def __init__(self, url: str, response: http.client.HTTPResponse, max_bytes: int, close: Callable[[], None]) -> None:
        self.url = url
        self.status = response.status
        self._response = response
        self._max_bytes = max_bytes
        self._close = close

    def header(self, name: str) -> str | None:
        """Return the value of a header."""
        return _header_of(self._response, name)

    def text(self) -> str:
        """Return all of it.

        Raises:
            HttpAwayError: If the connection breaks.
            HttpRefusedError: If it is too large, or no text in UTF-8.
        """
        try:
            body = _read(self._response, self._max_bytes)
        except (http.client.HTTPException, OSError) as error:
            self._close()
            raise away(self.url, error) from error
        if len(body) > self._max_bytes:
            message = f"the answer has more than {self._max_bytes} bytes, which max_bytes allows"
            raise HttpRefusedError(message, url=self.url)
        try:
            return body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            message = f"the answer is no text in UTF-8: {error}"
            raise HttpRefusedError(message, url=self.url) from error

    def skip(self) -> None:
        """Read it, and forget it; of a large one only the beginning.

        Raises:
            HttpAwayError: If the connection breaks.
        """
        try:
            _pass_over(self._response, self._close)
        except (http.client.HTTPException, OSError) as error:
            self._close()
            raise away(self.url, error) from error

    def piece(self) -> bytes:
        """Return the next bytes there are; none at the end.

        Raises:
            HttpAwayError: If the connection breaks, or nothing comes for as long as `Endpoint.timeout_s`.
        """
        try:
            found = self._response.read1(1 << 16)
        except TimeoutError as error:
            quiet = away(self.url, "it has said nothing for too long")
            quiet.is_quiet = True
            raise quiet from error
        except (http.client.HTTPException, OSError, ValueError) as error:  # ValueError: it was closed meanwhile
            raise away(self.url, error) from error
        if not found and self._response.length:
            message = "the answer is cut short"
            raise away(self.url, message)
        return found

    @property
    def says_its_end(self) -> bool:
        """Whether its end can be told from a connection that breaks."""
        headers = self._response.headers
        return "content-length" in headers or "chunked" in headers.get("transfer-encoding", "").lower()

    def require_end(self) -> None:
        """See that it is known to be whole, where nothing in it says so.

        Raises:
            HttpRefusedError: If its end cannot be told.
        """
        if not self.says_its_end:
            message = (
                "the answer does not say where it ends, so lines that a broken connection took would not be missed"
            )
            raise HttpRefusedError(message, hint="the server must send Content-Length, or chunks", url=self.url)


class HttpClient:
    """One connection, used by one thread at a time; only `interrupt` may be called by another.

    Args:
        endpoint: Of the server.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._context = (endpoint.tls or Tls()).context() if origin_of(endpoint.url)[0] == "https" else None

    def get(self, url: str, **headers: str) -> Answer:
        """Ask for something.

        Args:
            url: Of the endpoint's origin.
            **headers: Beside those of the endpoint, with ``_`` for ``-``.

        Raises:
            HttpAwayError: If there is no answer, or one that says to come later.
            HttpRefusedError: If it is another error.
        """
        return self.ask("GET", url, None, {name.replace("_", "-"): value for name, value in headers.items()})

    def ask(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        """As `get`, with a body."""
        for _ in range(MOST_REDIRECTS + 1):
            response = self._send(method, url, body, headers)
            if not 300 <= response.status < 400:
                return self._checked(url, response)
            url = self._redirected(method, url, response)
        message = f"there are more than {MOST_REDIRECTS} redirects"
        raise HttpRefusedError(message, url=url)

    def _send(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        # What a server names may have what an address has not: blanks, other alphabets.
        target = quote(urlunsplit(("", "", parts.path or "/", parts.query, "")), safe=_SAFE)
        given = {"Accept-Encoding": "identity", "User-Agent": "headrace", **headers, **self._endpoint.headers}
        try:
            if self._connection is None:
                self._connection = self._connect()
            self._connection.request(method, target, body, given)
            return self._connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            self.close()
            message = f"the server's certificate is not trusted: {error.verify_message}"
            raise HttpRefusedError(message, url=url) from error
        except (http.client.HTTPException, OSError) as error:
            self.close()
            raise away(url, error) from error

    def _connect(self) -> http.client.HTTPConnection:
        _, host, port = origin_of(self._endpoint.url)
        timeout_s = self._endpoint.timeout_s
        connection = (
            http.client.HTTPConnection(host, port, timeout=timeout_s)
            if self._context is None
            else http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._context)
        )
        connection.connect()
        self._socket = connection.sock
        return connection

    def _redirected(self, method: str, url: str, response: http.client.HTTPResponse) -> str:
        try:
            _pass_over(response, self.close)
        except (http.client.HTTPException, OSError):
            self.close()  # where to is told already
        target = urljoin(url, _header_of(response, "location") or "")
        if method != "GET" and response.status not in (307, 308):
            message = f"a request that sends something is redirected to {masked(target)}"
            raise HttpRefusedError(message, url=url, status=response.status)
        self.require_origin(target, "it redirects")
        return target

    def require_origin(self, target: str, what: str) -> None:
        """See that a place that a server names is its own: nobody else is sent what says who asks.

        Raises:
            HttpRefusedError: If not.
        """
        try:
            is_own = origin_of(target) == origin_of(self._endpoint.url)
        except ValueError:
            is_own = False
        if not is_own:
            message = f"{what} to another server, {masked(target)}"
            hint = "give that server's address; nothing that is sent along goes to another one"
            raise HttpRefusedError(message, hint=hint, url=self._endpoint.url)

    def _checked(self, url: str, response: http.client.HTTPResponse) -> Answer:
        status = response.status
        if 200 <= status < 300:
            encoding = response.headers.get("content-encoding", "identity").lower()
            if encoding != "identity":
                self.close()
                message = f"the answer is encoded as {encoding!r}, which was not asked for"
                raise HttpRefusedError(message, url=url)
            return Answer(url, response, self._endpoint.max_bytes, self.close)
        told = b""
        with contextlib.suppress(http.client.HTTPException, OSError):
            told = response.read(SHOWN_CHARACTERS)
        self.close()
        raise error_of_status(url, status, response.reason, told, response.headers.get("retry-after"))

    def interrupt(self) -> None:
        """Have what is read in another thread end; what comes after fails."""
        found = self._socket
        if found is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(found, socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connection; never raises."""
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()


def _read(response: http.client.HTTPResponse, most: int) -> bytes:
    """The body; of one that is larger than that, a byte more.

    Raises:
        http.client.IncompleteRead: If it was cut short, which Python's client tells only where all is asked for.
    """
    body = response.read(most + 1)
    if len(body) <= most and response.length:
        raise http.client.IncompleteRead(body, response.length)
    return body


def _pass_over(response: http.client.HTTPResponse, close: Callable[[], None]) -> None:
    """Have the connection be free for the next request, or close it if there is much to read.

    Raises:
        OSError, http.client.HTTPException: If it breaks.
    """
    if len(_read(response, PASSED_OVER_BYTES)) > PASSED_OVER_BYTES:
        close()


def _header_of(response: http.client.HTTPResponse, name: str) -> str | None:
    """The value of a header: a text in UTF-8, if it is one, else in Latin-1."""
    found = response.headers.get(name)
    if found is None or found.isascii():
        return found
    try:
        return found.encode("latin-1").decode()
    except UnicodeError:
        return found


def away(url: str, why: Any) -> HttpAwayError:
    """Return the error that a server cannot be reached."""
    message = f"the server cannot be reached: {masked(str(why) or repr(why))}"
    return HttpAwayError(message, url=url)


def error_of_status(
    url: str, status: int, reason: str, told: bytes, retry_after: str | None
) -> HttpAwayError | HttpRefusedError:
    """Return what a status means that is not 200 to 299: whether the same may work later.

    Args:
        url: What was asked for.
        status: Of the answer.
        reason: Its words.
        told: The beginning of its body.
        retry_after: The header of that name.
    """
    text = f"the server answers {status} {reason}: {told.decode(errors='replace').strip()}"
    if status in WAITED_OUT or status >= 500:
        error = HttpAwayError(text, url=url)
        error.wait_s = _wait_s(retry_after)
        return error
    return HttpRefusedError(text, url=url, status=status)


def _wait_s(text: str | None) -> float:
    """What ``Retry-After`` says, in seconds; 0 if it says nothing."""
    if text is None:
        return 0.0
    if re.fullmatch(r"\s*[0-9]{1,9}\s*", text):
        return float(text)
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return 0.0
