"""Counts by key into an index of OpenSearch on Ray, while processes die: ``python tests/actors/opensearch_soak.py``.

Each number makes its window's count one greater, and each count is written, with itself as the order key
(``tests/actors/server_soak.py`` says what dies). While the job runs, counts are read again and again: none may go back,
whatever is written again. At the end ``curl`` reads them all. Needs what ``tests/opensearch_server.py`` needs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from opensearch_server import OpensearchServer, new_server
from server_soak import RATE, WINDOW_MS, expected_counts, judge, main, make_row, num_records_of, run_job

from headrace import StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.opensearch import OpenSearchSink, UpsertOptions

MOST_DOCUMENTS = 1_000_000


class Watcher(threading.Thread):
    """Reads some counts again and again, and notes those that go back."""

    def __init__(self, server: OpensearchServer, index: str) -> None:
        super().__init__(daemon=True)
        self._server, self._index = server, index
        self._is_over = threading.Event()
        self._seen: dict[str, int] = {}
        self.num_looks = 0
        self.num_went_back = 0

    def run(self) -> None:
        newest = {"size": 2_000, "sort": [{"window": "desc"}, {"key": "asc"}]}
        while not self._is_over.wait(0.2):
            try:
                hits = self._server.ask("POST", f"/{self._index}/_search", newest)["hits"]["hits"]
            except (OSError, ValueError, KeyError):  # it is away
                continue
            self.num_looks += 1
            for hit in hits:
                count = hit["_source"]["n"]
                self.num_went_back += count < self._seen.get(hit["_id"], 0)
                self._seen[hit["_id"]] = count

    def join(self, timeout: float | None = None) -> None:
        """The job ends by itself: nothing is waited for."""

    def end(self) -> None:
        """Have it end."""
        self._is_over.set()
        super().join()


def seen_by_curl(server: OpensearchServer, index: str) -> list[str]:
    """All documents, as lines of JSON, those of a key in the order of windows."""
    server.ask("POST", f"/{index}/_refresh")
    command = ["curl", "-sSf", f"{server.url}/{index}/_search?size={MOST_DOCUMENTS}&track_total_hits=true"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = [hit["_source"] for hit in answer["hits"]["hits"]]
    assert len(rows) == answer["hits"]["total"]["value"]
    return [json.dumps(row) for row in sorted(rows, key=lambda row: row["window"])]


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    server = new_server(directory)
    server.start()
    num_records = num_records_of(options.faults)
    fields = {name: {"type": "long"} for name in ("key", "window", "n")}
    index = server.new_index({"properties": fields}, max_result_window=MOST_DOCUMENTS)

    def build(env: StreamExecutionEnvironment) -> None:
        def first_count(number: int) -> dict[str, int]:
            row = make_row(number)
            return {"key": row["key"], "window": row["ts"] // WINDOW_MS, "n": 1}

        numbers = GeneratorSource(first_count, count=num_records, records_per_second=RATE)
        sink = OpenSearchSink(
            server.url, index, key=("key", "window"), order="n",
            options=UpsertOptions(batch_interval="100 ms", patience="10 min"),
        )  # fmt: skip
        counts = env.from_source(numbers, None, "numbers").key_by("key", "window")
        counts.reduce(lambda a, b: {**a, "n": a["n"] + b["n"]}).sink_to(sink).name("index")

    watcher = Watcher(server, index)
    try:
        figures = run_job(server, watcher, build, lambda client: client.result(), options, directory, commits=False)
        watcher.end()
        lines = seen_by_curl(server, index)
    finally:
        server.kill()
    looks = {"records": num_records, "looks": watcher.num_looks, "went back": watcher.num_went_back}
    return {**figures, **looks, **judge(lines, expected_counts(num_records))}


if __name__ == "__main__":
    sys.exit(main(__doc__, soak, wrong=("went back",)))
