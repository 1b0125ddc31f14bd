"""Jobs that are stopped in order and go on later, through the public interface.

Families: property (a job stopped anywhere and resumed gives the records of an uninterrupted run, in files and
collected, also at another parallelism), behaviour of sources that never end by themselves, refusals, the command line.
Faults while stopping are in ``tests/simulation/test_stopping.py``.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from campaigns import campaign

from headrace import (
    RestartStrategies,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink, FileSource
from headrace.connectors.scripted import Fail, Pause, ScriptedSource
from headrace.engine.errors import ConfigurationError, JobCanceledError, JobFailedError, UserFunctionError
from headrace.engine.protocol.states import JobStatus

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


@pytest.fixture
def env(tmp_path):
    made = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2, metrics_interval_ms=20)
    made.enable_checkpointing(30, directory=tmp_path / "ckpt")
    yield made
    made.close()


def lines_in(folder):
    visible = [
        path
        for path in Path(folder).rglob("*.jsonl")
        if not any(p.startswith((".", "_")) for p in path.relative_to(folder).parts)
    ]
    return [json.loads(line) for file in sorted(visible) for line in file.read_text().splitlines()]


def wait_until(client, is_enough):
    """Follow a job until its view says so."""
    for view in client.views():
        if is_enough(view):
            return view
    message = "the job ended before"
    raise AssertionError(message)


def records_in(view):
    return view.vertices[0].records_in if view.vertices else 0


def numbers_per_window(env, count, rate, size=50):
    """Counts per (number modulo 3, window), keyed: state, timers and event time in the middle of being used."""
    strategy = MONOTONOUS.with_timestamp_assigner(lambda n, _: n)
    source = GeneratorSource(lambda n: n, count=count, records_per_second=rate, number_of_splits=2)
    return (
        env.from_source(source, strategy, "numbers")
        .uid("numbers")
        .map(lambda n: (n % 3, n - n % size, 1))
        .key_by(lambda row: row[0])
        .window(TumblingEventTimeWindows.of(size))
        .reduce(lambda a, b: (a[0], a[1], a[2] + b[2]))
        .uid("windows")
    )


def expected_windows(count, size=50):
    return sorted([key, start, n] for (key, start), n in Counter((i % 3, i - i % size) for i in range(count)).items())


@pytest.mark.parametrize("parallelism", [1, campaign(2), 3])
def test_a_stopped_job_goes_on_without_loss_or_repetition(env, tmp_path, parallelism):
    count = 2_000
    numbers_per_window(env, count, 300).sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")
    client = env.execute_async("first")
    wait_until(client, lambda view: records_in(view) > 300)
    path = client.stop()
    assert client.get_job_status() == "FINISHED"
    assert path is not None
    assert client.stop() == path
    before = lines_in(tmp_path / "out")
    assert 0 < len(before) < len(expected_windows(count))
    assert all(n in (16, 17) for _, _, n in before), "no window was closed before its time"
    env.set_parallelism(parallelism)
    numbers_per_window(env, count, None).sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")
    env.execute("second", from_checkpoint=path)
    assert sorted(lines_in(tmp_path / "out")) == expected_windows(count)


@pytest.mark.parametrize("stops", [(40,), campaign((150, 60)), (1, 80, 120)])
@pytest.mark.sampled(9)
def test_rows_collected_over_any_stops_are_those_of_one_run(env, stops):
    """Several runs, each stopped behind so many records and resumed by the next; none of those ends before, by far."""
    count, rows, path = 6_000, [], None
    for most in (*stops, None):
        env.set_restore_path(path)
        rate = 100 if most is not None else None
        collected = numbers_per_window(env, count, rate, size=20).execute_and_collect("part")
        if most is not None:
            wait_until(collected._client, lambda view, most=most: records_in(view) >= most)
            path = collected.stop()
            assert path is not None
        rows.extend(collected)
    assert sorted(map(list, rows)) == expected_windows(count, 20)


def test_a_drained_job_fires_its_windows_and_ends(env, tmp_path):
    strategy = MONOTONOUS.with_timestamp_assigner(lambda n, _: n)
    source = GeneratorSource(lambda n: n, records_per_second=1_000, number_of_splits=2)
    (
        env.from_source(source, strategy, "endless")
        .map(lambda n: ("all", n))
        .key_by(lambda row: row[0])
        .window(TumblingEventTimeWindows.of("1 h"))
        .reduce(lambda a, b: ("all", max(a[1], b[1])))
        .sink_to(FileSink.json_lines(tmp_path / "out"))
    )
    client = env.execute_async("drained")
    wait_until(client, lambda view: records_in(view) > 100)
    assert client.stop(drain=True) is not None
    assert client.result().view.stopping == "drain"
    [[key, highest]] = lines_in(tmp_path / "out")
    assert key == "all"
    assert highest > 90


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(("before", "after"), [(64 << 20, 100), (100, 64 << 20), (100, 170)])
def test_files_that_were_read_are_not_read_again_in_splits_of_another_size(env, tmp_path, before, after, parallelism):
    (tmp_path / "in").mkdir()

    def run(name, split_bytes, numbers, path=None):
        (tmp_path / "in" / name).write_text("".join(f'{{"n": {n}}}\n' for n in numbers))
        source = FileSource.json_lines(tmp_path / "in", follow=20, split_bytes=split_bytes)
        stream = env.from_source(source, None, "files").set_parallelism(parallelism).uid("files")
        stream.sink_to(FileSink.json_lines(tmp_path / "out")).set_parallelism(parallelism).uid("out")
        client = env.execute_async(name, **({} if path is None else {"from_checkpoint": path}))
        wait_until(client, lambda view: records_in(view) == len(numbers))
        return client.stop()

    path = run("a.jsonl", before, range(50))
    run("b.jsonl", after, range(50, 120), path)
    assert sorted(row["n"] for row in lines_in(tmp_path / "out")) == list(range(120))


@pytest.mark.parametrize("drain", [False, True])
def test_a_followed_directory_stops(env, tmp_path, drain):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(50)))
    source = FileSource.json_lines(tmp_path / "in", follow=20)
    env.from_source(source, None, "files").uid("files").sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")
    client = env.execute_async("followed")
    wait_until(client, lambda view: records_in(view) == 50)
    path = client.stop(drain=drain)
    assert sorted(row["n"] for row in lines_in(tmp_path / "out")) == list(range(50))
    (tmp_path / "in" / "b.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(50, 80)))
    env.from_source(source, None, "files").uid("files").sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")
    client = env.execute_async("goes on", from_checkpoint=path)
    wait_until(client, lambda view: records_in(view) == 30)
    client.stop()
    assert sorted(row["n"] for row in lines_in(tmp_path / "out")) == list(range(80))


def test_a_source_that_waits_for_ever_stops(env, tmp_path):
    source = ScriptedSource([1, 2, Pause()], [3, Pause()], is_bounded=False)
    env.from_source(source, None, "quiet").sink_to(FileSink.json_lines(tmp_path / "out"))
    client = env.execute_async("quiet")
    wait_until(client, lambda view: records_in(view) == 3)
    client.stop(timeout=20)
    assert sorted(lines_in(tmp_path / "out")) == [1, 2, 3]


def test_a_stop_right_after_the_submission_loses_nothing(env, tmp_path):
    for part in ("first", "second"):
        stream = env.from_source(GeneratorSource(lambda n: n, count=100), None, "numbers").uid("numbers")
        stream.sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")
        if part == "first":
            path = env.execute_async(part).stop()
        else:
            env.execute(part, from_checkpoint=path)
    assert sorted(lines_in(tmp_path / "out")) == list(range(100))


def test_a_failure_while_stopping_only_delays_the_stop(env, tmp_path):
    """The job fails again and again until it is stopped: its stop needs no record to get through."""
    error = UserFunctionError("not my day")
    source = ScriptedSource([*range(100), Pause(60), Fail(error, 1_000)], [Pause()], is_bounded=False, batch_size=10)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1_000, 10))
    env.from_source(source, None, "fails").uid("fails").sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")
    client = env.execute_async("fails")
    # Until a checkpoint has all records a stop is free to leave them out.
    wait_until(client, lambda view: view.num_restarts >= 2 and len(lines_in(tmp_path / "out")) == 100)
    assert client.stop(timeout=30) is not None
    assert sorted(lines_in(tmp_path / "out")) == list(range(100))


def test_a_job_without_checkpoints_can_only_be_drained():
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.from_source(GeneratorSource(lambda n: n, records_per_second=100), None, "endless").map(lambda n: n)
        client = env.execute_async("endless")
        with pytest.raises(ConfigurationError, match="takes no checkpoints"):
            client.stop()
        assert client.stop(drain=True) is None
        assert client.get_job_status() == "FINISHED"


def test_a_stop_that_takes_too_long_is_said_and_goes_on(env, tmp_path):
    def slowly(n):
        time.sleep(0.4 if n == 5 else 0)  # user code that takes its time
        return n

    source = GeneratorSource(lambda n: n, records_per_second=200, number_of_splits=1)
    env.from_source(source, None, "endless").map(slowly).sink_to(FileSink.json_lines(tmp_path / "out"))
    client = env.execute_async("endless")
    wait_until(client, lambda view: view.state == "RUNNING")
    with pytest.raises(TimeoutError, match="is still"):
        client.stop(timeout=0)
    assert client.wait(timeout=30).stopping == "suspend"


def test_how_a_job_ended_otherwise_is_told(env):
    env.from_source(GeneratorSource(lambda n: n, records_per_second=100), None, "endless").map(lambda n: n)
    client = env.execute_async("endless")
    client.cancel()
    with pytest.raises(JobCanceledError):
        client.stop()
    env.from_collection([1]).map(lambda n: n / 0)
    env.set_restart_strategy(RestartStrategies.no_restart())
    client = env.execute_async("fails")
    client.wait(timeout=30)
    with pytest.raises(JobFailedError, match="ZeroDivisionError"):
        client.stop()
    env.from_collection([1]).map(lambda n: n)
    client = env.execute_async("ends")
    client.wait(timeout=30)
    assert client.stop() is None


@pytest.mark.parametrize("path", ["/some/chk-7", None])
def test_the_command_line_stops_the_job_it_names(monkeypatch, capsys, path):
    from contextlib import contextmanager

    from headrace import cli
    from headrace.actors import connecting
    from headrace.jobs import client

    asked = []
    job = SimpleNamespace(job_id="job-17", name="counts")
    monkeypatch.setattr(connecting, "all_jobs", lambda address: [("mine", job)])

    @contextmanager
    def named(address, name):
        yield (address, name)

    def stop(self, *, drain, timeout=None):
        asked.append((self._cluster, self._job_id, drain))
        return path

    monkeypatch.setattr(connecting, "cluster_named", named)
    monkeypatch.setattr(client.JobClient, "stop", stop)
    assert cli.main(["stop", "--drain", "job-1"]) == 0
    assert cli.main(["stop", "job-2"]) == 1
    assert asked == [(("auto", "mine"), "job-17", True)]
    printed = capsys.readouterr()
    assert (path or "no checkpoint was kept") in printed.out
    assert "there is no job 'job-2'" in printed.err


def test_the_command_line_does_not_claim_to_cancel_a_job_that_has_ended(monkeypatch, capsys):
    from headrace import cli
    from headrace.actors import connecting

    job = SimpleNamespace(job_id="job-17", name="counts", state=JobStatus.FINISHED)
    monkeypatch.setattr(connecting, "all_jobs", lambda address: [("mine", job)])
    monkeypatch.setattr(connecting, "cancel_job", lambda *_: pytest.fail("canceled"))
    assert cli.main(["cancel", "job-17"]) == 0
    assert "has ended already: FINISHED" in capsys.readouterr().out
