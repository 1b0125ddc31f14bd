"""Tables of a database in SQL: what is written is read again, keys are looked up, changes are applied by key."""

from __future__ import annotations

import contextlib
import datetime as dt
import sqlite3
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest
from campaigns import campaign
from postgresql_server import postgresql  # noqa: F401 - a fixture
from query_kit import SAMPLE, FailsNowAndThen, by_duckdb, in_small_batches, multiset, tables_of

from headrace import RestartStrategies
from headrace.connectors.sql import KeyRanges, SqlSource
from headrace.connectors.sql.connecting import connector_of
from headrace.connectors.sql.dialects import SQLITE
from headrace.connectors.sql.ranges import in_range
from headrace.connectors.sql.reading import ReadSettings, TableRows
from headrace.engine.connectors.contract import EnumeratorContext
from headrace.engine.errors import ConfigurationError, HeadraceError, ProgramError, SourceError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment, udf


class Sqlite:
    """A database in a file."""

    def __init__(self, path):
        self.path = path / "db.sqlite"
        self.url = f"jdbc:sqlite:{self.path}"
        self.options = ""

    def execute(self, *statements):
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query):
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query).fetchall()


class Postgresql:
    """A database of a server."""

    def __init__(self, server):
        self._server = server
        self.url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres"
        self.options = f", 'username' = 'headrace', 'password' = '{server.password}'"
        server.clear()

    def execute(self, *statements):
        self._server.execute(*statements)

    def rows(self, query):
        with self._server.connect() as connection:
            return connection.execute(query).fetchall()


@pytest.fixture(params=["sqlite", campaign("postgresql", lane="postgresql")])
def database(request, tmp_path):
    return Sqlite(tmp_path) if request.param == "sqlite" else Postgresql(request.getfixturevalue("postgresql"))


def declare(env, database, name, columns, options=""):
    env.execute_sql(
        f"CREATE TABLE {name} ({columns}) WITH ('connector' = 'jdbc', 'url' = '{database.url}', "
        f"'table-name' = '{name}'{database.options}{options})"
    )


def streaming(parallelism=2, **options):
    return TableEnvironment.create(**{"parallelism": parallelism, "actor_system": "local", **options})


def failing(env, path, at):
    """Let the function ``shaky`` fail at some of its calls, and the job go on."""
    env.stream_environment.enable_checkpointing(10, directory=path / "checkpoints")
    env.stream_environment.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
    calls = FailsNowAndThen(path / "calls", at)
    env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))


# ------------------------------------------------------------------------------------------------- written, read again

KINDS = {
    "i": ("BIGINT", "bigint", 3),
    "s": ("STRING", "text", "a'b"),
    "b": ("BOOLEAN", "boolean", True),
    "f": ("DOUBLE", "double precision", 1.5),
    "n": ("DECIMAL(10, 2)", "numeric(10, 2)", Decimal("12.30")),
    "d": ("DATE", "date", dt.date(2026, 1, 31)),
    "t": ("TIMESTAMP(3)", "timestamp", dt.datetime.fromisoformat("2026-01-31 12:00:00.123")),
    "z": ("TIMESTAMP_LTZ(3)", "timestamptz", dt.datetime(2026, 1, 31, 12, 0, 0, 5_000, dt.timezone.utc)),
    "y": ("BYTES", "bytea", b"\x00x"),
}


def test_values_of_all_types_come_back(database):
    types = {name: own for name, (_, own, _) in KINDS.items()}
    if isinstance(database, Sqlite):
        types |= {"y": "blob", "z": "text"}
    database.execute(f"CREATE TABLE v ({', '.join(f'{name} {own}' for name, own in types.items())})")
    given = {name: [value, None] for name, (*_, value) in KINDS.items()}
    columns = ", ".join(f"{name} {own}" for name, (own, _, _) in KINDS.items())
    found = []
    with streaming() as env:
        declare(env, database, "v", columns)
        kinds = env.execute_sql("SELECT * FROM v").to_arrow().schema
        env.create_temporary_view("g", pa.table([pa.array(given[item.name], item.type) for item in kinds], kinds))
        env.execute_sql("INSERT INTO v SELECT * FROM g")
        found.append(multiset(env.execute_sql("SELECT * FROM v").to_arrow()))
    with TableEnvironment.create(mode="batch") as env:
        declare(env, database, "v", columns)
        found.append(multiset(env.execute_sql("SELECT * FROM v").to_arrow()))
        assert env.execute_sql("SELECT i, d FROM v WHERE s IS NOT NULL").to_arrow().to_pylist() == [
            {"i": 3, "d": dt.date(2026, 1, 31)}
        ]
    assert found == [Counter(zip(*given.values(), strict=True))] * 2


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (id) NOT ENFORCED"])
def test_a_table_is_read_once_through_failures(key, database, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.connectors.sql.source.PAGE_ROWS", 200)
    database.execute("CREATE TABLE r (id bigint PRIMARY KEY, v text)")
    database.execute(
        "INSERT INTO r WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 2999) "
        "SELECT i, CASE WHEN i % 7 > 0 THEN 'v' END FROM n"
    )
    with streaming() as env:
        failing(env, tmp_path, {1_100, 2_300})
        declare(env, database, "r", f"id BIGINT, v STRING{key}")
        rows = env.execute_sql("SELECT shaky(id) AS id, v FROM r").to_arrow()
    assert sorted(rows["id"].to_pylist()) == list(range(3_000))
    assert rows["v"].null_count == 3_000 // 7 + 1
    assert (tmp_path / "calls").stat().st_size > 3_000


RANGES = ", 'scan.partition.column' = 'part', 'scan.partition.num' = '5'"


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (id) NOT ENFORCED"])
def test_a_table_is_read_in_ranges_once_through_failures(key, database, tmp_path, monkeypatch):
    """Rows without a value in the column, and those that nobody knew of when it was cut, too."""
    monkeypatch.setattr("headrace.connectors.sql.source.PAGE_ROWS", 100)
    database.execute("CREATE TABLE r (id bigint PRIMARY KEY, part bigint)")
    database.execute(
        "INSERT INTO r WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 2999) "
        "SELECT i, CASE WHEN i % 7 > 0 THEN i * i - 5000 END FROM n"
    )
    with streaming() as env:
        failing(env, tmp_path, {1_100, 2_300})
        declare(env, database, "r", f"id BIGINT, part BIGINT{key}", RANGES)
        rows = env.execute_sql("SELECT shaky(id) AS id FROM r").to_arrow()
    assert sorted(rows["id"].to_pylist()) == list(range(3_000))
    assert (tmp_path / "calls").stat().st_size > 3_000


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_rows_beyond_the_bounds_of_ranges_are_left_out(mode, database):
    database.execute("CREATE TABLE r (id bigint, part bigint)")
    database.execute("INSERT INTO r VALUES (1, -5), (2, 10), (3, 55), (4, 99), (5, 100), (6, NULL)")
    bounds = ", 'scan.partition.lower-bound' = '10', 'scan.partition.upper-bound' = '99'"
    with streaming() if mode == "streaming" else TableEnvironment.create(mode="batch") as env:
        declare(env, database, "r", "id BIGINT, part BIGINT", RANGES + bounds)
        rows = env.execute_sql("SELECT id FROM r").to_arrow()
    assert sorted(rows["id"].to_pylist()) == [2, 3, 4]


@pytest.mark.parametrize("values", [[], [None], [7], [7, 8], [-(2**63), 2**63 - 1, 0], list(range(100))])
@pytest.mark.parametrize("number", [1, 2, 7])
@pytest.mark.parametrize("key", [(), ("id",)])
def test_every_row_is_in_one_range(values, number, key, tmp_path):
    database = Sqlite(tmp_path)
    database.execute("CREATE TABLE r (id integer primary key, part bigint)")
    database.execute(*(f"INSERT INTO r (part) VALUES ({'NULL' if one is None else one})" for one in values))
    settings = ReadSettings(*connector_of(f"sqlite:///{database.path}"), ("r",), pa.schema({"id": "int64"}))
    source = SqlSource(f"sqlite:///{database.path}", "r", {"id": "int64"}, key=key, ranges=KeyRanges("part", number))
    splits = source.create_enumerator(EnumeratorContext(1)).discover().splits
    known = [one for one in values if one is not None]
    assert len(splits) == (min(number, max(known) - min(known) + 1) if known else 1)
    assert {split.origin for split in splits} == {"table"}
    assert len({split.split_id for split in splits}) == len(splits)
    rows = TableRows(settings)
    found = [rows.rows(*in_range(rows, split.payload)).column(0).to_pylist() for split in splits]
    rows.close()
    assert sorted(one for part in found for one in part) == list(range(1, len(values) + 1))


@pytest.mark.parametrize(("declared", "id_of"), [("NOT NULL", "i % 3"), ("UNIQUE", "CASE WHEN i < 99 THEN i END")])
def test_a_primary_key_that_the_database_does_not_hold_loses_no_row(declared, id_of, database):
    database.execute(f"CREATE TABLE r (id bigint {declared}, v bigint)")
    database.execute(
        "INSERT INTO r WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 2999) "
        f"SELECT {id_of}, i FROM n"
    )
    with streaming() as env:
        declare(env, database, "r", "id BIGINT, v BIGINT, PRIMARY KEY (id) NOT ENFORCED")
        assert sorted(env.execute_sql("SELECT v FROM r").to_arrow()["v"].to_pylist()) == list(range(3_000))


# -------------------------------------------------------------------------------------------------------------- lookups

CACHES = ("", ", 'lookup.cache' = 'PARTIAL', 'lookup.partial-cache.max-rows' = '2'")


@pytest.mark.parametrize("cache", CACHES)
def test_rows_are_looked_up_by_key(cache, database):
    tables = tables_of(*SAMPLE)
    tables["r"] = tables["r"].append_column("t", pa.array(["x", "xy", None, "x", "", "yz"] * 2))
    database.execute("CREATE TABLE r (a bigint, d bigint, t text)")
    values = [f"({', '.join('NULL' if one is None else repr(one) for one in row.values())})"
              for row in tables["r"].to_pylist()]  # fmt: skip
    database.execute(f"INSERT INTO r VALUES {', '.join(values)}")
    with in_small_batches(streaming(), {"rows_of_l": tables["l"]}, 4) as env:
        declare(env, database, "r", "a BIGINT, d BIGINT, t STRING", cache)
        env.execute_sql("CREATE VIEW l AS SELECT *, PROCTIME() AS p FROM rows_of_l")
        for query in (
            "SELECT l.a, b, d FROM l JOIN r{} ON l.a = r.a",
            "SELECT l.a, c, d FROM l LEFT JOIN r{} ON l.c = r.t AND l.a = r.a",
            "SELECT b, d FROM l LEFT JOIN r{} ON l.c = r.t AND d > b",
            "SELECT l.b, d FROM l JOIN r{} ON l.a = r.a AND l.b = r.a",
        ):
            asked = query.format(" FOR SYSTEM_TIME AS OF l.p AS r")
            expected = by_duckdb(query.format(""), tables)
            assert multiset(env.execute_sql(asked).to_arrow()) == expected
            asked = asked.replace("SELECT", "SELECT /*+ LOOKUP('table' = 'r', 'async' = 'true', 'capacity' = '4') */")
            assert multiset(env.execute_sql(asked).to_arrow()) == expected


def test_a_lookup_sees_what_is_there_when_it_asks(tmp_path):
    database = Sqlite(tmp_path)
    database.execute("CREATE TABLE r (a bigint, d bigint)", "INSERT INTO r VALUES (1, 0)")

    def count(value):
        database.execute("UPDATE r SET d = d + 1")
        return value

    with in_small_batches(streaming(1), {"g": pa.table({"a": [1] * 6})}, 2) as env:
        env.create_temporary_function("counted", udf(count, result_type="BIGINT"))
        env.execute_sql("CREATE VIEW l AS SELECT counted(a) AS a, PROCTIME() AS p FROM g")
        found = {}
        for cache in ("NONE", "PARTIAL"):
            declare(env, database, "r", "a BIGINT, d BIGINT", f", 'lookup.cache' = '{cache}'")
            rows = env.execute_sql("SELECT d FROM l JOIN r FOR SYSTEM_TIME AS OF l.p ON l.a = r.a").to_arrow()
            found[cache] = len(set(rows["d"].to_pylist()))
            env.execute_sql("DROP TABLE r")
    assert found["PARTIAL"] == 1
    assert found["NONE"] > 1


def test_a_question_that_fails_is_asked_again(tmp_path, monkeypatch):
    database = Sqlite(tmp_path)
    database.execute("CREATE TABLE r (a bigint)", "INSERT INTO r VALUES (1)")
    monkeypatch.setattr("headrace.connectors.sql.reading.time.sleep", lambda _seconds: None)
    failures = iter([True, False, True, True, False, *[True] * 10])

    def connect():
        if next(failures):
            message = "not now"
            raise sqlite3.OperationalError(message)
        return sqlite3.connect(database.path)

    settings = ReadSettings(SQLITE, connect, ("r",), pa.schema({"a": "int64"}), max_retries=2)
    rows = TableRows(settings)
    assert rows.rows().to_pylist() == [{"a": 1}]
    rows.close()
    assert rows.rows().to_pylist() == [{"a": 1}]
    rows.close()
    with pytest.raises(SourceError, match="could not read rows: OperationalError: not now"):
        rows.rows()


# -------------------------------------------------------------------------------------------------------------- writing


def test_changes_are_applied_by_primary_key_through_failures(database, tmp_path):
    database.execute("CREATE TABLE totals (a bigint PRIMARY KEY, n bigint, m bigint)")
    rows, others = SAMPLE
    tables = tables_of(rows * 6, others)
    with in_small_batches(streaming(), {"l": tables["l"]}, 2) as env:
        failing(env, tmp_path, {50, 120})
        declare(env, database, "totals", "a BIGINT, n BIGINT, m BIGINT, PRIMARY KEY (a) NOT ENFORCED")
        env.execute_sql("""
            INSERT INTO totals SELECT a, n, m FROM (
                SELECT a, COUNT(*) AS n, MAX(shaky(b)) AS m FROM l WHERE a IS NOT NULL GROUP BY a
            ) WHERE MOD(n, 4) > 0
        """)
    query = "SELECT a, COUNT(*) AS n, MAX(b) AS m FROM l WHERE a IS NOT NULL GROUP BY a HAVING COUNT(*) % 4 > 0"
    assert Counter(database.rows("SELECT a, n, m FROM totals")) == by_duckdb(query, tables)
    assert 0 < len(by_duckdb(query, tables)) < 4


def test_rows_are_added_exactly_once_under_an_id(tmp_path):
    database = Sqlite(tmp_path)
    database.execute("CREATE TABLE added (a bigint, b bigint)")
    tables = tables_of(SAMPLE[0] * 6, SAMPLE[1])
    with in_small_batches(streaming(), {"l": tables["l"]}, 2) as env:
        failing(env, tmp_path, {50, 120})
        declare(env, database, "added", "a BIGINT, b BIGINT", ", 'sink.id' = 'added'")
        env.execute_sql("INSERT INTO added SELECT a, shaky(b) FROM l")
    assert Counter(database.rows("SELECT a, b FROM added")) == by_duckdb("SELECT a, b FROM l", tables)


def test_a_key_may_be_cast_to_a_wider_integer(tmp_path):
    database = Sqlite(tmp_path)
    database.execute("CREATE TABLE totals (a bigint PRIMARY KEY, n bigint)")
    with streaming() as env:
        env.create_temporary_view("g", pa.table({"a": pa.array([1, 2, 1], pa.int32())}))
        declare(env, database, "totals", "a BIGINT, n BIGINT, PRIMARY KEY (a) NOT ENFORCED")
        env.execute_sql("INSERT INTO totals SELECT a, COUNT(*) FROM g GROUP BY a")
        with pytest.raises(ProgramError, match=r"PRIMARY KEY \(a\) of table 'totals' does not tell the query's rows"):
            env.execute_sql("INSERT INTO totals SELECT COUNT(*), a FROM g GROUP BY a")
    assert database.rows("SELECT * FROM totals ORDER BY a") == [(1, 2), (2, 1)]


def test_without_a_key_changes_are_refused(tmp_path):
    database = Sqlite(tmp_path)
    with streaming() as env:
        env.create_temporary_view("g", pa.table({"a": [1, 2]}))
        declare(env, database, "totals", "a BIGINT, n BIGINT")
        with pytest.raises(ProgramError, match="takes rows that only come"):
            env.execute_sql("INSERT INTO totals SELECT a, COUNT(*) FROM g GROUP BY a")


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("a BIGINT, x STRING", "has no column 'x'"),
        ("a STRING", "do not fit column 'a'"),
        ("b BIGINT", "has a value that is no int64"),
    ],
)
def test_a_table_that_is_another_is_told(columns, message, tmp_path):
    database = Sqlite(tmp_path)
    database.execute("CREATE TABLE r (a bigint, b)", "INSERT INTO r VALUES (1, 'x')")
    with streaming() as env:
        env.stream_environment.set_restart_strategy(RestartStrategies.no_restart())
        declare(env, database, "r", columns)
        with pytest.raises(HeadraceError, match=message):
            env.execute_sql("SELECT * FROM r").to_arrow()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("'url' = 'jdbc:oracle:thin'", "must begin with sqlite:, postgresql: or mariadb:"),
        ("'url' = 'jdbc:sqlite:x.db', 'username' = 'me'", "those of the URL of a server"),
        ("'url' = 'jdbc:sqlite:x.db', 'lookup.cache' = 'FULL'", "one of NONE, PARTIAL"),
        ("'url' = 'jdbc:sqlite:x.db', 'lookup.cache' = 'PARTIAL', 'lookup.partial-cache.max-rows' = '0'", "at least 1"),
        ("'url' = 'jdbc:sqlite:x.db', 'lookup.max-retries' = '-1'", "at least 0"),
        ("'url' = 'jdbc:sqlite:x.db', 'scan.partition.column' = 'a'", "belong together"),
        ("'url' = 'jdbc:sqlite:x.db', 'scan.partition.column' = 'b', 'scan.partition.num' = '2'", "column of integers"),
        ("'url' = 'jdbc:sqlite:x.db', 'scan.partition.column' = 'a', 'scan.partition.num' = '0'", "1 to 10,000"),
        ("'url' = 'jdbc:sqlite:x.db', 'lookup.cache.ttl' = '1 s'", "has no option"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with TableEnvironment.create(mode="batch") as env, pytest.raises((ConfigurationError, SqlError), match=message):
        env.execute_sql(f"CREATE TABLE r (a BIGINT) WITH ('connector' = 'jdbc', 'table-name' = 'r', {options})")


def test_a_file_that_is_read_only_is_read(tmp_path):
    database = Sqlite(tmp_path)
    database.execute("CREATE TABLE r (a bigint)", "INSERT INTO r VALUES (1)")
    before = database.path.read_bytes()
    with streaming() as env:
        declare(env, database, "r", "a BIGINT")
        assert env.execute_sql("SELECT a FROM r").to_arrow().to_pylist() == [{"a": 1}]
    assert database.path.read_bytes() == before


def test_a_time_that_has_several_texts_is_no_key_of_a_lookup(tmp_path):
    database = Sqlite(tmp_path)
    with streaming() as env:
        declare(env, database, "r", "a TIMESTAMP(3), d BIGINT")
        env.create_temporary_view("g", pa.table({"a": pa.array([0], pa.timestamp("ms"))}))
        env.execute_sql("CREATE VIEW l AS SELECT *, PROCTIME() AS p FROM g")
        with pytest.raises(ProgramError, match="SQLite keeps 'a' as a text"):
            env.execute_sql("SELECT d FROM l JOIN r FOR SYSTEM_TIME AS OF l.p ON l.a = r.a").to_arrow()
