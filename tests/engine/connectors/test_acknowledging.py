"""Messages that are acknowledged behind a checkpoint, against a queue that does what queues do.

Families: simulation (seeds; a server that loses connections, acknowledgements and itself, a job that dies on both sides
of every step, against what was sent) and mutation (bugs that are planted are found).
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from campaigns import blocks

from headrace.engine.connectors.acknowledging import Acknowledgements, AcknowledgingReader
from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import CheckpointMismatchError
from headrace.engine.kernel.metrics import MetricGroup

REMEMBER_MS = 50
READ_MEANWHILE = 3
"""In 10 ms: what comes again is read sooner than its id is forgotten, which is what is asked of ``remember_ms``."""
PREFETCH = 7
NUM_STEPS = 150
SEEDS_A_BLOCK = 60
UNSURE_MS = 30
"""A server that is there has taken an acknowledgement by then: sooner than its message's id is forgotten."""


class Queue:
    """A server's queue with one consumer. The latest acknowledgements of a connection may be lost with it."""

    def __init__(self, rng):
        self.rng = rng
        self.ready = []
        self.delivered = {}
        self.unsure = []
        self.now_ms = 0
        self.num_tags = 0

    def send(self, message_id):
        self.ready.append(message_id)

    def deliver(self):
        if not self.ready or len(self.delivered) >= PREFETCH:
            return None
        self.num_tags += 1
        self.delivered[self.num_tags] = self.ready.pop(0)
        return self.delivered[self.num_tags], self.num_tags

    def acknowledge(self, tags):
        self.unsure += [(self.delivered.pop(tag), self.now_ms) for tag in tags]

    def passes(self, now_ms):
        """What was acknowledged on a connection that lives is gone, some of it sooner."""
        self.now_ms = now_ms
        sure_ms = now_ms - self.rng.choice([0, UNSURE_MS])
        self.unsure = [(message_id, at_ms) for message_id, at_ms in self.unsure if at_ms > sure_ms]

    def disconnect(self):
        """What is not acknowledged comes again, in order or not, and so may what was acknowledged last."""
        lost = [message_id for message_id, _ in self.unsure[self.rng.randint(0, len(self.unsure)) :]]
        self.unsure = []
        again = lost + list(self.delivered.values())
        if self.rng.random() < 0.5:
            self.rng.shuffle(again)
        self.ready[:0] = again
        self.delivered = {}


class Job:
    """Counts what a reader gives, and goes back to its last complete checkpoint when it dies."""

    def __init__(self, queue, rng, kind):
        self.queue, self.rng, self.kind = queue, rng, kind
        self.now_ms = 0
        self.num_checkpoints = 0
        self.stored = ([], Counter())
        self.taken = {}
        self.restore()

    def restore(self):
        ids, counts = self.stored
        self.messages = self.kind(REMEMBER_MS, ids)
        self.counts = counts.copy()
        self.taken.clear()
        self.messages.connected(self.now_ms)

    def read(self):
        arrived = self.queue.deliver()
        if arrived is not None and self.messages.arrived(*arrived):
            self.counts[arrived[0]] += 1
        self.queue.acknowledge(self.messages.take_due())

    def barrier(self):
        self.num_checkpoints += 1
        self.taken[self.num_checkpoints] = self.messages.snapshot(self.num_checkpoints), self.counts.copy()

    def complete(self, checkpoint_id, *, dies=False):
        """It is durable; whether the reader hears of it is another thing."""
        self.stored = self.taken[checkpoint_id]
        self.taken = {number: taken for number, taken in self.taken.items() if number > checkpoint_id}
        if not dies:
            self.messages.complete(checkpoint_id, self.now_ms)
            self.queue.acknowledge(self.messages.take_due())

    def reconnect(self):
        self.queue.disconnect()
        self.messages.connection_lost()
        self.now_ms += self.rng.choice([0, 0, 3 * REMEMBER_MS])
        self.queue.now_ms = self.now_ms
        if self.taken and self.rng.random() < 0.3:  # a checkpoint ends meanwhile
            self.complete(self.rng.choice(list(self.taken)))
        self.messages.connected(self.now_ms)

    def die(self):
        self.queue.disconnect()
        self.restore()


def simulate(seed, kind=Acknowledgements):
    """What went wrong: counts of lost and doubled messages, and of those that were never acknowledged."""
    rng = random.Random(seed)
    queue = Queue(rng)
    job = Job(queue, rng, kind)
    sent = 0
    for _ in range(NUM_STEPS):
        step = rng.choices(
            ["send", "read", "barrier", "complete", "heard by nobody", "aborted", "reconnect", "die", "time"],
            [30, 40, 8, 7, 1, 1, 3, 2, 8],
        )[0]
        if step == "send":
            queue.send(f"m{sent}")
            sent += 1
            if rng.random() < 0.1:  # whoever sends got no confirmation, and sends again
                queue.send(f"m{sent - 1}")
        elif step == "read":
            job.read()
        elif step == "barrier":
            job.barrier()
        elif step in ("complete", "heard by nobody") and job.taken:
            job.complete(rng.choice(list(job.taken)), dies=step != "complete")
            if step != "complete":
                job.die()
        elif step == "aborted" and job.taken:
            del job.taken[rng.choice(list(job.taken))]
        elif step == "reconnect":
            job.reconnect()
        elif step == "die":
            job.die()
        elif step == "time":
            job.now_ms += 10
            queue.passes(job.now_ms)
            for _ in range(READ_MEANWHILE):
                job.read()
    for _ in range(3 * sent + 20):
        job.read()
        if rng.random() < 0.3:
            job.barrier()
            job.complete(job.num_checkpoints)
    job.barrier()
    job.complete(job.num_checkpoints)
    wanted = Counter(f"m{number}" for number in range(sent))
    return {
        "lost": (wanted - job.counts).total(),
        "doubled": (job.counts - wanted).total(),
        "left": len(queue.ready) + len(queue.delivered),
    }


@pytest.mark.parametrize("block", blocks(2, 40))
def test_nothing_is_lost_doubled_or_left_whatever_fails(block):
    for seed in range(block * SEEDS_A_BLOCK, (block + 1) * SEEDS_A_BLOCK):
        assert simulate(seed) == {"lost": 0, "doubled": 0, "left": 0}, seed


class AcknowledgesAtTheBarrier(Acknowledgements):
    def snapshot(self, checkpoint_id):
        ids = super().snapshot(checkpoint_id)
        self.complete(checkpoint_id, 0)
        return ids


class PassesOverInSilence(Acknowledgements):
    def arrived(self, message_id, tag):
        return message_id not in self._covered and super().arrived(message_id, tag)


class ForgetsWhatIsCovered(Acknowledgements):
    def ids(self):
        return [one for one in super().ids() if one not in self._covered]


class ForgetsWhatIsPending(Acknowledgements):
    def ids(self):
        return [*self._covered, *self._given]


class ForgetsWithoutAConnection(Acknowledgements):
    def connected(self, now_ms):
        self._is_connected = True

    def connection_lost(self):
        super().connection_lost()
        self._is_connected = True


class KeepsVoidTags(Acknowledgements):
    def connection_lost(self):
        self._is_connected = False


class CompletesOneOnly(Acknowledgements):
    def complete(self, checkpoint_id, now_ms):
        self._pending = {one: ids for one, ids in self._pending.items() if one >= checkpoint_id}
        super().complete(checkpoint_id, now_ms)


@pytest.mark.parametrize(
    "kind",
    [
        AcknowledgesAtTheBarrier, PassesOverInSilence, ForgetsWhatIsCovered, ForgetsWhatIsPending,
        ForgetsWithoutAConnection, KeepsVoidTags, CompletesOneOnly,
    ],
)  # fmt: skip
def test_bugs_that_are_planted_are_found(kind):
    def is_found(seed):
        try:
            return any(simulate(seed, kind).values())
        except KeyError:  # a tag that the queue does not know closes a real connection
            return True

    assert any(map(is_found, range(SEEDS_A_BLOCK)))


# ------------------------------------------------------------------------------------------------------------- readers
class Reader(AcknowledgingReader):
    """A reader whose server is the test."""

    def __init__(self, checkpointing=True):
        super().__init__(REMEMBER_MS, PREFETCH)
        self.acknowledged = []
        self.warnings = []
        self.open(
            ReaderContext(
                "queue", 0, 1, lambda: 0, MetricGroup(), None, checkpointing=checkpointing, warn=self.warnings.append
            )
        )

    def subscribe(self, splits):
        for split in splits:
            self.connected(split.split_id)

    def acknowledge(self, split_id, tags):
        self.acknowledged += [(split_id, tag) for tag in tags]

    def poll(self, max_records):
        raise NotImplementedError


def test_queues_move_with_what_is_known_of_them():
    reader = Reader()
    reader.add_splits([Split("a"), Split("b")])
    assert [reader.is_new(*message) for message in [("a", "x", 1), ("b", "x", 1), ("a", "x", 2)]] == [True, True, False]
    first = reader.snapshot_for(1)
    assert reader.is_new("a", "y", 3)
    assert reader.acknowledged == []
    second = reader.snapshot_for(2)
    assert [(split.split_id, split.position) for split in second] == [("a", ["x", "y"]), ("b", ["x"])]
    reader.notify_checkpoint_complete(1)
    reader.settle(has_more=False)
    assert sorted(reader.acknowledged) == [("a", 1), ("a", 2), ("b", 1)]
    other = Reader()
    other.add_splits([first[0]])
    assert not other.is_new("a", "x", 1)
    other.settle(has_more=True)
    assert other.acknowledged == [("a", 1)]
    assert other.is_new("a", "y", 2)


def test_without_checkpoints_a_message_is_acknowledged_when_its_record_has_gone_through():
    reader = Reader(checkpointing=False)
    reader.add_splits([Split("a")])
    reader.settle(has_more=False)
    assert reader.is_new("a", None, 1)
    assert reader.acknowledged == []
    reader.settle(has_more=False)
    assert reader.acknowledged == [("a", 1)]


def test_a_queue_that_waits_for_a_checkpoint_says_so_once():
    reader = Reader()
    reader.add_splits([Split("a")])
    for number in range(PREFETCH):
        reader.settle(has_more=False)
        reader.is_new("a", str(number), number)
    assert reader.warnings == []
    reader.settle(has_more=True)
    reader.settle(has_more=False)
    reader.settle(has_more=False)
    (warning,) = reader.warnings
    assert "no more than 7 messages" in warning


@pytest.mark.parametrize("position", [7, {"a": 1}, [1], ["\ud800"], ["a", None]])
def test_what_is_no_list_of_ids_is_refused(position):
    with pytest.raises(CheckpointMismatchError, match="list of ids"):
        Reader().add_splits([Split("a", position=position)])
