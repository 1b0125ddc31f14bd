"""Programs whose windows combine records before the shuffle.

By key and of all, by a function of records and by one with accumulators. Nothing is late, so the answer does not
depend on timing.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

from headrace import AggregateFunction, SlidingEventTimeWindows, StreamExecutionEnvironment, TumblingEventTimeWindows
from headrace.connectors.files import FileSink

from .programs import Program, Record, freeze

__all__ = ["COMBINED_WINDOWS"]


class Mean(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: Record, accumulator: list[int]) -> list[int]:
        return [accumulator[0] + value["value"], accumulator[1] + 1]

    def get_result(self, accumulator: list[int]) -> Any:
        return accumulator

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return [acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]]


def combined_windows(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    of_all, reduces = rng.random() < 0.3, rng.random() < 0.5
    size, slide = rng.choice(((30, 30), (100, 100), (60, 20), (30, 45)))
    assigner = TumblingEventTimeWindows.of(size) if size == slide else SlidingEventTimeWindows.of(size, slide)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        stream = source(env)
        windows = stream.window_all(assigner) if of_all else stream.key_by(lambda row: row["key"]).window(assigner)
        windows.combinable()

        def told(key: Any, context: Any, results: Any) -> Any:
            for result in results:
                total, number = (result["value"], result.get("n", 1)) if reduces else result
                yield {"key": key, "start": context.window().start, "sum": total, "n": number}

        function = told if not of_all else lambda context, results: told("all", context, results)
        result = windows.reduce(_added, function) if reduces else windows.aggregate(Mean(), function)
        result.sink_to(FileSink.json_lines(path))

    values: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in (row for rows in splits for row in rows):
        for start in range(row["ts"] - row["ts"] % slide, row["ts"] - size, -slide):
            values["all" if of_all else row["key"], start].append(row["value"])
    expected = Counter(
        freeze({"key": key, "start": start, "sum": sum(found), "n": len(found)})
        for (key, start), found in values.items()
    )
    return Program(f"combined_windows/{size}/{slide}/{of_all}/{reduces}", build, expected)


def _added(left: Record, right: Record) -> Record:
    return {"value": left["value"] + right["value"], "n": left.get("n", 1) + right.get("n", 1)}


COMBINED_WINDOWS = (combined_windows,)
