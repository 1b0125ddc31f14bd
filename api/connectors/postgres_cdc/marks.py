"""What the catalogue says of a table that is followed, as far as a change of it may lose changes of rows in silence.

The log is told as the publication was at each moment. One that left the table, some kinds of changes or some rows out
for a moment has left them out for ever, and is the same again. But its entries in the catalogue are not: they have
another number, or another transaction has written them. So do columns that were dropped and added again, and tables
that were rewritten, both without a word in the log.

Source: PostgreSQL's documentation ("System Catalogs": ``pg_publication``, ``pg_publication_rel``, ``pg_attribute``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.engine.errors import SourceError

from .chunks import TableKey
from .settings import CdcSettings, quoted

__all__ = ["CatalogMarks"]

_HAS_NAMESPACES_VERSION = 150_000
"""Publications of whole schemas."""

_NAMESPACES = """(SELECT string_agg(n.oid || '/' || n.xmin::text, ' ' ORDER BY n.oid)
 FROM pg_publication_namespace n, published WHERE n.pnpubid = published.oid
 AND n.pnnspid IN (SELECT relnamespace FROM pg_class JOIN lineage USING (oid)))"""

_OF_ITS_NAMESPACE = """EXISTS (SELECT FROM pg_publication_namespace n, published, followed
 WHERE n.pnpubid = published.oid AND n.pnnspid = followed.relnamespace)"""

# A partition that is not published itself is published with its root, as long as it is attached to it.
_MARKS = """
WITH followed AS
  (SELECT oid, relnamespace, relfilenode, relispartition FROM pg_class WHERE oid = to_regclass(%(table)s)),
 lineage AS (SELECT oid FROM followed UNION SELECT a.relid FROM followed, pg_partition_ancestors(followed.oid) a),
 published AS (SELECT oid, xmin, puballtables FROM pg_publication WHERE pubname = %(publication)s),
 itself AS (SELECT FROM published, followed WHERE puballtables OR {of_its_namespace} OR EXISTS
  (SELECT FROM pg_publication_rel r WHERE r.prpubid = published.oid AND r.prrelid = followed.oid))
SELECT concat_ws(' ', (SELECT oid || '/' || xmin::text FROM published),
 (SELECT string_agg(r.oid || '/' || r.xmin::text, ' ' ORDER BY r.oid) FROM pg_publication_rel r, published
  WHERE r.prpubid = published.oid AND r.prrelid IN (SELECT oid FROM lineage)),
 (SELECT string_agg(i.inhparent || '/' || i.xmin::text, ' ' ORDER BY i.inhparent) FROM pg_inherits i, followed
  WHERE followed.relispartition AND i.inhrelid IN (SELECT oid FROM lineage) AND NOT EXISTS (SELECT FROM itself)),
 {namespaces}),
 (SELECT oid::text FROM followed),
 (SELECT relfilenode::text FROM followed),
 (SELECT json_object_agg(attname, attnum) FROM pg_attribute, followed
  WHERE attrelid = followed.oid AND attname = ANY(%(columns)s) AND NOT attisdropped),
 (SELECT string_agg(a.xmin::text, ' ' ORDER BY attname) FROM pg_attribute a, followed
  WHERE attrelid = followed.oid AND attname = ANY(%(columns)s) AND NOT attisdropped)"""


@dataclass(frozen=True)
class CatalogMarks:
    """What the catalogue said at one moment.

    Attributes:
        publication: Numbers and writers of the entries by which the table is published.
        table: Number of the table.
        storage: Number of the file that has its rows: another one after it was rewritten, also by VACUUM FULL.
        columns: Numbers of the columns that are read and of the key's, by name.
        columns_written: Who has last written the entries of these columns.
    """

    publication: str
    table: str | None
    storage: str | None
    columns: dict[str, int]
    columns_written: str | None

    @classmethod
    def read(cls, connection: Any, settings: CdcSettings, key: TableKey) -> CatalogMarks:
        """Ask the database."""
        has_namespaces = connection.info.server_version >= _HAS_NAMESPACES_VERSION
        names = {
            "table": quoted(*settings.table),
            "publication": settings.publication,
            "columns": [*settings.schema.names, *key.names],
        }
        parts = (_NAMESPACES, _OF_ITS_NAMESPACE) if has_namespaces else ("NULL", "FALSE")
        statement = _MARKS.format(namespaces=parts[0], of_its_namespace=parts[1])
        publication, table, storage, columns, written = connection.execute(statement, names).fetchone()
        return cls(publication, table, storage, columns or {}, written)

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> CatalogMarks:
        """Return what `as_state` has made."""
        return cls(**state)

    def as_state(self) -> dict[str, Any]:
        """Return it for a checkpoint."""
        return asdict(self)

    def followed_by(self, now: CatalogMarks, settings: CdcSettings, place: dict[str, Any]) -> CatalogMarks:
        """Return the marks to go on with; the log may have had every change between both.

        A table may be rewritten (VACUUM FULL), and the entry of a column may be (SET NOT NULL): both at once is what
        ALTER COLUMN TYPE does, which may change every value.

        Raises:
            SourceError: If changes may be missing.
        """
        name = settings.name
        others = [column for column, number in now.columns.items() if self.columns.get(column, number) != number]
        if now.table != self.table:
            message = f"table {name!r} was dropped or renamed, and there is another one of its name"
        elif now.publication != self.publication:
            message = (
                f"publication {settings.publication!r} was altered or made again while table {name!r} was followed:"
                " the log lacks what it left out in between"
            )
        elif others:
            message = f"column {others[0]!r} of table {name!r} was dropped and added again: its values are others"
        elif now.storage != self.storage and now.columns_written != self.columns_written:
            message = f"table {name!r} was rewritten by ALTER TABLE: its log does not have the values that changed"
        else:
            return replace(now, columns={**self.columns, **now.columns})  # of one that is missing the log will tell
        hint = "begin anew, without the checkpoint and with a fresh slot: the table is read again"
        raise SourceError(message, hint=hint, **place)
