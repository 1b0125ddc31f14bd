"""Sorting the input of a batch within its budget: peak memory beside it, for a little input and for a lot.

``python tests/bench/batch_sort.py`` sorts 2,000,000 rows of 1 KB in 64 MB of managed memory; about five minutes on one
core. Each size runs in a process of its own, all in one (the local actor system), so its peak of resident memory has
everything: Python and its libraries, batches in flight, and what is sorted. Memory is flat if the large input takes no
more than the small one. CPU time is put beside the same program that does not sort: without keys.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

from measure import DiscardSink, describe_machine

from headrace import KeyedProcessFunction, RuntimeExecutionMode, StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource

ROW_BYTES = 1_000
NUM_KEYS = 100_003


def make_row(index: int) -> dict[str, Any]:
    number = index * 7_919 % 1_000_000_007
    return {"key": number % NUM_KEYS, "n": index, "text": f"{number:012}" * (ROW_BYTES // 12)}


class InRuns(KeyedProcessFunction):  # type: ignore[type-arg]
    """Fails unless records come one key after another, each key's in the order of arrival; if they are sorted."""

    def __init__(self, *, sorts: bool) -> None:
        self.sorts = sorts

    def open(self, context: Any) -> None:
        self.key, self.n, self.num_runs = None, -1, 0

    def process_element(self, value: dict[str, Any], context: Any) -> Any:
        if value["key"] != self.key:
            self.key, self.n = value["key"], -1
            self.num_runs += 1
            if self.sorts and self.num_runs > NUM_KEYS:
                message = "a key came twice"
                raise AssertionError(message)
        if value["n"] <= self.n:
            message = f"{value['n']} came behind {self.n}"
            raise AssertionError(message)
        self.n = value["n"]
        yield value


def run(num_rows: int, memory_mb: int, *, sorts: bool) -> dict[str, float]:
    """Run the program in this process; gives its CPU seconds, megabytes of peak memory and of what was spilled."""
    env = StreamExecutionEnvironment.get_execution_environment(
        "local", parallelism=1, managed_memory_bytes=memory_mb << 20
    )
    env.set_runtime_mode(RuntimeExecutionMode.BATCH if sorts else RuntimeExecutionMode.STREAMING)
    stream = env.from_source(GeneratorSource(make_row, count=num_rows, number_of_splits=1), None, "rows")
    stream.key_by(lambda row: row["key"]).process(InRuns(sorts=sorts)).sink_to(DiscardSink())
    started, metrics = time.process_time(), {}
    client = env.execute_async("sort")
    for view in client.views():
        for vertex in view.vertices:
            for operator in vertex.operators:
                metrics.update(operator.metrics)
    client.result()
    seconds = time.process_time() - started
    env.close()
    return {
        "seconds": seconds,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024,
        "budget_mb": metrics.get("sorted_input.memory_bytes", 0) / 2**20,
        "spilled_mb": metrics.get("sorted_input.spilled_bytes", 0) / 2**20,
    }


def in_own_process(num_rows: int, memory_mb: int, *, sorts: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", str(int(sorts)), "--rows", str(num_rows)]
    done = subprocess.run([*command, "--memory-mb", str(memory_mb)], stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--memory-mb", type=int, default=64, help="managed memory of the one slot")
    parser.add_argument("--child", choices=("0", "1"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(run(options.rows, options.memory_mb, sorts=options.child == "1")))
        return
    print(describe_machine(), f"; spills go to {tempfile.gettempdir()}", sep="")
    nothing = in_own_process(1_000, options.memory_mb, sorts=True)
    stream = in_own_process(options.rows, options.memory_mb, sorts=False)
    print(f"1,000 rows: peak {nothing['peak_mb']:.0f} MB; {options.memory_mb} MB are managed", flush=True)
    print(
        f"{options.rows:,} rows, as a stream: peak {stream['peak_mb']:.0f} MB, {stream['seconds']:.0f} CPU s",
        flush=True,
    )
    for num_rows in (options.rows // 10, options.rows):
        found = in_own_process(num_rows, options.memory_mb, sorts=True)
        above = found["peak_mb"] - nothing["peak_mb"]
        size_mb = num_rows * ROW_BYTES / 2**20
        print(
            f"{num_rows:,} rows ({size_mb:,.0f} MB), sorted: peak {found['peak_mb']:.0f} MB, {above:.0f} MB above 1,000"
            f" rows beside a budget of {options.memory_mb} MB ({above / options.memory_mb:.2f} of it);"
            f" {found['spilled_mb']:,.0f} MB spilled ({found['spilled_mb'] / size_mb:.2f} of the input),"
            f" {found['seconds']:.0f} CPU s"
            f" ({found['seconds'] / stream['seconds'] * options.rows / num_rows:.2f} of the stream)",
            flush=True,
        )


if __name__ == "__main__":
    main()
