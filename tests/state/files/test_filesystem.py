"""File systems: one contract suite over all kinds of them; races and crashes of the local one."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from pathlib import Path

import fsspec
import pytest
from azure_server import azure_container, azure_server  # noqa: F401 - fixtures
from fsspec.implementations.local import LocalFileSystem as LocalFsspec
from gcs_server import gcs_bucket, gcs_server  # noqa: F401 - fixtures
from hdfs_server import hdfs_directory, hdfs_server  # noqa: F401 - fixtures
from pyarrow import fs as arrow_fs
from s3_server import s3_bucket, s3_server  # noqa: F401 - fixtures

from headrace.state.errors import AlreadyExistsError, ConfigurationError, NotFoundError, StorageError
from headrace.state.files.arrow import ArrowFileSystem
from headrace.state.files.filesystem import absolute_uri, filesystem_for, join_confined, join_uri, place_of
from headrace.state.files.local import LocalFileSystem
from headrace.state.files.memory import MemoryFileSystem


class Shelf(LocalFsspec):
    """The local disk under a scheme that only fsspec knows."""

    protocol = "shelf"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("shelf://"))


fsspec.register_implementation("shelf", Shelf)


S3, HDFS, AZURE, GCS = (pytest.param(name, marks=pytest.mark.lane(name)) for name in ("s3", "hdfs", "azure", "gcs"))


@pytest.fixture(params=["local", "memory", "arrow", "fsspec", S3, HDFS, AZURE, GCS])
def place(request, tmp_path):
    """A file system and an empty directory in it."""
    if request.param == "s3":
        return filesystem_for(f"{request.getfixturevalue('s3_bucket')}/root")
    if request.param == "azure":
        return filesystem_for(f"{request.getfixturevalue('azure_container')}/root")
    if request.param == "gcs":
        return filesystem_for(f"{request.getfixturevalue('gcs_bucket')}/root")
    if request.param == "hdfs":
        return filesystem_for(request.getfixturevalue("hdfs_directory"))
    if request.param == "local":
        return LocalFileSystem(), str(tmp_path)
    if request.param == "memory":
        return MemoryFileSystem(), "root"
    if request.param == "fsspec":
        return filesystem_for(f"shelf://{tmp_path}")
    return ArrowFileSystem(arrow_fs.LocalFileSystem()), str(tmp_path)


def test_what_was_written_is_read(place):
    fs, root = place
    path = f"{root}/a/b/file"
    fs.write_bytes(path, b"one")
    fs.write_bytes(path, b"three")
    assert fs.read_bytes(path) == b"three"
    assert fs.size(path) == 5
    assert fs.exists(path)
    assert not fs.exists(f"{root}/a/b")
    assert fs.list_files(root) == [(path, 5)]


def test_an_exclusive_create_succeeds_once(place):
    fs, root = place
    fs.create_exclusive(f"{root}/x/claim", b"first")
    with pytest.raises(AlreadyExistsError) as caught:
        fs.create_exclusive(f"{root}/x/claim", b"second")
    assert caught.value.context["path"] == f"{root}/x/claim"
    assert fs.read_bytes(f"{root}/x/claim") == b"first"
    assert fs.list_files(root) == [(f"{root}/x/claim", 5)]


def test_a_rename_moves_and_replaces(place):
    fs, root = place
    fs.write_bytes(f"{root}/a", b"new")
    fs.write_bytes(f"{root}/d/b", b"old")
    fs.rename(f"{root}/a", f"{root}/d/b")
    assert fs.list_files(root) == [(f"{root}/d/b", 3)]
    fs.rename(f"{root}/d/b", f"{root}/e/f/b")
    assert fs.read_bytes(f"{root}/e/f/b") == b"new"


def test_files_are_listed_at_any_depth_and_by_whole_names(place):
    fs, root = place
    for name in ("dir/one", "dir/sub/two", "directory/three"):
        fs.write_bytes(f"{root}/{name}", b"x")
    assert [path for path, _ in fs.list_files(f"{root}/dir")] == [f"{root}/dir/one", f"{root}/dir/sub/two"]
    assert fs.list_files(f"{root}/nowhere") == []


def test_deleting_what_is_not_there_does_nothing(place):
    fs, root = place
    fs.delete(f"{root}/file")
    fs.delete_directory(f"{root}/dir")
    fs.write_bytes(f"{root}/dir/sub/file", b"x")
    fs.delete(f"{root}/dir/sub/file")
    assert fs.list_files(root) == []
    fs.write_bytes(f"{root}/dir/sub/file", b"x")
    fs.delete_directory(f"{root}/dir")
    assert fs.list_files(root) == []


def test_a_missing_file_is_named(place):
    fs, root = place
    path = f"{root}/missing"
    for call in (fs.read_bytes, fs.size, fs.open_input):
        with pytest.raises(NotFoundError) as caught:
            call(path)
        assert caught.value.context["path"] == path
    with pytest.raises(NotFoundError):
        fs.rename(path, f"{root}/other")


def test_files_are_read_and_written_as_streams(place):
    fs, root = place
    with fs.open_output(f"{root}/a/stream") as file:
        file.write(b"abc")
        file.write(b"def")
    with fs.open_input(f"{root}/a/stream") as file:
        file.seek(2)
        assert file.read(2) == b"cd"
        assert file.read() == b"ef"
    assert fs.size(f"{root}/a/stream") == 6


@pytest.mark.parametrize("place", ["local", "memory", S3, HDFS], indirect=True)
def test_of_racing_creates_one_wins(place):
    fs, root = place
    barrier = threading.Barrier(8)
    winners = []

    def race(i):
        barrier.wait()
        try:
            fs.create_exclusive(f"{root}/epochs/7", b"%d" % i)
            winners.append(i)
        except AlreadyExistsError:
            pass

    threads = [threading.Thread(target=race, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert fs.read_bytes(f"{root}/epochs/7") == b"%d" % winners[0]
    assert len(fs.list_files(root)) == 1


class Crash(BaseException):
    """The process dies: nothing may handle it."""


@pytest.mark.parametrize("operation", ["write_bytes", "create_exclusive"])
@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
def test_a_crash_never_leaves_half_a_file_under_its_name(monkeypatch, tmp_path, operation, call):
    """At every flush, link and rename in turn; the temporary file is left as it is, as a dead process would."""
    path = str(tmp_path / "file")
    real, real_unlink = getattr(os, call), os.unlink
    for fatal in range(4):
        seen = 0

        def die(*args, fatal=fatal):
            nonlocal seen
            seen += 1
            if seen > fatal:
                raise Crash
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, die)
            patch.setattr(os, "unlink", lambda path: None)
            with contextlib.suppress(Crash):
                getattr(LocalFileSystem(), operation)(path, b"whole")
        if os.path.exists(path):
            assert LocalFileSystem().read_bytes(path) == b"whole"
            real_unlink(path)


@pytest.mark.parametrize("operation", ["write_bytes", "create_exclusive"])
def test_a_name_appears_only_once_the_content_is_flushed_and_is_flushed_itself(monkeypatch, tmp_path, operation):
    path, directory = str(tmp_path / "file"), os.stat(tmp_path).st_ino
    real, flushed = os.fsync, []

    def note(descriptor):
        status = os.fstat(descriptor)
        flushed.append(("directory" if status.st_ino == directory else "content", os.path.exists(path)))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    getattr(LocalFileSystem(), operation)(path, b"whole")
    assert flushed == [("content", False), ("directory", True)]


def test_without_hard_links_one_still_wins(monkeypatch, tmp_path):
    def refuse(*_args):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    fs, path = LocalFileSystem(), str(tmp_path / "claim")
    fs.create_exclusive(path, b"first")
    with pytest.raises(AlreadyExistsError):
        fs.create_exclusive(path, b"second")
    assert fs.list_files(str(tmp_path)) == [(path, 5)]


def test_a_directory_is_listed_as_it_was_at_one_moment(monkeypatch, tmp_path):
    """A process that stops between reading the names and looking at a file sees that one or what took its place."""
    fs, real = LocalFileSystem(), os.stat
    old, new = str(tmp_path / "epochs/5"), str(tmp_path / "epochs/6")
    fs.write_bytes(old, b"five")
    os.symlink("nowhere", tmp_path / "epochs/link")

    def stop_before(path, **options):
        if path == old and not os.path.exists(new):
            monkeypatch.setattr(os, "stat", real)
            fs.write_bytes(new, b"six")
            fs.delete(old)
        return real(path, **options)

    monkeypatch.setattr(os, "stat", stop_before)
    assert fs.list_files(str(tmp_path)) == [(new, 3)]
    assert not os.path.exists(old)


def test_a_create_that_lost_against_a_file_deleted_meanwhile_says_that_it_lost(monkeypatch, tmp_path):
    fs, path, real = LocalFileSystem(), str(tmp_path / "claim"), os.link
    fs.create_exclusive(path, b"first")

    def delete_behind(*args):
        try:
            real(*args)
        finally:
            fs.delete(path)

    monkeypatch.setattr(os, "link", delete_behind)
    with pytest.raises(AlreadyExistsError):
        fs.create_exclusive(path, b"second")


def test_the_operating_systems_errors_name_operation_and_path(tmp_path):
    fs = LocalFileSystem()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        fs.write_bytes(f"{tmp_path}/file/below", b"x")
    assert caught.value.context == {"operation": "write", "path": f"{tmp_path}/file/below"}
    with pytest.raises(StorageError):
        fs.read_bytes(str(tmp_path))


def test_a_uri_finds_its_file_system(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert filesystem_for("sub/dir/")[1] == f"{tmp_path}/sub/dir"
    assert filesystem_for(f"file://{tmp_path}/x/")[1] == f"{tmp_path}/x"
    assert isinstance(filesystem_for(str(tmp_path))[0], LocalFileSystem)
    store, path = filesystem_for("memory://uri-test/a/b/")
    assert (store, path) == (MemoryFileSystem.named("uri-test"), "a/b")
    MemoryFileSystem.forget("uri-test")
    assert filesystem_for("memory://uri-test/a")[0] is not store
    MemoryFileSystem.forget("uri-test")
    mock, path = filesystem_for("mock://bucket/dir")
    assert isinstance(mock, ArrowFileSystem)
    mock.create_exclusive(f"{path}/x", b"1")
    assert mock.list_files(path) == [(f"{path}/x", 1)]
    for uri in ("", "file://host/x", "nonsense://x"):
        with pytest.raises(ConfigurationError):
            filesystem_for(uri)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "..", "a/../b", "a//b", "./a", "a/", "a\\..\\b", "a\0b"])
def test_a_path_never_leaves_its_root(path):
    with pytest.raises(StorageError, match="below its root"):
        join_confined("/root", path)


def test_paths_are_joined_before_the_query():
    assert join_confined("/root/", "a/b") == "/root/a/b"
    assert join_confined("", "a") == "a"
    assert join_uri("s3://bucket/dir/?region=x", "job") == "s3://bucket/dir/job?region=x"
    assert join_uri("/dir/", "job") == "/dir/job"


def test_fsspec_remembers_no_listing(tmp_path):
    """Fencing asks for what is there now, not for what this process has seen before."""
    fs, _ = filesystem_for(f"shelf://{tmp_path}")
    assert isinstance(fs, ArrowFileSystem)
    assert fs._fs.handler.fs.dircache.use_listings_cache is False


def test_a_file_in_memory_that_was_never_closed_is_never_there():
    """A simulated process may die with a file open, and its memory be collected in the middle of another one's work."""
    store = MemoryFileSystem()
    file = store.open_output("left")
    file.write(b"open")
    del file
    gc.collect()
    assert store.files == {}


def test_faults_of_memory_come_before_and_after_the_deed():
    fs = MemoryFileSystem()
    for operation, there in (("create", False), ("create.done", True)):

        def fault(name, path, operation=operation):
            if name == operation:
                message = "injected"
                raise StorageError(message, path=path)

        fs.fault = fault
        with pytest.raises(StorageError):
            fs.create_exclusive("a", b"1")
        fs.fault = None
        assert fs.exists("a") == there


def test_writers_may_make_the_same_directories_at_the_same_time(tmp_path):
    """A check before the making once saw the directory that another writer had just made, and took it for a file."""
    fs = LocalFileSystem()
    start = threading.Barrier(4)
    failures = []

    def write(writer):
        for i in range(100):
            start.wait()
            try:
                fs.write_bytes(f"{tmp_path}/{i}/a/b/{writer}", b"x")
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_places_are_compared_by_their_parts(tmp_path):
    inside = place_of(str(tmp_path / "a" / "b"))
    assert inside[:-1] == place_of(str(tmp_path / "a")) == place_of(f"file://{tmp_path}/a/")
    assert place_of(str(tmp_path / "ab"))[: len(inside) - 1] != inside[:-1]
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert place_of(str(tmp_path / "link" / "b")) == inside
    assert place_of("s3://bucket/a/b/?region=x") == ("s3", "bucket", "a", "b")
    assert place_of("memory://one/a") != place_of("memory://two/a")


def test_a_place_is_made_absolute_and_a_uri_that_lost_a_slash_is_not_taken_for_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute_uri("here/../there") == str(tmp_path / "there")
    assert absolute_uri("./s3:/folder") == str(tmp_path / "s3:/folder")
    assert absolute_uri("s3://bucket/x?region=y") == "s3://bucket/x?region=y"
    assert absolute_uri("file:/tmp/x") == absolute_uri(Path("file:///tmp/x")) == "file:///tmp/x"
    assert filesystem_for("file:/tmp/x")[1] == "/tmp/x"
    for place, what in (("", "empty"), (Path("s3://bucket/x"), "two slashes"), ("hdfs:/x", "two slashes")):
        with pytest.raises(ConfigurationError, match=what):
            absolute_uri(place)


def test_a_store_may_be_forgotten_while_another_is_made():
    """The garbage collector forgets the stores of programs that nobody holds any more, at any moment of any thread."""

    class Collecting(MemoryFileSystem):
        def __init__(self):
            MemoryFileSystem.forget("of a program that has ended")
            super().__init__()

    thread = threading.Thread(target=Collecting.named, args=("of the next one",), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    MemoryFileSystem.forget("of the next one")
