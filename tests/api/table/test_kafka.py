"""Topics of Kafka as tables of SQL, against a real broker."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from campaigns import campaign
from kafka_server import kafka_server  # noqa: F401 - a fixture

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment, udf


def table(name, columns, server, topic, connector="kafka", **options):
    named = {"connector": connector, "topic": topic, "properties.bootstrap.servers": server.address}
    given = ", ".join(f"'{key}' = '{value}'" for key, value in {**named, **options}.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({given})"


BOUNDED = {"scan.startup.mode": "earliest-offset", "scan.bounded.mode": "latest-offset"}
BIDS = "item STRING, price BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_from_topic_through_a_window_to_a_topic(guarantee, kafka_server, tmp_path):  # noqa: F811
    bids, sums = kafka_server.create_topic(3), kafka_server.create_topic(2)
    rows = [{"item": f"i{n % 5}", "price": n, "ts": f"2024-01-01 00:00:{n // 10:02d}.000"} for n in range(500)]
    for partition in range(3):
        kafka_server.produce(bids, [json.dumps(row) for row in rows[partition::3]], partition=partition)
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql("SET 'execution.checkpointing.interval' = '100 ms'")
    t.execute_sql(f"SET 'execution.checkpointing.dir' = '{tmp_path}'")
    t.execute_sql(table("bids", BIDS, kafka_server, bids, format="json", **BOUNDED))
    options = {"format": "json", "key.fields": "item", "sink.delivery-guarantee": guarantee}
    if guarantee == "exactly-once":
        options["sink.transactional-id-prefix"] = sums
    t.execute_sql(table("sums", "item STRING, w TIMESTAMP(3), total BIGINT", kafka_server, sums, **options))
    t.execute_sql("""
        INSERT INTO sums SELECT item, window_start, SUM(price)
        FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY item, window_start, window_end
    """)
    expected = Counter()
    for row in rows:
        expected[row["item"], int(row["ts"][17:19]) // 10] += row["price"]
    found = [(message.key(), json.loads(message.value())) for message in kafka_server.committed(sums)]
    assert len(found) == len(expected)
    assert {(row["item"], int(row["w"][17:19]) // 10): row["total"] for _, row in found} == expected
    assert all(key.decode() == row["item"] for key, row in found)


KEYS_OF = {
    "raw": str.encode,
    "json": lambda key: json.dumps({"k": key}, separators=(",", ":")).encode(),
    "csv": lambda key: f'"{key}"'.encode(),
    "avro": lambda key: b"\x02" + bytes([2 * len(key)]) + key.encode(),  # of a union with null the second, its length
}
"""By format, a key of one short text as it is written."""


@pytest.mark.parametrize("key_format", sorted(KEYS_OF))
def test_changes_become_the_last_record_of_a_key_and_tombstones(key_format, kafka_server):  # noqa: F811
    events, states = kafka_server.create_topic(1), kafka_server.create_topic(2)
    rows = [{"k": f"k{n % 7}", "v": n % 11 - 5} for n in range(300)]
    kafka_server.produce(events, [json.dumps(row) for row in rows])
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql(table("events", "k STRING, v BIGINT", kafka_server, events, format="json", **BOUNDED))
    options = {"key.format": key_format, "value.format": "json"}
    columns = "k STRING, total BIGINT, PRIMARY KEY (k) NOT ENFORCED"
    t.execute_sql(table("states", columns, kafka_server, states, "upsert-kafka", **options))
    t.execute_sql("INSERT INTO states SELECT k, SUM(v) FROM events GROUP BY k HAVING SUM(v) > 0")
    totals = Counter()
    for row in rows:
        totals[row["k"]] += row["v"]
    last = {message.key(): message.value() for message in kafka_server.committed(states)}
    name = KEYS_OF[key_format]
    alive = {key: json.loads(value) for key, value in last.items() if value is not None}
    assert alive == {name(key): {"k": key, "total": total} for key, total in totals.items() if total > 0}
    assert any(value is None for value in last.values()) == any(total <= 0 for total in totals.values())


class FailsOnce:
    """Gives its argument back, and fails at the n-th call, once for each file."""

    def __init__(self, marker, call):
        self.marker, self.call, self.calls = marker, call, 0

    def __call__(self, value):
        self.calls += 1
        if self.calls == self.call and not self.marker.exists():
            self.marker.touch()
            message = "fails once"
            raise RuntimeError(message)
        return value


def upserts(kafka_server, key_format):  # noqa: F811
    """A topic of three partitions in which rows of 40 keys are replaced and deleted; and the rows that remain."""
    rng, topic, alive = random.Random(7), kafka_server.create_topic(3), {}
    for _ in range(600):
        number = rng.randrange(40)
        key = f"k{number}"
        row = None if rng.random() < 0.3 else {"k": key, "team": rng.choice("abc"), "points": rng.randrange(9)}
        alive[key] = row
        written = KEYS_OF[key_format](key)
        value = None if row is None else json.dumps(row)
        kafka_server.produce(topic, [value], key=written, partition=number % 3)
    return topic, [row for row in alive.values() if row is not None]


@pytest.mark.parametrize(
    ("key_format", "backend"),
    [("avro", "rocksdb"), *(campaign(name, "hashmap") for name in ("csv", "json", "raw"))],
)
def test_a_topic_of_upserts_is_a_table(key_format, backend, kafka_server, tmp_path):  # noqa: F811
    topic, alive = upserts(kafka_server, key_format)
    t = TableEnvironment.create(parallelism=3, actor_system="local")
    t.execute_sql("SET 'execution.checkpointing.interval' = '20 ms'")
    t.execute_sql(f"SET 'execution.checkpointing.dir' = '{tmp_path}'")
    t.execute_sql(f"SET 'state.backend.type' = '{backend}'")
    columns = "points BIGINT, k STRING, team STRING, PRIMARY KEY (k) NOT ENFORCED"
    options = {"key.format": key_format, "value.format": "json", "scan.bounded.mode": "latest-offset"}
    t.execute_sql(table("players", columns, kafka_server, topic, "upsert-kafka", **options))
    t.create_temporary_function("once", udf(FailsOnce(tmp_path / "failed", 6), result_type="BIGINT"))
    found = t.execute_sql("SELECT team, COUNT(*) AS n, SUM(once(points)) AS total FROM players GROUP BY team")
    expected = Counter()
    for row in alive:
        expected[row["team"]] += row["points"]
    assert {row["team"]: row["total"] for row in found.to_arrow().to_pylist()} == expected
    assert (tmp_path / "failed").exists()
    rows = t.execute_sql("SELECT k, team, points FROM players WHERE points > 3").to_arrow().to_pylist()
    wanted = [{name: row[name] for name in ("k", "team", "points")} for row in alive if row["points"] > 3]
    assert sorted(rows, key=str) == sorted(wanted, key=str)
    kinds = Counter(kind for kind, *_ in t.execute_sql("SELECT k FROM players").collect())
    assert kinds["+I"] - kinds["-D"] == len(alive)
    plan = t.explain_sql("SELECT team, COUNT(*) FROM players GROUP BY team")
    assert "last row of each k, of upserts" in plan


def test_messages_of_changes_are_read_and_written(kafka_server):  # noqa: F811
    rng, changed, copied, alive = random.Random(3), kafka_server.create_topic(3), kafka_server.create_topic(2), {}
    for number in range(400):
        key = f"k{rng.randrange(30)}"
        before, after = alive.pop(key, None), {"k": key, "team": rng.choice("abc"), "points": number}
        if before is not None and rng.random() < 0.4:
            after = None
        if after is not None:
            alive[key] = after
        op = "u" if before and after else "d" if before else "c"
        message = {"before": before, "after": after, "op": op, "ts_ms": number}
        kafka_server.produce(changed, [json.dumps(message)], key=key.encode(), partition=int(key[1:]) % 3)
    t = TableEnvironment.create(parallelism=3, actor_system="local")
    columns, options = "points BIGINT, k STRING, team STRING", {"format": "debezium-json", **BOUNDED}
    t.execute_sql(table("players", columns, kafka_server, changed, **options))
    found = t.execute_sql("SELECT team, COUNT(*) AS n, MAX(points) AS best FROM players GROUP BY team").to_arrow()
    points = {team: [row["points"] for row in alive.values() if row["team"] == team] for team in "abc"}
    assert {(row["team"], row["n"], row["best"]) for row in found.to_pylist()} == {
        (team, len(those), max(those)) for team, those in points.items() if those
    }
    options["key.fields"] = "team"
    t.execute_sql(table("best", "team STRING, best BIGINT", kafka_server, copied, **options))
    t.execute_sql("INSERT INTO best SELECT team, MAX(points) FROM players GROUP BY team")
    rows = Counter()
    for message in kafka_server.committed(copied):
        told = json.loads(message.value())
        row = told["after"] if told["op"] == "c" else told["before"]
        rows[row["team"], row["best"]] += 1 if told["op"] == "c" else -1
        assert message.key().decode() == row["team"]
    assert +rows == Counter({(team, max(those)): 1 for team, those in points.items() if those})
    assert t.execute_sql("SELECT * FROM best").to_arrow().num_rows == sum(map(bool, points.values()))


def test_metadata_are_columns(kafka_server):  # noqa: F811
    topic = kafka_server.create_topic(2)
    for partition in range(2):
        values = [json.dumps({"n": 10 * partition + number}) for number in range(3)]
        kafka_server.produce(topic, values, partition=partition, timestamp=5_000 + partition)
    columns = """
        n BIGINT, `partition` INT METADATA, place BIGINT METADATA FROM 'offset' VIRTUAL,
        ts TIMESTAMP_LTZ(3) METADATA FROM 'timestamp', WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
    """
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql(table("t", columns, kafka_server, topic, format="json", **BOUNDED))
    rows = t.execute_sql("SELECT n, `partition`, place, CAST(ts AS STRING) AS ts FROM t").to_arrow().to_pylist()
    assert sorted((row["n"], row["partition"], row["place"], row["ts"]) for row in rows) == [
        (10 * partition + number, partition, number, f"1970-01-01 00:00:05.00{partition}")
        for partition in range(2)
        for number in range(3)
    ]
    assert "places" in t.execute_sql("SELECT MAX(place) AS places FROM t").to_arrow().column_names
    with pytest.raises(HeadraceError, match="'partition' of table 't' is metadata"):
        t.execute_sql("INSERT INTO t SELECT n FROM t")
    with pytest.raises(HeadraceError, match="tells no metadata 'offsets'"):
        t.execute_sql(table("u", "o BIGINT METADATA FROM 'offsets'", kafka_server, topic, format="json"))


@pytest.mark.parametrize(
    ("options", "connector", "said"),
    [
        ({}, "kafka", "needs option 'format'"),
        ({"format": "json", "topik": "x"}, "kafka", "no option 'topik'"),
        ({"format": "raw"}, "kafka", "one column"),
        ({"format": "json", "scan.startup.mode": "timestamp"}, "kafka", "are for the modes of their names"),
        ({"format": "json", "sink.delivery-guarantee": "exactly-once"}, "kafka", "need each other"),
        ({"format": "json", "key.fields": "c"}, "kafka", "the table has not"),
        ({"value.format": "json", "key.format": "raw"}, "upsert-kafka", "PRIMARY KEY"),
    ],
)
def test_wrong_options_are_refused(options, connector, said):
    class Nowhere:
        address = "127.0.0.1:1"

    t = TableEnvironment.create(actor_system="local")
    with pytest.raises(HeadraceError) as refused:
        t.execute_sql(table("t", "a BIGINT, b STRING", Nowhere, "topic", connector, **options))
    assert said in str(refused.value)


def test_a_group_that_is_not_named_has_committed_nothing(kafka_server):  # noqa: F811
    t = TableEnvironment.create(actor_system="local")
    t.execute_sql(table("t", "a BIGINT", kafka_server, kafka_server.create_topic(), format="json"))
    with pytest.raises(HeadraceError, match=r"properties\.group\.id"):
        list(t.execute_sql("SELECT * FROM t").collect())


@pytest.mark.parametrize(("form", "bad"), [("json", b"{no"), ("csv", b'1,"'), ("avro", b"\x02")])
def test_what_cannot_be_decoded_is_left_out_by_the_option_that_the_error_names(form, bad, kafka_server):  # noqa: F811
    topic = kafka_server.create_topic(1)
    good = {"json": [b'{"k": "a", "v": 1}'], "csv": [b"a,1"], "avro": [b"\x02\x02a\x02\x02"]}[form]
    kafka_server.produce(topic, [*good, bad])
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    t.execute_sql(table("strict", "k STRING, v BIGINT", kafka_server, topic, format=form, **BOUNDED))
    with pytest.raises(HeadraceError, match="cannot decode the value of a record") as refused:
        t.execute_sql("SELECT * FROM strict").to_arrow()
    assert "on_error" not in str(refused.value)
    option = "csv.ignore-parse-errors" if form == "csv" else "json.ignore-parse-errors"
    assert f"'{option}' = 'true'" in str(refused.value)
    options = {"format": form, option: "true", **BOUNDED}
    t.execute_sql(table("lenient", "k STRING, v BIGINT", kafka_server, topic, **options))
    assert t.execute_sql("SELECT * FROM lenient").to_arrow().to_pylist() == [{"k": "a", "v": 1}]
