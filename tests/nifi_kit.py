"""NiFi's side of site-to-site over HTTP, for tests: ports with queues, transactions that live for a time.

It follows NiFi's published protocol and is none of NiFi. It counts what it gave up and took for good, may lose answers
and requests, and may be away.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from free_ports import free_port

from headrace.connectors.nifi.site_to_site import FlowFile, decoded, encoded

__all__ = ["NiFi"]

INPUT, OUTPUT = "00000000-in", "00000000-out"
MOST_AT_ONCE = 20


class _Transaction:
    def __init__(self, ttl_s: float, is_output: bool) -> None:
        self.is_output = is_output
        self.until = time.monotonic() + ttl_s
        self.flow_files: list[FlowFile] = []
        self.checksum: str | None = None


class NiFi:
    """One node, with the output port ``out`` and the input port ``in``.

    Args:
        ttl_s: How long a transaction lives.
        tls: Of its side; None for none.
    """

    def __init__(self, ttl_s: int = 30, tls: Any = None) -> None:
        self.ttl_s = ttl_s
        self._tls = tls
        self.port = free_port()
        self._lock = threading.RLock()
        self._waiting: list[FlowFile] = []
        self._transactions: dict[str, _Transaction] = {}
        # What has come to the input port, and how often flow files of the output port were sent.
        self.taken: list[FlowFile] = []
        self.sent: Counter[str] = Counter()
        self.num_extended = 0
        # How many answers to DELETE are to get lost; whether the port is full, or stopped.
        self.loses = 0
        self.refuses: tuple[int, int] | None = None
        # How many answers to GET are to be cut short; ports of nodes that are named before this one.
        self.cuts = 0
        self.other_ports: list[int] = []
        self._server: ThreadingHTTPServer | None = None
        self.is_away = True
        self.start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/nifi"

    @property
    def scheme(self) -> str:
        return "http" if self._tls is None else "https"

    def start(self) -> None:
        """Be there."""
        nifi = self

        class Handler(_Handler):
            site = nifi

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server(("127.0.0.1", self.port), Handler)
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.is_away = False

    def stop(self) -> None:
        """Be away; what is in queues stays."""
        assert self._server is not None
        self.is_away = True
        self._server.shutdown()
        self._server.server_close()

    def fill(self, contents: Iterable[str]) -> None:
        """Have flow files wait in the output port."""
        with self._lock:
            for one in contents:
                self._waiting.append(
                    FlowFile({"uuid": str(uuid.uuid4()), "filename": one.replace(" ", "")}, one.encode())
                )

    @property
    def left(self) -> int:
        """How many flow files of the output port are not given up."""
        with self._lock:
            return len(self._waiting) + sum(len(one.flow_files) for one in self._transactions.values() if one.is_output)

    def roll_back(self, *, all_of_them: bool = False) -> None:
        """End transactions whose time is over."""
        with self._lock:
            for key, one in list(self._transactions.items()):
                if all_of_them or one.until < time.monotonic():
                    del self._transactions[key]
                    if one.is_output:
                        self._waiting = one.flow_files + self._waiting

    # ----------------------------------------------------------------------------------------------------- the protocol
    def begin(self, direction: str, port: str) -> tuple[int, Any, dict[str, str]]:
        self.roll_back()
        if self.refuses is not None:
            status, code = self.refuses
            return status, {"responseCode": code, "message": "not now"}, {}
        if port != (OUTPUT if direction == "output-ports" else INPUT):
            return 404, {"responseCode": 200, "message": "unknown port"}, {}
        key = str(uuid.uuid4())
        with self._lock:
            self._transactions[key] = _Transaction(self.ttl_s, direction == "output-ports")
        place = f"{self.scheme}://127.0.0.1:{self.port}/nifi-api/data-transfer/{direction}/{port}/transactions/{key}"
        headers = {"Location": place, "x-location-uri-intent": "transaction-url"}
        headers["x-nifi-site-to-site-server-transaction-ttl"] = str(self.ttl_s)
        headers["x-nifi-site-to-site-protocol-version"] = "1"
        return 201, {"responseCode": 1, "message": "Handshake properties are valid"}, headers

    def find(self, key: str) -> _Transaction | None:
        self.roll_back()
        return self._transactions.get(key)

    def give(self, key: str, most: int) -> tuple[int, bytes]:
        with self._lock:
            one = self.find(key)
            if one is None:
                return 404, b"{}"
            if not self._waiting:
                return 200, b""
            size = min(most, MOST_AT_ONCE)
            one.flow_files, self._waiting = self._waiting[:size], self._waiting[size:]
            stream = encoded(one.flow_files)
            one.checksum = str(zlib.crc32(stream))
            self.sent.update(flow_file.content.decode() for flow_file in one.flow_files)
            return 202, stream

    def take(self, key: str, stream: bytes) -> tuple[int, bytes]:
        with self._lock:
            one = self.find(key)
            if one is None:
                return 404, b"{}"
            one.flow_files = decoded(stream)
            return 202, str(zlib.crc32(stream)).encode()

    def extend(self, key: str) -> tuple[int, Any]:
        with self._lock:
            one = self.find(key)
            if one is None:
                return 404, {"responseCode": 250, "message": "no such transaction"}
            one.until = time.monotonic() + self.ttl_s
            self.num_extended += 1
            return 200, {"responseCode": 10, "message": "extended"}

    def end(self, key: str, code: str, checksum: str | None) -> tuple[int, Any]:
        with self._lock:
            one = self.find(key)
            if one is None:
                return 404, {"responseCode": 250, "message": "no such transaction"}
            del self._transactions[key]
            if code != "12" or (one.is_output and checksum != one.checksum):
                if one.is_output:
                    self._waiting = one.flow_files + self._waiting
                is_bad = code == "12"
                return (400 if is_bad else 200), {"responseCode": 19 if is_bad else 15, "message": ""}
            if not one.is_output:
                self.taken += one.flow_files
            return 200, {"responseCode": 12 if one.is_output else 13, "message": ""}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: NiFi

    def log_message(self, *_arguments: Any) -> None:
        pass

    def parse_request(self) -> bool:
        """One that comes over a connection of before is not heard while the server is away."""
        self.close_connection = self.site.is_away
        return not self.site.is_away and super().parse_request()

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET" and self.site.cuts:
            self.site.cuts -= 1
            self.close_connection = True
            data = data[: len(data) // 2]
        self.wfile.write(data)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _parts(self) -> list[str]:
        assert self.headers["x-nifi-site-to-site-protocol-version"] == "1"
        return urlsplit(self.path).path.removeprefix("/nifi-api/").split("/")

    def do_GET(self) -> None:
        parts = self._parts()
        if parts == ["site-to-site"]:
            ports = {"inputPorts": [{"id": INPUT, "name": "in"}], "outputPorts": [{"id": OUTPUT, "name": "out"}]}
            told = {
                "id": "1",
                "name": "tests",
                "siteToSiteSecure": self.site.scheme == "https",
                "remoteSiteHttpListeningPort": self.site.port,
            }
            self.answer(200, {"controller": {**told, **ports}})
        elif parts == ["site-to-site", "peers"]:
            peer = {"hostname": "127.0.0.1", "secure": self.site.scheme == "https", "flowFileCount": 0}
            self.answer(200, {"peers": [{**peer, "port": one} for one in (*self.site.other_ports, self.site.port)]})
        else:
            most = int(self.headers.get("x-nifi-site-to-site-batch-count") or MOST_AT_ONCE)
            self.answer(*self.site.give(parts[-2], most))

    def do_POST(self) -> None:
        parts, body = self._parts(), self._body()
        if parts[-1] == "transactions":
            self.answer(*self.site.begin(parts[1], parts[2]))
        else:
            self.answer(*self.site.take(parts[-2], body))

    def do_PUT(self) -> None:
        self._body()
        self.answer(*self.site.extend(self._parts()[-1]))

    def do_DELETE(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        done = self.site.end(self._parts()[-1], asked["responseCode"][0], asked.get("checksum", [None])[0])
        if self.site.loses:
            self.site.loses -= 1
            self.close_connection = True
            return
        self.answer(*done)
