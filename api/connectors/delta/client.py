"""Tables of Delta Lake, as the library ``deltalake`` gives them.

A commit is one transaction with two *application transactions* (Delta's ``txn`` action) in it: one for the sink, whose
version is the claim, and one for the attempt that prepared, whose version is the checkpoint. Delta takes versions as
they come, so they guard nothing by themselves. What guards is that a transaction fails if another one has named the
same application since the table was looked at; so a view reads the versions and commits with one and the same table
object.

Source: the Delta protocol, "Transaction Identifiers"; delta-rs, ``ConflictChecker``.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.engine.connectors.sink_protocols import GlobalCommittable
from headrace.engine.errors import NotFoundError, PossibleLossError, SinkError
from headrace.state.extras import needs
from headrace.state.files.filesystem import FileSystem, filesystem_for

from ...formats.containers.parquet_files import open_parquet
from ...formats.folders import FOLDERS, by_folder, of_folders, require_folder_columns
from ..lake.contract import DELETED, CommitConflictError, DataFile, Note
from ..lake.keyed_changes import last_changes
from ..lake.ledger import Ledger

__all__ = ["DeltaAccess", "DeltaView", "delta", "table_schema"]

_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.")
"""What metadata of a column demands of its values begins with."""

_EXPIRY = "delta.setTransactionRetentionDuration"

_SOUGHT = (100, 1_000, None)
"""So many of the newest commits are looked through for a sink's notes, then more."""


def delta() -> Any:
    """Return the library.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("tables of Delta Lake need the library deltalake", "delta"):
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    return deltalake


def table_schema(table: Any) -> pa.Schema:
    """Return a table's columns as Arrow has them."""
    return pa.schema(table.schema().to_arrow()).remove_metadata()


@dataclass(frozen=True)
class DeltaAccess:
    """Where a table is, and how it is made.

    Attributes:
        uri: An absolute path or a URI.
        storage_options: Of the library's own access to the table's log.
        schema: Of the table if it is to be made; None if it must be there.
        partition_by: Likewise.
    """

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict)
    schema: pa.Schema | None = None
    partition_by: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.uri

    @property
    def place(self) -> Mapping[str, Any]:
        return {"table": self.uri}

    def load(self, version: int | None = None) -> Any:
        """Return the library's table, as it is now or was at a version.

        Raises:
            SinkError: If it is not there, or cannot be asked.
        """
        library = delta()
        try:
            return library.DeltaTable(self.uri, version=version, storage_options=dict(self.storage_options) or None)
        except library.exceptions.TableNotFoundError as error:
            message = "there is no Delta table"
            hint = "it must be there, or the sink must be told its schema to make it"
            raise SinkError(message, hint=hint, **self.place) from error
        except library.exceptions.DeltaError as error:
            message = f"the Delta table cannot be read: {error}"
            raise SinkError(message, **self.place) from error

    def look(self) -> DeltaView:
        return DeltaView(self, self.load())

    def make(self) -> None:
        if self.schema is None:
            return
        library = delta()
        try:
            library.DeltaTable.create(
                self.uri, self.schema, mode="ignore", partition_by=list(self.partition_by),
                storage_options=dict(self.storage_options) or None,
            )  # fmt: skip
        except library.exceptions.DeltaError as error:
            message = f"the Delta table cannot be made: {error}"
            raise SinkError(message, **self.place) from error


class DeltaView:
    """A table as it was at one look; see `headrace.connectors.lake.contract.TableView`."""

    def __init__(self, access: DeltaAccess, table: Any) -> None:
        self._access = access
        self._table = table
        metadata = table.metadata()
        self.table_id = str(metadata.id)
        self.partition_by = tuple(metadata.partition_columns)
        self.schema = table_schema(table)
        self._configuration = metadata.configuration
        mapping = metadata.configuration.get("delta.columnMapping.mode", "none")
        if mapping != "none":
            message = f"the Delta table maps columns by {mapping}: files cannot be added to it"
            raise SinkError(message, **access.place)
        if self.partition_by:
            require_folder_columns(self.partition_by, self.schema)
        self._folders = pa.schema([self.schema.field(name) for name in self.partition_by])

    # ------------------------------------------------------------------------------------------------------------ files
    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        self._require_no_rules()
        if self.partition_by:
            yield from by_folder(self.partition_by, rows)
        else:
            yield "", rows

    def open_output(self, name: str, partition: str) -> Any:
        fs, path = self._file(name, partition)
        return fs.open_output(path)

    def delete_output(self, name: str, partition: str) -> None:
        fs, path = self._file(name, partition)
        fs.delete(path)

    def _file(self, name: str, partition: str) -> tuple[FileSystem, str]:
        fs, root = filesystem_for(self._access.uri)
        return fs, f"{root.rstrip('/')}/{_relative(name, partition)}"

    # ------------------------------------------------------------------------------------------------------------ notes
    def ledger(self, origin: str) -> Ledger:
        self._require_lasting_notes()
        if self._table.transaction_version(_sink_app(origin)) is None:
            return Ledger()
        for limit in _SOUGHT:
            for commit in self._table.history(limit):
                if commit.get("headrace.origin") == origin and "headrace.ledger" in commit:
                    return Ledger.of_text(commit["headrace.ledger"], **self._access.place)
        message = "the log of the Delta table no longer says what the sink has committed"
        hint = "its entries are kept for delta.logRetentionDuration; write with another sink, or into another table"
        raise SinkError(message, hint=hint, **self._access.place)

    def has(self, origin: str, whole: GlobalCommittable) -> bool:
        self._require_lasting_notes()
        done = self._table.transaction_version(_attempt_app(whole))
        return done is not None and whole.checkpoint_id <= done

    def _require_lasting_notes(self) -> None:
        """A job may be away for any time, and a note that is gone means that nothing was committed.

        The notes have no time of their own: writers such as Spark drop those at the log's next checkpoint, however long
        the retention is.
        """
        retention = self._configuration.get(_EXPIRY)
        if retention is not None:
            message = f"the Delta table forgets what a sink has committed: its property {_EXPIRY} is {retention!r}"
            hint = f"ALTER TABLE ... UNSET TBLPROPERTIES ('{_EXPIRY}'): without it nothing is forgotten"
            raise SinkError(message, hint=hint, **self._access.place)

    def claim_of(self, origin: str) -> int:
        return int(self._table.transaction_version(_sink_app(origin)) or 0)

    # ---------------------------------------------------------------------------------------------------------- commits
    def append(self, files: Sequence[DataFile], note: Note) -> None:
        self._require_no_rules()
        self._commit([self._added(one) for one in files], note)

    def claim(self, note: Note) -> None:
        self._commit([], note)

    def _commit(self, actions: list[Any], note: Note) -> None:
        with self._committing():
            self._table.create_write_transaction(
                actions, "append", self._table.schema(), list(self.partition_by) or None,
                commit_properties=_properties(note),
            )  # fmt: skip

    def change(self, files: Sequence[DataFile], keys: Sequence[str], note: Note) -> None:
        if self._configuration.get("delta.appendOnly", "false").lower() == "true":
            message = "the Delta table takes no changes by key: its property delta.appendOnly is set"
            raise SinkError(message, **self._access.place)
        changes = last_changes(map(self._read, files), keys)
        named = {name: f"s.{_quoted(name)}" for name in self.schema.names}
        on = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in keys)
        is_gone = f"s.{_quoted(DELETED)}"
        with self._committing():
            merge = self._table.merge(
                changes, on, source_alias="s", target_alias="t", commit_properties=_properties(note)
            )
            merge = merge.when_matched_delete(is_gone).when_matched_update(named, f"NOT {is_gone}")
            merge.when_not_matched_insert(named, f"NOT {is_gone}").execute()

    @contextlib.contextmanager
    def _committing(self) -> Iterator[None]:
        library = delta()
        try:
            yield
        except library.exceptions.CommitFailedError as error:
            raise CommitConflictError from error
        except library.exceptions.DeltaError as error:
            message = f"the commit to the Delta table failed: {error}"
            raise SinkError(message, **self._access.place) from error

    def _require_no_rules(self) -> None:
        """Files that are added are not looked into: nobody would hold their rows against what the table demands."""
        rules = [name for name in self._configuration if name.startswith("delta.constraints.")]
        for column in self._table.schema().fields:
            found = [name for name in column.metadata if name.startswith(_RULES)]
            rules += [f"{name} of column {column.name!r}" for name in found]
        if rules:
            message = f"the Delta table has a rule for its rows, which a sink that adds files does not keep: {rules[0]}"
            hint = "drop the rule, or write with key=: a merge keeps it"
            raise SinkError(message, hint=hint, **self._access.place)

    def _added(self, one: DataFile) -> Any:
        """The action that adds a file; its statistics are those of the file."""
        metadata = self._opened(one)
        self._require_columns(one, metadata.schema.to_arrow_schema())
        values: dict[str, str | None] = {}
        if self.partition_by:
            scalars = of_folders(_relative(one.name, one.partition), self._folders)
            values = {
                name: None if scalar.as_py() is None else str(scalar.as_py())
                for name, scalar in zip(self.partition_by, scalars, strict=True)
            }
        return delta().transaction.AddAction(
            _relative(one.name, one.partition), one.size, values, int(time.time() * 1_000), True,
            json.dumps(_statistics(metadata)),
        )  # fmt: skip

    def _opened(self, one: DataFile) -> pq.FileMetaData:
        if one.partition and FOLDERS.fullmatch(one.partition) is None:
            message = "the checkpoint names a file in a folder that is none of a partition"
            raise SinkError(message, file=one.partition, **self._access.place)
        fs, path = self._file(one.name, one.partition)
        try:
            with fs.open_input(path) as file:
                return open_parquet(file).metadata
        except (NotFoundError, FileNotFoundError) as error:
            raise self._gone(one) from error

    def _read(self, one: DataFile) -> pa.Table:
        fs, path = self._file(one.name, one.partition)
        try:
            with fs.open_input(path) as file:
                table: pa.Table = open_parquet(file).read()
        except (NotFoundError, FileNotFoundError) as error:
            raise self._gone(one) from error
        self._require_columns(one, table.schema.remove(table.schema.get_field_index(DELETED)))
        return table

    def _gone(self, one: DataFile) -> PossibleLossError:
        message = "prepared output is gone and was never committed: possible loss"
        hint = "VACUUM removes files that are in no version; its retention must be longer than a job may be away"
        return PossibleLossError(message, file=one.name, rows=one.rows, hint=hint, **self._access.place)

    def _require_columns(self, one: DataFile, written: pa.Schema) -> None:
        """The table may have got more columns since a file was written; those of the file must mean the same."""
        expected = [field for field in self.schema if field.name not in self.partition_by or DELETED in written.names]
        kinds = {field.name: field.type for field in expected}
        for found in written:
            if found.name in self.partition_by:
                continue
            kind = kinds.get(found.name)
            if kind != found.type:
                is_now = "is not there any more" if kind is None else f"is {kind} now"
                message = (
                    f"the table has been changed under the sink: column {found.name!r} was {found.type} and {is_now}"
                )
                hint = "change it back, let the job commit, and stop it with a savepoint before the next change"
                raise SinkError(message, hint=hint, file=one.name, **self._access.place)
        added = [one for one in expected if one.name not in written.names and not one.nullable]
        if added:
            message = (
                f"the table has been changed under the sink: column {added[0].name!r} has come, and must have values"
            )
            raise SinkError(message, **self._access.place)


def _relative(name: str, partition: str) -> str:
    return f"{partition}/{name}" if partition else name


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _sink_app(origin: str) -> str:
    return f"headrace-{origin}"


def _attempt_app(whole: GlobalCommittable) -> str:
    return f"headrace-{whole.owner}-{whole.attempt}"


def _properties(note: Note) -> Any:
    library = delta()
    apps = [library.Transaction(_sink_app(note.origin), note.ledger.claim)]
    if note.whole is not None:
        apps.append(library.Transaction(_attempt_app(note.whole), note.whole.checkpoint_id))
    said = {**note.to_properties(), "headrace.ledger": note.ledger.to_text()}
    return library.CommitProperties(custom_metadata=said, app_transactions=apps)


def _statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """What Delta keeps of a file to leave it out of queries: the number of rows, and the range of integers."""
    lows: dict[str, int] = {}
    highs: dict[str, int] = {}
    nulls: dict[str, int] = {}
    for index, column in enumerate(metadata.schema):
        parts = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if column.max_definition_level > 1 or any(part is None or not part.has_null_count for part in parts):
            continue
        nulls[column.name] = sum(part.null_count for part in parts)
        ranges = [part for part in parts if part.has_min_max]
        is_known = len(ranges) == len(parts) and all(type(part.min) is int for part in ranges)
        if column.physical_type in ("INT32", "INT64") and str(column.logical_type.type) in ("INT", "NONE") and is_known:
            lows[column.name], highs[column.name] = min(p.min for p in ranges), max(p.max for p in ranges)
    return {"numRecords": metadata.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
