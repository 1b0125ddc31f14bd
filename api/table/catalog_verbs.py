"""Verbs of a table environment about catalogs and what is in them, under PyFlink's names.

Each is a statement of SQL, so that names, errors and what is temporary mean the same either way.

Source: PyFlink's ``TableEnvironment``.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping

from ..sql.parsing.names import parts_of
from .catalog import Catalogs, CatalogView, TemporaryView
from .expressions.rendering import quoted
from .result import TableResult
from .table import Table
from .table_descriptors import TableDescriptor, literal

__all__ = ["CatalogVerbs", "quoted_path"]

_NUMBERS = itertools.count(1)


def quoted_path(name: str) -> str:
    """Return a name of one to three parts as SQL writes it."""
    return ".".join(map(quoted, parts_of(name)))


class CatalogVerbs(ABC):
    """What `headrace.table.TableEnvironment` can do with names."""

    _catalogs: Catalogs

    @abstractmethod
    def execute_sql(self, text: str) -> TableResult:
        """Run a statement."""

    @abstractmethod
    def sql_query(self, text: str) -> Table:
        """Return a query as a table."""

    def _told(self, statement: str) -> list[str]:
        """The one column of texts that a SHOW statement gives."""
        found: list[str] = self.execute_sql(statement).to_arrow().column(0).to_pylist()
        return found

    # -- what there is -------------------------------------------------------------------------------------------------

    def list_tables(self) -> list[str]:
        """Return the names of tables and views of the current database."""
        return self._told("SHOW TABLES")

    def list_views(self) -> list[str]:
        """Return the names of views of the current database."""
        return self._told("SHOW VIEWS")

    def list_temporary_tables(self) -> list[str]:
        """Return the names of those tables of the current database that belong to this program."""
        return self._temporary_names(is_view=False)

    def list_temporary_views(self) -> list[str]:
        """Return the names of those views of the current database that belong to this program."""
        return self._temporary_names(is_view=True)

    def _temporary_names(self, *, is_view: bool) -> list[str]:
        here, temporary = self._catalogs.current, self._catalogs.temporary.items()
        return sorted(
            path.name
            for path, entry in temporary
            if path[:2] == here and isinstance(entry, (CatalogView, TemporaryView)) is is_view
        )

    def list_catalogs(self) -> list[str]:
        """Return the names of catalogs."""
        return self._told("SHOW CATALOGS")

    def list_databases(self) -> list[str]:
        """Return the names of databases of the current catalog."""
        return self._told("SHOW DATABASES")

    def list_functions(self) -> list[str]:
        """Return the names of functions."""
        return self._told("SHOW FUNCTIONS")

    # -- where names are looked up -------------------------------------------------------------------------------------

    def get_current_catalog(self) -> str:
        """Return the name of the catalog in which names are looked up."""
        return self._catalogs.current[0]

    def get_current_database(self) -> str:
        """Return the name of the database in which names are looked up."""
        return self._catalogs.current[1]

    def use_catalog(self, catalog_name: str) -> None:
        """Look names up in a catalog from now on, in its default database."""
        self.execute_sql(f"USE CATALOG {quoted(catalog_name)}")

    def use_database(self, database_name: str) -> None:
        """Look names up in a database of the current catalog from now on."""
        self.execute_sql(f"USE {quoted(database_name)}")

    def create_catalog(self, catalog_name: str, options: Mapping[str, str]) -> None:
        """Add a catalog.

        Args:
            catalog_name: Its name.
            options: As those of CREATE CATALOG; ``type`` says which kind it is.
        """
        told = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in options.items())
        self.execute_sql(f"CREATE CATALOG {quoted(catalog_name)} WITH ({told})")

    # -- tables and views ----------------------------------------------------------------------------------------------

    def create_temporary_table(self, path: str, descriptor: TableDescriptor, ignore_if_exists: bool = False) -> None:
        """Create a table that belongs to this program."""
        if not (ignore_if_exists and self._catalogs.path_of(path) in self._catalogs.temporary):
            self.execute_sql(descriptor.statement(quoted_path(path), "TEMPORARY"))

    def create_table(self, path: str, descriptor: TableDescriptor, ignore_if_exists: bool = False) -> bool:
        """Create a table in its catalog; returns whether it was not there."""
        was_there = self._catalogs.find(self._catalogs.path_of(path)) is not None
        self.execute_sql(descriptor.statement(quoted_path(path), "IF NOT EXISTS" if ignore_if_exists else ""))
        return not was_there

    def from_descriptor(self, descriptor: TableDescriptor) -> Table:
        """Return a table that has no name, to be read."""
        name = f"described_{next(_NUMBERS)}"
        self.create_temporary_table(name, descriptor)
        return self.sql_query(f"SELECT * FROM {quoted(name)}")

    def drop_temporary_table(self, table_path: str) -> bool:
        """Drop a table that belongs to this program; returns whether there was one."""
        return self._dropped("TEMPORARY TABLE", table_path)

    def drop_temporary_view(self, view_path: str) -> bool:
        """Drop a view that belongs to this program; returns whether there was one."""
        return self._dropped("TEMPORARY VIEW", view_path)

    def drop_table(self, table_path: str, ignore_if_not_exists: bool = True) -> bool:
        """Drop a table of a catalog; returns whether there was one."""
        return self._dropped("TABLE", table_path, ignore_if_not_exists)

    def drop_view(self, view_path: str, ignore_if_not_exists: bool = True) -> bool:
        """Drop a view of a catalog; returns whether there was one."""
        return self._dropped("VIEW", view_path, ignore_if_not_exists)

    def drop_temporary_function(self, path: str) -> bool:
        """Take the name of a function of Python away; returns whether there was one."""
        was_there = path.upper() in {name.upper() for name in self.list_functions()}
        self.execute_sql(f"DROP TEMPORARY FUNCTION IF EXISTS {quoted(path)}")
        return was_there

    drop_temporary_system_function = drop_temporary_function

    def _dropped(self, kind: str, name: str, may_be_absent: bool = True) -> bool:
        path = self._catalogs.path_of(name)
        is_temporary = kind.startswith("TEMPORARY")
        was_there = path in self._catalogs.temporary if is_temporary else self._catalogs.find(path) is not None
        self.execute_sql(f"DROP {kind} {'IF EXISTS ' * may_be_absent}{quoted_path(name)}")
        return was_there
