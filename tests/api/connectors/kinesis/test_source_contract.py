"""The contract of sources, for a stream of Kinesis, against kinesalite."""

from __future__ import annotations

import json

import pytest
from campaigns import campaign
from kinesis_server import kinesis_server  # noqa: F401 - a fixture

from headrace.connectors.kinesis import JsonMessages, KinesisSource
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject


def subject_of(server, *, stops):
    stream = server.new_stream(3)

    def put(part, numbers):
        server.put(stream, [json.dumps({"n": number}) for number in numbers], part)

    def source(**options):
        return KinesisSource(
            stream, value=JsonMessages({"n": "int64"}), bounded=stops, read_interval=5, **server.arguments(**options)
        )

    return SourceSubject(
        source(), number=lambda row: row["n"], put=put, num_parts=3, grows=not stops, reads_side_by_side=True,
        put_bad=lambda part: server.put(stream, ["{"], part), passing_over=source(on_error="skip"), server=server,
    )  # fmt: skip


@pytest.mark.parametrize("stops", [False, campaign(True)], ids=["endless", "bounded"])
@pytest.mark.parametrize(
    "check",
    [campaign(check) if "serve" in check.__name__ else check for check in SOURCE_CONTRACT],
    ids=lambda check: check.__name__,
)
def test_a_stream_of_kinesis(check, stops, kinesis_server):  # noqa: F811
    check(subject_of(kinesis_server, stops=stops))
