"""The SQL sink on a real PostgreSQL server; what it does as on MariaDB is in ``test_sql_servers.py``.

Families: crash (the server is killed in the middle of commits), property (values come back as they went in), errors
(what does not fit, or would be changed, is refused by name)."""

from __future__ import annotations

import random
import threading
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from postgresql_server import postgresql  # noqa: F401 - a fixture
from sql_servers import Session, numbers, refused, rows, sink, with_numbers

from headrace.connectors.sql import SqlSink
from headrace.connectors.sql.postgresql import POSTGRESQL
from headrace.engine.columns.records import Batch
from headrace.engine.errors import (
    ConfigurationError,
    PossibleLossError,
    SinkError,
    SinkFencedError,
    TypeMismatchError,
)
from headrace.testing import SinkTestHarness

pytestmark = pytest.mark.slow

BOOKS = ("headrace_sinks", "headrace_sink_jobs", "headrace_commits", "headrace_staged")


@pytest.fixture
def server(postgresql):  # noqa: F811 - the fixture
    return with_numbers(postgresql)


def test_sessions_are_closed_at_the_end(server):
    ours = "SELECT pid FROM pg_stat_activity WHERE application_name = 'headrace'"
    server.rows(ours.replace("pid", "pg_terminate_backend(pid, 10000)"))  # those that other tests left
    job = SinkTestHarness(sink(server), 3)
    job.start()
    job.write(rows(1))
    job.checkpoint(1)
    job.finish()
    for _ in range(1_000):  # the server takes a moment to notice
        if server.rows(ours) == []:
            return
    assert server.rows(ours) == []


# ---------------------------------------------------------------------------------------------------------- the server
def test_the_server_dies_in_the_middle_of_commits(server):
    """The server is killed at some moment while a commit is under way, six times; a reader sees whole
    checkpoints."""
    import psycopg

    rng = random.Random(7)
    outcomes = []

    def commit(connection):
        if not armed:
            connection.commit()
            return
        armed.pop()
        killer = threading.Timer(rng.random() * 0.004, server.restart)
        killer.start()
        try:
            connection.commit()
            outcomes.append("made")
        except psycopg.Error:
            outcomes.append("unknown")
            raise
        finally:
            killer.join()

    armed = []
    job = SinkTestHarness(sink(server, lambda: Session(psycopg.connect(server.url), commit)))
    job.start()
    for checkpoint_id in range(1, 7):
        job.write(rows(*range(100 * checkpoint_id, 100 * checkpoint_id + 50)))
        job.checkpoint(checkpoint_id, notifies=False)
        armed.append(True)
        job.notify(checkpoint_id)
        if checkpoint_id % 3 == 0:
            job.start()
    job.finish()
    assert numbers(server) == [100 * c + i for c in range(1, 7) for i in range(50)]
    assert len(outcomes) == 6
    markers = server.rows("SELECT count(*), sum(num_rows) FROM headrace_commits")
    assert markers == [(6, 300)]


def test_a_server_that_stays_away_fails_the_job_and_nothing_is_skipped(server):
    job = SinkTestHarness(sink(server))
    job.start()
    job.write(rows(1))
    server.kill()
    try:
        with pytest.raises(SinkError, match=r"could not commit.*checkpoint 1, attempts 8") as caught:
            job.checkpoint(1)
        assert server.password not in str(caught.value)
        with pytest.raises(SinkError, match=r"could not use the table"):
            job.start()
    finally:
        server.start()
    job.start()
    assert numbers(server) == [1]


def test_a_takeover_waits_for_a_commit_under_way_and_shuts_out_the_next_one(server):
    """The owner's row is locked while an old attempt commits; after the takeover it cannot."""
    import psycopg

    reached, go_on = threading.Event(), threading.Event()
    held = []

    def commit(connection):
        if held:
            held.pop()
            reached.set()
            assert go_on.wait(30)
        connection.commit()

    job = SinkTestHarness(sink(server, lambda: Session(psycopg.connect(server.url), commit)))
    zombie = job.start()
    job.checkpoint(1)  # behind the first one leftovers are dropped; a later one only commits
    job.write(rows(1))
    job.holds_work = True
    job.checkpoint(2)
    held.append(True)
    committing = threading.Thread(target=zombie.run_work)
    committing.start()
    assert reached.wait(30)
    job.holds_work = False
    takeover = threading.Thread(target=job.start)
    takeover.start()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while server.rows(waits) == [(0,)]:
        assert takeover.is_alive()
    go_on.set()
    for thread in (committing, takeover):
        thread.join(30)
        assert not thread.is_alive()
    assert numbers(server) == [1]
    zombie.write(rows(2))
    zombie.snapshot(3)
    zombie.operators[0].notify_checkpoint_complete(3)
    with pytest.raises(SinkFencedError, match=r"taken over by a newer attempt of the job.*owner 'job 1\.1'"):
        zombie.run_work()
    assert numbers(server) == [1]


def test_many_subtasks_start_at_once(server):
    """The bookkeeping tables are made, and the sink taken over, by eight at the same time."""
    job = SinkTestHarness(sink(server), 8)
    job.holds_work = True
    job.start()
    works = list(job.attempt.works)
    threads = [threading.Thread(target=work) for work, _ in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    job.attempt.works.clear()
    for _, on_end in works:
        on_end(None, None)
    assert job.pauses_ms == []
    job.attempt.run_work()
    assert job.attempt.is_settled
    job.close()


# --------------------------------------------------------------------------------------------------------------- losses
def test_staged_rows_that_somebody_removed_are_told_and_not_passed_over(server):
    job = SinkTestHarness(sink(server, staging="table"))
    job.start()
    job.write(rows(1, 2, 3))
    job.checkpoint(4, notifies=False)
    server.execute("DELETE FROM headrace_staged")
    for action in (lambda: job.notify(4), job.start):
        with pytest.raises(PossibleLossError, match=r"never committed: possible loss .*checkpoint 4, rows 3"):
            action()
    assert job.pauses_ms == []
    assert numbers(server) == []


def test_a_sink_belongs_to_one_job_and_never_returns_to_an_older_one(server):
    job = SinkTestHarness(sink(server))
    job.start()
    job.write(rows(1))
    job.checkpoint(1)
    job.job = "second"
    job.start()
    job.job = "job"
    with pytest.raises(SinkFencedError, match="taken over by another job") as caught:
        job.start()
    assert "two sink ids" in caught.value.hint


# --------------------------------------------------------------------------------------------------------------- values
BERLIN = timezone(timedelta(hours=2))

VALUES = {
    "i": (pa.int32(), "integer", [1, None, -(2**31)]),
    "l": (pa.int64(), "bigint", [2**63 - 1, None, -(2**63)]),
    "u": (pa.uint64(), "numeric", [2**64 - 1, None, 0]),
    "f": (pa.float64(), "double precision", [1.5, None, float("inf")]),
    "r": (pa.float32(), "real", [0.25, None, -1.0]),
    "b": (pa.bool_(), "boolean", [True, None, False]),
    "s": (pa.string(), "text", ["ä\t\n\\N'\"%s?;--", None, ""]),
    "v": (pa.dictionary(pa.int8(), pa.string()), "varchar(10)", ["x", None, "x"]),
    "y": (pa.binary(), "bytea", [b"\x00\xff\\", None, b""]),
    "d": (
        pa.decimal128(38, 10),
        "numeric",
        [Decimal("12345678901234567890.0123456789"), None, Decimal("-1.1000000000")],
    ),
    "a": (pa.date32(), "date", [date(2024, 2, 29), None, date(1, 1, 1)]),
    "t": (pa.time64("us"), "time", [time(23, 59, 59, 999_999), None, time(0)]),
    "n": (pa.timestamp("us"), "timestamp", [datetime(2024, 1, 2, 3, 4, 5, 6), None, datetime(1970, 1, 1)]),  # noqa: DTZ001
    "z": (
        pa.timestamp("ms", "Europe/Berlin"),
        "timestamptz",
        [datetime(2024, 7, 1, 12, tzinfo=BERLIN), None, datetime(1969, 1, 1, tzinfo=timezone.utc)],
    ),
    "p": (pa.duration("ms"), "interval", [timedelta(days=1, milliseconds=5), None, timedelta(0)]),
    "j": (pa.list_(pa.int64()), "jsonb", [[1, None, 3], None, []]),
    "k": (pa.list_(pa.string()), "text[]", [["a,b", '"'], None, []]),
    "o": (pa.struct([("x", pa.int64()), ("y", pa.string())]), "json", [{"x": 1, "y": "ü"}, None, {"x": None, "y": ""}]),
    "c": (pa.string(), "jsonb", ['{"a": [1]}', None, "null"]),
    "g": (pa.string(), "uuid", ["6ba7b810-9dad-11d1-80b4-00c04fd430c8", None, None]),
}


@pytest.mark.parametrize("key", [(), ("id",)])
def test_values_come_back_as_they_went_in(server, key):
    columns = ", ".join(f"{name} {declared}" for name, (_, declared, _) in VALUES.items())
    server.execute(f"CREATE TABLE everything (id bigint PRIMARY KEY, {columns})")
    fields = [("id", pa.int64()), *((name, kind) for name, (kind, _, _) in VALUES.items())]
    arrays = [pa.array([0, 1, 2]), *(pa.array(values, kind) for kind, _, values in VALUES.values())]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    job = SinkTestHarness(SqlSink.exactly_once(server.url, "public.everything", sink_id="e", key=key))
    job.start()
    job.write(Batch.of_columns(batch))
    job.checkpoint(1)
    for name, (_, _, values) in VALUES.items():
        got = [value for (value,) in server.rows(f"SELECT {name} FROM everything ORDER BY id")]
        expected = {"c": [{"a": [1]}, None, None]}.get(name, values)
        got = [str(value) if name == "g" and value is not None else value for value in got]
        assert got == expected, name


def test_nanoseconds_are_not_cut_in_silence(server):
    server.execute("CREATE TABLE times (at timestamp)")
    job = SinkTestHarness(SqlSink.exactly_once(server.url, "times", sink_id="t"))
    job.start()
    column = pa.array([1_000, 2_000], pa.timestamp("ns"))
    job.write(Batch.of_columns(pa.RecordBatch.from_arrays([column], names=["at"])))
    job.checkpoint(1)
    assert len(server.rows("SELECT * FROM times")) == 2
    column = pa.array([2_000, 1_001], pa.timestamp("ns"))
    with pytest.raises(TypeMismatchError, match=r"fraction of 1970-01-01 00:00:00.000001001: .*record 4") as told:
        job.write(Batch.of_columns(pa.RecordBatch.from_arrays([column], names=["at"])))
    assert "subtask" in str(told.value)


# ------------------------------------------------------------------------------------------- what a column would change
UTC_NOON = datetime(2024, 1, 1, 12, 0, 0, 123_456, tzinfo=timezone.utc)
NOON = UTC_NOON.replace(tzinfo=None)


@pytest.mark.parametrize(
    ("kind", "own", "value", "reason"),
    [
        (pa.decimal128(9, 3), "numeric(9, 2)", Decimal("1.005"), r"numeric\(9,2\) would round 1.005 to 2 digits"),
        (pa.decimal128(9, 3), "numeric(9)", Decimal("1.005"), "would round 1.005 to 0 digits"),
        (pa.int64(), "numeric(5, -2)", 150, "would round 150 to -2 digits"),
        (pa.int8(), "numeric(5, -9)", 1, "would round 1 to -9 digits"),
        (pa.decimal32(9, 3), "numeric(9, 2)", Decimal("1.005"), "would round 1.005 to 2 digits"),
        (pa.float64(), "numeric", 0.1, "do not fit column"),
        (pa.float64(), "real", 0.1, "do not fit column"),
        (pa.int32(), "real", 2**24 + 1, "would round 16777217: it keeps 24 bits"),
        (pa.int64(), "double precision", -(2**53) - 1, "would round -9007199254740993"),
        (pa.timestamp("us"), "timestamp(3)", NOON, r"fraction of 2024-01-01 12:00:00.123456"),
        (pa.timestamp("us"), "timestamp(0)", NOON, "keeps 0 digits"),
        (pa.timestamp("us", "UTC"), "timestamptz(5)", UTC_NOON, "keeps 5 digits"),
        (pa.time64("us"), "time(3)", NOON.time(), "fraction of 12:00:00.123456"),
        (pa.duration("us"), "interval(3)", timedelta(microseconds=1), "fraction of 1 us"),
        (pa.duration("us"), "interval hour to minute", timedelta(seconds=61), "do not fit column"),
        (pa.string(), "char(5)", "ab", r"character\(5\) would add blanks to a text of 2 letters"),
        (pa.string(), "char(3)", "abc ", "would cut blanks"),
        (pa.string(), "varchar(3)", "a\u00e4b ", "would cut blanks"),
        (pa.string(), "varchar(3)", "four", "too long"),
        (pa.date32(), "char(20)", NOON.date(), "do not fit column"),
        (pa.decimal128(9, 3), "money", Decimal("1.005"), "do not fit column"),
        (pa.string(), "name", "x" * 70, "do not fit column"),
        (pa.string(), '"char"', "xy", "do not fit column"),
        (pa.time64("us"), "timetz", NOON.time(), "do not fit column"),
        (pa.list_(pa.decimal128(9, 3)), "numeric(9, 2)[]", [Decimal("1.000"), None, Decimal("1.005")], "would round"),
        (pa.list_(pa.list_(pa.string())), "varchar(1)[]", [["a"], ["b "]], "would cut blanks"),
        (pa.list_(pa.float64()), "real[]", [0.1], "do not fit column"),
        (pa.list_(pa.timestamp("us", "UTC")), "timestamp[]", [UTC_NOON], "do not fit column"),
        (pa.decimal128(9, 3), "cents", Decimal("1.005"), r"numeric\(9,2\) would round"),
        (pa.string(), "short_code", "ab ", "would cut blanks"),
        (pa.list_(pa.decimal128(9, 3)), "cents[]", [Decimal("1.005")], "do not fit column"),
    ],
    ids=lambda value: value.replace('"', "") if isinstance(value, str) and value.isascii() else "",
)
def test_what_a_column_would_change_is_refused(kind, own, value, reason, server):
    server.execute(
        "CREATE DOMAIN cents AS numeric(9, 2)", "CREATE DOMAIN code AS varchar(2)", "CREATE DOMAIN short_code AS code"
    )
    refused(server, own, kind, value, reason, TypeMismatchError)


KEPT = {
    "n": (pa.decimal128(9, 3), "numeric(9, 2)", [Decimal("1.250"), Decimal("-0.010"), Decimal("999999.000")]),
    "h": (pa.int64(), "numeric(5, -2)", [100, 0, 9_999_900]),
    "z": (pa.int8(), "numeric(5, -9)", [0, None, 0]),
    "m": (pa.decimal64(12, 3), "numeric(9, 2)", [Decimal("1.250"), Decimal("-0.010"), None]),
    "r": (pa.int64(), "real", [2**24, -(2**40), 3 << 30]),
    "w": (pa.int64(), "double precision", [2**53, -(2**62), 0]),
    "t": (pa.timestamp("us"), "timestamp(3)", [datetime(1969, 12, 31, 23, 59, 59, 999_000)] * 3),  # noqa: DTZ001
    "i": (pa.duration("us"), "interval day to second(3)", [timedelta(days=-1, milliseconds=7)] * 3),
    "c": (pa.string(), "char(3)", ["abc", "a  ", "  \u00e4"]),
    "v": (pa.string(), "varchar(3)", ["a  ", "", "abc"]),
    "l": (
        pa.list_(pa.list_(pa.decimal128(5, 2))),
        "numeric(4, 1)[]",
        [[[Decimal("1.50")], [Decimal("2.00")]], [], None],
    ),
    "d": (pa.decimal128(9, 3), "cents", [Decimal("0.250"), None, Decimal("1.000")]),
}


@pytest.mark.parametrize("key", [(), ("id",)], ids=["added", "by key"])
def test_what_a_narrow_column_keeps_comes_back(server, key):
    """A client sees each value as it was."""
    server.execute("CREATE DOMAIN cents AS numeric(9, 2)")
    columns = ", ".join(f"{name} {own}" for name, (_, own, _) in KEPT.items())
    server.execute(f"CREATE TABLE kept (id bigint PRIMARY KEY, {columns})")
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _, _) in KEPT.items())])
    job = SinkTestHarness(SqlSink.exactly_once(server.url, "kept", sink_id="k", schema=schema, key=key))
    job.start()
    job.write([{"id": i, **{name: values[i] for name, (*_, values) in KEPT.items()}} for i in range(3)])
    job.checkpoint(1)
    for name, (_, _, values) in KEPT.items():
        shown = f"{name}::float8" if name == "r" else name  # of a real, a text has as many digits as tell it apart
        assert [value for (value,) in server.rows(f"SELECT {shown} FROM kept ORDER BY id")] == values, name


def test_a_table_that_was_made_narrower_refuses_what_was_prepared(server):
    server.execute("CREATE TABLE prices (v numeric)")
    job = SinkTestHarness(SqlSink.exactly_once(server.url, "prices", sink_id="p", schema={"v": pa.decimal128(9, 3)}))
    job.start()
    job.write([{"v": Decimal("1.000")}, {"v": Decimal("1.005")}])
    job.checkpoint(1, notifies=False)
    server.execute("ALTER TABLE prices ALTER v TYPE numeric(9, 2)")
    with pytest.raises(TypeMismatchError, match=r"would round 1\.005 .*record 2"):
        job.start()
    assert server.rows("SELECT * FROM prices") == []


@pytest.mark.parametrize(
    ("own", "said"),
    [("text COLLATE nocase", "collation nocase"), ("varchar(9) COLLATE nocase", "collation nocase")],
)
def test_keys_that_the_database_calls_equal_are_refused(own, said, server):
    server.execute("CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    server.execute(f"CREATE TABLE words (k {own} PRIMARY KEY, v bigint)")
    made = SqlSink.at_least_once(server.url, "words", key="k")
    with pytest.raises(ConfigurationError, match=f"key column 'k' of table 'words' has {said}") as told:
        SinkTestHarness(made).start()
    server.execute(told.value.hint)
    job = SinkTestHarness(made)
    job.start()
    job.write([{"k": "Hall", "v": 1}, {"k": "hall", "v": 2}])
    job.checkpoint(1)
    assert sorted(server.rows("SELECT * FROM words")) == [("Hall", 1), ("hall", 2)]


def test_a_key_of_uuids_has_one_spelling(server):
    """Rows of two spellings are one there, and would be written in any order."""
    server.execute("CREATE TABLE seats (k uuid PRIMARY KEY, v bigint)")
    job = SinkTestHarness(SqlSink.at_least_once(server.url, "seats", key="k"))
    job.start()
    small = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    job.write([{"k": small, "v": 1}])
    job.checkpoint(1)
    assert server.rows("SELECT k::text, v FROM seats") == [(small, 1)]
    for other in (small.upper(), small.replace("-", ""), f"{{{small}}}"):
        with pytest.raises(TypeMismatchError, match=r"column 'k' of type uuid would spell .* one row"):
            job.write([{"k": small, "v": 2}, {"k": other, "v": 3}])


@pytest.mark.parametrize(("own", "keys"), [("inet", ["10.0.0.1/32", "10.0.0.1"]), ("jsonb", ["[1, 2]", "[1,2]"])])
def test_rows_of_two_spellings_of_one_key_stay_in_order(server, own, keys):
    server.execute(f"CREATE TABLE hosts (k {own} PRIMARY KEY, v bigint)")
    job = SinkTestHarness(SqlSink.exactly_once(server.url, "hosts", sink_id="h", key="k", delete_column="gone"))
    job.start()
    for number, places in enumerate(([0, 1], [1, 0])):
        batch = {"k": [keys[i] for i in places], "v": [1, 2], "gone": [False, False]}
        job.write(Batch.of_columns(pa.RecordBatch.from_pydict(batch)))
        job.checkpoint(2 * number + 1)
        assert server.rows("SELECT v FROM hosts") == [(2,)]
        batch["gone"] = [False, True]
        job.write(Batch.of_columns(pa.RecordBatch.from_pydict(batch)))
        job.checkpoint(2 * number + 2)
        assert server.rows("SELECT v FROM hosts") == []


def test_a_key_is_the_columns_that_are_unique_and_not_those_beside_them(server):
    server.execute("CREATE TABLE words (k text, v bigint)", "CREATE UNIQUE INDEX ON words (k) INCLUDE (v)")
    SinkTestHarness(SqlSink.at_least_once(server.url, "words", key="k")).start()
    with pytest.raises(ConfigurationError, match="no primary key or unique index"):
        SinkTestHarness(SqlSink.at_least_once(server.url, "words", key=["k", "v"])).start()


def test_values_that_the_table_refuses_are_the_records_fault(server):
    server.execute("CREATE TABLE small (n smallint, CHECK (n > 0))")
    for value, text in ((100_000, "out of range"), (-1, "check constraint")):
        job = SinkTestHarness(SqlSink.exactly_once(server.url, "small", sink_id=f"s{value}"))
        job.start()
        job.write([{"n": value}])
        with pytest.raises(TypeMismatchError, match=rf"the database refuses the records: .*{text}.*checkpoint 1"):
            job.checkpoint(1)
        assert job.pauses_ms == []


# ---------------------------------------------------------------------------------------------------------------- names
def test_names_of_all_kinds_are_names_and_nothing_else(server):
    names = ['a"b', "c%d", "e f", "Upper", "select", "x;DROP TABLE numbers;--", "q?{}", "ü%s"]
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    server.execute('CREATE SCHEMA "my %s schema?"')
    declared = ", ".join(f"{name} text" for name in quoted)
    server.execute(f'CREATE TABLE "my %s schema?"."t.%1" ({declared}, PRIMARY KEY ({quoted[1]}, {quoted[0]}))')
    for round_, key in enumerate([(), (names[1], names[0])]):
        made = SqlSink.exactly_once(
            server.url, ("my %s schema?", "t.%1"), sink_id=f"'{round_}", key=key, staging="table"
        )
        job = SinkTestHarness(made)
        job.start()
        job.write([{name: f"{name}' {round_}; DROP TABLE numbers; -- %s" for name in names}])
        job.checkpoint(1)
        job.finish()
    found = server.rows(f'SELECT {", ".join(quoted)} FROM "my %s schema?"."t.%1" ORDER BY 1')
    assert found == [tuple(f"{name}' {r}; DROP TABLE numbers; -- %s" for name in names) for r in (0, 1)]
    assert numbers(server) == []
    where = "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'headrace%'"
    assert server.rows(where) == [("my %s schema?",)], "the books are beside the table"


# --------------------------------------------------------------------------------------------------------------- schema
@pytest.mark.parametrize(
    ("table", "options", "error", "text"),
    [
        ("nothing", {}, ConfigurationError, "there is no table 'nothing'"),
        ("no.numbers", {}, ConfigurationError, "there is no table 'no.numbers'"),
        ("numbers", {"columns": ["n", "m"]}, ConfigurationError, "has no column 'm'; it has"),
        ("numbers", {"columns": ["label"]}, ConfigurationError, "'n' of table 'numbers' must have a value"),
        (
            "numbers",
            {"schema": {"n": str, "label": str}},
            TypeMismatchError,
            "type string do not fit column 'n' of type",
        ),
        ("numbers", {"schema": {"n": "timestamp[ms]"}}, TypeMismatchError, "do not fit column 'n'"),
        ("numbers", {"key": "n"}, ConfigurationError, r"no primary key or unique index on \['n'\]"),
        ("made", {"columns": ["a", "b"]}, ConfigurationError, "'b' of table 'made' is generated"),
        ("stamps", {"schema": {"at": "timestamp[ms]"}}, TypeMismatchError, "times without"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_record(server, table, options, error, text):
    server.execute(
        "CREATE TABLE made (a int, b int GENERATED ALWAYS AS (a + 1) STORED)", "CREATE TABLE stamps (at timestamptz)"
    )
    job = SinkTestHarness(SqlSink.exactly_once(server.url, table, sink_id="s", **options))
    with pytest.raises(error, match=text):
        job.start()
    assert job.pauses_ms == []


@pytest.mark.parametrize(
    ("record", "text"),
    [({"n": 1, "m": 2}, "a field 'm', and table 'numbers' no such column"), ({"n": "x"}, "do not fit column 'n'")],
)
def test_records_that_do_not_fit_are_refused_before_anything_is_written(server, record, text):
    job = SinkTestHarness(sink(server))
    job.start()
    with pytest.raises(TypeMismatchError, match=text):
        job.write([record])


def test_wrong_credentials_are_told_without_them(server):
    url = server.url.replace(server.password, "wr0ng")
    made = SqlSink.exactly_once(url, "numbers", sink_id="s")
    assert "wr0ng" not in repr(made)
    assert "wr0ng" not in repr(made._settings)
    with pytest.raises(
        SinkError, match=r"could not use the table: OperationalError: .*authentication failed"
    ) as caught:
        SinkTestHarness(made).start()
    assert "wr0ng" not in str(caught.value)
    cause = caught.value
    while cause is not None:
        assert "wr0ng" not in repr(cause)
        cause = cause.__cause__


# --------------------------------------------------------------------------------------------------------------- books
def test_at_least_once_keeps_no_books(server):
    job = SinkTestHarness(SqlSink.at_least_once(server.url, "numbers", columns=["n"]), 2)
    job.start()
    job.write([{"n": 1, "other": 2}])
    job.write([(2,), (3,)], 1)
    assert numbers(server) == [1, 2, 3]
    job.checkpoint(1)
    job.finish()
    assert all(POSTGRESQL.describe(server.connect(), (name,)) is None for name in BOOKS)


def test_large_checkpoints_are_brought_in_bulk(server):
    job = SinkTestHarness(sink(server))
    job.start()
    count = 200_000
    batch = pa.RecordBatch.from_arrays([pa.array(range(count)), pa.array(["x"] * count)], names=["n", "label"])
    for start in range(0, count, 50_000):
        job.write(Batch.of_columns(batch.slice(start, 50_000)))
    job.checkpoint(1)
    assert server.rows("SELECT count(*), min(n), max(n) FROM numbers") == [(count, 0, count - 1)]
