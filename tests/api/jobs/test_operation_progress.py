"""How far a command is that waits for a job, on a terminal and where there is none.

Risks: lines in the output of programs, a line that says less than is known, a follower that outlives its command or
fails it.
"""

from __future__ import annotations

import dataclasses
import io
import json
import threading
from contextlib import contextmanager, redirect_stderr

import pytest
from dashboard_kit import until

from headrace import ClusterUnavailableError, StreamExecutionEnvironment, cli
from headrace.actors import connecting
from headrace.actors.rest.resources import checkpoints
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.protocol.details import CheckpointView, TaskAcknowledgement
from headrace.engine.protocol.messages import FetchPendingCheckpoints
from headrace.engine.protocol.states import CheckpointStatus, JobStatus
from headrace.engine.protocol.views import JobView
from headrace.jobs import operation_progress
from headrace.jobs.operation_progress import look_at, operation_line, operation_shown
from headrace.rest.served_jobs import RestJobClient
from headrace.state.identifiers import JobId, VertexId

JOB = JobId("job-1")


def view(**more):
    return JobView(JOB, "counts", JobStatus.RUNNING, 1, 0, None, **more)


def checkpoint(number, tasks, num_subtasks=4, **more):
    done = tuple(
        TaskAcknowledgement(VertexId("v"), i, 0, 1 << 30, 1 << 20, 0, 0.0, 0.0, 0.0, False) for i in range(tasks)
    )
    given = {"is_savepoint": False, "is_last": False, **more}
    return CheckpointView(
        number, CheckpointStatus.IN_PROGRESS, given["is_savepoint"], given["is_last"], 0, None, num_subtasks, done
    )


def test_a_line_says_who_has_acknowledged_and_how_large_that_is():
    pending = [checkpoint(8, 1), checkpoint(7, 3, is_savepoint=True)]
    line = operation_line("savepoint", [one.progress for one in pending], view(), 12.4)
    expected = "savepoint 7: 3 of 4 subtasks, 3.0 GiB of state, 3.0 MiB written"
    assert line == f"savepoint: job is RUNNING | {expected} | 12 s"
    assert "checkpoint 8 begins" in operation_line("stop", [checkpoint(8, 0, 0, is_last=True).progress], view(), 0)
    pending = [checkpoint(9, 2).progress, checkpoint(8, 1).progress]
    assert "checkpoint 9: 2 of 4" in operation_line("checkpoint", pending, view(), 0)
    waits = operation_line("rescale", [], view(waiting="2 slots"), 3)
    assert waits == "rescale: job is RUNNING | waits for slots: 2 slots | 3 s"


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Cluster:
    """Answers, unless it is silent; counts questions."""

    def __init__(self):
        self.num_asked = 0
        self.is_silent = False

    def ask_job(self, _job_id, request, _timeout_ms):
        self.num_asked += 1
        if self.is_silent:
            message = "no answer"
            raise ClusterUnavailableError(message)
        return (checkpoint(3, 2),) if isinstance(request, FetchPendingCheckpoints) else view()


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(operation_progress, "REFRESH_S", 0.001)


def test_it_is_followed_on_a_terminal_and_also_while_the_job_is_silent():
    cluster = Cluster()
    with redirect_stderr(Terminal()) as terminal, operation_shown(look_at(cluster, JOB), "checkpoint", is_quiet=False):
        until(lambda: "checkpoint 3: 2 of 4 subtasks" in terminal.getvalue(), "nothing is shown")
        cluster.is_silent = True
        asked = cluster.num_asked
        until(lambda: cluster.num_asked > asked + 2, "it gives up")
        cluster.is_silent = False
        length = len(terminal.getvalue())
        until(lambda: len(terminal.getvalue()) > length, "it does not go on")
    assert not [one for one in threading.enumerate() if one.name == "headrace-operation"]


def test_by_rest_it_is_the_same_line(monkeypatch):
    """What REST says of checkpoints comes from the same views, by way of its own JSON."""
    pending = [checkpoint(8, 1), checkpoint(7, 3, is_savepoint=True)]
    monkeypatch.setattr(checkpoints, "now_ms", lambda: 0)
    ended = dataclasses.replace(checkpoint(6, 4), status=CheckpointStatus.COMPLETED, ended_ms=5)

    class Server:
        def checkpoints(self, _job):
            return {"history": [checkpoints._checkpoint(one) for one in (*pending, ended)]}

        def job(self, job):
            times = {"start-time": 0, "end-time": -1}
            said = {"jid": job, "name": "counts", "state": "RUNNING", "waiting": "2 slots", "num-restarts": 0}
            return {**said, **times, "vertices": []}

    by_rest = operation_line("savepoint", *RestJobClient(Server(), JOB).look(), 1)
    by_ray = operation_line("savepoint", [one.progress for one in pending], view(waiting="2 slots"), 1)
    assert by_rest == by_ray
    assert "savepoint 7: 3 of 4 subtasks, 3.0 GiB of state, 3.0 MiB written" in by_rest


def test_nothing_is_asked_or_shown_where_that_is_not_wanted_or_there_is_no_terminal():
    cluster = Cluster()
    for stream, is_quiet in ((Terminal(), True), (io.StringIO(), False)):
        with redirect_stderr(stream), operation_shown(look_at(cluster, JOB), "checkpoint", is_quiet=is_quiet):
            pass
        assert (stream.getvalue(), cluster.num_asked) == ("", 0)


def test_commands_about_a_job_follow_it(tmp_path, monkeypatch, capsys):
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.enable_checkpointing(60_000, directory=tmp_path / "checkpoints")
        numbers = env.from_source(GeneratorSource(lambda n: n, records_per_second=100), None, "numbers")
        numbers.key_by(lambda n: n % 3).reduce(lambda a, b: a + b).filter(lambda _n: False).print()
        client = env.execute_async("counts")
        job = client.get_job_id()
        until(lambda: client.view().state == "RUNNING", "it does not run")
        monkeypatch.setattr(connecting, "all_jobs", lambda _address: [("local", client.view())])

        @contextmanager
        def named(_address, _name):
            yield env._cluster

        monkeypatch.setattr(connecting, "cluster_named", named)

        def said(*arguments):
            with redirect_stderr(Terminal()) as terminal:
                assert cli.main([*arguments, job]) == 0
            return terminal.getvalue()

        assert "checkpoint: job is RUNNING" in said("checkpoint")
        assert "rescale: job is " in said("rescale", "-p", "1")
        assert said("stop", "--json") == ""
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["location"]
