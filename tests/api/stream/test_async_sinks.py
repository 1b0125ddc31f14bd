"""Asynchronous sinks through the public interface on the local system.

Families: crash (requests that fail before their effect and behind it), property (stops and rescales lose no entry),
backpressure. Kills are in ``tests/simulation/test_services.py``, and of processes in ``tests/test_sinks_on_ray.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from campaigns import campaign
from folder_service import FolderSink, SilentSink, accepted

from headrace import AsyncSink, AsyncSinkWriter, JobFailedError, RestartStrategies, StreamExecutionEnvironment
from headrace.actors.hosts import offloads
from headrace.connectors.datagen import GeneratorSource

COUNT = 1_200


def environment(tmp_path, parallelism=3, backend="heap"):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism, max_batch_rows=10)
    env.set_state_backend(backend)
    return env.enable_checkpointing(30, directory=tmp_path / "checkpoints")


def numbers(env, rate=None):
    source = GeneratorSource(lambda n: n, count=COUNT, records_per_second=rate)
    return env.from_source(source, None, "numbers").uid("numbers").rebalance()


@pytest.mark.parametrize("dies", [(), ("before", "after")])
def test_every_record_is_sent(tmp_path, dies):
    env = environment(tmp_path)
    numbers(env, rate=3_000).sink_to(FolderSink(tmp_path / "service", dies))
    result = env.execute()
    assert set(accepted(tmp_path / "service")) == set(range(COUNT))
    if not dies:
        assert result.num_restarts == 0
        assert len(accepted(tmp_path / "service")) == COUNT


def test_without_checkpoints_everything_is_sent_at_the_end(tmp_path):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)
    numbers(env).sink_to(FolderSink(tmp_path / "service", max_time_in_buffer_ms="1 h"))
    env.execute()
    assert sorted(accepted(tmp_path / "service")) == list(range(COUNT))


@pytest.mark.parametrize(("before", "after", "backend"), [(1, 3, "heap"), (3, 2, "rocksdb")])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.sampled(4)
def test_a_savepoint_goes_on_at_another_parallelism(tmp_path, before, after, backend, ordered):
    def started(parallelism, rate, **options):
        env = environment(tmp_path, parallelism, backend)
        counted = numbers(env, rate).key_by(lambda n: n % 7).reduce(lambda _, n: n).uid("reduced")
        counted.sink_to(FolderSink(tmp_path / "service", ordered=ordered, max_time_in_buffer_ms="1 h")).uid("service")
        return env.execute_async("job", **options)

    first = started(before, 200)
    for view in first.views():
        if view.checkpoints_completed > 2:
            break
    path = first.stop_with_savepoint(tmp_path / "savepoints")
    assert len(set(accepted(tmp_path / "service"))) < COUNT
    started(after, None, from_checkpoint=path).result()
    assert set(accepted(tmp_path / "service")) == set(range(COUNT))


def test_a_service_that_does_not_answer_holds_back_the_source_and_no_unaligned_checkpoint(tmp_path):
    env = environment(tmp_path, parallelism=1)
    env.get_checkpoint_config().enable_unaligned_checkpoints()
    sink = SilentSink(tmp_path, max_batch_size=10, max_buffered_requests=20, max_in_flight_requests=1)
    numbers(env).sink_to(sink)
    client = env.execute_async("job")
    for view in client.views():
        if view.checkpoints_completed > 5:
            break
    read = view.vertices[0].records_in
    assert read < COUNT, "a full buffer takes no more"
    Path(tmp_path, "answers").touch()
    client.result()


@pytest.mark.campaign
def test_subtasks_that_share_threads_which_never_return_fail(tmp_path, monkeypatch):
    """Each has fewer than it may have."""
    monkeypatch.setattr(offloads, "MAX_BLOCKING_THREADS", 12)
    env = environment(tmp_path, parallelism=3).set_restart_strategy(RestartStrategies.no_restart())
    bounds = {"max_batch_size": 1, "max_in_flight_requests": 8, "request_timeout_ms": 20}
    numbers(env).sink_to(SilentSink(tmp_path, **bounds)).name("service")
    with pytest.raises(JobFailedError, match="before a thread of the process was free"):
        env.execute()
    Path(tmp_path, "answers").touch()


@pytest.mark.parametrize("in_flight", [2, campaign(12)])
def test_a_client_that_never_returns_does_not_get_all_threads(tmp_path, in_flight):
    env = environment(tmp_path, parallelism=2).set_restart_strategy(RestartStrategies.no_restart())
    bounds = {"max_batch_size": 1, "max_in_flight_requests": in_flight, "request_timeout_ms": 20}
    numbers(env).sink_to(SilentSink(tmp_path, **bounds)).name("service")
    with pytest.raises(JobFailedError) as caught:
        env.execute()
    Path(tmp_path, "answers").touch()
    assert f"{max(in_flight, 8)} requests have timed out whose calls have not returned" in str(caught.value)
    assert "operator 'Sink: service', subtask" in str(caught.value)


def test_a_failure_names_operator_and_subtask(tmp_path):
    class Broken(AsyncSink):
        def create_writer(self):
            return BrokenWriter()

    class BrokenWriter(AsyncSinkWriter):
        async def submit_request_entries(self, request_entries):
            message = "no such stream"
            raise ValueError(message)

    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)
    numbers(env).sink_to(Broken()).name("service")
    with pytest.raises(JobFailedError, match="no such stream") as caught:
        env.execute()
    assert "service" in str(caught.value)
    assert "BrokenWriter.submit_request_entries" in str(caught.value)
