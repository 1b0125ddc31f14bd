"""The contract of sources, for topics of Pulsar, against a real broker."""

from __future__ import annotations

import json

import pytest
from campaigns import campaign
from pulsar_server import pulsar_server  # noqa: F401 - a fixture

from headrace.connectors.pulsar import JsonMessages, PulsarSource
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject


def subject_of(server, *, stops, **arguments):
    topic = server.new_topic(3)

    def put(part, numbers):
        server.send(f"{topic}-partition-{part}", [json.dumps({"n": number}) for number in numbers])

    def source(**options):
        return PulsarSource(
            server.url, topic, value=JsonMessages({"n": "int64"}), bounded=stops, **arguments, **options
        )

    return SourceSubject(
        source(), number=lambda row: row["n"], put=put, num_parts=3, grows=not stops, reads_side_by_side=True,
        put_bad=lambda part: server.send(f"{topic}-partition-{part}", ["{"]), passing_over=source(on_error="skip"),
        server=server,
    )  # fmt: skip


@pytest.mark.parametrize("stops", [False, campaign(True)], ids=["endless", "bounded"])
@pytest.mark.parametrize(
    "check",
    [campaign(check) if "serve" in check.__name__ else check for check in SOURCE_CONTRACT],
    ids=lambda check: check.__name__,
)
def test_topics_of_pulsar(check, stops, pulsar_server):  # noqa: F811
    check(subject_of(pulsar_server, stops=stops))


@pytest.mark.parametrize("check", [one for one in SOURCE_CONTRACT if "checkpoint" in one.__name__])
def test_a_subscription_keeps_what_a_job_goes_on_from(check, pulsar_server):  # noqa: F811
    check(subject_of(pulsar_server, stops=False, subscription="guard"))
