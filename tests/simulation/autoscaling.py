"""A job whose load doubles and falls, and which is rescaled by itself, in the simulator.

Records arrive by the virtual clock, on a schedule; each costs the keyed operator some milliseconds of its slot's time.
The job's autoscaler sees that, and rescales it, while processes are killed and frozen at random. However often that
was: what was committed is the reference's, each record once, the records of a key in order.

``python tests/simulation/autoscaling.py [SEED ...]`` runs seeds and prints what was decided.
"""

from __future__ import annotations

import functools
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cloudpickle
from simulation.simulator import DISPATCHER, RESOURCE_MANAGER, TERMINAL, shut_down
from simulation.turns import slots_compared

from headrace import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.actors.sim.faults import FaultPlan
from headrace.actors.sim.system import EPOCH_MS, SimSystem
from headrace.connectors.files import FileSink
from headrace.engine.cluster.dispatcher import Dispatcher
from headrace.engine.cluster.resource_manager import ResourceManager
from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Discovery,
    Polled,
    Split,
    SplitFinished,
)
from headrace.engine.graph.chaining import num_slots
from headrace.engine.kernel.autoscaler_settings import AutoscalerSettings
from headrace.engine.kernel.config import ClusterSettings, RestartStrategy
from headrace.engine.protocol.messages import JobSubmitted, ListJobs, SubmitJob
from headrace.state.files.memory import MemoryFileSystem
from headrace.state.identifiers import JobId

NUM_SPLITS = 4
NUM_KEYS = 24
"""Six in each split, so that the order of a key's records is that of one split."""

WORK_US = 25_000
"""What a record costs: a slot can do forty a second at most."""

PHASES = ((15, 24), (35, 96), (35, 16))
"""(seconds, records a second): more than one slot can do, then hardly anything."""

MAX_PARALLELISM = 6
MAX_VIRTUAL_MS = 600_000

SETTINGS = AutoscalerSettings(
    metrics_window_ms=4_000,
    stabilization_interval_ms=2_000,
    scale_up_grace_period_ms=8_000,
    scale_down_interval_ms=6_000,
    catch_up_duration_ms=20_000,
    restart_time_ms=1_000,
    lag_threshold_ms=5_000,
    control_loop_interval_ms=500,
    vertex_max_parallelism=MAX_PARALLELISM,
)

_systems: dict[str, SimSystem] = {}


def arrival_times() -> list[int]:
    """When each record arrives, milliseconds from the beginning."""
    times: list[int] = []
    began_ms = 0
    for seconds, rate in PHASES:
        times += [began_ms + 1_000 * number // rate for number in range(seconds * rate)]
        began_ms += 1_000 * seconds
    return times


@dataclass
class ArrivingSource:
    """Records that are there once their time has come; dealt out over splits."""

    times: list[int] = field(default_factory=arrival_times)
    is_bounded = True

    def of_split(self, index: int) -> list[int]:
        return list(range(index, len(self.times), NUM_SPLITS))

    def create_enumerator(self, _context: Any) -> ArrivingSource:
        return self

    discovery_interval_ms = None

    def discover(self) -> Discovery:
        # Not bounded: all of them are read side by side from the beginning.
        splits = [Split(f"split-{i}", {"index": i}, is_bounded=False) for i in range(NUM_SPLITS)]
        return Discovery(splits, is_final=True)

    def create_reader(self) -> ArrivingReader:
        return ArrivingReader(self)


class ArrivingReader:
    """Reads its splits in turn; the position is the number of records given. Says how many are there and not read."""

    def __init__(self, source: ArrivingSource) -> None:
        self._source = source
        self._splits: list[tuple[Split, int]] = []
        self._records: dict[str, list[int]] = {}

    def open(self, context: Any) -> None:
        self._now_ms = context.now_ms
        context.metrics.gauge("pending_records", self._pending)

    def _pending(self) -> int:
        now = self._now_ms() - EPOCH_MS
        times = self._source.times
        return sum(
            sum(1 for number in self._records[split.split_id][position:] if times[number] <= now)
            for split, position in self._splits
        )

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            self._records[split.split_id] = self._source.of_split(split.payload["index"])
            self._splits.append((split, split.position or 0))

    def poll(self, max_records: int) -> Any:
        now, times = self._now_ms() - EPOCH_MS, self._source.times
        if not self._splits:
            return ALL_SPLITS_FINISHED
        for _ in range(len(self._splits)):
            split, position = self._splits.pop(0)
            records = self._records[split.split_id]
            if position >= len(records):
                return SplitFinished(split.split_id)
            taken = [number for number in records[position : position + max_records] if times[number] <= now]
            self._splits.append((split, position + len(taken)))
            if taken:
                rows = [{"key": number % NUM_KEYS, "number": number} for number in taken]
                return Polled(split.split_id, Batch.of_rows(rows))
        return NOTHING_NOW

    def next_poll_ms(self) -> int | None:
        return None

    def snapshot(self) -> list[Split]:
        return [replace(split, position=position) for split, position in self._splits]

    def close(self) -> None:
        """Nothing to close."""


class Laborious(KeyedProcessFunction):
    """Numbers the records of each key, and takes its time for each."""

    def __init__(self, name: str) -> None:
        self._name = name

    def open(self, context: Any) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, _context: Any) -> Any:
        _systems[self._name].work(WORK_US)
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield {"key": value["key"], "number": value["number"], "count": count}


def expected() -> Counter[tuple[int, int, int]]:
    """Each record, with its place among those of its key."""
    numbers = range(len(arrival_times()))
    return Counter((number % NUM_KEYS, number, number // NUM_KEYS + 1) for number in numbers)


def job_of(name: str, rng: random.Random) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(actor_system="sim")
    env.set_parallelism(1)
    env.enable_checkpointing(rng.choice((300, 1_000)), directory=f"memory://{name}/checkpoints")
    env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(-1)
    if rng.random() < 0.5:
        env.get_checkpoint_config().enable_unaligned_checkpoints()
    env.set_restart_strategy(RestartStrategy(-1, 100))
    env.set_autoscaler(SETTINGS)
    records = env.from_source(ArrivingSource(), source_name="arriving")
    records.key_by(lambda row: row["key"]).process(Laborious(name)).name("laborious").sink_to(
        FileSink.json_lines(f"memory://{name}/out")
    )
    graph = env.get_job_graph(name)
    changes = {
        "max_batch_rows": 4, "slot_request_timeout_ms": 120_000, "task_cancellation_timeout_ms": 2_000,
        "heartbeat_interval_ms": 500, "heartbeat_timeout_ms": 3_000, "metrics_interval_ms": 250, "attached": False,
    }  # fmt: skip
    return replace(graph, settings=replace(graph.settings, **changes))


@dataclass
class Run:
    """What became of a run.

    Attributes:
        view: The job's last one.
        parallelism: That of the costly operator at moments: (virtual milliseconds, number).
    """

    view: Any
    parallelism: list[tuple[float, int]]

    def highest(self, from_ms: float, to_ms: float) -> int:
        """Its largest parallelism in some time."""
        return max(number for at_ms, number in self.parallelism if from_ms <= at_ms < to_ms)


@slots_compared()
def run_autoscaled(seed: int, faults: FaultPlan) -> Run:
    """Run the job and judge what was committed.

    Raises:
        AssertionError: If a record was lost or doubled, or the job did not end.
    """
    rng = random.Random(f"autoscaling-{seed}")
    name = f"autoscaling-{seed}"
    MemoryFileSystem.forget(name)
    graph = job_of(name, rng)
    system = _systems[name] = SimSystem(seed, faults, max_events=500_000)
    settings = ClusterSettings(slots_per_task_manager=rng.choice((1, 2)))
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
        run = _followed(system)
        assert run.view.state == "FINISHED", f"seed {seed}: {run.view.state}: {run.view.failure}"
        assert committed(name) == expected(), f"seed {seed}: lost or doubled"
        for rescale in run.view.rescales:
            assert rescale.reason, rescale
            assert all(1 <= number <= MAX_PARALLELISM for number in rescale.after.values()), rescale
        shut_down(system)
        return run
    finally:
        system.close()
        del _systems[name]
        MemoryFileSystem.forget(name)


def _followed(system: SimSystem) -> Run:
    parallelism: list[tuple[float, int]] = []
    while system.now_ms < MAX_VIRTUAL_MS:
        system.run_for(1_000)
        [view] = system.ask(DISPATCHER, ListJobs(), 10_000)
        parallelism += [(system.now_ms, one.parallelism) for one in view.vertices if "laborious" in one.name]
        if view.state in TERMINAL:
            return Run(view, parallelism)
    message = f"hang: the job is {view.state}; {view.history[-20:]}"
    raise AssertionError(message)


def committed(name: str) -> Counter[tuple[int, int, int]]:
    """What a reader of the output sees."""
    files = MemoryFileSystem.named(name).files
    visible = [path for path in files if path.startswith("out/") and "/." not in path]
    rows = (json.loads(line) for path in visible for line in files[path].splitlines())
    return Counter((row["key"], row["number"], row["count"]) for row in rows)


def draw_faults(seed: int) -> FaultPlan:
    """Processes that die and freeze at any time of the run, weather on some days."""
    rng = random.Random(f"faults-of-autoscaling-{seed}")
    weather = {"loss": 0.02, "duplication": 0.02} if rng.random() < 0.3 else {}
    return FaultPlan(
        random_kills=rng.randint(1, 6),
        freezes=rng.choice((0, 1, 2)),
        freeze_ms=(500.0, 6_000.0),
        fault_window_ms=(1_000.0, 80_000.0),
        **weather,
    )


def main() -> int:
    for seed in map(int, sys.argv[1:] or ["0"]):
        run = run_autoscaled(seed, draw_faults(seed) if seed else FaultPlan())
        print(f"seed {seed}: {run.view.num_restarts} restarts", [number for _, number in run.parallelism])
        for rescale in run.view.rescales:
            at_s = (rescale.at_ms - EPOCH_MS) / 1_000
            print(f"  {at_s:6.1f} s  {rescale.before} -> {rescale.after}  {rescale.error or 'done'}: {rescale.reason}")
    return 0


if __name__ == "__main__":
    from simulation import autoscaling  # under a name: what a program's module holds would else travel with it

    sys.exit(autoscaling.main())
