"""Files of text are read in blocks: how large these are does not show in the records, and a bad record is named by its
line.
"""

from __future__ import annotations

import gzip
import json
from unittest import mock

import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import ExecutionEnvironment, SourceError, TypeMismatchError, UserFunctionError
from headrace.engine.columns.records import Batch
from headrace.formats import blocks, csv_records
from headrace.formats.text import TextEncoder

ROWS = st.lists(
    st.fixed_dictionaries(
        {"n": st.integers(-(2**63), 2**63 - 1), "t": st.text(st.characters(codec="utf-8", exclude_characters="\r\0"))}
    ),
    max_size=30,
)
TYPES = {"n": int, "t": str}


@settings(max_examples=examples(60))
@given(ROWS, st.integers(1, 200), st.sampled_from(["csv", "json", "text"]), st.booleans())
def test_records_do_not_depend_on_blocks(tmp_path_factory, rows, block, form, is_compressed):
    folder = tmp_path_factory.mktemp("blocks")
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    if form == "text":
        rows = [row["t"].replace("\n", "") for row in rows]
        records = env.from_collection(rows, pa.string())
    else:
        records = env.from_collection(rows, pa.schema([("n", pa.int64()), ("t", pa.string())]))
    getattr(records, f"write_as_{form}")(str(folder))
    env.execute()
    (path,) = folder.iterdir()
    if is_compressed:
        packed = path.with_name(path.name + ".gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path = packed
    read = {"csv": lambda: env.read_csv(str(path), TYPES), "json": lambda: env.read_json(str(path), TYPES)}
    with mock.patch.object(blocks, "BLOCK_BYTES", block):
        assert read.get(form, lambda: env.read_text(str(path)))().collect() == rows


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_bad_record_is_named_by_its_line(tmp_path, form):
    path = tmp_path / f"a.{form}"
    lines = [json.dumps({"n": n}) if form == "json" else str(n) for n in range(100)]
    lines[70] = '{"n": "x"}' if form == "json" else "x"
    path.write_text("\n".join((["n"] if form == "csv" else []) + lines) + "\n")
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    data = getattr(env, f"read_{form}")(str(path), {"n": int})
    with (
        mock.patch.object(blocks, "BLOCK_BYTES", 64),
        pytest.raises(SourceError, match="a file cannot be read") as caught,
    ):
        data.collect()
    if form == "csv":
        assert "Row #72" in str(caught.value)
    else:
        assert caught.value.context["position"] == "line 71"
    assert caught.value.context["path"] == str(path)


def test_a_line_of_json_holds_one_value(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"n": 1} {"n": 2}\n{"n": 3}\n')
    data = ExecutionEnvironment.get_execution_environment("local", 1).read_json(str(path), {"n": int})
    with pytest.raises(SourceError, match="a line must hold one json object"):
        data.collect()


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"a\tb\n\t\n", [{"a": "", "b": ""}]),
        (b"a\tb\r1\tx\r2\ty\r", [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]),
        (b'a\tb"\n1\tx\n2\ty\n', [{"a": "1"}, {"a": "2"}]),
        (b'a\tb\n5" pipe\t1\n"x\ny"\t2\n', [{"a": '5" pipe', "b": "1"}, {"a": "x\ny", "b": "2"}]),
        (b"\na\tb\n1\tx\n", [{"a": "1", "b": "x"}]),
        (b"a\tb\t\t\n1\tx\t2\t3\n", [{"a": "1", "b": "x"}]),
        (b"a\tb\n", []),
        (b"a\tb", []),
    ],
)
def test_csv_of_many_hands(tmp_path, data, rows):
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    types = dict.fromkeys(rows[0] if rows else ("a", "b"), str)
    assert env.read_csv(str(path), types, delimiter="\t").collect() == rows


@pytest.mark.parametrize("name", ["\r", "a\rb", "\ufeffa", 'a"b', "a,b"])
def test_any_name_of_a_column_comes_back_from_csv(tmp_path, name):
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    env.from_arrow(pa.table({name: [1, 2]})).write_as_csv(str(tmp_path / "out"))
    env.execute()
    assert env.read_csv(str(tmp_path / "out")).collect() == [{name: 1}, {name: 2}]


def test_text_whose_characters_depend_on_those_before_is_decoded_as_a_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(("안녕\n" * 100).encode("iso2022_kr"))
    with mock.patch.object(blocks, "BLOCK_BYTES", 32):
        data = ExecutionEnvironment.get_execution_environment("local", 1).read_text(str(path), encoding="iso2022_kr")
        assert data.collect() == ["안녕"] * 100


def test_objects_without_fields_are_records(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("{}\n{}\n")
    assert ExecutionEnvironment.get_execution_environment("local", 1).read_json(str(path)).count() == 2


@pytest.mark.parametrize("form", ["csv", "json", "text"])
def test_a_byte_order_mark_is_no_part_of_the_first_record(tmp_path, form):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + {"csv": b"n\n1\n", "json": b'{"n": 1}\n', "text": b"n=1\n"}[form])
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    data = env.read_text(str(path)) if form == "text" else getattr(env, f"read_{form}")(str(path))
    assert data.collect() == (["n=1"] if form == "text" else [{"n": 1}])


def test_blank_fields_are_records_and_blank_lines_are_none():
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    form = csv_records.CsvFormat(["a", "b"], schema, "\t")
    assert form.decode(b"\t\n\t\n").rows == [{"a": "", "b": ""}] * 2
    assert form.decode(b"\n\r\n").rows == []
    assert csv_records.infer_csv_schema(b"\t\n", ["a", "b"], "\t", None).names == ["a", "b"]


@pytest.mark.parametrize("form", ["csv", "json", "text"])
def test_text_that_no_file_can_hold_is_told_with_its_place(tmp_path, form):
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    rows = ["a", "b\ud800"] if form == "text" else [{"t": "a"}, {"t": "b\ud800"}]
    getattr(env.from_collection(rows), f"write_as_{form}")(str(tmp_path / "out"))
    with pytest.raises(TypeMismatchError, match="surrogates not allowed") as caught:
        env.execute()
    assert caught.value.context["row"] == 1
    assert str(tmp_path / "out") in caught.value.context["path"]
    assert caught.value.context["operator"] == f"write {form}"


@pytest.mark.parametrize("rows", [["", "ab", "é"], ["", "", "aé", "é"], ["\n\n", "", "é"]])
def test_an_encoding_without_a_character_names_the_record(rows):
    with pytest.raises(TypeMismatchError, match=r"cannot write 'é+' as ascii.*row 2"):
        TextEncoder("ascii").encode(Batch.of_rows(rows))


def test_a_type_that_json_is_not_read_into_is_told_with_its_place(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"m": {"a": 1}}\n')
    types = pa.schema([("m", pa.map_(pa.string(), pa.int64()))])
    with pytest.raises(SourceError, match="map<string, int64> is not supported") as caught:
        ExecutionEnvironment.get_execution_environment("local", 1).read_json(str(path), types).collect()
    assert caught.value.context == {"position": "line 1", "path": str(path)}


def test_objects_without_a_text_are_the_programs_fault(tmp_path):
    class NoText:
        def __repr__(self):
            raise SystemExit(3)

    env = ExecutionEnvironment.get_execution_environment("local", 1)
    env.from_collection([1]).map(lambda _n: NoText()).write_as_text(str(tmp_path / "out"))
    with pytest.raises(UserFunctionError, match=r"raised SystemExit: 3.*text of"):
        env.execute()
