"""EXPLAIN ANALYZE, and event time where rows are read.

Families: numbers of jobs and of bounded plans against counts of the rows; refusals; watermarks in sources, by the rows
that windows give, and by what is said of a window that waits.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.engine.errors import ProgramError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment

EVENTS = """
    CREATE TABLE events (k BIGINT, seconds BIGINT, at AS TO_TIMESTAMP_LTZ(seconds, 0),
                         WATERMARK FOR at AS at - INTERVAL '2' SECOND)
    WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'parquet'{more})
"""
COUNTS = """
    SELECT k, window_start AS s, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(at), INTERVAL '10' SECOND))
    GROUP BY k, window_start, window_end
"""


def write(path, *files):
    path.mkdir(exist_ok=True)
    for number, rows in enumerate(files):
        pq.write_table(
            pa.table({"k": [k for k, _ in rows], "seconds": [at for _, at in rows]}), path / f"{number}.parquet"
        )
    return path


def environment(mode="streaming", parallelism=2):
    options = {"actor_system": "local", "metrics_interval_ms": 20} if mode == "streaming" else {}
    return TableEnvironment.create(mode=mode, parallelism=parallelism, **options)


def lines_of(env, text):
    return [row["result"] for row in env.execute_sql(text).to_arrow().to_pylist()]


def test_a_query_over_streams_is_run_and_its_operators_told(tmp_path):
    path = write(tmp_path / "in", [(i % 7, i) for i in range(100)], [(i % 3, i) for i in range(50)])
    with environment() as env:
        env.execute_sql(EVENTS.format(path=path, more=""))
        lines = lines_of(env, f"EXPLAIN ANALYZE {COUNTS}")
        filtered = lines_of(env, "EXPLAIN ANALYZE SELECT k FROM events WHERE seconds < 10")
    assert re.fullmatch(r"query: FINISHED \| .* s", lines[0])
    (source,) = [line for line in lines if line.startswith("Source: ")]
    assert "150" in source.split()
    assert any(line.startswith("tumble") or "tumble" in line for line in lines)
    (where,) = [line for line in filtered if "where" in line]
    assert where.split()[-4:-2] == ["150", "20"]


def test_the_rows_of_bounded_data_are_those_of_each_step(tmp_path):
    path = write(tmp_path / "in", [(i % 7, i) for i in range(100)])
    with environment("batch") as env:
        env.execute_sql(EVENTS.format(path=path, more=""))
        lines = lines_of(env, "EXPLAIN ANALYZE SELECT k, COUNT(*) FROM events WHERE seconds < 50 GROUP BY k")
    assert re.fullmatch(r"\d+\.\d{3} s", lines[0])
    assert any("(7 rows" in line for line in lines)


def test_what_is_written_is_written(tmp_path):
    path = write(tmp_path / "in", [(i % 7, i) for i in range(100)])
    for mode in ("streaming", "batch"):
        with environment(mode) as env:
            env.execute_sql(EVENTS.format(path=path, more=""))
            target = tmp_path / mode
            place = f"'connector' = 'filesystem', 'path' = '{target}', 'format' = 'parquet'"
            env.execute_sql(f"CREATE TABLE o (k BIGINT) WITH ({place})")
            assert lines_of(env, "EXPLAIN ANALYZE INSERT INTO o SELECT k FROM events WHERE k = 3")
            assert pq.read_table(target).num_rows == len(range(3, 100, 7))


def test_what_has_no_end_is_refused_and_its_job_can_be_looked_at(tmp_path):
    path = write(tmp_path / "in", [(1, 3), (1, 27), (2, 14)])
    with environment(parallelism=1) as env:
        env.execute_sql(EVENTS.format(path=path, more=", 'source.monitor-interval' = '50 ms'"))
        with pytest.raises(ProgramError, match="has no end"):
            env.execute_sql(f"EXPLAIN ANALYZE {COUNTS}")
        env.execute_sql("SET 'table.dml-sync' = 'false'")
        env.execute_sql("CREATE TABLE o (k BIGINT, s TIMESTAMP(3), n BIGINT) WITH ('connector' = 'blackhole')")
        client = env.execute_sql(f"INSERT INTO o {COUNTS}").get_job_client()
        text, deadline = "", time.monotonic() + 20
        while "5.0 s short of it" not in text and time.monotonic() < deadline:
            text = "\n".join(lines_of(env, f"EXPLAIN ANALYZE JOB '{str(client.get_job_id())[:12]}'"))
        client.cancel()
        with pytest.raises(SqlError, match="names no job"):
            env.execute_sql("EXPLAIN ANALYZE JOB 'nothing'")
    # The windows of key 1 and 2 that begin at 20 and 10 are open: the watermark is at 24.999.
    assert "waits for event time 1970-01-01 00:00:29.999; it is at 1970-01-01 00:00:24.999, 5.0 s short of it" in text
    assert "it has no split to read" in text  # the file is read, and another one may come


def test_the_source_makes_the_watermarks_only_where_all_its_readers_want_them(tmp_path):
    path = write(tmp_path / "in", [(1, 3)])
    with environment() as env:
        env.execute_sql(EVENTS.format(path=path, more=""))
        assert "makes the watermarks of at" in env.explain_sql(COUNTS)
        env.create_temporary_view("given", pa.table({"at": pa.array([1], pa.timestamp("ms"))}), event_time="at")
        assert "makes the watermarks" not in env.explain_sql("SELECT at FROM given")


def test_windows_over_many_files_are_those_of_batch_mode(tmp_path):
    files = [[(i % 5, i * 3 + part) for i in range(80)] for part in range(6)]
    path = write(tmp_path / "in", *files)
    expected = {}
    for k, at in (row for rows in files for row in rows):
        expected[k, at // 10 * 10] = expected.get((k, at // 10 * 10), 0) + 1
    for mode in ("streaming", "batch"):
        with environment(mode, parallelism=1) as env:
            # Six files one behind the other: what a delay of 2 s does not cover would be late.
            env.execute_sql(EVENTS.format(path=path, more="").replace("'2' SECOND", "'10' MINUTE"))
            rows = env.execute_sql(COUNTS).to_arrow().to_pylist()
        assert {(row["k"], row["s"].replace(tzinfo=dt.timezone.utc).timestamp()): row["n"] for row in rows} == expected


def test_a_part_of_a_source_without_rows_is_idle_after_its_timeout(tmp_path):
    path = write(tmp_path / "in", [(1, 3), (1, 27)])
    with environment(parallelism=2) as env:
        env.execute_sql(EVENTS.format(path=path, more=", 'source.monitor-interval' = '50 ms'"))
        # One file, two subtasks: without a timeout the second one waits for a file of its own, and so does everything.
        env.execute_sql("SET 'table.exec.source.idle-timeout' = '300 ms'")
        with closing(env.execute_sql(COUNTS).collect()) as changes:
            first = next(changes)
    assert first[1:] == (1, dt.datetime.fromtimestamp(0, dt.timezone.utc).replace(tzinfo=None), 1)
