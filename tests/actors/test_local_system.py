"""What is special about one process: who drives the loop, stalls, Ctrl-C."""

from __future__ import annotations

import functools
import os
import signal
import threading

import pytest
from actor_machines import Do, Echo, Puppet, Until, Work, Worker

from headrace.actors.hosts.host_system import HostGoneError, Ticks
from headrace.actors.local.system import LocalSystem
from headrace.engine.errors import InternalError
from headrace.engine.kernel.machine import Address, HostTerminated, Send, SpawnHost, StartTimer

ROOT = Address("root", "puppet")
CHILD = Address("child", "worker")


@pytest.fixture
def system():
    system = LocalSystem()
    system.start("root", (("puppet", Puppet),))
    yield system
    system.close()


def do(system, *commands):
    system.ask(ROOT, Do(list(commands)), 10_000)


def test_nothing_runs_while_nobody_asks(system):
    do(system, StartTimer("t", 1, "rang"))
    threading.Event().wait(0.05)
    assert "rang" not in system._hosts["root"].kernel._cells["puppet"].machine.heard
    assert "rang" in system.ask(ROOT, Until(lambda heard: "rang" in heard), 10_000)


def test_in_the_background_hosts_run_by_themselves(system):
    system.run_in_background()
    system.run_in_background()
    rang = threading.Event()

    class Bell(Puppet):
        def handle(self, event, now_ms):
            if event == "ring":
                rang.set()
            return []

    do(system, SpawnHost("bell", (("bell", Bell),)), Send(Address("bell", "bell"), "ring"))
    assert rang.wait(10)


def test_threads_may_ask_at_the_same_time(system):
    do(system, SpawnHost("child", (("echo", Echo),)))
    answers = []

    def ask(n):
        do(system, Send(Address("child", "echo"), (n, ROOT)))
        answers.append(system.ask(ROOT, Until(lambda heard: n in heard), 10_000))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(answers) == 8


def test_a_long_step_expires_no_timer_and_lets_all_messages_through_first(system):
    """Between two steps everything else is handled, and the time of a step beyond the stall limit does not count."""
    system._ticks = Ticks(stall_ms=10)
    do(system, SpawnHost("child", (("worker", Worker),)))
    do(system, Send(CHILD, Work(3, 0.1, ROOT)), StartTimer("timeout", 200, "expired"))
    heard = system.ask(ROOT, Until(lambda heard: "done" in heard), 10_000)
    assert "expired" not in heard


def test_the_first_interrupt_waits_for_the_end_of_the_step(system):
    do(system, SpawnHost("child", (("worker", Worker),)))
    do(system, Send(CHILD, Work(2, 0.2, ROOT)))
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        system.ask(ROOT, Until(lambda heard: False), 10_000)
    assert system._hosts["child"].kernel._cells["worker"].machine.left == 1
    assert "done" in system.ask(ROOT, Until(lambda heard: "done" in heard), 10_000)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def press(times):
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(0.001)  # signals are handled between two instructions, one after another


class Pressed(Puppet):
    """Meets a Ctrl-C, or something else from outside, in the middle of a turn."""

    def handle(self, event, now_ms):
        if callable(event):
            event()
        return []


def test_a_second_interrupt_takes_down_the_host_that_it_leaves_half_way(system):
    do(system, SpawnHost("pressed", (("pressed", Pressed),)))
    do(system, Send(Address("pressed", "pressed"), functools.partial(press, 2)))
    with pytest.raises(KeyboardInterrupt):
        system.ask(ROOT, Until(lambda heard: False), 10_000)
    assert "pressed" not in system.hosts
    ended = system.ask(ROOT, Until(lambda heard: any(type(event) is HostTerminated for event in heard)), 10_000)
    assert "interrupted in the middle of a turn" in str(ended)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_machine_that_raises_an_exit_takes_down_its_host_and_nobody_else(system, kind):
    def leave():
        raise kind

    do(system, SpawnHost("pressed", (("pressed", Pressed),)))
    do(system, Send(Address("pressed", "pressed"), leave))
    assert kind.__name__ in str(
        system.ask(ROOT, Until(lambda heard: any(type(e) is HostTerminated for e in heard)), 10_000)
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_once_the_thread_in_the_background_has_ended_nothing_looks_alive(system):
    def strike():
        error = SystemExit("struck")
        error.strikes_from_outside = True
        raise error

    do(system, SpawnHost("pressed", (("pressed", Pressed),)))
    system.run_in_background()
    with pytest.raises((HostGoneError, InternalError)):
        do(system, Send(Address("pressed", "pressed"), strike))
        system.ask(ROOT, Until(lambda heard: False), 10_000)
    with pytest.raises(InternalError, match="struck"):
        do(system)
    assert not system.hosts


def test_an_interrupt_strikes_at_once_while_nothing_is_done(system):
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        system.ask(ROOT, Until(lambda heard: False), 60_000)


def test_a_closed_system_answers_nobody(system):
    system.close()
    with pytest.raises(HostGoneError, match="was closed"):
        system.ask(ROOT, Until(lambda heard: True), 10_000)
