"""Programs that read several sources one after another, for the simulator.

`chained` reads numbered splits and shards of a queue in turns, in the order of event time, into windows: whatever is
read before its turn, or whatever is given up at a switch, makes records late, and they are missing from the sums.

`archived` reads a table's history out of an archive that grows with every look, then what came later from a log, behind
where the archive has ended. Each row is there once only if the log begins exactly where the archive that was read has
ended, no matter who reads it and what failed. Both servers are outside of every simulated process.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.outside import SERVERS, QueueServer, QueueSource
from simulation.programs import OUT_OF_ORDERNESS_MS, STRATEGY, NumberedSource, Program, Record, draw_records, freeze

from headrace import StreamExecutionEnvironment, TumblingEventTimeWindows
from headrace.connectors.files import FileSink
from headrace.connectors.hybrid import HybridSource
from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    Discovery,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
    SplitFinished,
)

WINDOW_MS = 50


def chained(rng: random.Random, first: list[list[Record]], _source: Any) -> Program:
    """Up to four sources, each later in event time than the one before, some of them made by factories."""
    parts = [first, *(draw_records(rng) for _ in range(rng.randint(1, 3)))]
    name, queues = f"chained-{rng.random()}", [rng.random() < 0.3 for _ in parts]
    made_late = [index > 0 and rng.random() < 0.5 for index in range(len(parts))]
    hiccup, parallelism = rng.choice((0, 2, 3)), rng.randint(1, 4)
    end_ms = 0
    for splits, is_queue in zip(parts, queues, strict=True):
        for row in (row for rows in splits for row in rows if is_queue):
            row["ts"] %= OUT_OF_ORDERNESS_MS  # what is delivered again comes after whatever was behind it
        times = [row["ts"] for rows in splits for row in rows]
        shift_ms = max(0, end_ms + 2 * OUT_OF_ORDERNESS_MS - min(times, default=end_ms))
        for row in (row for rows in splits for row in rows):
            row["ts"] += shift_ms
        end_ms = max((time + shift_ms for time in times), default=end_ms)

    def source_of(index: int) -> Any:
        late = min(1, len(parts[index]) - 1)
        if queues[index]:
            return QueueSource(f"{name}-{index}", len(parts[index]))
        return NumberedSource(parts[index], hiccup, late, columnar=False)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        builder = None
        for index, splits in enumerate(parts):
            SERVERS[f"{name}-{index}"] = QueueServer(_shards_of(splits))
            if builder is None:
                builder = HybridSource.builder(source_of(0))
            elif made_late[index]:
                builder = builder.add_source(lambda context: source_of(context.source_index), is_bounded=True)
            else:
                builder = builder.add_source(source_of(index))
        (
            env.from_source(builder.build(), STRATEGY, "hybrid")
            .set_parallelism(parallelism)
            .key_by(lambda row: row["key"])
            .window(TumblingEventTimeWindows.of(WINDOW_MS))
            .reduce(lambda a, b: {**a, "value": a["value"] + b["value"]})
            .map(lambda row: {"key": row["key"], "start": row["ts"] // WINDOW_MS, "sum": row["value"]})
            .sink_to(FileSink.json_lines(path))
        )

    sums: dict[tuple[str, int], int] = defaultdict(int)
    for row in (row for splits in parts for rows in splits for row in rows):
        sums[row["key"], row["ts"] // WINDOW_MS] += row["value"]
    expected = Counter(freeze({"key": key, "start": start, "sum": total}) for (key, start), total in sums.items())
    return Program(f"chained/{len(parts)}/{parallelism}", build, expected)


def _shards_of(splits: list[list[Record]]) -> list[dict[int, Record]]:
    """Each split's rows as a shard, in order, under ids of the whole queue."""
    shards: list[dict[int, Record]] = []
    num_rows = 0
    for rows in splits:
        shards.append(dict(enumerate(rows, num_rows)))
        num_rows += len(rows)
    return shards


# ------------------------------------------------------------------------------------------------------ archive and log
CHUNK = 4


@dataclass
class ArchiveServer:
    """A table's rows by number; those below ``num_archived`` are in the archive, and ``step`` more with every
    look.

    Attributes:
        expected: The answer; what is read out of turn is added, so that no output has it.
        was_read: Rows that a reader of the archive has given.
    """

    length: int
    step: int
    num_archived: int = 0
    was_read: set[int] = field(default_factory=set)
    expected: Counter[Any] = field(default_factory=Counter)

    def look(self) -> int:
        self.num_archived = min(self.length, self.num_archived + self.step)
        return self.num_archived

    def begin_log(self, start: int) -> None:
        if not self.was_read.issuperset(range(start)):
            self.expected["the log was read before the archive had been"] += 1


@dataclass
class ArchiveSource:
    """What the archive has at the first look, in chunks."""

    name: str
    is_bounded = True
    discovery_interval_ms = None

    def create_enumerator(self, _context: Any) -> ArchiveSource:
        return self

    def create_reader(self) -> RowReader:
        return RowReader(self.name, is_log=False)

    def discover(self) -> Discovery:
        end = SERVERS[self.name].look()
        chunks = [range(start, min(start + CHUNK, end)) for start in range(0, end, CHUNK)]
        splits = [Split(f"rows-{chunk.start}", {"of": [chunk.start, chunk.stop, 1]}) for chunk in chunks]
        return Discovery(splits, is_final=True, state={"end": end})


@dataclass
class RowLogSource:
    """All rows from one on, in partitions; the position of a partition is its next row, or nothing at first."""

    name: str
    start: int
    num_partitions: int
    has_positions: bool
    is_bounded: bool
    discovery_interval_ms = None

    def create_enumerator(self, _context: Any) -> RowLogSource:
        return self

    def create_reader(self) -> RowReader:
        return RowReader(self.name, is_log=True)

    def discover(self) -> Discovery:
        splits = []
        for partition in range(self.num_partitions):
            first = self.start + (partition - self.start) % self.num_partitions
            payload = {"of": [first, SERVERS[self.name].length, self.num_partitions], "start": self.start}
            splits.append(Split(f"p{partition}", payload, first if self.has_positions else None, is_bounded=False))
        return Discovery(splits, is_final=True)


class RowReader(SourceReader):
    """Reads ranges of rows, in turn."""

    def __init__(self, name: str, *, is_log: bool) -> None:
        self.name, self.is_log = name, is_log
        self.splits: dict[str, Split] = {}

    def open(self, context: ReaderContext) -> None:
        self.server: ArchiveServer = SERVERS[self.name]

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            self.splits[split.split_id] = split
            if self.is_log:
                self.server.begin_log(split.payload["start"])

    def poll(self, max_records: int) -> Any:
        if not self.splits:
            return ALL_SPLITS_FINISHED
        split_id = next(iter(self.splits))
        split = self.splits.pop(split_id)
        first, stop, step = split.payload["of"]
        position = first if split.position is None else split.position
        numbers = range(position, stop, step)[:max_records]
        if not numbers:
            return SplitFinished(split_id)
        self.splits[split_id] = Split(split_id, split.payload, numbers[-1] + step)
        if not self.is_log:
            self.server.was_read.update(numbers)
        return Polled(split_id, Batch.of_rows([{"row": number} for number in numbers]))

    def snapshot(self) -> list[Split]:
        return list(self.splits.values())


def archived(rng: random.Random, _splits: Any, _source: Any) -> Program:
    name = f"archive-{rng.random()}"
    server = ArchiveServer(rng.choice((10, 40)), rng.choice((0, 3, 7, 20)))
    num_partitions, has_positions, parallelism = rng.randint(1, 5), rng.random() < 0.5, rng.randint(1, 4)
    is_bounded = rng.random() < 0.5
    server.expected.update(freeze({"row": number}) for number in range(server.length))

    def log_from(context: Any) -> RowLogSource:
        return RowLogSource(name, context.end_position["end"], num_partitions, has_positions, is_bounded)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        SERVERS[name] = server
        source = HybridSource.builder(ArchiveSource(name)).add_source(log_from, is_bounded=is_bounded).build()
        stream = env.from_source(source, None, "hybrid").set_parallelism(parallelism)
        if rng.random() < 0.5:
            stream = stream.rebalance()
        stream.sink_to(FileSink.json_lines(path))

    return Program(f"archived/{num_partitions}/{parallelism}", build, server.expected)


HYBRIDS: tuple[Callable[..., Program], ...] = (chained, archived)
