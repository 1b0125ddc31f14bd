"""The JobManager in a scripted cluster: a job's life, what stops and restarts it, what it restores."""

import pytest
from control_harness import (
    COORDINATOR,
    JOB,
    JOB_MANAGER,
    ControlWorld,
    Splits,
    edge,
    fail_one,
    graph,
    of_kind,
    pipeline,
    sent,
    statuses,
    submission,
    vertex,
    world,
)

from headrace.engine.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    JobCanceledError,
    NoResourceAvailableError,
    ProgramError,
    UserFunctionError,
)
from headrace.engine.kernel.config import RestartStrategy
from headrace.engine.kernel.machine import StopHost
from headrace.engine.protocol.checkpoint_messages import (
    AcknowledgeCheckpoint,
    CheckpointEnded,
    CheckpointOutcome,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from headrace.engine.protocol.control_messages import RelayToSlot
from headrace.engine.protocol.messages import (
    AcknowledgeRegistration,
    CancelJob,
    FetchReports,
    Heartbeat,
    JobStatusChanged,
    KillSlot,
    ReleaseJob,
    RequestHeartbeat,
    RequestSlots,
    SlotLost,
    SlotRequestFailed,
    SlotsAwaited,
    TaskManagerLost,
    WaitForJob,
)
from headrace.engine.protocol.states import JobStatus, TaskState
from headrace.engine.protocol.task_messages import (
    CancelTask,
    FinishTask,
    NextInputSplit,
    RequestNextInputSplit,
    StartTask,
    UpdateTaskExecutionState,
)
from headrace.state.checkpoints.manifest import Manifest
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.identifiers import ExecutionAttemptId

ENDLESS = RestartStrategy(-1, 50)


# -------------------------------------------------------------------------------------------------------- life cycle
def test_job_without_checkpoints_runs_to_its_end():
    w = world().run()
    assert w.jm.status is JobStatus.RUNNING
    w.report_all("ENDED")
    assert w.jm.status is JobStatus.FINISHED
    assert statuses(w)[-1] == "FINISHED"
    assert len(w.messages(FinishTask)) == 2
    assert not w.messages(ReleaseJob)
    w.archive()
    assert w.messages(ReleaseJob) == [ReleaseJob(JOB, 1)]


def test_slots_are_asked_for_by_the_graph():
    w = world(pipeline(3)).start()
    [request] = w.messages(RequestSlots)
    assert (request.num_slots, request.epoch, request.job_manager) == (3, 1, JOB_MANAGER)


def test_tasks_start_only_when_all_are_ready():
    w = world(pipeline(2), num_slots=2)
    w.is_obedient = False
    w.run()
    attempts = w.current()
    for attempt in attempts[:-1]:
        w.report(attempt, "INITIALIZING")
        w.report(attempt, "READY")
    assert not w.messages(StartTask)
    w.report(attempts[-1], "READY")
    assert {message.attempt for message in w.messages(StartTask)} == set(attempts)
    assert w.jm.status is JobStatus.CREATED


def test_deployments_go_by_way_of_the_task_manager_to_their_slots():
    w = world(pipeline(2), num_slots=2).run()
    relays = w.messages(RelayToSlot)
    assert len(relays) == 4
    for relay in relays:
        deployment = relay.message.deployment
        assert relay.slot_host == f"slot-{deployment.attempt.subtask}-1"
        peers = deployment.inputs + deployment.outputs
        assert [(c.peer.subtask, c.peer_address.host) for c in peers] == [(deployment.attempt.subtask, relay.slot_host)]
        assert (deployment.job_manager, deployment.coordinator) == (JOB_MANAGER, COORDINATOR)


def test_channels_are_ordered_by_edge_and_peer():
    job_graph = graph(vertex("a", 2), vertex("b", 3), edges=[edge(0, "a", "b"), edge(1, "a", "b")])
    w = world(job_graph, num_slots=3).run()
    for relay in w.messages(RelayToSlot):
        deployment = relay.message.deployment
        for channels, count in ((deployment.inputs, 2), (deployment.outputs, 3)):
            expected = [(edge_id, peer) for edge_id in (0, 1) for peer in range(count)] if channels else []
            assert [(c.edge_id, c.peer.subtask) for c in channels] == expected


def test_unreadable_graph_fails_the_job_at_once():
    job = submission()
    broken = type(job)(JOB, "test", b"nonsense", job.settings, 1)
    w = ControlWorld(broken).start()
    assert w.jm.status is JobStatus.FAILED
    assert isinstance(w.jm.view().error, ProgramError)


def test_last_checkpoint_comes_before_the_end():
    w = world(checkpoints=True).run()
    assert not w.messages(FinishTask)
    w.report_all("ENDED")
    assert [m.checkpoint_id for m in w.messages(TriggerCheckpoint)] == [1]
    outside = [type(c.message) for c in w.outside if hasattr(c, "message")]
    assert outside.index(NotifyCheckpointComplete) < outside.index(FinishTask)
    assert w.jm.status is JobStatus.FINISHED


def test_checkpoint_triggered_before_the_end_of_data_is_not_the_last():
    w = world(checkpoints=True)
    w.run()
    w.is_obedient = False
    w.fire(COORDINATOR, "interval")
    w.report_all("ENDED")
    for attempt in w.current():
        w.to_cc(AcknowledgeCheckpoint(attempt, 1, (), {}))
    assert not w.messages(FinishTask)
    assert [m.checkpoint_id for m in w.messages(TriggerCheckpoint)] == [1, 2]


# --------------------------------------------------------------------------------------------- failures and restarts
def test_failure_restarts_everything_with_new_attempts():
    w = world(restart=ENDLESS).run()
    fail_one(w)
    assert w.jm.status is JobStatus.RESTARTING
    assert len(w.messages(CancelTask)) == 1
    w.fire(JOB_MANAGER, "restart")
    assert w.jm.status is JobStatus.RUNNING
    assert {a.attempt for a in w.current()} == {1}
    assert w.jm.view().num_restarts == 1


def test_failure_without_strategy_fails_the_job_with_its_cause():
    w = world().run()
    fail_one(w)
    view = w.jm.view()
    assert view.state == "FAILED"
    assert isinstance(view.error, UserFunctionError)
    assert "division by zero" in view.failure


def test_failures_of_the_program_in_a_row_are_final_unless_a_checkpoint_completes_between():
    w = world(restart=RestartStrategy(-1, 10, max_user_failures=3)).run()
    for _ in range(2):
        fail_one(w)
        w.fire(JOB_MANAGER, "restart")
    assert w.jm.status is not JobStatus.FAILED
    fail_one(w)
    assert w.jm.status is JobStatus.FAILED


def test_a_checkpoint_that_does_not_fit_the_program_is_final():
    """It once was restored over and over: no restart makes it fit."""
    w = world(restart=ENDLESS).run()
    fail_one(w, CheckpointMismatchError("the checkpoint has state 'n' of another type"))
    assert w.jm.status is JobStatus.FAILED
    assert isinstance(w.jm.view().error, CheckpointMismatchError)


def test_restarts_are_bounded_by_the_strategy():
    w = world(restart=RestartStrategy.fixed_delay(2, 10)).run()
    for _ in range(2):
        fail_one(w)
        w.fire(JOB_MANAGER, "restart")
    fail_one(w)
    assert w.jm.status is JobStatus.FAILED


def test_restart_waits_until_every_task_is_gone():
    w = world(pipeline(2), num_slots=2, restart=ENDLESS).run()
    w.is_obedient = False
    fail_one(w)
    left = w.current()[1:]
    for attempt in left[:-1]:
        w.report(attempt, "CANCELED")
    assert (JOB_MANAGER, "restart") not in w.timers
    w.report(left[-1], "FAILED")
    assert (JOB_MANAGER, "restart") in w.timers


def test_task_that_does_not_cancel_costs_its_slot():
    w = world(restart=ENDLESS).run()
    w.is_obedient = False
    fail_one(w)
    w.fire(JOB_MANAGER, "cancellation")
    [kill] = w.messages(KillSlot)
    assert kill.slot_host == "slot-0-1"
    w.to_jm(SlotLost(JOB, 1, "tm-1", w.slot(0), kill.reason))
    assert (JOB_MANAGER, "restart") in w.timers


def test_an_announcement_that_comes_behind_its_task_managers_death_counts_for_nothing():
    w = world(restart=ENDLESS).start()
    w.to_jm(TaskManagerLost(JOB, "tm-1", "its process died", "node"))
    w.register()
    assert w.jm.status is JobStatus.CREATED
    assert not w.messages(RelayToSlot)


def test_a_task_may_take_any_time_to_cancel_if_that_is_wanted():
    w = world(restart=ENDLESS, task_cancellation_timeout_ms=0).run()
    w.is_obedient = False
    fail_one(w)
    assert (JOB_MANAGER, "cancellation") not in w.timers
    assert not w.messages(KillSlot)
    w.report_all("CANCELED")
    assert (JOB_MANAGER, "restart") in w.timers


def test_restart_waits_for_the_coordinator():
    w = world(restart=ENDLESS, checkpoints=True).run()
    w.is_io_free = False
    w.fire(COORDINATOR, "interval")
    assert [work.name for _, work in w.works] == ["publish_checkpoint"]
    fail_one(w)
    assert (JOB_MANAGER, "restart") not in w.timers
    w.is_io_free = True
    w.do_io()
    assert (JOB_MANAGER, "restart") in w.timers
    w.fire(JOB_MANAGER, "restart")
    assert {r.message.deployment.restore.checkpoint_id for r in w.messages(RelayToSlot)[2:]} == {1}


def test_lost_slot_is_a_failure_and_its_replacement_is_used():
    w = world(restart=ENDLESS).run()
    w.to_jm(SlotLost(JOB, 1, "tm-1", w.slot(0), "killed"))
    assert w.jm.status is JobStatus.RESTARTING
    w.fire(JOB_MANAGER, "restart")
    assert w.jm.status is JobStatus.RESTARTING
    w.generation = 2
    w.register()
    assert w.jm.status is JobStatus.RUNNING
    assert w.messages(RelayToSlot)[-1].slot_host == "slot-0-2"


def test_announcement_without_a_slot_is_its_loss():
    w = world(restart=ENDLESS).run()
    w.generation = 2
    w.register()
    assert w.jm.status is JobStatus.RESTARTING


def test_lost_task_manager_is_a_failure():
    w = world(restart=ENDLESS).run()
    w.to_jm(TaskManagerLost(JOB, "tm-1", "node gone"))
    assert w.jm.status is JobStatus.RESTARTING
    assert "node gone" in w.jm.view().failure


def test_silent_task_manager_is_taken_for_lost_and_its_slots_never_used_again():
    w = world(restart=ENDLESS, heartbeat_interval_ms=100, heartbeat_timeout_ms=300).run()
    for _ in range(3):
        w.fire(JOB_MANAGER, "heartbeat")
        nonce = w.messages(RequestHeartbeat)[-1].nonce
        w.to_jm(Heartbeat(JOB, "tm-1", nonce))
    assert w.jm.status is JobStatus.RUNNING
    for _ in range(5):
        w.fire(JOB_MANAGER, "heartbeat")
    assert w.jm.status is JobStatus.RESTARTING
    commands = w.register()
    assert [kill.slot_host for kill in sent(commands, KillSlot)] == ["slot-0-1"]
    assert w.jm.view().slots == ()


def test_reports_of_old_attempts_are_ignored():
    w = world(restart=ENDLESS).run()
    old = w.current()[0]
    fail_one(w)
    w.fire(JOB_MANAGER, "restart")
    w.to_jm(UpdateTaskExecutionState(old, TaskState.FAILED, UserFunctionError("late")))
    w.to_jm(UpdateTaskExecutionState(ExecutionAttemptId(7, 7, "map", 0), TaskState.FINISHED))
    assert w.jm.status is JobStatus.RUNNING


def test_doubled_reports_change_nothing():
    w = world().run()
    for attempt in w.current():
        for state in ("INITIALIZING", "READY", "RUNNING"):
            w.to_jm(UpdateTaskExecutionState(attempt, TaskState(state)))
    assert w.jm.status is JobStatus.RUNNING
    assert len(w.messages(StartTask)) == 2


def test_task_that_ends_unasked_is_a_failure_with_its_story():
    w = world().run()
    w.report(w.current()[0], "FINISHED")
    assert w.jm.status is JobStatus.FAILED
    assert "cannot go from RUNNING to FINISHED" in w.jm.view().failure


def test_intolerable_checkpoint_failures_restart_the_job():
    w = world(restart=ENDLESS, checkpoints=True).run()
    w.is_obedient = False
    w.fire(COORDINATOR, "interval")
    w.is_obedient = True
    w.fire(COORDINATOR, "expire-1")
    assert w.messages(NotifyCheckpointAborted)
    assert w.jm.status is JobStatus.RESTARTING


# ------------------------------------------------------------------------------------------------------------- slots
def test_slots_that_do_not_come_fail_the_job():
    w = world(pipeline(4), num_slots=2)
    w.start()
    w.register()
    w.fire(JOB_MANAGER, "slots")
    view = w.jm.view()
    assert isinstance(view.error, NoResourceAvailableError)
    assert "4 slots needed, 2 available" in str(view.error)


def awaited(text="the cluster launches 1 node", *, is_launching=True, epoch=1):
    return SlotsAwaited(JOB, epoch, text, is_launching)


def test_slots_are_waited_for_while_nodes_are_launched_up_to_a_bound():
    w = world(pipeline(4), num_slots=2, slot_request_timeout_ms=30_000, node_launch_timeout_ms=80_000)
    w.start()
    for _ in range(2):
        w.to_jm(awaited())
        w.fire(JOB_MANAGER, "slots")
        assert w.jm.status is JobStatus.CREATED
    w.to_jm(awaited())
    w.fire(JOB_MANAGER, "slots")
    assert "4 slots needed, 0 available after 80 s: the cluster launches 1 node" in str(w.jm.view().error)


def test_a_launch_that_failed_gives_time_for_the_next_one_and_no_more():
    w = world(pipeline(4), slot_request_timeout_ms=30_000).start()
    w.to_jm(awaited())
    w.to_jm(awaited("the cluster launches nothing; the last launch failed", is_launching=False))
    w.fire(JOB_MANAGER, "slots")
    assert w.jm.status is JobStatus.CREATED
    w.fire(JOB_MANAGER, "slots")
    assert "after 60 s: the cluster launches nothing; the last launch failed" in str(w.jm.view().error)


def test_what_is_waited_for_is_in_the_view_as_long_as_it_is_waited_for():
    w = world().start()
    w.to_jm(awaited(epoch=0))
    assert w.jm.view().waiting is None, "said to the leader before"
    for _ in range(2):
        w.to_jm(awaited())
    assert w.jm.view().waiting == "the cluster launches 1 node"
    assert [text for _, text in w.jm.view().history] == ["waits for slots: the cluster launches 1 node"]
    w.register()
    assert w.jm.view().waiting is None


def test_slots_missing_after_a_failure_are_waited_for_again():
    w = world(restart=ENDLESS).run()
    w.to_jm(TaskManagerLost(JOB, "tm-1", "gone"))
    w.fire(JOB_MANAGER, "restart")
    w.fire(JOB_MANAGER, "slots")
    assert w.jm.status is JobStatus.RESTARTING
    assert w.jm.view().num_restarts == 2


def test_refused_request_fails_the_job():
    w = world().start()
    w.to_jm(SlotRequestFailed(JOB, 1, "1 slots needed, the cluster has 0 (max_slots)"))
    assert isinstance(w.jm.view().error, NoResourceAvailableError)


def test_registration_of_another_epoch_is_ignored():
    w = world()
    w.start()
    assert sent(w.register(epoch=9), AcknowledgeRegistration) == []
    assert not w.messages(RelayToSlot)


def test_old_announcement_replaces_nothing_but_is_acknowledged():
    w = world().run()
    w.register(revision=5)
    commands = w.register(num_slots=0, revision=4)
    assert [a.revision for a in sent(commands, AcknowledgeRegistration)] == [4]
    assert len(w.jm.view().slots) == 1


# ------------------------------------------------------------------------------------------------------------ splits
def test_splits_are_handed_out_and_snapshotted_in_one_step_with_the_trigger():
    w = world(pipeline(source=Splits(["a", "b"])), checkpoints=True).run()
    source = next(a for a in w.current() if a.vertex == "source")
    w.to_jm(RequestNextInputSplit(source, "source", 0))
    w.to_jm(RequestNextInputSplit(source, "source", 0))
    answers = w.messages(NextInputSplit)
    assert [answer.splits[0].split_id for answer in answers] == ["a", "a"]
    w.fire(COORDINATOR, "interval")
    storage = CheckpointStorage.open(w.job.settings.checkpoints.directory, JOB)
    part = storage.load(1).enumerators["source"]
    assert [split["split_id"] for split in part["unassigned"]] == ["b"]
    assert part["known"] == ["a", "b"]


def test_restart_restores_the_splits_of_the_checkpoint():
    w = world(pipeline(source=Splits(["a", "b"])), checkpoints=True, restart=ENDLESS).run()
    w.fire(COORDINATOR, "interval")
    source = next(a for a in w.current() if a.vertex == "source")
    w.to_jm(RequestNextInputSplit(source, "source", 0))
    fail_one(w)
    w.to_jm(RequestNextInputSplit(source, "source", 1))
    w.fire(JOB_MANAGER, "restart")
    source = next(a for a in w.current() if a.vertex == "source")
    w.to_jm(RequestNextInputSplit(source, "source", 0))
    assert [answer.splits[0].split_id for answer in w.messages(NextInputSplit)] == ["a", "a"]


def test_failing_discovery_is_a_failure():
    source = Splits()
    source.discover = None
    w = world(pipeline(source=source)).run()
    assert w.jm.status is JobStatus.FAILED
    assert "source" in w.jm.view().failure


# ----------------------------------------------------------------------------------------------------------- restore
def publish(directory, checkpoint_id, *, job_id=JOB, epoch=1, operators=(), enumerators=None):
    storage = CheckpointStorage.open(directory, job_id)
    manifest = Manifest(job_id, "test", checkpoint_id, epoch, 0, tuple(operators), enumerators or {})
    return storage.publish(manifest, epoch)


def test_successor_restores_the_newest_checkpoint_under_a_higher_epoch():
    first = world(checkpoints=True).run()
    first.fire(COORDINATOR, "interval")
    directory = first.job.settings.checkpoints.directory
    w = world(checkpoints=True, directory=directory, epoch=2, predecessor=first.jm.view()).run()
    assert {r.message.deployment.restore.checkpoint_id for r in w.messages(RelayToSlot)} == {1}
    assert {a.epoch for a in w.current()} == {2}
    w.fire(COORDINATOR, "interval")
    view = w.jm.view()
    assert (view.last_checkpoint, view.checkpoints_completed, view.num_restarts) == (2, 2, 1)
    first.is_io_free = True
    first.fire(COORDINATOR, "interval")
    assert first.jm.status is JobStatus.SUSPENDED
    assert of_kind(first.outside, StopHost)
    assert statuses(first)[-1] == "SUSPENDED"


def test_restore_from_nothing_fails_the_job_and_starts_nothing():
    w = world(restore_from="memory://nothing-here/job/chk-1").start()
    assert isinstance(w.jm.view().error, CheckpointNotFoundError)
    assert not w.messages(RequestSlots)


def test_checkpoint_of_another_program_is_refused():
    path = publish("memory://other-program", 1, job_id="other", enumerators={"unknown-source": {}})
    w = world(restore_from=path).start()
    error = w.jm.view().error
    assert isinstance(error, CheckpointMismatchError)
    assert "unknown-source" in str(error)


def test_ids_go_on_from_the_restored_checkpoint():
    path = publish("memory://ids-go-on", 12, job_id="other")
    w = world(restore_from=path, checkpoints=True).run()
    w.fire(COORDINATOR, "interval")
    assert w.jm.view().last_checkpoint == 13


def test_damaged_checkpoint_is_passed_over_for_the_one_before():
    w = world(checkpoints=True, num_retained=3, restart=ENDLESS).run()
    w.fire(COORDINATOR, "interval")
    w.fire(COORDINATOR, "interval")
    fail_one(w)
    w.is_obedient = False
    w.fire(JOB_MANAGER, "restart")
    assert w.messages(RelayToSlot)[-1].message.deployment.restore.checkpoint_id == 2
    w.is_obedient = True
    w.report(w.current()[1], "FAILED", CheckpointCorruptError("a file of a checkpoint is missing"))
    w.report(w.current()[0], "CANCELED")
    w.fire(JOB_MANAGER, "restart")
    assert w.messages(RelayToSlot)[-1].message.deployment.restore.checkpoint_id == 1
    assert w.jm.status is JobStatus.RUNNING


def test_job_whose_only_checkpoint_is_damaged_fails_instead_of_starting_afresh():
    w = world(checkpoints=True, restart=ENDLESS).run()
    w.fire(COORDINATOR, "interval")
    fail_one(w)
    w.is_obedient = False
    w.fire(JOB_MANAGER, "restart")
    w.is_obedient = True
    w.report(w.current()[1], "FAILED", CheckpointCorruptError("a file of a checkpoint is missing"))
    w.report(w.current()[0], "CANCELED")
    w.fire(JOB_MANAGER, "restart")
    assert isinstance(w.jm.view().error, CheckpointCorruptError)


def test_damaged_checkpoint_that_the_user_named_is_not_replaced():
    path = publish("memory://damaged-request", 1, job_id="other")
    w = world(restore_from=path, restart=ENDLESS)
    w.is_obedient = False
    w.run()
    w.is_obedient = True
    w.report(w.current()[0], "FAILED", CheckpointCorruptError("wrong hash"))
    w.report(w.current()[1], "CANCELED")
    assert w.jm.status is JobStatus.FAILED
    assert isinstance(w.jm.view().error, CheckpointCorruptError)


def test_given_up_checkpoint_is_not_restored_even_if_the_store_has_it():
    w = world(checkpoints=True, restart=ENDLESS, tolerable_failures=5).run()
    w.is_obedient = False
    w.fire(COORDINATOR, "interval")
    w.is_obedient = True
    w.fire(COORDINATOR, "expire-1")
    publish(w.job.settings.checkpoints.directory, 1)
    fail_one(w)
    w.fire(JOB_MANAGER, "restart")
    assert w.messages(RelayToSlot)[-1].message.deployment.restore is None


# ------------------------------------------------------------------------------------------------- cancel, the end
def test_cancel_is_answered_when_the_end_is_recorded():
    w = world().run()
    ask = w.ask(CancelJob())
    assert w.jm.status is JobStatus.CANCELED
    assert ask not in w.replies
    w.archive()
    assert w.replies[ask] is True
    assert isinstance(w.jm.view().error, JobCanceledError)


@pytest.mark.parametrize("moment", ["starting", "waiting", "backing off", "stopping"])
def test_cancel_works_at_any_moment(moment):
    w = world(restart=ENDLESS, checkpoints=True)
    if moment == "starting":
        w.is_io_free = False
    w.start()
    if moment in ("backing off", "stopping"):
        w.register()
        w.is_obedient = moment != "stopping"
        fail_one(w)
    w.ask(CancelJob())
    if moment == "stopping":
        assert w.jm.status is JobStatus.CANCELLING
        w.report(w.current()[1], "CANCELED")
    assert w.jm.status is JobStatus.CANCELED
    w.is_io_free = True
    w.do_io()
    assert w.jm.status is JobStatus.CANCELED


def test_end_is_repeated_until_recorded_and_told_only_then():
    w = world().run()
    poll = w.ask(WaitForJob(w.jm.view().version, 5_000))
    w.report_all("ENDED")
    later = w.ask(WaitForJob(w.jm.view().version - 1, 5_000))
    assert later not in w.replies
    assert w.replies[poll].state != "FINISHED"
    before = len(w.messages(JobStatusChanged))
    w.fire(JOB_MANAGER, "archive")
    assert len(w.messages(JobStatusChanged)) == before + 1
    w.archive()
    assert w.replies[later].state == "FINISHED"
    assert (JOB_MANAGER, "archive") not in w.timers


@pytest.mark.parametrize(
    ("end", "retain", "stay"),
    [("FINISHED", False, False), ("CANCELED", False, False), ("CANCELED", True, True), ("FAILED", False, True)],
)
def test_checkpoints_stay_as_the_settings_say(end, retain, stay):
    w = world(checkpoints=True, restart=RestartStrategy.none())
    checkpoints = w.job.settings.checkpoints
    object.__setattr__(checkpoints, "retain_on_cancellation", retain)
    w.run()
    w.fire(COORDINATOR, "interval")
    if end == "FINISHED":
        w.report_all("ENDED")
    elif end == "CANCELED":
        w.ask(CancelJob())
    else:
        fail_one(w)
    storage = CheckpointStorage.open(checkpoints.directory, JOB)
    assert storage.list_complete()
    w.archive()
    assert w.jm.view().state == end
    assert bool(storage.list_complete()) is stay


def test_host_stops_when_nobody_asks_any_more():
    w = world().run()
    w.report_all("ENDED")
    w.archive()
    w.ask(FetchReports(0))
    assert not of_kind(w.outside, StopHost)
    w.fire(JOB_MANAGER, "linger")
    assert of_kind(w.outside, StopHost) == [StopHost()]


def test_shutdown_cancels_and_does_not_linger():
    w = world(attached=True).run()
    w.to_jm(CancelJob())
    assert w.jm.status is JobStatus.CANCELED
    w.archive()
    assert of_kind(w.outside, StopHost)


def test_attached_job_ends_with_its_client():
    w = world(attached=True).run()
    w.ask(WaitForJob(0, 1_000))
    assert w.timers[(JOB_MANAGER, "client")].delay_ms == 31_000
    w.fire(JOB_MANAGER, "client")
    assert w.jm.status is JobStatus.CANCELED


def test_deposed_leader_leaves_without_touching_anything():
    w = world(checkpoints=True).run()
    before = len(w.outside)
    w.to_jm(CheckpointEnded(1, 3, CheckpointOutcome.FENCED, "epoch 2 has taken over"))
    assert [type(c) for c in w.outside[before:]].count(StopHost) == 1
    assert not w.messages(CancelTask)
    assert not w.messages(ReleaseJob)
