"""An actor that Ray calls unavailable is not dead, and one that is dead is not there: what follows from each answer.

Family: contract, on a Ray whose answers the test says. ``ray_faults.py`` has a real Ray fail calls at random.
"""

from __future__ import annotations

import logging
import pickle
import signal

import cloudpickle
import pytest
from actor_machines import Echo, Puppet
from fake_ray import HERE, FakeHandle, died, fake_ray, unavailable

from headrace.actors.hosts.host_system import AskTimedOutError, HostGoneError
from headrace.actors.ray import host as ray_host
from headrace.actors.ray.host import HostSpec, Launcher, RayHost, actor_name
from headrace.actors.ray.system import RaySystem
from headrace.engine.kernel.link import Frame
from headrace.engine.kernel.machine import Address, SpawnHost

__all__ = ["fake_ray"]

CLUSTER = "c"
MACHINE = Address("h", "m")
PID = 4_242


# -------------------------------------------------------------------------------------------------- a client's question
@pytest.fixture
def host(fake_ray):
    """A host that is found by its name."""
    handle = fake_ray.handles[actor_name(CLUSTER, "h")] = FakeHandle()
    return handle


@pytest.fixture
def client(fake_ray):
    return RaySystem(CLUSTER, reserve=False)


def answered(value):
    return cloudpickle.dumps(value)


def test_a_question_whose_answer_got_lost_is_put_again(client, host):
    host.answers("ask", unavailable(), unavailable(), answered("here I am"))
    assert client.ask(MACHINE, "who is there?", 10_000) == "here I am"
    asked = [arguments for _, arguments in host.calls]
    assert [(actor, pickle.loads(question)) for actor, question, _ in asked] == 3 * [("m", "who is there?")]
    left_s = [left for _, _, left in asked]
    assert left_s[0] == 10
    assert left_s == sorted(left_s, reverse=True), "the time already spent is not given again"


def test_a_host_that_stays_unavailable_did_not_answer_in_time_but_is_not_gone(client, host):
    host.answers("ask", *(unavailable() for _ in range(1_000)))
    with pytest.raises(AskTimedOutError):
        client.ask(MACHINE, "who is there?", 1_000)
    assert host.num_calls("ask") > 1
    host.answers("ask", unavailable(), answered("still here"))
    assert client.ask(MACHINE, "and now?", 10_000) == "still here"


def test_a_dead_host_is_gone_at_the_first_answer(client, host):
    host.answers("ask", died())
    with pytest.raises(HostGoneError):
        client.ask(MACHINE, "who is there?", 10_000)
    assert host.num_calls("ask") == 1


def test_one_that_dies_after_it_was_unavailable_is_gone(client, host):
    host.answers("ask", unavailable(), died())
    with pytest.raises(HostGoneError):
        client.ask(MACHINE, "who is there?", 10_000)


# ------------------------------------------------------------------------------------------------------ a watched child
class Watch:
    """A launcher with one child, what is told of that, and which processes were killed."""

    def __init__(self, fake, monkeypatch):
        self.ray, self.handle = fake, FakeHandle()
        self.ended, self.pulses, self.killed = [], [], []
        monkeypatch.setattr(ray_host.os, "kill", lambda pid, number: self.killed.append((pid, number)))
        fake.made.append(self.handle)
        self.launcher = Launcher(
            CLUSTER, reserve=False, on_started=lambda *_: None, on_ended=lambda *told: self.ended.append(told)
        )
        self.launcher.spawn(SpawnHost("h", (("m", Puppet),)))
        self.settle()

    def settle(self):
        """Let the launcher's own thread do what it has been given."""
        self.launcher._control.submit(lambda: None).result(30)

    def ping(self):
        self.launcher.ping("h", lambda *pulse: self.pulses.append(pulse))

    def run_ends(self, error):
        self.handle.end("run", error)
        self.settle()

    @property
    def was_killed_by_ray(self):
        return self.ray.killed == [self.handle]


@pytest.fixture
def watch(fake_ray, monkeypatch):
    watch = Watch(fake_ray, monkeypatch)
    yield watch
    watch.launcher.close()


def test_a_process_that_ray_has_only_lost_sight_of_is_killed_by_its_id(watch):
    """It lives on, given up for dead, and Ray's own killing may not reach it either."""
    watch.handle.end("identity", (HERE, PID))
    watch.run_ends(unavailable())
    assert watch.killed == [(PID, signal.SIGKILL)]
    [(host, reason, node)] = watch.ended
    assert (host, node) == ("h", HERE)
    assert "unavailable" in reason


def test_a_dead_process_is_not_killed_by_its_id_which_another_one_may_have(watch):
    watch.handle.end("identity", (HERE, PID))
    watch.run_ends(died())
    assert watch.killed == []
    assert watch.was_killed_by_ray
    assert [told[0] for told in watch.ended] == ["h"]


def test_on_another_node_and_before_its_id_is_known_ray_has_to_kill_it(fake_ray, monkeypatch):
    for identity in (("elsewhere", PID), unavailable()):
        watch = Watch(fake_ray, monkeypatch)
        fake_ray.killed.clear()
        watch.handle.end("identity", identity)
        watch.run_ends(unavailable())
        assert watch.killed == []
        assert watch.was_killed_by_ray
        watch.launcher.close()


@pytest.mark.parametrize("method", ["identity", "ping"])
def test_other_calls_that_fail_are_no_death(watch, method):
    watch.ping()
    watch.handle.end(method, unavailable())
    watch.settle()
    assert watch.ended == watch.pulses == watch.killed == watch.ray.killed == []


def test_a_lost_sign_of_life_is_asked_for_again(watch):
    watch.ping()
    watch.ping()
    assert watch.handle.num_calls("ping") == 1, "one at a time"
    watch.handle.end("ping", unavailable())
    watch.ping()
    watch.handle.end("ping", (5, "busy", HERE, PID))
    assert watch.pulses == [(5, "busy", PID, HERE)]


def test_a_sign_of_life_says_who_it_is_if_the_first_answer_got_lost(watch):
    watch.handle.end("identity", unavailable())
    watch.ping()
    watch.handle.end("ping", (0, "", HERE, PID))
    watch.launcher.kill("h", "wanted")
    assert watch.killed == [(PID, signal.SIGKILL)]
    watch.run_ends(died())
    assert watch.ended == [("h", "wanted", HERE)]


def test_a_death_ordered_before_its_id_is_known_is_repeated_when_it_is(watch):
    watch.launcher.kill("h", "wanted")
    watch.settle()
    assert watch.was_killed_by_ray, "as far as that gets"
    watch.handle.end("identity", (HERE, PID))
    assert watch.killed == [(PID, signal.SIGKILL)]


# ----------------------------------------------------------------------------------------------------- within the actor
def spec():
    return HostSpec(CLUSTER, "h", cloudpickle.dumps((("m", Puppet), ("echo", Echo))), reserve=False)


def test_an_actor_says_its_node_and_process_with_each_sign_of_life(fake_ray):
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    actor = RayHost(spec())
    assert (root.level, root.handlers) == before, "only a process that runs a host keeps its log"
    node, pid = actor.identity()
    assert node == HERE
    assert actor.ping() == (0, "", node, pid)


@pytest.mark.parametrize(("error", "is_gone"), [(ConnectionError("the control store is down"), False), (None, True)])
def test_a_peer_is_given_up_only_if_ray_says_that_it_is_gone(fake_ray, error, is_gone):
    process = ray_host._Process(spec())
    abandoned = []
    process._kernel.abandon = abandoned.append
    process._handles["peer"] = FakeHandle()
    fake_ray.lookup_error = error
    process.transmit(Frame("h", "peer", 0, 0, ()), again=True)
    process._resolver.submit(lambda: None).result(30)
    while process._inbox:
        process._inbox.popleft()()
    assert abandoned == (["peer"] if is_gone else [])


def test_a_death_is_told_in_two_sentences():
    """Not in the guesses that Ray adds to each: they fill a job's history."""
    told = "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file."
    guesses = "Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) x"
    error = RuntimeError(f"The actor died.\nThe actor is dead because its worker process has died. {told} {guesses}")
    expected = (
        f"process 7 died: its worker process has died. {told} It was killed, perhaps for want of memory, or it crashed."
    )
    assert ray_host._describe_death(7, error) == expected
    assert ray_host._describe_death(None, RuntimeError("it left")) == "its process died: it left"
