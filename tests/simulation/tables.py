"""Programs that write into a simulated table, one version of which is made by each commit.

The `Table` lives outside of every simulated process. Writers leave files in it, which nobody sees; a commit makes a
version of the table that has the files it names, all at once, and remembers the commit's name. It fails now and then,
before its effect or behind it.

A version must hold what all writers of an attempt had left up to its checkpoint, and nothing else. That is judged by
looking at the files, whose names say which writer left them and for which checkpoint."""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.programs import Program, Record, freeze

from headrace import CommitRetry, CommitterContext, GlobalCommittable, GlobalCommitter, SinkWriter, WriterContext
from headrace.engine.columns.records import Batch
from headrace.engine.errors import PossibleLossError
from headrace.state.files.filesystem import filesystem_for


@dataclass
class Table:
    """The table.

    Attributes:
        path: Where its versions are visible, a file each.
        failing: One of so many commits fails, half of them behind their effect; 0 for none.
        files: What writers have left, by name.
        retained: Those of them that savepoints hold.
        jobs: Whose commits have which owner.
        problems: What was wrong with a version.
    """

    path: str
    failing: int
    files: dict[str, list[Any]] = field(default_factory=dict)
    retained: set[str] = field(default_factory=set)
    jobs: dict[str, str] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    num_calls: int = 0

    def commit(self, version: GlobalCommittable) -> None:
        """Make a version. Idempotent; fails now and then."""
        self.num_calls += 1
        text = f"{version.name} {self.num_calls}"
        chance = zlib.crc32(text.encode()) % (2 * self.failing) if self.failing else -1
        if chance == 0:
            message = "the table's catalog does not answer"
            raise OSError(message)
        fs, root = filesystem_for(self.path)
        place = f"{root}/{file_of(version.owner, version.attempt, version.checkpoint_id)}"
        if not fs.exists(place):
            missing = [file for file in version.committables if file not in self.files]
            if missing:
                message = f"prepared files are gone: possible loss: {missing}"
                raise PossibleLossError(message)
            rows = [row for file in version.committables for row in self.files[file]]
            with fs.open_output(place) as stream:
                stream.write("\n".join(json.dumps(row) for row in rows).encode())
            self._check(version)
        if chance == 1:
            message = "the catalog's answer got lost"
            raise OSError(message)

    def _check(self, version: GlobalCommittable) -> None:
        self.committed.update(version.committables)
        for file in self.files:
            job, attempt, _, number, _ = file.rsplit("-", 4)
            is_of_it = (job, attempt) == (self.jobs.get(version.owner), version.attempt)
            is_of_it = is_of_it and int(number) <= version.checkpoint_id
            if is_of_it and file not in self.committed:
                self.problems.append(f"version {version.name} lacks {file}")
            if not is_of_it and file in version.committables:
                self.problems.append(f"version {version.name} has {file}")


def file_of(owner: str, attempt: str, checkpoint_id: int) -> str:
    """The name of a version's file."""
    return f"part-{owner}-{attempt}-{checkpoint_id:05d}-00000.jsonl"


TABLES: dict[str, Table] = {}
"""By path: outside of every process, which have copies of everything else."""


class TableSink:
    """Many writers, one commit."""

    def __init__(self, path: str, *, failing: int, pause_ms: int = 5) -> None:
        self.path = path
        self.pause_ms = pause_ms
        fs, root = filesystem_for(path)
        if not fs.exists(f"{root}-exists"):  # a program that goes on writes into the same one
            with fs.open_output(f"{root}-exists") as stream:
                stream.write(b"")
            TABLES[path] = Table(path, failing)

    def create_writer(self) -> SinkWriter:
        return TableWriter(self.path)

    def create_global_committer(self) -> GlobalCommitter:
        return TableCommitter(self.path, self.pause_ms)


class MergingTableSink(TableSink):
    """Brings the files of a few subtasks together before they are committed."""

    def add_pre_commit_topology(self, committables: Any) -> Any:
        return committables.map(lambda file: [file]).map(lambda files: files[0])


class TableWriter(SinkWriter):
    """A file of at most a few rows after another."""

    def __init__(self, path: str) -> None:
        self._table = TABLES[path]
        self._rows: list[Any] = []

    def open(self, context: WriterContext) -> None:
        self._name = f"{context.job}-{context.attempt}-{context.subtask}"

    def write(self, batch: Batch) -> None:
        self._rows += batch.rows

    def prepare(self, checkpoint_id: int) -> list[Any]:
        rows, self._rows = self._rows, []
        names = []
        for start in range(0, len(rows), 3):
            name = f"{self._name}-{checkpoint_id}-{start}"
            assert name not in self._table.files, f"{name} is given twice"
            self._table.files[name] = rows[start : start + 3]
            names.append(name)
        return names

    def retain(self, committables: list[Any]) -> None:
        self._table.retained.update(committables)


class TableCommitter(GlobalCommitter):
    """One version per checkpoint."""

    def __init__(self, path: str, pause_ms: int) -> None:
        self.retry = CommitRetry(max_attempts=20, initial_delay_ms=pause_ms, max_delay_ms=10 * pause_ms)
        self._table = TABLES[path]

    def open(self, context: CommitterContext) -> None:
        self._table.jobs[context.history.owner] = context.job
        self._leftovers = [
            name
            for name in self._table.files
            if name.rsplit("-", 4)[0] == context.job and name.rsplit("-", 4)[1] != context.attempt
        ]

    def commit(self, committable: GlobalCommittable) -> None:
        self._table.commit(committable)

    def abort_leftovers(self) -> None:
        for name in set(self._leftovers) - self._table.retained:
            self._table.files.pop(name, None)


def to_table(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Every record, dealt out to the writers so that no subtask has a whole split."""
    failing, parallelism = rng.choice((0, 3)), rng.randint(1, 3)
    kind = rng.choice((TableSink, MergingTableSink))

    def write(env: Any, path: str) -> None:
        sink = kind(path, failing=failing)
        stream = source(env).rebalance() if parallelism > 1 else source(env)
        stream.sink_to(sink).set_parallelism(parallelism)

    return _checked(f"to_table/{kind.__name__}/{parallelism}/{failing}", write, _multiset(splits))


def slow_table(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Commits fail so often that they take longer than the time between checkpoints."""
    parallelism = rng.randint(1, 3)

    def write(env: Any, path: str) -> None:
        sink = TableSink(path, failing=2, pause_ms=50)
        source(env).shuffle().sink_to(sink).set_parallelism(parallelism)

    return _checked(f"slow_table/{parallelism}", write, _multiset(splits))


def counts_to_table(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Running counts by key: state and output must fit."""
    failing, parallelism = rng.choice((0, 4)), rng.randint(1, 3)

    def write(env: Any, path: str) -> None:
        (
            source(env)
            .map(lambda row: (row["key"], 1))
            .key_by(lambda pair: pair[0])
            .reduce(lambda a, b: (a[0], a[1] + b[1]))
            .set_parallelism(parallelism)
            .map(lambda pair: {"key": pair[0], "n": pair[1]})
            .set_parallelism(parallelism)
            .sink_to(TableSink(path, failing=failing))
            .set_parallelism(parallelism)
        )

    totals = Counter(row["key"] for rows in splits for row in rows)
    expected = Counter(freeze({"key": key, "n": n}) for key, total in totals.items() for n in range(1, total + 1))
    return _checked(f"counts_to_table/{parallelism}/{failing}", write, expected)


def _multiset(splits: list[list[Record]]) -> Any:
    return Counter(freeze(row) for rows in splits for row in rows)


def _checked(name: str, write: Callable[[Any, str], None], expected: Any) -> Program:
    """A program whose table is looked at when its rows are."""
    paths: list[str] = []

    def build(env: Any, path: str) -> None:
        paths.append(path)
        write(env, path)

    def check() -> None:
        problems = TABLES[paths[-1]].problems
        assert not problems, problems[0]

    return Program(name, build, expected, notes={"check": check})


GLOBAL = (to_table, slow_table, counts_to_table)
