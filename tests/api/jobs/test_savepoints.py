"""Savepoints through the public interface: taken, stopped with, restored by another program, claimed, disposed of.

Families: property (a job and a run from its savepoint give the records of one run, on both backends and at another
parallelism), behaviour of each refusal, and the command line. Faults are in ``tests/simulation/test_savepoints.py``
and, on Ray, in ``tests/test_savepoints_on_ray.py``.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from campaigns import campaign

from headrace import (
    CheckpointMismatchError,
    CheckpointNotFoundError,
    ConfigurationError,
    JobError,
    JobFailedError,
    KeyedProcessFunction,
    RestoreMode,
    RestoreVerdict,
    RocksDBStateBackend,
    SavepointError,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    cli,
    dispose_savepoint,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink
from headrace.state.checkpoints.storage import CheckpointStorage

COUNT = 2_000
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


@pytest.fixture(params=["heap", "rocksdb"])
def env(request, tmp_path):
    made = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2, metrics_interval_ms=20)
    backend = "heap" if request.param == "heap" else RocksDBStateBackend(16 << 20, str(tmp_path / "local"))
    made.set_state_backend(backend)
    made.enable_checkpointing(30, directory=tmp_path / "ckpt")
    made.set_default_savepoint_directory(tmp_path / "savepoints")
    yield made
    made.close()


@pytest.fixture
def heap_env(tmp_path):
    made = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2, metrics_interval_ms=20)
    made.enable_checkpointing(30, directory=tmp_path / "ckpt")
    made.set_default_savepoint_directory(tmp_path / "savepoints")
    yield made
    made.close()


def lines_in(folder):
    return [json.loads(line) for file in sorted(Path(folder).glob("part-*")) for line in file.read_text().splitlines()]


def wait_for_records(client, most):
    for view in client.views():
        if view.vertices and view.vertices[0].records_in >= most:
            return
    message = "the job ended before"
    raise AssertionError(message)


class RunningCount(KeyedProcessFunction):
    """Gives each key's records their number."""

    def open(self, context):
        self._count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value, context):
        self._count.update(self._count.value() + 1)
        yield [context.get_current_key(), self._count.value()]


def numbers(env, rate, count=COUNT):
    source = GeneratorSource(lambda n: n, count=count, records_per_second=rate, number_of_splits=2)
    strategy = MONOTONOUS.with_timestamp_assigner(lambda n, _: n)
    return env.from_source(source, strategy, "numbers").uid("numbers")


def counted(env, path, rate, count=COUNT):
    stream = numbers(env, rate, count).key_by(lambda n: n % 7).process(RunningCount()).uid("count")
    stream.sink_to(FileSink.json_lines(path)).uid("out")


def expected_counts(count=COUNT):
    return sorted([key, n + 1] for key in range(7) for n in range(len(range(key, count, 7))))


def savepoints_in(tmp_path):
    folder = tmp_path / "savepoints"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


# ---------------------------------------------------------------------------------------------------------- taking them
@pytest.mark.sampled(9)
def test_a_running_job_gives_savepoints_and_goes_on(env, tmp_path):
    counted(env, tmp_path / "out", 700)
    client = env.execute_async("counts")
    paths = [client.trigger_savepoint(), client.trigger_savepoint(tmp_path / "others")]
    client.result()
    assert sorted(lines_in(tmp_path / "out")) == expected_counts()
    assert [Path(path).parent.name for path in paths] == ["savepoints", "others"]
    for path in paths:
        storage, manifest = CheckpointStorage.from_manifest(path)
        storage.verify(manifest)
        assert manifest.kind == "savepoint"
        dispose_savepoint(path)
    assert savepoints_in(tmp_path) == []


@pytest.mark.parametrize(("checkpoints", "parallelism"), [(True, 3), (False, 1), campaign(True, 1), campaign(False, 3)])
@pytest.mark.sampled(4)
def test_a_job_stopped_with_a_savepoint_goes_on_wherever_that_is_moved(tmp_path, env, checkpoints, parallelism):
    if not checkpoints:
        env.close()
        env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2, metrics_interval_ms=20)
    with env:
        counted(env, tmp_path / "out", 400)
        client = env.execute_async("first")
        wait_for_records(client, 300)
        path = client.stop_with_savepoint(tmp_path / "savepoints")
        assert client.get_job_status() == "FINISHED"
        before = len(lines_in(tmp_path / "out"))
        assert 0 < before < COUNT
        moved = shutil.move(path, tmp_path / "moved")
        env.set_parallelism(parallelism)
        if not checkpoints:
            env.set_state_backend("heap")
        counted(env, tmp_path / "out", None)
        env.execute("second", from_savepoint=moved)
    assert sorted(lines_in(tmp_path / "out")) == expected_counts()


def windowed(env, path, rate):
    stream = numbers(env, rate).map(lambda n: (n % 3, n - n % 50, 1)).key_by(lambda row: row[0])
    summed = (
        stream.window(TumblingEventTimeWindows.of(50)).reduce(lambda a, b: (a[0], a[1], a[2] + b[2])).uid("windows")
    )
    summed.sink_to(FileSink.json_lines(path)).uid("out")


def test_windows_that_were_open_are_in_it(env, tmp_path):
    windowed(env, tmp_path / "out", 400)
    client = env.execute_async("first")
    wait_for_records(client, 300)
    path = client.stop_with_savepoint()
    assert all(n in (16, 17) for _, _, n in lines_in(tmp_path / "out")), "no window was closed before its time"
    windowed(env, tmp_path / "out", None)
    env.execute("second", from_savepoint=path)
    expected = Counter((n % 3, n - n % 50) for n in range(COUNT))
    assert sorted(lines_in(tmp_path / "out")) == sorted([key, start, n] for (key, start), n in expected.items())


def test_a_drained_job_fires_its_windows_first(heap_env, tmp_path):
    env = heap_env
    source = GeneratorSource(lambda n: n, records_per_second=1_000, number_of_splits=2)
    strategy = MONOTONOUS.with_timestamp_assigner(lambda n, _: n)
    stream = env.from_source(source, strategy, "endless").map(lambda n: ("all", n)).key_by(lambda row: row[0])
    stream.window(TumblingEventTimeWindows.of("1 h")).reduce(max).sink_to(FileSink.json_lines(tmp_path / "out"))
    client = env.execute_async("drained")
    wait_for_records(client, 100)
    assert CheckpointStorage.from_manifest(client.stop_with_savepoint(drain=True))
    [[key, highest]] = lines_in(tmp_path / "out")
    assert (key, highest > 90) == ("all", True)


def test_a_loop_is_in_it(heap_env, tmp_path):
    def program(rate):
        iteration = numbers(heap_env, rate).map(lambda n: (n, n % 5)).uid("begin").iterate()
        body = iteration.map(lambda row: (row[0], row[1] - 1)).uid("body")
        iteration.close_with(body.filter(lambda row: row[1] > 0).uid("again"))
        done = body.filter(lambda row: row[1] <= 0).uid("done")
        done.map(lambda row: row[0]).uid("number").sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")

    program(200)
    client = heap_env.execute_async("first")
    wait_for_records(client, 100)
    path = client.stop_with_savepoint()
    program(None)
    heap_env.execute("second", from_savepoint=path)
    assert sorted(lines_in(tmp_path / "out")) == list(range(COUNT))


def test_refusals_say_why_and_leave_the_job_alone(heap_env, tmp_path):
    counted(heap_env, tmp_path / "out", 700)
    client = heap_env.execute_async("counts")
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(SavepointError, match="nothing can be written"):
        client.trigger_savepoint(tmp_path / "file")
    with pytest.raises(SavepointError, match="nothing can be written"):
        client.stop_with_savepoint(tmp_path / "file")
    result = client.result()
    assert result.num_restarts == 0
    assert sorted(lines_in(tmp_path / "out")) == expected_counts()
    with pytest.raises((SavepointError, JobError), match="FINISHED"):
        client.trigger_savepoint()
    with pytest.raises((SavepointError, JobError), match="FINISHED"):
        client.stop_with_savepoint()


def test_there_must_be_a_directory(tmp_path):
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
        counted(env, tmp_path / "out", 200)
        client = env.execute_async("counts")
        with pytest.raises(ConfigurationError, match="no directory"):
            client.trigger_savepoint()
        client.cancel()


def test_collected_rows_go_on_behind_a_savepoint(heap_env, tmp_path):
    rows = []
    collected = numbers(heap_env, 150).map(lambda n: n).execute_and_collect("first")
    wait_for_records(collected._client, 100)
    path = collected.stop_with_savepoint()
    rows.extend(collected)
    heap_env.set_restore_path(path)
    rows.extend(numbers(heap_env, None).map(lambda n: n).execute_and_collect("second"))
    assert sorted(rows) == list(range(COUNT))


# ------------------------------------------------------------------------------------------------------------- redeploy
class Doubled(KeyedProcessFunction):
    """What the second version adds: numbers the records of each key it has seen itself."""

    def open(self, context):
        self._seen = context.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(self, value, context):
        self._seen.update(self._seen.value() + 1)
        yield [*value, self._seen.value()]


def version_one(env, tmp_path, rate):
    stream = numbers(env, rate).key_by(lambda n: n % 7).process(RunningCount()).uid("count")
    audited = stream.key_by(lambda row: row[0]).process(Doubled()).uid("audit")
    audited.map(lambda row: row[:2]).sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")


def version_two(env, tmp_path, rate):
    """Without the audit, with an operator in its place that begins now."""
    stream = numbers(env, rate).key_by(lambda n: n % 7).process(RunningCount()).uid("count")
    stream = stream.key_by(lambda row: row[0]).process(Doubled()).uid("since")
    stream.sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")


@pytest.mark.sampled(9)
def test_a_changed_program_goes_on_at_another_parallelism(env, tmp_path):
    version_one(env, tmp_path, 400)
    client = env.execute_async("one")
    wait_for_records(client, 300)
    path = client.stop_with_savepoint()
    before = lines_in(tmp_path / "out")
    env.set_parallelism(3)
    version_two(env, tmp_path, None)
    report = env.check_restore(path)
    assert not report.is_restorable
    assert 'not allowed: "audit"' in report.problems[0]
    verdicts = {operator.uid: operator.verdict for operator in report.operators}
    assert verdicts["numbers"] is verdicts["count"] is RestoreVerdict.RESTORED
    assert verdicts["since"] is RestoreVerdict.STARTS_EMPTY
    assert verdicts["audit"] is RestoreVerdict.LOST
    assert env.check_restore(path, allow_non_restored_state=True).is_restorable
    with pytest.raises(JobFailedError, match="audit"):
        env.execute("refused", from_savepoint=path)
    version_two(env, tmp_path, None)
    env.execute("two", from_savepoint=path, allow_non_restored_state=True)
    rows = lines_in(tmp_path / "out")
    assert sorted(row[:2] for row in rows) == expected_counts()
    done = Counter(key for key, _ in before)
    assert all(row[2] == row[1] - done[row[0]] for row in rows if len(row) == 3), "it began where the other one stopped"


# -------------------------------------------------------------------------------------------------------------- claims
@pytest.mark.parametrize("what", ["savepoint", "checkpoint"])
@pytest.mark.sampled(4)
def test_a_claimed_snapshot_is_gone_when_the_job_has_its_own(env, tmp_path, what):
    counted(env, tmp_path / "out", 400)
    client = env.execute_async("first")
    wait_for_records(client, 200)
    path = client.stop_with_savepoint() if what == "savepoint" else client.stop()
    counted(env, tmp_path / "out", 2_000)
    key = {"from_savepoint": path} if what == "savepoint" else {"from_checkpoint": path}
    client = env.execute_async("second", restore_mode="claim", **key)
    for view in client.views():
        if view.checkpoints_completed > 2:
            break
    client.result()
    with pytest.raises(CheckpointNotFoundError):
        CheckpointStorage.from_manifest(path)
    assert sorted(lines_in(tmp_path / "out")) == expected_counts()


def test_restore_options_are_checked_where_they_are_written(heap_env):
    heap_env.from_collection([1]).map(lambda n: n)
    with pytest.raises(ConfigurationError, match="starts from one snapshot"):
        heap_env.execute(from_savepoint="a", from_checkpoint="b")
    with pytest.raises(ConfigurationError, match="restore mode must be one of no_claim, claim"):
        heap_env.execute(from_savepoint="a", restore_mode="borrow")
    assert RestoreMode("claim") is RestoreMode.CLAIM


# ------------------------------------------------------------------------------------------------------------- dry runs
@pytest.fixture
def snapshot(env, tmp_path):
    """A savepoint of `counted`."""
    counted(env, tmp_path / "out", 400)
    client = env.execute_async("first")
    wait_for_records(client, 200)
    return client.stop_with_savepoint()


class CountsText(RunningCount):
    def open(self, context):
        self._count = context.get_state(ValueStateDescriptor("count", str))


class CountsElsewhere(RunningCount):
    def open(self, context):
        self._count = context.get_state(ValueStateDescriptor("another", int, default=0))


class CannotOpenHere(RunningCount):
    def open(self, context):
        message = "no database here"
        raise OSError(message)


def changed(env, function, **options):
    stream = numbers(env, None).key_by(lambda n: n % 7).process(function).uid("count")
    for name, value in options.items():
        getattr(stream, name)(value)
    stream.map(lambda row: row).uid("after").sink_to(FileSink.json_lines("/nowhere")).uid("out")


def state_verdicts(report, uid):
    [operator] = [operator for operator in report.operators if operator.uid == uid]
    return {state.name: state.verdict for state in operator.states}


def test_a_job_without_checkpoints_needs_its_savepoint_no_more_once_it_runs(tmp_path):
    """The user may delete what the job was started from; its own savepoints go on from there all the same."""
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        counted(env, tmp_path / "first", 100)
        first = env.execute_async("first").stop_with_savepoint(tmp_path / "savepoints")
        counted(env, tmp_path / "second", 100)
        client = env.execute_async("second", from_savepoint=first)
        wait_for_records(client, 5)
        dispose_savepoint(first)
        second = client.stop_with_savepoint(tmp_path / "savepoints", timeout=20)
        counted(env, tmp_path / "third", 100_000)
        env.execute("third", from_savepoint=second)
    counts = [row for run in ("first", "second", "third") for row in lines_in(tmp_path / run)]
    assert sorted(counts) == expected_counts()
    assert CheckpointStorage.from_manifest(second)[1].checkpoint_id == 2


def test_a_dry_run_says_what_fits(env, snapshot):
    changed(env, RunningCount())
    report = env.check_restore(snapshot)
    assert report.is_restorable, report
    assert state_verdicts(report, "count")["count"] is RestoreVerdict.RESTORED
    assert state_verdicts(report, "numbers") == {
        "splits": RestoreVerdict.RESTORED,
        "(splits)": RestoreVerdict.RESTORED,
    }
    assert state_verdicts(report, "after") == {}
    assert "it can be restored" in str(report)
    assert "2 -> 2" in str(report)


def test_a_dry_run_finds_types_that_do_not_fit(env, snapshot):
    changed(env, CountsText())
    report = env.check_restore(snapshot)
    assert state_verdicts(report, "count")["count"] is RestoreVerdict.INCOMPATIBLE
    assert not report.is_restorable
    assert "'count'" in report.problems[0]
    with pytest.raises(JobFailedError, match="count"):
        env.execute("really", from_savepoint=snapshot)


def test_a_dry_run_tells_new_states_and_those_nobody_declares(env, snapshot):
    changed(env, CountsElsewhere())
    verdicts = state_verdicts(env.check_restore(snapshot), "count")
    assert verdicts["another"] is RestoreVerdict.STARTS_EMPTY
    assert verdicts["count"] is RestoreVerdict.KEPT


def test_a_dry_run_finds_another_max_parallelism_and_another_backend(env, snapshot, tmp_path):
    changed(env, RunningCount(), set_max_parallelism=64)
    report = env.check_restore(snapshot)
    assert "max parallelism 128" in report.problems[0]
    has_heap = "rocksdb" not in str(env.get_job_graph().settings.state.backend)
    env.set_state_backend(RocksDBStateBackend(16 << 20, str(tmp_path / "local")) if has_heap else "heap")
    assert any("backend" in problem for problem in env.check_restore(snapshot).problems) or "64" in str(report)


def test_a_dry_run_says_where_it_could_not_look(env, snapshot):
    changed(env, CannotOpenHere())
    report = env.check_restore(snapshot)
    assert report.is_restorable
    assert "no database here" in str(report)
    assert state_verdicts(report, "count")["count"] is RestoreVerdict.KEPT
    assert "not opened" in str(env.check_restore(snapshot, open_functions=False))


def test_a_dry_run_needs_a_snapshot(heap_env, tmp_path):
    heap_env.from_collection([1]).map(lambda n: n)
    with pytest.raises(CheckpointNotFoundError):
        heap_env.check_restore(tmp_path)


# ----------------------------------------------------------------------------------------------------- the command line
PROGRAM = """
import sys
from headrace import StreamExecutionEnvironment
from headrace.connectors.files import FileSink

env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)
stream = env.from_collection(list(range(10))).uid("numbers").key_by(lambda n: n % 2)
stream = stream.reduce(lambda a, b: a + b).uid(sys.argv[2]).sink_to(FileSink.json_lines(sys.argv[1])).uid("out")
env.enable_checkpointing(20, directory=sys.argv[1] + "-ckpt")
env.execute("sums")
env.close()
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    for name in ("RESTORE_FROM", "ALLOW_NON_RESTORED_STATE", "RESTORE_MODE", "DRY_RUN", "PROGRESS"):
        monkeypatch.setenv(f"HEADRACE_{name}", "")  # so that what the command sets is taken back
    monkeypatch.setattr("sys.argv", ["headrace"])
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    file = tmp_path / "sums.py"
    file.write_text(PROGRAM)
    return str(file)


@pytest.fixture
def sums(tmp_path):
    """A savepoint of the program, behind its first records."""
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        source = GeneratorSource(lambda n: n, count=1_000, records_per_second=100)
        stream = env.from_source(source, None, "numbers").uid("numbers").key_by(lambda n: n % 2)
        stream.reduce(lambda a, b: a + b).uid("sums").sink_to(FileSink.json_lines(tmp_path / "first")).uid("out")
        return env.execute_async("sums").stop_with_savepoint(tmp_path / "savepoints")


def test_the_command_line_tries_a_restore_on_paper(program, sums, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert cli.main(["run", "--dry-run", "--from-savepoint", sums, program, out, "sums"]) == 0
    printed = capsys.readouterr().out
    assert "it can be restored" in printed
    assert "sums" in printed
    assert not Path(out).exists()
    assert cli.main(["run", "--dry-run", "--from-savepoint", sums, program, out, "totals"]) in (0, 1)
    assert cli.main(["run", "--dry-run", program, out, "sums"]) == 2


def test_an_empty_savepoint_is_refused_and_not_taken_for_none(program, tmp_path, capsys):
    """``--from-savepoint "$UNSET"`` must not start the job from nothing."""
    assert cli.main(["run", "-q", "--from-savepoint", "", program, str(tmp_path / "out"), "sums"]) == 1
    assert "got an empty string" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_line_starts_a_program_from_a_savepoint(program, sums, tmp_path):
    out = str(tmp_path / "out")
    arguments = ["run", "-q", "--from-savepoint", sums, "--restore-mode", "claim", "--allow-non-restored-state"]
    assert cli.main([*arguments, program, out, "sums"]) == 0
    assert not Path(sums).exists(), "it was claimed, and the job has finished"


@pytest.fixture
def jobs(monkeypatch):
    """One job on a cluster that is not there; gives what is asked of it."""
    from headrace.actors import connecting
    from headrace.jobs import client

    asked = []
    monkeypatch.setattr(
        connecting, "all_jobs", lambda _address: [("mine", SimpleNamespace(job_id="job-17", name="counts"))]
    )

    @contextmanager
    def named(address, name):
        yield (address, name)

    def trigger(self, directory, **_):
        asked.append(("savepoint", self._job_id, directory))
        return "/some/savepoint-1"

    def trigger_checkpoint(self, *, full):
        asked.append(("checkpoint", self._job_id, full))
        return "/some/chk-3"

    def stop(self, directory, *, drain):
        asked.append(("stop", self._job_id, directory, drain))
        return "/some/savepoint-2"

    monkeypatch.setattr(connecting, "cluster_named", named)
    monkeypatch.setattr(client.JobClient, "trigger_savepoint", trigger)
    monkeypatch.setattr(client.JobClient, "trigger_checkpoint", trigger_checkpoint)
    monkeypatch.setattr(client.JobClient, "stop_with_savepoint", stop)
    return asked


def test_the_command_line_takes_checkpoints(jobs, capsys):
    assert cli.main(["checkpoint", "job-1"]) == 0
    assert capsys.readouterr().out == "/some/chk-3\n"
    assert cli.main(["checkpoint", "--full", "--json", "job-1"]) == 0
    assert json.loads(capsys.readouterr().out) == {"jid": "job-17", "location": "/some/chk-3"}
    assert jobs == [("checkpoint", "job-17", False), ("checkpoint", "job-17", True)]
    assert cli.main(["checkpoint", "job-2"]) == 1


def test_the_command_line_takes_savepoints_and_stops_with_them(jobs, capsys):
    assert cli.main(["savepoint", "job-1"]) == 0
    assert capsys.readouterr().out == "/some/savepoint-1\n"
    assert cli.main(["savepoint", "job-1", "/dir"]) == 0
    assert cli.main(["stop", "--savepoint", "/dir", "--drain", "job-1"]) == 0
    assert "/some/savepoint-2" in capsys.readouterr().out
    assert jobs == [("savepoint", "job-17", None), ("savepoint", "job-17", "/dir"), ("stop", "job-17", "/dir", True)]
    assert cli.main(["savepoint", "job-2"]) == 1
    assert cli.main(["savepoint"]) == 2


def test_the_command_line_disposes_of_savepoints_and_of_nothing_else(sums, tmp_path, capsys):
    assert cli.main(["savepoint", "--dispose", sums]) == 0
    assert not Path(sums).exists()
    assert cli.main(["savepoint", "--dispose", sums]) == 1
    assert "there is no complete checkpoint" in capsys.readouterr().err


def test_a_checkpoint_is_not_disposed_of(heap_env, tmp_path):
    counted(heap_env, tmp_path / "out", 400)
    client = heap_env.execute_async("counts")
    wait_for_records(client, 100)
    path = client.stop()
    with pytest.raises(CheckpointMismatchError, match="is not a savepoint"):
        dispose_savepoint(path)


# -------------------------------------------------------------------------------- key groups that nobody has chosen
def counting(env, parallelism, max_parallelism=None):
    class Count(KeyedProcessFunction):
        def open(self, ctx):
            self.count = ctx.get_state(ValueStateDescriptor("n", int, default=0))

        def process_element(self, value, ctx):
            self.count.update(self.count.value() + 1)
            yield value % 10, self.count.value()

    env.set_parallelism(parallelism)
    source = GeneratorSource(lambda n: n, records_per_second=2_000)
    counted = env.from_source(source, None, "numbers").uid("numbers").key_by(lambda n: n % 10).process(Count())
    counted.uid("count")
    if max_parallelism is not None:
        counted.set_max_parallelism(max_parallelism)
    return counted.map(lambda pair: pair).uid("as it is")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("before", "after"), [(2, 100), (100, 2)])
def test_a_program_that_chooses_no_max_parallelism_takes_the_snapshots(tmp_path, before, after):
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.set_default_savepoint_directory(tmp_path)
        counting(env, 2, 256 if before == 100 else None).print()
        client = env.execute_async("before")
        for view in client.views():
            if view.vertices and view.vertices[0].records_in > 20:
                break
        path = client.stop_with_savepoint()
        counting(env, after).print()
        report = env.check_restore(path)
        assert report.is_restorable, report
        env.set_default_savepoint_directory(tmp_path)
        vertices = env._job_graph("after", path).vertices
        assert {vertex.max_parallelism for vertex in vertices.values()} == {256 if before == 100 else 128}
        env._transformations.clear()
        counting(env, 4 if after == 100 else 2).print()  # a hundred threads of control need more time than a test has
        client = env.execute_async("after", from_savepoint=path)
        for view in client.views():
            if view.state == "RUNNING" and view.vertices and view.vertices[0].records_in > 20:
                break
        client.cancel()


@pytest.mark.timeout(20)
def test_more_subtasks_than_the_snapshot_has_key_groups_are_refused_with_what_to_set(tmp_path):
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.set_default_savepoint_directory(tmp_path)
        counting(env, 2).print()
        client = env.execute_async("before")
        for view in client.views():
            if view.vertices and view.vertices[0].records_in > 20:
                break
        path = client.stop_with_savepoint()
        counting(env, 200).print()
        with pytest.raises(ConfigurationError, match=r"has 128 key groups for good: set_parallelism\(128\) at most"):
            env.execute("after", from_savepoint=path)
