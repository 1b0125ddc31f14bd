"""Tables of HBase as a source, against a real server: the contract of sources, and what values come to."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from campaigns import campaign
from hbase_server import hbase_server  # noqa: F401 - a fixture
from reading_kit import read_some, reader_of, splits_of
from upsert_kit import AT_ONCE, told, written

from headrace.connectors.hbase import HbaseSink, HbaseSource
from headrace.engine.connectors.contract import Split
from headrace.engine.errors import CheckpointMismatchError
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject


def subject_of(server):
    """A table of one region, whose rows have an order; a number is a row key."""
    table = server.new_table("f")

    def put(part, numbers):
        with server.connected() as connection:
            for number in numbers:
                connection.table(table).put(b"%020d" % number, {b"f:n": number.to_bytes(8, "big")})

    bad = []

    def put_bad(part):
        with server.connected() as connection:
            # Behind all that are there, and before the next one, which is one greater than the last.
            last = max(connection.table(table).scan(), key=lambda row: row[0])[0]
            connection.table(table).put(last + b"x", {b"f:n": b"123"})
            bad.append(last)

    schema = pa.schema([("k", pa.string()), ("f", pa.struct([("n", pa.int64())]))])
    source = HbaseSource(server.host, table, schema=schema, page_size=5)
    return SourceSubject(source, number=lambda row: row["f"]["n"], put=put, put_bad=put_bad, server=server)


# Its server is started several times, which takes long.
TAKES_LONG = ("survives_its_server", "waits_for_a_server_that_is_away")
CHECKS = [campaign(check) if check.__name__ in TAKES_LONG else check for check in SOURCE_CONTRACT]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_tables(check, hbase_server):  # noqa: F811
    check(subject_of(hbase_server))


def test_regions_are_splits_whose_rows_come_once(hbase_server):  # noqa: F811
    """Also from readers that are restored behind each few rows."""
    table = hbase_server.new_table("f", splits=[b"\x20", b"\x40\0", b"\x60"])
    with hbase_server.connected() as connection, connection.table(table).batch() as batch:
        for number in range(120):
            batch.put(bytes([number]) + b"\0" * (number % 3), {b"f:n": b"%d" % number})
    schema = pa.schema([("k", pa.binary()), ("f", pa.struct([("n", pa.string())]))])
    source = HbaseSource(hbase_server.host, table, schema=schema, page_size=7)
    splits = splits_of(source)
    assert len(splits) == 4
    found = []
    while splits:
        reader = reader_of(source, splits)
        came = read_some(reader, 11)
        splits = reader.snapshot()
        found += came
        if not came:
            break
    assert sorted(int(row["f"]["n"]) for row in found) == list(range(120))


def test_values_come_back_and_rows_without_a_column_are_rows(hbase_server):  # noqa: F811
    table = hbase_server.new_table("f", "g")
    fields = pa.struct([
        ("yes", pa.bool_()), ("exact", pa.decimal128(20, 3)), ("word", pa.string()),
        ("at", pa.timestamp("ms", "UTC")), ("none", pa.string()), ("missing", pa.float64()),
    ])  # fmt: skip
    schema = pa.schema([("k", pa.string()), ("f", fields), ("g", pa.struct([("n", pa.int16())]))])
    row = {
        "k": "a", "g": {"n": -5}, "f": {
            "yes": False, "exact": Decimal("-12345678901234567.890"), "word": "x", "none": None, "missing": None,
            "at": datetime(1600, 1, 1, 0, 0, 0, 1_000, timezone.utc),
        },
    }  # fmt: skip
    written(HbaseSink(hbase_server.host, table, schema=schema, options=AT_ONCE), [row])
    with hbase_server.connected() as connection:
        connection.table(table).put(b"b", {b"g:other": b"1"})
    source = HbaseSource(hbase_server.host, table, schema=schema)
    nothing = {"k": "b", "g": {"n": None}, "f": dict.fromkeys(row["f"])}
    assert read_some(reader_of(source, splits_of(source))) == [row, nothing]
    assert "no column family" in told(
        lambda: splits_of(
            HbaseSource(hbase_server.host, table, schema=pa.schema([("h", pa.struct([("n", pa.int16())]))]))
        )
    )


@pytest.mark.parametrize(
    ("payload", "position"),
    [({"start": ""}, None), ({"start": "", "stop": "x"}, None), ({"start": "", "stop": ""}, {"row": 1}),
     ({"start": "", "stop": ""}, [1])],
)  # fmt: skip
def test_positions_of_something_else_are_refused(payload, position):
    source = HbaseSource("localhost", "t", schema={"k": "string"})
    with pytest.raises(CheckpointMismatchError, match="not one of a table of HBase"):
        reader_of(source, [Split("s", payload, position)])
