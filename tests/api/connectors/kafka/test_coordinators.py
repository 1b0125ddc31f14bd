"""Lists of transactions, of brokers that lead only some of them: a fake in the place of the client that asks them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace.connectors.kafka.client import Client
from headrace.engine.errors import SinkError

NO_LEADER = -1
NOT_THERE, MAY_NOT = 3, 29
"""Of Kafka's error codes: no such topic, and no right to look at it."""


class Brokers:
    """Who leads the parts of all transactions, look by look, and the ids in each part."""

    def __init__(self, *looks, error_code=0):
        self._looks, self._error_code = list(looks), error_code
        self.leaders = self._looks[0]

    def describe_topics(self, _names):
        self.leaders = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        parts = [{"partition_index": part, "leader_id": leader} for part, leader in enumerate(self.leaders)]
        return [{"error_code": self._error_code, "partitions": [] if self._error_code else parts}]

    def list_transactions(self, broker_ids=None, state_filters=()):
        assert state_filters == ["Ongoing"]
        asked = {1, 2} if broker_ids is None else broker_ids
        return {broker: [SimpleNamespace(transactional_id=one) for one in self.ids_of(broker)] for broker in asked}

    def ids_of(self, broker):
        return [f"p-{part}" for part, leader in enumerate(self.leaders) if leader == broker]

    def close(self):
        """As the client's."""


@pytest.fixture
def asking(monkeypatch):
    library = pytest.importorskip("kafka")
    import kafka.admin

    def asking(brokers):
        monkeypatch.setattr(library.admin, "KafkaAdminClient", lambda **_settings: brokers)
        return Client("localhost:1", {}).coordinator()

    assert kafka.admin is library.admin
    return asking


@pytest.mark.parametrize(
    "looks",
    [
        [(1, 2, 2)],
        [(1, NO_LEADER, 2), (1, 2, 2)],
        [(1, NO_LEADER, NO_LEADER), (1, NO_LEADER, 2), (1, 1, 2)],
        [(1, 2, 2), (1, 1, 2), (1, 1, 2)],
    ],
    ids=["led", "one-is-led-later", "two-are-led-later", "one-moves"],
)
def test_ids_of_all_parts_are_listed_whoever_leads_them(looks, asking):
    assert asking(Brokers(*looks)).open_ids("p-") == ["p-0", "p-1", "p-2"]


def test_a_part_that_nobody_leads_is_not_passed_over(asking, monkeypatch):
    monkeypatch.setattr("headrace.connectors.kafka.transaction_coordinator.ANSWER_TIMEOUT_S", 0)
    with pytest.raises(SinkError, match="has no leader"):
        asking(Brokers((1, NO_LEADER, 2))).open_ids("p-")


@pytest.mark.parametrize(("error_code", "found"), [(NOT_THERE, []), (MAY_NOT, ["p-0", "p-1", "p-2"])])
def test_where_there_are_none_or_who_leads_them_may_not_be_seen(error_code, found, asking):
    assert asking(Brokers((1, 2, 2), error_code=error_code)).open_ids("p-") == found
