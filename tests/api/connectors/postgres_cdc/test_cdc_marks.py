"""Families: what a followed table's log does not say (against a real server: each way to lose some).

Every gap is closed again before the reader looks, so that nothing is wrong any more but what is missing.
"""

from __future__ import annotations

import pytest
from followed_table import followed, table  # noqa: F401 - a fixture
from postgresql_server import postgresql  # noqa: F401 - a fixture
from reading_kit import read_some, reader_of

from headrace.connectors.postgres_cdc.pgoutput import lsn_of
from headrace.engine.connectors.contract import Split
from headrace.engine.errors import SourceError
from headrace.testing import SourceTestHarness


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (("ALTER TABLE {t} DROP COLUMN v", "ALTER TABLE {t} ADD COLUMN v TEXT DEFAULT 'z'"), "dropped and added again"),
        (("ALTER TABLE {t} ALTER v TYPE TEXT USING upper(v)",), "was rewritten by ALTER TABLE"),
        (("VACUUM FULL {t}",), None),
        (("ALTER TABLE {t} ALTER v SET DEFAULT 'd'",), None),
        (("DROP TABLE {t}", "CREATE TABLE {t} (id INT PRIMARY KEY, v TEXT)", "{gap}"), "another one of its name"),
        (("ALTER PUBLICATION {p} DROP TABLE {t}", "{gap}", "ALTER PUBLICATION {p} ADD TABLE {t}"), "altered or made"),
        (
            ("ALTER PUBLICATION {p} SET (publish = 'update')", "{gap}", "ALTER PUBLICATION {p} SET (publish = {all})"),
            "altered or made again",
        ),
        (
            ("ALTER PUBLICATION {p} SET TABLE {t} WHERE (id > 5)", "{gap}", "ALTER PUBLICATION {p} SET TABLE {t}"),
            "altered or made again",
        ),
        (("DROP PUBLICATION {p}", "CREATE PUBLICATION {p} FOR TABLE {t}"), "altered or made again"),
        (("CREATE TABLE {t}_2 (id INT)", "ALTER PUBLICATION {p} ADD TABLE {t}_2", "DROP TABLE {t}_2"), None),
    ],
)
@pytest.mark.parametrize("mode", ["all", "upsert"])
def test_what_the_log_keeps_silent_about_is_noticed(mode, statements, expected, postgresql, table):  # noqa: F811
    """All between two heartbeats: it shows in the catalogue, before anything from behind it is given."""
    identity = "FULL" if mode == "all" else "DEFAULT"
    postgresql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v TEXT)", f"ALTER TABLE {table} REPLICA IDENTITY {identity}"
    )
    source = followed(postgresql, table, {"id": "int32", "v": "string"}, changelog_mode=mode, heartbeat_interval="1 d")
    words = {
        "t": table, "p": f"headrace_slot_of_{table}", "gap": f"INSERT INTO {table} VALUES (2, 'gap')",
        "all": "'insert, update, delete, truncate'",
    }  # fmt: skip
    job = SourceTestHarness(source)
    try:
        job.start()
        job.rest(20)
        postgresql.execute(f"INSERT INTO {table} VALUES (1, 'a')")
        job.read_number(1)
        postgresql.execute(*(statement.format(**words) for statement in statements))
        if expected and "DROP TABLE {t}" in statements:
            postgresql.execute(
                f"ALTER TABLE {table} REPLICA IDENTITY {identity}",
                f"ALTER PUBLICATION headrace_slot_of_{table} ADD TABLE {table}",
            )
        postgresql.execute(f"INSERT INTO {table} (id, v) VALUES (3, 'behind')")
        if expected is None:
            job.read_number(2)
            return
        with pytest.raises(SourceError, match=expected) as caught:
            job.read_number(2)
        assert caught.value.context["position"].startswith("log ")
        assert len(job.rows) == 1, "nothing from behind the gap"
    finally:
        job.close()


@pytest.mark.parametrize("mode", ["all", "upsert"])
def test_a_gap_while_nobody_reads_is_noticed_by_the_next_reader(mode, postgresql, table):  # noqa: F811
    postgresql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    postgresql.execute(f"ALTER TABLE {table} REPLICA IDENTITY {'FULL' if mode == 'all' else 'DEFAULT'}")
    job = SourceTestHarness(followed(postgresql, table, {"id": "int32"}, changelog_mode=mode))
    job.start()
    try:
        job.rest(20)
        job.checkpoint()
        job.close()
        publication = f"PUBLICATION headrace_slot_of_{table}"
        postgresql.execute(
            f"ALTER {publication} DROP TABLE {table}",
            f"INSERT INTO {table} VALUES (1)",
            f"ALTER {publication} ADD TABLE {table}",
        )
        job.start()
        with pytest.raises(SourceError, match="altered or made again"):
            job.read_number(1)
    finally:
        job.close()


@pytest.mark.parametrize("mode", ["all", "upsert"])
def test_another_primary_key_is_refused_by_name(mode, postgresql, table):  # noqa: F811
    """Also where the log itself still has the old key: rows of one key would be several."""
    postgresql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, k INT NOT NULL)",
        f"ALTER TABLE {table} REPLICA IDENTITY {'FULL' if mode == 'all' else 'DEFAULT'}",
    )
    job = SourceTestHarness(followed(postgresql, table, {"id": "int32", "k": "int32"}, changelog_mode=mode))
    try:
        job.start()
        job.rest(20)
        postgresql.execute(f"INSERT INTO {table} VALUES (1, 10)")
        job.read_number(1)
        postgresql.execute(
            f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, ADD PRIMARY KEY (k), ALTER id DROP NOT NULL",
            f"UPDATE {table} SET id = NULL, k = 11",
        )
        with pytest.raises(SourceError, match=r"is \(k\) now, and the table is followed by \(id\)"):
            job.read_number(3)
        # It has its old key again: what the log has of the time between is refused, too.
        postgresql.execute(
            f"DELETE FROM {table}", f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, ADD PRIMARY KEY (id)"
        )
        job.start()
        expected = "no value of column 'id'" if mode == "all" else r"is \(k\) now"
        with pytest.raises(SourceError, match=expected) as caught:
            job.read_number(3)
        assert caught.value.context["table"] == f"public.{table}"
        assert all(row == {"id": 1, "k": 10} for row in job.rows)
    finally:
        job.close()


@pytest.mark.parametrize(
    ("publishes", "is_refused"),
    [("TABLE {root}", True), ("TABLE {t}", False), ("ALL TABLES", False), ("TABLES IN SCHEMA public", False)],
)
def test_a_partition_may_leave_its_root_if_it_is_published_itself(publishes, is_refused, postgresql, table):  # noqa: F811
    """Else its changes are not in the log meanwhile."""
    words = {"t": table, "root": f"{table}_root", "values": "FOR VALUES FROM (0) TO (100)"}
    postgresql.execute(
        f"CREATE TABLE {words['root']} (id INT PRIMARY KEY) PARTITION BY RANGE (id)",
        f"CREATE TABLE {table} PARTITION OF {words['root']} {words['values']}",
        f"ALTER TABLE {table} REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION headrace_slot_of_{table} FOR {publishes.format(**words)}",
    )
    job = SourceTestHarness(followed(postgresql, table, {"id": "int32"}, heartbeat_interval="1 d"))
    try:
        job.start()
        job.rest(20)
        postgresql.execute(
            f"ALTER TABLE {words['root']} DETACH PARTITION {table}",
            f"INSERT INTO {table} VALUES (1)",
            f"ALTER TABLE {words['root']} ATTACH PARTITION {table} {words['values']}",
            f"INSERT INTO {table} VALUES (2)",
        )
        if is_refused:
            with pytest.raises(SourceError, match="altered or made again"):
                job.read_number(1)
            assert not job.rows
        else:
            job.read_number(2)
            assert job.rows == [{"id": 1}, {"id": 2}]
    finally:
        job.close()
        postgresql.execute(f"DROP TABLE {words['root']} CASCADE", f"DROP PUBLICATION headrace_slot_of_{table}")


def test_a_checkpoint_of_before_there_were_marks_is_gone_on_from(postgresql, table):  # noqa: F811
    """It takes those that there are, and has them from then on."""
    postgresql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    source = followed(postgresql, table, {"id": "int32"})
    job = SourceTestHarness(source)
    try:
        job.start()
        job.rest(20)
        job.checkpoint()
    finally:
        job.close()
    (lsn,) = postgresql.rows(
        f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'slot_of_{table}'"
    )[0]
    payload = {"start": lsn_of(lsn), "key": [["id", "integer"]], "pages": []}
    reader = reader_of(source, [Split("log", payload, {"lsn": lsn_of(lsn), "index": 0})], now_ms=lambda: 1_000)
    postgresql.execute(f"INSERT INTO {table} VALUES (1)")
    assert read_some(reader, 1) == [{"id": 1}]
    (split,) = reader.snapshot()
    assert list(split.payload["marks"]["columns"]) == ["id"]
