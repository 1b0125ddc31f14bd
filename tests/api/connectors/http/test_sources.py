"""HTTP as a source: jobs that fail, what a server must not do, errors, secrets, events and places in JSON.

Risks and families: lost and doubled records (jobs that fail, restored at another parallelism, against what was put);
credentials that go elsewhere (redirects, cursors); too much read (bounds); wrong parses (oracles: Python's own parser,
the specification's examples); bad input (errors by name).
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest
from failing_functions import FailsAtFirst, some
from http_service import http_service  # noqa: F401 - a fixture
from hypothesis import given
from hypothesis import strategies as st
from reading_kit import Reading

from headrace import RestartStrategies, StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.http import (
    HttpEventSource,
    HttpLineSource,
    HttpPageSource,
    HttpSink,
    JsonMessages,
    TextMessages,
    Tls,
)
from headrace.connectors.http.json_places import Pointer
from headrace.connectors.http.server_sent import EventParser, LineSplitter
from headrace.engine.connectors.contract import ALL_SPLITS_FINISHED
from headrace.engine.errors import ConfigurationError

PAGES = {"records": "/data/items", "cursor": "/next", "parameter": "cursor", "interval": "10 ms"}


@pytest.mark.campaign
def test_jobs_are_exactly_once_through_failures_and_rescales(http_service, tmp_path):  # noqa: F811
    names, target = [http_service.new_name() for _ in range(4)], http_service.new_name()
    path, sent = None, 0
    try:
        for parallelism in (2, 3, 1):
            for name in names:
                http_service.put(name, [json.dumps({"n": sent + number}) for number in range(75)])
                sent += 75
            if parallelism == 3:
                http_service.stop()
            with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
                env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
                env.set_restart_strategy(RestartStrategies.fixed_delay_restart(4, 10))
                value = JsonMessages({"n": "int64"})
                pages = HttpPageSource([f"{http_service.url}/pages/{name}" for name in names[:2]], value=value, **PAGES)
                events = HttpEventSource([f"{http_service.url}/events/{name}" for name in names[2:]], value=value)
                strategy = WatermarkStrategy.no_watermarks()
                stream = env.from_source(pages, strategy, "pages").uid("pages")
                stream = stream.union(env.from_source(events, strategy, "events").uid("events"))
                stream = stream.map(FailsAtFirst(tmp_path, some(4, of=900), lambda row: row["n"])).uid("map")
                sink = HttpSink.exactly_once(f"{http_service.url}/answer-lost/{target}", value=JsonMessages())
                stream.rebalance().sink_to(sink).uid("out")
                client = env.execute_async("part", from_savepoint=path)
                http_service.start()
                http_service.refusals += [None, (503, {}), None] * (parallelism == 1)
                while len(b"".join(http_service.posted(target)).splitlines()) < sent:
                    assert client.view().state not in ("FAILED", "FINISHED"), [f.text for f in client.view().failures]
                path = client.stop_with_savepoint(str(tmp_path / "savepoints"))
    finally:
        http_service.refusals.clear()
        http_service.start()
    assert len(list(tmp_path.glob("failed-*"))) == 4
    posted = [json.loads(line)["n"] for line in b"".join(http_service.posted(target)).splitlines()]
    assert Counter(posted) == Counter(range(sent))


# --------------------------------------------------------------------------------------------------------- by a reader
def put(service, number):
    name = service.new_name()
    service.put(name, [json.dumps({"n": n}) for n in range(number)])
    return name


def test_what_a_server_says_is_waited_out(http_service):  # noqa: F811
    name = put(http_service, 3)
    http_service.refusals[:] = [(429, {"Retry-After": "0"}), (503, {}), None]
    reading = Reading(HttpPageSource(f"{http_service.url}/pages/{name}", value=JsonMessages(), **PAGES))
    assert reading.rows(3) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert not http_service.refusals
    reading.reader.close()
    http_service.refusals[:] = [(429, {"Retry-After": "100"})]
    reading = Reading(HttpEventSource(f"{http_service.url}/events/{name}", value=JsonMessages(), patience="10 s"))
    assert "answers 429" in reading.fails()


def test_metadata_say_where_records_are_from(http_service):  # noqa: F811
    name = put(http_service, 8)
    url = f"{http_service.url}/pages/{name}"
    value = JsonMessages({"n": "int64"})
    reading = Reading(HttpPageSource(url, value=value, metadata=["url", "cursor"], **PAGES))
    assert reading.rows(8)[6:] == [{"n": 6, "url": url, "cursor": None}, {"n": 7, "url": url, "cursor": "p7"}]
    reading.reader.close()
    url = f"{http_service.url}/events/{name}"
    reading = Reading(HttpEventSource(url, value=value, metadata={"who": "id", "event": "event"}, events=["odd"]))
    assert reading.rows(4) == [{"n": n, "who": str(n), "event": "odd"} for n in (1, 3, 5, 7)]
    (split,) = reading.reader.snapshot()
    assert split.position == {"cursor": "7", "given": 0}
    reading.reader.close()


def test_nothing_that_says_who_asks_goes_elsewhere_or_is_shown(http_service):  # noqa: F811
    name = put(http_service, 3)
    secret = {"Authorization": "Bearer hidden-from-all"}
    page = f"{http_service.url}/pages/{name}"
    for location, right in ((f"/pages/{name}?x=1", True), ("http://127.0.0.1:1/x", False), ("//other.invalid/", False)):
        http_service.refusals[:] = [(302, {"Location": location})]
        source = HttpPageSource(page, value=JsonMessages(), headers=secret, **PAGES)
        assert "hidden" not in repr(source) + repr(vars(source))
        reading = Reading(source)
        if right:
            assert len(reading.rows(3)) == 3
            assert http_service.requests[-1][2]["Authorization"] == secret["Authorization"]
            reading.reader.close()
        else:
            told = reading.fails()
            assert "it redirects to another server" in told
            assert "hidden" not in told
    other = http_service.new_name()
    http_service.put(other, ['"http://127.0.0.1:1/next"'])
    lines = {"body": "json", "records": "", "cursor": "/0"}
    told = Reading(HttpPageSource(f"{http_service.url}/lines/{other}", value=TextMessages(), **lines)).fails()
    assert "no array" in told
    http_service.refusals[:] = [(401, {})]
    told = Reading(HttpPageSource(page, value=JsonMessages(), headers=secret, **PAGES)).fails()
    assert "answers 401" in told
    assert "the first page" in told
    assert "hidden" not in told


def test_a_next_page_elsewhere_is_not_asked_for(http_service):  # noqa: F811
    name = http_service.new_name()
    http_service.put(name, ['{"items": [1], "next": "http://127.0.0.1:1/next"}'])
    source = HttpPageSource(f"{http_service.url}/lines/{name}", value=TextMessages(), records="/items", cursor="/next")
    assert "its next page leads to another server" in Reading(source).fails()
    name = http_service.new_name()
    http_service.put(name, [f'{{"items": [1], "next": "/lines/{name}-2"}}'])
    http_service.put(f"{name}-2", ['{"items": [2, 3.10, "x"], "next": null}'])
    source = HttpPageSource(
        f"{http_service.url}/lines/{name}", value=TextMessages(), records="/items", cursor="/next", bounded=True
    )
    reading = Reading(source)
    assert reading.rows(4) == ["1", "2", "3.10", '"x"']
    reading.reader.close()


def test_bounds_hold(http_service):  # noqa: F811
    name = put(http_service, 6)
    source = HttpPageSource(f"{http_service.url}/pages/{name}", value=JsonMessages(), max_bytes=50, **PAGES)
    assert "more than 50 bytes" in Reading(source).fails()
    source = HttpLineSource(f"{http_service.url}/lines/{name}", value=JsonMessages(), max_bytes=5)
    assert "a line has more than 5 bytes" in Reading(source).fails()
    source = HttpEventSource(f"{http_service.url}/events/{name}", value=JsonMessages(), max_bytes=5)
    assert "bytes" in Reading(source).fails()


def test_a_page_that_shrinks_is_an_error(http_service):  # noqa: F811
    name = put(http_service, 5)
    source = HttpPageSource(f"{http_service.url}/pages/{name}", value=JsonMessages(), **PAGES)
    reading = Reading(source)
    assert len(reading.rows(5)) == 5
    del http_service._texts[name][2:]
    assert "a page has 2 records, and had 5" in reading.fails()


def test_what_is_no_page_or_stream_is_an_error(http_service):  # noqa: F811
    name = http_service.new_name()
    http_service.put(name, ["{"])
    url = f"{http_service.url}/lines/{name}"
    assert "a page is not what it is said to be" in Reading(HttpPageSource(url, value=JsonMessages(), **PAGES)).fails()
    assert "no stream of events" in Reading(HttpEventSource(url, value=JsonMessages())).fails()
    source = HttpLineSource(url, value=JsonMessages(), cursor="/n", parameter="since")
    assert "cannot decode a record" in Reading(source).fails()
    http_service.put(name, ['{"m": 1}'])
    source = HttpLineSource(url, value=JsonMessages(), cursor="/n", parameter="since", on_error="skip")
    assert "a line has no text or number at '/n'" in Reading(source).fails()


def test_a_stream_ends_with_204(http_service):  # noqa: F811
    http_service.refusals[:] = [(204, {})]
    reading = Reading(HttpEventSource(f"{http_service.url}/events/x", value=JsonMessages()))
    while reading.reader.poll(10) is not ALL_SPLITS_FINISHED:
        pass
    reading.reader.close()


def test_wrong_arguments_are_refused():
    def told(make=HttpPageSource, urls="http://localhost/x", **arguments):
        with pytest.raises(ConfigurationError) as refused:
            make(
                urls,
                **{"value": TextMessages(), **({"cursor": "/next"} if make is HttpPageSource else {}), **arguments},
            )
        return str(refused.value)

    assert "each once" in told(urls=["http://a", "http://a"])
    assert "each once" in told(urls=[])
    assert "url must be https://" in told(urls="localhost")
    assert "tls is for https://" in told(tls=Tls())
    assert "begins with /" in told(records="x")
    assert "or link, or header:NAME" in told(cursor="next")
    assert "no parameter" in told(cursor="link", parameter="p")
    assert "lines without JSON pointers" in told(body="lines")
    assert "interval must be" in told(interval=0)
    assert "max_bytes must be" in told(max_bytes=0)
    assert "belong together" in told(HttpLineSource, cursor="/n")
    assert "retry must be" in told(HttpEventSource, retry=0)


# -------------------------------------------------------------------------------------------------------------- parses
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def places_in(value, pointer=""):
    yield pointer, value
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_in(inner, f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}")


@given(JSON, st.sampled_from([None, 1]))
def test_places_in_json_are_those_of_a_parser(value, indent):
    text = f" {json.dumps(value, indent=indent)}\n"
    for pointer, expected in places_in(value):
        assert Pointer(pointer).value(text) == expected
        elements = Pointer(pointer).elements(text)
        assert (None if elements is None else [json.loads(one) for one in elements]) == (
            expected if isinstance(expected, list) else None
        )
    assert Pointer("/no/such/place").value(text) is None


@pytest.mark.parametrize("text", ["", "{", "[1,]", "1 2", "[" * 100_000, '{"a" 1}'])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError):
        Pointer("/a").value(text)


STREAM = (
    "\ufeff: hello\r\n\r\ndata: first\rdata: second\nid: 1\n\nid\ndata:third\n\nevent: add\ndata:  x\nid: a\0b\n\n"
    "data\n\ndata\ndata\n\nid: 9\nretry: 50\nnothing: x\n\nevent: y\ndata: z\r\n\r\ndata: no end"
).encode()


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_are_those_of_the_specification_however_they_come(cuts):
    parser, found = EventParser(1_000, None), []
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(edges):
        found += parser.events(STREAM[start:end])
    assert [(event.kind, event.data, event.last_id, event.has_id) for event in found] == [
        ("message", b"first\nsecond", "1", True),
        ("message", b"third", None, True),
        ("add", b" x", None, False),
        ("message", b"", None, False),
        ("message", b"\n", None, False),
        ("y", b"z", "9", False),
    ]
    assert parser.retry_ms == 50
    assert parser.last_id == "9"


@given(st.lists(st.integers(0, 12), max_size=5))
def test_lines_are_those_of_the_text_however_they_come(cuts):
    text, splitter, found = b"a\r\nb\n\nc\rd\ne", LineSplitter(100, knows_returns=False), []
    edges = [0, *sorted(cuts), len(text)]
    for start, end in pairwise(edges):
        found += splitter.lines(text[start:end])
    assert (found, splitter.partial) == ([b"a", b"b", b"", b"c\rd"], b"e")
