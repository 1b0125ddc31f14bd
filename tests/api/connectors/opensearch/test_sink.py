"""Indices as a sink, against a real OpenSearch: what stays, whatever is written again, or late.

Risks and families: an older value that wins (random orders of writes against a dict; jobs that fail), deletions that a
service forgets, servers that are away, what is said of wrong arguments. What Elasticsearch has in common with it is in
``tests/search_checks.py``.
"""

from __future__ import annotations

from operator import itemgetter

import pytest
from failing_functions import FailsAtFirst
from opensearch_server import opensearch_server  # noqa: F401 - a fixture
from search_checks import CHECKS, sink_into, subject_of
from upsert_kit import AT_ONCE, harness_of, told, written

from headrace import RestartStrategies, StreamExecutionEnvironment
from headrace.connectors.opensearch import OpenSearchSink, SearchClient, UpsertOptions
from headrace.engine.errors import ConfigurationError
from headrace.testing.upsert_contract import UPSERT_CONTRACT

NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_indices_of_opensearch(check, opensearch_server):  # noqa: F811
    check(opensearch_server)


@pytest.mark.parametrize("check", UPSERT_CONTRACT, ids=lambda check: check.__name__)
def test_contract(check, opensearch_server):  # noqa: F811
    check(subject_of(opensearch_server))


def test_a_deletion_that_stays_is_older_than_nothing_that_comes_late(opensearch_server):  # noqa: F811
    """A service forgets the version of a document that is gone; not that of one that says so."""
    for marker, comes_back in ((None, True), ("gone", False)):
        index = opensearch_server.new_index(gc_deletes="0s")
        sink = sink_into(opensearch_server, index, order="at", delete_column="d", deletion_marker=marker)
        old = {"k": 1, "at": 5, "v": 1, "d": False}
        written(sink, [old])
        written(sink, [{**old, "at": 6, "d": True}])
        opensearch_server.ask("POST", f"/{index}/_refresh")
        opensearch_server.wait_until(lambda sink=sink, old=old, index=index, until=comes_back: (
            written(sink, [old]), ("v" in opensearch_server.documents(index).get("1", {})) == until)[1]
        )  # fmt: skip


def test_without_a_key_documents_are_added(opensearch_server):  # noqa: F811
    index = opensearch_server.new_index()
    written(sink_into(opensearch_server, index, key=()), [{"v": 1}, {"v": 1}, {"v": 2}])
    assert sorted(row["v"] for row in opensearch_server.documents(index).values()) == [1, 1, 2]


class HalfBusy:
    """A service that has no room for the second document of the first request."""

    def __init__(self):
        self.documents = []
        self.num_requests = 0

    def ask(self, method, path, body=None, parameters=None):
        self.num_requests += 1
        items = []
        for number, document in enumerate(body.splitlines()[1::2]):
            if self.num_requests == 1 and number == 1:
                items.append({"create": {"status": 429, "error": {"type": "busy", "reason": "no room"}}})
            else:
                items.append({"create": {"status": 201}})
                self.documents.append(document)
        return {"items": items}

    def close(self):
        pass


def test_what_was_added_is_not_sent_again_with_what_had_no_room(monkeypatch):
    service = HalfBusy()
    monkeypatch.setattr(SearchClient, "connect", lambda self, timeout_s=None: service)
    harness = harness_of(OpenSearchSink(NOWHERE, "i", options=AT_ONCE))
    harness.process([{"v": number} for number in range(5)])
    harness.operator.end_input(0)
    harness.do_work()
    harness.pass_time(1_000)
    harness.do_all_work()
    assert sorted(service.documents) == [b'{"v":%d}' % number for number in range(5)]
    assert harness.metrics.counters["num_entries_retried"] == 1


def test_a_service_that_stays_away_is_an_error():
    impatient = UpsertOptions(batch_interval="10 ms", patience=0)
    text = told(lambda: written(OpenSearchSink(NOWHERE, "i", key="k", options=impatient), [{"k": 1}]))
    assert "takes nothing" in text
    assert "patience" in text


@pytest.mark.parametrize("order", ["at", None])
def test_a_job_that_fails_ends_with_the_newest_of_each_key(order, opensearch_server, tmp_path):  # noqa: F811
    index = opensearch_server.new_index()
    rows = [{"k": at * 7 % 40, "at": at} for at in range(3_000)]
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(4, 10))
        failing = FailsAtFirst(tmp_path, (900, 1_700, 2_300), itemgetter("at"))
        stream = env.from_collection(rows).set_parallelism(1).key_by("k").map(failing)
        stream.sink_to(sink_into(opensearch_server, index, order=order))
        result = env.execute("to an index")
    assert result.num_restarts >= 1
    assert opensearch_server.documents(index) == {str(row["k"]): row for row in rows}


def test_wrong_arguments_are_refused():
    def refused(**arguments):
        with pytest.raises(ConfigurationError) as error:
            OpenSearchSink(**{"client": "http://localhost:9200", "index": "i", "key": "k", **arguments})
        return str(error.value)

    assert "one index" in refused(index="a,b")
    assert "hosts are URLs" in refused(client="localhost:9200")
    assert "each once" in refused(key=("a", "a"))
    assert "about the key" in refused(key=(), order="at")
    assert "cannot be a column of the key" in refused(delete_column="k")
    assert "need an order" in refused(deletion_marker="gone", delete_column="d")
    with pytest.raises(ConfigurationError, match="does not say who the user is"):
        SearchClient("http://me:secret@localhost:9200")
    with pytest.raises(ConfigurationError, match="need each other"):
        SearchClient("http://localhost:9200", user="me")
    with pytest.raises(ConfigurationError, match="not for the program"):
        SearchClient("http://localhost:9200", options={"max_retries": 5})
    with pytest.raises(ConfigurationError, match="fail or skip"):
        UpsertOptions(on_error="ignore")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"v": 1}, "no field 'k'"), ({"k": None, "at": 1}, "null"), ({"k": 1, "at": -1}, "whole number"),
        ({"k": 1, "at": 1.5}, "whole number"), (7, "named fields"),
    ],
)  # fmt: skip
def test_records_that_cannot_be_documents_are_named(row, text):
    sink = OpenSearchSink(NOWHERE, "i", key="k", order="at")
    assert text in told(lambda: written(sink, [row]))
