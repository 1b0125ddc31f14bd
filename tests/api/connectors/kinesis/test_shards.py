"""Which shards are handed out when: streams that are resharded at random, played without a server.

Risks and families: children before their parents' end, shards that are never read or twice, watermarks that are let go
too soon (model: a stream with a family of shards, readers that lose what no checkpoint holds; mutation by events that
come twice).
"""

from __future__ import annotations

import json
import random

import pytest
from campaigns import blocks, seeds

from headrace.connectors.kinesis.client import Stream, StreamError
from headrace.connectors.kinesis.shards import CAUGHT_UP, CHILDREN, ENDED, RELEASED, Lineage, Scan, ShardEnumerator
from headrace.engine.connectors.source_protocols import EnumeratorProgress
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError

NOW = {"ResponseMetadata": {"HTTPHeaders": {"date": "Tue, 14 Nov 2023 22:13:20 GMT"}}}
NOW_MS = 1_700_000_000_000


class Family:
    """A stream: its shards, who came of whom, and which are not kept any more."""

    def __init__(self, num_shards):
        self.parents = {}
        self.open = []
        self.gone = set()
        for _ in range(num_shards):
            self.add()

    def add(self, *parents):
        name = f"shard-{len(self.parents)}"
        self.parents[name] = parents
        self.open = [one for one in self.open if one not in parents] + [name]
        return name

    def children(self, name):
        return [child for child, parents in self.parents.items() if name in parents]

    def reshard(self, chosen):
        if chosen.random() < 0.5 and len(self.open) > 1:
            self.add(*chosen.sample(self.open, 2))
        else:
            parent = chosen.choice(self.open)
            self.add(parent)
            self.add(parent)

    # ------------------------------------------------------------------------------------- in the place of `Stream`
    name = "s"

    def connect(self):
        return None

    def shards(self, client):
        listed = [one for one in self.parents if one not in self.gone]
        return [self.told(one) for one in listed], NOW

    def told(self, name):
        parents = dict(zip(("ParentShardId", "AdjacentParentShardId"), self.parents[name], strict=False))
        numbers = {} if name in self.open else {"EndingSequenceNumber": "9"}
        hashes = {"StartingHashKey": "0", "EndingHashKey": "9"}
        return {"ShardId": name, "HashKeyRange": hashes, "SequenceNumberRange": numbers, **parents}


class Job:
    """Readers, and checkpoints of all."""

    def __init__(self, family, *, latest=False, bounded=False, since_ms=0):
        self.family = family
        self.enumerator = ShardEnumerator(family, Scan(latest, since_ms, bounded, None if bounded else 10), 0)
        self.is_bounded = bounded
        self.state = None
        self.reading, self.kept = {}, {}
        self.begun, self.ended, self.caught_up = [], set(), set()
        self.is_final = False
        self.saved = None

    def say(self, discovery):
        self.state = json.loads(json.dumps(discovery.state))
        self.is_final = self.is_final or discovery.is_final
        for split in discovery.splits:
            assert split.split_id not in self.begun, "handed out twice"
            self.begun.append(split.split_id)
            self.reading[split.split_id] = split
        for event in discovery.events:
            for name in event.event[RELEASED]:
                split = self.kept.pop(name, None)
                if split is not None:
                    assert set(split.payload["waits_for"]) <= self.caught_up, f"{name} was let go too soon"

    @property
    def progress(self):
        return EnumeratorProgress(self.state, is_exhausted=False, parallelism=1)

    def discover(self):
        self.say(self.enumerator.discover_from(self.progress))

    def tell(self, event):
        self.say(self.enumerator.handle_source_event(0, event, self.progress))

    def end(self, name, *, tells_children=True):
        self.ended.add(name)
        self.caught_up.add(name)
        self.kept[name] = self.reading.pop(name)
        children = self.family.children(name) if tells_children else []
        told = [{"id": one, "parents": list(self.family.parents[one]), "hashes": ["0", "9"]} for one in children]
        read = [] if self.is_bounded else told
        waiting = [one["shard"] for one in self.state["waiting"] if name in one["shard"]["parents"]]
        self.kept[name].payload.update(told=told, waits_for=[one["id"] for one in [*read, *waiting]])
        self.tell({ENDED: name, CHILDREN: told})

    def catch_up(self, name):
        self.caught_up.add(name)
        self.tell({CAUGHT_UP: name})

    def save(self):
        self.saved = (
            json.dumps(self.state),
            dict(self.reading),
            dict(self.kept),
            list(self.begun),
            set(self.ended),
            set(self.caught_up),
        )

    def restore(self):
        state, self.reading, self.kept, self.begun, self.ended, self.caught_up = self.saved
        self.state, self.reading, self.kept = json.loads(state), dict(self.reading), dict(self.kept)
        self.begun, self.ended, self.caught_up = list(self.begun), set(self.ended), set(self.caught_up)
        for name in list(self.kept):
            self.tell({ENDED: name, CHILDREN: self.kept[name].payload["told"]})

    def check(self):
        parents = self.family.parents
        for name in self.begun:
            for parent in parents[name]:
                assert parent in self.ended or parent not in self.begun, f"{name} begins before the end of {parent}"


class Subtasks:
    """Readers in several subtasks, each with a watermark of its own, of a stream whose records tell when they came.

    Records are read in any order of the shards. One is late if all subtasks have passed its time before it is read.
    """

    def __init__(self, family, num_subtasks, chosen):
        self.family, self.chosen = family, chosen
        self.enumerator = ShardEnumerator(family, Scan(False, 0, False, 10), 0)
        self.records = {}
        self.num_put = 0
        self.saved = None, []
        self.restore(num_subtasks)

    def put(self):
        shard = self.chosen.choice(self.family.open)
        self.num_put += 1
        self.records.setdefault(shard, []).append(self.num_put)

    # ---------------------------------------------------------------------------------------------------------- splits
    def restore(self, num_subtasks):
        """Begin, or go back; the shards that are there are dealt out anew."""
        state, readings = self.saved
        self.state = json.loads(json.dumps(state))
        self.events = []
        self.subtasks = [{} for _ in range(num_subtasks)]
        self.passed = [0] * num_subtasks
        for name, place, last in self.chosen.sample(readings, len(readings)):
            self.take(name, place, last)

    def save(self):
        readings = [(name, one["place"], one["last"]) for mine in self.subtasks for name, one in mine.items()]
        self.saved = json.loads(json.dumps(self.state)), readings

    def take(self, name, place=0, last=0):
        mine = min(self.subtasks, key=len)
        mine[name] = {"place": place, "last": last, "there": None, "has_told": False, "has_ended": False}

    def say(self, discovery):
        self.state = json.loads(json.dumps(discovery.state))
        for split in discovery.splits:
            self.take(split.split_id)
        for event in discovery.events:
            for mine in self.subtasks:
                for name in event.event[RELEASED]:
                    mine.pop(name, None)

    @property
    def progress(self):
        return EnumeratorProgress(self.state, is_exhausted=False, parallelism=len(self.subtasks))

    def discover(self):
        self.say(self.enumerator.discover_from(self.progress))

    def hear(self):
        """Have the enumerator take the next event."""
        if self.events:
            self.say(self.enumerator.handle_source_event(0, self.events.pop(0), self.progress))

    # --------------------------------------------------------------------------------------------------------- records
    def read(self):
        """Read a few records of some shard, and let its subtask's watermark rise."""
        number = self.chosen.randrange(len(self.subtasks))
        mine = self.subtasks[number]
        going = [name for name, one in mine.items() if not one["has_ended"]]
        if not going:
            return
        name = self.chosen.choice(going)
        one, there = mine[name], self.records.get(name, [])
        if one["there"] is None:
            one["there"] = len(there)
        fresh = there[one["place"] : one["place"] + self.chosen.randint(1, 5)]
        late = [time for time in fresh if time <= min(self.passed)]
        assert not late, f"{late} of {name} is behind {self.passed}"
        one["place"] += len(fresh)
        one["last"] = fresh[-1] if fresh else one["last"]
        if one["place"] >= one["there"] and not one["has_told"]:
            one["has_told"] = True
            self.events.append({CAUGHT_UP: name})
        if one["place"] == len(there) and name not in self.family.open:
            one["has_ended"] = True
            children = self.family.children(name)
            told = [{"id": one, "parents": list(self.family.parents[one]), "hashes": ["0", "9"]} for one in children]
            self.events.append({ENDED: name, CHILDREN: told})
        self.passed[number] = max(self.passed[number], min(one["last"] for one in mine.values()))

    @property
    def has_read_all(self):
        there = {name: one["place"] for mine in self.subtasks for name, one in mine.items()}
        return not self.events and there == {name: len(self.records.get(name, [])) for name in self.family.open}


@pytest.mark.parametrize("block", blocks(1, 20))
def test_no_record_is_behind_event_time(block):
    """However often shards were split and merged before a job comes to them, and while it does."""
    for seed in seeds(block, 200):
        chosen = random.Random(seed)
        family = Family(chosen.randint(2, 4))
        job = Subtasks(family, chosen.randint(1, 3), chosen)
        resharding, putting = chosen.choice([(0.02, 0.4), (0.1, 0.3), (0.02, 0.1)])
        for _ in range(chosen.choice([0, 60, 200])):  # before it begins
            family.reshard(chosen) if chosen.random() < resharding else job.put()
        for _ in range(400):
            step = chosen.random()
            if step < resharding:
                family.reshard(chosen)
            elif step < resharding + putting:
                job.put()
            elif step < 0.52:
                job.discover()
            elif step < 0.53:
                job.save()
            elif step < 0.54:
                job.restore(chosen.randint(1, 3))
            elif step < 0.7:
                job.hear()
            else:
                job.read()
        for _ in range(20_000):
            if job.has_read_all:
                break
            job.discover() if chosen.random() < 0.02 else job.hear() if chosen.random() < 0.3 else job.read()
        assert job.has_read_all, f"seed {seed}: {job.state}"


@pytest.mark.parametrize("seed", range(60))
def test_every_shard_is_read_once_behind_its_parents(seed):
    chosen = random.Random(seed)
    family = Family(chosen.randint(1, 3))
    for _ in range(chosen.randrange(3)):
        family.reshard(chosen)
    job = Job(family)
    job.discover()
    job.save()
    for _ in range(60):
        closed = [name for name in job.reading if name not in family.open]
        step = chosen.random()
        if step < 0.15:
            family.reshard(chosen)
        elif step < 0.3:
            job.discover()
        elif step < 0.6 and closed:
            job.end(chosen.choice(closed), tells_children=chosen.random() < 0.8)
        elif step < 0.75 and job.reading:
            job.catch_up(chosen.choice(list(job.reading)))
        elif step < 0.85:
            job.save()
        elif step < 0.95:
            job.restore()
        job.check()
    job.discover()  # there may be nothing to end, as what was read has ended
    while closed := [name for name in job.reading if name not in family.open]:
        job.end(closed[0])
        job.discover()
        job.check()
    for name in list(job.reading):
        job.catch_up(name)
    assert set(job.begun) == set(family.parents)
    assert set(job.reading) == set(family.open)
    assert not job.kept
    assert not job.state["waiting"]


def test_a_shard_that_is_not_listed_any_more_is_in_nobodys_way():
    family = Family(2)
    job = Job(family)
    job.discover()
    one, other = list(family.parents)
    child = family.add(one, other)
    family.gone = {other}
    job.discover()
    assert child not in job.begun  # the other one is still being read
    job.end(one)
    job.end(other)
    assert child in job.begun
    grandchild = family.add(family.add(child))
    family.gone = {one, other, "shard-3"}  # its parent was never seen
    job.discover()
    assert grandchild in job.begun
    assert job.state["ended"] == sorted({one, other})  # as long as they are kept for the child
    job.catch_up(child)
    job.discover()
    assert job.state["ended"] == []


def test_latest_begins_with_the_open_ones_and_now():
    family = Family(1)
    family.add("shard-0")
    family.add("shard-0")
    job = Job(family, latest=True)
    job.discover()
    assert job.begun == ["shard-1", "shard-2"]
    position = job.reading["shard-1"].position
    assert NOW_MS <= position["since_ms"] < NOW_MS + 1_000
    child = family.add("shard-1", "shard-2")
    job.end("shard-1")
    job.end("shard-2")
    assert job.reading[child].position["since_ms"] == 0


def test_a_bounded_job_reads_what_there_was_and_ends():
    family = Family(1)
    family.add("shard-0")
    job = Job(family, bounded=True)
    job.discover()
    assert not job.is_final
    assert job.reading["shard-0"].payload["end_ms"] == NOW_MS + 1_000
    family.add("shard-1")
    job.end("shard-0")
    assert job.is_final
    assert list(job.reading) == ["shard-1"]
    job.end("shard-1")
    assert not job.reading
    assert not job.kept


@pytest.mark.parametrize("state", [7, {}, {"open": [], "waiting": [{}], "ended": [], "held": {}}, {"open": 1}])
def test_another_state_is_refused(state):
    with pytest.raises(CheckpointMismatchError):
        Lineage.of_state(state)


@pytest.mark.parametrize("name", ["", "a b", "arn:aws:s3:::bucket", 7, "x" * 129])
def test_a_stream_has_a_name(name):
    with pytest.raises(ConfigurationError, match="a name, or an ARN"):
        Stream(name)


def test_a_listing_without_shards_is_no_listing():
    """Taken for one, all that were read would be forgotten, and read again when they are listed."""
    pytest.importorskip("boto3")
    listings = [{"Shards": [], "NextToken": "more"}, {"Shards": []}]

    class Client:
        def list_shards(self, **_asked):
            return listings.pop(0)

    with pytest.raises(StreamError, match="without any shard") as refused:
        Stream("s").shards(Client())
    assert refused.value.is_away
    assert not listings
