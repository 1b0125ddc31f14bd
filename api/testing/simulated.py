"""A whole job in a simulated cluster, with processes that die, hang and lose messages, all from one seed.

The simulator runs the engine that runs in production, in one thread under virtual time, and decides by the seed
everything that production leaves to chance. The program is the user's own, its output is what a reader would see who
waits for complete checkpoints; the assertion is the user's, too. Equal arguments give equal runs, event for event, so a
seed that fails once fails always, also in a debugger.

Source: FoundationDB's simulation testing; Flink's ``UnalignedCheckpointITCase`` for what is asserted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.engine.connectors.sources import SourceOperator
from headrace.engine.errors import HeadraceError, JobFailedError, ProgramError
from headrace.engine.graph.chaining import num_slots
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.graph.transformations import OperatorTransformation
from headrace.engine.kernel.config import RestartStrategy
from headrace.engine.protocol.views import JobView
from headrace.state.files.memory import MemoryFileSystem

from ..arguments.checks import whole
from ..connectors.collect import CollectSink
from ..jobs.client import JobClient
from ..stream.data_stream import DataStream
from ..stream.environment import StreamExecutionEnvironment

if TYPE_CHECKING:
    from headrace.actors.sim.faults import FaultPlan

__all__ = ["SimulatedRun", "run_simulated"]

KILL_POINTS = (
    "recv.DataMessage",
    "recv.AddCredit",
    "recv.TriggerCheckpoint",
    "recv.NotifyCheckpointComplete",
    "recv.NextInputSplit",
    "task.snapshot.before",
    "task.snapshot.after",
    "task.barrier.forwarded",
    "io.upload_snapshot.after",
    "send.AcknowledgeCheckpoint",
    "sink.prepare",
    "sink.commit.before",
    "sink.commit.after",
)
"""Where a process may die: points that every job with checkpoints passes many times."""

STEP_US = (1_000.0, 5_000.0)
"""How long a step takes, microseconds: long beside a checkpoint's interval, so that a short input sees many of them."""

LATEST_OCCURRENCE = 12
"""A kill strikes at one of so many passages of its point."""

MAX_VIRTUAL_MS = 3_600_000
"""A job that has not ended by then is restarted for ever, or waits for something that does not come."""

POLL_MS = 200

_NAMES = itertools.count(1)


@dataclass(frozen=True)
class SimulatedRun:
    """The result of a simulated run.

    Attributes:
        values: The records of the program's stream, each once, in the order in which their checkpoints completed.
        seed: What decided everything.
        num_restarts: How often the job was restarted.
        num_kills: How many processes died of the plan.
        checkpoints_completed: How many checkpoints were completed.
        virtual_ms: How long it took, in virtual milliseconds.
        digest: A checksum of everything that happened; equal for equal runs.
        view: All that is known of the job.
    """

    values: list[Any]
    seed: int
    num_restarts: int
    num_kills: int
    checkpoints_completed: int
    virtual_ms: float
    digest: str
    view: JobView = field(repr=False)


def run_simulated(
    program: Callable[[StreamExecutionEnvironment], DataStream],
    seed: int = 0,
    *,
    kills: int = 1,
    freezes: int = 0,
    lossy_network: bool = False,
    parallelism: int = 2,
    checkpoint_interval_ms: int = 20,
    max_batch_rows: int = 4,
    state_backend: str = "heap",
) -> SimulatedRun:
    """Run a program in a simulated cluster with faults, and give back what it committed.

    All sources must be bounded. Records come through checkpoints, so each must be there exactly once, whatever
    happened; in which order streams of different subtasks meet is up to the seed.

    Args:
        program: Builds the program in the environment it is given and returns the stream whose records are wanted.
        seed: Decides where processes die, how long everything takes, and every other chance.
        kills: How many processes are to die. One whose moment does not come before the job ends does not.
        freezes: How many processes are to hang for a while, long enough to be taken for dead, and then go on.
        lossy_network: Whether messages are lost, doubled and overtaken.
        parallelism: Of all operators that have none of their own.
        checkpoint_interval_ms: Time between checkpoints, virtual milliseconds.
        max_batch_rows: How many records a source reads at once: few, so that a short input takes many turns.
        state_backend: Where keyed state is held, unless the program says it: ``heap`` or ``rocksdb``.

    Raises:
        JobFailedError: If the job failed for good, or does not end.
        ProgramError: If the program does not return a stream, or a source is unbounded.

    Examples:
        >>> from headrace.testing import run_simulated
        >>> def doubled(env):
        ...     return env.from_collection(range(100)).map(lambda number: 2 * number)
        >>> sorted(run_simulated(doubled, seed=7, kills=2).values) == list(range(0, 200, 2))
        True
    """
    for what, number, low in (
        ("seed", seed, 0),
        ("kills", kills, 0),
        ("freezes", freezes, 0),
        ("parallelism", parallelism, 1),
        ("checkpoint_interval_ms", checkpoint_interval_ms, 1),
        ("max_batch_rows", max_batch_rows, 1),
    ):
        whole(what, number, low, None)
    from headrace.actors.connecting import connect
    from headrace.actors.sim.system import SimSystem

    store = f"headrace-simulated-{next(_NAMES)}"
    env = StreamExecutionEnvironment.get_execution_environment(actor_system="sim", parallelism=parallelism)
    env.enable_checkpointing(checkpoint_interval_ms, directory=f"memory://{store}/checkpoints")
    env.set_state_backend(state_backend)
    stream: Any = program(env)
    if not isinstance(stream, DataStream):
        message = f"the program must return the stream whose records are wanted; got {stream!r}"
        raise ProgramError(message)
    sink = stream.sink_to(CollectSink()).name("collect")
    if isinstance(stream.transformation, OperatorTransformation):
        sink.set_parallelism(stream.transformation.parallelism)  # so that each subtask's records stay in order
    graph = env.get_job_graph("simulated")
    _require_bounded(graph)
    settings = replace(
        graph.settings,
        restart=graph.settings.restart or RestartStrategy(-1, 10, max_user_failures=3),
        max_batch_rows=max_batch_rows,
        heartbeat_interval_ms=200,
        heartbeat_timeout_ms=1_000,
        slot_request_timeout_ms=120_000,
        task_cancellation_timeout_ms=2_000,
    )
    seen: set[str] = set()
    values: list[Any] = []

    def collect(_operator: Any, _subtask: int, report: Any) -> None:
        report_id, rows = report
        if report_id not in seen:
            seen.add(report_id)
            values.extend(rows)

    cluster = connect("sim", seed=seed, faults=_fault_plan(seed, kills, freezes, lossy=lossy_network))
    system = cluster.system
    assert isinstance(system, SimSystem)
    try:
        job_id = cluster.submit(replace(graph, settings=settings), num_slots(graph))
        client = JobClient(cluster, job_id, "simulated", on_report={"collect": collect})
        view = client.view()
        while not view.state.is_terminal:
            if system.now_ms > MAX_VIRTUAL_MS:
                message = (
                    f"the job is still {view.state} after {MAX_VIRTUAL_MS // 1_000} s of virtual time: {view.failure}"
                )
                raise JobFailedError(message)
            system.run_for(POLL_MS)
            view = client.view()
        result = client.result()
    except HeadraceError as error:
        error.context.setdefault("seed", seed)
        raise
    finally:
        try:
            cluster.close()
        finally:
            MemoryFileSystem.forget(store)
    return SimulatedRun(
        values,
        seed,
        result.num_restarts,
        system.num_kills,
        result.checkpoints_completed,
        system.now_ms,
        system.digest,
        result.view,
    )


def _require_bounded(graph: JobGraph) -> None:
    for vertex in graph.vertices.values():
        head = vertex.chain[0]
        if isinstance(head.operator, SourceOperator) and not head.operator.source.is_bounded:
            message = "a simulated run ends with its input; this source is unbounded"
            raise ProgramError(message, operator=head.name)


def _fault_plan(seed: int, kills: int, freezes: int, *, lossy: bool) -> FaultPlan:
    from headrace.actors.sim.faults import FaultPlan

    rng = Random(seed)
    places = [(point, 1 + occurrence) for point in KILL_POINTS for occurrence in range(LATEST_OCCURRENCE)]
    weather: dict[str, Any] = {"step_us": STEP_US}
    if lossy:
        weather |= {"loss": 0.05, "duplication": 0.05, "reordering": 0.1, "stray_work": 0.5}
    if freezes:
        weather.update(freezes=freezes, freeze_ms=(1_100.0, 3_000.0), fault_window_ms=(10.0, 300.0), late_kill=0.5)
    return FaultPlan(kills_at=tuple(rng.sample(places, k=min(kills, len(places)))), pickle_messages=True, **weather)
