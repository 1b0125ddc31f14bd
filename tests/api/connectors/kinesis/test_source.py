"""Streams of Kinesis as a source, against kinesalite: beginnings and ends, resharding, what goes wrong.

Risks and families: lost and doubled records, children before parents (random reshards, checkpoints and restores at
other parallelisms, against what was put in); the middle of aggregated records; iterators that expire, rates and what
was deleted (a proxy that answers in the service's place).
"""

from __future__ import annotations

import json
import random
from collections import defaultdict

import pytest
from campaigns import campaign
from kinesis_faults import faults_in_front_of, refusal
from kinesis_server import aggregated, kinesis_server  # noqa: F401 - a fixture
from reading_kit import Reading

from headrace import WatermarkStrategy
from headrace.connectors.kinesis import BytesMessages, JsonMessages, KinesisSource, TextMessages, client
from headrace.connectors.kinesis.aggregation import hash_of
from headrace.engine.connectors.contract import Split
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, SourceError
from headrace.testing.sources.harness import SourceTestHarness

HALF = 1 << 127


def source_of(server, stream, **options):
    return KinesisSource(
        stream, **{"value": TextMessages(column="text"), "read_interval": 5, **server.arguments(), **options}
    )


class Job(SourceTestHarness):
    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.close()

    def texts(self):
        return sorted(row["text"] for row in self.rows)

    def counter(self, name):
        return sum(one.metrics.counters.get(name, 0) for one in self.subtasks)

    def positions(self):
        """Of all splits, as a checkpoint would have them."""
        return {split.split_id: split.position for one in self.subtasks for split in one.operator._reader.snapshot()}


def texts(*numbers):
    return sorted(map(str, numbers))


# ------------------------------------------------------------------------------------------------- beginnings and ends
def test_a_bounded_source_ends_with_what_was_there_when_it_began(kinesis_server):  # noqa: F811
    stream = kinesis_server.new_stream(2)
    kinesis_server.put(stream, range(30))
    kinesis_server.split(stream)
    kinesis_server.put(stream, range(30, 60))
    with Job(source_of(kinesis_server, stream, bounded=True, max_records_per_read=7), 2) as job:
        job.read(lambda: bool(job.positions()))
        ends_ms = next(iter(job.subtasks[0].operator._reader.snapshot())).payload["end_ms"]
        kinesis_server.wait_until(lambda: clock_ms(kinesis_server) > ends_ms)
        kinesis_server.put(stream, range(100, 110))
        job.read_to_the_end()
        assert job.texts() == texts(*range(60))


def clock_ms(server):
    """When a record that is put now arrives."""
    stream = server.new_stream()
    server.put(stream, ["now"])
    return server.records(stream)[0]["ApproximateArrivalTimestamp"].timestamp() * 1_000


def test_latest_and_times_begin_within_what_is_there(kinesis_server):  # noqa: F811
    stream = kinesis_server.new_stream(2)
    kinesis_server.put(stream, range(10))
    first_ms = clock_ms(kinesis_server)
    kinesis_server.wait_until(lambda: clock_ms(kinesis_server) > first_ms + 1_000)  # Kinesis' clock tells seconds
    with Job(source_of(kinesis_server, stream, start="latest"), 2) as job:
        job.read(lambda: len(job.positions()) == 2)
        kinesis_server.put(stream, range(10, 20))
        job.read_number(10)
        job.rest()
        assert job.texts() == texts(*range(10, 20))
    times = [(one["ApproximateArrivalTimestamp"].timestamp(), one["Data"]) for one in kinesis_server.records(stream)]
    since_ms = round(max(time for time, data in times if int(data) < 10) * 1_000) + 1
    with Job(source_of(kinesis_server, stream, start=f"timestamp:{since_ms}", bounded=True)) as job:
        job.read_to_the_end()
        assert job.texts() == texts(*range(10, 20))


def test_what_kinesis_says_of_a_record_is_a_column(kinesis_server):  # noqa: F811
    stream = kinesis_server.new_stream()
    kinesis_server.put(stream, ["a"], keys=["k"])
    names = ["timestamp", "shard_id", "sequence_number", "sub_sequence_number", "partition_key"]
    with Job(source_of(kinesis_server, stream, metadata=names)) as job:
        job.read_number(1)
        (row,) = job.rows
    (record,) = kinesis_server.records(stream)
    assert row.pop("timestamp").timestamp() == record["ApproximateArrivalTimestamp"].timestamp()
    assert row == {
        "text": "a", "shard_id": record["ShardId"], "sequence_number": record["SequenceNumber"],
        "sub_sequence_number": None, "partition_key": "k",
    }  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- resharding
@pytest.mark.parametrize("seed", [0, campaign(1), campaign(2), campaign(3)])
def test_resharded_under_a_job_that_fails_and_is_rescaled(seed, kinesis_server):  # noqa: F811
    """Records of a key come in their order, whatever shards they were in, and with them event time."""
    chosen = random.Random(seed)
    stream, sent = kinesis_server.new_stream(2), 0

    def put(number):
        nonlocal sent
        rows = [{"key": f"k{n % 11}", "n": n} for n in range(sent, sent + number)]
        sent += number
        for first in range(0, number, 11):  # a key once in a request: Kinesis gives their order no other way
            some = rows[first : first + 11]
            kinesis_server.put(stream, map(json.dumps, some), keys=[row["key"] for row in some])

    put(33)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(22).with_timestamp_assigner("n")
    value = JsonMessages({"key": "string", "n": "int64"})
    source = source_of(kinesis_server, stream, value=value, discovery_interval=500)
    with Job(source, 2, strategy) as job:
        for step in range(6):
            if len(kinesis_server.open_shards(stream)) > 2 and chosen.random() < 0.5:
                kinesis_server.merge(stream)
            else:
                kinesis_server.split(stream, chosen.randrange(len(kinesis_server.open_shards(stream))))
            put(33)
            goal = chosen.randint(len(job.rows), sent)
            job.read(lambda goal=goal: len(job.rows) >= goal, 7)
            if chosen.random() < 0.7:
                job.checkpoint()
            if chosen.random() < 0.7:
                job.start(chosen.randint(1, 3), fresh=chosen.random() < 0.5)
            if step == 2:
                assert len(kinesis_server.shards(stream)) > 3
        job.read_number(sent, 7)
        job.rest()
        came = defaultdict(list)
        for row in job.rows:
            came[row["key"]].append(row["n"])
        assert sorted(row["n"] for row in job.rows) == list(range(sent))
        assert all(numbers == sorted(numbers) for numbers in came.values()), came
        job.checkpoint()
        job.start(2)
        left = {shard["ShardId"] for shard in kinesis_server.open_shards(stream)}
        job.read(lambda: set(job.positions()) == left)  # what has ended is let go
        job.rest()
        assert len(job.rows) == sent, "what has ended is not read again"


def lateness(job):
    """Records behind the lowest watermark, late to all that have records of all subtasks; and a look at what came."""
    lowest, late, seen = [-1], [], [0]

    def look(num_rows):
        fresh, seen[0] = job.rows[seen[0] :], len(job.rows)
        late.extend(row for row in fresh if int(row["text"]) <= lowest[0])
        known = [one.watermark_ms for one in job.subtasks]
        lowest[0] = max(lowest[0], min((-1 if ms is None else ms for ms in known), default=-1))
        return len(job.rows) >= num_rows

    return late, look


IN_ORDER = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: int(row["text"]))


def test_event_time_waits_for_children_that_are_behind(kinesis_server):  # noqa: F811
    """A job that begins long after a stream was resharded: one shard lasts, the other has children."""
    stream = kinesis_server.new_stream(2)
    kinesis_server.put(stream, range(0, 100), 0)
    kinesis_server.put(stream, range(0, 1_000, 10), 1)
    kinesis_server.split(stream, 0)
    kinesis_server.put(stream, range(100, 1_000), 0)
    kinesis_server.put(stream, range(100, 1_000), 1)
    for parallelism in (1, 2):
        with Job(source_of(kinesis_server, stream, max_records_per_read=50), parallelism, IN_ORDER) as job:
            late, look = lateness(job)
            job.read(lambda look=look: look(2_000))
            assert not late
            job.read(lambda job=job: min(one.watermark_ms for one in job.subtasks) >= 989)


def test_event_time_waits_for_children_of_children(kinesis_server):  # noqa: F811
    """Two shards were merged, and what came of them was split, before the job begins. What was merged, and one of what
    it was split into, go to subtasks that have read all of a shard which lasts.
    """
    stream = kinesis_server.new_stream(7)
    for place in range(7):
        kinesis_server.put(stream, range(place, 200, 2) if place in (1, 2) else range(place, 1_000, 30), place)
    kinesis_server.merge(stream, 1)
    kinesis_server.put(stream, range(200, 300), 1)
    kinesis_server.split(stream, 1)
    kinesis_server.put(stream, range(300, 1_000, 2), 1)
    kinesis_server.put(stream, range(301, 1_000, 30), 2)
    with Job(source_of(kinesis_server, stream, max_records_per_read=50), 4, IN_ORDER) as job:
        late, look = lateness(job)
        job.read(lambda: look(843))
        assert not late
        job.read(lambda: min(one.watermark_ms for one in job.subtasks) >= 969)


# ---------------------------------------------------------------------------------------------------------- aggregation
def test_a_restore_in_the_middle_of_an_aggregated_record_is_exact(kinesis_server):  # noqa: F811
    stream = kinesis_server.new_stream()
    users = [[(f"k{n}", str(n).encode()) for n in range(first, first + 2_500)] for first in (0, 2_500)]
    kinesis_server.put(stream, [aggregated(users[0]), b"plain", aggregated(users[1])])
    expected = [*(str(n) for n in range(2_500)), "plain", *(str(n) for n in range(2_500, 5_000))]
    source = source_of(kinesis_server, stream, metadata=["sub_sequence_number", "partition_key"])
    with Job(source) as job:
        subs = set()
        for _ in range(3):
            before = len(job.rows)
            job.read(lambda before=before: len(job.rows) > before, 1)
            job.checkpoint()
            subs |= {one["sub"] for one in job.positions().values()}
            job.step(1)
            job.start()
        job.read_number(len(expected))
        job.rest()
        assert [row["text"] for row in job.rows] == expected
        assert job.rows[7]["sub_sequence_number"] == 7
        assert job.rows[7]["partition_key"] == "k7"
        assert job.rows[2_500]["sub_sequence_number"] is None
    assert 999 in subs


def test_records_of_another_shard_in_an_aggregated_one_are_passed_over(kinesis_server):  # noqa: F811
    stream = kinesis_server.new_stream(2)
    own = [key for key in map(str, range(40)) if hash_of(key) < HALF - 1]
    users = [(str(n), str(n).encode()) for n in range(40)]
    kinesis_server.put(stream, [aggregated(users)], 0)
    kinesis_server.put(stream, [aggregated([("k", b"told"), ("k", b"not")], [5, HALF + 5])], 0)
    with Job(source_of(kinesis_server, stream)) as job:
        job.read_number(len(own) + 1)
        job.rest()
        assert job.texts() == sorted([*own, "told"])
        assert job.counter("num_records_of_other_shards") == 41 - len(own)


# ------------------------------------------------------------------------------------------------------ what goes wrong
def test_iterators_that_expire_are_made_anew_behind_what_was_read(kinesis_server):  # noqa: F811
    stream = kinesis_server.new_stream()
    kinesis_server.put(stream, range(100))
    with faults_in_front_of(kinesis_server) as proxy:
        proxy.faults["GetRecords"].extend([None, None, *[refusal("ExpiredIteratorException")] * 2] * 20)
        source = source_of(kinesis_server, stream, endpoint=proxy.url, max_records_per_read=9)
        with Job(source) as job:
            job.read_number(100)
            job.rest()
            assert [row["text"] for row in job.rows] == list(map(str, range(100)))
        assert proxy.asked["GetShardIterator"] > 5


def test_what_is_too_much_is_waited_out_and_counted(kinesis_server):  # noqa: F811
    stream = kinesis_server.new_stream(2)
    kinesis_server.put(stream, range(40))
    with faults_in_front_of(kinesis_server) as proxy:
        proxy.faults["ListShards"].extend([refusal("LimitExceededException")])
        proxy.faults["GetShardIterator"].extend([refusal("ProvisionedThroughputExceededException"), None])
        proxy.faults["GetRecords"].extend([refusal("ProvisionedThroughputExceededException"), None] * 2)
        proxy.faults["GetRecords"].extend([refusal("InternalFailure", 500), refusal("ServiceUnavailable", 503)])
        with Job(source_of(kinesis_server, stream, endpoint=proxy.url), 1) as job:
            job.read_number(40)
            job.rest()
            assert job.texts() == texts(*range(40))
            assert job.counter("num_throttled") == 3


@pytest.mark.parametrize("is_shard_gone", [False, True])
def test_what_was_deleted_before_it_was_read_is_an_error_unless_that_is_passed_over(is_shard_gone, kinesis_server):  # noqa: F811
    stream = kinesis_server.new_stream()
    kinesis_server.put(stream, range(10))
    with faults_in_front_of(kinesis_server) as proxy:
        source = source_of(kinesis_server, stream, endpoint=proxy.url, on_expired="fail")
        with Job(source) as job:
            job.read_number(10)
            ((shard, position),) = job.positions().items()
        payload = {"hashes": ["0", str((1 << 128) - 1)], "parents": [], "end_ms": None}
        kinesis_server.put(stream, ["10"])
        proxy.rewrite = hiding(is_shard_gone)
        aged = {**position, "until_ms": position["until_ms"] - 25 * 3_600_000}
        with pytest.raises(SourceError, match="cannot be read on") as lost:
            rows_of(source, Split(shard, payload, aged))
        assert position["sequence"] in str(lost.value)
        assert shard in str(lost.value)
        assert "on_expired" in str(lost.value)
        if not is_shard_gone:
            # It was read up to its end a moment ago: all that is there has come since.
            assert rows_of(source, Split(shard, payload, position)) == ["10"]
        lenient = source_of(kinesis_server, stream, endpoint=proxy.url, on_expired="earliest")
        warnings = []
        found = rows_of(lenient, Split(shard, payload, aged), warnings)
        assert found == ([] if is_shard_gone else ["10"])
        assert "on_expired" in warnings[0]


def test_what_came_and_was_deleted_before_a_shard_gave_its_first_record_is_an_error(kinesis_server):  # noqa: F811
    stream = kinesis_server.new_stream()
    source = source_of(kinesis_server, stream)
    with Job(source) as job:
        job.rest(2_000)
        ((shard, position),) = job.positions().items()
    assert position["sequence"] is None
    assert position["until_ms"] > 0
    kinesis_server.put(stream, range(2))
    payload = {"hashes": ["0", str((1 << 128) - 1)], "parents": [], "end_ms": None}
    assert rows_of(source, Split(shard, payload, position)) == ["0", "1"]
    aged = {**position, "until_ms": position["until_ms"] - 25 * 3_600_000}
    with pytest.raises(SourceError, match="has given no record yet"):
        rows_of(source, Split(shard, payload, aged))


def hiding(is_shard_gone):
    """The last record is not there any more, or the shard is not."""

    def rewrite(operation, asked, answer):
        is_hidden = asked.get("ShardIteratorType") == "AT_SEQUENCE_NUMBER" or is_shard_gone
        return refusal("ResourceNotFoundException") if operation == "GetShardIterator" and is_hidden else answer

    return rewrite


def rows_of(source, split, warnings=None):
    """What a reader gives of a split that it goes on with, until it rests or is at its end."""
    reading, rows = Reading(source, [split]), []
    while not rows and not reading.events:
        rows = reading.poll()
    reading.close()
    if warnings is not None:
        warnings += reading.warnings
    return [row["text"] for row in rows]


@pytest.mark.parametrize(
    "damage",
    [
        {"sequence": 7}, {"sequence": "x"}, {"sub": -1}, {"sub": 1, "sequence": None}, {"since_ms": None},
        {"children": [{"id": "a"}]}, {"more": 1}, {"until_ms": "1"},
    ],
)  # fmt: skip
def test_a_position_of_something_else_is_refused(damage):
    good = {"sequence": "1", "sub": None, "since_ms": 0, "until_ms": 0, "children": None}
    payload = {"hashes": ["0", "9"], "parents": [], "end_ms": None}
    reader = KinesisSource("s", value=BytesMessages()).create_reader()
    reader.reading_of(Split("shard", payload, good))
    with pytest.raises(CheckpointMismatchError):
        reader.reading_of(Split("shard", payload, {**good, **damage}))
    with pytest.raises(CheckpointMismatchError):
        reader.reading_of(Split("shard", {**payload, "hashes": ["0"]}, good))


def test_credentials_and_streams_that_are_missing_are_errors_at_start(kinesis_server, monkeypatch, tmp_path):  # noqa: F811
    with pytest.raises(SourceError, match="not found"), Job(source_of(kinesis_server, "no-such-stream")) as job:
        job.rest(200)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    client._session.cache_clear()
    try:
        with pytest.raises(ConfigurationError, match="credentials"), Job(
            source_of(kinesis_server, "s", options={})
        ) as job:  # fmt: skip
            job.rest(200)
    finally:
        client._session.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"stream": ""}, "a name, or an ARN"),
        ({"start": "first"}, "earliest, latest"),
        ({"on_expired": "skip"}, "fail or earliest"),
        ({"max_records_per_read": 10_001}, "1 to 10000"),
        ({"read_interval": -1}, "must not be negative"),
        ({"metadata": ["shard"]}, "shard_id"),
        ({"value": "json"}, "format of messages"),
    ],
)
def test_wrong_arguments_are_refused(arguments, told):
    with pytest.raises(ConfigurationError, match=told):
        KinesisSource(**{"stream": "s", "value": TextMessages(column="text"), **arguments})
