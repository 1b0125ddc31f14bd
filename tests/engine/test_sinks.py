"""Family: crash. A transactional store stands for any sink: at every protocol point the operator dies and is
restored."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.errors import InternalError, SinkError
from headrace.engine.metrics import MetricGroup
from headrace.engine.operators import OperatorContext
from headrace.engine.records import Batch
from headrace.engine.sinks import NO_CHECKPOINT, SinkOperator
from headrace.state.backend import RestoredPart
from headrace.state.heap import HeapOperatorStateBackend


class CrashError(Exception):
    pass


@dataclass
class Store:
    """Transactions by name, prepared and committed; committing an unknown one is loss."""

    prepared: dict[str, list[int]] = field(default_factory=dict)
    committed: dict[str, list[int]] = field(default_factory=dict)
    notifications: int = 0
    numbers: itertools.count = field(default_factory=itertools.count)

    def create_writer(self):
        return StoreWriter(self)

    @property
    def rows(self):
        return [row for rows in self.committed.values() for row in rows]


class StoreWriter:
    def __init__(self, store):
        self.store = store
        self.rows = []
        self.restored = None
        self.is_closed = False

    def open(self, context, restored):
        self.context = context
        self.restored = restored

    def write(self, batch):
        self.rows.extend(batch.rows)

    def prepare(self, checkpoint_id):
        names = []
        for row in self.rows:  # one transaction per record, so that commits can be cut in two
            name = f"{self.context.attempt}-{checkpoint_id}-{next(self.store.numbers)}"
            self.store.prepared[name] = [row]
            names.append({"name": name})
        self.rows = []
        return names

    def commit(self, committables):
        self.store.notifications += 1
        for committable in committables:
            name = committable["name"]
            if name in self.store.committed:
                continue
            if name not in self.store.prepared:
                message = "possible loss"
                raise SinkError(message)
            self.store.committed[name] = self.store.prepared.pop(name)

    def close(self):
        self.is_closed = True


class Job:
    def __init__(self, store=None, checkpointing=True):
        self.store = store or Store()
        self.checkpointing = checkpointing
        self.attempt = 0
        self.snapshots = {0: ()}
        self.complete = 0
        self.probe = lambda point: None
        self.points = []

    def start(self):
        self.attempt += 1
        self.state = HeapOperatorStateBackend("sink")
        self.state.restore(self.snapshots[self.complete], 0, 1)
        self.operator = SinkOperator(self.store)
        self.operator.open(
            OperatorContext(
                operator="sink",
                name="sink",
                subtask=0,
                parallelism=1,
                max_parallelism=128,
                attempt=str(self.attempt),
                job="job",
                output=None,
                keyed_state=None,
                operator_state=self.state,
                metrics=MetricGroup(),
                now_ms=lambda: 0,
                probe=self.meet,
                checkpointing=self.checkpointing,
            )
        )

    def meet(self, point):
        self.points.append(point)
        self.probe(point)

    def write(self, *rows):
        self.operator.process_batch(Batch.of_rows(list(rows)), 0)

    def snapshot(self, checkpoint_id):
        self.operator.snapshot_state(checkpoint_id)
        self.snapshots[checkpoint_id] = [
            RestoredPart(p.state, p.kind, p.metadata, p.write(), 0) for p in self.state.snapshot()
        ]

    def completed(self, checkpoint_id, notify=True):
        self.complete = checkpoint_id
        if notify:
            self.operator.notify_checkpoint_complete(checkpoint_id)


def test_rows_are_committed_with_their_checkpoint_and_not_before():
    job = Job()
    job.start()
    job.write(1, 2)
    job.snapshot(1)
    job.write(3)
    job.snapshot(2)
    assert job.store.rows == []
    job.completed(1)
    assert job.store.rows == [1, 2]
    job.completed(2)
    assert job.store.rows == [1, 2, 3]


def test_a_later_checkpoint_commits_what_earlier_ones_left():
    job = Job()
    job.start()
    job.write(1)
    job.snapshot(1)
    job.operator.notify_checkpoint_aborted(1)
    job.write(2)
    job.snapshot(2)
    job.completed(2)
    assert job.store.rows == [1, 2]


def test_notifications_may_be_doubled_and_late():
    job = Job()
    job.start()
    job.write(1)
    job.snapshot(1)
    job.write(2)
    job.snapshot(2)
    for checkpoint_id in (2, 1, 2):
        job.completed(checkpoint_id)
    assert job.store.rows == [1, 2]


def test_a_writer_hears_of_complete_checkpoints_that_hold_nothing_of_it():
    job = Job()
    job.start()
    job.operator.notify_checkpoint_complete(1)
    assert job.store.notifications == 0, "a checkpoint of an earlier attempt"
    job.snapshot(2)
    job.completed(2)
    assert job.store.notifications == 1


def test_restored_committables_are_committed_at_once_and_again():
    job = Job()
    job.start()
    job.write(1)
    job.snapshot(1)
    job.completed(1, notify=False)
    for _ in range(3):
        job.start()
        assert job.store.rows == [1]
        assert [c["name"] for c in job.operator._writer.restored] == ["1-1-0"]
    job.snapshot(2)
    job.completed(2)
    job.start()
    assert job.operator._writer.restored == []


def test_lost_output_fails_the_restore():
    job = Job()
    job.start()
    job.write(1)
    job.snapshot(1)
    job.completed(1, notify=False)
    job.store.prepared.clear()
    with pytest.raises(SinkError, match="possible loss"):
        job.start()
    job.operator.close()


def test_without_checkpoints_the_end_of_the_job_commits():
    job = Job(checkpointing=False)
    job.start()
    job.write(1, 2)
    job.operator.finish()
    assert job.store.rows == []
    job.operator.finish_job()
    assert job.store.rows == [1, 2]
    assert all(f"-{NO_CHECKPOINT}-" in name for name in job.store.committed)


def test_with_checkpoints_nothing_may_be_left_at_the_end():
    job = Job()
    job.start()
    job.write(1)
    job.snapshot(1)
    with pytest.raises(InternalError, match=r"uncommitted.*\[1\]"):
        job.operator.finish_job()
    job.completed(1)
    job.operator.finish_job()


def test_probe_points_are_met_in_order():
    job = Job()
    job.start()
    job.write(1, 2)
    job.snapshot(1)
    job.completed(1)
    assert job.points == ["sink.prepare", "sink.commit.before", "sink.commit.0", "sink.commit.1", "sink.commit.after"]


def test_closing_before_opening_is_harmless():
    SinkOperator(Store()).close()


def run(job, crash_at):
    """Twelve rows in four checkpoints, the second aborted, the third's notification lost; crashes when ``crash_at``
    points were met."""
    met = 0

    def probe(point):
        nonlocal met
        met += 1
        if met in crash_at:
            raise CrashError(point)

    job.probe = probe
    positions = {0: 0}
    checkpoint_id = 0
    while True:
        try:
            job.start()
            position = positions[job.complete]
            while position < 12:
                job.write(*range(position, position + 3))
                position += 3
                checkpoint_id += 1
                positions[checkpoint_id] = position
                job.snapshot(checkpoint_id)
                if checkpoint_id == 2:
                    job.operator.notify_checkpoint_aborted(2)
                else:
                    job.completed(checkpoint_id, notify=checkpoint_id != 3)
            checkpoint_id += 1
            positions[checkpoint_id] = position
            job.snapshot(checkpoint_id)
            job.completed(checkpoint_id)
            job.operator.finish_job()
            return met
        except CrashError:
            assert set(job.store.rows) <= set(range(positions[job.complete]))
            assert len(set(job.store.rows)) == len(job.store.rows)


def test_a_crash_at_any_point_neither_loses_nor_doubles():
    for crash in range(1, run(Job(), ()) + 1):
        job = Job()
        run(job, (crash,))
        assert sorted(job.store.rows) == list(range(12)), f"crash at point {crash}"


@given(st.lists(st.integers(1, 15), max_size=10))
@settings(max_examples=200, deadline=None)
def test_crashes_at_many_points_neither_lose_nor_double(gaps):
    job = Job()
    run(job, set(itertools.accumulate(gaps)))
    assert sorted(job.store.rows) == list(range(12))
