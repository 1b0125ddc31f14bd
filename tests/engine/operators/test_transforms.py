"""Stateless operators: what comes out, with which event times, on which face; and the operator that assigns them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from operator_harness import OperatorHarness

from headrace.engine.columns.records import MAX_BATCH_ROWS, MAX_WATERMARK, Batch, StreamStatus, Watermark
from headrace.engine.errors import TypeMismatchError, UserFunctionError
from headrace.engine.functions.contract import FilterFunction, FlatMapFunction, MapFunction, ProcessFunction
from headrace.engine.functions.side_outputs import OutputTag
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.engine.operators.row_operators import (
    FilterOperator,
    FlatMapOperator,
    MapBatchesOperator,
    MapOperator,
    ProcessOperator,
    TimestampsAndWatermarksOperator,
)


def run(operator, rows, times=None):
    harness = OperatorHarness(operator)
    harness.process(rows, times)
    return harness.take()


class Doubling(MapFunction, FlatMapFunction, FilterFunction):
    def map(self, value):
        return value * 2

    def flat_map(self, value):
        yield value
        yield value * 2

    def filter(self, value):
        return value > 1


def test_map_keeps_event_times():
    for function in (Doubling(), lambda value: value * 2):
        assert run(MapOperator(function), [1, 2], [5, 6]) == [(2, 5), (4, 6)]
    assert run(MapOperator(lambda _: None), [1]) == [(None, None)]


def test_flat_map_takes_generators_lists_and_none_and_copies_event_times():
    assert run(FlatMapOperator(Doubling()), [1, 2], [5, 6]) == [(1, 5), (2, 5), (2, 6), (4, 6)]
    by_kind = {"list": ["a", "b"], "tuple": ("c",), "none": None, "empty": []}
    assert run(FlatMapOperator(by_kind.get), ["list", "none", "tuple", "empty"], [1, 2, 3, 4]) == [
        ("a", 1),
        ("b", 1),
        ("c", 3),
    ]
    assert run(FlatMapOperator(str.split), ["to be", ""]) == [("to", None), ("be", None)]
    with pytest.raises(TypeMismatchError, match="got str"):
        run(FlatMapOperator(lambda line: line), ["text"])


def test_a_flat_map_that_gives_much_emits_in_pieces():
    harness = OperatorHarness(FlatMapOperator(lambda value: [value] * 30_000))
    harness.process([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert [batch.num_rows for batch in harness.output.elements] == [90_000, 60_000]
    assert harness.take() == [(value, value) for value in (1, 2, 3, 4, 5) for _ in range(30_000)]


@pytest.mark.parametrize("times", [[1, 2], None])
@pytest.mark.parametrize(
    "operator",
    [
        FlatMapOperator(lambda value: [value] * (MAX_BATCH_ROWS - 1 + value)),
        ProcessOperator(lambda value, _context: [value] * (MAX_BATCH_ROWS - 1 + value)),
    ],
    ids=["flat_map", "process"],
)
def test_the_last_record_may_fill_a_batch(operator, times):
    """There is nothing behind it then, and nothing has event times."""
    harness = OperatorHarness(operator)
    harness.process([1, 2], times)
    assert [batch.num_rows for batch in harness.output.elements] == [MAX_BATCH_ROWS, MAX_BATCH_ROWS + 1]
    assert harness.take()[-1] == (2, times and 2)
    harness.process([], times and [])
    assert harness.take() == []


def test_filter_keeps_both_faces():
    for function in (Doubling(), lambda value: value > 1):
        assert run(FilterOperator(function), [1, 2, 3], [5, 6, 7]) == [(2, 6), (3, 7)]
    harness = OperatorHarness(FilterOperator(lambda row: row["n"] != 2))
    columns = pa.record_batch({"n": [1, 2, 3]})
    harness.operator.process_batch(Batch.of_columns(columns, np.array([1, 2, 3])), 0)
    (batch,) = harness.output.elements
    assert batch.has_rows
    assert batch.has_columns
    assert batch.rows == [{"n": 1}, {"n": 3}]
    assert batch.columns.to_pydict() == {"n": [1, 3]}
    assert batch.timestamps.tolist() == [1, 3]


def test_filter_passes_a_batch_as_it_is_or_nothing():
    harness = OperatorHarness(FilterOperator(lambda row: row > 0))
    batch = Batch.of_rows([1, 2])
    harness.operator.process_batch(batch, 0)
    harness.operator.process_batch(Batch.of_rows([-1]), 0)
    assert harness.output.elements == [batch]


def test_process_sees_the_record_and_fills_side_outputs():
    tag = OutputTag("odd")

    class Sorting(ProcessFunction):
        def process_element(self, value, ctx):
            if value % 2:
                yield tag, value
                ctx.output(OutputTag("direct"), value)
            else:
                yield value, ctx.timestamp()
                yield value, ctx.current_processing_time()

    harness = OperatorHarness(ProcessOperator(Sorting()), now_ms=99)
    harness.process([1, 2, 3], [10, 20, 30])
    assert harness.take() == [((2, 20), 20), ((2, 99), 20)]
    assert harness.take_side("odd") == [(1, 10), (3, 30)]
    assert harness.take_side("direct") == [(1, 10), (3, 30)]
    harness.process([1])
    assert harness.take_side("odd") == [(1, None)]


def test_process_accepts_a_callable_and_records_that_are_pairs():
    assert run(ProcessOperator(lambda value, ctx: [("a", value)]), [1], [2]) == [(("a", 1), 2)]


def test_map_batches_keeps_event_times_of_as_many_rows_and_else_gives_the_highest():
    def run_columns(function):
        harness = OperatorHarness(MapBatchesOperator(function))
        harness.operator.process_batch(Batch.of_columns(pa.record_batch({"n": [1, 2, 3]}), np.array([7, 9, 8])), 0)
        return [(row["n"], time) for row, time in harness.take()]

    same = [(1, 7), (2, 9), (3, 8)]
    assert run_columns(lambda batch: batch) == same
    assert run_columns(lambda batch: pa.Table.from_batches([batch])) == same
    assert run_columns(lambda batch: {"n": batch.column("n")}) == same
    assert run_columns(lambda batch: (batch.slice(i, 1) for i in range(3))) == same
    assert run_columns(lambda batch: batch.slice(0, 2)) == [(1, 9), (2, 9)]
    assert run_columns(lambda batch: None) == []
    assert run_columns(lambda batch: batch.slice(0, 0)) == []
    with pytest.raises(TypeMismatchError, match="got int"):
        run_columns(lambda batch: 5)
    with pytest.raises(UserFunctionError):
        run_columns(lambda batch: batch.column("missing"))


# ------------------------------------------------------------------------------------------- timestamps and watermarks


def test_records_get_times_and_a_watermark_follows_each_batch_that_raises_it():
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(5).with_timestamp_assigner(lambda row: row)
    harness = OperatorHarness(TimestampsAndWatermarksOperator(strategy))
    harness.process([10, 20])
    harness.process([12])
    harness.watermark(1_000)
    harness.watermark(MAX_WATERMARK.timestamp_ms)
    first, watermark, second, end = harness.output.elements
    assert (first.timestamps.tolist(), second.timestamps.tolist()) == ([10, 20], [12])
    assert (watermark, end) == (Watermark(14), MAX_WATERMARK)


def test_idleness_is_told_and_taken_back_before_the_next_record():
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness(100)
    harness = OperatorHarness(TimestampsAndWatermarksOperator(strategy))
    harness.advance_clock(200)
    assert harness.take_controls() == [StreamStatus(idle=True)]
    harness.process(["a"], [5])
    active, batch, watermark = harness.output.elements
    assert (active, batch.num_rows, watermark) == (StreamStatus(idle=False), 1, Watermark(4))


def test_idleness_of_upstream_is_passed_on():
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    harness = OperatorHarness(TimestampsAndWatermarksOperator(strategy))
    assert harness.operator.next_processing_time() is None
    for idle in (True, True, False):
        harness.operator.process_status(StreamStatus(idle))
    assert harness.take_controls() == [StreamStatus(idle=True), StreamStatus(idle=False)]


def test_ingestion_time_moves_on_without_records():
    harness = OperatorHarness(TimestampsAndWatermarksOperator(WatermarkStrategy.for_ingestion_time()), now_ms=1_000)
    harness.process(["a"])
    assert harness.take() == [("a", 1_000)]
    harness.advance_clock(1_500)
    assert harness.take_controls() == [Watermark(999), Watermark(1_199), Watermark(1_399)]


def test_ingestion_time_goes_on_though_upstream_is_idle():
    harness = OperatorHarness(TimestampsAndWatermarksOperator(WatermarkStrategy.for_ingestion_time()), now_ms=1_000)
    harness.operator.process_status(StreamStatus(idle=True))
    harness.advance_clock(1_200)
    assert harness.take_controls() == [Watermark(1_199)]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_ingestion_time_goes_on_from_the_latest_though_the_clock_is_behind(parallelism):
    operator, parts = TimestampsAndWatermarksOperator(WatermarkStrategy.for_ingestion_time()), []
    for subtask, now_ms in enumerate((1_000, 5_000)):
        harness = OperatorHarness(operator, subtask=subtask, parallelism=2, now_ms=now_ms)
        harness.process(["a"])
        parts += harness.snapshot()
    after = OperatorHarness(operator, parallelism=parallelism, restored=parts, now_ms=2_000)
    after.process(["b"])
    after.advance_clock(3_000)
    assert after.take() == [("b", 5_000)]
    assert after.take_controls() == [Watermark(4_999)]
    after.advance_clock(6_000)
    assert after.take_controls()[-1] == Watermark(5_999)


def test_the_generators_state_is_found_again_by_its_subtask():
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    operator = TimestampsAndWatermarksOperator(strategy)
    parts = []
    for subtask in range(2):
        harness = OperatorHarness(operator, subtask=subtask, parallelism=2)
        harness.process(["a"], [100 * (subtask + 1)])
        parts += harness.snapshot()
    second = OperatorHarness(operator, subtask=1, parallelism=2, restored=parts)
    second.process(["b"], [150])
    assert second.take_controls() == [Watermark(199)]
    alone = OperatorHarness(operator, restored=parts)
    alone.process(["b"], [50])
    assert alone.take_controls() == [Watermark(49)]
