"""Families: contract (every source passes the same checks) and mutation (each check can fail)."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from operator import itemgetter
from unittest import mock

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shelf_source
from campaigns import campaign
from kafka_server import kafka_server  # noqa: F401 - a fixture
from postgresql_server import postgresql  # noqa: F401 - a fixture
from pyarrow import orc
from shelf_source import Shelf, ShelfReader, ShelfSource

from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSource
from headrace.connectors.kafka import JsonMessages, KafkaOffsets, KafkaSource
from headrace.connectors.sql import GrowingColumn, KeyRanges, SqlSource
from headrace.engine.columns.records import Batch
from headrace.engine.errors import HeadraceError
from headrace.formats import containers
from headrace.formats.containers.sequence_files import SequenceEncoder, SequenceSettings
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject


def shelf(tmp_path, **options):
    """Endless: parts grow and come later."""
    place = Shelf(tmp_path)
    return SourceSubject(
        ShelfSource(place, **options),
        number=int,
        put=place.put,
        num_parts=3,
        grows=True,
        discovers=True,
        reads_side_by_side=True,
        put_bad=place.put_bad,
        passing_over=ShelfSource(place, skips=True, **options),
        server=place,
    )


def bounded_shelf(tmp_path, **options):
    place = Shelf(tmp_path)
    return SourceSubject(
        ShelfSource(place, is_bounded=True, **options), number=int, put=place.put, num_parts=3, reads_side_by_side=True,
        put_bad=place.put_bad, passing_over=ShelfSource(place, is_bounded=True, skips=True, **options), server=place,
    )  # fmt: skip


def text_files(tmp_path):
    def put(part, numbers):
        with open(tmp_path / f"{part}.txt", "a") as file:
            file.writelines(f"{number}\n" for number in numbers)

    return SourceSubject(FileSource.text(tmp_path, split_bytes=40), number=int, put=put, num_parts=3, is_ordered=False)


def json_files(tmp_path, **options):
    def put(part, numbers):
        with open(tmp_path / f"{part}.json", "a") as file:
            file.writelines(json.dumps({"n": number}) + "\n" for number in numbers)

    def put_bad(part):
        with open(tmp_path / f"{part}.json", "a") as file:
            file.write('{"n": "no number"}\n')

    def source(**more):
        return FileSource.json_lines(tmp_path, {"n": "int64"}, split_bytes=60, **more, **options)

    return SourceSubject(
        source(), number=lambda row: row["n"], put=put, num_parts=3, put_bad=put_bad,
        passing_over=source(on_error="skip"), discovers="follow" in options, is_ordered=False,
    )  # fmt: skip


def followed_files(tmp_path):
    return json_files(tmp_path, follow="1 s")


def csv_files(tmp_path, **options):
    def put(part, numbers):
        with open(tmp_path / f"{part}.csv", "a") as file:
            file.writelines(f"{number},'{number}'\n" for number in numbers)

    def put_bad(part):
        with open(tmp_path / f"{part}.csv", "a") as file:
            file.write("no number,x\n")

    def source(**more):
        schema = {"n": "int64", "t": "string"}
        return FileSource.csv(tmp_path, schema, has_header=False, split_bytes=60, **more, **options)

    return SourceSubject(
        source(), number=lambda row: row["n"], put=put, num_parts=3, put_bad=put_bad,
        passing_over=source(on_error="skip"), is_ordered=False,
    )  # fmt: skip


def csv_files_in_ranges(tmp_path):
    return csv_files(tmp_path, splittable=True)


def container_files(tmp_path, source, write, number=lambda row: row["n"], **options):
    """Files that are written once: what a part is given later is another one."""

    def put(part, numbers):
        there = len(list(tmp_path.glob(f"{part}-*")))
        write(tmp_path / f".{part}-{there}", numbers)
        (tmp_path / f".{part}-{there}").rename(tmp_path / f"{part}-{there}")

    return SourceSubject(source, number=number, put=put, num_parts=3, is_ordered=False, **options)


def parquet_files(tmp_path, **options):
    def write(path, numbers):
        pq.write_table(pa.table({"n": numbers}), path, row_group_size=5)

    source = FileSource.parquet(tmp_path, split_bytes=1, **options)
    return container_files(tmp_path, source, write, discovers="follow" in options)


def followed_parquet_files(tmp_path):
    return parquet_files(tmp_path, follow="1 s")


def orc_files(tmp_path):
    def write(path, numbers):
        with orc.ORCWriter(path, stripe_size=1, batch_size=4) as writer:
            writer.write(pa.table({"n": numbers}))

    return container_files(tmp_path, FileSource.orc(tmp_path, split_bytes=1), write)


def avro_files(tmp_path):
    schema = {"type": "record", "name": "numbers", "fields": [{"name": "n", "type": "long"}]}

    def write(path, numbers):
        with open(path, "wb") as file:
            fastavro.writer(file, schema, [{"n": number} for number in numbers], sync_interval=20)

    return container_files(tmp_path, FileSource.avro(tmp_path, split_bytes=40), write)


def sequence_files(tmp_path):
    def write(path, numbers):
        encoder = SequenceEncoder(SequenceSettings())
        rows = [(number, str(number)) for number in numbers]
        with mock.patch.object(containers.sequence_files, "_SYNC_INTERVAL", 60):
            path.write_bytes(encoder.encode(Batch.of_rows(rows)) + encoder.finish())

    source = FileSource.sequence_file(tmp_path, split_bytes=100)
    return container_files(tmp_path, source, write, itemgetter(0))


def generated(tmp_path):
    return SourceSubject(GeneratorSource(lambda n: n, 60), number=int, made_up=range(60))


def generated_batches(tmp_path):
    def batch(start, n):
        return pa.RecordBatch.from_pydict({"n": list(range(start, start + n))})

    source = GeneratorSource.batches(batch, 60, batch_size=7, number_of_splits=3)
    return SourceSubject(source, number=lambda row: row["n"], made_up=range(60))


def sqlite_table(tmp_path, key="n", ranges=None, follow=None):
    path = tmp_path / "db.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE numbers (n INTEGER NOT NULL PRIMARY KEY)")

    def put(part, numbers):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in numbers])
            connection.commit()

    source = SqlSource(f"sqlite:///{path}", "numbers", {"n": "int64"}, key=key, ranges=ranges, follow=follow)
    return SourceSubject(
        source, number=lambda row: row["n"], put=put, is_ordered=ranges is None, grows=follow is not None
    )


def sqlite_table_followed(tmp_path):
    return sqlite_table(tmp_path, (), follow=GrowingColumn("n", "10 ms", "100 ms"))


def sqlite_table_followed_in_ranges(tmp_path):
    """Parts of the contract are ranges of one column, in each of which another one grows."""
    path = tmp_path / "db.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE numbers (n INTEGER NOT NULL PRIMARY KEY, part INTEGER NOT NULL)")

    def put(part, numbers):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executemany("INSERT INTO numbers VALUES (?, ?)", [(number, part) for number in numbers])
            connection.commit()

    source = SqlSource(
        f"sqlite:///{path}", "numbers", {"n": "int64"}, ranges=KeyRanges("part", 3, (0, 2)),
        follow=GrowingColumn("n", "10 ms", 0),
    )  # fmt: skip
    return SourceSubject(source, number=lambda row: row["n"], put=put, num_parts=3, grows=True, reads_side_by_side=True)


def sqlite_table_without_a_key(tmp_path):
    return sqlite_table(tmp_path, ())


def sqlite_table_in_ranges(tmp_path):
    return sqlite_table(tmp_path, ranges=KeyRanges("n", 3))


def sqlite_table_in_ranges_without_a_key(tmp_path):
    return sqlite_table(tmp_path, (), KeyRanges("n", 3))


SUBJECTS = [
    shelf, bounded_shelf, text_files, json_files, followed_files, generated, generated_batches, sqlite_table,
    sqlite_table_without_a_key, sqlite_table_in_ranges, sqlite_table_followed, sqlite_table_followed_in_ranges,
    sqlite_table_in_ranges_without_a_key,
]  # fmt: skip

OF_FILES = [
    csv_files, csv_files_in_ranges, parquet_files, followed_parquet_files, orc_files, avro_files, sequence_files,
]  # fmt: skip
"""They share what finds files, restores and ends with those of text and JSON, which are in every run."""


@pytest.mark.parametrize("subject", [*SUBJECTS, *map(campaign, OF_FILES)])
@pytest.mark.parametrize("check", SOURCE_CONTRACT, ids=lambda check: check.__name__)
def test_source(check, subject, tmp_path):
    check(subject(tmp_path))


def check_with(check, subject, server):
    """The server is there for others, whatever becomes of the check."""
    try:
        check(subject)
    except BaseException:
        server.kill()
        server.start()
        raise


@pytest.mark.parametrize("follow", [None, GrowingColumn("at", "10 ms", "100 ms")], ids=["once", "followed"])
@pytest.mark.parametrize("check", SOURCE_CONTRACT, ids=lambda check: check.__name__)
def test_table_of_postgresql(check, follow, postgresql):  # noqa: F811
    """Followed by a time that many rows share."""
    postgresql.execute(
        "DROP TABLE IF EXISTS contract", "CREATE TABLE contract (n BIGINT PRIMARY KEY, at TIMESTAMP NOT NULL)"
    )

    def put(part, numbers):
        with postgresql.connect() as connection, connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO contract VALUES (%s, timestamp '2024-01-01' + interval '1 s' * %s)",
                [(number, number // 4) for number in numbers],
            )

    schema = {"n": "int64", "at": pa.timestamp("us")}
    source = SqlSource(postgresql.url, "contract", schema, key="n", follow=follow)
    subject = SourceSubject(source, number=lambda row: row["n"], put=put, server=postgresql, grows=follow is not None)
    check_with(check, subject, postgresql)


def kafka_subject(server, *, stops=False):
    topic = server.create_topic(3)
    partitions = [3]

    def put(part, numbers):
        if part >= partitions[0]:
            partitions[0] = part + 1
            server.add_partitions(topic, part + 1)
        server.produce(topic, [json.dumps({"n": number}) for number in numbers], partition=part)

    def source(**options):
        return KafkaSource(
            server.address, topic, value=JsonMessages({"n": "int64"}), discovery_interval="1 s",
            stop=KafkaOffsets.latest() if stops else None, **options,
        )  # fmt: skip

    return SourceSubject(
        source(), number=lambda row: row["n"], put=put, num_parts=3, grows=not stops, discovers=not stops,
        reads_side_by_side=True, put_bad=lambda part: server.produce(topic, ["{"], partition=part),
        passing_over=source(on_error="skip"), server=server,
    )  # fmt: skip


IN_EVERY_RUN = ("goes_on_from_any_checkpoint", "finds_what_comes_later")
"""Checks that a broker takes seconds for: in every run those that say most."""


@pytest.mark.parametrize(
    "check",
    [check if check.__name__ in IN_EVERY_RUN else campaign(check) for check in SOURCE_CONTRACT],
    ids=[check.__name__ for check in SOURCE_CONTRACT],
)
def test_topic_of_kafka(check, kafka_server):  # noqa: F811
    subject = kafka_subject(kafka_server)
    check_with(check, subject, kafka_server)


@pytest.mark.campaign
@pytest.mark.parametrize("check", SOURCE_CONTRACT, ids=lambda check: check.__name__)
def test_topic_of_kafka_to_its_end(check, kafka_server):  # noqa: F811
    subject = kafka_subject(kafka_server, stops=True)
    check_with(check, subject, kafka_server)


# ------------------------------------------------------------------------------------------- sources that are not right
@pytest.mark.parametrize(
    ("name", "caught_by"),
    [
        ("Forgetful", "goes_on_from_any_checkpoint"),
        ("KeepsThePositionLate", "goes_on_from_any_checkpoint"),
        ("KeepsThePositionEarly", "goes_on_from_any_checkpoint"),
        ("ForgetsFreshSplits", "goes_on_from_any_checkpoint"),
        ("TakesOneSplit", "gives_every_record_once"),
        ("PassesOverBadRecords", "names_what_it_cannot_decode"),
        ("DoesNotSayWhere", "names_what_it_cannot_decode"),
        ("SkipsABlock", "passes_over_what_it_is_told_to"),
        ("StartsAnewWithItsServer", "survives_its_server"),
        ("TakesItsServerForTheEnd", "survives_its_server"),
        ("ReadsOneAfterTheOther", "gives_every_record_once"),
        ("SaysTheWrongSplit", "has_a_watermark_for_each_split"),
        ("NeverEnds", "ends_if_it_is_bounded"),
        ("LooksOnce", "finds_what_comes_later"),
        ("NamesSplitsAnew", "goes_on_from_any_checkpoint"),
        ("Reverses", "gives_every_record_once"),
    ],
)
def test_a_source_that_is_wrong_is_caught(name, caught_by, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.testing.sources.harness.PATIENCE_S", 0.5)
    wrong = getattr(shelf_source, name)
    options = {"reader" if issubclass(wrong, ShelfReader) else "enumerator": wrong}
    (check,) = [check for check in SOURCE_CONTRACT if check.__name__ == caught_by]
    subject = bounded_shelf(tmp_path, **options) if name == "NeverEnds" else shelf(tmp_path, **options)
    with pytest.raises((AssertionError, HeadraceError, KeyError)):
        check(subject)
