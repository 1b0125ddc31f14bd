"""A catalog of Apache Iceberg: its namespaces are databases, and its tables are found without CREATE TABLE.

Every statement asks the catalog anew, so tables that others make are there at once. Nothing is kept here.

Source: Iceberg's ``FlinkCatalog``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError

from ..connectors.iceberg.client import IcebergAccess, iceberg, make_table, table_schema
from ..connectors.iceberg.options import require_catalog
from ..sql.parsing.errors import SqlError, SqlText
from ..sql.parsing.statements import ColumnSpec, CreateTable
from .catalog import Catalog, CatalogTable, CatalogView, Entry, ObjectPath, table_entry, taken
from .connectors.contract import Options
from .connectors.lake import IcebergTable, catalog_properties

__all__ = ["IcebergCatalog"]


class IcebergCatalog(Catalog):
    """Shows the tables of a catalog of Iceberg.

    Args:
        options: ``catalog-type``, ``uri``, ``warehouse``, ``catalog.*``, as a table has them.
        default_database: The namespace that is current first; made if it is not there.
    """

    kind = "iceberg"

    def __init__(self, options: Options, default_database: str) -> None:
        self._properties = require_catalog(catalog_properties(options))
        self._catalog = IcebergAccess(self._properties, default_database).open_catalog()
        self.default_database = default_database
        if default_database not in self.databases():
            self.create_database(default_database)

    def databases(self) -> list[str]:
        """Return the names of namespaces; those in others have dots in them."""
        found: list[str] = []
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            within = waiting.pop()
            inner = [tuple(one) for one in self._catalog.list_namespaces(within) if len(one) > len(within)]
            found += [".".join(one) for one in inner]
            waiting += inner
        return sorted(set(found))

    def create_database(self, name: str) -> None:
        """Make a namespace."""
        self._catalog.create_namespace(name)

    def drop_database(self, name: str) -> None:
        """Forget a namespace, with all tables in it; their files stay."""
        for table in self.names(name):
            self._catalog.drop_table(f"{name}.{table}")
        self._catalog.drop_namespace(name)

    def names(self, database: str) -> list[str]:
        """Return the names of tables."""
        return sorted(one[-1] for one in self._catalog.list_tables(database))

    def find(self, path: ObjectPath) -> Entry | None:
        """Ask for a table."""
        failures = iceberg().exceptions
        try:
            table = self._catalog.load_table(f"{path.database}.{path.name}")
        except (failures.NoSuchTableError, failures.NoSuchNamespaceError):
            return None
        columns = tuple(ColumnSpec(field.name, _plain(field.type)) for field in table_schema(table))
        schema = table.schema()
        partitioned_by = tuple(
            str(schema.find_column_name(one.source_id))
            for one in table.spec().fields
            if str(one.transform) == "identity"
        )
        key = tuple(str(schema.find_column_name(number)) for number in schema.identifier_field_ids)
        statement = CreateTable(str(path.name), columns, None, key, partitioned_by)
        statement = self.completed(statement, path)
        shown = ", ".join(f"`{one.name}` {one.kind}" for one in columns)
        return table_entry(statement, SqlText(f"CREATE TABLE {path} ({shown}) -- a table of an Iceberg catalog"))

    def completed(self, statement: CreateTable, path: ObjectPath) -> CreateTable:
        """Return what CREATE TABLE means here: the connector and the catalog's properties need not be said.

        Raises:
            SqlError: If another connector is.
        """
        if statement.options.get("connector", IcebergTable.name) != IcebergTable.name:
            message = f"a catalog of Iceberg keeps tables of Iceberg; got connector {statement.options['connector']!r}"
            raise SqlError(message, hint="CREATE TEMPORARY TABLE keeps it with the program")
        known = {"name": "catalog-name", "type": "catalog-type", "uri": "uri", "warehouse": "warehouse"}
        own = {known.get(name, f"catalog.{name}"): value for name, value in self._properties.items()}
        place = {"connector": IcebergTable.name, "catalog-database": path.database, "catalog-table": path.name}
        return replace(statement, options={**statement.options, **own, **place})

    def create(self, path: ObjectPath, entry: CatalogTable | CatalogView) -> None:
        """Make a table.

        Raises:
            SqlError: If the name is taken, or Iceberg cannot keep it.
        """
        if isinstance(entry, CatalogView):
            message = "a catalog of Iceberg keeps no views"
            raise SqlError(message, hint="CREATE TEMPORARY VIEW keeps it with the program")
        statement = entry.statement
        if statement.watermark is not None or any(one.kind is None or one.metadata for one in statement.columns):
            message = "a catalog of Iceberg keeps no watermarks, computed columns and metadata columns"
            raise SqlError(message, hint="CREATE TEMPORARY TABLE ... LIKE adds them for the program")
        if set(statement.options) != set(self.completed(replace(statement, options={}), path).options):
            message = "a catalog of Iceberg keeps no options of tables"
            raise SqlError(message, hint="say them where the table is used: /*+ OPTIONS('streaming' = 'true') */")
        name = f"{path.database}.{path.name}"
        if self._catalog.table_exists(name):
            raise taken(path)
        failures = iceberg().exceptions
        try:
            make_table(
                self._catalog, name, entry.physical, statement.partitioned_by,
                statement.primary_key,
            )  # fmt: skip
        except (failures.TableAlreadyExistsError, failures.CommitFailedException):
            raise taken(path) from None
        except (ValueError, TypeError, NotImplementedError) as error:
            message = f"Iceberg cannot keep table {path.name!r}: {error}"
            raise ConfigurationError(message) from error

    def drop(self, path: ObjectPath) -> None:
        """Forget a table; its files stay."""
        self._catalog.drop_table(f"{path.database}.{path.name}")


def _plain(kind: Any) -> pa.DataType:
    """A type as SQL has it: without ids of its fields."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _plain(one.type), one.nullable) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind
