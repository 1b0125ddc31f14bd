"""Collections of MongoDB as a sink: what stays, whatever is written again, or late, and whatever breaks when.

Risks and families: an older value that wins (random orders of writes against a dict, several attempts, jobs that fail
and go on elsewhere), answers that get lost (a proxy between sink and server), servers that are killed, deletions,
values that will not do, per-item errors.
"""

from __future__ import annotations

import random
import uuid
from datetime import date, datetime, timezone
from decimal import Decimal
from operator import itemgetter

import pyarrow as pa
import pytest
from cut_connections import CutConnections
from failing_functions import FailsAtFirst
from mongodb_server import mongodb_server  # noqa: F401 - a fixture
from reading_kit import read_some, reader_of
from upsert_kit import AT_ONCE, harness_of, told, written

from headrace import RestartStrategies, StreamExecutionEnvironment
from headrace.connectors.mongodb import (
    MongodbClient,
    MongodbLookup,
    MongodbSink,
    MongodbSource,
    OrderKey,
    UpsertOptions,
)
from headrace.engine.errors import ConfigurationError
from headrace.testing.upsert_contract import UPSERT_CONTRACT, UpsertSubject

NOWHERE = "mongodb://127.0.0.1:1"
ROW = {"k": "int32", "at": "int64", "v": "int64"}


def sink_into(server, name, schema=ROW, **arguments):
    return MongodbSink(server.uri, name, schema=schema, **{"key": "k", "options": AT_ONCE, **arguments})


def random_rows(rng, number=400):
    return [
        {"k": rng.randrange(12), "at": at, "v": rng.randrange(1_000), "gone": rng.random() < 0.2}
        for at in range(number)
    ]


def document_of(row):
    return {"_id": row["k"], **{name: row[name] for name in ROW}}


def what_is_newest(rows):
    newest = {row["k"]: row for row in rows}
    return {k: document_of(row) for k, row in newest.items() if not row["gone"]}


@pytest.mark.parametrize("check", UPSERT_CONTRACT, ids=lambda check: check.__name__)
def test_contract(check, mongodb_server):  # noqa: F811
    name = mongodb_server.new_name()
    if "refused" in check.__name__ or "told" in check.__name__:
        mongodb_server.collection(name).create_index("v", unique=True)

    def sink(order, options):
        return sink_into(
            mongodb_server, name, order=order, options=options, delete_column="gone", deletion_marker="gone_at"
        )

    def rows():
        found = mongodb_server.documents(name)
        return {k: (row["at"], row["v"]) for k, row in found.items() if "gone_at" not in row}

    bad = {"k": 2, "at": 1, "v": 1, "gone": False}  # there is one with this value
    check(UpsertSubject(sink, rows, bad=bad, server=mongodb_server))


def test_documents_that_are_deleted_go_and_late_writes_bring_them_back_unless_they_are_marked(mongodb_server):  # noqa: F811
    for marker, comes_back in ((None, True), ("gone_at", False)):
        name = mongodb_server.new_name()
        sink = sink_into(mongodb_server, name, order="at", delete_column="gone", deletion_marker=marker)
        old = {"k": 1, "at": 5, "v": 1, "gone": False}
        written(sink, [old])
        written(sink, [{**old, "at": 6, "gone": True}])
        found = mongodb_server.documents(name)
        assert set(found.get(1, ())) == ({"_id", "k", marker} if marker else set())
        counters = written(sink, [old])
        assert ("v" in mongodb_server.documents(name).get(1, {})) == comes_back
        assert counters.get("num_records_older", 0) == (not comes_back)


def test_of_equal_orders_the_later_one_stays_and_ties_are_told(mongodb_server):  # noqa: F811
    name = mongodb_server.new_name()
    changes = [{"k": 1, "at": 5, "v": v, "seq": seq} for seq, v in enumerate((2, 7, 3))]
    exact = sink_into(mongodb_server, name, order=OrderKey("at", ties="seq"))
    for row in (*changes, changes[1], changes[0]):
        written(exact, [row])
    assert mongodb_server.documents(name)[1]["v"] == 3


def test_fields_of_others_are_left_and_documents_of_others_are_older(mongodb_server):  # noqa: F811
    name = mongodb_server.new_name()
    mongodb_server.put(name, [{"_id": 1, "v": "theirs", "note": "kept"}])
    written(sink_into(mongodb_server, name), [{"k": 1, "at": 1, "v": 2}])
    assert mongodb_server.documents(name)[1] == {"_id": 1, "note": "kept", "k": 1, "at": 1, "v": 2}


@pytest.mark.parametrize("order", ["at", None])
def test_answers_that_get_lost_change_nothing(order, mongodb_server):  # noqa: F811
    """The connection breaks between the server's writing and its saying so, again and again."""
    rng, name = random.Random(5), mongodb_server.new_name()
    rows = [{**row, "gone": False} for row in random_rows(rng, 120)]
    with CutConnections(mongodb_server.port) as proxy:
        patient = UpsertOptions(batch_size=10, batch_interval="10 ms", patience="2 min", request_timeout="5 s")
        sink = MongodbSink(
            f"mongodb://127.0.0.1:{proxy.port}", name, schema=ROW, key="k", order=order, options=patient
        )  # fmt: skip
        harness = harness_of(sink)
        proxy.loses_answers_to(b"update", every=3)
        harness.process(rows)
        harness.operator.end_input(0)
        while not proxy.num_lost or harness.works:
            harness.do_all_work()
            harness.pass_time(1_000)
    assert proxy.num_lost >= 3
    assert mongodb_server.documents(name) == what_is_newest(rows)


def run_job(server, name, order, rows, parallelism, directory, failing):
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
        env.enable_checkpointing(20, directory=str(directory / "checkpoints"))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(4, 10))
        stream = env.from_collection(rows).set_parallelism(1).key_by("k")
        stream = stream.map(FailsAtFirst(directory, failing, itemgetter("at"))).key_by("k")
        patient = UpsertOptions(batch_size=50, batch_interval="10 ms", patience="2 min", request_timeout="5 s")
        stream.sink_to(sink_into(server, name, order=order, options=patient))
        client = env.execute_async("to a collection")
        if server_dies := (parallelism == 2):
            while not server.documents(name):
                assert client.view().state not in ("FAILED", "FINISHED"), [f.text for f in client.view().failures]
            server.kill()
            server.start()
        assert client.result().num_restarts >= 1 or server_dies


@pytest.mark.parametrize("order", ["at", None])
def test_jobs_that_fail_while_the_server_is_killed_end_with_the_newest(order, mongodb_server, tmp_path):  # noqa: F811
    """At several parallelisms, one after the other; what the next one writes is above what the ones before have."""
    name = mongodb_server.new_name()
    rows = [{"k": at * 7 % 40, "at": at, "v": -at} for at in range(1_000)]
    for parallelism in (2, 3):
        directory = tmp_path / str(parallelism)
        directory.mkdir()
        rows = [{**row, "v": row["v"] - 1, "at": row["at"] + 1_000} for row in rows]
        run_job(mongodb_server, name, order, rows, parallelism, directory, {row["at"] for row in rows[300:900:300]})
        assert mongodb_server.documents(name) == {row["k"]: document_of(row) for row in rows}


TYPES = {
    "yes": (pa.bool_(), True), "tiny": (pa.int8(), -128), "int": (pa.int32(), 2**31 - 1),
    "big": (pa.int64(), 2**63 - 1),
    "unsigned": (pa.uint32(), 2**32 - 1), "single": (pa.float32(), 0.5), "real": (pa.float64(), 0.1),
    "exact": (pa.decimal128(34, 10), Decimal("123456789012345678901234.1234567890")), "word": (pa.string(), "a\0ä"),
    "raw": (pa.binary(), b"\0\xff"), "day": (pa.date32(), date(1969, 12, 31)),
    "moment": (pa.timestamp("ms", "UTC"), datetime(2024, 1, 1, 0, 0, 0, 1_000, timezone.utc)),
    "some": (pa.list_(pa.int64()), [3, None, 3]), "names": (pa.map_(pa.string(), pa.int64()), [("x.y", 1), ("$z", 2)]),
    "parts": (pa.struct({"a": pa.int64(), "b": pa.list_(pa.decimal128(5, 2))}), {"a": 1, "b": [Decimal("1.50")]}),
    "none": (pa.string(), None), "id": (pa.string(), "0123456789abcdef01234567"),
    "who": (pa.string(), str(uuid.UUID(int=7))),
}  # fmt: skip
BSON = {"id": "objectId", "who": "uuid"}


def test_values_of_all_types_are_written_exactly_and_read_again(mongodb_server):  # noqa: F811
    from bson import Decimal128, ObjectId

    name = mongodb_server.new_name()
    schema = pa.schema([("k", pa.int64()), *((column, kind) for column, (kind, _) in TYPES.items())])
    row = {"k": 2**40, **{column: value for column, (_, value) in TYPES.items()}}
    written(sink_into(mongodb_server, name, schema, bson_types=BSON), [row])
    found = mongodb_server.documents(name)[2**40]
    assert found["exact"] == Decimal128("123456789012345678901234.1234567890")
    assert found["id"] == ObjectId("0123456789abcdef01234567")
    assert found["who"] == uuid.UUID(int=7)
    assert found["names"] == {"x.y": 1, "$z": 2}
    assert found["day"] == datetime(1969, 12, 31)  # noqa: DTZ001 - as the driver has it
    source = MongodbSource(mongodb_server.uri, name, schema=schema)
    assert read_some(reader_of(source)) == [{**row, "names": dict(row["names"])}]


def test_keys_of_several_columns_and_ids(mongodb_server):  # noqa: F811
    name = mongodb_server.new_name()
    written(sink_into(mongodb_server, name, key=("k", "at")), [{"k": 1, "at": 2, "v": 3}, {"k": 1, "at": 3, "v": 4}])
    assert set(mongodb_server.documents(name)) == {(("k", 1), ("at", 2)), (("k", 1), ("at", 3))}
    from bson import ObjectId

    name, schema = mongodb_server.new_name(), {"_id": "string", "v": "int64"}
    one = "0123456789abcdef01234567"
    sink = sink_into(mongodb_server, name, schema, key="_id", bson_types={"_id": "objectId"})
    written(sink, [{"_id": one, "v": 1}, {"_id": one.upper(), "v": 2}])  # which are one document
    assert mongodb_server.documents(name) == {ObjectId(one): {"_id": ObjectId(one), "v": 2}}


def test_refused_documents_are_named_or_counted(mongodb_server):  # noqa: F811
    name = mongodb_server.new_name()
    mongodb_server.collection(name).create_index("v", unique=True)
    rows = [{"k": 1, "at": 1, "v": 1}, {"k": 2, "at": 1, "v": 1}, {"k": 3, "at": 1, "v": "text"}]
    schema = {**ROW, "at": pa.timestamp("us")}
    micro = {"k": 4, "at": datetime(2024, 1, 1, 0, 0, 0, 1), "v": 9}  # noqa: DTZ001 - has no zone
    text = told(lambda: written(sink_into(mongodb_server, name), rows[:2]))
    for part in (f"collection {name!r}", "key (2,)", "code 11000", "operator", "subtask", "on_error='skip'"):
        assert part in text
    assert "microseconds" in told(lambda: written(sink_into(mongodb_server, name, schema), [micro]))
    skipping = UpsertOptions(batch_interval="10 ms", on_error="skip")
    counters = written(sink_into(mongodb_server, name, options=skipping), [*rows[:2], {"k": 5, "at": 1, "v": 5}])
    assert counters["num_records_skipped"] == 1
    assert set(mongodb_server.documents(name)) == {1, 5}


def test_what_is_no_object_id_or_no_name_is_refused_and_what_is_beside_it_written(mongodb_server):  # noqa: F811
    schema = pa.schema([("k", pa.int64()), ("id", pa.string()), ("parts", pa.map_(pa.string(), pa.int64()))])
    rows = [
        {"k": 1, "id": "zz", "parts": []},
        {"k": 2, "id": None, "parts": [("a\0b", 1)]},
        {"k": 3, "id": "0" * 24, "parts": [("a", 1)]},
    ]
    name, given = mongodb_server.new_name(), {"bson_types": {"id": "objectId"}}
    assert "'zz' is no objectId" in told(lambda: written(sink_into(mongodb_server, name, schema, **given), rows[:1]))
    skipping = UpsertOptions(batch_interval="10 ms", on_error="skip")
    counters = written(sink_into(mongodb_server, name, schema, options=skipping, **given), rows)
    assert counters["num_records_skipped"] == 2
    assert set(mongodb_server.documents(name)) == {3}
    lookup = MongodbLookup(MongodbClient(mongodb_server.uri), name, schema, ["id"], given["bson_types"])
    lookup.open()
    assert "no document can have the key" in told(lambda: lookup.lookup(pa.record_batch({"id": ["zz"]})))
    lookup.close()


def test_a_number_that_others_have_written_as_a_decimal_is_compared(mongodb_server):  # noqa: F811
    from bson import Decimal128

    name = mongodb_server.new_name()
    mongodb_server.put(name, [{"_id": k, "_number": Decimal128(number)} for k, number in ((1, "1e20"), (2, "3"))])
    counters = written(sink_into(mongodb_server, name, order="at"), [{"k": k, "at": 5, "v": 1} for k in (1, 2)])
    assert counters["num_records_older"] == 1
    assert mongodb_server.documents(name) == {1: {"_id": 1}, 2: {"_id": 2, "k": 2, "at": 5, "v": 1}}


KEYS = {
    "int": (pa.int32(), 7), "long": (pa.int64(), 7), "bool": (pa.bool_(), True), "text": (pa.string(), "ä"),
    "bytes": (pa.binary(), b"\0"), "decimal": (pa.decimal128(5, 2), Decimal("1.50")),
    "day": (pa.date32(), date(2024, 1, 1)),
    "time": (pa.timestamp("ms"), datetime(2024, 1, 1)), "uuid": (pa.string(), str(uuid.UUID(int=9))),  # noqa: DTZ001
    "objectId": (pa.string(), "0" * 24),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("is_composite", [False, True])
def test_what_is_older_is_known_by_keys_of_all_types_and_asked_for_at_once(kind, is_composite, mongodb_server):  # noqa: F811
    declared, value = KEYS[kind]
    name, key = mongodb_server.new_name(), ("k", "c") if is_composite else ("k",)
    schema = pa.schema([("k", declared), ("c", pa.int32()), ("at", pa.int64())])
    types = {"k": kind} if kind in ("uuid", "objectId") else {}
    sink = sink_into(mongodb_server, name, schema, key=key, order="at", bson_types=types)
    rows = [{"k": value, "c": c, "at": 5} for c in range(5 if is_composite else 1)]
    if is_composite and kind in ("int", "long"):
        rows += [{"k": k, "c": c, "at": 5} for k in range(8, 12) for c in range(9, 12)]
    written(sink, rows)
    with CutConnections(mongodb_server.port) as proxy:
        by_proxy = MongodbSink(
            f"mongodb://127.0.0.1:{proxy.port}", name, schema=schema, key=key, order="at", bson_types=types,
            options=AT_ONCE,
        )  # fmt: skip
        proxy.loses_answers_to(b"find", every=2)  # a second question would be lost
        counters = written(by_proxy, [{**row, "at": 4} for row in rows])
        assert proxy.num_lost == 0
    assert counters["num_records_older"] == len(rows)
    assert [row["at"] for row in mongodb_server.collection(name).find()] == [5] * len(rows)


def test_a_lookup_waits_for_a_server_that_is_away(mongodb_server):  # noqa: F811
    name, pauses = mongodb_server.new_name(), []
    mongodb_server.put(name, [{"k": 1, "v": 5}])
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    with CutConnections(mongodb_server.port) as proxy:
        client = MongodbClient(f"mongodb://127.0.0.1:{proxy.port}")
        lookup = MongodbLookup(client, name, schema, ["k"], max_retries=2, pause=pauses.append)
        lookup.open()
        proxy.loses_answers_to(b"find", every=2)
        for _ in range(3):
            assert lookup.lookup(pa.record_batch({"k": [1, 2]})).to_pylist() == [{"k": 1, "v": 5}]
        lookup.close()
    assert pauses == [0.1] * proxy.num_lost
    assert pauses


def test_a_server_that_stays_away_is_an_error():
    impatient = UpsertOptions(batch_interval="10 ms", patience=0, request_timeout="200 ms")
    sink = MongodbSink(NOWHERE, "a.b", schema=ROW, key="k", order="at", options=impatient)
    text = told(lambda: written(sink, [{"k": 1, "at": 1, "v": 1}]))
    assert "takes nothing" in text
    assert "patience" in text


def test_wrong_arguments_are_refused():
    def refused(**arguments):
        given = {"client": "mongodb://localhost", "collection": "a.b", "schema": ROW, "key": "k", **arguments}
        with pytest.raises(ConfigurationError) as error:
            MongodbSink(**given)
        return str(error.value)

    assert "with its database" in refused(collection="b")
    assert "uri must be" in refused(client="http://localhost")
    assert "hidden" not in refused(client="http://me:hidden@localhost")
    assert "key is missing" in refused(key=())
    assert "no column 'x' of the key" in refused(key="x")
    assert "is not written" in refused(delete_column="v")
    assert "delete_column is missing" in refused(deletion_marker="gone_at")
    assert "without . and" in refused(schema={"k": "int32", "a.b": "int32"})
    assert "without . and" in refused(number_field="$n")
    assert "the sink's own" in refused(number_field="v")
    assert "a document's _id is its key" in refused(schema={**ROW, "_id": "int32"})
    assert "equal values" in refused(schema={"k": "float64"})
    assert "no column 'x', which is to be uuid" in refused(bson_types={"x": "uuid"})
    assert "only texts can be" in refused(bson_types={"v": "uuid"})
    with pytest.raises(ConfigurationError, match="not for the program"):
        MongodbClient("mongodb://localhost", {"w": 1})
    assert "hidden" not in repr(MongodbClient("mongodb://me:hidden@localhost"))


@pytest.mark.parametrize(
    ("kind", "text"),
    [(pa.uint64(), "a long ends at"), (pa.time64("us"), "no place"), (pa.decimal128(38, 2), "no place"),
     (pa.timestamp("ns"), "keeps milliseconds"), (pa.map_(pa.int32(), pa.int32()), "no place")],
    ids=str,
)  # fmt: skip
def test_types_without_a_place_are_refused_at_start(kind, text):
    sink = MongodbSink(NOWHERE, "a.b", schema=pa.schema([("k", pa.int32()), ("v", kind)]), key="k", order="k")
    assert text in told(lambda: harness_of(sink))
