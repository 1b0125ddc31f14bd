"""`headrace.testing`, used as a user would: from plain tests.

Families: examples, crash (snapshots between runs, kills), differential (a harness against the direct computation).
"""

from __future__ import annotations

import asyncio
import doctest
import importlib
import subprocess
import sys
import threading
from collections import Counter

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    BroadcastProcessFunction,
    CheckpointMismatchError,
    CoMapFunction,
    ConfigurationError,
    CountTrigger,
    FlatMapFunction,
    HeadraceError,
    IntCounter,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ProgramError,
    ReduceFunction,
    TumblingEventTimeWindows,
    UserFunctionError,
    ValueStateDescriptor,
)
from headrace.engine.columns.records import MAX_WATERMARK, StreamStatus, Watermark
from headrace.state.keys.hashing import hash_keys
from headrace.state.keys.key_groups import key_groups_of, subtask_of
from headrace.testing import (
    BroadcastTestHarness,
    Fail,
    KeyedOneInputTestHarness,
    OneInputTestHarness,
    Pause,
    PipelineTestHarness,
    ScriptedSource,
    StreamRecord,
    Timed,
    TwoInputTestHarness,
    run_simulated,
)

MODULES = ("", ".operators.harness", ".operators.function_harnesses", ".pipelines.harness", ".simulated")


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name):
    result = doctest.testmod(importlib.import_module(f"headrace.testing{name}"))
    assert result.failed == 0
    assert result.attempted > 0


def test_importing_it_loads_no_cluster():
    code = "import headrace.testing, sys; print('ray' in sys.modules, 'headrace.actors' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# ----------------------------------------------------------------------------------------------------------- functions


class Doubled(MapFunction):
    def open(self, runtime_context):
        self.place = runtime_context.get_index_of_this_subtask()

    def map(self, value):
        return (self.place, 2 * value)


class Closing(FlatMapFunction):
    calls: list[str] = []

    def open(self, runtime_context):
        Closing.calls.append("open")

    def flat_map(self, value):
        yield from range(value)

    def close(self):
        Closing.calls.append("close")


class Sorting(ProcessFunction):
    tag = OutputTag("odd")

    def process_element(self, value, ctx):
        if value % 2:
            ctx.output(self.tag, value)
        else:
            yield value


class CountWithTimeout(KeyedProcessFunction):
    """Flink's: counts per key, and emits the count a minute of event time after the key's last record."""

    def open(self, runtime_context):
        self.state = runtime_context.get_state(ValueStateDescriptor("state"))

    def process_element(self, value, ctx):
        count, _ = self.state.value() or (0, 0)
        self.state.update((count + 1, ctx.timestamp()))
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)

    def on_timer(self, timestamp, ctx):
        count, last = self.state.value()
        if timestamp == last + 60_000:
            yield ctx.get_current_key(), count


class Reminder(KeyedProcessFunction):
    """Says at the next full second of processing time what came before it."""

    def process_element(self, value, ctx):
        now = ctx.timer_service().current_processing_time()
        ctx.timer_service().register_processing_time_timer(now // 1_000 * 1_000 + 1_000)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, ctx.timer_service().current_processing_time()


class Sum(ReduceFunction):
    def reduce(self, value1, value2):
        return value1[0], value1[1] + value2[1]


def failing(value):
    return 1 / value


def test_values_and_records_are_read_or_taken():
    with OneInputTestHarness(Doubled(), parallelism=3, subtask=2) as harness:
        harness.process_element(1, 10)
        harness.process_elements([2, 3], [11, 12])
        assert harness.extract_output_values() == [(2, 2), (2, 4), (2, 6)]
        assert harness.extract_output_records()[0] == StreamRecord((2, 2), 10)
        assert harness.take_output_values() == [(2, 2), (2, 4), (2, 6)]
        assert harness.take_output_values() == []
        harness.process_element(4)
        assert harness.take_output_records() == [((2, 8), None)]


def test_control_elements_are_in_the_output_in_their_place():
    with OneInputTestHarness(lambda value: value) as harness:
        harness.process_element("a", 1)
        harness.process_watermark(1)
        harness.process_idleness(True)
        harness.process_idleness(False)
        harness.end_input()
        assert harness.get_output() == [
            ("a", 1),
            Watermark(1),
            StreamStatus(True),
            StreamStatus(False),
            MAX_WATERMARK,
        ]


def test_side_outputs_are_kept_by_tag():
    with OneInputTestHarness(Sorting()) as harness:
        harness.process_elements([1, 2, 3], [10, 20, 30])
        assert harness.extract_output_values() == [2]
        assert harness.get_side_output(Sorting.tag) == [(1, 10), (3, 30)]
        assert harness.take_output_values("odd") == [1, 3]
        assert harness.get_side_output("odd") == []


def test_a_function_lives_from_open_to_close():
    Closing.calls.clear()
    with OneInputTestHarness(Closing()) as harness:
        harness.process_element(2)
        assert Closing.calls == ["open"]
    harness.close()
    assert Closing.calls == ["open", "close"]
    with pytest.raises(ProgramError, match="closed"):
        harness.process_element(1)


def test_an_error_names_operator_and_subtask_and_closes_the_harness():
    harness = OneInputTestHarness(failing, name="inverse", parallelism=2, subtask=1)
    harness.process_element(1)
    with pytest.raises(UserFunctionError, match="ZeroDivisionError") as caught:
        harness.process_element(0)
    assert caught.value.context["operator"] == "inverse"
    assert caught.value.context["subtask"] == "2/2"
    with pytest.raises(ProgramError, match="closed"):
        harness.process_element(1)


def test_what_a_stream_refuses_a_harness_refuses():
    with pytest.raises(ProgramError, match="not its class"):
        OneInputTestHarness(Doubled)
    with pytest.raises(ProgramError, match="with a key"):
        KeyedOneInputTestHarness(CountWithTimeout())
    with pytest.raises(ProgramError, match="keyed stream"):
        OneInputTestHarness(Sum())
    with pytest.raises(ProgramError, match="pickled"):
        OneInputTestHarness(type("Held", (MapFunction,), {"map": lambda self, v: v, "file": sys.stdout})())
    with pytest.raises(ProgramError, match="one timestamp per value"):
        OneInputTestHarness(len).process_elements(["a"], [1, 2])


def test_event_time_timers_fire_with_the_watermark():
    with KeyedOneInputTestHarness(CountWithTimeout(), key=lambda value: value) as harness:
        harness.process_elements(["a", "b", "a"], [0, 1_000, 30_000])
        assert harness.num_event_time_timers() == 3
        assert harness.num_keyed_state_entries() == harness.num_keyed_state_entries("state") == 2
        harness.process_watermark(61_000)
        assert harness.take_output_records() == [(("b", 1), 61_000)]
        assert harness.num_event_time_timers() == 1
        harness.process_watermark(90_000)
        assert harness.take_output_records() == [(("a", 2), 90_000)]
        assert harness.num_event_time_timers() == 0


def test_event_time_cannot_go_back():
    with OneInputTestHarness(str) as harness:
        harness.process_watermark(5)
        harness.process_watermark(5)
        with pytest.raises(ProgramError, match="cannot go back to 4"):
            harness.process_watermark(4)


def test_processing_time_stands_still_until_it_is_moved():
    with KeyedOneInputTestHarness(Reminder(), key="user", now_ms=500) as harness:
        harness.process_element({"user": "a"})
        harness.advance(499)
        assert harness.num_processing_time_timers() == 1
        assert harness.take_output_values() == []
        harness.set_processing_time(1_200)
        assert harness.take_output_values() == [("a", 1_000, 1_000)]
        assert harness.now_ms == 1_200
        harness.process_element({"user": "a"})
        harness.process_element({"user": "b"})
        harness.advance("1 min")
        assert harness.take_output_records() == [(("a", 2_000, 2_000), None), (("b", 2_000, 2_000), None)]
        with pytest.raises(ProgramError, match="cannot be set back"):
            harness.set_processing_time(1_000)


def test_each_function_of_a_keyed_stream_has_its_operator():
    with KeyedOneInputTestHarness(Sum(), key=0) as harness:
        harness.process_elements([("a", 1), ("b", 2), ("a", 3)])
        assert harness.extract_output_values() == [("a", 1), ("b", 2), ("a", 4)]
    with KeyedOneInputTestHarness(lambda value, ctx: [ctx.get_current_key()], key=0) as harness:
        harness.process_element(("a", 1))
        assert harness.extract_output_values() == ["a"]


def test_the_operator_behind_a_stream_can_be_tested(env):
    stream = env.from_collection([]).key_by(lambda value: value[0])
    windowed = stream.window(TumblingEventTimeWindows.of("10 s")).reduce(Sum())
    with KeyedOneInputTestHarness(windowed) as harness:
        harness.process_elements([("a", 1), ("a", 2)], [0, 9_999])
        harness.process_watermark(9_999)
        assert harness.take_output_records() == [(("a", 3), 9_999)]
        harness.process_element(("a", 4), 5)
        assert harness.metric("num_late_records_dropped") == 1
    with pytest.raises(ProgramError, match="that an operator has made"):
        KeyedOneInputTestHarness(stream)


@pytest.fixture
def env():
    from headrace import StreamExecutionEnvironment

    return StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)


# ----------------------------------------------------------------------------------------------------------- snapshots


def subtask_of_key(key, parallelism):
    return subtask_of(key_groups_of(hash_keys([key]), 128), 128, parallelism)[0]


def test_a_record_of_another_subtasks_key_is_refused():
    with KeyedOneInputTestHarness(Sum(), key=0, parallelism=2, subtask=0) as harness:
        foreign = next(key for key in range(20) if subtask_of_key(key, 2) == 1)
        with pytest.raises(ProgramError, match=f"key {foreign} belongs to subtask 1 of 2"):
            harness.process_element((foreign, 1))
        own = [key for key in range(20) if subtask_of_key(key, 2) == 0]
        harness.process_elements([(key, 1) for key in own])
        assert harness.num_keyed_state_entries() == len(own) > 0


@settings(max_examples=examples(25), deadline=None)
@given(
    records=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 100_000)), max_size=40),
    cut=st.integers(0, 40),
    before=st.integers(1, 3),
    after=st.integers(1, 3),
    backend=st.sampled_from(["heap", "heap", "heap", "rocksdb"]),
)
def test_a_restored_run_goes_on_at_any_parallelism(records, cut, before, after, backend):
    """State and timers of every key are somewhere, once, after a restore at another parallelism."""

    def feed(harnesses, part):
        for key, time in part:
            harnesses[subtask_of_key(key, len(harnesses))].process_element(key, time)

    def harnesses(parallelism):
        return [
            KeyedOneInputTestHarness(
                CountWithTimeout(), lambda v: v, parallelism=parallelism, subtask=subtask, state_backend=backend
            )
            for subtask in range(parallelism)
        ]

    first = harnesses(before)
    feed(first, records[:cut])
    snapshots = [harness.snapshot() for harness in first]
    second = [harness.restore(*snapshots) for harness in harnesses(after)]
    assert sum(harness.num_event_time_timers() for harness in second) == len(set(records[:cut]))
    feed(second, records[cut:])
    for harness in second:
        harness.end_input()
    got = sorted(value for harness in second for value in harness.extract_output_values())
    assert got == sorted(Counter(key for key, _ in records).items())
    for harness in [*first, *second]:
        harness.close()


def test_a_snapshot_is_restored_before_anything_else():
    with KeyedOneInputTestHarness(Sum(), key=0) as harness:
        harness.process_element(("a", 1))
        snapshot = harness.snapshot()
        with pytest.raises(ProgramError, match="before the operator is opened"):
            harness.restore(snapshot)
    with pytest.raises(ProgramError, match="number of key groups"):
        KeyedOneInputTestHarness(Sum(), key=0, max_parallelism=64).restore(snapshot)
    with KeyedOneInputTestHarness(Sum(), key=0).restore(snapshot) as restored:
        restored.process_element(("a", 1))
        assert restored.extract_output_values() == [("a", 2)]


# --------------------------------------------------------------------------------- two inputs, requests, loops, scripts


class Latest(KeyedCoProcessFunction):
    """Enriches records of the first stream with the latest of the second."""

    def open(self, runtime_context):
        self.name = runtime_context.get_state(ValueStateDescriptor("name"))

    def process_element1(self, value, ctx):
        yield self.name.value(), value[1]
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

    def process_element2(self, value, ctx):
        self.name.update(value[1])

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp


class Rules(BroadcastProcessFunction):
    def process_element(self, value, ctx):
        yield value, sorted(name for name, _ in ctx.get_broadcast_state(RULES).items())

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value, True)


class KeyedRules(KeyedBroadcastProcessFunction):
    def process_element(self, value, ctx):
        if ctx.get_broadcast_state(RULES).contains(ctx.get_current_key()):
            yield value

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value, True)


RULES = MapStateDescriptor("rules")


def test_event_time_of_two_inputs_is_the_lower_one():
    with TwoInputTestHarness(Latest(), key1=0, key2=0) as harness:
        harness.process_element1(("a", 1), 5)
        harness.process_element2(("a", "ann"), 6)
        harness.process_element1(("a", 2), 6)
        assert harness.take_output_values() == [(None, 1), ("ann", 2)]
        harness.process_watermark1(15)
        assert harness.num_event_time_timers() == 2
        harness.process_watermark2(15)
        assert harness.take_output_records() == [(("a", 15), 15)]
        harness.process_idleness1(True)
        harness.process_watermark2(16)
        assert harness.take_output_records() == [(("a", 16), 16)]
        snapshot = harness.snapshot()
        harness.end_input1()
        harness.end_input2()
        assert harness.get_output()[-1] == MAX_WATERMARK
    with TwoInputTestHarness(Latest(), key1=0, key2=0).restore(snapshot) as harness:
        harness.process_element1(("a", 3), 20)
        assert harness.extract_output_values() == [("ann", 3)]
    with pytest.raises(ProgramError, match="either both"):
        TwoInputTestHarness(Latest(), key1=0)


def test_two_inputs_without_keys():
    functions = (lambda a: ("first", a), lambda b: ("second", b))
    with TwoInputTestHarness(CoMap(*functions)) as harness:
        harness.process_element1(1)
        harness.process_element2(2)
        assert harness.extract_output_values() == [("first", 1), ("second", 2)]


class CoMap(CoMapFunction):
    def __init__(self, first, second):
        self.first, self.second = first, second

    def map1(self, value):
        return self.first(value)

    def map2(self, value):
        return self.second(value)


def test_broadcast_state_is_in_snapshots():
    with BroadcastTestHarness(Rules(), RULES) as harness:
        harness.process_element(1)
        harness.process_broadcast_element("x")
        harness.process_element(2)
        assert harness.take_output_values() == [(1, []), (2, ["x"])]
        snapshot = harness.snapshot()
    restored = [BroadcastTestHarness(Rules(), RULES, parallelism=2, subtask=i).restore(snapshot) for i in range(2)]
    for harness in restored:
        harness.process_element(3)
        assert harness.take_output_values() == [(3, ["x"])]
        harness.close()


def test_broadcast_state_with_keys():
    with BroadcastTestHarness(KeyedRules(), RULES, key=lambda value: value[0]) as harness:
        harness.process_broadcast_element("a")
        harness.process_element(("a", 1), 10)
        harness.process_element(("b", 2), 10)
        assert harness.extract_output_records() == [(("a", 1), 10)]
        harness.process_watermark(5)
        harness.process_broadcast_watermark(4)
        assert harness.get_output()[-1] == Watermark(4)


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_requests_are_made_on_the_spot(is_coroutine, env):
    async def later(value):
        await asyncio.sleep(0)
        return value + 1

    def program(numbers):
        return numbers.map_async(later if is_coroutine else (lambda value: value + 1))

    with PipelineTestHarness(program, parallelism=2) as harness:
        harness.process_elements([1, 2, 3])
        assert sorted(harness.take_output_values()) == [2, 3, 4]
        harness.end_input()
        assert harness.is_finished
    with OneInputTestHarness(program(env.from_collection([]))) as single:
        single.process_elements([1, 2, 3])
        assert single.take_output_values() == [2, 3, 4]
        single.end_input()


def test_requests_are_made_on_the_spot_also_on_a_running_event_loop():
    async def later(value):
        await asyncio.sleep(0)
        return value + 1

    async def test():
        with PipelineTestHarness(lambda numbers: numbers.map_async(later)) as harness:
            harness.process_element(1)
            return harness.take_output_values()

    assert asyncio.run(test()) == [2]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("headrace-testing")]


def test_a_loop_runs_until_it_is_empty():
    def program(numbers):
        loop = numbers.iterate()
        less = loop.map(lambda number: number - 1)
        loop.close_with(less.filter(lambda number: number > 0))
        return less.filter(lambda number: number <= 0)

    with PipelineTestHarness(program, parallelism=2) as harness:
        harness.process_elements([1, 5, 3])
        assert harness.take_output_values() == [0, 0, 0]
        harness.end_input()
        harness.advance("1 s")
        assert harness.is_finished


def test_a_scripted_source_follows_the_harnesss_clock():
    def program(env):
        script = [Timed("a", 1), Pause("10 s"), Timed("b", 2), Watermark(2)]
        return env.from_source(ScriptedSource(script, is_bounded=False), source_name="script")

    with PipelineTestHarness(program) as harness:
        assert harness.extract_output_records() == [("a", 1)]
        harness.advance("9999 ms")
        assert harness.extract_output_values() == ["a"]
        harness.advance(1)
        assert harness.get_output() == [("a", 1), ("b", 2), Watermark(2)]
        snapshot = harness.snapshot()
    with PipelineTestHarness(program).restore(snapshot) as harness:
        assert harness.extract_output_values() == [], "the position is in the snapshot"


def test_a_failing_source_fails_a_pipeline_and_not_a_simulated_job():
    def program(env):
        return env.from_source(ScriptedSource([1, 2, Fail(ValueError("broken")), 3], batch_size=1)).set_parallelism(1)

    with pytest.raises(HeadraceError, match="broken"):
        PipelineTestHarness(program).open()
    run = run_simulated(program, kills=0)
    assert run.values == [1, 2, 3]
    assert run.num_restarts == 1


# ---------------------------------------------------------------------------------------------------- numbers, backends


class Counting(MapFunction):
    def open(self, runtime_context):
        self.seen = IntCounter()
        runtime_context.add_accumulator("seen", self.seen)
        self.odd = runtime_context.get_metrics_group().counter("odd")

    def map(self, value):
        self.seen.add(1)
        self.odd.inc(value % 2)
        return value


def test_metrics_and_accumulators_can_be_read():
    with OneInputTestHarness(Counting()) as harness:
        harness.process_elements([1, 2, 3])
        assert harness.metric("odd") == 2
        assert harness.metric("other") == 0
        assert harness.accumulator_result("seen") == 3
    with PipelineTestHarness(lambda numbers: numbers.rebalance().map(Counting()), parallelism=2) as pipeline:
        for number in range(5):
            pipeline.process_element(number)
        assert pipeline.metric("odd") == 2
        assert pipeline.accumulator_result("seen") == 5
        pipeline.end_input()
        assert pipeline.accumulator_result("seen") == 5
        assert pipeline.accumulator_result("other") is None


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_state_is_counted_in_any_backend(backend):
    def program(values):
        keyed = values.key_by(lambda value: value)
        windows = keyed.window(TumblingEventTimeWindows.of("1 min")).trigger(CountTrigger.of(10))
        return {"timed": keyed.process(CountWithTimeout()), "windowed": windows.reduce(lambda a, b: a)}

    with KeyedOneInputTestHarness(CountWithTimeout(), lambda value: value, state_backend=backend) as harness:
        harness.process_elements(["a", "b", "a"], [1, 2, 3])
        assert harness.num_keyed_state_entries("state") == harness.num_keyed_state_entries() == 2
        assert harness.num_event_time_timers() == 3
        assert harness.num_processing_time_timers() == 0
        snapshot = harness.snapshot()
    with KeyedOneInputTestHarness(CountWithTimeout(), lambda v: v, state_backend=backend).restore(snapshot) as harness:
        assert harness.num_keyed_state_entries("state") == 2
    with PipelineTestHarness(program, parallelism=2, state_backend=backend) as pipeline:
        pipeline.process_elements(["a", "b", "a"], [1, 2, 3])
        assert pipeline.num_keyed_state_entries("state") == 2
        assert pipeline.num_event_time_timers() == 3 + 2, "three of the function, two that clean up windows"


def test_a_snapshot_belongs_to_its_backend():
    with KeyedOneInputTestHarness(Sum(), key=0, state_backend="rocksdb") as harness:
        harness.process_element(("a", 1))
        snapshot = harness.snapshot()
    with pytest.raises(CheckpointMismatchError, match="rocksdb"):
        KeyedOneInputTestHarness(Sum(), key=0).restore(snapshot).open()
    with pytest.raises(ConfigurationError, match="one of heap, rocksdb"):
        KeyedOneInputTestHarness(Sum(), key=0, state_backend="disk").open()
