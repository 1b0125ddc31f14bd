"""Queries of many operators: ``python tests/bench/large_plans.py [--operators 100] [views unions ...]``.

Of each shape: processor seconds of this process to create its views, to plan it, and to run it over three rows from its
submission to its last row, with all hosts in this process; twice, for half as many operators, too. What takes twice as
long for twice as many is as it should be; four times says that something looks at all for each.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable

import pyarrow as pa
from measure import describe_machine

from headrace.table import TableEnvironment


def views(env: TableEnvironment, count: int) -> str:
    """Projections and conditions on each other."""
    return _chain(env, count, "SELECT k, v + 1 AS v FROM {below} WHERE v > 0")


def groups(env: TableEnvironment, count: int) -> str:
    """Groups of groups: each is an exchange and state."""
    return _chain(env, count, "SELECT k, SUM(v) AS v FROM {below} GROUP BY k")


def unions(_env: TableEnvironment, count: int) -> str:
    """One union of many."""
    return " UNION ALL ".join(f"SELECT k, v + {number} AS v FROM v0" for number in range(count))


def joins(_env: TableEnvironment, count: int) -> str:
    """A table joined with itself, one join behind the other."""
    others = (f"JOIN v0 AS t{number} ON t0.k = t{number}.k" for number in range(1, count + 1))
    return f"SELECT t0.k, t0.v FROM v0 AS t0 {' '.join(others)}"


def doublings(env: TableEnvironment, count: int) -> str:
    """Each level reads the one below twice."""
    return _chain(env, count, "SELECT a.k, a.v FROM {below} AS a JOIN {below} AS b ON a.k = b.k")


SHAPES: dict[str, Callable[[TableEnvironment, int], str]] = {
    one.__name__: one for one in (views, groups, unions, joins, doublings)
}


def _chain(env: TableEnvironment, count: int, query: str) -> str:
    for number in range(1, count + 1):
        env.execute_sql(f"CREATE VIEW v{number} AS {query.format(below=f'v{number - 1}')}")
    return f"SELECT * FROM v{count}"


def seconds_of(shape: str, count: int) -> list[float]:
    """Processor seconds to create, to plan and to run."""
    with TableEnvironment.create(parallelism=2, actor_system="local") as env:
        env.create_temporary_view("v0", pa.table({"k": [1, 2, 3], "v": [1, 2, 3]}))
        marks = [time.process_time()]
        text = SHAPES[shape](env, count)
        marks.append(time.process_time())
        env.explain_sql(text)
        marks.append(time.process_time())
        env.execute_sql(text).to_arrow()
        marks.append(time.process_time())
    return [after - before for before, after in itertools.pairwise(marks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="shape", help=", ".join(SHAPES))
    parser.add_argument("--operators", type=int, default=100)
    options = parser.parse_args()
    print(describe_machine())
    seconds_of("groups", 2)  # loads and compiles what all need
    print(f"{'':10} {'operators':>9} {'create':>8} {'plan':>8} {'run':>8}  CPU s")
    for shape in options.shapes or SHAPES:
        for count in (options.operators // 2, options.operators):
            print(f"{shape:10} {count:>9} {' '.join(f'{one:>8.2f}' for one in seconds_of(shape, count))}", flush=True)


if __name__ == "__main__":
    main()
