"""Keyed process functions with state and timers, running reductions, and the reducers of fields."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from decimal import Decimal

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_harness import OperatorHarness, ParallelHarness

from headrace.engine.columns.records import MAX_WATERMARK, Batch, Watermark
from headrace.engine.errors import ProgramError, StateAccessError, UserFunctionError
from headrace.engine.functions.contract import KeyedProcessFunction, ReduceFunction
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.side_outputs import OutputTag
from headrace.engine.operators.field_reducer import FieldReducer
from headrace.engine.operators.process import KeyedProcessOperator, KeyedReduceOperator
from headrace.state.keyed.descriptors import ValueStateDescriptor

BY_KEY = KeySelector.of_field(0)


class Counting(KeyedProcessFunction):
    """Counts records per key, tells at a timer 10 ms after the first, and starts anew."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", default=0))

    def process_element(self, value, ctx):
        if self.count.value() == 0:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        self.count.update(self.count.value() + 1)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), self.count.value(), ctx.time_domain()
        self.count.clear()


def test_state_and_timers_belong_to_the_key():
    harness = OperatorHarness(KeyedProcessOperator(BY_KEY, Counting()))
    harness.process([("a", 1), ("b", 1), ("a", 1)], [0, 5, 2])
    harness.watermark(9)
    assert harness.take() == []
    harness.watermark(15)
    assert harness.take() == [(("a", 2, "event-time"), 10), (("b", 1, "event-time"), 15)]
    assert harness.take_controls() == [Watermark(9), Watermark(15)]


@settings(deadline=None, max_examples=examples(60))
@given(
    steps=st.lists(
        st.one_of(
            st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50)), min_size=1, max_size=6), st.integers(0, 60)
        ),
        max_size=12,
    ),
    cut=st.integers(0, 12),
    parallelisms=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_a_restore_at_any_point_and_parallelism_changes_nothing(steps, cut, parallelisms):
    operator = KeyedProcessOperator(BY_KEY, Counting())
    plain, broken = ParallelHarness(operator, 1), ParallelHarness(operator, parallelisms[0])
    for position, step in enumerate([*steps, MAX_WATERMARK.timestamp_ms]):
        if position == cut:
            broken = broken.restored(parallelisms[1])
        for harness in (plain, broken):
            if isinstance(step, int):
                harness.watermark(step)
            else:
                harness.process([key for key, _ in step], step, [time for _, time in step])
        assert sorted(plain.take()) == sorted(broken.take())


def test_processing_time_timers_fire_with_the_clock_and_their_records_have_no_event_time():
    class Waiting(KeyedProcessFunction):
        def process_element(self, value, ctx):
            service = ctx.timer_service()
            service.register_processing_time_timer(service.current_processing_time() + 50)
            service.register_processing_time_timer(service.current_processing_time() + 70)
            service.delete_processing_time_timer(service.current_processing_time() + 70)
            yield ctx.get_current_key(), service.current_watermark()

        def on_timer(self, timestamp, ctx):
            yield ctx.get_current_key(), timestamp, ctx.time_domain(), ctx.timestamp()
            yield OutputTag("side"), timestamp

    first = OperatorHarness(KeyedProcessOperator(BY_KEY, Waiting()), now_ms=100)
    first.watermark(3)
    first.process([("a", 1)], [5])
    assert first.take() == [(("a", 3), 5)]
    second = OperatorHarness(KeyedProcessOperator(BY_KEY, Waiting()), now_ms=120, restored=first.snapshot())
    assert second.operator.next_processing_time() == 150
    second.advance_clock(149)
    assert second.take() == []
    second.advance_clock(200)
    assert second.take() == [(("a", 150, "processing-time", 150), None)]
    assert second.take_side("side") == [(150, None)]
    assert second.operator.next_processing_time() is None


def test_a_callable_has_state_of_the_key_but_no_timers_to_fire():
    harness = OperatorHarness(KeyedProcessOperator(BY_KEY, lambda value, ctx: [(ctx.get_current_key(), value[1])]))
    harness.process([("a", 1), ("b", 2)], [1, 2])
    assert harness.take_rows() == [("a", 1), ("b", 2)]
    harness = OperatorHarness(
        KeyedProcessOperator(BY_KEY, lambda _value, ctx: ctx.timer_service().register_event_time_timer(3))
    )
    harness.process([("a", 1)], [1])
    with pytest.raises(ProgramError, match="no on_timer"):
        harness.watermark(3)


def test_state_outside_of_a_key_is_refused():
    class Early(KeyedProcessFunction):
        def open(self, runtime_context):
            runtime_context.get_state(ValueStateDescriptor("x")).value()

        def process_element(self, value, ctx):
            return None

    with pytest.raises(StateAccessError, match="no current key"):
        OperatorHarness(KeyedProcessOperator(BY_KEY, Early()))


def test_a_failing_timer_is_named():
    class Failing(Counting):
        def on_timer(self, timestamp, ctx):
            raise RuntimeError(timestamp)

    harness = OperatorHarness(KeyedProcessOperator(BY_KEY, Failing()))
    harness.process([("a", 1)], [0])
    with pytest.raises(UserFunctionError, match="RuntimeError: 10") as caught:
        harness.watermark(50)
    assert caught.value.context["function"].endswith("Failing.on_timer")


def test_timers_that_give_much_emit_in_pieces():
    class Much(Counting):
        def on_timer(self, timestamp, ctx):
            return [timestamp] * 40_000

    harness = OperatorHarness(KeyedProcessOperator(BY_KEY, Much()))
    harness.process([(key, 1) for key in range(5)], [0, 1, 2, 3, 4])
    harness.watermark(100)
    batches = [element for element in harness.output.elements if isinstance(element, Batch)]
    assert [batch.num_rows for batch in batches] == [80_000, 80_000, 40_000]
    assert [batch.timestamps[0] for batch in batches] == [10, 12, 14]


# --------------------------------------------------------------------------------------------------------------- reduce


def test_a_running_reduction_gives_every_new_value_with_the_records_time():
    class Adding(ReduceFunction):
        def reduce(self, value1, value2):
            return value1[0], value1[1] + value2[1]

    for function in (Adding(), lambda left, right: (left[0], left[1] + right[1])):
        operator = KeyedReduceOperator(BY_KEY, function)
        harness = ParallelHarness(operator, 1)
        harness.process("ab", [("a", 1), ("b", 10)], [5, 6])
        harness.process("a", [("a", 2)], [4])
        assert harness.take() == [(("a", 1), 5), (("b", 10), 6), (("a", 3), 4)]
        again = harness.restored(3)
        again.process("ba", [("b", 5), ("a", 5)], [7, 8])
        assert sorted(again.take()) == [(("a", 8), 8), (("b", 15), 7)]


Point = namedtuple("Point", "key n")


@dataclass
class Item:
    key: str
    n: int


def test_fields_are_reduced_in_every_shape_of_record():
    def both(old, new, field):
        return {mode: FieldReducer(mode, field).reduce(old, new) for mode in ("sum", "min", "max", "min_by", "max_by")}

    assert both({"k": 1, "n": 5}, {"k": 2, "n": 3}, "n") == {
        "sum": {"k": 1, "n": 8},
        "min": {"k": 1, "n": 3},
        "max": {"k": 1, "n": 5},
        "min_by": {"k": 2, "n": 3},
        "max_by": {"k": 1, "n": 5},
    }
    assert both(("a", 5), ("b", 7), 1) == {
        "sum": ("a", 12),
        "min": ("a", 5),
        "max": ("a", 7),
        "min_by": ("a", 5),
        "max_by": ("b", 7),
    }
    assert FieldReducer("sum", "n").reduce(Point("a", 1), Point("b", 2)) == Point("a", 3)
    assert FieldReducer("sum", 1).reduce(Point("a", 1), Point("b", 2)) == Point("a", 3)
    assert FieldReducer("max", "n").reduce(Item("a", 1), Item("b", 2)) == Item("a", 2)
    assert FieldReducer("max_by", "n").reduce(Item("a", 1), Item("b", 2)) == Item("b", 2)
    assert FieldReducer("sum").reduce(2, 3) == 5
    assert FieldReducer("min").reduce(2, 3) == 2
    with pytest.raises(ProgramError):
        FieldReducer("median", "n")


def test_running_sums_of_decimals_keep_every_digit_or_fail():
    large = Decimal("1234567890123456789012345678")
    assert FieldReducer("sum").reduce(large, Decimal("0.0000000001")) == Decimal(f"{large}.0000000001")
    with pytest.raises(UserFunctionError, match="38 digits"):
        FieldReducer("sum").reduce(large, Decimal("0.00000000001"))


def test_the_earliest_of_equals_is_kept():
    first, second = {"k": 1, "n": 5}, {"k": 2, "n": 5}
    for mode in ("min_by", "max_by"):
        assert FieldReducer(mode, "n").reduce(first, second) is first


@pytest.mark.parametrize("mode", ["min", "max", "min_by", "max_by"])
def test_nan_is_skipped_wherever_there_is_another_value(mode):
    nan = float("nan")
    for values in ((nan, 1.0), (1.0, nan)):
        first, second = ({"n": value} for value in values)
        assert FieldReducer(mode, "n").reduce(first, second) == {"n": 1.0}
