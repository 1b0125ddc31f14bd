"""Families: property (any file read with any cuts gives its records once), differential (against Python's own csv and
json), errors."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from datetime import datetime
from pathlib import Path
from unittest import mock

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.files import FileSource
from headrace.connectors.files.locations import filesystem_of, find_files
from headrace.engine.connectors.contract import EnumeratorContext, Split
from headrace.engine.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    MalformedRecordError,
    SourceError,
    TypeMismatchError,
)
from headrace.formats import blocks
from headrace.formats.containers import parquet_files
from headrace.state.files.memory import MemoryFileSystem

CUTS = st.lists(st.integers(0, 9), max_size=12)
TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0\r"), max_size=8)
BLOCKS = st.sampled_from([16, 40, 100, 1 << 20])


@pytest.fixture
def memory():
    yield MemoryFileSystem.named("files")
    MemoryFileSystem.forget("files")


def store(name, data):
    fs = MemoryFileSystem.named("property")
    fs.files.clear()
    fs.files[name] = data
    return f"memory://property/{name}"


# -------------------------------------------------------------------------------------------------------------- parquet
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.sampled_from([1, 200, 1 << 20]), CUTS)
@settings(max_examples=examples(60), deadline=None)
def test_parquet_resumes_at_any_row(reading, group_sizes, split_bytes, cuts):
    out = io.BytesIO()
    count = 0
    schema = pa.schema([("i", pa.int64()), ("s", pa.struct([("t", pa.string())]))])
    with pq.ParquetWriter(out, schema) as writer:
        for size in group_sizes:
            rows = [{"i": count + k, "s": {"t": f"x{count + k}"} if k % 3 else None} for k in range(size)]
            count += size
            writer.write_table(pa.Table.from_pylist(rows, schema))
    source = FileSource.parquet(store("a.parquet", out.getvalue()), split_bytes=split_bytes)
    rows = reading().rows_with_cuts(source, cuts)
    assert [row["i"] for row in rows] == list(range(count))
    assert all(row["s"] is None or row["s"]["t"] == f"x{row['i']}" for row in rows)


def test_parquet_is_cut_by_row_groups_whatever_the_parallelism(reading, tmp_path):
    pq.write_table(pa.table({"i": range(100)}), tmp_path / "a.parquet", row_group_size=10)
    source = FileSource.parquet(tmp_path / "a.parquet", split_bytes=1)
    splits = reading(parallelism=1).discover(source)
    assert len(splits) == 10
    assert splits == reading(parallelism=7).discover(source)
    assert len(reading().discover(FileSource.parquet(tmp_path / "a.parquet"))) == 1


def test_row_groups_are_put_together_as_far_as_readers_have_several_splits(reading, tmp_path):
    for name in ("a", "b"):
        values = pa.table({"i": range(1_000_000)})
        pq.write_table(values, tmp_path / f"{name}.parquet", row_group_size=10_000, use_dictionary=False)
    size = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0).total_byte_size

    def row_groups(parallelism, **options):
        splits = reading(parallelism=parallelism).discover(FileSource.parquet(tmp_path, **options))
        runs = [(split.origin, *split.payload["row_groups"]) for split in splits]
        assert [(one[0], one[2]) for one in runs[:-1] if one[2] < 100] == [one[:2] for one in runs[1:] if one[1]]
        assert sum(last - first for _, first, last in runs) == 200
        return [last - first for _, first, last in runs]

    assert row_groups(1) == 2 * [25, 25, 25, 25]
    assert row_groups(5) == 40 * [5]
    assert row_groups(1, split_bytes=10 * size) == 20 * [10]
    assert row_groups(10_000) == 200 * [1]


def test_parquet_columns_are_projected_into_structs(reading, tmp_path):
    pq.write_table(pa.table({"i": [1], "s": [{"a": 1, "b": 2}]}), tmp_path / "a.parquet")
    assert reading().rows(FileSource.parquet(tmp_path / "a.parquet", columns=["s.b"])) == [{"s": {"b": 2}}]
    with pytest.raises(SourceError, match=r"no column 'x'.*a\.parquet"):
        reading().rows(FileSource.parquet(tmp_path / "a.parquet", columns=["x"]))


@pytest.mark.parametrize("column", ["heavy", "light"])
def test_parquet_is_decoded_by_bytes_as_the_file_says(reading, tmp_path, column):
    """A row group of 64 MB: its heavy column is decoded a few rows at a time, its light one at once."""
    table = pa.table({"heavy": [b"x" * 1_000_000] * 64, "light": range(64)})
    pq.write_table(table, tmp_path / "a.parquet", compression="none", use_dictionary=False)
    asked = []
    iter_batches = pq.ParquetFile.iter_batches

    def watched(self, batch_size, **options):
        asked.append(batch_size)
        return iter_batches(self, batch_size, **options)

    with mock.patch.object(pq.ParquetFile, "iter_batches", watched):
        batches = reading().batches(FileSource.parquet(tmp_path / "a.parquet", columns=[column]))
    assert sum(batch.num_rows for batch in batches) == 64
    assert max(asked) * 1_000_000 <= parquet_files.DECODED_BYTES if column == "heavy" else asked == [65_536]
    assert len(batches) == (4 if column == "heavy" else 1)


def test_the_footer_of_a_file_of_many_splits_is_parsed_once(reading, tmp_path):
    for name in ("a", "b"):
        pq.write_table(pa.table({"i": range(100)}), tmp_path / f"{name}.parquet", row_group_size=10)
    source = FileSource.parquet(tmp_path, split_bytes=1)
    parsed = []
    open_parquet = parquet_files.open_parquet

    def watched(file, int96_unit=None, metadata=None):
        parsed.append(metadata is None)
        return open_parquet(file, int96_unit, metadata)

    with mock.patch.object(parquet_files, "open_parquet", watched):
        rows = reading().rows(source)
    assert [row["i"] for row in rows] == 2 * list(range(100))
    # Both files say the same of what is in them.
    assert (len(parsed), sum(parsed)) == (20, 1)


@pytest.mark.parametrize("num_columns", [2, 4_000])
def test_a_file_that_took_the_place_of_another_one_is_read_as_it_is(tmp_path, num_columns):
    """Also where its footer is longer than what is read of it at first."""
    footers, sizes = parquet_files.Footers(), set()
    for first in (5, 7, 7):
        table = pa.table({f"c{i}": [first + i, 1] for i in range(num_columns)})
        pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="none")
        sizes.add((tmp_path / "a.parquet").stat().st_size)
        with pa.OSFile(str(tmp_path / "a.parquet")) as file:
            assert footers.open(file).read().equals(table)
    assert len(sizes) == 1


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\x00\x00\x00\x01PAR1", b"\xff\xff\xff\xffPAR1" * 9])
def test_what_has_no_footer_is_refused_as_ever(content):
    with pytest.raises((pa.ArrowException, OSError)):
        parquet_files.Footers().open(pa.BufferReader(content))


def test_a_file_that_is_not_parquet_is_refused_at_discovery(reading, tmp_path):
    (tmp_path / "a.parquet").write_text("hello, world, this is no parquet")
    with pytest.raises(SourceError, match=r"not a readable parquet file.*a\.parquet"):
        reading().discover(FileSource.parquet(tmp_path))


def test_a_corrupt_parquet_page_names_split_and_row(reading, tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"i": [str(i) * 50 for i in range(20_000)]}), path, row_group_size=10_000, compression="zstd"
    )
    data = bytearray(path.read_bytes())
    second = pq.ParquetFile(path).metadata.row_group(1).column(0)
    start = second.dictionary_page_offset or second.data_page_offset
    for i in range(start, start + second.total_compressed_size):
        data[i] ^= 0x5A
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"a\.parquet.*position 'row 10000'"):
        reading().rows(FileSource.parquet(path, split_bytes=1 << 30), max_records=1000)


# ------------------------------------------------------------------------------------------------------------------ csv
@given(st.lists(st.tuples(st.integers(-99, 99), TEXT), max_size=40), BLOCKS, CUTS, st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_csv_with_quoted_newlines_resumes_anywhere(reading, rows, block, cuts, ends_with_newline):
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(["n", "te\nxt"])
    writer.writerows(rows)
    data = out.getvalue().encode()
    data = data if ends_with_newline else data[:-1]
    source = FileSource.csv(store("a.csv", data), {"n": int, "te\nxt": str})
    with mock.patch.object(blocks, "BLOCK_BYTES", block):
        found = reading().rows_with_cuts(source, cuts)
    assert [(row["n"], row["te\nxt"]) for row in found] == rows


@given(
    st.lists(st.tuples(st.integers(-99, 99), st.text("abc ", max_size=5)), min_size=1, max_size=60),
    st.integers(1, 90),
    BLOCKS,
    CUTS,
)
@settings(max_examples=examples(100), deadline=None)
def test_splittable_csv_gives_every_line_to_one_split(reading, rows, split_bytes, block, cuts):
    data = "n,t\r\n" + "".join(f"{n},{t}\r\n" for n, t in rows)
    source = FileSource.csv(
        store("a.csv", data.encode()), splittable=True, split_bytes=split_bytes, schema={"t": str, "n": int}
    )
    with mock.patch.object(blocks, "BLOCK_BYTES", block):
        found = reading().rows_with_cuts(source, cuts)
    assert sorted((row["n"], row["t"]) for row in found) == sorted(rows)
    assert not found or list(found[0]) == ["t", "n"]


def test_csv_types_are_inferred_from_the_first_block(reading, tmp_path):
    (tmp_path / "a.csv").write_text("i,f,s,t,n\n1,1.5,x,2024-01-02 03:04:05,\n2,2.5,,2024-01-02 03:04:06.5,\n")
    rows = reading().rows(FileSource.csv(tmp_path / "a.csv"))
    assert rows[0] == {"i": 1, "f": 1.5, "s": "x", "t": datetime.fromisoformat("2024-01-02 03:04:05"), "n": ""}
    assert rows[1]["t"] == datetime.fromisoformat("2024-01-02 03:04:06.500000")


def test_csv_without_header_is_named_by_position_or_schema(reading, tmp_path):
    (tmp_path / "a.csv").write_text("1;x\n2;y\n")
    assert reading().rows(FileSource.csv(tmp_path / "a.csv", has_header=False, delimiter=";")) == [
        {"f0": 1, "f1": "x"},
        {"f0": 2, "f1": "y"},
    ]
    named = FileSource.csv(tmp_path / "a.csv", {"a": float, "b": "string"}, has_header=False, delimiter=";")
    assert reading().rows(named)[1] == {"a": 2.0, "b": "y"}


def test_csv_null_values_can_be_named(reading, tmp_path):
    (tmp_path / "a.csv").write_text("i,s\n-,-\n")
    assert reading().rows(FileSource.csv(tmp_path / "a.csv", {"i": int, "s": str}, null_values=["-"])) == [
        {"i": None, "s": "-"}
    ]


def test_csv_header_must_hold_the_declared_columns(reading, tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(TypeMismatchError, match=r"no column 'c'; it names \['a', 'b'\].*a\.csv"):
        reading().rows(FileSource.csv(tmp_path / "a.csv", {"a": int, "c": int}))
    (tmp_path / "a.csv").write_text("a,a\n1,2\n")
    with pytest.raises(TypeMismatchError, match="repeats column 'a'"):
        reading().rows(FileSource.csv(tmp_path / "a.csv"))


@pytest.mark.parametrize("content", ["", "\n", "a,b\n", "\ufeffa,b\n"])
def test_csv_without_records_is_empty(reading, tmp_path, content):
    (tmp_path / "a.csv").write_text(content, encoding="utf-8")
    assert reading().rows(FileSource.csv(tmp_path / "a.csv")) == []


def test_a_byte_order_mark_is_no_part_of_the_first_name(reading, tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfa\n1\n")
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a":1}\n')
    assert reading().rows(FileSource.csv(tmp_path / "a.csv")) == [{"a": 1}]
    assert reading().rows(FileSource.json_lines(tmp_path / "a.jsonl")) == [{"a": 1}]


# ----------------------------------------------------------------------------------------------------------- json lines
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(JSON, max_size=40), st.integers(1, 200), BLOCKS, CUTS)
@settings(max_examples=examples(100), deadline=None)
def test_json_lines_give_every_value_once(reading, values, split_bytes, block, cuts):
    data = "".join(json.dumps(value) + "\n" for value in values)
    source = FileSource.json_lines(store("a.jsonl", data.encode()), split_bytes=split_bytes)
    with mock.patch.object(blocks, "BLOCK_BYTES", block):
        found = reading().rows_with_cuts(source, cuts)
    assert sorted(map(repr, found)) == sorted(map(repr, values))


@given(st.lists(st.tuples(st.integers(-(2**60), 2**60), TEXT, st.booleans()), max_size=40), BLOCKS, CUTS)
@settings(max_examples=examples(60), deadline=None)
def test_json_lines_with_a_schema_are_columns(reading, values, block, cuts):
    lines = [json.dumps({"n": n, "s": s, "more": {"x": n}} if full else {"n": n}) for n, s, full in values]
    source = FileSource.json_lines(store("a.jsonl", "\n".join(lines).encode()), {"s": str, "n": int})
    with mock.patch.object(blocks, "BLOCK_BYTES", block):
        found = reading().rows_with_cuts(source, cuts)
    assert found == [{"s": s if full else None, "n": n} for n, s, full in values]


def test_compressed_text_is_read_and_resumed(reading, tmp_path):
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.writelines(f'{{"i": {i}}}\n' for i in range(500))
    source = FileSource.json_lines(tmp_path / "a.jsonl.gz", split_bytes=10)
    with mock.patch.object(blocks, "BLOCK_BYTES", 64):
        assert [row["i"] for row in reading().rows_with_cuts(source, [3, 5, 9, 2])] == list(range(500))


# ------------------------------------------------------------------------------------------------------------- policies
BAD_LINES = {
    "csv": ["x,1", "1", "1,2,3", '"1,2', "\x00,\xff"],
    "json": ["{", "nonsense", '{"a": "x"}', "[1]", '{"a": 1}{"a": 2}', '{"a": NaN}'],
}


@given(st.lists(st.sampled_from([None, *BAD_LINES["json"]]), max_size=30), BLOCKS, CUTS)
@settings(max_examples=examples(100), deadline=None)
def test_bad_json_lines_become_dead_letters_once(reading, plan, block, cuts):
    lines = [f'{{"a": {i}}}' if bad is None else bad for i, bad in enumerate(plan)]
    source = FileSource.json_lines(store("a.jsonl", "\n".join(lines).encode()), {"a": int}, on_error="dead-letter")
    run = reading()
    with mock.patch.object(blocks, "BLOCK_BYTES", block):
        found = run.rows_with_cuts(source, cuts)
    assert [row["a"] for row in found] == [i for i, bad in enumerate(plan) if bad is None]
    assert [(letter["position"], letter["raw"]) for letter in run.dead_letters] == [
        (f"line {i + 1}", bad) for i, bad in enumerate(plan) if bad is not None
    ]
    assert all(letter["error"] and letter["split"] == "a.jsonl" for letter in run.dead_letters)
    assert run.metrics.counters.get("num_records_skipped", 0) == len(run.dead_letters)


@given(st.lists(st.sampled_from([None, None, "x,1", "1", "1,2,3", "one,2"]), max_size=30), BLOCKS, CUTS)
@settings(max_examples=examples(60), deadline=None)
def test_bad_csv_records_are_skipped_and_counted(reading, plan, block, cuts):
    lines = [f'{i},"t\n{i}"' if bad is None else bad for i, bad in enumerate(plan)]
    source = FileSource.csv(
        store("a.csv", ("i,t\n" + "\n".join(lines)).encode()), {"i": int, "t": str}, on_error="skip"
    )
    run = reading()
    with mock.patch.object(blocks, "BLOCK_BYTES", block):
        found = run.rows_with_cuts(source, cuts)
    assert [(row["i"], row["t"]) for row in found] == [(i, f"t\n{i}") for i, bad in enumerate(plan) if bad is None]
    assert run.metrics.counters.get("num_records_skipped", 0) == sum(bad is not None for bad in plan)


def test_the_default_policy_fails_at_the_first_bad_record(reading, tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4\n5,six\n7,8\n")
    with pytest.raises(MalformedRecordError, match=r"csv record.*'six'.*a\.csv.*position 'line 4'") as caught:
        reading().rows(FileSource.csv(tmp_path / "a.csv", {"a": int, "b": int}))
    assert caught.value.context["split"] == str(tmp_path / "a.csv")
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a": \xff}\n')
    with pytest.raises(MalformedRecordError, match="position 'line 2'"):
        reading().rows(FileSource.json_lines(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize(
    ("make", "data", "message"),
    [
        (FileSource.json_lines, b'{"m": {"a": 1}}\n', r"json lines records: .*map<string, int64> .*position 'line 1'"),
        (FileSource.csv, b"m\n1\n", r"csv records: .*map<string, int64> .*position 'line 2'"),
    ],
    ids=["json lines", "csv"],
)
def test_a_type_that_a_parser_does_not_know_is_an_error_with_its_place(reading, make, data, message, on_error):
    source = make(store("a", data), pa.schema([("m", pa.map_(pa.string(), pa.int64()))]), on_error=on_error)
    with pytest.raises(TypeMismatchError, match=message) as caught:
        reading().rows(source)
    assert (caught.value.context["path"], caught.value.context["split"]) == ("a", "a")


def test_a_broken_line_does_not_swallow_the_next(reading, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1,\n"b": 2}\n{"a": 3}\n')
    for schema in (None, {"a": int, "b": int}):
        run = reading()
        rows = run.rows(FileSource.json_lines(tmp_path / "a.jsonl", schema, on_error="dead-letter"))
        assert [row["a"] for row in rows] == [3]
        assert [letter["raw"] for letter in run.dead_letters] == ['{"a": 1,', '"b": 2}']


def test_within_a_byte_range_a_bad_record_is_told_by_its_byte(reading, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' * 3 + "bad\n")
    run = reading()
    run.rows(FileSource.json_lines(tmp_path / "a.jsonl", on_error="dead-letter", split_bytes=10))
    assert [letter["position"] for letter in run.dead_letters] == ["byte 27"]


def test_a_file_that_shrank_since_the_checkpoint_is_noticed(reading, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n' * 10)
    source = FileSource.json_lines(path)
    run = reading()
    reader = run.open(source)
    reader.add_splits(run.discover(source))
    reader.poll(5)
    position = reader.snapshot()
    path.write_text('{"a": 1}\n' * 2)
    reader = run.open(source)
    reader.add_splits(position)
    with pytest.raises(CheckpointMismatchError, match="it had 90 bytes and has 18"):
        reader.poll(5)


def begun(reading, source, num_records):
    """Splits of a source, the first of which is half read."""
    run = reading()
    reader = run.open(source)
    reader.add_splits(run.discover(source))
    assert reader.poll(num_records).batch.num_rows == num_records
    return [Split(s.split_id, *json.loads(json.dumps([s.payload, s.position]))) for s in reader.snapshot()]


def go_on(reading, source, splits):
    reader = reading().open(source)
    reader.add_splits(splits)
    return reader.poll(1)


def test_a_file_that_was_replaced_since_the_checkpoint_is_noticed(reading, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n' * 10)
    source = FileSource.json_lines(path)
    splits = begun(reading, source, 5)
    path.write_text('{"a": 1}\n' * 10 + '{"a": 2}\n')  # it has grown: what was read is still there
    assert go_on(reading, source, splits).batch.rows == [{"a": 1}]
    path.write_text('{"b": 1}\n' * 10)
    with pytest.raises(CheckpointMismatchError, match="has been replaced"):
        go_on(reading, source, splits)


def old_csv_position(reading, source, num_records):
    """Splits with a position as earlier versions left it: all of the file's records so far are of one block."""
    (split,) = begun(reading, source, 1)
    return [Split(split.split_id, split.payload, {**split.position, "records": num_records})]


@given(st.integers(1, 10), st.sampled_from([20, 40, 100]))
@settings(max_examples=examples(30), deadline=None)
def test_a_position_in_a_longer_block_of_an_earlier_version_is_read_on_from(reading, num_given, block):
    lines = [f"{i},t" for i in range(12)]
    lines[3] = '3,5" pipe'
    lines.insert(2, "bad,t")
    source = FileSource.csv(
        store("a.csv", ("i,t\n" + "\n".join(lines)).encode()), {"i": int, "t": str}, on_error="dead-letter"
    )
    splits = old_csv_position(reading, source, num_given)
    run = reading()
    with mock.patch.object(blocks, "BLOCK_BYTES", block):
        batches = run.batches(source, splits=splits)
    assert [row["i"] for batch in batches for row in batch.rows] == list(range(num_given, 12))
    if num_given > 2:  # the bad record lies before the position: it was told of before the restart
        assert run.dead_letters == []


def test_a_position_behind_all_records_of_a_file_is_noticed(reading):
    source = FileSource.csv(store("a.csv", b"i\n1\n2\n"), {"i": int})
    for block in (2, 100):
        splits = old_csv_position(reading, source, 3)
        with (
            mock.patch.object(blocks, "BLOCK_BYTES", block),
            pytest.raises(SourceError, match=r"fewer records than were read .*a\.csv.*position 'line 4'"),
        ):
            go_on(reading, source, splits)


def test_a_parquet_file_of_another_length_is_noticed(reading, tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3]}), path)
    splits = begun(reading, FileSource.parquet(path), 1)
    pq.write_table(pa.table({"a": list(range(1_000))}), path)
    with pytest.raises(CheckpointMismatchError, match="has been changed since it was found"):
        go_on(reading, FileSource.parquet(path), splits)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda path: FileSource.csv(path, delimiter=";"), "delimiter=',', and the source has delimiter=';'"),
        (lambda path: FileSource.csv(path, has_header=False), "header=True, and the source has header=False"),
        (lambda path: FileSource.csv(path, splittable=True), "splittable=False, and the source has splittable=True"),
        (lambda path: FileSource.csv(path, on_error="skip"), "half read with null_values=None"),
        (FileSource.json_lines, "begun by a source of csv files, and this one reads json lines"),
    ],
)
def test_settings_that_change_what_a_position_means_are_refused(reading, tmp_path, other, message):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n3,4\n5,6\n")
    splits = begun(reading, FileSource.csv(path), 1)
    assert go_on(reading, FileSource.csv(path, {"a": str, "b": int}), splits).batch.rows == [{"a": "3", "b": 4}]
    with pytest.raises(CheckpointMismatchError, match=message):
        go_on(reading, other(path), splits)


@pytest.mark.parametrize("place", ["secret.jsonl", "in/../secret.jsonl", "in-and-more/x.jsonl", "/etc/hostname"])
@pytest.mark.parametrize("location", ["in", "in/*.jsonl", "in/a.jsonl"])
def test_a_checkpoint_names_no_file_that_the_source_does_not_read(reading, tmp_path, place, location):
    for name in ("in/a.jsonl", "secret.jsonl", "in-and-more/x.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1\n")
    source = FileSource.json_lines(tmp_path / location)
    [split] = reading().discover(source)
    path = place if place.startswith("/") else f"{tmp_path}/{place}"
    for payload in ({"path": path}, {"path": path, "location": path}, {"path": path, "location": "s3://bucket"}):
        with pytest.raises(CheckpointMismatchError, match="none of those that the source reads"):
            go_on(reading, source, [Split(split.split_id, {**split.payload, **payload})])
    assert go_on(reading, source, [split]).batch.rows == [1]


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize(
    "location", ["in", "in/*.jsonl", "in/**/*.jsonl", "in/*/c?.jsonl", "in/[ab].jsonl", "in/_x.jsonl", "in/*", "."]
)
def test_a_checkpoint_names_the_files_that_a_listing_finds_and_no_others(tmp_path, location, recursive):
    names = ["a.jsonl", "b.jsonl", "b.csv", "sub/c1.jsonl", "sub/d/c2.jsonl", "_x.jsonl", ".y.jsonl", "z.jsonl.tmp"]
    names += [".staging/c3.jsonl", "_sub/c4.jsonl"]
    for name in ("out.jsonl", "other/c5.jsonl", *(f"in/{name}" for name in names)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    (tmp_path / "in/link").symlink_to(tmp_path / "other")
    (tmp_path / "in/c6.jsonl").symlink_to(tmp_path / "out.jsonl")  # somebody has put it among the files
    place = os.path.normpath(tmp_path / location)
    found = {path for path, _ in find_files(place, recursive=recursive)[1]}
    assert found
    known = {str(path) for path in tmp_path.rglob("*") if path.is_file()} | {f"{tmp_path}/in/link/c5.jsonl"}
    named = {path for path in known if filesystem_of(path, place, recursive=recursive) is not None}
    assert named == found
    for path in (f"{tmp_path}/in/sub/../../out.jsonl", f"{tmp_path}/in/./a.jsonl", f"{tmp_path}/in/\0.jsonl"):
        assert filesystem_of(path, place, recursive=recursive) is None


# ------------------------------------------------------------------------------------------------------------ discovery
def test_directories_globs_and_lists_mean_the_files_they_should(reading, tmp_path):
    names = [
        "b.jsonl",
        "a.jsonl",
        "sub/c.jsonl",
        "sub/deep/d.jsonl",
        "other.txt",
        "_hidden.jsonl",
        ".x.jsonl",
        "y.jsonl.tmp",
        ".staging/z.jsonl",
    ]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(name) + "\n")

    def found(*args, **kwargs):
        return reading().rows(FileSource.json_lines(*args, **kwargs))

    assert found(tmp_path) == ["a.jsonl", "b.jsonl", "other.txt"]
    assert found(tmp_path, recursive=True) == ["a.jsonl", "b.jsonl", "other.txt", "sub/c.jsonl", "sub/deep/d.jsonl"]
    assert found(f"{tmp_path}/*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert found(f"{tmp_path}/[!b].jsonl") == ["a.jsonl"]
    assert found(f"{tmp_path}/?.jsonl") == ["a.jsonl", "b.jsonl"]
    assert found(f"{tmp_path}/**/*.jsonl") == ["a.jsonl", "b.jsonl", "sub/c.jsonl", "sub/deep/d.jsonl"]
    assert found(f"{tmp_path}/sub/*.jsonl") == ["sub/c.jsonl"]
    assert found([tmp_path / "sub", tmp_path / "a.jsonl"]) == ["sub/c.jsonl", "a.jsonl"]
    assert found([tmp_path / "sub", f"{tmp_path}/sub/*.jsonl", tmp_path / "sub/c.jsonl"]) == ["sub/c.jsonl"]
    assert found(tmp_path / "_hidden.jsonl") == ["_hidden.jsonl"]
    assert found(f"file://{tmp_path}/*.jsonl") == ["a.jsonl", "b.jsonl"]


def test_memory_locations_work_as_well(reading, memory):
    memory.files["in/a.jsonl"] = b"1\n"
    memory.files["in/b.jsonl"] = b"2\n"
    assert reading().rows(FileSource.json_lines("memory://files/in")) == [1, 2]
    assert reading().rows(FileSource.json_lines("memory://files/in/*.jsonl")) == [1, 2]
    assert reading().rows(FileSource.json_lines("memory://files/in/b.jsonl")) == [2]


def test_files_of_one_path_in_two_stores_are_refused(reading, memory):
    other = MemoryFileSystem.named("other")
    memory.files["in/a.jsonl"] = other.files["in/a.jsonl"] = b"1\n"
    source = FileSource.json_lines(["memory://files/in", "memory://other/in"])
    with pytest.raises(SourceError, match="two files of one path"):
        reading().rows(source)
    other.files["in/b.jsonl"] = other.files.pop("in/a.jsonl")
    assert reading().rows(source) == [1, 1]


@pytest.mark.parametrize("name", ["missing.csv", "missing/*.csv", "empty"])
def test_nothing_to_read_is_an_error_with_its_path(reading, tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"no file found.*" + name.replace("*", r"\*")):
        reading().discover(FileSource.csv(tmp_path / name))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_an_error_with_its_path(reading, tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "a.csv").chmod(0)
    with pytest.raises(SourceError, match=r"a\.csv"):
        reading().rows(FileSource.csv(tmp_path / "a.csv"))


def test_a_file_that_went_away_is_an_error_with_its_path(reading, tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    source = FileSource.csv(tmp_path / "a.csv")
    run = reading()
    splits = run.discover(source)
    (tmp_path / "a.csv").unlink()
    with pytest.raises(SourceError, match=r"a\.csv"):
        run.batches(source, splits=splits)


def test_relative_paths_are_the_clients(reading, tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text("1\n")
    monkeypatch.chdir(tmp_path)
    source = FileSource.json_lines("a.jsonl")
    monkeypatch.chdir("/")
    assert reading().rows(source) == [1]


def test_a_followed_directory_gives_each_new_file_once(tmp_path):
    source = FileSource.json_lines(tmp_path, follow="250 ms")
    assert not source.is_bounded
    enumerator = source.create_enumerator(EnumeratorContext(1))
    assert enumerator.discovery_interval_ms == 250
    first = enumerator.discover()
    assert (first.splits, first.is_final) == ([], False)
    (tmp_path / "a.jsonl.inprogress").write_text("1")
    (tmp_path / "b.jsonl").write_text("1\n")
    assert [split.split_id for split in enumerator.discover().splits] == [str(tmp_path / "b.jsonl")]
    os.rename(tmp_path / "a.jsonl.inprogress", tmp_path / "a.jsonl")
    known = {split.split_id for split in enumerator.discover().splits}
    assert known == {str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")}
    again = source.create_enumerator(EnumeratorContext(1)).discover()
    assert {split.split_id for split in again.splits} == known


@pytest.mark.parametrize(
    "make",
    [
        lambda: FileSource.csv("a", on_error="ignore"),  # type: ignore[arg-type]
        lambda: FileSource.csv("a", delimiter="::"),
        lambda: FileSource.csv("a", {"a": object}),
        lambda: FileSource.csv("a", {"a": "no such type"}),
        lambda: FileSource.csv([]),
        lambda: FileSource.json_lines("a", split_bytes=0),
        lambda: FileSource.json_lines("a", follow=0),
    ],
)
def test_illegal_arguments_are_refused_on_the_client(make):
    with pytest.raises(ConfigurationError):
        make()


def test_sources_travel(reading, tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    source = cloudpickle.loads(cloudpickle.dumps(FileSource.csv(tmp_path, {"a": int})))
    assert reading().rows(source) == [{"a": 1}]


def test_the_nexmark_events_come_through_unchanged(reading):
    path = Path(__file__).resolve().parents[4] / "shared" / "data" / "nexmark" / "events.parquet"
    if not path.exists():
        pytest.skip("needs the shared data")
    batches = reading().batches(FileSource.parquet(path), max_records=4096)
    assert pa.Table.from_batches([batch.columns for batch in batches]).equals(pq.read_table(path))
