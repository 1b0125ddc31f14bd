"""The ResourceManager: how wishes become TaskManagers, what happens when one dies, and giving back."""

from dataclasses import replace

import pytest
from control_harness import DISPATCHER, JOB_MANAGER, RESOURCE_MANAGER, of_kind, sent, settings

from headrace.engine.cluster.resource_manager import ClusterObserved, ResourceManager
from headrace.engine.kernel.cluster_shape import ClusterReport, NodeShape
from headrace.engine.kernel.config import ClusterSettings
from headrace.engine.kernel.machine import (
    Address,
    HostPinged,
    HostTerminated,
    KillHost,
    Offload,
    OffloadCompleted,
    PingHost,
    SpawnHost,
    Started,
    StartTimer,
    StopHost,
)
from headrace.engine.protocol.control_messages import AllReleased, ReleaseAll
from headrace.engine.protocol.messages import (
    JobManagerChanged,
    RegisterTaskManager,
    ReleaseJob,
    RequestSlots,
    SlotRequestFailed,
    SlotsAwaited,
    StandInRequested,
    TaskManagerLost,
)

NEW_LEADER = Address("jm-2", "jm")


class Driver:
    def __init__(self, report=None, observe=None, **options):
        self.rm = ResourceManager(RESOURCE_MANAGER, ClusterSettings(**options), report, observe)
        self.timers, self.hosts = {}, []

    def give(self, event):
        commands = self.rm.handle(event, 0)
        for command in commands:
            if isinstance(command, StartTimer):
                self.timers[command.key] = command
            elif isinstance(command, SpawnHost):
                self.hosts.append(command)
        return commands

    def fire(self, key):
        return self.give(self.timers.pop(key).message)

    def request(self, num_slots, job="a", epoch=1, leader=JOB_MANAGER):
        options = settings(heartbeat_interval_ms=100, heartbeat_timeout_ms=300)
        return self.give(RequestSlots(job, epoch, leader, num_slots, options))

    def register(self, host, job="a", epoch=1):
        return self.give(RegisterTaskManager(job, host, Address(host, "tm"), epoch, (), {}, 1))


@pytest.mark.parametrize(
    ("wanted", "per_task_manager", "node_slots", "sizes"),
    [(4, 3, 0, [3, 3]), (4, 0, 0, [4]), (5, 0, 2, [2, 2, 1]), (1, 1, 8, [1]), (6, 2, 8, [2, 2, 2])],
)
def test_wish_becomes_task_managers(wanted, per_task_manager, node_slots, sizes):
    report = ClusterReport((NodeShape("", node_slots * 0.5, 10),)) if node_slots else None
    driver = Driver(report, slots_per_task_manager=per_task_manager, cpu_per_slot=0.5)
    driver.request(wanted)
    assert [spawn.resources["slots"] for spawn in driver.hosts] == sizes
    assert [spawn.resources["cpu"] for spawn in driver.hosts] == [size * 0.5 for size in sizes]


def test_task_manager_knows_whom_it_works_for():
    driver = Driver(managed_memory_bytes=300, slots_per_task_manager=3)
    driver.request(3)
    name, build = driver.hosts[0].actors[0]
    tm = build(Address(driver.hosts[0].host, name))
    registration = sent(tm.handle(Started(tm.address), 0), RegisterTaskManager, JOB_MANAGER)[0]
    assert (registration.job_id, registration.epoch) == ("a", 1)
    assert registration.resources["managed_memory_bytes_per_slot"] == 100


def test_repeated_wish_changes_nothing():
    driver = Driver()
    driver.request(2)
    assert of_kind(driver.request(2), SpawnHost) == []
    assert driver.request(9, epoch=0) == []


def test_hopeless_wish_is_refused_with_numbers():
    driver = Driver(max_slots=3)
    [failed] = sent(driver.request(4), SlotRequestFailed)
    assert "4 slots needed" in failed.reason
    assert "3" in failed.reason


def test_bound_is_kept_over_jobs_and_what_is_given_back_goes_to_who_waits():
    driver = Driver(max_slots=3)
    driver.request(2, "a")
    driver.request(2, "b")
    assert [spawn.resources["slots"] for spawn in driver.hosts] == [2, 1]
    driver.give(ReleaseJob("a", 1))
    driver.give(HostTerminated("tm-a-0", "stopped"))
    assert [spawn.resources["slots"] for spawn in driver.hosts] == [2, 1, 1]


def test_dead_task_manager_is_reported_and_replaced_at_once():
    driver = Driver()
    driver.request(2)
    driver.register("tm-a-0")
    commands = driver.give(HostTerminated("tm-a-0", "node lost"))
    assert sent(commands, TaskManagerLost, JOB_MANAGER) == [TaskManagerLost("a", "tm-a-0", "node lost")]
    assert [spawn.host for spawn in of_kind(commands, SpawnHost)] == ["tm-a-1"]


def test_task_manager_that_never_comes_is_replaced_with_growing_pauses():
    driver = Driver()
    driver.request(2)
    delays = []
    for _ in range(9):
        driver.give(HostTerminated(driver.hosts[-1].host, "no room"))
        delays.append(driver.timers["spawn-a"].delay_ms)
        driver.fire("spawn-a")
    assert delays == [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]
    driver.register(driver.hosts[-1].host)
    assert of_kind(driver.give(HostTerminated(driver.hosts[-1].host, "gone")), SpawnHost)


def test_new_leader_keeps_its_predecessors_task_managers():
    driver = Driver()
    driver.request(2)
    commands = driver.request(2, epoch=2, leader=NEW_LEADER)
    assert sent(commands, JobManagerChanged) == [JobManagerChanged("a", NEW_LEADER, 2)]
    assert of_kind(commands, SpawnHost) == []
    assert sent(driver.register("tm-a-0", epoch=1), JobManagerChanged) == [JobManagerChanged("a", NEW_LEADER, 2)]
    assert sent(driver.register("tm-a-0", epoch=2), JobManagerChanged) == []
    assert sent(driver.give(HostTerminated("tm-a-0", "x")), TaskManagerLost, NEW_LEADER)


def test_silent_task_manager_is_killed_once():
    driver = Driver()
    driver.request(2)
    driver.register("tm-a-0")
    for _ in range(3):
        assert of_kind(driver.fire("pings-a"), PingHost)
    assert [kill.host for kill in of_kind(driver.fire("pings-a"), KillHost)] == ["tm-a-0"]
    assert of_kind(driver.fire("pings-a"), KillHost) == []


def test_starting_task_manager_has_more_time():
    driver = Driver()
    driver.request(2)
    for _ in range(50):
        assert of_kind(driver.fire("pings-a"), KillHost) == []
    driver.give(HostPinged("tm-a-0", 0, ""))
    for _ in range(3):
        driver.fire("pings-a")
    assert of_kind(driver.fire("pings-a"), KillHost)


def silent_for(driver, rounds):
    return [command for _ in range(rounds) for command in driver.fire("pings-a")]


def test_beside_one_that_never_said_a_word_another_is_requested_once():
    driver = Driver()
    driver.request(2)
    assert of_kind(silent_for(driver, 2), SpawnHost) == []
    commands = silent_for(driver, 1)
    assert [spawn.resources["slots"] for spawn in of_kind(commands, SpawnHost)] == [2]
    [note] = sent(commands, StandInRequested, JOB_MANAGER)
    assert "tm-a-0" in note.text
    # The stand-in, silent as well, is waited for twice as long.
    assert of_kind(silent_for(driver, 5), SpawnHost) == []
    assert [spawn.host for spawn in of_kind(silent_for(driver, 1), SpawnHost)] == ["tm-a-2"]


def test_the_silent_one_is_given_back_once_the_job_runs_on_another():
    driver = Driver()
    driver.request(2)
    silent_for(driver, 4)
    driver.register("tm-a-1")
    options = settings(heartbeat_interval_ms=100, heartbeat_timeout_ms=300)
    running = RequestSlots("a", 1, JOB_MANAGER, 2, options, used=("tm-a-1",))
    assert [stop.host for stop in of_kind(driver.give(running), StopHost)] == ["tm-a-0"]
    assert of_kind(driver.give(HostTerminated("tm-a-0", "stopped")), SpawnHost) == []


def test_what_a_job_uses_stays_although_its_registration_has_not_come():
    driver = Driver()
    driver.request(2)
    silent_for(driver, 4)
    options = settings(heartbeat_interval_ms=100, heartbeat_timeout_ms=300)
    running = RequestSlots("a", 1, JOB_MANAGER, 2, options, used=("tm-a-0",))
    assert [stop.host for stop in of_kind(driver.give(running), StopHost)] == ["tm-a-1"]


@pytest.mark.parametrize("driver", [Driver(max_slots=3), Driver(ClusterReport(scales=True))])
def test_nobody_stands_in_beyond_the_bound_or_where_a_node_would_be_launched_for_it(driver):
    driver.request(2)
    assert of_kind(silent_for(driver, 50), SpawnHost) == []


def test_released_job_gives_everything_back():
    driver = Driver(slots_per_task_manager=1)
    driver.request(2)
    assert driver.give(ReleaseJob("a", 0)) == []
    assert len(of_kind(driver.give(ReleaseJob("a", 1)), StopHost)) == 2
    driver.give(HostTerminated("tm-a-0", "stopped"))
    assert [kill.host for kill in of_kind(driver.fire("release-a"), KillHost)] == ["tm-a-1"]
    assert sent(driver.give(HostTerminated("tm-a-1", "killed")), TaskManagerLost) == []
    assert of_kind(driver.request(1), SpawnHost) == []


def test_late_wish_of_an_ended_job_is_ignored():
    driver = Driver()
    driver.give(ReleaseJob("a", 2**62))
    assert driver.request(1, epoch=3) == []


def test_all_is_released_on_shutdown():
    driver = Driver()
    driver.request(2)
    assert sent(driver.give(ReleaseAll(DISPATCHER)), AllReleased) == []
    assert sent(driver.give(HostTerminated("tm-a-0", "stopped")), AllReleased, DISPATCHER)
    assert driver.request(1, "b") == []


def test_nothing_to_release_is_said_at_once():
    assert sent(Driver().give(ReleaseAll(DISPATCHER)), AllReleased, DISPATCHER)


def test_what_a_job_does_not_need_any_more_is_given_back():
    driver = Driver(slots_per_task_manager=2)
    driver.request(6)
    hosts = [command.host for command in driver.hosts]
    for host in hosts[:2]:
        driver.register(host)
    options = settings(heartbeat_interval_ms=100, heartbeat_timeout_ms=300)
    commands = driver.give(RequestSlots("a", 1, JOB_MANAGER, 2, options, unused=(hosts[1],)))
    assert [command.host for command in of_kind(commands, StopHost)] == [hosts[2], hosts[1]]
    assert not of_kind(driver.give(HostTerminated(hosts[1], "stopped")), SpawnHost)
    assert of_kind(driver.fire(f"give-back-{hosts[2]}"), KillHost)
    assert of_kind(driver.request(4), SpawnHost)


def test_what_one_job_gives_back_another_gets_that_waits_for_it():
    driver = Driver(slots_per_task_manager=2, max_slots=4)
    driver.request(4, "a")
    hosts = [command.host for command in driver.hosts]
    for host in hosts:
        driver.register(host)
    assert not of_kind(driver.request(2, "b"), SpawnHost)
    options = settings(heartbeat_interval_ms=100, heartbeat_timeout_ms=300)
    commands = driver.give(RequestSlots("a", 1, JOB_MANAGER, 2, options, unused=(hosts[1],)))
    assert not of_kind(commands, SpawnHost), "it may still be there"
    assert [command.host for command in of_kind(driver.give(HostTerminated(hosts[1], "")), SpawnHost)] == ["tm-b-0"]


def test_a_task_manager_given_back_before_it_came_holds_up_no_later_wish():
    driver = Driver(slots_per_task_manager=2)
    driver.request(4)
    driver.request(2)
    driver.give(HostTerminated("tm-a-1", "stopped"))
    assert [command.host for command in of_kind(driver.request(4), SpawnHost)] == ["tm-a-2"]


def test_task_managers_in_use_stay_and_those_that_a_job_has_let_go_of_are_replaced_if_it_needs_as_many():
    driver = Driver(slots_per_task_manager=2)
    driver.request(4)
    hosts = [command.host for command in driver.hosts]
    for host in hosts:
        driver.register(host)
    assert not of_kind(driver.request(1), StopHost)
    options = settings(heartbeat_interval_ms=100, heartbeat_timeout_ms=300)
    commands = driver.give(RequestSlots("a", 1, JOB_MANAGER, 3, options, unused=(hosts[0],)))
    assert [command.host for command in of_kind(commands, StopHost)] == [hosts[0]]
    assert len(of_kind(commands, SpawnHost)) == 1


# --------------------------------------------------------------------------------------------------------- autoscaling
SMALL = ClusterReport((NodeShape("worker", 2.0, 3),), scales=True, is_complete=True)
LAUNCHING = replace(SMALL, launching=(("worker", 1),))


def look():
    """Stands for the call; tests answer it themselves."""


def observed(driver, report=None, error=None):
    return driver.give(OffloadCompleted("observe_cluster", ClusterObserved(), report, error))


def test_who_waits_is_told_what_the_cluster_does_until_the_slots_are_there():
    driver = Driver(SMALL, look)
    [offload] = of_kind(driver.request(4), Offload)
    assert offload.work is look
    assert [spawn.resources["slots"] for spawn in driver.hosts] == [2, 2]
    assert of_kind(driver.request(4), Offload) == [], "one look at a time"
    [awaited] = sent(observed(driver, LAUNCHING), SlotsAwaited, JOB_MANAGER)
    assert awaited == SlotsAwaited("a", 1, "the cluster launches 1 node (1 of type 'worker')", True)
    assert of_kind(driver.fire("look"), Offload)
    driver.register("tm-a-0")
    [awaited] = sent(observed(driver, SMALL), SlotsAwaited)
    assert not awaited.is_launching
    driver.register("tm-a-1")
    assert driver.fire("look") == [], "nobody waits any more"
    assert of_kind(driver.give(HostTerminated("tm-a-1", "node lost")), Offload), "now somebody does"


def test_a_look_that_fails_is_made_again():
    driver = Driver(SMALL, look)
    driver.request(2)
    assert sent(observed(driver, error=OSError("no answer")), SlotsAwaited) == []
    assert of_kind(driver.fire("look"), Offload)


def test_what_cannot_be_had_is_refused_only_after_a_look():
    driver = Driver(SMALL, look)
    commands = driver.request(9)
    assert of_kind(commands, Offload)
    assert (of_kind(commands, SpawnHost), sent(commands, SlotRequestFailed)) == ([], [])
    [failed] = sent(observed(driver, SMALL), SlotRequestFailed, JOB_MANAGER)
    assert failed.reason.startswith("9 slots needed, 6 can ever be had")
    assert driver.fire("look") == []


def test_what_has_become_possible_is_granted():
    driver = Driver(SMALL, look)
    driver.request(7)
    grown = replace(SMALL, shapes=(NodeShape("worker", 2.0, 4),))
    commands = observed(driver, grown)
    assert [spawn.resources["slots"] for spawn in of_kind(commands, SpawnHost)] == [2, 2, 2, 1]
    assert sent(commands, SlotsAwaited)


def test_nobody_is_killed_for_waiting_while_nodes_are_launched():
    driver = Driver(SMALL, look)
    driver.request(2)
    observed(driver, LAUNCHING)
    for _ in range(4_000):
        assert of_kind(driver.fire("pings-a"), KillHost) == []
    driver.fire("look")
    observed(driver, SMALL)
    assert any(of_kind(driver.fire("pings-a"), KillHost) for _ in range(4_000))


def test_the_wait_of_a_new_leader_is_told_to_the_new_leader():
    driver = Driver(SMALL, look)
    driver.request(2)
    driver.request(2, epoch=2, leader=NEW_LEADER)
    assert sent(observed(driver, LAUNCHING), SlotsAwaited, NEW_LEADER)[0].epoch == 2
