"""Tables that Hudi has written by Spark, of both layouts of its timeline, compared with what Spark reads of them."""

from __future__ import annotations

from contextlib import closing

import pytest
from campaigns import campaign
from hudi_server import hudi_server  # noqa: F401 - fixtures
from reading_kit import reader_of

from headrace.connectors.hudi import HudiSource
from headrace.engine.errors import ConfigurationError, SourceError
from headrace.testing.sources.harness import SourceTestHarness

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

COLUMNS = "n long, ts long, name string, day string"
WIDER = "n long, ts long, name string, more double, day string"
FIRST = [(1, 1, "a", "2024-01-01"), (2, 1, "ä%", "2024-01-01"), (3, 1, None, "2024-01-02")]


@pytest.fixture(params=[campaign("6"), "8"])
def version(request):
    return {"hoodie__write__table__version": request.param, "hoodie__write__auto__upgrade": "false"}


def in_order(rows):
    """Rows without Hudi's own columns, in an order that is always the same."""
    kept = [{k: v for k, v in sorted(row.items()) if not k.startswith("_hoodie")} for row in rows]
    return sorted(kept, key=repr)


def followed(path, **options):
    harness = SourceTestHarness(HudiSource(path, follow=10, **options))
    harness.start()
    return harness


def read_more(harness, count):
    harness.read_number(count)
    harness.rest()
    assert len(harness.rows) == count


def test_copy_on_write(hudi_server, version, tmp_path):  # noqa: F811
    """Partitions, a column that came later, changed and deleted rows, partitions that are written over."""
    path = tmp_path / "cow"
    hudi_server.write(path, FIRST, COLUMNS, **version)
    with closing(followed(path)) as strict, closing(followed(path, on_change="rows")) as lenient:
        for one in (strict, lenient):
            read_more(one, 3)
            assert in_order(one.rows) == in_order(hudi_server.read(path))
            one.checkpoint()
        hudi_server.write(path, [(4, 2, "d", 2.5, "2024-01-02"), (5, 2, "e", None, "2024-01-03")], WIDER, **version)
        for one in (strict, lenient):
            read_more(one, 5)
            one.checkpoint()
        # Rows that were read before the column came do not have it.
        assert in_order({"more": None, **row} for row in strict.rows) == in_order(hudi_server.read(path))
        assert in_order(HudiSource(path).read().to_pylist()) == in_order(hudi_server.read(path))
        hudi_server.write(path, [(1, 3, "A", 1.5, "2024-01-01")], WIDER, "upsert", **version)
        assert in_order(HudiSource(path).read().to_pylist()) == in_order(hudi_server.read(path))
        read_more(lenient, 6)
        assert lenient.rows[-1] == {"n": 1, "ts": 3, "name": "A", "more": 1.5, "day": "2024-01-01"}
        with pytest.raises(ConfigurationError, match="UPSERT changes rows"):
            read_more(strict, 6)
        hudi_server.write(path, [(2, 4, "", None, "2024-01-01")], WIDER, "delete", **version)
        assert in_order(HudiSource(path).read().to_pylist()) == in_order(hudi_server.read(path))
        with pytest.raises(ConfigurationError, match="DELETE deletes rows"):
            read_more(lenient, 7)
    hudi_server.write(path, [(9, 5, "z", None, "2024-01-03")], WIDER, "insert_overwrite", **version)
    assert in_order(HudiSource(path).read().to_pylist()) == in_order(hudi_server.read(path))
    chosen = HudiSource(path, columns=["_hoodie_record_key", "day"]).read().to_pylist()
    assert sorted(row["_hoodie_record_key"] for row in chosen) == ["1", "3", "4", "9"]
    with pytest.raises(ConfigurationError, match="has no column 'nam'"):
        HudiSource(path, columns=["nam"]).read()


def test_merge_on_read(hudi_server, version, tmp_path):  # noqa: F811
    """Changes and deletions in logs, before and behind a compaction."""
    path = tmp_path / "mor"
    kind = {"hoodie__datasource__write__table__type": "MERGE_ON_READ", **version}
    hudi_server.write(path, FIRST, COLUMNS, **kind)
    with closing(followed(path)) as harness:
        read_more(harness, 3)
        harness.checkpoint()
        hudi_server.write(path, [(4, 1, "d", "2024-01-02")], COLUMNS, **kind)
        read_more(harness, 4)
        assert in_order(harness.rows) == in_order(hudi_server.read(path))
        harness.checkpoint()
        hudi_server.write(path, [(1, 2, "A", "2024-01-01"), (7, 2, "g", "2024-01-02")], COLUMNS, "upsert", **kind)
        with pytest.raises(ConfigurationError, match="UPSERT changes rows"):
            read_more(harness, 5)
    hudi_server.write(path, [(2, 3, "", "2024-01-01")], COLUMNS, "delete", **kind)
    found = HudiSource(path, table_type="MERGE_ON_READ").read().to_pylist()
    assert in_order(found) == in_order(hudi_server.read(path))
    assert found == HudiSource(path).read().to_pylist()
    apart = {"hoodie__compact__inline": "false", "hoodie__compact__inline__max__delta__commits": "1", **kind}
    planned = {"hoodie__compact__schedule__inline": "true", **apart}
    hudi_server.write(path, [(7, 4, "G", "2024-01-02")], COLUMNS, "upsert", **planned)
    hudi_server.write(path, [(7, 5, "H", "2024-01-02")], COLUMNS, "upsert", **apart)
    if version["hoodie__write__table__version"] == "8":
        assert in_order(HudiSource(path).read().to_pylist()) == in_order(hudi_server.read(path))
    else:  # the log is that of a base file which a compaction is to write
        with pytest.raises(SourceError, match="log without a base file"):
            HudiSource(path).read()
    compacting = {**apart, "hoodie__compact__inline": "true"}
    hudi_server.write(path, [(3, 4, "C", "2024-01-02")], COLUMNS, "upsert", **compacting)
    assert in_order(HudiSource(path).read().to_pylist()) == in_order(hudi_server.read(path))


def test_what_was_cleaned_and_archived_is_an_error(hudi_server, version, tmp_path):  # noqa: F811
    path = tmp_path / "cleaned"
    short = {
        "hoodie__clean__commits__retained": "1", "hoodie__keep__min__commits": "2", "hoodie__keep__max__commits": "3",
        **version,
    }  # fmt: skip
    hudi_server.write(path, [(1, 0, "v0", "2024-01-01")], COLUMNS, "upsert", **short)
    with closing(followed(path, on_change="rows")) as harness:
        read_more(harness, 1)
        harness.checkpoint()
        [split] = HudiSource(path).create_enumerator(None).discover().splits
        for n in range(1, 7):
            hudi_server.write(path, [(1, n, f"v{n}", "2024-01-01")], COLUMNS, "upsert", **short)
        with pytest.raises(SourceError, match="has archived what came behind position"):
            read_more(harness, 2)
    reader = reader_of(HudiSource(path), [split])
    with pytest.raises(SourceError, match="the cleaner has removed it"):
        reader.poll(10)
    assert [row["name"] for row in HudiSource(path).read().to_pylist()] == ["v6"]


def test_a_commit_that_is_rolled_back_behind_a_reader_is_an_error(hudi_server, tmp_path):  # noqa: F811
    """The procedure of Hudi 1.0.2 takes tables of version 8 alone; those of version 6 are played elsewhere."""
    path = tmp_path / "back"
    hudi_server.write(path, FIRST, COLUMNS)
    hudi_server.write(path, [(4, 2, "d", "2024-01-02")], COLUMNS)
    with closing(followed(path)) as harness:
        read_more(harness, 4)
        harness.checkpoint()
        hudi_server.sql(f"CREATE TABLE {path.name} USING hudi LOCATION '{path}'")
        [last, *_] = hudi_server.sql(f"CALL show_commits(table => '{path.name}', limit => 1)")
        hudi_server.sql(f"CALL rollback_to_instant(table => '{path.name}', instant_time => '{last['commit_time']}')")
        hudi_server.write(path, [(5, 3, "e", "2024-01-02")], COLUMNS)
        assert in_order(HudiSource(path).read().to_pylist()) == in_order(hudi_server.read(path))
        with pytest.raises(SourceError, match="is none of the Hudi table's any more"):
            read_more(harness, 5)


def test_clustering_is_passed_over(hudi_server, version, tmp_path):  # noqa: F811
    path = tmp_path / "clustered"
    hudi_server.write(path, FIRST, COLUMNS, "bulk_insert", **version)
    with closing(followed(path)) as harness:
        read_more(harness, 3)
        harness.checkpoint()
        clustering = {"hoodie__clustering__inline": "true", "hoodie__clustering__inline__max__commits": "1"}
        hudi_server.write(path, [(4, 2, "d", "2024-01-02")], COLUMNS, "bulk_insert", **clustering, **version)
        hudi_server.write(path, [(5, 3, "e", "2024-01-02")], COLUMNS, "bulk_insert", **version)
        read_more(harness, 5)
        harness.rest()
        assert in_order(harness.rows) == in_order(hudi_server.read(path))


def test_a_commit_that_is_completed_late_is_not_passed_over(hudi_server, version, tmp_path):  # noqa: F811
    """A writer that began before another one is the last to complete: its commit is hidden, and comes later."""
    path = tmp_path / "slow"
    for n in (1, 2, 3):
        hudi_server.write(
            path, [(n, n, "x", "2024-01-01")], COLUMNS, hoodie__parquet__small__file__limit="0", **version
        )
    is_new = version["hoodie__write__table__version"] == "8"
    folder = path / ".hoodie" / ("timeline" if is_new else "")
    completed = sorted(folder.glob("*.commit"))
    hidden = completed[1].rename(tmp_path / "hidden")
    with closing(followed(path)) as harness:
        seen = [1, 3] if is_new else [1]
        read_more(harness, len(seen))
        harness.rest()
        assert sorted(row["n"] for row in harness.rows) == seen
        assert sorted(HudiSource(path).read().column("n").to_pylist()) == [1, 3]
        harness.checkpoint()
        name = completed[1].name
        if is_new:
            last = completed[2].stem.partition("_")[2]
            name = f"{name.partition('_')[0]}_{int(last) + 1}.commit"
        hidden.rename(folder / name)
        read_more(harness, 3)
        harness.rest()
        assert sorted(row["n"] for row in harness.rows) == [1, 2, 3]
