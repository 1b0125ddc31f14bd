"""The contract of sources, for collections of MongoDB, with a server that is killed and stands still."""

from __future__ import annotations

from itertools import count

import pytest
from campaigns import campaign
from mongodb_server import mongodb_server  # noqa: F401 - a fixture

from headrace.connectors.mongodb import MongodbSource
from headrace.testing.source_contract import SOURCE_CONTRACT, SourceSubject


def subject_of(server):
    """A part is a third of the values of ``_id``, which are of two types, and grow within the part."""
    name = server.new_name()
    places = count()

    def id_of(part):
        return {"part": part, "at": next(places)} if part else next(places)

    def put(part, numbers):
        server.put(name, [{"_id": id_of(part), "n": number} for number in numbers])

    def put_bad(part):
        server.put(name, [{"_id": id_of(part), "n": "text"}])

    source = MongodbSource(server.uri, name, schema={"n": "int64"}, splits=3, page_size=5)
    return SourceSubject(
        source, number=lambda row: row["n"], put=put, num_parts=3, put_bad=put_bad, server=server,
        is_ordered=False,  # ranges are read side by side
    )  # fmt: skip


TAKES_LONG = ("survives_its_server",)
CHECKS = [campaign(check) if check.__name__ in TAKES_LONG else check for check in SOURCE_CONTRACT]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_collections(check, mongodb_server):  # noqa: F811
    try:
        check(subject_of(mongodb_server))
    finally:
        mongodb_server.start()
