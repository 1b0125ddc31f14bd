"""A catalog in a folder: every table and view is a file with the statement that made it.

``FOLDER/DATABASE/NAME.sql`` holds one CREATE TABLE or CREATE VIEW; ``FOLDER/DATABASE/.database`` says that there is a
database. Files are read whenever a name is looked up, so several programs see each other's tables, and are checked like
any other statement. They are written at once or not at all, and of two programs that create the same table one is
refused. The place of a file says its table's name: what stands before the last dot of the name in it does not count.

Options are kept as they are written, passwords too: a folder with some is for its owner alone.

Source: Flink's ``FileCatalogStore``, ``AbstractJdbcCatalog`` (what a catalog outside of memory does).
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from headrace.engine.errors import AlreadyExistsError, ConfigurationError
from headrace.state.files.filesystem import FileSystem, filesystem_for

from ..arguments.places import lasting_place
from ..sql.parsing.errors import SqlError, SqlText
from ..sql.parsing.names import parts_of
from ..sql.parsing.parser import parse_statements
from ..sql.parsing.statements import CreateTable, CreateView
from .catalog import Catalog, CatalogTable, CatalogView, Entry, MemoryCatalog, ObjectPath, table_entry, taken
from .connectors.contract import Options
from .iceberg_catalog import IcebergCatalog

__all__ = ["FileCatalog", "catalog_of"]

_MAX_BYTES = 1 << 20
_DATABASE, _SQL = ".database", ".sql"


def catalog_of(name: str, options: dict[str, str]) -> Catalog:
    """Return the catalog that CREATE CATALOG makes.

    Raises:
        ConfigurationError: If there is no such type, or an option is unknown or missing.
    """
    taken_options = Options(options, f"catalog {name}")
    kind = taken_options.choice("type", (MemoryCatalog.kind, FileCatalog.kind, IcebergCatalog.kind))
    default = taken_options.take("default-database", str, "default")
    made: Catalog
    if kind == MemoryCatalog.kind:
        made = MemoryCatalog(default)
    elif kind == IcebergCatalog.kind:
        made = IcebergCatalog(taken_options, default)
    else:
        made = FileCatalog(taken_options.need("path"), default)
    taken_options.end()
    return made


class FileCatalog(Catalog):
    """Keeps tables and views in a folder.

    Args:
        path: The folder: a path, or any URI that checkpoints may have.
        default_database: The database that is there from the beginning.
    """

    kind = "file"

    def __init__(self, path: str, default_database: str) -> None:
        self._files: FileSystem
        self._files, self._folder = filesystem_for(lasting_place(path, "the folder of a catalog"), is_private=True)
        self.default_database = default_database
        if default_database not in self.databases():
            self.create_database(default_database)

    def databases(self) -> list[str]:
        """Return the names of databases."""
        found = {path.rpartition("/")[0] for path in self._paths(self._folder) if path.endswith(f"/{_DATABASE}")}
        return sorted(unquote(path.rpartition("/")[2]) for path in found if path.rpartition("/")[0] == self._folder)

    def create_database(self, name: str) -> None:
        """Make one."""
        self._files.write_bytes(f"{self._place(name)}/{_DATABASE}", b"")

    def drop_database(self, name: str) -> None:
        """Forget one: its files are deleted."""
        self._files.delete_directory(self._place(name))

    def names(self, database: str) -> list[str]:
        """Return the names of what is in a database."""
        folder = self._place(database)
        files = [path[len(folder) + 1 :] for path in self._paths(folder)]
        return sorted(unquote(name[: -len(_SQL)]) for name in files if name.endswith(_SQL) and name[0] != ".")

    def find(self, path: ObjectPath) -> Entry | None:
        """Read what is under a name.

        Raises:
            SqlError: If the file is not what a catalog has written.
        """
        place = self._file(path)
        if not self._files.exists(place):
            return None
        try:
            text = SqlText(self._files.read_bytes(place, _MAX_BYTES).decode())
            return self._entry(path, text)
        except (SqlError, ConfigurationError, UnicodeDecodeError) as error:
            reason = getattr(error, "message", str(error))
            message = f"{place} is not what makes {path.name!r}: {reason}"
            raise SqlError(message, hint="mend the file, or delete it") from error

    def _entry(self, path: ObjectPath, text: SqlText) -> CatalogTable | CatalogView:
        statements = parse_statements(text.text)
        if len(statements) != 1 or not isinstance(statements[0], (CreateTable, CreateView)):
            message = "it holds one CREATE TABLE or CREATE VIEW"
            raise SqlError(message)
        statement = statements[0]
        if parts_of(statement.name)[-1] != path.name:
            message = f"it makes {statement.name!r}"
            raise SqlError(message)
        if isinstance(statement, CreateView):
            return CatalogView(statement, text, (path.catalog, path.database))
        if statement.like is not None:
            message = "LIKE cannot be kept"
            raise SqlError(message)
        return table_entry(statement, text)

    def create(self, path: ObjectPath, entry: CatalogTable | CatalogView) -> None:
        """Write the file of a table or view."""
        if isinstance(entry, CatalogTable) and entry.statement.like is not None:
            message = "a catalog of files keeps no table that is LIKE another one, which may change"
            raise SqlError(message, hint="write its columns and options out")
        if isinstance(entry, CatalogTable) and entry.connector.is_of_program:
            kind = entry.connector.name
            message = f"a catalog of files keeps no table with connector {kind!r}: its rows are in the program"
            raise SqlError(message, hint="CREATE TEMPORARY TABLE keeps it with the program")
        if isinstance(entry, CatalogView) and entry.home != path[:2]:
            message = "names in a view that is kept are those of its own database, which is not the current one"
            raise SqlError(message, hint=f"USE {path.catalog}.{path.database} first")
        text = entry.text.text.strip()
        try:
            self._files.create_exclusive(self._file(path), f"{text};\n".encode())
        except AlreadyExistsError:
            raise taken(path) from None

    def drop(self, path: ObjectPath) -> None:
        """Delete the file of a table or view."""
        self._files.delete(self._file(path))

    def _paths(self, folder: str) -> list[str]:
        return [path for path, _size in self._files.list_files(folder)]

    def _place(self, database: str) -> str:
        return f"{self._folder}/{_file_name(database)}"

    def _file(self, path: ObjectPath) -> str:
        return f"{self._place(path.database)}/{_file_name(path.name)}{_SQL}"


def _file_name(name: str) -> str:
    """A name as that of a file: one that is no way out of a folder, and not hidden."""
    return quote(name, safe=" ").replace(".", "%2E")
