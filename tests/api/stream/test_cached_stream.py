"""Streams that are kept from job to job.

Families: property (with and without a failure, as stream and as batch, at other parallelisms, the records of a job that
reads what is kept are those of one that computes it), behaviour (computed once, again if lost, invalidated or canceled,
deleted with its environment), refusals, hostile files (nothing is opened that the program has not written).
"""

from __future__ import annotations

import os
import pickle
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_harness import Recorder

from headrace import (
    JobFailedError,
    ProgramError,
    RestartStrategies,
    RocksDBStateBackend,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
)
from headrace.connectors.files import FileSink
from headrace.connectors.scripted import Pause, ScriptedSource
from headrace.engine.columns.records import Batch
from headrace.engine.functions.operator import OperatorContext
from headrace.engine.kernel.metrics import MetricGroup
from headrace.engine.operators.packed_batches import COUNTS_TAG, PackOperator
from headrace.state.backends.heap.operator_state import HeapOperatorStateBackend

TIMED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _: n)


class Thing:
    """Not a type that columns could hold."""

    def __init__(self, n):
        self.n = n


def environment(tmp_path, parallelism=2, **options):
    made = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism, **options)
    return made.enable_checkpointing(20, directory=tmp_path / "checkpoints")


def operator_context():
    return OperatorContext(
        operator="pack", name="pack", subtask=0, parallelism=1, max_parallelism=128, attempt="pack[0]#0.0", job="job",
        output=Recorder(), keyed_state=None, operator_state=HeapOperatorStateBackend("pack"), metrics=MetricGroup(),
        now_ms=lambda: 0, probe=lambda point: None,
    )  # fmt: skip


def counted(tmp_path):
    """A function that leaves a trace of each call."""

    def call(n):
        with open(tmp_path / "calls", "a", encoding="utf-8") as file:
            file.write(f"{n}\n")
        return n * n

    return call


def calls(tmp_path):
    path = tmp_path / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_stream_is_computed_once_and_read_by_all_jobs_behind(tmp_path, mode, parallelism):
    env = environment(tmp_path, parallelism, max_batch_rows=7)
    env.set_runtime_mode(mode)
    squares = env.from_sequence(0, 99).map(counted(tmp_path), Types.LONG()).cache()
    expected = [n * n for n in range(100)]
    assert sorted(squares.map(lambda n: n).execute_and_collect()) == expected
    assert sorted(squares.execute_and_collect()) == expected
    env.set_parallelism(2)
    evens = squares.filter(lambda n: n % 2 == 0).key_by(lambda n: n % 10).reduce(lambda a, b: a + b)
    assert max(evens.execute_and_collect()) == max(
        sum(n for n in expected if n % 2 == 0 and n % 10 == digit) for digit in range(10)
    )
    assert calls(tmp_path) == 100
    assert squares.get_type() == Types.LONG()
    assert squares.cache() is squares


def test_event_times_and_arbitrary_objects_are_kept(tmp_path):
    env = environment(tmp_path)
    things = env.from_sequence(0, 49).assign_timestamps_and_watermarks(TIMED).map(Thing).cache()
    for _ in range(2):
        sums = (
            things.map(lambda thing: thing.n).key_by(lambda n: n % 2).window(TumblingEventTimeWindows.of(10))
            .reduce(lambda a, b: a + b)
        )  # fmt: skip
        expected = Counter()
        for n in range(50):
            expected[n // 10, n % 2] += n
        assert Counter(sums.execute_and_collect()) == Counter(expected.values())


def test_it_is_kept_once_although_the_job_failed_meanwhile(tmp_path):
    failed = tmp_path / "failed"

    def once(n):
        if n == 300 and not failed.exists():
            failed.touch()
            message = "once"
            raise ValueError(message)
        return n

    env = environment(tmp_path, 3, max_batch_rows=10)
    env.set_state_backend(RocksDBStateBackend(16 << 20, str(tmp_path / "db")))
    numbers = env.from_sequence(0, 499).map(once).cache()
    assert sorted(numbers.execute_and_collect()) == list(range(500))
    assert sorted(numbers.execute_and_collect()) == list(range(500))


def test_what_is_lost_or_invalidated_is_computed_again(tmp_path):
    env = environment(tmp_path)
    squares = env.from_sequence(0, 9).map(counted(tmp_path)).cache()
    for expected in (10, 10):
        assert len(list(squares.execute_and_collect())) == 10
        assert calls(tmp_path) == expected
    squares.invalidate()
    assert not any((tmp_path / "checkpoints" / "cached-streams").iterdir())
    assert len(list(squares.execute_and_collect())) == 10
    assert calls(tmp_path) == 20
    [directory] = (tmp_path / "checkpoints" / "cached-streams").iterdir()
    next((directory / "data").glob("part-*")).unlink()  # before anybody has looked
    assert len(list(squares.execute_and_collect())) == 10
    assert calls(tmp_path) == 30
    assert len(list(squares.execute_and_collect())) == 10
    assert calls(tmp_path) == 30


def test_nothing_is_kept_of_a_job_that_did_not_finish(tmp_path):
    env = environment(tmp_path, 1)
    numbers = env.from_collection([1, 2, 3]).map(counted(tmp_path)).cache()
    numbers.map(lambda n: 1 // 0).print()
    env.set_restart_strategy(RestartStrategies.no_restart())
    with pytest.raises(JobFailedError, match="division"):
        env.execute()
    before = calls(tmp_path)
    assert list(numbers.execute_and_collect()) == [1, 4, 9]
    assert calls(tmp_path) == before + 3


def test_one_kept_stream_may_be_made_of_another_and_an_empty_one_is_kept(tmp_path):
    env = environment(tmp_path)
    first = env.from_sequence(1, 4).map(counted(tmp_path)).cache()
    second = first.filter(lambda n: n > 100).cache()
    for _ in range(2):
        assert list(second.execute_and_collect()) == []
        assert calls(tmp_path) == 4
    assert sorted(first.execute_and_collect()) == [1, 4, 9, 16]
    assert calls(tmp_path) == 4


def test_it_goes_with_its_environment_and_may_be_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        squares = env.from_sequence(0, 9).map(counted(tmp_path)).cache()
        for _ in range(2):
            assert len(list(squares.execute_and_collect())) == 10
        [kept] = Path(tmp_path).glob("headrace-cache-*")
        assert os.stat(kept).st_mode & 0o77 == 0
    assert not list(Path(tmp_path).glob("headrace-cache-*"))
    assert calls(tmp_path) == 10


@pytest.mark.parametrize("drain", [False, True])
def test_a_job_that_was_stopped_is_not_kept_and_one_from_its_savepoint_keeps_nothing(tmp_path, drain):
    def program(env, *script):
        numbers = env.from_source(ScriptedSource(script), None, "numbers").uid("numbers").map(lambda n: n).cache()
        numbers.map(lambda n: n).uid("copy").sink_to(FileSink.json_lines(tmp_path / "out", mode="append")).uid("out")
        return numbers

    folder = tmp_path / "checkpoints" / "cached-streams"
    env = environment(tmp_path, 1, metrics_interval_ms=20)
    numbers = program(env, 1, 2, 3, Pause(), 4)
    client = env.execute_async()
    for view in client.views():
        if view.vertices and view.vertices[0].records_in >= 3:
            break
    savepoint = client.stop_with_savepoint(tmp_path / "savepoints", drain=drain)
    assert client.wait().state == "FINISHED"
    assert len(list(folder.iterdir())) == 1
    numbers._kept.settle()
    assert not list(folder.iterdir())
    program(env, 1, 2, 3, Pause(0), 4, 5)
    env.execute(from_savepoint=savepoint, allow_non_restored_state=True)
    lines = [line for path in (tmp_path / "out").glob("part-*") for line in path.read_text().split()]
    assert sorted(lines) == ["1", "2", "3", "4", "5"]
    assert not list(folder.iterdir())


@pytest.mark.parametrize("drain", [False, True])
def test_nor_is_one_that_was_stopped_without_a_savepoint(tmp_path, drain):
    env = environment(tmp_path, 1, metrics_interval_ms=20)
    numbers = env.from_source(ScriptedSource([1, 2, 3, Pause()]), None, "numbers").map(lambda n: n).cache()
    numbers.print()
    client = env.execute_async()
    for view in client.views():
        if view.vertices and view.vertices[0].records_in >= 3:
            break
    client.stop(drain=drain)
    client.wait()
    numbers._kept.settle()
    assert not numbers._kept.is_written


@pytest.mark.parametrize(("restored", "subtasks"), [([], 1), ([[3], []], 2), ([[2], [4]], 1), ([[5]], 3)])
def test_each_batch_is_counted_once_whoever_says_so(restored, subtasks):
    said, left = [], []
    for subtask in range(subtasks):
        operator, context = PackOperator(b"key"), operator_context()
        mine = [n for index, element in enumerate(restored) for n in element if index % subtasks == subtask]
        context.operator_state.list_state("batches").update(mine)
        operator.open(context)
        operator.process_batch(Batch.of_rows([1, 2]), 0)
        operator.finish()
        operator.snapshot_state(1)
        left += context.operator_state.list_state("batches").get()
        operator.finish()  # restored from a checkpoint behind the end
        said += [row["total"] for tag, rows in context.output.side for row in rows if tag == COUNTS_TAG]
    assert left == []
    assert sum(said) == sum(n for element in restored for n in element) + subtasks


class Canary:
    """A pickle of it runs code."""

    def __reduce__(self):
        return exec, ("import sys; sys.headrace_canary = True",)


def rewritten(folder, packed_of):
    """Put other records into the kept files, as many as there were."""
    for path in folder.glob("*/data/part-*"):
        kept = pq.read_table(path)
        records = [packed_of(record) for record in kept.column(0).to_pylist()]
        path.chmod(0o600)
        pq.write_table(pa.table({"packed": pa.array(records, pa.large_binary())}), path)


@pytest.mark.parametrize(
    "packed_of",
    [
        lambda record: pickle.dumps(Canary(), 4),
        lambda record: record[:32] + pickle.dumps(Canary(), 4),
        lambda record: bytes(32) + record[32:],
        lambda record: record[:-1] + bytes([record[-1] ^ 1]),
        lambda record: record[:7],
        lambda record: None,
    ],
)
def test_nothing_is_opened_that_the_program_has_not_written(tmp_path, packed_of):
    env = environment(tmp_path)
    env.set_restart_strategy(RestartStrategies.no_restart())
    squares = env.from_sequence(0, 9).map(counted(tmp_path)).cache()
    assert len(list(squares.execute_and_collect())) == 10
    rewritten(tmp_path / "checkpoints" / "cached-streams", packed_of)
    with pytest.raises(JobFailedError, match="not as it was written"):
        list(squares.execute_and_collect())
    assert not hasattr(sys, "headrace_canary")
    squares.invalidate()
    assert len(list(squares.execute_and_collect())) == 10
    assert calls(tmp_path) == 20


def test_what_another_stream_has_kept_is_not_taken_for_it(tmp_path):
    env = environment(tmp_path)
    env.set_restart_strategy(RestartStrategies.no_restart())
    streams = [env.from_sequence(0, 9).map(str).cache() for _ in range(2)]
    for stream in streams:
        list(stream.execute_and_collect())
    [mine, other] = [Path(stream._kept.directory) / "data" for stream in streams]
    taken = {path.name: path.read_bytes() for path in other.glob("part-*")}
    for path in mine.glob("part-*"):
        path.unlink()
    for name, content in taken.items():
        (mine / name).write_bytes(content)
    with pytest.raises(JobFailedError, match="not as it was written"):
        list(streams[0].execute_and_collect())


def test_what_is_kept_is_for_its_owner_alone(tmp_path):
    before = os.umask(0o002)
    try:
        env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)
        env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "checkpoints")
        assert len(list(env.from_sequence(0, 9).cache().execute_and_collect())) == 10
    finally:
        os.umask(before)
    made = [tmp_path / "checkpoints", *(tmp_path / "checkpoints").rglob("*")]
    assert len(made) > 6
    assert [path for path in made if path.stat().st_mode & 0o77] == []


def test_streams_without_end_or_with_keys_are_refused(tmp_path):
    env = environment(tmp_path)
    with pytest.raises(ProgramError, match="'endless' does not"):
        env.from_source(ScriptedSource([1], is_bounded=False), None, "endless").map(str).cache()
    with pytest.raises(ProgramError, match="cannot be cached"):
        env.from_collection([1]).key_by(lambda n: n).cache()


@pytest.mark.parametrize("deal", ["broadcast", "rebalance", "global_"])
def test_streams_that_say_how_they_are_dealt_out_are_refused(tmp_path, deal):
    """Copies made by a broadcast were kept as records: a job with one consumer read each as often as there had been
    subtasks.
    """
    env = environment(tmp_path)
    numbers = env.from_collection([1, 2])
    dealt = getattr(numbers, deal)()
    for stream in (dealt, numbers.union(dealt), numbers.union(numbers.union(dealt))):
        with pytest.raises(ProgramError, match="its partitioning would get lost"):
            stream.cache()
    assert sorted(dealt.map(lambda n: n).set_parallelism(1).cache().execute_and_collect()) == [1, 2]
