"""Tables of SQL that are pages, events and lines of HTTP, and an address where rows are posted."""

from __future__ import annotations

import json

import pytest
from http_service import http_service  # noqa: F401 - a fixture

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment


def table(name, columns, url, **options):
    given = {"connector": "http", "url": url, "format": "json", **options}
    told = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({told})"


@pytest.mark.parametrize(
    "options",
    [
        {"scan.records": "/data/items", "scan.cursor": "/next", "scan.parameter": "cursor", "url": "pages"},
        {"scan.mode": "lines", "url": "lines"},
    ],
    ids=["pages", "lines"],
)
def test_from_an_address_to_another_one(options, http_service, tmp_path):  # noqa: F811
    name, target = http_service.new_name(), http_service.new_name()
    http_service.put(name, [json.dumps({"kind": f"k{n % 3}", "n": n}) for n in range(30)])
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql("SET 'execution.checkpointing.interval' = '100 ms'")
    t.execute_sql(f"SET 'execution.checkpointing.dir' = '{tmp_path}'")
    secret = {"headers.X-Who": "hidden", "scan.bounded": "true"}
    options = {**options, **secret, "url": f"{http_service.url}/{options['url']}/{name}"}
    columns = "kind STRING, n BIGINT, address STRING METADATA FROM 'url'"
    t.execute_sql(table("source", columns, **options))
    written = {"sink.delivery-guarantee": "exactly-once", "sink.framing": "array", "sink.batch-size": "4"}
    t.execute_sql(table("target", "kind STRING, n BIGINT, address STRING", f"{http_service.url}/x/{target}", **written))
    shown = "".join(str(row) for row in t.execute_sql("SHOW CREATE TABLE source").collect())
    assert "'headers.X-Who' = ***" in shown
    assert "hidden" not in shown
    assert "hidden" not in t.explain_sql("INSERT INTO target SELECT kind, n, address FROM source")
    t.execute_sql("INSERT INTO target SELECT kind, n * 2, address FROM source")
    rows = [row for body in http_service.posted(target) for row in json.loads(body)]
    expected = [{"kind": f"k{n % 3}", "n": 2 * n, "address": options["url"]} for n in range(30)]
    assert sorted(rows, key=lambda row: row["n"]) == expected
    assert {headers["X-Who"] for _, path, headers in http_service.requests if name in path} == {"hidden"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, r"scan\.cursor"),
        ({"scan.mode": "x"}, "pages, events, lines"),
        ({"scan.mode": "events", "scan.records": "/x"}, r"scan\.records"),
        ({"scan.cursor": "/x", "scan.body": "x"}, "body is json"),
    ],
)
def test_wrong_options_are_refused(options, told):
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    with pytest.raises(HeadraceError, match=told):
        t.execute_sql(table("t", "a STRING", "http://localhost/x", **options))
        t.execute_sql("SELECT * FROM t").print()
