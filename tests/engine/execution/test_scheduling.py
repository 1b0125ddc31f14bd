"""Placement in slots (slot sharing, co-location), connectivity of pointwise exchanges as a property."""

import pytest
from control_harness import edge, graph, vertex
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.errors import ConfigurationError, NoResourceAvailableError
from headrace.engine.execution.graph import SlotPlace
from headrace.engine.execution.scheduling import (
    connected_consumers,
    connected_producers,
    fill,
    slot_layout,
    slots_needed,
)
from headrace.engine.functions.keys import KeySelector
from headrace.engine.kernel.machine import Address
from headrace.engine.operators.exchange import ForwardPartitioner, HashPartitioner, RescalePartitioner
from headrace.engine.protocol.views import SlotInfo

PARALLELISM = st.integers(1, 40)


def slots(**counts):
    return {tm: [SlotInfo(i, Address(f"{tm}-{i}", "slot")) for i in range(n)] for tm, n in counts.items()}


def place(job, offered):
    chosen = fill(slots_needed(job), offered)
    return {subtask: chosen[number] for subtask, number in slot_layout(job).items()}


def test_worked_placement():
    """2 TaskManagers x 3 slots; source 4, map 4, reduce 3: four pipelines, two on each, one slot each."""
    job = graph(
        vertex("source", 4),
        vertex("map", 4),
        vertex("reduce", 3),
        edges=[edge(0, "source", "map", ForwardPartitioner()), edge(1, "map", "reduce")],
    )
    assert slots_needed(job) == 4
    places = place(job, slots(tm1=3, tm2=3))
    pipelines = {}
    for (name, _subtask), where in places.items():
        pipelines.setdefault(where, []).append(name)
    assert len(pipelines) == 4
    assert sorted(sorted(names) for names in pipelines.values()) == [["map", "reduce", "source"]] * 3 + [
        ["map", "source"]
    ]
    assert sorted(where.task_manager for where in pipelines) == ["tm1", "tm1", "tm2", "tm2"]
    assert all(places[("source", i)] == places[("map", i)] for i in range(4))


def test_slots_needed_is_the_highest_parallelism_of_each_group_summed():
    job = graph(vertex("a", 2), vertex("b", 6), vertex("c", 3, slot_sharing_group="other"))
    assert slots_needed(job) == 9


def test_groups_do_not_share_slots():
    job = graph(vertex("a", 2), vertex("b", 2, slot_sharing_group="other"))
    places = place(job, slots(tm=4))
    assert len(set(places.values())) == 4


def test_co_located_vertices_share_slots_by_index_whatever_their_parallelism():
    options = {"co_location_group": "together"}
    job = graph(vertex("wide", 6), vertex("a", 4, **options), vertex("b", 2, **options))
    places = place(job, slots(tm1=3, tm2=3))
    assert all(places[("a", i)] == places[("b", i)] for i in range(2))


def test_co_location_over_sharing_groups_is_refused():
    job = graph(
        vertex("a", 1, co_location_group="x"), vertex("b", 1, co_location_group="x", slot_sharing_group="other")
    )
    with pytest.raises(ConfigurationError, match="co-location"):
        place(job, slots(tm=2))


def test_too_few_slots_are_named():
    with pytest.raises(NoResourceAvailableError, match="4 slots needed, 3 available"):
        place(graph(vertex("a", 4)), slots(tm1=1, tm2=2))


def test_load_follows_the_size_of_task_managers():
    places = place(graph(vertex("a", 6)), slots(big=8, small=4))
    used = [where.task_manager for where in places.values()]
    assert (used.count("big"), used.count("small")) == (4, 2)


def test_slots_that_stay_count_when_a_region_gets_others():
    """Of the emptier TaskManager a slot is taken, though the fuller one comes first by name."""
    offered = slots(tm1=4, tm2=4)
    kept = {number: SlotPlace("tm1", offered["tm1"][number]) for number in range(3)}
    chosen = fill(5, offered, kept)
    assert [chosen[number].task_manager for number in range(5)] == ["tm1"] * 3 + ["tm2"] * 2


def test_lower_parallelism_meets_its_rescale_peers():
    job = graph(vertex("source", 4), vertex("sink", 2))
    places = place(job, slots(tm=4))
    rescale = edge(0, "source", "sink", RescalePartitioner())
    for sink in range(2):
        peers = connected_producers(rescale, 4, 2, sink)
        assert places[("sink", sink)] in {places[("source", peer)] for peer in peers}


@given(PARALLELISM, PARALLELISM)
def test_pointwise_connectivity_is_one_relation_seen_from_both_sides(producers, consumers):
    rescale = edge(0, "a", "b", RescalePartitioner())
    down = {(p, c) for c in range(consumers) for p in connected_producers(rescale, producers, consumers, c)}
    up = {(p, c) for p in range(producers) for c in connected_consumers(rescale, producers, consumers, p)}
    assert down == up
    assert {p for p, _ in down} == set(range(producers))
    assert {c for _, c in down} == set(range(consumers))
    assert len(down) == max(producers, consumers)


@given(PARALLELISM)
def test_forward_connects_equal_indices(parallelism):
    forward = edge(0, "a", "b", ForwardPartitioner())
    for index in range(parallelism):
        assert list(connected_producers(forward, parallelism, parallelism, index)) == [index]
        assert list(connected_consumers(forward, parallelism, parallelism, index)) == [index]


def test_hash_connects_all_to_all():
    by_key = edge(0, "a", "b", HashPartitioner(KeySelector.of_field("k")))
    assert list(connected_producers(by_key, 3, 5, 4)) == [0, 1, 2]
    assert list(connected_consumers(by_key, 3, 5, 2)) == [0, 1, 2, 3, 4]
