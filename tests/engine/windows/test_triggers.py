"""Triggers and evictors, rule by rule: what a reader would look up in Flink's documentation, and what is refused.

Combinations of all of them are held against the oracle in `test_window_general`.
"""

from __future__ import annotations

import pytest
from operator_harness import OperatorHarness

from headrace.engine.columns.records import MAX_WATERMARK
from headrace.engine.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    ProgramError,
    StateAccessError,
    TypeMismatchError,
    UserFunctionError,
)
from headrace.engine.functions.contract import AggregateFunction, ProcessWindowFunction
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.side_outputs import OutputTag
from headrace.engine.windows.assigners import (
    CountWindows,
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    MergingWindowAssigner,
    ProcessingTimeSessionWindows,
    SessionWindowTimeGapExtractor,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from headrace.engine.windows.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor, TimestampedValue
from headrace.engine.windows.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
    TriggerResult,
)
from headrace.engine.windows.window_operator import WindowOperator
from headrace.engine.windows.window_timers import WindowTimers
from headrace.engine.windows.windows import GlobalWindow, TimeWindow
from headrace.state.keyed.descriptors import ListStateDescriptor, ValueStateDescriptor

BY_KEY = KeySelector.of_field(0)
MAX = MAX_WATERMARK.timestamp_ms
TUMBLING = TumblingEventTimeWindows.of(10)


class Values(ProcessWindowFunction):
    """Gives the window's numbers and its start."""

    def process(self, key, context, elements):
        yield context.window().start, [value for _, value in elements]


def harness_of(assigner, *, now_ms=0, process=None, **options):
    operator = WindowOperator(BY_KEY, assigner, process=process or Values(), **options)
    return OperatorHarness(operator, now_ms=now_ms)


def states(harness):
    return {part.state for part in harness.snapshot()} - {"watermark"}


# ------------------------------------------------------------------------------------------------------------- triggers


def test_a_count_trigger_fires_early_and_the_window_keeps_what_it_has():
    harness = harness_of(TUMBLING, trigger=CountTrigger.of(2))
    harness.process([("a", 1), ("a", 2), ("b", 3), ("a", 4), ("a", 5)], [1, 2, 3, 4, 5])
    assert harness.take() == [((0, [1, 2]), 9), ((0, [1, 2, 4, 5]), 9)]
    harness.watermark(9)
    assert harness.take() == [], "the default trigger is gone"
    assert states(harness) == set()


def test_a_purging_trigger_starts_anew_after_each_firing():
    harness = harness_of(TUMBLING, trigger=PurgingTrigger.of(CountTrigger.of(2)))
    harness.process([("a", i) for i in range(5)], [1] * 5)
    assert [values for _, values in harness.take_rows()] == [[0, 1], [2, 3]]


def test_a_continuous_trigger_fires_at_multiples_of_its_interval_and_at_the_end():
    harness = harness_of(TUMBLING, trigger=ContinuousEventTimeTrigger.of(4))
    harness.process([("a", 1)], [1])
    for watermark, values in ((3, None), (4, [1]), (7, None), (8, [1]), (9, [1])):
        harness.watermark(watermark)
        assert [row for _, row in harness.take_rows()] == ([] if values is None else [values])
    assert states(harness) == set()


def test_a_continuous_trigger_does_not_go_on_behind_the_windows_end():
    harness = harness_of(TUMBLING, trigger=ContinuousEventTimeTrigger.of(4), allowed_lateness_ms=20)
    harness.process([("a", 1)], [1])
    harness.watermark(25)
    assert len(harness.take_rows()) == 3, "at 4, 8 and the end"
    harness.process([("a", 2)], [2])
    assert harness.take_rows() == [(0, [1, 2])]
    harness.watermark(40)
    assert harness.take_rows() == []
    assert states(harness) == set()


def test_a_continuous_trigger_aligns_to_the_epoch_before_1970_too():
    harness = harness_of(TUMBLING, trigger=ContinuousEventTimeTrigger.of(4))
    harness.process([("a", 1)], [-7])
    harness.watermark(-5)
    assert harness.take_rows() == []
    harness.watermark(-4)
    assert harness.take_rows() == [(-10, [1])]


def test_a_continuous_trigger_of_the_clock_gives_early_results_on_a_quiet_stream():
    harness = harness_of(TumblingProcessingTimeWindows.of(100), trigger=ContinuousProcessingTimeTrigger.of(40))
    harness.process([("a", 1)], None)
    harness.advance_clock(40)
    assert harness.take_rows() == []
    harness.advance_clock(41)
    assert harness.take_rows() == [(0, [1])]
    harness.advance_clock(500)
    assert harness.take() == [((0, [1]), 99), ((0, [1]), 99)], "at 80 and at the end"
    assert harness.operator.next_processing_time() is None
    assert states(harness) == set()


def test_a_continuous_trigger_of_the_clock_comes_to_rest_in_windows_of_the_past():
    harness = harness_of(TUMBLING, trigger=ContinuousProcessingTimeTrigger.of(40), now_ms=1_000_000)
    harness.process([("a", 1)], [5])
    harness.advance_clock(1_000_090)
    assert len(harness.take_rows()) == 2
    harness.watermark(9)
    assert harness.take_rows() == []
    assert states(harness) == set()


def test_a_delta_trigger_compares_with_the_record_of_the_last_firing():
    harness = harness_of(GlobalWindows.create(), trigger=DeltaTrigger.of(5, lambda old, new: new[1] - old[1]))
    harness.process([("a", value) for value in (1, 6, 7, 11, 13)], [1, 2, 3, 4, 5])
    assert [values for _, values in harness.take_rows()] == [[1, 6, 7], [1, 6, 7, 11, 13]]


def test_a_global_window_gives_nothing_by_itself_and_results_carry_what_made_it_fire():
    harness = harness_of(GlobalWindows.create())
    harness.process([("a", 1)], [1])
    harness.watermark(MAX)
    assert harness.take() == []
    harness = harness_of(GlobalWindows.create(), trigger=CountTrigger(1))
    harness.process([("a", 1)], [77])
    assert [time for _, time in harness.take()] == [77]
    harness.process([("a", 1)], None)
    assert [time for _, time in harness.take()] == [None]


def test_a_continuous_trigger_of_a_global_window_comes_to_rest_at_the_end_of_event_time():
    harness = harness_of(GlobalWindows.create(), trigger=ContinuousEventTimeTrigger.of(10))
    harness.process([("a", 1)], [3])
    harness.watermark(MAX)
    assert [time for _, time in harness.take()] == [10, MAX]


def test_a_global_window_can_wait_for_the_end_of_the_stream():
    harness = harness_of(GlobalWindows.create_with_end_of_stream_trigger())
    harness.process([("a", 1), ("a", 2)], [30, 3])
    harness.watermark(1_000)
    assert harness.take() == []
    harness.watermark(MAX)
    assert [values for _, values in harness.take_rows()] == [[1, 2]]
    assert states(harness) == set()


def test_count_windows_take_another_trigger_or_evictor_as_the_global_windows_they_are():
    harness = harness_of(CountWindows.of(2), trigger=CountTrigger(3))
    harness.process([("a", i) for i in range(6)], None)
    assert [values for _, values in harness.take_rows()] == [[0, 1, 2], [0, 1, 2, 3, 4, 5]]
    harness = harness_of(CountWindows.of(3, 2), trigger=CountTrigger(4))
    harness.process([("a", i) for i in range(8)], None)
    assert [values for _, values in harness.take_rows()] == [[1, 2, 3], [5, 6, 7]]


def test_windows_by_clock_close_on_a_quiet_stream_with_any_trigger():
    for assigner, trigger in (
        (TumblingProcessingTimeWindows.of(100), ProcessingTimeTrigger.create()),
        (ProcessingTimeSessionWindows.with_gap(100), ProcessingTimeTrigger.create()),
        (ProcessingTimeSessionWindows.with_dynamic_gap(lambda _: 100), None),
    ):
        harness = harness_of(assigner, trigger=trigger)
        harness.process([("a", 1)], None)
        assert harness.operator.next_processing_time() == 100
        harness.advance_clock(99)
        assert harness.take() == []
        harness.advance_clock(100)
        assert harness.take() == [((0, [1]), 99)]
        assert states(harness) == set()


def test_a_millisecond_of_the_clock_must_be_over():
    harness = harness_of(ProcessingTimeSessionWindows.with_gap(100), trigger=ProcessingTimeTrigger())
    harness.process([("a", 1)], None)
    harness.advance_clock(1)
    harness.process([("b", 2)], None)
    harness.advance_clock(100)
    assert harness.take_rows() == [(0, [1])]
    harness.advance_clock(101)
    assert harness.take_rows() == [(1, [2])]


def test_a_session_that_grows_takes_its_timers_and_state_with_it():
    harness = harness_of(EventTimeSessionWindows.with_gap(5), trigger=CountTrigger(9), allowed_lateness_ms=7)
    for time in range(0, 30, 3):
        harness.process([("a", time)], [time])
    assert [values for _, values in harness.take_rows()] == [list(range(0, 27, 3))]
    (entry,) = _entries(harness, "window-event-timers")
    assert entry[1] == "a", "only the end of the whole session"
    assert [namespace for namespace, _ in _entries(harness, "trigger.count")] == [(0, 32)]
    assert [namespace for namespace, _ in _entries(harness, "window-contents")] == [(0, 5)]
    harness = harness_of(EventTimeSessionWindows.with_gap(5), trigger=EventTimeTrigger(), allowed_lateness_ms=7)
    for time in range(0, 30, 3):
        harness.process([("a", time)], [time])
    assert sorted(_entries(harness, "window-event-timers")) == [((31, 31), "a"), ((38, 38), "a")]


def _entries(harness, name):
    """Namespaces and keys of a keyed state."""
    table = harness.keyed_state._tables[name]
    return [(namespace, key) for namespace in table.namespaces() for key in table.namespace(namespace)]


def test_timers_fire_by_time_and_then_in_order_of_registration():
    harness = harness_of(TUMBLING, trigger=CountTrigger(9))
    timers = WindowTimers(harness.keyed_state, "ordered")
    for time, key in ((5, "b"), (5, "a"), (3, "c"), (5, "c"), (5, "b"), (4, "d")):
        timers.register(time, key, (0, 10))
    assert timers.delete(4, "d", (0, 10))
    assert not timers.delete(4, "d", (0, 10))
    timers = WindowTimers(harness.keyed_state, "ordered")  # as after a restore
    timers.register(5, "e", (0, 10))
    fired = []

    def fire(time, key, span):
        fired.append((time, key))
        if key == "b":
            timers.register(2, "early", span)
            timers.register(6, "later", span)
        return key != "a"

    assert timers.fire_until(5, fire)
    assert fired == [(3, "c"), (5, "b"), (2, "early"), (5, "a")], "paused after a"
    assert not timers.fire_until(5, fire)
    assert fired[4:] == [(5, "c"), (5, "e")]
    assert timers.next_time() == 6


class Careless(Trigger):
    """Leaves timers and state behind."""

    def on_element(self, element, timestamp, window, ctx):
        ctx.get_partitioned_state(ListStateDescriptor("left")).add(element)
        ctx.register_event_time_timer(window.max_timestamp() + 1_000)
        ctx.register_processing_time_timer(50)
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx):
        assert time == window.max_timestamp(), "only the end of the window"
        return TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx):
        message = "the window is gone"
        raise AssertionError(message)

    def clear(self, window, ctx):
        pass


def test_a_careless_trigger_leaves_nothing_behind_and_is_not_called_for_windows_that_are_gone():
    harness = harness_of(TUMBLING, trigger=Careless())
    harness.process([("a", 1)], [1])
    harness.watermark(9)
    assert states(harness) == {"window-clock-timers"}
    harness.advance_clock(60)
    harness.watermark(5_000)
    assert states(harness) == set()


def test_timers_of_a_trigger_can_be_taken_back():
    class Revoking(NeverTrigger):
        def on_element(self, element, timestamp, window, ctx):
            for time in (5, 6):
                ctx.register_event_time_timer(time)
                ctx.register_processing_time_timer(time)
            ctx.delete_event_time_timer(6)
            ctx.delete_processing_time_timer(5)
            ctx.delete_processing_time_timer(1_234)
            assert ctx.get_current_watermark() == -(2**63)
            assert ctx.get_current_processing_time() == 3
            ctx.get_metric_group().count("asked", 1)
            return TriggerResult.CONTINUE

        def on_event_time(self, time, window, ctx):
            return TriggerResult.FIRE

        on_processing_time = on_event_time

    harness = harness_of(TUMBLING, trigger=Revoking(), now_ms=3)
    harness.process([("a", 1)], [1])
    assert harness.metrics.counters["asked"] == 1
    harness.watermark(6)
    assert harness.take_rows() == [(0, [1])]
    harness.advance_clock(6)
    assert harness.take_rows() == []
    harness.advance_clock(7)
    assert harness.take_rows() == [(0, [1])]


# ------------------------------------------------------------------------------------------------------------- evictors


def test_evictors_take_records_out_before_or_after_the_function():
    for evictor, expected in (
        (CountEvictor.of(2), [[1, 2], [2, 5], [5, 6]]),
        (CountEvictor.of(2, True), [[1, 2], [1, 2, 5], [2, 5, 6]]),
        (TimeEvictor.of(3), [[1, 2], [5], [5, 6]]),
        (DeltaEvictor.of(4, lambda old, new: new[1] - old[1]), [[1, 2], [2, 5], [5, 6]]),
    ):
        harness = harness_of(TUMBLING, trigger=CountTrigger(1), evictor=evictor)
        harness.process([("a", 1), ("a", 2)], [1, 2])
        harness.process([("a", 5), ("a", 6)], [5, 6])
        assert [values for _, values in harness.take_rows()][1:] == expected, evictor


def test_an_evictor_sees_times_and_clocks_and_what_it_takes_out_is_gone():
    seen = []

    class Spy(Evictor):
        def evict_before(self, elements, size, window, ctx):
            seen.append((list(elements), size, window, ctx.get_current_watermark(), ctx.get_current_processing_time()))
            elements.clear()

        def evict_after(self, elements, size, window, ctx):
            assert size == 0

    harness = harness_of(TUMBLING, evictor=CountEvictor(1), now_ms=4)
    harness.operator._windows._evictor = Spy()
    harness.process([("a", 1)], [7])
    harness.watermark(9)
    assert harness.take_rows() == [(0, [])]
    assert seen == [([TimestampedValue(("a", 1), 7)], 1, TimeWindow(0, 10), 9, 4)]
    assert states(harness) == set()


def test_records_without_event_time_are_kept_by_a_time_evictor():
    harness = harness_of(GlobalWindows.create(), trigger=CountTrigger(2), evictor=TimeEvictor.of(1))
    harness.process([("a", 1), ("a", 2)], None)
    assert harness.take_rows() == [(GlobalWindow().start, [1, 2])]


def test_reduce_and_aggregate_are_run_over_what_an_evictor_leaves():
    class Sum(AggregateFunction):
        def create_accumulator(self):
            return 0

        def add(self, value, accumulator):
            return accumulator + value[1]

        def get_result(self, accumulator):
            return accumulator

    records = [("a", 1), ("a", 2), ("a", 4)]
    for functions, left, empty in (
        ({"reduce": lambda x, y: ("a", x[1] + y[1])}, [("a", 6)], []),
        ({"aggregate": Sum()}, [6], [0]),
    ):
        for evictor, expected in ((CountEvictor(2), left), (CountEvictor(0), empty)):
            harness = OperatorHarness(WindowOperator(BY_KEY, TUMBLING, evictor=evictor, **functions))
            harness.process(records, [1, 2, 3])
            harness.watermark(9)
            assert harness.take_rows() == expected
    WindowOperator(BY_KEY, EventTimeSessionWindows.with_gap(5), evictor=CountEvictor(2), aggregate=Sum())  # no merge


# ----------------------------------------------------------------------------------------------------- state of windows


class Remembering(ProcessWindowFunction):
    """Counts its calls per window and per key, under one name."""

    COUNT = ValueStateDescriptor("count", default=0)

    def process(self, key, context, elements):
        per_window, per_key = context.window_state().get_state(self.COUNT), context.global_state().get_state(self.COUNT)
        per_window.update(per_window.value() + 1)
        per_key.update(per_key.value() + 1)
        yield context.window().start, per_window.value(), per_key.value()


@pytest.mark.parametrize("trigger", [None, EventTimeTrigger()], ids=["fast", "general"])
def test_state_of_a_window_lives_as_long_as_the_window(trigger):
    harness = harness_of(TUMBLING, process=Remembering(), trigger=trigger, allowed_lateness_ms=5)
    harness.process([("a", 1), ("b", 1)], [1, 1])
    harness.watermark(9)
    assert harness.take_rows() == [(0, 1, 1), (0, 1, 1)]
    restored = OperatorHarness(
        WindowOperator(BY_KEY, TUMBLING, process=Remembering(), trigger=trigger, allowed_lateness_ms=5),
        restored=harness.snapshot(),
    )
    restored.process([("a", 2), ("a", 11)], [2, 11])
    assert restored.take_rows() == [(0, 2, 2)]
    assert "window.count" in states(restored)
    restored.process([("b", 2)], [2])  # so that both keys' state has been asked for
    restored.watermark(14)
    assert "window.count" not in states(restored)
    restored.watermark(MAX)
    assert restored.take_rows() == [(0, 2, 2), (10, 1, 3)]
    assert states(restored) == {"count"}


@pytest.mark.parametrize("trigger", [None, EventTimeTrigger()], ids=["fast", "general"])
def test_clear_can_read_the_windows_state_a_last_time(trigger):
    tag = OutputTag("ends")

    class Telling(Remembering):
        def clear(self, context):
            context.output(tag, (context.window().start, context.window_state().get_state(self.COUNT).value()))

    harness = harness_of(TUMBLING, process=Telling(), trigger=trigger)
    harness.process([("a", 1)], [1])
    harness.watermark(9)
    assert harness.take_side("ends") == [((0, 1), 9)]


def test_windows_that_merge_have_no_state_of_their_own():
    for trigger in (None, EventTimeTrigger()):
        harness = harness_of(EventTimeSessionWindows.with_gap(5), process=Remembering(), trigger=trigger)
        harness.process([("a", 1)], [1])
        with pytest.raises(StateAccessError, match="merge have no state"):
            harness.watermark(9)


def test_the_same_key_and_window_of_trigger_function_and_window_do_not_share_state():
    class Counting(NeverTrigger):
        def on_element(self, element, timestamp, window, ctx):
            count = ctx.get_partitioned_state(Remembering.COUNT)
            count.update(count.value() + 10)
            return TriggerResult.FIRE if count.value() == 20 else TriggerResult.CONTINUE

    harness = harness_of(TUMBLING, process=Remembering(), trigger=Counting())
    harness.process([("a", 1), ("a", 1)], [1, 1])
    assert harness.take_rows() == [(0, 1, 1)]
    assert states(harness) >= {"trigger.count", "window.count", "count"}


# ------------------------------------------------------------------------------------------------------------ assigners


def test_dynamic_gaps_come_from_the_records():
    class Gap(SessionWindowTimeGapExtractor):
        def extract(self, element):
            return element[1]

    harness = harness_of(EventTimeSessionWindows.with_dynamic_gap(Gap()))
    harness.process([("a", 10), ("a", 2), ("a", 10)], [0, 5, 12])
    harness.watermark(MAX)
    assert harness.take() == [((0, [10, 2]), 9), ((12, [10]), 21)]
    with pytest.raises(ProgramError, match="positive number of milliseconds; got 0"):
        harness_of(EventTimeSessionWindows.with_dynamic_gap(Gap())).process([("a", 0)], [1])


def test_a_window_that_equals_a_merged_one_keeps_its_content():
    """Flink loses [0, 20)'s content here: its state is under [0, 10)."""
    harness = harness_of(EventTimeSessionWindows.with_dynamic_gap(lambda record: record[1]))
    harness.process([("a", 10), ("a", 15)], [0, 5])
    harness.process([("a", 20)], [0])
    harness.watermark(MAX)
    assert harness.take_rows() == [(0, [10, 15, 20])]


@pytest.mark.parametrize("trigger", [None, EventTimeTrigger()], ids=["fast", "general"])
def test_sessions_that_merge_keep_their_records_in_order_of_the_sessions(trigger):
    harness = harness_of(EventTimeSessionWindows.with_gap(5), trigger=trigger)
    for time in (20, 0, 10, 5, 15):
        harness.process([("a", time)], [time])
    harness.watermark(MAX)
    assert harness.take_rows() == [(0, [0, 10, 5, 20, 15])]


def test_cumulating_windows_grow_step_by_step():
    harness = harness_of(CumulativeEventTimeWindows.of(12, 4))
    harness.process([("a", 1), ("a", 2), ("a", 3)], [1, 6, 11])
    harness.watermark(MAX)
    assert harness.take() == [((0, [1]), 3), ((0, [1, 2]), 7), ((0, [1, 2, 3]), 11)]


def test_an_assigner_sees_the_clock_and_its_place():
    class ByClock(WindowAssigner):
        def assign_windows(self, element, timestamp, context):
            assert timestamp == -(2**63)
            assert context.get_runtime_context().get_index_of_this_subtask() == 0
            now = context.get_current_processing_time()
            return [TimeWindow(now, now + 5)]

        def get_default_trigger(self):
            return ProcessingTimeTrigger()

        def is_event_time(self):
            return False

    harness = harness_of(ByClock(), now_ms=7)
    harness.process([("a", 1)], None)
    harness.advance_clock(12)
    assert harness.take() == [((7, [1]), 11)]


# ------------------------------------------------------------------------------------------------------------- refusals


def test_wrong_triggers_evictors_and_assigners_are_refused_when_they_are_made():
    sessions = EventTimeSessionWindows.with_gap(10)
    for trigger in (NeverTrigger(), DeltaTrigger(1, abs), PurgingTrigger(NeverTrigger()), Careless()):
        with pytest.raises(ProgramError, match="cannot be merged"):
            WindowOperator(BY_KEY, sessions, trigger=trigger, process=Values())
    for wrong in (EventTimeTrigger, "count"):
        with pytest.raises(ProgramError, match="must be a Trigger object"):
            WindowOperator(BY_KEY, TUMBLING, trigger=wrong, process=Values())
    for make in (
        lambda: CountTrigger(0),
        lambda: CountTrigger(1.5),
        lambda: ContinuousEventTimeTrigger.of(0),
        lambda: ContinuousProcessingTimeTrigger.of(-1),
        lambda: CountEvictor.of(-1),
        lambda: CountEvictor.of(True),
        lambda: TimeEvictor.of(-1),
        lambda: CumulativeEventTimeWindows.of(10, 3),
        lambda: CumulativeEventTimeWindows.of(10, 5, 10),
        lambda: WindowOperator(BY_KEY, TUMBLING, process=Values(), trigger=CountTrigger(1), allowed_lateness_ms=-1),
    ):
        with pytest.raises(ConfigurationError):
            make()
    for make in (
        lambda: PurgingTrigger.of(5),
        lambda: DeltaTrigger.of(1, "delta"),
        lambda: DeltaEvictor.of(1, None),
        lambda: EventTimeSessionWindows.with_dynamic_gap(5),
        lambda: EventTimeSessionWindows.with_dynamic_gap(SessionWindowTimeGapExtractor),
    ):
        with pytest.raises(ProgramError):
            make()


def test_wrong_answers_of_triggers_and_assigners_are_refused():
    class Answering(NeverTrigger):
        def on_element(self, element, timestamp, window, ctx):
            return None

    class Registering(NeverTrigger):
        def on_element(self, element, timestamp, window, ctx):
            ctx.register_event_time_timer(1.5)

    class Failing(NeverTrigger):
        def on_element(self, element, timestamp, window, ctx):
            raise KeyError(element)

    class Stray(MergingWindowAssigner):
        def __init__(self, window, result=None):
            self.window, self.result = window, result

        def assign_windows(self, element, timestamp, context):
            return [self.window]

        def merge_windows(self, windows, callback):
            if self.result is not None:
                callback.merge(windows, self.result)

        def get_default_trigger(self):
            return EventTimeTrigger()

        def is_event_time(self):
            return True

    for trigger, message in ((Answering(), "must return a TriggerResult; got None"), (Registering(), "must be an int")):
        with pytest.raises(TypeMismatchError, match=message):
            harness_of(TUMBLING, trigger=trigger).process([("a", 1)], [1])
    with pytest.raises(UserFunctionError, match="KeyError") as caught:
        harness_of(TUMBLING, trigger=Failing()).process([("a", 1)], [1])
    assert "Failing" in caught.value.context["function"]
    with pytest.raises(TypeMismatchError, match="must give TimeWindow or GlobalWindow"):
        harness_of(Stray((1, 2))).process([("a", 1)], [1])
    with pytest.raises(TypeMismatchError, match="only windows of time can merge"):
        harness_of(Stray(GlobalWindow())).process([("a", 1)], [1])
    harness = harness_of(Stray(TimeWindow(50, 60), TimeWindow(0, 10)))
    harness.watermark(20)
    with pytest.raises(ProgramError, match="already been forgotten"):
        harness.process([("a", 1), ("a", 2)], [51, 52])


def test_an_event_time_window_needs_event_times_on_the_general_path_too():
    with pytest.raises(ProgramError, match="without event time"):
        harness_of(TUMBLING, trigger=CountTrigger(1)).process([("a", 1)], None)


def test_a_value_state_of_a_trigger_does_not_merge():
    class Merging(NeverTrigger):
        def on_element(self, element, timestamp, window, ctx):
            ctx.get_partitioned_state(ValueStateDescriptor("x")).update(1)
            return TriggerResult.CONTINUE

        def can_merge(self):
            return True

        def on_merge(self, window, ctx):
            ctx.merge_partitioned_state(ValueStateDescriptor("x"))

    harness = harness_of(EventTimeSessionWindows.with_gap(5), trigger=Merging())
    with pytest.raises(ProgramError):
        harness.process([("a", 1), ("a", 2)], [1, 2])


def test_windows_do_not_go_on_with_the_other_paths_state():
    """Without this a program that is given a trigger would silently lose what its windows held."""
    for first, second in ((None, CountTrigger(5)), (CountTrigger(5), None)):
        harness = harness_of(TUMBLING, trigger=first)
        harness.process([("a", 1)], [1])
        with pytest.raises(CheckpointMismatchError):
            OperatorHarness(
                WindowOperator(BY_KEY, TUMBLING, process=Values(), trigger=second), restored=harness.snapshot()
            )


def test_cleanup_follows_another_lateness_after_a_restore():
    for before, after in ((20, 0), (0, 20)):
        harness = harness_of(TUMBLING, trigger=CountTrigger(5), allowed_lateness_ms=before)
        harness.process([("a", 1)], [1])
        operator = WindowOperator(
            BY_KEY, TUMBLING, process=Values(), trigger=CountTrigger(5), allowed_lateness_ms=after
        )
        second = OperatorHarness(operator, restored=harness.snapshot())
        second.watermark(60)
        assert states(second) == set()
