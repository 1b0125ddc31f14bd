"""Writes the files of a table: finished before the barrier, under names that no other attempt ever gives.

A file is in the table's own place from the beginning, but no reader of the table knows it before it is committed. What
is never committed stays there: removing it is the table's own business (Delta's VACUUM, Iceberg's removal of orphan
files), as it is for every writer of these formats.

Source: Flink's ``IcebergStreamWriter``, ``DeltaWriter``.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import SinkWriter, WriterContext
from headrace.engine.errors import SinkError, StorageError, TypeMismatchError

from ...formats.contract import columns_to_write
from ..files.parts import Compression, FileSinkSettings, Part, open_part
from .changes import as_changes, require_key
from .contract import DELETED, DataFile, TableAccess, TableView

__all__ = ["LakeWriter"]

_WRITE_ERRORS = (OSError, StorageError, pa.ArrowException)

_MAX_OPEN_PARTS = 64
"""Of one subtask: records for more partitions at a time make more and smaller files."""


class LakeWriter(SinkWriter):
    """Fills files, one for each partition.

    Args:
        access: To the table.
        key: The columns of the table's key if changes are written; empty if rows are added.
        max_part_bytes: A file is finished when it is this large (about), even between barriers.
        compression: Of Parquet pages.
    """

    def __init__(
        self, access: TableAccess, key: tuple[str, ...], max_part_bytes: int, compression: Compression
    ) -> None:
        self._access = access
        self._key = key
        self._max_part_bytes = max_part_bytes
        self._compression = compression
        # The files being filled, by partition; the one used last is the last.
        self._parts: dict[str, tuple[str, Part]] = {}
        # What is finished and not prepared.
        self._finished: list[DataFile] = []
        self._num_files = 0
        # The table as it was when the first record came; None before.
        self._view: TableView | None = None

    def open(self, context: WriterContext) -> None:
        self._context = context
        history = context.history
        attempt = context.attempt.replace(".", "_")
        self._begin = f"{history.origin}-{history.owner}-{attempt}-{context.subtask:05d}"

    def write(self, batch: Batch) -> None:
        if not batch.num_rows:
            return
        if self._view is None:
            self._view = self._looked()
            self._schema = self._view.schema
            if self._key:
                require_key(self._key, self._schema)
                self._schema = self._schema.append(pa.field(DELETED, pa.bool_()))
        try:
            rows = columns_to_write(batch, self._schema)
            if self._key:
                rows = as_changes(rows, self._key)
        except TypeMismatchError as error:
            error.context.update(self._place, table=self._access.name)
            raise
        if self._key:
            self._write_to("", rows)
            return
        for partition, own in self._view.split(rows):
            self._write_to(partition, own)

    def _looked(self) -> TableView:
        try:
            return self._access.look()
        except _WRITE_ERRORS as error:
            msg = "cannot look at the table"
            raise self._failed(msg, error) from error

    def _write_to(self, partition: str, rows: pa.RecordBatch) -> None:
        name, part = self._part_of(partition, rows.schema)
        try:
            is_taken = part.write(Batch.of_columns(rows))
        except _WRITE_ERRORS as error:
            msg = f"cannot write {name}"
            raise self._failed(msg, error) from error
        assert is_taken, "all parts have the table's columns"
        if part.num_bytes >= self._max_part_bytes:
            self._finish_part(partition)

    def _part_of(self, partition: str, schema: pa.Schema) -> tuple[str, Part]:
        found = self._parts.pop(partition, None)
        if found is None:
            if len(self._parts) == _MAX_OPEN_PARTS:
                self._finish_part(next(iter(self._parts)))
            found = self._begin_part(partition, schema)
        self._parts[partition] = found
        return found

    def _begin_part(self, partition: str, schema: pa.Schema) -> tuple[str, Part]:
        assert self._view is not None
        name = f"{self._begin}-{self._num_files:06d}.parquet"
        self._num_files += 1
        try:
            stream = self._view.open_output(name, partition)
        except _WRITE_ERRORS as error:
            msg = f"cannot begin {name}"
            raise self._failed(msg, error) from error
        settings = FileSinkSettings(
            "parquet", self._access.name, self._max_part_bytes, None, schema, compression=self._compression
        )
        return name, open_part(name, stream, settings)

    def _finish_part(self, partition: str) -> None:
        assert self._view is not None
        name, part = self._parts.pop(partition)
        try:
            size = part.finish()
        except _WRITE_ERRORS as error:
            msg = f"cannot finish {name}"
            raise self._failed(msg, error) from error
        self._finished.append(DataFile(self._view.table_id, name, partition, size, part.num_rows))

    def prepare(self, checkpoint_id: int) -> list[Any]:
        for partition in list(self._parts):
            self._finish_part(partition)
        finished, self._finished = self._finished, []
        return [one.to_state() for one in finished]

    def close(self) -> None:
        view = self._view
        if view is None:
            return
        parts, self._parts = self._parts, {}
        finished, self._finished = self._finished, []
        doomed = [(one.name, one.partition) for one in finished]
        for partition, (name, part) in parts.items():
            with contextlib.suppress(*_WRITE_ERRORS):  # it is thrown away; whatever failed before has been told
                part.abandon()
            doomed.append((name, partition))
        for name, partition in doomed:
            with contextlib.suppress(*_WRITE_ERRORS):
                view.delete_output(name, partition)

    def _failed(self, what: str, error: Exception) -> SinkError:
        return SinkError(f"{what}: {error}", **self._place, **self._access.place)

    @property
    def _place(self) -> dict[str, Any]:
        context = self._context
        return {"operator": context.operator_name, "subtask": f"{context.subtask + 1}/{context.parallelism}"}
