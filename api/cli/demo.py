"""The main job: delays of real flights in sliding windows per airport, exactly-once, watched live.

Flights that left New York City in 2013 are replayed in the order in which they left, while windows go by *scheduled*
    departure: input that
is out of order by up to 21 hours. Every six hours of event time each airport gets the count, mean and worst delay of
the past day. With ``--kill`` a slot's process is killed in the middle. At the end the result is compared with a
direct computation over the file that uses none of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.engine.protocol.states import JobStatus

from ..data import flights_path

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.engine.protocol.views import JobView

    from ..jobs.client import JobClient
    from ..jobs.progress import ProgressListener
    from ..stream.environment import StreamExecutionEnvironment

__all__ = ["DemoResult", "build", "expected_windows", "read_table", "read_windows", "run"]

WINDOW_MS = 24 * 3_600_000
SLIDE_MS = 6 * 3_600_000
OUT_OF_ORDERNESS = "22 h"
"""The worst delay in the data is 21 h 40 min; nothing is late by more."""

ROWS = 328_521
WATCHABLE_S = 17
"""How long the replay takes unless ``--speed max``."""


def build(env: StreamExecutionEnvironment, output: str, *, records_per_second: float | None) -> None:
    """Add the job to an environment.

    Args:
        env: Where to.
        output: Directory of the resulting Parquet files.
        records_per_second: Rate of the replay over all subtasks; None for all at once.
    """
    from headrace import SlidingEventTimeWindows, WatermarkStrategy, avg, count

    from ..connectors.datagen import RateLimitedSource
    from ..connectors.files.source import FileSink, FileSource
    from ..functions import max as max_of

    source: Any = FileSource.parquet(flights_path())
    if records_per_second is not None:
        source = RateLimitedSource(source, records_per_second)
    event_time = WatermarkStrategy.for_bounded_out_of_orderness(OUT_OF_ORDERNESS).with_timestamp_assigner("scheduled")
    (
        env.from_source(source, event_time, "flights")
        .key_by("origin")
        .window(SlidingEventTimeWindows.of("24 h", "6 h"))
        .aggregate(flights=count(), mean_delay=avg("dep_delay"), worst_delay=max_of("dep_delay"))
        .name("delays per airport")
        .sink_to(FileSink.parquet(output))
        .name("files")
    )


Windows = dict[tuple[str, int], tuple[int, float, int]]
"""(airport, window start in epoch ms) -> (flights, mean delay, worst delay), delays in minutes."""


def expected_windows() -> Windows:
    """Return what must come out, computed with plain loops from the file."""
    import pyarrow.parquet as pq

    table = pq.read_table(flights_path(), columns=["origin", "scheduled", "dep_delay"])
    scheduled = table["scheduled"].cast("int64").to_pylist()
    totals: dict[tuple[str, int], tuple[int, int, int]] = {}
    for origin, at_ms, delay in zip(
        table["origin"].to_pylist(), scheduled, table["dep_delay"].to_pylist(), strict=True
    ):
        last_start = at_ms - at_ms % SLIDE_MS
        for start in range(last_start, last_start - WINDOW_MS, -SLIDE_MS):
            flights, total, worst = totals.get((origin, start), (0, 0, -(10**9)))
            totals[(origin, start)] = (flights + 1, total + delay, max(worst, delay))
    return {key: (flights, total / flights, worst) for key, (flights, total, worst) in totals.items()}


def read_windows(output: str) -> tuple[Windows, int]:
    """Return what came out, and how many rows that were (more than windows would mean that some came twice)."""
    rows = read_table(output).to_pylist()
    windows = {
        (row["origin"], int(row["window_start"].replace(tzinfo=timezone.utc).timestamp() * 1_000)): (
            row["flights"],
            row["mean_delay"],
            row["worst_delay"],
        )
        for row in rows
    }
    return windows, len(rows)


def read_table(output: str) -> pa.Table:
    """Return the whole result as one table: what a reader of the directory sees."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = sorted(Path(output).glob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(part) for part in parts]) if parts else pa.table({})


@dataclass(frozen=True)
class DemoResult:
    """How the demo went.

    Attributes:
        view: The job's last view.
        output: Directory of the result.
        num_windows: Rows of the result.
        is_correct: Whether it equals the direct computation, row for row.
        killed: The slot's host that was killed, with its process id where it is known; None if none was.
        worst: The windows with the worst mean delay: airport, window start, flights, mean and worst delay.
    """

    view: JobView
    output: str
    num_windows: int
    is_correct: bool
    killed: str | None
    worst: list[tuple[str, datetime, int, float, int]]


def run(
    *,
    output: str,
    parallelism: int,
    speed: str = "watch",
    kill: bool = False,
    actor_system: str = "ray",
    on_progress: ProgressListener | None = None,
    checkpoints: str | None = None,
) -> DemoResult:
    """Run the demo.

    Args:
        output: Directory for the result; made if missing, must hold no earlier result.
        parallelism: Subtasks of each operator, at least 1.
        speed: ``"watch"`` replays in about 20 seconds, ``"max"`` all at once.
        kill: Kill the process of a slot in the middle.
        actor_system: ``"ray"`` or ``"local"``.
        on_progress: Called with every new view of the job.
        checkpoints: Directory of the checkpoints; a sibling of ``output`` by default.

    Raises:
        JobFailedError: If the job fails for good.
    """
    from ..stream.environment import StreamExecutionEnvironment

    rate = None if speed == "max" else ROWS / WATCHABLE_S
    env = StreamExecutionEnvironment.get_execution_environment(actor_system=actor_system)
    env.set_parallelism(parallelism)
    env.enable_checkpointing(500, directory=checkpoints or f"{output}.checkpoints")
    build(env, output, records_per_second=rate)
    killer = _Killer(is_watched=speed != "max") if kill else None
    try:
        client = env.execute_async("flight delays", on_progress=on_progress)
        view = _follow(client, killer)
        client.result()
    finally:
        env.close()
    windows, num_rows = read_windows(output)
    expected = expected_windows()
    worst = sorted(((mean, key, n, top) for key, (n, mean, top) in windows.items()), reverse=True)[:10]
    return DemoResult(
        view=view,
        output=output,
        num_windows=num_rows,
        is_correct=num_rows == len(expected) and _equal(windows, expected),
        killed=killer.killed if killer else None,
        worst=[
            (airport, datetime.fromtimestamp(start / 1_000, tz=timezone.utc), n, mean, top)
            for mean, (airport, start), n, top in worst
        ],
    )


def _equal(windows: Windows, expected: Windows) -> bool:
    return windows.keys() == expected.keys() and all(
        flights == expected[key][0] and worst == expected[key][2] and abs(mean - expected[key][1]) < 1e-9
        for key, (flights, mean, worst) in windows.items()
    )


class _Killer:
    """Kills a slot once, after a checkpoint and, if the replay is watched, with a third of the records read."""

    def __init__(self, *, is_watched: bool) -> None:
        self._min_records = ROWS // 3 if is_watched else 0
        self.killed: str | None = None

    def consider(self, client: JobClient, view: JobView) -> None:
        if (
            self.killed is not None
            or view.state is not JobStatus.RUNNING
            or not view.slots
            or not view.checkpoints_completed
        ):
            return
        if view.vertices[0].records_in < self._min_records:
            return
        pid = view.slots[0].pid
        self.killed = client.kill_slot(0).replace(view.job_id, view.job_id[:8])
        if pid is not None:
            self.killed += f", process {pid}"


def _follow(client: JobClient, killer: _Killer | None) -> JobView:
    for view in client.views():
        if killer is not None:
            killer.consider(client, view)
    return view
