"""Counts by key into a table of Cassandra on Ray, while processes die: ``python tests/actors/cassandra_soak.py``.

``--order column`` has each count written with itself as the order; ``--order sink`` leaves the order to the sink. Then
a count that is written again may be seen going back for a moment, as what is written last is what the job says last:
only the end is judged (``tests/actors/upsert_soak.py``). A client of the tests' own reads all counts at the end. Needs
what ``tests/cassandra_server.py`` needs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from cassandra_server import new_server
from server_soak import main
from upsert_soak import Watcher, soak_sink

from headrace.connectors.cassandra import CassandraSink, UpsertOptions


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    server = new_server(directory)
    server.start()
    from cassandra import DriverException
    from cassandra.cluster import NoHostAvailable
    from cassandra.protocol import ErrorMessage

    table = server.new_table("key bigint, window bigint, n bigint, PRIMARY KEY (key, window)")
    is_by_column = options.order == "column"
    sink = CassandraSink(
        server.host, table, schema=dict.fromkeys(("key", "window", "n"), "int64"), key=("key", "window"),
        order="n" if is_by_column else None, options=UpsertOptions(batch_interval="100 ms", patience="10 min"),
    )  # fmt: skip

    def counts() -> list[tuple[tuple[int, int], int]]:
        newest = f"SELECT window, n FROM {table} WHERE key = %s ORDER BY window DESC LIMIT 50"
        return [((key, window), n) for key in range(8) for window, n in server.ask(newest, [key])]

    def lines() -> list[str]:
        rows = server.ask(f"SELECT key, window, n FROM {table}")
        found = [{"key": key, "window": window, "n": n} for key, window, n in rows]
        return [json.dumps(row) for row in sorted(found, key=lambda row: row["window"])]

    watcher = Watcher(counts, (DriverException, NoHostAvailable, ErrorMessage, OSError))
    figures = soak_sink(server, sink, watcher, lines, options, directory)
    return figures if is_by_column else {**figures, "went back": 0, "written again": figures["went back"]}


if __name__ == "__main__":
    sys.exit(main(__doc__, soak, wrong=("went back",), choices={"order": ("column", "sink")}))
