"""Object stores: what a real S3 server and emulators of Azure and Google do; who ignores conditions is refused."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from azure_server import azure_container, azure_server  # noqa: F401 - fixtures
from gcs_server import gcs_bucket, gcs_server  # noqa: F401 - fixtures
from s3_server import s3_bucket, s3_server  # noqa: F401 - fixtures

from headrace.state.checkpoints.leases import FileLease
from headrace.state.errors import AlreadyExistsError, ConfigurationError, NotFoundError, StorageError
from headrace.state.files import objects
from headrace.state.files.filesystem import filesystem_for

S3 = pytest.param("s3_bucket", marks=pytest.mark.lane("s3"))
AZURE = pytest.param("azure_container", marks=pytest.mark.lane("azure"))
GCS = pytest.param("gcs_bucket", marks=pytest.mark.lane("gcs"))


@pytest.fixture(params=[S3, AZURE, GCS])
def place(request):
    return filesystem_for(f"{request.getfixturevalue(request.param)}/root")


def test_names_are_kept_as_they_are(place):
    fs, root = place
    names = [f"{root}/{name}" for name in ("k=v%3A1/x", "a b", "ü", "a#b", "x?y", "a*[b]~", ".hidden", "a+b&c", "%20")]
    for name in names:
        fs.write_bytes(name, b"x")
    assert [path for path, _ in fs.list_files(root)] == sorted(names)
    for name in names:
        assert fs.read_bytes(name) == b"x"
        fs.delete(name)
    assert fs.list_files(root) == []


def test_large_objects_are_streamed(place, monkeypatch):
    """More than is written by one request: through parts, read in pieces from anywhere."""
    fs, root = place
    monkeypatch.setattr(objects, "_MAX_SINGLE_PUT_BYTES", 1 << 20)
    piece = bytes(range(256)) * 4096
    with fs.open_output(f"{root}/large") as file:
        for _ in range(9):
            file.write(piece)
        assert not fs.exists(f"{root}/large")
        assert file.tell() == 9 << 20
    with fs.open_input(f"{root}/large") as file:
        file.seek(-300, io.SEEK_END)
        assert file.read() == piece[-300:]
        file.seek((3 << 20) + 7)
        assert file.read(2 << 20) == (piece * 3)[7 : (2 << 20) + 7]
    fs.write_bytes(f"{root}/put", piece * 6)
    assert fs.read_bytes(f"{root}/put") == piece * 6
    with pytest.raises(StorageError, match="more than the 1,000 bytes"):
        fs.read_bytes(f"{root}/put", 1_000)


def test_parquet_is_written_and_read_through_streams(place):
    fs, root = place
    table = pa.table({"n": range(10_000), "text": [f"row {n}" for n in range(10_000)]})
    with fs.open_output(f"{root}/table") as file:
        pq.write_table(table, file)
    with fs.open_input(f"{root}/table") as file:
        assert pq.read_table(file).equals(table)


def test_an_object_that_is_replaced_is_not_read_on(place):
    fs, root = place
    fs.write_bytes(f"{root}/x", b"1" * (3 << 20))
    with fs.open_input(f"{root}/x") as file:
        file.read(10)
        fs.write_bytes(f"{root}/x", b"2" * (3 << 20))
        with pytest.raises(StorageError, match="replaced while it was read"):
            file.read()


def test_what_nobody_closed_is_not_there(place):
    fs, root = place
    file = fs.open_output(f"{root}/left")
    file.write(b"open")
    del file
    assert fs.list_files(root) == []


def test_a_directory_that_two_delete_is_gone(place, monkeypatch):
    """One of its files is deleted by another process, behind the look."""
    fs, root = place
    for n in range(40):
        fs.write_bytes(f"{root}/d/{n:02}", b"x")
    look, looks = fs.list_files, []

    def list_files(path):
        looks.append(look(path))
        if len(looks) == 1:
            fs.delete(f"{root}/d/00")
        return looks[-1]

    monkeypatch.setattr(fs, "list_files", list_files)
    fs.delete_directory(f"{root}/d")
    assert look(root) == []


def test_a_rename_onto_itself_keeps_the_object(place):
    fs, root = place
    fs.write_bytes(f"{root}/x", b"1")
    fs.rename(f"{root}/x", f"{root}/x")
    assert fs.read_bytes(f"{root}/x") == b"1"
    with pytest.raises(NotFoundError):
        fs.rename(f"{root}/y", f"{root}/y")


def test_a_create_whose_answer_got_lost_is_its_own(place, monkeypatch):
    """The client asks again, and finds what it has made itself."""
    fs, root = place
    fs.require_exclusive_create(root)
    client = objects._client()
    put = client.put
    lost = []

    def put_twice(*args, **options):
        if not lost:
            lost.append(1)
            put(*args, **options)
        return put(*args, **options)

    monkeypatch.setattr(client, "put", put_twice)
    fs.create_exclusive(f"{root}/claim", b"mine")
    assert lost
    with pytest.raises(AlreadyExistsError):
        fs.create_exclusive(f"{root}/claim", b"mine")


def test_wrong_credentials_and_missing_buckets_are_said(s3_bucket, monkeypatch):  # noqa: F811
    fs, path = filesystem_for("s3://nobody/x")
    with pytest.raises(StorageError, match="bucket") as caught:
        fs.write_bytes(path, b"")
    assert caught.value.context == {"operation": "write", "path": "nobody/x"}
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    fs, path = filesystem_for(f"{s3_bucket}/x")
    with pytest.raises(StorageError, match="privileges"):
        fs.read_bytes(path)


def test_options_of_a_uri_come_before_the_environment(s3_server, s3_bucket, monkeypatch):  # noqa: F811
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("AWS_REGION")
    query = f"s3.endpoint={s3_server.endpoint}&s3.endpoint.region=us-east-1&s3.path.style.access=true"
    fs, path = filesystem_for(f"{s3_bucket.replace('s3:', 's3a:')}/a/?{query}")
    fs.write_bytes(f"{path}/b", b"1")
    assert fs.list_files(path) == [(f"{s3_bucket.removeprefix('s3://')}/a/b", 1)]


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("s3:///x", "names a bucket"),
        ("s3://b/x?endpont=http://h", "no option 'endpont'.*\n.*did you mean 'endpoint'"),
        ("s3://b/x?endpoint=h:9000", "is a URL"),
        ("s3://b/x?path.style.access=yes", "'true' or 'false'"),
        ("gs://b/x?region=eu", r"a URI of gs:// has no option 'region'.*\n.*it has endpoint"),
        ("az://c/x?path.style.access=true", "a URI of az:// has no option 'path.style.access'"),
        ("s3://b/x?s3.access-key=k", "must not hold credentials"),
        ("s3://b/x?endpoint=http://user:key@h:9000", "must not hold credentials.*a password in option 'endpoint'"),
        ("s3://b/x?region=r&endpoint=https%3A%2F%2Fuser%3Akey%40h", "must not hold credentials"),
    ],
)
def test_uris_that_say_nothing_are_refused(uri, says):
    pytest.importorskip("obstore")
    with pytest.raises(ConfigurationError, match=says):
        filesystem_for(uri)


def test_the_missing_client_is_named(monkeypatch):
    objects._client.cache_clear()
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'headrace\[s3\]'"):
        filesystem_for("s3://bucket/x")
    objects._client.cache_clear()


class Heedless(BaseHTTPRequestHandler):
    """A store that does what it is told, whatever the conditions, as Alluxio's proxy does."""

    def do_PUT(self):
        self.server.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200)

    def do_DELETE(self):
        self.server.objects.pop(self.path, None)
        self._answer(204)

    def _answer(self, status):
        self.send_response(status)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args):
        """Says nothing."""


@contextlib.contextmanager
def heedless():
    with ThreadingHTTPServer(("127.0.0.1", 0), Heedless) as server:
        server.objects = {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_store_that_ignores_conditions_is_refused_by_name(monkeypatch):
    pytest.importorskip("obstore")
    with heedless() as server:
        for name, value in {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "REGION": "us-east-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        uri = f"s3://bucket/ha?endpoint=http://127.0.0.1:{server.server_port}"
        with pytest.raises(ConfigurationError, match="'bucket' ignores the condition") as caught:
            FileLease.open(uri).require_exclusive()
        assert caught.value.context["endpoint"].endswith(str(server.server_port))
        fs, root = filesystem_for(uri)
        with pytest.raises(ConfigurationError, match="ignores the condition"):
            fs.create_exclusive(f"{root}/x", b"")
        assert server.objects == {}
        fs.write_bytes(f"{root}/x", b"1")  # files that need no condition are written
        assert list(server.objects) == ["/bucket/ha/x"]


def test_leases_are_refused_where_files_cannot_be_made_exclusively():
    with pytest.raises(ConfigurationError, match="created exclusively through mock"):
        FileLease.open("mock://bucket/ha").require_exclusive()


@pytest.mark.parametrize("place", [AZURE, GCS], indirect=True)
def test_a_container_that_is_not_there_is_said(place):
    scheme = "az" if "box-" in place[1] else "gs"
    fs, path = filesystem_for(f"{scheme}://nobody-has-it/x")
    with pytest.raises(StorageError, match=r"nobody-has-it|container") as caught:
        fs.write_bytes(path, b"")
    assert caught.value.context["operation"] == "write"


def test_an_endpoint_in_a_uri_comes_before_the_environment(azure_server, azure_container, monkeypatch):  # noqa: F811
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:1/nobody")
    fs, path = filesystem_for(f"{azure_container}/a?endpoint={azure_server.endpoint}")
    fs.create_exclusive(f"{path}/b", b"1")
    assert fs.list_files(path) == [(f"{azure_container.removeprefix('az://')}/a/b", 1)]


def test_an_endpoint_of_google_in_a_uri_comes_first_too(gcs_server, gcs_bucket, monkeypatch):  # noqa: F811
    monkeypatch.setenv("GOOGLE_BASE_URL", "http://127.0.0.1:1")
    fs, path = filesystem_for(f"{gcs_bucket}/a?endpoint={gcs_server.endpoint}")
    fs.create_exclusive(f"{path}/b", b"1")
    assert fs.list_files(path) == [(f"{gcs_bucket.removeprefix('gs://')}/a/b", 1)]
