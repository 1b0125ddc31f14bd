"""What a JobManager tells clients, tasks and the Dispatcher: views, rows, metrics; in a scripted cluster."""

from dataclasses import replace

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

from headrace.engine.functions.event_time_parts import OperatorEventTime, WatermarkPart
from headrace.engine.kernel.config import RestartStrategy
from headrace.engine.kernel.machine import Address
from headrace.engine.protocol.checkpoint_messages import (
    CheckpointEnded,
    CheckpointOutcome,
    NotifyCheckpointComplete,
    ReportsPending,
    ReportsWanted,
)
from headrace.engine.protocol.details import SubtaskTotals, SubtaskView
from headrace.engine.protocol.messages import (
    FetchJobDetails,
    FetchReports,
    JobStatusChanged,
    KillSlot,
    KillSlotOnPurpose,
    RequestFailed,
    RequestSlots,
    WaitForJob,
)
from headrace.engine.protocol.states import JobStatus, TaskState
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


def test_a_job_is_told_as_far_as_it_is_asked_for():
    """Of other vertices totals are left; both answers say the same of what is in both."""
    w = world(pipeline(2), num_slots=2, checkpoints=True).run()
    w.fire(COORDINATOR, "interval")
    for number, attempt in enumerate(w.current()):
        counts = dict.fromkeys(("records_in", "records_out", "busy_ms", "backpressured_ms"), 10.0**number)
        operators = {attempt.vertex: {"num_late_records_dropped": number, "num_records_in": 7}}
        made = (WatermarkPart("0", 5, 5),) if attempt.vertex == "source" else ()
        event_time = {attempt.vertex: OperatorEventTime(5, parts=made, subtask=attempt.subtask)}
        w.to_jm(MetricsReported(attempt, {**counts, "elapsed_ms": 1_000}, operators, event_time=event_time))
    whole, part = w.replies[w.ask(FetchJobDetails())], w.replies[w.ask(FetchJobDetails(("map",), False))]
    assert (len(whole.checkpoints.history), len(part.checkpoints.history)) == (1, 0)
    assert part.edges == whole.edges
    for view, told, more, left in zip(
        whole.view.vertices, part.view.vertices, whole.vertices, part.vertices, strict=True
    ):
        if view.vertex_id == "map":
            assert (told, left) == (view, more)
            continue
        assert left == replace(more, subtasks=())
        late = {"num_late_records_dropped": view.metrics["num_late_records_dropped"]}
        assert set(view.metrics) == {"num_late_records_dropped", "num_records_in"}
        assert told.metrics == late
        for operator, of_part in zip(view.operators, told.operators, strict=True):
            makes = view.vertex_id == "source"
            assert len(operator.event_time) == 2
            assert of_part == replace(operator, metrics=late, event_time=operator.event_time if makes else ())
        assert replace(told, metrics={}, operators=()) == replace(view, metrics={}, operators=())
    totals = {more.vertex_id: more.totals for more in part.vertices}
    read = dict.fromkeys(totals, 0.0)
    for number, attempt in enumerate(w.current()):
        read[attempt.vertex] += 10.0**number
    assert {vertex: one.records_in for vertex, one in totals.items()} == read
    assert {vertex: one.busy_ms for vertex, one in totals.items()} == read
    assert all(one.is_complete and one.elapsed_ms == 2_000 and one.ended_ms == -1 for one in totals.values())
    for more in whole.vertices:
        assert more.totals.started_ms == min(one.entered_ms["DEPLOYING"] for one in more.subtasks) >= 0
        assert more.totals.rates == tuple(one.records_in_per_s for one in more.subtasks)
        assert more.totals.max_busy == max(one.busy for one in more.subtasks)


def test_totals_of_subtasks_are_complete_once_all_have_reported_and_over_once_all_have_ended():
    def one(state, at_ms, numbers):
        entered = {"DEPLOYING": at_ms, state: at_ms + 10} if state != "CREATED" else {}
        return SubtaskView(0, TaskState(state), 0, "", "", "", entered, numbers)

    report = {"records_in": 3, "records_out": 2, "busy_ms": 1.6, "backpressured_ms": 0, "elapsed_ms": 9}
    created, running, ended = one("CREATED", 0, {}), one("RUNNING", 5, report), one("FAILED", 2, report)
    assert SubtaskTotals.of([]) == SubtaskTotals(False, 0, 0, 0, 0, 0, -1, -1, 0.0, 0.0, ())
    assert SubtaskTotals.of([created, running])[:8] == (False, 3, 2, 1, 0, 9, 5, -1)
    assert SubtaskTotals.of([running, ended])[:8] == (True, 6, 4, 3, 0, 18, 2, -1)
    assert SubtaskTotals.of([ended, ended])[:8] == (True, 6, 4, 3, 0, 18, 2, 12)


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
