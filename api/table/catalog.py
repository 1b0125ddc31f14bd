"""Tables and views by name: in a catalog, in a database of it, or for this program alone.

A name of one part is looked up in the current database, one of two in the current catalog. What is temporary belongs to
the program, under any name, and hides what a catalog keeps under it.

Source: Flink's ``CatalogManager``, ``Catalog``, ``GenericInMemoryCatalog``, ``ObjectIdentifier``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from headrace.engine.errors import nearest

from ..sql.parsing.errors import SqlError, SqlText
from ..sql.parsing.names import parts_of, path_of
from ..sql.parsing.statements import CreateTable, CreateView
from ..sql.relations import Relation
from .connectors.contract import TableConnector
from .services.connectors_by_name import connector_of

__all__ = [
    "Catalog",
    "CatalogTable",
    "CatalogView",
    "Catalogs",
    "Entry",
    "MemoryCatalog",
    "ObjectPath",
    "TemporaryTable",
    "TemporaryView",
    "table_entry",
]

_BUILT_IN = ("default_catalog", "default_database")


class ObjectPath(NamedTuple):
    """Where a table or view is."""

    catalog: str
    database: str
    name: str

    def __str__(self) -> str:
        return path_of(self)


@dataclass(frozen=True)
class CatalogTable:
    """A table that CREATE TABLE made.

    Attributes:
        statement: What it said, what LIKE took over included.
        text: The text that the statement is of.
        connector: What its rows come from, or go to.
    """

    statement: CreateTable
    text: SqlText
    connector: TableConnector

    @property
    def physical(self) -> pa.Schema:
        """The columns that the connector gives."""
        return pa.schema([pa.field(one.name, one.kind) for one in self.statement.columns if one.kind is not None])

    @property
    def written(self) -> pa.Schema:
        """The columns that the connector takes."""
        return pa.schema([one for one in self.physical if one.name not in self.connector.metadata])

    def with_options(self, options: Mapping[str, str]) -> CatalogTable:
        """Return the same with other options, and with a connector of its own.

        Raises:
            SqlError: If they name another connector.
            ConfigurationError: If they mean nothing.
        """
        if not options:
            return self
        if "connector" in options:
            message = "hint OPTIONS cannot name another connector"
            raise SqlError(message, hint="CREATE TABLE ... LIKE makes a table of another connector")
        return table_entry(replace(self.statement, options={**self.statement.options, **options}), self.text)


@dataclass(frozen=True)
class CatalogView:
    """A view that CREATE VIEW made: its query is bound anew wherever it is used.

    Attributes:
        statement: What it said.
        text: The text that the statement is of.
        home: The catalog and database in which names of its query are looked up.
    """

    statement: CreateView
    text: SqlText
    home: tuple[str, str]


@dataclass(frozen=True)
class TemporaryTable:
    """Rows that a program has at hand, under a name.

    Attributes:
        connector: Gives them.
        schema: Their columns.
        event_time: The column that is their event time, if one is.
        delay_ms: How far behind it the watermark is.
    """

    connector: TableConnector
    schema: pa.Schema
    event_time: str | None = None
    delay_ms: int = 0


@dataclass(frozen=True)
class TemporaryView:
    """A query of the Table API, under a name.

    Attributes:
        relation: Its rows.
    """

    relation: Relation


Entry = CatalogTable | CatalogView | TemporaryTable | TemporaryView


def table_entry(statement: CreateTable, text: SqlText) -> CatalogTable:
    """Return the table that a statement makes, connected.

    Raises:
        SqlError: If its columns mean nothing.
        ConfigurationError: If its options do not.
    """
    names = [one.name for one in statement.columns]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled or not names:
        message = f"column {doubled[0]!r} is there twice" if doubled else "a table has columns"
        raise SqlError(message)
    own = [one for one in statement.columns if one.kind is not None and one.metadata is None]
    connector = connector_of(
        statement.name, statement.options, pa.schema([pa.field(one.name, one.kind) for one in own]),
        statement.partitioned_by, statement.primary_key,
        {one.name: one.metadata for one in statement.columns if one.metadata is not None},
    )  # fmt: skip
    return CatalogTable(statement, text, connector)


class Catalog(ABC):
    """Databases with tables and views.

    Contract: what ``create`` has returned of is found from then on, until ``drop`` (*asserted* by tests); of two that
    create the same, one is refused.

    Attributes:
        kind: As in the option ``type``.
        default_database: Which is there from the beginning.
    """

    kind: str
    default_database: str

    @abstractmethod
    def databases(self) -> list[str]:
        """Return the names of databases, in order."""

    @abstractmethod
    def create_database(self, name: str) -> None:
        """Make one that is not there."""

    @abstractmethod
    def drop_database(self, name: str) -> None:
        """Forget one, with all that is in it."""

    @abstractmethod
    def names(self, database: str) -> list[str]:
        """Return the names of tables and views of a database that is there, in order."""

    @abstractmethod
    def find(self, path: ObjectPath) -> Entry | None:
        """Return what is under a name; None if there is nothing."""

    def completed(self, statement: CreateTable, path: ObjectPath) -> CreateTable:
        """Return a CREATE TABLE with the options that need not be said in this catalog."""
        return statement

    @abstractmethod
    def create(self, path: ObjectPath, entry: CatalogTable | CatalogView) -> None:
        """Keep a table or view.

        Raises:
            SqlError: If the name is taken, or it cannot be kept.
        """

    @abstractmethod
    def drop(self, path: ObjectPath) -> None:
        """Forget a table or view."""


class MemoryCatalog(Catalog):
    """Keeps tables and views as long as the program runs."""

    kind = "generic_in_memory"

    def __init__(self, default_database: str = "default") -> None:
        self.default_database = default_database
        self._databases: dict[str, dict[str, CatalogTable | CatalogView | TemporaryView]] = {default_database: {}}

    def databases(self) -> list[str]:
        """Return the names of databases."""
        return sorted(self._databases)

    def create_database(self, name: str) -> None:
        """Make one."""
        self._databases[name] = {}

    def drop_database(self, name: str) -> None:
        """Forget one."""
        del self._databases[name]

    def names(self, database: str) -> list[str]:
        """Return the names of what is in a database."""
        return sorted(self._databases[database])

    def find(self, path: ObjectPath) -> Entry | None:
        """Return what is under a name."""
        return self._databases.get(path.database, {}).get(path.name)

    def create(self, path: ObjectPath, entry: CatalogTable | CatalogView | TemporaryView) -> None:
        """Keep a table or view; a query of the Table API, too."""
        if path.name in self._databases[path.database]:
            raise taken(path)
        self._databases[path.database][path.name] = entry

    def drop(self, path: ObjectPath) -> None:
        """Forget a table or view."""
        del self._databases[path.database][path.name]


def taken(path: ObjectPath) -> SqlError:
    """Return the error of a name that is taken."""
    message = f"there is a table or view {path.name!r} already"
    return SqlError(message, hint="CREATE TABLE IF NOT EXISTS, or DROP it")


@dataclass
class Catalogs:
    """All catalogs of a program, what is temporary, and where names are looked up.

    Attributes:
        catalogs: By name.
        temporary: What belongs to the program alone.
        current: The current catalog and database.
    """

    catalogs: dict[str, Catalog] = field(default_factory=lambda: {_BUILT_IN[0]: MemoryCatalog(_BUILT_IN[1])})
    temporary: dict[ObjectPath, Entry] = field(default_factory=dict)
    current: tuple[str, str] = _BUILT_IN

    # -- names ---------------------------------------------------------------------------------------------------------

    def path_of(self, name: str, home: tuple[str, str] | None = None) -> ObjectPath:
        """Return where a name of one to three parts leads.

        Args:
            name: As `headrace.sql.parsing.names.path_of` writes it.
            home: Where it is looked up; None for the current catalog and database.

        Raises:
            SqlError: If it has more parts.
        """
        parts = parts_of(name)
        if len(parts) > 3:
            message = f"{name} has {len(parts)} parts; a name has one to three: catalog, database, table"
            raise SqlError(message)
        return ObjectPath(*(*(home or self.current)[: 3 - len(parts)], *parts))

    def find(self, path: ObjectPath) -> Entry | None:
        """Return what is under a name; None if there is nothing."""
        if path in self.temporary:
            return self.temporary[path]
        catalog = self.catalogs.get(path.catalog)
        return None if catalog is None else catalog.find(path)

    def names(self, kinds: tuple[type, ...] = (), database: str | None = None) -> list[str]:
        """Return the names of all, or of tables or views only, of a database, in order.

        Args:
            kinds: The classes of entries; none for all.
            database: ``catalog.database`` or a database of the current catalog; None for the current one.
        """
        where = self.database_of(database)
        found = {path.name for path in self.temporary if path[:2] == where} | set(self._catalog(where).names(where[1]))
        if not kinds:
            return sorted(found)
        return sorted(name for name in found if isinstance(self.find(ObjectPath(*where, name)), kinds))

    def table(self, name: str) -> CatalogTable:
        """Return a table.

        Raises:
            SqlError: If there is none of the name.
        """
        path = self.path_of(name)
        found = self.find(path)
        if not isinstance(found, CatalogTable):
            raise self.absent(path, "table", found)
        return found

    def view(self, name: str) -> CatalogView:
        """Return a view.

        Raises:
            SqlError: If there is none of the name.
        """
        path = self.path_of(name)
        found = self.find(path)
        if isinstance(found, TemporaryView):
            message = f"{name!r} is a query of the Table API, and has no text"
            raise SqlError(message, hint="its plan is shown by EXPLAIN")
        if not isinstance(found, CatalogView):
            raise self.absent(path, "view", found)
        return found

    def absent(self, path: ObjectPath, kind: str, found: Entry | None = None) -> SqlError:
        """Return the error of a name under which there is nothing, or nothing of the kind."""
        if found is not None:
            message = f"{path.name!r} is no {kind} that CREATE {kind.upper()} made"
            return SqlError(message)
        if path.catalog not in self.catalogs:
            return _no(path.catalog, "catalog", list(self.catalogs))
        databases = self.catalogs[path.catalog].databases()
        if path.database not in databases:
            return _no(path.database, "database", databases)
        names = self.names(database=path_of(path[:2]))
        shown = path.name if path[:2] == self.current else str(path)
        message = f"there is no {kind} {shown!r}"
        return SqlError(message, hint=nearest(path.name, names) or f"there are {', '.join(names) or 'none'}")

    def completed(self, statement: CreateTable) -> CreateTable:
        """Return a CREATE TABLE with the options that its catalog knows, unless it is the program's alone."""
        path = self.path_of(statement.name)
        if statement.is_temporary or path.catalog not in self.catalogs:
            return statement
        return self.catalogs[path.catalog].completed(statement, path)

    # -- tables and views ----------------------------------------------------------------------------------------------

    def add(self, name: str, entry: Entry, *, is_temporary: bool) -> None:
        """Give a table or view a name.

        Raises:
            SqlError: If the name is taken, or there is no such database.
        """
        path = self.path_of(name)
        self._require(path[:2])
        if isinstance(entry, (CatalogTable, TemporaryTable)):
            entry.connector.path = f"{'temporary ' if is_temporary else ''}{path}"
        if is_temporary:
            if path in self.temporary:
                raise taken(path)
            self.temporary[path] = entry
            return
        assert not isinstance(entry, TemporaryTable)
        catalog = self.catalogs[path.catalog]
        if isinstance(catalog, MemoryCatalog):
            catalog.create(path, entry)
        elif isinstance(entry, TemporaryView):
            message = f"a catalog of type {catalog.kind!r} keeps texts, and a query of the Table API has none"
            raise SqlError(message, hint="CREATE VIEW has one; create_temporary_view keeps it with the program")
        else:
            catalog.create(path, entry)

    def drop(self, kind: str, name: str, *, if_exists: bool, is_temporary: bool = False) -> None:
        """Forget a table or a view.

        Raises:
            SqlError: If there is none of the name, or it is of the other kind.
        """
        path = self.path_of(name)
        entry = self.temporary.get(path) if is_temporary else self.find(path)
        if entry is None:
            if if_exists:
                return
            raise self.absent(path, f"temporary {kind}" if is_temporary else kind)
        if (kind == "view") != isinstance(entry, (CatalogView, TemporaryView)):
            message = f"{path.name!r} is a {'view' if kind == 'table' else 'table'}"
            raise SqlError(message)
        if path in self.temporary:
            kept = self.catalogs.get(path.catalog)
            if not is_temporary and kept is not None and kept.find(path) is not None:
                message = f"{path.name!r} is temporary, and there is one that is kept, too"
                raise SqlError(message, hint=f"DROP TEMPORARY {kind.upper()} drops the first")
            del self.temporary[path]
        else:
            self.catalogs[path.catalog].drop(path)

    # -- catalogs and databases ----------------------------------------------------------------------------------------

    def create_catalog(self, name: str, catalog: Catalog) -> None:
        """Add a catalog.

        Raises:
            SqlError: If the name is taken.
        """
        if name in self.catalogs:
            message = f"there is a catalog {name!r} already"
            raise SqlError(message, hint="CREATE CATALOG IF NOT EXISTS, or DROP it")
        self.catalogs[name] = catalog

    def drop_catalog(self, name: str, *, if_exists: bool) -> None:
        """Forget a catalog; what it keeps in files stays there.

        Raises:
            SqlError: If there is none of the name, or it is the current one.
        """
        parts = parts_of(name)
        if len(parts) != 1 or parts[0] not in self.catalogs:
            if if_exists:
                return
            raise _no(name, "catalog", list(self.catalogs))
        if parts[0] == self.current[0]:
            message = f"{name!r} is the current catalog"
            raise SqlError(message, hint="USE CATALOG another one first")
        del self.catalogs[parts[0]]
        self.temporary = {path: entry for path, entry in self.temporary.items() if path.catalog != parts[0]}

    def use(self, kind: str, name: str) -> None:
        """Look names up in another catalog, or another database.

        Raises:
            SqlError: If there is none of the name.
        """
        if kind == "catalog":
            if name not in self.catalogs:
                raise _no(name, "catalog", list(self.catalogs))
            self.current = (name, self.catalogs[name].default_database)
        else:
            self.current = self.database_of(name)

    def database_of(self, name: str | None) -> tuple[str, str]:
        """Return the catalog and the database of a name of one or two parts; of None the current ones.

        Raises:
            SqlError: If there is none of the name.
        """
        found = self.current if name is None else self._database_path(name)
        self._require(found)
        return found

    def databases(self, catalog: str | None = None) -> list[str]:
        """Return the names of a catalog's databases; of None the current one's.

        Raises:
            SqlError: If there is no such catalog.
        """
        parts = (self.current[0],) if catalog is None else parts_of(catalog)
        if len(parts) != 1 or parts[0] not in self.catalogs:
            raise _no(str(catalog), "catalog", list(self.catalogs))
        return self.catalogs[parts[0]].databases()

    def _database_path(self, name: str) -> tuple[str, str]:
        parts = parts_of(name)
        if len(parts) > 2:
            message = f"{name} has {len(parts)} parts; the name of a database has one or two"
            raise SqlError(message)
        return (parts[0], parts[1]) if len(parts) == 2 else (self.current[0], parts[0])

    def _require(self, where: tuple[str, ...]) -> None:
        catalog, database = where
        if catalog not in self.catalogs:
            raise _no(catalog, "catalog", list(self.catalogs))
        databases = self.catalogs[catalog].databases()
        if database not in databases:
            raise _no(database, "database", databases)

    def _catalog(self, where: tuple[str, str]) -> Catalog:
        return self.catalogs[where[0]]

    def create_database(self, name: str, *, if_not_exists: bool) -> None:
        """Make a database.

        Raises:
            SqlError: If there is one of the name, or no such catalog.
        """
        catalog, database = self._database_path(name)
        if catalog not in self.catalogs:
            raise _no(catalog, "catalog", list(self.catalogs))
        if database not in self.catalogs[catalog].databases():
            self.catalogs[catalog].create_database(database)
        elif not if_not_exists:
            message = f"there is a database {database!r} already"
            raise SqlError(message, hint="CREATE DATABASE IF NOT EXISTS")

    def drop_database(self, name: str, *, if_exists: bool, is_cascade: bool) -> None:
        """Forget a database.

        Raises:
            SqlError: If there is none of the name, it is the current one, or there is something in it.
        """
        where = self._database_path(name)
        if if_exists and where[1] not in (self.catalogs[where[0]].databases() if where[0] in self.catalogs else ()):
            return
        self._require(where)
        if where in (self.current, (where[0], self._catalog(where).default_database)):
            message = f"{name!r} is the {'current' if where == self.current else 'default'} database"
            raise SqlError(message, hint="it cannot be dropped")
        held = self.names(database=path_of(where))
        if held and not is_cascade:
            message = f"there is something in database {name!r}: {', '.join(held[:3])}"
            raise SqlError(message, hint="DROP DATABASE ... CASCADE drops that, too")
        self._catalog(where).drop_database(where[1])
        self.temporary = {path: entry for path, entry in self.temporary.items() if path[:2] != where}


def _no(name: str, kind: str, there: Mapping[str, object] | list[str]) -> SqlError:
    message = f"there is no {kind} {name!r}"
    return SqlError(message, hint=nearest(name, list(there)) or f"there are {', '.join(sorted(there))}")
