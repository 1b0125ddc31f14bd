"""Programs of several pipelined regions, for the simulator: forward-only ones, and pipelines side by side.

Each reads more splits than it has readers, some of which appear late, so that splits are handed out all along; and some
records make the function that sees them fail, a few times, so that single regions fail while others go on. What a
function remembers between records is checked, too: `NumberedPerSplit` counts in operator state.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from simulation.programs import STRATEGY, NumberedSource, Program, Record, freeze

from headrace import CheckpointedFunction, ListStateDescriptor, MapFunction, StreamExecutionEnvironment
from headrace.connectors.files import FileSink

FAILURES_LEFT: Counter[tuple[int, int]] = Counter()
"""How often a record, by split and number, still makes `fail_sometimes` fail; of the program drawn last."""


def fail_sometimes(row: Record) -> Record:
    """Pass a record on, or fail."""
    at = (row["split"], row["seq"])
    if FAILURES_LEFT[at] > 0:
        FAILURES_LEFT[at] -= 1
        message = f"record {at} does not like it"
        raise ValueError(message)
    return row


class NumberedPerSplit(MapFunction, CheckpointedFunction):
    """Numbers the records of each split from 1; a split is read by one subtask, in order."""

    def initialize_state(self, context: Any) -> None:
        self.seen: dict[int, int] = {}
        self.stored = context.get_operator_state_store().get_list_state(ListStateDescriptor("seen"))
        for split, number in self.stored.get():
            assert split not in self.seen, "a split has come back to a subtask twice"
            self.seen[split] = number

    def snapshot_state(self, context: Any) -> None:
        self.stored.update(list(self.seen.items()))

    def map(self, row: Record) -> Record:
        number = self.seen[row["split"]] = self.seen.get(row["split"], 0) + 1
        assert number == row["seq"] + 1, f"record {row} is number {number} of its split"
        return {**row, "n": number}


def draw_splits(rng: random.Random) -> list[list[Record]]:
    """More and shorter splits than other programs have; their numbers are those of the source."""
    return [
        [
            {"split": split, "seq": seq, "key": f"k{rng.randrange(5)}", "value": rng.randrange(100), "ts": 10 * seq}
            for seq in range(rng.randint(0, 20))
        ]
        for split in range(rng.randint(1, 12))
    ]


def draw_failures(rng: random.Random, splits: list[list[Record]]) -> None:
    """Choose the records that make a function fail."""
    FAILURES_LEFT.clear()
    rows = [row for rows in splits for row in rows]
    for row in rng.sample(rows, k=min(len(rows), rng.choice((0, 1, 3)))):
        FAILURES_LEFT[(row["split"], row["seq"])] = rng.choice((1, 1, 2))


def _source(rng: random.Random, splits: list[list[Record]]) -> NumberedSource:
    return NumberedSource(splits, rng.choice((0, 2, 3)), rng.randint(0, len(splits) - 1), columnar=False)


def forward_only(rng: random.Random, _splits: Any, _source_of: Any) -> Program:
    """As many regions as subtasks, all fed by one enumerator."""
    splits = draw_splits(rng)
    draw_failures(rng, splits)
    source, parallelism, aligned = _source(rng, splits), rng.randint(2, 4), rng.random() < 0.3
    strategy = STRATEGY.with_watermark_alignment("all", 50, 20) if aligned else STRATEGY

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        env.set_parallelism(parallelism)
        stream = env.from_source(source, strategy, "numbers").map(NumberedPerSplit()).map(fail_sometimes)
        stream.sink_to(FileSink.json_lines(path))

    expected = Counter(freeze({**row, "n": row["seq"] + 1}) for rows in splits for row in rows)
    return Program(
        f"forward_only/{parallelism}", build, expected, num_records=sum(map(len, splits)), notes={"fails": True}
    )


def side_by_side(rng: random.Random, _splits: Any, _source_of: Any) -> Program:
    """Two pipelines without an exchange between them: one with a shuffle, one forward-only."""
    left, right = draw_splits(rng), draw_splits(rng)
    draw_failures(rng, left if rng.random() < 0.5 else right)
    sources = (_source(rng, left), _source(rng, right))
    parallelism = rng.randint(1, 3)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        counted = (
            env.from_source(sources[0], STRATEGY, "left")
            .map(fail_sometimes)
            .map(lambda row: (row["key"], 1))
            .key_by(lambda pair: pair[0])
            .reduce(lambda a, b: (a[0], a[1] + b[1]))
            .set_parallelism(parallelism)
        )
        counted.map(lambda pair: {"key": pair[0], "n": pair[1]}).sink_to(FileSink.json_lines(f"{path}/left"))
        numbered = env.from_source(sources[1], STRATEGY, "right").map(NumberedPerSplit()).map(fail_sometimes)
        numbered.sink_to(FileSink.json_lines(f"{path}/right"))

    expected = Counter(freeze({**row, "n": row["seq"] + 1}) for rows in right for row in rows)
    totals = Counter(row["key"] for rows in left for row in rows)
    expected.update(freeze({"key": key, "n": n}) for key, total in totals.items() for n in range(1, total + 1))
    return Program(f"side_by_side/{parallelism}", build, expected, notes={"fails": True})


REGIONS = (forward_only, side_by_side)
