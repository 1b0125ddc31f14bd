"""SET and RESET: each key does what Flink's does, for the jobs that follow, and what is not known is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace import CheckpointingMode, RestartStrategies
from headrace.engine.errors import ProgramError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment, udf
from headrace.table.settings import Settings

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def env():
    with TableEnvironment.create(parallelism=2, actor_system="local") as made:
        made.create_temporary_view("n", pa.table({"x": list(range(100))}))
        yield made


def job_settings(env):
    """What a job would be told now."""
    streams = env.stream_environment
    with env._execution.settings.applied_to(streams):
        streams.from_collection([1, 2]).print()
        graph = streams.get_job_graph()
        streams._transformations.clear()
    return graph.settings


@pytest.mark.parametrize(
    ("key", "value", "found", "expected"),
    [
        ("execution.checkpointing.interval", "3 s", lambda one: one.checkpoints.interval_ms, 3_000),
        ("state.backend.type", "rocksdb", lambda one: one.state.backend, "rocksdb"),
        ("state.backend", "hashmap", lambda one: one.state.backend, "heap"),
        ("pipeline.object-reuse", "TRUE", lambda one: one.object_reuse, True),
        ("execution.buffer-timeout.interval", "7 ms", lambda one: one.buffer_timeout_ms, 7),
        ("taskmanager.network.memory.buffer-debloat.enabled", "false", lambda one: one.buffer_debloat_enabled, False),
        ("restart-strategy.type", "none", lambda one: one.restart, RestartStrategies.no_restart()),
        (
            "restart-strategy.type", "fixed-delay", lambda one: one.restart,
            RestartStrategies.fixed_delay_restart(1, 1_000),
        ),
        (
            "restart-strategy", "failure-rate", lambda one: one.restart,
            RestartStrategies.failure_rate_restart(1, 60_000, 1_000),
        ),
        (
            "restart-strategy.type", "exponential-delay", lambda one: one.restart,
            RestartStrategies.exponential_delay_restart(1_000, 60_000),
        ),
        ("execution.checkpointing.savepoint-dir", "/tmp/s", lambda one: one.savepoint_directory, "/tmp/s"),
        ("execution.savepoint.path", "/tmp/p", lambda one: one.restore_from, "/tmp/p"),
    ],
)  # fmt: skip
def test_a_setting_is_that_of_the_jobs_that_follow_until_it_is_reset(env, key, value, found, expected):
    before = job_settings(env)
    env.execute_sql(f"SET '{key}' = '{value}'")
    if key in ("execution.savepoint.path",):
        with env._execution.settings.applied_to(env.stream_environment):
            assert env.stream_environment._restore_from == expected
    else:
        assert found(job_settings(env)) == expected
    env.execute_sql(f"RESET '{key}'")
    assert job_settings(env) == before


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("execution.checkpointing.dir", "/tmp/c", "directory", "/tmp/c"),
        ("state.checkpoints.dir", "/tmp/c", "directory", "/tmp/c"),
        ("execution.checkpointing.mode", "AT_LEAST_ONCE", "mode", CheckpointingMode.AT_LEAST_ONCE),
        ("execution.checkpointing.timeout", "1 min", "timeout_ms", 60_000),
        ("execution.checkpointing.min-pause", "2 s", "min_pause_ms", 2_000),
        ("execution.checkpointing.num-retained", "4", "num_retained", 4),
        ("execution.checkpointing.tolerable-failed-checkpoints", "-1", "tolerable_failures", -1),
        ("execution.checkpointing.unaligned.enabled", "true", "unaligned", True),
    ],
)
def test_a_setting_of_checkpoints_does_not_change_those_of_the_program(env, key, value, field, expected):
    env.stream_environment.enable_checkpointing(5_000, directory="/tmp/own")
    env.execute_sql(f"SET '{key}' = '{value}'")
    assert getattr(job_settings(env).checkpoints, field) == expected
    assert env.stream_environment.get_checkpoint_config().to_settings(make_directory=False).directory == "/tmp/own"
    env.execute_sql("RESET")
    assert getattr(job_settings(env).checkpoints, field) != expected


@pytest.mark.parametrize(
    ("key", "value", "message", "hint"),
    [
        ("parallelism.defualt", "2", "there is no option 'parallelism.defualt'", "did you mean 'parallelism.default'"),
        ("x", "2", "there is no option 'x'", "docs/guide/sql-client.md lists them"),
        ("parallelism.default", "0", "'parallelism.default' cannot be '0': it is a whole number, 1 or more", None),
        ("execution.runtime-mode", "automatic", "say streaming or batch", None),
        ("execution.runtime-mode", "fast", "it is one of streaming, batch", None),
        ("state.backend.type", "forst", "there is no ForSt here", None),
        ("table.local-time-zone", "Europe/Paris", "UTC here, and no other", None),
        ("execution.checkpointing.interval", "soon", "a duration must be milliseconds", None),
        ("execution.checkpointing.interval", "0", "at least 1 ms", None),
        ("sql-client.execution.result-mode", "page", "one of table, changelog, tableau", None),
        ("execution.checkpointing.dir", " ", "it is a path or a URI", None),
    ],
)
def test_what_a_key_cannot_be_is_refused_where_it_stands(env, key, value, message, hint):
    with pytest.raises(SqlError) as caught:
        env.execute_sql(f"SET '{key}' = '{value}'")
    assert message in str(caught.value)
    assert (caught.value.line, caught.value.column) == (1, 5)
    assert (hint or "") in (caught.value.hint or "")
    assert env.execute_sql("SET").to_arrow().num_rows == 0


def test_reset_of_an_unknown_key_is_refused(env):
    with pytest.raises(SqlError, match=r"line 2, column 7: there is no option 'table.local-time-zon'"):
        env.execute_sql("\nRESET 'table.local-time-zon'")


def test_set_alone_shows_what_was_set(env):
    env.execute_script("SET 'table.local-time-zone' = 'utc'; SET 'state.backend' = 'rocksdb'")
    assert env.execute_sql("SET").to_arrow().to_pydict() == {
        "key": ["state.backend.type", "table.local-time-zone"], "value": ["rocksdb", "utc"]
    }  # fmt: skip


def test_a_program_changes_its_mode(monkeypatch):
    monkeypatch.setenv("HEADRACE_ACTOR_SYSTEM", "local")
    with TableEnvironment.create(mode="batch", parallelism=2) as env:
        env.create_temporary_view("n", pa.table({"x": [1, 2, 2]}))
        query = "SELECT x, COUNT(*) AS c FROM n GROUP BY x"
        expected = [{"x": 1, "c": 1}, {"x": 2, "c": 2}]
        assert sorted(env.execute_sql(query).to_arrow().to_pylist(), key=str) == expected
        env.execute_sql("SET 'execution.runtime-mode' = 'streaming'")
        assert "Plan of streams" in env.explain_sql(query)
        assert sorted(env.execute_sql(query).to_arrow().to_pylist(), key=str) == expected
        env.execute_sql("RESET 'execution.runtime-mode'")
        assert "Plan of data sets" in env.explain_sql(query)
        with pytest.raises(ProgramError, match="batch mode has no streams"):
            _ = env.stream_environment


def test_parallelism_counts_for_jobs_and_data_sets(env):
    env.execute_sql("SET 'parallelism.default' = '3'")
    streams = env.stream_environment
    with env._execution.settings.applied_to(streams):
        assert streams.get_parallelism() == 3
    assert streams.get_parallelism() == 2
    env.execute_sql("SET 'execution.runtime-mode' = 'batch'")
    assert env.execute_sql("SELECT MAX(x) AS m FROM n").to_arrow().to_pylist() == [{"m": 99}]
    assert env._execution.data_sets.get_parallelism() == 2


def test_a_job_restarts_as_it_was_set(env, tmp_path):
    struck = tmp_path / "struck"

    def strike(x):
        if x == 50 and not struck.exists():
            struck.touch()
            message = "struck"
            raise ValueError(message)
        return x

    env.create_temporary_function("strike", udf(strike, result_type="BIGINT"))
    query = "SELECT SUM(strike(x)) AS s FROM n"
    env.execute_sql("SET 'restart-strategy.type' = 'none'")
    with pytest.raises(Exception, match="struck"):
        env.execute_sql(query).to_arrow()
    struck.unlink()
    env.execute_script(f"""
        SET 'restart-strategy.type' = 'fixed-delay';
        SET 'restart-strategy.fixed-delay.delay' = '1 ms';
        SET 'execution.checkpointing.interval' = '10 ms';
        SET 'execution.checkpointing.dir' = '{tmp_path}/checkpoints';
    """)
    assert env.execute_sql(query).to_arrow().to_pylist() == [{"s": 4950}]
    assert struck.exists()


def test_a_query_that_was_refused_leaves_nothing_in_the_next_job(env):
    options = "'connector' = 'filesystem', 'path' = '/nowhere', 'format' = 'csv'"
    env.execute_sql(f"CREATE TABLE out (s BIGINT) WITH ({options})")
    with pytest.raises(ProgramError, match="update"):
        env.execute_sql("INSERT INTO out SELECT SUM(x) FROM n WHERE x > 1")
    assert env.stream_environment._transformations == []


def test_an_insert_that_is_not_waited_for_tells_its_job(env, tmp_path):
    env.execute_script(f"""
        SET 'table.dml-sync' = 'false';
        CREATE TABLE out (x BIGINT) WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/out', 'format' = 'csv');
    """)
    result = env.execute_sql("INSERT INTO out SELECT x FROM n").to_arrow()
    [client] = env._execution.jobs
    assert result.to_pydict() == {"job id": [client.get_job_id()]}
    client.result()
    assert sum(len(one.read_text().split()) for one in (tmp_path / "out").glob("**/*.csv")) == 100


def test_every_key_is_in_the_guide():
    guide = (ROOT / "docs" / "guide" / "sql-client.md").read_text(encoding="utf-8")
    assert [key for key in Settings.known_keys() if f"`{key}`" not in guide] == []


def test_statements_of_a_script_keep_their_own_texts(env):
    results = env.execute_script(
        "SET 'table.dml-sync' = 'true'; -- first\nCREATE TABLE a (x INT)\n  WITH ('connector' = 'print');\n"
        "SHOW CREATE TABLE a"
    )
    assert results[-1].to_arrow().to_pydict() == {
        "result": ["CREATE TABLE a (x INT)\n  WITH ('connector' = 'print')"]
    }  # fmt: skip
    with pytest.raises(SqlError, match="line 3, column 10: there is no column 'z'"):
        env.execute_script("SELECT x FROM n;\n\n  SELECT z FROM n")
