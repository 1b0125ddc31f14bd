"""The contract of sources, for streams of WebSocket that go on behind a cursor; servers that are killed, or pause."""

from __future__ import annotations

import pytest
from campaigns import campaign
from websocket_service import websocket_service  # noqa: F401 - a fixture

from headrace.connectors.websocket import JsonMessages, WebSocketSource
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject

SAYS = {
    "subscribe": '{"what": "rows"}', "resume": '{"what": "rows", "after": ${cursor}}', "needs_cursors": False,
}  # fmt: skip
SOURCES = {
    "since": ("since/{}?cut=7", {"parameter": "since"}),
    "since, bounded": ("since/{}?bounded=1&cut=9", {"parameter": "since", "bounded": True}),
    "since, inclusive": ("since/{}?inclusive=1&bytes=1&cut=8", {"parameter": "since"}),
    "subscribed": ("subscribe/{}?cut=6", SAYS),
    "subscribed, texts": (
        "subscribe/{}?texts=1", {**SAYS, "resume": '{"what": "rows", "after": "${cursor}"}'},
    ),
}  # fmt: skip
ALWAYS = {"since"}


def subject_of(kind, service):
    path, options = SOURCES[kind]
    names = [service.new_name() for _ in range(3)]
    urls = [f"{service.url}/{path.format(name)}" for name in names]

    def source(**more):
        value = JsonMessages({"n": "int64"})
        return WebSocketSource(urls, value=value, cursor="/id", patience="1 min", timeout="10 s", **options, **more)

    is_bounded = options.get("bounded", False)
    return SourceSubject(
        source(), number=lambda row: row["n"], num_parts=3, grows=not is_bounded, reads_side_by_side=True,
        put=lambda part, numbers: service.put(names[part], [{"n": number} for number in numbers]),
        put_bad=lambda part: service.put(names[part], [{"n": "x"}]),
        passing_over=source(on_error="skip"), server=service,
    )  # fmt: skip


@pytest.mark.parametrize("kind", [kind if kind in ALWAYS else campaign(kind) for kind in SOURCES])
@pytest.mark.parametrize(
    "check",
    [campaign(one) if "survives" in one.__name__ else one for one in SOURCE_CONTRACT],
    ids=lambda check: check.__name__,
)
def test_sources_of_websocket(check, kind, websocket_service):  # noqa: F811
    try:
        check(subject_of(kind, websocket_service))
    finally:
        websocket_service.start()
