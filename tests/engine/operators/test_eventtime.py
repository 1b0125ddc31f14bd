"""Event time: reading it, watermarks and their combination, idleness.

A property test compares the combiner with a few obvious lines; the rest are the rules one by one.
"""

from __future__ import annotations

import pickle
from datetime import date, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.columns.expressions import col
from headrace.engine.columns.records import MIN_TIMESTAMP, Batch
from headrace.engine.errors import ConfigurationError, ProgramError, TypeMismatchError, UserFunctionError
from headrace.engine.operators.event_time import (
    EventTimeTracker,
    WatermarkGenerator,
    WatermarkStrategy,
)

UTC = timezone.utc


def rows_of(*times):
    return Batch.of_rows([{"time": time} for time in times])


def times_by(assigner, batch):
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner).extract(batch)
    assert times.dtype == np.int64
    return times.tolist()


# ----------------------------------------------------------------------------------------------------------- timestamps


def test_timestamps_come_from_functions_objects_fields_and_expressions():
    class Assigner:
        def extract_timestamp(self, value, record_timestamp):
            return value["time"] + 1

    batch = rows_of(5, 7)
    assert times_by(lambda row, _: row["time"], batch) == [5, 7]
    assert times_by(lambda row: row["time"], batch) == [5, 7]
    assert times_by(Assigner(), batch) == [6, 8]
    assert times_by("time", batch) == [5, 7]
    assert times_by(col("time") * 10, batch) == [50, 70]
    assert times_by("time", Batch.of_columns(pa.record_batch({"time": [5, 7]}))) == [5, 7]


def test_a_function_sees_the_timestamp_so_far():
    batch = Batch.of_rows(["a", "b"], np.array([3, 4]))
    assert times_by(lambda _row, so_far: so_far + 1, batch) == [4, 5]
    assert times_by(lambda _row, so_far: 0 if so_far == MIN_TIMESTAMP else 1, Batch.of_rows(["a"])) == [0]


def test_datetimes_are_utc_and_rounded_down_on_rows_and_columns():
    moments = [
        datetime(1970, 1, 1, 0, 0, 1),  # noqa: DTZ001
        datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
        datetime(2024, 2, 29, 12, 0, 0, 1_999),  # noqa: DTZ001
    ]
    expected = [1_000, -1, 1_709_208_000_001]
    assert times_by("time", rows_of(*moments)) == expected
    assert times_by("time", rows_of(*(m.replace(tzinfo=UTC) for m in moments))) == expected
    for unit in ("us", "ns"):
        column = pa.array(moments, pa.timestamp(unit))
        assert times_by("time", Batch.of_columns(pa.record_batch({"time": column}))) == expected
    berlin = datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=1)))
    assert times_by("time", rows_of(berlin)) == [3_600_000]
    days = pa.record_batch({"time": pa.array([date(1970, 1, 3)])})
    assert times_by("time", Batch.of_columns(days)) == [2 * 86_400_000]
    seconds = pa.record_batch({"time": pa.array([3], pa.timestamp("s", "Asia/Tokyo"))})
    assert times_by("time", Batch.of_columns(seconds)) == [3_000]


@pytest.mark.parametrize("bad", [None, "noon", 1.5, True, 2**63])
def test_a_record_without_a_usable_timestamp_is_named(bad):
    with pytest.raises(TypeMismatchError):
        times_by(lambda row: row["time"], rows_of(1, bad))


def test_null_and_mistyped_columns_are_refused():
    for column in ([1, None], [1.0, 2.0], ["a", "b"]):
        with pytest.raises(TypeMismatchError, match="time"):
            times_by("time", Batch.of_columns(pa.record_batch({"time": column})))
    for batch in (rows_of(1), Batch.of_columns(pa.record_batch({"time": [1]}))):
        with pytest.raises(TypeMismatchError, match="'other' is not in the record"):
            times_by("other", batch)


def test_a_failing_assigner_is_the_users_failure():
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        times_by(lambda row: row["time"] // 0, rows_of(1))


def test_what_is_no_assigner_or_no_duration_is_refused():
    with pytest.raises(ProgramError):
        WatermarkStrategy.no_watermarks().with_timestamp_assigner(5)
    with pytest.raises(ConfigurationError):
        WatermarkStrategy.for_bounded_out_of_orderness(-1)
    with pytest.raises(ConfigurationError):
        WatermarkStrategy.no_watermarks().with_idleness(0)


def test_strategies_are_picklable_values():
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 s").with_timestamp_assigner("t").with_idleness("1 min")
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    assert strategy.idle_timeout_ms == 60_000


# -------------------------------------------------------------------------------------------------------------- tracker


def take(tracker, *times, now=0):
    tracker.take(Batch.of_rows(list(times), np.array(times)), now)
    return tracker.watermark_ms


def test_bounded_out_of_orderness_is_the_highest_time_less_the_bound_less_one():
    tracker = EventTimeTracker(WatermarkStrategy.for_bounded_out_of_orderness(10), 0)
    assert tracker.watermark_ms == MIN_TIMESTAMP
    assert take(tracker, 100, 90) == 89
    assert take(tracker, 50) == 89
    assert take(tracker, 101) == 90


def test_monotonous_timestamps_allow_another_record_of_the_same_time():
    assert take(EventTimeTracker(WatermarkStrategy.for_monotonous_timestamps(), 0), 100) == 99


def test_without_watermarks_records_may_have_no_time():
    tracker = EventTimeTracker(WatermarkStrategy.no_watermarks(), 0)
    assert tracker.take(Batch.of_rows(["a"]), 0).timestamps is None
    assert take(tracker, 5) == MIN_TIMESTAMP
    with pytest.raises(ProgramError, match="no timestamp assigner"):
        EventTimeTracker(WatermarkStrategy.for_monotonous_timestamps(), 0).take(Batch.of_rows(["a"]), 0)


def test_ingestion_time_goes_by_the_clock_and_never_back():
    tracker = EventTimeTracker(WatermarkStrategy.for_ingestion_time(), 1_000)
    assert tracker.take(Batch.of_rows(["a", "b"]), 1_050).timestamps.tolist() == [1_050, 1_050]
    assert tracker.watermark_ms == 1_049
    assert tracker.next_time() == 1_200
    tracker.on_time(1_200)
    assert tracker.watermark_ms == 1_199
    assert tracker.take(Batch.of_rows(["c"]), 900).timestamps.tolist() == [1_200]


def test_a_generator_of_ones_own_may_look_at_records_and_at_time():
    class Punctuated(WatermarkGenerator):
        interval_ms = 50

        def on_event(self, value, timestamp):
            return timestamp if value == "end" else None

        def on_periodic_emit(self, now_ms):
            return now_ms - 1_000

    tracker = EventTimeTracker(WatermarkStrategy.for_generator(Punctuated), 0)
    tracker.take(Batch.of_rows(["a", "end", "b"], np.array([1, 2, 3])), 0)
    assert tracker.watermark_ms == 2
    tracker.on_time(tracker.next_time())
    assert tracker.watermark_ms == 2
    tracker.on_time(2_000)
    assert tracker.watermark_ms == 1_000


def test_a_restored_tracker_goes_on():
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(10)
    first = EventTimeTracker(strategy, 0)
    take(first, 100)
    second = EventTimeTracker(strategy, 0)
    second.restore(first.snapshot())
    assert second.watermark_ms == 89
    assert take(second, 50) == 89
    fresh = EventTimeTracker(strategy, 0)
    fresh.restore(EventTimeTracker(strategy, 0).snapshot())
    assert fresh.watermark_ms == MIN_TIMESTAMP


def test_an_input_is_idle_after_the_timeout_and_active_with_the_next_record():
    tracker = EventTimeTracker(WatermarkStrategy.for_monotonous_timestamps().with_idleness(100), 0)
    for now in (50, 100):
        assert not tracker.is_idle
        assert tracker.next_time() == now
        tracker.on_time(now)
    assert tracker.is_idle
    take(tracker, 1, now=130)
    assert not tracker.is_idle
    tracker.on_time(150)  # 20 ms without a record
    tracker.on_time(200)  # 70 ms
    assert not tracker.is_idle
    tracker.on_time(250)
    assert tracker.is_idle


def test_a_task_that_did_not_run_does_not_make_its_input_idle():
    tracker = EventTimeTracker(WatermarkStrategy.for_monotonous_timestamps().with_idleness(100), 0)
    tracker.on_time(10_000)  # long backpressured: the records are waiting
    assert not tracker.is_idle
    take(tracker, 1, now=10_001)
    tracker.on_time(20_000)
    assert not tracker.is_idle


# ------------------------------------------------------------------------------------------------------ clock and quiet
def test_a_quiet_input_goes_on_with_the_clock_and_a_record_starts_it_anew():
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(10).with_quiet_advance(400)
    tracker = EventTimeTracker(strategy, 0)
    for now in range(0, 2_001, 200):
        tracker.on_time(now)
    assert tracker.watermark_ms == MIN_TIMESTAMP, "nothing to go on from"
    take(tracker, 1_000, now=2_000)
    assert tracker.watermark_ms == 989
    for now in (2_200, 2_400):
        tracker.on_time(now)
    assert tracker.watermark_ms == 989
    tracker.on_time(2_600)
    assert tracker.watermark_ms == 989 + 200
    assert take(tracker, 1_100, now=2_700) == 989 + 200, "late: it never goes back"
    for now in range(2_900, 3_701, 200):
        tracker.on_time(now)
    assert tracker.watermark_ms == 1_189 + 600


def test_a_restored_quiet_input_goes_on_from_its_watermark():
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_quiet_advance(100)
    first = EventTimeTracker(strategy, 0)
    take(first, 1_000)
    for now in range(50, 301, 50):
        first.on_time(now)
    assert first.watermark_ms == 999 + 200
    second = EventTimeTracker(strategy, 5_000)
    second.restore(first.snapshot())
    for now in range(5_050, 5_151, 50):
        second.on_time(now)
    assert second.watermark_ms == 1_199 + 50


def test_time_in_which_an_input_is_held_or_its_task_does_not_run_is_not_silence():
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_quiet_advance(100).with_idleness(100)
    tracker = EventTimeTracker(strategy, 0)
    take(tracker, 1_000)
    for now in range(0, 10_000, 20):
        tracker.hold(now)
        tracker.on_time(now)
    tracker.on_time(60_000)  # a stopped process
    assert tracker.watermark_ms == 999
    assert not tracker.is_idle


def test_an_input_that_the_clock_carries_on_is_not_idle():
    """It has a watermark to give, which nobody takes from an idle input."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_quiet_advance(200).with_idleness(100)
    tracker = EventTimeTracker(strategy, 0)
    seen = []
    take(tracker, 1_000)
    for now in range(0, 401, 50):
        tracker.on_time(now)
        seen.append((tracker.is_idle, tracker.watermark_ms))
    assert seen[2:5] == [(True, 999)] * 3
    assert seen[5:] == [(False, 999 + 50 * n) for n in (1, 2, 3, 4)]


def test_a_generator_that_overrides_the_periodic_method_is_asked_without_further_ado():
    class Lagging(WatermarkGenerator):
        def on_periodic_emit(self, now_ms):
            return now_ms - 5

    tracker = EventTimeTracker(WatermarkStrategy.for_generator(Lagging), 0)
    assert tracker.next_time() == 200
    tracker.on_time(200)
    assert tracker.watermark_ms == 195


@pytest.mark.parametrize("after", [0, "-1 s"])
def test_a_quiet_time_must_be_positive(after):
    with pytest.raises(ConfigurationError, match="after must be positive"):
        WatermarkStrategy.for_monotonous_timestamps().with_quiet_advance(after)


@settings(deadline=None)
@given(
    events=st.lists(st.tuples(st.integers(1, 150), st.one_of(st.none(), st.integers(0, 2_000))), max_size=40),
    after=st.integers(1, 300),
)
def test_the_clock_never_carries_event_time_further_than_it_went_itself(events, after):
    """Oracle: at most the highest record's watermark plus the processing time since the last record, less ``after``."""
    tracker = EventTimeTracker(WatermarkStrategy.for_monotonous_timestamps().with_quiet_advance(after), 0)
    now, since, base, last = 0, 0, MIN_TIMESTAMP, MIN_TIMESTAMP
    for step, record in events:
        now += step
        if record is None:
            tracker.on_time(now)
        else:
            take(tracker, record, now=now)
            base, since = max(last, record - 1), now
        assert tracker.watermark_ms >= last
        assert tracker.watermark_ms <= max(base, base + (now - since) - after) or base == MIN_TIMESTAMP
        last = tracker.watermark_ms
        if base == MIN_TIMESTAMP:
            assert last == MIN_TIMESTAMP


@pytest.mark.parametrize(
    ("times", "is_told"),
    [
        ([1_700_000_000, 1_700_000_005], True),
        ([1_700_000_000_000], False),
        ([0, 5, 10], False),
        ([1_700_000_000, 1_700_000_000_000], False),
    ],
)
def test_times_in_seconds_are_told_once(times, is_told):
    told = []
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("t")
    tracker = EventTimeTracker(strategy, 0, told.append)
    for _ in range(2):
        tracker.take(Batch.of_rows([{"t": time} for time in times]), 0)
    assert len(told) == is_told
    assert all("look like seconds" in sentence for sentence in told)
