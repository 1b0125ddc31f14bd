"""Windows against the oracle, and their rules one by one.

Oracle tests (random input, batches, watermarks, a snapshot and restore at another parallelism at a random point) cover
assignment, order, lateness, merging and what is kept in state. The single rules are the ones a reader would look up in
Flink's documentation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_harness import OperatorHarness, ParallelHarness, count_late
from oracles import Firing, WindowOracle, count_windows, session_spans, sliding_spans

from headrace.engine.columns.records import MAX_WATERMARK, Watermark
from headrace.engine.errors import ConfigurationError, ProgramError, StateAccessError, UserFunctionError
from headrace.engine.functions.contract import AggregateFunction, ProcessWindowFunction, WindowFunction
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.side_outputs import OutputTag
from headrace.engine.windows.assigners import (
    CountWindows,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from headrace.engine.windows.window_operator import WindowOperator
from headrace.engine.windows.windows import GlobalWindow, TimeWindow
from headrace.state.keyed.descriptors import ValueStateDescriptor

BY_KEY = KeySelector.of_field(0)
MAX = MAX_WATERMARK.timestamp_ms


class Listing(AggregateFunction):
    """Keeps all values, so that a test sees which records, and in which order, a result is made of."""

    def create_accumulator(self):
        return ()

    def add(self, value, accumulator):
        return (*accumulator, value[1])

    def get_result(self, accumulator):
        return ("listed", *accumulator)

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


def concatenate(left, right):
    return (left[0], f"{left[1]}|{right[1]}")


class Spread(ProcessWindowFunction):
    def process(self, key, context, elements):
        window = context.window()
        yield key, (window.start, window.end), tuple(str(value) for element in elements for value in spread(element))


def spread(element):
    if element[0] == "listed":
        return list(element[1:])
    return str(element[1]).split("|")


def make_row(key, window, result):
    parts = result if isinstance(result, list) else [result]
    return key, (window.start, window.end), tuple(str(value) for part in parts for value in spread(part))


MODES = {
    "reduce": {"reduce": concatenate, "result_row": make_row},
    "aggregate": {"aggregate": Listing(), "result_row": make_row},
    "process": {"process": Spread()},
    "reduce+process": {"reduce": concatenate, "process": Spread()},
    "aggregate+process": {"aggregate": Listing(), "process": Spread()},
}


def operator_of(assigner, mode="process", **options):
    return WindowOperator(BY_KEY, assigner, **MODES[mode], **options)


# --------------------------------------------------------------------------------------------------------------- oracle

steps = st.lists(
    st.one_of(
        st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-60, 60)), min_size=1, max_size=12),
        st.integers(-70, 70),
    ),
    max_size=14,
)


def expected_of(firings: list[Firing], is_ordered: bool) -> Counter[Any]:
    return Counter(
        (f.key, f.span, tuple(map(str, f.values if is_ordered else sorted(f.values))), f.span[1] - 1) for f in firings
    )


def actual_of(records: list[tuple[Any, int | None]], is_ordered: bool) -> Counter[Any]:
    return Counter(
        (key, span, values if is_ordered else tuple(sorted(values, key=int)), time)
        for (key, span, values), time in records
    )


def check_against_oracle(operator, oracle, steps, cut, parallelisms, is_ordered):
    harness = ParallelHarness(operator, parallelisms[0])
    number = 0
    for position, step in enumerate([*steps, MAX]):
        if position == cut:
            harness = harness.restored(parallelisms[1])
        firings: list[Firing] = []
        if isinstance(step, int):
            harness.watermark(step)
            firings = oracle.advance(step)
        else:
            rows = []
            for key, time in step:
                number += 1
                rows.append((key, number))
                firings += oracle.record(key, time, number)
            harness.process([key for key, _ in step], rows, [time for _, time in step])
        records = harness.take()
        assert actual_of(records, is_ordered) == expected_of(firings, is_ordered)
        times = [time for subtask in harness.subtasks for time in [subtask.operator._watermark.current_ms]]
        assert all(time == oracle.watermark for time in times)
    late = [(row[0], time, row[1]) for row, time in harness.take_side("late")]
    return late


@settings(deadline=None, max_examples=examples(150))
@given(
    steps=steps,
    size=st.integers(1, 30),
    slide=st.one_of(st.none(), st.integers(1, 40)),
    offset=st.integers(-39, 39),
    lateness=st.sampled_from([0, 0, 5, 40]),
    mode=st.sampled_from(sorted(MODES)),
    cut=st.integers(0, 14),
    parallelisms=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_tumbling_and_sliding_windows_agree_with_the_oracle(
    steps, size, slide, offset, lateness, mode, cut, parallelisms
):
    step_size = slide or size
    offset %= step_size
    if slide is None:
        assigner = TumblingEventTimeWindows.of(size, offset)
    else:
        assigner = SlidingEventTimeWindows.of(size, slide, offset)
    oracle = WindowOracle(lambda time: sliding_spans(time, size, step_size, offset), lateness=lateness)
    operator = operator_of(assigner, mode, allowed_lateness_ms=lateness)
    check_against_oracle(operator, oracle, steps, cut, parallelisms, is_ordered=True)


@settings(deadline=None, max_examples=examples(150))
@given(
    steps=steps,
    gap=st.integers(1, 25),
    lateness=st.sampled_from([0, 0, 5, 40]),
    mode=st.sampled_from(sorted(MODES)),
    cut=st.integers(0, 14),
    parallelisms=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_session_windows_agree_with_the_oracle(steps, gap, lateness, mode, cut, parallelisms):
    oracle = WindowOracle(gap=gap, lateness=lateness)
    operator = operator_of(EventTimeSessionWindows.with_gap(gap), mode, allowed_lateness_ms=lateness)
    check_against_oracle(operator, oracle, steps, cut, parallelisms, is_ordered=False)


@settings(deadline=None, max_examples=examples(60))
@given(steps=steps, size=st.integers(1, 30), gap=st.one_of(st.none(), st.integers(1, 25)), cut=st.integers(0, 14))
def test_late_records_go_to_the_side_output_and_nowhere_else(steps, size, gap, cut):
    assigner = TumblingEventTimeWindows.of(size) if gap is None else EventTimeSessionWindows.with_gap(gap)
    oracle = WindowOracle(lambda time: sliding_spans(time, size, size), gap)
    # Kept on one harness: what was emitted before a restore is not collected again.
    operator = operator_of(assigner, late_tag=OutputTag("late"))
    late = check_against_oracle(operator, oracle, steps, -1, (1, 1), is_ordered=gap is None)
    assert late == oracle.late
    dropping = OperatorHarness(operator_of(assigner))
    for step in steps:
        if isinstance(step, int):
            dropping.watermark(step)
        else:
            dropping.process([(key, 0) for key, _ in step], [time for _, time in step])
    assert count_late(dropping.context) == len(oracle.late)


@settings(deadline=None, max_examples=examples(80))
@given(
    batches=st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), max_size=8),
    size=st.integers(1, 6),
    slide=st.integers(1, 8),
    mode=st.sampled_from(["reduce", "aggregate", "process"]),
    cut=st.integers(0, 8),
)
def test_count_windows_agree_with_the_oracle(batches, size, slide, mode, cut):
    def of_key(key, _window, result):
        parts = result if isinstance(result, list) else [result]
        return key, tuple(str(value) for part in parts for value in spread(part))

    class Whole(ProcessWindowFunction):
        def process(self, key, context, elements):
            assert context.window() == GlobalWindow()
            return [of_key(key, None, list(elements))]

    functions = {"process": Whole()} if mode == "process" else {**MODES[mode], "result_row": of_key}
    operator = WindowOperator(BY_KEY, CountWindows.of(size, slide), **functions)
    harness = ParallelHarness(operator, 1)
    records, fired, number = [], [], 0
    for position, batch in enumerate(batches):
        if position == cut:
            harness = harness.restored(1)
        rows = [(key, number + i) for i, key in enumerate(batch)]
        number += len(batch)
        records += rows
        harness.process(batch, rows)
        fired += [row for row, time in harness.take() if time is None]
    expected = [(key, tuple(map(str, values))) for key, values in count_windows(records, size, slide)]
    assert fired == expected


@settings(deadline=None, max_examples=examples(60))
@given(times=st.lists(st.integers(-200, 200), max_size=40), gap=st.integers(1, 30), chunk=st.integers(1, 10))
def test_sessions_of_any_order_are_those_of_the_sorted_times(times, gap, chunk):
    harness = OperatorHarness(operator_of(EventTimeSessionWindows.with_gap(gap)))
    for begin in range(0, len(times), chunk):
        part = times[begin : begin + chunk]
        harness.process([("k", 1) for _ in part], part)
    harness.watermark(MAX)
    assert Counter(span for _, span, _ in harness.take_rows()) == session_spans(times, gap)


# --------------------------------------------------------------------------------------------------------- single rules


def test_a_window_fires_at_its_last_millisecond_and_results_carry_it():
    harness = OperatorHarness(operator_of(TumblingEventTimeWindows.of(10)))
    harness.process([("a", 1), ("a", 2)], [0, 9])
    harness.watermark(8)
    assert harness.take() == []
    harness.watermark(9)
    assert harness.take() == [(("a", (0, 10), ("1", "2")), 9)]
    assert harness.take_controls() == [Watermark(8), Watermark(9)]


def test_results_come_before_the_watermark_that_made_them():
    harness = OperatorHarness(operator_of(TumblingEventTimeWindows.of(10)))
    harness.process([("a", 1)], [0])
    harness.watermark(20)
    batch, watermark = harness.output.elements
    assert batch.timestamps.tolist() == [9]
    assert watermark == Watermark(20)


def test_times_before_the_epoch_fall_in_the_window_that_holds_them():
    harness = OperatorHarness(operator_of(TumblingEventTimeWindows.of(10)))
    harness.process([("a", 1), ("a", 2), ("a", 3)], [-1, -10, -11])
    harness.watermark(MAX)
    assert [span for _, span, _ in harness.take_rows()] == [(-20, -10), (-10, 0)]


def test_an_offset_shifts_windows():
    harness = OperatorHarness(operator_of(TumblingEventTimeWindows.of("1 d", "-8 h")))
    harness.process([("a", 1)], [0])
    harness.watermark(MAX)
    assert harness.take_rows()[0][1] == (-8 * 3_600_000, 16 * 3_600_000)


def test_each_allowed_late_record_fires_its_window_again():
    harness = OperatorHarness(operator_of(TumblingEventTimeWindows.of(10), allowed_lateness_ms=5))
    harness.process([("a", 1)], [3])
    harness.watermark(9)
    harness.process([("a", 2), ("a", 3)], [4, 5])
    assert [values for _, _, values in harness.take_rows()] == [("1",), ("1", "2"), ("1", "2", "3")]
    harness.watermark(14)
    harness.process([("a", 4)], [5])
    assert harness.take() == []
    assert harness.metrics.counters["num_late_records_dropped"] == 1


def test_no_state_is_left_once_windows_are_over():
    for assigner in (
        TumblingEventTimeWindows.of(10),
        SlidingEventTimeWindows.of(10, 3),
        EventTimeSessionWindows.with_gap(4),
    ):
        for lateness in (0, 7):
            harness = OperatorHarness(operator_of(assigner, allowed_lateness_ms=lateness))
            harness.process([("a", 1), ("b", 2), ("a", 3)], [1, 14, 2])
            harness.watermark(15)
            harness.process([("a", 1)], [12])
            harness.watermark(40)
            assert [part.state for part in harness.snapshot()] == ["watermark"]
            placement = harness.operator._windows
            assert len(placement._store.open.queue) == len(placement._store.fired.queue) == 0
            assert not getattr(placement, "_spans_of", {})


def test_a_session_takes_in_a_record_that_would_be_late_alone():
    harness = OperatorHarness(operator_of(EventTimeSessionWindows.with_gap(10), late_tag="late"))
    harness.process([("a", 1)], [20])
    harness.watermark(24)
    harness.process([("a", 2), ("b", 3)], [11, 11])  # [11, 21) is over, but touches a's [20, 30)
    harness.watermark(MAX)
    assert harness.take_rows() == [("a", (11, 30), ("1", "2"))]
    assert harness.take_side("late") == [(("b", 3), 11)]


def test_sessions_merge_when_they_touch_exactly():
    harness = OperatorHarness(operator_of(EventTimeSessionWindows.with_gap(10)))
    harness.process([("a", 1), ("a", 2), ("a", 3)], [0, 10, 21])
    harness.watermark(MAX)
    assert [span for _, span, _ in harness.take_rows()] == [(0, 20), (21, 31)]


def test_a_fired_session_that_grows_fires_again_as_a_whole():
    harness = OperatorHarness(operator_of(EventTimeSessionWindows.with_gap(10), "reduce", allowed_lateness_ms=20))
    harness.process([("a", 1)], [0])
    harness.watermark(12)
    harness.process([("a", 2)], [8])
    harness.watermark(17)
    assert harness.take() == [(("a", (0, 10), ("1",)), 9), (("a", (0, 18), ("1", "2")), 17)]


def test_processing_time_windows_fire_when_the_clock_has_passed_them():
    harness = OperatorHarness(operator_of(TumblingProcessingTimeWindows.of(100)), now_ms=1_020)
    harness.process([("a", 1)], None)
    harness.advance_clock(1_099)
    harness.process([("a", 2)], None)
    assert harness.take() == []
    assert harness.operator.next_processing_time() == 1_100
    harness.advance_clock(1_100)
    assert harness.take() == [(("a", (1_000, 1_100), ("1", "2")), 1_099)]
    assert harness.operator.next_processing_time() is None


def test_processing_time_windows_survive_a_restore_and_are_not_fired_by_the_end_of_input():
    first = OperatorHarness(operator_of(SlidingProcessingTimeWindows.of(100, 50)), now_ms=60)
    first.process([("a", 1)], None)
    first.watermark(MAX)
    first.operator.finish()
    assert first.take() == []
    second = OperatorHarness(
        operator_of(SlidingProcessingTimeWindows.of(100, 50)), now_ms=70, restored=first.snapshot()
    )
    second.advance_clock(200)
    assert [(span, time) for (_, span, _), time in second.take()] == [((0, 100), 99), ((50, 150), 149)]


def test_processing_time_sessions_end_after_a_quiet_gap():
    harness = OperatorHarness(operator_of(ProcessingTimeSessionWindows.with_gap(100)), now_ms=0)
    for now, row in ((0, ("a", 1)), (90, ("a", 2)), (300, ("a", 3))):
        harness.advance_clock(now)
        harness.process([row], None)
    harness.advance_clock(1_000)
    assert [span for _, span, _ in harness.take_rows()] == [(0, 190), (300, 400)]


def test_count_windows_that_are_not_full_give_nothing_and_carry_the_filling_records_time():
    harness = OperatorHarness(WindowOperator(BY_KEY, CountWindows.of(2), reduce=concatenate))
    harness.process([("a", 1), ("b", 2), ("a", 3)], [5, 6, 7])
    harness.watermark(MAX)
    assert harness.take() == [(("a", "1|3"), 7)]


def test_without_result_row_the_reduced_record_or_the_aggregate_is_the_result():
    for functions, expected in (({"reduce": concatenate}, ("a", "1|2")), ({"aggregate": Listing()}, ("listed", 1, 2))):
        harness = OperatorHarness(WindowOperator(BY_KEY, TumblingEventTimeWindows.of(10), **functions))
        harness.process([("a", 1), ("a", 2)], [1, 2])
        harness.watermark(9)
        assert harness.take_rows() == [expected]


def test_event_time_does_not_go_back_after_a_restore():
    first = OperatorHarness(operator_of(TumblingEventTimeWindows.of(10)))
    first.process([("a", 1)], [25])
    first.watermark(19)
    second = OperatorHarness(operator_of(TumblingEventTimeWindows.of(10)), restored=first.snapshot())
    second.watermark(5)
    second.process([("a", 2)], [3])
    assert second.metrics.counters["num_late_records_dropped"] == 1
    assert second.take_controls() == []
    second.watermark(29)
    assert second.take_rows() == [("a", (20, 30), ("1",))]


def test_the_lowest_watermark_counts_when_subtasks_are_joined():
    operator = operator_of(TumblingEventTimeWindows.of(10))
    parts = []
    for subtask, watermark in ((0, 19), (1, 9)):
        harness = OperatorHarness(operator, subtask=subtask, parallelism=2)
        harness.watermark(watermark)
        parts += harness.snapshot()
    assert OperatorHarness(operator, restored=parts).operator._watermark.current_ms == 9


def test_the_end_of_event_time_is_not_restored():
    operator = operator_of(TumblingEventTimeWindows.of(10))
    first = OperatorHarness(operator)
    first.watermark(19)
    first.watermark(MAX)
    second = OperatorHarness(operator, restored=first.snapshot())
    second.process([("a", 1)], [25])
    second.watermark(MAX)
    assert second.take_rows() == [("a", (20, 30), ("1",))]


def test_a_window_function_sees_window_clocks_and_state_and_fills_side_outputs():
    tag = OutputTag("sides")

    class Full(ProcessWindowFunction):
        def open(self, runtime_context):
            self.seen = runtime_context.get_state(ValueStateDescriptor("seen", default=0))
            self.subtask = runtime_context.get_index_of_this_subtask()

        def process(self, key, context, elements):
            seen = self.seen.value() + len(list(elements))
            self.seen.update(seen)
            also = context.global_state().get_state(ValueStateDescriptor("seen", default=0)).value()
            assert context.window() == TimeWindow(context.window().start, context.window().end)
            yield key, seen, also, context.current_watermark(), context.current_processing_time(), self.subtask
            yield tag, context.window().start
            context.output(tag, "direct")

    harness = OperatorHarness(WindowOperator(BY_KEY, TumblingEventTimeWindows.of(10), process=Full()), now_ms=77)
    harness.process([("a", 1), ("a", 2), ("b", 3)], [1, 11, 1])
    harness.watermark(12)
    harness.watermark(19)
    assert harness.take_rows() == [("a", 1, 1, 12, 77, 0), ("b", 1, 1, 12, 77, 0), ("a", 2, 2, 19, 77, 0)]
    assert harness.take_side("sides") == [(0, 9), ("direct", 9), (0, 9), ("direct", 9), (10, 19), ("direct", 19)]


def test_state_of_a_window_function_belongs_to_the_key_of_the_call():
    class Leaking(ProcessWindowFunction):
        def process(self, key, context, elements):
            return [lambda: context.global_state().get_state(ValueStateDescriptor("x")).value()]

    harness = OperatorHarness(WindowOperator(BY_KEY, TumblingEventTimeWindows.of(10), process=Leaking()))
    harness.process([("a", 1)], [1])
    harness.watermark(9)
    with pytest.raises(StateAccessError):
        harness.take_rows()[0]()


def test_a_window_function_is_told_when_a_window_is_deleted():
    cleared = defaultdict(list)

    class Clearing(ProcessWindowFunction):
        def open(self, runtime_context):
            self.cleared = runtime_context.get_state(ValueStateDescriptor("cleared", default=0))

        def process(self, key, context, elements):
            yield key, self.cleared.value()

        def clear(self, context):
            self.cleared.update(self.cleared.value() + 1)

    for lateness, expected in ((0, [("a", 0), ("a", 1)]), (20, [("a", 0), ("a", 0)])):
        operator = WindowOperator(
            BY_KEY, TumblingEventTimeWindows.of(10), process=Clearing(), allowed_lateness_ms=lateness
        )
        harness = OperatorHarness(operator)
        harness.process([("a", 1), ("a", 2)], [1, 11])
        harness.watermark(9)
        harness.watermark(19)
        assert harness.take_rows() == expected
    assert not cleared


def test_plain_callables_and_window_functions_are_accepted():
    class Applying(WindowFunction):
        def apply(self, key, window, inputs):
            return [(key, window.end, len(list(inputs)))]

    for process in (Applying(), lambda key, context, elements: [(key, context.window().end, len(elements))]):
        harness = OperatorHarness(WindowOperator(BY_KEY, TumblingEventTimeWindows.of(10), process=process))
        harness.process([("a", 1), ("a", 2)], [1, 2])
        harness.watermark(9)
        assert harness.take_rows() == [("a", 10, 2)]


def test_a_failing_function_is_named_with_its_own_traceback():
    def explode(left, right):
        raise KeyError(left)

    harness = OperatorHarness(WindowOperator(BY_KEY, TumblingEventTimeWindows.of(10), reduce=explode))
    with pytest.raises(UserFunctionError, match="KeyError") as caught:
        harness.process([("a", 1), ("a", 2)], [1, 2])
    context = caught.value.context
    assert context["operator"] == "op"
    assert context["subtask"] == "1/1"
    assert context["function"].endswith("explode")
    assert "in explode" in context["traceback"]
    assert "engine/windows/window_operator.py" not in context["traceback"]
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_event_time_window_needs_event_times():
    harness = OperatorHarness(operator_of(TumblingEventTimeWindows.of(10)))
    with pytest.raises(ProgramError, match="without event time"):
        harness.process([("a", 1)], None)


def test_wrong_programs_are_refused_when_they_are_made():
    class NoMerge(AggregateFunction):
        def create_accumulator(self):
            return 0

        def add(self, value, accumulator):
            return accumulator

        def get_result(self, accumulator):
            return accumulator

    tumbling = TumblingEventTimeWindows.of(10)
    WindowOperator(BY_KEY, tumbling, aggregate=NoMerge())
    with pytest.raises(ProgramError, match="lacks merge"):
        WindowOperator(BY_KEY, EventTimeSessionWindows.with_gap(10), aggregate=NoMerge())
    with pytest.raises(ProgramError, match="needs a reduce"):
        WindowOperator(BY_KEY, tumbling)
    with pytest.raises(ProgramError, match="needs a reduce"):
        WindowOperator(BY_KEY, tumbling, reduce=concatenate, aggregate=Listing())
    with pytest.raises(ProgramError, match="Pass Listing"):
        WindowOperator(BY_KEY, tumbling, aggregate=Listing)
    with pytest.raises(ConfigurationError, match="lateness"):
        WindowOperator(BY_KEY, tumbling, reduce=concatenate, allowed_lateness_ms=-1)
    for make in (
        lambda: TumblingEventTimeWindows.of(0),
        lambda: TumblingEventTimeWindows.of(10, 10),
        lambda: SlidingEventTimeWindows.of(10, 0),
        lambda: SlidingEventTimeWindows.of(10, 5, 5),
        lambda: EventTimeSessionWindows.with_gap(-1),
        lambda: CountWindows.of(0),
        lambda: CountWindows.of(3, 0),
        lambda: CountWindows.of(2.5),
        lambda: TumblingEventTimeWindows.of("ten"),
    ):
        with pytest.raises(ConfigurationError):
            make()


def test_many_results_come_in_batches_of_bounded_size():
    harness = OperatorHarness(WindowOperator(BY_KEY, SlidingEventTimeWindows.of(10, 1), reduce=concatenate))
    count = 10_000
    harness.process([(i, 0) for i in range(count)], [0] * count)
    harness.watermark(MAX)
    sizes = [element.num_rows for element in harness.output.elements if not isinstance(element, Watermark)]
    assert sum(sizes) == 10 * count
    assert max(sizes) <= 65_536 + count
