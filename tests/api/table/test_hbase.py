"""Tables of SQL in HBase, against a real server."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hbase_server import hbase_server  # noqa: F401 - a fixture

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment


def table(name, columns, **options):
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in {"connector": "hbase-2.2", **options}.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({listed})"


def test_changes_become_rows_and_are_read_again(hbase_server):  # noqa: F811
    """Rows are inserted, updated and deleted; families are rows of SQL."""
    events, sums = hbase_server.new_table("f"), hbase_server.new_table("f", "g")
    rng = random.Random(5)
    rows = [(n, f"k{rng.randrange(7)}", rng.randrange(11) - 5) for n in range(200)]
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    where = {"thrift.host": hbase_server.host}
    columns = "n INT, f ROW<k STRING, v BIGINT>, PRIMARY KEY (n) NOT ENFORCED"
    t.execute_sql(table("events", columns, **where, **{"table-name": events}))
    values = ", ".join(f"({n}, ROW('{k}', CAST({v} AS BIGINT)))" for n, k, v in rows)
    t.execute_sql(f"INSERT INTO events VALUES {values}")
    columns = "k STRING, f ROW<total BIGINT>, g ROW<num BIGINT, note STRING>, PRIMARY KEY (k) NOT ENFORCED"
    t.execute_sql(table("sums", columns, **where, **{"table-name": sums}))
    t.execute_sql("""INSERT INTO sums SELECT k, ROW(SUM(v)), ROW(COUNT(*), CAST(NULL AS STRING))
        FROM (SELECT e.f.k AS k, e.f.v AS v FROM events AS e) GROUP BY k HAVING SUM(v) > 0""")
    totals, counts = Counter(), Counter()
    for _, k, v in rows:
        totals[k] += v
        counts[k] += 1
    expected = {(k, total, counts[k], None) for k, total in totals.items() if total > 0}
    found = t.execute_sql("SELECT s.k, s.f.total AS total, s.g.num AS num, s.g.note AS note FROM sums AS s")
    assert {tuple(row.values()) for row in found.to_arrow().to_pylist()} == expected
    assert all(cells[b"g:note"] == b"null" for cells in hbase_server.rows(sums).values())


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ("a INT, f ROW<v INT>", {}, "needs option 'thrift.host'"),
        ("a INT, b INT", {"thrift.host": "h", "table-name": "t"}, "one column that is its row key"),
        ("f ROW<v INT>", {"thrift.host": "h", "table-name": "t"}, "one column that is its row key"),
        ("a INT, f ROW<v ARRAY<INT>>", {"thrift.host": "h", "table-name": "t"}, "cannot write"),
        ("a INT, f ROW<v INT>", {"thrift.host": "http://h", "table-name": "t"}, "a host is a name"),
        ("a INT, f ROW<v INT>", {"thrift.host": "h", "table-name": "t", "zookeeper.quorum": "z"}, "has no option"),
    ],
)
def test_wrong_options_are_refused(columns, options, told):
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    with pytest.raises(HeadraceError, match=told):
        t.execute_sql(table("t", columns, **options))
