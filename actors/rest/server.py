"""HTTP for a cluster: takes requests, lets them in, finds their route, and answers in JSON.

One thread speaks HTTP; handlers, which ask the cluster and wait, run in a few others. So neither a slow cluster nor a
large answer keeps anybody from being heard, and the Dispatcher, whose process this is, notices nothing of it. What is
refused is said as ``{"errors": [...]}``, as Flink does; what fails unexpectedly is logged and not told.

Source: Flink's ``RestServerEndpoint`` and ``AbstractHandler``; the ASGI specification.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.utils import formatdate
from importlib import metadata
from typing import TYPE_CHECKING, Any

from headrace.engine.errors import (
    CheckpointError,
    ClusterUnavailableError,
    ConfigurationError,
    HeadraceError,
    JobError,
    JobNotFoundError,
    NoResourceAvailableError,
)
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.state.credentials import masked
from headrace.state.reading.stored_json import parse_json

from .resources.frequent_keys import HotKeysOfVertices
from .resources.keyed_states import StatesOfKeys
from .resources.operations import Operations
from .resources.programs import ProgramPlace, Programs
from .resources.questions import AsksCluster, ClusterQuestions
from .resources.routes import Answer, RestError, RestRequest, Right, Route, body_of, query_of
from .resources.samples import RecordSamples, RejectedRecordsOfVertices
from .resources.sampling import Samplings
from .security import HEADERS, KEPT, PAGE_HEADERS, Guard, Tokens
from .table import route_table

if TYPE_CHECKING:
    from .connections import Server

__all__ = ["RestServer"]

_LOG = logging.getLogger("headrace.rest")
"""What was changed by whom, at INFO; what fails unexpectedly, at ERROR."""

NUM_HANDLERS = 8
"""Requests that are worked on at the same time; others wait."""

MOST_CONNECTIONS = 256

MAX_HEADER_BYTES = 32 << 10
MAX_DEPTH = 10
"""Of a body."""

MOST_UPLOADS = 2
FORM_BYTES = 2_048
"""Of a form around a file."""

BODY_TIMEOUT_S = 30.0
START_TIMEOUT_S = 10.0

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_STATUSES: tuple[tuple[type[BaseException], int], ...] = (
    (JobNotFoundError, 404),
    (ConfigurationError, 400),
    (JobError, 409),
    (CheckpointError, 409),
    (NoResourceAvailableError, 409),
    (ClusterUnavailableError, 503),
)
"""What errors of ours mean in HTTP; the first that fits."""


class RestServer:
    """Serves one cluster. `start` may take a second, as libraries are loaded.

    Args:
        cluster: Whom to ask.
        settings: How.
        tokens: What is asked for.
        programs: Where programs are kept, and how they are run; None if they cannot be.
    """

    def __init__(
        self, cluster: AsksCluster, settings: RestSettings, tokens: Tokens, programs: ProgramPlace | None = None
    ) -> None:
        self._settings = settings
        self._guard = Guard(settings, tokens)
        self.questions = ClusterQuestions(cluster, settings.view_ttl_ms, settings.answer_timeout_ms)
        self._operations = Operations(settings.store_duration_ms)
        self._samplings = Samplings(settings)
        self._records = RecordSamples(settings)
        self._rejected = RejectedRecordsOfVertices(settings)
        self._hot_keys = HotKeysOfVertices(settings)
        self._programs = Programs(settings, programs)
        self.table = route_table(
            settings,
            metadata.version("headrace"),
            self._operations,
            self._samplings,
            self._records,
            self._rejected,
            self._hot_keys,
            StatesOfKeys(settings),
            self._programs,
        )
        self._num_uploads = 0
        self._threads = ThreadPoolExecutor(NUM_HANDLERS, thread_name_prefix="headrace-rest")
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def start(self) -> str:
        """Begin to serve; returns the URL.

        Raises:
            ConfigurationError: If no port is free, or the address or the certificate is none.
        """
        import uvicorn

        from .connections import Connection, Server

        listening = _listen(self._settings)
        try:
            config = uvicorn.Config(
                self,
                log_config=None,
                access_log=False,
                lifespan="off",
                loop="asyncio",
                http=Connection,
                ws="none",
                proxy_headers=False,
                server_header=False,
                date_header=False,
                limit_concurrency=MOST_CONNECTIONS,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_graceful_shutdown=1,
                ssl_certfile=self._settings.certificate_file,
                ssl_keyfile=self._settings.key_file,
            )
            config.load()
        except (OSError, ValueError) as error:
            listening.close()
            message = f"REST cannot be served: {error}"
            raise ConfigurationError(message) from error
        with self._lock:
            if self._is_closed:
                listening.close()
                message = "the server was closed before it had begun"
                raise ConfigurationError(message)
            self._server = server = Server(config)
            self._thread = threading.Thread(
                target=server.run, args=([listening],), name="headrace-rest-http", daemon=True
            )
            self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        scheme = "http" if self._settings.certificate_file is None else "https"
        name = self._settings.address or self._settings.bind_address
        shown = f"[{name}]" if ":" in name else name
        return f"{scheme}://{shown}:{listening.getsockname()[1]}"

    def close(self) -> None:
        """Serve no more; what is being answered is given a second. May be repeated."""
        with self._lock:
            self._is_closed = True
            server, thread = self._server, self._thread
        if server is not None and thread is not None:
            server.end()
            thread.join(3)
        self._operations.close()
        self._samplings.close()
        self._records.close()
        self._rejected.close()
        self._hot_keys.close()
        self._programs.close()
        self.questions.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------------------------------------------------ ASGI
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        try:
            answer, content = await self._respond(scope, receive)
        except RestError as error:
            answer = Answer(None, error.status)
            content = _encoded({"errors": [error.message]})
        common = PAGE_HEADERS if answer.is_page else HEADERS
        headers = {**common, "content-type": answer.media_type, "content-length": str(len(content))}
        headers["date"] = formatdate(usegmt=True)
        if answer.is_kept:
            headers["cache-control"] = KEPT
        if answer.worked_ms is not None:
            headers["server-timing"] = f"work;dur={answer.worked_ms:.1f}"
        if answer.status == 401:
            headers["www-authenticate"] = "Bearer"
        start = {"type": "http.response.start", "status": answer.status}
        with contextlib.suppress(OSError):  # who has asked is gone
            await send({**start, "headers": [(name.encode(), value.encode()) for name, value in headers.items()]})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})

    async def _respond(self, scope: Scope, receive: Receive) -> tuple[Answer, bytes]:
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            text = value.decode("latin-1")
            key = name.decode("latin-1").lower()
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        raw_path = (scope.get("raw_path") or b"/").decode("latin-1")
        if self.table.is_open(scope["method"], raw_path):
            self._guard.require_own(headers)
            right = Right.NONE
        else:
            right = self._guard.admit(headers)
        route, path = self.table.find(scope["method"], raw_path)
        if route.right is Right.WRITE and right is not Right.WRITE:
            raise RestError(403, "this token allows looking only")
        query = query_of(route, scope["query_string"].decode("latin-1"))
        if route.most_bytes:
            request = RestRequest(path, query, {}, self.questions, right, b"", headers.get("content-type", ""))
            answer, content = await self._upload(receive, route, request)
        else:
            body = body_of(route, await self._body(receive)) if route.method != "GET" else {}
            answer, content = await self._handle(route, RestRequest(path, query, body, self.questions, right))
        if route.right is Right.WRITE:
            client = (scope.get("client") or ("",))[0]
            _LOG.info("method=%s path=%s status=%d client=%s", route.method, raw_path[:500], answer.status, client)
        return answer, content

    async def _handle(self, route: Route, request: RestRequest) -> tuple[Answer, bytes]:
        if route.right is Right.NONE:
            return _handled(route, request)  # a file, which is in memory
        return await asyncio.get_running_loop().run_in_executor(self._threads, _handled, route, request)

    async def _upload(self, receive: Receive, route: Route, request: RestRequest) -> tuple[Answer, bytes]:
        """Take a file that is sent as a form; few at a time until they are kept, as they are in memory.

        Raises:
            RestError: 503 if others are being sent; else as of `_content`.
        """
        if self._num_uploads >= MOST_UPLOADS:
            raise RestError(503, f"{MOST_UPLOADS} programs are being sent; try again later")
        self._num_uploads += 1
        try:
            content = await self._content(receive, route.most_bytes + FORM_BYTES)
            return await self._handle(route, replace(request, content=content))
        finally:
            self._num_uploads -= 1

    async def _body(self, receive: Receive) -> Any:
        """What was sent, as JSON; an empty object if nothing was.

        Raises:
            RestError: 400 if it is no JSON; else as of `_content`.
        """
        content = await self._content(receive, self._settings.max_content_length)
        if not content.strip():
            return {}
        try:
            return parse_json(content, max_bytes=self._settings.max_content_length, max_depth=MAX_DEPTH)
        except ValueError as error:
            raise RestError(400, f"the body is no JSON: {error}"[:500]) from error

    async def _content(self, receive: Receive, most_bytes: int) -> bytes:
        """What was sent.

        Raises:
            RestError: 400 if it is cut off, 413 if it is too large, 408 if it does not come.
        """
        parts: list[bytes] = []
        size, is_more = 0, True
        while is_more:
            try:
                message = await asyncio.wait_for(receive(), BODY_TIMEOUT_S)
            except asyncio.TimeoutError:
                raise RestError(408, "the body does not come") from None
            if message["type"] == "http.disconnect":
                raise RestError(400, "the body ended before it was whole")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            is_more = bool(message.get("more_body"))
            if size > most_bytes:
                raise RestError(413, f"a body may have {most_bytes} bytes")
        return b"".join(parts)


def _handled(route: Route, request: RestRequest) -> tuple[Answer, bytes]:
    """Run a handler, in its thread; what it gives or raises as an answer, and its bytes."""
    began_s = time.thread_time()
    try:
        given = route.handler(request)
        answer = given if isinstance(given, Answer) else Answer(given, route.status)
        if answer.is_page:
            return answer, answer.content
        content = answer.content.encode() if isinstance(answer.content, str) else _encoded(answer.content)
        return replace(answer, worked_ms=1_000 * (time.thread_time() - began_s)), content
    except RestError as error:
        status, message = error.status, error.message
    except HeadraceError as error:
        status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
        message = masked(str(error))
    except Exception:
        _LOG.exception("path=%s could not be answered", route.path)
        status, message = 500, "internal server error; the log of the head says more"
    return Answer(None, status), _encoded({"errors": [message]})


def _encoded(content: Any) -> bytes:
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(_finite(content), separators=(",", ":")).encode()


def _finite(content: Any) -> Any:
    """JSON has no infinities; users' metrics may."""
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return str(content) if isinstance(content, float) and not math.isfinite(content) else content


def _listen(settings: RestSettings) -> socket.socket:
    """Take the first free port.

    Raises:
        ConfigurationError: If there is none, or the address is not this machine's.
    """
    low, high = settings.ports
    try:
        found = socket.getaddrinfo(settings.bind_address, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        message = f"rest.bind-address {settings.bind_address!r} is no address: {error}"
        raise ConfigurationError(message) from error
    family, _kind, _protocol, _name, address = found[0]
    for port in range(low, high + 1):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address[0], port, *address[2:]))
            listening.listen(128)
        except OSError as error:
            listening.close()
            if error.errno == errno.EADDRINUSE:
                continue
            message = f"REST cannot listen on {settings.bind_address}:{port}: {error}"
            raise ConfigurationError(message) from error
        return listening
    message = f"no port of {settings.bind_port} is free on {settings.bind_address}"
    raise ConfigurationError(message, hint="rest.bind-port may be a range, or 0 for any")
