"""The SQL sink on SQLite, and its arguments.

Families: crash (many subtasks on one file), property (values come back), losses (markers that were dropped), errors.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sqlite3
import threading
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.sql import SqlExecutionOptions, SqlSink
from headrace.engine.columns.records import Batch
from headrace.engine.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    ConfigurationError,
    NewerOutputError,
    PossibleLossError,
    SinkError,
    SinkFencedError,
    TypeMismatchError,
)
from headrace.testing import SinkTestHarness

DAY_MS = 86_400_000


class Db:
    def __init__(self, path, *statements):
        self.path = path
        self.url = f"sqlite:///{path}"
        self.execute(*statements)

    def execute(self, *statements):
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query):
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as connection:
            return connection.execute(query).fetchall()


@pytest.fixture
def db(tmp_path):
    return Db(tmp_path / "db.sqlite", "CREATE TABLE numbers (n INTEGER NOT NULL, label TEXT)")


def started(sink, parallelism=1, **options):
    job = SinkTestHarness(sink, parallelism, **options)
    job.start()
    return job


# --------------------------------------------------------------------------------------------------------------- values
def test_values_have_a_form_that_reads_back(db):
    utc = timezone.utc
    values = {
        "b": (pa.bool_(), "BOOLEAN", [True, False], [1, 0]),
        "i": (pa.int64(), "BIGINT", [2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
        "f": (pa.float64(), "REAL", [0.1, -1e300], [0.1, -1e300]),
        "d": (pa.decimal128(38, 2), "TEXT", [Decimal("1.10"), Decimal(10) ** 30], ["1.10", f"{10**30}.00"]),
        "m": (pa.decimal128(10, 2), "DECIMAL(10,2)", [Decimal("1.10"), Decimal("-3.00")], [1.1, -3]),
        "s": (pa.string(), "TEXT", ["ä'\";--?\n", ""], ["ä'\";--?\n", ""]),
        "y": (pa.binary(), "BLOB", [b"\x00\xff", b""], [b"\x00\xff", b""]),
        "a": (pa.date32(), "DATE", [date(2024, 2, 29), date(1, 1, 1)], ["2024-02-29", "0001-01-01"]),
        "t": (pa.time64("us"), "TIME", [time(1, 2, 3, 4), time(0)], ["01:02:03.000004", "00:00:00"]),
        "n": (
            pa.timestamp("us"),
            "TIMESTAMP",
            [datetime(2024, 1, 2, 3, 4, 5, 6), datetime(1960, 1, 1)],  # noqa: DTZ001 - naive on purpose
            ["2024-01-02 03:04:05.000006", "1960-01-01 00:00:00"],
        ),
        "z": (
            pa.timestamp("ms", "UTC"),
            "TIMESTAMP",
            [datetime(2024, 1, 2, 3, tzinfo=timezone(timedelta(hours=1))), datetime(2024, 1, 1, tzinfo=utc)],
            ["2024-01-02 02:00:00+00:00", "2024-01-01 00:00:00+00:00"],
        ),
        "l": (pa.list_(pa.int64()), "JSON", [[1, None], []], ["[1,null]", "[]"]),
        "o": (pa.struct([("x", pa.date32())]), "TEXT", [{"x": date(2024, 1, 1)}, {"x": None}], None),
    }
    db.execute(f"CREATE TABLE v ({', '.join(f'{name} {declared}' for name, (_, declared, _, _) in values.items())})")
    arrays = [pa.array([*given, None], kind) for kind, _, given, _ in values.values()]
    job = started(SqlSink.exactly_once(db.url, "v", sink_id="v"))
    job.write(Batch.of_columns(pa.RecordBatch.from_arrays(arrays, names=list(values))))
    job.checkpoint(1)
    for name, (_, _, put, expected) in values.items():
        got = [value for (value,) in db.rows(f"SELECT {name} FROM v")]
        if expected is None:
            got = [None if value is None else json.loads(value) for value in got]
            expected = [{"x": "2024-01-01"}, {"x": None}]
        assert got == [*expected, None], (name, put)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | st.text()), max_size=30), st.integers(1, 7))
@settings(max_examples=examples(50), deadline=None)
def test_rows_come_back_in_any_batches(tmp_path_factory, records, size):
    db = Db(tmp_path_factory.mktemp("rows") / "db", "CREATE TABLE numbers (n INTEGER, label TEXT)")
    records = [(n, None if text is None else text.replace("\0", "")) for n, text in records]
    records = [(n, text if text is None or text.isprintable() else repr(text)) for n, text in records]
    options = SqlExecutionOptions(batch_size=size)
    for index, staging in enumerate(("checkpoint", "table")):
        sink = SqlSink.exactly_once(
            db.url, "numbers", sink_id="s", columns=["n", "label"], staging=staging, options=options
        )
        job = started(sink, job=f"job {index}")
        for start in range(0, len(records), 3):
            job.write(records[start : start + 3])
        job.checkpoint(1)
        job.finish()
    assert sorted(db.rows("SELECT * FROM numbers"), key=repr) == sorted(records * 2, key=repr)


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (pa.string(), "INTEGER"),
        (pa.int64(), "TEXT"),
        (pa.decimal128(38, 2), "NUMERIC"),
        (pa.duration("s"), "TEXT"),
        (pa.binary(), "TEXT"),
        (pa.timestamp("s"), "DATE"),
        (pa.list_(pa.int8()), "INTEGER"),
        (pa.string(), "STRING"),
        (pa.decimal128(38, 2), "MONEY"),
    ],
)
def test_values_that_do_not_fit_are_refused_before_anything_is_written(db, kind, declared):
    db.execute(f"CREATE TABLE x (v {declared})")
    for staged in ({}, {"schema": pa.schema([("v", kind)])}):
        with pytest.raises(TypeMismatchError, match=rf"of type {declared}"):
            job = started(SqlSink.exactly_once(db.url, "x", sink_id="s", **staged))
            job.write(Batch.of_columns(pa.RecordBatch.from_arrays([pa.array([None], kind)], names=["v"])))


def test_a_number_too_large_for_a_column_is_the_records_fault(db):
    job = started(SqlSink.exactly_once(db.url, "numbers", sink_id="s", columns=["n"]))
    job.write(Batch.of_columns(pa.RecordBatch.from_arrays([pa.array([2**64 - 1], pa.uint64())], names=["n"])))
    with pytest.raises(TypeMismatchError, match="refuses the records: OverflowError"):
        job.checkpoint(1)


# ------------------------------------------------------------------------------------------------------------- one file
def test_many_subtasks_commit_into_one_file_at_the_same_time(db):
    """Their transactions wait for each other; none fails."""
    job = started(SqlSink.exactly_once(db.url, "numbers", sink_id="s"), 6)
    job.holds_work = True
    for checkpoint_id in range(1, 6):
        for subtask in range(6):
            base = 1_000 * checkpoint_id + 100 * subtask
            job.write([{"n": base + i, "label": None} for i in range(100)], subtask)
        job.checkpoint(checkpoint_id)
        works, job.attempt.works[:] = list(job.attempt.works), []
        threads = [threading.Thread(target=work) for work, _ in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _, on_end in works:
            on_end(None, None)
    job.attempt.run_work()
    assert job.pauses_ms == []
    assert db.rows("SELECT count(*), count(DISTINCT n) FROM numbers") == [(3_000, 3_000)]
    assert db.rows("PRAGMA journal_mode") == [("wal",)]


def test_a_connection_function_is_used_where_the_job_runs(db):
    path = str(db.path)

    def connect():
        return sqlite3.connect(path, check_same_thread=False)

    job = started(SqlSink.exactly_once(connect, "numbers", sink_id="s", dialect="sqlite"))
    job.write([{"n": 1, "label": "x"}])
    job.checkpoint(1)
    assert db.rows("SELECT * FROM numbers") == [(1, "x")]


# --------------------------------------------------------------------------------------------------------------- losses
def test_old_markers_are_dropped_and_what_they_said_is_not_guessed(db):
    """A checkpoint older than the markers' retention: nobody knows whether its output was committed."""
    sink = SqlSink.exactly_once(db.url, "numbers", sink_id="s", marker_retention="7 d")
    job = started(sink)
    job.write([{"n": 1, "label": None}])
    job.checkpoint(1)
    for checkpoint_id in (2, 3):
        job.now_ms += 4 * DAY_MS
        job.write([{"n": checkpoint_id, "label": None}])
        job.checkpoint(checkpoint_id)
    assert db.rows("SELECT checkpoint_id FROM headrace_commits ORDER BY 1") == [(2,), (3,)]
    with pytest.raises(NewerOutputError, match=r"goes on from checkpoint 2, and 1 rows of checkpoints 3 to 3"):
        job.start(checkpoint_id=2)
    job.sink = SqlSink.exactly_once(db.url, "numbers", sink_id="s", marker_retention="7 d", on_newer_output="keep")
    job.start(checkpoint_id=2)
    assert db.rows("SELECT n FROM numbers") == [(1,), (2,), (3,)]
    with pytest.raises(PossibleLossError, match=r"older than the commits that are remembered.*checkpoint 1, rows 1"):
        job.start(checkpoint_id=1)
    assert db.rows("SELECT n FROM numbers") == [(1,), (2,), (3,)]


def test_what_dead_attempts_have_staged_is_dropped(db):
    sink = SqlSink.exactly_once(
        db.url, "numbers", sink_id="s", staging="table", options=SqlExecutionOptions(batch_size=1)
    )
    job = started(sink, 3)
    for subtask in range(3):
        job.write([{"n": subtask, "label": None}], subtask)
    assert len(db.rows("SELECT * FROM headrace_staged")) == 3
    zombie = job.attempt
    job.start(2)
    with pytest.raises(SinkFencedError):
        zombie.write([{"n": 9, "label": None}])
    job.write([{"n": 5, "label": None}])
    job.checkpoint(1)
    assert db.rows("SELECT * FROM headrace_staged") == []
    assert db.rows("SELECT n FROM numbers") == [(5,)]
    # Of another job that never comes back: by age.
    job.write([{"n": 6, "label": None}])
    job.job = "another"
    job.start(1, checkpoint_id=0)
    job.checkpoint(2)
    assert len(db.rows("SELECT * FROM headrace_staged")) == 1
    job.now_ms += 8 * DAY_MS
    job.start()
    job.checkpoint(3)
    assert db.rows("SELECT * FROM headrace_staged") == []


def test_a_changed_sink_id_still_knows_what_was_committed_under_the_old_one(db):
    job = started(SqlSink.exactly_once(db.url, "numbers", sink_id="old"))
    job.write([{"n": 1, "label": None}])
    job.checkpoint(1)
    job.sink = SqlSink.exactly_once(db.url, "numbers", sink_id="new")
    job.start()
    assert db.rows("SELECT n FROM numbers") == [(1,)]


# ---------------------------------------------------------------------------------------------------------------- eager
def test_writes_that_fail_are_tried_again_then_fail_the_task(db):
    fails = []

    def connect():
        if fails:
            raise fails.pop(0)
        return sqlite3.connect(db.path, check_same_thread=False)

    options = SqlExecutionOptions(max_retries=1)
    job = started(SqlSink.at_least_once(connect, "numbers", dialect="sqlite", options=options))
    fails.append(sqlite3.OperationalError("database is locked"))
    job.write([{"n": 1, "label": None}])
    assert db.rows("SELECT n FROM numbers") == [(1,)]
    job.operators[0]._writer._database.close()
    fails += [sqlite3.OperationalError("disk I/O error")] * 2
    with pytest.raises(SinkError, match=r"could not write rows: OperationalError: disk I/O error"):
        job.write([{"n": 2, "label": None}])


def test_rows_staged_by_a_commit_whose_answer_got_lost_are_staged_once(db):
    loses = []

    class Session(sqlite3.Connection):
        def execute(self, statement, *values):
            done = super().execute(statement, *values)
            if loses and statement == "COMMIT":
                raise loses.pop()
            return done

    def connect():
        return sqlite3.connect(db.path, check_same_thread=False, factory=Session)

    options = SqlExecutionOptions(batch_size=1)
    staged = {"staging": "table", "dialect": "sqlite", "options": options}
    job = started(SqlSink.exactly_once(connect, "numbers", sink_id="s", **staged))
    job.write([{"n": 1, "label": None}])
    loses.append(sqlite3.OperationalError("disk I/O error"))
    job.write([{"n": 2, "label": None}])
    assert not loses
    job.checkpoint(1)
    assert db.rows("SELECT n FROM numbers") == [(1,), (2,)]


def test_rows_may_wait_for_others(db):
    options = SqlExecutionOptions(batch_size=4, batch_interval="1 s")
    job = started(SqlSink.at_least_once(db.url, "numbers", columns=["n"], options=options))
    count = "SELECT count(*) FROM numbers"
    for number in range(3):
        job.write([(number,)])
    assert db.rows(count) == [(0,)]
    job.write([(3,), (4,)])
    assert db.rows(count) == [(5,)]
    job.write([(5,)])
    job.now_ms += 1_000
    job.write([(6,)])
    assert db.rows(count) == [(7,)]
    job.write([(7,)])
    job.checkpoint(1, completes=False)
    assert db.rows(count) == [(8,)]


def test_upserts_without_other_columns_and_composite_keys(db):
    db.execute("CREATE TABLE pairs (a TEXT, b INTEGER, PRIMARY KEY (a, b))")
    sink = SqlSink.exactly_once(db.url, "pairs", sink_id="s", form="upsert", key=["b", "a"], delete_column="gone")
    job = started(sink)
    job.write([{"a": "x", "b": 1, "gone": False}] * 2 + [{"a": "x", "b": 2, "gone": False}])
    job.write([{"gone": True, "b": 1, "a": "x"}])
    assert db.rows("SELECT * FROM pairs") == [("x", 2)]


@pytest.mark.parametrize("own", ["TEXT COLLATE NOCASE PRIMARY KEY", "TEXT UNIQUE COLLATE RTRIM"])
def test_keys_that_the_database_calls_equal_are_refused(db, own):
    db.execute(f"CREATE TABLE words (k {own}, v INTEGER)")
    with pytest.raises(ConfigurationError, match=r"key column 'k' .*has collation (NOCASE|RTRIM): it takes"):
        started(SqlSink.exactly_once(db.url, "words", sink_id="s", form="upsert", key="k"))


@pytest.mark.parametrize(
    ("kind", "own", "value", "reason"),
    [
        (pa.int64(), "DOUBLE", 2**53 + 1, "column 'v' of type DOUBLE would round 9007199254740993"),
        (pa.float64(), "REAL", float("nan"), "would keep NaN as NULL"),
        (pa.timestamp("ns"), "TIMESTAMP", 1, "fraction of 1970-01-01 00:00:00.000000001"),
        (pa.string(), "JSON", " -1.50e2\n", "would make a number of the text"),
        (pa.large_string(), "UUID", "0" * 31 + "1", "would make a number of the text"),
    ],
)
def test_what_a_column_would_change_is_refused(db, kind, own, value, reason):
    db.execute(f"CREATE TABLE x (v {own})")
    job = started(SqlSink.at_least_once(db.url, "x"), 2)
    job.write(Batch.of_columns(pa.RecordBatch.from_arrays([pa.array([None, None], kind)], names=["v"])), 1)
    with pytest.raises(TypeMismatchError, match=f"{reason}.*record 4, operator 'sink', subtask 2/2") as told:
        job.write(Batch.of_columns(pa.RecordBatch.from_arrays([pa.array([None, value], kind)], names=["v"])), 1)
    assert told.value.hint
    assert db.rows("SELECT count(v) FROM x") == [(0,)]


@pytest.mark.parametrize(
    "text", ["", ".", "1-2", "0x10", "inf", "1e", "1_000", "--1", '"1"', "[1]", "1 2", "e5", "1\u00a0"]
)
def test_texts_that_are_no_numbers_stay_texts(db, text):
    db.execute("CREATE TABLE x (v JSON)")
    job = started(SqlSink.at_least_once(db.url, "x"))
    job.write([{"v": text}])
    job.checkpoint(1)
    assert db.rows("SELECT v, typeof(v) FROM x") == [(text, "text")]


def test_a_null_key_is_refused(db):
    db.execute("CREATE TABLE words (k TEXT UNIQUE, v INTEGER)")
    job = started(SqlSink.exactly_once(db.url, "words", sink_id="s", form="upsert", key="k"))
    with pytest.raises(TypeMismatchError, match="key must not be null"):
        job.write([{"k": "a", "v": 1}, {"k": None, "v": 1}])
        job.checkpoint(1)
    assert db.rows("SELECT * FROM words") == []


# ------------------------------------------------------------------------------------------------------------ arguments
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sink_id": ""}, "sink_id must not be empty"),
        ({"form": "other"}, "form must be transactional or upsert"),
        ({"form": "upsert"}, "needs a key"),
        ({"staging": "memory"}, "staging must be"),
        ({"columns": []}, "columns must be a list"),
        ({"columns": "n"}, "columns must be a list"),
        ({"delete_column": "d"}, "delete_column needs one"),
        ({"key": "n", "columns": ["n", "d"], "delete_column": "d"}, "none of the columns"),
        ({"options": SqlExecutionOptions(batch_size=0)}, "batch_size must be at least 1"),
        ({"options": SqlExecutionOptions(max_retries=-1)}, "max_retries must be at least 0"),
        ({"table": "a.b.c"}, "table must be a name"),
        ({"connection": "sqlite://"}, "must name a file"),
        ({"connection": "sqlite:///:memory:"}, "must name a file"),
        ({"connection": "mysql://u:p4ss@h/d"}, "must begin with sqlite:, postgresql: or mariadb:; got 'mysql'"),
        ({"connection": "postgresql://u:p4ss@h"}, "must name a database"),
        ({"connection": "postgresql://u:p4ss@x@h/d"}, "without '@' and '/'"),
        ({"connection": "postgresql://u:p4/ss@h/d"}, "without '@' and '/'"),
        ({"connection": print}, "together with its dialect"),
        ({"connection": 5, "dialect": "sqlite"}, "must be a URL, or a function"),
        ({"connection": print, "dialect": "oracle"}, "dialect must be sqlite or postgresql"),
        ({"dialect": "postgresql"}, "the URL names a database of sqlite"),
    ],
)
def test_illegal_arguments_are_refused_without_credentials(options, text):
    arguments = {"connection": "sqlite:///x.db", "table": "t", "sink_id": "s", **options}
    with pytest.raises(ConfigurationError, match=text) as caught:
        SqlSink.exactly_once(arguments.pop("connection"), arguments.pop("table"), **arguments)
    assert "p4ss" not in str(caught.value)


@pytest.mark.parametrize("password", ["p4ss", "p4ss word", "p4ss%40x", "p4ss:5432"])
def test_no_repr_shows_the_url_of_a_database(password):
    sink = SqlSink.exactly_once(f"postgresql://user:{password}@host:5432/db?sslpassword=p4ss", "t", sink_id="s")
    for shown in (sink, sink._settings, sink._settings.connect, sink.__dict__):
        assert "p4ss" not in repr(shown)
    assert "host:5432/db" in repr(sink._settings.connect)


def test_no_repr_shows_what_a_function_connects_with():
    connect = functools.partial(print, "host=h password=p4ss")
    sink = SqlSink.exactly_once(connect, "t", sink_id="s", dialect="postgresql")
    assert "p4ss" not in repr(sink._settings)


def test_a_relative_path_is_the_clients(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    db = Db("here.sqlite", "CREATE TABLE t (n INTEGER)")
    sink = SqlSink.exactly_once("sqlite:///here.sqlite", "t", sink_id="s")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    job = started(sink)
    job.write([{"n": 1}])
    job.checkpoint(1)
    assert os.listdir(tmp_path / "elsewhere") == []
    monkeypatch.chdir(tmp_path)
    assert db.rows("SELECT n FROM t") == [(1,)]


def test_a_missing_driver_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    sink = SqlSink.exactly_once("postgresql://u:p@127.0.0.1:1/d", "t", sink_id="s")
    with pytest.raises(ConfigurationError, match="psycopg, which is not installed") as caught:
        SinkTestHarness(sink).start()
    assert "headrace[postgresql]" in caught.value.hint


def test_a_directory_that_cannot_be_used_is_told_after_retries(tmp_path):
    job = SinkTestHarness(SqlSink.exactly_once(f"sqlite:///{tmp_path}/no/db", "t", sink_id="s"))
    with pytest.raises(SinkError, match=r"could not use the table: OperationalError: unable to open.*attempts 8"):
        job.start()


# ------------------------------------------------------------------------------------------------- nothing is believed
def damaged(data, kind):
    """Staged rows that are not what was written."""
    if kind == "cut":
        return data[: len(data) // 2]
    if kind == "empty":
        return b""
    if kind == "no arrow":
        return b"0123456789" * 20
    if kind == "fewer rows":
        batches = pa.ipc.open_stream(data).read_all().slice(0, 1).to_batches()
    elif kind == "larger":
        batches = [pa.record_batch({"n": pa.array([0] * 10_000_000, pa.int64())})]
    else:  # offsets that point far outside of their data
        batches = [pa.record_batch({"n": [1, 2], "label": ["x" * 0x1234, ""]})]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd" if kind == "larger" else None)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    written = sink.getvalue().to_pybytes()
    offsets = (0x1234).to_bytes(4, "little") * 2
    return written.replace(offsets, b"\xff\xff\xff\x7f" * 2) if kind == "offsets" else written


@pytest.mark.parametrize("kind", ["cut", "empty", "no arrow", "fewer rows", "larger", "offsets"])
@pytest.mark.parametrize("staging", ["table", "checkpoint"])
def test_prepared_rows_are_validated_before_they_are_written(db, kind, staging):
    sink = SqlSink.exactly_once(db.url, "numbers", sink_id="s", staging=staging)
    job = started(sink)
    job.write([{"n": 1, "label": "a"}, {"n": 2, "label": "b"}])
    [committable] = job.operators[0]._writer.prepare(1)
    committer = job.operators[0]._commits._committer
    if staging == "table":
        [(data,)] = db.rows("SELECT data FROM headrace_staged")
        with contextlib.closing(sqlite3.connect(db.path)) as connection, connection:
            connection.execute("UPDATE headrace_staged SET data = ?", (damaged(data, kind),))
    else:
        committable["data"] = [damaged(committable["data"][0], kind)]
    expected = PossibleLossError if staging == "table" else CheckpointCorruptError
    with pytest.raises(expected, match=r"decoded|damaged"):
        committer.commit(committable)
    assert db.rows("SELECT n FROM numbers") == []
    assert db.rows("SELECT * FROM headrace_commits") == []


@pytest.mark.parametrize(
    "changes",
    [{"rows": "1"}, {"txn": None}, {"data": [5]}, {"data": b"x"}, {"checkpoint_id": True}, {"more": 1}, {"rows": -1}],
)
def test_a_checkpoint_holds_what_a_sql_sink_prepares_or_is_refused(db, changes):
    job = started(SqlSink.exactly_once(db.url, "numbers", sink_id="s"))
    job.write([{"n": 1, "label": "a"}])
    [committable] = job.operators[0]._writer.prepare(1)
    committer = job.operators[0]._commits._committer
    for wrong in ({**committable, **changes}, ["no", "mapping"], None):
        with pytest.raises(CheckpointMismatchError, match="not a SQL sink's"):
            committer.commit(wrong)
    assert db.rows("SELECT n FROM numbers") == []
