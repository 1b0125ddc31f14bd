"""Windows through the API: programs at parallelism 2 in one process, and what is refused where it is written.

What windows, triggers and evictors mean is tested on the operator (`tests/engine`); here each kind runs once as a
program, and the plan of windows without key is looked at.
"""

from __future__ import annotations

import pytest

from headrace import (
    AggregateFunction,
    AllWindowFunction,
    ConfigurationError,
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    CumulativeEventTimeWindows,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ProgramError,
    PurgingTrigger,
    ReducingStateDescriptor,
    StreamExecutionEnvironment,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowAssigner,
    count,
)
from headrace import functions as f

RECORDS = [("a", 1), ("b", 2), ("a", 11), ("b", 3), ("a", 12), ("c", 25), ("a", 4), ("b", 14), ("a", 27), ("a", 5)]


@pytest.fixture
def env():
    return StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)


@pytest.fixture
def stream(env):
    """Pairs of a key and a time, out of order by less than 100 ms."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(100).with_timestamp_assigner(lambda record: record[1])
    return env.from_collection(RECORDS).assign_timestamps_and_watermarks(strategy)


def collected(stream):
    with stream.execute_and_collect() as rows:
        return sorted(rows)


def times_of(key, window):
    return sorted(time for k, time in RECORDS if k == key and window.start <= time < window.end)


def whole(key, window, records):
    return [(key, window.start, window.end, sorted(time for _, time in records))]


def test_a_trigger_and_an_evictor_of_a_program(stream):
    class Pairwise(Trigger):
        """Fires at every second record, however far apart, and at the window's end."""

        COUNT = ReducingStateDescriptor("count", lambda left, right: left + right)

        def on_element(self, element, timestamp, window, ctx):
            number = ctx.get_partitioned_state(self.COUNT)
            number.add(1)
            ctx.register_event_time_timer(window.max_timestamp())
            return TriggerResult.FIRE if number.get() % 2 == 0 else TriggerResult.CONTINUE

        def on_event_time(self, time, window, ctx):
            return TriggerResult.FIRE

        def on_processing_time(self, time, window, ctx):
            return TriggerResult.CONTINUE

        def clear(self, window, ctx):
            ctx.get_partitioned_state(self.COUNT).clear()

    class Latest(Evictor):
        def evict_before(self, elements, size, window, ctx):
            elements.sort(key=lambda element: element.timestamp)
            del elements[:-2]

        def evict_after(self, elements, size, window, ctx):
            pass

    windowed = stream.key_by(0).window(TumblingEventTimeWindows.of(10)).trigger(Pairwise()).evictor(Latest())
    rows = collected(windowed.apply(whole))
    assert set(map(str, rows)) >= {str(("a", 0, 10, [4, 5])), str(("b", 0, 10, [2, 3]))}
    assert [row for row in rows if row[0] == "c"] == [("c", 20, 30, [25])]
    assert all(len(times) <= 2 for *_, times in rows)


def test_an_assigner_of_a_program(stream):
    class OddEven(WindowAssigner):
        def assign_windows(self, element, timestamp, context):
            start = timestamp // 20 * 20
            return [TimeWindow(start, start + 20 + timestamp % 2)]

        def get_default_trigger(self, env):
            assert isinstance(env, StreamExecutionEnvironment)
            return EventTimeTrigger.create()

        def is_event_time(self):
            return True

    rows = collected(stream.key_by(0).window(OddEven()).apply(whole))
    assert rows == [
        ("a", 0, 20, [4, 12]), ("a", 0, 21, [1, 5, 11]), ("a", 20, 41, [27]), ("b", 0, 20, [2, 14]), ("b", 0, 21, [3]),
        ("c", 20, 41, [25]),
    ]  # fmt: skip


def test_sessions_with_dynamic_gaps_and_cumulating_windows(stream):
    gaps = EventTimeSessionWindows.with_dynamic_gap(lambda record: 3 if record[0] == "a" else 20)
    rows = collected(stream.key_by(0).window(gaps).apply(whole))
    assert rows == [
        ("a", 1, 8, [1, 4, 5]), ("a", 11, 15, [11, 12]), ("a", 27, 30, [27]), ("b", 2, 34, [2, 3, 14]),
        ("c", 25, 45, [25]),
    ]  # fmt: skip
    growing = CumulativeEventTimeWindows.of(30, 10)
    rows = collected_dicts(stream.key_by(0).window(growing).aggregate(n=count()))
    assert sorted((row["f0"], row["n"]) for row in rows) == [
        ("a", 3), ("a", 5), ("a", 6), ("b", 2), ("b", 3), ("b", 3), ("c", 1),
    ]  # fmt: skip


def collected_dicts(stream):
    with stream.execute_and_collect() as rows:
        return list(rows)


def test_built_in_aggregates_take_triggers(stream):
    windows = stream.key_by(0).window(GlobalWindows.create())
    rows = collected_dicts(windows.trigger(PurgingTrigger.of(CountTrigger.of(2))).aggregate(n=count(), top=f.max("f1")))
    assert sorted((row["f0"], row["n"]) for row in rows) == [("a", 2)] * 3 + [("b", 2)]
    early = stream.key_by(0).window(TumblingEventTimeWindows.of(30)).trigger(ContinuousEventTimeTrigger.of(10))
    rows = collected_dicts(early.aggregate(n=count()))
    assert sorted({(row["f0"], row["n"]) for row in rows}) == [("a", 6), ("b", 3), ("c", 1)]


def test_state_of_windows_in_a_program(stream):
    class Numbered(ProcessWindowFunction):
        CALLS = ValueStateDescriptor("calls", default=0)

        def process(self, key, context, elements):
            in_window = context.window_state().get_state(self.CALLS)
            ever = context.global_state().get_state(self.CALLS)
            in_window.update(in_window.value() + 1)
            ever.update(ever.value() + 1)
            yield key, context.window().start, in_window.value(), ever.value()

        def clear(self, context):
            context.window_state().get_state(self.CALLS).clear()

    rows = collected(stream.key_by(0).window(TumblingEventTimeWindows.of(10)).process(Numbered()))
    assert rows == [("a", 0, 1, 1), ("a", 10, 1, 2), ("a", 20, 1, 3), ("b", 0, 1, 1), ("b", 10, 1, 2), ("c", 20, 1, 1)]


# -------------------------------------------------------------------------------------------------------- without a key


class Sum(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value[1]

    def get_result(self, accumulator):
        return accumulator


def test_windows_over_the_whole_stream(stream):
    class Whole(ProcessAllWindowFunction):
        SEEN = ValueStateDescriptor("seen", default=0)

        def open(self, runtime_context):
            self.number = runtime_context.get_number_of_parallel_subtasks()

        def process(self, context, elements):
            seen = context.global_state().get_state(self.SEEN)
            seen.update(seen.value() + 1)
            yield context.window().start, sorted(time for _, time in elements), seen.value(), self.number
            yield OutputTag("clock"), context.current_watermark()

    windows = stream.window_all(TumblingEventTimeWindows.of(20))
    assert collected(windows.process(Whole())) == [(0, [1, 2, 3, 4, 5, 11, 12, 14], 1, 1), (20, [25, 27], 2, 1)]
    assert collected(stream.window_all(TumblingEventTimeWindows.of(20)).aggregate(Sum())) == [52, 52]


def test_every_function_of_windows_without_key(stream):
    class Ends(AllWindowFunction):
        def apply(self, window, inputs):
            yield window.end, sorted(inputs)[-1]

    def with_start(context, elements):
        return [(context.window().start, element) for element in elements]

    def windows():
        return stream.window_all(TumblingEventTimeWindows.of(20))

    def larger(left, right):
        return max(left, right, key=lambda record: record[1])

    assert collected(windows().apply(Ends())) == [(20, ("b", 14)), (40, ("c", 25))]
    assert collected(windows().apply(lambda window, inputs: [len(list(inputs))])) == [2, 8]
    assert collected(windows().process(with_start)) == sorted((time // 20 * 20, (k, time)) for k, time in RECORDS)
    assert collected(windows().reduce(larger)) == [("a", 27), ("b", 14)]
    assert collected(windows().reduce(larger, with_start)) == [(0, ("b", 14)), (20, ("a", 27))]
    assert collected(windows().aggregate(Sum(), with_start)) == [(0, 52), (20, 52)]
    assert collected(windows().max_by(1)) == [("a", 27), ("b", 14)]
    rows = collected_dicts(windows().aggregate(n=count(), top=f.max("f1")))
    rows.sort(key=lambda row: row["window_start"])
    assert [sorted(row) for row in rows] == [["n", "top", "window_end", "window_start"]] * 2
    assert [(row["n"], row["top"]) for row in rows] == [(8, 14), (2, 27)]


def test_count_windows_over_the_whole_stream(stream):
    sizes = collected(stream.count_window_all(4).apply(lambda _window, inputs: [len(list(inputs))]))
    assert sizes == [4, 4]
    sizes = collected(stream.count_window_all(4, 3).apply(lambda _window, inputs: [len(list(inputs))]))
    assert sizes == [3, 4, 4]


def test_windows_without_key_run_in_one_subtask(stream):
    operator = stream.window_all(TumblingEventTimeWindows.of(20)).aggregate(Sum())
    assert operator.transformation.parallelism == 1
    with pytest.raises(ConfigurationError, match="parallelism must be 1"):
        operator.set_parallelism(2)


# ------------------------------------------------------------------------------------------------------------- refusals


def test_what_makes_no_sense_is_refused_where_it_is_written(stream):
    sessions = stream.key_by(0).window(EventTimeSessionWindows.with_gap(5))
    with pytest.raises(ProgramError, match="cannot be merged"):
        sessions.trigger(DeltaTrigger.of(1, lambda left, right: 0))
    for wrong in (CountTrigger, "often"):
        with pytest.raises(ProgramError, match="must be a Trigger object"):
            sessions.trigger(wrong)
    with pytest.raises(ProgramError, match="evictor takes an Evictor"):
        sessions.evictor(CountEvictor)
    for wrong in (5, TumblingEventTimeWindows):
        with pytest.raises(ProgramError, match="assigner"):
            stream.window_all(wrong)
    with pytest.raises(ConfigurationError):
        stream.count_window_all(0)
    with pytest.raises(ConfigurationError, match="allowed lateness"):
        stream.window_all(TumblingEventTimeWindows.of(5)).allowed_lateness(-1)
    with pytest.raises(ProgramError, match="they know no time"):
        stream.count_window_all(5).allowed_lateness(5)
