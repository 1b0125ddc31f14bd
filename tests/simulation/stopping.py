"""Stops one random program under one random fault plan, goes on from its last checkpoint, and judges both runs.

Everything follows from one seed: program, data, faults, when the stop is asked for and how. The judgement: the first
run ends FINISHED, whatever is killed meanwhile; if it was suspended, what both runs have committed equals the
reference multiset, and rows of one key are in order, as if there had been no pause; after a drain the same holds for
programs without windows and timers (a window that was drained half-full fires again with the rest). The second run has
faults of its own.
"""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

import cloudpickle
from simulation.leftovers import check_leftovers
from simulation.simulator import (
    DISPATCHER,
    MAX_VIRTUAL_MS,
    RESOURCE_MANAGER,
    TERMINAL,
    build_job,
    draw_faults,
    judge,
    shut_down,
)
from simulation.turns import slots_compared

from headrace.actors.cluster import Cluster
from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import SimSystem
from headrace.engine.cluster.dispatcher import Dispatcher
from headrace.engine.cluster.resource_manager import ResourceManager
from headrace.engine.graph.chaining import num_slots
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.kernel.config import ClusterSettings
from headrace.engine.protocol.messages import JobSubmitted, ListJobs, StopJob, SubmitJob
from headrace.engine.protocol.views import StopMode
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import JobId

WITHOUT_TIME = ("pass_through", "running_count", "broadcast")
"""Programs in which nothing waits for the end of event time."""


@slots_compared()
def run_stop_seed(seed: int, *, story: bool = False, kills_at: tuple[tuple[str, int], ...] = ()) -> str:
    """Stop and resume one program; gives how it went, for statistics.

    Raises:
        AssertionError: If anything was lost, doubled, or did not end.
    """
    rng = random.Random(f"stop-{seed}")
    name = f"stop-{seed}"
    MemoryFileSystem.forget(name)
    program, graph = build_job(rng, name)
    mode = rng.choice((StopMode.SUSPEND, StopMode.SUSPEND, StopMode.DRAIN))
    stop_at_ms = rng.choice((0, 10, 30, 80, 200, 500, 2_000))
    faults = draw_faults(rng)
    if kills_at:
        faults = FaultPlan(kills_at=kills_at)
    is_loose = mode is StopMode.DRAIN and not program.name.startswith(WITHOUT_TIME)
    try:
        view = _run(seed, faults, graph, f"{name}-a", stop=(stop_at_ms, mode))
        assert view.state == "FINISHED", f"seed {seed}: the job ended {view.state}: {view.failure}"
        if view.stopping is None or view.last_checkpoint_path is None:
            judge(seed, program, view, name, faults)
            return "ended before"
        # A run that goes on from it: its own faults, and no stop.
        resumed = replace(graph, settings=replace(graph.settings, restore_from=view.last_checkpoint_path))
        more_faults = draw_faults(rng)
        second = _run(seed + 1_000_000, more_faults, resumed, f"{name}-b", stop=None)
        assert second.state == "FINISHED", f"seed {seed}: the resumed job ended {second.state}: {second.failure}"
        if not is_loose:
            both = replace(faults, random_kills=1)  # either run may have left a zombie's file
            judge(seed, program, second, name, both)
        return f"{mode.value}{' (unjudged)' if is_loose else ''}"
    except BaseException:
        print(f"stop seed {seed}: {program.name}, {mode}, at {stop_at_ms} ms, {faults}")
        raise
    finally:
        MemoryFileSystem.forget(name)


def _run(seed: int, faults: FaultPlan, graph: JobGraph, job: str, *, stop: tuple[int, StopMode] | None) -> Any:
    """Run a job to its end, stopping it on the way; gives its last view."""
    system = SimSystem(seed, faults)
    settings = ClusterSettings(slots_per_task_manager=seed % 3)
    try:
        system.start(
            "head",
            (
                ("dispatcher", functools.partial(Dispatcher, resource_manager=RESOURCE_MANAGER, settings=settings)),
                ("rm", functools.partial(ResourceManager, settings=settings)),
            ),
        )
        submit = SubmitJob(JobId(job), graph.name, cloudpickle.dumps(graph), graph.settings, num_slots(graph))
        answer = system.ask(DISPATCHER, submit, 10_000)
        assert isinstance(answer, JobSubmitted), answer
        view = _follow(system, JobId(job), stop)
        shut_down(system)
        check_leftovers(seed, job.rpartition("-")[0], job, view, faults)
        return view
    finally:
        system.close()


def _follow(system: SimSystem, job_id: JobId, stop: tuple[int, StopMode] | None) -> Any:
    """Let the world go on until the job has ended, repeating the wish to stop while its leader does not know it."""
    cluster = Cluster(system, "sim", is_owner=False)
    if stop is not None:
        system.run_for(stop[0])
    while system.now_ms < MAX_VIRTUAL_MS:
        [view] = system.ask(DISPATCHER, ListJobs(), 10_000)
        if view.state in TERMINAL:
            return view
        if stop is not None and view.stopping is None:
            assert cluster.ask_job(job_id, StopJob(stop[1]), 120_000) is True
        system.run_for(200)
    message = f"hang: the job is {view.state} after {system.now_ms / 1_000:.0f} s of virtual time\n{system.story()}"
    raise AssertionError(message)
