"""Where CSV records end. Families: differential (a lexer that goes byte by byte; Python's csv module; Arrow's own
reader of the whole file, as data sets use it), property (any cuts, restored anywhere).
"""

from __future__ import annotations

import csv
import gzip
import io
from unittest import mock

import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace import ConfigurationError, ExecutionEnvironment, MalformedRecordError
from headrace.connectors.files import FileSource
from headrace.formats import blocks, csv_lexing
from headrace.state.files.memory import MemoryFileSystem

HOSTILE = st.lists(st.sampled_from([b'"', b'""', b",", b";", b"\n", b"\r", b"\r\n", b"a", b"bc"]), max_size=40).map(
    b"".join
)
PIECES = st.sampled_from([1, 3, 8, 64 << 10])


def ends_byte_by_byte(data: bytes, delimiter: bytes) -> list[int]:
    """The rules of Arrow's parser, written as its machine of three states."""
    ends, at, state = [], 0, "start"
    while at < len(data):
        byte, following = data[at : at + 1], data[at + 1 : at + 2]
        if state == "quoted":
            if byte == b'"' and following == b'"':
                at += 1
            elif byte == b'"':
                state = "field"
        elif byte == b'"' and state == "start":
            state = "quoted"
        elif byte == b"\n" or (byte == b"\r" and following not in (b"\n", b"")):
            ends.append(at + 1)
            state = "start"
        elif byte != b"\r":
            state = "start" if byte == delimiter else "field"
        at += 1
    return ends


@settings(max_examples=examples(600))
@given(HOSTILE, PIECES, st.sampled_from(",;"))
@example(b'5" pipe,1\n"x\ny",2\n', 1, ",")
@example(b'a"""b\n"c""\n"\n', 1, ",")
def test_records_end_where_a_lexer_finds_their_ends(data, piece, delimiter):
    ends = ends_byte_by_byte(data, delimiter.encode())
    with mock.patch.object(csv_lexing, "_PIECE_BYTES", piece):
        assert csv_lexing.csv_record_ends(data, delimiter).tolist() == ends
        assert csv_lexing.cut_csv(data, delimiter) == (ends[-1] if ends else 0)
        assert b"".join(csv_lexing.csv_records(data, delimiter)) == data


@settings(max_examples=examples(600))
@given(HOSTILE, PIECES)
def test_fields_are_those_of_pythons_csv(data, piece):
    with mock.patch.object(csv_lexing, "_PIECE_BYTES", piece):
        records = [csv_lexing.csv_fields(record, ",") for record in csv_lexing.csv_records(data, ",")]
    expected = csv.reader(io.StringIO(data.decode(), newline=""))
    assert [fields for fields in records if fields] == [fields for fields in expected if fields]


@settings(max_examples=examples(300))
@given(HOSTILE)
def test_lines_end_as_those_of_python(data):
    bounds = [0]
    for line in data.splitlines(keepends=True):
        bounds.append(bounds[-1] + len(line))
    ends = bounds[1:] if data.endswith(b"\n") else bounds[1:-1]
    assert csv_lexing.cut_at_line_end(data) == (ends[-1] if ends else 0)
    assert csv_lexing.num_line_ends(data) == len(ends) + data.endswith(b"\r")
    for start in range(len(data)):
        assert csv_lexing.line_end(data, start) == next((end for end in ends if end > start), 0)


# ---------------------------------------------------------------------------------------------------------------- files

FIELD = st.one_of(
    st.text(st.sampled_from('ab",;\n\r'), max_size=6).map(lambda text: '"' + text.replace('"', '""') + '"'),
    st.text(st.sampled_from('ab";'), max_size=5).map("x".__add__),
    st.sampled_from(["", '5" pipe', "x" * 70, '"' + "y\n" * 40 + '"', '"a" b"', '""']),
)
END = st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\r", "\r\n\r\n"])
RECORDS = st.lists(st.tuples(FIELD, FIELD, END), max_size=12)
SCHEMA = {"n\nm": str, "t": str}


def file_of(first, records, last):
    head = first + '"n\nm",other,t,other\n'
    body = "".join(f"{left},-,{right},-{end}" for left, right, end in records)
    return (head + body + last).encode()


def store(name, data):
    fs = MemoryFileSystem.named("lexing")
    fs.files.clear()
    fs.files[name] = data
    return f"memory://lexing/{name}"


def by_python(data):
    header, *records = [fields for fields in csv.reader(io.StringIO(data.decode(), newline="")) if fields]
    assert header == ["n\nm", "other", "t", "other"]
    return [{"n\nm": fields[0], "t": fields[2]} for fields in records]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(["", "\n", "\r\n\r"]),
    RECORDS,
    st.sampled_from(["", "last,-,one,-", 'last,-,one,"no end,\n']),
    st.sampled_from([16, 40, 100, 1 << 20]),
    st.lists(st.integers(0, 9), max_size=12),
    st.booleans(),
)
def test_streams_read_what_data_sets_and_python_read(reading, first, records, last, block, cuts, is_compressed):
    data = file_of(first, records, last)
    expected = by_python(data)
    path = store("a.csv.gz", gzip.compress(data)) if is_compressed else store("a.csv", data)
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    assert env.read_csv(path, SCHEMA).collect() == expected
    source = FileSource.csv(path, SCHEMA)
    with mock.patch.object(blocks, "BLOCK_BYTES", block):
        assert reading().rows(source) == expected
        assert reading().rows_with_cuts(source, cuts) == expected
        assert reading().rows_with_cuts(source, [1] * (len(expected) * 3)) == expected


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from(["", "\n", "\r\n\r"]),
    st.lists(
        st.tuples(st.text(st.sampled_from('ab";'), max_size=5), st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\r"]))
    ),
    st.integers(1, 60),
    st.sampled_from([16, 100, 1 << 20]),
    st.lists(st.integers(0, 9), max_size=12),
)
def test_splits_hold_every_line_once_whatever_ends_it(reading, first, records, split_bytes, block, cuts):
    data = (first + "n,t\n" + "".join(f"{i},x{text}{end}" for i, (text, end) in enumerate(records))).encode()
    source = FileSource.csv(store("a.csv", data), {"n": int, "t": str}, splittable=True, split_bytes=split_bytes)
    expected = [{"n": i, "t": f"x{text}"} for i, (text, _end) in enumerate(records)]
    with mock.patch.object(blocks, "BLOCK_BYTES", block):
        assert reading().rows(source) == expected
        assert reading().rows_with_cuts(source, cuts) == expected


def test_a_header_may_be_longer_than_a_block(reading):
    names = ["n", "a" * 200_000, '"' + "b\n" * 100_000 + '"']
    path = store("a.csv", (",".join(names) + '\n1,2,5" pipe\n').encode())
    with mock.patch.object(blocks, "BLOCK_BYTES", 1_000):
        assert reading().rows(FileSource.csv(path, {"n": int})) == [{"n": 1}]
        assert list(reading().rows(FileSource.csv(path))[0].values()) == [1, 2, '5" pipe']


def test_a_bad_record_is_named_by_its_line_whatever_ends_lines(reading):
    path = store("a.csv", b'\rn,t\r\n1,5" x\r2,"a\rb"\n\nbad,c\r')
    with pytest.raises(MalformedRecordError, match="position 'line 7'"):
        reading().rows(FileSource.csv(path, {"n": int, "t": str}))


def test_a_header_that_is_no_text_is_an_error_with_its_path(reading):
    with pytest.raises(MalformedRecordError, match=r"first csv record must be utf-8 text.*line 1.*a\.csv"):
        reading().rows(FileSource.csv(store("a.csv", b"\xff,b\n1,2\n")))


@pytest.mark.parametrize("delimiter", ['"', "\n", "\r", "é", "", ",,"])
def test_a_delimiter_that_cannot_delimit_is_refused(delimiter):
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    records = env.from_collection([{"a": 1}], pa.schema([("a", pa.int64())]))
    for make in (
        lambda: FileSource.csv("a", delimiter=delimiter),
        lambda: env.read_csv("a", delimiter=delimiter),
        lambda: records.write_as_csv("a", delimiter=delimiter),
    ):
        with pytest.raises(ConfigurationError, match="delimiter must be one ASCII character"):
            make()
