"""How large TaskManagers are, what can never be had, and what is said while slots are awaited."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.kernel.cluster_shape import ClusterReport, NodeShape, awaited_text, refusal, task_manager_size
from headrace.engine.kernel.config import ClusterSettings

SETTINGS = ClusterSettings()


def report(*shapes, scales=True, is_complete=True, **options):
    made = tuple(NodeShape(f"t{index}", cpus, number) for index, (cpus, number) in enumerate(shapes))
    return ClusterReport(made, scales, is_complete, **options)


@pytest.mark.parametrize(
    ("wanted", "shapes", "size"),
    [
        (5, [(4, 8)], 4),
        (3, [(4, 8)], 3),  # no more than it wants
        (9, [(4, 8), (2, 8)], 2),  # fits on both kinds
        (4, [(0, 1), (2, 2)], 2),  # the head has no cores
        (5, [(3, 1), (2, 1)], 1),  # with 2 the 3 cores would leave one, and it takes all five
        (6, [(3, 2)], 3),
        (4, [], 1),  # nothing is known
        (4, [(0, 1)], 1),
    ],
)
def test_task_managers_fit_on_every_kind_of_node(wanted, shapes, size):
    assert task_manager_size(wanted, SETTINGS, report(*shapes, is_complete=bool(shapes))) == size


def test_what_the_user_says_wins_and_without_counting_there_is_one():
    assert task_manager_size(9, ClusterSettings(slots_per_task_manager=3), report((1, 1))) == 3
    assert task_manager_size(9, SETTINGS, None) == 9
    assert task_manager_size(9, ClusterSettings(cpu_per_slot=0.0), report((1, 1))) == 9


def test_a_slot_may_be_half_a_core_or_several():
    assert task_manager_size(9, ClusterSettings(cpu_per_slot=0.5), report((2, 9))) == 4
    assert task_manager_size(9, ClusterSettings(cpu_per_slot=2.0), report((5, 9))) == 2
    assert task_manager_size(9, ClusterSettings(cpu_per_slot=0.1), report((0.3, 9))) == 3


def test_what_can_never_be_had_is_refused_with_what_there_is():
    refused = refusal(5, SETTINGS, report((2, 2), (0, 1)))
    assert refused == "5 slots needed, 4 can ever be had; it has, or may launch, 2 x 2 cores (t0)"
    large = refusal(4, ClusterSettings(slots_per_task_manager=4), report((2, 2)))
    assert large == "a TaskManager of 4 slots needs 4 cores on one node; it has, or may launch, 2 x 2 cores (t0)"
    assert "no node with cores is known" in refusal(1, SETTINGS, report())


def test_what_may_come_is_not_refused():
    assert refusal(4, SETTINGS, report((2, 2))) is None
    assert refusal(99, SETTINGS, report((2, 2), is_complete=False)) is None
    assert refusal(99, SETTINGS, None) is None


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.0]), st.integers(1, 5)), max_size=4),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_what_is_not_refused_fits(wanted, shapes, cpu_per_slot):
    settings, seen = ClusterSettings(cpu_per_slot=cpu_per_slot), report(*shapes)
    size = task_manager_size(wanted, settings, seen)
    room = [int(cpus / cpu_per_slot) for cpus, number in shapes for _ in range(number)]
    if refusal(wanted, settings, seen) is not None:
        assert sum(room) < wanted
        return
    hosts = [size] * (wanted // size) + ([wanted % size] if wanted % size else [])
    for host in hosts:
        node = next(index for index, free in enumerate(room) if free >= host)
        room[node] -= host


def test_texts_say_what_the_cluster_does():
    launching = report((2, 2), launching=(("t0", 1), ("gpu", 2)), failures=("t0: no capacity",))
    text = "the cluster launches 3 nodes (1 of type 't0', 2 of type 'gpu'); the last launch failed: t0: no capacity"
    assert awaited_text(launching) == text
    assert awaited_text(report((2, 2))).startswith("the cluster launches nothing; it has, or may launch, 2 x 2 cores")
    assert awaited_text(report((1, 3), scales=False)) == (
        "the cluster launches no nodes by itself; it has 3 x 1 core (t0)"
    )
