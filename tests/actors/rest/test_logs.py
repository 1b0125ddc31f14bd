"""Logs of a job, a TaskManager and the head: who has said what, where, and what is not shown.

Risks and families: lines without their place (a job that logs, against what it says itself), secrets, paths that lead
elsewhere (enumeration), files that grow, what is lost while one follows.
"""

from __future__ import annotations

import json
import logging
import re
import time
from types import SimpleNamespace

import pytest
from rest_kit import ask, part, rest_environment

from headrace import MapFunction
from headrace.actors.hosts import log_files
from headrace.actors.hosts.log_files import HostLogs, cluster_log_folder, remove_old_logs
from headrace.actors.rest.resources import logs
from headrace.cli import job_logs
from headrace.cli.job_logs import readable
from headrace.cli.main import main
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.errors import ConfigurationError
from headrace.engine.protocol.observation_messages import ObservedTask
from headrace.rest.client import RestClient
from headrace.state.identifiers import ExecutionAttemptId, VertexId

LOG = logging.getLogger("a.users.function")
NUM_RECORDS = 10
PATIENCE_S = 20


class Says(MapFunction):
    def open(self, runtime_context):
        self._index = runtime_context.get_index_of_this_subtask()

    def map(self, value):
        LOG.warning('record "%d" in subtask %d, password=hunter%d', value, self._index, value)
        return value


class Logged:
    def __init__(self):
        self.env = rest_environment()
        source = GeneratorSource(lambda n: n, NUM_RECORDS)
        self.env.from_source(source, None, "numbers").rebalance().map(Says()).name("says").print()
        self.job_id = self.env.execute_async("talks").get_job_id()
        (self.address,) = self.env._cluster.rest_addresses()
        self.client = RestClient(self.address.url, self.address.tokens.read)
        assert self.client.wait(self.job_id) == "FINISHED"

    def get(self, path):
        return ask(self.address.url, path, self.address.tokens.read)


@pytest.fixture(scope="module")
def logged():
    logged = Logged()
    yield logged
    logged.env.close()
    assert not logging.getLogger().handlers or all("local.log" not in str(one) for one in logging.getLogger().handlers)


def said(lines):
    """Which records lines are of, with the subtasks that they name: by the function itself, and by their keys."""
    found = []
    for line in (one["line"] for one in lines):
        own = re.search(r'record \\"(\d+)\\" in subtask (\d)', line)
        if own is not None:
            keys = re.search(
                r'^level=WARNING time=\S+Z host=local job=(\w+) operator="(.+?)" subtask=(\d) attempt=0', line
            )
            assert keys is not None, line
            found.append((int(own[1]), int(own[2]), int(keys[3]), keys[1], keys[2]))
    return found


def test_a_line_says_its_job_operator_and_subtask_and_no_secret(logged):
    lines = logged.client.log(logged.job_id)["lines"]
    found = said(lines)
    assert sorted(record for record, *_ in found) == list(range(NUM_RECORDS))
    assert {index for _, index, *_ in found} == {0, 1}
    for _, index, subtask, job, operator in found:
        assert (subtask, job) == (index, logged.job_id)
        assert "says" in operator
    assert "hunter" not in str(lines)
    assert "password=***" in str(lines)


def test_lines_of_one_operator_or_subtask_are_picked(logged):
    for subtask in (0, 1):
        found = said(logged.client.log(logged.job_id, operator="says", subtask=subtask)["lines"])
        assert {index for _, index, *_ in found} == {subtask}
    assert logged.client.log(logged.job_id, operator="nobody")["lines"] == []


def test_who_follows_gets_each_line_once(logged):
    first = logged.client.log(logged.job_id)
    assert logged.client.log(logged.job_id, after=first["after"])["lines"] == []
    LOG.warning("job %s: one more", logged.job_id)
    (line,) = logged.client.log(logged.job_id, after=first["after"])["lines"]
    assert "one more" in line["line"]
    assert logged.get(f"/jobs/{logged.job_id}/logs?after=x").status == 400
    assert logged.get(f"/jobs/{logged.job_id}/logs?after=W10=").status == 400


def test_the_command_prints_them(logged, monkeypatch, capsys):
    monkeypatch.setenv("HEADRACE_REST_TOKEN", logged.address.tokens.read)
    command = ["logs", "--url", logged.address.url, "--follow", "--operator", "says", logged.job_id[:8]]
    assert main([*command, "--json"]) == 0
    whole = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(record for record, *_ in said(whole)) == list(range(NUM_RECORDS))
    assert main(command) == 0
    printed = capsys.readouterr().out.splitlines()
    for line, one in zip(printed, whole, strict=True):
        ((record, subtask, *_, operator),) = said([one])
        event = f'record "{record}" in subtask {subtask}, password=***'
        assert re.fullmatch(rf"\S+Z WARNING {re.escape(operator)}\[{subtask}\]: {re.escape(event)}  \(local\)", line)
    assert main(["logs", "--url", logged.address.url, "nothing"]) == 1


def test_a_line_for_people_has_what_lines_differ_in():
    job, at = "ab" * 16, "2026-01-02T03:04:05.006Z"
    line = f'level=WARNING time={at} host=tm-{job}-0-slot-1-1 job={job} operator="a -> b" subtask=3 attempt=2 epoch=1 '
    line += 'logger=shop event="say \\"x\\" = a\\\\b"'
    assert readable(line, job) == f'{at} WARNING a -> b[3] attempt=2: say "x" = a\\b  (tm-0-slot-1-1)'
    line = f"level=INFO time={at} host=jm-{job}-1 machine=JobManager job={job} epoch=1 checkpoint=7 event=aborted"
    assert readable(line, job) == f"{at} INFO    JobManager checkpoint=7: aborted  (jm-1)"
    assert f"job={'cd' * 16}" in readable(line.replace(f"job={job}", f"job={'cd' * 16}"), job)
    for other in ("", "a traceback = x", f"time={at} what is this", f"time={at} x=1", 'time="open event=1'):
        assert readable(other, job) == other


def test_files_are_listed_and_read_by_their_names_and_nothing_else_is(logged):
    (file,) = logged.get("/jobmanager/logs").json["logs"]
    assert file["name"] == "local.log"
    assert file["size"] > 0
    text = logged.get("/jobmanager/logs/local.log").content.decode()
    assert text == logged.get("/jobmanager/log").content.decode()
    assert text.count("in subtask") == NUM_RECORDS
    for wrong in ("../local.log", "/etc/passwd", "..", ".", "local.log/../local.log", "%2e%2e%2fx", "local.log\0"):
        assert logged.get(f"/jobmanager/logs/{part(wrong)}").status == 404, wrong
        assert logged.get(f"/taskmanagers/tm/logs/{part(wrong)}").status == 404, wrong


# ------------------------------------------------------------------------------------------------------------ the files
TASK = ObservedTask(ExecutionAttemptId(1, 0, VertexId("v"), 3), False, True, "j", "a -> b")


def test_a_task_manager_shows_its_own_files_and_those_of_its_slots(tmp_path):
    for name in ("tm-1.log", "tm-1.log.1", "tm-1-slot-0-1.log", "tm-10.log", "head.log", "tm-1-slotty.log"):
        (tmp_path / name).write_text(name + "\n")
    (tmp_path / "tm-1-slot-9-1.log").symlink_to("/etc/passwd")
    logs = HostLogs(tmp_path, "head", list, lambda: None)
    assert [one.name for one in logs.files("tm-1")] == ["tm-1-slot-0-1.log", "tm-1.log", "tm-1.log.1"]
    assert logs.read("tm-10.log", 0, 100, "tm-1") is None
    assert logs.read("tm-1-slot-9-1.log", 0, 100, "tm-1") is None
    assert logs.read("tm-10.log", 0, 100).text == "tm-10.log\n"


def test_reading_ends_and_begins_at_lines(tmp_path):
    kept = HostLogs(tmp_path, "h", list, lambda: None)
    (tmp_path / "h.log").write_bytes(b"one\ntwo\nthr")
    assert kept.read("h.log", 0, 100) == ("one\ntwo\n", 8)
    assert kept.read("h.log", 8, 100) == ("thr", 11)
    assert kept.read("h.log", 0, 6) == ("one\n", 4)
    assert kept.read("h.log", -5, 100) == ("", 8)
    assert kept.read("h.log", -9, 100) == ("two\n", 8)
    assert kept.read("h.log", 1_000, 100).text == "one\ntwo\n"  # it was begun anew


def test_a_process_has_two_files_at_most_and_only_its_loop_names_a_task(tmp_path, monkeypatch):
    monkeypatch.setattr(log_files, "MAX_FILE_BYTES", 2_000)
    thread = None
    logs = HostLogs(tmp_path, "h", lambda: [TASK], lambda: thread)
    logs.start(sets_level=False)
    try:
        for number in range(100):
            LOG.warning("line %d", number)
        assert "operator" not in (tmp_path / "h.log").read_text()
        import threading

        thread = threading.get_ident()
        LOG.error("two\nlines")
    finally:
        logs.close()
    assert {path.name for path in tmp_path.iterdir()} == {"h.log", "h.log.1"}
    assert all(path.stat().st_size <= 2_000 for path in tmp_path.iterdir())
    last = (tmp_path / "h.log").read_text().splitlines()[-1]
    assert 'job=j operator="a -> b" subtask=3 attempt=0 epoch=1' in last
    assert last.endswith('event="two lines"')


def test_folders_are_the_users_own_and_are_removed_when_they_are_old(tmp_path, monkeypatch):
    monkeypatch.setenv(log_files.FOLDER_VARIABLE, str(tmp_path / "logs"))
    for name in ("a", "../b", "..", "c/d"):
        folder = cluster_log_folder(name)
        assert folder.parent == tmp_path / "logs"
        assert folder.is_dir()
    monkeypatch.setattr(time, "time", lambda: 4e9)
    remove_old_logs()
    assert list((tmp_path / "logs").iterdir()) == []
    (tmp_path / "link").symlink_to(tmp_path / "logs")
    monkeypatch.setenv(log_files.FOLDER_VARIABLE, str(tmp_path / "link"))
    with pytest.raises(ConfigurationError):
        cluster_log_folder("a")


def test_who_follows_gets_more_than_goes_into_one_answer(tmp_path, monkeypatch, capsys):
    """Also where a whole answer has no line that is wanted, and the job has ended meanwhile."""
    job = "a" * 32
    path = tmp_path / f"jm-{job}.log"
    monkeypatch.setattr(logs, "host_logs", lambda: HostLogs(tmp_path, "head-0", list, lambda: None))
    monkeypatch.setattr(job_logs, "FOLLOW_S", 0)

    class Client:
        def __init__(self):
            self.states = iter(["RUNNING"])

        def jobs(self):
            return [{"jid": job}]

        def job_status(self, _job):
            return next(self.states, "FINISHED")

        def log(self, _job, operator, subtask, after):
            details = SimpleNamespace(view=SimpleNamespace(job_id=job))
            cluster = SimpleNamespace(details=lambda _job: details, task_managers=list)
            wanted = {"operator": operator, "subtask": subtask, "after": after}
            query = {name: value for name, value in wanted.items() if value is not None}
            answer = logs.job_log(SimpleNamespace(cluster=cluster, path={"jobid": job}, query=query))
            if after is None:
                with path.open("a") as file:
                    file.writelines(f"operator=other {'x' * 90}\n" for _ in range(2 * logs.MAX_JOB_BYTES // 90))
                    file.write("operator=mine last\n")
            return answer

    path.write_text("operator=mine first \x1b[31mred\n")
    monkeypatch.setattr(job_logs, "rest_client", lambda _options: Client())
    assert main(["logs", "-f", "--operator", "mine", job]) == 0
    followed = capsys.readouterr()
    assert followed.out == "operator=mine first \\x1b[31mred\noperator=mine last\n"  # no colours
    assert not followed.err

    # Who does not follow sees the end of the file, and is told that there is more.
    size = path.stat().st_size
    assert main(["logs", "--operator", "mine", job]) == 0
    seen = capsys.readouterr()
    assert seen.out == "operator=mine last\n"
    assert f"{size - logs.MAX_JOB_BYTES:,} bytes of earlier lines are left out" in seen.err
