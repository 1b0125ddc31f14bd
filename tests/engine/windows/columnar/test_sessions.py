"""Sessions on columns against slow oracles and the row path, through crashes and rescaling.

Families: oracle (records merged one by one, in lists), Flink's operator as `window_oracle` has it, differential (the
row path's operator), crash (snapshot at a random cut, restore at another parallelism, go on). Planted bugs are in
``test_session_runs.py``.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import window_oracle
from campaigns import examples
from column_windows import ColumnPipeline, context_of
from hypothesis import given, settings
from hypothesis import strategies as st
from session_kit import (
    AGGREGATES,
    END,
    SessionOracle,
    SessionPipeline,
    batch_of,
    counted,
    feed,
    num_held,
    result_of,
    shown,
)

from headrace.engine.columns.records import MIN_TIMESTAMP, Batch, StreamStatus, Watermark
from headrace.engine.functions.aggregates import built_in as agg
from headrace.engine.functions.aggregates.by_row import RowAggregates
from headrace.engine.functions.keys import KeySelector
from headrace.engine.windows.assigners import (
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    TumblingEventTimeWindows,
)
from headrace.engine.windows.columnar.sessions import GlobalSessionAggregate, LocalSessionAggregate
from headrace.engine.windows.columnar.slices import GlobalSliceAggregate
from headrace.engine.windows.row_functions import WindowRow
from headrace.engine.windows.window_operator import WindowOperator
from headrace.state.checkpoints.snapshot import RestoredPart
from headrace.state.errors import CheckpointMismatchError, ProgramError

GAPS = st.integers(1, 12)
KEYS = st.none() | st.integers(0, 2)
RECORDS = st.lists(st.tuples(KEYS, st.none() | st.integers(-3, 3), st.integers(-40, 40)), max_size=12)
EVENTS = st.lists(RECORDS | st.integers(-40, 60), max_size=16)


@settings(max_examples=examples(500), deadline=None)
@given(GAPS, EVENTS, st.booleans(), st.integers(0, 15), st.integers(1, 3))
def test_sessions_are_those_of_the_oracle(gap, events, two_phase, lateness, parallelism):
    """In any order, before 1970, with late records, bridges between sessions, and sessions that fire again."""
    pipeline = SessionPipeline(gap, two_phase=two_phase, parallelism=parallelism, allowed_lateness_ms=lateness)
    oracle = SessionOracle(gap, lateness)
    feed(pipeline, oracle, [*events, END])
    assert counted(shown(pipeline.take())) == counted(oracle.results)
    assert pipeline.num_late() == len(oracle.late)
    assert num_held(pipeline) == 0


@settings(max_examples=examples(200), deadline=None)
@given(GAPS, EVENTS, st.booleans(), st.integers(0, 15))
def test_sessions_of_a_whole_stream_are_those_of_the_oracle(gap, events, two_phase, lateness):
    pipeline = SessionPipeline(gap, keys=(), two_phase=two_phase, allowed_lateness_ms=lateness)
    oracle = SessionOracle(gap, lateness)
    events = [[(None, v, t) for _, v, t in event] if isinstance(event, list) else event for event in events]
    feed(pipeline, oracle, [*events, END])
    assert counted(shown(pipeline.take())) == counted(oracle.results)
    assert pipeline.num_late() == len(oracle.late)


@settings(max_examples=examples(300), deadline=None)
@given(GAPS, EVENTS, st.booleans(), st.integers(0, 15), st.booleans())
def test_sessions_are_those_of_flinks_operator(gap, events, two_phase, lateness, in_single_records):
    """Whose results come record by record: with allowed lateness only batches of one record can be compared."""
    in_single_records = in_single_records or lateness > 0
    pipeline = SessionPipeline(gap, two_phase=two_phase, parallelism=2, allowed_lateness_ms=lateness)
    flink = window_oracle.GeneralOracle(
        spans_of=lambda time, _value: [(time, time + gap)],
        trigger=window_oracle.ByEventTime(),
        merges=True,
        lateness=lateness,
    )
    firings = []
    for event in [*events, END]:
        if isinstance(event, list):
            for key, value, time in event:
                firings += flink.record(key, time, value)
            for records in [[one] for one in event] if in_single_records else [event]:
                if records:
                    pipeline.process(batch_of(records))
        elif event > flink.watermark:
            firings += flink.advance(event)
            pipeline.watermark(event)
    assert counted(shown(pipeline.take())) == counted(result_of(one.key, *one.span, one.values) for one in firings)
    assert pipeline.num_late() == len(flink.late)


@settings(max_examples=examples(200), deadline=None)
@given(GAPS, EVENTS, st.integers(0, 15), st.booleans())
def test_the_row_path_gives_the_same(gap, events, lateness, in_single_records):
    """Results with their fields and types, and late records with their order."""
    in_single_records = in_single_records or lateness > 0
    rows = WindowOperator(
        KeySelector.of_field("k"),
        EventTimeSessionWindows.with_gap(gap),
        aggregate=RowAggregates(AGGREGATES),
        result_row=WindowRow(("k",), AGGREGATES),
        allowed_lateness_ms=lateness,
        late_tag="late",
    )
    rows.open(context_of())
    columns = SessionPipeline(gap, two_phase=False, allowed_lateness_ms=lateness, late_tag="late")
    for event in [*events, END]:
        if isinstance(event, list):
            for records in [[one] for one in event] if in_single_records else [event]:
                if records:
                    columns.process(batch_of(records))
                    rows.process_batch(batch_of(records), 0)
        else:
            columns.watermark(event)
            rows.process_watermark(Watermark(event))
    by_rows = [
        (list(row.items()), time)
        for batch in rows.context.output.batches
        for row, time in zip(batch.rows, batch.timestamps.tolist(), strict=True)
    ]
    by_columns = [
        (list(row.items()), time)
        for batch in columns.subtasks[0].context.output.batches
        for row, time in zip(batch.rows, batch.timestamps.tolist(), strict=True)
    ]
    assert Counter(map(repr, by_rows)) == Counter(map(repr, by_columns))
    assert columns.late() == [row for _tag, batch in rows.context.output.side for row in batch.rows]
    assert columns.num_late() == 0


@settings(max_examples=examples(300), deadline=None)
@given(GAPS, EVENTS, EVENTS, EVENTS, st.booleans(), st.integers(0, 8), st.tuples(*[st.integers(1, 4)] * 3))
@pytest.mark.sampled(9)
def test_a_crash_and_another_parallelism_change_nothing(gap, first, second, lost, two_phase, lateness, parallelisms):
    options = {"two_phase": two_phase, "allowed_lateness_ms": lateness}
    oracle = SessionOracle(gap, lateness)
    pipeline = SessionPipeline(gap, parallelism=parallelisms[0], **options)
    feed(pipeline, oracle, first)
    rows, num_late = pipeline.take(), pipeline.num_late()
    parts = pipeline.snapshot()
    ahead = SessionOracle(gap, lateness)
    ahead.watermark = oracle.watermark
    feed(pipeline, ahead, lost)
    pipeline = SessionPipeline(gap, parallelism=parallelisms[1], parts=parts, **options)
    # A checkpoint right after a restore must hold everything again.
    pipeline = SessionPipeline(gap, parallelism=parallelisms[2], parts=pipeline.snapshot(), **options)
    feed(pipeline, oracle, [*second, END])
    assert counted(shown(rows + pipeline.take())) == counted(oracle.results)
    assert num_late + pipeline.num_late() == len(oracle.late)


@settings(max_examples=examples(150), deadline=None)
@given(GAPS, EVENTS, EVENTS, st.integers(0, 8), st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_after_the_end_of_event_time_the_rest_is_not_late(gap, first, second, lateness, parallelisms):
    """A job that was drained and goes on: what was open is closed, and time is where it was before the end."""
    oracle = SessionOracle(gap, lateness)
    pipeline = SessionPipeline(gap, parallelism=parallelisms[0], allowed_lateness_ms=lateness)
    feed(pipeline, oracle, first)
    lasting = oracle.watermark
    feed(pipeline, oracle, [END])
    rows, num_late, parts = pipeline.take(), pipeline.num_late(), pipeline.snapshot()
    oracle.watermark = lasting
    pipeline = SessionPipeline(gap, parallelism=parallelisms[1], parts=parts, allowed_lateness_ms=lateness)
    feed(pipeline, oracle, [*second, END])
    assert counted(shown(rows + pipeline.take())) == counted(oracle.results)
    assert num_late + pipeline.num_late() == len(oracle.late)


@settings(max_examples=examples(200), deadline=None)
@given(
    GAPS,
    st.lists(EVENTS, min_size=2, max_size=4),
    st.booleans(),
    st.integers(0, 8),
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=3, max_size=3),
)
@pytest.mark.sampled(9)
def test_event_time_that_starts_anew_goes_on_with_what_is_held(gap, runs, two_phase, lateness, restores):
    options = {"two_phase": two_phase, "allowed_lateness_ms": lateness}
    oracle = SessionOracle(gap, lateness)
    pipeline = SessionPipeline(gap, **options)
    feed(pipeline, oracle, runs[0])
    rows, num_late = pipeline.take(), pipeline.num_late()
    for events, (parallelism, anew) in zip(runs[1:], restores, strict=False):
        if anew:
            oracle.watermark = MIN_TIMESTAMP
        pipeline = SessionPipeline(gap, parallelism=parallelism, parts=pipeline.snapshot(), anew=anew, **options)
        feed(pipeline, oracle, events)
        rows += pipeline.take()
        num_late += pipeline.num_late()
    before = pipeline.num_late()
    feed(pipeline, oracle, [END])
    assert counted(shown(rows + pipeline.take())) == counted(oracle.results)
    assert num_late + pipeline.num_late() - before == len(oracle.late)


@settings(max_examples=examples(150), deadline=None)
@given(GAPS, EVENTS, EVENTS, st.integers(0, 8), st.integers(1, 30))
def test_what_fired_further_on_does_not_fire_again(gap, first, second, lateness, ahead):
    """One of two subtasks is ahead when the snapshot is taken; both go on from the watermark of the other."""
    oracle = SessionOracle(gap, lateness)
    pipeline = SessionPipeline(gap, parallelism=2, allowed_lateness_ms=lateness)
    feed(pipeline, oracle, first)
    pipeline.subtasks[0].process_watermark(Watermark(min(oracle.watermark + ahead, END)))
    rows, num_late = pipeline.take(), pipeline.num_late()
    pipeline = SessionPipeline(gap, parallelism=1, parts=pipeline.snapshot(), allowed_lateness_ms=lateness)
    assert pipeline.subtasks[0]._progress.current_ms == oracle.watermark
    # What comes now is far from what has been: of that every session must have fired exactly once.
    far = [[(k, v, t + 1_000) for k, v, t in event] if isinstance(event, list) else event + 1_000 for event in second]
    feed(pipeline, oracle, [*far, END])
    assert counted(shown(rows + pipeline.take())) == counted(oracle.results)
    assert num_late + pipeline.num_late() == len(oracle.late)


# -- the first phase -------------------------------------------------------------------------------------------------


def test_the_first_phase_merges_nothing_that_may_be_late():
    """It is ahead of the watermark here, unless this input was idle or has just been restored."""
    pipeline = SessionPipeline(10)
    output = pipeline.local.context.output

    def num_rows():
        pipeline.local.process_batch(batch_of([(1, 1, 20), (1, 2, 21), (1, 3, 45)]), 0)
        batches, output.batches = output.batches, []
        return sum(batch.num_rows for batch in batches)

    assert num_rows() == 2
    pipeline.watermark(28)
    assert num_rows() == 2
    pipeline.watermark(29)
    assert num_rows() == 3
    pipeline = SessionPipeline(10)
    output = pipeline.local.context.output
    pipeline.local.process_status(StreamStatus(True))
    pipeline.local.process_status(StreamStatus(False))
    pipeline.watermark(5)
    assert num_rows() == 3
    pipeline = SessionPipeline(10, parts=pipeline.snapshot())
    output = pipeline.local.context.output
    assert num_rows() == 3
    pipeline.watermark(5)
    assert num_rows() == 2


# -- what is refused -------------------------------------------------------------------------------------------------


def test_plans_that_mean_nothing_are_refused():
    ten = EventTimeSessionWindows.with_gap(10)
    with pytest.raises(ProgramError, match="not mergeable"):
        LocalSessionAggregate(["k"], ten, {"v": agg.first("v")})
    with pytest.raises(ProgramError, match="side output"):
        GlobalSessionAggregate(["k"], ten, AGGREGATES, late_tag="late")
    with pytest.raises(ProgramError, match="must not be negative"):
        GlobalSessionAggregate(["k"], ten, AGGREGATES, allowed_lateness_ms=-1)
    with pytest.raises(ProgramError, match="several columns called 'k'"):
        GlobalSessionAggregate(["k"], ten, {"k": agg.count()})
    with pytest.raises(ProgramError, match=r"state would have several columns called '\$end'"):
        GlobalSessionAggregate(["$end"], ten, {"n": agg.count()})
    with pytest.raises(ProgramError, match="key selector is a function"):
        GlobalSessionAggregate(KeySelector.of_function(len), ten, AGGREGATES)
    with pytest.raises(ProgramError, match="must be of event time and of one gap"):
        GlobalSessionAggregate(["k"], ProcessingTimeSessionWindows.with_gap(10), AGGREGATES)
    with pytest.raises(ProgramError, match="must be of event time and of one gap"):
        GlobalSessionAggregate(["k"], EventTimeSessionWindows.with_dynamic_gap(lambda _: 1), AGGREGATES)


def test_records_need_event_time_and_keys():
    pipeline = SessionPipeline(10)
    with pytest.raises(ProgramError, match="no event time"):
        pipeline.process(Batch.of_columns(pa.RecordBatch.from_pydict({"k": [1], "v": [1]}), None))
    with pytest.raises(ProgramError, match="key column 'k' does not exist") as caught:
        pipeline.process(Batch.of_columns(pa.RecordBatch.from_pydict({"q": [1], "v": [1]}), np.array([0])))
    assert caught.value.context["operator"] == "windows"


def test_another_aggregation_is_refused_on_restore():
    pipeline = SessionPipeline(10)
    pipeline.process(batch_of([(1, 1, 5)]))
    with pytest.raises(CheckpointMismatchError, match="the program needs"):
        SessionPipeline(10, {"n": agg.count()}, parts=pipeline.snapshot())


def test_state_of_the_row_path_is_refused_and_not_forgotten():
    """Unless there is none left, as after a drain."""
    rows = WindowOperator(
        KeySelector.of_field("k"), EventTimeSessionWindows.with_gap(10), aggregate=RowAggregates(AGGREGATES)
    )
    rows.open(context_of())
    rows.process_batch(batch_of([(1, 1, 5)]), 0)
    tumbling = partial(GlobalSliceAggregate, ["k"], TumblingEventTimeWindows.of(10), AGGREGATES)
    with pytest.raises(CheckpointMismatchError, match=r"windows on columns cannot read: 'window-contents'"):
        SessionPipeline(10, parts=parts_of(rows))
    with pytest.raises(CheckpointMismatchError, match=r"windows on columns cannot read: 'window-contents'"):
        ColumnPipeline(["k"], None, tumbling, parts=parts_of(rows))
    rows.process_watermark(Watermark(END))
    SessionPipeline(10, parts=parts_of(rows))
    ColumnPipeline(["k"], None, tumbling, parts=parts_of(rows))


def parts_of(operator):
    operator.snapshot_state(1)
    return [
        RestoredPart(part.state, part.kind, part.metadata, part.write(), 0)
        for backend in (operator.context.keyed_state, operator.context.operator_state)
        for part in backend.snapshot()
    ]


def test_a_gap_may_change_at_a_restore():
    """As in Flink: windows that are held have their ends; records to come get the new ones."""
    pipeline = SessionPipeline(10, {"n": agg.count()})
    pipeline.process(batch_of([(1, 1, 0)]))
    pipeline = SessionPipeline(20, {"n": agg.count()}, parts=pipeline.snapshot())
    pipeline.process(batch_of([(1, 1, 10), (2, 1, 0)]))
    pipeline.watermark(END)
    assert [(row["k"], row["start"], row["end"]) for row in shown(pipeline.take())] == [(2, 0, 20), (1, 0, 30)]


def test_schemas_are_known_before_records_come():
    schema = pa.schema([("k", pa.string()), ("v", pa.int32())])
    operator = GlobalSessionAggregate(["k"], EventTimeSessionWindows.with_gap(10), AGGREGATES)
    pipeline = SessionPipeline(10)
    columns = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([1], pa.int32())], schema=schema)
    pipeline.process(Batch.of_columns(columns, np.array([0])))
    pipeline.watermark(END)
    (batch,) = pipeline.subtasks[0].context.output.batches
    assert batch.columns.schema.equals(operator.output_schema(schema))
