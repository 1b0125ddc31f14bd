"""Families: contract (a followed table passes the checks of every source)."""

from __future__ import annotations

import pytest
from followed_table import followed, table  # noqa: F401 - a fixture
from postgresql_server import postgresql  # noqa: F401 - a fixture

from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject


@pytest.mark.parametrize("check", SOURCE_CONTRACT, ids=lambda check: check.__name__)
def test_followed_table(check, postgresql, table):  # noqa: F811
    postgresql.execute(
        f"CREATE TABLE {table} (n BIGINT PRIMARY KEY, v BIGINT DEFAULT 1)", f"ALTER TABLE {table} REPLICA IDENTITY FULL"
    )

    def put(part, numbers):
        with postgresql.connect() as connection, connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES (%s)", [(10 * number,) for number in numbers])

    def put_bad(part):
        postgresql.execute(f"INSERT INTO {table} SELECT max(n) + 5, 9999999999 FROM {table}")

    subject = SourceSubject(
        followed(postgresql, table, {"n": "int64", "v": "int32"}, chunk_size=5),
        number=lambda row: row["n"] // 10,
        put=put,
        put_bad=put_bad,
        grows=True,
        lets_go=True,
        is_ordered=False,
        server=postgresql,
    )
    try:
        check(subject)
    except BaseException:
        postgresql.restart()
        raise
