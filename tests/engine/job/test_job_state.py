"""A job's state as data: what must hold of it, and what follows which failure."""

import pytest
from control_harness import ControlWorld, settings, submission

from headrace.engine import errors
from headrace.engine.errors import HeadraceError, InternalError, ProcessLostError
from headrace.engine.job.context.phase import Phase
from headrace.engine.job.context.state import JobState
from headrace.engine.job.job_manager import PHASES
from headrace.engine.job.phases.failures import FailureDomain, Verdict, domain_of
from headrace.engine.kernel.config import RestartStrategy
from headrace.engine.protocol.messages import SlotLost
from headrace.engine.protocol.states import JobStatus

KINDS = [kind for name in errors.__all__ if isinstance(kind := getattr(errors, name), type)]
END = {
    "CheckpointFallbackError",
    "CheckpointMismatchError",
    "ConfigurationError",
    "ConflictingRowsError",
    "ManagedMemoryError",
    "NewerOutputError",
    "PossibleLossError",
    "SinkFencedError",
}
"""What would be the same the next time."""


def test_every_phase_has_its_rules():
    assert set(PHASES) == set(Phase)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_error_has_a_domain_and_a_verdict(kind):
    verdict = domain_of(kind("x")).verdict
    is_users = issubclass(kind, errors.UserError)
    expected = Verdict.RESTART_UNLESS_REPEATED if is_users else Verdict.RESTART
    assert verdict is (Verdict.END_JOB if kind.__name__ in END else expected)


def test_errors_that_are_not_headraces_are_tried_again():
    assert domain_of(OSError("away")).verdict is Verdict.RESTART
    assert domain_of(HeadraceError("x")) is FailureDomain.ENGINE


def world():
    return ControlWorld(submission(None, settings(attached=False, restart=RestartStrategy(-1, 50)), 1)).run()


def test_a_lost_slot_is_the_failure_of_a_process():
    w = world()
    w.to_jm(SlotLost("job-1", 1, "tm-1", w.slot(0), "it was killed"))
    assert "slot-0-1 was lost: it was killed" in w.jm.view().failure
    assert domain_of(ProcessLostError("x")) is FailureDomain.PROCESS
    assert w.jm.status is JobStatus.RESTARTING


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"phase": Phase.BACKING_OFF}, "still lives"),
        ({"phase": Phase.ENDED}, "it shows RUNNING"),
        ({"phase": Phase.FINISHING, "is_archived": True}, "its end is recorded"),
        ({"given_up": {3}, "newest_own": 3}, "both completed and given up"),
        ({"deployment": -1}, "without a number"),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(changes, rule):
    w = world()
    graph, state = w.jm._job.run.graph, w.jm._job.state
    state.scope = graph.subtasks()
    state.check(JobStatus.RUNNING, graph)
    for name, value in changes.items():
        setattr(state, name, value)
    status = JobStatus.RESTARTING if changes.get("phase") is Phase.BACKING_OFF else JobStatus.RUNNING
    with pytest.raises(InternalError, match=rule):
        state.check(status, graph)


def test_a_job_that_has_just_come_contradicts_nothing():
    JobState(1, was_run_before=False, newest_own=0).check(JobStatus.CREATED, None)
