"""Keyed tumbling window count with plain Python functions (the row path), with and without checkpoints every second.

``python tests/bench/keyed_count.py``. The ratio is against a plain loop in one process over the same records: filter,
map, dictionary per window; it is printed as the program stands, and with ``combinable()`` windows, whose records are
reduced before the shuffle as well. With ``--checkpoints`` pairs of runs with and without checkpoints are made in
turn, each pair in the other order than the one before, as machines become slower and faster by themselves; the cost
is the share of throughput that checkpoints take.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile

from measure import DiscardSink, Rate, describe_machine, plain_rate, steady_rate

from headrace import StreamExecutionEnvironment, TumblingEventTimeWindows, WatermarkStrategy
from headrace.connectors.datagen import GeneratorSource

NUM_KEYS = 10_000


def make_row(index: int) -> tuple[int, int, int]:
    """Kind, key, event time in ms: a hundred records a millisecond."""
    return (index % 10, index * 7919 % NUM_KEYS, index // 100)


def engine_rate(num_records: int, parallelism: int, checkpoint_ms: int | None, *, is_combined: bool = False) -> Rate:
    with tempfile.TemporaryDirectory() as directory, StreamExecutionEnvironment.get_execution_environment() as env:
        env.set_parallelism(parallelism)
        if checkpoint_ms is not None:
            env.enable_checkpointing(checkpoint_ms, directory=directory)
        windows = (
            env.from_source(
                GeneratorSource(make_row, count=num_records),
                WatermarkStrategy.for_bounded_out_of_orderness(100).with_timestamp_assigner(lambda row, _: row[2]),
                "numbers",
            )
            .filter(lambda row: row[0] != 9)
            .map(lambda row: (row[1], 1))
            .key_by(lambda pair: pair[0])
            .window(TumblingEventTimeWindows.of("10 s"))
        )
        if is_combined:
            windows.combinable()
        windows.reduce(lambda a, b: (a[0], a[1] + b[1])).sink_to(DiscardSink())
        return steady_rate(env, num_records)


def count_plainly(num_records: int) -> int:
    keep = lambda row: row[0] != 9
    to_pair = lambda row: (row[1], 1)
    add = lambda a, b: (a[0], a[1] + b[1])
    windows: dict[int, dict[int, tuple[int, int]]] = {}
    for index in range(num_records):
        row = make_row(index)
        if keep(row):
            pair = to_pair(row)
            counts = windows.setdefault(row[2] // 10_000, {})
            old = counts.get(pair[0])
            counts[pair[0]] = pair if old is None else add(old, pair)
    return num_records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=12_000_000)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument(
        "--checkpoints", type=int, metavar="PAIRS", help="measure the cost of checkpoints over so many pairs"
    )
    parser.add_argument("--interval-ms", type=int, default=1_000, help="of these checkpoints")
    options = parser.parse_args()
    print(describe_machine())
    if options.checkpoints:
        ratios = []
        for number in range(options.checkpoints):
            rates = {}
            every_ms = options.interval_ms
            for interval_ms in (None, every_ms) if number % 2 == 0 else (every_ms, None):
                rates[interval_ms] = engine_rate(options.records, options.parallelism, interval_ms)
            without, with_them = rates[None], rates[every_ms]
            ratios.append(
                (with_them.per_second / without.per_second, with_them.per_cpu_second / without.per_cpu_second)
            )
            print(f"without {without}; with {with_them}; ratios {ratios[-1][0]:.3f}, {ratios[-1][1]:.3f}")
        by_time, by_cpu = (100 * (1 - statistics.median(ratio)) for ratio in zip(*ratios, strict=True))
        print(
            f"cost of a checkpoint every {options.interval_ms} ms: {by_time:.1f} % of throughput, "
            f"{by_cpu:.1f} % by CPU second (medians)"
        )
        return
    plain = plain_rate(lambda: count_plainly(min(options.records, 2_000_000)))
    print(f"plain Python loop, one process: {plain}")
    for is_combined in (False, True):
        engine = engine_rate(options.records, options.parallelism, None, is_combined=is_combined)
        how = ", combinable" if is_combined else ""
        print(f"headrace, parallelism {options.parallelism}{how}: {engine}; ratio: {engine.ratio_to(plain)}")


if __name__ == "__main__":
    main()
