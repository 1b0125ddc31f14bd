"""Writes the files of a table: finished before the barrier, under names that no other attempt ever gives.

A file is in the table's own place from the beginning, but no reader of the table knows it before it is committed. What
is never committed stays there: removing it is the table's own business (Delta's VACUUM, Iceberg's removal of orphan
files), as it is for every writer of these formats.

Source: Flink's ``IcebergStreamWriter``, ``DeltaWriter``.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import SinkWriter, WriterContext
from headrace.engine.errors import TypeMismatchError

from ...formats.contract import columns_to_write
from ..files.parts import WRITE_ERRORS, Compression, FileSinkSettings, OpenParts, Part, failing, open_part
from .contract import DELETED, DataFile, TableAccess, TableView
from .keyed_changes import as_changes, require_key

__all__ = ["LakeWriter"]


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
        # The files being filled, by partition.
        self._parts = OpenParts(self._finish_part)
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
            error.context.update(self._context.place, table=self._access.name)
            raise
        if self._key:
            self._write_to("", rows)
            return
        for partition, own in self._view.split(rows):
            self._write_to(partition, own)

    def _looked(self) -> TableView:
        with self._failing("cannot look at the table"):
            return self._access.look()

    def _write_to(self, partition: str, rows: pa.RecordBatch) -> None:
        part = self._parts.of(partition, functools.partial(self._begin_part, partition, rows.schema))
        with self._failing(f"cannot write {part.path}"):
            is_taken = part.write(Batch.of_columns(rows))
        assert is_taken, "all parts have the table's columns"
        if part.num_bytes >= self._max_part_bytes:
            self._parts.finish(partition)

    def _begin_part(self, partition: str, schema: pa.Schema) -> Part:
        assert self._view is not None
        name = f"{self._begin}-{self._num_files:06d}.parquet"
        self._num_files += 1
        with self._failing(f"cannot begin {name}"):
            stream = self._view.open_output(name, partition)
        settings = FileSinkSettings(
            "parquet", self._access.name, self._max_part_bytes, None, schema, compression=self._compression
        )
        return open_part(name, stream, settings)

    def _finish_part(self, partition: str, part: Part) -> None:
        assert self._view is not None
        with self._failing(f"cannot finish {part.path}"):
            size = part.finish()
        self._finished.append(DataFile(self._view.table_id, part.path, partition, size, part.num_rows))

    def prepare(self, checkpoint_id: int) -> list[Any]:
        self._parts.finish_all()
        finished, self._finished = self._finished, []
        return [one.to_state() for one in finished]

    def close(self) -> None:
        view = self._view
        if view is None:
            return
        abandoned = self._parts.abandon()
        finished, self._finished = self._finished, []
        doomed = [(one.name, one.partition) for one in finished]
        doomed += [(part.path, partition) for partition, part in abandoned]
        for name, partition in doomed:
            with contextlib.suppress(*WRITE_ERRORS):
                view.delete_output(name, partition)

    def _failing(self, what: str) -> contextlib.AbstractContextManager[None]:
        return failing(what, **self._context.place, **self._access.place)
