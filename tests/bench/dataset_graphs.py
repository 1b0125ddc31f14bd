"""Two graph algorithms on one executor, one after the other: connected components, then shortest paths.

A random graph whose components and distances plain Python computes beside it; what is printed is the time, that of
plain Python, the largest resident memory of all processes of this program together, and whether all results are equal.

    python tests/bench/dataset_graphs.py [--vertices 60000] [--edges 200000] [--executor spark] [--local-bytes N]
"""

from __future__ import annotations

import argparse
import heapq
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace import ExecutionEnvironment, FlatJoinFunction, JoinFunction, Types

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
TRIPLE = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])
UNREACHED = 2**60
Numbers = npt.NDArray[np.int64]


class Smaller(FlatJoinFunction):
    """What is smaller than what the solution set has."""

    def join(self, first: Any, second: Any) -> list[Any]:
        return [first] if first[1] < second[1] else []


class Along(JoinFunction):
    """The distance of an edge's end."""

    def join(self, first: Any, second: Any) -> Any:
        return second[1], first[1] + second[2]


def components(env: ExecutionEnvironment, start: Numbers, end: Numbers, num_vertices: int) -> Any:
    """The least vertex of each vertex's component."""
    both = {"f0": np.concatenate([start, end]), "f1": np.concatenate([end, start])}
    edges = env.from_arrow(pa.table(both), type_info=PAIR)
    numbers = np.arange(num_vertices)
    vertices = env.from_arrow(pa.table({"f0": numbers, "f1": numbers}), type_info=PAIR)

    def step(solution: Any, changed: Any) -> Any:
        told = changed.join(edges).where(0).equal_to(0).project_second(1).project_first(1)
        delta = told.group_by(0).min(1).join(solution).where(0).equal_to(0).with_(Smaller(), output_type=PAIR)
        return delta, delta

    return vertices.iterate_delta(vertices, 1_000, 0, step=step)


def distances(env: ExecutionEnvironment, start: Numbers, end: Numbers, weight: Numbers, num_vertices: int) -> Any:
    """How far each vertex is from the first one."""
    edges = env.from_arrow(pa.table({"f0": start, "f1": end, "f2": weight}), type_info=TRIPLE)
    first = np.where(np.arange(num_vertices) == 0, 0, UNREACHED)
    vertices = env.from_arrow(pa.table({"f0": np.arange(num_vertices), "f1": first}), type_info=PAIR)
    begin = env.from_collection([(0, 0)], type_info=PAIR)

    def step(solution: Any, changed: Any) -> Any:
        told = changed.join(edges).where(0).equal_to(0).with_(Along(), output_type=PAIR)
        delta = told.group_by(0).min(1).join(solution).where(0).equal_to(0).with_(Smaller(), output_type=PAIR)
        return delta, delta

    return vertices.iterate_delta(begin, 1_000, 0, step=step)


def expected_components(start: Numbers, end: Numbers, num_vertices: int) -> dict[int, int]:
    """The same by plain Python: union by the least vertex."""
    parent = list(range(num_vertices))

    def root(vertex: int) -> int:
        while parent[vertex] != vertex:
            parent[vertex] = vertex = parent[parent[vertex]]
        return vertex

    for one, other in zip(start.tolist(), end.tolist(), strict=True):
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    return {vertex: root(vertex) for vertex in range(num_vertices)}


def expected_distances(start: Numbers, end: Numbers, weight: Numbers, num_vertices: int) -> dict[int, int]:
    """The same by plain Python: Dijkstra's algorithm."""
    edges: dict[int, list[tuple[int, int]]] = {}
    for one, other, far in zip(start.tolist(), end.tolist(), weight.tolist(), strict=True):
        edges.setdefault(one, []).append((other, far))
    found, todo = dict.fromkeys(range(num_vertices), UNREACHED), [(0, 0)]
    while todo:
        far, vertex = heapq.heappop(todo)
        if far < found[vertex]:
            found[vertex] = far
            for other, more in edges.get(vertex, []):
                heapq.heappush(todo, (far + more, other))
    return found


def resident_bytes() -> int:
    """Of this process and all that descend from it; what they share counts for each."""
    children: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append(int(folder.name))
        sizes[int(folder.name)] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    todo, num_bytes = [os.getpid()], 0
    while todo:
        process = todo.pop()
        num_bytes += sizes.get(process, 0)
        todo += children.get(process, [])
    return num_bytes


@contextmanager
def watched_memory() -> Iterator[list[int]]:
    """The bytes seen meanwhile."""
    seen = [resident_bytes()]
    has_ended = threading.Event()

    def watch() -> None:
        while not has_ended.wait(0.5):
            seen.append(resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        has_ended.set()
        watcher.join()


def show(name: str, env: ExecutionEnvironment, result: Any, expect: Callable[[], dict[int, int]]) -> bool:
    """Run one of them, and print its line."""
    with watched_memory() as seen:
        began = time.perf_counter()
        found = dict(result.collect())
        seconds = time.perf_counter() - began
    began = time.perf_counter()
    is_right = found == expect()
    beside = time.perf_counter() - began
    (told,) = env.get_last_job_execution_result().statistics["iterations"].values()
    print(
        f"{name:15} {told['supersteps']:10d} {seconds:9.1f} {beside:9.2f} {max(seen) >> 20:9,d}   {is_right}",
        flush=True,
    )
    return is_right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=int, default=60_000)
    parser.add_argument("--edges", type=int, default=200_000)
    parser.add_argument("--executor", default="spark", help="spark or local")
    parser.add_argument("--local-bytes", type=int, help="local_iteration_bytes; 0 for all supersteps on Spark")
    options = parser.parse_args()
    chance = np.random.default_rng(3)
    start, end = (chance.integers(0, options.vertices, options.edges) for _ in range(2))
    weight = chance.integers(1, 20, options.edges)
    settings: dict[str, Any] = {}
    if options.executor == "spark":
        settings = {"address": "local", "start_timeout_ms": 300_000}
        if options.local_bytes is not None:
            settings["local_iteration_bytes"] = options.local_bytes
    with ExecutionEnvironment.get_execution_environment(options.executor, **settings) as env:
        env.generate_sequence(0, 9).map(lambda n: n).count()  # everything is up
        print(f"{options.vertices:,} vertices, {options.edges:,} edges, {options.executor}")
        print("what            supersteps   seconds     plain   peak MB   right")
        graph = start, end
        is_right = show(
            "components",
            env,
            components(env, *graph, options.vertices),
            lambda: expected_components(*graph, options.vertices),
        )
        far = distances(env, *graph, weight, options.vertices)
        is_right &= show("shortest paths", env, far, lambda: expected_distances(*graph, weight, options.vertices))
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
