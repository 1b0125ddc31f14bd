"""Tables of SQL in indices, against a real OpenSearch."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from opensearch_server import opensearch_server  # noqa: F401 - a fixture

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment


def table(name, columns, server, **options):
    given = {"connector": "opensearch", "hosts": server.url, **options}
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({listed})"


@pytest.mark.parametrize("options", [{}, {"sink.order-column": "num"}, {"sink.deletion-marker": "gone"}])
def test_changes_become_documents(options, opensearch_server):  # noqa: F811
    """Rows are inserted, updated and deleted; the number of events of a key grows with each change."""
    if "sink.deletion-marker" in options:
        options = {**options, "sink.order-column": "num"}
    events, sums = opensearch_server.new_index(), opensearch_server.new_index()
    rng = random.Random(5)
    rows = [{"k": f"k{rng.randrange(7)}", "v": rng.randrange(11) - 5} for _ in range(300)]
    opensearch_server.put(events, [(str(place), row) for place, row in enumerate(rows)])
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql(table("events", "k STRING, v BIGINT", opensearch_server, index=events))
    columns = "k STRING, total BIGINT, num BIGINT, PRIMARY KEY (k) NOT ENFORCED"
    t.execute_sql(table("sums", columns, opensearch_server, index=sums, **options))
    t.execute_sql("INSERT INTO sums SELECT k, SUM(v), COUNT(*) FROM events GROUP BY k HAVING SUM(v) > 0")
    totals, counts = Counter(), Counter()
    for row in rows:
        totals[row["k"]] += row["v"]
        counts[row["k"]] += 1
    expected = {k: {"k": k, "total": total, "num": counts[k]} for k, total in totals.items() if total > 0}
    found = opensearch_server.documents(sums)
    deleted = {k for k, row in found.items() if row.get("gone")}
    opensearch_server.ask("POST", f"/{sums}/_refresh")
    read = t.execute_sql("SELECT k, total FROM sums").to_arrow().to_pylist()
    assert sorted((row["k"], row["total"]) for row in read) == sorted((k, row["total"]) for k, row in expected.items())
    assert {k: row for k, row in found.items() if k not in deleted} == expected
    assert deleted <= totals.keys() - expected.keys()


def test_rows_without_a_key_are_added_and_read_with_what_the_service_says(opensearch_server):  # noqa: F811
    index = opensearch_server.new_index()
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql(table("numbers", "n BIGINT, at TIMESTAMP(3)", opensearch_server, index=index))
    values = ", ".join(f"({n}, TIMESTAMP '2024-01-01 00:00:{n:02d}')" for n in range(20))
    t.execute_sql(f"INSERT INTO numbers VALUES {values}")
    opensearch_server.ask("POST", f"/{index}/_refresh")
    columns = "n BIGINT, at TIMESTAMP(3), id STRING METADATA VIRTUAL, f STRING METADATA FROM 'index' VIRTUAL"
    query = '{"range": {"n": {"lt": 15}}}'
    t.execute_sql(table("again", columns, opensearch_server, index=index, **{"scan.query": query, "scan.slices": "2"}))
    found = t.execute_sql("SELECT n, CAST(at AS STRING) AS at, id, f FROM again")
    rows = found.to_arrow().to_pylist()
    assert sorted((row["n"], row["at"][:19]) for row in rows) == [(n, f"2024-01-01 00:00:{n:02d}") for n in range(15)]
    assert {row["f"] for row in rows} == {index}
    assert {row["id"] for row in rows} < opensearch_server.documents(index).keys()


@pytest.mark.parametrize("name", ["elasticsearch-7", "elasticsearch-8", "opensearch-2"])
def test_the_names_of_flink_are_one_connector(name, opensearch_server):  # noqa: F811
    index = opensearch_server.new_index()
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    columns = "a BIGINT, b STRING, PRIMARY KEY (a, b) NOT ENFORCED"
    options = {"connector": name, "document-id.key-delimiter": "$", "sink.bulk-flush.max-actions": "2"}
    t.execute_sql(table("t", columns, opensearch_server, index=index, **options))
    t.execute_sql("INSERT INTO t VALUES (1, 'x'), (2, 'y'), (1, 'x')")
    assert opensearch_server.documents(index).keys() == {"1$x", "2$y"}


KEYED = "a BIGINT, b STRING, PRIMARY KEY (a) NOT ENFORCED"


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        (KEYED, {}, "needs option 'index'"),
        (KEYED, {"index": "i-{b}"}, "made of each row"),
        (KEYED, {"index": "i", "sink.order-column": "c"}, "no such column"),
        (KEYED, {"index": "i", "sink.order-column": "b"}, "whole number or a time"),
        ("a BIGINT", {"index": "i", "sink.order-column": "a"}, "with a PRIMARY KEY"),
        (KEYED, {"index": "i", "failure-handler": "retry"}, "fail, ignore"),
        (KEYED, {"index": "i", "scan.query": "[]"}, "object of JSON"),
        (KEYED, {"index": "i", "hosts": "localhost"}, "hosts are URLs"),
        (KEYED, {"index": "i", "sink.bulk-flush.max-action": "5"}, "sink.bulk-flush.max-actions"),
    ],
)
def test_wrong_options_are_refused(columns, options, told):
    class Server:
        url = "http://localhost:9200"

    t = TableEnvironment.create(parallelism=1, actor_system="local")
    with pytest.raises(HeadraceError, match=told):
        t.execute_sql(table("t", columns, Server, **options))
