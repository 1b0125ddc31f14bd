"""A server of WebSocket for tests, written with the package ``websockets``: a process of its own on a free port of the
loopback, which keeps what it has confirmed when it is killed, and may be started again. It is
``websocket_peer``. Skips the test where the package is not installed.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from server_process import ServerProcess, need_client, the_one

PEER = Path(__file__).with_name("websocket_peer.py")


class WebSocketService(ServerProcess):
    """One server."""

    start_timeout_s = 60.0

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        if self._process is None:
            self.launch([sys.executable, str(PEER), str(self._directory), str(self.port)])
            self.wait_until(lambda: self.ask("/put/ready") == [], OSError)

    def ask(self, path: str, messages: Sequence[str] = ()) -> list[str]:
        """What it answers to messages, one to each."""
        from websockets.sync.client import connect

        with connect(f"{self.url}{path}", open_timeout=5) as connection:
            answers = []
            for message in messages:
                connection.send(message)
                answers.append(str(connection.recv(30)))
        return answers

    def new_name(self) -> str:
        return uuid.uuid4().hex[:12]

    def put(self, name: str, rows: Sequence[dict[str, Any]], at: int | None = None) -> None:
        """Put records behind others of a name; with the number of the first, those that are there already stay."""
        options = "" if at is None else f"?at={at}"
        assert self.ask(f"/put/{name}{options}", [json.dumps(list(rows))]) == ["kept"]

    def taken(self, name: str) -> list[str]:
        """What it was sent, in its order."""
        file = self._directory / f"{name}.taken"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture(scope="session")
def websocket_service(request: pytest.FixtureRequest) -> WebSocketService:
    """One for all tests of a process; each has names of its own."""
    need_client("websockets", "websockets")
    return the_one("websocket", request, WebSocketService)
