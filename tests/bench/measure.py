"""What the benchmarks share: a job's steady rate, and the line about the machine.

The rate is read from the job's own counters between the first and the last tenth of its input, so that starting and
stopping do not count.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import cloudpickle
import pyarrow as pa
import ray

from headrace import StreamExecutionEnvironment
from headrace.engine.connector import SinkWriter

# Workers have no such module: what a job takes from here travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class DiscardSink:
    """Takes everything and keeps nothing."""

    def create_writer(self) -> SinkWriter:
        return _DiscardWriter()


class _DiscardWriter:
    def open(self, context: Any, restored: list[Any]) -> None:
        pass

    def write(self, batch: Any) -> None:
        pass

    def prepare(self, checkpoint_id: int) -> list[Any]:
        return []

    def commit(self, committables: list[Any]) -> None:
        pass

    def close(self) -> None:
        pass


def describe_machine() -> str:
    """Processors and versions, for the head of a report."""
    return (
        f"{os.cpu_count()} processors, {platform.machine()}, Python {platform.python_version()}, "
        f"ray {ray.__version__}, pyarrow {pa.__version__}"
    )


def steady_rate(env: StreamExecutionEnvironment, num_records: int, *, sources: int = 1) -> float:
    """Run the environment's program and give the records per second that its sources read in steady state.

    Args:
        env: With the program added; a run should last ten times its metrics interval at least.
        num_records: Records of all sources together.
        sources: How many of the plan's first vertices are sources.
    """
    client = env.execute_async("benchmark")
    samples: list[tuple[float, int]] = []
    for view in client.views():
        done = sum(vertex.records_in for vertex in view.vertices[:sources])  # a source's input is what it has read
        samples.append((time.perf_counter(), done))
    client.result(timeout=60)
    inner = [(at, n) for at, n in samples if 0.1 * num_records <= n <= 0.95 * num_records]
    if len(inner) < 2 or inner[-1][1] == inner[0][1]:
        first = next(i for i, (_, n) in enumerate(samples) if n > 0)
        inner = [samples[max(0, first - 1)], samples[-1]]
    return (inner[-1][1] - inner[0][1]) / (inner[-1][0] - inner[0][0])


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """Median wall time of some work, in seconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
