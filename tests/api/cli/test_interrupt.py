"""Ctrl-C: the job is canceled and no process stays, whether it runs in a script or in the demo."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from campaigns import campaign
from rest_kit import ask
from terminal_kit import CTRL_C, Terminal

BOUND_S = 60

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(3 * BOUND_S)]

ENDLESS = """
from headrace import StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
env = StreamExecutionEnvironment.get_execution_environment(parallelism=2)
env.from_source(GeneratorSource(lambda n: n, records_per_second=100), None, "endless").map(lambda n: n)
env.execute("endless")
"""


KEPT = """
from headrace import ExternalizedCheckpointRetention, StreamExecutionEnvironment
from headrace.connectors.datagen import GeneratorSource
env = StreamExecutionEnvironment.get_execution_environment(parallelism=1)
env.enable_checkpointing(50, directory="checkpoints").get_checkpoint_config().set_externalized_checkpoint_retention(
    ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
numbers = env.from_source(GeneratorSource(lambda n: n, records_per_second=100), None, "endless").uid("numbers")
numbers.key_by(lambda n: n % 2).reduce(lambda a, b: a + b).uid("sums").print().uid("printed")
env.execute("kept")
"""


SAVED = KEPT.replace("env.enable", "env.set_default_savepoint_directory('saved')\nenv.enable", 1)


def descendants(root):
    """Process ids of everything that a process has started, itself left out."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        parents[int(stat.parent.name)] = int(fields[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def runtime_folder(tmp_path):
    """Where REST servers write down where they are."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def started(tmp_path, *command):
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "XDG_RUNTIME_DIR": str(runtime_folder(tmp_path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A suite that runs in the background of a shell inherits an ignored SIGINT, and would hand it on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_ctrl_c_says_how_to_go_on_from_a_checkpoint_that_is_kept(tmp_path):
    (tmp_path / "kept.py").write_text(KEPT)
    with started(tmp_path, "run", "--target", "local", "kept.py") as process:
        for line in process.stdout:
            if "checkpoint" in line:  # one is complete
                break
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 130, rest
    found = re.search(r"to go on from it: headrace run (--from-savepoint \S+) PROGRAM", rest)
    assert found is not None, rest
    with started(tmp_path, "run", "--target", "local", "--dry-run", *found[1].split(), "kept.py") as process:
        said, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, said
    assert "sums" in said


def test_ctrl_c_on_a_terminal_asks_and_stops_the_job_with_a_savepoint(tmp_path):
    (tmp_path / "saved.py").write_text(SAVED)
    terminal = Terminal([sys.executable, "-m", "headrace.cli", "run", "--target", "local", "saved.py"], tmp_path)
    try:
        terminal.wait_for(
            "Ctrl-C asks whether to stop the job with a savepoint; to cancel it keeps its last checkpoint"
        )
        terminal.wait_for("kept: RUNNING")
        terminal.type(CTRL_C)
        terminal.wait_for(r"Ctrl-C: s stops the job with a savepoint, c \(or Ctrl-C\) cancels it, Enter goes on: ")
        terminal.type("\r")
        terminal.wait_for(r"kept: RUNNING \| checkpoint \d+")
        terminal.type(CTRL_C)
        terminal.wait_for("Enter goes on: ")
        terminal.type("s\r")
        savepoint = terminal.wait_for(r"savepoint: (\S+); to go on from it: headrace run --from-savepoint \S+ PROGRAM")
        assert terminal.ended() == 0
    finally:
        terminal.close()
    assert "Traceback" not in terminal.all_text
    with started(
        tmp_path, "run", "--target", "local", "--dry-run", "--from-savepoint", savepoint[1], "saved.py"
    ) as run:
        said, _ = run.communicate(timeout=BOUND_S)
    assert run.returncode == 0, said
    assert "sums" in said


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("way", ["script", campaign("demo")])
@pytest.mark.campaign
def test_ctrl_c_leaves_nothing_behind(tmp_path, way):
    (tmp_path / "endless.py").write_text(ENDLESS)
    with started(tmp_path, *{"script": ["run", "endless.py"], "demo": ["demo"]}[way]) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "dashboard: http" in line:
                break
        url = re.search(r"dashboard: (http://127\.0\.0\.1:\d+)/#/job/[0-9a-f]{32} ", lines[-1])[1]
        assert ask(url, "/jobs", "").status == 401, "a page is served, and nothing is told without the token"
        assert len(list(runtime_folder(tmp_path).glob("headrace/rest-*.json"))) == 1
        below = descendants(process.pid)
        assert below, "".join(lines)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=BOUND_S)
    text = "".join(lines) + rest
    assert process.returncode == 130, text
    assert "canceled" in rest, text
    assert "Traceback" not in text
    assert not list(runtime_folder(tmp_path).glob("headrace/*"))
    deadline = time.monotonic() + BOUND_S
    while left := [pid for pid in below if is_alive(pid)]:
        assert time.monotonic() < deadline, f"left running: {left}"
