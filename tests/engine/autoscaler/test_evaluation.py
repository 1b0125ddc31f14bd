"""What a job needs, worked out from what its tasks were measured to do."""

from __future__ import annotations

import itertools
from dataclasses import replace

from control_harness import edge, graph, vertex
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.autoscaler.evaluation import Observation, VertexTotals, evaluate, load, slots_for
from headrace.engine.autoscaler.topology import Topology, unknown_exclusions
from headrace.engine.kernel.autoscaler_settings import AutoscalerSettings
from headrace.engine.operators.exchange import ForwardPartitioner, ImplicitForwardPartitioner

SETTINGS = AutoscalerSettings(catch_up_duration_ms=10_000, restart_time_ms=0)
WINDOW_MS = 10_000


def observed(at_ms, **vertices):
    """Per vertex: tasks, records a second, share busy, share backpressured, pending; since the beginning."""
    seconds = at_ms / 1_000
    found = {}
    for name, (tasks, rate, busy, backpressured, pending) in vertices.items():
        elapsed = at_ms * tasks
        found[name] = VertexTotals(tasks, rate * seconds, busy * elapsed, backpressured * elapsed, elapsed, pending)
    return Observation(at_ms, found)


def evaluated(job_graph, first, last, settings=SETTINGS):
    parallelism = {name: one.num_tasks for name, one in last.vertices.items()}
    topology = Topology.of(job_graph, parallelism, settings)
    found = evaluate(topology, first, last, settings)
    assert found is not None
    return topology, found


def chain(*names, parallelism=1, **options):
    edges = [edge(number, *pair) for number, pair in enumerate(itertools.pairwise(names))]
    return graph(*(vertex(name, parallelism, **options) for name in names), edges=edges)


def both(**vertices):
    return observed(WINDOW_MS, **vertices), observed(2 * WINDOW_MS, **vertices)


def test_a_true_rate_is_records_by_busy_time_and_demand_follows_the_ratios_along_the_graph():
    steady = both(source=(1, 100, 0.1, 0, 0), split=(1, 100, 0.2, 0, None), count=(1, 500, 0.5, 0, None))
    _, found = evaluated(chain("source", "split", "count"), *steady)
    assert found.vertices["source"].true_rate == 1_000
    assert found.vertices["split"].true_rate == 500
    assert found.vertices["count"].true_rate == 1_000
    assert [one.target_rate for one in found.vertices.values()] == [100, 100, 500]
    assert not found.is_held_up


def test_what_arrives_is_what_is_read_and_by_how_much_the_backlog_grows():
    first = observed(WINDOW_MS, source=(1, 100, 0.5, 0, 1_000), count=(1, 500, 0.5, 0, None))
    last = observed(2 * WINDOW_MS, source=(1, 100, 0.5, 0, 3_000), count=(1, 500, 0.5, 0, None))
    _, found = evaluated(chain("source", "count"), first, last)
    source, count = found.vertices.values()
    assert (source.target_rate, source.catch_up_rate) == (300, 300)  # 100 and 200 that stay; 3,000 within 10 s
    assert (count.target_rate, count.catch_up_rate) == (1_500, 1_500)
    assert count.work(0.5, with_restart=False) == (1_500 / 0.5 + 1_500) / 1_000


def test_a_restart_adds_to_the_backlog():
    settings = AutoscalerSettings(catch_up_duration_ms=10_000, restart_time_ms=5_000)
    _, found = evaluated(chain("source"), *both(source=(1, 100, 0.5, 0, 0)), settings)
    assert found.vertices["source"].restart_rate == 50  # 5 s of 100 within 10 s
    assert found.vertices["source"].work(1.0, with_restart=True) == 150 / 200


def test_inputs_of_a_vertex_share_its_records_by_what_they_have_read():
    job_graph = graph(
        vertex("a", 1), vertex("b", 1), vertex("join", 1), edges=[edge(0, "a", "join"), edge(1, "b", "join")]
    )
    first = observed(WINDOW_MS, a=(1, 300, 0.1, 0, 0), b=(1, 100, 0.1, 0, 0), join=(1, 400, 0.4, 0, None))
    last = observed(2 * WINDOW_MS, a=(1, 300, 0.1, 0, 3_000), b=(1, 100, 0.1, 0, 0), join=(1, 400, 0.4, 0, None))
    _, found = evaluated(job_graph, first, last)
    assert found.vertices["a"].target_rate == 600
    assert found.vertices["join"].target_rate == 700


def test_tasks_that_share_a_slot_share_its_time():
    steady = both(source=(1, 100, 0.3, 0, 0), count=(1, 100, 0.5, 0, None))
    topology, found = evaluated(chain("source", "count"), *steady)
    [group] = topology.groups
    assert load(found, group, {"source": 1, "count": 1}, 1.0, with_restart=False) == 0.8
    assert slots_for(found, group, 0.7) == 2
    assert load(found, group, {"source": 1, "count": 2}, 1.0, with_restart=False) == 0.55, "slot 0 has both"


def test_a_vertex_that_cannot_be_split_does_not_make_the_others_wide():
    """Its slot stays full, however many there are."""
    job_graph = graph(vertex("source", 1, is_parallel=False), vertex("count", 2), edges=[edge(0, "source", "count")])
    for busy in (0.65, 0.95):
        steady = both(source=(1, 1_000, busy, 0, 0), count=(2, 1_000, 0.6, 0, None))
        topology, found = evaluated(job_graph, *steady)
        [group] = topology.groups
        assert slots_for(found, group, 0.7) == 4  # two by themselves: 1.2 of 0.7


def test_a_vertex_that_is_busy_without_records_needs_what_it_uses():
    """A window that fires once an hour, or timers."""
    steady = both(source=(4, 0, 0, 0, 0), count=(4, 0, 0.9, 0, None))
    topology, found = evaluated(chain("source", "count", parallelism=4), *steady)
    [group] = topology.groups
    assert slots_for(found, group, 0.9) == 4
    assert slots_for(found, group, 0.45) == 8


def test_vertices_of_other_slots_are_scaled_by_themselves():
    job_graph = graph(
        vertex("source", 1), vertex("count", 1, slot_sharing_group="heavy"), edges=[edge(0, "source", "count")]
    )
    steady = both(source=(1, 100, 0.1, 0, 0), count=(1, 100, 0.95, 0, None))
    topology, found = evaluated(job_graph, *steady)
    assert {group.name: slots_for(found, group, 0.5) for group in topology.groups} == {"default": 1, "heavy": 2}


def test_a_job_that_is_held_up_has_no_more_than_it_gives():
    """Its slots were busy for 60 % of their time; the rest went elsewhere, and is not there to be had."""
    held_up = both(source=(1, 100, 0.2, 0.5, None), count=(1, 100, 0.4, 0, None))
    topology, found = evaluated(chain("source", "count"), *held_up)
    [group] = topology.groups
    assert found.is_held_up
    assert found.usable == {"default": 0.6000000000000001}
    assert load(found, group, {"source": 1, "count": 1}, 0.9, with_restart=False) > 1.0
    backlog = both(source=(1, 100, 0.2, 0, 100 * 31), count=(1, 100, 0.4, 0, None))
    assert evaluated(chain("source", "count"), *backlog)[1].is_held_up, "more than 30 s of records wait"
    idle = both(source=(1, 100, 0.2, 0, 100 * 29), count=(1, 100, 0.4, 0, None))
    assert not evaluated(chain("source", "count"), *idle)[1].is_held_up


def test_what_has_not_run_says_nothing():
    topology = Topology.of(chain("source"), {"source": 1}, SETTINGS)
    first = observed(WINDOW_MS, source=(1, 100, 0.5, 0, 0))
    assert evaluate(topology, first, first, SETTINGS) is None


def test_vertices_that_belong_together_are_one_unit():
    job_graph = graph(
        vertex("source", 2, is_parallel=False),
        vertex("a", 2),
        vertex("b", 2),
        vertex("c", 2, slot_sharing_group="other"),
        vertex("d", 2, slot_sharing_group="third"),
        edges=[
            edge(0, "source", "a", ImplicitForwardPartitioner()),
            edge(1, "a", "b", ImplicitForwardPartitioner()),
            edge(2, "b", "c", ForwardPartitioner()),
            edge(3, "c", "d"),
        ],
    )
    topology = Topology.of(job_graph, dict.fromkeys("abcd", 2), AutoscalerSettings(vertex_exclude_ids=("d",)))
    assert [[unit.members for unit in group.units] for group in topology.groups] == [
        [("source",), ("a",), ("b", "c")], [("d",)],
    ]  # fmt: skip
    assert [[unit.is_fixed for unit in group.units] for group in topology.groups] == [[True, False, False], [True]]
    inner = replace(job_graph.vertices["a"], chain=(*job_graph.vertices["a"].chain, *job_graph.vertices["b"].chain))
    chained = graph(inner)
    assert Topology.of(chained, {"a": 2}, AutoscalerSettings(vertex_exclude_ids=("b",))).groups[0].is_fixed, (
        "by any uid"
    )
    assert topology.groups[0].at(5) == {"source": 2, "a": 5, "b": 5, "c": 5}


def test_uids_that_no_operator_has_are_found_with_what_was_meant():
    settings = AutoscalerSettings(vertex_exclude_ids=("b", "souce", "zzz"))
    found = unknown_exclusions(chain("source", "b"), settings)
    assert found == [("souce", "did you mean 'source'?"), ("zzz", None)]


@given(
    rates=st.lists(st.floats(1, 1e6), min_size=1, max_size=4),
    work_ms=st.lists(st.floats(0.001, 5), min_size=4, max_size=4),
    parallelism=st.integers(1, 8),
    utilization=st.floats(0.1, 1.0),
    high=st.integers(1, 40),
)
def test_the_least_number_of_slots_that_is_enough_is_found(rates, work_ms, parallelism, utilization, high):
    """And with it no slot is asked for more than it has, unless the bound forbids that."""
    settings = AutoscalerSettings(vertex_max_parallelism=high, catch_up_duration_ms=0)
    names = [f"v{index}" for index in range(len(rates))]
    first, last = (
        Observation(
            at_ms,
            {
                name: VertexTotals(
                    parallelism, rate * at_ms / 1_000, rate * ms * at_ms / 1_000, 0, at_ms * parallelism, None
                )
                for name, rate, ms in zip(names, rates, work_ms, strict=False)
            },
        )
        for at_ms in (1_000, 2_000)
    )
    topology, found = evaluated(chain(*names, parallelism=parallelism), first, last, settings)
    [group] = topology.groups
    number = slots_for(found, group, utilization)
    assert group.low <= number <= group.high
    at = {n: load(found, group, group.at(n), utilization, with_restart=True) for n in {number, max(number - 1, 1)}}
    assert at[number] <= 1.0 or number == high
    assert number == 1 or at[number - 1] > 1.0
