"""Families: property (any cut resumes records and watermarks), behaviour of splits, idleness and the end, with the
clock by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.connector import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Polled,
    Split,
    SplitFinished,
)
from headrace.engine.errors import InternalError, SourceError
from headrace.engine.eventtime import WatermarkStrategy
from headrace.engine.metrics import MetricGroup
from headrace.engine.operators import OperatorContext
from headrace.engine.records import MAX_WATERMARK, Batch, StreamStatus, Watermark
from headrace.engine.sources import DEAD_LETTER_TAG, IDLE_WAIT_MS, PollResult, SourceOperator
from headrace.state.backend import RestoredPart
from headrace.state.heap import HeapOperatorStateBackend

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row)


@dataclass
class ListSource:
    """Splits whose payload is their records; None among them means: nothing now."""

    is_bounded: bool = True
    is_concurrent: bool = False
    readers: list[Any] = field(default_factory=list)

    def create_enumerator(self, context):
        raise NotImplementedError

    def create_reader(self):
        self.readers.append(ListReader(self))
        return self.readers[-1]


class ListReader:
    def __init__(self, source):
        self.source = source
        self.splits = {}
        self.is_closed = False
        self.due = None

    def open(self, context):
        self.context = context

    @property
    def wants_split(self):
        return self.source.is_concurrent and len(self.splits) < 2

    def add_splits(self, splits):
        for split in splits:
            self.splits[split.split_id] = [split, split.position or 0]

    def poll(self, max_records):
        if not self.splits:
            return ALL_SPLITS_FINISHED
        split_id = next(iter(self.splits))
        entry = self.splits.pop(split_id)
        split, position = entry
        rows = split.payload["rows"][position : position + max_records]
        if rows and rows[0] == "fail":
            message = "cannot read"
            raise SourceError(message, split=split_id, position=position)
        if rows and rows[0] == "bad":
            self.context.emit_dead_letter(Batch.of_rows([{"raw": "bad"}]))
            entry[1] += 1
            self.splits[split_id] = entry
            return Polled(split_id, Batch.of_rows([]))
        if not rows:
            return SplitFinished(split_id)
        if rows[0] is None:
            self.splits[split_id] = [split, position + 1]
            return NOTHING_NOW
        rows = rows[: rows.index(None)] if None in rows else rows
        self.splits[split_id] = [split, position + len(rows)]
        return Polled(split_id, Batch.of_rows(rows))

    def next_poll_ms(self):
        return self.due

    def snapshot(self):
        return [Split(split.split_id, split.payload, position) for split, position in self.splits.values()]

    def close(self):
        self.is_closed = True


class Recorder:
    """An output that remembers."""

    def __init__(self):
        self.elements = []
        self.side = []

    def emit(self, batch):
        assert batch.num_rows
        self.elements.append(batch.rows)

    def emit_watermark(self, watermark):
        self.elements.append(watermark)

    def emit_status(self, status):
        self.elements.append(status)

    def emit_side(self, tag, batch):
        self.side.append((tag, batch.rows))

    @property
    def rows(self):
        return [row for element in self.elements if isinstance(element, list) for row in element]

    @property
    def watermarks(self):
        return [element.timestamp_ms for element in self.elements if isinstance(element, Watermark)]

    @property
    def statuses(self):
        return [element.idle for element in self.elements if isinstance(element, StreamStatus)]


class Harness:
    """One subtask of a source, driven as a task drives it."""

    def __init__(self, source=None, strategy=MONOTONOUS, parts=(), now_ms=0):
        self.source = source or ListSource()
        self.output = Recorder()
        self.now_ms = now_ms
        self.state = HeapOperatorStateBackend("source")
        self.state.restore(parts, 0, 1)
        self.operator = SourceOperator(self.source, strategy)
        context = OperatorContext(
            operator="source",
            name="source",
            subtask=0,
            parallelism=1,
            max_parallelism=128,
            attempt="source[0]#0.0",
            job="job",
            output=self.output,
            keyed_state=None,
            operator_state=self.state,
            metrics=MetricGroup(),
            now_ms=lambda: self.now_ms,
            probe=lambda point: None,
        )
        self.operator.open(context)

    def poll(self, max_records=100):
        return self.operator.poll_next(max_records)

    def add(self, split_id, *rows):
        self.operator.split_requested()
        self.operator.add_split(Split(split_id, {"rows": list(rows)}))

    def snapshot(self):
        self.operator.snapshot_state(1)
        return [
            RestoredPart(p.state, p.kind, json.loads(json.dumps(p.metadata)), p.write(), 0)
            for p in self.state.snapshot()
        ]


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
    operator.add_split(Split("a", {"rows": [1, 2]}))
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


def test_a_bounded_source_between_splits_is_not_idle():
    source = Harness()
    source.poll()
    source.operator.split_requested()
    source.now_ms = 100 * IDLE_WAIT_MS
    source.poll()
    assert source.output.statuses == []


def test_an_unbounded_source_that_waits_for_long_is_idle_until_a_split_comes():
    source = Harness(ListSource(is_bounded=False))
    source.poll()
    source.operator.split_requested()
    assert source.operator.next_poll_ms() == IDLE_WAIT_MS
    source.now_ms = IDLE_WAIT_MS - 1
    source.poll()
    assert source.output.statuses == []
    source.now_ms = IDLE_WAIT_MS
    source.poll()
    assert source.output.statuses == [True]
    assert source.operator.next_poll_ms() is None
    source.add("a", 1)
    source.poll()
    assert source.output.elements == [StreamStatus(True), StreamStatus(False), [1], Watermark(0)]


def test_an_idle_source_is_active_again_before_it_ends():
    source = Harness(ListSource(is_bounded=False))
    source.poll()
    source.now_ms = IDLE_WAIT_MS
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
@settings(max_examples=150, deadline=None)
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
                    run.operator.add_split(waiting.pop(0))
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
