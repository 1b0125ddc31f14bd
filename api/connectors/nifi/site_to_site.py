"""NiFi's site-to-site protocol over HTTP: transactions of flow files with one port.

A transaction is made by POST, its flow files are got or posted as one stream, and it is ended by DELETE with a word:
both sides have counted a checksum (CRC-32) over the stream by then. A transaction that is not ended is rolled back by
NiFi when its time to live is over, which PUT begins anew.

Source: NiFi's ``SiteToSiteRestApiClient``, ``HttpClientTransaction``, ``StandardFlowFileCodec``, ``ResponseCode``.
"""

from __future__ import annotations

import http.client
import json
import ssl
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from headrace.engine.errors import ConfigurationError, ExternalError, SourceError
from headrace.state.credentials import masked

from ..messages.server_urls import ServerUrl
from ..messages.tls import Tls

__all__ = ["Direction", "FlowFile", "NiFiAwayError", "Place", "Refused", "Site", "Transaction", "decoded", "encoded"]

Direction = Literal["output-ports", "input-ports"]
"""Where flow files come from, or go to, as NiFi sees it."""

TIMEOUT_S = 30.0
MOST_BYTES = 256 << 20
"""Of one answer."""

MOST_ATTRIBUTES = 25_000
PROTOCOL_VERSION = "1"
_HEADER = "x-nifi-site-to-site-"

CONFIRM, FINISHED, FINISHED_AND_FULL, CANCEL, BAD_CHECKSUM = 12, 13, 14, 15, 19
PORT_NOT_RUNNING, PORT_FULL = 201, 202


class NiFiAwayError(ExternalError):
    """NiFi does not answer, or not now: it may be back in a moment."""


class Refused(ExternalError):
    """NiFi has said no."""


@dataclass(frozen=True, slots=True)
class FlowFile:
    """What NiFi moves.

    Attributes:
        attributes: Texts by name, as ``uuid`` and ``filename``.
        content: Its bytes.
    """

    attributes: Mapping[str, str]
    content: bytes


def encoded(flow_files: Sequence[FlowFile]) -> bytes:
    """Return the stream of flow files."""
    parts: list[bytes] = []
    for one in flow_files:
        parts.append(struct.pack(">i", len(one.attributes)))
        for text in (text for pair in one.attributes.items() for text in pair):
            data = text.encode()
            parts += [struct.pack(">i", len(data)), data]
        parts += [struct.pack(">q", len(one.content)), one.content]
    return b"".join(parts)


def decoded(stream: bytes) -> list[FlowFile]:
    """Return the flow files of a stream.

    Raises:
        SourceError: If it is none.
    """
    found: list[FlowFile] = []
    place = 0

    def take(size: int) -> bytes:
        nonlocal place
        if not 0 <= size <= len(stream) - place:
            message = "NiFi has sent flow files that are damaged, or are none"
            raise SourceError(message, position=f"byte {place}")
        place += size
        return stream[place - size : place]

    def number(form: str) -> int:
        return int(struct.unpack(form, take(struct.calcsize(form)))[0])

    def text() -> str:
        return take(number(">i")).decode(errors="replace")

    while place < len(stream):
        num_attributes = number(">i")
        if not 0 <= num_attributes <= MOST_ATTRIBUTES:
            take(-1)
        attributes = {}
        for _ in range(num_attributes):
            name = text()
            attributes[name] = text()
        found.append(FlowFile(attributes, take(number(">q"))))
    return found


@dataclass(frozen=True, slots=True)
class Place:
    """Where NiFi is.

    Attributes:
        scheme: ``http`` or ``https``.
        host: A node of it.
        port: Its port.
        prefix: Before the paths of its API.
        tls: Whom to trust, and who asks; for https.
    """

    scheme: str
    host: str
    port: int
    prefix: str
    tls: Tls | None

    @classmethod
    def of(cls, url: str, tls: Tls | None) -> Place:
        """Read a URL, as ``https://host:8443/nifi``.

        Raises:
            ConfigurationError: If it is none of NiFi.
        """
        form = "http://host:port/nifi or https://host:port/nifi"
        found = ServerUrl.of(url, {"http": 80, "https": 443}, form)
        if found.user is not None:
            message = f"url must be {form}; got {masked(url)!r}"
            raise ConfigurationError(message)
        if tls is not None and found.scheme == "http":
            message = f"tls is for https; got {url!r}"
            raise ConfigurationError(message)
        path = found.path.rstrip("/") or "/nifi"
        if path.endswith("/nifi"):
            path += "-api"
        elif not path.endswith("/nifi-api"):
            path += "/nifi-api"
        return cls(found.scheme, found.host, found.port, path, tls)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


class Site:
    """Talks to NiFi; one connection a request, as NiFi closes those that are idle."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._context = (place.tls or Tls()).context() if place.scheme == "https" else None

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] = {},
        peer: Place | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Ask for a path of the API, at a node; gives status, headers and body.

        Raises:
            NiFiAwayError: If it does not answer.
            Refused: If it is not trusted, or says too much.
        """
        place = peer or self.place
        if place.scheme == "https":
            host, port = place.host, place.port
            connection: Any = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=self._context)
        else:
            connection = http.client.HTTPConnection(place.host, place.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, {_HEADER + "protocol-version": PROTOCOL_VERSION, **headers})
            response = connection.getresponse()
            data = response.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                message = f"NiFi at {place} has sent more than {MOST_BYTES >> 20} MiB at once"
                raise Refused(message)
            if response.length:  # Python's client tells of what is missing only where all is asked for
                raise http.client.IncompleteRead(data, response.length)
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, found, data
        except ssl.SSLCertVerificationError as error:
            message = f"the certificate of NiFi at {place} is not trusted: {error.verify_message}"
            raise Refused(message) from error
        except (OSError, http.client.HTTPException) as error:
            message = f"NiFi at {place} does not answer: {error!r}"
            raise NiFiAwayError(message) from error
        finally:
            connection.close()

    def _told(self, path: str) -> Any:
        status, _, data = self.ask("GET", self.place.prefix + path, headers={"Accept": "application/json"})
        if status >= 500:
            message = f"NiFi at {self.place} answers {status} to {path}"
            raise NiFiAwayError(message)
        found = _json(data)
        if status != 200 or not isinstance(found, dict):
            message = f"NiFi at {self.place} answers {status} to {path}: {data[:200].decode(errors='replace')}"
            raise Refused(message)
        return found

    def port_id(self, name: str, direction: Direction) -> str:
        """Return the id of a port, by its id or name.

        Raises:
            Refused: If there is none, or several.
        """
        controller = self._told("/site-to-site").get("controller")
        key = "outputPorts" if direction == "output-ports" else "inputPorts"
        ports = controller.get(key) if isinstance(controller, dict) else None
        known = [one for one in ports or [] if isinstance(one, dict) and isinstance(one.get("id"), str)]
        found = [one["id"] for one in known if name in (one["id"], one.get("name"))]
        if len(found) != 1:
            names = ", ".join(repr(one.get("name")) for one in known) or "none"
            what = "no" if not found else "more than one"
            message = f"NiFi at {self.place} has {what} port {name!r} among its {direction}: {names}"
            raise Refused(message)
        return str(found[0])

    def peers(self) -> list[Place]:
        """Return the nodes of NiFi, in its own order."""
        place = self.place
        found = []
        for one in self._told("/site-to-site/peers").get("peers") or []:
            if isinstance(one, dict) and isinstance(one.get("hostname"), str) and type(one.get("port")) is int:
                scheme = "https" if one.get("secure") else "http"
                if scheme == place.scheme:  # else it would be told in the clear, or by nobody who is trusted
                    found.append(Place(scheme, one["hostname"], one["port"], place.prefix, place.tls))
        return found or [place]

    def begin(self, port_id: str, direction: Direction, peer: Place, wishes: Mapping[str, int]) -> Transaction:
        """Begin a transaction with a port, at a node.

        Args:
            port_id: Of the port.
            direction: Which way.
            peer: The node.
            wishes: How much is wanted: ``batch-count``, ``batch-size`` (bytes), ``batch-duration`` (ms).

        Raises:
            NiFiAwayError: If the port does not run, or is full.
            Refused: If NiFi says no.
        """
        headers = {"Accept": "application/json", **{_HEADER + name: str(value) for name, value in wishes.items()}}
        path = f"{peer.prefix}/data-transfer/{direction}/{quote(port_id, safe='')}/transactions"
        status, told, data = self.ask("POST", path, body=b"", headers=headers, peer=peer)
        if status != 201:
            raise _refusal(peer, status, data, "begins no transaction")
        location = urlsplit(told.get("location", "")).path
        ttl = told.get(_HEADER + "server-transaction-ttl", "")
        if (
            told.get("x-location-uri-intent") != "transaction-url"
            or not location.startswith(path)
            or not _is_number(ttl)
        ):
            message = f"NiFi at {peer} begins a transaction, but does not say where, or for how long"
            raise Refused(message)
        return Transaction(self, peer, location, headers, max(1, int(ttl)))


class Transaction:
    """One transaction with a port.

    Args:
        site: Of NiFi.
        peer: The node.
        path: Its path there.
        headers: Of all its requests.
        ttl_s: How long it lives, seconds.
    """

    def __init__(self, site: Site, peer: Place, path: str, headers: Mapping[str, str], ttl_s: int) -> None:
        self._site = site
        self._peer = peer
        self._path = path
        self._headers = headers
        self._ttl_s = ttl_s
        self._extended_at = time.monotonic()
        self._checksum = ""

    def receive(self) -> list[FlowFile]:
        """Get its flow files; none if the port has none."""
        status, _, data = self._ask("GET", "/flow-files")
        if status == 200:
            return []
        if status != 202:
            raise _refusal(self._peer, status, data, "sends no flow files")
        self._checksum = str(zlib.crc32(data))
        self._extended_at = time.monotonic()
        return decoded(data)

    def send(self, flow_files: Sequence[FlowFile]) -> None:
        """Send flow files; NiFi has them once `confirm` returns.

        Raises:
            NiFiAwayError: If they came there damaged, and the transaction is over.
        """
        stream = encoded(flow_files)
        status, _, data = self._ask("POST", "/flow-files", body=stream)
        if status != 202:
            raise _refusal(self._peer, status, data, "takes no flow files")
        if data.decode(errors="replace").strip() != str(zlib.crc32(stream)):
            self._ask("DELETE", f"?responseCode={BAD_CHECKSUM}")
            message = f"NiFi at {self._peer} has got flow files damaged: checksums differ"
            raise NiFiAwayError(message)

    def confirm(self) -> bool:
        """End it: what was sent or received is there to stay. Gives whether NiFi wants no more for now.

        Raises:
            Refused: If it is over already, or the checksums differ.
        """
        checksum = f"&checksum={self._checksum}" if self._checksum else ""
        status, _, data = self._ask("DELETE", f"?responseCode={CONFIRM}{checksum}")
        found = _json(data)
        code = found.get("responseCode") if isinstance(found, dict) else None
        if status != 200 or code not in (CONFIRM, FINISHED, FINISHED_AND_FULL):
            raise _refusal(self._peer, status, data, "does not end a transaction")
        return bool(code == FINISHED_AND_FULL)

    def cancel(self) -> None:
        """Give it up."""
        self._ask("DELETE", f"?responseCode={CANCEL}")

    def extend_if_due(self) -> bool:
        """Have it live on, if half of its time is over; False if it is over altogether."""
        if time.monotonic() - self._extended_at < self._ttl_s / 2:
            return True
        status, _, _ = self._ask("PUT", "")
        self._extended_at = time.monotonic()
        return status == 200

    def _ask(self, method: str, path: str, *, body: bytes | None = None) -> tuple[int, Mapping[str, str], bytes]:
        headers = {**self._headers, "Content-Type": "application/octet-stream"} if body is not None else self._headers
        return self._site.ask(method, self._path + path, body=body, headers=headers, peer=self._peer)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _refusal(peer: Place, status: int, data: bytes, what: str) -> ExternalError:
    found = _json(data)
    code, said = (found.get("responseCode"), found.get("message")) if isinstance(found, dict) else (None, None)
    message = f"NiFi at {peer} {what}: {status}, code {code}, {said or data[:200].decode(errors='replace')!r}"
    is_later = code in (PORT_NOT_RUNNING, PORT_FULL) or status >= 500
    return NiFiAwayError(message) if is_later else Refused(message)
