"""Programs in application mode that are killed, stopped or refused, and run again: output is exact.

Processes die for real, at moments that a seed chooses. Each job writes to a folder of its own, which no other run's job
may write to, so that a job that is begun a second time is refused, or shows.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections import Counter

import pytest
from campaigns import num_blocks

from headrace import HighAvailabilitySettings

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.campaign,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("ray_session"),
]

PATIENCE_S = 300

STOPS = [
    ("blocks", signal.SIGTERM),
    ("threads", signal.SIGKILL),
    ("threads", signal.SIGTERM),
    ("blocks", signal.SIGKILL),
]
"""How a program runs its jobs, and what it dies of; a short campaign has the first ones."""

PROGRAM = """
    import sys, threading
    from headrace import HighAvailabilitySettings, StreamExecutionEnvironment
    from headrace.connectors.datagen import GeneratorSource
    from headrace.connectors.files import FileSink

    address, directory, cluster, style, *names = sys.argv[1:]

    def environment():
        ha = HighAvailabilitySettings(directory + "/ha", cluster, num_standbys=1, lease_ms=4_000)
        env = StreamExecutionEnvironment.get_execution_environment("ray", address, parallelism=2, high_availability=ha)
        env.enable_checkpointing(200, directory=directory + "/checkpoints")
        return env

    def run(env, name):
        begin = 10_000 * names.index(name)
        source = GeneratorSource(lambda n: begin + n, count=1_000, records_per_second=250)
        numbers = env.from_source(source).key_by(lambda n: n % 7).map(lambda n: {"n": n})
        numbers.sink_to(FileSink.json_lines(directory + "/out/" + name))
        client = env.execute_async(name)
        print("runs", name, flush=True)
        client.result()

    def run_alone(name):
        with environment() as env:
            run(env, name)

    if style == "blocks":
        for name in names:
            run_alone(name)
    elif style == "threads":
        threads = [threading.Thread(target=run, args=(environment(), name)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        env = environment()
        for name in names:
            run(env, name)
    print("ended", flush=True)
"""


class Application:
    """A program that is run again and again, on one directory.

    Args:
        directory: Of all that it writes.
        style: ``blocks`` (an environment for each job), ``threads`` or ``in turn``.
        names: Of its jobs.
    """

    def __init__(self, directory, style, names):
        import ray

        self.directory, self.style, self.names = directory, style, names
        self.cluster = f"application-{uuid.uuid4().hex[:6]}"
        self.settings = HighAvailabilitySettings(str(directory / "ha"), self.cluster, lease_ms=4_000)
        self._address = ray.get_runtime_context().gcs_address
        self._program = directory / "application.py"
        self._program.write_text(textwrap.dedent(PROGRAM))

    def command(self, names=None):
        places = [self._address, str(self.directory), self.cluster, self.style]
        return [sys.executable, str(self._program), *places, *(names or self.names)]

    def run(self, names=None):
        """Run it to its end."""
        environment = {**os.environ, "HEADRACE_APPLICATION": "1"}
        return subprocess.run(
            self.command(names), capture_output=True, text=True, env=environment, check=False, timeout=PATIENCE_S
        )

    @contextlib.contextmanager
    def running(self):
        """The program's process, whose lines are in its ``lines`` as they come."""
        environment = {**os.environ, "HEADRACE_APPLICATION": "1"}
        with (
            open(self.directory / "errors", "a") as errors,
            subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as main,
        ):
            main.lines = []
            reader = threading.Thread(target=lambda: main.lines.extend(map(str.strip, main.stdout)))
            reader.start()
            try:
                yield main
            finally:
                main.kill()
                reader.join()

    def wait_for(self, main, line):
        deadline = time.monotonic() + PATIENCE_S
        while line not in main.lines:
            assert main.poll() is None, (self.directory / "errors").read_text()[-3_000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def wait_until_written(self, name):
        """Wait until a job of the application has written something."""
        begin, deadline = 10_000 * self.names.index(name), time.monotonic() + PATIENCE_S
        while not any(begin <= n < begin + 1_000 for n in self.committed()):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def committed(self):
        out = self.directory / "out"
        lines = [line for path in out.rglob("part-*") for line in path.read_text().splitlines()]
        return Counter(json.loads(line)["n"] for line in lines)

    def expected(self):
        return Counter(10_000 * k + n for k in range(len(self.names)) for n in range(1_000))

    def ends_exactly(self):
        done = self.run()
        assert done.stdout.splitlines()[-1:] == ["ended"], done.stderr[-3_000:]
        assert self.committed() == self.expected()


@pytest.mark.parametrize(("style", "how"), STOPS[: num_blocks(1, len(STOPS))])
def test_a_program_that_is_stopped_amid_its_last_job_goes_on(tmp_path, style, how):
    """In blocks, each environment of the next run closes the cluster before another one asks for the last job."""
    application = Application(tmp_path, style, ["first", "last"])
    with application.running() as main:
        application.wait_for(main, "runs last")
        application.wait_until_written("last")
        main.send_signal(how)
        main.wait(60)
    assert application.committed() != application.expected()
    application.ends_exactly()


def test_another_program_is_refused_and_ends_nothing(tmp_path):
    application = Application(tmp_path, "in turn", ["first", "last"])
    with application.running() as main:
        application.wait_for(main, "runs last")
        application.wait_until_written("last")
    other = application.run(["other", "last"])
    assert "job 1 of the application was 'first' when its process died, and is 'other' now" in other.stderr
    application.ends_exactly()


def strike(application, main, victim, draw):
    """Kill a process of it; False if there is none now."""
    from failover import leader_pid

    if victim == "main":
        main.send_signal(draw.choice([signal.SIGKILL, signal.SIGTERM]))
        main.wait(60)
        return True
    try:
        pid = leader_pid(application.settings) if victim == "leader" else job_manager_pid(application.cluster)
        os.kill(pid, signal.SIGKILL)
    except (AssertionError, LookupError, ProcessLookupError):
        return False
    return True


def job_manager_pid(cluster):
    """That of a JobManager of the cluster; LookupError if there is none now."""
    import ray
    from ray.exceptions import RayError

    from headrace.actors.ray.host import NAMESPACE, actor_name

    names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True) if one["namespace"] == NAMESPACE]
    found = [name for name in names if name.startswith(actor_name(cluster, "jm-"))]
    try:
        handle = ray.get_actor(found[-1], namespace=NAMESPACE)
        return int(ray.get(handle.identity.remote(), timeout=10)[1])
    except (ValueError, RayError) as error:
        raise LookupError(cluster) from error


@pytest.mark.parametrize("seed", range(num_blocks(0, 4)))
def test_processes_die_at_any_moment(tmp_path, seed):
    """Of main, the leading head and JobManagers, also while the program starts and takes over what it has left."""
    draw = random.Random(seed)
    application = Application(tmp_path, draw.choice(["in turn", "blocks", "threads"]), ["a", "b", "c"])
    told = []
    for _ in range(4):
        with application.running() as main:
            until = time.monotonic() + draw.uniform(3, 16)
            while time.monotonic() < until and main.poll() is None:
                time.sleep(0.1)
            if main.poll() is not None:
                assert main.lines[-1:] == ["ended"], (told, (tmp_path / "errors").read_text()[-3_000:])
                break
            victims = draw.sample(["leader", "job manager", "main"], 2)
            for victim in victims:
                told.append((victim, main.lines[-1:], strike(application, main, victim, draw)))
                time.sleep(draw.uniform(0, 3))
            if "main" not in victims:
                continue  # it is killed at the end of the block
    else:
        application.ends_exactly()
    assert application.committed() == application.expected(), told
