"""Batches while processes die: output of a job that starts over, committed at its end, against the reference.

Programs read their records in no order of time. ``python tests/simulation/campaign.py --kind batches`` runs many seeds.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from simulation.programs import Program, Record, as_datetime_text, freeze
from simulation.simulator import Outcome, run_seed

from headrace import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)
from headrace.connectors.files import FileSink
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.operators import process
from headrace.engine.task import operator_chain
from headrace.functions import sum as sum_of

__all__ = ["BATCHES", "BATCH_MUTANTS", "as_batch", "run_batch_seed"]

NO_INTERVAL_MS = 2**62


def disordered(rng: random.Random, splits: list[list[Record]]) -> list[Record]:
    """Shuffle the records of each split, in place; gives all of them."""
    for rows in splits:
        rng.shuffle(rows)
    return [row for rows in splits for row in rows]


def final_sums(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    records = disordered(rng, splits)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        pairs = source(env).map(lambda row: {"key": row["key"], "value": row["value"]})
        pairs.key_by("key").sum("value").sink_to(FileSink.json_lines(path))

    sums: Counter[str] = Counter()
    for row in records:
        sums[row["key"]] += row["value"]
    keys = {row["key"] for row in records}
    return Program("final_sums", build, Counter(freeze({"key": key, "value": sums[key]}) for key in keys))


def windows_of_disorder(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    records = disordered(rng, splits)
    columnar = rng.random() < 0.5

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        windows = source(env, columnar).key_by("key").window(TumblingEventTimeWindows.of(50))
        results = windows.aggregate(total=sum_of("value"))
        rows = results.map(lambda row: {"key": row["key"], "end": str(row["window_end"]), "total": row["total"]})
        rows.sink_to(FileSink.json_lines(path))

    sums: dict[tuple[str, int], int] = defaultdict(int)
    for row in records:
        sums[row["key"], row["ts"] - row["ts"] % 50 + 50] += row["value"]
    rows = [{"key": key, "end": as_datetime_text(end), "total": total} for (key, end), total in sums.items()]
    return Program(f"windows_of_disorder/{columnar}", build, Counter(map(freeze, rows)))


class _Numbering(KeyedProcessFunction):
    def open(self, context: Any) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        number = self._count.value() or 0
        self._count.update(number + 1)
        if number == 0:
            context.timer_service().register_event_time_timer(value["ts"])
        yield {"key": value["key"], "n": number, "ts": value["ts"]}

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        yield {"key": context.get_current_key(), "all": self._count.value(), "first": timestamp}


def numbered_by_time(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    records = disordered(rng, splits)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        source(env).key_by(lambda row: row["key"]).process(_Numbering()).sink_to(FileSink.json_lines(path))

    times: dict[str, list[int]] = defaultdict(list)
    for row in records:
        times[row["key"]].append(row["ts"])
    rows: list[dict[str, Any]] = []
    for key, some in times.items():
        rows += [{"key": key, "n": n, "ts": ts} for n, ts in enumerate(sorted(some))]
        rows.append({"key": key, "all": len(some), "first": min(some)})
    return Program("numbered_by_time", build, Counter(map(freeze, rows)))


def pairs_of_disorder(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """An interval join of the stream with itself: two inputs that are sorted by key, and spilled alike."""
    records = disordered(rng, splits)
    lower, upper = sorted((rng.randint(-40, 40), rng.randint(-40, 40)))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        stream = source(env)
        keyed = stream.key_by(lambda row: row["key"])
        joined = keyed.interval_join(stream.key_by(lambda row: row["key"])).between(lower, upper)
        pairs = joined.process(lambda a, b, _: [{"key": a["key"], "a": a["ts"], "b": b["ts"]}])
        pairs.sink_to(FileSink.json_lines(path))

    times: dict[str, list[int]] = defaultdict(list)
    for row in records:
        times[row["key"]].append(row["ts"])
    rows = [
        {"key": key, "a": a, "b": b}
        for key, some in times.items()
        for a in some
        for b in some
        if lower <= b - a <= upper
    ]
    return Program(f"pairs_of_disorder/{lower}/{upper}", build, Counter(map(freeze, rows)))


class _Alternating(KeyedCoProcessFunction):
    """Numbers the records of both sides, which come in one order of time; says at the end how many there were."""

    def open(self, context: Any) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def _take(self, value: Any, context: Any, side: int) -> Iterator[Any]:
        self._count.update(self._count.value() + 1)
        context.timer_service().register_event_time_timer(10**9)
        yield {"key": value["key"], "n": self._count.value(), "ts": value["ts"], "side": side}

    def process_element1(self, value: Any, context: Any) -> Iterator[Any]:
        return self._take(value, context, 1)

    def process_element2(self, value: Any, context: Any) -> Iterator[Any]:
        return self._take(value, context, 2)

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        yield {"key": context.get_current_key(), "all": self._count.value()}


def two_sides_in_one_order(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    records = disordered(rng, splits)

    def side(row: Record) -> int:
        return 1 + row["ts"] % 2

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        stream = source(env)
        first = stream.filter(lambda row: side(row) == 1).key_by(lambda row: row["key"])
        second = stream.filter(lambda row: side(row) == 2).key_by(lambda row: row["key"])
        first.connect(second).process(_Alternating()).sink_to(FileSink.json_lines(path))

    times: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in records:
        times[row["key"]].append((row["ts"], side(row)))
    rows: list[dict[str, Any]] = []
    for key, some in times.items():
        rows += [{"key": key, "n": n + 1, "ts": ts, "side": one} for n, (ts, one) in enumerate(sorted(some))]
        rows.append({"key": key, "all": len(some)})
    return Program("two_sides_in_one_order", build, Counter(map(freeze, rows)))


BATCHES: Sequence[Callable[..., Program]] = (
    final_sums,
    windows_of_disorder,
    numbered_by_time,
    pairs_of_disorder,
    two_sides_in_one_order,
)


def as_batch(graph: JobGraph) -> JobGraph:
    """The same job as a batch; memory for what is sorted follows from its name."""
    settings = graph.settings
    assert settings.checkpoints is not None
    checkpoints = replace(settings.checkpoints, only_last=True, unaligned=False, interval_ms=NO_INTERVAL_MS)
    memory_bytes = random.Random(f"{graph.name}-{settings.max_batch_rows}").choice((1, 2_000, 1 << 20))
    settings = replace(settings, is_batch=True, checkpoints=checkpoints, sort_memory_bytes=memory_bytes)
    return replace(graph, settings=settings)


def run_batch_seed(seed: int, mutate: Callable[[JobGraph], JobGraph] = as_batch, **options: Any) -> Outcome:
    """Run one seed as a batch, and judge it."""
    return run_seed(seed, mutate=mutate, shapes=BATCHES, **options)


# -------------------------------------------------------------------------------------------------------- planted bugs
BATCH_MUTANTS: dict[str, Callable[[], Any]] = {}


def mutant(plant: Callable[[], Any]) -> Callable[[], Any]:
    """Register a planted bug: a context manager that gives how graphs are made."""
    BATCH_MUTANTS[plant.__name__] = contextmanager(plant)
    return plant


@mutant
def a_batch_commits_without_a_last_checkpoint() -> Iterator[Any]:
    """Each sink commits when it is told that the job has finished, and nothing says what has been committed."""

    def without(graph: JobGraph) -> JobGraph:
        graph = as_batch(graph)
        return replace(graph, settings=replace(graph.settings, checkpoints=None))

    yield without


@mutant
def last_values_are_kept_in_the_last_checkpoint() -> Iterator[Any]:
    """They are given again by a job that is restored from it."""

    def give(self: process.KeyedReduceOperator) -> None:
        with mock.patch.object(type(self._table), "drop", return_value=None):
            original(self)

    def snapshot(self: Any, checkpoint_id: int, base_id: int, *, is_savepoint: bool = False) -> Any:
        contexts = [link.operator.context for link in self.links]
        for context in contexts:
            context.is_batch = False
        try:
            return original_snapshot(self, checkpoint_id, base_id, is_savepoint=is_savepoint)
        finally:
            for context in contexts:
                context.is_batch = True

    original = process.KeyedReduceOperator._give_last_values
    original_snapshot = operator_chain.OperatorChain.snapshot
    with (
        mock.patch.object(process.KeyedReduceOperator, "_give_last_values", give),
        mock.patch.object(operator_chain.OperatorChain, "snapshot", snapshot),
    ):
        yield as_batch


@mutant
def what_was_gathered_is_fed_as_it_came() -> Iterator[Any]:
    """Keyed operators see records in the order of arrival."""
    with mock.patch.object(operator_chain, "SortedInput", _Unsorted):
        yield as_batch


class _Unsorted(operator_chain.SortedInput):
    def takes(self, input_index: int) -> bool:
        return False


@mutant
def the_source_gives_watermarks() -> Iterator[Any]:
    """Records that come out of order are late."""
    from headrace.engine.operators.event_time import WatermarkStrategy

    with mock.patch.object(WatermarkStrategy, "in_batch", lambda self: self):
        yield as_batch
