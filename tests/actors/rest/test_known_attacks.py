"""Attacks that have worked on the like of this, tried on a cluster as it is by default; each test names its source.

Risks: code that somebody runs who may not, files that are read or written from outside, requests that a browser makes
for a page of somebody else's.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import socket
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rest_kit import ask, part, rest_environment

from headrace.actors.rest.resources.program_files import checked_program
from headrace.actors.rest.resources.programs import ProgramPlace
from headrace.actors.rest.resources.routes import RestError
from headrace.actors.rest.server import RestServer
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSource
from headrace.engine.errors import JobFailedError
from headrace.engine.kernel.rest_settings import RestSettings

FOREIGN = "http://evil.example"
BROWSER = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126 Safari/537.36"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")


class Attacked:
    def __init__(self, directory):
        before = listening()
        self.env = rest_environment()
        self.env.enable_checkpointing(200, directory=str(directory / "checkpoints"))
        numbers = self.env.from_source(GeneratorSource(lambda n: n, records_per_second=10), None, "numbers")
        numbers.uid("numbers").filter(lambda _n: False).print()
        self.job_id = self.env.execute_async("attacked").get_job_id()
        self.vertex_id = "numbers"
        (address,) = self.env._cluster.rest_addresses()
        self.url, self.token, self.reader = address.url, address.tokens.write, address.tokens.read
        self.ports = listening() - before

    def status(self, path, token=None, **options):
        return ask(self.url, path, token, **options).status


def listening():
    """Where this process listens: address and port as the kernel writes them."""
    inodes = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and parts[9] in inodes:
                found.add(parts[1])
    return found


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    attacked = Attacked(tmp_path_factory.mktemp("attacked"))
    yield attacked
    assert attacked.status(f"/jobs/{attacked.job_id}/status", attacked.token) == 200, "the server must have survived"
    attacked.env.close()


SUBMISSIONS = (
    # What is answered with the token that allows looking, and with the one that allows everything.
    ("/jars/upload", 403, 409),
    ("/jars/x.jar/run", 403, 400),
    ("/jobs", 405, 405),
    ("/api/jobs/", 404, 404),
    ("/api/jobs", 404, 404),
    ("/v1/submissions/create", 404, 404),
)


@pytest.mark.parametrize(("path", "looking", "everything"), SUBMISSIONS)
def test_nobody_submits_a_program_over_http_without_the_token(attacked, path, looking, everything):
    """ShadowRay (CVE-2023-48022), and jars on Flink: submission without a login was code execution by design."""
    body = {"entrypoint": "touch /tmp/owned", "jarid": "x"}
    assert attacked.status(path, method="POST", body=body) == 401
    assert attacked.status(path, attacked.reader, method="POST", body=body) == looking
    # Nor with it, where a cluster is within one program; elsewhere a form of one file is taken.
    assert attacked.status(path, attacked.token, method="POST", body=body) == everything


def form(name, content=b"x = 1"):
    head = f'--x\r\nContent-Disposition: form-data; name="jarfile"; filename="{name}"\r\n\r\n'.encode()
    return head + content + b"\r\n--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"}


class Taking:
    """The same cluster behind a server that takes programs; a program that is run leaves a mark."""

    def __init__(self, attacked, folder):
        self.kept, self.mark = folder / "kept", folder / "owned"
        self.kept.mkdir()
        run = [sys.executable, "-c", f"open({str(self.mark)!r}, 'w')"]
        place = ProgramPlace(lambda: str(self.kept), lambda: run)
        (address,) = attacked.env._cluster.rest_addresses()
        self.server = RestServer(attacked.env._cluster, RestSettings(bind_port="0"), address.tokens, place)
        self.url = self.server.start()

    def upload(self, token, name, **headers):
        body, kind = form(name)
        return ask(self.url, "/jars/upload", token, method="POST", body=body, headers={**kind, **headers})


def test_where_programs_are_taken_they_are_taken_with_the_token_alone(attacked, tmp_path):
    """The same, where a form of one file is a program: each way of it, to each who may not."""
    taking = Taking(attacked, tmp_path)
    try:
        program = taking.upload(attacked.token, "own.py").json["filename"]
        ways = (("GET", "/jars"), ("POST", f"/jars/{program}/run"), ("DELETE", f"/jars/{program}"))
        ways += (("GET", f"/jars/{program}/runs/0"), ("POST", "/jars/upload"))
        body, kind = form("evil.py")
        for method, path in ways:

            def status(token, headers, method=method, path=path):
                sent = body if path.endswith("upload") else None
                given = {**kind, **headers} if sent else headers
                return ask(taking.url, path, token, method=method, body=sent, headers=given).status

            assert status(None, {}) == 401, path
            assert status(attacked.token[:-1], {}) == 401, path
            assert status(attacked.reader, {}) == 403, path
            assert status(attacked.token, {"Origin": FOREIGN, "User-Agent": BROWSER}) == 403, path
            assert status(attacked.token, {"Host": "evil.example"}) == 403, path
        for name in (
            "../evil.py",
            "/tmp/evil.py",
            "..%2fevil.py",
            "a/../../evil.py",
            "evil.py\0.zip",
            "evil",
            "%00.py",
        ):
            assert taking.upload(attacked.token, name).status == 400, name
        assert [file.name for file in taking.kept.iterdir()] == [program]
        assert not taking.server._programs._runs
        assert not taking.mark.exists()
        # With it, it is run: the mark would be there.
        assert ask(taking.url, f"/jars/{program}/run", attacked.token, method="POST", body={}).status == 202
        (run,) = taking.server._programs._runs.values()
        deadline = time.monotonic() + 20
        while run.ended_s is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert taking.mark.exists()
    finally:
        taking.server.close()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8081", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_a_name_that_points_to_this_machine_is_no_name_of_it(attacked, host):
    """DNS rebinding (CVE-2025-62593): loopback alone is no protection, and neither is a browser's own name."""
    for agent in (BROWSER, "curl/8", ""):
        headers = {"Host": host, "User-Agent": agent}
        assert attacked.status("/jobs/overview", attacked.token, headers=headers) == 403
        assert attacked.status("/index.html", headers=headers) in (403, 404)


@pytest.mark.parametrize("method", METHODS)
def test_a_foreign_page_has_no_method_that_was_forgotten(attacked, method):
    """CSRF (CVE-2026-27482): the guard listed POST and PUT, and forgot DELETE."""
    path = f"/jobs/{attacked.job_id}?mode=cancel"
    for origin in (FOREIGN, "null", attacked.url.replace("127.0.0.1", "localhost.evil.example")):
        headers = {"Origin": origin, "User-Agent": BROWSER, "Cookie": f"token={attacked.token}"}
        assert attacked.status(path, attacked.token, method=method, headers=headers) == 403
        assert attacked.status(path, method=method, headers=headers) in (401, 403)


class Owned:
    """A pickle that leaves a mark when it is read."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("name", ["ray.data.arrow_tensor", "ray.data.arrow_pickled_object", "arrow.py_extension_type"])
def test_a_type_in_a_file_runs_nothing(name, tmp_path):
    """CVE-2026-41486 of Ray Data and CVE-2023-47248 of PyArrow: extension types that unpickle what a file says.

    Ray's are registered with Arrow once anything in this process has imported Ray Data.
    """
    importlib.import_module("ray.data.extensions")
    mark = tmp_path / "owned"
    pickle.loads(pickle.dumps(Owned(mark)))
    mark.unlink()  # who reads it leaves the mark
    metadata = {b"ARROW:extension:name": name.encode(), b"ARROW:extension:metadata": pickle.dumps(Owned(mark))}
    field = pa.field("a", pa.binary(), metadata=metadata)
    table = pa.table([pa.array([pickle.dumps(Owned(mark))], pa.binary())], schema=pa.schema([field]))
    pq.write_table(table, tmp_path / "evil.parquet")
    env = rest_environment()
    with env:
        rows = env.from_source(FileSource.parquet(str(tmp_path / "evil.parquet")), None, "evil")
        if name == "ray.data.arrow_tensor":  # it cannot be made of what the file says
            with pytest.raises(JobFailedError, match="cannot be made of what the file says"):
                list(rows.execute_and_collect("read"))
        else:
            with rows.map(lambda row: type(row["a"]).__name__).execute_and_collect("read") as found:
                assert list(found) == ["bytes"]
    assert not mark.exists()


def test_no_part_of_a_path_is_fetched(attacked):
    """SSRF through a proxy for logs (CVE-2023-48023): what a client names is looked up, never connected to."""
    came = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        port = server.getsockname()[1]

        def accept():
            with contextlib.suppress(TimeoutError):
                came.append(server.accept())

        thread = threading.Thread(target=accept)
        thread.start()
        for name in (f"http:%2F%2F127.0.0.1:{port}%2F", f"127.0.0.1:{port}", f"%40127.0.0.1:{port}"):
            for path in (f"/taskmanagers/{name}/log", f"/taskmanagers/{name}/logs/x", f"/jobs/{name}/logs"):
                assert attacked.status(path, attacked.token) == 404
            query = f"/jobs/{attacked.job_id}/logs?after=http://127.0.0.1:{port}/"
            assert attacked.status(query, attacked.token) == 400
        thread.join()
    assert came == []


TRAVERSALS = (
    "..%252f..%252f..%252f..%252fetc%252fpasswd",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%252e%252e%252fetc%252fpasswd",
    "..%c0%af..%c0%afetc%c0%afpasswd",
    "....//....//etc/passwd",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "..%5c..%5cetc%5cpasswd",
    "local.log%00.txt",
)


@pytest.mark.parametrize("name", TRAVERSALS)
def test_no_name_of_a_log_leads_out_of_its_folder(attacked, name):
    """CVE-2020-17519 of Flink: a doubly encoded ``../`` read any file. Pages are files by name, too."""
    for path in (f"/jobmanager/logs/{name}", f"/taskmanagers/tm/logs/{name}", f"/web/{name}", f"/{name}"):
        answer = ask(attacked.url, path, attacked.token)
        assert answer.status in (400, 404), path
        assert b"root:" not in answer.content


def test_nothing_that_is_sent_becomes_a_file(attacked, tmp_path, monkeypatch):
    """CVE-2020-17518 of Flink: a name within an upload wrote any file."""
    monkeypatch.chdir(tmp_path)
    body, headers = form("../../../../../../tmp/headrace-owned", b"owned")
    for path, status in (("/jars/upload", 409), (f"/jobs/{attacked.job_id}/savepoints", 400), ("/", 405)):
        answer = ask(attacked.url, path, attacked.token, method="POST", body=body, headers=headers)
        assert answer.status == status, path
    with pytest.raises(RestError, match="named by letters"):  # also where programs are taken
        checked_program("../../../../../../tmp/headrace-owned", b"owned", 1_000)
    assert not Path("/tmp/headrace-owned").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_listens_on_one_port_of_the_loopback(attacked):
    """CVE-2020-1960 of Flink: a port for metrics that wanted no login. Here is none but REST's."""
    (port,) = attacked.ports
    assert port == f"0100007F:{urlsplit(attacked.url).port:04X}"


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer null",
        "Bearer undefined",
        "Basic YWRtaW46YWRtaW4=",
        "Digest x",
        "Negotiate",
        "\0",
    ],
)
def test_no_other_word_is_a_token(attacked, authorization):
    """CVE-2020-9480 and CVE-2021-38296 of Spark: a crafted greeting passed for a login."""
    headers = {"Authorization": authorization.replace("\0", "Bearer \x7f")}
    assert attacked.status("/jobs/overview", headers=headers) == 401
    assert attacked.status(f"/jobs/overview?token={attacked.token}&access_token={attacked.token}") == 401
    assert attacked.status("/jobs/overview", attacked.token[:-1]) == 401


@pytest.mark.parametrize(
    "text", ["`touch /tmp/headrace-owned`", "$(touch /tmp/headrace-owned)", "; touch /tmp/headrace-owned"]
)
def test_no_parameter_comes_to_a_shell(attacked, text):
    """CVE-2022-33891 of Spark: the name of a user went through a shell; CVE-2023-6019 of Ray: a form of profiles."""
    shown = part(text)
    for query in (f"type={shown}", f"subtaskindex={shown}", f"type=FULL&format={shown}"):
        path = f"/jobs/{attacked.job_id}/vertices/{attacked.vertex_id}/flamegraph?{query}"
        assert attacked.status(path, attacked.token) == 400, query
    assert attacked.status(f"/jobs/overview?doAs={shown}", attacked.token) == 400
    assert attacked.status(f"/jobs/{shown}", attacked.token) == 404
    answer = ask(
        attacked.url,
        f"/jobs/{attacked.job_id}/savepoints",
        attacked.token,
        method="POST",
        body={"triggerId": text, "target-directory": f"/{text}"},
    )
    assert answer.status == 400
    assert not Path("/tmp/headrace-owned").exists()
