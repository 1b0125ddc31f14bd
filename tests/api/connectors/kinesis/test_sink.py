"""Streams of Kinesis as a sink, against kinesalite: nothing is lost, whatever fails or is turned away.

Risks and families: lost records (a job that fails and is rescaled while its streams are resharded and its server is
killed, against what was put in; a proxy that takes a part of each request), order, silent refusals.
"""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from failing_functions import FailsAtFirst, some
from kinesis_faults import faults_in_front_of, refusal
from kinesis_server import kinesis_server  # noqa: F401 - a fixture

from headrace import JobFailedError, RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.kinesis import JsonMessages, KinesisSink, KinesisSource, TextMessages
from headrace.engine.errors import ConfigurationError


def sink_of(server, stream, **options):
    arguments = {"value": TextMessages(), "max_time_in_buffer": 20, **server.arguments(), **options}
    return KinesisSink(stream, **arguments)


def write(rows, sink, parallelism=1):
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
        env.from_collection(rows).sink_to(sink)
        env.execute()


def test_a_job_loses_nothing_while_it_fails_and_is_rescaled_and_all_is_resharded(kinesis_server, tmp_path):  # noqa: F811
    stream, target = kinesis_server.new_stream(2), kinesis_server.new_stream(2)
    path, sent = None, 0
    for parallelism in (2, 3):
        kinesis_server.put(stream, range(sent, sent + 150))
        sent += 150
        with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
            env.enable_checkpointing(50, directory=str(tmp_path / "checkpoints"))
            env.set_restart_strategy(RestartStrategies.fixed_delay_restart(50, 100))
            source = KinesisSource(stream, value=TextMessages(), read_interval=20, **kinesis_server.arguments())
            texts = env.from_source(source, WatermarkStrategy.no_watermarks(), "in").uid("in")
            failing = texts.map(FailsAtFirst(tmp_path, some(3, of=300))).uid("map")
            failing.rebalance().sink_to(sink_of(kinesis_server, target)).uid("out")
            client = env.execute_async("part", from_savepoint=path)
            kinesis_server.split(stream, parallelism - 2)
            kinesis_server.split(target, parallelism - 2)
            kinesis_server.put(stream, range(sent, sent + 50))
            sent += 50
            if parallelism == 3:
                kinesis_server.kill()
                kinesis_server.start()
            while len(set(kinesis_server.values(target))) < sent:
                assert client.view().state not in ("FAILED", "FINISHED"), client.view().failures
            path = client.stop_with_savepoint(str(tmp_path / "savepoints"))
    assert len(list(tmp_path.glob("failed-*"))) == 3
    assert set(map(int, kinesis_server.values(target))) == set(range(sent))


@pytest.mark.parametrize("ordered", [False, True])
def test_what_is_turned_away_is_sent_again(ordered, kinesis_server):  # noqa: F811
    stream = kinesis_server.new_stream()
    chosen = random.Random(7)
    with faults_in_front_of(kinesis_server) as proxy:
        proxy.turns_away = lambda: chosen.random() < 0.2
        proxy.faults["PutRecords"].extend(
            [refusal("ProvisionedThroughputExceededException"), None, refusal("InternalFailure", 500)]
        )
        sink = sink_of(kinesis_server, stream, endpoint=proxy.url, max_batch_size=40, ordered=ordered)
        write(list(map(str, range(400))), sink)
        assert proxy.asked["PutRecords"] > 10
    found = list(map(int, kinesis_server.values(stream)))
    if ordered:
        # What was behind one that was turned away comes again behind it.
        last = {number: place for place, number in enumerate(found)}
        assert sorted(last, key=last.__getitem__) == list(range(400))
    else:
        assert Counter(found) == Counter(range(400))


def test_keys_are_of_fields_or_functions_or_random(kinesis_server):  # noqa: F811
    rows = [{"a": f"a{n}", "b": n} for n in range(5)] + [{"a": None, "b": -1}]

    def keys_with(**options):
        stream = kinesis_server.new_stream(3)
        write(rows, sink_of(kinesis_server, stream, value=JsonMessages(), **options))
        found = kinesis_server.records(stream)
        assert sorted(json.loads(one["Data"])["b"] for one in found) == [-1, *range(5)]
        return sorted((json.loads(one["Data"])["b"], one["PartitionKey"]) for one in found)

    assert keys_with(partition_key="b") == [(-1, "-1"), *((n, str(n)) for n in range(5))]
    assert keys_with(partition_key=["a", "b"], delimiter="/") == [(-1, "/-1"), *((n, f"a{n}/{n}") for n in range(5))]
    assert keys_with(partition_key=lambda row: f"k{row['b']}") == [(-1, "k-1"), *((n, f"k{n}") for n in range(5))]
    assert len({key for _, key in keys_with()}) == 6


@pytest.mark.parametrize(
    ("row", "options", "told"),
    [
        ({"k": "a", "v": "x" * (1 << 20)}, {}, "max_record_bytes is 1048576"),
        ({"k": "", "v": "x"}, {}, "1 to 256 characters"),
        ({"k": "x" * 257, "v": "x"}, {}, "1 to 256 characters"),
        ({"v": "x"}, {}, "no field 'k'"),
        ({"k": "a"}, {"partition_key": lambda row: 7}, "1 to 256 characters; got 7"),
    ],
)
def test_what_kinesis_would_not_take_is_an_error_that_names_the_record(row, options, told, kinesis_server):  # noqa: F811
    stream = kinesis_server.new_stream()
    sink = sink_of(kinesis_server, stream, **{"value": JsonMessages(), "partition_key": "k", **options})
    with pytest.raises(JobFailedError, match=told) as failed:
        write([{"k": "good", "v": "y"}, row], sink)
    assert "record {" in str(failed.value)


def test_a_record_that_kinesis_refuses_for_good_fails_the_job(kinesis_server):  # noqa: F811
    stream = kinesis_server.new_stream()
    sink = sink_of(kinesis_server, stream, max_record_bytes=2 << 20)  # more than the stream was set up for
    with pytest.raises(JobFailedError, match=r"refuses a record|cannot be written"):
        write(["x" * ((1 << 20) + 1)], sink)


def test_a_stream_that_is_missing_or_away_for_too_long_fails_the_job(kinesis_server):  # noqa: F811
    with pytest.raises(JobFailedError, match="not found"):
        write(["x"], sink_of(kinesis_server, "no-such-stream"))
    stream = kinesis_server.new_stream()
    with faults_in_front_of(kinesis_server) as proxy:
        proxy.faults["PutRecords"].extend([refusal("ServiceUnavailable", 503)] * 1_000)
        sink = sink_of(kinesis_server, stream, endpoint=proxy.url, patience=200)
        with pytest.raises(JobFailedError, match="takes nothing"):
            write(["x"], sink)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"stream": "a b"}, "a name, or an ARN"),
        ({"value": "json"}, "format of messages"),
        ({"partition_key": 7}, "a field, several, or a function"),
        ({"partition_key": []}, "a field, several, or a function"),
        ({"max_batch_size": 501}, "1 to 500"),
        ({"max_record_bytes": 11 << 20}, "max_record_bytes must be"),
        ({"patience": -1}, "patience must not be negative"),
    ],
)
def test_wrong_arguments_are_refused(arguments, told):
    with pytest.raises(ConfigurationError, match=told):
        KinesisSink(**{"stream": "s", "value": TextMessages(), **arguments})
