"""Families: property (any file, cut and read anyhow, gives its records once), errors (hostile files, bad records).

What Hadoop writes and reads is in `test_sequence_files_of_hadoop.py`.
"""

from __future__ import annotations

import base64
import dataclasses
import struct
import zlib
from unittest import mock

import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_pairs import CLASSES, pairs_of

from headrace.connectors.files import FileSink, FileSource
from headrace.engine.columns.records import Batch
from headrace.engine.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    MalformedRecordError,
    SourceError,
    TypeMismatchError,
)
from headrace.formats import blocks
from headrace.formats.containers import sequence_files
from headrace.formats.containers.hadoop_codecs import codec_named
from headrace.formats.containers.sequence_files import SequenceEncoder, SequenceHeader, SequenceSettings
from headrace.formats.containers.writables import read_vint, vint_bytes, vint_size, writable_named
from headrace.state.files.memory import MemoryFileSystem

CODECS = ("zlib", "gzip", "bzip2", "snappy", "lz4", "zstd")


def stored(data, name="a.seq"):
    fs = MemoryFileSystem.named("sequences")
    fs.files.clear()
    fs.files[name] = data
    return f"memory://sequences/{name}"


def file_of(batches, **settings_):
    encoder = SequenceEncoder(SequenceSettings(**settings_))
    return b"".join([encoder.encode(Batch.of_rows(rows)) for rows in batches] + [encoder.finish()])


def header(key="Text", value="LongWritable", compression="none", codec="zlib", sync=b"s" * 16):
    found = None if compression == "none" else codec_named(codec)
    return SequenceHeader(writable_named(key), writable_named(value), compression, found, sync).to_bytes()


def record(key, value):
    return struct.pack(">ii", len(key) + len(value), len(key)) + key + value


# ------------------------------------------------------------------------------------------------------------- any file
@given(
    st.lists(st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=30)), min_size=1, max_size=9), min_size=1),
    st.sampled_from(["none", "record", "block"]),
    st.sampled_from(CODECS),
    st.sampled_from([25, 60, 150, 1 << 20]),
    st.sampled_from([16, 100, 1 << 20]),
    st.lists(st.integers(0, 9), max_size=12),
)
@settings(max_examples=examples(40), deadline=None)
def test_any_file_gives_its_records_once_however_it_is_cut(
    reading, batches, compression, codec, split_bytes, block, cuts
):
    with (
        mock.patch.object(sequence_files, "_SYNC_INTERVAL", 60),
        mock.patch.object(sequence_files, "_BLOCK_BYTES", 90),
        mock.patch.object(sequence_files, "_EXPANDED_AT_ONCE", 50),
        mock.patch.object(blocks, "BLOCK_BYTES", block),
    ):
        path = stored(file_of(batches, compression=compression, codec=codec))
        source = FileSource.sequence_file(path, split_bytes=split_bytes)
        assert reading().rows_with_cuts(source, cuts) == [row for rows in batches for row in rows]


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_comes_back(reading, name):
    rows = pairs_of(name, "Text", 300)
    path = stored(file_of([rows[:1], rows[1:]], key=name))
    assert reading().rows(FileSource.sequence_file(path)) == rows


def test_numbers_of_variable_length_come_back():
    edges = [2**k + d for k in range(63) for d in (-1, 0, 1)]
    for value in {*range(-300, 300), *edges, *(-one for one in edges), 2**63 - 1, -(2**63)}:
        data = vint_bytes(value)
        assert read_vint(data, 0) == (value, len(data))
        assert vint_size(data[0]) == len(data)


OF_HADOOP = {
    "none": (
        "U0VRBhlvcmcuYXBhY2hlLmhhZG9vcC5pby5UZXh0IW9yZy5hcGFjaGUuaGFkb29wLmlvLkxvbmdXcml0YWJsZQAAAAAAAFQ5kqtv"
        "AtAGYZE5WAsfQLQAAAAPAAAABwZ0ZXh0IDAAAAAAAAAAAAAAABkAAAAREHRleHQgMSDDpOKCrPCfmID///8XK1rv+QAAACMAAAAb"
        "GnRleHQgMiDDpOKCrPCfmIAgw6Tigqzwn5iAAAAB0alKIA4="
    ),
    "record": (
        "U0VRBhlvcmcuYXBhY2hlLmhhZG9vcC5pby5UZXh0IW9yZy5hcGFjaGUuaGFkb29wLmlvLkxvbmdXcml0YWJsZQEAKW9yZy5hcGFj"
        "aGUuaGFkb29wLmlvLmNvbXByZXNzLlNuYXBweUNvZGVjAAAAABoLkKDis/ffUDnri0wGSxYAAAAZAAAABwZ0ZXh0IDAAAAAIAAAA"
        "CggcAAAAAAAAAAAAAAAjAAAAERB0ZXh0IDEgw6Tigqzwn5iAAAAACAAAAAoIHP///xcrWu/5AAAALQAAABsadGV4dCAyIMOk4oKs"
        "8J+YgCDDpOKCrPCfmIAAAAAIAAAACggcAAAB0alKIA4="
    ),
    "block": (
        "U0VRBhlvcmcuYXBhY2hlLmhhZG9vcC5pby5UZXh0IW9yZy5hcGFjaGUuaGFkb29wLmlvLkxvbmdXcml0YWJsZQEBKm9yZy5hcGFj"
        "aGUuaGFkb29wLmlvLmNvbXByZXNzLkRlZmF1bHRDb2RlYwAAAABVZNaEoC7vXvbhyryWI2OT/////1Vk1oSgLu9e9uHKvJYjY5MD"
        "C3icYxeUBgAAVQA0JXicYytJrShRMBAAU4YKh5c8alrzYf6MBimwgBFCAMECAD0BGS0LeJzj4OAAAAAzABkceJxjYICA////i2tH"
        "vf/JwMB4caWXAh8ATfoHdQ=="
    ),
}
"""Three pairs, as Hadoop 3.5 has written them: plain, by Snappy record by record, by zlib in a block."""


@pytest.mark.parametrize("compression", OF_HADOOP)
def test_a_file_of_hadoop_is_read_and_ours_is_the_same_but_for_its_sync(reading, compression):
    data = base64.b64decode(OF_HADOOP[compression])
    rows = pairs_of("Text", "LongWritable", 3)
    assert reading().rows(FileSource.sequence_file(stored(data))) == rows
    ours = file_of([rows], compression=compression, codec="snappy" if compression == "record" else "zlib")
    (theirs, first_byte), (own, _) = SequenceHeader.read(data), SequenceHeader.read(ours)
    assert theirs == dataclasses.replace(own, sync=theirs.sync)
    if compression == "none":
        assert ours == data[: first_byte - 16] + own.sync + data[first_byte:]


def test_a_file_whose_name_says_gzip_is_read_as_what_it_is(reading):
    rows = pairs_of("Text", "LongWritable", 5)
    assert reading().rows(FileSource.sequence_file(stored(file_of([rows]), "a.gz"))) == rows


def test_columns_are_known_from_the_first_file(tmp_path):
    (tmp_path / "a").write_bytes(header("Text", "VIntWritable"))
    found = FileSource.sequence_file(tmp_path).produced_columns()
    assert found == pa.schema({"f0": pa.string(), "f1": pa.int32()})
    assert FileSource.sequence_file("memory://elsewhere/a").produced_columns() is None


# ---------------------------------------------------------------------------------------------------------- bad records
@pytest.mark.parametrize("compression", ["none", "record", "block"])
def test_bad_records_become_dead_letters_and_all_others_come(reading, compression):
    wanted, encoder = [], SequenceEncoder(SequenceSettings("Text", "LongWritable", compression))
    made = [encoder.encode(Batch.of_rows([("a", 1)]))]
    writable = writable_named("Text")
    texts = [writable.values_of(pa.array([f"k{i}"]))[0] if i % 3 else b"\x02\xff\xfe" for i in range(30)]
    values = [struct.pack(">q", i) for i in range(30)]
    parts: list[bytes] = []
    (encoder._gather if compression == "block" else encoder._write)(texts, values, parts)
    path = stored(b"".join([*made, *parts, encoder.finish()]))
    wanted = [("a", 1)] + [(f"k{i}", i) for i in range(30) if i % 3]

    run = reading()
    assert run.rows(FileSource.sequence_file(path, on_error="dead-letter"), max_records=4) == wanted
    assert len(run.dead_letters) == run.metrics.counters["num_records_skipped"] == 10
    place = "record 1 of the block there" if compression == "block" else "invalid"
    assert place.lower() in run.dead_letters[0]["error"].lower()
    with pytest.raises(MalformedRecordError, match=r"cannot decode a sequence record.*a\.seq.*byte \d+"):
        reading().rows(FileSource.sequence_file(path))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\x05abc", bytes(8)),  # a text that says it is longer
        (b"\x01abc", bytes(8)),  # and one that says it is shorter
        (b"\x8f", bytes(8)),  # a length that is cut off
        (b"", bytes(8)),
        (b"\x00", bytes(7)),  # no long
        (b"\x87\x00\x00", bytes(8)),  # a negative length
    ],
)
def test_a_value_whose_bytes_mean_nothing_in_its_class_is_a_bad_record(reading, key, value):
    path = stored(header() + record(b"\x01a", bytes(8)) + record(key, value) + record(b"\x01b", bytes(8)))
    assert reading().rows(FileSource.sequence_file(path, on_error="skip")) == [("a", 0), ("b", 0)]


# -------------------------------------------------------------------------------------------------------- hostile files
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is no SequenceFile"),
        (b"PAR1 and so on", r"no SequenceFile: it begins with b'PAR1'"),
        (b"SEQ\x05" + bytes(100), "must be of version 6; it is of version 5"),
        (b"SEQ\x06", "header of a SequenceFile cannot be read"),
        (header()[:-1], "header of a SequenceFile cannot be read"),
        (b"SEQ\x06\x8c\x7f\xff\xff\xff", "header of a SequenceFile cannot be read"),  # a name of two gigabytes
        (header()[:-20] + b"\x7f\xff\xff\xff" + b"s" * 16, "header of a SequenceFile cannot be read"),  # metadata
        (header() + b"\0\0\0", "a record is cut off"),
        (header() + struct.pack(">ii", 2**31 - 1, 3) + b"abc", "a record is cut off"),
        (header() + struct.pack(">ii", -2, 3) + b"abc", "a record of -2 bytes has a key of 3"),
        (header() + struct.pack(">ii", 5, 6) + b"abcdef", "a record of 5 bytes has a key of 6"),
        (header() + struct.pack(">ii", 5, -1) + b"abcdef", "a record of 5 bytes has a key of -1"),
        (header() + b"\xff\xff\xff\xff" + b"t" * 16 + record(b"\0", bytes(8)), "what stands for a sync is none"),
        (header(compression="block") + b"x" * 60, "a block does not begin with a sync"),
    ],
)
def test_a_damaged_file_is_an_error_with_its_place(reading, data, message):
    with pytest.raises(SourceError, match=rf"(?s){message}.*a\.seq"):
        reading().rows(FileSource.sequence_file(stored(data), on_error="skip"))


def block_of(number, lengths, keys, value_lengths, values, compress=zlib.compress):
    parts = [compress(part) for part in (lengths, keys, value_lengths, values)]
    framed = b"".join(vint_bytes(len(part)) + part for part in parts)
    return header(compression="block") + b"\xff\xff\xff\xff" + b"s" * 16 + vint_bytes(number) + framed


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (block_of(2**31 - 1, b"\1", b"a", b"\1", b"b"), "1 bytes are no 2147483647 lengths"),
        (block_of(2**31, b"\1", b"a", b"\1", b"b"), "a block has 2147483648 records"),
        (header(compression="block") + b"\xff" * 4 + b"s" * 16 + b"\x88" + b"\xff" * 8 + bytes(9), "more than 64 bits"),
        (block_of(-1, b"\1", b"a", b"\1", b"b"), "a block has -1 records"),
        (block_of(1, b"\2", b"a", b"\1", b"b"), "a value has 2 bytes, where 1 are left"),
        (block_of(1, vint_bytes(-3), b"a", b"\1", b"b"), "a value has -3 bytes|are no 1 lengths|more bytes"),
        (block_of(1, b"\1", b"ab", b"\1", b"b"), "there are more bytes than its records have"),
        (block_of(1, b"\1", b"a", b"\1", b"b", lambda part: part + b"?"), "cannot be read|cut off"),
        (block_of(1, b"\1", b"a", b"\1", b"b")[:-1], "a block is cut off"),
    ],
)
def test_a_damaged_block_is_an_error_with_its_place(reading, data, message):
    with pytest.raises(SourceError, match=rf"(?s)({message}).*a\.seq"):
        reading().rows(FileSource.sequence_file(stored(data), on_error="skip"))


@pytest.mark.parametrize("codec", CODECS)
def test_what_expands_without_bound_is_refused_before_memory_is_taken(codec, monkeypatch):
    monkeypatch.setattr("headrace.state.reading.read_limits._FREE_BYTES", 1 << 20)
    monkeypatch.setattr("headrace.state.reading.read_limits.MAX_FACTOR", 2)
    found = codec_named(codec)
    assert found.expanded(found.compress(bytes(1 << 20))) == bytes(1 << 20)
    with pytest.raises(ValueError, match="would grow to"):
        found.expanded(found.compress(bytes(1 << 22)))


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_value_that_is_cut_off_or_changed_is_no_other_value(codec):
    found, data = codec_named(codec), b"abcdefgh" * 1_000
    compressed = found.compress(data)
    for end in range(len(compressed)):
        with pytest.raises(ValueError):
            found.expanded(compressed[:end] or b"\0")


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">ii", 2**31 - 1, 5) + b"aaaaa",
        struct.pack(">ii", 5, 2**31 - 1) + b"aaaaa",
        struct.pack(">ii", 5, -1) + b"aaaaa",
        struct.pack(">ii", 5, 0),
        struct.pack(">ii", 1, 5) + b"\xff\xff\xff\xff\x7f",  # snappy: four gigabytes
    ],
)
@pytest.mark.parametrize("codec", ["snappy", "lz4"])
def test_lengths_in_frames_are_not_believed(codec, frame):
    with pytest.raises(ValueError):
        codec_named(codec).expanded(frame)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (header().replace(b"io.Text", b"io.Tezt"), r"org\.apache\.hadoop\.io\.Tezt is no class of Writables.*a\.seq"),
        (
            header(compression="record").replace(b"DefaultCodec", b"DefaultLzop!"),
            r"DefaultLzop! is no codec.*a\.seq",
        ),
    ],
)
def test_classes_and_codecs_that_are_not_known_are_named(reading, data, message):
    with pytest.raises(ConfigurationError, match=rf"(?s){message}"):
        reading().rows(FileSource.sequence_file(stored(data)))


def test_a_file_that_was_replaced_is_noticed(reading):
    rows = pairs_of("Text", "LongWritable", 50)
    source = FileSource.sequence_file(stored(file_of([rows])))
    reader = reading().open(source)
    reader.add_splits(reading().discover(source))
    reader.poll(7)
    [split] = reader.snapshot()
    stored(file_of([rows]))  # the same records behind another sync
    with pytest.raises(CheckpointMismatchError, match="has been replaced"):
        reading().batches(source, splits=[split])


# -------------------------------------------------------------------------------------------------------------- written
def written(sink_job, sink, *batches):
    job = sink_job(sink)
    job.start()
    for rows in batches:
        job.write(rows)
    job.checkpoint(1)
    job.finish()


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"a": 1}], {}, r"pairs of key and value; they have \['a'\]"),
        ([(1, 2, 3)], {}, "pairs of key and value"),
        ([(1, "x"), (2, None)], {"value": "Text"}, r"null has no form.*column 'value'"),
        ([("a", [1])], {}, "no class for values of type list"),
        ([(2**40, "a")], {"key": "IntWritable"}, r"no form as IntWritable.*column 'key'"),
        ([(1, "a")], {"key": "NullWritable"}, "no form as NullWritable"),
    ],
)
def test_what_has_no_form_is_refused(sink_job, tmp_path, rows, options, message):
    with pytest.raises(TypeMismatchError, match=rf"(?s){message}"):
        written(sink_job, FileSink.sequence_file(tmp_path, **options), rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "Tex"}, "Tex is no class of Writables"),
        ({"codec": "lzo"}, "lzo is no codec"),
        ({"compression": "blocks"}, "none, record, block; got 'blocks'"),
    ],
)
def test_illegal_options_are_refused_where_the_program_is(tmp_path, options, message):
    with pytest.raises(ConfigurationError, match=message):
        FileSink.sequence_file(tmp_path, **options)


def test_later_records_are_of_the_classes_of_the_first(reading, sink_job, tmp_path):
    sink = FileSink.sequence_file(tmp_path)
    written(sink_job, sink, [("a", 1.5)], [("b", 2)])
    assert reading().rows(FileSource.sequence_file(tmp_path)) == [("a", 1.5), ("b", 2.0)]
