"""Families: property (an event depends on seed and number alone), differential (shape of the benchmark's own events),
laws of the draw."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.nexmark import BID_PERIOD, BID_SCHEMA, EVENT_SCHEMA, PERIOD, NexmarkGenerator, NexmarkSource
from headrace.engine.errors import ConfigurationError

GENERATOR = NexmarkGenerator(events_per_second=1_000)
STARTS = st.integers(0, 3 * PERIOD) | st.sampled_from([PERIOD - 3, 10**12])
MAKE = {"events": GENERATOR.events, "bids": GENERATOR.bids}


@pytest.mark.parametrize("name", MAKE)
@given(STARTS, st.integers(1, 300), st.integers(0, 300))
@settings(max_examples=examples(50), deadline=None)
def test_an_event_is_the_same_in_every_batch(name, start, length, cut):
    make = MAKE[name]
    cut = min(cut, length - 1)
    whole = make(start, length)
    whole.columns.validate(full=True)
    last = make(start + cut, length - cut)
    assert whole.columns.slice(cut).to_pylist() == last.columns.to_pylist()
    assert whole.timestamps[cut:].tolist() == last.timestamps.tolist()


def test_a_batch_may_be_longer_than_the_period_of_its_texts():
    assert (
        GENERATOR.events(7, PERIOD + 10).columns.slice(PERIOD).to_pylist()
        == GENERATOR.events(7 + PERIOD, 10).columns.to_pylist()
    )
    assert GENERATOR.bids(7, BID_PERIOD + 5).num_rows == BID_PERIOD + 5


def test_the_bids_are_those_of_the_whole_stream():
    events = GENERATOR.events(0, 500).columns
    bids = [row for row in events.column("bid").to_pylist() if row is not None]
    alone = GENERATOR.bids(0, len(bids)).columns.to_pylist()
    assert [{k: v for k, v in bid.items() if k != "extra"} for bid in bids] == [
        {k: v for k, v in bid.items() if k != "extra"} for bid in alone
    ]


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_bids():
    kinds = GENERATOR.events(50 * 1000, 50 * 100).columns.column("event_type").to_pylist()
    assert Counter(kinds) == {0: 100, 1: 300, 2: 4600}
    assert kinds[:5] == [0, 1, 1, 1, 2]


def test_every_event_has_all_columns_of_its_kind_and_no_others():
    events = GENERATOR.events(123, 20_000).columns
    assert events.schema == EVENT_SCHEMA
    for kind, name in enumerate(("person", "auction", "bid")):
        column = events.column(name)
        assert pc.equal(events.column("event_type"), kind) == column.is_valid()
        for index in range(column.type.num_fields):
            assert column.field(index).is_valid() == column.is_valid(), column.type[index].name
    bids = GENERATOR.bids(123, 20_000).columns
    assert bids.schema == BID_SCHEMA
    assert all(column.null_count == 0 for column in bids.columns)


def test_draws_follow_the_benchmark():
    bids = GENERATOR.bids(46 * 10_000, 200_000).columns
    price = bids.column("price").to_numpy()
    assert 100 <= price.min() < 105
    assert 95_000_000 < price.max() <= 100_000_000
    assert abs(np.log10(price).mean() - 5) < 0.02
    channels = Counter(bids.column("channel").to_pylist())
    hot = sum(channels[name] for name in ("Google", "Facebook", "Baidu", "Apple")) / len(bids)
    assert abs(hot - 0.5) < 0.01
    assert len(channels) > 9_900
    extra = pc.utf8_length(bids.column("extra")).to_numpy()
    assert (extra.min(), extra.max()) == (54, 81)
    with_id = pc.match_substring(bids.column("url"), "channel_id=").to_numpy(zero_copy_only=False)
    assert abs(with_id.mean() - 0.45) < 0.02
    auction, number = bids.column("auction").to_numpy() - 1000, np.arange(len(bids)) // 46 + 10_000
    hottest = (number * 3 + 2) // 100 * 100
    assert abs((auction == hottest).mean() - 0.5) < 0.02
    cold = auction[auction != hottest]
    last = (number * 3 + 2)[auction != hottest]
    assert (cold >= last - 100).all()
    assert (cold <= last + 10).all()
    bidder = bids.column("bidder").to_numpy() - 1000
    assert abs((bidder == number // 100 * 100 + 1).mean() - 0.75) < 0.02


def test_auctions_and_persons_hold_together():
    events = pa.Table.from_batches([GENERATOR.events(0, 50_000).columns])
    persons = [row for row in events["person"].to_pylist() if row]
    auctions = [row for row in events["auction"].to_pylist() if row]
    assert [row["id"] for row in persons] == list(range(1000, 2000))
    assert [row["id"] for row in auctions] == list(range(1000, 4000))
    assert all(row["reserve"] > row["initialBid"] >= 100 for row in auctions)
    assert all(row["expires"] > row["dateTime"] for row in auctions)
    assert {row["category"] for row in auctions} == {10, 11, 12, 13, 14}
    known = {row["id"] for row in persons}
    assert sum(row["seller"] in known for row in auctions) > 0.98 * len(auctions)
    assert {row["state"] for row in persons} == {"AZ", "CA", "ID", "OR", "WA", "WY"}
    assert len({row["creditCard"] for row in persons}) == 1000


def test_the_schema_is_that_of_the_shared_events():
    path = Path(__file__).resolve().parents[4] / "shared" / "data" / "nexmark" / "events.parquet"
    if not path.exists():
        pytest.skip("needs the shared data")
    assert pq.read_schema(path).equals(EVENT_SCHEMA)


def test_event_time_follows_the_number():
    batch = NexmarkGenerator(events_per_second=1_000, base_time_ms=5_000).events(10, 3)
    assert batch.timestamps.tolist() == [5_010, 5_011, 5_012]
    dense = NexmarkGenerator(events_per_second=3_000, base_time_ms=0).events(0, 7)
    assert dense.timestamps.tolist() == [0, 0, 0, 1, 1, 1, 2]
    bids = NexmarkGenerator(events_per_second=1_000, base_time_ms=0).bids(45, 3)
    assert bids.timestamps.tolist() == [49, 54, 55]
    assert bids.columns.column("dateTime").cast(pa.int64()).to_pylist() == [49, 54, 55]


def test_another_seed_is_another_stream():
    other = NexmarkGenerator(events_per_second=1_000, seed=1)
    assert other.bids(0, 100).columns.to_pylist() != GENERATOR.bids(0, 100).columns.to_pylist()


@pytest.mark.parametrize("make", [NexmarkSource, NexmarkSource.bids])
def test_the_source_gives_each_event_once_over_splits_and_restarts(reading, make):
    source = cloudpickle.loads(cloudpickle.dumps(make(1_000, number_of_splits=3, batch_size=64)))
    assert source.is_bounded
    assert len(cloudpickle.dumps(source)) < 2_000
    rows = reading().rows_with_cuts(source, [3, 1, 7, 2, 20])
    default = NexmarkGenerator()
    whole = (default.events if make is NexmarkSource else default.bids)(0, 1_000).columns.to_pylist()
    assert sorted(map(repr, rows)) == sorted(map(repr, whole))
    assert not make(None).is_bounded


def test_events_per_second_must_be_positive():
    with pytest.raises(ConfigurationError):
        NexmarkSource(events_per_second=0)
