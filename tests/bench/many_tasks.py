"""What a slot of many tasks gets done: records by second of processor time, with debloating and without.

    python tests/bench/many_tasks.py [--vertices 20 50 200] [--parallelism 5] [--warm-up 25] [--seconds 8]

Numbers pass so many operators, each in a chain of its own, in a cluster within this process, so that each slot has a
task of every operator. Counted is what all tasks read once the job has run for a while, and what they take from the
source. Each pair of lines is of two jobs, one after the other.
"""

from __future__ import annotations

import argparse
import gc
import time

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.task.task import Task


def num_read(tasks: list[Task], *, of_sources: bool) -> int:
    return sum(int(task.metrics._numbers()["records_in"]) for task in tasks if task.is_source or not of_sources)


def measured(num_vertices: int, options: argparse.Namespace, *, debloating: bool) -> tuple[float, float]:
    """Records of all tasks, and of sources, by second of processor time."""
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=options.parallelism) as env:
        env.set_buffer_debloating(debloating)
        numbers = env.from_source(GeneratorSource(lambda n: n), WatermarkStrategy.no_watermarks(), "numbers")
        for _ in range(num_vertices):
            numbers = numbers.filter(lambda _n: True).start_new_chain()
        numbers.filter(lambda _n: False).print()
        client = env.execute_async("many tasks")
        time.sleep(options.warm_up)
        tasks = [one for one in gc.get_objects() if isinstance(one, Task) and not one.state.is_terminal]
        before = [num_read(tasks, of_sources=of_sources) for of_sources in (False, True)]
        began_s = time.process_time()
        time.sleep(options.seconds)
        seconds = time.process_time() - began_s
        after = [num_read(tasks, of_sources=of_sources) for of_sources in (False, True)]
        client.cancel()
        of_all, of_source = ((then - once) / seconds for once, then in zip(before, after, strict=True))
        return of_all, of_source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vertices", type=int, nargs="+", default=[20, 50, 200])
    parser.add_argument("--parallelism", type=int, default=5)
    parser.add_argument("--warm-up", type=float, default=25, help="seconds; windows of credit grow hop by hop")
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    for num_vertices in options.vertices:
        for debloating in (True, False):
            of_all, of_source = measured(num_vertices, options, debloating=debloating)
            how = "with debloating" if debloating else "without"
            print(f"{num_vertices:4} operators, {how:16} {of_all:12,.0f} of all tasks {of_source:10,.0f} of sources")


if __name__ == "__main__":
    main()
