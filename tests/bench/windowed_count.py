"""Windowed count on the columnar path: Nexmark bids, sliding 10 s / 2 s, by auction, all seven columns of every bid
made in the same job.

``python tests/bench/windowed_count.py``. The ratio is against one process that makes the same bids and counts them
per auction and slice with pyarrow's group_by: no channels, no watermarks, no state, no checkpoints, no firing.
"""

from __future__ import annotations

import argparse

import pyarrow as pa
import pyarrow.compute as pc
from measure import DiscardSink, Rate, describe_machine, plain_rate, steady_rate

from headrace import SlidingEventTimeWindows, StreamExecutionEnvironment, WatermarkStrategy, count
from headrace.connectors.nexmark import NexmarkGenerator, NexmarkSource


def engine_rate(num_bids: int, parallelism: int) -> Rate:
    with StreamExecutionEnvironment.get_execution_environment() as env:
        env.set_parallelism(parallelism)
        (
            env.from_source(
                NexmarkSource.bids(num_bids),
                WatermarkStrategy.for_bounded_out_of_orderness("4 s").with_timestamp_assigner("dateTime"),
                "bids",
            )
            .key_by("auction")
            .window(SlidingEventTimeWindows.of("10 s", "2 s"))
            .aggregate(n=count())
            .sink_to(DiscardSink())
        )
        return steady_rate(env, num_bids)


def count_plainly(num_bids: int) -> int:
    generator = NexmarkGenerator()
    for start in range(0, num_bids, 65_536):
        columns = generator.bids(start, min(65_536, num_bids - start)).columns
        slices = pc.divide(columns["dateTime"].cast(pa.int64()), 2_000)
        table = pa.table({"auction": columns["auction"], "slice": slices})
        table.group_by(["auction", "slice"], use_threads=False).aggregate([([], "count_all")])
    return num_bids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bids", type=int, default=60_000_000)
    parser.add_argument("--parallelism", type=int, default=2)
    options = parser.parse_args()
    print(describe_machine())
    count_plainly(65_536)  # builds the generator's pools
    plain = plain_rate(lambda: count_plainly(min(options.bids, 10_000_000)))
    engine = engine_rate(options.bids, options.parallelism)
    print(f"plain loop over pyarrow, one process: {plain}")
    print(f"headrace, parallelism {options.parallelism}: {engine}")
    print(f"ratio: {engine.ratio_to(plain)}")


if __name__ == "__main__":
    main()
