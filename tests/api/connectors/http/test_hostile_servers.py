"""HTTP against servers that break off, say too much, or name what no address is.

Risks and families: records that are lost in silence (answers that are cut short, lines and events by which nothing can
be gone on); memory (answers without end); errors that fail a job though asking again would do.
"""

from __future__ import annotations

import json

import pytest
from raw_service import RawServer
from reading_kit import Reading

from headrace.connectors.http import HttpEventSource, HttpLineSource, HttpPageSource, HttpSink, JsonMessages
from headrace.connectors.http.client import Endpoint, HttpAwayError, HttpClient
from headrace.engine.connectors.contract import EnumeratorContext
from headrace.engine.errors import HeadraceError
from headrace.testing.sinks.harness import SinkTestHarness

OK = b"HTTP/1.1 200 OK\r\n"


def whole(body, **headers):
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()).encode()
    return OK + named + b"Content-Length: %d\r\n\r\n" % len(body) + body


def target_of(request):
    return request.split(b" ")[1].decode()


def rows_of(source, number=1 << 30, splits=None):
    reading = Reading(source, splits)
    try:
        return [row["n"] for row in reading.rows(number)]
    finally:
        reading.close()


def failure_of(source):
    with pytest.raises(HeadraceError) as told:
        rows_of(source)
    return str(told.value)


# ---------------------------------------------------------------------------------------------------------- the client
@pytest.mark.parametrize("body", [b"Content-Length: 100\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"])
def test_a_redirect_that_is_cut_short_is_followed(body):
    def answers(request):
        yield whole(b"[1]") if target_of(request) == "/y" else b"HTTP/1.1 302 Found\r\nLocation: /y\r\n" + body

    with RawServer(answers) as server:
        assert HttpClient(Endpoint(server.url)).get(server.url).text() == "[1]"


@pytest.mark.parametrize("head", [OK, b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /y\r\n"])
def test_an_answer_without_end_is_left(head):
    sent = []

    def answers(request):
        if target_of(request) == "/y":
            yield whole(b"")
            return
        yield head + b"\r\n"
        while len(sent) < 1_000:
            sent.append(1)
            yield bytes(1 << 20)

    with RawServer(answers) as server:
        harness = SinkTestHarness(HttpSink.at_least_once(server.url, value=JsonMessages()))
        harness.start()
        harness.write([{"n": 1}])
        harness.checkpoint(1)
        harness.finish()
    assert len(sent) < 100  # what the kernel takes


def test_an_answer_that_is_cut_short_is_no_answer():
    with RawServer(lambda _request: [OK + b"Content-Length: 100\r\n\r\nabc"]) as server:
        client = HttpClient(Endpoint(server.url))
        with pytest.raises(HttpAwayError, match="97 more expected"):
            client.get(server.url).text()
        with pytest.raises(HttpAwayError, match="97 more expected"):
            client.get(server.url).skip()


# -------------------------------------------------------------------------------------------------------------- sources
@pytest.mark.parametrize("where", ["body", "link", "redirect"])
def test_next_pages_may_have_any_letters(where):
    following = "/x?after=Müller & Söhne\u2028[1]"

    def answers(request):
        if target_of(request) == "/x?after=M%C3%BCller%20&%20S%C3%B6hne%E2%80%A8[1]":
            yield whole(b'{"items": [{"n": 2}]}')
        elif where == "redirect":
            yield b"HTTP/1.1 302 Found\r\nLocation: %s\r\n\r\n" % following.encode()
        elif where == "link":
            yield whole(b'{"items": [{"n": 1}]}', **{"Link": f'<{following}>; rel="next"'})
        else:
            yield whole(json.dumps({"items": [{"n": 1}], "next": following}).encode())

    with RawServer(answers) as server:
        cursor = "link" if where == "link" else "/next"
        source = HttpPageSource(server.url, value=JsonMessages(), records="/items", cursor=cursor, bounded=True)
        assert rows_of(source) == ([2] if where == "redirect" else [1, 2])


@pytest.mark.parametrize("status", [b"200 OK", b"204 No Content"])
def test_a_page_without_text_is_no_last_page_unless_its_status_says_so(status):
    asked = []

    def answers(request):
        asked.append(target_of(request))
        if len(asked) == 2:
            yield b"HTTP/1.1 %s\r\n" % status + (b"\r\n" if b"204" in status else b"Content-Length: 0\r\n\r\n")
        else:
            yield whole(b'{"items": [{"n": 1}], "next": "b"}' if len(asked) == 1 else b'{"items": [{"n": 2}]}')

    with RawServer(answers) as server:
        source = HttpPageSource(
            server.url, value=JsonMessages(), records="/items", cursor="/next", parameter="c", bounded=True
        )
        assert rows_of(source) == ([1] if b"204" in status else [1, 2])
    assert asked[1:] == ["/x?c=b"] * (1 if b"204" in status else 2)


@pytest.mark.parametrize("following", ["null", "false", '""'])
def test_a_page_may_say_in_several_ways_that_there_is_no_next_one(following):
    body = f'{{"items": [{{"n": 1}}], "next": {following}}}'.encode()
    with RawServer(lambda _request: [whole(body)]) as server:
        source = HttpPageSource(server.url, value=JsonMessages(), records="/items", cursor="/next", bounded=True)
        assert rows_of(source) == [1]


@pytest.mark.parametrize("following", ['{"after": 5}', "[5]", "true", "{}"])
def test_what_is_no_cursor_is_not_the_end(following):
    body = f'{{"items": [{{"n": 1}}], "next": {following}}}'.encode()
    with RawServer(lambda _request: [whole(body)]) as server:
        source = HttpPageSource(server.url, value=JsonMessages(), records="/items", cursor="/next", bounded=True)
        assert "what is at '/next' is no cursor" in failure_of(source)


def test_a_cursor_with_half_a_character_is_an_error():
    with RawServer(lambda _request: [whole(b'{"items": [], "next": "\\ud800"}')]) as server:
        source = HttpPageSource(server.url, value=JsonMessages(), records="/items", cursor="/next", parameter="c")
        assert "halves of characters" in failure_of(source)


def test_a_cursor_keeps_its_digits():
    first, behind = "12345678901234567890.12345678901234567890", []

    def answers(request):
        behind.append(target_of(request))
        yield whole(b'{"items": [], "next": %s}' % (first if len(behind) == 1 else "null").encode())

    with RawServer(answers) as server:
        options = {"records": "/items", "cursor": "/next", "parameter": "c", "bounded": True, "interval": 1}
        assert rows_of(HttpPageSource(server.url, value=JsonMessages(), **options)) == []
    assert behind == ["/x", f"/x?c={first}"]


def test_what_does_not_say_its_end_and_is_cut_short_is_asked_for_again():
    asked = []

    def answers(request):
        asked.append(request)
        page = b'{"items": [{"n": 1}, {"n": 2}]}'
        yield OK + b"\r\n" + (page[:20] if len(asked) == 1 else page)

    with RawServer(answers) as server:
        source = HttpPageSource(server.url, value=JsonMessages(), records="/items", cursor="/next", bounded=True)
        assert rows_of(source) == [1, 2]


def test_lines_whose_end_cannot_be_told_are_refused():
    with RawServer(lambda _request: [OK + b'Link: </y>; rel="next"\r\n\r\n{"n": 1}\n']) as server:
        for source in (
            HttpPageSource(server.url, value=JsonMessages(), body="lines", cursor="link", bounded=True),
            HttpLineSource(server.url, value=JsonMessages(), bounded=True),
        ):
            assert "the answer does not say where it ends" in failure_of(source)


def test_lines_that_are_missing_at_a_broken_connection_are_waited_for():
    asked = []

    def answers(request):
        asked.append(request)
        yield OK + b"\r\n" + b"".join(b'{"n": %d}\n' % n for n in range(3 if len(asked) != 2 else 1))
        yield b'{"n": 3}\n' if len(asked) > 2 else b""

    with RawServer(answers) as server:
        assert rows_of(HttpLineSource(server.url, value=JsonMessages(), interval=1), 4) == [0, 1, 2, 3]


def test_an_event_with_an_empty_id_is_an_error():
    events = b'id: 1\ndata: {"n": 1}\n\nid:\ndata: {"n": 2}\n\n'
    with RawServer(lambda _request: [whole(events, Content_Type="text/event-stream")]) as server:
        assert "an event has no id" in failure_of(HttpEventSource(server.url, value=JsonMessages()))


# --------------------------------------------------------------------------------------------------- lines with cursors
LINES = ['{"n": 1}', "no JSON", "{", '{"n": 2}', "\udcff", '{"n": 3}', "neither"]


def lines_behind(request, sends_own):
    """What a server sends that is told a cursor, with or without that one's own line."""
    _, _, since = target_of(request).partition("?since=")
    first = LINES.index(f'{{"n": {since}}}') + (not sends_own) if since else 0
    yield whole("".join(f"{line}\n" for line in LINES[first:]).encode(errors="surrogateescape"))


@pytest.mark.parametrize("sends_own", [False, True])
def test_lines_that_are_no_json_are_passed_over_once(sends_own):
    with RawServer(lambda request: lines_behind(request, sends_own)) as server:
        source = HttpLineSource(
            server.url, value=JsonMessages(), cursor="/n", parameter="since", interval=1, on_error="dead-letter"
        )
        reading, rows = Reading(source), []
        while len(server.requests) < 4:  # it asks again and again
            rows += [row["n"] for row in reading.poll()]
        (split,) = reading.close()
        assert rows == [1, 2, 3]
        assert len(reading.letters) == 4
        assert split.position == {"cursor": "3", "given": 1}
        assert reading.letters[1]["position"] == "record 2 behind '1'"


def test_it_goes_on_from_any_line():
    with RawServer(lambda request: lines_behind(request, sends_own=False)) as server:
        source = HttpLineSource(
            server.url, value=JsonMessages(), cursor="/n", parameter="since", on_error="skip", bounded=True
        )
        (split,) = source.create_enumerator(EnumeratorContext(1)).discover().splits
        for cursor, given, expected in (
            (None, 0, [1, 2, 3]),
            ("1", 1, [2, 3]),
            ("1", 2, [2, 3]),
            ("2", 1, [3]),
            ("3", 1, []),
        ):
            at = type(split)(split.split_id, split.payload, {"cursor": cursor, "given": given})
            assert rows_of(source, splits=[at]) == expected
        at = type(split)(split.split_id, split.payload, {"cursor": "2", "given": 5})
        assert rows_of(source, splits=[at]) == [3]


def test_two_lines_with_one_cursor_are_an_error():
    with RawServer(lambda _request: [whole(b'{"n": 1, "t": 5}\n{"n": 2, "t": 6}\n{"n": 3, "t": 6}\n')]) as server:
        source = HttpLineSource(server.url, value=JsonMessages(), cursor="/t", parameter="since")
        assert "two lines, one behind the other, have the cursor '6'" in failure_of(source)
