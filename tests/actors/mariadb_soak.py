"""MariaDB to MariaDB on Ray, while processes die: ``python tests/actors/mariadb_soak.py --faults 30``.

Numbers come from a table that is followed, counts go into another one, exactly once, in either staging
(``tests/actors/server_soak.py`` says what dies). ``mariadb``, the server's own command, reads the counts. Needs what
``tests/mariadb_server.py`` needs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from mariadb_server import new_server
from server_soak import END, main, make_row, num_records_of, soak_messages

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.sql import GrowingColumn, SqlSink, SqlSource

RATE = 1_000
TABLES = (
    "CREATE TABLE numbers (id BIGINT PRIMARY KEY, `key` BIGINT, ts BIGINT)",
    "CREATE TABLE counts (place BIGINT PRIMARY KEY AUTO_INCREMENT, `key` BIGINT, `window` BIGINT, n BIGINT)",
)
COUNTS = "SELECT JSON_OBJECT('key', `key`, 'window', `window`, 'n', n) FROM counts ORDER BY place"


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    (directory / "server").mkdir()
    server = new_server(directory / "server")
    server.start()
    server.execute(*TABLES)
    num_records = num_records_of(options, RATE)

    def write(first: int, last: int) -> None:
        """Rows have keys, so one that is there already is left as it is; they come in one statement, in their order."""
        rows = [(index, *make_row(index, RATE).values()) for index in range(first, last)]
        if last == num_records:
            rows.append((last, *END.values()))
        values = ", ".join(map(str, rows))
        server.execute(f"INSERT IGNORE INTO numbers (id, `key`, ts) VALUES {values}")

    def build(env: StreamExecutionEnvironment) -> tuple[Any, Any]:
        follow = GrowingColumn("id", "200 ms", commit_lag=0)  # one writer
        source = SqlSource(server.url, "numbers", dict.fromkeys(("id", "key", "ts"), "int64"), key="id", follow=follow)
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("100 ms").with_timestamp_assigner("ts")
        sink = SqlSink.exactly_once(server.url, "counts", sink_id="soak", staging=options.staging)
        return env.from_source(source, strategy, "numbers"), sink

    def num_there() -> int:
        [(number,)] = server.rows("SELECT COUNT(*) FROM counts")
        return int(number)

    return soak_messages(server, write, build, lambda: server.seen_by_cli(COUNTS), num_there, options, directory, RATE)


if __name__ == "__main__":
    sys.exit(main(__doc__, soak, choices={"staging": ("checkpoint", "table")}))
