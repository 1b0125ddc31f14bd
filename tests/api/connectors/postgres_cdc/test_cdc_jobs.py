"""A followed table in a job that fails, whose server is killed: what its sink has is what the table is (crash, oracle:
the database). `tests/actors/postgres_soak.py` is the long form, with processes that die.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time

import psycopg
import pytest
from followed_table import followed, table  # noqa: F401 - a fixture
from postgresql_server import postgresql  # noqa: F401 - a fixture

from headrace import MapFunction, RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.sql import SqlSink


class FailsThreeTimes(MapFunction):
    """Fails at some rows, when it meets them first."""

    def __init__(self, directory):
        self._directory = directory

    def map(self, row):
        if row["id"] in (7, 40, 77):
            with contextlib.suppress(FileExistsError), open(f"{self._directory}/{row['id']}", "x"):
                message = "made to fail"
                raise OSError(message)
        return row


def folded(server, name):
    signs = {"+I": 1, "+U": 1, "-U": -1, "-D": -1}
    rows = {}
    for op, *row in server.rows(f"SELECT op, id, v FROM {name}"):
        rows[tuple(row)] = rows.get(tuple(row), 0) + signs[op]
    return {row: count for row, count in rows.items() if count}


@pytest.mark.parametrize("seed", [1])
def test_a_job_that_fails_and_whose_server_is_killed(seed, postgresql, table, tmp_path):  # noqa: F811
    postgresql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)",
        f"ALTER TABLE {table} REPLICA IDENTITY FULL",
        f"INSERT INTO {table} SELECT i, i FROM generate_series(1, 60) i",
        f"CREATE TABLE {table}_changes (op TEXT, id INT, v INT)",
    )
    rng, pause, deadline = random.Random(seed), threading.Event(), time.monotonic() + 150
    source = followed(postgresql, table, {"id": "int32", "v": "int32"}, kind_column="op", chunk_size=8)
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.enable_checkpointing(100, directory=str(tmp_path))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(50, "100 ms"))
        sink = SqlSink.exactly_once(postgresql.url, f"{table}_changes", sink_id=table)
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "followed").key_by("id")
        stream.map(FailsThreeTimes(str(tmp_path))).sink_to(sink)
        client = env.execute_async("followed")
        try:
            for number in range(60):
                key = rng.randrange(100)
                postgresql.execute(
                    f"INSERT INTO {table} VALUES ({key}, {number}) ON CONFLICT (id) DO UPDATE SET v = {number}",
                    f"DELETE FROM {table} WHERE id = {rng.randrange(100)}",
                )
                if number in (20, 45):
                    postgresql.restart()
            for key in (7, 40, 77):
                postgresql.execute(f"INSERT INTO {table} VALUES ({key}, 1) ON CONFLICT (id) DO UPDATE SET v = 1001")
            expected = dict.fromkeys(postgresql.rows(f"TABLE {table}"), 1)
            while folded(postgresql, f"{table}_changes") != expected:
                assert time.monotonic() < deadline, "the changes do not come to the table"
                pause.wait(0.1)
            assert client.view().num_restarts >= 3
        finally:
            client.cancel()
    with contextlib.suppress(psycopg.Error):
        postgresql.execute(f"DROP TABLE {table}_changes")
