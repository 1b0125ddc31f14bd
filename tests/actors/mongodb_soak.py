"""Counts by key into a collection of MongoDB on Ray, while processes die: ``python tests/actors/mongodb_soak.py``.

The driver, as others wrote it, reads all counts at the end (``tests/actors/upsert_soak.py``). Needs what
``tests/mongodb_server.py`` needs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from mongodb_server import new_server
from upsert_soak import WRITING, Upserts, run

from headrace.connectors.mongodb import MongodbSink

NUM_NEWEST = 400


def with_name(row: dict[str, int]) -> dict[str, Any]:
    """The server of the tests keeps two documents of one ``_id`` where that is a document itself, so it is a text."""
    return {**row, "name": f"{row['key']} in {row['window']}"}


def upserts_of(server: Any, order: str | None) -> Upserts:
    from pymongo.errors import PyMongoError

    name = server.new_name()
    schema = {**dict.fromkeys(("key", "window", "n"), "int64"), "name": "string"}
    sink = MongodbSink(server.uri, name, schema=schema, key="name", order=order, options=WRITING)

    def counts() -> list[tuple[tuple[int, int], int]]:
        newest = server.collection(name).find({}, sort=[("window", -1)], limit=NUM_NEWEST)
        return [((row["key"], row["window"]), row["n"]) for row in newest]

    def lines() -> list[str]:
        found = server.collection(name).find({}, {"_id": 0, "key": 1, "window": 1, "n": 1}, sort=[("window", 1)])
        return [json.dumps(row) for row in found]

    return Upserts(sink, counts, lines, (PyMongoError, OSError), with_name)


if __name__ == "__main__":
    sys.exit(run(__doc__, new_server, upserts_of))
