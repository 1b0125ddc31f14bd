"""Files of ORC. Families: property (any file gives its records once, from any row), errors (types and times that ORC
has not, damaged files). What Spark writes and reads is in `tests/dataset/test_avro_and_orc.py`."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from unittest import mock

import pyarrow as pa
import pyarrow.orc as orc
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.files import FileSink, FileSource
from headrace.engine.columns.records import Batch
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, SourceError, TypeMismatchError
from headrace.formats.containers import orc_files
from headrace.formats.containers.orc_files import OrcEncoder
from headrace.state.files.memory import MemoryFileSystem


def stored(data, name="a.orc"):
    fs = MemoryFileSystem.named("orc")
    fs.files.clear()
    fs.files[name] = data
    return f"memory://orc/{name}"


def file_of(batches, compression="zlib"):
    out = io.BytesIO()
    encoder = OrcEncoder(out, compression)
    for columns in batches:
        assert encoder.write(columns)
    encoder.finish()
    return out.getvalue()


def in_stripes(sizes):
    """A file with a stripe of each size; gives its rows, too."""
    out, count, rows = io.BytesIO(), 0, []
    with orc.ORCWriter(out, stripe_size=1, batch_size=1_024) as writer:
        for size in sizes:
            part = [{"i": count + k, "t": None if k % 3 == 0 else f"x{count + k}"} for k in range(size)]
            count, rows = count + size, rows + part
            writer.write(pa.Table.from_pylist(part, pa.schema([("i", pa.int64()), ("t", pa.string())])))
    return out.getvalue(), rows


@given(
    st.lists(st.integers(1, 3_000), min_size=1, max_size=4),
    st.sampled_from([1, 4_000, 1 << 20]),
    st.lists(st.integers(0, 90), max_size=12),
)
@settings(max_examples=examples(40), deadline=None)
def test_a_file_is_read_on_from_any_row(reading, sizes, split_bytes, cuts):
    data, rows = in_stripes(sizes)
    assert reading().rows_with_cuts(FileSource.orc(stored(data), split_bytes=split_bytes), cuts) == rows


def test_a_file_is_cut_by_stripes_whatever_the_parallelism(reading):
    data, rows = in_stripes([1024 * 20])
    stripes = orc.ORCFile(pa.BufferReader(data)).nstripes
    assert stripes > 3
    source = FileSource.orc(stored(data), split_bytes=1)
    splits = reading(parallelism=1).discover(source)
    assert splits == reading(parallelism=7).discover(source)
    assert len(splits) == stripes
    assert len(reading().discover(FileSource.orc(stored(data)))) == 1
    assert reading().rows(FileSource.orc(stored(data), ["t"], split_bytes=1)) == [{"t": row["t"]} for row in rows]


def test_columns_are_chosen_by_their_whole_name_and_in_any_order(reading):
    """Arrow takes what is behind a dot for a part of a column."""
    out = io.BytesIO()
    orc.write_table(pa.table({"x.y": [1, 2], "x": [{"y": 5, "z": 6}, None], "k": [7, 8]}), out)
    path = stored(out.getvalue())
    assert reading().rows(FileSource.orc(path, ["x.y"])) == [{"x.y": 1}, {"x.y": 2}]
    [batch] = reading().batches(FileSource.orc(path, ["k", "x"]))
    assert batch.columns.to_pydict() == {"k": [7, 8], "x": [{"y": 5, "z": 6}, None]}
    assert batch.columns.schema.names == ["k", "x"]
    assert len(reading().rows(FileSource.orc(path, []))) == 2


@pytest.mark.parametrize("compression", ["zlib", "snappy", "lz4", "zstd", "none"])
def test_each_compression_is_written_and_read(reading, sink_job, tmp_path, compression):
    job = sink_job(FileSink.orc(tmp_path, compression=compression), checkpointing=False)
    job.start()
    rows = [{"i": i, "t": f"text {i}"} for i in range(5_000)]
    job.write(rows)
    job.finish()
    assert reading().rows(FileSource.orc(tmp_path)) == rows
    [path] = tmp_path.glob("*.orc")
    assert orc.ORCFile(path).compression == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


KEPT = {
    "bool": (pa.array([True, None]), None),
    "int8": (pa.array([-128, None], pa.int8()), None),
    "int16": (pa.array([-(2**15), None], pa.int16()), None),
    "uint32": (pa.array([2**32 - 1, None], pa.uint32()), pa.int64()),
    "int64": (pa.array([-(2**63), 2**63 - 1, None]), None),
    "halffloat": (pa.array([1.5, None]).cast(pa.float16()), pa.float32()),
    "double": (pa.array([0.1, float("-inf"), None]), None),
    "large_string": (pa.array(["ä€😀", "", None], pa.large_string()), pa.string()),
    "fixed": (pa.array([b"abc", None], pa.binary(3)), pa.binary()),
    "date": (pa.array([-719_162, 2_932_896, None], pa.int32()).cast(pa.date32()), None),
    "timestamp s": (pa.array([-1, 2**33, None], pa.int64()).cast(pa.timestamp("s")), pa.timestamp("ns")),
    "timestamp us": (pa.array([-(10**12), 2**53, None], pa.int64()).cast(pa.timestamp("us")), pa.timestamp("ns")),
    "timestamp ns": (pa.array([-(10**18), 2**62, None], pa.int64()).cast(pa.timestamp("ns")), None),
    "timestamp Berlin": (
        pa.array([1_500_001, None], pa.int64()).cast(pa.timestamp("us", "Europe/Berlin")),
        pa.timestamp("ns", "UTC"),
    ),
    "decimal": (pa.array([Decimal("-" + "9" * 38), None], pa.decimal128(38, 0)), None),
    "wide decimal": (pa.array([Decimal("1.5"), None], pa.decimal256(38, 2)), pa.decimal128(38, 2)),
    "list": (pa.array([[1, None], [], None]), None),
    "map": (pa.array([[(1, "a"), (2, None)], [], None], pa.map_(pa.int64(), pa.string())), None),
    "struct": (pa.array([{"f0": 1, "f1": [{"x": dt.date(2020, 1, 1)}]}, None]), None),
    "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), pa.string()),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_type_comes_back_as_it_is_or_as_a_wider_one(reading, name):
    column, wider = KEPT[name]
    [batch] = reading().batches(FileSource.orc(stored(file_of([pa.record_batch({"c": column})]))))
    found = batch.columns.column(0)
    assert found.type == (wider or column.type)
    assert found.equals(column.cast(found.type))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.uint64(), "ORC has no type for uint64"),
        (pa.time64("us"), "ORC has no type for time64"),
        (pa.duration("us"), "ORC has no type for duration"),
        (pa.decimal256(39, 0), "ORC has no type for decimal256"),
        (pa.null(), "ORC has no type for null"),
        (pa.struct([("b", pa.list_(pa.uint64()))]), r"(?s)no type for uint64.*a\.b"),
    ],
)
def test_what_has_no_form_in_orc_is_refused_where_the_program_is(tmp_path, kind, message):
    with pytest.raises(ConfigurationError, match=message):
        FileSink.orc(tmp_path, schema={"a": kind})


def test_times_that_have_no_nanoseconds_are_refused_both_ways(reading, sink_job, tmp_path):
    far = pa.table({"t": pa.array([dt.datetime.fromisoformat("2500-01-01")], pa.timestamp("us"))})
    job = sink_job(FileSink.orc(tmp_path))
    job.start()
    with pytest.raises(TypeMismatchError, match=r"(?s)no form in ORC.*\.staging"):
        job.write(Batch.of_columns(far.to_batches()[0]))
    orc.write_table(far, tmp_path / "far.orc")
    with pytest.raises(SourceError, match=r"(?s)out of range for nanosecond.*far\.orc"):
        reading().rows(FileSource.orc(tmp_path))


@pytest.mark.parametrize(
    "kind", [None, lambda t: [t], lambda t: {"a": [t]}, lambda t: [(1, t)]], ids=["alone", "list", "struct", "map"]
)
def test_a_fraction_of_a_second_before_1970_is_refused_wherever_it_is(kind):
    """Arrow would write it, and read it; Spark and ORC's own library say that it has negative nanoseconds."""
    types = {"list": pa.list_(pa.timestamp("ns")), "struct": None, "map": pa.map_(pa.int64(), pa.timestamp("ns"))}
    good, bad = (dt.datetime.fromisoformat(f"1969-12-31 23:59:5{text}") for text in ("9", "9.5"))
    made = [value if kind is None else kind(value) for value in (good, bad)]
    name = "map" if isinstance(made[0], list) and isinstance(made[0][0], tuple) else "list"
    declared = types[name] if isinstance(made[0], list) else None
    encoder = OrcEncoder(io.BytesIO())
    assert encoder.write(pa.record_batch({"c": pa.array([made[0], None], declared)}))
    with pytest.raises(TypeMismatchError, match=r"(?s)before 1970 must be of whole seconds in ORC; column 'c'"):
        encoder.write(pa.record_batch({"c": pa.array([None, made[1]], declared)}))


def test_an_older_reader_that_makes_other_times_of_them_is_refused(reading, monkeypatch):
    path = stored(file_of([pa.record_batch({"t": pa.array([0], pa.timestamp("us"))})]))
    monkeypatch.setattr(orc_files, "_times_are_exact", lambda: False)
    with pytest.raises(ConfigurationError, match=r"(?s)reads times before 1677.*newer pyarrow"):
        reading().rows(FileSource.orc(path))


# -------------------------------------------------------------------------------------------------------------- errors
def test_a_file_that_is_none_is_refused_at_discovery(reading):
    for data in (b"", b"hello, world, this is no orc", b"ORC"):
        with pytest.raises(SourceError, match=r"(?s)not a readable orc file.*a\.orc"):
            reading().discover(FileSource.orc(stored(data)))


def test_a_damaged_stripe_names_split_and_row(reading):
    data, rows = in_stripes([1024 * 20])
    source = FileSource.orc(stored(data), split_bytes=1)
    splits = reading().discover(source)
    damaged = bytearray(data)
    for place in range(len(data) // 3, len(data) // 2):
        damaged[place] ^= 0x5A
    MemoryFileSystem.named("orc").files["a.orc"] = bytes(damaged)
    [first] = reading().batches(source, splits=splits[:1])
    assert first.rows == rows[:1_024]
    with pytest.raises(SourceError, match=r"(?s)cannot read a file.*a\.orc.*position 'row 0'"):
        reading().batches(source, splits=splits)


def test_a_file_that_was_changed_and_a_column_that_is_not_there_are_named(reading):
    data, _ = in_stripes([100])
    source = FileSource.orc(stored(data))
    splits = reading().discover(source)
    stored(data + b"more")
    with pytest.raises(CheckpointMismatchError, match="has been changed"):
        reading().batches(source, splits=splits)
    with pytest.raises(SourceError, match=r"(?s)no column 'x'; it has \['i', 't'\].*a\.orc"):
        reading().rows(FileSource.orc(stored(data), ["x"]))
    with pytest.raises(ConfigurationError, match="zlib, snappy, lz4, zstd, none; got 'lzo'"):
        FileSink.orc("x", compression="lzo")


def test_parts_are_closed_by_their_size(reading, sink_job, tmp_path):
    with mock.patch.object(orc_files, "_STRIPE_BYTES", 100_000):
        job = sink_job(FileSink.orc(tmp_path, max_part_bytes=300_000, compression="none"), checkpointing=False)
        job.start()
        rows = [{"t": f"{i * 7919 % 100_003:>100}"} for i in range(20_000)]
        for start in range(0, 20_000, 500):
            job.write(rows[start : start + 500])
        job.finish()
    sizes = [path.stat().st_size for path in tmp_path.glob("*.orc")]
    assert len(sizes) > 2
    assert max(sizes) < 800_000
    assert reading().rows(FileSource.orc(tmp_path)) == rows


def test_rows_are_counted_where_no_column_is_read(tmp_path):
    """As of a table whose query asks for the names of folders alone."""
    orc.write_table(pa.table({"a": range(1000)}), tmp_path / "a.orc")
    file = orc_files.open_orc(pa.OSFile(str(tmp_path / "a.orc")))
    batches = list(orc_files.stripe_batches(file, range(file.nstripes), []))
    assert sum(batch.num_rows for batch in batches) == 1000
    assert not any(batch.num_columns for batch in batches)
