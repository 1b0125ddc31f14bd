"""Tables of Iceberg and Delta as sources.

Families: contract (the checks of all sources), refusals (what following cannot say), differential (against the formats'
own readers: time travel, columns that came later, partitions).
"""

from __future__ import annotations

import datetime as dt
from contextlib import closing

import pyarrow as pa
import pytest
from lake_tables import FORMATS, DeltaTables, IcebergTables

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.engine.connectors.source_protocols import EnumeratorProgress
from headrace.engine.errors import ConfigurationError, SourceError
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject
from headrace.testing.sources.harness import SourceTestHarness

NUMBERS = pa.schema([("n", pa.int64())])


@pytest.fixture(params=FORMATS)
def tables(request, tmp_path):
    return request.param(tmp_path)


def subject(tables, **options):
    tables.make(NUMBERS)
    follows = "follow" in options

    def put(_part, numbers):
        tables.append(pa.table({"n": list(numbers)}, schema=NUMBERS))

    return SourceSubject(
        tables.source(**options), lambda row: row["n"], put, is_ordered=False, grows=follows, num_parts=1
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", [{}, {"follow": 10}], ids=["bounded", "followed"])
@pytest.mark.parametrize("check", SOURCE_CONTRACT, ids=lambda check: check.__name__)
def test_source(check, options, tables):
    check(subject(tables, **options))


def rows_of(tables, **options):
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)
    stream = env.from_source(tables.source(**options), WatermarkStrategy.no_watermarks(), "table")
    return sorted(stream.execute_and_collect(), key=str)


def test_older_versions_are_read(tables):
    tables.make(NUMBERS)
    for n in range(3):
        tables.append(pa.table({"n": [n]}, schema=NUMBERS))
    if isinstance(tables, DeltaTables):
        versions = [1, 2, 3]
        # A version is as old as the file of its commit, which is a moment younger than the time in it.
        log = tables.directory / "numbers" / "_delta_log"
        seconds = [(log / f"{version:020}.json").stat().st_mtime for version in versions]
        moments = [dt.datetime.fromtimestamp(one, dt.timezone.utc) for one in seconds]
    else:
        snapshots = tables.table().metadata.snapshots
        versions = [one.snapshot_id for one in snapshots]
        moments = [dt.datetime.fromtimestamp(one.timestamp_ms / 1_000, dt.timezone.utc) for one in snapshots]
    for count, (version, moment) in enumerate(zip(versions, moments, strict=True), 1):
        assert rows_of(tables, version=version) == [{"n": n} for n in range(count)]
        assert {"n": count - 1} in rows_of(tables, as_of=moment + dt.timedelta(milliseconds=1))
    with pytest.raises(Exception, match=r"version|snapshot"):
        rows_of(tables, version=987_654)


def test_partitions_and_columns_that_came_later(tables):
    columns = pa.schema([("n", pa.int64()), ("day", pa.date32()), ("name", pa.string())])
    tables.make(columns, ["day", "name"])
    first = [{"n": 1, "day": dt.date(2024, 2, 29), "name": "a b/ä%"}, {"n": 2, "day": None, "name": None}]
    tables.append(pa.Table.from_pylist(first, schema=columns))
    tables.add_column("later")
    tables.append(
        pa.Table.from_pylist([{**first[0], "later": 7}], schema=columns.append(pa.field("later", pa.int64())))
    )
    expected = sorted(tables.rows().to_pylist(), key=str)
    assert rows_of(tables) == expected
    assert len(expected) == 3
    chosen = sorted(({"later": row["later"], "name": row["name"]} for row in expected), key=str)
    assert rows_of(tables, columns=["later", "name"]) == chosen
    assert rows_of(tables, columns=["name"]) == sorted(({"name": row["name"]} for row in expected), key=str)
    with pytest.raises(Exception, match="no column 'nam'"):
        rows_of(tables, columns=["nam"])


def followed(tables, **options):
    harness = SourceTestHarness(tables.source(follow=10, **options))
    harness.start()
    return harness


def numbers_in(harness):
    return sorted(row["n"] for row in harness.rows)


def test_following_begins_where_it_is_told(tables):
    tables.make(NUMBERS)
    tables.append(pa.table({"n": [1]}, schema=NUMBERS))
    known = tables.version()
    with closing(followed(tables, start="latest")) as behind, closing(followed(tables, start=known)) as numbered:
        for one in (behind, numbered):
            one.step(3)
            one.checkpoint()
        tables.append(pa.table({"n": [2]}, schema=NUMBERS))
        for one in (behind, numbered):
            one.read(lambda one=one: bool(one.rows), 10)
            assert numbers_in(one) == [2]


def test_a_version_that_takes_rows_away_is_refused_or_passed_over(tables):
    tables.make(NUMBERS)
    tables.append(pa.table({"n": [1]}, schema=NUMBERS))
    with closing(followed(tables)) as strict, closing(followed(tables, on_change="skip")) as lenient:
        for one in (strict, lenient):
            one.read(lambda one=one: bool(one.rows), 10)
            one.checkpoint()
        tables.overwrite(pa.table({"n": [5]}, schema=NUMBERS))
        tables.append(pa.table({"n": [2]}, schema=NUMBERS))
        lenient.read(lambda: {"n": 2} in lenient.rows, 10)
        # The library's overwrite is two snapshots, of which the second only adds rows.
        assert numbers_in(lenient) == ([1, 2] if isinstance(tables, DeltaTables) else [1, 2, 5])
        with pytest.raises(ConfigurationError, match="does more than to add rows"):
            strict.read(lambda: len(strict.rows) > 1, 10)


@pytest.mark.parametrize("num_versions", [0, 5])
def test_a_followed_table_that_was_made_again_is_refused(tables, num_versions):
    """Whether its versions are fewer than were read, or more."""
    tables.make(NUMBERS)
    for n in (1, 2):
        tables.append(pa.table({"n": [n]}, schema=NUMBERS))
    with closing(followed(tables)) as harness:
        harness.read(lambda: len(harness.rows) == 2, 10)
        harness.checkpoint()
        tables.drop()
        tables.make(NUMBERS)
        for n in range(num_versions):
            tables.append(pa.table({"n": [10 + n]}, schema=NUMBERS))
        with pytest.raises(SourceError, match="dropped or replaced by another one of its name"):
            harness.read(lambda: len(harness.rows) > 2, 10)


def test_snapshots_that_expire_before_the_first_look_at_them_are_missed_aloud(tmp_path):
    """The table had none at the first look: behind the oldest that is left there may have been more."""
    tables = IcebergTables(tmp_path)
    tables.make(NUMBERS)
    source = tables.source(follow=10).create_enumerator(None)
    seen = source.discover_from(EnumeratorProgress(None, is_exhausted=False, parallelism=1))
    for n in range(3):
        tables.append(pa.table({"n": [n]}, schema=NUMBERS))
    progress = EnumeratorProgress(seen.state, is_exhausted=False, parallelism=1)
    assert len(source.discover_from(progress).splits) == 3
    first, *_ = tables.table().metadata.snapshots
    tables.table().maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    with pytest.raises(SourceError, match="have expired before they were read"):
        source.discover_from(progress)


def test_following_begins_behind_no_version_that_is_to_come(tables):
    tables.make(NUMBERS)
    tables.append(pa.table({"n": [1]}, schema=NUMBERS))
    with closing(followed(tables, start=99)) as harness, pytest.raises(SourceError, match=r"no version 99|none of the"):
        harness.read(lambda: bool(harness.rows), 10)


def test_a_table_that_is_not_there_is_named(tables):
    with pytest.raises(Exception, match="there is no"):
        rows_of(tables)


@pytest.mark.parametrize(
    "options",
    [{"follow": 0}, {"start": "latest"}, {"follow": 10, "start": "early"}, {"on_change": "x"}, {"as_of": "noon"},
     {"follow": 10, "start": 1, "version": 2}],
)  # fmt: skip
def test_arguments_that_mean_nothing_are_refused(tables, options):
    with pytest.raises(ConfigurationError):
        tables.source(**options)
