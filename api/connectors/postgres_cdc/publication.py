"""What must be so before a table can be followed, and what is made for it: publication and slot.

Source: PostgreSQL's documentation ("Logical Replication", "Replication Slots"); Debezium's PostgreSQL connector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.engine.errors import ConfigurationError, SourceError, nearest

from .chunks import TableKey
from .pgoutput import lsn_of
from .settings import CdcSettings, asked, quoted
from .values import require_type

__all__ = [
    "Slot",
    "await_writers",
    "check_table",
    "has_bound",
    "key_of",
    "make_publication",
    "make_slot",
    "require_publication",
    "require_slot",
    "slot_of",
]

_TABLE = "SELECT c.oid, c.relreplident, c.relkind FROM pg_class c WHERE c.oid = to_regclass(%s)"
_COLUMNS = """SELECT attname, atttypid, attstorage FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"""
_KEY = """SELECT a.attname, format_type(a.atttypid, NULL)
FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(number, place), pg_attribute a
WHERE i.indrelid = to_regclass(%s) AND i.indisprimary AND a.attrelid = i.indrelid AND a.attnum = k.number
ORDER BY k.place"""
_SLOT = """SELECT plugin, database, active_pid, confirmed_flush_lsn::text, wal_status, database = current_database()
FROM pg_replication_slots WHERE slot_name = %s"""
_PUBLICATION = """SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, t.tablename IS NOT NULL,
to_jsonb(t) ->> 'rowfilter' FROM pg_publication p LEFT JOIN pg_publication_tables t
ON t.pubname = p.pubname AND t.schemaname = %s AND t.tablename = %s WHERE p.pubname = %s"""
_WRITERS = """SELECT l.virtualtransaction FROM pg_locks l WHERE l.locktype = 'relation'
AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.relation = to_regclass($1)
AND l.granted AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"""
_LOOK_S = "0.02"


@dataclass(frozen=True)
class Slot:
    """A replication slot.

    Attributes:
        confirmed_lsn: Behind what the log can be had.
        active_pid: Of the server's process that sends it to somebody; None if nobody reads it.
        is_lost: Whether the server has dropped log that it needs.
    """

    confirmed_lsn: int
    active_pid: int | None
    is_lost: bool


def check_table(connection: Any, settings: CdcSettings) -> TableKey:
    """See that the table can be followed as it is to be; gives its key.

    Raises:
        ConfigurationError: If there is no such table, key or column, or the log does not have what is needed.
        TypeMismatchError: If a column has values of another type.
    """
    found = connection.execute(_TABLE, (quoted(*settings.table),)).fetchone()
    if found is None:
        message = f"there is no table {settings.name!r} in database {settings.server.database!r}"
        raise ConfigurationError(message)
    number, identity, kind = found
    if kind != "r":
        message = f"{settings.name!r} is no plain table: only those can be followed"
        raise ConfigurationError(message, hint="of a partitioned table, follow its partitions")
    columns = {name: type_number for name, type_number, _ in connection.execute(_COLUMNS, (number,)).fetchall()}
    for item in settings.schema:
        if item.name not in columns:
            message = f"table {settings.name!r} has no column {item.name!r} that is stored"
            raise ConfigurationError(message, hint=nearest(item.name, list(columns)))
        require_type(item.name, columns[item.name], item.type)
    key = key_of(connection, settings)
    if not key.columns:
        message = f"table {settings.name!r} has no primary key, by which it is read and changes find their rows"
        raise ConfigurationError(message)
    for name in key.names:
        if name not in columns:
            message = f"column {name!r} of the key of table {settings.name!r} is generated: the log does not have it"
            raise ConfigurationError(message)
    if settings.startup == "initial":
        (encoding,) = connection.execute("SHOW server_encoding").fetchone()
        key.require_order(settings.name, encoding)
    _check_identity(settings, identity)
    return key


def key_of(connection: Any, settings: CdcSettings) -> TableKey:
    """Return the primary key that the table has now; one of no columns if it has none."""
    return TableKey(tuple(connection.execute(_KEY, (quoted(*settings.table),)).fetchall()))


def _check_identity(settings: CdcSettings, identity: str) -> None:
    """See that the log has the old rows that are needed.

    Raises:
        ConfigurationError: If it has not.
    """
    if identity == "f" or (settings.is_upsert and identity == "d"):
        return
    said = {"d": "DEFAULT", "n": "NOTHING", "i": "USING INDEX"}[identity]
    message = f"table {settings.name!r} has REPLICA IDENTITY {said}: its log does not say what an update replaces"
    hint = f"ALTER TABLE {quoted(*settings.table)} REPLICA IDENTITY FULL"
    if identity == "d":
        hint += ", or read it as upserts ('changelog-mode' = 'upsert')"
    elif settings.is_upsert:
        hint += ", or DEFAULT"
    raise ConfigurationError(message, hint=hint)


def make_publication(connection: Any, settings: CdcSettings) -> None:
    """Have a publication of the table; before the slot, which must not be older.

    Raises:
        ConfigurationError: If there is one that leaves something out.
    """
    name, table = quoted(settings.publication), f"ONLY {quoted(*settings.table)}"
    has_table = _publishes(connection, settings)
    if has_table is None:
        connection.execute(f"CREATE PUBLICATION {name} FOR TABLE {table}")
    elif not has_table:
        connection.execute(f"ALTER PUBLICATION {name} ADD TABLE {table}")
        if not _publishes(connection, settings):
            message = f"publication {settings.publication!r} tells changes of partition {settings.name!r} as its root's"
            hint = "give the source a 'publication.name' of its own: that one has publish_via_partition_root"
            raise ConfigurationError(message, hint=hint)


def require_publication(connection: Any, settings: CdcSettings) -> None:
    """See that the publication still has the table: what it leaves out is missing in silence.

    Raises:
        ConfigurationError: If it leaves out something of it.
        SourceError: If it has not the table any more.
    """
    has_table = _publishes(connection, settings)
    if has_table:
        return
    if has_table is None:
        message = f"there is no publication {settings.publication!r} any more"
    else:
        message = f"publication {settings.publication!r} does not publish table {settings.name!r} any more"
    raise SourceError(message, hint="begin anew, without the checkpoint and with a fresh slot: the table is read again")


def _publishes(connection: Any, settings: CdcSettings) -> bool | None:
    """Whether the publication has the table; None if there is no publication.

    Raises:
        ConfigurationError: If it leaves something out.
    """
    row = connection.execute(_PUBLICATION, (*settings.table, settings.publication)).fetchone()
    if row is None:
        return None
    publishes_all, has_table, row_filter = row
    if row_filter is not None:
        message = f"publication {settings.publication!r} leaves out rows of table {settings.name!r}: {row_filter}"
        raise ConfigurationError(message, hint="give the source a 'publication.name' of its own")
    if not publishes_all:
        message = f"publication {settings.publication!r} leaves out some kinds of changes"
        raise ConfigurationError(
            message,
            hint=f"ALTER PUBLICATION {quoted(settings.publication)} SET (publish = 'insert, update, delete, truncate')",
        )
    return bool(has_table)


def slot_of(connection: Any, settings: CdcSettings) -> Slot | None:
    """Return the slot; None if there is none.

    Raises:
        ConfigurationError: If it is one of something else.
    """
    found = connection.execute(_SLOT, (settings.slot,)).fetchone()
    if found is None:
        return None
    plugin, database, active_pid, confirmed, status, is_of_ours = found
    if plugin != "pgoutput" or not is_of_ours:
        message = f"replication slot {settings.slot!r} is one of plugin {plugin!r} in database {database!r}"
        raise ConfigurationError(message, hint="give the source a 'slot.name' of its own")
    return Slot(lsn_of(confirmed or "0/0"), active_pid, status == "lost")


def make_slot(connection: Any, settings: CdcSettings) -> Slot:
    """Return the slot, made if it is not there.

    Raises:
        ConfigurationError: If the server does not write such a log, or the slot is one of something else.
        SourceError: If somebody else reads it, or the server has dropped what it needs.
    """
    (level,) = connection.execute("SHOW wal_level").fetchone()
    if level != "logical":
        message = f"the server's wal_level is {level!r}: it writes no log from which changes can be told"
        raise ConfigurationError(message, hint="ALTER SYSTEM SET wal_level = logical, and restart the server")
    slot = slot_of(connection, settings)
    if slot is None:
        (lsn,) = connection.execute(
            "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (settings.slot,)
        ).fetchone()
        slot = Slot(lsn_of(lsn), None, is_lost=False)
    require_slot(slot, settings)
    if slot.active_pid is not None:
        message = f"replication slot {settings.slot!r} is read by another (server process {slot.active_pid})"
        raise SourceError(message, hint="two sources need two slots", slot=settings.slot)
    return slot


def await_writers(connection: Any, settings: CdcSettings) -> None:
    """Wait until those who write the table now have ended; after the slot was made, before pages are read.

    A transaction whose commit is in the log before the slot's place is not told by the slot. Pages do not see it
    either, as long as it waits for a disk or a standby: a writer that commits is seen only after that. It holds its
    lock of the table until it is seen.
    """
    writers = _writers(connection, settings)
    while writers:
        asked(connection, f"SELECT pg_sleep({_LOOK_S})")
        writers &= _writers(connection, settings)


def _writers(connection: Any, settings: CdcSettings) -> set[bytes]:
    found = asked(connection, _WRITERS, (quoted(*settings.table),))
    return {found.get_value(row, 0) for row in range(found.ntuples)}


def require_slot(slot: Slot | None, settings: CdcSettings) -> Slot:
    """See that the slot is there and has its log.

    Raises:
        SourceError: If not: then changes are lost, and reading on would hide it.
    """
    if slot is None:
        message = f"replication slot {settings.slot!r} is gone: what has changed since cannot be had"
    elif slot.is_lost:
        message = f"the server has dropped log that replication slot {settings.slot!r} needs (max_slot_wal_keep_size)"
    else:
        return slot
    hint = "drop the slot and begin anew, without the checkpoint: the table is read again"
    raise SourceError(message, hint=hint, slot=settings.slot)


def has_bound(connection: Any) -> bool:
    """Return whether the server bounds the log that slots keep."""
    (bound,) = connection.execute("SHOW max_slot_wal_keep_size").fetchone()
    return bool(bound != "-1")
