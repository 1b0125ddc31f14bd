"""When a job is rescaled: the window, bounds, cool-downs, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from control_harness import edge, graph, vertex
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.autoscaler.autoscaler import AUTOSCALER, Autoscaler
from headrace.engine.autoscaler.evaluation import Observation, VertexTotals
from headrace.engine.autoscaler.topology import Topology
from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.autoscaler_settings import AutoscalerSettings
from headrace.engine.protocol.views import RescaleView

SETTINGS = AutoscalerSettings(
    metrics_window_ms=10_000,
    stabilization_interval_ms=5_000,
    scale_up_grace_period_ms=60_000,
    scale_down_interval_ms=30_000,
    catch_up_duration_ms=60_000,
    restart_time_ms=2_000,
    control_loop_interval_ms=1_000,
)
WORK_MS = 5.0
"""What a record costs: a task can do 200 a second."""


class Plant:
    """A job whose tasks do what they can of what arrives; a second at a time."""

    def __init__(self, settings=SETTINGS, parallelism=1, max_parallelism=128):
        self.graph = graph(
            vertex("source", 1, is_parallel=False),
            replace(vertex("count", 1, slot_sharing_group="heavy"), max_parallelism=max_parallelism),
            edges=[edge(0, "source", "count")],
        )
        self.settings = settings
        self.autoscaler = Autoscaler(settings)
        self.now_ms, self.deployment, self.parallelism = 0, 0, parallelism
        self.backlog, self.read, self.busy_ms, self.since_ms = 0.0, 0.0, 0.0, 0
        self.past: list[RescaleView] = []

    def second(self, arriving, *, knows_backlog=True, carries_out=True):
        self.now_ms += 1_000
        self.backlog += arriving
        done = min(self.backlog, self.parallelism * 1_000 / WORK_MS)
        self.backlog -= done
        self.read += done
        self.busy_ms += done * WORK_MS
        elapsed = self.now_ms - self.since_ms
        held_up_ms = 0 if knows_backlog or self.backlog < 1 else elapsed
        pending = self.backlog if knows_backlog else None
        totals = Observation(
            self.now_ms,
            {
                "source": VertexTotals(1, self.read, self.read * 0.01, held_up_ms, elapsed, pending),
                "count": VertexTotals(self.parallelism, self.read, self.busy_ms, 0, elapsed * self.parallelism, None),
            },
        )
        topology = Topology.of(self.graph, {"source": 1, "count": self.parallelism}, self.settings)
        decision = self.autoscaler.observe(self.now_ms, self.deployment, topology, totals, self.past)
        if decision is not None:
            before = {"source": 1, "count": self.parallelism}
            view = RescaleView(self.now_ms, AUTOSCALER, decision.reason, before, decision.parallelism)
            if carries_out:
                self.parallelism = decision.parallelism["count"]
                self.past.append(replace(view, ended_ms=self.now_ms))
                self.restart()
            else:
                self.past.append(replace(view, ended_ms=self.now_ms, error="no slots"))
        return decision

    def restart(self):
        self.deployment += 1
        self.read = self.busy_ms = 0.0
        self.since_ms = self.now_ms

    def run(self, seconds, arriving, **options):
        return [found for _ in range(seconds) if (found := self.second(arriving, **options)) is not None]


def test_nothing_is_decided_before_the_job_has_settled_and_been_measured():
    plant = Plant()
    assert plant.run(15, 1_000) == []
    assert plant.autoscaler.status == "it has not been measured for long enough"
    [decision] = plant.run(2, 1_000)
    assert decision.parallelism["count"] > 1


def test_a_load_that_doubles_and_falls_is_followed_up_and_down():
    plant = Plant()
    plant.run(60, 100)
    assert plant.parallelism == 1
    plant.run(120, 400)
    assert plant.parallelism >= 3
    assert plant.backlog < 1, "it has caught up"
    highest = plant.parallelism
    plant.run(25, 60)
    assert plant.parallelism == highest, "the load may come back"
    plant.run(120, 60)
    assert plant.parallelism == 1
    assert all(0 < len(view.reason) < 400 for view in plant.past)
    assert "records/s are asked of 'count'" in plant.past[0].reason


def test_an_unsteady_load_is_not_followed_down():
    plant = Plant(parallelism=4)
    for _ in range(6):
        plant.run(25, 100)
        plant.run(15, 520)
    assert plant.parallelism == 4


def test_it_is_lowered_to_the_highest_that_was_enough_meanwhile():
    plant = Plant(parallelism=8)
    plant.run(22, 20)  # one would do
    plant.run(16, 600)  # five are needed for some time: still little for eight
    [decision] = plant.run(24, 20)
    assert decision.parallelism == {"count": 5}


def test_a_source_that_does_not_know_its_backlog_is_taken_at_its_backpressure():
    plant = Plant()
    plant.run(200, 700, knows_backlog=False)
    assert 4 <= plant.parallelism <= 8  # what it was late with it worked off, unseen


def test_a_decision_that_came_to_nothing_is_not_repeated_at_once():
    plant = Plant()
    assert len(plant.run(30, 1_000, carries_out=False)) == 1
    assert plant.autoscaler.status == "the last rescale came to nothing: no slots"
    assert len(plant.run(10, 1_000, carries_out=False)) == 1


def test_a_vertex_with_less_than_its_group_has_slots_gets_as_many():
    job_graph = graph(vertex("source", 1), vertex("count", 4), edges=[edge(0, "source", "count")])
    autoscaler, decisions = Autoscaler(SETTINGS), []
    topology = Topology.of(job_graph, {"source": 1, "count": 4}, SETTINGS)
    for now_ms in range(1_000, 20_000, 1_000):
        totals = {
            "source": VertexTotals(1, now_ms, 0.95 * now_ms, 0, now_ms),
            "count": VertexTotals(4, now_ms, 0.2 * now_ms, 0, 4 * now_ms),
        }
        decisions.append(autoscaler.observe(now_ms, 1, topology, Observation(now_ms, totals), []))
    assert decisions[15].parallelism == {"source": 4}


def test_bounds_are_kept_and_what_is_beyond_them_is_said():
    plant = Plant(max_parallelism=3)
    plant.run(60, 2_000)
    assert plant.parallelism == 3
    assert plant.autoscaler.status == "more would be needed than is allowed for heavy"
    plant = Plant(replace(SETTINGS, vertex_min_parallelism=2))
    [decision] = plant.run(17, 1)
    assert decision.parallelism == {"count": 2}
    plant = Plant(replace(SETTINGS, scale_up_max_factor=1.0))
    [decision] = plant.run(17, 2_000)
    assert decision.parallelism == {"count": 2}
    plant = Plant(replace(SETTINGS, scale_down_max_factor=0.5), parallelism=8)
    [decision, *_] = plant.run(60, 1)
    assert decision.parallelism == {"count": 4}


def settled(job_graph, parallelism, busy, settings=SETTINGS, rounds=6):
    """A job whose vertices stay so busy, whatever parallelism they are given; gives it, the decisions, and the word."""
    autoscaler, decisions, past, now_ms = Autoscaler(settings), [], [], 0
    for deployment in range(rounds):
        since_ms, decision = now_ms, None
        while decision is None and now_ms - since_ms < 60_000:
            now_ms += 1_000
            ms = now_ms - since_ms
            totals = {
                name: VertexTotals(width, ms, busy[name] * ms, ms if name == "source" else 0, width * ms)
                for name, width in parallelism.items()
            }
            topology = Topology.of(job_graph, parallelism, settings)
            decision = autoscaler.observe(now_ms, deployment, topology, Observation(now_ms, totals), past)
        if decision is None:
            return parallelism, decisions, autoscaler.status
        decisions.append(decision)
        past.append(RescaleView(now_ms, AUTOSCALER, decision.reason, parallelism, decision.parallelism, now_ms))
        parallelism = {**parallelism, **decision.parallelism}
    pytest.fail(f"it is never content: {[one.parallelism for one in decisions]}")


def test_a_full_source_that_cannot_be_split_is_named_and_nothing_is_raised_for_it_in_vain():
    """Its slot is full whatever the others get, so what they get is bounded by what they need themselves."""
    single = replace(vertex("source", 1), is_parallel=False)
    job_graph = graph(single, vertex("count", 1), edges=[edge(0, "source", "count")])
    parallelism, decisions, status = settled(job_graph, {"source": 1, "count": 1}, {"source": 0.97, "count": 0.02})
    assert len(decisions) <= 1
    assert parallelism["count"] <= 2
    more = "more would be needed than is allowed for default"
    assert status == f"{more}: no number of slots relieves 'source', which runs as one task and cannot be split"
    excluding = replace(SETTINGS, vertex_exclude_ids=("source",))
    job_graph = graph(vertex("source", 2), vertex("count", 2), edges=[edge(0, "source", "count")])
    *_, status = settled(job_graph, {"source": 2, "count": 2}, {"source": 1.94, "count": 0.02}, excluding)
    assert status.endswith("no number of slots relieves 'source', which vertex.exclude.ids leaves as it is")


def test_a_small_factor_still_raises_by_one():
    plant = Plant(replace(SETTINGS, scale_up_max_factor=0.5))
    [decision] = plant.run(17, 2_000)
    assert decision.parallelism == {"count": 2}
    plant = Plant(replace(SETTINGS, scale_up_max_factor=0.0))
    assert plant.run(60, 2_000) == []


def test_what_a_client_has_lowered_is_lowered_further_in_its_time():
    plant = Plant(parallelism=8)
    plant.run(22, 20)
    plant.run(16, 600)  # five are needed for some time
    plant.parallelism = 4
    plant.restart()
    [decision] = plant.run(60, 20)
    assert plant.now_ms >= 38_000 + 30_000, "the interval began anew"
    assert decision.parallelism["count"] < 4


def test_time_in_which_the_job_was_not_measured_does_not_count_as_enough():
    plant = Plant(parallelism=8)
    assert plant.run(20, 20) == []
    assert plant.autoscaler.status.startswith("less would be enough")
    plant.autoscaler.pause()
    plant.now_ms += 1_000_000  # it fails again and again
    plant.restart()
    assert plant.run(25, 20) == [], "ten seconds more that were measured"
    assert len(plant.run(30, 20)) == 1


def test_advice_to_raise_does_not_keep_it_from_being_lowered():
    plant = Plant(parallelism=8)
    advice = RescaleView(0, AUTOSCALER, "", {"count": 8}, {"count": 9}, ended_ms=0, is_advice=True)
    plant.past.append(advice)
    assert len(plant.run(50, 20)) == 1


def test_a_failure_begins_a_new_window():
    plant = Plant()
    plant.run(12, 1_000)
    plant.restart()
    assert plant.run(15, 1_000) == []
    assert plant.run(2, 1_000)


def test_tasks_that_have_not_reported_are_waited_for():
    autoscaler = Autoscaler(SETTINGS)
    topology = Topology.of(graph(vertex("source", 1)), {"source": 1}, SETTINGS)
    for now_ms in range(0, 60_000, 1_000):
        assert autoscaler.observe(now_ms, 1, topology, None, []) is None
    assert autoscaler.status == "some tasks have not reported yet"


@given(
    loads=st.lists(st.integers(0, 2_000), min_size=1, max_size=4),
    parallelism=st.integers(1, 12),
    knows_backlog=st.booleans(),
)
def test_any_load_that_stays_is_met_without_swinging(loads, parallelism, knows_backlog):
    """Within the bounds: it catches up, is not fuller than allowed, and rests there."""
    plant = Plant(replace(SETTINGS, vertex_max_parallelism=40), parallelism=parallelism)
    for arriving in loads:
        plant.run(40, arriving, knows_backlog=knows_backlog)
    plant.run(400, loads[-1], knows_backlog=knows_backlog)
    assert plant.backlog < 1
    assert loads[-1] * WORK_MS <= 1_000 * plant.parallelism
    assert plant.run(100, loads[-1], knows_backlog=knows_backlog) == []
    assert all(1 <= view.after["count"] <= 40 for view in plant.past)
    # Each load costs a few rescales at most, however it came.
    assert len(plant.past) <= 6 * len(loads) + 6


def test_flinks_keys_are_read_and_what_is_wrong_is_said():
    read = AutoscalerSettings.from_configuration
    found = read(
        {
            "job.autoscaler.enabled": "true",
            "job.autoscaler.metrics.window": "1 min",
            "job.autoscaler.utilization.target": "0.8",
            "job.autoscaler.vertex.max-parallelism": "12",
            "job.autoscaler.vertex.exclude.ids": "a; b",
            "job.autoscaler.scaling.enabled": "false",
        }
    )
    assert found == AutoscalerSettings(
        metrics_window_ms=60_000,
        utilization_target=0.8,
        vertex_max_parallelism=12,
        vertex_exclude_ids=("a", "b"),
        scaling_enabled=False,
    )
    assert read({"job.autoscaler.metrics.window": "1 min"}) is None
    for wrong, said in (
        (
            {"job.autoscaler.metric.window": "1 min"},
            "no option of the autoscaler is called 'job.autoscaler.metric.window'",
        ),
        ({"job.autoscaler.metrics.window": "soon"}, "job.autoscaler.metrics.window: "),
        ({"job.autoscaler.utilization.target": "x"}, "must be a number; got 'x'"),
        ({"job.autoscaler.utilization.target": "0.95"}, "grow in this order; got 0.4, 0.95, 0.9"),
        ({"job.autoscaler.enabled": "yes"}, "must be true or false; got 'yes'"),
        (
            {"job.autoscaler.vertex.min-parallelism": "0"},
            "vertex_min_parallelism must be at least 1, and finite; got 0",
        ),
        ({"job.autoscaler.scale-up.max-factor": "nan"}, "scale_up_max_factor must be at least 0, and finite; got nan"),
        (
            {"job.autoscaler.scale-down.max-factor": "nan"},
            "scale_down_max_factor must be at least 0, and finite; got nan",
        ),
    ):
        with pytest.raises(ConfigurationError, match=said.replace(".", r"\.")):
            read(wrong)
