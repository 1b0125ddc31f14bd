"""Where pages of a table and its log meet in corners: commits that nobody sees yet, keys of unusual order, and rows
that only one of both would have.

Risks and families: lost and doubled rows (differential: the table itself).
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter

import pytest
from followed_table import followed, table  # noqa: F401 - a fixture
from postgresql_server import postgresql  # noqa: F401 - a fixture

from headrace.connectors.postgres_cdc.chunks import TableKey
from headrace.engine.columns.records import RowKind
from headrace.engine.connectors.contract import EnumeratorContext
from headrace.engine.errors import ConfigurationError, SourceError
from headrace.testing import SourceTestHarness


def values_of(job, column):
    """How often each value of a column is there, by the changes."""
    found = Counter()
    for row, kind in zip(job.rows, job.kinds, strict=True):
        found[row[column]] += -1 if kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE) else 1
    return {value: count for value, count in found.items() if count}


def wait_until(server, query):
    while not server.rows(query):
        pass


@pytest.fixture
def standby_that_is_away(postgresql):  # noqa: F811
    """A commit with ``synchronous_commit = on`` waits for a standby, until this is ended."""
    postgresql.execute(
        "ALTER ROLE headrace SET synchronous_commit = local",
        "ALTER SYSTEM SET synchronous_standby_names = 'nobody'",
        "SELECT pg_reload_conf()",
    )

    def end():
        postgresql.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")

    yield end
    end()
    postgresql.execute("ALTER ROLE headrace RESET synchronous_commit")


def test_a_commit_before_the_slot_that_nobody_sees_yet_is_waited_for(
    postgresql,  # noqa: F811
    table,  # noqa: F811
    standby_that_is_away,
):
    """Its commit is in the log before the slot's place, and it waits for a standby when the pages would be read."""
    postgresql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    job = SourceTestHarness(followed(postgresql, table, {"id": "int32"}))
    start = threading.Thread(target=job.start)

    def wait_for_slot_behind(connection):
        (xid,) = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
        waits = f"SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND transactionid = '{xid}'"
        return lambda: wait_until(postgresql, waits)

    def insert():
        with postgresql.connect() as connection:
            connection.execute("SET synchronous_commit = on")
            connection.execute(f"INSERT INTO {table} VALUES (1)")

    writer = threading.Thread(target=insert)
    with postgresql.connect() as one, postgresql.connect() as other:
        one.execute("BEGIN")
        waits = wait_for_slot_behind(one)
        start.start()  # the slot is made in two steps: each waits for all who are writing
        waits()
        other.execute("BEGIN")
        waits = wait_for_slot_behind(other)
        one.execute("COMMIT")
        waits()
        writer.start()
        wait_until(postgresql, "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        other.execute("COMMIT")
    try:
        is_waiting = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        while start.is_alive() and not postgresql.rows(is_waiting):
            pass
        assert start.is_alive(), "pages are read although a commit is in neither"
        standby_that_is_away()
        start.join()
        writer.join()
        job.read_number(1)
        assert [row["id"] for row in job.rows] == [1]
    finally:
        standby_that_is_away()
        start.join()
        writer.join()
        job.close()


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("DATE", ["0044-03-15 BC", "0001-01-01 BC", "0001-01-01", "2024-02-29", "9999-12-31", "10000-01-01"]),
        ("TIMESTAMP", ["-infinity", "0044-03-15 12:00:00 BC", "0044-03-15 12:00:00.5 BC", "20240-01-01", "infinity"]),
        ("TIMESTAMPTZ", ["2024-01-01 00:00:00+00", "2024-01-01 00:00:00.5+00", "10000-01-01 00:00:00+00"]),
        ("NUMERIC", ["-Infinity", "-1.5", "0", "1.50", "10", "1e30", "Infinity", "NaN"]),
        ("TEXT", ["", "A", "Z", "a", "z", "ä", "\ufffd", "\U0001f600"]),
        ("BYTEA", ["\\x", "\\x00", "\\x0000", "\\x01", "\\xff"]),
    ],
)
def test_keys_have_the_same_order_here_as_in_the_database(kind, keys, postgresql, table):  # noqa: F811
    postgresql.execute(f"CREATE TABLE {table} (id {kind} PRIMARY KEY)")
    with postgresql.connect() as connection:
        for number in range(len(keys)):
            connection.execute(f"INSERT INTO {table} VALUES (%s::{kind})", (keys[-1 - number],))
    ((name,),) = postgresql.rows(f"SELECT format_type('{kind}'::regtype, NULL)")
    key = TableKey(((name, name),))
    key.require_order(table, "UTF8")
    collation = 'COLLATE "C"' if kind == "TEXT" else ""
    texts = [text for (text,) in postgresql.rows(f"SELECT id::text AS said FROM {table} ORDER BY id {collation}")]
    places = [key.place([text]) for text in texts]
    assert len(places) == len(keys)
    assert all(before < after for before, after in itertools.pairwise(places))


def test_chunks_are_of_one_size(postgresql, table):  # noqa: F811
    """Numbers are cut by their order, not by that of their texts."""
    postgresql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    postgresql.execute(f"INSERT INTO {table} SELECT generate_series(1, 120)")
    source = followed(postgresql, table, {"id": "int32"}, chunk_size=25)
    found = source.create_enumerator(EnumeratorContext(1)).discover()
    ranges = [(split.payload["above"], split.payload["upto"]) for split in found.splits]
    ends = [["25"], ["50"], ["75"], ["100"]]
    assert ranges == list(zip([None, *ends], [*ends, None], strict=True))


@pytest.mark.parametrize(("encoding", "is_cut"), [("UTF8", True), ("LATIN1", True), ("WIN1252", False)])
def test_texts_are_cut_where_their_order_is_ours(encoding, is_cut):
    key = TableKey((("id", "integer"), ("name", "text")))
    if is_cut:
        key.require_order("t", encoding)
    else:
        with pytest.raises(ConfigurationError, match="encoding is WIN1252"):
            key.require_order("t", encoding)


def test_rows_of_years_beyond_four_digits_come_once(postgresql, table):  # noqa: F811
    """The change is behind a page that does not have it; by the order of texts another page would."""
    postgresql.execute(
        f"CREATE TABLE {table} (id DATE PRIMARY KEY, v TEXT)",
        f"ALTER TABLE {table} REPLICA IDENTITY FULL",
        f"INSERT INTO {table} VALUES ('0100-01-01 BC', 'a'), ('2024-01-01', 'b'), ('5000-01-01', 'c'),"
        " ('10000-01-01', 'd'), ('20000-01-01', 'e')",
    )
    job = SourceTestHarness(followed(postgresql, table, {"v": "string"}, chunk_size=2))
    try:
        job.start()
        for number in range(1, 9):
            job.read_number(min(number, 5), 1)
            postgresql.execute(f"UPDATE {table} SET v = v || '{number}'")
        job.survive(lambda: values_of(job, "v") == dict.fromkeys([f"{one}12345678" for one in "abcde"], 1))
    finally:
        job.close()


def test_large_keys_that_an_update_leaves_are_known(postgresql, table):  # noqa: F811
    """They are stored beside the row, and the log has them as part of the old key alone."""
    postgresql.execute(
        f"CREATE TABLE {table} (id TEXT PRIMARY KEY, v INT)",
        f"ALTER TABLE {table} ALTER COLUMN id SET STORAGE EXTERNAL",
    )
    source = followed(postgresql, table, {"id": "string", "v": "int32"}, changelog_mode="upsert")
    job = SourceTestHarness(source)
    try:
        job.start()
        job.rest()
        postgresql.execute(
            f"INSERT INTO {table} SELECT string_agg(md5(n::text), ''), 1 FROM generate_series(1, 80) n",
            f"UPDATE {table} SET v = 2",
        )
        job.read_number(2)
        assert [(len(row["id"]), row["v"]) for row in job.rows] == [(2560, 1), (2560, 2)]
    finally:
        job.close()


def test_only_rows_of_the_table_itself_are_read(postgresql, table):  # noqa: F811
    """Tables that inherit from it have logs of their own."""
    postgresql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY)",
        f"ALTER TABLE {table} REPLICA IDENTITY FULL",
        f"CREATE TABLE {table}_child () INHERITS ({table})",
        f"INSERT INTO {table}_child VALUES (1)",
        f"INSERT INTO {table} VALUES (2)",
    )
    job = SourceTestHarness(followed(postgresql, table, {"id": "int32"}))
    try:
        job.start()
        job.read_number(1)
        postgresql.execute(f"INSERT INTO {table}_child VALUES (3)", f"INSERT INTO {table} VALUES (4)")
        job.read_number(2)
        assert [row["id"] for row in job.rows] == [2, 4]
    finally:
        job.close()
        postgresql.execute(f"DROP TABLE {table}_child")


def test_rows_that_a_policy_hides_are_an_error(postgresql, table):  # noqa: F811
    """The log has all rows, so pages must have all of them."""
    postgresql.execute(
        f"CREATE ROLE reader_of_{table} LOGIN REPLICATION PASSWORD 's3cret'",
        f"CREATE TABLE {table} (id INT PRIMARY KEY)",
        f"ALTER TABLE {table} REPLICA IDENTITY FULL",
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY few ON {table} USING (id = 1)",
        f"GRANT SELECT ON {table} TO reader_of_{table}",
        f"CREATE PUBLICATION headrace_slot_of_{table} FOR TABLE {table}",
        f"INSERT INTO {table} VALUES (1), (2)",
    )
    job = SourceTestHarness(followed(postgresql, table, {"id": "int32"}, username=f"reader_of_{table}"))
    try:
        with pytest.raises(SourceError, match="row-level security"):
            job.start()
            job.read_number(2)
    finally:
        job.close()
        postgresql.execute(f"DROP OWNED BY reader_of_{table}", f"DROP ROLE reader_of_{table}")


def test_a_table_that_is_renamed_is_an_error(postgresql, table):  # noqa: F811
    """Its changes go on under another name, and its columns may be others behind it."""
    postgresql.execute(
        f"CREATE TABLE {table} (x INT, id INT PRIMARY KEY, v INT)",
        f"ALTER TABLE {table} REPLICA IDENTITY FULL",
        f"INSERT INTO {table} VALUES (0, 1, 1)",
    )
    job = SourceTestHarness(followed(postgresql, table, {"id": "int32"}, heartbeat_interval="1000 h"))
    try:
        job.start()
        job.read_number(1)
        postgresql.execute(f"INSERT INTO {table} VALUES (0, 2, 2)")
        job.read_number(2)
        postgresql.execute(
            f"ALTER TABLE {table} RENAME TO {table}_old",
            f"ALTER TABLE {table}_old DROP COLUMN x",
            f"INSERT INTO {table}_old VALUES (3, 33)",
        )
        with pytest.raises(SourceError, match=r"is called .*_old.* now"):
            job.read_number(3)
    finally:
        job.close()
        postgresql.execute(f"DROP TABLE {table}_old")


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER PUBLICATION headrace_slot_of_{t} DROP TABLE {t}", "does not publish table"),
        ("ALTER PUBLICATION headrace_slot_of_{t} SET (publish = 'insert')", "leaves out some kinds of changes"),
        ("DROP PUBLICATION headrace_slot_of_{t}", "there is no publication"),
        ("DROP TABLE {t}; CREATE TABLE {t} (id INT PRIMARY KEY)", "does not publish table"),
    ],
)
def test_a_publication_that_has_changed_is_an_error(statement, expected, postgresql, table):  # noqa: F811
    """Changes would be missing in silence."""
    postgresql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    job = SourceTestHarness(followed(postgresql, table, {"id": "int32"}, heartbeat_interval="1 s"))
    try:
        job.start()
        postgresql.execute(f"INSERT INTO {table} VALUES (1)")
        job.read_number(1)
        postgresql.execute(statement.format(t=table))
        with pytest.raises((SourceError, ConfigurationError), match=expected):
            job.read_number(2)
    finally:
        job.close()


def test_a_publication_through_a_partitions_root_is_refused(postgresql, table):  # noqa: F811
    """It tells changes of a partition as such of its root."""
    postgresql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY) PARTITION BY RANGE (id)",
        f"CREATE TABLE {table}_low PARTITION OF {table} FOR VALUES FROM (0) TO (10)",
        f"ALTER TABLE {table}_low REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION headrace_slot_of_{table}_low FOR TABLE {table} WITH (publish_via_partition_root)",
    )
    job = SourceTestHarness(followed(postgresql, f"{table}_low", {"id": "int32"}))
    try:
        with pytest.raises(ConfigurationError, match="publish_via_partition_root"):
            job.start()
    finally:
        job.close()
        postgresql.execute(f"DROP PUBLICATION headrace_slot_of_{table}_low")
