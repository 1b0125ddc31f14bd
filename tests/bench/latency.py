"""End-to-end latency through one shuffle at a steady rate: ``python tests/bench/latency.py``. With ``--target "10 ms"``
also with a latency target.

Each record is stamped when it is made and looked at behind the shuffle, in another process or the same. The ratio is
against Ray alone: one actor calling another with as many records per call as arrive in the buffer timeout.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from measure import DiscardSink, describe_machine

from headrace import StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
from headrace.functions import MapFunction


class Stamp(MapFunction):
    """Puts the time of making on a record."""

    def map(self, value: int) -> tuple[int, float]:
        return (value, time.time())


class Measure(MapFunction):
    """Notes how long each record was on its way; writes the times when it closes."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def open(self, runtime_context: Any) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.latencies: list[float] = []

    def map(self, value: tuple[int, float]) -> int:
        self.latencies.append(time.time() - value[1])
        return value[0]

    def close(self) -> None:
        np.save(Path(self.directory) / f"latencies-{self.subtask}.npy", np.array(self.latencies))


def engine_latencies(rate: int, seconds: float, parallelism: int, target: str | None = None) -> np.ndarray:
    count = int(rate * seconds)
    with tempfile.TemporaryDirectory() as directory:
        with StreamExecutionEnvironment.get_execution_environment() as env:
            env.set_parallelism(parallelism)
            if target is not None:
                env.set_latency_target(target)
            (
                env.from_source(GeneratorSource(int, count=count, records_per_second=rate), None, "numbers")
                .map(Stamp())
                .key_by(lambda pair: pair[0] % 1000)
                .map(Measure(directory))
                .sink_to(DiscardSink())
            )
            env.execute("latency")
        parts = [np.load(path) for path in sorted(Path(directory).glob("*.npy"))]
        # The first second is warming up.
        return np.concatenate([part[rate // max(1, len(parts)) :] for part in parts])


@ray.remote(num_cpus=0)
class Far:
    def take(self, pairs: list[tuple[int, float]]) -> list[float]:
        now = time.time()
        return [now - at for _, at in pairs]


def plain_latencies(rate: int, seconds: float) -> np.ndarray:
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    far = Far.remote()
    ray.get(far.take.remote([]))
    size = max(1, rate * 5 // 1000)
    calls = []
    started = time.perf_counter()
    for i in range(int(seconds * 200)):
        calls.append(far.take.remote([(n, time.time()) for n in range(size)]))
        while time.perf_counter() < started + (i + 1) / 200:
            pass
    result = np.concatenate([np.array(times) for times in ray.get(calls)])
    ray.shutdown()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--target", help="a latency target, to be measured beside none")
    options = parser.parse_args()
    print(describe_machine())
    plain = 1_000 * plain_latencies(options.rate, min(5.0, options.seconds))
    engine = 1_000 * engine_latencies(options.rate, options.seconds, options.parallelism)
    runs = [("ray calls every 5 ms", plain), ("headrace", engine)]
    if options.target is not None:
        aimed = engine_latencies(options.rate, options.seconds, options.parallelism, options.target)
        runs.append((f"headrace, target {options.target}", 1_000 * aimed))
    for name, times in runs:
        p50, p90, p99 = np.percentile(times, (50, 90, 99))
        print(f"{name}: p50 {p50:.1f} ms, p90 {p90:.1f} ms, p99 {p99:.1f} ms over {len(times):,} records")
    print(f"ratio of p99: {np.percentile(engine, 99) / np.percentile(plain, 99):.2f}")


if __name__ == "__main__":
    main()
