"""Connected components of a graph of a million edges: delta iteration beside bulk iteration.

The graph is many paths, which take supersteps to run down, and one random component; most vertices are settled early.
Shown per superstep: the workset, what changed, the time. A bulk iteration does the whole work every time.

    python tests/bench/dataset_components.py [--edges 1000000] [--supersteps 30]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import ExecutionEnvironment, LongCounter, col


def graph(edges: int) -> pa.Table:
    """Half of the edges at random among a sixth as many vertices, half in paths of 16."""
    chance = np.random.default_rng(3)
    half = edges // 2
    vertices = edges // 6
    starts = np.arange(half) + 10_000_000
    in_path = np.arange(half) % 16 != 15
    a = np.concatenate([chance.integers(0, vertices, half), starts[in_path]])
    b = np.concatenate([chance.integers(0, vertices, half), starts[in_path] + 1])
    return pa.table({"a": a, "b": b})


def prepared(env: ExecutionEnvironment, edges: pa.Table) -> tuple[Any, Any]:
    """Links both ways, and vertices that are components of their own."""
    links = env.from_arrow(pa.table({"a": pa.concat_arrays([*edges["a"].chunks, *edges["b"].chunks]),
                                     "b": pa.concat_arrays([*edges["b"].chunks, *edges["a"].chunks])}))  # fmt: skip
    return links, links.select(vertex=col("a")).distinct().select("vertex", component=col("vertex"))


def candidates_of(vertices: Any, links: Any) -> Any:
    """For every neighbour of a vertex the least component that it might join."""
    pairs = vertices.join(links).where("vertex").equal_to("a").project_second("b").project_first("component")
    return pairs.select(vertex=col("b"), component=col("component")).group_by("vertex").min("component")


def by_delta(env: ExecutionEnvironment, edges: pa.Table, supersteps: int, times: list[float]) -> Any:
    """The components by delta iteration."""
    links, vertices = prepared(env, edges)
    loop = vertices.iterate_delta(vertices, supersteps, "vertex")
    loop.register_aggregation_convergence_criterion("time", LongCounter(), clock(times))
    better = (
        candidates_of(loop.get_workset(), links)
        .select("vertex", new=col("component"))
        .join(loop.get_solution_set())
        .where("vertex")
        .equal_to("vertex")
        .project_first("vertex", "new")
        .project_second("component")
    )
    changed = better.filter(col("new") < col("component")).select("vertex", component=col("new"))
    return loop.close_with(changed, changed)


def by_bulk(env: ExecutionEnvironment, edges: pa.Table, supersteps: int, times: list[float]) -> Any:
    """The components by bulk iteration."""
    links, vertices = prepared(env, edges)
    loop = vertices.iterate(supersteps)
    loop.register_aggregation_convergence_criterion("time", LongCounter(), clock(times))
    return loop.close_with(loop.union(candidates_of(loop, links)).group_by("vertex").min("component"))


def clock(times: list[float]) -> Any:
    """A criterion that never ends anything, and notes when it was asked."""

    def criterion(_superstep: int, _value: Any) -> bool:
        times.append(time.perf_counter())
        return False

    return criterion


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--supersteps", type=int, default=30)
    options = parser.parse_args()
    edges = graph(options.edges)
    with ExecutionEnvironment.get_execution_environment("spark", address="local", start_timeout_ms=300_000) as env:
        env.generate_sequence(0, 9).map(lambda n: n).count()  # everything is up
        delta_times, started = [], time.perf_counter()
        found = by_delta(env, edges, options.supersteps, delta_times).to_arrow()
        delta_seconds = time.perf_counter() - started
        (told,) = env.get_last_job_execution_result().statistics["iterations"].values()
        bulk_times: list[float] = []
        started = time.perf_counter()
        expected = by_bulk(env, edges, told["supersteps"], bulk_times).to_arrow()
        bulk_seconds = time.perf_counter() - started
    print(f"{edges.num_rows:,} edges, {found.num_rows:,} vertices, {told['supersteps']} supersteps")
    print(f"delta {delta_seconds:.1f} s, bulk {bulk_seconds:.1f} s, equal {ordered(found).equals(ordered(expected))}")
    print("superstep   workset     delta   seconds   bulk seconds")
    for i in range(1, told["supersteps"]):
        seconds = (times[i] - times[i - 1] for times in (delta_times, bulk_times))
        sizes = told["workset_sizes"][i], told["delta_sizes"][i]
        print("{:9d} {:9,d} {:9,d} {:9.2f} {:14.2f}".format(i + 1, *sizes, *seconds))


def ordered(table: pa.Table) -> pa.Table:
    """By vertex."""
    return table.select(["vertex", "component"]).sort_by("vertex").combine_chunks().replace_schema_metadata(None)


if __name__ == "__main__":
    main()
