"""Queries that go on from a savepoint where a table is read or written in another manner than before.

Families: differential (what was counted before and after together, against a direct count), on paper (which options
make another table, and what tells rows of the program apart), stored plans (of version 1, in which all options do).
"""

from __future__ import annotations

import functools
import re
import sqlite3
import time
from collections import Counter

import pyarrow as pa
import pytest

from headrace.connectors.scripted import Pause, ScriptedSource
from headrace.engine.errors import ProgramError
from headrace.engine.optimizer.upgrades.stored_plan import NEWEST
from headrace.engine.optimizer.upgrades.upgrade import SinkOfPlan, planned
from headrace.table import TableEnvironment, col, execution
from headrace.table.services.connectors_by_name import _CONNECTORS

ITEMS = ["lamp", "desk", "lamp", "chair", "desk", "lamp"]
COUNTS = "INSERT INTO totals SELECT item, COUNT(*) FROM orders GROUP BY item"
LENGTHS = "SELECT item, CHAR_LENGTH(item) AS size, COUNT(*) AS n FROM orders {} GROUP BY CHAR_LENGTH(item), item"
PAIRS = f"""INSERT INTO totals SELECT item, MAX(n) FROM (SELECT q.n, p.item FROM ({LENGTHS.format("")}) AS p JOIN
            ({LENGTHS.format("WHERE item <> 'bench'")}) AS q ON p.size = q.size AND p.item = q.item) GROUP BY item"""
PATIENCE_S = 60


class Shop:
    """A folder of orders that is followed, and a table of a database that their counts are written into."""

    def __init__(self, folder, statement=COUNTS):
        self.folder = folder
        self.statement = statement
        self.expected = Counter()
        (folder / "orders").mkdir()
        self._database = sqlite3.connect(folder / "shop.db", timeout=PATIENCE_S)
        self._database.execute("CREATE TABLE totals (item TEXT PRIMARY KEY, n BIGINT)")

    def order(self, name, items):
        (self.folder / "orders" / f".{name}").write_text("".join(f"{item}\n" for item in items))
        (self.folder / "orders" / f".{name}").rename(self.folder / "orders" / name)
        self.expected.update(items)

    def tables(self, t, every, rows, savepoint=None):
        t.execute_script(f"""
            CREATE TABLE orders (item STRING) WITH (
                'connector' = 'filesystem', 'path' = '{self.folder}/orders', 'format' = 'csv',
                'source.monitor-interval' = '{every}'
            );
            CREATE TABLE totals (item STRING, n BIGINT, PRIMARY KEY (item) NOT ENFORCED) WITH (
                'connector' = 'jdbc', 'url' = 'jdbc:sqlite:{self.folder}/shop.db', 'table-name' = 'totals',
                'sink.buffer-flush.max-rows' = '{rows}'
            );
            SET 'table.dml-sync' = 'false';
            SET 'execution.checkpointing.interval' = '50 ms';
            SET 'execution.checkpointing.dir' = '{self.folder}/checkpoints';
            SET 'execution.checkpointing.savepoint-dir' = '{self.folder}/savepoints';
        """)
        if savepoint is not None:
            t.execute_sql(f"SET 'execution.state-recovery.path' = '{savepoint}'")

    def await_counts(self):
        end = time.monotonic() + PATIENCE_S
        while (found := dict(self._database.execute("SELECT item, n FROM totals"))) != self.expected:
            assert time.monotonic() < end, (found, self.expected)
            time.sleep(0.02)

    def run(self, items, every, rows, parallelism, savepoint=None):
        """Run the query until it has counted more orders, too; gives the savepoint that it is stopped with."""
        with TableEnvironment.create(parallelism=parallelism, actor_system="local") as t:
            self.tables(t, every, rows, savepoint)
            t.execute_sql(self.statement)
            self.order(f"{sum(self.expected.values())}.csv", items)
            self.await_counts()
            job = t.execute_sql("SHOW JOBS").to_arrow()["job id"][-1]
            return t.execute_sql(f"STOP JOB '{job}' WITH SAVEPOINT").to_arrow()["savepoint path"][0].as_py()

    def verdicts(self, every, rows, savepoint):
        with TableEnvironment.create(parallelism=1, actor_system="local") as t:
            self.tables(t, every, rows)
            found = t.execute_sql(f"EXPLAIN UPGRADE FROM '{savepoint}' {self.statement}").to_arrow().to_pylist()
        return sorted((row["kind"], row["verdict"], row["asks"]) for row in found)


REUSED = [("aggregate", "reuse", ""), ("sink", "reuse", ""), ("source", "reuse", "")]


def test_state_stays_where_tables_are_read_and_written_in_another_manner(tmp_path):
    shop = Shop(tmp_path)
    first = shop.run(ITEMS, "20 ms", 100, 2)
    assert shop.verdicts("3 s", 7, first) == REUSED
    second = shop.run(ITEMS[1:], "10 ms", 7, 3, first)
    shop.run(ITEMS[2:], "30 ms", 100, 1, second)


def test_a_savepoint_of_a_plan_of_version_1_goes_on_as_such(tmp_path, monkeypatch):
    """In it all options are part of what a table is: with the same ones all state is found, with others none."""
    shop = Shop(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(execution, "beginning_of", functools.partial(execution.beginning_of, version=1))
        first = shop.run(ITEMS, "20 ms", 100, 2)
    assert shop.verdicts("20 ms", 100, first) == REUSED
    second = shop.run(ITEMS[1:], "20 ms", 100, 3, first)
    assert shop.verdicts("20 ms", 100, second) == REUSED
    assert ("aggregate", "lost", "lost") in shop.verdicts("30 ms", 100, second)


@pytest.mark.campaign
@pytest.mark.parametrize("version", [3, NEWEST])
def test_keys_of_two_columns_have_the_order_of_the_plan_that_goes_on(version, tmp_path, monkeypatch):
    """Key groups depend on it: other parallelisms would find no state under another one."""
    shop = Shop(tmp_path, PAIRS)
    with monkeypatch.context() as patch:
        patch.setattr(execution, "beginning_of", functools.partial(execution.beginning_of, version=version))
        first = shop.run(ITEMS, "20 ms", 100, 2)
    assert {verdict for _, verdict, _ in shop.verdicts("20 ms", 100, first)} == {"reuse"}
    second = shop.run(ITEMS[1:], "20 ms", 100, 3, first)
    shop.run(ITEMS[2:], "20 ms", 100, 1, second)


def test_an_order_of_key_columns_is_that_of_the_rows_from_version_4_on():
    """In version 3 it is that of digests, so that it is by chance that of the rows."""
    alike = {3: set(), NEWEST: set()}
    for number in range(8):
        one, other = f"a{number}", f"b{number}"
        query = f"""SELECT t.{one}, d.x FROM t JOIN c ON t.{one} = c.k AND t.{other} = c.x
                    JOIN c AS d ON t.{one} = d.k AND t.{other} = d.x"""
        for version, found in alike.items():
            with TableEnvironment.create(parallelism=1, actor_system="local") as t:
                t.create_temporary_view("t", pa.table({one: [1], other: [2]}))
                t.create_temporary_view("c", pa.table({"k": [1], "x": [2]}))
                made = plan_of(t, t.sql_query(query), None, version)
                again = plan_of(t, t.sql_query(query), made.plan, NEWEST)
            keys = [operator.keeps.keys[0] for operator in made.operators if operator.kind == "join"]
            assert [operator.keeps.keys[0] for operator in again.operators if operator.kind == "join"] == keys
            assert {frozenset(names) for names in keys} == {frozenset((one, other))}
            found.add(keys[0] == keys[1])
    assert alike == {3: {False, True}, NEWEST: {True}}


def test_a_plan_in_a_file_of_version_1_is_executed(tmp_path, monkeypatch):
    shop, place = Shop(tmp_path), tmp_path / "plan.json"
    shop.order("1.csv", ITEMS)
    with TableEnvironment.create(parallelism=2, actor_system="local") as t:
        shop.tables(t, "20 ms", 100)
        with monkeypatch.context() as patch:
            patch.setattr(execution, "beginning_of", functools.partial(execution.beginning_of, version=1))
            t.execute_sql(f"COMPILE PLAN '{place}' FOR {COUNTS}")
        assert '"version": 1' in place.read_text()
        t.execute_sql(f"EXECUTE PLAN '{place}'")
        shop.await_counts()


ROWS = pa.table({"a": ["x", "x", "y"]})
OTHER_ROWS = pa.table({"a": ["y", "y", "z"]})
PLACES = ("one.`default`.t", "two.`default`.t")


def with_catalogs(parallelism=1):
    t = TableEnvironment.create(parallelism=parallelism, actor_system="local")
    for name in ("one", "two"):
        t.execute_sql(f"CREATE CATALOG {name} WITH ('type' = 'generic_in_memory')")
    return t


def plan_of(t, made, plan, version):
    return planned((t._root(made),), (SinkOfPlan(lambda _: "out", "out"),), (), plan, version=version)


def becomes(make, first, second, version=NEWEST):
    """What an upgrade makes of the groups of a table if they are those of another one."""
    plan = None
    for table in (first, second):
        with with_catalogs() as t:
            made = make(t, table)
            query = t.sql_query(f"SELECT a, COUNT(*) FROM {made} GROUP BY a") if isinstance(made, str) else made
            found = plan_of(t, query, plan, version)
        plan = found.plan
    return next(one.verdict.value for one in found.operators if one.kind == "aggregate")


def given(t, place):
    for one in PLACES:
        t.create_temporary_view(one, ROWS)
    return place


def collected(t, place):
    for one in PLACES:
        t.execute_sql(f"CREATE TABLE {one} (a STRING) WITH ('connector' = 'collect')")
    return place


def shadowed(t, kind):
    for one in ("", kind):
        t.execute_sql(f"CREATE {one} TABLE IF NOT EXISTS t (a STRING) WITH ('connector' = 'collect')")
    return "t"


def grouped(table):
    return table.group_by(col("a")).select(col("a"), col("a").count)


def unnamed(t, rows):
    return grouped(t.from_arrow(rows))


def stream_of(t, number):
    """One of two streams that are made alike, in tables without a name."""
    env = t.stream_environment
    streams = [env.from_source(ScriptedSource(["x"]), None, "s", type_info=ROWS.schema) for _ in range(2)]
    return grouped([t.from_data_stream(one) for one in (*streams, streams[0])][number])


def stream_called(t, name):
    source = ScriptedSource(["x"])
    return grouped(t.from_data_stream(t.stream_environment.from_source(source, None, name, type_info=ROWS.schema)))


@pytest.mark.parametrize(
    ("make", "same", "other"),
    [
        (given, (PLACES[0], PLACES[0]), PLACES),
        (collected, (PLACES[1], PLACES[1]), PLACES),
        (shadowed, ("", ""), ("", "TEMPORARY")),
        (unnamed, (ROWS, pa.concat_tables([ROWS[:1], ROWS[1:]])), (ROWS, OTHER_ROWS)),
        (stream_of, (0, 2), (0, 1)),
        (stream_called, ("s", "s"), ("s", "z")),
    ],
)
def test_rows_of_the_program_are_known_by_where_they_are_or_what_they_are(make, same, other):
    assert becomes(make, *same) == "reuse"
    assert becomes(make, *other) == "new"
    # Plans of before know no more than a name.
    for one in (1, 2):
        assert becomes(make, *same, version=one) == becomes(make, *other, version=one) == "reuse"


def following(t, uids):
    """Tables of one name in two catalogs, each of a stream that never ends."""
    for place, uid, values in zip(PLACES, uids, ("xxy", "yz"), strict=True):
        source = ScriptedSource([*({"a": one} for one in values), Pause()], is_bounded=False)
        stream = t.stream_environment.from_source(source, None, uid, type_info=ROWS.schema).uid(uid)
        t.create_temporary_view(place, stream)


def test_state_is_not_taken_for_that_of_a_table_of_the_same_name(tmp_path):
    shop = Shop(tmp_path)
    count = COUNTS.replace("orders", "{}").replace("item, COUNT", "a, COUNT").replace("BY item", "BY a")
    with with_catalogs(2) as t:
        shop.tables(t, "1 s", 100)
        following(t, ("first", "second"))
        t.execute_sql(count.format(PLACES[0]))
        shop.expected.update("xxy")
        shop.await_counts()
        job = t.execute_sql("SHOW JOBS").to_arrow()["job id"][-1]
        savepoint = t.execute_sql(f"STOP JOB '{job}' WITH SAVEPOINT").to_arrow()["savepoint path"][0].as_py()
    for uids, place, reason in [
        (("first", "second"), PLACES[1], "without leave: group by a.*no use for it"),
        (("third", "second"), PLACES[0], "scan t: .* has no position of the program's source 'third'"),
    ]:
        with with_catalogs(3) as t:
            shop.tables(t, "1 s", 100, savepoint)
            following(t, uids)
            with pytest.raises(ProgramError, match=reason):
                t.execute_sql(count.format(place))


KAFKA = {
    "connector": "kafka", "topic": "orders", "format": "json", "properties.bootstrap.servers": "one:9092",
    "scan.startup.mode": "earliest-offset",
}  # fmt: skip
DATAGEN = {"connector": "datagen", "rows-per-second": "10"}
CASSANDRA = {"connector": "cassandra", "hosts": "one", "keyspace": "shop", "table-name": "orders"}
MONGODB = {"connector": "mongodb", "uri": "mongodb://one", "database": "shop", "collection": "orders"}
WEBSOCKET = {"connector": "websocket", "url": "wss://one/orders", "format": "json"}
FILES = {"connector": "filesystem", "format": "csv", "path": "/data/token=1"}
HTTP = {
    "connector": "http",
    "url": "http://me:secret@one/orders?api_key=k&shop=1",
    "format": "json",
    "scan.cursor": "$.n",
}
REGISTRY = {**KAFKA, "format": "avro-confluent", "avro-confluent.url": "http://one"}
OTHER_OPTIONS = [
    ("a INT", KAFKA, {"properties.bootstrap.servers": "two:9092;three:9092", "properties.fetch.min.bytes": "9"}, True),
    ("a INT", KAFKA, {"scan.startup.mode": "latest-offset"}, True),
    ("a INT", KAFKA, {"topic": "others"}, False),
    ("a INT", KAFKA, {"scan.bounded.mode": "latest-offset"}, False),
    ("a INT", KAFKA, {"json.ignore-parse-errors": "true"}, False),
    ("a INT", DATAGEN, {"rows-per-second": "20"}, True),
    ("a INT", DATAGEN, {"seed": "20"}, False),
    # Times of rows come of the rate.
    ("a INT, ts TIMESTAMP(3)", DATAGEN, {"rows-per-second": "20"}, False),
    ("a INT", CASSANDRA, {"hosts": "two;three", "username": "me", "password": "secret"}, True),
    ("a INT", CASSANDRA, {"keyspace": "other"}, False),
    ("a INT", MONGODB, {"uri": "mongodb://me:secret@two", "scan.fetch-size": "9", "lookup.max-retries": "1"}, True),
    ("a INT", MONGODB, {"scan.filter": "{}"}, False),
    ("a INT", WEBSOCKET, {"headers.Authorization": "me", "ping": "5 s", "patience": "1 s", "timeout": "1 s"}, True),
    ("a INT", WEBSOCKET, {"scan.subscribe": "orders"}, False),
    ("a INT", WEBSOCKET, {"headers.X-Tenant": "2"}, False),
    ("a INT", MONGODB, {"collection": "others"}, False),
    ("a INT", REGISTRY, {"avro-confluent.url": "http://two", "avro-confluent.basic-auth.user-info": "me:x"}, True),
    ("a INT", REGISTRY, {"avro-confluent.subject": "others"}, False),
    # Secrets of URLs and headers are left out, and nothing else that looks like one.
    ("a INT", HTTP, {"url": "http://me:new@one/orders?api_key=new&shop=1", "headers.X-Api-Key": "new"}, True),
    ("a INT", HTTP, {"headers.Authorization": "Bearer x", "headers.Cookie": "x=y"}, True),
    ("a INT", HTTP, {"url": "http://me:secret@one/orders?api_key=k&shop=2"}, False),
    ("a INT", HTTP, {"headers.X-Tenant": "2"}, False),
    ("a INT", FILES, {"path": "/data/token=2"}, False),
    ("a INT", FILES, {"path": "file:///data/secret=2"}, False),
    ("a INT, password INT", DATAGEN, {"fields.password.min": "7"}, False),
]


@pytest.mark.parametrize(("columns", "options", "change", "is_same"), OTHER_OPTIONS)
def test_which_options_make_another_table(columns, options, change, is_same):
    plan = None
    for given in (options, {**options, **change}):
        with TableEnvironment.create(parallelism=1, actor_system="local") as t:
            told = ", ".join(f"'{name}' = '{value}'" for name, value in given.items())
            t.execute_sql(f"CREATE TABLE t ({columns}) WITH ({told})")
            root = t._root(t.sql_query("SELECT a, COUNT(*) FROM t GROUP BY a"))
            found = planned((root,), (SinkOfPlan(lambda _: "out", "out"),), (), plan)
        plan = found.plan
    verdicts = {one.verdict.value for one in found.operators if one.kind in ("source", "aggregate")}
    assert (verdicts == {"reuse"}) is is_same


@pytest.mark.parametrize("connector", _CONNECTORS, ids=lambda one: one.name)
def test_options_of_manner_are_options_of_the_connector(connector):
    """By its docstring, which names all of them."""
    bases = " ".join(base.__doc__ or "" for base in connector.__mro__)
    named = re.findall(r"``([a-z0-9A-Z.*-]+)``", bases)
    for full in connector.manner:
        # Of registries the endings are said.
        one = re.sub(r"^((key|value)\.)?(avro|protobuf)-confluent(?=\.)", "", full)
        begin = one.removesuffix("*")
        assert any(name == one or (one.endswith("*") and name.startswith(begin)) for name in named), one
