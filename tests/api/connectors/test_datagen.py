"""Families: property (any split and cut gives every number once), the clock by hand."""

from __future__ import annotations

import cloudpickle
import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.collection import CollectionSource
from headrace.connectors.datagen import GeneratorSource, RateLimitedSource
from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import NOTHING_NOW, Polled, Split
from headrace.engine.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    TypeMismatchError,
    UserFunctionError,
)

CUTS = st.lists(st.integers(0, 9), max_size=12)


def numbers(start, length):
    return pa.RecordBatch.from_pydict({"i": pa.array(range(start, start + length), pa.int64())})


# ------------------------------------------------------------------------------------------------------------ generator
@given(st.integers(0, 100), st.integers(1, 5), CUTS)
@settings(max_examples=examples(60), deadline=None)
def test_every_number_comes_once(reading, count, splits, cuts):
    source = GeneratorSource(lambda i: i, count, number_of_splits=splits)
    assert source.is_bounded
    assert sorted(reading().rows_with_cuts(source, cuts)) == list(range(count))


@given(st.integers(0, 100), st.integers(1, 5), st.integers(1, 12), CUTS)
@settings(max_examples=examples(60), deadline=None)
def test_every_number_comes_once_in_batches(reading, count, splits, chunk, cuts):
    source = GeneratorSource.batches(numbers, count, number_of_splits=splits, batch_size=chunk)
    assert sorted(row["i"] for row in reading().rows_with_cuts(source, cuts)) == list(range(count))


def test_splits_are_as_many_as_subtasks_unless_named(reading):
    assert len(reading(parallelism=3).discover(GeneratorSource(str, 10))) == 3
    assert len(reading(parallelism=3).discover(GeneratorSource(str, 10, number_of_splits=5))) == 5


def test_a_reader_of_endless_splits_reads_them_in_turn(reading):
    source = GeneratorSource(lambda i: i, number_of_splits=3)
    assert not source.is_bounded
    run = reading(parallelism=2)
    splits = run.discover(source)
    reader = run.open(source)
    reader.add_splits(splits[:2])
    polled = [reader.poll(2) for _ in range(3)]
    assert [(p.split_id, p.batch.rows) for p in polled] == [("0/3", [0, 3]), ("1/3", [1, 4]), ("0/3", [6, 9])]
    assert reader.snapshot() == [Split("0/3", splits[0].payload, 4), Split("1/3", splits[1].payload, 2)]


def test_records_come_at_the_rate_of_the_clock(reading, clock_class):
    clock = clock_class(1_000_000)
    run = reading(clock, parallelism=2)
    source = GeneratorSource(lambda i: i, records_per_second=20, number_of_splits=2)
    reader = run.open(source)
    reader.add_splits(run.discover(source)[:1])
    assert reader.poll(100).batch.rows == [0]
    assert reader.poll(100) is NOTHING_NOW
    assert reader.next_poll_ms() == 1_000_100
    clock.now_ms += 99
    assert reader.poll(100) is NOTHING_NOW
    clock.now_ms += 1
    assert reader.poll(100).batch.rows == [2]
    clock.now_ms += 450
    assert reader.poll(3).batch.rows == [4, 6, 8]
    assert reader.poll(3).batch.rows == [10]


def test_of_many_splits_with_a_rate_each_has_its_turn_when_its_record_is_due(reading, clock_class):
    """Each keeps its own rate, whichever others there are; one that has come to its end is told of at once."""
    clock = clock_class()
    run = reading(clock)
    source = GeneratorSource(lambda i: i, 250, records_per_second=1_000, number_of_splits=100)
    reader = run.open(source)
    reader.add_splits(run.discover(source))
    rows, finished = [], {}
    while len(finished) < 100:
        polled = reader.poll(10)
        if polled is NOTHING_NOW:
            assert reader.next_poll_ms() == clock.now_ms + 1 or clock.now_ms % 100 == 0
            clock.now_ms = reader.next_poll_ms()
        elif isinstance(polled, Polled):
            rows += [(clock.now_ms, row) for row in polled.batch.rows]
        else:
            finished[polled.split_id] = clock.now_ms
    assert rows == [(100 * (number // 100), number) for number in range(250)]
    assert finished == {f"{index}/100": 200 if index < 50 else 100 for index in range(100)}


def test_splits_that_are_held_back_go_on_where_they_were(reading, clock_class):
    for rate in (None, 300):
        clock = clock_class()
        run = reading(clock)
        source = GeneratorSource(lambda i: i, records_per_second=rate, number_of_splits=3)
        reader = run.open(source)
        reader.add_splits(run.discover(source))
        reader.pause_splits(frozenset({"1/3"}))
        assert [reader.poll(1).batch.rows for _ in range(2)] == [[0], [2]]
        clock.now_ms += 10
        assert [reader.poll(1).batch.rows for _ in range(2)] == [[3], [5]]
        reader.pause_splits(frozenset({"0/3", "2/3"}))
        assert reader.poll(1).batch.rows == [1]
        reader.pause_splits(frozenset({"0/3", "1/3", "2/3"}))
        assert reader.poll(1) is NOTHING_NOW
        assert reader.next_poll_ms() is None
        reader.pause_splits(frozenset())
        clock.now_ms += 10
        polled = [reader.poll(1) for _ in range(3)]
        assert sorted(row for each in polled for row in each.batch.rows) == [4, 6, 8]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.sampled_from([3.0, 50.0, 1000.0, 123456.0]))
@settings(max_examples=examples(60), deadline=None)
def test_the_rate_is_kept_over_time(reading, clock_class, steps, rate):
    clock = clock_class()
    run = reading(clock)
    source = GeneratorSource.batches(numbers, records_per_second=rate, batch_size=1 << 30)
    reader = run.open(source)
    reader.add_splits(run.discover(source))
    total = 0
    for step in steps:
        polled = reader.poll(1 << 30)
        total += polled.batch.num_rows if isinstance(polled, Polled) else 0
        assert total == int(clock.now_ms * rate / 1000 + 1e-6) + 1
        assert reader.next_poll_ms() > clock.now_ms
        clock.now_ms += step


def test_a_reader_that_was_held_up_catches_up_on_one_second_at_most(reading, clock_class):
    clock = clock_class()
    run = reading(clock)
    source = GeneratorSource(lambda i: i, records_per_second=100)
    reader = run.open(source)
    reader.add_splits(run.discover(source))
    reader.poll(10)
    clock.now_ms = 60_000
    assert reader.poll(1_000_000).batch.num_rows == 101


def test_failures_of_the_function_name_split_and_number(reading):
    with pytest.raises(UserFunctionError, match=r"ZeroDivisionError.*split '0/1', position '0 to 2'"):
        reading().rows(GeneratorSource(lambda i: 1 // i, 3))
    with pytest.raises(UserFunctionError, match=r"split '0/1', position 0"):
        reading().rows(GeneratorSource.batches(lambda start, n: 1 // start, 3))
    with pytest.raises(TypeMismatchError, match=r"3 rows; got 2 rows"):
        reading().rows(GeneratorSource.batches(lambda start, n: numbers(0, 2), 3))
    with pytest.raises(TypeMismatchError, match=r"got list"):
        reading().rows(GeneratorSource.batches(lambda start, n: [1, 2, 3], 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: GeneratorSource(str, -1),
        lambda: GeneratorSource(str, records_per_second=0),
        lambda: GeneratorSource(str, number_of_splits=0),
        lambda: GeneratorSource.batches(numbers, batch_size=0),
        lambda: RateLimitedSource(GeneratorSource(str), -1),
        lambda: CollectionSource("text"),
        lambda: CollectionSource(5),  # type: ignore[arg-type]
    ],
)
def test_illegal_arguments_are_refused(make):
    with pytest.raises(ConfigurationError):
        make()


# -------------------------------------------------------------------------------------------------------- rate limiting
def test_any_source_can_be_slowed_down(reading, clock_class):
    clock = clock_class()
    run = reading(clock, parallelism=2)
    source = RateLimitedSource(CollectionSource(range(100)), 20)
    assert source.is_bounded
    reader = run.open(source)
    reader.add_splits(run.discover(source))
    assert reader.poll(50).batch.rows == [0]
    assert reader.poll(50) is NOTHING_NOW
    assert reader.next_poll_ms() == 100
    clock.now_ms = 300
    assert reader.poll(50).batch.rows == [1, 2, 3]
    assert reader.snapshot()[0].position == 4


class TwoAtOnce(CollectionSource):
    """Gives its records in lists of two."""

    def create_reader(self):
        reader = super().create_reader()
        poll = reader.poll
        reader.poll = lambda max_records: [poll(1), poll(1)]
        return reader


def test_records_that_come_in_lists_count_for_the_rate(reading, clock_class):
    clock = clock_class()
    run = reading(clock)
    source = RateLimitedSource(TwoAtOnce(range(100)), 20)
    reader = run.open(source)
    reader.add_splits(run.discover(source))
    assert [polled.batch.rows for polled in reader.poll(50)] == [[0], [1]]
    clock.now_ms = 50
    assert reader.poll(50) is NOTHING_NOW
    clock.now_ms = 100
    assert [polled.batch.rows for polled in reader.poll(50)] == [[2], [3]]


# ----------------------------------------------------------------------------------------------------------- collection
@given(st.lists(st.integers() | st.text() | st.none(), max_size=60), CUTS)
@settings(max_examples=examples(40), deadline=None)
def test_a_collection_keeps_its_order(reading, values, cuts):
    assert reading().rows_with_cuts(CollectionSource(iter(values)), cuts) == values


def test_a_collection_is_one_split_that_holds_no_data(reading):
    source = CollectionSource([1, 2, 3])
    assert reading(parallelism=4).discover(source) == [Split("collection")]
    assert reading().rows(cloudpickle.loads(cloudpickle.dumps(source))) == [1, 2, 3]


def test_a_collection_may_be_columns(reading):
    table = pa.table({"a": [1, 2]})
    assert reading().rows(CollectionSource(table)) == [{"a": 1}, {"a": 2}]
    assert reading().rows(CollectionSource(table.slice(0, 0))) == []
    [batch] = reading().batches(CollectionSource([{"a": 1}], pa.schema([("a", pa.float32())])))
    assert batch.has_columns
    assert batch.columns.schema.field("a").type == pa.float32()
    with pytest.raises(TypeMismatchError):
        CollectionSource([{"a": "x"}], pa.schema([("a", pa.int64())]))


def test_batches_of_a_generator_may_carry_event_times(reading):
    import numpy as np

    def timed(start, length):
        return Batch.of_columns(numbers(start, length), np.arange(start, start + length) * 10)

    [batch] = reading().batches(GeneratorSource.batches(timed, 3))
    assert batch.timestamps.tolist() == [0, 10, 20]


def test_what_a_restored_generator_cannot_go_on_with_is_refused(reading):
    run = reading()
    begun = run.discover(GeneratorSource(lambda n: n, count=10, number_of_splits=2))
    for other in (GeneratorSource(lambda n: n, count=20), GeneratorSource(lambda n: n)):
        with pytest.raises(CheckpointMismatchError, match="begun with count=10"):
            run.open(other).add_splits(begun)
    run.open(GeneratorSource(lambda n: n, count=5)).add_splits(begun)  # less is what the splits can give
    batches = run.discover(GeneratorSource.batches(lambda start, length: None, count=10, batch_size=5))
    with pytest.raises(CheckpointMismatchError, match="function of batches"):
        run.open(GeneratorSource(lambda n: n, count=10)).add_splits(batches)


def test_a_collection_that_has_become_shorter_is_refused(reading):
    run = reading()
    reader = run.open(CollectionSource([1, 2, 3]))
    reader.add_splits(run.discover(CollectionSource([1, 2, 3])))
    reader.poll(3)
    with pytest.raises(CheckpointMismatchError, match="3 values were read before, and the collection has 2"):
        run.open(CollectionSource([1, 2])).add_splits(reader.snapshot())
