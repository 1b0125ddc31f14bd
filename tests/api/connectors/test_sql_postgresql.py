"""The SQL sink on a real PostgreSQL server.

Families: contract (the checks of every sink), crash (the server is killed around and in the middle of commits),
property (values come back as they went in), errors (what does not fit is refused before the first record)."""

from __future__ import annotations

import random
import threading
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from campaigns import campaign
from postgresql_server import postgresql  # noqa: F401 - a fixture

from headrace.connectors.sql import SqlExecutionOptions, SqlSink
from headrace.connectors.sql.dialects import POSTGRESQL
from headrace.engine.columns.records import Batch
from headrace.engine.errors import (
    ConfigurationError,
    PossibleLossError,
    SinkError,
    SinkFencedError,
    TypeMismatchError,
)
from headrace.testing import SinkTestHarness
from headrace.testing.sink_contract import SINK_CONTRACT, SinkSubject

pytestmark = pytest.mark.slow

BOOKS = ("headrace_sinks", "headrace_sink_jobs", "headrace_commits", "headrace_staged")


@pytest.fixture
def server(postgresql):  # noqa: F811 - the fixture
    postgresql.clear()
    postgresql.execute("CREATE TABLE numbers (n bigint NOT NULL, label text)")
    return postgresql


def numbers(server):
    return sorted(n for (n,) in server.rows("SELECT n FROM numbers"))


def rows(*values):
    return [{"n": value, "label": f"number {value}"} for value in values]


def sink(server, connect=None, **options):
    connection = server.url if connect is None else connect
    dialect = None if connect is None else "postgresql"
    return SqlSink.exactly_once(connection, "numbers", sink_id="numbers", dialect=dialect, **options)


# ------------------------------------------------------------------------------------------------------------- contract
@pytest.mark.parametrize("staging", ["checkpoint", "table"])
@pytest.mark.parametrize("check", SINK_CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.sampled(4)
def test_contract(check, staging, server):
    check(SinkSubject(sink(server, staging=staging), lambda: numbers(server), lambda number: rows(number)[0]))
    if server.rows("SELECT to_regclass('headrace_staged')") != [(None,)]:
        assert server.rows("SELECT count(*) FROM headrace_staged") == [(0,)], "staged rows were left"


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
class Session:
    """A connection whose commits can be disturbed."""

    def __init__(self, connection, commit):
        self._connection = connection
        self._commit = commit

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def commit(self):
        self._commit(self._connection)


@pytest.mark.parametrize(
    ("staging", "is_made"),
    [("checkpoint", False), ("table", True), campaign("checkpoint", True), campaign("table", False)],
)
@pytest.mark.sampled(9)
def test_the_server_dies_around_a_commit_and_the_marker_says_whether_it_was_made(server, staging, is_made):
    import psycopg

    armed = []

    def commit(connection):
        if not armed:
            connection.commit()
            return
        armed.pop()
        if is_made:
            connection.commit()
        server.restart()
        message = "the connection is lost"
        raise psycopg.OperationalError(message)

    job = SinkTestHarness(sink(server, lambda: Session(psycopg.connect(server.url), commit), staging=staging), 2)
    job.start()
    for checkpoint_id in (1, 2, 3):
        job.write(rows(10 * checkpoint_id), 0)
        job.write(rows(10 * checkpoint_id + 1), 1)
        job.checkpoint(checkpoint_id, notifies=False)
        armed.append(True)
        job.notify(checkpoint_id)
        assert not armed
    job.finish()
    assert numbers(server) == [10, 11, 20, 21, 30, 31]
    # Both subtasks had sessions when the server died.
    assert len(job.pauses_ms) >= 3


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
    column = pa.array([1_001], pa.timestamp("ns"))
    job.write(Batch.of_columns(pa.RecordBatch.from_arrays([column], names=["at"])))
    with pytest.raises(TypeMismatchError, match="'at' has nanoseconds"):
        job.checkpoint(2)


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


# ---------------------------------------------------------------------------------------------------------------- eager
def keyed_table(server):
    server.execute("CREATE TABLE counts (word text PRIMARY KEY, n bigint, at timestamptz DEFAULT now())")


def counts(server):
    return dict(server.rows("SELECT word, n FROM counts"))


def test_upserts_are_visible_at_once_keep_the_order_of_a_key_and_converge(server):
    keyed_table(server)
    options = SqlExecutionOptions(batch_size=3)
    made = SqlSink.exactly_once(
        server.url, "counts", sink_id="c", form="upsert", key="word", delete_column="gone", options=options
    )
    job = SinkTestHarness(made, 2)
    job.start()
    job.checkpoint(1)
    first = [{"word": w, "n": n, "gone": False} for w, n in [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("c", 1)]]
    job.write(first)
    assert counts(server) == {"a": 3, "b": 1, "c": 1}
    later = [
        {"word": "b", "n": None, "gone": True},
        {"word": "c", "n": 2, "gone": None},
        {"word": "d", "n": 1, "gone": False},
        {"word": "d", "n": 1, "gone": True},
        {"word": "a", "n": 9, "gone": True},
        {"word": "a", "n": 4, "gone": False},
    ]
    job.write(later)
    expected = {"a": 4, "c": 2}
    assert counts(server) == expected
    job.start()
    job.write(first)
    assert counts(server) == {"a": 3, "b": 1, "c": 1}, "for a while it is what it was before"
    job.write(later)
    assert counts(server) == expected
    job.checkpoint(2)
    job.finish()
    assert server.rows("SELECT count(*) FROM headrace_commits") == [(0,)]


def test_an_old_attempts_upserts_are_shut_out(server):
    keyed_table(server)
    job = SinkTestHarness(SqlSink.exactly_once(server.url, "counts", sink_id="c", form="upsert", key=["word"]))
    zombie = job.start()
    job.write([{"word": "a", "n": 1}])
    job.start()
    job.write([{"word": "a", "n": 2}])
    with pytest.raises(SinkFencedError):
        zombie.write([{"word": "a", "n": 1}])
    assert counts(server) == {"a": 2}


def test_at_least_once_keeps_no_books(server):
    job = SinkTestHarness(SqlSink.at_least_once(server.url, "numbers", columns=["n"]), 2)
    job.start()
    job.write([{"n": 1, "other": 2}])
    job.write([(2,), (3,)], 1)
    assert numbers(server) == [1, 2, 3]
    job.checkpoint(1)
    job.finish()
    assert all(POSTGRESQL.describe(server.connect(), (name,)) is None for name in BOOKS)


def test_a_transaction_may_have_a_key(server):
    keyed_table(server)
    made = SqlSink.exactly_once(server.url, "counts", sink_id="c", key="word", delete_column="gone")
    job = SinkTestHarness(made)
    job.start()
    job.write([{"word": "a", "n": n, "gone": False} for n in range(10)])
    assert counts(server) == {}
    job.checkpoint(1)
    assert counts(server) == {"a": 9}
    job.write([{"word": "a", "n": None, "gone": True}])
    job.checkpoint(2)
    assert counts(server) == {}


def test_large_checkpoints_are_brought_in_bulk(server):
    job = SinkTestHarness(sink(server))
    job.start()
    count = 200_000
    batch = pa.RecordBatch.from_arrays([pa.array(range(count)), pa.array(["x"] * count)], names=["n", "label"])
    for start in range(0, count, 50_000):
        job.write(Batch.of_columns(batch.slice(start, 50_000)))
    job.checkpoint(1)
    assert server.rows("SELECT count(*), min(n), max(n) FROM numbers") == [(count, 0, count - 1)]
