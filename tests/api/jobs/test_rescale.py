"""Rescaling running jobs through the public interface, on the local system.

Families: property (whatever the parallelism was meanwhile, the answer is that of plain Python: keyed state, timers,
windows, list and union state, file and generator splits, on both backends), refusals, the command line. Faults
meanwhile are in ``tests/simulation/rescaling.py``.
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
    CheckpointedFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    RocksDBStateBackend,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    cli,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink, FileSource
from headrace.engine.errors import ConfigurationError, JobError, NoResourceAvailableError
from headrace.engine.protocol.states import JobStatus

STEPS = [(2, 3), (4, 1), campaign(1, 2), campaign(3, 5)]
NUM_KEYS = 23
NUM_RECORDS = 3_000
TIMED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _: n)


def environment(tmp_path, parallelism=2, backend="heap", **options):
    made = StreamExecutionEnvironment.get_execution_environment(
        "local", parallelism=parallelism, metrics_interval_ms=20, **{"max_batch_rows": 10, **options}
    )
    made.set_state_backend(backend)
    return made.enable_checkpointing(40, directory=tmp_path / "ckpt")


def backend_of(name, tmp_path):
    return name if name == "heap" else RocksDBStateBackend(16 << 20, str(tmp_path / "databases"))


def rows_in(folder):
    visible = [path for path in Path(folder).rglob("part-*") if "/." not in str(path.relative_to(folder.parent))]
    return [json.loads(line) for path in visible for line in path.read_text().splitlines()]


def wait_until(client, is_enough):
    for view in client.views():
        if is_enough(view):
            return view
    message = "the job ended before"
    raise AssertionError(message)


def records_in(view):
    return view.vertices[0].records_in if view.vertices else 0


def numbers(tmp_path, count):
    """Numbers that come slowly, behind the first third, until a gate is opened."""
    gate = tmp_path / "gate"

    def slowly(n):
        if n > count // 3 and not gate.exists():
            time.sleep(0.005)
        return n

    return GeneratorSource(slowly, count=count)


def rescale_half_way(client, parallelism, tmp_path):
    """Rescale behind a few records and a checkpoint; gives the job's result."""
    wait_until(client, lambda view: records_in(view) > 0 and view.checkpoints_completed > 0)
    client.rescale(parallelism)
    (tmp_path / "gate").touch()
    assert {vertex.parallelism for vertex in client.view().vertices} == {parallelism}
    assert client.view().num_restarts == 0, client.view().history
    return client.result(timeout=60)


class Everything(KeyedProcessFunction):
    """Value, list and map state, and a timer per key at the end of its hundred."""

    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total"))
        self.last = runtime_context.get_list_state(ListStateDescriptor("last"))
        self.per_digit = runtime_context.get_map_state(MapStateDescriptor("per digit"))

    def process_element(self, value, ctx):
        self.total.update((self.total.value() or 0) + value)
        self.last.update([*list(self.last.get())[-2:], value])
        self.per_digit.put(str(value % 10), (self.per_digit.get(str(value % 10)) or 0) + 1)
        ctx.timer_service().register_event_time_timer(NUM_RECORDS)

    def on_timer(self, timestamp, ctx):
        digits = sorted(self.per_digit.items())
        yield [ctx.get_current_key(), self.total.value(), list(self.last.get()), digits]


@pytest.mark.parametrize("name", [campaign("heap"), "rocksdb"])
@pytest.mark.parametrize(("before", "after"), STEPS)
@pytest.mark.sampled(9)
def test_keyed_state_timers_and_windows(tmp_path, before, after, name):
    with environment(tmp_path, before, backend_of(name, tmp_path)) as env:
        source = numbers(tmp_path, NUM_RECORDS)
        keyed = env.from_source(source, TIMED, "numbers").key_by(lambda n: n % NUM_KEYS)
        keyed.process(Everything()).sink_to(FileSink.json_lines(tmp_path / "keys"))
        counted = keyed.window(TumblingEventTimeWindows.of(500)).reduce(lambda a, b: a + b)
        counted.sink_to(FileSink.json_lines(tmp_path / "windows"))
        rescale_half_way(env.execute_async("keyed"), after, tmp_path)
    found = {row[0]: row[1:] for row in rows_in(tmp_path / "keys")}
    for key in range(NUM_KEYS):
        values = list(range(key, NUM_RECORDS, NUM_KEYS))
        total, last, digits = found[key]
        assert total == sum(values)
        assert dict(digits) == dict(Counter(str(v % 10) for v in values))
        assert len(last) == 3
        assert set(last) <= set(values)
    sums = Counter((n % NUM_KEYS, n // 500) for n in range(NUM_RECORDS))
    expected = [
        sum(n for n in range(w * 500, min((w + 1) * 500, NUM_RECORDS)) if n % NUM_KEYS == key) for key, w in sums
    ]
    assert Counter(rows_in(tmp_path / "windows")) == Counter(expected)


class Remembers(MapFunction, CheckpointedFunction):
    """List state: what it has seen, told at the end of it; union list state: who is there."""

    def initialize_state(self, context):
        store = context.get_operator_state_store()
        self.seen = store.get_list_state(ListStateDescriptor("seen"))
        self.everybody = store.get_union_list_state(ListStateDescriptor("everybody"))
        self.values = list(self.seen.get())
        self.restored = sorted(self.everybody.get())

    def open(self, runtime_context):
        self.subtask = runtime_context.get_index_of_this_subtask()

    def snapshot_state(self, context):
        self.seen.update(self.values)
        self.everybody.update([self.subtask])

    def map(self, value):
        self.values.append(value)
        return [value, self.subtask, len(self.values), self.restored]


@pytest.mark.parametrize(("before", "after"), STEPS)
def test_list_and_union_state(tmp_path, before, after):
    with environment(tmp_path, before) as env:
        source = numbers(tmp_path, 2_000)
        stream = env.from_source(source, None, "numbers").map(Remembers())
        stream.sink_to(FileSink.json_lines(tmp_path / "out"))
        rescale_half_way(env.execute_async("lists"), after, tmp_path)
    rows = rows_in(tmp_path / "out")
    assert sorted(row[0] for row in rows) == list(range(2_000))
    last = [row for row in rows if row[3] == list(range(before))]
    assert {row[1] for row in last} <= set(range(after))
    # Every element of every subtask's list came back once: the counts go on from where all of them together stood.
    most = {subtask: max((row[2] for row in last if row[1] == subtask), default=None) for subtask in range(after)}
    if None not in most.values():
        assert sum(most.values()) == 2_000


@pytest.mark.parametrize(("before", "after"), STEPS)
def test_file_splits(tmp_path, before, after):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(12):
        lines = [json.dumps(1_000 * number + i) for i in range(200)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")

    def slowly(n):
        if not (tmp_path / "gate").exists():
            time.sleep(0.003)
        return n

    with environment(tmp_path, before, max_batch_rows=20) as env:
        source = FileSource.json_lines(folder, split_bytes=400)
        env.from_source(source, None, "files").map(slowly).sink_to(FileSink.json_lines(tmp_path / "out"))
        rescale_half_way(env.execute_async("files"), after, tmp_path)
    expected = [1_000 * number + i for number in range(12) for i in range(200)]
    assert sorted(rows_in(tmp_path / "out")) == expected


def endless(env, tmp_path):
    source = GeneratorSource(lambda n: n, records_per_second=500)
    stream = env.from_source(source, None, "numbers").uid("numbers").map(lambda n: n).uid("double").start_new_chain()
    stream.sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")
    return env.execute_async("endless")


def test_single_operators_again_and_again_and_a_stop(tmp_path):
    with environment(tmp_path) as env:
        client = endless(env, tmp_path)
        for parallelism, operators in ((None, {"double": 3}), ({"numbers": 1}, None), (4, {"numbers": 2})):
            client.rescale(parallelism, operators)
        by_name = {vertex.name: vertex.parallelism for vertex in client.view().vertices}
        assert sorted(by_name.values()) == [2, 4]
        assert client.stop(timeout=30) is not None
    found = sorted(rows_in(tmp_path / "out"))
    assert len(found) == len(set(found))


def test_a_run_from_a_checkpoint_of_a_rescaled_job_has_its_own_parallelism(tmp_path):
    with environment(tmp_path) as env:
        client = endless(env, tmp_path)
        client.rescale(3)
        path = client.stop(timeout=30)
        source = GeneratorSource(lambda n: n, records_per_second=500)
        stream = env.from_source(source, None, "numbers").uid("numbers").map(lambda n: n).uid("double")
        stream.start_new_chain().sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")
        client = env.execute_async("endless", from_checkpoint=path)
        view = wait_until(client, lambda view: view.state == "RUNNING" and records_in(view) > 10)
        assert {vertex.parallelism for vertex in view.vertices} == {2}
        client.stop(timeout=30)
    found = sorted(rows_in(tmp_path / "out"))
    assert len(found) == len(set(found))


def test_refusals_leave_the_job_as_it_was(tmp_path):
    with environment(tmp_path, max_slots=3) as env:
        client = endless(env, tmp_path)
        wait_until(client, lambda view: view.state == "RUNNING")
        with pytest.raises(NoResourceAvailableError, match=r"5 slots needed, the cluster has 3 \(max_slots\)"):
            client.rescale(5)
        with pytest.raises(ConfigurationError, match=r"between 1 and max_parallelism \(128\); got 200"):
            client.rescale(200)
        with pytest.raises(ConfigurationError, match="in one chain"):
            client.rescale({"double": 1, "out": 2})
        view = client.view()
        assert (view.state, view.num_restarts) == ("RUNNING", 0)
        assert {vertex.parallelism for vertex in view.vertices} == {2}
        assert all(set(vertex.attempts) == {0} for vertex in view.vertices)
        client.cancel()
        with pytest.raises(JobError):
            client.rescale(1)


def test_without_checkpoints_there_is_nothing_to_go_on_from():
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.from_source(GeneratorSource(lambda n: n, records_per_second=100), None, "endless").print()
        client = env.execute_async("endless")
        with pytest.raises(ConfigurationError, match="takes no checkpoints"):
            client.rescale(1)
        client.cancel()


def test_command_line(monkeypatch, capsys):
    asked = []

    class Client:
        def __init__(self, *arguments):
            pass

        def rescale(self, parallelism, operators):
            asked.append((parallelism, operators))

        def view(self):
            vertices = (SimpleNamespace(vertex_id="v", parallelism=3, name="Source: numbers -> map"),)
            return SimpleNamespace(job_id="job-7", name="numbers", vertices=vertices)

    class Connection:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    view = SimpleNamespace(job_id="job-7", name="numbers", state=JobStatus.RUNNING)
    monkeypatch.setattr("headrace.actors.connecting.all_jobs", lambda _address: [("c", view)])
    monkeypatch.setattr("headrace.actors.connecting.cluster_named", lambda _address, _name: Connection())
    monkeypatch.setattr("headrace.jobs.client.JobClient", Client)
    assert cli.main(["rescale", "job", "--parallelism", "3", "--operator", "sum=2", "--operator", "a=b=4"]) == 0
    assert asked == [(3, {"sum": 2, "a=b": 4})]
    assert "Source: numbers -> map" in capsys.readouterr().out
    assert cli.main(["rescale", "job", "--parallelism", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parallelism"] == {"v": 3}
    assert cli.main(["rescale", "job"]) == 2
    with pytest.raises(SystemExit):
        cli.main(["rescale", "job", "--operator", "sum"])
