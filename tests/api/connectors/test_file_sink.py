"""Families: crash (at every protocol point and file operation, then restore), property (round trips), errors."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections import Counter
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from campaigns import campaign, examples
from file_sink_store import MAKERS, Store, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.files import FileSink, FileSource
from headrace.engine.columns.records import Batch
from headrace.engine.errors import (
    ConfigurationError,
    InternalError,
    PossibleLossError,
    TypeMismatchError,
)


# --------------------------------------------------------------------------------------------------------- exactly once
@pytest.mark.parametrize("kind", MAKERS)
def test_nothing_is_visible_before_its_checkpoint_is_complete(reading, sink_job, kind):
    store = Store(reading, kind)
    job = sink_job(store.sink)
    job.start()
    job.write(rows(1, 2))
    assert store.visible() == []
    job.checkpoint(1, notifies=False)
    job.write(rows(3))
    assert store.visible() == []
    job.notify(1)
    assert store.visible() == [1, 2]
    job.checkpoint(2)
    assert store.visible() == [1, 2, 3]
    job.finish()
    assert store.visible() == [1, 2, 3]
    assert store.staged == []


def test_an_aborted_checkpoint_loses_nothing(reading, sink_job):
    store = Store(reading)
    job = sink_job(store.sink)
    job.start()
    job.write(rows(1))
    job.checkpoint(1, completes=False)
    job.write(rows(2))
    job.checkpoint(2, notifies=False)
    job.start()
    assert sorted(store.visible()) == [1, 2]


def test_without_checkpoints_output_appears_at_the_end(reading, sink_job):
    store = Store(reading)
    job = sink_job(store.sink, 2, checkpointing=False)
    job.start()
    job.write(rows(1), 0)
    job.write(rows(2), 1)
    assert store.visible() == []
    job.finish()
    assert sorted(store.visible()) == [1, 2]
    assert store.staged == []


def test_output_left_after_the_last_checkpoint_is_a_bug_and_said_so(reading, sink_job):
    store = Store(reading)
    job = sink_job(store.sink)
    job.start()
    job.write(rows(1))
    job.checkpoint(1, notifies=False)
    with pytest.raises(InternalError, match=r"uncommitted.*checkpoints \[1\]"):
        job.finish()


def run_with_crashes(store, sink_job, crash_error, crash_at, num_rounds=4, parallelisms=(2, 1, 3)):
    """A source of numbers, checkpoints after every third; whatever is not in a complete checkpoint is replayed after a
    crash.

    ``crash_at`` counts protocol points and file operations, over the whole run. Gives the number of them that were met.
    """
    met = 0

    def point(name, path=None):
        nonlocal met
        met += 1
        if met in crash_at:
            message = f"{met}: {name} {path}"
            raise crash_error(message)

    job = sink_job(store.sink)
    job.probe = point
    store.fs.fault = point
    done: dict[int, int] = {0: 0}  # checkpoint -> source position
    complete_rows: set[int] = set()
    checkpoint_id = 0
    deployments = 0
    while True:
        try:
            job.start(parallelisms[deployments % len(parallelisms)])
            deployments += 1
            position = done[job.complete]
            while position < num_rounds * 3:
                for _ in range(3):
                    job.write(store.rows(position), position % job.parallelism)
                    position += 1
                checkpoint_id += 1
                done[checkpoint_id] = position
                job.checkpoint(checkpoint_id, completes=checkpoint_id % 4 != 2, notifies=checkpoint_id % 3 != 0)
            checkpoint_id += 1
            done[checkpoint_id] = position
            job.checkpoint(checkpoint_id)
            job.finish()
            break
        except crash_error:
            deployments += 1
        finally:
            store.fs.fault = None
            complete_rows = set(range(done[job.complete]))
            seen = Counter(store.visible())
            assert set(seen) <= complete_rows, "uncommitted output is visible"
            assert not seen or max(seen.values()) == 1, "output is doubled"
            store.fs.fault = point
    store.fs.fault = None
    return met


@pytest.mark.parametrize("options", [{}, {"partition_by": ("f",)}])
@pytest.mark.parametrize(
    "kind", ["jsonl", "parquet", *map(campaign, ("csv", "orc", "avro"))]
)  # the first one is in every run
@pytest.mark.sampled(9)
def test_a_crash_anywhere_neither_loses_nor_doubles(reading, sink_job, crash_error, kind, options):
    crash_anywhere(reading, sink_job, crash_error, kind, options)


@pytest.mark.parametrize("options", [{"compression": "block"}, campaign({})])
@pytest.mark.sampled(9)
def test_a_crash_anywhere_neither_loses_nor_doubles_pairs(reading, sink_job, crash_error, options):
    crash_anywhere(reading, sink_job, crash_error, "seq", options)


def crash_anywhere(reading, sink_job, crash_error, kind, options):
    store = Store(reading, kind, max_part_rows=2, **options)
    num_points = run_with_crashes(store, sink_job, crash_error, ())
    assert num_points > 60
    for crash in range(1, num_points + 1):
        store = Store(reading, kind, max_part_rows=2, **options)
        run_with_crashes(store, sink_job, crash_error, (crash,))
        assert sorted(store.visible()) == list(range(12)), f"crash at {crash}"
        assert store.staged == [], f"crash at {crash}"


@given(st.lists(st.integers(1, 60), min_size=2, max_size=8), st.booleans())
@settings(max_examples=examples(150), deadline=None)
def test_many_crashes_neither_lose_nor_double(reading, sink_job, crash_error, gaps, has_folders):
    store = Store(reading, partition_by="f") if has_folders else Store(reading)
    crash_at = set(np.cumsum(gaps).tolist())
    run_with_crashes(store, sink_job, crash_error, crash_at)
    assert sorted(store.visible()) == list(range(12))
    assert store.staged == []


def test_a_late_commit_of_an_old_attempt_changes_nothing(reading, sink_job):
    store = Store(reading)
    job = sink_job(store.sink)
    zombie = job.start()
    job.write(rows(1))
    job.checkpoint(1, notifies=False)
    job.start()
    job.write(rows(2))
    zombie.write(rows(99))
    zombie.notify_complete(1)
    job.checkpoint(2)
    zombie.close()
    job.finish()
    assert sorted(store.visible()) == [1, 2]


def test_prepared_output_that_is_gone_is_an_error(reading, sink_job):
    store = Store(reading)
    job = sink_job(store.sink)
    job.start()
    job.write(rows(1))
    job.checkpoint(1, notifies=False)
    for path in store.staged:
        del store.fs.files[path]
    with pytest.raises(PossibleLossError, match="possible loss"):
        job.start()


def test_two_jobs_share_a_directory(reading, sink_job):
    store = Store(reading, mode="append")
    for name in ("a", "b"):
        job = sink_job(store.sink, checkpointing=False, job=name)
        job.start()
        job.write(rows(1))
        job.finish()
    assert store.visible() == [1, 1]


def test_a_concurrent_reader_never_sees_a_part_of_a_file(sink_job, tmp_path):
    sink = FileSink.json_lines(tmp_path / "out", max_part_rows=50)
    is_done = threading.Event()
    problems: list[str] = []
    largest = 0

    def read() -> None:
        nonlocal largest
        while True:
            last = is_done.is_set()
            names = [name for name in os.listdir(tmp_path / "out") if not name.startswith(".")]
            seen = []
            for name in names:
                lines = (tmp_path / "out" / name).read_text().splitlines()
                if len(lines) != 50:
                    problems.append(f"{name} has {len(lines)} lines")
                seen.extend(json.loads(line) for line in lines)
            if len(set(seen)) != len(seen) or (largest and not seen):
                problems.append("doubled or vanished rows")
            largest = max(largest, len(seen))
            if last:
                return

    job = sink_job(sink, 2)
    job.start()
    reader = threading.Thread(target=read)
    reader.start()
    for checkpoint_id in range(1, 30):
        for subtask in range(2):
            job.write([checkpoint_id * 1000 + subtask * 100 + i for i in range(50)], subtask)
        job.checkpoint(checkpoint_id)
        if checkpoint_id % 7 == 0:
            job.start()
    job.finish()
    is_done.set()
    reader.join()
    assert problems == []
    assert largest == 29 * 100
    assert [name for name in os.listdir(tmp_path / "out") if name.startswith(".")] == []


# ------------------------------------------------------------------------------------------------------------ directory
def test_no_output_gives_an_empty_directory(sink_job, tmp_path):
    job = sink_job(FileSink.parquet(tmp_path / "a" / "b"), 2)
    job.start()
    job.checkpoint(1)
    job.finish()
    assert os.listdir(tmp_path / "a" / "b") == []


def test_a_failed_attempt_leaves_only_what_a_checkpoint_holds(sink_job, tmp_path):
    job = sink_job(FileSink.json_lines(tmp_path, max_part_rows=1))
    job.start()
    job.write([1])
    job.checkpoint(1, notifies=False)
    job.write([2, 3])
    job.close()
    staged = [name for _, _, names in os.walk(tmp_path / ".staging") for name in names]
    assert sorted(name[:5] for name in staged) == ["00000", "claim"]
    job.start()
    job.checkpoint(2)
    job.finish()
    assert len(os.listdir(tmp_path)) == 1


def test_leftovers_of_a_killed_attempt_are_cleaned_up(sink_job, tmp_path):
    job = sink_job(FileSink.json_lines(tmp_path, max_part_rows=1), 3)
    job.start()
    for subtask in range(3):
        job.write([subtask, subtask], subtask)
    job.start(2)
    job.checkpoint(1)
    job.finish()
    assert os.listdir(tmp_path) == []


def test_a_job_that_begins_from_anothers_checkpoint_takes_over_its_parts(sink_job, tmp_path):
    job = sink_job(FileSink.json_lines(tmp_path))
    job.start()
    job.write([1])
    job.checkpoint(1, notifies=False)
    job.job = "another"
    job.start()
    job.write([2])
    job.checkpoint(2)
    job.finish()
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["1\n", "2\n"]


def test_a_path_that_is_a_file_is_refused(sink_job, tmp_path):
    (tmp_path / "out").write_text("x")
    with pytest.raises(ConfigurationError, match=r"cannot use the output directory.*out"):
        sink_job(FileSink.csv(tmp_path / "out")).start()


@pytest.mark.parametrize("options", [{"max_part_rows": 0}, {"max_part_bytes": 0}])
def test_illegal_limits_are_refused(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        FileSink.json_lines("x", **options)


# ---------------------------------------------------------------------------------------------------------------- parts
@pytest.mark.parametrize("kind", MAKERS)
def test_parts_are_closed_when_they_are_full(reading, sink_job, kind):
    store = Store(reading, kind, max_part_rows=10)
    job = sink_job(store.sink, checkpointing=False)
    job.start()
    for start in range(0, 35, 7):
        job.write(rows(*range(start, start + 7)))
    job.finish()
    assert len(store.fs.files) == 4
    assert store.visible() == list(range(35))
    store = Store(reading, kind, max_part_bytes=1)
    job = sink_job(store.sink, checkpointing=False)
    job.start()
    job.write(rows(1, 2))
    job.write(rows(3))
    job.finish()
    assert len(store.fs.files) == 2


def test_names_tell_subtask_checkpoint_and_number(reading, sink_job):
    store = Store(reading, max_part_rows=1)
    job = sink_job(store.sink, 2)
    job.start()
    job.write(rows(1, 2), 1)
    job.checkpoint(7)
    first, second = sorted(path for path in store.fs.files if path not in store.staged)
    assert first.startswith("out/part-00001-")
    assert first.endswith("-00007-00000.jsonl")
    assert second.endswith("-00007-00001.jsonl")


# -------------------------------------------------------------------------------------------------------------- formats
def written(sink_job, tmp_path, sink_of, *batches):
    job = sink_job(sink_of(tmp_path / "out"), checkpointing=False)
    job.start()
    for batch in batches:
        job.operators[0].process_batch(batch if isinstance(batch, Batch) else Batch.of_rows(batch), 0)
    job.finish()
    return [tmp_path / "out" / name for name in sorted(os.listdir(tmp_path / "out"))]


class Color(Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    at: datetime


def test_json_lines_have_a_form_for_every_usual_value(sink_job, tmp_path):
    at = datetime(2024, 1, 2, 3, 4, 5, 600_000)  # noqa: DTZ001 - naive on purpose
    values = [
        (1, "ä\n", None, True),
        {"t": at, "d": date(2024, 1, 2), "z": at.replace(tzinfo=timezone.utc), "s": timedelta(milliseconds=1500)},
        {"dec": Decimal("1.10"), "b": b"\x00\xff", "e": Color.RED, "set": {2, 1}, 5: 6},
        Point(1, at),
        {"n": np.int64(3), "a": np.array([1.5, 2.5]), "f": np.float32(0.5)},
        {"nan": float("nan"), "inf": [float("inf")], "deep": {"x": (float("nan"), Point(2, at))}},
    ]
    [path] = written(sink_job, tmp_path, FileSink.json_lines, values)
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == [
        [1, "ä\n", None, True],
        {
            "t": "2024-01-02T03:04:05.600000",
            "d": "2024-01-02",
            "z": "2024-01-02T03:04:05.600000+00:00",
            "s": 1.5,
        },
        {"dec": "1.10", "b": "AP8=", "e": "red", "set": [1, 2], "5": 6},
        {"x": 1, "at": "2024-01-02T03:04:05.600000"},
        {"n": 3, "a": [1.5, 2.5], "f": 0.5},
        {"nan": None, "inf": [None], "deep": {"x": [None, {"x": 2, "at": "2024-01-02T03:04:05.600000"}]}},
    ]


@pytest.mark.parametrize("value", [object(), {(1, 2): 3}, [lambda: 1], {"a": {float("nan"): 1}}])
def test_json_lines_refuse_what_has_no_form(sink_job, tmp_path, value):
    with pytest.raises(TypeMismatchError, match="json has no form"):
        written(sink_job, tmp_path, FileSink.json_lines, [value])


def test_csv_takes_columns_from_keys_and_positions(sink_job, tmp_path):
    [path] = written(sink_job, tmp_path, FileSink.csv, [{"a": 1, "b,c": 'x"y'}], [{"a": None, "b,c": ""}])
    assert path.read_text() == 'a,"b,c"\n1,"x""y"\n,""\n'
    [path] = written(sink_job, tmp_path / "2", lambda p: FileSink.csv(p, delimiter=";"), [(1, True), (2, False)])
    assert path.read_text() == "f0;f1\n1;true\n2;false\n"
    [path] = written(sink_job, tmp_path / "3", lambda p: FileSink.csv(p, header=False), [5, 6])
    assert path.read_text() == "5\n6\n"


def test_csv_of_one_column_has_a_line_for_null(sink_job, tmp_path):
    [path] = written(sink_job, tmp_path, FileSink.csv, [{"a": None}, {"a": 1}, {"a": None}])
    assert path.read_text() == 'a\n""\n1\n""\n'


def test_csv_refuses_other_columns_and_nested_ones(sink_job, tmp_path):
    with pytest.raises(TypeMismatchError, match=r"began with \['a'\], then came \['b'\]"):
        written(sink_job, tmp_path, FileSink.csv, [{"a": 1}], [{"b": 1}])
    with pytest.raises(TypeMismatchError, match="csv has no place for column 's'"):
        written(sink_job, tmp_path, FileSink.csv, [{"s": {"x": 1}}])


def test_parquet_begins_a_new_part_when_types_change(sink_job, tmp_path):
    paths = written(sink_job, tmp_path, FileSink.parquet, [{"a": 1}], [{"a": 2}], [{"a": "x"}], [{"a": "y"}])
    assert [pq.read_table(path).to_pylist() for path in paths] == [[{"a": 1}, {"a": 2}], [{"a": "x"}, {"a": "y"}]]
    with pytest.raises(TypeMismatchError, match="same columns"):
        written(sink_job, tmp_path / "2", FileSink.parquet, [{"a": 1}], [{"b": 2}])


def test_parquet_gathers_small_batches_into_one_row_group(sink_job, tmp_path):
    [path] = written(sink_job, tmp_path, FileSink.parquet, *[[{"a": i}] for i in range(100)])
    assert pq.ParquetFile(path).metadata.num_row_groups == 1
    assert pq.read_table(path)["a"].to_pylist() == list(range(100))


@pytest.mark.parametrize("make", [FileSink.csv, FileSink.parquet])
def test_a_declared_schema_chooses_and_converts(reading, sink_job, tmp_path, make):
    columns = pa.RecordBatch.from_pydict({"x": ["no"], "a": pa.array([1], pa.int32())})
    [path] = written(sink_job, tmp_path, lambda p: make(p, schema={"a": int}), Batch.of_columns(columns))
    source = FileSource.parquet(path) if make == FileSink.parquet else FileSource.csv(path)
    assert reading().rows(source) == [{"a": 1}]
    with pytest.raises(TypeMismatchError, match="no field 'b'"):
        written(sink_job, tmp_path / "2", lambda p: make(p, schema={"b": int}), Batch.of_columns(columns))


@given(
    st.lists(
        st.lists(
            st.fixed_dictionaries({"i": st.integers(-(2**60), 2**60), "t": st.text('ab\n",;é', max_size=6)}),
            min_size=1,
            max_size=9,
        ),
        max_size=6,
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_what_is_written_is_what_is_read(reading, sink_job, batches):
    expected = [row for batch in batches for row in batch]
    for kind, read in (
        ("jsonl", FileSource.json_lines),
        ("csv", lambda path: FileSource.csv(path, {"i": int, "t": str})),
        ("parquet", FileSource.parquet),
        ("orc", FileSource.orc),
        ("avro", FileSource.avro),
    ):
        store = Store(reading, kind)
        job = sink_job(store.sink, checkpointing=False)
        job.start()
        for batch in batches:
            job.write(batch)
        job.finish()
        assert (reading().rows(read("memory://sink/out")) if expected else []) == expected


@pytest.mark.parametrize("make", [FileSink.json_lines, FileSink.csv, FileSink.parquet, FileSink.orc, FileSink.avro])
def test_text_that_no_file_can_hold_is_told_with_its_place(sink_job, tmp_path, make):
    job = sink_job(make(tmp_path))
    job.start()
    with pytest.raises(TypeMismatchError, match="surrogates not allowed") as caught:
        job.write([{"t": "a"}, {"t": "b\ud800"}])
    assert caught.value.context["row"] == 1
    assert str(tmp_path) in caught.value.context["path"]
