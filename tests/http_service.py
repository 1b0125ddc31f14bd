"""A server of HTTP for tests, in this process, on a free loopback port: pages, server-sent events, lines, and a place
where batches are posted. It may go away, come back and stand still.

What is asked for is ``/KIND/NAME``; a test fills a name (`put`) and sees what was posted to it (`posted`).
"""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from free_ports import free_port

PAGE_SIZE = 7
KINDS = ("pages", "tokens", "links", "events", "lines", "since")


class HttpService:
    """The server, and what it has."""

    def __init__(self) -> None:
        self.port = free_port()
        self.changed = threading.Condition()
        self._texts: dict[str, list[str]] = defaultdict(list)
        # By name, the batches that were posted, by key; a server that honours keys keeps the first of each.
        self._posted: dict[str, dict[str, bytes]] = defaultdict(dict)
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        # Answers in place of the right ones, the next first: status, headers; None for a connection that is cut.
        self.refusals: list[tuple[int, dict[str, str]] | None] = []
        self.num_events_a_connection = 1_000_000
        self.is_up = threading.Event()
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Begin to listen."""
        if self._server is None:
            self._server = _Server(("127.0.0.1", self.port), self)
            self.is_up.set()
            threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Be gone, connections and all."""
        server, self._server = self._server, None
        if server is not None:
            self.is_up.clear()
            server.shutdown()
            server.server_close()
            server.cut()
            with self.changed:
                self.changed.notify_all()

    def pause(self) -> None:
        """Stand still, with all connections open."""
        self._goes_on.clear()

    def resume(self) -> None:
        """Go on."""
        self._goes_on.set()

    def wait_while_paused(self) -> None:
        self._goes_on.wait(60)

    def new_name(self) -> str:
        return uuid.uuid4().hex[:12]

    def put(self, name: str, texts: list[str]) -> None:
        """Put records behind others."""
        with self.changed:
            self._texts[name] += texts
            self.changed.notify_all()

    def texts(self, name: str) -> list[str]:
        with self.changed:
            return list(self._texts[name])

    def take_texts(self, name: str, key: str, body: bytes) -> None:
        """Put records behind others, one a line."""
        self.put(name, body.decode().splitlines())

    def wait_for_ever(self) -> None:
        """For a process that does nothing else."""
        threading.Event().wait()

    def take(self, name: str, key: str, body: bytes) -> None:
        with self.changed:
            self._posted[name].setdefault(key, body)

    def posted(self, name: str) -> list[bytes]:
        """What is kept of what was posted."""
        with self.changed:
            return list(self._posted[name].values())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], service: HttpService) -> None:
        self.service = service
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        for request in list(self._open):
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # connections that are cut


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_arguments: Any) -> None:
        return

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if self._is_refused():
            return
        _, kind, name = parts.path.split("/")
        getattr(self, f"_{kind}")(name, query)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        name = self.path.rpartition("/")[2]
        if self.path.startswith("/put/"):
            self.server.service.take_texts(name, self.headers["Idempotency-Key"], body)
            self._answer(b"{}")
            return
        is_kept_first = self.path.startswith("/answer-lost/")
        if is_kept_first:
            self.server.service.take(name, self.headers["Idempotency-Key"], body)
        if self._is_refused():
            return
        self.server.service.take(name, self.headers["Idempotency-Key"], body)
        self._answer(b"{}")

    def _is_refused(self) -> bool:
        service = self.server.service
        service.requests.append((self.command, self.path, dict(self.headers)))
        service.wait_while_paused()
        if not service.refusals:
            return False
        refusal = service.refusals.pop(0)
        if refusal is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._answer(b"refused here", status=refusal[0], **refusal[1])
        return True

    def _answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    # -------------------------------------------------------------------------------------------------------- pages
    def _page(self, name: str, first: int) -> tuple[str, int | None]:
        texts = self.server.service.texts(name)
        behind = first + PAGE_SIZE
        return f"[{','.join(texts[first:behind])}]", behind if len(texts) > behind else None

    def _pages(self, name: str, query: dict[str, str]) -> None:
        """Cursors are names of pages; the last page grows."""
        page, behind = self._page(name, int(query.get("cursor", "p0")[1:]))
        following = "null" if behind is None else f'"p{behind}"'
        self._answer(f'{{"data": {{"items": {page}}}, "next": {following}}}'.encode())

    def _tokens(self, name: str, query: dict[str, str]) -> None:
        """There is always another cursor: that of what comes later."""
        first = int(query.get("cursor", "0"))
        page, _ = self._page(name, first)
        self._answer(page.encode(), X_Next=str(first + len(json.loads(f"[{page[1:-1]}]"))))

    def _links(self, name: str, query: dict[str, str]) -> None:
        page, behind = self._page(name, int(query.get("from", "0")))
        links = {} if behind is None else {"Link": f'</x>; rel="prev", </links/{name}?from={behind}>; rel="next"'}
        self._answer("".join(f"{text}\n" for text in _texts_in(page)).encode(), **links)

    # ------------------------------------------------------------------------------------------------------ streams
    def _stream(self, name: str, first: int, text_of: Callable[[int, str], str], ends: bool, **headers: str) -> None:
        """Send what there is from a number on, and what comes, as long as somebody listens."""
        service = self.server.service
        self.send_response(200)
        for key, value in {"Transfer-Encoding": "chunked", **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        number = 0
        while service.is_up.is_set() and self.server is service._server and number < service.num_events_a_connection:
            service.wait_while_paused()
            texts = service.texts(name)
            for text in texts[first:]:
                self._chunk(text_of(first, text).encode())
                first, number = first + 1, number + 1
            if ends:
                break
            with service.changed:
                if len(service._texts[name]) == first:
                    service.changed.wait(0.2)
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        half = len(data) // 2  # records and pieces are not the same
        for part in (data[:half], data[half:]):
            if part:
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")

    def _events(self, name: str, query: dict[str, str]) -> None:
        first = int(self.headers.get("Last-Event-ID", "-1")) + 1

        def event(number: int, text: str) -> str:
            return f": a comment\nretry: 20\nevent: {'odd' if number % 2 else 'even'}\nid: {number}\ndata: {text}\n\n"

        self._stream(name, first, event, ends=False, Content_Type="text/event-stream; charset=utf-8")

    def _lines(self, name: str, query: dict[str, str]) -> None:
        """All of them, each time."""
        self._stream(name, 0, lambda _number, text: f"{text}\n", ends=True)

    def _since(self, name: str, query: dict[str, str]) -> None:
        """Those behind a number, which they have."""
        texts = self.server.service.texts(name)
        last = query.get("since")
        places = [place for place, text in enumerate(texts) if last is not None and text == f'{{"n": {last}}}']
        first = 0 if last is None else places[0] + 1
        self._stream(name, first, lambda _number, text: f"{text}\r\n", ends=False)


def _texts_in(page: str) -> Iterator[str]:
    for value in json.loads(page):
        yield json.dumps(value)


@pytest.fixture(scope="session")
def http_service() -> Iterator[HttpService]:
    """One for all tests of a process; each has names of its own."""
    service = HttpService()
    service.start()
    yield service
    service.stop()
