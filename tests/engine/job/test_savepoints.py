"""Savepoints as JobManager and CheckpointCoordinator decide them: one rule per test, in a scripted cluster.

Family: behaviour. That nothing is lost or doubled by them is proved in ``tests/simulation/test_savepoints.py``.
"""

from __future__ import annotations

from itertools import count

import pytest
from control_harness import JOB, ControlWorld, settings, submission

from headrace.engine.checkpoint.io import STOPPED_WITH_SAVEPOINT
from headrace.engine.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    ExternalError,
    SavepointError,
)
from headrace.engine.kernel.config import RestartStrategy, RestoreMode
from headrace.engine.protocol.checkpoint_messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from headrace.engine.protocol.messages import CancelJob, RequestFailed, StopJob
from headrace.engine.protocol.savepoint_messages import SavepointState, StopWithSavepoint, TriggerSavepoint
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.task_messages import FinishTask, StartTask, StopSource
from headrace.engine.protocol.views import StopMode
from headrace.state.checkpoints.manifest import SAVEPOINT
from headrace.state.checkpoints.storage import CheckpointStorage

_stores = count()


class World(ControlWorld):
    """Tasks that also end behind a barrier that suspends, and when the source is drained."""

    def _play_task(self, message):
        if isinstance(message, TriggerCheckpoint) and message.suspends and self.is_obedient:
            for attempt in self.current():
                if self.tasks[attempt] == "RUNNING":
                    self._answer(attempt, "ENDED")
        if isinstance(message, StopSource) and message.drain:
            for attempt in self.current():
                if self.tasks[attempt] == "RUNNING":
                    self._answer(attempt, "ENDED")
        super()._play_task(message)

    def trigger(self, request_id="one", directory="default", **options):
        """Ask for a savepoint; gives the question."""
        place = f"{self.savepoints}/{directory}" if directory else None
        return self.ask(TriggerSavepoint(request_id, place, 1_000, **options))

    def stop(self, request_id="stop", *, drain=False, **options):
        return self.ask(StopWithSavepoint(request_id, f"{self.savepoints}/stops", drain, 1_000, **options))

    def acknowledge(self, checkpoint_id):
        for attempt in self.current():
            self.to_cc(AcknowledgeCheckpoint(attempt, checkpoint_id, (), {}))

    @property
    def triggered(self):
        return self.messages(TriggerCheckpoint)


def world(*, predecessor=None, epoch=1, store=None, checkpoints=True, **options):
    options.setdefault("attached", False)
    store = store or f"memory://engine-savepoints-{next(_stores)}"
    directory = {"directory": f"{store}/checkpoints"} if checkpoints else {}
    made = World(
        submission(None, settings(checkpoints=checkpoints, **directory, **options), 1), epoch, predecessor=predecessor
    )
    made.store, made.savepoints = store, f"{store}/savepoints"
    return made


def status(w, ask_id):
    return w.replies[ask_id]


def savepoint_at(path):
    storage, manifest = CheckpointStorage.from_manifest(path)
    assert manifest.kind == SAVEPOINT
    return storage, manifest


def files_of(w):
    storage = CheckpointStorage.at(w.savepoints)
    return storage.fs.list_files(storage.root)


# ------------------------------------------------------------------------------------------------------- intermediate
@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_savepoint_is_taken_while_the_job_runs(checkpoints):
    w = world(checkpoints=checkpoints).run()
    answer = status(w, w.trigger())
    assert answer.state is SavepointState.COMPLETE
    _, manifest = savepoint_at(answer.path)
    assert answer.path.startswith(f"{w.savepoints}/default/savepoint-job_1_"[:-2])
    assert manifest.enumerators
    [trigger] = w.triggered
    assert (trigger.base_id, trigger.savepoint, trigger.suspends) == (0, answer.path, False)
    assert w.jm.status is JobStatus.RUNNING
    assert not w.messages(NotifyCheckpointComplete), "it commits nothing"
    assert w.jm.view().checkpoints_completed == 0


def test_a_savepoint_has_no_base_is_none_and_leaves_the_checkpoints_alone():
    w = world(num_retained=1).run()
    w.fire(w.cc.address, "interval")
    before = w.jm.view().last_checkpoint_path
    path = status(w, w.trigger()).path
    assert w.jm.view().last_checkpoint_path == before
    assert CheckpointStorage.from_manifest(before)
    w.fire(w.cc.address, "interval")
    assert [(t.checkpoint_id, t.base_id) for t in w.triggered] == [(1, 0), (2, 0), (3, 1)]
    assert savepoint_at(path)[1].checkpoint_id == 2


def test_it_waits_for_no_interval_no_pause_and_no_checkpoint_under_way_and_is_not_subsumed():
    w = world(min_pause_ms=1_000, max_concurrent=2).run()
    w.is_obedient = False
    w.fire(w.cc.address, "interval")
    ask_id = w.trigger()
    assert [t.checkpoint_id for t in w.triggered] == [1, 2]
    w.fire(w.cc.address, "interval")
    assert [t.checkpoint_id for t in w.triggered] == [1, 2, 3], "it does not count for the number in flight"
    w.acknowledge(3)
    assert ask_id not in w.replies
    w.acknowledge(2)
    assert status(w, ask_id).state is SavepointState.COMPLETE


def test_a_request_is_taken_once_however_often_it_is_asked():
    w = world().run()
    w.is_obedient = False
    first, second = w.trigger(), w.trigger()
    assert len(w.triggered) == 1
    w.acknowledge(1)
    third = w.trigger()
    assert status(w, first) == status(w, second) == status(w, third)
    other = w.trigger("two")
    w.acknowledge(2)
    assert status(w, other).path != status(w, first).path


def test_a_question_is_answered_in_time_although_nothing_is_decided():
    w = world().run()
    w.is_obedient = False
    ask_id = w.trigger()
    w.fire(w.jm.address, f"savepoint-{ask_id}")
    answer = status(w, ask_id)
    assert (answer.state, answer.epoch) == (SavepointState.PENDING, 1)
    again = w.trigger(epoch=1)
    w.acknowledge(1)
    assert status(w, again).state is SavepointState.COMPLETE


def test_without_a_directory_there_is_none():
    w = world().run()
    refused = status(w, w.trigger(directory=None))
    assert isinstance(refused, RequestFailed)
    assert isinstance(refused.error, ConfigurationError)
    w = world(savepoint_directory="memory://engine-savepoints-default/here").run()
    assert status(w, w.trigger(directory=None)).path.startswith("memory://engine-savepoints-default/here/savepoint-")


def test_a_place_where_nothing_can_be_written_is_an_answer():
    w = world().run()
    answer = status(w, w.ask(TriggerSavepoint("one", "nowhere://at/all", 1_000)))
    assert answer.state is SavepointState.FAILED
    assert isinstance(answer.error, SavepointError)
    assert "nothing can be written" in str(answer.error)
    assert not w.triggered
    assert w.jm.status is JobStatus.RUNNING


@pytest.mark.parametrize("how", ["decline", "expire"])
@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_failed_savepoint_is_an_answer_and_fails_nothing(how, checkpoints):
    options = {"tolerable_failures": 0} if checkpoints else {}
    w = world(checkpoints=checkpoints, **options).run()
    w.is_obedient = False
    ask_id = w.trigger()
    if how == "decline":
        w.to_cc(DeclineCheckpoint(w.current()[0], 1, "disk full"))
    else:
        w.fire(w.cc.address, "savepoint-one")
    answer = status(w, ask_id)
    assert answer.state is SavepointState.FAILED
    assert ("disk full" if how == "decline" else "expired") in str(answer.error)
    assert w.jm.status is JobStatus.RUNNING
    assert w.jm.view().num_restarts == 0
    assert w.jm.view().checkpoints_failed == 0
    assert {m.checkpoint_id for m in w.messages(NotifyCheckpointAborted)} == {1}, "no task waits for it any more"
    assert not files_of(w)
    w.acknowledge(1)
    assert not files_of(w), "it never completes"


def test_a_restart_fails_the_savepoint_under_way():
    w = world(restart=RestartStrategy(-1, 10)).run()
    w.is_obedient = False
    ask_id = w.trigger()
    w.is_obedient = True
    w.report(w.current()[0], "FAILED", ExternalError("a disk"))
    assert status(w, ask_id).state is SavepointState.FAILED
    assert "restarts" in str(status(w, ask_id).error)
    assert not files_of(w)
    refused = status(w, w.trigger("two"))
    assert isinstance(refused.error, SavepointError)
    w.fire(w.jm.address, "restart")
    assert status(w, w.trigger("three")).state is SavepointState.COMPLETE


def test_one_that_is_being_published_when_the_job_restarts_still_completes():
    w = world(restart=RestartStrategy(-1, 10)).run()
    w.is_io_free = False
    ask_id = w.trigger()
    w.is_io_free = True
    w.do_io()  # the folder
    w = world(restart=RestartStrategy(-1, 10)).run()
    w.is_obedient = False
    ask_id = w.trigger()
    w.is_io_free = False
    w.acknowledge(1)
    assert [work.name for _, work in w.works] == ["publish_checkpoint"]
    w.is_obedient = True
    w.report(w.current()[0], "FAILED", ExternalError("a disk"))
    assert ask_id not in w.replies
    w.is_io_free = True
    w.do_io()
    assert savepoint_at(status(w, ask_id).path)


def test_the_end_of_the_job_fails_it_and_the_last_checkpoint_waits_for_it():
    w = world().run()
    w.is_obedient = False
    ask_id = w.trigger()
    w.report_all("ENDED")
    assert len(w.triggered) == 1, "the last checkpoint waits"
    w.is_obedient = True
    w.acknowledge(1)
    assert status(w, ask_id).state is SavepointState.COMPLETE
    assert w.jm.status is JobStatus.FINISHED
    refused = status(w, w.trigger("two"))
    assert "FINISHED" in str(refused.error)
    w = world().run()
    w.is_obedient = False
    ask_id = w.trigger()
    w.is_obedient = True
    w.ask(CancelJob())
    assert "the job has ended" in str(status(w, ask_id).error)


def test_a_deposed_leader_publishes_no_savepoint():
    w = world().run()
    w.is_obedient = False
    ask_id = w.trigger()
    CheckpointStorage.open(f"{w.store}/checkpoints", JOB).claim_epoch(2)
    w.acknowledge(1)
    assert w.jm.status is JobStatus.SUSPENDED
    assert ask_id not in w.replies
    assert not files_of(w)


def test_a_later_leader_says_that_a_request_is_lost_and_takes_new_ones():
    w = world().run()
    w.is_obedient = False
    w.trigger()
    later = world(store=w.store, predecessor=w.jm.view(), epoch=2)
    early = later.trigger(epoch=1)
    assert early not in later.replies, "it does not know yet what was left"
    later.run()
    answer = status(later, early)
    assert answer.state is SavepointState.FAILED
    assert "was lost" in str(answer.error)
    assert status(later, later.trigger()).state is SavepointState.COMPLETE


def test_savepoints_of_a_restored_job_count_on_from_what_it_was_restored_from():
    w = world().run()
    for number in range(3):
        path = status(w, w.trigger(f"r{number}")).path
    for checkpoints in (True, False):
        again = world(checkpoints=checkpoints, restore_from=path).run()
        again.trigger()
        assert [t.checkpoint_id for t in again.triggered] == [4]


# ------------------------------------------------------------------------------------------------ stop with a savepoint
@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_job_is_stopped_with_a_savepoint(checkpoints, drain):
    w = world(checkpoints=checkpoints).run()
    ask_id = w.stop(drain=drain)
    assert [s.drain for s in w.messages(StopSource)] == [drain]
    expected = [(1, True, not drain), (2, False, not drain)] if checkpoints else [(1, True, not drain)]
    assert [(t.checkpoint_id, t.savepoint is not None, t.suspends) for t in w.triggered] == expected
    assert {m.checkpoint_id for m in w.messages(NotifyCheckpointComplete)} == ({2} if checkpoints else set())
    assert len(w.messages(FinishTask)) == 2
    assert w.jm.status is JobStatus.FINISHED
    answer = status(w, ask_id)
    assert answer.state is SavepointState.COMPLETE
    _, manifest = savepoint_at(answer.path)
    assert not any(name.startswith("(") for name in manifest.enumerators)
    w.archive()
    assert w.jm.view().savepoint_path == answer.path
    assert savepoint_at(answer.path)
    if checkpoints:
        own = CheckpointStorage.open(f"{w.store}/checkpoints", JOB)
        assert own.list_complete() == [], "the savepoint is all that is needed"


def test_stopping_with_a_bad_directory_touches_nothing():
    w = world().run()
    answer = status(w, w.ask(StopWithSavepoint("stop", "nowhere://at/all", False, 1_000)))
    assert answer.state is SavepointState.FAILED
    assert not w.messages(StopSource)
    assert w.jm.status is JobStatus.RUNNING
    assert status(w, w.stop("again")).state is SavepointState.COMPLETE


def test_only_its_savepoint_is_taken_while_a_job_is_being_stopped():
    w = world(max_concurrent=2).run()
    w.is_obedient = False
    w.stop()
    w.fire(w.cc.address, "interval")
    refused = status(w, w.trigger("other"))
    assert "is being stopped" in str(refused.error)
    assert len(w.triggered) == 1
    plain = w.ask(StopJob(StopMode.SUSPEND))
    assert isinstance(status(w, plain).error, ConfigurationError)
    assert w.jm.view().num_restarts == 0


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_stop_whose_savepoint_fails_is_given_up_and_the_job_goes_on(checkpoints):
    options = {} if checkpoints else {"restart": RestartStrategy(3, 10)}
    w = world(checkpoints=checkpoints, **options).run()
    if checkpoints:
        w.fire(w.cc.address, "interval")
    w.is_obedient = False
    ask_id = w.stop()
    w.is_obedient = True
    w.to_cc(DeclineCheckpoint(w.current()[0], w.triggered[-1].checkpoint_id, "disk full"))
    assert "disk full" in str(status(w, ask_id).error)
    assert w.jm.status is JobStatus.RESTARTING
    started = len(w.messages(StartTask))
    stops = len(w.messages(StopSource))
    w.fire(w.jm.address, "restart")
    assert w.jm.status is JobStatus.RUNNING
    assert len(w.messages(StartTask)) > started
    assert len(w.messages(StopSource)) == stops, "its sources read again"
    assert not files_of(w)
    assert status(w, w.stop("again")).state is SavepointState.COMPLETE


def test_that_is_no_failure_of_a_job_that_may_not_restart():
    w = world(restart=RestartStrategy.none()).run()
    w.is_obedient = False
    w.stop()
    w.is_obedient = True
    w.to_cc(DeclineCheckpoint(w.current()[0], 1, "disk full"))
    w.fire(w.jm.address, "restart")
    assert w.jm.status is JobStatus.RUNNING


def test_a_failure_before_the_last_checkpoint_gives_the_stop_up_and_removes_the_savepoint():
    w = world(restart=RestartStrategy(-1, 10)).run()
    w.is_obedient = False
    ask_id = w.stop()
    w.acknowledge(1)
    assert [t.savepoint is not None for t in w.triggered] == [True, False]
    assert files_of(w)
    assert ask_id not in w.replies
    w.is_obedient = True
    w.report(w.current()[0], "FAILED", ExternalError("a disk"))
    w.fire(w.jm.address, "restart")
    assert "goes on" in str(status(w, ask_id).error)
    assert w.jm.status is JobStatus.RUNNING
    assert not files_of(w)


def test_a_failure_behind_the_last_checkpoint_only_commits_again():
    w = world(restart=RestartStrategy(-1, 10)).run()
    w.is_obedient = False
    ask_id = w.stop()
    w.acknowledge(1)
    w.acknowledge(2)
    assert w.messages(FinishTask)
    w.is_obedient = True
    w.report_all("ENDED")
    started = len(w.messages(StartTask))
    w.report(w.current()[0], "FAILED", ExternalError("a disk"))
    w.fire(w.jm.address, "restart")
    assert w.jm.status is JobStatus.FINISHED
    assert len(w.messages(StartTask)) == started, "its tasks were restored, and never run"
    assert savepoint_at(status(w, ask_id).path)


def test_the_next_leader_finishes_a_stop_whose_last_checkpoint_is_complete():
    w = world().run()
    w.is_obedient = False
    w.stop()
    w.acknowledge(1)
    w.acknowledge(2)
    later = world(store=w.store, predecessor=w.jm.view(), epoch=2)
    early = later.stop(epoch=1)
    later.run()
    assert later.jm.status is JobStatus.FINISHED
    assert not later.messages(StartTask)
    answer = status(later, early)
    assert answer.state is SavepointState.COMPLETE
    assert later.jm.view().savepoint_path == answer.path


def test_the_next_leader_goes_on_if_it_is_not():
    w = world().run()
    w.fire(w.cc.address, "interval")
    w.is_obedient = False
    w.stop()
    w.acknowledge(2)
    later = world(store=w.store, predecessor=w.jm.view(), epoch=2)
    early = later.stop(epoch=1)
    later.run()
    assert later.jm.status is JobStatus.RUNNING
    assert not later.messages(StopSource)
    assert "was lost" in str(status(later, early).error)


def test_a_job_that_starts_from_the_last_checkpoint_of_a_stop_is_no_part_of_it():
    w = world().run()
    w.is_obedient = False
    w.stop()
    w.acknowledge(1)
    w.acknowledge(2)
    path = w.jm.view().last_checkpoint_path
    assert STOPPED_WITH_SAVEPOINT in CheckpointStorage.from_manifest(path)[1].enumerators
    again = world(restore_from=path).run()
    assert again.jm.status is JobStatus.RUNNING


def test_a_cancellation_wins_over_a_stop_with_a_savepoint():
    w = world().run()
    w.is_obedient = False
    ask_id = w.stop()
    w.is_obedient = True
    w.ask(CancelJob())
    assert w.jm.status is JobStatus.CANCELED
    assert "CANCELED" in str(status(w, ask_id).error) or "has ended" in str(status(w, ask_id).error)
    assert not files_of(w)


def test_a_savepoint_that_outlives_its_job_is_named_in_the_error():
    w = world(restart=RestartStrategy.none()).run()
    w.is_obedient = False
    ask_id = w.stop()
    w.acknowledge(1)
    w.is_obedient = True
    w.report(w.current()[0], "FAILED", ExternalError("a disk"))
    assert w.jm.status is JobStatus.FAILED
    error = status(w, ask_id).error
    assert "is complete, but the job has ended FAILED" in str(error)
    assert savepoint_at(error.context["path"])


# ------------------------------------------------------------------------------------------------------------- restores
def test_a_claimed_savepoint_goes_with_enough_checkpoints_of_its_own():
    w = world().run()
    path = status(w, w.trigger()).path
    again = world(restore_from=path, restore_mode=RestoreMode.CLAIM, num_retained=2).run()
    again.fire(again.cc.address, "interval")
    assert savepoint_at(path), "one checkpoint of two that are to be retained"
    again.fire(again.cc.address, "interval")
    with pytest.raises(CheckpointNotFoundError):
        CheckpointStorage.from_manifest(path)
    assert again.jm.status is JobStatus.RUNNING


def test_by_default_it_stays_for_ever():
    w = world().run()
    path = status(w, w.trigger()).path
    again = world(restore_from=path).run()
    for _ in range(3):
        again.fire(again.cc.address, "interval")
    again.report_all("ENDED")
    again.archive()
    assert again.jm.status is JobStatus.FINISHED
    assert savepoint_at(path)
