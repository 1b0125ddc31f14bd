"""What holds for indices of OpenSearch and of Elasticsearch alike: checks, each a function of a server.

Sinks: the newest record of a key stays (random orders of writes against a dict), ids, refusals one by one. Sources:
every document once, whatever becomes of the point in time.
"""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from reading_kit import read_some, reader_of, splits_of
from search_servers import SearchServer
from upsert_kit import AT_ONCE, told, written

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.messages.client_thread import AnswerError
from headrace.connectors.opensearch import JsonMessages, OpenSearchSink, OpenSearchSource, OrderKey, UpsertOptions
from headrace.connectors.opensearch.client import Service
from headrace.engine.connectors.contract import Split
from headrace.engine.errors import SourceError
from headrace.testing.upsert_contract import UpsertSubject, keeps_the_newest


def sink_into(server, index, **arguments):
    return OpenSearchSink(server.url, index, **{"key": "k", "options": AT_ONCE, **arguments})


def subject_of(server: SearchServer, ordered_marker: str | None = "gone") -> UpsertSubject:
    """An index that keeps what is deleted, as a service forgets it, for the contract of sinks by key."""
    index = server.new_index({"properties": {"v": {"type": "long"}}})

    def sink(order: str | None, options: UpsertOptions) -> OpenSearchSink:
        marker = None if order is None else ordered_marker  # which needs one
        return sink_into(server, index, order=order, options=options, delete_column="gone", deletion_marker=marker)

    def rows() -> dict[int, tuple[int, int]]:
        return {int(k): (row["at"], row["v"]) for k, row in server.documents(index).items() if "gone" not in row}

    bad = {"k": 2, "at": 1, "v": "text", "gone": False}
    return UpsertSubject(sink, rows, bad=bad, numbers_itself=False, server=server)


def what_is_older_is_counted_and_a_deletion_is_known_for_a_while(server):
    keeps_the_newest(subject_of(server, ordered_marker=None))
    sink = sink_into(server, server.new_index(), order="at")
    assert written(sink, [{"k": 1, "at": 2}]).get("num_records_older", 0) == 0
    assert written(sink, [{"k": 1, "at": 1}])["num_records_older"] == 1


def without_an_order_the_last_stays(server):
    index = server.new_index()
    sink = sink_into(server, index, delete_column="d")
    written(sink, [{"k": k, "v": v, "d": False} for v in (1, 2, 3) for k in range(70)])
    written(sink, [{"k": 0, "v": 0, "d": True}, {"k": 1, "v": 1, "d": True}, {"k": 1, "v": 9, "d": False}])
    expected = {str(k): {"k": k, "v": 3} for k in range(2, 70)} | {"1": {"k": 1, "v": 9}}
    assert server.documents(index) == expected


def ids_of_several_columns_are_told_apart(server):
    index = server.new_index({"properties": {"b": {"type": "keyword"}}})
    sink = sink_into(server, index, key=("a", "b"), order=OrderKey("t", ties="n", ties_below=10))
    times = [datetime(2020, 1, 1, 0, 0, second, tzinfo=timezone.utc) for second in (1, 1, 0)]
    written(sink, [{"a": "x_y", "b": 1, "t": times[0], "n": 1}, {"a": "x", "b": "y_1", "t": times[0], "n": 0}])
    written(sink, [{"a": "x_y", "b": 1, "t": times[1], "n": 0}])
    written(sink, [{"a": "x_y", "b": 1, "t": times[2], "n": 9}])
    found = server.documents(index)
    assert {name: row["n"] for name, row in found.items()} == {"x\\_y_1": 1, "x_y\\_1": 0}
    assert "from 0 to 9" in told(lambda: written(sink, [{"a": 1, "b": 1, "t": times[0], "n": 10}]))


def refused_documents_are_named_or_counted(server):
    index = server.new_index({"properties": {"v": {"type": "long"}}})
    rows = [{"k": 1, "v": 1}, {"k": 2, "v": "text"}, {"k": 3, "v": 3}]
    text = told(lambda: written(sink_into(server, index), rows))
    for part in (f"index {index!r}", "key '2'", "failed to parse field [v]", "operator", "subtask", "on_error='skip'"):
        assert part in text
    skipping = UpsertOptions(batch_interval="10 ms", on_error="skip")
    counters = written(sink_into(server, index, options=skipping), rows)
    assert counters["num_records_skipped"] == 1
    assert server.documents(index).keys() == {"1", "3"}


def ids_that_are_too_long_are_refused_alone(server):
    """A service refuses all of a request with such an id."""
    rows = [{"k": "a"}, {"k": "ä" * 257}, {"k": "x" * 512}, {"k": ""}, {"k": "a/b?#%\n\0\u2028"}, {"k": "c"}]
    index = server.new_index()
    skipping = UpsertOptions(batch_interval="10 ms", on_error="skip")
    counters = written(sink_into(server, index, options=skipping), rows)
    assert counters["num_records_skipped"] == 2
    assert server.documents(index) == {row["k"]: row for row in (rows[0], *rows[2:3], *rows[4:])}
    index = server.new_index()
    text = told(lambda: written(sink_into(server, index), rows[:3]))
    for part in (f"index {index!r}", "more than 512 bytes", "on_error='skip'"):
        assert part in text


# ------------------------------------------------------------------------------------------------------------ sources
def values_come_back_as_they_were(server):
    """Also what a float does not hold, in numbers that others have written."""
    at = datetime(2020, 1, 2, 3, 4, 5, 678_901, timezone.utc)
    row = {
        "whole": 2**63 - 1, "exact": Decimal("12345678901234567890.1234567890"), "real": 0.1, "none": None, "at": at,
        "text": 'a\n\0"\\\u2028ä', "list": [1, 2], "yes": True,
    }  # fmt: skip
    schema = pa.schema(
        [
            ("whole", pa.int64()), ("exact", pa.decimal128(38, 10)), ("real", pa.float64()), ("none", pa.int64()),
            ("at", pa.timestamp("us", "UTC")), ("text", pa.string()), ("list", pa.list_(pa.int64())),
            ("yes", pa.bool_()),
        ]
    )  # fmt: skip
    index = server.new_index({"dynamic": False})
    written(sink_into(server, index, key="text"), [row])
    number = (
        b'{"text": "other", "exact": 12345678901234567890.1234567890, "real": 1e22, "more": 0.10000000000000000001}'
    )
    server.ask("PUT", f"/{index}/_doc/other", number)
    server.ask("POST", f"/{index}/_refresh")
    source = OpenSearchSource(server.url, index, value=JsonMessages(schema))
    rows = {found["text"]: found for found in read_some(reader_of(source, splits_of(source)))}
    assert rows.pop("other")["exact"] == row["exact"]
    assert rows == {row["text"]: row}


def documents_that_are_not_kept_are_an_error(server):
    index = server.new_index({"_source": {"enabled": False}})
    server.put(index, [("d", {"n": 1})])
    for value in (JsonMessages({"n": "int64"}), JsonMessages({"n": Decimal})):
        source = OpenSearchSource(server.url, index, value=value)
        with pytest.raises(SourceError, match="_source"):
            read_some(reader_of(source, splits_of(source)))


def source_of(server: SearchServer, index: str, **options: Any) -> OpenSearchSource:
    return OpenSearchSource(server.url, index, value=JsonMessages({"n": "int64"}), page_size=7, **options)


def lose_points_in_time(server: SearchServer, splits: list[Split]) -> None:
    for point in {split.payload["point"] for split in splits}:
        try:
            server.ask("DELETE", "/_pit", {"id": point})
        except OSError:
            server.ask("DELETE", "/_search/point_in_time", {"pit_id": [point]})


def documents_come_once_as_they_were(server):
    """With what the service says of them; what is changed, added or deleted meanwhile is as before."""
    index = server.new_index()
    server.put(index, [(f"d{n}", {"n": n, "text": "x"}) for n in range(100)])
    source = source_of(server, f"{index[:-1]}*", slices=2, metadata={"name": "id", "of": "index"})
    splits = splits_of(source)
    assert len(splits) == 4
    server.put(index, [(f"d{n}", {"n": -n}) for n in range(90, 110)])
    server.ask("DELETE", f"/{index}/_doc/d5?refresh=true")
    rows = read_some(reader_of(source, splits))
    assert sorted(row["n"] for row in rows) == list(range(100))
    assert all(row["name"] == f"d{row['n']}" and row["of"] == index for row in rows)


def a_query_says_which_documents(server):
    index = server.new_index()
    server.put(index, [(f"d{n}", {"n": n}) for n in range(40)])
    source = source_of(server, index, query={"range": {"n": {"gte": 10, "lt": 20}}})
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "documents")
        with stream.execute_and_collect() as rows:
            assert sorted(row["n"] for row in rows) == list(range(10, 20))


def reading_goes_on_without_its_point_in_time(server):
    index = server.new_index()
    server.put(index, [(f"d{n}", {"n": n}) for n in range(200)])
    source = source_of(server, index)
    splits = splits_of(source)
    reader = reader_of(source, splits)
    rows = read_some(reader, 10)
    left = reader.snapshot()
    reader.close()
    lose_points_in_time(server, splits)
    server.put(index, [(f"new{n}", {"n": 1_000 + n}) for n in range(20)])
    rows += read_some(reader_of(source, left))
    assert sorted(row["n"] for row in rows) == list(range(200))


def what_was_changed_without_a_point_in_time_is_an_error(server):
    index = server.new_index()
    server.put(index, [(f"d{n}", {"n": n}) for n in range(200)])
    source = source_of(server, index)
    splits = splits_of(source)
    lose_points_in_time(server, splits)
    server.put(index, [("d17", {"n": -1})])
    with pytest.raises(SourceError, match=r"1 of .* documents were changed or deleted"):
        read_some(reader_of(source, splits))
    server.ask("DELETE", f"/{index}")
    server.ask("PUT", f"/{index}", {})
    with pytest.raises(SourceError, match="deleted and made anew"):
        read_some(reader_of(source, splits))


def what_cannot_be_read_is_told(server):
    assert "no such index" in told(lambda: splits_of(source_of(server, "no-such-index")))
    index = server.new_index()
    about = {"add": {"index": index, "alias": f"{index}-part", "filter": {"term": {"n": 1}}}}
    server.ask("POST", "/_aliases", {"actions": [about]})
    for name in (f"{index}-part", f"{index}-p*"):
        assert "has a filter" in told(lambda name=name: splits_of(source_of(server, name)))
    server.put(index, [("d", {"n": 1})])
    assert len(splits_of(source_of(server, f"{index}*"))) == 1  # that is the index itself as well
    assert "parsing_exception" in told(lambda: splits_of(source_of(server, index, query={"no-such-query": {}})))


def num_open_views(server: SearchServer) -> int:
    """How many shards of an index a service keeps as they were, for searches that go on."""
    nodes = server.ask("GET", "/_nodes/stats/indices/search")["nodes"].values()
    return sum(node["indices"]["search"]["open_contexts"] for node in nodes)


def points_in_time_that_nobody_needs_are_closed(server):
    index = server.new_index()
    source = source_of(server, index)
    before = num_open_views(server)
    assert splits_of(source) == []  # there are no documents
    assert num_open_views(server) == before
    server.put(index, [(f"d{n}", {"n": n}) for n in range(50)])
    told(lambda: splits_of(source_of(server, index, query={"no-such-query": {}})))
    assert num_open_views(server) == before
    splits = splits_of(source)
    assert num_open_views(server) > before, "what readers ask stays: they may have to begin anew"
    lose_points_in_time(server, splits)
    assert num_open_views(server) == before
    reader = reader_of(source, splits)
    assert len(read_some(reader)) == 50
    reader.close()
    server.wait_until(lambda: num_open_views(server) == before)  # it had opened points of its own


def a_service_that_is_away_is_waited_for_at_the_first_look_too(server):
    index = server.new_index()
    server.put(index, [("d", {"n": 1})])
    asks, num_asked = Service.ask, 0

    def ask(self, *arguments, **more):
        nonlocal num_asked
        num_asked += 1
        if num_asked in (1, 2, 5):
            text = "status 503: not now"
            raise AnswerError(text, is_away=True)
        return asks(self, *arguments, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Service, "ask", ask)
        assert len(splits_of(source_of(server, index))) == 1
        num_asked = 0
        with pytest.raises(SourceError, match="not now"):
            splits_of(source_of(server, index, patience=0))


CHECKS = (
    what_is_older_is_counted_and_a_deletion_is_known_for_a_while,
    without_an_order_the_last_stays,
    ids_of_several_columns_are_told_apart,
    refused_documents_are_named_or_counted,
    ids_that_are_too_long_are_refused_alone,
    values_come_back_as_they_were,
    documents_that_are_not_kept_are_an_error,
    documents_come_once_as_they_were,
    a_query_says_which_documents,
    reading_goes_on_without_its_point_in_time,
    what_was_changed_without_a_point_in_time_is_an_error,
    what_cannot_be_read_is_told,
    points_in_time_that_nobody_needs_are_closed,
    a_service_that_is_away_is_waited_for_at_the_first_look_too,
)
