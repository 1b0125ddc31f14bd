"""What the campaigns take for a cluster that may lose its leader: heads that answer, and not all that Ray lists.

Families: table (what heads answer, and how many of them could lead).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.actors.hosts.host_system import AskTimedOutError, HostGoneError
from headrace.engine.cluster.leadership import LeaderFound

FIRST, SECOND = LeaderFound(1, "head-a"), LeaderFound(2, "head-b")
GONE, SILENT = HostGoneError("gone"), AskTimedOutError("silent")


class Heads:
    """A system whose heads give these answers, beside a host that is none."""

    def __init__(self, answers):
        self._answers = answers
        self.hosts = [*answers, "tm-1"]

    def ask(self, address, _request, _timeout_ms):
        answer = self._answers[address.host]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "num_ready"),
    [
        pytest.param({"head-a": FIRST, "head-b": FIRST}, 2, id="a leader and a standby that knows it"),
        pytest.param({"head-a": FIRST, "head-b": SILENT}, 1, id="a standby that is starting, or is never told to run"),
        pytest.param({"head-a": FIRST, "head-b": LeaderFound(0, None)}, 1, id="a standby that has not looked yet"),
        pytest.param({"head-a": GONE, "head-b": FIRST}, 0, id="a leader that was killed a moment ago"),
        pytest.param({"head-a": GONE, "head-b": SECOND, "head-c": SECOND}, 2, id="a new leader and its standby"),
        pytest.param({"head-a": FIRST, "head-b": SECOND}, 1, id="a leader that does not know that it leads no more"),
        pytest.param({}, 0, id="none"),
    ],
)
def test_heads_that_could_lead_are_counted(answers, num_ready, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import failover

    assert failover.num_ready(Heads(answers)) == num_ready
