"""Tables of SQL that are ports of NiFi, against a server of tests that follows its protocol."""

from __future__ import annotations

import json

import pytest
from nifi_kit import NiFi
from storm_kit import wait_until

from headrace.engine.errors import HeadraceError
from headrace.table import TableEnvironment


def table(name, columns, url, **options):
    given = ", ".join(f"'{key}' = '{value}'" for key, value in {"connector": "nifi", "url": url, **options}.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({given})"


def test_from_port_to_port(tmp_path):
    nifi = NiFi()
    t = TableEnvironment.create(parallelism=2, actor_system="local")
    t.execute_sql("SET 'execution.checkpointing.interval' = '50 ms'")
    t.execute_sql(f"SET 'execution.checkpointing.dir' = '{tmp_path}'")
    t.execute_sql("SET 'table.dml-sync' = 'false'")
    t.execute_sql(table("given", "n BIGINT, f STRING METADATA FROM 'filename'", nifi.url, port="out", format="json"))
    options = {"port": "in", "format": "json", "sink.attributes": "f"}
    t.execute_sql(table("got", "f STRING, twice BIGINT", nifi.url, **options))
    nifi.fill(json.dumps({"n": n}) for n in range(50))
    result = t.execute_sql("INSERT INTO got SELECT f, n * 2 FROM given")
    wait_until(lambda: len(nifi.taken) >= 50 and nifi.left == 0)
    result.get_job_client().cancel()
    nifi.stop()
    assert sorted(json.loads(one.content)["twice"] for one in nifi.taken) == list(range(0, 100, 2))
    assert {one.attributes["f"] for one in nifi.taken} == {f'{{"n":{n}}}' for n in range(50)}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"port": "out"}, "format"),
        ({"format": "json"}, "port"),
        ({"port": "out", "format": "xml"}, "xml"),
        ({"port": "out", "format": "raw", "scan.prefetch": 0}, "prefetch must be 1"),
    ],
)
def test_wrong_options_are_refused(options, told):
    t = TableEnvironment.create(parallelism=1, actor_system="local")
    with pytest.raises(HeadraceError, match=told):
        t.execute_sql(table("t", "a STRING", "http://localhost:1/nifi", **options))
        next(t.execute_sql("SELECT * FROM t").collect())
