"""A server of HTTP for soaks, a process of its own which keeps what it has confirmed when it is killed, and may be
started again. It serves what ``http_service`` does (``python tests/http_peer.py DIRECTORY PORT``); in ``/put/NAME``
texts are put, one a line, those of one ``Idempotency-Key`` once.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

from free_ports import free_port
from http_service import HttpService
from server_process import ServerProcess

__all__ = ["HttpPeer"]


class HttpPeer(ServerProcess):
    """One server."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.launch([sys.executable, str(Path(__file__).resolve()), str(self._directory), str(self.port)])
        self.wait_until(lambda: self.put("ready", "ready", []) is None, URLError, OSError)

    def put(self, name: str, key: str, texts: list[str]) -> None:
        """Put records behind others, once for each key."""
        body = "".join(f"{text}\n" for text in texts).encode()
        request = urllib.request.Request(f"{self.url}/put/{name}", body, {"Idempotency-Key": key}, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    def posted(self, name: str) -> list[str]:
        """The lines of the batches that were posted."""
        file = self._directory / f"{name}.posted"
        found = [json.loads(line)[1] for line in file.read_text().splitlines()] if file.exists() else []
        return [line for body in found for line in body.splitlines()]


class _KeepingService(HttpService):
    """Writes down what it is given before it confirms it."""

    def __init__(self, directory: Path, port: int) -> None:
        super().__init__()
        self.port = port
        self._directory = directory
        for file in directory.glob("*.posted"):
            for key, body in map(json.loads, file.read_text().splitlines()):
                self._posted[file.stem][key] = body.encode()
        for file in directory.glob("*.put"):
            for key, texts in map(json.loads, file.read_text().splitlines()):
                self._posted[f"put {file.stem}"][key] = b""
                self._texts[file.stem] += texts

    def take(self, name: str, key: str, body: bytes) -> None:
        with self.changed:
            if key not in self._posted[name]:
                self._keep(f"{name}.posted", [key, body.decode()])
                self._posted[name][key] = body

    def take_texts(self, name: str, key: str, body: bytes) -> None:
        with self.changed:
            if key not in self._posted[f"put {name}"]:
                texts = body.decode().splitlines()
                self._keep(f"{name}.put", [key, texts])
                self._posted[f"put {name}"][key] = b""
                self._texts[name] += texts
                self.changed.notify_all()

    def _keep(self, name: str, what: list[object]) -> None:
        """In one write, which is there or not when this process is killed."""
        with (self._directory / name).open("ab", buffering=0) as file:
            file.write(json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    service = _KeepingService(Path(sys.argv[1]), int(sys.argv[2]))
    service.start()
    service.wait_for_ever()
