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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import ray

from headrace import StreamExecutionEnvironment
from headrace.engine.connectors.contract import SinkWriter

# Workers have no such module: what a job takes from here travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


REPORTS = 4
"""Reports that a steady part must have: what subtasks say is as old as a report, so a shorter part shows anything."""


class DiscardSink:
    """Takes everything and keeps nothing."""

    def create_writer(self) -> SinkWriter:
        return _DiscardWriter()


class _DiscardWriter(SinkWriter):
    def write(self, batch: Any) -> None:
        pass


def describe_machine() -> str:
    """Processors and versions, for the head of a report."""
    return (
        f"{os.cpu_count()} processors, {platform.machine()}, Python {platform.python_version()}, "
        f"ray {ray.__version__}, pyarrow {pa.__version__}"
    )


def touch_memory(leave: int = 3 << 30) -> str:
    """Write to all memory that is free, twice, and say how long that took.

    A virtual machine gets memory from its host when it is first written to, which takes several times as long as to
    get it again. What ran first would pay for all that come later; and a program that keeps its memory, as a JVM
    does, would pay once for what one that gives it back pays each time.

    Args:
        leave: Bytes that are left alone.
    """
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        num_pieces = len(touched(leave))
        seconds.append(time.perf_counter() - began)
    return f"{num_pieces / 8:.1f} GiB of memory touched first, in {seconds[0]:.1f} s, and again in {seconds[1]:.1f} s"


def touched(leave: int = 3 << 30) -> list[np.ndarray]:
    """Write to all memory that is free, and hold it until the result is dropped.

    A host may take back what lies free for some seconds. A program that gets it at once pays for it as on a machine
    whose memory is its own.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") - leave
    return [np.ones(1 << 27, np.uint8) for _ in range(max(free >> 27, 0))]


@dataclass(frozen=True)
class Rate:
    """How fast something ran. Per second depends on what else the machine did meanwhile, per CPU second hardly."""

    per_second: float
    per_cpu_second: float
    """Records by processor time of all hosts together; 0 where it is not known."""
    share_of_loops: float | None = None
    """How much of that time the threads have had that run tasks; the rest is Ray's, and what takes messages. None where
    it is not known."""

    def ratio_to(self, other: Rate) -> str:
        """This rate as a multiple of another one."""
        by_cpu = self.per_cpu_second / other.per_cpu_second
        return f"{self.per_second / other.per_second:.2f}; by CPU second {by_cpu:.2f}"

    def __str__(self) -> str:
        loops = "" if self.share_of_loops is None else f" ({self.share_of_loops:.0%} of it in the hosts' loops)"
        return f"{self.per_second:,.0f} records/s, {self.per_cpu_second:,.0f} per CPU second{loops}"


def steady_rate(env: StreamExecutionEnvironment, num_records: int, *, sources: int = 1) -> Rate:
    """Run the environment's program and give the records per second that its sources read in steady state.

    Args:
        env: With the program added.
        num_records: Records of all sources together.
        sources: How many of the plan's first vertices are sources.

    Raises:
        TooShort: If the run was.
    """
    first, last = steady_marks(env.execute_async("benchmark"), num_records, sources=sources)
    elapsed, cpu, done = last.seconds - first.seconds, last.cpu_seconds - first.cpu_seconds, last.done - first.done
    if cpu <= 0:
        return Rate(done / elapsed, 0.0)
    return Rate(done / elapsed, done / cpu, (last.loop_seconds - first.loop_seconds) / cpu)


@dataclass(frozen=True)
class Mark:
    """A moment in the steady part of a run: seconds of a clock and of all hosts' processors, those of their loops'
    threads among them, and what was known."""

    seconds: float
    cpu_seconds: float
    loop_seconds: float
    done: int
    view: Any


class TooShort(Exception):
    """A run that ended before there was anything to measure."""


def steady_marks(client: Any, num_records: int, *, sources: int = 1, from_share: float = 0.1) -> tuple[Mark, Mark]:
    """Follow a job to its end, and give the first and the last report within the steady part of its input.

    Args:
        client: The job's.
        num_records: Records of all sources together.
        sources: How many of the plan's first vertices are sources.
        from_share: The steady part begins when this share has been read, and ends with 95 %.

    Raises:
        TooShort: If that part has fewer than `REPORTS` reports, which come each metrics interval.
    """
    marks: list[Mark] = []
    for view in client.views():
        done = sum(vertex.records_in for vertex in view.vertices[:sources])  # a source's input is what it has read
        marks.append(Mark(time.perf_counter(), *_cpu_seconds_of_hosts(), done, view))
    client.result(timeout=60)
    inner = [mark for mark in marks if from_share * num_records <= mark.done <= 0.95 * num_records]
    if len({mark.done for mark in inner}) < REPORTS:
        message = f"a run over {num_records:,} records is too short; give it more"
        raise TooShort(message)
    return inner[0], next(mark for mark in inner if mark.done == inner[-1].done)


def plain_rate(work: Callable[[], int]) -> Rate:
    """The rate of a plain function in this process; it returns how many records it has done."""
    started, cpu_started = time.perf_counter(), time.process_time()
    done = work()
    return Rate(done / (time.perf_counter() - started), done / (time.process_time() - cpu_started))


def _cpu_seconds_of_hosts() -> tuple[float, float]:
    """Processor time that the cluster's hosts have had, and the threads of their loops: the actors among the processes
    that descend from this one, and the threads that Ray calls by the method ``run``.
    """
    stats: dict[int, list[str]] = {}
    hosts: list[int] = []
    for directory in Path("/proc").glob("[0-9]*"):
        found = _stat(directory)
        if found is None:
            continue  # it has ended
        stats[int(directory.name)] = found[1]
        if "RayHost" in found[0]:
            hosts.append(int(directory.name))
    own = [pid for pid in hosts if os.getpid() in _ancestors(pid, stats)]
    threads = (_stat(thread) for pid in own for thread in Path(f"/proc/{pid}/task").glob("*"))
    loops = (found[1] for found in threads if found is not None and "RayHost.ru" in found[0])
    ticks = os.sysconf("SC_CLK_TCK")
    return sum(map(_ticks_of, (stats[pid] for pid in own))) / ticks, sum(map(_ticks_of, loops)) / ticks


def _stat(directory: Path) -> tuple[str, list[str]] | None:
    """Number and name of a process or thread, and what Linux counts of it; None if it has ended."""
    try:
        name, _, counted = (directory / "stat").read_text().rpartition(") ")
    except OSError:
        return None
    return name, counted.split()


def _ticks_of(counted: list[str]) -> int:
    return int(counted[11]) + int(counted[12])


def _ancestors(pid: int, stats: dict[int, list[str]]) -> list[int]:
    ancestors = []
    while pid in stats:
        pid = int(stats[pid][1])
        ancestors.append(pid)
    return ancestors


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """Median wall time of some work, in seconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
