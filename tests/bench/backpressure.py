"""Checkpoints under backpressure, and what exactly-once costs: ``python tests/bench/backpressure.py``.

A keyed count on Ray whose sink takes a tenth of what the job could deliver. Each way of checkpointing (aligned, aligned
with buffer debloating, unaligned, unaligned after an aligned timeout) runs for the same time; printed are how many
checkpoints completed, how long they took against their interval, and the memory of all hosts against that of the same
job with a sink that keeps up. Then, in pairs, the rate with exactly-once checkpoints every second as a share of the
rate with at-least-once ones.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "actors"))

from kill_soak import living_hosts, resident_mb
from measure import DiscardSink, Rate, describe_machine, steady_rate

from headrace import CheckpointingMode, StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.connectors.contract import SinkWriter

NUM_KEYS = 10_000
SHARE = 0.1
"""What the slow sink takes, as a share of what the job delivers to a sink that keeps nothing."""


class SlowSink:
    """Takes so many records a second in each subtask, and keeps nothing."""

    def __init__(self, rows_per_second: float) -> None:
        self._rows_per_second = rows_per_second

    def create_writer(self) -> SinkWriter:
        return SlowWriter(self._rows_per_second)


class SlowWriter(SinkWriter):
    def __init__(self, rows_per_second: float) -> None:
        self._rows_per_second = rows_per_second

    def write(self, batch: Any) -> None:
        time.sleep(batch.num_rows / self._rows_per_second)


WAYS = {
    "aligned": {},
    "aligned, debloated": {"debloat": "100 ms"},
    "unaligned": {"unaligned": True},
    "unaligned after 200 ms": {"unaligned": True, "timeout": "200 ms"},
}


def program(env: StreamExecutionEnvironment, num_records: int, sink: Any) -> None:
    """Records go over two exchanges: spread evenly, then by key."""
    source = GeneratorSource(lambda index: (index * 7919 % NUM_KEYS, index), count=num_records)
    numbers = env.from_source(source, None, "numbers").rebalance().map(lambda row: (row[0], 1)).name("spread")
    numbers.key_by(lambda row: row[0]).reduce(lambda a, b: (a[0], a[1] + b[1])).sink_to(sink)


def environment(directory: str, interval_ms: int, mode: CheckpointingMode, **way: Any) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(actor_system="ray", parallelism=2)
    env.enable_checkpointing(interval_ms, mode, directory=directory)
    config = env.get_checkpoint_config()
    config.set_tolerable_checkpoint_failure_number(-1)
    if way.get("unaligned"):
        config.enable_unaligned_checkpoints()
        config.set_aligned_checkpoint_timeout(way.get("timeout", 0))
    env.set_buffer_debloating("debloat" in way, target=way.get("debloat", "100 ms"))
    return env


def full_rate(num_records: int, mode: CheckpointingMode) -> Rate:
    """With a sink that takes everything."""
    with tempfile.TemporaryDirectory() as directory, environment(directory, 1_000, mode) as env:
        program(env, num_records, DiscardSink())
        return steady_rate(env, num_records)


def watched(seconds: float, interval_ms: int, sink: Any, **way: Any) -> dict[str, float]:
    """Run for so long and cancel; gives figures of its checkpoints and of its memory."""
    exactly_once = CheckpointingMode.EXACTLY_ONCE
    with tempfile.TemporaryDirectory() as directory, environment(directory, interval_ms, exactly_once, **way) as env:
        program(env, 1 << 40, sink)
        client = env.execute_async("backpressure")
        durations: dict[int, float] = {}
        peak_mb, started, sampled = 0.0, None, 0.0
        pids: list[int] = []
        for view in client.views():
            now = time.monotonic()
            if started is None and view.vertices and view.vertices[-1].records_in:
                started = now
            if started is None:
                continue
            if view.last_checkpoint is not None and view.last_checkpoint_ms is not None:
                durations[view.last_checkpoint] = view.last_checkpoint_ms
            if now - sampled > 1.0:
                pids = pids or list(living_hosts().values())
                peak_mb, sampled = max(peak_mb, sum(map(resident_mb, pids))), now
            if now - started > seconds:
                break
        backpressured = view.vertices[0].backpressured
        client.cancel()
    failed = view.checkpoints_failed
    ordered = sorted(durations.values()) or [float("nan")]
    return {
        "completed": view.checkpoints_completed,
        "success": view.checkpoints_completed / max(1, view.checkpoints_completed + failed),
        "p50_ms": statistics.median(ordered),
        "max_ms": ordered[-1],
        "peak_mb": peak_mb,
        "backpressured": backpressured,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=6_000_000, help="of the runs at full rate")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the runs under backpressure")
    parser.add_argument("--interval-ms", type=int, default=1_000)
    parser.add_argument("--pairs", type=int, default=3, help="of exactly-once and at-least-once")
    options = parser.parse_args()
    print(describe_machine())
    ratios = []
    for _ in range(options.pairs):
        once = full_rate(options.records, CheckpointingMode.EXACTLY_ONCE)
        at_least = full_rate(options.records, CheckpointingMode.AT_LEAST_ONCE)
        ratios.append(once.per_second / at_least.per_second)
        print(f"exactly-once {once}; at-least-once {at_least}; share {ratios[-1]:.3f}", flush=True)
    print(f"full rate with exactly-once, as a share of that with at-least-once: {statistics.median(ratios):.3f}")
    slow = SHARE * once.per_second / 2  # in each of the two subtasks
    free = watched(options.seconds, options.interval_ms, DiscardSink())
    print(f"a sink that keeps up: checkpoints {free['p50_ms']:.0f} ms, memory {free['peak_mb']:.0f} MB", flush=True)
    for name, way in WAYS.items():
        seen = watched(options.seconds, options.interval_ms, SlowSink(slow), **way)
        print(
            f"{name}: {seen['completed']:.0f} checkpoints, {100 * seen['success']:.0f} % succeeded, "
            f"p50 {seen['p50_ms']:.0f} ms, longest {seen['max_ms']:.0f} ms "
            f"({seen['max_ms'] / options.interval_ms:.1f} intervals), peak memory {seen['peak_mb']:.0f} MB "
            f"({seen['peak_mb'] / free['peak_mb']:.2f}), sources wait {100 * seen['backpressured']:.0f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
