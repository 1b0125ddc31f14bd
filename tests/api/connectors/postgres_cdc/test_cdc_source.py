"""A table of PostgreSQL that is followed, against a real server: what comes is what psql would say, at every moment.

Risks and families: lost and doubled changes between chunks and the log (differential: the table itself, while others
write); values (oracle: the database's own text); what cannot be followed (errors by name); the slot.
"""

from __future__ import annotations

import datetime
import random
from collections import Counter
from decimal import Decimal

import numpy as np
import pytest
from followed_table import followed, table  # noqa: F401 - a fixture
from postgresql_server import postgresql  # noqa: F401 - a fixture

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.postgres_cdc.chunks import PagesSeen, TableKey, Visibility
from headrace.engine.columns.records import RowKind
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, SourceError, TypeMismatchError
from headrace.testing import SourceTestHarness

NAMES = {0: "+I", 1: "-U", 2: "+U", 3: "-D"}


def table_of(job, *, key=None):
    """What the changes come to: rows, or with a key of upserts the last row of each."""
    if key is None:
        found = Counter()
        for row, kind in zip(job.rows, job.kinds, strict=True):
            found[tuple(row.values())] += -1 if kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE) else 1
            assert found[tuple(row.values())] >= 0, f"taken back before it came: {row}"
            assert found[tuple(row.values())] <= 1, f"came twice: {row}"
        return +found
    last = {}
    for row, kind in zip(job.rows, job.kinds, strict=True):
        last.pop(row[key], None)
        if kind != RowKind.DELETE:
            last[row[key]] = tuple(row.values())
    return Counter(last.values())


def changes(job):
    return [(NAMES[kind], *row.values()) for row, kind in zip(job.rows, job.kinds, strict=True)]


class Writer:
    """Inserts, updates (also of keys) and deletes rows at random, in transactions of some of them."""

    def __init__(self, server, name, seed):
        self._connection = server.connect()
        self._name = name
        self._rng = random.Random(seed)

    def write(self, num_transactions):
        rng = self._rng
        for _ in range(num_transactions):
            with self._connection.transaction():
                for _ in range(rng.randrange(1, 5)):
                    key, other, value = rng.randrange(60), rng.randrange(60), rng.randrange(10_000)
                    statement = rng.choice(
                        [
                            f"INSERT INTO {self._name} VALUES ({key}, {value})"
                            f" ON CONFLICT (id) DO UPDATE SET v = {value}",
                            f"UPDATE {self._name} SET v = {value} WHERE id = {key}",
                            f"DELETE FROM {self._name} WHERE id = {key}",
                            f"UPDATE {self._name} SET id = {key} WHERE id = {other}"
                            f" AND NOT EXISTS (SELECT FROM {self._name} WHERE id = {key})",
                        ]
                    )
                    self._connection.execute(statement)


@pytest.mark.parametrize("mode", ["all", "upsert"])
@pytest.mark.parametrize("seed", range(4))
def test_chunks_and_log_fit_together_while_others_write(seed, mode, postgresql, table):  # noqa: F811
    """Between any two polls somebody writes; readers are killed, and go on with others."""
    postgresql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
    if mode == "all":
        postgresql.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    writer, rng = Writer(postgresql, table, seed), random.Random(seed)
    writer.write(60)
    source = followed(postgresql, table, {"id": "int32", "v": "int32"}, changelog_mode=mode, chunk_size=6)
    job = SourceTestHarness(source, 2)
    try:
        job.start()
        for _ in range(60):
            if not job.try_step(rng.randrange(1, 6)):
                continue
            writer.write(rng.randrange(3))
            if rng.random() < 0.3:
                job.checkpoint(completes=rng.random() < 0.7)
            if rng.random() < 0.1:
                job.start(rng.randrange(1, 4), fresh=rng.random() < 0.5)
        expected = Counter(postgresql.rows(f"SELECT id, v FROM {table}"))
        key = "id" if mode == "upsert" else None
        job.survive(lambda: table_of(job, key=key) == expected)
        job.rest()
        assert table_of(job, key=key) == expected
    finally:
        job.close()


def test_changes_are_told_in_their_order_with_their_kinds(postgresql, table):  # noqa: F811
    postgresql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v TEXT)",
        f"ALTER TABLE {table} REPLICA IDENTITY FULL",
        f"INSERT INTO {table} VALUES (1, 'a'), (2, NULL)",
    )
    job = SourceTestHarness(followed(postgresql, table, {"id": "int32", "v": "string"}))
    try:
        job.start()
        job.read_number(2)
        with postgresql.connect() as connection, connection.transaction():
            connection.execute(f"UPDATE {table} SET v = 'b' WHERE id = 2")
            connection.execute(f"UPDATE {table} SET id = 3 WHERE id = 1")
            connection.execute(f"DELETE FROM {table} WHERE id = 2")
        postgresql.execute(f"INSERT INTO {table} VALUES (4, 'ä')")
        job.read_number(8)
        assert changes(job) == [
            ("+I", 1, "a"), ("+I", 2, None), ("-U", 2, None), ("+U", 2, "b"), ("-D", 1, "a"), ("+I", 3, "a"),
            ("-D", 2, "b"), ("+I", 4, "ä"),
        ]  # fmt: skip
    finally:
        job.close()


def test_a_column_may_say_what_each_change_is(postgresql, table, tmp_path):  # noqa: F811
    """A program on streams: plain rows, to which any function may be applied."""
    postgresql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"ALTER TABLE {table} REPLICA IDENTITY FULL",
        f"INSERT INTO {table} VALUES (1, 10)",
    )  # fmt: skip
    source = followed(postgresql, table, {"id": "int32", "v": "int32"}, kind_column="op")
    found = []
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.enable_checkpointing(50, directory=str(tmp_path))
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "followed").map(lambda row: dict(row))
        with stream.execute_and_collect() as rows:
            found.append(next(rows))
            postgresql.execute(f"UPDATE {table} SET v = 20", f"DELETE FROM {table}")
            found += [next(rows) for _ in range(3)]
    assert found == [
        {"id": 1, "v": 10, "op": "+I"}, {"id": 1, "v": 10, "op": "-U"}, {"id": 1, "v": 20, "op": "+U"},
        {"id": 1, "v": 20, "op": "-D"},
    ]  # fmt: skip


def test_a_large_transaction_is_gone_on_with_in_its_middle(postgresql, table):  # noqa: F811
    """A checkpoint within a transaction, a new reader: the rest of it comes, and nothing twice."""
    postgresql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    job = SourceTestHarness(followed(postgresql, table, {"id": "int32"}))
    try:
        job.start()
        job.rest()
        postgresql.execute(f"INSERT INTO {table} SELECT generate_series(1, 50)")
        for goal in (7, 14, 30, 50):
            job.read_number(goal, 7)
            job.checkpoint()
            job.start()
        job.rest()
        assert [row["id"] for row in job.rows] == list(range(1, 51))
    finally:
        job.close()


VALUES = {
    "b": ("BOOLEAN", "bool", "true", True),
    "i2": ("SMALLINT", "int16", "-32768", -32768),
    "i8": ("BIGINT", "int64", "9223372036854775807", 2**63 - 1),
    "f4": ("REAL", "float32", "0.1", float(np.float32(0.1))),
    "f8": ("DOUBLE PRECISION", "float64", "'-Infinity'", float("-inf")),
    "d": ("NUMERIC(20, 5)", "decimal128(20, 5)", "123456789012345.12345", Decimal("123456789012345.12345")),
    "t": ("TEXT", "string", "'ä, \"{}\\\\'", 'ä, "{}\\\\'),
    "c": ("CHAR(4)", "string", "'ab'", "ab  "),
    "by": ("BYTEA", "binary", "'\\x00ff'", b"\x00\xff"),
    "da": ("DATE", "date32", "'0099-02-28'", datetime.date(99, 2, 28)),
    "ti": ("TIME", "time64[us]", "'23:59:59.5'", datetime.time(23, 59, 59, 500_000)),
    "ts": (
        "TIMESTAMP",
        "timestamp[us]",
        "'2024-02-29 12:00:00.000001'",
        datetime.datetime.fromisoformat("2024-02-29T12:00:00.000001"),
    ),
    "u": ("UUID", "string", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "j": ("JSONB", "string", "'{\"a\": [1, null]}'", '{"a": [1, null]}'),
    "e": ("mood", "string", "'so so'", "so so"),
    "iv": ("INTERVAL", "string", "'1 day 02:00'", "1 day 02:00:00"),
}


def test_values_are_exact_in_the_table_and_in_its_log(postgresql, table):  # noqa: F811
    import pyarrow as pa

    more = {
        "tz": ("TIMESTAMPTZ", pa.timestamp("us", "UTC"), "'2024-07-01 12:00+02'", None),
        "ai": ("INT[]", pa.list_(pa.int32()), "'{1,NULL,3}'", [1, None, 3]),
        "at": (
            "TEXT[]",
            pa.list_(pa.string()),
            """ARRAY['a,b', 'NULL', NULL, '"q\\', '']""",
            ["a,b", "NULL", None, '"q\\', ""],
        ),
        "ad": ("NUMERIC[]", pa.list_(pa.decimal128(6, 2)), "'{1.50}'", [Decimal("1.50")]),
        "ae": ("DATE[]", pa.list_(pa.date32()), "'{}'", []),
    }
    kinds = {
        "decimal128(20, 5)": pa.decimal128(20, 5),
        "time64[us]": pa.time64("us"),
        "timestamp[us]": pa.timestamp("us"),
    }
    columns = {**VALUES, **more}
    postgresql.execute("DROP TYPE IF EXISTS mood CASCADE", "CREATE TYPE mood AS ENUM ('so so')")
    declared = ", ".join(f"{name} {one[0]}" for name, one in columns.items())
    postgresql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, {declared})", f"ALTER TABLE {table} REPLICA IDENTITY FULL"
    )
    values = ", ".join(one[2] for one in columns.values())
    nulls = ", ".join("NULL" for _ in columns)
    postgresql.execute(f"INSERT INTO {table} VALUES (1, {values}), (2, {nulls})")
    schema = pa.schema(
        [("id", pa.int32())]
        + [(name, kinds.get(one[1]) or (one[1] if isinstance(one[1], pa.DataType) else pa.type_for_alias(one[1])))
           for name, one in columns.items()]
    )  # fmt: skip
    job = SourceTestHarness(followed(postgresql, table, schema))
    try:
        job.start()
        job.read_number(2)
        postgresql.execute(f"INSERT INTO {table} VALUES (3, {values}), (4, {nulls})")
        job.read_number(4)
        expected = {name: one[3] for name, one in columns.items()}
        expected["tz"] = datetime.datetime(2024, 7, 1, 10, tzinfo=datetime.timezone.utc)
        for number, row in enumerate(job.rows, 1):
            assert row.pop("id") == number
            found = dict(row)
            wanted = expected if number % 2 else dict.fromkeys(columns)
            assert {k: v for k, v in found.items() if k != "tz"} == {k: v for k, v in wanted.items() if k != "tz"}
            assert (found["tz"] is None) == (wanted["tz"] is None)
            assert found["tz"] is None or found["tz"] == wanted["tz"]
    finally:
        job.close()
        postgresql.execute("DROP TYPE mood CASCADE")


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("NUMERIC", "decimal128(6, 2)", "1.005"),
        ("NUMERIC", "decimal128(6, 2)", "'NaN'"),
        ("BIGINT", "int32", "3000000000"),
        ("DATE", "date32", "'infinity'"),
        ("TIMESTAMP", "timestamp[ms]", "'2024-01-01 00:00:00.0001'"),
        ("TIME", "time64[us]", "'24:00'"),
    ],
)
def test_what_a_type_cannot_hold_is_an_error_with_its_place(column, kind, value, postgresql, table):  # noqa: F811
    import pyarrow as pa

    kinds = {
        "decimal128(6, 2)": pa.decimal128(6, 2),
        "time64[us]": pa.time64("us"),
        "timestamp[ms]": pa.timestamp("ms"),
    }
    postgresql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v {column})", f"ALTER TABLE {table} REPLICA IDENTITY FULL"
    )
    job = SourceTestHarness(
        followed(postgresql, table, pa.schema({"id": pa.int32(), "v": kinds.get(kind) or pa.type_for_alias(kind)}))
    )
    try:
        job.start()
        job.rest(20)
        postgresql.execute(f"INSERT INTO {table} VALUES (1, NULL), (2, {value})")
        with pytest.raises(TypeMismatchError, match="column 'v' has a value that is no") as caught:
            job.read_number(3)
        assert caught.value.context["split"] == "log"
        assert caught.value.context["position"].endswith("change 2")
    finally:
        job.close()


# ---------------------------------------------------------------------------------------------- what cannot be followed
def message_of(source, kind=ConfigurationError):
    job = SourceTestHarness(source)
    try:
        with pytest.raises(kind) as caught:
            job.start()
        return str(caught.value)
    finally:
        job.close()


def test_tables_that_cannot_be_followed_are_refused_by_name(postgresql, table):  # noqa: F811
    schema = {"id": "int32", "v": "string"}
    assert "there is no table" in message_of(followed(postgresql, table, schema))
    postgresql.execute(f"CREATE TABLE {table} (id INT, v TEXT)")
    assert "has no primary key" in message_of(followed(postgresql, table, schema))
    postgresql.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (id)")
    assert "REPLICA IDENTITY FULL" in message_of(followed(postgresql, table, schema))
    assert "no column 'w'" in message_of(followed(postgresql, table, {"id": "int32", "w": "string"}))
    assert "is text in the database" in message_of(
        followed(postgresql, table, {"id": "int32", "v": "int32"}), TypeMismatchError
    )
    postgresql.execute(f"ALTER TABLE {table} REPLICA IDENTITY NOTHING")
    assert "REPLICA IDENTITY NOTHING" in message_of(followed(postgresql, table, schema, changelog_mode="upsert"))
    postgresql.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, ADD PRIMARY KEY (v), REPLICA IDENTITY FULL")
    postgresql.execute(f"ALTER TABLE {table} ALTER v TYPE CHAR(3)")
    assert "cannot be cut into chunks" in message_of(followed(postgresql, table, schema))
    assert not postgresql.rows(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = 'slot_of_{table}'")


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER TABLE {} DROP COLUMN v", "has changed: it has no column 'v'"),
        ("ALTER TABLE {} RENAME COLUMN v TO w", "has changed: it has no column 'v'"),
        ("ALTER TABLE {} ALTER COLUMN v TYPE INT USING 1", "'v' is integer in the database"),
        ("ALTER TABLE {} REPLICA IDENTITY DEFAULT", "REPLICA IDENTITY"),
        ("TRUNCATE {}", "was truncated"),
        ("ALTER TABLE {} ADD COLUMN w INT", None),
    ],
)
def test_schema_changes_are_errors_with_their_place(statement, expected, postgresql, table):  # noqa: F811
    postgresql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v TEXT)", f"ALTER TABLE {table} REPLICA IDENTITY FULL"
    )
    job = SourceTestHarness(followed(postgresql, table, {"id": "int32", "v": "string"}))
    try:
        job.start()
        job.rest(20)
        postgresql.execute(f"INSERT INTO {table} VALUES (1, 'a')")
        job.read_number(1)
        postgresql.execute(statement.format(table), f"INSERT INTO {table} (id) VALUES (2)")
        if expected is None:
            job.read_number(2)
            return
        with pytest.raises((SourceError, TypeMismatchError)) as caught:
            job.read_number(9)
        assert expected in str(caught.value)
        assert caught.value.context["split"] == "log"
        assert caught.value.context["position"].startswith("log ")
    finally:
        job.close()


@pytest.mark.parametrize("mode", ["all", "upsert"])
def test_large_values_that_an_update_leaves_are_there_or_are_refused(mode, postgresql, table):  # noqa: F811
    """With the whole old row in the log they are known; with the key alone nobody could know them."""
    postgresql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, v TEXT)",
        f"ALTER TABLE {table} ALTER v SET STORAGE EXTERNAL",
        f"ALTER TABLE {table} REPLICA IDENTITY {'FULL' if mode == 'all' else 'DEFAULT'}",
    )
    source = followed(postgresql, table, {"id": "int32", "n": "int32", "v": "string"}, changelog_mode=mode)
    job = SourceTestHarness(source)
    try:
        job.start()
        job.rest(20)
        postgresql.execute(f"INSERT INTO {table} VALUES (1, 1, repeat('x', 9000))", f"UPDATE {table} SET n = 2")
        if mode == "upsert":
            with pytest.raises(SourceError, match="large value of column 'v'"):
                job.read_number(2)
            return
        job.read_number(3)
        assert [(one[0], one[2], len(one[3])) for one in changes(job)] == [
            ("+I", 1, 9000),
            ("-U", 1, 9000),
            ("+U", 2, 9000),
        ]
    finally:
        job.close()


# ----------------------------------------------------------------------------------------------------------- the slot
def confirmed(server, name):
    what = "pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')"
    query = f"SELECT {what} FROM pg_replication_slots WHERE slot_name = 'slot_of_{name}'"
    return server.rows(query)[0][0]


def started(postgresql, table, **options):  # noqa: F811
    postgresql.execute(
        f"CREATE TABLE IF NOT EXISTS {table} (id INT PRIMARY KEY)", f"ALTER TABLE {table} REPLICA IDENTITY FULL"
    )
    job = SourceTestHarness(followed(postgresql, table, {"id": "int32"}, **options))
    job.start()
    return job


def test_the_slot_goes_on_behind_complete_checkpoints_only_and_also_where_nothing_changes(postgresql, table):  # noqa: F811
    job = started(postgresql, table, heartbeat_interval=100)
    try:
        job.rest(20)
        at_first = confirmed(postgresql, table)
        postgresql.execute(f"INSERT INTO {table} VALUES (1)")
        job.read_number(1)
        pending = job.checkpoint(completes=False)
        job.rest()
        assert confirmed(postgresql, table) == at_first
        job.complete_checkpoint(pending)
        job.read(lambda: confirmed(postgresql, table) > at_first)
        # Another table changes, and this one does not: its log is let go, too.
        postgresql.execute(
            f"CREATE TABLE {table}_other AS SELECT generate_series(1, 1000)", f"DROP TABLE {table}_other"
        )
        (end,) = postgresql.rows("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")[0]

        def has_gone_on():
            job.checkpoint()
            return confirmed(postgresql, table) >= end

        job.read(has_gone_on)
    finally:
        job.close()


def test_a_slot_without_a_bound_is_told_in_the_jobs_history(postgresql, table):  # noqa: F811
    for bound, num_warnings in (("1GB", 0), ("-1", 1)):
        postgresql.execute(f"ALTER SYSTEM SET max_slot_wal_keep_size = '{bound}'", "SELECT pg_reload_conf()")
        while postgresql.rows("SHOW max_slot_wal_keep_size") != [(bound,)]:
            pass  # the server takes it up a moment later
        job = started(postgresql, table)
        try:
            job.survive(lambda: job.complete > 0)
            job.rest()
            told = [value for _, value in job.reports if "max_slot_wal_keep_size" in str(value)]
            assert len(told) == num_warnings
        finally:
            job.close()
            postgresql.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_an_older_checkpoint_than_the_slot_knows_is_refused(postgresql, table):  # noqa: F811
    job = started(postgresql, table)
    try:
        job.rest(20)
        older = job.checkpoint(notifies=False)
        before = confirmed(postgresql, table)
        postgresql.execute(f"INSERT INTO {table} VALUES (1)")
        job.read_number(1)
        job.rest()
        job.checkpoint()
        job.read(lambda: confirmed(postgresql, table) > before)
        job.start(checkpoint_id=older)
        with pytest.raises(CheckpointMismatchError, match="has gone on to"):
            job.read_number(2)
    finally:
        job.close()


def test_a_slot_that_is_gone_or_anothers_is_an_error(postgresql, table, monkeypatch):  # noqa: F811
    job = started(postgresql, table)
    try:
        job.rest(20)
        job.checkpoint()
        other = SourceTestHarness(followed(postgresql, table, {"id": "int32"}, startup_mode="committed-offset"))
        for _ in range(4):
            if not other.try_step():
                break
        assert any("is read by another" in note for note in other.notes), other.notes
        other.close()
        job.close()
        postgresql.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
            f" WHERE slot_name = 'slot_of_{table}'",
            f"SELECT pg_drop_replication_slot('slot_of_{table}')",
        )
        job.start()
        with pytest.raises(SourceError, match="is gone: what has changed since cannot be had"):
            job.read_number(1)
    finally:
        job.close()


@pytest.mark.parametrize("mode", ["latest-offset", "committed-offset"])
def test_reading_may_begin_with_the_log(mode, postgresql, table):  # noqa: F811
    job = started(postgresql, table)
    job.rest(20)
    job.close()
    postgresql.execute(f"INSERT INTO {table} VALUES (1)")
    job = SourceTestHarness(followed(postgresql, table, {"id": "int32"}, startup_mode=mode))
    try:
        job.survive(lambda: job.complete > 0)
        job.rest(20)
        postgresql.execute(f"INSERT INTO {table} VALUES (2)")
        job.survive(lambda: {"id": 2} in job.rows)
        assert [row["id"] for row in job.rows] == ([2] if mode == "latest-offset" else [1, 2])
    finally:
        job.close()


# ------------------------------------------------------------------------------------------------------------ the parts
def test_visibility_knows_running_transactions_and_rounds_of_their_numbers():
    one = Visibility.parse("100:105:101,103")
    assert [xid for xid in range(98, 107) if one.sees(xid)] == [98, 99, 100, 102, 104]
    late = Visibility.parse(f"{(1 << 32) + 5}:{(1 << 32) + 8}:")
    assert late.sees(4294967290), "of the round before"
    assert late.sees(7)
    assert not late.sees(8)
    early = Visibility.parse(f"{(1 << 32) - 9}:{(1 << 32) - 4}:")
    assert not early.sees(3), "of the next round"


def test_pages_are_found_by_keys_in_the_order_of_the_database():
    key = TableKey((("a", "text"), ("b", "numeric")))
    pages = [
        {"upto": None, "sees": "30:30:", "lsn": 3},
        {"upto": ["Z", "10"], "sees": "10:10:", "lsn": 1},
        {"upto": ["a", "2"], "sees": "20:20:", "lsn": 2},
    ]
    seen = PagesSeen(key, pages)
    assert [seen.has(one, 15) for one in (["Z", "9"], ["Z", "10"], ["Z", "11"], ["a", "2.5"])] == [
        False,
        False,
        True,
        True,
    ]
    assert seen.last_lsn == 3
    assert (seen.all_see(9), seen.all_see(15)) == (True, False)
