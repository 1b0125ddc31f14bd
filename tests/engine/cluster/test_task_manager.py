"""The TaskManager: its two phases, supervision of slots, and what a leader may rely on."""

import pytest
from control_harness import JOB, JOB_MANAGER, RESOURCE_MANAGER, TASK_MANAGER, of_kind, sent, settings

from headrace.engine.cluster.task_manager import TaskManager
from headrace.engine.kernel.machine import (
    Address,
    CancelTimer,
    HostPinged,
    HostTerminated,
    KillHost,
    PingHost,
    Send,
    SpawnHost,
    Started,
    StartTimer,
)
from headrace.engine.protocol.control_messages import RelayToSlot, SlotFailed
from headrace.engine.protocol.messages import (
    AcknowledgeRegistration,
    FailTask,
    Heartbeat,
    JobManagerChanged,
    KillSlot,
    RegisterTaskManager,
    RequestHeartbeat,
    SlotLost,
)
from headrace.engine.protocol.task_messages import SubmitTask
from headrace.engine.task.slot import SlotMachine
from headrace.state.identifiers import ExecutionAttemptId

NEW_LEADER = Address("jm-2", "jm")


class Deployment:
    attempt = ExecutionAttemptId(1, 0, "v", 0)


class Driver:
    def __init__(self, num_slots=2, *, node="", **options):
        self.node = node
        options = {"heartbeat_interval_ms": 100, "heartbeat_timeout_ms": 300, "step_timeout_ms": 1_000, **options}
        job_settings = settings(**options)
        self.tm = TaskManager(TASK_MANAGER, JOB, RESOURCE_MANAGER, JOB_MANAGER, 1, num_slots, job_settings)
        self.timers, self.all = {}, []

    def give(self, event):
        commands = self.tm.handle(event, 0)
        self.all += commands
        for command in commands:
            if isinstance(command, StartTimer):
                self.timers[command.key] = command
            elif isinstance(command, CancelTimer):
                self.timers.pop(command.key, None)
        return commands

    def fire(self, key):
        return self.give(self.timers.pop(key).message)

    def start(self):
        return self.give(Started(TASK_MANAGER, self.node))

    def hosts(self):
        return [command.host for command in self.all if isinstance(command, SpawnHost)]

    def live(self):
        """Start, bring all slots to life and become operational."""
        self.start()
        for host in self.hosts():
            self.give(HostPinged(host, 0, ""))
        self.acknowledge()
        return self

    def announced(self):
        return sent(self.all, RegisterTaskManager, JOB_MANAGER)[-1]

    def acknowledge(self, epoch=1, revision=None):
        return self.give(AcknowledgeRegistration(JOB, epoch, revision or self.announced().revision))

    def relay(self, host, epoch=1):
        return sent(self.give(RelayToSlot(JOB, epoch, host, SubmitTask(Deployment()))), SubmitTask)


def test_slots_are_spawned_beside_it():
    driver = Driver()
    spawns = of_kind(driver.start(), SpawnHost)
    assert len({spawn.host for spawn in spawns}) == 2
    assert all(spawn.resources["colocate"] for spawn in spawns)
    name, build = spawns[0].actors[0]
    slot = build(Address(spawns[0].host, name))
    assert isinstance(slot, SlotMachine)
    assert slot.parent == TASK_MANAGER


def test_it_announces_itself_until_acknowledged():
    driver = Driver()
    commands = driver.start()
    assert len(sent(commands, RegisterTaskManager, RESOURCE_MANAGER)) == 1
    assert len(sent(commands, RegisterTaskManager, JOB_MANAGER)) == 1
    assert sent(driver.fire("registration"), RegisterTaskManager, JOB_MANAGER)
    driver.acknowledge()
    assert "registration" not in driver.timers


def test_only_slots_that_live_are_announced():
    driver = Driver()
    driver.start()
    assert driver.announced().slots == ()
    driver.give(HostPinged(driver.hosts()[1], 0, ""))
    assert [slot.address.host for slot in driver.announced().slots] == [driver.hosts()[1]]
    assert driver.announced().revision == 2


def test_tasks_are_refused_before_registration_is_acknowledged():
    driver = Driver()
    driver.start()
    [host, _] = driver.hosts()
    driver.give(HostPinged(host, 0, ""))
    assert driver.relay(host) == []
    assert [kill.host for kill in of_kind(driver.all, KillHost)] == [host]


def test_operational_task_manager_passes_tasks_on():
    driver = Driver().live()
    host = driver.hosts()[0]
    commands = driver.give(RelayToSlot(JOB, 1, host, SubmitTask(Deployment())))
    assert [command.to for command in commands] == [Address(host, "slot")]
    assert driver.relay("unknown-host") == []
    assert driver.relay(host, epoch=0) == []


def test_heartbeats_are_answered_to_the_present_leader_only():
    driver = Driver().live()
    commands = driver.give(RequestHeartbeat(JOB, 1, 7, JOB_MANAGER))
    assert sent(commands, Heartbeat, JOB_MANAGER) == [Heartbeat(JOB, "tm-1", 7)]
    assert driver.give(RequestHeartbeat(JOB, 0, 8, JOB_MANAGER)) == []


def test_silent_leader_sends_it_back_to_registration_without_used_slots():
    driver = Driver().live()
    used, clean = driver.hosts()
    driver.relay(used)
    commands = driver.fire("leader")
    assert [kill.host for kill in of_kind(commands, KillHost)] == [used]
    assert [slot.address.host for slot in driver.announced().slots] == [clean]
    driver.give(HostTerminated(used, "killed"))
    assert driver.relay(clean) == []


def test_overtaken_leader_timer_changes_nothing():
    driver = Driver().live()
    stale = driver.timers["leader"].message
    driver.give(RequestHeartbeat(JOB, 1, 1, JOB_MANAGER))
    assert driver.give(stale) == []


def test_acknowledgement_from_before_the_loss_does_not_count():
    driver = Driver().live()
    before = driver.announced().revision
    driver.fire("leader")
    driver.acknowledge(revision=before)
    assert "leader" not in driver.timers
    driver.acknowledge()
    assert "leader" in driver.timers


def test_new_leader_gets_fresh_slots():
    driver = Driver().live()
    used = driver.hosts()[0]
    driver.relay(used)
    driver.give(JobManagerChanged(JOB, NEW_LEADER, 2))
    assert [kill.host for kill in of_kind(driver.all, KillHost)] == [used]
    registration = sent(driver.all, RegisterTaskManager, NEW_LEADER)[-1]
    assert registration.epoch == 2
    assert used not in [slot.address.host for slot in registration.slots]
    assert driver.give(JobManagerChanged(JOB, JOB_MANAGER, 1)) == []
    driver.acknowledge(epoch=1, revision=99)
    assert "leader" not in driver.timers


def test_dead_slot_is_reported_and_replaced_under_a_fresh_name():
    driver = Driver().live()
    dead = driver.hosts()[0]
    commands = driver.give(HostTerminated(dead, "segmentation fault"))
    [lost] = sent(commands, SlotLost)
    assert (lost.slot.address.host, lost.reason) == (dead, "segmentation fault")
    [spawn] = of_kind(commands, SpawnHost)
    assert spawn.host not in driver.hosts()[:2]
    driver.give(HostPinged(spawn.host, 0, ""))
    assert spawn.host in [slot.address.host for slot in driver.announced().slots]


def test_death_of_a_slot_is_counted_for_its_node_and_told_with_it():
    driver = Driver()
    driver.start()
    first, second = driver.hosts()
    driver.give(HostPinged(first, 0, "", 7, "n1"))
    driver.give(HostPinged(second, 0, "", 8, "n1"))
    driver.acknowledge()
    assert [slot.node for slot in driver.announced().slots] == ["n1", "n1"]
    commands = driver.give(HostTerminated(first, "segmentation fault"))
    assert [failed.node for failed in sent(commands, SlotFailed, RESOURCE_MANAGER)] == ["n1"]
    assert [lost.slot.node for lost in sent(commands, SlotLost, JOB_MANAGER)] == ["n1"]


def test_nothing_is_announced_without_its_node_though_no_sign_of_life_names_it():
    """A sign of life may come before the one that passes it on has learned where the process is."""
    driver = Driver(node="n1")
    driver.start()
    assert driver.announced().node == "n1", "before there are slots"
    first, second = driver.hosts()
    driver.give(HostPinged(first, 0, "", 7, ""))
    assert [(slot.address.host, slot.node) for slot in driver.announced().slots] == [(first, "n1")]
    driver.acknowledge()
    for lost in (first, second):  # right after its announcement; while it is starting
        commands = driver.give(HostTerminated(lost, "segmentation fault", ""))
        assert [failed.node for failed in sent(commands, SlotFailed, RESOURCE_MANAGER)] == ["n1"]
    assert [lost.slot.node for lost in sent(driver.all, SlotLost, JOB_MANAGER)] == ["n1"]
    again = driver.hosts()[-1]
    driver.give(HostPinged(again, 0, "", 9, ""))
    assert [slot.node for slot in driver.announced().slots] == ["n1"], "its successor"


def test_a_slot_that_dies_while_starting_is_counted_too():
    driver = Driver()
    driver.start()
    commands = driver.give(HostTerminated(driver.hosts()[0], "out of memory", "n1"))
    assert [failed.node for failed in sent(commands, SlotFailed, RESOURCE_MANAGER)] == ["n1"]


def test_ordered_deaths_are_not_the_nodes_fault_but_silence_may_be():
    driver = Driver().live()
    stuck, silent = driver.hosts()
    driver.give(HostPinged(stuck, 9_000, "map"))
    assert sent(driver.give(HostTerminated(stuck, "killed", "n1")), SlotFailed) == []
    again = driver.hosts()[-1]
    driver.give(HostPinged(again, 0, ""))
    driver.acknowledge()
    driver.give(KillSlot(JOB, 1, again, "a task did not stop"))
    assert sent(driver.give(HostTerminated(again, "killed", "n1")), SlotFailed) == []
    while not of_kind(driver.fire("pings"), KillHost):
        pass
    assert len(sent(driver.give(HostTerminated(silent, "killed", "n1")), SlotFailed)) == 1


def test_silent_slot_is_killed_by_rounds_not_by_the_clock():
    driver = Driver().live()
    alive, silent = driver.hosts()
    for _ in range(3):
        assert len(of_kind(driver.fire("pings"), PingHost)) == 2
        driver.give(HostPinged(alive, 0, ""))
    assert [kill.host for kill in of_kind(driver.fire("pings"), KillHost)] == [silent]


def test_stuck_slot_is_killed_with_what_it_was_doing():
    driver = Driver().live()
    host = driver.hosts()[0]
    assert driver.give(HostPinged(host, 1_000, "map (subtask 0)")) == []
    [kill] = of_kind(driver.give(HostPinged(host, 1_500, "map (subtask 0)")), KillHost)
    assert kill.reason == "stuck in map (subtask 0) for 1.5 s"
    [lost] = sent(driver.give(HostTerminated(host, "killed")), SlotLost)
    assert lost.reason == kill.reason


def test_step_timeout_can_be_switched_off():
    driver = Driver(step_timeout_ms=0).live()
    assert driver.give(HostPinged(driver.hosts()[0], 10**9, "map")) == []


def test_leader_may_order_a_death():
    driver = Driver().live()
    host = driver.hosts()[0]
    assert driver.give(KillSlot(JOB, 0, host, "stale")) == []
    assert of_kind(driver.give(KillSlot(JOB, 1, host, "wanted")), KillHost) == [KillHost(host, "wanted")]
    assert of_kind(driver.give(KillSlot(JOB, 1, host, "wanted")), KillHost) == []


@pytest.mark.parametrize("deaths", [1, 4, 20])
def test_slot_that_dies_at_its_start_is_tried_again_with_growing_pauses(deaths):
    driver = Driver(num_slots=1)
    driver.start()
    for _ in range(deaths):
        driver.give(HostTerminated(driver.hosts()[-1], "no memory"))
        delay_ms = driver.timers["respawn-0"].delay_ms
        driver.fire("respawn-0")
    assert delay_ms == min(100 * 2 ** (deaths - 1), 10_000)
    assert sent(driver.all, SlotLost) == []


def test_start_is_awaited_with_growing_pauses_and_a_bound_that_grows_too():
    driver = Driver(num_slots=1)
    driver.start()
    waited, blamed = [], []
    for kills in range(1, 6):
        pauses = []
        while len(of_kind(driver.all, KillHost)) < kills:
            pauses.append(driver.timers["first-ping-0"].delay_ms)
            driver.fire("first-ping-0")
        assert pauses[:5] == [10, 20, 40, 80, 100]
        waited.append(round(sum(pauses), -3))
        blamed.append(bool(sent(driver.give(HostTerminated(driver.hosts()[-1], "killed")), SlotFailed)))
    assert waited == [15_000, 30_000, 60_000, 120_000, 120_000]
    assert blamed == [False, False, False, True, True], "a node is blamed when its slot has had all the time there is"


def test_a_task_fails_by_its_attempt_in_the_slot_that_the_leader_names():
    driver = Driver().live()
    host = driver.hosts()[0]
    attempt = Deployment.attempt
    order = FailTask(JOB, 1, host, attempt, "an exercise")
    assert [send.to.host for send in of_kind(driver.give(order), Send)] == [host]
    assert driver.give(FailTask(JOB, 0, host, attempt, "of a leader that is gone")) == []
    assert driver.give(FailTask(JOB, 1, "another", attempt, "of a slot that is gone")) == []
