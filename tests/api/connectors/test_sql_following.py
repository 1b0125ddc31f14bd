"""Tables followed by a column that grows: families late commits (rows that become visible behind greater ones),
refusals, and crash (a job that fails and is rescaled while rows come, counted by the database)."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections import Counter
from types import SimpleNamespace

import pyarrow as pa
import pytest
from campaigns import campaign
from dying_sink import CREATE_TABLE, DyingSink
from mariadb_server import mariadb  # noqa: F401 - a fixture
from postgresql_server import postgresql  # noqa: F401 - a fixture

from headrace import RestartStrategies, StreamExecutionEnvironment
from headrace.connectors.sql import GrowingColumn, KeyRanges, SqlSink, SqlSource
from headrace.engine.connectors.contract import NOTHING_NOW, EnumeratorContext, Polled
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError
from headrace.table import TableEnvironment

NUMBERS = "CREATE TABLE numbers (n BIGINT NOT NULL PRIMARY KEY, part BIGINT NOT NULL, at TIMESTAMP)"


class Sqlite:
    def __init__(self, tmp_path):
        self.path = tmp_path / "db.sqlite"
        self.url = f"sqlite:///{self.path}"
        self.execute(NUMBERS, CREATE_TABLE)

    def connect(self):
        return contextlib.closing(sqlite3.connect(self.path, isolation_level=None, timeout=30))

    def execute(self, *statements):
        with self.connect() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            for statement in statements:
                connection.execute(statement)

    def rows(self, query):
        with self.connect() as connection:
            return connection.execute(query).fetchall()


@pytest.fixture
def sqlite(tmp_path):
    return Sqlite(tmp_path)


@pytest.fixture(params=["sqlite", campaign("postgresql", lane="postgresql"), campaign("mariadb", lane="mariadb")])
def database(request, tmp_path):
    if request.param == "sqlite":
        return Sqlite(tmp_path)
    server = request.getfixturevalue(request.param)
    server.clear()
    server.execute(NUMBERS, CREATE_TABLE)
    return server


def add(database, *numbers):
    database.execute(*(f"INSERT INTO numbers VALUES ({n}, {n % 3}, NULL)" for n in numbers))


class Followed:
    """A reader of the table, its clock, and what it has given."""

    def __init__(self, url, column="n"):
        self._url, self._column = url, column
        source = self._source_in("us")
        self.now_ms = 1_000_000
        self.numbers = []
        self._start(source, source.create_enumerator(EnumeratorContext(1)).discover().splits)

    def _source_in(self, unit):
        schema = {"n": "int64", "at": pa.timestamp(unit)} if self._column == "at" else {"n": "int64"}
        return SqlSource(self._url, "numbers", schema, key="n", follow=GrowingColumn(self._column))

    def _start(self, source, splits):
        self._reader = source.create_reader()
        self._reader.open(SimpleNamespace(now_ms=lambda: self.now_ms))
        self._reader.add_splits(splits)

    def restore(self, unit="us"):
        splits = self._reader.snapshot()
        self._reader.close()
        self._start(self._source_in(unit), splits)

    def read(self, passes_ms=0):
        """Let time pass, and read until there is nothing now; gives all that has come."""
        self.now_ms += passes_ms
        while isinstance(found := self._reader.poll(100), Polled):
            self.numbers += found.batch.columns_as(None).column("n").to_pylist()
        assert found is NOTHING_NOW
        assert self.now_ms < self._reader.next_poll_ms() <= self.now_ms + 1_000
        return self.numbers

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._reader.close()


@pytest.mark.parametrize(("comes_after_ms", "expected"), [(4_999, [1, 2, 3]), (5_000, [2, 3])])
def test_what_becomes_visible_within_the_lag_is_read_in_order_and_later_never(comes_after_ms, expected, sqlite):
    add(sqlite, 2)
    with Followed(sqlite.url) as table:
        assert table.read() == []
        assert table.read(comes_after_ms) == ([] if comes_after_ms < 5_000 else [2])
        add(sqlite, 1, 3)
        table.read(1_000)
        assert table.read(5_000) == expected


def test_who_goes_on_from_a_checkpoint_waits_as_long_again(sqlite):
    add(sqlite, 2)
    with Followed(sqlite.url) as table:
        table.read()
        table.read(4_999)
        table.restore()
        table.read()
        assert table.read(4_999) == []
        add(sqlite, 1)
        assert table.read(1) == [1, 2]
        table.restore()
        table.read()
        assert table.read(5_000) == [1, 2]


@pytest.mark.parametrize("column", ["n", "at"])
def test_a_transaction_that_commits_after_later_ones_is_not_missed(column, postgresql):  # noqa: F811
    postgresql.clear()
    postgresql.execute(NUMBERS)
    insert = "INSERT INTO numbers VALUES ({0}, 0, timestamp '2026-01-01' + interval '1 s' * ({0} / 3))"
    with Followed(postgresql.url, column) as table, postgresql.connect() as early:
        early.execute("BEGIN")
        early.execute(insert.format(4))
        postgresql.execute(insert.format(5), insert.format(9))
        table.read()
        assert table.read(4_999) == []
        early.execute("COMMIT")
        assert table.read(1) == [4, 5, 9]


def test_of_a_table_that_cannot_be_followed_the_reason_is_said(sqlite):
    def source(table="numbers", schema=(("n", "int64"),), **options):
        return SqlSource(sqlite.url, table, dict(schema), **options)

    growing = GrowingColumn("n")
    for options, reason in (
        ({"follow": GrowingColumn("m")}, "'m' is none of them"),
        ({"follow": GrowingColumn("s"), "schema": [("s", "string")]}, "integers or times; 's' is of type string"),
        ({"follow": GrowingColumn("at"), "schema": [("at", pa.timestamp("us"))]}, "follow by integers"),
        ({"follow": growing, "ranges": KeyRanges("n", 2)}, "cut the table by another column"),
        ({"follow": growing, "key": "f", "schema": [("n", "int64"), ("f", "float64")]}, "of integers and texts"),
        ({"key": "m"}, "key column 'm'"),
        ({"schema": []}, "schema must name"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            source(**options)
        assert reason in str(refused.value)
    for options in ({"interval": 0}, {"commit_lag": -1}):
        with pytest.raises(ConfigurationError):
            GrowingColumn("n", **options)
    sqlite.execute("CREATE TABLE loose (n BIGINT)")
    reader = source("loose", follow=growing).create_reader()
    reader.open(SimpleNamespace(now_ms=lambda: 0))
    reader.add_splits(source("loose", follow=growing).create_enumerator(EnumeratorContext(1)).discover().splits)
    with contextlib.closing(reader), pytest.raises(ConfigurationError, match=r"\['n'\] is no key of the table"):
        reader.poll(1)


def test_a_row_that_the_key_cannot_place_is_told_and_one_without_a_value_is_left_out(sqlite):
    sqlite.execute(
        "CREATE TABLE loose (n BIGINT UNIQUE, k TEXT UNIQUE)", "INSERT INTO loose VALUES (NULL, 'a'), (1, 'c')"
    )
    for key in ("n", "k"):
        source = SqlSource(
            sqlite.url, "loose", {"n": "int64", "k": "string"}, key=key, follow=GrowingColumn("n", commit_lag=0)
        )
        reader = source.create_reader()
        now_ms = iter(itertools.count(0, 1_000))
        reader.open(SimpleNamespace(now_ms=lambda ticks=now_ms: next(ticks)))
        reader.add_splits(source.create_enumerator(EnumeratorContext(1)).discover().splits)
        with contextlib.closing(reader):
            assert reader.poll(9).batch.columns_as(None).to_pylist() == [{"n": 1, "k": "c"}]
            sqlite.execute(
                "INSERT INTO loose VALUES (NULL, 'b')" if key == "n" else "INSERT INTO loose VALUES (2, NULL)"
            )
            if key == "n":
                assert reader.poll(9) is NOTHING_NOW
                continue
            with pytest.raises(ConfigurationError, match=r"no value of the key \['k'\]"):
                reader.poll(9)


def test_a_checkpoint_of_another_way_to_read_is_refused(sqlite):
    def source(key="n", **options):
        return SqlSource(sqlite.url, "numbers", {"n": "int64", "part": "int64"}, key=key, **options)

    def split(*args, **options):
        return source(*args, **options).create_enumerator(EnumeratorContext(1)).discover().splits

    by_n, by_part = {"follow": GrowingColumn("n")}, {"follow": GrowingColumn("part")}
    by_both = {"key": ("part", "n"), **by_part}
    for given_splits, options in (
        (split(**by_n), {}),
        (split(), by_n),
        (split(**by_n), by_part),
        (split(("n", "part"), **by_part), {"key": "part", **by_part}),
        (split(**by_part), {"key": "part", **by_part}),
    ):
        with pytest.raises(CheckpointMismatchError):
            source(**options).create_reader().add_splits(given_splits)
    source(**by_both).create_reader().add_splits(split(**by_part))


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_a_position_is_the_same_time_in_every_unit(unit, postgresql):  # noqa: F811
    postgresql.clear()
    postgresql.execute(NUMBERS, *(f"INSERT INTO numbers VALUES ({n}, 0, '2026-01-01 00:00:00.{n}')" for n in (1, 2, 3)))
    with Followed(postgresql.url, "at") as table:
        table.read()
        table.read(5_000)
        table.restore(unit)
        postgresql.execute("INSERT INTO numbers VALUES (4, 0, '2026-01-01 00:00:00.4')")
        table.read()
        assert table.read(5_000) == [1, 2, 3, 4]


# ---------------------------------------------------------------------------------------------------------- whole jobs
@pytest.mark.parametrize("ranges", [campaign(None), KeyRanges("part", 3, (0, 2))], ids=["whole", "ranges"])
def test_a_job_that_fails_and_is_rescaled_while_rows_come_has_each_once(ranges, database, tmp_path):
    """Rows come a few at a time, whenever the job has got on; what is compared is what is in the two tables."""
    plan = [("prepare.before", 4), ("prepare.after", 9), ("commit.after", 2)]
    numbers, path = itertools.count(), None
    growing = GrowingColumn("n", interval="10 ms", commit_lag="20 ms")
    schema = {"n": "int64", "part": "int64"}
    for run, parallelism in enumerate((2, 3, 1)):
        env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism)
        env.enable_checkpointing(30, directory=tmp_path / f"run-{run}")
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(20, 1))
        if path is not None:
            env.set_restore_path(path)
        source = SqlSource(database.url, "numbers", schema, key="n", ranges=ranges, follow=growing)
        sink = SqlSink.exactly_once(database.url, "counts", sink_id="counts")
        dying = DyingSink(sink, plan, tmp_path / f"points-{run}", kills=False)
        env.from_source(source, None, "numbers").key_by(lambda row: row["part"]).map(
            lambda row: {"k": row["part"], "c": row["n"]}
        ).sink_to(dying).name("table")
        client = env.execute_async("numbers")
        for _view in client.views():
            add(database, *itertools.islice(numbers, 10))
            if len(dying.deaths()) == len(plan):
                break
        count = database.rows("SELECT COUNT(*) FROM numbers")[0][0]
        for view in client.views() if run == 2 else ():
            restarts = view.num_restarts
            if database.rows("SELECT COUNT(*) FROM counts")[0][0] >= count:
                assert restarts >= 2
                break
        path = client.stop(timeout=60)
        env.close()
    assert Counter(database.rows("SELECT k, c FROM counts")) == Counter(database.rows("SELECT part, n FROM numbers"))


def test_a_table_of_sql_is_followed(database, tmp_path):
    add(database, 1, 2)
    with TableEnvironment.create(parallelism=2, actor_system="local") as env:
        env.execute_sql(
            "CREATE TABLE numbers (n BIGINT, part BIGINT, PRIMARY KEY (n) NOT ENFORCED) WITH ('connector' = 'jdbc', "
            f"'url' = '{database.url}', 'table-name' = 'numbers', 'scan.follow.column' = 'n', "
            "'scan.follow.interval' = '10 ms', 'scan.follow.commit-lag' = '20 ms')"
        )
        rows = env.execute_sql("SELECT part FROM numbers").collect()
        assert [next(rows)[-1] for _ in range(2)] == [1, 2]
        add(database, 3)
        assert next(rows)[-1] == 0
        rows.close()
        with pytest.raises(ConfigurationError, match=r"scan\.follow\.column must be a column"):
            env.execute_sql(
                f"CREATE TABLE t (n BIGINT) WITH ('connector' = 'jdbc', 'url' = '{database.url}', "
                "'table-name' = 'numbers', 'scan.follow.column' = 'm')"
            )
