"""Operators over two connected streams.

Families: oracle (a co-process function against plain loops over the same steps), crash (restore at any step and at
another parallelism), and single rules.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_harness import OperatorHarness, ParallelHarness

from headrace.engine.columns.records import MAX_WATERMARK, Watermark
from headrace.engine.errors import ProgramError, StateAccessError, TypeMismatchError, UserFunctionError
from headrace.engine.functions.cofunctions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.side_outputs import OutputTag
from headrace.engine.operators.connected import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    KeyedCoProcessOperator,
)
from headrace.state.keyed.descriptors import ValueStateDescriptor

BY_KEY = KeySelector.of_field(0)


# ------------------------------------------------------------------------------------------------------- without keys


class Scaling(CoMapFunction):
    """Maps numbers by a factor that records of the second stream set: both methods share the object's fields."""

    def open(self, runtime_context):
        self.factor = 1

    def map1(self, value):
        return value * self.factor

    def map2(self, value):
        self.factor = value
        return f"factor {value}"


def test_co_map_calls_a_method_per_input_of_one_object():
    harness = OperatorHarness(CoMapOperator(Scaling()))
    harness.process([1, 2], [10, 11])
    harness.process([3], [5], 1)
    harness.process([1, 2], None)
    assert harness.take() == [(1, 10), (2, 11), ("factor 3", 5), (3, None), (6, None)]


def test_pairs_of_callables_do_for_function_objects():
    harness = OperatorHarness(CoMapOperator((lambda n: n + 1, str)))
    harness.process([1], [1])
    harness.process([1], [2], 1)
    assert harness.take() == [(2, 1), ("1", 2)]
    harness = OperatorHarness(CoFlatMapOperator((range, lambda text: None)))
    harness.process([2, 0, 1], [1, 2, 3])
    harness.process(["x"], [4], 1)
    assert harness.take() == [(0, 1), (1, 1), (0, 3)]
    pair = (lambda value, ctx: [(value, ctx.timestamp())], lambda value, ctx: ctx.output(OutputTag("side"), value))
    harness = OperatorHarness(CoProcessOperator(pair))
    harness.process(["a"], [7])
    harness.process(["b"], [8], 1)
    assert harness.take() == [(("a", 7), 7)]
    assert harness.take_side("side") == [("b", 8)]


def test_functions_are_opened_once_and_closed_once():
    class Living(CoFlatMapFunction):
        def __init__(self):
            self.calls = []

        def open(self, runtime_context):
            self.calls.append("open")

        def close(self):
            self.calls.append("close")

        def flat_map1(self, value):
            self.calls.append(("first", value))
            return [value]

        def flat_map2(self, value):
            self.calls.append(("second", value))

    harness = OperatorHarness(CoFlatMapOperator(Living()))
    harness.process([1])
    harness.process([2], None, 1)
    function = harness.operator.function.function
    harness.operator.close()
    harness.operator.close()
    assert function.calls == ["open", ("first", 1), ("second", 2), "close"]


def test_what_is_no_function_of_two_inputs_is_refused():
    for wrong in (Scaling, len, (len,), (len, 1), object()):
        with pytest.raises(ProgramError, match="function"):
            CoMapOperator(wrong)
    with pytest.raises(ProgramError, match="lacks process_element1 and process_element2"):
        CoProcessOperator(Scaling())


def test_keyed_state_without_keys_is_refused_and_failures_are_named():
    class Stateful(CoProcessFunction):
        def open(self, runtime_context):
            runtime_context.get_state(ValueStateDescriptor("x"))

        def process_element1(self, value, ctx):
            return None

        process_element2 = process_element1

    with pytest.raises(StateAccessError, match="only after key_by"):
        OperatorHarness(CoProcessOperator(Stateful()))
    harness = OperatorHarness(CoMapOperator(Scaling()))
    with pytest.raises(UserFunctionError, match="TypeError") as caught:
        harness.process([None])
    assert caught.value.context["function"].endswith("Scaling.map1")
    harness = OperatorHarness(CoFlatMapOperator((lambda n: n, lambda n: n)))
    with pytest.raises(TypeMismatchError, match="must yield records"):
        harness.process(["text"], None, 1)


# --------------------------------------------------------------------------------------------------------------- keyed


class Meeting(KeyedCoProcessFunction):
    """Counts a key's records of both streams apart; 10 ms after the key's first tells both counts and starts anew."""

    def open(self, runtime_context):
        self.counts = runtime_context.get_state(ValueStateDescriptor("counts"))

    def process_element1(self, value, ctx):
        return self.count(0, ctx)

    def process_element2(self, value, ctx):
        return self.count(1, ctx)

    def count(self, which, ctx):
        counts = self.counts.value()
        if counts is None:
            counts = (0, 0)
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        counts = (counts[0] + 1, counts[1]) if which == 0 else (counts[0], counts[1] + 1)
        self.counts.update(counts)
        yield ctx.get_current_key(), counts
        if sum(counts) % 3 == 0:
            yield OutputTag("thirds"), ctx.get_current_key()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), "total", self.counts.value(), ctx.time_domain()
        self.counts.clear()


def test_state_and_timers_are_shared_by_both_inputs():
    harness = OperatorHarness(KeyedCoProcessOperator(BY_KEY, KeySelector.of_field(1), Meeting()))
    harness.process([("a", 1), ("b", 1)], [0, 5])
    harness.process([(1, "a"), (1, "a")], [2, 3], 1)
    assert harness.take() == [(("a", (1, 0)), 0), (("b", (1, 0)), 5), (("a", (1, 1)), 2), (("a", (1, 2)), 3)]
    assert harness.take_side("thirds") == [("a", 3)]
    harness.watermark(9)
    assert harness.take() == []
    harness.watermark(15)
    assert harness.take() == [
        (("a", "total", (1, 2), "event-time"), 10),
        (("b", "total", (1, 0), "event-time"), 15),
    ]
    assert harness.take_controls() == [Watermark(9), Watermark(15)]
    assert harness.keyed_state.snapshot() == []


STEPS = st.lists(
    st.one_of(
        st.integers(0, 60),
        st.tuples(
            st.integers(0, 1),
            st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50)), min_size=1, max_size=5),
        ),
    ),
    max_size=14,
)


def counted_by_hand(steps):
    """What `Meeting` gives, step by step."""
    counts, timers, watermark = {}, defaultdict(list), -1
    for step in steps:
        given = []
        if isinstance(step, int):
            if step > watermark:
                watermark = step
                for time in sorted(time for time in timers if time <= step):
                    given.extend(
                        ((key, "total", tuple(counts.pop(key)), "event-time"), time) for key in timers.pop(time)
                    )
        else:
            which, records = step
            for key, time in records:
                if key not in counts:
                    counts[key] = [0, 0]
                    timers[time + 10].append(key)
                counts[key][which] += 1
                given.append(((key, tuple(counts[key])), time))
        yield given


@settings(deadline=None, max_examples=examples(80))
@given(steps=STEPS, cut=st.integers(0, 14), parallelisms=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_a_restore_at_any_point_and_parallelism_gives_what_plain_counting_gives(steps, cut, parallelisms):
    steps = [*steps, MAX_WATERMARK.timestamp_ms]
    harness = ParallelHarness(KeyedCoProcessOperator(BY_KEY, BY_KEY, Meeting()), parallelisms[0])
    for position, (step, expected) in enumerate(zip(steps, counted_by_hand(steps), strict=True)):
        if position == cut:
            harness = harness.restored(parallelisms[1])
        if isinstance(step, int):
            harness.watermark(step)
        else:
            which, records = step
            harness.process([key for key, _ in records], records, [time for _, time in records], which)
        assert sorted(harness.take(), key=repr) == sorted(expected, key=repr)
    assert not any(subtask.keyed_state.snapshot() for subtask in harness.subtasks)


def test_processing_time_timers_fire_for_both_inputs():
    class Waiting(KeyedCoProcessFunction):
        def process_element1(self, value, ctx):
            ctx.timer_service().register_processing_time_timer(150)

        process_element2 = process_element1

        def on_timer(self, timestamp, ctx):
            yield ctx.get_current_key(), timestamp, ctx.time_domain()

    first = OperatorHarness(KeyedCoProcessOperator(BY_KEY, BY_KEY, Waiting()), now_ms=100)
    first.process([("a", 1)], [1])
    first.process([("b", 1)], [1], 1)
    second = OperatorHarness(KeyedCoProcessOperator(BY_KEY, BY_KEY, Waiting()), now_ms=120, restored=first.snapshot())
    second.advance_clock(149)
    assert second.take() == []
    second.advance_clock(150)
    assert sorted(second.take()) == [(("a", 150, "processing-time"), None), (("b", 150, "processing-time"), None)]


def test_a_pair_of_callables_has_keys_but_no_timers_to_fire():
    pair = (lambda value, ctx: [ctx.get_current_key()], lambda _, ctx: ctx.timer_service().register_event_time_timer(3))
    harness = OperatorHarness(KeyedCoProcessOperator(BY_KEY, BY_KEY, pair))
    harness.process([("a", 1)], [1])
    assert harness.take_rows() == ["a"]
    harness.process([("a", 1)], [1], 1)
    with pytest.raises(ProgramError, match="no on_timer"):
        harness.watermark(3)
