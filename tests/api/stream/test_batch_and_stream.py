"""What BATCH gives is what STREAMING gives in the end: random bounded programs run both ways, compared as multisets.

Family: differential. In streams nothing is lost: watermarks wait for the largest disorder, or windows keep what comes
late. Where a stream gives intermediate results (running reductions, triggers that fire early, late firings), only the
last one of each key and window counts. Each shape is random in its operators, its data, the pieces in which data comes,
the parallelism and the state backend, and of its functions none depends on an order that no mode promises.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    AggregateFunction,
    AsyncDataStream,
    AsyncFunction,
    BroadcastProcessFunction,
    ContinuousEventTimeTrigger,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessAllWindowFunction,
    PurgingTrigger,
    RuntimeExecutionMode,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TriggerResult,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from headrace import functions as f
from headrace.connectors.scripted import ScriptedSource, Timed

END = 10_000
STREAMING, BATCH = RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH

Record = dict[str, Any]
Final = Callable[[list[Any]], Any]
Program = Callable[[StreamExecutionEnvironment, "Inputs"], Any]
"""Makes the stream whose records are compared."""


class Inputs:
    """The sources of a random program, which give equal records in both modes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.strategy = WatermarkStrategy.for_bounded_out_of_orderness(END)
        self._scripts: list[list[list[Timed]]] = []
        self._next = 0
        for number in range(2):
            records = [self._record(10_000 * number + i) for i in range(rng.choice((0, 1, 12, 60)))]
            scripts: list[list[Timed]] = [[] for _ in range(rng.randint(1, 3))]
            for record in records:
                rng.choice(scripts).append(Timed(record, record["ts"]))
            self._scripts.append(scripts)
        self._batch_size = rng.choice((1, 7, 1_000))

    def _record(self, number: int) -> Record:
        rng = self._rng
        return {"key": f"k{rng.randrange(5)}", "value": rng.randint(-9, 99), "ts": rng.randrange(600), "id": number}

    def start_over(self) -> None:
        self._next = 0

    def stream(self, env: StreamExecutionEnvironment) -> Any:
        scripts = self._scripts[self._next % 2]
        self._next += 1
        source = ScriptedSource(*scripts, batch_size=self._batch_size)
        return env.from_source(source, self.strategy, f"source {self._next}")


def by_key(row: Record) -> str:
    return row["key"]


def multiset(rows: list[Any]) -> Counter[str]:
    return Counter(map(repr, rows))


def last_per(place: Callable[[Any], Any]) -> Final:
    """Only the last result of each place counts."""
    return lambda rows: {place(row): row for row in rows}


# --------------------------------------------------------------------------------------------------------- one input
def reductions(rng: random.Random) -> tuple[Program, Final]:
    name = rng.choice(("sum", "min", "max", "min_by", "max_by", "reduce"))
    field = "value" if name in ("sum", "min", "max") else "id"  # ties have no winner that both modes agree on

    def build(env: StreamExecutionEnvironment, inputs: Inputs) -> Any:
        keyed = inputs.stream(env).map(lambda row: {"key": row["key"], field: row[field]}).key_by("key")
        if name == "reduce":
            return keyed.reduce(lambda a, b: {"key": a["key"], "id": max(a["id"], b["id"])})
        return getattr(keyed, name)(field)

    return build, last_per(by_key)


class SumAndCount(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return (0, 0)

    def add(self, value: Record, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value["value"], accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


def contents(key: str, context: Any, rows: Any) -> list[tuple[Any, ...]]:
    window = context.window()
    return [(key, window.start, window.end, sorted(row["id"] for row in rows))]


def some_windows(rng: random.Random) -> Any:
    return rng.choice(
        (
            TumblingEventTimeWindows.of(100),
            TumblingEventTimeWindows.of(250, 30),
            SlidingEventTimeWindows.of(200, 50),
            EventTimeSessionWindows.with_gap(40),
        )
    )


def windows(rng: random.Random) -> tuple[Program, Final]:
    """Of any assigner; some with late records that are allowed, some with triggers that fire early."""
    assigner, way = some_windows(rng), rng.choice(("process", "aggregate", "columns", "reduce"))
    trigger = rng.choice((None, None, ContinuousEventTimeTrigger.of(60), CountTrigger.of(2), EventTimeTrigger()))
    is_late = rng.random() < 0.5
    if isinstance(trigger, CountTrigger):
        trigger = EveryRecordAndTheEnd()

    def build(env: StreamExecutionEnvironment, inputs: Inputs) -> Any:
        if is_late:
            inputs.strategy = WatermarkStrategy.for_monotonous_timestamps()
        keyed = inputs.stream(env).key_by("key" if way == "columns" else by_key)
        windowed = keyed.window(assigner)
        if is_late:
            windowed = windowed.allowed_lateness(END)
        if trigger is not None and way != "columns":
            windowed = windowed.trigger(trigger)
        if way == "columns":
            rows = windowed.aggregate(n=count(), total=f.sum("value"))
            return rows.map(lambda row: (row["key"], row["window_start"], row["window_end"], row["n"], row["total"]))
        if way == "aggregate":
            named = lambda key, context, results: [(key, context.window().start, context.window().end, *results)]
            return windowed.aggregate(SumAndCount(), named)
        if way == "reduce":
            larger = lambda a, b: a if a["id"] > b["id"] else b
            return windowed.reduce(larger, contents)
        return windowed.process(contents)

    # A session that grows takes the place of those that have fired.
    final = last_session if isinstance(assigner, EventTimeSessionWindows) else last_per(lambda row: row[:3])
    return build, final


def last_session(rows: list[Any]) -> Any:
    """The last result of each session: none of them is within a later one."""
    ends = [(row[0], str(row[1]), str(row[2])) for row in rows]
    place = {end: i for i, end in enumerate(ends)}
    return Counter(
        repr(row)
        for i, (row, (key, start, end)) in enumerate(zip(rows, ends, strict=True))
        if place[key, start, end] == i
        and not any(
            k == key and (s, e) != (start, end) and row_s <= rows[i][1] and rows[i][2] <= row_e
            for (k, s, e), row_s, row_e in ((ends[j], rows[j][1], rows[j][2]) for j in range(i + 1, len(rows)))
        )
    )


class EveryRecordAndTheEnd(EventTimeTrigger):
    """Fires with every record as well as at the end of the window."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> Any:
        super().on_element(element, timestamp, window, ctx)
        return TriggerResult.FIRE


def purged_counts(rng: random.Random) -> tuple[Program, Final]:
    size = rng.randint(1, 4)

    def build(env: StreamExecutionEnvironment, inputs: Inputs) -> Any:
        keyed = inputs.stream(env).key_by(by_key)
        if size % 2:
            windowed = keyed.window(TumblingEventTimeWindows.of(200)).trigger(PurgingTrigger.of(CountTrigger.of(size)))
            return windowed.process(lambda key, context, rows: [(key, context.window().start, len(list(rows)))])
        return keyed.count_window(size).process(lambda key, context, rows: [(key, len(list(rows)))])

    return build, multiset


class AllContents(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Any) -> Iterator[Any]:
        yield "all", context.window().start, sorted(row["id"] for row in elements)


def windows_of_all(rng: random.Random) -> tuple[Program, Final]:
    assigner = rng.choice((TumblingEventTimeWindows.of(100), SlidingEventTimeWindows.of(200, 50)))
    is_columnar = rng.random() < 0.3

    def build(env: StreamExecutionEnvironment, inputs: Inputs) -> Any:
        windowed = inputs.stream(env).window_all(assigner)
        if is_columnar:
            rows = windowed.aggregate(n=count(), total=f.sum("value"))
            return rows.map(lambda row: (str(row["window_start"]), row["n"], row["total"]))
        return windowed.process(AllContents())

    return build, multiset


LOW = OutputTag("low")


class Sorting(KeyedProcessFunction):
    """Gathers ids, gives some of them aside, and has two timers: one of each record, one of the end of its key."""

    def open(self, context: Any) -> None:
        self.ids = context.get_list_state(ListStateDescriptor("ids", int))

    def process_element(self, value: Record, context: Any) -> Iterator[Any]:
        self.ids.add(value["id"])
        timers = context.timer_service()
        timers.register_event_time_timer(value["ts"] + 7)
        timers.register_event_time_timer(END)
        if value["value"] < 30:
            yield LOW, ("low", value["key"], value["id"])
        else:
            yield "high", value["key"], value["id"]

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        if timestamp == END:
            yield "all", context.get_current_key(), sorted(self.ids.get())
        else:
            yield "timer", context.get_current_key(), timestamp


def timers_and_side_outputs(rng: random.Random) -> tuple[Program, Final]:
    is_behind = rng.random() < 0.5

    def build(env: StreamExecutionEnvironment, inputs: Inputs) -> Any:
        main = inputs.stream(env).key_by(by_key).process(Sorting())
        both = main.union(main.get_side_output(LOW))
        if not is_behind:
            return both
        # Behind it everything is at the time of its record or timer.
        again = both.key_by(lambda row: row[1]).window(TumblingEventTimeWindows.of(200))
        return again.process(lambda key, context, rows: [(key, context.window().start, sorted(map(repr, rows)))])

    return build, multiset


class Asking(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        return [("asked", repr(value))]


def requests(rng: random.Random) -> tuple[Program, Final]:
    way = rng.choice((AsyncDataStream.ordered_wait, AsyncDataStream.unordered_wait))
    capacity, is_keyed = rng.choice((1, 3, 100)), rng.random() < 0.7

    def build(env: StreamExecutionEnvironment, inputs: Inputs) -> Any:
        stream = inputs.stream(env)
        if is_keyed:
            stream = stream.key_by(by_key).process(Sorting())
        asked = way(stream, Asking(), 10_000, capacity)
        keyed = asked.key_by(lambda row: row[1]).window(TumblingEventTimeWindows.of(300))
        return keyed.process(lambda key, context, rows: [(key, context.window().start, len(list(rows)))])

    return build, multiset


# -------------------------------------------------------------------------------------------------------- two inputs
def ids(first: Record | None, second: Record | None, *_: Any) -> tuple[Any, Any]:
    return first and first["id"], second and second["id"]


def joins(rng: random.Random) -> tuple[Program, Final]:
    kind = rng.choice(("window", "co_group", "interval", "temporal", "interval then window"))
    assigner, how = some_windows(rng), rng.choice(("inner", "left"))
    lower, upper = sorted((rng.randint(-90, 90), rng.randint(-90, 90)))

    def build(env: StreamExecutionEnvironment, inputs: Inputs) -> Any:
        first, second = inputs.stream(env), inputs.stream(env)
        if kind == "window":
            return first.join(second).where(by_key).equal_to(by_key).window(assigner).apply(ids)
        if kind == "co_group":
            both = first.co_group(second).where(by_key).equal_to(by_key).window(assigner)
            return both.apply(lambda a, b: [(sorted(r["id"] for r in a), sorted(r["id"] for r in b))])
        if kind == "temporal":
            # One version per key and time: of several the last one to arrive counts.
            versions = second.key_by(lambda row: (row["key"], row["ts"])).max_by("id")
            return first.key_by(by_key).temporal_join(versions.key_by(by_key), how=how).apply(ids)
        joined = first.key_by(by_key).interval_join(second.key_by(by_key)).between(lower, upper)
        pairs = joined.process(lambda a, b, context: [(*ids(a, b), context.get_timestamp(), a["key"])])
        if kind == "interval":
            return pairs
        again = pairs.key_by(lambda row: row[3]).window(TumblingEventTimeWindows.of(50))
        return again.process(lambda key, context, rows: [(key, context.window().start, sorted(map(repr, rows)))])

    return build, multiset


class Matching(KeyedCoProcessFunction):
    """Both sides in state, given at the end; and a timer of each record."""

    def open(self, context: Any) -> None:
        self.sides = [context.get_list_state(ListStateDescriptor(name, int)) for name in ("first", "second")]
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def _take(self, value: Record, context: Any, side: int) -> None:
        self.sides[side].add(value["id"])
        self.count.update(self.count.value() + 1)
        context.timer_service().register_event_time_timer(value["ts"] + side)
        context.timer_service().register_event_time_timer(END)

    def process_element1(self, value: Record, context: Any) -> Any:
        self._take(value, context, 0)

    def process_element2(self, value: Record, context: Any) -> Any:
        self._take(value, context, 1)

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        key = context.get_current_key()
        if timestamp == END:
            yield key, self.count.value(), *(sorted(side.get()) for side in self.sides)
        else:
            yield key, timestamp


def connected(rng: random.Random) -> tuple[Program, Final]:
    is_keyed = rng.random() < 0.7

    def build(env: StreamExecutionEnvironment, inputs: Inputs) -> Any:
        first, second = inputs.stream(env), inputs.stream(env)
        if is_keyed:
            return first.key_by(by_key).connect(second.key_by(by_key)).process(Matching())
        return first.connect(second).map((lambda row: (1, row["id"]), lambda row: (2, row["id"])))

    return build, multiset


RULES = MapStateDescriptor("rules", int, int)


class KeyedRules(KeyedBroadcastProcessFunction):
    """Applies all rules at the end."""

    def open(self, context: Any) -> None:
        self.ids = context.get_list_state(ListStateDescriptor("ids", int))

    def process_element(self, value: Record, context: Any) -> Any:
        self.ids.add(value["id"])
        context.timer_service().register_event_time_timer(END)

    def process_broadcast_element(self, value: Record, context: Any) -> Any:
        context.get_broadcast_state(RULES).put(value["id"], value["value"])

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        rules = sorted(context.get_broadcast_state(RULES).items())
        yield context.get_current_key(), sorted(self.ids.get()), rules


class UnkeyedRules(BroadcastProcessFunction):
    """Gives what does not depend on which rules have come."""

    def process_element(self, value: Record, context: Any) -> Iterator[Any]:
        context.get_broadcast_state(RULES)
        yield value["id"]

    def process_broadcast_element(self, value: Record, context: Any) -> Iterator[Any]:
        context.get_broadcast_state(RULES).put(value["id"], 1)
        yield "rule", value["id"]


def broadcast(rng: random.Random) -> tuple[Program, Final]:
    is_keyed = rng.random() < 0.7

    def build(env: StreamExecutionEnvironment, inputs: Inputs) -> Any:
        stream, rules = inputs.stream(env), inputs.stream(env).broadcast(RULES)
        if is_keyed:
            return stream.key_by(by_key).connect(rules).process(KeyedRules())
        return stream.connect(rules).process(UnkeyedRules())

    return build, multiset


SHAPES = (
    reductions,
    windows,
    purged_counts,
    windows_of_all,
    timers_and_side_outputs,
    requests,
    joins,
    connected,
    broadcast,
)


def run(program: Program, inputs: Inputs, mode: RuntimeExecutionMode, parallelism: int, backend: str) -> list[Any]:
    inputs.start_over()
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
        env.set_runtime_mode(mode)
        env.set_state_backend(backend)
        with program(env, inputs).execute_and_collect() as rows:
            return list(rows)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=examples(12))
@given(seed=st.integers(0, 2**32), parallelism=st.sampled_from((1, 3)), backend=st.sampled_from(("heap", "rocksdb")))
@pytest.mark.sampled(3)
def test_a_batch_gives_what_a_stream_gives_in_the_end(shape: Any, seed: int, parallelism: int, backend: str) -> None:
    rng = random.Random(seed)
    program, final = shape(rng)
    inputs = Inputs(rng)
    in_stream = run(program, inputs, STREAMING, parallelism, backend)
    in_batch = run(program, inputs, BATCH, parallelism, backend)
    assert final(in_batch) == final(in_stream)
