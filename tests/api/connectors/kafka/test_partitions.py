"""Where partitions begin and end, when no broker says it.

Risk: the client gives a number that is no offset where a leader does not answer. Taken for an end, it makes a bounded
source end at once, and notes of commits look as if there were none, so that a checkpoint is written twice.
"""

from __future__ import annotations

import pytest
from kafka_server import kafka_server  # noqa: F401 - a fixture

from headrace.connectors.kafka import KafkaOffsets, partitions
from headrace.connectors.kafka.client import Client, ClientErrors, kafka
from headrace.connectors.kafka.ledger import Ledger
from headrace.connectors.kafka.partitions import Partitions, end_of
from headrace.engine.errors import SinkError, SourceError


def test_an_end_that_no_leader_tells_is_an_error_and_no_end(kafka_server, monkeypatch):  # noqa: F811
    monkeypatch.setattr(partitions, "REQUEST_TIMEOUT_S", 0.5)
    topic, notes = kafka_server.create_topic(), kafka_server.create_topic(cleanup_policy="compact")
    kafka_server.produce(topic, ["1", "2", "3"])
    kafka_server.produce(notes, ['{"written": [[0, 3]]}'], key="id")
    client = Client(kafka_server.address, {})
    admin = client.admin(ClientErrors("test"))
    source, ledger = Partitions(client, None), Ledger(client, notes, 10.0)
    ledger.open(topic)
    assert end_of(admin, topic, 0) == 3
    assert source.offsets([(topic, 0)], KafkaOffsets.latest()) == {(topic, 0): 3}

    kafka_server.pause()
    try:
        with pytest.raises(kafka().KafkaException):
            end_of(admin, topic, 0)
        with pytest.raises(SourceError, match="does not say where partitions begin and end"):
            source.offsets([(topic, 0)], KafkaOffsets.latest())
        with pytest.raises(SinkError, match="notes cannot be read"):
            ledger.note("id")
    finally:
        kafka_server.resume()
    monkeypatch.undo()
    assert end_of(admin, topic, 0) == 3
    assert 2 in ledger.note("id").written
    ledger.close()
