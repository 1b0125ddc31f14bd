"""Clusters that lose nodes, for the simulator: all processes of one die together, or live on, given up for dead.

Programs, data and judgement are those of `simulation.simulator`; here nodes die, nodes are blocked, and what the
ResourceManager does about blocks is compared with a model that is told each failure and counts in its own, plain way.
Parents may never be told the nodes of their children; all the same, what has been announced names its node, and so
does its loss.

``python tests/simulation/nodes.py [SEED ...]`` runs seeds; without any, the planted bugs.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.planted import caught_by
from simulation.programs import SHAPES
from simulation.simulator import MAX_EVENTS, Outcome, build_job, draw_faults, judge, run_job, shut_down
from simulation.turns import slots_compared

from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import SimSystem
from headrace.engine.cluster.blocklist import Blocklist
from headrace.engine.cluster.resource_manager import ResourceManager
from headrace.engine.cluster.task_manager import TaskManager
from headrace.engine.execution.slot_registry import SlotRegistry
from headrace.engine.kernel.config import ClusterSettings
from headrace.engine.kernel.machine import Command, HostTerminated, Send, SpawnHost, Started
from headrace.engine.protocol.control_messages import SlotFailed
from headrace.engine.protocol.messages import RegisterTaskManager, SlotLost, TaskManagerLost
from headrace.state.files.memory import MemoryFileSystem


@dataclass
class Model:
    """What is blocked, by the rule in words: so many failures within the time, after the last block or its lifting."""

    settings: ClusterSettings
    # Node and time of each failure that counts; and since when nodes are blocked.
    failures: list[tuple[str, int]] = field(default_factory=list)
    since: dict[str, int] = field(default_factory=dict)
    num_blocks: int = 0
    num_lifted: int = 0
    problems: list[str] = field(default_factory=list)

    def fail(self, node: str, now_ms: int) -> None:
        if not node or node in self.blocked(now_ms):
            return
        self.failures.append((node, now_ms))
        recent = [at for where, at in self.failures if where == node and now_ms - at < self.settings.node_block_ms]
        if len(recent) >= self.settings.node_failures_until_blocked:
            self.since[node] = now_ms
            self.num_blocks += 1
            self.failures = [one for one in self.failures if one[0] != node]

    def lift(self, node: str) -> None:
        self.num_lifted += self.since.pop(node, None) is not None

    def blocked(self, now_ms: int) -> set[str]:
        return {node for node, since in self.since.items() if now_ms - since < self.settings.node_block_ms}


class WatchedSystem(SimSystem):
    """Compares what is to be avoided with the model, and tells it of deaths that the ResourceManager hears of."""

    def __init__(self, seed: int, faults: FaultPlan, model: Model) -> None:
        super().__init__(seed, faults, max_events=MAX_EVENTS)
        self.model = model

    def spawn(self, parent: str, command: SpawnHost) -> None:
        super().spawn(parent, command)
        if command.resources.get("colocate"):
            if self.node_of(command.host) != self.node_of(parent):
                self.model.problems.append(f"{command.host} is not beside its parent")
            return
        now_ms = self.clock()
        blocked = self.model.blocked(now_ms)
        if set(command.avoid) != blocked:
            self.model.problems.append(f"{command.host} is to avoid {command.avoid}, blocked are {blocked}")


def draw_node_faults(rng: random.Random) -> FaultPlan:
    """Any faults, and nodes that die."""
    plan = draw_faults(rng)
    return replace(
        plan,
        num_nodes=rng.randint(1, 4),
        node_deaths=rng.randint(1, 3),
        node_leak_ms=rng.choice(((0.0, 0.0), (0.0, 500.0), (1_000.0, 10_000.0))),
        random_kills=plan.random_kills + rng.choice((0, 0, 4)),
        fault_window_ms=(0.0, rng.choice((300.0, 1_000.0, 3_000.0))),
        node_untold=rng.choice((0.0, 0.5)),
    )


@slots_compared()
def run_node_seed(seed: int) -> tuple[Outcome, Model]:
    """Run one seed and judge it.

    Raises:
        AssertionError: If the run is not as it must be.
    """
    rng = random.Random(f"nodes-{seed}")
    name = f"nodes-{seed}"
    MemoryFileSystem.forget(name)
    program, graph = build_job(rng, name, SHAPES)
    settings = ClusterSettings(
        slots_per_task_manager=rng.choice((1, 1, 2)),
        node_failures_until_blocked=rng.randint(1, 3),
        node_block_ms=rng.choice((300, 3_000, 600_000)),
    )
    faults = draw_node_faults(rng)
    model = Model(settings)
    system = WatchedSystem(seed, faults, model)
    try:
        with _told(model):
            view = run_job(system, graph, settings, name)
            assert not model.problems, f"seed {seed}: {model.problems[0]}"
            judge(seed, program, view, name, faults)
            shut_down(system)
    except BaseException:
        print(f"seed {seed}: {program.name}, {settings}, {faults}")
        raise
    finally:
        outcome = Outcome(seed, program.name, system.now_ms, 0, 0, system.num_kills, system.digest, system.points)
        system.close()
        MemoryFileSystem.forget(name)
    outcome.restarts = view.num_restarts
    return outcome, model


@contextmanager
def _told(model: Model) -> Iterator[None]:
    """Tell the model of failures and liftings, whatever the Blocklist makes of them."""
    fail, lift = ResourceManager._count_failure, Blocklist.lift

    def count_failure(self: Any, job: Any, node: str, now_ms: int) -> Any:
        model.fail(node, now_ms)
        return fail(self, job, node, now_ms)

    def lift_block(self: Any, node: str, now_ms: int) -> bool:
        model.lift(node)
        return lift(self, node, now_ms)

    def handle_slots(self: TaskManager, event: Any, now_ms: int) -> list[Command]:
        commands = task_manager(self, event, now_ms)
        model.problems += _nameless(commands)
        return commands

    def handle_task_managers(self: ResourceManager, event: Any, now_ms: int) -> list[Command]:
        found = self._find(event.host) if isinstance(event, HostTerminated) else None
        was_announced = found is not None and found[1].is_registered
        commands = resource_manager(self, event, now_ms)
        if was_announced:
            model.problems += _nameless(commands)
        return commands

    task_manager, resource_manager = TaskManager.handle, ResourceManager.handle
    with (
        mock.patch.object(TaskManager, "handle", handle_slots),
        mock.patch.object(ResourceManager, "handle", handle_task_managers),
        mock.patch.object(ResourceManager, "_count_failure", count_failure),
        mock.patch.object(Blocklist, "lift", lift_block),
    ):
        yield


def _nameless(commands: list[Command]) -> Iterator[str]:
    """Announcements and losses that say no node, although there are nodes."""
    for message in (command.message for command in commands if isinstance(command, Send)):
        nodes: list[str] = []
        if isinstance(message, RegisterTaskManager):
            nodes = [message.node, *(slot.node for slot in message.slots)]
        elif isinstance(message, SlotLost):
            nodes = [message.slot.node]
        elif isinstance(message, (SlotFailed, TaskManagerLost)):
            nodes = [message.node]
        if not all(nodes):
            yield f"no node is named in {message}"


# ------------------------------------------------------------------------------------------------------------- mutants
Mutant = Callable[[], Any]
NODE_MUTANTS: dict[str, Mutant] = {}


def mutant(plant: Mutant) -> Mutant:
    """Register a planted bug: a context manager that plants it."""
    NODE_MUTANTS[plant.__name__] = contextmanager(plant)
    return plant


@mutant
def successors_do_not_avoid_blocked_nodes() -> Iterator[None]:
    """A TaskManager is spawned wherever there is room."""
    spawn = ResourceManager._spawn

    def spawn_anywhere(self: Any, *arguments: Any) -> SpawnHost:
        return replace(spawn(self, *arguments), avoid=())

    with mock.patch.object(ResourceManager, "_spawn", spawn_anywhere):
        yield


@mutant
def old_failures_are_never_forgotten() -> Iterator[None]:
    """Failures and blocks are kept for ever."""
    with mock.patch.object(Blocklist, "_is_recent", return_value=True):
        yield


@mutant
def a_lifted_block_stays() -> Iterator[None]:
    """The job is told that the block was lifted, and it was not."""
    with mock.patch.object(Blocklist, "lift", lambda self, node, now_ms: node in self.blocked(now_ms)):
        yield


@mutant
def one_failure_more_is_needed() -> Iterator[None]:
    """The last of so many failures does not block."""
    fail = Blocklist.fail

    def fail_late(self: Blocklist, node: str, now_ms: int) -> int:
        self._threshold += 1
        try:
            return fail(self, node, now_ms)
        finally:
            self._threshold -= 1

    with mock.patch.object(Blocklist, "fail", fail_late):
        yield


@mutant
def a_task_manager_waits_to_be_told_the_nodes_of_its_slots() -> Iterator[None]:
    """What it knows of its own node is no news to it."""
    start = TaskManager._on_started

    def start_anywhere(self: TaskManager, event: Started, now_ms: int) -> list[Command]:
        commands = start(self, event, now_ms)
        for slot in self._slots:
            slot.node = ""
        return commands

    with mock.patch.object(TaskManager, "_on_started", start_anywhere):
        yield


@mutant
def a_registration_does_not_say_where() -> Iterator[None]:
    """The ResourceManager believes nobody but the one that passes on signs of life."""
    register = ResourceManager._on_registration

    def register_anywhere(self: ResourceManager, message: RegisterTaskManager, now_ms: int) -> list[Command]:
        return register(self, replace(message, node=""), now_ms)

    with mock.patch.object(ResourceManager, "_on_registration", register_anywhere):
        yield


@mutant
def slots_of_a_lost_task_manager_are_kept() -> Iterator[None]:
    """What ran on a lost node is still taken to be there."""
    with mock.patch.object(SlotRegistry, "lose_task_manager", return_value=[]):
        yield


def is_caught(name: str, max_seeds: int) -> tuple[int | None, str]:
    """Run seeds under a mutant; gives the seed that caught it and how."""
    with NODE_MUTANTS[name]():
        return caught_by(f"node: {name}", run_node_seed, max_seeds)


def main() -> int:
    survivors = 0
    for seed in map(int, sys.argv[1:]):
        print(run_node_seed(seed)[0])
    for name in NODE_MUTANTS if len(sys.argv) == 1 else ():
        seed, how = is_caught(name, 100)
        survivors += seed is None
        print(f"{name}: {'SURVIVED' if seed is None else f'caught by seed {seed}: {how}'}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
