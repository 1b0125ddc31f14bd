"""Transactional sinks on Ray: processes of slots kill themselves with signal 9 at every named point of a commit, and
what is in the table is exactly once, for a second reader at every moment."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter

import pytest
from campaigns import campaign
from dying_sink import CREATE_TABLE, POINTS, DyingSink, Reader, build, expected
from folder_service import FolderSink, accepted
from versioned_table import VersionedTable, rows_of

from headrace import StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.sql import SqlSink

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.usefixtures("ray_session")]


@pytest.mark.parametrize(
    ("staging", "points", "count"),
    [
        ("checkpoint", POINTS[1:3], 5_000),
        campaign("checkpoint", POINTS, 12_000),
        campaign("table", POINTS, 12_000),
    ],
    ids=["checkpoint-two-points", "checkpoint", "table"],
)
@pytest.mark.campaign
def test_slots_die_at_every_point_of_a_commit(staging, points, count, tmp_path):
    path = tmp_path / "db.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(CREATE_TABLE)

    def look():
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
            connection.execute("BEGIN")
            rows = connection.execute("SELECT k, c FROM counts").fetchall()
            try:
                markers = connection.execute("SELECT checkpoint_id, num_rows FROM headrace_commits").fetchall()
            except sqlite3.OperationalError:
                markers = []
        return rows, markers

    # Apart, so that each death has a checkpoint of its own to interrupt; the second of two subtasks' commits, too.
    plan = [(point, 5 + 4 * index) for index, point in enumerate(points)]
    sink = SqlSink.exactly_once(f"sqlite:///{path}", "counts", sink_id="counts", staging=staging)
    dying = DyingSink(sink, plan, tmp_path / "points", kills=True)
    env = StreamExecutionEnvironment.get_execution_environment(actor_system="ray")
    env.set_parallelism(2)
    env.enable_checkpointing(300, directory=str(tmp_path / "checkpoints"))
    build(env, dying, count, rate=800)
    reader = Reader(look, tmp_path / "checkpoints")
    reader.start()
    try:
        result = env.execute_async("sinks").result(timeout=200)
    finally:
        reader.done.set()
        reader.join()
        env.close()
    assert dying.deaths() == sorted(f"{point}.{n}" for point, n in plan)
    assert result.num_restarts >= len(plan)
    assert reader.problems == []
    assert len(reader.sizes) > 5
    rows, markers = look()
    assert Counter(rows) == expected(count)
    assert sum(num_rows for _, num_rows in markers) == count
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM headrace_staged").fetchone() == (0,)


@pytest.mark.campaign
def test_slots_die_at_every_point_of_a_global_commit(tmp_path):
    """Some of the dead are writers', one is the committer's each time."""
    count = 6_000
    dies = ("prepared", "before", "middle", "after")
    table = VersionedTable(tmp_path / "table", dies, kills=True)
    env = StreamExecutionEnvironment.get_execution_environment(actor_system="ray")
    env.set_parallelism(2)
    env.enable_checkpointing(300, directory=str(tmp_path / "checkpoints"))
    source = GeneratorSource(lambda n: n, count=count, records_per_second=800)
    env.from_source(source, None, "numbers").rebalance().map(lambda n: n).sink_to(table).name("table")
    try:
        result = env.execute_async("table").result(timeout=200)
    finally:
        env.close()
    assert sorted(path.name for path in (tmp_path / "table" / "deaths").iterdir()) == sorted(dies)
    assert result.num_restarts >= len(dies)
    assert rows_of(tmp_path / "table") == list(range(count))


@pytest.mark.campaign
def test_slots_die_before_and_behind_a_request(tmp_path):
    count = 6_000
    sink = FolderSink(tmp_path / "service", ("before", "after"), kills=True)
    env = StreamExecutionEnvironment.get_execution_environment(actor_system="ray")
    env.set_parallelism(2)
    env.enable_checkpointing(300, directory=str(tmp_path / "checkpoints"))
    source = GeneratorSource(lambda n: n, count=count, records_per_second=1_500)
    env.from_source(source, None, "numbers").rebalance().map(lambda n: n).sink_to(sink).name("service")
    try:
        result = env.execute_async("service").result(timeout=200)
    finally:
        env.close()
    assert sorted(path.name for path in (tmp_path / "service" / "deaths").iterdir()) == ["after", "before"]
    assert result.num_restarts >= 1  # both may die at once
    assert set(accepted(tmp_path / "service")) == set(range(count))
