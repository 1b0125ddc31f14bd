"""What a poll of a source costs by the number of its splits: microseconds of processor time.

    python tests/bench/many_splits.py [--splits 10 1000 10000] [--polls 3000]

One reader has all splits of a generator, as fast as possible and with a rate. Each poll gives ten records at most.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from source_harness import MONOTONOUS, Harness

from headrace.connectors.datagen import GeneratorSource
from headrace.engine.connectors.contract import EnumeratorContext
from headrace.engine.connectors.sources import PollResult


def poll_us(num_splits: int, num_polls: int, records_per_second: float | None) -> float:
    source = GeneratorSource(lambda n: n, None, records_per_second, number_of_splits=num_splits)
    driven = Harness(source, MONOTONOUS.with_idleness("1 s"))
    driven.operator.add_splits(source.create_enumerator(EnumeratorContext(1)).discover().splits)
    began_s = time.process_time()
    for _ in range(num_polls):
        if driven.operator.poll_next(10) is PollResult.NOTHING:
            driven.now_ms = driven.operator.next_poll_ms()
    return 1e6 * (time.process_time() - began_s) / num_polls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, nargs="+", default=[10, 1_000, 10_000])
    parser.add_argument("--polls", type=int, default=3_000)
    options = parser.parse_args()
    for rate in (None, 10_000.0):
        costs = [poll_us(num_splits, options.polls, rate) for num_splits in options.splits]
        for num_splits, cost_us in zip(options.splits, costs, strict=True):
            how = "as fast as possible" if rate is None else f"{rate:,.0f} records/s"
            print(f"{num_splits:6} splits, {how:20} {cost_us:8.1f} us a poll, {cost_us / costs[0]:4.1f} of the first")


if __name__ == "__main__":
    main()
