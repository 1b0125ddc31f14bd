"""From nothing to the first record: ``python tests/bench/startup.py``.

Each run is a process of its own that imports Headrace, starts a Ray of its own on this machine and takes the first
record of a job of a hundred numbers. The ratio is against Ray alone, in a process of its own: import, start, and one
call each to as many actors as the job has slots, made once one more has answered.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from measure import describe_machine

IMPORT = "import headrace"

FIRST_RECORD = """
import time
started = time.perf_counter()
from headrace import StreamExecutionEnvironment
with StreamExecutionEnvironment.get_execution_environment() as env:
    env.set_parallelism(2)
    with env.from_collection(list(range(100))).map(lambda n: n + 1).execute_and_collect() as rows:
        next(iter(rows))
        print(time.perf_counter() - started)
"""

RAY_ALONE = """
import time
started = time.perf_counter()
import logging
import ray
ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
@ray.remote(num_cpus=0)
class Actor:
    def answer(self):
        return 1
first = Actor.remote()
ray.get(first.answer.remote())
others = [Actor.remote() for _ in range(2)]
ray.get([other.answer.remote() for other in others])
print(time.perf_counter() - started)
"""


def inner_seconds(program: str) -> float:
    """What the program itself says it took, from its first line on."""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def outer_seconds(program: str) -> float:
    """How long a process with the program takes from beginning to end."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(describe_machine())
    empty, importing, alone, engine = [], [], [], []
    for _ in range(options.repeats):  # in turn, so that all see the same disturbances
        empty.append(outer_seconds("pass"))
        importing.append(outer_seconds(IMPORT))
        alone.append(inner_seconds(RAY_ALONE))
        engine.append(inner_seconds(FIRST_RECORD))
    print(
        f"import headrace: {statistics.median(importing) - statistics.median(empty):.3f} s (beside Python's own start)"
    )
    print(f"ray alone to the third actor: {statistics.median(alone):.2f} s (median of {options.repeats})")
    print(f"headrace to the first record: {statistics.median(engine):.2f} s, worst {max(engine):.2f} s")
    print(f"ratio: {statistics.median(engine) / statistics.median(alone):.2f}")


if __name__ == "__main__":
    main()
