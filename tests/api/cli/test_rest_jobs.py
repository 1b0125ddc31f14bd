"""Commands for jobs of a program whose Ray is its own: they reach it by REST, and by nothing else."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from dashboard_kit import until
from rest_kit import rest_environment

from headrace.actors import connecting
from headrace.cli.main import main
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.errors import ClusterUnavailableError
from headrace.jobs import operation_progress
from headrace.rest.client import RestClient
from headrace.rest.served_jobs import RestJobClient


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """No Ray that is announced, and no cluster of other tests."""

    def no_ray(_address):
        message = "no running Ray cluster was found on this machine"
        raise ClusterUnavailableError(message)

    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(connecting, "all_jobs", no_ray)


def started(env, tmp_path, name):
    env.enable_checkpointing(3_600_000, directory=tmp_path / "checkpoints")
    numbers = env.from_source(GeneratorSource(lambda n: n, records_per_second=100), None, "numbers").uid("numbers")
    numbers.rebalance().map(lambda n: n).uid("same").filter(lambda n: False).print()
    client = env.execute_async(name)
    rest = env.get_rest_client()  # waits until the server is there, and its address is written down
    while rest.job_status(client.get_job_id()) != "RUNNING":
        pass
    return client.get_job_id()


def test_a_job_of_a_program_is_listed_and_steered(alone, tmp_path, capsys):
    with rest_environment() as env:
        job = started(env, tmp_path, "orders")
        assert main(["list"]) == 0
        (line,) = capsys.readouterr().out.splitlines()[1:]
        assert line.split()[:2] == [job, "RUNNING"]
        assert line.endswith("stream    orders")
        assert main(["list", "--json"]) == 0
        assert [one["jid"] for one in json.loads(capsys.readouterr().out)] == [job]
        assert main(["savepoint", job[:8], str(tmp_path / "saved")]) == 0
        savepoint = Path(capsys.readouterr().out.strip())
        assert savepoint.parent == tmp_path / "saved"
        assert savepoint.is_dir()
        assert main(["checkpoint", job[:8], "--json"]) == 0
        assert Path(json.loads(capsys.readouterr().out)["location"]).is_file()
        assert main(["rescale", job[:8], "--parallelism", "1"]) == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["1", "1"]
        assert main(["rescale", job[:8], "--history"]) == 0
        shown = capsys.readouterr().out
        assert "command: Source: numbers 2 -> 1" in shown
        assert "1 in all" in shown
        assert main(["rescale", job[:8], "--history", "--json"]) == 0
        said = env.get_rest_client().rescales(job)["rescales"]
        assert json.loads(capsys.readouterr().out) == {"jid": job, "autoscaler": None, "rescales": said}
        assert main(["stop", job[:8]]) == 0
        first, last = capsys.readouterr().out.splitlines()
        assert first == f"stopped {job} (orders); its last checkpoint:"
        assert Path(last).is_file()
        assert main(["cancel", job[:8]]) == 0
        assert "has ended already: FINISHED" in capsys.readouterr().out
        other = started(env, tmp_path, "more")
        assert main(["cancel", other]) == 0
        assert env.get_rest_client().job_status(other) == "CANCELED"
        assert main(["stop", "none"]) == 1  # no id begins like that
        assert "there is no job 'none'" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_how_far_a_command_is_comes_by_rest(alone, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(operation_progress, "REFRESH_S", 0.001)
    terminal, take = Terminal(), RestClient.savepoint

    def seen_first(self, *arguments):
        until(lambda: "savepoint: job is RUNNING" in terminal.getvalue(), "nothing is shown")
        return take(self, *arguments)

    monkeypatch.setattr(RestClient, "savepoint", seen_first)
    with rest_environment() as env:
        job = started(env, tmp_path, "orders")
        with redirect_stderr(terminal):
            assert main(["savepoint", job[:8], str(tmp_path / "saved")]) == 0
        assert Path(capsys.readouterr().out.strip()).is_dir()
        shown = len(terminal.getvalue())
        with redirect_stderr(terminal):
            assert main(["checkpoint", job[:8], "--json"]) == 0
        assert len(terminal.getvalue()) == shown, "what is read by a program has no line beside it"


def test_without_a_server_it_is_said_that_there_is_no_ray(alone, capsys):
    assert main(["list"]) == 1
    assert "no running Ray cluster" in capsys.readouterr().err


def test_a_program_that_ends_with_its_job_is_told():
    class Gone:
        def stop(self, job_id, *, drain):
            message = "connection refused"
            raise ClusterUnavailableError(message)

    with pytest.raises(ClusterUnavailableError, match="the program of job j ends with it"):
        RestJobClient(Gone(), "j").stop(drain=False)
