"""Tables of Iceberg and Delta in SQL, and a catalog of Iceberg.

Families: round trips (what a statement writes, the formats' own readers see), refusals.
"""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from lake_tables import FORMATS, DeltaTables, IcebergTables

from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment


@pytest.fixture(params=FORMATS)
def tables(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture
def t():
    with TableEnvironment.create(actor_system="local", parallelism=2) as env:
        yield env


def options(tables, **more):
    if isinstance(tables, DeltaTables):
        given = {"connector": "delta", "table-path": f"{tables.directory}/numbers"}
    else:
        place = {"catalog-type": "sql", "uri": tables.properties["uri"], "warehouse": tables.properties["warehouse"]}
        given = {"connector": "iceberg", **place, "catalog-name": "tests", "catalog-database": "db",
                 "catalog-table": "numbers"}  # fmt: skip
    return ", ".join(f"'{name}' = '{value}'" for name, value in (given | more).items())


def test_a_query_writes_a_partitioned_table_and_another_reads_it(t, tables):
    t.execute_sql(f"""
        CREATE TABLE sales (item STRING, price BIGINT, at TIMESTAMP(3), day DATE) PARTITIONED BY (day)
        WITH ({options(tables)})
    """)
    t.execute_sql(
        """
        INSERT INTO sales VALUES ('lamp', 12, TIMESTAMP '2024-02-29 12:00:00.5', DATE '2024-02-29'),
                                 ('rug', 40, TIMESTAMP '2024-03-01 00:00:00', DATE '2024-03-01'),
                                 (CAST(NULL AS STRING), 1, CAST(NULL AS TIMESTAMP(3)), DATE '2024-03-01')
    """,
    )
    seen = sorted(tables.rows().to_pylist(), key=lambda row: row["price"])
    assert [(row["item"], row["price"], row["day"]) for row in seen] == [
        (None, 1, dt.date(2024, 3, 1)), ("lamp", 12, dt.date(2024, 2, 29)), ("rug", 40, dt.date(2024, 3, 1))
    ]  # fmt: skip
    query = "SELECT item, at FROM sales WHERE day = DATE '2024-02-29'"
    [row] = t.execute_sql(query).to_arrow().to_pylist()
    assert (row["item"], row["at"].isoformat()) == ("lamp", "2024-02-29T12:00:00.500000")


def test_changes_are_applied_by_key(t, tables):
    more = {} if isinstance(tables, DeltaTables) else {"write.upsert.enabled": "true"}
    t.execute_sql(f"""
        CREATE TABLE totals (item STRING, total BIGINT, PRIMARY KEY (item) NOT ENFORCED)
        WITH ({options(tables, **more)})
    """)
    t.execute_sql(
        """
        INSERT INTO totals SELECT item, SUM(price) FROM
        (VALUES ('lamp', 12), ('rug', 40), ('lamp', 3), ('rug', 2), ('mat', 5)) AS sales (item, price) GROUP BY item
    """,
    )
    seen = tables.rows().to_pylist()
    assert sorted((row["item"], row["total"]) for row in seen) == [("lamp", 15), ("mat", 5), ("rug", 42)]


def test_a_query_that_takes_rows_back_needs_a_key(t, tables):
    t.execute_sql(f"CREATE TABLE totals (item STRING, total BIGINT) WITH ({options(tables)})")
    query = "SELECT item, SUM(price) FROM (VALUES ('lamp', 12)) AS sales (item, price) GROUP BY item"
    with pytest.raises(ProgramError, match="takes rows that only come"):
        t.execute_sql(f"INSERT INTO totals {query}")


def test_an_older_version_is_read_by_a_hint(t, tables):
    columns = pa.schema([("n", pa.int64())])
    tables.make(columns)
    tables.append(pa.table({"n": [1]}, schema=columns))
    name = "versionAsOf" if isinstance(tables, DeltaTables) else "snapshot-id"
    known = tables.version()
    tables.append(pa.table({"n": [2]}, schema=columns))
    t.execute_sql(f"CREATE TABLE numbers (n BIGINT) WITH ({options(tables)})")
    assert t.execute_sql("SELECT SUM(n) AS s FROM numbers").to_arrow().to_pylist()[-1]["s"] == 3
    hinted = f"SELECT n FROM numbers /*+ OPTIONS('{name}' = '{known}') */"
    assert t.execute_sql(hinted).to_arrow().to_pylist() == [{"n": 1}]


def test_options_that_mean_nothing_are_refused(t, tables):
    for more in ({"on-change": "x"}, {"strange": "1"}):
        with pytest.raises(ConfigurationError):
            t.execute_sql(f"CREATE TABLE wrong (n BIGINT) WITH ({options(tables, **more)})")


# ------------------------------------------------------------------------------------------------------------- catalogs
@pytest.fixture
def catalog(t, tmp_path):
    tables = IcebergTables(tmp_path)
    place = f"'uri' = '{tables.properties['uri']}', 'warehouse' = '{tables.properties['warehouse']}'"
    t.execute_sql(
        f"CREATE CATALOG lake WITH ('type' = 'iceberg', 'catalog-name' = 'tests', 'catalog-type' = 'sql', {place},"
        " 'default-database' = 'db')"
    )
    t.execute_sql("USE CATALOG lake")
    return tables


def test_tables_of_a_catalog_are_there_without_create_table(t, catalog):
    columns = pa.schema([pa.field("n", pa.int64()), pa.field("names", pa.list_(pa.string()))])
    catalog.make(columns)
    catalog.append(pa.table({"n": [1, 2], "names": [["a"], []]}, schema=columns))
    assert t.execute_sql("SELECT n, names FROM numbers WHERE n = 1").to_arrow().to_pylist() == [
        {"n": 1, "names": ["a"]}
    ]
    assert t.execute_sql("SELECT n FROM lake.db.numbers WHERE n = 2").to_arrow().to_pylist() == [{"n": 2}]
    assert t.execute_sql("SHOW TABLES").to_arrow().to_pylist() == [{"table name": "numbers"}]


def test_a_catalog_makes_and_drops_tables_and_databases(t, catalog):
    t.execute_sql("CREATE TABLE totals (item STRING, total BIGINT, PRIMARY KEY (item) NOT ENFORCED)")
    t.execute_sql("CREATE TABLE sales (item STRING, day DATE) PARTITIONED BY (day)")
    made = catalog.catalog().load_table("db.totals")
    assert [made.schema().find_column_name(one) for one in made.schema().identifier_field_ids] == ["item"]
    assert [field.name for field in catalog.catalog().load_table("db.sales").spec().fields] == ["day"]
    t.execute_sql("INSERT INTO sales VALUES ('lamp', DATE '2024-02-29')")
    t.execute_sql(
        """
        INSERT INTO totals /*+ OPTIONS('write.upsert.enabled' = 'true') */
        SELECT item, COUNT(*) FROM sales GROUP BY item
    """,
    )
    assert catalog.catalog().load_table("db.totals").scan().to_arrow().to_pylist() == [{"item": "lamp", "total": 1}]
    with pytest.raises(SqlError, match="already"):
        t.execute_sql("CREATE TABLE sales (item STRING)")
    t.execute_sql("DROP TABLE sales")
    t.execute_sql("CREATE DATABASE other")
    assert sorted(catalog.catalog().list_namespaces()) == [("db",), ("other",)]
    assert t.execute_sql("SHOW TABLES").to_arrow().to_pylist() == [{"table name": "totals"}]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("CREATE TABLE x (n BIGINT) WITH ('connector' = 'print')", "keeps tables of Iceberg"),
        ("CREATE TABLE x (n BIGINT, m AS n + 1)", "computed"),
        ("CREATE TABLE x (n BIGINT) WITH ('streaming' = 'true')", "keeps no options"),
        ("CREATE VIEW x AS SELECT 1 AS n", "keeps no views"),
    ],
)
def test_what_a_catalog_cannot_keep_is_refused(t, catalog, statement, says):
    with pytest.raises(SqlError, match=says):
        t.execute_sql(statement)
