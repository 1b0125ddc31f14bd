"""The simulator itself: that it is fair (what it promises), unfair (what it may do) and repeatable."""

from __future__ import annotations

import pytest
from actor_machines import Do, Echo, Puppet, Unpicklable, Until
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.hosts.host_system import HostGoneError
from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import SimSystem, SimulationHangError
from headrace.engine.kernel.machine import (
    Address,
    HostPinged,
    HostTerminated,
    KillHost,
    Offload,
    OffloadCompleted,
    PingHost,
    Send,
    SpawnHost,
    Started,
)

ROOT = Address("root", "puppet")
CHILD = Address("child", "puppet")
BAD_WEATHER = FaultPlan(loss=0.2, duplication=0.2, reordering=0.3, immortal=("root",))
TIMEOUT_MS = 600_000


def start(faults=FaultPlan(immortal=("root",)), seed=1):
    system = SimSystem(seed, faults)
    system.start("root", (("puppet", Puppet),))
    do(system, SpawnHost("child", (("puppet", Puppet), ("echo", Echo))))
    system.run_for(100)
    return system


def do(system, *commands, at=ROOT):
    system.ask(at, Do(list(commands)), TIMEOUT_MS)


def until(system, is_enough, at=ROOT):
    return system.ask(at, Until(is_enough), TIMEOUT_MS)


def heard(system, host="root", actor="puppet"):
    return system._hosts[host].kernel._cells[actor].machine.heard


@settings(max_examples=examples(30))
@given(
    seed=st.integers(0, 10**9),
    loss=st.floats(0, 0.5),
    duplication=st.floats(0, 0.5),
    reordering=st.floats(0, 0.5),
)
def test_messages_arrive_once_and_in_order_in_any_weather(seed, loss, duplication, reordering):
    system = start(FaultPlan(loss=loss, duplication=duplication, reordering=reordering, immortal=("root",)), seed)
    for n in range(40):
        do(system, Send(Address("child", "echo"), (n, ROOT)))
    assert until(system, lambda events: len(events) > 40)[1:] == list(range(40))


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    def run(seed):
        system = start(BAD_WEATHER, seed)
        do(system, *[Send(Address("child", "echo"), (n, ROOT)) for n in range(20)])
        until(system, lambda events: len(events) > 20)
        return system.digest, system.now_ms

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_a_plan_kills_at_the_named_point():
    system = start(FaultPlan(kills_at=(("recv.tuple", 3),), immortal=("root",)))
    for n in range(5):
        do(system, Send(Address("child", "echo"), (n, ROOT)))
    events = until(system, lambda events: any(isinstance(e, HostTerminated) for e in events))
    assert [e for e in events if isinstance(e, int)] == [0, 1]
    assert system.points["recv.tuple"] == 3
    assert system.num_kills == 1


def test_a_kill_after_the_work_loses_only_its_completion():
    done = []
    system = start(FaultPlan(kills_at=(("io.write.after", 1),), immortal=("root",)))
    do(system, Send(CHILD, Do([Offload("write", None, lambda: done.append(1))])))
    assert isinstance(until(system, lambda e: isinstance(e[-1], HostTerminated))[-1], HostTerminated)
    assert done == [1]


def test_a_kill_before_the_work_leaves_it_undone():
    done = []
    system = start(FaultPlan(kills_at=(("io.write.before", 1),), immortal=("root",)))
    do(system, Send(CHILD, Do([Offload("write", None, lambda: done.append(1))])))
    until(system, lambda e: isinstance(e[-1], HostTerminated))
    assert done == []


def test_work_of_the_dead_may_still_be_done():
    done = []
    system = start(FaultPlan(stray_work=1.0, immortal=("root",), offload_ms=(50.0, 50.0)))
    do(system, Send(CHILD, Do([Offload("write", None, lambda: done.append(1))])))
    system.run_for(20)
    system.kill_now("child")
    system.run_for(200)
    assert done == [1]


def test_a_host_knows_its_node_though_its_parent_may_not_be_told():
    for untold, told in ((0.0, "node-1"), (1.0, "")):
        system = start(FaultPlan(num_nodes=2, node_untold=untold, immortal=("root",)))
        assert heard(system, "child") == [Started(CHILD, "node-1")]
        do(system, PingHost("child"))
        system.run_for(100)
        system.kill_now("child")
        system.run_for(200)
        assert [event.node for event in heard(system)[1:]] == [told, told]


def test_a_frozen_host_answers_no_ping_and_wakes_as_if_nothing_had_been():
    system = start()
    system.freeze_now("child", 5_000)
    do(system, PingHost("child"), Send(Address("child", "echo"), ("late", ROOT)))
    system.run_for(4_000)
    assert len(heard(system)) == 1
    system.run_for(2_000)
    assert HostPinged("child", 0, "") in heard(system)
    assert "late" in heard(system)


def test_a_frozen_host_that_is_killed_late_wakes_as_a_zombie():
    done = []
    system = start(FaultPlan(late_kill=1.0, late_kill_ms=(10_000, 10_000), immortal=("root",)))
    do(system, Send(CHILD, Do([Offload("write", None, lambda: done.append(1))])))
    system.freeze_now("child", 5_000)
    do(system, KillHost("child", "no sign of life"))
    system.run_for(4_000)
    assert done == []
    events = until(system, lambda e: isinstance(e[-1], HostTerminated))
    assert events[-1].reason == "no sign of life"
    assert done == [1], "the zombie wrote before it died"


def test_children_outlive_their_parent_for_a_while():
    system = start(FaultPlan(orphan_ms=(500, 500), immortal=("root",)))
    do(system, Send(CHILD, Do([SpawnHost("grandchild", (("echo", Echo),))])))
    system.run_for(100)
    system.kill_now("child")
    do(system, Send(Address("grandchild", "echo"), ("ghost", ROOT)))
    assert until(system, lambda e: "ghost" in e)
    system.run_for(1_000)
    assert system.hosts == ["root"]


def test_random_kills_and_freezes_happen_and_spare_the_immortal():
    system = start(FaultPlan(random_kills=3, freezes=2, fault_window_ms=(200, 1_000), immortal=("root",)))
    for n in range(5):
        do(system, SpawnHost(f"child{n}", (("puppet", Puppet),)))
    system.run_for(2_000)
    assert system.num_kills == 3
    assert system.num_freezes == 2
    assert "root" in system.hosts
    assert len(system.hosts) == 4


def test_an_end_that_never_comes_is_told_with_its_story():
    system = start()
    with pytest.raises(SimulationHangError, match=r"recv\.Started") as caught:
        system.run_until(lambda: False, max_virtual_ms=1_000)
    assert caught.value.context["seed"] == 1


def test_what_is_left_behind_is_told():
    system = start()
    with pytest.raises(SimulationHangError, match="child"):
        system.check_leaks(("root",))
    do(system, KillHost("child", "enough"))
    system.run_for(1_000)
    system.check_leaks(("root",))


def test_a_host_that_ends_while_asked_is_told_of():
    system = start(FaultPlan(kills_at=(("recv.Asked", 1),), immortal=("root",)))
    with pytest.raises(HostGoneError):
        until(system, lambda e: True, at=CHILD)


def test_messages_can_be_copied_as_between_processes():
    message = ["mutable"]
    system = start(FaultPlan(pickle_messages=True, immortal=("root",)))
    do(system, Send(CHILD, message))
    system.run_for(100)
    received = heard(system, "child")[-1]
    assert received == message
    assert received is not message


def test_a_message_that_cannot_be_copied_is_the_senders_death():
    system = start(FaultPlan(pickle_messages=True, immortal=("root",)))
    do(system, Send(CHILD, "first"))
    system._hosts["child"].kernel.post("puppet", Do([Send(ROOT, Unpicklable())]))
    do(system, Send(CHILD, "wake up"))
    assert "stays where it is" in until(system, lambda e: isinstance(e[-1], HostTerminated))[-1].reason


def test_points_are_counted():
    system = start()
    do(system, Offload("write", None, lambda: 1))
    until(system, lambda e: isinstance(e[-1], OffloadCompleted))
    for point in ("do.Offload.write", "io.write.before", "io.write.after", "recv.OffloadCompleted.write"):
        assert system.points[point] == 1
