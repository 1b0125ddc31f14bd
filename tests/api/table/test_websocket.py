"""Tables of SQL that are streams of WebSocket, against a server in another process."""

from __future__ import annotations

import json

import pytest
from websocket_service import websocket_service  # noqa: F401 - a fixture

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment


def table(name, columns, url, **options):
    given = {"connector": "websocket", "url": url, "format": "json", **options}
    told = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({told})"


def test_from_a_stream_to_another_one(websocket_service, tmp_path):  # noqa: F811
    name, target = websocket_service.new_name(), websocket_service.new_name()
    websocket_service.put(name, [{"kind": f"k{n % 3}", "n": n} for n in range(30)])
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql("SET 'execution.checkpointing.interval' = '100 ms'")
    t.execute_sql(f"SET 'execution.checkpointing.dir' = '{tmp_path}'")
    options = {
        "scan.cursor": "/id", "scan.subscribe": '{"what": "rows"}', "scan.resume": '{"what": 1, "after": ${cursor}}',
        "scan.needs-cursors": "false", "scan.bounded": "true", "headers.Authorization": "Bearer hidden",
    }  # fmt: skip
    columns = "kind STRING, n BIGINT, place STRING METADATA FROM 'cursor'"
    url = f"{websocket_service.url}/subscribe/{name}?bounded=1&cut=7&who=hidden"
    t.execute_sql(table("source", columns, url, **options))
    options = {"sink.envelope": '{"number": ${number}, "row": ${record}}', "sink.acknowledged-by": "/ack"}
    url = f"{websocket_service.url}/take/{target}?acknowledges=1"
    t.execute_sql(table("target", "kind STRING, n BIGINT, place STRING", url, **options))
    shown = "".join(str(row) for row in t.execute_sql("SHOW CREATE TABLE source").collect())
    assert "headers.Authorization" in shown
    assert "hidden" not in shown.replace("who=hidden", "")
    t.execute_sql("INSERT INTO target SELECT kind, n * 2, place FROM source")
    rows = [json.loads(line)["row"] for line in websocket_service.taken(target)]
    expected = [{"kind": f"k{n % 3}", "n": 2 * n, "place": str(n)} for n in range(30)]
    assert sorted(rows, key=lambda row: row["n"]) == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": "http://localhost"}, "url must be wss://"),
        ({"scan.cursor": "/id"}, "belongs together"),
        ({"scan.cursors": "/id"}, r"scan\.cursor"),
        ({"max-message-size": "x"}, "16MB"),
    ],
)
def test_wrong_options_are_refused(options, told):
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    with pytest.raises(HeadraceError, match=told):
        t.execute_sql(table("t", "a STRING", **{"url": "ws://localhost/x", **options}))
        t.execute_sql("SELECT * FROM t").print()
