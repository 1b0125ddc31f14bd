"""The broadcast state pattern: what broadcast records may change, what others may read, and rescaling.

Families: oracle (rules that come and go against plain loops), crash (restore at any step and at another parallelism),
and single rules.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_harness import OperatorHarness, ParallelHarness

from headrace.engine.columns.records import MAX_WATERMARK, Watermark
from headrace.engine.errors import ProgramError, StateAccessError
from headrace.engine.functions.cofunctions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.side_outputs import OutputTag
from headrace.engine.operators.broadcast import BroadcastProcessOperator, KeyedBroadcastProcessOperator
from headrace.state.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

BY_KEY = KeySelector.of_field(0)
RULES = MapStateDescriptor("rules")


# ------------------------------------------------------------------------------------------------------- without keys


class Translating(BroadcastProcessFunction):
    """Broadcast records are dictionary entries, others are words."""

    def process_element(self, value, ctx):
        words = ctx.get_broadcast_state(RULES)
        if words.contains(value):
            yield words.get(value)
        else:
            yield OutputTag("unknown"), value

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(*value)
        yield f"{value[0]} at {ctx.current_watermark()}"


def test_records_see_what_was_broadcast_before_them():
    harness = ParallelHarness(BroadcastProcessOperator([RULES], Translating()), 2)
    harness.subtasks[0].process(["one"], [1])
    harness.broadcast([("one", "eins")], [2])
    harness.subtasks[0].process(["one", "two"], [3, 4])
    harness.subtasks[1].process(["one"], [5])
    assert [subtask.take()[-1] for subtask in harness.subtasks] == [("eins", 3), ("eins", 5)]
    assert harness.take_side("unknown") == [("one", 1), ("two", 4)]
    harness.watermark(9)
    wider = harness.restored(3)
    wider.broadcast([("two", "zwei")], [10])
    for subtask in wider.subtasks:
        subtask.process(["one", "two"], [11, 11])
        assert subtask.take() == [("two at 9", 10), ("eins", 11), ("zwei", 11)]
    wider.watermark(12)
    assert wider.subtasks[0].take_controls() == [Watermark(12)]


def test_only_broadcast_records_may_write():
    class Writing(Translating):
        def __init__(self, write):
            self.write = write

        def process_element(self, value, ctx):
            self.write(ctx.get_broadcast_state(RULES))

    writes = (
        lambda state: state.put(1, 2),
        lambda state: state.put_all({1: 2}),
        lambda state: state.remove(1),
        lambda state: state.clear(),
    )
    for write in writes:
        harness = OperatorHarness(BroadcastProcessOperator([RULES], Writing(write)))
        with pytest.raises(StateAccessError, match="'rules' can be changed in process_broadcast_element only"):
            harness.process(["x"])


def test_the_read_only_view_reads_all():
    def read(_, ctx):
        state = ctx.get_broadcast_state(RULES)
        yield (
            list(state.keys()),
            list(state.values()),
            list(state.items()),
            state.is_empty(),
            "a" in state,
            "b" in state,
        )

    pair = (read, lambda value, ctx: ctx.get_broadcast_state(RULES).put(value, 1))
    harness = OperatorHarness(BroadcastProcessOperator([RULES], pair))
    harness.process([0])
    harness.process(["a"], None, 1)
    harness.process([0])
    assert harness.take_rows() == [([], [], [], True, False, False), (["a"], [1], [("a", 1)], False, True, False)]


def test_a_state_that_was_not_declared_is_refused():
    pair = (lambda _, ctx: ctx.get_broadcast_state(MapStateDescriptor("other")), lambda _, ctx: None)
    harness = OperatorHarness(BroadcastProcessOperator([RULES], pair))
    with pytest.raises(StateAccessError, match="'other' was not declared; declared are 'rules'"):
        harness.process([1])


# --------------------------------------------------------------------------------------------------------------- keyed


class Limiting(KeyedBroadcastProcessFunction):
    """Counts per key; broadcast records set a limit, from which on each record tells; a timer tells the total."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        if count == 1:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        self.count.update(count)
        limit = ctx.get_broadcast_state(RULES).get("limit")
        if limit is not None and count >= limit:
            yield ctx.get_current_key(), count

    def process_broadcast_element(self, value, ctx):
        if value is None:  # everybody starts anew
            ctx.apply_to_keyed_state(ValueStateDescriptor("count"), lambda _, state: state.update(0))
        else:
            ctx.get_broadcast_state(RULES).put("limit", value)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), "total", self.count.value(), ctx.get_broadcast_state(RULES).get("limit")
        self.count.clear()


STEPS = st.lists(
    st.one_of(
        st.integers(0, 60),
        st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50)), min_size=1, max_size=5),
        st.tuples(st.one_of(st.none(), st.integers(1, 4))),
    ),
    max_size=14,
)


def limited_by_hand(steps):
    """What `Limiting` gives, step by step."""
    counts, timers, watermark, limit = {}, defaultdict(list), -1, None
    for step in steps:
        given = []
        if isinstance(step, int):
            if step > watermark:
                watermark = step
                for time in sorted(time for time in timers if time <= step):
                    given.extend(((key, "total", counts.pop(key, None), limit), time) for key in timers.pop(time))
        elif isinstance(step, tuple):
            if step[0] is None:
                counts = dict.fromkeys(counts, 0)
            else:
                limit = step[0]
        else:
            for key, time in step:
                counts[key] = counts.get(key, 0) + 1
                if counts[key] == 1 and key not in timers[time + 10]:
                    timers[time + 10].append(key)
                if limit is not None and counts[key] >= limit:
                    given.append(((key, counts[key]), time))
        yield given


@settings(deadline=None, max_examples=examples(80))
@given(steps=STEPS, cut=st.integers(0, 14), parallelisms=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_a_restore_at_any_point_and_parallelism_gives_what_plain_counting_gives(steps, cut, parallelisms):
    steps = [*steps, MAX_WATERMARK.timestamp_ms]
    harness = ParallelHarness(KeyedBroadcastProcessOperator(BY_KEY, [RULES], Limiting()), parallelisms[0])
    for position, (step, expected) in enumerate(zip(steps, limited_by_hand(steps), strict=True)):
        if position == cut:
            harness = harness.restored(parallelisms[1])
        if isinstance(step, int):
            harness.watermark(step)
        elif isinstance(step, tuple):
            harness.broadcast(list(step), [0])
        else:
            harness.process([key for key, _ in step], step, [time for _, time in step])
        assert sorted(harness.take(), key=repr) == sorted(expected, key=repr)


def test_keyed_state_of_every_kind_is_reached_key_by_key():
    class Summing:
        def create_accumulator(self):
            return 0

        def add(self, value, accumulator):
            return accumulator + value

        def get_result(self, accumulator):
            return accumulator

    descriptors = {
        "state": ValueStateDescriptor("v"),
        "list_state": ListStateDescriptor("l"),
        "map_state": MapStateDescriptor("m"),
        "reducing_state": ReducingStateDescriptor("r", reduce_function=max),
        "aggregating_state": AggregatingStateDescriptor("a", aggregate_function=Summing()),
    }

    class Keeping(KeyedBroadcastProcessFunction):
        def open(self, runtime_context):
            self.states = {
                kind: getattr(runtime_context, f"get_{kind}")(descriptor) for kind, descriptor in descriptors.items()
            }

        def process_element(self, value, ctx):
            self.states["state"].update(value[1])
            self.states["map_state"].put(value[1], True)
            for kind in ("list_state", "reducing_state", "aggregating_state"):
                self.states[kind].add(value[1])

        def process_broadcast_element(self, value, ctx):
            seen = []
            read = {"state": lambda state: state.value(), "map_state": lambda state: list(state.keys())}
            for kind, descriptor in descriptors.items():
                look = read.get(kind, lambda state: state.get())
                ctx.apply_to_keyed_state(
                    descriptor, lambda key, state, look=look, kind=kind: seen.append((key, kind, look(state)))
                )
                ctx.apply_to_keyed_state(descriptor, lambda _, state: state.clear())
            return seen

    harness = OperatorHarness(KeyedBroadcastProcessOperator(BY_KEY, [RULES], Keeping()))
    harness.process([("a", 1), ("b", 5), ("a", 2)])
    harness.process([None], None, 1)
    assert sorted(harness.take_rows(), key=repr) == sorted(
        [
            ("a", "state", 2), ("a", "list_state", [1, 2]), ("a", "map_state", [1, 2]), ("a", "reducing_state", 2),
            ("a", "aggregating_state", 3), ("b", "state", 5), ("b", "list_state", [5]), ("b", "map_state", [5]),
            ("b", "reducing_state", 5), ("b", "aggregating_state", 5),
        ],
        key=repr,
    )  # fmt: skip
    harness.process([None], None, 1)
    assert harness.take_rows() == [], "the state was cleared key by key"


def test_a_broadcast_record_has_no_key():
    def refused(touch):
        class Touching(Limiting):
            def process_broadcast_element(self, value, ctx):
                touch(self, ctx)

        harness = OperatorHarness(KeyedBroadcastProcessOperator(BY_KEY, [RULES], Touching()))
        with pytest.raises((StateAccessError, ProgramError)) as caught:
            harness.process([1], [1], 1)
        return str(caught.value)

    assert "belongs to no key" in refused(lambda _, ctx: ctx.get_current_key())
    assert "belongs to no key" in refused(lambda _, ctx: ctx.timer_service())
    assert "no current key" in refused(lambda function, _: function.count.value())
    assert "asked for by a descriptor" in refused(lambda _, ctx: ctx.apply_to_keyed_state("count", print))


def test_timers_and_records_of_a_key_may_not_write():
    class Writing(Limiting):
        def on_timer(self, timestamp, ctx):
            ctx.get_broadcast_state(RULES).clear()

    harness = OperatorHarness(KeyedBroadcastProcessOperator(BY_KEY, [RULES], Writing()), now_ms=5)
    harness.process([3], [0], 1)
    harness.process([("a", 1)], [0])
    with pytest.raises(StateAccessError, match="'rules' can be changed"):
        harness.watermark(10)

    pair = (
        lambda _, ctx: [(ctx.current_watermark(), ctx.current_processing_time(), ctx.time_domain())],
        lambda _, ctx: [(ctx.current_watermark(), ctx.current_processing_time(), ctx.timestamp())],
    )
    harness = OperatorHarness(KeyedBroadcastProcessOperator(BY_KEY, [RULES], pair), now_ms=5)
    harness.watermark(3)
    harness.process([("a", 1)], [4])
    harness.process([0], [6], 1)
    assert harness.take() == [((3, 5, None), 4), ((3, 5, 6), 6)]
