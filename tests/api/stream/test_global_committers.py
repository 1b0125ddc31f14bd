"""Sinks with one committer for all subtasks, through the public interface on the local system.

Families: crash (failures of tasks before, in and behind a commit), property (stops, savepoints and rescales between two
parallelisms, on both backends, give each row once), refusals. Kills are in ``tests/simulation/test_tables.py``, and of
processes in ``tests/test_sinks_on_ray.py``.
"""

from __future__ import annotations

import pytest
from operator_harness import OperatorHarness
from versioned_table import VersionedTable, rows_of, versions_of

from headrace import (
    CommitRetry,
    JobFailedError,
    RestartStrategies,
    RuntimeExecutionMode,
    SinkWriter,
    StreamExecutionEnvironment,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.connectors.global_commits import EmittingWriterOperator, GlobalCommitterOperator
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, ProgramError
from headrace.state.keyed.contract import RestoredPart

COUNT = 1_500


def environment(tmp_path, parallelism=3, backend="heap"):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism, max_batch_rows=10)
    env.set_state_backend(backend)
    return env.enable_checkpointing(30, directory=tmp_path / "checkpoints")


def numbers(env, rate=None):
    source = GeneratorSource(lambda n: n, count=COUNT, records_per_second=rate)
    return env.from_source(source, None, "numbers").uid("numbers").rebalance()


@pytest.mark.parametrize("dies", [(), ("before", "middle", "after"), ("prepared", "middle")])
def test_every_row_is_in_one_version(tmp_path, dies):
    env = environment(tmp_path)
    numbers(env, rate=3_000).sink_to(VersionedTable(tmp_path / "table", dies)).name("table")
    env.execute()
    assert rows_of(tmp_path / "table") == list(range(COUNT))
    assert len(versions_of(tmp_path / "table")) > 1


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.sampled(4)
def test_a_savepoint_goes_on_at_another_parallelism(tmp_path, before, after, backend):
    def started(parallelism, rate, **options):
        env = environment(tmp_path, parallelism, backend)
        counted = numbers(env, rate).key_by(lambda n: n % 7).reduce(lambda _, n: n).uid("reduced")
        counted.sink_to(VersionedTable(tmp_path / "table")).uid("table")
        return env.execute_async("job", **options)

    first = started(before, 200)
    for view in first.views():
        if view.checkpoints_completed > 2:
            break
    path = first.stop_with_savepoint(tmp_path / "savepoints")
    assert 0 < len(rows_of(tmp_path / "table")) < COUNT
    started(after, None, from_checkpoint=path).result()
    assert rows_of(tmp_path / "table") == list(range(COUNT))


@pytest.mark.campaign
def test_a_running_job_is_rescaled(tmp_path):
    env = environment(tmp_path, 2)
    numbers(env, rate=400).sink_to(VersionedTable(tmp_path / "table")).name("table")
    client = env.execute_async("job")
    for view in client.views():
        if view.checkpoints_completed > 1:
            break
    client.rescale(3)
    client.result()
    assert rows_of(tmp_path / "table") == list(range(COUNT))


@pytest.mark.parametrize("is_batch", [True, False])
def test_without_checkpoints_there_is_one_version_at_the_end(tmp_path, is_batch):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=3)
    if is_batch:
        env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    numbers(env).sink_to(VersionedTable(tmp_path / "table"))
    env.execute()
    [rows] = versions_of(tmp_path / "table")
    assert sorted(rows) == list(range(COUNT))


def test_committables_go_through_the_sinks_own_streams(tmp_path):
    class Merging(VersionedTable):
        def add_pre_write_topology(self, stream):
            return stream.map(lambda n: n + 1)

        def add_pre_commit_topology(self, committables):
            return committables.key_by(lambda name: name[-1]).map(lambda name: name)

    env = environment(tmp_path)
    env.get_checkpoint_config().enable_unaligned_checkpoints()
    numbers(env).sink_to(Merging(tmp_path / "table")).name("table").uid("table")
    names = {node.name: node for node in env.get_stream_graph().nodes.values()}
    assert names["table: Writer"].uid == "table"
    assert names["Sink: table: Global Committer"].uid == "table: Global Committer"
    assert names["Sink: table: Global Committer"].parallelism == 1
    assert names["table: Writer"].parallelism == 3
    way = [edge for edge in env.get_stream_graph().edges if edge.source >= names["table: Writer"].node_id]
    assert len(way) == 2
    assert all(edge.is_aligned for edge in way)
    assert all(edge.keeps_order for edge in env.get_job_graph().edges[-2:])
    env.execute()
    assert rows_of(tmp_path / "table") == list(range(1, COUNT + 1))


def test_a_sink_that_contradicts_itself_is_refused(tmp_path):
    class Both(VersionedTable):
        def create_committer(self):
            """Nobody asks."""

    class Plain:
        def create_writer(self):
            return SinkWriter()

        def add_pre_commit_topology(self, committables):
            return committables

    class Elsewhere(VersionedTable):
        def add_pre_commit_topology(self, _committables):
            return stream

    class Nothing(VersionedTable):
        def add_pre_commit_topology(self, _committables):
            return None

    env = environment(tmp_path)
    stream = numbers(env)
    for sink, sentence in (
        (Both(tmp_path), "a create_committer and a create_global_committer"),
        (Plain(), "no create_global_committer"),
        (Nothing(tmp_path), "must give a stream"),
    ):
        with pytest.raises(ProgramError, match=sentence):
            stream.sink_to(sink)
    stream.sink_to(Elsewhere(tmp_path))
    with pytest.raises(ProgramError, match="no writer of its sink has prepared"):
        env.get_stream_graph()


def test_the_committer_cannot_be_split(tmp_path):
    env = environment(tmp_path)
    numbers(env, rate=1_000).sink_to(VersionedTable(tmp_path / "table")).name("table")
    client = env.execute_async("job")
    for view in client.views():
        if view.checkpoints_completed:
            break
    with pytest.raises(ConfigurationError):
        client.rescale(operators={"table: Global Committer": 2})
    client.cancel()


def test_a_failing_commit_names_its_place(tmp_path):
    class Failing(VersionedTable):
        def create_global_committer(self):
            committer = super().create_global_committer()
            committer.commit = failing
            committer.retry = CommitRetry(max_attempts=1)
            return committer

    def failing(_committable):
        message = "no such catalog"
        raise ValueError(message)

    env = environment(tmp_path)
    env.set_restart_strategy(RestartStrategies.no_restart())
    numbers(env).sink_to(Failing(tmp_path / "table")).name("table")
    with pytest.raises(JobFailedError, match="no such catalog") as caught:
        env.execute()
    assert "Global Committer" in str(caught.value)


@pytest.mark.parametrize(
    "element",
    [
        "text",
        (1, {"owner": "../../x", "attempt": "1.0", "committables": ["a"]}),
        (1, {"owner": "0123456789ab", "attempt": "../x", "committables": ["a"]}),
        (1, {"owner": "0123456789ab", "attempt": "1.0", "committables": []}),
        (1, {"owner": "0123456789ab", "attempt": "1.0"}),
        (float("inf"), {"owner": "0123456789ab", "attempt": "1.0", "committables": ["a"]}),
        (-5, {"owner": "0123456789ab", "attempt": "1.0", "committables": ["a"]}),
        (True, {"owner": "0123456789ab", "attempt": "1.0", "committables": ["a"]}),
        (1, {"owner": "0123456789ab", "attempt": "\u0663.0", "committables": ["a"]}),
        (1, "committable of a sink whose subtasks commit"),
    ],
)
def test_nothing_in_a_checkpoint_is_believed(tmp_path, element):
    harness = OperatorHarness(GlobalCommitterOperator(VersionedTable(tmp_path)))
    harness.operator_state.list_state("committables").update([element])
    parts = [RestoredPart(p.state, p.kind, p.metadata, p.write(), 0) for p in harness.operator_state.snapshot()]
    with pytest.raises(CheckpointMismatchError, match="cannot be read"):
        OperatorHarness(GlobalCommitterOperator(VersionedTable(tmp_path)), restored=parts)
    with pytest.raises(CheckpointMismatchError, match="subtasks were to commit"):
        OperatorHarness(EmittingWriterOperator(VersionedTable(tmp_path)), restored=parts)
