"""What goes wrong between a job and Kinesis, on purpose: a proxy on the loopback that answers in the service's place.

kinesalite limits no rates, deletes nothing, and takes all records of a request. AWS does otherwise.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TIMEOUT_S = 60

Answer = tuple[int, dict[str, Any]]
"""Status, and what is in it."""


def refusal(code: str, status: int = 400) -> Answer:
    """An answer that is an error."""
    return status, {"__type": code, "message": f"made to be {code}"}


class KinesisFaults:
    """A proxy in front of a server.

    Attributes:
        url: Where it is.
        faults: By operation, what comes in the place of the next answers; None lets one through.
        rewrite: Changes an answer of the server: operation, what was asked, status, answer.
        asked: How often what was asked.
        turns_away: Whether the next record of a request is left out, and said not to be taken.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.faults: dict[str, deque[Answer | None]] = defaultdict(deque)
        self.rewrite: Callable[[str, dict[str, Any], Answer], Answer] = lambda _operation, _asked, answer: answer
        self.asked: Counter[str] = Counter()
        self.turns_away: Callable[[], bool] = lambda: False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                operation = self.headers["X-Amz-Target"].rpartition(".")[2]
                status, answer = outer._answer(operation, body, dict(self.headers))
                said = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _answer(self, operation: str, body: bytes, headers: dict[str, str]) -> Answer:
        self.asked[operation] += 1
        waiting = self.faults[operation]
        fault = waiting.popleft() if waiting else None
        if fault is not None:
            return fault
        if operation == "PutRecords":
            return self._put_some(json.loads(body), headers)
        return self.rewrite(operation, json.loads(body), self._forward(body, headers))

    def _put_some(self, asked: dict[str, Any], headers: dict[str, str]) -> Answer:
        away = [self.turns_away() for _ in asked["Records"]]
        taken = [record for record, is_away in zip(asked["Records"], away, strict=True) if not is_away]
        status, answer = 200, {"Records": [], "FailedRecordCount": 0}
        if taken:
            status, answer = self._forward(json.dumps({**asked, "Records": taken}).encode(), headers)
            if status != 200:
                return status, answer
        results = iter(answer["Records"])
        refused = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "made to be too much"}
        answer["Records"] = [refused if is_away else next(results) for is_away in away]
        answer["FailedRecordCount"] += sum(away)
        return status, answer

    def _forward(self, body: bytes, headers: dict[str, str]) -> Answer:
        headers = {name: value for name, value in headers.items() if name.lower() != "content-length"}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", "/", body, headers)
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(said or b"{}")


@contextmanager
def faults_in_front_of(server: Any) -> Iterator[KinesisFaults]:
    """A proxy, as long as the block lasts."""
    proxy = KinesisFaults(server.port)
    thread = threading.Thread(target=proxy._server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield proxy
    finally:
        proxy._server.shutdown()
        thread.join()
        proxy._server.server_close()
