"""A keyed process function that counts in value state: heap and RocksDB, uniform and hot keys.

``python tests/bench/keyed_state.py``. One line per figure. The ratio is against a plain loop with one dictionary in one
process over the same records.
"""

from __future__ import annotations

import argparse
from typing import Any

from measure import DiscardSink, Rate, describe_machine, plain_rate, steady_rate

from headrace import KeyedProcessFunction, RocksDBStateBackend, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.connectors.datagen import GeneratorSource

NUM_HOT_KEYS = 1_000
NUM_KEYS = 1_000_000


class Count(KeyedProcessFunction):
    """Counts the records of each key."""

    def open(self, context: Any) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: int, context: Any) -> None:
        self._count.update(self._count.value() + 1)


def key_maker(num_keys: int) -> Any:
    """Keys that jump about: no key twice in a row, each as often as any other."""
    return lambda index: index * 7_919 % num_keys


def engine_rate(num_records: int, num_keys: int, parallelism: int, backend: Any) -> Rate:
    with StreamExecutionEnvironment.get_execution_environment() as env:
        env.set_parallelism(parallelism)
        env.set_state_backend(backend)
        numbers = env.from_source(GeneratorSource(key_maker(num_keys), count=num_records), source_name="numbers")
        numbers.key_by(lambda key: key).process(Count()).sink_to(DiscardSink())
        return steady_rate(env, num_records)


def count_plainly(num_records: int, num_keys: int) -> int:
    make, counts = key_maker(num_keys), {}
    for index in range(num_records):
        key = make(index)
        counts[key] = counts.get(key, 0) + 1
    return num_records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--keys", type=int, default=NUM_KEYS, help="of the uniform case")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--memory-mb", type=int, default=256, help="managed memory of a slot")
    options = parser.parse_args()
    print(describe_machine())
    backends = {"heap": "heap", "rocksdb": RocksDBStateBackend(options.memory_mb << 20)}
    for name, num_keys in (("hot", NUM_HOT_KEYS), ("uniform", options.keys)):
        plain = plain_rate(lambda num_keys=num_keys: count_plainly(min(options.records, 3_000_000), num_keys))
        print(f"{name}, {num_keys:,} keys, plain dictionary in one process: {plain}")
        for backend in backends:
            rate = engine_rate(options.records, num_keys, options.parallelism, backends[backend])
            print(f"{name}, {num_keys:,} keys, {backend}, parallelism {options.parallelism}: {rate}")
            print(f"{name}, {num_keys:,} keys, {backend}, ratio to the plain dictionary: {rate.ratio_to(plain)}")


if __name__ == "__main__":
    main()
