"""Family: crash. A transactional store stands for any sink: at every protocol point the operator dies and is
restored. The sink's contract as a whole is checked in ``tests/api/connectors/test_sink_contract.py``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.connectors.commits import MAX_UNCOMMITTED_CHECKPOINTS
from headrace.engine.connectors.contract import CommitRetry, Committer, SinkWriter
from headrace.engine.connectors.sinks import NO_CHECKPOINT, SinkOperator
from headrace.engine.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    InternalError,
    PossibleLossError,
    ProgramError,
    SinkError,
    SinkFencedError,
)
from headrace.engine.kernel.machine import StartTimer
from headrace.engine.task.outbox import OffloadedWork, TaskOutbox
from headrace.testing import SinkTestHarness


class CrashError(BaseException):
    """The process dies here: nothing catches it."""

    strikes_from_outside = True


@dataclass
class Store:
    """Transactions by name, prepared and committed; committing an unknown one is loss."""

    prepared: dict[str, list[int]] = field(default_factory=dict)
    committed: dict[str, list[int]] = field(default_factory=dict)
    numbers: itertools.count = field(default_factory=itertools.count)
    # What committers were called for, in order.
    calls: list[str] = field(default_factory=list)
    # Raised by the next calls, one after another.
    failures: list[Exception] = field(default_factory=list)
    blocks: bool = True

    def create_writer(self):
        return StoreWriter(self)

    def create_committer(self):
        return StoreCommitter(self)

    @property
    def rows(self):
        return [row for rows in self.committed.values() for row in rows]


class StoreWriter(SinkWriter):
    def __init__(self, store):
        self.store = store
        self.rows = []

    def open(self, context):
        self.context = context

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


class StoreCommitter(Committer):
    retry = CommitRetry(max_attempts=4, initial_delay_ms=10, max_delay_ms=25)

    def __init__(self, store):
        self.store = store
        self.blocks = store.blocks

    def called(self, what):
        self.store.calls.append(what)
        if self.store.failures:
            raise self.store.failures.pop(0)

    def open(self, context):
        self.context = context
        self.called("open")

    def commit(self, committable):
        name = committable["name"]
        self.called(f"commit {name}")
        if name in self.store.committed:
            return
        if name not in self.store.prepared:
            message = "possible loss"
            raise PossibleLossError(message)
        self.store.committed[name] = self.store.prepared.pop(name)

    def abort_leftovers(self):
        self.called("abort")

    def close(self):
        self.store.calls.append("close")


class Job(SinkTestHarness):
    def __init__(self, store=None, **options):
        self.store = store or Store()
        super().__init__(self.store, **options)
        self.points = []
        self.fault = lambda point: None
        self.probe = self.meet

    def meet(self, point):
        self.points.append(point)
        self.fault(point)

    @property
    def operator(self):
        return self.operators[0]

    @property
    def rows(self):
        return self.store.rows


def test_rows_are_committed_with_their_checkpoint_and_not_before():
    job = Job()
    job.start()
    job.write([1, 2])
    job.checkpoint(1, notifies=False)
    job.write([3])
    job.checkpoint(2, notifies=False)
    assert job.rows == []
    job.notify(1)
    assert job.rows == [1, 2]
    job.notify(2)
    assert job.rows == [1, 2, 3]


def test_a_later_checkpoint_commits_what_earlier_ones_left():
    job = Job()
    job.start()
    job.write([1])
    job.checkpoint(1, completes=False)
    job.write([2])
    job.checkpoint(2)
    assert job.rows == [1, 2]


def test_notifications_may_be_doubled_and_late():
    job = Job()
    job.start()
    job.write([1])
    job.checkpoint(1, notifies=False)
    job.write([2])
    job.checkpoint(2, notifies=False)
    for checkpoint_id in (2, 1, 2):
        job.notify(checkpoint_id)
    assert job.rows == [1, 2]
    assert len([call for call in job.store.calls if call.startswith("commit")]) == 2


def test_leftovers_are_dropped_once_behind_the_first_commits_of_this_attempt():
    job = Job()
    job.start()
    job.notify(1)
    assert job.store.calls == ["open"], "a checkpoint of an earlier attempt"
    job.write([1])
    for checkpoint_id in (2, 3):
        job.checkpoint(checkpoint_id)
    assert job.store.calls == ["open", "commit 1.0-2-0", "abort"]


def test_restored_committables_are_committed_at_once_and_again():
    job = Job()
    job.start()
    job.write([1])
    job.checkpoint(1, notifies=False)
    for _ in range(3):
        job.store.calls.clear()
        job.start()
        assert job.rows == [1]
        assert job.store.calls == ["open", "commit 1.0-1-0"]
    job.checkpoint(2)
    job.store.calls.clear()
    job.start()
    assert job.store.calls == ["open"]


def test_lost_output_fails_the_restore_at_once():
    job = Job()
    job.start()
    job.write([1])
    job.checkpoint(1, notifies=False)
    job.store.prepared.clear()
    with pytest.raises(PossibleLossError, match=r"possible loss \(checkpoint 1\)"):
        job.start()
    assert job.pauses_ms == []


def test_without_checkpoints_the_end_of_the_job_commits():
    job = Job(checkpointing=False)
    job.start()
    job.write([1, 2])
    job.operator.finish()
    assert job.rows == []
    job.finish()
    assert job.rows == [1, 2]
    assert all(f"-{NO_CHECKPOINT}-" in name for name in job.store.committed)


def test_with_checkpoints_nothing_may_be_left_at_the_end():
    job = Job()
    job.start()
    job.write([1])
    job.checkpoint(1, notifies=False)
    with pytest.raises(InternalError, match=r"uncommitted.*\[1\]"):
        job.operator.finish_job()
    job.notify(1)
    job.finish()


def test_probe_points_are_met_in_order():
    job = Job()
    job.start()
    job.write([1, 2])
    job.checkpoint(1)
    assert job.points == ["sink.prepare", "sink.commit.before", "sink.commit.0", "sink.commit.1", "sink.commit.after"]


def test_closing_before_opening_is_harmless():
    SinkOperator(Store()).close()


# ----------------------------------------------------------------------------------------------------------- off-thread
def test_a_task_waits_for_the_commits_of_its_past_and_of_its_end():
    job = Job()
    job.holds_work = True
    job.start()
    assert not job.attempt.is_settled, "the committer is not open"
    assert job.store.calls == []
    job.attempt.run_work()
    assert job.attempt.is_settled
    job.write([1])
    job.checkpoint(1)
    assert job.rows == []
    assert not job.attempt.is_settled
    job.operator.finish_job()
    assert not job.attempt.is_settled, "the job would be finished before its last commit"
    job.attempt.run_work()
    assert job.attempt.is_settled
    assert job.rows == [1]


def test_commits_under_way_stay_in_every_snapshot_until_their_end_is_told():
    job = Job()
    job.start()
    job.holds_work = True
    job.write([1])
    job.checkpoint(1)
    job.write([2])
    job.checkpoint(2)
    work, _on_end = job.attempt.works[0]
    work()
    assert job.rows == [1], "done, but not told"
    job.checkpoint(3, notifies=False)
    job.holds_work = False
    job.store.calls.clear()
    job.start()
    assert job.store.calls == ["open", "commit 1.0-1-0", "commit 1.0-2-1"]
    assert job.rows == [1, 2]


def test_commits_keep_their_order_while_others_are_under_way():
    job = Job()
    job.start()
    job.holds_work = True
    for checkpoint_id in range(1, 5):
        job.write([checkpoint_id])
        job.checkpoint(checkpoint_id)
        assert len(job.attempt.works) == 1, "one round at a time"
    job.attempt.run_work()
    assert job.rows == [1, 2, 3, 4]


def test_commits_that_fall_behind_hold_back_records():
    job = Job()
    job.start()
    job.holds_work = True
    for checkpoint_id in range(1, MAX_UNCOMMITTED_CHECKPOINTS + 2):
        assert not job.operator.is_blocked
        job.write([checkpoint_id])
        job.checkpoint(checkpoint_id)
    assert job.operator.is_blocked
    job.attempt.run_work()
    assert not job.operator.is_blocked


def test_a_committer_that_does_not_block_is_called_on_the_spot():
    job = Job(Store(blocks=False))
    job.holds_work = True
    job.start()
    job.write([1])
    job.checkpoint(1)
    assert job.rows == [1]
    assert job.attempt.works == []
    job.store.failures = [OSError("no")]
    job.write([2])
    with pytest.raises(SinkError, match=r"could not commit: OSError\('no'\) \(checkpoint 2\)"):
        job.checkpoint(2)


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_committer_is_closed_once_whenever_its_operator_is(done):
    """Before the round begins (0), after its first commit (1), after its end which was not told (2)."""
    job = Job()
    job.start()
    job.holds_work = True
    job.write([1, 2])
    job.checkpoint(1)
    [(work, _)] = job.attempt.works
    if done == 1:
        job.fault = lambda point: job.operator.close() if point == "sink.commit.0" else None
    if done:
        work()
    if done != 1:
        job.operator.close()
    assert job.store.calls.count("close") == (0 if done == 0 else 1)
    if done == 0:
        work()
    assert job.store.calls.count("close") == 1
    assert job.rows == [[], [1], [1, 2]][done], "a round that was given up commits no more"
    job.operator.close()
    assert job.store.calls.count("close") == 1


# ------------------------------------------------------------------------------------------------------------- failures
def test_a_commit_that_fails_is_tried_again_from_where_it_failed():
    job = Job()
    job.start()
    job.write([1, 2, 3])
    job.store.calls.clear()
    fails = iter([None, OSError("a"), SinkError("b"), None, None])

    def called(self, what):
        self.store.calls.append(what)
        error = next(fails, None) if what.startswith("commit") else None
        if error is not None:
            raise error

    original = StoreCommitter.called
    StoreCommitter.called = called
    try:
        job.checkpoint(1)
    finally:
        StoreCommitter.called = original
    second = "commit 1.0-1-1"
    assert job.store.calls == ["commit 1.0-1-0", second, second, second, "commit 1.0-1-2", "abort"]
    assert job.pauses_ms == [10, 20]
    assert job.rows == [1, 2, 3]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OSError("no route"), SinkError, r"could not commit: OSError\('no route'\) \(checkpoint 1, attempts 4\)"),
        (SinkError("no route", host="db"), SinkError, r"no route \(host 'db', checkpoint 1, attempts 4\)"),
    ],
)
def test_a_commit_that_always_fails_fails_the_operator(error, kind, text):
    job = Job()
    job.start()
    job.write([1])
    job.store.failures = [error] * 4
    with pytest.raises(kind, match=text):
        job.checkpoint(1)
    assert job.pauses_ms == [10, 20, 25]
    job.store.failures = []
    job.start()
    assert job.rows == [1], "nothing is skipped"


@pytest.mark.parametrize("kind", [PossibleLossError, SinkFencedError, ConfigurationError, InternalError])
def test_errors_that_will_not_pass_are_not_tried_again(kind):
    job = Job()
    job.start()
    job.write([1])
    job.store.failures = [kind("no")]
    with pytest.raises(kind, match=r"no \(checkpoint 1\)"):
        job.checkpoint(1)
    assert job.pauses_ms == []


def test_opening_and_dropping_are_tried_again_too():
    job = Job()
    job.store.failures = [OSError(), OSError()]
    job.start()
    assert job.store.calls == ["open"] * 3
    job.store.failures = [OSError()]
    job.checkpoint(1)
    assert job.store.calls == ["open"] * 3 + ["abort"] * 2
    assert job.pauses_ms == [10, 20, 10]
    job.store.failures = [OSError()] * 4
    with pytest.raises(SinkError, match="committer could not be opened: OSError"):
        job.start()


def test_a_retry_that_waits_is_given_up_on_closing():
    job = Job()
    job.start()
    job.write([1])
    job.holds_work = True
    job.checkpoint(1)
    job.store.failures = [OSError()]
    work, on_end = job.attempt.works.pop()
    work()
    on_end(None, None)
    assert not job.attempt.is_settled, "it waits"
    job.operator.close()
    assert job.store.calls[-1] == "close"


def test_commits_under_way_go_on_when_the_job_is_suspended_and_other_work_does_not():
    told = []
    outbox = TaskOutbox(SimpleNamespace(attempt="1.0", job_manager=None, coordinator=None))
    works = OffloadedWork(outbox)
    for keeps_work in (True, False):
        link = SimpleNamespace(operator=SimpleNamespace(keeps_work=keeps_work), call=lambda function, *a: function(*a))
        works.start(link, print, lambda result, _error, keeps=keeps_work: told.append((keeps, result)), "blocking")
        works.call_later(link, 10, lambda keeps=keeps_work: told.append((keeps, "later")))
    works.cancel_all()
    timers = [command for command in outbox.take() if isinstance(command, StartTimer)]
    assert [timer.delay_ms for timer in timers] == [10, 10]
    for number in (1, 3):
        works.ended(number, "done", None)
    for timer in timers:
        assert timer.message.name == "operator_work", "the slot takes it for the end of work"
        works.ended(timer.message.token.number, None, None)
    assert told == [(True, "done"), (True, "later")]


def test_a_writer_that_prepares_needs_a_committer():
    class Half:
        def __init__(self):
            self.store = Store()

        def create_writer(self):
            return StoreWriter(self.store)

    job = SinkTestHarness(Half())
    job.start()
    job.checkpoint(1)
    job.write([1])
    with pytest.raises(ProgramError, match="no create_committer"):
        job.checkpoint(2)
    whole = Job()
    whole.start()
    whole.write([1])
    whole.checkpoint(1, notifies=False)
    whole.sink = Half()
    with pytest.raises(CheckpointMismatchError, match="no committer"):
        whole.start()


# -------------------------------------------------------------------------------------------------------------- crashes
def run(job, crash_at):
    """Twelve rows in four checkpoints, the second aborted, the third's notification lost; crashes when ``crash_at``
    points were met."""
    met = 0

    def fault(point):
        nonlocal met
        met += 1
        if met in crash_at:
            raise CrashError(point)

    job.fault = fault
    positions = {0: 0}
    checkpoint_id = 0
    while True:
        try:
            job.start()
            position = positions[job.complete]
            while position < 12:
                job.write(range(position, position + 3))
                position += 3
                checkpoint_id += 1
                positions[checkpoint_id] = position
                job.checkpoint(checkpoint_id, completes=checkpoint_id != 2, notifies=checkpoint_id != 3)
            checkpoint_id += 1
            positions[checkpoint_id] = position
            job.checkpoint(checkpoint_id)
            job.finish()
            return met
        except CrashError:
            assert set(job.rows) <= set(range(positions[job.complete]))
            assert len(set(job.rows)) == len(job.rows)


def test_a_crash_at_any_point_neither_loses_nor_doubles():
    for crash in range(1, run(Job(), ()) + 1):
        job = Job()
        run(job, (crash,))
        assert sorted(job.rows) == list(range(12)), f"crash at point {crash}"


@given(st.lists(st.integers(1, 15), max_size=10))
@settings(max_examples=examples(200), deadline=None)
def test_crashes_at_many_points_neither_lose_nor_double(gaps):
    job = Job()
    run(job, set(itertools.accumulate(gaps)))
    assert sorted(job.rows) == list(range(12))
