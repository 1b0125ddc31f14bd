"""Whole jobs into tables, in one process: families crash (tasks fail and slots go at named points; a second reader
looks on), property (a job stopped and resumed elsewhere), errors as the user sees them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter

import pytest
from campaigns import campaign
from dying_sink import CREATE_TABLE, POINTS, DyingSink, Reader, build, expected
from mariadb_server import mariadb  # noqa: F401 - a fixture
from postgresql_server import postgresql  # noqa: F401 - a fixture

from headrace import JobFailedError, StreamExecutionEnvironment
from headrace.connectors.sql import SqlSink


def environment(tmp_path, parallelism=2, backend="heap"):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism)
    env.enable_checkpointing(40, directory=tmp_path / "checkpoints")
    env.set_state_backend(backend)
    return env


class SqliteTable:
    def __init__(self, tmp_path):
        self.path = tmp_path / "db.sqlite"
        self.url = f"sqlite:///{self.path}"
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            connection.execute(CREATE_TABLE)

    def look(self):
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None, timeout=30)) as connection:
            connection.execute("BEGIN")
            rows = connection.execute("SELECT k, c FROM counts").fetchall()
            try:
                markers = connection.execute("SELECT checkpoint_id, num_rows FROM headrace_commits").fetchall()
            except sqlite3.OperationalError:
                markers = []
        return rows, markers


class PostgresqlTable:
    def __init__(self, server):
        self.server = server
        self.url = server.url
        server.clear()
        server.execute(CREATE_TABLE)

    def look(self):
        with self.server.connect() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            rows = connection.execute("SELECT k, c FROM counts").fetchall()
            there = connection.execute("SELECT to_regclass('headrace_commits')").fetchone()
            query = "SELECT checkpoint_id, num_rows FROM headrace_commits"
            return rows, connection.execute(query).fetchall() if there != (None,) else []


class MariadbTable:
    def __init__(self, server):
        self.server = server
        self.url = server.url
        server.clear()
        server.execute(CREATE_TABLE)

    def look(self):
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.execute("SELECT k, c FROM counts")
            rows = list(cursor.fetchall())
            if not cursor.execute("SHOW TABLES LIKE 'headrace_commits'"):
                return rows, []
            cursor.execute("SELECT checkpoint_id, num_rows FROM headrace_commits")
            return rows, list(cursor.fetchall())


TABLES = {"postgresql": PostgresqlTable, "mariadb": MariadbTable}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.slow, pytest.mark.lane("postgresql")])])
def table(request, tmp_path):
    if request.param == "sqlite":
        return SqliteTable(tmp_path)
    return TABLES[request.param](request.getfixturevalue(request.param))


ON_SQLITE_IN_EVERY_RUN = pytest.mark.parametrize(
    "table", ["sqlite", campaign("postgresql", lane="postgresql"), campaign("mariadb", lane="mariadb")], indirect=True
)
"""Of tests that take seconds: what they need of a database is in the contract, which runs on both every time."""


@pytest.mark.sampled(4)
@ON_SQLITE_IN_EVERY_RUN
@pytest.mark.parametrize(("staging", "backend"), [campaign("checkpoint", "heap"), ("table", "rocksdb")])
def test_a_job_that_fails_at_every_point_fills_the_table_exactly_once(table, staging, backend, tmp_path):
    count = 4_000
    env = environment(tmp_path, backend=backend)
    plan = [(point, n) for index, point in enumerate(POINTS) for n in (4 + 3 * index, 21 + 3 * index)]
    sink = SqlSink.exactly_once(table.url, "counts", sink_id="counts", staging=staging)
    dying = DyingSink(sink, plan, tmp_path / "points", kills=False)
    build(env, dying, count, rate=1_500)
    reader = Reader(table.look, tmp_path / "checkpoints")
    reader.start()
    try:
        result = env.execute_async("counts").result(timeout=120)
    finally:
        reader.done.set()
        reader.join()
        env.close()
    assert dying.deaths() == sorted(f"{point}.{n}" for point, n in plan)
    # What fails in a commit is tried again, what fails at a barrier restarts the job.
    assert result.num_restarts >= 2
    assert reader.problems == []
    assert len(reader.sizes) > 3, "the reader saw nothing grow"
    rows, markers = table.look()
    assert Counter(rows) == expected(count)
    assert sum(num_rows for _, num_rows in markers) == count


@ON_SQLITE_IN_EVERY_RUN
def test_slots_that_go_leave_no_second_writer(table, tmp_path):
    count = 3_000
    env = environment(tmp_path)
    build(env, SqlSink.exactly_once(table.url, "counts", sink_id="counts"), count, rate=1_500)
    client = env.execute_async("counts")
    kills = 0
    for view in client.views():
        if view.state == "RUNNING" and view.checkpoints_completed >= 4 * (kills + 1) and kills < 3:
            client.kill_slot(kills % len(view.slots))
            kills += 1
    result = client.result(timeout=120)
    env.close()
    assert kills == 3
    assert result.num_restarts >= 3
    assert Counter(table.look()[0]) == expected(count)


def test_a_job_stopped_and_resumed_at_another_parallelism_goes_on_in_the_table(table, tmp_path):
    count = 2_000
    path = None
    for run, parallelism in enumerate((2, 3, 1)):
        env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism)
        env.enable_checkpointing(40, directory=tmp_path / f"run-{run}")
        if path is not None:
            env.set_restore_path(path)
        rate = 100 if run < 2 else None  # so slow that it is stopped in its middle on any machine
        build(env, SqlSink.exactly_once(table.url, "counts", sink_id="counts"), count, rate)
        client = env.execute_async("counts")
        if run < 2:
            for view in client.views():
                if view.checkpoints_completed >= 4:
                    break
            path = client.stop(timeout=60)
            assert path is not None
        else:
            client.result(timeout=60)
        env.close()
    assert Counter(table.look()[0]) == expected(count)


def test_without_checkpoints_the_rows_come_at_the_end(table):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)
    env.from_collection([(n % 7, n // 7 + 1) for n in range(500)]).sink_to(
        SqlSink.exactly_once(table.url, "counts", sink_id="counts", columns=["k", "c"])
    )
    env.execute()
    env.close()
    assert Counter(table.look()[0]) == expected(500)


def test_a_table_that_is_not_there_fails_the_job_at_once_with_its_name(table, tmp_path):
    env = environment(tmp_path)
    build(env, SqlSink.exactly_once(table.url, "cuonts", sink_id="counts"), 10, rate=10)
    with pytest.raises(JobFailedError, match=r"there is no table 'cuonts' \(operator 'Sink: table', subtask \d/2"):
        env.execute()
    env.close()


def test_rows_that_were_removed_fail_the_job_and_no_restart_hides_it(tmp_path):
    table = SqliteTable(tmp_path)
    env = environment(tmp_path, parallelism=1)

    class Removing(DyingSink):
        def pass_point(self, point):
            if point == "commit.before":
                with contextlib.closing(sqlite3.connect(table.path, timeout=30)) as connection, connection:
                    connection.execute("DELETE FROM headrace_staged")

    sink = SqlSink.exactly_once(table.url, "counts", sink_id="counts", staging="table")
    build(env, Removing(sink, [], tmp_path / "points", kills=False), 1_000, rate=1_000)
    with pytest.raises(JobFailedError, match=r"never committed: possible loss .*checkpoint \d+, rows \d+"):
        env.execute()
    env.close()
