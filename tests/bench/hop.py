"""One hop between two slots by batch size: throughput and latency of batches, beside plain Ray calls of the same
payload.

``python tests/bench/hop.py``. A source in one slot, a sink in another, one channel between them.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pyarrow as pa
import ray
from measure import DiscardSink, describe_machine, steady_rate

from headrace import StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource

SIZES = (1, 100, 1_000, 10_000, 65_536)


def make_batch(start: int, count: int) -> pa.RecordBatch:
    """Three columns of 8 bytes a record."""
    numbers = np.arange(start, start + count)
    return pa.record_batch({"a": numbers, "b": numbers * 2, "c": numbers * 0.5})


def engine_rate(size: int, num_batches: int) -> float:
    """Batches per second from one slot to the other."""
    with StreamExecutionEnvironment.get_execution_environment() as env:
        env.set_parallelism(1)
        env.set_buffer_timeout(0)
        count = size * num_batches
        source = GeneratorSource.batches(make_batch, count=count, batch_size=size)
        (
            env.from_source(source, None, "batches")
            .slot_sharing_group("left")
            .rebalance()
            .map_batches(lambda batch: batch)
            .slot_sharing_group("right")
            .sink_to(DiscardSink())
        )
        return steady_rate(env, count).per_second / size


@ray.remote(num_cpus=0)
class Far:
    def take(self, batch: pa.RecordBatch) -> int:
        return batch.num_rows


def plain_rate(size: int, num_batches: int) -> tuple[float, float]:
    """Batches per second with 4 calls in flight, and the milliseconds of one call alone."""
    far = Far.remote()
    batch = make_batch(0, size)
    ray.get(far.take.remote(batch))
    started = time.perf_counter()
    flying: list[ray.ObjectRef] = []
    for _ in range(num_batches):
        if len(flying) == 4:
            ray.get(flying.pop(0))
        flying.append(far.take.remote(batch))
    ray.get(flying)
    rate = num_batches / (time.perf_counter() - started)
    started = time.perf_counter()
    for _ in range(50):
        ray.get(far.take.remote(batch))
    return rate, (time.perf_counter() - started) / 50 * 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6)
    options = parser.parse_args()
    print(describe_machine())
    print("    rows   ray call, ms  ray, batches/s  headrace, batches/s  headrace, rows/s  ratio")
    for size in SIZES:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        plain, alone_ms = plain_rate(size, 300)
        ray.shutdown()
        num_batches = int(options.seconds * max(300, min(plain * 2, 4_000)))
        engine = engine_rate(size, num_batches)
        columns = f"{size:>8,} {alone_ms:>14.2f} {plain:>15,.0f} {engine:>20,.0f} {engine * size:>17,.0f}"
        print(f"{columns} {engine / plain:>6.2f}")


if __name__ == "__main__":
    main()
