"""What a JobManager does with decisions of the autoscaler: as with commands, and each is written down."""

from __future__ import annotations

import itertools
from dataclasses import replace

from control_harness import COORDINATOR, JOB, JOB_MANAGER, ControlWorld, edge, graph, settings, submission, vertex

from headrace.engine.autoscaler.autoscaler import AUTOSCALER
from headrace.engine.job.context.phase import Phase
from headrace.engine.kernel.autoscaler_settings import AutoscalerSettings
from headrace.engine.protocol.messages import RequestSlots, RescaleJob, SlotRequestFailed
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.task_messages import MetricsReported

SETTINGS = AutoscalerSettings(
    metrics_window_ms=2_000,
    stabilization_interval_ms=1_000,
    control_loop_interval_ms=1_000,
    scale_up_grace_period_ms=0,
    scale_down_interval_ms=3_000,
    catch_up_duration_ms=0,
)


def world(*, num_slots=2, predecessor=None, epoch=1, autoscaler=SETTINGS, **options):
    job_graph = graph(vertex("read", 2), vertex("count", 2), edges=[edge(0, "read", "count")])
    job_settings = settings(checkpoints=True, tolerable_failures=5, attached=False, autoscaler=autoscaler, **options)
    return ControlWorld(submission(job_graph, job_settings, 2), epoch, num_slots=num_slots, predecessor=predecessor)


def look(w, busy, seconds=1):
    """Let time pass in which the tasks of ``count`` are busy for a share of it, and the autoscaler looks."""
    for _ in range(seconds):
        began = getattr(w, "began_ms", {})
        for attempt in w.current():
            elapsed = w.now_ms + 1_000 - began.setdefault(attempt, w.now_ms)
            used = busy if attempt.vertex == "count" else 0.01
            numbers = {"records_in": elapsed / 10, "busy_ms": used * elapsed, "elapsed_ms": elapsed}
            w.to_jm(MetricsReported(attempt, {"backpressured_ms": 0, **numbers}))
        w.began_ms = began
        w.fire(JOB_MANAGER, "autoscaler")


def parallelisms(w):
    return tuple(v.parallelism for v in w.jm.view().vertices)


def slots_wanted(w):
    return [m.num_slots for m in w.messages(RequestSlots)]


def test_a_decision_goes_the_way_of_a_command_and_is_written_down():
    w = world(num_slots=3).run()
    look(w, 0.94, seconds=4)
    assert parallelisms(w) == (3, 3)
    assert w.jm.status is JobStatus.RUNNING
    assert w.jm.view().num_restarts == 0
    [rescale] = w.jm.view().rescales
    assert (rescale.trigger, rescale.before) == (AUTOSCALER, {"read": 2, "count": 2})
    assert rescale.after == {"read": 3, "count": 3}
    assert (rescale.ended_ms, rescale.error) == (w.now_ms, "")
    assert "records/s are asked of 'count', which can do" in rescale.reason
    assert rescale.numbers["count"]["busy"] == 0.94
    assert any(text.startswith("to be rescaled") and rescale.reason in text for _, text in w.jm.view().history)
    look(w, 0.01, seconds=8)
    assert parallelisms(w) == (2, 2), "not by more than 60 % at once"
    assert len(w.jm.view().rescales) == 2
    assert rescale.as_json()["vertices"][1]["to"] == 3


def test_slots_that_cannot_be_had_leave_the_job_as_it_is_and_are_not_asked_for_again_at_once():
    w = world().run()
    look(w, 0.94, seconds=4)
    assert slots_wanted(w) == [2, 3]
    w.to_jm(SlotRequestFailed(JOB, 1, "3 slots needed, 2 can ever be had"))
    assert w.jm.phase is Phase.EXECUTING
    assert parallelisms(w) == (2, 2)
    assert w.jm.view().rescales[-1].error.startswith("3 slots needed, 2 can ever be had")
    look(w, 0.94, seconds=2)
    assert len(w.jm.view().rescales) == 1
    assert w.jm.view().autoscaler.startswith("the last rescale came to nothing: 3 slots needed")
    look(w, 0.94, seconds=2)
    assert len(w.jm.view().rescales) == 2


def test_a_client_has_its_way_and_its_rescales_are_written_down_too():
    w = world(num_slots=3).run()
    w.ask(RescaleJob(3))
    assert parallelisms(w) == (3, 3)
    [rescale] = w.jm.view().rescales
    assert (rescale.trigger, rescale.after, rescale.error) == ("command", {"read": 3, "count": 3}, "")


def test_while_a_client_waits_for_slots_nothing_is_decided():
    w = world().run()
    w.ask(RescaleJob(4))
    look(w, 0.94, seconds=6)
    assert [one.trigger for one in w.jm.view().rescales] == ["command"]


def test_advice_is_written_down_once_and_changes_nothing():
    w = world(num_slots=3, autoscaler=replace(SETTINGS, scaling_enabled=False)).run()
    look(w, 0.94, seconds=8)
    assert parallelisms(w) == (2, 2)
    [advice] = w.jm.view().rescales
    assert advice.is_advice
    assert advice.as_json()["status"] == "ADVISED"


def test_advice_that_changes_is_not_written_down_each_time():
    w = world(num_slots=3, autoscaler=replace(SETTINGS, scaling_enabled=False)).run()
    for number in range(30):
        look(w, 0.94 + number % 3 / 50)
    times = [one.at_ms for one in w.jm.view().rescales]
    assert 1 < len(times) < 12
    assert all(later - earlier >= 3_000 for earlier, later in itertools.pairwise(times))


def test_what_a_lost_leader_had_begun_is_closed_by_the_next():
    w = world().run()
    look(w, 0.94, seconds=4)
    view = w.jm.view()
    assert view.rescales[-1].ended_ms is None
    after = world(predecessor=view, epoch=2).start()
    assert after.jm.view().rescales[-1].error == "its JobManager was lost"
    came_through = replace(view, parallelism={"read": 3, "count": 3})
    after = world(predecessor=came_through, epoch=2).start()
    assert (after.jm.view().rescales[-1].error, after.jm.view().rescales[-1].ended_ms) == ("", after.now_ms)


def test_a_failure_begins_a_new_window_and_the_end_of_the_job_ends_it():
    w = world(num_slots=3).run()
    look(w, 0.94, seconds=3)
    w.report(w.current()[0], "FAILED", RuntimeError("on purpose"))
    w.fire(JOB_MANAGER, "restart")
    look(w, 0.94, seconds=3)
    assert parallelisms(w) == (2, 2), "measured anew"
    look(w, 0.94, seconds=2)
    assert parallelisms(w) == (3, 3)
    w.report_all("ENDED")
    w.fire(JOB_MANAGER, "autoscaler")
    assert w.jm.phase is not Phase.EXECUTING
    assert (COORDINATOR, "autoscaler") not in w.timers
