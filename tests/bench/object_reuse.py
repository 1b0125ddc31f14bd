"""What it costs that functions may change their records: jobs with and without object reuse, in pairs.

``python tests/bench/object_reuse.py``. Each job runs in one process, so that the processor time is all of it; pairs are
made in turn, each in the other order than the one before. The cost is the share of CPU seconds that copies take.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from measure import DiscardSink, describe_machine

from headrace import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from headrace.connectors.datagen import GeneratorSource

Build = Callable[[Any], None]


def as_dict(n: int) -> dict[str, Any]:
    return {"id": n, "kind": n % 10, "name": "abc", "price": n * 0.5, "at": n}


def as_nested(n: int) -> dict[str, Any]:
    return {"id": n, "tags": ["a", "b"], "place": {"x": n, "y": -n}}


def as_tuple(n: int) -> tuple[int, int, str]:
    return (n, n % 10, "abc")


class Count(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int, 0))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update(self.count.value() + 1)
        yield value


def chain(stream: Any) -> None:
    """Nobody shares anything: nothing is copied."""
    stream.map(lambda row: row).map(lambda row: row).sink_to(DiscardSink())


def fan_out(stream: Any) -> None:
    """Three functions read the same records."""
    for _ in range(3):
        stream.map(lambda row: row).sink_to(DiscardSink())


def keyed(stream: Any) -> None:
    """A function with state, whose results are copied."""
    stream.key_by(lambda row: hash(row["id"]) % 1000 if type(row) is dict else row[0] % 1000).process(Count()).sink_to(
        DiscardSink()
    )


def cpu_seconds(build: Build, make: Callable[[int], Any], num_records: int, *, reuse: bool) -> float:
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
        if reuse:
            env.enable_object_reuse()
        build(env.from_source(GeneratorSource(make, count=num_records), None, "records"))
        before = time.process_time()
        env.execute(build.__name__)
        return time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    print(describe_machine())
    for make in (as_tuple, as_dict, as_nested):
        for build in (chain, fan_out, keyed):
            costs = []
            for pair in range(options.pairs):
                seconds = {}
                for reuse in (True, False) if pair % 2 else (False, True):
                    seconds[reuse] = cpu_seconds(build, make, options.records, reuse=reuse)
                costs.append(seconds[False] / seconds[True] - 1)
            shown = ", ".join(f"{cost:+.1%}" for cost in costs)
            print(f"{build.__name__:8} of {make.__name__:9}: {statistics.median(costs):+.1%} CPU ({shown})", flush=True)


if __name__ == "__main__":
    main()
