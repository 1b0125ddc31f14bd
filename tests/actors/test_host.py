"""The kernel by itself, on a system that only writes down what it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from actor_machines import Do, Puppet, Work, Worker

from headrace.actors.hosts.host import MAX_EVENTS_PER_TURN, HostKernel
from headrace.actors.hosts.host_system import Ticks
from headrace.engine.kernel.link import BARE, Frame, LinkTiming
from headrace.engine.kernel.machine import (
    Address,
    HostPinged,
    HostTerminated,
    PingHost,
    Send,
    SpawnHost,
    StartTimer,
    StopHost,
)
from headrace.engine.protocol.messages import RequestFailed

TIMING = LinkTiming(ack_delay_ms=20, retry_ms=100, max_retry_ms=1_000, give_up_ms=5_000)
NOW = 1_000_000


class Recorder:
    """A system whose network is a list."""

    def __init__(self) -> None:
        self.point: Callable[[str, str], None] | None = None
        self.frames: list[Frame] = []
        self.calls: list[tuple] = []
        self.is_gone = False

    def clock(self):
        return NOW

    def transmit(self, frame, *, again):
        self.frames.append(frame)
        return not self.is_gone

    def spawn(self, parent, command):
        self.calls.append(("spawn", parent, command.host))

    def stop(self, parent, host):
        self.calls.append(("stop", parent, host))

    def kill(self, parent, host, reason):
        self.calls.append(("kill", parent, host, reason))

    def ping(self, source, host):
        self.calls.append(("ping", source, host))

    def offload(self, host, actor, work):
        self.calls.append(("offload", host, actor, work.name))


def make(machine=Puppet, **others):
    system = Recorder()
    kernel = HostKernel("here", system, TIMING)
    kernel.start((("m", machine), *others.items()))
    kernel.run_turn(NOW, 0)
    return kernel, system


def machine_of(kernel, actor="m"):
    return kernel._cells[actor].machine


def tell(kernel, *events, actor="m", ticks=0):
    for event in events:
        kernel.post(actor, event)
    return kernel.run_turn(NOW, ticks)


def frame(*messages, sequence=0, ack=0, source="there"):
    return Frame(source, "here", sequence, ack, tuple(("m", message) for message in messages))


def test_messages_for_one_host_leave_in_one_frame_per_turn():
    kernel, system = make()
    there, elsewhere = Address("there", "x"), Address("elsewhere", "y")
    tell(kernel, Do([Send(there, 1), Send(elsewhere, 2)]), Do([Send(there, 3)]))
    assert system.frames == [
        Frame("here", "there", 0, 0, (("x", 1), ("x", 3))),
        Frame("here", "elsewhere", 0, 0, (("y", 2),)),
    ]


def test_what_handling_sends_leaves_before_a_step_begins():
    sent_before_step = []
    system = Recorder()

    class Talking(Worker):
        def handle(self, event, now_ms):
            return [Send(Address("there", "x"), "first")]

        def step(self, now_ms):
            sent_before_step.append(len(system.frames))
            return super().step(now_ms)

    kernel = HostKernel("here", system, TIMING)
    kernel.start((("m", Talking),))
    kernel.run_turn(NOW, 0)
    assert sent_before_step == [1]


def test_a_machine_that_wants_no_step_is_given_none_until_something_is_handled():
    steps = []

    class Counting(Worker):
        def step(self, now_ms):
            steps.append(now_ms)
            return super().step(now_ms)

    kernel, _ = make(Counting)
    assert kernel.run_turn(NOW, 1) is None
    assert len(steps) == 1
    tell(kernel, "anything")
    assert len(steps) == 2


def test_steps_can_be_left_for_another_turn():
    kernel, system = make(Worker)
    kernel.post("m", Work(1, 0.0, Address("there", "x")))
    assert kernel.run_turn(NOW, 0, may_step=False) == 0
    assert kernel.wants_step(NOW)
    assert system.frames == []
    kernel.run_turn(NOW, 0)
    assert len(system.frames) == 1


def test_a_frame_for_another_host_carries_the_acknowledgement():
    kernel, system = make()
    kernel.receive(frame("hello"))
    tell(kernel, Do([Send(Address("there", "x"), "answer")]))
    assert [sent.ack for sent in system.frames] == [1]
    assert kernel.run_turn(NOW, 1_000) is not None  # only the retransmission is left to wait for
    assert all(sent.sequence != BARE for sent in system.frames)


def test_an_acknowledgement_without_a_frame_to_ride_on_leaves_after_a_while():
    kernel, system = make()
    kernel.receive(frame("hello"))
    assert kernel.run_turn(NOW, 0) == TIMING.ack_delay_ms
    assert system.frames == []
    assert kernel.run_turn(NOW, TIMING.ack_delay_ms) is None
    assert system.frames == [Frame("here", "there", BARE, 1, ())]


def test_a_doubled_frame_is_acknowledged_again_but_not_handled_again():
    kernel, system = make()
    for _ in range(2):
        kernel.receive(frame("hello"))
        kernel.run_turn(NOW, 0)
    kernel.run_turn(NOW, 20)
    assert machine_of(kernel).heard.count("hello") == 1
    assert system.frames[-1].ack == 1


def test_unacknowledged_frames_are_sent_again():
    kernel, system = make()
    assert tell(kernel, Do([Send(Address("there", "x"), 1)])) == 100
    kernel.run_turn(NOW, 100)
    assert [sent.sequence for sent in system.frames] == [0, 0]
    kernel.receive(frame(sequence=BARE, ack=1))
    kernel.run_turn(NOW, 150)
    assert kernel.num_unacknowledged == 0
    assert kernel.run_turn(NOW, 10_000) is None


def test_nothing_is_kept_for_a_host_that_is_known_to_be_gone():
    kernel, system = make()
    system.is_gone = True
    assert tell(kernel, Do([Send(Address("there", "x"), 1)])) is not None
    assert kernel.num_unacknowledged == 0


def test_frames_of_a_child_that_has_ended_are_dropped():
    """A doubled first frame of the dead would else be taken for the first of a new link."""
    kernel, _ = make()
    tell(kernel, Do([SpawnHost("there", ())]))
    kernel.receive(frame("hello"))
    kernel.child_terminated("there", "stopped")
    kernel.receive(frame("hello"))
    kernel.run_turn(NOW, 0)
    assert machine_of(kernel).heard[1:] == ["hello", HostTerminated("there", "stopped")]


def test_only_the_machine_that_spawned_a_host_is_its_parent():
    kernel, _ = make(Puppet, other=Puppet)
    tell(kernel, Do([SpawnHost("there", ())]), actor="other")
    kernel.child_terminated("there", "died")
    kernel.run_turn(NOW, 0)
    assert machine_of(kernel, "other").heard[1:] == [HostTerminated("there", "died")]
    assert len(machine_of(kernel).heard) == 1


def test_a_used_name_for_a_child_is_a_bug():
    kernel, _ = make()
    tell(kernel, Do([SpawnHost("there", ())]))
    kernel.child_terminated("there", "died")
    tell(kernel, Do([SpawnHost("there", ())]))
    assert "fresh" in kernel.exit_reason


def test_why_a_host_has_failed_is_told_without_passwords():
    kernel, _ = make()
    tell(kernel, Do(["no command, password='p4ss'"]))
    assert kernel.exit_reason
    assert "p4ss" not in kernel.exit_reason


def test_only_children_can_be_killed_or_stopped():
    kernel, system = make()
    tell(kernel, Do([StopHost("stranger")]))
    assert system.calls == []


def test_all_that_asked_for_a_sign_of_life_are_told():
    kernel, _ = make(Puppet, other=Puppet)
    tell(kernel, Do([PingHost("there"), PingHost("there")]))
    tell(kernel, Do([PingHost("there")]), actor="other")
    kernel.pinged("there", 5, "busy")
    kernel.pinged("there", 6, "busy")
    kernel.run_turn(NOW, 0)
    for actor in ("m", "other"):
        assert machine_of(kernel, actor).heard[1:] == [HostPinged("there", 5, "busy")]


def test_a_flood_of_events_does_not_starve_the_outbox():
    kernel, _ = make()
    for n in range(2 * MAX_EVENTS_PER_TURN):
        kernel.post("m", n)
    assert kernel.run_turn(NOW, 0) == 0
    assert len(machine_of(kernel).heard) == MAX_EVENTS_PER_TURN + 1


def test_a_host_that_stops_lingers_until_its_last_words_are_acknowledged():
    kernel, _ = make()
    tell(kernel, Do([Send(Address("there", "x"), "last words"), StopHost()]))
    assert kernel.exit_reason is None
    kernel.receive(frame(sequence=BARE, ack=1))
    kernel.run_turn(NOW, 30)
    assert kernel.exit_reason == "stopped"


def test_a_host_that_stops_does_not_linger_for_ever():
    kernel, _ = make()
    tell(kernel, Do([Send(Address("there", "x"), "last words"), StopHost()]))
    kernel.run_turn(NOW, 999)
    assert kernel.exit_reason is None
    kernel.run_turn(NOW, 1_000)
    assert kernel.exit_reason == "stopped"


def test_machines_are_closed_when_their_host_stops():
    closed = []

    class Closing(Puppet):
        def close(self):
            closed.append(self.address)

    kernel, _ = make(Closing)
    kernel.stop()
    kernel.run_turn(NOW, 0)
    assert closed == [Address("here", "m")]
    assert kernel.exit_reason == "stopped"


def test_probe_and_clock_are_there_before_the_start():
    points = []

    class Probing(Worker):
        def handle(self, event, now_ms):
            self.probe(f"at {self.clock()}")
            return []

    system = Recorder()
    system.point = lambda host, name: points.append((host, name))
    kernel = HostKernel("here", system, TIMING)
    kernel.start((("m", Probing),))
    kernel.run_turn(NOW, 0)
    assert points == [("here", "recv.Started"), ("here", f"at {NOW}")]


def test_each_command_and_event_passes_a_point():
    points = []
    system = Recorder()
    system.point = lambda host, name: points.append(name)
    kernel = HostKernel("here", system, TIMING)
    kernel.start((("m", Puppet),))
    tell(kernel, Do([Send(Address("there", "x"), "text"), StartTimer("t", 10, 5)]))
    kernel.run_turn(NOW, 10)
    assert points == ["recv.Started", "recv.Do", "send.str", "do.StartTimer", "transmit", "recv.int"]


def test_a_question_to_a_machine_that_is_not_there_is_answered():
    kernel, _ = make()
    answers = []
    kernel.ask("nobody", "what", answers.append)
    assert isinstance(answers[0], RequestFailed)


def test_ticks_do_not_count_stalls():
    ticks = Ticks(stall_ms=20)
    threading.Event().wait(0.2)
    assert 19 <= ticks.advance() <= 20
    threading.Event().wait(0.05)
    assert 60 <= ticks.advance(slept_ms=50) <= 90
