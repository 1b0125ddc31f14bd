"""Tables of PostgreSQL that are followed, in SQL: what a query comes to is what psql says of the same tables.

Families: differential (the query in the database itself), bad options (errors by name).
"""

from __future__ import annotations

import pytest
from followed_table import table  # noqa: F401 - a fixture
from postgresql_server import postgresql  # noqa: F401 - a fixture

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment

OPTIONS = {
    "connector": "postgres-cdc",
    "hostname": "127.0.0.1",
    "username": "headrace",
    "database-name": "postgres",
    "decoding.plugin.name": "pgoutput",
    "heartbeat.interval.ms": "100 ms",
}


def with_clause(options):
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())


@pytest.mark.parametrize("mode", ["all", "upsert"])
def test_a_query_follows_its_table_into_another(mode, postgresql, table, tmp_path):  # noqa: F811
    """Groups of a followed table are kept in a table of the database, while rows come, change and go."""
    postgresql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, kind TEXT, n BIGINT)",
        f"ALTER TABLE {table} REPLICA IDENTITY {'FULL' if mode == 'all' else 'DEFAULT'}",
        f"INSERT INTO {table} SELECT i, 'k' || i % 7, i FROM generate_series(1, 200) i",
        f"CREATE TABLE {table}_sums (kind TEXT PRIMARY KEY, num BIGINT, total BIGINT)",
    )
    options = {
        **OPTIONS, "port": postgresql.port, "password": postgresql.password, "table-name": table,
        "slot.name": f"slot_of_{table}", "changelog-mode": mode, "scan.incremental.snapshot.chunk.size": 30,
    }  # fmt: skip
    expected = f"SELECT kind, count(*), sum(n)::bigint FROM {table} GROUP BY kind ORDER BY kind"
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql("SET 'execution.checkpointing.interval' = '100 ms'")
    t.execute_sql(f"SET 'execution.checkpointing.dir' = '{tmp_path}'")
    t.execute_sql("SET 'table.dml-sync' = 'false'")
    t.execute_sql(
        "CREATE TABLE source (id INT, kind STRING, n BIGINT, PRIMARY KEY (id) NOT ENFORCED)"
        f" WITH ({with_clause(options)})"
    )
    t.execute_sql(
        "CREATE TABLE sums (kind STRING, num BIGINT, total BIGINT, PRIMARY KEY (kind) NOT ENFORCED) WITH ("
        f"'connector' = 'jdbc', 'url' = '{postgresql.url}', 'table-name' = '{table}_sums', 'sink.id' = '{table}')"
    )
    client = t.execute_sql("INSERT INTO sums SELECT kind, COUNT(*), SUM(n) FROM source GROUP BY kind").get_job_client()
    try:
        for statement in (
            f"UPDATE {table} SET n = n + 1000 WHERE id % 3 = 0",
            f"DELETE FROM {table} WHERE kind = 'k1' OR id % 5 = 0",
            f"UPDATE {table} SET kind = 'new' WHERE id % 11 = 0",
            f"UPDATE {table} SET id = id + 1000 WHERE id % 13 = 0",
        ):
            postgresql.execute(statement)
        wait_until(lambda: postgresql.rows(f"TABLE {table}_sums ORDER BY kind") == postgresql.rows(expected))
    finally:
        client.cancel()
    postgresql.execute(f"DROP TABLE {table}_sums")


def wait_until(is_so):
    """Wait until the job has done it; it looks at the outside ten times a second."""
    import threading
    import time

    deadline, pause = time.monotonic() + 150, threading.Event()
    while not is_so():
        assert time.monotonic() < deadline, "the table does not come to what the query gives"
        pause.wait(0.1)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"slot.name": None}, "needs option 'slot.name'"),
        ({"slot.name": "Slot"}, "small letters"),
        ({"decoding.plugin.name": "wal2json"}, "one of pgoutput"),
        ({"changelog-mode": "upserts"}, "one of all, upsert"),
        ({"scan.startup.mode": "latest"}, "startup_mode must be one of initial"),
        ({"scan.incremental.snapshot.enabled": "false"}, "one of true"),
        ({"slot.nam": "x"}, "did you mean 'slot.name'"),
    ],
)
def test_options_that_are_wrong_are_refused(changed, expected):
    options = {**OPTIONS, "password": "p", "table-name": "t", "slot.name": "s", **changed}
    given = {name: value for name, value in options.items() if value is not None}
    with pytest.raises(HeadraceError, match=expected):
        TableEnvironment.create(actor_system="local").execute_sql(
            f"CREATE TABLE t (id INT) WITH ({with_clause(given)})"
        )


def test_without_checkpoints_it_says_so(postgresql, table):  # noqa: F811
    postgresql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    options = {
        **OPTIONS, "port": postgresql.port, "password": postgresql.password, "table-name": table,
        "slot.name": f"slot_of_{table}",
    }  # fmt: skip
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    t.execute_sql(f"CREATE TABLE source (id INT, PRIMARY KEY (id) NOT ENFORCED) WITH ({with_clause(options)})")
    with pytest.raises(HeadraceError, match="a source of changes needs checkpoints"):
        list(t.execute_sql("SELECT * FROM source").collect())
    with postgresql.connect() as connection:  # nobody would ever read it, and the server would keep its log
        slots = connection.execute(
            "SELECT slot_name FROM pg_replication_slots WHERE slot_name = %s", (options["slot.name"],)
        )
        assert slots.fetchall() == []
