"""The contract of sources, for streams of RabbitMQ.

A queue is no subject of it: it has no positions, and an attempt that was given up and lives on keeps its messages.
"""

from __future__ import annotations

import json

import pytest
from campaigns import campaign
from rabbitmq_server import rabbitmq_server  # noqa: F401 - a fixture

from headrace.connectors.rabbitmq import JsonMessages, RabbitStreamSource
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject


def subject_of(server, *, stops):
    streams = [server.new_stream() for _ in range(3)]

    def put(part, numbers):
        server.send(streams[part], [json.dumps({"n": number}) for number in numbers])

    def source(**options):
        return RabbitStreamSource(
            server.stream_url, streams, value=JsonMessages({"n": "int64"}), bounded=stops, **options
        )

    return SourceSubject(
        source(), number=lambda row: row["n"], put=put, num_parts=3, grows=not stops, reads_side_by_side=True,
        put_bad=lambda part: server.send(streams[part], ["{"]), passing_over=source(on_error="skip"), server=server,
    )  # fmt: skip


@pytest.mark.parametrize("stops", [False, campaign(True)], ids=["endless", "bounded"])
@pytest.mark.parametrize(
    "check",
    # A server killed soon after its first stream may never find it again (RabbitMQ 3.10.8), nor be read from then.
    [campaign(check) if check.__name__ == "survives_its_server" else check for check in SOURCE_CONTRACT],
    ids=lambda check: check.__name__,
)
def test_streams_of_rabbitmq(check, stops, rabbitmq_server):  # noqa: F811
    try:
        check(subject_of(rabbitmq_server, stops=stops))
    except BaseException:
        rabbitmq_server.stop()
        rabbitmq_server.start()
        raise
