"""What a table of Delta Lake brings, version by version, and its files.

The files of a version come from the library; what a single commit did is read from its entry in the log, which the
library does not show.

Source: the Delta protocol, "Delta Log Entries", "Add File and Remove File".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from headrace.engine.errors import NotFoundError, SourceError
from headrace.state.files.filesystem import filesystem_for, join_confined

from ...formats.containers.parquet_files import open_parquet, row_group_batches
from ..lake.reading import Version, in_columns, require_same_table, wanted_columns
from .client import DeltaAccess, table_schema

__all__ = ["ReadableDelta"]


@dataclass(frozen=True)
class ReadableDelta:
    """A table, and where in its history reading begins.

    Attributes:
        access: To the table.
        version: Whose rows are read first; None for the newest.
        as_of: Likewise, the version at a time (ISO 8601).
        start: Who follows: ``full`` reads the rows that are there first, ``latest`` none; a number, none of that
            version and those before.
    """

    access: DeltaAccess
    version: int | None = None
    as_of: str | None = None
    start: str | int = "full"

    @property
    def name(self) -> str:
        return self.access.name

    def _at(self, version: int | None) -> Any:
        if version is None and self.as_of is not None:
            table = self.access.load()
            table.load_as_version(self.as_of)
        else:
            table = self.access.load(self.version if version is None else version)
        mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mode != "none":
            message = f"the Delta table maps columns by {mode}, which is not read"
            raise SourceError(message, **self.access.place)
        return table

    def first(self, *, follows: bool) -> Version:
        table = self._at(None)
        own = str(table.metadata().id)
        if follows and isinstance(self.start, int):
            return Version(self.start, table=own)
        if follows and self.start == "latest":
            return Version(table.version(), table=own)
        self._require_whole_files(table)
        actions = pa.table(table.get_add_actions(flatten=False))
        return Version(
            table.version(),
            [
                {"path": one["path"], "partition": _texts(one.get("partition") or {})}
                for one in sorted(actions.to_pylist(), key=lambda one: one["path"])
            ],
            table=own,
        )

    def _require_whole_files(self, table: Any) -> None:
        if pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all().num_rows:
            message = "the Delta table has deletion vectors, which are not read"
            hint = "rewrite its files: REORG TABLE ... APPLY (PURGE)"
            raise SourceError(message, hint=hint, **self.access.place)

    def since(self, number: int, table: str) -> Iterator[Version]:
        now = self.access.load()
        require_same_table(table, str(now.metadata().id), **self.access.place)
        newest = now.version()
        if newest < number:
            message = f"the Delta table has no version {number} to go on behind: the newest one is {newest}"
            raise SourceError(message, **self.access.place)
        for version in range(number + 1, newest + 1):
            yield self._brought(version, table)

    def _brought(self, version: int, table: str) -> Version:
        fs, root = filesystem_for(self.access.uri)
        path = f"{root.rstrip('/')}/_delta_log/{version:020}.json"
        try:
            lines = fs.read_bytes(path).splitlines()
        except NotFoundError as error:
            message = f"the log of the Delta table no longer has version {version}"
            hint = "its entries are kept for delta.logRetentionDuration; read the table anew"
            raise SourceError(message, hint=hint, **self.access.place) from error
        actions = [json.loads(line) for line in lines if line.strip()]
        added = [one["add"] for one in actions if "add" in one and one["add"].get("dataChange", True)]
        removed = [one["remove"] for one in actions if "remove" in one and one["remove"].get("dataChange", True)]
        operation = next((one["commitInfo"].get("operation") for one in actions if "commitInfo" in one), None)
        files = [{"path": one["path"], "partition": one.get("partitionValues") or {}} for one in added]
        return Version(version, files, str(operation or "files are removed") if removed else None, table=table)

    def open_file(self, payload: dict[str, Any], columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        pinned = None if self.version is None and self.as_of is None else payload["version"]
        schema = wanted_columns(table_schema(self._at(pinned)), columns)
        constants = {
            name: pa.scalar(text).cast(schema.field(name).type) if text is not None else pa.scalar(None)
            for name, text in payload["partition"].items()
            if name in schema.names
        }
        fs, root = filesystem_for(self.access.uri)
        with fs.open_input(join_confined(root, unquote(payload["path"]))) as stream:
            file = open_parquet(stream, "us")
            names = file.schema_arrow.names
            own = [name for name in schema.names if name in names and name not in constants] or names[:1]
            for batch in row_group_batches(file, range(file.metadata.num_row_groups), own):
                yield in_columns(batch, schema, constants)


def _texts(values: dict[str, Any]) -> dict[str, str | None]:
    """The values of a partition as the log has them."""
    return {name: None if value is None else _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
