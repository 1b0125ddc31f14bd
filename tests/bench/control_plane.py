"""What large jobs cost the control plane: deploying, a checkpoint, a region's failover, a view; and how each grows.

    python tests/bench/control_plane.py [--subtasks 100 1000 10000] [--vertices 10] [--slots 1] [--profile deploy]

Dispatcher, ResourceManager, JobManager, CheckpointCoordinator and all TaskManagers are real; slots are played: they do
at once what they are told, and a task has one file in each checkpoint. Messages are delivered in order of virtual time.
Counted is processor time within the machines, by machine, and of their offloaded work (the store is in memory). The job
is a chain of vertices one to one, so that the subtasks of one index are a region; a TaskManager has ``--slots`` slots,
each with one subtask of every vertex. The view is what `GET /jobs/:jobid` needs: the JobManager's answer, and its JSON.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import gc
import heapq
import itertools
import json
import math
import os
import pstats
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import cloudpickle
from control_harness import SourceStandIn, Splits, edge, graph, settings, vertex

from headrace.actors.rest.resources import jobs
from headrace.engine.cluster.dispatcher import Dispatcher
from headrace.engine.cluster.resource_manager import ResourceManager
from headrace.engine.graph.chaining import num_slots
from headrace.engine.kernel.config import ClusterSettings
from headrace.engine.kernel.machine import (
    Address,
    Asked,
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
)
from headrace.engine.operators.exchange import ForwardPartitioner
from headrace.engine.protocol.checkpoint_messages import AcknowledgeCheckpoint, TriggerCheckpoint
from headrace.engine.protocol.messages import FetchJobDetails, JobSubmitted, SubmitJob, TakeCheckpoint
from headrace.engine.protocol.states import TaskState
from headrace.engine.protocol.task_messages import (
    CancelTask,
    MetricsReported,
    StartTask,
    SubmitTask,
    UpdateTaskExecutionState,
)
from headrace.state.checkpoints.snapshot import OperatorSnapshot
from headrace.state.identifiers import JobId, OperatorId

DISPATCHER, RESOURCE_MANAGER = Address("head", "dispatcher"), Address("head", "rm")
JOB = JobId("job-1")
AIMS = {"deploy": 5.0, "checkpoint": 1.0, "failover": 1.0, "view": 0.05}
"""Seconds of processor time at 10,000 subtasks."""

SLOT = "slot"


class World:
    """The machines of a cluster, and the processor time that each kind of them has used."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.used_s: Counter[str] = Counter()
        self.replies: dict[str, Any] = {}
        self.num_events = 0
        # Slots that live, with whose children they are; tasks by vertex and subtask, with whom they report to.
        self.slots: dict[str, Address] = {}
        self.tasks: dict[tuple[str, int], Any] = {}
        self._machines: dict[Address, Any] = {}
        self._parents: dict[str, Address] = {}
        self._timers: dict[tuple[Address, str], int] = {}
        self._queue: list[tuple[int, int, Address, Any, str | None]] = []
        self._serial = itertools.count()
        self._asks = itertools.count()
        self._num_reports = 0

    def start(self, host: str, actors: Any, parent: Address | None = None) -> None:
        for actor, make in actors:
            address = Address(host, actor)
            self._machines[address] = make(address)
            self.post(address, Started(address, f"node-{host}"))
        if parent is not None:
            self._parents[host] = parent

    def post(self, address: Address, event: Any, delay_ms: int = 0, key: str | None = None) -> None:
        serial = next(self._serial)
        if key is not None:
            self._timers[address, key] = serial
        heapq.heappush(self._queue, (self.now_ms + delay_ms, serial, address, event, key))

    def ask(self, address: Address, request: Any) -> str:
        ask_id = f"ask-{next(self._asks)}"
        self.post(address, Asked(ask_id, request))
        return ask_id

    def run_until(self, is_over: Any, for_ms: int = 3_600_000) -> None:
        """Deliver what is due until something is so."""
        until_ms = self.now_ms + for_ms
        while not is_over():
            assert self._queue, "nothing is left to be done"
            assert self._queue[0][0] <= until_ms, "it does not come to an end"
            at_ms, serial, address, event, key = heapq.heappop(self._queue)
            if key is not None:
                if self._timers.get((address, key)) != serial:
                    continue
                del self._timers[address, key]
            self.now_ms = max(self.now_ms, at_ms)
            self.num_events += 1
            if address.host in self.slots:
                self._play(address.host, event)
            elif address in self._machines:
                self._handle(address, event)

    def answer(self, address: Address, request: Any) -> Any:
        ask_id = self.ask(address, request)
        self.run_until(lambda: ask_id in self.replies)
        return self.replies.pop(ask_id)

    def _handle(self, address: Address, event: Any) -> None:
        machine = self._machines[address]
        began_s = time.process_time()
        commands = machine.handle(event, self.now_ms)
        self.used_s[type(machine).__name__] += time.process_time() - began_s
        for command in commands:
            self._carry_out(address, command)

    def _carry_out(self, address: Address, command: Any) -> None:
        if isinstance(command, Send):
            self.post(command.to, command.message)
        elif isinstance(command, StartTimer):
            self.post(address, command.message, command.delay_ms, command.key)
        elif isinstance(command, CancelTimer):
            self._timers.pop((address, command.key), None)
        elif isinstance(command, Offload):
            began_s = time.process_time()
            result = command.work()
            self.used_s["offloaded work"] += time.process_time() - began_s
            self.post(address, OffloadCompleted(command.name, command.token, result, None))
        elif isinstance(command, SpawnHost):
            if command.actors[0][0] == SLOT:
                self.slots[command.host] = address
            else:
                self.start(command.host, command.actors, address)
        elif isinstance(command, PingHost):
            self.post(address, HostPinged(command.host, 0, "", 1, "node"))
        elif isinstance(command, KillHost):
            self.kill(command.host)
        elif isinstance(command, Reply):
            self.replies.setdefault(command.ask_id, command.value)

    def kill(self, host: str) -> None:
        """End a slot, as a process that dies does."""
        parent = self.slots.pop(host)
        self.post(parent, HostTerminated(host, "killed", "node"))

    # ----------------------------------------------------------------------------------------------------- played slots
    def _play(self, host: str, message: Any) -> None:
        if isinstance(message, SubmitTask):
            task = message.deployment
            self.tasks[task.attempt.vertex, task.attempt.subtask] = SimpleNamespace(
                attempt=task.attempt, host=host, job_manager=task.job_manager, coordinator=task.coordinator
            )
            self._report(task, TaskState.INITIALIZING, TaskState.READY)
        elif isinstance(message, StartTask):
            self._report(self._task(message.attempt), TaskState.RUNNING)
        elif isinstance(message, CancelTask):
            state = UpdateTaskExecutionState(message.attempt, TaskState.CANCELED)
            self.post(message.job_manager, state)
        elif isinstance(message, TriggerCheckpoint):
            for (vertex_id, subtask), task in self.tasks.items():
                if subtask == message.attempt.subtask:
                    snapshot = OperatorSnapshot(OperatorId(vertex_id), subtask, ())
                    metrics = {"bytes": 100, "uploaded_bytes": 10, "sync_ms": 1, "async_ms": 2}
                    acknowledged = AcknowledgeCheckpoint(task.attempt, message.checkpoint_id, (snapshot,), metrics)
                    self.post(task.coordinator, acknowledged)

    def _task(self, attempt: Any) -> Any:
        return self.tasks[attempt.vertex, attempt.subtask]

    def _report(self, task: Any, *states: TaskState) -> None:
        for state in states:
            self.post(task.job_manager, UpdateTaskExecutionState(task.attempt, state))

    def report_metrics(self) -> None:
        """Have every task report its numbers once more, and deliver that."""
        self._num_reports += 1
        per_report = {"busy_ms": 500, "backpressured_ms": 10, "elapsed_ms": 1_000, "records_in": 9, "records_out": 9}
        for task in self.tasks.values():
            numbers = {name: self._num_reports * value for name, value in per_report.items()}
            of_operator = {"num_records_in": numbers["records_in"], "num_records_out": numbers["records_out"]}
            operators = {OperatorId(task.attempt.vertex): of_operator}
            self.post(task.job_manager, MetricsReported(task.attempt, numbers, operators))
        self.run_until(lambda: self._queue[0][0] > self.now_ms)


def job_of(num_subtasks: int, num_vertices: int) -> SubmitJob:
    parallelism = num_subtasks // num_vertices
    names = [f"v{i}" for i in range(num_vertices)]
    source = vertex(names[0], parallelism, SourceStandIn(Splits([str(i) for i in range(parallelism)])))
    others = [vertex(name, parallelism) for name in names[1:]]
    edges = [edge(i, names[i], names[i + 1], ForwardPartitioner()) for i in range(num_vertices - 1)]
    job_graph = graph(source, *others, edges=edges)
    own = settings(checkpoints=True, interval_ms=10_000_000, attached=False, slot_request_timeout_ms=600_000)
    return SubmitJob(JOB, "large", cloudpickle.dumps(job_graph), own, num_slots(job_graph))


def memory_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Measured:
    """Processor seconds of what is done within it, by machine."""

    def __init__(self, world: World, profiled: bool) -> None:
        self._world = world
        self._profile = cProfile.Profile() if profiled else None

    def __enter__(self) -> Measured:
        self._before = Counter(self._world.used_s)
        self._events = self._world.num_events
        if self._profile:
            self._profile.enable()
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile:
            self._profile.disable()
            pstats.Stats(self._profile).sort_stats("cumulative").print_stats(25)
        self.by_machine = self._world.used_s - self._before
        self.seconds = sum(self.by_machine.values())
        self.num_events = self._world.num_events - self._events


def view_seconds(world: World, job_manager: Address) -> float:
    """Of the best of five views, each after new reports of all tasks; JSON included."""
    times = []
    for _ in range(5):
        world.report_metrics()
        began_s = time.process_time()
        details = world._machines[job_manager].handle(Asked("view", FetchJobDetails()), world.now_ms)[0].value
        cluster = SimpleNamespace(details=lambda _job, found=details: found)
        json.dumps(jobs.job(SimpleNamespace(path={"jobid": JOB}, cluster=cluster)), separators=(",", ":"))
        times.append(time.process_time() - began_s)
    return min(times)


def measure(num_subtasks: int, num_vertices: int, slots: int, profiled: str) -> dict[str, float]:
    job = job_of(num_subtasks, num_vertices)
    cluster = ClusterSettings(slots_per_task_manager=slots)
    before_mib = memory_mib()
    world = World()
    world.start(
        "head",
        (
            ("dispatcher", functools.partial(Dispatcher, resource_manager=RESOURCE_MANAGER, settings=cluster)),
            ("rm", functools.partial(ResourceManager, settings=cluster)),
        ),
    )
    world.run_until(lambda: not world._queue or world.num_events >= 2)
    with Measured(world, profiled == "deploy") as deploy:
        submitted = world.answer(DISPATCHER, job)
        assert isinstance(submitted, JobSubmitted), submitted
        job_manager = next(one for one, machine in world._machines.items() if type(machine).__name__ == "JobManager")
        record = world._machines[job_manager]._job.record
        world.run_until(lambda: record.status.value == "RUNNING")
    assert len(world.tasks) == num_subtasks
    num_task_managers = sum(type(one).__name__ == "TaskManager" for one in world._machines.values())
    world.report_metrics()
    used_mib = memory_mib() - before_mib

    with Measured(world, profiled == "checkpoint") as checkpoint:
        taken = world.answer(job_manager, TakeCheckpoint())
        world.run_until(lambda: world._queue[0][0] > world.now_ms)  # all tasks are told that it is complete
    assert len(taken.tasks) == num_subtasks, taken

    victim = world.tasks["v0", 0].host
    with Measured(world, profiled == "failover") as failover:
        world.kill(victim)
        world.run_until(lambda: record.status.value == "RESTARTING")
        world.run_until(lambda: record.status.value == "RUNNING")
    restarted = sum(task.attempt.attempt > 0 for task in world.tasks.values())
    assert restarted == num_vertices, restarted  # one region, and no other task
    view_s = view_seconds(world, job_manager)
    print(
        f"\n{num_subtasks:,} subtasks of {num_vertices} vertices, {num_task_managers:,} TaskManagers of {slots} slots"
    )
    for name, found in (("deploy", deploy), ("checkpoint", checkpoint), ("failover", failover)):
        machines = ", ".join(f"{machine} {used:.3f}" for machine, used in found.by_machine.most_common(4))
        print(f"  {name:10} {found.seconds:8.3f} s of processor time, {found.num_events:,} events ({machines})")
    print(f"  {'view':10} {view_s:8.3f} s;  memory of all machines {used_mib:.0f} MiB")
    return {
        "deploy": deploy.seconds,
        "checkpoint": checkpoint.seconds,
        "failover": failover.seconds,
        "view": view_s,
        "memory": used_mib,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subtasks", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--vertices", type=int, default=10)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--profile", default="", choices=("", "deploy", "checkpoint", "failover"))
    options = parser.parse_args()
    print(f"load of the machine {os.getloadavg()[0]:.1f}")
    found = {number: measure(number, options.vertices, options.slots, options.profile) for number in options.subtasks}
    sizes = sorted(found)
    if len(sizes) > 1:
        print("\ngrowth from size to size, as the power of the number of subtasks (1: in proportion; 2: quadratic)")
        for name in found[sizes[0]]:
            powers = [
                math.log(max(found[large][name], 1e-6) / max(found[small][name], 1e-6)) / math.log(large / small)
                for small, large in itertools.pairwise(sizes)
            ]
            aim = f"   aim at 10,000: {AIMS[name]:g} s" if name in AIMS else ""
            print(f"  {name:10} {'  '.join(f'{power:5.2f}' for power in powers)}{aim}")


if __name__ == "__main__":
    main()
