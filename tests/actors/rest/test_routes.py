"""Finding routes and checking what a request says; who is let in; what tasks are in Flink's words. All of it pure.

Risks and families: paths that mean another resource (property, against a plain oracle); ways in (properties).
"""

from __future__ import annotations

import os
import stat
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.rest.resources.routes import (
    Parameter,
    RestError,
    Right,
    Route,
    RouteTable,
    body_of,
    query_of,
)
from headrace.actors.rest.resources.tasks import FLINK_STATES, level_of, state_of_all, task_metrics, times_of
from headrace.actors.rest.security import Guard, Tokens, fresh_tokens
from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.engine.protocol.details import SubtaskView
from headrace.engine.protocol.states import TaskState
from headrace.state.files.rest_addresses import read_addresses, runtime_folder, write_address

TABLE = RouteTable(
    [
        Route(method, path, Right.READ, lambda _request: None, "")
        for method, path in (
            ("GET", "/jobs"),
            ("GET", "/jobs/overview"),
            ("GET", "/jobs/:jobid"),
            ("PATCH", "/jobs/:jobid"),
            ("GET", "/jobs/:jobid/vertices/:vertexid"),
            ("GET", "/jobs/:jobid/vertices/:vertexid/subtasks/metrics"),
            ("GET", "/jobs/:jobid/vertices/:vertexid/subtasks/:index"),
        )
    ]
)
TOKENS = Tokens("may-write", "may-read")

ids = st.text(min_size=1, max_size=20).filter(lambda text: text not in ("overview", "metrics"))


@given(ids, ids)
def test_whatever_an_id_is_it_comes_back_as_it_was(job, vertex):
    """Slashes, dots, percent signs, other alphabets: a part is decoded once."""
    job, vertex = (text.encode("utf-8", "replace").decode() for text in (job, vertex))
    if "overview" in (job, vertex):
        return
    route, found = TABLE.find("GET", f"/jobs/{quote(job, safe='')}/vertices/{quote(vertex, safe='')}")
    assert route.path == "/jobs/:jobid/vertices/:vertexid"
    assert found == {"jobid": job, "vertexid": vertex}


def test_a_fixed_part_comes_before_a_named_one_and_methods_are_told_apart():
    assert TABLE.find("GET", "/jobs/overview")[0].path == "/jobs/overview"
    assert TABLE.find("GET", "/jobs/a/vertices/b/subtasks/metrics")[0].path.endswith("metrics")
    assert TABLE.find("HEAD", "/jobs")[0].method == "GET"
    assert TABLE.find("PATCH", "/jobs/a")[0].method == "PATCH"
    for method, path, status in (
        ("DELETE", "/jobs/a", 405),
        ("GET", "/jobs/a/vertices", 404),
        ("GET", "/", 404),
        ("GET", "/jobs//vertices/x", 404),
        ("GET", "/jobs%2Foverview", 404),
    ):
        with pytest.raises(RestError) as caught:
            TABLE.find(method, path)
        assert caught.value.status == status, path


ROUTE = Route(
    "POST",
    "/x",
    Right.WRITE,
    lambda _request: None,
    "",
    (Parameter("n", "", "integer"), Parameter("get", "", is_list=True), Parameter("b", "", "boolean")),
    (Parameter("name", "", is_required=True), Parameter("drain", "", "boolean"), Parameter("o", "", "object")),
)


def test_a_query_is_read_by_its_kinds():
    assert query_of(ROUTE, "n=12&get=a,b&get=c&b=True") == {"n": 12, "get": ["a", "b", "c"], "b": True}
    assert query_of(ROUTE, "") == {}
    for text in (
        "n=x",
        "n=-1",
        "n=1&n=2",
        "n=٣",
        "b=1",
        "other=1",
        "n=" + "9" * 40,
        "&".join("get=1" for _ in range(200)),
    ):
        with pytest.raises(RestError) as caught:
            query_of(ROUTE, text)
        assert caught.value.status == 400, text


def test_a_body_is_checked_by_its_kinds():
    assert body_of(ROUTE, {"name": "x", "drain": None, "o": {}}) == {"name": "x", "drain": None, "o": {}}
    for content in ([], "x", None, {}, {"name": 1}, {"name": None}, {"name": "x", "drain": 1}, {"name": "x", "o": []}):
        with pytest.raises(RestError) as caught:
            body_of(ROUTE, content)
        assert caught.value.status == 400, content


# ------------------------------------------------------------------------------------------------------------- let in
def status_of(guard, **headers):
    """The right, or the status of a refusal."""
    try:
        return guard.admit({"host": "localhost:8081", "authorization": "Bearer may-read", **headers})
    except RestError as error:
        return error.status


def test_a_request_needs_a_token_a_name_and_a_page_of_our_own():
    guard = Guard(RestSettings(allowed_hosts=("head-1",), allowed_origins=("https://board.example",)), TOKENS)
    assert status_of(guard) is Right.READ
    assert status_of(guard, authorization="bearer may-write") is Right.WRITE
    for text in ("", "Bearer", "Bearer ", "Bearer may-rea", "Basic may-read", "may-read", "Bearer may-read, Bearer x"):
        assert status_of(guard, authorization=text) == 401, text
    for host in ("127.0.0.1", "127.0.0.1:9", "[::1]:8081", "LOCALHOST", "head-1:80"):
        assert status_of(guard, host=host) is Right.READ, host
    for host in (
        "",
        "evil",
        "localhost.evil",
        "evil#localhost",
        "evil@localhost",
        "localhost@evil",
        "localhost:x",
        "::1",
    ):
        assert status_of(guard, host=host) == 403, host
    for origin in ("http://localhost:8081", "https://board.example"):
        assert status_of(guard, origin=origin) is Right.READ, origin
    for origin in ("null", "", "http://localhost", "https://localhost:8081", "http://board.example", "http://evil"):
        assert status_of(guard, origin=origin) == 403, origin
    with_tls = Guard(RestSettings(certificate_file="c", key_file="k"), TOKENS)
    assert status_of(with_tls, origin="https://localhost:8081") is Right.READ


@given(st.text(max_size=60), st.text(max_size=60), st.none() | st.text(max_size=60))
def test_no_header_is_an_error(host, authorization, origin):
    headers = {"host": host, "authorization": authorization, **({} if origin is None else {"origin": origin})}
    with pytest.raises(RestError) as caught:
        Guard(RestSettings(), TOKENS).admit(headers)
    assert caught.value.status in (401, 403)


def test_tokens_are_shown_nowhere():
    tokens = fresh_tokens()
    assert tokens.write not in repr(tokens)
    assert tokens.read not in repr(tokens)
    assert tokens.write != tokens.read
    assert len(tokens.write) >= 43


def test_an_address_is_the_users_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = write_address("../c", "head", "http://127.0.0.1:1", "may-write", "may-read")
    assert path.parent == tmp_path / "headrace"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    (found,) = read_addresses()
    assert (found.cluster, found.url, found.token, found.pid) == (
        "../c",
        "http://127.0.0.1:1",
        "may-write",
        os.getpid(),
    )
    assert "may-write" not in repr(found)
    for killed in (path, write_address("a program's", "head", "u", "w", "r")):
        killed.write_text(killed.read_text().replace(f'"pid": {os.getpid()}', '"pid": 99999999'))
    (path.parent / "rest-x.json").write_text("[]")
    assert read_addresses() == []
    (path.parent / "rest-x.json").unlink()
    others = [write_address("../c-head", "head", "u", "w", "r"), write_address("../c", "head", "u", "w", "r")]
    assert sorted(path.parent.iterdir()) == sorted(others), "what killed ones have left is gone, of all names"
    path = write_address("../c", "head", "u", "w", "r")
    assert sorted(path.parent.iterdir()) == sorted([*others, path])
    for other in others:
        other.unlink()
    os.chmod(path.parent, 0o755)
    with pytest.raises(ConfigurationError, match="alone"):
        runtime_folder()
    path.unlink()
    path.parent.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "headrace").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="alone"):
        runtime_folder()


# ------------------------------------------------------------------------------------------------------------ settings
def test_what_others_reach_needs_tls():
    for address in ("0.0.0.0", "::", "192.168.1.5", "head.example"):
        with pytest.raises(ConfigurationError, match="TLS"):
            RestSettings(bind_address=address)
        RestSettings(bind_address=address, certificate_file="cert.pem", key_file="key.pem")
        RestSettings(bind_address=address, allows_plain_http=True)
    for address in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        RestSettings(bind_address=address)


def test_options_have_flinks_names():
    settings = RestSettings.from_configuration(
        {
            "rest.port": "8081",
            "rest.bind-port": "9000-9010",
            "rest.await-leader-timeout": "5 s",
            "rest.allowed-hosts": "head-1, head-2",
            "web.refresh-interval": "1 s",
            "taskmanager.numberOfTaskSlots": "4",
        }
    )
    assert settings.ports == (9000, 9010)
    assert settings.allowed_hosts == ("head-1", "head-2")
    assert (settings.answer_timeout_ms, settings.refresh_interval_ms) == (5_000, 1_000)
    assert RestSettings.from_configuration({"rest.port": "8085"}).ports == (8085, 8085)
    for wrong in (
        {"rest.prot": "1"},
        {"rest.port": "http"},
        {"rest.port": "9-8"},
        {"rest.port": "70000"},
        {"rest.allowed-hosts": "http://x"},
        {"rest.allowed-origins": "x"},
        {"rest.plain-http-allowed": "yes"},
        {"security.ssl.rest.key": "key.pem"},
    ):
        with pytest.raises(ConfigurationError):
            RestSettings.from_configuration(wrong)


# --------------------------------------------------------------------------------------------------------------- tasks
def subtask(entered_ms, **numbers):
    state = TaskState(next(reversed(entered_ms), "CREATED"))
    return SubtaskView(0, state, 0, "tm", "host", "", entered_ms, numbers)


def test_times_of_a_task_are_flinks():
    found = times_of(subtask({"SCHEDULED": 10, "DEPLOYING": 12, "INITIALIZING": 20, "READY": 25, "RUNNING": 40}), 100)
    assert (found["start-time"], found["end-time"], found["duration"]) == (12, -1, 88)
    assert {state: ms for state, ms in found["status-duration"].items() if ms >= 0} == {
        "SCHEDULED": 2,
        "DEPLOYING": 8,
        "INITIALIZING": 20,
        "RUNNING": 60,
    }
    ended = times_of(subtask({"DEPLOYING": 12, "RUNNING": 20, "ENDED": 30, "FINISHED": 45}), 100)
    assert (ended["end-time"], ended["duration"], ended["status-duration"]["RUNNING"]) == (45, 33, 25)
    never = times_of(subtask({}), 100)
    assert (never["start-time"], never["duration"]) == (-1, -1)
    assert task_metrics(subtask({}), ()) == {}


@given(st.lists(st.sampled_from([state.value for state in TaskState]), max_size=5))
def test_the_state_of_a_vertex_is_one_of_flinks(states):
    assert state_of_all(states) in FLINK_STATES
    assert (state_of_all(states) == "FINISHED") == (bool(states) and set(states) == {"FINISHED"})
    if "FAILED" in states:
        assert state_of_all(states) == "FAILED"


def test_levels_of_backpressure_are_flinks():
    assert [level_of(ratio) for ratio in (0, 0.1, 0.11, 0.5, 0.51, 1)] == ["ok", "ok", "low", "low", "high", "high"]
