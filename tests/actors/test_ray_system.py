"""What is special about processes: busy, frozen and killed ones, what travels between them, what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from actor_machines import Do, Echo, Puppet, Unpicklable, Until, Work, Worker

from headrace.actors.hosts.host_system import HostGoneError
from headrace.actors.hosts.wire import INLINE_BYTES, decode, encode
from headrace.actors.ray.host import actor_name
from headrace.cli.doctor import ray_listeners
from headrace.engine.columns.records import Batch
from headrace.engine.kernel.machine import (
    Address,
    HostPinged,
    HostTerminated,
    KillHost,
    Offload,
    PingHost,
    Send,
    SpawnHost,
)

ROOT = Address("root", "puppet")
CHILD = Address("child", "m")
TIMEOUT_MS = 60_000


@pytest.fixture
def root(ray_system):
    ray_system.start("root", (("puppet", Puppet),))
    return ray_system


def do(system, *commands):
    system.ask(ROOT, Do(list(commands)), TIMEOUT_MS)


def until(system, is_enough):
    return system.ask(ROOT, Until(is_enough), TIMEOUT_MS)


def told(terminated):
    """What is told of an end on every system, with and without nodes."""
    return terminated.host, terminated.reason


def last_is(kind):
    return lambda heard: isinstance(heard[-1], kind)


def spawn(system, machine):
    """A child that is known to run; returns its process id."""
    import ray

    do(system, SpawnHost("child", (("m", machine), ("echo", Echo))))
    do(system, Send(Address("child", "echo"), ("up", ROOT)))
    until(system, lambda heard: "up" in heard)
    _, pid = ray.get(system._find("child").identity.remote())
    return pid


@pytest.mark.ray
@pytest.mark.campaign
def test_a_long_step_of_user_code_hides_no_ping_and_doubles_no_message(root):
    """It outlasts several retransmissions."""
    spawn(root, Worker)
    do(root, Send(CHILD, Work(1, 3.5, ROOT)))
    root.wait(400)
    do(root, PingHost("child"), Send(Address("child", "echo"), ("once", ROOT)))
    [pinged] = [event for event in until(root, last_is(HostPinged)) if isinstance(event, HostPinged)]
    assert 100 < pinged.step_ms < 3_500
    assert pinged.doing == "working hard (subtask 0)"
    until(root, lambda heard: "done" in heard and "once" in heard)
    root.wait(1_500)
    assert until(root, lambda heard: True).count("once") == 1


@pytest.mark.ray
def test_a_process_knows_its_node_and_answers_while_it_does_offloaded_work(root):
    spawn(root, Puppet)
    [started] = root.ask(CHILD, Until(lambda heard: True), TIMEOUT_MS)
    assert started.node
    release = threading.Event
    do(root, Send(CHILD, Do([Offload("long", None, lambda: release().wait(30))])))
    do(root, PingHost("child"))
    assert until(root, last_is(HostPinged))[-1].node == started.node
    do(root, Send(Address("child", "echo"), ("meanwhile", ROOT)))
    until(root, lambda heard: "meanwhile" in heard)


@pytest.mark.ray
def test_a_killed_process_is_noticed_at_once_and_its_children_go_with_it(root):
    pid = spawn(root, Puppet)
    do(root, Send(CHILD, Do([SpawnHost("grandchild", (("echo", Echo),))])))
    do(root, Send(Address("grandchild", "echo"), ("below", ROOT)))
    until(root, lambda heard: "below" in heard)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    terminated = until(root, last_is(HostTerminated))[-1]
    assert time.monotonic() - began < 5
    assert terminated.reason.startswith(f"process {pid} died")
    deadline = time.monotonic() + 20
    while "grandchild" in root.hosts and time.monotonic() < deadline:
        root.wait(50)
    assert "grandchild" not in root.hosts


@pytest.mark.campaign
@pytest.mark.ray
def test_a_stopped_process_answers_no_ping_goes_on_when_it_wakes_and_can_be_killed(root):
    pid = spawn(root, Puppet)
    os.kill(pid, signal.SIGSTOP)
    do(root, PingHost("child"), Send(Address("child", "echo"), ("late", ROOT)))
    root.wait(300)
    assert not any(isinstance(event, HostPinged) for event in until(root, lambda heard: True))
    os.kill(pid, signal.SIGCONT)
    until(root, lambda heard: "late" in heard and any(isinstance(event, HostPinged) for event in heard))
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    do(root, KillHost("child", "no sign of life"))
    assert told(until(root, last_is(HostTerminated))[-1]) == ("child", "no sign of life")
    assert time.monotonic() - began < 5
    assert _is_gone(root, pid)


@pytest.mark.ray
def test_columns_and_rows_of_the_main_programs_own_classes_arrive_as_they_were(root):
    class Row:
        def __init__(self, n):
            self.n = n

    spawn(root, Puppet)
    for num_rows in (10, 3_000, 200_000):
        columns = pa.record_batch({"n": np.arange(num_rows), "text": [f"row {n}" for n in range(num_rows)]})
        timestamps = np.arange(num_rows, dtype=np.int64)
        do(root, Send(Address("child", "echo"), (Batch.of_columns(columns, timestamps), ROOT)))
        batch = until(root, lambda heard, n=num_rows: isinstance(heard[-1], Batch) and len(heard[-1]) == n)[-1]
        assert batch.columns.equals(columns)
        assert (batch.timestamps == timestamps).all()
    do(root, Send(Address("child", "echo"), (Batch.of_rows([Row(1), Row(2)]), ROOT)))
    batch = until(root, lambda heard: isinstance(heard[-1], Batch) and len(heard[-1]) == 2)[-1]
    assert [row.n for row in batch.rows] == [1, 2]


@pytest.mark.campaign
@pytest.mark.ray
def test_a_message_that_cannot_be_pickled_is_the_senders_death_with_the_reason(root):
    class Leaky(Puppet):
        def handle(self, event, now_ms):
            return [Send(ROOT, Unpicklable())] if event == "leak" else []

    spawn(root, Leaky)
    do(root, Send(CHILD, "leak"))
    assert "stays where it is" in until(root, last_is(HostTerminated))[-1].reason


@pytest.mark.campaign
@pytest.mark.ray
def test_a_message_that_cannot_be_read_is_the_receivers_death_with_the_reason(root):
    def explode():
        message = "nobody can read this"
        raise ValueError(message)

    class Trap:
        def __reduce__(self):
            return explode, ()

    class Setter(Puppet):
        def handle(self, event, now_ms):
            return [Send(Address("victim", "m"), Trap())] if event == "set" else []

    do(root, SpawnHost("victim", (("m", Puppet),)))
    spawn(root, Setter)
    do(root, Send(CHILD, "set"))
    terminated = until(root, last_is(HostTerminated))[-1]
    assert terminated.host == "victim"
    assert "nobody can read this" in terminated.reason


@pytest.mark.campaign
@pytest.mark.ray
def test_asking_a_host_that_dies_meanwhile_says_so(root):
    spawn(root, Puppet)
    pid = _pid(root, "child")
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(HostGoneError):
        root.ask(CHILD, Until(lambda heard: False), TIMEOUT_MS)


@pytest.mark.ray
@pytest.mark.campaign
def test_closing_takes_stopped_processes_too(root):
    pid = spawn(root, Puppet)
    os.kill(pid, signal.SIGSTOP)
    root.close()
    assert root.hosts == []
    assert _is_gone(root, pid)


def _is_gone(system, pid):
    """Whether a process ends: its connections, by which its end is noticed, do so first."""
    deadline = time.monotonic() + 20
    while _is_running(pid) and time.monotonic() < deadline:
        system.wait(50)
    return not _is_running(pid)


def _is_running(pid):
    """Not so for one that is dead and only not yet taken note of by its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _pid(system, host):
    import ray

    return ray.get(system._find(host).identity.remote())[1]


def test_a_slice_travels_without_what_it_was_cut_from():
    columns = pa.record_batch({"n": np.arange(100_000)})
    parts = encode((("m", columns.slice(50_000, 10)),))
    assert sum(memoryview(part).nbytes for part in parts) < 10_000
    assert decode(parts)[0][1].equals(columns.slice(50_000, 10))


def test_small_messages_are_one_argument_and_large_ones_one_object():
    assert len(encode((("m", "small"),))) == 1
    small = encode((("m", pa.record_batch({"n": np.arange(100)})),))
    assert len(small) > 1
    large = encode((("m", pa.record_batch({"n": np.arange(INLINE_BYTES)})),))
    assert len(large) == 1
    assert isinstance(large[0], list)
    for parts in (small, large):
        assert decode(parts)[0][0] == "m"


def test_names_tell_cluster_and_host():
    assert actor_name("c", "h") == "headrace:c:h"


@pytest.mark.campaign
@pytest.mark.ray
@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="only Linux shows who listens")
def test_a_ray_of_our_own_listens_on_the_loopback_alone(root):
    spawn(root, Worker)
    parents = dict(_parents())
    ours = [found for found in ray_listeners(Path("/proc")) if os.getpid() in _line(found.pid, parents)]
    assert len(ours) >= 4, "control store, raylet, two hosts"
    assert [found for found in ours if not found.is_loopback] == []


def _line(pid, parents):
    """A process and all it descends from."""
    line = [pid]
    while line[-1] in parents:
        line.append(parents[line[-1]])
    return line


def _parents():
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            yield int(process.name), int((process / "stat").read_text().rpartition(")")[2].split()[1])
