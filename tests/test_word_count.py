"""The word count of ``notebooks/`` by one command: in this process, and on Spark in Ray; and data sets under
``headrace run``: which executor, which exit status. Oracle: counting in plain Python."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from repository import NOTEBOOKS

from headrace.cli import main

PROGRAM = NOTEBOOKS / "word_count.py"
TEXT = NOTEBOOKS.parent / "LICENSE"
BOUND_S = 120


def expected(*texts):
    """What the program prints."""
    counted = Counter(word for text in texts for word in re.findall(r"[a-z']+", Path(text).read_text().lower()))
    most = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:10]
    lines = [f"{times:7,}  {word}" for word, times in most]
    return [*lines, f"{counted.total():7,}  words, {len(counted):,} different ones"]


@pytest.fixture
def run_here(monkeypatch):
    """``headrace run`` in this process; what it sets for its program is taken back."""

    def run(*arguments):
        for name in ("HEADRACE_EXECUTOR", "HEADRACE_PARALLELISM", "HEADRACE_PROGRESS"):
            monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        return main(["run", *map(str, arguments)])

    return run


def test_the_local_executor_counts_in_this_process(run_here, capsys):
    started = time.process_time()
    assert run_here("--executor", "local", PROGRAM) == 0
    # Of the processor, which waits for no other process; a start of Python and the imports come on top.
    assert time.process_time() - started < 2.0
    assert capsys.readouterr().out.splitlines() == expected(TEXT)


def test_the_option_wins_over_the_variable(run_here, capsys, monkeypatch):
    chapters = sorted((NOTEBOOKS.parent / "docs" / "guide").glob("*.md"))
    monkeypatch.setenv("HEADRACE_EXECUTOR", "spark")
    assert run_here("--executor", "local", "-p", 3, PROGRAM, NOTEBOOKS.parent / "docs" / "guide") == 0
    assert capsys.readouterr().out.splitlines() == expected(*chapters)
    monkeypatch.setenv("HEADRACE_EXECUTOR", "local")
    assert run_here(PROGRAM, TEXT) == 0
    assert capsys.readouterr().out.splitlines() == expected(TEXT)


def test_a_failure_is_an_exit_status(run_here, capsys, tmp_path):
    assert run_here("--executor", "local", PROGRAM, tmp_path / "nothing.txt") == 1
    assert "error: [SourceError] there is no file" in capsys.readouterr().err
    failing = tmp_path / "failing.py"
    failing.write_text(
        "from headrace import ExecutionEnvironment\n"
        "env = ExecutionEnvironment.get_execution_environment()\n"
        "env.from_elements(1, 0).map(lambda n: 1 // n).print()\n"
    )
    assert run_here("--executor", "local", failing) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert "ZeroDivisionError" in shown
    with pytest.raises(SystemExit) as wrong:
        run_here("--executor", "flink", PROGRAM)
    assert wrong.value.code == 2


ENDLESS = """
from headrace import ExecutionEnvironment
env = ExecutionEnvironment.get_execution_environment()

def forever(n):
    print("begun", flush=True)
    while True:
        n += 1

env.from_elements(1).map(forever).print()
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_data_set(tmp_path):
    (tmp_path / "endless.py").write_text(ENDLESS)
    with subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", "run", "--executor", "local", "endless.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A suite that runs in the background of a shell inherits an ignored SIGINT, and would hand it on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=BOUND_S)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(2 * BOUND_S)
def test_spark_counts_by_one_command(tmp_path):
    pytest.importorskip("raydp")
    environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_EXECUTOR"}
    ran = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "run", PROGRAM],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=BOUND_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == expected(TEXT), ran.stdout
