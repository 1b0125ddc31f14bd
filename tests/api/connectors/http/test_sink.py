"""HTTP as a sink: the contract of sinks with a server that honours keys, batches, refusals, errors.

Risks and families: lost and doubled records (contract suite: crashes, zombies, parallelisms; answers that get lost);
wrong bodies (oracle: what the server was sent); secrets that are shown; bad input (errors by name).
"""

from __future__ import annotations

import json

import pytest
from campaigns import campaign
from http_service import http_service  # noqa: F401 - a fixture

from headrace.connectors.http import HttpSink, JsonMessages, TextMessages, basic_auth
from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, HeadraceError, SinkError
from headrace.testing.sink_contract import SINK_CONTRACT, SinkSubject
from headrace.testing.sinks.harness import SinkTestHarness


@pytest.mark.parametrize(
    "check",
    [campaign(check) if "anywhere" in check.__name__ else check for check in SINK_CONTRACT],
    ids=lambda check: check.__name__,
)
def test_contract(check, http_service):  # noqa: F811
    name = http_service.new_name()
    sink = HttpSink.exactly_once(f"{http_service.url}/sink/{name}", value=TextMessages(), batch_size=2)
    check(SinkSubject(sink, lambda: map(int, b"".join(http_service.posted(name)).split()), str))


def written(sink, rows):
    harness = SinkTestHarness(sink)
    harness.start()
    harness.write(rows if isinstance(rows[0], str) else Batch.of_rows(rows))
    harness.checkpoint(1)
    harness.finish()


def test_batches_are_lines_arrays_or_single(http_service):  # noqa: F811
    rows = [{"n": number} for number in range(5)]
    for make in (HttpSink.exactly_once, HttpSink.at_least_once):
        for framing, expected in (
            ("lines", [b'{"n": 0}\n{"n": 1}\n', b'{"n": 2}\n{"n": 3}\n', b'{"n": 4}\n']),
            ("array", [b'[{"n": 0},{"n": 1}]', b'[{"n": 2},{"n": 3}]', b'[{"n": 4}]']),
            ("single", [b'{"n": %d}' % number for number in range(5)]),
        ):
            name = http_service.new_name()
            written(make(f"{http_service.url}/sink/{name}", value=JsonMessages(), framing=framing, batch_size=2), rows)
            posted = [[json.loads(line) for line in body.splitlines()] for body in http_service.posted(name)]
            assert posted == [[json.loads(line) for line in body.splitlines()] for body in expected]
            asked = [headers for _, path, headers in http_service.requests if path.endswith(name)]
            kind = {"lines": "application/x-ndjson"}.get(framing, "application/json")
            assert {headers["Content-Type"] for headers in asked} == {kind}
    name = http_service.new_name()
    sink = HttpSink.exactly_once(f"{http_service.url}/sink/{name}", value=TextMessages(), batch_bytes=10)
    written(sink, ["aaaa", "bbbb", "cccc", "d" * 50, "e"])
    assert http_service.posted(name) == [b"aaaa\nbbbb\n", b"cccc\n", b"d" * 50 + b"\n", b"e\n"]


@pytest.mark.parametrize(
    ("make", "refusals"),
    [
        (HttpSink.exactly_once, [(503, {}), (429, {"Retry-After": "0"}), None]),
        (HttpSink.at_least_once, [(409, {}), None, (500, {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"})]),
    ],
)
def test_what_passes_is_waited_out_and_answers_may_get_lost(make, refusals, http_service):  # noqa: F811
    name = http_service.new_name()
    http_service.refusals[:] = refusals
    written(make(f"{http_service.url}/answer-lost/{name}", value=TextMessages()), ["1", "2"])
    assert http_service.posted(name) == [b"1\n2\n"]
    assert not http_service.refusals


def test_what_does_not_pass_is_an_error_without_secrets(http_service):  # noqa: F811
    def told(refusals, **arguments):
        http_service.refusals[:] = refusals
        sink = HttpSink.exactly_once(
            f"{http_service.url}/sink/x", value=TextMessages(), headers=basic_auth("me", "hidden"),
            **{"patience": 0, **arguments},
        )  # fmt: skip
        with pytest.raises(SinkError) as refused:
            written(sink, ["1"])
        http_service.refusals.clear()
        assert "hidden" not in str(refused.value) + repr(sink)
        assert "bWU6aGlkZGVu" not in str(refused.value) + repr(vars(sink))
        return str(refused.value)

    assert "answers 404 Not Found: refused here" in told([(404, {})] * 3)
    assert "answers 503" in told([(503, {})] * 3)
    assert "answers 429" in told([(429, {"Retry-After": "100"})] * 3, patience="1 s")
    assert "redirected to http://127.0.0.1:1/" in told([(302, {"Location": "http://127.0.0.1:1/"})] * 3)
    assert "to another server" in told([(307, {"Location": "http://127.0.0.1:1/"})] * 3)


def test_wrong_arguments_are_refused():
    def told(url="http://localhost/x", **arguments):
        with pytest.raises(ConfigurationError) as refused:
            HttpSink.exactly_once(url, **{"value": TextMessages(), **arguments})
        return str(refused.value)

    assert "url must be https://" in told("ftp://localhost")
    assert "url has a user" in told("http://me:hidden@localhost")
    assert "url has option 'api_key'" in told("http://localhost?api_key=hidden")
    assert "hidden" not in told("http://localhost?api_key=hidden") + told("http://me:hidden@localhost")
    assert "lines, array or single" in told(framing="x")
    assert "records in JSON" in told(framing="array")
    assert "batch_size must be" in told(batch_size=0)
    assert "POST, PUT or PATCH" in told(method="GET")
    assert "a header has a name" in told(headers={"a b": "c"})
    assert "'Token' is not one that can be sent" in told(headers={"Token": "hidden\nx"})
    assert "hidden" not in told(headers={"Token": "hidden\nx"})


def test_a_line_end_is_no_part_of_a_line(http_service):  # noqa: F811
    harness = SinkTestHarness(HttpSink.at_least_once(f"{http_service.url}/sink/x", value=TextMessages()))
    harness.start()
    with pytest.raises(HeadraceError, match="line end"):
        harness.write(["a\nb"])
    harness.close()
