"""The contract of sources, for indices."""

from __future__ import annotations

import uuid

import pytest
from campaigns import campaign
from opensearch_server import opensearch_server  # noqa: F401 - a fixture

from headrace.connectors.opensearch import JsonMessages, OpenSearchSource
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
