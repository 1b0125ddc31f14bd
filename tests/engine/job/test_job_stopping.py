"""Stopping a job in order, as its JobManager decides it: what the tasks are told when, and what may cross it.

Family: behaviour, one decision of `headrace.engine.job.context.stop` per test; that nothing is lost or doubled is
proved in ``tests/simulation/test_stopping.py``.
"""

from __future__ import annotations

import pytest
from control_harness import ControlWorld, graph, settings, submission, vertex

from headrace.engine.errors import ConfigurationError, ExternalError
from headrace.engine.kernel.config import RestartStrategy
from headrace.engine.protocol.checkpoint_messages import AcknowledgeCheckpoint, TriggerCheckpoint
from headrace.engine.protocol.messages import CancelJob, RequestFailed, StopJob
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.task_messages import FinishTask, StartTask, StopSource
from headrace.engine.protocol.views import StopMode
from headrace.state.checkpoints.storage import CheckpointStorage

SUSPEND, DRAIN = StopMode.SUSPEND, StopMode.DRAIN


class World(ControlWorld):
    """Tasks that also end behind a barrier that suspends, and when the source is drained."""

    is_drained = False

    def _play_task(self, message):
        if isinstance(message, TriggerCheckpoint) and message.suspends and self.is_obedient:
            for attempt in self.current():
                self._answer(attempt, "ENDED")
        if isinstance(message, StopSource) and message.drain:
            self.is_drained = True
            for attempt in self.current():
                if self.tasks[attempt] == "RUNNING":
                    self._answer(attempt, "ENDED")
        super()._play_task(message)
        if isinstance(message, StartTask) and self.is_drained:
            self._answer(message.attempt, "ENDED")


def world(*, predecessor=None, epoch=1, directory=None, **options):
    options.setdefault("attached", False)
    options.setdefault("checkpoints", True)
    job = submission(None, settings(directory=directory, **options), 1)
    return World(job, epoch, predecessor=predecessor)


def stop(w, mode=SUSPEND):
    ask_id = w.ask(StopJob(mode))
    return w.replies[ask_id]


def finish(w):
    """Record the end; gives the path of the last checkpoint."""
    assert w.jm.status is JobStatus.FINISHED
    w.archive()
    return w.jm.view().last_checkpoint_path


def test_a_suspended_job_takes_a_last_checkpoint_at_once_and_keeps_it():
    w = world().run()
    assert stop(w) is True
    [stopped] = w.messages(StopSource)
    assert not stopped.drain
    assert stopped.attempt.vertex == "source"
    assert [trigger.suspends for trigger in w.messages(TriggerCheckpoint)] == [True]
    path = finish(w)
    assert CheckpointStorage.from_manifest(path)[1].enumerators["(stopping)"] == "suspend"
    assert w.jm.view().stopping is SUSPEND
    assert len(w.messages(FinishTask)) == 2


def test_a_drained_job_ends_like_one_whose_input_has_ended():
    w = world().run()
    assert stop(w, DRAIN) is True
    assert [s.drain for s in w.messages(StopSource)] == [True]
    assert not any(trigger.suspends for trigger in w.messages(TriggerCheckpoint))
    assert CheckpointStorage.from_manifest(finish(w))


def test_a_job_that_ended_by_itself_keeps_nothing():
    w = world().run()
    w.report_all("ENDED")
    with pytest.raises(Exception, match="no complete checkpoint"):
        CheckpointStorage.from_manifest(finish(w))


def test_only_the_last_of_several_checkpoints_is_kept():
    w = world(num_retained=3).run()
    for _ in range(3):
        w.fire(w.cc.address, "interval")
    older = w.jm.view().last_checkpoint_path
    stop(w)
    path = finish(w)
    assert CheckpointStorage.from_manifest(path)
    with pytest.raises(Exception, match="no complete checkpoint"):
        CheckpointStorage.from_manifest(older)


def test_stopping_twice_is_stopping_once_and_the_other_way_is_refused():
    w = world()
    w.is_io_free = True
    w.run()
    w.is_io_free = False
    assert stop(w) is True
    assert stop(w) is True
    assert len(w.messages(StopSource)) == 1
    refused = stop(w, DRAIN)
    assert isinstance(refused, RequestFailed)
    assert isinstance(refused.error, ConfigurationError)
    assert "being stopped already, by suspend" in str(refused.error)
    w.is_io_free = True
    w.do_io()
    finish(w)
    assert stop(w, DRAIN) is True, "over: the client sees how it ended"


def test_without_checkpoints_a_job_can_only_be_drained():
    w = world(checkpoints=False).run()
    refused = stop(w)
    assert isinstance(refused.error, ConfigurationError)
    assert "takes no checkpoints" in str(refused.error)
    assert w.jm.status is JobStatus.RUNNING
    assert w.jm.view().stopping is None
    assert stop(w, DRAIN) is True
    assert finish(w) is None


@pytest.mark.parametrize("mode", [SUSPEND, DRAIN])
def test_a_stop_before_the_start_holds_the_sources_back(mode):
    w = world().start()
    assert stop(w, mode) is True
    assert not w.messages(StopSource)
    w.register()
    order = [
        type(c.message) for c in w.outside if hasattr(c, "message") and isinstance(c.message, (StopSource, StartTask))
    ]
    assert order[:3] == [StopSource, StartTask, StartTask]
    finish(w)


def test_a_checkpoint_under_way_is_finished_first():
    w = world().run()
    w.is_obedient = False
    w.fire(w.cc.address, "interval")
    assert [t.suspends for t in w.messages(TriggerCheckpoint)] == [False]
    stop(w)
    assert len(w.messages(StopSource)) == 1, "sources stop at once"
    assert len(w.messages(TriggerCheckpoint)) == 1
    w.is_obedient = True
    for attempt in w.current():
        w.to_cc(AcknowledgeCheckpoint(attempt, 1, (), {}))
    assert [t.suspends for t in w.messages(TriggerCheckpoint)] == [False, True]
    finish(w)


@pytest.mark.parametrize("mode", [SUSPEND, DRAIN])
def test_after_a_failure_the_job_restarts_only_to_stop(mode):
    w = world(restart=RestartStrategy(-1, 10)).run()
    w.fire(w.cc.address, "interval")
    w.is_obedient = False
    stop(w, mode)
    w.is_obedient = True
    w.report(w.current()[0], "FAILED", ExternalError("a disk"))
    assert w.jm.status is JobStatus.RESTARTING
    before = len(w.messages(StopSource))
    w.fire(w.jm.address, "restart")
    assert w.jm.view().num_restarts == 1
    assert len(w.messages(StopSource)) > before
    finish(w)


def test_a_failure_that_may_not_be_survived_is_the_answer():
    w = world(restart=RestartStrategy.none()).run()
    w.is_obedient = False
    stop(w)
    w.is_obedient = True
    w.report(w.current()[0], "FAILED", ExternalError("a disk"))
    assert w.jm.status is JobStatus.FAILED


def test_a_cancellation_wins():
    w = world().run()
    w.is_obedient = False
    stop(w)
    w.is_obedient = True
    w.ask(CancelJob())
    assert w.jm.status is JobStatus.CANCELED


def test_a_failed_last_checkpoint_is_tried_again():
    w = world(tolerable_failures=-1, timeout_ms=50).run()
    w.is_obedient = False
    stop(w)
    w.fire(w.cc.address, "expire-1")
    w.is_obedient = True
    w.fire(w.cc.address, "final")
    assert [t.checkpoint_id for t in w.messages(TriggerCheckpoint)] == [1, 2]
    assert all(t.suspends for t in w.messages(TriggerCheckpoint))
    finish(w)


def test_the_next_leader_goes_on_stopping_by_what_the_last_one_told():
    directory = "memory://stopping-told"
    first = world(directory=directory).run()
    first.is_obedient = False
    stop(first)
    second = world(directory=directory, predecessor=first.jm.view(), epoch=2).run()
    assert second.messages(StopSource)
    finish(second)


@pytest.mark.parametrize("mode", [SUSPEND, DRAIN])
def test_the_next_leader_goes_on_stopping_by_what_the_checkpoint_says(mode):
    directory = f"memory://stopping-{mode.value}"
    first = world(directory=directory).run()
    stop(first, mode)
    assert first.jm.view().checkpoints_completed == 1
    second = world(directory=directory, epoch=2).run()
    assert second.jm.view().stopping is mode
    assert [s.drain for s in second.messages(StopSource)][:1] == [mode is DRAIN]
    finish(second)


def test_a_job_that_starts_from_anothers_last_checkpoint_goes_on():
    first = world(directory="memory://stopping-resume").run()
    stop(first)
    job = submission(None, settings(checkpoints=True, restore_from=finish(first), attached=False), 1)
    second = World(job).run()
    assert second.jm.view().stopping is None
    assert second.jm.status is JobStatus.RUNNING


def test_a_stop_in_the_last_moment_keeps_the_last_checkpoint():
    w = world().run()
    w.is_io_free = False
    w.report_all("ENDED")
    assert stop(w) is True
    w.is_io_free = True
    w.do_io()
    assert CheckpointStorage.from_manifest(finish(w))


def test_sources_in_the_middle_of_a_graph_do_not_exist():
    job_graph = graph(vertex("only", 2))
    w = World(submission(job_graph, settings(checkpoints=True, attached=False), 2)).run()
    stop(w)
    assert len(w.messages(StopSource)) == 2
