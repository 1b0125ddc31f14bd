"""Nodes that lose processes too often: counting, blocking, lifting; and what the ResourceManager makes of it."""

import pytest
from control_harness import JOB_MANAGER, RESOURCE_MANAGER, of_kind, sent, settings

from headrace.engine.cluster.blocklist import Blocklist
from headrace.engine.cluster.resource_manager import ResourceManager
from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.config import ClusterSettings
from headrace.engine.kernel.machine import Address, HostPinged, HostTerminated, KillHost, SpawnHost, StartTimer
from headrace.engine.protocol.control_messages import JobNote, SlotFailed
from headrace.engine.protocol.messages import RegisterTaskManager, ReleaseJob, RequestSlots, TaskManagerLost


def blocklist(threshold=3, block_ms=1_000):
    return Blocklist(ClusterSettings(node_failures_until_blocked=threshold, node_block_ms=block_ms))


def test_blocked_by_the_last_of_so_many_failures_and_for_so_long():
    nodes = blocklist()
    assert [nodes.fail("a", at) for at in (0, 500, 999)] == [0, 0, 3]
    assert nodes.blocked(999) == ("a",)
    assert nodes.blocked(1_998) == ("a",)
    assert nodes.blocked(1_999) == ()
    assert [nodes.fail("a", at) for at in (2_000, 2_001, 2_002)] == [0, 0, 3], "the counting begins anew"


def test_failures_far_apart_do_not_add_up():
    nodes = blocklist()
    assert not any(nodes.fail("a", at) for at in range(0, 10_000, 500))


def test_nodes_are_counted_apart_and_unknown_ones_not_at_all():
    nodes = blocklist(2)
    assert [nodes.fail(node, 0) for node in ("a", "b", "", "", "", "b", "a")] == [0, 0, 0, 0, 0, 2, 2]
    assert nodes.blocked(0) == ("b", "a")


def test_a_lifted_block_needs_as_many_failures_again():
    nodes = blocklist(2)
    assert [nodes.fail("a", 0), nodes.fail("a", 0)] == [0, 2]
    assert nodes.lift("a", 10)
    assert not nodes.lift("a", 10)
    assert nodes.blocked(10) == ()
    assert [nodes.fail("a", 20), nodes.fail("a", 20)] == [0, 2]


def test_failures_of_a_blocked_node_do_not_prolong_the_block():
    nodes = blocklist(1)
    assert [nodes.fail("a", 0), nodes.fail("a", 900)] == [1, 0]
    assert nodes.blocked(1_000) == ()


def test_a_clock_that_jumps_back_forgets_rather_than_blocks_for_ever():
    nodes = blocklist(2)
    nodes.fail("a", 1_000_000)
    assert nodes.fail("a", 0) == 0
    nodes.fail("b", 1_000_000)
    nodes.fail("b", 1_000_000)
    assert nodes.blocked(0) == ()


def test_off_by_default():
    nodes = Blocklist(ClusterSettings())
    assert not any(nodes.fail("a", 0) for _ in range(100))


@pytest.mark.parametrize("option", [{"node_failures_until_blocked": -1}, {"node_block_ms": 0}])
def test_settings_are_checked(option):
    with pytest.raises(ConfigurationError, match=next(iter(option))):
        ClusterSettings(**option)


class Driver:
    """A ResourceManager whose TaskManagers live on the nodes that the test says."""

    def __init__(self, **options):
        options = {"node_failures_until_blocked": 2, "node_block_ms": 60_000, **options}
        self.rm = ResourceManager(RESOURCE_MANAGER, ClusterSettings(slots_per_task_manager=1, **options))
        self.now, self.spawned, self.timers = 0, [], {}

    def give(self, event):
        commands = self.rm.handle(event, self.now)
        self.spawned += of_kind(commands, SpawnHost)
        self.timers.update({command.key: command for command in of_kind(commands, StartTimer)})
        return commands

    def request(self, num_slots, job="a"):
        options = settings(heartbeat_interval_ms=100, heartbeat_timeout_ms=200)
        return self.give(RequestSlots(job, 1, JOB_MANAGER, num_slots, options))

    def live(self, node, job="a"):
        """The TaskManager spawned last has come up on a node."""
        host = self.spawned[-1].host
        commands = self.give(HostPinged(host, 0, "", 1, node))
        return host, [*commands, *self.give(RegisterTaskManager(job, host, Address(host, "tm"), 1, (), {}, 1))]

    def blocked(self):
        """A node "bad" on which two TaskManagers have died; a third one is on its way."""
        self.request(1)
        for _ in range(2):
            host, _ = self.live("bad")
            commands = self.give(HostTerminated(host, "segmentation fault", "bad"))
        return commands


def notes(commands):
    return [note.text for note in sent(commands, JobNote, JOB_MANAGER)]


def test_task_managers_are_spread():
    driver = Driver()
    driver.request(2)
    assert [(spawn.resources["spread"], spawn.avoid) for spawn in driver.spawned] == [(1.0, ()), (1.0, ())]


def test_a_lost_task_manager_is_reported_with_its_node():
    driver = Driver()
    driver.request(1)
    host, _ = driver.live("n1")
    [lost] = sent(driver.give(HostTerminated(host, "killed")), TaskManagerLost)
    assert lost.node == "n1"


def test_one_that_is_lost_right_after_its_registration_names_its_node_and_is_counted():
    """It says itself where it is; no sign of life has yet, and nobody tells it with the end."""
    driver = Driver()
    driver.request(1)
    for _ in range(2):
        host = driver.spawned[-1].host
        driver.give(RegisterTaskManager("a", host, Address(host, "tm"), 1, (), {}, 1, "bad"))
        commands = driver.give(HostTerminated(host, "segmentation fault", ""))
        assert [lost.node for lost in sent(commands, TaskManagerLost)] == ["bad"]
    assert driver.spawned[-1].avoid == ("bad",)
    host = driver.spawned[-1].host
    commands = driver.give(RegisterTaskManager("a", host, Address(host, "tm"), 1, (), {}, 1, "bad"))
    assert len(notes(commands)) == 1, "no other node had room"
    assert notes(driver.give(HostPinged(host, 0, "", 1, "bad"))) == []


def test_the_successor_avoids_a_node_that_has_lost_too_many_and_the_job_is_told():
    driver = Driver()
    commands = driver.blocked()
    assert [spawn.avoid for spawn in driver.spawned] == [(), (), ("bad",)]
    assert notes(commands) == ["node bad is blocked for 60 s: 2 processes on it have died"]
    driver.live("good")
    driver.now = 60_000
    driver.request(2)
    assert driver.spawned[-1].avoid == ()


def test_other_jobs_avoid_it_too():
    driver = Driver()
    driver.blocked()
    driver.request(1, job="b")
    assert driver.spawned[-1].avoid == ("bad",)


def test_a_block_is_lifted_when_no_other_node_has_room():
    driver = Driver()
    driver.blocked()
    host, commands = driver.live("bad")
    [note] = notes(commands)
    assert note == f"node bad is no longer blocked: no other node had room for TaskManager {host}"
    driver.give(HostTerminated(host, "segmentation fault"))
    assert driver.spawned[-1].avoid == ()


def test_one_on_its_way_before_the_block_does_not_lift_it():
    driver = Driver()
    driver.request(2)
    first, late = [spawn.host for spawn in driver.spawned]
    driver.give(HostPinged(first, 0, "", 1, "bad"))
    for _ in range(2):
        driver.give(SlotFailed("a", first, "bad"))
    assert notes(driver.give(HostPinged(late, 0, "", 1, "bad"))) == []
    driver.request(3)
    assert driver.spawned[-1].avoid == ("bad",)
    moved = driver.give(SlotFailed("a", late, "bad"))
    assert [kill.host for kill in of_kind(moved, KillHost)] == [late], "its slots die on a blocked node, too"


def test_silence_counts():
    driver = Driver(node_failures_until_blocked=1)
    driver.request(1)
    host, _ = driver.live("bad")
    commands = []
    while not of_kind(commands, KillHost):
        commands = driver.give(driver.timers.pop("pings-a").message)
    commands = driver.give(HostTerminated(host, "killed"))
    assert notes(commands)
    assert driver.spawned[-1].avoid == ("bad",)


def test_what_was_given_back_or_released_does_not_count():
    driver = Driver(node_failures_until_blocked=1)
    driver.request(2)
    spare, _ = driver.live("n1")
    options = settings(heartbeat_interval_ms=100, heartbeat_timeout_ms=200)
    driver.give(RequestSlots("a", 1, JOB_MANAGER, 1, options, (spare,)))
    assert notes(driver.give(HostTerminated(spare, "stopped", "n1"))) == []
    driver.give(ReleaseJob("a", 1))
    driver.give(HostTerminated(driver.spawned[0].host, "killed", "n1"))
    driver.request(1, job="b")
    assert driver.spawned[-1].avoid == ()


def test_a_task_manager_whose_slots_keep_dying_moves_away():
    driver = Driver()
    driver.request(1)
    host, _ = driver.live("bad")
    assert driver.give(SlotFailed("a", host, "bad")) == []
    commands = driver.give(SlotFailed("a", host, ""))
    assert notes(commands)
    assert [kill.host for kill in of_kind(commands, KillHost)] == [host]
    assert driver.give(SlotFailed("a", host, "bad")) == [], "it is being ended already"
    commands = driver.give(HostTerminated(host, "its node is blocked", "bad"))
    assert notes(commands) == [], "an ordered death is not counted"
    assert driver.spawned[-1].avoid == ("bad",)
