"""Files in folders ``name=value``: what is written is read, by streams and data sets; hostile names, limits, errors."""

from __future__ import annotations

import datetime as dt
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from campaigns import examples
from file_sink_store import MAKERS, Store
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.files import FileSink, FileSource, parts
from headrace.dataset import ExecutionEnvironment
from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, ProgramError, SinkError, SourceError, TypeMismatchError
from headrace.formats.folders import FOLDERS, by_folder, named_folders, of_folders

TYPES = pa.schema([("n", pa.int64()), ("t", pa.string()), ("d", pa.date32())])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["..", ".", "a/b", "__HIVE_DEFAULT_PARTITION__", "007", "x=y", "%41", "\0"]
)
ROWS = st.lists(
    st.fixed_dictionaries({
        "n": st.none() | st.integers(-(2**63), 2**63 - 1), "t": st.none() | TEXTS, "d": st.none() | st.dates(),
    }),
    min_size=1, max_size=20,
)  # fmt: skip


@given(ROWS)
@settings(max_examples=examples(200), deadline=None)
def test_a_folder_says_the_values_that_it_was_made_of(rows):
    columns = pa.RecordBatch.from_pylist(
        [row | {"i": i} for i, row in enumerate(rows)], TYPES.append(pa.field("i", pa.int64()))
    )
    found = {}
    for folder, own in by_folder(TYPES.names, columns):
        assert FOLDERS.fullmatch(folder)
        assert own.schema.names == ["i"]
        path = f"/base/{folder}/part"
        assert [name for name, _ in named_folders(path)] == TYPES.names
        values = [value.as_py() for value in of_folders(path, TYPES)]
        found |= {i: dict(zip(TYPES.names, values, strict=True)) for i in own["i"].to_pylist()}
        assert own["i"].to_pylist() == sorted(own["i"].to_pylist())
    assert [found[i] for i in range(len(rows))] == rows


def write(sink_job, sink, *batches, job="job"):
    job = sink_job(sink, checkpointing=False, job=job)
    job.start()
    for batch in batches:
        job.operators[0].process_batch(Batch.of_columns(batch) if isinstance(batch, pa.RecordBatch) else batch, 0)
    job.finish()


@pytest.mark.parametrize("kind", MAKERS)
def test_streams_and_data_sets_read_what_streams_write(reading, sink_job, tmp_path, kind):
    schema = pa.schema([("v", pa.int64()), ("t", pa.string()), ("d", pa.date32())])
    days = [dt.date(2024, 5, 1 + i % 2) for i in range(30)]
    rows = [{"v": i, "t": ["a/b", "10:00", None][i % 3], "d": days[i]} for i in range(30)]
    options = {} if kind == "jsonl" else {"schema": schema}
    sink = MAKERS[kind](tmp_path, partition_by=("d", "t"), **options)
    write(sink_job, sink, *(pa.RecordBatch.from_pylist(rows[i : i + 10], schema) for i in range(0, 30, 10)))
    folders = {os.path.relpath(place, tmp_path) for place, _, names in os.walk(tmp_path) if names}
    texts = ("a%2Fb", "10%3A00", "__HIVE_DEFAULT_PARTITION__")
    assert folders == {f"d=2024-05-0{day}/t={text}" for day in (1, 2) for text in texts}
    own, inside = {"v": int}, {"recursive": True, "folders": {"d": pa.date32(), "t": str}}
    source = {
        "jsonl": lambda: FileSource.json_lines(tmp_path, own, **inside),
        "csv": lambda: FileSource.csv(tmp_path, own, **inside),
        "parquet": lambda: FileSource.parquet(tmp_path, **inside),
        "avro": lambda: FileSource.avro(tmp_path, **inside),
        "orc": lambda: FileSource.orc(tmp_path, **inside),
    }[kind]()
    if kind == "parquet":
        assert source.produced_columns().names == ["v", "d", "t"]
    assert sorted(reading().rows(source), key=lambda row: row["v"]) == [
        {"v": row["v"], "d": row["d"], "t": row["t"]} for row in rows
    ]
    env = ExecutionEnvironment.get_execution_environment("local")
    read = {
        "jsonl": env.read_json, "csv": env.read_csv, "parquet": env.read_parquet, "avro": env.read_avro,
        "orc": env.read_orc,
    }[kind]  # fmt: skip
    assert sorted(read(str(tmp_path)).collect(), key=lambda row: row["v"]) == [
        {"v": row["v"], "d": row["d"], "t": row["t"]} for row in rows
    ]


def test_few_parts_are_open_at_a_time(reading, sink_job, monkeypatch):
    monkeypatch.setattr(parts, "MAX_OPEN_PARTS", 2)
    store = Store(reading, partition_by="f")
    job = sink_job(store.sink)
    job.start()
    for number in range(9):
        job.write(store.rows(number))
        assert len(store.staged) <= number + 2
    job.checkpoint(1)
    job.finish()
    assert sorted(store.visible()) == list(range(9))
    assert len(store.fs.files) == 9  # every row finds its folder's part closed
    monkeypatch.setattr(parts, "MAX_OPEN_PARTS", 3)
    store = Store(reading, partition_by="f")
    job = sink_job(store.sink)
    job.start()
    job.write(store.rows(*range(5)))
    job.write(store.rows(*range(5, 9)))
    job.checkpoint(1)
    job.finish()
    assert len(store.fs.files) == 3


def test_modes_see_files_in_folders(reading, sink_job, tmp_path):
    def rows(*numbers):
        return pa.RecordBatch.from_pylist([{"i": i, "f": 0} for i in numbers])

    def seen():
        return sorted(row["i"] for row in reading().rows(FileSource.json_lines(tmp_path, {"i": int}, recursive=True)))

    def sink(mode):
        return FileSink.json_lines(tmp_path, partition_by="f", mode=mode)

    write(sink_job, sink("error"), rows(1))
    with pytest.raises((ConfigurationError, SinkError), match="has output already: 1 files"):
        write(sink_job, sink("error"), rows(2), job="b")
    write(sink_job, sink("append"), rows(3), job="c")
    assert seen() == [1, 3]
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "other.json").write_text('{"i": 9}\n')
    write(sink_job, sink("overwrite"), rows(4), job="d")
    assert seen() == [4, 9]


def test_output_behind_the_restored_checkpoint_is_noticed_in_folders(reading, sink_job, tmp_path):
    job = sink_job(FileSink.json_lines(tmp_path, partition_by="f"))
    job.start()
    for checkpoint_id in (1, 2):
        job.write([{"i": checkpoint_id, "f": 1}])
        job.checkpoint(checkpoint_id)
    job.complete = 1
    with pytest.raises((ConfigurationError, SinkError), match="made public behind it"):
        job.start()


@pytest.mark.parametrize("kind", ["link", "file"])
def test_no_folder_leads_elsewhere(sink_job, tmp_path, kind):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    for folder in (out, elsewhere):
        folder.mkdir()
    if kind == "link":
        (out / "f=1").symlink_to(elsewhere)
    else:
        (out / "f=1").write_text("x")
    with pytest.raises((ConfigurationError, SinkError), match=r"a link or a file is where a folder.*f=1"):
        write(sink_job, FileSink.json_lines(out, partition_by="f", mode="append"), Batch.of_rows([{"i": 1, "f": 1}]))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"i": 1}], "there is no field 'f'"),
        ([{"f": 1}], "leaves none for the files"),
        ([{"i": 1, "f": 1.5}], "'f' of type double cannot be a folder"),
        ([{"i": 1, "f": "x" * 300}], "'f' makes a folder's name of 302 characters"),
    ],
)
def test_what_cannot_be_a_folder_is_refused(sink_job, tmp_path, rows, message):
    with pytest.raises((TypeMismatchError, ProgramError), match=message):
        write(sink_job, FileSink.json_lines(tmp_path, partition_by="f"), Batch.of_rows(rows))


def test_a_column_of_a_folder_takes_the_place_of_one_in_the_file(reading, tmp_path):
    (tmp_path / "f=7").mkdir()
    pq.write_table(pa.table({"f": [1, 2], "i": [3, 4]}), tmp_path / "f=7" / "a.parquet")
    source = FileSource.parquet(tmp_path, recursive=True, folders={"f": int})
    assert source.produced_columns().names == ["i", "f"]
    assert reading().rows(source) == [{"i": 3, "f": 7}, {"i": 4, "f": 7}]


def test_a_followed_directory_gets_new_folders(reading, tmp_path):
    for name in ("f=1", "f=2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_text("i\n5\n")
    source = FileSource.csv(tmp_path, {"i": int}, recursive=True, follow="1 s", folders={"f": int})
    assert [split.payload["path"][-9:] for split in reading().discover(source)] == ["f=1/a.csv", "f=2/a.csv"]


def test_a_folder_that_says_something_else_is_told(reading, tmp_path):
    (tmp_path / "f=x").mkdir()
    (tmp_path / "f=x" / "a.csv").write_text("1\n")
    source = FileSource.csv(tmp_path, {"i": int}, has_header=False, recursive=True, folders={"f": int})
    with pytest.raises(SourceError, match=r"the folder of 'f' has a value that is no int64.*a\.csv"):
        reading().rows(source)
    source = FileSource.csv(tmp_path, {"i": int}, has_header=False, recursive=True, folders={"g": int})
    with pytest.raises(SourceError, match="the file is in no folder g="):
        reading().rows(source)
    with pytest.raises(ConfigurationError, match="need the schema"):
        FileSource.json_lines(tmp_path, folders={"f": int})
