"""HDFS: what a real name node does, also as Hadoop's own shell sees it."""

from __future__ import annotations

import io
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hdfs_server import hdfs_directory, hdfs_server  # noqa: F401 - fixtures

from headrace.state.errors import AlreadyExistsError, ConfigurationError, StorageError
from headrace.state.files import hdfs
from headrace.state.files.filesystem import filesystem_for


@pytest.fixture
def place(hdfs_directory):  # noqa: F811
    return filesystem_for(f"{hdfs_directory}/")


def test_hadoops_shell_sees_the_same(place, hdfs_server):  # noqa: F811
    fs, root = place
    names = [f"{root}/{name}" for name in ("k=v%3A1/x", "a b", "ü", "a#b", ".hidden", "a+b&c")]
    for name in names:
        fs.create_exclusive(name, b"text")
    assert [path for path, _ in fs.list_files(root)] == sorted(names)
    listed = hdfs_server.seen_by_java("-ls", "-R", "-C", root).splitlines()
    assert sorted(listed) == sorted([*names, f"{root}/k=v%3A1"])
    assert hdfs_server.seen_by_java("-cat", f"{root}/k=v%3A1/x") == "text"


def test_files_are_streamed_and_read_from_anywhere(place):
    fs, root = place
    piece = bytes(range(256)) * 4096
    with fs.open_output(f"{root}/large") as file:
        for _ in range(5):
            file.write(piece)
        assert file.tell() == 5 << 20
    with fs.open_input(f"{root}/large") as file:
        file.seek(-300, io.SEEK_END)
        assert file.read() == piece[-300:]
        file.seek((3 << 20) + 7)
        assert file.read(1 << 20) == (piece * 2)[7 : (1 << 20) + 7]
    with pytest.raises(StorageError, match="more than the 1,000 bytes"):
        fs.read_bytes(f"{root}/large", 1_000)
    table = pa.table({"n": range(10_000)})
    with fs.open_output(f"{root}/table") as file:
        pq.write_table(table, file)
    with fs.open_input(f"{root}/table") as file:
        assert pq.read_table(file).equals(table)


def test_a_create_whose_answer_got_lost_is_its_own(place, monkeypatch):
    """The client asks the name node again, which has renamed the file before."""
    fs, root = place
    client = fs._client

    class Forgetful:
        def __getattr__(self, name):
            return getattr(client, name)

        def rename(self, *args, **options):
            client.rename(*args, **options)
            client.rename(*args, **options)

    monkeypatch.setattr(fs, "_client", Forgetful())
    fs.create_exclusive(f"{root}/claim", b"mine")
    monkeypatch.undo()
    assert fs.list_files(root) == [(f"{root}/claim", 4)]
    with pytest.raises(AlreadyExistsError):
        fs.create_exclusive(f"{root}/claim", b"mine")


def test_errors_have_no_stack_of_java(place):
    fs, root = place
    fs.write_bytes(f"{root}/file", b"")
    with pytest.raises(StorageError) as caught:
        fs.write_bytes(f"{root}/file/below", b"x")
    assert caught.value.context == {"operation": "write", "path": f"{root}/file/below"}
    assert "\n" not in str(caught.value)


def test_a_name_node_that_nobody_knows_is_named(monkeypatch, tmp_path):
    pytest.importorskip("hdfs_native")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"cannot use 'hdfs://'.*\n.*HADOOP_CONF_DIR"):
        filesystem_for("hdfs:///x")


def test_the_missing_client_is_named(monkeypatch):
    hdfs._package.cache_clear()
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'headrace\[hdfs\]'"):
        filesystem_for("hdfs://host/x")
    hdfs._package.cache_clear()
