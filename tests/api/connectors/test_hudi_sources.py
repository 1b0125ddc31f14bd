"""Tables of Hudi as sources: what writers do and leave behind, played step by step; Hudi's own tables in the lane.

Families: contract (the checks of all sources), crash (positions go on at another parallelism), refusals (what is gone,
archived, rolled back, or says what a stream of rows cannot), differential (`test_hudi_tables`, against Spark).
"""

from __future__ import annotations

import json
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest
from failing_functions import FailsAtFirst, some
from hudi_tables import HudiTables
from reading_kit import reader_of
from s3_server import s3_bucket, s3_server  # noqa: F401 - fixtures

from headrace import RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.files import FileSink
from headrace.connectors.hudi import HudiSource
from headrace.connectors.hudi.timeline import read_timeline
from headrace.engine.errors import ConfigurationError, SourceError
from headrace.state.files.filesystem import filesystem_for
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject
from headrace.testing.sources.harness import SourceTestHarness

cloudpickle.register_pickle_by_value(sys.modules[__name__])

NUMBERS = pa.schema([("n", pa.int64())])


@pytest.fixture
def tables(tmp_path):
    made = HudiTables(tmp_path)
    made.make(NUMBERS)
    return made


def rows(*numbers):
    return [{"n": n} for n in numbers]


def subject(tables, **options):
    def put(_part, numbers):
        tables.append(pa.table({"n": list(numbers)}, schema=NUMBERS))

    follows = "follow" in options
    return SourceSubject(
        tables.source(**options), lambda row: row["n"], put, is_ordered=False, grows=follows, num_parts=1
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", [{}, {"follow": 10}], ids=["bounded", "followed"])
@pytest.mark.parametrize("check", SOURCE_CONTRACT, ids=lambda check: check.__name__)
def test_source(check, options, tables):
    check(subject(tables, **options))


def followed(tables, **options):
    harness = SourceTestHarness(tables.source(follow=10, **options))
    harness.start()
    return harness


def numbers_in(harness):
    """All that comes, once there is nothing more to come."""
    harness.rest()
    return sorted(row["n"] for row in harness.rows)


def read_more(harness, count):
    harness.read_number(count)


def test_a_commit_that_is_completed_after_a_later_one_is_not_passed_over(tables):
    """Its instant is older than what could be read already."""
    tables.complete(tables.begin(), rows(1))
    slow = tables.begin()
    tables.complete(tables.begin(), rows(3))
    with closing(followed(tables)) as harness:
        read_more(harness, 1)
        assert numbers_in(harness) == [1]
        harness.checkpoint()
        tables.complete(slow, rows(2))
        read_more(harness, 3)
        assert numbers_in(harness) == [1, 2, 3]


def test_who_reads_once_reads_all_that_is_completed(tables):
    tables.complete(tables.begin(), rows(1))
    tables.begin()
    tables.complete(tables.begin(), rows(3))
    assert sorted(tables.source().read().column("n").to_pylist()) == [1, 3]


def test_a_commit_that_never_completes_and_is_rolled_back_says_nothing(tables):
    tables.complete(tables.begin(), rows(1))
    dead = tables.begin()
    with closing(followed(tables)) as harness:
        read_more(harness, 1)
        harness.checkpoint()
        tables.forget(dead)
        tables.complete(tables.begin(), rows(2))
        read_more(harness, 2)
        assert numbers_in(harness) == [1, 2]


def test_the_rows_of_a_commit_are_told_from_those_that_its_file_had(tables):
    """A small file is written anew with what it had."""
    first = tables.begin()
    tables.complete(first, rows(1, 2))
    with closing(followed(tables)) as harness:
        read_more(harness, 2)
        harness.checkpoint()
        second = tables.begin()
        path = tables.complete(second, rows(1, 2, 3))
        table = pa.parquet.read_table(path)
        times = pa.array([first, first, second])
        pa.parquet.write_table(table.set_column(0, "_hoodie_commit_time", times), path)
        read_more(harness, 3)
        assert numbers_in(harness) == [1, 2, 3]


def test_a_commit_that_was_read_and_is_rolled_back_is_an_error(tables):
    tables.complete(tables.begin(), rows(1))
    last = tables.begin()
    tables.complete(last, rows(2))
    with closing(followed(tables)) as harness:
        read_more(harness, 2)
        harness.checkpoint()
        tables.forget(last)
        tables.complete(tables.begin(), rows(3))
        with pytest.raises(SourceError, match=f"read last, {int(last)}, is none of the Hudi table's any more"):
            read_more(harness, 3)


def test_commits_that_were_archived_before_they_were_read_are_an_error(tables):
    instants = [tables.begin() for _ in range(3)]
    tables.complete(instants[0], rows(1))
    with closing(followed(tables)) as harness:
        read_more(harness, 1)
        harness.checkpoint()
        for n, instant in enumerate(instants[1:], 2):
            tables.complete(instant, rows(n))
        for instant in instants[:2]:
            tables.archive(instant)
        with pytest.raises(SourceError, match=f"has archived what came behind position {int(instants[0])}"):
            read_more(harness, 2)


def test_a_position_that_is_archived_with_nothing_behind_it_is_an_error(tables):
    with closing(followed(tables)) as harness:
        harness.rest()
        harness.checkpoint()
        first = tables.begin()
        tables.complete(first, rows(1))
        tables.complete(tables.begin(), rows(2))
        tables.archive(first)
        with pytest.raises(SourceError, match="has archived what came behind position 0"):
            read_more(harness, 1)


def test_a_file_that_the_cleaner_has_removed_is_named(tables):
    path = tables.complete(tables.begin(), rows(1))
    [split] = tables.source().create_enumerator(None).discover().splits
    path.unlink()
    reader = reader_of(tables.source(), [split])
    with pytest.raises(SourceError, match="the cleaner has removed it") as caught:
        reader.poll(10)
    assert caught.value.context["file"] == path.name


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"operation": "UPSERT", "updates": 1}, "UPSERT changes rows"),
        ({"operation": "DELETE", "deletes": 1}, "DELETE deletes rows"),
        ({"operation": "INSERT_OVERWRITE"}, "INSERT_OVERWRITE"),
        ({"operation": "DELETE_PARTITION"}, "DELETE_PARTITION"),
    ],
)
def test_a_commit_that_takes_rows_away_is_refused_or_passed_over(tables, how, says):
    tables.complete(tables.begin(), rows(1))
    with closing(followed(tables)) as strict, closing(followed(tables, on_change="skip")) as lenient:
        for one in (strict, lenient):
            read_more(one, 1)
            one.checkpoint()
        tables.complete(tables.begin(), rows(5), **how)
        tables.complete(tables.begin(), rows(2))
        read_more(lenient, 2)
        assert numbers_in(lenient) == [1, 2]
        with pytest.raises(ConfigurationError, match=says):
            read_more(strict, 2)


def test_changed_rows_are_given_where_they_are_asked_for_and_deletions_still_fail(tables):
    tables.complete(tables.begin(), rows(1))
    with closing(followed(tables, on_change="rows")) as harness:
        read_more(harness, 1)
        harness.checkpoint()
        tables.complete(tables.begin(), rows(1), operation="UPSERT", updates=1)
        read_more(harness, 2)
        assert numbers_in(harness) == [1, 1]
        tables.complete(tables.begin(), rows(2), operation="DELETE", deletes=1)
        with pytest.raises(ConfigurationError, match="DELETE deletes rows"):
            read_more(harness, 3)


@pytest.mark.parametrize("operation", ["COMPACT", "CLUSTER"])
def test_what_only_puts_files_together_says_nothing(tables, operation):
    tables.complete(tables.begin(), rows(1))
    with closing(followed(tables)) as harness:
        read_more(harness, 1)
        harness.checkpoint()
        tables.complete(tables.begin(), rows(1), operation=operation)
        tables.complete(tables.begin(), rows(2))
        read_more(harness, 2)
        assert numbers_in(harness) == [1, 2]


def test_following_begins_where_it_is_told(tables):
    instants = [tables.begin() for _ in range(3)]
    for n, instant in enumerate(instants):
        tables.complete(instant, rows(n))
    for start, expected in (("latest", [9]), (int(instants[0]), [1, 2, 9]), (int(instants[0]) - 1, [0, 1, 2, 9])):
        with closing(followed(tables, start=start)) as harness:
            harness.rest()
            harness.checkpoint()
            if start == "latest":
                tables.complete(tables.begin(), rows(9))
            read_more(harness, len(expected))
            assert numbers_in(harness) == expected


@pytest.mark.parametrize(
    ("properties", "options", "says"),
    [
        ({"hoodie.datasource.write.drop.partition.columns": "true"}, {}, "drop.partition.columns"),
        ({"hoodie.table.base.file.format": "ORC"}, {}, "another format than Parquet"),
        ({"hoodie.populate.meta.fields": "false"}, {"follow": 10}, "cannot be followed"),
        ({}, {"table_type": "MERGE_ON_READ"}, "of type COPY_ON_WRITE, not MERGE_ON_READ"),
    ],
)
def test_tables_that_are_not_read_are_refused_by_name(tmp_path, properties, options, says):
    tables = HudiTables(tmp_path)
    tables.make(NUMBERS, **properties)
    tables.complete(tables.begin(), rows(1))
    with pytest.raises(SourceError, match=says):
        tables.source(**options).create_enumerator(None).discover()


def test_a_table_with_a_history_of_columns_is_refused(tables):
    instant = tables.begin()
    tables.complete(instant, rows(1))
    tables.say(instant, {"extraMetadata": {"schema": tables._avro(), "latest_schema": "{}"}, "operationType": "INSERT"})
    with pytest.raises(SourceError, match="keeps a history of its columns"):
        tables.source().read()


def test_a_table_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SourceError, match="there is no Hudi table"):
        HudiTables(tmp_path).source().read()


@pytest.mark.parametrize(
    "options", [{"follow": 0}, {"start": "latest"}, {"follow": 10, "start": "early"}, {"on_change": "x"},
                {"table_type": "MIXED"}],
)  # fmt: skip
def test_arguments_that_mean_nothing_are_refused(tables, options):
    with pytest.raises(ConfigurationError):
        tables.source(**options)


def test_newer_tables_are_read_in_the_order_in_which_commits_were_completed(tmp_path):
    """What began first and is completed last comes last; what is under way holds up nobody."""
    folder = tmp_path / ".hoodie" / "timeline"
    folder.mkdir(parents=True)
    day = "20240229"
    begun = [f"{day}{n:09}" for n in range(4)]
    for instant in begun:
        (folder / f"{instant}.commit.requested").touch()
        (folder / f"{instant}.inflight").touch()
    for instant, completed in ((begun[0], 10), (begun[3], 20), (begun[1], 30)):
        (folder / f"{instant}_{day}{completed:09}.commit").touch()
    timeline = read_timeline(str(tmp_path), 2, "history")
    assert [one.instant for one in timeline.commits] == [begun[0], begun[3], begun[1]]
    assert [one.instant for one in timeline.behind(int(f"{day}{20:09}"), {})] == [begun[1]]
    (folder / f"{begun[2]}_{day}{40:09}.commit").touch()
    timeline = read_timeline(str(tmp_path), 2, "history")
    assert [one.instant for one in timeline.behind(int(f"{day}{30:09}"), {})] == [begun[2]]
    assert timeline.position(int(begun[2]), {}) == int(f"{day}{40:09}")
    assert timeline.position(int(f"{day}{25:09}"), {}) == int(f"{day}{20:09}")


@pytest.mark.parametrize("log", [".lonely-0_20240229000000001.log.1_0-1-1", ".BASE_20250101000000000.log.2"])
def test_rows_of_a_log_without_a_base_file_are_refused(tmp_path, log):
    """Of a file group that has none, or whose next one is that of a compaction which is under way."""
    tables = HudiTables(tmp_path)
    tables.make(NUMBERS, **{"hoodie.table.type": "MERGE_ON_READ"})
    instant = tables.begin()
    path = tables.complete(instant, rows(1))
    with_base = path.name.partition("_")[0]
    for name in (f".{with_base}_{instant}.log.1_0-1-1", f"..{with_base}_{instant}.log.1_0-1-1.crc"):
        (tables.path / name).touch()
    _, timeline = tables.source()._table.access.look()
    tables.source()._table._require_base_files(timeline)
    (tables.path / log.replace("BASE", with_base)).write_bytes(b"x")
    with pytest.raises(SourceError, match="log without a base file"):
        tables.source().read()


def test_a_job_that_fails_gives_each_row_once(tables, tmp_path):
    for start in range(0, 300, 100):
        tables.complete(tables.begin(), rows(*range(start, start + 100)))
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2, max_batch_rows=5)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(5, 10))
    env.enable_checkpointing(20, directory=tmp_path / "checkpoints")
    failing = FailsAtFirst(tmp_path, some(3, 300), lambda row: row["n"])
    stream = env.from_source(tables.source(), WatermarkStrategy.no_watermarks(), "numbers")
    stream.map(failing).sink_to(FileSink.json_lines(tmp_path / "out")).name("files")
    env.execute()
    assert len(list(tmp_path.glob("failed-*"))) == 3
    parts = [path.read_text() for path in (tmp_path / "out").glob("part-*")]
    assert sorted(json.loads(line)["n"] for part in parts for line in part.splitlines()) == list(range(300))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cow", [
            {"n": 1, "ts": 4, "name": "A", "more": 1.5, "day": "2024-01-01"},
            {"n": 3, "ts": 1, "name": None, "more": None, "day": "2024-01-02"},
            {"n": 4, "ts": 2, "name": "d", "more": None, "day": "2024-01-02"},
            {"n": 9, "ts": 6, "name": "z", "more": None, "day": "2024-01-03"},
        ]),
        ("mor", [
            {"n": 1, "ts": 2, "name": "A", "day": "2024-01-01"}, {"n": 3, "ts": 4, "name": "C", "day": "2024-01-02"},
            {"n": 7, "ts": 2, "name": "g", "day": "2024-01-02"},
        ]),
    ],
)  # fmt: skip
def test_tables_that_hudi_has_written_are_read_as_spark_reads_them(tmp_path, name, expected):
    """Hudi 1.0.2 has written them: partitions, a later column, rows changed and deleted; Spark 3.5 has read them."""
    unpack(tmp_path)
    found = HudiSource(tmp_path / name).read().to_pylist()
    assert sorted(found, key=lambda row: row["n"]) == expected


def unpack(place):
    with tarfile.open(Path(__file__).parents[2] / "data" / "hudi" / "tables.tar.xz") as archive:
        archive.extractall(place, filter="data")


def test_tables_in_an_object_store_are_read(s3_server, s3_bucket, tmp_path):  # noqa: F811
    """Base files by Headrace, slices and logs by the library, each with its own access."""
    unpack(tmp_path)
    fs, root = filesystem_for(s3_bucket)
    for path in (path for path in (tmp_path / "mor").rglob("*") if path.is_file()):
        fs.write_bytes(f"{root}/{path.relative_to(tmp_path)}", path.read_bytes())
    options = {"aws_endpoint": s3_server.endpoint, "aws_allow_http": "true"}
    found = HudiSource(f"{s3_bucket}/mor", storage_options=options).read()
    assert found.equals(HudiSource(tmp_path / "mor").read())
