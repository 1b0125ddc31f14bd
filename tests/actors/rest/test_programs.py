"""Programs that are uploaded and run: what is taken, what leaves no folder, who may, and what becomes of a main().

Risks: code that somebody runs without the right to, files written elsewhere, a zip that fills the disk, a main() that
takes the head along, an end that is not told.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import os
import random
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
import types
import zipfile
from pathlib import Path

import cloudpickle
import pytest
from rest_kit import ask

from headrace.actors.connecting import _programs_on_ray
from headrace.actors.rest.resources import programs
from headrace.actors.rest.resources.program_files import MOST_TIMES, ProgramStore, entry_of, unpack
from headrace.actors.rest.resources.programs import ProgramPlace, session_command
from headrace.actors.rest.resources.routes import RestError
from headrace.actors.rest.security import fresh_tokens
from headrace.actors.rest.server import RestServer
from headrace.cli.main import command_parser
from headrace.engine.kernel.config import ClusterSettings, HighAvailabilitySettings
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.rest.client import RestClient
from headrace.state.errors import RestRequestError
from headrace.state.reading.program_pickles import FOLDER_VARIABLE, dump_program, load_program

PATIENCE_S = 60
LIMIT = 20_000

RUNNER = """
import json, runpy, sys
at = next(number for number, text in enumerate(sys.argv) if text.endswith(".py"))
print(json.dumps(sys.argv[1:at]))
sys.argv = sys.argv[at:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Stands for ``headrace run``: tells its options and runs the program."""

JOB = "0123456789abcdef0123456789abcdef"
PROGRAM = f"""
import sys
print("arguments", sys.argv[1:])
print("submitted {JOB} (orders) to cluster x", flush=True)
"""


class Served:
    def __init__(self, directory, **settings):
        self.directory = directory
        place = ProgramPlace(lambda: str(directory), lambda: [sys.executable, "-c", RUNNER])
        self.tokens = fresh_tokens()
        options = {"bind_port": "0", "max_program_bytes": LIMIT, **settings}
        self.server = RestServer(types.SimpleNamespace(name="x"), RestSettings(**options), self.tokens, place)
        self.url = self.server.start()
        self.rest = RestClient(self.url, self.tokens.write)

    def upload(self, name, content, token=None):
        mark = "mark"
        head = f'--{mark}\r\nContent-Disposition: form-data; name="jarfile"; filename="{name}"\r\n\r\n'.encode()
        body = head + content + f"\r\n--{mark}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={mark}"}
        given = self.tokens.write if token is None else token
        return ask(self.url, "/jars/upload", given, method="POST", body=body, headers=headers)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    running = Served(tmp_path_factory.mktemp("programs"))
    yield running
    running.server.close()


@pytest.fixture
def served(running):
    yield running
    for file in running.directory.iterdir():
        file.unlink()


def zipped(files, **infos):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            for key, value in infos.items():
                setattr(info, key, value)
            archive.writestr(info, content)
    return target.getvalue()


def test_a_program_is_uploaded_listed_run_with_its_options_and_deleted(served, tmp_path):
    (tmp_path / "orders.py").write_text(PROGRAM)
    program = served.rest.upload(tmp_path / "orders.py")
    (listed,) = served.rest.programs()
    assert (listed["id"], listed["name"], listed["size"]) == (program, "orders.py", len(PROGRAM))
    jobs = served.rest.run_program(
        program,
        ["--since", "2026-01-01; rm -rf /"],
        parallelism=3,
        from_savepoint="/savepoints/one",
        allow_non_restored_state=True,
        restore_mode="claim",
    )
    assert jobs == [JOB]
    begun = ask(served.url, f"/jars/{program}/run", served.tokens.write, method="POST", body={}).json["request-id"]
    path = f"/jars/{program}/runs/{begun}"
    deadline = time.monotonic() + PATIENCE_S
    while ask(served.url, path, served.tokens.write).json["status"]["id"] != "COMPLETED":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    operation = ask(served.url, path, served.tokens.write).json["operation"]
    assert (operation["jobid"], operation["output"][:2]) == (JOB, ["[]", "arguments []"])
    served.rest.delete_program(program)
    assert served.rest.programs() == []
    with pytest.raises(RestRequestError, match="there is no program"):
        served.rest.run_program(program)
    assert list(served.directory.iterdir()) == []


def test_what_headrace_run_is_told_is_what_was_asked_for(served):
    program = served.upload("fails.py", b"import sys; print(sys.argv[1:]); sys.exit(3)").json["filename"]
    with pytest.raises(RestRequestError) as failed:
        served.rest.run_program(program, ["-x"], parallelism=3, from_savepoint="/one", restore_mode="claim")
    told = str(failed.value)
    assert "the program has ended with status 3" in told
    options = ["--parallelism", "3", "--from-savepoint=/one", "--restore-mode=claim"]
    assert json.loads(next(line for line in told.splitlines() if line.startswith("["))) == options
    assert "['-x']" in told
    silent = served.upload("silent.py", b"pass").json["filename"]
    with pytest.raises(RestRequestError, match="ended without submitting a job"):
        served.rest.run_program(silent)


def test_a_zip_is_run_with_its_modules_and_nothing_of_it_stays(served, tmp_path):
    files = {
        "shop/main.py": f"import helper, pathlib\nprint('submitted {JOB} (' + helper.NAME + ')')\n"
        "print('folder', pathlib.Path(__file__).parent.parent)",
        "shop/helper.py": "NAME = 'x'",
        "shop/data/one.txt": "1",
    }
    program = served.upload("shop.zip", zipped(files)).json["filename"]
    assert served.rest.run_program(program) == [JOB]
    with pytest.raises(RestRequestError, match=r"has no Python file 'other\.py'"):
        served.rest.run_program(program, entry="other.py")
    with pytest.raises(RestRequestError, match="ended without submitting") as told:
        served.rest.run_program(program, entry="shop/helper.py")
    assert "ended with status" not in str(told.value)
    served.rest.delete_program(program)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("../evil.py", b"x = 1", "named by letters"),
        ("evil.exe", b"x = 1", "named by letters"),
        ("a b.py", b"x = 1", "named by letters"),
        ("-p.py", b"x = 1", "named by letters"),
        ("a..py", b"x = 1", "named by letters"),
        ("binary.py", b"\xff\xfe", "no text in UTF-8"),
        ("empty.py", b" ", "is no program"),
        ("not.zip", b"PK\x03\x04 nothing", "no zip that can be read"),
        ("none.zip", zipped({"readme.txt": "x"}), "none.zip has no Python file"),
        ("both.zip", zipped({"main.py": "", "a": "", "a/b.py": ""}), "a file and a folder of one name: 'a'"),
        ("name.zip", zipped({"main.py": "", "\u00e9" * 130 + "/b.py": ""}), "too long a name"),
        ("up.zip", zipped({"main.py": "", "../evil.py": ""}), "would lie elsewhere"),
        ("deep.zip", zipped({"main.py": "", "a/../../evil.py": ""}), "would lie elsewhere"),
        ("root.zip", zipped({"main.py": "", "/etc/evil.py": ""}), "would lie elsewhere"),
        ("drive.zip", zipped({"main.py": "", "c:evil.py": ""}), "would lie elsewhere"),
        ("slash.zip", zipped({"main.py": "", "a\\b.py": ""}), "would lie elsewhere"),
        ("link.zip", zipped({"main.py": "/etc/passwd"}, external_attr=(stat.S_IFLNK | 0o777) << 16), "link or device"),
        ("bomb.zip", zipped({"main.py": "", "big": b"0" * (MOST_TIMES * LIMIT + 1)}), "would unpack to"),
        ("many.zip", zipped({f"{number}": "" for number in range(2_001)}), "2,001 files"),
    ],
    ids=itertools.count(),
)
def test_what_is_no_program_is_refused_with_the_reason(served, name, content, words):
    answer = served.upload(name, content) if len(content) < LIMIT else None
    if answer is None:  # too large as it is; what is in it is refused, too
        with pytest.raises(RestError, match=words):
            unpack(content, served.directory, LIMIT)
        return
    assert answer.status == 400, answer
    assert words in answer.json["errors"][0]
    assert list(served.directory.iterdir()) == []


def test_a_table_of_very_many_files_is_not_read(tmp_path):
    """An object for each of them took 290 MB of the head."""
    entry = bytearray(zipped({"a": ""})[-22 - 47 : -22])
    assert entry[:4] == b"PK\x01\x02"
    table = bytes(entry) * 100_000
    ends = {
        "short": b"PK\x05\x06" + struct.pack("<4H2LH", 0, 0, 1, 1, len(table), 0, 0),
        "long": b"PK\x06\x06"
        + struct.pack("<Q2H2L4Q", 44, 45, 45, 0, 0, 1, 1, len(table), 0)
        + b"PK\x06\x07"
        + struct.pack("<LQL", 0, len(table), 1)
        + b"PK\x05\x06"
        + struct.pack("<4H2LH", 0, 0, 1, 1, 10, 0, 0),
    }
    for kind, end in ends.items():
        assert len(zipfile.ZipFile(io.BytesIO(table + end)).infolist()) == 100_000, kind
        with pytest.raises(RestError, match="too many files"):
            unpack(table + end, tmp_path, LIMIT)


def test_a_damaged_zip_is_refused_whatever_is_wrong_with_it(tmp_path):
    """A fuzzer: bytes are changed; nothing but a refusal may come of it."""
    chosen = random.Random(5)
    whole = zipped({"main.py": "print(1)" * 30, "a/b.txt": "hello" * 20, "c.py": ""})
    refused = set()
    for number in range(2_000):
        damaged = bytearray(whole)
        for _ in range(chosen.randint(1, 4)):
            damaged[chosen.randrange(len(damaged))] = chosen.choice([0, 255, chosen.randrange(256)])
        try:
            unpack(bytes(damaged), tmp_path / str(number), LIMIT)
        except RestError as error:
            refused.add(error.message)
    assert any("decompressing" in message for message in refused)
    assert len(refused) > 20


def test_which_file_is_run_may_be_said_when_it_is_run(served):
    files = {"a.py": f"print('submitted {JOB} (a)')", "b.py": ""}
    program = served.upload("two.zip", zipped(files)).json["filename"]
    with pytest.raises(RestRequestError, match=r"it has a\.py, b\.py"):
        served.rest.run_program(program)
    assert served.rest.run_program(program, entry="a.py") == [JOB]


def test_a_zip_that_lies_about_its_sizes_is_not_believed(tmp_path):
    content = bytearray(zipped({"main.py": "", "big": b"0" * 5_000}))
    at = content.rindex(b"PK\x01\x02")  # the entry of the last file in the table
    content[at + 24 : at + 28] = (10).to_bytes(4, "little")
    with pytest.raises(RestError, match="cannot be unpacked"):
        unpack(bytes(content), tmp_path, LIMIT)
    assert not (tmp_path / "big").exists() or (tmp_path / "big").stat().st_size <= 11


def test_bodies_that_are_no_form_of_one_file_and_ids_that_are_none(served):
    def sent(body, kind):
        return ask(
            served.url, "/jars/upload", served.tokens.write, method="POST", body=body, headers={"Content-Type": kind}
        )

    assert sent(b"x = 1", "text/plain").status == 400
    assert sent(b"--m\r\n\r\nx\r\n--m--", "multipart/form-data; boundary=m").status == 400
    part = b'--m\r\nContent-Disposition: form-data; filename="a.py"\r\n\r\nx = 1\r\n'
    assert sent(part + part + b"--m--", "multipart/form-data; boundary=m").status == 400
    assert served.upload("large.py", b"#" * (LIMIT + 3_000)).status == 413
    for program in ("..%2f..%2fetc%2fpasswd", "a.py", "0" * 32 + "_0000000000000_a.py"):
        assert ask(served.url, f"/jars/{program}", served.tokens.write, method="DELETE").status == 404
        assert ask(served.url, f"/jars/{program}/run", served.tokens.write, method="POST", body={}).status == 404
    with pytest.raises(RestError):
        ProgramStore(str(served.directory)).read("../x.py", LIMIT)


def test_it_takes_the_right_to_do_everything_and_a_cluster_that_takes_programs(served, tmp_path):
    assert served.upload("a.py", b"x = 1", served.tokens.read).status == 403
    assert served.upload("a.py", b"x = 1", "guess").status == 401
    assert ask(served.url, "/jars", served.tokens.read).status == 403
    features = ask(served.url, "/config", served.tokens.write).json["features"]
    assert features["web-submit"] is True
    assert ask(served.url, "/config", served.tokens.read).json["features"]["web-submit"] is False
    off = Served(tmp_path, **vars_of("web.submit.enable", "false"))
    try:
        answer = off.upload("a.py", b"x = 1")
        assert answer.status == 403
        assert "web.submit.enable" in answer.json["errors"][0]
        assert ask(off.url, "/config", off.tokens.write).json["features"]["web-submit"] is False
    finally:
        off.server.close()
    local = RestServer(None, RestSettings(bind_port="0"), served.tokens)  # of a cluster within one program
    route, path = local.table.find("GET", "/jars")
    with pytest.raises(RestError, match="'headrace cluster start' starts one"):
        route.handler(types.SimpleNamespace(path=path))


def test_a_program_does_not_go_on_from_where_the_one_that_started_the_cluster_did(served, monkeypatch):
    for name, value in (("FROM", "/one"), ("MODE", "claim")):
        monkeypatch.setenv(f"HEADRACE_RESTORE_{name}", value)
    monkeypatch.setenv("HEADRACE_ALLOW_NON_RESTORED_STATE", "1")
    monkeypatch.setenv("SHOP", "north")
    shows = b"import os, sys; print({n for n in os.environ if 'RESTORE' in n or n == 'SHOP'}); sys.exit(3)"
    program = served.upload("shows.py", shows).json["filename"]
    with pytest.raises(RestRequestError, match=r"\{'SHOP'\}"):
        served.rest.run_program(program)


def vars_of(key, value):
    settings = RestSettings.from_configuration({key: value, "rest.bind-port": "0"})
    return {"allows_submit": settings.allows_submit}


def test_a_main_that_does_not_end_is_ended_with_its_server(tmp_path):
    served = Served(tmp_path)
    waits = f"print('submitted {JOB} (x)', flush=True)\nimport time\ntime.sleep(600)"
    program = served.upload("waits.py", waits.encode())
    path = f"/jars/{program.json['filename']}"
    begun = ask(served.url, f"{path}/run", served.tokens.write, method="POST", body={}).json["request-id"]
    deadline = time.monotonic() + PATIENCE_S
    while not ask(served.url, f"{path}/runs/{begun}", served.tokens.write).json["operation"]["jobids"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (run,) = served.server._programs._runs.values()
    served.server.close()
    assert run.process.wait(PATIENCE_S) != 0


def test_classes_of_a_program_are_the_same_ones_in_every_run_of_it_and_others_in_another(tmp_path):
    """Keys that a savepoint of one run holds are those of the records of the next."""
    write = """
import sys
sys.path.insert(0, sys.argv[1])
from models import Customer
from headrace.state.reading.program_pickles import dump_program
sys.stdout.buffer.write(dump_program(Customer("ann")))
"""
    models = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Customer:\n    name: str\n"

    def key_of_run(number, text):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "models.py").write_text(text)
        environment = {**os.environ, FOLDER_VARIABLE: str(folder)}
        command = [sys.executable, "-c", write, str(folder)]
        return load_program(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)

    first, second, changed = (key_of_run(*run) for run in enumerate((models, models, models + "# changed")))
    assert first == second
    assert type(first) is type(second)
    assert changed != first


def children_of_runs():
    """Processes whose environment says that a program has begun them, and that have not ended."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and b"BEGUN_BY_A_PROGRAM=1" in (folder / "environ").read_bytes():
                found.append(folder.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at processes as Linux shows them")
@pytest.mark.parametrize("heeds", ["signal.SIG_DFL", "signal.SIG_IGN"])
def test_what_a_program_has_begun_neither_outlives_it_nor_keeps_its_run_going(served, heeds):
    code = f"""
import os, signal, subprocess, sys
print('submitted {JOB} (x)', flush=True)
signal.signal(signal.SIGTERM, {heeds})
waits = 'print("begun", flush=True); import time; time.sleep(600)'
child = subprocess.Popen([sys.executable, '-c', waits], env={{**os.environ, 'BEGUN_BY_A_PROGRAM': '1'}}, stdout=-1)
child.stdout.readline()
"""
    program = served.upload("begins.py", code.encode()).json["filename"]
    assert served.rest.run_program(program) == [JOB]
    deadline = time.monotonic() + PATIENCE_S
    while children_of_runs():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_process_that_has_left_does_not_keep_a_run_going(served, tmp_path):
    """It holds the output open, and is in no group of the program's."""
    code = f"""
import os, pathlib, time
print('submitted {JOB} (x)', flush=True)
if os.fork() == 0:
    os.setsid()
    pathlib.Path({str(tmp_path / "left")!r}).write_text(str(os.getpid()))
    time.sleep(600)
"""
    program = served.upload("leaves.py", code.encode()).json["filename"]
    assert served.rest.run_program(program) == [JOB]
    left = tmp_path / "left"
    deadline = time.monotonic() + PATIENCE_S
    while not left.exists() or not left.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(int(left.read_text()), signal.SIGKILL)


def test_jobs_are_found_behind_what_is_printed_without_the_end_of_a_line(served):
    code = f"print('progress 100 %', end=' ')\nprint('submitted {JOB} (x)')\nprint('last', end='')"
    program = served.upload("partial.py", code.encode()).json["filename"]
    assert served.rest.run_program(program) == [JOB]
    (run,) = [run for run in served.server._programs._runs.values() if run.program == program]
    assert run.lines[-1] == "last"


def test_a_program_that_prints_without_end_or_closes_its_output_is_ended(served, monkeypatch):
    monkeypatch.setattr(programs, "MOST_PRINTED_BYTES", 1 << 20)
    program = served.upload("prints.py", b"while True: print('password=abc123', 'x' * 500)").json["filename"]
    with pytest.raises(RestRequestError, match="has printed more than 1,048,576 bytes") as told:
        served.rest.run_program(program)
    assert "password=***" in str(told.value)
    assert "abc123" not in str(told.value)
    monkeypatch.setattr(programs, "RUN_TIMEOUT_S", 1.0)
    silent = b"import os, time; os.close(1); os.close(2); time.sleep(600)"
    program = served.upload("closes.py", silent).json["filename"]
    with pytest.raises(RestRequestError, match="did not end within 1 s"):
        served.rest.run_program(program)
    program = served.upload("goes.py", b"import os; os._exit(0)").json["filename"]
    with pytest.raises(RestRequestError, match="without submitting a job"):
        served.rest.run_program(program)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"programArgsList": ["\ud800"]}, "programArgsList"),
        ({"programArgsList": ["a\0b"]}, "programArgsList"),
        ({"programArgsList": ["x" * 90_000, "x" * 90_000]}, "100,000 bytes"),
        ({"programArgsList": [1]}, "a list of texts"),
        ({"savepointPath": "/a\0b"}, "savepointPath"),
        ({"savepointPath": "/a\ud800"}, "savepointPath"),
        ({"savepointPath": "relative"}, "an absolute path or a URI"),
        ({"parallelism": 0}, "from 1 to"),
    ],
    ids=itertools.count(),
)
def test_what_a_process_cannot_be_given_is_refused_with_its_field(served, body, words):
    program = served.upload("a.py", b"x = 1").json["filename"]
    answer = ask(served.url, f"/jars/{program}/run", served.tokens.write, method="POST", body=body)
    assert answer.status == 400, answer
    assert words in answer.json["errors"][0]


def test_a_server_that_is_closed_begins_no_program(tmp_path):
    served = Served(tmp_path)
    program = served.upload("a.py", b"x = 1").json["filename"]
    served.server.close()
    request = types.SimpleNamespace(path={"jarid": program}, body={})
    with pytest.raises(RestError, match="this head is ending"):
        served.server._programs.run(request)


def test_a_program_takes_the_place_of_no_module_that_the_command_needs(tmp_path):
    (tmp_path / "random.py").write_text("import helper\nraise SystemExit('it is run as ' + __name__)")
    (tmp_path / "helper.py").write_text("")
    command = [*session_command("x", "127.0.0.1:1")[:3], "run", "--target", "local", str(tmp_path / "random.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "it is run as __main__"


def test_which_file_of_a_zip_is_run():
    assert entry_of({"a/job.py": None, "a/b.py": None}, None, "z") == "a/job.py"
    assert entry_of({"job.py": None, "main.py": None}, None, "z") == "main.py"
    assert entry_of({"x/one.py": None, "y": None}, None, "z") == "x/one.py"


def test_heads_on_ray_know_where_programs_are_and_how_they_are_run(tmp_path, monkeypatch):
    """What a head is sent is pickled; with high availability programs lie in the cluster's directory."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    alone = cloudpickle.loads(cloudpickle.dumps(_programs_on_ray(ClusterSettings(), "my/cluster")))
    folder = Path(alone.directory())
    assert folder.parent.parent == tmp_path
    assert folder.stat().st_mode & 0o077 == 0
    ha = HighAvailabilitySettings(f"{tmp_path}/ha", "orders")
    shared = cloudpickle.loads(cloudpickle.dumps(_programs_on_ray(ClusterSettings(high_availability=ha), "orders")))
    assert shared.directory().endswith("/ha/orders/programs")
    command = session_command("orders", "127.0.0.1:6379")
    options = command_parser().parse_args([*command[3:], "--parallelism", "2", "/x/main.py", "--since", "1"])
    assert (options.address, options.target, options.cluster_id) == ("127.0.0.1:6379", "session", "orders")
    assert options.detached
    assert (options.parallelism, options.program, options.arguments) == (2, "/x/main.py", ["--since", "1"])


def test_modules_of_the_program_travel_by_value_and_others_by_name(tmp_path, monkeypatch):
    (tmp_path / "own_steps.py").write_text("def doubled(n):\n    return 2 * n\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("own_steps")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    written = dump_program((own.doubled, json.loads))
    monkeypatch.delitem(sys.modules, "own_steps")
    (tmp_path / "own_steps.py").unlink()
    doubled, by_name = load_program(written)
    assert doubled(21) == 42
    assert by_name is json.loads
