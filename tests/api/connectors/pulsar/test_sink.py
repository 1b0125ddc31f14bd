"""Topics of Pulsar as a sink, against a real broker: the contract of sinks, jobs whose broker is killed, errors.

Risks and families: lost and doubled records (contract suite: crashes, zombies, parallelisms; a job that fails and is
rescaled while its broker is killed, against what was sent); wrong bytes (oracle: Pulsar's own client); silent refusals
(a broker that does not deduplicate, errors by name).
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from time import monotonic

import numpy as np
import pyarrow as pa
import pytest
from campaigns import campaign
from failing_functions import FailsAtFirst, some
from java_homes import java_for
from pulsar_server import PulsarServer, fetched_jars, pulsar_server  # noqa: F401 - a fixture

from headrace import RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.pulsar import JsonMessages, PulsarSink, PulsarSource, TextMessages, sink
from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import CommitterContext, SinkHistory
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, HeadraceError, PossibleLossError
from headrace.testing.sink_contract import SINK_CONTRACT, SinkSubject
from headrace.testing.sinks.harness import SinkTestHarness

PLAIN = "public/plain"


def sink_of(server, topic, **options):
    return PulsarSink(server.url, topic, **{"value": TextMessages(), **options})


def told(call):
    with pytest.raises(HeadraceError) as refused:
        call()
    return str(refused.value)


def started(written_to, **options):
    harness = SinkTestHarness(written_to, **options)
    harness.start()
    return harness


@pytest.mark.parametrize(
    "check",
    [campaign(check) if "anywhere" in check.__name__ else check for check in SINK_CONTRACT],
    ids=lambda check: check.__name__,
)
def test_contract(check, pulsar_server):  # noqa: F811
    topic = pulsar_server.new_topic(2)
    check(SinkSubject(sink_of(pulsar_server, topic), lambda: map(int, pulsar_server.values(topic)), str))


def test_a_job_writes_exactly_once_while_its_broker_is_killed_and_it_is_rescaled(pulsar_server, tmp_path):  # noqa: F811
    topics, target = [pulsar_server.new_topic() for _ in range(3)], pulsar_server.new_topic(3)
    path, sent = None, 0
    for parallelism in (2, 3, 1):
        for topic in topics:
            pulsar_server.send(topic, [str(sent + n) for n in range(100)])
            sent += 100
        with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
            env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
            env.set_restart_strategy(RestartStrategies.fixed_delay_restart(20, 100))
            source = PulsarSource(pulsar_server.url, topics, value=TextMessages())
            stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in")
            failing = stream.map(FailsAtFirst(tmp_path, some(3, of=900))).uid("map")
            failing.rebalance().sink_to(sink_of(pulsar_server, target)).uid("out")
            client = env.execute_async("part", from_savepoint=path)
            if parallelism == 3:
                pulsar_server.kill()
                pulsar_server.start()
            while len(pulsar_server.values(target)) < sent:
                assert client.view().state not in ("FAILED", "FINISHED"), client.view().failures
            path = client.stop_with_savepoint(str(tmp_path / "savepoints"))
    assert len(list(tmp_path.glob("failed-*"))) == 3
    assert Counter(map(int, pulsar_server.values(target))) == Counter(range(sent))


def test_what_was_sent_before_a_broker_died_is_not_sent_again(pulsar_server):  # noqa: F811
    topic = pulsar_server.new_topic(2)
    harness = started(sink_of(pulsar_server, topic))
    harness.write([str(n) for n in range(2_500)])
    harness.checkpoint(1)
    harness.write(["x"])
    harness.checkpoint(2, notifies=False)
    pulsar_server.kill()
    pulsar_server.start()
    harness.start()  # from checkpoint 2, which may hold what is sent
    assert Counter(pulsar_server.values(topic)) == Counter([*map(str, range(2_500)), "x"])


def test_keys_and_event_times_are_those_of_records(pulsar_server):  # noqa: F811
    topic = pulsar_server.new_topic(5)
    keys = [*map(str, range(40)), "long key " * 20, "é", None]
    harness = started(sink_of(pulsar_server, topic, value=JsonMessages(), key="k"))
    times = np.arange(-1, len(keys) - 1, dtype=np.int64)
    for checkpoint_id in (1, 2):
        harness.write(Batch.of_rows([{"k": key} for key in keys]).with_timestamps(times))
        harness.checkpoint(checkpoint_id)
    found = pulsar_server.messages(topic)
    assert len(found) == 2 * len(keys)
    for key, time in zip(keys, times, strict=True):
        mine = [one for one in found if one.partition_key() == (key or "")]
        assert [json.loads(one.data()) for one in mine] == [{"k": key}] * 2
        assert [one.event_timestamp() for one in mine] == [max(0, time)] * 2
        if key is not None:
            partition = f"{topic}-partition-{sink.partition_of(key, 5)}"
            assert {one.topic_name() for one in mine} == {partition}
    assert len({one.topic_name() for one in found}) == 5


@pytest.mark.parametrize(
    ("key", "hash_in_java"),
    [("", 0), ("hello", 99_162_322), ("polygenelubricants", -(1 << 31)), ("é😀", (233 * 31 + 0xD83D) * 31 + 0xDE00)],
)
def test_a_key_has_the_partition_that_pulsars_client_in_java_gives_it(key, hash_in_java):
    for number in (1, 3, 7, 1_000_003):
        assert sink.partition_of(key, number) == (hash_in_java & 0x7FFFFFFF) % number


def test_a_broker_that_does_not_deduplicate_is_refused_after_the_first_rows(pulsar_server):  # noqa: F811
    if PLAIN not in pulsar_server.admin("GET", "namespaces/public"):
        pulsar_server.admin("PUT", f"namespaces/{PLAIN}")
    pulsar_server.admin("POST", f"namespaces/{PLAIN}/deduplication", False)
    topic = pulsar_server.new_topic(namespace=PLAIN)
    harness = started(sink_of(pulsar_server, topic))
    harness.write(["1"])
    with pytest.raises(ConfigurationError, match="does not deduplicate"):
        harness.checkpoint(1)
    assert pulsar_server.values(topic) == ["1"]


def test_what_a_topic_has_lost_is_noticed(pulsar_server):  # noqa: F811
    topic = pulsar_server.new_topic()
    harness = started(sink_of(pulsar_server, topic))
    harness.write(["1", "2"])
    harness.checkpoint(1)
    path = f"persistent/{topic.removeprefix('persistent://')}"
    pulsar_server.admin("DELETE", f"{path}?force=true")
    pulsar_server.admin("PUT", path)
    harness.write(["3"])
    with pytest.raises(PossibleLossError, match=r"rows 1 to 2 of headrace-.* the server has lost them"):
        harness.checkpoint(2)


@pytest.mark.campaign
def test_a_partition_that_is_quiet_is_not_forgotten(pulsar_server, tmp_path, monkeypatch):  # noqa: F811
    """By a broker that forgets after a minute instead of six hours. Witnesses say when it has; each is asked once."""
    options = {"brokerDeduplicationProducerInactivityTimeoutMinutes": 1}
    server = PulsarServer(fetched_jars(), java_for("Pulsar"), tmp_path, **options)
    server.start()
    client = server.client()
    topics, beside = [server.new_topic() for _ in range(2)], server.new_topic()

    def last_of(name, *values):
        producer = client.create_producer(beside, producer_name=name, batching_enabled=False)
        for value in values:
            producer.send(value, sequence_id=7)
        last = producer.last_sequence_id()
        producer.close()
        return last

    try:
        witnesses = [str(number) for number in range(60)]
        assert {last_of(name, b"x") for name in witnesses} == {7}
        harnesses = []
        for topic, remind_ms in zip(topics, (1_000, 1 << 40), strict=True):
            monkeypatch.setattr(sink, "REMIND_MS", remind_ms)
            harnesses.append(started(sink_of(server, topic)))
            harnesses[-1].write(["1"])
            harnesses[-1].checkpoint(1)
        checkpoints, began = itertools.count(2), monotonic()

        def has_forgotten():
            if len(witnesses) > 60 - (monotonic() - began) / 2:
                for harness in harnesses:
                    harness.now_ms += 2_000
                number = next(checkpoints)
                for harness in harnesses:
                    harness.checkpoint(number)
                return last_of(witnesses.pop()) == -1
            return False

        server.wait_until(has_forgotten)
        for harness in harnesses:
            harness.write(["2"])
        harnesses[0].checkpoint(next(checkpoints))
        assert server.values(topics[0]) == ["1", "2"]
        with pytest.raises(PossibleLossError):
            harnesses[1].checkpoint(next(checkpoints))
    finally:
        client.close()
        server.stop()


def test_a_record_that_is_too_large_is_an_error_and_none_passes_it(pulsar_server):  # noqa: F811
    topic = pulsar_server.new_topic()
    large = "x" * (1 << 19)
    assert "is more than a topic" in told(
        lambda: started(sink_of(pulsar_server, topic, max_message_bytes=1 << 18)).write([large])
    )
    harness = started(sink_of(pulsar_server, topic))
    harness.write(["1", large, "2"])
    with pytest.raises(ConfigurationError, match="maxMessageSize"):
        harness.checkpoint(1)
    assert pulsar_server.values(topic) in ([], ["1"])


@pytest.mark.parametrize("seed", range(20))
def test_what_a_topic_may_refuse_for_its_size_has_nothing_under_way_behind_it(seed):
    """A broker that takes messages up to a size, whatever that is, and goes on behind one that it has refused."""
    chosen = random.Random(seed)
    sizes = [chosen.choice([1, 5, 100, 2_000]) + chosen.randrange(3) for _ in range(3_000)]
    columns = [[b"x" * size for size in sizes], [chosen.choice([None, "k", "long key"]) for _ in sizes]]
    rows = pa.RecordBatch.from_arrays(
        [pa.array(columns[0], pa.binary()), pa.array(columns[1], pa.string()), pa.nulls(len(sizes), pa.int64())],
        schema=sink.SCHEMA,
    )
    limit = chosen.choice([3, 50, 1_500, 2_001, 5_000])
    taken, pieces = [], 0
    for piece in sink._windows(rows, 1):
        pieces += 1
        passed = [one for one in piece if len(one["data"]) + len(one["key"] or "") <= limit]
        taken += passed
        if len(passed) < len(piece):
            break
    assert taken == rows.to_pylist()[: len(taken)]
    assert pieces < 60, "most messages go together"


def test_wrong_arguments_are_refused(pulsar_server):  # noqa: F811
    assert "keeps what it is given" in told(lambda: sink_of(pulsar_server, "non-persistent://public/default/t"))
    assert "keeps what it is given" in told(lambda: sink_of(pulsar_server, ["a"]))
    assert "1 or more" in told(lambda: sink_of(pulsar_server, "t", max_message_bytes=0))
    assert "format of messages" in told(lambda: sink_of(pulsar_server, "t", value="json"))
    assert "must be pulsar://" in told(lambda: PulsarSink("http://localhost", "t", value=TextMessages()))
    assert "cannot be written" in told(lambda: started(sink_of(pulsar_server, "persistent://public/default/no")))
    topic = pulsar_server.new_topic()
    harness = started(sink_of(pulsar_server, topic, value=JsonMessages(), key="no"))
    assert "no field 'no'" in told(lambda: harness.write(Batch.of_rows([{"k": 1}])))


@pytest.mark.parametrize(
    "damage",
    [{"place": "another"}, {"place": 7}, {"publisher": "another-1"}, {"first": 0}, {"data": ["text"]}, {"more": 1}],
)
def test_what_no_such_sink_has_prepared_is_not_written(damage, pulsar_server):  # noqa: F811
    topic = pulsar_server.new_topic()
    committer = sink_of(pulsar_server, topic).create_committer()
    history = SinkHistory("x", "x")
    committer.open(CommitterContext("job", "sink", "sink", 0, 1, "0.1", lambda: 0, lambda name, value: None, history))
    good = {
        "place": f"{topic} of Pulsar", "publisher": "headrace-x-0.1-0", "first": 1, "checkpoint_id": 1, "rows": 0,
        "data": [],
    }  # fmt: skip
    with pytest.raises(CheckpointMismatchError):
        committer.commit({**good, **damage})
    committer.close()
