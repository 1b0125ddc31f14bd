"""Programs that are cut off in the middle and go on from an unaligned checkpoint, at another parallelism.

Everything follows from one seed: program, data, faults, when all processes die, and how the second run is laid out.
The programs hold records back on their way (`Hold`), with channels of one to four small messages, so that barriers have
much to overtake. What both runs have committed must equal the reference, and what one key sends to another must come in
order and once, as if there had been one run without a fault.
"""

from __future__ import annotations

import contextlib
import functools
import random
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import cloudpickle
from simulation.programs import SHAPES, Program, Record, draw_program, freeze
from simulation.simulator import (
    DISPATCHER,
    MAX_EVENTS,
    RESOURCE_MANAGER,
    TERMINAL,
    draw_faults,
    judge,
    run_job,
    shut_down,
    with_settings,
)
from simulation.turns import slots_compared
from simulation.two_streams import RULES, TWO_STREAMS

from headrace import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import SimSystem
from headrace.connectors.files import FileSink
from headrace.engine.cluster.dispatcher import Dispatcher
from headrace.engine.cluster.resource_manager import ResourceManager
from headrace.engine.columns.records import Batch
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.operator import Operator, OperatorContext
from headrace.engine.graph.chaining import num_slots
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.kernel.config import ClusterSettings, RestartStrategy
from headrace.engine.operators.process import KeyedProcessOperator
from headrace.engine.protocol.messages import JobSubmitted, ListJobs, SubmitJob
from headrace.engine.task import debloating
from headrace.state.checkpoints.snapshot import FileKind
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import JobId

LATEST_CUT_MS = 10_000


class Hold(Operator):
    """Passes records on and then takes none for a while, as an operator does that waits for something outside."""

    offloads = True

    def __init__(self, hold_ms: int) -> None:
        self._hold_ms = hold_ms

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._until_ms: int | None = None

    @property
    def is_blocked(self) -> bool:
        return self._until_ms is not None

    def process_batch(self, batch: Batch, input_index: int) -> None:
        self.context.output.emit(batch)
        if self._hold_ms:
            self._until_ms = self.context.now_ms() + self._hold_ms

    def next_processing_time(self) -> int | None:
        return self._until_ms

    def on_processing_time(self, now_ms: int) -> None:
        self._until_ms = None


class HoldingProcess(KeyedProcessOperator):
    """A keyed function that takes its time: records wait for it right behind their partitioning by key."""

    offloads = True

    def __init__(self, key_selector: KeySelector, function: KeyedProcessFunction, hold_ms: int) -> None:
        super().__init__(key_selector, function)
        self._hold_ms = hold_ms
        self._until_ms: int | None = None

    @property
    def is_blocked(self) -> bool:
        return self._until_ms is not None

    def process_batch(self, batch: Batch, input_index: int) -> None:
        super().process_batch(batch, input_index)
        if self._hold_ms:
            self._until_ms = self.context.now_ms() + self._hold_ms

    def next_processing_time(self) -> int | None:
        times = (self._until_ms, super().next_processing_time())
        return min((time for time in times if time is not None), default=None)

    def on_processing_time(self, now_ms: int) -> None:
        if self._until_ms is not None and self._until_ms <= now_ms:
            self._until_ms = None
        super().on_processing_time(now_ms)


class CountAndTell(KeyedProcessFunction):
    """Numbers the records of each key."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", default=0))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update(self.total.value() + 1)
        yield {"key": value["key"], "n": self.total.value()}


class CheckOrder(KeyedProcessFunction):
    """Numbers what comes of each key: the numbers agree if all has come, once and in order."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", default=0))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update(self.total.value() + 1)
        yield {**value, "seen": self.total.value()}


class CountRules(KeyedBroadcastProcessFunction):
    """When event time has passed a record, tells how often broadcast records that are not younger have come."""

    def process_element(self, value: Record, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value["ts"])

    def process_broadcast_element(self, value: Record, ctx: Any) -> None:
        state = ctx.get_broadcast_state(RULES)
        _, times = state.get((value["split"], value["seq"])) or (0, 0)
        state.put((value["split"], value["seq"]), (value["ts"], times + 1))

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        known = sum(times for time, times in ctx.get_broadcast_state(RULES).values() if time <= timestamp)
        yield {"key": ctx.get_current_key(), "time": timestamp, "known": known}


@dataclass
class Layout:
    """How one run is laid out: the parallelisms of a program's stages, in turn."""

    stages: tuple[int, ...]

    def __getitem__(self, stage: int) -> int:
        return self.stages[stage % len(self.stages)]


LAYOUT = Layout((1,))
"""Of the graph that is being built; set by `_graph`, for programs are built by functions of environment and path."""


def held(stream: Any, hold_ms: int, parallelism: int) -> Any:
    return stream.transform("hold", Hold(hold_ms)).set_parallelism(parallelism)


def keyed(stream: Any, function: KeyedProcessFunction, hold_ms: int, parallelism: int) -> Any:
    partitioned = stream.key_by(lambda row: row["key"])
    return partitioned.transform(
        "process", HoldingProcess(partitioned.key_selector, function, hold_ms)
    ).set_parallelism(parallelism)


def two_keyed(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Two keyed operators in a row; the second sees whether order per key is kept between them."""
    first_ms, second_ms = rng.choice((0, 10, 40)), rng.choice((0, 10, 40))
    columnar = rng.random() < 0.5

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        counted = keyed(source(env, columnar), CountAndTell(), first_ms, LAYOUT[1])
        checked = keyed(counted, CheckOrder(), second_ms, LAYOUT[2])
        checked.sink_to(FileSink.json_lines(path)).set_parallelism(LAYOUT[3])

    totals = Counter(row["key"] for rows in splits for row in rows)
    expected = Counter(
        freeze({"key": key, "n": n, "seen": n}) for key, total in totals.items() for n in range(1, total + 1)
    )
    return Program(f"two_keyed/{first_ms}/{second_ms}/{columnar}", build, expected)


def spread(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Every other way from one subtask to others, one behind the other."""
    ways = rng.sample(("rebalance", "shuffle", "rescale", "global_", "default", "default", "custom"), k=3)
    hold_ms = rng.choice((5, 15, 40))
    columnar = rng.random() < 0.5

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        stream = source(env, columnar)
        for stage, way in enumerate(ways):
            if way == "custom":
                stream = stream.partition_custom(lambda key, n: zlib.crc32(key.encode()) % n, lambda row: row["key"])
            elif way != "default":
                stream = getattr(stream, way)()
            stream = held(stream, hold_ms * (stage == 2), LAYOUT[stage + 1])
        stream.sink_to(FileSink.json_lines(path)).set_parallelism(LAYOUT[3])

    expected = Counter(freeze(row) for rows in splits for row in rows)
    return Program(f"spread/{'/'.join(ways)}/{hold_ms}/{columnar}", build, expected)


def with_rules(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """A keyed stream with a broadcast one."""
    hold_ms = rng.choice((5, 15, 40))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        rules = source(env).filter(lambda row: row["seq"] % 5 == 0).broadcast(RULES)
        told = (
            source(env).key_by(lambda row: row["key"]).connect(rules).process(CountRules()).set_parallelism(LAYOUT[1])
        )
        held(told, hold_ms, LAYOUT[1]).sink_to(FileSink.json_lines(path)).set_parallelism(LAYOUT[2])

    rules = [row["ts"] for rows in splits for row in rows if row["seq"] % 5 == 0]
    expected = Counter(
        {
            freeze({"key": row["key"], "time": row["ts"], "known": sum(time <= row["ts"] for time in rules)})
            for rows in splits
            for row in rows
        }
    )
    return Program(f"with_rules/{hold_ms}", build, expected)


def united(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """A stream united with itself, and with another one: exchanges that differ in nothing but their number."""
    hold_ms = rng.choice((5, 15, 40))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        one, other = source(env), source(env)
        counted = keyed(one.union(one, other), CountAndTell(), 0, LAYOUT[1])
        checked = keyed(counted, CheckOrder(), hold_ms, LAYOUT[2])
        checked.sink_to(FileSink.json_lines(path)).set_parallelism(LAYOUT[2])

    totals = Counter(row["key"] for rows in splits for row in rows)
    expected = Counter(
        freeze({"key": key, "n": n, "seen": n}) for key, total in totals.items() for n in range(1, 3 * total + 1)
    )
    return Program(f"united/{hold_ms}", build, expected)


RESCALED = (two_keyed, two_keyed, spread, spread, with_rules, united)
"""Programs that are laid out anew in the second run."""


@dataclass
class CutOff:
    """What a run did, for statistics.

    Attributes:
        program: Its name.
        in_flight: Files of records in flight that the second run restored; None if there was nothing to go on from.
        has_ended: Whether the first run came to its end.
    """

    program: str
    in_flight: int | None = None
    has_ended: bool = False


@slots_compared()
def run_cut_off_seed(seed: int, shapes: Sequence[Callable[..., Program]] | None = None) -> CutOff:
    """Run one program until all its processes die, go on from its newest checkpoint, and judge.

    Raises:
        AssertionError: If anything was lost, doubled, out of order or did not end.
    """
    rng = random.Random(f"cut-off-{seed}")
    name = f"cut-off-{seed}"
    MemoryFileSystem.forget(name)
    program = draw_program(rng, shapes or (*RESCALED, *RESCALED, *SHAPES, *TWO_STREAMS))
    while program.num_records < 30:
        program = draw_program(rng, shapes or (*RESCALED, *RESCALED, *SHAPES, *TWO_STREAMS))
    timeout_ms = rng.choice((0, 0, 0, 2, 15, 60))
    settings = {
        "max_batch_rows": rng.choice((1, 3, 16)),
        "channel_credits": rng.choice((1, 1, 2, 4)),
        "slot_request_timeout_ms": 120_000,
        "task_cancellation_timeout_ms": 2_000,
        "heartbeat_interval_ms": 200,
        "heartbeat_timeout_ms": 1_000,
        "attached": False,
        "buffer_debloat_enabled": rng.random() < 0.6,
        "buffer_debloat_target_ms": rng.choice((1, 20, 300)),
        "restart": RestartStrategy(-1, rng.choice((1, 200))),
    }
    interval_ms, buffer_timeout_ms = rng.choice((15, 40)), rng.choice((0, 2, 20))
    graphs = []
    for _ in range(2):
        layout = Layout(tuple(rng.randint(1, 3) for _ in range(4)))
        is_chained = rng.random() < 0.5
        graph = _graph(program, name, layout, interval_ms, timeout_ms, buffer_timeout_ms, is_chained=is_chained)
        graphs.append(with_settings(graph, settings))
    if program.ordered_by is not None:  # what is forwarded keeps no order per key when it is laid out anew
        program = replace(program, ordered_by=None)
    num_checkpoints, longer_ms = rng.choice((1, 1, 2, 4)), rng.choice((0, 5, 20, 60))
    first_faults = FaultPlan() if rng.random() < 0.6 else draw_faults(rng)
    faults, more_faults = _slow(rng, first_faults), _slow(rng, draw_faults(rng))
    # Windows so small that a few records fill them.
    small = {"LOOK_MS": 20, "MIN_WINDOW_BYTES": rng.choice((64, 256))}
    with contextlib.ExitStack() as patches:
        for constant, value in small.items():
            patches.enter_context(mock.patch.object(debloating, constant, value))
        return _run_twice(seed, program, name, graphs, (faults, more_faults), num_checkpoints, longer_ms)


def _run_twice(
    seed: int,
    program: Program,
    name: str,
    graphs: Sequence[JobGraph],
    faults: tuple[FaultPlan, FaultPlan],
    num_checkpoints: int,
    longer_ms: int,
) -> CutOff:
    done = CutOff(program.name)
    graph, again = graphs
    try:
        view = _run_until(seed, faults[0], graph, name, num_checkpoints, longer_ms)
        if view is not None:
            judge(seed, program, view, name, replace(faults[0], random_kills=1))
            done.has_ended = True
            return done
        path = _newest_checkpoint(name)
        if path is not None:
            again = with_settings(again, {"restore_from": path[0]})
            done.in_flight = path[1]
        view = _run_to_end(seed + 1_000_000, faults[1], again, f"{name}-b")
        # The first run has left what it had staged, and may have been in any trouble.
        judge(seed, program, view, name, replace(faults[1], random_kills=1))
        return done
    except BaseException:
        checkpoints = graph.settings.checkpoints
        timeout_ms = None if checkpoints is None else checkpoints.aligned_timeout_ms
        layouts = [[vertex.parallelism for vertex in one.vertices.values()] for one in graphs]
        print(f"cut-off seed {seed}: {program.name}, timeout {timeout_ms} ms, {layouts}, {faults}")
        raise
    finally:
        MemoryFileSystem.forget(name)


def _graph(
    program: Program,
    name: str,
    layout: Layout,
    interval_ms: int,
    timeout_ms: int,
    buffer_timeout_ms: int,
    *,
    is_chained: bool,
) -> JobGraph:
    LAYOUT.stages = layout.stages
    env = StreamExecutionEnvironment.get_execution_environment(actor_system="sim")
    env.set_parallelism(layout[0])
    env.set_buffer_timeout(buffer_timeout_ms)
    env.enable_checkpointing(interval_ms, directory=f"memory://{name}/checkpoints")
    config = env.get_checkpoint_config()
    config.enable_unaligned_checkpoints()
    config.set_aligned_checkpoint_timeout(timeout_ms)
    config.set_tolerable_checkpoint_failure_number(3)
    if not is_chained:
        env.disable_operator_chaining()
    program.build(env, f"memory://{name}/out")
    return env.get_job_graph(program.name)


def _slow(rng: random.Random, faults: FaultPlan) -> FaultPlan:
    """Steps that take longer, sometimes: then more is in flight."""
    return replace(faults, step_us=rng.choice(((50.0, 1_000.0), (1_000.0, 5_000.0), (2_000.0, 20_000.0))))


def _system(seed: int, faults: FaultPlan) -> tuple[SimSystem, ClusterSettings]:
    return SimSystem(seed, faults, max_events=2 * MAX_EVENTS), ClusterSettings(slots_per_task_manager=seed % 3)


def _run_until(seed: int, faults: FaultPlan, graph: JobGraph, name: str, num_checkpoints: int, longer_ms: int) -> Any:
    """Run a job until it has taken some checkpoints, and a little longer.

    Returns:
        Its view if it has ended by then, None if it was cut off.
    """
    system, settings = _system(seed, faults)
    job = f"{name}-a"
    storage = CheckpointStorage.open(f"memory://{name}/checkpoints", job)
    try:
        system.start(
            "head",
            (
                ("dispatcher", functools.partial(Dispatcher, resource_manager=RESOURCE_MANAGER, settings=settings)),
                ("rm", functools.partial(ResourceManager, settings=settings)),
            ),
        )
        submit = SubmitJob(JobId(job), graph.name, cloudpickle.dumps(graph), graph.settings, num_slots(graph))
        assert isinstance(system.ask(DISPATCHER, submit, 10_000), JobSubmitted)
        while system.now_ms < LATEST_CUT_MS and storage.highest_checkpoint_id() <= num_checkpoints:
            system.run_for(10)
        system.run_for(longer_ms)
        [view] = system.ask(DISPATCHER, ListJobs(), 10_000)
        return view if view.state in TERMINAL else None
    finally:
        system.close()


def _run_to_end(seed: int, faults: FaultPlan, graph: JobGraph, job: str) -> Any:
    system, settings = _system(seed, faults)
    try:
        view = run_job(system, graph, settings, job)
        shut_down(system)
        return view
    finally:
        system.close()


def _newest_checkpoint(name: str) -> tuple[str, int] | None:
    """The path of the newest complete checkpoint, and how many files of records in flight it has."""
    storage = CheckpointStorage.open(f"memory://{name}/checkpoints", f"{name}-a")
    complete = storage.list_complete()
    if not complete:
        return None
    files = storage.load(complete[-1]).files()
    path = f"{storage.uri}/manifests/chk-{complete[-1]}.json"
    return path, sum(file.kind == FileKind.CHANNEL for file in files)
