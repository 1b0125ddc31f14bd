"""Programs from the command line: shown, begun, watched, completed."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys

import pytest
from rest_kit import rest_environment

from headrace import WatermarkStrategy
from headrace.cli import programs, top
from headrace.cli.main import main
from headrace.connectors.datagen import GeneratorSource
from headrace.dataset import environment as dataset_environment
from headrace.dataset.environment import ExecutionEnvironment

PROGRAM = """
import sys
from headrace import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=3)
env.from_collection([1, 2]).map(lambda n: n + int(sys.argv[1])).name("adds").print()
env.execute("shown")
raise AssertionError("it has run")
"""

DATA_SET = """
from headrace.dataset import ExecutionEnvironment
env = ExecutionEnvironment.get_execution_environment("local")
print(env.from_elements(1, 2).map(lambda n: n).collect())
"""


def written(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(text)
    return str(path)


def test_info_shows_a_program_and_does_not_run_it(tmp_path, capsys):
    path = written(tmp_path, PROGRAM)
    assert main(["info", path, "7"]) == 0
    text = capsys.readouterr().out
    assert "job 'shown'" in text
    assert "adds" in text
    assert "parallelism 3" in text
    assert main(["info", "--json", path, "7"]) == 0
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert "adds" in [node["type"] for node in nodes]
    assert "HEADRACE_INFO" not in os.environ


def test_info_shows_a_data_set_and_says_when_there_is_nothing_to_show(tmp_path, capsys):
    assert main(["info", written(tmp_path, DATA_SET)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("data set 'headrace dataset job'")
    assert "map by <lambda>" in text
    assert main(["info", "--json", written(tmp_path, DATA_SET)]) == 0
    assert [node["operator"] for node in json.loads(capsys.readouterr().out)["nodes"]][-1] == "Collect"
    assert main(["info", written(tmp_path, "x = 1")]) == 1
    assert "without running a job" in capsys.readouterr().err
    assert main(["info", str(tmp_path / "none.py")]) == 2
    assert main(["info", written(tmp_path, "x = ")]) == 1
    assert "SyntaxError" in capsys.readouterr().err


@pytest.mark.campaign
def test_init_makes_a_project_whose_test_passes(tmp_path, capsys):
    folder = tmp_path / "my-orders"
    assert main(["init", str(folder)]) == 0
    assert "PROJECT" not in "".join(path.read_text() for path in folder.rglob("*.*"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "1 passed" in found.stdout
    assert main(["info", str(folder / "job.py")]) == 0
    assert "my-orders" in capsys.readouterr().out
    for wrong in (str(folder), str(tmp_path / "1st"), str(tmp_path / "a b"), str(tmp_path / "class")):
        assert main(["init", wrong]) == 1, wrong


@pytest.mark.parametrize("is_there", [True, False])
def test_init_says_what_its_test_needs_if_that_is_not_installed(tmp_path, capsys, monkeypatch, is_there):
    monkeypatch.setattr(programs, "find_spec", lambda name: object() if is_there else None)
    assert main(["init", str(tmp_path / "shop")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert ("  python -m pip install pytest" in said) is not is_there
    assert said[-2:] == ["  python -m pytest -q", "  headrace run job.py"]


def test_top_shows_what_runs_in_lines_and_as_a_table(monkeypatch, capsys):
    from rich.console import Console

    with rest_environment() as env:
        env.enable_checkpointing(50)
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _time: n)
        numbers = env.from_source(GeneratorSource(lambda n: n, records_per_second=100), times, "numbers")
        numbers.rebalance().map(lambda n: n).name("[red]adds").filter(lambda n: False).print()
        job_id = env.execute_async("watched").get_job_id()
        client = env.get_rest_client()
        while not all((vertex.get("low-watermark") or -1) > 0 for vertex in client.job(job_id)["vertices"]):
            pass
        while client.checkpoints(job_id)["counts"]["completed"] == 0:
            pass
        monkeypatch.setenv("HEADRACE_REST_TOKEN", client.token)
        assert main(["top", "--url", client.url, "--times", "1"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "1 running, 2 of 2 slots used"
        assert re.fullmatch(rf"{job_id}  RUNNING  watched  checkpoint \d+ took \d+ ms", lines[1])
        assert len(lines) == 4
        assert "[red]adds" in lines[3]
        assert re.search(r"waits \d+%, event time [\d,]+ d behind$", lines[3])  # that of 1970
        console = Console(width=120, record=True, file=io.StringIO())
        console.print(top._table(client.overview(), [top._seen(client, job_id)]))
        shown = console.export_text()
        assert "[red]adds" in shown
        assert re.search(rf"watched {job_id[:8]} checkpoint \d+ took", shown)
        assert re.search(r"adds.* \d+% .* \d+% .* [\d,]+ d ", shown)
        client.cancel(job_id)
        assert main(["top", "--url", client.url, "--times", "1"]) == 0
        assert capsys.readouterr().out.splitlines()[0].startswith("0 running")


def test_a_shell_is_told_how_a_line_may_go_on(tmp_path):
    pytest.importorskip("argcomplete")
    output = tmp_path / "completions"
    given = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(output), "_ARGCOMPLETE_IFS": "\n"}
    for line, wanted in (("headrace sav", {"savepoint "}), ("headrace logs --op", {"--operator "})):
        environment = {**os.environ, **given, "COMP_LINE": line, "COMP_POINT": str(len(line))}
        subprocess.run([sys.executable, "-m", "headrace.cli"], env=environment, capture_output=True, check=False)
        assert set(output.read_text().split("\n")) >= wanted


def test_without_spark_data_sets_run_in_this_process_and_say_so(monkeypatch, capsys):
    monkeypatch.delenv("HEADRACE_EXECUTOR", raising=False)
    find = dataset_environment.importlib.util.find_spec
    missing = {"raydp"}
    monkeypatch.setattr(
        dataset_environment.importlib.util, "find_spec", lambda name: None if name in missing else find(name)
    )
    env = ExecutionEnvironment.get_execution_environment()
    assert (
        capsys.readouterr().err
        == "data sets run in this process: raydp not installed (pip install 'headrace[spark]')\n"
    )
    assert sorted(env.from_elements(3, 1, 2).collect()) == [1, 2, 3]
    ExecutionEnvironment.get_execution_environment("local")
    ExecutionEnvironment.get_execution_environment("spark")
    monkeypatch.setenv("HEADRACE_EXECUTOR", "spark")
    ExecutionEnvironment.get_execution_environment()
    assert capsys.readouterr().err == ""
