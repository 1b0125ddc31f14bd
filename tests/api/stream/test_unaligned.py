"""Unaligned checkpoints through the public interface: what a job that stands still under backpressure can do with them.

Families: property (a job that goes on from records in flight gives what an uninterrupted one gives, also at another
parallelism and after a killed process), comparison with aligned checkpoints by the order of events, refusals. Faults
of all kinds are in ``tests/simulation``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path

import cloudpickle
import pytest

from headrace import (
    CheckpointingMode,
    ConfigurationError,
    ExternalizedCheckpointRetention,
    JobFailedError,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots' processes do not find the tests' modules

NUM_RECORDS, NUM_KEYS = 900, 7


class Number(KeyedProcessFunction):
    """Numbers the records of each key."""

    def open(self, context):
        self._total = context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value, context):
        self._total.update(self._total.value() + 1)
        yield {"key": context.get_current_key(), "n": self._total.value()}


class Gate:
    """An outside system that answers nobody while it is closed: closed is a file."""

    def __init__(self, folder):
        self._closed = str(folder / "closed")
        Path(self._closed).touch()

    def open(self):
        os.remove(self._closed)

    async def __call__(self, row):
        while os.path.exists(self._closed):  # noqa: ASYNC110, ASYNC240 - other processes open it
            await asyncio.sleep(0.01)
        return row


def environment(system, folder, parallelism, backend="heap", **options):
    env = StreamExecutionEnvironment.get_execution_environment(
        system, parallelism=parallelism, max_batch_rows=10, channel_credits=2, metrics_interval_ms=20, **options
    )
    env.set_state_backend(backend)
    env.enable_checkpointing(50, directory=folder / "ckpt")
    config = env.get_checkpoint_config()
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    config.set_tolerable_checkpoint_failure_number(-1)
    config.set_max_retained_checkpoints(1_000)  # the one that a test has looked at must not be subsumed by later ones
    return env


def numbered(env, gate, folder, *, wire=None):
    """Keyed numbers that wait for an outside system one by one: what is partitioned by key stands in its channels."""
    source = GeneratorSource(lambda n: n, count=NUM_RECORDS, number_of_splits=3)
    stream = env.from_source(source, None, "numbers").uid("numbers").rebalance().map(lambda n: n).uid("spread")
    if wire is not None:
        stream = wire(stream)
    (
        stream.key_by(lambda n: n % NUM_KEYS)
        .process(Number())
        .uid("number")
        .map_async(gate, capacity=1, timeout=0)
        .uid("asked")
        .sink_to(FileSink.json_lines(folder / "out"))
        .uid("out")
    )


def expected():
    totals = Counter(n % NUM_KEYS for n in range(NUM_RECORDS))
    return sorted((key, n) for key, total in totals.items() for n in range(1, total + 1))


def written(folder):
    visible = [path for path in (folder / "out").rglob("*.jsonl") if not path.name.startswith((".", "_"))]
    rows = [json.loads(line) for path in visible for line in path.read_text().splitlines()]
    return sorted((row["key"], row["n"]) for row in rows)


def wait_until(client, is_enough):
    for view in client.views():
        if is_enough(view):
            return view
    message = f"the job is {view.state}: {view.failure}"
    raise AssertionError(message)


def is_stuck(view):
    """Whether nothing moves any more: the sources wait for credit."""
    return bool(view.vertices) and view.vertices[0].backpressured > 0.9


def holds_records(view):
    return view.last_checkpoint_metrics.get("persisted_bytes", 0) > 0


def test_under_backpressure_only_unaligned_checkpoints_complete(tmp_path):
    """The same job, with the gate closed all the time: by the order of events, not by the clock."""
    with environment("local", tmp_path, 2) as env:
        env.get_checkpoint_config().set_checkpoint_timeout(200)
        numbered(env, Gate(tmp_path), tmp_path)
        client = env.execute_async("aligned")
        stuck = wait_until(client, is_stuck)
        failed = wait_until(client, lambda view: view.checkpoints_failed >= stuck.checkpoints_failed + 3)
        assert failed.checkpoints_completed == stuck.checkpoints_completed
        client.cancel()
        env.get_checkpoint_config().enable_unaligned_checkpoints()
        numbered(env, Gate(tmp_path), tmp_path)
        client = env.execute_async("unaligned")
        stuck = wait_until(client, is_stuck)
        done = wait_until(client, lambda view: view.checkpoints_completed >= stuck.checkpoints_completed + 3)
        assert done.last_checkpoint_metrics["persisted_bytes"] > 0
        assert done.last_checkpoint_metrics["is_unaligned"] == 1
        client.cancel()


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.sampled(4)
def test_records_in_flight_are_processed_once_at_any_parallelism(tmp_path, backend, parallelism):
    gate = Gate(tmp_path)
    with environment("local", tmp_path, 2, backend) as env:
        env.get_checkpoint_config().enable_unaligned_checkpoints()
        numbered(env, gate, tmp_path)
        client = env.execute_async("first")
        wait_until(client, is_stuck)
        path = wait_until(client, holds_records).last_checkpoint_path
        client.cancel()
    assert written(tmp_path) == []
    gate.open()
    with environment("local", tmp_path, parallelism, backend) as env:
        numbered(env, gate, tmp_path)
        env.execute("second", from_checkpoint=path)
    assert written(tmp_path) == expected()


def test_a_timeout_lets_barriers_overtake_that_wait_already(tmp_path):
    gate = Gate(tmp_path)
    with environment("local", tmp_path, 2) as env:
        config = env.get_checkpoint_config()
        config.enable_unaligned_checkpoints().set_aligned_checkpoint_timeout("150 ms")
        numbered(env, gate, tmp_path)
        client = env.execute_async("timeout")
        wait_until(client, is_stuck)
        overtaken = wait_until(client, holds_records)
        assert overtaken.last_checkpoint_metrics["is_unaligned"] == 1
        assert overtaken.last_checkpoint_ms >= 150
        path = overtaken.last_checkpoint_path
        client.cancel()
        gate.open()
        config.set_aligned_checkpoint_timeout("1 min")
        numbered(env, gate, tmp_path)
        result = env.execute("in order", from_checkpoint=path)
    assert result.view.last_checkpoint_metrics["is_unaligned"] == 0
    assert written(tmp_path) == expected()


def test_records_in_flight_find_no_way_in_a_program_that_is_wired_otherwise(tmp_path):
    gate = Gate(tmp_path)
    with environment("local", tmp_path, 2) as env:
        env.get_checkpoint_config().enable_unaligned_checkpoints()
        numbered(env, gate, tmp_path)
        client = env.execute_async("first")
        wait_until(client, is_stuck)
        path = wait_until(client, holds_records).last_checkpoint_path
        client.cancel()
        gate.open()
        numbered(env, gate, tmp_path, wire=lambda stream: stream.map(lambda n: n).uid("one more"))
        with pytest.raises(JobFailedError, match="records in flight to operator 'number'"):
            env.execute("second", from_checkpoint=path)


def test_unaligned_is_exactly_once_and_one_at_a_time():
    env = StreamExecutionEnvironment.get_execution_environment("local")
    env.enable_checkpointing(50, CheckpointingMode.AT_LEAST_ONCE, directory="/nowhere")
    config = env.get_checkpoint_config()
    with pytest.raises(ConfigurationError, match="exactly-once"):
        config.enable_unaligned_checkpoints()
    config.set_checkpointing_mode(CheckpointingMode.EXACTLY_ONCE).set_max_concurrent_checkpoints(3)
    config.enable_unaligned_checkpoints().set_aligned_checkpoint_timeout("2 s")
    with pytest.raises(ConfigurationError, match="exactly-once"):
        config.set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE)
    with pytest.raises(ConfigurationError, match="aligned checkpoint timeout"):
        config.set_aligned_checkpoint_timeout(-1)
    settings = config.to_settings(make_directory=False)
    assert (settings.unaligned, settings.aligned_timeout_ms, settings.concurrency) == (True, 2_000, 1)
    env.from_elements(1).map(lambda n: n)
    assert "barriers overtake after 2000 ms" in env.explain()


def test_a_job_with_a_loop_stays_aligned(tmp_path):
    with environment("local", tmp_path, 2) as env:
        env.get_checkpoint_config().enable_unaligned_checkpoints()
        for is_run in (False, True):
            iteration = env.from_collection(range(300)).map(lambda n: (n, 3)).iterate()
            body = iteration.map(lambda pair: (pair[0], pair[1] - 1))
            iteration.close_with(body.filter(lambda pair: pair[1] > 0).rebalance())
            left = body.filter(lambda pair: pair[1] == 0)
            if is_run:
                assert sorted(left.execute_and_collect("loop")) == [(n, 0) for n in range(300)]
            else:
                left.print()
                assert "aligned, for the job has a loop" in env.explain()
                env._transformations.clear()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("ray_session")
@pytest.mark.campaign
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_on_ray_a_killed_process_and_a_new_layout_lose_nothing_in_flight(tmp_path, backend):
    gate = Gate(tmp_path)
    with environment("ray", tmp_path, 2, backend, max_slots=3) as env:
        env.get_checkpoint_config().enable_unaligned_checkpoints()
        numbered(env, gate, tmp_path)
        client = env.execute_async("first")
        wait_until(client, is_stuck)
        first = wait_until(client, holds_records)
        client.kill_slot()
        wait_until(client, lambda view: view.num_restarts > 0)
        again = wait_until(
            client,
            lambda view: (
                view.state == "RUNNING" and view.last_checkpoint > first.last_checkpoint + 2 and holds_records(view)
            ),
        )
        client.cancel()
        assert written(tmp_path) == []
        gate.open()
        env.set_parallelism(3)
        numbered(env, gate, tmp_path)
        env.execute("second", from_checkpoint=again.last_checkpoint_path)
    assert written(tmp_path) == expected()
