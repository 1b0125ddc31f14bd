"""The contract of sources, for indices, and answers that are not whole."""

from __future__ import annotations

import json
import uuid

import pytest
from campaigns import campaign
from opensearch_server import opensearch_server  # noqa: F401 - a fixture

from headrace.connectors.messages.client_thread import AnswerError
from headrace.connectors.opensearch import JsonMessages, OpenSearchSource
from headrace.connectors.opensearch.client import Service
from headrace.engine.errors import SourceError
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject


def subject_of(server):
    """Parts are indices of one shard, which have an order."""
    prefix = f"index-{uuid.uuid4().hex[:12]}"
    for part in range(2):
        server.new_index({"properties": {"n": {"type": "keyword"}}}, name=f"{prefix}-{part}", number_of_shards=1)

    def put(part, numbers):
        server.put(f"{prefix}-{part}", [(str(number), {"n": number}) for number in numbers])

    def put_bad(part):
        server.put(f"{prefix}-{part}", [(uuid.uuid4().hex, {"n": "text"})])

    def source(**options):
        return OpenSearchSource(server.url, f"{prefix}-*", value=JsonMessages({"n": "int64"}), page_size=5, **options)

    return SourceSubject(
        source(), number=lambda row: row["n"], put=put, num_parts=2, put_bad=put_bad,
        passing_over=source(on_error="skip"), server=server,
    )  # fmt: skip


# Its server is started several times, which takes long; other tests lose the point in time alone.
TAKES_LONG = ("survives_its_server",)
CHECKS = [campaign(check) if check.__name__ in TAKES_LONG else check for check in SOURCE_CONTRACT]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_indices(check, opensearch_server):  # noqa: F811
    check(subject_of(opensearch_server))


def test_an_index_without_one_of_its_shards_is_not_read(opensearch_server):  # noqa: F811
    """A point in time of what is left would know nothing of the rest, and no search of it that something is missing."""
    index = opensearch_server.new_index(**{"routing.allocation.total_shards_per_node": 1}, wait=False)
    opensearch_server.wait_until(lambda: opensearch_server.ask("GET", f"/_cluster/health/{index}")["active_shards"])
    lines = [line for n in range(20) for line in ({"index": {"_id": str(n)}}, {"n": n})]
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    items = opensearch_server.ask("POST", f"/{index}/_bulk?refresh=true&timeout=1ms", body)["items"]
    assert {"error" in item["index"] for item in items} == {False, True}
    source = OpenSearchSource(opensearch_server.url, index, value=JsonMessages({"n": "int64"}), patience=0)
    with pytest.raises(SourceError, match="status 503"):
        source.create_enumerator(None).discover()
    opensearch_server.ask("DELETE", f"/{index}")


class Answering:
    """A client whose service gives one answer to all."""

    def __init__(self, answer):
        self.transport = self
        self._answer = answer

    def perform_request(self, *_arguments, **_more):
        return self._answer


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"_shards": {"total": 3, "successful": 2, "failed": 1}}, "1 of 3 shards are missing"),
        ({"_shards": {"total": 3, "successful": 2, "failed": 0}}, "1 of 3 shards are missing"),
        ({"timed_out": True, "_shards": {"total": 3, "successful": 3, "failed": 0}}, "its time was over"),
    ],
)
def test_an_answer_that_is_not_whole_is_none(said, told):
    pytest.importorskip("opensearchpy")
    service = Service(Answering({"id": "x", "pit_id": "x", "hits": {"hits": []}, **said}))
    for ask in (lambda: service.search({}), lambda: service.open_point_in_time("index", "1m")):
        with pytest.raises(AnswerError, match=told) as refused:
            ask()
        assert refused.value.is_away, "what is missing may be back in a moment"
