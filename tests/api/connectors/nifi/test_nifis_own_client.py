"""The server of tests against NiFi's own client: what ours is checked against is what NiFi's client speaks.

Risks and families: a protocol that only our two sides speak.
"""

from __future__ import annotations

import pytest
from nifi_kit import NiFi
from nifi_server import nifis_client  # noqa: F401 - a fixture


@pytest.mark.timeout(600)
def test_nifis_client_sends_and_receives_by_the_server_of_tests(nifis_client):  # noqa: F811
    nifi = NiFi()
    nifis_client.send(nifi.url, "in", ["a", "b", "ü"])
    assert [one.content.decode() for one in nifi.taken] == ["a", "b", "ü"]
    assert nifi.taken[0].attributes == {"number": "3"}
    nifi.fill(["x", "y"])
    assert nifis_client.receive(nifi.url, "out") == [("x", "x"), ("y", "y")]
    assert nifi.left == 0
    nifi.stop()
