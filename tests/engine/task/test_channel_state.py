"""Channel state: what is written is read again, and at any parallelism each record in flight has exactly one heir.

Families: round trip; property over parallelisms (against the partitioner that would send the record today); refusals.
"""

from __future__ import annotations

import pickle
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.checkpoint.io import RestorePoint
from headrace.engine.checkpoint.restore_check import check_restore
from headrace.engine.columns.records import Batch
from headrace.engine.errors import CheckpointCorruptError, CheckpointMismatchError
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.operator import Operator
from headrace.engine.graph.job_graph import ChainedOperator, JobEdge, JobGraph, JobVertex, exchange_uid
from headrace.engine.kernel.config import JobSettings
from headrace.engine.kernel.machine import Address
from headrace.engine.kernel.metrics import MetricGroup
from headrace.engine.operators.exchange import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    HashPartitioner,
    Partitioner,
    RebalancePartitioner,
)
from headrace.engine.protocol.task_messages import TaskDeployment
from headrace.engine.task.chain import ChainLink
from headrace.engine.task.channel_state import INPUT, OUTPUT, ChannelFiles, Logged, Replay, channel_part
from headrace.state.checkpoints.manifest import Manifest, OperatorState
from headrace.state.checkpoints.snapshot import OperatorSnapshot, RestoredPart, SnapshotPart, StateFile
from headrace.state.identifiers import ExecutionAttemptId, JobId, OperatorId, VertexId

HERE = Address("host", "slot")
UID = exchange_uid("a", None, "b", 0)
MAX = 128


class Keep(Operator):
    """Keeps what it takes."""

    takes_changes = True

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def process_batch(self, batch: Batch, input_index: int) -> None:
        self.batches.append(batch)


def graph_of(partitioner: Partitioner, parallelism: int) -> JobGraph:
    vertices = {
        VertexId(uid): JobVertex(VertexId(uid), uid, (ChainedOperator(OperatorId(uid), uid, Keep()),), n, MAX)
        for uid, n in (("a", 2), ("b", parallelism))
    }
    edge = JobEdge(0, VertexId("a"), 0, None, VertexId("b"), 0, partitioner, MAX, uid=UID)
    return JobGraph("job", vertices, (edge,))


def replayed(
    graph: JobGraph, vertex: str, subtask: int, parts: list[tuple[SnapshotPart, int]]
) -> tuple[Replay, list[Batch]]:
    """What one new subtask is given by the JobManager, reads, and processes."""
    found = graph.vertices[VertexId(vertex)]
    manifest = manifest_of(parts)
    of_path = {f"{i}": part for i, (part, _) in enumerate(parts)}
    mine = ChannelFiles(manifest, graph).of(found.vertex_id, subtask)
    restored = [
        RestoredPart(c.file.state, c.file.kind, c.file.metadata, of_path[c.file.path].write(), c.subtask) for c in mine
    ]
    edges = tuple(edge for edge in graph.edges if edge.target == vertex)
    attempt = ExecutionAttemptId(1, 0, found.vertex_id, subtask)
    deployment = TaskDeployment(JobId("job"), "job", attempt, b"", edges, (), (), (), JobSettings(), HERE, HERE, None)
    operators = [Keep() for _ in found.chain]
    links = [
        ChainLink(node.uid, node.name, operator, subtask, found.parallelism, MetricGroup())
        for node, operator in zip(found.chain, operators, strict=True)
    ]
    replay = Replay(deployment, found, links)
    replay.restore({OperatorId("b"): restored})
    while replay:
        replay.process_next()
    return replay, operators[-1].batches


def manifest_of(parts: list[tuple[SnapshotPart, int]]) -> Manifest:
    by_operator: dict[str, dict[int, list[StateFile]]] = {}
    for i, (part, subtask) in enumerate(parts):
        file = StateFile(f"{i}", 1, "0" * 64, part.state, part.kind, part.metadata)
        uid = "b" if part.metadata["side"] == INPUT else "a"
        by_operator.setdefault(uid, {}).setdefault(subtask, []).append(file)
    states = tuple(
        OperatorState(
            OperatorId(uid),
            uid,
            9,
            MAX,
            tuple(OperatorSnapshot(OperatorId(uid), subtask, tuple(files)) for subtask, files in subtasks.items()),
        )
        for uid, subtasks in by_operator.items()
    )
    return Manifest("job", "job", 7, 1, 0, states)


def in_flight(old: int, make_batch, partitioner: Partitioner, most: int = MAX) -> list[tuple[SnapshotPart, int]]:
    """Of two producers, each with some records on the way to each old consumer, a part here and a part there."""
    parts: list[tuple[SnapshotPart, int]] = []
    inputs: dict[int, list[Logged]] = {}
    for producer in range(2):
        outputs = []
        bound = partitioner.bind(old, producer, most)
        for place in range(3):
            rows = [producer * 1_000 + place * 100 + i for i in range(10)]
            for consumer, piece in bound.partition(make_batch(rows)):
                logged = Logged.of(piece, consumer)
                if place < 2:
                    inputs.setdefault(consumer, []).append(logged)
                else:
                    outputs.append(logged)
        parts.append((channel_part(UID, OUTPUT, outputs, OperatorId("b"), 0, (old, most)), producer))
    for consumer, entries in inputs.items():
        parts.append((channel_part(UID, INPUT, entries, OperatorId("b"), 0, (old, most)), consumer))
    return parts


def rows(values: list[int]) -> Batch:
    return Batch.of_rows(list(values), np.array(values, dtype=np.int64))


def columns(values: list[int]) -> Batch:
    schema = pa.schema([pa.field("value", pa.int64())], metadata={b"headrace.row": b"value"})
    return Batch.of_columns(pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=schema))


def changes(values: list[int]) -> Batch:
    return rows(values).with_row_kinds(np.array(values, dtype=np.int64).astype(np.int8) % 4)


SENT = [producer * 1_000 + place * 100 + i for producer in range(2) for place in range(3) for i in range(10)]
BY_KEY = HashPartitioner(KeySelector.of_function(lambda n: n % 7))
BY_FUNCTION = CustomPartitioner(lambda key, n: key % n, KeySelector.of_function(lambda n: n % 7))


@settings(deadline=None)
@given(
    old=st.integers(1, 5),
    new=st.integers(1, 5),
    make_batch=st.sampled_from([rows, columns, changes]),
    partitioner=st.sampled_from([BY_KEY, BY_FUNCTION, GlobalPartitioner(), RebalancePartitioner()]),
)
def test_each_record_has_one_heir_and_keeps_its_order(old, new, make_batch, partitioner) -> None:
    parts = in_flight(old, make_batch, partitioner)
    graph = graph_of(partitioner, new)
    got = []
    for subtask in range(new):
        _, batches = replayed(graph, "b", subtask, parts)
        own = [row for batch in batches for row in batch.rows]
        got.extend(own)
        for producer in range(2):
            of_producer = [row for row in own if row // 1_000 == producer]
            if not isinstance(partitioner, RebalancePartitioner):
                by_key = [[row for row in of_producer if row % 7 == key] for key in range(7)]
                assert all(one == sorted(one) for one in by_key), "a key's records are out of order"
        if partitioner is BY_KEY:
            bound = partitioner.bind(new, 0, MAX)
            assert all(target == subtask for target, piece in bound.partition(make_batch(own or [0])) if own)
        for batch in batches:
            assert (batch.timestamps is None) == (make_batch is columns)
            assert batch.timestamps is None or batch.timestamps.tolist() == batch.rows
            assert (batch.row_kinds is not None) == (make_batch is changes)
            assert batch.row_kinds is None or batch.row_kinds.tolist() == changes(batch.rows).row_kinds.tolist()
    assert sorted(got) == SENT


@pytest.mark.parametrize("new", [2, 3])
def test_records_go_to_the_owner_of_their_key_if_the_number_of_key_groups_has_changed(new) -> None:
    """It may, while there is no keyed state: but what is in flight is dealt out by it."""
    graph = graph_of(BY_KEY, new)
    parts = in_flight(2, rows, BY_KEY, most=7)
    got = []
    for subtask in range(new):
        own = [row for batch in replayed(graph, "b", subtask, parts)[1] for row in batch.rows]
        assert [target for target, _ in BY_KEY.bind(new, 0, MAX).partition(rows(own))] == [subtask] * bool(own)
        got += own
    assert sorted(got) == SENT


def test_copies_of_a_broadcast_in_flight_are_restored_at_the_same_parallelism_only() -> None:
    """Checkpoints of earlier versions have them. Each subtask had applied others of them when it was taken."""
    partitioner = BroadcastPartitioner()
    for num_subtasks in (1, 2, 3):
        parts = in_flight(num_subtasks, rows, partitioner)
        for subtask in range(num_subtasks):
            _, batches = replayed(graph_of(partitioner, num_subtasks), "b", subtask, parts)
            assert sorted(row for batch in batches for row in batch.rows) == SENT
    for old, new in ((2, 3), (3, 2), (1, 3)):
        parts = in_flight(old, rows, partitioner)
        with pytest.raises(
            CheckpointMismatchError, match=f"to {old} subtasks .*cannot be restored at parallelism {new}"
        ):
            replayed(graph_of(partitioner, new), "b", 0, parts)


def test_an_exchange_that_is_chained_now_feeds_the_middle_of_the_chain() -> None:
    chain = (
        ChainedOperator(OperatorId("a"), "a", Keep()),
        ChainedOperator(OperatorId("b"), "b", Keep(), parent=0),
    )
    vertex = JobVertex(VertexId("a"), "a -> b", chain, 2, MAX)
    graph = JobGraph("job", {vertex.vertex_id: vertex}, ())
    parts = in_flight(3, rows, RebalancePartitioner())
    got = [row for subtask in range(2) for batch in replayed(graph, "a", subtask, parts)[1] for row in batch.rows]
    assert sorted(got) == SENT


def test_records_in_flight_without_an_exchange_refuse_the_restore_but_not_those_of_a_dropped_operator() -> None:
    parts = in_flight(2, rows, ForwardPartitioner())
    graph = graph_of(ForwardPartitioner(), 2)
    with pytest.raises(CheckpointMismatchError, match="records in flight to operator 'b'"):
        ChannelFiles(manifest_of(parts), JobGraph("job", graph.vertices, ()))
    point = RestorePoint(manifest_of(parts), "", is_requested=True)
    assert check_restore(point, graph, backend="heap").is_restorable
    report = check_restore(point, JobGraph("job", graph.vertices, ()), backend="heap")
    assert any("records in flight to operator 'b'" in problem for problem in report.problems)
    alone = {VertexId("a"): graph.vertices[VertexId("a")]}
    assert ChannelFiles(manifest_of(parts), JobGraph("job", alone, ())).of(VertexId("a"), 0) == ()


def test_a_damaged_file_is_told() -> None:
    [(part, _), *_] = in_flight(1, rows, RebalancePartitioner())
    graph = graph_of(RebalancePartitioner(), 1)
    broken = SnapshotPart(part.state, part.kind, part.metadata, lambda: part.write()[:-40])
    with pytest.raises(CheckpointCorruptError, match="records in flight cannot be decoded"):
        replayed(graph, "b", 0, [(broken, 0)])


def written(*batches: Batch) -> SnapshotPart:
    return channel_part(UID, INPUT, [Logged.of(batch, 0) for batch in batches], OperatorId("b"), 0, (1, MAX))


def test_changes_and_records_that_are_inserted_may_be_in_flight_together() -> None:
    part = written(changes([1, 2]), columns([3]))
    _, [first, second] = replayed(graph_of(RebalancePartitioner(), 1), "b", 0, [(part, 0)])
    assert first.row_kinds.tolist() == [1, 2]
    assert second.row_kinds is None
    assert pa.ipc.open_file(written(columns([3])).write()).schema.names[-1] == "records", "as without changes"


@pytest.mark.parametrize(("kinds", "says"), [([1], "1 kinds of changes of 2 records"), ([1, 9], "0 to 3; got 1 to 9")])
def test_kinds_of_changes_that_cannot_be_are_told(kinds, says) -> None:
    part = written(rows([1, 2]).with_row_kinds(np.array(kinds, np.int8)))
    with pytest.raises(CheckpointCorruptError, match=says):
        replayed(graph_of(RebalancePartitioner(), 1), "b", 0, [(part, 0)])


def test_rows_are_as_they_were_when_they_were_logged() -> None:
    row = {"n": 1}
    logged = Logged.of(Batch.of_rows([row]), 0)
    row["n"] = 2
    part = channel_part(UID, INPUT, [logged], OperatorId("b"), 0, (1, MAX))
    _, [batch] = replayed(graph_of(RebalancePartitioner(), 1), "b", 0, [(part, 0)])
    assert batch.rows == [{"n": 1}]


class Place(NamedTuple):
    """A record whose columns know only its fields."""

    name: str
    code: int


def test_objects_of_a_declared_type_stay_objects_and_keep_the_type() -> None:
    schema = pa.schema([("f0", pa.string()), ("f1", pa.int16())], {"headrace.row": "tuple"})
    batch = Batch.of_rows([Place("Ulm", 1), Place("Bonn", 2)])
    batch.columns_as(schema)
    for log in (batch, batch.slice(0, 2), pickle.loads(pickle.dumps(batch))):
        part = channel_part(UID, INPUT, [Logged.of(log, 0)], OperatorId("b"), 0, (1, MAX))
        _, [again] = replayed(graph_of(RebalancePartitioner(), 1), "b", 0, [(part, 0)])
        assert again.rows == batch.rows
        assert [type(row) for row in again.rows] == [Place, Place]
        assert again.columns.equals(batch.columns)
        assert pickle.loads(pickle.dumps(again)).columns.schema.equals(schema, check_metadata=True)
