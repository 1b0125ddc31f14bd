"""Messages that are acknowledged behind a checkpoint, against a queue that does what queues do.

Families: simulation (seeds; a server that loses connections, acknowledgements and itself, a reader that is held back, a
job that dies on both sides of every step, against what was sent) and mutation (bugs that are planted are found).
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from campaigns import blocks

from headrace.engine.connectors.acknowledging import NUM_SPANS, Acknowledgements, AcknowledgingReader
from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import CheckpointMismatchError
from headrace.engine.kernel.metrics import MetricGroup

SPAN_MS = 10
SPANS = 8
PREFETCH = 7
"""Below `SPANS`: in each span that counts the server gives one message at least, and what comes again before others."""
NUM_STEPS = 150
SEEDS_A_BLOCK = 60
UNSURE_MS = 30
"""A server that is there has taken an acknowledgement by then: sooner than its message's id is forgotten."""

QUEUE = "queue"
CONNECTED, LOST, MARK = "connected", "lost", "mark"


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

    def passes(self):
        """What was acknowledged on a connection that lives is gone, some of it sooner."""
        self.now_ms += SPAN_MS
        sure_ms = self.now_ms - self.rng.choice([0, UNSURE_MS])
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


class Client:
    """What stands between a queue and a reader, which takes what it has got whenever it comes to that."""

    def __init__(self, queue):
        self.queue = queue
        self.number = 0
        self.due = []
        self.got = []
        self.connect()

    def connect(self):
        self.number += 1
        self.got.append(CONNECTED)

    def disconnect(self):
        self.queue.disconnect()
        self.got.append(LOST)

    def work(self):
        self.acknowledge()
        while (delivered := self.queue.deliver()) is not None:
            self.got.append((delivered[0], (self.number, delivered[1])))

    def acknowledge(self):
        for due in self.due:
            if due == MARK:
                self.got.append(MARK)
            else:
                self.queue.acknowledge([tag for number, tag in due if number == self.number])
        self.due = []


class VoidTagError(Exception):
    """A message was acknowledged of a connection that the reader knows to be lost: this would close a real one."""


class SimulatedReader(AcknowledgingReader):
    """Reads from a `Client`, and remembers as `kind` does."""

    def __init__(self, client, kind, now_ms):
        super().__init__(SPAN_MS * NUM_SPANS, PREFETCH)
        self.client = client
        self.kind = kind
        self.number = 0
        self.open(ReaderContext(QUEUE, 0, 1, now_ms, MetricGroup(), None))

    def subscribe(self, splits):
        (split,) = splits
        self._messages[split.split_id] = self.kind(SPANS, PREFETCH, split.position)

    def acknowledge(self, split_id, tags):
        if {number for number, _ in tags} != {self.number}:
            raise VoidTagError
        self.client.due.append(tags)

    def mark(self, split_id):
        self.client.due.append(MARK)

    def poll(self, max_records):
        self.settle(has_more=bool(self.client.got))
        found = []
        for _ in range(min(max_records, len(self.client.got))):
            thing = self.client.got.pop(0)
            if thing == CONNECTED:
                self.number += 1
                self.connected(QUEUE)
            elif thing == LOST:
                self.connection_lost(QUEUE)
            elif thing == MARK:
                self.lasted(QUEUE)
            elif self.is_new(QUEUE, *thing):
                found.append(thing[0])
        return found


class Job:
    """Counts what a reader gives, and goes back to its last complete checkpoint when it dies."""

    def __init__(self, queue, rng, kind):
        self.queue, self.rng, self.kind = queue, rng, kind
        self.num_checkpoints = 0
        self.stored = ([], Counter())
        self.taken = {}
        self.restore()

    def restore(self):
        ids, counts = self.stored
        self.client = Client(self.queue)
        self.reader = SimulatedReader(self.client, self.kind, lambda: self.queue.now_ms)
        self.reader.add_splits([Split(QUEUE, position=ids)])
        self.counts = counts.copy()
        self.taken.clear()

    def read(self):
        self.counts.update(self.reader.poll(self.rng.randint(1, 3)))

    def barrier(self):
        self.num_checkpoints += 1
        (split,) = self.reader.snapshot_for(self.num_checkpoints)
        self.taken[self.num_checkpoints] = split.position, self.counts.copy()

    def complete(self, checkpoint_id, *, dies=False):
        """It is durable; whether the reader hears of it is another thing."""
        self.stored = self.taken[checkpoint_id]
        self.taken = {number: taken for number, taken in self.taken.items() if number > checkpoint_id}
        if not dies:
            self.reader.notify_checkpoint_complete(checkpoint_id)

    def complete_one(self, *, dies=False):
        if self.taken:
            self.complete(self.rng.choice(list(self.taken)), dies=dies)
            if dies:
                self.die()

    def reconnect(self):
        self.client.disconnect()
        for _ in range(self.rng.choice([0, 0, 3 * SPANS])):  # the server is away
            self.queue.passes()
            if self.rng.random() < 0.3:
                self.reads_beside_checkpoints()
        self.client.connect()

    def die(self):
        if self.rng.random() < 0.5:  # it was told to: it acknowledges first what it has to
            self.client.acknowledge()
        self.client.disconnect()
        self.restore()

    def reads_beside_checkpoints(self):
        if self.rng.random() < 0.5:
            self.read()
        else:
            self.rng.choice([self.barrier, self.complete_one])()

    def time_passes(self):
        self.queue.passes()
        for _ in range(3):
            self.client.work()
            self.read()

    def is_held_back(self):
        """Others are slower: nothing is read for long, while the client lives and checkpoints are taken."""
        for _ in range(self.rng.choice([1, 3 * SPANS])):
            self.queue.passes()
            self.client.work()
            if self.rng.random() < 0.1:
                self.rng.choice([self.barrier, self.complete_one, self.reconnect_unread])()

    def reconnect_unread(self):
        self.client.disconnect()
        self.client.connect()


def simulate(seed, kind=Acknowledgements):
    """What went wrong: counts of lost and doubled messages, and of those that were never acknowledged."""
    rng = random.Random(seed)
    queue = Queue(rng)
    job = Job(queue, rng, kind)
    sent = 0
    weights = {
        "send": 30, "work": 20, "read": 30, "barrier": 8, "complete": 7, "heard by nobody": 1, "aborted": 1,
        "reconnect": 3, "die": 2, "time": 12, "held back": 2,
    }  # fmt: skip
    for step in rng.choices(list(weights), list(weights.values()), k=NUM_STEPS):
        if step == "send":
            queue.send(f"m{sent}")
            sent += 1
            if rng.random() < 0.1:  # the sender got no confirmation, and sends again
                queue.send(f"m{sent - 1}")
        elif step == "work":
            job.client.work()
        elif step == "read":
            job.read()
        elif step == "barrier":
            job.barrier()
        elif step in ("complete", "heard by nobody"):
            job.complete_one(dies=step != "complete")
        elif step == "aborted" and job.taken:
            del job.taken[rng.choice(list(job.taken))]
        elif step == "reconnect":
            job.reconnect()
        elif step == "die":
            job.die()
        elif step == "time":
            job.time_passes()
        elif step == "held back":
            job.is_held_back()
    for _ in range(3 * sent + 20):
        job.time_passes()
        if rng.random() < 0.3:
            job.barrier()
            job.complete(job.num_checkpoints)
    job.barrier()
    job.complete(job.num_checkpoints)
    job.client.acknowledge()
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
        self.complete(checkpoint_id)
        return ids


class PassesOverInSilence(Acknowledgements):
    def arrived(self, message_id, tag):
        is_covered = message_id in self._may_return or message_id in self._acknowledged
        return not is_covered and super().arrived(message_id, tag)


class ForgetsWhatIsCovered(Acknowledgements):
    def ids(self):
        return [one for one in super().ids() if one not in self._may_return and one not in self._acknowledged]


class ForgetsWhatIsPending(Acknowledgements):
    def ids(self):
        return [*self._may_return, *self._acknowledged, *self._given]


class CountsWhileItWaits(Acknowledgements):
    def lasted(self):
        self._has_acknowledged = True
        super().lasted()


class ForgetsWhatIsStillToCome(Acknowledgements):
    def connected(self):
        return

    def arrived(self, message_id, tag):
        until = self._may_return_until
        is_new = super().arrived(message_id, tag)
        self._may_return_until = until
        return is_new


class ForgetsTooSoon(Acknowledgements):
    def _until(self):
        return self._span + 1


class KeepsVoidTags(Acknowledgements):
    def connection_lost(self):
        return


class CompletesOneOnly(Acknowledgements):
    def complete(self, checkpoint_id):
        self._pending = {one: ids for one, ids in self._pending.items() if one >= checkpoint_id}
        super().complete(checkpoint_id)


@pytest.mark.parametrize(
    "kind",
    [
        AcknowledgesAtTheBarrier, PassesOverInSilence, ForgetsWhatIsCovered, ForgetsWhatIsPending,
        CountsWhileItWaits, ForgetsWhatIsStillToCome, ForgetsTooSoon, KeepsVoidTags, CompletesOneOnly,
    ],
)  # fmt: skip
def test_bugs_that_are_planted_are_found(kind):
    def is_found(seed):
        try:
            return any(simulate(seed, kind).values())
        except VoidTagError:
            return True

    assert any(map(is_found, range(5 * SEEDS_A_BLOCK)))


# -------------------------------------------------------------------------------------------------------------- causes
def test_a_queue_that_waits_for_a_checkpoint_does_not_make_ids_old():
    """Seeds 3809, 4733, 7061, 7240, 8716, 9643, 9805 and 10289, when ids went by the clock."""
    messages = Acknowledgements(SPANS, 2, ["old"])
    messages.connected()
    assert messages.arrived("a", 1)
    assert messages.arrived("b", 2)
    for _ in range(3 * SPANS):  # it may deliver no more, whatever comes again
        messages.lasted()
    messages.snapshot(1)
    messages.complete(1)
    assert messages.take_due() == [1, 2]
    messages.lasted()
    assert not messages.arrived("old", 3)


def test_ids_stay_as_long_as_others_come_again():
    restored = [str(number) for number in range(4 * SPANS)]
    messages = Acknowledgements(SPANS, PREFETCH, restored)
    messages.connected()
    for tag, message_id in enumerate(restored):
        messages.lasted()
        assert not messages.arrived(message_id, tag)
        assert messages.take_due() == [tag]
    for _ in range(SPANS + 1):
        assert messages.ids()
        messages.lasted()
    assert messages.ids() == []


def test_ids_stay_for_the_acknowledgement_of_what_was_sent_twice():
    messages = Acknowledgements(SPANS, PREFETCH)
    messages.connected()
    assert messages.arrived("a", 1)
    messages.snapshot(1)
    messages.complete(1)
    for _ in range(SPANS):
        messages.lasted()
    assert not messages.arrived("a", 2)
    for _ in range(SPANS):
        messages.lasted()
    messages.connection_lost()
    messages.connected()
    assert not messages.arrived("a", 3)


def test_a_connection_that_breaks_while_nothing_is_read_makes_no_ids_old():
    """A source that is held back takes checkpoints, and does not see what its client has got."""
    queue = Queue(random.Random(0))
    client = Client(queue)
    reader = SimulatedReader(client, Acknowledgements, lambda: queue.now_ms)
    reader.add_splits([Split(QUEUE, position=[])])
    queue.send("a")
    client.work()
    assert reader.poll(PREFETCH) == ["a"]
    reader.snapshot_for(1)
    reader.notify_checkpoint_complete(1)
    client.disconnect()  # before the acknowledgement was sent
    client.connect()
    for checkpoint_id in range(2, 4 * SPANS):
        queue.passes()
        client.work()
        reader.snapshot_for(checkpoint_id)
        reader.notify_checkpoint_complete(checkpoint_id)
    assert reader.poll(PREFETCH) == []
    reader.poll(PREFETCH)
    client.work()
    assert (queue.ready, queue.delivered) == ([], {})


# ------------------------------------------------------------------------------------------------------------- readers
class Reader(AcknowledgingReader):
    """A reader whose server is the test."""

    def __init__(self, checkpointing=True):
        super().__init__(SPAN_MS * NUM_SPANS, PREFETCH)
        self.acknowledged = []
        self.marked = []
        self.warnings = []
        self.now_ms = 0
        self.open(
            ReaderContext(
                "queue",
                0,
                1,
                lambda: self.now_ms,
                MetricGroup(),
                None,
                checkpointing=checkpointing,
                warn=self.warnings.append,
            )
        )

    def subscribe(self, splits):
        for split in splits:
            self.connected(split.split_id)

    def acknowledge(self, split_id, tags):
        self.acknowledged += [(split_id, tag) for tag in tags]

    def mark(self, split_id):
        self.marked.append(split_id)

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


def test_a_span_begins_when_the_mark_of_the_last_one_has_come_back():
    reader = Reader()
    reader.add_splits([Split("a"), Split("b")])
    reader.settle(has_more=False)
    assert reader.marked == []
    for _ in range(2):
        reader.now_ms += 10 * SPAN_MS
        reader.settle(has_more=False)
    assert reader.marked == ["a", "b"]
    reader.lasted("b")
    reader.settle(has_more=False)
    assert reader.marked == ["a", "b"]
    reader.now_ms += SPAN_MS
    reader.settle(has_more=False)
    assert reader.marked == ["a", "b", "b"]


def test_without_checkpoints_a_message_is_acknowledged_when_its_record_has_gone_through():
    reader = Reader(checkpointing=False)
    reader.add_splits([Split("a")])
    reader.settle(has_more=False)
    assert reader.is_new("a", None, 1)
    assert reader.acknowledged == []
    reader.settle(has_more=False)
    assert reader.acknowledged == [("a", 1)]


def test_a_savepoint_without_checkpoints_keeps_no_message_back():
    reader = Reader(checkpointing=False)
    reader.add_splits([Split("a")])
    assert reader.is_new("a", "x", 1)
    reader.snapshot_for(1)
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
