"""Windowed aggregates on columns against a slow oracle, in both phases, through crashes and rescaling.

Families: oracle (every record put into every window by hand), crash (snapshot at a random cut, restore at another
parallelism, go on), differential (the row path's window operator, the single phase). The risk is time: borders of
windows before 1970 and with offsets, lateness per window, and state that outlives its windows or goes too early.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from campaigns import examples
from column_windows import MAX_PARALLELISM, ColumnPipeline, context_of
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_harness import keyed_state

from headrace.engine.columns.expressions import col
from headrace.engine.columns.records import MIN_TIMESTAMP, Batch, StreamStatus, Watermark
from headrace.engine.functions.aggregates import built_in as agg
from headrace.engine.functions.aggregates.by_row import RowAggregates
from headrace.engine.functions.keys import KeySelector
from headrace.engine.windows.all_windows import OneKey
from headrace.engine.windows.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from headrace.engine.windows.columnar.slice_grouping import SliceLayout
from headrace.engine.windows.columnar.slices import GlobalSliceAggregate, LocalSliceAggregate
from headrace.engine.windows.window_operator import WindowOperator
from headrace.state.backends.heap.backend import HeapOperatorStateBackend
from headrace.state.errors import CheckpointMismatchError, ProgramError, TypeMismatchError, UserFunctionError

END = Watermark(2**63 - 1)
AGGREGATES = {
    "n": agg.count(),
    "total": agg.sum("v"),
    "smallest": agg.min("v"),
    "largest": agg.max("v"),
    "mean": agg.avg("v"),
    "kinds": agg.count_distinct("v"),
}
IN_ORDER = {**AGGREGATES, "earliest": agg.first("v"), "latest": agg.last("v")}


@dataclasses.dataclass(frozen=True)
class Windows:
    size_ms: int
    slide_ms: int
    offset_ms: int = 0

    def is_event_time(self):
        return True


class Pipeline(ColumnPipeline):
    def __init__(
        self, windows, aggregates, *, keys=("k",), parallelism=1, two_phase=True, parts=(), anew=False, **options
    ):
        selector = list(keys) or OneKey()
        super().__init__(
            keys,
            partial(LocalSliceAggregate, selector, windows, aggregates) if two_phase else None,
            partial(GlobalSliceAggregate, selector, windows, aggregates, from_records=not two_phase, **options),
            parallelism=parallelism,
            parts=parts,
            anew=anew,
        )


class Oracle:
    """Every record in every window it belongs to; Flink's rules one by one."""

    def __init__(self, windows, lateness=0):
        self.windows = windows
        self.lateness = lateness
        self.watermark = MIN_TIMESTAMP
        self.content = {}
        self.late = []
        self.results = []

    def assigned(self, time):
        size, slide, offset = self.windows.size_ms, self.windows.slide_ms, self.windows.offset_ms
        start = time - (time - offset) % slide
        while start > time - size:
            yield start
            start -= slide

    def process(self, records):
        changed = []
        for key, value, time in records:
            is_skipped = True
            for start in self.assigned(time):
                last = start + self.windows.size_ms - 1
                if last + self.lateness <= self.watermark:
                    continue
                is_skipped = False
                self.content.setdefault((start, key), []).append(value)
                if last <= self.watermark and (start, key) not in changed:
                    changed.append((start, key))
            if is_skipped and time + self.lateness <= self.watermark:
                self.late.append((key, value))
        for start, key in changed:
            self.fire(start, key)

    def advance(self, watermark):
        before, self.watermark = self.watermark, max(watermark, self.watermark)
        for start, key in sorted(self.content, key=repr):
            last = start + self.windows.size_ms - 1
            if before < last <= self.watermark:
                self.fire(start, key)
            if last + self.lateness <= self.watermark:
                del self.content[start, key]

    def fire(self, start, key):
        values = self.content[start, key]
        known = [value for value in values if value is not None]
        self.results.append(
            {
                "k": key,
                "start": start,
                "n": len(values),
                "total": sum(known) if known else None,
                "smallest": min(known, default=None),
                "largest": max(known, default=None),
                "mean": sum(known) / len(known) if known else None,
                "kinds": len(set(known)),
                "earliest": known[0] if known else None,
                "latest": known[-1] if known else None,
            }
        )


def counted(results, names):
    return Counter(tuple(_exact(row[name]) for name in names) for row in results)


def _exact(value):
    return round(value, 6) if isinstance(value, float) else value


def epoch_ms(time):
    return round((time.replace(tzinfo=None) - EPOCH).total_seconds() * 1000)


EPOCH = pa.scalar(0, pa.timestamp("ms")).as_py()


def shown(rows, size):
    """Result rows in the oracle's form."""
    results = []
    for row, time in rows:
        start = epoch_ms(row.pop("window_start"))
        assert epoch_ms(row.pop("window_end")) == start + size
        assert time == start + size - 1
        results.append({**row, "start": start})
    return results


def batch_of(records, key_type=None):
    key_type = pa.int64() if key_type is None else key_type
    columns = pa.RecordBatch.from_arrays(
        [pa.array([k for k, _, _ in records], key_type), pa.array([v for _, v, _ in records], pa.int64())],
        names=["k", "v"],
    )
    return Batch.of_columns(columns, np.array([t for _, _, t in records], np.int64))


WINDOWS = st.one_of(
    st.builds(lambda size, offset: Windows(size, size, offset), st.integers(1, 12), st.integers(0, 3)),
    st.builds(Windows, st.integers(1, 24), st.integers(1, 12), st.integers(-5, 5)),
)
RECORDS = st.lists(
    st.tuples(st.none() | st.integers(0, 3), st.none() | st.integers(-3, 3), st.integers(-40, 40)), max_size=10
)
EVENTS = st.lists(RECORDS | st.integers(-40, 60), max_size=14)


def feed(pipeline, oracle, events):
    for event in events:
        if isinstance(event, list):
            oracle.process(event)
            if event:
                pipeline.process(batch_of(event))
        elif event > oracle.watermark:
            oracle.advance(event)
            pipeline.watermark(event)


@settings(max_examples=examples(300), deadline=None)
@given(WINDOWS, EVENTS, st.booleans(), st.integers(0, 15), st.integers(1, 3))
def test_windows_are_those_of_the_oracle(windows, events, two_phase, lateness, parallelism):
    """In any order, with offsets, before 1970, with late records and windows that fire again."""
    aggregates = AGGREGATES if two_phase else IN_ORDER
    pipeline = Pipeline(windows, aggregates, two_phase=two_phase, parallelism=parallelism, allowed_lateness_ms=lateness)
    oracle = Oracle(windows, lateness)
    feed(pipeline, oracle, [*events, END.timestamp_ms])
    names = ["k", "start", *aggregates]
    assert counted(shown(pipeline.take(), windows.size_ms), names) == counted(oracle.results, names)
    assert pipeline.num_late() == len(oracle.late)
    assert pipeline.num_runs() == 0


@settings(max_examples=examples(150), deadline=None)
@given(WINDOWS, EVENTS, EVENTS, st.booleans(), st.integers(0, 15))
def test_windows_of_a_whole_stream_are_those_of_the_oracle(windows, first, second, two_phase, lateness):
    """The column that stands for the key is nobody's business, over a restore too."""
    options = {"keys": (), "two_phase": two_phase, "allowed_lateness_ms": lateness}
    aggregates = AGGREGATES if two_phase else IN_ORDER
    first, second = (
        [[(None, v, t) for _, v, t in event] if isinstance(event, list) else event for event in events]
        for events in (first, second)
    )
    oracle = Oracle(windows, lateness)
    pipeline = Pipeline(windows, aggregates, **options)
    feed(pipeline, oracle, first)
    rows, num_late = pipeline.take(), pipeline.num_late()
    pipeline = Pipeline(windows, aggregates, parts=pipeline.snapshot(), **options)
    feed(pipeline, oracle, [*second, END.timestamp_ms])
    rows += pipeline.take()
    assert all(list(row) == ["window_start", "window_end", *aggregates] for row, _ in rows)
    names = ["start", *aggregates]
    assert counted(shown(rows, windows.size_ms), names) == counted(oracle.results, names)
    assert num_late + pipeline.num_late() == len(oracle.late)


@settings(max_examples=examples(150), deadline=None)
@given(WINDOWS, EVENTS, st.integers(0, 15))
def test_late_records_go_to_the_side_output(windows, events, lateness):
    pipeline = Pipeline(windows, IN_ORDER, two_phase=False, allowed_lateness_ms=lateness, late_tag="late")
    oracle = Oracle(windows, lateness)
    feed(pipeline, oracle, events)
    assert Counter((row["k"], row["v"]) for row in pipeline.late()) == Counter(oracle.late)
    assert pipeline.num_late() == 0


@settings(max_examples=examples(200), deadline=None)
@given(WINDOWS, EVENTS, EVENTS, EVENTS, st.booleans(), st.integers(0, 8), st.tuples(*[st.integers(1, 4)] * 3))
def test_a_crash_and_another_parallelism_change_nothing(
    windows, first, second, lost, two_phase, lateness, parallelisms
):
    aggregates = AGGREGATES if two_phase else IN_ORDER
    options = {"two_phase": two_phase, "allowed_lateness_ms": lateness}
    oracle = Oracle(windows, lateness)
    pipeline = Pipeline(windows, aggregates, parallelism=parallelisms[0], **options)
    feed(pipeline, oracle, first)
    rows, num_late = pipeline.take(), pipeline.num_late()
    parts = pipeline.snapshot()
    feed(pipeline, Oracle(windows, lateness), lost)
    pipeline = Pipeline(windows, aggregates, parallelism=parallelisms[1], parts=parts, **options)
    # A checkpoint right after a restore must hold everything again.
    parts = pipeline.snapshot()
    pipeline = Pipeline(windows, aggregates, parallelism=parallelisms[2], parts=parts, **options)
    feed(pipeline, oracle, [*second, END.timestamp_ms])
    names = ["k", "start", *aggregates]
    assert counted(shown(rows + pipeline.take(), windows.size_ms), names) == counted(oracle.results, names)
    assert num_late + pipeline.num_late() == len(oracle.late)


@settings(max_examples=examples(200), deadline=None)
@given(WINDOWS, EVENTS, EVENTS, st.booleans(), st.integers(0, 8), st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_after_the_end_of_event_time_the_rest_is_not_late(windows, first, second, two_phase, lateness, parallelisms):
    """A job that was drained and goes on: what was open is closed, and time is where it was before the end."""
    aggregates = AGGREGATES if two_phase else IN_ORDER
    options = {"two_phase": two_phase, "allowed_lateness_ms": lateness}
    oracle = Oracle(windows, lateness)
    pipeline = Pipeline(windows, aggregates, parallelism=parallelisms[0], **options)
    feed(pipeline, oracle, first)
    lasting = oracle.watermark
    feed(pipeline, oracle, [END.timestamp_ms])
    rows, num_late, parts = pipeline.take(), pipeline.num_late(), pipeline.snapshot()
    oracle.watermark = lasting
    pipeline = Pipeline(windows, aggregates, parallelism=parallelisms[1], parts=parts, **options)
    feed(pipeline, oracle, [*second, END.timestamp_ms])
    names = ["k", "start", *aggregates]
    assert counted(shown(rows + pipeline.take(), windows.size_ms), names) == counted(oracle.results, names)
    assert num_late + pipeline.num_late() == len(oracle.late)


@settings(max_examples=examples(150), deadline=None)
@given(
    WINDOWS,
    st.lists(EVENTS, min_size=2, max_size=4),
    st.booleans(),
    st.integers(0, 8),
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=3, max_size=3),
)
@pytest.mark.sampled(9)
def test_event_time_that_starts_anew_opens_windows_without_what_they_held(windows, runs, two_phase, lateness, restores):
    """As in Flink: a window that was past comes to be again with what comes now, one that was not has all its records.

    Oracle: windows have a content each, so nothing is shared between those that were past and others.
    """
    options = {"two_phase": two_phase, "allowed_lateness_ms": lateness}
    oracle = Oracle(windows, lateness)
    pipeline = Pipeline(windows, AGGREGATES, **options)
    feed(pipeline, oracle, runs[0])
    rows, num_late = pipeline.take(), pipeline.num_late()
    for events, (parallelism, anew) in zip(runs[1:], restores, strict=False):
        if anew:
            oracle.watermark = MIN_TIMESTAMP
        parts = pipeline.snapshot()
        pipeline = Pipeline(windows, AGGREGATES, parallelism=parallelism, parts=parts, anew=anew, **options)
        feed(pipeline, oracle, events)
        rows += pipeline.take()
        num_late += pipeline.num_late()
    before = pipeline.num_late()
    feed(pipeline, oracle, [END.timestamp_ms])
    rows, num_late = rows + pipeline.take(), num_late + pipeline.num_late() - before
    names = ["k", "start", *AGGREGATES]
    assert counted(shown(rows, windows.size_ms), names) == counted(oracle.results, names)
    assert num_late == len(oracle.late)
    assert pipeline.num_runs() == 0


def test_empty_slices_are_restored_whatever_the_number_of_key_groups():
    """Nobody knows whose keys are whose then: the lowest watermark of all counts."""
    pipeline = Pipeline(Windows(10, 10), AGGREGATES, parallelism=2)
    pipeline.process(batch_of([(1, 1, 5)]))
    pipeline.watermark(30)
    pipeline.subtasks[0].process_watermark(Watermark(50))
    parts = pipeline.snapshot()
    for subtask in range(3):
        keyed = keyed_state(subtask, 3, max_parallelism=2 * MAX_PARALLELISM)
        operator_state = HeapOperatorStateBackend("op")
        operator_state.restore([part for part in parts if part.kind == "union"], subtask, 3)
        operator = GlobalSliceAggregate(["k"], Windows(10, 10), AGGREGATES)
        operator.open(dataclasses.replace(context_of(), keyed_state=keyed, operator_state=operator_state))
        assert operator._progress.current_ms == 30


@settings(max_examples=examples(200), deadline=None)
@given(WINDOWS, st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(0, 50))
def test_lateness_of_a_slice_is_lateness_of_its_records(windows, time, watermark, lateness):
    layout = SliceLayout.of(windows)
    starts = list(Oracle(windows).assigned(time))
    assert bool(layout.in_gap(np.array([time]))[0]) == (not starts)
    if starts:
        is_late = all(start + windows.size_ms - 1 + lateness <= watermark for start in starts)
        assert (time < layout.first_open_time(watermark, lateness)) == is_late
        width = layout.width_ms
        slice_start = time - (time - windows.offset_ms) % width
        assert (slice_start + width - 1 < layout.first_open_time(watermark, lateness)) == is_late
        assert (layout.cleanup_time(slice_start, lateness) <= watermark) == is_late
        assert sorted(starts) == list(layout.windows_between(slice_start, -(10**9), 10**9))
        assert all(slice_start in layout.slices(start) for start in starts)


# -- the row path ----------------------------------------------------------------------------------------------------


def result_row(key, window, result):
    return {"k": key, "start": window.start, **result}


@settings(max_examples=examples(200), deadline=None)
@given(EVENTS, st.integers(1, 12), st.integers(1, 12), st.integers(0, 5), st.integers(0, 15))
def test_the_row_path_gives_the_same(events, size, slide, offset, lateness):
    """The same late records, and the same last result of every key and window."""
    windows = SlidingEventTimeWindows.of(size, slide, offset % slide)
    # The row path adds a batch's records start by start, so only tumbling windows keep the order of arrival.
    aggregates = IN_ORDER if size == slide else AGGREGATES
    rows = WindowOperator(
        KeySelector.of_field("k"),
        windows,
        aggregate=RowAggregates(aggregates),
        result_row=result_row,
        allowed_lateness_ms=lateness,
        late_tag="late",
    )
    rows.open(context_of())
    columns = Pipeline(windows, aggregates, two_phase=False, allowed_lateness_ms=lateness, late_tag="late")
    for event in [*events, END.timestamp_ms]:
        if isinstance(event, list):
            if event:
                columns.process(batch_of(event))
                rows.process_batch(batch_of(event), 0)
        else:
            columns.watermark(event)
            rows.process_watermark(Watermark(event))
    row_results = {}
    for batch in rows.context.output.batches:
        for row, time in zip(batch.rows, batch.timestamps.tolist(), strict=True):
            assert time == row["start"] + size - 1
            row_results[row["k"], row["start"]] = row
    results = {(row["k"], row["start"]): row for row in shown(columns.take(), size)}
    names = ["k", "start", *aggregates]
    assert counted(results.values(), names) == counted(row_results.values(), names)
    late = [row for _tag, batch in rows.context.output.side for row in batch.rows]
    assert Counter((row["k"], row["v"]) for row in late) == Counter((row["k"], row["v"]) for row in columns.late())


def test_what_an_old_checkpoint_holds_of_the_end_of_event_time_is_none():
    pipeline = Pipeline(Windows(10, 10), AGGREGATES)
    pipeline.watermark(30)
    pipeline.subtasks[0]._progress.kept_ms = END.timestamp_ms
    restored = Pipeline(Windows(10, 10), AGGREGATES, parts=pipeline.snapshot())
    restored.process(batch_of([(1, 1, 5)]))
    assert restored.num_late() == 0


def test_a_record_in_a_gap_is_told_of_only_if_it_may_be_late():
    """Most are not, and there may be many: only what is behind the watermark goes on; or all after the input was idle,
    or in a job that was restored, when the watermark of the others may be anywhere."""
    pipeline = Pipeline(Windows(2, 10), {"n": agg.count()})
    output = pipeline.local.context.output

    def told():
        pipeline.local.process_batch(batch_of([(1, 1, 5), (1, 2, 6)]), 0)
        batches, output.batches = output.batches, []
        return [time for batch in batches for time in batch.timestamps.tolist()]

    assert told() == []
    pipeline.watermark(5)
    assert told() == [5]
    pipeline.local.process_status(StreamStatus(True))
    pipeline.local.process_status(StreamStatus(False))
    assert told() == [5, 6]
    pipeline.process(batch_of([(1, 1, 11)]))
    pipeline.watermark(9)
    pipeline = Pipeline(Windows(2, 10), {"n": agg.count()}, parts=pipeline.snapshot())
    pipeline.local.process_watermark(Watermark(3))  # of a split, say, that is further back than all that there was
    pipeline.process(batch_of([(1, 1, 5), (1, 2, 6)]))
    assert pipeline.num_late() == 2


def test_a_record_in_a_gap_is_late_by_its_own_time():
    pipeline = Pipeline(Windows(2, 10), {"n": agg.count()}, two_phase=False, allowed_lateness_ms=3, late_tag="late")
    pipeline.watermark(8)
    pipeline.process(batch_of([(1, 1, 5), (2, 1, 6), (3, 1, 1), (4, 1, 10)]))
    assert sorted(row["k"] for row in pipeline.late()) == [1, 3]
    pipeline.watermark(END.timestamp_ms)
    assert [row["k"] for row, _ in pipeline.take()] == [4]


# -- single cases ------------------------------------------------------------------------------------------------------


def results_of(windows, aggregates, batches, **options):
    pipeline = Pipeline(windows, aggregates, **options)
    for batch in batches:
        pipeline.process(batch)
    pipeline.watermark(END.timestamp_ms)
    return pipeline.take()


def test_a_watermark_fires_before_it_is_passed_on_and_oldest_windows_first():
    pipeline = Pipeline(Windows(10, 10), {"n": agg.count()})
    pipeline.process(batch_of([(1, 1, 25), (1, 1, 5), (1, 1, 15)]))
    pipeline.watermark(8)
    assert pipeline.take() == []
    pipeline.watermark(9)
    assert [time for _row, time in pipeline.take()] == [9]
    pipeline.watermark(40)
    assert [time for _row, time in pipeline.take()] == [19, 29]
    assert [w.timestamp_ms for w in pipeline.subtasks[0].context.output.watermarks] == [8, 9, 40]


def test_a_window_fires_again_only_for_keys_that_came_late():
    pipeline = Pipeline(Windows(10, 10), {"n": agg.count()}, allowed_lateness_ms=5)
    pipeline.process(batch_of([(1, 1, 5), (2, 1, 5)]))
    pipeline.watermark(9)
    assert len(pipeline.take()) == 2
    pipeline.process(batch_of([(1, 1, 6), (1, 1, 7), (3, 1, 8)]))
    assert [(row["k"], row["n"]) for row, _ in pipeline.take()] == [(1, 3), (3, 1)]
    pipeline.watermark(14)
    pipeline.process(batch_of([(1, 1, 6)]))
    assert pipeline.take() == []
    assert pipeline.num_late() == 1


def test_several_key_columns_with_nulls_are_one_key():
    columns = pa.RecordBatch.from_pydict({"a": ["x", None, "x", None], "b": [1.0, None, 1.0, None], "v": [1, 2, 3, 4]})
    batch = Batch.of_columns(columns, np.zeros(4, np.int64))
    rows = results_of(Windows(10, 10), {"total": agg.sum("v")}, [batch, batch], keys=("a", "b"), parallelism=3)
    assert {(row["a"], row["b"], row["total"]) for row, _ in rows} == {("x", 1.0, 8), (None, None, 12)}
    assert len(rows) == 2


def test_dictionary_keys_become_plain_ones():
    columns = pa.RecordBatch.from_arrays(
        [pa.array(["x", "y", "x"]).dictionary_encode(), pa.array([1, 2, 3])], names=["k", "v"]
    )
    batch = Batch.of_columns(columns, np.zeros(3, np.int64))
    rows = results_of(Windows(10, 10), {"total": agg.sum("v")}, [batch])
    assert {(row["k"], row["total"]) for row, _ in rows} == {("x", 4), ("y", 2)}


def test_tuples_are_keys():
    records = [{"k": key, "v": value} for key, value in (((1, 2), 1), ((1, 2), 2), ((2, 1), 3))]
    batch = Batch.of_rows(records, np.zeros(3, np.int64))
    rows = results_of(Windows(10, 10), {"total": agg.sum("v")}, [batch, batch], parallelism=3)
    # Records of columns have a struct of f0, f1 ... for a tuple.
    assert sorted((*row["k"].items(), row["total"]) for row, _ in rows) == [
        (("f0", 1), ("f1", 2), 6),
        (("f0", 2), ("f1", 1), 6),
    ]


def test_arguments_may_be_expressions():
    rows = results_of(Windows(10, 10), {"total": agg.sum(col("v") * 10)}, [batch_of([(1, 2, 0), (1, 3, 1)])])
    assert rows[0][0]["total"] == 50


def rows_batch(rows):
    return Batch.of_rows(rows, np.zeros(len(rows), np.int64))


def test_types_widen_when_rows_show_more_of_themselves():
    """First nulls, then integers, then floats: state made before is carried over, also through a snapshot."""
    aggregates = {"total": agg.sum("v"), "largest": agg.max("v"), "kinds": agg.count_distinct("v"), "n": agg.count()}
    pipeline = Pipeline(Windows(10, 10), aggregates, parallelism=2)
    pipeline.process(rows_batch([{"k": None, "v": None}, {"k": None, "v": None}]))
    pipeline.process(rows_batch([{"k": 1, "v": 1}, {"k": 2, "v": 2}, {"k": 3, "v": 3}]))
    pipeline = Pipeline(Windows(10, 10), aggregates, parallelism=3, parts=pipeline.snapshot())
    pipeline.process(rows_batch([{"k": 1, "v": 1.5}]))
    pipeline = Pipeline(Windows(10, 10), aggregates, parallelism=1, parts=pipeline.snapshot())
    pipeline.watermark(END.timestamp_ms)
    result = {row["k"]: (row["total"], row["largest"], row["kinds"], row["n"]) for row, _ in pipeline.take()}
    assert result == {None: (None, None, 0, 2), 1: (2.5, 1.5, 2, 2), 2: (2.0, 2.0, 1, 1), 3: (3.0, 3.0, 1, 1)}


def test_types_that_do_not_fit_are_refused():
    pipeline = Pipeline(Windows(10, 10), {"n": agg.count()})
    pipeline.process(rows_batch([{"k": 1}]))
    with pytest.raises(TypeMismatchError, match="changed from batch to batch"):
        pipeline.process(rows_batch([{"k": "one"}]))


def test_a_declared_type_keeps_types_stable():
    schema = pa.schema([("k", pa.string()), ("v", pa.float64())])
    local = LocalSliceAggregate(["k"], Windows(10, 10), {"largest": agg.max("v")}, input_schema=schema)
    local.open(context_of())
    local.process_batch(rows_batch([{"k": None, "v": None}]), 0)
    assert local.context.output.batches[0].columns.schema.equals(local.output_schema(schema))


def test_schemas_are_known_before_records_come():
    schema = pa.schema([("k", pa.string()), ("v", pa.int32())])
    operator = GlobalSliceAggregate(KeySelector.of_field("k"), Windows(10, 5), IN_ORDER, from_records=True)
    expected = {
        "k": pa.string(),
        "window_start": pa.timestamp("ms"),
        "window_end": pa.timestamp("ms"),
        "n": pa.int64(),
        "total": pa.int64(),
        "smallest": pa.int32(),
        "largest": pa.int32(),
        "mean": pa.float64(),
        "kinds": pa.int64(),
        "earliest": pa.int32(),
        "latest": pa.int32(),
    }
    assert (
        dict(zip(operator.output_schema(schema).names, operator.output_schema(schema).types, strict=True)) == expected
    )
    columns = pa.RecordBatch.from_arrays([pa.array(["x"]), pa.array([1], pa.int32())], schema=schema)
    operator.open(context_of())
    operator.process_batch(Batch.of_columns(columns, np.zeros(1, np.int64)), 0)
    operator.process_watermark(END)
    for batch in operator.context.output.batches:
        assert batch.columns.schema.equals(operator.output_schema(schema))


def test_runs_are_merged_when_they_are_many():
    pipeline = Pipeline(Windows(1000, 1000), AGGREGATES)
    for i in range(500):
        pipeline.process(batch_of([(i % 7, i, 3), (8, i, 4)]))
        assert pipeline.num_runs() <= 65
    pipeline.watermark(END.timestamp_ms)
    rows = {row["k"]: row for row, _ in pipeline.take()}
    assert rows[8]["n"] == 500
    assert rows[8]["total"] == sum(range(500))
    assert rows[8]["kinds"] == 500
    assert sum(row["n"] for row in rows.values()) == 1000


def test_large_runs_are_merged_by_size():
    rng = np.random.default_rng(5)
    pipeline = Pipeline(Windows(1000, 1000), {"n": agg.count()})
    for _ in range(12):
        columns = pa.RecordBatch.from_pydict({"k": rng.permutation(30_000), "v": np.zeros(30_000, np.int64)})
        pipeline.process(Batch.of_columns(columns, np.zeros(30_000, np.int64)))
        assert pipeline.num_runs() <= 5
    pipeline.watermark(END.timestamp_ms)
    assert {row["n"] for row, _ in pipeline.take()} == {12}


def test_later_windows_read_compacted_slices():
    pipeline = Pipeline(Windows(20, 10), {"n": agg.count()})
    for _ in range(5):
        pipeline.process(batch_of([(1, 1, 5), (1, 1, 15)]))
    assert pipeline.num_runs() == 10
    pipeline.watermark(9)
    assert pipeline.num_runs() == 6
    assert [row["n"] for row, _ in pipeline.take()] == [5]
    pipeline.watermark(19)
    assert [row["n"] for row, _ in pipeline.take()] == [10]
    assert pipeline.num_runs() == 1


def test_a_restored_operator_fires_without_new_records_and_not_twice():
    windows = Windows(20, 10)
    pipeline = Pipeline(windows, {"n": agg.count()})
    pipeline.process(batch_of([(1, 1, 5)]))
    pipeline.watermark(9)
    assert len(pipeline.take()) == 1
    pipeline = Pipeline(windows, {"n": agg.count()}, parallelism=2, parts=pipeline.snapshot())
    pipeline.watermark(MIN_TIMESTAMP + 1)
    pipeline.watermark(9)
    assert pipeline.take() == []
    pipeline.watermark(19)
    assert [row["n"] for row, _ in pipeline.take()] == [1]


def test_a_restore_refuses_other_windows_and_other_aggregates():
    pipeline = Pipeline(Windows(20, 10), {"n": agg.count()})
    pipeline.process(batch_of([(1, 1, 5)]))
    parts = pipeline.snapshot()
    with pytest.raises(CheckpointMismatchError, match=r"slices of windows of \[20, 10, 0\]"):
        Pipeline(Windows(30, 10), {"n": agg.count()}, parts=parts)
    with pytest.raises(CheckpointMismatchError, match="the program needs"):
        Pipeline(Windows(20, 10), {"n": agg.sum("v")}, parts=parts)


def test_order_of_arrival_goes_on_after_a_restore():
    windows = Windows(20, 10)
    aggregates = {"earliest": agg.first("v"), "latest": agg.last("v")}
    pipeline = Pipeline(windows, aggregates, two_phase=False, parallelism=2)
    pipeline.process(batch_of([(1, 1, 15), (1, None, 5)]))
    pipeline = Pipeline(windows, aggregates, two_phase=False, parallelism=3, parts=pipeline.snapshot())
    pipeline.process(batch_of([(1, 3, 5), (1, 2, 5)]))
    pipeline.watermark(19)
    rows = [(row["earliest"], row["latest"]) for row, _ in pipeline.take()]
    assert rows == [(3, 2), (1, 2)]


def test_records_need_event_time():
    pipeline = Pipeline(Windows(10, 10), {"n": agg.count()})
    no_time = Batch.of_columns(pa.RecordBatch.from_pydict({"k": [1]}), None)
    for batch in (no_time, no_time.with_timestamps(np.array([MIN_TIMESTAMP]))):
        with pytest.raises(ProgramError, match="no event time"):
            pipeline.process(batch)


def test_errors_name_operator_and_aggregate():
    pipeline = Pipeline(Windows(10, 10), {"total": agg.sum("v")})
    with pytest.raises(UserFunctionError, match="does not fit int64") as caught:
        pipeline.process(batch_of([(1, 2**63 - 1, 0), (1, 1, 0)]))
    assert caught.value.context["operator"] == "windows"
    assert caught.value.context["aggregate"] == "total = sum(col('v'))"
    with pytest.raises(ProgramError, match="key column 'q' does not exist; the columns are 'k', 'v'"):
        results_of(Windows(10, 10), {"n": agg.count()}, [batch_of([(1, 1, 0)])], keys=("q",))


def test_plans_that_mean_nothing_are_refused():
    ten = TumblingEventTimeWindows.of(10)
    with pytest.raises(ProgramError, match="not mergeable"):
        LocalSliceAggregate(["k"], ten, IN_ORDER)
    with pytest.raises(ProgramError, match="not mergeable"):
        GlobalSliceAggregate(["k"], ten, IN_ORDER)
    with pytest.raises(ProgramError, match="side output"):
        GlobalSliceAggregate(["k"], ten, AGGREGATES, late_tag="late")
    with pytest.raises(ProgramError, match="must not be negative"):
        GlobalSliceAggregate(["k"], ten, AGGREGATES, allowed_lateness_ms=-1)
    with pytest.raises(ProgramError, match="several columns called 'k'"):
        GlobalSliceAggregate(["k"], ten, {"k": agg.count()})
    with pytest.raises(ProgramError, match="several columns called 'window_end'"):
        GlobalSliceAggregate(["window_end"], ten, {"n": agg.count()})
    with pytest.raises(ProgramError, match="key selector is a function"):
        GlobalSliceAggregate(KeySelector.of_function(len), ten, AGGREGATES)
    for windows in (EventTimeSessionWindows.with_gap(10), TumblingProcessingTimeWindows.of(10)):
        with pytest.raises(ProgramError, match="must be tumbling or sliding windows of event time"):
            GlobalSliceAggregate(["k"], windows, AGGREGATES)


def test_the_assigners_of_the_row_path_are_understood():
    layout = SliceLayout.of(SlidingEventTimeWindows.of(10_000, 4_000, 1_000))
    assert (layout.size_ms, layout.slide_ms, layout.offset_ms, layout.width_ms) == (10_000, 4_000, 1_000, 2_000)
    layout = SliceLayout.of(TumblingEventTimeWindows.of(10_000, -1_000))
    assert (layout.size_ms, layout.slide_ms, layout.offset_ms, layout.width_ms) == (10_000, 10_000, 9_000, 10_000)


@pytest.mark.parametrize("key_type", [pa.int64(), pa.string(), pa.int32(), pa.float64()])
@pytest.mark.sampled(4)
def test_many_keys_and_windows_are_counted_exactly(key_type):
    rng = np.random.default_rng(11)
    num_rows, num_keys, windows = 20_000, 500, Windows(100, 20)
    keys = rng.integers(0, num_keys, num_rows)
    times = np.sort(rng.integers(-500, 1500, num_rows)) + rng.integers(-10, 10, num_rows)
    values = rng.integers(-100, 100, num_rows)
    pipeline = Pipeline(windows, {"n": agg.count(), "total": agg.sum("v")}, parallelism=2)
    for low in range(0, num_rows, 3000):
        piece = slice(low, low + 3000)
        columns = pa.RecordBatch.from_arrays(
            [pa.array(keys[piece]).cast(key_type), pa.array(values[piece])], names=["k", "v"]
        )
        pipeline.process(Batch.of_columns(columns, times[piece]))
        pipeline.watermark(int(times[piece].max()) - 30)
    pipeline.watermark(END.timestamp_ms)
    expected = Counter()
    totals = Counter()
    for key, value, time in zip(keys.tolist(), values.tolist(), times.tolist(), strict=True):
        for start in Oracle(windows).assigned(time):
            expected[key, start] += 1
            totals[key, start] += value
    result = {(int(row["k"]), row["start"]): row for row in shown(pipeline.take(), 100)}
    assert pipeline.num_late() == 0
    assert {place: row["n"] for place, row in result.items()} == expected
    assert all(row["total"] == totals[place] for place, row in result.items())
    assert math.isclose(sum(expected.values()), num_rows * 5)
