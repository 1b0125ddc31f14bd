"""Programs with iterations, for the simulator: what leaves a loop, what its body remembers, and event time behind it.

Each body sends records to another subtask at every turn, in one of several ways, so that there is always something on
its way round. The answers are computed by plain loops over the data, like those of `simulation.programs`.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from simulation.programs import Program, Record, freeze

from headrace import (
    KeyedProcessFunction,
    OutputTag,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)
from headrace.connectors.files import FileSink

MAX_TURNS = 6
VISITS = OutputTag("visits")


def turns_of(row: Record) -> int:
    """How often a record goes through the body."""
    return 1 + (row["value"] + row["seq"]) % MAX_TURNS


def with_feedback_partitioning(rng: random.Random) -> tuple[str, Any]:
    """Draw how the feedback is partitioned; ``ring`` makes a record pass all subtasks of the head in turn."""
    kind = rng.choice(("forward", "rebalance", "ring", "ring", "key", "shuffle"))

    def partition(stream: Any) -> Any:
        if kind == "rebalance":
            return stream.rebalance()
        if kind == "shuffle":
            return stream.shuffle()
        if kind == "ring":
            return stream.partition_custom(lambda at, n: at % n, lambda row: row["left"])
        if kind == "key":
            return stream.key_by(lambda row: row["seq"])
        return stream

    return kind, partition


def one_turn(row: Record) -> Record:
    return {**row, "left": row["left"] - 1, "turns": row["turns"] + 1}


def countdown(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """A loop without state, maybe with two feedbacks, maybe with another loop behind it."""
    kind, partition = with_feedback_partitioning(rng)
    head_parallelism, body_parallelism = rng.randint(1, 3), rng.randint(1, 3)
    has_two_feedbacks, num_loops = rng.random() < 0.3, rng.choice((1, 1, 2))

    def loop(stream: Any) -> Any:
        iteration = stream.map(lambda row: {**row, "left": turns_of(row)}).iterate()
        iteration.set_parallelism(head_parallelism)
        body = iteration.map(one_turn).set_parallelism(body_parallelism)
        if has_two_feedbacks:
            iteration.close_with(partition(body.filter(lambda row: row["left"] > 0 and row["left"] % 2)))
            iteration.close_with(partition(body.filter(lambda row: row["left"] > 0 and not row["left"] % 2)))
        else:
            iteration.close_with(partition(body.filter(lambda row: row["left"] > 0)))
        return body.filter(lambda row: row["left"] <= 0)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        stream = source(env).map(lambda row: {**row, "turns": 0})
        for _ in range(num_loops):
            stream = loop(stream)
        stream.map(lambda row: {"split": row["split"], "seq": row["seq"], "turns": row["turns"]}).sink_to(
            FileSink.json_lines(path)
        )

    expected = Counter(
        freeze({"split": row["split"], "seq": row["seq"], "turns": num_loops * turns_of(row)})
        for rows in splits
        for row in rows
    )
    name = f"loop_countdown/{kind}/{head_parallelism}/{body_parallelism}/{num_loops}"
    return Program(name, build, expected, num_records=sum(map(len, splits)))


class CountVisits(KeyedProcessFunction):
    """Counts the records of each place, and sends each record to the next place: its state is part of the loop."""

    def open(self, runtime_context: Any) -> None:
        self.visits = runtime_context.get_state(ValueStateDescriptor("visits"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        visits = (self.visits.value() or 0) + 1
        self.visits.update(visits)
        yield VISITS, {"place": value["place"], "visit": visits}
        yield {**one_turn(value), "place": value["place"] + 1}


def visits(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """A keyed loop: every visit of every place is seen exactly once, whatever fails."""
    kind, partition = with_feedback_partitioning(rng)
    head_parallelism, body_parallelism, num_places = rng.randint(1, 3), rng.randint(1, 3), rng.choice((1, 4, 50))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        iteration = (
            source(env)
            .map(lambda row: {**row, "left": turns_of(row), "turns": 0, "place": row["seq"] % num_places})
            .iterate()
            .set_parallelism(head_parallelism)
        )
        body = (
            iteration.key_by(lambda row: row["place"] % num_places)
            .process(CountVisits())
            .set_parallelism(body_parallelism)
        )
        iteration.close_with(partition(body.filter(lambda row: row["left"] > 0)))
        (
            body.get_side_output(VISITS)
            .map(lambda row: {"place": row["place"] % num_places, "visit": row["visit"]})
            .set_parallelism(body_parallelism)
            .sink_to(FileSink.json_lines(path))
            .set_parallelism(body_parallelism)
        )

    totals = Counter(
        (row["seq"] + turn) % num_places for rows in splits for row in rows for turn in range(turns_of(row))
    )
    expected = Counter(
        freeze({"place": place, "visit": n}) for place, total in totals.items() for n in range(1, total + 1)
    )
    name = f"loop_visits/{kind}/{head_parallelism}/{body_parallelism}"
    return Program(name, build, expected, ordered_by=("place", "visit"), num_records=sum(map(len, splits)))


def windows_behind(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Event time behind a loop: windows there take every record, however long it went round."""
    kind, partition = with_feedback_partitioning(rng)
    head_parallelism, body_parallelism, size = rng.randint(1, 3), rng.randint(1, 3), rng.choice((30, 100))

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        iteration = (
            source(env)
            .map(lambda row: {**row, "left": turns_of(row), "turns": 0})
            .iterate()
            .set_parallelism(head_parallelism)
        )
        body = iteration.map(one_turn).set_parallelism(body_parallelism)
        iteration.close_with(partition(body.filter(lambda row: row["left"] > 0)))
        (
            body.filter(lambda row: row["left"] <= 0)
            .key_by(lambda row: row["key"])
            .window(TumblingEventTimeWindows.of(size))
            .reduce(lambda a, b: {**a, "turns": a["turns"] + b["turns"]})
            .map(lambda row: {"key": row["key"], "start": row["ts"] // size, "turns": row["turns"]})
            .sink_to(FileSink.json_lines(path))
        )

    sums: Counter[tuple[str, int]] = Counter()
    for rows in splits:
        for row in rows:
            sums[(row["key"], row["ts"] // size)] += turns_of(row)
    expected = Counter(freeze({"key": key, "start": start, "turns": n}) for (key, start), n in sums.items())
    name = f"loop_windows/{kind}/{head_parallelism}/{body_parallelism}/{size}"
    return Program(name, build, expected, num_records=sum(map(len, splits)))


def far_apart(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Subtasks that hear of some others only: records turn at their subtask, and change it by rescaling at last.

    From 3 subtasks to 2 and back that goes from 0 to 0 and 1, from 1 to 2, from 2 to 2: what is at 0 is out of sight of
    2, and will come there. The last of few records turns alone for long.
    """
    parallelism, between = rng.choice(((3, 2), (3, 2), (3, 2), (2, 3)))
    stay = rng.choice((0, 5, 15))
    num_moves = 6 if stay else 1_000  # all turns
    # Long enough for probes, which are sent at once, to catch up with records; too short at times.
    buffer_timeout_ms = rng.choice((1, 20, 50))

    def turns(row: Record) -> int:
        return 6 + (stay or 6) * (1 + row["split"] + row["seq"] // 8)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        env.set_buffer_timeout(buffer_timeout_ms)
        iteration = (
            source(env)
            .filter(lambda row: row["seq"] % 8 == 0)
            .map(lambda row: {**row, "left": turns(row), "turns": 0})
            .iterate()
            .set_parallelism(parallelism)
        )
        body = iteration.map(one_turn).set_parallelism(parallelism)
        staying = body.filter(lambda row: row["left"] > num_moves).set_parallelism(parallelism)
        moving = body.filter(lambda row: 0 < row["left"] <= num_moves).set_parallelism(parallelism)
        iteration.close_with(staying)
        iteration.close_with(moving.rescale().map(lambda row: row).set_parallelism(between).rescale())
        (
            body.filter(lambda row: row["left"] <= 0)
            .map(lambda row: {"split": row["split"], "seq": row["seq"], "turns": row["turns"]})
            .sink_to(FileSink.json_lines(path))
        )

    kept = [row for rows in splits for row in rows if row["seq"] % 8 == 0]
    expected = Counter(freeze({"split": row["split"], "seq": row["seq"], "turns": turns(row)}) for row in kept)
    name = f"loop_far_apart/{parallelism}/{between}/{stay}"
    return Program(name, build, expected, num_records=sum(map(len, splits)))


LOOPS = (countdown, visits, windows_behind, far_apart)
"""Programs with loops; `simulation.simulator` draws from them like from all others."""
