"""The runs in which sessions are held, and bugs planted in what finds and merges them.

Families: mutation (each of the decisions that matter taken wrongly must be noticed by the oracle), examples. The risk
is what merges: windows that touch, records behind the watermark that belong to an open session or make one, and rows
that are held twice or not at all.
"""

from __future__ import annotations

import dataclasses
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from campaigns import blocks, planted
from session_kit import END, SessionOracle, SessionPipeline, batch_of, counted, feed, shown

from headrace.engine.columns.records import Batch
from headrace.engine.functions.aggregates import built_in as agg
from headrace.engine.windows.columnar import session_grouping, session_runs, sessions
from headrace.state.errors import TypeMismatchError

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

SLOW = ("apart", "fired", "late_in_order")


def differs(seed):
    """Whether a random run, restored once in the middle, differs from the oracle."""
    rng = np.random.default_rng(seed)
    gap, lateness = int(rng.integers(1, 9)), int(rng.choice([0, 0, 6]))
    oracle, options = (
        SessionOracle(gap, lateness),
        {"two_phase": bool(rng.integers(2)), "allowed_lateness_ms": lateness},
    )
    pipeline, rows, num_late, now = SessionPipeline(gap, **options), [], 0, 0
    for step in range(24):
        now += int(rng.integers(0, 6))
        times = now + rng.integers(-12, 8, int(rng.integers(1, 6)))
        feed(pipeline, oracle, [[(int(rng.integers(2)), 1, int(time)) for time in times], now - 3])
        if step == 12:
            rows, num_late = pipeline.take(), pipeline.num_late()
            pipeline = SessionPipeline(gap, parallelism=2, parts=pipeline.snapshot(), **options)
    feed(pipeline, oracle, [END])
    return counted(shown(rows + pipeline.take())) != counted(oracle.results) or num_late + pipeline.num_late() != len(
        oracle.late
    )


@pytest.mark.parametrize("few_rows", [1, 20, 8_192])
@pytest.mark.parametrize("block", blocks(1, 4))
@pytest.mark.sampled(4)
def test_no_random_run_differs(block, few_rows, monkeypatch):
    """With many runs and with few, and with dead rows that leave early or late."""
    monkeypatch.setattr(session_runs, "_FEW_ROWS", few_rows)
    assert [seed for seed in range(10 * block, 10 * block + 10) if differs(seed)] == []


@pytest.mark.parametrize("bug", planted(PLANTED, SLOW))
@pytest.mark.sampled(4)
def test_planted_bugs_are_found(bug):
    owner, name, plant = PLANTED[bug]
    with mock.patch.object(owner, name, plant(getattr(owner, name))):
        assert any(differs(seed) for seed in range(40))


# -- runs ------------------------------------------------------------------------------------------------------------


def test_runs_are_merged_and_rows_found_in_all_of_them():
    """Hundreds of batches of ever the same keys leave a few runs, and hardly more rows than there are sessions."""
    pipeline, oracle = SessionPipeline(10), SessionOracle(10)
    for step in range(300):
        feed(pipeline, oracle, [[(step % 3, 1, 3 * step), (100 + step % 50, 1, 3 * step)]])
    (operator,) = pipeline.subtasks
    assert len(operator._runs._runs) <= session_runs._MAX_RUNS
    assert sum(run.num_alive for run in operator._runs._runs) < 400
    feed(pipeline, oracle, [450, 600, END])
    assert counted(shown(pipeline.take())) == counted(oracle.results)


def test_a_watermark_before_anything_is_due_reads_nothing():
    pipeline = SessionPipeline(10)
    pipeline.process(batch_of([(1, 1, 20), (2, 1, 25)]))
    with mock.patch.object(session_runs.SessionRuns, "_batches", side_effect=AssertionError("the table is read")):
        pipeline.watermark(28)
    pipeline.watermark(29)
    assert [row["k"] for row, _ in pipeline.take()] == [1]


def test_only_keys_with_something_due_are_fetched():
    pipeline = SessionPipeline(10, {"n": agg.count()})
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
    pipeline = SessionPipeline(10, {"n": agg.count()})
    pipeline.process(batch_of([(key, 1, 7 * key % 100) for key in range(60)]))
    pipeline.watermark(END)
    times = [time for _, time in pipeline.take()]
    assert times == sorted(times)


def test_many_results_come_in_batches_of_bounded_size():
    pipeline = SessionPipeline(10, {"n": agg.count()}, two_phase=False)
    with mock.patch.object(sessions, "MAX_BATCH_ROWS", 16):
        pipeline.process(batch_of([(key, 1, key) for key in range(40)]))
        pipeline.watermark(END)
    (operator,) = pipeline.subtasks
    assert [batch.num_rows for batch in operator.context.output.batches] == [16, 16, 8]


@pytest.mark.parametrize("key_type", [pa.int64(), pa.string(), pa.float64(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.sampled(4)
def test_keys_of_any_type(key_type):
    rng = np.random.default_rng(5)
    times = np.sort(rng.integers(-2_000, 2_000, 3_000))
    keys = rng.integers(0, 50, 3_000)
    plain = key_type.value_type if pa.types.is_dictionary(key_type) else key_type
    shown_keys = pa.array(keys).cast(plain)
    column = shown_keys.dictionary_encode() if pa.types.is_dictionary(key_type) else shown_keys
    pipeline, oracle = SessionPipeline(20, parallelism=2), SessionOracle(20)
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
    pipeline = SessionPipeline(10, {"n": agg.count(), "total": agg.sum("v")}, two_phase=False)
    first = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.nulls(2)], names=["k", "v"])
    pipeline.process(Batch.of_columns(first, np.array([0, 30])))
    pipeline.watermark(25)
    second = pa.RecordBatch.from_arrays([pa.array([2.0, 1.0, 2.5]), pa.array([0.5, 1.5, 2.5])], names=["k", "v"])
    pipeline.process(Batch.of_columns(second, np.array([20, 5, 22])))  # (2.0, 20) is past but belongs to the second
    pipeline = SessionPipeline(
        10, {"n": agg.count(), "total": agg.sum("v")}, two_phase=False, parts=pipeline.snapshot()
    )
    pipeline.watermark(END)
    rows = [(row["k"], row["start"], row["n"], row["total"]) for row in shown(pipeline.take())]
    assert rows == [(2.5, 22, 1, 2.5), (2.0, 20, 2, 0.5)]


def test_types_without_a_common_one_are_refused():
    pipeline = SessionPipeline(10, {"n": agg.count()}, two_phase=False)
    pipeline.process(Batch.of_columns(pa.RecordBatch.from_pydict({"k": [1]}), np.array([0])))
    with pytest.raises(TypeMismatchError, match="the types of keys or aggregates changed"):
        pipeline.process(Batch.of_columns(pa.RecordBatch.from_pydict({"k": ["a"]}), np.array([0])))
