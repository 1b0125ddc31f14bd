"""What every actor system promises a machine; the same tests on all three."""

from __future__ import annotations

import pytest
from actor_machines import Do, Echo, Fail, Puppet, Until, Work, Worker, broken

from headrace.actors.hosts.host_system import AskTimedOutError, HostGoneError
from headrace.engine.kernel.machine import (
    Address,
    CancelTimer,
    HostPinged,
    HostTerminated,
    KillHost,
    Offload,
    OffloadCompleted,
    PingHost,
    Reply,
    Send,
    SpawnHost,
    Started,
    StartTimer,
    StopHost,
)
from headrace.engine.protocol.messages import RequestFailed

pytestmark = pytest.mark.sampled(4, of="ray")  # a process of Ray takes a second to start

ROOT = Address("root", "puppet")
CHILD = Address("child", "puppet")
TIMEOUT_MS = 30_000


@pytest.fixture
def root(system):
    """A system with a puppet on a host of its own."""
    system.start("root", (("puppet", Puppet), ("echo", Echo)))
    return system


def do(system, *commands, at=ROOT):
    assert system.ask(at, Do(list(commands)), TIMEOUT_MS) is True


def until(system, is_enough, at=ROOT):
    return ask_when_there(system, at, Until(is_enough))


def ask_when_there(system, address, request):
    """Just after its `SpawnHost` a child has no name yet."""
    for _ in range(200):
        try:
            return system.ask(address, request, TIMEOUT_MS)
        except HostGoneError:
            system.wait(50)
    pytest.fail(f"{address} never came")


def spawn(system, machine=Puppet, host="child"):
    do(system, SpawnHost(host, (("puppet", machine), ("echo", Echo))))


def told(terminated):
    """What is told of an end on every system, with and without nodes."""
    return terminated.host, terminated.reason


def last_is(kind):
    return lambda heard: bool(heard) and isinstance(heard[-1], kind)


def test_the_first_event_is_the_start(root):
    [started] = until(root, lambda heard: True)
    assert isinstance(started, Started)
    assert started.address == ROOT


def test_messages_arrive_once_and_in_order_across_hosts(root):
    spawn(root)
    for begin in range(0, 300, 100):
        do(root, *[Send(CHILD, n) for n in range(begin, begin + 100)])
    assert until(root, lambda heard: len(heard) > 300, at=CHILD)[1:] == list(range(300))


def test_messages_arrive_once_and_in_order_within_a_host(root):
    do(root, *[Send(Address("root", "echo"), (n, ROOT)) for n in range(100)])
    assert until(root, lambda heard: len(heard) > 100)[1:] == list(range(100))


def test_messages_come_back(root):
    spawn(root)
    do(root, *[Send(Address("child", "echo"), (n, ROOT)) for n in range(50)])
    assert until(root, lambda heard: len(heard) > 50)[1:] == list(range(50))


def test_messages_for_nobody_are_dropped(root):
    do(root, Send(Address("root", "nobody"), 1), Send(Address("nowhere", "nobody"), 2), Send(ROOT, 3))
    assert until(root, lambda heard: len(heard) > 1)[1:] == [3]


def test_a_timer_is_replaced_by_its_key_and_can_be_canceled(root):
    do(
        root,
        StartTimer("a", 10, "replaced"),
        StartTimer("b", 20, "canceled"),
        StartTimer("c", 40, "third"),
        StartTimer("a", 20, "second"),
        CancelTimer("b"),
        CancelTimer("unknown"),
        StartTimer("d", 0, "first"),
    )
    assert until(root, lambda heard: len(heard) > 3)[1:] == ["first", "second", "third"]


def test_offloaded_work_comes_back_with_its_result(root):
    do(root, Offload("sum", 17, lambda: 1 + 1))
    assert until(root, last_is(OffloadCompleted))[-1] == OffloadCompleted("sum", 17, 2, None)


def test_offloaded_work_comes_back_with_its_error(root):
    do(root, Offload("divide", "t", lambda: 1 // 0))
    completed = until(root, last_is(OffloadCompleted))[-1]
    assert (completed.name, completed.token, completed.result) == ("divide", "t", None)
    assert isinstance(completed.error, ZeroDivisionError)


def test_the_first_answer_counts(root):
    class Twice(Puppet):
        def handle(self, event, now_ms):
            return [Reply(event.ask_id, 1), Reply(event.ask_id, 2)] if hasattr(event, "ask_id") else []

    spawn(root, Twice)
    until(root, lambda heard: True)
    assert ask_when_there(root, CHILD, "what") == 1


def test_a_machine_that_is_not_there_is_answered_for(root):
    assert isinstance(root.ask(Address("root", "nobody"), "what", TIMEOUT_MS), RequestFailed)


def test_asking_a_host_that_is_not_there_says_so(root):
    with pytest.raises(HostGoneError):
        root.ask(Address("nowhere", "puppet"), "what", TIMEOUT_MS)


def test_an_answer_that_does_not_come_is_not_waited_for(root):
    until(root, lambda heard: True)
    with pytest.raises(AskTimedOutError):
        root.ask(ROOT, Until(lambda heard: False), 50)


def test_a_killed_child_is_told_with_the_reason(root):
    spawn(root)
    do(root, Send(Address("child", "echo"), (1, ROOT)))
    until(root, lambda heard: 1 in heard)
    do(root, KillHost("child", "on purpose"))
    assert told(until(root, last_is(HostTerminated))[-1]) == ("child", "on purpose")
    with pytest.raises(HostGoneError):
        root.ask(CHILD, Until(lambda heard: True), TIMEOUT_MS)


def test_a_child_can_be_killed_before_it_has_started(root):
    do(root, SpawnHost("child", (("puppet", Puppet),)), KillHost("child", "changed my mind"))
    assert told(until(root, last_is(HostTerminated))[-1]) == ("child", "changed my mind")


def test_grandchildren_end_with_their_parent(root):
    spawn(root)
    do(root, Send(CHILD, Do([SpawnHost("grandchild", (("echo", Echo),))])))
    do(root, Send(Address("grandchild", "echo"), (1, ROOT)))
    until(root, lambda heard: 1 in heard)
    do(root, KillHost("child", "on purpose"))
    until(root, last_is(HostTerminated))
    for _ in range(200):
        if "grandchild" not in root.hosts:
            return
        root.wait(50)
    pytest.fail("the grandchild lives on")


def test_a_child_ends_in_order_and_its_last_words_are_heard_first(root):
    spawn(root)
    do(root, Send(CHILD, Do([Send(ROOT, "last words"), StopHost()])))
    heard = until(root, last_is(HostTerminated))
    assert (heard[-2], told(heard[-1])) == ("last words", ("child", "stopped"))


def test_a_child_that_is_told_to_ends_in_order(root):
    spawn(root)
    do(root, Send(Address("child", "echo"), (1, ROOT)))
    until(root, lambda heard: 1 in heard)
    do(root, StopHost("child"))
    assert told(until(root, last_is(HostTerminated))[-1]) == ("child", "stopped")


def test_a_machine_that_raises_takes_its_host_down(root):
    spawn(root)
    do(root, Send(CHILD, Fail("a bug")))
    terminated = until(root, last_is(HostTerminated))[-1]
    assert terminated.host == "child"
    assert "ValueError('a bug')" in terminated.reason
    assert "Traceback" in terminated.reason


def test_a_machine_that_cannot_be_built_takes_its_host_down(root):
    spawn(root, broken)
    assert "cannot be built" in until(root, last_is(HostTerminated))[-1].reason


def test_a_ping_is_answered(root):
    spawn(root)
    do(root, Send(Address("child", "echo"), (1, ROOT)))
    until(root, lambda heard: 1 in heard)
    root.wait(100)
    do(root, PingHost("child"))
    pinged = until(root, last_is(HostPinged))[-1]
    assert (pinged.host, pinged.step_ms, pinged.doing) == ("child", 0, "")


def test_a_stepping_machine_works_until_it_is_done(root):
    spawn(root, Worker)
    do(root, Send(CHILD, Work(20, 0.0, ROOT)))
    assert until(root, lambda heard: "done" in heard)[-1] == "done"


def test_closing_leaves_nothing(root):
    spawn(root)
    root.close()
    assert root.hosts == []
    root.close()
