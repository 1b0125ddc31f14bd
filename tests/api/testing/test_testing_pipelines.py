"""`PipelineTestHarness` and `run_simulated`, used as a user would: whole programs, step by step or under faults."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow as pa
import pytest

from headrace import (
    JobFailedError,
    MapFunction,
    ProgramError,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    UserFunctionError,
    WatermarkStrategy,
    col,
    count,
)
from headrace.connectors.files import FileSink
from headrace.engine.columns.records import MAX_WATERMARK, Watermark
from headrace.testing import (
    OneInputTestHarness,
    PipelineTestHarness,
    ScriptedSource,
    run_simulated,
)

# ----------------------------------------------------------------------------------------------------------- pipelines


def clicks_per_user(clicks):
    return clicks.key_by("user").window(TumblingEventTimeWindows.of("10 s")).aggregate(n=count())


def click(user):
    return {"user": user}


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_pipeline_runs_between_two_calls(parallelism):
    """Also its columnar operators, in two phases with a shuffle between them."""
    with PipelineTestHarness(clicks_per_user, parallelism=parallelism) as harness:
        harness.process_elements([click("ann"), click("bob"), click("ann")], [0, 5_000, 9_999])
        harness.process_element(click("bob"), 10_000)
        harness.process_watermark(9_999)
        rows = sorted(harness.take_output_values(), key=lambda row: row["user"])
        assert [(row["user"], row["n"]) for row in rows] == [("ann", 2), ("bob", 1)]
        harness.end_input()
        assert [(row["user"], row["n"]) for row in harness.take_output_values()] == [("bob", 1)]
        assert harness.is_finished


def test_inputs_and_outputs_have_names():
    def program(orders, refunds):
        known = orders.map(lambda order: ("order", order))
        return {"all": known.union(refunds.map(lambda refund: ("refund", refund))), "orders": known}

    with PipelineTestHarness(program) as harness:
        harness.process_element(1, 10, "orders")
        harness.process_element(2, stream="refunds")
        assert harness.extract_output_values("all") == [("order", 1), ("refund", 2)]
        assert harness.extract_output_values("orders") == [("order", 1)]
        harness.process_watermark(5, "orders")
        assert harness.get_output("all")[2:] == []
        assert harness.get_output("orders")[1:] == [Watermark(5)]
        harness.process_idleness(True, "refunds")
        assert harness.get_output("all")[2:] == [Watermark(5)]
        harness.end_input("orders")
        assert not harness.is_finished
        with pytest.raises(ProgramError, match="has ended"):
            harness.process_element(3, stream="orders")
        with pytest.raises(ProgramError, match="there are 'orders', 'refunds'"):
            harness.process_element(3)
        with pytest.raises(ProgramError, match="no output 'refunds'"):
            harness.extract_output_values("refunds")
        harness.end_input()
        assert harness.is_finished


@pytest.mark.parametrize(
    ("before", "after", "backend"), [(1, 2, "heap"), (2, 3, "heap"), (3, 1, "heap"), (2, 3, "rocksdb")]
)
def test_a_pipeline_is_restored_at_another_parallelism(before, after, backend):
    with PipelineTestHarness(clicks_per_user, parallelism=before, state_backend=backend) as first:
        first.process_elements([click(f"user {i % 5}") for i in range(10)], [i * 1_500 for i in range(10)])
        first.process_watermark(9_999)
        assert len(first.take_output_values()) == 5
        snapshot = first.snapshot()
        first.process_element(click("lost"), 15_000)
    with PipelineTestHarness(clicks_per_user, parallelism=after, state_backend=backend).restore(snapshot) as second:
        second.process_element(click("user 4"), 16_000)
        second.process_element(click("user 0"), 9_000)
        second.end_input()
        got = {row["user"]: row["n"] for row in second.take_output_values()}
        assert got == {"user 2": 1, "user 3": 1, "user 4": 2}, "and user 0 is late"


def test_processing_time_of_a_pipeline_is_the_tests():
    def program(lines):
        windows = lines.key_by(lambda line: line).window(TumblingProcessingTimeWindows.of("1 min"))
        return windows.reduce(lambda a, b: a)

    with PipelineTestHarness(program, parallelism=2, now_ms=90_000) as harness:
        harness.process_elements(["a", "b"])
        harness.advance(29_999)
        assert harness.take_output_values() == []
        harness.advance(1)
        assert sorted(harness.take_output_values()) == ["a", "b"]


def test_a_program_may_have_sources_and_sinks_of_its_own(tmp_path, capsys):
    def program(env):
        numbers = env.from_collection(range(10)).assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda number: number)
        )
        numbers.print("n")
        numbers.map(lambda number: {"n": number}).sink_to(FileSink.json_lines(tmp_path / "out"))

    with PipelineTestHarness(program, parallelism=2) as harness:
        assert harness.is_finished
    lines = [line for path in (tmp_path / "out").glob("[!.]*") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["n"] for line in lines) == list(range(10))
    assert len(capsys.readouterr().out.splitlines()) == 10


def test_sinks_commit_with_a_snapshot(tmp_path):
    def program(rows):
        rows.sink_to(FileSink.json_lines(tmp_path))

    with PipelineTestHarness(program) as harness:
        harness.process_element({"n": 1})
        assert not list(tmp_path.glob("[!.]*"))
        harness.snapshot()
        assert len(list(tmp_path.glob("[!.]*"))) == 1


def test_an_error_in_a_pipeline_comes_out_of_the_call_that_caused_it():
    with PipelineTestHarness(
        lambda numbers: numbers.map(lambda number: 1 / number).name("inverse"), parallelism=2
    ) as harness:
        harness.process_element(1)
        with pytest.raises(UserFunctionError, match="ZeroDivisionError") as caught:
            harness.process_element(0)
        assert caught.value.context["operator"] == "inverse"
        with pytest.raises(ProgramError, match="closed"):
            harness.process_element(1)


def test_a_wrong_program_is_refused_where_it_is_written():
    with pytest.raises(ProgramError, match="must return a stream"):
        PipelineTestHarness(lambda rows: 1)
    with pytest.raises(ProgramError, match="does not use its input 'b'"):
        PipelineTestHarness(lambda a, b: a.map(str))
    with pytest.raises(ProgramError, match="names an input"):
        PipelineTestHarness(lambda *streams: streams[0])
    with pytest.raises(ProgramError, match="function of its input streams"):
        PipelineTestHarness(3)


def test_a_columnar_program_takes_rows_and_columns():
    def program(rows):
        return rows.filter(col("n") > 1).select("n", double=col("n") * 2)

    with PipelineTestHarness(program) as harness:
        harness.process_elements([{"n": 1, "x": "a"}, {"n": 2, "x": "b"}])
        assert harness.take_output_values() == [{"n": 2, "double": 4}]
        harness.process_elements(pa.RecordBatch.from_pylist([{"n": 3, "x": "c"}]), [7])
        assert harness.take_output_records() == [({"n": 3, "double": 6}, 7)]


def test_a_failure_of_close_does_not_hide_the_first():
    class Both(MapFunction):
        def map(self, value):
            return int("first")

        def close(self):
            int("second")

    with pytest.raises(UserFunctionError, match="first") as caught:
        OneInputTestHarness(Both()).process_element(1)
    assert "second" in caught.value.context["on_closing"]
    harness = OneInputTestHarness(Both()).open()
    with pytest.raises(UserFunctionError, match="second"):
        harness.close()


# ----------------------------------------------------------------------------------------------------- simulated faults


def running_sums(env):
    numbers = env.from_collection(range(120)).key_by(lambda number: number % 5)
    return (
        numbers.map(lambda number: (number % 5, number))
        .key_by(lambda pair: pair[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )


def expected_sums():
    totals: Counter[int] = Counter()
    for number in range(120):
        totals[number % 5] += number
        yield number % 5, totals[number % 5]


@pytest.mark.parametrize("seed", range(4))
def test_a_simulated_run_loses_and_doubles_nothing(seed):
    run = run_simulated(running_sums, seed, kills=2, freezes=1, lossy_network=True)
    assert Counter(run.values) == Counter(expected_sums())
    assert run.seed == seed


def test_kills_strike_and_equal_seeds_are_equal_runs():
    runs = [run_simulated(running_sums, seed=3, kills=3) for _ in range(2)]
    assert runs[0].digest == runs[1].digest
    assert runs[0].values == runs[1].values
    assert runs[0].num_kills > 0
    assert runs[0].num_restarts > 0
    assert run_simulated(running_sums, seed=4, kills=3).digest != runs[0].digest


def test_a_function_that_keeps_state_to_itself_is_found_out():
    """What simulation is for: a counter that is no state is lost with its process."""

    class Forgetful(MapFunction):
        def open(self, runtime_context):
            self.count = 0

        def map(self, value):
            self.count += 1
            return self.count

    def program(env):
        return env.from_collection(range(100)).map(Forgetful()).set_parallelism(1)

    assert run_simulated(program, kills=0).values == list(range(1, 101))
    outcomes = [run_simulated(program, seed, kills=3).values for seed in range(5)]
    assert any(values != list(range(1, 101)) for values in outcomes)


def test_a_job_that_fails_names_its_seed():
    with pytest.raises(JobFailedError, match="ZeroDivisionError") as caught:
        run_simulated(lambda env: env.from_collection([1, 0]).map(lambda number: 1 / number), seed=11, kills=0)
    assert caught.value.context["seed"] == 11
    with pytest.raises(ProgramError, match="must return the stream"):
        run_simulated(lambda env: None)
    with pytest.raises(ProgramError, match="unbounded"):
        run_simulated(lambda env: env.from_source(ScriptedSource([1], is_bounded=False)))


def test_the_end_of_time_closes_what_waits():
    with OneInputTestHarness(str) as harness:
        assert harness.get_output() == []
        harness.end_input()
        assert harness.get_output() == [MAX_WATERMARK]


def test_a_simulated_run_on_rocksdb():
    run = run_simulated(running_sums, seed=5, kills=2, state_backend="rocksdb")
    assert Counter(run.values) == Counter(expected_sums())
