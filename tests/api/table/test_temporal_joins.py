"""Temporal joins in SQL: batch mode gives what DuckDB's ASOF JOIN gives, and a stream the same rows, each once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.datagen import GeneratorSource
from headrace.engine.errors import ProgramError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment

VIEW = """
    CREATE VIEW rates AS SELECT cur, at, rate, note FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY cur ORDER BY at DESC) AS n FROM rate_rows
    ) WHERE n = 1
"""
QUERIES = {
    "SELECT o.id, r.rate, r.note, r.at FROM orders AS o JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON o.cur = r.cur":
        "SELECT o.id, r.rate, r.note, r.at FROM orders AS o ASOF JOIN rate_rows AS r ON o.cur = r.cur AND o.ts >= r.at",
    "SELECT o.id, r.rate, r.at FROM orders AS o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON r.cur = o.cur":
        "SELECT o.id, r.rate, r.at FROM orders AS o ASOF LEFT JOIN rate_rows AS r ON o.cur = r.cur AND o.ts >= r.at",
    "SELECT id, rate FROM orders AS o JOIN rates FOR SYSTEM_TIME AS OF ts ON o.cur = rates.cur AND o.v > rates.rate":
        "SELECT id, rate FROM (SELECT o.*, r.rate FROM orders AS o ASOF JOIN rate_rows AS r ON o.cur = r.cur "
        "AND o.ts >= r.at) WHERE v > rate",
    "SELECT o.id, r.rate, r.note FROM orders AS o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r "
    "ON o.cur = r.cur AND o.v > r.rate AND r.note <> 'y'":
        "SELECT id, CASE WHEN v > rate AND note <> 'y' THEN rate END, CASE WHEN v > rate AND note <> 'y' THEN note END "
        "FROM (SELECT o.*, r.rate, r.note FROM orders AS o ASOF LEFT JOIN rate_rows AS r ON o.cur = r.cur "
        "AND o.ts >= r.at)",
    "SELECT o.id, r.rate FROM orders AS o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON o.cur = r.cur AND v = 2":
        "SELECT id, CASE WHEN v = 2 THEN rate END FROM (SELECT o.*, r.rate FROM orders AS o "
        "ASOF LEFT JOIN rate_rows AS r ON o.cur = r.cur AND o.ts >= r.at)",
    "SELECT COUNT(*) AS n, MAX(r.rate) AS m FROM orders AS o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r "
    "ON o.cur = r.cur GROUP BY o.v":
        "SELECT COUNT(*) AS n, MAX(r.rate) AS m FROM orders AS o ASOF LEFT JOIN rate_rows AS r "
        "ON o.cur = r.cur AND o.ts >= r.at GROUP BY o.v",
}  # fmt: skip
"""Queries, and what is asked of DuckDB."""

currency = st.sampled_from([None, "EUR", "USD", "GBP"])
orders_of = st.lists(
    st.tuples(currency, st.one_of(st.none(), st.integers(0, 3)), st.integers(0, 20)), min_size=1, max_size=20
)
# Of versions of one time which one came last is not DuckDB's to know.
rates_of = st.lists(
    st.tuples(currency, st.integers(0, 20), st.one_of(st.none(), st.integers(0, 5)), st.sampled_from([None, "x", ""])),
    min_size=1, max_size=20, unique_by=lambda row: row[:2],
)  # fmt: skip
SAMPLE = (
    [((None, "EUR", "USD", "GBP")[i % 4], (i * 3 % 5) or None, i * 7 % 21) for i in range(40)],
    [((None, "EUR", "USD")[i % 3], i * 5 % 21, (i * 7 % 6) or None, ("x", None, "")[i % 3]) for i in range(21)],
)


def tables_of(orders: list[Any], rates: list[Any]) -> dict[str, pa.Table]:
    ids = range(len(orders))
    seconds = lambda times: pa.array([1_000 * time for time in times], pa.timestamp("ms"))
    made = list(zip(*orders, strict=True))
    first = pa.table({"id": ids, "cur": pa.array(made[0], pa.string()), "v": pa.array(made[1], pa.int64()),
                      "ts": seconds(made[2])})  # fmt: skip
    made = list(zip(*rates, strict=True))
    second = pa.table({"cur": pa.array(made[0], pa.string()), "at": seconds(made[1]),
                       "rate": pa.array(made[2], pa.int64()), "note": pa.array(made[3], pa.string())})  # fmt: skip
    return {"orders": first, "rate_rows": second}


TIMES = {"orders": "ts", "rate_rows": "at"}


def multiset(table: pa.Table) -> Counter[Any]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def by_duckdb(query: str, tables: dict[str, pa.Table]) -> Counter[Any]:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return multiset(connection.sql(query).to_arrow_table())


def in_batch_mode(query: str, tables: dict[str, pa.Table]) -> Counter[Any]:
    with TableEnvironment.create(mode="batch", parallelism=2) as env:
        for name, table in tables.items():
            env.create_temporary_view(name, table, event_time=TIMES[name])
        env.execute_sql(VIEW)
        return multiset(env.execute_sql(query).to_arrow())


class Rows:
    """Gives rows of a table by their numbers."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __call__(self, start: int, length: int) -> pa.RecordBatch:
        return self._table.slice(start, length).combine_chunks().to_batches()[0]


def streams(tables: dict[str, pa.Table], size: int = 3, **options: Any) -> TableEnvironment:
    env = TableEnvironment.create(**{"parallelism": 2, "actor_system": "local", **options})
    for name, table in tables.items():
        source = GeneratorSource.batches(Rows(table), table.num_rows, number_of_splits=2, batch_size=size)
        stream = env.stream_environment.from_source(source, type_info=table.schema)
        env.create_temporary_view(name, stream, event_time=TIMES[name], delay="25 s")
    env.execute_sql(VIEW)
    return env


@pytest.mark.parametrize("query", QUERIES)
def test_batch_gives_what_duckdb_gives(query):
    tables = tables_of(*SAMPLE)
    assert in_batch_mode(query, tables) == by_duckdb(QUERIES[query], tables)


@pytest.mark.parametrize("query", QUERIES)
def test_a_stream_gives_the_same(query):
    tables = tables_of(*SAMPLE)
    with streams(tables) as env:
        assert multiset(env.execute_sql(query).to_arrow()) == by_duckdb(QUERIES[query], tables)


@given(query=st.sampled_from(list(QUERIES)), orders=orders_of, rates=rates_of)
def test_batch_gives_what_duckdb_gives_of_any_rows(query, orders, rates):
    tables = tables_of(orders, rates)
    assert in_batch_mode(query, tables) == by_duckdb(QUERIES[query], tables)


@given(query=st.sampled_from(list(QUERIES)), orders=orders_of, rates=rates_of, size=st.integers(1, 5),
       seed=st.integers(0, 9))  # fmt: skip
def test_a_stream_gives_what_duckdb_gives_of_any_rows(query, orders, rates, size, seed):
    tables = tables_of(orders, rates)
    with streams(tables, size, parallelism=3, actor_system="sim", seed=seed) as env:
        assert multiset(env.execute_sql(query).to_arrow()) == by_duckdb(QUERIES[query], tables)


def test_rows_only_come_and_go_on_with_their_event_time():
    query = """
        WITH j AS (
            SELECT o.ts, r.rate FROM orders AS o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON o.cur = r.cur
        )
        SELECT window_start, COUNT(*) AS n, SUM(rate) AS s
        FROM TABLE(TUMBLE(TABLE j, DESCRIPTOR(ts), INTERVAL '5' SECOND)) GROUP BY window_start, window_end
    """
    tables = tables_of(*SAMPLE)
    with streams(tables) as env:
        changes = list(env.execute_sql(query).collect())
    assert {kind for kind, *_ in changes} == {"+I"}
    assert Counter(tuple(row) for _, *row in changes) == in_batch_mode(query, tables)


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_a_table_with_a_key_and_a_watermark_has_versions(mode, tmp_path):
    tables = tables_of(*SAMPLE)
    query, asked = next(iter(QUERIES.items()))
    options = {"actor_system": "local"} if mode == "streaming" else {}
    with TableEnvironment.create(mode=mode, parallelism=2, **options) as env:
        for name, columns in (("orders", "id BIGINT, cur STRING, v BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts"),
                              ("rate_rows", "cur STRING, at TIMESTAMP(3), rate BIGINT, note STRING, "
                               "WATERMARK FOR at AS at, PRIMARY KEY (cur) NOT ENFORCED")):  # fmt: skip
            pq.write_table(tables[name].sort_by(TIMES[name]), tmp_path / f"{name}.parquet")
            env.execute_sql(
                f"CREATE TABLE {name} ({columns}) WITH "
                f"('connector' = 'filesystem', 'path' = '{tmp_path / name}.parquet', 'format' = 'parquet')"
            )
        found = env.execute_sql(query.replace("rates FOR", "rate_rows FOR")).to_arrow()
    assert multiset(found) == by_duckdb(asked, tables)


BASE = "SELECT o.id FROM orders AS o {} JOIN {} FOR SYSTEM_TIME AS OF {} AS r ON {}"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (("", "rates", "o.id", "o.cur = r.cur"), "takes the event time of the table before it"),
        (("", "rates", "o.ts + INTERVAL '1' SECOND", "o.cur = r.cur"), "takes the event time of the table before it"),
        (("", "rate_rows", "o.ts", "o.cur = r.cur"), "has no versions"),
        (("", "rates", "o.ts", "o.v = r.rate"), "by the key of the versions"),
        (("", "rates", "o.ts", "o.v > r.rate"), "by columns that are equal"),
        (("", "firsts", "o.ts", "o.cur = r.cur"), "the last rows by event time"),
        (("", "timeless", "o.ts", "o.cur = r.cur"), "has no event time"),
        (("", "dear", "o.ts", "o.cur = r.cur"), "has no versions"),
        (("RIGHT", "rates", "o.ts", "o.cur = r.cur"), "RIGHT JOIN with FOR SYSTEM_TIME"),
    ],
)
def test_what_has_no_versions_is_refused_with_its_place(parts, message):
    with TableEnvironment.create(mode="batch") as env:
        for name, table in tables_of(*SAMPLE).items():
            env.create_temporary_view(name, table, event_time=TIMES[name])
        env.execute_sql(VIEW)
        env.execute_sql(VIEW.replace("rates", "firsts").replace("DESC", "ASC"))
        env.execute_sql("CREATE VIEW timeless AS SELECT cur, MAX(rate) AS rate FROM rate_rows GROUP BY cur")
        env.execute_sql("CREATE VIEW dear AS SELECT * FROM rates WHERE rate > 2")
        with pytest.raises(Exception, match=message) as raised:
            env.execute_sql(BASE.format(*parts)).to_arrow()
    assert "line 1" in str(raised.value)


def test_upserts_are_no_versions_and_no_function_makes_them():
    with TableEnvironment.create(parallelism=1, actor_system="local") as env:
        env.execute_script("""
            CREATE TABLE o (k STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'datagen');
            CREATE TABLE v (k STRING, r INT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts, PRIMARY KEY (k) NOT ENFORCED)
            WITH ('connector' = 'upsert-kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'nowhere:1',
                  'key.format' = 'raw', 'value.format' = 'json');
        """)
        query = "SELECT o.k, v.r FROM o JOIN v FOR SYSTEM_TIME AS OF o.ts ON o.k = v.k"
        with pytest.raises(ProgramError, match="rows that only come") as refused:
            env.execute_sql(query).to_arrow()
        assert "a table of 'kafka' with PRIMARY KEY and WATERMARK" in str(refused.value)
        with pytest.raises(SqlError, match="no table function rates") as unknown:
            env.explain_sql("SELECT o.k, r.r FROM o, LATERAL TABLE(rates(o.ts)) AS r WHERE r.k = o.k")
        assert "FOR SYSTEM_TIME AS OF" in str(unknown.value)
