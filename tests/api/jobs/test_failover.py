"""Restart and failover strategies through the public interface, on the local system.

Families: behaviour (who is restarted, seen in the view; the answer exact, in files and collected), refusals.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import (
    KeyedProcessFunction,
    RestartStrategies,
    RocksDBStateBackend,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from headrace.engine.errors import ConfigurationError, JobFailedError
from headrace.engine.kernel.config import ExponentialDelayRestartStrategy, FailoverStrategy, FailureRateRestartStrategy

COUNT = 900


def environment(tmp_path=None, parallelism=3, **options):
    made = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism, **options)
    if tmp_path is not None:
        made.enable_checkpointing(30, directory=tmp_path / "ckpt")
    return made.set_restart_strategy(RestartStrategies.fixed_delay_restart(5, 10))


def numbers(env, count=COUNT):
    return env.from_source(GeneratorSource(lambda n: n, count=count, records_per_second=1_500), None, "numbers")


def failing_once(mark, at):
    """A function that fails when it first sees a number."""
    path = Path(mark)

    def check(n):
        if n == at and not path.exists():
            path.touch()
            message = f"{n} does not like it"
            raise ValueError(message)
        return n

    return check


class Counted(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value % 7, count


def test_only_the_region_that_fails_is_restarted(tmp_path):
    with environment(tmp_path) as env:
        stream = numbers(env).map(failing_once(tmp_path / "failed", 500))
        stream.sink_to(FileSink.json_lines(tmp_path / "out"))
        result = env.execute("regions")
    assert sorted(result.view.vertices[0].attempts) == [0, 0, 1]
    assert result.num_restarts == 1
    lines = [line for path in (tmp_path / "out").glob("part-*") for line in path.read_text().splitlines()]
    assert sorted(map(int, lines)) == list(range(COUNT))


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_pipelines_side_by_side_fail_alone_and_collect_exactly(tmp_path, backend):
    with environment(tmp_path, 2) as env:
        env.set_state_backend(
            backend if backend == "heap" else RocksDBStateBackend(16 << 20, str(tmp_path / "databases"))
        )
        fails = numbers(env).map(failing_once(tmp_path / "failed", 500)).uid("fails")
        fails.key_by(lambda n: n % 7).process(Counted()).sink_to(FileSink.json_lines(tmp_path / "left"))
        views = []
        env.set_progress_listener(views.append)
        assert sorted(numbers(env).map(lambda n: n).uid("runs on").execute_and_collect()) == list(range(COUNT))
    attempts = {vertex.name: vertex.attempts for vertex in views[-1].vertices}
    assert sorted(set(attempts.values())) == [(0, 0), (1, 1)]
    lines = [line for path in (tmp_path / "left").glob("part-*") for line in path.read_text().splitlines()]
    assert sorted(map(json.loads, lines)) == sorted([n % 7, n // 7 + 1] for n in range(COUNT))


def test_full_failover_restarts_everything(tmp_path):
    with environment(tmp_path) as env:
        env.set_failover_strategy("full")
        numbers(env).map(failing_once(tmp_path / "failed", 500)).sink_to(FileSink.json_lines(tmp_path / "out"))
        result = env.execute("full")
    assert result.view.vertices[0].attempts == (1, 1, 1)


def test_without_checkpoints_a_region_begins_again_and_files_are_exact(tmp_path):
    with environment() as env:
        numbers(env).map(failing_once(tmp_path / "failed", 500)).sink_to(FileSink.json_lines(tmp_path / "out"))
        result = env.execute("no checkpoints")
    assert sorted(result.view.vertices[0].attempts) == [0, 0, 1]
    lines = [line for path in (tmp_path / "out").glob("part-*") for line in path.read_text().splitlines()]
    assert sorted(map(int, lines)) == list(range(COUNT))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_failure_rate_ends_a_job_that_fails_too_often(tmp_path, parallelism):
    def fails(n):
        message = "always"
        raise ValueError(message)

    with environment(tmp_path, parallelism) as env:
        env.set_restart_strategy(RestartStrategies.failure_rate_restart(2, "1 min", 10))
        numbers(env).map(fails).print()
        with pytest.raises(JobFailedError, match="always"):
            env.execute("fails")


def test_strategies_are_made_with_pyflinks_names():
    rate = RestartStrategies.failure_rate_restart(3, "5 min", "10 s")
    assert rate == FailureRateRestartStrategy(3, 300_000, 10_000)
    growing = RestartStrategies.exponential_delay_restart("1 s", "1 min", 2.0, "1 h", 0.2, seed=7)
    assert growing == ExponentialDelayRestartStrategy(1_000, 60_000, 2.0, 3_600_000, 0.2, 7)
    env = environment()
    env.set_failover_strategy(FailoverStrategy.FULL).set_restart_strategy(growing)
    numbers(env).print()
    assert env.get_job_graph().settings.failover is FailoverStrategy.FULL
    assert "1000 to 60000 ms" in env.explain()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: RestartStrategies.failure_rate_restart(0, 1, 1), "max_failures must be at least 1; got 0"),
        (lambda: RestartStrategies.failure_rate_restart("3", 1, 1), "failure_rate must be a whole number"),
        (lambda: RestartStrategies.failure_rate_restart(1, 0, 1), "failure_interval must be at least 1 ms"),
        (lambda: RestartStrategies.exponential_delay_restart("1 min", "1 s"), "max_backoff_ms must be at least 60000"),
        (lambda: RestartStrategies.exponential_delay_restart(1, 2, jitter_factor=3), "between 0 and 1; got 3"),
        (lambda: environment().set_failover_strategy("some"), "must be one of region, full; got 'some'"),
    ],
)
def test_what_means_nothing_is_refused(wrong, said):
    with pytest.raises(ConfigurationError, match=said):
        wrong()


@pytest.mark.parametrize("system", ["sim", "local"])
def test_a_program_that_is_run_again_is_another_job_whatever_its_last_run_has_left(tmp_path, system):
    """The checkpoints of a job that has failed stay; a new one must not go on from them, nor write over its files."""

    def fail_behind_a_checkpoint(n):
        assert not list((tmp_path / "ckpt").glob("*/manifests/*")), "there is one"
        return n

    def run(function, count):
        env = StreamExecutionEnvironment.get_execution_environment(system, parallelism=2, max_batch_rows=5, seed=3)
        env.enable_checkpointing(5, directory=tmp_path / "ckpt")
        env.set_restart_strategy(RestartStrategies.no_restart())
        slow = env.from_source(GeneratorSource(lambda n: n, count=count, records_per_second=4_000), None, "numbers")
        checked = slow.key_by(lambda n: n).map(function)
        checked.sink_to(FileSink.json_lines(tmp_path / "out", mode="append"))
        try:
            env.execute()
        finally:
            env.close()
        return sorted(json.loads(line) for path in (tmp_path / "out").glob("part-*") for line in path.open())

    with pytest.raises(JobFailedError, match="there is one"):
        run(fail_behind_a_checkpoint, None)
    for path in (tmp_path / "out").glob("part-*"):
        path.unlink()
    assert run(str, 400) == sorted(map(str, range(400)))
    assert run(str, 400) == sorted(2 * [*map(str, range(400))])


@pytest.mark.timeout(20)
@pytest.mark.parametrize("system", ["local", "sim"])
def test_a_task_fails_on_request_and_the_job_goes_on(tmp_path, system):
    with StreamExecutionEnvironment.get_execution_environment(system, parallelism=2) as env:
        env.enable_checkpointing(50, directory=tmp_path)
        source = GeneratorSource(lambda n: n, records_per_second=200)
        env.from_source(source, None, "numbers").map(lambda n: n).uid("same").print()
        client = env.execute_async("failing")
        attempt = None
        for view in client.views():
            if attempt is None and view.vertices and view.vertices[0].records_in > 10 and view.state == "RUNNING":
                attempt = client.fail_task("same", 1, "an exercise")
            if attempt is not None and view.num_restarts and view.state == "RUNNING":
                break
        assert "an exercise" in (view.failure or "")
        for operator, subtask in (("nobody", 0), ("same", 2)):
            with pytest.raises(ConfigurationError):
                client.fail_task(operator, subtask)
        client.cancel()
