"""Sources, sinks, results, settings and what is refused while a program is written.

Oracle: what was written is read back by Arrow or Python; refusals are asserted by their text.
"""

import bz2
import csv
import datetime as dt
import gzip
import json
import math
import os
import subprocess
import sys
import threading

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import (
    ConfigurationError,
    ExecutionEnvironment,
    MapFunction,
    ProgramError,
    SourceError,
    StreamExecutionEnvironment,
    TypeMismatchError,
    Types,
    UserFunctionError,
    col,
)
from headrace.engine.partitions.in_process import InProcessExecutor

ROWS = [{"k": 1, "s": "a"}, {"k": 2, "s": None}, {"k": None, "s": 'ü,\n"'}]


# ---------------------------------------------------------------------------------------------------------- sources


def test_collections_have_the_type_they_evidently_have(env):
    assert env.from_collection(ROWS).schema == pa.schema([("k", pa.int64()), ("s", pa.string())])
    assert env.from_collection([1, 2]).schema.metadata == {b"headrace.row": b"value"}
    assert env.from_collection([(1, "a")]).schema.names == ["f0", "f1"]
    for objects in ([1, 2.5], [1, "a"], [{"a": 1}, {"b": 1}], [(1,), (1, 2)], [[1]], [2**70], [None], []):
        data = env.from_collection(objects)
        assert data.schema is None
        assert data.collect() == objects


def test_arrow_and_pandas_are_read_as_columns(env):
    table = pa.table({"a": [1, 2, None], "b": pa.array(["x", "y", "x"]).dictionary_encode()})
    for data in (env.from_arrow(table), env.from_collection(table), env.from_arrow(table.to_batches()[0])):
        assert data.collect() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": None, "b": "x"}]
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None]}, index=[5, 6])
    assert env.from_pandas(frame).collect() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert env.from_collection(frame).count() == 2


def test_sequences_have_both_ends(env):
    assert env.generate_sequence(3, 5).collect() == [3, 4, 5]
    assert env.generate_sequence(3, 2).collect() == []


def test_text_is_read_by_lines(env, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\n\nthree")
    (tmp_path / "b.txt").write_bytes("vier\n".encode("latin-1"))
    assert sorted(env.read_text(tmp_path).collect()) == ["", "one", "three", "two", "vier"]
    assert env.read_text([tmp_path / "b.txt"], encoding="latin-1").collect() == ["vier"]
    (tmp_path / "empty.txt").touch()
    assert env.read_text(tmp_path / "e*.txt").collect() == []


def test_csv_types_are_inferred_or_given(env, tmp_path):
    (tmp_path / "a.csv").write_text('id,name,score\n1,"a,b",0.5\n2,,\n')
    (tmp_path / "b.csv").write_text("id,name,score\n3,c,7\n")
    assert sorted(map(str, env.read_csv(tmp_path).collect())) == sorted(
        map(
            str,
            [
                {"id": 1, "name": "a,b", "score": 0.5},
                {"id": 2, "name": "", "score": None},
                {"id": 3, "name": "c", "score": 7.0},
            ],
        )
    )
    chosen = env.read_csv(tmp_path / "a.csv", {"score": float, "id": "int32"})
    assert chosen.collect() == [{"score": 0.5, "id": 1}, {"score": None, "id": 2}]
    (tmp_path / "c.txt").write_text("1;x\n2;y\n")
    bare = env.read_csv(tmp_path / "c.txt", header=False, delimiter=";")
    assert bare.collect() == [{"f0": 1, "f1": "x"}, {"f0": 2, "f1": "y"}]
    named = env.read_csv(tmp_path / "c.txt", {"n": int, "t": str}, header=False, delimiter=";")
    assert named.filter(col("n") > 1).select("t").collect() == [{"t": "y"}]
    with pytest.raises(SourceError, match="column 'x' is not in the file"):
        env.read_csv(tmp_path / "a.csv", {"x": int})


def test_json_and_parquet_are_read_with_their_types(env, tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1, "b": {"c": [1, 2]}}\n{"a": null, "b": null}\n')
    data = env.read_json(tmp_path / "a.json")
    assert data.collect() == [{"a": 1, "b": {"c": [1, 2]}}, {"a": None, "b": None}]
    assert env.read_json(tmp_path / "a.json", {"a": "int32"}).collect() == [{"a": 1}, {"a": None}]
    pq.write_table(pa.table({"a": range(10), "b": ["x"] * 10}), tmp_path / "t.parquet", row_group_size=3)
    assert env.read_parquet(tmp_path / "t.parquet", columns=["a"]).filter(col("a") > 7).collect() == [
        {"a": 8},
        {"a": 9},
    ]


def test_files_of_others_are_read(env, tmp_path):
    def put(name, data):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    mark = b"\xef\xbb\xbf"
    for file in (
        put("mark.csv", mark + b"a,b\r\n1,x\r\n"),
        put("open.csv", b"a,b\n1,x"),
        put("blank.csv", b"\na,b\n1,x"),
    ):
        assert env.read_csv(file).collect() == [{"a": 1, "b": "x"}]
        assert env.read_csv(file, {"b": str}).collect() == [{"b": "x"}]
    bare = env.read_csv(put("bare.csv", mark + b"1,x\n"), header=False)
    assert bare.collect() == [{"f0": 1, "f1": "x"}]
    for data in (b"a,b", b"a,b\n", mark + b"a,b"):
        nothing = env.read_csv(put("header.csv", data))
        assert nothing.schema.names == ["a", "b"]
        assert nothing.collect() == []
    assert env.read_json(put("mark.json", mark + b'{"a": 1}\n')).collect() == [{"a": 1}]
    with pytest.raises(SourceError, match=r"cannot be read.*bytes\.csv"):
        env.read_csv(put("bytes.csv", b"a\xff,b\n1,2\n"))


def test_text_is_of_any_encoding(env, tmp_path):
    for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "shift_jis", "cp1252"):
        (tmp_path / "a.txt").write_bytes("ab\r\n\ncd\n".encode(encoding))
        assert env.read_text(tmp_path / "a.txt", encoding).collect() == ["ab", "", "cd"]
    lines = ["é" * 70_000 + str(i) for i in range(80)]  # characters across blocks
    (tmp_path / "long.txt").write_text("\n".join(lines), encoding="utf-8")
    assert env.read_text(tmp_path / "long.txt").collect() == lines
    (tmp_path / "cut.txt").write_bytes("aé".encode()[:-1])
    with pytest.raises(SourceError, match=r"cut\.txt"):
        env.read_text(tmp_path / "cut.txt").collect()
    with pytest.raises(ConfigurationError, match="there is no text encoding 'nope'"):
        env.read_text(tmp_path / "a.txt", "nope")


@pytest.mark.parametrize(
    ("ending", "compress"),
    [
        (".gz", gzip.compress),
        (".gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),  # as of "cat a.gz b.gz"
        (".bz2", bz2.compress),
        (".zst", lambda data: pa.compress(data, "zstd", asbytes=True)),
        (".GZ", gzip.compress),
    ],
)
def test_compressed_files_are_decompressed(env, tmp_path, ending, compress):
    rows = [{"a": i, "b": f"x{i}"} for i in range(1000)]
    text = "".join(f"{r['a']},{r['b']}\n" for r in rows)
    (tmp_path / f"a.csv{ending}").write_bytes(compress(b"a,b\n" + text.encode()))
    (tmp_path / f"a.json{ending}").write_bytes(compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
    (tmp_path / f"a.txt{ending}").write_bytes(compress(text.encode()))
    (tmp_path / f"none.csv{ending}").write_bytes(compress(b"a,b"))
    assert env.read_csv(tmp_path / f"a.csv{ending}").filter(col("a") >= 0).collect() == rows
    assert env.read_json(tmp_path / f"a.json{ending}").collect() == rows
    assert env.read_text(tmp_path / f"a.txt{ending}").collect() == text.splitlines()
    assert env.read_csv(tmp_path / f"none.csv{ending}").collect() == []
    whole = (tmp_path / f"a.txt{ending}").read_bytes()
    (tmp_path / f"cut.txt{ending}").write_bytes(whole[:-20])
    with pytest.raises(SourceError, match=r"cut\.txt"):
        env.read_text(tmp_path / f"cut.txt{ending}").collect()


def test_types_come_from_the_first_file_that_is_not_empty(env, tmp_path):
    for form, text in (("csv", "a\n1\n"), ("json", '{"a": 1}\n')):
        (tmp_path / form).mkdir()
        (tmp_path / form / "1").touch()
        (tmp_path / form / "2").write_text(text)
        (tmp_path / form / "3").touch()
        assert getattr(env, f"read_{form}")(tmp_path / form).collect() == [{"a": 1}]


@pytest.mark.parametrize("is_optimized", [True, False])
def test_conditions_are_about_the_types_of_the_records(tmp_path, is_optimized):
    env = ExecutionEnvironment.get_execution_environment("local", 2, optimize=is_optimized)
    words = pa.array(["ua", "AA", "ua"]).dictionary_encode()
    pq.write_table(pa.table({"c": words, "n": [1, 2, 3]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"n": pa.array([4], pa.int32()), "c": ["ua"]}), tmp_path / "2.parquet")
    data = env.read_parquet(tmp_path, merge_schema=True).filter(col("c").isin(["ua"])).filter(col("n") > 1)
    assert sorted(r["n"] for r in data.collect()) == [3, 4]
    pq.write_table(pa.table({"a": ["1"]}), tmp_path / "text.parquet")
    pq.write_table(pa.table({"a": [2]}), tmp_path / "whole.parquet")
    files = [tmp_path / "text.parquet", tmp_path / "whole.parquet"]
    mixed = env.read_parquet(files, schema={"a": str}).filter(col("a") == "2")
    assert mixed.collect() == [{"a": "2"}]
    data = env.read_parquet(tmp_path / "1.parquet")
    pq.write_table(pa.table({"c": ["ua"]}), tmp_path / "1.parquet")
    for chosen in (data, data.select("n")):
        with pytest.raises(SourceError, match=r"(?s)column 'n' is not in the file.*1\.parquet"):
            chosen.collect()


def test_what_cannot_be_read_is_told_with_its_path(env, tmp_path):
    with pytest.raises(SourceError, match="there is no file"):
        env.read_text(tmp_path / "nothing*")
    (tmp_path / "bad.csv").write_text("a\n1\nx\n")
    with pytest.raises(SourceError, match=r"bad\.csv"):
        env.read_csv(tmp_path / "bad.csv", {"a": int}).collect()
    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "two.parquet")
    with pytest.raises(ProgramError, match="the file has several columns called 'a'"):
        env.read_parquet(tmp_path / "two.parquet")
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(SourceError, match=r"bad\.parquet"):
        env.read_parquet(tmp_path / "bad.parquet")


# ------------------------------------------------------------------------------------------------------------ sinks


@pytest.mark.parametrize("is_typed", [True, False])
def test_files_are_written_and_read_back(env, tmp_path, is_typed):
    rows = [{"k": i, "s": f"ä{i}\n"} for i in range(10)]
    data = env.from_collection(rows)
    data = data if is_typed else data.as_type(Types.PICKLED_BYTE_ARRAY())
    for form in ("csv", "json", "parquet"):
        getattr(data, f"write_as_{form}")(str(tmp_path / form))
    env.from_elements("a", "b").write_as_text(str(tmp_path / "text"))
    result = env.execute("writes")
    assert [len(paths) for paths in result.paths] == [3, 3, 3, 2]
    assert result.job_name == "writes"
    for form in ("csv", "json", "parquet"):
        read = getattr(env, f"read_{form}")(tmp_path / form)
        assert sorted(read.collect(), key=lambda r: r["k"]) == rows
        assert not (tmp_path / form / "_temporary").exists()
    assert sorted(env.read_text(tmp_path / "text").collect()) == ["a", "b"]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [None, 1, None, None, 3, None]),
        (pa.float64(), [0.5, None]),
        (pa.timestamp("us"), [None, dt.datetime.fromisoformat("2020-01-01")]),
        (pa.bool_(), [None, True]),
        (pa.string(), ["", "a\n\nb", '"', None]),
    ],
    ids=str,
)
def test_a_csv_file_of_one_column_has_a_line_for_null(env, tmp_path, kind, values):
    data = env.from_arrow(pa.table({"a": pa.array(values, kind)})).set_parallelism(1)
    data.write_as_csv(str(tmp_path / "x"))
    env.execute()
    found = [r["a"] for r in env.read_csv(tmp_path / "x", {"a": kind}).collect()]
    assert found == (["" if v is None else v for v in values] if kind == pa.string() else values)  # text has no null
    with open(tmp_path / "x" / "part-00000.csv", newline="") as file:
        assert len(list(csv.reader(file))) == len(values) + 1


def test_a_result_without_records_can_be_read(env, tmp_path):
    nothing = env.from_collection(ROWS).filter(col("k") > 9)
    for form in ("csv", "json", "parquet", "text"):
        getattr(nothing, f"write_as_{form}")(str(tmp_path / form), mode="overwrite")
    assert [len(paths) for paths in env.execute().paths] == [1, 1, 1, 1]
    assert env.read_parquet(tmp_path / "parquet").schema.equals(nothing.schema)
    assert env.read_csv(tmp_path / "csv").schema.names == ["k", "s"]
    for data in (
        env.read_parquet(tmp_path / "parquet"),
        env.read_csv(tmp_path / "csv"),
        env.read_text(tmp_path / "text"),
        env.read_json(tmp_path / "json", {"k": int}),
    ):
        assert data.collect() == []
    with pytest.raises(SourceError, match="the type of an empty file is not known"):
        env.read_json(tmp_path / "json")
    nothing.map(_same).write_as_parquet(str(tmp_path / "untyped"))
    assert env.execute().paths == ([],)
    with pytest.raises(SourceError, match=r"(?s)there is no file.*a job that has no records"):
        env.read_parquet(tmp_path / "untyped")


def test_numbers_that_json_does_not_have_are_null(env, tmp_path):
    rows = [{"t": math.nan, "u": [math.inf, {"v": -math.inf}], "w": 0.5}]
    env.from_collection(rows, Types.PICKLED_BYTE_ARRAY()).write_as_json(str(tmp_path / "x"))
    env.execute()
    assert json.loads((tmp_path / "x" / "part-00000.json").read_text()) == {
        "t": None,
        "u": [None, {"v": None}],
        "w": 0.5,
    }


def test_partitions_of_records_without_a_type_get_one_schema(env, tmp_path):
    def written(form, rows):
        data = env.from_collection(rows, Types.PICKLED_BYTE_ARRAY())
        getattr(data, f"write_as_{form}")(str(tmp_path / "x"), mode="overwrite")
        return env.execute().paths[0]

    rows = [{"a": 1, "b": None}, {"a": 2.5, "b": "x"}, {"a": None, "b": "y"}]
    paths = written("parquet", rows)
    assert [pq.read_schema(path).types for path in paths] == [[pa.float64(), pa.string()]] * 3
    assert env.read_parquet(tmp_path / "x").collect() == rows
    with pytest.raises(TypeMismatchError, match="partitions have columns of different types"):
        written("parquet", [{"a": 1}, {"a": "x"}])
    with pytest.raises(TypeMismatchError, match="partitions have columns of different types"):
        written("parquet", [{"a": 2**53 + 1}, {"a": 0.5}])
    assert env.read_parquet(tmp_path / "x").collect() == rows
    paths = written("parquet", [{"a": 1}, {"a": 2, "b": "x"}])
    assert env.read_parquet(paths).collect() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]
    with pytest.raises(TypeMismatchError, match="partitions have different columns"):
        written("csv", [{"a": 1}, {"a": 2, "b": "x"}])


def test_a_folder_that_is_not_empty_is_replaced_only_when_told_to(env, tmp_path):
    (tmp_path / "old.txt").write_text("x")
    env.from_elements(1).write_as_text(str(tmp_path))
    with pytest.raises(ConfigurationError, match="is not empty"):
        env.execute()
    env.from_elements(1).write_as_text(str(tmp_path), mode="overwrite")
    env.execute()
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.txt"]


def test_a_job_that_fails_leaves_no_file(env, tmp_path):
    env.from_elements(1, 2).write_as_text(str(tmp_path / "good"))
    env.from_elements(1, 0).map(lambda x: 1 / x).write_as_text(str(tmp_path / "bad"))
    with pytest.raises(UserFunctionError):
        env.execute()
    assert not [name for _folder, _folders, names in os.walk(tmp_path) for name in names]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_folder_that_the_job_reads_is_not_overwritten(env, tmp_path, form):
    folder = tmp_path / "in" / "deep"
    getattr(env.from_collection([{"a": 1}, {"a": 2}]), f"write_as_{form}")(str(folder))
    env.execute()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    link = tmp_path / "link"
    link.symlink_to(folder)
    for target in (folder, tmp_path / "in", f"file://{folder}", link):
        data = getattr(env, f"read_{form}")(folder).filter(col("a") > 1)
        data.iterate(2, lambda d: d.map(_same)).write_as_text(str(target), mode="overwrite")
        with pytest.raises(ConfigurationError, match="is also being read by this job"):
            env.execute()
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    getattr(env, f"read_{form}")(folder).write_as_text(f"{folder}-2", mode="overwrite")  # only the text begins alike
    env.execute()


def _same(value):
    return value


def test_old_files_are_there_until_all_new_ones_are_written(env, tmp_path):
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    for folder in (one, two):
        env.from_elements("old", "old", "old").write_as_text(folder)
    env.execute()
    (tmp_path / "one" / "below").mkdir()
    (tmp_path / "one" / "below" / "x.txt").write_text("old")

    def lines(folder):
        return env.read_text(folder).collect()

    env.from_elements("new").write_as_text(one, mode="overwrite")
    env.from_elements("new").write_as_text(two)
    with pytest.raises(ConfigurationError, match="is not empty"):
        env.execute()
    assert lines(one) == ["old"] * 4
    env.from_elements("new").write_as_text(one, mode="overwrite")
    env.from_elements(0).map(lambda x: 1 / x).write_as_text(two, mode="overwrite")
    with pytest.raises(UserFunctionError):
        env.execute()
    assert (lines(one), lines(two)) == (["old"] * 4, ["old"] * 3)
    env.from_elements("new").write_as_text(one, mode="overwrite")
    env.execute()
    assert lines(one) == ["new"]
    assert os.listdir(one) == ["part-00000.txt"]


def test_two_writes_of_one_job_have_folders_of_their_own(env, tmp_path):
    env.from_elements("a").write_as_text(str(tmp_path / "out"))
    for other in (tmp_path / "out", tmp_path / "out" / "below", tmp_path, f"file://{tmp_path}/out/"):
        with pytest.raises(ProgramError, match="two writes of one job cannot share a folder"):
            env.from_elements("b").write_as_csv(str(other), mode="overwrite")
    env.from_elements("b").write_as_text(str(tmp_path / "out2"))
    env.execute()
    env.from_elements("c").write_as_text(str(tmp_path / "out"), mode="overwrite")  # in a job of its own
    env.execute()
    assert env.read_text(tmp_path).collect() == ["c", "b"]


def test_a_file_is_no_folder_to_write_to(env, tmp_path):
    (tmp_path / "file").write_text("x")
    env.from_elements("a").write_as_text(str(tmp_path / "file"), mode="overwrite")
    with pytest.raises(ConfigurationError, match="it is a file"):
        env.execute()
    assert (tmp_path / "file").read_text() == "x"


def test_file_systems_are_those_of_checkpoints(env):
    for _ in range(2):
        env.from_collection(ROWS).write_as_parquet("memory://dataset-test/out", mode="overwrite")
        (paths,) = env.execute().paths
    assert paths[0].startswith("memory://dataset-test/out/part-")
    assert env.read_parquet("memory://dataset-test/out").count() == 3


# ---------------------------------------------------------------------------------------------------------- results


def test_results_come_as_lists_tables_frames_and_text(env, capsys):
    data = env.from_collection(ROWS)
    assert data.to_arrow().schema.names == ["k", "s"]
    assert data.to_pandas()["s"].tolist() == ["a", None, 'ü,\n"']
    objects = data.map(lambda r: r)
    assert objects.to_arrow().num_rows == 3
    env.from_elements(1, 2, 3).print()
    assert capsys.readouterr().out == "1\n2\n3\n"
    env.generate_sequence(1, 9).sort("value").print(limit=2)
    assert capsys.readouterr().out == "1\n2\n"


def test_a_result_becomes_a_bounded_stream(env):
    stream_env = StreamExecutionEnvironment.get_execution_environment(actor_system="local", parallelism=1)
    data = env.from_collection(ROWS).filter(col("k") > 0)
    stream = data.to_stream(stream_env).map(lambda r: r["k"] * 10)
    assert sorted(stream.execute_and_collect()) == [10, 20]
    objects = env.from_elements(1, 2).map(lambda x: x + 1).to_stream(stream_env)
    assert sorted(objects.execute_and_collect()) == [2, 3]
    stream_env.close()


# --------------------------------------------------------------------------------------------------------- settings


def test_the_executor_is_chosen_by_argument_or_variable(monkeypatch):
    monkeypatch.setenv("HEADRACE_EXECUTOR", "local")
    assert ExecutionEnvironment.get_execution_environment().from_elements(1).collect() == [1]
    with pytest.raises(ConfigurationError, match="executor must be one of spark, local; got 'flink'"):
        ExecutionEnvironment.get_execution_environment("flink")
    with pytest.raises(ConfigurationError, match="the local executor has no option 'num_executors'"):
        ExecutionEnvironment.get_execution_environment("local", num_executors=2)
    own = InProcessExecutor()
    with ExecutionEnvironment.get_execution_environment(own) as env:
        assert env.from_elements(1).count() == 1
    with pytest.raises(ProgramError, match="has been closed"):
        env = ExecutionEnvironment.get_execution_environment(own)
        env.from_elements(1).count()


def test_parallelism_is_that_of_the_environment(env):
    def sizes(data):
        return data.map_partition(lambda rows: [sum(1 for _ in rows)]).collect()

    env.set_parallelism(2)
    assert sizes(env.generate_sequence(1, 4)) == [2, 2]
    assert sizes(env.generate_sequence(1, 4).set_parallelism(4)) == [1, 1, 1, 1]


def test_nothing_to_execute_is_told(env):
    with pytest.raises(ProgramError, match="there is nothing to execute"):
        env.execute()
    with pytest.raises(ProgramError, match="no job has run"):
        env.get_last_job_execution_result()


def test_the_plan_of_writes_is_shown(env, tmp_path):
    env.from_elements(1).write_as_text(str(tmp_path / "x"))
    assert [n["operator"] for n in json.loads(env.get_execution_plan())["nodes"]] == ["TableSource", "WriteFiles"]


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda d: d.group_by("x"), "there is no field 'x'; the records are dicts of k: int64, s: string"),
        (lambda d: d.group_by(0), "takes positions for tuples only"),
        (lambda d: d.group_by(), "needs a key"),
        (lambda d: d.group_by("k", "s", "k"), "group_by: field 'k' is named twice"),
        (lambda d: d.group_by(col("k") + 1), "is computed"),
        (lambda d: d.sort("x"), "there is no field 'x'"),
        (lambda d: d.sort(), "sort needs fields"),
        (lambda d: d.sort("k", ascending="desc"), "sort: ascending must be True or False; got 'desc'"),
        (lambda d: d.sort("k", ascending=["desc"]), "sort: ascending must be True or False; got 'desc'"),
        (lambda d: d.sort("k", "s", ascending=[True]), "got 2 and 1"),
        (lambda d: d.sort_partition("k", "descending"), "sort_partition: ascending must be True or False"),
        (lambda d: d.group_by("k").sort_group("s", "desc"), "sort_group: ascending must be True or False"),
        (lambda d: d.partition_by_range("k", ascending="desc"), "partition_by_range: ascending must be True"),
        (lambda d: d.co_group(d).sort_first_group("s", "asc"), "sort_first_group: ascending must be True"),
        (lambda d: d.project("k", 0), "names or positions, not both"),
        (lambda d: d.select(col("k") + 1), "expressions that have a name"),
        (lambda d: d.select("x"), "column 'x' does not exist"),
        (lambda d: d.group_by("k").sum("s"), "is for numbers; got string"),
        (lambda d: d.group_by("k").aggregate(k=None), "must be an aggregate"),
        (lambda d: d.group_by("k").sort_group("s").reduce(lambda a, b: a), "sort_group would mean nothing"),
        (lambda d: d.group_by("k").sort_group("s").max("v"), "sort_group would mean nothing"),
        (lambda d: d.group_by("k").sort_group("s").min_by("v"), "sort_group would mean nothing"),
        (lambda d: d.first(0), "at least 1"),
        (lambda d: d.join(d).where("k").equal_to("s"), "are never equal"),
        (lambda d: d.join(d).where("k", "s").equal_to("k"), "differ in the number of fields"),
        (lambda d: d.join(d, how="outer"), "how must be one of inner, left, right, full"),
        (lambda d: d.join(d).equal_to("k"), "comes behind where"),
        (lambda d: d.union(d.project("k")), "a union is of data sets of one type"),
        (lambda d: d.filter(col("k") + 1), "a condition that is true or false"),
        (lambda d: d.map(5), "must be callable"),
        (lambda d: d.filter(col("k") > "x"), "cannot be applied"),
        (lambda d: d.union(5), "a data set is needed"),
        (lambda d: d.rebalance().with_broadcast_set(d, "x"), "has no function"),
        (lambda d: d.partition_custom(5, "k"), "a partitioner is"),
    ],
)
def test_mistakes_are_refused_where_they_are_written(env, build, text):
    data = env.from_collection(ROWS)
    with pytest.raises((ProgramError, TypeMismatchError, ConfigurationError), match=text.replace("(", r"\(")):
        build(data)


def test_nested_fields_are_no_keys(env):
    data = env.from_arrow(pa.table({"a": [[1]]}))
    with pytest.raises(TypeMismatchError, match="cannot be a key"):
        data.group_by("a")
    with pytest.raises(TypeMismatchError, match="cannot be written as csv"):
        data.write_as_csv("x")


def test_an_operator_is_changed_only_before_it_is_used(env):
    data = env.from_elements(1).map(lambda x: x)
    data.map(lambda x: x)
    with pytest.raises(ProgramError, match="cannot be changed any more"):
        data.name("late")


def test_environments_are_not_mixed(env):
    other = ExecutionEnvironment.get_execution_environment("local")
    with pytest.raises(ProgramError, match="different environments"):
        env.from_elements(1).union(other.from_elements(1))


def test_fields_that_objects_do_not_have_are_told_when_they_run(env):
    data = env.from_collection([{"a": 1}]).map(lambda r: r)
    with pytest.raises(TypeMismatchError, match="key field 'x' is not in the record"):
        data.group_by("x").count().collect()
    with pytest.raises(TypeMismatchError, match="sort field 'x' is not in the record"):
        data.sort("x").collect()


def test_the_local_executor_loads_neither_ray_nor_spark():
    code = (
        "from headrace import ExecutionEnvironment\n"
        "env = ExecutionEnvironment.get_execution_environment('local')\n"
        "words = env.from_elements('a b', 'b').flat_map(lambda t: [(w, 1) for w in t.split()]).group_by(0).sum(1)\n"
        "assert sorted(words.collect()) == [('a', 1), ('b', 2)]\n"
        "import sys; print(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=True
    )
    assert not {"ray", "pyspark", "raydp", "headrace.actors.ray", "headrace.actors.spark"} & set(done.stdout.split())


def test_plans_may_be_long(env):
    data = env.from_elements(0)
    for _ in range(600):
        data = data.map(_plus_one)
    assert data.collect() == [600]
    for _ in range(12):
        data = data.union(data)
    assert data.count() == 4096


def _plus_one(x):
    return x + 1


def test_a_function_that_cannot_be_sent_is_told(env):
    class Locked(MapFunction):
        def __init__(self):
            self.lock = threading.Lock()

        def map(self, value):
            return value

    with pytest.raises(ProgramError, match="a function cannot be sent to a subtask"):
        env.from_elements(1).map(Locked()).collect()
