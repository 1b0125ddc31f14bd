"""Requests to outside systems, lookups, accumulators and metrics through the API, at parallelism 2 and more.

Simulated jobs with kills judge what is committed against plain loops; one of their outputs goes through event-time
windows, so a result that overtakes a watermark is late and missing.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter, defaultdict
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from campaigns import blocks
from simulation.programs import STRATEGY, NumberedSource, Program, draw_records, freeze
from simulation.simulator import draw_faults, judge, run_job, shut_down, with_settings

from headrace import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategies,
    AverageAccumulator,
    ConfigurationError,
    Histogram,
    IntCounter,
    JobFailedError,
    ListAccumulator,
    LookupCache,
    LookupFunction,
    MapFunction,
    ProgramError,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from headrace.actors.sim.system import SimSystem
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from headrace.engine.kernel.config import ClusterSettings, RestartStrategy
from headrace.state.files.memory import MemoryFileSystem


def environment(parallelism=2, system="local"):
    env = StreamExecutionEnvironment.get_execution_environment(actor_system=system)
    env.set_parallelism(parallelism)
    return env


def rows_of(stream):
    with stream.execute_and_collect() as rows:
        return list(rows)


# ------------------------------------------------------------------------------------------------------------ requests
@pytest.mark.parametrize("system", ["local", "sim"])
def test_coroutines_are_under_way_together_and_results_keep_their_order(system):
    async def slow(value):
        await asyncio.sleep(0.005 * (value % 3))
        return value * 10

    env = environment(system=system)
    stream = env.from_collection(list(range(200))).map_async(slow, capacity=50)
    assert sorted(rows_of(stream)) == [value * 10 for value in range(200)]


def test_order_is_kept_within_a_subtask():
    async def shuffled(value):
        await asyncio.sleep(0.001 * (7 * value % 5))
        return value

    env = environment(1)
    assert rows_of(env.from_collection(list(range(100))).map_async(shuffled)) == list(range(100))


class Meeting(AsyncFunction):
    """Goes on only when four calls are there together."""

    def open(self, runtime_context):
        self.barrier = threading.Barrier(4)

    def async_invoke(self, value):
        self.barrier.wait(10)
        return [value]


def test_blocking_calls_run_in_threads_at_the_same_time():
    stream = environment(2).from_collection(list(range(8))).rebalance()
    assert sorted(rows_of(AsyncDataStream.unordered_wait(stream, Meeting(), "10 s", 4))) == list(range(8))


class Client(AsyncFunction):
    """Checks that it lives on one event loop."""

    def open(self, runtime_context):
        self.loop = asyncio.get_running_loop()
        self.lock = asyncio.Lock()
        self.calls = runtime_context.get_metrics_group().add_group("client").counter("calls")
        runtime_context.add_accumulator("values", ListAccumulator())
        self.values = runtime_context.get_accumulator("values")

    async def async_invoke(self, value):
        async with self.lock:
            self.calls.inc()
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self.loop
        return [value, -value]

    async def close(self):
        assert asyncio.get_running_loop() is self.loop
        self.values.add("closed")


@pytest.mark.parametrize("wait", [AsyncDataStream.ordered_wait, AsyncDataStream.unordered_wait])
def test_a_function_object_lives_on_the_event_loop(wait):
    env = environment()
    rows = wait(env.from_collection(list(range(1, 41))), Client(), "10 s", capacity=3).execute_and_collect()
    assert sorted(rows) == sorted([*range(1, 41), *range(-40, 0)])
    result = rows._client.result()
    [operator] = [o for vertex in result.view.vertices for o in vertex.operators if o.name.endswith("wait")]
    assert operator.metrics["client.calls"] == 40
    assert result.get_accumulator_result("values") == ["closed"] * 2


def test_retries_and_timeouts_by_the_api():
    class Flaky(AsyncFunction):
        def open(self, runtime_context):
            self.seen = Counter()

        async def async_invoke(self, value):
            self.seen[value] += 1
            if value % 2 and self.seen[value] < 3:
                message = "try again"
                raise ConnectionError(message)
            if value == 4:
                await asyncio.sleep(60)
            return [value]

        def timeout(self, value):
            return [-value]

    retry = AsyncRetryStrategies.exponential_backoff(5, "1 ms", "5 ms")
    env = environment()
    stream = AsyncDataStream.unordered_wait_with_retry(env.from_collection(list(range(6))), Flaky(), "1 s", retry)
    assert sorted(rows_of(stream)) == [-4, 0, 1, 2, 3, 5]


@pytest.mark.parametrize("function", ["async", "blocking"])
def test_a_failing_request_fails_the_job_by_name(function):
    async def divide(value):
        return 1 // value

    def divide_blocking(value):
        return 1 // value

    env = environment()
    stream = env.from_collection([1, 0]).map_async(divide if function == "async" else divide_blocking)
    with pytest.raises(JobFailedError, match=r"ZeroDivisionError(.|\n)*map_async(.|\n)*divide"):
        rows_of(stream)


def test_bad_arguments_are_refused_where_they_are_written():
    stream = environment().from_collection([1])
    with pytest.raises(ConfigurationError, match="capacity must be a whole number, at least 1; got 0"):
        stream.map_async(abs, capacity=0)
    with pytest.raises(ConfigurationError, match="timeout must be at least 0 ms"):
        stream.map_async(abs, timeout=-1)
    with pytest.raises(ProgramError, match="retry strategy must be an AsyncRetryStrategy"):
        stream.map_async(abs, retry=3)
    with pytest.raises(ProgramError, match="function must be callable"):
        AsyncDataStream.ordered_wait(stream, 7, "1 s")
    with pytest.raises(ProgramError, match="'left' or 'inner'; got 'outer'"):
        stream.lookup(abs, key=lambda value: value, how="outer")
    with pytest.raises(ProgramError, match="either fields or join"):
        stream.lookup(abs, key=lambda value: value, fields=["a"], join=lambda a, b: a)


# -------------------------------------------------------------------------------------------- simulated jobs with kills
def asking(rng):
    """A coroutine function whose answers take their time, by chance."""
    spread = rng.choice((0.0, 0.01, 0.1))

    async def ask(row):
        await asyncio.sleep(spread * ((row["seq"] * 7919 + row["split"] * 31) % 10) / 10)
        return {**row, "value": row["value"] + 1}

    return ask


def draw_async_program(rng):
    """Records asked for and then summed in windows; or written as they come, those of a split in order."""
    splits = draw_records(rng)
    windowed, parallelism, capacity, size = rng.random() < 0.5, rng.randint(1, 3), rng.choice((1, 2, 10)), 100
    ordered = not windowed or rng.random() < 0.5
    function = asking(rng)
    if rng.random() < 0.3:

        def function(row):
            return {**row, "value": row["value"] + 1}

    def build(env, path):
        source = env.from_source(NumberedSource(splits, rng.choice((0, 2)), 0, columnar=False), STRATEGY, "numbers")
        stream = (
            source.key_by(lambda row: row["split"])
            .map_async(function, capacity=capacity, timeout=0, ordered=ordered)
            .set_parallelism(parallelism)
        )
        if windowed:
            stream = (
                stream.key_by(lambda row: row["key"])
                .window(TumblingEventTimeWindows.of(size))
                .reduce(lambda a, b: {**a, "value": a["value"] + b["value"]})
                .map(lambda row: {"key": row["key"], "start": row["ts"] // size, "sum": row["value"]})
            )
        else:
            stream = stream.map(lambda row: {**row, "n": row["seq"] + 1}).set_parallelism(parallelism)
        stream.sink_to(FileSink.json_lines(path)).set_parallelism(parallelism)

    expected = Counter()
    sums = defaultdict(int)
    for row in (row for rows in splits for row in rows):
        sums[row["key"], row["ts"] // size] += row["value"] + 1
        expected[freeze({**row, "value": row["value"] + 1, "n": row["seq"] + 1})] += 1
    if windowed:
        expected = Counter(freeze({"key": key, "start": start, "sum": total}) for (key, start), total in sums.items())
    ordered_by = None if windowed else ("split", "n")
    return Program(f"async/{windowed}/{ordered}/{parallelism}/{capacity}", build, expected, ordered_by)


def run_simulated(seed):
    rng = random.Random(seed)
    name = f"async-{seed}"
    MemoryFileSystem.forget(name)
    program = draw_async_program(rng)
    env = StreamExecutionEnvironment.get_execution_environment(actor_system="sim")
    env.set_parallelism(rng.randint(1, 3))
    env.enable_checkpointing(rng.choice((15, 40)), directory=f"memory://{name}/checkpoints")
    env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(3)
    program.build(env, f"memory://{name}/out")
    graph = with_settings(
        env.get_job_graph(program.name),
        {
            "max_batch_rows": rng.choice((1, 16, 64)),
            "channel_credits": rng.choice((1, 4)),
            "slot_request_timeout_ms": 120_000,
            "task_cancellation_timeout_ms": 2_000,
            "heartbeat_interval_ms": 200,
            "heartbeat_timeout_ms": 1_000,
            "attached": False,
            "restart": RestartStrategy(-1, rng.choice((1, 200))),
        },
    )
    points = ("io.operator_work.before", "io.operator_work.after", "task.snapshot.after", "io.upload_snapshot.after")
    kills = tuple((point, rng.randint(1, 30)) for point in rng.sample(points, k=rng.randint(0, 2)))
    faults = replace(draw_faults(rng), kills_at=kills)
    system = SimSystem(seed, faults)
    try:
        view = run_job(system, graph, ClusterSettings(slots_per_task_manager=rng.choice((0, 1, 2))), name)
        judge(seed, program, view, name, faults)
        shut_down(system)
    finally:
        system.close()
        MemoryFileSystem.forget(name)
    return view, system


@pytest.mark.parametrize("seed", blocks(10, 30))
def test_requests_under_way_survive_kills_and_count_once(seed):
    run_simulated(seed)


def test_simulated_runs_repeat_event_for_event_and_have_seen_kills():
    first, again = run_simulated(3), run_simulated(3)
    assert first[1].digest == again[1].digest
    views = [run_simulated(seed)[0] for seed in range(100, 110)]
    assert sum(view.num_restarts for view in views) > 0
    assert sum(view.checkpoints_completed for view in views) > 10


@pytest.mark.parametrize("is_chained", [True, False])
def test_barriers_pass_an_operator_that_can_take_no_more_records(is_chained):
    async def slow(row):
        await asyncio.sleep(1)
        return row

    name = f"blocked-{is_chained}"
    MemoryFileSystem.forget(name)
    env = environment(1, "sim")
    env.enable_checkpointing(100, directory=f"memory://{name}/checkpoints")
    stream = env.from_collection(list(range(20)))
    if not is_chained:
        stream = stream.key_by(lambda value: value % 3)
    rows = stream.map_async(slow, capacity=1, timeout=0).execute_and_collect()
    assert sorted(rows) == list(range(20))
    # 20 s of virtual time with one batch of records, which is all but at once in the operator's hands.
    assert rows._client.result().checkpoints_completed > 50
    MemoryFileSystem.forget(name)


def test_a_loop_does_not_end_while_requests_are_under_way_in_it():
    async def less(value):
        await asyncio.sleep(0.02)
        return value - 1

    iteration = environment(2, "sim").from_collection([3, 5, 0, 9]).rebalance().iterate()
    body = iteration.map_async(less, capacity=2)
    iteration.close_with(body.filter(lambda value: value > 0))
    assert sorted(rows_of(body.filter(lambda value: value <= 0))) == [-1, 0, 0, 0]


# -------------------------------------------------------------------------------------------------------------- lookups
class Prices(LookupFunction):
    def open(self, runtime_context):
        self.calls = runtime_context.get_int_counter("calls")

    def lookup(self, key):
        self.calls.add(1)
        return {"a": [{"price": 1}, {"price": 2}], "b": {"price": 3}}.get(key)


@pytest.mark.parametrize("how", ["left", "inner"])
def test_lookups_join_rows_and_ask_once_per_key_and_subtask(how):
    records = [{"id": i, "item": item} for i, item in enumerate("abcab" * 40)]
    env = environment()
    keyed = env.from_collection(records).key_by("item")
    stream = keyed.lookup(Prices(), "item", how, LookupCache(), fields=["price"], capacity=1)
    rows = stream.execute_and_collect()
    expected = []
    for record in records:
        found = {"a": [1, 2], "b": [3], "c": [None] if how == "left" else []}[record["item"]]
        expected.extend({**record, "price": price} for price in found)
    assert Counter(map(freeze, rows)) == Counter(map(freeze, expected))
    result = rows._client.result()
    [metrics] = [o.metrics for vertex in result.view.vertices for o in vertex.operators if o.name == "lookup"]
    assert metrics["lookup.hit_count"] + metrics["lookup.miss_count"] == len(records)
    assert result.get_accumulator_result("calls") == metrics["lookup.miss_count"] == metrics["lookup.load_count"] == 3


def test_a_lookup_by_a_coroutine_with_a_join_of_ones_own():
    async def name_of(key):
        return None if key == 2 else f"n{key}"

    env = environment()
    stream = env.from_collection([1, 2, 3]).lookup(name_of, lambda value: value, join=lambda value, row: (value, row))
    assert sorted(rows_of(stream)) == [(1, "n1"), (2, None), (3, "n3")]


# ------------------------------------------------------------------------------------------------ accumulators, metrics
class Counting(MapFunction):
    def open(self, runtime_context):
        self.subtask = runtime_context.get_index_of_this_subtask()
        for name, accumulator in (("n", IntCounter()), ("mean", AverageAccumulator()), ("sizes", Histogram())):
            runtime_context.add_accumulator(name, accumulator)
        self.accumulators = [runtime_context.get_accumulator(name) for name in ("n", "mean", "sizes")]
        group = runtime_context.get_metrics_group().add_group("mine", "value")
        self.counter, self.meter = group.counter("seen"), group.meter("rate")
        self.distribution = group.distribution("size")
        group.gauge("subtask", lambda: self.subtask + 1)

    def map(self, value):
        self.accumulators[0].add(1)
        self.accumulators[1].add(value)
        self.accumulators[2].add(value % 3)
        self.counter.inc()
        self.meter.mark_event()
        self.distribution.update(value)
        return value


def test_accumulators_and_metrics_are_added_up_over_subtasks():
    env = environment(3)
    env.from_collection(list(range(90))).rebalance().map(Counting()).print()
    client = env.execute_async("count")
    result = client.result()
    assert result.get_all_accumulator_results() == {"n": 90, "mean": 44.5, "sizes": {0: 30, 1: 30, 2: 30}}
    assert client.get_accumulators() == result.get_all_accumulator_results()
    assert result.get_accumulator_result("other") is None
    [metrics] = [o.metrics for vertex in result.view.vertices for o in vertex.operators if o.name == "map"]
    own = {name: value for name, value in metrics.items() if name.startswith("mine.value.")}
    assert own.pop("mine.value.rate.rate") >= 0
    quantiles = [own.pop(f"mine.value.size.{name}") for name in ("p50", "p75", "p95", "p98", "p99", "p999")]
    assert quantiles == pytest.approx([44, 67, 85, 88, 89, 89], rel=0.011)
    assert own == {
        "mine.value.seen": 90,
        "mine.value.rate.count": 90,
        "mine.value.subtask": 6,
        "mine.value.size.count": 90,
        "mine.value.size.sum": 4005,
        "mine.value.size.min": 0,
        "mine.value.size.max": 89,
        "mine.value.size.mean": 44.5,
    }


class Named(MapFunction):
    def __init__(self, accumulator):
        self.accumulator = accumulator

    def open(self, runtime_context):
        runtime_context.add_accumulator("x", self.accumulator)

    def map(self, value):
        return value


def test_accumulators_of_two_kinds_under_one_name_are_told():
    env = environment()
    env.from_collection([1, 2]).map(Named(IntCounter())).map(Named(Histogram())).name("second").print()
    result = env.execute("conflict")
    with pytest.raises(ProgramError, match="'x' is a IntCounter in operator 'map' and a Histogram in operator 'sec"):
        result.get_accumulator_result("x")


def test_a_failing_gauge_fails_the_job_by_name():
    class Bad(MapFunction):
        def open(self, runtime_context):
            runtime_context.get_metrics_group().gauge("ratio", lambda: 1 / 0)

        def map(self, value):
            return value

    env = environment()
    env.from_collection([1]).map(Bad()).print()
    with pytest.raises(JobFailedError, match="gauge 'ratio' failed: ZeroDivisionError"):
        env.execute("bad")


# --------------------------------------------------------------------------------------------- batches of whole windows
def test_a_fired_window_is_one_record_batch():
    def shares(key, window, batch):
        assert isinstance(batch, pa.RecordBatch)
        total = pc.sum(batch["v"])
        names = ["key", "start", "share"]
        share = pc.divide(pc.cast(batch["v"], pa.float64()), pc.cast(total, pa.float64()))
        keys = pa.array([key] * batch.num_rows)
        return pa.RecordBatch.from_arrays([keys, pa.array([window.start] * batch.num_rows), share], names=names)

    rows = [{"k": f"k{i % 3}", "v": i + 1, "ts": i * 10} for i in range(60)]
    env = environment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row["ts"])
    stream = env.from_collection(rows).assign_timestamps_and_watermarks(strategy)
    result = rows_of(stream.key_by("k").window(TumblingEventTimeWindows.of(200)).apply_batches(shares))
    groups = defaultdict(list)
    for row in rows:
        groups[row["k"], row["ts"] - row["ts"] % 200].append(row["v"])
    expected = Counter((*place, v / sum(values)) for place, values in groups.items() for v in values)
    assert Counter((row["key"], row["start"], row["share"]) for row in result) == expected


@pytest.mark.timeout(20)
@pytest.mark.parametrize("system", ["local", "sim"])
def test_a_subtask_without_records_ends_although_its_input_does_before_the_function_is_open(system):
    class Echo(AsyncFunction):
        async def open(self, _context):
            await asyncio.sleep(0.05)

        async def async_invoke(self, value):
            return [value]

    env = environment(3, system)
    numbers = env.from_source(GeneratorSource(lambda n: n, count=10, number_of_splits=1), None, "numbers")
    assert sorted(rows_of(AsyncDataStream.ordered_wait(numbers, Echo(), "5 s"))) == list(range(10))
