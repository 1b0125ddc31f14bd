"""Programs that read from servers outside of every simulated process: a queue that forgets what was acknowledged, and
a log that grows and is read from its end.

The queue (`QueueServer`) has shards; it gives each message to the one that asks, and again after a while unless it is
acknowledged. Its reader acknowledges what a complete checkpoint holds, and knows by their ids the messages that come
again. A message that was acknowledged and is in no output is lost for ever, one that comes again unknown is there
twice.

The log (`LogServer`) has partitions, more than there are subtasks, that never end by themselves. Where the first reader
began to read, everything counts from, whatever dies.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.programs import Program, Record, freeze

from headrace import StreamExecutionEnvironment
from headrace.connectors.files import FileSink
from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Discovery,
    EnumeratorContext,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
    SplitFinished,
)

REDELIVERY_MS = 300
SERVERS: dict[str, Any] = {}
"""By name: outside of every process, which have copies of everything else."""


# --------------------------------------------------------------------------------------------------------------- queue
@dataclass
class QueueServer:
    """Messages by shard and id, with the time until which each is hidden from all but who has it."""

    shards: list[dict[int, Record]]
    hidden_until_ms: dict[int, int] = field(default_factory=dict)

    def receive(self, shard: int, most: int, now_ms: int) -> list[tuple[int, Record]]:
        ready = [id_ for id_ in self.shards[shard] if self.hidden_until_ms.get(id_, -1) < now_ms][:most]
        self.hidden_until_ms.update(dict.fromkeys(ready, now_ms + REDELIVERY_MS))
        return [(id_, self.shards[shard][id_]) for id_ in ready]

    def acknowledge(self, shard: int, ids: list[int]) -> None:
        for id_ in ids:
            self.shards[shard].pop(id_, None)


class QueueSource:
    """Reads all shards of a queue side by side; ends when all is acknowledged, so that a run has an end."""

    is_bounded = True

    def __init__(self, name: str, num_shards: int) -> None:
        self.name = name
        self.num_shards = num_shards

    def create_enumerator(self, _context: EnumeratorContext) -> QueueEnumerator:
        return QueueEnumerator(self.num_shards)

    def create_reader(self) -> QueueReader:
        return QueueReader(self.name)


@dataclass
class QueueEnumerator:
    num_shards: int
    discovery_interval_ms: int | None = None

    def discover(self) -> Discovery:
        splits = [Split(f"shard-{i}", {"shard": i}, is_bounded=False) for i in range(self.num_shards)]
        return Discovery(splits, is_final=True)


class QueueReader(SourceReader):
    """Position of a shard: what was given and is not acknowledged, by the checkpoint that holds it first."""

    def __init__(self, name: str) -> None:
        self.server: QueueServer = SERVERS[name]

    def open(self, context: ReaderContext) -> None:
        self.now_ms = context.now_ms
        # By shard: given since the last snapshot, and pairs of a checkpoint and what it was the first to hold.
        self.given: dict[int, list[int]] = {}
        self.held: dict[int, list[tuple[int, list[int]]]] = {}
        self.turn = 0

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            self.given[split.payload["shard"]] = []
            self.held[split.payload["shard"]] = [(id_, list(ids)) for id_, ids in split.position or []]

    def poll(self, max_records: int) -> Any:
        """Some of each shard at once."""
        if not self.given:
            return ALL_SPLITS_FINISHED
        found: list[Any] = []
        for shard in list(self.given):
            known = {*self.given[shard], *(id_ for _, ids in self.held[shard] for id_ in ids)}
            if not self.server.shards[shard] and not known:
                del self.given[shard], self.held[shard]
                found.append(SplitFinished(f"shard-{shard}"))
                continue
            new = [pair for pair in self.server.receive(shard, max_records, self.now_ms()) if pair[0] not in known]
            self.given[shard] += [id_ for id_, _ in new]
            if new:
                found.append(Polled(f"shard-{shard}", Batch.of_rows([row for _, row in new])))
        return found or NOTHING_NOW

    def snapshot(self) -> list[Split]:
        raise NotImplementedError

    def snapshot_for(self, checkpoint_id: int) -> list[Split]:
        for shard, ids in self.given.items():
            if ids:
                self.held[shard].append((checkpoint_id, ids))
                self.given[shard] = []
        return [Split(f"shard-{shard}", {"shard": shard}, list(map(list, held))) for shard, held in self.held.items()]

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        for shard, held in self.held.items():
            for made_for, ids in held:
                if made_for <= checkpoint_id:
                    self.server.acknowledge(shard, ids)
            self.held[shard] = [pair for pair in held if pair[0] > checkpoint_id]


def queue(rng: random.Random, splits: list[list[Record]], _source: Any) -> Program:
    name, num_shards = f"queue-{rng.random()}", rng.randint(1, 5)
    rows = [row for rows in splits for row in rows]

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        shards = [{i: row for i, row in enumerate(rows) if i % num_shards == shard} for shard in range(num_shards)]
        SERVERS[name] = QueueServer(shards)
        env.from_source(QueueSource(name, num_shards), None, "queue").sink_to(FileSink.json_lines(path))

    return Program(f"queue/{num_shards}", build, Counter(map(freeze, rows)))


# ----------------------------------------------------------------------------------------------------------------- log
@dataclass
class LogServer:
    """Partitions that grow with every look and every read, up to their length.

    Attributes:
        expected: Every row from where somebody began to read; filled as that happens.
        begun: Where that was, by partition.
    """

    length: int
    ends: list[int]
    expected: Counter[Any] = field(default_factory=Counter)
    begun: dict[int, int] = field(default_factory=dict)
    num_looks: int = 0

    def look(self) -> list[int]:
        self.num_looks += 1
        if self.num_looks % 3 == 0:
            message = "the broker does not answer"
            raise OSError(message)
        self.ends = [min(self.length, end + 3) for end in self.ends]
        return list(self.ends)

    def begin(self, partition: int, position: int) -> None:
        until = self.begun.get(partition, self.length)
        self.expected.update(freeze(row_of(partition, i)) for i in range(position, until))
        self.begun[partition] = min(position, until)

    def read(self, partition: int, position: int, most: int) -> list[Record]:
        self.ends[partition] = min(self.length, self.ends[partition] + 1)
        return [row_of(partition, i) for i in range(position, min(self.ends[partition], position + most))]


def row_of(partition: int, offset: int) -> Record:
    return {"partition": partition, "offset": offset}


class LogSource:
    """Reads every partition from where its end is when the job starts."""

    is_bounded = True

    def __init__(self, name: str) -> None:
        self.name = name

    def create_enumerator(self, _context: EnumeratorContext) -> LogEnumerator:
        return LogEnumerator(SERVERS[self.name])

    def create_reader(self) -> LogReader:
        return LogReader(SERVERS[self.name])


@dataclass
class LogEnumerator:
    server: LogServer
    discovery_interval_ms: int | None = None

    def discover(self) -> Discovery:
        ends = self.server.look()
        return Discovery([Split(f"p{i}", {}, [i, end], is_bounded=False) for i, end in enumerate(ends)], is_final=True)


class LogReader(SourceReader):
    def __init__(self, server: LogServer) -> None:
        self.server = server
        self.positions: dict[int, int] = {}

    def open(self, context: ReaderContext) -> None:
        """Nothing to open."""

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            partition, position = split.position
            self.positions[partition] = position
            self.server.begin(partition, position)

    def poll(self, max_records: int) -> Any:
        found: list[Any] = []
        for partition, position in list(self.positions.items()):
            if position >= self.server.length:
                del self.positions[partition]
                found.append(SplitFinished(f"p{partition}"))
                continue
            rows = self.server.read(partition, position, max_records)
            self.positions[partition] += len(rows)
            if rows:
                found.append(Polled(f"p{partition}", Batch.of_rows(rows)))
        return found or (NOTHING_NOW if self.positions else ALL_SPLITS_FINISHED)

    def snapshot(self) -> list[Split]:
        return [Split(f"p{i}", {}, [i, position]) for i, position in self.positions.items()]


def latest(rng: random.Random, _splits: list[list[Record]], _source: Any) -> Program:
    name, num_partitions = f"log-{rng.random()}", rng.randint(1, 7)
    server = LogServer(rng.choice((20, 100)), [0] * num_partitions)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        SERVERS[name] = server
        env.from_source(LogSource(name), None, "log").sink_to(FileSink.json_lines(path))

    return Program(f"latest/{num_partitions}", build, server.expected)


OUTSIDE: tuple[Callable[..., Program], ...] = (queue, latest)
