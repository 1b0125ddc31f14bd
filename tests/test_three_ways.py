"""One program unchanged in three ways of use; here as a script and through ``ray job submit``, in `test_notebooks` as a
notebook. All are compared with the same direct computation."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from campaigns import campaign
from free_ports import free_port
from repository import NOTEBOOKS, expected_delays

PROGRAM = NOTEBOOKS / "delays_per_airport.py"
BOUND_S = 180

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(2 * BOUND_S)]


def delays_in(folder):
    """What a reader sees; hidden files are not committed."""
    rows = [json.loads(line) for file in sorted(Path(folder).glob("part-*.jsonl")) for line in file.open()]
    return sorted((row["origin"], row["flights"], row["worst_delay"]) for row in rows)


@pytest.mark.parametrize("where", ["on a Ray that runs", campaign("on a Ray of its own")])
def test_as_a_script(where, ray_session, tmp_path):
    import ray

    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    if where == "on a Ray that runs":
        environment["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "headrace.cli", "run", PROGRAM, "out"]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "finished after" in ran.stdout
    ends = [line for line in ran.stderr.splitlines() if line.startswith("delays per airport: FINISHED")]
    assert ends, f"progress goes to stderr: {ran.stderr}"
    assert delays_in(tmp_path / "out") == expected_delays()


@pytest.fixture
def cluster():
    """Environment and addresses of a cluster of ``ray start --head`` with authentication, on ports of its own."""
    pytest.importorskip("aiohttp", reason="Ray's job server needs headrace[cluster]")
    ports = free_port(), free_port(), free_port()
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets live in it: their names must be shorter than 108 bytes
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    ray = shutil.which("ray", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    head = subprocess.Popen(
        [
            ray, "start", "--head", "--block", f"--port={ports[0]}", "--dashboard-host=127.0.0.1",
            f"--dashboard-port={ports[1]}", "--num-cpus=3", f"--temp-dir={folder}", "--disable-usage-stats",
            # Its default is a fixed port: with another Ray on the machine no agent comes up that could start jobs.
            f"--dashboard-agent-listen-port={ports[2]}",
        ],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield ray, environment, f"127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
    finally:
        head.send_signal(signal.SIGTERM)
        try:
            head.wait(30)
        finally:
            if head.poll() is None:
                os.killpg(head.pid, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)


def wait_until_served(address):
    deadline = time.monotonic() + BOUND_S
    while True:
        try:
            urllib.request.urlopen(f"{address}/api/version", timeout=5).close()
        except urllib.error.HTTPError:
            return  # it answers; that it wants a token is right
        except OSError:
            assert time.monotonic() < deadline, "Ray's job server did not come up"
        else:
            return


@pytest.mark.campaign
def test_as_an_application_whose_client_has_gone(cluster, tmp_path):
    ray, environment, _, server = cluster
    wait_until_served(server)
    (tmp_path / "env.json").write_text('{"env_vars": {"HEADRACE_PROGRESS": "lines"}}')
    command = [
        sys.executable, "-m", "headrace.cli", "run-application", "--address", server, "--python", sys.executable,
        "--runtime-env", tmp_path / "env.json", "--submission-id", "delays", "--slot-timeout", "3 min", "-p", "2",
        PROGRAM, tmp_path / "out",
    ]  # fmt: skip
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("submitted application delays: ")
    logs = [ray, "job", "logs", "--follow", "--address", server, "delays"]  # until it ends
    ran = subprocess.run(logs, env=environment, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert "Job 'delays' succeeded" in ran.stdout + ran.stderr, ran.stdout + ran.stderr
    assert "delays per airport: FINISHED" in ran.stdout
    assert delays_in(tmp_path / "out") == expected_delays()


SURVIVOR = """
    import sys
    from headrace import StreamExecutionEnvironment
    from headrace.connectors.datagen import GeneratorSource
    from headrace.connectors.files import FileSink

    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(200, directory=sys.argv[1] + "/checkpoints")
    source = GeneratorSource(lambda n: n, count=3_000, records_per_second=300)
    env.from_source(source).key_by(lambda n: n % 7).map(lambda n: {"n": n}).sink_to(
        FileSink.json_lines(sys.argv[1] + "/out")
    )
    env.execute("survivor")
    print("ended", flush=True)
"""


@pytest.mark.campaign
def test_an_application_that_ray_job_stop_has_stopped_goes_on(cluster, tmp_path):
    ray, environment, _, server = cluster
    wait_until_served(server)
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "survivor.py").write_text(textwrap.dedent(SURVIVOR))

    def run(*command):
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BOUND_S, check=False)

    def submit(name, *options):
        ran = run(
            sys.executable, "-m", "headrace.cli", "run-application", "--address", server, "--python", sys.executable,
            "--submission-id", name, "--ha-dir", tmp_path / "ha", "--cluster-id", "orders", "-p", "2", *options,
            folder / "survivor.py", tmp_path,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def committed():
        files = (tmp_path / "out").glob("part-*")
        return sorted(json.loads(line)["n"] for file in files for line in file.read_text().splitlines())

    submit("first")
    deadline = time.monotonic() + BOUND_S
    while not committed():
        assert time.monotonic() < deadline, "it writes nothing"
        time.sleep(0.1)
    stopped = run(ray, "job", "stop", "--address", server, "first")
    assert "was stopped" in stopped.stdout + stopped.stderr
    assert 0 < len(committed()) < 3_000
    assert "ended" in submit("second", "--follow")
    assert committed() == list(range(3_000))


@pytest.mark.campaign
def test_through_ray_job_submit(cluster, tmp_path):
    ray, environment, address, server = cluster
    wait_until_served(server)
    command = [ray, "job", "submit", "--address", server, "--", sys.executable, PROGRAM, tmp_path / "out"]
    deadline = time.monotonic() + BOUND_S
    while True:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BOUND_S, check=False)
        # The job server answers before the agent that starts jobs is up, and says so.
        if "No available agent" not in ran.stderr or time.monotonic() > deadline:
            break
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "finished after" in ran.stdout
    assert delays_in(tmp_path / "out") == expected_delays()
    listed = [sys.executable, "-m", "headrace.cli", "list", "--address", address]
    ran = subprocess.run(listed, env=environment, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert ran.stdout == "no jobs\n", "the job's cluster goes with the submitted program"
