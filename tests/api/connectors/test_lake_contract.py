"""Families: contract (sinks of table formats pass the checks of all exactly-once sinks), mutation."""

from __future__ import annotations

import pytest

from headrace.testing.sink_contract import OWNED_SINK_CONTRACT, SINK_CONTRACT, SinkSubject


def delta_table(tmp_path, **options):
    deltalake = pytest.importorskip("deltalake")
    from headrace.connectors.delta import DeltaSink

    place = tmp_path / "delta"

    def visible():
        if not deltalake.DeltaTable.is_deltatable(str(place)):
            return []
        return deltalake.DeltaTable(str(place)).to_pyarrow_table().column("n").to_pylist()

    return SinkSubject(DeltaSink(place, schema={"n": "int64"}, **options), visible, lambda number: {"n": number})


def iceberg_table(tmp_path, **options):
    catalogs = pytest.importorskip("pyiceberg.catalog")
    from headrace.connectors.iceberg import IcebergSink

    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}

    def visible():
        found = catalogs.load_catalog("other", **catalog)
        if not found.table_exists("db.numbers"):
            return []
        return found.load_table("db.numbers").scan().to_arrow().column("n").to_pylist()

    sink = IcebergSink("db.numbers", catalog=catalog | {"name": "other"}, schema={"n": "int64"}, **options)
    return SinkSubject(sink, visible, lambda number: {"n": number})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("subject", [delta_table, iceberg_table])
@pytest.mark.parametrize("check", [*SINK_CONTRACT, *OWNED_SINK_CONTRACT], ids=lambda check: check.__name__)
def test_sink(check, subject, tmp_path):
    check(subject(tmp_path))
