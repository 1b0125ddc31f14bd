"""Every Arrow type makes the way through Spark's columns and back (property); sizes of sessions (table)."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.spark.columns import Layout
from headrace.actors.spark.session_size import MB, SparkSettings, size_of_session
from headrace.engine.errors import ConfigurationError, NoResourceAvailableError

UTC = datetime.timezone.utc
TIMES = st.integers(-5_364_662_400, 7_258_118_400).map(
    lambda second: datetime.datetime.fromtimestamp(0, UTC).replace(tzinfo=None) + datetime.timedelta(seconds=second)
)

VALUES = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint8(), st.integers(0, 255)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float16(), st.floats(width=16, allow_nan=False).map(np.float16)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text()),
    (pa.large_string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates(datetime.date(1800, 1, 1), datetime.date(2200, 1, 1))),
    (pa.timestamp("us"), TIMES),
    (pa.timestamp("ms"), TIMES.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))),
    (pa.timestamp("ns"), TIMES),
    (pa.timestamp("us", "Europe/Berlin"), TIMES.map(lambda t: t.replace(tzinfo=UTC))),
    (pa.time64("us"), st.times()),
    (pa.duration("ns"), st.timedeltas(datetime.timedelta(-9999), datetime.timedelta(9999))),
    (pa.decimal128(38, 6), st.integers(-(10**30), 10**30).map(lambda n: decimal.Decimal(n).scaleb(-6))),
    (pa.decimal256(50, 2), st.integers(-(10**40), 10**40).map(lambda n: decimal.Decimal(n).scaleb(-2))),
    (pa.list_(pa.int32()), st.lists(st.integers(0, 9))),
    (pa.list_(pa.uint8()), st.lists(st.integers(0, 255))),
    (pa.list_(pa.float32(), 2), st.lists(st.just(1.5), min_size=2, max_size=2)),
    (pa.struct([("a", pa.string()), ("b", pa.list_(pa.int64()))]), st.just({"a": "x", "b": [1, None]})),
    (pa.map_(pa.string(), pa.int64()), st.just([("k", 1)])),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b"])),
    (pa.null(), st.none()),
]


@settings(deadline=None)
@given(data=st.data(), kind=st.sampled_from(VALUES))
def test_every_type_makes_the_way_and_back(data, kind):
    arrow_type, values = kind
    rows = data.draw(st.lists(st.one_of(st.none(), values), max_size=6))
    batch = pa.record_batch([pa.array(rows, arrow_type), pa.array(range(len(rows)))], names=["a.b", "A.B"])
    layout = Layout(batch.schema)
    physical = layout.to_physical(batch)
    assert physical.schema.names == ["c0", "c1"]
    assert layout.to_wire(physical).equals(batch)


def test_records_without_fields_are_still_counted():
    layout = Layout(pa.schema([]))
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert layout.to_physical(batch).num_rows == 2
    assert layout.to_wire(layout.to_physical(batch)).num_rows == 2


GB = 1024 * MB


def test_a_session_has_an_executor_per_node_and_leaves_a_core_where_there_are_many():
    size = size_of_session(SparkSettings(), [(2.0, 16.0 * GB), (2.0, 16.0 * GB), (0.0, 16.0 * GB)])
    assert (size.num_executors, size.cores, size.memory_bytes) == (2, 2, 4 * GB)
    assert size_of_session(SparkSettings(), [(8.0, 64.0 * GB)]).cores == 7
    assert size_of_session(SparkSettings(), [(1.0, 2.0 * GB)]).memory_bytes == GB


def test_wishes_are_kept():
    size = size_of_session(SparkSettings(num_executors=2, executor_cores=1), [(2.0, 16.0 * GB)])
    assert (size.num_executors, size.cores) == (2, 1)
    assert size_of_session(SparkSettings(num_executors=2), [(2.0, 16.0 * GB)]).cores == 1


@pytest.mark.parametrize(
    ("settings", "free"),
    [
        ({}, [(0.5, 16.0 * GB)]),
        ({}, [(4.0, 0.5 * GB)]),
        ({}, []),
        ({"executor_cores": 8}, [(4.0, 16.0 * GB)]),
        ({"num_executors": 3, "executor_cores": 2}, [(4.0, 16.0 * GB)]),
    ],
)
def test_too_few_resources_are_said_at_once(settings, free):
    with pytest.raises(NoResourceAvailableError, match="executor"):
        size_of_session(SparkSettings(**settings), free)


def test_settings_are_checked():
    with pytest.raises(ConfigurationError, match="executor_memory_bytes must be at least"):
        SparkSettings(executor_memory_bytes=1 << 20)
    with pytest.raises(ConfigurationError, match="num_executors"):
        SparkSettings(num_executors=-1)
