"""Tables of SQL that are streams of Kinesis, against kinesalite."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from kinesis_server import CREDENTIALS, REGION, kinesis_server  # noqa: F401 - a fixture

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment

COLUMNS = "item STRING, price BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"
BOUNDED = {"source.init.position": "TRIM_HORIZON", "scan.bounded.mode": "latest"}


def table(name, columns, partitioned_by="", **options):
    given = ", ".join(f"'{key}' = '{value}'" for key, value in {"connector": "kinesis", **options}.items())
    return f"CREATE TABLE {name} ({columns}) {partitioned_by} WITH ({given})"


def of(server, stream, **options):
    return {
        "stream.arn": f"arn:aws:kinesis:{REGION}:000000000000:stream/{stream}",
        "aws.endpoint": server.url,
        "aws.credentials.provider": "BASIC",
        "aws.credentials.basic.accesskeyid": CREDENTIALS["aws_access_key_id"],
        "aws.credentials.basic.secretkey": CREDENTIALS["aws_secret_access_key"],
        "format": "json",
        **options,
    }


def environment(tmp_path):
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql("SET 'execution.checkpointing.interval' = '100 ms'")
    t.execute_sql(f"SET 'execution.checkpointing.dir' = '{tmp_path}'")
    return t


def test_from_a_stream_through_a_window_by_key(kinesis_server, tmp_path):  # noqa: F811
    bids, sums = kinesis_server.new_stream(2), kinesis_server.new_stream(2)
    rows = [{"item": f"i{n % 5}", "price": n, "ts": f"2024-01-01 00:00:{n // 10:02d}.000"} for n in range(500)]
    kinesis_server.put(bids, map(json.dumps, rows[:250]))
    kinesis_server.split(bids)
    kinesis_server.put(bids, map(json.dumps, rows[250:]))
    t = environment(tmp_path)
    t.execute_sql(table("bids", COLUMNS, **of(kinesis_server, bids, **BOUNDED)))
    options = of(kinesis_server, sums, **{"sink.flush-buffer.timeout": "50", "sink.partitioner-field-delimiter": "/"})
    by_key = "PARTITIONED BY (item, total)"
    t.execute_sql(table("sums", "item STRING, w TIMESTAMP(3), total BIGINT", by_key, **options))
    t.execute_sql("""
        INSERT INTO sums SELECT item, window_start, SUM(price)
        FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY item, window_start, window_end
    """)
    expected = Counter()
    for row in rows:
        expected[row["item"], int(row["ts"][17:19]) // 10] += row["price"]
    records = kinesis_server.records(sums)
    found = [json.loads(one["Data"]) for one in records]
    assert {(row["item"], int(row["w"][17:19]) // 10): row["total"] for row in found} == expected
    assert [one["PartitionKey"] for one in records] == [f"{row['item']}/{row['total']}" for row in found]


def test_what_kinesis_says_of_a_record_is_a_column(kinesis_server, tmp_path):  # noqa: F811
    stream = kinesis_server.new_stream()
    kinesis_server.put(stream, ['{"n": 1}', "{", '{"n": 2}'], keys=["a", "b", "c"])
    t = environment(tmp_path)
    options = of(kinesis_server, stream, **BOUNDED, **{"json.ignore-parse-errors": "true"})
    columns = "n BIGINT, k STRING METADATA FROM 'partition-key', s STRING METADATA FROM 'sequence-number', "
    columns += "arrived TIMESTAMP_LTZ(3) METADATA FROM 'timestamp', `shard-id` STRING METADATA"
    t.execute_sql(table("numbers", columns, **options))
    rows = t.execute_sql("SELECT n, k, s, `shard-id` FROM numbers").collect()
    records = {one["PartitionKey"]: one for one in kinesis_server.records(stream)}
    assert sorted(tuple(row)[-4:] for row in rows) == [
        (n, key, records[key]["SequenceNumber"], records[key]["ShardId"]) for n, key in ((1, "a"), (2, "c"))
    ]


GOOD = {"stream": "s", "format": "json"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"format": "json"}, "'stream.arn' or 'stream'"),
        ({**GOOD, "stream.arn": "arn:aws:kinesis:a:123456789012:stream/s"}, "not both"),
        ({"stream": "a b", "format": "json"}, "a name, or an ARN"),
        ({**GOOD, "source.init.position": "earliest"}, "TRIM_HORIZON"),
        ({**GOOD, "source.init.position": "AT_TIMESTAMP"}, "need each other"),
        ({**GOOD, "source.init.timestamp": "7"}, "need each other"),
        ({**GOOD, "source.init.position": "AT_TIMESTAMP", "source.init.timestamp": "nan"}, "is a time"),
        ({**GOOD, "source.init.position": "AT_TIMESTAMP", "source.init.timestamp": "2024-01-01T00:00:00"}, "is a time"),
        ({**GOOD, "aws.credentials.provider": "BASIC"}, "need each other"),
        ({**GOOD, "aws.credentials.basic.accesskeyid": "a"}, "need each other"),
        ({**GOOD, "source.reader.type": "EFO"}, "POLLING"),
        ({**GOOD, "sink.batch.max-size": "501"}, "1 to 500"),
        ({**GOOD, "source.end": "latest"}, r"source\.end"),
    ],
)
def test_wrong_options_are_refused(options, told):
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    with pytest.raises(HeadraceError, match=told):
        t.execute_sql(table("t", "a STRING", **options))


@pytest.mark.parametrize("time", ["1700000000.5", "2023-11-14T22:13:20.500Z", "2023-11-14T23:13:20.500+01:00"])
def test_a_time_is_seconds_or_a_text(time):
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    options = {**GOOD, "source.init.position": "AT_TIMESTAMP", "source.init.timestamp": time}
    t.execute_sql(table("t", "a STRING", **options))
