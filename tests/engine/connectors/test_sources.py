"""Families: property (any cut resumes records and watermarks), behaviour of splits, idleness, stops and the end, with
the clock by hand."""

from __future__ import annotations

import pickle

import cloudpickle
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from source_harness import MONOTONOUS, Harness, ListSource

from headrace.engine.columns.records import MAX_WATERMARK, Batch, StreamStatus, Watermark
from headrace.engine.connectors.contract import ALL_SPLITS_FINISHED, NOTHING_NOW, Polled, Split
from headrace.engine.connectors.sources import DEAD_LETTER_TAG, PollResult, SourceOperator
from headrace.engine.errors import InternalError, SourceError
from headrace.engine.operators.event_time import EventTimeTracker

IDLE_AFTER_A_SECOND = MONOTONOUS.with_idleness("1 s")


def test_one_split_is_asked_for_at_a_time():
    source = Harness()
    operator = source.operator
    assert operator.requests_split
    assert source.poll() is PollResult.NOTHING
    assert operator.is_waiting_for_split
    assert operator.next_poll_ms() is None
    assert operator.wants_split
    operator.split_requested()
    assert not operator.wants_split
    operator.add_splits([Split("a", {"rows": [1, 2]})])
    assert not operator.wants_split
    assert not operator.is_waiting_for_split
    assert source.poll() is PollResult.MORE
    assert not operator.wants_split
    assert source.poll() is PollResult.MORE
    assert operator.wants_split


def test_a_reader_may_want_several_splits_at_once():
    source = Harness(ListSource(is_concurrent=True))
    source.add("a", 1, 5)
    assert source.operator.wants_split
    source.add("b", 3)
    assert not source.operator.wants_split
    source.poll(1)
    source.poll(1)
    assert source.output.rows == [1, 3]
    assert source.output.watermarks == [0]


def test_splits_that_are_only_kept_are_no_load():
    """Where a reader has read some to their end and keeps them, others are dealt out as if these were gone."""
    source = Harness(ListSource(is_bounded=False))
    source.add("a", 1)
    source.add("b", 2)
    operator = source.operator
    assert operator.split_requested()[0] == 2
    assert not operator.wants_split
    operator._reader.num_kept = 1
    assert operator.wants_split, "to say that it has room"
    assert operator.split_requested()[0] == 1
    assert not operator.wants_split


def test_a_poll_does_not_look_at_all_splits(monkeypatch):
    source = Harness(strategy=IDLE_AFTER_A_SECOND)
    for number in range(300):
        source.add(f"split {number:03}", number, number + 1_000)
    looked = []
    original = EventTimeTracker.next_time

    def next_time(self):
        looked.append(self)
        return original(self)

    monkeypatch.setattr(EventTimeTracker, "next_time", next_time)
    for number in range(300):
        source.poll(1)
        assert source.operator.next_poll_ms() is not None
        assert source.output.rows == list(range(number + 1))
    assert len(looked) == 0
    assert source.output.watermarks == [-1]  # the lowest of all splits, once each has one
    source.now_ms = 500
    source.poll(1)
    assert len(looked) == 300  # the time has come to look at each


def test_the_end_is_told_once_all_splits_are_read():
    source = Harness()
    source.add("a", 1)
    source.operator.no_more_splits()
    results = [source.poll() for _ in range(4)]
    assert results == [PollResult.MORE, PollResult.MORE, PollResult.ENDED, PollResult.ENDED]
    assert source.output.elements == [[1], Watermark(0), MAX_WATERMARK]
    assert not source.operator.wants_split


def test_a_subtask_without_any_split_ends_as_well():
    source = Harness()
    source.poll()
    source.operator.split_requested()
    source.operator.no_more_splits()
    assert source.poll() is PollResult.ENDED
    assert source.output.elements == [MAX_WATERMARK]


def test_the_watermark_is_the_lowest_of_the_splits_and_never_goes_back():
    source = Harness(ListSource(is_concurrent=True))
    source.add("a", 10, 20, 30)
    source.poll(1)
    assert source.output.watermarks == [9]
    source.add("b", 5, 15, 25)
    for _ in range(6):
        source.poll(1)
    assert source.output.rows == [10, 20, 5, 30, 15, 25]
    assert source.output.watermarks == [9, 14, 24]
    source.poll()
    assert source.output.watermarks == [9, 14, 24], "a has ended, b stands at 24"


def test_the_watermark_follows_its_batch():
    source = Harness()
    source.add("a", 1, 2)
    source.poll()
    assert source.output.elements == [[1, 2], Watermark(1)]


def test_a_split_that_comes_when_event_time_is_past_it_is_told_of_once():
    """Splits are read one after another; of the first one nobody can say that, nor of one that goes on from there."""
    source = Harness()
    for split_id, times in (("a", (10, 20)), ("b", (20, 30)), ("c", (5, 15)), ("d", (7,))):
        source.add(split_id, *times)
        for _ in range(4):
            source.poll(1)
    ((_, told),) = source.warnings
    assert told.startswith("split 'c' begins 24 ms behind event time"), told


def test_timestamps_are_given_to_records():
    source = Harness()
    batches = []
    source.output.emit = batches.append
    source.add("a", 7, 8)
    source.poll()
    assert batches[0].timestamps.tolist() == [7, 8]


def test_an_idle_split_holds_nobody_back():
    strategy = MONOTONOUS.with_idleness("1 s")
    source = Harness(ListSource(is_concurrent=True), strategy)
    source.add("a", *([None] * 50))
    source.add("b", *range(10, 60))
    for source.now_ms in range(0, 3000, 250):
        source.poll(1)
        source.poll(1)
    assert source.output.watermarks[-1] == source.output.rows[-1] - 1
    assert source.output.watermarks[0] > 9
    assert source.output.statuses == []


def test_a_subtask_is_idle_when_all_its_splits_are():
    source = Harness(ListSource(is_bounded=False), MONOTONOUS.with_idleness("1 s"))
    source.add("a", 1, *([None] * 12), 50)
    for source.now_ms in range(0, 3000, 250):
        assert source.poll() is (PollResult.MORE if source.now_ms == 0 else PollResult.NOTHING)
        assert source.operator.next_poll_ms() <= source.now_ms + 500
    assert source.output.statuses == [True]
    source.poll()
    source.poll()
    assert source.output.elements[-3:] == [StreamStatus(False), [50], Watermark(49)]


@pytest.mark.parametrize("first", ["low", "high"])
def test_splits_that_fall_idle_together_do_not_move_each_other(first):
    """Whatever their order: the slower one's next records are in time."""
    source = Harness(ListSource(is_bounded=False, is_concurrent=True), MONOTONOUS.with_idleness("1 s"))
    for name in sorted(("low", "high"), key=lambda name: name != first):
        source.add(name, 500 if name == "low" else 1_000, *[None] * 10)
    source.poll(1)
    source.poll(1)
    assert source.output.watermarks == [499]
    for source.now_ms in range(0, 3_000, 250):
        source.poll(1)
    assert source.output.watermarks == [499]
    assert source.output.statuses == [True]


def test_a_bounded_source_between_splits_is_not_idle():
    source = Harness(strategy=IDLE_AFTER_A_SECOND)
    source.poll()
    source.operator.split_requested()
    source.now_ms = 100_000
    source.poll()
    assert source.output.statuses == []


def test_an_unbounded_source_without_idleness_is_never_idle():
    """Were it, its next split's records could be late: event time is that of the slowest subtask."""
    source = Harness(ListSource(is_bounded=False))
    source.add("a", 5)
    source.poll()
    source.poll()
    source.operator.split_requested()
    assert source.operator.next_poll_ms() is None
    source.now_ms = 100_000
    source.poll()
    assert source.output.statuses == []


def test_an_unbounded_source_that_waits_for_long_is_idle_until_a_split_comes():
    source = Harness(ListSource(is_bounded=False), IDLE_AFTER_A_SECOND)
    source.poll()
    source.operator.split_requested()
    assert source.operator.next_poll_ms() == 1_000
    source.now_ms = 999
    source.poll()
    assert source.output.statuses == []
    source.now_ms = 1_000
    source.poll()
    assert source.output.statuses == [True]
    assert source.operator.next_poll_ms() is None
    source.add("a", 1)
    source.poll()
    assert source.output.elements == [StreamStatus(True), StreamStatus(False), [1], Watermark(0)]


def test_an_idle_source_is_active_again_before_it_ends():
    source = Harness(ListSource(is_bounded=False), IDLE_AFTER_A_SECOND)
    source.poll()
    source.now_ms = 1_000
    source.poll()
    source.operator.no_more_splits()
    source.poll()
    assert source.output.elements == [StreamStatus(True), StreamStatus(False), MAX_WATERMARK]


def test_the_next_poll_is_when_the_reader_says():
    source = Harness(ListSource())
    source.add("a", None, None)
    assert source.poll() is PollResult.NOTHING
    assert source.operator.next_poll_ms() == 20
    source.source.readers[0].due = 7
    assert source.operator.next_poll_ms() == 7


def test_dead_letters_go_to_their_side_output():
    source = Harness()
    source.add("a", "bad", 1)
    assert source.poll(1) is PollResult.MORE
    source.poll(1)
    assert source.output.side == [(DEAD_LETTER_TAG, [{"raw": "bad"}])]
    assert source.output.rows == [1]


def test_failures_of_the_reader_come_out_and_close_lets_go():
    source = Harness()
    source.add("a", "fail")
    with pytest.raises(SourceError, match="split 'a'"):
        source.poll()
    source.operator.close()
    source.operator.close()
    assert source.source.readers[0].is_closed


def test_closing_before_opening_is_harmless():
    SourceOperator(ListSource(), MONOTONOUS).close()


def test_a_split_that_is_handed_out_twice_is_a_bug_and_said_so():
    source = Harness()
    source.add("a", 1)
    with pytest.raises(InternalError, match="handed out twice"):
        source.add("a", 1)


@given(
    st.lists(st.lists(st.integers(0, 100), max_size=12), min_size=1, max_size=4),
    st.lists(st.integers(1, 6), max_size=8),
    st.booleans(),
)
@settings(max_examples=examples(150), deadline=None)
def test_any_cut_resumes_records_and_watermarks(splits, cuts, is_concurrent):
    """Interrupted runs give the records of a whole one, and each prefix of watermarks is what the records allow."""
    waiting = [Split(f"s{i}", {"rows": rows}) for i, rows in enumerate(splits)]
    rows, parts = [], ()
    plan = iter(cuts)
    watermark = None
    while True:
        run = Harness(ListSource(is_concurrent=is_concurrent), parts=parts)
        budget = next(plan, None)
        ended = False
        while budget is None or budget > 0:
            budget = None if budget is None else budget - 1
            result = run.poll(2)
            if result is PollResult.ENDED:
                ended = True
                break
            if run.operator.wants_split:
                run.operator.split_requested()
                if waiting:
                    run.operator.add_splits([waiting.pop(0)])
                else:
                    run.operator.no_more_splits()
        rows.extend(run.output.rows)
        assert run.output.watermarks == sorted(set(run.output.watermarks))
        if ended:
            assert run.output.watermarks[-1] == MAX_WATERMARK.timestamp_ms
            break
        parts = run.snapshot()
        watermark = run.output.watermarks[-1] if run.output.watermarks else watermark
        resumed = Harness(ListSource(is_concurrent=is_concurrent), parts=parts)
        tracked = [tracker.watermark_ms for tracker in resumed.operator._trackers.values()]
        assert tracked == [tracker.watermark_ms for tracker in run.operator._trackers.values()] or is_concurrent
        assert sorted(tracked) == sorted(tracker.watermark_ms for tracker in run.operator._trackers.values())
    assert sorted(rows) == sorted(row for split in splits for row in split)


def test_several_restored_splits_hold_each_other_back():
    source = Harness(ListSource(is_concurrent=True))
    source.add("a", 100, 200)
    source.add("b", 10, 20, 30)
    for _ in range(3):
        source.poll(1)
    resumed = Harness(ListSource(is_concurrent=True), parts=source.snapshot())
    resumed.poll(1)
    assert resumed.output.elements == [[20], Watermark(19)] or resumed.output.elements[0] == [30]
    assert all(watermark < 30 for watermark in resumed.output.watermarks)


# ------------------------------------------------------------------------------------------------------------- stopping
def test_a_stopped_source_reads_nothing_more_and_emits_nothing():
    source = Harness()
    source.add("a", 1, 2, 3)
    source.poll(1)
    source.operator.stop(drain=False)
    assert [source.poll(1) for _ in range(3)] == [PollResult.NOTHING] * 3
    assert source.operator.is_waiting_for_split
    assert source.operator.next_poll_ms() is None
    assert not source.operator.wants_split
    assert source.output.elements == [[1], Watermark(0)]
    resumed = Harness(parts=source.snapshot())
    resumed.poll()
    assert resumed.output.rows == [2, 3]


def test_a_drained_source_ends_and_keeps_its_place():
    source = Harness()
    source.add("a", 1, 2, 3)
    source.poll(1)
    source.operator.stop(drain=True)
    source.operator.stop(drain=False)
    assert [source.poll(1), source.poll(1)] == [PollResult.ENDED] * 2
    assert source.output.elements == [[1], Watermark(0), MAX_WATERMARK]
    source.add("b", 9)  # the answer to a request that was under way
    resumed = Harness(parts=source.snapshot())
    for _ in range(6):
        resumed.poll()
    assert resumed.output.rows == [2, 3, 9]


def test_an_idle_source_that_is_drained_is_active_again_first():
    source = Harness(ListSource(is_bounded=False), IDLE_AFTER_A_SECOND)
    source.poll()
    source.now_ms = 1_000
    source.poll()
    source.operator.stop(drain=True)
    source.poll()
    assert source.output.elements == [StreamStatus(True), StreamStatus(False), MAX_WATERMARK]


# ----------------------------------------------------------------------------------------------------------- event time
def test_a_watermark_that_the_source_knows_counts_beside_the_strategy():
    source = Harness()
    source.add("a", 5)
    source.poll()
    [reader] = source.source.readers
    for watermark_ms, rows in ((3, []), (10, []), (20, [12]), (2**63 - 1, [])):
        reader.poll = lambda _n, w=watermark_ms, r=rows: Polled("a", Batch.of_rows(r), w)
        source.poll()
    assert source.output.elements == [[5], Watermark(4), Watermark(10), [12], Watermark(20), Watermark(2**63 - 2)]


def test_a_quiet_split_goes_on_with_the_clock():
    source = Harness(ListSource(is_bounded=False), MONOTONOUS.with_quiet_advance("1 s"))
    source.add("a", 500, *[None] * 200)
    for source.now_ms in range(0, 3_001, 100):
        source.poll()
    assert source.output.statuses == []
    assert source.output.watermarks[0] == 499
    assert source.output.watermarks[-1] == 499 + 3_000 - 1_000
    assert source.output.watermarks == sorted(set(source.output.watermarks))


@settings(max_examples=examples(150), deadline=None)
@given(
    plan=st.lists(st.one_of(st.integers(0, 60), st.none(), st.none()), min_size=1, max_size=40),
    other=st.lists(st.one_of(st.integers(0, 60), st.none(), st.none()), min_size=1, max_size=40),
    steps=st.lists(st.integers(1, 80), min_size=80, max_size=80),
    timeout=st.integers(20, 200),
    is_quiet_advance=st.booleans(),
)
def test_idle_and_waking_splits_never_move_a_watermark_back(plan, other, steps, timeout, is_quiet_advance):
    """Oracle: watermarks only rise; without the clock none passes the highest that any split's records allow; a split
    counts as idle only after its timeout; and the source is idle only while all its splits are."""
    strategy = MONOTONOUS.with_idleness(timeout)
    if is_quiet_advance:
        strategy = strategy.with_quiet_advance(timeout)
    source = Harness(ListSource(is_bounded=False, is_concurrent=True), strategy)
    source.add("a", *plan, *[None] * 80)
    source.add("b", *other, *[None] * 80)
    last_record = {"a": 0, "b": 0}
    for step in steps:
        source.now_ms += step
        before = len(source.output.rows)
        newest = next(iter(source.source.readers[0].splits), None)
        source.poll(1)
        if len(source.output.rows) > before:
            last_record[newest] = source.now_ms
        trackers = source.operator._trackers
        for split_id, tracker in trackers.items():
            if tracker.is_idle:
                assert source.now_ms - last_record[split_id] >= timeout
        if trackers:
            assert source.operator._is_idle == all(tracker.is_idle for tracker in trackers.values())
    assert source.output.watermarks == sorted(set(source.output.watermarks))
    if not is_quiet_advance and source.output.watermarks:
        assert source.output.watermarks[-1] <= max(source.output.rows) - 1


@pytest.mark.parametrize("marker", [NOTHING_NOW, ALL_SPLITS_FINISHED], ids=repr)
def test_a_marker_that_travelled_with_a_program_is_still_the_one(marker):
    """Else a reader written in a script is polled without a pause, or never ends."""
    carried = eval("lambda: marker", {"marker": marker})  # pickled by value, with what it names
    assert pickle.loads(cloudpickle.dumps(carried))() is marker
