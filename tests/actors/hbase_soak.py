"""Counts by key into a table of HBase on Ray, while processes die: ``python tests/actors/hbase_soak.py``.

A client of the tests' own reads all counts at the end (``tests/actors/upsert_soak.py``). Needs what
``tests/hbase_server.py`` needs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from hbase_server import new_server
from upsert_soak import WRITING, Upserts, run

from headrace.connectors.hbase import HbaseSink

NUM_NEWEST = 400
SCHEMA = pa.schema([("name", pa.string()), ("f", pa.struct(dict.fromkeys(("key", "window", "n"), pa.int64())))])


def as_row(row: dict[str, int]) -> dict[str, Any]:
    """Row keys are in the order of windows."""
    return {"name": f"{row['window']:010} {row['key']:02}", "f": row, "n": row["n"]}


def read(cells: dict[bytes, bytes]) -> dict[str, int]:
    return {name: int.from_bytes(cells[f"f:{name}".encode()], "big") for name in ("key", "window", "n")}


def upserts_of(server: Any, order: str | None) -> Upserts:
    from thriftpy2.thrift import TException

    table = server.new_table("f")
    sink = HbaseSink(server.host, table, schema=SCHEMA, order=order, options=WRITING)

    def counts() -> list[tuple[bytes, int]]:
        with server.connected() as connection:
            newest = connection.table(table).scan(reverse=True, limit=NUM_NEWEST)
            return [(name, read(cells)["n"]) for name, cells in newest]

    def lines() -> list[str]:
        return [json.dumps(read(cells)) for _, cells in sorted(server.rows(table).items())]

    return Upserts(sink, counts, lines, (TException, OSError), as_row)


if __name__ == "__main__":
    sys.exit(run(__doc__, new_server, upserts_of))
