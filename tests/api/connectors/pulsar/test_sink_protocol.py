"""What Pulsar's sink sends, to a broker that is played: what it has taken, what it keeps, and what it tells of that.

A broker tells a producer the last number that it has taken, which it may not keep yet. It drops what has a number that
it keeps, hangs up on a number that it has taken and does not keep yet, and goes on behind a message that came damaged.
The client sends what is not confirmed again when a connection breaks, and gives up a message that came damaged.

Risks and families: lost and doubled records (seeds of steps in any order, with deaths of the broker and of the
committer between any two; oracle: what was prepared) and mutation (a committer that believes the broker is caught). The
real broker is in ``test_sink.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from campaigns import blocks, seeds
from server_process import need_client

from headrace.connectors.messages.numbered_output import NumberedCommitter, NumberedWriter
from headrace.connectors.pulsar import TextMessages, sink
from headrace.connectors.pulsar.client import pulsar
from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import CommitterContext, SinkHistory, WriterContext
from headrace.engine.errors import PossibleLossError, SinkError
from headrace.engine.kernel.metrics import MetricGroup

PARTITION = "p"
MOST_TRIES = 200


class CommitterDiesError(BaseException):
    """Signal 9: nothing of the committer runs any more."""


@dataclass(eq=False)
class Producer:
    """The client's end: what is not confirmed, oldest first, and what is under way, in both directions."""

    broker: Broker
    name: str
    last: int
    waiting: list[tuple[int, bytes, Callable[[Any, Any], None]]] = field(default_factory=list)
    sent: list[tuple[int, bytes]] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)
    num_connections: int = 0

    def last_sequence_id(self) -> int:
        return self.last

    def send_async(self, data: bytes, callback: Any, *, sequence_id: int, **_options: Any) -> None:
        self.waiting.append((sequence_id, data, callback))
        self.sent.append((sequence_id, data))
        self.broker.go_on()

    def connect_again(self) -> None:
        self.num_connections += 1
        self.sent, self.confirmed = [(number, data) for number, data, _ in self.waiting], []

    def hear(self, number: int, result: Any) -> None:
        first = self.waiting[0][0] if self.waiting else None
        if first is None or number < first:
            return
        if number > first:  # an answer is missing
            self.connect_again()
            return
        self.waiting.pop(0)[2](result, None)

    def close(self) -> None:
        self.broker.let_go(self)


class Broker:
    """A partition. A step is one thing that happens somewhere."""

    def __init__(self, chosen: random.Random, *, damages: float = 0.0) -> None:
        self.chosen, self.damages = chosen, damages
        self.kept: list[tuple[str, int, bytes]] = []
        self.taken: list[tuple[Producer, int, int, bytes]] = []
        self.producers: list[Producer] = []
        self.num_damaged = self.num_deaths = self.num_kills = 0
        self.may_kill_committer = True

    def create_producer(self, _partition: str, *, producer_name: str, **_options: Any) -> Producer:
        self.go_on()
        if any(one.name == producer_name for one in self.producers):
            raise pulsar().ProducerBusy(producer_name)
        made = Producer(self, producer_name, max(self.last_taken(producer_name), self.last_kept(producer_name), -1))
        self.producers.append(made)
        return made

    def last_kept(self, name: str) -> int:
        return max((number for whose, number, _ in self.kept if whose == name), default=-1)

    def last_taken(self, name: str) -> int:
        return max((number for whose, _, number, _ in self.taken if whose.name == name), default=-1)

    def go_on(self) -> None:
        for _ in range(self.chosen.randrange(4)):
            self.step()
        self.maybe_kill_committer(0.01)

    def maybe_kill_committer(self, chance: float) -> None:
        if self.may_kill_committer and self.chosen.random() < chance:
            self.num_kills += 1
            raise CommitterDiesError

    def step(self) -> None:
        if self.chosen.random() < 0.01:
            self.die()
            return
        steps: list[Callable[[], None]] = [self.keep] if self.taken else []
        for one in self.producers:
            steps += [lambda one=one: self.take(one)] * 3 if one.sent else []
            steps += [lambda one=one: one.hear(one.confirmed.pop(0), pulsar().Result.Ok)] if one.confirmed else []
        if steps:
            self.chosen.choice(steps)()

    def take(self, producer: Producer) -> None:
        number, data = producer.sent.pop(0)
        if self.chosen.random() < self.damages:
            self.num_damaged += 1
            self.may_kill_committer = False  # one that dies before it can tell of that is beyond help
            producer.hear(number, pulsar().Result.ChecksumError)
        elif number <= self.last_kept(producer.name):
            producer.confirmed.append(number)
        elif number <= self.last_taken(producer.name):
            producer.connect_again()
        else:
            self.taken.append((producer, producer.num_connections, number, data))

    def keep(self) -> None:
        producer, connection, number, data = self.taken.pop(0)
        self.kept.append((producer.name, number, data))
        if producer in self.producers and connection == producer.num_connections:
            producer.confirmed.append(number)

    def die(self) -> None:
        """What it has taken and does not keep is gone."""
        self.num_deaths += 1
        self.taken.clear()
        for one in self.producers:
            one.connect_again()

    def let_go(self, producer: Producer) -> None:
        """A producer is gone; some of what it has sent has been on the way, and still comes."""
        if producer not in self.producers:
            return
        connection = producer.num_connections
        for _ in range(self.chosen.randrange(len(producer.sent) + 1)):
            if producer.num_connections == connection and producer.sent:
                self.take(producer)
        self.producers.remove(producer)


def contexts(attempt: int, now_ms: Callable[[], int] = lambda: 0) -> tuple[WriterContext, CommitterContext]:
    history, number = SinkHistory("x", "x"), f"1.{attempt}"
    writing = WriterContext(
        "job", "sink", "sink", 0, 1, number, now_ms, MetricGroup(), lambda point: None, lambda name, value: None,
        True, history,
    )  # fmt: skip
    return writing, CommitterContext("job", "sink", "sink", 0, 1, number, lambda: 0, lambda name, value: None, history)


class Subtask:
    """A writer and a committer, which may die at any moment and are begun anew with what is pending."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.prepared: list[bytes] = []
        self.pending: list[Any] = []
        self.attempt = 0
        self.begin()

    def begin(self) -> None:
        for producer in list(self.broker.producers):
            self.broker.let_go(producer)
        self.attempt += 1
        writing, committing = contexts(self.attempt)
        self.writer = NumberedWriter(sink._place(PARTITION), sink._Encoder(TextMessages(), None, 1_000).rows)
        self.writer.open(writing)
        self.committer = sink._PartitionCommitter(self.broker, PARTITION)
        self.committer.open(committing)

    def prepare(self, checkpoint_id: int, rows: list[str]) -> None:
        self.writer.write(Batch.of_rows(rows))
        self.prepared += [row.encode() for row in rows]
        self.pending += self.writer.prepare(checkpoint_id)

    def commit_all(self) -> None:
        """As a task does: each until it is done, however often."""
        num_tries = 0
        while self.pending:
            num_tries += 1
            assert num_tries < MOST_TRIES, "it does not go on"
            try:
                self.committer.commit(self.pending[0])
            except PossibleLossError:
                raise
            except SinkError:
                continue
            except CommitterDiesError:
                self.begin()
                continue
            self.pending.pop(0)
            self.check_kept()

    def check_kept(self) -> None:
        """What is committed is kept, even if the broker dies now; and nothing is that was not prepared before it."""
        num_committed = len(self.prepared) - sum(one["rows"] for one in self.pending)
        kept = [data for _, _, data in self.broker.kept]
        assert kept[:num_committed] == self.prepared[:num_committed]


def play(seed: int, monkeypatch: pytest.MonkeyPatch, *, damages: float = 0.0) -> Broker:
    """Some checkpoints of a subtask."""
    chosen = random.Random(seed)
    broker = Broker(chosen, damages=damages)
    waits = sink._Window.wait

    def wait(window: Any, partition: str) -> None:
        for _ in range(chosen.choice([20, 400])):
            if window.is_over:
                break
            broker.step()
        broker.maybe_kill_committer(0.02)
        waits(window, partition)

    with monkeypatch.context() as patched:
        patched.setattr(sink._Window, "wait", wait)
        patched.setattr(sink, "SEND_TIMEOUT_S", 0.0)
        patched.setattr(sink, "WINDOW_MESSAGES", 10)
        subtask = Subtask(broker)
        for checkpoint_id in range(1, 7):
            subtask.prepare(checkpoint_id, [f"{checkpoint_id}:{number}" for number in range(chosen.randrange(40))])
            if chosen.random() < 0.7:  # or later, with others
                subtask.commit_all()
        subtask.commit_all()
    assert len(broker.kept) == len(subtask.prepared)
    return broker


@pytest.mark.parametrize("block", blocks(1, 4))
def test_what_is_committed_is_kept_once_and_in_order(block, monkeypatch):
    need_client("pulsar", "pulsar-client")
    played = [play(seed, monkeypatch) for seed in seeds(block, 240)]
    assert sum(broker.num_deaths for broker in played) > len(played)
    assert sum(broker.num_kills for broker in played) > len(played) // 4


def test_a_committer_that_believes_what_a_broker_tells_is_caught(monkeypatch):
    need_client("pulsar", "pulsar-client")
    sends = NumberedCommitter.send_all

    def send_what_is_told_missing(self, publisher, first, batches):
        if self.last_number(publisher) < first + sum(batch.num_rows for batch in batches) - 1:
            sends(self, publisher, first, batches)

    monkeypatch.setattr(NumberedCommitter, "send_all", send_what_is_told_missing)
    with pytest.raises(AssertionError):
        for seed in range(200):
            play(seed, monkeypatch)


def test_a_message_that_came_damaged_is_there_all_the_same_or_told_of(monkeypatch):
    need_client("pulsar", "pulsar-client")
    told, damaged = [], 0
    for seed in range(50):
        try:
            damaged += play(seed, monkeypatch, damages=0.005).num_damaged
        except PossibleLossError as error:
            told.append(str(error))
    assert len(told) > 5
    assert all("came damaged" in one for one in told)
    assert damaged > 5


def test_a_publisher_that_is_quiet_reminds_the_broker_of_itself():
    need_client("pulsar", "pulsar-client")
    now_ms = 0
    writing, committing = contexts(1, lambda: now_ms)
    writer = NumberedWriter(sink._place(PARTITION), sink._Encoder(TextMessages(), None, 1_000).rows, remind_ms=1_000)
    writer.open(writing)
    broker = Broker(random.Random(1))
    broker.may_kill_committer = False
    asked = []
    committer = sink._PartitionCommitter(broker, PARTITION)
    committer.open(committing)
    committer.last_number = lambda publisher: asked.append(publisher) or 1
    another = sink._PartitionCommitter(broker, PARTITION)
    another.open(contexts(2)[1])
    another.last_number = committer.last_number

    now_ms = 5_000
    assert writer.prepare(1) == [], "there is nothing yet to forget"
    writer.write(Batch.of_rows(["row"]))
    assert [one["rows"] for one in writer.prepare(2)] == [1]
    now_ms = 5_999
    assert writer.prepare(3) == []
    now_ms = 6_000
    (reminder,) = writer.prepare(4)
    assert writer.prepare(5) == []
    committer.commit(reminder)
    assert asked == [reminder["publisher"]]
    another.commit(reminder)  # whoever has written it is no more
    assert len(asked) == 1
    writer.write(Batch.of_rows(["row"]))
    assert [one["first"] for one in writer.prepare(6)] == [2]
