"""Programs that write into a simulated transactional store, as a broker or a database is one.

The store (`Ledger`) lives outside of every simulated process. It knows open, prepared, committed and aborted
transactions; it fails some calls before their effect and some behind it; it aborts what stays prepared for too long;
and it never takes an unknown transaction for a committed one. What it has committed is visible as a file, so that runs
are judged as those of the file sink are."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.programs import Program, Record, freeze

from headrace import StreamExecutionEnvironment
from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    CommitRetry,
    Committer,
    CommitterContext,
    ProvingCommitter,
    SinkWriter,
    WriterContext,
)
from headrace.engine.errors import PossibleLossError, SinkFencedError
from headrace.state.files.filesystem import filesystem_for

NEVER_MS = 1 << 40
ROWS_PER_TRANSACTION = 3
"""Few, so that a checkpoint of a subtask has several to commit."""


@dataclass
class Transaction:
    """Rows under a name that only its writer gives."""

    owner: str
    rows: list[Any] = field(default_factory=list)
    state: str = "open"
    prepared_ms: int = 0


@dataclass
class Ledger:
    """The store.

    Attributes:
        path: Where committed rows are visible.
        timeout_ms: How long a transaction may stay prepared.
        failing: One of so many commits fails, half of them behind their effect; 0 for none.
    """

    path: str
    timeout_ms: int = NEVER_MS
    failing: int = 0
    transactions: dict[str, Transaction] = field(default_factory=dict)
    num_calls: int = 0
    owners: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def take_over(self, operator: str, attempt: tuple[int, ...]) -> None:
        """Shut out earlier attempts of an operator."""
        self.owners[operator] = max(self.owners.get(operator, attempt), attempt)
        self.check_owner(operator, attempt)

    def check_owner(self, operator: str, attempt: tuple[int, ...]) -> None:
        if self.owners.get(operator, attempt) != attempt:
            message = f"{operator} has been taken over"
            raise SinkFencedError(message)

    def append(self, name: str, owner: str, rows: list[Any]) -> None:
        transaction = self.transactions.setdefault(name, Transaction(owner))
        if transaction.state != "open":
            message = f"transaction {name} is {transaction.state}"
            raise SinkFencedError(message)
        transaction.rows += rows

    def prepare(self, name: str, now_ms: int) -> None:
        transaction = self.transactions[name]
        if transaction.state != "open":
            message = f"transaction {name} is {transaction.state}"
            raise SinkFencedError(message)
        transaction.state, transaction.prepared_ms = "prepared", now_ms

    def commit(self, name: str, now_ms: int) -> None:
        """Idempotent; fails now and then."""
        self.num_calls += 1
        chance = zlib.crc32(f"{name} {self.num_calls}".encode()) % (2 * self.failing) if self.failing else -1
        if chance == 0:
            message = "the store does not answer"
            raise OSError(message)
        transaction = self.transactions.get(name)
        if transaction is not None and transaction.state == "prepared":
            if now_ms - transaction.prepared_ms > self.timeout_ms:
                transaction.state = "aborted"
            else:
                transaction.state = "committed"
                self.show(name, transaction)
        if transaction is None or transaction.state != "committed":
            state = "unknown" if transaction is None else transaction.state
            message = f"transaction {name} is {state} and was never committed: possible loss"
            raise PossibleLossError(message, rows=0 if transaction is None else len(transaction.rows))
        if chance == 1:
            message = "the store's answer got lost"
            raise OSError(message)

    def abort(self, name: str) -> None:
        transaction = self.transactions[name]
        if transaction.state != "committed":
            transaction.state = "aborted"

    def show(self, name: str, transaction: Transaction) -> None:
        fs, root = filesystem_for(self.path)
        with fs.open_output(f"{root}/{name}.jsonl") as stream:
            stream.write("\n".join(json.dumps(row) for row in transaction.rows).encode())


LEDGERS: dict[str, Ledger] = {}
"""By path: outside of every process, which have copies of everything else."""


class LedgerSink:
    """Writes into the ledger of a path."""

    def __init__(self, path: str, timeout_ms: int = NEVER_MS, failing: int = 0, pause_ms: int = 5) -> None:
        self.path = path
        self.pause_ms = pause_ms
        LEDGERS[path] = Ledger(path, timeout_ms, failing)

    def create_writer(self) -> SinkWriter:
        return LedgerWriter(self.path)

    def create_committer(self) -> Committer:
        return LedgerCommitter(self.path, self.pause_ms)


class ProvingLedgerSink(LedgerSink):
    """Knows what it has committed, and shuts out earlier attempts."""

    proves_commits = True

    def create_committer(self) -> ProvingCommitter:
        return ProvingLedgerCommitter(self.path, self.pause_ms)


class LedgerWriter(SinkWriter):
    """One open transaction after another."""

    def __init__(self, path: str) -> None:
        self._ledger = LEDGERS[path]
        self._rows: list[Any] = []

    def open(self, context: WriterContext) -> None:
        self._context = context
        self._owner = f"{context.job}/{context.operator}/{context.subtask}/{context.attempt}"

    def write(self, batch: Batch) -> None:
        self._rows += batch.rows

    def prepare(self, checkpoint_id: int) -> list[Any]:
        rows, self._rows = self._rows, []
        names = []
        for number, start in enumerate(range(0, len(rows), ROWS_PER_TRANSACTION)):
            name = self.name(checkpoint_id, number)
            self._ledger.append(name, self._owner, rows[start : start + ROWS_PER_TRANSACTION])
            self._ledger.prepare(name, self._context.now_ms())
            names.append(name)
        return names

    def name(self, checkpoint_id: int, number: int) -> str:
        token = zlib.crc32(self._owner.encode())
        return f"part-{self._context.subtask:05d}-{token:08x}-{checkpoint_id:05d}-{number:05d}"


class LedgerCommitter(Committer):
    """Commits by name."""

    def __init__(self, path: str, pause_ms: int) -> None:
        self.retry = CommitRetry(max_attempts=20, initial_delay_ms=pause_ms, max_delay_ms=10 * pause_ms)
        self._ledger = LEDGERS[path]
        self._leftovers: list[str] = []

    def open(self, context: CommitterContext) -> None:
        self._context = context
        self._leftovers = []
        prefix = f"{context.job}/{context.operator}/"
        for name, transaction in self._ledger.transactions.items():
            if transaction.owner.startswith(prefix) and transaction.state in ("open", "prepared"):
                subtask, attempt = transaction.owner.removeprefix(prefix).split("/")
                if attempt != context.attempt and int(subtask) % context.parallelism == context.subtask:
                    self._leftovers.append(name)

    def commit(self, committable: Any) -> None:
        self._ledger.commit(committable, self._context.now_ms())

    def abort_leftovers(self) -> None:
        for name in self._leftovers:
            self._ledger.abort(name)


class ProvingLedgerCommitter(LedgerCommitter, ProvingCommitter):
    """Looks into the ledger, which forgets nothing."""

    def open(self, context: CommitterContext) -> None:
        super().open(context)
        self._operator = f"{context.job}/{context.operator}/"
        self._attempt = tuple(int(number) for number in context.attempt.split("."))
        self._ledger.take_over(self._operator, self._attempt)

    def commit(self, committable: Any) -> None:
        self._ledger.check_owner(self._operator, self._attempt)
        super().commit(committable)

    def num_committed_after(self, checkpoint_id: int) -> int:
        return sum(
            len(transaction.rows)
            for name, transaction in self._ledger.transactions.items()
            if transaction.state == "committed"
            and transaction.owner.startswith(self._operator)
            and int(name.split("-")[3]) > checkpoint_id
        )


def to_ledger(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Every record, into a store that fails now and then."""
    failing = rng.choice((0, 3, 10))
    parallelism = rng.randint(1, 3)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        stream = source(env).map(lambda row: row).set_parallelism(parallelism)
        stream.sink_to(LedgerSink(path, failing=failing)).set_parallelism(parallelism)

    expected = _multiset(splits)
    return Program(f"to_ledger/{parallelism}/{failing}", build, expected)


def counts_to_ledger(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Running counts; rows of a key must come in order, and the sink has its own number of subtasks."""
    failing = rng.choice((0, 4))
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
            .sink_to(LedgerSink(path, failing=failing))
            .set_parallelism(parallelism)
        )

    totals: dict[str, int] = {}
    for rows in splits:
        for row in rows:
            totals[row["key"]] = totals.get(row["key"], 0) + 1
    expected = _multiset([[{"key": key, "n": n} for key, total in totals.items() for n in range(1, total + 1)]])
    return Program(f"counts_to_ledger/{parallelism}/{failing}", build, expected, ordered_by=("key", "n"))


def to_proving_ledger(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Every record, into a store that can tell what it has committed; slow to commit, so that much is not."""
    failing, parallelism = rng.choice((0, 2)), rng.randint(1, 3)

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        sink = ProvingLedgerSink(path, failing=failing, pause_ms=50)
        source(env).sink_to(sink).set_parallelism(parallelism)

    return Program(f"to_proving_ledger/{parallelism}/{failing}", build, _multiset(splits))


def slow_ledger(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
    """Every record, into a store that fails so often that commits take longer than the time between checkpoints."""

    def build(env: StreamExecutionEnvironment, path: str) -> None:
        source(env).sink_to(LedgerSink(path, failing=2, pause_ms=50))

    return Program("slow_ledger", build, _multiset(splits))


def expiring(timeout_ms: int) -> Callable[..., Program]:
    """The first program, into a store that aborts what stays prepared for longer."""

    def shape(rng: random.Random, splits: list[list[Record]], source: Any) -> Program:
        def build(env: StreamExecutionEnvironment, path: str) -> None:
            source(env).sink_to(LedgerSink(path, timeout_ms))

        return Program(f"expiring/{timeout_ms}", build, _multiset(splits))

    return shape


def _multiset(splits: list[list[Record]]) -> Any:
    from collections import Counter

    return Counter(freeze(row) for rows in splits for row in rows)


TRANSACTIONS = (to_ledger, counts_to_ledger, slow_ledger)
PROVING = (to_proving_ledger,)
