"""Files of Avro. Families: property (any file, cut and read anyhow, gives its records once), differential (Avro's own
writer and reader, in Java), errors (hostile files)."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from unittest import mock

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pytest
from campaigns import examples
from hadoop_server import avro_of_java  # noqa: F401 - a fixture
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.files import FileSink, FileSource
from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, HeadraceError, SourceError, TypeMismatchError
from headrace.formats import blocks
from headrace.formats.containers import avro_files
from headrace.formats.containers.avro_files import AvroEncoder, long_bytes
from headrace.formats.containers.compression_codecs import AVRO_CODECS
from headrace.state.files.memory import MemoryFileSystem
from headrace.table import TableEnvironment

CODECS = tuple(AVRO_CODECS)
OF_LIBRARY = ("null", "deflate", "bzip2", "xz")
"""Those that the library has without other packages; the others are held against Java's."""

UTC = dt.timezone.utc


def stored(data, name="a.avro"):
    fs = MemoryFileSystem.named("avro")
    fs.files.clear()
    fs.files[name] = data
    return f"memory://avro/{name}"


def file_of(batches, codec="snappy"):
    out = io.BytesIO()
    encoder = AvroEncoder(out, codec)
    for rows in batches:
        assert encoder.write(rows if isinstance(rows, pa.RecordBatch) else Batch.of_rows(rows).columns_as(None))
    encoder.finish()
    return out.getvalue()


def of_library(schema, rows, codec="null", **options):
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(schema), rows, codec=codec, **options)
    return out.getvalue()


def of_orc(table):
    out = io.BytesIO()
    orc.write_table(table, out)
    return out.getvalue()


def record(*fields):
    return {"type": "record", "name": "R", "fields": [{"name": f"c{i}", "type": kind} for i, kind in enumerate(fields)]}


# ------------------------------------------------------------------------------------------------------------- any file
@given(
    st.lists(
        st.lists(
            st.fixed_dictionaries({"i": st.integers(-(2**63), 2**63 - 1), "t": st.none() | st.text(max_size=9)}),
            min_size=1, max_size=9,
        ),
        min_size=1,
    ),
    st.sampled_from(CODECS), st.sampled_from([25, 60, 150, 1 << 20]), st.sampled_from([16, 100, 1 << 20]),
    st.sampled_from([40, 1 << 17]), st.lists(st.integers(0, 9), max_size=12),
)  # fmt: skip
@settings(max_examples=examples(60), deadline=None)
def test_any_file_gives_its_records_once_however_it_is_cut(reading, batches, codec, split_bytes, block, at_once, cuts):
    with (
        mock.patch.object(avro_files, "_BLOCK_BYTES", 30),
        mock.patch.object(avro_files, "_DECODED_AT_ONCE", at_once),
        mock.patch.object(blocks, "BLOCK_BYTES", block),
    ):
        typed = [
            pa.RecordBatch.from_pylist(rows, pa.schema([("i", pa.int64()), ("t", pa.string())])) for rows in batches
        ]
        data = file_of(typed, codec)
        wanted = [row for rows in batches for row in rows]
        source = FileSource.avro(stored(data), split_bytes=split_bytes)
        assert reading().rows_with_cuts(source, cuts) == wanted
        if codec in OF_LIBRARY:
            assert list(fastavro.reader(io.BytesIO(data))) == wanted


@pytest.mark.parametrize("codec", OF_LIBRARY)
def test_files_of_another_library_are_read(reading, codec):
    rows = [{"c0": i, "c1": f"text {i}"} for i in range(20_000)]
    path = stored(of_library(record("long", "string"), rows, codec, sync_interval=3_000))
    assert reading().rows(FileSource.avro(path)) == rows
    assert reading().rows(FileSource.avro(path, split_bytes=20_000)) == rows
    assert len(reading().discover(FileSource.avro(path, split_bytes=5_000))) > 3
    assert reading().rows_with_cuts(FileSource.avro(path, ["c1"]), range(0, 900, 50)) == [
        {"c1": row["c1"]} for row in rows
    ]


# ---------------------------------------------------------------------------------------------------------------- types
FAR = [-(2**63), 2**63 - 1, None]
KEPT = {
    "bool": (pa.array([True, None]), None),
    "int8": (pa.array([-128, None], pa.int8()), pa.int32()),
    "uint16": (pa.array([65_535, None], pa.uint16()), pa.int32()),
    "uint32": (pa.array([2**32 - 1, None], pa.uint32()), pa.int64()),
    "int64": (pa.array(FAR), None),
    "halffloat": (pa.array([1.5, None]).cast(pa.float16()), pa.float32()),
    "float": (pa.array([0.1, None], pa.float32()), None),
    "double": (pa.array([0.1, float("inf"), None]), None),
    "large_string": (pa.array(["ä€😀", "", None], pa.large_string()), pa.string()),
    "binary": (pa.array([b"\0\xff", b"", None]), None),
    "fixed": (pa.array([b"abc", None], pa.binary(3)), None),
    "date": (pa.array([-(2**31), 2**31 - 1, None], pa.int32()).cast(pa.date32()), None),
    "time32s": (pa.array([86_399, None], pa.int32()).cast(pa.time32("s")), pa.time32("ms")),
    "time64us": (pa.array([86_399_999_999, None], pa.int64()).cast(pa.time64("us")), None),
    **{
        f"timestamp {unit} {zone}": (pa.array(FAR, pa.int64()).cast(pa.timestamp(unit, zone)), None)
        for unit in ("ms", "us", "ns")
        for zone in (None, "UTC")
    },
    "timestamp s": (pa.array([-(2**40), None], pa.int64()).cast(pa.timestamp("s")), pa.timestamp("ms")),
    "timestamp Berlin": (
        pa.array([2**50, None], pa.int64()).cast(pa.timestamp("us", "Europe/Berlin")),
        pa.timestamp("us", "UTC"),
    ),
    "decimal128": (pa.array([Decimal("-99999.99"), Decimal("0.01"), None], pa.decimal128(7, 2)), None),
    "decimal256": (pa.array([Decimal("9" * 76), Decimal("-" + "9" * 76), None], pa.decimal256(76, 0)), None),
    "null": (pa.array([None, None]), None),
    "list": (pa.array([[1, None], [], None]), None),
    "fixed list": (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), pa.list_(pa.int64())),
    "map": (
        pa.array([[("a", Decimal("1.5")), ("b", None)], [], None], pa.map_(pa.string(), pa.decimal128(5, 2))),
        None,
    ),
    "struct": (pa.array([{"f0": 1, "f1": [{"x": dt.datetime.fromisoformat("2020-01-01")}]}, None]), None),
    "list of maps": (pa.array([[[("k", [1])]], None], pa.list_(pa.map_(pa.string(), pa.list_(pa.int64())))), None),
    "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), pa.string()),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_type_comes_back_as_it_is_or_as_a_wider_one(reading, name):
    column, wider = KEPT[name]
    path = stored(file_of([pa.record_batch({"c": column})], "deflate"))
    [batch] = reading().batches(FileSource.avro(path))
    found = batch.columns.column(0)
    assert found.type == (wider or column.type)
    assert found.equals(column.cast(found.type))


def test_a_column_without_nulls_is_no_union_and_is_one_again(reading):
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64())])
    data = file_of([pa.record_batch([pa.array([1]), pa.array([2])], schema=schema)])
    assert [field["type"] for field in fastavro.reader(io.BytesIO(data)).writer_schema["fields"]] == [
        "long", ["null", "long"]
    ]  # fmt: skip
    [batch] = reading().batches(FileSource.avro(stored(data)))
    assert batch.columns.schema == schema


@pytest.mark.parametrize("rows", [[("a", 1), ("b", None)], [3, 4], [{"x": 1}]])
def test_what_a_record_is_comes_back(reading, sink_job, tmp_path, rows):
    job = sink_job(FileSink.avro(tmp_path), checkpointing=False)
    job.start()
    job.write(rows)
    job.finish()
    assert reading().rows(FileSource.avro(tmp_path)) == rows


def test_records_without_fields_are_counted_and_not_written(reading, sink_job, tmp_path):
    path = stored(of_library(record(), [{}] * 500, sync_interval=1))
    assert reading().rows_with_cuts(FileSource.avro(path), [3, 100, 7]) == [{}] * 500
    for form in ("avro", "orc", "parquet"):
        job = sink_job(getattr(FileSink, form)(tmp_path / form))
        job.start()
        with pytest.raises(TypeMismatchError, match=r"(?s)records without fields.*\.staging"):
            job.write([{}, {}])


@pytest.mark.parametrize("form", ["avro", "orc"])
def test_a_column_that_the_first_file_has_not_is_named(form, tmp_path):
    made = file_of([[{"a": 1}]]) if form == "avro" else of_orc(pa.table({"a": [1]}))
    (tmp_path / "one").write_bytes(made)
    with TableEnvironment.create(mode="streaming", parallelism=1, actor_system="local") as t:
        options = f"'connector' = 'filesystem', 'path' = '{tmp_path}', 'format' = '{form}'"
        t.execute_sql(f"CREATE TABLE t (a BIGINT, c DOUBLE) WITH ({options})")
        with pytest.raises(HeadraceError, match=r"(?s)the file has no column 'c'; it has \['a'\].*/one"):
            t.execute_sql("SELECT a, c FROM t").to_arrow()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.uint64(), "Avro has no type for uint64"),
        (pa.duration("us"), "Avro has no type for duration"),
        (pa.time64("ns"), "Avro has no type for time64"),
        (pa.map_(pa.int64(), pa.int64()), "Avro has no type for map"),
        (pa.struct([("b", pa.list_(pa.uint64()))]), r"(?s)no type for uint64.*record\.a\.b"),
        (pa.struct([("b-c", pa.int64())]), "letters, digits and underscores; got 'b-c'"),
    ],
)
def test_what_has_no_form_in_avro_is_refused_where_the_program_is(tmp_path, kind, message):
    with pytest.raises(ConfigurationError, match=message):
        FileSink.avro(tmp_path, schema={"a": kind})


def test_a_value_that_has_no_form_is_refused(sink_job, tmp_path):
    job = sink_job(FileSink.avro(tmp_path))
    job.start()
    with pytest.raises(TypeMismatchError, match=r"(?s)no form in the Avro schema.*\.staging"):
        job.write(Batch.of_columns(pa.record_batch({"a": pa.array([2**62], pa.int64()).cast(pa.timestamp("s"))})))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (["int", "string"], "this is a union of 2 types"),
        (
            {"type": "record", "name": "R2", "fields": [{"name": "r", "type": ["null", "R2"]}]},
            "holds records of its own",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 77}, "at most 76 digits"),
    ],
)
def test_types_that_no_column_has_are_refused_by_name(reading, kind, message):
    with pytest.raises(ConfigurationError, match=rf"(?s){message}.*a\.avro"):
        reading().rows(FileSource.avro(stored(of_library(record(kind), []))))


def test_logical_types_that_are_not_known_are_what_they_lie_on(reading):
    kinds = [{"type": "int", "logicalType": "other"}, {"type": "string", "logicalType": "uuid"}]
    fixed = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    text = "12345678-9abc-def0-1234-56789abcdef0"
    path = stored(
        of_library(record(*kinds, fixed), [{"c0": 1, "c1": text, "c2": bytes.fromhex(text.replace("-", ""))}])
    )
    assert reading().rows(FileSource.avro(path)) == [{"c0": 1, "c1": text, "c2": text}]


# -------------------------------------------------------------------------------------------------------- hostile files
GOOD = of_library(record("long", "string"), [{"c0": i, "c1": "x" * 20} for i in range(300)], sync_interval=500)
SYNC = GOOD[-16:]
FIRST = GOOD.index(SYNC)


def block(number, data, sync=SYNC):
    return GOOD[: FIRST + 16] + long_bytes(number) + long_bytes(len(data)) + data + sync


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is no file of Avro"),
        (b"PAR1 and so on", "no file of Avro: it begins with b'PAR1'"),
        (GOOD[:20], "header of a file of Avro is cut off"),
        (b"Obj\1" + long_bytes(1) + long_bytes(2**40), "header of a file of Avro is cut off"),
        (b"Obj\1" + long_bytes(1) + long_bytes(-3), "something has -3 bytes"),
        (b"Obj\1" + b"\xff" * 11, "more than 64 bits"),
        (b"Obj\1" + long_bytes(0) + SYNC, "has no schema"),
        (GOOD[:-1], "a block is cut off"),
        (GOOD[:-16], "a block is cut off"),
        (GOOD[:-17], "a block is cut off"),
        (GOOD[: FIRST + 16 + 40], "a block is cut off"),
        (GOOD[: FIRST + 500] + b"\0" + GOOD[FIRST + 500 :], "no sync stands behind a block"),
        (GOOD + b"x" * 20, "a block is cut off|does not begin with a sync|a block has|no sync stands"),
        (block(-1, b""), "a block has -1 records"),
        (block(1, b""), "a block cannot be read"),
        (block(2**40, b""), "0 bytes are no 1099511627776 records"),
        (GOOD[: FIRST + 16] + long_bytes(1) + long_bytes(2**31), "a block has 1 records in 2147483648 bytes"),
        (block(1, b"\x02\x02aa"), "a block cannot be read"),
        (block(1, b"\x02\x02\xff"), "a block cannot be read"),
        (block(2, b"\x02\x02a"), "a block cannot be read"),
        (block(1, b"\x02\x03a"), "a block cannot be read"),
    ],
    ids=[f"damage {number}" for number in range(21)],  # syncs are drawn anew by each process
)
def test_a_damaged_file_is_an_error_with_its_place(reading, data, message):
    with pytest.raises(SourceError, match=rf"(?s)({message}).*a\.avro"):
        reading().rows(FileSource.avro(stored(data)))


@pytest.mark.parametrize("codec", CODECS)
def test_a_changed_byte_is_an_error_or_another_value_of_its_type(reading, codec):
    """Of a block that is compressed by a codec with a checksum it is an error; records before it are read."""
    rows = [{"c0": i, "c1": f"x{i % 7}" * 9} for i in range(900)]
    with mock.patch.object(avro_files, "_BLOCK_BYTES", 2_000):
        data = file_of([pa.RecordBatch.from_pylist(rows)], codec)
    start = data.index(data[-16:]) + 16
    for place in range(start, len(data), 41):
        changed = data[:place] + bytes([data[place] ^ 0x5A]) + data[place + 1 :]
        error, rows = None, []
        try:
            rows = reading().rows(FileSource.avro(stored(changed)))
        except SourceError as raised:
            error = raised
        if error is not None:
            assert "position" in error.context
            assert error.context["path"] == "a.avro"
            continue
        assert len(rows) == 900
        assert codec in ("null", "deflate", "zstandard")
        assert all(isinstance(row["c0"], int) and isinstance(row["c1"], str) for row in rows)


def test_a_decimal_of_more_digits_than_it_has_is_damage(reading):
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}
    path = stored(
        of_library(record("bytes"), [{"c0": (12345).to_bytes(2, "big")}]).replace(b'"bytes"', json.dumps(kind).encode())
    )
    data = MemoryFileSystem.named("avro").files["a.avro"]
    # The schema has grown: its length before it, too.
    text = data[data.index(b"{") : data.index(b"}]}") + 3]
    at = data.index(b"avro.schema") + len(b"avro.schema")
    path = stored(data[:at] + long_bytes(len(text)) + data[data.index(b"{") :])
    with pytest.raises(SourceError, match=r"(?s)none of their types.*a\.avro"):
        reading().rows(FileSource.avro(path))


def test_what_expands_without_bound_is_refused(reading, monkeypatch):
    monkeypatch.setattr("headrace.state.reading.read_limits._FREE_BYTES", 1 << 20)
    monkeypatch.setattr("headrace.state.reading.read_limits.MAX_FACTOR", 2)
    for codec in CODECS[1:]:
        path = stored(file_of([[{"c0": bytes(8 << 20)}]], codec))
        with pytest.raises(SourceError, match=r"would grow to|are allowed|are left"):
            reading().rows(FileSource.avro(path))


def test_a_codec_and_a_column_that_are_not_there_are_named(reading, tmp_path):
    with pytest.raises(ConfigurationError, match=r"(?s)lzo is no codec of Avro.*a\.avro"):
        reading().rows(FileSource.avro(stored(GOOD.replace(b"\x08null", b"\x06lzo"))))
    with pytest.raises(ConfigurationError, match=r"(?s)no column 'c2'; it has \['c0', 'c1'\].*a\.avro"):
        reading().rows(FileSource.avro(stored(GOOD), ["c2"]))
    with pytest.raises(ConfigurationError, match="'lzo' is no codec of Avro: null, deflate"):
        FileSink.avro(tmp_path, codec="lzo")


# --------------------------------------------------------------------------------------------------------------- Java's
def order(i):
    """What `tests/data/AvroRecords.java` makes of a number."""
    epoch = dt.datetime.fromisoformat("1970-01-01")
    return {
        "id": i * 1000000000007 * (1 if i % 2 == 0 else -1),
        "name": None if i % 3 == 0 else f"text {i}" + " ä€😀" * (i % 5),
        "price": Decimal(i * 1001 - 500000).scaleb(-3),
        "paid": None if i % 4 == 0 else Decimal(-i).scaleb(-2),
        "at": epoch.replace(tzinfo=UTC) + dt.timedelta(microseconds=i * 86400000123 - 62135596800000000),
        "local": epoch + dt.timedelta(milliseconds=i * 3600001 - 86400000),
        "day": epoch.date() + dt.timedelta(days=i - 500),
        "hour": (epoch + dt.timedelta(milliseconds=i % 86400 * 1000 + 7)).time(),
        "state": ("NEW", "SENT", "BACK")[i % 3],
        "was": None if i % 2 == 0 else "NEW",
        "code": bytes([1, 2, i % 256]),
        "lines": [{"n": n} for n in range(i % 4)],
        "extra": ({"half": i / 2.0} if i % 2 == 0 else {}) | ({"none": None} if i % 6 == 0 else {}),
        "flag": i % 3 == 0,
        "blob": f"b{i}".encode(),
        "small": i / 4,
    }


def test_files_of_avros_own_writer_are_read_and_cut_as_by_its_reader(reading, avro_of_java, tmp_path):  # noqa: F811
    """Each codec; whole, and in splits, which have the records that Java's reader gives them."""
    paths = {codec: tmp_path / f"{codec}.avro" for codec in CODECS}
    writes = [f"write {path} {codec} 3000" for codec, path in paths.items()]
    assert set(avro_of_java.records(writes)) == {"written"}
    wanted = [order(i) for i in range(3_000)]
    for path in paths.values():
        assert reading().rows(FileSource.avro(path)) == wanted
    for size in (1_001, 20_000):
        answers = avro_of_java.records(f"splits {path} {size}" for path in paths.values())
        for path, answer in zip(paths.values(), answers, strict=True):
            source = FileSource.avro(path, split_bytes=size)
            counts = [
                sum(batch.num_rows for batch in reading().batches(source, splits=[split]))
                for split in reading().discover(source)
            ]
            assert counts == list(map(int, answer.split()))
            assert sum(counts) == 3_000


def test_avros_own_reader_reads_files_of_ours(reading, avro_of_java, tmp_path):  # noqa: F811
    """What was read of its file is written anew, by each codec: the same records and logical types."""
    theirs = tmp_path / "theirs.avro"
    avro_of_java.records([f"write {theirs} null 500"])
    [whole] = [batch.columns for batch in reading().batches(FileSource.avro(theirs))]
    paths = {codec: tmp_path / f"{codec}.avro" for codec in CODECS}
    for codec, path in paths.items():
        path.write_bytes(file_of([whole.slice(0, 77), whole.slice(77)], codec))
    own = avro_of_java.records([f"read {theirs} 500"])
    of_fixed = own[0].count('"fixed"')
    for path in paths.values():
        schema, *records = avro_of_java.records([f"read {path} 500"])
        assert records[-1] == "500"
        assert schema.count("logicalType") == own[0].count("logicalType")
        assert of_fixed == 2
        for mine, other in zip(records[:-1], own[1:-1], strict=True):
            assert comparable(mine) == comparable(other)


def comparable(text):
    """A record as Java prints it; of decimals, which are bytes or fixed there, only whether there is one."""
    found = json.loads(text)
    return {**found, "paid": found["paid"] is None}
