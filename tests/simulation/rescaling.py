"""Rescales one random program again and again while it runs, under random faults, and judges what was committed.

Everything follows from one seed: program, data, faults, when which parallelism is asked for. The judgement is that of
`simulation.simulator`: whatever the parallelism was meanwhile, and whatever was killed, the output is the reference's.
A command may be refused, or be lost with its JobManager; it must never be answered with yes and not be true.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
from simulation.loops import LOOPS
from simulation.programs import SHAPES, Program, broadcast
from simulation.simulator import (
    DISPATCHER,
    MAX_EVENTS_OF_RUN,
    MAX_VIRTUAL_MS,
    RESOURCE_MANAGER,
    TERMINAL,
    build_job,
    draw_faults,
    judge,
    shut_down,
)
from simulation.turns import slots_compared
from simulation.two_streams import TWO_STREAMS

from headrace.actors.cluster import Cluster
from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import SimSystem
from headrace.engine.cluster.dispatcher import Dispatcher
from headrace.engine.cluster.resource_manager import ResourceManager
from headrace.engine.errors import ConfigurationError, HeadraceError
from headrace.engine.graph.chaining import num_slots
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.graph.rescaling import requested_parallelism
from headrace.engine.kernel.config import ClusterSettings
from headrace.engine.protocol.messages import JobSubmitted, ListJobs, RescaleJob, SubmitJob
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import JobId

Shapes = Sequence[Callable[..., Program]]
RESCALED: Shapes = (*(shape for shape in SHAPES if shape is not broadcast), *LOOPS, *TWO_STREAMS)
"""All but the one whose answer depends on the parallelism."""


@dataclass
class Rescales:
    """What became of the commands of one run: how many were carried out, and why others were not."""

    done: int
    refused: Counter[str]
    num_restarts: int


@slots_compared()
def run_rescale_seed(seed: int, *, story: bool = False, shapes: Shapes = RESCALED, may_fail: bool = True) -> Rescales:
    """Rescale one program; gives how it went.

    Raises:
        AssertionError: If anything was lost or doubled, or did not end, or an answer was not true.
    """
    rng = random.Random(f"rescale-{seed}")
    name = f"rescale-{seed}"
    MemoryFileSystem.forget(name)
    program, graph = build_job(rng, name, shapes)
    faults = draw_faults(rng) if may_fail else FaultPlan()
    # Slow enough for commands to meet it; and a slot is waited for as long as the death of the one before may take.
    patience_ms = 2 * int(faults.late_kill_ms[1]) if faults.late_kill else 20_000
    graph = replace(graph, settings=replace(graph.settings, max_batch_rows=1, slot_request_timeout_ms=patience_ms))
    settings = ClusterSettings(slots_per_task_manager=rng.choice((0, 1, 2)), max_slots=rng.choice((0, 0, 5)))
    if settings.max_slots and num_slots(graph) > settings.max_slots:
        settings = replace(settings, max_slots=0)
    system = SimSystem(seed, faults)
    rescales = Rescales(0, Counter(), 0)
    try:
        system.start(
            "head",
            (
                ("dispatcher", functools.partial(Dispatcher, resource_manager=RESOURCE_MANAGER, settings=settings)),
                ("rm", functools.partial(ResourceManager, settings=settings)),
            ),
        )
        submit = SubmitJob(JobId(name), graph.name, cloudpickle.dumps(graph), graph.settings, num_slots(graph))
        answer = system.ask(DISPATCHER, submit, 10_000)
        assert isinstance(answer, JobSubmitted), answer
        view = _follow(system, JobId(name), graph, rng, rescales)
        # A rescale is no failure, so a calm run has no restarts either.
        judge(seed, program, view, name, faults)
        rescales.num_restarts = view.num_restarts
        shut_down(system)
        return rescales
    except BaseException:
        print(f"rescale seed {seed}: {program.name}, {settings}, {faults}")
        if story:
            print(system.story())
        raise
    finally:
        system.close()
        MemoryFileSystem.forget(name)


def _follow(system: SimSystem, job_id: JobId, graph: JobGraph, rng: random.Random, rescales: Rescales) -> Any:
    """Let the world go on until the job has ended, asking for other parallelisms on the way."""
    cluster = Cluster(system, "sim", is_owner=False)
    system.run_for(rng.choice((0, 20, 60, 150)))
    # What the parallelism may be: a command that was not answered with yes may have been carried out by a leader that
    # died before it could say so.
    possible: list[dict[Any, int]] = [{}]
    for _ in range(rng.choice((1, 2, 3, 5))):
        request = _draw_request(rng, graph)
        wanted: dict[Any, int] | None = None
        with contextlib.suppress(ConfigurationError):
            wanted = requested_parallelism(graph, request.parallelism, request.operators)
        try:
            assert cluster.ask_job(job_id, request, 200_000) is True
        except HeadraceError as error:
            rescales.refused[type(error).__name__] += 1
            if wanted is not None:
                possible += [{**one, **wanted} for one in possible]
        else:
            assert wanted is not None, f"{request} was not refused"
            rescales.done += 1
            possible = [{**one, **wanted} for one in possible]
            _check_answer(system, wanted)
        system.run_for(rng.choice((0, 10, 50, 200)))
    while system.now_ms < MAX_VIRTUAL_MS and system.num_events < MAX_EVENTS_OF_RUN:
        [view] = system.ask(DISPATCHER, ListJobs(), 10_000)
        if view.state in TERMINAL:
            found = {vertex.vertex_id: vertex.parallelism for vertex in view.vertices}
            assert any(_is_like(found, wanted) for wanted in possible), f"forgotten: {found}, {possible}"
            return view
        system.run_for(500)
    message = f"hang: the job is {view.state} after {system.now_ms / 1_000:.0f} s of virtual time\n{system.story()}"
    raise AssertionError(message)


def _check_answer(system: SimSystem, wanted: dict[Any, int]) -> None:
    """What was answered with yes is so."""
    for _ in range(30):  # until the Dispatcher has heard of it, over whatever network
        [view] = system.ask(DISPATCHER, ListJobs(), 10_000)
        found = {vertex.vertex_id: vertex.parallelism for vertex in view.vertices}
        if _is_like(found, wanted):
            return
        system.run_for(100)
    message = f"answered with yes, and not so: {found} instead of {wanted}; {view.state}; {view.history[-12:]}"
    raise AssertionError(message)


def _is_like(found: dict[Any, int], wanted: dict[Any, int]) -> bool:
    return all(found.get(vertex, number) == number for vertex, number in wanted.items())


def _draw_request(rng: random.Random, graph: JobGraph) -> RescaleJob:
    if rng.random() < 0.6:
        return RescaleJob(rng.randint(1, 5))
    names = rng.sample(sorted(graph.vertices), k=rng.randint(1, len(graph.vertices)))
    return RescaleJob(rng.choice((None, rng.randint(1, 4))), {name: rng.randint(1, 4) for name in names})
