"""Clusters that launch nodes when they are wanted and take them back, for the simulator.

Programs, data and judgement are those of `simulation.simulator`; here the cluster begins with no node for
TaskManagers. A TaskManager's process waits until a node has room for it. An autoscaler looks every second for what
waits, launches nodes of the smallest type on which it fits, which takes up to ten times as long as a job waits for
slots of which nothing is heard, fails sometimes, and takes back nodes on which nothing has run for a while.

``python tests/simulation/scaling.py [SEED ...]`` runs seeds; without any, the planted bugs.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.planted import caught_by
from simulation.programs import SHAPES
from simulation.simulator import MAX_EVENTS, Outcome, build_job, draw_faults, judge, run_job, shut_down, with_settings
from simulation.turns import slots_compared

from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import SimSystem
from headrace.engine.cluster import resource_manager
from headrace.engine.cluster.resource_manager import ResourceManager
from headrace.engine.graph.chaining import num_slots
from headrace.engine.job.phases import slot_requests
from headrace.engine.kernel.cluster_shape import ClusterReport, NodeShape
from headrace.engine.kernel.config import ClusterSettings, RestartStrategy
from headrace.engine.kernel.machine import SpawnHost
from headrace.state.files.memory import MemoryFileSystem

TICK_MS = 1_000
IDLE_MS = 5_000
PATIENCE_MS = 6_000


@dataclass
class Node:
    kind: str
    num_cpus: float
    hosts: dict[str, float] = field(default_factory=dict)
    idle_since_ms: float = 0.0

    @property
    def free(self) -> float:
        return self.num_cpus - sum(self.hosts.values())


class ScalingSystem(SimSystem):
    """Puts TaskManagers on nodes that an autoscaler launches."""

    def __init__(self, seed: int, faults: FaultPlan, types: list[NodeShape], *, is_told: bool, works: bool) -> None:
        super().__init__(seed, faults, max_events=MAX_EVENTS)
        self.types = types
        self.nodes: list[Node] = []
        self.launching: list[NodeShape] = []
        self.failures: list[str] = []
        self.num_launched = 0
        self.problems: list[str] = []
        # Cores of TaskManagers, and processes that have no node yet.
        self._cpus: dict[str, float] = {}
        self._homeless: list[Any] = []
        self._is_told, self._launches = is_told, works
        self._has_failed = False
        self._chance = random.Random(f"scaling-{seed}")
        self.schedule(TICK_MS, self._tick)

    def report(self) -> ClusterReport:
        self._has_failed = not self._has_failed and self._chance.random() < 0.2
        if self._has_failed:
            message = "the control store does not answer"
            raise OSError(message)
        launching = Counter(shape.name for shape in self.launching)
        seen = Counter(node.num_cpus for node in self.nodes)
        shapes = self.types if self._is_told else [NodeShape("", cpus, number) for cpus, number in seen.items()]
        return ClusterReport(
            tuple(shapes),
            scales=True,
            is_complete=self._is_told,
            launching=tuple(sorted(launching.items())),
            failures=tuple(self.failures[-1:]),
        )

    def spawn(self, parent: str, command: SpawnHost) -> None:
        if not command.resources.get("colocate"):
            self._cpus[command.host] = command.resources["cpu"]
            if not any(command.resources["cpu"] <= shape.num_cpus for shape in self.types):
                self.problems.append(f"{command.host} fits on no node: {command.resources}")
        super().spawn(parent, command)

    def _begin(self, host: Any) -> None:
        if host.name not in self._cpus or self._settle(host):
            super()._begin(host)
        elif host.is_alive:
            self._homeless.append(host)

    def _settle(self, host: Any) -> bool:
        for node in self.nodes:
            if node.free >= self._cpus[host.name]:
                node.hosts[host.name] = self._cpus[host.name]
                return True
        return False

    def _die(self, host: Any, reason: str) -> None:
        super()._die(host, reason)
        for node in self.nodes:
            if node.hosts.pop(host.name, None) is not None:
                node.idle_since_ms = self.now_ms

    def _tick(self) -> None:
        self._homeless = [host for host in self._homeless if host.is_alive]
        for host in list(self._homeless):
            if self._settle(host):
                self._homeless.remove(host)
                super()._begin(host)
        rooms = [shape.num_cpus for shape in self.launching]
        for host in self._homeless if self._launches else ():
            self._want_room(self._cpus[host.name], rooms)
        self.nodes = [n for n in self.nodes if n.hosts or self.now_ms - n.idle_since_ms < IDLE_MS]
        self.schedule(self.now_ms + TICK_MS, self._tick)

    def _want_room(self, cpus: float, rooms: list[float]) -> None:
        for index, room in enumerate(rooms):
            if room >= cpus:
                rooms[index] -= cpus
                return
        counts = Counter(node.kind for node in self.nodes) + Counter(shape.name for shape in self.launching)
        for shape in sorted(self.types, key=lambda shape: shape.num_cpus):
            if shape.num_cpus >= cpus and counts[shape.name] < shape.max_nodes:
                self.launching.append(shape)
                rooms.append(shape.num_cpus - cpus)
                self.schedule(self.now_ms + self._chance.uniform(500, 10 * PATIENCE_MS), lambda: self._launched(shape))
                return

    def _launched(self, shape: NodeShape) -> None:
        self.launching.remove(shape)
        if self._chance.random() < 0.2:
            self.failures.append(f"{shape.name}: no capacity")
            return
        self.num_launched += 1
        self.nodes.append(Node(shape.name, shape.num_cpus, idle_since_ms=self.now_ms))


_systems: dict[str, ScalingSystem] = {}


def _observe(name: str) -> ClusterReport:
    return _systems[name].report()


@slots_compared()
def run_scaling_seed(seed: int) -> tuple[Outcome, ScalingSystem, str]:
    """Run one seed and judge it; gives how the job ended, too.

    Raises:
        AssertionError: If the run is not as it must be.
    """
    rng = random.Random(f"scaling-{seed}")
    name = f"scaling-{seed}"
    MemoryFileSystem.forget(name)
    program, graph = build_job(rng, name, SHAPES)
    types = [
        NodeShape(kind, cpus, rng.randint(1, 3))
        for kind, cpus in (("s", 1.0), ("m", 2.0), ("l", 5.0))
        if rng.random() < 0.6
    ] or [NodeShape("m", 2.0, 1)]
    is_told, works = rng.random() < 0.7, rng.random() < 0.85
    # A leader that is killed before anything has run is succeeded by one that restarts the job.
    restart = RestartStrategy(-1 if works else 3, 200)
    graph = with_settings(graph, {"slot_request_timeout_ms": PATIENCE_MS, "restart": restart})
    settings = ClusterSettings()
    faults = draw_faults(rng) if rng.random() < 0.5 else FaultPlan()
    system = _systems[name] = ScalingSystem(seed, faults, types, is_told=is_told, works=works)
    wanted, capacity = num_slots(graph), sum(int(shape.num_cpus) * shape.max_nodes for shape in types)
    report = ClusterReport(tuple(types), True, is_told) if is_told else ClusterReport((), True)
    manager = functools.partial(
        ResourceManager, settings=settings, report=report, observe=functools.partial(_observe, name)
    )
    try:
        view = run_job(system, graph, settings, name, manager)
        assert not system.problems, f"seed {seed}: {system.problems[0]}"
        if wanted > capacity or not works:
            assert view.state == "FAILED", f"seed {seed}: {wanted} slots on {types}, and the job ended {view.state}"
            expected = "can ever be had" if wanted > capacity and is_told else "the cluster launches"
            assert expected in view.failure, f"seed {seed}: expected {expected!r}: {view.failure}"
        else:
            judge(seed, program, view, name, faults)
            is_told_so = any("waits for slots: the cluster launches" in text for _, text in view.history)
            assert is_told_so or faults != FaultPlan(), f"seed {seed}: the job does not say what it waited for"
        shut_down(system)
        assert not system.nodes, f"seed {seed}: nodes were not given back: {system.nodes}"
    except BaseException:
        print(f"seed {seed}: {program.name}, {wanted} slots, {types}, told {is_told}, works {works}, {faults}")
        raise
    finally:
        del _systems[name]
        outcome = Outcome(seed, program.name, system.now_ms, 0, 0, system.num_kills, system.digest, system.points)
        system.close()
        MemoryFileSystem.forget(name)
    return outcome, system, view.state


# ------------------------------------------------------------------------------------------------------------- mutants
Mutant = Callable[[], Any]
SCALING_MUTANTS: dict[str, Mutant] = {}


def mutant(plant: Mutant) -> Mutant:
    """Register a planted bug: a context manager that plants it."""
    SCALING_MUTANTS[plant.__name__] = contextmanager(plant)
    return plant


@mutant
def nobody_waits_for_nodes() -> Iterator[None]:
    """Slots are given up after the same time whatever the cluster does."""
    with mock.patch.object(slot_requests, "patience_ms", return_value=0):
        yield


@mutant
def one_task_manager_has_all_slots() -> Iterator[None]:
    """What node types offer is not looked at."""
    with mock.patch.object(resource_manager, "task_manager_size", side_effect=lambda wanted, *_: wanted):
        yield


@mutant
def the_cluster_is_looked_at_only_once() -> Iterator[None]:
    """The first picture stays."""
    with mock.patch.object(ResourceManager, "_on_look_due", return_value=[]):
        yield


@mutant
def nothing_is_hopeless() -> Iterator[None]:
    """What can never be had is waited for."""
    with mock.patch.object(resource_manager, "refusal", return_value=None):
        yield


@mutant
def what_launches_is_waited_for_without_end() -> Iterator[None]:
    """Patience is given anew although nothing is launched any more."""
    patience = slot_requests.patience_ms

    def endless(job: Any, waited_ms: int) -> int:
        return patience(job, waited_ms) or PATIENCE_MS

    with mock.patch.object(slot_requests, "patience_ms", endless):
        yield


def is_caught(name: str, max_seeds: int) -> tuple[int | None, str]:
    """Run seeds under a mutant; gives the seed that caught it and how."""
    with SCALING_MUTANTS[name]():
        return caught_by(f"scaling: {name}", run_scaling_seed, max_seeds)


def main() -> int:
    survivors = 0
    for seed in map(int, sys.argv[1:]):
        outcome, system, state = run_scaling_seed(seed)
        print(outcome, state, system.num_launched)
    for name in SCALING_MUTANTS if len(sys.argv) == 1 else ():
        seed, how = is_caught(name, 100)
        survivors += seed is None
        print(f"{name}: {'SURVIVED' if seed is None else f'caught by seed {seed}: {how}'}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
