"""``'connector' = 'datagen'``: rows follow from their numbers, within the bounds that the options say."""

from __future__ import annotations

import datetime
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.errors import ConfigurationError
from headrace.table import TableEnvironment
from headrace.table.connectors.contract import Options
from headrace.table.connectors.datagen import DatagenTable

SCHEMA = pa.schema([
    ("id", pa.int64()), ("k", pa.int32()), ("tiny", pa.int8()), ("big", pa.int64()), ("x", pa.float64()),
    ("d", pa.decimal128(6, 2)), ("s", pa.string()), ("b", pa.binary()), ("yes", pa.bool_()), ("at", pa.timestamp("ms")),
])  # fmt: skip

OPTIONS = {
    "fields.id.kind": "sequence", "fields.id.start": "5", "fields.id.end": "1004", "fields.k.min": "-2",
    "fields.k.max": "2", "fields.x.min": "1", "fields.x.max": "3", "fields.d.max": "10", "fields.s.length": "17",
    "fields.b.length": "3", "fields.at.max-past": "2 s", "rows-per-second": "10", "start-time": "2026-01-01 00:00:00",
    "fields.yes.null-rate": "0.25",
}  # fmt: skip


def made(options=OPTIONS, schema=SCHEMA):
    taken = Options(options, "table t")
    table = DatagenTable(taken, schema, ())
    taken.end()
    return table._rows


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_rows_do_not_depend_on_how_they_are_cut(lengths):
    rows, start, parts = made(), 0, []
    for length in lengths:
        parts.append(rows(start, length))
        start += length
    assert pa.Table.from_batches(parts) == pa.Table.from_batches([rows(0, start)])
    assert made()(7, 9) == rows(7, 9)


def test_values_lie_in_their_bounds_and_meet_all_of_them():
    table = made()(0, 1_000).to_pydict()
    assert table["id"] == list(range(5, 1_005))
    assert set(table["k"]) == {-2, -1, 0, 1, 2}
    assert min(Counter(table["k"]).values()) > 150
    assert len(set(table["tiny"])) > 230  # of 256
    assert min(table["big"]) < -(2**62)
    assert max(table["big"]) > 2**62
    assert all(1 <= x < 3 for x in table["x"])
    assert len(set(table["x"])) == 1_000
    assert all(0 <= d <= 10 for d in table["d"])
    assert {len(s) for s in table["s"]} == {17}
    assert set("".join(table["s"])) == set("0123456789abcdef")
    assert {len(b) for b in table["b"]} == {3}
    assert 200 < Counter(table["yes"])[None] < 300
    assert 300 < Counter(table["yes"])[True] < 450
    begin = datetime.datetime(2026, 1, 1)  # noqa: DTZ001
    behind = [begin + datetime.timedelta(milliseconds=100 * n) - at for n, at in enumerate(table["at"])]
    assert all(datetime.timedelta(0) <= one <= datetime.timedelta(seconds=2) for one in behind)


def test_another_seed_and_another_column_draw_others():
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    one, other = made({}, schema)(0, 100).to_pydict(), made({"seed": "1"}, schema)(0, 100).to_pydict()
    assert not set(one["a"]) & set(one["b"])
    assert not set(one["a"]) & set(other["a"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields.k.kind": "sequence"}, "needs option 'fields.k.start'"),
        ({"fields.k.kind": "sequence", "fields.k.start": "2", "fields.k.end": "1"}, "'fields.k.end' is not below"),
        ({"fields.s.kind": "sequence", "fields.s.start": "1", "fields.s.end": "2"}, "is a whole number; it is STRING"),
        ({"fields.tiny.max": "200"}, "both fit into TINYINT"),
        ({"fields.k.min": "3", "fields.k.max": "2"}, "'fields.k.min' is not above"),
        ({"fields.x.min": "3", "fields.x.max": "2"}, "'fields.x.min' is not above"),
        ({"fields.kk.min": "3"}, "has no option 'fields.kk.min'"),
        ({"fields.k.null-rate": "2"}, "between 0 and 1"),
        ({"rows-per-second": "0"}, "at least 1"),
        ({"fields.s.length": "0"}, "at least 1"),
        ({"fields.k.kind": "gauss"}, "one of random, sequence"),
    ],
)
def test_what_means_nothing_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        made(options)


def test_a_type_without_values_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="no values of column 'l': ARRAY<INT>"):
        made({}, pa.schema([("l", pa.list_(pa.int32()))]))


@pytest.mark.parametrize("options", [{"mode": "batch"}, {"actor_system": "local"}])
def test_both_modes_and_any_parallelism_give_the_same_rows(options):
    found = []
    for parallelism in (1, 3):
        with TableEnvironment.create(parallelism=parallelism, **options) as env:
            env.execute_sql("""
                CREATE TABLE g (k INT, v BIGINT, w AS v + 1) WITH ('connector' = 'datagen',
                    'number-of-rows' = '500', 'rows-per-second' = '1000000', 'fields.k.min' = '0', 'fields.k.max' = '3')
            """)
            table = env.execute_sql("SELECT k, v, w FROM g WHERE k > 0").to_arrow()
        found.append(Counter(map(tuple, map(dict.values, table.to_pylist()))))
    rows = made({"fields.k.min": "0", "fields.k.max": "3"}, pa.schema([("k", pa.int32()), ("v", pa.int64())]))(0, 500)
    expected = Counter((k, v, v + 1) for k, v in zip(*rows.to_pydict().values(), strict=True) if k > 0)
    assert found == [expected, expected]


def test_a_table_without_end_is_refused_in_batch_mode():
    with TableEnvironment.create(mode="batch") as env:
        env.execute_sql("CREATE TABLE g (k INT) WITH ('connector' = 'datagen')")
        with pytest.raises(Exception, match="g has no end"):
            env.execute_sql("SELECT k FROM g").to_arrow()
