"""Runtime mode BATCH: what a bounded program means in it, against independent computations and against STREAMING."""

import itertools
import random
from collections import Counter, defaultdict

import pytest

from headrace import (
    BroadcastProcessFunction,
    ConfigurationError,
    JobFailedError,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    ProgramError,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
    first,
    last,
)
from headrace import functions as f
from headrace.connectors.files import FileSink
from headrace.connectors.scripted import Pause, ScriptedSource, Timed
from headrace.state.errors import StorageError
from headrace.state.files.spilling import SpillFile
from headrace.stream.restart_strategies import RestartStrategies

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


@pytest.fixture(params=[1, 3])
def env(request):
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=request.param) as environment:
        environment.set_runtime_mode(RuntimeExecutionMode.BATCH)
        yield environment


def disordered(num_records=300, seed=0):
    rng = random.Random(seed)
    times = rng.sample(range(10_000), num_records)
    return [{"key": f"k{rng.randrange(7)}", "value": rng.randint(-9, 99), "ts": time} for time in times]


def timed_source(env, records):
    strategy = MONOTONOUS.with_timestamp_assigner("ts")
    return env.from_collection(records).assign_timestamps_and_watermarks(strategy)


def per_window(records, size=1_000):
    found = Counter()
    for record in records:
        found[record["key"], record["ts"] // size * size] += record["value"]
    return sorted((key, start, total) for (key, start), total in found.items())


def test_no_record_is_late_on_rows(env):
    records = disordered()
    windows = timed_source(env, records).key_by(lambda row: row["key"]).window(TumblingEventTimeWindows.of(1_000))
    stream = windows.apply(lambda key, window, rows: [(key, window.start, sum(row["value"] for row in rows))])
    assert sorted(stream.execute_and_collect()) == per_window(records)


def test_no_record_is_late_on_columns(env):
    records = disordered()
    windows = timed_source(env, records).key_by("key").window(TumblingEventTimeWindows.of(1_000))
    rows = list(windows.aggregate(n=count(), total=f.sum("value")).execute_and_collect())
    found = sorted((row["key"], int(row["window_start"].timestamp() * 1_000), row["total"]) for row in rows)
    assert [row[::2] for row in found] == [row[::2] for row in per_window(records)]
    assert sum(row["n"] for row in rows) == len(records)


def test_first_and_last_go_by_time(env):
    records = disordered()
    windows = timed_source(env, records).key_by("key").window(TumblingEventTimeWindows.of(20_000))
    rows = windows.aggregate(a=first("ts"), b=last("ts")).execute_and_collect()
    expected = defaultdict(list)
    for record in records:
        expected[record["key"]].append(record["ts"])
    assert {row["key"]: (row["a"], row["b"]) for row in rows} == {k: (min(v), max(v)) for k, v in expected.items()}


def test_watermarks_of_a_source_make_nothing_late(env):
    source = ScriptedSource([Timed(("k", t), t) for t in (50, 250, 60, 70)], batch_size=1)
    windows = (
        env.from_source(source, MONOTONOUS, "s").key_by(lambda row: row[0]).window(TumblingEventTimeWindows.of(100))
    )
    assert sorted(windows.apply(lambda k, w, rows: [(w.start, len(list(rows)))]).execute_and_collect()) == [
        (0, 3),
        (200, 1),
    ]


def test_a_running_sum_gives_one_value_per_key(env):
    words = env.from_collection([("a", 1), ("a", 1), ("b", 1), ("a", 1)])
    assert sorted(words.key_by(0).sum(1).execute_and_collect()) == [("a", 3), ("b", 1)]


def test_a_reduction_goes_by_time_and_its_value_has_the_time_of_the_last_record(env):
    records = disordered()
    joined = timed_source(env, records).map(lambda row: (row["key"], [row["ts"]])).key_by(lambda pair: pair[0])
    reduced = joined.reduce(lambda a, b: (a[0], a[1] + b[1]))
    in_windows = reduced.key_by(lambda pair: pair[0]).window(TumblingEventTimeWindows.of(1))
    found = dict(in_windows.apply(lambda key, window, rows: [(key, (window.start, *rows))]).execute_and_collect())
    expected = defaultdict(list)
    for record in sorted(records, key=lambda record: record["ts"]):
        expected[record["key"]].append(record["ts"])
    assert found == {key: (times[-1], (key, times)) for key, times in expected.items()}


def test_in_order_a_batch_gives_the_last_of_what_a_stream_gives():
    records = sorted(disordered(), key=lambda record: record["ts"])
    found = {}
    for mode in (RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH):
        with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
            env.set_runtime_mode(mode)
            found[mode] = list(timed_source(env, records).key_by("key").max_by("value").execute_and_collect())
    last_of_stream = {row["key"]: row for row in found[RuntimeExecutionMode.STREAMING]}
    assert sorted(found[RuntimeExecutionMode.BATCH], key=str) == sorted(last_of_stream.values(), key=str)


class Watching(KeyedProcessFunction):
    """Gives each record with its place among its key's; at the end of event time how many there were."""

    def open(self, context):
        self.seen = context.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, value, context):
        number = self.seen.value() or 0
        self.seen.update(number + 1)
        assert context.timer_service().current_watermark() == -(2**63)
        context.timer_service().register_event_time_timer(value["ts"] + 20_000)
        yield ("record", value["key"], number, value["ts"])

    def on_timer(self, timestamp, context):
        yield ("timer", context.get_current_key(), self.seen.value(), timestamp)


def test_a_process_function_sees_the_records_of_a_key_in_the_order_of_time(env):
    records = disordered()
    found = list(timed_source(env, records).key_by(lambda row: row["key"]).process(Watching()).execute_and_collect())
    by_key = defaultdict(list)
    for record in sorted(records, key=lambda record: record["ts"]):
        by_key[record["key"]].append(record["ts"])
    expected = [("record", key, n, time) for key, times in by_key.items() for n, time in enumerate(times)]
    expected += [("timer", key, len(times), time + 20_000) for key, times in by_key.items() for time in times]
    assert sorted(found) == sorted(expected)
    for key in by_key:  # one subtask has a key, and all it gives of one comes in order
        of_key = [(kind, time) for kind, k, _, time in found if k == key]
        assert of_key == sorted(of_key, key=lambda pair: (pair[0], pair[1]))


def test_keys_come_one_after_another():
    records = disordered()
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
        env.set_runtime_mode(RuntimeExecutionMode.BATCH)
        keyed = timed_source(env, records).key_by(lambda row: row["key"])
        keys = [row["key"] for row in keyed.map(lambda row: row).execute_and_collect()]
        seen = [kind[1] for kind in timed_source(env, records).key_by("key").process(Watching()).execute_and_collect()]
    assert sorted(keys) == sorted(record["key"] for record in records)
    runs = [key for key, _ in itertools.groupby(seen[: len(records)])]
    assert len(runs) == len(set(runs)) == 7


class Minute(KeyedProcessFunction):
    """Asks to be called an hour later, and again and again."""

    def process_element(self, value, context):
        timers = context.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 3_600_000)

    def on_timer(self, timestamp, context):
        timers = context.timer_service()
        timers.register_processing_time_timer(timestamp + 3_600_000)
        if context.time_domain() == "processing-time":
            timers.register_event_time_timer(5)
        yield (context.get_current_key(), context.time_domain())


def test_timers_of_the_clock_fire_at_the_end_of_the_input_once(env):
    found = Counter(env.from_collection([1, 2, 3]).key_by(lambda n: n).process(Minute()).execute_and_collect())
    assert found == Counter((key, kind) for key in (1, 2, 3) for kind in ("processing-time", "event-time"))


def test_windows_of_the_clock_close_at_the_end_of_the_input(env):
    windows = env.from_collection(["a"] * 5).key_by(lambda w: w).window(TumblingProcessingTimeWindows.of(86_400_000))
    assert sum(windows.apply(lambda k, w, rows: [len(list(rows))]).execute_and_collect()) == 5


class Rules(KeyedBroadcastProcessFunction):
    rules = MapStateDescriptor("rules", str, int)

    def process_element(self, value, context):
        yield (value, len(list(context.get_broadcast_state(self.rules).items())))

    def process_broadcast_element(self, value, context):
        context.get_broadcast_state(self.rules).put(value, 1)
        return ()


def test_a_broadcast_input_comes_before_the_keyed_one(env):
    rules = env.from_collection(["a", "b", "c", "d"]).broadcast(Rules.rules)
    keyed = env.from_collection(range(20)).key_by(lambda n: n % 5)
    assert set(keyed.connect(rules).process(Rules()).execute_and_collect()) == {(n, 4) for n in range(20)}


class UnkeyedRules(BroadcastProcessFunction):
    def process_element(self, value, context):
        yield (value, len(list(context.get_broadcast_state(Rules.rules).items())))

    def process_broadcast_element(self, value, context):
        context.get_broadcast_state(Rules.rules).put(value, 1)
        return ()


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_broadcast_input_comes_before_a_stream_without_keys_as_well(env, backend):
    """The stream is not sorted by that: each subtask's records come as they arrive."""
    env.set_state_backend(backend)
    late_rules = ScriptedSource(["a", "b", Pause(300), "c", "d"], batch_size=1)
    rules = env.from_source(late_rules, None, "rules").broadcast(Rules.rules)
    numbers = env.from_collection(range(20)).map(lambda n: n).set_parallelism(1)
    found = list(numbers.connect(rules).process(UnkeyedRules()).set_parallelism(1).execute_and_collect())
    assert found == [(n, 4) for n in range(20)]


def test_joins_get_both_inputs_key_by_key(env):
    """So what they give is in the same order whatever the order of arrival."""
    rng = random.Random(7)
    found = set()
    for _ in range(3):
        left, right = (
            [{"key": n % 5, "ts": n} for n in rng.sample(range(60), 60)],
            [{"key": n % 5, "ts": n} for n in rng.sample(range(60), 60)],
        )
        keyed = [timed_source(env, rows).key_by(lambda row: row["key"]) for rows in (left, right)]
        pairs = keyed[0].interval_join(keyed[1]).between(-5, 5)
        rows = pairs.process(lambda a, b, _: [(a["key"], a["ts"], b["ts"])]).set_parallelism(1).execute_and_collect()
        found.add(tuple(rows))
    [once] = found
    assert sorted(once) == sorted((a % 5, a, b) for a in range(60) for b in (a - 5, a, a + 5) if 0 <= b < 60)
    keys = [key for key, _ in itertools.groupby(key for key, _, _ in once)]
    assert len(keys) == 5


def test_two_keyed_inputs_come_in_one_order_of_time(env):
    left = timed_source(env, [{"key": "k", "ts": t} for t in (50, 10, 30)]).key_by(lambda row: row["key"])
    right = timed_source(env, [{"key": "k", "ts": t} for t in (40, 20)]).key_by(lambda row: row["key"])
    both = left.connect(right).process((lambda row, _: [row["ts"]], lambda row, _: [-row["ts"]]))
    assert list(both.execute_and_collect()) == [10, -20, 30, -40, 50]


def test_a_failure_of_the_program_starts_over_and_no_output_is_doubled(env, tmp_path):
    mark = tmp_path / "failed"

    def once(row):
        if row["value"] > 90 and not mark.exists():
            mark.write_text("")
            message = "a passing failure"
            raise OSError(message)
        return row

    records = disordered()
    stream = timed_source(env, records).map(once)
    stream.key_by("key").sum("value").sink_to(FileSink.json_lines(str(tmp_path / "out")))
    env.execute()
    assert mark.exists()
    lines = [line for path in (tmp_path / "out").glob("part-*") for line in path.read_text().splitlines()]
    assert len(lines) == len({record["key"] for record in records})


def test_failures_in_a_row_end_the_job(env):
    def fail(_):
        message = "always"
        raise ValueError(message)

    with pytest.raises(JobFailedError, match="always"):
        list(env.from_collection([1]).map(fail).execute_and_collect())


def test_a_failure_for_ever_ends_the_job_behind_the_restart_strategy(env):
    """From outside, so that the program is not what is given up on."""
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(4, 1))

    def fail(_):
        message = "the service is away"
        raise StorageError(message)

    words = env.from_collection([("a", 1), ("b", 1)]).key_by(0).sum(1).map(fail)
    words.print()
    client = env.execute_async("for ever")
    with pytest.raises(JobFailedError, match="the service is away"):
        client.result()
    assert client.view().num_restarts == 4


def test_input_that_does_not_fit_in_memory_is_sorted_on_the_disk(monkeypatch):
    spilled = []
    write = SpillFile.write
    monkeypatch.setattr(SpillFile, "write", lambda self, data: spilled.append(len(data)) or write(self, data))
    records = [{"key": n % 11, "text": "x" * 1_000, "ts": 20_000 - n} for n in range(2_000)]
    with StreamExecutionEnvironment.get_execution_environment(
        "local", parallelism=1, managed_memory_bytes=1 << 20
    ) as env:
        env.set_runtime_mode(RuntimeExecutionMode.BATCH)
        found = list(timed_source(env, records).key_by("key").process(Watching()).execute_and_collect())
    times = [time for kind, key, _, time in found if kind == "record" and key == 3]
    assert times == sorted(record["ts"] for record in records if record["key"] == 3)
    assert len(found) == 4_000
    assert sum(spilled) > 100_000


# ------------------------------------------------------------------------------------------------------------- refusals
def test_iterations_are_refused(env):
    loop = env.from_collection([1]).iterate(5_000)
    loop.close_with(loop.filter(lambda _: False))
    loop.print()
    with pytest.raises(ProgramError, match="runtime mode BATCH has no iterations"):
        env.get_job_graph()
    env.set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
    assert not env.get_job_graph().settings.is_batch


def test_a_batch_starts_from_nothing(env, tmp_path):
    env.from_collection([1]).print()
    env.set_restore_path(str(tmp_path / "savepoint"))
    with pytest.raises((ConfigurationError, ProgramError), match="a batch job starts from nothing"):
        env._job_settings(env._stream_graph(None), make_directory=False)


def test_savepoints_and_stops_are_refused(env, tmp_path):
    source = ScriptedSource([1, Pause(), 2])
    env.from_source(source, None, "slow").print()
    client = env.execute_async()
    try:
        with pytest.raises(ConfigurationError, match="a batch job has no state that a savepoint could hold"):
            client.trigger_savepoint(str(tmp_path / "savepoint"))
        with pytest.raises(ConfigurationError, match="a batch job has no state that a later run could go on from"):
            client.stop()
    finally:
        client.cancel()


def test_automatic_is_a_batch_if_all_sources_are_bounded(env):
    env.set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
    env.from_collection([1]).print()
    graph = env.get_job_graph()
    assert graph.settings.is_batch
    assert graph.settings.checkpoints is None
    assert "mode: batch" in env.explain()


def test_only_the_last_checkpoint_is_taken(env):
    env.enable_checkpointing(1)
    env.get_checkpoint_config().enable_unaligned_checkpoints()
    env.from_collection(range(10)).sink_to(FileSink.json_lines("out"))
    checkpoints = env.get_job_graph().settings.checkpoints
    assert checkpoints.only_last
    assert not checkpoints.unaligned
    assert "one when all input is processed" in env.explain()
