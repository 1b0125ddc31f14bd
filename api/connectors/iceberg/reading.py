"""What a table of Apache Iceberg brings, snapshot by snapshot, and its files.

The library plans which files a scan reads, and reads them: columns by their ids, whatever they were called when a file
was written, and without the rows that position deletes take away. A file is in memory as a whole while it is read.

Source: the Iceberg specification, "Snapshots", "Scan Planning".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.engine.errors import SourceError

from ..lake.reading import Version, in_columns, require_same_table, wanted_columns
from .client import IcebergAccess, iceberg, table_schema

__all__ = ["ReadableIceberg"]

NO_SNAPSHOT = -1
"""A table that has none yet."""

FIRST_IN_SEQUENCE = 1
"""The number of a table's first snapshot; tables of version 1 have no numbers."""


@dataclass(frozen=True)
class ReadableIceberg:
    """A table, and where in its history reading begins.

    Attributes:
        access: To the table.
        version: The snapshot whose rows are read first; None for the newest.
        as_of_ms: Likewise, the snapshot at a time (epoch milliseconds).
        start: Who follows: ``full`` reads the rows that are there first, ``latest`` none; a snapshot's id, none of that
            and those before.
    """

    access: IcebergAccess
    version: int | None = None
    as_of_ms: int | None = None
    start: str | int = "full"

    @property
    def name(self) -> str:
        return self.access.name

    def first(self, *, follows: bool) -> Version:
        table = self.access.load()
        own = str(table.metadata.table_uuid)
        if follows and isinstance(self.start, int):
            return Version(self.start, table=own)
        snapshot = self._snapshot(table)
        if snapshot is None:
            return Version(NO_SNAPSHOT, table=own)
        number = int(snapshot.snapshot_id)
        if follows and self.start == "latest":
            return Version(number, table=own)
        paths = sorted(str(one.file.file_path) for one in table.scan(snapshot_id=number).plan_files())
        return Version(number, [{"path": path} for path in paths], table=own)

    def _snapshot(self, table: Any) -> Any:
        if self.version is not None:
            found = table.snapshot_by_id(self.version)
        elif self.as_of_ms is not None:
            found = table.snapshot_as_of_timestamp(self.as_of_ms)
        else:
            return table.current_snapshot()
        if found is None:
            message = "the Iceberg table has no such snapshot (any more)"
            wanted = self.version if self.version is not None else f"as of {self.as_of_ms} ms"
            raise SourceError(message, snapshot=wanted, **self.access.place)
        return found

    def since(self, number: int, table: str) -> Iterator[Version]:
        now = self.access.load()
        require_same_table(table, str(now.metadata.table_uuid), **self.access.place)
        return self._since(number, now)

    def _since(self, number: int, table: Any) -> Iterator[Version]:
        current = table.current_snapshot()
        line: list[Any] = []
        is_first = False
        while current is not None and current.snapshot_id != number:
            line.append(current)
            parent = current.parent_snapshot_id
            current = None if parent is None else table.snapshot_by_id(parent)
            # Some who expire snapshots leave their children without a parent: the sequence goes on.
            is_first = parent is None and (line[-1].sequence_number or 0) <= FIRST_IN_SEQUENCE
        if number == NO_SNAPSHOT and line and not is_first:
            message = "snapshots have expired before they were read: the table had none when it was looked at last"
            raise SourceError(message, hint="read the table anew", **self.access.place)
        if current is None and number != NO_SNAPSHOT:
            message = "the snapshot that was read last is none of the table's any more: expired, or rolled back"
            raise SourceError(message, hint="read the table anew", snapshot=number, **self.access.place)
        for snapshot in reversed(line):
            yield self._brought(table, snapshot)

    def _brought(self, table: Any, snapshot: Any) -> Version:
        number, own = int(snapshot.snapshot_id), str(table.metadata.table_uuid)
        operation = "append" if snapshot.summary is None else snapshot.summary.operation.value
        if operation == "replace":
            return Version(number, table=own)  # files were put together
        if operation != "append":
            return Version(number, [], operation, table=own)
        parent = snapshot.parent_snapshot_id
        tasks = _added(table, parent, number)
        files = [{"path": one.file.file_path, "since": parent or NO_SNAPSHOT} for one in tasks]
        return Version(number, files, table=own)

    def open_file(self, payload: dict[str, Any], columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        table, number = self.access.load(), int(payload["version"])
        if "since" in payload:
            since = None if payload["since"] == NO_SNAPSHOT else payload["since"]
            tasks = _added(table, since, number)
        else:
            tasks = table.scan(snapshot_id=number).plan_files()
        task = next((one for one in tasks if one.file.file_path == payload["path"]), None)
        if task is None:
            message = "a file of the Iceberg table that is half read is in none of its snapshots any more"
            raise SourceError(message, file=payload["path"], snapshot=number, **self.access.place)
        schema = wanted_columns(table_schema(table), columns).remove_metadata()
        schema = pa.schema([field.remove_metadata() for field in schema])
        library = iceberg()
        chosen = table.schema().select(*schema.names)
        scan = library.io.pyarrow.ArrowScan(table.metadata, table.io, chosen, library.expressions.AlwaysTrue())
        for batch in scan.to_record_batches([task]):
            yield in_columns(batch, schema, {})


def _added(table: Any, since: int | None, number: int) -> list[Any]:
    """The files that a snapshot has added to the one before."""
    scan = table.incremental_append_scan(from_snapshot_id_exclusive=since, to_snapshot_id_inclusive=number)
    return sorted(scan.plan_files(), key=lambda one: str(one.file.file_path))
