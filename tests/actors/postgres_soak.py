"""Tables of PostgreSQL followed on Ray, while processes die: ``python tests/actors/postgres_soak.py --faults 30``.

One job follows two tables. Into one come numbers, whose counts are written back, exactly once
(``tests/actors/server_soak.py`` says what dies). In the other, in the same transactions, rows are inserted, updated and
deleted at random; a trigger keeps a history of every version of a row, and the job writes every change into a table of
its own, exactly once. ``psql`` reads all of them: counts must be right, changes must come to the table as it is, and
every version that was made since a row was first seen must have come once. Needs what ``tests/postgresql_server.py``
needs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from deaths import aimed
from postgresql_server import PostgresqlServer, new_server
from server_soak import END, count_in_windows, expected_counts, finish_when, judge, main, make_row, run_job

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.postgres_cdc import PostgresCdcSource
from headrace.connectors.sql import SqlSink

NUM_KEYS = 3_000
TRANSACTIONS = 60
"""A second."""

NUMBERS = 5
"""In a transaction."""

RATE = TRANSACTIONS * NUMBERS

TABLES = (
    "CREATE TABLE numbers (id BIGINT PRIMARY KEY, key BIGINT, ts BIGINT)",
    "ALTER TABLE numbers REPLICA IDENTITY FULL",
    'CREATE TABLE counts (place BIGSERIAL, key BIGINT, "window" BIGINT, n BIGINT)',
    "CREATE SEQUENCE versions",
    "CREATE TABLE rows (id INT PRIMARY KEY, kind INT, v BIGINT, version BIGINT)",
    "ALTER TABLE rows REPLICA IDENTITY FULL",
    "CREATE TABLE history (id INT, version BIGINT PRIMARY KEY)",
    """CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
       INSERT INTO history VALUES (NEW.id, NEW.version); RETURN NULL; END $$""",
    "CREATE TRIGGER remember AFTER INSERT OR UPDATE ON rows FOR EACH ROW EXECUTE FUNCTION remember()",
    f"INSERT INTO rows SELECT i, i % 20, i, nextval('versions') FROM generate_series(1, {NUM_KEYS}) i",
    "CREATE TABLE changes (op TEXT, id INT, kind INT, v BIGINT, version BIGINT)",
)
SCHEMAS = {
    "numbers": dict.fromkeys(("id", "key", "ts"), "int64"),
    "rows": {"id": "int32", "kind": "int32", "v": "int64", "version": "int64"},
}

NUM_THERE = """
    WITH found AS (SELECT id, kind, v, version FROM changes GROUP BY id, kind, v, version
                   HAVING sum(CASE WHEN op IN ('+I', '+U') THEN 1 ELSE -1 END) > 0)
    SELECT (SELECT count(*) FROM (TABLE found INTERSECT TABLE rows) AS alike)
         - (SELECT count(*) FROM (TABLE found EXCEPT TABLE rows) AS others) + (SELECT count(*) FROM counts)
"""
"""How many counts there are, and rows as the changes tell them, less those that are not so."""


class Writer(threading.Thread):
    """Writes until it is joined, through restarts of the server, which says what a commit without an answer became."""

    def __init__(self, server: PostgresqlServer, seed: int) -> None:
        super().__init__(daemon=True)
        self._server, self._rng = server, random.Random(seed)
        self._is_over = threading.Event()
        self.num_transactions = 0
        self.num_numbers = 0

    def join(self, timeout: float | None = None) -> None:
        """Have it end."""
        self._is_over.set()
        super().join(timeout)

    def run(self) -> None:
        import psycopg

        while True:
            with contextlib.suppress(psycopg.Error), self._server.connect() as connection:
                self._write(connection)
                return
            time.sleep(0.1)

    def _write(self, connection: Any) -> None:
        [(self.num_numbers,)] = connection.execute("SELECT count(*) FROM numbers").fetchall()
        while not self._is_over.wait(1 / TRANSACTIONS):
            indexes = range(self.num_numbers, self.num_numbers + NUMBERS)
            with connection.transaction():
                for _ in range(self._rng.randrange(1, 6)):
                    connection.execute(self._statement())
                for index in indexes:
                    values = (index, *make_row(index, RATE).values())
                    connection.execute("INSERT INTO numbers VALUES (%s, %s, %s)", values)
            self.num_transactions += 1
            self.num_numbers = indexes.stop

    def _statement(self) -> str:
        key, kind, value = self._rng.randrange(NUM_KEYS), self._rng.randrange(20), self._rng.randrange(1_000)
        update = f"UPDATE rows SET kind = {kind}, v = {value}, version = nextval('versions') WHERE id = {key}"
        insert = f"INSERT INTO rows VALUES ({key}, {kind}, {value}, nextval('versions')) ON CONFLICT DO NOTHING"
        return self._rng.choice([update, update, insert, f"DELETE FROM rows WHERE id = {key}"])


def followed(server: PostgresqlServer, table: str) -> PostgresCdcSource:
    return PostgresCdcSource(
        "127.0.0.1", server.port, username="headrace", password=server.password, database="postgres", table=table,
        schema=SCHEMAS[table], slot=f"soak_{table}", kind_column="op", chunk_size=200, heartbeat_interval="1 s",
    )  # fmt: skip


def rows_of(server: PostgresqlServer, query: str) -> list[tuple[Any, ...]]:
    return [tuple(json.loads(line).values()) for line in server.seen_by_psql(query)]


def judge_changes(server: PostgresqlServer) -> dict[str, int]:
    """What is wrong with the changes that are there."""
    signs = {"+I": 1, "+U": 1, "-U": -1, "-D": -1}
    found: Counter[tuple[Any, ...]] = Counter()
    came: Counter[tuple[int, int]] = Counter()
    first: dict[int, int] = {}
    for op, key, kind, value, version in rows_of(server, "TABLE changes"):
        found[key, kind, value, version] += signs[op]
        if signs[op] > 0:
            came[key, version] += 1
            first[key] = min(version, first.get(key, version))
    table, made = Counter(rows_of(server, "TABLE rows")), rows_of(server, "TABLE history")
    # Versions before the first of a key were replaced before the table was read.
    missing = [one for one in made if one[0] in first and one[1] >= first[one[0]] and one not in came]
    return {
        "versions": len(made),
        "versions that came": came.total(),
        "changes lost": (table - found).total() + len(missing),
        "changes doubled": came.total() - len(came) + (+found - table).total(),
        "changes taken back before they came": sum(count < 0 for count in found.values()),
    }


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    (directory / "server").mkdir()
    server = new_server(directory / "server")
    server.start()
    server.execute(*TABLES)
    writer = Writer(server, options.seed)

    def build(env: StreamExecutionEnvironment) -> None:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamp_assigner("ts")
        numbers = env.from_source(followed(server, "numbers"), strategy, "numbers")
        count_in_windows(numbers, SqlSink.exactly_once(server.url, "counts", sink_id="counts"), directory)
        rows = env.from_source(followed(server, "rows"), WatermarkStrategy.no_watermarks(), "rows")
        sink = SqlSink.exactly_once(server.url, "changes", sink_id="changes")
        rows.key_by("id").map(lambda row: row).sink_to(aimed(sink, directory))

    def num_there() -> int:
        # Event time goes on with what comes by the log, which is nothing yet if the chunks had all.
        server.execute("INSERT INTO numbers SELECT max(id) + 1, {key}, {ts} FROM numbers".format(**END))
        [(number,)] = server.rows(NUM_THERE)
        return max(0, number)

    def finish(client: Any) -> None:
        [(num_rows,)] = server.rows("SELECT count(*) FROM rows")
        finish_when(num_there, num_rows + len(expected_counts(writer.num_numbers, RATE)), directory)(client)

    try:
        figures = run_job(server, writer, build, finish, options, directory)
        counts = server.seen_by_psql('SELECT key, "window", n FROM counts ORDER BY place')
        changes = judge_changes(server)
    finally:
        server.kill()
    figures |= {"transactions": writer.num_transactions, "records": writer.num_numbers}
    return {**figures, **judge(counts, expected_counts(writer.num_numbers, RATE)), **changes}


if __name__ == "__main__":
    wrong = ["changes lost", "changes doubled", "changes taken back before they came"]
    sys.exit(main(__doc__, soak, wrong))
