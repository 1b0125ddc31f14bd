"""SequenceFiles of data sets: written and read, in ranges of bytes, and with the programs of Hadoop."""

from __future__ import annotations

from unittest import mock

import pyarrow as pa
import pytest
from sequence_pairs import pairs_of

from headrace import ConfigurationError, ExecutionEnvironment, SourceError, TypeMismatchError, col
from headrace.dataset import HadoopJob, Mapper, Reducer
from headrace.dataset.files import reading


class Tokens(Mapper):
    def map(self, key, value):
        return [(word, 1) for word in value.split()]


class Sums(Reducer):
    def reduce(self, key, values):
        yield key, sum(values)


@pytest.mark.parametrize("options", [{}, {"compression": "record", "codec": "snappy"}, {"compression": "block"}])
def test_pairs_come_back_from_files_that_are_read_in_ranges(env, tmp_path, options):
    rows = pairs_of("LongWritable", "Text", 9_000)
    env.from_collection(rows).write_as_sequence_file(str(tmp_path / "out"), **options)
    env.execute()
    paths = sorted((tmp_path / "out").iterdir())
    assert [path.suffix for path in paths] == [".seq"] * 3
    with mock.patch.object(reading, "_RANGE_BYTES", 30_000):
        data = env.read_sequence_file(str(tmp_path / "out"))
        assert sorted(data.collect()) == sorted(rows)
        assert sorted(data.filter(col("f0") > 0).project(1).collect()) == sorted((text,) for n, text in rows if n > 0)
        assert data.count() == 9_000


def test_a_word_count_from_a_file_of_hadoop_to_another(env, tmp_path):
    lines = [(n, f"to be {n % 3}") for n in range(30)]
    env.from_collection(lines).write_as_sequence_file(str(tmp_path / "in"), key="VLongWritable")
    env.execute()
    counted = HadoopJob(Tokens(), Sums(), Sums()).apply(env.read_sequence_file(str(tmp_path / "in")))
    counted.write_as_sequence_file(str(tmp_path / "out"), value="IntWritable")
    env.execute()
    found = env.read_sequence_file(str(tmp_path / "out"))
    assert found.schema.types == [pa.string(), pa.int32()]
    assert dict(found.collect()) == {"to": 30, "be": 30, "0": 10, "1": 10, "2": 10}


def test_what_is_no_pair_is_refused(tmp_path):
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    with pytest.raises(TypeMismatchError, match="pairs of key and value"):
        env.from_collection([1, 2]).write_as_sequence_file(str(tmp_path))
    with pytest.raises(ConfigurationError, match="Tex is no class"):
        env.from_collection([(1, 2)]).write_as_sequence_file(str(tmp_path), key="Tex")


def test_files_of_other_classes_and_files_that_are_none_are_named(tmp_path):
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    for name, value in (("a", 1), ("b", "x")):
        env.from_collection([(1, value)]).write_as_sequence_file(str(tmp_path / name))
    env.execute()
    with pytest.raises(SourceError, match=r"(?s)column 'f1' is string, and int64 in .*hint: read files of other"):
        env.read_sequence_file([str(tmp_path / "a"), str(tmp_path / "b")])
    (tmp_path / "c").write_text("hello")
    with pytest.raises(SourceError, match=r"(?s)no SequenceFile: it begins with b'hell'.*/c"):
        env.read_sequence_file(str(tmp_path / "c"))


def test_a_bad_record_is_named_by_its_byte(tmp_path):
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    env.from_collection([("a", 1), ("b", 2)]).write_as_sequence_file(str(tmp_path / "out"))
    env.execute()
    [path] = (tmp_path / "out").iterdir()
    path.write_bytes(path.read_bytes().replace(b"\1b", b"\2b"))
    with pytest.raises(SourceError, match=r"Text says that 2 bytes follow, and 1 do.*byte \d+.*part-00000"):
        env.read_sequence_file(str(path)).collect()
