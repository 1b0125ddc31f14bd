"""Rows of one PRIMARY KEY: ON CONFLICT, against the rows of the query itself.

Families: differential (each key has one of its rows, in the database), example (plans, errors).
"""

from __future__ import annotations

import contextlib
import sqlite3

import pyarrow as pa
import pytest
from query_kit import SAMPLE, FailsNowAndThen, by_duckdb, in_small_batches, tables_of

from headrace import RestartStrategies
from headrace.engine.errors import JobFailedError, ProgramError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment, udf


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "db.sqlite"
    with contextlib.closing(sqlite3.connect(found)) as connection, connection:
        connection.execute("CREATE TABLE counts (n bigint PRIMARY KEY, a bigint)")
    return found


def environment(path, mode="streaming", parallelism=2, **options):
    options = {} if mode == "batch" else {"actor_system": "local", **options}
    env = TableEnvironment.create(mode=mode, parallelism=parallelism, **options)
    env.execute_sql(f"""
        CREATE TABLE counts (n BIGINT, a BIGINT, PRIMARY KEY (n) NOT ENFORCED)
        WITH ('connector' = 'jdbc', 'url' = 'jdbc:sqlite:{path}', 'table-name' = 'counts')
    """)
    return env


def written(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT n, a FROM counts ORDER BY n").fetchall()


QUERY = "SELECT n, a FROM (SELECT a, COUNT(*) AS n FROM l GROUP BY a)"


@pytest.mark.parametrize("action", ["NOTHING", "DEDUPLICATE"])
def test_each_key_has_one_of_its_rows_when_all_is_done(action, path, tmp_path):
    tables = tables_of([(i % 9, i, "") for i in range(70)] + [(i % 4, i, "") for i in range(50)], SAMPLE[1])
    with environment(path) as env:
        in_small_batches(env, tables, 3)
        env.stream_environment.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        env.stream_environment.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        calls = FailsNowAndThen(tmp_path / "calls", (30, 90))
        env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))
        query = "SELECT n, a FROM (SELECT shaky(a) AS a, COUNT(*) AS n FROM l GROUP BY shaky(a))"
        env.execute_sql(f"INSERT INTO counts {query} ON CONFLICT DO {action}")
    wanted, found = set(by_duckdb(QUERY, tables)), written(path)
    assert set(found) <= wanted
    assert {n for n, _ in found} == {n for n, _ in wanted}
    assert len(wanted) > len(found) > 1


def test_rows_that_only_come_give_the_first_or_the_last(path):
    rows = pa.table({"n": [1, 2, 1, 3, 2, 1], "a": [10, 20, 11, 30, 21, 12]})
    for action, wanted in (("NOTHING", [(1, 10), (2, 20), (3, 30)]), ("DEDUPLICATE", [(1, 12), (2, 21), (3, 30)])):
        with environment(path, parallelism=1) as env:
            env.create_temporary_view("given", rows)
            env.execute_sql(f"INSERT INTO counts SELECT n, a FROM given ON CONFLICT DO {action}")
        assert written(path) == wanted


def plan_of(env, statement):
    return "\n".join(env.execute_sql(f"EXPLAIN {statement}").to_arrow()[0].to_pylist())


def test_a_plan_says_what_is_kept_for_it(path):
    with environment(path) as env:
        in_small_batches(env, tables_of(*SAMPLE), 3)
        text = plan_of(env, f"INSERT INTO counts {QUERY} ON CONFLICT DO DEDUPLICATE")
        assert "last row of each n, as ON CONFLICT says" in text
        assert "all rows of its input for each n" in text
        # The key tells the rows apart: nothing is added, whatever is said.
        for action in ("NOTHING", "ERROR", "DEDUPLICATE"):
            plain = "INSERT INTO counts SELECT a, COUNT(*) FROM l GROUP BY a"
            assert "ON CONFLICT" not in plan_of(env, f"{plain} ON CONFLICT DO {action}")


@pytest.mark.parametrize(
    ("mode", "statement", "message"),
    [
        ("streaming", f"INSERT INTO counts {QUERY} ON CONFLICT DO UPDATE", "DO NOTHING, DO ERROR or DO DEDUPLICATE"),
        ("streaming", f"INSERT INTO counts {QUERY}", "does not tell the query's rows apart"),
        ("streaming", "INSERT INTO plain SELECT a, b FROM l ON CONFLICT DO NOTHING", "written by their PRIMARY KEY"),
        ("batch", f"INSERT INTO counts {QUERY} ON CONFLICT DO NOTHING", "batch mode"),
    ],
)
def test_what_cannot_be_resolved_is_refused(mode, statement, message, path):
    with environment(path, mode) as env:
        if mode == "batch":
            env.create_temporary_view("l", tables_of(*SAMPLE)["l"])
        else:
            in_small_batches(env, tables_of(*SAMPLE), 3)
        env.execute_sql("CREATE TABLE plain (a BIGINT, b BIGINT) WITH ('connector' = 'blackhole')")
        with pytest.raises((SqlError, ProgramError), match=message):
            env.execute_sql(statement)


KNOWN_APART = "SELECT a AS n, c AS a FROM (SELECT shaky(a) AS a, COUNT(*) AS c FROM l GROUP BY shaky(a), shaky(a) * 2)"
NOT_APART = "SELECT a AS n, c AS a FROM (SELECT shaky(a) AS a, COUNT(*) AS c FROM l GROUP BY shaky(a), b)"


def write_or_fail(path, tmp_path, query, tables, backend):
    """DO ERROR, with checkpoints, failures and restarts, in small batches."""
    with environment(path) as env:
        in_small_batches(env, tables, 3)
        env.stream_environment.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        env.stream_environment.set_restart_strategy(RestartStrategies.fixed_delay_restart(1_000, 1))
        calls = FailsNowAndThen(tmp_path / "calls", (30, 90))
        env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))
        env.execute_sql(f"SET 'state.backend.type' = '{backend}'")
        env.execute_sql(f"INSERT INTO counts {query} ON CONFLICT DO ERROR")


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_rows_that_prove_to_be_one_of_each_key_are_written(backend, path, tmp_path):
    tables = tables_of([(i % 9, i, "") for i in range(70)], SAMPLE[1])
    write_or_fail(path, tmp_path, KNOWN_APART, tables, backend)
    assert written(path) == sorted(by_duckdb("SELECT a, COUNT(*) FROM l GROUP BY a", tables))


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_two_rows_of_one_key_end_the_job(backend, path, tmp_path):
    tables = tables_of([(i % 9, i % 9 if i < 69 else 99, "") for i in range(70)], SAMPLE[1])
    with pytest.raises(JobFailedError, match=r"PRIMARY KEY \{'n': 6\} has several rows") as caught:
        write_or_fail(path, tmp_path, NOT_APART, tables, backend)
    assert "only row of each n" in str(caught.value)
    assert "/2" in str(caught.value)


def test_conflicts_are_looked_for_where_all_rows_are_known(path, tmp_path):
    with environment(path) as env:
        env.execute_sql("CREATE TABLE endless (n BIGINT, a BIGINT) WITH ('connector' = 'datagen')")
        with pytest.raises(ProgramError, match="none are taken"):
            env.execute_sql("INSERT INTO counts SELECT n, a FROM endless ON CONFLICT DO ERROR")
        env.stream_environment.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        for key, value, message in (
            ("execution.checkpointing.unaligned.enabled", "true", "unaligned ones leave rows out"),
            ("execution.checkpointing.mode", "at_least_once", "some rows of the next one"),
        ):
            env.execute_sql(f"SET '{key}' = '{value}'")
            with pytest.raises(ProgramError, match=message):
                env.execute_sql("INSERT INTO counts SELECT n, a FROM endless ON CONFLICT DO ERROR")
            env.execute_sql(f"RESET '{key}'")
