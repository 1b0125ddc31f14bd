"""Lookup joins in SQL: a table that does not change gives what DuckDB's join gives, in both modes, through failures."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from query_kit import SAMPLE, FailsNowAndThen, by_duckdb, in_small_batches, multiset, tables_of, with_tables

from headrace import RestartStrategies
from headrace.engine.errors import HeadraceError, ProgramError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment, udf

OF_NOW = "r FOR SYSTEM_TIME AS OF l.p AS r"
QUERIES = {
    "SELECT l.a, b, c, d FROM l JOIN {} ON l.a = r.a": "r",
    "SELECT l.a, b, c, d FROM l LEFT JOIN {} ON r.a = l.a": "r",
    "SELECT l.a, b, d FROM l JOIN {} ON MOD(l.b, 3) = r.d AND l.a < r.a AND c <> 'yz'": "r",
    "SELECT l.a, b, d FROM l LEFT JOIN {} ON l.a = r.a AND d > b": "r",
    "SELECT l.a, b, d FROM l LEFT JOIN {} ON l.a = r.a AND d = b WHERE c IS NOT NULL": "r",
    "SELECT l.b, d FROM l JOIN {} ON l.a = r.a AND l.b = r.a": "r",
    "SELECT b, d FROM l LEFT JOIN {} ON l.a = r.a WHERE b > 1 AND l.a < 4 AND d IS NULL AND c = 'x'": "r",
    "SELECT b, COUNT(d) AS n, COUNT(*) AS m FROM l LEFT JOIN {} ON l.a = r.a GROUP BY b": "r",
    "SELECT l.a, r.e, s.d FROM l JOIN v FOR SYSTEM_TIME AS OF l.p AS r ON l.a = r.a LEFT JOIN "
    "r FOR SYSTEM_TIME AS OF l.p AS s ON s.d = l.b":
        "SELECT l.a, r.e, s.d FROM l JOIN (SELECT a, d * 10 AS e FROM r WHERE d > 0) AS r ON l.a = r.a "
        "LEFT JOIN r AS s ON s.d = l.b",
}  # fmt: skip
"""Queries, and what is asked of DuckDB: the same, if nothing else is said."""


def declared(env, tables, path, form="parquet"):
    """The table ``r`` in two files, a view over it, and the rows of ``l`` with the clock."""
    path.mkdir(exist_ok=True)
    half = tables["r"].num_rows // 2
    for name, rows in (("1", tables["r"].slice(0, half)), ("2", tables["r"].slice(half))):
        if form == "parquet":
            pq.write_table(rows, path / f"{name}.parquet")
        else:
            pacsv.write_csv(rows, path / f"{name}.csv", pacsv.WriteOptions(include_header=False))
    env.execute_script(f"""
        CREATE TABLE r (a BIGINT, d BIGINT, e AS d * 10)
        WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = '{form}');
        CREATE VIEW v AS SELECT a, e FROM r WHERE d > 0;
        CREATE VIEW l AS SELECT *, PROCTIME() AS p FROM rows_of_l;
    """)


def environment(mode, tables, path, form="parquet", rows=3, **options):
    named = {"rows_of_l": tables["l"]}
    if mode == "batch":
        env = with_tables(TableEnvironment.create(mode="batch", parallelism=2), named)
    else:
        env = in_small_batches(
            TableEnvironment.create(**{"parallelism": 2, "actor_system": "local", **options}), named, rows
        )
    declared(env, tables, path, form)
    return env


def expected(query, tables):
    other = QUERIES[query]
    return by_duckdb(query.format("r") if other == "r" else other, tables)


@pytest.mark.parametrize("query", QUERIES)
def test_both_modes_give_what_duckdb_gives(query, tmp_path):
    tables = tables_of(*SAMPLE)
    for mode, form in (("batch", "csv"), ("streaming", "parquet")):
        with environment(mode, tables, tmp_path / mode, form) as env:
            assert multiset(env.execute_sql(query.format(OF_NOW)).to_arrow()) == expected(query, tables)


def test_a_stream_asks_through_failures_and_gives_each_row_once(tmp_path):
    rows, others = SAMPLE
    tables = tables_of(rows * 4, others)
    query = "SELECT l.a, b, c, d FROM l LEFT JOIN {} ON r.a = l.a"
    with environment("streaming", tables, tmp_path / "r", rows=2) as env:
        streams = env.stream_environment
        streams.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        streams.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        calls = FailsNowAndThen(tmp_path / "calls", {30, 70})
        env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))
        env.execute_sql("DROP VIEW l")
        env.execute_sql("CREATE VIEW l AS SELECT a, shaky(b) AS b, c, PROCTIME() AS p FROM rows_of_l")
        assert multiset(env.execute_sql(query.format(OF_NOW)).to_arrow()) == expected(query, tables)
    assert (tmp_path / "calls").stat().st_size >= len(rows) * 4 + 2


def test_a_table_is_asked_for_the_rows_that_where_lets_through(tmp_path):
    with environment("streaming", tables_of(*SAMPLE), tmp_path / "r") as env:
        plan = env.explain_sql(f"SELECT b, d FROM l JOIN {OF_NOW} ON l.a = r.a WHERE b > 1 AND d > 1 AND b < 3")
        assert plan.index("col('d') > 1") < plan.index("lookup join") < plan.index("col('b') > 1")
        with pytest.raises(SqlError, match=r"'a' could be l\.a or r\.a"):
            env.execute_sql(f"SELECT b FROM l JOIN {OF_NOW} ON l.a = r.a WHERE a > 1")


def test_rows_only_come_and_keep_their_times(tmp_path):
    tables = tables_of(*SAMPLE)
    with environment("streaming", tables, tmp_path / "r") as env:
        join = f"SELECT l.a, d, p FROM l LEFT JOIN {OF_NOW} ON l.a = r.a"
        assert "left lookup join [I]" in env.explain_sql(join)
        assert "== State ==" not in env.explain_sql(join)
        env.execute_sql(f"CREATE VIEW j AS {join}")
        found = env.execute_sql("""
            SELECT a, COUNT(d) AS n FROM TABLE(TUMBLE(TABLE j, DESCRIPTOR(p), INTERVAL '1' SECOND))
            GROUP BY a, window_start, window_end
        """).to_arrow()
    pairs = by_duckdb("SELECT COUNT(d) FROM l LEFT JOIN r ON l.a = r.a", tables)
    assert sum(found["n"].to_pylist()) == next(iter(pairs))[0]


@pytest.mark.parametrize(
    ("query", "message", "hint"),
    [
        ("l JOIN r FOR SYSTEM_TIME AS OF l.p ON l.a > r.a", "a lookup is by columns that are equal", None),
        ("l JOIN r FOR SYSTEM_TIME AS OF l.p ON l.a = r.a + 1", "of the table as they are", "the other side"),
        ("l JOIN r FOR SYSTEM_TIME AS OF l.p ON CAST(l.a AS DOUBLE) = r.a", "of the table as they are", "the other"),
        ("l JOIN r FOR SYSTEM_TIME AS OF l.p ON l.b = r.e", "of the table as they are", "the other side"),
        ("l RIGHT JOIN r FOR SYSTEM_TIME AS OF l.p ON l.a = r.a", "RIGHT JOIN with FOR SYSTEM_TIME", "LEFT JOIN"),
        ("l JOIN rows_of_l FOR SYSTEM_TIME AS OF l.p AS r ON l.a = r.a", "'given' cannot be looked up", "without FOR"),
        ("l JOIN g FOR SYSTEM_TIME AS OF l.p AS r ON l.a = r.a", "this is a query", "without FOR SYSTEM_TIME"),
        (
            "l JOIN r FOR SYSTEM_TIME AS OF l.b ON l.a = r.a",
            "of the table before it, or its processing time",
            "PROCTIME",
        ),
        ("l JOIN r FOR SYSTEM_TIME AS OF PROCTIME() ON l.a = r.a", r"PROCTIME\(\) here is not supported", None),
    ],
)
def test_what_cannot_be_asked_is_refused(query, message, hint, tmp_path):
    with environment("streaming", tables_of(*SAMPLE), tmp_path / "r") as env:
        env.execute_sql("CREATE VIEW g AS SELECT a, MAX(d) AS d FROM r GROUP BY a")
        with pytest.raises(SqlError, match=message) as raised:
            env.execute_sql(f"SELECT 1 FROM {query}")
        assert hint is None or hint in str(raised.value.hint)


def test_rows_that_are_taken_back_ask_nothing(tmp_path):
    with environment("streaming", tables_of(*SAMPLE), tmp_path / "r") as env:
        env.execute_sql("CREATE VIEW c AS SELECT k.a, k.n, PROCTIME() AS p FROM (SELECT a, COUNT(*) AS n FROM "
                        "rows_of_l GROUP BY a) AS k")  # fmt: skip
        with pytest.raises(ProgramError, match="takes rows that only come"):
            env.execute_sql("SELECT c.n, d FROM c JOIN r FOR SYSTEM_TIME AS OF c.p ON c.a = r.a").to_arrow()


def test_files_that_are_not_what_they_should_be_fail_the_job(tmp_path):
    tables = tables_of(*SAMPLE)
    with environment("streaming", tables, tmp_path / "r", "csv") as env:
        env.stream_environment.set_restart_strategy(RestartStrategies.no_restart())
        (tmp_path / "r" / "1.csv").write_text("1,x\n")
        with pytest.raises(HeadraceError, match=r"1\.csv"):
            env.execute_sql(f"SELECT l.a, d FROM l JOIN {OF_NOW} ON l.a = r.a").to_arrow()


def test_a_file_of_no_rows_has_none(tmp_path):
    tables = tables_of(*SAMPLE)
    tables["r"] = pa.table({"a": pa.array([], pa.int64()), "d": pa.array([], pa.int64())})
    query = "SELECT l.a, b, c, d FROM l LEFT JOIN {} ON r.a = l.a"
    with environment("streaming", tables, tmp_path / "r") as env:
        assert multiset(env.execute_sql(query.format(OF_NOW)).to_arrow()) == expected(query, tables)
