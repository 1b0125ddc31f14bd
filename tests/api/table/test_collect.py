"""Tables with connector ``collect``: what is written is read back under the table's name, each row once.

Families: both modes against what the statements say; crash (rows through failures, with checkpoints); refusals.
"""

from __future__ import annotations

from collections import Counter

import pytest
from query_kit import FailsNowAndThen

from headrace import RestartStrategies
from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment, udf

CREATE = "CREATE TABLE kept (k INT, n BIGINT) WITH ('connector' = 'collect')"
COUNTS = "INSERT INTO kept SELECT x, COUNT(*) FROM (VALUES (1), (2), (1), (3), (1)) AS v(x) GROUP BY x"


def environment(mode: str = "streaming") -> TableEnvironment:
    options = {"actor_system": "local"} if mode == "streaming" else {}
    return TableEnvironment.create(mode=mode, parallelism=2, **options)


def rows(env: TableEnvironment, query: str = "SELECT * FROM kept") -> Counter:
    return Counter(tuple(row.values()) for row in env.execute_sql(query).to_arrow().to_pylist())


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_what_is_written_is_read_back(mode):
    with environment(mode) as env:
        env.execute_sql(CREATE)
        assert rows(env) == Counter()
        env.execute_sql(COUNTS)
        counts = Counter({(1, 3): 1, (2, 1): 1, (3, 1): 1})
        assert rows(env) == counts
        env.execute_sql("INSERT INTO kept VALUES (7, 8), (7, 8)")
        # It reads what was there before it writes.
        env.execute_sql("INSERT INTO kept SELECT k, n FROM kept WHERE k > 2")
        assert rows(env) == counts + Counter({(7, 8): 4, (3, 1): 1})
        assert rows(env, "SELECT k, SUM(n) AS n FROM kept GROUP BY k") == Counter(
            {(1, 3): 1, (2, 1): 1, (3, 2): 1, (7, 32): 1}
        )


def test_tables_of_equal_options_are_two():
    with environment() as env:
        env.execute_sql(CREATE)
        env.execute_sql(CREATE.replace("kept", "others"))
        env.execute_sql(
            "EXECUTE STATEMENT SET BEGIN INSERT INTO kept VALUES (1, 1); INSERT INTO others VALUES (2, 2); END"
        )
        assert rows(env, "SELECT * FROM kept UNION ALL SELECT * FROM others") == Counter({(1, 1): 1, (2, 2): 1})
        assert rows(env) == Counter({(1, 1): 1})


def test_rows_come_once_through_failures(tmp_path):
    with environment() as env:
        streams = env.stream_environment
        streams.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        streams.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        calls = FailsNowAndThen(tmp_path / "calls", {200, 400})
        env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))
        env.execute_sql(
            "CREATE TABLE numbers (i BIGINT) WITH ('connector' = 'datagen', 'number-of-rows' = '600', "
            "'fields.i.kind' = 'sequence', 'fields.i.start' = '0', 'fields.i.end' = '599')"
        )
        env.execute_sql(CREATE)
        env.execute_sql("INSERT INTO kept SELECT CAST(i AS INT), shaky(i) FROM numbers")
        assert rows(env) == Counter((i, i) for i in range(600))
        assert (tmp_path / "calls").stat().st_size > 600
        groups = "INSERT INTO others SELECT CAST(MOD(i, 7) AS INT), SUM(shaky(i)) FROM numbers GROUP BY MOD(i, 7)"
        env.execute_sql(CREATE.replace("kept", "others"))
        env.execute_sql(groups)
        assert rows(env, "SELECT * FROM others") == Counter((k, sum(range(k, 600, 7))) for k in range(7))


def test_a_job_that_runs_shows_rows_of_complete_checkpoints(tmp_path):
    with environment() as env:
        env.stream_environment.enable_checkpointing("1 h", directory=tmp_path / "checkpoints")
        env.execute_sql("SET 'table.dml-sync' = 'false'")
        env.execute_sql(
            "CREATE TABLE numbers (i BIGINT) WITH ('connector' = 'datagen', 'rows-per-second' = '500', "
            "'fields.i.kind' = 'sequence', 'fields.i.start' = '0', 'fields.i.end' = '1000000')"
        )
        env.execute_sql(CREATE)
        job = env.execute_sql("INSERT INTO kept SELECT CAST(i AS INT), i FROM numbers").to_arrow().column(0)[0].as_py()
        assert rows(env) == Counter()
        env.execute_sql(f"STOP JOB '{job}'")
        found = rows(env)
        assert found
        assert set(found.values()) == {1}


def test_what_cannot_be_kept_is_refused(tmp_path):
    with environment() as env:
        with pytest.raises(ConfigurationError, match="has no option 'limit'"):
            env.execute_sql(CREATE.replace("'collect'", "'collect', 'limit' = '3'"))
        env.execute_sql(CREATE)
        env.execute_sql("CREATE TABLE gone (k INT, n BIGINT) WITH ('connector' = 'blackhole')")
        with pytest.raises(ProgramError, match="kept"):
            env.execute_sql(f"COMPILE PLAN '{tmp_path}/plan' FOR INSERT INTO gone SELECT * FROM kept")
        env.execute_sql(f"CREATE CATALOG files WITH ('type' = 'file', 'path' = '{tmp_path}/catalog')")
        env.execute_sql("USE CATALOG files")
        with pytest.raises(SqlError, match="keeps no table with connector 'collect'"):
            env.execute_sql(CREATE)
        env.execute_sql(CREATE.replace("CREATE", "CREATE TEMPORARY"))
        env.execute_sql("INSERT INTO kept VALUES (1, 1)")
        assert rows(env) == Counter({(1, 1): 1})
