"""The general path of windows against the oracle: every kind of window, trigger, evictor and function.

One property (random input out of order, batches, watermarks and clock in any interleaving, a snapshot and restore at
another parallelism at a random point) covers assignment, triggers with state and timers, merging, eviction, lateness
and what is kept in state; after each run no state is left. A second one holds the fast path against the general path.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_harness import ParallelHarness
from oracles import sliding_spans
from window_oracle import (
    GLOBAL,
    MAX,
    AtEndOfStream,
    ByClock,
    ByEventTime,
    EveryClockInterval,
    EveryCount,
    EveryInterval,
    Firing,
    GeneralOracle,
    OnDelta,
    Purging,
    TriggerModel,
)

from headrace.engine.functions.contract import AggregateFunction, ProcessWindowFunction
from headrace.engine.functions.keys import KeySelector
from headrace.engine.windows.assigners import (
    CountWindows,
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    MergingWindowAssigner,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
    merge_touching,
)
from headrace.engine.windows.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor
from headrace.engine.windows.placement import has_fast_path
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
from headrace.engine.windows.windows import TimeWindow
from headrace.state.keyed.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

BY_KEY = KeySelector.of_field(0)

# ---------------------------------------------------------------------------------------------------------- functions


class Listing(AggregateFunction):
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


def spread(element):
    return list(element[1:]) if element[0] == "listed" else str(element[1]).split("|")


class Spread(ProcessWindowFunction):
    def process(self, key, context, elements):
        window = context.window()
        yield key, (window.start, window.end), tuple(str(value) for element in elements for value in spread(element))


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


# ------------------------------------------------------------------------------------------------- windows of a program


class Pairs(WindowAssigner):
    """A user's assigner: by the record's number, in windows of two kinds."""

    def assign_windows(self, element, timestamp, context):
        first = TimeWindow(timestamp // 7 * 7, timestamp // 7 * 7 + 7)
        return [first] if element[1] % 3 else [first, TimeWindow(first.start, first.end + 20)]

    def get_default_trigger(self, env):
        return EventTimeTrigger.create()

    def is_event_time(self):
        return True


def pair_spans(time, value):
    start = time // 7 * 7
    return [(start, start + 7)] if value % 3 else [(start, start + 7), (start, start + 27)]


class Touching(MergingWindowAssigner):
    """A user's sessions."""

    def assign_windows(self, element, timestamp, context):
        return [TimeWindow(timestamp - 3, timestamp + 4)]

    def merge_windows(self, windows, callback):
        merge_touching(windows, callback)

    def get_default_trigger(self):
        return EventTimeTrigger.create()

    def is_event_time(self):
        return True


def gap_of(element):
    return element[1] % 9 + 1


class KindOfWindow:
    """An assigner and its model."""

    def __init__(self, assigner, spans_of, default: TriggerModel, *, merges=False, is_event_time=True):
        self.assigner = assigner
        self.spans_of = spans_of
        self.default = default
        self.merges = merges
        self.is_event_time = is_event_time
        self.is_global = isinstance(assigner, (GlobalWindows, CountWindows))

    def __repr__(self):
        return repr(self.assigner)


def fixed(assigner, size, slide, offset=0, *, is_event_time=True):
    default = ByEventTime() if is_event_time else ByClock()

    def spans_of(time, _value):
        return sliding_spans(time, size, slide, offset)

    return KindOfWindow(assigner, spans_of, default, is_event_time=is_event_time)


def cumulative_spans(time, _value):
    start = (time - 1) // 12 * 12 + 1
    return [(start, start + step) for step in (4, 8, 12) if time < start + step]


KINDS = [
    fixed(TumblingEventTimeWindows.of(10), 10, 10),
    fixed(TumblingEventTimeWindows.of(12, 5), 12, 12, 5),
    fixed(SlidingEventTimeWindows.of(10, 4, 1), 10, 4, 1),
    fixed(SlidingEventTimeWindows.of(4, 9), 4, 9),
    fixed(TumblingProcessingTimeWindows.of(20), 20, 20, is_event_time=False),
    fixed(SlidingProcessingTimeWindows.of(30, 12), 30, 12, is_event_time=False),
    KindOfWindow(EventTimeSessionWindows.with_gap(6), lambda time, _: [(time, time + 6)], ByEventTime(), merges=True),
    KindOfWindow(
        EventTimeSessionWindows.with_dynamic_gap(gap_of),
        lambda time, value: [(time, time + value % 9 + 1)],
        ByEventTime(),
        merges=True,
    ),
    KindOfWindow(
        ProcessingTimeSessionWindows.with_gap(15),
        lambda time, _: [(time, time + 15)],
        ByClock(),
        merges=True,
        is_event_time=False,
    ),
    KindOfWindow(
        ProcessingTimeSessionWindows.with_dynamic_gap(gap_of),
        lambda time, value: [(time, time + value % 9 + 1)],
        ByClock(),
        merges=True,
        is_event_time=False,
    ),
    KindOfWindow(CumulativeEventTimeWindows.of(12, 4, 1), cumulative_spans, ByEventTime()),
    KindOfWindow(GlobalWindows.create(), lambda _time, _value: [GLOBAL], TriggerModel(), is_event_time=False),
    KindOfWindow(
        GlobalWindows.create_with_end_of_stream_trigger(),
        lambda _time, _value: [GLOBAL],
        AtEndOfStream(),
        is_event_time=False,
    ),
    KindOfWindow(CountWindows.of(3), lambda _time, _value: [GLOBAL], Purging(EveryCount(3)), is_event_time=False),
    KindOfWindow(Pairs(), pair_spans, ByEventTime()),
    KindOfWindow(Touching(), lambda time, _: [(time - 3, time + 4)], ByEventTime(), merges=True),
]

# ------------------------------------------------------------------------------------------------ triggers of a program


class Restless(Trigger):
    """A user's trigger: all kinds of state, both kinds of timers, and it does not tidy up its timers."""

    _SUM = ReducingStateDescriptor("sum", reduce_function=lambda left, right: left + right)
    _SEEN = ListStateDescriptor("seen")
    _KINDS = MapStateDescriptor("kinds")
    _LAST = ValueStateDescriptor("last", default=0)

    def __init__(self, merges):
        self._merges = merges

    def on_element(self, element, timestamp, window, ctx):
        value = element[1]
        total, seen = ctx.get_partitioned_state(self._SUM), ctx.get_partitioned_state(self._SEEN)
        total.add(value % 5)
        seen.add(value)
        if not self._merges:
            kinds, last = ctx.get_partitioned_state(self._KINDS), ctx.get_partitioned_state(self._LAST)
            kinds.put(value % 2, value)
            last.update(last.value() + 1)
            assert last.value() >= len(seen.get()) >= 1
            assert set(kinds.keys()) <= {0, 1}
        ctx.register_event_time_timer(timestamp + 7)
        ctx.register_processing_time_timer(ctx.get_current_processing_time() + 11)
        if value % 11 == 10:
            ctx.delete_event_time_timer(timestamp + 7)
        if total.get() > 8:
            total.clear()
            return TriggerResult.FIRE_AND_PURGE
        return TriggerResult.PURGE if len(seen.get()) % 6 == 5 else TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx):
        return TriggerResult.FIRE if (ctx.get_partitioned_state(self._SUM).get() or 0) % 2 else TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx):
        return TriggerResult.FIRE

    def can_merge(self):
        return self._merges

    def on_merge(self, window, ctx):
        ctx.merge_partitioned_state(self._SUM)
        ctx.merge_partitioned_state(self._SEEN)
        ctx.register_event_time_timer(window.max_timestamp() - 2)

    def clear(self, window, ctx):
        ctx.get_partitioned_state(self._SUM).clear()
        ctx.get_partitioned_state(self._SEEN).clear()
        if not self._merges:
            ctx.get_partitioned_state(self._KINDS).clear()
            ctx.get_partitioned_state(self._LAST).clear()


class RestlessModel(TriggerModel):
    def on_element(self, window, value, time, oracle):
        state = window.state
        state["sum"] = state.get("sum", 0) + value % 5
        state["seen"] = state.get("seen", 0) + 1
        window.event_timers.add(time + 7)
        window.clock_timers.add(oracle.now + 11)
        if value % 11 == 10:
            window.event_timers.discard(time + 7)
        if state["sum"] > 8:
            del state["sum"]
            return True, True
        return False, state["seen"] % 6 == 5

    def on_event(self, window, time, oracle):
        return window.state.get("sum", 0) % 2 == 1, False

    def on_clock(self, window, time, oracle):
        return True, False

    def on_merge(self, window, gone, oracle):
        for name in ("sum", "seen"):
            if any(name in one.state for one in gone):
                window.state[name] = sum(one.state.get(name, 0) for one in gone)
        window.event_timers.add(window.last - 2)


def apart(old, new):
    return abs(new[1] - old[1])


def apart_values(old, new):
    return abs(new - old)


# Name -> (trigger for merging or not, model); None keeps the assigner's default.
TRIGGERS: dict[str, Any] = {
    "default": None,
    "event time": lambda _: (EventTimeTrigger(), ByEventTime()),
    "clock": lambda _: (ProcessingTimeTrigger(), ByClock()),
    "count": lambda _: (CountTrigger.of(2), EveryCount(2)),
    "purging count": lambda _: (PurgingTrigger.of(CountTrigger.of(3)), Purging(EveryCount(3))),
    "purging event time": lambda _: (PurgingTrigger.of(EventTimeTrigger()), Purging(ByEventTime())),
    "continuous": lambda _: (ContinuousEventTimeTrigger.of(4), EveryInterval(4)),
    "continuous clock": lambda _: (ContinuousProcessingTimeTrigger.of(7), EveryClockInterval(7)),
    "purging continuous": lambda _: (PurgingTrigger.of(ContinuousEventTimeTrigger.of(5)), Purging(EveryInterval(5))),
    "delta": lambda _: (DeltaTrigger.of(2, apart), OnDelta(2, apart_values)),
    "never": lambda _: (NeverTrigger(), TriggerModel()),
    "restless": lambda merges: (Restless(merges), RestlessModel()),
}


class Alternating(Evictor):
    """A user's evictor: every third record before, the oldest one after."""

    def evict_before(self, elements, size, window, ctx):
        assert size == len(elements)
        del elements[2::3]

    def evict_after(self, elements, size, window, ctx):
        assert size == len(elements)
        if elements:
            elements.pop(0)


def last_two(elements):
    return elements[-2:]


def recent(elements):
    return [pair for pair in elements if pair[1] > max(time for _, time in elements) - 6]


def alike(elements):
    return [pair for pair in elements if abs(elements[-1][0] - pair[0]) < 3]


# Name -> (evictor, model before, model after).
EVICTORS: dict[str, Any] = {
    "none": (None, None, None),
    "count": (CountEvictor.of(2), last_two, None),
    "count after": (CountEvictor.of(2, do_evict_after=True), None, last_two),
    "nothing left": (CountEvictor.of(0), lambda _: [], None),
    "time": (TimeEvictor.of(6), recent, None),
    "time after": (TimeEvictor.of(6, True), None, recent),
    "delta": (DeltaEvictor.of(3, apart), lambda elements: alike(elements) if elements else [], None),
    "alternating": (
        Alternating(),
        lambda elements: [pair for i, pair in enumerate(elements) if i % 3 != 2],
        lambda elements: elements[1:],
    ),
}

# --------------------------------------------------------------------------------------------------------------- oracle

steps = st.lists(
    st.one_of(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(-40, 40)), min_size=1, max_size=10),
        st.tuples(st.just("watermark"), st.integers(-50, 60)),
        st.tuples(st.just("clock"), st.integers(0, 25)),
    ),
    max_size=14,
)


def expected_of(firings: list[Firing]) -> Counter[Any]:
    return Counter((f.key, f.span, tuple(map(str, f.values)), f.time) for f in firings)


def run_against_oracle(operator, oracle, steps, cut, parallelisms, backend):
    """Feed both, compare after each step; gives the harness after the end of event time and a long quiet while."""
    harness = ParallelHarness(operator, parallelisms[0], backend=backend)
    number = 0
    late: list[Any] = []
    now = 0
    for position, step in enumerate([*steps, ("watermark", MAX), ("clock", 150)]):
        if position == cut:
            late += harness.take_side("late")
            harness = moved(harness, parallelisms[1])
        firings: list[Firing] = []
        if isinstance(step, list):
            rows = []
            for key, time in step:
                number += 1
                rows.append((key, number))
                firings += oracle.record(key, time, number)
            harness.process([key for key, _ in step], rows, [time for _, time in step])
        elif step[0] == "watermark":
            harness.watermark(step[1])
            firings = oracle.advance(step[1])
        else:
            now += step[1]
            harness.advance_clock(now)
            firings = oracle.clock(now)
        actual = Counter((*row, time) for row, time in harness.take())
        assert actual == expected_of(firings), step
    late += harness.take_side("late")
    assert sorted((row[0], time, row[1]) for row, time in late) == sorted(oracle.late)
    return harness


def moved(harness: ParallelHarness, parallelism: int) -> ParallelHarness:
    """A fresh run at another parallelism from a snapshot, with the old one closed."""
    restored = harness.restored(parallelism)
    harness.close()
    return restored


def states_of(harness: ParallelHarness) -> set[str]:
    """The keyed states that hold anything."""
    return {
        name
        for subtask in harness.subtasks
        for name, table in subtask.keyed_state._tables.items()
        if list(table.namespaces())
    }


def may_be_combined(kind, trigger):
    return not (kind.merges and trigger in ("delta", "never"))


COMBINATIONS = [(kind, trigger) for kind in KINDS for trigger in TRIGGERS if may_be_combined(kind, trigger)]


COMBINED = {
    "steps": steps,
    "combination": st.sampled_from(COMBINATIONS),
    "evictor": st.sampled_from(sorted(EVICTORS)),
    "lateness": st.sampled_from([0, 0, 5, 30]),
    "mode": st.sampled_from(sorted(MODES)),
    "cut": st.integers(0, 15),
    "parallelisms": st.tuples(st.integers(1, 3), st.integers(1, 3)),
}


def check_combination(backend, steps, combination, evictor, lateness, mode, cut, parallelisms):
    kind, trigger_name = combination
    eviction, before, after = EVICTORS[evictor]
    make = TRIGGERS[trigger_name]
    trigger, model = (None, kind.default) if make is None else make(kind.merges)
    operator = WindowOperator(
        BY_KEY,
        kind.assigner,
        trigger=trigger,
        evictor=eviction,
        allowed_lateness_ms=lateness,
        late_tag="late",
        **MODES[mode],
    )
    oracle = GeneralOracle(
        kind.spans_of,
        model,
        merges=kind.merges,
        is_event_time=kind.is_event_time,
        lateness=lateness if kind.is_event_time else 0,
        evict_before=before,
        evict_after=after,
        fires_empty=not mode.startswith("reduce"),
    )
    harness = run_against_oracle(operator, oracle, steps, cut, parallelisms, backend)
    if not kind.is_global:
        assert states_of(harness) == set()
    harness.close()


@settings(deadline=None, max_examples=examples(300))
@given(**COMBINED)
def test_windows_triggers_evictors_and_functions_agree_with_the_oracle(**drawn):
    check_combination("heap", **drawn)


@settings(deadline=None, max_examples=examples(25))
@given(**COMBINED)
def test_windows_triggers_evictors_and_functions_agree_with_the_oracle_on_rocksdb(**drawn):
    check_combination("rocksdb", **drawn)


BOTH = {
    "steps": steps,
    "kind": st.sampled_from([kind for kind in KINDS if has_fast_path(kind.assigner)]),
    "size_slide": st.one_of(st.none(), st.tuples(st.integers(1, 5), st.integers(1, 5))),
    "lateness": st.sampled_from([0, 6]),
    "mode": st.sampled_from(sorted(MODES)),
    "cut": st.integers(0, 15),
}


def check_both_paths(backend, steps, kind, size_slide, lateness, mode, cut):
    assigner = kind.assigner if size_slide is None else CountWindows.of(*size_slide)
    options = {"allowed_lateness_ms": lateness, "late_tag": "late", **MODES[mode]}
    fast = WindowOperator(BY_KEY, assigner, **options)
    general = WindowOperator(BY_KEY, assigner, trigger=assigner.get_default_trigger(), **options)
    assert fast._trigger is None is not general._trigger
    harnesses = [ParallelHarness(operator, 2, backend=backend) for operator in (fast, general)]
    number = now = 0
    for position, step in enumerate([*steps, ("watermark", MAX), ("clock", 150)]):
        if position == cut:
            for harness in harnesses:
                harness.take_side("late")
            harnesses = [moved(harness, 3) for harness in harnesses]
        if isinstance(step, list):
            rows = [(key, number + i) for i, (key, _) in enumerate(step)]
            number += len(step)
        elif step[0] == "clock":
            now += step[1]
        for harness in harnesses:
            if isinstance(step, list):
                harness.process([key for key, _ in step], rows, [time for _, time in step])
            elif step[0] == "watermark":
                harness.watermark(step[1])
            else:
                harness.advance_clock(now)
        # Sessions of one batch may merge in another order on the fast path.
        taken = [
            Counter((key, span, tuple(sorted(values, key=int)) if kind.merges else values, time)
                    for (key, span, values), time in harness.take())
            for harness in harnesses
        ]  # fmt: skip
        assert taken[0] == taken[1], step
    assert sorted(harnesses[0].take_side("late")) == sorted(harnesses[1].take_side("late"))
    if size_slide is None and not kind.is_global:
        assert states_of(harnesses[0]) == states_of(harnesses[1]) == set()
    for harness in harnesses:
        harness.close()


@settings(deadline=None, max_examples=examples(100))
@given(**BOTH)
def test_both_paths_give_equal_answers(**drawn):
    check_both_paths("heap", **drawn)


@settings(deadline=None, max_examples=examples(15))
@given(**BOTH)
def test_both_paths_give_equal_answers_on_rocksdb(**drawn):
    check_both_paths("rocksdb", **drawn)
