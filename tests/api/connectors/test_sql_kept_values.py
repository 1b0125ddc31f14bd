"""Random values in columns of random types, of a real PostgreSQL and a real MariaDB: kept exactly, or refused by name.

Family: property. What the database says is compared with the value as a number, a text or a moment.
"""

from __future__ import annotations

import datetime as dt
import random
import string
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from campaigns import blocks, seeds
from mariadb_server import mariadb  # noqa: F401 - a fixture
from postgresql_server import postgresql  # noqa: F401 - a fixture
from sql_servers import SERVERS, with_numbers

from headrace.connectors.sql import SqlSink
from headrace.connectors.sql.connecting import connector_of
from headrace.connectors.sql.reading import ReadSettings, TableRows
from headrace.engine.columns.records import Batch
from headrace.engine.errors import TypeMismatchError
from headrace.testing import SinkTestHarness

pytestmark = pytest.mark.slow
UTC = dt.timezone.utc


def number_types(rng, server):
    scale = rng.randrange(0, 5)
    common = [f"NUMERIC({rng.randrange(scale + 1, 12)}, {scale})", "DOUBLE PRECISION", "SMALLINT", "BIGINT"]
    if server == "postgresql":
        return [*common, f"numeric({rng.randrange(1, 9)}, -2)", "real", "numeric", "money"]
    return [*common, "FLOAT", "BIGINT UNSIGNED", "TINYINT", "YEAR", "DOUBLE(9, 2)"]


def text_types(rng, server):
    size = rng.randrange(1, 5)
    common = [f"VARCHAR({size})", f"CHAR({size})", "TEXT"]
    return [*common, "name", '"char"'] if server == "postgresql" else [f"{one} CHARACTER SET utf8mb4" for one in common]


def time_types(rng, server):
    digits = rng.randrange(7)
    if server == "postgresql":
        return [
            f"timestamp({digits})",
            f"timestamptz({digits})",
            f"time({digits})",
            "date",
            f"timetz({digits})",
            "CHAR(40)",
        ]
    return [f"DATETIME({digits})", f"TIMESTAMP({digits}) NULL", f"TIME({digits})", "DATE", "CHAR(40)"]


def byte_types(rng, server):
    return (
        ["bytea"] if server == "postgresql" else [f"BINARY({rng.randrange(1, 5)})", f"VARBINARY({rng.randrange(1, 5)})"]
    )


def a_number(rng):
    kind = rng.choice([pa.int16(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), "decimal"])
    if kind == "decimal":
        scale = rng.randrange(6)
        whole = rng.choice([rng.randrange(-999, 999), 100 * rng.randrange(99), rng.randrange(10**8)])
        return pa.decimal128(12, scale), Decimal(whole).scaleb(-scale)
    if pa.types.is_floating(kind):
        return kind, float(np.float32(rng.choice([0.5, -2.0, 0.1, 1e10, 3.14159])))
    width = 15 if kind == pa.int16() else rng.choice([8, 24, 25, 53, 54, 62])
    value = rng.choice([1 << width, (1 << width) - 1, (1 << width) + 1, rng.randrange(1 << width), rng.randrange(200)])
    return kind, min(value, 2**15 - 1) if kind == pa.int16() else value if kind == pa.uint64() else rng.choice(
        [1, -1]
    ) * value


def a_text(rng):
    return pa.string(), "".join(
        rng.choice([*string.ascii_letters, "\u00e4", "\N{PILE OF POO}", " ", " "]) for _ in range(rng.randrange(7))
    )


def a_time(rng):
    unit, digits = rng.choice([("s", 0), ("ms", 3), ("us", 6)])
    fraction = rng.choice([0, 500_000, 120_000, 123_000, 123_456, 1]) // 10 ** (6 - digits) * 10 ** (6 - digits)
    moment = dt.datetime(2024, rng.randrange(1, 13), 28, rng.randrange(24), 59, 59, fraction)  # noqa: DTZ001
    made = rng.choice(["plain", "zone", "time", "date"])
    if made == "date":
        return pa.date32(), moment.date()
    if made == "time":
        return pa.time64("us") if digits == 6 else pa.time32(unit), moment.time()
    return pa.timestamp(unit, "UTC" if made == "zone" else None), moment.replace(tzinfo=UTC if made == "zone" else None)


def some_bytes(rng):
    return pa.binary(), bytes(rng.choice(b"\0 a\xff") for _ in range(rng.randrange(6)))


GROUPS = [
    (number_types, a_number),
    (number_types, a_number),
    (text_types, a_text),
    (time_types, a_time),
    (byte_types, some_bytes),
]


def is_kept(server, own, kind, value):
    """Whether the database has the value itself."""
    if own.startswith("CHAR") and pa.types.is_temporal(kind):
        text = value.isoformat(" ") if isinstance(value, dt.datetime) else value.isoformat()
        return server.rows("SELECT v FROM v") == [(text,)]
    if kind in (pa.string(), pa.binary()) or pa.types.is_temporal(kind):
        schema = pa.schema([("v", kind)])
        rows = TableRows(ReadSettings(*connector_of(server.url), ("v",), schema))
        try:
            return rows.rows().to_pylist() == [{"v": value}]
        finally:
            rows.close()
    [(found,)] = server.rows("SELECT v::float8 FROM v" if own == "real" else "SELECT v FROM v")
    return Fraction(found) == Fraction(value)


@pytest.mark.parametrize("block", blocks(1, 6))
@pytest.mark.parametrize("name", SERVERS)
def test_a_value_is_kept_or_refused(name, block, request):
    server = with_numbers(request.getfixturevalue(name))
    ends = Counter()
    for seed in seeds(block, 60):
        rng = random.Random(seed)
        types, values = rng.choice(GROUPS)
        own, (kind, value) = rng.choice(types(rng, name)), values(rng)
        server.execute("DROP TABLE IF EXISTS v", f"CREATE TABLE v (v {own})")
        job = SinkTestHarness(SqlSink.at_least_once(server.url, "v", schema=pa.schema([("v", kind)])))
        try:
            job.start()
            job.write(Batch.of_columns(pa.RecordBatch.from_arrays([pa.array([value], kind)], names=["v"])))
            job.checkpoint(1)
        except TypeMismatchError:
            ends["refused"] += 1
            assert server.rows("SELECT * FROM v") == [], (seed, own, kind, value)
        else:
            ends["kept"] += 1
            assert is_kept(server, own, kind, value), (seed, own, kind, value, server.rows("SELECT v FROM v"))
        finally:
            job.close()
    assert min(ends["kept"], ends["refused"]) > 0, ends
