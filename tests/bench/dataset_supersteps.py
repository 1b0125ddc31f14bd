"""What a superstep of a delta iteration costs on Spark, and what it leaves behind.

Paths of vertices hand on their least number, so a workset of constant size goes down the graph for as many supersteps
as one likes; memory is that of the driver's Java heap after a collection, and of this process. With ``--local-bytes``
above 0 small iterations run in this process, as they do by default.

    python tests/bench/dataset_supersteps.py [--vertices 60000] [--supersteps 200] [--local-bytes 0]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import ExecutionEnvironment, LongCounter, col


def paths(env: ExecutionEnvironment, vertices: int, length: int) -> tuple[Any, Any, Any]:
    """Links down the paths, vertices with their numbers, and the first vertex of each path."""
    number = np.arange(vertices)
    starts = number[number % length != length - 1]
    links = env.from_arrow(pa.table({"a": starts, "b": starts + 1}))
    own = env.from_arrow(pa.table({"vertex": number, "least": number}))
    return links, own, own.filter(col("vertex") % length == 0)


def heap_bytes() -> int:
    """What is alive in the driver's Java process."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    if context is None:
        return 0
    jvm = context._jvm
    jvm.System.gc()
    usage: Any = jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
    return int(usage.getUsed())


def own_bytes() -> int:
    """The resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=int, default=60_000)
    parser.add_argument("--supersteps", type=int, default=200)
    parser.add_argument("--local-bytes", type=int, default=0)
    parser.add_argument("--every", type=int, default=20)
    options = parser.parse_args()
    seen: list[tuple[int, float, int, int]] = []
    started = time.perf_counter()

    def look(superstep: int, _value: Any) -> bool:
        if superstep % options.every == 0 or superstep == 1:
            seen.append((superstep, time.perf_counter() - started, heap_bytes(), own_bytes()))
            print("{:9d} {:9.1f} {:9.0f} {:9.0f}".format(*seen[-1][:2], *(n / 2**20 for n in seen[-1][2:])), flush=True)
        return False

    with ExecutionEnvironment.get_execution_environment(
        "spark", address="local", start_timeout_ms=300_000, local_iteration_bytes=options.local_bytes
    ) as env:
        env.generate_sequence(0, 9).map(lambda n: n).count()  # everything is up
        links, own, first = paths(env, options.vertices, options.supersteps + 1)
        loop = own.iterate_delta(first, options.supersteps, "vertex")
        loop.register_aggregation_convergence_criterion("look", LongCounter(), look)
        reached = loop.get_workset().join(links).where("vertex").equal_to("a")
        handed = reached.project_second("b").project_first("least").select(vertex=col("b"), new=col("least"))
        better = handed.join(loop.get_solution_set()).where("vertex").equal_to("vertex")
        changed = better.project_first("vertex", "new").project_second("least").filter(col("new") < col("least"))
        delta = changed.select("vertex", least=col("new"))
        print("superstep   seconds   heap MB    own MB")
        started = time.perf_counter()
        found = loop.close_with(delta, delta).to_arrow().sort_by("vertex")
        length = options.supersteps + 1
        wanted = np.arange(options.vertices) // length * length
        is_right = bool((found["least"].to_numpy() == wanted).all())
    print(f"{options.vertices:,} vertices, {options.supersteps} supersteps, right {is_right}")
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
