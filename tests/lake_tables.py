"""Tables of Delta Lake and Iceberg on a local disk, for tests: made, written and read by the formats' own libraries."""

from __future__ import annotations

import pyarrow as pa
import pytest


class DeltaTables:
    """Tables under a folder."""

    def __init__(self, directory):
        self.library = pytest.importorskip("deltalake")
        self.directory = directory

    def access(self, **options):
        from headrace.connectors.delta.client import DeltaAccess

        return DeltaAccess(f"{self.directory}/numbers", **options)

    def sink(self, **options):
        from headrace.connectors.delta import DeltaSink

        return DeltaSink(self.directory / "numbers", **options)

    def source(self, **options):
        from headrace.connectors.delta import DeltaSource

        return DeltaSource(self.directory / "numbers", **options)

    def make(self, schema, partition_by=()):
        self.library.DeltaTable.create(str(self.directory / "numbers"), schema, partition_by=list(partition_by))

    def table(self):
        return self.library.DeltaTable(str(self.directory / "numbers"))

    def rows(self):
        return self.table().to_pyarrow_table()

    def partition(self, name, value):
        return self.table().to_pyarrow_table(filters=[(name, "=", value)]).to_pylist()

    def append(self, rows):
        self.library.write_deltalake(str(self.directory / "numbers"), rows, mode="append")

    def overwrite(self, rows):
        self.library.write_deltalake(str(self.directory / "numbers"), rows, mode="overwrite")

    def drop(self):
        (self.directory / "numbers" / "_delta_log").rename(self.directory / "gone")

    def add_column(self, name):
        from deltalake import Field

        self.table().alter.add_columns(Field(name, "long", nullable=True))

    counts_files_twice = False

    def num_commits(self):
        return self.table().version()

    def version(self):
        return self.table().version()


class IcebergTables:
    """Tables of a catalog in SQLite."""

    def __init__(self, directory):
        pytest.importorskip("pyiceberg")
        self.properties = {
            "name": "tests", "type": "sql", "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"file://{directory}/warehouse",
        }  # fmt: skip

    def access(self, **options):
        from headrace.connectors.iceberg.client import IcebergAccess

        return IcebergAccess(self.properties, "db.numbers", **options)

    def sink(self, **options):
        from headrace.connectors.iceberg import IcebergSink

        return IcebergSink("db.numbers", catalog=self.properties, **options)

    def source(self, **options):
        from headrace.connectors.iceberg import IcebergSource

        return IcebergSource("db.numbers", catalog=self.properties, **options)

    def make(self, schema, partition_by=()):
        self.access(schema=pa.schema(schema), partition_by=tuple(partition_by)).make()

    def catalog(self):
        from pyiceberg.catalog import load_catalog

        return load_catalog("tests", **{k: v for k, v in self.properties.items() if k != "name"})

    def table(self):
        return self.catalog().load_table("db.numbers")

    def rows(self):
        return self.table().scan().to_arrow()

    def partition(self, name, value):
        return self.table().scan(row_filter=f"{name} == '{value}'").to_arrow().to_pylist()

    def append(self, rows):
        self.table().append(rows)

    def overwrite(self, rows):
        self.table().overwrite(rows)

    def drop(self):
        self.catalog().drop_table("db.numbers")

    def add_column(self, name):
        from pyiceberg.types import LongType

        with self.table().update_schema() as update:
            update.add_column(name, LongType())

    counts_files_twice = True

    def version(self):
        return self.table().current_snapshot().snapshot_id

    def num_commits(self):
        return len(self.table().metadata.snapshots)


FORMATS = [DeltaTables, IcebergTables]
