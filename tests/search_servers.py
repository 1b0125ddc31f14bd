"""What the servers of OpenSearch and Elasticsearch have in common: one node in a process that may die, and questions to
it by plain HTTP, without the client that is tested.
"""

from __future__ import annotations

import json
import urllib.request
import uuid
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from free_ports import free_port
from server_process import ServerProcess


class SearchServer(ServerProcess):
    """One node, which keeps what it has answered when it is killed."""

    start_timeout_s = 180.0

    def __init__(self, directory: Path, shards: int = 2) -> None:
        super().__init__(directory)
        self._shards = shards
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def command(self) -> tuple[list[str], dict[str, Any]]:
        """What starts it, and how."""

    def start(self) -> None:
        """Start it, and wait until it has all of its indices."""
        command, options = self.command()
        self.launch(command, **options)
        self.wait_until(self._is_whole, OSError)

    def _is_whole(self) -> bool:
        return not self.ask("GET", "/_cluster/health?wait_for_status=yellow&timeout=5s")["timed_out"]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What it answers, by plain HTTP.

        Raises:
            OSError: If it does not answer, or with an error.
        """
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def new_index(
        self, mappings: dict[str, Any] | None = None, *, name: str | None = None, wait: bool = True, **settings: Any
    ) -> str:
        """An index that no other test has; its shards are waited for."""
        name = name or f"index-{uuid.uuid4().hex[:12]}"
        settings = {"number_of_shards": self._shards, "number_of_replicas": 0, **settings}
        active = "1" if wait else "0"
        self.ask("PUT", f"/{name}?wait_for_active_shards={active}", {"settings": settings, "mappings": mappings or {}})
        return name

    def put(self, index: str, documents: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Put documents under their ids, so that they are found at once."""
        lines = [line for name, document in documents for line in ({"index": {"_id": name}}, document)]
        body = "".join(json.dumps(line) + "\n" for line in lines).encode()
        answer = self.ask("POST", f"/{index}/_bulk?refresh=true", body)
        assert not answer["errors"], answer

    def documents(self, index: str) -> dict[str, dict[str, Any]]:
        """All documents by id."""
        self.ask("POST", f"/{index}/_refresh")
        answer = self.ask("POST", f"/{index}/_search", {"size": 10_000, "track_total_hits": True})
        hits = answer["hits"]["hits"]
        assert answer["hits"]["total"]["value"] == len(hits), "more than one answer has room for"
        return {hit["_id"]: hit["_source"] for hit in hits}
