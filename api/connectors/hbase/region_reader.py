"""Reads ranges of row keys of a table, one after the other, in a thread, page by page.

Invariant: a range's position is the row key of the last row that was given; rows come in the order of their keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import CheckpointMismatchError, SourceError, TypeMismatchError

from ..messages.client_thread import AnswerError, AwayError, ClientThread
from ..messages.fetching import FetchingReader
from .cell_values import TableFields
from .gateway import Gateway, HbaseClient

__all__ = ["RegionReader", "RegionScan"]

MAX_WAITING = 2
"""Pages that may wait for the task."""


@dataclass(frozen=True)
class RegionScan:
    """What is read.

    Attributes:
        table: Its name.
        fields: Its columns.
        page_size: Rows of an answer.
        patience_s: How long the server may be away.
    """

    table: str
    fields: TableFields
    page_size: int
    patience_s: float


@dataclass(slots=True)
class _Reading:
    """A range of row keys, and how far it was fetched or given."""

    split_id: str
    start: bytes
    stop: bytes
    position: bytes | None
    is_at_end: bool = False

    @property
    def next_key(self) -> bytes:
        """The least row key that may come next."""
        return self.start if self.position is None else self.position + b"\0"

    def as_split(self) -> Split:
        position = None if self.position is None else {"row": self.position.hex()}
        return Split(self.split_id, {"start": self.start.hex(), "stop": self.stop.hex()}, position)


@dataclass(frozen=True, slots=True)
class _Page:
    """Rows of a range; the last page has none."""

    split_id: str
    rows: list[tuple[bytes, dict[bytes, bytes]]]

    @property
    def num_messages(self) -> int:
        return len(self.rows)


class _Fetcher(ClientThread):
    """Fetches the rows of ranges, one range after the other."""

    def __init__(self, client: HbaseClient, name: str, scan: RegionScan, readings: Sequence[_Reading]) -> None:
        super().__init__(name, MAX_WAITING, scan.patience_s)
        self._client = client
        self._scan = scan
        self._readings = list(readings)
        self._gateway: Gateway | None = None

    def connect(self) -> None:
        try:
            self._gateway = self._client.connect()
        except AnswerError as error:
            raise self._failed(error) from error

    def disconnect(self) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.close()

    def work(self) -> None:
        if not self._readings:
            self.end()
            return
        assert self._gateway is not None
        reading, scan = self._readings[0], self._scan
        try:  # whole rows: asked for some columns, HBase leaves out rows that have none of them
            rows = self._gateway.rows(scan.table, reading.next_key, reading.stop, scan.page_size)
        except AnswerError as error:
            raise self._failed(error) from error
        if rows:
            reading.position = rows[-1][0]
        else:
            self._readings.pop(0)
        self.give(_Page(reading.split_id, rows))

    def _failed(self, error: AnswerError) -> SourceError:
        message = f"table {self._scan.table!r} cannot be read: {error}"
        one = self._readings[0] if self._readings else None
        place: dict[str, Any] = {} if one is None else {"split": one.split_id, "position": f"behind {one.position!r}"}
        return (AwayError if error.is_away else SourceError)(message, **place)


class RegionReader(FetchingReader[_Reading, _Page, _Fetcher]):
    """Reads the ranges of one subtask.

    Args:
        client: Of a Thrift server.
        scan: What is read.
    """

    def __init__(self, client: HbaseClient, scan: RegionScan) -> None:
        super().__init__()
        self._client = client
        self._scan = scan

    def open(self, context: ReaderContext) -> None:
        self._client.check_client()
        super().open(context)

    def reading_of(self, split: Split) -> _Reading:
        return _reading_of(split)

    def fetcher_of(self, readings: Sequence[_Reading]) -> _Fetcher:
        name = f"hbase {self._context.operator_name} {self._context.subtask + 1}"
        return _Fetcher(self._client, name, self._scan, readings)

    def read(self, reading: _Reading, fetched: _Page) -> Batch:
        if not fetched.rows:
            reading.is_at_end = True
            return Batch.of_rows([])
        schema = self._scan.fields.schema
        try:
            made = [self._scan.fields.row_of(key, cells) for key, cells in fetched.rows]
            batch = pa.RecordBatch.from_pylist(made, schema=schema)
        except (ValueError, ArithmeticError, pa.ArrowException):
            self._raise_of_first(reading, fetched)
            raise
        reading.position = fetched.rows[-1][0]
        return Batch.of_columns(batch)

    def _raise_of_first(self, reading: _Reading, fetched: _Page) -> None:
        """Raises: TypeMismatchError: Of the first row whose bytes are none of the columns' types."""
        for key, cells in fetched.rows:
            try:
                row = self._scan.fields.row_of(key, cells)
                pa.RecordBatch.from_pylist([row], schema=self._scan.fields.schema)
            except (ValueError, ArithmeticError, pa.ArrowException) as error:
                message = f"row {key!r:.80} of table {self._scan.table!r} cannot be read: {error}"
                raise TypeMismatchError(message, split=reading.split_id, position=f"row {key!r}") from error


def _reading_of(split: Split) -> _Reading:
    """Where a range is.

    Raises:
        CheckpointMismatchError: If it is none of a table of HBase.
    """
    payload, position = split.payload, split.position
    try:
        if payload.keys() != {"start", "stop"} or (position is not None and position.keys() != {"row"}):
            raise ValueError
        row = None if position is None else bytes.fromhex(position["row"])
        return _Reading(split.split_id, bytes.fromhex(payload["start"]), bytes.fromhex(payload["stop"]), row)
    except (ValueError, TypeError, AttributeError) as error:
        message = "the checkpoint's position is not one of a table of HBase"
        raise CheckpointMismatchError(message, split=split.split_id) from error
