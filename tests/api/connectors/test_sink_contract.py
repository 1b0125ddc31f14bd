"""Families: contract (every exactly-once sink passes the same checks) and mutation (each check can fail)."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys

import cloudpickle
import pytest
from azure_server import ACCOUNT, KEY, azure_container, azure_server  # noqa: F401 - fixtures
from gcs_server import gcs_bucket, gcs_server  # noqa: F401 - fixtures
from hdfs_server import hdfs_directory, hdfs_server  # noqa: F401 - fixtures
from pyarrow import fs as arrow_fs
from s3_server import s3_bucket, s3_server  # noqa: F401 - fixtures

from headrace import Committer, PossibleLossError, SinkError, SinkWriter
from headrace.connectors.files import FileSink
from headrace.connectors.sql import SqlSink
from headrace.testing.sink_contract import OWNED_SINK_CONTRACT, SINK_CONTRACT, SinkSubject

cloudpickle.register_pickle_by_value(sys.modules[__name__])


# ------------------------------------------------------------------------------- a sink as somebody else would write it
class TextFileSink(SinkWriter, Committer):
    """One text file per subtask and checkpoint, moved into place by the commit: sink, writer and committer in one."""

    def __init__(self, directory):
        self.directory = str(directory)

    def create_writer(self):
        return TextFileSink(self.directory)

    create_committer = create_writer

    def open(self, context):
        self.name = f"{context.job}-{context.attempt}-{context.subtask}"
        self.lines = []

    def write(self, batch):
        self.lines += [json.dumps(row) for row in batch.rows]

    def prepare(self, checkpoint_id):
        if not self.lines:
            return []
        name = f"{self.name}-{checkpoint_id}"
        with open(f"{self.directory}/.{name}", "w") as file:
            file.write("\n".join(self.lines))
            os.fsync(file.fileno())
        self.lines = []
        return [name]

    def commit(self, name):
        try:
            os.rename(f"{self.directory}/.{name}", f"{self.directory}/{name}")
        except FileNotFoundError:
            if not os.path.exists(f"{self.directory}/{name}"):
                message = "possible loss"
                raise PossibleLossError(message, file=name) from None


def numbers_in(directory):
    names = [name for name in os.listdir(directory) if not name.startswith(".")]
    return [int(line) for name in names for line in (directory / name).read_text().splitlines()]


def text_files(tmp_path):
    return SinkSubject(TextFileSink(tmp_path), lambda: numbers_in(tmp_path), lambda number: number)


def json_files(tmp_path):
    def visible():
        names = list((tmp_path / "out").glob("part-*")) if (tmp_path / "out").exists() else []
        return [json.loads(line)["n"] for path in names for line in path.read_text().splitlines()]

    return SinkSubject(FileSink.json_lines(tmp_path / "out"), visible, lambda number: {"n": number})


def objects_of(bucket):
    """A file sink in a bucket, as another client sees it: pyarrow's."""

    def visible():
        store = arrow_fs.S3FileSystem(
            endpoint_override=os.environ["AWS_ENDPOINT_URL"], region="us-east-1", allow_bucket_creation=False
        )
        selector = arrow_fs.FileSelector(f"{bucket.removeprefix('s3://')}/out", allow_not_found=True)
        names = [found.path for found in store.get_file_info(selector) if found.base_name.startswith("part-")]
        return [json.loads(line)["n"] for name in names for line in store.open_input_stream(name).read().splitlines()]

    return SinkSubject(FileSink.json_lines(f"{bucket}/out"), visible, lambda number: {"n": number})


def blobs_of(container, server):
    """A file sink in a container of Azure, as another client sees it: pyarrow's."""
    authority = f"127.0.0.1:{server.port}"
    store = arrow_fs.AzureFileSystem(
        ACCOUNT, account_key=KEY, blob_storage_authority=authority, dfs_storage_authority=authority,
        blob_storage_scheme="http", dfs_storage_scheme="http",
    )  # fmt: skip
    return parts_seen_by(store, container)


def objects_of_google(bucket, server):
    """The same in a bucket of Google."""
    authority = server.backend.removeprefix("http://")
    return parts_seen_by(arrow_fs.GcsFileSystem(anonymous=True, endpoint_override=authority, scheme="http"), bucket)


def parts_seen_by(store, place):
    def visible():
        selector = arrow_fs.FileSelector(f"{place.partition('://')[2]}/out", allow_not_found=True)
        names = [found.path for found in store.get_file_info(selector) if found.base_name.startswith("part-")]
        return [json.loads(line)["n"] for name in names for line in store.open_input_stream(name).read().splitlines()]

    return SinkSubject(FileSink.json_lines(f"{place}/out"), visible, lambda number: {"n": number})


def sqlite_subject(tmp_path, **options):
    path = tmp_path / "db.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE numbers (n INTEGER NOT NULL, label TEXT)")

    def visible():
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return [n for (n,) in connection.execute("SELECT n FROM numbers")]

    sink = SqlSink.exactly_once(f"sqlite:///{path}", "numbers", sink_id="numbers", **options)
    return SinkSubject(sink, visible, lambda number: {"n": number, "label": f"number {number}"})


def sqlite_from_checkpoints(tmp_path):
    return sqlite_subject(tmp_path)


def sqlite_from_a_table(tmp_path):
    return sqlite_subject(tmp_path, staging="table")


@pytest.mark.parametrize("subject", [text_files, json_files, sqlite_from_checkpoints, sqlite_from_a_table])
@pytest.mark.parametrize("check", SINK_CONTRACT, ids=lambda check: check.__name__)
def test_sink(check, subject, tmp_path):
    check(subject(tmp_path))


@pytest.mark.parametrize("subject", [json_files, sqlite_from_checkpoints, sqlite_from_a_table])
@pytest.mark.parametrize("check", OWNED_SINK_CONTRACT, ids=lambda check: check.__name__)
def test_sink_with_an_owner(check, subject, tmp_path):
    check(subject(tmp_path))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("check", [*SINK_CONTRACT, *OWNED_SINK_CONTRACT], ids=lambda check: check.__name__)
def test_files_in_s3(check, s3_bucket):  # noqa: F811
    check(objects_of(s3_bucket))


@pytest.mark.parametrize("check", [*SINK_CONTRACT, *OWNED_SINK_CONTRACT], ids=lambda check: check.__name__)
def test_files_in_azure(check, azure_container, azure_server):  # noqa: F811
    check(blobs_of(azure_container, azure_server))


@pytest.mark.parametrize("check", [*SINK_CONTRACT, *OWNED_SINK_CONTRACT], ids=lambda check: check.__name__)
def test_files_in_google(check, gcs_bucket, gcs_server):  # noqa: F811
    check(objects_of_google(gcs_bucket, gcs_server))


@pytest.mark.parametrize("check", [*SINK_CONTRACT, *OWNED_SINK_CONTRACT], ids=lambda check: check.__name__)
def test_files_in_hdfs(check, hdfs_directory):  # noqa: F811
    from hdfs_native import Client

    place = f"/{hdfs_directory.split('/', 3)[3]}/out"

    def visible():
        client = Client(hdfs_directory)
        with contextlib.suppress(FileNotFoundError):
            parts = [status.path for status in client.list_status(place) if "/part-" in status.path]
            return [json.loads(line)["n"] for path in parts for line in client.read(path).read().splitlines()]
        return []

    check(SinkSubject(FileSink.json_lines(f"{hdfs_directory}/out"), visible, lambda number: {"n": number}))


@pytest.mark.parametrize("check", OWNED_SINK_CONTRACT, ids=lambda check: check.__name__)
def test_a_sink_that_knows_no_owner_is_caught(check, tmp_path):
    with pytest.raises(AssertionError):
        check(text_files(tmp_path))


# --------------------------------------------------------------------------------------------- sinks that are not right
class Eager(TextFileSink):
    def prepare(self, checkpoint_id):
        names = super().prepare(checkpoint_id)
        for name in names:
            TextFileSink.commit(self, name)
        return names

    def create_writer(self):
        return type(self)(self.directory)

    create_committer = create_writer


class Forgetful(Eager):
    prepare = TextFileSink.prepare

    def commit(self, name):
        os.rename(f"{self.directory}/.{name}", f"{self.directory}/{name}")


class Repeating(Eager):
    """Reuses a name: the checkpoint's number alone."""

    prepare = TextFileSink.prepare

    def open(self, context):
        super().open(context)
        self.name = f"{context.subtask}"

    def commit(self, name):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{self.directory}/.{name}", f"{self.directory}/{name}")


class Doubling(Eager):
    prepare = TextFileSink.prepare

    def commit(self, name):
        count = len(os.listdir(self.directory))
        with open(f"{self.directory}/.{name}") as file, open(f"{self.directory}/{name}-{count}", "w") as copy:
            copy.write(file.read())


class Cleaning(Eager):
    """Drops everything that is staged when it starts."""

    prepare = TextFileSink.prepare

    def open(self, context):
        super().open(context)
        for name in os.listdir(self.directory):
            if name.startswith("."):
                os.remove(f"{self.directory}/{name}")


class Swallowing(Eager):
    """Passes over what it cannot commit."""

    prepare = TextFileSink.prepare

    def create_committer(self):
        return Never(self.directory)


class Never(TextFileSink):
    def commit(self, name):
        pass


@pytest.mark.parametrize(
    ("kind", "caught_by"),
    [
        (Eager, "shows_nothing_before_its_checkpoint_is_complete"),
        (Forgetful, "commits_twice"),
        (Repeating, "gives_no_name_twice"),
        (Doubling, "restores_twice_from_one_checkpoint"),
        (Cleaning, "survives_half_a_commit"),
        (Swallowing, "ends_with_its_last_commit"),
    ],
)
def test_a_sink_that_is_wrong_is_caught(kind, caught_by, tmp_path):
    failed = []
    for check in SINK_CONTRACT:
        place = tmp_path / check.__name__
        place.mkdir()
        subject = SinkSubject(kind(place), lambda place=place: numbers_in(place), lambda number: number)
        try:
            check(subject)
        except (AssertionError, SinkError, OSError):
            failed.append(check.__name__)
    assert caught_by in failed
