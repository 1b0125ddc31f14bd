"""Event time and processing time through the public interface, at parallelism above 1.

Families: behaviour of quiet sources, alignment and clocks; oracle for alignment (results do not change); checkpoints
that go on after a source has ended.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from headrace import (
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    count,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSource
from headrace.connectors.scripted import Fail, Pause, ScriptedSource, Timed, Watermark
from headrace.engine.errors import ConfigurationError, UserFunctionError
from headrace.jobs.restoring import Restore

KEPT = WatermarkStrategy.for_monotonous_timestamps()


@pytest.fixture
def env(tmp_path):
    made = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)
    made.enable_checkpointing(30, directory=tmp_path / "ckpt")
    yield made
    made.close()


def timed(*times):
    return [Timed(("k", time), time) for time in times]


def counts(stream, assigner):
    """(first time, number of records) per window."""
    return (
        stream.map(lambda row: (row[0], row[1], 1))
        .key_by(lambda row: row[0])
        .window(assigner)
        .reduce(lambda a, b: (a[0], min(a[1], b[1]), a[2] + b[2]))
        .map(lambda row: (row[1], row[2]))
    )


def first_of(rows, n):
    """The first rows of a job that does not end; it is canceled then."""
    with rows:
        return [next(rows) for _ in range(n)]


# ------------------------------------------------------------------------------------------------ splits and event time
@pytest.mark.parametrize("make", ["records", "batches"])
def test_no_record_of_a_generator_is_late_with_more_splits_than_readers(make, env):
    """All splits go through the same times: one that was read behind another would be late as a whole."""
    if make == "records":
        source = GeneratorSource(lambda n: {"n": n, "ts": n}, 4_000, number_of_splits=7)
    else:
        source = GeneratorSource.batches(
            lambda start, size: pa.RecordBatch.from_pydict({"ts": range(start, start + size)}),
            4_000, number_of_splits=7, batch_size=50,
        )  # fmt: skip
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
    windows = (
        env.from_source(source, strategy, "numbers").key_by(lambda row: 0).window(TumblingEventTimeWindows.of(100))
    )
    counted = windows.aggregate(numbers=count()).execute_and_collect()
    assert [row["numbers"] for row in counted] == [100] * 40


def test_a_file_that_is_read_too_late_is_told_in_the_jobs_history(tmp_path):
    """As in Flink its records are late: a file that nobody reads yet holds no event time."""
    for name, first in (("a", 100), ("b", 0)):
        lines = [json.dumps({"ts": first + n}) for n in range(5)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
        stream = env.from_source(
            FileSource.json_lines(tmp_path / "*.jsonl"), KEPT.with_timestamp_assigner("ts"), "files"
        )  # fmt: skip
        stream.print()
        view = env.execute("late").view
    assert [text for _, text in view.history if "begins 99 ms behind event time" in text]


# ----------------------------------------------------------------------------------------------------------- quiet ones
def test_windows_close_by_the_other_splits_when_one_is_quiet(env):
    source = ScriptedSource(
        [*timed(0, 50), Pause()], [*timed(20, 120, 130), Pause(300), *timed(250), Pause()], is_bounded=False
    )
    stream = env.from_source(source, KEPT.with_idleness(50), "quiet")
    assert sorted(first_of(counts(stream, TumblingEventTimeWindows.of(100)).execute_and_collect(), 2)) == [
        (0, 3),
        (120, 2),
    ]


def test_the_last_windows_of_a_quiet_source_close_with_the_clock_if_wanted(env):
    source = ScriptedSource([*timed(0, 50), Pause()], [*timed(20, 130), Pause()], is_bounded=False)
    stream = env.from_source(source, KEPT.with_quiet_advance(50), "quiet")
    assert first_of(counts(stream, TumblingEventTimeWindows.of(100)).execute_and_collect(), 2) == [(0, 3), (130, 1)]


def test_a_quiet_stream_closes_its_windows_in_the_middle_of_a_program_too(env):
    source = ScriptedSource([("k", 0), ("k", 60), Pause()], is_bounded=False)
    strategy = KEPT.with_timestamp_assigner(lambda row, _: row[1]).with_quiet_advance("50 ms")
    stream = env.from_source(source, None, "quiet").assign_timestamps_and_watermarks(strategy)
    assert first_of(counts(stream, TumblingEventTimeWindows.of(100)).execute_and_collect(), 1) == [(0, 2)]


def test_ingestion_time_closes_windows_without_records(env):
    source = ScriptedSource([("k", 1), ("k", 2), Pause()], is_bounded=False)
    stream = env.from_source(source, WatermarkStrategy.for_ingestion_time(), "arrivals")
    rows = counts(stream, TumblingEventTimeWindows.of(40)).execute_and_collect()
    found = []
    with rows:
        while sum(n for _, n in found) < 2:
            found.append(next(rows))


def test_watermarks_of_the_source_itself_close_windows(env):
    script = [*timed(0, 50), Watermark(99), Pause(50), *timed(40), *timed(120), Watermark(500)]
    stream = env.from_source(ScriptedSource(script), WatermarkStrategy.no_watermarks(), "scripted").set_parallelism(1)
    rows = list(counts(stream, TumblingEventTimeWindows.of(100)).execute_and_collect())
    assert rows == [(0, 2), (120, 1)], "the record at 40 is late"


# --------------------------------------------------------------------------------------------------------------- clocks
class Delayed(KeyedProcessFunction):
    """Gives each record back 30 ms later."""

    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 30)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key()


def test_processing_time_goes_by_the_injected_clock():
    """In the simulator: a minute of virtual time, and no waiting."""
    with StreamExecutionEnvironment.get_execution_environment("sim", parallelism=2, seed=3) as env:
        source = ScriptedSource([("a", 1), ("a", 2), Pause("10 s"), ("b", 3), Pause("10 s")], [Pause("25 s"), ("c", 4)])
        stream = env.from_source(source, None, "slow")
        windows = stream.key_by(lambda row: row[0]).window(TumblingProcessingTimeWindows.of("2 s"))
        seen = []
        (
            windows.reduce(lambda a, b: (a[0], a[1] + b[1]))
            .union(stream.key_by(lambda row: row[0]).process(Delayed()).map(lambda key: (key, 0)))
            .print()
        )
        client = env._submit("slow", Restore(), None, attached=True)
        client._conversation._on_report["print"] = lambda _operator, _subtask, lines: seen.extend(lines)
        client.result()
    assert sorted({line.split("> ")[-1] for line in seen})[:4] == ["('a', 0)", "('a', 3)", "('b', 0)", "('b', 3)"]


# ------------------------------------------------------------------------------------------------------------ alignment
@pytest.mark.parametrize("drift", ["0 ms", "100 ms", None])
def test_alignment_changes_no_result(env, drift):
    strategy = KEPT if drift is None else KEPT.with_watermark_alignment("both", drift, 10)
    slow = ScriptedSource(*[[s for t in range(0, 400, 20) for s in (*timed(t), Pause(3))] for _ in range(2)])
    fast = ScriptedSource(timed(*range(0, 400, 20)), timed(*range(5, 4_000, 50)), batch_size=2)
    both = env.from_source(slow, strategy, "slow").union(env.from_source(fast, strategy, "fast"))
    rows = list(counts(both, TumblingEventTimeWindows.of(100)).execute_and_collect())
    assert sum(n for _, n in rows) == 60 + 80
    assert sorted(rows) == [(100 * w, 17) for w in range(4)] + [(100 * w + 5, 2) for w in range(4, 40)]


def test_a_fast_source_waits_for_a_slow_one(env):
    """What the fast one has given when the slow one stands still for good is bounded by the drift and a batch."""
    strategy = KEPT.with_watermark_alignment("both", 100, 10)
    slow = ScriptedSource([*timed(0, 50), Pause()], is_bounded=False)
    fast = ScriptedSource(timed(*range(0, 100_000, 10)), batch_size=5)
    stream = env.from_source(slow, strategy, "slow").union(env.from_source(fast, strategy, "fast"))
    rows, times = stream.execute_and_collect(), []
    for view in rows._client.views():
        if view.checkpoints_completed > 8:
            break
    rows.stop()
    times = [time for _, time in rows]
    assert 140 <= max(times) <= 49 + 100 + 5 * 10 + 1


# ---------------------------------------------------------------------------------------------------------- checkpoints
def test_checkpoints_go_on_after_a_source_has_ended(env):
    """Also after a failure: what the short source gave is neither lost nor read again."""
    short = ScriptedSource([1, 2, 3])
    error = UserFunctionError("once")
    long = ScriptedSource([10, Pause(300), 20, Fail(error), 30], [Pause(300), 40])
    stream = env.from_source(short, None, "short").union(env.from_source(long, None, "long"))
    rows = stream.map(lambda n: n + 1).execute_and_collect()
    assert sorted(rows) == [2, 3, 4, 11, 21, 31, 41]
    view = rows._client.view()
    assert view.num_restarts == 1
    assert view.checkpoints_completed > 3


# ------------------------------------------------------------------------------------------------------------- scripts
def test_scripts_are_checked():
    with pytest.raises(ConfigurationError, match="needs a script"):
        ScriptedSource()
    with pytest.raises(ConfigurationError, match="all records of a script must be timed, or none; script 1 has both"):
        ScriptedSource([1], [Timed(1, 1), 2])
    with pytest.raises(ConfigurationError, match="batch_size must be at least 1; got 0"):
        ScriptedSource([1], batch_size=0)
    with pytest.raises(ConfigurationError, match="must not be negative; got '-1 s'"):
        Pause("-1 s")


def test_a_script_fails_as_often_as_it_says(env):
    script = [1, Fail(UserFunctionError("first"), 1), 2, Fail(UserFunctionError("second"), 2), 3]
    rows = env.from_source(ScriptedSource(script), None, "fails").execute_and_collect()
    assert sorted(rows) == [1, 2, 3]
    assert rows._client.view().num_restarts == 2


# -------------------------------------------------------------------------------------------------------------- latency
def test_latency_markers_say_how_long_records_of_each_source_take():
    """In the simulator, whose messages take a while; behind a shuffle, in a chain and behind a side output."""
    env = StreamExecutionEnvironment.get_execution_environment("sim", parallelism=2, seed=5, latency_interval_ms=5)
    other = OutputTag("other")

    class Split(ProcessFunction):
        def process_element(self, value, ctx):
            yield value
            yield other, value

    with env:
        script = [step for n in range(15) for step in (Timed(n, n), Pause(5))]
        for name in ("one", "two"):
            stream = env.from_source(ScriptedSource(script), KEPT, name)
            split = stream.rebalance().process(Split()).name(f"split {name}")
            split.print(name)
            split.get_side_output(other).rebalance().map(lambda n: n).name(f"side {name}").print(name)
        view = env.execute("measured").view
        figures = {operator.name: operator.metrics for vertex in view.vertices for operator in vertex.operators}
        for name in ("one", "two"):
            for operator in (f"split {name}", f"side {name}"):
                metrics, prefix = figures[operator], f"source.Source: {name}.latency_ms"
                assert metrics[f"{prefix}.count"] > 0
                assert 0 <= metrics[f"{prefix}.min"] <= metrics[f"{prefix}.mean"] <= metrics[f"{prefix}.max"]
                assert metrics[f"{prefix}.max"] > 0
                others = "two" if name == "one" else "one"
                assert not any(others in key for key in metrics), "markers of another source"
            near, far = (figures[f"{at} {name}"][f"source.Source: {name}.latency_ms.mean"] for at in ("split", "side"))
            assert far > near, "one exchange more"


def test_event_times_in_seconds_are_noted_in_the_history():
    """Epoch seconds are valid milliseconds, of January 1970: the program runs and its windows are wrong."""
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("t")
    rows = [{"t": 1_700_000_000 + i} for i in range(10)]
    env.from_collection(rows).assign_timestamps_and_watermarks(strategy).name("times").print()
    notes = [text for _, text in env.execute().view.history if "look like seconds" in text]
    assert notes
    assert all(note.startswith("warning: event times are epoch milliseconds") and "(times " in note for note in notes)
