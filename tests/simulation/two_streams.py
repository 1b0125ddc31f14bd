"""Programs over two streams, for the simulator: connected, broadcast and joined ones.

Both streams read the same numbers, each by a source of its own, so they drift apart as the faults will have it. Nothing
is late, so what is joined, and what a timer knows when it fires, does not depend on timing.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

from simulation.programs import Program, Record, freeze

from headrace import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)
from headrace.connectors.files import FileSink

RULES = MapStateDescriptor("rules")


def end_of_hundred(time: int) -> int:
    return time - time % 100 + 99


class CountBoth(KeyedCoProcessFunction):
    """When event time has passed a hundred, tells how many records of each stream a key had in it."""

    def open(self, runtime_context: Any) -> None:
        self.counts = runtime_context.get_state(ValueStateDescriptor("counts"))

    def process_element1(self, value: Record, ctx: Any) -> None:
        self.count(0, value, ctx)

    def process_element2(self, value: Record, ctx: Any) -> None:
        self.count(1, value, ctx)

    def count(self, which: int, value: Record, ctx: Any) -> None:
        end = end_of_hundred(value["ts"])
        counts = dict(self.counts.value() or {})
        of_both = list(counts.get(end, (0, 0)))
        of_both[which] += 1
        counts[end] = tuple(of_both)
        self.counts.update(counts)
        ctx.timer_service().register_event_time_timer(end)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        counts = dict(self.counts.value())
        first, second = counts.pop(timestamp)
        if counts:
            self.counts.update(counts)
        else:
            self.counts.clear()
        yield {"key": ctx.get_current_key(), "end": timestamp, "first": first, "second": second}


def co_process(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    parallelism = rng.randint(1, 3)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        first, second = source(env), source(env).filter(lambda row: row["value"] > 20)
        (
            first.connect(second)
            .key_by(lambda row: row["key"], lambda row: row["key"])
            .process(CountBoth())
            .set_parallelism(parallelism)
            .sink_to(FileSink.json_lines(path))
        )

    counts: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for rows in splits:
        for row in rows:
            place = counts[(row["key"], end_of_hundred(row["ts"]))]
            place[0] += 1
            place[1] += row["value"] > 20
    expected = Counter(
        freeze({"key": key, "end": end, "first": first, "second": second})
        for (key, end), (first, second) in counts.items()
    )
    return Program(f"co_process/{parallelism}", build, expected)


class TellKnownRules(KeyedBroadcastProcessFunction):
    """When event time has passed a record, tells how many broadcast records that are not younger are known."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", default=0))

    def process_element(self, value: Record, ctx: Any) -> None:
        self.count.update(self.count.value() + 1)
        ctx.timer_service().register_event_time_timer(value["ts"])

    def process_broadcast_element(self, value: Record, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put((value["split"], value["seq"]), value["ts"])

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        known = sum(1 for time in ctx.get_broadcast_state(RULES).values() if time <= timestamp)
        yield {"key": ctx.get_current_key(), "time": timestamp, "known": known}


def broadcast_rules(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    parallelism = rng.randint(1, 3)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        rules = source(env).filter(lambda row: row["seq"] % 5 == 0).broadcast(RULES)
        (
            source(env)
            .key_by(lambda row: row["key"])
            .connect(rules)
            .process(TellKnownRules())
            .set_parallelism(parallelism)
            .sink_to(FileSink.json_lines(path))
        )

    rules = [row["ts"] for rows in splits for row in rows if row["seq"] % 5 == 0]
    expected = Counter(
        {
            freeze({"key": row["key"], "time": row["ts"], "known": sum(time <= row["ts"] for time in rules)})
            for rows in splits
            for row in rows
        }
    )
    return Program(f"broadcast_rules/{parallelism}", build, expected)


def interval_join(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    parallelism = rng.randint(1, 3)
    lower = rng.choice((-30, -7, 0, 5))
    upper = lower + rng.choice((0, 10, 45))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        left, right = source(env).key_by("key"), source(env).key_by("key")
        (
            left.interval_join(right)
            .between(lower, upper)
            .process(lambda a, b, ctx: [{"a": number(a), "b": number(b), "at": ctx.get_timestamp()}])
            .set_parallelism(parallelism)
            .sink_to(FileSink.json_lines(path))
        )

    expected = Counter(
        freeze({"a": number(a), "b": number(b), "at": max(a["ts"], b["ts"])})
        for a, b in same_key(splits)
        if a["ts"] + lower <= b["ts"] <= a["ts"] + upper
    )
    return Program(f"interval_join/{lower}/{upper}/{parallelism}", build, expected)


def temporal_join(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    parallelism = rng.randint(1, 3)
    how = rng.choice(("inner", "left"))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        versions = source(env).filter(lambda row: row["seq"] % 4 == 0)
        (
            source(env)
            .key_by("key")
            .temporal_join(versions.key_by("key"), how=how)
            .apply(lambda a, b: {"a": number(a), "since": b and b["ts"]})
            .set_parallelism(parallelism)
            .sink_to(FileSink.json_lines(path))
        )

    expected: Counter[Any] = Counter()
    rows = [row for rows in splits for row in rows]
    for row in rows:
        begun = [
            version["ts"]
            for version in rows
            if version["key"] == row["key"] and version["seq"] % 4 == 0 and version["ts"] <= row["ts"]
        ]
        if begun or how == "left":
            expected[freeze({"a": number(row), "since": max(begun, default=None)})] += 1
    return Program(f"temporal_join/{how}/{parallelism}", build, expected)


def window_join(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    size = rng.choice((20, 60))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        (
            source(env)
            .join(source(env))
            .where("key")
            .equal_to(lambda row: row["key"])
            .window(TumblingEventTimeWindows.of(size))
            .apply(lambda a, b: {"a": number(a), "b": number(b)})
            .sink_to(FileSink.json_lines(path))
        )

    expected = Counter(
        freeze({"a": number(a), "b": number(b)}) for a, b in same_key(splits) if a["ts"] // size == b["ts"] // size
    )
    return Program(f"window_join/{size}", build, expected)


def number(row: Record) -> int:
    """Tells a record from all others."""
    number: int = 1_000 * row["split"] + row["seq"]
    return number


def same_key(splits: list[list[Record]]) -> list[tuple[Record, Record]]:
    """All pairs of records of one key."""
    rows = [row for rows in splits for row in rows]
    return [(a, b) for a in rows for b in rows if a["key"] == b["key"]]


TWO_STREAMS = (co_process, broadcast_rules, interval_join, temporal_join, window_join)
"""Programs over two streams; `simulation.simulator` draws from them like from all others."""
