"""A table of PostgreSQL that a source follows, and what belongs to it gone behind the test."""

from __future__ import annotations

import itertools

import pytest

from headrace.connectors.postgres_cdc import PostgresCdcSource

NUMBERS = itertools.count()


def followed(server, table, schema, *, username="headrace", **options):
    return PostgresCdcSource(
        "127.0.0.1",
        server.port,
        username=username,
        password=server.password,
        database="postgres",
        table=table,
        schema=schema,
        slot=f"slot_of_{table}",
        **options,
    )


@pytest.fixture
def table(postgresql):
    """The name of a table that is not there yet."""
    name = f"followed_{next(NUMBERS)}"
    yield name
    slot = f"slot_of_{name}"
    postgresql.execute(
        f"SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '{slot}'",
        f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}'",
        f"DROP PUBLICATION IF EXISTS headrace_{slot}",
        f"DROP TABLE IF EXISTS {name}",
    )
