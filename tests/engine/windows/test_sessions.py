"""Sessions on columns against slow oracles and the row path, through crashes, rescaling and wider types.

Families: oracle (records merged one by one, in lists), Flink's operator as `window_oracle` has it, differential (the
row path's operator), crash (snapshot at a random cut, restore at another parallelism, go on), planted bugs (each of the
decisions that matter taken wrongly must be noticed by the oracle). The risk is what merges: windows that touch, records
behind the watermark that belong to an open session or make one, and rows that are held twice or not at all.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import window_oracle
from campaigns import examples
from column_windows import ColumnPipeline, context_of
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.columns.records import MIN_TIMESTAMP, Batch, StreamStatus, Watermark
from headrace.engine.functions.aggregates import built_in as agg
from headrace.engine.functions.aggregates.by_row import RowAggregates
from headrace.engine.functions.keys import KeySelector
from headrace.engine.windows import session_grouping, session_runs, sessions
from headrace.engine.windows.all_windows import OneKey
from headrace.engine.windows.assigners import (
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    TumblingEventTimeWindows,
)
from headrace.engine.windows.operator import WindowOperator
from headrace.engine.windows.row_functions import WindowRow
from headrace.engine.windows.sessions import GlobalSessionAggregate, LocalSessionAggregate
from headrace.engine.windows.slices import GlobalSliceAggregate
from headrace.state.checkpoints.snapshot import RestoredPart
from headrace.state.errors import CheckpointMismatchError, ProgramError, TypeMismatchError

END = 2**63 - 1
EPOCH = pa.scalar(0, pa.timestamp("ms")).as_py()
AGGREGATES = {
    "n": agg.count(),
    "total": agg.sum("v"),
    "smallest": agg.min("v"),
    "largest": agg.max("v"),
    "mean": agg.avg("v"),
    "kinds": agg.count_distinct("v"),
}


class Pipeline(ColumnPipeline):
    def __init__(self, gap, aggregates=AGGREGATES, *, keys=("k",), two_phase=True, parallelism=1, **options):
        assigner = EventTimeSessionWindows.with_gap(gap)
        selector = KeySelector.of_field(*keys) if keys else OneKey()
        of_pipeline = {name: options.pop(name) for name in ("parts", "anew") if name in options}
        super().__init__(
            keys,
            partial(LocalSessionAggregate, selector, assigner, aggregates) if two_phase else None,
            partial(GlobalSessionAggregate, selector, assigner, aggregates, from_records=not two_phase, **options),
            parallelism=parallelism,
            **of_pipeline,
        )


class Oracle:
    """Sessions as lists of values, merged one record at a time; what has changed in a batch fires behind it."""

    def __init__(self, gap, lateness=0):
        self.gap = gap
        self.lateness = lateness
        self.watermark = MIN_TIMESTAMP
        # [key, start, end, values, whether there is news]
        self.held = []
        self.late = []
        self.results = []

    def process(self, records):
        for key, value, time in records:
            start, end = time, time + self.gap
            touched = [one for one in self.held if one[0] == key and one[1] <= end and start <= one[2]]
            start, end = min([start, *(one[1] for one in touched)]), max([end, *(one[2] for one in touched)])
            if end - 1 + self.lateness <= self.watermark:
                self.late.append((key, value))
                continue
            values = [found for one in touched for found in one[3]] + [value]
            self.held = [one for one in self.held if one not in touched] + [[key, start, end, values, True]]
        self.fire()

    def advance(self, watermark):
        self.watermark = max(watermark, self.watermark)
        self.fire()
        self.held = [one for one in self.held if one[2] - 1 + self.lateness > self.watermark]

    def fire(self):
        for one in self.held:
            if one[4] and one[2] - 1 <= self.watermark:
                one[4] = False
                self.results.append(result_of(*one[:4]))


def result_of(key, start, end, values):
    known = [value for value in values if value is not None]
    return {
        "k": key,
        "start": start,
        "end": end,
        "n": len(values),
        "total": sum(known) if known else None,
        "smallest": min(known, default=None),
        "largest": max(known, default=None),
        "mean": sum(known) / len(known) if known else None,
        "kinds": len(set(known)),
    }


def epoch_ms(time):
    return round((time - EPOCH).total_seconds() * 1000)


def shown(rows):
    """Result rows in the oracle's form."""
    results = []
    for row, time in rows:
        row = {"k": None, **row}
        start, end = epoch_ms(row.pop("window_start")), epoch_ms(row.pop("window_end"))
        assert time == end - 1
        results.append({**row, "start": start, "end": end})
    return results


def counted(results):
    return Counter(
        tuple(sorted((name, round(v, 6) if isinstance(v, float) else v) for name, v in row.items())) for row in results
    )


def batch_of(records, key_type=None):
    key_type = pa.int64() if key_type is None else key_type
    columns = pa.RecordBatch.from_arrays(
        [pa.array([k for k, _, _ in records], key_type), pa.array([v for _, v, _ in records], pa.int64())],
        names=["k", "v"],
    )
    return Batch.of_columns(columns, np.array([t for _, _, t in records], np.int64))


GAPS = st.integers(1, 12)
KEYS = st.none() | st.integers(0, 2)
RECORDS = st.lists(st.tuples(KEYS, st.none() | st.integers(-3, 3), st.integers(-40, 40)), max_size=12)
EVENTS = st.lists(RECORDS | st.integers(-40, 60), max_size=16)


def feed(pipeline, oracle, events):
    for event in events:
        if isinstance(event, list):
            oracle.process(event)
            if event:
                pipeline.process(batch_of(event))
        elif event > oracle.watermark:
            oracle.advance(event)
            pipeline.watermark(event)


def num_held(pipeline):
    held = [operator._held.table for operator in pipeline.subtasks]
    return sum(run.num_rows for table in held if table is not None for run in table.runs(None))


@settings(max_examples=examples(500), deadline=None)
@given(GAPS, EVENTS, st.booleans(), st.integers(0, 15), st.integers(1, 3))
def test_sessions_are_those_of_the_oracle(gap, events, two_phase, lateness, parallelism):
    """In any order, before 1970, with late records, bridges between sessions, and sessions that fire again."""
    pipeline = Pipeline(gap, two_phase=two_phase, parallelism=parallelism, allowed_lateness_ms=lateness)
    oracle = Oracle(gap, lateness)
    feed(pipeline, oracle, [*events, END])
    assert counted(shown(pipeline.take())) == counted(oracle.results)
    assert pipeline.num_late() == len(oracle.late)
    assert num_held(pipeline) == 0


@settings(max_examples=examples(200), deadline=None)
@given(GAPS, EVENTS, st.booleans(), st.integers(0, 15))
def test_sessions_of_a_whole_stream_are_those_of_the_oracle(gap, events, two_phase, lateness):
    pipeline = Pipeline(gap, keys=(), two_phase=two_phase, allowed_lateness_ms=lateness)
    oracle = Oracle(gap, lateness)
    events = [[(None, v, t) for _, v, t in event] if isinstance(event, list) else event for event in events]
    feed(pipeline, oracle, [*events, END])
    assert counted(shown(pipeline.take())) == counted(oracle.results)
    assert pipeline.num_late() == len(oracle.late)


@settings(max_examples=examples(300), deadline=None)
@given(GAPS, EVENTS, st.booleans(), st.integers(0, 15), st.booleans())
def test_sessions_are_those_of_flinks_operator(gap, events, two_phase, lateness, in_single_records):
    """Whose results come record by record: with allowed lateness only batches of one record can be compared."""
    in_single_records = in_single_records or lateness > 0
    pipeline = Pipeline(gap, two_phase=two_phase, parallelism=2, allowed_lateness_ms=lateness)
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
    columns = Pipeline(gap, two_phase=False, allowed_lateness_ms=lateness, late_tag="late")
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
def test_a_crash_and_another_parallelism_change_nothing(gap, first, second, lost, two_phase, lateness, parallelisms):
    options = {"two_phase": two_phase, "allowed_lateness_ms": lateness}
    oracle = Oracle(gap, lateness)
    pipeline = Pipeline(gap, parallelism=parallelisms[0], **options)
    feed(pipeline, oracle, first)
    rows, num_late = pipeline.take(), pipeline.num_late()
    parts = pipeline.snapshot()
    ahead = Oracle(gap, lateness)
    ahead.watermark = oracle.watermark
    feed(pipeline, ahead, lost)
    pipeline = Pipeline(gap, parallelism=parallelisms[1], parts=parts, **options)
    # A checkpoint right after a restore must hold everything again.
    pipeline = Pipeline(gap, parallelism=parallelisms[2], parts=pipeline.snapshot(), **options)
    feed(pipeline, oracle, [*second, END])
    assert counted(shown(rows + pipeline.take())) == counted(oracle.results)
    assert num_late + pipeline.num_late() == len(oracle.late)


@settings(max_examples=examples(150), deadline=None)
@given(GAPS, EVENTS, EVENTS, st.integers(0, 8), st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_after_the_end_of_event_time_the_rest_is_not_late(gap, first, second, lateness, parallelisms):
    """A job that was drained and goes on: what was open is closed, and time is where it was before the end."""
    oracle = Oracle(gap, lateness)
    pipeline = Pipeline(gap, parallelism=parallelisms[0], allowed_lateness_ms=lateness)
    feed(pipeline, oracle, first)
    lasting = oracle.watermark
    feed(pipeline, oracle, [END])
    rows, num_late, parts = pipeline.take(), pipeline.num_late(), pipeline.snapshot()
    oracle.watermark = lasting
    pipeline = Pipeline(gap, parallelism=parallelisms[1], parts=parts, allowed_lateness_ms=lateness)
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
def test_event_time_that_starts_anew_goes_on_with_what_is_held(gap, runs, two_phase, lateness, restores):
    options = {"two_phase": two_phase, "allowed_lateness_ms": lateness}
    oracle = Oracle(gap, lateness)
    pipeline = Pipeline(gap, **options)
    feed(pipeline, oracle, runs[0])
    rows, num_late = pipeline.take(), pipeline.num_late()
    for events, (parallelism, anew) in zip(runs[1:], restores, strict=False):
        if anew:
            oracle.watermark = MIN_TIMESTAMP
        pipeline = Pipeline(gap, parallelism=parallelism, parts=pipeline.snapshot(), anew=anew, **options)
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
    oracle = Oracle(gap, lateness)
    pipeline = Pipeline(gap, parallelism=2, allowed_lateness_ms=lateness)
    feed(pipeline, oracle, first)
    pipeline.subtasks[0].process_watermark(Watermark(min(oracle.watermark + ahead, END)))
    rows, num_late = pipeline.take(), pipeline.num_late()
    pipeline = Pipeline(gap, parallelism=1, parts=pipeline.snapshot(), allowed_lateness_ms=lateness)
    assert pipeline.subtasks[0]._progress.current_ms == oracle.watermark
    # What comes now is far from what has been: of that every session must have fired exactly once.
    far = [[(k, v, t + 1_000) for k, v, t in event] if isinstance(event, list) else event + 1_000 for event in second]
    feed(pipeline, oracle, [*far, END])
    assert counted(shown(rows + pipeline.take())) == counted(oracle.results)
    assert num_late + pipeline.num_late() == len(oracle.late)


# -- planted bugs ----------------------------------------------------------------------------------------------------


def _starts_a_millisecond_later(original):
    """Windows that only touch do not merge."""

    def touching(self, rows):
        index = rows.schema.get_field_index(session_grouping.START)
        later = pa.array(rows.column(index).to_numpy() + 1)
        found = original(
            self,
            pa.RecordBatch.from_arrays([*rows.columns[:index], later, *rows.columns[index + 1 :]], schema=rows.schema),
        )
        return dataclasses.replace(found, starts=found.starts - 1)

    return touching


def _cuts_a_millisecond_later(original):
    return lambda groups, times, gap_ms: original(groups, times, gap_ms + 1)


def _forgets_what_goes_on(original):
    return lambda self, merged, ends, have_fired, watermark_ms: None


def _knows_no_session(original):
    return lambda self, keys: np.full(len(keys[0]), END, dtype=np.int64)


def _takes_all_that_is_past(original):
    return lambda codes, starts, ends, past_end_ms, earliest: np.zeros(len(codes), dtype=np.bool_)


def _asks_in_order_of_time(original):
    def late_among(codes, starts, ends, past_end_ms, earliest):
        order = np.argsort(-starts, kind="stable")
        is_late = np.empty(len(order), dtype=np.bool_)
        is_late[order] = original(codes[order], starts[order], ends[order], past_end_ms, earliest)
        return is_late

    return late_among


def _fetches_only_what_is_due(original):
    def find(self, wanted):
        rows = original(self, wanted)
        return rows[np.isin(rows, self.queue[: self.position])]

    return find


def _leaves_the_dead_in_snapshots(original):
    return lambda self: None


def _merges_the_first_phase_always(original):
    return lambda self, batch, times, apart=False: original(self, batch, times)


def _has_never_fired(original):
    return lambda self, rows, have_fired: original(self, rows, np.zeros_like(have_fired))


PLANTED = {
    "touching": (session_grouping.SessionGrouping, "touching", _starts_a_millisecond_later),
    "cut": (session_grouping, "_cut", _cuts_a_millisecond_later),
    "put_back": (session_runs.SessionRuns, "_add_again", _forgets_what_goes_on),
    "late_look_up": (session_runs.SessionRuns, "earliest_starts", _knows_no_session),
    "late_dropped": (sessions, "late_among", _takes_all_that_is_past),
    "late_in_order": (sessions, "late_among", _asks_in_order_of_time),
    "all_runs": (session_runs._Run, "find", _fetches_only_what_is_due),
    "purge": (session_runs.SessionRuns, "purge", _leaves_the_dead_in_snapshots),
    "apart": (session_grouping.SessionGrouping, "sessions_of", _merges_the_first_phase_always),
    "fired": (session_grouping.SessionGrouping, "with_fired", _has_never_fired),
}


def differs(seed):
    """Whether a random run, restored once in the middle, differs from the oracle."""
    rng = np.random.default_rng(seed)
    gap, lateness = int(rng.integers(1, 9)), int(rng.choice([0, 0, 6]))
    oracle, options = Oracle(gap, lateness), {"two_phase": bool(rng.integers(2)), "allowed_lateness_ms": lateness}
    pipeline, rows, num_late, now = Pipeline(gap, **options), [], 0, 0
    for step in range(24):
        now += int(rng.integers(0, 6))
        times = now + rng.integers(-12, 8, int(rng.integers(1, 6)))
        feed(pipeline, oracle, [[(int(rng.integers(2)), 1, int(time)) for time in times], now - 3])
        if step == 12:
            rows, num_late = pipeline.take(), pipeline.num_late()
            pipeline = Pipeline(gap, parallelism=2, parts=pipeline.snapshot(), **options)
    feed(pipeline, oracle, [END])
    return counted(shown(rows + pipeline.take())) != counted(oracle.results) or num_late + pipeline.num_late() != len(
        oracle.late
    )


@pytest.mark.parametrize("few_rows", [1, 20, 8_192])
def test_no_random_run_differs(few_rows, monkeypatch):
    """With many runs and with few, and with dead rows that leave early or late."""
    monkeypatch.setattr(session_runs, "_FEW_ROWS", few_rows)
    assert [seed for seed in range(40) if differs(seed)] == []


@pytest.mark.parametrize("bug", sorted(PLANTED))
def test_planted_bugs_are_found(bug):
    owner, name, plant = PLANTED[bug]
    with mock.patch.object(owner, name, plant(getattr(owner, name))):
        assert any(differs(seed) for seed in range(40))


# -- runs ------------------------------------------------------------------------------------------------------------


def test_runs_are_merged_and_rows_found_in_all_of_them():
    """Hundreds of batches of ever the same keys leave a few runs, and hardly more rows than there are sessions."""
    pipeline, oracle = Pipeline(10), Oracle(10)
    for step in range(300):
        feed(pipeline, oracle, [[(step % 3, 1, 3 * step), (100 + step % 50, 1, 3 * step)]])
    (operator,) = pipeline.subtasks
    assert len(operator._runs._runs) <= session_runs._MAX_RUNS
    assert sum(run.num_alive for run in operator._runs._runs) < 400
    feed(pipeline, oracle, [450, 600, END])
    assert counted(shown(pipeline.take())) == counted(oracle.results)


def test_a_watermark_before_anything_is_due_reads_nothing():
    pipeline = Pipeline(10)
    pipeline.process(batch_of([(1, 1, 20), (2, 1, 25)]))
    with mock.patch.object(session_runs.SessionRuns, "_batches", side_effect=AssertionError("the table is read")):
        pipeline.watermark(28)
    pipeline.watermark(29)
    assert [row["k"] for row, _ in pipeline.take()] == [1]


def test_only_keys_with_something_due_are_fetched():
    pipeline = Pipeline(10, {"n": agg.count()})
    pipeline.process(batch_of([(key, 1, 2 * key) for key in range(1_000)]))
    fetched = []
    original = session_grouping.SessionGrouping.touching

    def touching(self, rows):
        fetched.append(rows.num_rows)
        return original(self, rows)

    with mock.patch.object(session_grouping.SessionGrouping, "touching", touching):
        pipeline.watermark(20)
    assert fetched == [6]  # the keys 0 to 5 end by 20


def test_results_of_one_watermark_come_in_the_order_of_event_time():
    pipeline = Pipeline(10, {"n": agg.count()})
    pipeline.process(batch_of([(key, 1, 7 * key % 100) for key in range(60)]))
    pipeline.watermark(END)
    times = [time for _, time in pipeline.take()]
    assert times == sorted(times)


def test_many_results_come_in_batches_of_bounded_size():
    pipeline = Pipeline(10, {"n": agg.count()}, two_phase=False)
    with mock.patch.object(sessions, "MAX_BATCH_ROWS", 16):
        pipeline.process(batch_of([(key, 1, key) for key in range(40)]))
        pipeline.watermark(END)
    (operator,) = pipeline.subtasks
    assert [batch.num_rows for batch in operator.context.output.batches] == [16, 16, 8]


@pytest.mark.parametrize("key_type", [pa.int64(), pa.string(), pa.float64(), pa.dictionary(pa.int32(), pa.string())])
def test_keys_of_any_type(key_type):
    rng = np.random.default_rng(5)
    times = np.sort(rng.integers(-2_000, 2_000, 3_000))
    keys = rng.integers(0, 50, 3_000)
    plain = key_type.value_type if pa.types.is_dictionary(key_type) else key_type
    shown_keys = pa.array(keys).cast(plain)
    column = shown_keys.dictionary_encode() if pa.types.is_dictionary(key_type) else shown_keys
    pipeline, oracle = Pipeline(20, parallelism=2), Oracle(20)
    for low in range(0, 3_000, 250):
        piece = slice(low, low + 250)
        oracle.process(
            [(key, 1, time) for key, time in zip(shown_keys[piece].to_pylist(), times[piece].tolist(), strict=True)]
        )
        columns = pa.RecordBatch.from_arrays([column[piece], pa.array(np.ones(250, np.int64))], names=["k", "v"])
        pipeline.process(Batch.of_columns(columns, times[piece]))
        oracle.advance(int(times[piece].max()) - 30)
        pipeline.watermark(int(times[piece].max()) - 30)
    oracle.advance(END)
    pipeline.watermark(END)
    assert counted(shown(pipeline.take())) == counted(oracle.results)


def test_types_may_get_wider_from_batch_to_batch():
    """The table is another one then; late records are looked up among keys of both types."""
    pipeline = Pipeline(10, {"n": agg.count(), "total": agg.sum("v")}, two_phase=False)
    first = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.nulls(2)], names=["k", "v"])
    pipeline.process(Batch.of_columns(first, np.array([0, 30])))
    pipeline.watermark(25)
    second = pa.RecordBatch.from_arrays([pa.array([2.0, 1.0, 2.5]), pa.array([0.5, 1.5, 2.5])], names=["k", "v"])
    pipeline.process(Batch.of_columns(second, np.array([20, 5, 22])))  # (2.0, 20) is past but belongs to the second
    pipeline = Pipeline(10, {"n": agg.count(), "total": agg.sum("v")}, two_phase=False, parts=pipeline.snapshot())
    pipeline.watermark(END)
    rows = [(row["k"], row["start"], row["n"], row["total"]) for row in shown(pipeline.take())]
    assert rows == [(2.5, 22, 1, 2.5), (2.0, 20, 2, 0.5)]


def test_types_without_a_common_one_are_refused():
    pipeline = Pipeline(10, {"n": agg.count()}, two_phase=False)
    pipeline.process(Batch.of_columns(pa.RecordBatch.from_pydict({"k": [1]}), np.array([0])))
    with pytest.raises(TypeMismatchError, match="the types of keys or aggregates changed"):
        pipeline.process(Batch.of_columns(pa.RecordBatch.from_pydict({"k": ["a"]}), np.array([0])))


# -- the first phase -------------------------------------------------------------------------------------------------


def test_the_first_phase_merges_nothing_that_may_be_late():
    """It is ahead of the watermark here, unless this input was idle or has just been restored."""
    pipeline = Pipeline(10)
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
    pipeline = Pipeline(10)
    output = pipeline.local.context.output
    pipeline.local.process_status(StreamStatus(True))
    pipeline.local.process_status(StreamStatus(False))
    pipeline.watermark(5)
    assert num_rows() == 3
    pipeline = Pipeline(10, parts=pipeline.snapshot())
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
    with pytest.raises(ProgramError, match="key selector is a function"):
        GlobalSessionAggregate(KeySelector.of_function(len), ten, AGGREGATES)
    with pytest.raises(ProgramError, match="must be of event time and of one gap"):
        GlobalSessionAggregate(["k"], ProcessingTimeSessionWindows.with_gap(10), AGGREGATES)
    with pytest.raises(ProgramError, match="must be of event time and of one gap"):
        GlobalSessionAggregate(["k"], EventTimeSessionWindows.with_dynamic_gap(lambda _: 1), AGGREGATES)


def test_records_need_event_time_and_keys():
    pipeline = Pipeline(10)
    with pytest.raises(ProgramError, match="no event time"):
        pipeline.process(Batch.of_columns(pa.RecordBatch.from_pydict({"k": [1], "v": [1]}), None))
    with pytest.raises(ProgramError, match="key column 'k' does not exist") as caught:
        pipeline.process(Batch.of_columns(pa.RecordBatch.from_pydict({"q": [1], "v": [1]}), np.array([0])))
    assert caught.value.context["operator"] == "windows"


def test_another_aggregation_is_refused_on_restore():
    pipeline = Pipeline(10)
    pipeline.process(batch_of([(1, 1, 5)]))
    with pytest.raises(CheckpointMismatchError, match="the program needs"):
        Pipeline(10, {"n": agg.count()}, parts=pipeline.snapshot())


def test_state_of_the_row_path_is_refused_and_not_forgotten():
    """Unless there is none left, as after a drain."""
    rows = WindowOperator(
        KeySelector.of_field("k"), EventTimeSessionWindows.with_gap(10), aggregate=RowAggregates(AGGREGATES)
    )
    rows.open(context_of())
    rows.process_batch(batch_of([(1, 1, 5)]), 0)
    tumbling = partial(GlobalSliceAggregate, ["k"], TumblingEventTimeWindows.of(10), AGGREGATES)
    with pytest.raises(CheckpointMismatchError, match=r"windows on columns cannot read: 'window-contents'"):
        Pipeline(10, parts=parts_of(rows))
    with pytest.raises(CheckpointMismatchError, match=r"windows on columns cannot read: 'window-contents'"):
        ColumnPipeline(["k"], None, tumbling, parts=parts_of(rows))
    rows.process_watermark(Watermark(END))
    Pipeline(10, parts=parts_of(rows))
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
    pipeline = Pipeline(10, {"n": agg.count()})
    pipeline.process(batch_of([(1, 1, 0)]))
    pipeline = Pipeline(20, {"n": agg.count()}, parts=pipeline.snapshot())
    pipeline.process(batch_of([(1, 1, 10), (2, 1, 0)]))
    pipeline.watermark(END)
    assert [(row["k"], row["start"], row["end"]) for row in shown(pipeline.take())] == [(2, 0, 20), (1, 0, 30)]


def test_schemas_are_known_before_records_come():
    schema = pa.schema([("k", pa.string()), ("v", pa.int32())])
    operator = GlobalSessionAggregate(["k"], EventTimeSessionWindows.with_gap(10), AGGREGATES)
    pipeline = Pipeline(10)
    columns = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([1], pa.int32())], schema=schema)
    pipeline.process(Batch.of_columns(columns, np.array([0])))
    pipeline.watermark(END)
    (batch,) = pipeline.subtasks[0].context.output.batches
    assert batch.columns.schema.equals(operator.output_schema(schema))
