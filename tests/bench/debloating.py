"""What buffer debloating costs fast operators: jobs with and without it, in pairs.

``python tests/bench/debloating.py``. The keyed count of rows and the windowed count of columns run in one process, so
that the processor time is all of it; pairs are made in turn, each in the other order than the one before. The cost is
the share of CPU seconds that smaller batches and more messages take, starting included.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from keyed_count import make_row
from measure import DiscardSink, describe_machine

from headrace import (
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.nexmark import NexmarkSource

Build = Callable[[StreamExecutionEnvironment, int], None]


def rows(env: StreamExecutionEnvironment, num_records: int) -> None:
    times = WatermarkStrategy.for_bounded_out_of_orderness(100).with_timestamp_assigner(lambda row, _: row[2])
    numbers = env.from_source(GeneratorSource(make_row, count=num_records), times, "numbers")
    pairs = numbers.filter(lambda row: row[0] != 9).map(lambda row: (row[1], 1))
    windows = pairs.key_by(lambda pair: pair[0]).window(TumblingEventTimeWindows.of("10 s"))
    windows.reduce(lambda a, b: (a[0], a[1] + b[1])).sink_to(DiscardSink())


def columns(env: StreamExecutionEnvironment, num_records: int) -> None:
    times = WatermarkStrategy.for_bounded_out_of_orderness("4 s").with_timestamp_assigner("dateTime")
    bids = env.from_source(NexmarkSource.bids(num_records), times, "bids")
    windows = bids.key_by("auction").window(SlidingEventTimeWindows.of("10 s", "2 s"))
    windows.aggregate(n=count()).sink_to(DiscardSink())


def cpu_seconds(build: Build, num_records: int, *, is_debloated: bool) -> float:
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.set_buffer_debloating(is_debloated)
        build(env, num_records)
        before = time.process_time()
        env.execute(build.__name__)
        return time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="times as many records")
    options = parser.parse_args()
    print(describe_machine())
    for build, at_scale_1 in ((rows, 600_000), (columns, 8_000_000)):
        num_records = int(options.scale * at_scale_1)
        cpu_seconds(build, num_records // 4, is_debloated=True)  # warms up
        costs = []
        for pair in range(options.pairs):
            seconds = {}
            for is_debloated in (True, False) if pair % 2 else (False, True):
                seconds[is_debloated] = cpu_seconds(build, num_records, is_debloated=is_debloated)
            costs.append(seconds[True] / seconds[False] - 1)
        shown = ", ".join(f"{cost:+.1%}" for cost in costs)
        print(f"{build.__name__}: {statistics.median(costs):+.1%} CPU ({shown})", flush=True)


if __name__ == "__main__":
    main()
