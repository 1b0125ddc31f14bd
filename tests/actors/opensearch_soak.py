"""Counts by key into an index of OpenSearch on Ray, while processes die: ``python tests/actors/opensearch_soak.py``.

Each count is written with itself as the order key (``tests/actors/upsert_soak.py``). At the end ``curl`` reads them
all. Needs what ``tests/opensearch_server.py`` needs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from opensearch_server import OpensearchServer, new_server
from upsert_soak import WRITING, Upserts, run

from headrace.connectors.opensearch import OpenSearchSink

MOST_DOCUMENTS = 1_000_000


def seen_by_curl(server: OpensearchServer, index: str) -> list[str]:
    """All documents, as lines of JSON, those of a key in the order of windows."""
    server.ask("POST", f"/{index}/_refresh")
    command = ["curl", "-sSf", f"{server.url}/{index}/_search?size={MOST_DOCUMENTS}&track_total_hits=true"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = [hit["_source"] for hit in answer["hits"]["hits"]]
    assert len(rows) == answer["hits"]["total"]["value"]
    return [json.dumps(row) for row in sorted(rows, key=lambda row: row["window"])]


def upserts_of(server: OpensearchServer, order: str | None) -> Upserts:
    fields = {name: {"type": "long"} for name in ("key", "window", "n")}
    index = server.new_index({"properties": fields}, max_result_window=MOST_DOCUMENTS)
    sink = OpenSearchSink(server.url, index, key=("key", "window"), order=order, options=WRITING)

    def counts() -> Iterator[tuple[str, int]]:
        newest = {"size": 2_000, "sort": [{"window": "desc"}, {"key": "asc"}]}
        for hit in server.ask("POST", f"/{index}/_search", newest)["hits"]["hits"]:
            yield hit["_id"], hit["_source"]["n"]

    return Upserts(sink, counts, lambda: seen_by_curl(server, index), (OSError, ValueError, KeyError))


if __name__ == "__main__":
    sys.exit(run(__doc__, new_server, upserts_of, orders=("column",)))
