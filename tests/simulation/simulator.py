"""Runs one random program under one random fault plan, and judges what was committed.

Everything follows from one seed: program, data, settings, faults. The judgement: the job has FINISHED; the committed
    output equals the program's
reference multiset; rows of one key are in order; nothing is left behind (hosts, staged files, checkpoints). Any miss
is an `AssertionError` that names the seed.

Heartbeats have an order of magnitude less patience here than in production, so that kills and freezes are noticed
within a short run. Weather must not delay a message by as much, or everybody is given up while they live, again and
again, which is what heartbeats are for and no bug: `with_patience` gives a run the patience of production if its plan
has such weather without end. A storm that ends is met with the short patience: the job restarts in it, and must go on
after it.
"""

from __future__ import annotations

import functools
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
from simulation.leftovers import check_leftovers
from simulation.loops import LOOPS
from simulation.programs import SHAPES, Program, draw_program, freeze
from simulation.turns import slots_compared
from simulation.two_streams import TWO_STREAMS

from headrace import StreamExecutionEnvironment
from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import EPOCH_MS, SimSystem
from headrace.engine.cluster.dispatcher import Dispatcher
from headrace.engine.cluster.resource_manager import ResourceManager
from headrace.engine.graph.chaining import num_slots
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.kernel.config import ClusterSettings, RestartStrategy
from headrace.engine.kernel.machine import Address
from headrace.engine.protocol.messages import JobSubmitted, ListJobs, ShutDownCluster, SubmitJob
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import JobId

DISPATCHER = Address("head", "dispatcher")
RESOURCE_MANAGER = Address("head", "rm")
TERMINAL = ("FINISHED", "FAILED", "CANCELED")
MAX_VIRTUAL_MS = 900_000
# Ordinary seeds need 4,000 events, the longest of thousands below 100,000; 6,000 of them between two looks.
MAX_EVENTS = 100_000
MAX_EVENTS_OF_RUN = 250_000


@dataclass
class Outcome:
    """What a run did, for statistics."""

    seed: int
    program: str
    virtual_ms: float
    restarts: int
    checkpoints: int
    kills: int
    digest: str
    points: Counter[str]
    events: int = 0
    killed_at: tuple[tuple[str, int], ...] = ()
    freezes: int = 0
    restarted_at_ms: tuple[int, ...] = ()


def draw_faults(rng: random.Random) -> FaultPlan:
    """Draw what goes wrong; a third of the runs only have bad weather, a few have nothing at all."""
    kind = rng.choice(("calm", "weather", "kills", "kills", "points", "points", "zombies", "everything"))
    weather = kind != "calm" and rng.random() < 0.7
    plan: dict[str, Any] = {}
    if weather:
        plan.update(
            loss=rng.choice((0.0, 0.01, 0.1)),
            duplication=rng.choice((0.0, 0.05)),
            reordering=rng.choice((0.0, 0.1)),
            stray_work=rng.choice((0.0, 0.5)),
            late_kill=rng.choice((0.0, 0.5)),
        )
    if kind in ("kills", "everything"):
        plan.update(random_kills=rng.randint(1, 4), fault_window_ms=(0.0, rng.choice((300.0, 1_000.0, 3_000.0))))
        plan.update(freezes=rng.choice((0, 0, 1, 2)), orphan_ms=(1.0, rng.choice((200.0, 3_000.0))))
    if kind == "zombies":  # processes that are given up for dead while they only sleep, and go on in the middle of it
        plan.update(freezes=rng.randint(1, 4), freeze_ms=(1_100.0, 3_000.0), fault_window_ms=(30.0, 600.0))
        plan.update(late_kill=1.0, late_kill_ms=(3_000.0, 30_000.0))
    if kind in ("points", "everything"):
        points = rng.sample(NAMED_POINTS, k=rng.randint(1, 3))
        plan.update(kills_at=tuple((point, rng.randint(1, 12)) for point in points))
    return FaultPlan(**plan)


NAMED_POINTS = (
    "task.align.first_barrier",
    "task.align.barrier",
    "task.snapshot.before",
    "task.snapshot.after",
    "task.barrier.forwarded",
    "task.overtake",
    "task.in_flight.complete",
    "sink.prepare",
    "sink.commit.before",
    "sink.commit.0",
    "sink.commit.after",
    "io.upload_snapshot.before",
    "io.upload_snapshot.after",
    "io.read_snapshot.before",
    "io.read_snapshot.after",
    "io.publish_checkpoint.before",
    "io.publish_checkpoint.after",
    "io.discard_checkpoints.before",
    "io.discard_checkpoints.after",
    "io.claim_epoch.after",
    "send.AcknowledgeCheckpoint",
    "send.CheckpointEnded",
    "send.CheckpointRequested",
    "send.CheckpointTriggered",
    "send.FinishTask",
    "send.JobStatusChanged",
    "send.NextInputSplit",
    "send.NotifyCheckpointComplete",
    "send.RequestNextInputSplit",
    "send.StartTask",
    "send.SubmitTask",
    "send.TriggerCheckpoint",
    "send.UpdateTaskExecutionState",
    "recv.AcknowledgeCheckpoint",
    "recv.AddCredit",
    "recv.CheckpointEnded",
    "recv.CheckpointTriggered",
    "recv.DataMessage",
    "recv.FinishTask",
    "recv.NextInputSplit",
    "recv.NotifyCheckpointComplete",
    "recv.StartTask",
    "recv.SubmitTask",
    "recv.TriggerCheckpoint",
    "recv.UpdateTaskExecutionState",
    "recv.RegisterTaskManager",
    "recv.SlotLost",
)
"""Protocol points at which a process may be killed."""


def build_job(
    rng: random.Random, name: str, shapes: Sequence[Callable[..., Program]] = (*SHAPES, *LOOPS, *TWO_STREAMS)
) -> tuple[Program, JobGraph]:
    """Draw a program and settings, and build its job graph."""
    program = draw_program(rng, shapes)
    return program, build_graph(rng, program, name)


def build_graph(rng: random.Random, program: Program, name: str) -> JobGraph:
    """Draw settings for a program, and build its job graph."""
    env = StreamExecutionEnvironment.get_execution_environment(actor_system="sim")
    env.set_parallelism(rng.randint(1, 3))
    env.set_buffer_timeout(rng.choice((0, 2, 20)))
    env.enable_checkpointing(rng.choice((15, 40, 120)), directory=f"memory://{name}/checkpoints")
    config = env.get_checkpoint_config()
    config.set_max_concurrent_checkpoints(rng.choice((1, 1, 3)))
    config.set_min_pause_between_checkpoints(rng.choice((0, 10)))
    config.set_tolerable_checkpoint_failure_number(rng.choice((0, 3)))
    config.set_max_retained_checkpoints(rng.choice((1, 2)))
    aside = random.Random(f"unaligned-{name}")  # the other draws stay what they are
    if aside.random() < 0.6:
        config.enable_unaligned_checkpoints()
        config.set_aligned_checkpoint_timeout(aside.choice((0, 0, 1, 3, 10, 100)))
    env.set_buffer_debloating(aside.random() < 0.6, target=aside.choice((1, 20, 100, 1_000)))
    if rng.random() < 0.3:
        env.disable_operator_chaining()
    program.build(env, f"memory://{name}/out")
    graph = env.get_job_graph(program.name)
    changes = {
        "max_batch_rows": rng.choice((1, 3, 16)),
        "channel_credits": rng.choice((1, 2, 4)),
        "slot_request_timeout_ms": 120_000,
        "task_cancellation_timeout_ms": 2_000,
        "heartbeat_interval_ms": 200,
        "heartbeat_timeout_ms": 1_000,
        "metrics_interval_ms": 500,
        "attached": False,
        "restart": RestartStrategy(-1, rng.choice((1, 200))),
    }
    return with_settings(graph, changes)


def is_heavy(faults: FaultPlan) -> bool:
    """Whether the weather can hold up messages until a living process is given up; `draw_faults` draws none such.

    A link delivers in order: whatever was sent behind a frame that is lost waits until that is sent again, after 0.2,
    0.6, 1.4, 3 s. It is lost three times in a row in one of a hundred cases at a loss of 0.2, in one of a thousand at
    0.1.
    """
    return faults.loss > 0.1 or (faults.reordering > 0 and faults.held_up_ms[1] > 200)


def with_patience(graph: JobGraph, faults: FaultPlan) -> JobGraph:
    """Give the job of a run in heavy weather without end the timeouts of production."""
    if not is_heavy(faults) or faults.weather_ms[1] < math.inf:
        return graph
    return with_settings(graph, {"heartbeat_timeout_ms": 10_000, "task_cancellation_timeout_ms": 30_000})


def with_settings(graph: JobGraph, changes: dict[str, Any]) -> JobGraph:
    from dataclasses import replace

    return replace(graph, settings=replace(graph.settings, **changes))


@slots_compared()
def run_seed(
    seed: int,
    *,
    story: bool = False,
    mutate: Any = None,
    shapes: Sequence[Callable[..., Program]] = (*SHAPES, *LOOPS, *TWO_STREAMS),
    faults: FaultPlan | None = None,
    prepare: Callable[[SimSystem, MemoryFileSystem], None] | None = None,
    watch: Callable[[SimSystem], None] | None = None,
) -> Outcome:
    """Run one seed and judge it.

    Args:
        seed: Decides everything.
        story: Print the last events of the run.
        mutate: Called with the job graph before it is submitted, to plant a bug.
        shapes: The kinds of programs to draw from.
        faults: What goes wrong, instead of what the seed would draw.
        prepare: Called with the system and the store of its files before the job is submitted, to break the store.
        watch: Called with the system before the job is submitted, to look at it at some moment of the run.

    Raises:
        AssertionError: If the run is not as it must be.
    """
    rng = random.Random(seed)
    name = f"sim-{seed}"
    MemoryFileSystem.forget(name)
    program, graph = build_job(rng, name, shapes)
    if mutate is not None:
        graph = mutate(graph)
    settings = ClusterSettings(slots_per_task_manager=rng.choice((0, 1, 2)))
    faults = draw_faults(rng) if faults is None else faults
    graph = with_patience(graph, faults)
    system = SimSystem(seed, faults, max_events=MAX_EVENTS)
    store = MemoryFileSystem.named(name)
    if prepare is not None:
        prepare(system, store)
    if watch is not None:
        watch(system)
    try:
        view = run_job(system, graph, settings, name)
        store.fault = None
        judge(seed, program, view, name, faults, has_bad_store=prepare is not None)
        shut_down(system)
        check_leftovers(seed, name, name, view, faults, has_bad_store=prepare is not None)
    except BaseException:
        print(
            f"seed {seed}: {program.name}, {faults}\nreplay: python tests/simulation/campaign.py --seed {seed} --story"
        )
        if story:
            print(system.story())
        raise
    finally:
        outcome = Outcome(seed, program.name, system.now_ms, 0, 0, system.num_kills, system.digest, system.points)
        system.close()
        MemoryFileSystem.forget(name)
    outcome.restarts, outcome.checkpoints = view.num_restarts, view.checkpoints_completed
    outcome.events = system.num_events
    outcome.killed_at = tuple(system.killed_at)
    outcome.freezes = system.num_freezes
    outcome.restarted_at_ms = tuple(at - EPOCH_MS for at, text in view.history if text.startswith("restarts"))
    if story:
        print(system.story())
    return outcome


def run_job(
    system: SimSystem,
    graph: JobGraph,
    settings: ClusterSettings,
    name: str,
    resource_manager: Callable[..., ResourceManager] | None = None,
) -> Any:
    """Submit a job and let the world go on until it has ended; gives its last view."""
    resource_manager = resource_manager or functools.partial(ResourceManager, settings=settings)
    system.start(
        "head",
        (
            ("dispatcher", functools.partial(Dispatcher, resource_manager=RESOURCE_MANAGER, settings=settings)),
            ("rm", resource_manager),
        ),
    )
    slots = num_slots(graph)
    submit = SubmitJob(JobId(name), graph.name, cloudpickle.dumps(graph), graph.settings, slots)
    answer = system.ask(DISPATCHER, submit, 10_000)
    assert isinstance(answer, JobSubmitted), answer
    while system.now_ms < MAX_VIRTUAL_MS and system.num_events < MAX_EVENTS_OF_RUN:
        system.run_for(500)
        [view] = system.ask(DISPATCHER, ListJobs(), 10_000)
        if view.state in TERMINAL:
            return view
    spent = f"{system.now_ms / 1_000:.0f} s of virtual time, {system.num_events} events"
    message = f"hang: the job is {view.state} after {spent}\n{system.story()}"
    raise AssertionError(message)


def shut_down(system: SimSystem) -> None:
    """End the cluster; nothing may be left."""
    assert system.ask(DISPATCHER, ShutDownCluster(), 120_000) is True
    system.run_for(60_000)
    system.check_leaks()


def judge(seed: int, program: Program, view: Any, name: str, faults: FaultPlan, *, has_bad_store: bool = False) -> None:
    """Compare what was committed with the reference."""
    assert view.state == "FINISHED", f"seed {seed}: the job ended {view.state}: {view.failure}"
    ended_early = [text for _, text in view.history if "whose loop had ended" in text]
    assert not ended_early, f"seed {seed}: {ended_early[0]}"
    is_calm = faults == FaultPlan() and not has_bad_store and not program.notes.get("fails")
    assert view.num_restarts == 0 or not is_calm, f"seed {seed}: restarted although nothing went wrong: {view.failure}"
    files = MemoryFileSystem.named(name).files
    visible = sorted(path for path in files if path.startswith("out/") and "/." not in path)
    rows = [(path, json.loads(line)) for path in visible for line in files[path].splitlines()]
    got = Counter(freeze(row) for _, row in rows)
    if "come_to" in program.notes:
        got = program.notes["come_to"](got)
    if got != program.expected:
        lost, extra = program.expected - got, got - program.expected
        message = (
            f"seed {seed}: lost {sum(lost.values())} {list(lost)[:3]}, too many {sum(extra.values())} {list(extra)[:3]}"
        )
        raise AssertionError(message)
    if program.ordered_by is not None:
        check_order(seed, program, files, visible)
    if "check" in program.notes:
        program.notes["check"]()
    staged = [path for path in files if path.startswith("out/") and "/." in path]
    # A process that outlives its TaskManager, or its own death sentence, may stage a file after all have cleaned up.
    may_have_zombies = bool(faults.random_kills or faults.kills_at or faults.freezes or faults.node_deaths)
    may_have_zombies |= is_heavy(faults)
    assert may_have_zombies or has_bad_store or not staged, f"seed {seed}: staged files were left: {staged}"


def check_order(seed: int, program: Program, files: dict[str, bytes], visible: list[str]) -> None:
    """Rows of one key must come in order over the files of a subtask, in the order of their checkpoints."""
    assert program.ordered_by is not None
    group, order = program.ordered_by
    last: dict[Any, int] = {}
    for path in sorted(visible, key=commit_order):
        for line in files[path].splitlines():
            row = json.loads(line)
            assert row[order] == last.get(row[group], 0) + 1, f"seed {seed}: {row} is out of order in {path}"
            last[row[group]] = row[order]


def commit_order(path: str) -> tuple[int, int]:
    """Checkpoint and number of a part file, from its name ``part-<subtask>-<attempt>-<checkpoint>-<n>.<ext>``."""
    _, _, _, checkpoint, number = path.rsplit("/", 1)[-1].split(".json")[0].rsplit("-", 4)
    return int(checkpoint), int(number)
