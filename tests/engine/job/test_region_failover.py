"""Restarts of single regions in a scripted cluster: who is restarted, from what, and that all others are left alone."""

import pytest
from control_harness import (
    COORDINATOR,
    JOB,
    JOB_MANAGER,
    TASK_MANAGER,
    ControlWorld,
    Splits,
    edge,
    graph,
    pipeline,
    sent,
    settings,
    submission,
    vertex,
)

from headrace.engine.errors import CheckpointCorruptError, ProgramError, UserFunctionError
from headrace.engine.job.context.phase import Phase
from headrace.engine.kernel.config import FailoverStrategy, FailureRateRestartStrategy, RestartStrategy
from headrace.engine.kernel.machine import Address
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.engine.protocol.checkpoint_messages import (
    AcknowledgeCheckpoint,
    CheckpointRequested,
    CheckpointTriggered,
    DeclineCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from headrace.engine.protocol.control_messages import RelayToSlot
from headrace.engine.protocol.messages import CancelJob, FetchReports, KillSlot, RegisterTaskManager, SlotLost, StopJob
from headrace.engine.protocol.states import JobStatus, TaskState
from headrace.engine.protocol.task_messages import (
    CancelTask,
    NextInputSplit,
    ReportEmitted,
    ReportWatermark,
    RequestNextInputSplit,
    StartTask,
    UpdateTaskExecutionState,
    WatermarkLimit,
)
from headrace.engine.protocol.views import SlotInfo, StopMode
from headrace.state.checkpoints.storage import CheckpointStorage

ENDLESS = RestartStrategy(-1, 50)


def world(parallelism=3, *, source=None, job_graph=None, num_slots=None, **options):
    options.setdefault("attached", False)
    options.setdefault("restart", ENDLESS)
    job = submission(job_graph or pipeline(parallelism, source), settings(**options), num_slots or parallelism)
    return ControlWorld(job)


def of(w, vertex, subtask):
    [attempt] = [a for a in w.current() if (a.vertex, a.subtask) == (vertex, subtask)]
    return attempt


def attempts(w):
    return {name: w.jm.view().vertices[i].attempts for i, name in enumerate(("source", "map"))}


def fail(w, subtask, vertex="map", error=None):
    w.report(of(w, vertex, subtask), "FAILED", error or UserFunctionError("division by zero"))


def restart(w):
    w.fire(JOB_MANAGER, "restart")


def request(w, subtask, nonce=0):
    attempt = of(w, "source", subtask)
    answers = sent(w.to_jm(RequestNextInputSplit(attempt, "source", nonce)), NextInputSplit)
    return [(a.attempt.subtask, a.splits[0].split_id if a.splits else None) for a in answers]


# ------------------------------------------------------------------------------------------------------ who restarts
def test_only_the_failed_region_is_canceled_and_deployed_again():
    w = world().run()
    before = set(w.current())
    fail(w, 1)
    assert w.jm.status is JobStatus.RESTARTING
    assert [m.attempt.vertex for m in w.messages(CancelTask)] == ["source"]
    assert {m.attempt.subtask for m in w.messages(CancelTask)} == {1}
    restart(w)
    assert w.jm.status is JobStatus.RUNNING
    assert attempts(w) == {"source": (0, 1, 0), "map": (0, 1, 0)}
    assert {a for a in before if a.subtask != 1} < set(w.current())
    assert len(w.messages(StartTask)) == 6 + 2
    assert w.jm.view().num_restarts == 1
    assert "restarts 2 of 6 tasks after" in w.jm.view().history[-1][1]


def test_a_restarted_region_goes_back_to_its_slots_and_talks_to_itself():
    w = world().run()
    hosts = {r.message.deployment.attempt.subtask: r.slot_host for r in w.messages(RelayToSlot)}
    fail(w, 1)
    restart(w)
    for relay in w.messages(RelayToSlot)[6:]:
        deployment = relay.message.deployment
        assert relay.slot_host == hosts[1]
        assert {c.peer.attempt for c in deployment.inputs + deployment.outputs} == {1}


def test_full_strategy_restarts_everything():
    w = world(failover=FailoverStrategy.FULL).run()
    fail(w, 1)
    assert len(w.messages(CancelTask)) == 5
    restart(w)
    assert attempts(w) == {"source": (1, 1, 1), "map": (1, 1, 1)}


def test_a_connected_job_is_one_region():
    job_graph = graph(vertex("source", 2), vertex("map", 2), edges=[edge(0, "source", "map")])
    w = world(2, job_graph=job_graph).run()
    fail(w, 0)
    restart(w)
    assert attempts(w) == {"source": (1, 1), "map": (1, 1)}


def test_lost_slot_restarts_what_was_in_it_in_the_replacement():
    w = world().run()
    w.to_jm(SlotLost(JOB, 1, "tm-1", w.slot(1), "killed"))
    assert not w.messages(CancelTask)
    restart(w)
    assert w.jm.phase is Phase.WAITING_FOR_SLOTS
    fresh = SlotInfo(1, Address("slot-1-fresh", "slot"))
    slots = (w.slot(0), fresh, w.slot(2))
    w.to_jm(RegisterTaskManager(JOB, "tm-1", TASK_MANAGER, 1, slots, {}, 7))
    assert w.jm.status is JobStatus.RUNNING
    assert {r.slot_host for r in w.messages(RelayToSlot)[6:]} == {"slot-1-fresh"}
    assert attempts(w) == {"source": (0, 1, 0), "map": (0, 1, 0)}


def test_a_slot_hosts_tasks_of_several_regions_and_its_loss_restarts_them_all():
    """Four vertices side by side share two slots."""
    apart = graph(*(vertex(name, 2) for name in "abcd"))
    w = world(2, job_graph=apart).run()
    w.to_jm(SlotLost(JOB, 1, "tm-1", w.slot(0), "killed"))
    restart(w)
    w.generation = 2
    w.to_jm(
        RegisterTaskManager(JOB, "tm-1", TASK_MANAGER, 1, (w.slot(0), SlotInfo(1, Address("slot-1-1", "slot"))), {}, 9)
    )
    assert [v.attempts for v in w.jm.view().vertices] == [(1, 0)] * 4


def test_replacement_that_does_not_come_in_time_is_a_failure_of_the_same_region():
    w = world().run()
    w.to_jm(SlotLost(JOB, 1, "tm-1", w.slot(1), "killed"))
    restart(w)
    w.fire(JOB_MANAGER, "slots")
    assert w.jm.view().num_restarts == 2
    assert not w.messages(CancelTask)
    restart(w)
    slots = (w.slot(0), SlotInfo(1, Address("fresh", "slot")), w.slot(2))
    w.to_jm(RegisterTaskManager(JOB, "tm-1", TASK_MANAGER, 1, slots, {}, 7))
    assert attempts(w) == {"source": (0, 1, 0), "map": (0, 1, 0)}


def test_only_slots_of_what_does_not_cancel_are_killed():
    w = world().run()
    w.is_obedient = False
    fail(w, 1)
    w.fire(JOB_MANAGER, "cancellation")
    assert [kill.slot_host for kill in w.messages(KillSlot)] == ["slot-1-1"]


# ------------------------------------------------------------------------------------------------------ more failures
def test_another_region_that_fails_before_the_pause_is_over_joins_the_same_restart():
    w = world(restart=RestartStrategy.fixed_delay(1, 50)).run()
    fail(w, 1)
    fail(w, 2)
    restart(w)
    assert w.jm.status is JobStatus.RUNNING
    assert attempts(w) == {"source": (0, 1, 1), "map": (0, 1, 1)}
    assert w.jm.view().num_restarts == 1


def test_a_failure_while_tasks_are_being_stopped_widens_what_is_waited_for():
    w = world().run()
    w.is_obedient = False
    fail(w, 1)
    fail(w, 2)
    w.report(of(w, "source", 1), "CANCELED")
    assert (JOB_MANAGER, "restart") not in w.timers
    w.report(of(w, "source", 2), "CANCELED")
    assert (JOB_MANAGER, "restart") in w.timers


@pytest.mark.parametrize("subtask", [1, 2])
def test_a_failure_while_a_region_is_deployed_begins_again_with_all_that_failed(subtask):
    w = world().run()
    fail(w, 1)
    w.is_obedient = False
    restart(w)
    assert w.jm.phase is Phase.DEPLOYING
    w.is_obedient = True
    fail(w, subtask, "source")
    for attempt in w.current():
        if attempt.attempt == 1 and w.tasks[attempt] == "DEPLOYING":
            w.report(attempt, "CANCELED")
    restart(w)
    assert w.jm.status is JobStatus.RUNNING
    assert w.jm.view().num_restarts == 2
    expected = {1: (0, 2, 0), 2: (0, 2, 2)}[subtask]
    assert attempts(w) == {"source": expected, "map": expected}


def test_a_strategy_that_is_used_up_ends_the_whole_job():
    w = world(restart=FailureRateRestartStrategy(1, 10_000, 10)).run()
    fail(w, 1)
    restart(w)
    fail(w, 2)
    assert w.jm.status is JobStatus.FAILED
    assert len({m.attempt for m in w.messages(CancelTask)}) == 1 + 5


def test_cancellation_in_the_middle_of_a_restart_reaches_the_healthy_too():
    w = world().run()
    w.is_obedient = False
    fail(w, 1)
    w.is_obedient = True
    w.ask(CancelJob())
    w.report(of(w, "source", 1), "CANCELED")
    assert w.jm.status is JobStatus.CANCELED
    assert {m.attempt.subtask for m in w.messages(CancelTask)} == {0, 1, 2}


def test_failing_discovery_is_the_whole_jobs_failure():
    source = Splits(["a"], is_final=False, interval_ms=70)
    w = world(source=source).run()
    source.discover = None
    w.jm._job.run._sources._sources["source"].enumerator.discover = lambda: 1 / 0
    w.fire(JOB_MANAGER, "discover-source")
    assert len(w.messages(CancelTask)) == 6


def test_a_job_that_is_being_stopped_or_ends_restarts_as_a_whole():
    w = world(checkpoints=True).run()
    w.is_obedient = False
    w.ask(StopJob(StopMode.SUSPEND))
    w.is_obedient = True
    fail(w, 1)
    assert len(w.messages(CancelTask)) == 5


def test_regions_that_have_processed_everything_wait_for_the_one_that_begins_again():
    w = world(checkpoints=True).run()
    for subtask in (0, 2):
        for name in ("source", "map"):
            w.report(of(w, name, subtask), "ENDED")
    fail(w, 1)
    restart(w)
    assert w.jm.phase is Phase.EXECUTING
    for name in ("source", "map"):
        w.report(of(w, name, 1), "ENDED")
    assert w.jm.status is JobStatus.FINISHED
    assert attempts(w) == {"source": (0, 1, 0), "map": (0, 1, 0)}


# ------------------------------------------------------------------------------------------------------- checkpoints
def test_no_checkpoint_is_triggered_while_a_region_is_restarted_and_then_they_go_on():
    w = world(checkpoints=True).run()
    w.fire(COORDINATOR, "interval")
    fail(w, 1)
    assert (COORDINATOR, "interval") not in w.timers
    refused = sent(w.jm.handle(CheckpointRequested(1, 99, 0), 0), CheckpointTriggered)
    assert refused[0].attempts == ()
    restart(w)
    w.fire(COORDINATOR, "interval")
    assert w.jm.view().last_checkpoint == 2
    newest = [m.attempt for m in w.messages(TriggerCheckpoint) if m.checkpoint_id == 2]
    assert sorted(a.attempt for a in newest) == [0, 0, 1]


def test_restarted_tasks_restore_the_newest_checkpoint_and_the_others_commit_theirs():
    w = world(checkpoints=True).run()
    w.is_io_free = False
    w.fire(COORDINATOR, "interval")
    assert [work.name for _, work in w.works] == ["publish_checkpoint"]
    fail(w, 1)
    w.is_io_free = True
    w.do_io()
    told = {m.attempt.subtask for m in w.messages(NotifyCheckpointComplete)}
    assert told == {0, 2}
    restart(w)
    assert {r.message.deployment.restore.checkpoint_id for r in w.messages(RelayToSlot)[6:]} == {1}


def test_checkpoints_in_flight_are_aborted_and_acknowledgements_of_the_dead_complete_nothing():
    w = world(checkpoints=True).run()
    w.is_obedient = False
    w.fire(COORDINATOR, "interval")
    dead = of(w, "source", 1), of(w, "map", 1)
    healthy = [a for a in w.current() if a.subtask != 1]
    for attempt in dead:
        w.to_cc(AcknowledgeCheckpoint(attempt, 1, (), {}))
    w.is_obedient = True
    fail(w, 1)
    w.report(dead[0], "CANCELED")
    assert {m.attempt for m in w.messages(NotifyCheckpointAborted)} == set(healthy)
    restart(w)
    for attempt in healthy:
        w.to_cc(AcknowledgeCheckpoint(attempt, 1, (), {}))
    for attempt in w.current():
        w.to_cc(AcknowledgeCheckpoint(attempt, 1, (), {}))
    assert w.jm.view().last_checkpoint is None


def test_old_and_new_attempts_may_decline():
    w = world(checkpoints=True, tolerable_failures=9).run()
    fail(w, 1)
    restart(w)
    w.is_obedient = False
    for number, subtask in ((1, 0), (2, 1)):
        w.fire(COORDINATOR, "interval")
        w.to_cc(DeclineCheckpoint(of(w, "map", subtask), number, "no"))
        assert w.jm.view().checkpoints_failed == number


def test_a_damaged_checkpoint_costs_the_whole_job():
    w = world(checkpoints=True, num_retained=3).run()
    w.fire(COORDINATOR, "interval")
    w.fire(COORDINATOR, "interval")
    fail(w, 1)
    w.is_obedient = False
    restart(w)
    w.is_obedient = True
    attempt = of(w, "map", 1)
    w.report(attempt, "FAILED", CheckpointCorruptError("a file of a checkpoint is missing"))
    w.report(of(w, "source", 1), "CANCELED")
    restart(w)
    assert w.jm.phase is Phase.BACKING_OFF
    restart(w)
    assert w.jm.status is JobStatus.RUNNING
    assert {r.message.deployment.restore.checkpoint_id for r in w.messages(RelayToSlot)[-6:]} == {1}
    assert set(w.jm.view().vertices[0].attempts) == {2}
    assert any("restarts everything: checkpoint 2 cannot be restored" in text for _, text in w.jm.view().history)


# ------------------------------------------------------------------------------------------------------------- splits
def test_splits_given_since_the_checkpoint_come_back_and_those_of_others_stay_theirs():
    w = world(source=Splits(list("abcdef")), checkpoints=True).run()
    assert [request(w, 1), request(w, 0)] == [[(1, "a")], [(0, "b")]]
    w.fire(COORDINATOR, "interval")
    assert [request(w, 1, 1), request(w, 0, 1), request(w, 1, 2)] == [[(1, "c")], [(0, "d")], [(1, "e")]]
    fail(w, 1)
    restart(w)
    assert [request(w, 2), request(w, 1), request(w, 0, 2), request(w, 1, 1)] == [
        [(2, "c")], [(1, "e")], [(0, "f")], [(1, None)],
    ]  # fmt: skip
    w.fire(COORDINATOR, "interval")
    part = CheckpointStorage.open(w.job.settings.checkpoints.directory, JOB).load(2).enumerators["source"]
    assert part["unassigned"] == []
    assert part["known"] == list("abcdef")


def test_without_checkpoints_a_region_reads_all_its_splits_again():
    w = world(source=Splits(list("abc"))).run()
    assert [request(w, 1), request(w, 0), request(w, 1, 1)] == [[(1, "a")], [(0, "b")], [(1, "c")]]
    fail(w, 1)
    restart(w)
    assert [request(w, 1), request(w, 1, 1), request(w, 1, 2)] == [[(1, "a")], [(1, "c")], [(1, None)]]


def test_healthy_readers_are_answered_while_others_are_restarted_and_canceled_ones_are_not():
    w = world(source=Splits(list("ab"))).run()
    w.is_obedient = False
    fail(w, 1)
    assert request(w, 1) == []
    assert request(w, 0) == [(0, "a")]
    w.report(of(w, "source", 1), "CANCELED")
    assert request(w, 2) == [(2, "b")]


def test_a_reader_that_waits_gets_what_comes_back():
    w = world(source=Splits(["a"], is_final=False, interval_ms=1_000)).run()
    assert [request(w, 1), request(w, 0)] == [[(1, "a")], []]
    fail(w, 1)
    commands = w.fire(JOB_MANAGER, "restart")
    assert [(m.attempt.subtask, m.splits[0].split_id) for m in sent(commands, NextInputSplit)] == [(0, "a")]


# ------------------------------------------------------------------------------------------------ reports, alignment
def collect(attempt, identity, sequence):
    return ReportEmitted(attempt, "map", "collect", (identity, [identity]), sequence)


def rows(w):
    return [value[0] for *_, value in w.replies[w.ask(FetchReports(0))].reports]


def test_without_checkpoints_collected_rows_of_a_failed_region_are_rolled_back():
    w = world().run()
    dead = of(w, "map", 1)
    w.to_jm(collect(of(w, "map", 0), "healthy", 0))
    w.to_jm(collect(dead, "failed", 0))
    fail(w, 1)
    restart(w)
    assert rows(w) == ["healthy"]
    w.to_jm(collect(dead, "late", 1))
    w.to_jm(collect(of(w, "map", 1), "again", 0))
    w.to_jm(collect(of(w, "map", 0), "more", 1))
    w.to_jm(collect(of(w, "map", 0), "more", 1))
    assert rows(w) == ["healthy", "again", "more"]


def test_with_checkpoints_rows_are_reported_once_durable_and_stay():
    w = world(checkpoints=True).run()
    w.to_jm(collect(of(w, "map", 1), "durable", 0))
    fail(w, 1)
    restart(w)
    w.to_jm(collect(of(w, "map", 1), "durable", 0))
    assert rows(w) == ["durable"]


def test_a_region_that_is_restarted_holds_nobody_back():
    source = Splits(["a"])
    job_graph = pipeline(2, source)
    operator = job_graph.vertices["source"].chain[0].operator
    operator.watermark_strategy = WatermarkStrategy.no_watermarks().with_watermark_alignment("g", 100, 10)
    w = world(2, job_graph=job_graph).run()

    def limit(subtask, number, watermark_ms):
        report = ReportWatermark(of(w, "source", subtask), "source", number, watermark_ms)
        return [m.limit_ms for m in sent(w.to_jm(report), WatermarkLimit)]

    assert limit(1, 1, 0) == [100]
    assert limit(0, 1, 5_000) == [100]
    w.is_obedient = False
    fail(w, 1)
    assert limit(1, 2, 10) == []
    assert limit(0, 2, 5_000) == [5_100]


def test_a_region_is_not_started_again_by_what_others_report():
    w = world().run()
    fail(w, 1)
    restart(w)
    w.report(of(w, "source", 0), "ENDED")
    assert [m.attempt.attempt for m in w.messages(StartTask)].count(1) == 2


def test_program_errors_of_a_region_count_together():
    w = world(restart=RestartStrategy(-1, 10, max_user_failures=2)).run()
    fail(w, 1, error=ProgramError("no"))
    restart(w)
    fail(w, 2, error=ProgramError("no"))
    assert w.jm.status is JobStatus.FAILED


def test_old_reports_of_a_replaced_attempt_change_nothing():
    w = world().run()
    old = of(w, "map", 1)
    fail(w, 1)
    restart(w)
    w.to_jm(UpdateTaskExecutionState(old, TaskState.FAILED, UserFunctionError("late")))
    assert w.jm.status is JobStatus.RUNNING
