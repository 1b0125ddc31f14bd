"""The contract of sources, for tables of Cassandra."""

from __future__ import annotations

from decimal import Decimal
from itertools import count

import pyarrow as pa
import pytest
from campaigns import campaign
from cassandra_server import cassandra_server  # noqa: F401 - a fixture

from headrace.connectors.cassandra import CassandraSource
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject


def subject_of(server):
    """Parts are partitions, whose rows have an order."""
    table = server.new_table("p int, c int, n bigint, d decimal, PRIMARY KEY (p, c)")
    places = count()

    def put(part, numbers):
        for number in numbers:
            values = (part, next(places), number, Decimal("0.5"))
            server.ask(f"INSERT INTO {table} (p, c, n, d) VALUES (%s, %s, %s, %s)", values)

    def put_bad(part):
        server.ask(f"INSERT INTO {table} (p, c, n, d) VALUES ({part}, {next(places)}, -1, 0.125)")

    schema = {"n": "int64", "d": pa.decimal128(5, 2)}
    source = CassandraSource(server.host, table, schema=schema, splits=3, page_size=5)
    return SourceSubject(source, number=lambda row: row["n"], put=put, num_parts=3, put_bad=put_bad, server=server)


# Its server is started several times, which takes long.
TAKES_LONG = ("survives_its_server",)
CHECKS = [campaign(check) if check.__name__ in TAKES_LONG else check for check in SOURCE_CONTRACT]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_tables(check, cassandra_server):  # noqa: F811
    check(subject_of(cassandra_server))
