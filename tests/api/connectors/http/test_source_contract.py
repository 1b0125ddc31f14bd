"""The contract of sources, for pages, events and lines of HTTP."""

from __future__ import annotations

import json

import pytest
from campaigns import campaign
from http_service import http_service  # noqa: F401 - a fixture

from headrace.connectors.http import HttpEventSource, HttpLineSource, HttpPageSource, JsonMessages
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject

PAGES = {"records": "/data/items", "cursor": "/next", "parameter": "cursor", "interval": "10 ms"}
SOURCES = {
    "pages": (HttpPageSource, {**PAGES, "bounded": False}),
    "pages, bounded": (HttpPageSource, {**PAGES, "bounded": True}),
    "tokens": (HttpPageSource, {"cursor": "header:X-Next", "parameter": "cursor", "interval": "10 ms"}),
    "links": (HttpPageSource, {"cursor": "link", "body": "lines", "interval": "10 ms"}),
    "events": (HttpEventSource, {}),
    "lines": (HttpLineSource, {"interval": "10 ms"}),
    "lines, bounded": (HttpLineSource, {"bounded": True}),
    "since": (HttpLineSource, {"cursor": "/n", "parameter": "since", "interval": "10 ms"}),
}
ALWAYS = {"pages"}


def subject_of(kind, service):
    make, options = SOURCES[kind]
    names = [service.new_name() for _ in range(3)]
    urls = [f"{service.url}/{kind.partition(',')[0]}/{name}" for name in names]

    def put(part, numbers):
        service.put(names[part], [json.dumps({"n": number}) for number in numbers])

    def source(**more):
        return make(urls, value=JsonMessages({"n": "int64"}), patience="1 min", **options, **more)

    is_bounded = options.get("bounded", False)
    return SourceSubject(
        source(), number=lambda row: row["n"], put=put, num_parts=3, grows=not is_bounded, reads_side_by_side=True,
        put_bad=lambda part: service.put(names[part], ['{"n": "x"}' if kind != "since" else "no JSON"]),
        passing_over=source(on_error="skip"), server=service,
    )  # fmt: skip


@pytest.mark.parametrize("kind", [kind if kind in ALWAYS else campaign(kind) for kind in SOURCES])
@pytest.mark.parametrize(
    "check",
    [campaign(one) if "survives" in one.__name__ else one for one in SOURCE_CONTRACT],
    ids=lambda check: check.__name__,
)
def test_sources_of_http(check, kind, http_service):  # noqa: F811
    try:
        check(subject_of(kind, http_service))
    finally:
        http_service.resume()
        http_service.start()
