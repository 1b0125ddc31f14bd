"""Takes savepoints of one random program under one random fault plan, goes on from one of them, and judges both runs.

Everything follows from one seed: program, data, faults, when savepoints are asked for, and whether the last request
stops the job. Each request is asked again until it is decided, as a client does. The judgement:

* The first run gives the reference, savepoints or not, whatever is killed while one is taken.
* A savepoint that was answered is there, sound, and still is when the job has ended. One that failed is not there.
* What the job had committed up to the savepoint and what a run from it commits, under another parallelism and faults
  of its own, give the reference together.
* Under ``CLAIM`` the savepoint is gone when that run has finished; under ``NO_CLAIM`` it is still sound.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle
from simulation.leftovers import check_leftovers
from simulation.loops import LOOPS
from simulation.programs import SHAPES, Program
from simulation.simulator import (
    DISPATCHER,
    MAX_VIRTUAL_MS,
    RESOURCE_MANAGER,
    TERMINAL,
    build_graph,
    build_job,
    commit_order,
    draw_faults,
    judge,
    shut_down,
)
from simulation.tables import file_of
from simulation.turns import slots_compared
from simulation.two_streams import TWO_STREAMS

from headrace.actors.cluster import Cluster
from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import SimSystem
from headrace.engine.cluster.dispatcher import Dispatcher
from headrace.engine.cluster.resource_manager import ResourceManager
from headrace.engine.errors import CheckpointNotFoundError, ClusterUnavailableError, JobError, SavepointError
from headrace.engine.graph.chaining import num_slots
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.kernel.config import ClusterSettings, RestoreMode
from headrace.engine.protocol.messages import JobSubmitted, ListJobs, SubmitJob
from headrace.engine.protocol.savepoint_messages import SavepointState, StopWithSavepoint, TriggerSavepoint
from headrace.state.backends.heap.operator_state import HeapOperatorStateBackend
from headrace.state.checkpoints.manifest import SAVEPOINT
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import JobId

Files = dict[str, bytes]

WITHOUT_TIME = ("pass_through/", "running_count/", "broadcast/", "to_table/", "slow_table/", "counts_to_table/")
"""Programs in which nothing waits for the end of event time."""


@slots_compared()
def run_savepoint_seed(
    seed: int,
    *,
    mutate: Any = None,
    kills_at: tuple[tuple[str, int], ...] = (),
    stop: tuple[bool, ...] = (),
    shapes: Sequence[Callable[..., Program]] = (*SHAPES, *LOOPS, *TWO_STREAMS),
) -> str:
    """Take savepoints of one program and go on from one; gives how it went, for statistics.

    Args:
        seed: Decides everything.
        mutate: Called with each job graph before it is submitted.
        kills_at: Where the first run is killed instead, in otherwise fair weather.
        stop: How it is stopped, drained or not: one of these. Nothing leaves it to the seed.
        shapes: The kinds of programs to draw from.

    Raises:
        AssertionError: If anything was lost, doubled, half there, or did not end.
    """
    rng = random.Random(f"savepoint-{seed}")
    name = f"savepoint-{seed}"
    MemoryFileSystem.forget(name)
    program, graph = build_job(rng, name, shapes)
    graph = with_settings(graph, savepoint_directory=f"memory://{name}/savepoints")
    if mutate is not None:
        graph = mutate(graph)
    faults = draw_faults(rng)
    pauses = [rng.choice((0, 5, 20, 50, 100, 300)) for _ in range(rng.randint(1, 3))]
    drain = rng.choice((None, None, False, False, True))
    if kills_at:
        faults = FaultPlan(kills_at=kills_at)
    if stop:
        drain = rng.choice(stop)
    try:
        taken, stopped, view = _first_run(seed, faults, graph, name, pauses, drain)
        may_restart = replace(faults, random_kills=1) if view.num_restarts else faults
        if stopped is None:
            judge(seed, program, view, name, may_restart)
        _check_folders(seed, name, taken, stopped)
        point, before = _choose(rng, taken, stopped)
        if point is None:
            return "none"
        if stopped is None:
            _keep_what_came_before(name, point, before)
        mode = rng.choice((RestoreMode.CLAIM, RestoreMode.NO_CLAIM))
        again = with_settings(build_graph(rng, program, name), restore_from=point, restore_mode=mode)
        if mutate is not None:
            again = mutate(again)
        more_faults = draw_faults(rng)
        second = _second_run(seed + 1_000_000, more_faults, again, f"{name}-b")
        assert second.state == "FINISHED", f"seed {seed}: the restored job ended {second.state}: {second.failure}"
        if not (drain and stopped is not None) or program.name.startswith(WITHOUT_TIME):
            judge(seed, program, second, name, replace(faults, random_kills=1))
        _check_ownership(seed, point, mode)
        return "stopped" if stopped is not None else "taken"
    except BaseException:
        print(f"savepoint seed {seed}: {program.name}, pauses {pauses}, drain {drain}, {faults}")
        raise
    finally:
        MemoryFileSystem.forget(name)


def with_settings(graph: JobGraph, **changes: Any) -> JobGraph:
    return replace(graph, settings=replace(graph.settings, **changes))


# ------------------------------------------------------------------------------------------------------------- running
def _started(seed: int, faults: FaultPlan, graph: JobGraph, job: str) -> SimSystem:
    system = SimSystem(seed, faults)
    settings = ClusterSettings(slots_per_task_manager=seed % 3)
    actors = (
        ("dispatcher", functools.partial(Dispatcher, resource_manager=RESOURCE_MANAGER, settings=settings)),
        ("rm", functools.partial(ResourceManager, settings=settings)),
    )
    system.start("head", actors)
    submit = SubmitJob(JobId(job), graph.name, cloudpickle.dumps(graph), graph.settings, num_slots(graph))
    answer = system.ask(DISPATCHER, submit, 10_000)
    assert isinstance(answer, JobSubmitted), answer
    return system


def _first_run(
    seed: int, faults: FaultPlan, graph: JobGraph, name: str, pauses: list[int], drain: bool | None
) -> tuple[list[tuple[str, Files]], str | None, Any]:
    """Run a job to its end with savepoints on the way.

    Returns:
        The savepoints with all files there were when each was answered; that the job was stopped with; the last view.
    """
    system = _started(seed, faults, graph, f"{name}-a")
    job = JobId(f"{name}-a")
    taken: list[tuple[str, Files]] = []
    stopped = None
    try:
        cluster = Cluster(system, "sim", is_owner=False)
        requests: list[Any] = []
        for number, pause in enumerate(pauses):
            system.run_for(pause)
            requests.append(TriggerSavepoint(f"r{number}", None, 1))  # several at a time
            requests = [_asked(cluster, job, request) or request for request in requests]
        for request in requests:
            path = _followed(system, cluster, job, request)
            if path is not None:
                taken.append((path, dict(MemoryFileSystem.named(name).files)))
        if drain is not None:
            stopped = _followed(system, cluster, job, StopWithSavepoint("stop", None, drain, 100))
        while (view := _view(system)).state not in TERMINAL:
            assert system.now_ms < MAX_VIRTUAL_MS, f"hang: the job is {view.state}\n{system.story()}"
            system.run_for(200)
        assert view.state == "FINISHED", f"seed {seed}: the job ended {view.state}: {view.failure}"
        assert view.savepoint_path == stopped, f"seed {seed}: stopped with {view.savepoint_path}, told {stopped}"
        shut_down(system)
        check_leftovers(seed, name, job, view, faults)
        return taken, stopped, view
    finally:
        system.close()


def _second_run(seed: int, faults: FaultPlan, graph: JobGraph, job: str) -> Any:
    system = _started(seed, faults, graph, job)
    try:
        while (view := _view(system)).state not in TERMINAL:
            assert system.now_ms < MAX_VIRTUAL_MS, f"hang: the job is {view.state}\n{system.story()}"
            system.run_for(500)
        shut_down(system)
        check_leftovers(seed, job.rpartition("-")[0], job, view, faults)
        return view
    finally:
        system.close()


def _view(system: SimSystem) -> Any:
    [view] = system.ask(DISPATCHER, ListJobs(), 10_000)
    return view


def _asked(cluster: Cluster, job: JobId, request: Any) -> Any:
    """Ask once; gives the request to ask again with, None if it has not been taken."""
    try:
        status = cluster.ask_job(job, request, 60_000)
    except (SavepointError, JobError):
        return None
    return replace(request, epoch=status.epoch) if status.state is SavepointState.PENDING else request


def _followed(system: SimSystem, cluster: Cluster, job: JobId, request: Any) -> str | None:
    """Ask until it is decided, as a client does; gives the savepoint's path, None if there is none."""
    while system.now_ms < MAX_VIRTUAL_MS:
        try:
            status = cluster.ask_job(job, replace(request, timeout_ms=100), 60_000)
        except JobError:
            return str(_view(system).savepoint_path) if _view(system).savepoint_path else None
        except (SavepointError, ClusterUnavailableError):
            if _view(system).state in TERMINAL:
                return None
            system.run_for(20)  # it is not running: a client waits for that, and asks anew
            continue
        if status.state is SavepointState.COMPLETE:
            return str(status.path)
        if status.state is SavepointState.FAILED:
            assert isinstance(status.error, SavepointError), status
            return None
        request = replace(request, epoch=status.epoch)
    message = f"hang: request {request} is not decided\n{system.story()}"
    raise AssertionError(message)


# ------------------------------------------------------------------------------------------------------------- judging
def _check_folders(seed: int, name: str, taken: list[tuple[str, Files]], stopped: str | None) -> None:
    """What was answered is there and sound; whatever else looks like a savepoint is sound, too."""
    answered = {path for path, _ in taken} | ({stopped} if stopped else set())
    for path in answered:
        storage, manifest = CheckpointStorage.from_manifest(path)
        storage.verify(manifest)
        assert manifest.kind == SAVEPOINT
    files = MemoryFileSystem.named(name).files
    folders = {path.split("/")[1] for path in files if path.startswith("savepoints/")}
    for folder in folders:
        try:
            storage, manifest = CheckpointStorage.from_manifest(f"memory://{name}/savepoints/{folder}")
        except CheckpointNotFoundError:
            continue  # garbage, which nothing takes for a savepoint
        storage.verify(manifest)


def _choose(rng: random.Random, taken: list[tuple[str, Files]], stopped: str | None) -> tuple[str | None, Files]:
    if stopped is not None:
        return stopped, {}
    return rng.choice(taken) if taken else (None, {})


def _keep_what_came_before(name: str, point: str, before: Files) -> None:
    """Take back what the first run has committed behind the savepoint, but for what the savepoint holds as prepared."""
    storage, manifest = CheckpointStorage.from_manifest(point)
    held: set[str] = set()
    for state in manifest.operators:
        parts = [
            storage.data_files.restore_part(file, snapshot.subtask, None)
            for snapshot in state.subtasks
            for file in snapshot.files
            if file.state == "committables"
        ]
        backend = HeapOperatorStateBackend(state.uid)
        backend.restore(parts, 0, 1)
        held |= {"out/" + _public_name(*pair) for pair in backend.list_state("committables").get()}
    files = MemoryFileSystem.named(name).files
    for path in [path for path in files if path.startswith("out/") and "/." not in path]:
        is_before = path in before and commit_order(path)[0] <= manifest.checkpoint_id
        if not is_before and path not in held:
            del files[path]


def _public_name(checkpoint_id: int, committable: dict[str, Any]) -> str:
    if "final" in committable:
        return str(committable["final"])
    return file_of(committable["owner"], committable["attempt"], checkpoint_id)


def _check_ownership(seed: int, point: str, mode: RestoreMode) -> None:
    try:
        storage, manifest = CheckpointStorage.from_manifest(point)
    except CheckpointNotFoundError:
        assert mode is RestoreMode.CLAIM, f"seed {seed}: a savepoint that nobody claimed is gone"
        return
    storage.verify(manifest)
    assert mode is RestoreMode.NO_CLAIM, f"seed {seed}: a claimed savepoint is still there"


def program_of(seed: int) -> Program:
    """The program of a seed, for those who debug it."""
    return build_job(random.Random(f"savepoint-{seed}"), f"savepoint-{seed}")[0]
