"""Processes that stop before they have said a word, for the simulator: others serve in their place, and in time.

Programs, data and judgement are those of `simulation.simulator`. One TaskManager, or one slot's process, or one of
each, is frozen in the moment it is made, for longer than a job waits for its slots; nothing else goes wrong.

``python tests/simulation/frozen_starts.py [SEED ...]`` runs seeds; without any, the planted bugs.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.planted import caught_by
from simulation.programs import SHAPES
from simulation.simulator import MAX_EVENTS, Outcome, build_job, judge, run_job, shut_down, with_settings
from simulation.turns import slots_compared

from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import SimSystem
from headrace.engine.cluster import task_manager
from headrace.engine.cluster.resource_manager import ResourceManager
from headrace.engine.job.phases import slot_requests
from headrace.engine.kernel.config import ClusterSettings
from headrace.engine.kernel.machine import Address, SpawnHost
from headrace.state.files.memory import MemoryFileSystem

PATIENCE_MS = 30_000


def freeze_as_made(system: SimSystem, chosen: set[tuple[str, int]], duration_ms: int = 400_000) -> list[str]:
    """Freeze some processes of a run as they are made; gives their names, when they are known."""
    frozen: list[str] = []
    numbers = {"tm": 0, "slot": 0}
    spawn = system.spawn

    def spawn_frozen(parent: str, command: SpawnHost) -> None:
        spawn(parent, command)
        kind = "slot" if "-slot-" in command.host else "tm" if command.host.startswith("tm-") else ""
        if kind:
            if (kind, numbers[kind]) in chosen:
                frozen.append(command.host)
                system.freeze_now(command.host, duration_ms)
            numbers[kind] += 1

    system.spawn = spawn_frozen  # type: ignore[method-assign]
    return frozen


def freeze_as_stopped(system: SimSystem, number: int, duration_ms: int = 400_000) -> None:
    """Freeze a TaskManager as it is to stop: the first one, or a later one."""
    stop, rest = system.stop, [number]

    def stop_frozen(parent: str, host: str) -> None:
        if host.startswith("tm-") and "-slot-" not in host:
            if rest[0] == 0:
                system.freeze_now(host, duration_ms)
            rest[0] -= 1
        stop(parent, host)

    system.stop = stop_frozen  # type: ignore[method-assign]


@slots_compared()
def run_frozen_seed(seed: int) -> Outcome:
    """Run one seed and judge it.

    Raises:
        AssertionError: If the run is not as it must be.
    """
    rng = random.Random(f"frozen-{seed}")
    name = f"frozen-{seed}"
    MemoryFileSystem.forget(name)
    program, graph = build_job(rng, name, SHAPES)
    timing = {"heartbeat_interval_ms": 1_000, "heartbeat_timeout_ms": 10_000, "slot_request_timeout_ms": PATIENCE_MS}
    graph = with_settings(graph, timing)
    settings = ClusterSettings(slots_per_task_manager=rng.choice((0, 1, 2)))
    kinds = rng.choice((("tm",), ("slot",), ("tm", "slot")))
    frozen = {(kind, rng.randint(0, 1)) for kind in kinds}
    system = SimSystem(seed, FaultPlan(), max_events=MAX_EVENTS)
    silent = freeze_as_made(system, frozen)
    managers: list[ResourceManager] = []

    def manager(address: Address) -> ResourceManager:
        managers.append(ResourceManager(address, settings))
        return managers[-1]

    try:
        view = run_job(system, graph, settings, name, manager)
        judge(seed, program, view, name, FaultPlan(freezes=1))
        failures = [text for _, text in view.history if text.startswith("restarts")]
        assert not failures, f"seed {seed}: others could have served: {failures[0]}"
        asked = [text for _, text in view.history if "requests another one" in text]
        assert len(asked) <= len(frozen), f"seed {seed}: too many were requested: {asked}"
        if ("tm", 0) in frozen:
            assert asked, f"seed {seed}: the job does not say why it waited"
            given_back = [line for line in managers[0].log.story(silent[0]) if "given back" in line]
            assert given_back, f"seed {seed}: the silent one was kept beside the one that serves in its place"
        shut_down(system)
    except BaseException:
        print(f"seed {seed}: {program.name}, {settings}, frozen {frozen}")
        raise
    finally:
        outcome = Outcome(seed, program.name, system.now_ms, 0, 0, system.num_kills, system.digest, system.points)
        system.close()
        MemoryFileSystem.forget(name)
    return outcome


# ------------------------------------------------------------------------------------------------------------- mutants
FROZEN_MUTANTS: dict[str, Callable[[], Any]] = {}


def mutant(plant: Callable[[], Any]) -> Callable[[], Any]:
    """Register a planted bug: a context manager that plants it."""
    FROZEN_MUTANTS[plant.__name__] = contextmanager(plant)
    return plant


@mutant
def nobody_stands_in() -> Iterator[None]:
    """A silent TaskManager is waited for."""
    with mock.patch.object(ResourceManager, "_stand_in", return_value=[]):
        yield


@mutant
def slots_have_all_the_time_to_start() -> Iterator[None]:
    """A slot's process that is silent is waited for."""
    handle = task_manager.TaskManager._on_first_ping_due

    def patient(self: Any, timer: Any, now_ms: int) -> Any:
        self._slots[timer.index].num_silent_starts = 10
        return handle(self, timer, now_ms)

    with mock.patch.object(task_manager.TaskManager, "_on_first_ping_due", patient):
        yield


@mutant
def silent_ones_are_kept_beside_their_stand_ins() -> Iterator[None]:
    """A job that runs does not say what it does not need."""
    with mock.patch.object(slot_requests, "give_back_unused", return_value=[]):
        yield


def is_caught(name: str, max_seeds: int) -> tuple[int | None, str]:
    """Run seeds under a mutant; gives the seed that caught it and how."""
    with FROZEN_MUTANTS[name]():
        return caught_by(f"frozen: {name}", run_frozen_seed, max_seeds)


def main() -> int:
    survivors = 0
    for seed in map(int, sys.argv[1:]):
        print(run_frozen_seed(seed))
    for name in FROZEN_MUTANTS if len(sys.argv) == 1 else ():
        seed, how = is_caught(name, 100)
        survivors += seed is None
        print(f"{name}: {'SURVIVED' if seed is None else f'caught by seed {seed}: {how}'}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
