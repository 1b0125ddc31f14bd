"""Counts by key into a table of Cassandra on Ray, while processes die: ``python tests/actors/cassandra_soak.py``.

A client of the tests' own reads all counts at the end (``tests/actors/upsert_soak.py``). Needs what
``tests/cassandra_server.py`` needs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from cassandra_server import new_server
from upsert_soak import WRITING, Upserts, run

from headrace.connectors.cassandra import CassandraSink


def upserts_of(server: Any, order: str | None) -> Upserts:
    from cassandra import DriverException
    from cassandra.cluster import NoHostAvailable
    from cassandra.protocol import ErrorMessage

    table = server.new_table("key bigint, window bigint, n bigint, PRIMARY KEY (key, window)")
    schema = dict.fromkeys(("key", "window", "n"), "int64")
    sink = CassandraSink(server.host, table, schema=schema, key=("key", "window"), order=order, options=WRITING)

    def counts() -> list[tuple[tuple[int, int], int]]:
        newest = f"SELECT window, n FROM {table} WHERE key = %s ORDER BY window DESC LIMIT 50"
        return [((key, window), n) for key in range(8) for window, n in server.ask(newest, [key])]

    def lines() -> list[str]:
        rows = server.ask(f"SELECT key, window, n FROM {table}")
        found = [{"key": key, "window": window, "n": n} for key, window, n in rows]
        return [json.dumps(row) for row in sorted(found, key=lambda row: row["window"])]

    return Upserts(sink, counts, lines, (DriverException, NoHostAvailable, ErrorMessage, OSError))


if __name__ == "__main__":
    sys.exit(run(__doc__, new_server, upserts_of))
