"""A source over values that the program itself holds.

The values travel inside the pickled source to every slot; the one split knows only how far it has come. One split, as
in Flink's ``from_collection``: a collection has an order, and dealing it out over subtasks would lose it.

Source: Flink's ``StreamExecutionEnvironment.fromData``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    Discovery,
    EnumeratorContext,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
    SplitEnumerator,
    SplitFinished,
)
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError
from headrace.state.values.serde import columns_from_rows

from ..arguments.known_columns import columns_of_rows

__all__ = ["CollectionSource"]


class CollectionSource:
    """Gives the elements of a collection, in order.

    Args:
        rows: The elements, or a ``pyarrow`` table or record batch. Read to the end at once, so it must be finite.
        schema: Types of the elements' columns; None leaves them as Python objects.

    Raises:
        ConfigurationError: If ``rows`` is not iterable, or a text.
        TypeMismatchError: If an element does not fit the schema.
    """

    is_bounded = True

    def __init__(self, rows: Iterable[Any] | pa.Table | pa.RecordBatch, schema: pa.Schema | None = None) -> None:
        self._rows: list[Any] | None = None
        self._columns: pa.RecordBatch | None = None
        if isinstance(rows, (str, bytes)) or not isinstance(rows, (Iterable, pa.Table, pa.RecordBatch)):
            message = f"a collection must be an iterable of elements; got {type(rows).__name__}"
            raise ConfigurationError(message)
        if isinstance(rows, pa.RecordBatch):
            self._columns = rows if schema is None else rows.cast(schema)
        elif isinstance(rows, pa.Table):
            table = (rows if schema is None else rows.cast(schema)).combine_chunks()
            batches = table.to_batches()
            self._columns = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
        elif schema is not None:
            self._columns = columns_from_rows(list(rows), schema)
        else:
            self._rows = list(rows)

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the elements, for checks of the program; None if they have none in common."""
        return columns_of_rows(self._rows or []) if self._columns is None else self._columns.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return one split with everything."""
        return _CollectionEnumerator()

    def create_reader(self) -> SourceReader:
        """Make a reader over the elements."""
        return _CollectionReader(Batch(self._rows, self._columns, None))


class _CollectionEnumerator:
    discovery_interval_ms: int | None = None

    def discover(self) -> Discovery:
        return Discovery([Split("collection")], is_final=True)


class _CollectionReader:
    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._split: Split | None = None
        self._position = 0

    def open(self, context: ReaderContext) -> None:
        """Nothing to get ready."""

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            self._split = split
            self._position = split.position or 0
            if self._position > self._batch.num_rows:
                message = f"{self._position} values were read before, and the collection has {self._batch.num_rows}"
                raise CheckpointMismatchError(message, split=split.split_id)

    def poll(self, max_records: int) -> Any:
        if self._split is None:
            return ALL_SPLITS_FINISHED
        length = min(max_records, self._batch.num_rows - self._position)
        if length <= 0:
            finished, self._split = self._split, None
            return SplitFinished(finished.split_id)
        piece = self._batch.slice(self._position, length)
        self._position += length
        return Polled(self._split.split_id, piece)

    def next_poll_ms(self) -> int | None:
        return None

    def snapshot(self) -> list[Split]:
        return [] if self._split is None else [Split(self._split.split_id, self._split.payload, self._position)]

    def close(self) -> None:
        self._split = None
