"""Counts by key into a collection of MongoDB on Ray, while processes die: ``python tests/actors/mongodb_soak.py``.

``--order column`` has each count written with itself as the order; ``--order sink`` leaves the order to the sink. Then
a count that is written again may be seen going back for a moment, as what is written last is what the job says last:
only the end is judged (``tests/actors/upsert_soak.py``). The driver, as others wrote it, reads all counts at the end.
Needs what ``tests/mongodb_server.py`` needs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from mongodb_server import new_server
from server_soak import main
from upsert_soak import Watcher, soak_sink

from headrace.connectors.mongodb import MongodbSink, UpsertOptions

NUM_NEWEST = 400


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    server = new_server(directory)
    server.start()
    from pymongo.errors import PyMongoError

    name = server.new_name()
    is_by_column = options.order == "column"
    sink = MongodbSink(
        server.uri, name, schema=dict.fromkeys(("key", "window", "n"), "int64"), key=("key", "window"),
        order="n" if is_by_column else None, options=UpsertOptions(batch_interval="100 ms", patience="10 min"),
    )  # fmt: skip

    def counts() -> list[tuple[tuple[int, int], int]]:
        newest = server.collection(name).find({}, sort=[("window", -1)], limit=NUM_NEWEST)
        return [((row["key"], row["window"]), row["n"]) for row in newest]

    def lines() -> list[str]:
        found = server.collection(name).find({}, {"_id": 0, "key": 1, "window": 1, "n": 1}, sort=[("window", 1)])
        return [json.dumps(row) for row in found]

    watcher = Watcher(counts, (PyMongoError, OSError))
    figures = soak_sink(server, sink, watcher, lines, options, directory)
    return figures if is_by_column else {**figures, "went back": 0, "written again": figures["went back"]}


if __name__ == "__main__":
    sys.exit(main(__doc__, soak, wrong=("went back",), choices={"order": ("column", "sink")}))
