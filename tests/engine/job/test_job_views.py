"""What a JobManager tells clients, tasks and the Dispatcher: views, rows, metrics; in a scripted cluster."""

import cloudpickle
from control_harness import (
    COORDINATOR,
    DISPATCHER,
    JOB_MANAGER,
    RESOURCE_MANAGER,
    fail_one,
    graph,
    pipeline,
    sent,
    statuses,
    vertex,
    world,
)

from headrace.engine.kernel.config import RestartStrategy
from headrace.engine.kernel.machine import Address
from headrace.engine.protocol.checkpoint_messages import (
    CheckpointEnded,
    CheckpointOutcome,
    NotifyCheckpointComplete,
    ReportsPending,
    ReportsWanted,
)
from headrace.engine.protocol.messages import (
    FetchReports,
    JobStatusChanged,
    KillSlot,
    KillSlotOnPurpose,
    RequestFailed,
    RequestSlots,
    WaitForJob,
)
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.task_messages import (
    MetricsReported,
    ReportEmitted,
)

ENDLESS = RestartStrategy(-1, 50)


def test_poll_is_answered_by_a_change_or_by_time():
    w = world().run()
    version = w.jm.view().version
    idle, quick = w.ask(WaitForJob(version, 500)), w.ask(WaitForJob(version - 1, 500))
    assert quick in w.replies
    assert idle not in w.replies
    w.fire(JOB_MANAGER, f"poll-{idle}")
    assert w.replies[idle].version == version


def collect(attempt, identity, rows, sequence):
    return ReportEmitted(attempt, "map", "collect", (identity, rows), sequence)


def test_collected_rows_are_taken_once_and_kept_until_acknowledged():
    w = world().run()
    attempt = w.current()[1]
    w.to_jm(collect(attempt, "x", [1], 0))
    w.to_jm(collect(attempt._replace(attempt=5), "x", [1], 0))
    w.to_jm(ReportEmitted(attempt, "map", "print", ["line"], 1))
    w.to_jm(ReportEmitted(attempt, "map", "print", ["line"], 1))
    first = w.replies[w.ask(FetchReports(0))]
    assert [(name, value) for _, _, name, value in first.reports] == [("collect", ("x", [1])), ("print", ["line"])]
    again = w.replies[w.ask(FetchReports(0))]
    assert again == first
    assert w.replies[w.ask(FetchReports(first.next_offset))].reports == []
    assert w.replies[w.ask(FetchReports(0))].reports == []


def test_rows_survive_the_job_manager_through_the_checkpoint():
    first = world(checkpoints=True).run()
    attempt = first.current()[1]
    first.to_jm(collect(attempt, "x", [1], 0))
    first.fire(COORDINATOR, "interval")
    directory = first.job.settings.checkpoints.directory
    w = world(checkpoints=True, directory=directory, epoch=2, predecessor=first.jm.view()).run()
    w.to_jm(collect(attempt, "x", [1], 7))
    offset = first.replies[first.ask(FetchReports(0))].next_offset
    fetched = w.replies[w.ask(FetchReports(offset))]
    assert [value for *_, value in fetched.reports] == [("x", [1])]


def test_finished_job_lets_its_client_fetch_before_the_end_is_recorded():
    w = world(attached=True).run()
    w.to_jm(collect(w.current()[1], "x", [1], 0))
    w.report_all("ENDED")
    assert w.jm.status is JobStatus.RUNNING
    fetched = w.replies[w.ask(FetchReports(0))]
    assert w.jm.status is JobStatus.RUNNING
    w.ask(FetchReports(fetched.next_offset))
    assert w.jm.status is JobStatus.FINISHED


def test_finished_job_does_not_wait_for_its_client_for_ever():
    w = world(attached=True).run()
    w.to_jm(collect(w.current()[1], "x", [1], 0))
    w.report_all("ENDED")
    w.fire(JOB_MANAGER, "delivery")
    assert w.jm.status is JobStatus.FINISHED
    w.archive()
    assert w.timers[(JOB_MANAGER, "linger")].delay_ms == 30_000


def test_slot_can_be_killed_on_purpose():
    w = world(pipeline(2), num_slots=2).run()
    assert w.replies[w.ask(KillSlotOnPurpose(1))] == "slot-1-1"
    assert [kill.slot_host for kill in w.messages(KillSlot)] == ["slot-1-1"]
    assert isinstance(w.replies[w.ask(KillSlotOnPurpose(2))], RequestFailed)


def test_metrics_are_rates_between_two_reports():
    w = world(pipeline(2), num_slots=2).run()
    for attempt in w.current():
        for elapsed, records in ((1_000, 100), (3_000, 500)):
            numbers = {"elapsed_ms": elapsed, "records_in": records, "records_out": records, "busy_ms": elapsed / 2}
            numbers["watermark_ms"] = 40 + attempt.subtask
            w.to_jm(MetricsReported(attempt, numbers, {"map": {"num_late_records_dropped": 3, "watermark_ms": 9}}))
    w.fire(JOB_MANAGER, "view")
    view = {v.vertex_id: v for v in w.jm.view().vertices}["map"]
    assert (view.records_in, view.records_in_per_s, view.busy, view.idle) == (1_000, 400.0, 0.5, 0.5)
    assert view.watermark_ms == 40
    assert view.metrics == {"num_late_records_dropped": 6}
    assert view.states == {"RUNNING": 2}


def test_dispatcher_hears_of_every_state():
    w = world(restart=ENDLESS).run()
    fail_one(w)
    w.fire(JOB_MANAGER, "restart")
    w.report_all("ENDED")
    assert [s for i, s in enumerate(statuses(w)) if i == 0 or s != statuses(w)[i - 1]] == [
        "CREATED", "RUNNING", "RESTARTING", "RUNNING", "FINISHED",
    ]  # fmt: skip
    assert all(c.to == DISPATCHER for c in w.outside if isinstance(getattr(c, "message", None), JobStatusChanged))


def test_commands_survive_the_way_to_another_process():
    w = world(pipeline(2), num_slots=2, checkpoints=True, attached=True).run()
    w.fire(COORDINATOR, "interval")
    for command in w.outside:
        if hasattr(command, "message") and isinstance(command.to, Address):
            cloudpickle.loads(cloudpickle.dumps(command.message))
    assert w.messages(RequestSlots)[0].job_manager == JOB_MANAGER
    assert {c.to for c in w.outside if isinstance(getattr(c, "message", None), RequestSlots)} == {RESOURCE_MANAGER}


def test_completed_checkpoint_is_notified_to_every_task():
    w = world(checkpoints=True).run()
    w.fire(COORDINATOR, "interval")
    assert [m.checkpoint_id for m in w.messages(NotifyCheckpointComplete)] == [1, 1]
    w.to_jm(CheckpointEnded(1, 9, CheckpointOutcome.COMPLETED, path="somewhere", metrics={"duration_ms": 5}))
    assert w.jm.view().last_checkpoint_path == "somewhere"


def test_rows_of_a_sink_that_does_not_say_that_it_collects_are_refused():
    w = world(graph(vertex("source", 1))).run()
    w.to_jm(ReportEmitted(w.current()[0], "source", "collect", ("x", [1]), 0))
    assert w.jm.status is JobStatus.FAILED
    assert "does not say so" in w.jm.view().failure


def test_rows_wanted_are_answered_in_any_phase():
    w = world(checkpoints=True)
    w.is_io_free = False
    w.start()
    w.to_jm(ReportsWanted(3))
    assert sent(w.jm.handle(ReportsWanted(3), 0), ReportsPending) == [ReportsPending(3, ())]
