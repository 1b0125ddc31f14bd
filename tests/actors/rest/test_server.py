"""REST over a running job: every route, its numbers against independent counts, and all that is not let in.

Risks and families: wrong numbers (oracle: calls counted by the functions themselves, state files on disk, the client's
own view); ways in (enumeration of the table, attacks replayed); load (single flight).
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from rest_kit import NUM_RECORDS, SEEN, ask, build, part, rest_environment

from headrace.actors.rest.resources.routes import Right
from headrace.actors.rest.resources.stages import summary_of
from headrace.actors.rest.security import fresh_tokens
from headrace.actors.rest.server import RestServer
from headrace.cli.main import main
from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.engine.protocol.messages import FetchJobDetails

PATIENCE_S = 20


def until(find, what):
    """The first thing that is found which is not None."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = find()
        if found is not None:
            return found
        time.sleep(0.02)
    raise AssertionError(what)


class Served:
    """A running job, and REST for it."""

    def __init__(self, directory):
        SEEN.clear()
        self.directory = directory
        self.env = rest_environment()
        build(self.env, directory / "checkpoints")
        self.job = self.env.execute_async("a job to look at")
        self.job_id = self.job.get_job_id()
        (self.address,) = self.env._cluster.rest_addresses()
        self.url, self.tokens = self.address.url, self.address.tokens
        self.path = f"/jobs/{self.job_id}"

    def get(self, path, **options):
        return ask(self.url, path, self.tokens.read, **options)

    def json(self, path):
        response = self.get(path)
        assert response.status == 200, (path, response)
        return response.json

    def change(self, method, path, body=None):
        return ask(self.url, path, self.tokens.write, method=method, body=body)

    def vertices(self):
        return {vertex["id"]: vertex for vertex in self.json(self.path)["vertices"]}

    def settle(self):
        """Wait until everything was read and told."""

        def is_told():
            noted = self.vertices().get("note")
            is_all = noted is not None and noted["metrics"]["read-records"] == NUM_RECORDS + SEEN["later"]
            return True if is_all and SEEN["number"] == NUM_RECORDS else None

        until(is_told, "the job does not read all")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("rest"))
    served.settle()
    yield served
    served.env.close()


# -------------------------------------------------------------------------------------------------------------- numbers
def test_records_are_those_that_the_functions_have_seen(served):
    vertices = served.vertices()
    assert set(vertices) == {"numbers", "end/less", "note"}
    assert vertices["numbers"]["metrics"]["write-records"] == NUM_RECORDS == SEEN["number"]
    assert vertices["note"]["metrics"]["read-records"] == SEEN["note", 0] + SEEN["note", 1]
    assert vertices["note"]["metrics"]["write-records"] == 0
    assert all(vertex["metrics"]["read-records-complete"] for vertex in vertices.values())

    def has_been_taken():
        (inputs,) = [node["inputs"] for node in served.json(served.path)["plan"]["nodes"] if node["id"] == "note"]
        return inputs if all(one["queue-fill"] == 0 for one in inputs) else None

    inputs = until(has_been_taken, "queues stay filled")
    assert {one["id"]: one["records"] for one in inputs} == {"numbers": NUM_RECORDS, "end/less": SEEN["later"]}
    # Event times of the numbers are milliseconds of 1970; the source has emitted them some time ago.
    names = ["watermarkLag", "currentEmitEventTimeLag", "sourceIdleTime"]
    path = f"{served.path}/vertices/numbers/subtasks/metrics?agg=min,max&get="
    ids = [one["id"] for one in served.json(f"{served.path}/vertices/numbers/subtasks/metrics")]
    found = {name: served.json(path + next(one for one in ids if one.endswith(f".{name}")))[0] for name in names}
    now_ms = 1_000 * time.time()
    assert found["currentEmitEventTimeLag"]["max"] == pytest.approx(now_ms, abs=120_000)
    assert 0 <= found["watermarkLag"]["min"] <= now_ms  # of a subtask that has ended it is 0
    assert 0 <= found["sourceIdleTime"]["min"] <= found["sourceIdleTime"]["max"] < 120_000
    path = f"{served.path}/vertices/note"
    subtasks = served.json(path)["subtasks"]
    assert [one["metrics"]["read-records"] for one in subtasks] == [SEEN["note", 0], SEEN["note", 1]]
    for index in (0, 1):
        assert served.json(f"{path}/subtasks/{index}")["metrics"]["read-records"] == SEEN["note", index]
        (own,) = served.json(f"{path}/subtasks/{index}/metrics?get=numRecordsIn")
        assert own == {"id": "numRecordsIn", "value": str(SEEN["note", index])}
    both = served.json(f"{path}/metrics?get=0.numRecordsIn,1.numRecordsIn,1.map.numRecordsIn,nothing")
    assert [one["value"] for one in both] == [str(SEEN["note", index]) for index in (0, 1, 1)]
    (over,) = served.json(f"{path}/subtasks/metrics?get=numRecordsIn")
    mine = [SEEN["note", 0], SEEN["note", 1]]
    assert (over["min"], over["max"], over["sum"], over["avg"]) == (min(mine), max(mine), sum(mine), sum(mine) / 2)
    (one,) = served.json(f"{path}/subtasks/metrics?get=numRecordsIn&agg=sum&subtasks=1")
    assert one == {"id": "numRecordsIn", "sum": mine[1]}
    assert {"id": "numRecordsIn"} in served.json(f"{path}/subtasks/metrics")
    assert served.json(f"{served.path}/accumulators")["user-task-accumulators"] == [
        {"name": "noted", "type": "IntCounter", "value": str(sum(mine))}
    ]


def test_the_overviews_count_jobs_tasks_and_slots(served):
    assert served.json("/overview") == {
        "taskmanagers": 1,
        "slots-total": 2,
        "slots-available": 0,
        "jobs-running": 1,
        "jobs-finished": 0,
        "jobs-cancelled": 0,
        "jobs-failed": 0,
    }
    assert served.json("/jobs") == {"jobs": [{"id": served.job_id, "status": "RUNNING"}]}
    assert served.json(f"{served.path}/status") == {"status": "RUNNING"}
    (job,) = served.json("/jobs/overview")["jobs"]
    assert (job["jid"], job["name"], job["state"]) == (served.job_id, "a job to look at", "RUNNING")
    assert job["tasks"]["total"] == job["tasks"]["running"] == 6
    assert job["end-time"] == -1
    (task_manager,) = served.json("/taskmanagers")["taskmanagers"]
    assert (task_manager["slotsNumber"], task_manager["freeSlots"]) == (2, 0)
    found = served.json(f"/taskmanagers/{part(task_manager['id'])}")
    assert [slot["assignedTasks"] for slot in found["allocatedSlots"]] == [3, 3]
    values = served.json("/jobmanager/metrics?get=taskSlotsTotal,taskSlotsAvailable,numRunningJobs")
    assert [one["value"] for one in values] == ["2", "0", "1"]
    (restarts,) = served.json("/jobs/metrics?get=numRestarts&agg=max")
    assert restarts == {"id": "numRestarts", "max": 0}
    assert served.json(f"/jobs/metrics?get=numRestarts&agg=sum&jobs={served.job_id}") == [
        {"id": "numRestarts", "sum": 0}
    ]


def test_a_job_says_when_it_came_into_its_states(served):
    job = served.json(served.path)
    view = served.job.view()
    assert job["start-time"] == view.started_ms
    assert view.started_ms <= job["timestamps"]["RUNNING"] <= job["now"]
    assert job["timestamps"]["FINISHED"] == 0
    for vertex in job["vertices"]:
        assert vertex["status"] == "RUNNING"
        assert vertex["tasks"]["RUNNING"] == vertex["parallelism"] == 2
        assert view.started_ms <= vertex["start-time"] <= job["now"]
        times = served.json(f"{served.path}/vertices/{part(vertex['id'])}/subtasktimes")
        for subtask in times["subtasks"]:
            stamps = [subtask["timestamps"][state] for state in ("SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")]
            assert stamps == sorted(stamps)
            assert min(stamps) >= view.started_ms
        (where,) = served.json(f"{served.path}/vertices/{part(vertex['id'])}/taskmanagers")["taskmanagers"]
        assert where["status-counts"]["RUNNING"] == 2
        for one in served.json(f"{served.path}/vertices/{part(vertex['id'])}")["subtasks"]:
            spent = [ms for ms in one["status-duration"].values() if ms >= 0]
            assert abs(sum(spent) - one["duration"]) <= 1_000
    assert job["status-counts"]["RUNNING"] == 3


def test_the_plan_is_the_programs(served):
    plan = served.json(f"{served.path}/plan")["plan"]
    nodes = {node["id"]: node for node in plan["nodes"]}
    assert plan["type"] == "STREAMING"
    assert [operator["uid"] for operator in nodes["note"]["operators"]][:2] == ["note", "none"]
    assert {(edge["id"], edge["ship_strategy"]) for edge in nodes["note"]["inputs"]} == {
        ("numbers", "HASH"),
        ("end/less", "HASH"),
    }
    assert "inputs" not in nodes["numbers"]
    assert served.json(served.path)["plan"] == plan
    config = served.json(f"{served.path}/config")["execution-config"]
    assert (config["execution-mode"], config["job-parallelism"], config["state-backend"]) == ("PIPELINED", 2, "heap")


def test_watermarks_are_those_of_event_time(served):
    def all_told():
        found = served.json(f"{served.path}/vertices/numbers/watermarks")
        return found if len(found) == 2 else None

    found = {one["id"]: int(one["value"]) for one in until(all_told, "sources tell no watermark")}
    # All input has been read: the end of event time.
    assert found == {f"{index}.currentOutputWatermark": 2**63 - 1 for index in (0, 1)}


def test_time_is_busy_idle_or_held_up(served):
    """Measured all the time; that nothing here is held up samples say, too."""
    for vertex in served.vertices():
        path = f"{served.path}/vertices/{part(vertex)}"
        found = served.json(f"{path}/backpressure")
        for subtask in found["subtasks"]:
            shares = [subtask[name] for name in ("backpressuredRatio", "idleRatio", "busyRatio")]
            assert all(0 <= share <= 1 for share in shares)
            assert sum(shares) == pytest.approx(1, abs=0.05)
        names = ("busyTimeMsPerSecond", "idleTimeMsPerSecond", "backPressuredTimeMsPerSecond")
        wanted = ",".join(f"{index}.{name}" for index in (0, 1) for name in names)
        times = served.json(f"{path}/metrics?get={wanted}")
        assert len(times) == 6
        assert sum(float(one["value"]) for one in times) == pytest.approx(2_000, abs=100)


def test_checkpoints_are_those_on_disk(served):
    first = served.json(f"{served.path}/checkpoints")
    found = until(
        lambda: (
            now
            if (now := served.json(f"{served.path}/checkpoints"))["counts"]["completed"]
            > first["counts"]["completed"] + 2
            else None
        ),
        "no checkpoints",
    )
    counts = found["counts"]
    assert counts["total"] == counts["completed"] + counts["in_progress"] + counts["failed"]
    assert counts["failed"] == counts["restored"] == 0
    ids = [one["id"] for one in found["history"]]
    assert ids == sorted(ids, reverse=True)
    latest = found["latest"]["completed"]
    assert latest["num_acknowledged_subtasks"] == latest["num_subtasks"] == 6
    assert re.search(rf"chk-{latest['id']}\.json$", latest["external_path"])
    details = served.json(f"{served.path}/checkpoints/details/{latest['id']}")
    assert set(details["tasks"]) == {"numbers", "end/less", "note"}
    assert sum(task["state_size"] for task in details["tasks"].values()) == latest["state_size"]
    for vertex, task in details["tasks"].items():
        by_subtask = served.json(f"{served.path}/checkpoints/details/{latest['id']}/subtasks/{part(vertex)}")
        assert [one["index"] for one in by_subtask["subtasks"]] == [0, 1]
        assert sum(one["state_size"] for one in by_subtask["subtasks"]) == task["state_size"]
        assert by_subtask["summary"]["state_size"]["max"] == max(one["state_size"] for one in by_subtask["subtasks"])
    config = served.json(f"{served.path}/checkpoints/config")
    assert (config["interval"], config["mode"], config["max_concurrent"]) == (200, "exactly_once", 1)
    assert Path(config["checkpoint_storage"]) == served.directory / "checkpoints"
    (size,) = served.json(f"{served.path}/metrics?get=lastCheckpointFullSize")
    assert int(size["value"]) > 0


def test_prometheus_is_told_the_same(served):
    parser = pytest.importorskip("prometheus_client.parser")
    response = served.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    families = {
        family.name: family.samples for family in parser.text_string_to_metric_families(response.content.decode())
    }
    records = {
        sample.labels["subtask_index"]: sample.value
        for sample in families["headrace_taskmanager_job_task_numRecordsIn"]
        if sample.labels["task_id"] == "note"
    }
    assert records == {"0": SEEN["note", 0], "1": SEEN["note", 1]}
    names = {sample.labels["operator_id"] for sample in families["headrace_taskmanager_job_task_operator_numRecordsIn"]}
    assert {"note", "none"} <= names
    (slots,) = families["headrace_jobmanager_taskSlotsTotal"]
    assert slots.value == 2


def test_tasks_tell_event_time_and_how_full_their_channels_are(served):
    found = served.json(f"{served.path}/vertices/note/metrics?get=0.currentInputWatermark,0.inPoolUsage,0.outPoolUsage")
    values = {one["id"]: float(one["value"]) for one in found}
    # Of its two inputs the one without end has given one record, of 5,000 or, from the other split, somewhat later.
    assert set(values) >= {"0.inPoolUsage", "0.outPoolUsage"}
    assert (values["0.inPoolUsage"], values["0.outPoolUsage"]) == (0, 0)
    assert values.get("0.currentInputWatermark", 5_000) < 10_000
    (restarts,) = served.json(f"{served.path}/metrics?get=fullRestarts")
    assert restarts["value"] == "0"


def test_the_board_for_grafana_asks_for_metrics_that_there_are(served, capsys):
    assert main(["grafana"]) == 0
    board = json.loads(capsys.readouterr().out)
    parts = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    parts += [str(variable["query"]) for variable in board["templating"]["list"]]
    asked = {name for part in parts for name in re.findall(r"headrace_\w+", part)}
    assert len(asked) > 15

    def all_told():
        told = set(re.findall(r"^(headrace_\w+)\{", served.get("/metrics").content.decode(), re.MULTILINE))
        return True if asked <= told else None

    until(all_told, asked)
    labels = {name for part in parts for names in re.findall(r"by \(([^)]*)\)", part) for name in names.split(", ")}
    labels |= {name for part in parts for name in re.findall(r"(\w+)=~", part)}
    text = served.get("/metrics").content.decode()
    assert all(f'{label}="' in text for label in labels)


def test_the_description_has_every_route(served):
    document = served.json("/openapi.json")
    said = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert said == {(route.method, re.sub(r":(\w+)", r"{\1}", route.path)) for route in guarded_routes()}
    for methods in document["paths"].values():
        for operation in methods.values():
            assert operation["summary"].endswith(".")
            assert all(parameter["description"] for parameter in operation["parameters"])
    assert served.json("/config")["cluster"] == "local"
    stored = json.loads((Path(__file__).parents[3] / "docs" / "openapi.json").read_text(encoding="utf-8"))
    assert document == stored, "write it anew: python tests/actors/rest/write_openapi.py"


# ----------------------------------------------------------------------------------------------------------- not let in
def guarded_routes():
    """All but the files of pages, which `test_pages` is about."""
    table = RestServer(None, RestSettings(bind_port="0"), fresh_tokens()).table
    return [route for route in table.routes if route.right is not Right.NONE]


def concrete(route, served):
    given = {"jobid": served.job_id, "vertexid": "note", "subtaskindex": "0", "checkpointid": "1"}
    return re.sub(r":(\w+)", lambda match: given.get(match[1], "x"), route.path)


def test_no_route_answers_without_a_token_or_by_another_name_or_to_a_foreign_page(served):
    port = served.url.rpartition(":")[2]
    for route in guarded_routes():
        path = concrete(route, served)
        for method in {route.method, "GET", "HEAD", "OPTIONS", "DELETE", "TRACE"}:
            assert ask(served.url, path, method=method).status == 401, (method, path)
        assert ask(served.url, path, "guess", method=route.method).status == 401
        assert ask(served.url, f"{path}?token={served.tokens.write}", method=route.method).status == 401
        wrong = {"Host": f"evil.example:{port}"}
        assert ask(served.url, path, served.tokens.write, method=route.method, headers=wrong).status == 403
        for origin in ("http://evil.example", "null", f"https://127.0.0.1:{port}", "http://127.0.0.1:1"):
            foreign = {"Origin": origin}
            assert ask(served.url, path, served.tokens.write, method=route.method, headers=foreign).status == 403
        if route.right is Right.WRITE:
            assert served.get(path, method=route.method).status == 403, path
    assert served.json(f"{served.path}/status") == {"status": "RUNNING"}


_OF_NONE = (":triggerid", ":taskmanagerid", ":filename", ":jarid", ":operatorid")
"""Ids that nothing in the served cluster has."""


def test_every_read_route_is_answered(served):
    """Those that need an id that is not there say 404."""
    for route in guarded_routes():
        if route.right is Right.READ:
            status = served.get(concrete(route, served)).status
            is_of_none = any(name in route.path for name in _OF_NONE)
            assert status == (404 if is_of_none else 200) or (
                ":checkpointid" in route.path and status == 404  # not kept any more
            ), route.path


def test_answers_tell_browsers_to_be_careful(served):
    for response in (served.get("/overview"), ask(served.url, "/overview"), served.get("/nothing")):
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in response.headers
        assert "server" not in response.headers
    same = {"Origin": served.url}
    assert served.get("/overview", headers=same).status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/jobs/none", 404),
        ("/jobs/none/vertices/x/metrics", 404),
        ("/jobs/..%2f..%2fetc%2fpasswd", 404),
        ("/jobs/..%252f..%252fetc", 404),
        ("/taskmanagers/..%252f..%252f..%252fetc%252fpasswd", 404),
        ("/../../etc/passwd", 404),
        ("/jobs/JOB/vertices/none", 404),
        ("/jobs/JOB/vertices/note/subtasks/2", 404),
        ("/jobs/JOB/vertices/note/subtasks/-1", 400),
        ("/jobs/JOB/vertices/note/subtasks/%D9%A1", 400),
        ("/jobs/JOB/checkpoints/details/one", 400),
        ("/jobs/JOB/checkpoints/details/999999", 404),
        ("/jobs/JOB/exceptions?maxExceptions=many", 400),
        ("/jobs/JOB/exceptions?other=1", 400),
        ("/jobs/metrics?agg=median", 400),
        ("/overview?" + "&".join(f"a{i}=1" for i in range(200)), 400),
        ("/jobs/JOB/savepoints/none", 404),
        ("/jobs/JOB/rescaling/none", 404),
        ("/jobs/JOB/checkpoints/none", 404),
    ],
)
def test_what_is_wrong_is_said_in_flinks_form(served, path, status):
    response = served.get(path.replace("JOB", served.job_id))
    assert response.status == status
    (text,) = response.json["errors"]
    assert text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/savepoints", b"{", 400),
        ("POST", "/savepoints", b"[]", 400),
        ("POST", "/savepoints", b"[" * 100_000, 400),
        ("POST", "/savepoints", {"target-directory": 7}, 400),
        ("POST", "/savepoints", {"target-directory": "relative"}, 400),
        ("POST", "/savepoints", {"target-directory": "s3://user:secret@bucket/x"}, 400),
        ("POST", "/savepoints", {"other": 7}, 400),
        ("POST", "/savepoints", {"triggerId": "../x"}, 400),
        ("POST", "/savepoints", b" " * (2 << 20), 413),
        ("POST", "/savepoints", {}, 400),  # no directory, and the job has no default
        ("POST", "/stop", {"drain": "yes"}, 400),
        ("PATCH", "/rescaling", None, 400),
        ("PATCH", "/rescaling?parallelism=0", None, 400),
        ("PATCH", "/rescaling", {"operators": {"note": "two"}}, 400),
        ("PATCH", "?mode=explode", None, 400),
        ("DELETE", "", None, 405),
    ],
)
def test_what_cannot_be_done_is_refused(served, method, path, body, status):
    response = served.change(method, f"{served.path}{path}", body)
    assert response.status == status, response
    (text,) = response.json["errors"]
    assert "secret" not in text
    assert "Traceback" not in text


def test_many_who_ask_at_once_are_one_question(served):
    """A hundred pages are no more for a JobManager than one."""
    server = RestServer(served.env._cluster, RestSettings(bind_port="0", view_ttl_ms=60_000), fresh_tokens())
    try:
        with ThreadPoolExecutor(20) as pool:
            found = list(pool.map(lambda _: server.questions.details(served.job_id), range(100)))
        assert server.questions.num_asked == 1
        assert len({id(details) for details in found}) == 1
    finally:
        server.close()


def test_a_failed_question_is_asked_again():
    class Cluster:
        name = "failing"
        num_asked = 0

        def ask_dispatcher(self, _request, _timeout_ms):
            self.num_asked += 1
            if self.num_asked == 1:
                message = "not now"
                raise ConfigurationError(message)
            return []

    server = RestServer(Cluster(), RestSettings(bind_port="0", view_ttl_ms=60_000), fresh_tokens())
    with pytest.raises(ConfigurationError):
        server.questions.jobs()
    assert server.questions.jobs() == server.questions.jobs() == []
    assert server.questions.num_asked == 2
    server.close()


# -------------------------------------------------------------------------------------------------------------- changes
def test_a_request_whose_body_is_cut_off_changes_nothing():
    """What was to be done stood in the body: a stop without it would be another stop."""
    told = []

    class Cluster:
        name = "listening"

        def ask_job(self, _job_id, request, _timeout_ms):
            told.append(type(request).__name__)
            message = "enough"
            raise ConfigurationError(message)

        ask_dispatcher = ask_job

    tokens = fresh_tokens()
    server = RestServer(Cluster(), RestSettings(bind_port="0"), tokens)
    try:
        port = int(server.start().rpartition(":")[2])
        for sent in (b"", b'{"drain": true'):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(
                    b"POST /jobs/one/stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40\r\n"
                    b"Authorization: Bearer " + tokens.write.encode() + b"\r\n\r\n" + sent
                )
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(PATIENCE_S)
                while connection.recv(4096):
                    pass
        assert ask(f"http://127.0.0.1:{port}", "/jobs/one/stop", tokens.write, method="POST").status == 400
    finally:
        server.close()
    assert told == ["FetchJobDetails"]  # by the request that was whole


def test_a_job_is_changed_and_ended(tmp_path):
    """Savepoint, rescale, failure, stop: each through REST, and seen through REST."""
    served = Served(tmp_path)
    try:
        served.settle()
        begun = served.change("POST", f"{served.path}/savepoints", {"target-directory": str(tmp_path / "saved")})
        assert begun.status == 202
        place = until(lambda: completed(served, f"savepoints/{begun.json['request-id']}"), "no savepoint")["location"]
        assert Path(place).is_dir()
        assert served.json(f"{served.path}/checkpoints")["latest"]["savepoint"]["external_path"].startswith(place)

        begun = served.change("POST", f"{served.path}/checkpoints", {"checkpointType": "FULL", "triggerId": "mine"})
        assert (begun.status, begun.json) == (202, {"request-id": "mine"})
        taken = until(lambda: completed(served, "checkpoints/mine"), "no checkpoint")
        assert Path(taken["location"]).name == f"chk-{taken['checkpointId']}.json"
        assert served.json(f"{served.path}/checkpoints/details/{taken['checkpointId']}")["status"] == "COMPLETED"
        assert served.change("POST", f"{served.path}/checkpoints", {"triggerId": "mine"}).status == 202  # the same
        assert completed(served, "checkpoints/mine") == taken
        assert served.get(f"{served.path}/rescaling/mine").status == 404
        assert served.change("POST", f"{served.path}/checkpoints", {"checkpointType": "OTHER"}).status == 400

        served.job.fail_task("note", 1, "to see it")
        found = until(
            lambda: now if (now := served.json(f"{served.path}/exceptions"))["exceptionHistory"]["entries"] else None,
            "no exception",
        )
        (entry,) = found["exceptionHistory"]["entries"]
        assert "to see it" in entry["stacktrace"]
        assert entry["taskName"].endswith("(2/2)")
        until(lambda: True if served.json(f"{served.path}/status")["status"] == "RUNNING" else None, "no restart")
        counts = served.json(f"{served.path}/checkpoints")["counts"]
        assert counts["restored"] == 1
        assert served.json(served.path)["num-restarts"] == 1

        begun = served.change("PATCH", f"{served.path}/rescaling?parallelism=1")
        until(lambda: completed(served, f"rescaling/{begun.json['request-id']}"), "no rescale")
        assert {vertex["parallelism"] for vertex in served.vertices().values()} == {1}

        begun = served.change("POST", f"{served.path}/stop", {"targetDirectory": str(tmp_path / "saved")})
        operation = until(lambda: completed(served, f"savepoints/{begun.json['request-id']}"), "no stop")
        assert Path(operation["location"]).is_dir()
        assert served.json(f"{served.path}/status") == {"status": "FINISHED"}
        again = served.change("PATCH", served.path)
        assert again.status == 409
        job = served.json(served.path)
        assert job["end-time"] == job["start-time"] + job["duration"]
        assert served.json("/overview")["jobs-finished"] == 1
        assert served.json(f"{served.path}/vertices/note")["subtasks"][0]["status"] == "FINISHED"
        assert served.change("POST", f"{served.path}/savepoints", {}).status == 409
        # Its JobManager has gone, the archive says it all.
        ended = served.json(f"{served.path}/checkpoints")["counts"]
        system = served.env._cluster.system
        (job_manager,) = (host for host in system.hosts if host.startswith("jm-"))
        system.kill("head", job_manager, "gone")
        until(lambda: None if job_manager in system.hosts else True, "it stays")
        assert served.json(f"{served.path}/checkpoints")["counts"] == ended
        assert completed(served, f"savepoints/{begun.json['request-id']}") == operation
        assert served.get(f"{served.path}/savepoints/other").status == 404
    finally:
        served.env.close()
    with pytest.raises(OSError, match="refused"):
        served.get("/overview")
    assert not Path(served.address.file).exists()


def completed(served, path):
    found = served.json(f"{served.path}/{path}")
    if found["status"]["id"] != "COMPLETED":
        return None
    assert "failure-cause" not in found["operation"], found
    return found["operation"]


def test_a_job_is_cancelled(tmp_path):
    served = Served(tmp_path)
    try:
        assert served.change("PATCH", f"{served.path}?mode=cancel").status == 202
        until(lambda: True if served.json(f"{served.path}/status")["status"] == "CANCELED" else None, "not canceled")
    finally:
        served.env.close()


def test_operators_that_make_watermarks_are_told_of_alone(served):
    """What hints need, of a job of any size; as it is told with all others."""

    def told(query=""):
        vertices = served.json(f"{served.path}/watermarks{query}")["vertices"]
        return {(vertex["id"], one["uid"]): one for vertex in vertices for one in vertex["operators"]}

    everything, makers = told(), told("?makers=true")
    assert makers == {key: one for key, one in everything.items() if any(part["parts"] for part in one["subtasks"])}
    assert 0 < len(makers) < len(everything)
    assert all([part["subtask"] for part in one["subtasks"]] == [0, 1] for one in everything.values()), everything


class Listening:
    """A cluster, and the names of what its jobs are asked."""

    name = "listening"

    def __init__(self, cluster):
        self.asked, self.requests, self._cluster = [], [], cluster
        self.ask_dispatcher, self.page_of = cluster.ask_dispatcher, cluster.page_of

    def ask_job(self, job_id, request, timeout_ms):
        self.asked.append(type(request).__name__)
        self.requests.append(request)
        return self._cluster.ask_job(job_id, request, timeout_ms)


@contextmanager
def listening(served):
    cluster = Listening(served.env._cluster)
    tokens = fresh_tokens()
    server = RestServer(cluster, RestSettings(bind_port="0", view_ttl_ms=0), tokens)
    try:
        yield server, cluster.asked, tokens.read
    finally:
        server.close()


def test_a_look_is_no_sign_of_life_of_a_client(served):
    """What looks must not keep an attached job alive whose program has died."""
    with listening(served) as (server, asked, _):
        server.questions.all_details()
        server.questions.summaries()
        server.questions.pending_checkpoints(served.job_id)
    assert set(asked) == {"FetchJobDetails", "FetchJobSummary", "FetchPendingCheckpoints"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", FetchJobDetails((), with_checkpoints=False)),
        ("/watermarks?makers=true", FetchJobDetails((), with_checkpoints=False)),
        ("/watermarks", FetchJobDetails()),
        ("/checkpoints", FetchJobDetails((), with_checkpoints=True)),
        ("/vertices/note", FetchJobDetails(("note",), with_checkpoints=False)),
        ("/vertices/note/metrics", FetchJobDetails(("note",), with_checkpoints=False)),
    ],
)
def test_a_job_is_asked_for_no_more_than_is_shown(served, path, expected):
    with listening(served) as (server, _, token):
        assert ask(server.start(), served.path + path, token).status == 200
        asked = [one for one in server.questions.cluster.requests if isinstance(one, FetchJobDetails)]
    assert asked == [expected]


def test_lists_ask_jobs_for_what_they_show_and_no_more(served):
    """However large a job is; and that is what the job in full says, too."""
    with listening(served) as (server, asked, token):
        url = server.start()
        (name,) = [one["id"] for one in ask(url, "/taskmanagers", token).json["taskmanagers"]]
        slots = ask(url, f"/taskmanagers/{name}", token).json["allocatedSlots"]
        (listed,) = ask(url, "/jobs/overview", token).json["jobs"]
        assert ask(url, "/overview", token).status == 200
        assert set(asked) == {"FetchJobSummary"}
        (summary,) = server.questions.summaries()
        assert summary == summary_of(server.questions.all_of(served.job_id))
    whole = served.json(served.path)
    assert sum(slot["assignedTasks"] for slot in slots) == listed["tasks"]["total"] == 6
    assert listed["tasks"]["running"] == sum(vertex["tasks"]["RUNNING"] for vertex in whole["vertices"])
    assert (listed["job-type"], listed["start-time"]) == (whole["job-type"], whole["start-time"])


def test_processes_are_linked_to_their_pages_on_rays_dashboard_where_it_has_one(served, monkeypatch):
    (name,) = [one["id"] for one in served.json("/taskmanagers")["taskmanagers"]]
    plain = served.json(f"/taskmanagers/{name}")
    assert "ray-page" not in plain
    assert all("ray-page" not in slot for slot in plain["allocatedSlots"])
    monkeypatch.setattr(served.env._cluster, "page_of", lambda host: f"http://ray/#/actors/{host}")
    with listening(served) as (server, _, token):
        found = ask(server.start(), f"/taskmanagers/{name}", token).json
    assert found["ray-page"] == f"http://ray/#/actors/{name}"
    assert [slot["ray-page"] for slot in found["allocatedSlots"]] == [
        f"http://ray/#/actors/{slot['host']}" for slot in plain["allocatedSlots"]
    ]


def test_ports_of_a_range_are_taken_in_turn_and_a_taken_one_is_said(tmp_path):
    servers, before = [], set(threading.enumerate())
    try:
        first = RestServer(None, RestSettings(bind_port="0"), fresh_tokens())
        servers.append(first)
        port = int(first.start().rpartition(":")[2])
        second = RestServer(None, RestSettings(bind_port=f"{port}-{port}"), fresh_tokens())
        servers.append(second)
        with pytest.raises(ConfigurationError, match="no port of"):
            second.start()
    finally:
        for server in servers:
            server.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "headrace-rest-http"]
