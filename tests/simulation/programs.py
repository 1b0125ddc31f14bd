"""Small random programs with known answers, for the simulator.

A program is drawn from a seed: shape, data, parallelisms, batch sizes. Its reference answer is computed here by
    plain loops over the data. Event
times are out of order within the bound that the watermark strategy allows, so nothing is ever late and the answer
does not depend on timing.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace import (
    EventTimeSessionWindows,
    KeyedProcessFunction,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from headrace.connectors.files import FileSink
from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Discovery,
    Polled,
    Split,
    SplitFinished,
)
from headrace.functions import sum as sum_of

Record = dict[str, Any]
OUT_OF_ORDERNESS_MS = 40


@dataclass
class NumberedSource:
    """Splits of numbered records, held by the source itself; some polls give nothing, and some splits appear late."""

    splits: list[list[Record]]
    hiccup: int
    late_splits: int
    columnar: bool
    is_bounded = True

    def create_enumerator(self, _context: Any) -> NumberedEnumerator:
        return NumberedEnumerator(len(self.splits), self.late_splits)

    def create_reader(self) -> NumberedReader:
        return NumberedReader(self)


class NumberedEnumerator:
    """Finds all but the last ``late`` splits at first, the rest at the second look."""

    def __init__(self, num_splits: int, late: int) -> None:
        self._num_splits = num_splits
        self._late = late
        self._looks = 0
        self.discovery_interval_ms: int | None = 30 if late else None

    def discover(self) -> Discovery:
        self._looks += 1
        seen = self._num_splits if self._looks > 1 else self._num_splits - self._late
        return Discovery([Split(f"split-{i}", {"index": i}) for i in range(seen)], is_final=seen == self._num_splits)


class NumberedReader:
    """Reads one split at a time; its position is the number of records given."""

    def __init__(self, source: NumberedSource) -> None:
        self._source = source
        self._open: list[tuple[Split, int]] = []
        self._polls = 0

    def open(self, _context: Any) -> None:
        """Nothing to open."""

    def add_splits(self, splits: list[Split]) -> None:
        self._open.extend((split, split.position or 0) for split in splits)

    def poll(self, max_records: int) -> Any:
        self._polls += 1
        if not self._open:
            return ALL_SPLITS_FINISHED
        if self._source.hiccup and self._polls % self._source.hiccup == 0:
            return NOTHING_NOW
        split, position = self._open[0]
        records = self._source.splits[split.payload["index"]]
        if position >= len(records):
            self._open.pop(0)
            return SplitFinished(split.split_id)
        rows = records[position : position + max_records]
        self._open[0] = (split, position + len(rows))
        batch = Batch.of_rows(rows)
        return Polled(split.split_id, Batch.of_columns(batch.columns) if self._source.columnar else batch)

    def next_poll_ms(self) -> int | None:
        return None

    def snapshot(self) -> list[Split]:
        return [Split(split.split_id, split.payload, position) for split, position in self._open]

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class Program:
    """A program and its answer.

    Attributes:
        build: Adds the program to an environment, with its sink at the given path.
        expected: The multiset of output rows, as JSON-like values turned to tuples of sorted items.
        ordered_by: If set: output rows of one group must come in ascending order of the other value (group field,
            order field).
        notes: ``fails`` if its own functions fail; ``check``, called to judge what the output alone does not show;
            ``come_to``, what the rows that were written come to, where only that is expected.
    """

    name: str
    build: Callable[[StreamExecutionEnvironment, str], None]
    expected: Counter[Any]
    ordered_by: tuple[str, str] | None = None
    num_records: int = 0
    notes: dict[str, Any] = field(default_factory=dict)


def draw_records(rng: random.Random) -> list[list[Record]]:
    num_splits = rng.randint(1, 4)
    num_keys = rng.choice((1, 2, 5, 20))
    length = rng.choice((0, 5, 20, 40))
    splits: list[list[Record]] = []
    start = 1_000
    for split in range(num_splits):
        rows = []
        # A split that is read after another one must not be late: splits follow each other in event time.
        start += 10 * length + OUT_OF_ORDERNESS_MS
        for seq in range(rng.randint(0, length)):
            jitter = rng.randint(0, OUT_OF_ORDERNESS_MS - 1)
            rows.append(
                {
                    "split": split,
                    "seq": seq,
                    "key": f"k{rng.randrange(num_keys)}",
                    "value": rng.randint(-5, 100),
                    "ts": start + 10 * seq - jitter,
                }
            )
        splits.append(rows)
    return splits


def freeze(row: Any) -> Any:
    """A row as a value that can be counted."""
    if isinstance(row, dict):
        return tuple(sorted((name, freeze(value)) for name, value in row.items()))
    if isinstance(row, (list, tuple)):
        return tuple(freeze(value) for value in row)
    return row


STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(OUT_OF_ORDERNESS_MS).with_timestamp_assigner(
    lambda row, _: row["ts"]
)


def draw_program(rng: random.Random, shapes: Sequence[Callable[..., Program]] | None = None) -> Program:
    """Draw one program, of the given shapes or of all here, with its data and answer."""
    shape = rng.choice(shapes or SHAPES)
    splits = draw_records(rng)
    hiccup, late = rng.choice((0, 2, 3)), rng.randint(0, min(1, len(splits) - 1))

    # Drawn beside the other draws, which stay what they are. Alignment must never change a result.
    aside = random.Random(rng.getstate()[1][0])
    strategy = STRATEGY
    if aside.random() < 0.3:
        strategy = STRATEGY.with_watermark_alignment("all", aside.choice((0, 20, 300)), aside.choice((10, 100)))

    def source(env: StreamExecutionEnvironment, columnar: bool = False) -> Any:
        made = NumberedSource(splits, hiccup, late, columnar)
        return env.from_source(made, strategy, "numbers")

    program = shape(rng, splits, source)
    program.num_records = sum(map(len, splits))
    return program


def pass_through(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    middle = rng.choice(("forward", "rebalance", "rescale", "shuffle", "global"))
    parallelism = rng.randint(1, 3)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        stream = source(env)
        if middle == "rebalance":
            stream = stream.rebalance()
        elif middle == "rescale":
            stream = stream.rescale()
        elif middle == "shuffle":
            stream = stream.shuffle()
        elif middle == "global":
            stream = stream.global_()
        if middle != "forward":
            stream = stream.map(lambda row: {**row, "value": row["value"] + 1}).set_parallelism(parallelism)
        else:
            stream = stream.map(lambda row: {**row, "value": row["value"] + 1})
        stream.filter(lambda row: row["seq"] % 3 != 2).sink_to(FileSink.json_lines(path))

    expected = Counter(
        freeze({**row, "value": row["value"] + 1}) for rows in splits for row in rows if row["seq"] % 3 != 2
    )
    return Program(f"pass_through/{middle}/{parallelism}", build, expected)


def running_count(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    parallelism = rng.randint(1, 3)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        (
            source(env)
            .map(lambda row: (row["key"], 1))
            .key_by(lambda pair: pair[0])
            .reduce(lambda a, b: (a[0], a[1] + b[1]))
            .set_parallelism(parallelism)
            .map(lambda pair: {"key": pair[0], "n": pair[1]})
            .set_parallelism(parallelism)
            .sink_to(FileSink.json_lines(path))
            .set_parallelism(parallelism)
        )

    totals = Counter(row["key"] for rows in splits for row in rows)
    expected = Counter(freeze({"key": key, "n": n}) for key, total in totals.items() for n in range(1, total + 1))
    return Program(f"running_count/{parallelism}", build, expected, ordered_by=("key", "n"))


def tumbling_sum(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    size = rng.choice((30, 100))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        (
            source(env)
            .key_by(lambda row: row["key"])
            .window(TumblingEventTimeWindows.of(size))
            .reduce(lambda a, b: {**a, "value": a["value"] + b["value"]})
            .map(lambda row: {"key": row["key"], "start": row["ts"] // size, "sum": row["value"]})
            .sink_to(FileSink.json_lines(path))
        )

    sums: dict[tuple[str, int], int] = defaultdict(int)
    for rows in splits:
        for row in rows:
            sums[(row["key"], row["ts"] // size)] += row["value"]
    expected = Counter(freeze({"key": key, "start": start, "sum": total}) for (key, start), total in sums.items())
    return Program(f"tumbling_sum/{size}", build, expected)


def sliding_count(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    size, slide = rng.choice(((60, 20), (100, 50), (90, 60)))
    columnar = rng.random() < 0.5

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        (
            source(env, columnar)
            .key_by("key")
            .window(SlidingEventTimeWindows.of(size, slide))
            .aggregate(n=count(), total=sum_of("value"))
            .map(lambda row: {"key": row["key"], "end": str(row["window_end"]), "n": row["n"], "total": row["total"]})
            .sink_to(FileSink.json_lines(path))
        )

    windows: dict[tuple[str, int], list[int]] = defaultdict(list)
    for rows in splits:
        for row in rows:
            start = row["ts"] - row["ts"] % slide
            while start > row["ts"] - size:
                windows[(row["key"], start)].append(row["value"])
                start -= slide
    expected = Counter(
        freeze({"key": key, "end": as_datetime_text(start + size), "n": len(values), "total": sum(values)})
        for (key, start), values in windows.items()
    )
    return Program(f"sliding_count/{size}/{slide}/{columnar}", build, expected)


def as_datetime_text(epoch_ms: int) -> str:
    from datetime import datetime, timedelta

    return str(datetime(1970, 1, 1) + timedelta(milliseconds=epoch_ms))  # noqa: DTZ001


def sessions(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    gap = rng.choice((15, 30))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        (
            source(env)
            .map(lambda row: (row["key"], row["ts"], 1))
            .key_by(lambda row: row[0])
            .window(EventTimeSessionWindows.with_gap(gap))
            .reduce(lambda a, b: (a[0], min(a[1], b[1]), a[2] + b[2]))
            .map(lambda row: {"key": row[0], "first": row[1], "n": row[2]})
            .sink_to(FileSink.json_lines(path))
        )

    times: dict[str, list[int]] = defaultdict(list)
    for rows in splits:
        for row in rows:
            times[row["key"]].append(row["ts"])
    expected: Counter[Any] = Counter()
    for key, found in times.items():
        session: list[int] = []
        for at in [*sorted(found), None]:
            if session and (at is None or at > session[-1] + gap):  # touching windows are merged, as in Flink
                expected[freeze({"key": key, "first": session[0], "n": len(session)})] += 1
                session = []
            if at is not None:
                session.append(at)
    return Program(f"sessions/{gap}", build, expected)


class CountUntilTimer(KeyedProcessFunction):
    """Counts a key's records and, when event time has passed each hundred, emits the hundred: once per key and
    hundred.
    """

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        total = (self.total.value() or 0) + 1
        self.total.update(total)
        ctx.timer_service().register_event_time_timer(value["ts"] - value["ts"] % 100 + 99)
        yield {"key": value["key"], "n": total}

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield {"key": ctx.get_current_key(), "hundred": timestamp // 100}


def timers(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    parallelism = rng.randint(1, 3)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        (
            source(env)
            .key_by(lambda row: row["key"])
            .process(CountUntilTimer())
            .set_parallelism(parallelism)
            .sink_to(FileSink.json_lines(path))
        )

    totals = Counter(row["key"] for rows in splits for row in rows)
    expected = Counter(freeze({"key": key, "n": n}) for key, total in totals.items() for n in range(1, total + 1))
    expected.update({freeze({"key": row["key"], "hundred": row["ts"] // 100}) for rows in splits for row in rows})
    return Program(f"timers/{parallelism}", build, expected)


def union_count_windows(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    size = rng.choice((2, 3))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        left, right = source(env), source(env)
        (
            left.union(right)
            .map(lambda row: (row["key"], 1))
            .key_by(lambda pair: pair[0])
            .count_window(size)
            .reduce(lambda a, b: (a[0], a[1] + b[1]))
            .map(lambda pair: {"key": pair[0], "n": pair[1]})
            .sink_to(FileSink.json_lines(path))
        )

    totals = Counter(row["key"] for rows in splits for row in rows)
    expected: Counter[Any] = Counter()
    for key, total in totals.items():
        full = 2 * total // size
        if full:
            expected[freeze({"key": key, "n": size})] = full
    return Program(f"union_count_windows/{size}", build, expected)


def broadcast(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    parallelism = rng.randint(1, 3)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        (
            source(env)
            .broadcast()
            .map(lambda row: {"split": row["split"], "seq": row["seq"]})
            .set_parallelism(parallelism)
            .sink_to(FileSink.json_lines(path))
            .set_parallelism(parallelism)
        )

    expected = Counter(freeze({"split": row["split"], "seq": row["seq"]}) for rows in splits for row in rows)
    return Program(f"broadcast/{parallelism}", build, Counter({row: n * parallelism for row, n in expected.items()}))


SHAPES = (
    pass_through,
    running_count,
    tumbling_sum,
    sliding_count,
    sessions,
    timers,
    union_count_windows,
    broadcast,
)
